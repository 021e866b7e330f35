//! Messages that go out: sealed when they answer what was sealed, and signed when it is known to whom.

use super::fault::{self, NexusError};
use super::keys::{AgentKeys, Sealed};
use super::message::{ALGORITHM, EVENT_TYPE, EventName, Guarantee, Kind, SignatureScope, Status, VERSION};
use crate::call::Priority;
use crate::ident::IntentId;
use crate::json::JsonText;
use crate::outcome::{Artifact, End, Receipt};
use crate::tool::Descriptor;
use crate::wire::raw;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// For how long a message of the executor is worth something, in milliseconds.
const TTL_MS: u64 = 60_000;
/// The version of what the data of events looks like.
const SCHEMA_VERSION: &str = "1.0";

/// What makes a message the one that it is.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    /// Its id.
    pub id: IntentId,
    /// When it is made, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// A nonce that was never used before.
    pub iv: [u8; 12],
}

/// From whom to whom a message goes, and how it is protected.
#[derive(Debug, Clone, Copy)]
pub struct Letter<'a> {
    /// The executor's own identity.
    pub from: &'a RawValue,
    /// The other's, as it came.
    pub to: &'a RawValue,
    /// Their keys; `None` when nothing shows who they are.
    pub keys: Option<&'a AgentKeys>,
    /// How much a signature covers.
    pub scope: SignatureScope,
    /// Whether what it says is sealed.
    pub sealed: bool,
    /// The priority of what it answers.
    pub priority: Priority,
}

/// What a message says.
#[derive(Debug, Clone)]
pub enum Body<'a> {
    /// What became of a command or a query.
    Response {
        /// Its id.
        request: IntentId,
        /// What became of it.
        status: Status,
        /// The answer.
        data: Option<Box<RawValue>>,
        /// What went wrong.
        error: Option<NexusError>,
        /// How long it took, in milliseconds.
        processing_ms: u64,
    },
    /// That the message with this id arrived.
    Ack(IntentId),
    /// What is wrong with a message, and its id when it could be read.
    Error(Option<IntentId>, NexusError),
    /// Something that happened.
    Event {
        /// What.
        name: EventName,
        /// How surely it is told.
        guarantee: Guarantee,
        /// The payload, from [`event_payload`].
        payload: &'a RawValue,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
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
    said: Said<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encryption: Option<Encryption>,
    signature: String,
    priority: &'a str,
    ttl: u64,
    requires_ack: bool,
    requires_signature: bool,
}

/// What is left out of a message whose content is sealed.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Said<'a> {
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

impl From<Sealed> for Encryption {
    fn from(Sealed { iv, ciphertext, auth_tag }: Sealed) -> Self {
        Self {
            algorithm: ALGORITHM,
            iv: STANDARD.encode(iv),
            ciphertext: STANDARD.encode(ciphertext),
            auth_tag: STANDARD.encode(auth_tag),
        }
    }
}

impl Letter<'_> {
    /// The whole message.
    #[must_use]
    pub fn write(&self, stamp: &Stamp, body: Body<'_>) -> String {
        let Self { from, to, keys, scope, sealed, priority } = *self;
        let Stamp { id, timestamp_ms, iv } = *stamp;
        let mut message = Written {
            id: id.to_string(),
            kind: Kind::Ack.as_str(),
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
            said: Said::default(),
            encryption: None,
            signature: String::new(),
            priority: priority.as_str(),
            ttl: TTL_MS,
            requires_ack: false,
            requires_signature: keys.is_some(),
        };
        message.put(body);
        let [header, full] = signed_texts(&message);
        if let (true, Some(keys), true) = (sealed, keys, message.kind != Kind::Ack.as_str()) {
            let text = message.to_seal();
            let sealed = keys.seal(text.get(), &header, iv);
            // Never in the clear what was to be sealed.
            message.said = Said::default();
            message.encryption = sealed.map(Encryption::from);
        }
        // An outgoing message has no `action`; its `payload` is left out of what is signed once it is sealed.
        let text = match (scope, &message.encryption) {
            (SignatureScope::Full, None) => full,
            (SignatureScope::Full, Some(_)) | (SignatureScope::Header, _) => header,
        };
        message.signature = keys.map_or(String::new(), |keys| keys.sign(&text));
        raw(&message).get().to_owned()
    }
}

