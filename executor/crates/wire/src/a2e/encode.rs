//! Encoder of this door's messages, each one line without its terminator. Times are parameters: this module
//! reads no clock.

use super::decode::ToolFilter;
use super::fault::{self, A2eError};
use super::message::{
    CapabilityEntry, Envelope, ErrorBody, HandshakeResponse, Pong, ToolCallResponse, ToolEvent,
    ToolListResponse, ToolResult,
};
use super::{CAPABILITIES, TOOLS, VERSION, is_tools_capability, tools};
use crate::measurements;
use crate::staged::{self, StagedState};
use crate::strict_json::JsonBounds;
use crate::to_raw;
use a2g_types::ident::IntentId;
use a2g_types::outcome::{Artifact, End, LogLine, Progress, Receipt, RunOutput};
use a2g_types::tool::Descriptor;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Value, json};

/// Maximum number of bytes of an artifact in one event, before base64.
pub const MAX_CHUNK_BYTES: usize = 192 << 10;

/// The reason for the rejection of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectReason {
    /// The token is not valid, or its caller may not act as the agent.
    AuthFailed,
    /// The client speaks another version of the protocol.
    VersionMismatch,
    /// The executor has none of the requested capabilities.
    NoCaps,
    /// The executor accepts no new sessions.
    ServerError,
}

impl RejectReason {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AuthFailed => "auth_failed",
            Self::VersionMismatch => "version_mismatch",
            Self::NoCaps => "no_caps",
            Self::ServerError => "server_error",
        }
    }
}

/// The content of an accepting handshake response.
#[derive(Debug, Clone, Copy)]
pub struct AcceptedHandshake<'a> {
    /// The id of the session.
    pub session_id: &'a str,
    /// The requested capabilities.
    pub requested_caps: &'a [String],
    /// Maximum number of concurrent calls.
    pub max_parallel: usize,
    /// The limits on an incoming message.
    pub bounds: JsonBounds,
    /// The number of tools in the catalogue.
    pub tools: usize,
}

