//! Decoder for bodies of `POST /a2a/rpc`, which have passed the strict reader.
//!
//! Member names of A2A 0.3.0 and those of the A2A-ACP document are accepted.

use super::governance::PermissionAnswer;
use super::message::{FileContent, FilePart, Message, MessageRole, Metadata, Part, PartKind};
use super::page::PageToken;
use super::push::{self, PushConfig};
use super::{Dialect, card};
use crate::field::{Field, Object};
use crate::jsonrpc::{self, Id, RpcMessage};
use a2g_types::fault::Fault;
use a2g_types::ident::{ToolName, did_you_mean, excerpt};
use a2g_types::quantity::Timeout;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Maximum number of characters of an id or a name that a client chooses.
const MAX_NAME_CHARS: usize = 256;
/// Maximum number of parts of one message.
const MAX_PARTS: usize = 256;
/// Maximum `historyLength`.
const MAX_HISTORY_LENGTH: u64 = 1_000_000;
/// Maximum number of tasks in one answer to `tasks/list`.
const MAX_PAGE_SIZE: u64 = 100;
/// Number of tasks in one answer to `tasks/list` without `limit`.
const DEFAULT_PAGE_SIZE: usize = 20;
/// Maximum `offset`: about the number of tasks that are stored for one agent. Skipped tasks are read from the journal,
/// which a `pageToken` avoids.
const MAX_OFFSET: u64 = 1_000;

/// A decoded request, one variant for each method.
#[derive(Debug, Clone, PartialEq)]
pub enum A2aRequest {
    /// `message/send`.
    Send(Box<SendParams>),
    /// `message/stream`.
    Stream(Box<SendParams>),
    /// `tasks/get`.
    Get {
        /// The id of the task.
        task: String,
        /// Maximum number of messages in the answer, which has the latest ones.
        history: Option<usize>,
    },
    /// `tasks/list`.
    List {
        /// Restricts the list to one conversation.
        context: Option<String>,
        /// The page size.
        limit: usize,
        /// The number of tasks to skip.
        offset: usize,
        /// The task after which the page begins.
        after: Option<PageToken>,
    },
    /// `tasks/cancel`.
    Cancel {
        /// The id of the task.
        task: String,
    },
    /// `tasks/resubscribe`.
    Resubscribe {
        /// The id of the task.
        task: String,
    },
    /// `tasks/provideInputAndContinue` with a message.
    Provide {
        /// The message, with the id of its task.
        sent: Box<SendParams>,
    },
    /// `tasks/provideInputAndContinue` with a decision.
    Permit {
        /// The id of the task.
        task: String,
        /// The decision.
        answer: PermissionAnswer,
    },
    /// `tasks/pushNotificationConfig/set`.
    SetPush {
        /// The id of the task.
        task: String,
        /// The webhook.
        config: Box<PushConfig>,
    },
    /// `tasks/pushNotificationConfig/get`.
    GetPush {
        /// The id of the task.
        task: String,
        /// The id of the webhook; the first one if absent.
        config: Option<String>,
    },
    /// `tasks/pushNotificationConfig/list`.
    ListPush {
        /// The id of the task.
        task: String,
    },
    /// `tasks/pushNotificationConfig/delete`.
    DeletePush {
        /// The id of the task.
        task: String,
        /// The id of the webhook.
        config: String,
    },
    /// `agent/getAuthenticatedExtendedCard`.
    ExtendedCard,
}

/// A method whose response can be a stream of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamingMethod {
    /// `message/stream`; in the A2A-ACP dialect its response names a stream instead.
    Message,
    /// `tasks/resubscribe`.
    Resubscribe,
}

impl StreamingMethod {
    fn from_method(method: &str) -> Option<Self> {
        match method {
            "message/stream" => Some(Self::Message),
            "tasks/resubscribe" => Some(Self::Resubscribe),
            _other => None,
        }
    }

    /// Returns `true` when the response is a stream in this dialect.
    #[must_use]
    pub fn is_event_stream(self, dialect: Dialect) -> bool {
        match (self, dialect) {
            (Self::Resubscribe, Dialect::A2a | Dialect::Acp) | (Self::Message, Dialect::A2a) => true,
            (Self::Message, Dialect::Acp) => false,
        }
    }
}

