//! Responses of this door, in both dialects.

use super::Dialect;
use super::message::{FileContent, FilePart, Message, MessageRole, Part, Task, TaskArtifact, TaskUpdate};
use super::page::PageToken;
use crate::jsonrpc::{self, Id};
use crate::staged::{self, StagedState};
use crate::{measurements, to_raw};
use a2g_types::ident::IntentId;
use a2g_types::outcome::{self, End, LogLine, Progress, Receipt};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Maximum number of characters of a progress or log message in a stream.
const MAX_LINE_CHARS: usize = 2000;

/// A JSON-RPC response with a result.
#[must_use]
pub fn response(id: &Id, result: &impl Serialize) -> String {
    response_raw(id, &to_raw(result))
}

fn response_raw(id: &Id, result: &RawValue) -> String {
    jsonrpc::success(id, result).get().to_owned()
}

/// A response with a task and at most the latest `history` messages.
#[must_use]
pub fn task_response(id: &Id, task: &Task, history: Option<usize>, dialect: Dialect) -> String {
    response_raw(id, &task_value(task, history, dialect))
}

fn task_value(task: &Task, history: Option<usize>, dialect: Dialect) -> Box<RawValue> {
    let skipped = history.map_or(0, |max| task.history.len().saturating_sub(max));
    if skipped == 0 {
        return to_dialect(task, dialect);
    }
    let mut task = task.clone();
    task.history.drain(..skipped);
    to_dialect(&task, dialect)
}

fn to_dialect(object: &impl Serialize, dialect: Dialect) -> Box<RawValue> {
    match dialect {
        Dialect::A2a => to_raw(object),
        Dialect::Acp => to_raw(&strip_kinds(json!(object))),
    }
}

/// Removes `kind`, which tasks and messages of the A2A-ACP document do not have.
fn strip_kinds(mut task: Value) -> Value {
    strip_kind(&mut task);
    if let Some(message) = task.pointer_mut("/status/message") {
        strip_kind(message);
    }
    task.pointer_mut("/history").and_then(Value::as_array_mut).into_iter().flatten().for_each(strip_kind);
    task
}

fn strip_kind(object: &mut Value) {
    if let Some(object) = object.as_object_mut() {
        object.shift_remove("kind");
    }
}

/// One stream event, as a JSON-RPC response.
#[must_use]
pub fn update_response(id: &Id, update: &TaskUpdate, dialect: Dialect) -> String {
    let value = match update {
        TaskUpdate::Task(task) => task_value(task, None, dialect),
        TaskUpdate::Status(_) => to_dialect(update, dialect),
        TaskUpdate::Artifact(_) => to_raw(update),
    };
    response_raw(id, &value)
}

/// The response to `tasks/cancel`.
#[must_use]
pub fn cancel_response(id: &Id, task: &Task, dialect: Dialect) -> String {
    match dialect {
        Dialect::A2a => task_response(id, task, None, dialect),
        Dialect::Acp => response(id, &json!({ "success": true, "message": "Task cancelled" })),
    }
}

/// The URL path of a task's stream in the A2A-ACP dialect.
#[must_use]
pub fn stream_path(task: &str) -> String {
    format!("/a2a/tasks/{task}/stream")
}

/// The response to `message/stream` in the A2A-ACP dialect.
#[must_use]
pub fn stream_response(id: &Id, task: &str) -> String {
    response(id, &json!({ "id": task, "stream": stream_path(task) }))
}

/// A task in a list, with its status as JSON and its time of creation.
#[must_use]
pub fn list_item(
    id: &str,
    context: &str,
    status: &Value,
    created: OffsetDateTime,
    dialect: Dialect,
) -> Value {
    let item = json!({
        "kind": "task",
        "id": id,
        "contextId": context,
        "status": status,
        "createdAt": created.format(&Rfc3339).unwrap_or_default(),
    });
    match dialect {
        Dialect::A2a => item,
        Dialect::Acp => strip_kinds(item),
    }
}

/// The response to `tasks/list`, with `next` when there are more tasks.
#[must_use]
pub fn list_response(id: &Id, tasks: &[Value], total: u64, next: Option<&PageToken>) -> String {
    let list = match next {
        None => json!({ "tasks": tasks, "total": total, "hasMore": false }),
        Some(next) => {
            json!({ "tasks": tasks, "total": total, "hasMore": true, "nextPageToken": next.to_string() })
        }
    };
    response(id, &list)
}

/// A message from this executor, with a random id.
#[must_use]
pub fn agent_message(task: &str, context: &str, parts: Vec<Part>) -> Message {
    Message {
        role: MessageRole::Agent,
        parts,
        message_id: IntentId::random().to_string(),
        context_id: Some(context.to_owned()),
        task_id: Some(task.to_owned()),
        reference_task_ids: Vec::new(),
        extensions: Vec::new(),
        metadata: None,
    }
}

