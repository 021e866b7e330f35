//! The error codes of this door: those of the A2G document, and those of JSON-RPC.
//!
//! The numbers have other meanings at other doors, so no other door may use this table.

use super::encode;
use a2g_types::failure_message;
use a2g_types::fault::{BlockedBy, Fault, RECEIPT_PENDING};
use a2g_types::ident::IntentId;
use a2g_types::outcome::Receipt;
use serde_json::{Map, Value, json};

/// The code, the message and the data of the A2G response to a fault.
///
/// The detail of [`Fault::Internal`] is only logged.
#[must_use]
pub fn to_error(fault: &Fault) -> (i64, String, Option<Value>) {
    match fault {
        Fault::Parse(message) => (-32700, message.clone(), None),
        Fault::InvalidRequest(message) => (-32600, message.clone(), None),
        Fault::MethodNotFound(message) => (-32601, message.clone(), None),
        Fault::InvalidParams { message, pointer } => {
            (-32602, message.clone(), Some(json!({ "pointer": pointer })))
        }
        Fault::ToolUnavailable { tool, message } => {
            (-32001, message.clone(), Some(json!({ "tool": tool.as_str() })))
        }
        Fault::Internal(_) => (-32603, "internal error of the executor".to_owned(), None),
        Fault::Refused { intent, risk_score, blocked_by, message } => {
            (-32000, message.clone(), Some(refusal_data(*intent, *risk_score, *blocked_by)))
        }
        Fault::Failed(receipt) => {
            (-32001, describe_receipt(receipt), Some(json!({ "report": report_data(receipt) })))
        }
        Fault::RegistrationFailed(message) => (-32002, message.clone(), None),
        Fault::LimitReached(receipt, limit) => {
            let data = json!({ "report": report_data(receipt), "limit": limit.as_str() });
            (-32003, describe_receipt(receipt), Some(data))
        }
        Fault::Busy { message, retry_after_ms } => {
            (-32003, message.clone(), Some(json!({ "retry_after_ms": retry_after_ms })))
        }
        Fault::ReceiptPending { intent, retry_after_ms } => {
            let data =
                json!({ "intent_id": intent.to_string(), "ran": true, "retry_after_ms": retry_after_ms });
            (-32003, RECEIPT_PENDING.to_owned(), Some(data))
        }
        Fault::SessionExpired(message) => (-32004, message.clone(), None),
    }
}

fn refusal_data(intent: Option<IntentId>, risk_score: Option<f64>, blocked_by: BlockedBy) -> Value {
    let mut data = Map::new();
    if let Some(intent) = intent {
        data.insert("intent_id".to_owned(), intent.to_string().into());
    }
    if let Some(score) = risk_score {
        data.insert("risk_score".to_owned(), score.into());
    }
    data.insert("blocked_by".to_owned(), blocked_by.as_str().into());
    data.into()
}

/// The `error` of the report.
fn describe_receipt(receipt: &Receipt) -> String {
    failure_message::describe_failure(&receipt.outcome)
}

fn report_data(receipt: &Receipt) -> Value {
    // Fails only for a map whose keys are not strings, and a report has none.
    serde_json::to_value(encode::report_message(receipt)).unwrap_or_default()
}
