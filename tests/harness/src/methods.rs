//! One sequence of calls to every served method, which the tests run over each transport.

use super::{
    AGENT, Catalogue, GATE, Tool, check_answer, eventually, execute, id_of, intent, intent_id,
    policy_for_all, write_policies,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A way to call methods, even while earlier calls are not answered yet.
pub trait Transport {
    /// Sends a call.
    fn start(&mut self, method: &str, params: &Value) -> u64;

    /// Waits for the answer of a call: its result, or its error.
    fn finish(&mut self, call: u64) -> Result<Value, Value>;

    fn call(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
        let call = self.start(method, params);
        let answer = self.finish(call);
        let member = if answer.is_ok() { "result" } else { "error" };
        let (Ok(content) | Err(content)) = &answer;
        check_answer(Some(method), &json!({ member: content }));
        answer
    }
}

/// All methods of the door.
const METHODS: [&str; 20] = [
    "a2g/cancel",
    "a2g/commit",
    "a2g/discard",
    "a2g/effects",
    "a2g/execute",
    "a2g/heartbeat",
    "a2g/intent",
    "a2g/register",
    "a2g/report",
    "a2g/resume",
    "a2g/session/end",
    "a2g/status",
    "a2g/stop",
    "a2g/stops",
    "a2g/tools",
    "a2g/undo",
    "g2a/directive",
    "g2a/policy",
    "g2a/revoke",
    "rpc.discover",
];

/// Content that looks like a private key makes the built-in governor escalate.
pub const ESCALATES: &str = "-----BEGIN PRIVATE KEY-----";

/// A catalogue with the repository's tools and the gate.
pub fn catalogue() -> Catalogue {
    Catalogue::with_tools().add(Tool::command("gate", GATE))
}

/// A policy that allows `write_file`, `read_file` and the gate in `/workspace`.
pub fn policy() -> Value {
    let anywhere = json!({ "paths": ["/workspace/**"] });
    policy_for_all(&[("write_file", anywhere.clone()), ("read_file", anywhere.clone()), ("gate", anywhere)])
}

/// A folder with the policies in it.
pub fn policy_folder(policies: &[Value]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_policies(folder.path(), policies);
    folder
}

pub fn write(name: &str, content: &str) -> Value {
    json!({ "path": format!("/workspace/{name}"), "content": content })
}

/// Calls every method, on an executor with [`catalogue`] whose governor has [`policy`].
pub fn every_method_is_served(door: &mut impl Transport, workspace: &std::path::Path) {
    let file = |name: &str| std::fs::read_to_string(workspace.join(name)).ok();
    discovery(door);
    running(door, &file);
    cancelling(door, &file);
    policies_and_revocations(door, &file);
    escalating(door, &file);
}

fn discovery(door: &mut impl Transport) {
    let tools = door.call("a2g/tools", &json!({})).unwrap();
    let names: Vec<&str> =
        tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let expected = [
        "edit_file",
        "gate",
        "hash_file",
        "http_fetch",
        "list_directory",
        "read_file",
        "search_text",
        "write_file",
    ];
    assert_eq!(names, expected);
    for tool in tools["tools"].as_array().unwrap() {
        assert!(tool["digest"].as_str().unwrap().starts_with("sha256:"), "{tool}");
        assert!(tool["arguments_schema"].is_object() && tool["capabilities"].is_object(), "{tool}");
        assert!(tool["version"].is_string() && tool["description"].is_string(), "{tool}");
    }

    let document = door.call("rpc.discover", &json!({})).unwrap();
    let listed: BTreeSet<&str> =
        document["methods"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(listed, METHODS.into_iter().collect());
    for method in listed {
        if let Err(error) = door.call(method, &json!({})) {
            assert_ne!(error["code"], -32601, "{method} is listed and not served");
        }
    }
    for absent in ["a2g/revoke", "g2a/verdict", "rpc.discovery", ""] {
        assert_eq!(door.call(absent, &json!({})).unwrap_err()["code"], -32601, "{absent}");
    }
}

fn running(door: &mut impl Transport, file: &dyn Fn(&str) -> Option<String>) {
    let call = execute("write_file", write("executed", "one"));
    let report = door.call("a2g/execute", &call).unwrap();
    assert_eq!(report["status"], "SUCCESS", "{report}");
    assert_eq!(report["result"], json!({ "bytes_written": 3, "path": "/workspace/executed" }));
    assert_eq!(report["agent_did"], AGENT);
    assert_eq!(file("executed").as_deref(), Some("one"));

    let call = intent("write_file", write("asked", "two"));
    let answer = door.call("a2g/intent", &call).unwrap();
    assert_eq!(answer["verdict"], "APPROVED", "{answer}");
    assert_eq!(answer["intent_id"], call["intent_id"]);
    assert_eq!(answer["report"]["status"], "SUCCESS", "{answer}");
    assert_eq!(file("asked").as_deref(), Some("two"));

    let status = door.call("a2g/status", &json!({ "intent_id": call["intent_id"] })).unwrap();
    assert_eq!(status["state"], "finished");
    assert_eq!(status["report"], answer["report"]);
    let unknown = door.call("a2g/status", &json!({ "intent_id": intent_id() })).unwrap_err();
    assert_eq!((&unknown["code"], &unknown["data"]["pointer"]), (&json!(-32602), &json!("/intent_id")));
}

fn cancelling(door: &mut impl Transport, file: &dyn Fn(&str) -> Option<String>) {
    let call = execute("gate", json!({}));
    let id = json!({ "intent_id": id_of(&call) });
    let run = door.start("a2g/execute", &call);
    eventually("the gate runs", || file("runs").filter(|runs| !runs.is_empty()));
    assert_eq!(door.call("a2g/status", &id).unwrap()["state"], "running");
    let cancelled = door.call("a2g/cancel", &id).unwrap();
    assert_eq!(cancelled, json!({ "intent_id": id["intent_id"], "cancelled": true }));
    let error = door.finish(run).unwrap_err();
    assert_eq!(error["code"], -32001, "{error}");
    assert_eq!(error["data"]["report"]["status"], "ABORTED", "{error}");
    assert!(error["message"].as_str().unwrap().contains("a2g/cancel"), "{error}");
    assert_eq!(door.call("a2g/cancel", &id).unwrap()["cancelled"], false);
    assert_eq!(door.call("a2g/status", &id).unwrap()["report"]["status"], "ABORTED");
}

fn policies_and_revocations(door: &mut impl Transport, file: &dyn Fn(&str) -> Option<String>) {
    let policy = |allowed: bool| {
        let rule = json!({ "allowed": allowed, "constraints": {} });
        json!({ "agent_did": AGENT, "version": "v", "capabilities": { "tools": { "write_file": rule, "gate": rule } } })
    };
    assert_eq!(door.call("g2a/policy", &policy(false)).unwrap(), json!({ "accepted": true }));
    let refused = door.call("a2g/execute", &execute("write_file", write("forbidden", ""))).unwrap_err();
    assert_eq!(refused["data"]["blocked_by"], "standing_policy", "{refused}");
    assert_eq!(door.call("g2a/policy", &policy(true)).unwrap()["accepted"], true);

    // Revokes one intent, and then the agent as a whole.
    let call = execute("gate", json!({ "second": true }));
    let run = door.start("a2g/execute", &call);
    eventually("the gate runs again", || file("runs").filter(|runs| runs.len() == 2));
    let revoked = door.call("g2a/revoke", &json!({ "intent_id": id_of(&call) })).unwrap();
    assert_eq!(revoked, json!({ "accepted": true, "aborted": 1 }));
    assert_eq!(door.finish(run).unwrap_err()["data"]["report"]["status"], "ABORTED");
    let revoked = door.call("g2a/revoke", &json!({ "agent_did": AGENT })).unwrap();
    assert_eq!(revoked, json!({ "accepted": true, "aborted": 0 }));
    let refused = door.call("a2g/execute", &execute("write_file", write("forbidden", ""))).unwrap_err();
    assert_eq!(refused["data"]["blocked_by"], "standing_policy", "{refused}");
    assert_eq!(file("forbidden"), None);
    assert_eq!(door.call("g2a/policy", &policy(true)).unwrap()["accepted"], true);
    door.call("a2g/execute", &execute("write_file", write("allowed", ""))).unwrap();
}

fn escalating(door: &mut impl Transport, file: &dyn Fn(&str) -> Option<String>) {
    for decision in ["DENIED", "APPROVED"] {
        let call = intent("write_file", write(decision, ESCALATES));
        let id = json!({ "intent_id": call["intent_id"] });
        let answer = door.call("a2g/intent", &call).unwrap();
        assert_eq!(answer["verdict"], "ESCALATE", "{answer}");
        assert!(answer.get("report").is_none(), "{answer}");
        assert_eq!(door.call("a2g/status", &id).unwrap()["state"], "escalated");
        assert_eq!(file(decision), None);
        let directive = json!({ "intent_id": id["intent_id"], "decision": decision });
        assert_eq!(door.call("g2a/directive", &directive), Ok(json!({ "accepted": true })), "{decision}");
        if decision == "APPROVED" {
            let report = eventually("the approved intent has run", || {
                door.call("a2g/status", &id).unwrap().get("report").cloned()
            });
            assert_eq!(report["status"], "SUCCESS", "{report}");
        }
        // An intent can be resolved only once.
        assert_eq!(door.call("g2a/directive", &directive).unwrap_err()["code"], -32602);
    }
    assert_eq!((file("DENIED").as_deref(), file("APPROVED").as_deref()), (None, Some(ESCALATES)));

    // A call that contains an ESCALATE verdict waits in the same way.
    let mut call = execute("write_file", write("later", "x"));
    call["verdict"]["verdict"] = json!("ESCALATE");
    let waits = door.call("a2g/execute", &call).unwrap_err();
    assert_eq!(waits["data"]["blocked_by"], "escalation_pending", "{waits}");
    let directive = json!({ "intent_id": id_of(&call), "decision": "APPROVED" });
    assert_eq!(door.call("g2a/directive", &directive).unwrap()["accepted"], true);
    eventually("the approved intent has run", || file("later").filter(|content| content == "x"));
}

/// The params of a call as jsonrpsee takes them.
pub struct Params(pub Value);

impl jsonrpsee::core::traits::ToRpcParams for Params {
    fn to_rpc_params(self) -> Result<Option<Box<serde_json::value::RawValue>>, serde_json::Error> {
        serde_json::value::to_raw_value(&self.0).map(Some)
    }
}

/// A client of jsonrpsee, an independent implementation of JSON-RPC.
pub struct Jsonrpsee<C> {
    runtime: tokio::runtime::Runtime,
    client: std::sync::Arc<C>,
    calls: Vec<Option<tokio::task::JoinHandle<Result<Value, Value>>>>,
}

impl<C> Jsonrpsee<C> {
    pub fn new<E: std::fmt::Debug>(connect: impl AsyncFnOnce() -> Result<C, E>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let client = std::sync::Arc::new(runtime.block_on(connect()).unwrap());
        Self { runtime, client, calls: Vec::new() }
    }
}

impl<C: jsonrpsee::core::client::ClientT + Send + Sync + 'static> Transport for Jsonrpsee<C> {
    fn start(&mut self, method: &str, params: &Value) -> u64 {
        let client = std::sync::Arc::clone(&self.client);
        let method = method.to_owned();
        let params = params.clone();
        let call = self.runtime.spawn(async move {
            let answer = client.request::<Value, _>(&method, Params(params)).await;
            answer.map_err(|error| {
                let jsonrpsee::core::client::Error::Call(error) = error else { panic!("no answer: {error}") };
                serde_json::to_value(error).unwrap()
            })
        });
        self.calls.push(Some(call));
        u64::try_from(self.calls.len() - 1).unwrap()
    }

    fn finish(&mut self, call: u64) -> Result<Value, Value> {
        let call = self.calls[usize::try_from(call).unwrap()].take().unwrap();
        self.runtime.block_on(call).unwrap()
    }
}
