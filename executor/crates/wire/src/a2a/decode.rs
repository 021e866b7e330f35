//! Decoder for bodies of `POST /a2a/rpc`, which have passed the strict reader.
//!
//! Member names of A2A 0.3.0 and those of the A2A-ACP document are accepted.

use super::governance::{APPROVED, DENIED};
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
const DEFAULT_PAGE_SIZE: u64 = 20;
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
        /// `true` to allow the call.
        approved: bool,
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
            let missing =
                || Fault::invalid("/pushNotificationConfigId", "`pushNotificationConfigId` is missing");
            Ok(A2aRequest::DeletePush { task, config: webhook_id(&mut params)?.ok_or_else(missing)? })
        }
        "agent/getAuthenticatedExtendedCard" => {
            params()?;
            Ok(A2aRequest::ExtendedCard)
        }
        other => {
            let (shown, nearest) = (excerpt(other), did_you_mean(other, METHODS));
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
    let (id, alias) = (params.take("id")?, params.take("taskId")?);
    match (id, alias) {
        (Some(_), Some(alias)) => Err(alias.invalid(&"repeats `id`: send one of them")),
        (Some(id), None) | (None, Some(id)) => decode_name(&id),
        (None, None) => Err(Fault::invalid("/id", "`id` of the task is missing")),
    }
}

/// A webhook id: `pushNotificationConfigId`, or `configId` of the A2A-ACP document.
fn webhook_id(params: &mut Object<'_>) -> Result<Option<String>, Fault> {
    let id = optional_name(params, "pushNotificationConfigId")?;
    match (id, params.take_unless_null("configId")?) {
        (Some(_), Some(alias)) => Err(alias.invalid(&"repeats `pushNotificationConfigId`: send one of them")),
        (id, None) => Ok(id),
        (None, Some(alias)) => decode_name(&alias).map(Some),
    }
}

/// Decodes an id or a name that a client chooses.
fn decode_name(field: &Field<'_>) -> Result<String, Fault> {
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

pub(super) fn optional_name(object: &mut Object<'_>, member: &str) -> Result<Option<String>, Fault> {
    object.take_unless_null(member)?.map(|field| decode_name(&field)).transpose()
}

fn optional_count(object: &mut Object<'_>, member: &str, max: u64) -> Result<Option<u64>, Fault> {
    object.take_unless_null(member)?.map(|field| field.integer(0, max)).transpose()
}

fn optional_history(object: &mut Object<'_>) -> Result<Option<usize>, Fault> {
    let history = optional_count(object, "historyLength", MAX_HISTORY_LENGTH)?;
    Ok(history.map(|length| usize::try_from(length).unwrap_or(usize::MAX)))
}

fn decode_get(mut params: Object<'_>) -> Result<A2aRequest, Fault> {
    Ok(A2aRequest::Get { task: task_id(&mut params)?, history: optional_history(&mut params)? })
}

fn decode_list(mut params: Object<'_>) -> Result<A2aRequest, Fault> {
    let to_usize = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let limit = params.take_unless_null("limit")?.map(|limit| limit.integer(1, MAX_PAGE_SIZE)).transpose()?;
    let offset = optional_count(&mut params, "offset", MAX_OFFSET)?;
    let after =
        params.take_unless_null("pageToken")?.map(|token| decode_page_token(&token, offset)).transpose()?;
    Ok(A2aRequest::List {
        context: optional_name(&mut params, "contextId")?,
        limit: to_usize(limit.unwrap_or(DEFAULT_PAGE_SIZE)),
        offset: to_usize(offset.unwrap_or_default()),
        after,
    })
}

fn decode_page_token(token: &Field<'_>, offset: Option<u64>) -> Result<PageToken, Fault> {
    if offset.is_some() {
        return Err(token.invalid(&"replaces `offset`: send one of them"));
    }
    let page_token = PageToken::parse(&token.string()?);
    page_token.ok_or_else(|| token.invalid(&"must be a `nextPageToken` from this executor"))
}

fn decode_send_params(mut params: Object<'_>) -> Result<SendParams, Fault> {
    let message = params.require("message")?;
    let metadata = optional_metadata(&mut params, "metadata")?;
    let configuration = decode_configuration(&mut params)?;
    decode_message_with_call(message, metadata.as_ref(), configuration)
}

fn decode_message_with_call(
    field: Field<'_>,
    params_metadata: Option<&Metadata>,
    configuration: SendConfiguration,
) -> Result<SendParams, Fault> {
    let pointer = field.pointer().to_owned();
    let message = decode_message(field)?;
    let call = find_call(&message, params_metadata, &pointer)?;
    let SendConfiguration { blocking, history, accepts, push } = configuration;
    Ok(SendParams { message, call, blocking, history, accepts, push })
}

struct SendConfiguration {
    blocking: bool,
    history: Option<usize>,
    accepts: Vec<String>,
    push: Option<Box<PushConfig>>,
}

fn decode_configuration(params: &mut Object<'_>) -> Result<SendConfiguration, Fault> {
    let Some(configuration) = params.take_unless_null("configuration")? else {
        return Ok(SendConfiguration { blocking: true, history: None, accepts: Vec::new(), push: None });
    };
    let mut configuration = configuration.object()?;
    let blocking = configuration.take_unless_null("blocking")?;
    let accepts = configuration.take_unless_null("acceptedOutputModes")?;
    let webhook = configuration.take_unless_null("pushNotificationConfig")?;
    Ok(SendConfiguration {
        blocking: blocking.map(|blocking| blocking.boolean()).transpose()?.unwrap_or(true),
        history: optional_history(&mut configuration)?,
        accepts: accepts.map(Field::strings).transpose()?.unwrap_or_default(),
        push: webhook.map(push::decode_config).transpose()?.map(Box::new),
    })
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
        (None, Some(option)) => {
            let approved = option.enum_value(&[(APPROVED, true), (DENIED, false)])?;
            Ok(A2aRequest::Permit { task, approved })
        }
        (Some(input), None) => {
            let metadata = optional_metadata(&mut params, "metadata")?;
            let configuration = decode_configuration(&mut params)?;
            let mut send_params = decode_message_with_call(input, metadata.as_ref(), configuration)?;
            match &send_params.message.task_id {
                Some(id) if *id != task => {
                    return Err(Fault::invalid(
                        "/input/taskId",
                        "`taskId` differs from the task id in the params",
                    ));
                }
                Some(_) | None => send_params.message.task_id = Some(task),
            }
            Ok(A2aRequest::Provide { sent: Box::new(send_params) })
        }
    }
}

