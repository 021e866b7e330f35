//! Changes of JSON texts. The result is parsed again: it has to be the value of before with this one change.

use super::splice;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;

/// The text with the member at these names of objects, which are made if there are none. `None` if the text
/// is not JSON, or one of the names is no object.
pub(crate) fn set(text: &str, names: &[&str], value: &Value) -> Option<String> {
    let changed = match find(text, names)? {
        Place::Value(old) => splice(text, old, &compact(value))?,
        Place::Object { object, missing } => insert(text, object, missing, value)?,
    };
    checked(text, changed, names, value.clone())
}

/// The text with one more value at the end of the list at these names, which is made if there is none.
pub(crate) fn push(text: &str, names: &[&str], item: &Value) -> Option<String> {
    let Place::Value(list) = find(text, names)? else { return set(text, names, &json!([item])) };
    let items = serde_json::from_str::<Vec<&RawValue>>(text.get(list.clone())?).ok()?;
    let changed = match items.last() {
        None => splice(text, list, &compact(&json!([item])))?,
        Some(last) => {
            let place = range_of(text, last);
            let gap = gap_before(text, range_of(text, items.first()?).start)?;
            splice(text, place.end..place.end, &format!(",{gap}{}", compact(item)))?
        }
    };
    let pointer = names.iter().fold(String::new(), |pointer, name| format!("{pointer}/{name}"));
    let mut values = serde_json::from_str::<Value>(text).ok()?.pointer(&pointer)?.as_array()?.clone();
    values.push(item.clone());
    checked(text, changed, names, Value::Array(values))
}

/// The place of a member.
enum Place<'a> {
    /// Its value.
    Value(Range<usize>),
    /// The innermost object that there is, and the names below it.
    Object { object: Range<usize>, missing: &'a [&'a str] },
}

fn find<'a>(text: &str, names: &'a [&'a str]) -> Option<Place<'a>> {
    let mut value = serde_json::from_str::<&RawValue>(text).ok()?;
    for (depth, name) in names.iter().enumerate() {
        let members = serde_json::from_str::<BTreeMap<String, &RawValue>>(value.get()).ok()?;
        match members.get(*name).copied() {
            Some(inner) => value = inner,
            None => {
                return Some(Place::Object { object: range_of(text, value), missing: names.get(depth..)? });
            }
        }
    }
    Some(Place::Value(range_of(text, value)))
}

/// The place of a value that was parsed from `text`.
fn range_of(text: &str, value: &RawValue) -> Range<usize> {
    let start = value.get().as_ptr().addr().saturating_sub(text.as_ptr().addr());
    start..start + value.get().len()
}

/// Inserts a member at the end of an object, in the form of its other members.
fn insert(text: &str, object: Range<usize>, missing: &[&str], value: &Value) -> Option<String> {
    let (name, below) = missing.split_first()?;
    let whole = below.iter().rev().fold(value.clone(), |inner, name| json!({ (*name): inner }));
    let member = format!("{}: {}", json!(name), compact(&whole));
    let members = serde_json::from_str::<BTreeMap<String, &RawValue>>(text.get(object.clone())?).ok()?;
    let Some(end) = members.values().map(|value| range_of(text, value).end).max() else {
        return splice(text, object, &format!("{{ {member} }}"));
    };
    let inside = text.get(object.start + 1..object.end)?;
    let gap = gap_before(text, object.end - inside.trim_start().len())?;
    splice(text, end..end, &format!(",{gap}{member}"))
}

/// The white space before the first part of an object or a list, for one more part: that of a part in a line
/// of its own, or else one space.
fn gap_before(text: &str, start: usize) -> Option<&str> {
    let before = text.get(..start)?;
    let gap = before.get(before.trim_end().len()..)?;
    Some(gap.rfind('\n').and_then(|line_end| gap.get(line_end..)).unwrap_or(" "))
}

/// A value in one line, with a space between its parts.
fn compact(value: &Value) -> String {
    match value {
        Value::Object(members) if !members.is_empty() => {
            let members = members.iter().map(|(name, value)| format!("{}: {}", json!(name), compact(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(compact).collect::<Vec<_>>().join(", ")),
        Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            value.to_string()
        }
    }
}

/// The changed text, if it is the value of `text` with this one at the names.
fn checked(text: &str, changed: String, names: &[&str], value: Value) -> Option<String> {
    let mut expected = serde_json::from_str::<Value>(text).ok()?;
    let mut place = &mut expected;
    for name in names {
        place = place.as_object_mut()?.entry(*name).or_insert_with(|| json!({}));
    }
    *place = value;
    (serde_json::from_str::<Value>(&changed).ok()? == expected).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_set_in_the_form_of_the_others() {
        let names = ["a", "b"];
        for (text, expected) in [
            ("{}", r#"{ "a": { "b": true } }"#),
            (r#"{"a":{"b":false},"z":1}"#, r#"{"a":{"b":true},"z":1}"#),
            (r#"{ "a": { "x": [1, 2] } }"#, r#"{ "a": { "x": [1, 2], "b": true } }"#),
            (
                "{\n  \"z\": 1,\n  \"a\": {\n    \"x\": 1\n  }\n}\n",
                "{\n  \"z\": 1,\n  \"a\": {\n    \"x\": 1,\n    \"b\": true\n  }\n}\n",
            ),
            ("{\n\t\"z\": {}\n}\n", "{\n\t\"z\": {},\n\t\"a\": { \"b\": true }\n}\n"),
            (" {\"a\": { }}\n", " {\"a\": { \"b\": true }}\n"),
        ] {
            assert_eq!(set(text, &names, &json!(true)).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "[]", r#"{"a": 1}"#, r#"{"a": {}"#] {
            assert_eq!(set(text, &names, &json!(true)), None, "{text}");
        }
    }

    #[test]
    fn a_list_gets_one_more_value() {
        for (list, expected) in [
            ("[]", r#"["c"]"#),
            (r#"["a", "b"]"#, r#"["a", "b", "c"]"#),
            (r#"[ "a" ]"#, r#"[ "a", "c" ]"#),
            ("[\n    \"a\",\n    \"b\"\n  ]", "[\n    \"a\",\n    \"b\",\n    \"c\"\n  ]"),
        ] {
            let pushed = push(&format!(r#"{{ "n": {list} }}"#), &["n"], &json!("c"));
            assert_eq!(pushed, Some(format!(r#"{{ "n": {expected} }}"#)), "{list}");
        }
        assert_eq!(push("{}", &["n", "m"], &json!("c")).as_deref(), Some(r#"{ "n": { "m": ["c"] } }"#));
        assert_eq!(push(r#"{"n": 1}"#, &["n"], &json!("c")), None);
    }
}
