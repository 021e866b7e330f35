//! Writes arguments into the URL of a request, in the styles of OpenAPI.
//!
//! A path parameter is always one segment: everything but unreserved characters is percent-encoded, and a value in
//! which a server could read more than one segment is refused. So is a path that is one of another operation of the
//! method. `a2g-executor tool new --openapi` has this file too.

use super::settings::{OpenapiSettings, Parameter, Place, Style};
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// The URL of an operation for these arguments.
///
/// # Errors
/// A message about an argument that cannot be written there.
pub(crate) fn write_url(
    settings: &OpenapiSettings,
    arguments: &Map<String, Value>,
) -> Result<String, String> {
    let mut url = settings.url.clone();
    let mut query = Vec::new();
    for parameter in &settings.parameters {
        let value = arguments.get(&parameter.argument).filter(|value| !value.is_null());
        match (parameter.place, value) {
            (Place::Path, Some(value)) => {
                let segment = write_segment(parameter, value)?;
                url = url.replace(&format!("{{{}}}", parameter.name), &segment);
            }
            (Place::Path, None) => return Err(format!("`{}` is needed in the path", parameter.argument)),
            (Place::Query, Some(value)) => write_query(parameter, value, &mut query),
            (Place::Query, None) | (Place::Header, _) => {}
        }
    }
    check_others(&settings.others, &url)?;
    if !query.is_empty() {
        url.push('?');
        url.push_str(&query.join("&"));
    }
    Ok(url)
}

/// Percent-encodes everything but the unreserved characters of RFC 3986.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// A path parameter, as a part of one segment.
fn write_segment(parameter: &Parameter, value: &Value) -> Result<String, String> {
    let Parameter { argument, name, explode, .. } = parameter;
    for text in texts(value) {
        check_segment(argument, &text)?;
    }
    let encoded_name = encode(name);
    let written = match parameter.style {
        Style::Label => {
            let separator = if *explode { "." } else { "," };
            format!(".{}", write_joined(value, *explode, "=", separator, &encode))
        }
        Style::Matrix => match (value, *explode) {
            (Value::Array(items), true) => {
                items.iter().map(|item| format!(";{encoded_name}={}", encode(&text_of(item)))).collect()
            }
            (Value::Object(_), true) => format!(";{}", write_joined(value, true, "=", ";", &encode)),
            _ => format!(";{encoded_name}={}", write_joined(value, false, "=", ",", &encode)),
        },
        Style::Json => encode(&value.to_string()),
        Style::Simple | Style::Form | Style::SpaceDelimited | Style::PipeDelimited | Style::DeepObject => {
            write_joined(value, *explode, "=", ",", &encode)
        }
    };
    if written.is_empty() {
        return Err(format!("`{argument}` is empty, and a part of the path needs a value"));
    }
    Ok(written)
}

/// Refuses what servers read in more than one way.
fn check_segment(argument: &str, text: &str) -> Result<(), String> {
    if text.chars().all(|letter| letter == '.' || letter.is_whitespace()) {
        return Err(format!(
            "`{argument}` is `{}`, which is no value for a part of the path",
            text.escape_debug()
        ));
    }
    let is_separator = |letter: char| matches!(letter, '/' | '\\' | '?' | '#') || letter.is_control();
    if let Some(letter) = text.chars().find(|letter| is_separator(*letter)) {
        return Err(format!(
            "`{argument}` has `{}`, but it is one part of the path, and some servers read the encoding of this \
             character as the character",
            letter.escape_debug()
        ));
    }
    let mut rests = text.split('%').skip(1);
    if rests.any(|rest| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit())) {
        return Err(format!("`{argument}` is percent-encoded: pass the value itself, which is encoded here"));
    }
    Ok(())
}

