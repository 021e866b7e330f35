//! The A2G door against its document, against malformed input, and against itself.

mod decoding;
mod encoding;
mod faults;
mod round_trips;

use crate::tests::{AGENT, INTENT, descriptor, map, receipt};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::limit::{Bound, Layer};
use a2g_types::outcome::{Artifact, End, LogLevel, LogLine, Receipt, RunMetrics, RunOutput};
use a2g_types::quantity::{BYTES_PER_MB, CpuPercent, MemoryLimit, Timeout};
use a2g_types::stop::{OperatorReason, Stop, StopTarget};
use serde_json::{Value, json};
use std::time::Duration;
use time::OffsetDateTime;

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
