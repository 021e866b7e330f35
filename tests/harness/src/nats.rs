//! Servers of NATS with JetStream on loopback, which `cargo xtask setup` installs from PyPI: one, or a cluster.
//!
//! ```text
//! NatsServers::start(3) ── kill(nth) ── restart(nth)     the same ports and the same store
//!                       └─ pause(nth) ── resume(nth)     its connections stay open, and nothing answers
//! ```
//! Dropping the value kills all of them and removes what they stored.

use super::http::read_message;
use super::{Process, clients, eventually, print_skipped};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// The time in which a running server answers one request. A paused one accepts connections and never answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const INBOX: &str = "_INBOX.harness";

/// Running servers, numbered from 0.
pub struct NatsServers {
    program: PathBuf,
    servers: Vec<NatsServer>,
    /// The configurations and stores. Dropped after the processes that write there.
    folder: TempDir,
}

struct NatsServer {
    process: Process,
    client: SocketAddr,
    monitor: SocketAddr,
}

impl NatsServers {
    /// Starts one server, or a cluster of several, and waits until JetStream answers. If the server is not installed,
    /// the running test is named as skipped.
    pub fn start(count: usize) -> Option<Self> {
        Self::start_with(count, "")
    }

    /// As [`Self::start`], with more lines in the configuration of each server, such as
    /// `jetstream { max_file_store: 8MB }`. Paths in them have to be absolute.
    pub fn start_with(count: usize, lines: &str) -> Option<Self> {
        let program = clients().join("python/bin/nats-server");
        if !program.exists() {
            print_skipped("nats-server is not installed");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temp folder");
        let addresses = |_| [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let addresses: Vec<[SocketAddr; 3]> = (0..count).map(addresses).collect();
        let routes: Vec<String> = addresses.iter().map(|[.., route]| format!("nats://{route}")).collect();
        let mut servers = Vec::new();
        for (nth, [client, monitor, route]) in addresses.into_iter().enumerate() {
            let mut config =
                format!("server_name: \"{nth}\"\nlisten: \"{client}\"\nhttp: \"{monitor}\"\n{lines}\n");
            if count > 1 {
                config += &format!("cluster {{ name: tests, listen: \"{route}\", routes: {routes:?} }}\n");
            }
            std::fs::write(folder.path().join(format!("{nth}.conf")), config).expect("a configuration");
            let process = Self::spawn(&program, &folder, nth);
            servers.push(NatsServer { process, client, monitor });
        }
        let servers = Self { program, servers, folder };
        (0..count).for_each(|nth| servers.wait_for_jet_stream(nth));
        servers.wait_for_leader();
        Some(servers)
    }

    /// Starts a server with its configuration. The store is an argument, so that lines of a test may set the limits of
    /// `jetstream` without it.
    fn spawn(program: &PathBuf, folder: &TempDir, nth: usize) -> Process {
        let mut command = Command::new(program);
        command.arg("--config").arg(folder.path().join(format!("{nth}.conf"))).arg("--jetstream");
        command.arg("--store_dir").arg(folder.path().join(nth.to_string()));
        Process::spawn("NATS server", command.stdin(Stdio::null()).stdout(Stdio::null()))
    }

    /// The address of each server for clients.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.client).collect()
    }

    /// `nats://ADDRESS` of each server, as in `fleet.servers`.
    pub fn urls(&self) -> Vec<String> {
        self.addresses().iter().map(|address| format!("nats://{address}")).collect()
    }

    /// The folder in which a server stores its streams.
    pub fn store(&self, nth: usize) -> PathBuf {
        self.folder.path().join(nth.to_string())
    }

    /// Kills a server, as a crash would.
    pub fn kill(&mut self, nth: usize) {
        self.servers[nth].process.kill();
    }

    /// Starts a server again with its ports and store, and waits until its JetStream is enabled. A cluster may still
    /// lack a leader then: see [`Self::wait_for_leader`].
    pub fn restart(&mut self, nth: usize) {
        self.kill(nth);
        self.servers[nth].process = Self::spawn(&self.program, &self.folder, nth);
        self.wait_for_jet_stream(nth);
    }

    /// Removes what a server has stored, as the loss of its disk does, and starts it again.
    pub fn lose(&mut self, nth: usize) {
        self.kill(nth);
        std::fs::remove_dir_all(self.store(nth)).expect("the store is removed");
        self.restart(nth);
    }

    /// Stops a server without closing its connections (SIGSTOP).
    pub fn pause(&self, nth: usize) {
        self.servers[nth].process.pause();
    }

    /// Continues a paused server (SIGCONT).
    pub fn resume(&self, nth: usize) {
        self.servers[nth].process.resume();
    }

    /// The leader of a cluster's JetStream: all servers that answer name this one, which answers too.
    pub fn leader(&self) -> Option<usize> {
        let answers = (0..self.servers.len()).map(|nth| self.monitor(nth, "/jsz"));
        let named: Vec<(usize, Value)> =
            answers.enumerate().filter_map(|(nth, answer)| Some((nth, answer?))).collect();
        let (_, first) = named.first()?;
        let leader: usize = first["meta_cluster"]["leader"].as_str()?.parse().ok()?;
        let name = leader.to_string();
        let agree = named.iter().all(|(_, answer)| answer["meta_cluster"]["leader"] == name);
        (agree && named.iter().any(|(nth, _)| *nth == leader)).then_some(leader)
    }

    /// Waits until a cluster has a leader, without which its JetStream answers nothing. An election takes some seconds.
    pub fn wait_for_leader(&self) {
        if self.servers.len() > 1 {
            eventually("the NATS servers have a leader", || self.leader());
        }
    }

    fn wait_for_jet_stream(&self, nth: usize) {
        eventually("JetStream is enabled", || self.monitor(nth, "/healthz?js-enabled-only=true"));
    }

    /// The JSON that a server's monitoring port has at a path; `None` without an answer with the status 200.
    pub fn monitor(&self, nth: usize, path: &str) -> Option<Value> {
        let mut stream = connect(self.servers[nth].monitor)?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
        let (first, _, body) = read_message(&mut BufReader::new(stream)).ok()?;
        first.starts_with("HTTP/1.1 200 ").then(|| serde_json::from_slice(&body).expect("JSON"))
    }

    /// Sends JSON to a subject over one server, without a login, and gives the JSON that comes back: an answer of
    /// JetStream's API (`$JS.API.…`), or the acknowledgement of a published message. `None` if nothing comes back.
    pub fn ask(&self, nth: usize, subject: &str, payload: &Value) -> Option<Value> {
        let mut reader = BufReader::new(connect(self.servers[nth].client)?);
        let payload = payload.to_string();
        let length = payload.len();
        let options = r#"{"verbose":false,"headers":true,"no_responders":true}"#;
        let send = format!(
            "CONNECT {options}\r\nSUB {INBOX} 1\r\nPUB {subject} {INBOX} {length}\r\n{payload}\r\nPING\r\n"
        );
        reader.get_mut().write_all(send.as_bytes()).ok()?;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let mut words = line.split_whitespace();
            match words.next()? {
                "MSG" => {
                    let mut body = vec![0; words.next_back()?.parse().ok()?];
                    reader.read_exact(&mut body).ok()?;
                    return Some(serde_json::from_slice(&body).expect("JSON"));
                }
                "INFO" | "PONG" => {}
                "PING" => reader.get_mut().write_all(b"PONG\r\n").ok()?,
                // A message with headers and without a body says that nothing serves the subject.
                _error_or_headers => return None,
            }
        }
    }
}

