//! Messages that come in. The text has passed the strict reader.

use super::fault::{self, Code, NexusError};
use super::keys::{AgentKeys, Sealed};
use super::message::{
    AGENT_TYPES, ALGORITHM, EventName, Guarantee, Kind, MAX_TTL_MS, PRIORITIES, Question, Resource,
    SignatureScope, Status, VERSION,
};
use crate::call::Priority;
use crate::fault::Fault;
use crate::ident::{IdentError, IntentId, ToolName, excerpt};
use crate::quantity::Timeout;
use crate::wire::field::{Field, Object};
use crate::wire::strict_json::{self, JsonBounds};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The longest id of an agent, in bytes.
const MAX_AGENT_BYTES: usize = 200;
/// The largest integer that every reader of JSON has exactly.
const MAX_EXACT_INTEGER: u64 = (1 << 53) - 1;

/// A message whose signature nobody has looked at. What it says of itself can be read, and nothing else.
#[derive(Debug)]
pub struct Envelope<'a> {
    id: IntentId,
    kind: Kind,
    timestamp_ms: u64,
    from: String,
    from_raw: &'a RawValue,
    to: String,
    correlation_id: Option<String>,
    action: Option<Field<'a>>,
    payload: Option<&'a RawValue>,
    sealed: Option<Sealed>,
    event: Option<EventHead>,
    signature: Option<String>,
    priority: Priority,
    ttl_ms: u64,
    requires_ack: bool,
    /// `{id, type, from, to, timestamp}` in the bytes that came.
    header: String,
    /// The same with `action` and `payload`.
    full: String,
}

/// What an event says of itself outside of its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventHead {
    /// `eventType`.
    pub kind: String,
    /// `eventName`.
    pub name: String,
    /// `deliveryGuarantee`.
    pub guarantee: Guarantee,
}

/// A message that is none, with all that is known to answer it.
#[derive(Debug)]
pub struct NexusDecodeError {
    /// The id, when it could be read.
    pub id: Option<IntentId>,
    /// What is wrong.
    pub failure: NexusError,
}

/// A message of the agent that it says it is of.
#[derive(Debug)]
pub struct Verified<'a> {
    envelope: Envelope<'a>,
    scope: SignatureScope,
}

/// What a message asks for or tells.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// `tool.execute`.
    Execute(Execute),
    /// `tool.cancel`.
    Cancel(IntentId),
    /// `events.subscribe`.
    Subscribe(Subscribe),
    /// `events.unsubscribe`.
    Unsubscribe(IntentId),
    /// A query.
    Query(Question, Resource),
    /// An event.
    Event(EventHead),
    /// An answer to something.
    Response,
    /// That a message with this id arrived.
    Ack(IntentId),
    /// That something was wrong with a message.
    Error,
}

/// To run a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Execute {
    /// The tool.
    pub tool: ToolName,
    /// Its arguments.
    pub arguments: Map<String, Value>,
    /// How long at most.
    pub timeout: Option<Timeout>,
    /// `workflowId` and `agentId`, for the governor.
    pub context: Option<Map<String, Value>>,
}

/// To be told of runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribe {
    /// Of what.
    pub events: BTreeSet<EventName>,
    /// Of this intent alone.
    pub intent: Option<IntentId>,
    /// How surely.
    pub guarantee: Guarantee,
}

/// Reads all of a message but its payload.
///
/// # Errors
/// [`NexusDecodeError`].
pub fn envelope(text: &str) -> Result<Envelope<'_>, Box<NexusDecodeError>> {
    let mut id = None;
    read(text, &mut id).map_err(|fault| Box::new(NexusDecodeError { id, failure: fault::of(&fault) }))
}

