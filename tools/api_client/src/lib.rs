//! The client of APIs: calls one operation of an HTTP API, or one tool of an MCP server.
//!
//! It is the module of every tool that `a2g-executor tool new --openapi` and `--mcp` make. What a tool calls is in the
//! `[settings]` of its `tool.toml`, which the executor adds to the arguments of each call.

mod mcp;
mod openapi;

use a2g_guest_sdk::prelude::*;
use serde::Deserialize;

/// What the executor passes to a tool with settings.
#[derive(Arguments)]
struct Input {
    /// The `[settings]` of `tool.toml`.
    settings: Value,
    /// The arguments of the call, which the executor has checked.
    arguments: Value,
}

/// The settings of one tool.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Settings {
    Openapi(openapi::settings::OpenapiSettings),
    Mcp(mcp::McpSettings),
}

fn api_client(ctx: &mut Context, input: Input) -> Result<Value, ToolError> {
    let Input { settings, arguments } = input;
    let settings: Settings = serde_json::from_value(settings).map_err(|error| {
        ToolError::new("invalid_settings", format!("`[settings]` of `tool.toml`: {error}"))
    })?;
    match &settings {
        Settings::Openapi(settings) => openapi::call(ctx, settings, arguments),
        Settings::Mcp(settings) => mcp::call(ctx, settings, arguments),
    }
}

export_tool!(
    api_client,
    description = "Calls one operation of an API, or one tool of an MCP server, as its settings say."
);

#[cfg(test)]
mod tests;
