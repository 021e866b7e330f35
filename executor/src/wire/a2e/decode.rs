//! Decoder for lines of an agent, each of which has passed the strict reader.

use super::fault::{self, Code, Failure};
use super::{CAPABILITIES, VERSION};
use crate::fault::Fault;
use crate::ident::{IntentId, excerpt};
use crate::quantity::{OutOfRange, Timeout};
use crate::wire::field::{Field, Object};
use serde_json::{Map, Value};

/// The maximum length of a message id, in bytes.
pub const MAX_ID_BYTES: usize = 128;
/// The maximum number of capabilities in a handshake.
const MAX_CAPABILITIES: u64 = 64;
/// The maximum length of a correlation id, in bytes.
const MAX_CORRELATION_BYTES: u64 = 256;
/// The default timeout of a call, in seconds.
const DEFAULT_TIMEOUT: u64 = 30;
/// The default time that a shutdown waits for calls, in seconds.
const DEFAULT_DRAIN: u64 = 10;
/// The maximum time that a shutdown waits for calls, in seconds.
const MAX_DRAIN_SECONDS: u64 = 3600;

/// A decoded message of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The id, which answers repeat as `req_id`.
    pub id: String,
    /// The content.
    pub body: Body,
}

/// The content of a message, one variant for each type.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
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
        /// The capability that it belongs to, if it is one of the protocol's.
        capability: Option<&'static str>,
    },
}

/// `handshake/req`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Handshake {
    /// The agent's name, not yet checked; empty if absent.
    pub agent_id: String,
    /// The requested capabilities.
    pub agent_caps: Vec<String>,
    /// The token; empty if absent.
    pub auth_token: String,
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
    /// An id of the agent's own, for the governor's context.
    pub correlation_id: String,
    /// `true` to receive events while the tool runs.
    pub streaming: bool,
    /// The caller's own limit on the run time.
    pub timeout: Timeout,
}

