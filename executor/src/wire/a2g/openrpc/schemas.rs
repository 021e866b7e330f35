//! The JSON Schemas that the methods refer to.

use super::schema;
use crate::limit::Budgets;
use crate::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use serde_json::{Value, json};

/// All schemas by name.
pub(super) fn all() -> Value {
    json!({
        "AgentDid": { "type": "string", "pattern": "^did:[a-z0-9]+:[A-Za-z0-9._:%-]+$", "maxLength": 256 },
        "IntentId": { "type": "string", "format": "uuid" },
        "ToolName": { "type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_.-]{0,63}$" },
        "Intent": intent(),
        "Verdict": verdict(),
        "RiskAssessment": risk(),
        "CapabilityManifest": manifest(),
        "IntentAnswer": intent_answer(),
        "Report": report(),
        "Usage": usage(),
        "Limits": limits(),
        "SetBy": { "enum": ["verdict", "condition", "standing_policy", "tool", "executor"] },
        "Capabilities": capabilities(),
        "ToolRule": tool_rule(),
        "Tools": { "type": "object", "required": ["tools"], "properties": { "tools": list(schema("Tool")) } },
        "Tool": tool(),
        "Cancelled": object(&["intent_id", "cancelled"], json!({
            "intent_id": schema("IntentId"),
            "cancelled": { "type": "boolean" },
        })),
        "IntentStatus": object(&["intent_id", "state"], json!({
            "intent_id": schema("IntentId"),
            "state": { "type": "string" },
            "report": schema("Report"),
        })),
        "Accepted": object(&["accepted"], json!({
            "accepted": { "const": true },
            "aborted": { "type": "integer", "minimum": 0 },
        })),
        "Registered": object(&["accepted"], json!({
            "accepted": { "const": true },
            "policy": schema("Policy"),
        })),
        "Policy": object(&["agent_did", "version", "capabilities"], json!({
            "agent_did": schema("AgentDid"),
            "version": { "type": "string" },
            "capabilities": schema("Capabilities"),
            "constitution_hash": { "type": "string" },
        })),
    })
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": required, "properties": properties })
}

/// An object in which an unknown member is refused.
fn closed(required: &[&str], properties: Value) -> Value {
    json!({
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": false,
    })
}

fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn texts() -> Value {
    list(json!({ "type": "string" }))
}

fn integer(most: u64) -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": most })
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn amount() -> Value {
    json!({ "type": "number", "minimum": 0 })
}

fn intent() -> Value {
    object(
        &["agent_did", "intent_id", "tool", "arguments"],
        json!({
            "agent_did": schema("AgentDid"),
            "intent_id": schema("IntentId"),
            "tool": schema("ToolName"),
            "arguments": { "type": "object" },
            "context": { "type": ["object", "null"] },
        }),
    )
}

fn verdict() -> Value {
    object(
        &["verdict", "intent_id"],
        json!({
            "verdict": { "enum": ["APPROVED", "DENIED", "ESCALATE", "CONDITIONAL"] },
            "intent_id": schema("IntentId"),
            "risk_assessment": schema("RiskAssessment"),
            "capability_manifest": schema("CapabilityManifest"),
            "conditions": texts(),
            "expires_at": {
                "type": "string",
                "format": "date-time",
                "description": "the latest moment at which the tool may start; required but in a denial",
            },
            "reason": { "type": "string" },
        }),
    )
}

fn risk() -> Value {
    let score = || json!({ "type": "number", "minimum": 0, "maximum": 1 });
    object(
        &["score", "level"],
        json!({
            "score": score(),
            "level": { "enum": ["CRITICAL", "HIGH", "MEDIUM", "LOW"] },
            "model_score": score(),
            "heuristic_score": score(),
            "threats": texts(),
        }),
    )
}

fn manifest() -> Value {
    closed(
        &[],
        json!({
            "max_memory_mb": integer(MemoryLimit::MAX_MB),
            "max_cpu_percent": integer(CpuPercent::MAX),
            "timeout_seconds": integer(Timeout::MAX_SECONDS),
            "network_allowed": { "type": "boolean" },
            "filesystem_scope": texts(),
        }),
    )
}

