//! Canonical JSON for hashes and comparisons: the JSON Canonicalization Scheme (RFC 8785).
//!
//! The scheme represents numbers as doubles. Two integers beyond 2^53 - 1 can have the same canonical form, so such
//! integers are rejected. Other texts with the same canonical form, such as `1`, `1.0` and `1e0`, are the same value to
//! every reader of I-JSON (RFC 7493).

use serde_json::{Map, Number, Value};

/// 2^53 - 1, the largest integer whose neighbours are both representable as doubles.
const MAX_EXACT_INTEGER: u64 = (1 << 53) - 1;

/// An integer that has no exact canonical form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is an integer beyond 2^53 - 1, which canonical JSON (RFC 8785) cannot tell from its neighbours: send it as a string"
)]
pub(super) struct CanonicalError(String);

pub(super) fn canonicalize(object: &Map<String, Value>) -> Result<Vec<u8>, CanonicalError> {
    object.values().try_for_each(check_exact)?;
    // The library fails for numbers that are not finite and for keys that are not strings. JSON has neither.
    serde_json_canonicalizer::to_vec(object).map_err(|error| CanonicalError(error.to_string()))
}

/// Rejects integers that a double cannot distinguish from their neighbours.
fn check_exact(value: &Value) -> Result<(), CanonicalError> {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
        Value::Number(number) if is_exact(number) => Ok(()),
        Value::Number(number) => Err(CanonicalError(number.to_string())),
        Value::Array(items) => items.iter().try_for_each(check_exact),
        Value::Object(object) => object.values().try_for_each(check_exact),
    }
}

fn is_exact(number: &Number) -> bool {
    let integer = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
    integer.is_none_or(|integer| integer <= MAX_EXACT_INTEGER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn canonical_form(text: &str) -> Result<String, CanonicalError> {
        canonicalize(&serde_json::from_str(text).unwrap()).map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn the_test_vectors_of_rfc_8785_match() {
        let Some(folder) = crate::vectors::folder("rfc8785") else { return };
        let mut vectors = 0;
        for entry in std::fs::read_dir(folder.join("input")).unwrap() {
            let path = entry.unwrap().path();
            let input: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let output =
                std::fs::read_to_string(folder.join("output").join(path.file_name().unwrap())).unwrap();
            // One vector is an array; as a member it has the same text.
            let mut object = Map::new();
            object.insert("v".to_owned(), input);
            let text = String::from_utf8(canonicalize(&object).unwrap()).unwrap();
            assert_eq!(text, format!("{{\"v\":{}}}", output.trim_end()), "{}", path.display());
            vectors += 1;
        }
        assert_eq!(vectors, 6);
    }

    #[test]
    fn equal_numbers_have_one_form_and_inexact_integers_are_refused() {
        assert_eq!(
            canonical_form(r#"{"a":[1.0,1e0,-0,1E21,1e20]}"#).unwrap(),
            r#"{"a":[1,1,0,1e+21,100000000000000000000]}"#
        );
        assert_eq!(canonical_form(r#"{"a":9007199254740991}"#).unwrap(), r#"{"a":9007199254740991}"#);
        assert_eq!(canonical_form(r#"{"a":-9007199254740991}"#).unwrap(), r#"{"a":-9007199254740991}"#);
        for text in ["9007199254740992", "-9007199254740992", "18446744073709551615", "-9223372036854775808"]
        {
            let error = canonical_form(&format!(r#"{{"a":[{{"b":{text}}}]}}"#)).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(".{0,4}", inner, 0..4)
                    .prop_map(|map| map.into_iter().collect::<Map<_, _>>().into()),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_canonical_form_parses_to_a_value_with_the_same_form(value in json()) {
            let mut object = Map::new();
            object.insert("v".to_owned(), value);
            let text = canonicalize(&object).unwrap();
            // An integer of more than 53 bits can only come from a double here, and reads as an integer.
            let again: Map<String, Value> = serde_json::from_slice(&text).unwrap();
            if let Ok(twice) = canonicalize(&again) {
                prop_assert_eq!(twice, text);
            }
        }
    }
}
