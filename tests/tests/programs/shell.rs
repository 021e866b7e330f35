//! The shell of the catalogue: pipelines that have to print what GNU bash prints. Scripts that mean harm are in
//! `hostile::programs`.

use harness::*;
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Paragraphs, each with a line `#- NAME` before it. The first one makes the files of the others.
const PIPELINES: &str = include_str!("../../guests/shell/pipelines.sh");
/// The standard input of each pipeline.
const INPUT: &str = "text\n";
const MEMORY_MB: u64 = 128;

fn start() -> Executor {
    Executor::start(Options::new().catalogue(&Catalogue::empty().copy(SHELL)))
}

fn run(executor: &Executor, script: &str) -> Value {
    let arguments = json!({ "script": script, "input": INPUT });
    executor.rpc("a2g/execute", &execute_within(SHELL, arguments, MEMORY_MB, 60))
}

/// The report of a run, also of one that failed.
fn report(answer: &Value) -> &Value {
    answer.get("result").or(answer.pointer("/error/data/report")).unwrap_or(&Value::Null)
}

/// The name and the script of each pipeline.
fn pipelines() -> impl Iterator<Item = (&'static str, &'static str)> {
    PIPELINES.split("#- ").filter_map(|paragraph| paragraph.split_once('\n'))
}

/// True if a program is installed here. Otherwise what needs it is named as skipped.
fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_found = found.is_ok();
    if !is_found {
        print_skipped(&format!("{program} is not installed"));
    }
    is_found
}

#[test]
fn pipelines_print_what_bash_prints() {
    if !is_installed("bash") {
        return;
    }
    let has_jq = is_installed("jq");
    let executor = start();
    let folder = tempfile::tempdir().expect("a temp folder");
    let mut wrong = Vec::new();
    for (name, script) in pipelines() {
        if script.contains("jq ") && !has_jq {
            continue;
        }
        let mut bash = Command::new("bash");
        bash.args(["-c", script]).current_dir(folder.path()).env("LC_ALL", "C").env("TZ", "UTC");
        let ended_bash = run_to_end(bash, INPUT.as_bytes());
        let expected = (String::from_utf8(ended_bash.stdout).expect("UTF-8"), ended_bash.status.code());
        let answer = run(&executor, script);
        let ended = &answer["result"]["result"];
        let status = ended["exit_code"].as_i64().and_then(|status| i32::try_from(status).ok());
        let found = (ended["stdout"].as_str().unwrap_or_default().to_owned(), status);
        if found != expected {
            wrong.push(format!(
                "{name}\n  bash {expected:?}\n  here {found:?} {}",
                answer["error"]["message"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{} pipelines differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(pipelines().count() > 50);
}

#[test]
fn denied_files_are_in_the_report() {
    let executor = start();
    let answer = run(&executor, "cat /etc/passwd; echo x > /etc/x; ls /; echo kept > /tmp/x && cat /tmp/x");
    let ended = &answer["result"]["result"];
    assert_eq!(ended["stdout"], "tmp\nworkspace\nkept\n", "{answer}");
    assert_eq!(ended["stderr"].as_str().map(|text| text.matches("in /workspace only").count()), Some(2));
    assert!(report(&answer)["usage"]["denied"].to_string().contains("/etc/passwd"), "{answer}");
}

#[test]
fn a_syntax_error_changes_nothing() {
    let executor = start();
    let answer = run(&executor, "touch made\nif true; then\n  echo 'x'\n");
    let refused = &report(&answer)["tool_error"];
    assert_eq!(refused["code"], "syntax_error", "{answer}");
    assert!(refused["detail"]["line"].is_u64(), "{answer}");
    assert_eq!(executor.file("made"), None);
}

/// A script waits without using the processor.
#[test]
fn a_sleeping_script_uses_no_processor() {
    let executor = start();
    let begin = Instant::now();
    let answer = run(&executor, "sleep 1; echo slept");
    assert_eq!(answer["result"]["result"]["stdout"], "slept\n", "{answer}");
    assert!(begin.elapsed() >= Duration::from_secs(1));
    let usage = &report(&answer)["metrics"];
    let share = usage["cpu_percent"].as_f64().expect("a number");
    assert!(share < 50.0, "{usage}");
}
