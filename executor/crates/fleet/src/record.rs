//! The values in the stream.

use crate::FleetError;
use a2g_types::node::NodeName;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

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

/// Logs a value that no node wrote: it concerns one node or intent, and must not keep the others from being looked at.
pub(crate) fn skip_unreadable<T>(result: Result<T, FleetError>) -> Result<Option<T>, FleetError> {
    match result {
        Err(error @ FleetError::Value { .. }) => {
            tracing::warn!(%error, "a value in the fleet is ignored");
            Ok(None)
        }
        Ok(value) => Ok(Some(value)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
