//! Calls that wait at one node of a fleet and run at another.

use super::{Fleet, append, wait_at_the_gate, written};
use crate::harness::*;
use crate::lifecycle::{call_in_background, call_queued};
use crate::methods::write;
use serde_json::{Value, json};
use std::thread::JoinHandle;

/// A node with one slot, which a gate has, and a node with one that is free.
struct Busy {
    fleet: Fleet,
    full: Executor,
    free: Executor,
    /// The answer to the call that has the slot.
    blocking: JoinHandle<Value>,
}

impl Busy {
    fn start() -> Option<Self> {
        Self::start_with(|_, options| options)
    }

    fn start_with(change: impl Fn(&str, Options) -> Options) -> Option<Self> {
        let tools = ["write_file", "read_file", "search_text", "gate"];
        let policy = policy_for_all(&tools.map(|tool| (tool, json!({ "paths": ["/workspace/**"] }))));
        let fleet = Fleet { governor: Governor::start(&[policy]), ..Fleet::start()? };
        let node =
            |name: &str| Executor::start(change(name, fleet.options(name).set("executor.concurrent", 1)));
        let full = node("full");
        let (_, blocking) = wait_at_the_gate(&full);
        Some(Self { free: node("free"), full, fleet, blocking })
    }

    /// Ends the call that has the slot, and checks that the full node has passed on this many calls.
    fn finish(self, passed: usize) {
        self.full.open_the_gate();
        assert_eq!(result(&self.blocking.join().unwrap())["status"], "SUCCESS");
        assert_eq!(metric(&self.full, "a2g_fleet_passed_calls_total"), passed);
        assert_eq!(metric(&self.free, "a2g_fleet_taken_calls_total"), passed);
        for node in ["full", "free"] {
            self.fleet.wait_for(self.full.home(), node, |node| node["open"] == 0);
        }
        for node in [&self.full, &self.free] {
            let verified = node.home().run(&["journal", "verify"]);
            assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
        }
    }
}

fn metric(node: &Executor, name: &str) -> usize {
    let metrics = node.client().request("GET", "/metrics", &[], b"").text();
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

#[test]
fn a_call_that_waits_runs_at_a_free_node() {
    let Some(busy) = Busy::start() else { return };
    let call = append("x");
    let answer = busy.full.rpc("a2g/execute", &call);
    assert_eq!(result(&answer)["status"], "SUCCESS", "{answer}");
    assert_eq!((busy.full.file("log"), busy.free.file("log").as_deref()), (None, Some("x")));
    for node in [&busy.full, &busy.free] {
        assert_eq!(node.rpc("a2g/execute", &call)["result"], answer["result"]);
        let state = node.rpc("a2g/status", &json!({ "intent_id": id_of(&call) }));
        assert_eq!(result(&state)["report"]["status"], "SUCCESS", "{state}");
    }
    // The governor is asked once, and its verdict is in the answer.
    let asked = intent("write_file", json!({ "path": "/workspace/log", "content": "y", "mode": "append" }));
    let answer = busy.full.rpc("a2g/intent", &asked);
    assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
    assert_eq!(busy.free.rpc("a2g/intent", &asked)["result"], answer["result"]);
    assert_eq!(written(&[&busy.full, &busy.free]), "xy");
    for id in [id_of(&call), asked["intent_id"].as_str().unwrap().to_owned()] {
        assert_eq!(busy.fleet.reports_of(&id).len(), 1);
    }
    // What the other node refuses is refused here.
    let denied = execute("write_file", json!({ "path": "/workspace/a", "content": 1 }));
    error(&busy.full.rpc("a2g/execute", &denied), -32602);
    busy.finish(2);
}

#[test]
fn a_passed_call_has_events_and_a_task_where_it_waited() {
    let Some(busy) = Busy::start() else { return };
    std::fs::write(busy.free.workspace().join("a"), "needle").unwrap();
    let run = json!({ "jsonrpc": "3.0", "id": "1", "method": "search_text", "metadata": { "stream": true },
        "params": { "payload": { "path": "/workspace", "pattern": "needle" } } });
    let mut client = busy.full.client();
    let json_type = [("Content-Type", "application/json")];
    let lines = client.request("POST", "/run", &json_type, run.to_string().as_bytes()).text();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 1 && lines[0].to_string().contains("listing files"), "{lines:?}");
    assert!(lines.last().unwrap()["result"].to_string().contains("needle"), "{lines:?}");
    // A task of A2A, which nobody waits for, ends at the node that has it, and is found after its restart.
    let part = json!({ "kind": "data", "data": { "tool": "write_file", "arguments": write("b", "x") } });
    let message = json!({ "role": "user", "kind": "message", "messageId": intent_id(), "parts": [part] });
    let params = json!({ "message": message, "configuration": { "blocking": false } });
    let mut a2a = |method: &str, params: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        client.request("POST", "/a2a/rpc", &json_type, body.to_string().as_bytes()).json()["result"].clone()
    };
    let task = a2a("message/send", params)["id"].clone();
    let ended = eventually("the task ends", || {
        let found = a2a("tasks/get", json!({ "id": task }));
        (found["status"]["state"] == "completed").then_some(found)
    });
    assert_eq!(busy.free.file("b").as_deref(), Some("x"), "{ended}");
    busy.finish(2);
}

