//! Answers of this door.

use super::decode::Form;
use super::fault::{self, SovereignError};
use super::message::{AgentCard, Flat, Metadata, Outcome, Reason, Response, Success};
use super::skills;
use crate::json::JsonText;
use crate::outcome::{Artifact, End, LogLine, Progress, Receipt};
use crate::tool::Descriptor;
use crate::wire::jsonrpc::Id;
use crate::wire::raw;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// To whom, and in which form, an answer goes.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The form of the request.
    pub form: Form,
    /// Its id, or the one that was made for it.
    pub id: Id,
    /// The skill that was asked for.
    pub skill: Option<String>,
    /// The operation that was asked for.
    pub operation: Option<String>,
}

/// A piece of a result, while the tool runs.
#[derive(Debug, Clone, Copy)]
pub enum Chunk<'a> {
    /// How far the tool is.
    Progress(&'a Progress),
    /// A line of its log.
    Log(&'a LogLine),
    /// Something it made.
    Artifact(&'a Artifact),
}

impl Reply {
    /// The answer to a run, whatever became of it.
    #[must_use]
    pub fn report(&self, receipt: &Receipt, tools: &[Descriptor]) -> String {
        let result = match (&receipt.outcome.end, fault::of_receipt(receipt)) {
            (_, Some(failure)) => return self.failure(&failure),
            (End::Returned(result), None) => result.clone(),
            (_, None) => JsonText::null(),
        };
        let status_code = receipt.outcome.end.status().as_str();
        if self.form == Form::Legacy {
            return self.flat(Flat {
                request_id: self.id.raw(),
                success: true,
                status_code,
                data: Some(&result),
                error: None,
                error_code: None,
                error_data: None,
            });
        }
        let artifacts = receipt.outcome.output.artifacts.iter().map(artifact).collect();
        let answer = Outcome::Success(Success { success: true, status_code, data: &result, artifacts });
        let metadata = Metadata {
            agent_card: Some(agent_card(tools)),
            context_hints: hints(receipt),
            partial: None,
            remaining: None,
        };
        self.response(Some(answer), None, metadata)
    }

    /// An error.
    #[must_use]
    pub fn failure(&self, failure: &SovereignError) -> String {
        let data = fault::data(failure, self.skill.as_deref(), self.operation.as_deref());
        if self.form == Form::Legacy {
            return self.flat(Flat {
                request_id: self.id.raw(),
                success: false,
                status_code: &failure.status_code,
                data: None,
                error: Some(&failure.message),
                error_code: Some(failure.code),
                error_data: Some(&data),
            });
        }
        let reason = Reason { code: failure.code, message: &failure.message, data: &data };
        let metadata =
            Metadata { agent_card: None, context_hints: Map::new(), partial: None, remaining: None };
        self.response(None, Some(reason), metadata)
    }

    /// The `index`th part of a result that is still to come. How many more there are is not known.
    #[must_use]
    pub fn partial(&self, chunk: Chunk<'_>, index: u64) -> String {
        let chunk = match chunk {
            Chunk::Progress(Progress { percent, message }) => {
                json!({ "kind": "progress", "percent": percent, "message": message })
            }
            Chunk::Log(LogLine { level, message }) => {
                json!({ "kind": "log", "level": level.as_str(), "message": message })
            }
            Chunk::Artifact(made) => {
                let mut chunk = artifact(made);
                if let Some(chunk) = chunk.as_object_mut() {
                    chunk.insert("kind".to_owned(), "artifact".into());
                }
                chunk
            }
        };
        let metadata = Metadata {
            agent_card: None,
            context_hints: Map::new(),
            partial: Some(true),
            remaining: Some(-1),
        };
        let part = Outcome::Partial(json!({ "chunk": chunk, "index": index }));
        self.response(Some(part), None, metadata)
    }

    fn response(
        &self,
        result: Option<Outcome<'_>>,
        error: Option<Reason<'_>>,
        metadata: Metadata<'_>,
    ) -> String {
        let (jsonrpc, metadata) = match self.form {
            Form::Sovereign | Form::Legacy => ("3.0", Some(metadata)),
            Form::JsonRpc2 => ("2.0", None),
        };
        raw(&Response { jsonrpc, id: self.id.raw(), result, error, metadata }).get().to_owned()
    }

    fn flat(&self, answer: Flat<'_>) -> String {
        raw(&answer).get().to_owned()
    }
}

/// What `GET /capabilities` answers.
#[must_use]
pub fn capabilities(tools: &[Descriptor]) -> String {
    let skills = skills::all(tools).into_iter().map(|(skill, operations)| {
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
    raw(&answer).get().to_owned()
}

fn agent_card(tools: &[Descriptor]) -> AgentCard<'_> {
    AgentCard {
        name: "a2g-executor",
        version: env!("CARGO_PKG_VERSION"),
        skills: skills::all(tools).into_keys().collect(),
        capabilities: ["partial_results"],
        trust_level: "governed",
    }
}

/// How the answer came about.
fn hints(receipt: &Receipt) -> Map<String, Value> {
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
