//! `bench`: measures the executor, beside plain wasmtime and the kernel. Every printed figure is measured.

pub(crate) mod growth;
mod markdown;
pub(crate) mod peers;
mod plot;

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use fs_err as fs;

use crate::nats::NatsServers;
use crate::run::{self, UNLIMITED, Workspace};
use crate::{setup, test, tools};

pub(crate) const HELP: &str = "\
Measure the executor.

Usage: cargo xtask bench [PART]
       cargo xtask bench peers [--only NAME] [--quick] [--executor PATH]
       cargo xtask bench growth [--only NAME] [--quick] [--executor PATH]
                                [--journal-receipts COUNT]

It builds the tools and an optimised executor, and prints the benchmark's table:
  sandbox      a run, beside the same run on plain wasmtime; and the bytes in a
               second that are searched for the values of secrets
  doors        calls of A2G to the executor in both isolations, beside a fork,
               and beside ten open pages of the console
  journal      calls with the journal on disk, on a RAM disk, and without it,
               and the appends of a call beside a prune of 300,000 receipts
  protocols    the cost that each other protocol adds to a call over A2G
  code         programs in JavaScript and Python, also as turns of a session,
               and the calls that they make; science Python beside the runner of
               its packages, and beside other ways to run Python, which it
               installs from PyPI
  subscribers  the memory of a thousand idle streams and WebSockets
  memory       the growth of the server over 10,000 runs, 200 sleeping runs,
               its peak and its slowest /health in all hostile tests, and its
               peak while four agents send and read nothing
  effects      a run whose file changes wait beside the same run without that,
               its copy of a large file beside `cp`, and the commit and the
               undo of 100 files
  policy       a decision by policies in Cedar with 10, 100 and 1,000 rules, the
               facts that rules read after up to 1,000,000 calls, and 100,000
               calls decided again
  secrets      a request with a secret beside the same one without it, and a
               call of an MCP server through a tool beside the same call of a
               plain client and a run that does nothing
  fleet        four nodes of a fleet beside one, the latency that a fleet adds
               to a call, and an idle node; with servers of NATS here, on disk
               and in memory

`bench peers` and `bench growth` are apart; they write docs/benchmarks.md.
The first installs other sandboxes from PyPI, npm and Debian, and runs the same
tasks in them and in the executor. The second times a small call at executors
with more and more sleeping runs, receipts, tools, agents, waiting intents or
nodes; it makes as many receipts as COUNT allows, 100,000 by default.
With --only NAME, they measure one of them; with --quick, they make 20 calls
instead of 1000, and the second takes two sizes; with --executor PATH, they
measure that program, and build none. Each of these leaves the page as it is,
and writes one below target/xtask/peers/ or target/xtask/growth/.";

pub(crate) const PARTS: [&str; 11] = [
    "sandbox",
    "doors",
    "journal",
    "protocols",
    "code",
    "subscribers",
    "memory",
    "effects",
    "policy",
    "secrets",
    "fleet",
];
/// The part that needs servers of NATS.
const FLEET: &str = "fleet";
/// A folder in memory.
const RAM_DISK: &str = "/dev/shm";

/// The command `bench`. The benchmark and the executor that it calls have a profile of their own, which is optimised.
pub(crate) fn run(workspace: &Workspace, part: Option<&str>) -> Result<()> {
    tools::build_with_executor(workspace)?;
    tools::compile(workspace, "the benchmark", benchmark(workspace).arg("--no-run"))?;
    if part != Some(FLEET) {
        let arguments = part.map(|part| ["--", part]).into_iter().flatten();
        let mut measured = benchmark(workspace);
        if matches!(part, None | Some("secrets")) {
            measured.env("A2G_BENCH_API", build_api(workspace)?);
        }
        run::show("run the benchmark", measured.args(arguments))?;
    }
    if matches!(part, None | Some("code")) {
        peers::science::measure(workspace)?;
    }
    if matches!(part, None | Some("memory")) {
        measure_servers_of_tests(workspace)?;
    }
    if matches!(part, None | Some(FLEET)) { measure_fleet(workspace) } else { Ok(()) }
}

fn benchmark(workspace: &Workspace) -> Command {
    workspace.cargo(&["bench", "--locked", "-p", "a2g-executor", "--bench", "overhead"])
}

/// Builds the executor that `bench` measures, with the profile of the benchmark.
fn build_executor(workspace: &Workspace) -> Result<()> {
    let arguments = ["build", "--locked", "--profile", "bench", "-p", "a2g-executor"];
    tools::compile(workspace, "the executor", &mut workspace.cargo(&arguments))
}

