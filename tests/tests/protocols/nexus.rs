//! The Genesis Nexus door, over HTTP and WebSocket.

use harness::callers::{List, agent, bearer};
use harness::methods::{ESCALATES, write};
use harness::nexus::{Agent, EXECUTOR, Keys, OPERATOR, OTHER, PLANNER, ask, hex, now_ms, post_with};
use harness::{
    Executor, Home, HttpClient, Options, Process, WebSocketClient, eventually, result, run, set_mode,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

fn expect_failure<'a>(answer: &'a Value, code: &str) -> &'a Value {
    assert_eq!(answer["error"]["code"], code, "{answer}");
    let error = &answer["error"];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{answer}");
    assert!(error["timestamp"].as_u64().is_some() && error["retryable"].is_boolean(), "{answer}");
    assert!(error.get("stack").is_none(), "{answer}");
    error
}

fn expect_success(answer: &Value) -> &Value {
    assert_eq!((&answer["type"], &answer["status"]), (&json!("response"), &json!("SUCCESS")), "{answer}");
    &answer["data"]
}

fn socket(executor: &Executor, headers: &[(&str, &str)]) -> WebSocketClient {
    WebSocketClient::upgrade_at(executor.address(), "/nexus", headers).expect("a WebSocket")
}

fn send(socket: &mut WebSocketClient, message: &Value) {
    socket.send(message.to_string().as_bytes());
}

fn receive(socket: &mut WebSocketClient, agent: Agent) -> Value {
    agent.read(&serde_json::from_str(&socket.receive().expect("a message")).unwrap())
}

/// Sends a message over a WebSocket, and gives the response, whatever events come before.
fn exchange(socket: &mut WebSocketClient, agent: Agent, message: &Value) -> Value {
    send(socket, message);
    loop {
        let answer = receive(socket, agent);
        if answer["correlationId"] == message["id"] && answer["type"] != "ack" {
            return answer;
        }
    }
}

fn subscribe(socket: &mut WebSocketClient, agent: Agent, events: &[&str], guarantee: &str) -> Value {
    let parameters = json!({ "events": events, "deliveryGuarantee": guarantee });
    let answer = exchange(socket, agent, &agent.command("events.subscribe", &parameters));
    expect_success(&answer)["subscriptionId"].clone()
}

/// The next event.
fn event(socket: &mut WebSocketClient, agent: Agent) -> Value {
    loop {
        let message = receive(socket, agent);
        if message["type"] == "event" {
            return message;
        }
    }
}

/// Arguments of the gate, with a path for which the governor grants `/workspace`.
fn gate() -> Value {
    json!({ "path": "/workspace/x" })
}

fn assert_nothing_ran(executor: &Executor, after: &str) {
    executor.assert_workspace_is_empty(after);
    assert!(executor.reports().is_empty(), "after {after}: {:?}", executor.reports());
}

#[test]
fn a_sealed_command_gets_a_sealed_answer() {
    let keys = Keys::new();
    let executor = Executor::start(keys.options());
    let message = PLANNER.execute("write_file", write("a.txt", "hello"));
    let raw = post_with(&mut executor.client(), &[], message.to_string().as_bytes()).json();
    // The transcripts show the rest of the answer.
    assert!(raw.get("data").is_none() && raw["encryption"]["algorithm"] == "AES-256-GCM", "{raw}");
    expect_success(&PLANNER.read(&raw));
    assert_eq!(executor.file("a.txt").as_deref(), Some("hello"));
    let reports = executor.wait_for_reports(1);
    assert_eq!((&reports[0]["agent_did"], &reports[0]["intent_id"]), (&json!(PLANNER.did()), &message["id"]));
    let said = executor.stderr();
    for secret in [PLANNER.secret, &hex(&PLANNER.key)] {
        assert!(!said.contains(secret), "a secret is in the log");
    }
}

/// The transcripts check that the acknowledgement comes first over HTTP, too.
#[test]
fn a_command_is_acknowledged_before_its_run_is_over() {
    let keys = Keys::new();
    let (options, _policies, _catalogue) = keys.with_gate();
    let executor = Executor::start(options);
    let mut socket = socket(&executor, &[]);
    let message = gate_with_ack();
    send(&mut socket, &message);
    let ack = receive(&mut socket, PLANNER);
    assert_eq!((&ack["type"], &ack["correlationId"]), (&json!("ack"), &message["id"]));
    std::fs::write(executor.workspace().join("go"), "").unwrap();
    let answer = receive(&mut socket, PLANNER);
    assert_eq!(expect_success(&answer)["result"], json!({ "waited": true }));
}

