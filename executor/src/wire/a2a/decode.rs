//! Bodies of `POST /a2a/rpc` as requests. The body has passed the strict reader.
//!
//! The names of A2A 0.3.0 are read, and those of the A2A-ACP document beside them.

use super::Dialect;
use super::governance::{APPROVED, DENIED};
use super::message::{File, FileContent, Message, Metadata, Part, Role};
use super::push::{self, PushConfig};
use crate::fault::Fault;
use crate::ident::{ToolName, did_you_mean, excerpt};
use crate::quantity::Timeout;
use crate::wire::field::{Field, Object};
use crate::wire::jsonrpc::{self, Body, Id};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The most characters of a name that a client gives to something.
const MAX_NAME_BYTES: usize = 256;
/// The most parts of one message.
const MAX_PARTS: usize = 256;
/// The most messages of a history, or tasks of a list, that can be asked for.
const MAX_HISTORY_LENGTH: u64 = 1_000_000;
/// The most tasks of one answer to `tasks/list`, and how many when it does not say.
const MAX_PAGE_SIZE: u64 = 100;
const LISTED: u64 = 20;

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// `message/send`.
    Send(Box<Sent>),
    /// `message/stream`.
    Stream(Box<Sent>),
    /// `tasks/get`.
    Get {
        /// The task.
        task: String,
        /// The most messages of its history, the latest.
        history: Option<usize>,
    },
    /// `tasks/list`.
    List {
        /// Those of this conversation.
        context: Option<String>,
        /// How many.
        limit: u64,
        /// After how many.
        offset: u64,
    },
    /// `tasks/cancel`.
    Cancel {
        /// The task.
        task: String,
    },
    /// `tasks/resubscribe`.
    Resubscribe {
        /// The task.
        task: String,
    },
    /// `tasks/provideInputAndContinue` with a message.
    Provide {
        /// The message, which names its task.
        sent: Box<Sent>,
    },
    /// `tasks/provideInputAndContinue` with a decision.
    Permit {
        /// The task.
        task: String,
        /// Whether the call may run.
        approved: bool,
    },
    /// `tasks/pushNotificationConfig/set`.
    SetPush {
        /// The task.
        task: String,
        /// What to tell, and where.
        config: Box<PushConfig>,
    },
    /// `tasks/pushNotificationConfig/get`.
    GetPush {
        /// The task.
        task: String,
        /// Which; the first when it does not say.
        config: Option<String>,
    },
    /// `tasks/pushNotificationConfig/list`.
    ListPush {
        /// The task.
        task: String,
    },
    /// `tasks/pushNotificationConfig/delete`.
    DeletePush {
        /// The task.
        task: String,
        /// Which.
        config: String,
    },
    /// `agent/getAuthenticatedExtendedCard`.
    ExtendedCard,
}

/// A method whose answer is a stream of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streaming {
    /// `message/stream`; in the document's dialect its answer names a stream instead.
    Message,
    /// `tasks/resubscribe`.
    Resubscribe,
}

impl Streaming {
    /// The method of this name, if it streams.
    fn named(method: &str) -> Option<Self> {
        match method {
            "message/stream" => Some(Self::Message),
            "tasks/resubscribe" => Some(Self::Resubscribe),
            _other => None,
        }
    }

    /// `true` when its answer is a stream in this dialect.
    #[must_use]
    pub fn has_events(self, dialect: Dialect) -> bool {
        match (self, dialect) {
            (Self::Resubscribe, Dialect::A2a | Dialect::Acp) | (Self::Message, Dialect::A2a) => true,
            (Self::Message, Dialect::Acp) => false,
        }
    }
}

