//! Calls that wait at one node of a fleet and run at another.

use super::{Fleet, KEY, append, wait_at_the_gate, written};
use harness::methods::write;
use harness::nexus::PLANNER;
use harness::*;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use std::collections::HashMap;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A node with one slot, which a gate has, and a node with one that is free.
struct Busy {
    fleet: Fleet,
    full: Executor,
    free: Executor,
    /// The answer to the call that has the slot.
    blocking: JoinHandle<Value>,
}

impl Busy {
    fn start() -> Option<Self> {
        Self::start_with(|_, options| options)
    }

    fn start_with(change: impl Fn(&str, Options) -> Options) -> Option<Self> {
        let tools = ["write_file", "read_file", "search_text", "gate"];
        let policy = policy_for_all(&tools.map(|tool| (tool, json!({ "paths": ["/workspace/**"] }))));
        let fleet = Fleet { governor: Governor::start(&[policy]), ..Fleet::start()? };
        let node =
            |name: &str| Executor::start(change(name, fleet.options(name).set("executor.concurrent", 1)));
        let full = node("full");
        let (_, blocking) = wait_at_the_gate(&full);
        Some(Self { free: node("free"), full, fleet, blocking })
    }

    /// Ends the call that has the slot, and checks that the full node has passed on this many calls.
    fn finish(self, passed: usize) {
        self.full.open_the_gate();
        assert_eq!(result(&self.blocking.join().unwrap())["status"], "SUCCESS");
        assert_eq!(metric(&self.full, "a2g_fleet_passed_calls_total"), passed);
        // The answer comes from the claim, perhaps before the other node has counted the call.
        eventually("the other node has counted the calls", || {
            (metric(&self.free, "a2g_fleet_taken_calls_total") == passed).then_some(())
        });
        for node in ["full", "free"] {
            self.fleet.wait_for(self.full.home(), node, |node| node["open"] == 0);
        }
        for node in [&self.full, &self.free] {
            let verified = node.home().run(&["journal", "verify"]);
            assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
        }
    }
}

