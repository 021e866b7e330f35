//! The life cycle of an intent: repeats, disconnects, the queue, the end of the process.

use harness::methods::write;
use harness::*;
use serde_json::{Value, json};
use std::thread::JoinHandle;

fn start(options: Options) -> (Executor, Catalogue) {
    let catalogue = methods::catalogue();
    (Executor::start(options.catalogue(&catalogue)), catalogue)
}

/// An executor whose one slot a gate has, and the answer to that.
fn start_with_a_gate(options: Options) -> (Executor, Catalogue, JoinHandle<Value>) {
    let (executor, catalogue) = start(options);
    let running = call_in_background(&executor, "a2g/execute", &execute("gate", json!({})));
    executor.wait_at_the_gate(1);
    (executor, catalogue, running)
}

fn one_slot() -> Options {
    Options::new().set("executor.concurrent", 1)
}

#[test]
fn a_repeated_intent_gets_the_stored_report_without_a_second_run() {
    let (executor, _catalogue) = start(Options::new());
    let mut client = executor.client();
    let append = json!({ "path": "/workspace/log", "content": "x", "mode": "append" });
    let call = execute("write_file", append.clone());
    let first = client.rpc("a2g/execute", &call);
    assert_eq!(result(&first)["status"], "SUCCESS");
    for _ in 0..3 {
        assert_eq!(result(&client.rpc("a2g/execute", &call)), result(&first));
    }
    // Another order of keys is the same content; so is another verdict, and the other method.
    let mut again = call.clone();
    again["intent"]["arguments"] = json!({ "mode": "append", "content": "x", "path": "/workspace/log" });
    again["verdict"]["expires_at"] = json!(in_seconds(7200));
    assert_eq!(result(&client.rpc("a2g/execute", &again)), result(&first));
    assert_eq!(executor.file("log").as_deref(), Some("x"));

    let call = intent("write_file", append);
    let first = client.rpc("a2g/intent", &call);
    assert_eq!(result(&first)["report"]["status"], "SUCCESS", "{first}");
    assert_eq!(result(&client.rpc("a2g/intent", &call)), result(&first));
    assert_eq!(executor.file("log").as_deref(), Some("xx"));
    assert_eq!(executor.wait_for_reports(2).len(), 2);
}

#[test]
fn a_failed_run_is_not_run_again_either() {
    let (executor, _catalogue) = start(Options::new());
    let mut client = executor.client();
    let call = execute("read_file", json!({ "path": "/workspace/later" }));
    let first = client.rpc("a2g/execute", &call);
    error(&first, -32001);
    std::fs::write(executor.workspace().join("later"), "now it is there").unwrap();
    assert_eq!(client.rpc("a2g/execute", &call)["error"], first["error"]);
}

#[test]
fn a_repeated_intent_with_other_content_is_an_invalid_request() {
    let (executor, _catalogue) = start(Options::new());
    let mut client = executor.client();
    let call = execute("write_file", write("one", "x"));
    result(&client.rpc("a2g/execute", &call));
    let changes = [
        ("/intent/arguments/path", json!("/workspace/two")),
        ("/intent/arguments/content", json!("y")),
        ("/intent/agent_did", json!("did:aeon:other:1.0:x")),
        ("/intent/tool", json!("edit_file")),
    ];
    for (pointer, value) in changes {
        let mut other = call.clone();
        *other.pointer_mut(pointer).unwrap() = value;
        if pointer == "/intent/tool" {
            other["intent"]["arguments"] =
                json!({ "path": "/workspace/one", "edits": [{ "old": "x", "new": "y" }] });
        }
        for (method, params) in [("a2g/execute", &other), ("a2g/intent", &other["intent"])] {
            let response = client.rpc(method, params);
            if response["error"]["code"] != -32602 {
                error(&response, -32600);
            }
        }
    }
    let names: Vec<_> =
        std::fs::read_dir(executor.workspace()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["one"]);
    assert_eq!(executor.file("one").as_deref(), Some("x"));
}

