//! JSON-RPC 2.0 framing, shared by the doors that speak it.
//!
//! Guarantees: a method receives only well-framed requests, an id is returned byte for byte, and an empty or
//! oversized batch is rejected before any entry is examined. The module contains no method names and no error
//! codes of a door.

pub mod incoming;

use super::field::Field;
use super::raw;
use crate::fault::Fault;
use crate::ident::IntentId;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// The maximum number of requests in one batch.
pub const MAX_BATCH: usize = 16;

/// An id exactly as its caller wrote it: a string, a number or null, at most [`Id::MAX_BYTES`] long.
#[derive(Debug, Clone)]
pub struct Id(Box<RawValue>);

impl Id {
    /// The maximum length of an id as JSON text, quotes included.
    pub const MAX_BYTES: usize = 128;

    pub(super) fn of(field: &Field<'_>) -> Result<Self, Fault> {
        Self::read(field.raw())
    }

    /// An id made of a text of the executor's own.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self(raw(&text))
    }

    /// A random UUID, for doors that must answer a request without an id.
    #[must_use]
    pub fn fresh() -> Self {
        Self::text(&IntentId::random().to_string())
    }

    pub(super) fn raw(&self) -> &RawValue {
        &self.0
    }

    fn read(raw: &RawValue) -> Result<Self, Fault> {
        let text = raw.get();
        if !text.starts_with(|c: char| matches!(c, '"' | '-' | '0'..='9' | 'n')) {
            return Err(refused("`id` must be a string, a number or null"));
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
pub struct Request<'a> {
    /// The id of the answer; `None` marks a notification, which is never answered.
    pub id: Option<Id>,
    /// The method, verbatim.
    pub method: Cow<'a, str>,
    /// The parameters, verbatim: an object or an array.
    pub params: Option<&'a RawValue>,
}

/// A request, or its id (if readable) and the reason why it is rejected.
pub type Entry<'a> = Result<Request<'a>, (Option<Id>, Fault)>;

/// The content of a JSON-RPC message.
#[derive(Debug)]
pub enum Body<'a> {
    /// A single request, answered by a single object.
    One(Entry<'a>),
    /// At least one entry, answered by an array without the notifications.
    Batch(Vec<Entry<'a>>),
}

/// Reads the framing of a body that has passed [`super::strict_json::check`].
///
/// # Errors
/// [`Fault::InvalidRequest`] for anything but an object or an array, for `[]`, and for a batch of more than
/// `max_batch`, of which no entry runs. [`Fault::Parse`] for text that is not JSON.
pub fn decode(text: &str, max_batch: usize) -> Result<Body<'_>, Fault> {
    match text.trim_start().bytes().next() {
        Some(b'{') => {
            let members: Members<'_> = serde_json::from_str(text).map_err(|error| framing(&error))?;
            Ok(Body::One(members.into_request()))
        }
        Some(b'[') => batch(text, max_batch).map(Body::Batch),
        Some(_) | None => Err(serde_json::from_str::<IgnoredAny>(text).map_or_else(
            |error| framing(&error),
            |_| refused("a request must be an object or an array of objects"),
        )),
    }
}

fn batch(text: &str, max_batch: usize) -> Result<Vec<Entry<'_>>, Fault> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let entries = reader.deserialize_seq(AtMost(max_batch)).map_err(|error| framing(&error))?;
    reader.end().map_err(|error| framing(&error))?;
    match entries {
        None => Err(Fault::InvalidRequest(format!("a batch may contain at most {max_batch} requests"))),
        Some(entries) if entries.is_empty() => Err(refused("a batch must contain at least one request")),
        Some(entries) => Ok(entries.into_iter().map(entry).collect()),
    }
}

fn entry(raw: &RawValue) -> Entry<'_> {
    if !raw.get().starts_with('{') {
        return Err((None, refused("a request is an object")));
    }
    let members: Members<'_> = serde_json::from_str(raw.get()).map_err(|error| (None, framing(&error)))?;
    members.into_request()
}

fn refused(message: &str) -> Fault {
    Fault::InvalidRequest(message.to_owned())
}

/// The message of a serde error can quote any amount of input, so only its position is reported.
fn framing(error: &serde_json::Error) -> Fault {
    let place = format!("at line {} column {}", error.line(), error.column());
    match error.classify() {
        serde_json::error::Category::Data => Fault::InvalidRequest(format!("not a request {place}")),
        serde_json::error::Category::Syntax
        | serde_json::error::Category::Eof
        | serde_json::error::Category::Io => Fault::Parse(format!("not JSON {place}")),
    }
}

/// Collects the entries of an array; `None` when there are more than allowed, which are skipped and not stored.
struct AtMost(usize);

impl<'de> Visitor<'de> for AtMost {
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
struct Members<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
}

/// Distinguishes `null` from an absent member: `"id": null` is not a notification.
fn present<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(reader).map(Some)
}

impl<'a> Members<'a> {
    fn into_request(self) -> Entry<'a> {
        let Self { jsonrpc, id, method, params } = self;
        let id = id.map(Id::read).transpose().map_err(|fault| (None, fault))?;
        match Self::checked(jsonrpc, method, params) {
            Ok((method, params)) => Ok(Request { id, method, params }),
            Err(fault) => Err((id, fault)),
        }
    }

    fn checked(
        jsonrpc: Option<&RawValue>,
        method: Option<&'a RawValue>,
        params: Option<&'a RawValue>,
    ) -> Result<(Cow<'a, str>, Option<&'a RawValue>), Fault> {
        if jsonrpc.and_then(string).as_deref() != Some("2.0") {
            return Err(refused("`jsonrpc` must be \"2.0\""));
        }
        let method = method.and_then(string).ok_or_else(|| refused("`method` must be a string"))?;
        let structured = |raw: &RawValue| raw.get().starts_with(['{', '[']);
        if !params.is_none_or(structured) {
            return Err(refused("`params` must be an object or an array"));
        }
        Ok((method, params))
    }
}

/// The decoded string, borrowed if it has no escapes.
fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str::<Text<'_>>(raw.get()).ok().map(|text| text.0)
}

/// A response with a result, as JSON text.
#[must_use]
pub fn success(id: &Id, result: &RawValue) -> Box<RawValue> {
    #[derive(Serialize)]
    struct Success<'a> {
        jsonrpc: &'static str,
        result: &'a RawValue,
        id: &'a RawValue,
    }
    raw(&Success { jsonrpc: "2.0", result, id: &id.0 })
}

/// An error response as JSON text. The id is null when the request was unreadable.
#[must_use]
pub fn error(id: Option<&Id>, code: i64, message: &str, data: Option<&Value>) -> Box<RawValue> {
    #[derive(Serialize)]
    struct Failure<'a> {
        jsonrpc: &'static str,
        error: Reason<'a>,
        id: &'a RawValue,
    }
    #[derive(Serialize)]
    struct Reason<'a> {
        code: i64,
        message: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<&'a Value>,
    }
    let id = id.map_or(RawValue::NULL, |id| &id.0);
    raw(&Failure { jsonrpc: "2.0", error: Reason { code, message, data }, id })
}

#[cfg(test)]
mod tests;
