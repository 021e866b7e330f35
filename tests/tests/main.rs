//! The built executor, driven from outside: through its doors, its command line and its files.
//!
//! `cargo xtask test` builds the binary and the tools first, and then runs this.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "all of this is test code: a failure is a panic, and time is the machine's"
)]

mod a2a;
mod a2e;
mod a2g_http;
mod a2g_stdio;
mod a2g_ws;
mod authoring;
mod bad_input;
mod browser;
mod budget;
mod callers;
mod catalogue;
mod cli;
mod clients;
mod code;
mod collections;
mod connections;
mod console;
mod console_usage;
mod containment;
mod definitions;
mod documents;
mod doors;
mod durability;
mod fleet;
mod flood;
mod governor;
mod governor_answers;
mod guides;
mod hostile;
mod json_suite;
mod jwt;
mod languages;
mod lifecycle;
mod listing;
mod mcp;
mod mcp_approval;
mod mcp_conformance;
mod mcp_end;
mod mcp_journal;
mod mcp_proxy;
mod mcp_start;
mod nested_calls;
mod nexus;
mod observability;
mod own_files;
mod promises;
mod proofs;
mod registry;
mod replays;
mod signatures;
mod sovereign;
mod tools;
mod transcripts;
mod wasm_tools;