#[test]
fn an_intent_sent_by_32_clients_runs_once_and_is_answered_32_times() {
    let policies = methods::policy_folder(&[methods::policy()]);
    for (method, call) in [
        ("a2g/execute", execute("gate", json!({}))),
        ("a2g/intent", intent("gate", json!({ "path": "/workspace/x" }))),
    ] {
        let (executor, _catalogue) = start(Options::new().policies(policies.path()));
        let clients: Vec<_> = (0..32).map(|_| call_in_background(&executor, method, &call)).collect();
        executor.wait_at_the_gate(1);
        executor.open_the_gate();
        let answers: Vec<Value> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        let report = |answer: &Value| match method {
            "a2g/execute" => result(answer).clone(),
            _ => {
                assert_eq!(result(answer)["verdict"], "APPROVED");
                result(answer)["report"].clone()
            }
        };
        let first = report(&answers[0]);
        assert!(answers.iter().all(|answer| report(answer) == first), "{method}: {answers:?}");
        assert_eq!(first["result"], json!({ "waited": true }), "{first}");
        assert_eq!(executor.runs_of_the_gate(), 1);
        assert_eq!(executor.wait_for_reports(1).len(), 1);
    }
}

#[test]
fn a_run_continues_after_its_client_disconnects() {
    let (mut executor, _catalogue) = start(Options::new());
    let call = execute("gate", json!({}));
    let message = |call: &Value| {
        json!({ "jsonrpc": "2.0", "method": "a2g/execute", "params": call, "id": 1 }).to_string()
    };
    let request = post_request("/jsonrpc", &[], &message(&call));
    let stream = HttpClient::send_only(executor.address(), request.as_bytes());
    executor.wait_at_the_gate(1);
    drop(stream);
    let socket_call = execute("gate", json!({ "second": true }));
    let mut socket = executor.web_socket();
    socket.send(message(&socket_call).as_bytes());
    executor.wait_at_the_gate(2);
    drop(socket);
    executor.open_the_gate();
    for call in [&call, &socket_call] {
        eventually("the run ends", || (executor.state_of(call) == "finished").then_some(()));
        let again = executor.rpc("a2g/execute", call);
        assert_eq!(result(&again)["status"], "SUCCESS", "{again}");
    }
    executor.process().stop();
    assert_eq!((executor.runs_of_the_gate(), executor.reports().len()), (2, 2));
}

#[test]
fn a_run_completes_and_is_reported_after_sigterm() {
    let governor = Governor::start(&[methods::policy()]);
    let catalogue = methods::catalogue();
    for options in [Options::new(), Options::new().governor(&governor.http_url())] {
        let options = options.catalogue(&catalogue).set("executor.drain_seconds", 60);
        let mut executor = Executor::start(options);
        let call = execute("gate", json!({}));
        let running = call_in_background(&executor, "a2g/execute", &call);
        executor.wait_at_the_gate(1);
        executor.process().terminate();
        executor.open_the_gate();
        let answer = running.join().unwrap();
        assert_eq!(result(&answer)["status"], "SUCCESS", "{answer}");
        let status = executor.process().wait_for_exit();
        assert_eq!(status.code(), Some(0));
        let mut reports = executor.reports();
        reports.extend(governor.reports());
        let of = reports.iter().filter(|report| report["intent_id"] == id_of(&call)).collect::<Vec<_>>();
        assert_eq!(of, [result(&answer)]);
    }
}

#[test]
fn a_run_that_outlasts_the_drain_limit_is_aborted_and_reported() {
    let (mut executor, _catalogue, running) =
        start_with_a_gate(Options::new().set("executor.drain_seconds", 1));
    executor.process().terminate();
    let answer = running.join().unwrap();
    assert_eq!(error(&answer, -32001)["data"]["report"]["status"], "ABORTED", "{answer}");
    assert_eq!(executor.process().wait_for_exit().code(), Some(0));
    assert_eq!(executor.reports(), [answer["error"]["data"]["report"].clone()]);
}