fn read<'a>(text: &'a str, known: &mut Option<IntentId>) -> Result<Envelope<'a>, Fault> {
    let body = Field::root(text)?;
    if !body.is_object() {
        return Err(Fault::InvalidRequest("a message is one object".to_owned()));
    }
    let mut body = body.object()?;
    let id = body.need("id")?;
    let id_raw = id.raw();
    let id = id.parsed(IntentId::parse)?;
    *known = Some(id);
    let kind = body.need("type")?;
    let kind_raw = kind.raw();
    let kind = kind.word(&Kind::WORDS).map_err(not_a_message)?;
    let version = body.need("version")?.text()?;
    if version != VERSION {
        let version = excerpt(&version);
        return Err(Fault::InvalidRequest(format!("`version` must be \"{VERSION}\", not `{version}`")));
    }
    let timestamp = body.need("timestamp")?;
    let timestamp_raw = timestamp.raw();
    let timestamp_ms = timestamp.integer(1, MAX_EXACT_INTEGER)?;
    let (from, to) = (body.need("from")?, body.need("to")?);
    let (from_raw, to_raw) = (from.raw(), to.raw());
    let (from, to) = (identity(from)?, identity(to)?);
    let correlation_id = body.take_unless_null("correlationId")?.map(|id| id.text()).transpose()?;
    let action = body.take_unless_null("action")?;
    let payload = body.take_unless_null("payload")?.map(|payload| payload.raw());
    let sealed = body.take_unless_null("encryption")?.map(sealed).transpose()?;
    if payload.is_some() && sealed.is_some() {
        return Err(Fault::invalid("/payload", "`payload` is there beside `encryption`, which holds one"));
    }
    let header = format!(
        r#"{{"id":{id_raw},"type":{kind_raw},"from":{from_raw},"to":{to_raw},"timestamp":{timestamp_raw}}}"#
    );
    let member =
        |name: &str, raw: Option<&RawValue>| raw.map_or(String::new(), |raw| format!(r#","{name}":{raw}"#));
    let full = format!(
        r#"{{"id":{id_raw},"type":{kind_raw},"from":{from_raw},"to":{to_raw}{}{},"timestamp":{timestamp_raw}}}"#,
        member("action", action.as_ref().map(Field::raw)),
        member("payload", payload),
    );
    let event = if kind == Kind::Event { Some(event_head(&mut body)?) } else { None };
    if kind == Kind::Response {
        body.need("requestId")?.text()?;
        body.need("status")?.word(&Status::WORDS)?;
    }
    if kind == Kind::Error && sealed.is_none() {
        body.need("error")?.object()?.need("code")?.text()?;
    }
    if correlation_id.is_none() && matches!(kind, Kind::Response | Kind::Ack) {
        return Err(Fault::invalid("/correlationId", "`correlationId` is missing"));
    }
    let envelope = Envelope {
        id,
        kind,
        timestamp_ms,
        from,
        from_raw,
        to,
        correlation_id,
        action,
        payload,
        sealed,
        event,
        signature: body.take_unless_null("signature")?.map(|signature| signature.text()).transpose()?,
        priority: body.need("priority")?.word(&PRIORITIES)?,
        ttl_ms: body.need("ttl")?.integer(1, MAX_TTL_MS)?,
        requires_ack: body.need("requiresAck")?.boolean()?,
        header,
        full,
    };
    // Every message is signed here, whatever it says.
    body.need("requiresSignature")?.boolean()?;
    Ok(envelope)
}

/// A value that decides what the message is.
fn not_a_message(fault: Fault) -> Fault {
    let Fault::InvalidParams { message, pointer: _ } = fault else { return fault };
    Fault::InvalidRequest(message)
}

fn identity(field: Field<'_>) -> Result<String, Fault> {
    let mut identity = field.object()?;
    let id = identity.need("id")?;
    let name = id.text()?;
    if name.is_empty() || name.len() > MAX_AGENT_BYTES {
        return Err(id.must_be(&format!("1 to {MAX_AGENT_BYTES} bytes long")));
    }
    identity.need("type")?.word(&AGENT_TYPES)?;
    identity.need("version")?.text()?;
    identity.need("capabilities")?.texts()?;
    for optional in ["endpoint", "publicKey"] {
        if let Some(field) = identity.take_unless_null(optional)? {
            field.text()?;
        }
    }
    Ok(name)
}

fn sealed(field: Field<'_>) -> Result<Sealed, Fault> {
    let mut sealed = field.object()?;
    sealed.need("algorithm")?.word(&[(ALGORITHM, ())])?;
    let mut bytes = |name: &str| -> Result<(Field<'_>, Vec<u8>), Fault> {
        let field = sealed.need(name)?;
        let bytes = STANDARD.decode(field.text()?).map_err(|_| field.must_be("base64, with padding"))?;
        Ok((field, bytes))
    };
    let (iv, iv_bytes) = bytes("iv")?;
    let (_, ciphertext) = bytes("ciphertext")?;
    let (tag, tag_bytes) = bytes("authTag")?;
    Ok(Sealed {
        iv: iv_bytes.try_into().map_err(|_| iv.must_be("12 bytes in base64"))?,
        ciphertext,
        auth_tag: tag_bytes.try_into().map_err(|_| tag.must_be("16 bytes in base64"))?,
    })
}

fn event_head(body: &mut Object<'_>) -> Result<EventHead, Fault> {
    Ok(EventHead {
        kind: body.need("eventType")?.text()?,
        name: body.need("eventName")?.text()?,
        guarantee: body.need("deliveryGuarantee")?.word(&Guarantee::WORDS)?,
    })
}

impl<'a> Envelope<'a> {
    /// The id that it says it has.
    #[must_use]
    pub fn id(&self) -> IntentId {
        self.id
    }

    /// What it says it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The agent that it says it is of.
    #[must_use]
    pub fn from(&self) -> &str {
        &self.from
    }

    /// The agent that it says it is for.
    #[must_use]
    pub fn to(&self) -> &str {
        &self.to
    }

    /// The identity that it says it is of, as it came.
    #[must_use]
    pub fn from_raw(&self) -> &'a RawValue {
        self.from_raw
    }

    fn read(&self, payload: Option<&str>) -> Result<Content, Fault> {
        match self.kind {
            Kind::Command => command(self.action.as_ref(), payload),
            Kind::Query => query(self.action.as_ref(), payload),
            Kind::Event => {
                event(payload)?;
                let missing = || Fault::invalid("/eventType", "`eventType` is missing");
                self.event.clone().map(Content::Event).ok_or_else(missing)
            }
            Kind::Response => Ok(Content::Response),
            Kind::Ack => {
                let id = self.correlation_id.as_deref().unwrap_or_default();
                let wrong = |error: IdentError| Fault::invalid("/correlationId", error.to_string());
                IntentId::parse(id).map(Content::Ack).map_err(wrong)
            }
            Kind::Error => Ok(Content::Error),
        }
    }

    /// Checks the signature by the keys of the agent that it says it is of.
    ///
    /// # Errors
    /// `SIGNATURE_INVALID`, which does not say whether there is such an agent.
    pub fn verified(
        self,
        keys: Option<&AgentKeys>,
        scope: SignatureScope,
    ) -> Result<Verified<'a>, NexusError> {
        let text = match scope {
            SignatureScope::Header => &self.header,
            SignatureScope::Full => &self.full,
        };
        let signed = match (keys, &self.signature) {
            (Some(keys), Some(signature)) => keys.verifies(text, signature),
            (None, _) | (_, None) => false,
        };
        if signed {
            return Ok(Verified { envelope: self, scope });
        }
        Err(NexusError::new(
            Code::SignatureInvalid,
            "`signature` is not of this message by the secret of the agent in `from.id`",
        ))
    }
}

