//! The questions to a person, about a call that waits and about the file changes of a staged run, and the person's answers
//! (elicitation).

use super::Revision;
use super::encode::notify;
use super::resources::receipt_uri;
use crate::field::{Field, Object};
use crate::staged::{self, StagedState};
use crate::to_raw;
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::outcome::Receipt;
use a2g_types::session::{CallSession, SessionRequest};
use a2g_types::tool::Digest;
use a2g_types::verdict::{Manifest, Verdict};
use a2g_types::visible_text::escape_invisible;
use serde_json::{Value, json};

/// The key of the question about a call that waits, among `inputRequests` and `inputResponses`.
const CALL_KEY: &str = "decision";
/// The key of the question about file changes that wait. It is another one, so that the answer to one question never
/// counts for the other.
const CHANGES_KEY: &str = "changes";
/// The name of the field of the form.
const FIELD: &str = "decision";
/// The maximum length of the arguments in a question, in characters.
const MAX_ARGUMENT_CHARS: usize = 4_000;
/// The maximum length of a governor's reason in a question, in characters.
const MAX_REASON_CHARS: usize = 600;

/// A question to a person, as a client asks it.
#[derive(Debug, Clone, PartialEq)]
pub struct Elicitation {
    /// Its key among `inputRequests`.
    key: &'static str,
    /// The parameters of `elicitation/create`.
    pub params: Value,
}

impl Elicitation {
    /// The value of `inputRequests`: this server asks one question at a time.
    pub(super) fn requests(&self) -> Value {
        json!({ self.key: { "method": "elicitation/create", "params": self.params } })
    }
}

/// The question to a person about a call that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// To decide on the call in a form of the client.
    Decide,
    /// To continue once an approver has decided.
    WaitForApprover,
    /// To open this page of the console, on which an approver decides.
    OpenPage(String),
}

/// The person who decides on a call, or on its file changes, whose client cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decider {
    /// Only the person at the host: there is no port, and the governor is in this process.
    PersonAtHost,
    /// A person at the governor: there is no port.
    Governor,
    /// A caller with the role `approver`, at the port.
    Approver,
}

impl Decider {
    /// The choices of the person, as the end of a sentence.
    pub(super) fn who(self) -> &'static str {
        match self {
            Self::PersonAtHost => {
                "only the person at this host can decide, in a form of the host (MCP elicitation)"
            }
            Self::Governor => "a person at the governor decides",
            Self::Approver => "a caller with the role `approver` decides with `g2a/directive`",
        }
    }

    /// The way to a decision and to the result, in sentences for a model: it can call tools and tell its user, but sets
    /// no `_meta`.
    pub(super) fn advice(self, intent: IntentId) -> String {
        match self {
            Self::PersonAtHost => {
                "To show the form again, call the tool again. If this host shows no forms, the call cannot run here: change \
                 the arguments, use a host that shows forms, or one with `a2g-executor mcp --connect` and an \
                 `a2g-executor serve`, where an approver decides."
                    .to_owned()
            }
            Self::Governor | Self::Approver => format!(
                "Tell your user. If it is approved, it runs once by itself: do not call the tool again for it, because that \
                 would be another call that waits. Its result is then the resource `{}`.",
                receipt_uri(intent)
            ),
        }
    }

    /// The way to a decision on file changes that wait, in sentences for a model. `page` is the page of the console on
    /// which people decide, if there is one.
    pub(super) fn changes_advice(self, intent: IntentId, page: Option<&str>) -> String {
        let way = match self {
            Self::PersonAtHost => {
                "Only the person at this host can decide, in a form of the host (MCP elicitation).".to_owned()
            }
            Self::Governor => "Tell your user. A person at the governor decides.".to_owned(),
            Self::Approver => {
                let link = page.map_or_else(String::new, |url| format!(", or on the page {url}"));
                format!(
                    "Tell your user. A caller with the role `approver` decides, with `a2g-executor effects commit {intent}`{link}."
                )
            }
        };
        format!(
            "{way} Do not call the tool again for these changes: that would be another call with changes of its own."
        )
    }
}

/// The action of a person who saw a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElicitAction {
    /// The person sent the form.
    Accept,
    /// The person refused to answer.
    Decline,
    /// The person closed the form.
    Cancel,
}

/// The decision of a person about a call, or about its file changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PersonDecision {
    /// The call may run once.
    Approve,
    /// The call never runs.
    Deny,
    /// The file changes take effect.
    Commit,
    /// The file changes never take effect.
    Discard,
}

