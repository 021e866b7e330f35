//! The error codes of this door: the reference library's `A2AErrorCodes`.
//!
//! The numbers have other meanings at other doors, so no other door may use this table.

use super::skills::Missing;
use a2g_types::failure_message;
use a2g_types::fault::{BlockedBy, Fault, RECEIPT_PENDING, RefusalClass};
use a2g_types::ident::IntentId;
use a2g_types::limit::Limit;
use a2g_types::outcome::{End, Receipt};
use serde_json::{Map, Value, json};

/// An error of this door, before its encoding.
#[derive(Debug, Clone, PartialEq)]
pub struct SovereignError {
    /// The JSON-RPC error code.
    pub code: i64,
    /// The tool's own message, verbatim, or a sentence by the executor.
    pub message: String,
    /// A machine-readable reason.
    pub status_code: String,
    /// The members of `data`.
    pub data: Map<String, Value>,
}

impl SovereignError {
    fn new(code: i64, status_code: &str, message: &str) -> Self {
        let (message, status_code) = (message.to_owned(), status_code.to_owned());
        Self { code, message, status_code, data: Map::new() }
    }

    /// Adds one member to `data`.
    #[must_use]
    pub fn with_data(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.data.insert(key.to_owned(), value.into());
        self
    }
}

/// The error for a fault. The detail of [`Fault::Internal`] is only logged.
#[must_use]
pub fn to_error(fault: &Fault) -> SovereignError {
    match fault {
        Fault::Parse(message) => SovereignError::new(-32700, "PARSE_ERROR", message),
        Fault::InvalidRequest(message) => SovereignError::new(-32600, "INVALID_REQUEST", message),
        Fault::MethodNotFound(message) => SovereignError::new(-32601, "METHOD_NOT_FOUND", message),
        Fault::InvalidParams { message, pointer } => {
            // The core's pointers are relative to the call, whose arguments are the payload here.
            let pointer = match pointer.strip_prefix("/arguments") {
                Some(rest) => format!("/params/payload{rest}"),
                None => pointer.clone(),
            };
            SovereignError::new(-32602, "INVALID_PARAMS", message).with_data("pointer", pointer)
        }
        Fault::ToolUnavailable { tool: _, message } => {
            SovereignError::new(-32003, "ADAPTER_UNAVAILABLE", message)
        }
        Fault::Refused { intent, risk_score, blocked_by, message } => {
            refusal_error(*intent, *risk_score, *blocked_by, message)
        }
        Fault::RegistrationFailed(message) | Fault::SessionExpired(message) => {
            SovereignError::new(-32000, "SERVER_ERROR", message)
        }
        Fault::Failed(receipt) | Fault::LimitReached(receipt, _) => {
            receipt_error(receipt).unwrap_or_else(|| {
                SovereignError::new(
                    -32000,
                    "SERVER_ERROR",
                    &failure_message::describe_failure(&receipt.outcome),
                )
            })
        }
        Fault::Busy { message, retry_after_ms } => {
            SovereignError::new(-32000, "BUSY", message).with_data("retry_after_ms", *retry_after_ms)
        }
        Fault::ReceiptPending { intent, retry_after_ms } => {
            SovereignError::new(-32000, "RECEIPT_PENDING", RECEIPT_PENDING)
                .with_data("intent_id", intent.to_string())
                .with_data("ran", true)
                .with_data("retry_after_ms", *retry_after_ms)
        }
        Fault::Internal(_) => SovereignError::new(-32000, "SERVER_ERROR", "internal error of the executor"),
    }
}

/// The error for an escalated intent.
#[must_use]
pub fn escalation_error(intent: IntentId, risk_score: Option<f64>) -> SovereignError {
    let message = "a person has to decide: the intent runs once an approver allows it";
    refusal_error(Some(intent), risk_score, BlockedBy::EscalationPending, message)
}

/// The error for an unknown skill or operation.
#[must_use]
pub fn missing_error(missing: Missing) -> SovereignError {
    match missing {
        Missing::Skill(message) => SovereignError::new(-32002, "SKILL_NOT_LOADED", &message),
        Missing::Operation(message, available) => {
            SovereignError::new(-32601, "METHOD_NOT_FOUND", &message).with_data("available", available)
        }
    }
}

fn refusal_error(
    intent: Option<IntentId>,
    risk_score: Option<f64>,
    blocked_by: BlockedBy,
    message: &str,
) -> SovereignError {
    let code = match blocked_by.class() {
        RefusalClass::Unavailable => -32003,
        RefusalClass::Unauthorized | RefusalClass::Pending | RefusalClass::Denied => -32000,
    };
    let mut failure = SovereignError::new(code, &blocked_by.as_str().to_ascii_uppercase(), message);
    if let Some(intent) = intent {
        failure = failure.with_data("intent_id", intent.to_string());
    }
    match risk_score {
        Some(score) => failure.with_data("risk_score", score),
        None => failure,
    }
}

/// The error for a failed run; `None` for a successful one.
#[must_use]
pub fn receipt_error(receipt: &Receipt) -> Option<SovereignError> {
    let status = receipt.outcome.end.status().as_str();
    let sentence = failure_message::describe_failure(&receipt.outcome);
    let failure = match &receipt.outcome.end {
        End::Returned(_) => return None,
        End::ToolError { code, message, detail } => {
            let failure = SovereignError::new(-32000, code, message);
            match detail {
                Some(detail) => failure.with_data("detail", detail.clone()),
                None => failure,
            }
        }
        End::Exited { code, stderr_tail } => {
            let stderr = stderr_tail.trim();
            let message = if stderr.is_empty() { &sentence } else { stderr };
            SovereignError::new(-32000, status, message).with_data("exit_code", *code)
        }
        End::NotStarted(_) => SovereignError::new(-32003, status, &sentence),
        End::LimitReached(limit) => {
            let code = if *limit == Limit::Time { -32001 } else { -32000 };
            SovereignError::new(code, status, &sentence).with_data("limit", limit.as_str())
        }
        End::ResultNotJson
        | End::ResultInvalid { .. }
        | End::Trapped(_)
        | End::Crashed(_)
        | End::Aborted(_) => SovereignError::new(-32000, status, &sentence),
    };
    Some(failure.with_data("intent_id", receipt.intent.to_string()))
}

/// The id of the response to a body that is not a request.
pub const UNKNOWN_ID: &str = "unknown";

/// The data of an error, together with the requested skill and operation.
#[must_use]
pub(super) fn error_data(failure: &SovereignError, skill: Option<&str>, operation: Option<&str>) -> Value {
    let mut data = failure.data.clone();
    data.insert("skill".to_owned(), skill.into());
    data.insert("operation".to_owned(), operation.into());
    data.insert("status_code".to_owned(), json!(failure.status_code));
    data.into()
}
