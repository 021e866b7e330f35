//! Decoder for lines of an agent, each of which has passed the strict reader.

use super::fault::{self, A2eCode, A2eError};
use super::{CAPABILITIES, VERSION};
use crate::field::{Field, Object};
use a2g_types::fault::Fault;
use a2g_types::ident::{IntentId, excerpt};
use a2g_types::quantity::{OutOfRangeError, Timeout};
use serde_json::{Map, Value};

/// Maximum length of a message id, in bytes.
pub const MAX_ID_BYTES: usize = 128;
/// Maximum number of capabilities in a handshake.
const MAX_CAPABILITIES: usize = 64;
/// Maximum number of calls that an agent can ask to run at the same time.
const MAX_PARALLEL: u64 = 1024;
/// Maximum length of a correlation id, in bytes.
const MAX_CORRELATION_BYTES: usize = 256;
/// The default timeout of a call, in seconds.
const DEFAULT_TIMEOUT_SECONDS: u64 = 30;
/// The default time that a shutdown waits for calls, in seconds.
const DEFAULT_DRAIN_SECONDS: u64 = 10;
/// Maximum time that a shutdown waits for calls, in seconds.
const MAX_DRAIN_SECONDS: u64 = 3600;

/// A decoded message of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentMessage {
    /// The id, which answers repeat as `req_id`.
    pub id: String,
    /// The content.
    pub body: MessageBody,
}

/// The content of a message, one variant for each type.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageBody {
    /// `handshake/req`
    Handshake(Handshake),
    /// `tool/list/req`
    ToolList(ToolFilter),
    /// `tool/call/req`
    ToolCall(ToolCall),
    /// `ping`
    Ping,
    /// `shutdown`, with the time for calls to finish.
    Shutdown(Timeout),
    /// A type that this executor does not implement.
    Other {
        /// The type, verbatim.
        kind: String,
        /// The protocol's capability that has this type, if any.
        capability: Option<&'static str>,
    },
}

/// `handshake/req`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    /// The agent's name, not yet checked; empty if absent.
    pub agent_id: String,
    /// The requested capabilities.
    pub agent_caps: Vec<String>,
    /// The token; empty if absent.
    pub auth_token: String,
    /// The number of calls that the agent wants to run at the same time: 1 if absent, so that they run one after another.
    pub max_parallel: usize,
}

/// `tool/list/req`. Empty members restrict nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolFilter {
    /// A contract: `command` or `typed`.
    pub kind: String,
    /// Tags, all of which a tool must have.
    pub tags: Vec<String>,
    /// A substring of the name, the description or a tag, case-insensitive.
    pub query: String,
}

/// `tool/call/req`.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The message id as an intent id, if it is a UUID.
    pub intent: Option<IntentId>,
    /// The session id; empty if absent.
    pub session_id: String,
    /// The name of the tool, not yet checked.
    pub tool_name: String,
    /// The arguments, not yet checked against the tool's schema.
    pub arguments: Map<String, Value>,
    /// An id that the agent chose, for the context that the governor gets; empty if absent.
    pub correlation_id: String,
    /// `true` to receive events while the tool runs.
    pub streaming: bool,
    /// The caller's own limit on the run time.
    pub timeout: Timeout,
    /// `true` if the tool shall run in a session that lasts as long as the connection's, `false` if it shall run in
    /// none.
    pub asks_for_session: Option<bool>,
}

/// A line that is not a valid message.
#[derive(Debug, PartialEq)]
pub enum A2eDecodeError {
    /// A line that is answered with an `error`.
    Refused {
        /// The id, if it was readable.
        id: Option<String>,
        /// `true` for a handshake of another version, which is answered by `handshake/resp`.
        handshake: bool,
        /// The error to send.
        failure: Box<A2eError>,
    },
    /// A line that is not answered: it has neither a readable id nor a known type, or it is an answer itself.
    Ignored {
        /// An excerpt of the type.
        kind: String,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestType {
    Handshake,
    ToolList,
    ToolCall,
    Ping,
    Shutdown,
}

impl RequestType {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "handshake/req" => Self::Handshake,
            "tool/list/req" => Self::ToolList,
            "tool/call/req" => Self::ToolCall,
            "ping" => Self::Ping,
            "shutdown" => Self::Shutdown,
            _other => return None,
        })
    }
}

