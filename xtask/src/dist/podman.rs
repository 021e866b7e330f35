//! Podman, with its images, containers and volumes in a folder of its own.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Result;
use tempfile::TempDir;

use super::check::require;
use super::files;
use crate::run::{self, Workspace};
use crate::setup;

/// Dropping it ends the containers that this process has started, and removes everything that it has stored.
pub(super) struct Podman {
    storage: PathBuf,
    /// Podman accepts no path with more than 50 characters for it.
    state: TempDir,
}

impl Podman {
    pub(super) fn find(workspace: &Workspace) -> Result<Self> {
        require(run::is_root(), "podman needs root for the owners of the files")?;
        require(setup::prepare_podman(workspace)?, "there is no podman")?;
        let storage = workspace.state().join("podman");
        // Leftovers of an earlier process that was killed.
        files::remove(&storage)?;
        Ok(Self { storage, state: tempfile::Builder::new().prefix("a2g").tempdir_in("/tmp")? })
    }

    /// A command of podman.
    pub(super) fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new("podman");
        command.arg("--root").arg(&self.storage).arg("--runroot").arg(self.state.path());
        // The storage driver and the manager of control groups that work everywhere, also inside a container.
        command.args(["--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none"]);
        command.args(["--runtime=runc", "--log-level=error"]).args(arguments);
        // The monitor of a container that runs out of memory writes a file to the folder that it is started in.
        command.stdin(Stdio::null()).current_dir(self.state.path());
        command
    }

    /// `podman run` with the options that every container of a check has, followed by `arguments`.
    pub(super) fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command(["run", "--rm"]);
        // Podman's own limits are higher than those of some machines, which runc then cannot set.
        command.args(["--ulimit=nofile=10000:10000", "--ulimit=nproc=10000:10000"]).args(arguments);
        command
    }

    /// The standard output of a command of podman that has to succeed.
    pub(super) fn output<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<String> {
        run::capture(&mut self.command(arguments))
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _none_is_left = self.command(["rm", "--all", "--force", "--volumes", "--time=0"]).output();
        let _is_removed_by_the_next = files::remove(&self.storage);
    }
}
