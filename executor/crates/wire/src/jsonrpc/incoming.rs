//! Messages that a JSON-RPC server sends to its client, in one normal form.
//!
//! A message passes the strict reader first. The normal form contains only the members that JSON-RPC defines,
//! and either `result` or `error`. An answer with both counts as an error, because the reference governor
//! denies in that form. A malformed answer keeps its id, so that only the call that it answers fails.

use super::{Id, deserialize_present, framing_error, parse_string};
use crate::strict_json::{self, JsonBounds};
use crate::to_raw;
use a2g_types::fault::Fault;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// A message in normal form.
#[derive(Debug)]
pub enum Incoming<'a> {
    /// An answer: the id of its call and the whole normalized message.
    Answer(Id, Box<RawValue>),
    /// A notification: method and params.
    Notification(Cow<'a, str>, Box<RawValue>),
}

/// A message that is neither an answer nor a notification.
#[derive(Debug)]
pub struct PeerMessageError {
    /// The id of the call that the message answers, if it has one.
    pub id: Option<Id>,
    /// The reason for the rejection.
    pub reason: String,
}

#[derive(Deserialize)]
struct MessageMembers<'a> {
    #[serde(borrow, default, deserialize_with = "deserialize_present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "deserialize_present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "deserialize_present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "deserialize_present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "deserialize_present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "deserialize_present")]
    error: Option<&'a RawValue>,
}

/// The error of an answer, reduced to the members that JSON-RPC defines.
#[derive(Deserialize, Serialize)]
struct ErrorObject<'a> {
    code: i32,
    #[serde(borrow)]
    message: Cow<'a, str>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
}

/// Converts a message into its normal form.
///
/// # Errors
/// [`PeerMessageError`] for text that the strict reader refuses, and for anything but an object with a method, a
/// result or an error.
pub fn read<'a>(message: &'a [u8], bounds: &JsonBounds) -> Result<Incoming<'a>, PeerMessageError> {
    let text = strict_json::check(message, bounds).map_err(|fault| malformed_error(message, &fault))?;
    // serde would accept an array for the struct.
    if !text.trim_start().starts_with('{') {
        return Err(PeerMessageError { id: None, reason: "it is not an object".to_owned() });
    }
    let members: MessageMembers<'a> =
        serde_json::from_str(text).map_err(|error| malformed_error(message, &framing_error(&error)))?;
    let id = members.id.and_then(|id| Id::read(id).ok());
    members.normalize(id.as_ref()).map_err(|reason| PeerMessageError { id, reason: reason.to_owned() })
}

impl<'a> MessageMembers<'a> {
    fn normalize(self, id: Option<&Id>) -> Result<Incoming<'a>, &'static str> {
        let Self { jsonrpc, id: _, method, params, result, error } = self;
        if jsonrpc.is_some_and(|version| parse_string(version).as_deref() != Some("2.0")) {
            return Err("`jsonrpc` is not \"2.0\"");
        }
        // Some servers write the member that does not apply as `null`.
        let error = error.filter(|error| error.get() != "null");
        match (error, result, method) {
            (None, None, None) => Err("it has no `method`, no `result` and no `error`"),
            (None, None, Some(method)) => {
                let method = parse_string(method).ok_or("`method` is not a string")?;
                let params = params.map_or_else(|| to_raw(&serde_json::Map::new()), ToOwned::to_owned);
                Ok(Incoming::Notification(method, params))
            }
            (error, result, _) => {
                let id = id.ok_or("an answer without the `id` of a call")?;
                Ok(Incoming::Answer(id.clone(), normalize_answer(id, result, error)?))
            }
        }
    }
}

fn normalize_answer(
    id: &Id,
    result: Option<&RawValue>,
    error: Option<&RawValue>,
) -> Result<Box<RawValue>, &'static str> {
    #[derive(Serialize)]
    struct ErrorResponse<'a> {
        jsonrpc: &'static str,
        error: ErrorObject<'a>,
        id: &'a RawValue,
    }
    let Some(error) = error else {
        return Ok(super::success(id, result.unwrap_or(RawValue::NULL)));
    };
    if !error.get().starts_with('{') {
        return Err("`error` is not an object");
    }
    let error = serde_json::from_str(error.get());
    let error = error.map_err(|_| "`error` needs an integer `code` and a string `message`")?;
    Ok(to_raw(&ErrorResponse { jsonrpc: "2.0", error, id: id.as_raw() }))
}

