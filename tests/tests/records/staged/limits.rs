//! The limits of `[effects]`: the time to decide, the time to undo, and the disk space of all sets.

use super::{
    AFTER, Act, BEFORE, CHUNK_BYTES, EDITS, NEW, StagedFixture, Step, decided, edits, entries, large, tool,
};
use harness::{Options, WallClock, error, eventually, execute, result};
use serde_json::json;

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
