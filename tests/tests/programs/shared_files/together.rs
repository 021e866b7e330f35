//! Calls that are made at once, and calls that wait for a person: they have the files one after another.

use super::Effects::{Direct, Staged};
use super::{
    BEFORE, Effects, Ran, Shared, arguments, before_but, call, call_under, code, entries, nested, program,
    start, steps_of,
};
use harness::{Options, call_in_background, eventually, result};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Number of calls that are made at once.
const CALLS: usize = 8;

/// Calls at once of which each adds a letter to one file, makes one of its own and lists all.
fn add_letters() -> Value {
    let one = |number: usize| {
        let own = format!("/workspace/sub/own-{number}");
        let steps = json!([
            ["append", "/workspace/log", "x"],
            ["read", "/workspace/log"],
            ["create", own, "own"],
            ["list", "/workspace/sub"],
        ]);
        json!([super::TOOL, arguments(json!({}), steps)])
    };
    json!(["all", (0..CALLS).map(one).collect::<Vec<_>>()])
}

#[test]
fn calls_at_once_have_the_files_one_after_another() {
    for slots in [1, CALLS] {
        let shared = Shared::start_with(Options::new().set("executor.concurrent", slots));
        for effects in Effects::APART {
            shared.set_files(BEFORE);
            let steps = json!([
                ["write", "/workspace/log", ""],
                add_letters(),
                ["read", "/workspace/log"],
                ["list", "/workspace/sub"],
                add_letters_of_calls(),
                ["read", "/workspace/log"],
            ]);
            let ran = shared.run(&program(effects, steps));
            let outcomes = ran.outcomes();
            // Each of them saw what those before it had done, and nothing else.
            let count_seen = |call: &Value| {
                let [_, log, _, listed] = steps_of(call) else { panic!("{call}") };
                let count = log.as_str().expect("a text").len();
                let is_own = |name: &&Value| name.as_str().is_some_and(|name| name.starts_with("own-"));
                let own = listed.as_array().expect("names").iter().filter(is_own);
                assert_eq!(own.count(), count, "{slots} {effects:?}: {call}");
                count
            };
            let calls = outcomes[1].as_array().expect("outcomes");
            let seen = calls.iter().map(count_seen).collect::<BTreeSet<_>>();
            assert_eq!(seen, (1..=CALLS).collect(), "{slots} {effects:?}: {outcomes:?}");
            assert_eq!(outcomes[2], "x".repeat(CALLS), "{slots} {effects:?}");
            assert_eq!(outcomes[3].as_array().map(Vec::len), Some(CALLS + 2), "{slots} {effects:?}");
            assert_eq!(outcomes[5], "x".repeat(CALLS + 4), "{slots} {effects:?}: {}", outcomes[4]);
            shared.settle(&ran);
            assert_eq!(shared.files()["log"], "x".repeat(CALLS + 4), "{slots} {effects:?}");
        }
    }
}

/// Two calls at once, each of which makes two calls at once.
fn add_letters_of_calls() -> Value {
    let add = json!([super::TOOL, arguments(json!({}), json!([["append", "/workspace/log", "x"]]))]);
    let outer = json!([super::TOOL, arguments(json!({}), json!([["all", [add, add]]]))]);
    json!(["all", [outer, outer]])
}