/// A line that is not a valid message.
#[derive(Debug, PartialEq)]
pub enum Malformed {
    /// A line that gets an `error`.
    Refused {
        /// The id, if it was readable.
        id: Option<String>,
        /// `true` for a handshake of another version, which is answered by `handshake/resp`.
        handshake: bool,
        /// The error to send.
        failure: Box<Failure>,
    },
    /// A line without an answer: it has no id to answer to, or is an answer itself.
    Ignored {
        /// An excerpt of the type.
        kind: String,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Handshake,
    ToolList,
    ToolCall,
    Ping,
    Shutdown,
}

impl Kind {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
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
/// [`Malformed`], which determines the answer, if any.
pub fn message(text: &str) -> Result<Message, Malformed> {
    let refused = |id: Option<&str>, handshake, failure| Malformed::Refused {
        id: id.map(str::to_owned),
        handshake,
        failure: Box::new(failure),
    };
    let frame = |text| {
        let line = Field::root(text)?;
        if !line.is_object() {
            return Err(Fault::InvalidRequest("a message must be one object on one line".to_owned()));
        }
        line.object()
    };
    let mut members = frame(text).map_err(|fault| refused(None, false, fault::of(&fault)))?;
    let id = id(&mut members);
    let known = id.as_ref().ok().map(String::as_str);
    let word = kind(&mut members).map_err(|fault| refused(known, false, fault::of(&fault)))?;
    let kind = Kind::of(&word);
    let id = match (id, kind) {
        (Ok(id), _) => id,
        (Err(fault), Some(_)) => return Err(refused(None, false, fault::of(&fault))),
        (Err(_), None) => return Err(Malformed::Ignored { kind: excerpt(&word) }),
    };
    if matches!(word.as_str(), "error" | "pong") {
        return Err(Malformed::Ignored { kind: word });
    }
    let refused = |failure: Failure| {
        let handshake = kind == Some(Kind::Handshake) && failure.code == Code::VersionMismatch;
        refused(Some(&id), handshake, failure)
    };
    version(&mut members).map_err(refused)?;
    let body = match kind {
        Some(kind) => body(kind, members, &id).map_err(|fault| refused(fault::of(&fault)))?,
        None => {
            let space = word.split('/').next().unwrap_or_default();
            let found = CAPABILITIES.iter().find(|(of, _)| word.contains('/') && *of == space);
            Body::Other { capability: found.map(|(_, capability)| *capability), kind: word }
        }
    };
    Ok(Message { id, body })
}

fn id(members: &mut Object<'_>) -> Result<String, Fault> {
    let field = members.need("id")?;
    let id = field.text()?;
    if id.is_empty() || id.len() > MAX_ID_BYTES || id.chars().any(char::is_control) {
        return Err(field.must_be(&format!("a string of 1 to {MAX_ID_BYTES} bytes")));
    }
    Ok(id)
}

fn kind(members: &mut Object<'_>) -> Result<String, Fault> {
    let kind = members.take("type")?.map(|field| field.text());
    let no_type = || Fault::InvalidRequest("`type` must be a string such as \"tool/call/req\"".to_owned());
    kind.ok_or_else(no_type)?.map_err(|_| no_type())
}

/// Checks `a2e` and `version`: at least one is present, and both name this version.
fn version(members: &mut Object<'_>) -> Result<(), Failure> {
    let mut said = Vec::new();
    for name in ["a2e", "version"] {
        let field = members.take(name).map_err(|fault| fault::of(&fault))?;
        said.extend(field.map(|field| (name, field)));
    }
    if said.is_empty() {
        return Err(fault::of(&Fault::invalid("/a2e", "`a2e` is missing")));
    }
    for (name, field) in said {
        if !field.text().is_ok_and(|said| said == VERSION) {
            let shown = excerpt(field.raw().get());
            let message = format!("`{name}` is `{shown}`, but this executor speaks A2E {VERSION}");
            return Err(Failure::new(Code::VersionMismatch, message));
        }
    }
    Ok(())
}

fn body(kind: Kind, mut members: Object<'_>, id: &str) -> Result<Body, Fault> {
    members.need("ts")?.number(0.0, f64::MAX)?;
    Ok(match kind {
        Kind::Ping => Body::Ping,
        Kind::Shutdown => Body::Shutdown(seconds(&mut members, DEFAULT_DRAIN, MAX_DRAIN_SECONDS)?),
        Kind::Handshake => Body::Handshake(handshake(members)?),
        Kind::ToolList => Body::ToolList(filter(members)?),
        Kind::ToolCall => Body::ToolCall(call(members, id)?),
    })
}

fn handshake(mut members: Object<'_>) -> Result<Handshake, Fault> {
    let agent_id = text(&mut members, "agent_id")?;
    let agent_caps = members.need("agent_caps")?;
    let pointer = agent_caps.pointer().to_owned();
    let agent_caps = agent_caps.texts()?;
    if u64::try_from(agent_caps.len()).is_ok_and(|count| count > MAX_CAPABILITIES) {
        return Err(Fault::invalid(pointer, format!("`agent_caps` has more than {MAX_CAPABILITIES} names")));
    }
    Ok(Handshake { agent_id, agent_caps, auth_token: text(&mut members, "auth_token")? })
}

fn filter(mut members: Object<'_>) -> Result<ToolFilter, Fault> {
    let kind = text(&mut members, "filter_kind")?;
    let tags = members.take("filter_tags")?.map(Field::texts).transpose()?.unwrap_or_default();
    let query = text(&mut members, "query")?;
    // No tool of this executor is deferred, so the flag is checked and has no effect.
    flag(&mut members, "include_deferred")?;
    Ok(ToolFilter { kind, tags, query })
}

fn call(mut members: Object<'_>, id: &str) -> Result<ToolCall, Fault> {
    let correlation = members.take("correlation_id")?;
    let correlation_id = correlation.as_ref().map(Field::text).transpose()?.unwrap_or_default();
    if let (Some(field), Ok(bytes)) = (&correlation, u64::try_from(correlation_id.len()))
        && bytes > MAX_CORRELATION_BYTES
    {
        return Err(field.must_be(&format!("a string of at most {MAX_CORRELATION_BYTES} bytes")));
    }
    Ok(ToolCall {
        intent: intent(id),
        session_id: text(&mut members, "session_id")?,
        tool_name: members.need("tool_name")?.text()?,
        arguments: members.need("arguments")?.map()?,
        correlation_id,
        streaming: flag(&mut members, "streaming")?,
        timeout: seconds(&mut members, DEFAULT_TIMEOUT, Timeout::MAX_SECONDS)?,
    })
}

/// Parses a UUID in 32 hexadecimal digits, as the protocol writes it, or with hyphens.
fn intent(id: &str) -> Option<IntentId> {
    if id.len() != 32 {
        return IntentId::parse(id).ok();
    }
    let part = |from, to| id.get(from..to);
    let parts = [part(0, 8)?, part(8, 12)?, part(12, 16)?, part(16, 20)?, part(20, 32)?];
    IntentId::parse(&parts.join("-")).ok()
}

fn text(members: &mut Object<'_>, name: &str) -> Result<String, Fault> {
    members.take(name)?.map_or(Ok(String::new()), |field| field.text())
}

fn flag(members: &mut Object<'_>, name: &str) -> Result<bool, Fault> {
    members.take(name)?.map_or(Ok(false), |field| field.boolean())
}

fn seconds(members: &mut Object<'_>, default: u64, most: u64) -> Result<Timeout, Fault> {
    let make = |seconds| {
        if seconds > most {
            return Err(OutOfRange { least: 1, most });
        }
        Timeout::from_seconds(seconds)
    };
    match members.take("timeout")? {
        Some(field) => field.quantity(make),
        None => make(default).map_err(|error| Fault::Internal(error.to_string())),
    }
}
