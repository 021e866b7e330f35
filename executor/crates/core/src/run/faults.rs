//! The faults of the pipeline, and their form for other nodes.

use super::RETRY_AFTER_MS;
use a2g_journal::JournalError;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{IntentId, ToolName};
use a2g_types::stop::Stop;
use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

/// A fault as one node sends it to another: without receipts, and without the text of internal errors.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NodeFault {
    Invalid { pointer: String, message: String },
    InvalidRequest(String),
    ToolUnavailable { tool: String, message: String },
    Refused { blocked_by: String, risk_score: Option<f64>, message: String },
    Busy { message: String, retry_after_ms: u64 },
    Failed,
}

impl NodeFault {
    /// The form that is sent. A fault without one is logged here, and sent as [`Self::Failed`].
    pub(super) fn new(fault: Fault) -> Self {
        match fault {
            Fault::InvalidParams { message, pointer } => Self::Invalid { pointer, message },
            Fault::InvalidRequest(message) => Self::InvalidRequest(message),
            Fault::ToolUnavailable { tool, message } => {
                Self::ToolUnavailable { tool: tool.to_string(), message }
            }
            Fault::Refused { blocked_by, risk_score, message, intent: _ } => {
                Self::Refused { blocked_by: blocked_by.as_str().to_owned(), risk_score, message }
            }
            Fault::Busy { message, retry_after_ms } => Self::Busy { message, retry_after_ms },
            fault @ (Fault::Internal(_)
            | Fault::Parse(_)
            | Fault::MethodNotFound(_)
            | Fault::RegistrationFailed(_)
            | Fault::SessionExpired(_)
            | Fault::Failed(_)
            | Fault::LimitReached(..)
            | Fault::ReceiptPending { .. }) => {
                tracing::error!(?fault, "a request of another node has failed");
                Self::Failed
            }
        }
    }

    /// The fault for the caller of this node, about the given intent.
    pub(super) fn into_fault(self, intent: IntentId) -> Fault {
        let unknown =
            |text: &str| Fault::Internal(format!("the other node has another version: it sent `{text}`"));
        match self {
            Self::Invalid { pointer, message } => Fault::invalid(pointer, message),
            Self::InvalidRequest(message) => Fault::InvalidRequest(message),
            Self::ToolUnavailable { tool, message } => match ToolName::parse(&tool) {
                Ok(tool) => Fault::ToolUnavailable { tool, message },
                Err(_) => unknown(&tool),
            },
            Self::Refused { blocked_by, risk_score, message } => {
                let known = BlockedBy::VARIANTS.iter().find(|known| known.as_str() == blocked_by);
                let Some(blocked_by) = known.copied() else { return unknown(&blocked_by) };
                Fault::Refused { intent: Some(intent), risk_score, blocked_by, message }
            }
            Self::Busy { message, retry_after_ms } => Fault::Busy { message, retry_after_ms },
            Self::Failed => Fault::Internal("the other node failed: its log has the reason".to_owned()),
        }
    }
}

pub(super) fn receipt_pending_fault(intent: IntentId) -> Fault {
    Fault::ReceiptPending { intent, retry_after_ms: RETRY_AFTER_MS }
}

/// The fault for a call whose intent id exists with other content. The message does not depend on the state or the
/// agent of that intent, so that an agent learns nothing about the intents of others.
pub(super) fn intent_conflict_fault(intent: IntentId) -> Fault {
    Fault::InvalidRequest(format!(
        "the intent id `{intent}` cannot be used for this call: every intent needs a new one, such as a random UUID, and \
         a repeat the same content"
    ))
}

pub(super) fn busy_fault(message: &str) -> Fault {
    Fault::Busy { message: message.to_owned(), retry_after_ms: RETRY_AFTER_MS }
}

/// The fault for a decision that has taken effect, but is not on the disk yet.
pub(super) fn unsaved_decision_fault(error: &JournalError) -> Fault {
    let message = "the decision has taken effect, but is not yet recorded, because the journal's disk is full: a restart \
                   could undo it";
    error.to_fault(message.to_owned())
}

/// The fault for a call that a stop includes.
pub(super) fn stop_fault(intent: IntentId, stop: &Stop) -> Fault {
    refusal(intent, stop.refusal_message())
}

/// The refusal of a call that an operator stopped by a stop that has been lifted since.
pub(super) fn lifted_stop_fault(intent: IntentId) -> Fault {
    let message = "an operator stopped this call before it ran, and has lifted the stop since: send it again";
    refusal(intent, message.to_owned())
}

fn refusal(intent: IntentId, message: String) -> Fault {
    Fault::Refused { intent: Some(intent), risk_score: None, blocked_by: BlockedBy::Stopped, message }
}
