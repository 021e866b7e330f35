//! The gate against vectors that this project did not write, and against `serde_json`.

use super::*;
use proptest::prelude::*;
use serde_json::Value;
use std::io::Write as _;
use std::path::Path;

fn verdict(body: &[u8]) -> Result<(), String> {
    match check(body, &JsonBounds::default()) {
        Ok(text) => {
            assert_eq!(text.as_bytes(), body);
            Ok(())
        }
        Err(Fault::Parse(message)) => Err(message),
        Err(other) => panic!("{other:?}"),
    }
}

/// Vectors that must parse as JSON, and that this gate refuses all the same: their objects hold
/// one key twice, and two readers could then see two different grants (threat W1).
const REFUSED_THOUGH_JSON: [&str; 2] =
    ["y_object_duplicated_key.json", "y_object_duplicated_key_and_value.json"];

#[test]
fn json_test_suite() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/vectors/json-test-suite");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        // A passing test shows nothing that `println!` prints.
        let _untold = writeln!(
            std::io::stderr(),
            "skipped: wire::strict_json::json_test_suite (no ../shared/vectors/json-test-suite)"
        );
        return;
    };
    let mut seen = 0;
    for entry in entries {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let answer = verdict(&std::fs::read(entry.path()).unwrap());
        match name.get(..2) {
            Some("y_") if REFUSED_THOUGH_JSON.contains(&name.as_str()) => {
                let message = answer.unwrap_err();
                assert!(message.starts_with("duplicate key"), "{name}: {message}");
            }
            Some("y_") => assert_eq!(answer, Ok(()), "{name}"),
            Some("n_") => assert!(answer.is_err(), "{name}"),
            // May do either; what counts is that the gate answers at all.
            Some("i_") => {}
            other => panic!("{name} {other:?}"),
        }
        seen += 1;
    }
    assert_eq!(seen, 318);
}

