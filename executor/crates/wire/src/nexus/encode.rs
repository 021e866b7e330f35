//! Outgoing messages: sealed if they answer a sealed message, and signed if the recipient is known.

use super::fault::{self, NexusError};
use super::keys::{AgentKeys, SealedPayload};
use super::message::{
    ALGORITHM, DeliveryGuarantee, EVENT_TYPE, EventName, MessageType, ResponseStatus, SignatureScope, VERSION,
};
use crate::measurements;
use crate::staged::{self, StagedState};
use crate::to_raw;
use a2g_types::call::Priority;
use a2g_types::ident::IntentId;
use a2g_types::json::JsonText;
use a2g_types::outcome::{Artifact, Receipt};
use a2g_types::tool::Descriptor;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// The `ttl` of the executor's messages, in milliseconds.
const TTL_MS: u64 = 60_000;
/// The version of the schema of event data.
const SCHEMA_VERSION: &str = "1.0";

/// The members that are unique to each message.
#[derive(Debug, Clone, Copy)]
pub struct MessageStamp {
    /// The id of the message.
    pub id: IntentId,
    /// The time of the message, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// A nonce that has never been used before.
    pub iv: [u8; 12],
}

/// Sender, recipient and protection of outgoing messages.
#[derive(Debug, Clone, Copy)]
pub struct MessageWriter<'a> {
    /// The executor's identity.
    pub from: &'a RawValue,
    /// The recipient's identity, on one line.
    pub to: &'a RawValue,
    /// The recipient's keys; `None` when the recipient has not been authenticated.
    pub keys: Option<&'a AgentKeys>,
    /// The members that a signature covers.
    pub scope: SignatureScope,
    /// `true` to seal the content.
    pub sealed: bool,
    /// The priority of the request.
    pub priority: Priority,
}

/// The content of an outgoing message.
#[derive(Debug, Clone)]
pub enum OutgoingBody<'a> {
    /// The result of a command or a query.
    Response {
        /// The id of the request.
        request: IntentId,
        /// The result of the request.
        status: ResponseStatus,
        /// The data of the answer.
        data: Option<Box<RawValue>>,
        /// The error, if the request failed.
        error: Option<NexusError>,
        /// The processing time, in milliseconds.
        processing_ms: u64,
    },
    /// The acknowledgement of the message with this id.
    Ack(IntentId),
    /// The rejection of a message, with its id if that was readable.
    Error(Option<IntentId>, NexusError),
    /// An event of a run.
    Event {
        /// The name of the event.
        name: EventName,
        /// The delivery guarantee.
        guarantee: DeliveryGuarantee,
        /// The payload, from [`event_payload`].
        payload: &'a RawValue,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EncodedMessage<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: &'a str,
    version: &'a str,
    timestamp: u64,
    from: &'a RawValue,
    to: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery_guarantee: Option<&'a str>,
    #[serde(flatten)]
    content: MessageContent<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encryption: Option<Encryption>,
    signature: String,
    priority: &'a str,
    ttl: u64,
    requires_ack: bool,
    requires_signature: bool,
}

/// The content, which is omitted from a sealed message.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct MessageContent<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processing_time: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Encryption {
    algorithm: &'static str,
    iv: String,
    ciphertext: String,
    auth_tag: String,
}

impl From<SealedPayload> for Encryption {
    fn from(SealedPayload { iv, ciphertext, auth_tag }: SealedPayload) -> Self {
        Self {
            algorithm: ALGORITHM,
            iv: STANDARD.encode(iv),
            ciphertext: STANDARD.encode(ciphertext),
            auth_tag: STANDARD.encode(auth_tag),
        }
    }
}

