//! Decoder for incoming messages, which have passed the strict reader.

use super::fault::{self, NexusCode, NexusError};
use super::keys::{AgentKeys, SealedPayload};
use super::message::{
    AGENT_TYPES, ALGORITHM, DeliveryGuarantee, EventName, MAX_TTL_MS, MessageType, PRIORITIES, QueryAction,
    QueryResource, ResponseStatus, SignatureScope, VERSION,
};
use super::stringify::stringify;
use crate::field::{Field, Object};
use crate::strict_json::{self, JsonBounds};
use a2g_types::call::Priority;
use a2g_types::fault::Fault;
use a2g_types::ident::{IdentError, IntentId, ToolName, excerpt};
use a2g_types::quantity::Timeout;
use a2g_types::session::SessionRequest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Maximum length of an agent's id, in bytes.
const MAX_AGENT_BYTES: usize = 200;
/// The largest integer that every JSON reader represents exactly.
const MAX_EXACT_INTEGER: u64 = (1 << 53) - 1;

/// A message whose signature has not been verified. Only its claims about itself are accessible.
#[derive(Debug)]
pub struct Envelope<'a> {
    id: IntentId,
    kind: MessageType,
    timestamp_ms: u64,
    from: String,
    /// `from` on one line: [`stringify`] of its value.
    identity: Box<RawValue>,
    to: String,
    correlation_id: Option<String>,
    action: Option<Field<'a>>,
    sealed: Option<SealedPayload>,
    event: Option<EventHead>,
    signature: Option<String>,
    priority: Priority,
    ttl_ms: u64,
    requires_ack: bool,
    /// The received bytes; once the signature is verified, the form that it covers.
    members: SignedMembers<'a>,
}

/// The members that a signature can cover, as JSON: all in the received bytes, or all in the form of [`stringify`].
#[derive(Debug)]
struct SignedMembers<'a> {
    id: Cow<'a, str>,
    kind: Cow<'a, str>,
    from: Cow<'a, str>,
    to: Cow<'a, str>,
    action: Option<Cow<'a, str>>,
    payload: Option<Cow<'a, str>>,
    timestamp: Cow<'a, str>,
}

/// The members of an event, except its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventHead {
    /// `eventType`.
    pub kind: String,
    /// `eventName`.
    pub name: String,
    /// `deliveryGuarantee`.
    pub guarantee: DeliveryGuarantee,
}

/// A message that cannot be decoded.
#[derive(Debug)]
pub struct NexusDecodeError {
    /// The id, if it was readable.
    pub id: Option<IntentId>,
    /// The error to answer with.
    pub failure: NexusError,
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
    Execute(ExecuteCommand),
    /// `tool.cancel`.
    Cancel(IntentId),
    /// `events.subscribe`.
    Subscribe(SubscribeCommand),
    /// `events.unsubscribe`.
    Unsubscribe(IntentId),
    /// A query about the executor or an intent.
    Query(QueryAction, QueryResource),
    /// An event of an agent.
    Event(EventHead),
    /// A response, which is ignored, because the executor sends no requests.
    Response,
    /// The acknowledgement of the message with this id.
    Ack(IntentId),
    /// A rejection of one of the executor's messages.
    Error,
}

/// The parameters of `tool.execute`.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecuteCommand {
    /// The name of the tool.
    pub tool: ToolName,
    /// The arguments, not yet checked against the tool's schema.
    pub arguments: Map<String, Value>,
    /// The caller's own limit on the run time.
    pub timeout: Option<Timeout>,
    /// `workflowId` and `agentId`, for the governor.
    pub context: Option<Map<String, Value>>,
    /// The session in which the tool shall run.
    pub session: Option<SessionRequest>,
}

/// The parameters of `events.subscribe`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscribeCommand {
    /// The events to send: at least one.
    pub events: BTreeSet<EventName>,
    /// Restricts the subscription to one intent.
    pub intent: Option<IntentId>,
    /// The delivery guarantee.
    pub guarantee: DeliveryGuarantee,
}

/// Decodes a message, except its payload.
///
/// # Errors
/// If the message is not a valid one of this protocol.
pub fn envelope(text: &str) -> Result<Envelope<'_>, Box<NexusDecodeError>> {
    let mut id = None;
    read(text, &mut id).map_err(|fault| Box::new(NexusDecodeError { id, failure: fault::to_error(&fault) }))
}

