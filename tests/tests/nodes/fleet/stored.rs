//! Tasks that wait for a slot at a node that is lost.

use super::Fleet;
use harness::methods::write;
use harness::*;
use serde_json::{Value, json};
use std::thread::sleep;
use std::time::Duration;

/// A node whose only slot a gate has, and its client.
fn full_node(fleet: &Fleet, name: &str) -> (Executor, a2a::Client) {
    let options = fleet.options(name).set("executor.concurrent", 1).set("executor.drain_seconds", 1);
    let node = Executor::start(options);
    let mut client = a2a::Client::of(&node);
    client.begin("gate", json!({ "path": "/workspace" }));
    node.wait_at_the_gate(1);
    (node, client)
}

fn state(node: &Executor, task: &str) -> Value {
    node.rpc("a2g/status", &json!({ "intent_id": task }))["result"]["state"].clone()
}

fn wait_until_queued(node: &Executor, task: &str) {
    eventually("the task waits", || (state(node, task) == "queued").then_some(()));
}

/// Begins tasks that write the files with these names, and waits until they are in the queue of the node.
fn begin_waiting(node: &Executor, client: &mut a2a::Client, names: [&str; 2]) -> [String; 2] {
    names.map(|name| {
        let task = client.begin("write_file", write(name, "x"));
        wait_until_queued(node, &task);
        task
    })
}

/// The node that continues a task looks for its end every second.
fn wait_until_completed(client: &mut a2a::Client, task: &str) {
    eventually("the task is completed", || {
        // Requests for tasks are limited.
        sleep(Duration::from_millis(250));
        (client.task(task)["status"]["state"] == "completed").then_some(())
    });
}

#[test]
fn a_task_that_waits_at_a_lost_node_runs_at_another() {
    let Some(fleet) = Fleet::start() else { return };
    let [(one, mut here), (two, mut there)] = ["one", "two"].map(|name| full_node(&fleet, name));
    let [waits, canceled] = begin_waiting(&one, &mut here, ["waits", "canceled"]);
    assert_eq!(there.result("tasks/cancel", json!({ "id": canceled }))["status"]["state"], "canceled");
    let home = one.kill();
    wait_until_queued(&two, &waits);
    there.until(&waits, "submitted");
    assert_eq!(two.file("waits"), None);
    two.open_the_gate();
    assert_eq!(fleet.reports_of(&waits)[0]["status"], "SUCCESS");
    assert_eq!((two.file("waits").as_deref(), two.file("canceled")), (Some("x"), None));
    // The task has its state at its own node too, once that has started again.
    let one = Executor::start_in(home);
    let mut here = a2a::Client::of(&one);
    wait_until_completed(&mut here, &waits);
    assert_eq!(here.task(&canceled)["status"]["state"], "canceled");
    assert_eq!((one.file("waits"), one.file("canceled")), (None, None));
    assert_eq!(fleet.reports_of(&waits).len(), 1);
    eventually("no call is stored any more", || {
        let filter = json!({ "subjects_filter": "a2g.tests.*.wait.>" });
        let stream = fleet.servers.ask(0, "$JS.API.STREAM.INFO.A2G_tests", &filter)?;
        (stream["state"]["messages"].is_u64() && stream["state"]["subjects"].is_null()).then_some(())
    });
}

#[test]
fn a_task_that_waits_runs_after_the_restart_of_its_node() {
    let Some(fleet) = Fleet::start() else { return };
    let (one, mut here) = full_node(&fleet, "one");
    let [waits, stopped] = begin_waiting(&one, &mut here, ["waits", "stopped"]);
    let canceled = here.result("tasks/cancel", json!({ "id": stopped }));
    assert_eq!(canceled["status"]["state"], "canceled");
    let one = Executor::start_in(one.kill());
    assert_eq!(fleet.reports_of(&waits)[0]["status"], "SUCCESS");
    let mut here = a2a::Client::of(&one);
    wait_until_completed(&mut here, &waits);
    assert_eq!((one.file("waits").as_deref(), one.file("stopped")), (Some("x"), None));
    assert_eq!(here.task(&stopped)["status"]["state"], "canceled");
    assert_eq!(fleet.reports_of(&waits).len(), 1);
}

#[test]
fn a_task_of_a_lost_node_waits_for_its_tool_and_can_be_cancelled() {
    let Some(fleet) = Fleet::start() else { return };
    let (one, mut here) = full_node(&fleet, "one");
    let [waits, canceled] = begin_waiting(&one, &mut here, ["waits", "canceled"]);
    let two = Executor::start(fleet.options("two").catalogue(&Catalogue::empty()));
    fleet.wait_for(two.home(), "one", |node| node["state"] == "live");
    let home = one.kill();
    for task in [&waits, &canceled] {
        wait_until_queued(&two, task);
    }
    let id = json!({ "intent_id": canceled });
    assert_eq!(result(&two.rpc("a2g/cancel", &id))["cancelled"], true);
    assert_eq!(result(&two.rpc("a2g/cancel", &id))["cancelled"], false);
    // Its own node has the tool.
    let one = Executor::start_in(home);
    assert_eq!(fleet.reports_of(&waits)[0]["status"], "SUCCESS");
    let mut here = a2a::Client::of(&one);
    wait_until_completed(&mut here, &waits);
    assert_eq!((one.file("waits").as_deref(), one.file("canceled")), (Some("x"), None));
    let task = here.task(&canceled);
    assert_eq!(task["status"]["state"], "canceled", "{task}");
    assert!(task.to_string().contains("at another node"), "{task}");
}

#[test]
fn a_task_waits_through_an_outage_and_the_end_of_its_node() {
    let Some(fleet) = Fleet::start() else { return };
    let (mut one, mut here) = full_node(&fleet, "one");
    let task = here.begin("write_file", write("first", "x"));
    wait_until_queued(&one, &task);
    // The run that has the slot is aborted once the lease is lost, and the next call cannot be claimed.
    fleet.servers.pause(0);
    let is_up = || one.client().request("GET", "/health", &[], b"").status == 200;
    eventually("the lease is lost", || (!is_up()).then_some(()));
    sleep(Duration::from_secs(2));
    assert_eq!(one.file("first"), None);
    fleet.servers.resume(0);
    assert_eq!(fleet.reports_of(&task)[0]["status"], "SUCCESS");
    wait_until_completed(&mut here, &task);
    assert_eq!(one.file("first").as_deref(), Some("x"));
    // The other node has no slot either until this one has left.
    let (two, _) = full_node(&fleet, "two");
    here.begin("gate", json!({ "path": "/workspace" }));
    one.wait_at_the_gate(2);
    let task = here.begin("write_file", write("second", "x"));
    wait_until_queued(&one, &task);
    one.process().terminate();
    one.process().wait_for_exit();
    two.open_the_gate();
    assert_eq!(fleet.reports_of(&task)[0]["status"], "SUCCESS");
    assert_eq!((one.file("second"), two.file("second").as_deref()), (None, Some("x")));
}
