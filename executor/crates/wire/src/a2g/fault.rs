//! The error codes of this door: those of the A2G document, and those of JSON-RPC.
//!
//! The numbers have other meanings at other doors, so no other door may use this table.

use super::encode;
use crate::fault_parts::{self, Detail, DetailNames, FaultClass};
use a2g_types::fault::Fault;
use a2g_types::outcome::Receipt;
use serde_json::Value;

/// The details of this door's errors.
const DETAILS: &DetailNames = &[
    (Detail::Pointer, "pointer"),
    (Detail::Tool, "tool"),
    (Detail::Intent, "intent_id"),
    (Detail::RiskScore, "risk_score"),
    (Detail::BlockedBy, "blocked_by"),
    (Detail::Ran, "ran"),
    (Detail::RetryAfter, "retry_after_ms"),
];

fn code(class: FaultClass) -> i64 {
    match class {
        FaultClass::Parse => -32700,
        FaultClass::InvalidRequest => -32600,
        FaultClass::MethodNotFound => -32601,
        FaultClass::InvalidParams => -32602,
        FaultClass::Internal => -32603,
        FaultClass::Refused(_) => -32000,
        FaultClass::ToolUnavailable | FaultClass::Failed => -32001,
        FaultClass::RegistrationFailed => -32002,
        FaultClass::LimitReached | FaultClass::Busy | FaultClass::ReceiptPending => -32003,
        FaultClass::SessionExpired => -32004,
    }
}

/// The code, the message and the data of the A2G response to a fault.
///
/// The detail of [`Fault::Internal`] is only logged.
#[must_use]
pub fn to_error(fault: &Fault) -> (i64, String, Option<Value>) {
    let mut data = fault_parts::details(fault, DETAILS);
    if let Fault::Failed(receipt) | Fault::LimitReached(receipt, _) = fault {
        data.insert("report".to_owned(), report_data(receipt));
    }
    if let Fault::LimitReached(_, limit) = fault {
        data.insert("limit".to_owned(), limit.as_str().into());
    }
    let data = (!data.is_empty()).then(|| data.into());
    (code(FaultClass::of(fault)), fault.sentence().into_owned(), data)
}

fn report_data(receipt: &Receipt) -> Value {
    // Fails only for a map whose keys are not strings, and a report has none.
    serde_json::to_value(encode::report_message(receipt)).unwrap_or_default()
}
