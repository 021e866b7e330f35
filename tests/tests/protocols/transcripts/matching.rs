//! Comparison of an answer with the expected one: the same members and values, but for placeholders.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::collections::BTreeMap;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Values of placeholders bound so far, by name.
pub type Bindings = BTreeMap<String, String>;

/// Puts what is known in the place of each `<NAME>`.
pub fn fill_placeholders(text: &str, known: &Bindings) -> String {
    known.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("<{name}>"), value))
}

/// Compares one value, at a JSON Pointer, and says what is wrong.
pub fn compare(at: &str, expected: &Value, actual: &Value, known: &mut Bindings, wrong: &mut Vec<String>) {
    match (expected, actual) {
        (Value::Object(members), Value::Object(others)) => {
            for (name, expected) in members {
                match others.get(name) {
                    Some(actual) => compare(&format!("{at}/{name}"), expected, actual, known, wrong),
                    None => wrong.push(format!("{at}/{name} is not there")),
                }
            }
            let more = others.iter().filter(|(name, _)| !members.contains_key(*name));
            wrong.extend(more.map(|(name, value)| format!("{at}/{name} is new: {value}")));
        }
        (Value::Array(elements), Value::Array(others)) if elements.len() == others.len() => {
            for (index, (expected, actual)) in elements.iter().zip(others).enumerate() {
                compare(&format!("{at}/{index}"), expected, actual, known, wrong);
            }
        }
        (Value::String(pattern), _) if is(pattern, actual, known) => {}
        (expected, actual) if expected == actual => {}
        (expected, actual) => wrong.push(format!("{at} is {actual} and not {expected}")),
    }
}

/// True if a value matches a string with placeholders.
fn is(pattern: &str, actual: &Value, known: &mut Bindings) -> bool {
    match (pattern, actual) {
        ("<number>", actual) => actual.is_number(),
        ("<integer>", actual) => actual.is_u64(),
        ("<object>", actual) => actual.is_object(),
        (pattern, Value::String(text)) => text_is(&fill_placeholders(pattern, known), text, known),
        _ => false,
    }
}

/// As [`is`], of two texts.
pub fn text_is(pattern: &str, text: &str, known: &mut Bindings) -> bool {
    let Some((before, rest)) = pattern.split_once('<') else { return pattern == text };
    let Some((placeholder, after)) = rest.split_once('>') else { return pattern == text };
    let Some(text) = text.strip_prefix(before) else { return false };
    // As far as the text before the next placeholder, or to the end.
    let next = after.split('<').next().unwrap_or_default();
    let end = if next.is_empty() { Some(text.len()) } else { text.find(next) };
    let Some((part, text)) = end.map(|end| text.split_at(end)) else { return false };
    let (kind, name) = placeholder.split_once(':').unwrap_or((placeholder, ""));
    if !is_a(kind, part) {
        return false;
    }
    if !name.is_empty() {
        known.insert(name.to_owned(), part.to_owned());
    }
    text_is(&fill_placeholders(after, known), text, known)
}

fn is_a(kind: &str, text: &str) -> bool {
    match kind {
        "uuid" => text.len() == 36 && uuid::Uuid::try_parse(text).is_ok(),
        "hex" => !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "base64" => STANDARD.decode(text).is_ok_and(|bytes| !bytes.is_empty()),
        "time" => OffsetDateTime::parse(text, &Rfc3339).is_ok(),
        "digits" => !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()),
        "text" => !text.is_empty(),
        _ => false,
    }
}
