//! The result of `rpc.discover`: this door as an OpenRPC 1.3 document, with JSON Schemas (draft 7) of all params and
//! results and the table of errors.
//!
//! The schemas are derived from the messages that the door writes, and their names and numbers from the enums and the
//! limits. Only the lists of parameters are written by hand.
//!
//! The schemas state only rules that the decoders enforce, but not all of them: a value that a schema here accepts may
//! be refused by a rule that a schema cannot express, such as the syntax of a filesystem pattern.

mod schemas;

use super::message::{HANDLE_PATTERN, SESSION_PATTERN};
use super::schema::names;
use crate::listing::{Listing, MAX_QUERY_BYTES};
use crate::stubs::Language;
use a2g_types::fault::BlockedBy;
use a2g_types::limit::Limit;
use a2g_types::stop::OperatorReason;
use a2g_types::verdict::Decision;
use serde_json::{Map, Value, json};
use strum::VariantArray;

/// The version of OpenRPC that the document follows.
const OPENRPC: &str = "1.3.2";
/// The schema of the result of `rpc.discover` itself.
const META_SCHEMA: &str = "https://raw.githubusercontent.com/open-rpc/meta-schema/master/schema.json";

/// The OpenRPC document of this door, for an executor of `version`.
#[must_use]
pub fn document(version: &str) -> Value {
    json!({
        "openrpc": OPENRPC,
        "info": {
            "title": "A2G executor",
            "description": "Runs approved agent intents as WebAssembly tools, with exactly the \
                capabilities that their verdict grants.",
            "version": version,
        },
        "methods": methods(),
        "components": { "schemas": schemas::derive_schemas(), "errors": errors() },
    })
}

/// One method; [`MethodDescription::describe`] adds the members that all methods share.
struct MethodDescription {
    name: &'static str,
    summary: &'static str,
    params: Vec<Value>,
    result: Value,
    errors: &'static [&'static str],
}

/// Faults of the framing and of the executor, which every method can return.
const COMMON_ERRORS: [&str; 5] =
    ["ParseError", "InvalidRequest", "MethodNotFound", "InvalidParams", "InternalError"];

impl MethodDescription {
    fn describe(self) -> Value {
        let errors: Vec<Value> = self
            .errors
            .iter()
            .chain(&COMMON_ERRORS)
            .map(|name| json!({ "$ref": format!("#/components/errors/{name}") }))
            .collect();
        json!({
            "name": self.name,
            "summary": self.summary,
            "paramStructure": "by-name",
            "params": self.params,
            "result": self.result,
            "errors": errors,
        })
    }
}

