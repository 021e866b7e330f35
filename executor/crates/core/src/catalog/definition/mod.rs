//! Definitions: a tool's texts, schemas, contract and declared capabilities. The first accepted definition of a tool is
//! remembered. An update with other texts or wider capabilities waits for an operator.
//!
//! ```text
//! tool add ──▶ the accepted definition ──▶ the same, or narrower: installed, and remembered
//!                       │
//!                       └ other texts, or wider: catalogue/.waiting/<name>, until `tool approve` or `tool reject`
//! serve ────▶ the accepted definition ──▶ other texts, or wider: the tool is broken, until `tool approve`
//! ```
//! `compare` decides which changes wait, `store` keeps the accepted definitions in a file of the operator, and `update`
//! approves waiting updates. A tool without an accepted definition is accepted when it is first seen.

mod compare;
mod store;
mod stored;
mod update;

pub use compare::{Change, ChangeKind, Part, compare};
pub use store::{Access, Definitions};
pub use update::{Installation, Update, reject, waiting_updates};
pub(super) use update::{Place, WAITING_FOLDER};

use a2g_types::tool::{Contract, DeclaredCapabilities, Descriptor};
use serde_json::{Map, Value};

/// The parts of a tool that agents and people read, and its declared capabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// The name for people.
    pub title: Option<String>,
    /// The version. It may change freely within the form of a version: see [`compare`].
    pub version: String,
    /// The description, for people and models.
    pub description: String,
    /// The contract.
    pub contract: Contract,
    /// The JSON Schema of the arguments, with the descriptions that models read.
    pub arguments_schema: Value,
    /// The JSON Schema of the result.
    pub result_schema: Option<Value>,
    /// The settings, which decide what the module does.
    pub settings: Option<Map<String, Value>>,
    /// `true` if the tool promises that a repeat with the same arguments changes nothing more.
    pub is_idempotent: bool,
    /// `true` if a call may ask for a session.
    pub has_sessions: bool,
    /// The declared capabilities.
    pub capabilities: DeclaredCapabilities,
}

impl Definition {
    /// The definition of the tool that this descriptor describes.
    #[must_use]
    pub fn of(descriptor: &Descriptor) -> Self {
        let Descriptor {
            name: _,
            title,
            version,
            description,
            contract,
            // Most updates are a new module with the same definition.
            digest: _,
            // The list of signers decides who may sign.
            signature: _,
            arguments_schema,
            result_schema,
            settings,
            is_idempotent,
            has_sessions,
            capabilities,
        } = descriptor;
        Self {
            title: title.clone(),
            version: version.clone(),
            description: description.clone(),
            contract: *contract,
            arguments_schema: arguments_schema.clone(),
            result_schema: result_schema.clone(),
            settings: settings.clone(),
            is_idempotent: *is_idempotent,
            has_sessions: *has_sessions,
            capabilities: capabilities.clone(),
        }
    }
}
