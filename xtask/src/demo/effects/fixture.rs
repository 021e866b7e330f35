//! The files and processes of the demo: a workspace with notes, a configuration, a policy, and the tokens of an agent and of
//! a person.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use fs_err as fs;
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use crate::demo::client::Client;
use crate::demo::fixture::{Ended, Server};
use crate::run::{self, Workspace};
use crate::setup;

/// The tool that runs the program.
pub(super) const TOOL: &str = "run_python";
/// The agent of `policy.json`.
const AGENT: &str = "did:a2g:agent:1.0:demo";
const PROGRAM: &str = include_str!("program.py");
const CALLERS: &str = "callers.toml";
/// The person who decides, an approver.
pub(super) const PERSON: &str = "anna";

/// The number of notes that the program edits, archives and deletes.
pub(super) const EDITED: usize = 12;
pub(super) const RENAMED: usize = 4;
pub(super) const DELETED: usize = 4;

/// The contents of all files of a folder, by their paths below it.
pub(super) type Files = BTreeMap<String, String>;

/// The files. Dropping the value removes the temporary folder.
pub(super) struct Fixture {
    program: PathBuf,
    folder: TempDir,
    pub(super) logs: PathBuf,
    agent_token: String,
}

impl Fixture {
    /// Creates the files, and the callers by `a2g-executor caller new`.
    pub(super) fn create(workspace: &Workspace) -> Result<Self> {
        let tools = workspace.target.join("tools");
        ensure!(
            tools.join(TOOL).is_dir(),
            "the demo needs `{TOOL}`, and {}, which makes this tool, could not be installed here: `cargo xtask setup \
             --retry` tries again",
            setup::COMPONENTIZE_PY
        );
        let folder = tempfile::Builder::new().prefix("a2g-effects-").tempdir()?;
        let logs = workspace.state().join("demo");
        fs::create_dir_all(&logs)?;
        let mut fixture = Self { program: workspace.executor(), folder, logs, agent_token: String::new() };
        for name in ["policies", "workspace/notes"] {
            fs::create_dir_all(fixture.path(name))?;
        }
        let sources = workspace.root.join("xtask/src/demo/effects");
        let configuration = fs::read_to_string(sources.join("executor.toml"))?;
        fs::write(fixture.config(), configuration.replace("TOOLS", &json!(tools).to_string()))?;
        fs::copy(sources.join("policy.json"), fixture.path("policies/effects.json"))?;
        for (name, content) in notes() {
            fs::write(fixture.path("workspace/notes").join(name), content)?;
        }
        fixture.agent_token = fixture.add_caller("agent", &["--role", "agent", "--agent", AGENT])?;
        let token = fixture.add_caller(PERSON, &["--role", "approver"])?;
        fs::write(fixture.token_file(), token)?;
        fs::set_permissions(fixture.token_file(), Permissions::from_mode(0o600))?;
        Ok(fixture)
    }

    /// Adds a caller, and returns its token.
    fn add_caller(&self, name: &str, roles: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        run::capture(command.args(["caller", "new", name, "--callers"]).arg(self.path(CALLERS)).args(roles))
    }

    pub(super) fn start_governor(&self) -> Result<Server> {
        let mut command = Command::new(&self.program);
        command.args(["governor", "--listen", "127.0.0.1:0", "--policies"]).arg(self.path("policies"));
        command.arg("--reports").arg(self.reports());
        Server::start("governor", command, self.logs.join("effects-governor.log"), "")
    }

    /// Starts the executor, and waits until every tool can be called.
    pub(super) fn start_executor(&self, governor: SocketAddr) -> Result<Server> {
        let mut command = Command::new(&self.program);
        command.args(["serve", "--governor", &format!("ws://{governor}/jsonrpc")]);
        command.arg("--config").arg(self.config());
        Server::start("executor", command, self.logs.join("effects-executor.log"), "all tools are prepared")
    }

    /// Sends the program as the agent.
    pub(super) fn send_program(&self, executor: Client) -> Result<Value> {
        let params = json!({ "agent_did": AGENT, "intent_id": Uuid::new_v4().to_string(), "tool": TOOL,
            "arguments": { "code": PROGRAM } });
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "a2g/intent", "params": params });
        let bearer = format!("Bearer {}", self.agent_token);
        executor.post("/jsonrpc", &[("Authorization", &bearer)], request)
    }

    /// Runs `a2g-executor effects` with the person's token.
    pub(super) fn effects(&self, executor: Client, words: &[&str]) -> Result<Ended> {
        let mut command = Command::new(&self.program);
        command.arg("effects").args(words).args(["--url", &format!("http://{}", executor.0)]);
        Ended::of(command.arg("--token-file").arg(self.token_file()))
    }

    /// Changes a file, as any program of this machine can.
    pub(super) fn interfere(&self, name: &str) -> Result<()> {
        Ok(fs::write(self.path("workspace/notes").join(name), "changed by another program\n")?)
    }

    /// All files of the workspace.
    pub(super) fn files(&self) -> Result<Files> {
        let workspace = self.path("workspace");
        let mut files = Files::new();
        let mut left = vec![workspace.clone()];
        while let Some(folder) = left.pop() {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    left.push(path);
                } else {
                    let name = path.strip_prefix(&workspace)?.display().to_string();
                    files.insert(name, fs::read_to_string(&path)?);
                }
            }
        }
        Ok(files)
    }

    /// The host folder that tools know as `/workspace`.
    pub(super) fn workspace(&self) -> PathBuf {
        self.path("workspace")
    }

    /// The file with the reports that the governor received.
    pub(super) fn reports(&self) -> PathBuf {
        self.path("reports.ndjson")
    }

    fn config(&self) -> PathBuf {
        self.path("executor.toml")
    }

    fn token_file(&self) -> PathBuf {
        self.path("person.token")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// The notes with their contents: drafts, which become final; old ones, which are archived; and copies, which are deleted.
fn notes() -> impl Iterator<Item = (String, String)> {
    let drafts = (1..=EDITED).map(|number| {
        let content = format!("# Plan {number}\n\nStatus: draft\nOwner: the team\n");
        (format!("plan-{number:02}.md"), content)
    });
    let old = (1..=RENAMED).map(|number| (format!("old-{number}.txt"), format!("Kept, part {number}.\n")));
    let copies = (1..=DELETED).map(|number| (format!("copy-{number}.tmp"), "a copy\n".to_owned()));
    drafts.chain(old).chain(copies)
}

/// All files that are expected after the program's changes have taken effect.
pub(super) fn files_afterwards() -> Files {
    let mut files = Files::new();
    let mut index = String::new();
    for (name, content) in notes() {
        if name.ends_with(".md") {
            index.push_str(&format!("{name}\n"));
            files.insert(format!("notes/{name}"), content.replace("draft", "final"));
        } else if name.ends_with(".txt") {
            files.insert(format!("notes/archive/{name}"), content);
        }
    }
    files.insert("notes/index.md".to_owned(), index);
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_changes_are_as_many_as_the_page_says() {
        let after = files_afterwards();
        assert_eq!((notes().count(), after.len()), (EDITED + RENAMED + DELETED, EDITED + RENAMED + 1));
        assert!(after.values().all(|content| !content.contains("draft")));
    }
}