fn schema_ref(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn required_param(name: &str, schema: Value) -> Value {
    json!({ "name": name, "required": true, "schema": schema })
}

fn optional_param(name: &str, schema: Value) -> Value {
    json!({ "name": name, "required": false, "schema": schema })
}

fn result_schema(name: &str) -> Value {
    json!({ "name": name, "schema": schema_ref(name) })
}

fn methods() -> Vec<Value> {
    run_methods()
        .into_iter()
        .chain(agent_methods())
        .chain(governor_methods())
        .chain(operator_methods())
        .chain(effects_methods())
        .map(MethodDescription::describe)
        .collect()
}

fn run_methods() -> Vec<MethodDescription> {
    let intent_id = || vec![required_param("intent_id", schema_ref("IntentId"))];
    vec![
        MethodDescription {
            name: "a2g/execute",
            summary: "Runs the tool of an intent under the verdict that answers it",
            params: vec![
                required_param("intent", schema_ref("Intent")),
                required_param("verdict", schema_ref("Verdict")),
                optional_param("proof", json!({ "type": "string", "description": "a compact JWS (EdDSA)" })),
                session_param(),
            ],
            result: result_schema("Report"),
            errors: &["PolicyViolation", "ExecutionError", "CapabilityExhausted"],
        },
        MethodDescription {
            name: "a2g/intent",
            summary: "Asks the governor for a verdict, and runs the tool when the verdict allows it",
            params: vec![
                required_param("agent_did", schema_ref("AgentDid")),
                required_param("intent_id", schema_ref("IntentId")),
                required_param("tool", schema_ref("ToolName")),
                required_param("arguments", json!({ "type": "object" })),
                optional_param("context", json!({ "type": ["object", "null"] })),
                session_param(),
            ],
            result: result_schema("IntentAnswer"),
            errors: &["PolicyViolation", "ExecutionError", "CapabilityExhausted"],
        },
        MethodDescription {
            name: "a2g/session/end",
            summary: "Ends a session of the caller; a turn that runs goes on, and is its last",
            params: vec![
                required_param("agent_did", schema_ref("AgentDid")),
                required_param("session", json!({ "type": "string", "pattern": HANDLE_PATTERN })),
            ],
            result: result_schema("SessionEnded"),
            errors: &["PolicyViolation"],
        },
        MethodDescription {
            name: "a2g/cancel",
            summary: "Ends a waiting or running intent as ABORTED",
            params: intent_id(),
            result: result_schema("Cancelled"),
            errors: &[],
        },
        MethodDescription {
            name: "a2g/status",
            summary: "Returns the state of an intent, with its report once finished",
            params: intent_id(),
            result: result_schema("IntentStatus"),
            errors: &[],
        },
        MethodDescription {
            name: "a2g/tools",
            summary: "Lists the tools of the catalogue, or describes those of an agent to programs that call them",
            params: vec![
                optional_param("listing", json!({ "enum": names::<Listing>() })),
                optional_param("agent_did", schema_ref("AgentDid")),
                optional_param("query", json!({ "type": "string", "maxLength": MAX_QUERY_BYTES })),
                optional_param("language", json!({ "enum": names::<Language>() })),
            ],
            result: json!({ "name": "Tools", "schema": { "anyOf": [schema_ref("Tools"), schema_ref("ToolStubs")] } }),
            errors: &[],
        },
        MethodDescription {
            name: "rpc.discover",
            summary: "Returns this document",
            params: Vec::new(),
            result: json!({ "name": "OpenRPC Schema", "schema": { "$ref": META_SCHEMA } }),
            errors: &[],
        },
    ]
}

/// The messages by which an agent announces itself to its governor, which the executor acknowledges.
fn agent_methods() -> Vec<MethodDescription> {
    let agent = || required_param("agent_did", schema_ref("AgentDid"));
    vec![
        MethodDescription {
            name: "a2g/register",
            summary: "Returns the standing policy of an agent, if it has one; stores nothing",
            params: vec![
                agent(),
                optional_param("public_key", json!({ "type": ["string", "null"] })),
                optional_param(
                    "capabilities_requested",
                    json!({ "type": ["array", "null"], "items": { "type": "string" } }),
                ),
                optional_param("metadata", json!({ "type": ["object", "null"] })),
            ],
            result: result_schema("Registered"),
            errors: &["PolicyViolation"],
        },
        MethodDescription {
            name: "a2g/report",
            summary: "Acknowledges an agent's own report, which does not replace the executor's",
            params: vec![
                agent(),
                required_param("intent_id", schema_ref("IntentId")),
                required_param("status", schema_ref("Status")),
                optional_param("result", json!({})),
                optional_param("error", json!({ "type": ["string", "null"] })),
                optional_param("metrics", json!({ "type": ["object", "null"] })),
            ],
            result: result_schema("Accepted"),
            errors: &["PolicyViolation"],
        },
        MethodDescription {
            name: "a2g/heartbeat",
            summary: "Acknowledges that an agent is alive",
            params: vec![agent()],
            result: result_schema("Accepted"),
            errors: &["PolicyViolation"],
        },
    ]
}

fn governor_methods() -> Vec<MethodDescription> {
    vec![
        MethodDescription {
            name: "g2a/policy",
            summary: "Sets the standing limits of an agent",
            params: vec![
                required_param("agent_did", schema_ref("AgentDid")),
                required_param("version", json!({ "type": "string" })),
                required_param("capabilities", schema_ref("Capabilities")),
                optional_param("constitution_hash", json!({ "type": ["string", "null"] })),
            ],
            result: result_schema("Accepted"),
            errors: &["PolicyViolation"],
        },
        MethodDescription {
            name: "g2a/revoke",
            summary: "Aborts intents and drops standing capabilities, of an agent, an intent or both",
            params: vec![
                optional_param("agent_did", schema_ref("AgentDid")),
                optional_param("intent_id", schema_ref("IntentId")),
            ],
            result: result_schema("Accepted"),
            errors: &["PolicyViolation"],
        },
        MethodDescription {
            name: "g2a/directive",
            summary: "Resolves an intent that waits for a person, or whose file changes with this digest wait",
            params: vec![
                required_param("intent_id", schema_ref("IntentId")),
                required_param(
                    "decision",
                    json!({ "enum": [Decision::Approved.as_str(), Decision::Denied.as_str()] }),
                ),
                optional_param("capability_manifest", schema_ref("CapabilityManifest")),
                optional_param("digest", digest_schema()),
            ],
            result: result_schema("Accepted"),
            errors: &["PolicyViolation"],
        },
    ]
}

/// The session in which a tool shall run.
fn session_param() -> Value {
    optional_param("session", json!({ "type": ["string", "null"], "pattern": SESSION_PATTERN }))
}

/// The digest of file changes.
fn digest_schema() -> Value {
    json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" })
}

fn operator_methods() -> Vec<MethodDescription> {
    let target = || required_param("target", schema_ref("StopTarget"));
    let reason = json!({ "type": "string", "minLength": 1, "maxLength": OperatorReason::MAX_CHARS });
    vec![
        MethodDescription {
            name: "a2g/stop",
            summary: "Stops an agent, a tool or everything until a2g/resume, also across restarts",
            params: vec![target(), required_param("reason", reason)],
            result: result_schema("Accepted"),
            errors: &["PolicyViolation", "CapabilityExhausted"],
        },
        MethodDescription {
            name: "a2g/resume",
            summary: "Lifts a stop",
            params: vec![target()],
            result: result_schema("Resumed"),
            errors: &["PolicyViolation", "CapabilityExhausted"],
        },
        MethodDescription {
            name: "a2g/stops",
            summary: "Lists the stops in force",
            params: Vec::new(),
            result: result_schema("Stops"),
            errors: &["PolicyViolation"],
        },
    ]
}

fn effects_methods() -> Vec<MethodDescription> {
    let intent = || required_param("intent", schema_ref("IntentId"));
    let errors = &["PolicyViolation", "ExecutionError", "CapabilityExhausted"];
    vec![
        MethodDescription {
            name: "a2g/effects",
            summary: "Lists file changes that wait for a decision or can be undone, or shows those of one intent",
            params: vec![optional_param("intent", schema_ref("IntentId"))],
            result: result_schema("EffectsSets"),
            errors: &["PolicyViolation"],
        },
        MethodDescription {
            name: "a2g/commit",
            summary: "Lets the file changes of a staged run take effect; digest is that of the changes that were shown",
            params: vec![intent(), required_param("digest", digest_schema())],
            result: result_schema("Report"),
            errors,
        },
        MethodDescription {
            name: "a2g/discard",
            summary: "Removes the file changes of a staged run, which never take effect",
            params: vec![intent()],
            result: result_schema("Report"),
            errors,
        },
        MethodDescription {
            name: "a2g/undo",
            summary: "Takes file changes in force back, if no file has changed since",
            params: vec![intent()],
            result: result_schema("Report"),
            errors,
        },
    ]
}

/// The names of an enum, joined into one text.
fn join_names<T: Copy + Into<&'static str> + VariantArray>() -> String {
    join(names::<T>().into_iter())
}

