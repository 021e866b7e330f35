//! Messages of this door, each one line without its end. The time is given: nothing here reads a clock.

use super::decode::ToolFilter;
use super::fault::{self, A2eError};
use super::message::{
    Capability, Envelope, Error, HandshakeResponse, Pong, ToolCallResponse, ToolEvent, ToolListResponse,
    ToolResult,
};
use super::{CAPABILITIES, TOOLS, VERSION, means_tools, tools};
use crate::ident::IntentId;
use crate::outcome::{Artifact, End, LogLine, Output, Progress, Receipt};
use crate::tool::Descriptor;
use crate::wire::raw;
use crate::wire::strict_json::JsonBounds;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Value, json};

/// The most bytes of an artifact in one event.
pub const MAX_CHUNK_BYTES: usize = 192 << 10;

/// Why a handshake is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Nobody is known by the token, or its bearer does not speak for the agent.
    AuthFailed,
    /// Another version of the protocol.
    VersionMismatch,
    /// Nothing of what was asked for is here.
    NoCaps,
    /// The executor does not begin anything new.
    ServerError,
}

impl Reason {
    /// The word on the wire.
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

/// A handshake that holds.
#[derive(Debug, Clone, Copy)]
pub struct Accepted<'a> {
    /// The session.
    pub session_id: &'a str,
    /// What was asked for.
    pub asked: &'a [String],
    /// How many calls run at once.
    pub max_parallel: usize,
    /// How long and how deep a message may be.
    pub bounds: JsonBounds,
    /// How many tools there are.
    pub tools: usize,
}

