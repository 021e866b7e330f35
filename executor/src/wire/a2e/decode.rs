//! Lines of an agent as messages. Each line has passed the strict reader.

use super::fault::{self, A2eError, Code};
use super::{CAPABILITIES, VERSION};
use crate::fault::Fault;
use crate::ident::{IntentId, excerpt};
use crate::quantity::{OutOfRangeError, Timeout};
use crate::wire::field::{Field, Object};
use serde_json::{Map, Value};

/// The most bytes of a message's id.
pub const MAX_ID_BYTES: usize = 128;
/// The most capabilities that a handshake asks for.
const MAX_CAPABILITIES: u64 = 64;
/// The most bytes of a correlation id.
const MAX_CORRELATION_BYTES: u64 = 256;
/// How long a call runs at most when it does not say, in seconds.
const DEFAULT_TIMEOUT: u64 = 30;
/// How long a shutdown waits for calls when it does not say, in seconds.
const DEFAULT_DRAIN: u64 = 10;
/// The longest that it waits.
const MAX_DRAIN_SECONDS: u64 = 3600;

/// A message of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Its id, with which it is answered.
    pub id: String,
    /// What it says.
    pub body: Body,
}

/// What a message of an agent says.
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
    /// `shutdown`: how long calls may still run.
    Shutdown(Timeout),
    /// Another type: of the capability that it is of, when it is one of the protocol's.
    Other {
        /// The type.
        kind: String,
        /// The capability.
        capability: Option<&'static str>,
    },
}

/// Who begins a session, and for what.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Handshake {
    /// The agent, by whatever name; empty when it names none.
    pub agent_id: String,
    /// The capabilities that it asks for.
    pub agent_caps: Vec<String>,
    /// What it shows to say who it is; empty when it shows nothing.
    pub auth_token: String,
}

/// Which tools are asked for. What is empty restricts nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolFilter {
    /// A contract: `command` or `typed`.
    pub kind: String,
    /// All of these.
    pub tags: Vec<String>,
    /// Words of the name, the description or a tag, in either case.
    pub query: String,
}

/// A tool to run.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The intent that the message's id is, when it is a UUID.
    pub intent: Option<IntentId>,
    /// The session that it says it is in; empty when it does not say.
    pub session_id: String,
    /// The tool, by whatever name.
    pub tool_name: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
    /// What the agent ties it to.
    pub correlation_id: String,
    /// Whether events are wanted as they come.
    pub streaming: bool,
    /// The longest run.
    pub timeout: Timeout,
}

/// A line that is no message for this door.
#[derive(Debug, PartialEq)]
pub enum A2eDecodeError {
    /// It is answered.
    Refused {
        /// The id, as far as it could be read.
        id: Option<String>,
        /// Whether it began a handshake, whose answer says that the version is another.
        handshake: bool,
        /// What is wrong.
        failure: Box<A2eError>,
    },
    /// There is nobody to answer, or an answer would answer an answer.
    Ignored {
        /// The type, cut.
        kind: String,
    },
}

/// The types that are read here.
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

/// Reads a message.
///
/// # Errors
/// [`A2eDecodeError`] says whether, and how, it is answered.
pub fn message(text: &str) -> Result<Message, A2eDecodeError> {
    let refused = |id: Option<&str>, handshake, failure| A2eDecodeError::Refused {
        id: id.map(str::to_owned),
        handshake,
        failure: Box::new(failure),
    };
    let frame = |text| {
        let line = Field::root(text)?;
        if !line.is_object() {
            return Err(Fault::InvalidRequest("a message is one object on one line".to_owned()));
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
        (Err(_), None) => return Err(A2eDecodeError::Ignored { kind: excerpt(&word) }),
    };
    if matches!(word.as_str(), "error" | "pong") {
        return Err(A2eDecodeError::Ignored { kind: word });
    }
    let refused = |failure: A2eError| {
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
    let no_type = || Fault::InvalidRequest("`type` has to be a string such as \"tool/call/req\"".to_owned());
    kind.ok_or_else(no_type)?.map_err(|_| no_type())
}

/// Each that is there has to be the version of this door, and one has to be.
fn version(members: &mut Object<'_>) -> Result<(), A2eError> {
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
            let message = format!("`{name}` is `{shown}`, and this is A2E {VERSION}");
            return Err(A2eError::new(Code::VersionMismatch, message));
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
    // No tool of this executor is deferred.
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

/// The intent that an id names: a UUID, in hexadecimal digits as the protocol writes it or with hyphens.
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
            return Err(OutOfRangeError { least: 1, most });
        }
        Timeout::from_seconds(seconds)
    };
    match members.take("timeout")? {
        Some(field) => field.quantity(make),
        None => make(default).map_err(|error| Fault::Internal(error.to_string())),
    }
}
