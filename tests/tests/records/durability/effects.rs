//! A run whose file changes take effect together: all of them are in force or none, as its report says.

use harness::{
    Catalogue, Executor, Home, HttpClient, Options, Process, Tool, call_in_background, eventually, execute,
    has_strace, times, under_strace,
};
use serde_json::{Value, json};
use std::path::PathBuf;

/// A command that replaces the file `old` of `/workspace` by the files `one` and `two`, waits for a file `go`, and answers
/// `{}`.
const REPLACE: &str = r#"(module
  (import "wasi_snapshot_preview1" "path_open"
    (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_unlink_file" (func $unlink (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_filestat_get"
    (func $stat (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "onetwoold{}go")
  (func $write (param $file i32) (param $at i32) (param $length i32)
    (i32.store (i32.const 128) (local.get $at))
    (i32.store (i32.const 132) (local.get $length))
    (if (call $fd_write (local.get $file) (i32.const 128) (i32.const 1) (i32.const 136))
      (then unreachable)))
  ;; A file that has its own name as its content.
  (func $create (param $name i32)
    ;; O_CREAT and O_EXCL, FD_WRITE
    (if (call $path_open (i32.const 3) (i32.const 0) (local.get $name) (i32.const 3) (i32.const 5)
          (i64.const 64) (i64.const 0) (i32.const 0) (i32.const 140))
      (then unreachable))
    (call $write (i32.load (i32.const 140)) (local.get $name) (i32.const 3)))
  (func (export "_start")
    (if (call $unlink (i32.const 3) (i32.const 6) (i32.const 3)) (then unreachable))
    (call $create (i32.const 0))
    (call $create (i32.const 3))
    (loop $wait
      (br_if $wait (call $stat (i32.const 3) (i32.const 0) (i32.const 11) (i32.const 2) (i32.const 192))))
    (call $write (i32.const 1) (i32.const 9) (i32.const 2))))"#;

/// System calls of a commit and of the journal. The server is killed at each of them in turn.
const CALLS: [&str; 5] = ["renameat2", "fsync", "mkdirat", "unlinkat", "fdatasync"];

fn catalogue() -> Catalogue {
    Catalogue::empty().add(Tool::command("replace", REPLACE).effects("atomic"))
}

/// Leaves only these files in the workspace, each with its own name as its content.
fn set_files(home: &Home, names: &[&str]) {
    for name in list_files(home) {
        std::fs::remove_file(home.workspace().join(name)).unwrap();
    }
    for name in names {
        std::fs::write(home.workspace().join(name), name).unwrap();
    }
}

fn list_files(home: &Home) -> Vec<String> {
    let entries = std::fs::read_dir(home.workspace()).unwrap();
    let mut names =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>();
    names.sort();
    names
}

/// The folders of the runs that are not over.
fn run_folders(home: &Home) -> Vec<PathBuf> {
    let folder = home.journal().with_file_name("effects").join("journal.db");
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn wait_until_removed(home: &Home) {
    eventually("the folder of each run is removed", || run_folders(home).is_empty().then_some(()));
}

#[test]
fn a_kill_at_any_step_leaves_the_changes_that_the_report_names() {
    if !has_strace() {
        return;
    }
    let catalogue = catalogue();
    // Compiled once, so that the tool is ready below. Changes in force are not kept for an undo.
    let options = Options::new().catalogue(&catalogue).set("effects.keep_days", 0);
    let mut home = Executor::start(options).kill();
    let mut kills = 0;
    for round in 0..times(4 * CALLS.len()) {
        set_files(&home, &["go", "old"]);
        let call = CALLS[round % CALLS.len()];
        let nth = 1 + round / CALLS.len();
        let inject = format!("--inject={call}:signal=KILL:when={nth}");
        let mut traced = Process::spawn("traced executor", &mut under_strace(&home, call, &inject));
        let Some(address) = traced.listens_on_unless_it_ends() else { continue };
        let params = execute("replace", json!({}));
        kills += usize::from(HttpClient::ask(address, "a2g/execute", &params).is_none());
        traced.kill_children();
        traced.wait_for_exit();
        let executor = Executor::start_in(home);
        let found = list_files(executor.home());
        let is_whole = found == ["go", "old"] || found == ["go", "one", "two"];
        assert!(is_whole, "{call} {nth}: {found:?}");
        // A run that had begun is not repeated, and one that had not runs now.
        let answer = executor.rpc("a2g/execute", &params);
        let expected = if answer.get("result").is_some() {
            &["go", "one", "two"][..]
        } else {
            // The guest's process may be the one that was killed: the server then reports a failure.
            let status = &answer["error"]["data"]["report"]["status"];
            assert!(status == "ABORTED" || status == "FAILURE", "{call} {nth}: {answer}");
            &["go", "old"]
        };
        assert_eq!(list_files(executor.home()), expected, "{call} {nth}: {answer}");
        wait_until_removed(executor.home());
        home = executor.kill();
    }
    assert!(kills > 0, "no process was killed during a run");
}

#[test]
fn a_conflict_leaves_every_file_as_it_is_and_fails_the_run() {
    let executor = Executor::start(Options::new().catalogue(&catalogue()));
    let home = executor.home();
    set_files(home, &["old"]);
    let answer = call_in_background(&executor, "a2g/execute", &execute("replace", json!({})));
    let has_staged = || {
        let staged = run_folders(home).into_iter().map(|folder| std::fs::read_dir(folder.join("upper")));
        // Other entries are there before the run has read anything.
        let is_content = |name: &str| name.parse::<u64>().is_ok();
        let names = staged.flatten().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_str().is_some_and(is_content)).map(drop).next()
    };
    eventually("the run has staged a file", has_staged);
    assert_eq!(list_files(home), ["old"], "nothing is changed during the run");
    std::fs::write(home.workspace().join("old"), "changed by another program").unwrap();
    std::fs::write(home.workspace().join("go"), "").unwrap();
    let answer: Value = answer.join().unwrap();
    let report = &answer["error"]["data"]["report"];
    assert_eq!(report["status"], "FAILURE", "{answer}");
    let error = report["error"].as_str().unwrap();
    assert!(
        error.contains("were not committed") && error.contains("`/workspace/old` has changed"),
        "{error}"
    );
    assert_eq!(report["usage"]["effects"], json!({ "mode": "atomic", "set_by": "tool" }));
    assert_eq!(list_files(home), ["go", "old"]);
    assert_eq!(executor.file("old").unwrap(), "changed by another program");
    wait_until_removed(home);
}

#[test]
fn a_run_that_does_not_succeed_leaves_no_change() {
    let executor = Executor::start(Options::new().catalogue(&catalogue()));
    set_files(executor.home(), &["old"]);
    let call = execute("replace", json!({}));
    let answer = call_in_background(&executor, "a2g/execute", &call);
    eventually("it runs", || (executor.state_of(&call) == "running").then_some(()));
    executor.rpc("a2g/cancel", &json!({ "intent_id": harness::id_of(&call) }));
    let answer: Value = answer.join().unwrap();
    assert_eq!(answer["error"]["data"]["report"]["status"], "ABORTED", "{answer}");
    assert_eq!(list_files(executor.home()), ["old"]);
    wait_until_removed(executor.home());
}
