//! Calls end with their parent, however that ends, and never keep it from ending.

use super::{Nest, codes, fan, gate, nested, one, read, with_context};
use harness::methods::write;
use harness::*;
use serde_json::{Value, json};
use std::thread::JoinHandle;

/// Number of calls of a parent that is stopped.
const CHILDREN: u32 = 8;

/// A parent with eight calls that run.
fn start_children(nest: &Nest, context: Value) -> (Value, JoinHandle<Value>) {
    let call = with_context(fan(vec![gate(); CHILDREN as usize], &json!({ "parallel": true })), context);
    let answer = call_in_background(&nest.executor, "a2g/intent", &call);
    nest.executor.wait_at_the_gate(CHILDREN as usize);
    (call["intent_id"].clone(), answer)
}

fn many_slots() -> Options {
    Options::new().set("executor.concurrent", 16)
}

/// Checks that the calls of a parent have ended with it, each with a report of its own.
fn assert_ended_with_parent(nest: &Nest, parent: &Value, report: &Value) {
    let listed = report["calls"]["list"].as_array().unwrap_or_else(|| panic!("no calls: {report}"));
    assert_eq!(listed.len(), CHILDREN as usize, "{report}");
    for ordinal in 1..=CHILDREN {
        let id = nested(parent, ordinal);
        let entry = &listed[ordinal as usize - 1];
        assert_eq!((&entry["intent_id"], &entry["status"]), (&id, &json!("ABORTED")), "{entry}");
        // The answer to the parent comes after the reports of its calls.
        let status = nest.status(&id);
        let own = &status["result"]["report"];
        assert_eq!((&own["status"], &own["parent"]["intent_id"]), (&json!("ABORTED"), parent), "{status}");
        assert_eq!(own["error"], "the run that made this call ended before it", "{own}");
    }
    assert_nothing_runs(nest, CHILDREN as usize);
}

/// Checks that no run of the gate goes on, or begins.
fn assert_nothing_runs(nest: &Nest, runs: usize) {
    let before = nest.executor.runs_of_the_gate();
    assert_eq!(before, runs);
    nest.executor.open_the_gate();
    for _ in 0..10 {
        assert_eq!(
            result(&nest.ask(&intent("read_file", json!({ "path": "/workspace/in.txt" }))))["report"]["status"],
            "SUCCESS"
        );
    }
    assert_eq!(nest.executor.runs_of_the_gate(), runs, "a call began after the end of its parent");
}

#[test]
fn calls_are_aborted_when_their_parent_is_cancelled() {
    let nest = Nest::start(many_slots());
    let (parent, answer) = start_children(&nest, json!({}));
    assert_eq!(result(&nest.executor.rpc("a2g/cancel", &json!({ "intent_id": parent })))["cancelled"], true);
    let answer = answer.join().unwrap();
    let report = &result(&answer)["report"];
    assert_eq!(report["status"], "ABORTED", "{answer}");
    assert_ended_with_parent(&nest, &parent, report);
}

#[test]
fn calls_are_aborted_when_their_parent_is_revoked() {
    let nest = Nest::start(many_slots());
    let (parent, answer) = start_children(&nest, json!({}));
    let revoked = nest.executor.rpc("g2a/revoke", &json!({ "intent_id": parent }));
    assert_eq!(result(&revoked)["aborted"], 1, "{revoked}");
    let answer = answer.join().unwrap();
    assert_ended_with_parent(&nest, &parent, &result(&answer)["report"]);
}

#[test]
fn calls_are_aborted_at_the_deadline_of_their_parent() {
    let nest = Nest::start(many_slots());
    let (parent, answer) = start_children(&nest, json!({ "timeout_seconds": 5 }));
    let answer = answer.join().unwrap();
    let report = &result(&answer)["report"];
    assert_eq!(report["status"], "TIMEOUT", "{answer}");
    assert_ended_with_parent(&nest, &parent, report);
    // It waited for them, and used no processor.
    let cpu = report["usage"]["limits"]["max_cpu_percent"]["used"].as_f64().expect("a number");
    assert!(cpu < 50.0, "{report}");
}