fn metric(node: &Executor, name: &str) -> usize {
    let metrics = node.client().request("GET", "/metrics", &[], b"").text();
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

#[test]
fn a_call_that_waits_runs_at_a_free_node() {
    let Some(busy) = Busy::start() else { return };
    let call = append("x");
    let answer = busy.full.rpc("a2g/execute", &call);
    assert_eq!(result(&answer)["status"], "SUCCESS", "{answer}");
    assert_eq!((busy.full.file("log"), busy.free.file("log").as_deref()), (None, Some("x")));
    for node in [&busy.full, &busy.free] {
        assert_eq!(node.rpc("a2g/execute", &call)["result"], answer["result"]);
        let state = node.rpc("a2g/status", &json!({ "intent_id": id_of(&call) }));
        assert_eq!(result(&state)["report"]["status"], "SUCCESS", "{state}");
    }
    // The governor is asked once, and its verdict is in the answer.
    let asked = intent("write_file", json!({ "path": "/workspace/log", "content": "y", "mode": "append" }));
    let answer = busy.full.rpc("a2g/intent", &asked);
    assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
    assert_eq!(busy.free.rpc("a2g/intent", &asked)["result"], answer["result"]);
    assert_eq!(written(&[&busy.full, &busy.free]), "xy");
    for id in [id_of(&call), asked["intent_id"].as_str().unwrap().to_owned()] {
        assert_eq!(busy.fleet.reports_of(&id).len(), 1);
    }
    // A call that the other node refuses is refused here.
    let denied = execute("write_file", json!({ "path": "/workspace/a", "content": 1 }));
    error(&busy.full.rpc("a2g/execute", &denied), -32602);
    busy.finish(2);
}

/// The time for which a call waits for a place in a full queue from which other nodes take calls.
const PLACE_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends a call that runs in the end: a refusal says when to send it again. Returns the times until its refusals.
fn run_with_retries(node: &Executor) -> Vec<Duration> {
    let call = append("x");
    let mut refused_after = Vec::new();
    loop {
        let sent_at = Instant::now();
        let answer = node.rpc("a2g/execute", &call);
        let Some(delay) = answer["error"]["data"]["retry_after_ms"].as_u64() else {
            assert_eq!(result(&answer)["status"], "SUCCESS", "{answer}");
            return refused_after;
        };
        refused_after.push(sent_at.elapsed());
        assert!(refused_after.len() < 50, "{refused_after:?}");
        std::thread::sleep(Duration::from_millis(delay));
    }
}

#[test]
fn a_full_queue_takes_calls_while_another_node_empties_it() {
    const CALLS: usize = 6;
    const ROUNDS: usize = 5;
    let Some(busy) = Busy::start_with(|_, options| options.set("executor.queue", 1)) else { return };
    // A node looks for others every 5 s; until then, it refuses at once.
    std::thread::sleep(Duration::from_secs(6));
    let is_patient = |round: usize| {
        let refused_after = std::thread::scope(|scope| {
            let calls = [(); CALLS].map(|()| scope.spawn(|| run_with_retries(&busy.full)));
            calls.map(|call| call.join().unwrap()).concat()
        });
        assert_eq!(busy.free.file("log").unwrap().len(), (round + 1) * CALLS);
        refused_after.iter().all(|time| *time >= PLACE_TIMEOUT)
    };
    let rounds = 1 + (0..ROUNDS).position(is_patient).expect("calls wait for places");
    busy.finish(rounds * CALLS);
}

#[test]
fn a_full_queue_from_which_no_node_takes_calls_refuses_at_once() {
    let set = |_: &str, options: Options| options.set("executor.queue", 1).set("fleet.pass_calls", false);
    let Some(busy) = Busy::start_with(set) else { return };
    let calls = [(); 6].map(|()| call_in_background(&busy.full, "a2g/execute", &append("x")));
    eventually("the others are refused", || {
        (calls.iter().filter(|call| call.is_finished()).count() == 5).then_some(())
    });
    busy.full.open_the_gate();
    let answers = calls.map(|call| call.join().unwrap());
    let is_refused = |answer: &&Value| answer["error"]["data"]["retry_after_ms"].is_number();
    assert_eq!(answers.iter().filter(is_refused).count(), 5, "{answers:?}");
    busy.finish(0);
}

#[test]
fn a_freed_slot_goes_to_a_higher_priority_at_another_node() {
    let keys = nexus::Keys::of(&[PLANNER]);
    let door = json!({ "key_file": keys.path(), "id": nexus::EXECUTOR });
    let Some(busy) = Busy::start_with(|_, options| options.set("doors.nexus", door.clone())) else { return };
    let (_, other_blocking) = wait_at_the_gate(&busy.free);
    // A call of low priority waits at the node whose slot becomes free, and a normal one at the other.
    let arguments = |content: &str| json!({ "path": "/workspace/log", "content": content, "mode": "append" });
    let low = PLANNER.execute_at("low", "write_file", arguments("low"));
    std::thread::scope(|scope| {
        let low_answer = scope.spawn(|| nexus::ask(&busy.free, PLANNER, &low));
        eventually("the call of low priority waits", || {
            let state = busy.free.rpc("a2g/status", &json!({ "intent_id": low["id"] }));
            (state["result"]["state"] == "queued").then_some(())
        });
        let normal = call_queued(&busy.full, &execute("write_file", arguments("normal, ")));
        // The other node does not show that it has heard of the call. Announcements are repeated every 250 ms.
        std::thread::sleep(Duration::from_secs(1));
        busy.free.open_the_gate();
        assert_eq!(result(&normal.join().unwrap())["status"], "SUCCESS");
        assert_eq!(low_answer.join().unwrap()["status"], "SUCCESS");
    });
    assert_eq!(busy.free.file("log").as_deref(), Some("normal, low"));
    assert_eq!(result(&other_blocking.join().unwrap())["status"], "SUCCESS");
    busy.finish(1);
}

#[test]
fn a_passed_call_has_events_and_a_task_where_it_waited() {
    let Some(busy) = Busy::start() else { return };
    std::fs::write(busy.free.workspace().join("a"), "needle").unwrap();
    let run = json!({ "jsonrpc": "3.0", "id": "1", "method": "search_text", "metadata": { "stream": true },
        "params": { "payload": { "path": "/workspace", "pattern": "needle" } } });
    let mut client = busy.full.client();
    let json_type = [("Content-Type", "application/json")];
    let lines = client.request("POST", "/run", &json_type, run.to_string().as_bytes()).text();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 1 && lines[0].to_string().contains("listing files"), "{lines:?}");
    assert!(lines.last().unwrap()["result"].to_string().contains("needle"), "{lines:?}");
    // A task of A2A, which nobody waits for, ends at the node that has it, and is found after its restart.
    let part = json!({ "kind": "data", "data": { "tool": "write_file", "arguments": write("b", "x") } });
    let message = json!({ "role": "user", "kind": "message", "messageId": intent_id(), "parts": [part] });
    let params = json!({ "message": message, "configuration": { "blocking": false } });
    let mut a2a = |method: &str, params: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        client.request("POST", "/a2a/rpc", &json_type, body.to_string().as_bytes()).json()["result"].clone()
    };
    let task = a2a("message/send", params)["id"].clone();
    let ended = eventually("the task ends", || {
        let found = a2a("tasks/get", json!({ "id": task }));
        (found["status"]["state"] == "completed").then_some(found)
    });
    assert_eq!(busy.free.file("b").as_deref(), Some("x"), "{ended}");
    busy.finish(2);
}

