//! Encoder of results and notifications.

use super::content::ContentBlock;
use super::decode::negotiate_session;
use super::meta::{MessageLevel, ProgressToken};
use super::tools::{self, ToolDefinition};
use super::{Revision, names};
use crate::failure_message;
use crate::jsonrpc::{self, Id};
use crate::to_raw;
use a2g_types::fault::{BlockedBy, Fault, RECEIPT_PENDING};
use a2g_types::ident::{IntentId, ToolName, excerpt};
use a2g_types::json::JsonText;
use a2g_types::outcome::{End, LogLine, Receipt};
use a2g_types::tool::Descriptor;
use a2g_types::verdict::Verdict;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// The name of this server.
const SERVER_NAME: &str = "a2g-executor";
/// The advice for a model that uses this server.
const INSTRUCTIONS: &str = "Each call is decided by a governor and runs in a sandbox with the files, the network, the memory and the \
     time that the governor grants. A result with `isError` says what was refused or which limit was reached, and what to \
     change. Prompts, sampling and roots are not offered.";
/// The time for which a client may use a list of tools, in milliseconds. A client that listens learns of changes at once.
const LIST_TTL_MS: u64 = 60_000;
/// The time for which a client may use what the server says of itself, in milliseconds.
const DISCOVER_TTL_MS: u64 = 3_600_000;

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
        let mut capabilities = json!({ "tools": { "listChanged": true } });
        // 2026-07-28 deprecates logging, and clients ask for it in each request.
        if let Some(members) = capabilities.as_object_mut() {
            members.insert("logging".to_owned(), json!({}));
        }
        capabilities
    }

    /// The response to `server/discover`.
    #[must_use]
    pub fn discover(self, id: &Id) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct DiscoverResult {
            result_type: Option<&'static str>,
            supported_versions: [&'static str; 2],
            capabilities: Value,
            instructions: &'static str,
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
                instructions: INSTRUCTIONS,
                ttl_ms: DISCOVER_TTL_MS,
                cache_scope: "public",
                meta: self.meta(Map::new()),
            },
        )
    }

    /// The response to `initialize`.
    #[must_use]
    pub fn initialize(self, id: &Id, requested: &str) -> String {
        let result = json!({
            "protocolVersion": negotiate_session(requested),
            "capabilities": self.capabilities(),
            "serverInfo": self.implementation(),
            "instructions": INSTRUCTIONS,
        });
        respond(id, &result)
    }

    /// The response to a request that has nothing to report.
    #[must_use]
    pub fn empty(self, id: &Id) -> String {
        respond(id, &json!({}))
    }

    /// The response to `tools/list`: a page of the tools that the caller may use, sorted by name.
    #[must_use]
    pub fn tools<'a>(
        self,
        id: &Id,
        tools: impl Iterator<Item = &'a Descriptor>,
        after: Option<&ToolName>,
    ) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct ListToolsResult<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            result_type: Option<&'static str>,
            tools: Vec<ToolDefinition<'a>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            next_cursor: Option<String>,
            #[serde(flatten)]
            cacheable: Option<Cacheable>,
            #[serde(rename = "_meta", skip_serializing_if = "Map::is_empty")]
            meta: Map<String, Value>,
        }
        let (tools, next_cursor) = tools::page(tools, after);
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

    /// The response to a call whose tool ran.
    #[must_use]
    pub fn receipt(self, id: &Id, receipt: &Receipt, verdict: Option<&Verdict>) -> String {
        let (metrics, usage) = crate::measurements::of_receipt(receipt);
        let meta =
            CallMeta { metrics: Some(metrics), usage: Some(usage), ..CallMeta::new(receipt.intent, verdict) };
        let artifacts = receipt.outcome.output.artifacts.iter();
        let artifacts = artifacts.map(|artifact| ContentBlock::artifact(receipt.intent, artifact));
        match &receipt.outcome.end {
            End::Returned(result) => {
                let mut content = vec![ContentBlock::text(result_text(result))];
                content.extend(artifacts);
                self.call(id, content, self.structured(result), false, meta)
            }
            End::ToolError { .. }
            | End::Exited { .. }
            | End::ResultNotJson
            | End::Trapped(_)
            | End::NotStarted(_)
            | End::Crashed(_)
            | End::LimitReached(_)
            | End::Aborted(_) => {
                let mut content =
                    vec![ContentBlock::text(failure_message::describe_failure(&receipt.outcome))];
                content.extend(artifacts);
                self.call(id, content, None, true, CallMeta { error: Some(failure_data(receipt)), ..meta })
            }
        }
    }

    /// The response to a call that was refused, as a result that a model can act on.
    #[must_use]
    pub fn refusal(self, id: &Id, fault: &Fault, intent: IntentId) -> String {
        let (text, details) = refusal_parts(fault);
        let meta = CallMeta { error: Some(details), ..CallMeta::new(intent, None) };
        self.call(id, vec![ContentBlock::text(text)], None, true, meta)
    }

    /// The response to a call that waits for a person.
    #[must_use]
    pub fn waiting(self, id: &Id, verdict: &Verdict) -> String {
        let intent = verdict.intent;
        let reason = verdict.reason.as_deref().map_or_else(String::new, |reason| format!(" ({reason})"));
        let text = format!(
            "The call waits for a person's decision{reason}. Its intent is {intent}: an approver decides with \
             `g2a/directive`. Send the call again with `_meta` `{}` set to it to get its result; it does not run \
             twice.",
            names::INTENT_ID
        );
        let details = json!({ "ran": false, "blocked_by": BlockedBy::EscalationPending.as_str() });
        let meta = CallMeta { error: Some(details), ..CallMeta::new(intent, Some(verdict)) };
        self.call(id, vec![ContentBlock::text(text)], None, true, meta)
    }

    fn call(
        self,
        id: &Id,
        content: Vec<ContentBlock>,
        structured_content: Option<&JsonText>,
        is_error: bool,
        meta: CallMeta,
    ) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct CallToolResult<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            result_type: Option<&'static str>,
            content: Vec<ContentBlock>,
            #[serde(skip_serializing_if = "Option::is_none")]
            structured_content: Option<&'a JsonText>,
            is_error: bool,
            #[serde(rename = "_meta")]
            meta: CallMeta,
        }
        let server = (self.revision == Revision::Stateless).then(|| self.implementation());
        let (result_type, meta) = (self.result_type(), CallMeta { server, ..meta });
        respond(id, &CallToolResult { result_type, content, structured_content, is_error, meta })
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
    jsonrpc::success(id, &to_raw(result)).get().to_owned()
}

