use super::decode::{self, Content, ExecuteCommand, SubscribeCommand};
use super::encode::{self, MessageStamp, MessageWriter, OutgoingBody};
use super::fault::{self, NexusCode, NexusError};
use super::keys::AgentKeys;
use super::message::{
    DeliveryGuarantee, EventName, MessageType, QueryAction, QueryResource, ResponseStatus, SignatureScope,
};
use crate::staged::StagedState;
use crate::strict_json::JsonBounds;
use crate::tests::{committed, receipt, staged_receipt, waiting};
use a2g_types::call::Priority;
use a2g_types::fault::Fault;
use a2g_types::ident::{IntentId, ToolName};
use a2g_types::outcome::{ChangeState, End};
use a2g_types::quantity::Timeout;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use strum::VariantArray;

const KEY: [u8; 32] = [7; 32];
const ID: &str = "550e8400-e29b-41d4-a716-446655440000";
const BOUNDS: JsonBounds = JsonBounds { max_bytes: 1 << 20, max_depth: 64, max_tree_bytes: 64 << 20 };

fn keys() -> AgentKeys {
    AgentKeys::new(b"secret", Some(&KEY)).unwrap()
}

fn identity(id: &str) -> String {
    format!(r#"{{"id":"{id}","type":"nexus","version":"1.0.0","capabilities":["x"]}}"#)
}

/// A signed message of an agent: `more` is added to its header, and `scope` selects the signed members.
fn message(kind: &str, more: &Value, sealed: Option<&Value>, scope: SignatureScope) -> Value {
    let from = identity("a");
    let to = identity("b");
    let keys = keys();
    let header =
        format!(r#"{{"id":"{ID}","type":"{kind}","from":{from},"to":{to},"timestamp":1700000000000}}"#);
    let mut message: Value = serde_json::from_str(&header).unwrap();
    let all = message.as_object_mut().unwrap();
    all.extend(more.as_object().unwrap().clone());
    if let Some(payload) = sealed {
        let sealed = keys.seal(&payload.to_string(), &header, [1; 12]).unwrap();
        all.insert(
            "encryption".to_owned(),
            json!({
                "algorithm": "AES-256-GCM",
                "iv": STANDARD.encode(sealed.iv),
                "ciphertext": STANDARD.encode(sealed.ciphertext),
                "authTag": STANDARD.encode(sealed.auth_tag),
            }),
        );
    }
    let text = match scope {
        SignatureScope::Header => header,
        SignatureScope::Full => {
            let member =
                |name: &str| more.get(name).map_or(String::new(), |value| format!(r#","{name}":{value}"#));
            let action = member("action");
            let payload = member("payload");
            format!(
                r#"{{"id":"{ID}","type":"{kind}","from":{from},"to":{to}{action}{payload},"timestamp":1700000000000}}"#
            )
        }
    };
    for (name, value) in [
        ("version", json!("1.0.0")),
        ("priority", json!("high")),
        ("ttl", json!(1000)),
        ("requiresAck", json!(true)),
        ("requiresSignature", json!(true)),
        ("signature", json!(keys.sign(&text))),
    ] {
        all.entry(name).or_insert(value);
    }
    message
}

fn content(message: &Value, scope: SignatureScope) -> Result<Content, NexusError> {
    let text = message.to_string();
    let envelope = decode::envelope(&text).map_err(|malformed| malformed.failure)?;
    envelope.verify(Some(&keys()), scope)?.content(&keys(), &BOUNDS)
}

fn code(message: &Value, scope: SignatureScope) -> NexusCode {
    content(message, scope).unwrap_err().code
}

fn command(action: &str, parameters: Value) -> (Value, Value) {
    (json!({ "action": action }), json!({ "parameters": parameters }))
}

/// The test vector of the project's notes on this protocol.
#[test]
fn the_signature_is_the_documents() {
    let text = r#"{"id":"550e8400-e29b-41d4-a716-446655440000","type":"command","from":{"id":"a","type":"nexus","version":"1.0.0","capabilities":["x"]},"to":{"id":"b","type":"mcp","version":"1.0.0","capabilities":[]},"timestamp":1700000000000}"#;
    let signature = "8d72d70266dd994477de41a16d9f14dcc9ddcbfe422798e8a3dec8b31b57a9d4";
    assert_eq!(keys().sign(text), signature);
    let other = AgentKeys::new(b"Secret", None).unwrap();
    assert!(keys().verify(text, signature) && !other.verify(text, signature));
    for bad in [
        "",
        &signature[1..],
        &signature.to_uppercase(),
        &format!("{signature}0"),
        &signature.replace('8', "9"),
    ] {
        assert!(!keys().verify(text, bad), "{bad}");
    }
    // The same members inside a message: with others around them, in another order, and with white space.
    let message = format!(
        r#" {{ "ttl": 1, "priority":"low","version":"1.0.0", "requiresAck":false, "requiresSignature":true,
            "timestamp":1700000000000, "to":{{"id":"b","type":"mcp","version":"1.0.0","capabilities":[]}},
            "signature":"{signature}", "type":"command", "id":"550e8400-e29b-41d4-a716-446655440000",
            "from":{{"id":"a","type":"nexus","version":"1.0.0","capabilities":["x"]}} }}"#
    );
    let envelope = decode::envelope(&message).unwrap();
    assert!(envelope.verify(Some(&keys()), SignatureScope::Header).is_ok());
    // The document's `verifySignature` sees the value of a member, and the order of an object's members.
    for (from, to, is_signed) in [
        ("[\"x\"]", "[ \"x\"\n]", true),
        ("\"a\"", "\"\\u0061\"", true),
        ("\"command\"", "\"comm\\u0061nd\"", true),
        ("\"a\"", "\"b\"", false),
        ("\"a\"", "\"A\"", false),
        (r#""capabilities":["x"]"#, r#""capabilities":["x"],"n":1"#, false),
        (r#""id":"a","type":"nexus""#, r#""type":"nexus","id":"a""#, false),
    ] {
        let changed = message.replacen(from, to, 1);
        assert_ne!(changed, message);
        let verified = decode::envelope(&changed).unwrap().verify(Some(&keys()), SignatureScope::Header);
        assert_eq!(
            verified.map_err(|error| error.code).err(),
            (!is_signed).then_some(NexusCode::SignatureInvalid),
            "{to}"
        );
    }
}

/// The sender computed its signature as the document does, and its JSON library wrote the message in another way. A number
/// that JavaScript cannot tell from the signed one could be put in its place, so the signed one counts.
#[test]
fn what_javascript_computes_is_what_counts() {
    let keys = keys();
    let to = identity("b");
    let from =
        r#"{"id":"a","type":"nexus","version":"1.0.0","capabilities":[],"2":1.50,"1":1e2,"ü":"\u00e9"}"#;
    let from_signed =
        r#"{"1":100,"2":1.5,"id":"a","type":"nexus","version":"1.0.0","capabilities":[],"ü":"é"}"#;
    let payload = r#"{"parameters": {"tool": "t", "arguments": {"n": 9007199254740993, "m": 2.0}}}"#;
    let payload_signed = r#"{"parameters":{"tool":"t","arguments":{"n":9007199254740992,"m":2}}}"#;
    let text = |from: &str, to: &str, payload: &str| {
        format!(
            r#"{{"id":"{ID}","type":"command","from":{from},"to":{to},"action":"tool.execute","payload":{payload},"timestamp":1700000000000}}"#
        )
    };
    let signature = keys.sign(&text(from_signed, &to, payload_signed));
    let message = |payload: &str| {
        let signed = text(from, &to.replace(',', ", "), payload);
        let more = format!(
            r#","version":"1.0.0","priority":"low","ttl":1000,"requiresAck":false,"requiresSignature":true,"signature":"{signature}"}}"#
        );
        signed.trim_end_matches('}').to_owned() + &more
    };
    let verify = |message: &str| {
        let envelope = decode::envelope(message).map_err(|malformed| malformed.failure)?;
        assert_eq!(envelope.identity().get(), from_signed, "answers are addressed to it");
        envelope.verify(Some(&keys), SignatureScope::Full)?.content(&keys, &BOUNDS)
    };
    let Ok(Content::Execute(execute)) = verify(&message(payload)) else { panic!("not signed") };
    assert_eq!(Value::Object(execute.arguments).to_string(), r#"{"n":9007199254740992,"m":2}"#);
    for changed in ["\"tool\": \"u\"", "\"tool\": \"t\", \"timeoutMs\": 1"] {
        let payload = payload.replacen("\"tool\": \"t\"", changed, 1);
        assert_eq!(verify(&message(&payload)).unwrap_err().code, NexusCode::SignatureInvalid, "{changed}");
    }
    // JavaScript reads a number beyond the doubles as infinity, which JSON does not have.
    let payload = payload.replacen("2.0", "2e999", 1);
    assert_eq!(verify(&message(&payload)).unwrap_err().code, NexusCode::SignatureInvalid);
}

/// NIST's test case 16 of AES-256-GCM (McGrew and Viega).
#[test]
fn the_cipher_is_the_standards() {
    let bytes = |hex: &str| {
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect::<Vec<_>>()
    };
    let key = bytes("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308");
    let keys = AgentKeys::new(b"secret", Some(&key.try_into().unwrap())).unwrap();
    let iv: [u8; 12] = bytes("cafebabefacedbaddecaf888").try_into().unwrap();
    // An empty text without associated data under the same key and nonce: the tag alone.
    let sealed = keys.seal("", "", iv).unwrap();
    assert!(sealed.ciphertext.is_empty());
    assert_eq!(keys.open(&sealed, ""), Some(Vec::new()));
    // Test case 13: all zeros.
    let zero = AgentKeys::new(b"secret", Some(&[0; 32])).unwrap();
    assert_eq!(
        zero.seal("", "", [0; 12]).unwrap().auth_tag.to_vec(),
        bytes("530f8afbc74536b9a963b4f1c4cb738b")
    );
    // Test case 14.
    let sealed = zero.seal(&"\0".repeat(16), "", [0; 12]).unwrap();
    assert_eq!(sealed.ciphertext, bytes("cea7403d4d606b6e074ec5d3baf39d18"));
    assert_eq!(sealed.auth_tag.to_vec(), bytes("d0d1c8a799996bf0265b98b5d48ab919"));
}

#[test]
fn what_is_sealed_is_bound_to_its_header() {
    let sealed = keys().seal("{}", "header", [9; 12]).unwrap();
    assert_eq!(keys().open(&sealed, "header").as_deref(), Some(b"{}".as_slice()));
    assert_eq!(keys().open(&sealed, "Header"), None);
    let mut bent = sealed.clone();
    let mut cut = sealed.clone();
    bent.ciphertext[0] ^= 1;
    cut.ciphertext.pop();
    let other = AgentKeys::new(b"secret", Some(&[8; 32])).unwrap();
    assert_eq!(keys().open(&bent, "header"), None);
    assert_eq!(keys().open(&cut, "header"), None);
    assert_eq!(other.open(&sealed, "header"), None);
    assert_eq!(AgentKeys::new(b"secret", None).unwrap().open(&sealed, "header"), None);
}

#[test]
fn every_command_and_query_is_read() {
    let intent = IntentId::parse(ID).unwrap();
    let commands = [
        (
            command("tool.execute", json!({ "tool": "t", "arguments": { "a": 1 }, "timeoutMs": 1500 })),
            Content::Execute(ExecuteCommand {
                tool: ToolName::parse("t").unwrap(),
                arguments: json!({ "a": 1 }).as_object().unwrap().clone(),
                timeout: Some(Timeout::from_millis(1500).unwrap()),
                context: None,
                session: None,
            }),
        ),
        (command("tool.cancel", json!({ "intentId": ID })), Content::Cancel(intent)),
        (
            command("events.subscribe", json!({ "events": ["finished"], "intentId": ID })),
            Content::Subscribe(SubscribeCommand {
                events: [EventName::Finished].into(),
                intent: Some(intent),
                guarantee: DeliveryGuarantee::AtMostOnce,
            }),
        ),
        (command("events.unsubscribe", json!({ "subscriptionId": ID })), Content::Unsubscribe(intent)),
    ];
    for ((more, payload), expected) in &commands {
        let sealed = message("command", more, Some(payload), SignatureScope::Header);
        assert_eq!(content(&sealed, SignatureScope::Header).as_ref(), Ok(expected));
        let mut clear = more.clone();
        clear["payload"] = payload.clone();
        let full = message("command", &clear, None, SignatureScope::Full);
        assert_eq!(content(&full, SignatureScope::Full).as_ref(), Ok(expected));
        // The header signature does not cover a plaintext payload.
        let header = message("command", &clear, None, SignatureScope::Header);
        assert_eq!(code(&header, SignatureScope::Header), NexusCode::SignatureInvalid);
        // The header signature does not cover the action, so no other action accepts the payload.
        for ((other, _), _) in &commands {
            if other != more {
                let swapped = message("command", other, Some(payload), SignatureScope::Header);
                assert_eq!(
                    code(&swapped, SignatureScope::Header),
                    NexusCode::ValidationError,
                    "{more} as {other}"
                );
            }
        }
    }
    for (action, question) in [
        ("get_status", QueryAction::Status),
        ("get_metrics", QueryAction::Metrics),
        ("get_state", QueryAction::State),
    ] {
        for (id, resource) in [("executor", QueryResource::Executor), (ID, QueryResource::Intent(intent))] {
            let query = json!({ "action": action, "payload": { "resourceId": id } });
            let query = message("query", &query, None, SignatureScope::Header);
            assert_eq!(content(&query, SignatureScope::Header), Ok(Content::Query(question, resource)));
        }
    }
    let (more, mut payload) = command("tool.execute", json!({ "tool": "t" }));
    payload["workflowId"] = json!("w");
    payload["agentId"] = json!("someone");
    let asked =
        content(&message("command", &more, Some(&payload), SignatureScope::Header), SignatureScope::Header);
    let Ok(Content::Execute(ExecuteCommand { context: Some(context), .. })) = asked else {
        panic!("{asked:?}")
    };
    assert_eq!(Value::Object(context), json!({ "workflowId": "w", "agentId": "someone" }));
}

#[test]
fn a_full_signature_is_of_action_and_payload() {
    let (more, payload) = command("tool.execute", json!({ "tool": "t" }));
    let mut more = more;
    more["payload"] = payload;
    let signed = message("command", &more, None, SignatureScope::Full);
    assert!(content(&signed, SignatureScope::Full).is_ok());
    for (pointer, value) in [("/payload/parameters/tool", "u"), ("/action", "tool.cancel")] {
        let mut bent = signed.clone();
        *bent.pointer_mut(pointer).unwrap() = json!(value);
        assert_eq!(code(&bent, SignatureScope::Full), NexusCode::SignatureInvalid);
    }
    assert_eq!(code(&signed, SignatureScope::Header), NexusCode::SignatureInvalid, "and of no other scope");
}

#[test]
fn what_is_no_message_is_refused_in_its_own_word() {
    let query = json!({ "action": "get_status", "payload": { "resourceId": "executor" } });
    let good = message("query", &query, None, SignatureScope::Header);
    assert!(content(&good, SignatureScope::Header).is_ok());
    for missing in [
        "id",
        "type",
        "version",
        "timestamp",
        "from",
        "to",
        "priority",
        "ttl",
        "requiresAck",
        "requiresSignature",
        "action",
        "payload",
    ] {
        let mut bad = good.clone();
        bad.as_object_mut().unwrap().remove(missing);
        assert_eq!(code(&bad, SignatureScope::Header), NexusCode::ValidationError, "{missing}");
    }
    for (name, value, expected) in [
        ("id", json!("1"), NexusCode::ValidationError),
        ("id", json!(1), NexusCode::ValidationError),
        ("type", json!("COMMAND"), NexusCode::InvalidMessage),
        ("type", json!("shout"), NexusCode::InvalidMessage),
        ("version", json!("2.0.0"), NexusCode::InvalidMessage),
        ("timestamp", json!(0), NexusCode::ValidationError),
        ("timestamp", json!("1700000000000"), NexusCode::ValidationError),
        ("timestamp", json!(1.5), NexusCode::ValidationError),
        ("ttl", json!(0), NexusCode::ValidationError),
        ("ttl", json!(-1), NexusCode::ValidationError),
        ("ttl", json!(3_600_001), NexusCode::ValidationError),
        ("ttl", Value::Null, NexusCode::ValidationError),
        ("priority", json!("urgent"), NexusCode::ValidationError),
        ("requiresAck", json!("true"), NexusCode::ValidationError),
        ("from", json!("a"), NexusCode::ValidationError),
        (
            "from",
            json!({ "id": "", "type": "nexus", "version": "1", "capabilities": [] }),
            NexusCode::ValidationError,
        ),
        (
            "from",
            json!({ "id": "a", "type": "human", "version": "1", "capabilities": [] }),
            NexusCode::ValidationError,
        ),
        ("from", json!({ "id": "a", "type": "nexus", "version": "1" }), NexusCode::ValidationError),
        ("signature", Value::Null, NexusCode::SignatureInvalid),
        ("signature", json!("00"), NexusCode::SignatureInvalid),
        ("action", json!("get_secrets"), NexusCode::NotFound),
        ("payload", json!([]), NexusCode::ValidationError),
        ("payload", json!({ "resourceId": "everything" }), NexusCode::ValidationError),
        ("payload", json!({ "resourceId": "executor", "more": 1 }), NexusCode::ValidationError),
        ("encryption", json!({}), NexusCode::ValidationError),
        (
            "encryption",
            json!({ "algorithm": "AES-128-GCM", "iv": "", "ciphertext": "", "authTag": "" }),
            NexusCode::ValidationError,
        ),
        (
            "encryption",
            json!({ "algorithm": "AES-256-GCM", "iv": "AAAA", "ciphertext": "", "authTag": "" }),
            NexusCode::ValidationError,
        ),
    ] {
        let mut bad = good.clone();
        bad[name] = value;
        assert_eq!(code(&bad, SignatureScope::Header), expected, "{name}: {}", bad[name]);
    }
    for bad in ["[]", "1", "null", "\"x\""] {
        assert_eq!(decode::envelope(bad).unwrap_err().failure.code, NexusCode::InvalidMessage);
    }
    for (pointer, value) in [
        ("/id", json!(IntentId::random().to_string())),
        ("/timestamp", json!(1_700_000_000_005_u64)),
        ("/from/capabilities/0", json!("y")),
        ("/to/id", json!("c")),
    ] {
        let mut bent = good.clone();
        *bent.pointer_mut(pointer).unwrap() = value;
        assert_eq!(code(&bent, SignatureScope::Header), NexusCode::SignatureInvalid, "{pointer}");
    }
    for (action, parameters, expected) in [
        ("tool.destroy", json!({}), NexusCode::NotFound),
        ("tool.execute", json!({ "tool": "t", "force": true }), NexusCode::ValidationError),
        ("events.subscribe", json!({ "events": ["everything"] }), NexusCode::ValidationError),
    ] {
        let (more, payload) = command(action, parameters);
        let wrong = message("command", &more, Some(&payload), SignatureScope::Header);
        assert_eq!(code(&wrong, SignatureScope::Header), expected, "{action}");
    }
    let event = json!({ "eventType": "plan", "eventName": "made", "deliveryGuarantee": "twice",
        "payload": { "data": 1, "metadata": { "schemaVersion": "1", "contentType": "application/json" } } });
    let event = message("event", &event, None, SignatureScope::Header);
    assert_eq!(code(&event, SignatureScope::Header), NexusCode::ValidationError);
    // A sealed payload passes the strict reader, too.
    let from = identity("a");
    let to = identity("b");
    let header =
        format!(r#"{{"id":"{ID}","type":"command","from":{from},"to":{to},"timestamp":1700000000000}}"#);
    let sealed = keys().seal(r#"{"parameters":{"tool":"a","tool":"b"}}"#, &header, [1; 12]).unwrap();
    let mut twice =
        message("command", &json!({ "action": "tool.execute" }), Some(&json!({})), SignatureScope::Header);
    twice["encryption"]["ciphertext"] = STANDARD.encode(sealed.ciphertext).into();
    twice["encryption"]["authTag"] = STANDARD.encode(sealed.auth_tag).into();
    assert_eq!(code(&twice, SignatureScope::Header), NexusCode::InvalidMessage);
}

#[test]
fn a_message_is_of_its_time() {
    let query = json!({ "action": "get_status", "payload": { "resourceId": "executor" } });
    let text = message("query", &query, None, SignatureScope::Header).to_string();
    let verified = decode::envelope(&text).unwrap().verify(Some(&keys()), SignatureScope::Header).unwrap();
    let at = 1_700_000_000_000;
    for (now, good) in
        [(at, true), (at + 1000, true), (at + 1001, false), (at - 60_000, true), (at - 60_001, false)]
    {
        let checked = verified.check_time(now, 60_000);
        assert_eq!(checked.is_ok(), good, "{now}");
    }
}

#[test]
fn codes_say_whether_the_same_request_may_succeed_later() {
    let retryable = NexusCode::VARIANTS
        .iter()
        .filter(|code| code.is_retryable())
        .map(|code| code.as_str())
        .collect::<Vec<_>>();
    assert_eq!(
        retryable,
        ["TIMEOUT", "UNAVAILABLE", "RATE_LIMITED", "INTERNAL_ERROR", "NETWORK_ERROR", "EXECUTION_FAILED"]
    );
    for fault in [Fault::Parse("p".to_owned()), Fault::Busy { message: "p".to_owned(), retry_after_ms: 5 }] {
        let failure = fault::to_error(&fault);
        let object = failure.to_json(5);
        assert_eq!((&object["code"], &object["timestamp"]), (&json!(failure.code.as_str()), &json!(5)));
        assert_eq!(object["retryable"], failure.code.is_retryable());
    }
    let unknown = fault::execution_error(&Fault::invalid("/tool", "there is none"));
    assert_eq!(
        (unknown.code, &unknown.details["pointer"]),
        (NexusCode::NotFound, &json!("/payload/parameters/tool"))
    );
    let schema = fault::execution_error(&Fault::invalid("/arguments/path", "no"));
    assert_eq!(schema.details["pointer"], "/payload/parameters/arguments/path");
    assert_eq!(
        fault::execution_error(&Fault::InvalidRequest("used".to_owned())).code,
        NexusCode::ValidationError
    );
}

/// Parses a message of the executor as its peer would.
fn read_back(sealed: bool, scope: SignatureScope, body: OutgoingBody<'_>) -> (Value, Content) {
    let own = RawValue::from_string(identity("b")).unwrap();
    let to = RawValue::from_string(identity("a")).unwrap();
    let keys = keys();
    let letter =
        MessageWriter { from: &own, to: &to, keys: Some(&keys), scope, sealed, priority: Priority::Critical };
    let stamp =
        MessageStamp { id: IntentId::parse(ID).unwrap(), timestamp_ms: 1_700_000_000_000, iv: [3; 12] };
    let text = letter.write(&stamp, body);
    let envelope = decode::envelope(&text).unwrap();
    let verified = envelope.verify(Some(&keys), scope).unwrap();
    let content = verified.content(&keys, &BOUNDS).unwrap();
    assert_eq!((verified.priority(), verified.timestamp_ms()), (Priority::Critical, stamp.timestamp_ms));
    let mut message: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(message.get("encryption").is_some(), sealed && message["type"] != "ack", "{text}");
    if let Some(encryption) = message.get("encryption") {
        let part = |name: &str| STANDARD.decode(encryption[name].as_str().unwrap()).unwrap();
        let header = format!(
            r#"{{"id":"{ID}","type":{},"from":{own},"to":{to},"timestamp":1700000000000}}"#,
            message["type"]
        );
        let packed = super::keys::SealedPayload {
            iv: part("iv").try_into().unwrap(),
            ciphertext: part("ciphertext"),
            auth_tag: part("authTag").try_into().unwrap(),
        };
        let opened: Value = serde_json::from_slice(&keys.open(&packed, &header).unwrap()).unwrap();
        for clear in ["payload", "data", "error", "processingTime"] {
            assert!(message.get(clear).is_none(), "{clear} is in the clear");
        }
        message["opened"] = opened;
    }
    (message, content)
}

#[test]
fn answers_are_signed_and_sealed_as_they_were_asked_for() {
    let request = IntentId::random();
    for scope in [SignatureScope::Header, SignatureScope::Full] {
        for sealed in [false, true] {
            let failure = NexusError::new(NexusCode::Timeout, "late").with_detail("limit", "time");
            let response = OutgoingBody::Response {
                request,
                status: ResponseStatus::Failure,
                data: Some(encode::answer(&json!({ "x": 1 }))),
                error: Some(failure.clone()),
                processing_ms: 7,
            };
            let (message, content) = read_back(sealed, scope, response);
            assert_eq!(content, Content::Response);
            assert_eq!(message["correlationId"], request.to_string());
            assert_eq!(
                (&message["requestId"], &message["status"]),
                (&message["correlationId"], &json!("FAILURE"))
            );
            let said = if sealed { &message["opened"] } else { &message };
            assert_eq!((&said["data"], &said["processingTime"]), (&json!({ "x": 1 }), &json!(7)));
            assert_eq!((&said["error"]["code"], &said["status"]), (&json!("TIMEOUT"), &json!("FAILURE")));

            let (message, content) = read_back(sealed, scope, OutgoingBody::Error(Some(request), failure));
            assert_eq!((content, &message["correlationId"]), (Content::Error, &json!(request.to_string())));
            let said = if sealed { &message["opened"] } else { &message };
            assert_eq!(said["error"]["details"]["limit"], "time");

            let (_, content) = read_back(sealed, scope, OutgoingBody::Ack(request));
            assert_eq!(content, Content::Ack(request));
        }
    }
}

proptest! {
    #[test]
    fn an_event_is_read_as_it_was_written(
        text in ".{0,40}", percent in proptest::num::f64::NORMAL, name in 0..5_usize, guarantee in 0..3_usize, sealed: bool,
    ) {
        let guarantee = [DeliveryGuarantee::AtMostOnce, DeliveryGuarantee::AtLeastOnce, DeliveryGuarantee::ExactlyOnce][guarantee];
        let name = EventName::ALL[name];
        let data = json!({ "message": text, "percent": percent });
        let payload = encode::event_payload(&data);
        let (message, content) =
            read_back(sealed, SignatureScope::Header, OutgoingBody::Event { name, guarantee, payload: &payload });
        let Content::Event(head) = content else { panic!("{content:?}") };
        prop_assert_eq!((head.kind.as_str(), head.name.as_str()), ("execution", name.as_str()));
        prop_assert_eq!(head.guarantee, guarantee);
        let said = if sealed { &message["opened"] } else { &message["payload"] };
        prop_assert_eq!(&said["data"], &data);
        prop_assert_eq!(&message["requiresAck"], guarantee != DeliveryGuarantee::AtMostOnce);
    }

    #[test]
    fn a_command_is_read_as_it_was_written(tool in "[A-Za-z][A-Za-z0-9_.-]{0,63}", text in ".{0,40}", timeout in 1..1_000_000_u64) {
        let parameters = json!({ "tool": tool, "arguments": { "text": text }, "timeoutMs": timeout });
        let (more, payload) = command("tool.execute", parameters);
        let asked = content(&message("command", &more, Some(&payload), SignatureScope::Header), SignatureScope::Header);
        let Ok(Content::Execute(execute)) = asked else { panic!("{asked:?}") };
        prop_assert_eq!(execute.tool.as_str(), tool);
        prop_assert_eq!(&execute.arguments["text"], &text);
        prop_assert_eq!(execute.timeout, Timeout::from_millis(timeout).ok());
    }
}

#[test]
fn the_words_are_the_documents() {
    fn words<T: Copy + Into<&'static str> + VariantArray>() -> Vec<&'static str> {
        T::VARIANTS.iter().map(|variant| (*variant).into()).collect()
    }
    assert_eq!(words::<MessageType>(), ["command", "query", "event", "response", "ack", "error"]);
    assert_eq!(words::<DeliveryGuarantee>(), ["at-most-once", "at-least-once", "exactly-once"]);
    assert_eq!(words::<EventName>(), ["started", "progress", "log", "artifact", "finished"]);
    assert_eq!(words::<ResponseStatus>(), ["SUCCESS", "FAILURE", "PARTIAL"]);
    for (word, priority) in super::message::PRIORITIES {
        assert_eq!(priority.as_str(), word);
    }
}

#[test]
fn the_answer_to_a_staged_run_is_partial_until_its_changes_are_in_force() {
    let staged = staged_receipt(json!(1));
    let discarded = StagedState { state: ChangeState::Discarded, ..waiting() };
    for (state, expected, status) in [
        (None, None, ResponseStatus::Partial),
        (Some(waiting()), Some("waiting"), ResponseStatus::Partial),
        (Some(committed()), Some("in_force"), ResponseStatus::Success),
        (Some(discarded), Some("discarded"), ResponseStatus::Partial),
    ] {
        let (answered, data, error) = encode::run_report(&staged, state.as_ref());
        let data: Value = serde_json::from_str(data.get()).unwrap();
        assert_eq!((answered, error), (status, None), "{data}");
        assert_eq!((&data["status"], &data["result"]), (&json!("STAGED"), &json!(1)));
        assert_eq!(data["effects"].get("state").and_then(Value::as_str), expected, "{data}");
        assert_eq!(data["effects"]["files"][1]["change"], "changed");
    }
    let (answered, data, _) = encode::run_report(&receipt(End::Returned(json!(1).into())), None);
    assert!(answered == ResponseStatus::Success && !data.get().contains("effects"), "{data}");
}
