//! The ends of sessions: nobody ever gets an empty one in place of the one that is lost.

use super::kills::kill_guests;
use super::*;
use std::thread::sleep;
use std::time::Duration;

#[test]
fn any_other_end_than_an_answer_ends_the_session() {
    let fixture = Fixture::start(options());
    for (what, step, grant) in [
        ("a trap", json!(["trap"]), json!({})),
        ("an exit", json!(["exit", 3]), json!({})),
        ("no more time", json!(["spin"]), json!({ "timeout_seconds": 1 })),
        ("no more memory", json!(["keep_memory", 100]), json!({})),
    ] {
        let call = |session: &str, steps: Value| granted(turn(session, steps), &grant);
        let handle = handle_of(&fixture.run(&call("new", json!([["keep", "a"]]))));
        let failed = fixture.run(&call(&handle, json!([["keep", "b"], step])));
        assert_ne!(failed["status"], "SUCCESS", "{what}: {failed}");
        let ended = json!({ "handle": handle, "turn": 2, "state": "ended", "reason": "turn_failed" });
        assert_eq!(failed["session"], ended, "{what}: {failed}");
        let answer = fixture.ask(&call(&handle, json!([["keep", "c"]])));
        let told = expect_blocked(&answer, "session_lost");
        for words in ["reached a limit of time, memory or output", "another session"] {
            assert!(told.contains(words), "{what}: {answer}");
        }
        let next = fixture.run(&call("new", json!([["keep", "d"]])));
        assert_eq!(*first_step(&next), json!(["d"]), "{what}");
        assert!(fixture.end(AGENT, &handle_of(&next)));
    }
}

#[test]
fn the_tools_own_error_ends_no_session() {
    let fixture = Fixture::start(options());
    let handle = fixture.open("a");
    let failed = fixture.run(&turn(&handle, json!([["keep", "b"], ["fail", "mine"]])));
    assert_eq!((&failed["tool_error"]["code"], handle_of(&failed)), (&json!("mine"), handle.clone()));
    let next = fixture.run(&turn(&handle, json!([["keep", "c"]])));
    assert_eq!((first_step(&next), &next["session"]["turn"]), (&json!(["a", "b", "c"]), &json!(3)));
}

#[test]
fn a_killed_process_ends_its_session() {
    let fixture = Fixture::start(options());
    let between = fixture.open("a");
    kill_guests(&fixture.executor);
    fixture.expect_lost(&between);

    let during = fixture.open("a");
    let running = fixture.begin(&during, "b");
    kill_guests(&fixture.executor);
    let report = report_of(&running.join().expect("no panic"));
    assert_eq!(
        (&report["status"], &report["session"]["state"]),
        (&json!("FAILURE"), &json!("ended")),
        "{report}"
    );
    fixture.expect_lost(&during);
}

#[test]
fn a_restarted_executor_has_no_session() {
    let fixture = Fixture::start(options());
    let handle = fixture.open("a");
    let fixture = fixture.restart();
    fixture.expect_lost(&handle);
    fixture.open("b");
}

#[test]
fn a_turn_that_the_executor_waits_for_at_its_end_is_the_last_one() {
    let mut fixture = Fixture::start(options().set("executor.drain_seconds", 60));
    let handle = fixture.open("a");
    let running = fixture.begin(&handle, "b");
    fixture.executor.process().terminate();
    // The signal arrives some time soon.
    sleep(Duration::from_millis(500));
    fixture.executor.open_the_gate();
    let report = report_of(&running.join().expect("no panic"));
    assert_eq!(report["status"], "SUCCESS", "{report}");
    let ended = json!({ "handle": handle, "turn": 2, "state": "ended", "reason": "shutdown" });
    assert_eq!(report["session"], ended, "{report}");
    assert_eq!(fixture.executor.process().wait_for_exit().code(), Some(0));
}

#[test]
fn a_stop_and_a_revocation_end_the_sessions_of_the_agent() {
    let fixture = Fixture::start(options());
    let rpc = |method: &str, params: Value| result(&fixture.executor.rpc(method, &params)).clone();
    let stopped = fixture.open("a");
    let target = json!({ "agent_did": AGENT });
    rpc("a2g/stop", json!({ "target": target, "reason": "a test" }));
    rpc("a2g/resume", json!({ "target": target }));
    fixture.expect_lost(&stopped);

    let revoked = fixture.open("a");
    rpc("g2a/revoke", target);
    let rule = json!({ "allowed": true, "constraints": {} });
    let capabilities = json!({ "tools": { "take_steps": rule } });
    rpc("g2a/policy", json!({ "agent_did": AGENT, "version": "v", "capabilities": capabilities }));
    fixture.expect_lost(&revoked);
    fixture.open("b");
}

#[test]
fn another_version_of_the_tool_ends_its_sessions() {
    let mut fixture = Fixture::start(options().set("sessions.max", 1));
    let handle = fixture.open("a");
    let digest = |fixture: &Fixture| {
        let listed = fixture.executor.rpc("a2g/tools", &json!({}));
        let tools = result(&listed)["tools"].as_array().expect("tools").clone();
        let found = tools.into_iter().find(|tool| tool["name"] == "take_steps");
        found.unwrap_or_else(|| panic!("{listed}"))["digest"].clone()
    };
    let before = digest(&fixture);
    let mut module = guest("take_steps");
    // A custom section with the name `x` and no content.
    module.extend([0, 2, 1, b'x']);
    let changed = Tool::typed_bytes("take_steps", module).calls(&["*"]).declare("session", json!(true));
    changed.write(&fixture.catalogue.folder().join("take_steps"), true);
    fixture.executor.process().hang_up();
    eventually("the catalogue has been read again", || (digest(&fixture) != before).then_some(()));
    fixture.expect_lost(&handle);
    // It has ended, and is not only refused.
    eventually("there is room", || fixture.ask(&turn("new", json!([]))).get("result").cloned());
}
