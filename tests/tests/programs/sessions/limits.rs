//! The operator's limits on sessions, and calls that cannot have one.

use super::*;

/// The message with which a call is refused because of a limit. Nothing runs.
fn expect_exhausted(fixture: &Fixture, call: &Value, limit: &str) {
    let answer = fixture.ask(call);
    let message = expect_blocked(&answer, "sessions_exhausted");
    assert!(message.contains(limit) && message.contains("a2g/session/end"), "{message}");
}

#[test]
fn the_number_of_sessions_is_limited_for_each_agent_and_in_all() {
    let limits = options().set("sessions.max", 3).set("sessions.max_per_agent", 2);
    let fixture = Fixture::start(limits);
    let new = || turn("new", json!([["keep", "a"]]));
    let handles = [fixture.open("a"), fixture.open("a")];
    for _ in 0..20 {
        expect_exhausted(&fixture, &new(), "sessions.max_per_agent");
    }
    let named = fixture.ask(&new()).to_string();
    for handle in &handles {
        // The beginning, because the refusal is recorded.
        assert!(named.contains(&handle[..12]) && !named.contains(handle.as_str()), "{named}");
    }
    handle_of(&fixture.run(&of_agent(new(), OTHER_AGENT)));
    expect_exhausted(&fixture, &of_agent(new(), OTHER_AGENT), "sessions.max");
    assert!(fixture.end(AGENT, &handles[0]));
    fixture.open("b");
    // A turn of a session that there is needs no room.
    fixture.run(&turn(&handles[1], json!([["keep", "c"]])));
    expect_exhausted(&fixture, &new(), "sessions.max");
}

#[test]
fn the_memory_of_all_sessions_is_limited() {
    let fixture = Fixture::start(options().set("sessions.max_memory_mb", 120));
    let handle = fixture.open("a");
    expect_exhausted(&fixture, &turn("new", json!([])), "sessions.max_memory_mb");
    assert!(fixture.end(AGENT, &handle));
    fixture.open("b");
}

#[test]
fn a_session_that_is_idle_for_too_long_ends() {
    let fixture = Fixture::start(options().set("sessions.idle_seconds", 3).set("sessions.max", 1));
    let handle = fixture.open("a");
    // Each turn begins the time anew.
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(1200));
        let report = fixture.run(&turn(&handle, json!([["keep", "b"]])));
        assert_eq!(report["session"]["idle_seconds"], 3, "{report}");
    }
    std::thread::sleep(std::time::Duration::from_millis(3500));
    fixture.expect_lost(&handle);
    fixture.open("c");
}

#[test]
fn zero_turns_sessions_off() {
    let fixture = Fixture::start(options().set("sessions.max", 0));
    let answer = fixture.ask(&turn("new", json!([["write", "/workspace/ran", ""]])));
    assert!(expect_blocked(&answer, "session_refused").contains("sessions.max"), "{answer}");
    assert_eq!(fixture.executor.file("ran"), None);
}

#[test]
fn only_declared_tools_with_processes_and_direct_changes_have_sessions() {
    let fixture = Fixture::start(options());
    let listed = fixture.executor.rpc("a2g/tools", &json!({}));
    for tool in result(&listed)["tools"].as_array().expect("tools") {
        let expected = if tool["name"] == "take_steps" { json!(true) } else { Value::Null };
        assert_eq!(tool["session"], expected, "{tool}");
    }
    let answer = fixture.ask(&in_session(intent("gate", json!({})), "new"));
    assert!(expect_blocked(&answer, "session_refused").contains("session = true"), "{answer}");
    assert_eq!(fixture.executor.runs_of_the_gate(), 0);
    drop(fixture);

    let ran = || turn("new", json!([["write", "/workspace/ran", ""]]));
    let inline = Fixture::start(Options::new().set("executor.isolation", "inline"));
    let answer = inline.ask(&ran());
    expect_blocked(&answer, "session_refused");
    assert_eq!(inline.executor.file("ran"), None);
    drop(inline);
    for effects in ["atomic", "staged"] {
        let catalogue = Catalogue::empty().add(take_steps().effects(effects));
        let apart = Fixture::start_in(options(), catalogue);
        let answer = apart.ask(&ran());
        assert!(expect_blocked(&answer, "session_refused").contains("direct"), "{answer}");
        assert_eq!(apart.executor.file("ran"), None);
    }
}

#[test]
fn a_call_of_a_run_has_no_session() {
    let fixture = Fixture::start(options().set("sessions.max", 1));
    let inner = |arguments: Value| json!(["call", "take_steps", arguments]);
    let steps = json!([
        ["keep", "outer"],
        inner(json!({ "steps": [["keep", "a"]] })),
        inner(json!({ "steps": [["keep", "b"]] })),
        inner(json!({ "steps": [["keep", "c"]], "session": "new" })),
    ]);
    let report = fixture.run(&turn("new", steps));
    let brought = &report["result"]["steps"];
    let expected = [json!(["outer"]), json!({ "steps": [["a"]] }), json!({ "steps": [["b"]] })];
    for (index, expected) in expected.iter().enumerate() {
        assert_eq!(brought[index], *expected, "{report}");
    }
    assert_eq!(brought[3]["failed"], "invalid_arguments", "{report}");
}