fn read<'a>(text: &'a str, known: &mut Option<IntentId>) -> Result<Envelope<'a>, Fault> {
    let body = Field::parse(text)?;
    if !body.is_object() {
        return Err(Fault::InvalidRequest("a message must be one object".to_owned()));
    }
    let mut body = body.object()?;
    let raw = |field: &Field<'a>| Cow::Borrowed(field.as_raw().get());
    let id = body.require("id")?;
    let id_raw = raw(&id);
    let id = id.parse_with(IntentId::parse)?;
    *known = Some(id);
    let kind = body.require("type")?;
    let kind_raw = raw(&kind);
    let kind = kind.enum_variant().map_err(as_invalid_request)?;
    let version = body.read::<String>("version")?;
    if version != VERSION {
        let version = excerpt(&version);
        return Err(Fault::InvalidRequest(format!("`version` must be \"{VERSION}\", not `{version}`")));
    }
    let timestamp = body.require("timestamp")?;
    let timestamp_ms = timestamp.integer(1, MAX_EXACT_INTEGER)?;
    let from = body.require("from")?;
    let to = body.require("to")?;
    let correlation_id = body.read_nullable("correlationId")?;
    let action = body.take_unless_null("action")?;
    let payload = body.take_unless_null("payload")?;
    let sealed = body.read_nullable_with("encryption", decode_sealed)?;
    if payload.is_some() && sealed.is_some() {
        return Err(Fault::invalid(
            "/payload",
            "`payload` and `encryption` exclude each other: send one of them",
        ));
    }
    let members = SignedMembers {
        id: id_raw,
        kind: kind_raw,
        from: raw(&from),
        to: raw(&to),
        action: action.as_ref().map(raw),
        payload: payload.as_ref().map(raw),
        timestamp: raw(&timestamp),
    };
    // The value has the size of the message, of which the strict reader has counted the memory.
    let identity = stringify(&Value::Object(from.map()?));
    let identity = RawValue::from_string(identity).map_err(|error| Fault::Internal(error.to_string()))?;
    let from = decode_identity(from)?;
    let to = decode_identity(to)?;
    let event = if kind == MessageType::Event { Some(decode_event_head(&mut body)?) } else { None };
    if kind == MessageType::Response {
        body.read::<String>("requestId")?;
        body.require("status")?.enum_variant::<ResponseStatus>()?;
    }
    if kind == MessageType::Error && sealed.is_none() {
        body.read::<Object<'_>>("error")?.read::<String>("code")?;
    }
    if correlation_id.is_none() && matches!(kind, MessageType::Response | MessageType::Ack) {
        return Err(Fault::invalid("/correlationId", "`correlationId` is missing"));
    }
    let envelope = Envelope {
        id,
        kind,
        timestamp_ms,
        from,
        identity,
        to,
        correlation_id,
        action,
        sealed,
        event,
        signature: body.read_nullable("signature")?,
        priority: body.require("priority")?.enum_value(&PRIORITIES)?,
        ttl_ms: body.require("ttl")?.integer(1, MAX_TTL_MS)?,
        requires_ack: body.read("requiresAck")?,
        members,
    };
    // The member is validated and ignored: this executor verifies every signature.
    body.read::<bool>("requiresSignature")?;
    Ok(envelope)
}

/// Reports a wrong `type` as an invalid message and not as an invalid parameter.
fn as_invalid_request(fault: Fault) -> Fault {
    let Fault::InvalidParams { message, pointer: _ } = fault else { return fault };
    Fault::InvalidRequest(message)
}

fn decode_identity(field: Field<'_>) -> Result<String, Fault> {
    let mut identity = field.object()?;
    let id = identity.require("id")?;
    let name = id.string()?;
    if name.is_empty() || name.len() > MAX_AGENT_BYTES {
        return Err(id.expected_error(&format!("1 to {MAX_AGENT_BYTES} bytes long")));
    }
    identity.require("type")?.enum_value(&AGENT_TYPES)?;
    identity.read::<String>("version")?;
    identity.read::<Vec<String>>("capabilities")?;
    for optional in ["endpoint", "publicKey"] {
        identity.read_nullable::<String>(optional)?;
    }
    Ok(name)
}

