//! A program and its calls see one another's changes, by paths and through what they have open.

use super::Effects::{Direct, Staged};
use super::{
    BEFORE, Effects, ISOLATIONS, Ran, Shared, before_but, call, entries, missing, nested, program, start,
    steps_of,
};
use harness::{Options, call_in_background, eventually};
use serde_json::{Value, json};

/// Changes files by itself and by two calls, each of which looks at what came before it.
fn changes() -> Value {
    let first = call(json!([
        ["read", "/workspace/a.txt"],
        ["read", "/workspace/b.txt"],
        ["read", "/workspace/sub/b.txt"],
        ["read", "/workspace/secret.txt"],
        ["read", "/workspace/made/new.txt"],
        ["read", "/workspace/made/deep/more.txt"],
        ["list", "/workspace"],
        ["append", "/workspace/a.txt", "!"],
        ["create", "/workspace/made/call.txt", "call"],
        ["rename", "/workspace/made/new.txt", "/workspace/moved.txt"],
        ["remove", "/workspace/sub/b.txt"],
        ["remove_folder", "/workspace/empty"],
        ["rename", "/workspace/made/deep", "/workspace/deep"],
        ["read", "/workspace/deep/more.txt"],
    ]));
    let second = call(json!([
        ["read", "/workspace/a.txt"],
        ["read", "/workspace/made/call.txt"],
        ["write", "/workspace/made/call.txt", "again"],
        ["append", "/workspace/a.txt", "?"],
        ["create", "/workspace/moved.txt", "x"],
    ]));
    json!([
        ["write", "/workspace/a.txt", "ONE"],
        ["rename", "/workspace/b.txt", "/workspace/sub/b.txt"],
        ["remove", "/workspace/secret.txt"],
        ["make_folder", "/workspace/made"],
        ["write", "/workspace/made/new.txt", "new"],
        ["rename", "/workspace/sub/deep", "/workspace/made/deep"],
        first,
        ["read", "/workspace/a.txt"],
        ["list", "/workspace"],
        ["list", "/workspace/made"],
        ["list", "/workspace/sub"],
        ["read", "/workspace/moved.txt"],
        ["read", "/workspace/deep/more.txt"],
        ["read", "/workspace/sub/b.txt"],
        second,
        ["read", "/workspace/made/call.txt"],
        ["append", "/workspace/a.txt", "."],
        call(json!([["read", "/workspace/a.txt"], ["size", "/workspace/made/call.txt"]])),
    ])
}

fn outcomes_of_changes() -> Value {
    let first = json!([
        "ONE",
        missing(),
        "two",
        missing(),
        "new",
        "more",
        ["a.txt", "empty", "made", "sub"],
        null,
        null,
        null,
        null,
        null,
        null,
        "more",
    ]);
    let second = json!(["ONE!", "call", null, null, { "failed": "AlreadyExists" }]);
    json!([
        null,
        null,
        null,
        null,
        null,
        null,
        { "steps": first },
        "ONE!",
        ["a.txt", "deep", "made", "moved.txt", "sub"],
        ["call.txt"],
        ["in.txt"],
        "new",
        "more",
        missing(),
        { "steps": second },
        "again",
        null,
        { "steps": ["ONE!?.", 5] },
    ])
}

#[test]
fn a_call_sees_what_its_program_has_changed_and_the_program_sees_what_it_changes() {
    let after = entries(&[
        ("a.txt", "ONE!?."),
        ("deep/", ""),
        ("deep/more.txt", "more"),
        ("made/", ""),
        ("made/call.txt", "again"),
        ("moved.txt", "new"),
        ("sub/", ""),
        ("sub/in.txt", "inside"),
    ]);
    for isolation in ISOLATIONS {
        let shared = Shared::start_with(Options::new().set("executor.isolation", isolation));
        for effects in Effects::ALL {
            shared.set_files(BEFORE);
            let ran = shared.run(&program(effects, changes()));
            assert_eq!(ran.report["status"], effects.status(), "{isolation} {effects:?}: {}", ran.report);
            assert_eq!(json!(ran.outcomes()), outcomes_of_changes(), "{isolation} {effects:?}");
            shared.settle(&ran);
            assert_eq!(shared.files(), after, "{isolation} {effects:?}");
            if effects != Direct {
                shared.decide("undo", &ran);
                assert_eq!(shared.files(), entries(BEFORE), "{isolation} {effects:?}");
            }
        }
        shared.assert_nothing_is_kept();
    }
}

