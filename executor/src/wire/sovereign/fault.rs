//! This door's table of error codes: the library's `A2AErrorCodes`.
//!
//! The numbers mean other things at other doors, so no other door may use this table.

use super::skills::Missing;
use crate::fault::{BlockedBy, Fault, RECEIPT_PENDING};
use crate::ident::IntentId;
use crate::limit::Limit;
use crate::outcome::{End, Receipt};
use crate::wire::sentence;
use serde_json::{Map, Value, json};

/// An error of this door.
#[derive(Debug, Clone, PartialEq)]
pub struct SovereignError {
    /// The code.
    pub code: i64,
    /// A tool's own words as they are, or a sentence of the executor's.
    pub message: String,
    /// A word for programs.
    pub status_code: String,
    /// What else is known.
    pub data: Map<String, Value>,
}

impl SovereignError {
    fn new(code: i64, status_code: &str, message: &str) -> Self {
        let (message, status_code) = (message.to_owned(), status_code.to_owned());
        Self { code, message, status_code, data: Map::new() }
    }

    /// With one more thing that is known.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.data.insert(key.to_owned(), value.into());
        self
    }
}

/// How this door answers a fault. [`Fault::Internal`] keeps its detail, which is for the log.
#[must_use]
pub fn of(fault: &Fault) -> SovereignError {
    match fault {
        Fault::Parse(message) => SovereignError::new(-32700, "PARSE_ERROR", message),
        Fault::InvalidRequest(message) => SovereignError::new(-32600, "INVALID_REQUEST", message),
        Fault::MethodNotFound(message) => SovereignError::new(-32601, "METHOD_NOT_FOUND", message),
        Fault::InvalidParams { message, pointer } => {
            // The core speaks of a tool's arguments, which are the payload here.
            let pointer = match pointer.strip_prefix("/arguments") {
                Some(rest) => format!("/params/payload{rest}"),
                None => pointer.clone(),
            };
            SovereignError::new(-32602, "INVALID_PARAMS", message).with("pointer", pointer)
        }
        Fault::ToolUnavailable { tool: _, message } => {
            SovereignError::new(-32003, "ADAPTER_UNAVAILABLE", message)
        }
        Fault::Refused { intent, risk_score, blocked_by, message } => {
            refused(*intent, *risk_score, *blocked_by, message)
        }
        Fault::RegistrationFailed(message) | Fault::SessionExpired(message) => {
            SovereignError::new(-32000, "SERVER_ERROR", message)
        }
        Fault::Failed(receipt) | Fault::LimitReached(receipt, _) => {
            of_receipt(receipt).unwrap_or_else(|| {
                SovereignError::new(-32000, "SERVER_ERROR", &sentence::of_failure(&receipt.outcome))
            })
        }
        Fault::Busy { message, retry_after_ms } => {
            SovereignError::new(-32000, "BUSY", message).with("retry_after_ms", *retry_after_ms)
        }
        Fault::ReceiptPending { intent, retry_after_ms } => {
            SovereignError::new(-32000, "RECEIPT_PENDING", RECEIPT_PENDING)
                .with("intent_id", intent.to_string())
                .with("ran", true)
                .with("retry_after_ms", *retry_after_ms)
        }
        Fault::Internal(_) => SovereignError::new(-32000, "SERVER_ERROR", "internal error of the executor"),
    }
}

/// An intent that waits for a person.
#[must_use]
pub fn escalated(intent: IntentId, risk_score: Option<f64>) -> SovereignError {
    let message = "a person has to decide: the intent runs when an approver allows it";
    refused(Some(intent), risk_score, BlockedBy::EscalationPending, message)
}

/// What is not in the catalogue.
#[must_use]
pub fn missing(missing: Missing) -> SovereignError {
    match missing {
        Missing::Skill(message) => SovereignError::new(-32002, "SKILL_NOT_LOADED", &message),
        Missing::Operation(message, available) => {
            SovereignError::new(-32601, "METHOD_NOT_FOUND", &message).with("available", available)
        }
    }
}

fn refused(
    intent: Option<IntentId>,
    risk_score: Option<f64>,
    blocked_by: BlockedBy,
    message: &str,
) -> SovereignError {
    let code = match blocked_by {
        BlockedBy::GovernorUnavailable => -32003,
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
        | BlockedBy::StandingPolicy => -32000,
    };
    let mut failure = SovereignError::new(code, &blocked_by.as_str().to_ascii_uppercase(), message);
    if let Some(intent) = intent {
        failure = failure.with("intent_id", intent.to_string());
    }
    match risk_score {
        Some(score) => failure.with("risk_score", score),
        None => failure,
    }
}

/// What became of a run that did not succeed; `None` for one that did.
#[must_use]
pub fn of_receipt(receipt: &Receipt) -> Option<SovereignError> {
    let status = receipt.outcome.end.status().as_str();
    let said = sentence::of_failure(&receipt.outcome);
    let failure = match &receipt.outcome.end {
        End::Returned(_) => return None,
        End::ToolError { code, message, detail } => {
            let failure = SovereignError::new(-32000, code, message);
            match detail {
                Some(detail) => failure.with("detail", detail.clone()),
                None => failure,
            }
        }
        End::Exited { code, stderr_tail } => {
            let words = stderr_tail.trim();
            let message = if words.is_empty() { &said } else { words };
            SovereignError::new(-32000, status, message).with("exit_code", *code)
        }
        End::Unlinkable(_) => SovereignError::new(-32003, status, &said),
        End::LimitReached(limit) => {
            let code = if *limit == Limit::Time { -32001 } else { -32000 };
            SovereignError::new(code, status, &said).with("limit", limit.as_str())
        }
        End::ResultNotJson | End::Trapped(_) | End::Crashed(_) | End::Aborted(_) => {
            SovereignError::new(-32000, status, &said)
        }
    };
    Some(failure.with("intent_id", receipt.intent.to_string()))
}

/// A body that is not a request at all, which is answered in the form of the protocol.
pub const UNKNOWN_ID: &str = "unknown";

/// The data of a failure with what was asked for.
#[must_use]
pub(super) fn data(failure: &SovereignError, skill: Option<&str>, operation: Option<&str>) -> Value {
    let mut data = failure.data.clone();
    data.insert("skill".to_owned(), skill.into());
    data.insert("operation".to_owned(), operation.into());
    data.insert("status_code".to_owned(), json!(failure.status_code));
    data.into()
}
