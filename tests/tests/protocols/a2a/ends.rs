//! The ends that nobody asks for: of an intent about which nobody decides, and of all sessions with their server.

use super::*;
use harness::A2eSession;
use harness::records;

/// A governor that asks a person about everything, for so many seconds.
fn escalating(seconds: i64) -> FakeGovernor {
    FakeGovernor::start(move |method, params| {
        if method != "a2g/intent" {
            return Reply::Result(json!({ "accepted": true }));
        }
        Reply::Result(json!({
            "verdict": "ESCALATE", "intent_id": params["intent_id"], "conditions": [],
            "capability_manifest": { "filesystem_scope": ["/workspace/**"] }, "expires_at": in_seconds(seconds),
        }))
    })
}

#[test]
fn an_undecided_task_ends_when_its_verdict_expires() {
    let governor = escalating(2);
    let executor = Executor::start(without_rate_limits(Options::new().governor(&governor.url())));
    let mut client = Client::of(&executor);
    let asked = client.call("write_file", write("x", "x"));
    assert_eq!(state(&asked), "input-required", "{asked}");
    let ended = client.until(&id(&asked), "rejected");
    assert!(status_text(&ended).contains("not approved in time"), "{ended}");
    let expired = eventually("that it expired is on record", || {
        let all = records(executor.home());
        all.into_iter().find(|record| record["kind"] == "expired" && record["intent_id"] == asked["id"])
    });
    assert!(expired["says"]["by"].as_str().unwrap().contains("nobody decided"), "{expired}");
    executor.assert_workspace_is_empty("a call that nobody approved");
}

#[test]
fn session_tasks_end_with_the_server() {
    let governor = escalating(3600);
    let options = without_rate_limits(Options::new().governor(&governor.web_socket_url()));
    let mut executor = Executor::start(options.environment("RUST_LOG", "debug"));
    let mut client = Client::of(&executor);
    let asked = client.call("write_file", write("x", "x"));
    assert_eq!(state(&asked), "input-required", "{asked}");
    let mut stream = client.stream("tasks/resubscribe", &json!({ "id": asked["id"] }));
    assert_eq!(stream.next().unwrap()["result"]["id"], asked["id"]);
    let session = A2eSession::open(&executor, None);
    let mut socket = executor.web_socket();
    socket.exchange(r#"{"jsonrpc":"2.0","method":"a2g/tools","id":0}"#);
    executor.process().terminate();
    assert_eq!(executor.process().wait_for_exit().code(), Some(0));
    let log = executor.stderr();
    let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ended = lines.find(|line| line["message"] == "the tasks of all sessions have ended");
    // The followers of the task and of the governor's pushes, deliveries, heartbeats, and the door among others.
    let tasks = ended.unwrap_or_else(|| panic!("{log}"))["tasks"].as_u64();
    assert!(tasks.is_some_and(|tasks| tasks >= 5), "{tasks:?}");
    drop(session);
}
