//! This door's table of error codes: the core ones of the protocol, and those of its tools.

use super::TOOLS;
use crate::fault::{BlockedBy, Fault, RECEIPT_PENDING};
use crate::ident::{IntentId, did_you_mean, excerpt};
use crate::limit::Limit;
use crate::outcome::{AbortReason, End, Receipt};
use crate::wire::sentence;
use serde_json::{Map, Value};

/// The words of this door for what went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// A line is not JSON as this door reads it.
    ParseError,
    /// The executor could not do it, and may later.
    RuntimeError,
    /// A message whose frame is none, whose type is none, or that contradicts an earlier one.
    InvalidMessage,
    /// Another version of the protocol.
    VersionMismatch,
    /// Nobody is known who may ask for this.
    Unauthorized,
    /// A member of a message, or an argument of a tool, that breaks its description.
    SchemaViolation,
    /// The run took longer than it could.
    Timeout,
    /// The run needed more memory than it could have.
    OutOfMemory,
    /// The guest trapped, or its process ended early.
    SandboxCrash,
    /// There is no such tool.
    UnknownTool,
    /// The governor, a person or a policy does not allow it.
    ToolDenied,
    /// The tool failed.
    ToolError,
    /// The capability was not negotiated.
    CapabilityMissing,
}

impl Code {
    /// The word on the wire.
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

    /// Whether the same request may succeed another time.
    fn retryable(self) -> bool {
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

/// An error of this door.
#[derive(Debug, Clone, PartialEq)]
pub struct A2eError {
    /// The code.
    pub code: Code,
    /// A sentence of the executor's.
    pub message: String,
    /// What else is known.
    pub detail: Map<String, Value>,
    /// Whether the same request may succeed another time.
    pub retryable: bool,
    /// The capability that it is about, or nothing.
    pub capability: &'static str,
}

impl A2eError {
    /// One of a code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let (detail, retryable) = (Map::new(), code.retryable());
        Self { code, message: message.into(), detail, retryable, capability: "" }
    }

    fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.detail.insert(key.to_owned(), value.into());
        self
    }

    /// The same about a capability.
    #[must_use]
    pub fn of(self, capability: &'static str) -> Self {
        Self { capability, ..self }
    }
}

/// How this door answers a fault. [`Fault::Internal`] keeps its detail, which is for the log.
#[must_use]
pub fn of(fault: &Fault) -> A2eError {
    match fault {
        Fault::Parse(message) => A2eError::new(Code::ParseError, message),
        Fault::InvalidRequest(message) | Fault::MethodNotFound(message) => {
            A2eError::new(Code::InvalidMessage, message)
        }
        Fault::InvalidParams { message, pointer } => {
            A2eError::new(Code::SchemaViolation, message).with("pointer", pointer.as_str())
        }
        Fault::ToolUnavailable { tool, message } => {
            A2eError::new(Code::ToolError, message).with("tool_name", tool.as_str()).of(TOOLS)
        }
        Fault::Refused { intent, risk_score, blocked_by, message } => {
            refused(*intent, *risk_score, *blocked_by, message)
        }
        Fault::RegistrationFailed(message) | Fault::SessionExpired(message) => {
            A2eError::new(Code::RuntimeError, message)
        }
        Fault::Failed(receipt) | Fault::LimitReached(receipt, _) => {
            let (code, message) = of_receipt(receipt)
                .unwrap_or_else(|| (Code::ToolError, sentence::of_failure(&receipt.outcome)));
            A2eError::new(code, message).with("intent_id", receipt.intent.to_string()).of(TOOLS)
        }
        Fault::Busy { message, retry_after_ms } => {
            A2eError::new(Code::RuntimeError, message).with("retry_after_ms", *retry_after_ms)
        }
        Fault::ReceiptPending { intent, retry_after_ms } => {
            A2eError::new(Code::RuntimeError, RECEIPT_PENDING)
                .with("intent_id", intent.to_string())
                .with("ran", true)
                .with("retry_after_ms", *retry_after_ms)
                .of(TOOLS)
        }
        Fault::Internal(_) => A2eError::new(Code::RuntimeError, "internal error of the executor"),
    }
}

/// An intent that waits for a person. The same call can be sent again once one has decided.
#[must_use]
pub fn escalated(intent: IntentId, risk_score: Option<f64>) -> A2eError {
    let message = "a person has to decide: the tool runs when an approver allows it, and the same call, sent again, \
                   then gets its result";
    refused(Some(intent), risk_score, BlockedBy::EscalationPending, message)
}

/// A tool that is not in the catalogue of the tools `known`.
#[must_use]
pub fn unknown_tool<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> A2eError {
    let (shown, nearest) = (excerpt(name), did_you_mean(name, known));
    let message = format!("there is no tool `{shown}`{nearest}: `tool/list/req` lists what there is");
    A2eError::new(Code::UnknownTool, message).of(TOOLS)
}

fn refused(
    intent: Option<IntentId>,
    risk_score: Option<f64>,
    blocked_by: BlockedBy,
    message: &str,
) -> A2eError {
    let (code, retryable) = match blocked_by {
        BlockedBy::GovernorUnavailable => (Code::RuntimeError, true),
        BlockedBy::CallerUnauthorized => (Code::Unauthorized, false),
        BlockedBy::EscalationPending => (Code::ToolDenied, true),
        BlockedBy::VerdictDenied
        | BlockedBy::VerdictExpired
        | BlockedBy::VerdictMismatch
        | BlockedBy::VerdictUntrusted
        | BlockedBy::VerdictReplayed
        | BlockedBy::IntentUntrusted
        | BlockedBy::IntentReplayed
        | BlockedBy::ConditionUnknown
        | BlockedBy::ScopeUnenforceable
        | BlockedBy::StandingPolicy => (Code::ToolDenied, false),
    };
    let mut failure = A2eError::new(code, message).with("blocked_by", blocked_by.as_str()).of(TOOLS);
    failure.retryable = retryable;
    if let Some(intent) = intent {
        failure = failure.with("intent_id", intent.to_string());
    }
    match risk_score {
        Some(score) => failure.with("risk_score", score),
        None => failure,
    }
}

/// What became of a run that did not succeed, in a code and a sentence; `None` for one that did.
#[must_use]
pub fn of_receipt(receipt: &Receipt) -> Option<(Code, String)> {
    let outcome = &receipt.outcome;
    let said = || sentence::of_failure(outcome);
    Some(match &outcome.end {
        End::Returned(_) => return None,
        End::ToolError { .. } | End::Exited { .. } | End::ResultNotJson | End::Unlinkable(_) => {
            (Code::ToolError, said())
        }
        End::Trapped(_) | End::Crashed(_) => (Code::SandboxCrash, said()),
        End::LimitReached(Limit::Time) => (Code::Timeout, said()),
        End::LimitReached(Limit::Memory) => (Code::OutOfMemory, said()),
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
        ) => (Code::ToolError, said()),
        End::Aborted(AbortReason::Revoked) => (Code::ToolDenied, said()),
        // The shared sentence names a method of another door.
        End::Aborted(AbortReason::Cancelled) => (Code::RuntimeError, "the call was cancelled".to_owned()),
        End::Aborted(AbortReason::Shutdown | AbortReason::Lost) => (Code::RuntimeError, said()),
    })
}
