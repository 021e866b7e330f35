//! What the demo needs on disk: a temporary folder with a catalogue, a configuration, policies and a
//! workspace, and under `target/` what makes the second demo quick.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::doors::NEXUS_SECRET;
use crate::run::{self, AtPath, Failure, Workspace};

/// The policy of the demo's own agent, beside those of `policies/`.
const DEMO_POLICY: &str = include_str!("policy.json");
/// The files that the governor decides by.
pub(super) const POLICY_FILES: [&str; 3] = ["default.json", "demo-restricted.json", "demo-agent.json"];
/// The link in the workspace that leads out of it, to a file that is none of the agents' business.
pub(super) const LINK: &str = "shortcut.txt";
/// What that file holds.
pub(super) const PRIVATE: &str = "nobody's business\n";

/// A tool that misbehaves.
struct Guest {
    name: &'static str,
    text: &'static str,
    manifest: &'static str,
}

const GUESTS: [Guest; 3] = [
    Guest {
        name: "endless_loop",
        text: include_str!("guests/endless_loop.wat"),
        manifest: include_str!("guests/endless_loop.toml"),
    },
    Guest {
        name: "memory_bomb",
        text: include_str!("guests/memory_bomb.wat"),
        manifest: include_str!("guests/memory_bomb.toml"),
    },
    Guest { name: "busy", text: include_str!("guests/busy.wat"), manifest: include_str!("guests/busy.toml") },
];

/// What the story is told with; the folder goes when this does.
#[derive(Debug)]
pub(super) struct Stage {
    /// The executor's binary, which is the governor's too.
    pub(super) program: PathBuf,
    folder: TempDir,
    /// True when no demo has compiled its tools before.
    pub(super) is_first: bool,
    /// Where the logs of both processes stay.
    pub(super) logs: PathBuf,
}

impl Stage {
    /// Lays everything out and adds the demo's guests to the catalogue by `a2g-executor tool add`.
    ///
    /// # Errors
    /// When a file cannot be written or a guest is not taken.
    pub(super) fn build(workspace: &Workspace) -> Result<Self, Failure> {
        let temporary = std::env::temp_dir();
        let folder = tempfile::Builder::new().prefix("a2g-demo-").tempdir().at(&temporary)?;
        let logs = workspace.notes().join("demo");
        fs::create_dir_all(&logs).at(&logs)?;
        let program = format!("a2g-executor{}", std::env::consts::EXE_SUFFIX);
        let is_first = !cache(workspace).exists();
        let stage = Self { program: workspace.target.join("debug").join(program), folder, is_first, logs };
        stage.lay_out(workspace)?;
        let guests = stage.assemble(workspace)?;
        run::progress("Adding", "the demo's guests by `a2g-executor tool add`");
        for guest in guests {
            stage.add(&guest)?;
        }
        Ok(stage)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The host folder that guests find as `/workspace`.
    pub(super) fn workspace(&self) -> PathBuf {
        self.at("workspace")
    }

    /// The host file that the link leads to.
    pub(super) fn private(&self) -> PathBuf {
        self.at("private.txt")
    }

    /// Where the governor records what it is told.
    pub(super) fn reports(&self) -> PathBuf {
        self.at("reports.ndjson")
    }

    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    pub(super) fn governor_command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["governor", "--listen", "127.0.0.1:0"]);
        command.arg("--policies").arg(self.at("policies")).arg("--reports").arg(self.reports());
        command
    }

    pub(super) fn executor_command(&self, governor: SocketAddr) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("serve").arg("--config").arg(self.at("executor.toml"));
        command.arg("--governor").arg(format!("http://{governor}/jsonrpc"));
        command
    }

    fn lay_out(&self, workspace: &Workspace) -> Result<(), Failure> {
        copy_folders(&workspace.target.join("tools"), &self.at("tools"))?;
        let policies = self.at("policies");
        fs::create_dir(&policies).at(&policies)?;
        let [shared @ .., own] = POLICY_FILES;
        for name in shared {
            let source = workspace.root.join("policies").join(name);
            fs::copy(&source, policies.join(name)).at(&source)?;
        }
        fs::write(policies.join(own), DEMO_POLICY).at(&policies)?;
        let guests_see = self.workspace();
        fs::create_dir(&guests_see).at(&guests_see)?;
        fs::write(self.private(), PRIVATE).at(&self.private())?;
        symlink(self.private(), guests_see.join(LINK)).at(&guests_see)?;
        // Compiled tools are machine code, so the executor wants a folder that is ours alone.
        let cache = cache(workspace);
        DirBuilder::new().recursive(true).mode(0o700).create(&cache).at(&cache)?;
        let keys = self.at("nexus.keys");
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&keys).at(&keys)?;
        file.write_all(format!("{} {NEXUS_SECRET} -\n", super::doors::NEXUS_AGENT).as_bytes()).at(&keys)?;
        let configuration = self.at("executor.toml");
        fs::write(&configuration, configured(&cache)).at(&configuration)
    }

    /// Turns the guests' text into folders that `tool add` takes.
    fn assemble(&self, workspace: &Workspace) -> Result<Vec<PathBuf>, Failure> {
        let mut cargo = workspace.cargo();
        cargo.args(["run", "--locked", "--package", "xtask", "--features", "wat", "--bin", "assemble", "--"]);
        let mut folders = Vec::new();
        for guest in &GUESTS {
            let folder = self.at(guest.name);
            fs::create_dir(&folder).at(&folder)?;
            fs::write(folder.join("tool.toml"), guest.manifest).at(&folder)?;
            let text = folder.join("tool.wat");
            fs::write(&text, guest.text).at(&text)?;
            cargo.arg(text).arg(folder.join("tool.wasm"));
            folders.push(folder);
        }
        run::logged(workspace, "assemble the guests of the demo", &mut cargo, None)?;
        Ok(folders)
    }

    fn add(&self, guest: &Path) -> Result<(), Failure> {
        let mut command = Command::new(&self.program);
        command.args(["tool", "add"]).arg(guest).arg("--config").arg(self.at("executor.toml"));
        let output = command.output().at(&self.program)?;
        if output.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Failure::Program(format!("`a2g-executor tool add` did not take {}: {why}", guest.display())))
    }
}

/// The folder that keeps compiled tools from one demo to the next.
fn cache(workspace: &Workspace) -> PathBuf {
    workspace.notes().join("demo-cache")
}

/// The executor's configuration. Guests are kept to `/workspace`, and 32 MB are the most for any tool.
fn configured(cache: &Path) -> String {
    let cache = serde_json::Value::from(cache.display().to_string());
    format!(
        r#"[server]
listen = "127.0.0.1:0"

[catalog]
tools = "tools"
cache = {cache}

[journal]
path = "journal.db"

[ceilings]
max_memory_mb = 32
filesystem_scope = ["/workspace/**"]

[[mount]]
guest = "/workspace"
host = "workspace"

[doors.nexus]
key_file = "nexus.keys"
signature_scope = "full"
"#
    )
}

/// Copies a folder of folders of files.
fn copy_folders(from: &Path, to: &Path) -> Result<(), Failure> {
    for folder in fs::read_dir(from).at(from)? {
        let folder = folder.at(from)?.path();
        let Some(name) = folder.file_name() else { continue };
        let copied = to.join(name);
        fs::create_dir_all(&copied).at(&copied)?;
        for file in fs::read_dir(&folder).at(&folder)? {
            let file = file.at(&folder)?;
            fs::copy(file.path(), copied.join(file.file_name())).at(&file.path())?;
        }
    }
    Ok(())
}
