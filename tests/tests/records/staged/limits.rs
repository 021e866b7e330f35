//! The limits of `[effects]`: the time to decide, the time to undo, and the disk space of all sets.

use super::{
    AFTER, Act, BEFORE, CHUNK_BYTES, EDITS, NEW, StagedFixture, Step, decided, edits, entries, large, tool,
    tool_of_body,
};
use harness::{Options, WallClock, approved, error, eventually, execute, intent, manifest, result, times};
use serde_json::json;
use std::time::{Duration, Instant};

const HOUR: i64 = 3600;
/// More than a MiB, which is the limit of the tests.
const LARGE_BYTES: usize = 80 * CHUNK_BYTES;
/// So much of half a MiB, which is the share of an agent, that no other run may begin.
const FITTING_CHUNKS: u64 = 25;

/// Sleeps until the executor has looked for sets whose time is over at least once.
fn assert_stays(fixture: &StagedFixture, run: &super::StagedRun, state: &str) {
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(fixture.state(run), state);
}

#[test]
fn changes_that_nobody_decides_on_are_discarded_in_time() {
    let Some(clock) = WallClock::new() else { return };
    let mut fixture = StagedFixture::start_with([edits(EDITS, "staged")], |options| {
        clock.for_server(options).set("effects.decide_within_hours", 2)
    });
    // In the first round the server runs when the time is over, and in the second one it does not.
    for is_running in [true, false] {
        clock.set(0);
        let run = fixture.stage(EDITS);
        clock.set(HOUR);
        assert_stays(&fixture, &run, "waiting");
        if is_running {
            clock.set(3 * HOUR);
        } else {
            let home = fixture.kill();
            clock.set(3 * HOUR);
            fixture.start_in(home);
        }
        eventually("the changes are discarded", || (fixture.state(&run) == "discarded").then_some(()));
        error(&fixture.decide("anna", Act::Commit, &run), -32600);
        assert_eq!(fixture.files(), entries(BEFORE));
        let decisions = fixture.decisions(&run);
        assert_eq!(decisions.len(), 1, "{decisions:?}");
        let [act, status, by] = &decisions[0];
        assert_eq!((&**act, &**status), ("discard", "SUCCESS"));
        assert!(by.contains("decide_within_hours"), "{by}");
        assert_eq!(fixture.governor.reports_of(&fixture.decision(&run, 0))[0]["status"], "SUCCESS");
        eventually("nothing is kept of them", || (!fixture.keeps(NEW)).then_some(()));
    }
}

#[test]
fn changes_can_be_undone_until_the_time_is_over() {
    let Some(clock) = WallClock::new() else { return };
    let tools = [edits(EDITS, "staged"), edits("together", "atomic")];
    let fixture =
        StagedFixture::start_with(tools, |options| clock.for_server(options).set("effects.keep_days", 2));
    for (tool, status) in [(EDITS, "STAGED"), ("together", "SUCCESS")] {
        fixture.set_files(BEFORE);
        clock.set(0);
        let run = fixture.run_apart(tool, status);
        if status == "STAGED" {
            fixture.succeed("anna", Act::Commit, &run);
        }
        clock.set(47 * HOUR);
        assert_stays(&fixture, &run, "in_force");
        assert!(fixture.keeps("the file that is deleted"), "{tool}: the original is kept");
        clock.set(49 * HOUR);
        eventually("the changes stay for good", || (fixture.state(&run) == "kept").then_some(()));
        error(&fixture.decide("anna", Act::Undo, &run), -32600);
        assert_eq!(fixture.files(), entries(AFTER), "{tool}");
        let is_forgotten = || (!fixture.keeps("the file that is deleted")).then_some(());
        eventually("the original is removed", is_forgotten);
    }
    assert!(fixture.sets("otto").is_empty());
}

#[test]
fn without_days_nothing_can_be_undone() {
    let tools = [edits(EDITS, "staged"), edits("together", "atomic")];
    let fixture = StagedFixture::start_with(tools, |options| options.set("effects.keep_days", 0));
    for (tool, status) in [(EDITS, "STAGED"), ("together", "SUCCESS")] {
        fixture.set_files(BEFORE);
        let run = fixture.run_apart(tool, status);
        if status == "STAGED" {
            decided(&fixture.decide("anna", Act::Commit, &run), "SUCCESS");
        }
        assert_eq!((&*fixture.state(&run), fixture.files()), ("kept", entries(AFTER)), "{tool}");
        error(&fixture.decide("anna", Act::Undo, &run), -32600);
        eventually("no original is kept", || {
            (!fixture.keeps("the file that is deleted") && !fixture.keeps(NEW)).then_some(())
        });
        assert!(fixture.sets("otto").is_empty(), "{tool}");
    }
}

fn one_mb(options: Options) -> Options {
    options.set("effects.max_mb", 1)
}

