//! The A2A door: `POST /a2a/rpc`, its streams, and the agent card. Every answer is checked against
//! the schema of A2A 0.3.0, if the file with the schema is present.

mod ends;
mod lists;
mod staged;

use harness::a2a::{Client, Hook, Stream, call, definition, door, id, message, valid};
use harness::callers::{List, agent};
use harness::methods::{self, ESCALATES, write};
use harness::{
    Catalogue, Executor, FakeGovernor, GATE, HttpAnswer, HttpClient, Options, Process, Reply, Tool,
    eventually, execute, in_seconds, intent_id, print_skipped, run, under_strace,
};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

const OTHER: &str = "did:aeon:other:1.0:abc123";
const MINE: &str = "did:aeon:mine:1.0:abc123";

fn text(words: &str) -> Value {
    json!({ "message": message(json!([{ "kind": "text", "text": words }])) })
}

/// Makes the message one of an existing task.
fn of_task(mut params: Value, task: &str) -> Value {
    params["message"]["taskId"] = json!(task);
    params
}

fn state(task: &Value) -> &str {
    task["status"]["state"].as_str().unwrap_or_else(|| panic!("no task: {task}"))
}

/// The text of a task's status message.
fn status_text(task: &Value) -> &str {
    task["status"]["message"]["parts"][0]["text"].as_str().unwrap_or_else(|| panic!("says nothing: {task}"))
}

/// Adds rate limits that no test reaches.
fn without_rate_limits(options: Options) -> Options {
    door(options, json!({}))
}

/// Starts an executor whose built-in governor allows the gate and access to files, and escalates
/// calls that contain private keys.
fn start_governed(more: impl FnOnce(Options) -> Options) -> (Executor, Catalogue, tempfile::TempDir) {
    let catalogue = methods::catalogue();
    let policies = methods::policy_folder(&[methods::policy()]);
    let options = Options::new().catalogue(&catalogue).policies(policies.path());
    (Executor::start(more(without_rate_limits(options))), catalogue, policies)
}

/// Arguments of the gate, with a path for which the governor grants `/workspace`.
fn gate() -> Value {
    json!({ "path": "/workspace/x" })
}

/// The transcripts check what the cards contain.
#[test]
fn the_cards_have_the_shape_of_the_schema() {
    let list = List::new();
    let token = agent(&list, "mine", MINE);
    let executor = Executor::start(list.of(without_rate_limits(Options::new())));
    valid("AgentCard", &Client::of(&executor).get("/.well-known/agent-card.json").json());
    Client::with(&executor, &token).result("agent/getAuthenticatedExtendedCard", json!({}));
}

#[test]
fn a_completed_task_contains_its_artifacts() {
    let (executor, ..) = start_governed(|options| options);
    let mut client = Client::of(&executor);
    let mut params = call("write_file", write("made", "hello"));
    params["message"]["contextId"] = json!("ctx_123");
    params["message"]["parts"].as_array_mut().unwrap().push(json!({
        "kind": "file", "file": { "bytes": "aGk=", "mimeType": "text/plain", "name": "hi.txt" },
    }));
    params["metadata"] = json!({ "agent_name": "codex-acp" });
    let task = client.result("message/send", params.clone());
    assert_eq!((state(&task), &task["contextId"]), ("completed", &json!("ctx_123")), "{task}");
    assert_eq!(executor.file("made").as_deref(), Some("hello"));
    let result = task["artifacts"].as_array().unwrap().last().unwrap();
    assert_eq!(result["artifactId"], "result");
    assert_eq!(task["history"][0]["parts"], params["message"]["parts"]);
    assert_eq!(task["history"][0]["taskId"], task["id"]);
    let report = executor.wait_for_reports(1).remove(0);
    assert_eq!((&report["intent_id"], &report["status"]), (&task["id"], &json!("SUCCESS")));
    assert_eq!(client.task(&id(&task)), task);
    let short = client.result("tasks/get", json!({ "id": task["id"], "historyLength": 0 }));
    assert_eq!(short.get("history"), None);
    // The tool is named in `metadata.tool`, and the client does not wait for the end of the task.
    let mut named = json!({ "message": message(json!([{ "kind": "data", "data": gate() }])) });
    named["metadata"] = json!({ "tool": "gate" });
    named["configuration"] = json!({ "blocking": false });
    let begun = client.result("message/send", named);
    assert!(["submitted", "working"].contains(&state(&begun)), "{begun}");
    client.until(&id(&begun), "working");
    std::fs::write(executor.workspace().join("go"), "").unwrap();
    let done = client.until(&id(&begun), "completed");
    assert_eq!(done["artifacts"][0]["parts"][0]["data"], json!({ "waited": true }));

    let listed = client.result("tasks/list", json!({ "limit": 1 }));
    assert_eq!((&listed["total"], &listed["hasMore"]), (&json!(2), &json!(true)), "{listed}");
    assert_eq!(listed["tasks"][0]["id"], begun["id"], "newest first");
    valid("Task", &listed["tasks"][0]);
    let listed = client.result("tasks/list", json!({ "contextId": "ctx_123" }));
    assert_eq!((&listed["total"], &listed["hasMore"]), (&json!(1), &json!(false)));
    let last = client.result("tasks/list", json!({ "offset": 1 }));
    assert_eq!((&last["tasks"][0]["id"], &last["hasMore"]), (&task["id"], &json!(false)));
}

