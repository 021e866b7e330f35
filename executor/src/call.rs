//! One request to run one tool, whichever door it came through.

use crate::ident::{AgentDid, IntentId, ToolName};
use crate::memory::Charge;
use crate::quantity::Timeout;
use serde_json::{Map, Value};
use std::fmt;
use strum::{IntoStaticStr, VariantArray};

/// The protocol by which a call came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, VariantArray)]
pub enum Door {
    /// A2G, the primary door.
    A2g,
    /// A2A 0.3.0 and A2A-ACP.
    A2a,
    /// A2E 1.0.
    A2e,
    /// Genesis Nexus.
    Nexus,
    /// sovereign JSON-RPC 3.0.
    Sovereign,
    /// The command line (`a2g-executor run`).
    Cli,
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A2g => "a2g",
            Self::A2a => "a2a",
            Self::A2e => "a2e",
            Self::Nexus => "nexus",
            Self::Sovereign => "sovereign",
            Self::Cli => "cli",
        })
    }
}

/// Which of those who wait goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Priority {
    /// After all others.
    Low,
    /// As at doors that know no priorities.
    #[default]
    Normal,
    /// Before what is normal.
    High,
    /// Before all others.
    Critical,
}

impl Priority {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Who asks which tool to do what. A call carries no authority: only a verdict does.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The door it came through.
    pub door: Door,
    /// The agent that asks.
    pub agent: AgentDid,
    /// The identity of the intent, single-use.
    pub intent: IntentId,
    /// Whether that identity was made here for this call, so that it is not looked up: nothing has run under it.
    pub is_new: bool,
    /// The tool to run.
    pub tool: ToolName,
    /// The arguments, a JSON object. Not yet checked against the tool's schema.
    pub arguments: Map<String, Value>,
    /// What the agent says about its intent. Passed on to the governor, never interpreted here.
    pub context: Option<Map<String, Value>>,
    /// How long the caller wants to wait for the run. It can only be less than what is granted.
    pub at_most: Option<Timeout>,
    /// Which of those who wait for a slot goes first.
    pub priority: Priority,
    /// The share of its caller's memory that its arguments take.
    pub charge: Charge,
}

/// What an agent's SDK put into `context.signature`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextSignature {
    /// When it was signed, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// What makes it single-use: 8 to 128 letters, digits and `-`.
    pub nonce: String,
    /// HMAC-SHA256 in 64 hexadecimal digits of lower case, as sent.
    pub hash: String,
    /// The texts that the hash may be of. A `context` that held nothing but the signature may have been
    /// empty when it was signed, or not there: the SDKs differ, and it says the same.
    pub texts: Vec<String>,
}