impl A2aRequest {
    /// The streaming method of this request, if it is one.
    #[must_use]
    pub fn streaming(&self) -> Option<StreamingMethod> {
        match self {
            Self::Stream(_) => Some(StreamingMethod::Message),
            Self::Resubscribe { .. } => Some(StreamingMethod::Resubscribe),
            Self::Send(_)
            | Self::Get { .. }
            | Self::List { .. }
            | Self::Cancel { .. }
            | Self::Provide { .. }
            | Self::Permit { .. }
            | Self::SetPush { .. }
            | Self::GetPush { .. }
            | Self::ListPush { .. }
            | Self::DeletePush { .. }
            | Self::ExtendedCard => None,
        }
    }
}

/// A request that cannot be decoded.
#[derive(Debug)]
pub struct A2aDecodeError {
    /// The id of the response; null if that of the request was unreadable.
    pub id: Id,
    /// The reason.
    pub fault: Fault,
    /// The streaming method of the request, if its method was readable and is one.
    pub streaming: Option<StreamingMethod>,
}

impl A2aDecodeError {
    fn framing(id: Id, fault: Fault) -> Self {
        Self { id, fault, streaming: None }
    }
}

/// The parameters of `message/send` and `message/stream`.
#[derive(Debug, Clone, PartialEq)]
pub struct SendParams {
    /// The message.
    pub message: Message,
    /// The tool call in the message, if it contains one.
    pub call: Option<ToolCall>,
    /// `true` to delay the response until the task is settled.
    pub blocking: bool,
    /// Maximum number of messages of the history in the response.
    pub history: Option<usize>,
    /// The media types that the client accepts; empty for any.
    pub accepts: Vec<String>,
    /// A webhook to register for the task.
    pub push: Option<Box<PushConfig>>,
    /// `true` if the tool shall run in a session of the message's conversation, `false` if it shall run in none.
    pub asks_for_session: Option<bool>,
}

/// A tool call inside a message.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The name of the tool.
    pub tool: ToolName,
    /// The arguments, not yet checked against the tool's schema.
    pub arguments: Map<String, Value>,
    /// The caller's own limit on the run time.
    pub timeout: Option<Timeout>,
    /// The JSON Pointer of the tool's name in the params.
    pub tool_pointer: String,
    /// The JSON Pointer of the arguments in the params.
    pub arguments_pointer: String,
}

impl ToolCall {
    /// Rewrites the pointer of a core fault, which is relative to the call, to one into the params.
    #[must_use]
    pub fn relocate_fault(&self, fault: Fault) -> Fault {
        let Fault::InvalidParams { message, pointer } = fault else { return fault };
        let pointer = match (pointer.strip_prefix("/arguments"), pointer.as_str()) {
            (Some(rest), _) => format!("{}{rest}", self.arguments_pointer),
            (None, "/tool") => self.tool_pointer.clone(),
            (None, _) => pointer,
        };
        Fault::InvalidParams { message, pointer }
    }
}

/// Decodes a request. The id of a request without an `id` is `null`.
///
/// # Errors
/// If the request is not valid JSON-RPC, or its method or params are not valid.
pub fn request(text: &str) -> Result<(Id, A2aRequest), A2aDecodeError> {
    let entry = match jsonrpc::decode(text, 1) {
        Ok(RpcMessage::Single(entry)) => entry,
        Ok(RpcMessage::Batch(_)) => return Err(A2aDecodeError::framing(Id::null(), batch_fault())),
        Err(Fault::InvalidRequest(_)) if text.trim_start().starts_with('[') => {
            return Err(A2aDecodeError::framing(Id::null(), batch_fault()));
        }
        Err(fault) => return Err(A2aDecodeError::framing(Id::null(), fault)),
    };
    // The A2A schema allows only strings, integers and null, so an id with a fraction or an exponent could not be
    // returned.
    let is_valid_id = |id: &Id| {
        let text = id.as_json();
        text.starts_with(['"', 'n']) || !text.contains(['.', 'e', 'E'])
    };
    let request = entry.map_err(|(id, fault)| {
        A2aDecodeError::framing(id.filter(is_valid_id).unwrap_or_else(Id::null), fault)
    })?;
    let id = request.id.unwrap_or_else(Id::null);
    if !is_valid_id(&id) {
        let fault = Fault::InvalidRequest("`id` must be a string, an integer or null".to_owned());
        return Err(A2aDecodeError::framing(Id::null(), fault));
    }
    let params = request.params.map_or("{}", serde_json::value::RawValue::get);
    match decode_method(&request.method, params) {
        Ok(decoded) => Ok((id, decoded)),
        Err(fault) => {
            Err(A2aDecodeError { id, fault, streaming: StreamingMethod::from_method(&request.method) })
        }
    }
}

