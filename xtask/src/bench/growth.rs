//! `bench growth`: how the time of a small call grows with what an executor has: runs beside it, receipts, tools, agents,
//! waiting intents, other nodes.
//!
//! All sizes of one kind run at the same time and are called in turn, so that a change of the machine or of its disk
//! concerns each of them alike.

mod connection;
mod page;
mod place;

use std::path::PathBuf;

use anyhow::Result;

use super::markdown::show_reason;
use super::plot::Scale;
use super::{describe_machine, markdown, percentile, plot};
use crate::run::{self, Workspace};
use place::Place;

/// The calls of each size.
const CALLS: usize = 1000;
const QUICK_CALLS: usize = 20;
/// The calls to one executor before the next one has its turn.
const IN_TURN: usize = 10;
/// The sizes of each kind with `--quick`, from the smallest.
const QUICK_SIZES: usize = 2;
/// The default of `--journal-receipts`. Each receipt is that of a call, so many more take long.
const MAX_RECEIPTS: usize = 100_000;
/// The goal for the ratio of a median to that of the smallest size.
const MAX_RATIO: f64 = 1.2;

pub(crate) struct Options {
    only: Option<&'static str>,
    calls: usize,
    /// The maximum number of sizes of each kind.
    sizes: usize,
    /// A program that is measured instead of one that is built from these sources.
    executor: Option<PathBuf>,
    max_receipts: usize,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        match words {
            [] => Ok(Self {
                only: None,
                calls: CALLS,
                sizes: usize::MAX,
                executor: None,
                max_receipts: MAX_RECEIPTS,
            }),
            ["--quick", rest @ ..] => {
                Ok(Self { calls: QUICK_CALLS, sizes: QUICK_SIZES, ..Self::parse(rest)? })
            }
            ["--only", name, rest @ ..] if let Some(kind) = KINDS.iter().find(|kind| kind.name == *name) => {
                Ok(Self { only: Some(kind.name), ..Self::parse(rest)? })
            }
            ["--executor", path, rest @ ..] => {
                Ok(Self { executor: Some(PathBuf::from(path)), ..Self::parse(rest)? })
            }
            ["--journal-receipts", count, rest @ ..] if let Ok(max_receipts @ 1..) = count.parse() => {
                Ok(Self { max_receipts, ..Self::parse(rest)? })
            }
            _ => {
                let words = words.join(" ");
                let names = KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
                Err(format!(
                    "`bench growth` takes --quick, --only NAME, --executor PATH and --journal-receipts COUNT, not \
                     `{words}`; the names are {names}"
                ))
            }
        }
    }

    /// Only all kinds with all calls are written to the page.
    fn is_for_the_page(&self) -> bool {
        self.only.is_none()
            && self.calls == CALLS
            && self.executor.is_none()
            && self.max_receipts >= MAX_RECEIPTS
    }
}

/// A thing that an executor has more or less of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Growing {
    Runs,
    Receipts,
    Tools,
    Agents,
    Waiting,
    Nodes,
}

struct Kind {
    growing: Growing,
    /// The name for `--only`, and of the plot.
    name: &'static str,
    title: &'static str,
    /// From the smallest.
    sizes: &'static [usize],
}

/// All that is measured, in the order of the table.
static KINDS: [Kind; 6] = [
    Kind {
        growing: Growing::Runs,
        name: "runs",
        title: "Sleeping runs beside it",
        sizes: &[1, 10, 100, 1000],
    },
    Kind {
        growing: Growing::Receipts,
        name: "journal",
        title: "Receipts in the journal",
        sizes: &[1000, 10_000, 100_000, 1_000_000, 10_000_000],
    },
    Kind {
        growing: Growing::Tools,
        name: "catalogue",
        title: "Tools in the catalogue",
        sizes: &[10, 100, 1000],
    },
    Kind {
        growing: Growing::Agents,
        name: "agents",
        title: "Agents that have called",
        sizes: &[1, 100, 10_000],
    },
    Kind {
        growing: Growing::Waiting,
        name: "waiting",
        title: "Waiting intents",
        sizes: &[0, 10, 100, 1000, 10_000],
    },
    Kind { growing: Growing::Nodes, name: "nodes", title: "Nodes of the fleet", sizes: &[1, 2, 4] },
];