/// Decodes one line.
///
/// # Errors
/// If the line is not a valid message. The error determines the answer, if any.
pub fn message(text: &str) -> Result<AgentMessage, A2eDecodeError> {
    let refused = |id: Option<&str>, handshake, failure| A2eDecodeError::Refused {
        id: id.map(str::to_owned),
        handshake,
        failure: Box::new(failure),
    };
    let frame = |text| {
        let line = Field::parse(text)?;
        if !line.is_object() {
            return Err(Fault::InvalidRequest("a message must be one object on one line".to_owned()));
        }
        line.object()
    };
    let mut members = frame(text).map_err(|fault| refused(None, false, fault::to_error(&fault)))?;
    let id = take_id(&mut members);
    let known = id.as_ref().ok().map(String::as_str);
    let type_name =
        take_type(&mut members).map_err(|fault| refused(known, false, fault::to_error(&fault)))?;
    let kind = RequestType::from_name(&type_name);
    let id = match (id, kind) {
        (Ok(id), _) => id,
        (Err(fault), Some(_)) => return Err(refused(None, false, fault::to_error(&fault))),
        (Err(_), None) => return Err(A2eDecodeError::Ignored { kind: excerpt(&type_name) }),
    };
    if matches!(type_name.as_str(), "error" | "pong") {
        return Err(A2eDecodeError::Ignored { kind: type_name });
    }
    let refused = |failure: A2eError| {
        let handshake = kind == Some(RequestType::Handshake) && failure.code == A2eCode::VersionMismatch;
        refused(Some(&id), handshake, failure)
    };
    check_version(&mut members).map_err(refused)?;
    let body = match kind {
        Some(kind) => decode_body(kind, members, &id).map_err(|fault| refused(fault::to_error(&fault)))?,
        None => {
            let prefix = type_name.split_once('/').map(|(prefix, _)| prefix);
            let entry = CAPABILITIES.iter().find(|(name, _)| prefix == Some(*name));
            MessageBody::Other { capability: entry.map(|(_, capability)| *capability), kind: type_name }
        }
    };
    Ok(AgentMessage { id, body })
}

fn take_id(members: &mut Object<'_>) -> Result<String, Fault> {
    let field = members.require("id")?;
    let id = field.string()?;
    if id.is_empty() || id.len() > MAX_ID_BYTES || id.chars().any(char::is_control) {
        return Err(field.expected_error(&format!("a string of 1 to {MAX_ID_BYTES} bytes")));
    }
    Ok(id)
}

fn take_type(members: &mut Object<'_>) -> Result<String, Fault> {
    let kind = members.take("type")?.and_then(|field| field.string().ok());
    kind.ok_or_else(|| Fault::InvalidRequest("`type` must be a string such as \"tool/call/req\"".to_owned()))
}

/// Checks `a2e` and `version`: at least one is present, and both name this version.
fn check_version(members: &mut Object<'_>) -> Result<(), A2eError> {
    let mut versions = Vec::new();
    for name in ["a2e", "version"] {
        let field = members.take(name).map_err(|fault| fault::to_error(&fault))?;
        versions.extend(field.map(|field| (name, field)));
    }
    if versions.is_empty() {
        return Err(fault::to_error(&Fault::invalid("/a2e", "`a2e` is missing")));
    }
    for (name, field) in versions {
        if !field.string().is_ok_and(|version| version == VERSION) {
            let shown = excerpt(field.as_raw().get());
            let message = format!("`{name}` is `{shown}`, but this executor speaks A2E {VERSION}");
            return Err(A2eError::new(A2eCode::VersionMismatch, message));
        }
    }
    Ok(())
}

