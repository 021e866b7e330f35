//! Calls for a tool that the node that was asked lacks.

use super::kills::{DOORS, Door, Intent, Reply, options};
use super::{Fleet, wait_at_the_gate};
use crate::harness::*;
use crate::lifecycle::call_in_background;
use crate::methods::{self, write};
use crate::nexus::{self, PLANNER};
use serde_json::{Value, json};

/// A node without tools, and one with all of them.
struct UnequalNodes {
    fleet: Fleet,
    bare: Executor,
    full: Executor,
    /// The tools of `bare`.
    catalogue: Catalogue,
}

impl UnequalNodes {
    fn start() -> Option<Self> {
        let fleet = Fleet::start()?;
        let keys = nexus::Keys::of(&[PLANNER]);
        let full = Executor::start(options(&fleet, &keys, "full").set("executor.concurrent", 1));
        let catalogue = Catalogue::empty();
        let bare = Executor::start(options(&fleet, &keys, "bare").catalogue(&catalogue));
        let nodes = Self { fleet, bare, full, catalogue };
        // A node looks for others every 5 s.
        eventually("the node without tools sees the other", || {
            let answer =
                nodes.bare.rpc("a2g/execute", &execute("read_file", json!({ "path": "/workspace/no" })));
            (answer["error"]["code"] == -32001).then_some(())
        });
        Some(nodes)
    }
}

/// Waits until a call is in the queue of a node.
fn wait_until_queued(node: &Executor, call: &Value) {
    let id = json!({ "intent_id": id_of(call) });
    eventually("the call is queued", || {
        (node.rpc("a2g/status", &id)["result"]["state"] == "queued").then_some(())
    });
}

#[test]
fn a_call_for_a_tool_of_another_node_runs_there() {
    let Some(UnequalNodes { fleet, bare, full, .. }) = UnequalNodes::start() else { return };
    for door in DOORS {
        let mut intent = Intent::new(door);
        let reply = intent.send(bare.address());
        match (door, reply) {
            (Door::A2aTask, Reply::Accepted) => {}
            (_, Reply::Ended(status)) => assert_eq!(status, "SUCCESS", "{door:?}"),
            (_, reply) => panic!("{door:?}: {reply:?}"),
        }
        eventually("the file", || (full.file(&intent.file)? == "x").then_some(()));
        if door == Door::Sovereign {
            // Only its answer has the id of the intent.
            continue;
        }
        assert!(matches!(intent.ask_for_end(bare.address()), Reply::Ended(_)), "{door:?}");
        assert_eq!(full.file(&intent.file).as_deref(), Some("x"), "a repeat does not run again");
        assert_eq!(fleet.reports_of(&intent.id.unwrap()).len(), 1);
    }
    for node in [&bare, &full] {
        let verified = node.home().run(&["journal", "verify"]);
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    }
}

#[test]
fn a_call_that_cannot_run_elsewhere_is_refused_with_the_reason() {
    let Some(UnequalNodes { fleet: _fleet, bare, full, .. }) = UnequalNodes::start() else { return };
    let refused = |tool: &str, arguments: Value, code: i64, part: &str| {
        let answer = bare.rpc("a2g/execute", &execute(tool, arguments));
        assert!(error(&answer, code).to_string().contains(part), "{answer}");
    };
    refused("write_file", json!({ "path": "/workspace/a", "content": 1 }), -32602, "/arguments/content");
    refused("absent", json!({}), -32602, "there is no tool `absent`");
    let escalates = bare.rpc("a2g/intent", &intent("write_file", write("a", methods::ESCALATES)));
    assert!(error(&escalates, -32001).to_string().contains("a node that has it"), "{escalates}");
    let denied = bare.rpc("a2g/intent", &intent("http_fetch", json!({ "url": "http://127.0.0.1" })));
    assert_eq!(error(&denied, -32000)["data"]["blocked_by"], "verdict_denied", "{denied}");
    // The call is larger than what nodes pass on.
    refused("write_file", write("a", &"x".repeat(600 << 10)), -32001, "512 KiB");
    // The policies of the agent do not reach the tool, so no other node is asked for it.
    let tools = json!({ "read_file": { "allowed": true } });
    let policy = json!({ "agent_did": AGENT, "version": "2", "capabilities": { "tools": tools } });
    result(&bare.rpc("g2a/policy", &policy));
    refused("write_file", write("a", "x"), -32602, "there is no tool `write_file`");
    assert_eq!(full.file("a"), None);
}

