//! This door's table of error codes, in both dialects, and what a fault makes of a task.
//!
//! The numbers mean other things at other doors, so no other door may use this table.

use super::Dialect;
use super::message::State;
use crate::fault::{BlockedBy, Fault, RECEIPT_PENDING};
use crate::outcome::{AbortReason, End, Receipt};
use crate::wire::jsonrpc::{self, Id};
use crate::wire::sentence;
use serde_json::{Map, Value, json};

/// Why a request has no result.
#[derive(Debug, Clone)]
pub enum Problem {
    /// What the core says.
    Core(Fault),
    /// There is no such task, or it is another's.
    TaskNotFound,
    /// The task belongs to another conversation.
    ContextMismatch,
    /// The task is over.
    NotCancelable(State),
    /// The task takes no message now.
    TakesNoMessage(String),
    /// There are no webhooks here.
    PushUnsupported,
    /// The task has no such webhook.
    PushNotFound,
    /// The client takes nothing that a tool gives.
    ContentType(String),
    /// There is no extended card, because callers show nothing.
    NoExtendedCard,
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Self::Core(fault)
    }
}

impl Problem {
    /// A parameter that is wrong.
    #[must_use]
    pub fn invalid(pointer: &str, message: &str) -> Self {
        Self::Core(Fault::invalid(pointer, message))
    }
}

/// An error of this door.
#[derive(Debug, Clone, PartialEq)]
pub struct A2aError {
    /// The code.
    pub code: i64,
    /// A sentence.
    pub message: String,
    /// What else is known.
    pub data: Map<String, Value>,
}

impl A2aError {
    fn new(code: i64, message: &str) -> Self {
        Self { code, message: message.to_owned(), data: Map::new() }
    }

    fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.data.insert(key.to_owned(), value.into());
        self
    }

    /// The whole response.
    #[must_use]
    pub fn response(self, id: &Id, dialect: Dialect) -> String {
        let Self { code, message, mut data } = self;
        let message = match dialect {
            Dialect::A2a => message,
            Dialect::Acp => {
                data.insert("details".to_owned(), message.into());
                phrase(code).to_owned()
            }
        };
        let data = (!data.is_empty()).then(|| data.into());
        jsonrpc::error(Some(id), code, &message, data.as_ref()).get().to_owned()
    }
}

/// The document's phrase for a code.
fn phrase(code: i64) -> &'static str {
    match code {
        -32700 => "Parse error",
        -32600 => "Invalid Request",
        -32601 => "Method not found",
        -32602 => "Invalid params",
        -32000 => "Task not found",
        -32001 => "Context not found",
        -32002 => "Agent not available",
        _internal => "Internal error",
    }
}

/// How a problem is answered.
#[must_use]
pub fn of(problem: &Problem, dialect: Dialect) -> A2aError {
    let by = |a2a: i64, acp: i64| match dialect {
        Dialect::A2a => a2a,
        Dialect::Acp => acp,
    };
    match problem {
        Problem::Core(fault) => core(fault, dialect),
        Problem::TaskNotFound => A2aError::new(by(-32001, -32000), TASK_NOT_FOUND),
        Problem::ContextMismatch => {
            A2aError::new(by(-32602, -32001), "the task belongs to another `contextId`")
        }
        Problem::NotCancelable(state) => {
            let message = format!("the task cannot be canceled: it is {}", state.as_str());
            A2aError::new(by(-32002, -32602), &message).with("state", state.as_str())
        }
        Problem::TakesNoMessage(why) => A2aError::new(-32602, why),
        Problem::PushUnsupported => A2aError::new(by(-32003, -32601), "there are no push notifications here"),
        Problem::PushNotFound => {
            A2aError::new(-32602, "the task has no such push notification configuration")
        }
        Problem::ContentType(message) => A2aError::new(by(-32005, -32602), message),
        Problem::NoExtendedCard => A2aError::new(
            by(-32007, -32601),
            "there is no extended card here: no caller is asked for a token",
        ),
    }
}

