//! Decoder for messages of a client, which have passed the strict reader.

use super::elicit::{self, ElicitAnswer, InputResponses};
use super::fault::McpError;
use super::meta::{
    ClientCapabilities, MessageLevel, RequestMeta, decode_capabilities, decode_implementation, decode_meta,
};
use super::resources::{self, INTENT_VARIABLE, NAME_VARIABLE};
use super::{Revision, names};
use crate::field::{Field, Object};
use crate::jsonrpc::{self, Id, RpcMessage, RpcRequest};
use a2g_types::fault::Fault;
use a2g_types::ident::{IntentId, ToolName, excerpt};
use serde_json::{Map, Value};

/// The maximum number of resources, and of tasks, that one subscription may name.
pub const MAX_SUBSCRIPTION_NAMES: usize = 64;

/// A message of a client.
#[derive(Debug)]
pub enum ClientMessage<'a> {
    /// A request, which is answered.
    Request(ClientRequest<'a>),
    /// A notification, which is not answered.
    Notification(ClientNotification),
    /// An answer to a request of the server. Only sessions have such requests.
    Answer {
        /// The id of the request.
        id: Id,
        /// The result; `None` for an error.
        answer: Option<ElicitAnswer>,
    },
}

/// A request whose parameters are not decoded yet, because the method's meaning depends on the revision.
#[derive(Debug)]
pub struct ClientRequest<'a> {
    /// The id of the answer: a string or an integer.
    pub id: Id,
    /// The method, verbatim.
    pub method: String,
    /// `_meta` of the parameters.
    pub meta: RequestMeta,
    /// The other parameters, parsed once: a message may be long.
    params: Object<'a>,
}

/// A notification of a client.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientNotification {
    /// `notifications/cancelled`: the client does not want the answer to this request.
    Cancelled(Id),
    /// `notifications/initialized`.
    Initialized,
    /// Any other notification, which has no effect here.
    Other,
}

/// A decoded request, one variant for each method.
#[derive(Debug)]
pub enum McpRequest {
    /// `server/discover`.
    Discover,
    /// `initialize`.
    Initialize {
        /// The revision that the client prefers.
        version: String,
        /// The capabilities of the client.
        capabilities: ClientCapabilities,
    },
    /// `ping`.
    Ping,
    /// `tools/list`.
    ListTools {
        /// The name after which the page begins.
        after: Option<ToolName>,
    },
    /// `tools/call`.
    CallTool(Box<ToolCall>),
    /// `resources/list`.
    ListResources {
        /// The number of the receipt before which the page begins, newest first.
        before: Option<u64>,
    },
    /// `resources/templates/list`.
    ListTemplates,
    /// `resources/read`, with the URI verbatim.
    ReadResource(String),
    /// `completion/complete`.
    Complete(Completion),
    /// `tasks/get`.
    GetTask(IntentId),
    /// `tasks/update`, with the answers to the task's questions.
    UpdateTask(IntentId, InputResponses),
    /// `tasks/cancel`.
    CancelTask(IntentId),
    /// `subscriptions/listen`.
    Listen(SubscriptionFilter),
    /// `logging/setLevel`.
    SetLogLevel(MessageLevel),
}

/// The parameters of `tools/call`.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The tool, verbatim.
    pub tool: String,
    /// The arguments, not yet checked against the tool's schema.
    pub arguments: Map<String, Value>,
    /// The state of an earlier answer to this call, if the client repeats it.
    pub state: Option<String>,
    /// The answer to the question of that answer.
    pub responses: InputResponses,
}

/// The variable of a resource template that a client completes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// The intent of a run, with the text so far.
    Intent(String),
    /// The name of an artifact of a run, with the text so far.
    Artifact(IntentId, String),
    /// A variable without suggestions.
    Unknown,
}

/// The notifications that a client subscribes to, reduced to those that this server has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubscriptionFilter {
    /// `notifications/tools/list_changed`.
    pub tools_list_changed: bool,
    /// `notifications/resources/list_changed`.
    pub resources_list_changed: bool,
    /// `notifications/tasks` for the tasks of these ids, verbatim.
    pub tasks: Vec<String>,
}

impl SubscriptionFilter {
    /// Every list whose changes this server announces.
    pub const EVERY_LIST: Self =
        Self { tools_list_changed: true, resources_list_changed: true, tasks: Vec::new() };
}

/// A message that cannot be decoded.
#[derive(Debug)]
pub struct McpDecodeError {
    /// The id, if it was readable.
    pub id: Option<Id>,
    /// The reason.
    pub error: McpError,
}