/// A size of a kind.
struct Row {
    kind: &'static Kind,
    size: usize,
    /// The times of the calls in µs, the shortest first, or why there are none.
    outcome: Result<Vec<f64>, String>,
}

impl Row {
    fn percentile(&self, percent: usize) -> Option<f64> {
        Some(percentile(self.outcome.as_ref().ok()?, percent))
    }

    /// The median, compared with that of the smallest measured size of the same kind.
    fn ratio(&self, rows: &[Self]) -> Option<f64> {
        let is_same = |other: &&Self| other.kind.growing == self.kind.growing;
        let smallest = rows.iter().filter(is_same).find_map(|other| other.percentile(50))?;
        Some(self.percentile(50)? / smallest)
    }
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let place = Place::prepare(workspace, options.executor.as_deref(), options.max_receipts)?;
    let is_wanted = |kind: &&Kind| options.only.is_none_or(|only| only == kind.name);
    let kinds = KINDS.iter().filter(is_wanted).collect::<Vec<_>>();
    let rows = kinds.iter().flat_map(|&kind| measure(&place, kind, options)).collect::<Vec<_>>();
    let machine = describe_machine()?;
    let calls = options.calls;
    let block = page::render(&format!("{machine}: {calls} calls of each size."), &kinds, &rows);
    let docs = if options.is_for_the_page() { workspace.root.join("docs") } else { place.folder.clone() };
    let plots = kinds.iter().map(|kind| {
        let plot = plot::draw(kind.title, &page::bars(kind, &rows), Scale::FromZero);
        (page::plot_name(kind), plot)
    });
    markdown::publish(workspace, &docs, "growth", &block, plots)
}

/// Starts an executor for each size, and calls them in turn.
fn measure(place: &Place<'_>, kind: &'static Kind, options: &Options) -> Vec<Row> {
    let sizes = kind.sizes.iter().take(options.sizes);
    let started = sizes.map(|&size| {
        run::progress("Size", &format!("{}: {size}", kind.title));
        (size, place.start(kind, size).map_err(|error| show_reason(&error)))
    });
    let mut subjects = started.collect::<Vec<_>>();
    for _ in 0..options.calls.div_ceil(IN_TURN) {
        for (_, subject) in &mut subjects {
            if let Ok(started) = subject
                && let Err(error) = started.time_calls(IN_TURN)
            {
                *subject = Err(show_reason(&error));
            }
        }
    }
    let rows = subjects.into_iter().map(|(size, subject)| {
        let outcome = subject.and_then(|executor| executor.end().map_err(|error| show_reason(&error)));
        if let Err(reason) = &outcome {
            run::progress("Without", &format!("{}: {size}: {reason}", kind.title));
        }
        Row { kind, size, outcome }
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn row(kind: usize, size: usize, outcome: Result<Vec<f64>, &str>) -> Row {
        Row { kind: &KINDS[kind], size, outcome: outcome.map_err(str::to_owned) }
    }

    #[test]
    fn a_ratio_compares_with_the_smallest_measured_size_of_the_same_kind() {
        let rows = [
            row(0, 1, Ok(vec![5.0])),
            row(1, 1000, Err("it did not start")),
            row(1, 10_000, Ok(vec![1.0, 2.0, 9.0])),
            row(1, 100_000, Ok(vec![3.0])),
        ];
        assert_eq!(rows.each_ref().map(|row| row.ratio(&rows)), [Some(1.0), None, Some(1.0), Some(1.5)]);
    }

    #[test]
    fn every_name_can_be_chosen_and_sizes_grow() {
        for kind in &KINDS {
            assert!(Options::parse(&["--only", kind.name, "--journal-receipts", "1000"]).is_ok());
            assert!(kind.sizes.is_sorted());
        }
        let is_for_the_page = |words: &[&str]| Options::parse(words).unwrap().is_for_the_page();
        assert!(is_for_the_page(&[]));
        assert!(is_for_the_page(&["--journal-receipts", "1000000"]));
        assert!(!is_for_the_page(&["--quick"]));
        assert!(!is_for_the_page(&["--journal-receipts", "1000"]));
    }
}
