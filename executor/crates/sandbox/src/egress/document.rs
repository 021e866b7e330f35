//! The JSON document of a request in which a value is set. All else of it stays byte for byte.
//!
//! A document is never read into a tree, which would take tens of times its memory: each pass follows one path, and
//! skips all values beside it. Nothing here recurses, however deep a guest nests.

use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use std::ops::Range;
use zeroize::Zeroizing;

/// The place of a value in a document.
struct Place {
    /// The bytes that the value replaces.
    bytes: Range<usize>,
    /// The text before the value: that of a new member.
    before: String,
}

/// `true` if the document is valid, and has an object or a list in which the member at a path is or could be. In a
/// list, only an element that exists can be set. An object on the path that has the member twice, or under a name that
/// differs in case alone, has no place for it: servers differ in which of the two they read, and some ignore case.
pub(super) fn has_place(document: &str, path: &[String]) -> bool {
    find_place(document, path).is_some()
}

/// Sets the member at a path to a string; `None` if there is no place for it.
pub(super) fn set_member(document: &mut String, path: &[String], text: &str) -> Option<()> {
    let Place { bytes, before } = find_place(document, path)?;
    let value = Zeroizing::new(serde_json::to_string(text).ok()?);
    let written = Zeroizing::new(before + value.as_str());
    // Otherwise a long document would get twice the memory that it needs.
    document.reserve_exact(written.len());
    document.replace_range(bytes, &written);
    Some(())
}

fn find_place(document: &str, path: &[String]) -> Option<Place> {
    let (last, above) = path.split_last()?;
    let mut parent = serde_json::from_str::<&RawValue>(document).ok()?;
    for segment in above {
        parent = match find(parent, segment)? {
            Found::Value(value) => value,
            Found::NewMember { .. } => return None,
        };
    }
    let start_of = |part: &RawValue| part.get().as_ptr().addr().checked_sub(document.as_ptr().addr());
    match find(parent, last)? {
        Found::Value(value) => {
            let start = start_of(value)?;
            Some(Place { bytes: start..start.checked_add(value.get().len())?, before: String::new() })
        }
        Found::NewMember { is_first } => {
            // Before the `}`, with which the text of an object ends.
            let end = start_of(parent)?.checked_add(parent.get().len().checked_sub(1)?)?;
            let comma = if is_first { "" } else { "," };
            let name = serde_json::to_string(last).ok()?;
            Some(Place { bytes: end..end, before: format!("{comma}{name}:") })
        }
    }
}

/// What an object or a list has at one segment of a path.
enum Found<'a> {
    Value(&'a RawValue),
    /// The object does not have the member yet.
    NewMember {
        is_first: bool,
    },
}

/// Follows one segment of a path; `None` if there is no place for it.
fn find<'a>(parent: &'a RawValue, segment: &str) -> Option<Found<'a>> {
    serde_json::Deserializer::from_str(parent.get()).deserialize_any(Finder(segment)).ok()
}

struct Finder<'s>(&'s str);

impl<'de> Visitor<'de> for Finder<'_> {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Found<'de>, A::Error> {
        let mut found = None;
        let mut is_first = true;
        while let Some(name) = members.next_key::<String>()? {
            is_first = false;
            if !is_same_in_any_case(&name, self.0) {
                members.next_value::<IgnoredAny>()?;
            } else if name != self.0 {
                return Err(A::Error::custom("another case of the member occurs"));
            } else if found.replace(members.next_value::<&'de RawValue>()?).is_some() {
                return Err(A::Error::custom("the member occurs twice"));
            }
        }
        Ok(found.map_or(Found::NewMember { is_first }, Found::Value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Found<'de>, A::Error> {
        let missing = || A::Error::custom("there is no such element");
        for _ in 0..parse_index(self.0).ok_or_else(missing)? {
            elements.next_element::<IgnoredAny>()?.ok_or_else(missing)?;
        }
        let found = elements.next_element::<&'de RawValue>()?.ok_or_else(missing)?;
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::Value(found))
    }
}

/// `true` for names that a server which ignores case could take for one another. Both ways are compared, because some
/// characters have the same upper case as a letter of ASCII (`ſ`), and others the same lower case (the Kelvin sign).
fn is_same_in_any_case(one: &str, other: &str) -> bool {
    let fold = |name: &str| name.to_uppercase().to_lowercase();
    one == other || fold(one) == fold(other)
}

