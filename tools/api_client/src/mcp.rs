//! Calls a tool of an MCP server.

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::serde;

/// The settings of a tool that is a tool of an MCP server.
#[derive(Debug, serde::Deserialize)]
#[serde(crate = "serde", deny_unknown_fields)]
pub(crate) struct McpSettings {}

/// Calls it with these arguments.
pub(crate) fn call(
    _ctx: &mut Context,
    _settings: &McpSettings,
    _arguments: Value,
) -> Result<Value, ToolError> {
    Err(ToolError::new("not_built", "not built yet"))
}
