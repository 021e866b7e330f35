//! `run_shell` on the files of this machine, with tools that answer here.

use super::*;
use a2g_guest_sdk::{Descriptor, testing};
use bashkit::FileSystem;
use std::path::{Path, PathBuf};

fn run(arguments: Value) -> Result<Value, ToolError> {
    testing::invoke(run_shell, arguments).result
}

/// The output of a script, which has to end with status 0.
fn printed(script: &str) -> String {
    let ended = run(json!({ "script": script })).unwrap();
    assert_eq!(ended["exit_code"], 0, "{script}: {ended}");
    ended["stdout"].as_str().unwrap().to_owned()
}

/// The messages of a script, which has to end with this status.
fn reported(script: &str, status: i32) -> String {
    let ended = run(json!({ "script": script })).unwrap();
    assert_eq!(ended["exit_code"], status, "{script}: {ended}");
    ended["stderr"].as_str().unwrap().to_owned()
}

#[test]
fn output_messages_and_status_are_the_result() {
    let ended = run(json!({ "script": "echo out; echo err >&2; exit 3" }));
    assert_eq!(ended, Ok(json!({ "stdout": "out\n", "stderr": "err\n", "exit_code": 3 })));
    assert_eq!(printed(""), "");
}

#[test]
fn input_is_text_or_json() {
    let check = |input: Value, expected: &str| {
        let ended = run(json!({ "script": "cat", "input": input })).unwrap();
        assert_eq!(ended["stdout"], expected);
    };
    check(json!("a\nb"), "a\nb");
    check(json!({ "a": [1, null] }), "{\"a\":[1,null]}\n");
    check(json!(7), "7\n");
    check(Value::Null, "");
}

#[test]
fn variables_of_the_environment_are_set() {
    let ended = run(json!({ "script": "echo $A; env | grep ^A=", "env": { "A": "b c" } })).unwrap();
    assert_eq!(ended["stdout"], "b c\nA=b c\n");
    for name in ["", "1a", "a-b", "a=b", "ä"] {
        let error = run(json!({ "script": "", "env": { name: "x" } })).unwrap_err();
        assert_eq!(error.code(), "invalid_arguments", "{name}");
    }
}

#[test]
fn a_syntax_error_has_its_line_and_nothing_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made").to_str().unwrap().to_owned();
    for (script, line) in [("if true; then echo x\n", 2), ("echo (", 1), ("for; do", 1), ("echo 'a", 1)] {
        let error = run(json!({ "script": format!("touch {path}\n{script}") })).unwrap_err();
        assert_eq!(error.code(), "syntax_error", "{script}: {error}");
        let found = error.detail().unwrap()["line"].as_u64().unwrap();
        assert!((line + 1..=line + 2).contains(&found), "{script}: {error}");
        assert!(!Path::new(&path).exists(), "{script}");
    }
}

#[test]
fn a_second_script_finds_what_the_first_has_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    printed(&format!("cd {path}; x=1; list=(a b); twice() {{ echo $(($1 * 2)); }}; export Y=2"));
    assert_eq!(printed("pwd; echo $x ${list[1]} $Y; twice 4"), format!("{path}\n1 b 2\n8\n"));
    assert_eq!(reported("exit 4", 4), "");
    run(json!({ "script": "(" })).unwrap_err();
    assert_eq!(printed("echo $x"), "1\n");
}

#[test]
fn files_are_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let script = "mkdir -p a/b; echo one > a/f; echo two >> a/f; cp a/f a/g; mv a/g a/b/; ls a a/b; cat < a/b/g; \
                  rm -r a/b; [ -e a/b ] || echo gone; touch -d @86400 a/f; date -u -r a/f +%F; stat -c %s a/f";
    let expected = "a:\nb\nf\n\na/b:\ng\none\ntwo\ngone\n1970-01-02\n8\n";
    assert_eq!(printed(&format!("cd {path}; {script}")), expected);
    assert_eq!(std::fs::read_to_string(folder.path().join("a/f")).unwrap(), "one\ntwo\n");
    assert!(reported(&format!("cat {path}/none"), 1).ends_with("none: No such file or directory\n"));
    assert!(reported(&format!("cat {path}"), 1).ends_with("Is a directory\n"));
    let links = reported(&format!("cd {path}; ln -s a/f link"), 1);
    assert!(links.contains("copy the file"), "{links}");
}