/// The public A2A compatibility kit sends all of these requests, without an `id`.
#[test]
fn a_text_message_names_no_tool_and_its_task_requires_input() {
    let (executor, ..) = start_governed(|options| options);
    let mut client = Client::of(&executor);
    let bare = |method: &str, params: Value| {
        let body = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        let mut client = Client::of(&executor);
        let response = client.post(&body.to_string()).json();
        valid(definition(method), &response);
        assert_eq!(response["id"], Value::Null);
        response["result"].clone()
    };
    let task = bare("message/send", text("Hello!"));
    assert_eq!(state(&task), "input-required");
    assert!(status_text(&task).contains("\"tool\""), "{task}");
    let canceled = bare("tasks/cancel", json!({ "id": task["id"] }));
    assert_eq!((state(&canceled), &canceled["id"]), ("canceled", &task["id"]));
    assert_eq!(client.code("tasks/cancel", json!({ "id": task["id"] })), -32002);
    assert_eq!(client.code("message/send", of_task(text("again"), &id(&task))), -32602);

    // The task continues: with a text message, and then with a call.
    let task = id(&bare("message/send", text("Hello!")));
    let more = bare("message/send", of_task(text("more"), &task));
    assert_eq!((state(&more), more["history"].as_array().unwrap().len()), ("input-required", 3), "{more}");
    let mut elsewhere = of_task(text("x"), &task);
    elsewhere["message"]["contextId"] = json!("another");
    assert_eq!(client.code("message/send", elsewhere), -32602);
    let repeated = json!({ "message": more["history"][0] });
    assert_eq!(client.code("message/send", repeated), -32602, "a messageId is used once");
    assert_eq!(client.code("message/send", of_task(call("no_tool", json!({})), &task)), -32602);
    let input = call("write_file", write("later", "x"))["message"].clone();
    let done = client.result("tasks/provideInputAndContinue", json!({ "taskId": task, "input": input }));
    assert_eq!((state(&done), done["id"].as_str()), ("completed", Some(&*task)), "{done}");
    assert_eq!(executor.file("later").as_deref(), Some("x"));
    assert_eq!(executor.wait_for_reports(1)[0]["intent_id"], json!(task));
    let not_pending = json!({ "taskId": task, "permissionOptionId": "approved" });
    assert_eq!(client.code("tasks/provideInputAndContinue", not_pending), -32602);
    assert_eq!(
        client.code(
            "tasks/provideInputAndContinue",
            json!({
                "taskId": task, "input": text("x")["message"],
            })
        ),
        -32602
    );
}

#[test]
fn every_outcome_maps_to_a_task_state() {
    let trap = r#"(module (func (export "_start") unreachable))"#;
    let catalogue = methods::catalogue().add(Tool::command("trap", trap));
    let allowed = json!({ "paths": ["/workspace/**"] });
    let tools = ["read_file", "gate", "trap"].map(|tool| (tool, allowed.clone()));
    let policies = methods::policy_folder(&[harness::policy_for_all(&tools)]);
    let options = without_rate_limits(Options::new().catalogue(&catalogue).policies(policies.path()));
    let executor = Executor::start(options);
    let mut client = Client::of(&executor);
    let denied = client.call("write_file", write("denied", "x"));
    assert_eq!(state(&denied), "rejected", "{denied}");
    let why = &denied["status"]["message"]["parts"][1]["data"];
    assert_eq!((&why["blocked_by"], &why["ran"]), (&json!("verdict_denied"), &json!(false)), "{denied}");
    executor.assert_workspace_is_empty("a denied call");

    let failed = client.call("read_file", json!({ "path": "/workspace/nothing" }));
    assert_eq!(state(&failed), "failed", "{failed}");
    assert!(status_text(&failed).starts_with("the tool failed with"), "{failed}");
    assert_eq!(state(&client.call("trap", gate())), "failed");

    let mut late = call("gate", gate());
    late["message"]["parts"][0]["data"]["timeout_ms"] = json!(300);
    let late = client.result("message/send", late);
    assert_eq!(state(&late), "failed", "{late}");
    assert_eq!(late["status"]["message"]["parts"][1]["data"]["limit"], "time", "{late}");
    assert!(status_text(&late).contains("the caller"), "{late}");

    let running = client.begin("gate", gate());
    eventually("it runs", || executor.file("runs").filter(|runs| runs.len() == 2));
    let canceled = client.result("tasks/cancel", json!({ "id": running }));
    assert_eq!(state(&canceled), "canceled", "{canceled}");
    let statuses =
        executor.wait_for_reports(4).iter().map(|report| report["status"].clone()).collect::<Vec<_>>();
    assert_eq!(statuses, ["FAILURE", "FAILURE", "TIMEOUT", "ABORTED"]);
    assert_eq!(client.code("tasks/cancel", json!({ "id": running })), -32002);
}