#[test]
fn a_passed_call_is_cancelled_from_any_node() {
    let Some(busy) = Busy::start() else { return };
    for (runs, from) in [(1, &busy.full), (2, &busy.free)] {
        let call = execute("gate", json!({ "run": runs }));
        let answer = call_in_background(&busy.full, "a2g/execute", &call);
        busy.free.wait_at_the_gate(runs);
        let id = json!({ "intent_id": id_of(&call) });
        // Queued, until the event of the start has arrived.
        eventually("the call runs at the other node", || {
            (result(&busy.full.rpc("a2g/status", &id))["state"] == "running").then_some(())
        });
        assert_eq!(result(&from.rpc("a2g/cancel", &id))["cancelled"], true);
        assert_eq!(error(&answer.join().unwrap(), -32001)["data"]["report"]["status"], "ABORTED");
        assert_eq!(busy.fleet.reports_of(&id_of(&call)).len(), 1);
    }
    busy.finish(2);
}

#[test]
fn a_call_that_both_nodes_have_takes_no_slot_from_itself() {
    let Some(busy) = Busy::start() else { return };
    for _ in 0..20 {
        let call = append("x");
        let answers = [&busy.full, &busy.free].map(|node| call_in_background(node, "a2g/execute", &call));
        for answer in answers.map(|answer| answer.join().unwrap()) {
            assert_eq!(result(&answer)["status"], "SUCCESS", "{answer}");
        }
        assert_eq!(busy.fleet.reports_of(&id_of(&call)).len(), 1);
    }
    assert_eq!(busy.free.file("log").unwrap(), "x".repeat(20));
    busy.full.open_the_gate();
    assert_eq!(result(&busy.blocking.join().unwrap())["status"], "SUCCESS");
}

#[test]
fn a_call_that_waits_for_a_slot_is_seen_and_cancelled_from_any_node() {
    let switched_off = |_: &str, options: Options| options.set("fleet.pass_calls", false);
    let Some(busy) = Busy::start_with(switched_off) else { return };
    let call = append("x");
    let answer = call_queued(&busy.full, &call);
    let id = json!({ "intent_id": id_of(&call) });
    assert_eq!(result(&busy.free.rpc("a2g/status", &id))["state"], "queued");
    // It does not wait for a person.
    let directive = json!({ "intent_id": id_of(&call), "decision": "APPROVED" });
    error(&busy.free.rpc("g2a/directive", &directive), -32602);
    assert_eq!(result(&busy.free.rpc("a2g/cancel", &id))["cancelled"], true);
    assert_eq!(error(&answer.join().unwrap(), -32001)["data"]["report"]["status"], "ABORTED");
    assert_eq!(result(&busy.free.rpc("a2g/cancel", &id))["cancelled"], false);
    busy.finish(0);
}