/// Some of the calls at once fail, and what the others have changed is there.
#[test]
fn a_call_that_fails_takes_nothing_from_those_beside_it() {
    let shared = Shared::start();
    for effects in Effects::APART {
        shared.set_files(BEFORE);
        let one = |number: usize| {
            let own = format!("/workspace/own-{number}");
            let mut steps = vec![json!(["write", own, "own"]), json!(["append", "/workspace/a.txt", "."])];
            if number.is_multiple_of(2) {
                steps.push(json!(["fail", "wanted"]));
            }
            json!([super::TOOL, arguments(json!({}), json!(steps))])
        };
        let calls = (0..CALLS).map(one).collect::<Vec<_>>();
        let ran = shared.run(&program(effects, json!([["all", calls], ["read", "/workspace/a.txt"]])));
        let codes = ran.outcomes()[0].as_array().expect("outcomes").iter().map(code).collect::<Vec<_>>();
        assert_eq!(codes, ["wanted", ""].repeat(CALLS / 2), "{effects:?}");
        let a = format!("one{}", ".".repeat(CALLS / 2));
        assert_eq!(ran.outcomes()[1], a, "{effects:?}");
        shared.settle(&ran);
        let own = (0..CALLS).filter(|number| number % 2 == 1);
        let own_names = own.map(|number| format!("own-{number}")).collect::<Vec<_>>();
        let mut changed = own_names.iter().map(|name| (name.as_str(), "own")).collect::<Vec<_>>();
        changed.push(("a.txt", a.as_str()));
        assert_eq!(shared.files(), before_but(&changed, &[]), "{effects:?}");
    }
}

/// The program waits with its own paths until a person has decided, and holds no slot that the call needs.
#[test]
fn a_call_that_waits_for_a_person_has_the_files_of_its_program() {
    let shared = Shared::start_with(Options::new().set("executor.concurrent", 1));
    for (decision, brought, content) in
        [("APPROVED", json!({ "steps": ["ONE", null] }), "by the call"), ("DENIED", json!("denied"), "two")]
    {
        shared.set_files(BEFORE);
        let escalated = arguments(
            json!({ "verdict": "ESCALATE" }),
            json!([["read", "/workspace/a.txt"], ["write", "/workspace/b.txt", "by the call"]]),
        );
        let steps = json!([
            ["write", "/workspace/a.txt", "ONE"],
            ["start", "c", super::TOOL, escalated],
            ["read", "/workspace/b.txt"],
            ["wait", "c"],
            ["append", "/workspace/a.txt", "!"],
        ]);
        let waiting = program(Staged, steps);
        let answer = call_in_background(&shared.executor, "a2g/intent", &waiting);
        let parent = waiting["intent_id"].as_str().expect("an id");
        let id = nested(parent, 1);
        shared.wait_until(&id, "escalated");
        assert_eq!(shared.files(), entries(BEFORE));
        let directive = json!({ "intent_id": id, "decision": decision });
        assert_eq!(result(&shared.executor.rpc("g2a/directive", &directive))["accepted"], true);
        let ran = Ran::of(&waiting, &answer.join().unwrap());
        let outcomes = ran.outcomes();
        assert_eq!(outcomes[2], content, "{decision}: {outcomes:?}");
        let ended = if decision == "DENIED" { json!(code(&outcomes[3])) } else { outcomes[3].clone() };
        assert_eq!(ended, brought, "{decision}");
        shared.settle(&ran);
        assert_eq!(shared.files(), before_but(&[("a.txt", "ONE!"), ("b.txt", content)], &[]), "{decision}");
    }
}

/// Only the files of its program show that: it ends, and does not try again until its verdict expires.
#[test]
fn an_approved_call_that_never_can_begin_ends_with_the_reason() {
    let shared = Shared::start();
    let many = shared.executor.workspace().join("many");
    std::fs::create_dir(&many).unwrap();
    let mut steps = Vec::new();
    for number in 0..129 {
        std::fs::write(many.join(number.to_string()), "one of many").unwrap();
        let paths = ["many", "empty"].map(|folder| format!("/workspace/{folder}/{number}"));
        steps.push(json!(["rename", paths[0], paths[1]]));
    }
    let grant = json!({ "scope": ["/workspace/empty/**"], "verdict": "ESCALATE" });
    steps.push(call_under(grant, json!([["list", "/workspace/empty"]])));
    let waiting = program(Staged, steps.into());
    let answer = call_in_background(&shared.executor, "a2g/intent", &waiting);
    let id = nested(waiting["intent_id"].as_str().expect("an id"), 1);
    shared.wait_until(&id, "escalated");
    let directive = json!({ "intent_id": id, "decision": "APPROVED" });
    assert_eq!(result(&shared.executor.rpc("g2a/directive", &directive))["accepted"], true);
    let ran = Ran::of(&waiting, &answer.join().unwrap());
    let ended = ran.outcomes().last().expect("the call");
    assert_eq!(code(ended), "failed", "{ended}");
    assert!(ended["message"].as_str().expect("a message").contains("at most 128"), "{ended}");
    assert_eq!(shared.report(&id)["status"], "FAILURE");
}

