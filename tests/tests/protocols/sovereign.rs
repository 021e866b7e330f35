//! The sovereign door: JSON-RPC 3.0 on `/run`, its legacy form, and `/capabilities`.

use harness::callers::{List, agent, bearer};
use harness::methods::{ESCALATES, policy_folder, write};
use harness::*;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The catalogue of every test: two operations of one skill, and tools that are skills by themselves.
struct Served {
    catalogue: Catalogue,
    policies: TempDir,
}

impl Served {
    fn new() -> Self {
        let fails = saying(2, "IMAP connection refused\n", 3);
        let catalogue = Catalogue::with_tools()
            .add(Tool::command("gate", GATE))
            .add(Tool::command("email.check_unread", &fails))
            .add(Tool::command("email.send", &fails));
        let anywhere = json!({ "paths": ["/workspace/**"] });
        let tools = ["write_file", "read_file", "search_text", "gate", "email.check_unread"];
        let policy = policy_for_all(&tools.map(|tool| (tool, anywhere.clone())));
        Self { catalogue, policies: policy_folder(&[policy]) }
    }

    fn options(&self) -> Options {
        Options::new().catalogue(&self.catalogue).policies(self.policies.path())
    }
}

fn request(method: &str, payload: Value) -> Value {
    json!({ "jsonrpc": "3.0", "id": "req-abc123", "method": method, "params": { "payload": payload } })
}

fn send(executor: &Executor, body: &[u8]) -> HttpAnswer {
    let mut client = HttpClient::connect(executor.address());
    client.request("POST", "/run", &[("Content-Type", "application/json")], body)
}

