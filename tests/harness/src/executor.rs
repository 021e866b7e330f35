//! `a2g-executor serve` in a temporary folder of its own.

use super::{Catalogue, HttpClient, Process, Server, WebSocketClient, cache, program, small_tools};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

/// The maximum time until an executor listens while servers of its cluster are killed and restarted.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(300);

/// The value of `A2G_TEST_ISOLATION` for processes that serve several runs.
const REUSED: &str = "reused";

/// Isolation of tools, from the variable `A2G_TEST_ISOLATION`, so that the same tests run in all
/// modes; `process` by default.
pub fn isolation() -> String {
    if are_processes_reused() { "process".to_owned() } else { tested_isolation() }
}

/// `true` if processes serve several runs, unless a test sets otherwise.
pub fn are_processes_reused() -> bool {
    tested_isolation() == REUSED
}

fn tested_isolation() -> String {
    std::env::var("A2G_TEST_ISOLATION").unwrap_or_else(|_| "process".to_owned())
}

/// Options of an executor under test.
///
/// By default: a free port of loopback, the [`small_tools`], `/workspace` in a folder of
/// its own as the only scope, the built-in governor with its default policy, reports in a file, and
/// `--insecure-accept-unsigned`, so that `a2g/execute` runs.
pub struct Options {
    config: Value,
    unsigned: bool,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    mounts: Vec<(String, PathBuf)>,
}

impl Options {
    pub fn new() -> Self {
        let config = json!({
            "server": { "listen": "127.0.0.1:0" },
            "executor": { "isolation": isolation() },
            "governor": {},
            "catalog": { "tools": small_tools(), "cache": cache() },
            "ceilings": { "filesystem_scope": ["/workspace/**"] },
        });
        let arguments = Vec::new();
        let environment = Vec::new();
        let mounts = Vec::new();
        Self { config, unsigned: true, arguments, environment, mounts }
    }

