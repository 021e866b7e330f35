//! The parts that the tests of several doors share, and the one table of their error codes.

use crate::jsonrpc::Id;
use crate::staged::StagedState;
use crate::{a2a, a2e, nexus, sovereign};
use a2g_types::call::Door;
use a2g_types::durability::Durability;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::limit::{Access, Bound, BudgetUsage, Budgets, FileEffects, Layer, Limit};
use a2g_types::outcome::{
    ChangeState, ChangeWord, Denial, DenialReason, End, EntryWord, FileChanges, GrantedArea, Outcome,
    Receipt, RunMetrics, RunOutput, ShownChange, Usage,
};
use a2g_types::quantity::{BYTES_PER_MB, CpuPercent, MemoryLimit, OutputLimit, Timeout};
use a2g_types::tool::{Contract, DeclaredCapabilities, Descriptor, Digest};
use a2g_types::verdict::Rationale;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::time::Duration;

pub(crate) const AGENT: &str = "did:aeon:myagent:1.0:abc123";
pub(crate) const INTENT: &str = "550e8400-e29b-41d4-a716-446655440000";

/// A run with the measurements of the report in the document of A2G, under its verdict.
pub(crate) fn receipt(end: End) -> Receipt {
    Receipt {
        agent: AgentDid::parse(AGENT).unwrap(),
        intent: IntentId::parse(INTENT).unwrap(),
        tool: ToolName::parse("write_file").unwrap(),
        door: Door::A2g,
        approved_by: None,
        durability: Durability::PowerLoss,
        parent: None,
        calls: None,
        signature: None,
        session: None,
        rationale: Rationale::default(),
        outcome: Outcome {
            end,
            output: RunOutput::default(),
            metrics: RunMetrics {
                wall: Duration::from_millis(45),
                cpu: Duration::from_micros(675),
                peak_memory_bytes: BYTES_PER_MB + 1,
                output_bytes: 44,
                peak_resident_bytes: None,
                earlier_runs: 0,
            },
            usage: Usage {
                memory: Bound { value: MemoryLimit::from_mb(50).unwrap(), layer: Layer::Verdict },
                cpu: Bound { value: CpuPercent::new(10).unwrap(), layer: Layer::Verdict },
                timeout: Bound { value: Timeout::from_seconds(30).unwrap(), layer: Layer::Condition },
                output: Bound { value: OutputLimit::from_bytes(1 << 20).unwrap(), layer: Layer::Executor },
                filesystem: vec![GrantedArea {
                    path: "/tmp".to_owned(),
                    pattern: "/tmp/**".to_owned(),
                    access: Bound { value: Access::ReadWrite, layer: Layer::Tool },
                    set_by: Layer::Verdict,
                }],
                blocked: Vec::new(),
                missing_roots: Vec::new(),
                filesystem_emptied_by: None,
                effects: Bound { value: FileEffects::Direct, layer: Layer::Executor },
                budgets: Budgets::default()
                    .with(Limit::Created, 1000)
                    .with(Limit::RandomBytes, 1 << 20)
                    .with(Limit::DirectoryEntries, 10_000),
                spent: Some(BudgetUsage::from_iter([
                    (Limit::Written, 5),
                    (Limit::Created, 2),
                    (Limit::RandomBytes, 16),
                    (Limit::DirectoryEntries, 3),
                ])),
                network: Bound { value: false, layer: Layer::Verdict },
                network_used: None,
                denied: vec![Denial {
                    what: "/etc/passwd".to_owned(),
                    reason: DenialReason::OutsideScope,
                    set_by: None,
                    count: 2,
                }],
                denied_truncated: false,
                changes: None,
                start_memory_bytes: None,
            },
        },
    }
}

/// A run whose two file changes wait for a decision.
pub(crate) fn staged_receipt(result: Value) -> Receipt {
    let change = |kind, path, bytes_before, bytes_after, diff: Option<&str>| ShownChange {
        bytes_before,
        bytes_after,
        diff: diff.map(str::to_owned),
        ..ShownChange::new(kind, EntryWord::File, path)
    };
    let shown = vec![
        change(ChangeWord::Deleted, "/workspace/old", Some(3), None, None),
        change(ChangeWord::Changed, "/workspace/new", Some(2), Some(2), Some("@@ -1 +1 @@\n-a\n+b\n")),
    ];
    let mut receipt = receipt(End::Staged(result.into()));
    receipt.outcome.usage.effects = Bound { value: FileEffects::Staged, layer: Layer::Condition };
    receipt.outcome.usage.changes = Some(FileChanges { shown, ..FileChanges::new(2, Digest([7; 32])) });
    receipt
}