/// The error of an invalid message. Its id is read nevertheless, because an id can only end a call and never start one.
fn malformed_error(message: &[u8], fault: &Fault) -> PeerMessageError {
    #[derive(Deserialize)]
    struct IdMember<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
    }
    let member = serde_json::from_slice::<IdMember<'_>>(message).ok();
    let id = member.and_then(|member| Id::read(member.id).ok());
    let (Fault::Parse(reason) | Fault::InvalidRequest(reason)) = fault else {
        return PeerMessageError { id, reason: "it is not a JSON-RPC message".to_owned() };
    };
    PeerMessageError { id, reason: reason.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(message: &str) -> String {
        match read(message.as_bytes(), &JsonBounds::default()) {
            Ok(Incoming::Answer(id, text)) => format!("{} {}", id.as_json(), text.get()),
            Ok(Incoming::Notification(method, params)) => format!("{method} {}", params.get()),
            Err(PeerMessageError { id, reason }) => format!("{:?} {reason}", id.as_ref().map(Id::as_json)),
        }
    }

    #[test]
    fn messages_are_normalized_or_rejected() {
        let ok = r#"{"jsonrpc":"2.0","result":{"verdict":"APPROVED"},"id":"1"}"#;
        let no = r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"no","data":[1]},"id":"1"}"#;
        let error = r#""error":{"code":-32000,"message":"no","data":[1]}"#;
        let cases = [
            (ok.to_owned(), format!("\"1\" {ok}")),
            (format!(r#"{{"id":"1","result":{{}},{error}}}"#), format!("\"1\" {no}")),
            (format!(r#"{{{error},"result":null,"id":"1"}}"#), format!("\"1\" {no}")),
            (ok.replacen('{', r#"{"error":null,"more":1,"#, 1), format!("\"1\" {ok}")),
            (
                r#"{"id":"\u0031","result":null}"#.into(),
                r#""\u0031" {"jsonrpc":"2.0","result":null,"id":"\u0031"}"#.into(),
            ),
            (r#"{"method":"g2a/policy","id":null,"params":{"a":1}}"#.into(), r#"g2a/policy {"a":1}"#.into()),
            (r#"{"method":"g2a/policy"}"#.into(), "g2a/policy {}".into()),
            (r#"{"method":5}"#.into(), "None `method` is not a string".into()),
            (
                r#"{"id":"1","result":1,"error":{}}"#.into(),
                r#"Some("\"1\"") `error` needs an integer `code` and a string `message`"#.into(),
            ),
            (r#"{"id":"1","error":"no"}"#.into(), r#"Some("\"1\"") `error` is not an object"#.into()),
            (r#"{"result":1}"#.into(), "None an answer without the `id` of a call".into()),
            (r#"{"id":[1],"result":1}"#.into(), "None an answer without the `id` of a call".into()),
            (
                r#"{"jsonrpc":"3.0","id":"1","result":1}"#.into(),
                r#"Some("\"1\"") `jsonrpc` is not "2.0""#.into(),
            ),
            (
                r#"{"id":"1"}"#.into(),
                r#"Some("\"1\"") it has no `method`, no `result` and no `error`"#.into(),
            ),
            (
                r#"{"id":"1","result":{"a":1,"a":2}}"#.into(),
                r#"Some("\"1\"") duplicate key `a` at line 1 column 27"#.into(),
            ),
            (
                r#"{"id":"1","result":1,"id":"2"}"#.into(),
                "None duplicate key `id` at line 1 column 22".into(),
            ),
            (r#"["2.0","1"]"#.into(), "None it is not an object".into()),
            ("<html>".into(), "None not JSON: expected a value at line 1 column 1".into()),
        ];
        for (message, expected) in cases {
            assert_eq!(render(&message), expected, "{message}");
        }
        assert!(read(b"\xff", &JsonBounds::default()).is_err());
    }
}