#[test]
fn an_approver_approves_or_denies_a_call() {
    let list = List::new();
    let agent = agent(&list, "mine", MINE);
    let approver = list.add("approver", &["--role", "approver"]);
    let (executor, ..) = start_governed(|options| list.of(options));
    let mut agent = Client::with(&executor, &agent);
    let mut approver = Client::with(&executor, &approver);
    let answer = |task: &str, option: &str| json!({ "taskId": task, "permissionOptionId": option });
    const ANSWER: &str = "tasks/provideInputAndContinue";

    let task = agent.call("write_file", write("asked", ESCALATES));
    assert_eq!(state(&task), "input-required", "{task}");
    let task = id(&task);
    // Neither a text message nor an approval by the agent itself decides. The transcripts check the
    // question that is asked.
    assert_eq!(agent.code("message/send", of_task(text("please"), &task)), -32602);
    assert_eq!(agent.code(ANSWER, json!({ "taskId": task, "input": text("please")["message"] })), -32602);
    let refused = agent.rpc(ANSWER, answer(&task, "approved"));
    assert_eq!(refused["error"]["data"]["blocked_by"], "caller_unauthorized", "{refused}");
    assert_eq!(executor.file("asked"), None);
    // A stream stays open until the decision.
    let mut listening = agent.stream("tasks/resubscribe", &json!({ "id": task }));
    assert_eq!(state(&listening.next().unwrap()["result"]), "input-required");
    let permitted = approver.result(ANSWER, answer(&task, "approved"));
    assert!(["working", "completed"].contains(&state(&permitted)), "{permitted}");
    let told = listening.rest();
    let states =
        told.iter().filter(|update| update["kind"] == "status-update").map(state).collect::<Vec<_>>();
    assert_eq!((states.first(), states.last()), (Some(&"working"), Some(&"completed")), "{told:?}");
    agent.until(&task, "completed");
    assert_eq!(executor.file("asked").as_deref(), Some(ESCALATES));
    // Nothing is pending any more, whoever answers.
    for client in [&mut approver, &mut agent] {
        assert_eq!(client.code(ANSWER, answer(&task, "approved")), -32602);
    }
    let history = approver.get(&format!("/a2a/tasks/{task}/governor/history")).json();
    let decision = &history["permissionDecisions"][0];
    assert_eq!((&decision["source"], &decision["optionId"]), (&json!("caller:approver"), &json!("approved")));
    assert_eq!(history["pendingPermissions"], json!([]));
    assert!(decision["metadata"]["summary"].is_array() && decision["governorsInvolved"].is_array());

    let denied = id(&agent.call("write_file", write("denied", ESCALATES)));
    let mut listening = agent.stream("tasks/resubscribe", &json!({ "id": denied }));
    assert_eq!(state(&listening.next().unwrap()["result"]), "input-required");
    assert_eq!(state(&approver.result(ANSWER, answer(&denied, "denied"))), "rejected");
    assert_eq!(state(&agent.task(&denied)), "rejected");
    let told = listening.rest();
    assert_eq!((told.len(), state(&told[0]), &told[0]["final"]), (1, "rejected", &json!(true)), "{told:?}");
    let canceled = id(&agent.call("write_file", write("canceled", ESCALATES)));
    assert_eq!(
        approver.code("tasks/cancel", json!({ "id": canceled })),
        -32001,
        "an approver may not cancel a task"
    );
    assert_eq!(state(&agent.result("tasks/cancel", json!({ "id": canceled }))), "canceled");
    assert_eq!(approver.code(ANSWER, answer(&canceled, "approved")), -32602);
    let history = agent.get(&format!("/a2a/tasks/{canceled}/governor/history")).json();
    assert_eq!(history["permissionDecisions"][0]["optionId"], "denied", "{history}");
    assert_eq!((executor.file("denied"), executor.file("canceled")), (None, None));
    assert_eq!(executor.wait_for_reports(1).len(), 1);

    // A directive through another door decides the same task.
    let elsewhere = id(&agent.call("write_file", write("elsewhere", ESCALATES)));
    let directive = json!({ "intent_id": elsewhere, "decision": "APPROVED" });
    let body =
        json!({ "jsonrpc": "2.0", "method": "g2a/directive", "params": directive, "id": 1 }).to_string();
    let token = approver.token.clone().unwrap();
    let headers = [("Content-Type", "application/json"), ("Authorization", &*token)];
    assert_eq!(executor.client().post_with(&headers, body.as_bytes()).json()["result"]["accepted"], true);
    agent.until(&elsewhere, "completed");
    // The history of an allowed call names who allowed it.
    let allowed = id(&agent.call("write_file", write("allowed", "x")));
    let history = agent.get(&format!("/a2a/tasks/{allowed}/governor/history")).json();
    assert_eq!(history["permissionDecisions"][0]["source"], "governor", "{history}");
}

/// Writes lines to standard error until there is a `/workspace/go`.
fn chatty() -> String {
    GATE.replace(
        "        ;; Sleep for 10 ms on the monotonic clock.",
        "        (i32.store (i32.const 128) (i32.const 400)) (i32.store (i32.const 132) (i32.const 1001))
        (drop (call $fd_write (i32.const 2) (i32.const 128) (i32.const 1) (i32.const 136)))",
    )
    .replace("(i64.const 10000000)", "(i64.const 100000)")
    .replace(
        "(data (i32.const 16) \"go\")",
        &format!("(data (i32.const 16) \"go\") (data (i32.const 400) \"{}\\n\")", "x".repeat(1000)),
    )
}

