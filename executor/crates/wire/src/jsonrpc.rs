//! JSON-RPC 2.0 framing, shared by the doors that speak it.
//!
//! Guarantees: a method receives only well-framed requests, an id is returned byte for byte, and an empty or
//! oversized batch is rejected before any entry is examined. The module contains no method names and no error
//! codes of a door.

pub mod incoming;

use super::field::Field;
use super::to_raw;
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// The error code of a failure inside a server.
pub const INTERNAL_ERROR: i32 = -32603;
/// Maximum number of requests in one batch.
pub const MAX_BATCH: usize = 16;

/// An id exactly as its caller wrote it: a string, a number or null, at most [`Id::MAX_BYTES`] long.
#[derive(Debug, Clone)]
pub struct Id(Box<RawValue>);

impl Id {
    /// Maximum length of an id as JSON text, quotes included.
    pub const MAX_BYTES: usize = 128;

    pub(super) fn from_field(field: &Field<'_>) -> Result<Self, Fault> {
        Self::read(field.as_raw())
    }

    /// An id from a text that the executor chose.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self(to_raw(&text))
    }

    /// A random UUID, for doors that must answer a request without an id.
    #[must_use]
    pub fn random() -> Self {
        Self::from_text(&IntentId::random().to_string())
    }

    pub(super) fn as_raw(&self) -> &RawValue {
        &self.0
    }

    fn read(raw: &RawValue) -> Result<Self, Fault> {
        let text = raw.get();
        if !text.starts_with(|c: char| matches!(c, '"' | '-' | '0'..='9' | 'n')) {
            return Err(invalid_request("`id` must be a string, a number or null"));
        }
        if text.len() > Self::MAX_BYTES {
            return Err(Fault::InvalidRequest(format!("`id` is longer than {} bytes", Self::MAX_BYTES)));
        }
        Ok(Self(raw.to_owned()))
    }

    /// The id `null`.
    #[must_use]
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned())
    }

    /// The id as JSON text.
    #[must_use]
    pub fn as_json(&self) -> &str {
        self.0.get()
    }

    /// Returns `true` for `null`, which cannot tell one answer from another.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.as_json() == "null"
    }
}

impl PartialEq for Id {
    /// Compares the text: `1` and `1.0` are different ids.
    fn eq(&self, other: &Self) -> bool {
        self.as_json() == other.as_json()
    }
}

impl Eq for Id {}

/// A well-framed request.
#[derive(Debug, Clone)]
pub struct RpcRequest<'a> {
    /// The id of the answer; `None` marks a notification, which is never answered.
    pub id: Option<Id>,
    /// The method, verbatim.
    pub method: Cow<'a, str>,
    /// The parameters, verbatim: an object or an array.
    pub params: Option<&'a RawValue>,
}

/// A request, or its id (if readable) and the reason why it is rejected.
pub type RequestEntry<'a> = Result<RpcRequest<'a>, (Option<Id>, Fault)>;

/// The content of a JSON-RPC message.
#[derive(Debug)]
pub enum RpcMessage<'a> {
    /// A single request, answered by a single object.
    Single(RequestEntry<'a>),
    /// At least one entry, answered by an array without the notifications.
    Batch(Vec<RequestEntry<'a>>),
}

/// Reads the framing of a body that has passed [`super::strict_json::check`].
///
/// # Errors
/// [`Fault::InvalidRequest`] for anything but an object or an array, for `[]`, and for a batch of more than
/// `max_batch` entries, none of which runs. [`Fault::Parse`] for text that is not JSON.
pub fn decode(text: &str, max_batch: usize) -> Result<RpcMessage<'_>, Fault> {
    match text.trim_start().bytes().next() {
        Some(b'{') => {
            let members: RequestMembers<'_> =
                serde_json::from_str(text).map_err(|error| framing_error(&error))?;
            Ok(RpcMessage::Single(members.into_request()))
        }
        Some(b'[') => decode_batch(text, max_batch).map(RpcMessage::Batch),
        Some(_) | None => Err(serde_json::from_str::<IgnoredAny>(text).map_or_else(
            |error| framing_error(&error),
            |_| invalid_request("a request must be an object or an array of objects"),
        )),
    }
}

fn decode_batch(text: &str, max_batch: usize) -> Result<Vec<RequestEntry<'_>>, Fault> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let entries = reader.deserialize_seq(BoundedBatch(max_batch)).map_err(|error| framing_error(&error))?;
    reader.end().map_err(|error| framing_error(&error))?;
    match entries {
        None => Err(Fault::InvalidRequest(format!("a batch may contain at most {max_batch} requests"))),
        Some(entries) if entries.is_empty() => {
            Err(invalid_request("a batch must contain at least one request"))
        }
        Some(entries) => Ok(entries.into_iter().map(decode_entry).collect()),
    }
}

