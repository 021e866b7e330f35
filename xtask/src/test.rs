//! `test`: runs every test of both workspaces, even on a new clone. `torture`: runs the tests of crashes for longer.
//!
//! The executor and the tools are built before the tests that need them, all tests run even if some fail, and
//! each skipped test is named. No test is repeated until it passes.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::collections;
use crate::run::{self, Workspace};
use crate::setup::{self, WASIP2};
use crate::tools;

pub(crate) const HELP: &str = "\
Run every test of the executor and of the tools.

Usage: cargo xtask test [ARGUMENTS OF CARGO TEST]...

It builds the tools, the executor's binary and a client in Rust, and runs `cargo
test` for the main workspace and, natively, for the tools. Arguments go to the
`cargo test` of the main workspace; with any, the tools' own tests are left out:
  cargo xtask test                       everything
  cargo xtask test -p tests              one crate
  cargo xtask test revocation            the tests with this in their name
  cargo xtask test -- --test-threads=1   the words after -- go to the tests

Tests with `wasip2` in their name need the target wasm32-wasip2; without it they
are skipped, and the summary names them. A test that needs strace, libfaketime,
Chromium, Debian's registry, a client or the server of NATS from PyPI, a client
from npm, or a collection of tests from Debian or from a crate is skipped if
that is missing, and says so.";

pub(crate) const TORTURE_HELP: &str = "\
Kill the executor again and again, break its disk, and compare its records.

Usage: cargo xtask torture [CRASHES]

It runs the tests of `tests/tests/durability` and `nested_calls::kills` with
CRASHES crashes each, and `nested_calls::generated` with as many programs
(default 1000; about 25 minutes), one after another. It installs strace and
faketime from Debian's packages if they are missing and this user may: without
them, the tests of crashes at chosen system calls and of clock jumps are
skipped, and say so.";

pub(crate) const DEFAULT_CRASHES: u32 = 1000;

/// The part of a test's name that says that the test needs [`WASIP2`].
const WASIP2_MARK: &str = "wasip2";
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum time for which a process may outlive the tests that started it.
const MAX_LEFT_BEHIND: Duration = Duration::from_secs(30);

/// The result of one `cargo test`, summed over its test programs.
#[derive(Default)]
struct Outcome {
    name: &'static str,
    is_ok: bool,
    seconds: u64,
    passed: u64,
    failed: u64,
    failed_names: Vec<String>,
}

impl Outcome {
    fn read(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failed_names.push(name.to_owned());
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            self.passed += number_before(result, " passed");
            self.failed += number_before(result, " failed");
        }
    }
}

/// The command `test`, with arguments for `cargo test`.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    setup::prepare_programs(workspace)?;
    setup::prepare_clients(workspace)?;
    setup::prepare_browser(workspace)?;
    setup::prepare_registry(workspace)?;
    collections::prepare(workspace)?;
    let guests = tools::build_with_executor(workspace)?;
    tools::build_conformance_guests(workspace, &guests)?;
    if guests.has_wasip2 {
        tools::build_wasip2_guests(workspace)?;
    }
    tools::build_rust_client(workspace)?;
    let mut parts = arguments.splitn(2, |word| word == "--");
    let (for_cargo, for_tests) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let names_package = for_cargo.iter().any(|word| word.starts_with("-p") || word.starts_with("--package"));
    let main_tests = |last: &str| {
        let mut cargo = workspace.cargo(&["test", "--locked", "--no-fail-fast"]);
        cargo.args((!names_package).then_some("--workspace")).args(for_cargo).arg(last);
        cargo
    };
    tools::compile("the tests", &mut main_tests("--no-run"))?;
    let (mut listed, mut skip) = (String::new(), [].as_slice());
    if !guests.has_wasip2 {
        let mut list = main_tests("--quiet");
        list.arg("--").args(for_tests).args(["--list", "--format", "terse"]);
        listed = run::output(&mut list).unwrap_or_default();
        skip = &["--skip", WASIP2_MARK];
    }
    let mut main = main_tests("--");
    // Pictures of the console's pages, for people who look at them afterwards.
    main.env("A2G_TEST_SCREENSHOTS", workspace.target.join("xtask").join("screenshots"));
    let mut outcomes = vec![follow("executor", main.args(for_tests).args(skip), MAX_LEFT_BEHIND)?];
    if arguments.is_empty() {
        let tools_tests = || workspace.guest_cargo(&["test", "--locked", "--no-fail-fast", "--workspace"]);
        tools::compile("the tests of the tools", tools_tests().arg("--no-run"))?;
        // The hostile guests once more, inside the server instead of in processes of their own.
        let mut inline = executor_tests(workspace, "hostile", skip);
        inline.env("A2G_TEST_ISOLATION", "inline");
        outcomes.push(follow("hostile guests, inline", &mut inline, MAX_LEFT_BEHIND)?);
        outcomes.push(follow("tools", &mut tools_tests(), MAX_LEFT_BEHIND)?);
    }
    conclude(&outcomes, &listed)
}

/// The command `torture`: runs the tests of crashes one after another, with this number of crashes each.
pub(crate) fn torture(workspace: &Workspace, crashes: u32) -> Result<()> {
    setup::prepare_programs(workspace)?;
    tools::build_with_executor(workspace)?;
    let more = ["nested_calls::kills", "nested_calls::generated"];
    let for_tests = [&more, &["--test-threads=1", "--nocapture"][..]].concat();
    let mut cargo = executor_tests(workspace, "durability", &for_tests);
    cargo.env("A2G_TORTURE", crashes.to_string());
    conclude(&[follow("durability", &mut cargo, MAX_LEFT_BEHIND)?], "")
}

/// A command for the tests that drive the built executor and have `filter` in their names. It selects the
/// packages of all tests, so that cargo does not build them again with other features.
pub(crate) fn executor_tests(workspace: &Workspace, filter: &str, for_tests: &[&str]) -> Command {
    let mut cargo = workspace.cargo(&["test", "--locked", "--no-fail-fast", "--workspace", "--test", "main"]);
    cargo.args([filter, "--"]).args(for_tests);
    cargo
}

/// Prints and parses the output of `cargo test`. If a test left processes behind that keep the pipe open, waits
/// for them for at most `patience`.
fn follow(name: &'static str, cargo: &mut Command, patience: Duration) -> Result<Outcome> {
    run::progress("Testing", name);
    let started = run::now();
    let mut child = cargo.stdout(Stdio::piped()).spawn()?;
    let lines = child.stdout.take().into_iter().flat_map(|pipe| BufReader::new(pipe).split(b'\n'));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut outcome = Outcome { name, ..Outcome::default() };
    let mut ended: Option<Instant> = None;
    outcome.is_ok = loop {
        match receiver.recv_timeout(POLL_INTERVAL) {
            Ok(line) => {
                let line = String::from_utf8_lossy(&line);
                anstream::println!("{line}");
                outcome.read(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break child.wait()?.success(),
            // The pipe stays open until every process that inherited it has ended.
            Err(RecvTimeoutError::Timeout) if ended.is_some_and(|ended| ended.elapsed() >= patience) => {
                anstream::println!("a test left a process behind that keeps the output pipe open");
                break false;
            }
            Err(RecvTimeoutError::Timeout) => ended = ended.or(child.try_wait()?.map(|_| run::now())),
        }
    };
    outcome.seconds = started.elapsed().as_secs();
    Ok(outcome)
}

/// Prints the summary. `listed` is the list of all tests if those that need [`WASIP2`] were skipped, and empty
/// otherwise.
fn conclude(outcomes: &[Outcome], listed: &str) -> Result<()> {
    anstream::println!();
    for Outcome { name, is_ok, seconds, passed, failed, failed_names } in outcomes {
        let word = if *is_ok { "ok" } else { "FAILED" };
        anstream::println!("{name}: {word}, {passed} passed, {failed} failed, {seconds} s");
        failed_names.iter().for_each(|name| anstream::println!("  failed: {name}"));
    }
    let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    for name in names.filter(|name| name.contains(WASIP2_MARK)) {
        anstream::println!("  skipped, as {WASIP2} is not installed: {name}");
    }
    ensure!(outcomes.iter().all(|outcome| outcome.is_ok), "there are failed tests, see the summary above");
    Ok(())
}

fn number_before(line: &str, word: &str) -> u64 {
    let before = line.split_once(word).and_then(|(before, _)| before.rsplit(' ').next());
    before.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(script: &str, patience: Duration) -> Outcome {
        follow("x", Command::new("sh").args(["-c", script]), patience).unwrap()
    }

    #[test]
    fn a_process_that_a_test_left_behind_is_a_failure_and_delays_nothing() {
        let left = outcome("echo test result: ok. 1 passed; sleep 20 &", Duration::ZERO);
        assert!(!left.is_ok && left.passed == 1 && left.seconds < 15);
        assert!(outcome("sleep 1 & wait", Duration::from_secs(30)).is_ok);
    }

    #[test]
    fn results_are_added_up_and_failures_named() {
        let text = "test a::works ... ok\ntest a::breaks ... FAILED\n\
                    test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n\
                    test result: ok. 30 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let Outcome { is_ok, passed, failed, failed_names, .. } =
            outcome(&format!("echo '{text}'; exit 1"), Duration::from_secs(30));
        assert_eq!((is_ok, passed, failed, failed_names), (false, 42, 1, vec!["a::breaks".to_owned()]));
    }
}
