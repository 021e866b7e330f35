//! Sessions at the doors whose callers name a conversation and no session: one is opened at a time, also by a call that
//! waits for a person, and the later calls of the conversation go on in it.

use super::*;
use std::sync::mpsc::channel;
use std::thread::scope;

/// The arguments of a call that keeps this text.
fn keep(text: &str) -> Value {
    json!({ "steps": [["keep", text]] })
}

/// The same, which then waits for the file `go`.
fn keep_and_wait(text: &str) -> Value {
    json!({ "steps": [["keep", text], ["wait_for", "/workspace/go"]] })
}

/// The same as [`keep`], about which a person decides.
fn keep_if_approved(text: &str) -> Value {
    json!({ "steps": [["keep", text]], "grant": { "verdict": "ESCALATE" } })
}

fn start_a2a() -> Fixture {
    Fixture::start(a2a::door(options(), json!({ "agent": AGENT })))
}

/// The params of a message of A2A with a call in this context; `asks` is its `session`.
fn message(context: &str, arguments: Value, asks: Option<bool>) -> Value {
    let mut params = a2a::call("take_steps", arguments);
    params["message"]["contextId"] = json!(context);
    if let Some(asks) = asks {
        params["message"]["metadata"] = json!({ "session": asks });
    }
    params
}

/// The outcome of the first step of a task's call, and its session.
fn read_task(task: &Value) -> (Value, Value) {
    let outcome = &task["artifacts"][0]["parts"][0]["data"]["steps"][0];
    (outcome.clone(), task["metadata"]["session"].clone())
}

/// A call of A2E; `asks` is its `session`.
fn a2e_turn(arguments: Value, asks: Option<bool>) -> Value {
    let mut call = a2e_call(&intent_id(), "take_steps", arguments);
    if let Some(asks) = asks {
        call["session"] = json!(asks);
    }
    call
}

/// The outcome of the first step of an answered call of A2E, and its session.
fn read_answer(answer: &Value) -> (Value, Value) {
    assert_eq!(answer["type"], "tool/call/resp", "{answer}");
    let data = &answer["data"];
    (data["data"]["steps"][0].clone(), data["summary"]["session"].clone())
}

#[test]
fn a_conversation_of_a2a_has_a_session_once_a_message_asks_for_one() {
    let fixture = start_a2a();
    let mut client = a2a::Client::of(&fixture.executor);
    let mut send = |context: &str, text: &str, asks: Option<bool>| {
        read_task(&client.result("message/send", message(context, keep(text), asks)))
    };
    assert_eq!(send("first", "a", None), (json!(["a"]), Value::Null));
    let (texts, session) = send("first", "b", Some(true));
    assert_eq!((texts, &session["turn"]), (json!(["b"]), &json!(1)));
    let (texts, next) = send("first", "c", None);
    assert_eq!((texts, &next["turn"], &next["handle"]), (json!(["b", "c"]), &json!(2), &session["handle"]));
    let (texts, other) = send("second", "d", Some(true));
    assert_eq!((texts, &other["turn"]), (json!(["d"]), &json!(1)));
}

#[test]
fn of_several_messages_of_a2a_at_once_one_opens_the_session() {
    let fixture = start_a2a();
    let executor = &fixture.executor;
    let send = |arguments: Value, asks: Option<bool>| {
        a2a::Client::of(executor).rpc("message/send", message("c", arguments, asks))
    };
    let answer = scope(|scope| {
        let (sender, answers) = channel();
        for text in ["a", "b", "c"] {
            let sender = sender.clone();
            scope.spawn(move || sender.send(send(keep_and_wait(text), Some(true))));
        }
        let next_answer = || answers.recv_timeout(TIMEOUT).expect("an answer");
        for _ in 0..2 {
            let refused = next_answer();
            assert_eq!(refused["error"]["data"]["blocked_by"], "session_busy", "{refused}");
        }
        let outside = send(keep("outside"), Some(false));
        assert_eq!(read_task(&outside["result"]), (json!(["outside"]), Value::Null), "{outside}");
        executor.open_the_gate();
        next_answer()
    });
    let (texts, session) = read_task(&answer["result"]);
    assert_eq!((texts.as_array().map(Vec::len), &session["turn"]), (Some(1), &json!(1)), "{answer}");
    let (next_texts, next) = read_task(&send(keep("next"), None)["result"]);
    assert_eq!((next_texts, &next["turn"]), (json!([texts[0], "next"]), &json!(2)));
    assert_eq!(next["handle"], session["handle"]);
}

