//! A2E 1.0: one JSON object a line, each with a type, an id and a time.
//!
//! The document calls its version field `a2e`, the library of its authors `version`: both are written, and
//! either is read. Of the protocol's capabilities this executor has one, `tools`.

pub mod decode;
pub mod encode;
pub mod fault;
mod message;
pub mod tools;

/// The version of the protocol that is spoken here.
pub const VERSION: &str = "1.0";
/// The capability that this executor has.
pub const TOOLS: &str = "tools";

/// Whether a handshake means [`TOOLS`]: also by the name of its messages.
#[must_use]
pub fn means_tools(capability: &str) -> bool {
    matches!(capability, TOOLS | "tool")
}

/// The capabilities of the protocol with the first part of their messages' types. What an agent asks for
/// beside these is not in its vocabulary, and is not answered.
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
