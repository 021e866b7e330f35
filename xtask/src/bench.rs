//! `bench`: measures the executor against plain wasmtime.
//!
//! It never pretends: whatever it prints has been measured.

use crate::run::{self, Failure, Workspace};
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
  memory       what the server grows by over 10,000 runs, and what 200 runs take that sleep at once";

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
    run::visibly("run the benchmark", &mut cargo)
}
