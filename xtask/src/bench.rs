//! `bench`: measures the executor, beside plain wasmtime and the kernel. Every printed figure is measured.

use std::process::Command;

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::nats::NatsServers;
use crate::run::{self, UNLIMITED, Workspace};
use crate::{setup, test, tools};

pub(crate) const HELP: &str = "\
Measure the executor.

Usage: cargo xtask bench [PART]

It builds the tools and an optimised executor, and prints the benchmark's table:
  sandbox      a run, beside the same run on plain wasmtime
  doors        calls of A2G to the executor in both isolations, beside a fork,
               and beside ten open pages of the console
  journal      calls with the journal on disk, on a RAM disk, and without it
  protocols    the cost that each other protocol adds to a call over A2G
  code         programs in JavaScript and Python, and the calls that they make
  subscribers  the memory of a thousand idle streams and WebSockets
  memory       the growth of the server over 10,000 runs, 200 sleeping runs, and
               its peak and its slowest /health in all hostile tests
  fleet        four nodes of a fleet beside one, the latency that a fleet adds
               to a call, and an idle node; with servers of NATS here, on disk
               and in memory";

pub(crate) const PARTS: [&str; 8] =
    ["sandbox", "doors", "journal", "protocols", "code", "subscribers", "memory", "fleet"];
/// The part that needs servers of NATS.
const FLEET: &str = "fleet";
/// A folder in memory.
const RAM_DISK: &str = "/dev/shm";

/// The command `bench`. The benchmark and the executor that it calls have a profile of their own, which is optimised.
pub(crate) fn run(workspace: &Workspace, part: Option<&str>) -> Result<()> {
    tools::build_with_executor(workspace)?;
    tools::compile("the benchmark", benchmark(workspace).arg("--no-run"))?;
    if part != Some(FLEET) {
        let arguments = part.map(|part| ["--", part]).into_iter().flatten();
        run::show("run the benchmark", benchmark(workspace).args(arguments))?;
    }
    if matches!(part, None | Some("memory")) {
        measure_hostile_tests(workspace)?;
    }
    if matches!(part, None | Some(FLEET)) { measure_fleet(workspace) } else { Ok(()) }
}

fn benchmark(workspace: &Workspace) -> Command {
    workspace.cargo(&["bench", "--locked", "-p", "a2g-executor", "--bench", "overhead"])
}

/// Runs the part of the benchmark that needs servers of NATS. They are started only for it, because they take CPU time.
fn measure_fleet(workspace: &Workspace) -> Result<()> {
    let Some(program) = setup::prepare_nats(workspace)? else {
        anstream::println!("\n(j) a fleet: skipped, because the server of NATS is not installed");
        return Ok(());
    };
    let logs = workspace.state().join("bench");
    fs::create_dir_all(&logs)?;
    // Nodes and servers wait for each other's writes on disk; in memory, they share only the cores.
    for (name, place) in [("on disk", std::env::temp_dir()), ("in memory", RAM_DISK.into())] {
        if !place.is_dir() {
            anstream::println!("\n(j) a fleet {name}: skipped, because there is no {}", place.display());
            continue;
        }
        let [one, three] = [1, 3].map(|count| NatsServers::start_in(&place, &program, count, &logs));
        let (one, three) = (one?, three?);
        let mut fleet = benchmark(workspace);
        fleet.env("A2G_NATS_ONE", one.urls().join(",")).env("A2G_NATS_THREE", three.urls().join(","));
        fleet.env("TMPDIR", &place).env("A2G_BENCH_PLACE", name);
        run::show("run the benchmark", fleet.args(["--", FLEET]))?;
    }
    Ok(())
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