fn core(fault: &Fault, dialect: Dialect) -> A2aError {
    // A2A 0.3.0 leaves -32000 to its servers; in the document it is another thing.
    let refused = match dialect {
        Dialect::A2a => -32000,
        Dialect::Acp => -32603,
    };
    let unavailable = match dialect {
        Dialect::A2a => -32000,
        Dialect::Acp => -32002,
    };
    match fault {
        Fault::Parse(message) => A2aError::new(-32700, message),
        Fault::InvalidRequest(message) => A2aError::new(-32600, message),
        Fault::MethodNotFound(message) => A2aError::new(-32601, message),
        Fault::InvalidParams { message, pointer } => {
            A2aError::new(-32602, message).with("pointer", pointer.as_str())
        }
        Fault::ToolUnavailable { tool, message } => {
            A2aError::new(unavailable, message).with("tool", tool.as_str())
        }
        Fault::Refused { intent, risk_score, blocked_by, message } => {
            let code = if is_unavailable(*blocked_by) { unavailable } else { refused };
            let mut failure = A2aError::new(code, message).with("blocked_by", blocked_by.as_str());
            if let Some(intent) = intent {
                failure = failure.with("task_id", intent.to_string());
            }
            match risk_score {
                Some(score) => failure.with("risk_score", *score),
                None => failure,
            }
        }
        Fault::RegistrationFailed(message) | Fault::SessionExpired(message) => {
            A2aError::new(unavailable, message)
        }
        Fault::Busy { message, retry_after_ms } => {
            A2aError::new(unavailable, message).with("retry_after_ms", *retry_after_ms)
        }
        Fault::ReceiptPending { intent, retry_after_ms } => A2aError::new(unavailable, RECEIPT_PENDING)
            .with("task_id", intent.to_string())
            .with("ran", true)
            .with("retry_after_ms", *retry_after_ms),
        // What a tool came to is told by its task, and never here.
        Fault::Failed(receipt) | Fault::LimitReached(receipt, _) => A2aError::new(-32603, &told(receipt)),
        Fault::Internal(_) => A2aError::new(-32603, INTERNAL),
    }
}

/// The message begins with the words of A2A 0.3.0, by which clients recognise the error.
const TASK_NOT_FOUND: &str = "Task not found: there is none with this id, or it is another's";
const INTERNAL: &str = "internal error of the executor";

fn is_unavailable(blocked_by: BlockedBy) -> bool {
    match blocked_by {
        BlockedBy::GovernorUnavailable => true,
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
        | BlockedBy::StandingPolicy => false,
    }
}

/// Where a task ends that did not run, with a sentence, and what a program needs to know.
#[must_use]
pub fn end_of(fault: &Fault) -> (State, String, Map<String, Value>) {
    let A2aError { code: _, message, mut data } = core(fault, Dialect::A2a);
    let state = match fault {
        Fault::Refused { .. }
        | Fault::InvalidParams { .. }
        | Fault::InvalidRequest(_)
        | Fault::ToolUnavailable { .. }
        | Fault::RegistrationFailed(_)
        | Fault::SessionExpired(_)
        | Fault::Busy { .. } => State::Rejected,
        Fault::Parse(_)
        | Fault::MethodNotFound(_)
        | Fault::Failed(_)
        | Fault::LimitReached(..)
        | Fault::Internal(_) => State::Failed,
        // Its receipt ends it.
        Fault::ReceiptPending { .. } => State::Working,
    };
    data.entry("ran").or_insert(false.into());
    (state, message, data)
}

/// Where a task ends that ran; with a sentence when the tool did not succeed.
#[must_use]
pub fn state_of(receipt: &Receipt) -> (State, Option<String>) {
    let state = match &receipt.outcome.end {
        End::Returned(_) => return (State::Completed, None),
        End::Aborted(AbortReason::Cancelled | AbortReason::Revoked | AbortReason::Shutdown) => {
            State::Canceled
        }
        End::Aborted(AbortReason::Lost)
        | End::ToolError { .. }
        | End::Exited { .. }
        | End::ResultNotJson
        | End::Trapped(_)
        | End::Unlinkable(_)
        | End::Crashed(_)
        | End::LimitReached(_) => State::Failed,
    };
    (state, Some(told(receipt)))
}

/// What a program needs to know of a run that did not succeed.
#[must_use]
pub fn details(receipt: &Receipt) -> Map<String, Value> {
    let status = receipt.outcome.end.status().as_str();
    let details = match &receipt.outcome.end {
        End::ToolError { code, message, detail } => {
            json!({ "status": status, "ran": true, "code": code, "message": message, "detail": detail })
        }
        End::Exited { code, stderr_tail } => {
            json!({ "status": status, "ran": true, "exit_code": code, "stderr": stderr_tail })
        }
        End::LimitReached(limit) => json!({ "status": status, "ran": true, "limit": limit.as_str() }),
        End::Returned(_)
        | End::ResultNotJson
        | End::Trapped(_)
        | End::Unlinkable(_)
        | End::Crashed(_)
        | End::Aborted(_) => json!({ "status": status, "ran": true }),
    };
    details.as_object().cloned().unwrap_or_default()
}

fn told(receipt: &Receipt) -> String {
    sentence::of_failure(&receipt.outcome)
}
