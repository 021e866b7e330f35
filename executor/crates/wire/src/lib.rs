//! The wire formats: pure conversions between bytes and values, one folder for each protocol.
//!
//! ```text
//! bytes ─ strict_json::check ─▶ text ─ jsonrpc::decode ─▶ RpcRequest ─ a2g::decode ─▶ Call, Verdict, …
//! Receipt, Verdict, Fault ─ a2g::encode, a2g::fault ─▶ params or result ─ jsonrpc::success, error ─▶ bytes
//! ```
//! This crate uses no socket, no clock and no task. A decoded value is a claim and carries no authority.
//!
//! Invariant: a body passes [`strict_json::check`] first. The decoders reject duplicate members in the objects
//! that they read, but not inside free-form JSON such as a tool's arguments.

pub mod a2a;
pub mod a2e;
pub mod a2g;
mod fault_parts;
mod field;
pub mod jsonrpc;
pub mod jwk;
pub mod jwks;
pub mod jwt;
pub mod listing;
pub mod mcp;
mod measurements;
pub mod nexus;
pub mod sovereign;
pub mod staged;
pub mod stubs;
#[cfg(test)]
mod tests;
pub use a2g_types::strict_json;

use serde::Serialize;
use serde_json::value::RawValue;

/// Serializes a message of the executor.
fn to_raw(message: &impl Serialize) -> Box<RawValue> {
    // Serialization fails only for maps with keys other than strings, and no message has such a map.
    serde_json::value::to_raw_value(message).unwrap_or_else(|_| RawValue::NULL.to_owned())
}