#[test]
fn a_stream_sends_the_task_and_its_updates_until_it_ends() {
    let (executor, ..) = start_governed(|options| options);
    let client = Client::of(&executor);
    let mut stream = client.stream("message/stream", &call("gate", gate()));
    let first = stream.next().unwrap();
    assert_eq!((&first["id"], &first["result"]["kind"]), (&json!("s1"), &json!("task")), "{first}");
    let task = id(&first["result"]);
    let working = stream.next().unwrap()["result"].clone();
    assert_eq!((&working["kind"], state(&working)), (&json!("status-update"), "working"), "{working}");
    assert_eq!(working["final"], false);
    let mut again = client.stream("tasks/resubscribe", &json!({ "id": task }));
    assert_eq!(state(&again.next().unwrap()["result"]), "working");
    std::fs::write(executor.workspace().join("go"), "").unwrap();
    for rest in [stream.rest(), again.rest()] {
        let [made, ended] = &rest[..] else { panic!("{rest:?}") };
        assert_eq!(
            (&made["kind"], &made["artifact"]["artifactId"]),
            (&json!("artifact-update"), &json!("result"))
        );
        assert_eq!((state(ended), &ended["final"]), ("completed", &json!(true)), "{ended}");
    }
    // The stream of a task that has ended contains only its final state, and the update that says so.
    let over = client.stream("tasks/resubscribe", &json!({ "id": task })).rest();
    let [ended, last] = &over[..] else { panic!("{over:?}") };
    assert_eq!(
        (state(ended), state(last), &last["final"]),
        ("completed", "completed", &json!(true)),
        "{last}"
    );
    // An error is sent as the only event of a stream: clients of these methods read nothing else.
    for (method, params, code) in [
        ("message/stream", call("no_tool", json!({})), -32602),
        ("message/stream", json!({}), -32602),
        ("tasks/resubscribe", json!({ "id": intent_id() }), -32001),
        ("tasks/resubscribe", json!({ "id": 7 }), -32602),
    ] {
        let event = Client::of(&executor).rpc(method, params.clone());
        assert_eq!(event["error"]["code"], code, "{params}: {event}");
        let not_found = event["error"]["message"].as_str().unwrap().starts_with("Task not found");
        assert_eq!(not_found, code == -32001, "{event}");
    }
}

/// A caller removed from the list receives no further events of its open streams.
#[test]
fn a_stream_ends_when_its_caller_is_removed() {
    let list = List::new();
    let token = agent(&list, "mine", MINE);
    let other = agent(&list, "also-mine", MINE);
    let operator = list.add("operator", &["--role", "operator"]);
    let (mut executor, _catalogue, _policies) = start_governed(|options| list.of(options));
    let mut stream = Client::with(&executor, &token).stream("message/stream", &call("gate", gate()));
    let task = id(&stream.next().unwrap()["result"]);
    assert_eq!(state(&stream.next().unwrap()["result"]), "working");
    let kept = Client::with(&executor, &other).stream("tasks/resubscribe", &json!({ "id": task }));
    // The same holds for a caller whose role has changed: it receives no further events until it
    // asks again.
    let mut watched = Client::with(&executor, &operator).stream("tasks/resubscribe", &json!({ "id": task }));
    assert_eq!(state(&watched.next().unwrap()["result"]), "working");
    list.remove("mine");
    let demoted = std::fs::read_to_string(list.path()).unwrap().replace("\"operator\"]", "\"approver\"]");
    std::fs::write(list.path(), demoted).unwrap();
    executor.process().hang_up();
    executor.line_with("callers reloaded");
    std::fs::write(executor.workspace().join("go"), "").unwrap();
    assert_eq!(state(kept.rest().last().unwrap()), "completed");
    for over in [stream, watched] {
        assert_eq!(over.rest(), Vec::<Value>::new());
    }
    let again = Client::with(&executor, &operator).task(&task);
    assert_eq!(state(&again), "completed");
}

#[test]
fn clients_that_disconnect_or_never_read_delay_no_others() {
    let catalogue = methods::catalogue().add(Tool::command("chatty", &chatty()).filesystem("read-write"));
    let allowed = json!({ "paths": ["/workspace/**"] });
    let tools = ["gate", "chatty"].map(|tool| (tool, allowed.clone()));
    let policies = methods::policy_folder(&[harness::policy_for_all(&tools)]);
    let options = Options::new().catalogue(&catalogue).policies(policies.path());
    let options = without_rate_limits(options)
        .set("server.request_seconds", 2)
        .set("ceilings.max_output_bytes", 64 << 20);
    let executor = Executor::start(options);
    let mut client = Client::of(&executor);
    // A client that disconnects from its stream: the call continues.
    let mut stream = client.stream("message/stream", &call("gate", gate()));
    let gone = id(&stream.next().unwrap()["result"]);
    client.until(&gone, "working");
    drop(stream);
    std::fs::write(executor.workspace().join("go"), "").unwrap();
    client.until(&gone, "completed");
    std::fs::remove_file(executor.workspace().join("go")).unwrap();
    // A client that disconnects before its answer: the call continues.
    let hasty = client.send("message/send", &call("gate", gate()));
    eventually("it runs", || executor.file("runs").filter(|runs| runs.len() == 2));
    drop(hasty);
    std::fs::write(executor.workspace().join("go"), "").unwrap();
    eventually("it is over", || {
        let listed = client.result("tasks/list", json!({}));
        (listed["tasks"][0]["status"]["state"] == "completed").then_some(())
    });
    std::fs::remove_file(executor.workspace().join("go")).unwrap();
    // A client that reads nothing.
    let stuck = client.stream("message/stream", &call("chatty", gate()));
    // Either the stream or the connection is closed, whichever notices it first.
    eventually("the unread stream is dropped", || {
        let said = executor.stderr();
        ["a stream is closed", "its answers are not read"].iter().any(|why| said.contains(why)).then_some(())
    });
    std::fs::write(executor.workspace().join("go"), "").unwrap();
    let talked = eventually("the run that nobody read is over", || {
        let listed = client.result("tasks/list", json!({}));
        listed["tasks"].as_array().unwrap().iter().find(|task| state(task) == "completed").cloned()
    });
    assert!(talked["id"].is_string());
    drop(stuck);
}

