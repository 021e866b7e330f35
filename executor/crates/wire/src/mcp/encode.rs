//! Encoder of results and notifications.

use super::content::{ContentBlock, ResourceContent};
use super::decode::{SubscriptionFilter, negotiate_session};
use super::elicit::{Decider, Elicitation};
use super::meta::{MessageLevel, ProgressToken};
use super::resources::{self, RECEIPT_TYPE, ResourceUri};
use super::tasks::{Task, TaskMessage};
use super::tools::{self, Definition};
use super::{Revision, names};
use crate::jsonrpc::{self, Id};
use crate::listing::{Listing, ToolStubs};
use crate::staged::{self, StagedState};
use crate::to_raw;
use a2g_types::failure_message;
use a2g_types::fault::{BlockedBy, Fault, RECEIPT_PENDING};
use a2g_types::ident::{IntentId, ToolName};
use a2g_types::json::JsonText;
use a2g_types::outcome::{LogLine, Receipt};
use a2g_types::session::{SessionState, SessionTurn};
use a2g_types::verdict::Verdict;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The name of this server.
const SERVER_NAME: &str = "a2g-executor";
/// The instructions for a model that uses such a server. They do not contain the grants of this one.
pub const INSTRUCTIONS: &str = "Each call is decided by a governor and runs in a sandbox with the files, the \
     network, the memory and the time that the governor grants. A result with `isError` says what was \
     refused or which limit was reached, and what to change. `resources/read` has the receipts and artifacts \
     of earlier calls. Prompts, sampling and roots are not offered.";
/// The time for which a client may use a list of tools, in milliseconds. A client that listens learns of changes at
/// once.
const LIST_TTL_MS: u64 = 60_000;
/// The time for which a client may use the server's description of itself, in milliseconds.
const DISCOVER_TTL_MS: u64 = 3_600_000;

/// The maximum number of suggestions for a variable.
const MAX_COMPLETIONS: usize = 100;

/// A receipt in the list of resources.
#[derive(Debug, Clone)]
pub struct ListedReceipt {
    /// The intent of the run.
    pub intent: IntentId,
    /// The tool.
    pub tool: String,
    /// The status, such as `SUCCESS`.
    pub status: String,
    /// The end of the run.
    pub ended: OffsetDateTime,
}

/// The part of an answer about the file changes of a staged run that the receipt does not have.
#[derive(Debug, Clone)]
pub struct StagedNotice {
    /// Their state; `None` if it is not known at this node.
    pub state: Option<StagedState>,
    /// The person who decides on them, if the client cannot ask one.
    pub decider: Decider,
    /// The page of the console on which people decide on them, if there is one.
    pub page: Option<String>,
    /// The reason why the decision in a form had no effect, if it had none.
    pub refusal: Option<String>,
    /// `true` if the tool may have an `outputSchema` that refuses a further member in the structured content.
    pub is_result_closed: bool,
}

/// Makes the results of one revision.
#[derive(Debug, Clone, Copy)]
pub struct ResultEncoder {
    /// The revision of the request.
    pub revision: Revision,
    /// The version of this server.
    pub server_version: &'static str,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Implementation {
    name: &'static str,
    title: &'static str,
    version: &'static str,
}

/// The members that 2026-07-28 adds to every result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cacheable {
    ttl_ms: u64,
    cache_scope: &'static str,
}

impl ResultEncoder {
    fn implementation(self) -> Implementation {
        Implementation { name: SERVER_NAME, title: "A2G executor", version: self.server_version }
    }

