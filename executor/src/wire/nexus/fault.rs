//! This door's table of error codes: the document's `A2AError`.
//!
//! The words mean something at this door only, so no other door may use this table.

use crate::fault::{BlockedBy, Fault, RECEIPT_PENDING};
use crate::limit::Limit;
use crate::outcome::{End, Receipt};
use crate::wire::sentence;
use serde_json::{Map, Value, json};

/// A code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The token is nobody's.
    AuthFailed,
    /// Known, and not allowed.
    Unauthorized,
    /// There is no such thing.
    NotFound,
    /// Not a message of this protocol.
    InvalidMessage,
    /// Nothing shows that it is the agent's own word.
    SignatureInvalid,
    /// A message whose parts break their description.
    ValidationError,
    /// It ran for too long.
    Timeout,
    /// Not now.
    Unavailable,
    /// Too many messages a second.
    RateLimited,
    /// Something of ours is broken.
    InternalError,
    /// The governor could not be reached.
    NetworkError,
    /// The tool ran and failed.
    ExecutionFailed,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::AuthFailed,
        Self::Unauthorized,
        Self::NotFound,
        Self::InvalidMessage,
        Self::SignatureInvalid,
        Self::ValidationError,
        Self::Timeout,
        Self::Unavailable,
        Self::RateLimited,
        Self::InternalError,
        Self::NetworkError,
        Self::ExecutionFailed,
    ];

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AuthFailed => "AUTH_FAILED",
            Self::Unauthorized => "UNAUTHORIZED",
            Self::NotFound => "NOT_FOUND",
            Self::InvalidMessage => "INVALID_MESSAGE",
            Self::SignatureInvalid => "SIGNATURE_INVALID",
            Self::ValidationError => "VALIDATION_ERROR",
            Self::Timeout => "TIMEOUT",
            Self::Unavailable => "UNAVAILABLE",
            Self::RateLimited => "RATE_LIMITED",
            Self::InternalError => "INTERNAL_ERROR",
            Self::NetworkError => "NETWORK_ERROR",
            Self::ExecutionFailed => "EXECUTION_FAILED",
        }
    }

    /// Whether the same may go well another time.
    #[must_use]
    pub fn retryable(self) -> bool {
        match self {
            Self::AuthFailed
            | Self::Unauthorized
            | Self::NotFound
            | Self::InvalidMessage
            | Self::SignatureInvalid
            | Self::ValidationError => false,
            Self::Timeout
            | Self::Unavailable
            | Self::RateLimited
            | Self::InternalError
            | Self::NetworkError
            | Self::ExecutionFailed => true,
        }
    }
}

/// An error of this door.
#[derive(Debug, Clone, PartialEq)]
pub struct NexusError {
    /// The code.
    pub code: Code,
    /// A tool's own words as they are, or a sentence of the executor's.
    pub message: String,
    /// What else is known.
    pub details: Map<String, Value>,
}

impl NexusError {
    /// With a code and a sentence.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Map::new() }
    }

    /// With one more thing that is known.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// On the wire. There is never a stack in it.
    pub(super) fn object(&self, timestamp_ms: u64) -> Value {
        let Self { code, message, details } = self;
        let mut object = json!({ "code": code.as_str(), "message": message });
        if let Some(object) = object.as_object_mut() {
            if !details.is_empty() {
                object.insert("details".to_owned(), details.clone().into());
            }
            object.insert("retryable".to_owned(), code.retryable().into());
            object.insert("timestamp".to_owned(), timestamp_ms.into());
        }
        object
    }
}

