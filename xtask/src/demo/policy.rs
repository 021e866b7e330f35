//! `demo policy`: new rules are observed, tested, replayed and compared, and then decide.
//!
//! ```text
//! agent ── calls ──▶ executor: base.cedar decides, secrets.cedar is observed ── receipts ──▶ journal
//! person ── policy test, replay, diff, suggest ─────────────────────────────────────────────┘
//! agent ── calls ──▶ executor: both decide, and the facts are those of before the restart
//! ```
//! Every printed figure comes from the answers of the executor, or from its commands.

mod fixture;

use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::client::{Client, at, text};
use super::fixture::{Ended, Server};
use super::output::{check, outcome, print_command, print_heading, print_note, reason, verdict};
use crate::run::{self, FAINT, Workspace};
use crate::tools;
use fixture::{AGENT, Fixture, Mode, OBSERVED, SECRET};

/// The rules of `secrets.cedar`.
const AFTER_SECRET: &str = "read-only-after-secret";
const THREE_LISTS: &str = "three-lists";
/// The calls that `three-lists` allows, and those that are sent at once.
const ALLOWED_LISTS: usize = 3;
const LISTS: usize = 8;
/// The lines of a command's output that are printed.
const SHOWN_LINES: usize = 24;
const PERSON: &str = "anna";

/// The command `demo policy`.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    tools::build_with_executor(workspace)?;
    let fixture = Fixture::create(workspace)?;
    let started = run::now();
    take_steps(&fixture).with_context(|| {
        format!("a step did not go as expected; the logs are in {}", fixture.logs.display())
    })?;
    let seconds = started.elapsed().as_secs_f64();
    anstream::println!("\nAll steps went as expected, in {seconds:.1} s.");
    Ok(())
}

fn take_steps(fixture: &Fixture) -> Result<()> {
    print_heading("1. base.cedar decides, and secrets.cedar is observed");
    let mut executor = fixture.start_executor(Mode::Observe)?;
    let taken = observe(Client(executor.address));
    end(&mut executor, taken)?;

    print_heading("2. The new rules pass their tests");
    let tested = succeed(fixture, &["test", "policies/secrets.cedar"])?;
    check(
        [AFTER_SECRET, THREE_LISTS].iter().all(|rule| tested.contains(rule)),
        "both rules are covered by cases",
    )?;

    print_heading("3. What they would have done to the calls of before");
    let replayed = succeed(fixture, &["replay", "--since", "1h"])?;
    check(
        replayed.contains(AFTER_SECRET) && replayed.contains("1 otherwise"),
        "one call flips, by the rule that was observed",
    )?;

    print_heading("4. What they grant that was not granted before");
    let compared = succeed(fixture, &["diff", "before", "policies"])?;
    check(compared.contains("nothing more"), "they grant nothing more")?;

    print_heading("5. The smallest policy of what the agent has used");
    let suggested = succeed(fixture, &["suggest", "--agent", AGENT, "--since", "1h"])?;
    // What follows the replay may be a call of any tool.
    let (rules, _) =
        suggested.split_once(" replayed").context("the suggestion is printed without a replay")?;
    check(
        rules.contains("write_file")
            && !rules.contains("list_directory")
            && suggested.contains("0 otherwise"),
        "it has the tools that were used and no others, and no call flips",
    )?;

    print_heading("6. The new rules decide");
    let mut executor = fixture.start_executor(Mode::Enforce)?;
    let enforced = enforce(Client(executor.address));
    end(&mut executor, enforced)
}

/// Ends the executor. If it has ended too early, that explains a failure better than the failed step does.
fn end(executor: &mut Server, taken: Result<()>) -> Result<()> {
    executor.check_alive()?;
    taken?;
    executor.stop()
}

