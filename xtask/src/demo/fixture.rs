//! The files and processes of the demo: a temporary folder with a catalogue, a configuration, policies and a
//! workspace; under `target/`, the logs.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;
use tempfile::TempDir;

use super::program;
use super::protocols::{NEXUS_AGENT, NEXUS_SECRET};
use super::secret;
use crate::run::{self, UNLIMITED, Workspace};

/// The tools in `guests/`, which misbehave.
const GUESTS: [&str; 3] = ["endless_loop", "memory_bomb", "busy"];
/// The name of a link in the workspace to a file outside.
pub(super) const LINK: &str = "shortcut.txt";
/// The text of the file outside.
pub(super) const PRIVATE_TEXT: &str = "not for agents\n";
/// The executor compiles its catalogue before it is ready for the first time.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The demo's files. Dropping it removes the temporary folder.
pub(super) struct Fixture {
    program: PathBuf,
    folder: TempDir,
    pub(super) logs: PathBuf,
    pub(super) web_server: SocketAddr,
    pub(super) api: Server,
}

impl Fixture {
    /// Starts the API, creates all files, and adds tools to the catalogue by `a2g-executor tool add`.
    pub(super) fn create(workspace: &Workspace) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("a2g-demo-").tempdir()?;
        let logs = workspace.state().join("demo");
        fs::create_dir_all(&logs)?;
        let web_server = program::start_web_server()?;
        let api = secret::start_api(workspace, folder.path(), &logs)?;
        let fixture = Self { program: workspace.executor(), folder, logs, web_server, api };
        let sources = workspace.root.join("xtask/src/demo");
        let configuration = fs::read_to_string(sources.join("executor.toml"))?;
        let addresses = [web_server, fixture.api.address].map(|address| address.to_string());
        let network = format!("allowed_domains = [\"127.0.0.1\"]\nallowed_addresses = {addresses:?}\n");
        let configuration = format!("{configuration}\n[network]\n{network}{}", secret::NETWORK);
        fs::write(fixture.path("executor.toml"), configuration)?;
        fs::create_dir(fixture.path("policies"))?;
        fs::copy(sources.join("policy.json"), fixture.path("policies/demo-agent.json"))?;
        fs::copy(sources.join("program.json"), fixture.path("policies/demo-program.json"))?;
        for name in ["policies/default.json", "policies/demo-restricted.json"] {
            fs::copy(workspace.root.join(name), fixture.path(name))?;
        }
        fs::create_dir_all(fixture.path("workspace/notes"))?;
        for (name, content) in program::NOTES {
            fs::write(fixture.path("workspace/notes").join(name), content)?;
        }
        fs::write(fixture.path("private.txt"), PRIVATE_TEXT)?;
        fs::os::unix::fs::symlink(fixture.path("private.txt"), fixture.path("workspace").join(LINK))?;
        fs::write(fixture.path("nexus.keys"), format!("{NEXUS_AGENT} {NEXUS_SECRET} -\n"))?;
        fs::set_permissions(fixture.path("nexus.keys"), Permissions::from_mode(0o600))?;
        fixture.create_catalogue(workspace)?;
        secret::add_tools(workspace, &fixture)?;
        Ok(fixture)
    }

    fn create_catalogue(&self, workspace: &Workspace) -> Result<()> {
        let built = workspace.target.join("tools");
        let copied = self.path("tools");
        run::show("copy the tools", Command::new("cp").arg("-R").arg(built).arg(copied))?;
        let config = self.path("executor.toml");
        add_guests(workspace, &GUESTS, self.folder.path(), &["--config".as_ref(), config.as_ref()])
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `true` if the tool could be made here.
    pub(super) fn has_tool(&self, name: &str) -> bool {
        self.path("tools").join(name).exists()
    }

    pub(super) fn start_governor(&self) -> Result<Server> {
        let mut command = Command::new(&self.program);
        command.args(["governor", "--listen", "127.0.0.1:0", "--policies"]).arg(self.path("policies"));
        command.arg("--reports").arg(self.path("reports.ndjson"));
        Server::start("governor", command, self.logs.join("governor.log"), "")
    }

    /// Starts the executor, connected by WebSocket, so that the governor can push approvals, and waits until every tool can be called.
    pub(super) fn start_executor(&self, governor: SocketAddr) -> Result<Server> {
        let mut command = Command::new(&self.program);
        command.args(["serve", "--governor", &format!("ws://{governor}/jsonrpc")]);
        command.arg("--config").arg(self.path("executor.toml"));
        Server::start("executor", command, self.logs.join("executor.log"), "all tools are prepared")
    }
}

/// Assembles tools of `guests/` in a folder, and adds them by `a2g-executor tool add` with these arguments.
pub(super) fn add_guests(
    workspace: &Workspace,
    names: &[&str],
    folder: &Path,
    arguments: &[&OsStr],
) -> Result<()> {
    let sources = workspace.root.join("xtask/src/demo/guests");
    let mut modules = Vec::new();
    for name in names {
        let guest = folder.join(name);
        fs::create_dir(&guest)?;
        fs::copy(sources.join(name).with_extension("toml"), guest.join("tool.toml"))?;
        modules.push((sources.join(name).with_extension("wat"), guest.join("tool.wasm")));
    }
    assemble(workspace, &modules)?;
    run::progress("Adding", "the demo's guests by `a2g-executor tool add`");
    for name in names {
        let mut add = Command::new(workspace.executor());
        add.args(["tool", "add"]).arg(folder.join(name)).args(arguments);
        run::log(workspace, &format!("add {name} to the demo's tools"), &mut add, UNLIMITED)?;
    }
    Ok(())
}

