//! Decoder for incoming messages, which have passed the strict reader.

use super::fault::{self, Code, Failure};
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

/// The maximum length of an agent's id, in bytes.
const MAX_AGENT_BYTES: usize = 200;
/// The largest integer that every JSON reader represents exactly.
const MAX_EXACT_INTEGER: u64 = (1 << 53) - 1;

/// A message whose signature has not been verified. Only its claims about itself are accessible.
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
    /// `{id, type, from, to, timestamp}`, in the received bytes.
    header: String,
    /// The same with `action` and `payload`.
    full: String,
}

/// The members of an event beside its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventHead {
    /// `eventType`.
    pub kind: String,
    /// `eventName`.
    pub name: String,
    /// `deliveryGuarantee`.
    pub guarantee: Guarantee,
}

/// A message that cannot be decoded.
#[derive(Debug)]
pub struct Malformed {
    /// The id, if it was readable.
    pub id: Option<IntentId>,
    /// The error to answer with.
    pub failure: Failure,
}

/// A message whose signature proves its sender.
#[derive(Debug)]
pub struct Verified<'a> {
    envelope: Envelope<'a>,
    scope: SignatureScope,
}

/// The content of a message.
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
    /// A query about the executor or an intent.
    Query(Question, Resource),
    /// An event of an agent.
    Event(EventHead),
    /// A response. The executor sends no requests, so it is ignored.
    Response,
    /// The acknowledgement of the message with this id.
    Ack(IntentId),
    /// A rejection of one of the executor's messages.
    Error,
}

/// The parameters of `tool.execute`.
#[derive(Debug, Clone, PartialEq)]
pub struct Execute {
    /// The name of the tool.
    pub tool: ToolName,
    /// The arguments, not yet checked against the tool's schema.
    pub arguments: Map<String, Value>,
    /// The caller's own limit on the run time.
    pub timeout: Option<Timeout>,
    /// `workflowId` and `agentId`, for the governor.
    pub context: Option<Map<String, Value>>,
}

/// The parameters of `events.subscribe`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribe {
    /// The events.
    pub events: BTreeSet<EventName>,
    /// Restricts the subscription to one intent.
    pub intent: Option<IntentId>,
    /// The delivery guarantee.
    pub guarantee: Guarantee,
}

/// Decodes all of a message but its payload.
///
/// # Errors
/// [`Malformed`] with the id, as far as it could be read.
pub fn envelope(text: &str) -> Result<Envelope<'_>, Box<Malformed>> {
    let mut id = None;
    read(text, &mut id).map_err(|fault| Box::new(Malformed { id, failure: fault::of(&fault) }))
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
        return Err(Fault::invalid(
            "/payload",
            "`payload` and `encryption` exclude each other: send one of them",
        ));
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
    // The member is validated and ignored: this executor verifies every signature.
    body.need("requiresSignature")?.boolean()?;
    Ok(envelope)
}

/// Reports a wrong `type` as an invalid message and not as an invalid parameter.
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
    /// The claimed id.
    #[must_use]
    pub fn id(&self) -> IntentId {
        self.id
    }

    /// The claimed type.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The claimed sender.
    #[must_use]
    pub fn from(&self) -> &str {
        &self.from
    }

    /// The claimed recipient.
    #[must_use]
    pub fn to(&self) -> &str {
        &self.to
    }

    /// The claimed identity of the sender, verbatim.
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

    /// Verifies the signature with the keys of the claimed sender.
    ///
    /// # Errors
    /// `SIGNATURE_INVALID`, the same for an unknown agent and a wrong signature.
    pub fn verified(self, keys: Option<&AgentKeys>, scope: SignatureScope) -> Result<Verified<'a>, Failure> {
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
        Err(Failure::new(
            Code::SignatureInvalid,
            "`signature` does not match this message and the secret of the agent in `from.id`",
        ))
    }
}

