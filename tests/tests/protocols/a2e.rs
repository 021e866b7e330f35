//! A2E over HTTP with server-sent events, and over standard input and output.

use harness::callers::{List, agent};
use harness::methods::{ESCALATES, write};
use harness::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const AGENT_DID: &str = "did:a2e:planner";

/// A command that ends with a code.
const EXITS: &str = r#"(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start") (call $exit (i32.const 3))))"#;

/// A command that traps.
const TRAPS: &str = r#"(module (memory (export "memory") 1) (func (export "_start") unreachable))"#;

/// A command that writes `lines` log lines of 1000 bytes, and answers 1.
fn chatters(lines: u32) -> String {
    format!(
        r#"(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "1")
  (func (export "_start") (local $left i32)
    (memory.fill (i32.const 1024) (i32.const 120) (i32.const 999))
    (i32.store8 (i32.const 2023) (i32.const 10))
    (i32.store (i32.const 0) (i32.const 1024))
    (i32.store (i32.const 4) (i32.const 1000))
    (local.set $left (i32.const {lines}))
    (loop $more
      (if (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8)) (then (unreachable)))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $more (local.get $left)))
    (i32.store (i32.const 0) (i32.const 16))
    (i32.store (i32.const 4) (i32.const 1))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#
    )
}

/// The configuration and catalogue that every test serves.
struct Served {
    catalogue: Catalogue,
    policies: TempDir,
}

impl Served {
    fn new() -> Self {
        let catalogue = methods::catalogue()
            .add(Tool::command("exits", EXITS))
            .add(Tool::command("traps", TRAPS))
            .add(Tool::command("chatters", &chatters(5)))
            .add(Tool::command("floods", &chatters(6000)));
        let anywhere = json!({ "paths": ["/workspace/**"] });
        let tools =
            ["write_file", "read_file", "search_text", "gate", "exits", "traps", "chatters", "floods"];
        let policy = policy_for_all(&tools.map(|tool| (tool, anywhere.clone())));
        Self { catalogue, policies: methods::policy_folder(&[policy]) }
    }

    fn options(&self) -> Options {
        let options = Options::new().catalogue(&self.catalogue).policies(self.policies.path());
        // Room for what `floods` says.
        options.set("ceilings.max_output_bytes", 8 << 20)
    }

    fn with(&self, door: Value) -> Options {
        self.options().set("doors.a2e", door)
    }

    /// An executor with these settings of the door, and the planner's session.
    fn session(&self, door: Value) -> (Executor, A2eSession) {
        let executor = Executor::start(self.with(door));
        let session = planners_session(&executor);
        (executor, session)
    }
}

fn planners_session(executor: &Executor) -> A2eSession {
    let mut session = A2eSession::open(executor, None);
    session.shake_hands("planner", "");
    session
}

/// Calls the gate, and waits until so many calls of it run.
fn call_gate(executor: &Executor, session: &mut A2eSession, id: &str, count: usize) {
    session.tell(&a2e_call(id, "gate", gate_arguments()));
    wait_for_runs(executor, count);
}

fn runs(executor: &Executor) -> usize {
    executor.file("runs").map_or(0, |runs| runs.len())
}

fn wait_for_runs(executor: &Executor, count: usize) {
    eventually("the gate runs", || (runs(executor) >= count).then_some(()));
}

/// Arguments of the tool `gate`; the governor grants the path that they name.
fn gate_arguments() -> Value {
    json!({ "path": "/workspace/x" })
}

fn open_the_gate(executor: &Executor) {
    std::fs::write(executor.workspace().join("go"), "").unwrap();
}

/// Checks that a message is an error with this code, and gives it.
fn expect_error<'a>(message: &'a Value, code: &str) -> &'a Value {
    assert_eq!((&message["type"], &message["code"]), (&json!("error"), &json!(code)), "{message}");
    let words = message["message"].as_str().unwrap();
    assert!(!words.is_empty() && !words.contains("a2g/"), "{message}");
    assert!(message["detail"].is_object() && message["retryable"].is_boolean(), "{message}");
    message
}

/// Checks that a message is the result of a tool that ran, and gives that.
fn expect_completed<'a>(message: &'a Value, tool: &str) -> &'a Value {
    assert_eq!(
        (&message["type"], &message["data"]["tool_name"]),
        (&json!("tool/call/resp"), &json!(tool)),
        "{message}"
    );
    assert!(message["data"]["duration_ms"].as_u64().is_some_and(|ms| ms > 0), "{message}");
    assert!(message["created_at"].is_f64(), "{message}");
    &message["data"]
}

fn expect_success<'a>(message: &'a Value, tool: &str) -> &'a Value {
    let result = expect_completed(message, tool);
    assert_eq!((&result["success"], &result["error_code"]), (&json!(true), &json!(null)), "{message}");
    &result["data"]
}

