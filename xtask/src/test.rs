//! `test`: every test of both workspaces, on a machine that may just have been cloned to.
//!
//! It guarantees that the executor and the tools are built before the tests that need them, that all
//! tests run although some fail, and that a test that is left out is named. It never repeats a test
//! until it passes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::build;
use crate::clients;
use crate::extras;
use crate::run::{self, Failure, Workspace};
use crate::setup::{self, WANTED};
use crate::tools;

pub(crate) const HELP: &str = "\
Run every test of the executor and of the tools.

Usage: cargo xtask test [ARGUMENTS OF CARGO TEST]...

It sets up, builds the tools and the executor's binary, and runs `cargo test` for
the main workspace and, natively, for the tools. Arguments go to the `cargo test`
of the main workspace; with any, the tools' own tests are left out:
  cargo xtask test                       everything
  cargo xtask test -p tests              one crate
  cargo xtask test revocation            the tests with this in their name
  cargo xtask test -- --test-threads=1   what follows -- is for the test programs

Tests with `wasip2` in their name need the target wasm32-wasip2; where it cannot
be had they are skipped, and the summary names them. Tests that need strace or
libfaketime, or a client from PyPI or npm, are skipped without it, and say so.";

/// The part of a test's name that says that it needs [`WANTED`].
const NEEDS_WANTED: &str = "wasip2";

/// The time between two looks whether cargo has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The time that a process may outlive the tests that started it.
const MAX_LEFT_BEHIND: Duration = Duration::from_secs(30);

/// What the test programs said, added up.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    failed_names: Vec<String>,
}

impl Tally {
    /// Reads one line of a test program; most say nothing that counts.
    fn read(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failed_names.push(name.to_owned());
        }
        if line.starts_with("test result: ") {
            self.passed += number_before(line, " passed");
            self.failed += number_before(line, " failed");
        }
    }
}

/// One `cargo test`, for the summary.
struct Outcome {
    what: &'static str,
    ok: bool,
    tally: Tally,
    seconds: u64,
}

/// The command itself.
///
/// # Errors
/// As [`setup::prepare`] and [`tools::build`], when the executor does not compile, or when a test fails.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<(), Failure> {
    let guests = setup::prepare(workspace)?;
    extras::prepare(workspace)?;
    clients::prepare(workspace)?;
    tools::build(workspace, &guests.toolchain)?;
    if guests.has_wanted {
        tools::build_wanted(workspace)?;
    }
    build_executor(workspace)?;
    let (for_cargo, _) = split(arguments);
    let crates = (!names_a_package(for_cargo))
        .then(|| build::count_crates(workspace.cargo(), &["--workspace"], "normal,build,dev"));
    build_tests("the tests", &mut main_tests(workspace, for_cargo), crates.flatten())?;
    let skipped = if guests.has_wanted { Vec::new() } else { tests_that_need_wanted(workspace, arguments) };
    let mut outcomes =
        vec![attempt("executor", &mut run_main_tests(workspace, arguments, guests.has_wanted))?];
    if arguments.is_empty() {
        build_tests("the tests of the tools", &mut tools_tests(workspace), None)?;
        outcomes.push(attempt("hostile guests, inline", &mut inline_tests(workspace, guests.has_wanted))?);
        outcomes.push(attempt("tools", &mut tools_tests(workspace))?);
    }
    summarise(&outcomes, &skipped);
    if outcomes.iter().all(|outcome| outcome.ok) { Ok(()) } else { Err(Failure::Tests) }
}

/// Builds the binary that the integration tests look for beside themselves.
///
/// # Errors
/// When it does not compile.
pub(crate) fn build_executor(workspace: &Workspace) -> Result<(), Failure> {
    const CHOICE: [&str; 2] = ["-p", "a2g-executor"];
    let binary = workspace.target.join("debug").join(format!("a2g-executor{}", std::env::consts::EXE_SUFFIX));
    let remark = build::first_time(&binary, " (the first time, wasmtime takes some minutes)");
    run::progress("Building", &format!("the executor{remark}"));
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--locked"]).args(CHOICE);
    build::build("the executor", &mut cargo, build::count_crates(workspace.cargo(), &CHOICE, "normal,build"))
}

/// Builds the test programs of a choice of packages, which `cargo test` would do without a word about how far it is.
fn build_tests(what: &str, cargo: &mut Command, crates: Option<usize>) -> Result<(), Failure> {
    run::progress("Building", what);
    build::build(what, cargo.arg("--no-run"), crates)
}

/// `cargo test` of the main workspace with what is for cargo.
fn main_tests(workspace: &Workspace, for_cargo: &[String]) -> Command {
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--locked", "--no-fail-fast"]);
    if !names_a_package(for_cargo) {
        cargo.arg("--workspace");
    }
    cargo.args(for_cargo);
    cargo
}

fn run_main_tests(workspace: &Workspace, arguments: &[String], has_wanted: bool) -> Command {
    let (for_cargo, for_tests) = split(arguments);
    let mut cargo = main_tests(workspace, for_cargo);
    cargo.arg("--").args(for_tests);
    if !has_wanted {
        cargo.args(["--skip", NEEDS_WANTED]);
    }
    cargo
}

/// The tests of durability, with so many crashes each, one after another.
///
/// # Errors
/// As [`run`].
pub(crate) fn torture(workspace: &Workspace, times: u32) -> Result<(), Failure> {
    let guests = setup::prepare(workspace)?;
    extras::prepare(workspace)?;
    tools::build(workspace, &guests.toolchain)?;
    build_executor(workspace)?;
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--locked", "--no-fail-fast", "--workspace", "--test", "main", "durability", "--"]);
    cargo.args(["--test-threads=1", "--nocapture"]).env("A2G_TORTURE", times.to_string());
    let outcomes = [attempt("durability", &mut cargo)?];
    summarise(&outcomes, &[]);
    if outcomes.iter().all(|outcome| outcome.ok) { Ok(()) } else { Err(Failure::Tests) }
}

