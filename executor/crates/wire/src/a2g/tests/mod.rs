//! The A2G door against its document, against malformed input, and against itself.

mod decoding;
mod encoding;
mod faults;
mod round_trips;

use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::limit::{Access, Bound, BudgetUsage, Budgets, Layer};
use a2g_types::outcome::{
    Artifact, Denial, DenialReason, End, GrantedArea, LogLevel, LogLine, Outcome, Receipt, RunMetrics,
    RunOutput, Usage,
};
use a2g_types::quantity::{BYTES_PER_MB, CpuPercent, MemoryLimit, OutputLimit, Timeout};
use serde_json::{Value, json};
use std::time::Duration;

const AGENT: &str = "did:aeon:myagent:1.0:abc123";
const INTENT: &str = "550e8400-e29b-41d4-a716-446655440000";

/// The document's `A2G_INTENT` params.
fn document_intent() -> Value {
    json!({
        "agent_did": AGENT,
        "intent_id": INTENT,
        "tool": "write_file",
        "arguments": { "path": "/tmp/test.txt", "content": "Hello, World!" },
        "context": {
            "session_id": "session-123",
            "parent_intent": null,
            "reasoning": "Creating test file for demonstration"
        }
    })
}

/// The document's `G2A_VERDICT` result.
fn document_verdict() -> Value {
    json!({
        "verdict": "APPROVED",
        "intent_id": INTENT,
        "risk_assessment": {
            "score": 0.15,
            "level": "LOW",
            "model_score": 0.12,
            "heuristic_score": 0.15,
            "threats": []
        },
        "capability_manifest": {
            "max_memory_mb": 50,
            "max_cpu_percent": 10,
            "timeout_seconds": 30,
            "network_allowed": false,
            "filesystem_scope": ["/tmp/**", "/workspace/**"]
        },
        "conditions": [],
        "expires_at": "2024-01-15T10:05:00Z"
    })
}

/// The document's `G2A_POLICY` params.
fn document_policy() -> Value {
    json!({
        "agent_did": AGENT,
        "version": "2024-01-15",
        "capabilities": {
            "tools": {
                "write_file": { "allowed": true, "constraints": {} },
                "execute_command": { "allowed": true, "constraints": { "blocked_patterns": ["rm -rf"] } }
            },
            "network": { "allowed_domains": ["api.github.com"], "blocked_domains": ["*.onion"] },
            "resources": { "max_memory_mb": 256, "max_cpu_percent": 50 }
        },
        "constitution_hash": "sha256:abc123..."
    })
}

/// The document's `A2G_REPORT` params.
fn document_report() -> Value {
    json!({
        "agent_did": AGENT,
        "intent_id": INTENT,
        "status": "SUCCESS",
        "result": { "bytes_written": 13, "path": "/tmp/test.txt" },
        "metrics": { "duration_ms": 45, "memory_used_mb": 2, "cpu_percent": 1.5 }
    })
}

/// A run with the measurements of the document's report, under the document's verdict.
fn receipt(end: End) -> Receipt {
    Receipt {
        agent: AgentDid::parse(AGENT).unwrap(),
        intent: IntentId::parse(INTENT).unwrap(),
        tool: ToolName::parse("write_file").unwrap(),
        approved_by: None,
        durability: a2g_types::durability::Durability::PowerLoss,
        outcome: Outcome {
            end,
            output: RunOutput::default(),
            metrics: RunMetrics {
                wall: Duration::from_millis(45),
                cpu: Duration::from_micros(675),
                peak_memory_bytes: BYTES_PER_MB + 1,
                output_bytes: 44,
                peak_resident_bytes: None,
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
                filesystem_emptied_by: None,
                budgets: Budgets {
                    written: MemoryLimit::from_mb(1024).unwrap(),
                    created: 1000,
                    handles: 1024,
                    subscriptions: 128,
                    random_bytes: 1 << 20,
                    directory_entries: 10_000,
                    fuel: None,
                    hard_links: false,
                },
                spent: Some(BudgetUsage {
                    written_bytes: 5,
                    created: 2,
                    random_bytes: 16,
                    directory_entries: 3,
                    fuel: None,
                }),
                network: Bound { value: false, layer: Layer::Verdict },
                network_used: None,
                denied: vec![Denial {
                    what: "/etc/passwd".to_owned(),
                    reason: DenialReason::OutsideScope,
                    count: 2,
                }],
                denied_truncated: false,
            },
        },
    }
}

/// The same run with everything that a report may contain in addition to its result.
fn talkative_receipt() -> Receipt {
    let mut receipt = receipt(End::Returned(json!("done").into()));
    receipt.outcome.output = RunOutput {
        logs: vec![LogLine { level: LogLevel::Warn, message: "slow".to_owned() }],
        progress: None,
        artifacts: vec![Artifact {
            name: "plot.png".to_owned(),
            mime: "image/png".to_owned(),
            content: vec![0xff, 0xfe, 0xfd, 0],
        }],
        truncated: true,
    };
    receipt
}

/// Sets `value` at a pointer, whose parent has to be an object.
fn with(mut document: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = document.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    parent.insert(key.to_owned(), value);
    document
}

/// Removes the value at a pointer, whose parent has to be an object.
fn without(mut document: Value, pointer: &str) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = document.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    assert!(parent.shift_remove(key).is_some(), "{pointer}");
    document
}

/// The pointer and the message of an `InvalidParams`.
fn invalid<T: std::fmt::Debug>(answer: Result<T, Fault>) -> (String, String) {
    match answer {
        Err(Fault::InvalidParams { message, pointer }) => (pointer, message),
        other => panic!("{other:?}"),
    }
}
