//! What the governor and people decided about a task: `GET /a2a/tasks/{id}/governor/history`, in the shapes of the
//! A2A-ACP document.

use crate::verdict::Verdict;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

/// The option that lets a call run.
pub const APPROVED: &str = "approved";
/// The option that does not.
pub const DENIED: &str = "denied";
/// Where a decision came from that the governor made.
pub const BY_GOVERNOR: &str = "governor";

/// The whole of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Governance {
    /// What was decided, in order.
    pub permission_decisions: Vec<PermissionDecision>,
    /// What waits for a person.
    pub pending_permissions: Vec<PendingPermission>,
    /// What the governor said beside its decision.
    pub governor_feedback: Vec<Feedback>,
}

/// One decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionDecision {
    /// The call, by its intent.
    pub tool_call_id: String,
    /// Who decided: `governor`, or `caller:` and the name of a caller.
    pub source: String,
    /// [`APPROVED`] or [`DENIED`].
    pub option_id: String,
    /// The governors that were asked.
    pub governors_involved: Vec<String>,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub timestamp: OffsetDateTime,
    /// `summary`, a list of sentences, and what else is known.
    pub metadata: Map<String, Value>,
}

/// A call that waits for a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingPermission {
    /// The call, by its intent.
    pub tool_call_id: String,
    /// The tool.
    pub tool_id: String,
    /// What can be answered.
    pub options: Vec<PermissionOption>,
    /// What is asked.
    pub summary: Vec<String>,
    /// Since when it waits. The document writes this one name with `_`.
    #[serde(rename = "created_at", with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// One answer that can be given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionOption {
    /// What to send as `permissionOptionId`.
    pub option_id: String,
    /// What it means, for people.
    pub name: String,
}

/// What the governor said beside its decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Feedback {
    /// `pre_run`: this governor speaks before a run only.
    pub phase: String,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub timestamp: OffsetDateTime,
    /// In one sentence.
    pub summary: Vec<String>,
    /// From each governor.
    pub results: Vec<FeedbackResult>,
}

/// What one governor said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FeedbackResult {
    /// Which.
    pub governor_id: String,
    /// Its verdict in lower case.
    pub status: String,
    /// Its reason, its conditions and the threats that it saw.
    pub messages: Vec<String>,
}

/// The two answers that can be given to a call that waits.
#[must_use]
pub fn options() -> Vec<PermissionOption> {
    [(APPROVED, "Let it run as the governor granted it"), (DENIED, "Do not run it")]
        .into_iter()
        .map(|(option_id, name)| PermissionOption { option_id: option_id.to_owned(), name: name.to_owned() })
        .collect()
}

impl PermissionDecision {
    /// One decision about a call.
    #[must_use]
    pub fn new(call: &str, source: &str, approved: bool, at: OffsetDateTime, summary: &str) -> Self {
        Self {
            tool_call_id: call.to_owned(),
            source: source.to_owned(),
            option_id: if approved { APPROVED } else { DENIED }.to_owned(),
            governors_involved: vec![BY_GOVERNOR.to_owned()],
            timestamp: at,
            metadata: Map::from_iter([("summary".to_owned(), json!([summary]))]),
        }
    }
}

impl Feedback {
    /// What a verdict says.
    #[must_use]
    pub fn of(verdict: &Verdict, at: OffsetDateTime) -> Self {
        let word = verdict.decision.as_str();
        let summary = match &verdict.risk {
            Some(risk) => format!("{word}, with a risk score of {} ({})", risk.score, risk.level.as_str()),
            None => word.to_owned(),
        };
        let threats = verdict.risk.iter().flat_map(|risk| risk.threats.iter().cloned());
        let messages = verdict.reason.iter().chain(&verdict.conditions).cloned().chain(threats).collect();
        Self {
            phase: "pre_run".to_owned(),
            timestamp: at,
            summary: vec![summary],
            results: vec![FeedbackResult {
                governor_id: BY_GOVERNOR.to_owned(),
                status: word.to_ascii_lowercase(),
                messages,
            }],
        }
    }
}
