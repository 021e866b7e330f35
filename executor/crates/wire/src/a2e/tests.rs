//! The A2E door against the examples of its authors, against bad input, and against itself.

use super::decode::{self, A2eDecodeError, AgentMessage, Handshake, MessageBody, ToolCall, ToolFilter};
use super::encode::{self, AcceptedHandshake, CallEvent, MAX_CHUNK_BYTES, RejectReason, StagedRun};
use super::fault::{self, A2eCode, A2eError};
use crate::strict_json::JsonBounds;
use crate::tests::{INTENT, committed, descriptor, map, receipt, staged_receipt, waiting};
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::limit::Limit;
use a2g_types::outcome::{AbortReason, Artifact, End, LogLevel, LogLine, Progress, Receipt, RunOutput};
use a2g_types::quantity::Timeout;
use a2g_types::tool::{Contract, DeclaredCapabilities, DeclaredFilesystem, Descriptor};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;

const TS: f64 = 1_716_123_456.789;

/// The handshake of the protocol's documentation, verbatim.
const HANDSHAKE: &str = r#"{"a2e":"1.0","type":"handshake/req","id":"a1b2c3d4","ts":1716123456.789,"agent_id":"my-agent","agent_caps":["tools","memory","env"],"auth_token":"dev-secret"}"#;
const TOOL_LIST: &str = r#"{"type":"tool/list/req","id":"a1b2c3","version":"1.0","ts":1716123456.789,"filter_kind":"","filter_tags":[]}"#;
const TOOL_CALL: &str = r#"{"type":"tool/call/req","id":"g7h8i9","version":"1.0","ts":1716123457.100,"session_id":"s1k2l3","tool_name":"read_file","arguments":{"path":"/etc/hostname"},"correlation_id":"","streaming":true,"timeout":30}"#;

fn read(line: &str) -> Result<AgentMessage, A2eDecodeError> {
    decode::message(line)
}

fn value(line: &str) -> Value {
    assert!(!line.contains('\n'), "{line}");
    serde_json::from_str(line).unwrap()
}

/// A run without file changes that wait.
fn decided(receipt: &Receipt) -> StagedRun<'_> {
    StagedRun { receipt, state: None }
}

/// The id and the error code of the answer to a message.
fn refused(line: &str) -> (Option<String>, A2eCode, A2eError) {
    match read(line) {
        Err(A2eDecodeError::Refused { id, handshake: _, failure }) => (id, failure.code, *failure),
        other => panic!("{line}: {other:?}"),
    }
}

fn ping(more: &Value) -> String {
    let mut message = json!({ "a2e": "1.0", "type": "ping", "id": "1", "ts": 1 });
    message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    message.to_string()
}

#[test]
fn the_examples_of_the_documentation_are_read() {
    let AgentMessage { id, body } = read(HANDSHAKE).unwrap();
    let caps = ["tools", "memory", "env"].map(str::to_owned).to_vec();
    let expected = Handshake {
        agent_id: "my-agent".into(),
        agent_caps: caps,
        auth_token: "dev-secret".into(),
        max_parallel: 1,
    };
    assert_eq!((id.as_str(), body), ("a1b2c3d4", MessageBody::Handshake(expected)));
    assert_eq!(read(TOOL_LIST).unwrap().body, MessageBody::ToolList(ToolFilter::default()));
    let MessageBody::ToolCall(call) = read(TOOL_CALL).unwrap().body else { panic!() };
    assert_eq!(
        (call.intent, call.tool_name.as_str(), call.session_id.as_str()),
        (None, "read_file", "s1k2l3")
    );
    assert_eq!((call.streaming, call.timeout), (true, Timeout::from_seconds(30).unwrap()));
    assert_eq!(call.arguments, *json!({ "path": "/etc/hostname" }).as_object().unwrap());
}