impl<'a> Verified<'a> {
    /// The envelope.
    #[must_use]
    pub fn envelope(&self) -> &Envelope<'a> {
        &self.envelope
    }

    /// Whether the payload came sealed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.envelope.sealed.is_some()
    }

    /// Which goes first of those who wait.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.envelope.priority
    }

    /// Whether an acknowledgement is asked for.
    #[must_use]
    pub fn requires_ack(&self) -> bool {
        self.envelope.requires_ack
    }

    /// When it was made, in milliseconds since 1970.
    #[must_use]
    pub fn timestamp_ms(&self) -> u64 {
        self.envelope.timestamp_ms
    }

    /// Checks that it is of this time: neither older than its `ttl`, nor from further ahead than
    /// `ahead_ms`.
    ///
    /// # Errors
    /// `VALIDATION_ERROR`.
    pub fn check_time(&self, now_ms: u64, ahead_ms: u64) -> Result<(), NexusError> {
        let Envelope { timestamp_ms, ttl_ms, .. } = &self.envelope;
        let late = |message: &str| {
            Err(NexusError::new(Code::ValidationError, message).with("pointer", "/timestamp"))
        };
        if *timestamp_ms > now_ms.saturating_add(ahead_ms) {
            return late("`timestamp` is ahead of the executor's clock: look at the clocks");
        }
        if now_ms > timestamp_ms.saturating_add(*ttl_ms) {
            return late("the message is older than its `ttl`: look at the clocks, and send it again");
        }
        Ok(())
    }

    /// Opens the payload, if it was sealed, and reads it.
    ///
    /// # Errors
    /// `SIGNATURE_INVALID` when nothing shows that the payload is the agent's; else what is wrong with it.
    pub fn content(&self, keys: &AgentKeys, bounds: &JsonBounds) -> Result<Content, NexusError> {
        let envelope = &self.envelope;
        let opened =
            envelope.sealed.as_ref().map(|sealed| opened(sealed, keys, &envelope.header)).transpose()?;
        let payload = match &opened {
            Some(bytes) => Some(strict_json::check(bytes, bounds).map_err(|fault| fault::of(&fault))?),
            None => envelope.payload.map(RawValue::get),
        };
        if envelope.kind == Kind::Command && opened.is_none() && self.scope == SignatureScope::Header {
            return Err(NexusError::new(
                Code::SignatureInvalid,
                "the signature does not cover a command's `payload`: seal it (`encryption`), or agree upon \
                 `signature_scope = \"full\"`",
            ));
        }
        envelope.read(payload).map_err(|fault| fault::of(&fault))
    }
}

