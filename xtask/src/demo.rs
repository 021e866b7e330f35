//! `demo`: drives the real executor and the real governor through steps that a newcomer can follow.
//!
//! Every printed figure comes from the two processes. Each step has an expected result, and any other result fails the
//! demo. All processes have ended when it returns.

pub(crate) mod client;
pub(crate) mod effects;
pub(crate) mod fixture;
pub(crate) mod fleet;
mod output;
mod plot;
pub(crate) mod policy;
mod program;
mod protocols;
mod secret;
mod steps;

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::run::{self, Workspace};
use crate::tools;
use client::Client;
use fixture::Fixture;

pub(crate) const HELP: &str = "\
Run the executor and a governor through a series of checked steps.

Usage: cargo xtask demo [effects | fleet | policy]

It builds the tools and the executor, starts the executor and a governor as two
processes on loopback, sends intents over HTTP, and shows the result of each:
files, a search, denials, an intent that waits for a person, a link out of the
scope, an endless loop, a memory bomb, a tool that is slowed down, a cancel, an
API whose key no tool gets, and a program in Python, whose calls of other tools
are intents of their own.
Then it shows which reports the governor has received, one call over each of the
six protocols, and which files have the key. Where the packages of science
Python can be had, a program plots with them, and its picture stays in
target/xtask/demo; the first time takes minutes.

With `effects`, a program in Python renames, edits and deletes files, itself and
by 40 calls of other tools, and its changes wait. A person sees all of them on
the command line, lets them take effect, and takes them back. Then another
program changes one of the files before the decision.

With `fleet`, it starts a server of NATS, a governor and three executors that
share their claims, and sends 300 intents over A2G, A2A and MCP while one
executor is killed and another one restarted. An intent whose connection broke
is repeated at another executor. Then it shows that no intent ran twice, and
that each has one answer and one report.

With `policy`, new rules in Cedar are first only observed. A person tests them,
replays the calls of an agent, compares the rules with those of before, and gets
the smallest policy of what was used. Then they decide: an agent that has read a
secret changes no file, also after a restart, and of eight calls that are sent
at once, three run.

The exit code is 0 only if every step went as expected. The demo works in a
temporary folder; the logs of all processes stay in target/xtask/demo.";

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    tools::build_with_executor(workspace)?;
    let mut fixture = Fixture::create(workspace)?;
    run::progress("Starting", "the governor and the executor, which compiles new tools");
    let started = run::now();
    let mut governor = fixture.start_governor()?;
    let mut executor = fixture.start_executor(governor.address)?;
    anstream::println!("/workspace is {}", fixture.path("workspace").display());
    let result = take_steps(Client(executor.address), Client(governor.address), &fixture);
    // If a process has ended, that explains a failure better than the failed step does, so the end is reported first.
    if result.is_err() {
        thread::sleep(Duration::from_millis(500));
    }
    fixture.api.check_alive()?;
    governor.check_alive()?;
    executor.check_alive()?;
    let (steps, is_good) = result?;
    let logs = fixture.logs.display();
    ensure!(is_good, "the lines with ✗ did not go as expected; the logs are in {logs}");
    let seconds = started.elapsed().as_secs_f64();
    plot::draw(workspace, &fixture.logs)?;
    anstream::println!("\nAll {steps} steps went as expected, in {seconds:.1} s. To go on by hand:");
    let relative = |path: &Path| path.strip_prefix(&workspace.root).unwrap_or(path).display().to_string();
    let program = relative(&workspace.executor());
    let tools = relative(&workspace.target.join("tools"));
    let arguments = r#"--scope '/tmp/**' --arguments '{"path":"/tmp"}'"#;
    anstream::println!("  {program} run list_directory --tools {tools} {arguments}");
    anstream::println!("`One governed call` in README.md starts a server of your own.");
    Ok(())
}

/// Returns the number of steps, and `true` if everything went as expected.
fn take_steps(client: Client, governor: Client, fixture: &Fixture) -> Result<(usize, bool)> {
    let results = steps::take_all(client, governor, fixture)?;
    let mut reports = Vec::new();
    let mut others = 0;
    for (step, (answer, _)) in (1..).zip(&results) {
        let Some(report) = answer.pointer("/result/report") else {
            others += 1;
            continue;
        };
        let nested = program::reports(client, answer)?;
        others += program::calls(answer).len() - nested.len();
        let nested = nested.into_iter().map(|(ordinal, report)| (format!("{step}.{ordinal}"), report));
        reports.push((step.to_string(), report.clone()));
        reports.extend(nested);
    }
    let reports_agree = output::compare_reports(&fixture.path("reports.ndjson"), &reports, others)?;
    let protocols_agree = protocols::compare(client)?;
    let keeps_key = secret::search(fixture)?;
    let is_good =
        reports_agree && protocols_agree && keeps_key && results.iter().all(|(_, note)| note.is_ok());
    Ok((results.len(), is_good))
}