impl MessageWriter<'_> {
    /// Seals, signs and serializes one message.
    #[must_use]
    pub fn write(&self, stamp: &MessageStamp, body: OutgoingBody<'_>) -> String {
        let Self { from, to, keys, scope, sealed, priority } = *self;
        let MessageStamp { id, timestamp_ms, iv } = *stamp;
        let mut message = EncodedMessage {
            id: id.to_string(),
            kind: MessageType::Ack.as_str(),
            version: VERSION,
            timestamp: timestamp_ms,
            from,
            to,
            correlation_id: None,
            request_id: None,
            status: None,
            event_type: None,
            event_name: None,
            delivery_guarantee: None,
            content: MessageContent::default(),
            encryption: None,
            signature: String::new(),
            priority: priority.as_str(),
            ttl: TTL_MS,
            requires_ack: false,
            requires_signature: keys.is_some(),
        };
        message.set_body(body);
        let [header, full] = signing_texts(&message);
        if let (true, Some(keys), true) = (sealed, keys, message.kind != MessageType::Ack.as_str()) {
            let text = message.plaintext();
            let sealed = keys.seal(text.get(), &header, iv);
            // The content is removed even if sealing failed: plaintext must not be sent instead.
            message.content = MessageContent::default();
            message.encryption = sealed.map(Encryption::from);
        }
        // An outgoing message has no `action`, and no `payload` once it is sealed, so both scopes then cover
        // the same members.
        let text = match (scope, &message.encryption) {
            (SignatureScope::Full, None) => full,
            (SignatureScope::Full, Some(_)) | (SignatureScope::Header, _) => header,
        };
        message.signature = keys.map_or(String::new(), |keys| keys.sign(&text));
        to_raw(&message).get().to_owned()
    }
}