impl From<Fault> for McpDecodeError {
    fn from(fault: Fault) -> Self {
        Self { id: None, error: McpError::Fault(fault) }
    }
}

/// Decodes the frame of a message and the `_meta` of a request.
///
/// # Errors
/// [`McpDecodeError`] with the id of the request, if it has a valid one.
pub fn message(text: &str) -> Result<ClientMessage<'_>, McpDecodeError> {
    // A batch of one would be accepted by the shared reader; these revisions have none.
    let entry = match jsonrpc::decode(text, 0) {
        Ok(RpcMessage::Single(entry)) => entry,
        Ok(RpcMessage::Batch(_)) | Err(Fault::InvalidRequest(_)) => {
            let message = "a message is one object: this protocol has no batches";
            return Err(Fault::InvalidRequest(message.to_owned()).into());
        }
        Err(fault) => return Err(fault.into()),
    };
    let request = match entry {
        Ok(request) => request,
        Err((Some(id), fault)) => match answer(text)? {
            Some(answer) => return Ok(ClientMessage::Answer { id, answer }),
            None => {
                return Err(McpDecodeError { id: Some(id).filter(|id| !id.is_null()), error: fault.into() });
            }
        },
        Err((None, fault)) => return Err(fault.into()),
    };
    match request.id.clone() {
        None => notification(&request).map(ClientMessage::Notification).map_err(Into::into),
        Some(id) if !is_request_id(&id) => {
            Err(Fault::InvalidRequest("`id` must be a string or an integer".to_owned()).into())
        }
        Some(id) => {
            let decoded = split_meta(&request);
            let (meta, params) =
                decoded.map_err(|fault| McpDecodeError { id: Some(id.clone()), error: fault.into() })?;
            let method = request.method.into_owned();
            Ok(ClientMessage::Request(ClientRequest { id, method, meta, params }))
        }
    }
}

/// The result of an object with `result` or `error` and no method; `Some(None)` for an error, and for a result that
/// is no answer: the call that waits for it has to learn that no decision will come.
fn answer(text: &str) -> Result<Option<Option<ElicitAnswer>>, Fault> {
    let mut members = Object::parse(text)?;
    if members.take("method")?.is_some() {
        return Ok(None);
    }
    if let Some(result) = members.take("result")? {
        return Ok(Some(elicit::decode_session_answer(result).ok()));
    }
    Ok(members.take("error")?.map(|_error| None))
}

/// MCP ids are strings and integers; JSON-RPC also has `null` and fractions.
fn is_request_id(id: &Id) -> bool {
    let text = id.as_json();
    let digits = text.strip_prefix('-').unwrap_or(text);
    text.starts_with('"') || digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The parameters as an object; an absent one is empty.
fn params_of<'a>(params: Option<&'a serde_json::value::RawValue>) -> Result<Object<'a>, Fault> {
    Object::parse(params.map_or("{}", |raw| raw.get()))
}

/// `_meta` of a request, and its other parameters.
fn split_meta<'a>(request: &RpcRequest<'a>) -> Result<(RequestMeta, Object<'a>), Fault> {
    let mut params = params_of(request.params)?;
    let meta = params.read_optional_with("_meta", decode_meta)?;
    Ok((meta.unwrap_or_default(), params))
}

fn notification(request: &RpcRequest<'_>) -> Result<ClientNotification, Fault> {
    match &*request.method {
        "notifications/cancelled" => {
            let mut params = params_of(request.params)?;
            let id = Id::from_field(&params.require("requestId")?)?;
            Ok(ClientNotification::Cancelled(id))
        }
        "notifications/initialized" => Ok(ClientNotification::Initialized),
        _other => Ok(ClientNotification::Other),
    }
}

