//! The reasons why a call is not answered with a successful report: the closed set of answers that a caller may
//! receive.
//!
//! A fault's message is safe for the caller: it names the refused item, the limit, the layer that set it and the
//! necessary change, and never a host path outside the caller's scope, an address or a backtrace. Details that are only
//! for the log are in [`Fault::Internal`].

use crate::failure_message::describe_failure;
use crate::ident::{IntentId, ToolName};
use crate::limit::Limit;
use crate::outcome::Receipt;
use std::borrow::Cow;
use std::sync::Arc;
use strum::{IntoStaticStr, VariantArray};

/// The reason why an intent is refused before it runs (`data.blocked_by`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum BlockedBy {
    /// The verdict is DENIED.
    VerdictDenied,
    /// The verdict's `expires_at` has passed.
    VerdictExpired,
    /// The verdict answers another intent, or contradicts the call.
    VerdictMismatch,
    /// Nothing proves that the verdict is the governor's.
    VerdictUntrusted,
    /// The verdict was used before.
    VerdictReplayed,
    /// The caller lacks the role for its request, or made it in the name of another agent.
    CallerUnauthorized,
    /// The intent is not signed as this executor requires.
    IntentUntrusted,
    /// The signature of the intent was used before.
    IntentReplayed,
    /// This executor cannot enforce a condition.
    ConditionUnknown,
    /// The decision of a person is pending.
    EscalationPending,
    /// This executor cannot enforce a filesystem pattern exactly.
    ScopeUnenforceable,
    /// The standing policy of the agent refuses the call.
    StandingPolicy,
    /// The governor could not be queried.
    GovernorUnavailable,
    /// An operator has stopped the agent, the tool or everything.
    Stopped,
    /// The tool has no valid signature by a signer that the operator trusts.
    ToolUntrusted,
    /// There is no such session for the caller, or it has ended.
    SessionLost,
    /// Another turn of the session has not ended.
    SessionBusy,
    /// The call cannot have a session.
    SessionRefused,
    /// A limit on sessions is reached.
    SessionsExhausted,
    /// The tool needs a secret that its run would not get.
    SecretMissing,
}

impl BlockedBy {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The class of refusals to which this reason belongs.
    #[must_use]
    pub fn class(self) -> RefusalClass {
        match self {
            Self::GovernorUnavailable => RefusalClass::Unavailable,
            Self::CallerUnauthorized => RefusalClass::Unauthorized,
            Self::EscalationPending => RefusalClass::Pending,
            Self::VerdictDenied
            | Self::VerdictExpired
            | Self::VerdictMismatch
            | Self::VerdictUntrusted
            | Self::VerdictReplayed
            | Self::IntentUntrusted
            | Self::IntentReplayed
            | Self::ConditionUnknown
            | Self::ScopeUnenforceable
            | Self::StandingPolicy
            | Self::Stopped
            | Self::ToolUntrusted
            | Self::SessionLost
            | Self::SessionBusy
            | Self::SessionRefused
            | Self::SessionsExhausted
            | Self::SecretMissing => RefusalClass::Denied,
        }
    }
}

/// The class of a refusal, by which each protocol selects its error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalClass {
    /// The governor could not be queried: the same call may run later.
    Unavailable,
    /// The caller may not make this request.
    Unauthorized,
    /// The decision of a person is pending.
    Pending,
    /// The call is refused.
    Denied,
}

/// Every answer other than a successful report.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The body is not JSON that this door accepts (syntax, encoding, duplicate key, depth, size).
    Parse(String),
    /// The body is JSON but not a request of this door.
    InvalidRequest(String),
    /// The method does not exist.
    MethodNotFound(String),
    /// The parameters are invalid.
    InvalidParams {
        /// The problem.
        message: String,
        /// The location of the problem, as an RFC 6901 JSON Pointer into `params`.
        pointer: String,
    },
    /// The tool is known, but cannot be run.
    ToolUnavailable {
        /// The tool.
        tool: ToolName,
        /// The problem with the tool.
        message: String,
    },
    /// The intent is refused before anything ran.
    Refused {
        /// The refused intent, if there is one.
        intent: Option<IntentId>,
        /// The governor's score, if there is one.
        risk_score: Option<f64>,
        /// The reason for the refusal.
        blocked_by: BlockedBy,
        /// The change that the caller has to make.
        message: String,
    },
    /// The governor does not accept this agent.
    RegistrationFailed(String),
    /// The governor does not know this agent's session: the agent has to register again.
    SessionExpired(String),
    /// The tool ran and failed, or was stopped.
    Failed(Arc<Receipt>),
    /// The tool ran and a limit ended it.
    LimitReached(Arc<Receipt>, Limit),
    /// The tool ran, and its receipt waits for space on the journal's disk. Once the receipt is written, a repeated
    /// call returns it.
    ReceiptPending {
        /// The intent that ran.
        intent: IntentId,
        /// The delay before the caller should request the receipt.
        retry_after_ms: u64,
    },
    /// The executor cannot take the call now: a resource is used up, the tool is still being prepared, or the executor
    /// is shutting down.
    Busy {
        /// The resource or the state that prevents the call.
        message: String,
        /// The delay before the next attempt.
        retry_after_ms: u64,
    },
    /// An internal error of the executor. The text is only for the log.
    Internal(String),
}

/// The message that a caller gets for [`Fault::ReceiptPending`].
// No sync precedes it: an entry behind the receipt in the writer's queue would wait for the same disk.
pub const RECEIPT_PENDING: &str = "the tool has started, and its receipt is not here yet, because the journal's disk \
     is full, the fleet cannot be reached, or another node of it runs the tool: query `a2g/status`, or send the same \
     intent again, which does not run the tool again (after a power failure, it may repeat a run that can change nothing)";

impl Fault {
    /// The fault for an invalid parameter; `pointer` is an RFC 6901 JSON Pointer into `params`.
    pub fn invalid(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::InvalidParams { message: message.into(), pointer: pointer.into() }
    }

    /// The sentence for the caller, the same at every door. That of [`Fault::Internal`] has none of its text.
    #[must_use]
    pub fn sentence(&self) -> Cow<'_, str> {
        match self {
            Self::Parse(message)
            | Self::InvalidRequest(message)
            | Self::MethodNotFound(message)
            | Self::InvalidParams { message, .. }
            | Self::ToolUnavailable { message, .. }
            | Self::Refused { message, .. }
            | Self::RegistrationFailed(message)
            | Self::SessionExpired(message)
            | Self::Busy { message, .. } => message.into(),
            Self::Failed(receipt) | Self::LimitReached(receipt, _) => {
                describe_failure(&receipt.outcome).into()
            }
            Self::ReceiptPending { .. } => RECEIPT_PENDING.into(),
            Self::Internal(_) => "internal error of the executor".into(),
        }
    }
}