/// How this door answers a fault. [`Fault::Internal`] keeps its detail, which is for the log.
#[must_use]
pub fn of(fault: &Fault) -> NexusError {
    match fault {
        Fault::Parse(message) | Fault::InvalidRequest(message) => {
            NexusError::new(Code::InvalidMessage, message)
        }
        Fault::MethodNotFound(message) => NexusError::new(Code::NotFound, message),
        Fault::InvalidParams { message, pointer } => {
            NexusError::new(Code::ValidationError, message).with("pointer", pointer.as_str())
        }
        Fault::ToolUnavailable { tool, message } => {
            NexusError::new(Code::Unavailable, message).with("tool", tool.as_str())
        }
        Fault::Refused { intent, risk_score, blocked_by, message } => {
            let mut failure =
                NexusError::new(refused(*blocked_by), message).with("blockedBy", blocked_by.as_str());
            if let Some(intent) = intent {
                failure = failure.with("intentId", intent.to_string());
            }
            match risk_score {
                Some(score) => failure.with("riskScore", *score),
                None => failure,
            }
        }
        Fault::RegistrationFailed(message) | Fault::SessionExpired(message) => {
            NexusError::new(Code::Unavailable, message)
        }
        Fault::Failed(receipt) | Fault::LimitReached(receipt, _) => of_receipt(receipt)
            .unwrap_or_else(|| NexusError::new(Code::InternalError, sentence::of_failure(&receipt.outcome))),
        Fault::Busy { message, retry_after_ms } => {
            NexusError::new(Code::Unavailable, message).with("retryAfterMs", *retry_after_ms)
        }
        Fault::ReceiptPending { intent, retry_after_ms } => {
            NexusError::new(Code::Unavailable, RECEIPT_PENDING)
                .with("intentId", intent.to_string())
                .with("ran", true)
                .with("retryAfterMs", *retry_after_ms)
        }
        Fault::Internal(_) => NexusError::new(Code::InternalError, "internal error of the executor"),
    }
}

/// How the core answers a command to run a tool: it speaks of an intent, which is the command's parameters here.
#[must_use]
pub fn of_execution(fault: &Fault) -> NexusError {
    match fault {
        Fault::InvalidParams { message, pointer } if pointer == "/tool" => {
            NexusError::new(Code::NotFound, message).with("pointer", "/payload/parameters/tool")
        }
        Fault::InvalidParams { message, pointer } => NexusError::new(Code::ValidationError, message)
            .with("pointer", format!("/payload/parameters{pointer}")),
        Fault::InvalidRequest(message) => {
            NexusError::new(Code::ValidationError, message).with("pointer", "/id")
        }
        Fault::Parse(_)
        | Fault::MethodNotFound(_)
        | Fault::ToolUnavailable { .. }
        | Fault::Refused { .. }
        | Fault::RegistrationFailed(_)
        | Fault::SessionExpired(_)
        | Fault::Failed(_)
        | Fault::LimitReached(..)
        | Fault::ReceiptPending { .. }
        | Fault::Busy { .. }
        | Fault::Internal(_) => of(fault),
    }
}

fn refused(blocked_by: BlockedBy) -> Code {
    match blocked_by {
        BlockedBy::GovernorUnavailable => Code::NetworkError,
        BlockedBy::VerdictDenied
        | BlockedBy::VerdictExpired
        | BlockedBy::VerdictMismatch
        | BlockedBy::VerdictUntrusted
        | BlockedBy::VerdictReplayed
        | BlockedBy::CallerUnauthorized
        | BlockedBy::IntentUntrusted
        | BlockedBy::IntentReplayed
        | BlockedBy::ConditionUnknown
        | BlockedBy::EscalationPending
        | BlockedBy::ScopeUnenforceable
        | BlockedBy::StandingPolicy => Code::Unauthorized,
    }
}

/// What became of a run that did not succeed; `None` for one that did.
#[must_use]
pub fn of_receipt(receipt: &Receipt) -> Option<NexusError> {
    let said = sentence::of_failure(&receipt.outcome);
    Some(match &receipt.outcome.end {
        End::Returned(_) => return None,
        End::ToolError { code, message, detail } => {
            let failure = NexusError::new(Code::ExecutionFailed, message).with("toolCode", code.as_str());
            match detail {
                Some(detail) => failure.with("detail", detail.clone()),
                None => failure,
            }
        }
        End::Exited { code, stderr_tail: _ } => {
            NexusError::new(Code::ExecutionFailed, said).with("exitCode", *code)
        }
        End::Unlinkable(_) => NexusError::new(Code::Unavailable, said),
        End::LimitReached(limit) => {
            let code = if *limit == Limit::Time { Code::Timeout } else { Code::ExecutionFailed };
            NexusError::new(code, said).with("limit", limit.as_str())
        }
        End::ResultNotJson | End::Trapped(_) | End::Crashed(_) | End::Aborted(_) => {
            NexusError::new(Code::ExecutionFailed, said)
        }
    })
}