/// The hostile guests once more, inside the server instead of in processes of their own.
fn inline_tests(workspace: &Workspace, has_wanted: bool) -> Command {
    let mut cargo = workspace.cargo();
    // The whole workspace, so that nothing is built again for other features.
    cargo.args(["test", "--locked", "--no-fail-fast", "--workspace", "--test", "main", "hostile", "--"]);
    cargo.env("A2G_TEST_ISOLATION", "inline");
    if !has_wanted {
        cargo.args(["--skip", NEEDS_WANTED]);
    }
    cargo
}

fn tools_tests(workspace: &Workspace) -> Command {
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--locked", "--no-fail-fast", "--workspace"]);
    cargo.arg("--manifest-path").arg(workspace.root.join("tools/Cargo.toml"));
    cargo.arg("--target-dir").arg(workspace.guest_target());
    cargo
}

/// The names of the selected tests that cannot run. Best effort: if listing fails, so will the test run.
fn tests_that_need_wanted(workspace: &Workspace, arguments: &[String]) -> Vec<String> {
    let (for_cargo, for_tests) = split(arguments);
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--locked", "--quiet"]);
    if !names_a_package(for_cargo) {
        cargo.arg("--workspace");
    }
    cargo.args(for_cargo).arg("--").args(for_tests).args(["--list", "--format", "terse"]);
    let listing = run::output(&mut cargo).unwrap_or_default();
    let names = listing.lines().filter_map(|line| line.strip_suffix(": test"));
    names.filter(|name| name.contains(NEEDS_WANTED)).map(str::to_owned).collect()
}

/// What is for cargo and what is for the test programs.
fn split(arguments: &[String]) -> (&[String], &[String]) {
    let at = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
    let (for_cargo, rest) = arguments.split_at(at);
    (for_cargo, rest.split_first().map_or(&[][..], |(_, words)| words))
}

fn names_a_package(words: &[String]) -> bool {
    words.iter().any(|word| word.starts_with("-p") || word.starts_with("--package"))
}

/// Runs the tests and shows their output while reading along.
fn attempt(what: &'static str, cargo: &mut Command) -> Result<Outcome, Failure> {
    run::progress("Testing", what);
    follow(what, cargo, MAX_LEFT_BEHIND)
}

/// Follows `cargo test` to its end, and processes that tests left behind for so long.
fn follow(what: &'static str, cargo: &mut Command, patience: Duration) -> Result<Outcome, Failure> {
    let started: Instant = run::now();
    let cannot =
        |error: std::io::Error| Failure::Program(format!("could not run the tests of the {what}: {error}"));
    let mut child = cargo.stdout(Stdio::piped()).spawn().map_err(cannot)?;
    let mut tally = Tally::default();
    let (read, lines) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            BufReader::new(stdout).split(b'\n').map_while(Result::ok).try_for_each(|line| read.send(line))
        });
    }
    let mut ended: Option<Instant> = None;
    let ok = loop {
        match lines.recv_timeout(POLL_INTERVAL) {
            Ok(line) => {
                let line = String::from_utf8_lossy(&line);
                println!("{line}");
                tally.read(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break child.wait().map_err(cannot)?.success(),
            Err(RecvTimeoutError::Timeout) => match ended {
                // It would be waited for as long as it lives.
                Some(since) if since.elapsed() >= patience => {
                    println!("a test left a process behind that holds its output");
                    break false;
                }
                Some(_) => {}
                None => ended = child.try_wait().map_err(cannot)?.map(|_status| run::now()),
            },
        }
    };
    Ok(Outcome { what, ok, tally, seconds: started.elapsed().as_secs() })
}

fn summarise(outcomes: &[Outcome], skipped: &[String]) {
    println!();
    for Outcome { what, ok, tally, seconds } in outcomes {
        let verdict = if *ok { "ok" } else { "FAILED" };
        println!("{what}: {verdict}, {} passed, {} failed, {seconds} s", tally.passed, tally.failed);
        for name in &tally.failed_names {
            println!("  failed: {name}");
        }
    }
    for name in skipped {
        println!("  skipped, as {WANTED} is not installed: {name}");
    }
}

fn number_before(line: &str, word: &str) -> u64 {
    let before = line.split_once(word).map_or("", |(before, _)| before);
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_process_that_a_test_left_behind_is_a_failure_and_holds_nothing_up() {
        let outcome =
            |script: &str, patience| follow("x", Command::new("sh").args(["-c", script]), patience).unwrap();
        let left = outcome("echo test result: ok. 1 passed; sleep 20 &", Duration::ZERO);
        assert!(!left.ok && left.tally.passed == 1 && left.seconds < 15);
        assert!(outcome("sleep 1 & wait", Duration::from_secs(30)).ok);
    }

    #[test]
    fn results_are_added_up_and_failures_named() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test a::works ... ok",
            "test a::breaks ... FAILED",
            "test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
            "test result: ok. 30 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
        ] {
            tally.read(line);
        }
        assert_eq!(tally, Tally { passed: 42, failed: 1, failed_names: vec!["a::breaks".to_owned()] });
    }

    #[test]
    fn arguments_find_their_program() {
        let arguments = words("-p tests journal -- --nocapture");
        let (for_cargo, for_tests) = split(&arguments);
        assert_eq!((for_cargo.len(), for_tests), (3, &words("--nocapture")[..]));
        assert!(names_a_package(for_cargo));
        assert!(!names_a_package(&words("journal --lib")));
        assert_eq!(split(&[]), (&[][..], &[][..]));
    }
}
