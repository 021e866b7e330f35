//! The text of a call's arguments, which the journal stores beside the record of its start or of its wait's end.
//!
//! ```text
//! {"parent": …, "session": …, "left_out": ["/password"], "arguments": {…}}   or   {"max_bytes": 65536}
//! ```

use crate::call::{Call, StoredArguments};
use crate::ident::IntentId;
use crate::session::SessionRequest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Result, Value};
use std::borrow::Cow;
use std::io::{Error, ErrorKind, Write};

/// The members of the text. Those without a value are left out.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArgumentsText<'a> {
    /// The run that made the call: the hash of the call's content covers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<IntentId>,
    /// The session that the call asked for: the hash covers it as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arguments: Option<Cow<'a, Map<String, Value>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_bytes: Option<u64>,
}

/// The parsed text, with the run that made the call and the session that it asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct ArgumentsRow {
    /// The arguments.
    pub arguments: StoredArguments,
    /// The run that made the call, for a nested one.
    pub parent: Option<IntentId>,
    /// The session that the call asked for.
    pub session: Option<SessionRequest>,
}

/// Serializes the arguments of a call, without the members that have one of the names in `never`, at any depth and in
/// any case. If the text is longer than `max_bytes`, it says only that.
#[must_use]
pub fn write_arguments(call: &Call, never: &[String], max_bytes: u64) -> String {
    let mut left_out = Vec::new();
    let mut arguments = Cow::Borrowed(&call.arguments);
    if !never.is_empty() {
        leave_out(arguments.to_mut(), never, "", &mut left_out);
    }
    let parent = call.parent.as_ref().map(|parent| parent.intent);
    let session = call.session.as_ref().map(|session| session.request.to_string());
    let text = ArgumentsText { parent, session, left_out, arguments: Some(arguments), max_bytes: None };
    // A long text is not built to its end.
    let mut written = Bounded { bytes: Vec::new(), max_bytes };
    let is_whole = serde_json::to_writer(&mut written, &text).is_ok();
    let whole = Some(written.bytes).filter(|_| is_whole).and_then(|bytes| String::from_utf8(bytes).ok());
    whole.unwrap_or_else(|| format!(r#"{{"max_bytes":{max_bytes}}}"#))
}

/// Parses a text of [`write_arguments`].
///
/// # Errors
/// If the text has another form.
pub fn read_arguments(text: &str) -> Result<ArgumentsRow> {
    let ArgumentsText { parent, session, left_out, arguments, max_bytes } = serde_json::from_str(text)?;
    let arguments = match (arguments, max_bytes) {
        (Some(arguments), None) => StoredArguments::Kept { arguments: arguments.into_owned(), left_out },
        (None, Some(max_bytes)) => StoredArguments::TooLarge { max_bytes },
        (Some(_), Some(_)) | (None, None) => {
            return Err(serde::de::Error::custom("either `arguments` or `max_bytes` has to be there"));
        }
    };
    let request = session.map(|text| SessionRequest::parse(&text)).transpose();
    Ok(ArgumentsRow { arguments, parent, session: request.map_err(serde::de::Error::custom)? })
}

/// Removes the members with one of the names in `never`, and appends their JSON Pointers to `left_out`.
fn leave_out(object: &mut Map<String, Value>, never: &[String], place: &str, left_out: &mut Vec<String>) {
    object.retain(|name, value| {
        let pointer = format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
        if never.iter().any(|never| never.eq_ignore_ascii_case(name)) {
            left_out.push(pointer);
            return false;
        }
        leave_out_within(value, never, &pointer, left_out);
        true
    });
}

fn leave_out_within(value: &mut Value, never: &[String], place: &str, left_out: &mut Vec<String>) {
    match value {
        Value::Object(object) => leave_out(object, never, place, left_out),
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                leave_out_within(item, never, &format!("{place}/{index}"), left_out);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A text that fails when it gets too long.
struct Bounded {
    bytes: Vec<u8>,
    max_bytes: u64,
}

impl Write for Bounded {
    fn write(&mut self, part: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len().saturating_add(part.len()) as u64 > self.max_bytes {
            return Err(Error::from(ErrorKind::FileTooLarge));
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