#[test]
fn a_passed_call_whose_node_is_killed_ends_once() {
    let Some(busy) = Busy::start() else { return };
    let call = execute("gate", json!({ "passed": true }));
    let answer = call_in_background(&busy.full, "a2g/execute", &call);
    busy.free.wait_at_the_gate(1);
    let _home = busy.free.kill();
    let answer = answer.join().unwrap();
    assert_eq!(error(&answer, -32001)["data"]["report"]["status"], "ABORTED", "{answer}");
    assert_eq!(busy.fleet.reports_of(&id_of(&call)).len(), 1);
    assert_eq!(busy.full.rpc("a2g/execute", &call)["error"]["data"], answer["error"]["data"]);
    assert_eq!(busy.full.runs_of_the_gate(), 1);
}

#[test]
fn a_call_that_no_other_node_may_run_stays() {
    // The free node has another module with the name, or calls are not passed on.
    let other =
        Catalogue::with_tools().add(Tool::command("gate", GATE)).add(Tool::command("write_file", GATE));
    let with_other = |node: &str, options: Options| match node {
        "free" => options.catalogue(&other),
        _full => options,
    };
    let switched_off = |_: &str, options: Options| options.set("fleet.pass_calls", false);
    for busy in [Busy::start_with(with_other), Busy::start_with(switched_off)] {
        let Some(busy) = busy else { return };
        let call = append("x");
        let answer = call_queued(&busy.full, &call);
        std::thread::sleep(Duration::from_secs(1));
        busy.full.open_the_gate();
        assert_eq!(result(&answer.join().unwrap())["status"], "SUCCESS");
        assert_eq!((busy.full.file("log").as_deref(), busy.free.file("log")), (Some("x"), None));
        busy.finish(0);
    }
}

/// A node with the fleet's key that takes calls and never claims them.
struct Ghost(NatsClient);

impl Ghost {
    fn join(fleet: &Fleet) -> Self {
        Self(fleet.servers.client(0, "a2g-live.tests.>"))
    }

    /// The value of the next message of a key.
    fn receive(&mut self, key: &str) -> Value {
        loop {
            let (subject, payload) = self.0.receive();
            if subject == format!("a2g-live.tests.{key}") {
                return serde_json::from_slice(&payload[32..]).unwrap();
            }
        }
    }

    /// Takes the next call that waits at a node.
    fn take(&mut self, from: &Executor, name: &str) {
        let ticket = loop {
            let announcement = self.receive("waiting");
            if announcement["node"] == name {
                break announcement["ticket"].clone();
            }
        };
        let listed = from.rpc("a2g/tools", &json!({}));
        let tools = listed["result"]["tools"].as_array().unwrap().iter().map(|tool| {
            let digest = tool["digest"].as_str().unwrap().trim_start_matches("sha256:");
            (tool["name"].as_str().unwrap(), digest)
        });
        let (nonce, key) = (intent_id(), format!("take.{name}"));
        let tools = tools.collect::<HashMap<_, _>>();
        let request =
            json!({ "node": "ghost", "ticket": ticket, "tools": tools, "full_agents": [], "nonce": nonce });
        self.0.publish(&format!("a2g-live.tests.{key}"), "", &sealed(&key, &request));
        let reply = self.receive(&format!("reply.ghost.{nonce}"));
        assert!(reply["value"]["text"].is_string(), "{reply}");
    }
}

