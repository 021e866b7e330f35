//! The error codes of this door in both dialects, and the task states for faults and receipts.
//!
//! The numbers have other meanings at other doors, so no other door may use this table.

use super::Dialect;
use super::card::{self, MAJOR_MINOR, PROTOCOL};
use super::message::TaskState;
use crate::fault_parts::{self, Detail, DetailNames, FaultClass};
use crate::jsonrpc::{self, Id};
use a2g_types::failure_message;
use a2g_types::fault::{Fault, RefusalClass};
use a2g_types::ident::excerpt;
use a2g_types::outcome::{AbortReason, ChangeState, Receipt};
use serde_json::{Map, Value};

/// The reason why a request has no result.
#[derive(Debug, Clone)]
pub enum Problem {
    /// A fault of the core.
    Core(Fault),
    /// The task does not exist, or belongs to another agent. Callers cannot tell which.
    TaskNotFound,
    /// The task belongs to another conversation.
    ContextMismatch,
    /// The task is in a terminal state.
    NotCancelable(TaskState),
    /// The task does not accept a message in its current state.
    TakesNoMessage(String),
    /// Webhooks are disabled.
    PushUnsupported,
    /// The task has no webhook with this id.
    PushNotFound,
    /// The client accepts no output type of tools.
    ContentType(String),
    /// Callers do not authenticate, so there is no extended card.
    NoExtendedCard,
    /// The client names another version of A2A.
    UnsupportedVersion(String),
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Self::Core(fault)
    }
}

impl Problem {
    /// A [`Fault::InvalidParams`] of the core.
    #[must_use]
    pub fn invalid(pointer: &str, message: &str) -> Self {
        Self::Core(Fault::invalid(pointer, message))
    }
}

/// An error response of this door, before its encoding.
#[derive(Debug, Clone, PartialEq)]
pub struct A2aError {
    /// The JSON-RPC error code.
    pub code: i64,
    /// One sentence.
    pub message: String,
    /// The members of `data`.
    pub data: Map<String, Value>,
}

impl A2aError {
    fn new(code: i64, message: &str) -> Self {
        Self { code, message: message.to_owned(), data: Map::new() }
    }

    fn with_data(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.data.insert(key.to_owned(), value.into());
        self
    }