    fn result_type(self) -> Option<&'static str> {
        (self.revision == Revision::Stateless).then_some("complete")
    }

    /// `_meta` of a result, with more members.
    fn meta(self, more: Map<String, Value>) -> Map<String, Value> {
        let mut meta = more;
        if self.revision == Revision::Stateless {
            let server = serde_json::to_value(self.implementation()).unwrap_or_default();
            meta.insert(names::SERVER_INFO.to_owned(), server);
        }
        meta
    }

    fn cacheable(self, ttl_ms: u64, cache_scope: &'static str) -> Option<Cacheable> {
        (self.revision == Revision::Stateless).then_some(Cacheable { ttl_ms, cache_scope })
    }

    fn capabilities(self) -> Value {
        let mut capabilities = json!({
            "tools": { "listChanged": true },
            "resources": { "listChanged": true },
            "completions": {},
            "logging": {},
        });
        if self.revision == Revision::Stateless
            && let Some(members) = capabilities.as_object_mut()
        {
            members.insert("extensions".to_owned(), json!({ names::TASKS: {} }));
        }
        capabilities
    }

    /// The response to `server/discover`.
    #[must_use]
    pub fn discover(self, id: &Id, instructions: &str) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct DiscoverResult<'a> {
            result_type: Option<&'static str>,
            supported_versions: [&'static str; 2],
            capabilities: Value,
            instructions: &'a str,
            ttl_ms: u64,
            cache_scope: &'static str,
            #[serde(rename = "_meta")]
            meta: Map<String, Value>,
        }
        respond(
            id,
            &DiscoverResult {
                result_type: self.result_type(),
                supported_versions: Revision::ALL.map(Revision::as_str),
                capabilities: self.capabilities(),
                instructions,
                ttl_ms: DISCOVER_TTL_MS,
                cache_scope: "public",
                meta: self.meta(Map::new()),
            },
        )
    }

    /// The response to `initialize`.
    #[must_use]
    pub fn initialize(self, id: &Id, requested: &str, instructions: &str) -> String {
        let result = json!({
            "protocolVersion": negotiate_session(requested),
            "capabilities": self.capabilities(),
            "serverInfo": self.implementation(),
            "instructions": instructions,
        });
        respond(id, &result)
    }

    /// The response to a request that has nothing to report.
    #[must_use]
    pub fn empty(self, id: &Id) -> String {
        self.respond_map(id, Map::new())
    }

    /// The response to `tools/list`: a page of the tools that the caller may use, sorted by name, or of the tools that
    /// stand for them.
    #[must_use]
    pub fn tools<'a>(
        self,
        id: &Id,
        tools: impl Iterator<Item = &'a Definition>,
        after: Option<&ToolName>,
        listing: Listing,
    ) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct ListToolsResult<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            result_type: Option<&'static str>,
            tools: Vec<Cow<'a, RawValue>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            next_cursor: Option<String>,
            #[serde(flatten)]
            cacheable: Option<Cacheable>,
            #[serde(rename = "_meta", skip_serializing_if = "Map::is_empty")]
            meta: Map<String, Value>,
        }
        let (tools, next_cursor) = match listing {
            Listing::Tools => tools::page(tools, after),
            Listing::Code => (tools::code_page(tools, after), None),
        };
        respond(
            id,
            &ListToolsResult {
                result_type: self.result_type(),
                tools,
                next_cursor,
                // The list depends on the caller.
                cacheable: self.cacheable(LIST_TTL_MS, "private"),
                meta: self.meta(Map::new()),
            },
        )
    }

    /// The response to a call of `describe_tools`, which is not an intent.
    #[must_use]
    pub fn described(self, id: &Id, stubs: &ToolStubs) -> String {
        let structured = JsonText::from(serde_json::to_value(stubs).unwrap_or_default());
        let content = vec![ContentBlock::text(stubs.text.as_str())];
        respond_raw(id, &self.call(content, Some(&structured), false, CallMeta::default()))
    }

    /// The response to a call of `describe_tools` with wrong arguments.
    #[must_use]
    pub fn not_described(self, id: &Id, fault: &Fault) -> String {
        let (text, details) = refusal_parts(fault);
        let meta = CallMeta { error: Some(details), ..CallMeta::default() };
        respond_raw(id, &self.call(vec![ContentBlock::text(text)], None, true, meta))
    }

    /// The response to a call whose tool ran. A staged run has a notice.
    #[must_use]
    pub fn receipt(
        self,
        id: &Id,
        receipt: &Receipt,
        verdict: Option<&Verdict>,
        digest: Option<String>,
        notice: Option<&StagedNotice>,
    ) -> String {
        respond_raw(id, &self.receipt_result(receipt, verdict, digest, notice))
    }

    /// The result of a call whose tool ran, apart from its response.
    #[must_use]
    pub fn receipt_result(
        self,
        receipt: &Receipt,
        verdict: Option<&Verdict>,
        digest: Option<String>,
        notice: Option<&StagedNotice>,
    ) -> Box<RawValue> {
        let (metrics, usage) = crate::measurements::of_receipt(receipt);
        let state = notice.and_then(|notice| notice.state.as_ref());
        let meta = CallMeta {
            metrics: Some(metrics),
            usage: Some(usage),
            digest,
            effects: staged::short_member(receipt, state),
            session: crate::measurements::session(receipt),
            ..CallMeta::new(receipt.intent, verdict)
        };
        let artifacts = receipt.outcome.output.artifacts.iter();
        let artifacts = artifacts.map(|artifact| ContentBlock::artifact(receipt.intent, artifact));
        let Some(result) = receipt.outcome.end.result() else {
            let mut content = vec![ContentBlock::text(failure_message::describe_failure(&receipt.outcome))];
            content.extend(artifacts);
            content.extend(session_text(receipt).map(ContentBlock::text));
            return self.call(content, None, true, CallMeta { error: Some(failure_data(receipt)), ..meta });
        };
        let mut content = vec![ContentBlock::text(result_text(result))];
        content.extend(staged_text(receipt, notice).map(ContentBlock::text));
        content.extend(artifacts);
        content.extend(session_text(receipt).map(ContentBlock::text));
        let is_open = notice.is_some_and(|notice| !notice.is_result_closed);
        let marked =
            meta.effects.as_ref().filter(|_| is_open).and_then(|effects| mark_staged(result, effects));
        self.call(content, self.structured(marked.as_ref().unwrap_or(result)), false, meta)
    }

    /// The response to a call that was refused, as a result that a model can act on.
    #[must_use]
    pub fn refusal(self, id: &Id, fault: &Fault, intent: IntentId) -> String {
        respond_raw(id, &self.refusal_result(fault, intent))
    }

    /// The result of a call that was refused, apart from its response.
    #[must_use]
    pub fn refusal_result(self, fault: &Fault, intent: IntentId) -> Box<RawValue> {
        let (text, details) = refusal_parts(fault);
        let meta = CallMeta { error: Some(details), ..CallMeta::new(intent, None) };
        self.call(vec![ContentBlock::text(text)], None, true, meta)
    }

    /// The response to a call that waits for a person whom the client cannot ask.
    #[must_use]
    pub fn waiting(self, id: &Id, verdict: &Verdict, decider: Decider, page: Option<&str>) -> String {
        let intent = verdict.intent;
        let reason = verdict.reason.as_deref().map_or_else(String::new, |reason| format!(" ({reason})"));
        let page = page.map_or_else(String::new, |url| format!(", or on the page {url}"));
        let text = format!(
            "The call waits for a person's decision{reason}. Its intent is {intent}: {}{page}. {}",
            decider.who(),
            decider.advice(intent)
        );
        let details = json!({ "ran": false, "blocked_by": BlockedBy::EscalationPending.as_str() });
        let meta = CallMeta { error: Some(details), ..CallMeta::new(intent, Some(verdict)) };
        respond_raw(id, &self.call(vec![ContentBlock::text(text)], None, true, meta))
    }

    /// The response to a call that waits for a person, itself or its file changes: the client asks the question, and repeats
    /// the call with the answer and `state`.
    #[must_use]
    pub fn input_required(self, id: &Id, intent: IntentId, question: &Elicitation, state: &str) -> String {
        let meta = self.meta(Map::from_iter([(names::INTENT_ID.to_owned(), intent.to_string().into())]));
        let result = json!({
            "resultType": "input_required",
            "inputRequests": question.requests(),
            "requestState": state,
            "_meta": meta,
        });
        respond(id, &result)
    }

    /// The response to a call that goes on as a task.
    #[must_use]
    pub fn created_task(self, id: &Id, task: &Task) -> String {
        self.task_response(id, "task", task)
    }

    /// The response to `tasks/get`.
    #[must_use]
    pub fn task(self, id: &Id, task: &Task) -> String {
        self.task_response(id, "complete", task)
    }

    fn task_response(self, id: &Id, result_type: &'static str, task: &Task) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct TaskResult<'a> {
            result_type: &'static str,
            #[serde(flatten)]
            task: TaskMessage<'a>,
            #[serde(rename = "_meta")]
            meta: Map<String, Value>,
        }
        respond(id, &TaskResult { result_type, task: task.message(), meta: self.meta(Map::new()) })
    }

    /// The response to `resources/list`: a page of receipts, newest first.
    #[must_use]
    pub fn resources(self, id: &Id, receipts: &[ListedReceipt], next: Option<u64>) -> String {
        let resources = receipts.iter().map(|receipt| {
            let ListedReceipt { intent, tool, status, ended } = receipt;
            json!({
                "uri": resources::receipt_uri(*intent),
                "name": intent.to_string(),
                "title": format!("{tool}: {status}"),
                "mimeType": RECEIPT_TYPE,
                "annotations": { "lastModified": format_time(*ended) },
            })
        });
        let mut result = Map::from_iter([("resources".to_owned(), resources.collect::<Vec<_>>().into())]);
        if let Some(next) = next {
            result.insert("nextCursor".to_owned(), next.to_string().into());
        }
        // Every run adds one.
        self.respond_cacheable(id, result, 0)
    }

    /// The response to `resources/templates/list`.
    #[must_use]
    pub fn templates(self, id: &Id) -> String {
        let result = Map::from_iter([("resourceTemplates".to_owned(), resources::templates())]);
        self.respond_cacheable(id, result, DISCOVER_TTL_MS)
    }

    /// The response to `resources/read`; `None` if the run has no such artifact.
    #[must_use]
    pub fn resource(self, id: &Id, uri: &ResourceUri, receipt: &Receipt) -> Option<String> {
        let content = match uri {
            ResourceUri::Receipt(intent) => {
                let text = crate::measurements::report(receipt).get().to_owned();
                ResourceContent::text(resources::receipt_uri(*intent), RECEIPT_TYPE, text)
            }
            ResourceUri::Artifact(intent, name) => {
                let mut artifacts = receipt.outcome.output.artifacts.iter();
                ResourceContent::artifact(*intent, artifacts.find(|artifact| artifact.name == *name)?)
            }
        };
        let contents = serde_json::to_value([content]).unwrap_or_default();
        let result = Map::from_iter([("contents".to_owned(), contents)]);
        // A receipt never changes.
        Some(self.respond_cacheable(id, result, DISCOVER_TTL_MS))
    }

    /// The response to `completion/complete`.
    #[must_use]
    pub fn completion(self, id: &Id, mut values: Vec<String>) -> String {
        let total = values.len();
        let has_more = values.len() > MAX_COMPLETIONS;
        values.truncate(MAX_COMPLETIONS);
        let completion = json!({ "values": values, "total": total, "hasMore": has_more });
        self.respond_map(id, Map::from_iter([("completion".to_owned(), completion)]))
    }

    /// A response that clients may use again for a time, for the same caller.
    fn respond_cacheable(self, id: &Id, mut result: Map<String, Value>, ttl_ms: u64) -> String {
        if let Some(cacheable) = self.cacheable(ttl_ms, "private") {
            result.insert("ttlMs".to_owned(), cacheable.ttl_ms.into());
            result.insert("cacheScope".to_owned(), cacheable.cache_scope.into());
        }
        self.respond_map(id, result)
    }

    fn respond_map(self, id: &Id, mut result: Map<String, Value>) -> String {
        if let Some(result_type) = self.result_type() {
            result.insert("resultType".to_owned(), result_type.into());
            result.insert("_meta".to_owned(), self.meta(Map::new()).into());
        }
        respond(id, &result)
    }

    fn call(
        self,
        content: Vec<ContentBlock>,
        structured_content: Option<&JsonText>,
        is_error: bool,
        meta: CallMeta,
    ) -> Box<RawValue> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct CallToolResult<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            result_type: Option<&'static str>,
            content: Vec<ContentBlock>,
            #[serde(skip_serializing_if = "Option::is_none")]
            structured_content: Option<&'a JsonText>,
            is_error: bool,
            #[serde(rename = "_meta", skip_serializing_if = "CallMeta::is_empty")]
            meta: CallMeta,
        }
        let server = (self.revision == Revision::Stateless).then(|| self.implementation());
        let result_type = self.result_type();
        let meta = CallMeta { server, ..meta };
        to_raw(&CallToolResult { result_type, content, structured_content, is_error, meta })
    }

    /// The result as structured content: any value in 2026-07-28, an object in 2025-11-25.
    fn structured(self, result: &JsonText) -> Option<&JsonText> {
        match self.revision {
            Revision::Stateless => Some(result),
            Revision::Session => Some(result).filter(|result| result.is_object()),
        }
    }

    /// The response that ends a subscription.
    #[must_use]
    pub fn subscription_end(self, id: &Id) -> String {
        let mut meta = self.meta(Map::new());
        meta.insert(names::SUBSCRIPTION_ID.to_owned(), id_value(id));
        respond(id, &json!({ "resultType": "complete", "_meta": meta }))
    }
}

