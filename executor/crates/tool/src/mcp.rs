//! `tool new --mcp`: a tool for each tool of an MCP server.

use crate::arguments::ApiOptions;
use anyhow::bail;

/// Writes a folder for each tool of the server at `url`.
pub(crate) fn new(_name: &str, _url: &str, _options: &ApiOptions) -> anyhow::Result<()> {
    bail!("`--mcp` is not built yet")
}
