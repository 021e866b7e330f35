//! Decoding, encoding, and the table of errors.

use super::decode::{self, ContextHints, RequestForm, SovereignRequest};
use super::encode::ReplyEncoder;
use super::fault::{self, SovereignError};
use super::skills;
use crate::jsonrpc::Id;
use crate::tests::{map, staged_receipt, waiting};
use a2g_types::fault::Fault;
use a2g_types::ident::ToolName;
use a2g_types::quantity::Timeout;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn read(body: &Value) -> Result<SovereignRequest, i64> {
    decode::request(&body.to_string()).map_err(|malformed| fault::to_error(&malformed.fault).code)
}

proptest! {
    #[test]
    fn a_request_is_read_as_it_was_written(
        form in prop_oneof![Just(RequestForm::Sovereign), Just(RequestForm::JsonRpc2)],
        id in prop::option::of("[a-z0-9]{1,20}"),
        skill in "[a-z][a-z_]{0,10}",
        operation in prop::option::of("[a-z][a-z_/]{0,10}"),
        payload in map("[a-z]{1,5}"),
        stream in any::<bool>(),
        timeout in prop::option::of(1..=604_800_000_u64),
        corrects_payload in any::<bool>(),
    ) {
        // A member that is not there is written as none, and not as null.
        let some = |members: Vec<(&str, Option<Value>)>| -> Map<String, Value> {
            let there = members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
            there.collect()
        };
        let hints = some(vec![
            ("timeout_ms", timeout.map(Value::from)),
            ("retry_strategy", corrects_payload.then(|| "correct_payload".into())),
        ]);
        let params = some(vec![
            ("skill", Some(json!(skill))),
            ("operation", operation.clone().map(Value::from)),
            ("payload", Some(json!(payload))),
        ]);
        let version = if form == RequestForm::Sovereign { "3.0" } else { "2.0" };
        let body = some(vec![
            ("jsonrpc", Some(version.into())),
            ("id", id.clone().map(Value::from)),
            ("params", Some(params.into())),
            ("metadata", Some(json!({ "stream": stream, "context_hints": hints }))),
        ]);
        let timeout = timeout.map(|millis| Timeout::from_millis(millis).unwrap());
        let hints = ContextHints { timeout, corrects_payload };
        let id = id.map(|id| Id::from_text(&id));
        let expected =
            SovereignRequest { form, id, skill, operation, payload, stream, hints, session: None };
        prop_assert_eq!(read(&body.into()).unwrap(), expected);
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
fn invalid_requests_are_refused_with_their_code() {
    let call = |more: Value| {
        let mut call = json!({ "jsonrpc": "3.0", "id": 1, "method": "a/b", "params": { "payload": {} } });
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call
    };
    assert!(read(&call(json!({}))).is_ok());
    let hint = |name: &str, value: Value| call(json!({ "metadata": { "context_hints": { name: value } } }));
    for (wrong, code) in [
        (call(json!({ "jsonrpc": "1.0" })), -32600),
        (call(json!({ "jsonrpc": 3.0 })), -32600),
        (call(json!({ "method": "" })), -32600),
        (json!({ "jsonrpc": "3.0", "id": 1 }), -32600),
        (call(json!({ "id": {} })), -32600),
        (call(json!({ "id": "x".repeat(200) })), -32600),
        (call(json!({ "method": 1 })), -32602),
        (call(json!({ "params": [] })), -32602),
        (call(json!({ "params": { "payload": [] } })), -32602),
        (call(json!({ "params": { "skill": "c", "payload": {} } })), -32602),
        (call(json!({ "metadata": { "stream": "yes" } })), -32602),
        (hint("tier", json!("TOP")), -32602),
        (hint("timeout_ms", json!(0)), -32602),
        (hint("timeout_ms", json!(1.5)), -32602),
        (hint("retry_strategy", json!("again")), -32602),
    ] {
        assert_eq!(read(&wrong), Err(code), "{wrong}");
    }
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
    for name in ["email.check", "email.check.all", "write_file"] {
        let (skill, operation) = of(name);
        assert_eq!(skills::tool_of(&skill, Some(&operation)), ToolName::parse(name).ok());
    }
    assert_eq!(skills::tool_of("write_file", None), ToolName::parse("write_file").ok());
    for skill in ["Not/a name", "email.check"] {
        assert_eq!(skills::tool_of(skill, None), None);
    }
}

#[test]
fn a_pointer_leads_into_the_payload() {
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

#[test]
fn a_staged_run_is_a_success_with_its_changes() {
    let receipt = staged_receipt(json!({ "path": "x" }));
    for form in [RequestForm::Sovereign, RequestForm::JsonRpc2, RequestForm::Legacy] {
        let reply = ReplyEncoder { form, id: Id::from_text("r"), skill: None, operation: None };
        let answer: Value = serde_json::from_str(&reply.report(&receipt, Some(&waiting()), &[])).unwrap();
        let result = answer.get("result").unwrap_or(&answer);
        assert_eq!(
            (&result["success"], &result["status_code"]),
            (&json!(true), &json!("STAGED")),
            "{answer}"
        );
        assert_eq!(result["data"], json!({ "path": "x" }));
        let effects = &result["effects"];
        assert_eq!((&effects["state"], &effects["changes"]), (&json!("waiting"), &json!(2)), "{answer}");
        assert_eq!(effects["files"][0]["path"], "/workspace/old");
        assert!(effects["message"].as_str().unwrap().contains("not in force"), "{effects}");
    }
}
