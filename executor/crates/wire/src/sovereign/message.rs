//! The wire structs of this door's messages, private to this folder.

use a2g_types::json::JsonText;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A response to a JSON-RPC request.
#[derive(Serialize)]
pub(super) struct SovereignResponse<'a> {
    pub(super) jsonrpc: &'static str,
    pub(super) id: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<ResponseResult<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<ResponseError<'a>>,
    /// Absent for clients of JSON-RPC 2.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<ResponseMetadata<'a>>,
}

/// The result of a run, or a part of it.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum ResponseResult<'a> {
    Success(SuccessResult<'a>),
    Partial(Value),
}

#[derive(Serialize)]
pub(super) struct SuccessResult<'a> {
    pub(super) success: bool,
    pub(super) status_code: &'a str,
    pub(super) data: &'a JsonText,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) artifacts: Vec<Value>,
    /// The file changes of a staged run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effects: Option<Map<String, Value>>,
    /// The turn of the session in which the tool ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<Value>,
}

#[derive(Serialize)]
pub(super) struct ResponseError<'a> {
    pub(super) code: i64,
    pub(super) message: &'a str,
    pub(super) data: &'a Value,
}

#[derive(Serialize)]
pub(super) struct ResponseMetadata<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agent_card: Option<AgentCard<'a>>,
    pub(super) context_hints: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) partial: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remaining: Option<i64>,
}

/// A summary of this agent, part of every successful response.
#[derive(Serialize)]
pub(super) struct AgentCard<'a> {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) skills: Vec<&'a str>,
    pub(super) capabilities: [&'static str; 1],
    pub(super) trust_level: &'static str,
}

/// A response in the legacy form.
#[derive(Serialize)]
pub(super) struct LegacyResponse<'a> {
    pub(super) request_id: &'a RawValue,
    pub(super) success: bool,
    pub(super) status_code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<&'a JsonText>,
    /// The file changes of a staged run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effects: Option<Map<String, Value>>,
    /// The turn of the session in which the tool ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error_code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error_data: Option<&'a Value>,
}