impl<'a> Verified<'a> {
    /// The verified envelope.
    #[must_use]
    pub fn envelope(&self) -> &Envelope<'a> {
        &self.envelope
    }

    /// Returns `true` when the payload arrived sealed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.envelope.sealed.is_some()
    }

    /// The priority in the queue.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.envelope.priority
    }

    /// Returns `true` when the sender requests an acknowledgement.
    #[must_use]
    pub fn requires_ack(&self) -> bool {
        self.envelope.requires_ack
    }

    /// The time of the message, in milliseconds since 1970.
    #[must_use]
    pub fn timestamp_ms(&self) -> u64 {
        self.envelope.timestamp_ms
    }

    /// Checks that the message is neither older than its `ttl` nor more than `ahead_ms` in the future.
    ///
    /// # Errors
    /// `VALIDATION_ERROR`.
    pub fn check_time(&self, now_ms: u64, ahead_ms: u64) -> Result<(), Failure> {
        let Envelope { timestamp_ms, ttl_ms, .. } = &self.envelope;
        let late =
            |message: &str| Err(Failure::new(Code::ValidationError, message).with("pointer", "/timestamp"));
        if *timestamp_ms > now_ms.saturating_add(ahead_ms) {
            return late("`timestamp` is ahead of the executor's clock: compare the clocks");
        }
        if now_ms > timestamp_ms.saturating_add(*ttl_ms) {
            return late("the message is older than its `ttl`: compare the clocks, and send it again");
        }
        Ok(())
    }

    /// Decrypts the payload if it is sealed, and decodes it.
    ///
    /// # Errors
    /// `SIGNATURE_INVALID` when the payload is not authenticated; otherwise the reason why it cannot be
    /// decoded.
    pub fn content(&self, keys: &AgentKeys, bounds: &JsonBounds) -> Result<Content, Failure> {
        let envelope = &self.envelope;
        let opened =
            envelope.sealed.as_ref().map(|sealed| opened(sealed, keys, &envelope.header)).transpose()?;
        let payload = match &opened {
            Some(bytes) => Some(strict_json::check(bytes, bounds).map_err(|fault| fault::of(&fault))?),
            None => envelope.payload.map(RawValue::get),
        };
        // The document's signature covers five members of the header. A command counts only if its payload is
        // sealed under that header or covered by the full signature.
        if envelope.kind == Kind::Command && opened.is_none() && self.scope == SignatureScope::Header {
            return Err(Failure::new(
                Code::SignatureInvalid,
                "the signature does not cover a command's `payload`: seal it (`encryption`), or agree on \
                 `signature_scope = \"full\"`",
            ));
        }
        envelope.read(payload).map_err(|fault| fault::of(&fault))
    }
}

fn opened(sealed: &Sealed, keys: &AgentKeys, header: &str) -> Result<Vec<u8>, Failure> {
    let refuse = |message| Failure::new(Code::SignatureInvalid, message);
    if !keys.seals() {
        return Err(refuse("this executor has no encryption key for this agent"));
    }
    keys.open(sealed, header).ok_or_else(|| {
        refuse(
            "`encryption` cannot be decrypted: seal the payload with the shared key, and the signed text of the header as \
             associated data",
        )
    })
}

/// The payload as an object; pointers of faults are relative to the message.
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

/// Decodes `parameters`; the second argument is the context for the governor.
type Parameters = fn(Object<'_>, Option<Map<String, Value>>) -> Result<Content, Fault>;

/// No two commands accept the same payload. Otherwise an attacker could change `action`, which the header
/// signature does not cover, and turn one command into another.
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
                "there is no event `{}`: there are `started`, `progress`, `log`, `artifact` and `finished`",
                excerpt(&text)
            );
            Fault::invalid(pointer.clone(), message)
        })
    };
    let events = events.texts()?.into_iter().map(known).collect::<Result<BTreeSet<_>, _>>()?;
    if events.is_empty() {
        return Err(Fault::invalid(pointer, "`events` must name at least one event"));
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
