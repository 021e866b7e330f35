//! What the records say of a program and its calls: the changes are the program's, and each call has its own report.

use super::Effects::Staged;
use super::{BEFORE, Effects, Shared, before_but, call, call_under, entries, nested, program};
use harness::{AGENT, assert_chain_holds, eventually, result};
use serde_json::{Value, json};

/// A program with two calls that change files, one that only reads, and one that fails.
fn steps() -> Value {
    json!([
        ["write", "/workspace/a.txt", "ONE"],
        call(json!([
            ["rename", "/workspace/b.txt", "/workspace/c.txt"],
            call(json!([["append", "/workspace/c.txt", " more"]])),
        ])),
        call(json!([["read", "/workspace/secret.txt"]])),
        call(json!([["remove", "/workspace/secret.txt"], ["fail", "wanted"]])),
        call_under(json!({ "conditions": ["read_only"] }), json!([["read", "/workspace/c.txt"]])),
        ["remove_folder", "/workspace/empty"],
        ["create", "/workspace/new.txt", "new"],
    ])
}

const STATUSES: [&str; 4] = ["SUCCESS", "SUCCESS", "FAILURE", "SUCCESS"];

#[test]
fn the_report_of_a_program_has_all_changes_and_those_of_its_calls_have_none() {
    let shared = Shared::start();
    let mut digests = Vec::new();
    for effects in Effects::APART {
        shared.set_files(BEFORE);
        let ran = shared.run(&program(effects, steps()));
        let changes = &ran.report["usage"]["effects"];
        assert_eq!(
            (&changes["mode"], &changes["set_by"], &changes["changes"]),
            (&json!(effects.word()), &json!("condition"), &json!(4)),
            "{}",
            ran.report
        );
        let digest = changes["digest"].as_str().expect("a digest");
        assert!(digest.len() == 64 && digest.chars().all(|letter| letter.is_ascii_hexdigit()), "{digest}");
        digests.push(digest.to_owned());
        if effects == Staged {
            assert_lists_all(changes);
        } else {
            assert!(changes.get("files").is_none(), "{changes}");
        }
        let listed = ran.report["calls"]["list"].as_array().expect("calls").iter();
        assert_eq!(listed.map(|call| call["status"].clone()).collect::<Vec<_>>(), STATUSES, "{}", ran.report);
        let of_call = ran.nested(1);
        let all = [of_call.clone(), nested(&of_call, 1), ran.nested(2), ran.nested(3), ran.nested(4)];
        let depths = [1, 2, 1, 1, 1];
        for ((intent, depth), status) in all.iter().zip(depths).zip(["SUCCESS"].into_iter().chain(STATUSES)) {
            let report = shared.report(intent);
            assert_eq!(
                (&report["status"], &report["agent_did"]),
                (&json!(status), &json!(AGENT)),
                "{report}"
            );
            assert_eq!(report["parent"]["depth"], depth, "{report}");
            let own = &report["usage"]["effects"];
            assert_eq!(own["mode"], effects.word(), "{report}");
            for absent in ["changes", "digest", "files"] {
                assert!(own.get(absent).is_none(), "{absent}: {report}");
            }
            // The governor is told the same, once.
            eventually("the governor has its report", || (shared.reported(intent).len() == 1).then_some(()));
            assert_eq!(shared.reported(intent)[0]["status"], status, "{report}");
            // Nobody can decide on a part of the program.
            assert_no_changes_of_its_own(&shared, intent, digest);
        }
        let sets = shared.sets();
        assert_eq!(sets[0]["intent"], ran.intent, "{sets:?}");
        assert_eq!((&sets[0]["changes"], &sets[0]["digest"]), (&json!(4), &json!(digest)), "{sets:?}");
        assert_eq!(sets.iter().filter(|set| set["intent"] == ran.intent).count(), 1, "{sets:?}");
        shared.settle(&ran);
        let changed = [("a.txt", "ONE"), ("c.txt", "two more"), ("new.txt", "new")];
        assert_eq!(shared.files(), before_but(&changed, &["b.txt", "empty/"]), "{effects:?}");
        shared.decide("undo", &ran);
        assert_eq!(shared.files(), entries(BEFORE), "{effects:?}");
    }
    // The hash is of what the runs saw, too: the files were made anew in between.
    assert_ne!(digests[0], digests[1]);
    assert_chain_holds(shared.executor.home());
}

/// Asserts that the list of a staged program has the changes of all its runs, the removals and renames first.
fn assert_lists_all(changes: &Value) {
    let files = changes["files"].as_array().expect("files");
    let name = |file: &Value, member: &str| file[member].as_str().unwrap_or_default().to_owned();
    let listed = files.iter().map(|file| [name(file, "change"), name(file, "path"), name(file, "from")]);
    let mut listed = listed.collect::<Vec<_>>();
    assert_eq!(listed[0], ["deleted", "/workspace/empty", ""], "{changes}");
    assert_eq!(listed[1], ["renamed", "/workspace/c.txt", "/workspace/b.txt"], "{changes}");
    listed.drain(..2);
    listed.sort_unstable();
    let others = [["changed", "/workspace/a.txt", ""], ["created", "/workspace/new.txt", ""]];
    assert_eq!(listed, others.map(|words| words.map(str::to_owned)), "{changes}");
}

fn assert_no_changes_of_its_own(shared: &Shared, intent: &str, digest: &str) {
    let status = shared.executor.rpc("a2g/status", &json!({ "intent_id": intent }));
    assert!(result(&status).get("effects_state").is_none(), "{status}");
    for (method, params) in [
        ("a2g/commit", json!({ "intent": intent, "digest": digest })),
        ("a2g/discard", json!({ "intent": intent })),
        ("a2g/undo", json!({ "intent": intent })),
    ] {
        let refused = shared.executor.rpc(method, &params);
        assert!(refused.get("error").is_some(), "{method}: {refused}");
    }
}

impl Shared {
    /// The reports of an intent that the governor has received.
    fn reported(&self, intent: &str) -> Vec<Value> {
        let seen = self.governor.seen().into_iter();
        let reports = seen.filter(|(method, report)| method == "a2g/report" && report["intent_id"] == intent);
        reports.map(|(_, report)| report).collect()
    }
}

/// What one run changes and another one changes back is no change, but for a time.
#[test]
fn a_program_without_changes_has_nothing_to_decide_on() {
    let shared = Shared::start();
    let looks = json!([
        ["read", "/workspace/a.txt"],
        call(json!([
            ["read", "/workspace/b.txt"],
            ["create", "/workspace/new.txt", "x"],
            ["fail", "wanted"]
        ])),
        call(json!([["create", "/workspace/new.txt", "x"], ["append", "/workspace/a.txt", "!"]])),
        ["remove", "/workspace/new.txt"],
        ["write", "/workspace/a.txt", "one"],
    ]);
    for effects in Effects::APART {
        shared.set_files(BEFORE);
        let ran = shared.run(&program(effects, json!([looks[0], looks[1]])));
        let count = &ran.report["usage"]["effects"]["changes"];
        assert_eq!((&ran.report["status"], count), (&json!("SUCCESS"), &json!(0)), "{}", ran.report);
        let again = shared.run(&program(effects, looks.clone()));
        let left = again.report["usage"]["effects"]["changes"].as_u64().expect("a number");
        assert!(left <= 1, "{}", again.report);
        assert_eq!(shared.files(), entries(BEFORE), "{effects:?}");
        if again.report["status"] == "STAGED" {
            shared.decide("discard", &again);
        }
    }
    assert!(shared.sets().iter().all(|set| set["state"] != "waiting"), "{:?}", shared.sets());
}
