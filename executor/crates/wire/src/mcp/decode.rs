//! Decoder for messages of a client, which have passed the strict reader.

use super::fault::McpError;
use super::meta::{
    ClientCapabilities, MessageLevel, RequestMeta, decode_capabilities, decode_implementation, decode_meta,
};
use super::{Revision, names};
use crate::field::{Field, Object};
use crate::jsonrpc::{self, Id, RpcMessage, RpcRequest};
use a2g_types::fault::Fault;
use a2g_types::ident::{IntentId, ToolName, excerpt};
use serde_json::{Map, Value};

/// The maximum number of resources that one subscription names.
pub const MAX_RESOURCE_SUBSCRIPTIONS: usize = 64;

/// A message of a client.
#[derive(Debug)]
pub enum ClientMessage<'a> {
    /// A request, which is answered.
    Request(ClientRequest<'a>),
    /// A notification, which is not.
    Notification(ClientNotification),
    /// An answer to a request of the server. Only sessions have such requests.
    Answer(Id),
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
    params: Option<&'a serde_json::value::RawValue>,
}

/// A notification of a client.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientNotification {
    /// `notifications/cancelled`: the client does not want the answer to this request.
    Cancelled(Id),
    /// `notifications/initialized`.
    Initialized,
    /// Any other, which has no effect here.
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
}

/// The notifications that a client subscribes to, reduced to those that this server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubscriptionFilter {
    /// `notifications/tools/list_changed`.
    pub tools_list_changed: bool,
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
        Err((Some(id), fault)) => match is_answer(text) {
            true => return Ok(ClientMessage::Answer(id)),
            false => {
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
            let meta = read_meta(&request);
            let meta = meta.map_err(|fault| McpDecodeError { id: Some(id.clone()), error: fault.into() })?;
            Ok(ClientMessage::Request(ClientRequest {
                id,
                method: request.method.into_owned(),
                meta,
                params: request.params,
            }))
        }
    }
}

/// Returns `true` for an object with `result` or `error` and no method.
fn is_answer(text: &str) -> bool {
    let answer = || {
        let mut members = Object::parse(text).ok()?;
        let has_method = members.take("method").ok()?.is_some();
        let has_outcome = members.take("result").ok()?.is_some() || members.take("error").ok()?.is_some();
        Some(!has_method && has_outcome)
    };
    answer().unwrap_or_default()
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

fn read_meta(request: &RpcRequest<'_>) -> Result<RequestMeta, Fault> {
    let mut params = params_of(request.params)?;
    params.take("_meta")?.map(decode_meta).transpose().map(Option::unwrap_or_default)
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
        let mut params = params_of(self.params)?;
        match (revision, self.method.as_str()) {
            (Revision::Stateless, "server/discover") => Ok(McpRequest::Discover),
            (Revision::Session, "initialize") => decode_initialize(params),
            (Revision::Session, "ping") => Ok(McpRequest::Ping),
            (Revision::Session, "logging/setLevel") => {
                MessageLevel::parse(&params.require("level")?).map(McpRequest::SetLogLevel)
            }
            (Revision::Stateless, "subscriptions/listen") => {
                decode_filter(params.require("notifications")?).map(McpRequest::Listen)
            }
            (_, "tools/list") => {
                let cursor = params.take("cursor")?;
                let after = cursor.map(|cursor| decode_cursor(&cursor)).transpose()?;
                Ok(McpRequest::ListTools { after })
            }
            (_, "tools/call") => {
                let tool = params.require("name")?.string()?;
                let arguments = params.take_unless_null("arguments")?;
                let arguments = arguments.map(|arguments| arguments.map()).transpose()?.unwrap_or_default();
                Ok(McpRequest::CallTool(Box::new(ToolCall { tool, arguments })))
            }
            (_, method) => Err(Fault::MethodNotFound(format!(
                "`{}` is not a method of this server in revision {}",
                excerpt(method),
                revision.as_str()
            ))),
        }
    }

    /// The value that the header `Mcp-Name` repeats, if the method has one.
    #[must_use]
    pub fn mirrored_name(&self) -> Option<String> {
        let member = match self.method.as_str() {
            "tools/call" | "prompts/get" => "name",
            "resources/read" => "uri",
            _other => return None,
        };
        let mut params = params_of(self.params).ok()?;
        params.take(member).ok()??.string().ok()
    }
}

fn decode_initialize(mut params: Object<'_>) -> Result<McpRequest, Fault> {
    let version = params.require("protocolVersion")?.string()?;
    let capabilities = decode_capabilities(params.require("capabilities")?)?;
    decode_implementation(params.require("clientInfo")?)?;
    Ok(McpRequest::Initialize { version, capabilities })
}

fn decode_filter(field: Field<'_>) -> Result<SubscriptionFilter, Fault> {
    let mut filter = field.object()?;
    let tools = filter.take("toolsListChanged")?.map(|wanted| wanted.boolean()).transpose()?;
    for other in ["promptsListChanged", "resourcesListChanged"] {
        filter.take(other)?.map(|wanted| wanted.boolean()).transpose()?;
    }
    if let Some(resources) = filter.take("resourceSubscriptions")? {
        let pointer = resources.pointer().to_owned();
        if resources.strings()?.len() > MAX_RESOURCE_SUBSCRIPTIONS {
            let message = format!("a subscription names at most {MAX_RESOURCE_SUBSCRIPTIONS} resources");
            return Err(Fault::invalid(pointer, message));
        }
    }
    Ok(SubscriptionFilter { tools_list_changed: tools.unwrap_or_default() })
}

/// A cursor is the name of the last tool of the page before, so it stays valid when the catalogue changes.
fn decode_cursor(field: &Field<'_>) -> Result<ToolName, Fault> {
    field.parse_with(|text| {
        ToolName::parse(text).map_err(|_| "is not a cursor of this server: start again without one")
    })
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

/// Returns `true` for a revision that a request of a session may name in its header. Clients name 2025-03-26, too, which
/// is the default of that header.
#[must_use]
pub fn is_session_version(name: &str) -> bool {
    const DEFAULT: &str = "2025-03-26";
    name == DEFAULT || session_version(name).is_some()
}

/// Checks that a request of [`Revision::Stateless`] carries what each of them must.
///
/// # Errors
/// [`Fault::InvalidParams`] for a missing member, and [`McpError::UnsupportedVersion`].
pub fn require_stateless_meta(meta: &RequestMeta) -> Result<ClientCapabilities, McpError> {
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

/// The intent of a call: the client's own, or a new one. `true` for a new one.
#[must_use]
pub fn intent_of(meta: &RequestMeta) -> (IntentId, bool) {
    meta.intent.map_or_else(|| (IntentId::random(), true), |intent| (intent, false))
}
