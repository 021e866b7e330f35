//! The executors: each in a folder of its own, which has as much of one thing as is asked for.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use fs_err as fs;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::connection::{AGENT, Connection, HAS_RUN, WAITS, check, decided, intent};
use super::{Growing, Kind};
use crate::bench::{build_executor, optimised_executor};
use crate::demo::fixture::{Server, assemble};
use crate::nats::NatsServers;
use crate::run::{self, Workspace};
use crate::setup;

/// The maximum time of a run, which the runs that sleep need.
pub(super) const TIMEOUT_SECONDS: u32 = 3600;
/// The tools of an executor, unless tools are what grows.
const FEW_TOOLS: usize = 10;
/// The tools that are called. All others are copies of the first.
const MODULES: [&str; 2] = ["hello", "waits"];
/// The maximum number of concurrent runs, where these grow: room for more than sleep.
const CONCURRENT: usize = 1100;
/// The clients that prepare an executor.
const CLIENTS: usize = 16;
/// The calls that go before those that are timed.
const WARM_UP: usize = 50;
/// Runs that are started over open connections, of which this process may have 1024.
const RUNS_AT_ONCE: usize = 100;
/// The intents of one agent that may wait for a person.
const WAITING_PER_AGENT: usize = 250;
/// The receipts from which an executor checks the journal in the background after its start.
const CHECKED_RECEIPTS: usize = 10_000;
/// The maximum time until as many runs sleep as were started.
const MAX_START: Duration = Duration::from_secs(120);
/// The maximum time of the check of a journal.
const MAX_CHECK: Duration = Duration::from_secs(3600);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A line for each run would take time. The check of the journal says its end at the level `debug`.
const LOGGED: &str = "a2g=warn,a2g_executor::cli=info,a2g_journal::check=debug";

/// The isolation and the durability of what is measured.
const MEASURED: [&str; 2] = ["process", "power-loss"];
/// Those with which receipts are made.
const FAST: [&str; 2] = ["inline", "process-crash"];

/// The folders and programs that all executors share.
pub(super) struct Place<'a> {
    workspace: &'a Workspace,
    /// The logs, and the page of a run that leaves that of the documentation as it is.
    pub(super) folder: PathBuf,
    executor: PathBuf,
    max_receipts: usize,
    /// The folders of the executors.
    root: TempDir,
}