impl PersonDecision {
    const ON_CALL: [(&'static str, Self); 2] = [("approve", Self::Approve), ("deny", Self::Deny)];
    const ON_CHANGES: [(&'static str, Self); 2] = [("commit", Self::Commit), ("discard", Self::Discard)];
}

/// An answer to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElicitAnswer {
    /// The action.
    pub action: ElicitAction,
    /// The decision, if the form had one.
    pub decision: Option<PersonDecision>,
}

/// The answers of a client that repeats a call, or updates a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InputResponses {
    /// The answer to the question about the call.
    pub call: Option<ElicitAnswer>,
    /// The answer to the question about the file changes of the call.
    pub changes: Option<ElicitAnswer>,
}

/// Decodes `inputResponses`. Answers to questions that this server does not ask are ignored.
pub(super) fn decode_responses(mut responses: Object<'_>) -> Result<InputResponses, Fault> {
    let on_call = |field| decode_answer(field, &PersonDecision::ON_CALL);
    let on_changes = |field| decode_answer(field, &PersonDecision::ON_CHANGES);
    Ok(InputResponses {
        call: responses.read_nullable_with(CALL_KEY, on_call)?,
        changes: responses.read_nullable_with(CHANGES_KEY, on_changes)?,
    })
}

/// Decodes the result of `elicitation/create` in a session, whose id says which question it answers.
pub(super) fn decode_session_answer(field: Field<'_>) -> Result<ElicitAnswer, Fault> {
    decode_answer(field, &[PersonDecision::ON_CALL, PersonDecision::ON_CHANGES].concat())
}

fn decode_answer(field: Field<'_>, decisions: &[(&str, PersonDecision)]) -> Result<ElicitAnswer, Fault> {
    const ACTIONS: [(&str, ElicitAction); 3] = [
        ("accept", ElicitAction::Accept),
        ("decline", ElicitAction::Decline),
        ("cancel", ElicitAction::Cancel),
    ];
    let mut answer = field.object()?;
    let mut content = answer.read_nullable::<Object<'_>>("content")?.unwrap_or_default();
    Ok(ElicitAnswer {
        action: answer.require("action")?.enum_value(&ACTIONS)?,
        decision: content.read_nullable_with(FIELD, |decision| decision.enum_value(decisions))?,
    })
}

/// The schema of a form with one decision, for which it gives each value a title.
fn decision_schema(choices: &[(&str, &str)]) -> Value {
    let choices = choices.iter().map(|(value, title)| json!({ "const": value, "title": title }));
    json!({
        "type": "object",
        "properties": {
            FIELD: { "type": "string", "title": "Decision", "oneOf": choices.collect::<Vec<_>>() },
        },
        "required": [FIELD],
    })
}

/// The question whether the file changes of a staged run take effect; `None` for any other run. `page` is the page of the
/// console that shows all of them, if there is one.
#[must_use]
pub fn changes_question(receipt: &Receipt, state: &StagedState, page: Option<&str>) -> Option<Elicitation> {
    let changes = staged::changes_of(receipt)?;
    let Receipt { agent, tool, intent, .. } = receipt;
    let mut message = format!("`{tool}` has run for {agent}. {}\n", staged::sentence(changes, Some(state)));
    message.push_str(&staged::list_for_decision(changes));
    message.push_str(&staged::differences(changes));
    if let Some(url) = page {
        message.push_str(&format!("\nThe page {url} shows the whole list."));
    }
    message.push_str(&format!("\nIntent: {intent}\nDigest of all changes: {}", changes.digest));
    let [commit, discard] = staged::decision_labels(changes);
    let schema = decision_schema(&[("commit", commit.as_str()), ("discard", discard.as_str())]);
    let params = json!({ "mode": "form", "message": message, "requestedSchema": schema });
    Some(Elicitation { key: CHANGES_KEY, params })
}

impl Question {
    /// This question about a call, in a revision of the protocol.
    #[must_use]
    pub fn elicitation(&self, call: &Call, verdict: &Verdict, revision: Revision) -> Elicitation {
        Elicitation { key: CALL_KEY, params: self.params(call, verdict, revision) }
    }

    fn params(&self, call: &Call, verdict: &Verdict, revision: Revision) -> Value {
        let message = self.message(call, verdict);
        let schema = match self {
            Self::OpenPage(url) => {
                return match revision {
                    Revision::Stateless => json!({ "mode": "url", "message": message, "url": url }),
                    Revision::Session => json!({
                        "mode": "url",
                        "message": message,
                        "url": url,
                        "elicitationId": call.intent.to_string(),
                    }),
                };
            }
            Self::Decide => {
                decision_schema(&[("approve", "Approve: it runs once"), ("deny", "Deny: it never runs")])
            }
            Self::WaitForApprover => json!({ "type": "object", "properties": {} }),
        };
        json!({ "mode": "form", "message": message, "requestedSchema": schema })
    }

    fn message(&self, call: &Call, verdict: &Verdict) -> String {
        let mut message =
            format!("{} asks to run `{}`, and the governor leaves it to a person", call.agent, call.tool);
        match &verdict.reason {
            Some(reason) => message.push_str(&format!(": {}\n", escape_invisible(reason, MAX_REASON_CHARS))),
            None => message.push_str(".\n"),
        }
        message.push_str(&format!("Arguments: {}\n", visible_arguments(call)));
        if let Some(CallSession { request, .. }) = &call.session {
            let session = match request {
                SessionRequest::New => "opened, and later calls of this caller find what this one leaves",
                SessionRequest::Continue(_) => {
                    "continued: the call finds what earlier ones have left, which is not shown here"
                }
            };
            message.push_str(&format!("Session ({}): {session}\n", request.short()));
        }
        message.push_str(&format!("Granted if approved: {}\n", manifest_text(&verdict.manifest)));
        if !verdict.conditions.is_empty() {
            let conditions = escape_invisible(&verdict.conditions.join(", "), MAX_REASON_CHARS);
            message.push_str(&format!("Conditions: {conditions}\n"));
        }
        if let Some(risk) = &verdict.risk {
            message.push_str(&format!("Risk: {:.2} ({})\n", risk.score, risk.level.as_str()));
        }
        message.push_str(&format!("Intent: {}", call.intent));
        match self {
            Self::Decide => {}
            Self::WaitForApprover => message.push_str(
                "\nYou may not decide it. A caller with the role `approver` does, with `g2a/directive` for this intent; \
                 then continue. Declining withdraws the call.",
            ),
            Self::OpenPage(_) => message.push_str(
                "\nAn approver signs in on the linked page and decides there. Declining withdraws the call.",
            ),
        }
        message
    }
}

/// The manifest in one line.
fn manifest_text(manifest: &Manifest) -> String {
    let Manifest { limits, network_allowed, filesystem_scope } = manifest;
    let network = if network_allowed.unwrap_or_default() { "network" } else { "no network" };
    let files = match filesystem_scope.as_slice() {
        [] => "no files".to_owned(),
        scope => format!("files {}", escape_invisible(&scope.join(", "), MAX_REASON_CHARS)),
    };
    let limits = limits.claimed().map(|(row, amount)| format!("{} {}", row.resource, row.format(amount)));
    [files, network.to_owned()].into_iter().chain(limits).collect::<Vec<_>>().join(", ")
}

fn visible_arguments(call: &Call) -> String {
    let text = Value::Object(call.arguments.clone()).to_string();
    let shown = escape_invisible(&text, MAX_ARGUMENT_CHARS);
    let length = text.chars().count();
    if length <= MAX_ARGUMENT_CHARS {
        return shown;
    }
    let digest = Digest::compute(text.as_bytes());
    format!(
        "{shown} ({} of {length} characters are not shown; SHA-256 {digest})",
        length - MAX_ARGUMENT_CHARS
    )
}

/// A request of the server to the client of a session, as JSON text. `number` is the request's id.
#[must_use]
pub fn elicitation_request(number: u64, params: &Value) -> String {
    let request = json!({ "jsonrpc": "2.0", "id": number, "method": "elicitation/create", "params": params });
    to_raw(&request).get().to_owned()
}

/// The notification that a request of the server no longer needs an answer.
#[must_use]
pub fn elicitation_cancelled(number: u64) -> String {
    notify(
        "notifications/cancelled",
        &json!({ "requestId": number, "reason": "the call was decided elsewhere" }),
    )
}

/// The notification to the client of a session that the decision on the page of [`Question::OpenPage`] was made.
#[must_use]
pub fn elicitation_complete(intent: IntentId) -> String {
    notify("notifications/elicitation/complete", &json!({ "elicitationId": intent.to_string() }))
}