fn decode_sealed(field: Field<'_>) -> Result<SealedPayload, Fault> {
    let mut sealed = field.object()?;
    sealed.require("algorithm")?.enum_value(&[(ALGORITHM, ())])?;
    let iv = sealed.require("iv")?;
    let tag = sealed.require("authTag")?;
    Ok(SealedPayload {
        iv: decode_base64(&iv)?.try_into().map_err(|_| iv.expected_error("12 bytes in base64"))?,
        ciphertext: decode_base64(&sealed.require("ciphertext")?)?,
        auth_tag: decode_base64(&tag)?.try_into().map_err(|_| tag.expected_error("16 bytes in base64"))?,
    })
}

fn decode_base64(field: &Field<'_>) -> Result<Vec<u8>, Fault> {
    STANDARD.decode(field.string()?).map_err(|_| field.expected_error("base64, with padding"))
}

fn decode_event_head(body: &mut Object<'_>) -> Result<EventHead, Fault> {
    Ok(EventHead {
        kind: body.read("eventType")?,
        name: body.read("eventName")?,
        guarantee: body.require("deliveryGuarantee")?.enum_variant()?,
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
    pub fn kind(&self) -> MessageType {
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

    /// The claimed identity of the sender, on one line.
    #[must_use]
    pub fn identity(&self) -> &RawValue {
        &self.identity
    }

    fn read(&self, payload: Option<&str>) -> Result<Content, Fault> {
        match self.kind {
            MessageType::Command => decode_command(self.action.as_ref(), payload),
            MessageType::Query => decode_query(self.action.as_ref(), payload),
            MessageType::Event => {
                check_event(payload)?;
                let missing = || Fault::invalid("/eventType", "`eventType` is missing");
                self.event.clone().map(Content::Event).ok_or_else(missing)
            }
            MessageType::Response => Ok(Content::Response),
            MessageType::Ack => {
                let id = self.correlation_id.as_deref().unwrap_or_default();
                let invalid = |error: IdentError| Fault::invalid("/correlationId", error.to_string());
                IntentId::parse(id).map(Content::Ack).map_err(invalid)
            }
            MessageType::Error => Ok(Content::Error),
        }
    }

    /// Verifies the signature with the keys of the claimed sender: over the received bytes, or over what the document's
    /// `verifySignature` computes. In the second case, the message continues with the text that was verified.
    ///
    /// # Errors
    /// `SIGNATURE_INVALID`, the same for an unknown agent and a wrong signature.
    pub fn verify(self, keys: Option<&AgentKeys>, scope: SignatureScope) -> Result<Verified<'a>, NexusError> {
        let Self { members, signature, .. } = &self;
        let is_signed = |members: &SignedMembers<'_>| match (keys, signature) {
            (Some(keys), Some(signature)) => keys.verify(&members.text(scope), signature),
            (None, _) | (_, None) => false,
        };
        if is_signed(members) {
            return Ok(Verified { envelope: self, scope });
        }
        if let Some(members) = members.stringified().filter(is_signed) {
            return Ok(Verified { envelope: Self { members, ..self }, scope });
        }
        Err(NexusError::new(
            NexusCode::SignatureInvalid,
            "`signature` does not match this message and the secret of the agent in `from.id`",
        ))
    }
}

impl SignedMembers<'_> {
    /// The signed text.
    fn text(&self, scope: SignatureScope) -> String {
        let Self { id, kind, from, to, action, payload, timestamp } = self;
        let member = |name: &str, value: &Option<Cow<'_, str>>| match (scope, value) {
            (SignatureScope::Full, Some(value)) => format!(r#","{name}":{value}"#),
            (SignatureScope::Full, None) | (SignatureScope::Header, _) => String::new(),
        };
        let action = member("action", action);
        let payload = member("payload", payload);
        format!(
            r#"{{"id":{id},"type":{kind},"from":{from},"to":{to}{action}{payload},"timestamp":{timestamp}}}"#
        )
    }

    /// The members as JavaScript writes them; `None` if one has a number beyond the range of a double.
    fn stringified(&self) -> Option<SignedMembers<'static>> {
        let Self { id, kind, from, to, action, payload, timestamp } = self;
        let text =
            |json: &Cow<'_, str>| Some(Cow::Owned(stringify(&serde_json::from_str::<Value>(json).ok()?)));
        let optional = |json: &Option<Cow<'_, str>>| match json {
            Some(json) => text(json).map(Some),
            None => Some(None),
        };
        Some(SignedMembers {
            id: text(id)?,
            kind: text(kind)?,
            from: text(from)?,
            to: text(to)?,
            action: optional(action)?,
            payload: optional(payload)?,
            timestamp: text(timestamp)?,
        })
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
    /// `VALIDATION_ERROR` if the message is too old, or too far in the future.
    pub fn check_time(&self, now_ms: u64, ahead_ms: u64) -> Result<(), NexusError> {
        let Envelope { timestamp_ms, ttl_ms, .. } = &self.envelope;
        let time_error = |message: &str| {
            Err(NexusError::new(NexusCode::ValidationError, message).with_detail("pointer", "/timestamp"))
        };
        if *timestamp_ms > now_ms.saturating_add(ahead_ms) {
            return time_error("`timestamp` is ahead of the executor's clock: compare the clocks");
        }
        if now_ms > timestamp_ms.saturating_add(*ttl_ms) {
            return time_error("the message is older than its `ttl`: compare the clocks, and send a new one");
        }
        Ok(())
    }

    /// Decrypts the payload if it is sealed, and decodes it.
    ///
    /// # Errors
    /// `SIGNATURE_INVALID` when the payload is not authenticated; otherwise the reason why it cannot be
    /// decoded.
    pub fn content(&self, keys: &AgentKeys, bounds: &JsonBounds) -> Result<Content, NexusError> {
        let envelope = &self.envelope;
        let plaintext = envelope
            .sealed
            .as_ref()
            .map(|sealed| open_payload(sealed, keys, &envelope.members.text(SignatureScope::Header)))
            .transpose()?;
        let payload = match &plaintext {
            Some(bytes) => Some(strict_json::check(bytes, bounds).map_err(|fault| fault::to_error(&fault))?),
            None => envelope.members.payload.as_deref(),
        };
        // The document's signature covers five members of the header. A command counts only if its payload is
        // sealed under that header or covered by the full signature.
        if envelope.kind == MessageType::Command
            && plaintext.is_none()
            && self.scope == SignatureScope::Header
        {
            return Err(NexusError::new(
                NexusCode::SignatureInvalid,
                "the signature does not cover a command's `payload`: seal it (`encryption`), or agree on \
                 `signature_scope = \"full\"`",
            ));
        }
        envelope.read(payload).map_err(|fault| fault::to_error(&fault))
    }
}