fn decode_entry(raw: &RawValue) -> RequestEntry<'_> {
    if !raw.get().starts_with('{') {
        return Err((None, invalid_request("a request must be an object")));
    }
    let members: RequestMembers<'_> =
        serde_json::from_str(raw.get()).map_err(|error| (None, framing_error(&error)))?;
    members.into_request()
}

fn invalid_request(message: &str) -> Fault {
    Fault::InvalidRequest(message.to_owned())
}

/// The message of a serde error can quote any amount of input, so only its position is reported.
fn framing_error(error: &serde_json::Error) -> Fault {
    let place = format!("at line {} column {}", error.line(), error.column());
    match error.classify() {
        serde_json::error::Category::Data => Fault::InvalidRequest(format!("not a request {place}")),
        serde_json::error::Category::Syntax
        | serde_json::error::Category::Eof
        | serde_json::error::Category::Io => Fault::Parse(format!("not JSON {place}")),
    }
}

/// Collects the entries of an array; `None` if there are more than this maximum. Surplus entries are not stored.
struct BoundedBatch(usize);

impl<'de> Visitor<'de> for BoundedBatch {
    type Value = Option<Vec<&'de RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a batch")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while entries.len() < self.0 {
            match seq.next_element()? {
                Some(entry) => entries.push(entry),
                None => return Ok(Some(entries)),
            }
        }
        if seq.next_element::<IgnoredAny>()?.is_none() {
            return Ok(Some(entries));
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

/// The members of a request object. Unknown ones are ignored, because JSON-RPC does not forbid them.
#[derive(Deserialize)]
struct RequestMembers<'a> {
    #[serde(borrow, default, deserialize_with = "deserialize_present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "deserialize_present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "deserialize_present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "deserialize_present")]
    params: Option<&'a RawValue>,
}

/// Distinguishes `null` from an absent member: `"id": null` is not a notification.
fn deserialize_present<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(reader).map(Some)
}

impl<'a> RequestMembers<'a> {
    fn into_request(self) -> RequestEntry<'a> {
        let Self { jsonrpc, id, method, params } = self;
        let id = id.map(Id::read).transpose().map_err(|fault| (None, fault))?;
        match Self::check(jsonrpc, method, params) {
            Ok((method, params)) => Ok(RpcRequest { id, method, params }),
            Err(fault) => Err((id, fault)),
        }
    }

    fn check(
        jsonrpc: Option<&RawValue>,
        method: Option<&'a RawValue>,
        params: Option<&'a RawValue>,
    ) -> Result<(Cow<'a, str>, Option<&'a RawValue>), Fault> {
        if jsonrpc.and_then(parse_string).as_deref() != Some("2.0") {
            return Err(invalid_request("`jsonrpc` must be \"2.0\""));
        }
        let method =
            method.and_then(parse_string).ok_or_else(|| invalid_request("`method` must be a string"))?;
        let is_structured = |raw: &RawValue| raw.get().starts_with(['{', '[']);
        if !params.is_none_or(is_structured) {
            return Err(invalid_request("`params` must be an object or an array"));
        }
        Ok((method, params))
    }
}

/// The decoded string, borrowed if it has no escapes.
fn parse_string(raw: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct JsonString<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str::<JsonString<'_>>(raw.get()).ok().map(|text| text.0)
}

/// A response with a result, as JSON text.
#[must_use]
pub fn success(id: &Id, result: &RawValue) -> Box<RawValue> {
    #[derive(Serialize)]
    struct SuccessResponse<'a> {
        jsonrpc: &'static str,
        result: &'a RawValue,
        id: &'a RawValue,
    }
    to_raw(&SuccessResponse { jsonrpc: "2.0", result, id: &id.0 })
}

/// An error response as JSON text. The id is null when the request was unreadable.
#[must_use]
pub fn error(id: Option<&Id>, code: i64, message: &str, data: Option<&Value>) -> Box<RawValue> {
    #[derive(Serialize)]
    struct ErrorResponse<'a> {
        jsonrpc: &'static str,
        error: ErrorObject<'a>,
        id: &'a RawValue,
    }
    #[derive(Serialize)]
    struct ErrorObject<'a> {
        code: i64,
        message: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<&'a Value>,
    }
    let id = id.map_or(RawValue::NULL, |id| &id.0);
    to_raw(&ErrorResponse { jsonrpc: "2.0", error: ErrorObject { code, message, data }, id })
}

#[cfg(test)]
mod tests;