#[test]
fn tasks_survive_a_restart() {
    let catalogue = methods::catalogue();
    let policies = methods::policy_folder(&[methods::policy()]);
    let options = without_rate_limits(Options::new().catalogue(&catalogue).policies(policies.path()));
    let executor = Executor::start(options);
    let mut client = Client::of(&executor);
    let done = client.call("write_file", write("done", "x"));
    let asked = id(&client.result("message/send", text("Hello!")));
    let waits = id(&client.call("write_file", write("waits", ESCALATES)));
    let runs = client.begin("gate", gate());
    eventually("it runs", || executor.file("runs"));
    // The caller of this task still waits for the answer. Others find the task in the list, in its
    // place between older and newer ones.
    let _waiting = client.send("message/send", &call("gate", gate()));
    eventually("it runs too", || executor.file("runs").filter(|runs| runs.len() == 2));
    let denied = client.call("write_file", json!({ "path": "/etc/denied", "content": "x" }));
    let pages = (0..6).map(|offset| client.result("tasks/list", json!({ "limit": 1, "offset": offset })));
    let pages = pages.collect::<Vec<_>>();
    assert!(pages.iter().all(|page| page["total"] == 6), "{pages:?}");
    let awaited = id(&pages[1]["tasks"][0]);
    let order = pages.iter().map(|page| id(&page["tasks"][0])).collect::<Vec<_>>();
    assert_eq!(order, [&id(&denied), &awaited, &runs, &waits, &asked, &id(&done)].map(String::clone));
    assert_eq!(client.result("tasks/list", json!({ "limit": 3, "offset": 1 }))["tasks"][2]["id"], waits);
    assert_eq!(state(&client.task(&awaited)), "working");
    // An answered task is stored, however soon the process ends.
    let executor = Executor::start_in(executor.kill());
    let mut client = Client::of(&executor);
    assert_eq!(state(&denied), "rejected", "{denied}");
    assert_eq!(client.task(&id(&denied)), denied);
    assert_eq!(client.task(&id(&done)), done);
    for runs in [runs, awaited] {
        let cut_off = client.task(&runs);
        assert_eq!(state(&cut_off), "failed", "{cut_off}");
        assert!(status_text(&cut_off).contains("ended without warning"), "{cut_off}");
        let history = client.get(&format!("/a2a/tasks/{runs}/governor/history")).json();
        assert_eq!(history["governorFeedback"][0]["results"][0]["status"], "approved", "{history}");
    }
    assert_eq!(executor.file("runs").as_deref(), Some("xx"), "they are not run again");
    assert_eq!(state(&client.task(&asked)), "input-required");
    assert_eq!(state(&client.result("tasks/cancel", json!({ "id": asked }))), "canceled");
    assert_eq!(state(&client.task(&waits)), "input-required");
    let answer = json!({ "taskId": waits, "permissionOptionId": "approved" });
    client.result("tasks/provideInputAndContinue", answer);
    client.until(&waits, "completed");
    assert_eq!(executor.file("waits").as_deref(), Some(ESCALATES));
    let history = client.get(&format!("/a2a/tasks/{waits}/governor/history")).json();
    assert_eq!(history["governorFeedback"][0]["results"][0]["status"], "escalate", "before the restart");
    assert_eq!(client.result("tasks/list", json!({}))["total"], 6);

    // Final tasks may be pruned, and open ones stay.
    let open = id(&client.result("message/send", text("Hello!")));
    let home = executor.kill();
    let config = home.config();
    let prune = ["journal", "prune", "--before", &in_seconds(60), "--config", config.to_str().unwrap()];
    let pruned = run(prune);
    let pruned = String::from_utf8_lossy(&pruned.stdout).into_owned();
    assert!(pruned.contains("6 tasks pruned"), "{pruned}");
    let executor = Executor::start_in(home);
    let mut client = Client::of(&executor);
    assert_eq!(client.code("tasks/get", json!({ "id": done["id"] })), -32001);
    assert_eq!(state(&client.task(&open)), "input-required");
}

