//! The names and values in the stream.

use crate::FleetError;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::fmt::{self, Display, Formatter};

/// The maximum length of a name, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// The reason why a name cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("has to have 1 to 64 characters of `a` to `z`, `A` to `Z`, `0` to `9`, `-` and `_`")]
pub struct NameError;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                // The name is a token of a subject, so it has no dot, wildcard or space.
                let is_valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                let has_valid_length = (1..=MAX_NAME_BYTES).contains(&text.len());
                if has_valid_length && text.chars().all(is_valid) { Ok(Self(text)) } else { Err(NameError) }
            }
        }

        impl Display for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// The name of a fleet. Executors with the same name share their claims.
    FleetName
}
name! {
    /// The name of an executor within its fleet.
    NodeName
}

/// The value of a claim.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimRecord {
    pub(crate) node: NodeName,
    /// The epoch of the node when it claimed the intent.
    pub(crate) epoch: u64,
    /// The hash of the call's content, in hexadecimal.
    pub(crate) content: String,
    pub(crate) agent: String,
    /// The governor's verdict, if a node asked the governor.
    pub(crate) verdict: Option<Box<RawValue>>,
    pub(crate) state: ClaimState,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ClaimState {
    /// The intent starts or runs.
    Open {
        /// The receipt of the intent if its node is lost.
        fallback: Box<RawValue>,
    },
    Ended {
        /// The node that wrote the end, and delivers the report.
        by: NodeName,
        receipt: ReceiptPlace,
    },
    /// A person has denied the intent: it never runs, and has no report.
    Denied {
        /// The denial, as the nodes answer it.
        denial: Box<RawValue>,
    },
}

impl ClaimState {
    /// Returns `true` while the intent starts or runs.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Self::Open { .. } => true,
            Self::Ended { .. } | Self::Denied { .. } => false,
        }
    }

    /// Returns `true` if a person has denied the intent.
    pub(crate) fn is_denied(&self) -> bool {
        match self {
            Self::Denied { .. } => true,
            Self::Open { .. } | Self::Ended { .. } => false,
        }
    }
}

/// The place of a receipt.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ReceiptPlace {
    Inline(Box<RawValue>),
    /// The keys `part.INTENT.EPOCH.0` to `part.INTENT.EPOCH.(parts - 1)`.
    Parts {
        epoch: u64,
        parts: usize,
        bytes: usize,
        /// The SHA-256 of all parts, in hexadecimal.
        sha256: String,
    },
}

/// The value of a mark.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MarkRecord {
    /// The epoch in which the node claimed the intent, or ended the claim of a lost node.
    pub(crate) epoch: u64,
}

/// The value of a proof's key: the intent that used the proof.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProofRecord {
    pub(crate) intent: String,
}

/// The value of a lease. Members of later versions are ignored, so that nodes of two versions can form one fleet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    /// Increases each time that the node joins.
    pub(crate) epoch: u64,
    /// A random name of the process that joined.
    pub(crate) process: String,
    pub(crate) state: NodeState,
    /// The latest receipt in the node's journal.
    pub(crate) receipts: u64,
    /// The hash of that receipt, in hexadecimal.
    pub(crate) head: String,
    pub(crate) version: String,
    pub(crate) load: NodeLoad,
    /// Changes the value with each renewal, even if nothing else changes.
    pub(crate) renewals: u64,
}

/// The value of a request to leave: the epoch of the node that was asked.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DrainRecord {
    pub(crate) epoch: u64,
}

/// The state of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// The node runs.
    Live,
    /// The node was asked to finish its runs and to leave.
    Draining,
    /// The node has left.
    Left,
    /// The node was lost, and this other node ends its claims.
    TakenOver(NodeName),
}

impl NodeState {
    /// Returns `true` if the node runs nothing.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match self {
            Self::Live | Self::Draining => false,
            Self::Left | Self::TakenOver(_) => true,
        }
    }
}

/// The load of a node at its latest renewal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLoad {
    /// The number of runs.
    pub running: usize,
    /// The number of calls that wait for a slot.
    pub queued: usize,
    /// The number of intents that wait for a person.
    // Earlier versions do not write it.
    #[serde(default)]
    pub waiting: usize,
    /// The maximum number of runs.
    pub concurrent: usize,
    /// The number of reports that the governor has not acknowledged.
    pub undelivered: usize,
}

pub(crate) fn encode(value: &impl Serialize) -> Result<Vec<u8>, FleetError> {
    serde_json::to_vec(value).map_err(|error| FleetError::value("(new)", error))
}

pub(crate) fn decode<T: for<'de> Deserialize<'de>>(key: &str, value: &[u8]) -> Result<T, FleetError> {
    serde_json::from_slice(value).map_err(|error| FleetError::value(key, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tokens_of_subjects() {
        for name in ["a", "node-1_B", &"x".repeat(64)] {
            assert!(NodeName::try_from(name.to_owned()).is_ok(), "{name}");
        }
        for name in ["", "a.b", "*", ">", "a b", "ä", "a\n", "a/b", &"x".repeat(65)] {
            assert_eq!(FleetName::try_from(name.to_owned()), Err(NameError), "{name}");
        }
    }

    #[test]
    fn claims_with_other_members_are_refused() {
        let open = r#"{"node":"one","epoch":1,"content":"00","agent":"did:a:a","verdict":null,"state":{"open":{"fallback":{}}}}"#;
        let claim = decode::<ClaimRecord>("claim.x", open.as_bytes()).unwrap();
        assert_eq!(encode(&claim).unwrap(), open.as_bytes());
        for text in [
            "",
            "{}",
            &open.replace("one", "a.b"),
            &open.replace("\"epoch\":1,", ""),
            &open.replace("null", r#"null,"x":1"#),
            &open.replace("open", "closed"),
        ] {
            assert!(decode::<ClaimRecord>("claim.x", text.as_bytes()).is_err(), "{text}");
        }
    }
}
