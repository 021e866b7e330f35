//! `write_file` against a temporary directory.

use super::*;
use a2g_guest_sdk::testing;

fn run(arguments: Value) -> Result<Value, ToolError> {
    testing::invoke(write_file, arguments).result
}

fn code(arguments: Value) -> String {
    run(arguments).unwrap_err().code().to_owned()
}

#[test]
fn a_write_reports_the_exact_bytes_and_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let path = path.to_str().unwrap();
    let arguments = json!({ "path": path, "content": "grüße" }).to_string();
    let expected = format!(r#"{{"bytes_written":7,"path":"{path}"}}"#);
    assert_eq!(invoke(&arguments), Ok(expected));
    assert_eq!(fs::read_to_string(path).unwrap(), "grüße");
}

#[test]
fn modes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let write = |content: &str, mode: &str| run(json!({ "path": path, "content": content, "mode": mode }));
    write("one", "create").unwrap();
    let again = write("two", "create").unwrap_err();
    assert_eq!(again.code(), "already_exists");
    assert!(again.message().contains("a.txt"), "{again}");
    write("two", "append").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "onetwo");
    write("3", "overwrite").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "3");
    assert_eq!(write("x", "replace").unwrap_err().code(), "invalid_arguments");
}

#[test]
fn base64_is_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    let write = |content: &str| json!({ "path": path, "content": content, "encoding": "base64" });
    assert_eq!(run(write("AP8=")).unwrap()["bytes_written"], 2);
    assert_eq!(fs::read(&path).unwrap(), [0, 255]);
    assert_eq!(code(write("not base64")), "invalid_base64");
}

#[test]
fn parents_are_created_only_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x/y/a.txt");
    let write = |create: bool| json!({ "path": path, "content": "", "create_parents": create });
    let refused = run(write(false)).unwrap_err();
    let parent = path.parent().unwrap().display();
    let told = format!("the folder `{parent}` does not exist: set `create_parents` to true to create it");
    assert_eq!((refused.code(), refused.message()), ("not_found", &*told));
    assert_eq!(refused.detail(), Some(&json!({ "path": path })));
    std::os::unix::fs::symlink(folder.path().join("nothing/x"), folder.path().join("link")).unwrap();
    let link = run(json!({ "path": folder.path().join("link"), "content": "" })).unwrap_err();
    assert!(link.message().ends_with("link`: No such file or directory"), "{link}");
    run(write(true)).unwrap();
    run(write(true)).unwrap();
    assert!(path.exists());
    let directory = json!({ "path": folder.path(), "content": "" });
    assert_eq!(code(directory), "is_a_directory");
}

#[test]
fn the_manifest_matches_the_tool() {
    let differences = testing::manifest_differences(include_str!("../tool.toml"), &describe());
    assert!(differences.is_empty(), "{differences:?}");
}

#[test]
fn the_manifest_has_the_schema_of_the_result() {
    let table = testing::result_table(write_file);
    assert!(include_str!("../tool.toml").contains(&table), "{table}");
}