/// Every write to the disk is delayed. If a final event was sent before it is on the disk, a crash
/// right after the event would lose the state that the client has been told.
#[test]
fn a_final_stream_event_survives_an_immediate_crash() {
    if !Path::new("/usr/bin/strace").exists() {
        print_skipped("there is no strace here");
        return;
    }
    let (executor, _catalogue, _policies) = start_governed(|options| options);
    let home = executor.kill();
    let slowly = "--inject=pwrite64:delay_enter=30000";
    let mut slow = Process::spawn("traced executor", &mut under_strace(&home, "pwrite64", slowly));
    let address = slow.listens_on();
    let client = Client::to(address);
    let mut stream = client.stream("message/stream", &call("write_file", write("../denied", "x")));
    let mut next = || stream.next().expect("a further event")["result"].clone();
    let task = id(&next());
    let end = std::iter::from_fn(|| Some(next())).find(|update| update["final"] == true).unwrap();
    assert_eq!(state(&end), "rejected", "{end}");
    slow.kill_children();
    slow.wait_for_exit();
    let executor = Executor::start_in(home);
    assert_eq!(state(&Client::of(&executor).task(&task)), "rejected");
}

#[test]
fn tasks_of_other_agents_are_not_found() {
    let list = List::new();
    let mine = agent(&list, "mine", MINE);
    let theirs = agent(&list, "theirs", OTHER);
    let operator = list.add("operator", &["--role", "operator"]);
    let (executor, ..) = start_governed(|options| list.of(options));
    let mut mine = Client::with(&executor, &mine);
    let mut theirs = Client::with(&executor, &theirs);
    let task = id(&mine.result("message/send", text("Hello!")));
    let nothing = intent_id();
    for task in [&task, &nothing, "task_123"] {
        for (method, params) in [
            ("tasks/get", json!({ "id": task })),
            ("tasks/cancel", json!({ "id": task })),
            ("tasks/resubscribe", json!({ "id": task })),
            ("tasks/provideInputAndContinue", json!({ "taskId": task, "permissionOptionId": "approved" })),
            ("tasks/provideInputAndContinue", json!({ "taskId": task, "input": text("x")["message"] })),
            ("message/send", of_task(call("write_file", write("x", "x")), task)),
            ("message/stream", of_task(call("write_file", write("x", "x")), task)),
        ] {
            assert_eq!(theirs.code(method, params), -32001, "{method} {task}");
        }
        for what in ["governor/history", "stream"] {
            assert_eq!(theirs.get(&format!("/a2a/tasks/{task}/{what}")).status, 404, "{what}");
        }
    }
    assert_eq!(theirs.result("tasks/list", json!({}))["total"], 0);
    executor.assert_workspace_is_empty("calls in another's task");
    assert_eq!(state(&mine.task(&task)), "input-required");
    let mut operator = Client::with(&executor, &operator);
    assert_eq!(operator.result("tasks/list", json!({}))["total"], 1);
    assert_eq!(operator.rpc("message/send", text("x"))["error"]["data"]["blocked_by"], "caller_unauthorized");
    assert_eq!(state(&operator.result("tasks/cancel", json!({ "id": task }))), "canceled");
}

#[test]
fn invalid_requests_run_nothing() {
    let (executor, ..) = start_governed(|options| options);
    let mut client = Client::of(&executor);
    let good = json!({
        "jsonrpc": "2.0", "method": "message/send", "params": call("write_file", write("x", "x")), "id": 1,
    });
    let good = good.to_string();
    let with = |configuration: Value| {
        let message = format!("\"configuration\":{configuration},\"message\":{{");
        good.replacen("\"message\":{", &message, 1)
    };
    for (body, code) in [
        ("{".to_owned(), -32700),
        ("[]".to_owned(), -32600),
        (with(json!({ "acceptedOutputModes": ["image/png"] })), -32005),
        (with(json!({ "pushNotificationConfig": { "url": "http://x" } })), -32003),
    ] {
        let answer = client.post(&body);
        assert_eq!(answer.status, 200);
        let response = answer.json();
        valid("JSONRPCErrorResponse", &response);
        assert_eq!(response["error"]["code"], code, "{body}: {response}");
    }
    for method in ["set", "get", "list", "delete"] {
        let method = format!("tasks/pushNotificationConfig/{method}");
        let config = json!({ "url": "http://x" });
        let mut params = json!({ "id": intent_id(), "pushNotificationConfigId": "x" });
        params["pushNotificationConfig"] = config;
        assert_eq!(client.code(&method, params), -32003);
    }
    executor.assert_workspace_is_empty("invalid requests");
    assert_eq!(client.result("tasks/list", json!({}))["total"], 0);
    // Arguments are checked after the approval of the governor, when the task exists already.
    let task =
        client.result("message/send", call("write_file", json!({ "path": "/workspace/x", "content": 7 })));
    assert_eq!(state(&task), "rejected");
    assert_eq!(task["status"]["message"]["parts"][1]["data"]["pointer"], "/arguments/content", "{task}");
    executor.assert_workspace_is_empty("arguments that break the schema");
    assert!(executor.reports().is_empty());
    // A valid call still runs.
    assert_eq!(state(&client.post(&good).json()["result"]), "completed");
    let wrong = client.rpc("message/send", call("no_tool", json!({})));
    assert_eq!(wrong["error"]["data"]["pointer"], "/message/parts/0/data/tool", "{wrong}");
}

