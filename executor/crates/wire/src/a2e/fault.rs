//! The error codes of this door: the protocol's core codes and those of its tools.

use super::TOOLS;
use a2g_types::failure_message;
use a2g_types::fault::{BlockedBy, Fault, RECEIPT_PENDING, RefusalClass};
use a2g_types::ident::{IntentId, did_you_mean, excerpt};
use a2g_types::limit::Limit;
use a2g_types::outcome::{AbortReason, End, Receipt};
use serde_json::{Map, Value};

/// An error code of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum A2eCode {
    /// The line is not valid JSON.
    ParseError,
    /// The executor failed or is busy; a retry may succeed.
    RuntimeError,
    /// The frame or the type is not valid, or the message contradicts an earlier one.
    InvalidMessage,
    /// The message has another version of the protocol.
    VersionMismatch,
    /// The caller is unknown or not permitted.
    Unauthorized,
    /// A member of a message or an argument of a tool violates its schema.
    SchemaViolation,
    /// The run exceeded its timeout.
    Timeout,
    /// The run exceeded its memory limit.
    OutOfMemory,
    /// The guest trapped, or its process crashed.
    SandboxCrash,
    /// The catalogue has no such tool.
    UnknownTool,
    /// The governor, a person or a policy denied the call.
    ToolDenied,
    /// The tool failed.
    ToolError,
    /// The capability was not negotiated in the handshake.
    CapabilityMissing,
}

impl A2eCode {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ParseError => "parse_error",
            Self::RuntimeError => "runtime_error",
            Self::InvalidMessage => "invalid_message",
            Self::VersionMismatch => "version_mismatch",
            Self::Unauthorized => "unauthorized",
            Self::SchemaViolation => "schema_violation",
            Self::Timeout => "timeout",
            Self::OutOfMemory => "out_of_memory",
            Self::SandboxCrash => "sandbox_crash",
            Self::UnknownTool => "unknown_tool",
            Self::ToolDenied => "tool_denied",
            Self::ToolError => "tool_error",
            Self::CapabilityMissing => "capability_missing",
        }
    }

    /// `true` when the same request may succeed later.
    fn is_retryable(self) -> bool {
        match self {
            Self::RuntimeError | Self::Timeout | Self::OutOfMemory | Self::SandboxCrash => true,
            Self::ParseError
            | Self::InvalidMessage
            | Self::VersionMismatch
            | Self::Unauthorized
            | Self::SchemaViolation
            | Self::UnknownTool
            | Self::ToolDenied
            | Self::ToolError
            | Self::CapabilityMissing => false,
        }
    }
}

/// An error message of this door, before its encoding.
#[derive(Debug, Clone, PartialEq)]
pub struct A2eError {
    /// The error code.
    pub code: A2eCode,
    /// One sentence by the executor.
    pub message: String,
    /// The members of `detail`.
    pub detail: Map<String, Value>,
    /// `true` when the same request may succeed later.
    pub retryable: bool,
    /// The capability that the error concerns; empty if none.
    pub capability: &'static str,
}

impl A2eError {
    /// An error without details, retryable if its code is.
    pub fn new(code: A2eCode, message: impl Into<String>) -> Self {
        let (detail, retryable) = (Map::new(), code.is_retryable());
        Self { code, message: message.into(), detail, retryable, capability: "" }
    }

    fn with_detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.detail.insert(key.to_owned(), value.into());
        self
    }

    /// The same error, attributed to a capability.
    #[must_use]
    pub fn for_capability(self, capability: &'static str) -> Self {
        Self { capability, ..self }
    }
}

