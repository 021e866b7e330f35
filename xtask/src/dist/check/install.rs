//! The common parts of the checks of all ways of installation.
//!
//! Everything comes from `target/dist`: from its folder for pip, uv and pipx, and from a registry on this machine for npm.
//! Each way has a home folder of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fs_err as fs;
use serde_json::{Value, json};

use super::Shared;
use super::client::Client;
use crate::dist::npm;
use crate::run;
use crate::setup;

/// The time limit of one command of an installation.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// Makes the command of the executor from its arguments.
pub(super) type Start<'a> = &'a dyn Fn(&[&str]) -> Command;

impl Shared<'_> {
    /// A new folder for one way of installation, which is its home.
    pub(super) fn home(&self, name: &str) -> Result<PathBuf> {
        let home = self.folder.path().join(name);
        fs::create_dir_all(home.join("notes"))?;
        Ok(home)
    }

    /// The folder of the programs of the Python environment with uv and pipx.
    pub(super) fn python(&self) -> PathBuf {
        setup::clients_folder(self.release.workspace).join("python/bin")
    }

    /// Lists the tools, writes and reads a file, is refused another one, and lets a person decide about a third. Prints
    /// the time from `started`, when `way` had not yet installed anything, to the answer of the first call.
    ///
    /// `start` makes the command of the executor from its arguments; `home` is its home folder as it sees it.
    pub(super) fn use_tools(&self, way: &str, home: &str, started: Instant, start: Start<'_>) -> Result<()> {
        let scope = format!("{home}/notes");
        let mut client = Client::start(&mut start(&["mcp", "--scope", &scope]))?;
        let path = format!("{scope}/hello.txt");
        let written = client.call("write_file", &json!({ "path": path, "content": "Hello" }))?;
        ensure!(!is_error(&written), "a file below the scope is not written: {written}");
        let first_call = started.elapsed();
        client.ensure_lists(&self.tools()?)?;
        let read = client.call("read_file", &json!({ "path": path }))?;
        ensure!(
            read.pointer("/structuredContent/content") == Some(&json!("Hello")),
            "the written file is not read: {read}"
        );
        let outside = client.call("write_file", &json!({ "path": "/srv/hello.txt", "content": "Hello" }))?;
        let blocked = outside.pointer("/_meta/a2g~1error/blocked_by");
        ensure!(
            is_error(&outside) && blocked.is_some(),
            "a file outside the scope is not refused: {outside}"
        );
        let key = json!({ "path": format!("{scope}/key.pem"), "content": "-----BEGIN PRIVATE KEY-----" });
        let approved = client.call("write_file", &key)?;
        ensure!(
            !is_error(&approved) && approved.get("was_asked").is_some(),
            "a person was not asked, or the approved call did not run: {approved}"
        );
        client.end()?;
        let journal = format!("{home}/.local/state/a2g-executor/journal.db");
        run::capture(&mut start(&["journal", "verify", "--journal", &journal]))?;
        run::progress("Measured", &format!("{way}: {:.1} s to the first call", first_call.as_secs_f64()));
        Ok(())
    }

    /// Runs a program of an installation, with its output in a log.
    pub(super) fn log(&self, what: &str, command: &mut Command) -> Result<()> {
        run::log(self.release.workspace, what, command, COMMAND_TIMEOUT)
    }

    /// Makes a Python environment with the wheel.
    pub(super) fn install_with_pip(&self, home: &Path) -> Result<PathBuf> {
        let mut venv = private("python3", home, &[&self.python()]);
        self.log("make a Python environment", venv.args(["-m", "venv"]).arg(home.join("venv")))?;
        let bin = home.join("venv/bin");
        let mut pip = private("pip", home, &[&bin]);
        pip.args(["install", "--no-index", "--find-links"]).arg(&self.release.folder).arg(npm::NAME);
        self.log("install the wheel with pip", &mut pip)?;
        Ok(bin)
    }
}

/// A program with nothing of this process's environment but its path, after `first`.
pub(super) fn private(program: &str, home: &Path, first: &[&Path]) -> Command {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let paths = first.iter().map(|path| path.to_path_buf()).chain(std::env::split_paths(&paths));
    let mut command = Command::new(program);
    command.env_clear().env("HOME", home).env("LANG", "C.UTF-8").current_dir(home);
    command.env("PATH", std::env::join_paths(paths).unwrap_or_default());
    command
}

fn is_error(result: &Value) -> bool {
    result.get("isError") == Some(&json!(true))
}

/// Checks that a program ends with a code and one sentence about the reason.
pub(super) fn expect_refusal(command: &mut Command, code: i32, sentence: &str) -> Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(code) && message.contains(sentence),
        "expected the exit code {code} and `{sentence}`, not {} and `{}`",
        output.status,
        message.trim()
    );
    Ok(())
}

/// Checks that a configuration for a host starts the executor as it was started here, with this option.
pub(super) fn expect_config(start: Start<'_>, program: &str, option: &str) -> Result<()> {
    let printed = run::capture(&mut start(&["mcp", "--scope", "notes", "--print-config", "codex"]))?;
    for expected in [format!("command = \"{program}\""), format!("\"{option}\"")] {
        ensure!(printed.contains(&expected), "`{expected}` is not in {printed}");
    }
    Ok(())
}

/// Checks that a command of the executor prints the version of the release.
pub(super) fn expect_version(command: &mut Command, version: &str) -> Result<()> {
    let printed = run::capture(command.arg("--version"))?;
    ensure!(printed.ends_with(version), "the version is {printed}");
    Ok(())
}