fn decode_body(kind: RequestType, mut members: Object<'_>, id: &str) -> Result<MessageBody, Fault> {
    members.require("ts")?.number(0.0, f64::MAX)?;
    Ok(match kind {
        RequestType::Ping => MessageBody::Ping,
        RequestType::Shutdown => {
            MessageBody::Shutdown(read_timeout(&mut members, DEFAULT_DRAIN_SECONDS, MAX_DRAIN_SECONDS)?)
        }
        RequestType::Handshake => MessageBody::Handshake(decode_handshake(members)?),
        RequestType::ToolList => MessageBody::ToolList(decode_filter(members)?),
        RequestType::ToolCall => MessageBody::ToolCall(decode_call(members, id)?),
    })
}

fn decode_handshake(mut members: Object<'_>) -> Result<Handshake, Fault> {
    let agent_caps = members.require("agent_caps")?;
    let max_parallel = members.read_nullable_with("max_parallel", |count| count.integer(1, MAX_PARALLEL))?;
    Ok(Handshake {
        agent_id: members.read_optional("agent_id")?.unwrap_or_default(),
        agent_caps: match agent_caps.strings()? {
            names if names.len() > MAX_CAPABILITIES => {
                let message = format!("`agent_caps` has more than {MAX_CAPABILITIES} names");
                return Err(agent_caps.fault(message));
            }
            names => names,
        },
        auth_token: members.read_optional("auth_token")?.unwrap_or_default(),
        max_parallel: max_parallel.and_then(|count| usize::try_from(count).ok()).unwrap_or(1),
    })
}

fn decode_filter(mut members: Object<'_>) -> Result<ToolFilter, Fault> {
    // No tool of this executor is deferred, so the flag is checked and has no effect.
    members.read_optional::<bool>("include_deferred")?;
    Ok(ToolFilter {
        kind: members.read_optional("filter_kind")?.unwrap_or_default(),
        tags: members.read_optional("filter_tags")?.unwrap_or_default(),
        query: members.read_optional("query")?.unwrap_or_default(),
    })
}

fn decode_call(mut members: Object<'_>, id: &str) -> Result<ToolCall, Fault> {
    Ok(ToolCall {
        intent: parse_intent_id(id),
        session_id: members.read_optional("session_id")?.unwrap_or_default(),
        tool_name: members.read("tool_name")?,
        arguments: members.read("arguments")?,
        correlation_id: members.read_optional_with("correlation_id", decode_correlation)?.unwrap_or_default(),
        streaming: members.read_optional("streaming")?.unwrap_or_default(),
        timeout: read_timeout(&mut members, DEFAULT_TIMEOUT_SECONDS, Timeout::MAX_SECONDS)?,
        asks_for_session: members.read_optional("session")?,
    })
}

fn decode_correlation(field: Field<'_>) -> Result<String, Fault> {
    let id = field.string()?;
    if id.len() > MAX_CORRELATION_BYTES {
        return Err(field.expected_error(&format!("a string of at most {MAX_CORRELATION_BYTES} bytes")));
    }
    Ok(id)
}

/// Parses a UUID in 32 hexadecimal digits, as the protocol writes it, or with hyphens.
fn parse_intent_id(id: &str) -> Option<IntentId> {
    if id.len() != 32 {
        return IntentId::parse(id).ok();
    }
    let part = |from, to| id.get(from..to);
    let parts = [part(0, 8)?, part(8, 12)?, part(12, 16)?, part(16, 20)?, part(20, 32)?];
    IntentId::parse(&parts.join("-")).ok()
}

fn read_timeout(members: &mut Object<'_>, default: u64, max: u64) -> Result<Timeout, Fault> {
    let to_timeout = |seconds| {
        if seconds > max {
            return Err(OutOfRangeError { min: 1, max });
        }
        Timeout::from_seconds(seconds)
    };
    match members.take("timeout")? {
        Some(field) => field.quantity(to_timeout),
        None => to_timeout(default).map_err(|error| Fault::Internal(error.to_string())),
    }
}
