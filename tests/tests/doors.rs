//! One core behind five doors: the same call through each is the same run under the same grant.

use crate::harness::*;
use crate::methods::write;
use crate::nexus;
use serde_json::{Value, json};

/// An agent that every door can name.
const PEER: nexus::Agent =
    nexus::Agent { id: AGENT, secret: "tester-secret-0123456789abcdef-0123", key: [7; 32] };

/// The doors, each as a way to call a tool and to learn what it gave back, if it did.
type Ask = fn(&Executor, &str, &Value) -> Option<Value>;

const DOORS: [(&str, Ask); 5] =
    [("a2g", a2g), ("a2a", a2a), ("a2e", a2e_door), ("nexus", nexus_door), ("sovereign", sovereign)];

fn post(executor: &Executor, path: &str, body: &Value) -> Value {
    let headers = [("Content-Type", "application/json")];
    executor.client().request("POST", path, &headers, body.to_string().as_bytes()).json()
}

fn a2g(executor: &Executor, tool: &str, arguments: &Value) -> Option<Value> {
    let answer = executor.rpc("a2g/intent", &intent(tool, arguments.clone()));
    answer["result"]["report"].get("result").cloned()
}

fn a2a(executor: &Executor, tool: &str, arguments: &Value) -> Option<Value> {
    let part = json!({ "kind": "data", "data": { "tool": tool, "arguments": arguments } });
    let message = json!({ "role": "user", "messageId": intent_id(), "parts": [part] });
    let request =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": { "message": message } });
    let task = post(executor, "/a2a/rpc", &request)["result"].clone();
    let result = task["artifacts"].as_array()?.iter().find(|artifact| artifact["name"] == "result")?;
    Some(result["parts"][0]["data"].clone())
}

fn a2e_door(executor: &Executor, tool: &str, arguments: &Value) -> Option<Value> {
    let mut session = A2eSession::open(executor, None);
    session.ask(&a2e_handshake(AGENT, ""));
    let mut call = a2e_call(&intent_id(), tool, arguments.clone());
    // As long as the ceiling: A2E has a timeout of its own where none is sent.
    call["timeout"] = json!(60);
    session.ask(&call)["data"].get("data").filter(|data| !data.is_null()).cloned()
}

fn nexus_door(executor: &Executor, tool: &str, arguments: &Value) -> Option<Value> {
    let answer = nexus::ask(executor, PEER, &PEER.execute(tool, arguments.clone()));
    answer["data"].get("result").filter(|result| !result.is_null()).cloned()
}

fn sovereign(executor: &Executor, tool: &str, arguments: &Value) -> Option<Value> {
    let request = json!({ "jsonrpc": "3.0", "id": 1, "method": tool, "params": { "payload": arguments } });
    post(executor, "/run", &request)["result"].get("data").cloned()
}

/// The members of a report that are equal in every run.
fn lasting(report: &Value) -> Value {
    match report {
        Value::Object(members) => {
            let passing = [
                "intent_id",
                "metrics",
                "used",
                "slack",
                "process",
                "started_at",
                "finished_at",
                "timestamp",
            ];
            let members = members.iter().filter(|(name, _)| !passing.contains(&name.as_str()));
            members.map(|(name, value)| (name.clone(), lasting(value))).collect()
        }
        Value::Array(elements) => elements.iter().map(lasting).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => report.clone(),
    }
}

#[test]
fn every_door_gives_the_same_run_for_the_same_call() {
    let keys = nexus::Keys::of(&[PEER]);
    let agent = json!({ "agent": AGENT });
    let options = Options::new()
        .set("doors.a2a", agent.clone())
        .set("doors.sovereign", agent)
        .set("doors.nexus", json!({ "key_file": keys.path() }));
    let executor = Executor::start(options);
    for (tool, arguments, runs) in [
        ("write_file", write("one", "hi"), true),
        ("list_directory", json!({ "path": "/workspace" }), true),
        ("read_file", json!({ "path": "/workspace/none" }), true),
        ("write_file", json!({ "path": "/etc/passwd", "content": "x" }), false),
    ] {
        let before = executor.reports().len();
        let results = DOORS.map(|(name, ask)| (name, ask(&executor, tool, &arguments)));
        let (_, first) = &results[0];
        assert!(results.iter().all(|(_, result)| result == first), "{results:#?}");
        let expected = if runs { DOORS.len() } else { 0 };
        let reports = executor.wait_for_reports(before + expected).split_off(before);
        assert_eq!(reports.len(), expected, "one report for each that ran: {reports:#?}");
        let lasting = reports.iter().map(lasting).collect::<Vec<_>>();
        for ((name, _), report) in DOORS.iter().zip(&lasting) {
            assert_eq!(Some(report), lasting.first(), "through {name}");
            assert!(report["usage"]["limits"]["max_memory_mb"]["granted"].is_u64(), "{report}");
        }
    }
    // Only the log says which door it was.
    let logged = executor.stderr();
    for (name, _) in DOORS {
        assert_eq!(logged.matches(&format!("\"door\":\"{name}\",\"status\"")).count(), 3, "{name}: {logged}");
    }
}