fn id_value(id: &Id) -> Value {
    serde_json::from_str(id.as_json()).unwrap_or_default()
}

/// `_meta` of the result of a call.
#[derive(Serialize)]
struct CallMeta {
    #[serde(rename = "a2g/intent_id")]
    intent: IntentId,
    #[serde(rename = "a2g/verdict", skip_serializing_if = "Option::is_none")]
    verdict: Option<VerdictMeta>,
    #[serde(rename = "a2g/error", skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
    #[serde(rename = "a2g/metrics", skip_serializing_if = "Option::is_none")]
    metrics: Option<Box<RawValue>>,
    #[serde(rename = "a2g/usage", skip_serializing_if = "Option::is_none")]
    usage: Option<Box<RawValue>>,
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
        Self { intent, verdict, error: None, metrics: None, usage: None, server: None }
    }
}

/// A string result is its text, any other value its JSON.
fn result_text(result: &JsonText) -> String {
    result.parse_string().unwrap_or_else(|| result.as_str().to_owned())
}

fn failure_data(receipt: &Receipt) -> Value {
    failure_message::failure_details(receipt).into()
}

/// The sentence and the details of a refusal.
fn refusal_parts(fault: &Fault) -> (String, Value) {
    match fault {
        Fault::InvalidParams { message, pointer } => {
            // A model reads the text only.
            let argument = pointer.strip_prefix("/arguments/");
            let at =
                argument.map_or_else(String::new, |argument| format!(" (argument `{}`)", excerpt(argument)));
            (format!("{message}{at}"), json!({ "ran": false, "pointer": pointer }))
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
fn notify(method: &'static str, params: &impl Serialize) -> String {
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

/// `notifications/subscriptions/acknowledged`, with the notifications that will be sent.
#[must_use]
pub fn acknowledged(id: &Id, tools_list_changed: bool) -> String {
    let mut filter = Map::new();
    if tools_list_changed {
        filter.insert("toolsListChanged".to_owned(), true.into());
    }
    let meta = json!({ names::SUBSCRIPTION_ID: id_value(id) });
    notify("notifications/subscriptions/acknowledged", &json!({ "_meta": meta, "notifications": filter }))
}

/// `notifications/tools/list_changed`, for the subscription that the request `id` made, or for a session.
#[must_use]
pub fn tools_list_changed(id: Option<&Id>) -> String {
    let params = match id {
        Some(id) => json!({ "_meta": { names::SUBSCRIPTION_ID: id_value(id) } }),
        None => json!({}),
    };
    notify("notifications/tools/list_changed", &params)
}
