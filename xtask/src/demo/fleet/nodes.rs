//! The files and processes of the fleet: one folder for each node, and what all nodes use (the tools, the workspace,
//! the key of the fleet and a governor).

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use fs_err as fs;
use serde_json::json;
use tempfile::TempDir;
use uuid::Uuid;

use crate::demo::fixture::{Server, add_guests};
use crate::run::{self, Workspace};

/// The names of the nodes.
pub(super) const NODES: [&str; 3] = ["one", "two", "three"];
/// The tool in `guests/` that all intents call. It writes a line to [`Fixture::runs`].
pub(super) const TOOL: &str = "append_line";
const KEY: &str = "fleet.key";

/// The files. Dropping the value removes the temporary folder.
pub(super) struct Fixture {
    program: PathBuf,
    folder: TempDir,
    pub(super) logs: PathBuf,
}

impl Fixture {
    /// Creates the folders. The tool is added by [`Self::add_tool`].
    pub(super) fn create(workspace: &Workspace) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("a2g-fleet-").tempdir()?;
        let fixture = Self { program: workspace.executor(), folder, logs: workspace.state().join("demo") };
        fs::create_dir_all(&fixture.logs)?;
        for name in ["policies", "tools", "workspace"].into_iter().chain(NODES) {
            fs::create_dir(fixture.path(name))?;
        }
        let policy = workspace.root.join("xtask/src/demo/fleet/policy.json");
        fs::copy(policy, fixture.path("policies/fleet.json"))?;
        // Two random UUIDs have 64 hexadecimal digits.
        fs::write(fixture.path(KEY), [(); 2].map(|()| Uuid::new_v4().simple().to_string()).concat())?;
        fs::set_permissions(fixture.path(KEY), Permissions::from_mode(0o600))?;
        Ok(fixture)
    }

    /// Writes the configuration of each node.
    pub(super) fn configure(&self, workspace: &Workspace, servers: &[String]) -> Result<()> {
        let template = fs::read_to_string(workspace.root.join("xtask/src/demo/fleet/node.toml"))?;
        let template = template.replace("SERVERS", &json!(servers).to_string());
        for node in NODES {
            fs::write(self.config(node), template.replace("NODE", node))?;
        }
        Ok(())
    }

    /// Adds the tool to the catalogue of all nodes.
    pub(super) fn add_tool(&self, workspace: &Workspace) -> Result<()> {
        let [first, ..] = NODES;
        let config = self.config(first);
        add_guests(workspace, &[TOOL], self.folder.path(), &["--config".as_ref(), config.as_ref()])
    }

    /// Creates the fleet at the servers of NATS.
    pub(super) fn init_fleet(&self) -> Result<()> {
        let [first, ..] = NODES;
        let mut command = Command::new(&self.program);
        command.args(["fleet", "init", "--config"]).arg(self.config(first));
        run::show("create the fleet", &mut command)
    }

    pub(super) fn start_governor(&self) -> Result<Server> {
        let mut command = Command::new(&self.program);
        command.args(["governor", "--listen", "127.0.0.1:0", "--policies"]).arg(self.path("policies"));
        command.arg("--reports").arg(self.reports());
        Server::start("governor", command, self.logs.join("fleet-governor.log"), "")
    }

    /// Starts a node, with its output in the log of this name.
    pub(super) fn start_node(&self, node: &'static str, governor: SocketAddr, log: &str) -> Result<Server> {
        let mut command = Command::new(&self.program);
        command.args(["serve", "--governor", &format!("ws://{governor}/jsonrpc")]);
        command.arg("--config").arg(self.config(node));
        Server::start(node, command, self.logs.join(log), "all tools are prepared")
    }

    /// The file with one line for each run of the tool.
    pub(super) fn runs(&self) -> PathBuf {
        self.path("workspace/runs.ndjson")
    }

    /// The file with the reports that the governor received.
    pub(super) fn reports(&self) -> PathBuf {
        self.path("reports.ndjson")
    }

    fn config(&self, node: &str) -> PathBuf {
        self.path(node).join("executor.toml")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
