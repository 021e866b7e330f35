//! `search_text` against a temporary directory.

use super::*;
use a2g_guest_sdk::testing;
use std::fs;

/// A folder with the given files.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    folder
}

/// Searches `folder` with further arguments.
fn run(folder: &Path, mut arguments: Value) -> Result<Value, ToolError> {
    if arguments.get("path").is_none() {
        arguments["path"] = json!(folder);
    }
    testing::invoke(search_text, arguments).result
}

/// Every match as `path:line:column:text`, the path relative to `folder`.
fn lines(folder: &Path, found: &Value) -> Vec<String> {
    let matches = found["matches"].as_array().unwrap();
    matches
        .iter()
        .map(|found| {
            let path = Path::new(found["path"].as_str().unwrap());
            let path = path.strip_prefix(folder).unwrap().display();
            let text = found["text"].as_str().unwrap();
            format!("{path}:{}:{}:{text}", found["line"], found["column"])
        })
        .collect()
}

fn check(folder: &Path, arguments: Value, expected: &[&str]) {
    let found = run(folder, arguments).unwrap();
    assert_eq!(lines(folder, &found), expected);
}

#[test]
fn lines_and_columns() {
    let folder = tree(&[("a.txt", "one\r\nzwölf two\ntwo two"), ("b/c.txt", "Two\n"), ("b.bin", "two\0")]);
    let folder = folder.path();
    let both = ["a.txt:2:7:zwölf two", "a.txt:3:1:two two"];
    check(folder, json!({ "pattern": "two" }), &both);
    check(folder, json!({ "pattern": "^one$" }), &["a.txt:1:1:one"]);
    check(
        folder,
        json!({ "pattern": "TWO", "case_sensitive": false }),
        &[both[0], both[1], "b/c.txt:1:1:Two"],
    );
    let found = run(folder, json!({ "pattern": "none" })).unwrap();
    let nothing = json!({ "matches": [], "files_searched": 2, "truncated": false });
    assert_eq!(found, nothing);
    let file = folder.join("b/c.txt");
    for (searched, relative) in [(folder, "b/c.txt"), (file.as_path(), "c.txt")] {
        let found = run(folder, json!({ "path": searched, "pattern": "T" })).unwrap();
        assert_eq!(lines(folder, &found), ["b/c.txt:1:1:Two"]);
        assert_eq!(found["matches"][0]["relative"], relative);
    }
}

#[test]
fn globs() {
    let folder = tree(&[("a.rs", "x"), ("src/b.rs", "x"), ("src/c.txt", "x"), ("target/d.rs", "x")]);
    let folder = folder.path();
    let check = |include: &[&str], exclude: &[&str], expected: &[&str]| {
        let arguments = json!({ "pattern": "x", "include": include, "exclude": exclude });
        check(folder, arguments, expected);
    };
    check(&["*.rs"], &["target"], &["a.rs:1:1:x", "src/b.rs:1:1:x"]);
    check(&["src/*"], &[], &["src/b.rs:1:1:x", "src/c.txt:1:1:x"]);
    check(&["./*.rs"], &[], &[]);
    check(&[], &["**/*.rs"], &["src/c.txt:1:1:x"]);
    check(&["**/{b,d}.rs"], &["target/**"], &["src/b.rs:1:1:x"]);
}

#[test]
fn context() {
    let folder = tree(&[("a", "1\n2\nx3\nx4\n5\n6\n7\n")]);
    let search = |max: usize| {
        let arguments = json!({ "pattern": "x", "context_lines": 2, "max_matches": max });
        run(folder.path(), arguments).unwrap()
    };
    let both = search(9);
    let context = |found: &Value, index: usize| {
        let found = &found["matches"][index];
        (found["before"].clone(), found["after"].clone())
    };
    assert_eq!(context(&both, 0), (json!(["1", "2"]), json!(["x4", "5"])));
    assert_eq!(context(&both, 1), (json!(["2", "x3"]), json!(["5", "6"])));
    assert_eq!(both["truncated"], false);
    let one = search(1);
    assert_eq!(context(&one, 0), (json!(["1", "2"]), json!(["x4", "5"])));
    assert_eq!(one["truncated"], true);
}

#[test]
fn the_number_of_matches_is_limited_as_requested() {
    let folder = tree(&[("a", "x\nx\n"), ("b", "x\n")]);
    let search = |max: usize| {
        let found = run(folder.path(), json!({ "pattern": "x", "max_matches": max })).unwrap();
        (lines(folder.path(), &found).len(), found["truncated"] == true)
    };
    assert_eq!(search(1), (1, true));
    assert_eq!(search(2), (2, true));
    assert_eq!(search(3), (3, false));
}

#[test]
fn a_long_line_is_shown_around_the_match() {
    let long = format!("{}needle{}", "ä".repeat(2_000), "z".repeat(2_000));
    let endless = format!("{}needle", "a".repeat(2 << 20));
    let folder = tree(&[("a", &long), ("b", &endless)]);
    let found = run(folder.path(), json!({ "pattern": "needle" })).unwrap();
    let [only] = found["matches"].as_array().unwrap().as_slice() else {
        panic!("one match: {found}");
    };
    assert_eq!(only["column"], 2_001);
    let text = only["text"].as_str().unwrap();
    assert!(text.starts_with("…ä") && text.contains("needle") && text.ends_with("z…"), "{text}");
    assert_eq!(found["truncated"], true, "the endless line was cut");
}

#[test]
fn links_are_not_followed() {
    let folder = tree(&[("a/b", "x")]);
    std::os::unix::fs::symlink(folder.path(), folder.path().join("a/loop")).unwrap();
    check(folder.path(), json!({ "pattern": "x" }), &["a/b:1:1:x"]);
}

#[test]
fn failures_are_named() {
    let folder = tree(&[("a", "x")]);
    let check = |arguments: Value, code: &str| {
        assert_eq!(run(folder.path(), arguments).unwrap_err().code(), code);
    };
    check(json!({ "pattern": "(" }), "invalid_pattern");
    check(json!({ "pattern": "((a{100}){100}){100}" }), "invalid_pattern");
    check(json!({ "pattern": "x", "include": ["a["] }), "invalid_glob");
    check(json!({ "pattern": "x", "context_lines": 11 }), "invalid_arguments");
    check(json!({ "pattern": "x", "max_matches": 0 }), "invalid_arguments");
    check(json!({ "pattern": "x", "path": folder.path().join("no") }), "not_found");
}

#[test]
fn progress_is_reported() {
    let folder = tree(&[("a", "x"), ("b", "x")]);
    let arguments = json!({ "path": folder.path(), "pattern": "x" });
    let record = testing::invoke(search_text, arguments).record;
    let percents: Vec<_> = record.progress.iter().map(|report| report.percent).collect();
    assert_eq!(percents, [None, Some(0.0), Some(50.0)]);
}

#[test]
fn the_manifest_matches_the_tool() {
    let differences = testing::manifest_differences(include_str!("../tool.toml"), &describe());
    assert!(differences.is_empty(), "{differences:?}");
}

#[test]
fn the_manifest_has_the_schema_of_the_result() {
    let table = testing::result_table(search_text);
    assert!(include_str!("../tool.toml").contains(&table), "{table}");
}