/// A person who decides on the program while one of its calls runs decides on nothing: its changes do not wait yet.
#[test]
fn the_changes_of_a_program_that_runs_cannot_be_decided_on() {
    let shared = Shared::start();
    let waiting = program(
        Staged,
        json!([
            ["write", "/workspace/a.txt", "ONE"],
            call(json!([["write", "/workspace/b.txt", "TWO"]])),
            start("c", json!([["wait_for", "/workspace/go"]])),
            ["wait", "c"],
        ]),
    );
    let answer = call_in_background(&shared.executor, "a2g/intent", &waiting);
    let parent = waiting["intent_id"].as_str().expect("an id").to_owned();
    shared.wait_until(&nested(&parent, 2), "running");
    assert_eq!(shared.sets(), Vec::<Value>::new());
    // Neither the program nor a call of it that has ended.
    for intent in [&parent, &nested(&parent, 1)] {
        for (method, params) in [
            ("a2g/commit", json!({ "intent": intent, "digest": "0".repeat(64) })),
            ("a2g/discard", json!({ "intent": intent })),
            ("a2g/undo", json!({ "intent": intent })),
        ] {
            let refused = shared.executor.rpc(method, &params);
            assert!(refused.get("error").is_some(), "{method}: {refused}");
        }
    }
    assert_eq!(shared.files(), entries(BEFORE));
    std::fs::write(shared.executor.workspace().join("go"), "").unwrap();
    let ran = Ran::of(&waiting, &answer.join().unwrap());
    shared.decide("commit", &ran);
    assert_eq!(shared.files(), before_but(&[("a.txt", "ONE"), ("b.txt", "TWO"), ("go", "")], &[]));
}

/// A call that has to wait for the files leaves the slots of the executor to others.
#[test]
fn a_call_that_waits_for_the_files_keeps_no_other_run_from_a_slot() {
    let shared = Shared::start_with(Options::new().set("executor.concurrent", 2));
    let waits = arguments(json!({}), json!([["wait_for", "/workspace/go"]]));
    let both = json!(["all", [[super::TOOL, waits], [super::TOOL, waits]]]);
    let waiting = program(Staged, json!([both]));
    let answer = call_in_background(&shared.executor, "a2g/intent", &waiting);
    let parent = waiting["intent_id"].as_str().expect("an id");
    for ordinal in [1, 2] {
        eventually("the call is there", || {
            (shared.state(&nested(parent, ordinal)) != "unknown").then_some(())
        });
    }
    eventually("one of them has the files", || {
        [1, 2].iter().any(|ordinal| shared.state(&nested(parent, *ordinal)) == "running").then_some(())
    });
    let other = program(Direct, json!([["read", "/workspace/a.txt"]]));
    let beside = call_in_background(&shared.executor, "a2g/intent", &other);
    // Far more than it takes, and far less than the program may wait.
    let began = Instant::now();
    while !beside.is_finished() && began.elapsed() < Duration::from_secs(15) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let is_beside = beside.is_finished();
    std::fs::write(shared.executor.workspace().join("go"), "").unwrap();
    Ran::of(&waiting, &answer.join().unwrap());
    assert_eq!(Ran::of(&other, &beside.join().unwrap()).outcomes(), [json!("one")]);
    assert!(is_beside, "a call that only waits has taken the slot of another run");
}