/// The signed texts for both scopes: only the header, and the header with the payload.
fn signing_texts(message: &EncodedMessage<'_>) -> [String; 2] {
    let EncodedMessage { id, kind, timestamp, from, to, content, .. } = message;
    let payload = content.payload.map_or(String::new(), |payload| format!(r#","payload":{payload}"#));
    [String::new(), payload].map(|payload| {
        format!(r#"{{"id":"{id}","type":"{kind}","from":{from},"to":{to}{payload},"timestamp":{timestamp}}}"#)
    })
}

impl<'a> EncodedMessage<'a> {
    fn set_body(&mut self, body: OutgoingBody<'a>) {
        match body {
            OutgoingBody::Response { request, status, data, error, processing_ms } => {
                self.kind = MessageType::Response.as_str();
                self.correlation_id = Some(request.to_string());
                self.request_id = Some(request.to_string());
                self.status = Some(status.as_str());
                self.content.data = data;
                self.content.error = error.map(|error| error.to_json(self.timestamp));
                self.content.processing_time = Some(processing_ms);
            }
            OutgoingBody::Ack(id) => self.correlation_id = Some(id.to_string()),
            OutgoingBody::Error(request, failure) => {
                self.kind = MessageType::Error.as_str();
                self.correlation_id = request.map(|id| id.to_string());
                self.content.error = Some(failure.to_json(self.timestamp));
            }
            OutgoingBody::Event { name, guarantee, payload } => {
                self.kind = MessageType::Event.as_str();
                self.event_type = Some(EVENT_TYPE);
                self.event_name = Some(name.as_str());
                self.delivery_guarantee = Some(guarantee.as_str());
                self.requires_ack = match guarantee {
                    DeliveryGuarantee::AtMostOnce => false,
                    DeliveryGuarantee::AtLeastOnce | DeliveryGuarantee::ExactlyOnce => true,
                };
                self.content.payload = Some(payload);
            }
        }
    }

    /// The plaintext to seal: the payload of an event, otherwise the content together with `status`, which the
    /// header signature does not cover.
    fn plaintext(&self) -> Box<RawValue> {
        if let Some(payload) = self.content.payload {
            return payload.to_owned();
        }
        #[derive(Serialize)]
        struct Content<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            status: Option<&'a str>,
            #[serde(flatten)]
            content: &'a MessageContent<'a>,
        }
        to_raw(&Content { status: self.status, content: &self.content })
    }
}

/// The executor's identity.
#[must_use]
pub fn executor_identity(id: &str) -> Box<RawValue> {
    to_raw(&json!({
        "id": id,
        "type": "mcp",
        "version": env!("CARGO_PKG_VERSION"),
        "capabilities": ["tool.execute", "tool.cancel", "events.subscribe", "events.unsubscribe"],
    }))
}

/// The payload of an event.
#[must_use]
pub fn event_payload(data: &Value) -> Box<RawValue> {
    to_raw(&json!({
        "data": data,
        "metadata": { "schemaVersion": SCHEMA_VERSION, "contentType": "application/json" },
    }))
}

/// Status, data and error of the response to a run, successful or not. The answer to a staged run, of which `state` is the
/// state of the file changes, is partial until these are in force.
#[must_use]
pub fn run_report(
    receipt: &Receipt,
    state: Option<&StagedState>,
) -> (ResponseStatus, Box<RawValue>, Option<NexusError>) {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct RunReport<'a> {
        intent_id: String,
        tool: &'a str,
        status: &'static str,
        truncated: bool,
        metrics: Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<&'a JsonText>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        artifacts: Vec<Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        effects: Option<Map<String, Value>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        session: Option<Value>,
    }
    let Receipt { intent, tool, outcome, .. } = receipt;
    let data = to_raw(&RunReport {
        intent_id: intent.to_string(),
        tool: tool.as_str(),
        status: outcome.end.status().as_str(),
        truncated: outcome.output.truncated,
        metrics: metrics(receipt),
        result: outcome.end.result(),
        artifacts: outcome.output.artifacts.iter().map(artifact).collect(),
        effects: staged::member(receipt, state),
        session: measurements::session(receipt),
    });
    let error = fault::receipt_error(receipt);
    let is_in_force = staged::changes_of(receipt).is_none() || state.is_some_and(StagedState::is_in_force);
    let status = match (&error, is_in_force && !outcome.output.truncated) {
        (Some(_), _) => ResponseStatus::Failure,
        (None, false) => ResponseStatus::Partial,
        (None, true) => ResponseStatus::Success,
    };
    (status, data, error)
}

/// The answer to a query about a finished run: its report, with the state of the file changes of a staged run.
#[must_use]
pub fn finished_state(intent: IntentId, receipt: &Receipt, state: Option<&StagedState>) -> Box<RawValue> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Finished {
        resource_id: String,
        state: &'static str,
        status: &'static str,
        report: Box<RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<Value>,
    }
    let (_, report, error) = run_report(receipt, state);
    to_raw(&Finished {
        resource_id: intent.to_string(),
        state: "finished",
        status: receipt.outcome.end.status().as_str(),
        report,
        error: error.map(|error| json!({ "code": error.code.as_str(), "message": error.message })),
    })
}

/// An answer from a JSON value.
#[must_use]
pub fn answer(data: &Value) -> Box<RawValue> {
    to_raw(data)
}

/// The measurements of a run.
#[must_use]
pub fn metrics(receipt: &Receipt) -> Value {
    let metrics = &receipt.outcome.metrics;
    json!({
        "durationMs": metrics.duration_ms(),
        "memoryUsedMb": metrics.memory_used_mb(),
        "cpuPercent": metrics.cpu_percent(),
        "outputBytes": metrics.output_bytes,
    })
}

/// The list of tools.
#[must_use]
pub fn tools(tools: &[Descriptor]) -> Value {
    let tools = tools.iter().map(|tool| {
        json!({
            "name": tool.name.as_str(),
            "version": tool.version,
            "description": tool.description,
            "arguments": tool.arguments_schema,
        })
    });
    tools.collect::<Vec<_>>().into()
}

fn artifact(artifact: &Artifact) -> Value {
    let Artifact { name, mime, content } = artifact;
    json!({ "name": name, "mime": mime, "bytes": STANDARD.encode(content) })
}