/// A call of the gate that asks for an acknowledgement.
fn gate_with_ack() -> Value {
    let message = PLANNER.message("command", &json!({ "action": "tool.execute", "requiresAck": true }));
    PLANNER.sealed(message, &json!({ "parameters": { "tool": "gate", "arguments": gate() } }))
}

#[test]
fn unauthenticated_messages_run_nothing() {
    let keys = Keys::new();
    let executor = Executor::start(keys.options());
    let good = PLANNER.execute("write_file", write("a", "x"));
    let cleartext = PLANNER.message(
        "command",
        &json!({
            "action": "tool.execute",
            "payload": { "parameters": { "tool": "write_file", "arguments": write("a", "x") } },
        }),
    );
    let mut other = good.clone();
    other["from"]["id"] = json!(OTHER.id);
    let mut stranger = cleartext.clone();
    stranger["from"]["id"] = json!("stranger");
    let mut moved = PLANNER.execute("write_file", write("a", "x"));
    moved["encryption"] = good["encryption"].clone();
    let mut unsigned = good.clone();
    unsigned.as_object_mut().unwrap().remove("signature");
    unsigned["requiresSignature"] = json!(false);
    for (what, message) in [
        ("no signature", unsigned),
        ("another's signature", OTHER.signed(cleartext.clone())),
        ("another's name", other),
        ("a stranger's", PLANNER.signed(stranger)),
        ("the payload of another message", moved),
        ("another's key", {
            let key = Agent { key: OTHER.key, ..PLANNER };
            key.execute("write_file", write("a", "x"))
        }),
    ] {
        let answer = post_with(&mut executor.client(), &[], message.to_string().as_bytes()).json();
        expect_failure(&answer, "SIGNATURE_INVALID");
        assert_eq!(answer["type"], "error", "{what}: {answer}");
    }
    // A message to another executor.
    let mut elsewhere = PLANNER.message("command", &json!({ "action": "tool.execute" }));
    elsewhere["to"]["id"] = json!("did:a2g:executor:1.0:elsewhere");
    let parameters = json!({ "parameters": { "tool": "write_file", "arguments": write("a", "x") } });
    expect_failure(&ask(&executor, PLANNER, &PLANNER.sealed(elsewhere, &parameters)), "NOT_FOUND");
    // An expired message, and one from the future.
    for (timestamp, ttl) in [(now_ms() - 10_000, 5_000), (now_ms() + 120_000, 60_000)] {
        let mut message = PLANNER.message("command", &json!({ "action": "tool.execute" }));
        (message["timestamp"], message["ttl"]) = (json!(timestamp), json!(ttl));
        expect_failure(&ask(&executor, PLANNER, &PLANNER.sealed(message, &parameters)), "VALIDATION_ERROR");
    }
    assert_nothing_ran(&executor, "unauthenticated messages");
}