fn batch_fault() -> Fault {
    Fault::InvalidRequest("a request must be one object: this door does not accept batches".to_owned())
}

/// The methods of this door, for the suggestion after a mistyped one.
pub(super) const METHODS: [&str; 12] = [
    "message/send",
    "message/stream",
    "tasks/get",
    "tasks/list",
    "tasks/cancel",
    "tasks/resubscribe",
    "tasks/provideInputAndContinue",
    "tasks/pushNotificationConfig/set",
    "tasks/pushNotificationConfig/get",
    "tasks/pushNotificationConfig/list",
    "tasks/pushNotificationConfig/delete",
    "agent/getAuthenticatedExtendedCard",
];

fn decode_method(name: &str, params: &str) -> Result<A2aRequest, Fault> {
    let params = || Object::parse(params);
    match name {
        "message/send" => Ok(A2aRequest::Send(Box::new(decode_send_params(params()?)?))),
        "message/stream" => Ok(A2aRequest::Stream(Box::new(decode_send_params(params()?)?))),
        "tasks/get" => decode_get(params()?),
        "tasks/list" => decode_list(params()?),
        "tasks/cancel" => Ok(A2aRequest::Cancel { task: task_id(&mut params()?)? }),
        "tasks/resubscribe" => Ok(A2aRequest::Resubscribe { task: task_id(&mut params()?)? }),
        "tasks/provideInputAndContinue" => decode_provide(params()?),
        "tasks/pushNotificationConfig/set" => {
            let mut params = params()?;
            let config = Box::new(push::decode_set_params(&mut params)?);
            Ok(A2aRequest::SetPush { task: task_id(&mut params)?, config })
        }
        "tasks/pushNotificationConfig/get" => {
            let mut params = params()?;
            Ok(A2aRequest::GetPush { task: task_id(&mut params)?, config: webhook_id(&mut params)? })
        }
        "tasks/pushNotificationConfig/list" => Ok(A2aRequest::ListPush { task: task_id(&mut params()?)? }),
        "tasks/pushNotificationConfig/delete" => {
            let mut params = params()?;
            let task = task_id(&mut params)?;
            let config = webhook_id(&mut params)?;
            let missing = || params.missing("pushNotificationConfigId");
            Ok(A2aRequest::DeletePush { task, config: config.ok_or_else(missing)? })
        }
        "agent/getAuthenticatedExtendedCard" => {
            params()?;
            Ok(A2aRequest::ExtendedCard)
        }
        other => {
            let shown = excerpt(other);
            let nearest = did_you_mean(other, METHODS);
            // The methods of A2A 1.0 have no slash.
            let version = match other.contains('/') {
                true => String::new(),
                false => {
                    format!(", which speaks A2A {}: see its agent card at `{}`", card::PROTOCOL, card::PATH)
                }
            };
            Err(Fault::MethodNotFound(format!("there is no method `{shown}` at this door{nearest}{version}")))
        }
    }
}

/// The task id of params: `id`, or `taskId` of the A2A-ACP document.
fn task_id(params: &mut Object<'_>) -> Result<String, Fault> {
    let id = one_of(params.take("id")?, "id", params.take("taskId")?)?;
    decode_name(id.ok_or_else(|| Fault::invalid("/id", "`id` of the task is missing"))?)
}

/// A webhook id: `pushNotificationConfigId`, or `configId` of the A2A-ACP document.
fn webhook_id(params: &mut Object<'_>) -> Result<Option<String>, Fault> {
    let id = params.take_unless_null("pushNotificationConfigId")?;
    let alias = params.take_unless_null("configId")?;
    one_of(id, "pushNotificationConfigId", alias)?.map(decode_name).transpose()
}

