//! `bench`: measures the executor, beside plain wasmtime and the kernel. Every printed figure is measured.

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::run::{self, UNLIMITED, Workspace};
use crate::{test, tools};

pub(crate) const HELP: &str = "\
Measure the executor.

Usage: cargo xtask bench [PART]

It builds the tools and the executor, and prints the table of the benchmark:
  sandbox      a run, beside the same run on plain wasmtime
  doors        calls of A2G to the executor in both isolations, beside a fork,
               and beside ten open pages of the console
  journal      calls with the journal on disk, on a RAM disk, and without it
  protocols    the cost that each other protocol adds to a call over A2G
  code         programs in JavaScript and Python, and the calls that they make
  subscribers  the memory of a thousand idle streams and WebSockets
  memory       the growth of the server over 10,000 runs, 200 sleeping runs, and
               its peak and its slowest /health in all hostile tests";

pub(crate) const PARTS: [&str; 7] =
    ["sandbox", "doors", "journal", "protocols", "code", "subscribers", "memory"];

/// The command `bench`. The benchmark is built in the profile of the tests, so that wasmtime is built only once.
pub(crate) fn run(workspace: &Workspace, part: Option<&str>) -> Result<()> {
    const BENCH: [&str; 8] =
        ["bench", "--locked", "--profile", "dev", "-p", "a2g-executor", "--bench", "overhead"];
    tools::build_with_executor(workspace)?;
    tools::compile("the benchmark", workspace.cargo(&BENCH).arg("--no-run"))?;
    let arguments = part.map(|part| ["--", part]).into_iter().flatten();
    run::show("run the benchmark", workspace.cargo(&BENCH).args(arguments))?;
    if matches!(part, None | Some("memory")) { measure_hostile_tests(workspace) } else { Ok(()) }
}

/// Runs the hostile tests one after another, and prints the largest figures of their servers.
fn measure_hostile_tests(workspace: &Workspace) -> Result<()> {
    let figures = workspace.state().join("hostile-figures");
    fs::create_dir_all(workspace.state())?;
    fs::write(&figures, "")?;
    let mut cargo = test::executor_tests(workspace, "hostile", &["--test-threads=1"]);
    cargo.env("A2G_HOSTILE_FIGURES", &figures);
    run::log(workspace, "run the hostile tests", &mut cargo, UNLIMITED)?;
    let text = fs::read_to_string(&figures)?;
    let largest = |column: usize| {
        let numbers = text.lines().filter_map(|line| line.split(' ').nth(column)?.parse::<u64>().ok());
        numbers.max().context("the hostile tests wrote no figures")
    };
    anstream::println!("\n{:<58} {:>8} {:>14}", "(h) the hostile tests, one after another", "", "goal");
    // The goals of SPECIFICATION.md.
    for (what, figure, goal) in [
        ("the peak memory of a server, in MB", largest(0)? >> 10, 150),
        ("the slowest /health beside a case, in ms", largest(1)? / 1000, 100),
    ] {
        let missed = if figure <= goal { "" } else { ", missed" };
        anstream::println!("{what:<58} {figure:>8} {:>14}", format!("{goal}{missed}"));
    }
    Ok(())
}
