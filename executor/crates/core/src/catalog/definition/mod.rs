//! Definitions: what agents and people are told of a tool, and what the tool may do. The first accepted definition of a
//! tool is remembered, and an update that tells something else or may do more waits for an operator.
//!
//! ```text
//! tool add ──▶ the accepted definition ──▶ the same, or narrower: installed, and remembered
//!                       │
//!                       └ other texts, or wider: catalogue/.waiting/<name>, until `tool approve` or `tool reject`
//! serve ────▶ the accepted definition ──▶ other texts, or wider: the tool is broken, until `tool approve`
//! ```
//! `compare` decides which changes wait, `store` remembers the accepted definitions in a file of the operator, and
//! `update` approves what waits. A tool without an accepted definition is accepted as it is when it is first seen.

mod compare;
mod store;
mod stored;
mod update;

pub use compare::{Change, ChangeKind, Part, compare};
pub use store::{Access, Definitions};
pub use update::{Installation, Update, reject, waiting_updates};
pub(super) use update::{Place, WAITING_FOLDER};

use a2g_types::tool::{Contract, DeclaredCapabilities, Descriptor};
use serde_json::Value;

/// What agents and people are told of a tool, and what it may do.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// The name for people.
    pub title: Option<String>,
    /// The version. It may change freely as long as it looks like one: see [`compare`].
    pub version: String,
    /// The description, for people and models.
    pub description: String,
    /// The contract.
    pub contract: Contract,
    /// The JSON Schema of the arguments, with the descriptions that models read.
    pub arguments_schema: Value,
    /// The JSON Schema of the result.
    pub result_schema: Option<Value>,
    /// `true` if callers are told that a repeat with the same arguments changes nothing more.
    pub is_idempotent: bool,
    /// The declared capabilities.
    pub capabilities: DeclaredCapabilities,
}

impl Definition {
    /// The definition in a descriptor.
    #[must_use]
    pub fn of(descriptor: &Descriptor) -> Self {
        let Descriptor {
            name: _,
            title,
            version,
            description,
            contract,
            // A new module with the same definition is what most updates are.
            digest: _,
            // The list of signers decides who may sign.
            signature: _,
            arguments_schema,
            result_schema,
            is_idempotent,
            capabilities,
        } = descriptor;
        Self {
            title: title.clone(),
            version: version.clone(),
            description: description.clone(),
            contract: *contract,
            arguments_schema: arguments_schema.clone(),
            result_schema: result_schema.clone(),
            is_idempotent: *is_idempotent,
            capabilities: capabilities.clone(),
        }
    }
}
