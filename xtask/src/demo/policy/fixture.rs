//! The files and the process of the demo: a workspace with a secret, policies with their tests, and a configuration.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use fs_err as fs;
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use crate::demo::fixture::{Ended, Server};
use crate::demo::output::WIDTH;
use crate::run::Workspace;

pub(super) const AGENT: &str = "did:a2g:agent:1.0:demo";
/// The file that is first observed.
pub(super) const OBSERVED: &str = "secrets.cedar";
/// The secret, as tools know it.
pub(super) const SECRET: &str = "/workspace/secrets/key.txt";

/// All files but the configuration. The folder `before` has the policies as they were.
const FILES: [(&str, &str); 6] = [
    ("policies/base.cedar", include_str!("base.cedar")),
    ("policies/secrets.cedar", include_str!("secrets.cedar")),
    ("policies/secrets.test.toml", include_str!("secrets.test.toml")),
    ("before/base.cedar", include_str!("base.cedar")),
    ("workspace/notes.txt", "to do\n"),
    ("workspace/secrets/key.txt", "the key\n"),
];

/// What the new rules do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Observe,
    Enforce,
}

/// The files. Dropping the value removes the temporary folder.
pub(super) struct Fixture {
    program: PathBuf,
    /// The catalogue of tools.
    tools: PathBuf,
    folder: TempDir,
    pub(super) logs: PathBuf,
}

impl Fixture {
    pub(super) fn create(workspace: &Workspace) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("a2g-policy-").tempdir()?;
        let logs = workspace.state().join("demo");
        fs::create_dir_all(&logs)?;
        for (name, content) in FILES {
            let path = folder.path().join(name);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(path, content)?;
        }
        Ok(Self { program: workspace.executor(), tools: workspace.target.join("tools"), folder, logs })
    }

    fn configure(&self, mode: Mode) -> Result<()> {
        let text = include_str!("executor.toml").replace("TOOLS", &json!(self.tools).to_string());
        let text = match mode {
            Mode::Observe => text,
            Mode::Enforce => text.replace("\nobserve = ", "\n# observe = "),
        };
        Ok(fs::write(self.folder.path().join("executor.toml"), text)?)
    }

    /// Starts the executor with the built-in governor, and waits until every tool can be called.
    pub(super) fn start_executor(&self, mode: Mode) -> Result<Server> {
        self.configure(mode)?;
        let mut command = Command::new(&self.program);
        command.arg("serve").current_dir(self.folder.path());
        let log = match mode {
            Mode::Observe => "policy-observes.log",
            Mode::Enforce => "policy-enforces.log",
        };
        Server::start("executor", command, self.logs.join(log), "all tools are prepared")
    }

    /// Runs `a2g-executor policy` beside the configuration.
    pub(super) fn policy(&self, words: &[&str]) -> Result<Ended> {
        let mut command = Command::new(&self.program);
        command.arg("policy").args(words).current_dir(self.folder.path());
        // Its output is printed with an indent.
        Ended::of(command.env("COLUMNS", (WIDTH - 2).to_string()))
    }
}

/// The parameters of a new intent of the agent.
pub(super) fn intent(tool: &str, arguments: &Value) -> Value {
    let intent = Uuid::new_v4().to_string();
    json!({ "agent_did": AGENT, "intent_id": intent, "tool": tool, "arguments": arguments })
}
