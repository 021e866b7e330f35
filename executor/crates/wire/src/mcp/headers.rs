//! The HTTP headers of 2026-07-28 that repeat parts of a message, so that proxies can route without reading it. A
//! header that contradicts the message is refused: a proxy may have decided by it. Clients write them with
//! `mirror_request` and `mirror_arguments`.

use super::decode::ClientRequest;
use super::fault::McpError;
use a2g_types::ident::excerpt;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// The header with the revision.
pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// The header with the method.
pub const METHOD: &str = "mcp-method";
/// The header with the name of the tool or the URI of the resource.
pub const NAME: &str = "mcp-name";
/// The prefix of the headers that repeat arguments.
pub const PARAM_PREFIX: &str = "mcp-param-";
/// The marks around a value in base64.
const ENCODED_PREFIX: &str = "=?base64?";
const ENCODED_SUFFIX: &str = "?=";
/// The schema keyword that names the header of an argument.
pub const ANNOTATION: &str = "x-mcp-header";
/// The largest integer that every parser of JSON reads exactly.
const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;
/// The maximum number of annotated arguments, and of objects that are searched for them.
const MAX_ANNOTATIONS: usize = 64;
const MAX_OBJECTS: usize = 1_000;

/// The values of one header, in order. A value that is not ASCII text is `None`.
pub trait HeaderValues {
    /// The only value of a header.
    ///
    /// # Errors
    /// [`McpError::HeaderMismatch`] for a header that occurs twice or is not ASCII text.
    fn single(&self, name: &str) -> Result<Option<&str>, McpError>;
}

fn mismatch(message: String) -> McpError {
    McpError::HeaderMismatch(message)
}

/// Compares the standard headers with the message.
///
/// # Errors
/// [`McpError::HeaderMismatch`].
pub fn check(headers: &impl HeaderValues, request: &ClientRequest<'_>) -> Result<(), McpError> {
    let version = request.meta.version.as_deref().unwrap_or_default();
    let sent = require(headers, PROTOCOL_VERSION)?;
    check_equal(PROTOCOL_VERSION, sent, version)?;
    check_equal(METHOD, require(headers, METHOD)?, &request.method)?;
    if let Some(name) = request.mirrored_name() {
        let sent = decode_value(NAME, require(headers, NAME)?)?;
        check_equal(NAME, &sent, &name)?;
    }
    Ok(())
}

/// The headers that repeat parts of a request: names and values, in the encoding of the wire.
#[must_use]
pub fn mirror_request(request: &ClientRequest<'_>) -> Vec<(String, String)> {
    let version = request.meta.version.clone().map(|version| (PROTOCOL_VERSION, version));
    let name = request.mirrored_name().map(|name| (NAME, encode_value(name)));
    let values = version.into_iter().chain([(METHOD, request.method.clone())]).chain(name);
    values.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The headers that repeat annotated arguments, like [`mirror_request`].
#[must_use]
pub fn mirror_arguments(schema: &Value, arguments: &Map<String, Value>) -> Vec<(String, String)> {
    let values = annotated_values(schema, arguments);
    let texts = values.filter_map(|(header, value)| match value? {
        Value::String(text) => Some((header, text.clone())),
        scalar @ (Value::Bool(_) | Value::Number(_)) => Some((header, scalar.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    });
    texts.map(|(header, text)| (header, encode_value(text))).collect()
}

/// Returns `true` if a header repeats an argument of this schema.
#[must_use]
pub fn has_annotations(schema: &Value) -> bool {
    !annotated_arguments(schema).is_empty()
}

fn require<'a>(headers: &'a impl HeaderValues, name: &str) -> Result<&'a str, McpError> {
    headers.single(name)?.ok_or_else(|| mismatch(format!("`{name}` is missing")))
}

fn check_equal(name: &str, sent: &str, expected: &str) -> Result<(), McpError> {
    if sent == expected {
        return Ok(());
    }
    Err(mismatch(format!("`{name}` is `{}`, and the message has `{}`", excerpt(sent), excerpt(expected))))
}

/// Decodes `=?base64?…?=`, by which clients send values that are not plain ASCII.
fn decode_value(name: &str, sent: &str) -> Result<String, McpError> {
    let Some(encoded) = sent.strip_prefix(ENCODED_PREFIX).and_then(|rest| rest.strip_suffix(ENCODED_SUFFIX))
    else {
        return Ok(sent.to_owned());
    };
    let bytes = STANDARD.decode(encoded).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| mismatch(format!("`{name}` is not base64 of UTF-8")))
}