/// Something that happened while a tool runs.
#[derive(Debug, Clone, Copy)]
pub enum Happened<'a> {
    /// A sentence about the run itself.
    Status(&'a str),
    /// How far the tool is.
    Progress(&'a Progress),
    /// A line of its log.
    Log(&'a LogLine),
    /// Something it made.
    Artifact(&'a Artifact),
}

/// A new id, as the protocol writes them.
#[must_use]
pub fn fresh_id() -> String {
    IntentId::random().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `handshake/resp` of a session that begins. What was asked for and is not here is listed as such when it
/// is one of the protocol's capabilities; clients do not read others.
#[must_use]
pub fn accepted(req_id: &str, handshake: &Accepted<'_>, ts: f64) -> String {
    let Accepted { session_id, asked, max_parallel, bounds, tools } = handshake;
    let mut accepted_caps: Vec<Capability<'_>> = Vec::new();
    for asked in asked.iter() {
        let ours = means_tools(asked);
        let of_the_protocol = CAPABILITIES.iter().any(|(_, capability)| capability == asked);
        let again = accepted_caps.iter().any(|known| known.capability == asked);
        if again || !(ours || of_the_protocol) {
            continue;
        }
        let metadata = if ours {
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
        accepted_caps.push(Capability { capability: asked, enabled: ours, metadata });
    }
    let max_parallel = *max_parallel;
    let body = HandshakeResponse { req_id, session_id, accepted_caps, max_parallel, ok: true, reason: "" };
    line("handshake/resp", body, ts)
}

/// `handshake/resp` of a session that does not begin.
#[must_use]
pub fn refused(req_id: &str, reason: Reason, max_parallel: usize, ts: f64) -> String {
    let (accepted_caps, reason) = (Vec::new(), reason.as_str());
    let body = HandshakeResponse { req_id, session_id: "", accepted_caps, max_parallel, ok: false, reason };
    line("handshake/resp", body, ts)
}

/// `pong`
#[must_use]
pub fn pong(req_id: &str, uptime_seconds: f64, ts: f64) -> String {
    line("pong", Pong { req_id, uptime_seconds }, ts)
}

/// `tool/list/resp` with the tools that the filter lets through.
#[must_use]
pub fn tools(req_id: &str, catalogue: &[Descriptor], filter: &ToolFilter, ts: f64) -> String {
    let tools = tools::definitions(catalogue, filter);
    line("tool/list/resp", ToolListResponse { req_id, tools: &tools }, ts)
}

/// What happened as `tool/event`s, the first with this `seq`: one, or several for a large artifact.
#[must_use]
pub fn events(req_id: &str, first: u64, happened: Happened<'_>, ts: f64) -> Vec<String> {
    let events = parts(happened).into_iter().zip(first..);
    events.map(|((kind, data), seq)| line("tool/event", ToolEvent { kind, req_id, data, seq }, ts)).collect()
}

/// `tool/call/resp` of a tool that ran, whatever became of it. `events_from` is given when events were not
/// taken as they came: the result then has all of them, the first with this `seq`.
#[must_use]
pub fn result(req_id: &str, receipt: &Receipt, events_from: Option<u64>, ts: f64) -> String {
    let outcome = &receipt.outcome;
    let failed = fault::of_receipt(receipt);
    let events = events_from.map(|first| collected(req_id, first, &outcome.output, ts));
    let (error_code, error) = failed.map(|(code, message)| (code.as_str(), message)).unzip();
    let data = ToolResult {
        success: error.is_none(),
        tool_name: receipt.tool.as_str(),
        data: if let End::Returned(result) = &outcome.end { Some(result) } else { None },
        summary: summary(receipt),
        truncated: outcome.output.truncated,
        exit_code: if let End::Exited { code, stderr_tail: _ } = &outcome.end { Some(*code) } else { None },
        error,
        error_code,
        duration_ms: outcome.metrics.duration_ms(),
        events: events.unwrap_or_default(),
    };
    line("tool/call/resp", ToolCallResponse { req_id, data, created_at: ts }, ts)
}

/// `error`, about a message whose id could be read or not.
#[must_use]
pub fn error(req_id: Option<&str>, failure: &A2eError, ts: f64) -> String {
    let A2eError { code, message, detail, retryable, capability } = failure;
    let body = Error {
        req_id: req_id.unwrap_or_default(),
        code: code.as_str(),
        message,
        detail,
        retryable: *retryable,
        capability_name: capability,
    };
    line("error", body, ts)
}

/// What `GET /a2e/health` answers.
#[must_use]
pub fn health(uptime_seconds: f64) -> String {
    let health =
        json!({ "status": "ok", "a2e": VERSION, "version": VERSION, "uptime_seconds": uptime_seconds });
    raw(&health).get().to_owned()
}

/// What `POST /a2e/session` answers.
#[must_use]
pub fn session(session_id: &str) -> String {
    raw(&json!({ "session_id": session_id })).get().to_owned()
}

fn envelope<B: Serialize>(kind: &'static str, body: B, ts: f64) -> Envelope<B> {
    Envelope { a2e: VERSION, version: VERSION, kind, id: fresh_id(), ts, body }
}

fn line(kind: &'static str, body: impl Serialize, ts: f64) -> String {
    raw(&envelope(kind, body, ts)).get().to_owned()
}

/// What the run was and used, beside its result.
fn summary(receipt: &Receipt) -> Value {
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
    summary
}

/// All that a run showed: log lines in order, its last progress, artifacts in order.
fn collected<'a>(req_id: &'a str, first: u64, output: &Output, ts: f64) -> Vec<Envelope<ToolEvent<'a>>> {
    let Output { logs, progress, artifacts, truncated: _ } = output;
    let happened = logs.iter().map(Happened::Log);
    let happened = happened.chain(progress.iter().map(Happened::Progress));
    let happened = happened.chain(artifacts.iter().map(Happened::Artifact));
    let events = happened.flat_map(parts).zip(first..);
    let event = |((kind, data), seq)| envelope("tool/event", ToolEvent { kind, req_id, data, seq }, ts);
    events.map(event).collect()
}

/// Kind and data of each event. A tool that does not know how far it is has a status.
fn parts(happened: Happened<'_>) -> Vec<(&'static str, Value)> {
    let status = |message: &str| ("status", json!({ "message": message }));
    match happened {
        Happened::Status(message) => vec![status(message)],
        Happened::Progress(Progress { percent: None, message }) => vec![status(message)],
        Happened::Progress(Progress { percent: Some(percent), message }) => {
            vec![("progress", json!({ "pct": whole_percent(*percent), "message": message }))]
        }
        Happened::Log(LogLine { level, message }) => {
            vec![("log", json!({ "level": level.as_str(), "message": message }))]
        }
        Happened::Artifact(artifact) => chunks(artifact),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is from 0 to 100")]
fn whole_percent(percent: f32) -> u8 {
    // What is not a number is 0.
    percent.clamp(0.0, 100.0) as u8
}

fn chunks(artifact: &Artifact) -> Vec<(&'static str, Value)> {
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
