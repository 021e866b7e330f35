//! Model Context Protocol for a server that offers tools, in the revisions 2026-07-28 and 2025-11-25.
//!
//! A request of 2026-07-28 carries its revision and the client's capabilities in `_meta`; one of 2025-11-25 belongs to
//! a session that `initialize` opened. The modules convert messages for both, and [`headers`] compares the HTTP headers
//! of 2026-07-28 with the message that they describe.

pub mod content;
pub mod decode;
pub mod elicit;
pub mod encode;
pub mod fault;
pub mod headers;
mod meta;
pub mod resources;
pub mod state;
mod tasks;
pub mod tools;

pub use tasks::{Task, TaskStatus};

pub use meta::{ClientCapabilities, MessageLevel, ProgressToken, RequestMeta};

use serde_json::Value;

/// A revision of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revision {
    /// 2026-07-28: each request is complete in itself.
    Stateless,
    /// 2025-11-25: requests belong to a session.
    Session,
}

impl Revision {
    /// Every revision, the latest first.
    pub const ALL: [Self; 2] = [Self::Stateless, Self::Session];

    /// Returns `true` for a schema that a tool's definition may have as `outputSchema`: any in 2026-07-28, and only one
    /// that describes an object in 2025-11-25.
    pub(crate) fn allows_output_schema(self, schema: &Value) -> bool {
        match self {
            Self::Stateless => true,
            Self::Session => schema.get("type").is_some_and(|kind| kind == "object"),
        }
    }

    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stateless => "2026-07-28",
            Self::Session => "2025-11-25",
        }
    }
}

/// The names that a message of either revision uses.
pub mod names {
    /// `_meta`: the revision of a request.
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    /// `_meta`: the client's name and version, which nothing depends on.
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    /// `_meta`: the capabilities of the client.
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    /// `_meta`: the lowest level of log messages that the client wants.
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    /// `_meta` of a result: the server's name and version.
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    /// `_meta` of a notification: the request that subscribed to it.
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
    /// The extension for tasks.
    pub const TASKS: &str = "io.modelcontextprotocol/tasks";
    /// `_meta`: the intent of a call. A client sets it to make a repeat safe; every result has it.
    pub const INTENT_ID: &str = "a2g/intent_id";
    /// `_meta` of a tool: the digest of its definition and its module.
    pub const DEFINITION_DIGEST: &str = "a2g/definition_digest";
}

#[cfg(test)]
mod tests;
