//! Decoding, encoding, and the table of errors.

use super::decode::{self, ContextHints, RequestForm, SovereignRequest};
use super::encode::ReplyEncoder;
use super::fault::{self, SovereignError};
use super::skills;
use crate::jsonrpc::Id;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{IntentId, ToolName};
use a2g_types::quantity::Timeout;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn read(body: &Value) -> Result<SovereignRequest, i64> {
    decode::request(&body.to_string()).map_err(|malformed| fault::to_error(&malformed.fault).code)
}

/// A request of a client.
fn written(request: &SovereignRequest) -> Value {
    let mut params = Map::new();
    params.insert("skill".to_owned(), json!(request.skill));
    if let Some(operation) = &request.operation {
        params.insert("operation".to_owned(), json!(operation));
    }
    params.insert("payload".to_owned(), json!(request.payload));
    let mut hints = Map::new();
    if let Some(timeout) = request.hints.timeout {
        let millis = u64::try_from(timeout.duration().as_millis()).unwrap();
        hints.insert("timeout_ms".to_owned(), json!(millis));
    }
    if request.hints.corrects_payload {
        hints.insert("retry_strategy".to_owned(), json!("correct_payload"));
    }
    let mut body = json!({
        "jsonrpc": if request.form == RequestForm::Sovereign { "3.0" } else { "2.0" },
        "params": params,
        "metadata": { "stream": request.stream, "context_hints": hints },
    });
    if let Some(id) = &request.id {
        body["id"] = serde_json::from_str(id.as_json()).unwrap();
    }
    body
}

prop_compose! {
    fn requests()(
        form in prop_oneof![Just(RequestForm::Sovereign), Just(RequestForm::JsonRpc2)],
        id in prop::option::of("[a-z0-9]{1,20}"),
        skill in "[a-z][a-z_]{0,10}",
        operation in prop::option::of("[a-z][a-z_/]{0,10}"),
        keys in prop::collection::btree_map("[a-z]{1,5}", any::<i32>(), 0..4),
        stream in any::<bool>(),
        timeout in prop::option::of(1..=604_800_000_u64),
        corrects_payload in any::<bool>(),
    ) -> SovereignRequest {
        SovereignRequest {
            form,
            id: id.map(|id| Id::from_text(&id)),
            skill,
            operation,
            payload: keys.into_iter().map(|(key, value)| (key, json!(value))).collect(),
            stream,
            hints: ContextHints {
                timeout: timeout.map(|millis| Timeout::from_millis(millis).unwrap()),
                corrects_payload,
            },
        }
    }
}

proptest! {
    #[test]
    fn a_request_is_read_as_it_was_written(request in requests()) {
        prop_assert_eq!(read(&written(&request)).unwrap(), request);
    }

    #[test]
    fn no_body_is_read_as_more_than_it_says(text in "[ -~]{0,64}") {
        if let Ok(request) = decode::request(&text) {
            prop_assert!(!request.skill.is_empty());
        }
    }
}

#[test]
fn the_method_splits_at_its_first_slash() {
    let named = |method: &str| {
        let request = read(&json!({ "jsonrpc": "3.0", "method": method })).unwrap();
        (request.skill, request.operation)
    };
    assert_eq!(named("email/check/all"), ("email".to_owned(), Some("check/all".to_owned())));
    assert_eq!(named("email"), ("email".to_owned(), None));
    assert_eq!(named("email/"), ("email".to_owned(), Some(String::new())));
    assert_eq!(read(&json!({ "jsonrpc": "3.0", "method": "/x" })), Err(-32600));
    assert_eq!(read(&json!([])), Err(-32600));
    let twice = json!({ "jsonrpc": "3.0", "method": "a/b", "params": { "operation": "c" } });
    assert_eq!(read(&twice), Err(-32602));
    assert_eq!(read(&json!({ "skill": "a", "action": "b", "operation": "b" })), Err(-32602));
}

#[test]
fn a_tool_is_an_operation_of_a_skill() {
    let of = |name: &str| {
        let name = ToolName::parse(name).unwrap();
        let (skill, operation) = skills::skill_and_operation(&name);
        (skill.to_owned(), operation.to_owned())
    };
    assert_eq!(of("email.check"), ("email".to_owned(), "check".to_owned()));
    assert_eq!(of("email.check.all"), ("email".to_owned(), "check.all".to_owned()));
    assert_eq!(of("write_file"), ("write_file".to_owned(), "run".to_owned()));
}

#[test]
fn every_fault_has_its_code_and_keeps_what_is_private() {
    let refused = |blocked_by| Fault::Refused {
        intent: Some(IntentId::from_bytes([1; 16])),
        risk_score: Some(0.9),
        blocked_by,
        message: "no".to_owned(),
    };
    let tool = ToolName::parse("x").unwrap();
    for (fault, code, status) in [
        (Fault::Parse("p".to_owned()), -32700, "PARSE_ERROR"),
        (Fault::InvalidRequest("r".to_owned()), -32600, "INVALID_REQUEST"),
        (Fault::MethodNotFound("m".to_owned()), -32601, "METHOD_NOT_FOUND"),
        (Fault::invalid("/arguments/a", "i"), -32602, "INVALID_PARAMS"),
        (Fault::ToolUnavailable { tool, message: "u".to_owned() }, -32003, "ADAPTER_UNAVAILABLE"),
        (refused(BlockedBy::VerdictDenied), -32000, "VERDICT_DENIED"),
        (refused(BlockedBy::GovernorUnavailable), -32003, "GOVERNOR_UNAVAILABLE"),
        (Fault::Busy { message: "b".to_owned(), retry_after_ms: 5 }, -32000, "BUSY"),
        (
            Fault::ReceiptPending { intent: IntentId::from_bytes([1; 16]), retry_after_ms: 5 },
            -32000,
            "RECEIPT_PENDING",
        ),
        (Fault::Internal("/secret/path".to_owned()), -32000, "SERVER_ERROR"),
    ] {
        let failure = fault::to_error(&fault);
        assert_eq!((failure.code, failure.status_code.as_str()), (code, status), "{fault:?}");
        assert!(!failure.message.contains("secret"));
    }
    let pointer = fault::to_error(&Fault::invalid("/arguments/a", "i"));
    assert_eq!(pointer.data.get("pointer"), Some(&json!("/params/payload/a")));
}

#[test]
fn an_error_says_what_was_asked_for_in_every_form() {
    let failure = fault::to_error(&Fault::Busy { message: "full".to_owned(), retry_after_ms: 5 });
    let answer = |form, failure: &SovereignError| -> Value {
        let reply = ReplyEncoder {
            form,
            id: Id::from_text("r"),
            skill: Some("a".to_owned()),
            operation: Some("b".to_owned()),
        };
        serde_json::from_str(&reply.failure(failure)).unwrap()
    };
    let data = json!({ "skill": "a", "operation": "b", "status_code": "BUSY", "retry_after_ms": 5 });
    let error = json!({ "code": -32000, "message": "full", "data": data });
    let sovereign =
        json!({ "jsonrpc": "3.0", "id": "r", "error": error, "metadata": { "context_hints": {} } });
    assert_eq!(answer(RequestForm::Sovereign, &failure), sovereign);
    assert_eq!(
        answer(RequestForm::JsonRpc2, &failure),
        json!({ "jsonrpc": "2.0", "id": "r", "error": error })
    );
    let flat = json!({ "request_id": "r", "success": false, "status_code": "BUSY", "error": "full",
        "error_code": -32000, "error_data": data });
    assert_eq!(answer(RequestForm::Legacy, &failure), flat);
}