impl ClientRequest<'_> {
    /// Decodes the parameters of a method of this revision.
    ///
    /// # Errors
    /// [`Fault::MethodNotFound`] for a method that the revision or this server does not have, and
    /// [`Fault::InvalidParams`] with a pointer into the parameters.
    pub fn decode(&self, revision: Revision) -> Result<McpRequest, Fault> {
        let mut params = self.params.clone();
        match (revision, self.method.as_str()) {
            (Revision::Stateless, "server/discover") => Ok(McpRequest::Discover),
            (Revision::Session, "initialize") => decode_initialize(params),
            (Revision::Session, "ping") => Ok(McpRequest::Ping),
            (Revision::Session, "logging/setLevel") => {
                params.require("level")?.enum_variant().map(McpRequest::SetLogLevel)
            }
            (Revision::Stateless, "subscriptions/listen") => {
                decode_filter(params.require("notifications")?).map(McpRequest::Listen)
            }
            (_, "tools/list") => {
                Ok(McpRequest::ListTools { after: params.read_optional_with("cursor", decode_cursor)? })
            }
            (_, "tools/call") => {
                let mut call = ToolCall {
                    tool: params.read("name")?,
                    arguments: params.read_nullable("arguments")?.unwrap_or_default(),
                    state: None,
                    responses: InputResponses::default(),
                };
                if revision == Revision::Stateless {
                    call.state = params.read_nullable("requestState")?;
                    call.responses = decode_responses(&mut params)?;
                }
                Ok(McpRequest::CallTool(Box::new(call)))
            }
            (_, "resources/list") => {
                let before = params.read_optional_with("cursor", decode_number_cursor)?;
                Ok(McpRequest::ListResources { before })
            }
            (_, "resources/templates/list") => match params.take("cursor")? {
                Some(cursor) => Err(cursor.invalid(&NOT_A_CURSOR)),
                None => Ok(McpRequest::ListTemplates),
            },
            (_, "resources/read") => params.read("uri").map(McpRequest::ReadResource),
            (_, "completion/complete") => decode_completion(params).map(McpRequest::Complete),
            (Revision::Stateless, "tasks/get") => decode_task(&mut params).map(McpRequest::GetTask),
            (Revision::Stateless, "tasks/update") => {
                let task = decode_task(&mut params)?;
                Ok(McpRequest::UpdateTask(task, decode_responses(&mut params)?))
            }
            (Revision::Stateless, "tasks/cancel") => decode_task(&mut params).map(McpRequest::CancelTask),
            (_, method) => Err(Fault::MethodNotFound(format!(
                "`{}` is not a method of this server in revision {}",
                excerpt(method),
                revision.as_str()
            ))),
        }
    }

    /// The client's capabilities in a request of [`Revision::Stateless`], which has the members that every such request
    /// needs. The parameters of a task's method are not read before its extension is declared.
    ///
    /// # Errors
    /// [`Fault::InvalidParams`] for a missing member, [`McpError::UnsupportedVersion`], and
    /// [`McpError::MissingCapability`].
    pub fn stateless_capabilities(&self) -> Result<ClientCapabilities, McpError> {
        let capabilities = require_stateless_meta(&self.meta)?;
        let is_of_task = matches!(self.method.as_str(), "tasks/get" | "tasks/update" | "tasks/cancel");
        if is_of_task && !capabilities.has_tasks {
            return Err(McpError::MissingCapability(names::TASKS));
        }
        Ok(capabilities)
    }

    /// The tool of `tools/call`, verbatim.
    #[must_use]
    pub fn called_tool(&self) -> Option<String> {
        self.mirrored_name().filter(|_| self.method == "tools/call")
    }

    /// The value that the header `Mcp-Name` repeats, if the method has one.
    #[must_use]
    pub fn mirrored_name(&self) -> Option<String> {
        let member = match self.method.as_str() {
            "tools/call" | "prompts/get" => "name",
            "resources/read" => "uri",
            "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
            _other => return None,
        };
        self.params.clone().take(member).ok()??.string().ok()
    }
}

fn decode_initialize(mut params: Object<'_>) -> Result<McpRequest, Fault> {
    let version = params.read::<String>("protocolVersion")?;
    let reads_empty_events = negotiate_session(&version) == Revision::Session.as_str();
    let capabilities = decode_capabilities(params.require("capabilities")?)?;
    let capabilities = ClientCapabilities { reads_empty_events, ..capabilities };
    decode_implementation(params.require("clientInfo")?)?;
    Ok(McpRequest::Initialize { version, capabilities })
}

fn decode_responses(params: &mut Object<'_>) -> Result<InputResponses, Fault> {
    let responses = params.read_nullable::<Object<'_>>("inputResponses")?.unwrap_or_default();
    elicit::decode_responses(responses)
}

/// The id of a task is that of its intent.
fn decode_task(params: &mut Object<'_>) -> Result<IntentId, Fault> {
    let task = params.require("taskId")?;
    task.parse_with(|text| IntentId::parse(text).map_err(|_| "is not the id of a task"))
}