/// A message as a node of the fleet writes it.
fn sealed(key: &str, value: &Value) -> Vec<u8> {
    let digits = (0..KEY.len() / 2).map(|nth| u8::from_str_radix(&KEY[2 * nth..2 * nth + 2], 16).unwrap());
    let value = value.to_string();
    let mac = Hmac::<Sha256>::new_from_slice(&digits.collect::<Vec<_>>()).unwrap();
    let code = mac.chain_update(b"tests\0").chain_update(key).chain_update(b"\0").chain_update(&value);
    [&code.finalize().into_bytes()[..], value.as_bytes()].concat()
}

#[test]
fn a_call_that_another_node_takes_and_never_claims_is_not_lost() {
    let Some(fleet) = Fleet::start() else { return };
    let mut ghost = Ghost::join(&fleet);
    for (nth, order) in ["none", "a2g/cancel", "g2a/revoke", "a2g/stop"].into_iter().enumerate() {
        let name = format!("full-{nth}");
        let full = Executor::start(fleet.options(&name).set("executor.concurrent", 1));
        let (_, blocking) = wait_at_the_gate(&full);
        let call = execute("write_file", write("file", "x"));
        let answer = call_in_background(&full, "a2g/execute", &call);
        ghost.take(&full, &name);
        let id = json!({ "intent_id": id_of(&call) });
        match order {
            "none" => full.open_the_gate(),
            "a2g/cancel" => assert_eq!(result(&full.rpc(order, &id))["cancelled"], true),
            "g2a/revoke" => assert_eq!(result(&full.rpc(order, &id))["aborted"], 1),
            // The stop includes the run at the gate. It is lifted before the call is back.
            _stop => {
                let target = json!({ "agent_did": AGENT });
                result(&full.rpc(order, &json!({ "target": target, "reason": "test" })));
                result(&full.rpc("a2g/resume", &json!({ "target": target })));
            }
        }
        let answer = answer.join().unwrap();
        let (status, content) = match order {
            "none" => (answer["result"]["status"].as_str(), Some("x")),
            _ended => (answer["error"]["data"]["report"]["status"].as_str(), None),
        };
        assert_eq!(status, Some(if order == "none" { "SUCCESS" } else { "ABORTED" }), "{order}: {answer}");
        assert_eq!(full.file("file").as_deref(), content, "{order}");
        assert_eq!(fleet.reports_of(&id_of(&call)).len(), 1, "{order}");
        full.open_the_gate();
        drop(blocking.join().unwrap());
    }
}

#[test]
fn a_copied_message_moves_nothing() {
    let Some(busy) = Busy::start() else { return };
    let mut copies = busy.fleet.servers.client(0, "a2g-live.tests.>");
    assert_eq!(result(&busy.full.rpc("a2g/execute", &append("x")))["status"], "SUCCESS");
    eventually("the nodes ask each other", || {
        let status = busy.full.rpc("a2g/status", &json!({ "intent_id": intent_id() }));
        (status["error"]["code"] == -32602).then_some(())
    });
    let mut copied = HashMap::new();
    while !["take.full", "ask"].iter().all(|key| copied.contains_key(&format!("a2g-live.tests.{key}"))) {
        let (subject, payload) = copies.receive();
        copied.insert(subject, payload);
    }
    let messages = || {
        let info = busy.fleet.servers.ask(0, "$JS.API.STREAM.INFO.A2G_tests", &json!({})).unwrap();
        info["state"]["messages"].as_u64().unwrap()
    };
    let stored = messages();
    let claim = busy.fleet.subject("claim.x");
    // With the rights of a node, a reply to this subject would forget all claims.
    for (subject, payload) in &copied {
        for reply in ["$JS.API.STREAM.PURGE.A2G_tests", &*claim, ""] {
            copies.publish(subject, reply, payload);
        }
    }
    let call = append("y");
    assert_eq!(result(&busy.full.rpc("a2g/execute", &call))["status"], "SUCCESS");
    assert!(messages() >= stored, "the stream has lost values");
    assert_eq!(written(&[&busy.full, &busy.free]), "xy");
    busy.finish(2);
}
