//! `a2g-executor serve` in a place of its own.

use super::{Catalogue, HttpClient, Process, WebSocketClient, cache, program, tools};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Where tools run: as the variable `A2G_TEST_ISOLATION` says, so that the same tests hold in both
/// places, and apart by default.
pub fn isolation() -> String {
    std::env::var("A2G_TEST_ISOLATION").unwrap_or_else(|_| "process".to_owned())
}

/// How an executor is started.
///
/// By default: a free port of loopback, the tools of the repository, `/workspace` in a folder of
/// its own as the only scope, the governor inside with its built-in policy, reports in a file, and
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
            "catalog": { "tools": tools(), "cache": cache() },
            "ceilings": { "filesystem_scope": ["/workspace/**"] },
        });
        let (arguments, environment, mounts) = (Vec::new(), Vec::new(), Vec::new());
        Self { config, unsigned: true, arguments, environment, mounts }
    }

    /// Sets one key of the configuration, such as `set("executor.concurrent", 1)`.
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        let (table, key) = key.split_once('.').expect("table.key");
        self.config[table][key] = value.into();
        self
    }

    /// One key of the configuration as it is so far, null when it is not set.
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

    /// Lets the governor inside decide by the policies of this folder.
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

/// The folders of one executor.
pub struct Home {
    folder: TempDir,
}

impl Home {
    /// The host folder that guests know as `/workspace`.
    pub fn workspace(&self) -> PathBuf {
        self.folder.path().join("workspace")
    }

    /// The folder that the others are in.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// The executor's own folder for temporary files.
    pub fn temporary(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    /// The reports that the governor inside keeps.
    pub fn reports(&self) -> PathBuf {
        self.folder.path().join("reports.ndjson")
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("executor.toml")
    }

    /// Makes the folders and the configuration, and the command that starts there.
    pub(super) fn prepare(options: Options) -> (Self, Command) {
        let home = Self { folder: tempfile::tempdir().expect("a temp folder") };
        std::fs::create_dir(home.workspace()).expect("a workspace");
        std::fs::create_dir(home.temporary()).expect("a temp folder");
        let Options { mut config, unsigned, arguments, environment, mounts } = options;
        let own = [("/workspace".to_owned(), home.workspace())];
        let mounts = own.into_iter().chain(mounts);
        config["mount"] = mounts.map(|(guest, host)| json!({ "guest": guest, "host": host })).collect();
        if config["governor"].get("url").is_none() && config["governor"].get("reports").is_none() {
            config["governor"]["reports"] = json!(home.reports());
        }
        std::fs::write(home.config(), toml::to_string(&config).expect("TOML")).expect("a config");
        let mut command = Command::new(program());
        command.current_dir(home.folder.path()).arg("serve").arg("--config").arg(home.config());
        if unsigned {
            command.arg("--insecure-accept-unsigned");
        }
        command.args(arguments).env_remove("RUST_LOG").env("TMPDIR", home.temporary()).envs(environment);
        (home, command)
    }
}

/// A serving executor.
pub struct Executor {
    process: Process,
    home: Home,
    address: SocketAddr,
}

impl Executor {
    /// Starts one and waits until it listens.
    pub fn start(options: Options) -> Self {
        let (home, mut command) = Home::prepare(options);
        let process = Process::spawn("executor", &mut command);
        let address = process.listens_on();
        Self { process, home, address }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://ADDRESS/jsonrpc`.
    pub fn http_url(&self) -> String {
        format!("http://{}/jsonrpc", self.address)
    }

    /// `ws://ADDRESS/jsonrpc`.
    pub fn web_socket_url(&self) -> String {
        format!("ws://{}/jsonrpc", self.address)
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

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// All that it has written to standard error.
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Waits for a line on standard error.
    pub fn line_with(&self, mark: &str) -> String {
        self.process.line_with(mark)
    }

    /// The host folder that guests know as `/workspace`.
    pub fn workspace(&self) -> PathBuf {
        self.home.workspace()
    }

    /// The folders.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// A file of the workspace, when it is there.
    pub fn file(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.workspace().join(name)).ok()
    }

    /// Shows that no guest has written anything.
    pub fn assert_workspace_is_empty(&self, after: &str) {
        let found: Vec<_> = std::fs::read_dir(self.workspace()).unwrap().map(|e| e.unwrap().path()).collect();
        assert!(found.is_empty(), "after {after}, something ran: {found:?}");
    }

    /// The reports that the governor inside has so far.
    pub fn reports(&self) -> Vec<Value> {
        super::governor::read_reports(&self.home.reports())
    }

    /// Waits for `count` reports of the governor inside.
    pub fn wait_for_reports(&self, count: usize) -> Vec<Value> {
        super::eventually(&format!("{count} reports"), || {
            Some(self.reports()).filter(|reports| reports.len() >= count)
        })
    }
}
