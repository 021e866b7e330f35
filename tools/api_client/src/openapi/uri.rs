//! Writes arguments into the URL of a request, in the styles of OpenAPI.
//!
//! A path parameter is always one segment: everything but unreserved characters is percent-encoded, and a value in
//! which a server could read more than one segment is refused. `a2g-executor tool new --openapi` has this file too.

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