    /// The JSON text of the response.
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

/// The phrase of the A2A-ACP document for a code.
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

/// The error response for a problem.
#[must_use]
pub fn to_error(problem: &Problem, dialect: Dialect) -> A2aError {
    let select = |a2a: i64, acp: i64| dialect.select(a2a, acp);
    match problem {
        Problem::Core(fault) => core_error(fault, dialect),
        Problem::TaskNotFound => A2aError::new(select(-32001, -32000), TASK_NOT_FOUND),
        Problem::ContextMismatch => {
            A2aError::new(select(-32602, -32001), "the task belongs to another `contextId`")
        }
        Problem::NotCancelable(state) => {
            let message = format!("the task cannot be canceled: it is {}", state.as_str());
            A2aError::new(select(-32002, -32602), &message).with_data("state", state.as_str())
        }
        Problem::TakesNoMessage(reason) => A2aError::new(-32602, reason),
        Problem::PushUnsupported => {
            A2aError::new(select(-32003, -32601), "push notifications are disabled on this executor")
        }
        Problem::PushNotFound => {
            A2aError::new(-32602, "the task has no push notification configuration with this id")
        }
        Problem::ContentType(message) => A2aError::new(select(-32005, -32602), message),
        Problem::NoExtendedCard => A2aError::new(
            select(-32007, -32601),
            "there is no extended card: this executor does not authenticate callers",
        ),
        Problem::UnsupportedVersion(version) => {
            let message = format!(
                "this executor speaks A2A {PROTOCOL}, and not version `{}`: see its agent card at `{}`",
                excerpt(version),
                card::PATH
            );
            A2aError::new(select(-32009, -32600), &message)
                .with_data("supportedVersions", vec![MAJOR_MINOR])
                .with_data("agentCard", card::PATH)
        }
    }
}

/// The details of this door's errors.
const DETAILS: &DetailNames = &[
    (Detail::Pointer, "pointer"),
    (Detail::Tool, "tool"),
    (Detail::BlockedBy, "blocked_by"),
    (Detail::Intent, "task_id"),
    (Detail::RiskScore, "risk_score"),
    (Detail::Ran, "ran"),
    (Detail::RetryAfter, "retry_after_ms"),
];

/// The code of a class in A2A 0.3.0 and in the A2A-ACP dialect, and the state of a task whose call ends with it.
///
/// A2A 0.3.0 leaves -32000 to servers; in the A2A-ACP document it means "task not found".
fn codes(class: FaultClass) -> (i64, i64, TaskState) {
    match class {
        FaultClass::Parse => (-32700, -32700, TaskState::Failed),
        FaultClass::InvalidRequest => (-32600, -32600, TaskState::Rejected),
        FaultClass::MethodNotFound => (-32601, -32601, TaskState::Failed),
        FaultClass::InvalidParams => (-32602, -32602, TaskState::Rejected),
        FaultClass::Refused(RefusalClass::Unauthorized | RefusalClass::Pending | RefusalClass::Denied) => {
            (-32000, -32603, TaskState::Rejected)
        }
        FaultClass::Refused(RefusalClass::Unavailable)
        | FaultClass::ToolUnavailable
        | FaultClass::RegistrationFailed
        | FaultClass::SessionExpired
        | FaultClass::Busy => (-32000, -32002, TaskState::Rejected),
        // The run's receipt will set the final state.
        FaultClass::ReceiptPending => (-32000, -32002, TaskState::Working),
        // The result of a run is reported by its task, so the first two do not reach a response.
        FaultClass::Failed | FaultClass::LimitReached | FaultClass::Internal => {
            (-32603, -32603, TaskState::Failed)
        }
    }
}

fn core_error(fault: &Fault, dialect: Dialect) -> A2aError {
    let (a2a, acp, _state) = codes(FaultClass::of(fault));
    A2aError {
        code: dialect.select(a2a, acp),
        message: fault.sentence().into_owned(),
        data: fault_parts::details(fault, DETAILS),
    }
}

/// Starts with the words of A2A 0.3.0, by which clients recognize the error.
const TASK_NOT_FOUND: &str = "Task not found: no task of this agent has this id";

/// The state of a task whose call ended in a fault, with a sentence and machine-readable details.
#[must_use]
pub fn end_for_fault(fault: &Fault) -> (TaskState, String, Map<String, Value>) {
    let (_a2a, _acp, state) = codes(FaultClass::of(fault));
    let mut data = fault_parts::details(fault, DETAILS);
    data.entry("ran").or_insert(false.into());
    (state, fault.sentence().into_owned(), data)
}

/// The state of a task that ran, with a sentence when the tool did not succeed. The task of a staged run waits before it has
/// this state.
#[must_use]
pub fn end_for_receipt(receipt: &Receipt) -> (TaskState, Option<String>) {
    let end = &receipt.outcome.end;
    if end.result().is_some() {
        return (TaskState::Completed, None);
    }
    let state = match end.abort_reason() {
        Some(
            AbortReason::Cancelled
            | AbortReason::Revoked
            | AbortReason::Shutdown
            | AbortReason::ParentEnded
            | AbortReason::Stopped
            | AbortReason::LeaseLost,
        ) => TaskState::Canceled,
        Some(AbortReason::Lost) | None => TaskState::Failed,
    };
    (state, Some(failure_message::describe_failure(&receipt.outcome)))
}

/// The state of the task of a staged run, for that of its file changes. `None` is a state that this node does not know: the
/// task has then failed, so that nobody relies on the changes.
#[must_use]
pub fn state_for_changes(state: Option<ChangeState>) -> TaskState {
    match state {
        Some(ChangeState::Waiting) => TaskState::InputRequired,
        Some(ChangeState::Sending) => TaskState::Working,
        Some(ChangeState::InForce | ChangeState::Kept) => TaskState::Completed,
        Some(ChangeState::Discarded | ChangeState::Undone) => TaskState::Canceled,
        None => TaskState::Failed,
    }
}