fn intent_answer() -> Value {
    json!({ "allOf": [schema("Verdict"), object(&[], json!({ "report": schema("Report") }))] })
}

fn report() -> Value {
    let metrics = object(
        &["duration_ms", "memory_used_mb", "cpu_percent"],
        json!({ "duration_ms": count(), "memory_used_mb": count(), "cpu_percent": amount() }),
    );
    object(
        &["agent_did", "intent_id", "status", "metrics", "usage"],
        json!({
            "agent_did": schema("AgentDid"),
            "intent_id": schema("IntentId"),
            "status": { "enum": ["SUCCESS", "FAILURE", "TIMEOUT", "ABORTED"] },
            "result": { "description": "what the tool answered, when it succeeded" },
            "error": { "type": "string", "description": "one sentence, when it did not succeed" },
            "tool_error": object(&["code", "message"], json!({
                "code": { "type": "string" },
                "message": { "type": "string" },
                "detail": { "description": "what the tool added" },
            })),
            "metrics": metrics,
            "logs": list(object(&["level", "message"], json!({
                "level": { "enum": ["debug", "info", "warn", "error"] },
                "message": { "type": "string" },
            }))),
            "artifacts": list(object(&["name", "mime", "content"], json!({
                "name": { "type": "string" },
                "mime": { "type": "string" },
                "content": { "type": "string", "contentEncoding": "base64" },
            }))),
            "truncated": { "const": true },
            "usage": schema("Usage"),
            "durability": { "const": "process-crash" },
        }),
    )
}

fn usage() -> Value {
    let reasons = [
        "outside_scope",
        "escapes_root",
        "read_only",
        "host_permissions",
        "link",
        "hard_link",
        "network_off",
        "not_offered",
        "authority",
        "domain_not_allowed",
        "domain_blocked",
        "ip_literal",
        "not_looked_up",
        "address",
        "requests",
        "request_rate",
        "connections",
        "sent_bytes",
        "received_bytes",
    ];
    let contact = object(
        &["authority", "address", "requests", "sent_bytes", "received_bytes"],
        json!({
            "authority": { "type": "string" },
            "address": { "type": "string" },
            "requests": count(),
            "sent_bytes": count(),
            "received_bytes": count(),
        }),
    );
    object(
        &["limits", "denied", "denied_truncated"],
        json!({
            "limits": schema("Limits"),
            "contacted": list(contact),
            "contacted_truncated": { "type": "boolean" },
            "denied": list(object(&["what", "reason", "count"], json!({
                "what": { "type": "string" },
                "reason": { "enum": reasons },
                "count": count(),
            }))),
            "denied_truncated": { "type": "boolean" },
            "process": object(&["peak_resident_mb"], json!({ "peak_resident_mb": count() })),
        }),
    )
}

fn limits() -> Value {
    let limit = |granted: Value| {
        object(
            &["granted", "used", "slack", "set_by"],
            json!({ "granted": granted, "used": amount(), "slack": amount(), "set_by": schema("SetBy") }),
        )
    };
    // What was spent is unknown when the process of the run ended before it could say.
    let known = || json!({ "type": ["integer", "null"], "minimum": 0 });
    let budget = |granted: Value| {
        object(
            &["granted", "used", "slack", "set_by"],
            json!({ "granted": granted, "used": known(), "slack": known(), "set_by": schema("SetBy") }),
        )
    };
    let at_once = || {
        object(
            &["granted", "set_by"],
            json!({ "granted": integer(Budgets::MAX_HANDLES), "set_by": schema("SetBy") }),
        )
    };
    let blocked =
        object(&["pattern", "set_by"], json!({ "pattern": { "type": "string" }, "set_by": schema("SetBy") }));
    let tree = object(
        &["path", "pattern", "access", "access_set_by", "set_by"],
        json!({
            "path": { "type": "string" },
            "pattern": { "type": "string" },
            "access": { "enum": ["read-only", "read-write"] },
            "access_set_by": schema("SetBy"),
            "set_by": schema("SetBy"),
        }),
    );
    object(
        &[
            "max_memory_mb",
            "max_cpu_percent",
            "timeout_seconds",
            "max_output_bytes",
            "max_written_mb",
            "max_created",
            "max_random_bytes",
            "max_directory_entries",
            "max_handles",
            "max_subscriptions",
            "network_allowed",
            "filesystem_scope",
        ],
        json!({
            "max_memory_mb": limit(integer(MemoryLimit::MAX_MB)),
            "max_cpu_percent": limit(integer(CpuPercent::MAX)),
            "timeout_seconds": limit(integer(Timeout::MAX_SECONDS)),
            "max_output_bytes": limit(integer(OutputLimit::MAX_BYTES)),
            "max_written_mb": budget(integer(MemoryLimit::MAX_MB)),
            "max_created": budget(integer(Budgets::MAX)),
            "max_random_bytes": budget(integer(Budgets::MAX)),
            "max_directory_entries": budget(integer(Budgets::MAX)),
            "max_fuel": budget(integer(Budgets::MAX_FUEL)),
            "max_handles": at_once(),
            "max_subscriptions": at_once(),
            "network_allowed": object(&["granted", "linked", "set_by"], json!({
                "granted": { "type": "boolean" },
                "linked": { "type": "boolean" },
                "set_by": schema("SetBy"),
            })),
            "network": network_limits(&limit),
            "filesystem_scope": object(&["granted", "trees"], json!({
                "granted": texts(),
                "trees": list(tree),
                "blocked": list(blocked),
                "set_by": schema("SetBy"),
            })),
        }),
    )
}

