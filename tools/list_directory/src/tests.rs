//! `list_directory` against a temporary directory.

use super::*;
use a2g_guest_sdk::testing;
use std::fs;

/// `a-b`, `a/x`, `a/y/z`, `b.txt` (3 bytes), `.hidden/secret` and a link to the folder itself.
fn tree() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir_all(path("a/y")).unwrap();
    fs::create_dir_all(path(".hidden")).unwrap();
    for name in ["a-b", "a/x", "a/y/z", ".hidden/secret"] {
        fs::write(path(name), "").unwrap();
    }
    fs::write(path("b.txt"), "abc").unwrap();
    std::os::unix::fs::symlink(folder.path(), path("loop")).unwrap();
    folder
}

fn run(arguments: Value) -> Result<Value, ToolError> {
    testing::invoke(list_directory, arguments).result
}

/// The relative path of each entry, whose absolute path has to lie below the listed directory.
fn paths(listed: &Value) -> Vec<&str> {
    let folder = listed["path"].as_str().unwrap();
    let mut paths = Vec::new();
    for entry in listed["entries"].as_array().unwrap() {
        let relative = entry["relative"].as_str().unwrap();
        assert_eq!(entry["path"], format!("{folder}/{relative}"));
        paths.push(relative);
    }
    paths
}

#[test]
fn one_directory_is_listed() {
    let folder = tree();
    let listed = run(json!({ "path": folder.path() })).unwrap();
    assert_eq!(paths(&listed), ["a", "a-b", "b.txt", "loop"]);
    assert_eq!(listed["truncated"], false);
    let [directory, _, file, link] = listed["entries"].as_array().unwrap().as_slice() else {
        panic!("four entries: {listed}");
    };
    assert_eq!((&directory["kind"], &directory["size"]), (&json!("directory"), &Value::Null));
    assert_eq!((&file["kind"], &file["size"]), (&json!("file"), &json!(3)));
    assert!(file["modified"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(link["kind"], "symlink");
}

#[test]
fn a_tree_is_listed_recursively() {
    let folder = tree();
    let list = |hidden: bool| {
        run(json!({ "path": folder.path(), "recursive": true, "include_hidden": hidden })).unwrap()
    };
    let visible = ["a", "a/x", "a/y", "a/y/z", "a-b", "b.txt", "loop"];
    assert_eq!(paths(&list(false)), visible);
    assert_eq!(paths(&list(true)), [&[".hidden", ".hidden/secret"][..], &visible].concat());
}

#[test]
fn a_truncated_listing_is_a_prefix_of_the_full_listing() {
    let folder = tree();
    let list = |limit: usize| {
        run(json!({ "path": folder.path(), "recursive": true, "max_entries": limit })).unwrap()
    };
    let whole = list(7);
    assert_eq!(whole["truncated"], false);
    for limit in 1..7 {
        let part = list(limit);
        assert_eq!(paths(&part), paths(&whole)[..limit]);
        assert_eq!(part["truncated"], true, "limit {limit}");
    }
}

#[test]
fn failures_are_named() {
    let folder = tree();
    let check = |arguments: Value, code: &str| {
        assert_eq!(run(arguments).unwrap_err().code(), code);
    };
    check(json!({ "path": folder.path().join("no") }), "not_found");
    check(json!({ "path": folder.path().join("b.txt") }), "not_a_directory");
    check(json!({ "path": "/", "max_entries": 0 }), "invalid_arguments");
}

#[test]
fn the_manifest_matches_the_tool() {
    let differences = testing::manifest_differences(include_str!("../tool.toml"), &describe());
    assert!(differences.is_empty(), "{differences:?}");
}

#[test]
fn the_manifest_has_the_schema_of_the_result() {
    let table = testing::result_table(list_directory);
    assert!(include_str!("../tool.toml").contains(&table), "{table}");
}
