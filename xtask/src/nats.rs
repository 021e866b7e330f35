//! Servers of NATS with JetStream on loopback, for the demo and the benchmark of fleets. They end when the value is
//! dropped, and their messages are removed.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;
use tempfile::TempDir;

use crate::run;

/// A cluster first elects a leader, which takes up to 10 s.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const HEALTH_TIMEOUT_SECONDS: u64 = 2;

/// Running servers.
pub(crate) struct NatsServers {
    children: Vec<Child>,
    urls: Vec<String>,
    /// Dropped after the processes that write there.
    folder: TempDir,
}

impl NatsServers {
    /// Starts one server, or a cluster of several, and waits until all of them can store messages. Their output goes to
    /// files in `logs`.
    pub(crate) fn start(program: &Path, count: usize, logs: &Path) -> Result<Self> {
        Self::start_in(&std::env::temp_dir(), program, count, logs)
    }

    /// As [`Self::start`], with the messages in a new folder in `place`.
    pub(crate) fn start_in(place: &Path, program: &Path, count: usize, logs: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("a2g-nats-").tempdir_in(place)?;
        let addresses = free_addresses(3 * count)?;
        let (clients, rest) = addresses.split_at(count);
        let (monitors, routes) = rest.split_at(count);
        let mut servers = Self { children: Vec::new(), urls: urls(clients), folder };
        for (number, ((client, monitor), route)) in clients.iter().zip(monitors).zip(routes).enumerate() {
            let mut text = format!("server_name: \"{number}\"\nlisten: \"{client}\"\nhttp: \"{monitor}\"\n");
            if count > 1 {
                let routes = urls(routes);
                text += &format!("cluster {{ name: xtask, listen: \"{route}\", routes: {routes:?} }}\n");
            }
            let log = logs.join(format!("nats-{number}-of-{count}.log"));
            servers.spawn(program, number, &text, &log)?;
        }
        servers.wait_until_healthy(monitors, logs)?;
        Ok(servers)
    }

    fn spawn(&mut self, program: &Path, number: usize, text: &str, log: &Path) -> Result<()> {
        let root = self.folder.path();
        let config = root.join(format!("{number}.conf"));
        fs::write(&config, text)?;
        let mut command = Command::new(program);
        command.arg("--config").arg(config).arg("--jetstream");
        command.arg("--store_dir").arg(root.join(number.to_string()));
        let log = fs::File::create(log)?.into_parts().0;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.children.push(command.spawn().context("the server of NATS could not be started")?);
        Ok(())
    }

    fn wait_until_healthy(&mut self, monitors: &[SocketAddr], logs: &Path) -> Result<()> {
        let started = run::now();
        let seconds = START_TIMEOUT.as_secs();
        let logs = logs.display();
        while !monitors.iter().all(is_healthy) {
            for child in &mut self.children {
                let end = child.try_wait()?;
                ensure!(end.is_none(), "a server of NATS ended too early; its output is in {logs}");
            }
            if started.elapsed() > START_TIMEOUT {
                bail!("the servers of NATS were not ready within {seconds} s; their output is in {logs}");
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// `nats://ADDRESS` of each.
    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }
}

impl Drop for NatsServers {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Both calls fail only for a child that has ended and was reaped.
            let _has_ended = child.kill();
            let _was_reaped = child.wait();
        }
    }
}

fn urls(addresses: &[SocketAddr]) -> Vec<String> {
    addresses.iter().map(|address| format!("nats://{address}")).collect()
}

fn is_healthy(monitor: &SocketAddr) -> bool {
    let request = minreq::get(format!("http://{monitor}/healthz")).with_timeout(HEALTH_TIMEOUT_SECONDS);
    request.send().is_ok_and(|response| response.status_code == 200)
}

/// Different addresses that are free now.
fn free_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    let listeners: Result<Vec<_>, _> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    Ok(listeners?.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?)
}