/// A client of one server, without a login, that sends and receives messages as they are.
pub struct NatsClient(BufReader<TcpStream>);

impl NatsServers {
    /// A client that gets the messages of a subject.
    pub fn client(&self, nth: usize, subject: &str) -> NatsClient {
        let mut client = NatsClient(BufReader::new(connect(self.servers[nth].client).expect("a connection")));
        client.send(format!("CONNECT {{\"verbose\":false}}\r\nSUB {subject} 1\r\nPING\r\n").as_bytes());
        let mut line = String::new();
        while line != "PONG\r\n" {
            line.clear();
            client.0.read_line(&mut line).expect("an answer");
        }
        client.0.get_ref().set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        client
    }
}

impl NatsClient {
    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("the server reads");
    }

    /// Publishes a message, with a subject for replies or with none.
    pub fn publish(&mut self, subject: &str, reply: &str, payload: &[u8]) {
        let head = format!("PUB {subject} {reply} {}\r\n", payload.len());
        self.send(&[head.as_bytes(), payload, b"\r\n"].concat());
    }

    /// The subject and the payload of the next message.
    pub fn receive(&mut self) -> (String, Vec<u8>) {
        loop {
            let mut line = String::new();
            assert!(
                self.0.read_line(&mut line).expect("a message") > 0,
                "the server has closed the connection"
            );
            match &line.split_whitespace().collect::<Vec<_>>()[..] {
                ["MSG", subject, _, .., length] => {
                    let mut payload = vec![0; length.parse::<usize>().expect("a length") + 2];
                    self.0.read_exact(&mut payload).expect("a payload");
                    payload.truncate(payload.len() - 2);
                    return ((*subject).to_owned(), payload);
                }
                ["PING"] => self.send(b"PONG\r\n"),
                _ => {}
            }
        }
    }
}

fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).expect("a timeout");
    Some(stream)
}

/// A port that is free now. It is below those that the kernel gives to connections, so that no connection takes it
/// while its server is down.
fn free_port() -> u16 {
    const RANGE: std::ops::Range<u16> = 10_000..30_000;
    // Tests of other processes begin elsewhere.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() % 1000 * 20;
    eventually("a port is free", || {
        let number = u32::from(NEXT.fetch_add(1, Ordering::Relaxed)) + first;
        let offset = u16::try_from(number % u32::from(RANGE.end - RANGE.start)).expect("within the range");
        let port = RANGE.start + offset;
        TcpListener::bind(("127.0.0.1", port)).ok().map(|_| port)
    })
}
