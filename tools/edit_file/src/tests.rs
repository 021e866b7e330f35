//! `edit_file` against a temporary directory.

use super::*;
use a2g_guest_sdk::testing;

/// Edits a file with `content`, and returns the result with what the file holds then.
fn edit(content: &str, old: &str, new: &str, all: bool) -> (Result<Value, ToolError>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, content).unwrap();
    let arguments = json!({ "path": path, "old_text": old, "new_text": new, "replace_all": all });
    let result = testing::invoke(edit_file, arguments).result;
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 1, "no temporary file stays behind");
    (result, fs::read_to_string(&path).unwrap())
}

#[test]
fn one_occurrence_is_replaced() {
    let (result, content) = edit("let a = 1;\n", "1", "42", false);
    let result = result.unwrap();
    assert_eq!((&result["replacements"], &result["bytes_written"]), (&json!(1), &json!(12)));
    assert_eq!(content, "let a = 42;\n");
}

#[test]
fn all_occurrences_are_replaced_when_asked() {
    let (result, content) = edit("aaa b a", "a", "x", true);
    assert_eq!(result.unwrap()["replacements"], 4);
    assert_eq!(content, "xxx b x");
    let (result, content) = edit("aaa", "aa", "x", true);
    assert_eq!(result.unwrap()["replacements"], 1);
    assert_eq!(content, "xa");
}

#[test]
fn an_ambiguous_edit_is_refused_without_a_change() {
    let check = |content: &str, old: &str, code: &str| {
        let (result, after) = edit(content, old, "x", false);
        let error = result.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert_eq!(after, content);
        error
    };
    check("abc", "z", "not_found");
    check("abc", "", "empty_old_text");
    check("aaa", "aa", "ambiguous");
    check("ääh", "ä", "ambiguous");
    let error = check("x = 1\ny = 2\nx = 1\n", "x = 1", "ambiguous");
    assert!(error.message().contains("2 times, on lines 1, 3;"), "{error}");
    let detail = error.detail().unwrap();
    assert_eq!((&detail["occurrences"], &detail["lines"]), (&json!(2), &json!([1, 3])));
}

#[test]
fn leftover_files_of_killed_runs_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let leftover = folder.path().join(".a2g-edit-0.a.txt");
    fs::write(&path, "a").unwrap();
    fs::write(&leftover, "half").unwrap();
    let arguments = json!({ "path": path, "old_text": "a", "new_text": "b" });
    testing::invoke(edit_file, arguments).result.unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "b");
    assert_eq!(fs::read_to_string(&leftover).unwrap(), "half");
}

#[test]
fn only_regular_text_files_are_edited() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("binary"), [0xff, b'a']).unwrap();
    fs::File::create(path("large")).unwrap().set_len(MAX_BYTES + 1).unwrap();
    std::os::unix::fs::symlink(path("binary"), path("link")).unwrap();
    let check = |name: &str, code: &str| {
        let arguments = json!({ "path": path(name), "old_text": "a", "new_text": "b" });
        let error = testing::invoke(edit_file, arguments).result.unwrap_err();
        assert_eq!(error.code(), code);
        assert!(error.message().contains(path(name).to_str().unwrap()), "{error}");
    };
    check("", "is_a_directory");
    check("binary", "not_utf8");
    check("large", "file_too_large");
    check("link", "symlink");
    check("none", "not_found");
}

#[test]
fn the_manifest_matches_the_tool() {
    let differences = testing::manifest_differences(include_str!("../tool.toml"), &describe());
    assert!(differences.is_empty(), "{differences:?}");
}

#[test]
fn the_manifest_has_the_schema_of_the_result() {
    let table = testing::result_table(edit_file);
    assert!(include_str!("../tool.toml").contains(&table), "{table}");
}