#[test]
fn open_files_have_what_a_call_has_done_to_them() {
    let steps = json!([
        ["open", "written", "/workspace/a.txt", "rw"],
        ["open", "renamed", "/workspace/b.txt", "r"],
        ["open", "removed", "/workspace/secret.txt", "r"],
        ["open", "removed_written", "/workspace/sub/in.txt", "rw"],
        ["write", "/workspace/own.txt", "own"],
        ["open", "own", "/workspace/own.txt", "rw"],
        call(json!([
            ["write", "/workspace/a.txt", "changed by the call"],
            ["rename", "/workspace/b.txt", "/workspace/sub/b.txt"],
            ["append", "/workspace/sub/b.txt", " more"],
            ["remove", "/workspace/secret.txt"],
            ["remove", "/workspace/sub/in.txt"],
            ["append", "/workspace/own.txt", " and the call's"],
        ])),
        ["read_open", "written"],
        ["write_open", "written", 0, "CHANGED"],
        ["read", "/workspace/a.txt"],
        ["read_open", "renamed"],
        ["size_open", "renamed"],
        ["read_open", "removed"],
        ["read", "/workspace/secret.txt"],
        // A file without a name can still be written.
        ["write_open", "removed_written", 6, "!"],
        ["read_open", "removed_written"],
        ["read", "/workspace/sub/in.txt"],
        ["read_open", "own"],
        ["write_open", "own", 0, "OWN"],
        call(json!([
            ["read", "/workspace/a.txt"],
            ["read", "/workspace/own.txt"],
            ["create", "/workspace/secret.txt", "another"],
            ["rename", "/workspace/own.txt", "/workspace/a.txt"],
        ])),
        ["read_open", "removed"],
        ["read", "/workspace/secret.txt"],
        // Its file was replaced by that of the other handle.
        ["write_open", "written", 0, "lost"],
        ["read_open", "own"],
        ["write_open", "own", 0, "end"],
        ["read", "/workspace/a.txt"],
    ]);
    let expected = json!([
        null, null, null, null, null, null,
        { "steps": [null, null, null, null, null, null] },
        "changed by the call",
        null,
        "CHANGED by the call",
        "two more",
        8,
        "the secret",
        missing(),
        null,
        "inside!",
        missing(),
        "own and the call's",
        null,
        { "steps": ["CHANGED by the call", "OWN and the call's", null, null] },
        "the secret",
        "another",
        null,
        "OWN and the call's",
        null,
        "end and the call's",
    ]);
    let changed = [("a.txt", "end and the call's"), ("secret.txt", "another"), ("sub/b.txt", "two more")];
    let after = before_but(&changed, &["b.txt", "sub/in.txt"]);
    for isolation in ISOLATIONS {
        let shared = Shared::start_with(Options::new().set("executor.isolation", isolation));
        for effects in Effects::ALL {
            shared.set_files(BEFORE);
            let ran = shared.run(&program(effects, steps.clone()));
            assert_eq!(json!(ran.outcomes()), expected, "{isolation} {effects:?}");
            shared.settle(&ran);
            assert_eq!(shared.files(), after, "{isolation} {effects:?}");
        }
    }
}

/// Enough names that no guest has read all of them when it has opened the folder.
#[test]
fn an_open_folder_is_listed_on_after_a_call_has_moved_it() {
    let shared = Shared::start();
    let names = (0..200).map(|number| format!("{number:03}-{}", "n".repeat(60))).collect::<Vec<_>>();
    let files = names.iter().map(|name| (format!("many/{name}"), "x")).collect::<Vec<_>>();
    let listed = files.iter().map(|(path, content)| (path.as_str(), *content));
    let all = [("many/", "")].into_iter().chain(listed).collect::<Vec<_>>();
    for effects in Effects::ALL {
        shared.set_files(&all);
        let steps = json!([
            ["open_folder", "many", "/workspace/many"],
            call(json!([
                ["rename", "/workspace/many", "/workspace/moved"],
                ["make_folder", "/workspace/many"]
            ])),
            ["list_open", "many"],
            ["list", "/workspace/many"],
            ["list", "/workspace/moved"],
        ]);
        let ran = shared.run(&program(effects, steps));
        let expected = json!([null, { "steps": [null, null] }, names, [], names]);
        assert_eq!(json!(ran.outcomes()), expected, "{effects:?}");
    }
}

/// What the program does by a path waits for its calls; what it reads from an open file does not.
#[test]
fn a_program_waits_for_its_calls_before_it_uses_a_path() {
    let shared = Shared::start();
    for effects in Effects::APART {
        shared.set_files(BEFORE);
        let slow = |name: &str, end: &str| {
            let path = format!("/workspace/{name}");
            json!([["write", path, "begun"], ["sleep", 300], ["write", path, end]])
        };
        let ran = shared.run(&program(
            effects,
            json!([
                start("one", slow("one.txt", "ended")),
                start("two", slow("two.txt", "ended, too")),
                ["read", "/workspace/one.txt"],
                ["read", "/workspace/two.txt"],
                ["wait", "one"],
                ["wait", "two"],
            ]),
        ));
        let ended = json!({ "steps": [null, null, null] });
        assert_eq!(json!(ran.outcomes()), json!([null, null, "ended", "ended, too", ended, ended]));

        let waiting = program(
            effects,
            json!([
                ["open", "f", "/workspace/a.txt", "r"],
                start("c", json!([["wait_for", "/workspace/go"], ["write", "/workspace/a.txt", "later"]])),
                ["read_open", "f"],
                ["wait", "c"],
                ["read_open", "f"],
            ]),
        );
        shared.set_files(BEFORE);
        let answer = call_in_background(&shared.executor, "a2g/intent", &waiting);
        let parent = waiting["intent_id"].as_str().expect("an id");
        shared.wait_until(&nested(parent, 1), "running");
        // Far more than the next step of the program takes.
        std::thread::sleep(std::time::Duration::from_secs(1));
        std::fs::write(shared.executor.workspace().join("go"), "").unwrap();
        let ran = Ran::of(&waiting, &answer.join().unwrap());
        let expected = json!([null, null, "one", { "steps": [null, null] }, "later"]);
        assert_eq!(json!(ran.outcomes()), expected, "{effects:?}");
    }
}

