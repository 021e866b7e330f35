//! Building with cargo, so that whoever waits sees how far it is.
//!
//! On a terminal cargo shows it. Elsewhere, such as in the log of continuous integration, a line says it every
//! [`EVERY`], and what the compiler has to say stands between these lines.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::run::{self, Failure};

/// The time between two lines about the progress of a build, where there is no terminal.
const EVERY: Duration = Duration::from_secs(30);

/// Builds with a `cargo` that is given its arguments, none of them after a `--`. `what` reads on from "could not
/// build"; `crates` is how many there are, where that is known.
///
/// # Errors
/// When something does not compile; cargo has said what.
pub(crate) fn build(what: &str, cargo: &mut Command, crates: Option<usize>) -> Result<(), Failure> {
    let failed = format!("build {what}");
    if io::stderr().is_terminal() {
        return run::visibly(&failed, cargo);
    }
    cargo.args(["--quiet", "--message-format", "json-render-diagnostics"]).stdout(Stdio::piped());
    let cannot = |error: io::Error| Failure::Program(format!("could not {failed}: {error}"));
    let mut child = cargo.spawn().map_err(cannot)?;
    let mut compiled = Compiled { crates, seen: BTreeSet::new() };
    if let Some(stdout) = child.stdout.take() {
        follow(stdout, EVERY, &mut compiled, |line| run::progress("Compiled", &format!("{line} of {what}")));
    }
    match child.wait().map_err(cannot)? {
        ended if ended.success() => Ok(()),
        ended => Err(Failure::Program(format!("could not {failed}: {}", run::ending(ended)))),
    }
}

/// Counts the crates of a choice of packages, such as `-p a2g-executor`, with these kinds of dependencies.
pub(crate) fn count_crates(mut cargo: Command, choice: &[&str], kinds: &str) -> Option<usize> {
    cargo.args(["tree", "--locked", "--prefix", "none", "--format", "{p}", "--edges", kinds]).args(choice);
    let crates = run::output(&mut cargo)?;
    let names = crates.lines().map(|line| line.trim_end_matches(" (*)").trim_end_matches(" (proc-macro)"));
    Some(names.filter(|name| !name.is_empty()).collect::<BTreeSet<_>>().len())
}

/// A remark for what takes long once, until `made` is there.
pub(crate) fn first_time<'a>(made: &Path, remark: &'a str) -> &'a str {
    if made.exists() { "" } else { remark }
}

/// The crates that a build is done with.
struct Compiled {
    /// All of them.
    crates: Option<usize>,
    seen: BTreeSet<String>,
}

impl Compiled {
    /// Reads one message of cargo.
    fn read(&mut self, message: &str) {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(message) else { return };
        let text = |name| message.get(name).and_then(serde_json::Value::as_str);
        if let (Some("compiler-artifact"), Some(package)) = (text("reason"), text("package_id")) {
            self.seen.insert(package.to_owned());
        }
    }

    fn shown(&self) -> String {
        match self.crates {
            Some(crates) => format!("{} of {} crates", self.seen.len(), crates.max(self.seen.len())),
            None => format!("{} crates", self.seen.len()),
        }
    }
}

/// Reads the messages of cargo to their end, and says how far it is each time that `every` is over.
fn follow(
    messages: impl Read + Send + 'static,
    every: Duration,
    compiled: &mut Compiled,
    mut say: impl FnMut(&str),
) {
    let (read, lines) = mpsc::channel();
    thread::spawn(move || {
        BufReader::new(messages).lines().map_while(Result::ok).try_for_each(|line| read.send(line))
    });
    let mut next = run::now() + every;
    loop {
        match lines.recv_timeout(next.saturating_duration_since(run::now())) {
            Ok(line) => compiled.read(&line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if run::now() >= next {
            say(&compiled.shown());
            next = run::now() + every;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"{"reason":"compiler-artifact","package_id":"registry+x#one@1.0.0"}
{"reason":"build-script-executed","package_id":"registry+x#two@1.0.0"}
{"reason":"compiler-artifact","package_id":"registry+x#two@1.0.0"}
{"reason":"compiler-artifact","package_id":"registry+x#two@1.0.0"}
not JSON
{"reason":"build-finished","success":true}"#;

    fn said(crates: Option<usize>, every: Duration) -> Vec<String> {
        let (mut compiled, mut said) = (Compiled { crates, seen: BTreeSet::new() }, Vec::new());
        follow(io::Cursor::new(MESSAGES), every, &mut compiled, |line| said.push(line.to_owned()));
        said.push(compiled.shown());
        said.dedup();
        said
    }

    #[test]
    fn each_crate_is_counted_once_when_it_is_compiled() {
        let lines = ["0 of 3 crates", "1 of 3 crates", "2 of 3 crates"];
        let all = said(Some(3), Duration::ZERO);
        assert!(all.iter().all(|line| lines.contains(&line.as_str())), "{all:?}");
        assert_eq!(all.last().map(String::as_str), Some("2 of 3 crates"));
        // More than were expected are no fewer than all.
        assert_eq!(said(Some(1), Duration::from_secs(3600)), ["2 of 2 crates"]);
        assert_eq!(said(None, Duration::from_secs(3600)), ["2 crates"]);
    }

    #[test]
    fn the_crates_of_a_package_are_known_before_they_are_compiled() {
        let cargo = || {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
            cargo
        };
        let crates = count_crates(cargo(), &["-p", "xtask"], "normal,build").unwrap();
        assert!((5..100).contains(&crates), "{crates}");
        assert_eq!(count_crates(cargo(), &["-p", "no-such-package"], "normal,build"), None);
    }

    #[test]
    fn a_remark_about_the_first_time_is_for_the_first_time() {
        assert_eq!(first_time(Path::new("/no/such/file"), " (once)"), " (once)");
        assert_eq!(first_time(Path::new(env!("CARGO_MANIFEST_DIR")), " (once)"), "");
    }
}