/// Calls of which the last one would be denied by an observed rule.
fn observe(executor: Client) -> Result<()> {
    let before = write(executor)?;
    let read = call(executor, "read_file", &json!({ "path": SECRET }))?;
    let after = write(executor)?;
    check(
        [&before, &read, &after].iter().all(|answer| outcome(answer) == "SUCCESS"),
        "all three calls ran: an observed file changes no outcome",
    )?;
    check(
        observed(&before) != "DENIED" && observed(&after) == "DENIED",
        &format!("the last verdict says that {OBSERVED} would have denied it"),
    )
}

/// The same calls, which are now denied, and calls that are sent at once.
fn enforce(executor: Client) -> Result<()> {
    let written = write(executor)?;
    check(
        verdict(&written) == "DENIED" && reason(&written)?.contains("/workspace/secrets"),
        "the write is denied: the agent has read the secret, although before the restart",
    )?;
    let read = call(executor, "read_file", &json!({ "path": SECRET }))?;
    check(outcome(&read) == "SUCCESS", "it may still read")?;
    let lists = thread::scope(|scope| {
        let list = || {
            let folder = json!({ "path": "/workspace" });
            executor.call("a2g/intent", &fixture::intent("list_directory", &folder))
        };
        let calls = (0..LISTS).map(|_| scope.spawn(list)).collect::<Vec<_>>();
        let ends = calls.into_iter().map(|call| call.join().map_err(|_| anyhow!("a thread panicked"))?);
        ends.collect::<Result<Vec<_>>>()
    })?;
    let ran = lists.iter().filter(|answer| outcome(answer) == "SUCCESS").count();
    let denied = lists.iter().filter(|answer| verdict(answer) == "DENIED").count();
    check(
        ran == ALLOWED_LISTS && ran + denied == LISTS,
        &format!("{LISTS} lists were sent at once: {ran} ran, and {denied} were denied"),
    )
}

fn write(executor: Client) -> Result<Value> {
    call(executor, "write_file", &json!({ "path": "/workspace/notes.txt", "content": "done\n" }))
}

/// Makes a call, and prints its verdict, the rules that decided, and what would have been decided.
fn call(executor: Client, tool: &str, arguments: &Value) -> Result<Value> {
    let answer = executor.call("a2g/intent", &fixture::intent(tool, arguments))?;
    let path = text(arguments, "/path");
    let rules = at(&answer, "/result/decided_by").as_array().map_or(&[][..], Vec::as_slice);
    let rules = rules.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
    anstream::println!("  {tool:<14}  {path:<27}  {}", verdict(&answer));
    if !rules.is_empty() {
        print_note(&rules, FAINT);
    }
    let decision = observed(&answer);
    if !decision.is_empty() {
        print_note(&format!("{OBSERVED} would say {decision}"), FAINT);
    }
    if outcome(&answer) != "SUCCESS" {
        print_note(&reason(&answer)?, FAINT);
    }
    Ok(answer)
}

/// The decision of the observed file; empty if the verdict has none.
fn observed(answer: &Value) -> &str {
    let all = at(answer, "/result/observed").as_array().map_or(&[][..], Vec::as_slice);
    all.iter().find(|one| text(one, "/file") == OBSERVED).map_or("", |one| text(one, "/decision"))
}

/// Runs `a2g-executor policy`, which has to succeed, prints the beginning of its output, and returns all of it.
fn succeed(fixture: &Fixture, words: &[&str]) -> Result<String> {
    let line = format!("a2g-executor policy {}", words.join(" "));
    print_command(PERSON, &line);
    let Ended { is_success, stdout, stderr } = fixture.policy(words)?;
    let lines = stdout.lines().collect::<Vec<_>>();
    lines.iter().take(SHOWN_LINES).for_each(|line| anstream::println!("  {line}"));
    if lines.len() > SHOWN_LINES {
        anstream::println!("  {FAINT}… and {} more lines{FAINT:#}", lines.len() - SHOWN_LINES);
    }
    ensure!(is_success, "`{line}` failed: {}", stderr.trim());
    Ok(stdout)
}