impl<'a> Place<'a> {
    /// Builds what runs. `executor` is used instead of one that is built.
    pub(super) fn prepare(
        workspace: &'a Workspace,
        executor: Option<&Path>,
        max_receipts: usize,
    ) -> Result<Self> {
        if executor.is_none() {
            build_executor(workspace)?;
        }
        let folder = workspace.state().join("growth");
        fs::create_dir_all(&folder)?;
        let place = Self {
            workspace,
            executor: executor.map_or_else(|| Ok(optimised_executor(workspace)), fs::canonicalize)?,
            max_receipts,
            // Beside what is built, because the system's temporary folder may be in memory.
            root: tempfile::Builder::new().prefix("growth-").tempdir_in(workspace.state())?,
            folder,
        };
        let sources = workspace.root.join("executor/benches/overhead");
        let modules = MODULES.map(|name| (sources.join(name).with_extension("wat"), place.module(name)));
        assemble(workspace, &modules)?;
        let tools = json!({ "hello": { "allowed": true } });
        let policy = json!({ "agent_did": "*", "version": "1", "capabilities": { "tools": tools } });
        fs::create_dir(place.path("policies"))?;
        fs::write(place.path("policies/policy.json"), policy.to_string())?;
        fs::write(place.path("fleet.key"), "5".repeat(64))?;
        fs::set_permissions(place.path("fleet.key"), Permissions::from_mode(0o600))?;
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn module(&self, name: &str) -> PathBuf {
        self.path(name).with_extension("wasm")
    }

    /// Starts an executor that has `size` of a kind.
    pub(super) fn start(&self, kind: &Kind, size: usize) -> Result<Subject> {
        let limits = if kind.growing == Growing::Runs {
            format!("concurrent = {CONCURRENT}\nconcurrent_per_agent = {CONCURRENT}\n")
        } else {
            String::new()
        };
        let tools = if kind.growing == Growing::Tools { size } else { FEW_TOOLS };
        let count = if kind.growing == Growing::Nodes { size } else { 1 };
        let nats = (kind.growing == Growing::Nodes).then(|| self.start_nats(size)).transpose()?;
        let mut servers = Vec::new();
        for node in 0..count {
            let name = format!("{}-{size}-{node}", kind.name);
            self.add_tools(&name, tools)?;
            if kind.growing == Growing::Receipts {
                self.write_receipts(&name, size)?;
            }
            let fleet = nats.as_ref().map(|nats| show_fleet(node, nats.urls())).unwrap_or_default();
            self.configure(&name, &limits, MEASURED, &fleet)?;
            if nats.is_some() && node == 0 {
                let mut init = Command::new(&self.executor);
                run::capture(init.args(["fleet", "init", "--config"]).arg(self.config(&name)))?;
            }
            servers.push(self.serve(&name)?);
        }
        let address = servers.first().context("no executor was started")?.address;
        match kind.growing {
            Growing::Runs => start_runs(address, size)?,
            Growing::Receipts if size >= CHECKED_RECEIPTS => {
                // The check reads all of the journal, and slows calls.
                let log = self.log(&format!("{}-{size}-0", kind.name));
                wait_until("the journal is checked", MAX_CHECK, || {
                    Ok(fs::read_to_string(&log)?.contains("the journal was checked"))
                })?;
            }
            Growing::Agents => {
                send_calls(address, size.saturating_sub(1), |number| format!("{AGENT}-{number}"))?;
            }
            Growing::Waiting => hold_intents(address, size)?,
            Growing::Receipts | Growing::Tools | Growing::Nodes => {}
        }
        send_calls(address, WARM_UP, |_| AGENT.to_owned())?;
        Ok(Subject { address, micros: Vec::new(), servers, _nats: nats })
    }

    fn start_nats(&self, nodes: usize) -> Result<NatsServers> {
        let program = setup::prepare_nats(self.workspace)?.context("the server of NATS is not installed")?;
        let logs = self.folder.join(format!("nats-{nodes}"));
        fs::create_dir_all(&logs)?;
        NatsServers::start_in(self.root.path(), &program, 1, &logs)
    }

    /// Writes the catalogue of an executor: the called tools, and copies.
    fn add_tools(&self, name: &str, count: usize) -> Result<()> {
        let called = MODULES.iter().map(|&module| (module.to_owned(), module));
        let copies = (MODULES.len()..count).map(|number| (format!("hello-{number}"), "hello"));
        for (tool, module) in called.chain(copies) {
            let folder = self.path(name).join("tools").join(&tool);
            fs::create_dir_all(&folder)?;
            let wasm = fs::read(self.module(module))?;
            let digest = run::to_hex(&Sha256::digest(&wasm));
            let manifest = format!(
                "sha256 = \"{digest}\"\nname = \"{tool}\"\nversion = \"1.0.0\"\ndescription = \"A tool of the \
                 benchmark.\"\ncontract = \"command\"\nmodule = \"tool.wasm\"\n[arguments]\ntype = \"object\"\n\
                 [capabilities]\nfilesystem = \"none\"\nnetwork = false\nmax_memory_mb = 64\n\
                 timeout_seconds = {TIMEOUT_SECONDS}\n"
            );
            fs::write(folder.join("tool.wasm"), wasm)?;
            fs::write(folder.join("tool.toml"), manifest)?;
        }
        Ok(())
    }

    fn config(&self, name: &str) -> PathBuf {
        self.path(name).join("executor.toml")
    }

    /// Writes the configuration of an executor, with keys for the tables `executor` and `fleet`.
    fn configure(&self, name: &str, limits: &str, mode: [&str; 2], fleet: &str) -> Result<()> {
        let [isolation, durability] = mode;
        let config = format!(
            "[executor]\ndid = \"did:a2g:executor:1.0:growth\"\nisolation = \"{isolation}\"\n{limits}\
             [governor]\npolicies = \"../policies\"\n[catalog]\ntools = \"tools\"\ncache = \"../cache\"\n\
             [journal]\npath = \"journal.db\"\ndurability = \"{durability}\"\nmax_mb_per_agent_hour = 1048576\n\
             [ceilings]\ntimeout_seconds = {TIMEOUT_SECONDS}\nfilesystem_scope = [\"/data/**\"]\n{fleet}"
        );
        Ok(fs::write(self.config(name), config)?)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join(name).with_extension("log")
    }

    /// Starts an executor, and waits until its tools can be called.
    fn serve(&self, name: &str) -> Result<Server> {
        let mut command = Command::new(&self.executor);
        command.args(["serve", "--insecure-accept-unsigned", "--listen", "127.0.0.1:0", "--config"]);
        command.arg(self.config(name)).env("RUST_LOG", LOGGED);
        Server::start("executor", command, self.log(name), "all tools are prepared")
    }

    /// Makes a journal with receipts of real calls.
    fn write_receipts(&self, name: &str, count: usize) -> Result<()> {
        let max = self.max_receipts;
        ensure!(count <= max, "`--journal-receipts` limits this command to {max}: give it a larger number");
        self.configure(name, "", FAST, "")?;
        let mut server = self.serve(name)?;
        send_calls(server.address, count, |_| AGENT.to_owned())?;
        server.stop()
    }
}

/// The table `fleet` of a node.
fn show_fleet(node: usize, servers: &[String]) -> String {
    let names = format!("name = \"growth\"\nnode = \"node-{node}\"");
    format!("[fleet]\n{names}\nservers = {servers:?}\nkey_file = \"../fleet.key\"\n")
}

/// Sends so many small calls, each of the agent that `agent` names by the number of the call.
fn send_calls(address: SocketAddr, count: usize, agent: impl Fn(usize) -> String + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let call_in_turn = || -> Result<()> {
        let mut connection = Connection::open(address)?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            check(&connection.exchange(&intent(&agent(number)))?, HAS_RUN)?;
        }
    };
    thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|_| scope.spawn(call_in_turn)).collect::<Vec<_>>();
        let mut ended = clients.into_iter().map(|client| client.join());
        ended.try_for_each(|result| result.map_err(|_| anyhow!("a client panicked"))?)
    })
}