#[test]
fn a_fully_signed_command_may_be_unencrypted() {
    let keys = Keys::new();
    let door = json!({ "key_file": keys.path(), "signature_scope": "full" });
    let executor = Executor::start(Options::new().set("doors.nexus", door));
    let payload = |tool: &str| json!({ "parameters": { "tool": tool, "arguments": write("a", "x") } });
    let signed = |mut message: Value, payload: &Value| {
        let header = PLANNER.header(&message);
        let (start, end) = header.rsplit_once(",\"timestamp\"").unwrap();
        let text = format!("{start},\"action\":\"tool.execute\",\"payload\":{payload},\"timestamp\"{end}");
        message["signature"] = PLANNER.sign(&text).into();
        message
    };
    let message = |tool: &str, signed_tool: &str| {
        let more = json!({ "action": "tool.execute", "payload": payload(tool) });
        signed(PLANNER.message("command", &more), &payload(signed_tool))
    };
    let answer =
        post_with(&mut executor.client(), &[], message("read_file", "write_file").to_string().as_bytes());
    expect_failure(&answer.json(), "SIGNATURE_INVALID");
    assert_nothing_ran(&executor, "a payload that was not signed");
    let answer = ask(&executor, PLANNER, &message("write_file", "write_file"));
    assert_eq!(expect_success(&answer)["status"], "SUCCESS");
    assert!(answer.get("encryption").is_none(), "an unencrypted command gets an unencrypted answer");
    // The signature is that of `JSON.stringify`, and the message is written with white space and escapes. The answers are
    // one line each.
    let more = json!({ "action": "tool.execute", "payload": payload("write_file"), "requiresAck": true });
    let mut message = PLANNER.message("command", &more);
    message["from"]["endpoint"] = json!("https://é.example/");
    let message = signed(message, &payload("write_file"));
    let written = serde_json::to_string_pretty(&message).unwrap().replace('é', "\\u00e9");
    let answer = post_with(&mut executor.client(), &[], written.as_bytes());
    let text = answer.text();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line"));
    let lines = lines.collect::<Vec<_>>();
    let kinds = lines.iter().map(|line| (&line["type"], &line["to"], &line["signature"])).collect::<Vec<_>>();
    let signature = |line: &Value| json!(PLANNER.sign(&PLANNER.header(line)));
    assert_eq!(
        kinds,
        [
            (&json!("ack"), &message["from"], &signature(&lines[0])),
            (&json!("response"), &message["from"], &signature(&lines[1])),
        ]
    );
    expect_success(&lines[1]);
}

#[test]
fn message_ids_and_commands_are_single_use() {
    let keys = Keys::new();
    let executor = Executor::start(keys.options());
    let message = PLANNER.execute("write_file", write("a", "one"));
    let first = expect_success(&ask(&executor, PLANNER, &message)).clone();
    std::fs::remove_file(executor.workspace().join("a")).unwrap();
    assert_eq!(expect_success(&ask(&executor, PLANNER, &message)), &first, "the stored report");
    let other = |content: &str| {
        let mut other = PLANNER.message("command", &json!({ "action": "tool.execute" }));
        other["id"] = message["id"].clone();
        PLANNER.sealed(
            other,
            &json!({ "parameters": { "tool": "write_file", "arguments": write("a", content) } }),
        )
    };
    expect_failure(&ask(&executor, PLANNER, &other("two")), "VALIDATION_ERROR");
    let query = PLANNER.query("get_status", "executor");
    expect_success(&ask(&executor, PLANNER, &query));
    expect_failure(&ask(&executor, PLANNER, &query), "VALIDATION_ERROR");
    let mut reused = PLANNER.message(
        "query",
        &json!({
            "action": "get_status", "payload": { "resourceId": "executor" },
        }),
    );
    reused["id"] = message["id"].clone();
    expect_failure(&ask(&executor, PLANNER, &PLANNER.signed(reused)), "VALIDATION_ERROR");
    // The journal still has the command after a restart. Which other ids were used is forgotten, so
    // other messages from before the restart are refused.
    executor.wait_for_reports(1);
    let early = PLANNER.query("get_status", "executor");
    let executor = Executor::start_in(executor.kill());
    assert_eq!(expect_success(&ask(&executor, PLANNER, &message)), &first);
    expect_failure(&ask(&executor, PLANNER, &other("three")), "VALIDATION_ERROR");
    assert_eq!(
        expect_failure(&ask(&executor, PLANNER, &early), "VALIDATION_ERROR")["details"]["pointer"],
        "/timestamp"
    );
    expect_success(&ask(&executor, PLANNER, &PLANNER.query("get_status", "executor")));
    executor.assert_workspace_is_empty("repeats");
}

