//! JSON that is passed on without being interpreted: a tool's result.
//!
//! It is stored as text: a tree would take up to ninety times as much memory, and no code here needs the members.

use crate::fault::Fault;
use crate::strict_json::{JsonBounds, check_finite, compact};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::fmt;
use std::sync::Arc;

/// Maximum nesting depth of objects and arrays. A report contains the value two levels down, and parsers of a report
/// stop at 64.
const MAX_DEPTH: usize = 48;

/// One JSON value as text on one line: without white space between its tokens, equal keys in an object, or numbers that
/// a double cannot represent. Clones share the text.
#[derive(Clone)]
pub struct JsonText(Arc<RawValue>);

impl JsonText {
    /// Parses and checks a text.
    ///
    /// # Errors
    /// [`Fault::Parse`] with the problem and its position.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let bounds = JsonBounds { max_bytes: usize::MAX, max_depth: MAX_DEPTH, max_tree_bytes: usize::MAX };
        let text = compact(check_finite(text.as_bytes(), &bounds)?.trim()).into_owned();
        let raw = RawValue::from_string(text).map_err(|error| Fault::Parse(error.to_string()))?;
        Ok(Self(raw.into()))
    }

    /// The JSON value `null`.
    #[must_use]
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned().into())
    }

    /// The value as JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// `true` for an object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.as_str().starts_with('{')
    }

    /// The members of an object; empty for any other value.
    #[must_use]
    pub fn to_map(&self) -> Map<String, Value> {
        serde_json::from_str(self.as_str()).unwrap_or_default()
    }

    /// An object with the value as its only member. `name` must not need escapes.
    #[must_use]
    pub fn wrap_as_member(&self, name: &str) -> Self {
        let object = RawValue::from_string(format!("{{\"{name}\":{}}}", self.as_str()));
        object.map_or_else(|_never_fails| Self::null(), |raw| Self(raw.into()))
    }

    /// The text of a string value; `None` for any other value.
    #[must_use]
    pub fn parse_string(&self) -> Option<String> {
        let text = self.as_str();
        text.starts_with('"').then(|| serde_json::from_str(text).ok())?
    }
}

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<Value> for JsonText {
    /// Serializes a value that was made in this process.
    fn from(value: Value) -> Self {
        serde_json::value::to_raw_value(&value)
            .map_or_else(|_never_fails| Self::null(), |raw| Self(raw.into()))
    }
}

impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonText {
    /// Deserializes a text that was checked when it was written.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self(raw.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parsing_removes_white_space_and_keeps_the_value() {
        for (written, expected) in [
            ("{ \"a\" :\n[1, 2.50,\t\"b c\\\"d \\\\\" ] }\r\n", r#"{"a":[1,2.50,"b c\"d \\"]}"#),
            ("  null ", "null"),
            ("\"x y\"", "\"x y\""),
            (r#"["\\", " ", "\" "]"#, r#"["\\"," ","\" "]"#),
            ("-0.0e-5", "-0.0e-5"),
            ("\"\u{2028} é\"", "\"\u{2028} é\""),
        ] {
            let text = JsonText::parse(written).unwrap();
            assert_eq!(text.as_str(), expected);
            let (value, again): (Value, Value) =
                (serde_json::from_str(written).unwrap(), serde_json::from_str(text.as_str()).unwrap());
            assert_eq!(value, again);
        }
    }

    #[test]
    fn texts_that_some_parsers_reject_are_refused() {
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        for refused in ["", "{", "1 2", r#"{"a":1,"\u0061":2}"#, "1e400", "-1e999", "\"\\ud800\"", &deep(49)]
        {
            assert!(JsonText::parse(refused).is_err(), "{refused}");
        }
        assert!(JsonText::parse(&deep(48)).is_ok());
        assert!(JsonText::parse("123456789012345678901234567890").is_ok());
    }

    #[test]
    fn a_text_is_embedded_in_other_messages_unchanged() {
        let text = JsonText::parse("{\"n\": 1.50}").unwrap();
        #[derive(Serialize, Deserialize)]
        struct Wrapper {
            result: JsonText,
        }
        let written = serde_json::to_string(&Wrapper { result: text.clone() }).unwrap();
        assert_eq!(written, r#"{"result":{"n":1.50}}"#);
        assert_eq!(serde_json::from_str::<Wrapper>(&written).unwrap().result, text);
        assert_eq!((text.is_object(), text.parse_string()), (true, None));
        assert_eq!(JsonText::from(json!("a\"b")).parse_string().as_deref(), Some("a\"b"));
    }
}
