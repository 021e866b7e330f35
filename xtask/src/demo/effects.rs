//! `demo effects`: a program changes files, and a person sees all changes first, lets them take effect, and takes them back.
//!
//! ```text
//! agent ── run_python ──▶ executor ── 40 calls of file tools ──▶ one copy of /workspace
//!                            │ STAGED: nothing is in force
//! person ── effects show, commit, undo ──▶ executor ──▶ /workspace
//! ```
//! Every printed figure comes from the answers of the executor, from the disk, or from the governor.

mod fixture;

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::client::{Client, at, text};
use super::fixture::Ended;
use super::output::{WIDTH, check, print_command, print_heading, read_reports};
use crate::run::{self, FAINT, Workspace};
use crate::tools;
use fixture::{DELETED, EDITED, Fixture, PERSON, RENAMED, TOOL, files_afterwards};

/// The calls that the program makes: the tool, and how often.
const CALLS: [(&str, usize); 6] = [
    ("edit_file", EDITED),
    ("hash_file", RENAMED),
    ("list_directory", 1),
    ("read_file", EDITED + RENAMED + DELETED + 1),
    ("search_text", 1),
    ("write_file", 1),
];
/// The number of all these calls.
const CALL_COUNT: u64 = 40;
/// The entries that the program creates: a folder and an index.
const CREATED: usize = 2;
/// A note that the program edits, and that another program changes.
const DISPUTED: &str = "plan-01.md";
/// The number of lines of a page that are printed.
const SHOWN_LINES: usize = 34;
/// The time for the reports that are still missing at the end.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The command `demo effects`.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    tools::build_with_executor(workspace)?;
    let fixture = Fixture::create(workspace)?;
    run::progress("Starting", "the governor and the executor");
    let started = run::now();
    let mut governor = fixture.start_governor()?;
    let mut executor = fixture.start_executor(governor.address)?;
    anstream::println!("/workspace is {}", fixture.workspace().display());
    let taken = take_steps(&fixture, Client(executor.address));
    governor.check_alive()?;
    executor.check_alive()?;
    taken.with_context(|| {
        format!("a step did not go as expected; the logs are in {}", fixture.logs.display())
    })?;
    let seconds = started.elapsed().as_secs_f64();
    anstream::println!("\nAll steps went as expected, in {seconds:.1} s.");
    Ok(())
}

fn take_steps(fixture: &Fixture, executor: Client) -> Result<()> {
    let before = fixture.files()?;
    let after = files_afterwards();

    print_heading("1. A program changes files, itself and by calls of other tools");
    let first = StagedRun::start(fixture, executor)?;
    check(fixture.files()? == before, "no file has changed: the changes wait for a decision")?;

    print_heading("2. A person sees all changes before any of them takes effect");
    show(fixture, executor, &first)?;

    print_heading("3. All changes take effect together, and are taken back");
    succeed(fixture, executor, &first.commit())?;
    check(fixture.files()? == after, "the workspace is as the program has left its copy")?;
    succeed(fixture, executor, &["undo", &first.intent, "--yes"])?;
    check(fixture.files()? == before, "the workspace is as before")?;

    print_heading("4. Another program changes a file before the decision");
    let second = StagedRun::start(fixture, executor)?;
    fixture.interfere(DISPUTED)?;
    let changed = fixture.files()?;
    let refused = decide(fixture, executor, &second.commit())?;
    check(
        !refused.is_success && refused.stderr.contains(DISPUTED) && fixture.files()? == changed,
        &format!("no file has changed, because {DISPUTED} is not the one that the program saw"),
    )?;
    succeed(fixture, executor, &["discard", &second.intent, "--yes"])?;
    check(fixture.files()? == changed, "the changes are gone, and the other program's stay")?;

    print_heading("5. The governor knows all of it");
    compare_reports(fixture)
}

/// A run whose changes wait.
struct StagedRun {
    intent: String,
    digest: String,
}

impl StagedRun {
    /// Sends the program, prints its calls, and checks its result.
    fn start(fixture: &Fixture, executor: Client) -> Result<Self> {
        let answer = fixture.send_program(executor)?;
        let report = at(&answer, "/result/report");
        let status = text(report, "/status");
        let reasons = ["/result/report/error", "/error/message", "/result/reason"];
        let reason = reasons.iter().find_map(|pointer| at(&answer, pointer).as_str()).unwrap_or_default();
        ensure!(status == "STAGED", "the program ended with the status `{status}`: {reason}");
        let changes = at(report, "/usage/effects/changes");
        let duration = at(report, "/metrics/duration_ms").to_string();
        anstream::println!("  {TOOL:<16} {status:<8} {duration:>6} ms, {changes} changes");
        let calls = count_calls(report);
        for (tool, count) in &calls {
            anstream::println!("  └ {tool:<14} {count:>3} calls");
        }
        let result = at(report, "/result/result");
        let is_seen = at(result, "/archived") == RENAMED && at(result, "/drafts") == 0;
        check(
            calls == BTreeMap::from(CALLS),
            &format!("{CALL_COUNT} calls, and every one of them succeeded"),
        )?;
        check(is_seen, "the calls saw what the program had renamed, deleted and edited in the copy")?;
        let intent = text(report, "/intent_id").to_owned();
        Ok(Self { intent, digest: text(report, "/usage/effects/digest").to_owned() })
    }

    /// The words of the commit of exactly these changes.
    fn commit(&self) -> [&str; 4] {
        ["commit", &self.intent, "--digest", &self.digest]
    }
}

