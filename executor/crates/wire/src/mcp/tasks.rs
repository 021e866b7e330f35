//! Tasks (extension `io.modelcontextprotocol/tasks`): calls whose client polls. A task is an intent, under the same id.

use a2g_types::ident::IntentId;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
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
    Waiting,
    /// The call waits for a person whom the client can ask, by an elicitation with these parameters.
    InputRequired(Value),
    /// The tool ran, or never runs: the result of the call.
    Completed(Box<RawValue>),
    /// The call was cancelled, revoked, or not decided in time.
    Cancelled,
}

/// The state of a task, as results and notifications have it.
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

impl TaskStatus {
    pub(super) fn message(
        &self,
        task: IntentId,
        (created_at, last_updated_at): (OffsetDateTime, OffsetDateTime),
    ) -> TaskMessage<'_> {
        let (status, status_message, poll_interval_ms) = match self {
            Self::Running => ("working", None, Some(RUNNING_POLL_MS)),
            Self::Waiting => ("working", Some("an approver has to decide"), Some(WAITING_POLL_MS)),
            Self::InputRequired(_) => {
                ("input_required", Some("a person has to decide"), Some(WAITING_POLL_MS))
            }
            Self::Completed(_) => ("completed", None, None),
            Self::Cancelled => ("cancelled", None, None),
        };
        let (result, input_requests) = match self {
            Self::Running | Self::Waiting | Self::Cancelled => (None, None),
            Self::InputRequired(params) => (None, Some(input_requests(params))),
            Self::Completed(result) => (Some(&**result), None),
        };
        TaskMessage {
            task_id: task,
            status,
            status_message,
            created_at,
            last_updated_at,
            ttl_ms: None,
            poll_interval_ms,
            result,
            input_requests,
        }
    }
}

/// The only question that this server asks.
pub(super) fn input_requests(params: &Value) -> Value {
    json!({ super::elicit::QUESTION_KEY: { "method": "elicitation/create", "params": params } })
}