    /// Sets one key of the configuration, such as `set("executor.concurrent", 1)`.
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        match key.split_once('.') {
            Some((table, key)) => self.config[table][key] = value.into(),
            None => self.config[key] = value.into(),
        }
        self
    }

    /// The current value of one key of the configuration, null if it is not set.
    pub fn get(&self, key: &str) -> &Value {
        let (table, key) = key.split_once('.').expect("table.key");
        &self.config[table][key]
    }

    /// Runs the tools of this catalogue instead of the repository's.
    pub fn catalogue(self, catalogue: &Catalogue) -> Self {
        self.set("catalog.tools", json!(catalogue.folder()))
    }

    /// Asks the governor at this URL.
    pub fn governor(self, url: &str) -> Self {
        self.set("governor.url", url)
    }

    /// Lets the built-in governor decide by the policies of this folder.
    pub fn policies(self, folder: &Path) -> Self {
        self.set("governor.policies", json!(folder))
    }

    /// Without `--insecure-accept-unsigned`.
    pub fn signed_only(mut self) -> Self {
        self.unsigned = false;
        self
    }

    /// One more `[[mount]]`, beside `/workspace`.
    pub fn mount(mut self, guest: &str, host: &Path) -> Self {
        self.mounts.push((guest.to_owned(), host.to_owned()));
        self
    }

    /// The host folders of the mounts beside `/workspace`.
    pub fn mounts(&self) -> Vec<PathBuf> {
        self.mounts.iter().map(|(_, host)| host.clone()).collect()
    }

    /// The trees that may be granted.
    pub fn scope(self, patterns: &[&str]) -> Self {
        self.set("ceilings.filesystem_scope", json!(patterns))
    }

    /// One more argument of the command line.
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// One more variable of the environment.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// The folders of one executor, and how it is started there.
pub struct Home {
    folder: TempDir,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Home {
    /// The host folder that guests know as `/workspace`.
    pub fn workspace(&self) -> PathBuf {
        self.folder.path().join("workspace")
    }

    /// The folder that contains all the others.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// The executor's own folder for temporary files.
    pub fn temporary(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    /// The file in which the built-in governor stores reports.
    pub fn reports(&self) -> PathBuf {
        self.folder.path().join("reports.ndjson")
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("executor.toml")
    }

    /// The journal, in a folder of its own.
    pub fn journal(&self) -> PathBuf {
        self.folder.path().join("state/journal.db")
    }

    /// Runs a command to its end, with this configuration.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let config = self.config();
        super::run([arguments, &["--config", config.to_str().expect("UTF-8")]].concat())
    }

    /// Output of `journal list --json` with these arguments, one value for each line.
    pub fn list_journal(&self, arguments: &[&str]) -> Vec<Value> {
        let listed = self.run(&[&["journal", "list", "--json"], arguments].concat());
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        let listed = String::from_utf8(listed.stdout).expect("UTF-8");
        listed.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    /// Makes the folders and the configuration.
    pub fn new(options: Options) -> Self {
        let Options { mut config, unsigned, mut arguments, environment, mounts } = options;
        if unsigned {
            arguments.push("--insecure-accept-unsigned".to_owned());
        }
        let home = Self { folder: tempfile::tempdir().expect("a temp folder"), arguments, environment };
        std::fs::create_dir(home.workspace()).expect("a workspace");
        std::fs::create_dir(home.temporary()).expect("a temp folder");
        let own = [("/workspace".to_owned(), home.workspace())];
        let mounts = own.into_iter().chain(mounts);
        config["mount"] = mounts.map(|(guest, host)| json!({ "guest": guest, "host": host })).collect();
        if config["governor"].get("url").is_none() && config["governor"].get("reports").is_none() {
            config["governor"]["reports"] = json!(home.reports());
        }
        if config["journal"].get("path").is_none() {
            config["journal"]["path"] = json!(home.journal());
        }
        std::fs::write(home.config(), toml::to_string(&config).expect("TOML")).expect("a config");
        home
    }

    /// The command that starts the executor here.
    pub fn command(&self) -> Command {
        let mut command = Command::new(program());
        command.current_dir(self.folder.path()).arg("serve").arg("--config").arg(self.config());
        command.args(&self.arguments).env_remove("RUST_LOG").env("TMPDIR", self.temporary());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// A serving executor.
pub struct Executor {
    server: Server,
    home: Home,
}

impl std::ops::Deref for Executor {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Executor {
    /// Starts an executor, and waits until it listens.
    pub fn start(options: Options) -> Self {
        Self::start_in(Home::new(options))
    }

    /// Starts an executor in the folders of an earlier one, and waits until it listens.
    pub fn start_in(home: Home) -> Self {
        let process = Process::spawn("executor", &mut home.command());
        Self::serving(process, home)
    }

    /// As [`Self::start_in`], and starts it again if it ends before it listens, as a service manager does.
    pub fn start_in_until_it_listens(home: Home) -> Self {
        let process = super::eventually_within(CLUSTER_TIMEOUT, "it listens", || {
            let mut process = Process::spawn("executor", &mut home.command());
            process.listens_on_unless_it_ends().map(|_| process)
        });
        Self::serving(process, home)
    }

    /// Starts an executor at an address, and waits only until it accepts connections there.
    pub fn start_at(address: SocketAddr, options: Options) -> Self {
        let home = Home::new(options.argument("--listen").argument(&address.to_string()));
        let process = Process::spawn("executor", &mut home.command());
        super::eventually("it answers", || std::net::TcpStream::connect(address).ok());
        Self { server: Server { process, address }, home }
    }

    /// Starts an executor through another command, such as a tracer, which is given the command
    /// line of the executor as its last arguments.
    pub fn start_under(command: &[&str], options: Options) -> Self {
        let home = Home::new(options);
        let plain = home.command();
        let [program, arguments @ ..] = command else { panic!("a command") };
        let mut under = Command::new(program);
        under.args(arguments).arg(plain.get_program()).args(plain.get_args()).current_dir(home.folder());
        under.env_remove("RUST_LOG").env("TMPDIR", home.temporary());
        Self::serving(Process::spawn("executor", &mut under), home)
    }

    fn serving(process: Process, home: Home) -> Self {
        let address = process.serves_on();
        Self { server: Server { process, address }, home }
    }

    /// Kills the executor, and returns its folders unchanged.
    pub fn kill(mut self) -> Home {
        self.server.process.kill();
        self.home
    }

    /// A new client with a connection of its own.
    pub fn client(&self) -> HttpClient {
        HttpClient::connect(self.address)
    }

    /// A new WebSocket.
    pub fn web_socket(&self) -> WebSocketClient {
        WebSocketClient::connect(self.address)
    }

    /// Calls a method over a connection of its own and gives the whole response.
    pub fn rpc(&self, method: &str, params: &Value) -> Value {
        self.client().rpc(method, params)
    }

    /// The state of a call, as `a2g/status` names it.
    pub fn state_of(&self, call: &Value) -> String {
        let status = self.rpc("a2g/status", &json!({ "intent_id": super::id_of(call) }));
        status["result"]["state"].as_str().unwrap_or("unknown").to_owned()
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.server.process
    }

    /// The host folder that guests know as `/workspace`.
    pub fn workspace(&self) -> PathBuf {
        self.home.workspace()
    }

    /// The folders.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// The content of a file of the workspace, if it exists.
    pub fn file(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.workspace().join(name)).ok()
    }

    /// The number of runs of the gate so far.
    pub fn runs_of_the_gate(&self) -> usize {
        self.file("runs").map_or(0, |runs| runs.len())
    }

    /// Waits until the gate has been run this many times.
    pub fn wait_at_the_gate(&self, runs: usize) {
        super::eventually("the gate runs", || (self.runs_of_the_gate() >= runs).then_some(()));
    }

    /// Lets all runs of the gate end.
    pub fn open_the_gate(&self) {
        std::fs::write(self.workspace().join("go"), "").expect("a file");
    }

    /// Asserts that no guest has written anything.
    pub fn assert_workspace_is_empty(&self, after: &str) {
        let found: Vec<_> = std::fs::read_dir(self.workspace()).unwrap().map(|e| e.unwrap().path()).collect();
        assert!(found.is_empty(), "after {after}, something ran: {found:?}");
    }

    /// The reports that the built-in governor has so far.
    pub fn reports(&self) -> Vec<Value> {
        let reports = super::governor::read_reports(&self.home.reports());
        reports.iter().for_each(super::published::check_report);
        reports
    }

    /// Waits until the built-in governor has `count` reports.
    pub fn wait_for_reports(&self, count: usize) -> Vec<Value> {
        super::eventually(&format!("{count} reports"), || {
            Some(self.reports()).filter(|reports| reports.len() >= count)
        })
    }
}

/// Calls from a thread of its own.
pub fn call_in_background(executor: &Executor, method: &'static str, params: &Value) -> JoinHandle<Value> {
    let mut client = executor.client();
    let params = params.clone();
    std::thread::spawn(move || client.rpc(method, &params))
}

/// Makes a call that waits for the slot.
pub fn call_queued(executor: &Executor, call: &Value) -> JoinHandle<Value> {
    let answer = call_in_background(executor, "a2g/execute", call);
    super::eventually("it waits", || (executor.state_of(call) == "queued").then_some(()));
    answer
}

/// All records of a journal.
pub fn records(home: &Home) -> Vec<Value> {
    let output = home.run(&["journal", "records"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Checks the chain of a journal.
pub fn assert_chain_holds(home: &Home) {
    let output = super::run(["journal", "verify", "--json", "--journal", home.journal().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
