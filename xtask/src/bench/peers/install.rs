//! Installing what the scripts of the peers need: their packages, the program that they run, and this executor.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, anyhow};
use fs_err as fs;
use serde_json::json;

use super::Peer;
use crate::bench::markdown::show_reason;
use crate::bench::{build_executor, optimised_executor};
use crate::run::{self, Workspace};
use crate::setup::{self, GuestCompilers, WASIP1};
use crate::{debian, tools};

/// Some packages have 100 MB.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);
const FILES: usize = 100;

/// The registry and the package of a peer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Package {
    /// This repository.
    Executor,
    /// PyPI: packages with versions, separated by spaces.
    Python(&'static str),
    /// npm: a package with its version.
    Node(&'static str),
    /// The distribution, whose release decides on the version: the package, and the program that it contains.
    Debian(&'static str, &'static str),
}

/// The folders and files of a run.
pub(super) struct Place {
    /// All that is installed and written.
    pub(super) folder: PathBuf,
    scripts: PathBuf,
    executor: PathBuf,
    tools: PathBuf,
    /// The catalogue of science Python, if this executor is measured with it.
    pub(super) science: Option<PathBuf>,
}

impl Place {
    /// Builds what these peers run. `executor` is used instead of one that is built.
    pub(super) fn prepare(workspace: &Workspace, peers: &[&Peer], executor: Option<&Path>) -> Result<Self> {
        let place = Self {
            folder: workspace.state().join("peers"),
            scripts: workspace.root.join("executor/benches/peers"),
            executor: executor.map_or_else(|| Ok(optimised_executor(workspace)), fs::canonicalize)?,
            tools: workspace.target.join("tools"),
            science: None,
        };
        let guests = setup::prepare(workspace)?;
        if executor.is_none() && peers.iter().any(|peer| peer.is_ours()) {
            tools::build(workspace, &guests)?;
            build_executor(workspace)?;
        }
        place.build_guest(workspace, &guests)?;
        fs::create_dir_all(place.data())?;
        for file in 0..FILES {
            fs::write(place.data().join(format!("file-{file}.txt")), format!("{file}\n"))?;
        }
        Ok(place)
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn guest(&self) -> PathBuf {
        self.folder.join("guest")
    }

    pub(super) fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    /// Compiles the one program for WASI, as a plugin of Extism, and for this machine.
    fn build_guest(&self, workspace: &Workspace, guests: &GuestCompilers) -> Result<()> {
        let folder = self.guest();
        fs::create_dir_all(&folder)?;
        let [program, plugin] = ["guest.rs", "extism.rs"].map(|name| json!(self.scripts.join(name)));
        let manifest = format!(
            "[package]\nname = \"guest\"\nedition = \"2024\"\n[workspace]\n[profile.release]\nstrip = true\n\
             [[bin]]\nname = \"guest\"\npath = {program}\n\
             [lib]\nname = \"extism\"\npath = {plugin}\ncrate-type = [\"cdylib\"]\n"
        );
        fs::write(folder.join("Cargo.toml"), manifest)?;
        let mut modules = guests.cargo(workspace, &["build", "--release", "--target", WASIP1]);
        let mut native = workspace.cargo(&["build", "--release", "--bin", "guest"]);
        for cargo in [&mut modules, &mut native] {
            cargo.current_dir(&folder).env("CARGO_TARGET_DIR", folder.join("target"));
            tools::compile(workspace, "the program of the peers", cargo)?;
        }
        let release = folder.join("target").join(WASIP1).join("release");
        for name in ["guest.wasm", "extism.wasm"] {
            fs::copy(release.join(name), folder.join(name))?;
        }
        fs::copy(folder.join("target/release/guest"), folder.join("guest"))?;
        Ok(())
    }

    /// Installs the package of a peer, once.
    pub(super) fn install(&self, workspace: &Workspace, peer: &Peer) -> Result<()> {
        let home = self.home(peer);
        let log = |what: &str, step: &mut Command| run::log(workspace, what, step, INSTALL_TIMEOUT);
        let what = format!("install {}", peer.name);
        let stamp = home.join(format!("{}.installed", peer.name));
        let is_new =
            |package: &str| fs::read_to_string(&stamp).ok().is_none_or(|installed| installed != package);
        let installed = match peer.package {
            Package::Python(package) if is_new(package) => {
                let mut pip = Command::new(home.join("bin/pip"));
                pip.args(["install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"])
                    .args(package.split(' '));
                log(
                    "create an environment of Python",
                    Command::new("python3").args(["-m", "venv"]).arg(&home),
                )
                .and_then(|()| log(&what, &mut pip))
                .and_then(|()| Ok(fs::write(&stamp, package)?))
            }
            Package::Node(package) if is_new(package) => {
                let mut npm = Command::new("npm");
                npm.args(["install", "--no-fund", "--no-audit", setup::NODE, package, "--prefix"]).arg(&home);
                fs::create_dir_all(&home)?;
                log(&what, &mut npm).and_then(|()| Ok(fs::write(&stamp, package)?))
            }
            Package::Debian(package, program) if !Path::new(program).exists() => {
                debian::satisfy(workspace, &what, package, INSTALL_TIMEOUT)
            }
            Package::Executor | Package::Python(_) | Package::Node(_) | Package::Debian(..) => Ok(()),
        };
        installed.map_err(|error| anyhow!(show_reason(&error)))
    }

    /// The folder of a peer's packages. Those from npm share one, because each needs Node.js.
    fn home(&self, peer: &Peer) -> PathBuf {
        let name = if matches!(peer.package, Package::Node(_)) { "node" } else { peer.name };
        self.folder.join("packages").join(name)
    }

    /// The command that starts a peer's script.
    pub(super) fn command(&self, peer: &Peer) -> Result<Command> {
        let home = self.home(peer);
        let script = peer.script();
        let mut command = match peer.package {
            Package::Executor | Package::Debian(..) => Command::new("python3"),
            Package::Python(_) => Command::new(home.join("bin/python")),
            Package::Node(_) => {
                // Imports are looked up beside the script.
                for name in ["common.mjs", script.as_str()] {
                    fs::copy(self.scripts.join(name), home.join(name))?;
                }
                let mut node = Command::new(home.join("node_modules/.bin/node"));
                // isolated-vm needs it.
                node.arg("--no-node-snapshot");
                node
            }
        };
        let folder = if matches!(peer.package, Package::Node(_)) { &home } else { &self.scripts };
        command.arg(folder.join(&script));
        let state = self.folder.join("state").join(peer.label().replace(", ", "-").replace(' ', "-"));
        fs::create_dir_all(&state)?;
        command.env("PEERS_GUEST", self.guest()).env("PEERS_DATA", self.data()).env("PEERS_STATE", state);
        command.env("PEERS_EXECUTOR", &self.executor);
        command.env("PEERS_TOOLS", self.science.as_ref().unwrap_or(&self.tools));
        if self.science.is_some() {
            command.env("PEERS_SCIENCE", "1");
        }
        command.env("PEERS_VARIANT", peer.variant).env("PYTHONDONTWRITEBYTECODE", "1");
        Ok(command)
    }
}
