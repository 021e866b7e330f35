//! The wire structs of this door's messages, private to this folder.

use a2g_types::json::JsonText;
use serde::Serialize;
use serde_json::{Map, Value};

/// The members that every message has, around its body.
#[derive(Serialize)]
pub(super) struct Envelope<B: Serialize> {
    pub(super) a2e: &'static str,
    pub(super) version: &'static str,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) id: String,
    pub(super) ts: f64,
    #[serde(flatten)]
    pub(super) body: B,
}

#[derive(Serialize)]
pub(super) struct HandshakeResponse<'a> {
    pub(super) req_id: &'a str,
    pub(super) session_id: &'a str,
    pub(super) accepted_caps: Vec<CapabilityEntry<'a>>,
    pub(super) max_parallel: usize,
    pub(super) ok: bool,
    pub(super) reason: &'static str,
}

#[derive(Serialize)]
pub(super) struct CapabilityEntry<'a> {
    pub(super) capability: &'a str,
    pub(super) enabled: bool,
    pub(super) metadata: Value,
}

#[derive(Serialize)]
pub(super) struct Pong<'a> {
    pub(super) req_id: &'a str,
    pub(super) uptime_seconds: f64,
}

#[derive(Serialize)]
pub(super) struct ToolListResponse<'a> {
    pub(super) req_id: &'a str,
    pub(super) tools: &'a [ToolDefinition<'a>],
}

#[derive(Serialize)]
pub(super) struct ToolDefinition<'a> {
    pub(super) name: &'a str,
    pub(super) description: &'a str,
    pub(super) input_parameters: Vec<ToolParameter>,
    pub(super) output_parameters: [ToolParameter; 0],
    pub(super) streaming: bool,
    pub(super) idempotent: bool,
    pub(super) tags: Vec<&'static str>,
    pub(super) version: &'a str,
    pub(super) toolkit: Option<&'a str>,
    pub(super) defer_loading: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ToolParameter {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) description: String,
    pub(super) required: bool,
    #[serde(rename = "enum", skip_serializing_if = "Option::is_none")]
    pub(super) enum_values: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) properties: Option<Map<String, Value>>,
}

#[derive(Serialize)]
pub(super) struct ToolEvent<'a> {
    pub(super) kind: &'static str,
    pub(super) req_id: &'a str,
    pub(super) data: Value,
    pub(super) seq: u64,
}

#[derive(Serialize)]
pub(super) struct ToolCallResponse<'a> {
    pub(super) req_id: &'a str,
    pub(super) data: ToolResult<'a>,
    pub(super) created_at: f64,
}

#[derive(Serialize)]
pub(super) struct ToolResult<'a> {
    pub(super) success: bool,
    pub(super) tool_name: &'a str,
    pub(super) data: Option<&'a JsonText>,
    pub(super) summary: Value,
    pub(super) truncated: bool,
    pub(super) exit_code: Option<i32>,
    pub(super) error: Option<String>,
    pub(super) error_code: Option<&'static str>,
    pub(super) duration_ms: u64,
    pub(super) events: Vec<Envelope<ToolEvent<'a>>>,
}

#[derive(Serialize)]
pub(super) struct ErrorBody<'a> {
    pub(super) req_id: &'a str,
    pub(super) code: &'static str,
    pub(super) message: &'a str,
    pub(super) detail: &'a Map<String, Value>,
    pub(super) retryable: bool,
    pub(super) capability_name: &'static str,
}