/// The changes of [`staged_receipt`] while they wait.
pub(crate) fn waiting() -> StagedState {
    let until = time::macros::datetime!(2026-12-01 12:00 UTC);
    StagedState { state: ChangeState::Waiting, until, by: None, note: None }
}

/// The changes of [`staged_receipt`] once `anna` has committed them.
pub(crate) fn committed() -> StagedState {
    StagedState { state: ChangeState::InForce, by: Some("anna".to_owned()), ..waiting() }
}

/// An object of any content, whose own keys match a pattern.
pub(crate) fn map(key: &'static str) -> impl Strategy<Value = Map<String, Value>> {
    // Any fraction: serde_json's `float_roundtrip` keeps it to the last bit, so the tool runs with exactly the approved
    // value.
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        proptest::num::f64::NORMAL.prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((".{0,6}", inner), 0..4).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    });
    vec((key, value), 0..5).prop_map(|members| members.into_iter().collect())
}

/// A command, as the catalogue has it.
pub(crate) fn descriptor(name: &str, arguments_schema: Value) -> Descriptor {
    Descriptor {
        name: ToolName::parse(name).unwrap(),
        title: None,
        version: "1.2.3".to_owned(),
        description: format!("Does {name}."),
        contract: Contract::Command,
        digest: Digest([0xab; 32]),
        arguments_schema,
        result_schema: None,
        settings: None,
        is_idempotent: false,
        has_sessions: false,
        capabilities: DeclaredCapabilities::default(),
        signature: None,
    }
}