/// Builds the API of the demo with the profile of the benchmark, and gives its path.
fn build_api(workspace: &Workspace) -> Result<PathBuf> {
    let arguments = ["build", "--locked", "--profile", "bench", "-p", "xtask", "--features", "api"];
    let mut build = workspace.cargo(&arguments);
    tools::compile(workspace, "the API of the demo", build.args(["--bin", "orders_api"]))?;
    Ok(optimised_executor(workspace).with_file_name("orders_api"))
}

/// The program that [`build_executor`] builds.
fn optimised_executor(workspace: &Workspace) -> PathBuf {
    workspace.target.join("release/a2g-executor")
}

/// The time within which `percent` of the calls end. The shortest time is first; without any, it is 0.
fn percentile(times: &[f64], percent: usize) -> f64 {
    let rank = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(rank).copied().unwrap_or_default()
}

/// The beginning of a sentence about the date and this machine, for the page.
fn describe_machine() -> Result<String> {
    let lookup = |file: &str, name: &str| -> Result<String> {
        let text = fs::read_to_string(file)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
        Ok(line.unwrap_or("unknown").trim().to_owned())
    };
    let processor = lookup("/proc/cpuinfo", "model name")?;
    let memory = lookup("/proc/meminfo", "MemTotal")?.trim_end_matches(" kB").parse::<u64>()? >> 20;
    let cores = std::thread::available_parallelism()?;
    let [date, kernel] = [("date", "+%F"), ("uname", "-sr")]
        .map(|(program, argument)| run::capture(Command::new(program).arg(argument)));
    Ok(format!(
        "Measured on {} with {cores} cores of {processor}, {memory} GiB of memory, {}",
        date?, kernel?
    ))
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
        let one = one?;
        let three = three?;
        let mut fleet = benchmark(workspace);
        fleet.env("A2G_NATS_ONE", one.urls().join(",")).env("A2G_NATS_THREE", three.urls().join(","));
        fleet.env("TMPDIR", &place).env("A2G_BENCH_PLACE", name);
        run::show("run the benchmark", fleet.args(["--", FLEET]))?;
    }
    Ok(())
}

/// Runs the hostile tests and the test of four agents, and prints the largest figures of their servers.
fn measure_servers_of_tests(workspace: &Workspace) -> Result<()> {
    let hostile = test::executor_tests(workspace, &["sandbox"], "hostile", &["--test-threads=1"]);
    let hostile = read_figures(workspace, "run the hostile tests", hostile)?;
    let mut agents = test::executor_tests(workspace, &["programs"], "budget::four_agents", &[]);
    // The pages of the program count in its peak, so this server is the optimised one.
    agents.env("A2G_TEST_PROGRAM", workspace.target.join("release").join("a2g-executor"));
    let agents = read_figures(workspace, "run the test of four agents", agents)?;
    anstream::println!("\n{:<58} {:>8} {:>14}", "(h) servers of the tests, one after another", "", "goal");
    // The goals of SPECIFICATION.md.
    for (what, figure, goal) in [
        ("hostile tests: the peak memory of a server, in MB", largest(&hostile, 0).map(|kib| kib >> 10), 150),
        ("the slowest /health beside a case, in ms", largest(&hostile, 1).map(|micros| micros / 1000), 100),
        (
            "memory of four agents that send and read nothing, in MB",
            largest(&agents, 0).map(|kib| kib >> 10),
            200,
        ),
    ] {
        // Without the interpreter of Python, there are no nested calls to measure.
        let shown = figure.map_or_else(|| "–".to_owned(), |figure| figure.to_string());
        let missed = if figure.is_some_and(|figure| figure > goal) { ", missed" } else { "" };
        anstream::println!("{what:<58} {shown:>8} {:>14}", format!("{goal}{missed}"));
    }
    Ok(())
}

/// Runs tests, and returns the lines with figures that they wrote.
fn read_figures(workspace: &Workspace, what: &str, mut tests: Command) -> Result<String> {
    let figures = workspace.state().join("figures");
    fs::create_dir_all(workspace.state())?;
    fs::write(&figures, "")?;
    run::log(workspace, what, tests.env("A2G_TEST_FIGURES", &figures), UNLIMITED)?;
    Ok(fs::read_to_string(&figures)?)
}

/// The largest number of a column.
fn largest(figures: &str, column: usize) -> Option<u64> {
    figures.lines().filter_map(|line| line.split(' ').nth(column)?.parse::<u64>().ok()).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_time_within_which_that_share_of_calls_ends() {
        for (count, half, most) in [(0_u32, 0.0, 0.0), (1, 1.0, 1.0), (20, 10.0, 20.0), (1000, 500.0, 990.0)]
        {
            let times = (1..=count).map(f64::from).collect::<Vec<_>>();
            assert_eq!([50, 99].map(|percent| percentile(&times, percent)), [half, most], "{count}");
        }
    }
}