#[test]
fn waiting_changes_that_use_all_space_refuse_other_staged_runs() {
    let [one, two] = ["one", "two"].map(|name| large(name, FITTING_CHUNKS));
    let tools = [one, two, edits("together", "atomic"), edits("direct", "direct")];
    let fixture = StagedFixture::start_with(tools, one_mb);
    let run = fixture.stage("one");
    let used = fixture.set(&run)["bytes"].as_u64().unwrap();
    assert!((3 << 17..=1 << 19).contains(&used), "{used}: {}", run.report);
    for tool in ["two", "together"] {
        let refused = fixture.ask("agent", "a2g/execute", &execute(tool, json!({})));
        let message = error(&refused, -32003)["message"].as_str().expect("a message");
        assert!(message.contains("max_mb"), "{message}");
    }
    assert_eq!(fixture.files(), entries(BEFORE));
    // A run whose changes take effect at once needs no space.
    let direct = fixture.ask("agent", "a2g/execute", &execute("direct", json!({})));
    assert_eq!(result(&direct)["status"], "SUCCESS", "{direct}");
    assert_eq!(fixture.files(), entries(AFTER));
    fixture.succeed("agent", Act::Discard, &run);
    let run = fixture.stage("two");
    // Once it is in force, its space is free for others, at the cost of the undo.
    decided(&fixture.decide("anna", Act::Commit, &run), "SUCCESS");
    assert!(fixture.files().contains_key("two"));
    let run = fixture.stage("one");
    fixture.succeed("agent", Act::Discard, &run);
}

/// It has room when it begins, and may not use more than that.
#[test]
fn a_run_that_writes_more_than_is_left_ends() {
    let fixture = StagedFixture::start_with([large("beyond", 80), edits(EDITS, "staged")], one_mb);
    let ended = fixture.ask("agent", "a2g/execute", &execute("beyond", json!({})));
    let fault = error(&ended, -32003);
    assert_eq!(fault["data"]["limit"], "written_bytes", "{ended}");
    assert!(fault["message"].as_str().is_some_and(|message| message.contains("effects.max_mb")), "{ended}");
    assert!(fixture.sets("otto").is_empty());
    fixture.stage(EDITS);
}

/// One more file than a run may open, with the folder, makes it a failure. Only the long version makes so
/// many.
#[test]
fn tens_of_thousands_of_new_files_are_listed_and_committed_in_time() {
    let is_long = times(0) > 0;
    let created: usize = if is_long { 99_000 } else { 20_000 };
    let creates = |name: &str, count: usize| {
        tool_of_body(name, "staged", format!("(call $create_many (i32.const {count}))"))
    };
    let set = |options: Options| {
        options
            .set("ceilings.max_created", 200_000)
            .set("ceilings.timeout_seconds", 300)
            .set("server.max_memory_mb", 2048)
    };
    let fixture = StagedFixture::start_with([creates("fits", created), creates("beyond", 100_000)], set);
    fixture.set_files(&[("many/", "")]);
    let count = || std::fs::read_dir(fixture.home().workspace().join("many")).unwrap().count();
    let mut limits = manifest();
    limits["timeout_seconds"] = json!(300);
    let call = approved(intent("fits", json!({})), &limits);
    let answer = in_time(is_long, || fixture.ask("agent", "a2g/execute", &call));
    let run = super::StagedRun::of(&call, &answer, "STAGED");
    assert_eq!(run.report["usage"]["effects"]["changes"], created);
    in_time(is_long, || fixture.succeed("anna", Act::Commit, &run));
    assert_eq!(count(), created);
    in_time(is_long, || fixture.succeed("anna", Act::Undo, &run));
    assert_eq!(count(), 0);
    if is_long {
        let ended = fixture.ask("agent", "a2g/execute", &approved(intent("beyond", json!({})), &limits));
        error(&ended, -32001);
        assert_eq!((count(), fixture.sets("otto").len()), (0, 0));
    }
}

/// Does something that may take a minute, or in the long version of a test as long as a client waits.
fn in_time<T>(is_long: bool, act: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = act();
    let took = begun.elapsed();
    assert!(is_long || took < Duration::from_secs(60), "{took:?}");
    done
}

#[test]
fn the_oldest_changes_that_can_be_undone_are_forgotten_for_space() {
    let small = tool("small", "staged", &[Step::Write("small", "x")]);
    let replaces = |name: &'static str| tool(name, "staged", &[Step::Write(name, "x")]);
    let fixture = StagedFixture::start_with([small, replaces("first"), replaces("second")], one_mb);
    // What is replaced is kept for the undo.
    let original = "y".repeat(LARGE_BYTES);
    fixture.set_files(&[("first", original.as_str()), ("second", original.as_str())]);
    let oldest = fixture.stage("small");
    fixture.succeed("anna", Act::Commit, &oldest);
    for name in ["first", "second"] {
        let run = fixture.stage(name);
        decided(&fixture.decide("anna", Act::Commit, &run), "SUCCESS");
        eventually("its changes stay for good", || (fixture.state(&run) == "kept").then_some(()));
        error(&fixture.decide("anna", Act::Undo, &run), -32600);
        assert_eq!(fixture.files()[name], "x");
    }
    assert_eq!(fixture.state(&oldest), "kept");
    let run = fixture.stage("small");
    fixture.succeed("anna", Act::Commit, &run);
    assert_stays(&fixture, &run, "in_force");
}