#[test]
fn what_is_refused_and_where() {
    let cases: [(&[u8], &str); 18] = [
        (b"", "not JSON: expected a value at line 1 column 1"),
        (b"{\n \"a\": 1,\n \"a\": 2}", "duplicate key `a` at line 3 column 2"),
        (br#"{"a":1,"\u0061":2}"#, "duplicate key `a` at line 1 column 8"),
        (br#"[{"x":{"y":[{"k":1,"k":2}]}}]"#, "duplicate key `k` at line 1 column 20"),
        ("{\"é\":0,\"é\":0}".as_bytes(), "duplicate key `\\u{e9}` at line 1 column 8"),
        (b"{\"a\":1,}", "not JSON: expected a key in double quotes at line 1 column 8"),
        (b"{'a':1}", "not JSON: expected a key in double quotes at line 1 column 2"),
        (b"{\"a\":{", "not JSON: expected a key in double quotes at line 1 column 7"),
        (b"\"\x01\"", "not JSON: expected no control character in a string at line 1 column 2"),
        (b"[1 2]", "not JSON: expected `,` or `]` at line 1 column 4"),
        (b"[01]", "not JSON: expected `,` or `]` at line 1 column 3"),
        (b"{\"a\" 1}", "not JSON: expected `:` at line 1 column 6"),
        (b"1 2", "not JSON: expected nothing after the value at line 1 column 3"),
        (b"\"a", "not JSON: expected the end of a string at line 1 column 3"),
        (br#""\ud800""#, "a lone surrogate, which is no character, at line 1 column 2"),
        (br#""\udc00\ud800""#, "a lone surrogate, which is no character, at line 1 column 2"),
        (b"\"\xff\"", "not UTF-8 at byte 1"),
        (b"\xef\xbb\xbf{}", "not JSON: expected a value at line 1 column 1"),
    ];
    for (body, message) in cases {
        assert_eq!(verdict(body), Err(message.to_owned()), "{:?}", String::from_utf8_lossy(body));
    }
}

#[test]
fn one_key_in_two_objects_is_no_duplicate() {
    for good in [r#"{"a":{"a":{"a":1}},"b":{"a":2}}"#, r#"[{"a":1},{"a":1}]"#, r#"{"a":"a","b":"a"}"#] {
        assert_eq!(verdict(good.as_bytes()), Ok(()), "{good}");
    }
}

#[test]
fn size_and_depth_are_refused_one_past_their_bounds() {
    let bounds = JsonBounds { max_bytes: 10, max_depth: 3, max_tree_bytes: 1 << 20 };
    let accepts = |body: &str| check(body.as_bytes(), &bounds).is_ok();
    assert!(accepts(r#""12345678""#) && !accepts(r#""123456789""#));
    assert!(accepts("[[[1]]]") && !accepts("[[[[1]]]]"));
    assert!(accepts(r#"[{"a":[]}]"#) && !accepts(r#"[[[{}]]]"#));
    let nested = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(verdict(nested(64).as_bytes()), Ok(()));
    let message = verdict(nested(65).as_bytes()).unwrap_err();
    assert_eq!(message, "nested deeper than 64 levels at line 1 column 65");
}

#[test]
fn a_message_echoes_little() {
    let key = "k".repeat(100_000);
    let message = verdict(format!(r#"{{"{key}":1,"{key}":2}}"#).as_bytes()).unwrap_err();
    assert!(message.len() < 200, "{message}");
}

#[test]
fn many_keys_are_told_apart_without_a_walk() {
    // A walk over 60,000 keys would take 1.8 thousand million comparisons.
    let members = |count: usize| (0..count).map(|n| format!(r#""{n:05}":0"#)).collect::<Vec<_>>().join(",");
    assert_eq!(verdict(format!("{{{}}}", members(60_000)).as_bytes()), Ok(()));
    for count in [15, 16, 17, 18, 1000] {
        for duplicate in [0, count / 2, count - 1] {
            let body = format!(r#"{{{},"{duplicate:05}":0}}"#, members(count));
            assert!(verdict(body.as_bytes()).unwrap_err().starts_with("duplicate key"), "{count}");
        }
        let inner = members(count);
        let body = format!(r#"{{"00000":{{{inner}}},"00001":{{{inner}}},"x":0}}"#);
        assert_eq!(verdict(body.as_bytes()), Ok(()), "{count}");
    }
}

#[test]
fn a_number_of_any_size_is_json() {
    for number in ["1e309", "-1e309", "1E+400", "18446744073709551616", "-0", "0.0e-0"] {
        assert_eq!(verdict(format!("[{number}]").as_bytes()), Ok(()), "{number}");
    }
}

/// JSON of any shape whose objects have no key twice.
fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f32>().prop_map(|n| Value::from(f64::from(n))),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((".{0,4}", inner), 0..24)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn all_that_serde_json_writes_passes(value in json(), pretty: bool) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        prop_assert_eq!(verdict(text.unwrap().as_bytes()), Ok(()));
    }

    /// Damaged JSON: whatever passes here is JSON to `serde_json` as well, and what it takes and
    /// the gate does not is refused for one of the gate's own reasons.
    #[test]
    fn the_gate_and_serde_json_agree_on_damaged_text(
        value in json(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), r#"[\[\]{}:,"\\0-9eE.+\-u tfn]?"#), 1..4),
    ) {
        let mut text: Vec<char> = value.to_string().chars().collect();
        for (at, replacement) in cuts {
            let at = at.index(text.len());
            text.splice(at..=at, replacement.chars());
            if text.is_empty() {
                text.push(' ');
            }
        }
        let text: String = text.into_iter().collect();
        let theirs = serde_json::from_str::<Value>(&text);
        match (verdict(text.as_bytes()), theirs) {
            (Ok(()), Ok(_)) | (Err(_), Err(_)) => {}
            (Ok(()), Err(error)) => prop_assert!(error.to_string().starts_with("number out of range"), "{error}"),
            (Err(message), Ok(_)) => prop_assert!(message.starts_with("duplicate key"), "{message}"),
        }
    }
}