#[test]
fn escalated_and_cancelled_calls_have_their_status_and_code() {
    let keys = Keys::new();
    let (options, _policies, _catalogue) = keys.with_gate();
    let executor = Executor::start(options);
    // A call that waits for a person runs once it is approved.
    let message = PLANNER.execute("write_file", write("later", ESCALATES));
    let waits = ask(&executor, PLANNER, &message);
    assert_eq!(
        (&waits["status"], &waits["data"]["state"]),
        (&json!("PARTIAL"), &json!("escalated")),
        "{waits}"
    );
    let id = message["id"].as_str().unwrap();
    let state = |id: &str| ask(&executor, PLANNER, &PLANNER.query("get_status", id))["data"]["state"].clone();
    assert_eq!(state(id), "escalated");
    assert!(executor.file("later").is_none());
    result(&executor.rpc("g2a/directive", &json!({ "intent_id": id, "decision": "APPROVED" })));
    eventually("it runs", || (state(id) == "finished").then_some(()));
    assert_eq!(executor.file("later").as_deref(), Some(ESCALATES));
    // A cancelled call.
    let message = PLANNER.execute("gate", gate());
    let id = message["id"].as_str().unwrap();
    let cancelled = std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask(&executor, PLANNER, &message));
        eventually("it runs", || (state(id) == "running").then_some(()));
        let cancel =
            |agent: Agent| ask(&executor, agent, &agent.command("tool.cancel", &json!({ "intentId": id })));
        assert_eq!(expect_success(&cancel(PLANNER))["cancelled"], true);
        asked.join().unwrap()
    });
    expect_failure(&cancelled, "EXECUTION_FAILED");
    assert_eq!(cancelled["data"]["status"], "ABORTED");
}

/// The transcripts cover the other queries.
#[test]
fn a_sealed_query_is_answered_sealed() {
    let keys = Keys::new();
    let executor = Executor::start(keys.options());
    let message = PLANNER.execute("write_file", write("a", "x"));
    expect_success(&ask(&executor, PLANNER, &message));
    let id = message["id"].as_str().unwrap();
    let query = |question: &str, id: &str| ask(&executor, PLANNER, &PLANNER.query(question, id));
    assert!(expect_success(&query("get_metrics", id))["metrics"]["memoryUsedMb"].is_u64());
    assert_eq!(expect_success(&query("get_metrics", "executor"))["metrics"]["running"], 0);
    let sealed = PLANNER.message("query", &json!({ "action": "get_status" }));
    let sealed = PLANNER.sealed(sealed, &json!({ "resourceId": id }));
    let raw = post_with(&mut executor.client(), &[], sealed.to_string().as_bytes()).json();
    assert!(raw.get("data").is_none(), "{raw}");
    assert_eq!(expect_success(&PLANNER.read(&raw))["state"], "finished");
}

#[test]
fn messages_that_nobody_waits_for_are_not_answered() {
    let keys = Keys::new();
    let executor = Executor::start(keys.options());
    let mut client = executor.client();
    // Over HTTP there is nowhere to send events.
    let subscription = PLANNER.command("events.subscribe", &json!({ "events": ["finished"] }));
    expect_failure(&ask(&executor, PLANNER, &subscription), "VALIDATION_ERROR");
    let mut socket = socket(&executor, &[]);
    let error = json!({ "code": "TIMEOUT", "message": "x", "retryable": true, "timestamp": 1 });
    // The transcripts cover acknowledgements, responses and events.
    let message = PLANNER.signed(PLANNER.message("error", &json!({ "error": error })));
    let answer = post_with(&mut client, &[], message.to_string().as_bytes());
    assert_eq!((answer.status, answer.body.len()), (204, 0), "{}", answer.text());
    send(&mut socket, &message);
    expect_success(&exchange(&mut socket, PLANNER, &PLANNER.query("get_status", "executor")));
    // An event that is sent again is acknowledged again.
    let payload = json!({ "data": { "a": 1 }, "metadata": { "schemaVersion": "1", "contentType": "application/json" } });
    for guarantee in ["at-least-once", "exactly-once"] {
        let event = json!({
            "eventType": "plan", "eventName": "made", "deliveryGuarantee": guarantee, "payload": payload,
        });
        let event = PLANNER.signed(PLANNER.message("event", &event));
        for _ in 0..2 {
            let ack = ask(&executor, PLANNER, &event);
            assert_eq!((&ack["type"], &ack["correlationId"]), (&json!("ack"), &event["id"]));
        }
    }
    assert_nothing_ran(&executor, "messages other than commands");
}

/// A list of callers, and the token of each.
fn callers() -> (List, [String; 3]) {
    let list = List::new();
    let [planner, other] = [("a-planner", PLANNER), ("another", OTHER)];
    let [planner, other] = [planner, other].map(|(name, of)| agent(&list, name, &of.did()));
    let operator = list.add("an-operator", &["--role", "operator"]);
    (list, [planner, other, operator])
}