/// The transcripts cover all other answers and error codes of `dialect = "acp"`, the dialect of the
/// protocol document.
#[test]
fn the_stream_of_the_document_dialect_runs_to_completion() {
    let list = List::new();
    let token = agent(&list, "mine", MINE);
    let (executor, ..) = start_governed(|options| list.of(door(options, json!({ "dialect": "acp" }))));
    let mut client = Client::with(&executor, &token);
    let named = client.rpc_unchecked("message/stream", call("gate", gate()))["result"].clone();
    let place = named["stream"].as_str().unwrap();
    let request = format!(
        "GET {place} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n",
        executor.address()
    );
    let mut stream = Stream::of(HttpClient::send_only(executor.address(), request.as_bytes()));
    stream.checked = false;
    assert_eq!(stream.next().unwrap()["result"]["id"], named["id"]);
    std::fs::write(executor.workspace().join("go"), "").unwrap();
    let rest = stream.rest();
    assert_eq!(state(rest.last().unwrap()), "completed", "{rest:?}");
    let nothing_pending = json!({ "taskId": named["id"], "permissionOptionId": "approved" });
    let refused = client.rpc_unchecked("tasks/provideInputAndContinue", nothing_pending);
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
}

#[test]
fn a_rate_limited_caller_gets_a_retry_delay() {
    let limits = json!({ "requests_per_minute": 1_000_000, "requests_per_hour": 8, "requests_at_once": 1 });
    let (executor, ..) = start_governed(|options| door(options, limits));
    let mut client = Client::of(&executor);
    let header = |answer: &HttpAnswer, name: &str| {
        let found = answer.headers.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.parse::<i64>().unwrap())
    };
    let get = json!({ "jsonrpc": "2.0", "method": "tasks/list", "id": 1 }).to_string();
    let answer = client.post(&get);
    assert_eq!(answer.status, 200);
    assert_eq!(header(&answer, "x-ratelimit-limit"), Some(8));
    assert_eq!(header(&answer, "x-ratelimit-remaining"), Some(7));
    assert!(header(&answer, "x-ratelimit-reset") > Some(1_700_000_000));
    // An open stream counts as a running request for `requests_at_once`.
    let stream = client.stream("message/stream", &call("gate", gate()));
    eventually("it runs", || executor.file("runs"));
    let refused = client.post(&get);
    assert_eq!(refused.status, 429);
    valid("JSONRPCErrorResponse", &refused.json());
    std::fs::write(executor.workspace().join("go"), "").unwrap();
    assert_eq!(state(stream.rest().last().unwrap()), "completed");
    let mut answered = 2;
    let refused = eventually("the requests of the hour are used up", || {
        let answer = client.post(&get);
        answered += i32::from(answer.status == 200);
        (answer.status == 429 && answered >= 8).then_some(answer)
    });
    assert_eq!(answered, 8);
    assert_eq!(header(&refused, "x-ratelimit-remaining"), Some(0));
    assert!(header(&refused, "retry-after") > Some(0));
    let runs = json!({
        "jsonrpc": "2.0", "method": "message/send", "params": call("write_file", write("x", "x")), "id": 1,
    });
    assert_eq!(client.post(&runs.to_string()).status, 429);
    assert_eq!(executor.file("x"), None);
    assert_eq!(client.get("/.well-known/agent-card.json").status, 200, "the card is not counted");
}

#[test]
fn a_task_is_canceled_while_its_verdict_is_pending() {
    let governor = FakeGovernor::start(|method, params| match method {
        "a2g/intent" => {
            let approved = harness::verdict(params["intent_id"].as_str().unwrap(), &harness::manifest());
            Reply::Late(Duration::from_secs(3), Box::new(Reply::Result(approved)))
        }
        _other => Reply::Result(json!({ "registered": true })),
    });
    let executor = Executor::start(without_rate_limits(Options::new().governor(&governor.url())));
    let mut client = Client::of(&executor);
    let task = client.begin("write_file", write("x", "x"));
    eventually("the governor is asked", || {
        governor.seen().iter().any(|(method, _)| method == "a2g/intent").then_some(())
    });
    let canceled = client.result("tasks/cancel", json!({ "id": task }));
    assert_eq!(state(&canceled), "canceled", "{canceled}");
    // A later call runs; when it has completed, the late verdict of the first one has come, too.
    assert_eq!(state(&client.call("write_file", write("y", "y"))), "completed");
    assert_eq!((executor.file("x"), executor.file("y").as_deref()), (None, Some("y")));
    assert_eq!(state(&client.task(&task)), "canceled");
    // A task whose caller still waits is visible to other clients, and still exists after a crash.
    let _waiting = client.send("message/send", &call("write_file", write("z", "z")));
    let pending = eventually("it is listed", || {
        let listed = client.result("tasks/list", json!({ "limit": 1 }));
        (state(&listed["tasks"][0]) == "submitted").then(|| id(&listed["tasks"][0]))
    });
    eventually("the governor is asked about the third", || {
        let asked = governor.seen().iter().filter(|(method, _)| method == "a2g/intent").count();
        (asked == 3).then_some(())
    });
    // The list does not wait until the task is on disk. Records are stored in order, so the task is
    // on disk once a later record is.
    let after =
        executor.client().rpc("a2g/execute", &execute("list_directory", json!({ "path": "/workspace" })));
    assert_eq!(after["result"]["status"], "SUCCESS", "{after}");
    let executor = Executor::start_in(executor.kill());
    let cut_off = Client::of(&executor).task(&pending);
    assert_eq!(state(&cut_off), "failed", "{cut_off}");
    assert!(status_text(&cut_off).contains("send the call again"), "{cut_off}");
    assert_eq!(executor.file("z"), None);
}