/// The numbers and words of one door mean something else at another, so they are shown side by side: of A2A in both
/// dialects, A2E with the capability and whether it may be tried again, Nexus, and the sovereign door.
#[test]
fn every_fault_has_its_code_at_every_door() {
    let m = || "m".to_owned();
    let intent = IntentId::parse(INTENT).unwrap();
    let tool = ToolName::parse("t").unwrap();
    let refused =
        |blocked_by| Fault::Refused { intent: Some(intent), risk_score: Some(0.9), blocked_by, message: m() };
    for (fault, codes) in [
        (Fault::Parse(m()), "-32700 -32700 parse_error INVALID_MESSAGE -32700 PARSE_ERROR"),
        (Fault::InvalidRequest(m()), "-32600 -32600 invalid_message INVALID_MESSAGE -32600 INVALID_REQUEST"),
        (Fault::MethodNotFound(m()), "-32601 -32601 invalid_message NOT_FOUND -32601 METHOD_NOT_FOUND"),
        (Fault::invalid("/x", "m"), "-32602 -32602 schema_violation VALIDATION_ERROR -32602 INVALID_PARAMS"),
        (
            Fault::ToolUnavailable { tool, message: m() },
            "-32000 -32002 tool_error/tools UNAVAILABLE -32003 ADAPTER_UNAVAILABLE",
        ),
        (Fault::RegistrationFailed(m()), "-32000 -32002 runtime_error/again UNAVAILABLE -32000 SERVER_ERROR"),
        (Fault::SessionExpired(m()), "-32000 -32002 runtime_error/again UNAVAILABLE -32000 SERVER_ERROR"),
        (
            Fault::Busy { message: m(), retry_after_ms: 5 },
            "-32000 -32002 runtime_error/again UNAVAILABLE -32000 BUSY",
        ),
        (
            Fault::ReceiptPending { intent, retry_after_ms: 5 },
            "-32000 -32002 runtime_error/tools/again UNAVAILABLE -32000 RECEIPT_PENDING",
        ),
        (
            refused(BlockedBy::GovernorUnavailable),
            "-32000 -32002 runtime_error/tools/again NETWORK_ERROR -32003 GOVERNOR_UNAVAILABLE",
        ),
        (
            refused(BlockedBy::CallerUnauthorized),
            "-32000 -32603 unauthorized/tools UNAUTHORIZED -32000 CALLER_UNAUTHORIZED",
        ),
        (
            refused(BlockedBy::EscalationPending),
            "-32000 -32603 tool_denied/tools/again UNAUTHORIZED -32000 ESCALATION_PENDING",
        ),
        (
            refused(BlockedBy::VerdictDenied),
            "-32000 -32603 tool_denied/tools UNAUTHORIZED -32000 VERDICT_DENIED",
        ),
        (
            refused(BlockedBy::StandingPolicy),
            "-32000 -32603 tool_denied/tools UNAUTHORIZED -32000 STANDING_POLICY",
        ),
        (
            refused(BlockedBy::ScopeUnenforceable),
            "-32000 -32603 tool_denied/tools UNAUTHORIZED -32000 SCOPE_UNENFORCEABLE",
        ),
        (
            Fault::Internal("a secret".to_owned()),
            "-32603 -32603 runtime_error/again INTERNAL_ERROR -32000 SERVER_ERROR",
        ),
    ] {
        let json = |text: &str| -> Value {
            assert!(!text.contains("secret"), "{text}");
            serde_json::from_str(text).unwrap()
        };
        let [a2a, acp] = [a2a::Dialect::A2a, a2a::Dialect::Acp].map(|dialect| {
            let error = a2a::fault::to_error(&fault.clone().into(), dialect);
            let code = error.code;
            let response = json(&error.response(&Id::from_text("i"), dialect));
            assert_eq!((&response["id"], &response["error"]["code"]), (&json!("i"), &json!(code)));
            let details = &response["error"]["data"]["details"];
            assert!(dialect == a2a::Dialect::A2a || details.is_string(), "{response}");
            code
        });
        let error = a2e::fault::to_error(&fault);
        let line = json(&a2e::encode::error(Some("r1"), &error, 1.0));
        let is_its_own = matches!(fault, Fault::ReceiptPending { .. } | Fault::Internal(_));
        assert!(error.message == "m" || is_its_own, "{}", error.message);
        let parts = [&error.message, error.code.as_str(), "r1"].map(Value::from);
        assert_eq!(["message", "code", "req_id"].map(|name| line[name].clone()), parts);
        assert!(line["detail"].is_object(), "{line}");
        let again = if line["retryable"] == true { "again" } else { "" };
        let a2e = [error.code.as_str(), line["capability_name"].as_str().unwrap(), again];
        let a2e = a2e.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("/");
        let nexus = nexus::fault::to_error(&fault);
        let sovereign = sovereign::fault::to_error(&fault);
        assert!(!nexus.message.contains("secret") && !sovereign.message.contains("secret"));
        let nexus = nexus.code.as_str();
        let status = sovereign.status_code;
        assert_eq!(format!("{a2a} {acp} {a2e} {nexus} {} {status}", sovereign.code), codes, "{fault:?}");
    }
}

/// One byte can make a content that the list does not show.
#[test]
fn every_door_says_that_a_content_is_not_shown() {
    let mut receipt = staged_receipt(json!(1));
    let changes = receipt.outcome.usage.changes.as_mut().unwrap();
    for change in &mut changes.shown {
        change.is_diff_cut = change.diff.take().is_some();
    }
    let state = waiting();
    let run = a2e::encode::StagedRun { receipt: &receipt, state: Some(&state) };
    let form = sovereign::decode::RequestForm::Sovereign;
    let reply =
        sovereign::encode::ReplyEncoder { form, id: Id::from_text("r"), skill: None, operation: None };
    for (door, answer) in [
        ("A2A", json!(a2a::encode::artifacts(&receipt)).to_string()),
        ("A2E", a2e::encode::call_response("r", run, Some(0), 0.0)),
        ("Nexus", nexus::encode::run_report(&receipt, Some(&state)).1.get().to_owned()),
        ("sovereign", reply.report(&receipt, Some(&state), &[])),
    ] {
        let says = answer.contains("content not shown") || answer.contains("Not shown: content of 1 file.");
        assert!(says, "{door}: {answer}");
    }
}