#[test]
fn a_token_may_act_for_its_own_agents_only() {
    let keys = Keys::new();
    let (list, [planner, other, operator]) = callers();
    let mut executor = Executor::start(list.of(keys.options().signed_only()));
    let ask = |agent: Agent, token: &str, message: &Value| {
        let shown = bearer(token);
        let answer =
            post_with(&mut executor.client(), &[("Authorization", &shown)], message.to_string().as_bytes());
        agent.read(&answer.json())
    };
    // Without a valid token, an HTTP request is refused, and a WebSocket is closed at its first
    // message. `doors.rs` checks this for the other doors.
    for shown in [None, Some("Bearer x".to_owned()), Some(format!("Basic {planner}"))] {
        let headers = shown.iter().map(|shown| ("Authorization", shown.as_str())).collect::<Vec<_>>();
        let message = PLANNER.execute("write_file", write("a", "x")).to_string();
        let answer = post_with(&mut executor.client(), &headers, message.as_bytes()).json();
        expect_failure(&answer, "AUTH_FAILED");
        let mut socket = socket(&executor, &headers);
        socket.send(message.as_bytes());
        assert_eq!((socket.receive(), socket.closed_with), (None, Some(4001)));
    }
    // A token of another agent.
    let message = PLANNER.execute("write_file", write("a", "x"));
    let refused = ask(PLANNER, &other, &message);
    assert_eq!(expect_failure(&refused, "UNAUTHORIZED")["details"]["blockedBy"], "caller_unauthorized");
    let operators = OPERATOR.execute("write_file", write("a", "x"));
    expect_failure(&ask(OPERATOR, &operator, &operators), "UNAUTHORIZED");
    assert_nothing_ran(&executor, "calls in others' names");
    // The token of the agent itself.
    expect_success(&ask(PLANNER, &planner, &PLANNER.execute("write_file", write("a", "x"))));
    // An intent is visible only to its own agent and to the operator.
    let message = PLANNER.execute("write_file", write("b", "x"));
    expect_success(&ask(PLANNER, &planner, &message));
    let id = message["id"].as_str().unwrap();
    expect_failure(&ask(OTHER, &other, &OTHER.query("get_status", id)), "NOT_FOUND");
    let cancel = OTHER.command("tool.cancel", &json!({ "intentId": id }));
    assert_eq!(expect_success(&ask(OTHER, &other, &cancel))["cancelled"], false);
    expect_success(&ask(OPERATOR, &operator, &OPERATOR.query("get_state", id)));
    expect_failure(&ask(PLANNER, &planner, &PLANNER.query("get_metrics", "executor")), "UNAUTHORIZED");
    expect_success(&ask(OPERATOR, &operator, &OPERATOR.query("get_metrics", "executor")));
    // So are its events.
    let shown = [planner, other, operator].map(|token| bearer(&token));
    let [mut planners, mut others, mut operators] =
        shown.each_ref().map(|shown| socket(&executor, &[("Authorization", shown)]));
    subscribe(&mut planners, PLANNER, &["finished"], "at-most-once");
    subscribe(&mut others, OTHER, &["finished"], "at-most-once");
    subscribe(&mut operators, OPERATOR, &["finished"], "at-most-once");
    let [mine, theirs] = [PLANNER, OTHER].map(|agent| agent.execute("write_file", write("c", "x")));
    expect_success(&exchange(&mut planners, PLANNER, &mine));
    expect_success(&exchange(&mut others, OTHER, &theirs));
    let seen = [(); 2].map(|()| event(&mut operators, OPERATOR)["payload"]["data"]["intentId"].clone());
    assert_eq!(seen, [mine["id"].clone(), theirs["id"].clone()]);
    let last = OTHER.execute("write_file", write("d", "x"));
    send(&mut others, &last);
    loop {
        let intent = event(&mut others, OTHER)["payload"]["data"]["intentId"].clone();
        assert_ne!(intent, mine["id"]);
        if intent == last["id"] {
            break;
        }
    }
    // The WebSocket of a caller that was removed from the list is closed.
    list.remove("another");
    executor.process().hang_up();
    executor.line_with("callers reloaded");
    send(&mut others, &OTHER.query("get_status", "executor"));
    while others.receive().is_some() {}
    assert_eq!(others.closed_with, Some(4001));
}