fn join(names: impl Iterator<Item = &'static str>) -> String {
    format!("one of {}", names.collect::<Vec<_>>().join(", "))
}

fn errors() -> Value {
    let pointer = json!({ "pointer": "a JSON Pointer (RFC 6901) into params" });
    let refusal = json!({ "intent_id": "of the intent, when there is one", "risk_score": "when the governor \
        gave one", "blocked_by": join_names::<BlockedBy>() });
    let failure =
        json!({ "report": "the report of the run", "tool": "instead, when the tool cannot be run" });
    let exhaustion = json!({ "report": "the report of the run", "limit": join(Limit::ending_runs().map(Limit::as_str)),
        "retry_after_ms": "instead of both, when nothing ran for lack of capacity; with intent_id and ran, when \
        the receipt of a run waits for disk space" });
    let rows: [(&str, i64, &str, Option<Value>); 10] = [
        ("ParseError", -32700, "Not JSON, or JSON that the strict reader refuses", None),
        ("InvalidRequest", -32600, "Not a JSON-RPC 2.0 request", None),
        ("MethodNotFound", -32601, "Unknown method", None),
        ("InvalidParams", -32602, "Invalid parameters", Some(pointer)),
        ("InternalError", -32603, "Internal error of the executor", None),
        ("PolicyViolation", -32000, "Refused before anything ran", Some(refusal)),
        ("ExecutionError", -32001, "The tool ran and failed, or cannot be run", Some(failure)),
        ("RegistrationFailed", -32002, "The governor does not accept the agent", None),
        (
            "CapabilityExhausted",
            -32003,
            "A limit ended the tool, or the executor has no capacity",
            Some(exhaustion),
        ),
        ("SessionExpired", -32004, "The governor asks for a new registration", None),
    ];
    let entries = rows.into_iter().map(|(name, code, message, data)| {
        let mut error = Map::new();
        error.insert("code".to_owned(), code.into());
        error.insert("message".to_owned(), message.into());
        error.extend(data.map(|data| ("data".to_owned(), data)));
        (name.to_owned(), error.into())
    });
    Value::Object(entries.collect())
}