#[test]
fn a_node_that_takes_no_calls_is_not_waited_for() {
    let Some(fleet) = Fleet::start() else { return };
    let _full = Executor::start(fleet.options("full").set("fleet.pass_calls", false));
    let empty = Catalogue::empty();
    let bare = Executor::start(fleet.options("bare").catalogue(&empty));
    // A node looks for others every 5 s.
    std::thread::sleep(std::time::Duration::from_secs(6));
    let answer = bare.rpc("a2g/execute", &execute("write_file", write("a", "x")));
    assert!(error(&answer, -32602).to_string().contains("there is no tool `write_file`"), "{answer}");
}

#[test]
fn a_call_for_a_tool_of_a_busy_node_waits_and_can_be_cancelled() {
    let Some(UnequalNodes { fleet, bare, full, .. }) = UnequalNodes::start() else { return };
    let (_, blocking) = wait_at_the_gate(&full);
    let [waits, cancelled] = ["waits", "cancelled"].map(|name| execute("write_file", write(name, "x")));
    let answers = [&waits, &cancelled].map(|call| call_in_background(&bare, "a2g/execute", call));
    wait_until_queued(&bare, &waits);
    wait_until_queued(&bare, &cancelled);
    let cancel = bare.rpc("a2g/cancel", &json!({ "intent_id": id_of(&cancelled) }));
    assert_eq!(result(&cancel)["cancelled"], true);
    let [waits_answer, cancelled_answer] = answers;
    let cancelled_answer = cancelled_answer.join().unwrap();
    assert!(error(&cancelled_answer, -32000).to_string().contains("cancelled by"), "{cancelled_answer}");
    full.open_the_gate();
    for node in [&bare, &full] {
        let repeated = node.rpc("a2g/execute", &cancelled);
        assert!(error(&repeated, -32000).to_string().contains("cancelled by"), "{repeated}");
    }
    assert_eq!(result(&blocking.join().unwrap())["status"], "SUCCESS");
    assert_eq!(result(&waits_answer.join().unwrap())["status"], "SUCCESS");
    assert_eq!((full.file("waits").as_deref(), full.file("cancelled")), (Some("x"), None));
    assert_eq!(fleet.reports_of(&id_of(&waits)).len(), 1);
}

#[test]
fn a_call_that_waits_for_a_node_that_leaves_is_refused() {
    let Some(UnequalNodes { fleet: _fleet, bare, mut full, .. }) = UnequalNodes::start() else { return };
    let (_, blocking) = wait_at_the_gate(&full);
    let call = execute("write_file", write("left", "x"));
    let answer = call_in_background(&bare, "a2g/execute", &call);
    wait_until_queued(&bare, &call);
    full.process().terminate();
    full.open_the_gate();
    assert_eq!(result(&blocking.join().unwrap())["status"], "SUCCESS");
    let answer = answer.join().unwrap();
    assert!(error(&answer, -32602).to_string().contains("there is no tool `write_file`"), "{answer}");
    assert_eq!(full.file("left"), None);
}

#[test]
fn a_call_that_waits_runs_here_once_its_tool_is_installed() {
    let Some(UnequalNodes { fleet: _fleet, mut bare, full, catalogue }) = UnequalNodes::start() else {
        return;
    };
    let (_, blocking) = wait_at_the_gate(&full);
    let call = execute("write_file", write("installed", "x"));
    let answer = call_in_background(&bare, "a2g/execute", &call);
    wait_until_queued(&bare, &call);
    let _catalogue = catalogue.copy("write_file");
    bare.process().hang_up();
    assert_eq!(result(&answer.join().unwrap())["status"], "SUCCESS");
    assert_eq!((bare.file("installed").as_deref(), full.file("installed")), (Some("x"), None));
    full.open_the_gate();
    assert_eq!(result(&blocking.join().unwrap())["status"], "SUCCESS");
}