/// The process of a parent is killed from outside, as by the kernel for lack of memory.
#[test]
fn calls_are_aborted_when_the_process_of_their_parent_is_killed() {
    if isolation() != "process" {
        return;
    }
    let nest = Nest::start(many_slots());
    let call = fan(vec![gate(); CHILDREN as usize], &json!({ "forget": true, "spin_ms": 60_000 }));
    let answer = call_in_background(&nest.executor, "a2g/intent", &call);
    nest.executor.wait_at_the_gate(CHILDREN as usize);
    kill_busiest(nest.executor.id());
    let answer = answer.join().unwrap();
    let report = &result(&answer)["report"];
    assert_eq!(report["status"], "FAILURE", "{answer}");
    assert_ended_with_parent(&nest, &call["intent_id"], report);
}

/// Kills the process below this one that has used the processor most.
fn kill_busiest(of: u32) {
    let mut processes = children_of(of);
    let mut at = 0;
    while let Some(process) = processes.get(at) {
        processes.extend(children_of(*process));
        at += 1;
    }
    let ticks = |process: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().nth(11).and_then(|ticks| ticks.parse::<u64>().ok()).unwrap_or_default()
    };
    let spins = eventually("a process computes", || {
        processes.iter().copied().filter(|process| ticks(*process) > 50).max_by_key(|process| ticks(*process))
    });
    let id = i32::try_from(spins).ok().and_then(rustix::process::Pid::from_raw).expect("an id");
    rustix::process::kill_process(id, rustix::process::Signal::KILL).expect("it runs");
}

#[test]
fn a_program_that_never_waits_leaves_nothing_behind() {
    let nest = Nest::start(many_slots());
    let calls = vec![gate(); CHILDREN as usize];
    // Time enough for all of them to begin.
    let call = fan(calls.clone(), &json!({ "forget": true, "spin_ms": 3000 }));
    let answer = call_in_background(&nest.executor, "a2g/intent", &call);
    nest.executor.wait_at_the_gate(CHILDREN as usize);
    let answer = answer.join().unwrap();
    let report = &result(&answer)["report"];
    assert_eq!(
        (&report["status"], &report["result"]["outcomes"]),
        (&json!("SUCCESS"), &json!([])),
        "{answer}"
    );
    assert_ended_with_parent(&nest, &call["intent_id"], report);

    // And none at all: each is in the list, and none goes on.
    std::fs::remove_file(nest.executor.workspace().join("go")).expect("the gate is open");
    let (_, report) = nest.outcomes(&fan(calls, &json!({ "forget": true })));
    let listed = report["calls"]["list"].as_array().expect("a list");
    assert!(listed.iter().all(|call| call["status"] == "ABORTED"), "{report}");
    let used = report["calls"]["max_calls"]["used"].as_u64().expect("a number");
    assert_eq!(listed.len() as u64, used, "{report}");
    let runs = nest.executor.runs_of_the_gate();
    assert_nothing_runs(&nest, runs);
}

#[test]
fn a_decision_after_the_end_of_the_parent_runs_nothing() {
    let nest = Nest::start(Options::new());
    let call = fan(vec![one("write_file", write("escalated", "x"))], &json!({}));
    let id = call["intent_id"].clone();
    let child = nested(&call["intent_id"], 1);
    let answer = call_in_background(&nest.executor, "a2g/intent", &call);
    eventually("the call waits", || (nest.status(&child)["result"]["state"] == "escalated").then_some(()));
    nest.executor.rpc("a2g/cancel", &json!({ "intent_id": id }));
    let answer = answer.join().unwrap();
    assert_eq!(result(&answer)["report"]["calls"]["list"][0]["status"], "ABORTED", "{answer}");
    let decided = nest.executor.rpc("g2a/directive", &json!({ "intent_id": child, "decision": "APPROVED" }));
    error(&decided, -32602);
    let refused = nest.executor.home().list_journal(&["--refused"]);
    assert!(refused.iter().any(|entry| entry["intent_id"] == child), "{refused:?}");
    assert_eq!(nest.executor.file("escalated"), None);
}

/// A parent that waits for a person, or for another run, lends its slot to one of its calls.
#[test]
fn an_approved_call_runs_on_the_only_slot() {
    let nest = Nest::start(Options::new().set("executor.concurrent", 1));
    let call =
        fan(vec![one("write_file", write("escalated", "x")); 3], &json!({ "parallel": true, "recurse": 1 }));
    let (outcomes, _) = nest.approving(|| nest.outcomes(&call));
    let inner = outcomes[0]["result"]["outcomes"].as_array().unwrap_or_else(|| panic!("{outcomes:?}"));
    assert_eq!(codes(inner), [""; 3]);
}

