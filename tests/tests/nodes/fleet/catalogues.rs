//! Calls for a tool that the node that was asked lacks.

use super::elsewhere::{Nodes, ask, decide};
use super::kills::{DOORS, Door, Intent, Reply, frequent_requests, options};
use super::{Fleet, wait_at_the_gate};
use harness::jwt::{Provider, add_agent, with};
use harness::mcp::{answered, with_forms};
use harness::methods::{ESCALATES, write};
use harness::nexus::PLANNER;
use harness::*;
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
        Some(Self { fleet, bare, full, catalogue })
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
    let denied = bare.rpc("a2g/intent", &intent("http_fetch", json!({ "url": "http://127.0.0.1" })));
    assert_eq!(error(&denied, -32000)["data"]["blocked_by"], "verdict_denied", "{denied}");
    // The call is larger than what nodes pass on.
    let large = "x".repeat(600 << 10);
    refused("write_file", write("a", &large), -32001, "512 KiB");
    let held = bare.rpc("a2g/intent", &intent("write_file", write("a", &format!("{ESCALATES}{large}"))));
    assert!(error(&held, -32001).to_string().contains("512 KiB"), "{held}");
    // The policies of the agent do not reach the tool, so no other node is asked for it.
    let tools = json!({ "read_file": { "allowed": true } });
    let policy = json!({ "agent_did": AGENT, "version": "2", "capabilities": { "tools": tools } });
    result(&bare.rpc("g2a/policy", &policy));
    refused("write_file", write("a", "x"), -32602, "there is no tool `write_file`");
    assert_eq!(full.file("a"), None);
}

/// The value of a secret is at the node that has it, and goes to no other one.
#[test]
fn a_call_that_needs_a_secret_runs_only_at_a_node_that_has_it() {
    let Some(fleet) = Fleet::start() else { return };
    let needing =
        |tool: &str, secret: &str| Tool::command(tool, &saying(1, "{}", 0)).network().secrets(&[secret]);
    let catalogue = Catalogue::empty().add(needing("keyed", "key")).add(needing("other_keyed", "other"));
    let secret = json!([{
        "name": "key",
        "file": fleet.key_file("api.key", "the-value-of-the-secret"),
        "tools": ["keyed"],
        "requests": ["GET https://api.example.com/**"],
        "place": "header:authorization",
    }]);
    let options = fleet
        .options("full")
        .catalogue(&catalogue)
        .set("executor.isolation", "process")
        .set("ceilings.network_allowed", true)
        .set("network.allowed_domains", json!(["api.example.com"]))
        .set("secret", secret);
    let full = Executor::start(options);
    let empty = Catalogue::empty();
    let bare = Executor::start(fleet.options("bare").catalogue(&empty));
    let call = |tool: &str| {
        let grant = json!({ "network_allowed": true, "timeout_seconds": 30 });
        bare.rpc("a2g/execute", &approved(intent(tool, json!({})), &grant))
    };
    let ran = call("keyed");
    assert_eq!(result(&ran)["status"], "SUCCESS", "{ran}");
    let refused = call("other_keyed");
    let message = expect_blocked(&refused, "secret_missing");
    assert!(message.contains("`other`"), "{message}");
    let runs = full.home().list_journal(&[]);
    assert_eq!(runs.len(), 1, "only the one that has its secret ran: {runs:?}");
}

/// The node that runs a call adds the settings of the tool, of which the node that was asked has none.
#[test]
fn a_tool_with_settings_gets_them_at_another_node() {
    let Some(fleet) = Fleet::start() else { return };
    let settings = json!({ "kind": "x", "list": [1] });
    let tool = Tool::typed_bytes("configured", guest("take_steps"))
        .declare("arguments", json!({ "type": "object" }))
        .declare("settings", settings.clone());
    let [catalogue, empty] = [Catalogue::empty().add(tool), Catalogue::empty()];
    let full = Executor::start(fleet.options("full").catalogue(&catalogue));
    full.line_with("all tools are prepared");
    let bare = Executor::start(fleet.options("bare").catalogue(&empty));
    let answer = bare.rpc("a2g/execute", &execute("configured", json!({ "steps": [["settings"]] })));
    assert_eq!(result(&answer)["result"], json!({ "steps": [settings] }), "{answer}");
    assert_eq!(full.home().list_journal(&[]).len(), 1, "it ran at the node that has it");
}

