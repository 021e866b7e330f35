//! `bench`: measures the executor against plain wasmtime.
//!
//! It never pretends: whatever it prints has been measured.

use crate::run::{self, AtPath as _, Failure, Workspace};
use crate::{build, setup, test, tools};

pub(crate) const HELP: &str = "\
Measure the executor.

Usage: cargo xtask bench [sandbox|doors|journal|protocols|subscribers|memory]

Sets up, builds the tools and the executor, then runs the benchmark and prints its table:
  sandbox      one run against the same run on plain wasmtime
  doors        whole calls of A2G against the built executor, in both isolations, and a fork by hand
  journal      calls with the journal on the disk, on a RAM disk, and without it, beside an fdatasync
  protocols    what each of the other protocols' doors adds to a call over A2G
  subscribers  the memory that a thousand streams and WebSockets take on which nothing comes
  memory       what the server grows by over 10,000 runs, what 200 runs take that sleep at once, and
               the most that it takes, and the slowest /health, in all hostile tests";

/// What can be measured by itself.
pub(crate) const PARTS: [&str; 6] = ["sandbox", "doors", "journal", "protocols", "subscribers", "memory"];

/// The command itself.
///
/// # Errors
/// When something does not build or the benchmark fails.
pub(crate) fn run(workspace: &Workspace, part: Option<&str>) -> Result<(), Failure> {
    let guests = setup::prepare(workspace)?;
    tools::build(workspace, &guests.toolchain)?;
    measure(workspace, part)
}

/// Builds the executor and the benchmark in the profile of the tests, so that wasmtime is built
/// once, and runs the benchmark.
fn measure(workspace: &Workspace, part: Option<&str>) -> Result<(), Failure> {
    test::build_executor(workspace)?;
    const CHOICE: [&str; 2] = ["-p", "a2g-executor"];
    let bench = || {
        let mut cargo = workspace.cargo();
        cargo.args(["bench", "--locked", "--profile", "dev"]).args(CHOICE).args(["--bench", "overhead"]);
        cargo
    };
    let crates = build::count_crates(workspace.cargo(), &CHOICE, "normal,build,dev");
    build::build("the benchmark", bench().arg("--no-run"), crates)?;
    let mut cargo = bench();
    cargo.args(part.map(|part| ["--", part]).into_iter().flatten());
    run::visibly("run the benchmark", &mut cargo)?;
    match part {
        None | Some("memory") => hostile(workspace),
        Some(_) => Ok(()),
    }
}

/// The most memory that any server of the hostile tests has had, in MB, and the time that its slowest `/health`
/// may have taken beside an attack, in milliseconds.
const HOSTILE_PEAK_GOAL_MB: u64 = 150;
const HOSTILE_HEALTH_GOAL_MS: u64 = 100;

/// Runs the hostile tests, one after the other, and prints what their servers took.
fn hostile(workspace: &Workspace) -> Result<(), Failure> {
    let figures = workspace.notes().join("hostile-figures");
    std::fs::create_dir_all(workspace.notes()).at(&workspace.notes())?;
    std::fs::write(&figures, "").at(&figures)?;
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--locked", "--workspace", "--test", "main", "hostile", "--", "--test-threads=1"]);
    cargo.env("A2G_HOSTILE_FIGURES", &figures);
    run::logged(workspace, "run the hostile tests", &mut cargo, None)?;
    let text = std::fs::read_to_string(&figures).at(&figures)?;
    let columns = text.lines().filter_map(|line| line.split_once(' '));
    let columns = columns.filter_map(|(peak, health)| Some((peak.parse().ok()?, health.parse().ok()?)));
    let (peak, health) =
        columns.fold((0, 0), |(peak, health): (u64, u64), (one, other)| (peak.max(one), health.max(other)));
    let row = |what: &str, figure: u64, goal: u64| {
        let missed = if figure <= goal { "" } else { ", missed" };
        println!("{what:<58} {figure:>8} {:>14}", format!("{goal}{missed}"));
    };
    println!("\n{:<58} {:>8} {:>14}", "(h) the hostile tests, one after the other", "", "goal");
    row("the most memory that a server had, in MB", peak >> 10, HOSTILE_PEAK_GOAL_MB);
    row("the slowest /health beside a case, in ms", health / 1000, HOSTILE_HEALTH_GOAL_MS);
    Ok(())
}
