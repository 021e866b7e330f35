//! Tasks (extension `io.modelcontextprotocol/tasks`): calls whose client polls. A task is an intent, under the same id.

use super::elicit::{Decider, Elicitation};
use a2g_types::ident::IntentId;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use time::OffsetDateTime;

/// The interval at which clients should poll a task that runs, and one that waits for a person, in milliseconds.
const RUNNING_POLL_MS: u64 = 1_000;
const WAITING_POLL_MS: u64 = 5_000;

/// The status of a task.
#[derive(Debug)]
pub enum TaskStatus {
    /// The tool runs, or the call waits for it.
    Running,
    /// The call waits for a person whom the client cannot ask.
    Waiting(Decider),
    /// The call, or its file changes, wait for a person whom the client can ask.
    InputRequired(Elicitation),
    /// The tool ran, or never runs: the result of the call.
    Completed(Box<RawValue>),
    /// The call was cancelled, revoked, or not decided in time.
    Cancelled,
}

impl TaskStatus {
    /// Returns `true` if the task has ended.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Running | Self::Waiting(_) | Self::InputRequired(_) => false,
            Self::Completed(_) | Self::Cancelled => true,
        }
    }
}

/// A call that goes on as a task.
#[derive(Debug)]
pub struct Task {
    /// Its intent, which is the id of the task.
    pub intent: IntentId,
    /// Its state, as the client sees it.
    pub status: TaskStatus,
    /// The time of the first record.
    pub created: OffsetDateTime,
    /// The time of the latest record.
    pub updated: OffsetDateTime,
}

/// The state of a task, as results have it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TaskMessage<'a> {
    task_id: IntentId,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_message: Option<&'static str>,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    last_updated_at: OffsetDateTime,
    /// The journal keeps receipts until the operator prunes them.
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    poll_interval_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_requests: Option<Value>,
}

impl Task {
    pub(super) fn message(&self) -> TaskMessage<'_> {
        let Self { intent, status, created, updated } = self;
        let (name, status_message, poll_interval_ms) = match status {
            TaskStatus::Running => ("working", None, Some(RUNNING_POLL_MS)),
            TaskStatus::Waiting(decider) => ("working", Some(decider.who()), Some(WAITING_POLL_MS)),
            TaskStatus::InputRequired(_) => {
                ("input_required", Some("a person has to decide"), Some(WAITING_POLL_MS))
            }
            TaskStatus::Completed(_) => ("completed", None, None),
            TaskStatus::Cancelled => ("cancelled", None, None),
        };
        let (result, input_requests) = match status {
            TaskStatus::Running | TaskStatus::Waiting(_) | TaskStatus::Cancelled => (None, None),
            TaskStatus::InputRequired(question) => (None, Some(question.requests())),
            TaskStatus::Completed(result) => (Some(&**result), None),
        };
        TaskMessage {
            task_id: *intent,
            status: name,
            status_message,
            created_at: *created,
            last_updated_at: *updated,
            ttl_ms: None,
            poll_interval_ms,
            result,
            input_requests,
        }
    }
}
