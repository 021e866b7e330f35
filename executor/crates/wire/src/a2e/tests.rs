//! The A2E door against the examples of its authors, against bad input, and against itself.

use super::decode::{self, A2eDecodeError, AgentMessage, Handshake, MessageBody, ToolCall, ToolFilter};
use super::encode::{self, AcceptedHandshake, CallEvent, MAX_CHUNK_BYTES, RejectReason};
use super::fault::{self, A2eCode, A2eError};
use crate::strict_json::JsonBounds;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::limit::{Bound, Budgets, Layer, Limit};
use a2g_types::outcome::{
    AbortReason, Artifact, End, LogLevel, LogLine, Outcome, Progress, Receipt, RunMetrics, RunOutput, Usage,
};
use a2g_types::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use a2g_types::tool::{Contract, DeclaredCapabilities, DeclaredFilesystem, Descriptor, Digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

const INTENT: &str = "550e8400-e29b-41d4-a716-446655440000";
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
    let expected =
        Handshake { agent_id: "my-agent".into(), agent_caps: caps, auth_token: "dev-secret".into() };
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
        ("arguments", json!([])),
        ("arguments", json!("{}")),
        ("correlation_id", json!("x".repeat(257))),
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

fn text() -> impl Strategy<Value = String> {
    ".{0,12}"
}

fn map() -> impl Strategy<Value = Map<String, Value>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        proptest::num::f64::NORMAL.prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    vec((text(), leaf), 0..5).prop_map(|members| members.into_iter().collect())
}

fn body() -> impl Strategy<Value = MessageBody> {
    let seconds = |most| (1..=most).prop_map(|seconds| Timeout::from_seconds(seconds).unwrap());
    let handshake = (text(), vec(text(), 0..4), text()).prop_map(|(agent_id, agent_caps, auth_token)| {
        MessageBody::Handshake(Handshake { agent_id, agent_caps, auth_token })
    });
    let filter = (text(), vec(text(), 0..4), text())
        .prop_map(|(kind, tags, query)| MessageBody::ToolList(ToolFilter { kind, tags, query }));
    let call = (text(), text(), map(), text(), any::<bool>(), seconds(Timeout::MAX_SECONDS)).prop_map(
        |(session_id, tool_name, arguments, correlation_id, streaming, timeout)| {
            let intent = None;
            let call =
                ToolCall { intent, session_id, tool_name, arguments, correlation_id, streaming, timeout };
            MessageBody::ToolCall(call)
        },
    );
    prop_oneof![
        Just(MessageBody::Ping),
        seconds(3600).prop_map(MessageBody::Shutdown),
        handshake,
        filter,
        call
    ]
}