#[test]
fn either_version_is_read_and_both_have_to_be_the_one() {
    for good in [json!({}), json!({ "version": "1.0" })] {
        assert_eq!(read(&ping(&good)).unwrap().body, MessageBody::Ping);
    }
    for bad in [
        json!({ "a2e": "1.1" }),
        json!({ "version": "2.0" }),
        json!({ "a2e": "2.0", "version": "1.0" }),
        json!({ "a2e": 1.0 }),
        json!({ "version": null }),
        json!({ "a2e": "" }),
    ] {
        let (id, code, failure) = refused(&ping(&bad));
        assert_eq!((id.as_deref(), code), (Some("1"), A2eCode::VersionMismatch), "{bad}: {failure:?}");
    }
    let neither = r#"{"type":"ping","id":"1","ts":1}"#;
    assert_eq!(refused(neither).1, A2eCode::SchemaViolation);
    let other = HANDSHAKE.replace("\"1.0\"", "\"0.9\"");
    assert!(
        matches!(read(&other), Err(A2eDecodeError::Refused { handshake: true, .. })),
        "a handshake has its own answer"
    );
    let missing = HANDSHAKE.replace("\"ts\":1716123456.789,", "");
    assert!(matches!(read(&missing), Err(A2eDecodeError::Refused { handshake: false, .. })));
}

