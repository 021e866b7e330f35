//! `read_file` against a temporary directory.

use super::*;
use a2g_guest_sdk::testing;
use std::fs;

fn run(arguments: Value) -> Result<Value, ToolError> {
    testing::invoke(read_file, arguments).result
}

/// A file with `content`, and its path.
fn file(content: &[u8]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, content).unwrap();
    (folder, path.to_str().unwrap().to_owned())
}

#[test]
fn a_small_file_is_read_completely() {
    let (_folder, path) = file("grüße".as_bytes());
    let expected = json!({
        "path": path, "content": "grüße", "encoding": "utf-8",
        "offset": 0, "bytes_read": 7, "size": 7, "eof": true,
    });
    assert_eq!(run(json!({ "path": path })), Ok(expected));
}

#[test]
fn a_limit_never_splits_a_character() {
    let (_folder, path) = file("aé€😀".as_bytes());
    let check = |offset: u64, limit: u64, content: &str, eof: bool| {
        let part = run(json!({ "path": path, "offset": offset, "limit": limit })).unwrap();
        assert_eq!((&part["content"], &part["eof"]), (&json!(content), &json!(eof)), "{part}");
        assert_eq!(part["bytes_read"], content.len());
    };
    check(0, 1, "a", false);
    check(0, 2, "a", false);
    check(0, 3, "aé", false);
    check(0, 9, "aé€", false);
    check(0, 10, "aé€😀", true);
    check(0, 11, "aé€😀", true);
    check(3, 1, "€", false);
    check(6, 1, "😀", true);
    check(10, 5, "", true);
    check(99, 5, "", true);
}

#[test]
fn pages_join_to_the_complete_file() {
    let text = "aé€😀\n".repeat(50);
    let (_folder, path) = file(text.as_bytes());
    for limit in 1..20 {
        let (mut offset, mut joined) = (0, String::new());
        loop {
            let part = run(json!({ "path": path, "offset": offset, "limit": limit })).unwrap();
            joined.push_str(part["content"].as_str().unwrap());
            offset += part["bytes_read"].as_u64().unwrap();
            if part["eof"] == true {
                break;
            }
        }
        assert_eq!(joined, text, "limit {limit}");
    }
}

#[test]
fn a_binary_file_is_read_as_base64() {
    let (_folder, path) = file(&[b'a', 0xff, 0xfe]);
    let error = run(json!({ "path": path })).unwrap_err();
    assert_eq!(error.code(), "not_utf8");
    assert_eq!(error.detail().unwrap()["offset"], 1);
    assert!(error.message().contains("base64") && error.message().contains(&path));

    let part = run(json!({ "path": path, "encoding": "base64", "limit": 2 })).unwrap();
    assert_eq!((&part["content"], &part["eof"]), (&json!("Yf8="), &json!(false)));
}

#[test]
fn a_file_that_ends_inside_a_character_is_binary() {
    let (_folder, path) = file(&[b'a', 0xe2, 0x82]);
    assert_eq!(run(json!({ "path": path })).unwrap_err().code(), "not_utf8");
}

#[test]
fn an_offset_inside_a_character_names_the_next_valid_offset() {
    let (_folder, path) = file("€a".as_bytes());
    let error = run(json!({ "path": path, "offset": 1 })).unwrap_err();
    assert_eq!(error.code(), "invalid_offset");
    assert_eq!(error.detail().unwrap()["next_offset"], 3);
}

#[test]
fn failures_are_named() {
    let (folder, path) = file(b"x");
    let check = |arguments: Value, code: &str| {
        assert_eq!(run(arguments).unwrap_err().code(), code);
    };
    check(json!({ "path": folder.path() }), "is_a_directory");
    check(json!({ "path": format!("{path}.no") }), "not_found");
    check(json!({ "path": path, "limit": 0 }), "invalid_arguments");
    check(json!({ "path": path, "limit": MAX_LIMIT + 1 }), "invalid_arguments");
    check(json!({ "path": path, "extra": 1 }), "invalid_arguments");
}

#[test]
fn the_manifest_matches_the_tool() {
    let differences = testing::manifest_differences(include_str!("../tool.toml"), &describe());
    assert!(differences.is_empty(), "{differences:?}");
}

#[test]
fn the_manifest_has_the_schema_of_the_result() {
    let table = testing::result_table(read_file);
    assert!(include_str!("../tool.toml").contains(&table), "{table}");
}