/// What is signed: with the header's members alone, and with the payload as well.
fn signed_texts(message: &Written<'_>) -> [String; 2] {
    let Written { id, kind, timestamp, from, to, said, .. } = message;
    let payload = said.payload.map_or(String::new(), |payload| format!(r#","payload":{payload}"#));
    [String::new(), payload].map(|payload| {
        format!(r#"{{"id":"{id}","type":"{kind}","from":{from},"to":{to}{payload},"timestamp":{timestamp}}}"#)
    })
}

impl<'a> Written<'a> {
    fn put(&mut self, body: Body<'a>) {
        match body {
            Body::Response { request, status, data, error, processing_ms } => {
                self.kind = Kind::Response.as_str();
                self.correlation_id = Some(request.to_string());
                self.request_id = Some(request.to_string());
                self.status = Some(status.as_str());
                self.said.data = data;
                self.said.error = error.map(|error| error.object(self.timestamp));
                self.said.processing_time = Some(processing_ms);
            }
            Body::Ack(id) => self.correlation_id = Some(id.to_string()),
            Body::Error(of, failure) => {
                self.kind = Kind::Error.as_str();
                self.correlation_id = of.map(|id| id.to_string());
                self.said.error = Some(failure.object(self.timestamp));
            }
            Body::Event { name, guarantee, payload } => {
                self.kind = Kind::Event.as_str();
                self.event_type = Some(EVENT_TYPE);
                self.event_name = Some(name.as_str());
                self.delivery_guarantee = Some(guarantee.as_str());
                self.requires_ack = match guarantee {
                    Guarantee::AtMostOnce => false,
                    Guarantee::AtLeastOnce | Guarantee::ExactlyOnce => true,
                };
                self.said.payload = Some(payload);
            }
        }
    }

    /// What is sealed: the payload of an event, and else an object of what is said, with the status, which the
    /// signature does not cover where it stands.
    fn to_seal(&self) -> Box<RawValue> {
        if let Some(payload) = self.said.payload {
            return payload.to_owned();
        }
        #[derive(Serialize)]
        struct Content<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            status: Option<&'a str>,
            #[serde(flatten)]
            said: &'a Said<'a>,
        }
        raw(&Content { status: self.status, said: &self.said })
    }
}

/// The executor's identity.
#[must_use]
pub fn identity(id: &str) -> Box<RawValue> {
    raw(&json!({
        "id": id,
        "type": "mcp",
        "version": env!("CARGO_PKG_VERSION"),
        "capabilities": ["tool.execute", "tool.cancel", "events.subscribe", "events.unsubscribe"],
    }))
}

/// The payload of an event.
#[must_use]
pub fn event_payload(data: &Value) -> Box<RawValue> {
    raw(&json!({
        "data": data,
        "metadata": { "schemaVersion": SCHEMA_VERSION, "contentType": "application/json" },
    }))
}

/// What became of a run, whatever it was: the status of the response, its data, and its error.
#[must_use]
pub fn report(receipt: &Receipt) -> (Status, Box<RawValue>, Option<NexusError>) {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Report<'a> {
        intent_id: String,
        tool: &'a str,
        status: &'static str,
        truncated: bool,
        metrics: Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<&'a JsonText>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        artifacts: Vec<Value>,
    }
    let Receipt { agent: _, intent, tool, approved_by: _, durability: _, outcome } = receipt;
    let data = raw(&Report {
        intent_id: intent.to_string(),
        tool: tool.as_str(),
        status: outcome.end.status().as_str(),
        truncated: outcome.output.truncated,
        metrics: metrics(receipt),
        result: if let End::Returned(result) = &outcome.end { Some(result) } else { None },
        artifacts: outcome.output.artifacts.iter().map(artifact).collect(),
    });
    let error = fault::of_receipt(receipt);
    let status = match (&error, outcome.output.truncated) {
        (Some(_), _) => Status::Failure,
        (None, true) => Status::Partial,
        (None, false) => Status::Success,
    };
    (status, data, error)
}

/// The answer to a question about a run that is over: its report.
#[must_use]
pub fn finished(intent: IntentId, receipt: &Receipt) -> Box<RawValue> {
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
    let (_, report, error) = report(receipt);
    raw(&Finished {
        resource_id: intent.to_string(),
        state: "finished",
        status: receipt.outcome.end.status().as_str(),
        report,
        error: error.map(|error| json!({ "code": error.code.as_str(), "message": error.message })),
    })
}

/// An answer that was made here.
#[must_use]
pub fn answer(data: &Value) -> Box<RawValue> {
    raw(data)
}

/// What a run used.
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

/// The catalogue.
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