#[test]
fn a_node_that_takes_no_calls_is_not_waited_for() {
    let Some(fleet) = Fleet::start() else { return };
    let _full = Executor::start(fleet.options("full").set("fleet.pass_calls", false));
    let empty = Catalogue::empty();
    let bare = Executor::start(fleet.options("bare").catalogue(&empty));
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
    assert!(
        expect_blocked(&cancelled_answer, "verdict_denied").contains("cancelled by"),
        "{cancelled_answer}"
    );
    full.open_the_gate();
    for node in [&bare, &full] {
        let repeated = node.rpc("a2g/execute", &cancelled);
        assert_eq!(repeated["error"]["message"], cancelled_answer["error"]["message"]);
        expect_blocked(&repeated, "verdict_denied");
    }
    assert_eq!(result(&blocking.join().unwrap())["status"], "SUCCESS");
    assert_eq!(result(&waits_answer.join().unwrap())["status"], "SUCCESS");
    assert_eq!((full.file("waits").as_deref(), full.file("cancelled")), (Some("x"), None));
    assert_eq!(fleet.reports_of(&id_of(&waits)).len(), 1);
}

#[test]
fn a_call_that_waits_for_a_node_that_leaves_is_refused() {
    let Some(UnequalNodes { fleet, bare, mut full, .. }) = UnequalNodes::start() else { return };
    let (_, blocking) = wait_at_the_gate(&full);
    let call = execute("write_file", write("left", "x"));
    let answer = call_in_background(&bare, "a2g/execute", &call);
    wait_until_queued(&bare, &call);
    full.process().terminate();
    // It takes calls until it has received the signal.
    fleet.wait_for(bare.home(), "full", |node| node["state"] == "draining");
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

/// The scope of a token binds a call that another node runs, and the calls of its run at every depth.
#[test]
fn the_scope_of_a_token_goes_with_a_call_to_another_node() {
    let Some(started) = Fleet::start() else { return };
    let anywhere = json!({ "paths": ["/workspace/**"] });
    let policy = policy_for_all(&["fan_out", "write_file"].map(|tool| (tool, anywhere.clone())));
    let fleet = Fleet { governor: Governor::start(&[policy]), ..started };
    let provider = Provider::new();
    let list = callers::List::new();
    add_agent(&list, "anna");
    let fan_out = Tool::typed_bytes("fan_out", guest("fan_out")).calls(&["*"]);
    let tools = Catalogue::empty().copy("write_file").add(fan_out);
    let empty = Catalogue::empty();
    let start = |node: &str, catalogue: &Catalogue| {
        Executor::start(provider.add_to(list.of(fleet.options(node).catalogue(catalogue))))
    };
    let full = start("full", &tools);
    let bare = start("bare", &empty);
    fleet.wait_for(bare.home(), "full", |node| node["state"] == "live");
    for (scope, reaches) in
        [("tools:fan_out", false), ("tools:fan_out tools:write_file", true), ("openid", true)]
    {
        let token = provider.token(&with(jwt::claims("anna"), "scope", json!(scope)));
        for recurse in 0..2 {
            let calls = json!([{ "tool": "write_file", "arguments": write("out", "x") }]);
            let call = intent("fan_out", json!({ "calls": calls, "recurse": recurse }));
            let answer = callers::rpc(&mut bare.client(), &token, "a2g/intent", &call);
            let mut outcome = &result(&answer)["report"]["result"]["outcomes"][0];
            for _ in 0..recurse {
                outcome = &outcome["result"]["outcomes"][0];
            }
            let refusal = &outcome["error"];
            if reaches {
                assert!(refusal.is_null() && !outcome["result"].is_null(), "{scope}: {answer}");
            } else {
                assert_eq!(refusal["code"], "not_allowed", "{answer}");
                assert_eq!(refusal["detail"]["set_by"], "caller", "{answer}");
            }
            assert_eq!((full.file("out").is_some(), bare.file("out")), (reaches, None), "{scope}");
            let _absent = std::fs::remove_file(full.workspace().join("out"));
        }
    }
}

/// As [`UnequalNodes`], with a list of callers. The catalogue is that of the first node, and has no tools.
fn nodes_with_people() -> Option<(Nodes, Catalogue)> {
    let empty = Catalogue::empty();
    let nodes = Nodes::start_with(|node, options| {
        let options = options.set("doors.a2a", frequent_requests());
        if node == "one" { options.catalogue(&empty) } else { options }
    })?;
    Some((nodes, empty))
}

/// The answer to the permission prompt of a task.
fn permit(client: &mut a2a::Client, task: &str, option: &str) -> Value {
    client.result("tasks/provideInputAndContinue", json!({ "taskId": task, "permissionOptionId": option }))
}

#[test]
fn a_call_on_which_a_person_decides_runs_at_a_node_with_its_tool() {
    let Some((nodes, _empty)) = nodes_with_people() else { return };
    let Nodes { fleet, one: bare, two: full, agent, approver, .. } = &nodes;
    let [approved, denied, cancelled] =
        ["approved", "denied", "cancelled"].map(|name| nodes.escalate_at(&[bare], name));
    // A repeat waits nowhere else, and other content is another call.
    assert_eq!(result(&ask(bare, agent, "a2g/intent", &approved.0))["verdict"], "ESCALATE");
    let mut other = approved.0.clone();
    other["arguments"]["path"] = json!("/workspace/other");
    error(&ask(bare, agent, "a2g/intent", &other), -32600);
    for (node, count) in [("one", 3), ("two", 0)] {
        fleet.wait_for(full.home(), node, |node| node["waiting"] == count);
    }
    let invalid = intent("write_file", json!({ "path": 1, "content": ESCALATES }));
    let invalid = ask(bare, agent, "a2g/intent", &invalid);
    assert!(error(&invalid, -32602).to_string().contains("/arguments/path"), "{invalid}");
    assert_eq!(nodes.state(bare, &approved.1), "escalated");
    assert_eq!(result(&decide(bare, approver, &approved.1, "APPROVED"))["accepted"], true);
    eventually("it has run", || (nodes.state(bare, &approved.1) == "finished").then_some(()));
    let repeat = ask(bare, agent, "a2g/intent", &approved.0);
    assert_eq!(result(&repeat)["report"]["status"], "SUCCESS", "{repeat}");
    assert_eq!(result(&decide(full, approver, &denied.1, "DENIED"))["accepted"], true);
    assert_eq!(result(&ask(bare, agent, "a2g/cancel", &cancelled.1))["cancelled"], true);
    for (call, reason) in [(&denied.0, "denied by `ann`"), (&cancelled.0, "cancelled by")] {
        let repeat = ask(bare, agent, "a2g/intent", call);
        assert!(error(&repeat, -32000)["message"].to_string().contains(reason), "{repeat}");
    }
    assert_eq!(full.file("approved").as_deref(), Some(ESCALATES));
    assert_eq!((full.file("denied"), full.file("cancelled"), bare.file("approved")), (None, None, None));
    assert_eq!(fleet.reports_of(approved.1["intent_id"].as_str().unwrap()).len(), 1);
}

#[test]
fn a_call_that_two_nodes_pass_on_at_once_goes_on_waiting() {
    let Some((nodes, empty)) = nodes_with_people() else { return };
    let Nodes { fleet, list, one: bare, two: full, agent, .. } = &nodes;
    let other = Executor::start(list.of(fleet.options("three").catalogue(&empty)));
    fleet.wait_for(full.home(), "three", |node| node["state"] == "live");
    for round in 0..10 {
        let call = intent("write_file", write(&format!("round-{round}"), ESCALATES));
        let answers = std::thread::scope(|scope| {
            let asking = [bare, &other].map(|node| scope.spawn(|| ask(node, agent, "a2g/intent", &call)));
            asking.map(|asking| asking.join().expect("an answer"))
        });
        for answer in answers {
            assert_eq!(result(&answer)["verdict"], "ESCALATE", "{answer}");
        }
        assert_eq!(nodes.state(full, &json!({ "intent_id": call["intent_id"] })), "escalated");
    }
}

#[test]
fn a_call_on_which_nobody_decides_ends_at_all_nodes() {
    let Some(UnequalNodes { fleet, bare, full, .. }) = UnequalNodes::start() else { return };
    let mut call = execute("write_file", write("late", "x"));
    call["verdict"]["verdict"] = json!("ESCALATE");
    call["verdict"]["expires_at"] = json!(in_seconds(3));
    let held = bare.rpc("a2g/execute", &call);
    assert_eq!(error(&held, -32000)["data"]["blocked_by"], "escalation_pending", "{held}");
    assert_eq!(fleet.waits(), 1);
    // No request names the intent, so only a look of its node ends it.
    eventually("the fleet stores no wait", || (fleet.waits() == 0).then_some(()));
    let id = json!({ "intent_id": id_of(&call), "decision": "APPROVED" });
    error(&full.rpc("g2a/directive", &id), -32602);
    assert_eq!(full.file("late"), None);
}

#[test]
fn the_governor_of_a_node_decides_on_what_another_one_runs() {
    let (empty, governor) = (Catalogue::empty(), Governor::start(&[methods::policy()]));
    let Some(nodes) = Nodes::start_with(|node, options| match node {
        "one" => options.catalogue(&empty).governor(&governor.web_socket_url()),
        _ => options,
    }) else {
        return;
    };
    let Nodes { one: bare, two: full, .. } = &nodes;
    bare.line_with("registered with the governor");
    for (name, decision) in [("approved", "APPROVED"), ("denied", "DENIED")] {
        let (call, id) = nodes.escalate_at(&[bare], name);
        // The governor is connected only to the node that asked it.
        result(
            &governor.rpc("g2a/directive", &json!({ "intent_id": id["intent_id"], "decision": decision })),
        );
        eventually("it is decided, and claimed", || {
            (!["escalated", "queued"].contains(&&*nodes.state(full, &id))).then_some(())
        });
        let repeat = ask(bare, &nodes.agent, "a2g/intent", &call);
        match decision {
            "APPROVED" => assert_eq!(result(&repeat)["report"]["status"], "SUCCESS", "{repeat}"),
            _ => assert!(error(&repeat, -32000).to_string().contains("denied by `the governor`"), "{repeat}"),
        }
        assert_eq!(full.file(name).is_some(), decision == "APPROVED");
    }
}

#[test]
fn a_task_of_a_node_without_its_tool_is_permitted_there() {
    let Some((nodes, _empty)) = nodes_with_people() else { return };
    let Nodes { fleet, one: bare, two: full, agent, approver, .. } = nodes;
    let (mut tasks, mut people) = (a2a::Client::with(&bare, &agent), a2a::Client::with(&bare, &approver));
    let [permitted, denied, canceled, lost] = ["permitted", "denied", "canceled", "lost"].map(|name| {
        let task = tasks.begin("write_file", write(name, ESCALATES));
        tasks.until(&task, "input-required");
        task
    });
    permit(&mut people, &permitted, "approved");
    tasks.until(&permitted, "completed");
    permit(&mut people, &denied, "denied");
    tasks.until(&denied, "rejected");
    assert_eq!(tasks.result("tasks/cancel", json!({ "id": canceled }))["status"]["state"], "canceled");
    // Its own node has the whole task, and any other one answers once that one is lost.
    let mut there = a2a::Client::with(&full, &agent);
    assert_eq!(there.task(&lost), tasks.task(&lost));
    // A task goes on waiting while the node that has its tool starts again.
    let full = Executor::start_in(full.kill());
    assert_eq!(tasks.task(&lost)["status"]["state"], "input-required");
    let home = bare.kill();
    let mut there = a2a::Client::with(&full, &agent);
    fleet.wait_for(full.home(), "one", |node| node["state"] == "lost");
    there.until(&lost, "input-required");
    let id = json!({ "intent_id": lost });
    assert_eq!(result(&decide(&full, &approver, &id, "APPROVED"))["accepted"], true);
    let bare = Executor::start_in(home);
    let mut tasks = a2a::Client::with(&bare, &agent);
    tasks.until(&lost, "completed");
    let written = ["permitted", "denied", "canceled", "lost"].map(|name| full.file(name).is_some());
    assert_eq!(written, [true, false, false, true]);
    for id in [&permitted, &lost] {
        assert_eq!(fleet.reports_of(id).len(), 1);
    }
}

#[test]
fn a_client_of_mcp_waits_for_a_decision_at_another_node() {
    let Some((mut nodes, _empty)) = nodes_with_people() else { return };
    // The form lets nobody decide on a call whose tool another node has.
    let both = nodes.list.add("both", &["--role", "agent", "--role", "approver", "--agent", AGENT]);
    nodes.one.process().hang_up();
    let Nodes { one: bare, two: full, approver, .. } = &nodes;
    let headers = [("Authorization", &*callers::bearer(&both))];
    let post = |message: &Value| mcp::post(&mut bare.client(), message, &headers).json();
    eventually("the list is read again", || {
        let answer = mcp::post(&mut bare.client(), &mcp::request(1, "tools/list", json!({})), &headers);
        (answer.status == 200).then_some(())
    });
    let begin = |name: &str| {
        let message = with_forms(mcp::call(1, "write_file", &write(name, ESCALATES)));
        let asked = post(&message)["result"].take();
        let form = &asked["inputRequests"]["decision"]["params"];
        assert_eq!(form["requestedSchema"]["properties"], json!({}), "{asked}");
        let id = json!({ "intent_id": asked["_meta"]["a2g/intent_id"] });
        (message, asked, id)
    };
    for (name, decision) in [("approved", "APPROVED"), ("denied", "DENIED")] {
        let (message, asked, id) = begin(name);
        let ended = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| post(&answered(&message, &asked, "accept", Some("approve"))));
            std::thread::sleep(std::time::Duration::from_millis(300));
            assert_eq!(nodes.state(bare, &id), "escalated", "a client approved in place of the page");
            assert_eq!(result(&decide(bare, approver, &id, decision))["accepted"], true);
            waiting.join().expect("an answer")
        });
        assert_eq!(ended["result"]["isError"], decision == "DENIED", "{ended}");
        assert_eq!(full.file(name).is_some(), decision == "APPROVED");
    }
    let (message, asked, id) = begin("withdrawn");
    let withdrawn = post(&answered(&message, &asked, "decline", None));
    assert_eq!(withdrawn["result"]["_meta"]["a2g/error"]["blocked_by"], "escalation_pending", "{withdrawn}");
    error(&decide(full, approver, &id, "APPROVED"), -32602);
    assert_eq!(full.file("withdrawn"), None);
}
