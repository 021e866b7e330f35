//! Decisions of the governor and of people on a task: `GET /a2a/tasks/{id}/governor/history`, in the shapes of the
//! A2A-ACP document.

use super::message::Part;
use crate::staged;
use a2g_types::outcome::{ChangeState, FileChanges};
use a2g_types::verdict::Verdict;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use strum::{IntoStaticStr, VariantArray};
use time::OffsetDateTime;

/// The `source` of the governor's own decisions.
pub const GOVERNOR_SOURCE: &str = "governor";

/// An answer to a permission prompt. Those about file changes have other names than those about a call, so that an answer
/// to one prompt, sent again, never answers the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum PermissionAnswer {
    /// The call may run.
    Approved,
    /// The call never runs.
    Denied,
    /// The file changes take effect.
    Commit,
    /// The file changes never take effect.
    Discard,
}

impl PermissionAnswer {
    /// The `optionId`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The answer that has brought file changes into a state; `None` if they wait, or if it was followed by an undo.
    #[must_use]
    pub fn leading_to(state: ChangeState) -> Option<Self> {
        match state {
            ChangeState::Sending | ChangeState::InForce | ChangeState::Kept => Some(Self::Commit),
            ChangeState::Discarded => Some(Self::Discard),
            ChangeState::Waiting | ChangeState::Undone => None,
        }
    }
}

/// The governance history of one task, which is the whole response.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Governance {
    /// The decisions, oldest first.
    pub permission_decisions: Vec<PermissionDecision>,
    /// Calls that wait for a person.
    pub pending_permissions: Vec<PendingPermission>,
    /// The reasons that the governor gave with its decision.
    pub governor_feedback: Vec<Feedback>,
}

/// One decision on a call, or on its file changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionDecision {
    /// The id of the call's intent.
    pub tool_call_id: String,
    /// The author of the decision: `governor`, `directive`, or `caller:` and the name of a caller at this door. The decision
    /// on file changes at another door has the name in its report.
    pub source: String,
    /// The name of a [`PermissionAnswer`].
    pub option_id: String,
    /// The governors that took part: always [`GOVERNOR_SOURCE`].
    pub governors_involved: Vec<String>,
    /// The time of the decision.
    #[serde(with = "time::serde::rfc3339")]
    pub timestamp: OffsetDateTime,
    /// `summary`, a list of sentences.
    pub metadata: Map<String, Value>,
}

/// A call that waits for a person, or whose file changes do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingPermission {
    /// The id of the call's intent.
    pub tool_call_id: String,
    /// The name of the tool; `effects.commit` if the file changes of the call wait.
    pub tool_id: String,
    /// The possible answers.
    pub options: Vec<PermissionOption>,
    /// The question, in sentences.
    pub summary: Vec<String>,
    /// The time since which the call waits. Only this member has a name with `_` in the document.
    #[serde(rename = "created_at", with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// One possible answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionOption {
    /// The value for `permissionOptionId`.
    pub option_id: String,
    /// A label for people.
    pub name: String,
}

/// The reasons that the governor gave with its decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Feedback {
    /// Always `pre_run`: governors answer only before a run.
    pub phase: String,
    /// The time at which the verdict was recorded.
    #[serde(with = "time::serde::rfc3339")]
    pub timestamp: OffsetDateTime,
    /// One sentence, with the decision and the risk.
    pub summary: Vec<String>,
    /// One result for each governor.
    pub results: Vec<FeedbackResult>,
}

/// The answer of one governor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FeedbackResult {
    /// The governor.
    pub governor_id: String,
    /// The governor's decision, in lower case.
    pub status: String,
    /// The governor's reason, conditions and detected threats.
    pub messages: Vec<String>,
}

/// The two possible answers to a call that waits.
#[must_use]
pub fn permission_options() -> Vec<PermissionOption> {
    options([
        (PermissionAnswer::Approved, "Let it run as the governor granted it"),
        (PermissionAnswer::Denied, "Do not run it"),
    ])
}

/// The two possible answers about file changes and requests that wait.
#[must_use]
pub fn changes_options(changes: &FileChanges) -> Vec<PermissionOption> {
    let [commit, discard] = staged::decision_labels(changes);
    options([(PermissionAnswer::Commit, commit.as_str()), (PermissionAnswer::Discard, discard.as_str())])
}

fn options(choices: [(PermissionAnswer, &str); 2]) -> Vec<PermissionOption> {
    let option = |(answer, name): (PermissionAnswer, &str)| PermissionOption {
        option_id: answer.as_str().to_owned(),
        name: name.to_owned(),
    };
    Vec::from(choices.map(option))
}

impl PendingPermission {
    /// The message of the task that waits.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        let prompt = json!({
            "toolCallId": self.tool_call_id,
            "toolId": self.tool_id,
            "permission_options": self.options,
        });
        let question = Part::text(self.summary.join("\n"));
        vec![question, Part::data(prompt.as_object().cloned().unwrap_or_default())]
    }
}

impl PermissionDecision {
    /// A decision on the intent `call`, made `at` this time.
    #[must_use]
    pub fn new(
        call: &str,
        source: &str,
        answer: PermissionAnswer,
        at: OffsetDateTime,
        summary: &str,
    ) -> Self {
        Self {
            tool_call_id: call.to_owned(),
            source: source.to_owned(),
            option_id: answer.as_str().to_owned(),
            governors_involved: vec![GOVERNOR_SOURCE.to_owned()],
            timestamp: at,
            metadata: Map::from_iter([("summary".to_owned(), json!([summary]))]),
        }
    }
}

impl Feedback {
    /// The feedback that a verdict contains, recorded `at` this time.
    #[must_use]
    pub fn from_verdict(verdict: &Verdict, at: OffsetDateTime) -> Self {
        let decision = verdict.decision.as_str();
        let summary = match &verdict.risk {
            Some(risk) => {
                format!("{decision}, with a risk score of {} ({})", risk.score, risk.level.as_str())
            }
            None => decision.to_owned(),
        };
        let threats = verdict.risk.iter().flat_map(|risk| risk.threats.iter().cloned());
        let messages = verdict.reason.iter().chain(&verdict.conditions).cloned().chain(threats).collect();
        Self {
            phase: "pre_run".to_owned(),
            timestamp: at,
            summary: vec![summary],
            results: vec![FeedbackResult {
                governor_id: GOVERNOR_SOURCE.to_owned(),
                status: decision.to_ascii_lowercase(),
                messages,
            }],
        }
    }
}
