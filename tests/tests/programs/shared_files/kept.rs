//! The parts of a running program that the server keeps: the list of the files that it has used, and the contents that its
//! calls have made.

use super::{
    BEFORE, Effects, Ran, Shared, TOOL, arguments, before_but, call, effects_folder, granted, nested,
};
use harness::callers::{List, agent, rpc};
use harness::{AGENT, Options, call_in_background, intent, result};
use serde_json::json;
use std::fs;
use std::time::Duration;

const OTHER: &str = "did:aeon:other:1.0:abc123";
/// The number of files of which the list takes more than a quarter of 48 MB, with these names.
const MANY: usize = 14_000;
const NAME_BYTES: usize = 250;

/// No call of such a program begins, and its end is a failure. Others are served all the time.
#[test]
fn the_list_of_a_programs_files_counts_in_its_callers_share() {
    let list = List::new();
    let greedy = agent(&list, "greedy", AGENT);
    let other = agent(&list, "other", OTHER);
    let options = Options::new().set("server.max_memory_mb", 48).set("executor.concurrent", 2);
    let shared = Shared::start_with(list.of(options));
    let folder = shared.executor.workspace().join("many");
    fs::create_dir(&folder).unwrap();
    for number in 0..MANY {
        fs::write(folder.join(format!("{number:0NAME_BYTES$}")), "x").unwrap();
    }
    let steps = json!([
        ["read_each", "/workspace/many"],
        call(json!([["read", "/workspace/a.txt"]])),
        ["write", "/workspace/a.txt", "ONE"],
    ]);
    let many = granted(Effects::Atomic, json!({ "memory_mb": 200 }), steps);
    let id = many["intent_id"].as_str().expect("an id");
    let answer = std::thread::scope(|scope| {
        let mut client = shared.executor.client();
        let waiting = scope.spawn(|| rpc(&mut shared.executor.client(), &greedy, "a2g/intent", &many));
        loop {
            let has_ended = waiting.is_finished();
            let mut small = intent(TOOL, arguments(json!({}), json!([["read", "/workspace/b.txt"]])));
            small["agent_did"] = OTHER.into();
            let served = rpc(&mut client, &other, "a2g/intent", &small);
            assert_eq!(result(&served)["report"]["status"], "SUCCESS", "{served}");
            if has_ended {
                break waiting.join().expect("an answer");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let text = answer.to_string();
    assert_eq!(result(&answer)["report"]["status"], "FAILURE", "{text}");
    assert!(text.contains("share of `server.max_memory_mb`"), "{text}");
    let status = json!({ "intent_id": nested(id, 1) });
    let call = rpc(&mut shared.executor.client(), &greedy, "a2g/status", &status);
    assert_ne!(call["result"]["report"]["status"], "SUCCESS", "the call has not run: {call}");
    assert_eq!(fs::read_to_string(shared.executor.workspace().join("a.txt")).unwrap(), "one");
}

/// The number of contents that calls have made, and that the server keeps.
fn contents_of_calls(shared: &Shared) -> usize {
    let runs = fs::read_dir(effects_folder(shared.executor.home())).unwrap();
    let bases = runs.filter_map(|run| fs::read_dir(run.unwrap().path().join("base")).ok());
    bases.flatten().filter(|entry| entry.as_ref().unwrap().file_name() != "table").count()
}

#[test]
fn a_content_of_a_call_is_kept_until_another_call_replaces_it() {
    let shared = Shared::start();
    let rewrite = |content: &str| call(json!([["write", "/workspace/a.txt", content]]));
    let steps = json!([
        rewrite("one!"),
        rewrite("two!"),
        rewrite("three!"),
        ["wait_for", "/workspace/first"],
        ["open", "f", "/workspace/a.txt", "r"],
        call(json!([["remove", "/workspace/a.txt"]])),
        // An open file stays what it is.
        ["size_open", "f"],
        ["read_open", "f"],
        ["wait_for", "/workspace/second"],
    ]);
    let ended = json!({ "steps": [null] });
    let expected = json!([ended, ended, ended, null, null, ended, 6, "three!", null]);
    for effects in Effects::APART {
        shared.set_files(BEFORE);
        let program = super::program(effects, steps.clone());
        let answer = call_in_background(&shared.executor, "a2g/intent", &program);
        let parent = program["intent_id"].as_str().expect("an id");
        for (ordinal, kept, go_on) in [(3, 1, "first"), (4, 0, "second")] {
            assert_eq!(shared.report(&nested(parent, ordinal))["status"], "SUCCESS", "{effects:?}");
            assert_eq!(contents_of_calls(&shared), kept, "{effects:?}");
            fs::write(shared.executor.workspace().join(go_on), "").unwrap();
        }
        let ran = Ran::of(&program, &answer.join().unwrap());
        assert_eq!(json!(ran.outcomes()), expected, "{effects:?}");
        // The files that the program waits for were made by others, before any decision.
        if effects == Effects::Staged {
            shared.decide("commit", &ran);
        }
        let after = before_but(&[("first", ""), ("second", "")], &["a.txt"]);
        assert_eq!(shared.files(), after, "{effects:?}");
    }
}