/// The member or its alias: a request has one of them.
pub(super) fn one_of<'a>(
    member: Option<Field<'a>>,
    name: &str,
    alias: Option<Field<'a>>,
) -> Result<Option<Field<'a>>, Fault> {
    match (member, alias) {
        (Some(_), Some(alias)) => Err(alias.invalid(&format!("repeats `{name}`: send one of them"))),
        (member, alias) => Ok(member.or(alias)),
    }
}

/// Decodes an id or a name that a client chooses.
pub(super) fn decode_name(field: Field<'_>) -> Result<String, Fault> {
    field.parse_with(|text| {
        let is_valid =
            !text.is_empty() && text.chars().count() <= MAX_NAME_CHARS && !text.chars().any(char::is_control);
        if is_valid {
            Ok(text.to_owned())
        } else {
            Err(format!("must have 1 to {MAX_NAME_CHARS} characters, and no control characters"))
        }
    })
}

fn optional_history(object: &mut Object<'_>) -> Result<Option<usize>, Fault> {
    object.read_nullable_with("historyLength", |length| decode_count(&length, 0, MAX_HISTORY_LENGTH))
}

fn decode_count(field: &Field<'_>, min: u64, max: u64) -> Result<usize, Fault> {
    field.integer(min, max).map(|count| usize::try_from(count).unwrap_or(usize::MAX))
}

fn decode_get(mut params: Object<'_>) -> Result<A2aRequest, Fault> {
    Ok(A2aRequest::Get { task: task_id(&mut params)?, history: optional_history(&mut params)? })
}

fn decode_list(mut params: Object<'_>) -> Result<A2aRequest, Fault> {
    let limit = params.read_nullable_with("limit", |limit| decode_count(&limit, 1, MAX_PAGE_SIZE))?;
    let offset = params.read_nullable_with("offset", |offset| decode_count(&offset, 0, MAX_OFFSET))?;
    let has_offset = offset.is_some();
    Ok(A2aRequest::List {
        context: params.read_nullable_with("contextId", decode_name)?,
        limit: limit.unwrap_or(DEFAULT_PAGE_SIZE),
        offset: offset.unwrap_or_default(),
        after: params.read_nullable_with("pageToken", |token| decode_page_token(&token, has_offset))?,
    })
}

fn decode_page_token(token: &Field<'_>, has_offset: bool) -> Result<PageToken, Fault> {
    if has_offset {
        return Err(token.invalid(&"replaces `offset`: send one of them"));
    }
    let page_token = PageToken::parse(&token.string()?);
    page_token.ok_or_else(|| token.invalid(&"must be a `nextPageToken` from this executor"))
}

fn decode_send_params(mut params: Object<'_>) -> Result<SendParams, Fault> {
    let message = params.require("message")?;
    decode_message_with_call(message, params)
}

/// Decodes a message, and the members beside it.
fn decode_message_with_call(field: Field<'_>, mut params: Object<'_>) -> Result<SendParams, Fault> {
    let metadata = params.read_nullable::<Metadata>("metadata")?;
    let mut configuration = params.read_nullable::<Object<'_>>("configuration")?.unwrap_or_default();
    let pointer = field.pointer().to_owned();
    let message = decode_message(field)?;
    let in_message = find_session(message.metadata.as_ref(), &format!("{pointer}/metadata/session"))?;
    let in_params = find_session(metadata.as_ref(), "/metadata/session")?;
    Ok(SendParams {
        asks_for_session: in_message.or(in_params),
        call: find_call(&message, metadata.as_ref(), &pointer)?,
        message,
        blocking: configuration.read_nullable("blocking")?.unwrap_or(true),
        history: optional_history(&mut configuration)?,
        accepts: configuration.read_nullable("acceptedOutputModes")?.unwrap_or_default(),
        push: configuration.read_nullable_with("pushNotificationConfig", push::decode_config)?.map(Box::new),
    })
}

fn find_session(metadata: Option<&Metadata>, pointer: &str) -> Result<Option<bool>, Fault> {
    match metadata.and_then(|metadata| metadata.get("session")) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(asks)) => Ok(Some(*asks)),
        Some(Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => {
            Err(Fault::invalid(pointer, "`session` is `true` or `false`"))
        }
    }
}