#[test]
fn other_tools_are_called() {
    let schema = json!({ "type": "object", "properties": {
        "path": { "type": "string" },
        "max_matches": { "type": "integer" },
        "include": { "type": "array" },
        "deep": { "type": "boolean" },
    }});
    let search = Descriptor {
        name: "search".to_owned(),
        version: "1.0.0".to_owned(),
        description: "Searches.".to_owned(),
        arguments_schema: schema.to_string(),
    };
    let tools = testing::Tools::new()
        .described_tool(&search, |arguments| Ok(json!({ "saw": arguments })))
        .denied("write_file", "no rule allows `write_file`");
    assert_eq!(printed("tool"), "search\tSearches.\nwrite_file\t\n");
    let check = |words: &str, expected: Value| {
        let output = printed(&format!("printf '\"in\"' | tool search {words} | jq -c .saw"));
        let found = a2g_guest_sdk::serde_json::from_str::<Value>(&output).unwrap();
        assert_eq!(found, expected, "{words}");
    };
    check("", json!({}));
    check("'{\"path\": \"/a\"}'", json!({ "path": "/a" }));
    check("--path 7 --max-matches 7 --deep", json!({ "path": "7", "max_matches": 7, "deep": true }));
    check("--path=/a=b --include a --include b", json!({ "path": "/a=b", "include": ["a", "b"] }));
    check("--include '[\"a\"]' --other '{\"x\": 1}'", json!({ "include": ["a"], "other": { "x": 1 } }));
    check("--path -", json!({ "path": "\"in\"" }));
    assert_eq!(printed("echo '{\"path\": \"p\"}' | tool search - | jq -r .saw.path"), "p\n");
    assert!(printed("tool --describe search").contains("max_matches"));
    assert!(reported("tool write_file '{}'", 1).starts_with("tool write_file: no rule allows"));
    assert!(reported("tool none", 1).contains("unknown_tool"));
    assert!(reported("tool search '[1]'", 2).contains("no JSON object"));
    assert!(reported("tool search a b", 2).contains("usage: "));
    let made = tools.calls().len();
    assert_eq!(printed("tool none || echo status $?"), "status 1\n");
    assert!(tools.calls().len() >= made);
}

#[test]
fn absent_commands_say_what_to_use() {
    for (script, words) in [
        ("curl https://example.test", "tool http_fetch"),
        ("wget x", "tool http_fetch"),
        ("python3 -c 1", "tool run_python"),
        ("pip install x", "nothing can be installed"),
        ("sudo ls", "run the command itself"),
        ("git status", "no version control"),
        ("ssh host", "no network"),
        ("echo 1/3 | bc -l", "use `awk"),
    ] {
        assert!(reported(script, 127).contains(words), "{script}");
    }
    for script in ["echo x > /dev/tcp/example.test/80", "exec 3<>/dev/tcp/127.0.0.1/80", "cat < /dev/udp/a/1"]
    {
        let ended = run(json!({ "script": script })).unwrap();
        assert!(ended["stderr"].as_str().unwrap().contains("tool http_fetch"), "{script}: {ended}");
    }
}