fn respond(id: &Id, result: &impl Serialize) -> String {
    respond_raw(id, &to_raw(result))
}

fn respond_raw(id: &Id, result: &RawValue) -> String {
    jsonrpc::success(id, result).get().to_owned()
}

fn format_time(moment: OffsetDateTime) -> Option<String> {
    moment.format(&Rfc3339).ok()
}

fn id_value(id: &Id) -> Value {
    serde_json::from_str(id.as_json()).unwrap_or_default()
}

/// `_meta` of the result of a call.
#[derive(Serialize, Default)]
struct CallMeta {
    #[serde(rename = "a2g/intent_id", skip_serializing_if = "Option::is_none")]
    intent: Option<IntentId>,
    #[serde(rename = "a2g/verdict", skip_serializing_if = "Option::is_none")]
    verdict: Option<VerdictMeta>,
    #[serde(rename = "a2g/error", skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
    #[serde(rename = "a2g/metrics", skip_serializing_if = "Option::is_none")]
    metrics: Option<Box<RawValue>>,
    #[serde(rename = "a2g/usage", skip_serializing_if = "Option::is_none")]
    usage: Option<Box<RawValue>>,
    /// The state of the file changes of a staged run. Their list is in the usage.
    #[serde(rename = "a2g/effects", skip_serializing_if = "Option::is_none")]
    effects: Option<Map<String, Value>>,
    /// The turn of the session in which the tool ran.
    #[serde(rename = "a2g/session", skip_serializing_if = "Option::is_none")]
    session: Option<Value>,
    /// The hash of the journal's record, by which `a2g-executor journal` proves it.
    #[serde(rename = "a2g/receipt_digest", skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(rename = "io.modelcontextprotocol/serverInfo", skip_serializing_if = "Option::is_none")]
    server: Option<Implementation>,
}