#[test]
fn a_line_stream_ends_when_its_caller_is_removed() {
    let keys = Keys::new();
    let (list, [planner, ..]) = callers();
    let (options, _policies, _catalogue) = keys.with_gate();
    let mut executor = Executor::start(list.of(options));
    let body = gate_with_ack().to_string();
    let head = format!(
        "POST /nexus HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {planner}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let stream = HttpClient::send_only(executor.address(), [head, body].concat().as_bytes());
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stream));
    let acked = lines.by_ref().map(Result::unwrap).find(|line| line.starts_with('{')).unwrap();
    assert!(acked.contains("\"ack\""), "{acked}");
    list.remove("a-planner");
    executor.process().hang_up();
    executor.line_with("callers reloaded");
    std::fs::write(executor.workspace().join("go"), "").unwrap();
    let rest = lines.map_while(Result::ok).collect::<Vec<_>>();
    assert!(!rest.iter().any(|line| line.contains("\"response\"")), "{rest:?}");
    executor.line_with("a streamed answer is aborted");
    // The body of an unauthenticated request is not read: it is refused without `100 Continue`.
    let held_back = "POST /nexus HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                     Expect: 100-continue\r\nContent-Length: 9\r\n\r\n";
    assert_eq!(executor.client().raw(held_back.as_bytes()).status, 401);
}

#[test]
fn messages_are_limited_to_a_hundred_per_second() {
    let keys = Keys::new();
    let executor = Executor::start(keys.options());
    let mut socket = socket(&executor, &[]);
    let start = Instant::now();
    let mut accepted = 0_u128;
    // The executor has to handle messages faster than it accepts them: on a busy machine, not every burst is limited.
    let limited = eventually("a burst exceeds the limit", || {
        let messages = (0..300).map(|_| PLANNER.query("get_status", "executor")).collect::<Vec<_>>();
        for message in &messages {
            send(&mut socket, message);
        }
        let answers = messages.iter().map(|_| receive(&mut socket, PLANNER)).collect::<Vec<_>>();
        let (limited, others) =
            answers.into_iter().partition::<Vec<_>, _>(|answer| answer["error"]["code"] == "RATE_LIMITED");
        accepted += others.len() as u128;
        limited.into_iter().next()
    });
    let most = 101 + start.elapsed().as_millis() / 10;
    assert!((100..=most).contains(&accepted), "{accepted} of {most}");
    let limited = expect_failure(&limited, "RATE_LIMITED");
    assert_eq!(limited["retryable"], true);
    let wait = limited["details"]["retryAfterMs"].as_u64();
    assert!(wait.is_some_and(|ms| (1..=10).contains(&ms)), "a message is accepted every 10 ms: {limited}");
    // Another agent has a limit of its own.
    expect_success(&ask(&executor, OTHER, &OTHER.query("get_status", "executor")));
    eventually("the limit allows a message again", || {
        let answer = exchange(&mut socket, PLANNER, &PLANNER.query("get_status", "executor"));
        (answer["status"] == "SUCCESS").then_some(())
    });
}

#[test]
fn priorities_order_the_queue() {
    let keys = Keys::new();
    let (options, _policies, _catalogue) = keys.with_gate();
    let executor = Executor::start(options.set("executor.concurrent", 1));
    let mut socket = socket(&executor, &[]);
    subscribe(&mut socket, PLANNER, &["started"], "exactly-once");
    let gate = PLANNER.execute_at("low", "gate", self::gate());
    send(&mut socket, &gate);
    eventually("it runs", || executor.file("runs"));
    let order = ["low", "normal", "critical", "high", "normal"];
    let waiting = order.map(|priority| PLANNER.execute_at(priority, "write_file", write(priority, "x")));
    for message in &waiting {
        send(&mut socket, message);
        let id = message["id"].as_str().unwrap();
        eventually("it waits", || {
            let answer = ask(&executor, PLANNER, &PLANNER.query("get_status", id));
            (answer["data"]["state"] == "queued").then_some(())
        });
    }
    std::fs::write(executor.workspace().join("go"), "").unwrap();
    let mut started = Vec::new();
    let mut seen = BTreeSet::new();
    while started.len() < 6 {
        let event = event(&mut socket, PLANNER);
        send(&mut socket, &PLANNER.ack(&event["id"]));
        if seen.insert(event["id"].to_string()) {
            started.push(event["payload"]["data"]["intentId"].clone());
        }
    }
    let expected = [&gate, &waiting[2], &waiting[3], &waiting[1], &waiting[4], &waiting[0]];
    assert_eq!(started, expected.map(|message| message["id"].clone()));
}