/// The outcomes of one call in another, at this depth.
fn at_depth(mut outcomes: &[Value], steps: &[usize]) -> Value {
    for step in steps {
        outcomes = steps_of(&outcomes[*step]);
    }
    json!(outcomes)
}

/// All of them use the one slot of the executor.
#[test]
fn calls_of_calls_see_the_changes_of_all_runs_above_them() {
    let third = call(json!([
        ["read", "/workspace/p.txt"],
        ["read", "/workspace/second.txt"],
        ["read", "/workspace/a.txt"],
        ["remove", "/workspace/first.txt"],
        ["write", "/workspace/third.txt", "third"],
        ["append", "/workspace/p.txt", "3"],
        ["rename", "/workspace/sub", "/workspace/third"],
    ]));
    let second = call(json!([
        ["read", "/workspace/first.txt"],
        ["write", "/workspace/second.txt", "second"],
        ["append", "/workspace/p.txt", "2"],
        third,
        ["list", "/workspace"],
        ["read", "/workspace/p.txt"],
    ]));
    let first = call(json!([
        ["read", "/workspace/p.txt"],
        ["write", "/workspace/first.txt", "first"],
        ["append", "/workspace/p.txt", "1"],
        second,
        ["read", "/workspace/p.txt"],
        ["read", "/workspace/first.txt"],
        ["append", "/workspace/third/in.txt", "!"],
    ]));
    let steps = json!([
        ["write", "/workspace/p.txt", "p"],
        ["rename", "/workspace/b.txt", "/workspace/a.txt"],
        first,
        ["list", "/workspace"],
        ["read", "/workspace/p.txt"],
        ["read", "/workspace/third/in.txt"],
        ["append", "/workspace/p.txt", "."],
    ]);
    let listed = json!(["a.txt", "empty", "p.txt", "second.txt", "secret.txt", "third", "third.txt"]);
    let after = entries(&[
        ("a.txt", "two"),
        ("empty/", ""),
        ("p.txt", "p123."),
        ("second.txt", "second"),
        ("secret.txt", "the secret"),
        ("third/", ""),
        ("third/deep/", ""),
        ("third/deep/more.txt", "more"),
        ("third/in.txt", "inside!"),
        ("third.txt", "third"),
    ]);
    let shared = Shared::start_with(Options::new().set("executor.concurrent", 1));
    for effects in Effects::ALL {
        shared.set_files(BEFORE);
        let ran = shared.run(&program(effects, steps.clone()));
        let outcomes = ran.outcomes();
        let lowest = json!(["p12", "second", "two", null, null, null, null]);
        assert_eq!(at_depth(outcomes, &[2, 3, 3]), lowest, "{effects:?}");
        let middle = at_depth(outcomes, &[2, 3]);
        assert_eq!(
            (&middle[0], &middle[4], &middle[5]),
            (&json!("first"), &listed, &json!("p123")),
            "{effects:?}"
        );
        let highest = at_depth(outcomes, &[2]);
        assert_eq!(
            (&highest[0], &highest[4], &highest[5], &highest[6]),
            (&json!("p"), &json!("p123"), &missing(), &Value::Null),
            "{effects:?}"
        );
        let own = json!([listed, "p123", "inside!", null]);
        assert_eq!(json!(outcomes[3..]), own, "{effects:?}");
        shared.settle(&ran);
        assert_eq!(shared.files(), after, "{effects:?}");
    }
}

/// What others do to the originals meanwhile is seen, and is a conflict only for what the program has used.
#[test]
fn files_that_others_make_meanwhile_are_seen_by_calls() {
    let shared = Shared::start();
    let waiting = program(
        Staged,
        json!([
            ["write", "/workspace/p.txt", "p"],
            call(json!([["wait_for", "/workspace/go"], ["read", "/workspace/go"], ["list", "/workspace"]])),
            ["read", "/workspace/go"],
        ]),
    );
    let answer = call_in_background(&shared.executor, "a2g/intent", &waiting);
    eventually("the program has written", || shared.keeps("p").then_some(()));
    std::fs::write(shared.executor.workspace().join("go"), "from outside").unwrap();
    let ran = Ran::of(&waiting, &answer.join().unwrap());
    let listed = json!(["a.txt", "b.txt", "empty", "go", "p.txt", "secret.txt", "sub"]);
    let expected = json!([null, { "steps": [null, "from outside", listed] }, "from outside"]);
    assert_eq!(json!(ran.outcomes()), expected);
    shared.decide("commit", &ran);
    assert_eq!(shared.files(), before_but(&[("go", "from outside"), ("p.txt", "p")], &[]));
}