#[test]
fn a_message_of_a2a_that_was_approved_opens_the_session() {
    let fixture = start_a2a();
    let mut client = a2a::Client::of(&fixture.executor);
    let waiting = client.result("message/send", message("c", keep_if_approved("a"), Some(true)));
    assert_eq!(waiting["status"]["state"], "input-required", "{waiting}");
    for asks in [Some(true), None] {
        let refused = client.rpc("message/send", message("c", keep("b"), asks));
        assert_eq!(refused["error"]["data"]["blocked_by"], "session_busy", "{refused}");
    }
    fixture.approve(&waiting["id"]);
    let (texts, session) = read_task(&client.until(&a2a::id(&waiting), "completed"));
    assert_eq!((texts, &session["turn"]), (json!(["a"]), &json!(1)));
    let (texts, next) = read_task(&client.result("message/send", message("c", keep("b"), None)));
    assert_eq!((texts, &next["turn"], &next["handle"]), (json!(["a", "b"]), &json!(2), &session["handle"]));
}

#[test]
fn a_session_of_a2e_keeps_the_sessions_of_its_tools_and_ends_them() {
    let fixture = Fixture::start(options().set("sessions.max", 1));
    let mut peer = A2eSession::open(&fixture.executor, None);
    peer.shake_hands(AGENT, "");
    let mut ask = |text: &str, asks: Option<bool>| {
        let (texts, session) = read_answer(&peer.ask(&a2e_turn(keep(text), asks)));
        (texts, session["turn"].clone())
    };
    assert_eq!(ask("a", Some(true)), (json!(["a"]), json!(1)));
    assert_eq!(ask("b", None), (json!(["a", "b"]), json!(2)));
    expect_blocked(&fixture.ask(&turn("new", json!([]))), "sessions_exhausted");
    peer.tell(&a2e("shutdown", "bye", json!({ "timeout": 5 })));
    eventually("there is room", || fixture.ask(&turn("new", json!([]))).get("result").cloned());
}

#[test]
fn of_several_calls_of_a2e_at_once_one_opens_the_session() {
    let fixture = Fixture::start(options());
    let mut peer = A2eSession::open(&fixture.executor, None);
    let mut handshake = a2e_handshake(AGENT, "");
    handshake["max_parallel"] = json!(3);
    assert_eq!(peer.ask(&handshake)["max_parallel"], 3);
    for text in ["a", "b", "c"] {
        peer.tell(&a2e_turn(keep_and_wait(text), Some(true)));
    }
    for _ in 0..2 {
        let refused = peer.next();
        assert_eq!(refused["detail"]["blocked_by"], "session_busy", "{refused}");
    }
    let outside = read_answer(&peer.ask(&a2e_turn(keep("outside"), Some(false))));
    assert_eq!(outside, (json!(["outside"]), Value::Null));
    fixture.executor.open_the_gate();
    let (texts, session) = read_answer(&peer.next());
    assert_eq!((texts.as_array().map(Vec::len), &session["turn"]), (Some(1), &json!(1)));
    let (next_texts, next) = read_answer(&peer.ask(&a2e_turn(keep("next"), None)));
    assert_eq!((next_texts, &next["turn"]), (json!([texts[0], "next"]), &json!(2)));
}

/// By default, the calls of a session of A2E run one after another.
#[test]
fn several_calls_of_a2e_in_order_are_turns_of_one_session() {
    let fixture = Fixture::start(options());
    let mut peer = A2eSession::open(&fixture.executor, None);
    peer.shake_hands(AGENT, "");
    for text in ["a", "b", "c"] {
        peer.tell(&a2e_turn(keep(text), Some(true)));
    }
    for expected in [json!(["a"]), json!(["a", "b"]), json!(["a", "b", "c"])] {
        assert_eq!(read_answer(&peer.next()).0, expected);
    }
}

#[test]
fn a_call_of_a2e_that_was_approved_opens_the_session() {
    let fixture = Fixture::start(options());
    let mut peer = A2eSession::open(&fixture.executor, None);
    peer.shake_hands(AGENT, "");
    let opens = a2e_turn(keep_if_approved("a"), Some(true));
    let waiting = peer.ask(&opens);
    assert_eq!(waiting["detail"]["blocked_by"], "escalation_pending", "{waiting}");
    for asks in [Some(true), None] {
        let refused = peer.ask(&a2e_turn(keep("b"), asks));
        assert_eq!(refused["detail"]["blocked_by"], "session_busy", "{refused}");
    }
    fixture.approve(&opens["id"]);
    let handle = handle_of(&fixture.await_report(&opens["id"]));
    // The door learns of the report a moment later.
    let next = eventually("the session is bound", || {
        let answer = peer.ask(&a2e_turn(keep("b"), None));
        (answer["detail"]["blocked_by"] != "session_busy").then_some(answer)
    });
    let (texts, session) = read_answer(&next);
    assert_eq!((texts, &session["turn"], &session["handle"]), (json!(["a", "b"]), &json!(2), &json!(handle)));
    // The call itself, sent again, is answered with its report.
    let (texts, session) = read_answer(&peer.ask(&opens));
    assert_eq!((texts, &session["turn"]), (json!(["a"]), &json!(1)));
}