fn run(executor: &Executor, request: &Value) -> Value {
    let answer = send(executor, request.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// Checks that an answer is an error of this code, and gives it.
fn expect_failure(answer: &Value, code: i64) -> &Value {
    let error = &answer["error"];
    assert_eq!((&answer["jsonrpc"], &error["code"]), (&json!("3.0"), &json!(code)), "{answer}");
    assert!(answer.get("result").is_none() && answer["metadata"]["context_hints"].is_object(), "{answer}");
    let data = error["data"].as_object().unwrap();
    assert!(
        ["skill", "operation", "status_code"].iter().all(|member| data.contains_key(*member)),
        "{answer}"
    );
    error
}

/// What a call is answered is in the transcripts.
#[test]
fn a_skill_lists_its_operations() {
    let served = Served::new();
    let executor = Executor::start(served.options());
    let capabilities = executor.client().request("GET", "/capabilities", &[], b"").json();
    let email = capabilities["skills"].as_array().unwrap().iter().find(|skill| skill["name"] == "email");
    let operations = email.unwrap()["operations"].as_array().unwrap();
    let names = operations.iter().map(|operation| &operation["name"]).collect::<Vec<_>>();
    assert_eq!(names, [&json!("check_unread"), &json!("send")]);
    let unknown = run(&executor, &request("email/none", json!({})));
    assert_eq!(expect_failure(&unknown, -32601)["data"]["available"], json!(["check_unread", "send"]));
    expect_failure(&run(&executor, &request("email", json!({}))), -32601);
    assert_eq!(executor.reports(), [] as [Value; 0]);
}

#[test]
fn tools_are_accepted_under_every_name_and_request_form() {
    let served = Served::new();
    let executor = Executor::start(served.options());
    let payload = write("one", "hi");
    for (method, params) in [
        (json!("write_file"), json!({ "payload": payload })),
        (json!("write_file/run"), json!({ "payload": payload })),
        (json!(null), json!({ "skill": "write_file", "payload": payload })),
        (json!(null), json!({ "skill": "write_file", "operation": "run", "payload": payload })),
        (json!("write_file"), json!({ "skill": "write_file", "operation": "run", "payload": payload })),
    ] {
        let mut request = json!({ "jsonrpc": "3.0", "id": 7, "params": params });
        if !method.is_null() {
            request["method"] = method;
        }
        let answer = run(&executor, &request);
        assert_eq!((&answer["id"], &answer["result"]["success"]), (&json!(7), &json!(true)), "{answer}");
    }
    // Without an id one is made.
    let mut anonymous = request("write_file", payload.clone());
    anonymous.as_object_mut().unwrap().remove("id");
    let answer = run(&executor, &anonymous);
    assert_eq!(answer["id"].as_str().unwrap().len(), 36);
    let intent = &answer["metadata"]["context_hints"]["intent_id"];
    let status = executor.rpc("a2g/status", &json!({ "intent_id": intent }));
    assert_eq!(status["result"]["report"]["status"], "SUCCESS", "one core behind every door: {status}");
    // The legacy form is answered flat.
    for (operation, arguments) in [("action", "params"), ("operation", "payload")] {
        let legacy = json!({ "skill": "write_file", operation: "run", arguments: payload,
            "context": { "user": "x" }, "request_id": "r1", "timeout_ms": 60_000 });
        let answer = run(&executor, &legacy);
        let data = json!({ "bytes_written": 2, "path": "/workspace/one" });
        let flat = json!({ "request_id": "r1", "success": true, "status_code": "SUCCESS", "data": data });
        assert_eq!(answer, flat);
    }
    let answer = run(&executor, &json!({ "skill": "nothing", "request_id": 1 }));
    assert_eq!((&answer["success"], &answer["error_code"]), (&json!(false), &json!(-32002)), "{answer}");
}

#[test]
fn failures_are_answered_with_this_protocols_codes() {
    let served = Served::new();
    let executor = Executor::start(served.options());
    let escalated = run(&executor, &request("write_file", write("secret", ESCALATES)));
    let escalated = expect_failure(&escalated, -32000);
    assert_eq!(escalated["data"]["status_code"], "ESCALATION_PENDING");
    assert!(escalated["data"]["intent_id"].is_string() && escalated["data"]["risk_score"].is_number());
    assert_eq!(executor.file("secret"), None);

    // The caller's own timeout is the limit, and says so.
    let mut slow = request("gate", json!({ "path": "/workspace" }));
    slow["metadata"] = json!({ "context_hints": { "timeout_ms": 250 } });
    let late = run(&executor, &slow);
    let late = expect_failure(&late, -32001);
    assert!(late["message"].as_str().unwrap().contains("0.25 s, set by the caller"), "{late}");
    assert_eq!((&late["data"]["status_code"], &late["data"]["limit"]), (&json!("TIMEOUT"), &json!("time")));
    let intent = late["data"]["intent_id"].clone();
    let report = eventually("the report", || {
        executor.reports().into_iter().find(|report| report["intent_id"] == intent)
    });
    let limit = &report["usage"]["limits"]["timeout_seconds"];
    assert_eq!((&limit["granted"], &limit["set_by"]), (&json!(0.25), &json!("caller")), "{report}");
    // It can only be less than what is granted.
    slow["metadata"]["context_hints"]["timeout_ms"] = json!(600_000_000);
    let id = json!({ "jsonrpc": "3.0", "method": "write_file", "params": { "payload": write("one", "x") },
        "metadata": slow["metadata"] });
    let intent = run(&executor, &id)["metadata"]["context_hints"]["intent_id"].clone();
    let report = eventually("the report", || {
        executor.reports().into_iter().find(|report| report["intent_id"] == intent)
    });
    assert_ne!(report["usage"]["limits"]["timeout_seconds"]["set_by"], "caller", "{report}");

    // Cancelled, from another door.
    let runs = executor.file("runs").map_or(0, |runs| runs.len());
    let address = executor.address();
    let body = request("gate", json!({ "path": "/workspace" })).to_string();
    let waiting = std::thread::spawn(move || {
        let mut client = HttpClient::connect(address);
        client.request("POST", "/run", &[("Content-Type", "application/json")], body.as_bytes()).json()
    });
    eventually("the gate runs", || (executor.file("runs")?.len() > runs).then_some(()));
    let revoked = executor.rpc("g2a/revoke", &json!({ "agent_did": "did:a2g:agent:1.0:sovereign" }));
    assert!(revoked.get("error").is_none(), "{revoked}");
    let aborted = waiting.join().unwrap();
    assert_eq!(expect_failure(&aborted, -32000)["data"]["status_code"], "ABORTED");
}

/// The parts of an answer are in the transcripts.
#[test]
fn a_streamed_call_survives_its_client() {
    let served = Served::new();
    let executor = Executor::start(served.options());
    let mut streamed = request("gate", json!({ "path": "/workspace" }));
    streamed["metadata"] = json!({ "stream": true });
    let body = streamed.to_string();
    let head = format!(
        "POST /run HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        executor.address(),
        body.len()
    );
    let gone = HttpClient::send_only(executor.address(), format!("{head}{body}").as_bytes());
    let before = executor.reports().len();
    eventually("the gate runs", || executor.file("runs").filter(|runs| !runs.is_empty()));
    drop(gone);
    std::fs::write(executor.workspace().join("go"), "").unwrap();
    let report = eventually("its report", || executor.reports().into_iter().nth(before));
    assert_eq!(report["status"], "SUCCESS", "{report}");
}

#[test]
fn an_invalid_payload_is_answered_with_the_schema() {
    let served = Served::new();
    let executor = Executor::start(served.options());
    let mut corrects = request("write_file", json!({ "path": 1 }));
    corrects["metadata"] = json!({ "context_hints": { "retry_strategy": "correct_payload" } });
    let told = run(&executor, &corrects);
    let told = &expect_failure(&told, -32602)["data"];
    assert!(told["payload_schema"]["properties"].is_object(), "{told}");
    assert!(told["pointer"].as_str().unwrap().starts_with("/params/payload"), "{told}");
    assert_eq!(executor.reports(), [] as [Value; 0]);
}

#[test]
fn a_caller_acts_for_its_own_agent() {
    let served = Served::new();
    let list = List::new();
    let of = "did:aeon:mail:1.0:a";
    let mail = agent(&list, "mail", of);
    let operator = list.add("operator", &["--role", "operator"]);
    let executor = Executor::start(list.of(served.options().signed_only()));
    let body = request("write_file", write("one", "hi")).to_string();
    let mut client = HttpClient::connect(executor.address());
    let mut send = |shown: (&str, &str)| {
        let headers = [("Content-Type", "application/json"), shown];
        client.request("POST", "/run", &headers, body.as_bytes()).json()
    };
    // An operator is no agent.
    let answer = send(("X-API-Key", &operator));
    assert_eq!(expect_failure(&answer, -32000)["data"]["status_code"], "CALLER_UNAUTHORIZED");
    assert_eq!(executor.file("one"), None);
    for shown in [("X-API-Key", mail.as_str()), ("Authorization", &bearer(&mail))] {
        assert_eq!(send(shown)["result"]["success"], true);
    }
    let reports = eventually("two reports", || Some(executor.reports()).filter(|all| all.len() == 2));
    assert!(reports.iter().all(|report| report["agent_did"] == of), "{reports:?}");
}

#[test]
fn the_door_can_be_made_public() {
    let served = Served::new();
    let list = List::new();
    list.add("x", &["--role", "operator"]);
    let open = json!({ "open_to": "everybody", "agent": "did:aeon:guest:1.0:g" });
    let executor = Executor::start(list.of(served.options().set("doors.sovereign", open)).signed_only());
    let answer = run(&executor, &request("write_file", write("one", "hi")));
    assert_eq!(answer["result"]["success"], true, "{answer}");
    let report = eventually("its report", || executor.reports().into_iter().next());
    assert_eq!(report["agent_did"], "did:aeon:guest:1.0:g");
}

#[test]
fn a_staged_run_is_a_success_with_the_list_of_its_changes() {
    let served = Served::new();
    let executor = Executor::start(served.options().set("ceilings.effects", "staged"));
    let answer = run(&executor, &request("write_file", write("a", "hello")));
    let staged = &answer["result"];
    assert_eq!((&staged["success"], &staged["status_code"]), (&json!(true), &json!("STAGED")), "{answer}");
    assert_eq!(staged["data"]["path"], "/workspace/a");
    let effects = &staged["effects"];
    assert_eq!(
        (&effects["state"], &effects["files"][0]["path"]),
        (&json!("waiting"), &json!("/workspace/a"))
    );
    assert!(effects["message"].as_str().unwrap().contains("not in force"), "{answer}");
    executor.assert_workspace_is_empty("a run whose changes wait");
    let intent = &answer["metadata"]["context_hints"]["intent_id"];
    let commit = json!({ "intent": intent, "digest": effects["digest"] });
    assert_eq!(executor.rpc("a2g/commit", &commit)["result"]["status"], "SUCCESS");
    assert_eq!(executor.file("a").as_deref(), Some("hello"));
    let legacy =
        json!({ "skill": "write_file", "action": "run", "params": write("b", "hello"), "request_id": "r" });
    let flat = run(&executor, &legacy);
    assert_eq!(
        (&flat["status_code"], &flat["effects"]["state"]),
        (&json!("STAGED"), &json!("waiting")),
        "{flat}"
    );
}
