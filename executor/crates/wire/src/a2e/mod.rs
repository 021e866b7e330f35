//! A2E 1.0: one JSON object on each line, with a type, an id and a time.
//!
//! The protocol's document names its version field `a2e`, its reference library `version`: both are written,
//! and either is accepted. Of the protocol's capabilities this executor implements one, `tools`.

pub mod decode;
pub mod encode;
pub mod fault;
mod message;
pub mod tools;

/// The implemented version of the protocol.
pub const VERSION: &str = "1.0";
/// The one capability of this executor.
pub const TOOLS: &str = "tools";

/// Returns `true` for [`TOOLS`] and for `tool`, the first part of its messages' types.
#[must_use]
pub fn is_tools_capability(capability: &str) -> bool {
    matches!(capability, TOOLS | "tool")
}

/// The other capabilities of the protocol, each after the first part of its message types. Names outside this list are
/// not part of the protocol, and a handshake response omits them.
const CAPABILITIES: [(&str, &str); 9] = [
    ("skill", "skill"),
    ("toolkit", "toolkits"),
    ("env", "env"),
    ("proc", "proc"),
    ("memory", "memory"),
    ("learn", "learning"),
    ("chain", "chains"),
    ("mcp", "mcp"),
    ("multi_agent", "multi_agent"),
];

#[cfg(test)]
mod tests;