#[derive(Serialize)]
struct VerdictMeta {
    decision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    risk_score: Option<f64>,
}

impl CallMeta {
    fn new(intent: IntentId, verdict: Option<&Verdict>) -> Self {
        let verdict = verdict.map(|verdict| VerdictMeta {
            decision: verdict.decision.as_str(),
            risk_score: verdict.risk.as_ref().map(|risk| risk.score),
        });
        Self { intent: Some(intent), verdict, ..Self::default() }
    }

    fn is_empty(&self) -> bool {
        let Self { intent, verdict, error, metrics, usage, effects, session, digest, server } = self;
        let is_none = intent.is_none() && verdict.is_none() && error.is_none() && metrics.is_none();
        let is_bare = usage.is_none() && effects.is_none() && session.is_none() && digest.is_none();
        is_none && is_bare && server.is_none()
    }
}

/// A string result is its text, any other value its JSON.
fn result_text(result: &JsonText) -> String {
    result.parse_string().unwrap_or_else(|| result.as_str().to_owned())
}

/// The text about the session of a run, for a model, which does not see `_meta`; `None` for a run without
/// one.
fn session_text(receipt: &Receipt) -> Option<String> {
    let SessionTurn { handle, turn, state } = receipt.session.as_ref()?;
    Some(match state {
        SessionState::Kept { idle_seconds } => format!(
            "Session {handle}, turn {turn}: call the tool again with \"session\": \"{handle}\" within \
             {idle_seconds} s to go on with what it holds now."
        ),
        SessionState::Ended(end) => format!(
            "The session {handle} has ended with turn {turn}, because {}: nothing of it is left. Open \
             another one with \"session\": \"new\".",
            end.clause()
        ),
    })
}

