//! The error codes of this door: the protocol's core codes and those of its tools.

use super::TOOLS;
use crate::fault_parts::{self, Detail, DetailNames, FaultClass};
use a2g_types::failure_message;
use a2g_types::fault::{BlockedBy, Fault, RefusalClass};
use a2g_types::ident::{IntentId, did_you_mean, excerpt};
use a2g_types::limit::Limit;
use a2g_types::outcome::{AbortReason, End, Receipt};
use serde_json::{Map, Value};
use strum::IntoStaticStr;

/// An error code of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
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
        self.into()
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
        let detail = Map::new();
        let retryable = code.is_retryable();
        Self { code, message: message.into(), detail, retryable, capability: "" }
    }

    /// The same error, attributed to a capability.
    #[must_use]
    pub fn for_capability(self, capability: &'static str) -> Self {
        Self { capability, ..self }
    }
}

/// The details of this door's errors.
const DETAILS: &DetailNames = &[
    (Detail::Pointer, "pointer"),
    (Detail::Tool, "tool_name"),
    (Detail::BlockedBy, "blocked_by"),
    (Detail::Intent, "intent_id"),
    (Detail::RiskScore, "risk_score"),
    (Detail::Ran, "ran"),
    (Detail::RetryAfter, "retry_after_ms"),
];

/// The code of a class, and the capability that it concerns.
fn code(class: FaultClass) -> (A2eCode, &'static str) {
    match class {
        FaultClass::Parse => (A2eCode::ParseError, ""),
        FaultClass::InvalidRequest | FaultClass::MethodNotFound => (A2eCode::InvalidMessage, ""),
        FaultClass::InvalidParams => (A2eCode::SchemaViolation, ""),
        FaultClass::RegistrationFailed
        | FaultClass::SessionExpired
        | FaultClass::Busy
        | FaultClass::Internal => (A2eCode::RuntimeError, ""),
        FaultClass::ToolUnavailable | FaultClass::Failed | FaultClass::LimitReached => {
            (A2eCode::ToolError, TOOLS)
        }
        FaultClass::ReceiptPending | FaultClass::Refused(RefusalClass::Unavailable) => {
            (A2eCode::RuntimeError, TOOLS)
        }
        FaultClass::Refused(RefusalClass::Unauthorized) => (A2eCode::Unauthorized, TOOLS),
        FaultClass::Refused(RefusalClass::Pending | RefusalClass::Denied) => (A2eCode::ToolDenied, TOOLS),
    }
}

/// The error for a fault. The detail of [`Fault::Internal`] is only logged.
#[must_use]
pub fn to_error(fault: &Fault) -> A2eError {
    let class = FaultClass::of(fault);
    let (code, capability) = code(class);
    let mut failure = A2eError::new(code, fault.sentence()).for_capability(capability);
    failure.detail = fault_parts::details(fault, DETAILS);
    // The same call is answered with its result once a person has allowed it.
    failure.retryable |= class == FaultClass::Refused(RefusalClass::Pending);
    let (Fault::Failed(receipt) | Fault::LimitReached(receipt, _)) = fault else { return failure };
    if let Some((code, message)) = receipt_error(receipt) {
        failure = A2eError::new(code, message).for_capability(capability);
    }
    failure.detail.insert("intent_id".to_owned(), receipt.intent.to_string().into());
    failure
}

/// The error for an escalated intent. The same call can be sent again once a person has decided.
#[must_use]
pub fn escalation_error(intent: IntentId, risk_score: Option<f64>) -> A2eError {
    let message = "a person has to decide: the tool runs once an approver allows it; send the same call again to get \
                   its result";
    to_error(&Fault::Refused {
        intent: Some(intent),
        risk_score,
        blocked_by: BlockedBy::EscalationPending,
        message: message.to_owned(),
    })
}

/// The error for a tool that is not among the catalogue's `known` names.
#[must_use]
pub fn unknown_tool_error<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> A2eError {
    let shown = excerpt(name);
    let nearest = did_you_mean(name, known);
    let message = format!("there is no tool `{shown}`{nearest}: `tool/list/req` lists the tools");
    A2eError::new(A2eCode::UnknownTool, message).for_capability(TOOLS)
}

/// The code and the sentence for a failed run; `None` for a successful one.
#[must_use]
pub fn receipt_error(receipt: &Receipt) -> Option<(A2eCode, String)> {
    let outcome = &receipt.outcome;
    let message = || failure_message::describe_failure(outcome);
    Some(match &outcome.end {
        End::Returned(_) | End::Staged(_) => return None,
        End::ToolError { .. }
        | End::Exited { .. }
        | End::ResultNotJson
        | End::ResultInvalid { .. }
        | End::NotStarted(_)
        | End::NotCommitted(_)
        | End::LeftToOperator(_) => (A2eCode::ToolError, message()),
        End::Trapped(_) | End::Crashed(_) => (A2eCode::SandboxCrash, message()),
        End::LimitReached(limit) if *limit == Limit::Time => (A2eCode::Timeout, message()),
        End::LimitReached(limit) if *limit == Limit::Memory => (A2eCode::OutOfMemory, message()),
        End::LimitReached(_) => (A2eCode::ToolError, message()),
        End::Aborted(AbortReason::Revoked | AbortReason::Stopped) => (A2eCode::ToolDenied, message()),
        // The shared sentence names `a2g/cancel`, which this door does not have.
        End::Aborted(AbortReason::Cancelled) => (A2eCode::RuntimeError, "the call was cancelled".to_owned()),
        End::Aborted(
            AbortReason::Shutdown | AbortReason::Lost | AbortReason::LeaseLost | AbortReason::ParentEnded,
        ) => (A2eCode::RuntimeError, message()),
    })
}