#[test]
fn many_parents_with_two_slots_all_end() {
    let nest = Nest::start(Options::new().set("executor.concurrent", 2));
    let parents: Vec<Value> = (0..40)
        .map(|n| {
            let calls =
                vec![read("in.txt"), one("write_file", write(&format!("of-{n}"), "x")), read("missing")];
            let arguments = json!({ "parallel": n % 2 == 0, "recurse": n % 3 });
            with_context(fan(calls, &arguments), json!({ "timeout_seconds": 80 }))
        })
        .collect();
    let answers =
        parents.iter().map(|call| call_in_background(&nest.executor, "a2g/intent", call)).collect::<Vec<_>>();
    for (n, answer) in answers.into_iter().enumerate() {
        let answer = answer.join().unwrap();
        let report = &result(&answer)["report"];
        assert_eq!(report["status"], "SUCCESS", "{answer}");
        let mut outcomes = &report["result"]["outcomes"];
        for _ in 0..n % 3 {
            outcomes = &outcomes[0]["result"]["outcomes"];
        }
        assert_eq!(codes(outcomes.as_array().unwrap_or_else(|| panic!("{answer}"))), ["", "", "not_found"]);
        assert_eq!(nest.executor.file(&format!("of-{n}")).as_deref(), Some("x"));
    }
}

#[test]
fn a_kill_of_the_server_runs_no_call_twice() {
    let nest = Nest::start(many_slots());
    let append = json!({ "path": "/workspace/log", "content": "x", "mode": "append" });
    let calls = [vec![one("write_file", append)], vec![gate(); 3]].concat();
    let calls = [calls, vec![one("write_file", write("escalated", "x"))]].concat();
    let call = fan(calls, &json!({ "parallel": true }));
    let id = call["intent_id"].clone();
    let answer = {
        let address = nest.executor.address();
        let call = call.clone();
        std::thread::spawn(move || HttpClient::ask(address, "a2g/intent", &call))
    };
    nest.executor.wait_at_the_gate(3);
    let finished = nested(&id, 1);
    let waiting = nested(&id, 5);
    nest.report(&finished);
    eventually("one waits", || (nest.status(&waiting)["result"]["state"] == "escalated").then_some(()));
    let Nest { executor, governor, _catalogue } = nest;
    let home = executor.kill();
    assert_eq!(answer.join().unwrap(), None);
    std::fs::write(home.workspace().join("go"), "").expect("the gate opens");
    let nest = Nest { executor: Executor::start_in(home), governor, _catalogue };

    let report = nest.report(&id);
    assert_eq!(report["status"], "ABORTED", "{report}");
    // The list was in the memory of the killed process, and is made from the records.
    let listed = report["calls"]["list"].as_array().expect("a list");
    let listed = listed.iter().map(|call| json!([call["ordinal"], call["verdict"], call["status"]]));
    let expected = json!([
        [1, "APPROVED", "SUCCESS"],
        [2, "APPROVED", "ABORTED"],
        [3, "APPROVED", "ABORTED"],
        [4, "APPROVED", "ABORTED"],
        [5, "ESCALATE", "REFUSED"],
    ]);
    assert_eq!(Value::from_iter(listed), expected, "{report}");
    assert_eq!(report["calls"]["max_calls"]["used"], 5, "{report}");
    for (ordinal, status) in [(1, "SUCCESS"), (2, "ABORTED"), (3, "ABORTED"), (4, "ABORTED")] {
        let own = nest.report(&nested(&id, ordinal));
        assert_eq!((&own["status"], &own["parent"]["intent_id"]), (&json!(status), &id), "{own}");
    }
    // The one that waited went with its parent.
    error(&nest.status(&waiting), -32602);
    let decided =
        nest.executor.rpc("g2a/directive", &json!({ "intent_id": waiting, "decision": "APPROVED" }));
    error(&decided, -32602);
    // The parent is answered from the journal, and calls nothing again.
    let again = nest.ask(&call);
    assert_eq!(result(&again)["report"]["status"], "ABORTED", "{again}");
    assert_nothing_runs(&nest, 3);
    assert_eq!(nest.executor.file("log").as_deref(), Some("x"));
    assert_eq!(nest.executor.file("escalated"), None);
}
