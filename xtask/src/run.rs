//! Running other programs: the workspace, time limits, logs, progress and colours.
//!
//! A failure is one sentence that names the next step or a log. A program that exceeds its time limit is
//! killed. No program runs through a shell. Colours appear only on a terminal, and never with NO_COLOR.

use std::env;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const FAINT: Style = Style::new().dimmed();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(crate) const RED: Style = AnsiColor::Red.on_default().bold();

/// For programs that have no time limit.
pub(crate) const UNLIMITED: Duration = Duration::MAX;
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two lines about a running program, if standard error is not a terminal.
const LOG_SECONDS: u64 = 30;

pub(crate) struct Workspace {
    /// The folder of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// The target directory that holds this program.
    pub(crate) target: PathBuf,
    /// `true` if another program shows its progress meanwhile: each step is then one line, even on a terminal.
    pub(crate) shares_terminal: bool,
}

impl Workspace {
    pub(crate) fn find() -> Result<Self> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let executable = env::current_exe()?;
        let folders = Path::new(&manifest).parent().zip(executable.ancestors().nth(2));
        let (root, target) = folders.context("run it as `cargo xtask`, inside the repository")?;
        Ok(Self::new(root.to_owned(), target.to_owned()))
    }

    pub(crate) fn new(root: PathBuf, target: PathBuf) -> Self {
        Self { root, target, shares_terminal: false }
    }

    /// The same workspace, for steps that run beside a program that shows its own progress.
    pub(crate) fn beside_another_program(&self) -> Self {
        Self { shares_terminal: true, ..Self::new(self.root.clone(), self.target.clone()) }
    }

    /// The folder of this crate's logs and intermediate files.
    pub(crate) fn state(&self) -> PathBuf {
        self.target.join("xtask")
    }

    /// The target directory of the tools' workspace: separate, because its profiles differ.
    pub(crate) fn guest_target(&self) -> PathBuf {
        self.target.join("guest")
    }

    pub(crate) fn executor(&self) -> PathBuf {
        self.target.join("debug").join(format!("a2g-executor{}", env::consts::EXE_SUFFIX))
    }

    /// The cargo that runs this program, with the same toolchain and target directory.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(arguments).current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        remove_package_variables(&mut command);
        command
    }

    /// The same cargo in the tools' workspace.
    pub(crate) fn guest_cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.cargo(arguments);
        command.current_dir(self.root.join("tools")).env("CARGO_TARGET_DIR", self.guest_target());
        command.env("CARGO_ENCODED_RUSTFLAGS", self.remapping().join("\x1f"));
        command
    }

    /// The folders of this machine that compilers would write into a program, each with what stands for it: the same
    /// sources then give the same bytes in any folder. Of several that match, compilers use the last.
    pub(crate) fn replaced_folders(&self) -> Vec<(PathBuf, &'static str)> {
        let home = env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo")));
        let own = [(self.root.clone(), "/source"), (self.target.clone(), "/target")];
        own.into_iter().chain(home.map(|home| (home, "/cargo"))).collect()
    }

    /// The options of rustc that replace these folders.
    pub(crate) fn remapping(&self) -> Vec<String> {
        let folders = self.replaced_folders().into_iter();
        folders.map(|(folder, name)| format!("--remap-path-prefix={}={name}", folder.display())).collect()
    }
}

/// Removes the variables in which `cargo run` describes this package. Otherwise build scripts that watch them
/// would run again whenever plain cargo is used after this program, or this program after plain cargo.
pub(crate) fn remove_package_variables(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
}

/// Runs a program that shows its own output; without a terminal, a line is printed every 30 s while it runs.
/// `what` continues the sentence "could not …".
pub(crate) fn show(what: &str, command: &mut Command) -> Result<()> {
    let is_terminal = io::stderr().is_terminal();
    let mut child = command.spawn().with_context(|| format!("could not {what}"))?;
    let status = wait(&mut child, UNLIMITED, |seconds| {
        if !is_terminal && seconds % LOG_SECONDS == 0 {
            progress("Step", &format!("{what}, {seconds} s so far"));
        }
    })?;
    ensure!(status.is_some_and(|status| status.success()), "could not {what}, see above");
    Ok(())
}

/// Runs a program with its output in a log, and kills it after `limit`. `what` continues the sentence
/// "could not …"; a failure quotes the program's last line.
pub(crate) fn log(workspace: &Workspace, what: &str, command: &mut Command, limit: Duration) -> Result<()> {
    fs::create_dir_all(workspace.state())?;
    let name = what.replace(|character: char| !character.is_ascii_alphanumeric(), "-");
    let log = workspace.state().join(name).with_extension("log");
    let output = fs::File::create(&log)?.into_parts().0;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("could not start `{program}`"))?;
    let is_terminal = io::stderr().is_terminal() && !workspace.shares_terminal;
    if !is_terminal {
        progress("Step", what);
    }
    let status = wait(&mut child, limit, |seconds| {
        if is_terminal {
            anstream::eprint!("\r\x1b[K{GREEN}{:>12}{GREEN:#} {what}, {seconds} s so far", "Step");
        } else if seconds % LOG_SECONDS == 0 {
            progress("Step", &format!("{what}, {seconds} s so far"));
        }
    })?;
    if is_terminal {
        anstream::eprint!("\r\x1b[K");
    }
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let last_line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    let reason = match status {
        Some(status) if status.success() => return Ok(()),
        Some(status) => last_line.map_or_else(|| status.to_string(), str::to_owned),
        None => format!("no end within {} s", limit.as_secs()),
    };
    bail!("could not {what} ({reason}); its output is in {}", log.display())
}

/// Waits for the end of a program, and calls `tick` each second. Kills the program after `limit`, and then
/// returns `None`.
pub(crate) fn wait(
    child: &mut Child,
    limit: Duration,
    mut tick: impl FnMut(u64),
) -> Result<Option<ExitStatus>> {
    let started = now();
    let mut seconds = 0;
    while started.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed().as_secs() > seconds {
            seconds = started.elapsed().as_secs();
            tick(seconds);
        }
        thread::sleep(POLL_INTERVAL);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// The standard output of a program; `None` if it fails.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The standard output of a program that has to succeed.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    capture_reading(command, Stdio::null())
}

/// As [`capture`], of a program that reads this as its standard input.
pub(crate) fn capture_reading(command: &mut Command, input: Stdio) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(input).output();
    let output = output.with_context(|| format!("`{program}` cannot be started"))?;
    ensure!(
        output.status.success(),
        "`{command:?}` fails ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// `true` if the user of this process is root.
pub(crate) fn is_root() -> bool {
    output(Command::new("id").arg("-u")).is_some_and(|id| id == "0")
}

/// Prints one line on standard error in the format of cargo's progress.
pub(crate) fn progress(word: &str, text: &str) {
    anstream::eprintln!("{GREEN}{word:>12}{GREEN:#} {text}");
}

#[allow(clippy::disallowed_methods, reason = "the rule is for the executor, whose clock tests can set")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A workspace in a temporary folder, which is removed on drop.
    pub(crate) struct Scratch {
        folder: tempfile::TempDir,
        pub(crate) workspace: Workspace,
    }

    impl Scratch {
        pub(crate) fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().to_owned();
            let target = root.join("target");
            Self { workspace: Workspace::new(root, target), folder }
        }

        /// Writes a file below the root, with its folders.
        pub(crate) fn write(&self, path: &str, content: &str) {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }
}
