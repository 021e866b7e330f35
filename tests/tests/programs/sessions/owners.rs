//! The owner of a session, which alone may go on in it.

use super::*;
use harness::callers::{List, agent, rpc};

#[test]
fn a_foreign_forged_or_ended_handle_is_refused_alike() {
    let other_tool = Tool::typed_bytes("fan_out", guest("fan_out")).declare("session", json!(true));
    let fixture = Fixture::start_in(options(), Catalogue::empty().add(take_steps()).add(other_tool));
    let handle = fixture.open("a");
    let ended = fixture.open("b");
    assert!(fixture.end(AGENT, &ended));
    let steps = json!([["keep", "c"]]);
    let forged = format!("ses_{}", "0123456789abcdef".repeat(2));
    let messages = [
        ("forged", turn(&forged, steps.clone())),
        ("ended", turn(&ended, steps.clone())),
        ("of another agent", of_agent(turn(&handle, steps), OTHER_AGENT)),
        ("of another tool", in_session(intent("fan_out", json!({})), &handle)),
    ]
    .map(|(what, call)| {
        let answer = fixture.ask(&call);
        (what, expect_blocked(&answer, "session_lost").to_owned())
    });
    for (what, message) in &messages {
        assert_eq!(*message, messages[0].1, "{what}");
    }
    // Only its owner ends it, and none of this has.
    assert!(
        !fixture.end(OTHER_AGENT, &handle) && !fixture.end(AGENT, &forged) && !fixture.end(AGENT, &ended)
    );
    let next = fixture.run(&turn(&handle, json!([["keep", "d"]])));
    assert_eq!((first_step(&next), &next["session"]["turn"]), (&json!(["a", "d"]), &json!(2)));
}

#[test]
fn what_is_no_handle_is_an_invalid_call() {
    let fixture = Fixture::start(options());
    let handle = fixture.open("a");
    let upper = handle.to_uppercase();
    let longer = format!("{handle}0");
    for session in ["", "New", "ses_", &handle[4..], &upper, &longer, " new"] {
        let answer = fixture.ask(&turn(session, json!([["write", "/workspace/ran", ""]])));
        assert_eq!(error(&answer, -32602)["data"]["pointer"], "/session", "{answer}");
    }
    for session in [json!(1), json!(true), json!({}), json!([handle])] {
        let mut call = turn("new", json!([]));
        call["session"] = session;
        error(&fixture.ask(&call), -32602);
    }
    assert_eq!(fixture.executor.file("ran"), None);
}

#[test]
fn another_caller_of_the_same_agent_has_no_part_in_it() {
    let list = List::new();
    let mine = agent(&list, "mine", AGENT);
    let second = agent(&list, "second", AGENT);
    let fixture = Fixture::start(list.of(options()));
    let mut client = fixture.executor.client();
    let mut ask = |token: &str, method: &str, params: &Value| rpc(&mut client, token, method, params);
    let opened = report_of(&ask(&mine, "a2g/intent", &turn("new", json!([["keep", "a"]]))));
    let handle = handle_of(&opened);
    let steps = json!([["keep", "b"]]);
    expect_blocked(&ask(&second, "a2g/intent", &turn(&handle, steps.clone())), "session_lost");
    let end = json!({ "agent_did": AGENT, "session": handle });
    assert_eq!(result(&ask(&second, "a2g/session/end", &end))["ended"], false);
    let next = report_of(&ask(&mine, "a2g/intent", &turn(&handle, steps)));
    assert_eq!(*first_step(&next), json!(["a", "b"]));
    assert_eq!(result(&ask(&mine, "a2g/session/end", &end))["ended"], true);
    expect_blocked(&ask(&mine, "a2g/intent", &turn(&handle, json!([]))), "session_lost");
}

#[test]
fn the_sessions_of_two_agents_are_apart() {
    let fixture = Fixture::start(options());
    let mine = fixture.open("a");
    let theirs = handle_of(&fixture.run(&of_agent(turn("new", json!([["keep", "b"]])), OTHER_AGENT)));
    let next = fixture.run(&turn(&mine, json!([["keep", "c"]])));
    assert_eq!(*first_step(&next), json!(["a", "c"]));
    let next = fixture.run(&of_agent(turn(&theirs, json!([["keep", "d"]])), OTHER_AGENT));
    assert_eq!(*first_step(&next), json!(["b", "d"]));
}

#[test]
fn the_log_does_not_have_the_whole_handle() {
    let fixture = Fixture::start(options());
    let handle = fixture.open("a");
    assert!(!fixture.executor.stderr().contains(&handle));
}