/// Refuses a URL whose path is one of another operation, however its server compares paths.
fn check_others(others: &[String], url: &str) -> Result<(), String> {
    let segments = |path: &str| path.trim_end_matches('/').split('/').map(plain).collect::<Vec<_>>();
    let written = segments(url);
    let is_it = |other: &&String| {
        let patterns = segments(other);
        // The first one is empty. What is above these segments is the server.
        let mut pairs = written.iter().rev().zip(patterns.iter().skip(1).rev());
        pairs.all(|(text, pattern)| fits(text, pattern))
    };
    match others.iter().find(is_it) {
        Some(other) => Err(format!("the path with these arguments is that of another operation, `{other}`")),
        None => Ok(()),
    }
}

/// A segment as any server compares it: decoded, without parameters after `;`, spaces around it, and case.
pub(crate) fn plain(segment: &str) -> String {
    decode(segment).split(';').next().unwrap_or_default().trim().to_lowercase()
}

/// `true` for a text that has this form, in which one `*` stands for anything.
pub(crate) fn fits(text: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => text == pattern,
        Some((before, after)) => text.strip_prefix(before).is_some_and(|rest| rest.ends_with(after)),
    }
}

/// Decodes the percent-encoding of a part of a URL.
pub(crate) fn decode(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let encoded = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match encoded.filter(|_| *byte == b'%') {
            Some(encoded) => {
                decoded.push(encoded);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                decoded.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

fn write_query(parameter: &Parameter, value: &Value, query: &mut Vec<String>) {
    let Parameter { name, style, explode, .. } = parameter;
    let joined = |separator: &str| {
        format!("{}={}", encode(name), write_joined(value, false, separator, separator, &encode))
    };
    match (style, value) {
        (Style::Json, value) => query.push(pair(name, &value.to_string())),
        (Style::DeepObject, value) => write_deep(&encode(name), value, query),
        (Style::SpaceDelimited, Value::Array(_) | Value::Object(_)) if !explode => query.push(joined("%20")),
        (Style::PipeDelimited, Value::Array(_) | Value::Object(_)) if !explode => query.push(joined("%7C")),
        (_, Value::Array(items)) if *explode => {
            query.extend(items.iter().map(|item| pair(name, &text_of(item))));
        }
        (_, Value::Object(members)) if *explode => {
            query.extend(members.iter().map(|(member, value)| pair(member, &text_of(value))));
        }
        (_, Value::Array(_) | Value::Object(_)) => query.push(joined(",")),
        (_, value) => query.push(pair(name, &text_of(value))),
    }
}

/// The pairs of a value below `name`, which is encoded: `name[member]=value`, at any depth.
pub(super) fn write_deep(name: &str, value: &Value, pairs: &mut Vec<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(member, value)| {
            write_deep(&format!("{name}%5B{}%5D", encode(member)), value, pairs);
        }),
        Value::Array(items) => items.iter().enumerate().for_each(|(index, item)| {
            write_deep(&format!("{name}%5B{index}%5D"), item, pairs);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            pairs.push(format!("{name}={}", encode(&text_of(value))));
        }
    }
}

/// A value with its items, or its members and their values, joined; of an exploded object, each member with its value.
pub(super) fn write_joined(
    value: &Value,
    explode: bool,
    equals: &str,
    separator: &str,
    encode: &dyn Fn(&str) -> String,
) -> String {
    let parts = match value {
        Value::Array(items) => items.iter().map(|item| encode(&text_of(item))).collect::<Vec<_>>(),
        Value::Object(members) => {
            let between = if explode { equals } else { separator };
            let write = |(member, value): (&String, &Value)| {
                format!("{}{between}{}", encode(member), encode(&text_of(value)))
            };
            members.iter().map(write).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => vec![encode(&text_of(value))],
    };
    parts.join(separator)
}

pub(super) fn pair(name: &str, value: &str) -> String {
    format!("{}={}", encode(name), encode(value))
}

/// The texts that are written of a value.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().map(text_of).collect(),
        Value::Object(members) => {
            members.iter().flat_map(|(member, value)| [member.clone(), text_of(value)]).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => vec![text_of(value)],
    }
}

/// The text of a value that is not written in parts.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}
