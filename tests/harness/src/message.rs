//! The messages that tests send, and what they read from the answers.

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The agent in whose name tests ask.
pub const AGENT: &str = "did:aeon:tester:1.0:abc123";

/// A fresh intent id.
pub fn intent_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// RFC 3339, so many seconds from now.
pub fn in_seconds(seconds: i64) -> String {
    (OffsetDateTime::now_utc() + time::Duration::seconds(seconds)).format(&Rfc3339).unwrap()
}

/// An intent with an id of its own (the params of `a2g/intent`).
pub fn intent(tool: &str, arguments: Value) -> Value {
    json!({ "agent_did": AGENT, "intent_id": intent_id(), "tool": tool, "arguments": arguments })
}

/// The manifest of the document's example, for `/workspace`.
pub fn manifest() -> Value {
    json!({
        "max_memory_mb": 50,
        "max_cpu_percent": 100,
        "timeout_seconds": 30,
        "network_allowed": false,
        "filesystem_scope": ["/workspace/**"],
    })
}

/// An APPROVED verdict that expires in an hour.
pub fn verdict(intent_id: &str, manifest: &Value) -> Value {
    json!({
        "verdict": "APPROVED",
        "intent_id": intent_id,
        "capability_manifest": manifest,
        "conditions": [],
        "expires_at": in_seconds(3600),
    })
}

/// The params of `a2g/execute` with an intent and a verdict that answers it.
pub fn approved(intent: Value, manifest: &Value) -> Value {
    let verdict = verdict(intent["intent_id"].as_str().expect("an id"), manifest);
    json!({ "intent": intent, "verdict": verdict })
}

/// The params of `a2g/execute`, approved under [`manifest`].
pub fn execute(tool: &str, arguments: Value) -> Value {
    approved(intent(tool, arguments), &manifest())
}

/// As [`execute`], with so much memory in MB and so much time in seconds.
pub fn execute_within(tool: &str, arguments: Value, memory_mb: u64, seconds: u64) -> Value {
    let mut grant = manifest();
    grant["max_memory_mb"] = json!(memory_mb);
    grant["timeout_seconds"] = json!(seconds);
    approved(intent(tool, arguments), &grant)
}

/// The id of the intent in the params of `a2g/execute`.
pub fn id_of(execute: &Value) -> String {
    execute["intent"]["intent_id"].as_str().expect("an id").to_owned()
}

/// The result of a response, which has to be one.
pub fn result(response: &Value) -> &Value {
    response.get("result").unwrap_or_else(|| panic!("no result: {response}"))
}

/// The error of a response, which has to be one with this code.
pub fn error(response: &Value, code: i64) -> &Value {
    let error = response.get("error").unwrap_or_else(|| panic!("no error: {response}"));
    assert_eq!(error["code"], code, "{response}");
    assert!(response.get("result").is_none(), "{response}");
    error
}

/// Checks that a response is a refusal before anything ran, for this reason, and gives its message.
pub fn expect_blocked<'a>(response: &'a Value, by: &str) -> &'a str {
    let error = error(response, -32000);
    assert_eq!(error["data"]["blocked_by"], by, "{response}");
    error["message"].as_str().expect("a message")
}

/// Sets a member, which need not be there.
pub fn set_member(value: &mut Value, pointer: &str, to: Value) {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    value.pointer_mut(parent).unwrap()[name] = to;
}
