//! The error codes of this door: the document's `A2AError`.
//!
//! The codes have a meaning only at this door, so no other door may use this table.

use a2g_types::failure_message;
use a2g_types::fault::{BlockedBy, Fault, RECEIPT_PENDING, RefusalClass};
use a2g_types::limit::Limit;
use a2g_types::outcome::{End, Receipt};
use serde_json::{Map, Value, json};

/// An error code of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NexusCode {
    /// The token is not valid.
    AuthFailed,
    /// The caller is authenticated, but not permitted.
    Unauthorized,
    /// The tool, action or resource does not exist.
    NotFound,
    /// Not a message of this protocol.
    InvalidMessage,
    /// The message or its payload is not authenticated.
    SignatureInvalid,
    /// A member violates its schema.
    ValidationError,
    /// The run exceeded its timeout.
    Timeout,
    /// The executor or the tool is temporarily unavailable.
    Unavailable,
    /// The agent exceeds its rate of messages.
    RateLimited,
    /// The executor failed internally.
    InternalError,
    /// The governor is unreachable.
    NetworkError,
    /// The tool ran and failed.
    ExecutionFailed,
}

impl NexusCode {
    /// All codes.
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

    /// The name on the wire.
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

    /// Returns `true` when the same request may succeed later.
    #[must_use]
    pub fn is_retryable(self) -> bool {
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

/// An error of this door, before its encoding.
#[derive(Debug, Clone, PartialEq)]
pub struct NexusError {
    /// The error code.
    pub code: NexusCode,
    /// The tool's own message, verbatim, or a sentence by the executor.
    pub message: String,
    /// The members of `details`.
    pub details: Map<String, Value>,
}

impl NexusError {
    /// An error without details.
    #[must_use]
    pub fn new(code: NexusCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Map::new() }
    }

    /// Adds one member to `details`.
    #[must_use]
    pub fn with_detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// The JSON form, always without a stack trace.
    pub(super) fn to_json(&self, timestamp_ms: u64) -> Value {
        let Self { code, message, details } = self;
        let mut object = json!({ "code": code.as_str(), "message": message });
        if let Some(object) = object.as_object_mut() {
            if !details.is_empty() {
                object.insert("details".to_owned(), details.clone().into());
            }
            object.insert("retryable".to_owned(), code.is_retryable().into());
            object.insert("timestamp".to_owned(), timestamp_ms.into());
        }
        object
    }
}

/// The error for a fault. The detail of [`Fault::Internal`] is only logged.
#[must_use]
pub fn to_error(fault: &Fault) -> NexusError {
    match fault {
        Fault::Parse(message) | Fault::InvalidRequest(message) => {
            NexusError::new(NexusCode::InvalidMessage, message)
        }
        Fault::MethodNotFound(message) => NexusError::new(NexusCode::NotFound, message),
        Fault::InvalidParams { message, pointer } => {
            NexusError::new(NexusCode::ValidationError, message).with_detail("pointer", pointer.as_str())
        }
        Fault::ToolUnavailable { tool, message } => {
            NexusError::new(NexusCode::Unavailable, message).with_detail("tool", tool.as_str())
        }
        Fault::Refused { intent, risk_score, blocked_by, message } => {
            let mut failure = NexusError::new(refusal_code(*blocked_by), message)
                .with_detail("blockedBy", blocked_by.as_str());
            if let Some(intent) = intent {
                failure = failure.with_detail("intentId", intent.to_string());
            }
            match risk_score {
                Some(score) => failure.with_detail("riskScore", *score),
                None => failure,
            }
        }
        Fault::RegistrationFailed(message) | Fault::SessionExpired(message) => {
            NexusError::new(NexusCode::Unavailable, message)
        }
        Fault::Failed(receipt) | Fault::LimitReached(receipt, _) => {
            receipt_error(receipt).unwrap_or_else(|| {
                NexusError::new(NexusCode::InternalError, failure_message::describe_failure(&receipt.outcome))
            })
        }
        Fault::Busy { message, retry_after_ms } => {
            NexusError::new(NexusCode::Unavailable, message).with_detail("retryAfterMs", *retry_after_ms)
        }
        Fault::ReceiptPending { intent, retry_after_ms } => {
            NexusError::new(NexusCode::Unavailable, RECEIPT_PENDING)
                .with_detail("intentId", intent.to_string())
                .with_detail("ran", true)
                .with_detail("retryAfterMs", *retry_after_ms)
        }
        Fault::Internal(_) => NexusError::new(NexusCode::InternalError, "internal error of the executor"),
    }
}

/// The error for a fault of `tool.execute`. The core's pointers are relative to the call, which is the
/// command's `parameters` here.
#[must_use]
pub fn execution_error(fault: &Fault) -> NexusError {
    match fault {
        Fault::InvalidParams { message, pointer } if pointer == "/tool" => {
            NexusError::new(NexusCode::NotFound, message).with_detail("pointer", "/payload/parameters/tool")
        }
        Fault::InvalidParams { message, pointer } => NexusError::new(NexusCode::ValidationError, message)
            .with_detail("pointer", format!("/payload/parameters{pointer}")),
        Fault::InvalidRequest(message) => {
            NexusError::new(NexusCode::ValidationError, message).with_detail("pointer", "/id")
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
        | Fault::Internal(_) => to_error(fault),
    }
}

fn refusal_code(blocked_by: BlockedBy) -> NexusCode {
    match blocked_by.class() {
        RefusalClass::Unavailable => NexusCode::NetworkError,
        RefusalClass::Unauthorized | RefusalClass::Pending | RefusalClass::Denied => NexusCode::Unauthorized,
    }
}

/// The error for a failed run; `None` for a successful one.
#[must_use]
pub fn receipt_error(receipt: &Receipt) -> Option<NexusError> {
    let message = failure_message::describe_failure(&receipt.outcome);
    Some(match &receipt.outcome.end {
        End::Returned(_) => return None,
        End::ToolError { code, message, detail } => {
            let failure =
                NexusError::new(NexusCode::ExecutionFailed, message).with_detail("toolCode", code.as_str());
            match detail {
                Some(detail) => failure.with_detail("detail", detail.clone()),
                None => failure,
            }
        }
        End::Exited { code, stderr_tail: _ } => {
            NexusError::new(NexusCode::ExecutionFailed, message).with_detail("exitCode", *code)
        }
        End::NotStarted(_) => NexusError::new(NexusCode::Unavailable, message),
        End::LimitReached(limit) => {
            let code = if *limit == Limit::Time { NexusCode::Timeout } else { NexusCode::ExecutionFailed };
            NexusError::new(code, message).with_detail("limit", limit.as_str())
        }
        End::ResultNotJson
        | End::ResultInvalid { .. }
        | End::Trapped(_)
        | End::Crashed(_)
        | End::Aborted(_) => NexusError::new(NexusCode::ExecutionFailed, message),
    })
}
