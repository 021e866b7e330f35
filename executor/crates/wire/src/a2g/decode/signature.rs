//! `context.signature` of an intent, as produced by the protocol's SDKs, and the text that it signs.
//!
//! The text is the params without the signature, as JSON with sorted keys and no white space. The SDKs write numbers in
//! different ways, so numbers are copied verbatim. Only the shape is checked here.

use crate::field::{Field, Object};
use a2g_types::call::ContextSignature;
use a2g_types::fault::Fault;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The latest accepted millisecond: the last one of the year 9999.
const MAX_TIMESTAMP_MS: u64 = 253_402_300_799_999;

/// Decodes the signature of the params of `a2g/intent`; `None` if there is none. With `escape_non_ascii`, the text is
/// written with escapes for non-ASCII characters, as the Python SDK does by default and the other SDKs do not.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer into `params`; [`Fault::Parse`] for text that is not JSON.
pub fn context_signature(params: &str, escape_non_ascii: bool) -> Result<Option<ContextSignature>, Fault> {
    let Some(mut context) = Object::parse(params)?.read_nullable::<Object<'_>>("context")? else {
        return Ok(None);
    };
    let Some(mut object) = context.read_nullable::<Object<'_>>("signature")? else { return Ok(None) };
    let timestamp = object.require("timestamp")?;
    let digits = timestamp.string()?;
    let timestamp_ms = digits.parse::<u64>().ok().filter(|ms| *ms <= MAX_TIMESTAMP_MS);
    let timestamp_ms = timestamp_ms.filter(|ms| ms.to_string() == digits);
    let nonce = object.require("nonce")?;
    let hash = object.require("hash")?;
    let timestamp_ms = timestamp_ms
        .ok_or_else(|| timestamp.expected_error("milliseconds since 1970, in digits, as a string"))?;
    let head = format!("{timestamp_ms}:{}:", nonce.parse_with(parse_nonce)?);
    let texts = canonical_texts(params, escape_non_ascii)?.into_iter().map(|text| format!("{head}{text}"));
    Ok(Some(ContextSignature {
        timestamp_ms,
        nonce: nonce.string()?,
        hash: hash.parse_with(|text| a2g_types::tool::Digest::parse(text).map(|_| text.to_owned()))?,
        texts: texts.collect(),
    }))
}

fn parse_nonce(text: &str) -> Result<String, &'static str> {
    let is_valid =
        (8..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if is_valid { Ok(text.to_owned()) } else { Err("must be 8 to 128 letters, digits and `-`") }
}

/// The canonical texts of params without `context.signature`: two if `context` has no other member, because an SDK may
/// then have signed the params with an empty `context` or without it.
fn canonical_texts(params: &str, escape: bool) -> Result<Vec<String>, Fault> {
    let root = Field::parse(params)?;
    let unreadable = || root.expected_error("a JSON object");
    let mut members = parse_members(params).ok_or_else(unreadable)?;
    let context = members.get("context").map(|raw| raw.get());
    let mut context_members = context.and_then(parse_members).ok_or_else(unreadable)?;
    context_members.remove("signature");
    let is_context_empty = context_members.is_empty();
    let mut context = String::new();
    write_object(&context_members, escape, &mut context).ok_or_else(unreadable)?;
    let context = RawValue::from_string(context).map_err(|_| unreadable())?;
    members.insert("context".into(), &context);
    let mut with_context = String::new();
    write_object(&members, escape, &mut with_context).ok_or_else(unreadable)?;
    if !is_context_empty {
        return Ok(vec![with_context]);
    }
    members.remove("context");
    let mut without_context = String::new();
    write_object(&members, escape, &mut without_context).ok_or_else(unreadable)?;
    Ok(vec![with_context, without_context])
}

type SortedMembers<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

/// The members of an object, sorted by the code points of their names.
fn parse_members(text: &str) -> Option<SortedMembers<'_>> {
    #[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
    struct SortedName<'a>(#[serde(borrow)] Cow<'a, str>);
    let members = serde_json::from_str::<BTreeMap<SortedName<'_>, &RawValue>>(text).ok()?;
    Some(members.into_iter().map(|(key, value)| (key.0, value)).collect())
}

fn write_object(members: &SortedMembers<'_>, escape: bool, output: &mut String) -> Option<()> {
    output.push('{');
    for (nth, (key, value)) in members.iter().enumerate() {
        if nth > 0 {
            output.push(',');
        }
        write_string(key, escape, output);
        output.push(':');
        write_value(value.get(), escape, output)?;
    }
    output.push('}');
    Some(())
}

/// Writes a value in canonical form. The depth is bounded by the strict check that the message has passed.
fn write_value(value: &str, escape: bool, output: &mut String) -> Option<()> {
    match value.as_bytes().first()? {
        b'{' => write_object(&parse_members(value)?, escape, output)?,
        b'[' => {
            output.push('[');
            for (nth, item) in serde_json::from_str::<Vec<&RawValue>>(value).ok()?.iter().enumerate() {
                if nth > 0 {
                    output.push(',');
                }
                write_value(item.get(), escape, output)?;
            }
            output.push(']');
        }
        b'"' => write_string(&serde_json::from_str::<String>(value).ok()?, escape, output),
        // A number, `true`, `false` or `null`, verbatim.
        _scalar => output.push_str(value),
    }
    Some(())
}

/// Writes a string with the escapes that all SDKs use and, with `escape`, with `\uXXXX` for characters beyond `~`.
fn write_string(text: &str, escape: bool, output: &mut String) {
    output.push('"');
    for c in text.chars() {
        match c {
            '"' => output.push_str("\\\""),
            '\\' => output.push_str("\\\\"),
            '\n' => output.push_str("\\n"),
            '\r' => output.push_str("\\r"),
            '\t' => output.push_str("\\t"),
            '\u{8}' => output.push_str("\\b"),
            '\u{c}' => output.push_str("\\f"),
            c if c < ' ' || (escape && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(output, "\\u{unit:04x}");
                }
            }
            c => output.push(c),
        }
    }
    output.push('"');
}