/// The error for a fault. The detail of [`Fault::Internal`] is only logged.
#[must_use]
pub fn to_error(fault: &Fault) -> A2eError {
    match fault {
        Fault::Parse(message) => A2eError::new(A2eCode::ParseError, message),
        Fault::InvalidRequest(message) | Fault::MethodNotFound(message) => {
            A2eError::new(A2eCode::InvalidMessage, message)
        }
        Fault::InvalidParams { message, pointer } => {
            A2eError::new(A2eCode::SchemaViolation, message).with_detail("pointer", pointer.as_str())
        }
        Fault::ToolUnavailable { tool, message } => A2eError::new(A2eCode::ToolError, message)
            .with_detail("tool_name", tool.as_str())
            .for_capability(TOOLS),
        Fault::Refused { intent, risk_score, blocked_by, message } => {
            refusal_error(*intent, *risk_score, *blocked_by, message)
        }
        Fault::RegistrationFailed(message) | Fault::SessionExpired(message) => {
            A2eError::new(A2eCode::RuntimeError, message)
        }
        Fault::Failed(receipt) | Fault::LimitReached(receipt, _) => {
            let (code, message) = receipt_error(receipt)
                .unwrap_or_else(|| (A2eCode::ToolError, failure_message::describe_failure(&receipt.outcome)));
            A2eError::new(code, message)
                .with_detail("intent_id", receipt.intent.to_string())
                .for_capability(TOOLS)
        }
        Fault::Busy { message, retry_after_ms } => {
            A2eError::new(A2eCode::RuntimeError, message).with_detail("retry_after_ms", *retry_after_ms)
        }
        Fault::ReceiptPending { intent, retry_after_ms } => {
            A2eError::new(A2eCode::RuntimeError, RECEIPT_PENDING)
                .with_detail("intent_id", intent.to_string())
                .with_detail("ran", true)
                .with_detail("retry_after_ms", *retry_after_ms)
                .for_capability(TOOLS)
        }
        Fault::Internal(_) => A2eError::new(A2eCode::RuntimeError, "internal error of the executor"),
    }
}

/// The error for an escalated intent. The same call can be sent again once a person has decided.
#[must_use]
pub fn escalation_error(intent: IntentId, risk_score: Option<f64>) -> A2eError {
    let message = "a person has to decide: the tool runs once an approver allows it; send the same call again to get \
                   its result";
    refusal_error(Some(intent), risk_score, BlockedBy::EscalationPending, message)
}

/// The error for a tool that is not among the catalogue's `known` names.
#[must_use]
pub fn unknown_tool_error<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> A2eError {
    let (shown, nearest) = (excerpt(name), did_you_mean(name, known));
    let message = format!("there is no tool `{shown}`{nearest}: `tool/list/req` lists the tools");
    A2eError::new(A2eCode::UnknownTool, message).for_capability(TOOLS)
}

fn refusal_error(
    intent: Option<IntentId>,
    risk_score: Option<f64>,
    blocked_by: BlockedBy,
    message: &str,
) -> A2eError {
    let (code, retryable) = match blocked_by.class() {
        RefusalClass::Unavailable => (A2eCode::RuntimeError, true),
        RefusalClass::Unauthorized => (A2eCode::Unauthorized, false),
        RefusalClass::Pending => (A2eCode::ToolDenied, true),
        RefusalClass::Denied => (A2eCode::ToolDenied, false),
    };
    let mut failure =
        A2eError::new(code, message).with_detail("blocked_by", blocked_by.as_str()).for_capability(TOOLS);
    failure.retryable = retryable;
    if let Some(intent) = intent {
        failure = failure.with_detail("intent_id", intent.to_string());
    }
    match risk_score {
        Some(score) => failure.with_detail("risk_score", score),
        None => failure,
    }
}

/// The code and the sentence for a failed run; `None` for a successful one.
#[must_use]
pub fn receipt_error(receipt: &Receipt) -> Option<(A2eCode, String)> {
    let outcome = &receipt.outcome;
    let message = || failure_message::describe_failure(outcome);
    Some(match &outcome.end {
        End::Returned(_) => return None,
        End::ToolError { .. }
        | End::Exited { .. }
        | End::ResultNotJson
        | End::ResultInvalid { .. }
        | End::NotStarted(_) => (A2eCode::ToolError, message()),
        End::Trapped(_) | End::Crashed(_) => (A2eCode::SandboxCrash, message()),
        End::LimitReached(Limit::Time) => (A2eCode::Timeout, message()),
        End::LimitReached(Limit::Memory) => (A2eCode::OutOfMemory, message()),
        End::LimitReached(
            Limit::Output
            | Limit::Stack
            | Limit::Handles
            | Limit::Written
            | Limit::Created
            | Limit::DirectoryEntries
            | Limit::RandomBytes
            | Limit::Subscriptions
            | Limit::Fuel,
        ) => (A2eCode::ToolError, message()),
        End::Aborted(AbortReason::Revoked | AbortReason::Stopped) => (A2eCode::ToolDenied, message()),
        // The shared sentence names `a2g/cancel`, which this door does not have.
        End::Aborted(AbortReason::Cancelled) => (A2eCode::RuntimeError, "the call was cancelled".to_owned()),
        End::Aborted(
            AbortReason::Shutdown | AbortReason::Lost | AbortReason::LeaseLost | AbortReason::ParentEnded,
        ) => (A2eCode::RuntimeError, message()),
    })
}
