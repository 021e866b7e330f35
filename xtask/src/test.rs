//! `test`: runs every test of both workspaces, even on a new clone. `torture`: runs the tests of crashes for longer.
//!
//! The executor and the tools are built before the tests that need them, all tests run even if some fail, and
//! each skipped test is named. No test is repeated until it passes; `--repeat` repeats all until one fails.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::collections;
use crate::run::{self, Workspace};
use crate::setup::{self, GuestCompilers, WASIP2};
use crate::tools;

pub(crate) const HELP: &str = "\
Run every test of the executor and of the tools.

Usage: cargo xtask test [ARGUMENTS OF CARGO TEST]...
       cargo xtask test --repeat TIMES [--load]

It builds the tools, the executor's binary and a client in Rust, and runs `cargo
test` for the main workspace and, natively, for the tools. Arguments go to the
`cargo test` of the main workspace; with any, only what the named tests need is
installed, and the tools' own tests are left out:
  cargo xtask test                       everything
  cargo xtask test -p a2g-journal        one crate
  cargo xtask test --test nodes          one area of tests/tests/
  cargo xtask test revocation            the tests with this in their name
  cargo xtask test -- --test-threads=1   the words after -- go to the tests
  cargo xtask test --repeat 10 --load    the executor's tests ten times, beside
                                         a thread that keeps a core busy, up to
                                         the first time that they fail

Tests with `wasip2` in their name need the target wasm32-wasip2; without it they
are skipped, and the summary names them. A test that needs strace, libfaketime,
Chromium, Debian's registry, a client or the server of NATS from PyPI, a client
from npm, or a collection of tests from Debian or from a crate is skipped if
that is missing, and says so.";

pub(crate) const TORTURE_HELP: &str = "\
Kill the executor again and again, break its disk, and compare its records.

Usage: cargo xtask torture [CRASHES]

It runs the tests of `durability`, `fleet::kills`, `nested_calls::kills` and
`sessions::kills` with CRASHES crashes each, `nested_calls::generated` and
`shared_files::generated` with as many programs and `sessions::scale` with as
many sessions (default 1000, which takes hours), and `staged` with its long
versions, one after another. Then it compares file changes that are kept apart
with a plain folder in 100,000 generated sequences of calls, ends their commit
and undo before each call, runs the model of a fleet, renders hostile texts, and
replaces the values of secrets in a million generated texts, all for longer than
`cargo xtask test` does. It installs strace and faketime from Debian's packages
if they are missing and this user may: without them, the tests of crashes at
chosen system calls and of clock jumps are skipped, and say so.";

pub(crate) const DEFAULT_CRASHES: u32 = 1000;
/// The number of seeds of the model of a fleet.
const TORTURE_SEEDS: u32 = 20_000;
/// The number of sequences of calls on a view of file changes and on a plain folder.
const TORTURE_SEQUENCES: u32 = 100_000;
/// The number of generated texts in which values are replaced.
const TORTURE_REDACTIONS: u32 = 1_000_000;

/// The features of the programs of this crate that the demo and the benchmark build, so that these are compiled with the
/// tests. What they depend on, the tests use too.
const PROGRAMS: &str = "--features=xtask/api,xtask/wat";
/// The part of a test's name that says that the test needs [`WASIP2`].
const WASIP2_MARK: &str = "wasip2";
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum time for which a process may outlive the tests that started it.
pub(crate) const MAX_LEFT_BEHIND: Duration = Duration::from_secs(30);

/// The result of one `cargo test`, summed over its test programs.
#[derive(Default)]
pub(crate) struct Outcome {
    name: &'static str,
    is_ok: bool,
    seconds: u64,
    passed: u64,
    failed: u64,
    failed_names: Vec<String>,
}

impl Outcome {
    /// This result and that of another run, as one.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.is_ok &= other.is_ok;
        self.seconds += other.seconds;
        self.passed += other.passed;
        self.failed += other.failed;
        self.failed_names.extend(other.failed_names);
        self
    }

    fn read(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failed_names.push(name.to_owned());
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            self.passed += number_before(result, " passed");
            self.failed += number_before(result, " failed");
        }
    }

    pub(crate) fn has_run(&self) -> bool {
        self.passed + self.failed > 0
    }
}

/// Something that only some tests need besides the executor and the tools.
struct Need {
    /// The modules of the areas in `tests/tests` that use it.
    modules: &'static [&'static str],
    install: fn(&Workspace) -> Result<()>,
}

const NEEDS: [Need; 6] = [
    Need {
        modules: &[
            "authoring",
            "clients",
            "code",
            "languages",
            "listing",
            "mcp_conformance",
            "openapi",
            "python_packages",
            "registry",
            "remote_mcp",
        ],
        install: setup::prepare_clients,
    },
    Need { modules: &["fleet"], install: |workspace| setup::prepare_nats(workspace).map(drop) },
    Need { modules: &["browser", "console"], install: setup::prepare_browser },
    Need { modules: &["registry"], install: setup::prepare_registry },
    Need { modules: &["collections"], install: collections::prepare },
    Need { modules: &["hostile", "nested_calls", "science"], install: setup::prepare_science },
];

/// Another setting under which the tests with hostile guests run, besides a process for each run.
struct HostileSetting {
    /// The value of `A2G_TEST_ISOLATION`.
    isolation: &'static str,
    name: &'static str,
    /// The modules for which this setting changes nothing.
    same: &'static [&'static str],
}

const HOSTILE_SETTINGS: [HostileSetting; 2] = [
    HostileSetting {
        isolation: "inline",
        name: "hostile guests, inside the server",
        // These set their own isolation, or compare arguments with a schema before anything runs.
        same: &["isolation", "layout", "reuse", "schemas", "users"],
    },
    HostileSetting {
        isolation: "reused",
        name: "hostile guests, in reused processes",
        // A run with a network or with calls has a process of its own. The others set their own isolation, or run no guest.
        same: &["fetch", "modules", "programs", "reuse", "schemas", "users", "wasip2_sockets"],
    },
];

/// The tests that run.
enum Selection {
    All,
    /// The lines of the list that the test programs print.
    Listed(String),
}

impl Selection {
    fn has_module(&self, module: &str) -> bool {
        match self {
            Self::All => true,
            Self::Listed(list) => list.lines().any(|name| name.starts_with(&format!("{module}::"))),
        }
    }

    fn has_wasip2(&self) -> bool {
        match self {
            Self::All => true,
            Self::Listed(list) => list.contains(WASIP2_MARK),
        }
    }

    /// Installs what the tests need, and the compilers of the guests.
    fn install(&self, workspace: &Workspace) -> Result<GuestCompilers> {
        let guests = setup::prepare(workspace)?;
        setup::prepare_programs(workspace)?;
        for Need { modules, install } in &NEEDS {
            if modules.iter().any(|module| self.has_module(module)) {
                install(workspace)?;
            }
        }
        setup::prepare_makers(workspace)?;
        Ok(guests)
    }

    /// Installs what the tests need, and builds their guests and the tools.
    fn prepare(&self, workspace: &Workspace) -> Result<GuestCompilers> {
        let guests = self.install(workspace)?;
        tools::build(workspace, &guests)?;
        if self.has_module("mcp_conformance") || self.has_module("remote_mcp") {
            tools::build_conformance_guests(workspace, &guests)?;
        }
        if guests.has_wasip2 && self.has_wasip2() {
            tools::build_wasip2_guests(workspace)?;
        }
        if self.has_module("clients") {
            tools::build_rust_client(workspace)?;
        }
        Ok(guests)
    }
}

/// The command `test`, with arguments for `cargo test`.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let mut parts = arguments.splitn(2, |word| word == "--");
    let for_cargo = parts.next().unwrap_or_default();
    let for_tests = parts.next().unwrap_or_default();
    let names_package = for_cargo.iter().any(|word| word.starts_with("-p") || word.starts_with("--package"));
    let main_tests = |last: &str| {
        let mut cargo = workspace.cargo(&["test", "--locked", "--no-fail-fast"]);
        cargo.args((!names_package).then_some(["--workspace", PROGRAMS]).into_iter().flatten());
        cargo.args(for_cargo).arg(last);
        cargo
    };
    let list = || {
        let mut list = main_tests("--quiet");
        list.arg("--").args(for_tests).args(["--list", "--format", "terse"]);
        run::output(&mut list).unwrap_or_default()
    };
    let compile = || tools::compile(workspace, "the executor and the tests", &mut main_tests("--no-run"));
    let selection = if arguments.is_empty() {
        Selection::All
    } else {
        compile()?;
        Selection::Listed(list())
    };
    let guests = match selection {
        // An installation waits for the network and the disk, and one crate of the tools for a single core, while the
        // compilation uses the processor.
        Selection::All => thread::scope(|scope| {
            let preparing = scope.spawn(|| selection.prepare(&workspace.beside_another_program()));
            compile()?;
            preparing.join().unwrap_or_else(|_| bail!("the preparation has panicked"))
        })?,
        Selection::Listed(_) => selection.prepare(workspace)?,
    };
    tools::build_for_tests(workspace)?;
    let listed = if guests.has_wasip2 { String::new() } else { list() };
    let skip = if guests.has_wasip2 { &[][..] } else { &["--skip", WASIP2_MARK] };
    let mut main = main_tests("--");
    // Pictures of the console's pages, for people who look at them afterwards.
    main.env("A2G_TEST_SCREENSHOTS", workspace.target.join("xtask").join("screenshots"));
    share_out(&mut main);
    let mut outcomes = vec![follow("executor", main.args(for_tests).args(skip), MAX_LEFT_BEHIND)?];
    if arguments.is_empty() {
        // The SDK is a member of the executor's workspace too, which has tested it.
        let words = ["test", "--locked", "--no-fail-fast", "--workspace"];
        let excluded = ["--exclude", "a2g-guest-sdk", "--exclude", "a2g-guest-sdk-derive"];
        let tools_tests = || workspace.guest_cargo(&[&words[..], &excluded].concat());
        tools::compile(workspace, "the tests of the tools", tools_tests().arg("--no-run"))?;
        for HostileSetting { isolation, name, same } in HOSTILE_SETTINGS {
            let mut hostile = executor_tests(workspace, &["sandbox"], "hostile", skip);
            for module in same {
                hostile.arg("--skip").arg(format!("hostile::{module}::"));
            }
            hostile.env("A2G_TEST_ISOLATION", isolation);
            share_out(&mut hostile);
            outcomes.push(follow(name, &mut hostile, MAX_LEFT_BEHIND)?);
        }
        outcomes.push(follow("tools", &mut tools_tests(), MAX_LEFT_BEHIND)?);
    }
    conclude(&outcomes, &listed)
}

/// The command `test --repeat`: runs the executor's tests so many times, until they fail once; beside a busy thread if
/// `has_load`.
pub(crate) fn repeat(workspace: &Workspace, times: u32, has_load: bool) -> Result<()> {
    if has_load {
        // It ends with this program.
        thread::spawn(keep_busy);
    }
    (1..=times).try_for_each(|time| {
        run::progress("Repeating", &format!("the tests, {time} of {times}"));
        run(workspace, &["--tests".to_owned()])
    })
}

fn keep_busy() {
    loop {
        std::hint::spin_loop();
    }
}

/// Runs two tests more at once than there are cores, because many of them wait for a lease, a timeout or a retry.
fn share_out(tests: &mut Command) {
    const THREADS: &str = "RUST_TEST_THREADS";
    if std::env::var_os(THREADS).is_none() {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        tests.env(THREADS, (cores + 2).to_string());
    }
}

/// The command `torture`: runs the tests of crashes one after another, with this number of crashes each.
pub(crate) fn torture(workspace: &Workspace, crashes: u32) -> Result<()> {
    setup::prepare_programs(workspace)?;
    tools::build_for_tests(workspace)?;
    let more = [
        "nested_calls::kills",
        "nested_calls::generated",
        "shared_files::generated",
        "fleet::kills",
        "sessions::kills",
        "sessions::scale",
        "staged::",
    ];
    let for_tests = [&more, &["--test-threads=1", "--nocapture"][..]].concat();
    let mut kills = executor_tests(workspace, &["nodes", "programs", "records"], "durability", &for_tests);
    kills.env("A2G_TORTURE", crashes.to_string());
    let durability = follow("durability", &mut kills, MAX_LEFT_BEHIND)?;
    // Without a filter, all tests of these two programs.
    let mut sequences = executor_tests(workspace, &["equivalence", "commit"], "", &[]);
    sequences.env("A2G_OVERLAY_SEQUENCES", TORTURE_SEQUENCES.to_string()).env("A2G_OVERLAY_ALL_CALLS", "1");
    let overlay = follow("file changes", &mut sequences, MAX_LEFT_BEHIND)?;
    let mut models = workspace.cargo(&["test", "--locked", "--no-fail-fast", "--workspace", "--lib", "--"]);
    models.args(["model::five_nodes", "hostile_texts::", "generated_texts_have_no_form_left"]);
    models.env("A2G_TORTURE", crashes.to_string()).env("A2G_FLEET_SEEDS", TORTURE_SEEDS.to_string());
    models.env("A2G_REDACTIONS", TORTURE_REDACTIONS.to_string());
    let rest = follow("fleets, hostile texts and redactions", &mut models, MAX_LEFT_BEHIND)?;
    conclude(&[durability, overlay, rest], "")
}

/// A command for the tests of these programs, such as the areas of `tests/tests`, that have `filter` in their names. It
/// selects the packages of all tests, so that cargo does not build them again with other features.
pub(crate) fn executor_tests(
    workspace: &Workspace,
    areas: &[&str],
    filter: &str,
    for_tests: &[&str],
) -> Command {
    let mut cargo = workspace.cargo(&["test", "--locked", "--no-fail-fast", "--workspace"]);
    cargo.args(areas.iter().flat_map(|area| ["--test", area]));
    cargo.args([filter, "--"]).args(for_tests);
    cargo
}

/// Prints and parses the output of `cargo test`. If a test left processes behind that keep the pipe open, waits
/// for them for at most `patience`.
pub(crate) fn follow(name: &'static str, cargo: &mut Command, patience: Duration) -> Result<Outcome> {
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
pub(crate) fn conclude(outcomes: &[Outcome], listed: &str) -> Result<()> {
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
    fn every_module_that_needs_an_installation_is_listed_with_it() {
        // The names in a module that needs the installation of the same place in `NEEDS`.
        const MARKS: [&[&str]; NEEDS.len()] = [
            &["= clients().join(", "client_folder("],
            &["NatsServers"],
            &["browser_or_skip"],
            &["\"docker-registry\""],
            &["collection("],
            &["SciencePython"],
        ];
        let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests");
        let mut folders = vec![tests.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs_err::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let inside = path.strip_prefix(&tests).unwrap().with_extension("");
                let module = inside.iter().nth(1).map(|module| module.to_str().unwrap());
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let text = fs_err::read_to_string(&path).unwrap();
                    for (need, marks) in NEEDS.iter().zip(MARKS) {
                        let has_mark = marks.iter().any(|mark| text.contains(mark));
                        let is_listed = module.is_some_and(|module| need.modules.contains(&module));
                        assert!(!has_mark || is_listed, "{} uses {marks:?}", path.display());
                    }
                }
            }
        }
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
