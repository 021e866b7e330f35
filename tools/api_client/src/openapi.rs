//! Calls an operation of an HTTP API.

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::serde;

/// The settings of a tool that is an operation of an HTTP API.
#[derive(Debug, serde::Deserialize)]
#[serde(crate = "serde", deny_unknown_fields)]
pub(crate) struct OpenapiSettings {}

/// Calls it with these arguments.
pub(crate) fn call(
    _ctx: &mut Context,
    _settings: &OpenapiSettings,
    _arguments: Value,
) -> Result<Value, ToolError> {
    Err(ToolError::new("not_built", "not built yet"))
}
