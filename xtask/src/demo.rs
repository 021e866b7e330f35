//! `demo`: drives the real executor and the real governor through a story that a newcomer can follow.
//!
//! It never pretends: whatever it prints has come from the two processes, every step says what it
//! expects, and a step that goes otherwise makes the demo fail. It guarantees that the processes have
//! ended when it returns.

mod client;
mod doors;
mod paint;
mod process;
mod received;
mod reply;
mod stage;
mod story;
mod table;

use crate::run::{self, Failure, Workspace};
use crate::{setup, test, tools};
use client::Client;
use process::Process;
use stage::Stage;
use std::path::Path;
use std::thread;
use std::time::Duration;

pub(crate) const HELP: &str = "\
Drive the real executor through a story.

Usage: cargo xtask demo

Sets up, builds the tools and the executor, starts the executor and a governor as
two processes on loopback, sends intents over HTTP and shows what became of each:
files, a search, denials, an intent that waits for a person, a link out of the
scope, an endless loop, a memory bomb, a tool that is slowed down, and a cancel.
Then it shows which reports the governor has received, and one call through each
of the five doors.

Exit code 0 only if every step went as expected. It works in a temporary folder;
the logs of both processes stay in target/xtask/demo.";

/// How long a process that broke off a connection may take to end.
/// The words of the executor's log when every tool can be called.
const PREPARED: &str = "all tools are prepared";

const LAST_BREATH: Duration = Duration::from_millis(500);

/// The command itself.
///
/// # Errors
/// When something does not build, a process does not start, or the story does not go as told.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let guests = setup::prepare(workspace)?;
    tools::build(workspace, &guests.toolchain)?;
    test::build_executor(workspace)?;
    let stage = Stage::build(workspace)?;
    tell(workspace, &stage)
}

fn tell(workspace: &Workspace, stage: &Stage) -> Result<(), Failure> {
    let remark = if stage.is_first { ", which compiles its tools the first time" } else { "" };
    run::progress("Starting", &format!("the governor and the executor{remark}"));
    let began = run::now();
    let mut governor = Process::start("governor", stage.governor_command(), &stage.log("governor"), "")?;
    say_started(&governor, &format!("policies {}", stage::POLICY_FILES.join(", ")));
    let mut executor = Process::start(
        "executor",
        stage.executor_command(governor.address()),
        &stage.log("executor"),
        PREPARED,
    )?;
    say_started(&executor, &format!("/workspace is {}", stage.workspace().display()));
    let client = Client::new(executor.address());

    let told = story::tell(&client, stage)
        .and_then(|steps| Ok((received::show(&stage.reports(), &steps)?, doors::show(client)?, steps)));
    if told.is_err() {
        thread::sleep(LAST_BREATH);
    }
    // A process that has ended is the better explanation of whatever went wrong.
    governor.check_alive()?;
    executor.check_alive()?;
    let (reports_agree, doors_agree, steps) = told?;

    let unexpected = steps.iter().filter(|step| !step.as_expected()).count();
    if unexpected > 0 || !reports_agree || !doors_agree {
        let what = match unexpected {
            0 if reports_agree => "a door did not give what the others gave".to_owned(),
            0 => "the governor did not receive what it should have".to_owned(),
            1 => "one step did not go as expected".to_owned(),
            more => format!("{more} steps did not go as expected"),
        };
        return Err(Failure::Program(format!("{what}, see above; the logs are in {}", stage.logs.display())));
    }
    paint::say(format_args!(
        "\nAll {} steps went as expected, in {:.1} s. To go on by hand:",
        steps.len(),
        began.elapsed().as_secs_f64()
    ));
    let program = relative(workspace, &stage.program);
    let catalogue = relative(workspace, &workspace.target.join("tools"));
    paint::say(format_args!(
        "  {program} run list_directory --tools {catalogue} --scope '/tmp/**' --arguments '{{\"path\":\"/tmp\"}}'"
    ));
    paint::say(format_args!("  {program} serve --tools {catalogue} --policies policies"));
    Ok(())
}

fn say_started(process: &Process, with: &str) {
    let Process { name, .. } = process;
    paint::say(format_args!(
        "{name:<9} http://{}/jsonrpc  (process {})\n{:10}{with}",
        process.address(),
        process.id(),
        ""
    ));
}

/// A path as one types it in the repository.
fn relative(workspace: &Workspace, path: &Path) -> String {
    path.strip_prefix(&workspace.root).unwrap_or(path).display().to_string()
}
