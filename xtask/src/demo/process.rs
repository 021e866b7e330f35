//! A process of the demo: started, waited for until it listens, and always ended and reaped.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::run::{self, AtPath, Failure};

/// How long a process may take until it listens; the executor compiles its catalogue the first time.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How often its log is looked at until then.
const GLANCE: Duration = Duration::from_millis(20);

/// A running process that listens. Its standard error is in its log.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) name: &'static str,
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

/// Ends and reaps a child on every way out.
struct Reaped(Option<Child>);

impl Process {
    /// Starts a program and waits until it says where it listens, and then until it says `ready`.
    ///
    /// # Errors
    /// When it does not start, ends, or does not listen in time.
    pub(super) fn start(
        name: &'static str,
        mut command: Command,
        log: &Path,
        ready: &str,
    ) -> Result<Self, Failure> {
        let file = File::create(log).at(log)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child = command
            .spawn()
            .map_err(|error| Failure::Program(format!("the {name} could not be started: {error}")))?;
        let mut reaped = Reaped(Some(child));
        let failed =
            |how: &str| Failure::Logged { sentence: format!("the {name} {how}"), log: log.to_owned() };
        let began = run::now();
        let address = loop {
            let text = fs::read_to_string(log).at(log)?;
            if let Some(address) = listens_on(&text).filter(|_| text.contains(ready)) {
                break address;
            }
            let ended = reaped.0.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                return Err(failed(&format!("ended before it listened ({status})")));
            }
            if began.elapsed() >= START_LIMIT {
                return Err(failed(&format!("did not listen within {} s", START_LIMIT.as_secs())));
            }
            thread::sleep(GLANCE);
        };
        match reaped.0.take() {
            Some(child) => Ok(Self { name, child, address, log: log.to_owned() }),
            None => Err(failed("is gone")),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// # Errors
    /// When it has ended, which it never should by itself.
    pub(super) fn check_alive(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Failure::Logged {
                sentence: format!("the {} ended during the demo ({status})", self.name),
                log: self.log.clone(),
            }),
            Err(error) => Err(Failure::Program(format!("the {} is lost: {error}", self.name))),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            end(child);
        }
    }
}

/// Both calls fail only for a child that has ended and was reaped.
fn end(child: &mut Child) {
    let _ended_already = child.kill();
    let _reaped_already = child.wait();
}

/// The address in `… listens on http://ADDRESS/jsonrpc…`, once the line is complete.
fn listens_on(log: &str) -> Option<SocketAddr> {
    let complete = log.rsplit_once('\n')?.0;
    complete.lines().find_map(|line| {
        let (_, rest) = line.split_once(" listens on http://")?;
        rest.split_once("/jsonrpc")?.0.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_a_complete_line() {
        let log = "INFO ready\na2g-executor listens on http://127.0.0.1:80/jsonrpc with 9 tools\n";
        assert_eq!(listens_on(log), Some(([127, 0, 0, 1], 80).into()));
        assert_eq!(listens_on(log.trim_end()), None);
    }

    #[test]
    fn a_program_that_ends_is_no_process() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo broken >&2; exit 3"]);
        let failure = Process::start("executor", command, &folder.path().join("log"), "").unwrap_err();
        assert!(failure.to_string().contains("ended before it listened"), "{failure}");
    }
}
