//! Starting the scripts of the peers, and reading the memory of all that they start.

use std::fmt;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use fs_err as fs;
use serde_json::{Value, json};

use super::Peer;
use super::install::Place;
use crate::run;

/// The maximum time of a measurement: the calls of 25 seconds, and the slowest start, which compiles 100 MB.
const MAX_MEASUREMENT: Duration = Duration::from_secs(600);
/// The maximum time of an attempt, of which each has a limit of 10 seconds.
const MAX_ATTEMPT: Duration = Duration::from_secs(40);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The reason why a script printed no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It was killed at its time limit.
    StillRan,
    /// Its end, and its last line.
    Ended(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StillRan => formatter.write_str("the script was killed, because it still ran"),
            Self::Ended(how) => write!(formatter, "the script failed: {how}"),
        }
    }
}

impl std::error::Error for Failure {}

/// Runs a script to its end, and returns what it prints.
pub(super) fn run(place: &Place, peer: &Peer, words: &[&str]) -> Result<Value> {
    Ok(run_watched(place, peer, words, MAX_MEASUREMENT, |_| {})??)
}

/// Runs a script that attempts something. It first prints that another program runs under the same limits.
pub(super) fn attempt(place: &Place, peer: &Peer, words: &[&str]) -> Result<Result<Value, Failure>> {
    let attempted = run_watched(place, peer, words, MAX_ATTEMPT, |_| {})?;
    let is_begun = fs::read_to_string(log(place, peer, words))?.contains("\"control\":");
    Ok(match attempted {
        Err(failure) if !is_begun => Ok(json!({ "runs_nothing": failure.to_string() })),
        Ok(_) | Err(_) => attempted,
    })
}

/// Runs a script to its end, and returns the most memory that it and all below it had at a time, in KiB.
pub(super) fn read_peak(place: &Place, peer: &Peer, words: &[&str]) -> Result<u64> {
    let mut peak = 0;
    run_watched(place, peer, words, MAX_MEASUREMENT, |script| peak = peak.max(read_memory(script)))??;
    Ok(peak)
}

/// The log of a script.
pub(super) fn log(place: &Place, peer: &Peer, words: &[&str]) -> std::path::PathBuf {
    let name = format!("{} {}", peer.label(), words.iter().take(2).copied().collect::<Vec<_>>().join(" "));
    place.logs().join(name.replace(", ", "-").replace(' ', "-")).with_extension("log")
}

fn run_watched(
    place: &Place,
    peer: &Peer,
    words: &[&str],
    limit: Duration,
    mut watch: impl FnMut(u32),
) -> Result<Result<Value, Failure>> {
    fs::create_dir_all(place.logs())?;
    let path = log(place, peer, words);
    let output = fs::File::create(&path)?.into_parts().0;
    let mut command = place.command(peer)?;
    command.args(words).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
    let mut child = command.spawn()?;
    let started = run::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if started.elapsed() > limit {
            let group = format!("-{}", child.id());
            Command::new("kill").args(["-KILL", "--", group.as_str()]).status()?;
            child.wait()?;
            break None;
        }
        watch(child.id());
        thread::sleep(POLL_INTERVAL);
    };
    let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
    let Some(status) = status else { return Ok(Err(Failure::StillRan)) };
    let mut results = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let result = results.rfind(|result| result.get("peer").is_some());
    Ok(match result {
        Some(result) if status.success() => Ok(result),
        Some(_) | None => {
            let signal = status.signal().map(|signal| format!("signal {signal}"));
            let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned);
            Err(Failure::Ended(signal.or(last).unwrap_or_else(|| status.to_string())))
        }
    })
}

/// The memory of a process and of all below it, in KiB. Each page that processes share counts once.
fn read_memory(process: u32) -> u64 {
    let mut processes = vec![process];
    let mut next = 0;
    let mut total = 0;
    while let Some(&process) = processes.get(next) {
        let folder = format!("/proc/{process}");
        let rollup = fs::read_to_string(format!("{folder}/smaps_rollup")).unwrap_or_default();
        let share = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
        total +=
            share.and_then(|share| share.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0);
        // A process that has ended has no threads.
        for thread in fs::read_dir(format!("{folder}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            processes.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
        next += 1;
    }
    total
}
