//! Why a call was not answered with a successful report: the closed set of what a caller may be
//! told.
//!
//! A fault's message is safe for the caller: it names what was refused, which limit, who set it
//! and what to change, and never a host path outside the caller's scope, an address or a
//! backtrace. Detail that is only for the log travels in [`Fault::Internal`].

use crate::ident::{IntentId, ToolName};
use crate::limit::Limit;
use crate::outcome::Receipt;
use std::sync::Arc;
use strum::{IntoStaticStr, VariantArray};

/// What refused an intent before it ran (`data.blocked_by`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum BlockedBy {
    /// The verdict is DENIED.
    VerdictDenied,
    /// The verdict's `expires_at` has passed.
    VerdictExpired,
    /// The verdict answers another intent, or contradicts what was asked.
    VerdictMismatch,
    /// Nothing shows that the verdict is the governor's.
    VerdictUntrusted,
    /// The verdict was used before.
    VerdictReplayed,
    /// The caller has not the role for what it asked, or asked in another's name.
    CallerUnauthorized,
    /// The intent is not signed as this executor asks for.
    IntentUntrusted,
    /// The signature of the intent was used before.
    IntentReplayed,
    /// A condition that this executor cannot enforce.
    ConditionUnknown,
    /// A person has not yet answered.
    EscalationPending,
    /// A filesystem pattern that this executor cannot enforce exactly.
    ScopeUnenforceable,
    /// The standing policy of the agent.
    StandingPolicy,
    /// The governor could not be asked.
    GovernorUnavailable,
}

impl BlockedBy {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Everything that can come back instead of a successful report.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The body is not JSON as this door reads it (syntax, encoding, duplicate key, depth, size).
    Parse(String),
    /// The body is JSON but not a request of this door.
    InvalidRequest(String),
    /// No such method.
    MethodNotFound(String),
    /// The parameters break their description.
    InvalidParams {
        /// What is wrong.
        message: String,
        /// Where, as an RFC 6901 JSON Pointer into `params`.
        pointer: String,
    },
    /// The tool is known, but cannot be run.
    ToolUnavailable {
        /// The tool.
        tool: ToolName,
        /// What is wrong with it.
        message: String,
    },
    /// Refused before anything ran.
    Refused {
        /// The intent that was refused, when it was about one.
        intent: Option<IntentId>,
        /// The governor's score, when there was one.
        risk_score: Option<f64>,
        /// What refused it.
        blocked_by: BlockedBy,
        /// What to change.
        message: String,
    },
    /// The governor does not accept this agent.
    RegistrationFailed(String),
    /// The governor does not know this agent's session; it has to register again.
    SessionExpired(String),
    /// The tool ran and failed, or was stopped.
    Failed(Arc<Receipt>),
    /// The tool ran and a limit ended it.
    LimitReached(Arc<Receipt>, Limit),
    /// The tool ran, and its receipt waits for room on the journal's disk. A repeat gets it when it is there.
    ReceiptPending {
        /// The intent that ran.
        intent: IntentId,
        /// The pause before the caller should ask for it.
        retry_after_ms: u64,
    },
    /// No room now: the queue is full or the executor is shutting down.
    Busy {
        /// What is full.
        message: String,
        /// When to come again.
        retry_after_ms: u64,
    },
    /// Something of ours is broken. The text is for the log only.
    Internal(String),
}

/// The sentence for a caller with [`Fault::ReceiptPending`].
pub const RECEIPT_PENDING: &str = "the tool ran, and its receipt waits for room on the disk of the executor's journal: ask \
     `a2g/status`, or send the same intent again, which does not run it again";

impl Fault {
    /// A parameter fault.
    pub fn invalid(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::InvalidParams { message: message.into(), pointer: pointer.into() }
    }
}