fn open_payload(sealed: &SealedPayload, keys: &AgentKeys, header: &str) -> Result<Vec<u8>, NexusError> {
    let refuse = |message| NexusError::new(NexusCode::SignatureInvalid, message);
    if !keys.can_seal() {
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
fn payload_object(payload: Option<&str>) -> Result<Object<'_>, Fault> {
    let payload = payload.ok_or_else(|| Fault::invalid("/payload", "`payload` is missing"))?;
    Field::parse(payload)?.object().map_err(prefix_pointer)
}

fn prefix_pointer(fault: Fault) -> Fault {
    let Fault::InvalidParams { message, pointer } = fault else { return fault };
    Fault::InvalidParams { message, pointer: format!("/payload{pointer}") }
}

fn action_name(action: Option<&Field<'_>>) -> Result<String, Fault> {
    action.ok_or_else(|| Fault::invalid("/action", "`action` is missing"))?.string()
}

/// Decodes `parameters`; the second argument is the context for the governor.
type ParametersDecoder = fn(Object<'_>, Option<Map<String, Value>>) -> Result<Content, Fault>;

/// Decodes a command. No two commands accept the same payload: otherwise an attacker could change `action`, which the
/// header signature does not cover, and turn one command into another.
fn decode_command(action: Option<&Field<'_>>, payload: Option<&str>) -> Result<Content, Fault> {
    let action = action_name(action)?;
    let decode_parameters: ParametersDecoder = match action.as_str() {
        "tool.execute" => decode_execute,
        "tool.cancel" => |parameters, _| decode_only_id(parameters, "intentId").map(Content::Cancel),
        "events.subscribe" => |parameters, _| decode_subscribe(parameters).map(Content::Subscribe),
        "events.unsubscribe" => {
            |parameters, _| decode_only_id(parameters, "subscriptionId").map(Content::Unsubscribe)
        }
        other => {
            return Err(Fault::MethodNotFound(format!(
                "there is no action `{}`: there are `tool.execute`, `tool.cancel`, `events.subscribe` and \
                 `events.unsubscribe`",
                excerpt(other)
            )));
        }
    };
    let mut payload = payload_object(payload)?;
    let mut take_members = || -> Result<_, Fault> {
        let mut context = Map::new();
        for name in ["workflowId", "agentId"] {
            let value = payload.read_nullable::<String>(name)?;
            context.extend(value.map(|value| (name.to_owned(), value.into())));
        }
        Ok(((!context.is_empty()).then_some(context), payload.read("parameters")?))
    };
    let (context, parameters) = take_members().map_err(prefix_pointer)?;
    decode_parameters(parameters, context)
        .and_then(|content| payload.finish().map(|()| content))
        .map_err(prefix_pointer)
}

fn decode_execute(parameters: Object<'_>, context: Option<Map<String, Value>>) -> Result<Content, Fault> {
    parameters.read_all(|parameters| {
        Ok(Content::Execute(ExecuteCommand {
            tool: parameters.read("tool")?,
            arguments: parameters.read_nullable("arguments")?.unwrap_or_default(),
            timeout: parameters
                .read_nullable_with("timeoutMs", |field| field.quantity(Timeout::from_millis))?,
            context,
            session: parameters.read_nullable("session")?,
        }))
    })
}

fn decode_only_id(parameters: Object<'_>, name: &'static str) -> Result<IntentId, Fault> {
    parameters.read_all(|parameters| parameters.read(name))
}

fn decode_subscribe(parameters: Object<'_>) -> Result<SubscribeCommand, Fault> {
    parameters.read_all(|parameters| {
        Ok(SubscribeCommand {
            events: decode_events(&parameters.require("events")?)?,
            intent: parameters.read_nullable("intentId")?,
            guarantee: parameters
                .read_nullable_with("deliveryGuarantee", |guarantee| guarantee.enum_variant())?
                .unwrap_or_default(),
        })
    })
}

fn decode_events(field: &Field<'_>) -> Result<BTreeSet<EventName>, Fault> {
    let parse_event = |text: String| {
        EventName::ALL.into_iter().find(|event| event.as_str() == text).ok_or_else(|| {
            field.fault(format!(
                "there is no event `{}`: there are `started`, `progress`, `log`, `artifact` and `finished`",
                excerpt(&text)
            ))
        })
    };
    let events = field.strings()?.into_iter().map(parse_event).collect::<Result<BTreeSet<_>, _>>()?;
    if events.is_empty() {
        return Err(field.fault("`events` must name at least one event"));
    }
    Ok(events)
}

fn decode_query(action: Option<&Field<'_>>, payload: Option<&str>) -> Result<Content, Fault> {
    let action_name = action_name(action)?;
    let action = QueryAction::NAMES.iter().find(|(name, _)| *name == action_name);
    let (_, action) = action.ok_or_else(|| {
        Fault::MethodNotFound(format!(
            "there is no query `{}`: there are `get_status`, `get_metrics` and `get_state`",
            excerpt(&action_name)
        ))
    })?;
    let read_resource = |payload: &mut Object<'_>| {
        let id = payload.require("resourceId")?;
        match id.string()?.as_str() {
            "executor" => Ok(QueryResource::Executor),
            _ => id.parse_with(IntentId::parse).map(QueryResource::Intent),
        }
    };
    let resource = payload_object(payload)?.read_all(read_resource).map_err(prefix_pointer)?;
    Ok(Content::Query(*action, resource))
}

fn check_event(payload: Option<&str>) -> Result<(), Fault> {
    let mut payload = payload_object(payload)?;
    let read = payload.require("data").and_then(|_| {
        let mut metadata = payload.read::<Object<'_>>("metadata")?;
        metadata.read::<String>("schemaVersion")?;
        metadata.read::<String>("contentType").map(drop)
    });
    read.map_err(prefix_pointer)
}
