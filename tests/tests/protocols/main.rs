//! The doors but for MCP, the documents that they follow, and what holds at every door.

mod a2a;
mod a2e;
mod a2g_http;
mod a2g_stdio;
mod a2g_ws;
mod documents;
mod doors;
mod json_suite;
mod nexus;
mod sovereign;
mod transcripts;