fn network_limits(limit: &impl Fn(Value) -> Value) -> Value {
    let rules = || {
        list(object(
            &["pattern", "set_by"],
            json!({ "pattern": { "type": "string" }, "set_by": schema("SetBy") }),
        ))
    };
    object(
        &[
            "allowed_domains",
            "blocked_domains",
            "max_requests",
            "max_connections",
            "max_sent_bytes",
            "max_received_bytes",
        ],
        json!({
            "allowed_domains": rules(),
            "blocked_domains": rules(),
            "max_requests": limit(integer(1_000_000)),
            "max_connections": limit(integer(64)),
            "max_sent_bytes": limit(integer(1 << 40)),
            "max_received_bytes": limit(integer(1 << 40)),
            "max_requests_per_minute": object(
                &["granted", "set_by"],
                json!({ "granted": integer(u32::MAX.into()), "set_by": schema("SetBy") }),
            ),
        }),
    )
}

fn capabilities() -> Value {
    closed(
        &[],
        json!({
            "tools": { "type": "object", "additionalProperties": schema("ToolRule") },
            "network": closed(&[], json!({
                "allowed_domains": texts(),
                "blocked_domains": texts(),
                "max_requests_per_minute": { "type": "integer", "minimum": 1 },
            })),
            "resources": closed(&[], json!({
                "max_memory_mb": integer(MemoryLimit::MAX_MB),
                "max_cpu_percent": integer(CpuPercent::MAX),
                "max_disk_mb": { "type": "integer", "minimum": 1 },
            })),
        }),
    )
}

fn tool_rule() -> Value {
    closed(
        &["allowed"],
        json!({
            "allowed": { "type": "boolean" },
            "constraints": closed(&[], json!({
                "paths": texts(),
                "blocked_paths": texts(),
                "blocked_patterns": texts(),
                "max_size_bytes": { "type": "integer", "minimum": 1 },
                "timeout_seconds": integer(Timeout::MAX_SECONDS),
            })),
        }),
    )
}

fn tool() -> Value {
    let capabilities = object(
        &["filesystem", "network"],
        json!({
            "filesystem": { "enum": ["none", "read", "read-write"] },
            "network": { "type": "boolean" },
            "max_memory_mb": integer(MemoryLimit::MAX_MB),
            "max_cpu_percent": integer(CpuPercent::MAX),
            "timeout_seconds": integer(Timeout::MAX_SECONDS),
        }),
    );
    object(
        &["name", "version", "description", "contract", "digest", "arguments_schema", "capabilities"],
        json!({
            "name": schema("ToolName"),
            "version": { "type": "string" },
            "description": { "type": "string" },
            "contract": { "enum": ["command", "typed"] },
            "digest": { "type": "string", "pattern": "^sha256:[0-9a-f]{64}$" },
            "arguments_schema": { "description": "a JSON Schema" },
            "capabilities": capabilities,
        }),
    )
}