/// An event of a running tool.
#[derive(Debug, Clone, Copy)]
pub enum CallEvent<'a> {
    /// A sentence about the run itself.
    Status(&'a str),
    /// A progress report of the tool.
    Progress(&'a Progress),
    /// A log line of the tool.
    Log(&'a LogLine),
    /// An output of the tool.
    Artifact(&'a Artifact),
    /// The file changes of a staged run.
    Staged(StagedRun<'a>),
}

/// A run, and the state of its file changes, if it is staged and they are known at this node.
#[derive(Debug, Clone, Copy)]
pub struct StagedRun<'a> {
    /// The receipt of the run.
    pub receipt: &'a Receipt,
    /// The state of its file changes.
    pub state: Option<&'a StagedState>,
}

/// A random id of 32 hexadecimal digits.
#[must_use]
pub fn random_id() -> String {
    IntentId::random().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `handshake/resp` of an accepted session. A requested capability that this executor lacks is listed as
/// disabled if it belongs to the protocol; clients do not parse other names.
#[must_use]
pub fn handshake_acceptance(req_id: &str, handshake: &AcceptedHandshake<'_>, ts: f64) -> String {
    let AcceptedHandshake { session_id, requested_caps, max_parallel, bounds, tools } = handshake;
    let mut accepted_caps: Vec<CapabilityEntry<'_>> = Vec::new();
    for requested in requested_caps.iter() {
        let is_tools = is_tools_capability(requested);
        let is_known = CAPABILITIES.iter().any(|(_, capability)| capability == requested);
        let is_repeated = accepted_caps.iter().any(|entry| entry.capability == requested);
        if is_repeated || !(is_tools || is_known) {
            continue;
        }
        let metadata = if is_tools {
            json!({
                "name": "a2g-executor",
                "type": TOOLS,
                "tools": tools,
                "max_message_bytes": bounds.max_bytes,
                "max_json_depth": bounds.max_depth,
            })
        } else {
            json!({ "reason": "this executor has tools only" })
        };
        accepted_caps.push(CapabilityEntry { capability: requested, enabled: is_tools, metadata });
    }
    let max_parallel = *max_parallel;
    let body = HandshakeResponse { req_id, session_id, accepted_caps, max_parallel, ok: true, reason: "" };
    line("handshake/resp", body, ts)
}

/// `handshake/resp` of a rejected session.
#[must_use]
pub fn handshake_rejection(req_id: &str, reason: RejectReason, max_parallel: usize, ts: f64) -> String {
    let accepted_caps = Vec::new();
    let reason = reason.as_str();
    let body = HandshakeResponse { req_id, session_id: "", accepted_caps, max_parallel, ok: false, reason };
    line("handshake/resp", body, ts)
}

/// `pong`
#[must_use]
pub fn pong(req_id: &str, uptime_seconds: f64, ts: f64) -> String {
    line("pong", Pong { req_id, uptime_seconds }, ts)
}

/// `tool/list/resp` with the tools that pass the filter.
#[must_use]
pub fn tool_list(req_id: &str, catalogue: &[Descriptor], filter: &ToolFilter, ts: f64) -> String {
    let tools = tools::list_definitions(catalogue, filter);
    line("tool/list/resp", ToolListResponse { req_id, tools: &tools }, ts)
}

/// `tool/event`s for one event, numbered from `first`: several for a large artifact, none for the changes of a run that is
/// not staged, otherwise one.
#[must_use]
pub fn events(req_id: &str, first: u64, event: CallEvent<'_>, ts: f64) -> Vec<String> {
    let events = event_data(event).into_iter().zip(first..);
    events.map(|((kind, data), seq)| line("tool/event", ToolEvent { kind, req_id, data, seq }, ts)).collect()
}

/// `tool/call/resp` of a run, successful or not. With `events_from` the result contains all events, numbered
/// from there, for a client that did not request streaming.
#[must_use]
pub fn call_response(req_id: &str, run: StagedRun<'_>, events_from: Option<u64>, ts: f64) -> String {
    let StagedRun { receipt, state: _ } = run;
    let outcome = &receipt.outcome;
    let failure = fault::receipt_error(receipt);
    let events = events_from.map(|first| collect_events(req_id, first, run, ts));
    let (error_code, error) = failure.map(|(code, message)| (code.as_str(), message)).unzip();
    let data = ToolResult {
        success: error.is_none(),
        tool_name: receipt.tool.as_str(),
        data: outcome.end.result(),
        summary: run_summary(run),
        truncated: outcome.output.truncated,
        exit_code: if let End::Exited { code, stderr_tail: _ } = &outcome.end { Some(*code) } else { None },
        error,
        error_code,
        duration_ms: outcome.metrics.duration_ms(),
        events: events.unwrap_or_default(),
    };
    line("tool/call/resp", ToolCallResponse { req_id, data, created_at: ts }, ts)
}

/// `error`; `req_id` is empty when the message's id was unreadable.
#[must_use]
pub fn error(req_id: Option<&str>, failure: &A2eError, ts: f64) -> String {
    let A2eError { code, message, detail, retryable, capability } = failure;
    let body = ErrorBody {
        req_id: req_id.unwrap_or_default(),
        code: code.as_str(),
        message,
        detail,
        retryable: *retryable,
        capability_name: capability,
    };
    line("error", body, ts)
}

/// The body of `GET /a2e/health`.
#[must_use]
pub fn health(uptime_seconds: f64) -> String {
    let health =
        json!({ "status": "ok", "a2e": VERSION, "version": VERSION, "uptime_seconds": uptime_seconds });
    to_raw(&health).get().to_owned()
}

/// The body of the answer to `POST /a2e/session`.
#[must_use]
pub fn session(session_id: &str) -> String {
    to_raw(&json!({ "session_id": session_id })).get().to_owned()
}

fn envelope<B: Serialize>(kind: &'static str, body: B, ts: f64) -> Envelope<B> {
    Envelope { a2e: VERSION, version: VERSION, kind, id: random_id(), ts, body }
}

fn line(kind: &'static str, body: impl Serialize, ts: f64) -> String {
    to_raw(&envelope(kind, body, ts)).get().to_owned()
}

/// Id, status and measurements of a run, and the state of the file changes of a staged one.
fn run_summary(StagedRun { receipt, state }: StagedRun<'_>) -> Value {
    let metrics = &receipt.outcome.metrics;
    let mut summary = json!({
        "intent_id": receipt.intent.to_string(),
        "status": receipt.outcome.end.status().as_str(),
        "memory_used_mb": metrics.memory_used_mb(),
        "cpu_percent": metrics.cpu_percent(),
    });
    if let (End::LimitReached(limit), Some(summary)) = (&receipt.outcome.end, summary.as_object_mut()) {
        summary.insert("limit".to_owned(), limit.as_str().into());
    }
    if let (Some(effects), Some(summary)) = (staged::short_member(receipt, state), summary.as_object_mut()) {
        summary.insert("effects".to_owned(), effects.into());
    }
    if let (Some(session), Some(summary)) = (measurements::session(receipt), summary.as_object_mut()) {
        summary.insert("session".to_owned(), session);
    }
    summary
}

/// The events of a finished run: log lines in order, the last progress, artifacts in order, and the file changes that
/// wait.
fn collect_events<'a>(
    req_id: &'a str,
    first: u64,
    run: StagedRun<'_>,
    ts: f64,
) -> Vec<Envelope<ToolEvent<'a>>> {
    let RunOutput { logs, progress, artifacts, truncated: _ } = &run.receipt.outcome.output;
    let events = logs.iter().map(CallEvent::Log);
    let events = events.chain(progress.iter().map(CallEvent::Progress));
    let events = events.chain(artifacts.iter().map(CallEvent::Artifact));
    let events = events.chain([CallEvent::Staged(run)]);
    let numbered = events.flat_map(event_data).zip(first..);
    let message = |((kind, data), seq)| envelope("tool/event", ToolEvent { kind, req_id, data, seq }, ts);
    numbered.map(message).collect()
}

/// Kind and data of each wire event. Progress without a percentage is sent as a status.
fn event_data(event: CallEvent<'_>) -> Vec<(&'static str, Value)> {
    let status = |message: &str| ("status", json!({ "message": message }));
    match event {
        CallEvent::Status(message) => vec![status(message)],
        CallEvent::Progress(Progress { percent: None, message }) => vec![status(message)],
        CallEvent::Progress(Progress { percent: Some(percent), message }) => {
            vec![("progress", json!({ "pct": whole_percent(*percent), "message": message }))]
        }
        CallEvent::Log(LogLine { level, message }) => {
            vec![("log", json!({ "level": level.as_str(), "message": message }))]
        }
        CallEvent::Artifact(artifact) => artifact_chunks(artifact),
        CallEvent::Staged(run) => staged_event(run).into_iter().collect(),
    }
}

/// The text about the file changes of a staged run, and the changes for programs; `None` for any other run.
fn staged_event(StagedRun { receipt, state }: StagedRun<'_>) -> Option<(&'static str, Value)> {
    let message = staged::text(receipt, state)?;
    Some(("status", json!({ "message": message, "effects": staged::member(receipt, state) })))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the value is from 0 to 100")]
fn whole_percent(percent: f32) -> u8 {
    // The cast maps NaN to 0.
    percent.clamp(0.0, 100.0) as u8
}

fn artifact_chunks(artifact: &Artifact) -> Vec<(&'static str, Value)> {
    let Artifact { name, mime, content } = artifact;
    let chunk = |bytes: &[u8], last: bool| {
        let chunk = STANDARD.encode(bytes);
        ("artifact", json!({ "name": name, "mime": mime, "chunk": chunk, "final": last }))
    };
    let mut pieces = content.chunks(MAX_CHUNK_BYTES).peekable();
    let mut events = Vec::new();
    while let Some(piece) = pieces.next() {
        events.push(chunk(piece, pieces.peek().is_none()));
    }
    if events.is_empty() {
        events.push(chunk(&[], true));
    }
    events
}