/// Assembles modules: each is the file of its text, and the file to write.
pub(crate) fn assemble(workspace: &Workspace, modules: &[(PathBuf, PathBuf)]) -> Result<()> {
    let mut assemble = workspace.cargo(&["run", "--locked", "-p", "xtask", "--features", "wat"]);
    assemble.args(["--bin", "assemble", "--"]);
    for (text, module) in modules {
        assemble.arg(text).arg(module);
    }
    run::log(workspace, "assemble the guests", &mut assemble, UNLIMITED)
}

/// The end of a command.
pub(super) struct Ended {
    pub(super) is_success: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Ended {
    /// Runs a command of a person, without a terminal.
    pub(super) fn of(command: &mut Command) -> Result<Self> {
        let output = command.stdin(Stdio::null()).output().context("`a2g-executor` could not be started")?;
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Self { is_success: output.status.success(), stdout, stderr })
    }
}

/// A process that listens. Dropping this value kills and reaps it.
pub(crate) struct Server {
    name: &'static str,
    child: Child,
    log: PathBuf,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts a program and waits until its log has an address and the text `ready`.
    pub(crate) fn start(name: &'static str, mut command: Command, log: PathBuf, ready: &str) -> Result<Self> {
        let output = fs::File::create(&log)?.into_parts().0;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let child = command.spawn().with_context(|| format!("the {name} could not be started"))?;
        let mut server = Self { name, child, log, address: ([127, 0, 0, 1], 0).into() };
        let started = run::now();
        while started.elapsed() < START_TIMEOUT {
            let text = fs::read_to_string(&server.log)?;
            let url = find_url(&text).filter(|_| text.contains(ready));
            if let Some((url, address)) = url.and_then(|url| Some((url, parse_address(url)?))) {
                anstream::println!("{name:<9} {url}  (process {})", server.child.id());
                server.address = address;
                return Ok(server);
            }
            server.check_alive()?;
            thread::sleep(POLL_INTERVAL);
        }
        let seconds = START_TIMEOUT.as_secs();
        bail!("the {name} was not ready within {seconds} s; its output is in {}", server.log.display());
    }

    /// Asks it to end (SIGTERM), and waits until it has ended with the exit code 0.
    pub(crate) fn stop(&mut self) -> Result<()> {
        // The standard library sends no other signal than SIGKILL, and the shell has `kill` built in.
        let mut kill = Command::new("sh");
        kill.args(["-c", &format!("kill -TERM {}", self.child.id())]);
        ensure!(kill.status()?.success(), "the {} could not be asked to end", self.name);
        self.wait()
    }

    /// Waits until it has ended with the exit code 0.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let end = self.child.wait()?;
        ensure!(
            end.success(),
            "the {} ended badly ({end}); its output is in {}",
            self.name,
            self.log.display()
        );
        Ok(())
    }

    pub(crate) fn check_alive(&mut self) -> Result<()> {
        let Some(end) = self.child.try_wait()? else { return Ok(()) };
        bail!("the {} ended too early ({end}); its output is in {}", self.name, self.log.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both calls fail only for a child that has ended and was reaped.
        let _has_ended = self.child.kill();
        let _was_reaped = self.child.wait();
    }
}

/// The URL in the complete line `… listens on URL…`, or in a line of JSON with this text.
fn find_url(log: &str) -> Option<&str> {
    let (complete, _) = log.rsplit_once('\n')?;
    let (_, rest) = complete.split_once(" listens on ")?;
    rest.split(|letter: char| letter.is_whitespace() || letter == '"').next()
}

/// The address in a URL with a path.
fn parse_address(url: &str) -> Option<SocketAddr> {
    let (_, rest) = url.split_once("://")?;
    rest.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_to_listen() {
        let log = "INFO ready\na2g-executor listens on http://127.0.0.1:80/jsonrpc with 9 tools\n";
        assert_eq!(find_url(log), Some("http://127.0.0.1:80/jsonrpc"));
        assert_eq!(find_url(log).and_then(parse_address), Some(([127, 0, 0, 1], 80).into()));
        let line = "{\"message\":\"a2g-executor listens on http://127.0.0.1:80/jsonrpc\",\"tools\":9}\n";
        assert_eq!(find_url(line), Some("http://127.0.0.1:80/jsonrpc"));
        assert_eq!(find_url(log.trim_end()), None, "an incomplete line");
        let folder = tempfile::tempdir().unwrap();
        let ended = Server::start("executor", Command::new("false"), folder.path().join("log"), "");
        assert!(ended.err().unwrap().to_string().contains("ended too early (exit status: 1)"));
    }
}
