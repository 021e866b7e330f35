//! The error codes of this door: the document's `A2AError`.
//!
//! The codes have a meaning only at this door, so no other door may use this table.

use crate::fault_parts::{self, Detail, DetailNames, FaultClass};
use a2g_types::failure_message;
use a2g_types::fault::{Fault, RefusalClass};
use a2g_types::limit::Limit;
use a2g_types::outcome::{End, Receipt};
use serde_json::{Map, Value, json};
use strum::{IntoStaticStr, VariantArray};

/// An error code of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
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
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
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

/// The details of this door's errors.
const DETAILS: &DetailNames = &[
    (Detail::Pointer, "pointer"),
    (Detail::Tool, "tool"),
    (Detail::BlockedBy, "blockedBy"),
    (Detail::Intent, "intentId"),
    (Detail::RiskScore, "riskScore"),
    (Detail::Ran, "ran"),
    (Detail::RetryAfter, "retryAfterMs"),
];

fn code(class: FaultClass) -> NexusCode {
    match class {
        FaultClass::Parse | FaultClass::InvalidRequest => NexusCode::InvalidMessage,
        FaultClass::MethodNotFound => NexusCode::NotFound,
        FaultClass::InvalidParams => NexusCode::ValidationError,
        FaultClass::Refused(RefusalClass::Unavailable) => NexusCode::NetworkError,
        FaultClass::Refused(RefusalClass::Unauthorized | RefusalClass::Pending | RefusalClass::Denied) => {
            NexusCode::Unauthorized
        }
        FaultClass::ToolUnavailable
        | FaultClass::RegistrationFailed
        | FaultClass::SessionExpired
        | FaultClass::Busy
        | FaultClass::ReceiptPending => NexusCode::Unavailable,
        FaultClass::Failed | FaultClass::LimitReached | FaultClass::Internal => NexusCode::InternalError,
    }
}

/// The error for a fault. The detail of [`Fault::Internal`] is only logged.
#[must_use]
pub fn to_error(fault: &Fault) -> NexusError {
    if let Fault::Failed(receipt) | Fault::LimitReached(receipt, _) = fault
        && let Some(failure) = receipt_error(receipt)
    {
        return failure;
    }
    NexusError {
        code: code(FaultClass::of(fault)),
        message: fault.sentence().into_owned(),
        details: fault_parts::details(fault, DETAILS),
    }
}

/// The error for a fault of `tool.execute`. The core's pointers are relative to the call, which is the
/// command's `parameters` here.
#[must_use]
pub fn execution_error(fault: &Fault) -> NexusError {
    let mut failure = to_error(fault);
    if let Fault::InvalidParams { pointer, .. } = fault {
        if pointer == "/tool" {
            failure.code = NexusCode::NotFound;
        }
        failure = failure.with_detail("pointer", format!("/payload/parameters{pointer}"));
    }
    if let Fault::InvalidRequest(_) = fault {
        failure.code = NexusCode::ValidationError;
        failure = failure.with_detail("pointer", "/id");
    }
    failure
}

/// The error for a failed run; `None` for a successful one.
#[must_use]
pub fn receipt_error(receipt: &Receipt) -> Option<NexusError> {
    let message = failure_message::describe_failure(&receipt.outcome);
    Some(match &receipt.outcome.end {
        End::Returned(_) | End::Staged(_) => return None,
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
        | End::NotCommitted(_)
        | End::LeftToOperator(_)
        | End::Aborted(_) => NexusError::new(NexusCode::ExecutionFailed, message),
    })
}
