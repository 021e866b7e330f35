//! The table of errors, and the messages of the faults.

use super::*;
use crate::a2g::{encode, fault};
use a2g_types::durability::Durability;
use a2g_types::fault::BlockedBy;
use a2g_types::limit::Limit;
use a2g_types::outcome::AbortReason;
use std::sync::Arc;

#[test]
fn every_fault_has_its_code_and_its_data() {
    let intent = IntentId::parse(INTENT).unwrap();
    let tool = ToolName::parse("echo").unwrap();
    let m = || "m".to_owned();
    let plain = |fault: Fault, code: i64| assert_eq!(fault::to_error(&fault), (code, m(), None));
    plain(Fault::Parse(m()), -32700);
    plain(Fault::InvalidRequest(m()), -32600);
    plain(Fault::MethodNotFound(m()), -32601);
    plain(Fault::RegistrationFailed(m()), -32002);
    plain(Fault::SessionExpired(m()), -32004);
    let with_data = |fault: Fault, code: i64, data: Value| {
        assert_eq!(fault::to_error(&fault), (code, m(), Some(data)));
    };
    with_data(Fault::invalid("/a~1b", "m"), -32602, json!({ "pointer": "/a~1b" }));
    let busy = Fault::Busy { message: m(), retry_after_ms: 250 };
    with_data(busy, -32003, json!({ "retry_after_ms": 250 }));
    let (code, message, data) = fault::to_error(&Fault::ReceiptPending { intent, retry_after_ms: 250 });
    let pending = json!({ "intent_id": INTENT, "ran": true, "retry_after_ms": 250 });
    assert_eq!((code, data), (-32003, Some(pending)));
    assert!(message.contains("the tool has started") && message.contains("a2g/status"), "{message}");
    with_data(Fault::ToolUnavailable { tool, message: m() }, -32001, json!({ "tool": "echo" }));
    let refused = |intent, risk_score| Fault::Refused {
        intent,
        risk_score,
        blocked_by: BlockedBy::VerdictDenied,
        message: m(),
    };
    let data = json!({ "intent_id": INTENT, "risk_score": 0.92, "blocked_by": "verdict_denied" });
    with_data(refused(Some(intent), Some(0.92)), -32000, data);
    with_data(refused(None, None), -32000, json!({ "blocked_by": "verdict_denied" }));
}

#[test]
fn an_internal_fault_keeps_its_detail() {
    let (code, message, data) =
        fault::to_error(&Fault::Internal("/home/operator/journal is full".to_owned()));
    assert_eq!((code, data), (-32603, None));
    assert!(!message.contains("journal"), "{message}");
}

/// A report names the possible loss by a power failure, and only if there is one.
#[test]
fn a_report_says_what_its_journal_does_not_wait_for() {
    let report = |durability| -> Value {
        let receipt = a2g_types::outcome::Receipt { durability, ..receipt(End::ResultNotJson) };
        serde_json::from_str(encode::report(&receipt).get()).unwrap()
    };
    assert_eq!(report(Durability::PowerLoss).get("durability"), None);
    assert_eq!(report(Durability::ProcessCrash)["durability"], "process-crash");
}

#[test]
fn a_failed_run_carries_its_report_and_says_the_same() {
    let failed = Arc::new(receipt(End::Exited { code: 3, stderr_tail: "trying\nno such file\n\n".into() }));
    let (code, message, data) = fault::to_error(&Fault::Failed(Arc::clone(&failed)));
    let report: Value = serde_json::from_str(encode::report(&failed).get()).unwrap();
    assert_eq!((code, message.as_str()), (-32001, "the tool exited with code 3: no such file"));
    assert_eq!(report["error"], message);
    assert_eq!((&report["status"], data), (&json!("FAILURE"), Some(json!({ "report": report }))));

    let late = Arc::new(receipt(End::LimitReached(Limit::Time)));
    let (code, message, data) = fault::to_error(&Fault::LimitReached(late, Limit::Time));
    let data = data.unwrap();
    assert_eq!(
        (code, &data["limit"], &data["report"]["status"]),
        (-32003, &json!("time"), &json!("TIMEOUT"))
    );
    assert_eq!(message, "the tool ran longer than its timeout of 30 s, set by a condition of the verdict");
    assert_eq!(data["report"]["error"], message);
}

#[test]
fn every_end_has_one_sentence() {
    let tool_error =
        |message: &str| End::ToolError { code: "E1".into(), message: message.into(), detail: None };
    let cases = [
        (tool_error("no such table"), "the tool failed with `E1`: no such table"),
        (tool_error("a\nb\u{1b}[31m"), "the tool failed with `E1`: a\\nb\\u{1b}[31m"),
        (End::Exited { code: 1, stderr_tail: " \n".into() }, "the tool exited with code 1"),
        (End::ResultNotJson, "the tool's standard output is not one JSON value"),
        (End::Trapped("out of bounds memory access".into()), "the tool trapped: out of bounds memory access"),
        (End::NotStarted("unknown import `x`".into()), "the tool cannot be started: unknown import `x`"),
        (End::LimitReached(Limit::Memory), "the tool reached its memory limit of 50 MB, set by the verdict"),
        (
            End::LimitReached(Limit::Output),
            "the tool reached its output limit of 1048576 bytes, set by the executor's configuration: print and return \
             less, or write it to a file and return the path",
        ),
        (End::LimitReached(Limit::Stack), "the tool used up its call stack"),
        (End::Aborted(AbortReason::Cancelled), "cancelled by `a2g/cancel`"),
    ];
    for (end, sentence) in cases {
        let report: Value = serde_json::from_str(encode::report(&receipt(end)).get()).unwrap();
        assert_eq!(report["error"], sentence);
        assert!(report.get("result").is_none());
    }
    let long = receipt(tool_error(&"x".repeat(100_000)));
    let report: Value = serde_json::from_str(encode::report(&long).get()).unwrap();
    assert!(report["error"].as_str().unwrap().len() < 500);
}

#[test]
fn a_tools_own_error_keeps_its_parts() {
    let end = End::ToolError { code: "E1".into(), message: "m".into(), detail: Some(json!({ "row": 7 })) };
    let report: Value = serde_json::from_str(encode::report(&receipt(end)).get()).unwrap();
    assert_eq!(report["tool_error"], json!({ "code": "E1", "message": "m", "detail": { "row": 7 } }));
}