fn decode_completion(mut params: Object<'_>) -> Result<Completion, Fault> {
    let mut reference = params.read::<Object<'_>>("ref")?;
    let kind = reference.require("type")?;
    if kind.string()? != "ref/resource" {
        return Err(kind.invalid(&"has to be `ref/resource`: this server has no prompts"));
    }
    let uri = reference.require("uri")?;
    if !resources::has_template(&uri.string()?) {
        return Err(uri.invalid(&"is not a template of this server"));
    }
    let mut argument = params.read::<Object<'_>>("argument")?;
    let name = argument.read::<String>("name")?;
    let value = argument.read("value")?;
    let mut context = params.read_nullable::<Object<'_>>("context")?.unwrap_or_default();
    let mut known = context.read_nullable::<Object<'_>>("arguments")?.unwrap_or_default();
    let intent = known.read_nullable::<String>(INTENT_VARIABLE)?;
    Ok(match (name.as_str(), intent.and_then(|intent| IntentId::parse(&intent).ok())) {
        (INTENT_VARIABLE, _) => Completion::Intent(value),
        (NAME_VARIABLE, Some(intent)) => Completion::Artifact(intent, value),
        (_other, _) => Completion::Unknown,
    })
}

fn decode_filter(field: Field<'_>) -> Result<SubscriptionFilter, Fault> {
    let mut filter = field.object()?;
    // This server has no prompts, and no resource that changes.
    filter.read_optional::<bool>("promptsListChanged")?;
    filter.read_optional_with("resourceSubscriptions", |uris| bounded_names(&uris, "resources"))?;
    let tasks = filter.read_optional_with("taskIds", |tasks| bounded_names(&tasks, "tasks"))?;
    Ok(SubscriptionFilter {
        tools_list_changed: filter.read_optional("toolsListChanged")?.unwrap_or_default(),
        resources_list_changed: filter.read_optional("resourcesListChanged")?.unwrap_or_default(),
        tasks: tasks.unwrap_or_default(),
    })
}

/// Decodes a list of at most [`MAX_SUBSCRIPTION_NAMES`] names.
fn bounded_names(field: &Field<'_>, things: &str) -> Result<Vec<String>, Fault> {
    let names = field.strings()?;
    if names.len() > MAX_SUBSCRIPTION_NAMES {
        return Err(field.fault(format!("a subscription names at most {MAX_SUBSCRIPTION_NAMES} {things}")));
    }
    Ok(names)
}

const NOT_A_CURSOR: &str = "is not a cursor of this server: start again without one";

fn decode_number_cursor(field: Field<'_>) -> Result<u64, Fault> {
    field.parse_with(|text| text.parse::<u64>().map_err(|_| NOT_A_CURSOR))
}

/// A cursor is the name of the last tool of the page before, so it stays valid when the catalogue changes.
fn decode_cursor(field: Field<'_>) -> Result<ToolName, Fault> {
    field.parse_with(|text| ToolName::parse(text).map_err(|_| NOT_A_CURSOR))
}

/// The revision that a session speaks with a client that prefers `requested`: the same if it is one that this server
/// knows, because 2025-06-18 has the same messages for all that is offered here, and 2025-11-25 otherwise.
#[must_use]
pub fn negotiate_session(requested: &str) -> &'static str {
    session_version(requested).unwrap_or(Revision::Session.as_str())
}

fn session_version(name: &str) -> Option<&'static str> {
    const EARLIER: &str = "2025-06-18";
    [Revision::Session.as_str(), EARLIER].into_iter().find(|known| *known == name)
}

/// Returns `true` for a revision that a request of a session may name in its header. Clients also name 2025-03-26,
/// which is the default of that header.
#[must_use]
pub fn is_session_version(name: &str) -> bool {
    const DEFAULT: &str = "2025-03-26";
    name == DEFAULT || session_version(name).is_some()
}

fn require_stateless_meta(meta: &RequestMeta) -> Result<ClientCapabilities, McpError> {
    let missing = |name: &str| {
        let pointer = format!("/_meta/{}", name.replace('/', "~1"));
        McpError::Fault(Fault::invalid(pointer, format!("`{name}` is missing in `_meta`")))
    };
    let version = meta.version.as_ref().ok_or_else(|| missing(names::PROTOCOL_VERSION))?;
    if version != Revision::Stateless.as_str() {
        return Err(McpError::UnsupportedVersion(version.clone()));
    }
    meta.capabilities.ok_or_else(|| missing(names::CLIENT_CAPABILITIES))
}

/// Checks that a client which subscribes to tasks declares their extension.
///
/// # Errors
/// [`McpError::MissingCapability`].
pub fn check_subscription(
    filter: &SubscriptionFilter,
    capabilities: ClientCapabilities,
) -> Result<(), McpError> {
    if !filter.tasks.is_empty() && !capabilities.has_tasks {
        return Err(McpError::MissingCapability(names::TASKS));
    }
    Ok(())
}

/// The intent of a call: the client's own, or a new one. `true` for a new one.
#[must_use]
pub fn intent_of(meta: &RequestMeta) -> (IntentId, bool) {
    meta.intent.map_or_else(|| (IntentId::random(), true), |intent| (intent, false))
}
