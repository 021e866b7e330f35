//! Running other programs: where the workspace is, how progress is shown, how a failure reads.
//!
//! It guarantees that a failure is one sentence that says what to do, that a program with a time limit
//! ends, and that colours appear only on a terminal (and never with NO_COLOR). It never uses a shell.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often a running program is looked at, and the line about it rewritten on a terminal.
const GLANCE: Duration = Duration::from_millis(100);

/// Why a command did not succeed, for the person who typed it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line makes no sense.
    Usage(String),
    /// Something this machine lacks; the sentence says how to get it.
    Missing(String),
    /// Another program failed and showed its own output.
    Program(String),
    /// Another program failed and its output is in `log`.
    Logged { sentence: String, log: PathBuf },
    /// A file could not be read or written.
    File { path: PathBuf, source: io::Error },
    /// Tests failed; the summary has named them.
    Tests,
}

impl Failure {
    /// 2 for a command line that makes no sense, 1 for everything else.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(if matches!(self, Self::Usage(_)) { 2 } else { 1 })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(sentence) | Self::Missing(sentence) | Self::Program(sentence) => {
                f.write_str(sentence)
            }
            Self::Logged { sentence, log } => write!(f, "{sentence}; its output is in {}", log.display()),
            Self::File { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Tests => f.write_str("there are failed tests, see the summary above"),
        }
    }
}

/// Names the file in an [`io::Error`], which does not name it itself.
pub(crate) trait AtPath<T> {
    /// # Errors
    /// The same error, as [`Failure::File`].
    fn at(self, path: &Path) -> Result<T, Failure>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, Failure> {
        self.map_err(|source| Failure::File { path: path.to_owned(), source })
    }
}

/// Where the sources are and where built things go.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The folder of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's target directory: the one that this very program was built into.
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// # Errors
    /// When this program does not run from where cargo built it.
    pub(crate) fn find() -> Result<Self, Failure> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let executable = env::current_exe().at(Path::new("xtask"))?;
        let root = Path::new(&manifest).parent().map(Path::to_owned);
        let target = executable.parent().and_then(Path::parent).map(Path::to_owned);
        match (root, target) {
            (Some(root), Some(target)) => Ok(Self { root, target }),
            _ => Err(Failure::Usage("run it as `cargo xtask`, inside the repository".to_owned())),
        }
    }

    /// The folder for this crate's own notes, logs and intermediate files.
    pub(crate) fn notes(&self) -> PathBuf {
        self.target.join("xtask")
    }

    /// The target directory of the tools' workspace: apart, because its profiles differ.
    pub(crate) fn guest_target(&self) -> PathBuf {
        self.target.join("guest")
    }

    /// The cargo that runs us, with the same toolchain and the same target directory.
    pub(crate) fn cargo(&self) -> Command {
        let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(program);
        command.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        without_our_package(&mut command);
        command
    }
}

/// `cargo run` tells us about our own package through the environment. Build scripts that watch these
/// variables would run again each time that the commands of this crate and plain cargo take turns.
pub(crate) fn without_our_package(command: &mut Command) {
    let ours = |name: &OsStr| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    for (name, _) in env::vars_os().filter(|(name, _)| ours(name)) {
        command.env_remove(name);
    }
}

/// Runs a program that shows its own output. `what` reads on from "could not".
///
/// # Errors
/// When it cannot be started or ends with a failure.
pub(crate) fn visibly(what: &str, command: &mut Command) -> Result<(), Failure> {
    let status = command.status().map_err(|error| not_started(command, &error))?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::Program(format!("could not {what}: {}", ending(status))))
    }
}

/// Runs a program with its output in a log, under a line that says `what` and, on a terminal, since
/// when. After `limit` the program is ended.
///
/// # Errors
/// When it cannot be started, ends with a failure or is ended; the sentence quotes its last line.
pub(crate) fn logged(
    workspace: &Workspace,
    what: &str,
    command: &mut Command,
    limit: Option<Duration>,
) -> Result<(), Failure> {
    let notes = workspace.notes();
    fs::create_dir_all(&notes).at(&notes)?;
    let log = notes.join(format!("{}.log", what.replace(|c: char| !c.is_ascii_alphanumeric(), "-")));
    let out = File::create(&log).at(&log)?;
    let err = out.try_clone().at(&log)?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn()
        .map_err(|error| not_started(command, &error))?;
    match watch(what, &mut child, limit).at(&log)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => {
            let last = last_line(&log).unwrap_or_else(|| ending(status));
            Err(Failure::Logged { sentence: format!("could not {what} ({last})"), log })
        }
        None => {
            let seconds = limit.unwrap_or_default().as_secs();
            Err(Failure::Logged { sentence: format!("could not {what} within {seconds} s"), log })
        }
    }
}

/// The standard output of a program that ends well; `None` otherwise.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[allow(
    clippy::disallowed_methods,
    reason = "the executor's clock is not for this crate, which waits for programs"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Milliseconds since 1970, as messages carry them.
#[allow(clippy::disallowed_methods, reason = "the rule is for the executor, whose clock tests can turn")]
pub(crate) fn now_ms() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_millis()
}

/// Waits for the end; `None` when the limit came first and the program was ended.
fn watch(what: &str, child: &mut Child, limit: Option<Duration>) -> io::Result<Option<ExitStatus>> {
    let started = now();
    let terminal = io::stderr().is_terminal();
    if !terminal {
        progress("Going to", what);
    }
    let ended = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        let elapsed = started.elapsed();
        if limit.is_some_and(|limit| elapsed >= limit) {
            child.kill()?;
            child.wait()?;
            break None;
        }
        if terminal && elapsed.as_secs() >= 1 {
            eprint!("\r\x1b[K{} {what}, {} s", verb("Going to"), elapsed.as_secs());
            io::stderr().flush()?;
        }
        thread::sleep(GLANCE);
    };
    if terminal {
        eprint!("\r\x1b[K");
    }
    Ok(ended)
}

fn not_started(command: &Command, error: &io::Error) -> Failure {
    Failure::Missing(format!("could not start `{}`: {error}", command.get_program().to_string_lossy()))
}

/// The end of a program that did not end well.
pub(crate) fn ending(status: ExitStatus) -> String {
    status.code().map_or_else(|| "it was ended by a signal".to_owned(), |code| format!("exit code {code}"))
}

fn last_line(log: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&fs::read(log).ok()?).into_owned();
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// One line about what is being done, in the manner of cargo.
pub(crate) fn progress(word: &str, text: &str) {
    eprintln!("{} {text}", verb(word));
}

/// One line about what went wrong.
pub(crate) fn complain(sentence: &str) {
    eprintln!("{}: {sentence}", painted("error", "1;31"));
}

fn verb(word: &str) -> String {
    painted(&format!("{word:>12}"), "1;32")
}

fn painted(text: &str, style: &str) -> String {
    let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = env::var_os("TERM").is_some_and(|value| value == "dumb");
    if unwanted || dumb || !io::stderr().is_terminal() {
        return text.to_owned();
    }
    format!("\x1b[{style}m{text}\x1b[0m")
}
