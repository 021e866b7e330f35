//! Encoder of this door's responses.

use super::decode::RequestForm;
use super::fault::{self, SovereignError};
use super::message::{
    AgentCard, LegacyResponse, ResponseError, ResponseMetadata, ResponseResult, SovereignResponse,
    SuccessResult,
};
use super::skills;
use crate::jsonrpc::Id;
use crate::measurements;
use crate::staged::{self, StagedState};
use crate::to_raw;
use a2g_types::json::JsonText;
use a2g_types::outcome::{Artifact, LogLine, Progress, Receipt};
use a2g_types::tool::Descriptor;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// The parts of a request that its responses repeat.
#[derive(Debug, Clone)]
pub struct ReplyEncoder {
    /// The form of the request.
    pub form: RequestForm,
    /// The request's id, or a random one if it had none.
    pub id: Id,
    /// The requested skill.
    pub skill: Option<String>,
    /// The requested operation.
    pub operation: Option<String>,
}

/// A partial result of a running tool.
#[derive(Debug, Clone, Copy)]
pub enum PartialResult<'a> {
    /// A progress report of the tool.
    Progress(&'a Progress),
    /// A log line of the tool.
    Log(&'a LogLine),
    /// An output of the tool.
    Artifact(&'a Artifact),
}

impl ReplyEncoder {
    /// The response to a finished run, successful or not. `state` is that of the file changes of a staged run.
    #[must_use]
    pub fn report(&self, receipt: &Receipt, state: Option<&StagedState>, tools: &[Descriptor]) -> String {
        let session = measurements::session(receipt);
        if let Some(failure) = fault::receipt_error(receipt) {
            return self.failure(&match session {
                Some(session) => failure.with_data("session", session),
                None => failure,
            });
        }
        let result = receipt.outcome.end.result().cloned().unwrap_or_else(JsonText::null);
        let effects = staged::member(receipt, state);
        let status_code = receipt.outcome.end.status().as_str();
        if self.form == RequestForm::Legacy {
            return self.flat(LegacyResponse {
                request_id: self.id.as_raw(),
                success: true,
                status_code,
                data: Some(&result),
                effects,
                session,
                error: None,
                error_code: None,
                error_data: None,
            });
        }
        let artifacts = receipt.outcome.output.artifacts.iter().map(artifact).collect();
        let answer = SuccessResult { success: true, status_code, data: &result, artifacts, effects, session };
        let metadata = ResponseMetadata {
            agent_card: Some(agent_card(tools)),
            context_hints: run_hints(receipt),
            partial: None,
            remaining: None,
        };
        self.response(Some(ResponseResult::Success(answer)), None, metadata)
    }

    /// An error response.
    #[must_use]
    pub fn failure(&self, failure: &SovereignError) -> String {
        let data = fault::error_data(failure, self.skill.as_deref(), self.operation.as_deref());
        if self.form == RequestForm::Legacy {
            return self.flat(LegacyResponse {
                request_id: self.id.as_raw(),
                success: false,
                status_code: &failure.status_code,
                data: None,
                effects: None,
                session: None,
                error: Some(&failure.message),
                error_code: Some(failure.code),
                error_data: Some(&data),
            });
        }
        let reason = ResponseError { code: failure.code, message: &failure.message, data: &data };
        let metadata =
            ResponseMetadata { agent_card: None, context_hints: Map::new(), partial: None, remaining: None };
        self.response(None, Some(reason), metadata)
    }

    /// A partial result with its number, from 0. `remaining` is -1, because the number of further parts is
    /// unknown.
    #[must_use]
    pub fn partial(&self, chunk: PartialResult<'_>, index: u64) -> String {
        let chunk = match chunk {
            PartialResult::Progress(Progress { percent, message }) => {
                json!({ "kind": "progress", "percent": percent, "message": message })
            }
            PartialResult::Log(LogLine { level, message }) => {
                json!({ "kind": "log", "level": level.as_str(), "message": message })
            }
            PartialResult::Artifact(output) => {
                let mut chunk = artifact(output);
                if let Some(chunk) = chunk.as_object_mut() {
                    chunk.insert("kind".to_owned(), "artifact".into());
                }
                chunk
            }
        };
        let metadata = ResponseMetadata {
            agent_card: None,
            context_hints: Map::new(),
            partial: Some(true),
            remaining: Some(-1),
        };
        let part = ResponseResult::Partial(json!({ "chunk": chunk, "index": index }));
        self.response(Some(part), None, metadata)
    }

    fn response(
        &self,
        result: Option<ResponseResult<'_>>,
        error: Option<ResponseError<'_>>,
        metadata: ResponseMetadata<'_>,
    ) -> String {
        let (jsonrpc, metadata) = match self.form {
            RequestForm::Sovereign | RequestForm::Legacy => ("3.0", Some(metadata)),
            RequestForm::JsonRpc2 => ("2.0", None),
        };
        to_raw(&SovereignResponse { jsonrpc, id: self.id.as_raw(), result, error, metadata }).get().to_owned()
    }

    fn flat(&self, answer: LegacyResponse<'_>) -> String {
        to_raw(&answer).get().to_owned()
    }
}

/// The body of `GET /capabilities`.
#[must_use]
pub fn capabilities(tools: &[Descriptor]) -> String {
    let skills = skills::group_by_skill(tools).into_iter().map(|(skill, operations)| {
        let operations = operations.into_iter().map(|(operation, tool)| {
            json!({
                "name": operation,
                "tool": tool.name.as_str(),
                "description": tool.description,
                "version": tool.version,
                "payload_schema": tool.arguments_schema,
            })
        });
        json!({ "name": skill, "operations": operations.collect::<Vec<_>>() })
    });
    let answer = json!({
        "jsonrpc": "3.0",
        "agent_card": agent_card(tools),
        "skills": skills.collect::<Vec<_>>(),
    });
    to_raw(&answer).get().to_owned()
}

fn agent_card(tools: &[Descriptor]) -> AgentCard<'_> {
    AgentCard {
        name: "a2g-executor",
        version: env!("CARGO_PKG_VERSION"),
        skills: skills::group_by_skill(tools).into_keys().collect(),
        capabilities: ["partial_results"],
        trust_level: "governed",
    }
}

/// The measurements of a run.
fn run_hints(receipt: &Receipt) -> Map<String, Value> {
    let metrics = &receipt.outcome.metrics;
    let hints = json!({
        "execution_path": "governor/wasm",
        "intent_id": receipt.intent.to_string(),
        "duration_ms": metrics.duration_ms(),
        "memory_used_mb": metrics.memory_used_mb(),
        "cpu_percent": metrics.cpu_percent(),
        "truncated": receipt.outcome.output.truncated,
    });
    hints.as_object().cloned().unwrap_or_default()
}

fn artifact(artifact: &Artifact) -> Value {
    let Artifact { name, mime, content } = artifact;
    json!({ "name": name, "mime": mime, "bytes": STANDARD.encode(content) })
}
