//! Calls that do not succeed, and programs that end otherwise, or while their calls are open.

use super::Effects::{Atomic, Staged};
use super::{
    BEFORE, Effects, ISOLATIONS, Ran, Shared, TOOL, before_but, call, call_under, code, effects_folder,
    entries, granted, missing, nested, program, read_entries, start, steps_of,
};
use harness::{
    Executor, HttpClient, Options, assert_chain_holds, call_in_background, children_of, eventually,
    isolation, result,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The content of a file of a call that does not succeed.
const RUINED: &str = "ruined by a call";

/// Changes all that a call can, and then takes these steps.
fn ruins(then: &[Value]) -> Value {
    let mut steps = vec![
        json!(["write", "/workspace/a.txt", RUINED]),
        json!(["write", "/workspace/p.txt", RUINED]),
        json!(["write", "/workspace/new.txt", "new"]),
        json!(["remove", "/workspace/b.txt"]),
        json!(["rename", "/workspace/sub", "/workspace/moved"]),
        json!(["remove_folder", "/workspace/empty"]),
        json!(["make_folder", "/workspace/made"]),
    ];
    steps.extend_from_slice(then);
    steps.into()
}

/// Looks at all that [`ruins`] changes, before the program has changed anything but `p.txt`.
const LOOKS: [[&str; 2]; 6] = [
    ["list", "/workspace"],
    ["read", "/workspace/a.txt"],
    ["read", "/workspace/b.txt"],
    ["read", "/workspace/new.txt"],
    ["read", "/workspace/sub/deep/more.txt"],
    ["list", "/workspace/empty"],
];

fn outcomes_of_looks() -> Vec<Value> {
    let listed = json!(["a.txt", "b.txt", "empty", "p.txt", "secret.txt", "sub"]);
    vec![listed, json!("one"), json!("two"), missing(), json!("more"), json!([])]
}

#[test]
fn a_call_that_does_not_succeed_leaves_nothing_and_its_program_goes_on() {
    let spin = json!(["spin"]);
    let nested_success = call(ruins(&[]));
    let ends = [
        ("wanted", call(ruins(&[json!(["fail", "wanted"])]))),
        ("failed", call(ruins(&[json!(["exit", 1])]))),
        ("failed", call(ruins(&[json!(["trap"])]))),
        ("limit_reached", call_under(json!({ "seconds": 2 }), ruins(&[spin]))),
        ("denied", call_under(json!({ "verdict": "DENIED" }), ruins(&[]))),
        ("denied", call_under(json!({ "conditions": ["unknown:1"] }), ruins(&[]))),
        ("unknown_tool", json!(["call", "none", {}])),
        ("invalid_arguments", json!(["call", TOOL, { "steps": 7 }])),
        // What a call of it has changed goes with it.
        ("wanted", call(json!([nested_success, ["fail", "wanted"]]))),
        ("failed", call(json!([nested_success, ["append", "/workspace/a.txt", "!"], ["trap"]]))),
    ];
    for isolation in ISOLATIONS {
        let options = Options::new().set("executor.isolation", isolation);
        let shared = Shared::start_with(options.set("effects.keep_days", 0));
        for effects in Effects::APART {
            shared.set_files(BEFORE);
            let mut steps = vec![json!(["write", "/workspace/p.txt", "p"])];
            for (_, call) in &ends {
                steps.push(call.clone());
                steps.extend(LOOKS.iter().map(|look| json!(look)));
                steps.push(json!(["append", "/workspace/p.txt", "."]));
            }
            let ran = shared.run(&program(effects, steps.into()));
            let outcomes = ran.outcomes();
            for ((expected, call), chunk) in ends.iter().zip(outcomes[1..].chunks(LOOKS.len() + 2)) {
                let (ended, looked) = chunk.split_first().expect("an outcome");
                assert_eq!(code(ended), *expected, "{isolation} {effects:?} {call}: {ended}");
                assert_eq!(looked[..LOOKS.len()], outcomes_of_looks(), "{isolation} {effects:?} {call}");
            }
            shared.settle(&ran);
            let p = format!("p{}", ".".repeat(ends.len()));
            assert_eq!(shared.files(), before_but(&[("p.txt", p.as_str())], &[]), "{isolation} {effects:?}");
        }
        shared.assert_nothing_is_kept();
    }
}

/// A call that does not succeed takes nothing from what the run that makes it has changed, also if that is a call.
#[test]
fn a_call_that_fails_in_a_call_leaves_the_changes_of_that_one() {
    let shared = Shared::start();
    for effects in Effects::APART {
        shared.set_files(BEFORE);
        let inner = call(ruins(&[json!(["fail", "wanted"])]));
        let outer = call(json!([
            ["write", "/workspace/a.txt", "of the call"],
            inner,
            ["read", "/workspace/a.txt"],
            ["remove", "/workspace/b.txt"],
            call(json!([["write", "/workspace/c.txt", "deeper"]])),
        ]));
        let steps = json!([outer, ["read", "/workspace/a.txt"], ["read", "/workspace/c.txt"]]);
        let ran = shared.run(&program(effects, steps));
        let outer_outcomes = steps_of(&ran.outcomes()[0]);
        assert_eq!(code(&outer_outcomes[1]), "wanted", "{effects:?}");
        assert_eq!(outer_outcomes[2], "of the call", "{effects:?}");
        assert_eq!(ran.outcomes()[1..], [json!("of the call"), json!("deeper")], "{effects:?}");
        shared.settle(&ran);
        let changed = [("a.txt", "of the call"), ("c.txt", "deeper")];
        assert_eq!(shared.files(), before_but(&changed, &["b.txt"]), "{effects:?}");
    }
}

#[test]
fn a_call_that_is_cancelled_leaves_nothing_and_its_program_goes_on() {
    let shared = Shared::start();
    for effects in Effects::APART {
        shared.set_files(BEFORE);
        let never = json!(["wait_for", "/workspace/never"]);
        let mut steps = vec![json!(["write", "/workspace/p.txt", "p"]), call(ruins(&[never]))];
        steps.extend(LOOKS.iter().map(|look| json!(look)));
        let waiting = program(effects, steps.into());
        let answer = call_in_background(&shared.executor, "a2g/intent", &waiting);
        eventually("the call has changed files", || shared.keeps(RUINED).then_some(()));
        assert_eq!(shared.files(), entries(BEFORE), "{effects:?}");
        shared.cancel(&nested(waiting["intent_id"].as_str().expect("an id"), 1));
        let ran = Ran::of(&waiting, &answer.join().unwrap());
        assert_eq!(code(&ran.outcomes()[1]), "aborted", "{effects:?}");
        assert_eq!(ran.outcomes()[2..], outcomes_of_looks(), "{effects:?}");
        assert_eq!(shared.report(&ran.nested(1))["status"], "ABORTED");
        eventually("nothing of the call is kept", || (!shared.keeps(RUINED)).then_some(()));
        shared.settle(&ran);
        assert_eq!(shared.files(), before_but(&[("p.txt", "p")], &[]), "{effects:?}");
    }
}

/// A call that waits for its turn is cancelled as one that runs. Of two that begin at once, either has the files first.
#[test]
fn a_call_that_waits_for_the_files_can_be_cancelled() {
    const FILES: [(&str, &str); 2] = [("a.txt", "one"), ("b.txt", "two")];
    let shared = Shared::start_with(Options::new().set("executor.concurrent", 8));
    let writes = |name: &str| {
        let path = format!("/workspace/{name}");
        start(name, json!([["wait_for", "/workspace/go"], ["write", path, "new"]]))
    };
    let waiting = program(
        Staged,
        json!([
            ["write", "/workspace/p.txt", "p"],
            writes("a.txt"),
            writes("b.txt"),
            ["wait", "a.txt"],
            ["wait", "b.txt"],
            ["read", "/workspace/a.txt"],
            ["read", "/workspace/b.txt"],
        ]),
    );
    let parent = waiting["intent_id"].as_str().expect("an id");
    let answer = call_in_background(&shared.executor, "a2g/intent", &waiting);
    let calls = [nested(parent, 1), nested(parent, 2)];
    let cancelled = eventually("one runs and one waits", || {
        let states = calls.each_ref().map(|call| shared.state(call));
        match states.each_ref().map(String::as_str) {
            ["running", "queued"] => Some(1),
            ["queued", "running"] => Some(0),
            _ => None,
        }
    });
    shared.cancel(&calls[cancelled]);
    std::fs::write(shared.executor.workspace().join("go"), "").unwrap();
    let ran = Ran::of(&waiting, &answer.join().unwrap());
    let outcomes = ran.outcomes();
    assert_eq!(code(&outcomes[3 + cancelled]), "aborted", "{}", ran.report);
    assert_eq!(outcomes[5 + cancelled], json!(FILES[cancelled].1));
    assert_eq!(outcomes[6 - cancelled], json!("new"));
    shared.decide("commit", &ran);
    let changed = FILES[1 - cancelled].0;
    assert_eq!(shared.files(), before_but(&[(changed, "new"), ("go", ""), ("p.txt", "p")], &[]));
}

/// Nothing of its calls is left either, although they have succeeded.
#[test]
fn a_program_that_does_not_succeed_leaves_nothing_of_its_calls() {
    let ends: [(&str, Value, Value); 5] = [
        ("FAILURE", json!({}), json!(["fail", "wanted"])),
        ("FAILURE", json!({}), json!(["exit", 1])),
        ("FAILURE", json!({}), json!(["trap"])),
        ("TIMEOUT", json!({ "seconds": 8 }), json!(["spin"])),
        ("ABORTED", json!({}), json!(["wait_for", "/workspace/never"])),
    ];
    let shared = Shared::start_with(Options::new().set("effects.keep_days", 0));
    for effects in Effects::APART {
        for (status, grant, end) in &ends {
            let failing = granted(
                effects,
                grant.clone(),
                json!([
                    ["write", "/workspace/p.txt", "p"],
                    call(ruins(&[])),
                    call(json!([["write", "/workspace/b.txt", "of the second call"]])),
                    end,
                ]),
            );
            let parent = failing["intent_id"].as_str().expect("an id");
            let answer = call_in_background(&shared.executor, "a2g/intent", &failing);
            for ordinal in [1, 2] {
                let report = shared.report(&nested(parent, ordinal));
                assert_eq!(report["status"], "SUCCESS", "{effects:?} {end}: {report}");
            }
            if *status == "ABORTED" {
                shared.cancel(parent);
            }
            answer.join().unwrap();
            assert_eq!(shared.report(parent)["status"], *status, "{effects:?} {end}");
            assert_eq!(shared.files(), entries(BEFORE), "{effects:?} {end}");
            assert_eq!(shared.sets(), Vec::<Value>::new(), "{effects:?} {end}");
            shared.assert_nothing_is_kept();
        }
    }
}

/// A call that runs ends with its program, and those that wait for the files with it. All others count.
#[test]
fn calls_that_are_open_at_the_end_of_their_program_leave_nothing() {
    let shared = Shared::start_with(Options::new().set("executor.concurrent", 8));
    for effects in Effects::APART {
        for open in [1, 6] {
            shared.set_files(BEFORE);
            let mut steps = vec![
                json!(["write", "/workspace/p.txt", "p"]),
                // Nobody takes its outcome, and it is over before the next path.
                start("ended", json!([["write", "/workspace/ended.txt", "ended"]])),
                json!(["read", "/workspace/ended.txt"]),
            ];
            let never = json!(["wait_for", "/workspace/never"]);
            steps.extend(
                (0..open).map(|number| start(&format!("open-{number}"), ruins(std::slice::from_ref(&never)))),
            );
            // Time enough for all of them to begin.
            steps.push(json!(["sleep", 1500]));
            let began = Instant::now();
            let ran = shared.run(&program(effects, steps.into()));
            // The server waits for ten seconds for calls that do not end.
            assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
            assert_eq!(ran.report["status"], effects.status(), "{effects:?} {open}: {}", ran.report);
            assert_eq!(ran.outcomes()[2], "ended", "{effects:?} {open}");
            let listed = ran.report["calls"]["list"].as_array().expect("calls").iter();
            let statuses = listed.map(|call| call["status"].as_str().expect("a status")).collect::<Vec<_>>();
            let (first, others) = statuses.split_first().expect("a call");
            assert_eq!(*first, "SUCCESS", "{effects:?} {open}");
            assert!(others.len() == open && others.iter().all(|status| *status == "ABORTED"), "{statuses:?}");
            shared.settle(&ran);
            let after = before_but(&[("p.txt", "p"), ("ended.txt", "ended")], &[]);
            assert_eq!(shared.files(), after, "{effects:?} {open}");
        }
    }
}

#[test]
fn a_program_that_is_cancelled_while_a_call_is_open_leaves_nothing() {
    let shared = Shared::start();
    for effects in Effects::APART {
        let never = json!(["wait_for", "/workspace/never"]);
        let failing = program(effects, json!([["write", "/workspace/p.txt", "p"], call(ruins(&[never]))]));
        let parent = failing["intent_id"].as_str().expect("an id");
        let answer = call_in_background(&shared.executor, "a2g/intent", &failing);
        eventually("the call has changed files", || shared.keeps(RUINED).then_some(()));
        shared.cancel(parent);
        answer.join().unwrap();
        for intent in [parent, &nested(parent, 1)] {
            assert_eq!(shared.report(intent)["status"], "ABORTED", "{effects:?}");
        }
        assert_eq!(shared.files(), entries(BEFORE), "{effects:?}");
        shared.assert_nothing_is_kept();
    }
}

/// The process of a call, or that of the program, is killed from outside.
#[test]
fn a_killed_process_leaves_nothing() {
    if isolation() != "process" {
        return;
    }
    let shared = Shared::start();
    let dies = call(ruins(&[json!(["spin"])]));
    for is_call in [true, false] {
        shared.set_files(BEFORE);
        let mut steps = vec![json!(["write", "/workspace/p.txt", "p"])];
        if is_call {
            steps.push(dies.clone());
            steps.extend(LOOKS.iter().map(|look| json!(look)));
        } else {
            steps.push(call(ruins(&[])));
            steps.push(json!(["spin"]));
        }
        let killed = program(Atomic, steps.into());
        let parent = killed["intent_id"].as_str().expect("an id");
        let answer = call_in_background(&shared.executor, "a2g/intent", &killed);
        if !is_call {
            assert_eq!(shared.report(&nested(parent, 1))["status"], "SUCCESS");
        }
        kill_busiest(&shared.executor);
        let answer = answer.join().unwrap();
        if is_call {
            let ran = Ran::of(&killed, &answer);
            assert_eq!(code(&ran.outcomes()[1]), "failed", "{answer}");
            assert_eq!(ran.outcomes()[2..], outcomes_of_looks());
            assert_eq!(shared.files(), before_but(&[("p.txt", "p")], &[]));
        } else {
            assert_eq!(shared.report(parent)["status"], "FAILURE", "{answer}");
            assert_eq!(shared.files(), entries(BEFORE));
        }
    }
}

/// Kills the process of a tool that computes.
fn kill_busiest(executor: &Executor) {
    let ticks = |process: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().nth(11).and_then(|ticks| ticks.parse::<u64>().ok()).unwrap_or_default()
    };
    let busiest = eventually("a process computes", || {
        let mut processes = children_of(executor.id());
        let mut at = 0;
        while let Some(process) = processes.get(at) {
            processes.extend(children_of(*process));
            at += 1;
        }
        processes.into_iter().filter(|process| ticks(*process) > 50).max_by_key(|process| ticks(*process))
    });
    let id = i32::try_from(busiest).ok().and_then(rustix::process::Pid::from_raw).expect("an id");
    rustix::process::kill_process(id, rustix::process::Signal::KILL).expect("it runs");
}

