//! The error codes of this door: the reference library's `A2AErrorCodes`.
//!
//! The numbers have other meanings at other doors, so no other door may use this table.

use super::skills::Missing;
use crate::fault_parts::{self, Detail, DetailNames, FaultClass};
use a2g_types::failure_message;
use a2g_types::fault::{BlockedBy, Fault, RefusalClass};
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
        let message = message.to_owned();
        let status_code = status_code.to_owned();
        Self { code, message, status_code, data: Map::new() }
    }

    /// Adds one member to `data`.
    #[must_use]
    pub fn with_data(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.data.insert(key.to_owned(), value.into());
        self
    }
}

/// The details of this door's errors. The reason of a refusal is its `status_code`.
const DETAILS: &DetailNames = &[
    (Detail::Pointer, "pointer"),
    (Detail::Intent, "intent_id"),
    (Detail::RiskScore, "risk_score"),
    (Detail::Ran, "ran"),
    (Detail::RetryAfter, "retry_after_ms"),
];

/// The code of a class, and its reason; that of a refusal is its own.
fn code(class: FaultClass) -> (i64, Option<&'static str>) {
    match class {
        FaultClass::Parse => (-32700, Some("PARSE_ERROR")),
        FaultClass::InvalidRequest => (-32600, Some("INVALID_REQUEST")),
        FaultClass::MethodNotFound => (-32601, Some("METHOD_NOT_FOUND")),
        FaultClass::InvalidParams => (-32602, Some("INVALID_PARAMS")),
        FaultClass::ToolUnavailable => (-32003, Some("ADAPTER_UNAVAILABLE")),
        FaultClass::Refused(RefusalClass::Unavailable) => (-32003, None),
        FaultClass::Refused(RefusalClass::Unauthorized | RefusalClass::Pending | RefusalClass::Denied) => {
            (-32000, None)
        }
        FaultClass::Busy => (-32000, Some("BUSY")),
        FaultClass::ReceiptPending => (-32000, Some("RECEIPT_PENDING")),
        FaultClass::RegistrationFailed
        | FaultClass::SessionExpired
        | FaultClass::Failed
        | FaultClass::LimitReached
        | FaultClass::Internal => (-32000, Some("SERVER_ERROR")),
    }
}

/// The error for a fault. The detail of [`Fault::Internal`] is only logged.
#[must_use]
pub fn to_error(fault: &Fault) -> SovereignError {
    if let Fault::Failed(receipt) | Fault::LimitReached(receipt, _) = fault
        && let Some(failure) = receipt_error(receipt)
    {
        return failure;
    }
    let (code, reason) = code(FaultClass::of(fault));
    let mut failure = SovereignError {
        code,
        message: fault.sentence().into_owned(),
        status_code: reason.unwrap_or_default().to_owned(),
        data: fault_parts::details(fault, DETAILS),
    };
    if let Fault::Refused { blocked_by, .. } = fault {
        failure.status_code = blocked_by.as_str().to_ascii_uppercase();
    }
    // The core's pointers are relative to the call, whose arguments are the payload here.
    if let Fault::InvalidParams { pointer, .. } = fault
        && let Some(rest) = pointer.strip_prefix("/arguments")
    {
        return failure.with_data("pointer", format!("/params/payload{rest}"));
    }
    failure
}

/// The error for an escalated intent.
#[must_use]
pub fn escalation_error(intent: IntentId, risk_score: Option<f64>) -> SovereignError {
    to_error(&Fault::Refused {
        intent: Some(intent),
        risk_score,
        blocked_by: BlockedBy::EscalationPending,
        message: "a person has to decide: the intent runs once an approver allows it".to_owned(),
    })
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

/// The error for a failed run; `None` for a successful one.
#[must_use]
pub fn receipt_error(receipt: &Receipt) -> Option<SovereignError> {
    let status = receipt.outcome.end.status().as_str();
    let sentence = failure_message::describe_failure(&receipt.outcome);
    let failure = match &receipt.outcome.end {
        End::Returned(_) | End::Staged(_) => return None,
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
        | End::NotCommitted(_)
        | End::LeftToOperator(_)
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