#[test]
fn what_exceeds_the_shell_is_refused() {
    let error = run(json!({ "script": "f() { f; }; f" })).unwrap_err();
    assert_eq!(error.code(), "shell_limit", "{error}");
    let error = run(json!({ "script": "x=$(printf '%9999s' ''); for i in {1..500}; do echo \"$x\"; done" }))
        .unwrap_err();
    assert_eq!(error.code(), "output_too_large", "{error}");
    assert!(error.message().contains("4194304 bytes"), "{error}");
    let error = run(json!({ "script": "echo {1..3}\nfor i in {1..60000}; do echo; done" })).unwrap_err();
    assert_eq!(error.code(), "shell_limit", "{error}");
    assert!(error.message().starts_with("line 2: `{1..60000}` has more than 10000 values"), "{error}");
    assert!(printed("echo {1..10000} {0..100000..50}").ends_with("99950 100000\n"));
    assert_eq!(printed("echo still"), "still\n");
}

/// Waits for a file operation.
fn wait<T>(operation: impl Future<Output = bashkit::Result<T>>) -> bashkit::Result<T> {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(operation)
}

#[test]
fn files_without_a_granted_tmp_have_one_in_memory() {
    let folders = ["/usr/share", "/", "/etc"].map(PathBuf::from);
    let files = files::Files::new(folders.to_vec());
    assert_eq!(files.start(), Path::new("/usr/share"));
    let names = |path: &str| {
        let entries = wait(files.read_dir(Path::new(path))).unwrap();
        entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>().join(" ")
    };
    assert_eq!((names("/"), names("/usr")), ("etc tmp usr".to_owned(), "share".to_owned()));
    wait(files.write_file(Path::new("/tmp/a/../b"), b"x")).unwrap();
    assert_eq!(names("/tmp"), "b");
    assert_eq!(wait(files.read_file(Path::new("/tmp/b"))).unwrap(), b"x");
    assert!(wait(files.remove(Path::new("/usr"), true)).is_err());
    assert_eq!(files::Files::new(Vec::new()).start(), Path::new("/tmp"));

    let folder = tempfile::tempdir().unwrap();
    let granted = files::Files::new(vec![folder.path().to_owned()]);
    wait(granted.write_file(&folder.path().join("x"), b"x")).unwrap();
    assert!(folder.path().join("x").exists());
}

#[test]
fn devices_are_read_and_written() {
    let files = files::Files::new(Vec::new());
    let read = |path: &str| wait(files.read_file(Path::new(path))).unwrap();
    assert_eq!(read("/dev/null"), b"");
    assert_eq!(read("/dev/../dev/zero"), vec![0; 1 << 20]);
    assert_eq!(read("/dev/urandom").len(), 1 << 20);
    assert_ne!(read("/dev/urandom"), read("/dev/random"));
    wait(files.write_file(Path::new("/dev/null"), b"x")).unwrap();
    wait(files.append_file(Path::new("/dev/null"), b"x")).unwrap();
    assert_eq!(read("/dev/null"), b"");
    assert!(wait(files.remove(Path::new("/dev/null"), false)).is_err());

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let script =
        "cat /dev/null; echo x > f; grep x f /dev/null; cp /dev/null q; stat -c %s q; echo y > /dev/null";
    assert_eq!(printed(&format!("cd {path}; {script}")), "f:x\n0\n");
}

#[test]
fn modes_are_kept_by_the_shell() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let script = "printf '#!/bin/bash\necho ran $1\n' > s; [ -x s ] || echo no; chmod +x s; ./s a; mv s t; ./t b; \
                  sed -i 's/ran/RAN/' t; ./t c; rm t; touch t; stat -c %a t";
    assert_eq!(printed(&format!("cd {path}; {script}")), "no\nran a\nran b\nRAN c\n644\n");
}

#[test]
fn the_manifest_matches_the_tool() {
    let differences = testing::manifest_differences(include_str!("../tool.toml"), &describe());
    assert!(differences.is_empty(), "{differences:?}");
}

#[test]
fn the_manifest_has_the_schema_of_the_result() {
    let table = testing::result_table(run_shell);
    assert!(include_str!("../tool.toml").contains(&table), "{table}");
}