/// Encodes a value that is not plain ASCII, has surrounding spaces, or would be taken for an encoded one.
fn encode_value(value: String) -> String {
    let is_plain = value.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && value.trim() == value
        && !value.starts_with(ENCODED_PREFIX);
    if is_plain { value } else { format!("{ENCODED_PREFIX}{}{ENCODED_SUFFIX}", STANDARD.encode(value)) }
}

/// Compares the headers of annotated arguments with the arguments.
///
/// # Errors
/// [`McpError::HeaderMismatch`].
pub fn check_arguments(
    headers: &impl HeaderValues,
    schema: &Value,
    arguments: &Map<String, Value>,
) -> Result<(), McpError> {
    for (header, value) in annotated_values(schema, arguments) {
        match (headers.single(&header)?, value) {
            (None, None) => {}
            (None, Some(_)) => return Err(mismatch(format!("`{header}` is missing"))),
            (Some(_), None) => {
                return Err(mismatch(format!("`{header}` is sent for an argument that is absent")));
            }
            (Some(sent), Some(value)) => {
                let sent = decode_value(&header, sent)?;
                if !is_same(&sent, value) {
                    return Err(mismatch(format!("`{header}` differs from its argument")));
                }
            }
        }
    }
    Ok(())
}

/// The header of each annotated argument, and the argument unless it is absent or `null`.
fn annotated_values<'a>(
    schema: &'a Value,
    arguments: &'a Map<String, Value>,
) -> impl Iterator<Item = (String, Option<&'a Value>)> {
    annotated_arguments(schema).into_iter().map(|(name, path)| {
        let header = format!("{PARAM_PREFIX}{}", name.to_ascii_lowercase());
        let value = path.iter().try_fold(None, |at: Option<&Value>, member| {
            let found = match at {
                None => arguments.get(*member),
                Some(value) => value.get(*member),
            };
            found.map(Some)
        });
        (header, value.flatten().filter(|value| !value.is_null()))
    })
}

fn is_same(sent: &str, value: &Value) -> bool {
    match value {
        Value::String(text) => sent == text,
        Value::Bool(flag) => sent == if *flag { "true" } else { "false" },
        // `42.0` and `42` are equal.
        Value::Number(number) => {
            let sent = sent.parse::<f64>().ok();
            let value = number.as_f64();
            sent.zip(value).is_some_and(|(sent, value)| sent.total_cmp(&value).is_eq())
        }
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

/// The annotated arguments of a schema that are reachable only by `properties`: header names and paths.
#[must_use]
pub fn annotated_arguments(schema: &Value) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    let mut open: Vec<(&Value, Vec<&str>)> = vec![(schema, Vec::new())];
    let mut searched = 0;
    while let Some((object, path)) = open.pop() {
        searched += 1;
        if searched > MAX_OBJECTS || found.len() >= MAX_ANNOTATIONS {
            break;
        }
        if let (Some(name), false) = (object.get(ANNOTATION).and_then(Value::as_str), path.is_empty()) {
            found.push((name, path.clone()));
        }
        let properties = object.get("properties").and_then(Value::as_object);
        for (member, inner) in properties.into_iter().flatten() {
            let mut path = path.clone();
            path.push(member);
            open.push((inner, path));
        }
    }
    found
}

/// The reason why a schema's header annotations are not valid, if one is not: clients ignore such a tool.
///
/// # Errors
/// The sentence for the tool's author.
pub fn check_annotations(schema: &Value) -> Result<(), String> {
    let mut names = HashSet::new();
    for (name, path) in annotated_arguments(schema) {
        let argument = path.join("/");
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(format!("`{ANNOTATION}` of `{argument}` is not the name of a header"));
        }
        if !names.insert(name.to_ascii_lowercase()) {
            return Err(format!("`{ANNOTATION}` of `{argument}` names a header that another argument has"));
        }
        let inner = path.iter().try_fold(schema, |at, member| at.get("properties")?.get(*member));
        let kind = inner.and_then(|inner| inner.get("type")).and_then(Value::as_str);
        let bounded = |key: &str| {
            let bound = inner.and_then(|inner| inner.get(key)).and_then(Value::as_i64);
            bound.is_none_or(|bound| bound.abs() <= MAX_SAFE_INTEGER)
        };
        match kind {
            Some("string" | "boolean") => {}
            Some("integer") if bounded("minimum") && bounded("maximum") => {}
            Some(_) | None => {
                return Err(format!(
                    "`{ANNOTATION}` of `{argument}` needs the type string, integer or boolean"
                ));
            }
        }
    }
    Ok(())
}