#[test]
fn events_are_delivered_with_the_requested_guarantee() {
    let keys = Keys::new();
    let executor = Executor::start(keys.options());
    let mut first = socket(&executor, &[]);
    let all = ["started", "progress", "log", "artifact", "finished"];
    subscribe(&mut first, PLANNER, &["started"], "at-most-once");
    let once = subscribe(&mut first, PLANNER, &["finished"], "exactly-once");
    let message = PLANNER.execute("write_file", write("a", "x"));
    send(&mut first, &message);
    let started = event(&mut first, PLANNER);
    let finished = event(&mut first, PLANNER);
    assert_eq!((&started["eventType"], &started["eventName"]), (&json!("execution"), &json!("started")));
    assert_eq!(
        (&started["deliveryGuarantee"], &started["requiresAck"]),
        (&json!("at-most-once"), &json!(false))
    );
    assert_eq!((&finished["eventName"], &finished["requiresAck"]), (&json!("finished"), &json!(true)));
    let data = &finished["payload"]["data"];
    assert_eq!(
        (&data["intentId"], &data["status"], &data["agent"]),
        (&message["id"], &json!("SUCCESS"), &json!(PLANNER.did()))
    );
    assert_eq!((&data["subscriptionId"], &data["sequence"]), (&once, &json!(1)));
    assert_eq!(finished["payload"]["metadata"]["contentType"], "application/json");
    // An event that is not acknowledged is sent again, with the same id.
    let again = event(&mut first, PLANNER);
    assert_eq!((&again["id"], &again["eventName"]), (&finished["id"], &json!("finished")));
    // It is also sent over the next connection, with the events that happened meanwhile.
    drop(first);
    let later = PLANNER.execute("write_file", write("b", "x"));
    expect_success(&ask(&executor, PLANNER, &later));
    let mut second = socket(&executor, &[]);
    send(&mut second, &PLANNER.query("get_status", "executor"));
    let mut ids = Vec::new();
    while ids.len() < 2 {
        let event = event(&mut second, PLANNER);
        assert_eq!(event["eventName"], "finished", "an at-most-once subscription ends with its connection");
        if !ids.contains(&event["id"]) {
            ids.push(event["id"].clone());
        }
    }
    assert_eq!(ids[0], finished["id"]);
    for id in &ids {
        send(&mut second, &PLANNER.ack(id));
    }
    // Acknowledged events are not sent again: all that come from here on are new.
    let unsubscribe = PLANNER.command("events.unsubscribe", &json!({ "subscriptionId": once }));
    assert_eq!(expect_success(&exchange(&mut second, PLANNER, &unsubscribe))["unsubscribed"], true);
    subscribe(&mut second, PLANNER, &all, "at-least-once");
    let last = PLANNER.execute("write_file", write("c", "x"));
    send(&mut second, &last);
    let mut names = BTreeSet::new();
    while !names.contains("finished") {
        let event = event(&mut second, PLANNER);
        assert_eq!(event["payload"]["data"]["intentId"], last["id"], "{event}");
        send(&mut second, &PLANNER.ack(&event["id"]));
        names.insert(event["eventName"].as_str().unwrap().to_owned());
    }
    assert!(names.contains("started"), "{names:?}");
}