/// The text about the file changes of a staged run, for a model; `None` for any other run.
fn staged_text(receipt: &Receipt, notice: Option<&StagedNotice>) -> Option<String> {
    let state = notice.and_then(|notice| notice.state.as_ref());
    let mut text = staged::text(receipt, state)?;
    let Some(StagedNotice { state: _, decider, page, refusal, is_result_closed: _ }) = notice else {
        return Some(text);
    };
    if let Some(reason) = refusal {
        text.push_str(&format!("\nThe decision in the form had no effect: {reason}"));
    }
    if state.is_some_and(StagedState::is_waiting) {
        text.push_str(&format!("\n{}", decider.changes_advice(receipt.intent, page.as_deref())));
    }
    Some(text)
}

/// An object with one more member, the state of the file changes: some hosts show only the structured content to a model.
/// `None` for any other result, and one that has such a member.
fn mark_staged(result: &JsonText, effects: &Map<String, Value>) -> Option<JsonText> {
    #[derive(Deserialize)]
    struct Taken {
        #[serde(rename = "a2g/effects")]
        effects: Option<IgnoredAny>,
    }
    let members = result.as_str().strip_prefix('{')?.strip_suffix('}')?;
    serde_json::from_str::<Taken>(result.as_str()).ok().filter(|taken| taken.effects.is_none())?;
    let comma = if members.is_empty() { "" } else { "," };
    let effects = to_raw(effects);
    JsonText::parse(&format!("{{{members}{comma}\"a2g/effects\":{effects}}}")).ok()
}

