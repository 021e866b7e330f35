//! The shell of the catalogue: pipelines that have to print what GNU bash prints, and scripts that mean harm.

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

/// Runs a script for at most so many seconds.
fn run_for(executor: &Executor, script: &str, seconds: u64) -> Value {
    let arguments = json!({ "script": script, "input": INPUT });
    executor.rpc("a2g/execute", &execute_within(SHELL, arguments, MEMORY_MB, seconds))
}

fn run(executor: &Executor, script: &str) -> Value {
    run_for(executor, script, 60)
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

/// The end of a script that means harm.
enum End {
    /// It ends with this status, and these words are in what it printed.
    Status(i64, &'static str),
    /// The limit that ends the run.
    Limit(&'static str),
    /// The tool's own error: its code.
    Refused(&'static str),
    /// Words of the message about a run that ended in another way.
    Failure(&'static str),
}
use End::{Failure, Limit, Refused, Status};

#[test]
fn hostile_scripts_end_as_they_have_to() {
    let executor = start();
    let workspace = executor.workspace();
    let outside = workspace.parent().expect("a parent").join("secret");
    std::fs::write(&outside, "secret").expect("a file");
    std::os::unix::fs::symlink("../secret", workspace.join("planted")).expect("a link");
    std::os::unix::fs::symlink("/etc", workspace.join("etc")).expect("a link");
    std::os::unix::fs::symlink(".", workspace.join("circle")).expect("a link");
    let cases = [
        ("while :; do :; done", Limit("time")),
        ("for ((;;)); do x=1; done", Limit("time")),
        (":(){ :|:& };:", Limit("output")),
        ("f() { f; }; f", Refused("shell_limit")),
        ("eval \"$(printf '( %.0s' {1..500})\"", Status(2, "")),
        ("x=a; while :; do x=$x$x; done", Refused("out_of_memory")),
        ("while :; do echo 0123456789012345678901234567890123456789; done | cat", Limit("time")),
        ("x=$(printf '%9999s' ''); for i in {1..9999}; do echo \"$x\"; done", Limit("memory")),
        ("x=$(printf '%9999s' ''); for i in {1..500}; do echo \"$x\"; done", Refused("output_too_large")),
        ("for i in {1..9999}; do printf '%200s' ''; done", Limit("output")),
        ("for i in {1..60000}; do echo; done", Refused("shell_limit")),
        ("jq -n 'def f: 1 + f; f'", Failure("trapped")),
        ("yes | head -2", Status(0, "y\ny\n")),
        ("echo x > /dev/tcp/127.0.0.1/80", Status(1, "tool http_fetch")),
        ("exec 3<>/dev/tcp/127.0.0.1/80; echo $?", Status(0, "tool http_fetch")),
        ("curl http://127.0.0.1", Status(127, "tool http_fetch")),
        ("cat /workspace/../etc/passwd", Status(1, "this run has files in /workspace only")),
        ("cat ../../etc/passwd", Status(1, "this run has files in /workspace only")),
        ("cat /proc/self/environ", Status(1, "this run has files in /workspace only")),
        ("cat planted", Status(1, "cat: ")),
        ("cat etc/passwd", Status(1, "cat: ")),
        ("echo x > planted", Status(1, "")),
        ("ls circle/circle/circle > /dev/null", Status(0, "")),
        ("ln -s /etc/passwd link; cat link", Status(1, "copy the file")),
        ("rm -rf /; ls /workspace/kept", Status(0, "/workspace/kept")),
        ("$(printf '\\x2fbin\\x2fls')", Status(127, "")),
        ("kill -9 1; kill -9 $$; echo alive", Status(137, "")),
    ];
    std::fs::write(workspace.join("kept"), "kept").expect("a file");
    let mut wrong = Vec::new();
    for (script, end) in cases {
        let seconds = if matches!(end, Limit("time")) { 2 } else { 60 };
        let answer = run_for(&executor, script, seconds);
        let ended = &answer["result"]["result"];
        let is_as_expected = match end {
            Status(status, words) => {
                let printed =
                    ["stdout", "stderr"].map(|name| ended[name].as_str().unwrap_or_default()).concat();
                ended["exit_code"] == status && printed.contains(words)
            }
            Limit(limit) => answer["error"]["data"]["limit"] == limit,
            Refused(code) => report(&answer)["tool_error"]["code"] == code,
            Failure(words) => {
                answer["error"]["message"].as_str().is_some_and(|message| message.contains(words))
            }
        };
        if !is_as_expected {
            wrong.push(format!("{script}\n  {:.600}", answer.to_string()));
        }
        let next = run(&executor, "echo $((1 + 1))");
        assert_eq!(next["result"]["result"]["stdout"], "2\n", "after {script}: {next}");
    }
    assert!(wrong.is_empty(), "{} scripts ended in another way:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(std::fs::read_to_string(&outside).expect("it is there"), "secret");
    assert_eq!(executor.file("kept").as_deref(), Some("kept"));
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
