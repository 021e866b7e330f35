//! Intents that wait for a person at one node of a fleet, and tasks of A2A, asked for at another node.

use super::Fleet;
use crate::callers::{List, agent};
use crate::console;
use crate::harness::*;
use crate::methods::{ESCALATES, write};
use serde_json::{Value, json};

/// Two nodes with one list of callers, and the tokens of an agent, an approver and an operator in it.
struct Nodes {
    fleet: Fleet,
    one: Executor,
    two: Executor,
    agent: String,
    approver: String,
    operator: String,
}

impl Nodes {
    fn start() -> Option<Self> {
        let fleet = Fleet::start()?;
        let list = List::new();
        let agent = agent(&list, "agent", AGENT);
        let approver = list.add("ann", &["--role", "approver"]);
        let operator = list.add("op", &["--role", "operator"]);
        let [one, two] = ["one", "two"].map(|node| Executor::start(list.of(fleet.options(node))));
        // A node asks only those that it knows to run.
        for node in ["one", "two"] {
            fleet.wait_for(one.home(), node, |node| node["state"] == "live");
        }
        Some(Self { fleet, one, two, agent, approver, operator })
    }

    /// Sends an intent that waits for a person at the first node.
    fn escalate(&self, name: &str) -> Value {
        let call = intent("write_file", write(name, ESCALATES));
        let answer = ask(&self.one, &self.agent, "a2g/intent", &call);
        assert_eq!(result(&answer)["verdict"], "ESCALATE", "{answer}");
        json!({ "intent_id": call["intent_id"] })
    }

    fn state(&self, node: &Executor, id: &Value) -> String {
        let status = ask(node, &self.agent, "a2g/status", id);
        status["result"]["state"].as_str().unwrap_or("unknown").to_owned()
    }
}

fn ask(node: &Executor, token: &str, method: &str, params: &Value) -> Value {
    HttpClient::ask_as(node.address(), token, method, params).expect("an answer")
}

fn decide(node: &Executor, token: &str, id: &Value, decision: &str) -> Value {
    let directive = json!({ "intent_id": id["intent_id"], "decision": decision });
    ask(node, token, "g2a/directive", &directive)
}

#[test]
fn an_intent_that_waits_is_decided_from_any_node() {
    let Some(nodes) = Nodes::start() else { return };
    let Nodes { fleet, one, two, approver, .. } = &nodes;
    let [approved, denied, cancelled] = ["approved", "denied", "cancelled"].map(|name| nodes.escalate(name));
    assert_eq!(nodes.state(two, &approved), "escalated");
    fleet.wait_for(one.home(), "one", |node| node["waiting"] == 3);
    // The consoles of other nodes say where it waits.
    let count = "3 more at the node <strong>one</strong>";
    for (token, is_told, sees_nodes) in
        [(&nodes.agent, false, false), (approver, true, false), (&nodes.operator, true, true)]
    {
        let console = console::Client::with_token(two, token);
        for path in ["/console", "/console/inbox"] {
            let page = console.get(path).1;
            assert_eq!(page.contains(count), is_told, "{page}");
            assert_eq!(page.contains("Waiting for a person"), sees_nodes && path == "/console", "{page}");
        }
    }
    // The agent may not decide, at any node.
    error(&decide(two, &nodes.agent, &approved, "APPROVED"), -32000);
    assert_eq!(result(&decide(two, approver, &approved, "APPROVED"))["accepted"], true);
    let report = eventually("the approved intent has run", || {
        ask(two, &nodes.agent, "a2g/status", &approved)["result"].get("report").cloned()
    });
    assert_eq!(report["status"], "SUCCESS", "{report}");
    assert_eq!(one.file("approved").as_deref(), Some(ESCALATES));
    assert_eq!(result(&decide(two, approver, &denied, "DENIED"))["accepted"], true);
    assert_eq!(nodes.state(one, &denied), "unknown");
    let stopped = ask(two, &nodes.agent, "a2g/cancel", &cancelled);
    assert_eq!(result(&stopped)["cancelled"], true);
    for (id, node) in [(&approved, one), (&denied, two), (&cancelled, two)] {
        error(&decide(node, approver, id, "APPROVED"), -32602);
    }
    let shown = one.home().run(&["journal", "show", approved["intent_id"].as_str().unwrap()]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("ann"), "{shown:?}");
    assert_eq!((one.file("denied"), one.file("cancelled"), two.file("approved")), (None, None, None));
}

#[test]
fn a_decision_needs_the_role_at_the_node_where_the_intent_waits() {
    let Some(nodes) = Nodes::start() else { return };
    let other = List::new();
    let stranger = other.add("stranger", &["--role", "approver"]);
    // Another person with the name of a listed one.
    let namesake = other.add("ann", &["--role", "approver"]);
    let three = Executor::start(other.of(nodes.fleet.options("three")));
    let id = nodes.escalate("file");
    eventually("the new node knows the others", || {
        let answer = decide(&three, &stranger, &id, "APPROVED");
        let message = answer["error"]["message"].as_str()?;
        message.contains("give all nodes the same list").then_some(())
    });
    for token in [&stranger, &namesake] {
        for decision in ["APPROVED", "DENIED"] {
            let answer = decide(&three, token, &id, decision);
            assert_eq!(error(&answer, -32000)["data"]["blocked_by"], "caller_unauthorized", "{answer}");
        }
    }
    assert_eq!(nodes.state(&nodes.one, &id), "escalated");
    assert_eq!(result(&decide(&nodes.two, &nodes.approver, &id, "DENIED"))["accepted"], true);
}

#[test]
fn a_task_is_read_and_cancelled_at_any_node() {
    let Some(fleet) = Fleet::start() else { return };
    let (one, two) = (fleet.node("one"), fleet.node("two"));
    fleet.wait_for(one.home(), "two", |node| node["state"] == "live");
    let a2a = |node: &Executor, method: &str, params: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let headers = [("Content-Type", "application/json")];
        node.client().request("POST", "/a2a/rpc", &headers, body.as_bytes()).json()
    };
    let begin = |tool: &str, arguments: Value| {
        let part = json!({ "kind": "data", "data": { "tool": tool, "arguments": arguments } });
        let message = json!({ "role": "user", "kind": "message", "messageId": intent_id(), "parts": [part] });
        let params = json!({ "message": message, "configuration": { "blocking": false } });
        json!({ "id": result(&a2a(&one, "message/send", params))["id"] })
    };
    let written = begin("write_file", write("a", "x"));
    let task = eventually("the task ends", || {
        let task = result(&a2a(&two, "tasks/get", written.clone())).clone();
        (task["status"]["state"] == "completed").then_some(task)
    });
    assert_eq!(task, *result(&a2a(&one, "tasks/get", written.clone())));
    error(&a2a(&two, "tasks/cancel", written), -32002);
    let waiting = begin("gate", json!({ "path": "/workspace" }));
    one.wait_at_the_gate(1);
    let canceled = a2a(&two, "tasks/cancel", waiting.clone());
    assert_eq!(result(&canceled)["status"]["state"], "canceled", "{canceled}");
    assert_eq!(result(&a2a(&one, "tasks/get", waiting))["status"]["state"], "canceled");
    error(&a2a(&two, "tasks/get", json!({ "id": intent_id() })), -32001);
}