/// Prints the beginning of the page that a person reads, and checks all of it.
fn show(fixture: &Fixture, executor: Client, run: &StagedRun) -> Result<()> {
    let shown = run_command(fixture, executor, &["show", &run.intent])?;
    let lines = shown.stdout.lines().count();
    shown.stdout.lines().take(SHOWN_LINES).for_each(|line| anstream::println!("  {line}"));
    anstream::println!("  {FAINT}… and {} more lines{FAINT:#}", lines.saturating_sub(SHOWN_LINES));
    let sections = [("Deleted", DELETED), ("Renamed", RENAMED), ("Changed", EDITED), ("Created", CREATED)];
    let places: Vec<_> =
        sections.iter().map(|(word, count)| shown.stdout.find(&format!("{word} ({count})"))).collect();
    let differences = shown.stdout.matches("-Status: draft").count();
    check(
        places.iter().all(Option::is_some) && places.is_sorted() && differences == EDITED,
        &format!("deletions and renames come first, and each of {EDITED} changed files has its difference"),
    )
}

/// The number of calls of each tool that succeeded.
fn count_calls(report: &Value) -> BTreeMap<&str, usize> {
    let calls = at(report, "/calls/list").as_array().map_or(&[][..], Vec::as_slice);
    let mut counts = BTreeMap::new();
    for call in calls.iter().filter(|call| matches!(text(call, "/status"), "SUCCESS" | "STAGED")) {
        *counts.entry(text(call, "/tool")).or_default() += 1;
    }
    counts
}

/// Makes a decision that has to succeed.
fn succeed(fixture: &Fixture, executor: Client, words: &[&str]) -> Result<()> {
    let ended = decide(fixture, executor, words)?;
    ensure!(ended.is_success, "`a2g-executor effects {}` failed: {}", words.join(" "), ended.stderr.trim());
    Ok(())
}

/// Makes a decision. The page, which the command prints before it, is left out.
fn decide(fixture: &Fixture, executor: Client, words: &[&str]) -> Result<Ended> {
    let ended = run_command(fixture, executor, words)?;
    for line in ended.stderr.lines() {
        textwrap::wrap(line, WIDTH - 2).iter().for_each(|line| anstream::println!("  {line}"));
    }
    Ok(ended)
}

/// Prints and runs a command of the person. The address of the executor and the token are left out of the line.
fn run_command(fixture: &Fixture, executor: Client, words: &[&str]) -> Result<Ended> {
    print_command(PERSON, &format!("a2g-executor effects {}", words.join(" ")));
    fixture.effects(executor, words)
}

/// Waits until the governor has a report of each program, of each of its calls, and of each decision.
fn compare_reports(fixture: &Fixture) -> Result<()> {
    let expected = Reports { programs: 2, calls: 2 * CALL_COUNT, decided: 3, failed: 1 };
    let started = run::now();
    let mut found = Reports::read(fixture)?;
    while found != expected && started.elapsed() < DELIVERY_TIMEOUT {
        thread::sleep(POLL_INTERVAL);
        found = Reports::read(fixture)?;
    }
    let Reports { programs, calls, decided, failed } = found;
    check(
        found == expected,
        &format!(
            "reports: {programs} of programs, {calls} of their calls, {decided} of decisions, {failed} of a failed one"
        ),
    )
}

/// The number of reports of each kind.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
struct Reports {
    programs: u64,
    calls: u64,
    decided: u64,
    failed: u64,
}

impl Reports {
    fn read(fixture: &Fixture) -> Result<Self> {
        Ok(read_reports(&fixture.reports())?.iter().fold(Self::default(), Self::count))
    }

    /// Counts a report. Decisions are numbered after the calls of their program.
    fn count(mut self, report: &Value) -> Self {
        let ordinal = at(report, "/parent/ordinal").as_u64();
        let counted = match (ordinal, text(report, "/status")) {
            (None, _) => &mut self.programs,
            (Some(..=CALL_COUNT), _) => &mut self.calls,
            (Some(_), "SUCCESS") => &mut self.decided,
            (Some(_), _) => &mut self.failed,
        };
        *counted += 1;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_program_makes_as_many_calls_as_it_is_said_to() {
        let count = CALLS.iter().map(|(_, count)| *count as u64).sum::<u64>();
        assert_eq!(count, CALL_COUNT);
    }

    #[test]
    fn reports_are_counted_by_what_they_are_of() {
        let report = |ordinal: Value, status| json!({ "parent": { "ordinal": ordinal }, "status": status });
        let reports = [
            json!({ "status": "STAGED" }),
            report(json!(1), "SUCCESS"),
            report(json!(40), "FAILURE"),
            report(json!(41), "SUCCESS"),
            report(json!(42), "FAILURE"),
        ];
        let counted = reports.iter().fold(Reports::default(), Reports::count);
        assert_eq!(counted, Reports { programs: 1, calls: 2, decided: 1, failed: 1 });
    }

    #[test]
    fn only_calls_that_succeeded_are_counted() {
        let call = |tool, status| json!({ "tool": tool, "status": status });
        let list =
            json!([call("a", "SUCCESS"), call("a", "STAGED"), call("a", "FAILURE"), call("b", "REFUSED")]);
        let report = json!({ "calls": { "list": list } });
        assert_eq!(count_calls(&report), BTreeMap::from([("a", 2)]));
    }
}
