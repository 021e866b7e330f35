//! The life cycle of an intent: repeats, disconnects, the queue, the end of the process.

use crate::harness::*;
use crate::methods::{self, write};
use serde_json::{Value, json};
use std::thread::JoinHandle;

fn start(options: Options) -> (Executor, Catalogue) {
    let catalogue = methods::catalogue();
    (Executor::start(options.catalogue(&catalogue)), catalogue)
}

/// Calls from a thread of its own.
fn call_aside(executor: &Executor, method: &'static str, params: &Value) -> JoinHandle<Value> {
    let (mut client, params) = (executor.client(), params.clone());
    std::thread::spawn(move || client.rpc(method, &params))
}

fn runs(executor: &Executor) -> usize {
    executor.file("runs").map_or(0, |runs| runs.len())
}

fn wait_for_runs(executor: &Executor, count: usize) {
    eventually("the gate runs", || (runs(executor) >= count).then_some(()));
}

fn open_the_gate(executor: &Executor) {
    std::fs::write(executor.workspace().join("go"), "").unwrap();
}

fn state(executor: &Executor, call: &Value) -> String {
    let status = executor.rpc("a2g/status", &json!({ "intent_id": id_of(call) }));
    status["result"]["state"].as_str().unwrap_or("unknown").to_owned()
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
        let response = client.rpc("a2g/execute", &other);
        if response["error"]["code"] != -32602 {
            error(&response, -32600);
        }
        let response = client.rpc("a2g/intent", &other["intent"]);
        if response["error"]["code"] != -32602 {
            error(&response, -32600);
        }
    }
    let names: Vec<_> =
        std::fs::read_dir(executor.workspace()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["one"]);
    assert_eq!(executor.file("one").as_deref(), Some("x"));
}

#[test]
fn an_intent_sent_by_32_clients_runs_once_and_is_answered_32_times() {
    let (executor, _catalogue) = start(Options::new());
    let call = execute("gate", json!({}));
    let clients: Vec<_> = (0..32).map(|_| call_aside(&executor, "a2g/execute", &call)).collect();
    wait_for_runs(&executor, 1);
    open_the_gate(&executor);
    let answers: Vec<Value> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    for answer in &answers {
        assert_eq!(result(answer), result(&answers[0]));
    }
    assert_eq!(result(&answers[0])["result"], json!({ "waited": true }));
    assert_eq!(runs(&executor), 1);
    assert_eq!(executor.wait_for_reports(1).len(), 1);
}