fn optional_metadata(object: &mut Object<'_>, member: &str) -> Result<Option<Metadata>, Fault> {
    object.take_unless_null(member)?.map(|metadata| metadata.map()).transpose()
}

fn check_kind(object: &mut Object<'_>, expected: &str) -> Result<(), Fault> {
    let Some(kind) = object.take_unless_null("kind")? else { return Ok(()) };
    kind.enum_value(&[(expected, ())])
}

fn decode_message(field: Field<'_>) -> Result<Message, Fault> {
    let mut message = field.object()?;
    // Messages of the A2A-ACP document have no `kind`.
    check_kind(&mut message, "message")?;
    let role = message.require("role")?.enum_value(&[("user", MessageRole::User)])?;
    let message_id = decode_name(&message.require("messageId")?)?;
    let parts = message.require("parts")?;
    let pointer = parts.pointer().to_owned();
    let parts = parts.list()?;
    if parts.is_empty() || parts.len() > MAX_PARTS {
        return Err(Fault::invalid(pointer, format!("`parts` must be a list of 1 to {MAX_PARTS} parts")));
    }
    let parts = parts.into_iter().map(decode_part).collect::<Result<Vec<_>, _>>()?;
    let references = message.take_unless_null("referenceTaskIds")?;
    let extensions = message.take_unless_null("extensions")?;
    Ok(Message {
        role,
        parts,
        message_id,
        context_id: optional_name(&mut message, "contextId")?,
        task_id: optional_name(&mut message, "taskId")?,
        reference_task_ids: references.map(Field::strings).transpose()?.unwrap_or_default(),
        extensions: extensions.map(Field::strings).transpose()?.unwrap_or_default(),
        metadata: optional_metadata(&mut message, "metadata")?,
    })
}

fn decode_part(field: Field<'_>) -> Result<Part, Fault> {
    let mut part = field.object()?;
    let kinds = [("text", PartKind::Text), ("file", PartKind::File), ("data", PartKind::Data)];
    let kind = part.require("kind")?.enum_value(&kinds)?;
    let metadata = optional_metadata(&mut part, "metadata")?;
    Ok(match kind {
        PartKind::Text => Part::Text { text: part.require("text")?.string()?, metadata },
        PartKind::File => Part::File { file: decode_file(part.require("file")?)?, metadata },
        PartKind::Data => Part::Data { data: Value::Object(part.require("data")?.map()?).into(), metadata },
    })
}

fn decode_file(field: Field<'_>) -> Result<FilePart, Fault> {
    let pointer = field.pointer().to_owned();
    let mut file = field.object()?;
    let content = match (file.take_unless_null("bytes")?, file.take_unless_null("uri")?) {
        (Some(bytes), None) => {
            let parse_base64 = |text: &str| match STANDARD.decode(text) {
                Ok(_) => Ok(text.to_owned()),
                Err(_) => Err("must be base64, with padding"),
            };
            FileContent::Bytes(bytes.parse_with(parse_base64)?)
        }
        (None, Some(uri)) => FileContent::Uri(uri.string()?),
        (Some(_), Some(_)) | (None, None) => {
            return Err(Fault::invalid(pointer, "`file` must have `bytes` or `uri`, and not both"));
        }
    };
    Ok(FilePart {
        name: optional_name(&mut file, "name")?,
        mime_type: optional_name(&mut file, "mimeType")?,
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