fn opened(sealed: &Sealed, keys: &AgentKeys, header: &str) -> Result<Vec<u8>, NexusError> {
    let refuse = |message| NexusError::new(Code::SignatureInvalid, message);
    if !keys.seals() {
        return Err(refuse("no encryption key is agreed upon with this agent"));
    }
    keys.open(sealed, header).ok_or_else(|| {
        refuse(
            "`encryption` cannot be opened: seal the payload with the agreed key, and the signed text of the header as \
             associated data",
        )
    })
}

/// The payload as an object, with pointers into the message.
fn payload_of(payload: Option<&str>) -> Result<Object<'_>, Fault> {
    let payload = payload.ok_or_else(|| Fault::invalid("/payload", "`payload` is missing"))?;
    Field::root(payload)?.object().map_err(in_payload)
}

fn in_payload(fault: Fault) -> Fault {
    let Fault::InvalidParams { message, pointer } = fault else { return fault };
    Fault::InvalidParams { message, pointer: format!("/payload{pointer}") }
}

fn action_of(action: Option<&Field<'_>>) -> Result<String, Fault> {
    action.ok_or_else(|| Fault::invalid("/action", "`action` is missing"))?.text()
}

/// Reads `parameters`, beside what the payload says for the governor.
type Parameters = fn(Object<'_>, Option<Map<String, Value>>) -> Result<Content, Fault>;

/// The payloads of two commands are never alike, because the signature of a header does not cover `action`.
fn command(action: Option<&Field<'_>>, payload: Option<&str>) -> Result<Content, Fault> {
    let action = action_of(action)?;
    let read: Parameters = match action.as_str() {
        "tool.execute" => execute,
        "tool.cancel" => |parameters, _| only_id(parameters, "intentId").map(Content::Cancel),
        "events.subscribe" => |parameters, _| subscribe(parameters).map(Content::Subscribe),
        "events.unsubscribe" => {
            |parameters, _| only_id(parameters, "subscriptionId").map(Content::Unsubscribe)
        }
        other => {
            return Err(Fault::MethodNotFound(format!(
                "there is no action `{}`: there are `tool.execute`, `tool.cancel`, `events.subscribe` and \
                 `events.unsubscribe`",
                excerpt(other)
            )));
        }
    };
    let mut payload = payload_of(payload)?;
    let mut parts = || -> Result<_, Fault> {
        let mut context = Map::new();
        for name in ["workflowId", "agentId"] {
            if let Some(field) = payload.take_unless_null(name)? {
                context.insert(name.to_owned(), field.text()?.into());
            }
        }
        Ok(((!context.is_empty()).then_some(context), payload.need("parameters")?.object()?))
    };
    let (context, parameters) = parts().map_err(in_payload)?;
    read(parameters, context).and_then(|content| payload.end().map(|()| content)).map_err(in_payload)
}

fn execute(mut parameters: Object<'_>, context: Option<Map<String, Value>>) -> Result<Content, Fault> {
    let tool = parameters.need("tool")?.parsed(ToolName::parse)?;
    let arguments = parameters.take_unless_null("arguments")?;
    let arguments = arguments.map(|arguments| arguments.map()).transpose()?.unwrap_or_default();
    let timeout = parameters.take_unless_null("timeoutMs")?;
    let timeout = timeout.map(|timeout| timeout.quantity(Timeout::from_millis)).transpose()?;
    parameters.end()?;
    Ok(Content::Execute(Execute { tool, arguments, timeout, context }))
}

fn only_id(mut parameters: Object<'_>, name: &str) -> Result<IntentId, Fault> {
    let id = parameters.need(name)?.parsed(IntentId::parse)?;
    parameters.end()?;
    Ok(id)
}

fn subscribe(mut parameters: Object<'_>) -> Result<Subscribe, Fault> {
    let events = parameters.need("events")?;
    let pointer = events.pointer().to_owned();
    let known = |text: String| {
        let found = EventName::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, name)| *name).ok_or_else(|| {
            let message = format!(
                "`{}` is no event: there are `started`, `progress`, `log`, `artifact` and `finished`",
                excerpt(&text)
            );
            Fault::invalid(pointer.clone(), message)
        })
    };
    let events = events.texts()?.into_iter().map(known).collect::<Result<BTreeSet<_>, _>>()?;
    if events.is_empty() {
        return Err(Fault::invalid(pointer, "`events` has to name one event or more"));
    }
    let intent = parameters.take_unless_null("intentId")?;
    let intent = intent.map(|intent| intent.parsed(IntentId::parse)).transpose()?;
    let guarantee = parameters.take_unless_null("deliveryGuarantee")?;
    let guarantee = guarantee.map(|guarantee| guarantee.word(&Guarantee::WORDS)).transpose()?;
    parameters.end()?;
    Ok(Subscribe { events, intent, guarantee: guarantee.unwrap_or_default() })
}

fn query(action: Option<&Field<'_>>, payload: Option<&str>) -> Result<Content, Fault> {
    let action = action_of(action)?;
    let found = Question::WORDS.iter().find(|(word, _)| *word == action);
    let (_, question) = found.ok_or_else(|| {
        Fault::MethodNotFound(format!(
            "there is no query `{}`: there are `get_status`, `get_metrics` and `get_state`",
            excerpt(&action)
        ))
    })?;
    let mut payload = payload_of(payload)?;
    let resource = payload.need("resourceId").and_then(|id| match id.text()?.as_str() {
        "executor" => Ok(Resource::Executor),
        _ => id.parsed(IntentId::parse).map(Resource::Intent),
    });
    let resource = resource.and_then(|resource| payload.end().map(|()| resource)).map_err(in_payload)?;
    Ok(Content::Query(*question, resource))
}

fn event(payload: Option<&str>) -> Result<(), Fault> {
    let mut payload = payload_of(payload)?;
    let read = payload.need("data").and_then(|_| {
        let mut metadata = payload.need("metadata")?.object()?;
        metadata.need("schemaVersion")?.text()?;
        metadata.need("contentType")?.text().map(drop)
    });
    read.map_err(in_payload)
}