impl Request {
    /// Which streaming method it is of, if any.
    #[must_use]
    pub fn streaming(&self) -> Option<Streaming> {
        match self {
            Self::Stream(_) => Some(Streaming::Message),
            Self::Resubscribe { .. } => Some(Streaming::Resubscribe),
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

/// A request that cannot be read.
#[derive(Debug)]
pub struct A2aDecodeError {
    /// The id to answer with, as far as it could be read.
    pub id: Id,
    /// The reason.
    pub fault: Fault,
    /// Which streaming method it is of, as far as that could be read.
    pub streaming: Option<Streaming>,
}

impl A2aDecodeError {
    fn framing(id: Id, fault: Fault) -> Self {
        Self { id, fault, streaming: None }
    }
}

/// A message that was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    /// The message.
    pub message: Message,
    /// The call in it.
    pub call: Option<Asked>,
    /// Whether the answer waits until nothing more happens by itself.
    pub blocking: bool,
    /// The most messages of the history in the answer.
    pub history: Option<usize>,
    /// The media types that the client takes; empty for any.
    pub accepts: Vec<String>,
    /// The webhook that it came with.
    pub push: Option<Box<PushConfig>>,
}

/// A call of a tool, as a message asks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// The tool.
    pub tool: ToolName,
    /// The arguments.
    pub arguments: Map<String, Value>,
    /// The caller's own limit.
    pub at_most: Option<Timeout>,
    /// Where the tool stands in the params.
    pub tool_at: String,
    /// Where the arguments stand in the params.
    pub arguments_at: String,
}

impl Asked {
    /// A fault that the core found in the call, at its place in the params.
    #[must_use]
    pub fn placed(&self, fault: Fault) -> Fault {
        let Fault::InvalidParams { message, pointer } = fault else { return fault };
        let pointer = match (pointer.strip_prefix("/arguments"), pointer.as_str()) {
            (Some(rest), _) => format!("{}{rest}", self.arguments_at),
            (None, "/tool") => self.tool_at.clone(),
            (None, _) => pointer,
        };
        Fault::InvalidParams { message, pointer }
    }
}

/// Reads a request. Without an `id` it is answered with `null`.
///
/// # Errors
/// [`A2aDecodeError`] says what is wrong.
pub fn request(text: &str) -> Result<(Id, Request), A2aDecodeError> {
    let framed = match jsonrpc::decode(text, 1) {
        Ok(Body::One(framed)) => framed,
        Ok(Body::Batch(_)) => return Err(A2aDecodeError::framing(Id::null(), no_batches())),
        Err(Fault::InvalidRequest(_)) if text.trim_start().starts_with('[') => {
            return Err(A2aDecodeError::framing(Id::null(), no_batches()));
        }
        Err(fault) => return Err(A2aDecodeError::framing(Id::null(), fault)),
    };
    // A number with a fraction or an exponent could not be answered: the schema has integers only.
    let answerable = |id: &Id| {
        let text = id.as_json();
        text.starts_with(['"', 'n']) || !text.contains(['.', 'e', 'E'])
    };
    let framed = framed.map_err(|(id, fault)| {
        A2aDecodeError::framing(id.filter(answerable).unwrap_or_else(Id::null), fault)
    })?;
    let id = framed.id.unwrap_or_else(Id::null);
    if !answerable(&id) {
        let fault = Fault::InvalidRequest("`id` must be a string, an integer or null".to_owned());
        return Err(A2aDecodeError::framing(Id::null(), fault));
    }
    let params = framed.params.map_or("{}", serde_json::value::RawValue::get);
    match method(&framed.method, params) {
        Ok(request) => Ok((id, request)),
        Err(fault) => Err(A2aDecodeError { id, fault, streaming: Streaming::named(&framed.method) }),
    }
}

fn no_batches() -> Fault {
    Fault::InvalidRequest("a request is one object: this door has no batches".to_owned())
}

/// The methods of this door, for one that is mistyped.
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

fn method(name: &str, params: &str) -> Result<Request, Fault> {
    let params = || Object::root(params);
    match name {
        "message/send" => Ok(Request::Send(Box::new(sent(params()?)?))),
        "message/stream" => Ok(Request::Stream(Box::new(sent(params()?)?))),
        "tasks/get" => get(params()?),
        "tasks/list" => list(params()?),
        "tasks/cancel" => Ok(Request::Cancel { task: task(&mut params()?)? }),
        "tasks/resubscribe" => Ok(Request::Resubscribe { task: task(&mut params()?)? }),
        "tasks/provideInputAndContinue" => provide(params()?),
        "tasks/pushNotificationConfig/set" => {
            let mut params = params()?;
            let config = Box::new(push::of_params(&mut params)?);
            Ok(Request::SetPush { task: task(&mut params)?, config })
        }
        "tasks/pushNotificationConfig/get" => {
            let mut params = params()?;
            Ok(Request::GetPush { task: task(&mut params)?, config: push_id(&mut params)? })
        }
        "tasks/pushNotificationConfig/list" => Ok(Request::ListPush { task: task(&mut params()?)? }),
        "tasks/pushNotificationConfig/delete" => {
            let mut params = params()?;
            let task = task(&mut params)?;
            let missing =
                || Fault::invalid("/pushNotificationConfigId", "`pushNotificationConfigId` is missing");
            Ok(Request::DeletePush { task, config: push_id(&mut params)?.ok_or_else(missing)? })
        }
        "agent/getAuthenticatedExtendedCard" => {
            params()?;
            Ok(Request::ExtendedCard)
        }
        other => {
            let (shown, nearest) = (excerpt(other), did_you_mean(other, METHODS));
            Err(Fault::MethodNotFound(format!("there is no method `{shown}` at this door{nearest}")))
        }
    }
}

/// The task that params are about: `id`, or `taskId` as the document has it.
fn task(params: &mut Object<'_>) -> Result<String, Fault> {
    let (id, alias) = (params.take("id")?, params.take("taskId")?);
    match (id, alias) {
        (Some(_), Some(alias)) => Err(alias.refused(&"says again what `id` says: send one")),
        (Some(id), None) | (None, Some(id)) => name(&id),
        (None, None) => Err(Fault::invalid("/id", "`id` is missing: the task")),
    }
}

/// The configuration of a webhook: `pushNotificationConfigId`, or `configId` as the document has it.
fn push_id(params: &mut Object<'_>) -> Result<Option<String>, Fault> {
    let id = maybe_name(params, "pushNotificationConfigId")?;
    match (id, params.take_unless_null("configId")?) {
        (Some(_), Some(alias)) => {
            Err(alias.refused(&"says again what `pushNotificationConfigId` says: send one"))
        }
        (id, None) => Ok(id),
        (None, Some(alias)) => name(&alias).map(Some),
    }
}

/// A name that a client gives to something.
fn name(field: &Field<'_>) -> Result<String, Fault> {
    field.parsed(|text| {
        let fits =
            !text.is_empty() && text.chars().count() <= MAX_NAME_BYTES && !text.chars().any(char::is_control);
        if fits {
            Ok(text.to_owned())
        } else {
            Err(format!("a name has 1 to {MAX_NAME_BYTES} characters, and no control characters"))
        }
    })
}

pub(super) fn maybe_name(object: &mut Object<'_>, member: &str) -> Result<Option<String>, Fault> {
    object.take_unless_null(member)?.map(|field| name(&field)).transpose()
}

fn count(object: &mut Object<'_>, member: &str, most: u64) -> Result<Option<u64>, Fault> {
    object.take_unless_null(member)?.map(|field| field.integer(0, most)).transpose()
}

fn history(object: &mut Object<'_>) -> Result<Option<usize>, Fault> {
    let history = count(object, "historyLength", MAX_HISTORY_LENGTH)?;
    Ok(history.map(|length| usize::try_from(length).unwrap_or(usize::MAX)))
}

fn get(mut params: Object<'_>) -> Result<Request, Fault> {
    Ok(Request::Get { task: task(&mut params)?, history: history(&mut params)? })
}

fn list(mut params: Object<'_>) -> Result<Request, Fault> {
    let limit = params.take_unless_null("limit")?.map(|limit| limit.integer(1, MAX_PAGE_SIZE)).transpose()?;
    Ok(Request::List {
        context: maybe_name(&mut params, "contextId")?,
        limit: limit.unwrap_or(LISTED),
        offset: count(&mut params, "offset", MAX_HISTORY_LENGTH)?.unwrap_or_default(),
    })
}

fn sent(mut params: Object<'_>) -> Result<Sent, Fault> {
    let message = params.need("message")?;
    let metadata = metadata(&mut params, "metadata")?;
    let configuration = configuration(&mut params)?;
    self::with_call(message, metadata.as_ref(), configuration)
}

/// A message with the call in it.
fn with_call(
    field: Field<'_>,
    around: Option<&Metadata>,
    configuration: Configuration,
) -> Result<Sent, Fault> {
    let at = field.pointer().to_owned();
    let message = message(field)?;
    let call = call(&message, around, &at)?;
    let Configuration { blocking, history, accepts, push } = configuration;
    Ok(Sent { message, call, blocking, history, accepts, push })
}

struct Configuration {
    blocking: bool,
    history: Option<usize>,
    accepts: Vec<String>,
    push: Option<Box<PushConfig>>,
}

fn configuration(params: &mut Object<'_>) -> Result<Configuration, Fault> {
    let Some(configuration) = params.take_unless_null("configuration")? else {
        return Ok(Configuration { blocking: true, history: None, accepts: Vec::new(), push: None });
    };
    let mut configuration = configuration.object()?;
    let blocking = configuration.take_unless_null("blocking")?;
    let accepts = configuration.take_unless_null("acceptedOutputModes")?;
    let webhook = configuration.take_unless_null("pushNotificationConfig")?;
    Ok(Configuration {
        blocking: blocking.map(|blocking| blocking.boolean()).transpose()?.unwrap_or(true),
        history: history(&mut configuration)?,
        accepts: accepts.map(Field::texts).transpose()?.unwrap_or_default(),
        push: webhook.map(push::config).transpose()?.map(Box::new),
    })
}

fn provide(mut params: Object<'_>) -> Result<Request, Fault> {
    let task = task(&mut params)?;
    let input = params.take_unless_null("input")?;
    let option = params.take_unless_null("permissionOptionId")?;
    match (input, option) {
        (Some(_), Some(option)) => {
            Err(option.refused(&"decides about a call that waits, and excludes `input`"))
        }
        (None, None) => Err(Fault::invalid(
            "/input",
            "`input` is missing: send it, or `permissionOptionId` for a decision",
        )),
        (None, Some(option)) => {
            let approved = option.word(&[(APPROVED, true), (DENIED, false)])?;
            Ok(Request::Permit { task, approved })
        }
        (Some(input), None) => {
            let metadata = metadata(&mut params, "metadata")?;
            let configuration = configuration(&mut params)?;
            let mut sent = with_call(input, metadata.as_ref(), configuration)?;
            match &sent.message.task_id {
                Some(named) if *named != task => {
                    return Err(Fault::invalid(
                        "/input/taskId",
                        "`taskId` names another task than the params",
                    ));
                }
                Some(_) | None => sent.message.task_id = Some(task),
            }
            Ok(Request::Provide { sent: Box::new(sent) })
        }
    }
}

fn metadata(object: &mut Object<'_>, member: &str) -> Result<Option<Metadata>, Fault> {
    object.take_unless_null(member)?.map(|metadata| metadata.map()).transpose()
}

fn kind(object: &mut Object<'_>, expected: &str) -> Result<(), Fault> {
    let Some(kind) = object.take_unless_null("kind")? else { return Ok(()) };
    kind.word(&[(expected, ())])
}

fn message(field: Field<'_>) -> Result<Message, Fault> {
    let mut message = field.object()?;
    // The document leaves it out.
    kind(&mut message, "message")?;
    let role = message.need("role")?.word(&[("user", Role::User)])?;
    let message_id = name(&message.need("messageId")?)?;
    let parts = message.need("parts")?;
    let at = parts.pointer().to_owned();
    let parts = parts.list()?;
    if parts.is_empty() || parts.len() > MAX_PARTS {
        return Err(Fault::invalid(at, format!("`parts` must be a list of 1 to {MAX_PARTS} parts")));
    }
    let parts = parts.into_iter().map(part).collect::<Result<Vec<_>, _>>()?;
    let references = message.take_unless_null("referenceTaskIds")?;
    let extensions = message.take_unless_null("extensions")?;
    Ok(Message {
        role,
        parts,
        message_id,
        context_id: maybe_name(&mut message, "contextId")?,
        task_id: maybe_name(&mut message, "taskId")?,
        reference_task_ids: references.map(Field::texts).transpose()?.unwrap_or_default(),
        extensions: extensions.map(Field::texts).transpose()?.unwrap_or_default(),
        metadata: metadata(&mut message, "metadata")?,
    })
}

#[derive(Clone, Copy)]
enum Kind {
    Text,
    File,
    Data,
}

fn part(field: Field<'_>) -> Result<Part, Fault> {
    let mut part = field.object()?;
    let kinds = [("text", Kind::Text), ("file", Kind::File), ("data", Kind::Data)];
    let kind = part.need("kind")?.word(&kinds)?;
    let metadata = metadata(&mut part, "metadata")?;
    Ok(match kind {
        Kind::Text => Part::Text { text: part.need("text")?.text()?, metadata },
        Kind::File => Part::File { file: file(part.need("file")?)?, metadata },
        Kind::Data => Part::Data { data: Value::Object(part.need("data")?.map()?).into(), metadata },
    })
}

fn file(field: Field<'_>) -> Result<File, Fault> {
    let at = field.pointer().to_owned();
    let mut file = field.object()?;
    let content = match (file.take_unless_null("bytes")?, file.take_unless_null("uri")?) {
        (Some(bytes), None) => {
            let is_base64 = |text: &str| match STANDARD.decode(text) {
                Ok(_) => Ok(text.to_owned()),
                Err(_) => Err("must be base64, with padding"),
            };
            FileContent::Bytes(bytes.parsed(is_base64)?)
        }
        (None, Some(uri)) => FileContent::Uri(uri.text()?),
        (Some(_), Some(_)) | (None, None) => {
            return Err(Fault::invalid(at, "`file` must have `bytes` or `uri`, and not both"));
        }
    };
    Ok(File { name: maybe_name(&mut file, "name")?, mime_type: maybe_name(&mut file, "mimeType")?, content })
}

/// The call in a message. `around` is the metadata beside the message.
fn call(message: &Message, around: Option<&Metadata>, at: &str) -> Result<Option<Asked>, Fault> {
    let inside = message.metadata.as_ref().and_then(|metadata| metadata.get("tool"));
    let named = match (inside, around.and_then(|metadata| metadata.get("tool"))) {
        (Some(tool), _) => Some((format!("{at}/metadata/tool"), tool)),
        (None, Some(tool)) => Some(("/metadata/tool".to_owned(), tool)),
        (None, None) => None,
    };
    let data = message.parts.iter().enumerate().filter_map(|(index, part)| match part {
        Part::Data { data, metadata: _ } => Some((format!("{at}/parts/{index}/data"), data.to_map())),
        Part::Text { .. } | Part::File { .. } => None,
    });
    if let Some((tool_at, tool)) = named {
        let mut data = data;
        let (arguments_at, arguments) = match (data.next(), data.next()) {
            (None, _) => (at.to_owned(), Map::new()),
            (Some((at, data)), None) => (at, data),
            (Some(_), Some((second, _))) => return Err(one_call(second)),
        };
        let tool = tool_name(tool, &tool_at)?;
        return Ok(Some(Asked { tool, arguments, at_most: None, tool_at, arguments_at }));
    }
    let mut calls = data.map(|(at, data)| unwrapped(at, data)).filter(|(_, data)| data.contains_key("tool"));
    match (calls.next(), calls.next()) {
        (None, _) => Ok(None),
        (Some((at, data)), None) => asked(&data, &at).map(Some),
        (Some(_), Some((second, _))) => Err(one_call(second)),
    }
}

fn one_call(at: String) -> Fault {
    Fault::invalid(at, "a task is one call: send a second one in a message of its own")
}

/// The document wraps data into `{content, mimeType}`.
fn unwrapped(at: String, mut data: Map<String, Value>) -> (String, Map<String, Value>) {
    let is_json = data.get("mimeType").and_then(Value::as_str) == Some("application/json");
    match data.get_mut("content") {
        Some(Value::Object(content)) if is_json => (format!("{at}/content"), std::mem::take(content)),
        Some(_) | None => (at, data),
    }
}

fn tool_name(tool: &Value, at: &str) -> Result<ToolName, Fault> {
    let text = tool.as_str().ok_or_else(|| Fault::invalid(at, "`tool` must be the name of a tool"))?;
    ToolName::parse(text).map_err(|error| Fault::invalid(at, error.to_string()))
}

/// `{"tool": …, "arguments": {…}, "timeout_ms": …}`.
fn asked(data: &Map<String, Value>, at: &str) -> Result<Asked, Fault> {
    let known = BTreeSet::from(["tool", "arguments", "timeout_ms"]);
    if let Some(unknown) = data.keys().find(|key| !known.contains(key.as_str())) {
        let message = format!("`{}` is not known in a call, which has {known:?}", excerpt(unknown));
        return Err(Fault::invalid(at, message));
    }
    let tool_at = format!("{at}/tool");
    let tool = tool_name(data.get("tool").unwrap_or(&Value::Null), &tool_at)?;
    let arguments_at = format!("{at}/arguments");
    let arguments = match data.get("arguments") {
        None => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(_) => return Err(Fault::invalid(arguments_at, "`arguments` must be an object")),
    };
    let at_most = match data.get("timeout_ms") {
        None | Some(Value::Null) => None,
        Some(timeout) => {
            let timeout = timeout.as_u64().and_then(|millis| Timeout::from_millis(millis).ok());
            let most = Timeout::MAX_SECONDS * 1000;
            Some(timeout.ok_or_else(|| {
                let message = format!("`timeout_ms` must be an integer from 1 to {most}");
                Fault::invalid(format!("{at}/timeout_ms"), message)
            })?)
        }
    };
    Ok(Asked { tool, arguments, at_most, tool_at, arguments_at })
}
