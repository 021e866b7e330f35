//! The starts that wait for the disk. The marker beside the journal names the last record that is known to be on the
//! disk, so it shows during a run whether its start is.

use super::{FOREVER, read_marker, wait_until_delivered};
use harness::{
    AGENT, Catalogue, Executor, Options, Tool, a2a, approved, call_in_background, console, eventually, id_of,
    intent, intent_id, manifest, mcp, methods, policy_for_all,
};
use serde_json::{Value, json};

fn executor(options: Options) -> Executor {
    let catalogue = Catalogue::empty()
        .add(Tool::command("reads", FOREVER).filesystem("read"))
        .add(Tool::command("writes", FOREVER));
    Executor::start(a2a::door(options, json!({})).catalogue(&catalogue))
}

/// Returns `true` if the marker changes before the guest runs.
fn is_start_synced(executor: &Executor, call: &Value) -> bool {
    wait_until_delivered(executor);
    let before = read_marker(executor);
    let answer = call_in_background(executor, "a2g/execute", call);
    eventually("it runs", || (executor.state_of(call) == "running").then_some(()));
    let is_synced = read_marker(executor) != before;
    executor.rpc("a2g/cancel", &json!({ "intent_id": id_of(call) }));
    answer.join().unwrap();
    assert_ne!(read_marker(executor), before, "its end is synced");
    is_synced
}

fn call(tool: &str, scope: &[&str]) -> Value {
    let mut granted = manifest();
    granted["filesystem_scope"] = scope.into();
    approved(intent(tool, json!({})), &granted)
}

#[test]
fn a_start_waits_for_the_disk_if_its_run_can_write() {
    let executor = executor(Options::new());
    for (tool, scope, is_synced) in [
        ("reads", &["/workspace/**"][..], false),
        ("writes", &["/workspace/**"], true),
        ("writes", &[], false),
        ("writes", &["/workspace/*.md"], true),
    ] {
        assert_eq!(is_start_synced(&executor, &call(tool, scope)), is_synced, "{tool} {scope:?}");
    }
}

#[test]
fn every_start_waits_for_the_disk_if_the_operator_says_so() {
    let executor = executor(Options::new().set("journal.synced_starts", "all"));
    assert!(is_start_synced(&executor, &call("reads", &["/workspace/**"])));
}

/// An executor that permits `reads`, and the folder of its policies.
fn deciding_executor() -> (Executor, tempfile::TempDir) {
    let reads = json!({ "paths": ["/workspace/**"] });
    let policies = methods::policy_folder(&[policy_for_all(&[("reads", reads)])]);
    (executor(Options::new().policies(policies.path())), policies)
}

/// A client that was told of a task finds it again, whatever its run can do.
#[test]
fn a_task_is_on_the_disk_before_its_client_is_told_of_it() {
    let (executor, _policies) = deciding_executor();
    let mut agent = a2a::Client::of(&executor);
    let before = read_marker(&executor);
    let task = agent.begin("reads", json!({}));
    assert_ne!(read_marker(&executor), before);
    agent.result("tasks/cancel", json!({ "id": task }));
}

/// So does another one, which sees the task while its client waits for the end.
#[test]
fn a_task_is_on_the_disk_before_others_see_its_run() {
    let (executor, _policies) = deciding_executor();
    let before = read_marker(&executor);
    let mut agent = a2a::Client::of(&executor);
    let answer = std::thread::spawn(move || agent.call("reads", json!({})));
    let mut other = a2a::Client::of(&executor);
    let task = eventually("its run is seen", || {
        let listed = other.result("tasks/list", json!({}));
        let task = listed["tasks"].get(0)?;
        (task["status"]["state"] == "working").then(|| a2a::id(task))
    });
    assert_ne!(read_marker(&executor), before);
    other.result("tasks/cancel", json!({ "id": task }));
    answer.join().unwrap();
}

#[test]
fn a_start_is_on_the_disk_before_the_console_shows_its_run() {
    let (executor, _policies) = deciding_executor();
    let before = read_marker(&executor);
    let person = console::Client::local(&executor);
    let sent = intent_id();
    let form = [("form_token", &*person.token), ("intent", &*sent), ("agent", AGENT)];
    let (status, page) = person.post("/console/tools/reads/send", &form, "");
    assert_eq!(status, 303, "{page}");
    assert_ne!(read_marker(&executor), before);
    executor.rpc("a2g/cancel", &json!({ "intent_id": sent }));
}

/// The door of MCP answers with a task after 5 s.
#[test]
fn a_start_is_on_the_disk_before_its_run_becomes_a_task() {
    let (executor, _policies) = deciding_executor();
    let before = read_marker(&executor);
    let message = mcp::with_tasks(mcp::call(1, "reads", &json!({})));
    let answer = mcp::post(&mut executor.client(), &message, &[]).json();
    let task = &answer["result"]["taskId"];
    assert!(task.is_string(), "{answer}");
    assert_ne!(read_marker(&executor), before);
    executor.rpc("a2g/cancel", &json!({ "intent_id": task }));
}
