//! `demo`: drives the real executor through a story that a newcomer can follow.
//!
//! It never pretends: whatever it prints has come out of the executor's binary.

use std::path::PathBuf;

use crate::run::{Failure, Workspace};
use crate::{setup, test, tools};

pub(crate) const HELP: &str = "\
Drive the real executor through a story.

Usage: cargo xtask demo

Sets up, builds the tools and the executor, then runs the executor's binary.";

/// What the story is told with; everything in it has just been built.
#[derive(Debug)]
struct Stage {
    /// The executor's binary.
    executor: PathBuf,
    /// The catalogue of tools.
    catalogue: PathBuf,
}

/// The command itself.
///
/// # Errors
/// When something does not build, or the story does not go as told.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let guests = setup::prepare(workspace)?;
    tools::build(workspace, &guests.toolchain)?;
    test::build_executor(workspace)?;
    let executor =
        workspace.target.join("debug").join(format!("a2g-executor{}", std::env::consts::EXE_SUFFIX));
    drive(&Stage { executor, catalogue: workspace.target.join("tools") })
}

/// Tells the story.
fn drive(stage: &Stage) -> Result<(), Failure> {
    Err(Failure::Program(format!(
        "the demo has not been written yet; {} and {} are built and wait for it",
        stage.executor.display(),
        stage.catalogue.display()
    )))
}