/// Everything that a session is for, whatever carries it.
fn converse(peer: &mut impl A2ePeer, file: &dyn Fn(&str) -> Option<String>) {
    let pong = peer.ask(&a2e("ping", "p0", json!({})));
    assert_eq!(pong["type"], "pong", "{pong}");
    assert!(pong["uptime_seconds"].as_f64().is_some_and(|seconds| seconds >= 0.0), "{pong}");
    // A message without an id gets no answer, and neither does an answer.
    for line in [r#"{"a2e":"1.0","type":"x/y","ts":1}"#, r#"{"a2e":"1.0","type":"error","id":"e","ts":1}"#] {
        peer.send_line(line.as_bytes());
    }
    let list = a2e("tool/list/req", "early", json!({}));
    expect_error(&peer.ask(&list), "unauthorized");
    expect_error(&peer.ask(&a2e_call("early", "write_file", write("early", "x"))), "unauthorized");

    negotiating(peer);
    listing(peer);
    calling(peer, file);
    failing(peer, file);
}

fn negotiating(peer: &mut impl A2ePeer) {
    let shake = |peer: &mut dyn FnMut(&Value) -> Value, caps: Value, more: Value| {
        let mut handshake = a2e_handshake("planner", "");
        handshake["agent_caps"] = caps;
        handshake.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        peer(&handshake)
    };
    let mut ask = |message: &Value| peer.ask(message);
    for (caps, more, reason) in [
        (json!(["memory", "env"]), json!({}), "no_caps"),
        (json!([]), json!({}), "no_caps"),
        (json!(["tools"]), json!({ "a2e": "2.0" }), "version_mismatch"),
        (json!(["tools"]), json!({ "version": "1.1" }), "version_mismatch"),
    ] {
        let answer = shake(&mut ask, caps, more);
        assert_eq!((&answer["ok"], &answer["reason"]), (&json!(false), &json!(reason)), "{answer}");
        assert_eq!(answer["accepted_caps"], json!([]));
    }
    expect_error(&shake(&mut ask, json!("tools"), json!({})), "schema_violation");
    for asked in [json!(0), json!("2"), json!(2.0), json!(1025)] {
        let refused = shake(&mut ask, json!(["tools"]), json!({ "max_parallel": asked }));
        assert_eq!(expect_error(&refused, "schema_violation")["detail"]["pointer"], "/max_parallel");
    }
    expect_error(
        &shake(&mut ask, json!(["tools"]), json!({ "agent_id": "did:NOT:one" })),
        "schema_violation",
    );

    // Optional features are no capabilities: the session opens, and has no tools.
    let answer = shake(&mut ask, json!(["streaming", "artifacts"]), json!({}));
    assert_eq!((&answer["ok"], &answer["accepted_caps"]), (&json!(true), &json!([])), "{answer}");
    let missing = ask(&a2e_call("none", "write_file", write("none", "x")));
    assert_eq!(expect_error(&missing, "capability_missing")["capability_name"], "tools");
    expect_error(&ask(&a2e("tool/list/req", "none", json!({}))), "capability_missing");

    // The executor's maximum is 4.
    for (asked, granted) in [(json!(3), 3), (json!(9), 4), (json!(null), 1)] {
        let answer = shake(&mut ask, json!(["tools"]), json!({ "max_parallel": asked }));
        assert_eq!(answer["max_parallel"], granted, "{asked}");
    }
    let answer = shake(&mut ask, json!(["tools", "memory", "mine"]), json!({}));
    let session = answer["session_id"].as_str().unwrap().to_owned();
    assert_eq!(
        (session.len(), &answer["ok"], &answer["max_parallel"]),
        (32, &json!(true), &json!(1)),
        "{answer}"
    );
    let caps = answer["accepted_caps"].as_array().unwrap();
    let caps = caps.iter().map(|cap| (cap["capability"].as_str().unwrap(), cap["enabled"] == true));
    assert_eq!(caps.collect::<Vec<_>>(), [("tools", true), ("memory", false)]);

    // One session is one agent's.
    let other = shake(&mut ask, json!(["tools"]), json!({ "agent_id": "somebody" }));
    assert_eq!((&other["ok"], &other["reason"]), (&json!(false), &json!("auth_failed")), "{other}");
    let missing = ask(&a2e("memory/store/req", "m", json!({ "entries": [] })));
    assert_eq!(expect_error(&missing, "capability_missing")["capability_name"], "memory");
    let mut call = a2e_call("of-another", "write_file", write("of-another", "x"));
    call["session_id"] = json!("0".repeat(32));
    expect_error(&ask(&call), "unauthorized");
    call["id"] = json!("of-this");
    call["session_id"] = json!(session);
    expect_success(&ask(&call), "write_file");
}

