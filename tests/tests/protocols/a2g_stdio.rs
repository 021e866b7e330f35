//! One message a line on standard input and output.

use crate::a2g_http::{has_id, ids};
use harness::methods::{Transport, write};
use harness::*;
use serde_json::{Value, json};
use std::collections::HashMap;

/// A line for each call; answers are kept until they are asked for.
struct Lines {
    door: StdioClient,
    next: u64,
    answered: HashMap<u64, Value>,
}

impl Transport for Lines {
    fn start(&mut self, method: &str, params: &Value) -> u64 {
        self.next += 1;
        let call = json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": self.next });
        self.door.send(call.to_string().as_bytes());
        self.next
    }

    fn finish(&mut self, call: u64) -> Result<Value, Value> {
        loop {
            if let Some(mut answer) = self.answered.remove(&call) {
                return match answer.get_mut("error") {
                    Some(error) => Err(error.take()),
                    None => Ok(answer["result"].take()),
                };
            }
            let answer = self.door.receive();
            self.answered.insert(answer["id"].as_u64().unwrap(), answer);
        }
    }
}

#[test]
fn every_method_is_served_over_stdio() {
    let catalogue = methods::catalogue();
    let policies = methods::policy_folder(&[methods::policy()]);
    let door = StdioClient::start(Options::new().catalogue(&catalogue).policies(policies.path()));
    let workspace = door.workspace();
    let mut lines = Lines { door, next: 0, answered: HashMap::new() };
    methods::every_method_is_served(&mut lines, &workspace);
    let (status, rest) = lines.door.finish();
    assert!(status.success() && rest.is_empty(), "{status} {rest:?}");
}

#[test]
fn request_ids_are_echoed_verbatim_over_stdio() {
    let mut door = StdioClient::start(Options::new());
    let (good, bad) = ids();
    for id in &good {
        door.send(format!(r#"{{"jsonrpc":"2.0","method":"a2g/tools","id":{id}}}"#).as_bytes());
    }
    let (status, lines) = door.finish();
    assert!(status.success());
    for id in &good {
        assert!(lines.iter().any(|line| has_id(line, id)), "{id} did not come back");
    }
    let mut door = StdioClient::start(Options::new());
    for id in bad {
        error(&door.exchange(&format!(r#"{{"jsonrpc":"2.0","method":"a2g/tools","id":{id}}}"#)), -32600);
    }
}

#[test]
fn notifications_over_stdio_run_only_when_they_restrict() {
    let mut door = StdioClient::start(Options::new());
    let notification = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
    };
    let workspace = door.workspace();
    door.send(notification("a2g/execute", execute("write_file", write("notified", "x"))).as_bytes());
    let policy = json!({ "agent_did": AGENT, "version": "none", "capabilities": { "tools": {} } });
    door.send(notification("g2a/policy", policy).as_bytes());
    eventually("the policy is in force", || {
        let call = json!({ "jsonrpc": "2.0", "method": "a2g/execute", "id": 1,
            "params": execute("list_directory", json!({ "path": "/workspace" })) });
        let answer = door.exchange(&call.to_string());
        (answer["error"]["data"]["blocked_by"] == "standing_policy").then_some(())
    });
    assert!(!workspace.join("notified").exists());
}

#[test]
fn running_calls_complete_after_the_end_of_standard_input() {
    let catalogue = methods::catalogue();
    let mut door = StdioClient::start(Options::new().catalogue(&catalogue));
    let call = execute("gate", json!({}));
    let line = json!({ "jsonrpc": "2.0", "method": "a2g/execute", "params": call, "id": "last" });
    let workspace = door.workspace();
    // Both are there before the gate is asked for, so that it ends by itself.
    door.send(line.to_string().as_bytes());
    eventually("the gate runs", || workspace.join("runs").exists().then_some(()));
    std::fs::write(workspace.join("go"), "").unwrap();
    let (status, lines) = door.finish();
    assert!(status.success(), "{status}");
    let answer: Value = serde_json::from_str(&lines.concat()).unwrap();
    assert_eq!(result(&answer)["result"], json!({ "waited": true }));
}