#[test]
fn a_passed_call_is_cancelled_from_any_node() {
    let Some(busy) = Busy::start() else { return };
    for (runs, from) in [(1, &busy.full), (2, &busy.free)] {
        let call = execute("gate", json!({ "run": runs }));
        let answer = call_in_background(&busy.full, "a2g/execute", &call);
        busy.free.wait_at_the_gate(runs);
        let id = json!({ "intent_id": id_of(&call) });
        assert_eq!(result(&busy.full.rpc("a2g/status", &id))["state"], "running");
        assert_eq!(result(&from.rpc("a2g/cancel", &id))["cancelled"], true);
        assert_eq!(error(&answer.join().unwrap(), -32001)["data"]["report"]["status"], "ABORTED");
        assert_eq!(busy.fleet.reports_of(&id_of(&call)).len(), 1);
    }
    busy.finish(2);
}

#[test]
fn a_passed_call_whose_node_is_killed_ends_once() {
    let Some(busy) = Busy::start() else { return };
    let call = execute("gate", json!({ "passed": true }));
    let answer = call_in_background(&busy.full, "a2g/execute", &call);
    busy.free.wait_at_the_gate(1);
    let _home = busy.free.kill();
    let answer = answer.join().unwrap();
    assert_eq!(error(&answer, -32001)["data"]["report"]["status"], "ABORTED", "{answer}");
    assert_eq!(busy.fleet.reports_of(&id_of(&call)).len(), 1);
    assert_eq!(busy.full.rpc("a2g/execute", &call)["error"]["data"], answer["error"]["data"]);
    assert_eq!(busy.full.runs_of_the_gate(), 1);
}

#[test]
fn a_call_that_no_other_node_may_run_stays() {
    // The free node has another module with the name, or calls are not passed on.
    let other =
        Catalogue::with_tools().add(Tool::command("gate", GATE)).add(Tool::command("write_file", GATE));
    let with_other = |node: &str, options: Options| match node {
        "free" => options.catalogue(&other),
        _full => options,
    };
    let switched_off = |_: &str, options: Options| options.set("fleet.pass_calls", false);
    for busy in [Busy::start_with(with_other), Busy::start_with(switched_off)] {
        let Some(busy) = busy else { return };
        let call = append("x");
        let answer = call_queued(&busy.full, &call);
        std::thread::sleep(std::time::Duration::from_secs(1));
        busy.full.open_the_gate();
        assert_eq!(result(&answer.join().unwrap())["status"], "SUCCESS");
        assert_eq!((busy.full.file("log").as_deref(), busy.free.file("log")), (Some("x"), None));
        busy.finish(0);
    }
}