fn failure_data(receipt: &Receipt) -> Value {
    failure_message::failure_details(receipt).into()
}

/// The sentence and the details of a refusal.
fn refusal_parts(fault: &Fault) -> (String, Value) {
    match fault {
        Fault::InvalidParams { message, pointer } => {
            (message.clone(), json!({ "ran": false, "pointer": pointer }))
        }
        Fault::ToolUnavailable { tool, message } => {
            (message.clone(), json!({ "ran": false, "tool": tool.as_str() }))
        }
        Fault::Refused { intent: _, risk_score, blocked_by, message } => {
            let details =
                json!({ "ran": false, "blocked_by": blocked_by.as_str(), "risk_score": risk_score });
            (message.clone(), details)
        }
        Fault::Busy { message, retry_after_ms } => {
            let text = format!("{message}: try again in {retry_after_ms} ms");
            (text, json!({ "ran": false, "retry_after_ms": retry_after_ms }))
        }
        Fault::ReceiptPending { intent: _, retry_after_ms } => {
            (RECEIPT_PENDING.to_owned(), json!({ "ran": true, "retry_after_ms": retry_after_ms }))
        }
        Fault::Failed(receipt) | Fault::LimitReached(receipt, _) => {
            (failure_message::describe_failure(&receipt.outcome), failure_data(receipt))
        }
        Fault::Parse(message)
        | Fault::InvalidRequest(message)
        | Fault::MethodNotFound(message)
        | Fault::RegistrationFailed(message)
        | Fault::SessionExpired(message) => (message.clone(), json!({ "ran": false })),
        Fault::Internal(_) => ("internal error of the executor".to_owned(), json!({ "ran": false })),
    }
}

