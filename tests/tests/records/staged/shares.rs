//! The shares of agents in the disk space of all sets: no agent takes that of the others, or the undo of what they did.

use super::{Act, BEFORE, EDITS, StagedFixture, Step, edits, entries, execute_as_other, large, tool};
use harness::{error, eventually, execute};
use serde_json::{Value, json};
use std::time::Duration;

/// So much of 2 MiB, which is the share of an agent, that no other run may begin.
const LARGE_CHUNKS: u64 = 112;

/// Asserts that a call is refused for lack of space, and which.
fn assert_no_room(answer: &Value, why: &str) {
    let message = error(answer, -32003)["message"].as_str().expect("a message");
    assert!(message.contains("max_mb") && message.contains(why), "{message}");
}

#[test]
fn what_waits_of_one_agent_leaves_half_of_the_space_to_others() {
    let tools = [large("large", LARGE_CHUNKS), edits(EDITS, "staged"), edits("together", "atomic")];
    let fixture = StagedFixture::start_with(tools, |options| options.set("effects.max_mb", 4));
    let own = fixture.stage("large");
    for tool in [EDITS, "together"] {
        assert_no_room(&fixture.ask("agent", "a2g/execute", &execute(tool, json!({}))), "half");
    }
    assert_eq!(fixture.files(), entries(BEFORE));
    // Others have their own half, until nearly all is used.
    let small = fixture.stage_as_other(EDITS);
    let large = fixture.stage_as_other("large");
    assert_no_room(&fixture.ask("other", "a2g/execute", &execute_as_other(EDITS)), "all of");
    fixture.succeed("other", Act::Discard, &large);
    fixture.succeed("other", Act::Discard, &small);
    assert_no_room(&fixture.ask("agent", "a2g/execute", &execute(EDITS, json!({}))), "half");
    // What is in force counts for nobody.
    fixture.succeed("anna", Act::Commit, &own);
    fixture.stage(EDITS);
}

#[test]
fn an_agent_that_uses_much_loses_its_own_undo_first() {
    const REPLACED: [&str; 4] = ["first", "second", "third", "fourth"];
    let replaces = REPLACED.map(|name| tool(name, "staged", &[Step::Write(name, "x")]));
    let tools = replaces.into_iter().chain([tool("small", "staged", &[Step::Write("small", "x")])]);
    let fixture = StagedFixture::start_with(tools, |options| options.set("effects.max_mb", 10));
    // What is replaced is kept for the undo: three of these are less than all space, and four are more.
    let original = "y".repeat(3 << 20);
    fixture.set_files(&REPLACED.map(|name| (name, original.as_str())));
    let oldest = fixture.stage("small");
    fixture.succeed("anna", Act::Commit, &oldest);
    let runs = REPLACED.map(|name| {
        let run = fixture.stage_as_other(name);
        fixture.succeed("anna", Act::Commit, &run);
        run
    });
    eventually("the undo of the first is gone", || (fixture.state(&runs[0]) == "kept").then_some(()));
    // Longer than the time between two looks.
    std::thread::sleep(Duration::from_millis(2500));
    let states = runs.each_ref().map(|run| fixture.state(run));
    assert_eq!(states, ["kept", "in_force", "in_force", "in_force"]);
    fixture.succeed("anna", Act::Undo, &oldest);
    assert!(!fixture.files().contains_key("small"));
}
