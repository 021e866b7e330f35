//! `bench`: measures the executor, in release.
//!
//! It never pretends: whatever it prints has been measured.

use crate::run::{Failure, Workspace};
use crate::{setup, tools};

pub(crate) const HELP: &str = "\
Measure the executor.

Usage: cargo xtask bench

Sets up, builds the tools, then builds and runs the benchmark in release.";

/// The command itself.
///
/// # Errors
/// When something does not build or the benchmark fails.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let guests = setup::prepare(workspace)?;
    tools::build(workspace, &guests.toolchain)?;
    measure(workspace)
}

/// Builds and runs the benchmark.
fn measure(workspace: &Workspace) -> Result<(), Failure> {
    let catalogue = workspace.target.join("tools");
    Err(Failure::Program(format!(
        "the benchmark has not been written yet; the tools in {} wait for it",
        catalogue.display()
    )))
}