#[test]
fn new_intents_are_refused_after_sigterm() {
    let (mut executor, _catalogue, running) =
        start_with_a_gate(Options::new().set("executor.drain_seconds", 60));
    let mut socket = executor.web_socket();
    result(&socket.exchange(r#"{"jsonrpc":"2.0","method":"a2g/tools","id":0}"#));
    executor.process().terminate();
    // The signal arrives some time soon, and from then on everything new is refused.
    let mut taken = 0;
    let refusal = eventually("new work is refused", || {
        let call = execute("write_file", write(&format!("new{taken}"), "x"));
        let call = json!({ "jsonrpc": "2.0", "method": "a2g/execute", "params": call, "id": 1 });
        let answer = socket.exchange(&call.to_string());
        taken += usize::from(answer.get("result").is_some());
        answer.get("error").is_some().then_some(answer)
    });
    let busy = error(&refusal, -32003);
    assert!(busy["data"]["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0), "{refusal}");
    assert!(busy["message"].as_str().unwrap().contains("shutting down"), "{refusal}");
    executor.open_the_gate();
    result(&running.join().unwrap());
    assert_eq!(executor.process().wait_for_exit().code(), Some(0));
    assert_eq!(executor.reports().len(), taken + 1);
}

#[test]
fn a_full_queue_answers_with_a_retry_delay() {
    let (executor, _catalogue, first_answer) = start_with_a_gate(one_slot().set("executor.queue", 1));
    let [second, third] = [2, 3].map(|n| execute("gate", json!({ "n": n })));
    let second_answer = call_queued(&executor, &second);
    let refused = executor.rpc("a2g/execute", &third);
    let busy = error(&refused, -32003);
    assert!(busy["data"]["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0), "{refused}");
    assert!(busy["message"].as_str().unwrap().contains("queue is full"), "{refused}");
    assert_eq!(executor.state_of(&third), "unknown");
    executor.open_the_gate();
    for answer in [first_answer, second_answer] {
        assert_eq!(result(&answer.join().unwrap())["status"], "SUCCESS");
    }
    // A retry is served.
    let again = eventually("there is room again", || {
        let answer = executor.rpc("a2g/execute", &third);
        answer.get("result").is_some().then_some(answer)
    });
    assert_eq!(result(&again)["status"], "SUCCESS");
    assert_eq!(executor.runs_of_the_gate(), 3);
}

#[test]
fn a_waiting_intent_can_be_cancelled_and_never_starts() {
    let (executor, _catalogue, first_answer) = start_with_a_gate(one_slot());
    let second = execute("gate", json!({ "n": 2 }));
    let second_answer = call_queued(&executor, &second);
    let cancelled = executor.rpc("a2g/cancel", &json!({ "intent_id": id_of(&second) }));
    assert_eq!(result(&cancelled)["cancelled"], true);
    executor.open_the_gate();
    result(&first_answer.join().unwrap());
    let answer = second_answer.join().unwrap();
    let aborted = error(&answer, -32001);
    assert!(aborted["message"].as_str().unwrap().contains("cancelled"), "{answer}");
    assert_eq!(aborted["data"]["report"]["status"], "ABORTED", "{answer}");
    assert_eq!(executor.runs_of_the_gate(), 1);
    assert!(executor.wait_for_reports(2).contains(&aborted["data"]["report"]));
}

#[test]
fn a_verdict_or_proof_that_expires_in_the_queue_never_starts() {
    let keys = Keys::new();
    let options = proofs::with_leave(&keys).set("executor.concurrent", 1);
    let (executor, _catalogue, first_answer) = start_with_a_gate(options);
    let expiry = time::OffsetDateTime::now_utc() + time::Duration::seconds(5);
    let mut unproven = execute("gate", json!({ "n": 2 }));
    unproven["verdict"]["expires_at"] =
        json!(expiry.format(&time::format_description::well_known::Rfc3339).unwrap());
    let mut proven = execute("gate", json!({ "n": 3 }));
    let claims = proofs::with(&claims(&proven), "exp", json!(expiry.unix_timestamp()));
    proven["proof"] = keys.sign(&claims).into();
    let late = [&unproven, &proven].map(|call| (call, call_queued(&executor, call)));
    eventually("both expire", || (time::OffsetDateTime::now_utc() > expiry).then_some(()));
    executor.open_the_gate();
    result(&first_answer.join().unwrap());
    for (call, answer) in late {
        expect_blocked(&answer.join().unwrap(), "verdict_expired");
        assert_eq!(executor.state_of(call), "unknown");
    }
    assert_eq!(executor.runs_of_the_gate(), 1);
}
