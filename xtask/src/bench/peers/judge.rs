//! Deciding whether a peer keeps a limit, from what a program of its script came to.

use std::io::Write as _;
use std::net::TcpListener;

use anyhow::Result;
use fs_err as fs;
use serde_json::Value;

use super::Peer;
use super::install::Place;
use super::script::{self, Failure};

/// One thing that a sandbox may keep.
pub(super) struct Check {
    pub(super) title: &'static str,
    /// The setting that has to be there to try it; none for what a sandbox keeps without being told.
    pub(super) setting: Option<&'static str>,
    action: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Memory,
    Time,
    CpuRate,
    Files,
    Network,
    Record,
}

/// The checks, one for each column of the table.
pub(super) const CHECKS: [Check; 6] = [
    Check { title: "memory limit", setting: Some("memory"), action: "allocate", kind: Kind::Memory },
    Check { title: "time limit", setting: Some("time"), action: "loop", kind: Kind::Time },
    Check { title: "CPU rate", setting: Some("cpu"), action: "throttle", kind: Kind::CpuRate },
    Check { title: "files", setting: None, action: "read", kind: Kind::Files },
    Check { title: "network", setting: None, action: "connect", kind: Kind::Network },
    Check { title: "a record", setting: Some("record"), action: "record", kind: Kind::Record },
];

/// The time in which a program with a limit of one second has to end, in seconds. Before, something else ended it.
const SECONDS: std::ops::RangeInclusive<f64> = 0.5..=5.0;
/// The share of a core that a program with a limit of 10 % may take, with its host, and at least takes if it ran.
const CPU_SHARES: std::ops::RangeInclusive<f64> = 0.02..=0.15;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Kept,
    NotKept(&'static str),
    /// There is nothing to set, and a program had more than the limit.
    NoSetting,
    /// There is nothing to set, and the program was stopped all the same.
    KeptUnset,
    /// Even an empty program does not run under the limit.
    NotTried,
}

impl Verdict {
    pub(super) fn show(&self) -> String {
        match self {
            Self::Kept => "yes".to_owned(),
            Self::NotKept(reason) => format!("no ({reason})"),
            Self::NoSetting => "no (no setting)".to_owned(),
            Self::KeptUnset => "yes (no setting)".to_owned(),
            Self::NotTried => "– (nothing runs)".to_owned(),
        }
    }

    /// The verdict on a peer that has no setting for the limit that was tried.
    fn without_setting(self) -> Self {
        match self {
            Self::Kept | Self::KeptUnset => Self::KeptUnset,
            Self::NotKept(_) | Self::NoSetting => Self::NoSetting,
            Self::NotTried => Self::NotTried,
        }
    }
}

/// Tries to break a limit, and writes the verdict below the log of the attempt.
pub(super) fn attempt(place: &Place, peer: &Peer, check: &Check) -> Result<Verdict> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port().to_string();
    let words = ["attempt", check.action, &port];
    let attempted = script::attempt(place, peer, &words)?;
    let is_connected = listener.accept().is_ok();
    let users = fs::read_to_string("/etc/passwd")?;
    let secret = users.lines().next().unwrap_or_default();
    let verdict = decide(check.kind, &attempted, is_connected, secret);
    let mut log = fs::OpenOptions::new().append(true).open(script::log(place, peer, &words))?;
    writeln!(log, "verdict on {}: {}", check.title, verdict.show())?;
    Ok(verdict)
}

/// Tries to break a limit that a peer has no setting for. A record that no script can look for is not tried.
pub(super) fn attempt_unset(place: &Place, peer: &Peer, check: &Check) -> Result<Verdict> {
    match check.kind {
        Kind::Record => Ok(Verdict::NoSetting),
        Kind::Memory | Kind::Time | Kind::CpuRate | Kind::Files | Kind::Network => {
            Ok(attempt(place, peer, check)?.without_setting())
        }
    }
}

fn decide(kind: Kind, attempted: &Result<Value, Failure>, is_connected: bool, secret: &str) -> Verdict {
    let result = match attempted {
        Ok(result) => result,
        Err(Failure::StillRan) => return Verdict::NotKept("it went on"),
        Err(Failure::Ended(_)) => return Verdict::NotKept("it ended its host"),
    };
    if result.get("runs_nothing").is_some() {
        return Verdict::NotTried;
    }
    let output = result.get("output").and_then(Value::as_str).unwrap_or_default();
    let number = |name: &str| result.get(name).and_then(Value::as_f64);
    let not_kept = match kind {
        Kind::Memory => output.contains("allocated").then_some("it got 1 GB"),
        Kind::Time => match number("seconds") {
            Some(took) if SECONDS.contains(&took) => None,
            Some(took) if took < *SECONDS.start() => Some("it ended before"),
            Some(_) | None => Some("it went on"),
        },
        Kind::CpuRate => {
            let is_kept = number("cpu").is_some_and(|share| CPU_SHARES.contains(&share));
            (!is_kept).then_some("it took another share")
        }
        Kind::Files => output.contains(secret).then_some("it read the file"),
        Kind::Network => is_connected.then_some("it connected"),
        Kind::Record => output.trim().is_empty().then_some("there is none"),
    };
    not_kept.map_or(Verdict::Kept, Verdict::NotKept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_limit_is_kept_only_if_the_attempt_failed() {
        let secret = "root:x:0:0";
        let ended = || Err(Failure::Ended("signal 6".to_owned()));
        let kept = [
            (Kind::Memory, json!({ "output": "", "error": "out of memory" })),
            (Kind::Time, json!({ "error": "timeout", "seconds": 1.1 })),
            (Kind::CpuRate, json!({ "cpu": 0.1 })),
            (Kind::Files, json!({ "output": "{\"read\":\"nobody\"}" })),
            (Kind::Network, json!({ "output": "" })),
            (Kind::Record, json!({ "output": "SUCCESS" })),
        ];
        for (kind, attempted) in kept {
            assert_eq!(decide(kind, &Ok(attempted), false, secret), Verdict::Kept);
            assert_eq!(decide(kind, &ended(), false, secret), Verdict::NotKept("it ended its host"));
            assert_eq!(decide(kind, &Ok(json!({ "runs_nothing": "" })), false, secret), Verdict::NotTried);
        }
        let not_kept = [
            (Kind::Memory, json!({ "output": "{\"allocated\":1024}" })),
            (Kind::Time, json!({ "seconds": 9.0 })),
            (Kind::Time, json!({ "seconds": 0.1 })),
            (Kind::CpuRate, json!({ "cpu": 1.0 })),
            (Kind::CpuRate, json!({ "cpu": 0.0 })),
            (Kind::Files, json!({ "output": "root:x:0:0:root" })),
            (Kind::Network, json!({ "output": "" })),
            (Kind::Record, json!({ "output": "\n" })),
        ];
        for (kind, attempted) in not_kept {
            let verdict = decide(kind, &Ok(attempted), true, secret);
            assert!(matches!(verdict, Verdict::NotKept(_)), "{verdict:?}");
        }
        assert_eq!(
            decide(Kind::Time, &Err(Failure::StillRan), false, secret),
            Verdict::NotKept("it went on")
        );
    }

    #[test]
    fn a_limit_that_cannot_be_set_is_named_as_such_whatever_came_of_the_attempt() {
        for (verdict, shown) in [
            (Verdict::Kept, "yes (no setting)"),
            (Verdict::NotKept("it got 1 GB"), "no (no setting)"),
            (Verdict::NotTried, "– (nothing runs)"),
        ] {
            assert_eq!(verdict.without_setting().show(), shown);
        }
    }
}
