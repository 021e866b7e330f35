//! The door of MCP, with its hosts, clients and conformance suite.

mod clients;
mod first_calls;
mod listing;
mod mcp;
mod mcp_approval;
mod mcp_conformance;
mod mcp_end;
mod mcp_journal;
mod mcp_proxy;
mod mcp_staged;
mod mcp_start;