/// Starts runs that sleep until the executor ends.
fn start_runs(address: SocketAddr, count: usize) -> Result<()> {
    let agent = format!("{AGENT}-asleep");
    let start = |_| -> Result<Connection> {
        let mut connection = Connection::open(address)?;
        connection.send(&decided(&agent, "waits", "APPROVED"))?;
        Ok(connection)
    };
    let mut running = 0;
    while running < count {
        let more = RUNS_AT_ONCE.min(count - running);
        running += more;
        // A run goes on when the connection of its call is closed.
        let open = (0..more).map(start).collect::<Result<Vec<_>>>()?;
        wait_for(address, "a2g_running", running)?;
        drop(open);
    }
    Ok(())
}

/// Sends intents that wait for a person.
fn hold_intents(address: SocketAddr, count: usize) -> Result<()> {
    let mut connection = Connection::open(address)?;
    for number in 0..count {
        let agent = format!("{AGENT}-{}", number / WAITING_PER_AGENT);
        check(&connection.exchange(&decided(&agent, "hello", "ESCALATE"))?, WAITS)?;
    }
    wait_for(address, "a2g_waiting_intents", count)
}

/// Waits until a gauge of the executor has a value.
fn wait_for(address: SocketAddr, gauge: &str, count: usize) -> Result<()> {
    let line = format!("{gauge} {count}");
    wait_until(&format!("the executor has `{line}`"), MAX_START, || {
        let response = minreq::get(format!("http://{address}/metrics")).with_timeout(10).send()?;
        Ok(response.as_str()?.lines().any(|other| other == line))
    })
}

/// Waits until something is so; `what` continues a failure.
fn wait_until(what: &str, limit: Duration, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let started = run::now();
    while !is_so()? {
        ensure!(started.elapsed() < limit, "it was not so within {} s that {what}", limit.as_secs());
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// A started executor, the times of its calls, and the other nodes.
pub(super) struct Subject {
    address: SocketAddr,
    micros: Vec<f64>,
    servers: Vec<Server>,
    /// Ends after the nodes that use it.
    _nats: Option<NatsServers>,
}

impl Subject {
    /// Times so many calls of one client. A call before them makes the connection, and the executor's memory current
    /// in the caches of the processor.
    pub(super) fn time_calls(&mut self, count: usize) -> Result<()> {
        let mut connection = Connection::open(self.address)?;
        for number in 0..=count {
            let message = intent(AGENT);
            let started = run::now();
            let answer = connection.exchange(&message)?;
            let took = started.elapsed();
            check(&answer, HAS_RUN)?;
            if number > 0 {
                self.micros.push(took.as_secs_f64() * 1e6);
            }
        }
        Ok(())
    }

    /// The times of the calls in µs, the shortest first. Every node has to run still.
    pub(super) fn end(mut self) -> Result<Vec<f64>> {
        for server in &mut self.servers {
            server.check_alive()?;
        }
        self.micros.sort_by(f64::total_cmp);
        Ok(self.micros)
    }
}