/// A notification as JSON text.
pub(super) fn notify(method: &'static str, params: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Notification<'a> {
        jsonrpc: &'static str,
        method: &'static str,
        params: &'a RawValue,
    }
    to_raw(&Notification { jsonrpc: "2.0", method, params: &to_raw(params) }).get().to_owned()
}

/// `notifications/progress`. `progress` rises with every notification of a request.
#[must_use]
pub fn progress(token: &ProgressToken, progress: f64, total: Option<f64>, message: &str) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ProgressParams<'a> {
        progress_token: &'a RawValue,
        progress: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        total: Option<f64>,
        #[serde(skip_serializing_if = "str::is_empty")]
        message: &'a str,
    }
    notify(
        "notifications/progress",
        &ProgressParams { progress_token: token.as_raw(), progress, total, message },
    )
}

/// `notifications/message`: a line of a tool's log.
#[must_use]
pub fn log_message(tool: &ToolName, line: &LogLine) -> String {
    let level = MessageLevel::of_line(line.level).as_str();
    notify("notifications/message", &json!({ "level": level, "logger": tool.as_str(), "data": line.message }))
}

/// `notifications/subscriptions/acknowledged`, with the notifications that will be sent; those of tasks are about
/// `tasks`.
#[must_use]
pub fn acknowledged(id: &Id, filter: &SubscriptionFilter, tasks: &[IntentId]) -> String {
    let SubscriptionFilter { tools_list_changed, resources_list_changed, tasks: _ } = filter;
    let flags = [("toolsListChanged", tools_list_changed), ("resourcesListChanged", resources_list_changed)];
    let filter = flags.into_iter().filter(|(_, is_sent)| **is_sent);
    let mut filter = filter.map(|(name, _)| (name.to_owned(), true.into())).collect::<Map<_, Value>>();
    if !tasks.is_empty() {
        filter.insert("taskIds".to_owned(), json!(tasks));
    }
    let meta = json!({ names::SUBSCRIPTION_ID: id_value(id) });
    notify("notifications/subscriptions/acknowledged", &json!({ "_meta": meta, "notifications": filter }))
}

/// `notifications/tasks`: the state of a task, for the subscription that the request `id` made.
#[must_use]
pub fn task_changed(id: &Id, task: &Task) -> String {
    #[derive(Serialize)]
    struct TaskParams<'a> {
        #[serde(flatten)]
        task: TaskMessage<'a>,
        #[serde(rename = "_meta")]
        meta: Value,
    }
    let meta = json!({ names::SUBSCRIPTION_ID: id_value(id) });
    notify("notifications/tasks", &TaskParams { task: task.message(), meta })
}

/// A list whose changes are announced to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangedList {
    /// The tools.
    Tools,
    /// The resources: a run has a receipt.
    Resources,
}

/// `notifications/…/list_changed`, for the subscription that the request `id` made, or for a session.
#[must_use]
pub fn list_changed(list: ChangedList, id: Option<&Id>) -> String {
    let params = match id {
        Some(id) => json!({ "_meta": { names::SUBSCRIPTION_ID: id_value(id) } }),
        None => json!({}),
    };
    let method = match list {
        ChangedList::Tools => "notifications/tools/list_changed",
        ChangedList::Resources => "notifications/resources/list_changed",
    };
    notify(method, &params)
}