fn decode_provide(mut params: Object<'_>) -> Result<A2aRequest, Fault> {
    let task = task_id(&mut params)?;
    let input = params.take_unless_null("input")?;
    let option = params.take_unless_null("permissionOptionId")?;
    match (input, option) {
        (Some(_), Some(option)) => {
            Err(option.invalid(&"answers a permission request, so `input` must be absent"))
        }
        (None, None) => Err(Fault::invalid(
            "/input",
            "`input` is missing: send it, or `permissionOptionId` for a decision",
        )),
        (None, Some(option)) => Ok(A2aRequest::Permit { task, answer: option.enum_variant()? }),
        (Some(input), None) => {
            let mut sent = Box::new(decode_message_with_call(input, params)?);
            match &sent.message.task_id {
                Some(id) if *id != task => {
                    return Err(Fault::invalid(
                        "/input/taskId",
                        "`taskId` differs from the task id in the params",
                    ));
                }
                Some(_) | None => sent.message.task_id = Some(task),
            }
            Ok(A2aRequest::Provide { sent })
        }
    }
}

fn decode_message(field: Field<'_>) -> Result<Message, Fault> {
    let mut message = field.object()?;
    // Messages of the A2A-ACP document have no `kind`.
    message.read_nullable_with("kind", |kind| kind.enum_value(&[("message", ())]))?;
    Ok(Message {
        role: message.require("role")?.enum_value(&[("user", MessageRole::User)])?,
        message_id: decode_name(message.require("messageId")?)?,
        parts: decode_parts(&message.require("parts")?)?,
        context_id: message.read_nullable_with("contextId", decode_name)?,
        task_id: message.read_nullable_with("taskId", decode_name)?,
        reference_task_ids: message.read_nullable("referenceTaskIds")?.unwrap_or_default(),
        extensions: message.read_nullable("extensions")?.unwrap_or_default(),
        metadata: message.read_nullable("metadata")?,
    })
}

fn decode_parts(field: &Field<'_>) -> Result<Vec<Part>, Fault> {
    let parts = field.list()?;
    if parts.is_empty() || parts.len() > MAX_PARTS {
        return Err(field.fault(format!("`parts` must be a list of 1 to {MAX_PARTS} parts")));
    }
    parts.into_iter().map(decode_part).collect()
}

fn decode_part(field: Field<'_>) -> Result<Part, Fault> {
    let mut part = field.object()?;
    let kinds = [("text", PartKind::Text), ("file", PartKind::File), ("data", PartKind::Data)];
    let kind = part.require("kind")?.enum_value(&kinds)?;
    let metadata = part.read_nullable("metadata")?;
    Ok(match kind {
        PartKind::Text => Part::Text { text: part.read("text")?, metadata },
        PartKind::File => Part::File { file: decode_file(part.require("file")?)?, metadata },
        PartKind::Data => Part::Data { data: Value::Object(part.read("data")?).into(), metadata },
    })
}

fn decode_file(field: Field<'_>) -> Result<FilePart, Fault> {
    let neither = field.fault("`file` must have `bytes` or `uri`, and not both");
    let mut file = field.object()?;
    let content = match (file.take_unless_null("bytes")?, file.read_nullable("uri")?) {
        (Some(bytes), None) => {
            let parse_base64 = |text: &str| match STANDARD.decode(text) {
                Ok(_) => Ok(text.to_owned()),
                Err(_) => Err("must be base64, with padding"),
            };
            FileContent::Bytes(bytes.parse_with(parse_base64)?)
        }
        (None, Some(uri)) => FileContent::Uri(uri),
        (Some(_), Some(_)) | (None, None) => return Err(neither),
    };
    Ok(FilePart {
        name: file.read_nullable_with("name", decode_name)?,
        mime_type: file.read_nullable_with("mimeType", decode_name)?,
        content,
    })
}

