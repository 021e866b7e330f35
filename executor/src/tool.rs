//! What is known of a tool before it runs.

use crate::ident::ToolName;
use serde_json::Value;
use std::fmt;

/// The contract between the executor and a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Contract {
    /// Arguments as JSON on standard input, result as JSON on standard output, logs on standard
    /// error, an exit code. Any language.
    Command,
    /// The WIT world `a2g:tool/tool`.
    Typed,
}

impl Contract {
    /// The word in `tool.toml` and on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Typed => "typed",
        }
    }
}

/// The SHA-256 of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a tool says about itself, and what its `tool.toml` declares.
#[derive(Debug, Clone, PartialEq)]
pub struct Descriptor {
    /// Its name.
    pub name: ToolName,
    /// Its semantic version.
    pub version: String,
    /// What it does, for people and agents.
    pub description: String,
    /// How it is called.
    pub contract: Contract,
    /// The SHA-256 of its module.
    pub digest: Digest,
    /// The JSON Schema of its arguments.
    pub arguments_schema: Value,
    /// What it declares that it needs.
    pub capabilities: Declared,
}

/// The `[capabilities]` of a `tool.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Declared {
    /// Whether it uses files, and how.
    pub filesystem: DeclaredFilesystem,
    /// Whether it uses the network.
    pub network: bool,
    /// The most memory it needs.
    pub memory: Option<crate::quantity::MemoryLimit>,
    /// The largest share of CPU it needs.
    pub cpu: Option<crate::quantity::CpuPercent>,
    /// The longest it runs.
    pub timeout: Option<crate::quantity::Timeout>,
}

/// How a tool declares that it uses files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeclaredFilesystem {
    /// Not at all.
    #[default]
    None,
    /// It reads and lists.
    Read,
    /// It also creates, changes and removes.
    ReadWrite,
}

impl DeclaredFilesystem {
    /// The word in `tool.toml` and on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Read => "read",
            Self::ReadWrite => "read-write",
        }
    }
}
