//! Intents that wait for a person, while the node at which they arrived is lost or leaves.

use super::elsewhere::{Nodes, ask, decide};
use harness::methods::{ESCALATES, write};
use harness::*;
use serde_json::{Value, json};

fn state(node: &Executor, token: &str, id: &Value) -> Value {
    ask(node, token, "a2g/status", id)["result"]["state"].clone()
}

fn wait_until(node: &Executor, token: &str, id: &Value, expected: &str) {
    eventually(&format!("the intent is {expected}"), || (state(node, token, id) == expected).then_some(()));
}

/// The message of the error that a call gets.
fn refusal(node: &Executor, token: &str, call: &Value) -> String {
    let answer = ask(node, token, "a2g/intent", call);
    answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[test]
fn an_intent_that_waits_at_a_lost_node_is_decided_at_another() {
    let Some(nodes) = Nodes::start() else { return };
    let [approved, denied, cancelled, early, waits] = ["approved", "denied", "cancelled", "early", "waits"]
        .map(|name| nodes.escalate_at(&[&nodes.one], name));
    let Nodes { fleet, one, two, agent, approver, .. } = nodes;
    let mut here = a2a::Client::with(&one, &agent);
    let [task, stopped] = ["task", "stopped"].map(|name| {
        let task = here.begin("write_file", write(name, ESCALATES));
        here.until(&task, "input-required");
        task
    });
    let task_id = json!({ "intent_id": task });
    assert_eq!(result(&ask(&one, &agent, "a2g/cancel", &early.1))["cancelled"], true);
    let home = one.kill();
    for (_, id) in [&approved, &denied, &cancelled, &waits] {
        assert_eq!(state(&two, &agent, id), "escalated");
    }
    let mut there = a2a::Client::with(&two, &agent);
    for id in [&task, &stopped] {
        there.until(id, "input-required");
    }
    assert_eq!(there.result("tasks/cancel", json!({ "id": stopped }))["status"]["state"], "canceled");
    assert_ne!(state(&two, &agent, &early.1), "escalated");
    for (id, decision) in [(&approved.1, "APPROVED"), (&task_id, "APPROVED"), (&denied.1, "DENIED")] {
        // At once: nothing has to know first that its node is lost.
        assert_eq!(result(&decide(&two, &approver, id, decision))["accepted"], true);
    }
    assert_eq!(result(&ask(&two, &agent, "a2g/cancel", &cancelled.1))["cancelled"], true);
    for id in [&approved.1, &task_id] {
        wait_until(&two, &agent, id, "finished");
    }
    // Its own node has all of them in its journal.
    let one = Executor::start_in(home);
    for (node, count) in [("one", 1), ("two", 0)] {
        fleet.wait_for(one.home(), node, |node| node["waiting"] == count);
    }
    let mut here = a2a::Client::with(&one, &agent);
    here.until(&task, "completed");
    here.until(&stopped, "canceled");
    for (call, reason) in
        [(&denied.0, "denied by `ann`"), (&cancelled.0, "cancelled by"), (&early.0, "cancelled by")]
    {
        for node in [&one, &two] {
            let message = refusal(node, &agent, call);
            assert!(message.contains(reason), "{message}");
        }
    }
    // Each node has the pages of what is at the other one.
    let people = [&one, &two].map(|node| console::Client::with_token(node, &approver));
    let page = |nth: usize, kind: &str, id: &Value| {
        people[nth].get(&format!("/console/{kind}/{}", id["intent_id"].as_str().unwrap())).1
    };
    let shown = page(1, "decide", &waits.1);
    assert!(shown.contains("PRIVATE KEY"), "{shown}");
    assert_eq!(result(&decide(&one, &approver, &waits.1, "APPROVED"))["accepted"], true);
    for node in [&one, &two] {
        wait_until(node, &agent, &waits.1, "finished");
    }
    for (nth, id) in [(0, &approved.1), (0, &task_id), (1, &waits.1)] {
        let shown = page(nth, "runs", id);
        assert!(shown.contains("SUCCESS"), "{shown}");
    }
    let written = |node: &Executor| {
        ["approved", "task", "waits", "denied", "cancelled", "early", "stopped"]
            .map(|name| node.file(name).is_some())
    };
    assert_eq!(written(&one), [false, false, true, false, false, false, false]);
    assert_eq!(written(&two), [true, true, false, false, false, false, false]);
    for id in [&approved.1, &task_id, &waits.1] {
        assert_eq!(fleet.reports_of(id["intent_id"].as_str().unwrap()).len(), 1);
    }
    eventually("no wait is stored any more", || (fleet.waits() == 0).then_some(()));
    for node in [&one, &two] {
        let verified = node.home().run(&["journal", "verify"]);
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    }
}

#[test]
fn an_intent_of_a_node_that_has_left_is_decided_at_another() {
    let Some(nodes) = Nodes::start() else { return };
    let waits = nodes.escalate("waits");
    let Nodes { mut one, two, agent, approver, .. } = nodes;
    one.process().terminate();
    one.process().wait_for_exit();
    assert_eq!(state(&two, &agent, &waits), "escalated");
    assert_eq!(result(&decide(&two, &approver, &waits, "APPROVED"))["accepted"], true);
    wait_until(&two, &agent, &waits, "finished");
    assert_eq!((one.file("waits"), two.file("waits").as_deref()), (None, Some(ESCALATES)));
}

#[test]
fn an_intent_waits_once_after_all_nodes_have_started_again() {
    let Some(nodes) = Nodes::start() else { return };
    let waits = nodes.escalate("waits");
    let Nodes { fleet, mut one, two, agent, approver, .. } = nodes;
    one.process().terminate();
    one.process().wait_for_exit();
    assert_eq!(state(&two, &agent, &waits), "escalated");
    let [one, two] = [one.kill(), two.kill()].map(Executor::start_in_until_it_listens);
    for (node, count) in [("one", 1), ("two", 0)] {
        fleet.wait_for(one.home(), node, |node| node["waiting"] == count);
    }
    assert_eq!(result(&decide(&two, &approver, &waits, "APPROVED"))["accepted"], true);
    for node in [&one, &two] {
        wait_until(node, &agent, &waits, "finished");
    }
    assert_eq!((one.file("waits"), two.file("waits").as_deref()), (None, Some(ESCALATES)));
}

#[test]
fn an_approved_intent_runs_although_the_node_of_its_approver_is_lost() {
    // It has no slot: the approved intent waits for one there until that node is lost.
    let Some(nodes) = Nodes::start_with(|node, options| match node {
        "two" => options.set("executor.concurrent", 1),
        _ => options,
    }) else {
        return;
    };
    let waits = nodes.escalate("waits");
    let Nodes { fleet, one, two, agent, approver, .. } = nodes;
    let call = execute("gate", json!({}));
    let address = two.address();
    let token = agent.clone();
    let blocking = std::thread::spawn(move || HttpClient::ask_as(address, &token, "a2g/execute", &call));
    two.wait_at_the_gate(1);
    assert_eq!(result(&decide(&two, &approver, &waits, "APPROVED"))["accepted"], true);
    wait_until(&two, &agent, &waits, "queued");
    assert_eq!(state(&one, &agent, &waits), "queued", "it waits for a slot, and for no person");
    let person = console::Client::with_token(&one, &approver);
    let intent = waits["intent_id"].as_str().expect("an id");
    assert!(!person.get("/console/inbox").1.contains(intent));
    eventually("the page is that of the node with the queue", || {
        let page = person.get(&format!("/console/runs/{intent}")).1;
        (page.contains("QUEUED") && page.contains("<dd>two</dd>")).then_some(())
    });
    assert_eq!(one.file("waits"), None);
    let home = two.kill();
    drop(blocking.join());
    wait_until(&one, &agent, &waits, "finished");
    assert_eq!(one.file("waits").as_deref(), Some(ESCALATES));
    // The journal of the approver's node has the approval, and says who has run it.
    let two = Executor::start_in(home);
    eventually("the end is recorded", || {
        let is_end =
            |record: &Value| record["kind"] == "cancelled" && record["intent_id"] == waits["intent_id"];
        records(two.home()).iter().any(is_end).then_some(())
    });
    assert_eq!(two.file("waits"), None);
    assert_eq!(fleet.reports_of(waits["intent_id"].as_str().unwrap()).len(), 1);
    for node in [&one, &two] {
        let verified = node.home().run(&["journal", "verify"]);
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    }
}

#[test]
fn a_revocation_and_a_stop_end_what_waits_at_a_node_that_has_left() {
    for (method, params, reason) in [
        ("g2a/revoke", json!({ "agent_did": AGENT }), "revoked by the governor"),
        (
            "a2g/stop",
            json!({ "target": { "tool": "write_file" }, "reason": "a test" }),
            "stopped by an operator",
        ),
    ] {
        let Some(nodes) = Nodes::start() else { return };
        let (call, id) = nodes.escalate_at(&[&nodes.one], "waits");
        let Nodes { fleet, mut one, two, agent, operator, governor, .. } = nodes;
        one.process().terminate();
        one.process().wait_for_exit();
        let token = if method == "a2g/stop" { &operator } else { &governor };
        let ended = ask(&two, token, method, &params);
        assert_eq!(result(&ended)["aborted"], 1, "{ended}");
        if method == "a2g/stop" {
            result(&ask(&two, token, "a2g/resume", &json!({ "target": params["target"] })));
        }
        let one = Executor::start_in(one.kill());
        fleet.wait_for(one.home(), "one", |node| node["state"] == "live" && node["waiting"] == 0);
        for node in [&one, &two] {
            assert_ne!(state(node, &agent, &id), "escalated");
            let message = refusal(node, &agent, &call);
            assert!(message.contains(reason), "{message}");
        }
    }
}

#[test]
fn a_cancellation_in_an_outage_holds_at_all_nodes_later() {
    let Some(nodes) = Nodes::start() else { return };
    let (call, id) = nodes.escalate_at(&[&nodes.one], "waits");
    let Nodes { fleet, one, two, agent, .. } = nodes;
    fleet.servers.pause(0);
    let answer = ask(&one, &agent, "a2g/cancel", &id);
    assert!(answer["error"]["data"]["retry_after_ms"].is_u64(), "{answer}");
    fleet.servers.resume(0);
    eventually("the denial is stored", || {
        let subject = format!("a2g.tests.*.claim.{}", id["intent_id"].as_str()?);
        let filter = json!({ "subjects_filter": subject });
        let stream = fleet.servers.ask(0, "$JS.API.STREAM.INFO.A2G_tests", &filter)?;
        stream["state"]["subjects"].is_object().then_some(())
    });
    for node in [&one, &two] {
        let message = refusal(node, &agent, &call);
        assert!(message.contains("cancelled by"), "{message}");
    }
}

#[test]
fn an_intent_that_is_approved_where_its_tool_is_missing_runs_at_the_next_node_that_has_it() {
    let empty = Catalogue::empty();
    let Some(nodes) = Nodes::start_with(|node, options| match node {
        "two" => options.catalogue(&empty),
        _ => options,
    }) else {
        return;
    };
    let [(_, id), (cancelled, cancelled_id)] =
        ["moved", "cancelled"].map(|name| nodes.escalate_at(&[&nodes.one], name));
    let Nodes { fleet, list, one, two: bare, agent, other, approver, .. } = nodes;
    let _home = one.kill();
    assert_eq!(state(&bare, &agent, &id), "escalated");
    error(&ask(&bare, &other, "a2g/status", &id), -32602);
    assert_eq!(result(&ask(&bare, &other, "a2g/cancel", &cancelled_id))["cancelled"], false);
    assert_eq!(result(&ask(&bare, &agent, "a2g/cancel", &cancelled_id))["cancelled"], true);
    assert_eq!(result(&decide(&bare, &approver, &id, "APPROVED"))["accepted"], true);
    // No node can run it yet.
    wait_until(&bare, &agent, &id, "queued");
    let person = console::Client::with_token(&bare, &approver);
    let shown = person.get(&format!("/console/runs/{}", id["intent_id"].as_str().expect("an id"))).1;
    assert!(shown.contains("QUEUED") && shown.contains("Timeline"), "{shown}");
    let full = Executor::start(list.of(fleet.options("three")));
    wait_until(&bare, &agent, &id, "finished");
    assert_eq!((full.file("moved").as_deref(), full.file("cancelled")), (Some(ESCALATES), None));
    assert_eq!(fleet.reports_of(id["intent_id"].as_str().unwrap()).len(), 1);
    assert!(refusal(&full, &agent, &cancelled).starts_with("cancelled by"));
}

/// An intent that waits for a person until its verdict expires.
fn escalated_for(name: &str, seconds: i64) -> Value {
    let mut call = execute("write_file", write(name, "x"));
    call["verdict"]["verdict"] = json!("ESCALATE");
    call["verdict"]["expires_at"] = json!(in_seconds(seconds));
    call
}

#[test]
fn an_intent_that_is_sent_again_after_its_verdict_expired_can_be_approved() {
    let Some(nodes) = Nodes::start() else { return };
    let Nodes { fleet, one, two, agent, approver, .. } = nodes;
    let mut call = escalated_for("again", 3);
    ask(&one, &agent, "a2g/execute", &call);
    let id = json!({ "intent_id": call["intent"]["intent_id"] });
    assert_eq!(state(&two, &agent, &id), "escalated");
    // The node that would remove the value.
    one.kill();
    eventually("its verdict expires", || (state(&two, &agent, &id) != "escalated").then_some(()));
    assert_eq!(fleet.waits(), 1);
    call["verdict"]["expires_at"] = json!(in_seconds(300));
    ask(&two, &agent, "a2g/execute", &call);
    assert_eq!(state(&two, &agent, &id), "escalated");
    assert_eq!(result(&decide(&two, &approver, &id, "APPROVED"))["accepted"], true);
    wait_until(&two, &agent, &id, "finished");
    assert_eq!(two.file("again").as_deref(), Some("x"));
}

/// A killed server of NATS may lose that a value was removed.
#[test]
fn a_value_that_comes_back_after_its_end_is_not_approved() {
    let Some(nodes) = Nodes::start() else { return };
    let mut values = nodes.fleet.servers.client(0, "a2g.tests.*.wait.>");
    let id = nodes.escalate("back");
    let (subject, value) = values.receive();
    let Nodes { fleet, one, two, agent, approver, .. } = nodes;
    assert_eq!(result(&ask(&one, &agent, "a2g/cancel", &id))["cancelled"], true);
    eventually("the value is removed", || (fleet.waits() == 0).then_some(()));
    values.publish(&subject, "", &value);
    eventually("the value is back", || (fleet.waits() == 1).then_some(()));
    let answer = decide(&two, &approver, &id, "APPROVED");
    assert_eq!(answer.get("result"), None, "{answer}");
    eventually("the value is removed again", || (fleet.waits() == 0).then_some(()));
    for node in [&one, &two] {
        assert_ne!(state(node, &agent, &id), "escalated");
        assert_eq!(node.file("back"), None);
    }
}

#[test]
fn an_intent_that_ended_elsewhere_while_its_governor_was_slow_does_not_wait() {
    let (release, is_released) = std::sync::mpsc::channel::<()>();
    let is_released = std::sync::Mutex::new(is_released);
    let slow = FakeGovernor::deciding(move |call| {
        is_released.lock().unwrap().recv().expect("the test goes on");
        let mut verdict = verdict(call["intent_id"].as_str().expect("an id"), &manifest());
        verdict["verdict"] = "ESCALATE".into();
        Reply::Result(verdict)
    });
    let Some(nodes) = Nodes::start_with(|node, options| match node {
        "one" => options.governor(&slow.url()),
        _ => options,
    }) else {
        return;
    };
    let Nodes { fleet, one, two, agent, approver, .. } = &nodes;
    let call = intent("write_file", write("slow", ESCALATES));
    let id = json!({ "intent_id": call["intent_id"] });
    std::thread::scope(|scope| {
        let late = scope.spawn(|| ask(one, agent, "a2g/intent", &call));
        eventually("the slow governor is asked", || (!slow.requests().is_empty()).then_some(()));
        let answer = ask(two, agent, "a2g/intent", &call);
        assert_eq!(result(&answer)["verdict"], "ESCALATE", "{answer}");
        assert_eq!(result(&decide(two, approver, &id, "DENIED"))["accepted"], true);
        release.send(()).expect("it waits");
        let late = late.join().expect("no panic");
        assert_eq!(late.get("result"), None, "{late}");
    });
    for node in [one, two] {
        assert_ne!(state(node, agent, &id), "escalated");
        assert_eq!(decide(node, approver, &id, "APPROVED").get("result"), None);
        let message = refusal(node, agent, &call);
        assert!(message.contains("denied by `ann`"), "{message}");
        assert_eq!(node.file("slow"), None);
    }
    assert_eq!(fleet.waits(), 0);
}

#[test]
fn an_approval_does_not_count_under_another_list_after_a_restart() {
    let rule = json!([{ "tools": ["write_file"], "required": 2 }]);
    let Some(nodes) = Nodes::start_with(|_, options| options.set("approvals", rule.clone())) else { return };
    let id = nodes.escalate("two");
    let Nodes { one, two, agent, approver, governor, list, .. } = nodes;
    assert_eq!(result(&decide(&one, &approver, &id, "APPROVED"))["needs_more_approvals"], true);
    list.add("bob", &["--role", "approver"]);
    let [one, two] = [one.kill(), two.kill()].map(Executor::start_in_until_it_listens);
    assert_eq!(result(&decide(&two, &governor, &id, "APPROVED"))["needs_more_approvals"], true);
    assert_eq!(result(&decide(&one, &approver, &id, "APPROVED")), &json!({ "accepted": true }));
    wait_until(&two, &agent, &id, "finished");
}

/// The fleet stores a call as a text, in which each quote takes two bytes.
#[test]
fn a_call_that_is_too_large_for_the_fleet_is_decided_at_its_own_node() {
    let Some(nodes) = Nodes::start() else { return };
    let Nodes { fleet, one, agent, approver, .. } = &nodes;
    let mut call = escalated_for("large", 300);
    call["intent"]["arguments"]["content"] = json!("\"".repeat(240_000));
    ask(one, agent, "a2g/execute", &call);
    let id = json!({ "intent_id": call["intent"]["intent_id"] });
    assert_eq!((state(one, agent, &id), fleet.waits()), (json!("escalated"), 0));
    assert_eq!(result(&decide(one, approver, &id, "APPROVED"))["accepted"], true);
    wait_until(one, agent, &id, "finished");
}