/// Finds the tool call in a message, which is at `pointer` in the params.
fn find_call(
    message: &Message,
    params_metadata: Option<&Metadata>,
    pointer: &str,
) -> Result<Option<ToolCall>, Fault> {
    let message_tool = message.metadata.as_ref().and_then(|metadata| metadata.get("tool"));
    let params_tool = params_metadata.and_then(|metadata| metadata.get("tool"));
    let named_tool = match (message_tool, params_tool) {
        (Some(tool), _) => Some((format!("{pointer}/metadata/tool"), tool)),
        (None, Some(tool)) => Some(("/metadata/tool".to_owned(), tool)),
        (None, None) => None,
    };
    let data = message.parts.iter().enumerate().filter_map(|(index, part)| match part {
        Part::Data { data, metadata: _ } => Some((format!("{pointer}/parts/{index}/data"), data.to_map())),
        Part::Text { .. } | Part::File { .. } => None,
    });
    if let Some((tool_pointer, tool)) = named_tool {
        let mut data = data;
        let (arguments_pointer, arguments) = match (data.next(), data.next()) {
            (None, _) => (pointer.to_owned(), Map::new()),
            (Some(arguments), None) => arguments,
            (Some(_), Some((second, _))) => return Err(second_call_fault(second)),
        };
        let tool = parse_tool_name(tool, &tool_pointer)?;
        return Ok(Some(ToolCall { tool, arguments, timeout: None, tool_pointer, arguments_pointer }));
    }
    let mut calls = data
        .map(|(pointer, data)| unwrap_content(pointer, data))
        .filter(|(_, data)| data.contains_key("tool"));
    match (calls.next(), calls.next()) {
        (None, _) => Ok(None),
        (Some((pointer, data)), None) => decode_call(&data, &pointer).map(Some),
        (Some(_), Some((second, _))) => Err(second_call_fault(second)),
    }
}

fn second_call_fault(pointer: String) -> Fault {
    Fault::invalid(pointer, "a task is one call: send the second call in a separate message")
}

/// Removes the wrapper `{content, mimeType}` of the A2A-ACP document, and adjusts the pointer.
fn unwrap_content(pointer: String, mut data: Map<String, Value>) -> (String, Map<String, Value>) {
    let is_json = data.get("mimeType").and_then(Value::as_str) == Some("application/json");
    match data.get_mut("content") {
        Some(Value::Object(content)) if is_json => (format!("{pointer}/content"), std::mem::take(content)),
        Some(_) | None => (pointer, data),
    }
}

fn parse_tool_name(tool: &Value, pointer: &str) -> Result<ToolName, Fault> {
    let text = tool.as_str().ok_or_else(|| Fault::invalid(pointer, "`tool` must be the name of a tool"))?;
    ToolName::parse(text).map_err(|error| Fault::invalid(pointer, error.to_string()))
}

/// Decodes `{"tool": …, "arguments": {…}, "timeout_ms": …}`.
fn decode_call(data: &Map<String, Value>, pointer: &str) -> Result<ToolCall, Fault> {
    let members = BTreeSet::from(["tool", "arguments", "timeout_ms"]);
    if let Some(unknown) = data.keys().find(|key| !members.contains(key.as_str())) {
        let message =
            format!("`{}` is not a member of a call; the members are {members:?}", excerpt(unknown));
        return Err(Fault::invalid(pointer, message));
    }
    let tool_pointer = format!("{pointer}/tool");
    let tool = parse_tool_name(data.get("tool").unwrap_or(&Value::Null), &tool_pointer)?;
    let arguments_pointer = format!("{pointer}/arguments");
    let arguments = match data.get("arguments") {
        None => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(_) => return Err(Fault::invalid(arguments_pointer, "`arguments` must be an object")),
    };
    let timeout = match data.get("timeout_ms") {
        None | Some(Value::Null) => None,
        Some(timeout) => {
            let timeout = timeout.as_u64().and_then(|millis| Timeout::from_millis(millis).ok());
            let max_ms = Timeout::MAX_SECONDS * 1000;
            Some(timeout.ok_or_else(|| {
                let message = format!("`timeout_ms` must be an integer from 1 to {max_ms}");
                Fault::invalid(format!("{pointer}/timeout_ms"), message)
            })?)
        }
    };
    Ok(ToolCall { tool, arguments, timeout, tool_pointer, arguments_pointer })
}