/// A progress report as message parts.
#[must_use]
pub fn progress_parts(progress: &Progress) -> Vec<Part> {
    let Progress { percent, message } = progress;
    let data = json!({ "progress": { "percent": percent } });
    vec![Part::text(truncate_line(message)), Part::data(data.as_object().cloned().unwrap_or_default())]
}

/// A log line as message parts.
#[must_use]
pub fn log_parts(log: &LogLine) -> Vec<Part> {
    let LogLine { level, message } = log;
    let data = json!({ "log": { "level": level.as_str() } });
    vec![Part::text(truncate_line(message)), Part::data(data.as_object().cloned().unwrap_or_default())]
}

fn truncate_line(text: &str) -> String {
    text.chars().take(MAX_LINE_CHARS).collect()
}

/// A tool's output as the artifact with this index, from 0.
#[must_use]
pub fn artifact(output: &outcome::Artifact, index: usize) -> TaskArtifact {
    let outcome::Artifact { name, mime, content } = output;
    let file = FilePart {
        name: Some(name.clone()),
        mime_type: Some(mime.clone()),
        content: FileContent::Bytes(STANDARD.encode(content)),
    };
    TaskArtifact {
        artifact_id: format!("artifact-{}", index + 1),
        name: Some(name.clone()),
        parts: vec![Part::File { file, metadata: None }],
    }
}

/// The artifacts of a run in order, followed by its result, and the file changes of a staged run.
#[must_use]
pub fn artifacts(receipt: &Receipt) -> Vec<TaskArtifact> {
    let outputs = receipt.outcome.output.artifacts.iter().enumerate();
    let artifacts = outputs.map(|(index, output)| artifact(output, index));
    artifacts.chain(result(&receipt.outcome.end)).chain(changes(receipt)).collect()
}

/// The file changes of a staged run as an artifact: a text, and `usage.effects` of the report. `None` for any other run.
fn changes(receipt: &Receipt) -> Option<TaskArtifact> {
    let list = staged::list_for_decision(staged::changes_of(receipt)?);
    Some(TaskArtifact {
        artifact_id: "changes".to_owned(),
        name: Some("changes".to_owned()),
        parts: vec![Part::text(list), Part::data(measurements::effects(receipt))],
    })
}

/// The present state of the file changes of a staged run, as message parts; empty for any other run.
#[must_use]
pub fn changes_parts(receipt: &Receipt, state: Option<&StagedState>) -> Vec<Part> {
    let Some(changes) = staged::changes_of(receipt) else { return Vec::new() };
    let effects = staged::short_member(receipt, state).unwrap_or_default();
    let data = Map::from_iter([("effects".to_owned(), effects.into())]);
    vec![Part::text(staged::sentence(changes, state)), Part::data(data)]
}

/// The result of a run as an artifact; `None` if the run was not successful.
fn result(end: &End) -> Option<TaskArtifact> {
    let result = end.result()?;
    let part = match result.parse_string() {
        Some(text) => Part::text(text),
        None if result.is_object() => Part::Data { data: result.clone(), metadata: None },
        None => Part::Data { data: result.wrap_as_member("result"), metadata: None },
    };
    Some(TaskArtifact {
        artifact_id: "result".to_owned(),
        name: Some("result".to_owned()),
        parts: vec![part],
    })
}

/// The measurements of a run, for the metadata of its task.
#[must_use]
pub fn run_metadata(receipt: &Receipt) -> Map<String, Value> {
    let metrics = &receipt.outcome.metrics;
    let metadata = json!({
        "tool": receipt.tool.as_str(),
        "status": receipt.outcome.end.status().as_str(),
        "duration_ms": metrics.duration_ms(),
        "memory_used_mb": metrics.memory_used_mb(),
        "cpu_percent": metrics.cpu_percent(),
        "truncated": receipt.outcome.output.truncated,
    });
    let mut members = metadata.as_object().cloned().unwrap_or_default();
    members.extend(measurements::session(receipt).map(|session| ("session".to_owned(), session)));
    members
}

/// Returns `true` when a client with these `acceptedOutputModes` accepts the output of a tool. An empty list
/// accepts everything.
#[must_use]
pub fn is_output_accepted(accepts: &[String]) -> bool {
    let output_modes = ["application/json", "text/plain", "application/*", "text/*", "*/*"];
    let is_output_mode = |mode: &String| output_modes.contains(&mode.to_ascii_lowercase().as_str());
    accepts.is_empty() || accepts.iter().any(is_output_mode)
}