fn listing(peer: &mut impl A2ePeer) {
    let mut list = |more: Value| {
        let answer = peer.ask(&a2e("tool/list/req", "l", more));
        assert_eq!(answer["type"], "tool/list/resp", "{answer}");
        let tools = answer["tools"].as_array().unwrap().iter();
        tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // The transcripts show what is said of each.
    assert_eq!(list(json!({})).len(), 12);
    assert_eq!(list(json!({ "filter_tags": ["network"] })), ["http_fetch"]);
    assert_eq!(list(json!({ "filter_tags": ["network", "command"] })), [""; 0]);
    assert_eq!(list(json!({ "filter_kind": "command", "query": "GATE" })), ["gate"]);
    assert_eq!(list(json!({ "query": "hash", "include_deferred": true })), ["hash_file"]);
    assert_eq!(list(json!({ "query": "no such thing" })), [""; 0]);
}

fn calling(peer: &mut impl A2ePeer, file: &dyn Fn(&str) -> Option<String>) {
    // The same message again is the same call: by its UUID, and within a session by any id.
    let append = json!({ "path": "/workspace/log", "content": "x", "mode": "append" });
    let id = intent_id().replace('-', "");
    for id in [id.as_str(), "short"] {
        let first = peer.ask(&a2e_call(id, "write_file", append.clone()));
        assert_eq!(expect_success(&first, "write_file")["path"], "/workspace/log");
        let again = peer.ask(&a2e_call(id, "write_file", append.clone()));
        assert_eq!(expect_completed(&again, "write_file"), expect_completed(&first, "write_file"));
        let other = peer.ask(&a2e_call(id, "write_file", write("other", "x")));
        expect_error(&other, "invalid_message");
    }
    assert_eq!((file("log").as_deref(), file("other")), (Some("xx"), None));
    let listed =
        expect_completed(&peer.ask(&a2e_call(&id, "write_file", append)), "write_file")["summary"].clone();
    assert_eq!(listed["intent_id"].as_str().unwrap().replace('-', ""), id);

    // Events come first, in order, and the result does not repeat what came.
    let mut call = a2e_call("streamed", "chatters", json!({}));
    call["streaming"] = json!(true);
    peer.tell(&call);
    let (events, answer) = peer.answer("streamed");
    let kinds = events.iter().map(|event| event["kind"].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(kinds, ["status", "log", "log", "log", "log", "log"]);
    let seqs = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(seqs, [0, 1, 2, 3, 4, 5]);
    assert_eq!(events[0]["data"], json!({ "message": "started" }));
    assert_eq!(events[1]["data"]["message"], "x".repeat(999));
    assert_eq!(expect_completed(&answer, "chatters")["events"], json!([]));
    // A call without streaming gets its events with the result, and so does a repeated call.
    for call in [a2e_call("quiet", "chatters", json!({})), call] {
        let id = call["id"].as_str().unwrap().to_owned();
        peer.tell(&call);
        let (events, answer) = peer.answer(&id);
        assert_eq!(events, [] as [Value; 0]);
        let collected = expect_completed(&answer, "chatters")["events"].as_array().unwrap().clone();
        assert_eq!(collected.len(), 5, "{answer}");
        assert!(collected.iter().all(|event| event["kind"] == "log" && event["req_id"] == id), "{answer}");
    }
}

fn failing(peer: &mut impl A2ePeer, file: &dyn Fn(&str) -> Option<String>) {
    for name in ["no_such_tool", "", "../write_file", "tool/call"] {
        let unknown = peer.ask(&a2e_call(&format!("u{name}"), name, json!({})));
        assert_eq!(expect_error(&unknown, "unknown_tool")["retryable"], false);
    }
    let not_allowed = peer.ask(&a2e_call("not-allowed", "hash_file", json!({ "path": "/workspace/log" })));
    expect_error(&not_allowed, "tool_denied");

    let id = intent_id();
    let escalated = peer.ask(&a2e_call(&id, "write_file", write("secret", ESCALATES)));
    let escalated = expect_error(&escalated, "tool_denied");
    assert_eq!(escalated["detail"]["blocked_by"], "escalation_pending");
    assert_eq!((&escalated["retryable"], &escalated["detail"]["intent_id"]), (&json!(true), &json!(id)));
    assert!(escalated["message"].as_str().unwrap().contains("a person has to decide"));
    assert_eq!(file("secret"), None);

    let mut slow = a2e_call("slow", "gate", gate_arguments());
    slow["timeout"] = json!(1);
    let late = peer.ask(&slow);
    let late = expect_completed(&late, "gate");
    assert_eq!((&late["success"], &late["error_code"]), (&json!(false), &json!("timeout")), "{late}");
    assert!(late["error"].as_str().unwrap().contains("1 s, set by the caller"), "{late}");
    assert_eq!((&late["summary"]["status"], &late["summary"]["limit"]), (&json!("TIMEOUT"), &json!("time")));

    let exited = peer.ask(&a2e_call("exits", "exits", json!({})));
    let exited = expect_completed(&exited, "exits");
    assert_eq!((&exited["error_code"], &exited["exit_code"]), (&json!("tool_error"), &json!(3)), "{exited}");
    let trapped = peer.ask(&a2e_call("traps", "traps", json!({})));
    assert_eq!(expect_completed(&trapped, "traps")["error_code"], "sandbox_crash");
}

#[test]
fn a_session_over_http_can_do_everything() {
    let served = Served::new();
    let executor = Executor::start(served.options());
    let mut session = A2eSession::open(&executor, None);
    converse(&mut session, &|name| executor.file(name));
    let health = session.request("GET", "/a2e/health", b"");
    assert_eq!(
        (health.status, &health.json()["status"], &health.json()["a2e"]),
        (200, &json!("ok"), &json!("1.0"))
    );
    session.tell(&a2e("shutdown", "bye", json!({ "timeout": 5 })));
    assert_eq!(session.rest(), [] as [Value; 0]);
    eventually("the session is gone", || (session.post(b"").eq(&404)).then_some(()));
    let agents = executor.reports().iter().map(|report| report["agent_did"].clone()).collect::<Vec<_>>();
    assert!(agents.len() > 5 && agents.iter().all(|agent| agent == AGENT_DID), "{agents:?}");
}

#[test]
fn a_session_over_stdio_can_do_everything() {
    let served = Served::new();
    let mut door = StdioClient::start_as("--a2e-stdio", served.options());
    let workspace = door.workspace();
    converse(&mut door, &|name| std::fs::read_to_string(workspace.join(name)).ok());
    door.tell(&a2e("shutdown", "bye", json!({})));
    let (status, lines) = door.finish();
    assert!(status.success() && lines.is_empty(), "{status} {lines:?}");
}

#[test]
fn invalid_http_requests_get_specific_errors() {
    let served = Served::new();
    let executor = Executor::start(served.options());
    let mut session = A2eSession::open(&executor, None);
    let mut client = executor.client();
    let kind = ("Content-Type", "application/json");
    let id = session.id.clone();
    let named = ("X-Session-Id", id.as_str());
    for (method, path, headers, status) in [
        ("POST", "/a2e/send", vec![kind], 400),
        ("GET", "/a2e/stream", vec![], 400),
        ("POST", "/a2e/send", vec![kind, named, named], 400),
        ("POST", "/a2e/send", vec![kind, ("X-Session-Id", "nobody's")], 404),
        ("GET", "/a2e/stream", vec![("X-Session-Id", "")], 404),
        ("POST", "/a2e/send", vec![("Content-Type", "text/html"), named], 415),
        ("POST", "/a2e/send", vec![named], 415),
        ("POST", "/a2e/send", vec![("Content-Type", "text/plain; charset=utf-8"), named], 202),
        ("POST", "/a2e/send", vec![kind, named, ("Origin", "https://evil.example")], 403),
        ("POST", "/a2e/session", vec![("Origin", "https://evil.example")], 403),
        ("GET", "/a2e/send", vec![named], 405),
        ("POST", "/a2e/stream", vec![named], 405),
    ] {
        let answer = client.request(method, path, &headers, b"");
        assert_eq!(answer.status, status, "{method} {path} {headers:?}: {}", answer.text());
    }
    // Several messages in one body are several messages, in order.
    let lines = format!("{}\r\n\n{}", a2e("ping", "1", json!({})), a2e("ping", "2", json!({})));
    session.send_line(lines.as_bytes());
    assert_eq!(
        (session.next()["req_id"].clone(), session.next()["req_id"].clone()),
        (json!("1"), json!("2"))
    );
    let many = format!("{}\n", a2e("ping", "1", json!({}))).repeat(17);
    assert_eq!(session.post(many.as_bytes()), 413);
    assert_eq!(session.ask(&a2e("ping", "3", json!({})))["type"], "pong", "nothing of the many was read");
}

/// Checks that a handshake opens nothing.
fn expect_unknown(peer: &mut impl A2ePeer, agent: &str, token: &str) {
    let answer = peer.ask(&a2e_handshake(agent, token));
    assert_eq!((&answer["ok"], &answer["reason"]), (&json!(false), &json!("auth_failed")), "{answer}");
    expect_error(&peer.ask(&a2e_call("no", "write_file", write("no", "x"))), "unauthorized");
}

#[test]
fn a_session_belongs_to_its_caller_and_uses_the_callers_agents() {
    let served = Served::new();
    let list = List::new();
    let planner = agent(&list, "planner", AGENT_DID);
    let other = agent(&list, "other", "did:a2e:other");
    let options = served.options().set("server.callers", json!(list.path()));
    let mut executor = Executor::start(options);
    let mut session = A2eSession::open(&executor, Some(&planner));
    assert_eq!(session.as_seen_by(Some(&other)).post(b""), 404, "another's session is not there");
    assert_eq!(session.as_seen_by(Some(&other)).request("GET", "/a2e/stream", b"").status, 404);
    assert_eq!(session.as_seen_by(None).post(b""), 401);
    for (agent, token) in [
        ("other", ""),
        ("did:a2e:nobody", ""),
        ("planner", "a2g_wrong"),
        ("planner", other.as_str()),
        ("other", &other),
    ] {
        expect_unknown(&mut session, agent, token);
    }
    executor.assert_workspace_is_empty("calls without a handshake");
    // A handshake that names no agent acts for the only agent of its caller.
    session.shake_hands("", &planner);
    expect_success(&session.ask(&a2e_call("yes", "write_file", write("yes", "x"))), "write_file");
    assert_eq!(executor.wait_for_reports(1)[0]["agent_did"], AGENT_DID);
    assert!(!executor.stderr().contains(&planner), "a token is in the log");

    // A caller who is removed is not heard any more, and the session ends.
    call_gate(&executor, &mut session, "last", 1);
    list.remove("planner");
    executor.process().hang_up();
    assert_eq!(session.rest(), [] as [Value; 0]);
    assert_eq!(session.post(b""), 401);
    assert_eq!(executor.wait_for_reports(2)[1]["status"], "ABORTED");
}

#[test]
fn the_stdio_handshake_requires_a_token_if_callers_are_configured() {
    let served = Served::new();
    let list = List::new();
    let token = agent(&list, "planner", AGENT_DID);
    let options = served.options().set("server.callers", json!(list.path()));
    let mut door = StdioClient::start_as("--a2e-stdio", options);
    for (agent, token) in [("planner", ""), ("planner", "a2g_wrong"), ("other", token.as_str())] {
        expect_unknown(&mut door, agent, token);
    }
    assert_eq!(std::fs::read_dir(door.workspace()).unwrap().count(), 0);
    door.shake_hands("planner", &token);
    expect_success(&door.ask(&a2e_call("yes", "write_file", write("yes", "x"))), "write_file");
}

#[test]
fn a_public_door_still_checks_a_presented_token() {
    let served = Served::new();
    let list = List::new();
    let token = agent(&list, "planner", AGENT_DID);
    let options = served.with(json!({ "open_to": "everybody", "agent": "did:a2e:guest" }));
    let executor = Executor::start(options.set("server.callers", json!(list.path())));
    let mut session = A2eSession::open(&executor, None);
    let refused = session.ask(&a2e_handshake("planner", "a2g_wrong"));
    assert_eq!(refused["reason"], "auth_failed", "{refused}");
    let refused = session.ask(&a2e_handshake("other", &token));
    assert_eq!(refused["reason"], "auth_failed", "its bearer is no longer everybody: {refused}");
    session.shake_hands("", &token);
    expect_success(&session.ask(&a2e_call("1", "write_file", write("1", "x"))), "write_file");
    let mut session = A2eSession::open(&executor, None);
    session.shake_hands("", "");
    expect_success(&session.ask(&a2e_call("2", "write_file", write("2", "x"))), "write_file");
    let reports = executor.wait_for_reports(2);
    // Two intents may be reported in either order.
    let agents = reports.iter().map(|report| report["agent_did"].as_str().unwrap()).collect::<BTreeSet<_>>();
    assert_eq!(agents, BTreeSet::from([AGENT_DID, "did:a2e:guest"]));
}

#[test]
fn at_most_max_parallel_calls_run_at_once() {
    let served = Served::new();
    let executor = Executor::start(served.with(json!({ "max_parallel": 2 })));
    let mut session = A2eSession::open(&executor, None);
    let mut handshake = a2e_handshake("planner", "");
    handshake["max_parallel"] = json!(8);
    assert_eq!(session.ask(&handshake)["max_parallel"], 2);
    let mut call = a2e_call("0", "gate", gate_arguments());
    call["streaming"] = json!(true);
    for nth in 0..5 {
        call["id"] = json!(nth.to_string());
        session.tell(&call);
    }
    let mut started = vec![session.next(), session.next()];
    wait_for_runs(&executor, 2);
    // A ping is answered meanwhile; the third has not begun.
    assert_eq!(session.ask(&a2e("ping", "p", json!({})))["type"], "pong");
    assert_eq!(runs(&executor), 2);
    open_the_gate(&executor);
    let mut ended = 0;
    while ended < 5 {
        let message = session.next();
        if message["type"] == "tool/event" {
            started.push(message);
        } else {
            expect_success(&message, "gate");
            ended += 1;
        }
    }
    assert_eq!((started.len(), runs(&executor)), (5, 5));
}

/// The default, as the document has it.
#[test]
fn calls_of_a_session_run_one_after_another_in_order_of_arrival() {
    let served = Served::new();
    let (executor, mut session) = served.session(json!({}));
    let appends = (0..8).map(|nth| {
        let arguments = json!({ "path": "/workspace/log", "content": format!("{nth}"), "mode": "append" });
        format!("{}\n", a2e_call(&format!("append{nth}"), "write_file", arguments))
    });
    session.send_line(appends.collect::<String>().as_bytes());
    for nth in 0..8 {
        let answer = session.next();
        assert_eq!(answer["req_id"], format!("append{nth}"), "{answer}");
        expect_success(&answer, "write_file");
    }
    assert_eq!(executor.file("log").as_deref(), Some("01234567"));
    let names = ["0", "1", "2", "3"];
    for name in names {
        let mut call = a2e_call(name, "gate", gate_arguments());
        call["streaming"] = json!(true);
        session.tell(&call);
    }
    wait_for_runs(&executor, 1);
    open_the_gate(&executor);
    for name in names {
        for kind in ["tool/event", "tool/call/resp"] {
            let message = session.next();
            assert_eq!((&message["type"], &message["req_id"]), (&json!(kind), &json!(name)), "{message}");
        }
    }
    // A call that waits for a person is answered, and does not keep the next one waiting.
    let lines = [
        a2e_call("asks", "write_file", write("secret", ESCALATES)),
        a2e_call("after", "gate", gate_arguments()),
    ];
    session.send_line(lines.map(|line| format!("{line}\n")).concat().as_bytes());
    assert_eq!(expect_error(&session.next(), "tool_denied")["req_id"], "asks");
    expect_success(&session.answer("after").1, "gate");
}

#[test]
fn calls_beyond_the_queue_limit_are_refused() {
    let served = Served::new();
    let (_executor, mut session) = served.session(json!({ "max_parallel": 1 }));
    for nth in 0..66 {
        session.tell(&a2e_call(&nth.to_string(), "gate", gate_arguments()));
    }
    let refused = session.next();
    assert_eq!(expect_error(&refused, "runtime_error")["req_id"], "65");
    assert_eq!(refused["retryable"], true);
    session.detach();
}

#[test]
fn calls_of_a_disconnected_agent_are_cancelled() {
    let served = Served::new();
    let door = json!({ "max_parallel": 1, "reconnect_seconds": 1 });
    let executor = Executor::start(served.with(door));
    let mut session = planners_session(&executor);
    let id = intent_id();
    session.tell(&a2e_call(&id, "gate", gate_arguments()));
    session.tell(&a2e_call("waits", "write_file", write("waits", "x")));
    wait_for_runs(&executor, 1);
    session.detach();
    let report = executor.wait_for_reports(1)[0].clone();
    assert_eq!((&report["intent_id"], &report["status"]), (&json!(id), &json!("ABORTED")), "{report}");
    assert_eq!(session.post(b""), 404);
    assert_eq!(executor.file("waits"), None, "what waited never began");
    assert_eq!(executor.reports().len(), 1);
}

#[test]
fn an_agent_that_reconnects_in_time_gets_its_answers() {
    let served = Served::new();
    let (executor, mut session) = served.session(json!({ "reconnect_seconds": 60 }));
    call_gate(&executor, &mut session, "1", 1);
    session.detach();
    open_the_gate(&executor);
    executor.wait_for_reports(1);
    session.attach();
    expect_success(&session.answer("1").1, "gate");
    // A second stream takes the place of the first.
    let mut second = session.as_seen_by(None);
    second.attach();
    assert_eq!(session.rest(), [] as [Value; 0]);
    assert_eq!(second.ask(&a2e("ping", "2", json!({})))["type"], "pong");
}

#[test]
fn a_call_shared_by_two_sessions_survives_the_first() {
    let served = Served::new();
    let executor = Executor::start(served.with(json!({ "reconnect_seconds": 1 })));
    let mut first = planners_session(&executor);
    let call = a2e_call(&intent_id(), "gate", gate_arguments());
    first.tell(&call);
    wait_for_runs(&executor, 1);
    let mut second = planners_session(&executor);
    second.tell(&call);
    assert_eq!(second.ask(&a2e("ping", "p", json!({})))["type"], "pong", "the call before it is read");
    first.detach();
    eventually("the first session is gone", || (first.post(b"") == 404).then_some(()));
    open_the_gate(&executor);
    expect_success(&second.answer(call["id"].as_str().unwrap()).1, "gate");
    assert_eq!((runs(&executor), executor.wait_for_reports(1).len()), (1, 1));
}

#[test]
fn a_client_that_never_reads_delays_no_runs_and_no_others() {
    let served = Served::new();
    let executor = Executor::start(served.with(json!({ "reconnect_seconds": 60 })));
    let mut deaf = A2eSession::begin(&executor, None);
    let unread = deaf.attach_unread();
    let mut handshake = a2e_handshake("planner", "");
    handshake["id"] = json!("h");
    handshake["max_parallel"] = json!(4);
    deaf.tell(&handshake);
    let calls = (0..8).map(|nth| {
        let mut call = a2e_call(&nth.to_string(), "floods", json!({}));
        call["streaming"] = json!(true);
        format!("{call}\n")
    });
    deaf.send_line(calls.collect::<String>().as_bytes());
    // Four run at once, whatever is taken of them, and those end.
    let reports = executor.wait_for_reports(4);
    assert!(reports.iter().all(|report| report["status"] == "SUCCESS"), "{reports:?}");
    let mut other = planners_session(&executor);
    expect_success(&other.ask(&a2e_call("1", "write_file", write("1", "x"))), "write_file");
    // The number of queued messages is limited, and then no more are accepted.
    eventually("there is no room", || (deaf.post(b"") == 429).then_some(()));
    // A client that starts to read gets everything: events that were not sent are in the result.
    drop(unread);
    deaf.attach();
    let mut ended = 0;
    let mut whole = 0;
    let deadline = Instant::now() + TIMEOUT;
    while ended < 6 && Instant::now() < deadline {
        let message = deaf.next();
        if message["type"] == "tool/call/resp" {
            ended += 1;
            let events = expect_completed(&message, "floods")["events"].as_array().unwrap();
            assert!(events.is_empty() || events.len() == 6000, "{}", events.len());
            whole += usize::from(!events.is_empty());
        }
    }
    assert!(whole > 0, "no result had events, though some were left out");
}

#[test]
fn an_agent_is_notified_of_a_call_that_an_operator_cancels() {
    let served = Served::new();
    let (executor, mut session) = served.session(json!({}));
    let id = intent_id();
    call_gate(&executor, &mut session, &id, 1);
    result(&executor.rpc("a2g/cancel", &json!({ "intent_id": id })));
    let (_, answer) = session.answer(&id);
    let cancelled = expect_completed(&answer, "gate");
    assert_eq!((&cancelled["success"], &cancelled["error_code"]), (&json!(false), &json!("runtime_error")));
    assert_eq!(
        (&cancelled["error"], &cancelled["summary"]["status"]),
        (&json!("the call was cancelled"), &json!("ABORTED"))
    );
}

#[test]
fn an_approved_call_succeeds_on_resubmission() {
    let served = Served::new();
    let (executor, mut session) = served.session(json!({}));
    let call = a2e_call(&intent_id(), "write_file", write("secret", ESCALATES));
    expect_error(&session.ask(&call), "tool_denied");
    result(&executor.rpc("g2a/directive", &json!({ "intent_id": call["id"], "decision": "APPROVED" })));
    executor.wait_for_reports(1);
    expect_success(&session.ask(&call), "write_file");
    assert_eq!((executor.file("secret").as_deref(), executor.reports().len()), (Some(ESCALATES), 1));
}

#[test]
fn a_shutdown_drains_calls_and_cancels_the_rest() {
    let served = Served::new();
    let (executor, mut session) = served.session(json!({ "max_parallel": 1 }));
    session.tell(&a2e_call("runs", "gate", gate_arguments()));
    session.tell(&a2e_call("waits", "write_file", write("waits", "x")));
    wait_for_runs(&executor, 1);
    session.tell(&a2e("shutdown", "bye", json!({ "timeout": 3 })));
    let refused = session.ask(&a2e_call("late", "write_file", write("late", "x")));
    expect_error(&refused, "runtime_error");
    let refused = session.ask(&a2e_handshake("planner", ""));
    assert_eq!(refused["reason"], "server_error", "{refused}");
    let rest = session.rest();
    assert_eq!(rest.len(), 2, "{rest:?}");
    let of = |id: &str| rest.iter().find(|message| message["req_id"] == id).unwrap();
    expect_error(of("waits"), "runtime_error");
    assert_eq!(expect_completed(of("runs"), "gate")["summary"]["status"], "ABORTED");
    assert_eq!((executor.file("waits"), executor.file("late")), (None, None));

    let mut session = planners_session(&executor);
    session.tell(&a2e_call("runs", "gate", json!({ "path": "/workspace/y" })));
    wait_for_runs(&executor, 2);
    session.tell(&a2e("shutdown", "bye", json!({ "timeout": 60 })));
    open_the_gate(&executor);
    let rest = session.rest();
    assert_eq!(rest.len(), 1, "{rest:?}");
    expect_success(&rest[0], "gate");
}

#[test]
fn calls_complete_after_the_end_of_standard_input() {
    let served = Served::new();
    let mut door = StdioClient::start_as("--a2e-stdio", served.with(json!({ "max_parallel": 1 })));
    door.shake_hands("planner", "");
    let workspace = door.workspace();
    door.tell(&a2e_call("1", "gate", gate_arguments()));
    door.tell(&a2e_call("2", "write_file", write("2", "x")));
    eventually("the gate runs", || workspace.join("runs").exists().then_some(()));
    std::fs::write(workspace.join("go"), "").unwrap();
    let (status, lines) = door.finish();
    assert!(status.success(), "{status}");
    let ids = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap()["req_id"].clone());
    assert_eq!(ids.collect::<Vec<_>>(), ["1", "2"]);
}

#[test]
fn calls_complete_and_are_answered_after_sigterm() {
    let served = Served::new();
    let mut executor = Executor::start(served.options().set("executor.drain_seconds", 60));
    let mut session = planners_session(&executor);
    call_gate(&executor, &mut session, "1", 1);
    executor.process().terminate();
    open_the_gate(&executor);
    let rest = session.rest();
    assert_eq!(rest.len(), 1, "{rest:?}");
    expect_success(&rest[0], "gate");
    assert!(executor.process().wait_for_exit().success());

    let mut door = StdioClient::start_as("--a2e-stdio", served.options().set("executor.drain_seconds", 1));
    door.shake_hands("planner", "");
    door.tell(&a2e_call("1", "gate", gate_arguments()));
    let workspace = door.workspace();
    eventually("the gate runs", || workspace.join("runs").exists().then_some(()));
    door.process().terminate();
    let answer = door.answer("1").1;
    assert_eq!(expect_completed(&answer, "gate")["summary"]["status"], "ABORTED");
    assert!(door.process().wait_for_exit().success());
}

#[test]
fn sessions_are_limited_in_number_and_expire_if_unattached() {
    let served = Served::new();
    let door = json!({ "max_sessions_per_caller": 2, "max_sessions": 8, "idle_seconds": 1 });
    let executor = Executor::start(served.with(door));
    let mut first = planners_session(&executor);
    call_gate(&executor, &mut first, "1", 1);
    let mut second = A2eSession::open(&executor, None);
    let mut third = A2eSession::open(&executor, None);
    assert_eq!(second.rest(), [] as [Value; 0], "the one that is idle goes");
    assert_eq!((first.post(b""), second.post(b""), third.post(b"")), (202, 404, 202));
    third.shake_hands("planner", "");
    call_gate(&executor, &mut third, "3", 2);
    assert_eq!(executor.client().request("POST", "/a2e/session", &[], b"").status, 429, "all have calls");
    open_the_gate(&executor);
    expect_success(&first.answer("1").1, "gate");
    expect_success(&third.answer("3").1, "gate");
    third.detach();
    eventually("who is away is forgotten", || (third.post(b"") == 404).then_some(()));
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(first.ask(&a2e("ping", "p", json!({})))["type"], "pong", "who is there is not");
}

#[test]
fn silent_connections_evict_no_stream_and_no_call() {
    let served = Served::new();
    let executor = Executor::start(served.options().set("server.max_connections", 4));
    let mut session = planners_session(&executor);
    call_gate(&executor, &mut session, "0", 1);
    let silent = (0..16).map(|_| HttpClient::send_only(executor.address(), b"")).collect::<Vec<_>>();
    open_the_gate(&executor);
    expect_success(&session.next(), "gate");
    drop(silent);
}

/// The list of the file changes is an event; the answer has their present state.
#[test]
fn a_staged_run_is_a_success_whose_changes_wait() {
    let served = Served::new();
    let executor = Executor::start(served.options().set("ceilings.effects", "staged"));
    let mut session = planners_session(&executor);
    for (id, streaming) in [("one", true), ("two", false)] {
        let mut message = a2e_call(id, "write_file", write(id, "hello"));
        message["streaming"] = json!(streaming);
        session.tell(&message);
        let (sent, answer) = session.answer(id);
        let data = &answer["data"];
        assert_eq!(
            (&data["success"], &data["data"]["path"]),
            (&json!(true), &json!(format!("/workspace/{id}")))
        );
        let effects = &data["summary"]["effects"];
        assert_eq!(
            (&data["summary"]["status"], &effects["state"]),
            (&json!("STAGED"), &json!("waiting")),
            "{data}"
        );
        let collected = data["events"].as_array().unwrap();
        let of_changes = |events: &[Value]| {
            events.iter().filter(|event| event["data"].get("effects").is_some()).cloned().collect::<Vec<_>>()
        };
        let (told, other) = if streaming { (&sent, collected) } else { (collected, &sent) };
        let [event] = &of_changes(told)[..] else { panic!("one event: {told:?}") };
        assert_eq!(of_changes(other), [] as [Value; 0], "{answer}");
        assert_eq!(event["kind"], "status", "{event}");
        assert_eq!(event["data"]["effects"]["files"][0]["path"], format!("/workspace/{id}"));
        assert!(event["data"]["message"].as_str().unwrap().contains("not in force"), "{event}");
        assert_eq!(executor.file(id), None);

        let intent = &data["summary"]["intent_id"];
        let commit = json!({ "intent": intent, "digest": effects["digest"] });
        assert_eq!(executor.rpc("a2g/commit", &commit)["result"]["status"], "SUCCESS");
        assert_eq!(executor.file(id).as_deref(), Some("hello"));
        let repeated = session.ask(&message);
        assert_eq!(repeated["data"]["summary"]["effects"]["state"], "in_force", "{repeated}");
    }
}