#[test]
fn what_is_no_message_is_refused_by_its_own_code() {
    for (line, id, code) in [
        ("[]", None, A2eCode::InvalidMessage),
        ("1", None, A2eCode::InvalidMessage),
        ("null", None, A2eCode::InvalidMessage),
        ("{}", None, A2eCode::InvalidMessage),
        ("{", None, A2eCode::ParseError),
        (r#"{"id":"1"}"#, Some("1"), A2eCode::InvalidMessage),
        (r#"{"id":"1","type":1}"#, Some("1"), A2eCode::InvalidMessage),
        (r#"{"a2e":"1.0","type":"ping","ts":1}"#, None, A2eCode::SchemaViolation),
        (r#"{"a2e":"1.0","type":"ping","id":1,"ts":1}"#, None, A2eCode::SchemaViolation),
        (r#"{"a2e":"1.0","type":"ping","id":"","ts":1}"#, None, A2eCode::SchemaViolation),
        (r#"{"a2e":"1.0","type":"ping","id":"a\n","ts":1}"#, None, A2eCode::SchemaViolation),
        (r#"{"a2e":"1.0","type":"ping","id":"1"}"#, Some("1"), A2eCode::SchemaViolation),
        (r#"{"a2e":"1.0","type":"ping","id":"1","ts":"1"}"#, Some("1"), A2eCode::SchemaViolation),
        (r#"{"a2e":"1.0","type":"ping","id":"1","ts":-1}"#, Some("1"), A2eCode::SchemaViolation),
        (r#"{"a2e":"1.0","type":"ping","id":"1","ts":1e999}"#, Some("1"), A2eCode::SchemaViolation),
    ] {
        let (answered, said, failure) = refused(line);
        assert_eq!((answered.as_deref(), said), (id, code), "{line}: {failure:?}");
    }
    let long = ping(&json!({ "id": "x".repeat(decode::MAX_ID_BYTES + 1) }));
    assert_eq!(refused(&long).1, A2eCode::SchemaViolation);
    assert!(read(&ping(&json!({ "id": "x".repeat(decode::MAX_ID_BYTES) }))).is_ok());
}

#[test]
fn an_unknown_type_is_answered_when_there_is_somebody_to_answer() {
    let other = |kind: &str| match read(&ping(&json!({ "type": kind }))) {
        Ok(AgentMessage { body: MessageBody::Other { kind, capability }, .. }) => (kind, capability),
        other => panic!("{kind}: {other:?}"),
    };
    for kind in
        ["x", "", "tool/frobnicate", "tool/call/resp", "handshake/resp", "invoke/event", "memory", "PING"]
    {
        assert_eq!(other(kind), (kind.to_owned(), None));
    }
    for (kind, capability) in
        [("memory/store/req", "memory"), ("toolkit/list/req", "toolkits"), ("learn/stats/req", "learning")]
    {
        assert_eq!(other(kind), (kind.to_owned(), Some(capability)));
    }
    let without_time = r#"{"a2e":"1.0","type":"x/y","id":"1"}"#;
    assert!(read(without_time).is_ok(), "what the type needs is not known");
    for ignored in [r#"{"a2e":"1.0","type":"x/y"}"#, r#"{"type":"x/y","id":7}"#] {
        assert!(matches!(read(ignored), Err(A2eDecodeError::Ignored { .. })), "{ignored}");
    }
    for never in ["error", "pong"] {
        assert!(
            matches!(read(&ping(&json!({ "type": never }))), Err(A2eDecodeError::Ignored { .. })),
            "{never}"
        );
    }
}

#[test]
fn every_member_has_its_type_and_its_range() {
    let call = |name: &str, value: Value| {
        let mut call: Value = serde_json::from_str(TOOL_CALL).unwrap();
        call[name] = value;
        call.to_string()
    };
    for (name, bad) in [
        ("session_id", json!(1)),
        ("tool_name", json!(null)),
        ("tool_name", json!(["write_file"])),
        ("arguments", json!(null)),
        ("arguments", json!([])),
        ("arguments", json!("{}")),
        ("correlation_id", json!("x".repeat(257))),
        ("correlation_id", json!(1)),
        ("correlation_id", json!(null)),
        ("streaming", json!(1)),
        ("streaming", json!("true")),
        ("timeout", json!(0)),
        ("timeout", json!(-1)),
        ("timeout", json!(1.5)),
        ("timeout", json!("30")),
        ("timeout", json!(null)),
        ("timeout", json!(604_801)),
    ] {
        let (id, code, failure) = refused(&call(name, bad.clone()));
        assert_eq!((id.as_deref(), code), (Some("g7h8i9"), A2eCode::SchemaViolation), "{name} {bad}");
        assert_eq!(failure.detail["pointer"], format!("/{name}"));
    }
    for needed in ["tool_name", "arguments"] {
        let mut call: Value = serde_json::from_str(TOOL_CALL).unwrap();
        call.as_object_mut().unwrap().remove(needed);
        assert_eq!(refused(&call.to_string()).2.detail["pointer"], format!("/{needed}"));
    }
    let shutdown = |timeout: Value| ping(&json!({ "type": "shutdown", "timeout": timeout }));
    assert_eq!(
        read(&ping(&json!({ "type": "shutdown" }))).unwrap().body,
        MessageBody::Shutdown(Timeout::from_seconds(10).unwrap())
    );
    for bad in [json!(0), json!(3601), json!("1"), json!(1.0), json!(null)] {
        assert_eq!(refused(&shutdown(bad)).1, A2eCode::SchemaViolation);
    }
    let handshake = |name: &str, value: Value| {
        let mut handshake: Value = serde_json::from_str(HANDSHAKE).unwrap();
        handshake[name] = value;
        handshake.to_string()
    };
    for (name, bad) in [
        ("agent_id", json!(1)),
        ("agent_caps", json!("tools")),
        ("agent_caps", json!([1])),
        ("agent_caps", json!(vec!["x"; 65])),
        ("auth_token", json!(null)),
    ] {
        assert_eq!(refused(&handshake(name, bad)).1, A2eCode::SchemaViolation, "{name}");
    }
    let list = |more: Value| {
        let mut list: Value = serde_json::from_str(TOOL_LIST).unwrap();
        list.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        list.to_string()
    };
    for bad in [
        json!({ "filter_kind": 1 }),
        json!({ "filter_tags": "x" }),
        json!({ "query": [] }),
        json!({ "include_deferred": "yes" }),
    ] {
        assert_eq!(refused(&list(bad)).1, A2eCode::SchemaViolation);
    }
}

#[test]
fn an_id_that_is_a_uuid_is_the_intent() {
    let intent = |id: &str| {
        let line = TOOL_CALL.replace("g7h8i9", id);
        let MessageBody::ToolCall(call) = read(&line).unwrap().body else { panic!() };
        call.intent
    };
    let expected = IntentId::parse(INTENT).ok();
    for id in [INTENT, &INTENT.replace('-', ""), &INTENT.to_uppercase()] {
        assert_eq!(intent(id), expected, "{id}");
    }
    for id in ["g7h8i9", &"g".repeat(32), &"é".repeat(16), &format!("{{{}}}", &INTENT[..34]), &"-".repeat(32)]
    {
        assert_eq!(intent(id), None, "{id}");
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_the_same(
        [id, one, other] in ["[g-z]{1,20}", ".{0,12}", ".{0,12}"],
        several in vec(".{0,12}", 0..4),
        arguments in map(".{0,12}"),
        (streaming, drain, seconds) in (any::<bool>(), 1..=3600_u64, 1..=Timeout::MAX_SECONDS),
        version in prop_oneof![Just("a2e"), Just("version")],
        ts in 0.0..1e12,
    ) {
        let [drain, timeout] = [drain, seconds].map(|seconds| Timeout::from_seconds(seconds).unwrap());
        let two = (one.clone(), other.clone());
        let list = several.clone();
        for (kind, members, body) in [
            ("ping", json!({}), MessageBody::Ping),
            ("shutdown", json!({ "timeout": drain.seconds() }), MessageBody::Shutdown(drain)),
            (
                "handshake/req",
                json!({ "agent_id": one, "agent_caps": several, "auth_token": other, "max_parallel": 7 }),
                MessageBody::Handshake(Handshake {
                    agent_id: two.0,
                    agent_caps: list,
                    auth_token: two.1,
                    max_parallel: 7,
                }),
            ),
            (
                "tool/list/req",
                json!({ "filter_kind": one, "filter_tags": several, "query": other }),
                MessageBody::ToolList(ToolFilter {
                    kind: one.clone(),
                    tags: several.clone(),
                    query: other.clone(),
                }),
            ),
            (
                "tool/call/req",
                json!({
                    "session_id": one,
                    "tool_name": other,
                    "arguments": arguments,
                    "correlation_id": one,
                    "streaming": streaming,
                    "timeout": seconds,
                }),
                MessageBody::ToolCall(ToolCall {
                    intent: None,
                    session_id: one.clone(),
                    tool_name: other.clone(),
                    arguments: arguments.clone(),
                    correlation_id: one.clone(),
                    streaming,
                    timeout,
                    asks_for_session: None,
                }),
            ),
        ] {
            let mut message = json!({ "type": kind, "id": id, "ts": ts, version: "1.0" });
            message.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
            let expected = AgentMessage { id: id.clone(), body };
            prop_assert_eq!(read(&message.to_string()).unwrap(), expected);
        }
    }

    #[test]
    fn an_artifact_comes_whole_in_pieces(length in 0..3 * MAX_CHUNK_BYTES, first in 0..10_u64) {
        let content = (0..length).map(|n| u8::try_from(n % 251).unwrap()).collect::<Vec<_>>();
        let made = Artifact { name: "a".into(), mime: "m/t".into(), content: content.clone() };
        let events = encode::events("r", first, CallEvent::Artifact(&made), TS);
        let mut whole = Vec::new();
        for (index, event) in events.iter().map(|line| value(line)).enumerate() {
            prop_assert_eq!(&event["seq"], first + u64::try_from(index).unwrap());
            prop_assert_eq!(&event["data"]["final"], index + 1 == events.len());
            whole.extend(STANDARD.decode(event["data"]["chunk"].as_str().unwrap()).unwrap());
        }
        prop_assert_eq!(whole, content);
    }
}

fn envelope(line: &str, kind: &str) -> Value {
    let message = value(line);
    assert_eq!((&message["a2e"], &message["version"]), (&json!("1.0"), &json!("1.0")));
    assert_eq!((&message["type"], &message["ts"]), (&json!(kind), &json!(TS)));
    let id = message["id"].as_str().unwrap();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    message
}

#[test]
fn a_handshake_is_answered_as_the_documentation_has_it() {
    let asked = ["tools", "streaming", "memory", "tools", "mine"].map(str::to_owned);
    let accepted = AcceptedHandshake {
        session_id: "s1",
        requested_caps: &asked,
        max_parallel: 4,
        bounds: JsonBounds::default(),
        tools: 7,
    };
    let answer = envelope(&encode::handshake_acceptance("a1", &accepted, TS), "handshake/resp");
    assert_eq!((&answer["req_id"], &answer["session_id"]), (&json!("a1"), &json!("s1")));
    assert_eq!(
        (&answer["ok"], &answer["reason"], &answer["max_parallel"]),
        (&json!(true), &json!(""), &json!(4))
    );
    let caps = answer["accepted_caps"].as_array().unwrap();
    let known =
        caps.iter().map(|cap| (cap["capability"].as_str().unwrap(), cap["enabled"].as_bool().unwrap()));
    assert_eq!(known.collect::<Vec<_>>(), [("tools", true), ("memory", false)]);
    assert_eq!(caps[0]["metadata"]["max_message_bytes"], 1 << 20);
    for reason in [
        RejectReason::AuthFailed,
        RejectReason::VersionMismatch,
        RejectReason::NoCaps,
        RejectReason::ServerError,
    ] {
        let answer = envelope(&encode::handshake_rejection("a1", reason, 4, TS), "handshake/resp");
        assert_eq!((&answer["ok"], &answer["reason"]), (&json!(false), &json!(reason.as_str())));
        assert_eq!((&answer["session_id"], &answer["accepted_caps"]), (&json!(""), &json!([])));
    }
}

#[test]
fn events_have_the_shapes_of_the_documentation() {
    fn event(happened: CallEvent<'_>) -> (String, Value) {
        let [event]: [String; 1] = encode::events("r1", 3, happened, TS).try_into().unwrap();
        let event = envelope(&event, "tool/event");
        assert_eq!((&event["req_id"], &event["seq"]), (&json!("r1"), &json!(3)));
        (event["kind"].as_str().unwrap().to_owned(), event["data"].clone())
    }
    let progress = |percent| Progress { percent, message: "Reading...".into() };
    let said = |kind: &str, data: Value| (kind.to_owned(), data);
    assert_eq!(event(CallEvent::Status("started")), said("status", json!({ "message": "started" })));
    for (percent, pct) in [(50.0, 50), (99.9, 99), (-1.0, 0), (101.0, 100), (f32::NAN, 0)] {
        let expected = said("progress", json!({ "pct": pct, "message": "Reading..." }));
        assert_eq!(event(CallEvent::Progress(&progress(Some(percent)))), expected);
    }
    let expected = said("status", json!({ "message": "Reading..." }));
    assert_eq!(event(CallEvent::Progress(&progress(None))), expected);
    let line = LogLine { level: LogLevel::Warn, message: "slow".into() };
    assert_eq!(event(CallEvent::Log(&line)), said("log", json!({ "level": "warn", "message": "slow" })));
    let made = Artifact { name: "a".into(), mime: "text/plain".into(), content: b"hi".to_vec() };
    let data = json!({ "name": "a", "mime": "text/plain", "chunk": "aGk=", "final": true });
    assert_eq!(event(CallEvent::Artifact(&made)), said("artifact", data));
}

#[test]
fn a_result_says_what_became_of_the_run() {
    let answer = |receipt: &Receipt, from| {
        let answer = envelope(&encode::call_response("r1", decided(receipt), from, TS), "tool/call/resp");
        assert_eq!((&answer["req_id"], &answer["created_at"]), (&json!("r1"), &json!(TS)));
        answer["data"].clone()
    };
    let data = answer(&receipt(End::Returned(json!({ "content": "my-host" }).into())), None);
    assert_eq!((&data["success"], &data["tool_name"]), (&json!(true), &json!("write_file")));
    assert_eq!((&data["data"], &data["duration_ms"]), (&json!({ "content": "my-host" }), &json!(45)));
    assert_eq!(
        (&data["error"], &data["error_code"], &data["exit_code"]),
        (&json!(null), &json!(null), &json!(null))
    );
    assert_eq!((&data["events"], &data["truncated"]), (&json!([]), &json!(false)));
    assert_eq!(
        (&data["summary"]["intent_id"], &data["summary"]["status"]),
        (&json!(INTENT), &json!("SUCCESS"))
    );
    let mut talkative = receipt(End::Returned(json!(1).into()));
    talkative.outcome.output = RunOutput {
        logs: vec![LogLine { level: LogLevel::Info, message: "one".into() }],
        progress: Some(Progress { percent: Some(100.0), message: "done".into() }),
        artifacts: vec![Artifact {
            name: "a".into(),
            mime: "m".into(),
            content: vec![0; MAX_CHUNK_BYTES + 1],
        }],
        truncated: true,
    };
    let data = answer(&talkative, Some(5));
    let events = data["events"].as_array().unwrap();
    let kinds = events.iter().map(|event| event["kind"].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(kinds, ["log", "progress", "artifact", "artifact"]);
    let seqs = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((seqs, &data["truncated"]), (vec![5, 6, 7, 8], &json!(true)));
    assert!(events.iter().all(|event| event["req_id"] == "r1" && event["type"] == "tool/event"));
}

#[test]
fn a_staged_run_is_a_success_whose_changes_are_an_event() {
    let receipt = staged_receipt(json!({ "path": "x" }));
    for (state, expected, says) in [
        (waiting(), "waiting", "deleted file `/workspace/old`"),
        (committed(), "in_force", "committed by anna"),
    ] {
        let run = StagedRun { receipt: &receipt, state: Some(&state) };
        let data = value(&encode::call_response("r1", run, Some(2), TS))["data"].clone();
        assert_eq!((&data["success"], &data["data"]), (&json!(true), &json!({ "path": "x" })));
        let summary = &data["summary"];
        assert_eq!((&summary["status"], &summary["effects"]["state"]), (&json!("STAGED"), &json!(expected)));
        let event = &data["events"][0];
        assert_eq!((&event["kind"], &event["seq"]), (&json!("status"), &json!(2)));
        assert!(event["data"]["message"].as_str().unwrap().contains(says), "{event}");
        assert_eq!(event["data"]["effects"]["files"][0]["change"], "deleted");
        assert_eq!(event["data"]["effects"]["digest"], summary["effects"]["digest"]);
        let sent = encode::events("r1", 2, CallEvent::Staged(run), TS);
        assert_eq!(value(&sent[0])["data"], event["data"]);
    }
    let plain = crate::tests::receipt(End::Returned(json!(1).into()));
    assert!(encode::events("r1", 0, CallEvent::Staged(decided(&plain)), TS).is_empty());
}

#[test]
fn every_end_has_its_code() {
    let tool_error = End::ToolError { code: "no_such".into(), message: "m".into(), detail: None };
    for (end, code) in [
        (tool_error, "tool_error"),
        (End::Exited { code: 3, stderr_tail: "oh".into() }, "tool_error"),
        (End::ResultNotJson, "tool_error"),
        (End::NotStarted("x".into()), "tool_error"),
        (End::NotCommitted("x".into()), "tool_error"),
        (End::LeftToOperator("x".into()), "tool_error"),
        (End::Trapped("unreachable".into()), "sandbox_crash"),
        (End::Crashed("signal 9".into()), "sandbox_crash"),
        (End::LimitReached(Limit::Time), "timeout"),
        (End::LimitReached(Limit::Memory), "out_of_memory"),
        (End::LimitReached(Limit::Output), "tool_error"),
        (End::Aborted(AbortReason::Cancelled), "runtime_error"),
        (End::Aborted(AbortReason::Shutdown), "runtime_error"),
        (End::Aborted(AbortReason::Lost), "runtime_error"),
        (End::Aborted(AbortReason::Revoked), "tool_denied"),
        (End::Aborted(AbortReason::Stopped), "tool_denied"),
    ] {
        let receipt = receipt(end);
        let data = value(&encode::call_response("r1", decided(&receipt), None, TS))["data"].clone();
        assert_eq!((&data["success"], &data["error_code"]), (&json!(false), &json!(code)), "{data}");
        assert!(
            data["error"].as_str().is_some_and(|error| !error.is_empty() && !error.contains("a2g/")),
            "{data}"
        );
        let limit =
            if let End::LimitReached(limit) = receipt.outcome.end { Some(limit.as_str()) } else { None };
        assert_eq!(data["summary"].get("limit").and_then(Value::as_str), limit);
        let failure = fault::to_error(&Fault::Failed(Arc::new(receipt)));
        assert_eq!(failure.code.as_str(), code);
    }
    let exited = receipt(End::Exited { code: 3, stderr_tail: String::new() });
    let data = value(&encode::call_response("r", decided(&exited), None, TS));
    assert_eq!(data["data"]["exit_code"], 3);
}

#[test]
fn errors_say_which_intent_they_are_about() {
    let failure = fault::to_error(&Fault::Internal("m".to_owned()));
    assert_eq!(value(&encode::error(None, &failure, TS))["req_id"], "");
    let pending = Fault::ReceiptPending { intent: IntentId::parse(INTENT).unwrap(), retry_after_ms: 5 };
    let pending = fault::to_error(&pending);
    assert_eq!((pending.code, pending.retryable), (A2eCode::RuntimeError, true));
    let detail = json!({ "intent_id": INTENT, "ran": true, "retry_after_ms": 5 });
    assert_eq!((json!(pending.detail), pending.message.contains("has started")), (detail, true));
    let escalated = fault::escalation_error(IntentId::parse(INTENT).unwrap(), Some(0.9));
    assert_eq!((escalated.code, escalated.retryable), (A2eCode::ToolDenied, true));
    assert_eq!(
        (&escalated.detail["intent_id"], &escalated.detail["risk_score"]),
        (&json!(INTENT), &json!(0.9))
    );
    assert_eq!(fault::unknown_tool_error("rm\n", []).message.matches('\n').count(), 0);
}

fn tool(name: &str, contract: Contract, filesystem: DeclaredFilesystem, schema: Value) -> Descriptor {
    let network = name.contains("http");
    let capabilities = DeclaredCapabilities { filesystem, network, ..DeclaredCapabilities::default() };
    Descriptor { contract, capabilities, ..descriptor(name, schema) }
}

#[test]
fn a_schema_becomes_parameters() {
    let schema = json!({
        "type": "object",
        "required": ["path", "mode"],
        "properties": {
            "path": { "type": "string", "description": "The file." },
            "mode": { "enum": ["fast", "slow"] },
            "limit": { "type": ["integer", "null"], "minimum": 1 },
            "ratio": { "anyOf": [{ "type": "null" }, { "type": "number" }] },
            "edits": { "type": "array", "items": { "type": "string" } },
            "options": { "$ref": "#/$defs/Options", "description": "How." },
            "loop": { "$ref": "#/properties/loop" },
            "any": true,
        },
        "$defs": {
            "Options": {
                "type": "object",
                "required": ["deep"],
                "properties": { "deep": { "type": "boolean" }, "again": { "$ref": "#/$defs/Options" } },
            },
        },
    });
    let tools = [tool("read_file", Contract::Typed, DeclaredFilesystem::Read, schema)];
    let list = envelope(&encode::tool_list("r1", &tools, &ToolFilter::default(), TS), "tool/list/resp");
    let tool = &list["tools"][0];
    assert_eq!((&tool["name"], &tool["version"]), (&json!("read_file"), &json!("1.2.3")));
    assert_eq!((&tool["streaming"], &tool["idempotent"]), (&json!(true), &json!(true)));
    assert_eq!((&tool["toolkit"], &tool["defer_loading"]), (&json!(null), &json!(false)));
    assert_eq!(
        (&tool["output_parameters"], &tool["tags"]),
        (&json!([]), &json!(["typed", "filesystem", "read-only"]))
    );
    let parameters = tool["input_parameters"].as_array().unwrap();
    let parameter =
        |name: &str| parameters.iter().find(|parameter| parameter["name"] == name).unwrap().clone();
    let path = json!({ "name": "path", "type": "string", "description": "The file.", "required": true });
    assert_eq!(parameter("path"), path);
    for (name, kind, required) in [
        ("mode", "string", true),
        ("limit", "integer", false),
        ("ratio", "number", false),
        ("edits", "array", false),
        ("options", "object", false),
        ("loop", "object", false),
        ("any", "object", false),
    ] {
        let parameter = parameter(name);
        assert_eq!((&parameter["type"], &parameter["required"]), (&json!(kind), &json!(required)), "{name}");
    }
    assert_eq!(parameter("mode")["enum"], json!(["fast", "slow"]));
    let options = parameter("options");
    assert_eq!(
        (&options["description"], &options["properties"]["deep"]["required"]),
        (&json!("How."), &json!(true))
    );
    assert_eq!(parameters.len(), 8);
}

#[test]
fn every_filter_restricts() {
    let read = DeclaredFilesystem::Read;
    let write = DeclaredFilesystem::ReadWrite;
    let none = DeclaredFilesystem::None;
    let tools = [
        tool("read_file", Contract::Typed, read, json!({})),
        tool("write_file", Contract::Command, write, json!({})),
        tool("http_fetch", Contract::Typed, none, json!({})),
    ];
    let listed = |kind: &str, tags: &[&str], query: &str| {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let filter = ToolFilter { kind: kind.into(), tags, query: query.into() };
        let list = value(&encode::tool_list("r1", &tools, &filter, TS));
        let names =
            list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(listed("", &[], ""), "read_file write_file http_fetch");
    assert_eq!(listed("command", &[], ""), "write_file");
    assert_eq!(listed("other", &[], ""), "");
    assert_eq!(listed("", &["filesystem"], ""), "read_file write_file");
    assert_eq!(listed("", &["filesystem", "typed"], ""), "read_file");
    assert_eq!(listed("", &["filesystem", "network"], ""), "");
    assert_eq!(listed("", &[], "FETCH"), "http_fetch");
    assert_eq!(listed("", &[], "does write"), "write_file");
    assert_eq!(listed("", &[], "network"), "http_fetch");
    assert_eq!(listed("typed", &["filesystem"], "file"), "read_file");
}