/// SIGKILL of the server while a call has the files: nothing is in force, and the next start leaves nothing.
#[test]
fn a_killed_server_leaves_nothing_of_a_program_and_its_calls() {
    let mut shared = Shared::start();
    for effects in Effects::APART {
        shared.set_files(BEFORE);
        let never = json!(["wait_for", "/workspace/never"]);
        let inner = call(ruins(&[never]));
        let lost = program(
            effects,
            json!([
                ["write", "/workspace/p.txt", "p"],
                call(json!([["write", "/workspace/ended.txt", "of a call that has ended"]])),
                ["append", "/workspace/ended.txt", "!"],
                call(json!([["write", "/workspace/outer.txt", "outer"], inner])),
            ]),
        );
        let parent = lost["intent_id"].as_str().expect("an id").to_owned();
        let sent = lost.clone();
        let address = shared.executor.address();
        // Its connection ends with the server.
        let asking = std::thread::spawn(move || HttpClient::ask(address, "a2g/intent", &sent));
        eventually("the innermost call has changed files", || shared.keeps(RUINED).then_some(()));
        shared = shared.restart(|home| {
            assert_eq!(read_entries(&home.workspace()), entries(BEFORE), "{effects:?}");
            assert!(effects_folder(home).read_dir().unwrap().count() > 0, "{effects:?}: it is left there");
        });
        assert_eq!(asking.join().unwrap(), None, "{effects:?}");
        assert_eq!(shared.files(), entries(BEFORE), "{effects:?}");
        shared.assert_nothing_is_kept();
        assert_eq!(shared.sets(), Vec::<Value>::new(), "{effects:?}");
        assert_eq!(shared.report(&nested(&parent, 1))["status"], "SUCCESS", "{effects:?}");
        for intent in [&parent, &nested(&parent, 2), &nested(&nested(&parent, 2), 1)] {
            let report = shared.report(intent);
            assert!(!["SUCCESS", "STAGED"].contains(&report["status"].as_str().unwrap_or("")), "{report}");
        }
        assert_chain_holds(shared.executor.home());
        // The same program under another intent.
        std::fs::write(shared.executor.workspace().join("never"), "").unwrap();
        let again = program(effects, lost["arguments"]["steps"].clone());
        let ran = shared.run(&again);
        assert_eq!(ran.report["status"], effects.status(), "{effects:?}");
        let params = json!({ "intent": parent, "digest": ran.report["usage"]["effects"]["digest"] });
        let refused = shared.executor.rpc("a2g/commit", &params);
        assert!(refused.get("error").is_some(), "{effects:?}: {refused}");
        if effects == Staged {
            let discarded = shared.executor.rpc("a2g/discard", &json!({ "intent": ran.intent }));
            assert_eq!(result(&discarded)["status"], "SUCCESS", "{discarded}");
        } else {
            shared.decide("undo", &ran);
        }
    }
}
