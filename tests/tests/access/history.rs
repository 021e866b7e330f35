//! What policies in Cedar read of the past: at once, in windows, and after a restart.

use harness::methods::write;
use harness::*;
use serde_json::{Value, json};
use tempfile::TempDir;

/// One file in a day.
const ONCE: &str = r#"permit (principal, action == Action::"write_file", resource)
when { context.history.same.day == 0 };
permit (principal, action in [Action::"read", Action::"write"], resource in Folder::"/workspace");
"#;

/// Three requests in an hour, and none after a file of `/workspace/secrets`.
const CAREFUL: &str = r#"permit (principal, action in [Action::"http_fetch", Action::"hash_file"], resource);
permit (principal, action == Action::"read", resource in Folder::"/workspace");
permit (principal, action == Action::"reach", resource in Host::"web.test")
when { context.history.same.hour < 3 };
forbid (principal, action == Action::"reach", resource)
when { context.history.read.contains(Folder::"/workspace/secrets") };
"#;

fn folder(text: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("rules.cedar"), text).expect("a file");
    folder
}

/// Waits until all tools are known: before, no policies may fit them.
fn ready(executor: Executor) -> Executor {
    executor.line_with("all tools are prepared");
    executor
}

fn write_one(executor: &Executor) -> Value {
    executor.rpc("a2g/intent", &intent("write_file", write("one", "x")))
}

#[test]
fn of_calls_at_once_one_is_the_first_also_after_a_restart() {
    const CALLS: usize = 8;
    let policies = folder(ONCE);
    let executor = ready(Executor::start(Options::new().policies(policies.path())));
    let answers = std::thread::scope(|scope| {
        let threads = (0..CALLS).map(|_| scope.spawn(|| write_one(&executor))).collect::<Vec<_>>();
        threads.into_iter().map(|thread| thread.join().expect("an answer")).collect::<Vec<_>>()
    });
    let (runs, denied) = answers.iter().partition::<Vec<_>, _>(|answer| answer.get("result").is_some());
    assert_eq!((runs.len(), denied.len()), (1, CALLS - 1), "{answers:?}");
    for answer in denied {
        expect_blocked(answer, "verdict_denied");
    }
    let executor = ready(Executor::start_in(executor.kill()));
    expect_blocked(&write_one(&executor), "verdict_denied");
}

#[test]
fn a_call_that_is_refused_after_its_verdict_has_not_happened() {
    let policies = folder(ONCE);
    let executor = ready(Executor::start(Options::new().policies(policies.path())));
    // The policies allow this one, and the schema of the tool does not.
    let wrong = json!({ "path": "/workspace/one", "content": "x", "no_such_argument": 1 });
    let answer = executor.rpc("a2g/intent", &intent("write_file", wrong));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    let answer = write_one(&executor);
    assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
    expect_blocked(&write_one(&executor), "verdict_denied");
}

#[test]
fn requests_are_counted_and_a_host_is_closed_after_a_folder_was_read() {
    let web = Web::start(|mut stream, _request| {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nreached";
        let _gone = std::io::Write::write_all(&mut stream, answer.as_bytes());
    });
    let port = web.authority().rsplit(':').next().expect("a port").to_owned();
    let catalogue = Catalogue::empty().copy("http_fetch").copy("hash_file");
    let policies = folder(CAREFUL);
    let options = || {
        Options::new()
            .catalogue(&catalogue)
            .policies(policies.path())
            .set("ceilings.network_allowed", true)
            .set("network.allowed_domains", json!(["*"]))
            .set("network.max_requests", 1)
            .set("network.allowed_addresses", json!([web.address()]))
            .set("network.hosts", json!({ "web.test": ["127.0.0.1"] }))
    };
    let fetch = |executor: &Executor| {
        let url = format!("http://web.test:{port}/");
        executor.rpc("a2g/intent", &intent("http_fetch", json!({ "url": url })))
    };
    let executor = ready(Executor::start(options()));
    for _ in 0..3 {
        let answer = fetch(&executor);
        assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
    }
    expect_blocked(&fetch(&executor), "verdict_denied");
    assert_eq!(web.requests().len(), 3);

    let executor = ready(Executor::start(options()));
    for name in ["plain", "secrets/key"] {
        let path = executor.workspace().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, "x").expect("a file");
    }
    let hash = |name: &str| {
        let path = format!("/workspace/{name}");
        let answer = executor.rpc("a2g/intent", &intent("hash_file", json!({ "path": path })));
        assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
    };
    hash("plain");
    let answer = fetch(&executor);
    assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "another folder was read: {answer}");
    hash("secrets/key");
    expect_blocked(&fetch(&executor), "verdict_denied");
    let executor = ready(Executor::start_in(executor.kill()));
    expect_blocked(&fetch(&executor), "verdict_denied");
}