/// A message of an agent.
fn written(AgentMessage { id, body }: &AgentMessage, version: &str, ts: f64) -> String {
    let (kind, said) = match body {
        MessageBody::Ping => ("ping", json!({})),
        MessageBody::Shutdown(timeout) => ("shutdown", json!({ "timeout": timeout.seconds() })),
        MessageBody::Handshake(Handshake { agent_id, agent_caps, auth_token }) => (
            "handshake/req",
            json!({ "agent_id": agent_id, "agent_caps": agent_caps, "auth_token": auth_token }),
        ),
        MessageBody::ToolList(ToolFilter { kind, tags, query }) => {
            ("tool/list/req", json!({ "filter_kind": kind, "filter_tags": tags, "query": query }))
        }
        MessageBody::ToolCall(call) => {
            let ToolCall { intent: _, session_id, tool_name, arguments, correlation_id, streaming, timeout } =
                call;
            (
                "tool/call/req",
                json!({
                    "session_id": session_id,
                    "tool_name": tool_name,
                    "arguments": arguments,
                    "correlation_id": correlation_id,
                    "streaming": streaming,
                    "timeout": timeout.seconds(),
                }),
            )
        }
        MessageBody::Other { .. } => panic!("it is not written"),
    };
    let mut message = json!({ "type": kind, "id": id, "ts": ts });
    message[version] = json!("1.0");
    message.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
    message.to_string()
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_the_same(
        id in "[g-z]{1,20}",
        body in body(),
        version in prop_oneof![Just("a2e"), Just("version")],
        ts in 0.0..1e12,
    ) {
        let message = AgentMessage { id, body };
        prop_assert_eq!(read(&written(&message, version, ts)).unwrap(), message);
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

fn receipt(end: End) -> Receipt {
    let bound = |layer| (Bound { value: MemoryLimit::from_mb(50).unwrap(), layer }, layer);
    let (memory, layer) = bound(Layer::Verdict);
    Receipt {
        agent: AgentDid::parse("did:a2e:my-agent").unwrap(),
        intent: IntentId::parse(INTENT).unwrap(),
        tool: ToolName::parse("read_file").unwrap(),
        approved_by: None,
        durability: a2g_types::durability::Durability::PowerLoss,
        outcome: Outcome {
            end,
            output: RunOutput::default(),
            metrics: RunMetrics { wall: Duration::from_millis(45), ..RunMetrics::default() },
            usage: Usage {
                memory,
                cpu: Bound { value: CpuPercent::new(10).unwrap(), layer },
                timeout: Bound { value: Timeout::from_seconds(30).unwrap(), layer: Layer::Caller },
                output: Bound { value: OutputLimit::from_bytes(1 << 20).unwrap(), layer },
                filesystem: Vec::new(),
                blocked: Vec::new(),
                filesystem_emptied_by: None,
                budgets: Budgets {
                    written: MemoryLimit::from_mb(1).unwrap(),
                    created: 1,
                    handles: 64,
                    subscriptions: 64,
                    random_bytes: 1,
                    directory_entries: 1,
                    fuel: None,
                    hard_links: false,
                },
                spent: None,
                network: Bound { value: false, layer },
                network_used: None,
                denied: Vec::new(),
                denied_truncated: false,
            },
        },
    }
}

#[test]
fn a_result_says_what_became_of_the_run() {
    let answer = |receipt: &Receipt, from| {
        let answer = envelope(&encode::call_response("r1", receipt, from, TS), "tool/call/resp");
        assert_eq!((&answer["req_id"], &answer["created_at"]), (&json!("r1"), &json!(TS)));
        answer["data"].clone()
    };
    let data = answer(&receipt(End::Returned(json!({ "content": "my-host" }).into())), None);
    assert_eq!((&data["success"], &data["tool_name"]), (&json!(true), &json!("read_file")));
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
fn every_end_has_its_code() {
    let tool_error = End::ToolError { code: "no_such".into(), message: "m".into(), detail: None };
    for (end, code) in [
        (tool_error, "tool_error"),
        (End::Exited { code: 3, stderr_tail: "oh".into() }, "tool_error"),
        (End::ResultNotJson, "tool_error"),
        (End::NotStarted("x".into()), "tool_error"),
        (End::Trapped("unreachable".into()), "sandbox_crash"),
        (End::Crashed("signal 9".into()), "sandbox_crash"),
        (End::LimitReached(Limit::Time), "timeout"),
        (End::LimitReached(Limit::Memory), "out_of_memory"),
        (End::LimitReached(Limit::Output), "tool_error"),
        (End::Aborted(AbortReason::Cancelled), "runtime_error"),
        (End::Aborted(AbortReason::Shutdown), "runtime_error"),
        (End::Aborted(AbortReason::Lost), "runtime_error"),
        (End::Aborted(AbortReason::Revoked), "tool_denied"),
    ] {
        let receipt = receipt(end);
        let data = value(&encode::call_response("r1", &receipt, None, TS))["data"].clone();
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
    let data = value(&encode::call_response(
        "r",
        &receipt(End::Exited { code: 3, stderr_tail: String::new() }),
        None,
        TS,
    ));
    assert_eq!(data["data"]["exit_code"], 3);
}

#[test]
fn every_fault_has_its_code() {
    let m = || "m".to_owned();
    let refused = |blocked_by| Fault::Refused { intent: None, risk_score: None, blocked_by, message: m() };
    for (fault, code, retryable, capability) in [
        (Fault::Parse(m()), "parse_error", false, ""),
        (Fault::InvalidRequest(m()), "invalid_message", false, ""),
        (Fault::MethodNotFound(m()), "invalid_message", false, ""),
        (Fault::invalid("/x", "m"), "schema_violation", false, ""),
        (
            Fault::ToolUnavailable { tool: ToolName::parse("x").unwrap(), message: m() },
            "tool_error",
            false,
            "tools",
        ),
        (Fault::RegistrationFailed(m()), "runtime_error", true, ""),
        (Fault::SessionExpired(m()), "runtime_error", true, ""),
        (Fault::Busy { message: m(), retry_after_ms: 1 }, "runtime_error", true, ""),
        (refused(BlockedBy::GovernorUnavailable), "runtime_error", true, "tools"),
        (refused(BlockedBy::CallerUnauthorized), "unauthorized", false, "tools"),
        (refused(BlockedBy::EscalationPending), "tool_denied", true, "tools"),
        (refused(BlockedBy::VerdictDenied), "tool_denied", false, "tools"),
        (refused(BlockedBy::StandingPolicy), "tool_denied", false, "tools"),
        (refused(BlockedBy::ScopeUnenforceable), "tool_denied", false, "tools"),
    ] {
        let failure = fault::to_error(&fault);
        let line = envelope(&encode::error(Some("r1"), &failure, TS), "error");
        assert_eq!(
            (&line["code"], &line["message"], &line["req_id"]),
            (&json!(code), &json!("m"), &json!("r1"))
        );
        assert_eq!((&line["retryable"], &line["capability_name"]), (&json!(retryable), &json!(capability)));
        assert!(line["detail"].is_object());
    }
    let failure = fault::to_error(&Fault::Internal("/home/operator/journal is full".to_owned()));
    assert!(!encode::error(None, &failure, TS).contains("journal"));
    assert_eq!(value(&encode::error(None, &failure, TS))["req_id"], "");
    let pending = Fault::ReceiptPending { intent: IntentId::parse(INTENT).unwrap(), retry_after_ms: 5 };
    let pending = fault::to_error(&pending);
    assert_eq!((pending.code, pending.retryable), (A2eCode::RuntimeError, true));
    let detail = json!({ "intent_id": INTENT, "ran": true, "retry_after_ms": 5 });
    assert_eq!((json!(pending.detail), pending.message.contains("ran")), (detail, true));
    let escalated = fault::escalation_error(IntentId::parse(INTENT).unwrap(), Some(0.9));
    assert_eq!((escalated.code, escalated.retryable), (A2eCode::ToolDenied, true));
    assert_eq!(
        (&escalated.detail["intent_id"], &escalated.detail["risk_score"]),
        (&json!(INTENT), &json!(0.9))
    );
    assert_eq!(fault::unknown_tool_error("rm\n", []).message.matches('\n').count(), 0);
}

fn tool(name: &str, contract: Contract, filesystem: DeclaredFilesystem, schema: Value) -> Descriptor {
    Descriptor {
        name: ToolName::parse(name).unwrap(),
        version: "1.2.3".into(),
        description: format!("Does {name}."),
        contract,
        digest: Digest::compute(b""),
        arguments_schema: schema,
        capabilities: DeclaredCapabilities {
            filesystem,
            network: name.contains("http"),
            ..DeclaredCapabilities::default()
        },
    }
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
    let (read, write, none) =
        (DeclaredFilesystem::Read, DeclaredFilesystem::ReadWrite, DeclaredFilesystem::None);
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