#[test]
fn a_run_continues_after_its_client_disconnects() {
    let (mut executor, _catalogue) = start(Options::new());
    let call = execute("gate", json!({}));
    let body = json!({ "jsonrpc": "2.0", "method": "a2g/execute", "params": call, "id": 1 }).to_string();
    let head = format!(
        "POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let stream = HttpClient::send_only(executor.address(), format!("{head}{body}").as_bytes());
    wait_for_runs(&executor, 1);
    drop(stream);
    let socket_call = execute("gate", json!({ "second": true }));
    let mut socket = executor.web_socket();
    socket.send(
        json!({ "jsonrpc": "2.0", "method": "a2g/execute", "params": socket_call, "id": 1 })
            .to_string()
            .as_bytes(),
    );
    wait_for_runs(&executor, 2);
    drop(socket);
    open_the_gate(&executor);
    for call in [&call, &socket_call] {
        eventually("the run ends", || (state(&executor, call) == "finished").then_some(()));
        let again = executor.rpc("a2g/execute", call);
        assert_eq!(result(&again)["status"], "SUCCESS", "{again}");
    }
    executor.process().terminate();
    assert!(executor.process().wait_for_exit().success());
    assert_eq!((runs(&executor), executor.reports().len()), (2, 2));
}

#[test]
fn a_run_completes_and_is_reported_after_sigterm() {
    let governor = Governor::start(&[methods::policy()]);
    let catalogue = methods::catalogue();
    for options in [Options::new(), Options::new().governor(&governor.http_url())] {
        let options = options.catalogue(&catalogue).set("executor.drain_seconds", 60);
        let mut executor = Executor::start(options);
        let call = execute("gate", json!({}));
        let running = call_aside(&executor, "a2g/execute", &call);
        wait_for_runs(&executor, 1);
        executor.process().terminate();
        open_the_gate(&executor);
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
    let (mut executor, _catalogue) = start(Options::new().set("executor.drain_seconds", 1));
    let call = execute("gate", json!({}));
    let running = call_aside(&executor, "a2g/execute", &call);
    wait_for_runs(&executor, 1);
    executor.process().terminate();
    let answer = running.join().unwrap();
    assert_eq!(error(&answer, -32001)["data"]["report"]["status"], "ABORTED", "{answer}");
    assert_eq!(executor.process().wait_for_exit().code(), Some(0));
    assert_eq!(executor.reports(), [answer["error"]["data"]["report"].clone()]);
}

#[test]
fn new_intents_are_refused_after_sigterm() {
    let (mut executor, _catalogue) = start(Options::new().set("executor.drain_seconds", 60));
    let mut socket = executor.web_socket();
    result(&socket.exchange(r#"{"jsonrpc":"2.0","method":"a2g/tools","id":0}"#));
    let running = call_aside(&executor, "a2g/execute", &execute("gate", json!({})));
    wait_for_runs(&executor, 1);
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
    open_the_gate(&executor);
    result(&running.join().unwrap());
    assert_eq!(executor.process().wait_for_exit().code(), Some(0));
    assert_eq!(executor.reports().len(), taken + 1);
}

#[test]
fn a_full_queue_answers_with_a_retry_delay() {
    let (executor, _catalogue) = start(Options::new().set("executor.concurrent", 1).set("executor.queue", 1));
    let call = |n: usize| execute("gate", json!({ "n": n }));
    let (first, second, third) = (call(1), call(2), call(3));
    let first_answer = call_aside(&executor, "a2g/execute", &first);
    wait_for_runs(&executor, 1);
    let second_answer = call_aside(&executor, "a2g/execute", &second);
    eventually("the second waits", || (state(&executor, &second) == "queued").then_some(()));
    let refused = executor.rpc("a2g/execute", &third);
    let busy = error(&refused, -32003);
    assert!(busy["data"]["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0), "{refused}");
    assert!(busy["message"].as_str().unwrap().contains("queue is full"), "{refused}");
    assert_eq!(state(&executor, &third), "unknown");
    open_the_gate(&executor);
    for answer in [first_answer, second_answer] {
        assert_eq!(result(&answer.join().unwrap())["status"], "SUCCESS");
    }
    // A retry is served.
    let again = eventually("there is room again", || {
        let answer = executor.rpc("a2g/execute", &third);
        answer.get("result").is_some().then_some(answer)
    });
    assert_eq!(result(&again)["status"], "SUCCESS");
    assert_eq!(runs(&executor), 3);
}

#[test]
fn a_waiting_intent_can_be_cancelled_and_never_starts() {
    let (executor, _catalogue) = start(Options::new().set("executor.concurrent", 1));
    let (first, second) = (execute("gate", json!({ "n": 1 })), execute("gate", json!({ "n": 2 })));
    let first_answer = call_aside(&executor, "a2g/execute", &first);
    wait_for_runs(&executor, 1);
    let second_answer = call_aside(&executor, "a2g/execute", &second);
    eventually("the second waits", || (state(&executor, &second) == "queued").then_some(()));
    let cancelled = executor.rpc("a2g/cancel", &json!({ "intent_id": id_of(&second) }));
    assert_eq!(result(&cancelled)["cancelled"], true);
    open_the_gate(&executor);
    result(&first_answer.join().unwrap());
    let answer = second_answer.join().unwrap();
    assert_eq!(error(&answer, -32001)["data"]["report"]["status"], "ABORTED", "{answer}");
    assert_eq!(runs(&executor), 1);
}

#[test]
fn a_verdict_that_expires_in_the_queue_never_starts() {
    let (executor, _catalogue) = start(Options::new().set("executor.concurrent", 1));
    let first = execute("gate", json!({ "n": 1 }));
    let first_answer = call_aside(&executor, "a2g/execute", &first);
    wait_for_runs(&executor, 1);
    let mut second = execute("gate", json!({ "n": 2 }));
    let expiry = time::OffsetDateTime::now_utc() + time::Duration::seconds(5);
    second["verdict"]["expires_at"] =
        json!(expiry.format(&time::format_description::well_known::Rfc3339).unwrap());
    let second_answer = call_aside(&executor, "a2g/execute", &second);
    eventually("the verdict expires", || (time::OffsetDateTime::now_utc() > expiry).then_some(()));
    open_the_gate(&executor);
    result(&first_answer.join().unwrap());
    expect_blocked(&second_answer.join().unwrap(), "verdict_expired");
    assert_eq!(runs(&executor), 1);
    assert_eq!(state(&executor, &second), "unknown");
}

#[test]
fn concurrent_copies_of_a_governed_intent_share_one_run() {
    let policies = methods::policy_folder(&[methods::policy()]);
    let (executor, _catalogue) = start(Options::new().policies(policies.path()));
    let call = intent("gate", json!({ "path": "/workspace/x" }));
    let askers: Vec<_> = (0..8).map(|_| call_aside(&executor, "a2g/intent", &call)).collect();
    wait_for_runs(&executor, 1);
    open_the_gate(&executor);
    let answers: Vec<Value> = askers.into_iter().map(|asker| asker.join().unwrap()).collect();
    for answer in &answers {
        assert_eq!(result(answer)["report"], result(&answers[0])["report"]);
        assert_eq!(result(answer)["verdict"], "APPROVED");
    }
    assert_eq!(runs(&executor), 1);
}