#[test]
fn clients_that_disconnect_or_never_read_delay_no_others() {
    let keys = Keys::new();
    let executor = Executor::start(keys.options());
    let mut silent = socket(&executor, &[]);
    subscribe(&mut silent, PLANNER, &["started", "finished"], "exactly-once");
    subscribe(&mut silent, PLANNER, &["started", "finished"], "at-most-once");
    // `silent` reads nothing from here on.
    for nth in 0..40 {
        let message = OTHER.execute("write_file", write(&format!("{nth}"), "x"));
        expect_success(&ask(&executor, OTHER, &message));
    }
    let mut gone = socket(&executor, &[]);
    let message = PLANNER.execute("write_file", write("gone", "x"));
    send(&mut gone, &message);
    drop(gone);
    eventually("it runs to its end", || executor.file("gone"));
    let mut half = HttpClient::send_only(
        executor.address(),
        b"POST /nexus HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    );
    std::io::Write::flush(&mut half).unwrap();
    drop(half);
    expect_success(&ask(&executor, OTHER, &OTHER.query("get_status", "executor")));
    drop(silent);
}

#[test]
fn a_silent_socket_is_pinged_and_closed() {
    let keys = Keys::new();
    let door = json!({ "key_file": keys.path(), "heartbeat_seconds": 1 });
    let executor = Executor::start(Options::new().set("doors.nexus", door));
    let start = Instant::now();
    let mut stale = socket(&executor, &[]);
    stale.pongs = false;
    assert_eq!(stale.receive(), None, "it is closed");
    assert!(
        stale.pings >= 2 && start.elapsed() >= Duration::from_secs(3),
        "{} {:?}",
        stale.pings,
        start.elapsed()
    );
    // A socket that sends messages stays open.
    let mut answers = socket(&executor, &[]);
    for _ in 0..2 {
        expect_success(&exchange(&mut answers, PLANNER, &PLANNER.query("get_status", "executor")));
        std::thread::sleep(Duration::from_secs(2));
    }
    expect_success(&exchange(&mut answers, PLANNER, &PLANNER.query("get_status", "executor")));
}

#[test]
fn the_door_is_served_only_with_its_own_keys() {
    let keys = Keys::new();
    let refused = |words: &str| {
        let home = Home::new(keys.options());
        let checked = run(["config", "check", "--config", home.config().to_str().unwrap()]);
        assert!(String::from_utf8_lossy(&checked.stderr).contains(words), "{checked:?}");
        let mut process = Process::spawn("executor", &mut home.command());
        assert_ne!(process.wait_for_exit().code(), Some(0));
        process.line_with(words);
        assert!(!process.stderr().contains(PLANNER.secret));
    };
    set_mode(&keys.path(), 0o644);
    refused("other users may read");
    set_mode(&keys.path(), 0o600);
    std::fs::write(keys.path(), format!("{EXECUTOR} {} -\n", PLANNER.secret)).unwrap();
    refused("the executor's own id");
    let twice = format!("planner {} -\ndid:nexus:planner {} -\n", PLANNER.secret, OTHER.secret);
    std::fs::write(keys.path(), twice).unwrap();
    refused("under two ids");
    std::fs::write(keys.path(), format!("planner {}\n", PLANNER.secret)).unwrap();
    refused("line 1 must be three parts");
}

#[test]
fn the_answer_to_a_staged_run_is_partial_until_its_changes_are_in_force() {
    let keys = Keys::new();
    let executor = Executor::start(keys.options().set("ceilings.effects", "staged"));
    let message = PLANNER.execute("write_file", write("a", "hello"));
    let answer = ask(&executor, PLANNER, &message);
    assert_eq!((&answer["type"], &answer["status"]), (&json!("response"), &json!("PARTIAL")), "{answer}");
    let data = &answer["data"];
    assert_eq!(
        (&data["status"], &data["effects"]["state"]),
        (&json!("STAGED"), &json!("waiting")),
        "{answer}"
    );
    assert_eq!(data["effects"]["files"][0]["path"], "/workspace/a");
    executor.assert_workspace_is_empty("a run whose changes wait");
    let commit = json!({ "intent": message["id"], "digest": data["effects"]["digest"] });
    assert_eq!(executor.rpc("a2g/commit", &commit)["result"]["status"], "SUCCESS");
    assert_eq!(executor.file("a").as_deref(), Some("hello"));
    let repeated = ask(&executor, PLANNER, &message);
    assert_eq!(expect_success(&repeated)["effects"]["state"], "in_force", "{repeated}");
    let query = PLANNER.query("get_state", message["id"].as_str().unwrap());
    let state = ask(&executor, PLANNER, &query);
    assert_eq!(expect_success(&state)["report"]["effects"]["state"], "in_force", "{state}");
}