/// An index in the one form that a JSON Pointer has.
fn parse_index(segment: &str) -> Option<usize> {
    segment.parse::<usize>().ok().filter(|index| index.to_string() == segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_capability::SecretPlace;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn path(pointer: &str) -> Vec<String> {
        let SecretPlace::Body(path) = SecretPlace::parse(&format!("body:{pointer}")).unwrap() else {
            unreachable!()
        };
        path
    }

    fn set(document: &str, pointer: &str) -> Option<String> {
        let mut written = document.to_owned();
        let was_set = set_member(&mut written, &path(pointer), "x\"");
        assert_eq!(was_set.is_some(), has_place(document, &path(pointer)), "{document} {pointer}");
        was_set.map(|()| written)
    }

    #[test]
    fn a_member_is_set_where_its_parent_exists_and_no_other_byte_changes() {
        for (document, pointer, written) in [
            ("{}", "/new", r#"{"new":"x\""}"#),
            (" { } ", "/new", r#" { "new":"x\""} "#),
            (r#"{"a": 1 }"#, "/n\"~1", r#"{"a": 1 ,"n\"/":"x\""}"#),
            (r#"{"b":1e400,"a":{"b":[{}]},"b":2}"#, "/a/b", r#"{"b":1e400,"a":{"b":"x\""},"b":2}"#),
            (r#"{"\u0061":{"b":1}}"#, "/a/b", r#"{"\u0061":{"b":"x\""}}"#),
            (r#"{"n":12345678901234567890123,"a":0}"#, "/a", r#"{"n":12345678901234567890123,"a":"x\""}"#),
            (r#"[1, {"c":"ä"} ]"#, "/1/c", r#"[1, {"c":"x\""} ]"#),
            (r#"["ä", 2]"#, "/0", r#"["x\"", 2]"#),
            (r#"["ä", 2]"#, "/1", r#"["ä", "x\""]"#),
            (r#"{"a":[{}]}"#, "/a/0/b", r#"{"a":[{"b":"x\""}]}"#),
        ] {
            assert_eq!(set(document, pointer).as_deref(), Some(written), "{document} {pointer}");
        }
    }

    #[test]
    fn two_new_members_of_one_object_are_two() {
        let mut document = "{}".to_owned();
        for pointer in ["/a", "/b"] {
            set_member(&mut document, &path(pointer), "x").unwrap();
        }
        assert_eq!(document, r#"{"a":"x","b":"x"}"#);
    }

    #[test]
    fn what_has_no_place_or_two_is_refused() {
        for (document, pointer) in [
            (r#"{"a":{"b":1}}"#, "/x/y"),
            (r#"{"a":{"b":1}}"#, "/a/b/c"),
            (r#"{"a":"{}"}"#, "/a/b"),
            (r#"{"a":null}"#, "/a/b"),
            ("[1,2]", "/2"),
            ("[1,2]", "/00"),
            ("[1,2]", "/-"),
            ("[1,2]", "/99999999999999999999"),
            (r#"{"a":1,"a":2}"#, "/a"),
            (r#"{"a":1,"\u0061":2}"#, "/a"),
            (r#"{"a":1,"A":2}"#, "/a"),
            (r#"{"\u0041":2}"#, "/a"),
            (r#"{"key":1,"\u006bey":2}"#, "/key"),
            (r#"{"key":1,"KEY":2}"#, "/key"),
            ("{\"\u{212a}ey\":1}", "/key"),
            ("{\"u\u{17f}er\":1}", "/user"),
            (r#"{"a":{"b":1},"A":{"b":1}}"#, "/a/b"),
            (r#"{"a":{"b":1},"a":{}}"#, "/a/b"),
            (r#"{"a":{"b":1,"b":1}}"#, "/a/b"),
            ("", "/a"),
            ("1", "/a"),
            ("{", "/a"),
            ("{} {}", "/a"),
            (r#"{"a":1,}"#, "/a"),
            (r#"{"x":[}],"a":1}"#, "/a"),
            ("{\"x\":\"\u{1}\",\"a\":1}", "/a"),
            ("\u{feff}{}", "/a"),
        ] {
            assert_eq!(set(document, pointer), None, "{document} {pointer}");
        }
    }

    #[test]
    fn depth_needs_no_stack() {
        let [open, close] = ["[", "]"].map(|bracket| bracket.repeat(400_000));
        let document = format!(r#"{{"x":{open}{close},"a":1}}"#);
        assert_eq!(set(&document, "/a"), Some(format!(r#"{{"x":{open}{close},"a":"x\""}}"#)));
        assert_eq!(set(&format!(r#"{{"x":{open},"a":1}}"#), "/a"), None);
    }

    proptest! {
        #[test]
        fn the_result_is_the_document_with_the_value(
            names in prop::collection::btree_set("[a-c\"é]{0,2}", 0..4),
            wanted in "[a-c\"é]{1,2}",
            is_pretty in any::<bool>(),
        ) {
            let member = |name: String| (name, json!([{ "a": 1.5 }, "é"]));
            let members = Value::Object(names.into_iter().map(member).collect());
            let mut expected = json!({ "a": members, "z": [] });
            let mut text = expected.to_string();
            if is_pretty {
                text = serde_json::to_string_pretty(&expected).unwrap();
            }
            set_member(&mut text, &["a".to_owned(), wanted.clone()], "v").unwrap();
            expected["a"][&wanted] = json!("v");
            prop_assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        }
    }
}