#[test]
fn webhooks_receive_the_events_they_subscribed_to() {
    let hook = Hook::start(&[]);
    let (executor, ..) = start_governed(|options| hook.of(options));
    let mut client = Client::of(&executor);
    assert_eq!(client.get("/.well-known/agent-card.json").json()["capabilities"]["pushNotifications"], true);
    const SET: &str = "tasks/pushNotificationConfig/set";
    let task = id(&client.result("message/send", text("Hello!")));
    // First with the names of the protocol document, and then with those of A2A 0.3.0.
    let config = json!({
        "id": "webhook_001", "url": hook.url(), "token": "your-bearer-token",
        "enabledEvents": ["status_change", "message", "input_required", "artifact"],
    });
    let set = client.result(SET, json!({ "taskId": task, "config": config }));
    assert_eq!((&set["taskId"], &set["pushNotificationConfig"]["url"]), (&json!(task), &json!(hook.url())));
    valid("TaskPushNotificationConfig", &set);
    let other = json!({ "url": hook.url(), "enabledEvents": ["artifact"] });
    let other = client.result(SET, json!({ "taskId": task, "pushNotificationConfig": other }));
    let other_id = other["pushNotificationConfig"]["id"].as_str().unwrap();
    let named = |config: &str| json!({ "id": task, "pushNotificationConfigId": config });
    let listed = client.result("tasks/pushNotificationConfig/list", json!({ "id": task }));
    assert_eq!(listed, json!([set, other]));
    let deleted = client.rpc("tasks/pushNotificationConfig/delete", named(other_id));
    assert_eq!(deleted["result"], Value::Null);
    assert_eq!(client.code("tasks/pushNotificationConfig/delete", named(other_id)), -32602);
    assert_eq!(client.code("tasks/pushNotificationConfig/get", named(other_id)), -32602);

    client.result("message/send", of_task(call("read_file", json!({ "path": "/workspace/no" })), &task));
    let told = hook.wait_for(3);
    assert_eq!(told.iter().map(state).collect::<Vec<_>>(), ["submitted", "working", "failed"], "{told:?}");
    for posted in &told {
        valid("Task", posted);
        assert_eq!(posted["id"], task);
    }
    assert_eq!(told[2], client.task(&task), "the notification contains the whole task");
    let (headers, _) = hook.received.lock().unwrap()[0].clone();
    for (name, value) in
        [("x-a2a-notification-token", "your-bearer-token"), ("authorization", "Bearer your-bearer-token")]
    {
        assert!(headers.contains(&(name.to_owned(), value.to_owned())), "{headers:?}");
    }
    // A webhook that is configured by the message itself, with a filter of events.
    let mut params = call("write_file", write("x", "x"));
    params["configuration"] =
        json!({ "pushNotificationConfig": { "url": hook.url(), "enabledEvents": ["artifact"] } });
    assert_eq!(state(&client.result("message/send", params.clone())), "completed");
    let told = hook.wait_for(4);
    assert_eq!((state(&told[3]), &told[3]["artifacts"][0]["artifactId"]), ("completed", &json!("result")));
    let mut waits = text("Hello!");
    waits["configuration"] =
        json!({ "pushNotificationConfig": { "url": hook.url(), "enabledEvents": ["input_required"] } });
    client.result("message/send", waits);
    let told = hook.wait_for(5);
    assert_eq!(state(&told[4]), "input-required", "{told:?}");

    // No other URL receives a request: neither an unlisted host, nor a listed one with a private address.
    for url in [
        "http://elsewhere.example/",
        "http://127.0.0.1:1/",
        "ftp://hook.example/",
        "hook.example",
        "http://hook.example@evil.example/",
    ] {
        params["configuration"]["pushNotificationConfig"]["url"] = json!(url);
        assert_eq!(client.code("message/send", params.clone()), -32602, "{url}");
    }
    let private = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://private.example:{}/", private.local_addr().unwrap().port());
    params["configuration"]["pushNotificationConfig"]["url"] = json!(url);
    client.result("message/send", params);
    assert!(executor.line_with("a notification is dropped").contains("address"));
    private.set_nonblocking(true).unwrap();
    assert!(private.accept().is_err(), "the private address was connected to");
}

#[test]
fn a_failed_webhook_is_retried_and_redirects_are_not_followed() {
    let hook = Hook::start(&[503, 500]);
    let (executor, ..) = start_governed(|options| hook.of(options));
    let mut client = Client::of(&executor);
    let mut params = call("write_file", write("x", "x"));
    params["configuration"] =
        json!({ "pushNotificationConfig": { "url": hook.url(), "enabledEvents": ["artifact"] } });
    client.result("message/send", params);
    assert_eq!(state(&hook.wait_for(1)[0]), "completed");

    let moved = Hook::start(&[302]);
    let (executor, ..) = start_governed(|options| moved.of(options));
    let mut params = call("write_file", write("x", "x"));
    params["configuration"] =
        json!({ "pushNotificationConfig": { "url": moved.url(), "enabledEvents": ["artifact"] } });
    Client::of(&executor).result("message/send", params);
    assert!(executor.line_with("a notification is dropped").contains("302"));
    assert_eq!(moved.events(), Vec::<Value>::new());
}
