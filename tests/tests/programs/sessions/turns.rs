//! Turns: what each finds of those before it, and what it has of its own.

use super::*;

#[test]
fn memory_and_open_files_stay_for_the_next_call() {
    let fixture = Fixture::start(options());
    let steps = json!([
        ["keep", "a"],
        ["write", "/workspace/notes", "one"],
        ["open", "notes", "/workspace/notes", "rw"],
        ["keep_file", "notes"],
    ]);
    let first = fixture.run(&turn("new", steps));
    let handle = handle_of(&first);
    let digits = handle.strip_prefix("ses_").expect("a prefix");
    assert!(digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{handle}");
    let session = json!({ "handle": handle, "turn": 1, "state": "kept", "idle_seconds": 600 });
    assert_eq!(first["session"], session, "{first}");
    assert_eq!(*first_step(&first), json!(["a"]));

    let steps = json!([["keep", "b"], ["kept_file", "notes"], ["write_open", "notes", 3, "two"]]);
    let second = fixture.run(&turn(&handle, steps));
    assert_eq!(*first_step(&second), json!(["a", "b"]), "{second}");
    assert_eq!((&second["session"]["handle"], &second["session"]["turn"]), (&json!(handle), &json!(2)));
    assert_eq!(fixture.executor.file("notes").as_deref(), Some("onetwo"));

    // Beside it: a call without a session, and a session of its own.
    let without = fixture.run(&intent("take_steps", json!({ "steps": [["keep", "c"]] })));
    assert_eq!((first_step(&without), &without["session"]), (&json!(["c"]), &Value::Null));
    let other = fixture.run(&turn("new", json!([["keep", "d"]])));
    assert_eq!(*first_step(&other), json!(["d"]));
    assert_ne!(handle_of(&other), handle);
    assert_eq!(*first_step(&fixture.run(&turn(&handle, json!([["keep", "e"]])))), json!(["a", "b", "e"]));
}

/// A module that serves several tools gets the settings of its tool with each turn, and keeps what it keeps.
#[test]
fn each_turn_of_a_tool_with_settings_gets_them() {
    let settings = json!({ "kind": "x", "list": [1] });
    let arguments = json!({ "type": "object", "properties": { "steps": { "type": "array" } } });
    let tool = take_steps().declare("arguments", arguments).declare("settings", settings.clone());
    let fixture = Fixture::start_in(options(), Catalogue::empty().add(tool));
    let first = fixture.run(&turn("new", json!([["keep", "a"], ["settings"]])));
    let second = fixture.run(&turn(&handle_of(&first), json!([["keep", "b"], ["settings"]])));
    for (report, kept) in [(first, json!(["a"])), (second, json!(["a", "b"]))] {
        assert_eq!(report["result"]["steps"], json!([kept, settings]), "{report}");
    }
}

#[test]
fn an_executed_call_has_a_session_too() {
    let fixture = Fixture::start(options());
    let mut call = execute("take_steps", json!({ "steps": [["keep", "a"]] }));
    call["session"] = json!("new");
    let answer = fixture.executor.rpc("a2g/execute", &call);
    let handle = handle_of(result(&answer));
    let mut next = execute("take_steps", json!({ "steps": [["keep", "b"]] }));
    next["session"] = json!(handle);
    let answer = fixture.executor.rpc("a2g/execute", &next);
    assert_eq!(*first_step(result(&answer)), json!(["a", "b"]), "{answer}");
    // The governor decided on the one in the intent.
    next["intent"]["session"] = json!("new");
    let answer = fixture.executor.rpc("a2g/execute", &next);
    assert!(error(&answer, -32602).to_string().contains("/session"), "{answer}");
}

#[test]
fn each_turn_has_a_receipt_with_its_own_figures() {
    let fixture = Fixture::start(options());
    let read = json!(["call", "read_file", { "path": "/workspace/none" }]);
    let steps = json!([["work", 400], read, ["read", "/etc/passwd"], ["write", "/workspace/a", "a"], read]);
    let busy = turn("new", steps);
    let first = fixture.run(&busy);
    let quiet = turn(&handle_of(&first), json!([["keep", "a"], read]));
    let second = fixture.run(&quiet);

    let cpu_ms = |report: &Value| {
        let metric = |name: &str| report["metrics"][name].as_f64().expect("a number");
        metric("duration_ms") * metric("cpu_percent") / 100.0
    };
    // On a busy machine, the guest has only a part of the processor while it works.
    assert!(cpu_ms(&first) > 50.0 && cpu_ms(&second) < cpu_ms(&first) / 2.0, "{first}\n{second}");
    assert!(first["usage"]["denied"].to_string().contains("/etc/passwd"), "{first}");
    assert_eq!(second["usage"]["denied"], json!([]), "{second}");
    let created = |report: &Value| report["usage"]["limits"]["max_created"]["used"].clone();
    assert_eq!((created(&first), created(&second)), (json!(1), json!(0)));
    // Calls are numbered anew, and are those of their turn.
    for (call, report, count) in [(&busy, &first, 2), (&quiet, &second, 1)] {
        let listed = report["calls"]["list"].as_array().expect("a list");
        assert_eq!(listed.len(), count, "{report}");
        let parent = call["intent_id"].as_str().expect("an id").parse::<uuid::Uuid>().expect("a UUID");
        assert_eq!(listed[0]["intent_id"], uuid::Uuid::new_v5(&parent, b"1").to_string(), "{report}");
    }
    let records = fixture.executor.home().list_journal(&[]);
    for call in [busy, quiet] {
        assert!(records.iter().any(|record| record["intent_id"] == call["intent_id"]), "{records:?}");
    }
}

#[test]
fn each_turn_has_the_time_and_the_cpu_of_its_own_grant() {
    let fixture = Fixture::start(options());
    let run = |session: &str, steps: Value, seconds: u64, percent: u64| {
        let grant = json!({ "timeout_seconds": seconds, "max_cpu_percent": percent });
        let report = fixture.run(&granted(turn(session, steps), &grant));
        let granted = |name: &str| report["usage"]["limits"][name]["granted"].clone();
        assert_eq!(granted("timeout_seconds"), json!(seconds), "{report}");
        assert_eq!(granted("max_cpu_percent"), json!(percent), "{report}");
        report
    };
    let handle = handle_of(&run("new", json!([["keep", "a"]]), 1, 100));
    let longer = run(&handle, json!([["keep", "b"], ["sleep", 1500]]), 60, 100);
    assert_eq!(*first_step(&longer), json!(["a", "b"]), "{longer}");
    let slower = run(&handle, json!([["keep", "c"], ["work", 500]]), 60, 5);
    handle_of(&slower);
    assert!(slower["metrics"]["cpu_percent"].as_f64().expect("a number") < 20.0, "{slower}");
    let shorter = run(&handle, json!([["sleep", 60_000]]), 1, 100);
    assert_eq!(shorter["status"], "TIMEOUT", "{shorter}");
    assert!(shorter["metrics"]["duration_ms"].as_u64().expect("a number") < 30_000, "{shorter}");
    fixture.expect_lost(&handle);
}

#[test]
fn a_repeated_intent_is_answered_from_its_receipt_and_takes_no_turn() {
    let fixture = Fixture::start(options());
    let call = turn("new", json!([["keep", "a"]]));
    let first = fixture.run(&call);
    assert_eq!(fixture.run(&call), first);
    let next = turn(&handle_of(&first), json!([["keep", "b"]]));
    let second = fixture.run(&next);
    assert_eq!(fixture.run(&next), second);
    assert_eq!((&second["session"]["turn"], first_step(&second)), (&json!(2), &json!(["a", "b"])));
    // The same intent in another session is another call.
    let changed = in_session(next, "new");
    assert!(fixture.ask(&changed).get("error").is_some());
}

#[test]
fn a_call_that_a_turn_leaves_open_ends_with_it() {
    let fixture = Fixture::start(options());
    let steps = json!([["keep", "a"], ["start", "left", "gate", {}], ["wait_for", "/workspace/runs"]]);
    let first = fixture.run(&turn("new", steps));
    let handle = handle_of(&first);
    let left = &first["calls"]["list"][0];
    assert_eq!(left["status"], "ABORTED", "{first}");
    fixture.executor.open_the_gate();
    let steps = json!([["keep", "b"], ["call", "gate", {}]]);
    let second = fixture.run(&turn(&handle, steps));
    assert_eq!(second["result"]["steps"], json!([["a", "b"], { "waited": true }]), "{second}");
    assert_eq!(fixture.executor.runs_of_the_gate(), 2);
}

#[test]
fn a_second_turn_is_refused_while_one_runs() {
    let fixture = Fixture::start(options());
    let handle = fixture.open("a");
    let running = fixture.begin(&handle, "b");
    let message = fixture.ask(&turn(&handle, json!([["keep", "c"]])));
    assert!(expect_blocked(&message, "session_busy").contains("wait for its result"), "{message}");
    fixture.executor.open_the_gate();
    let second = report_of(&running.join().expect("no panic"));
    assert_eq!(handle_of(&second), handle);
    let third = fixture.run(&turn(&handle, json!([["keep", "c"]])));
    assert_eq!(*first_step(&third), json!(["a", "b", "c"]), "{third}");
}

#[test]
fn the_memory_limit_is_that_of_the_session() {
    let fixture = Fixture::start(options());
    let grant = json!({ "max_memory_mb": 24 });
    let fill = |session: &str| granted(turn(session, json!([["keep_memory", 8]])), &grant);
    let used =
        |report: &Value| report["usage"]["limits"]["max_memory_mb"]["used"].as_f64().expect("a number");
    let first = fixture.run(&fill("new"));
    let handle = handle_of(&first);
    let second = fixture.run(&fill(&handle));
    handle_of(&second);
    assert!(used(&first) < 16.0 && used(&second) >= 16.0, "{first}\n{second}");
    let third = fixture.run(&fill(&handle));
    assert!(third["error"].to_string().contains("memory"), "{third}");
    assert_eq!(third["session"]["state"], "ended", "{third}");
    fixture.expect_lost(&handle);
}
