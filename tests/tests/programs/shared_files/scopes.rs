//! What a call of a program may do with the files that they share: what its own grant allows, wherever the program has moved
//! them.

use super::Effects::{Atomic, Direct, Staged};
use super::{
    BEFORE, Effects, Entries, ISOLATIONS, NETWORK, Shared, TOOL, before_but, brought, call, call_under, code,
    entries, granted, missing, program, steps_of,
};
use harness::{AGENT, Options, intent, result};
use serde_json::{Value, json};

/// A step that calls the guest with these folders and files.
fn call_in(scope: &[&str], steps: Value) -> Value {
    call_under(json!({ "scope": scope }), steps)
}

/// Runs a program under each isolation and both kinds of effects, and passes what its steps brought to `compare`. In the
/// end the workspace is `after`.
fn check(steps: &Value, after: &Entries, compare: impl Fn(&[Value], &str)) {
    for isolation in ISOLATIONS {
        let shared = Shared::start_with(Options::new().set("executor.isolation", isolation));
        for effects in Effects::APART {
            let case = format!("{isolation} {effects:?}");
            shared.set_files(BEFORE);
            let ran = shared.run(&program(effects, steps.clone()));
            compare(ran.outcomes(), &case);
            shared.settle(&ran);
            assert_eq!(shared.files(), *after, "{case}");
        }
    }
}

#[test]
fn a_call_in_one_folder_reaches_nothing_else() {
    let narrow = call_in(
        &["/workspace/sub/**"],
        json!([
            ["read", "/workspace/sub/staged.txt"],
            ["read", "/workspace/sub/deep/more.txt"],
            ["list", "/workspace/sub"],
            ["read", "/workspace/sub/in.txt"],
            ["read", "/workspace/out.txt"],
            ["read", "/workspace/moved.txt"],
            ["read", "/workspace/secret.txt"],
            ["read", "/workspace/a.txt"],
            ["read", "/workspace/sub/../a.txt"],
            ["list", "/workspace"],
            ["list", "/workspace/sub/.."],
        ]),
    );
    let changes = call_in(
        &["/workspace/sub/**"],
        json!([
            ["write", "/workspace/a.txt", "x"],
            ["create", "/workspace/new.txt", "x"],
            ["create", "/workspace/sub/../new.txt", "x"],
            ["append", "/workspace/out.txt", "x"],
            ["remove", "/workspace/out.txt"],
            ["rename", "/workspace/sub/staged.txt", "/workspace/stolen.txt"],
            ["rename", "/workspace/a.txt", "/workspace/sub/a.txt"],
            ["rename", "/workspace/sub", "/workspace/other"],
            ["rename", "/workspace/sub/deep", "/workspace/deep"],
            ["make_folder", "/workspace/folder"],
            ["remove_folder", "/workspace/empty"],
        ]),
    );
    let steps = json!([
        ["write", "/workspace/sub/staged.txt", "staged"],
        ["rename", "/workspace/secret.txt", "/workspace/moved.txt"],
        ["rename", "/workspace/sub/in.txt", "/workspace/out.txt"],
        ["write", "/workspace/a.txt", "ONE"],
        narrow,
        changes,
        call_in(&["/workspace/sub/**"], json!([["append", "/workspace/sub/staged.txt", "!"]])),
        ["read", "/workspace/sub/staged.txt"],
        ["list", "/workspace"],
    ]);
    let changed =
        [("a.txt", "ONE"), ("moved.txt", "the secret"), ("out.txt", "inside"), ("sub/staged.txt", "staged!")];
    let after = before_but(&changed, &["secret.txt", "sub/in.txt"]);
    check(&steps, &after, |outcomes, case| {
        let seen = brought(steps_of(&outcomes[4]));
        let granted = [json!("staged"), json!("more"), json!(["deep", "staged.txt"])];
        assert_eq!(seen[..3], granted, "{case}: {}", outcomes[4]);
        assert!(seen[3..].iter().all(Value::is_null), "{case}: {}", outcomes[4]);
        let tried = steps_of(&outcomes[5]);
        assert!(tried.iter().all(|outcome| !code(outcome).is_empty()), "{case}: {}", outcomes[5]);
        let listed = json!(["a.txt", "b.txt", "empty", "moved.txt", "out.txt", "sub"]);
        assert_eq!(outcomes[7..], [json!("staged!"), listed], "{case}");
    });
}

/// What the program moves into the folder of a call is the call's, and what it moves out is not any more, with whatever is
/// below it.
#[test]
fn a_call_has_what_its_program_has_moved_into_its_folder() {
    let looks = json!([
        ["read", "/workspace/sub/secret.txt"],
        ["list", "/workspace/sub"],
        ["list", "/workspace/sub/other"],
        ["read", "/workspace/sub/other/file.txt"],
        ["append", "/workspace/sub/secret.txt", "!"],
        ["remove", "/workspace/sub/other/file.txt"],
        ["read", "/workspace/sub/deep/more.txt"],
    ]);
    let steps = json!([
        ["make_folder", "/workspace/sub/made"],
        ["rename", "/workspace/secret.txt", "/workspace/sub/secret.txt"],
        ["rename", "/workspace/sub/deep", "/workspace/deep"],
        // A folder of originals that this program has not read.
        ["rename", "/workspace/empty", "/workspace/sub/other"],
        ["create", "/workspace/sub/other/file.txt", "file"],
        call_in(&["/workspace/sub/**"], looks),
        ["read", "/workspace/sub/secret.txt"],
        ["list", "/workspace/sub/other"],
        ["rename", "/workspace/sub/secret.txt", "/workspace/secret.txt"],
        call_in(&["/workspace/sub/**"], json!([["read", "/workspace/sub/secret.txt"]])),
        // All of it.
        ["rename", "/workspace/sub", "/workspace/gone"],
        call_in(
            &["/workspace/sub/**"],
            json!([
                ["list", "/workspace/sub"],
                ["read", "/workspace/sub/in.txt"],
                ["read", "/workspace/gone/in.txt"],
                ["create", "/workspace/sub/in.txt", "x"],
            ]),
        ),
    ]);
    let mut after =
        before_but(&[("secret.txt", "the secret!"), ("deep/", ""), ("deep/more.txt", "more")], &[]);
    after.retain(|path, _| !path.starts_with("sub/") && path != "empty/");
    after.extend(entries(&[
        ("gone/", ""),
        ("gone/made/", ""),
        ("gone/other/", ""),
        ("gone/in.txt", "inside"),
    ]));
    check(&steps, &after, |outcomes, case| {
        let names = json!(["in.txt", "made", "other", "secret.txt"]);
        let seen = json!(["the secret", names, ["file.txt"], "file", null, null, missing()]);
        assert_eq!(outcomes[5]["steps"], seen, "{case}");
        assert_eq!(outcomes[6..8], [json!("the secret!"), json!([])], "{case}");
        assert_eq!(outcomes[9]["steps"], json!([missing()]), "{case}");
        let gone = steps_of(&outcomes[11]);
        assert!(gone.iter().all(|outcome| !code(outcome).is_empty()), "{case}: {}", outcomes[11]);
    });
}

#[test]
fn a_call_with_one_file_reaches_no_other() {
    let steps = json!([
        ["write", "/workspace/a.txt", "ONE"],
        ["rename", "/workspace/b.txt", "/workspace/c.txt"],
        call_in(
            &["/workspace/a.txt"],
            json!([
                ["read", "/workspace/a.txt"],
                ["append", "/workspace/a.txt", "!"],
                ["read", "/workspace/c.txt"],
                ["read", "/workspace/secret.txt"],
                ["read", "/workspace/sub/in.txt"],
                ["create", "/workspace/new.txt", "x"],
                ["write", "/workspace/c.txt", "x"],
                ["remove", "/workspace/secret.txt"],
                ["rename", "/workspace/a.txt", "/workspace/new.txt"],
                ["rename", "/workspace/secret.txt", "/workspace/a.txt"],
                ["make_folder", "/workspace/new"],
                ["rename", "/workspace/sub", "/workspace/new"],
            ]),
        ),
        ["rename", "/workspace/secret.txt", "/workspace/a.txt"],
        call_in(&["/workspace/a.txt"], json!([["read", "/workspace/a.txt"]])),
    ]);
    let after = before_but(&[("a.txt", "the secret"), ("c.txt", "two")], &["b.txt", "secret.txt"]);
    check(&steps, &after, |outcomes, case| {
        let (allowed, refused) = steps_of(&outcomes[2]).split_at(2);
        assert_eq!(allowed, [json!("ONE"), Value::Null], "{case}");
        assert!(refused.iter().all(|outcome| !code(outcome).is_empty()), "{case}: {refused:?}");
        assert_eq!(outcomes[4]["steps"], json!(["the secret"]), "{case}: the path is what is granted");
    });
}

#[test]
fn a_call_with_a_pattern_reaches_what_matches_it_now() {
    let steps = json!([
        ["rename", "/workspace/b.txt", "/workspace/b.md"],
        ["create", "/workspace/plan.md", "plan"],
        ["rename", "/workspace/plan.md", "/workspace/plan.txt"],
        call_in(
            &["/workspace/*.md"],
            json!([
                ["read", "/workspace/b.md"],
                ["append", "/workspace/b.md", "!"],
                ["create", "/workspace/c.md", "c"],
                ["rename", "/workspace/c.md", "/workspace/d.md"],
                ["read", "/workspace/plan.txt"],
                ["read", "/workspace/a.txt"],
                ["create", "/workspace/c.txt", "x"],
                ["create", "/workspace/sub/c.md", "x"],
                ["rename", "/workspace/b.md", "/workspace/b.txt"],
                ["rename", "/workspace/a.txt", "/workspace/a.md"],
                ["write", "/workspace/plan.txt", "x"],
            ]),
        ),
        ["read", "/workspace/d.md"],
    ]);
    let after = before_but(&[("b.md", "two!"), ("d.md", "c"), ("plan.txt", "plan")], &["b.txt"]);
    check(&steps, &after, |outcomes, case| {
        let (allowed, refused) = steps_of(&outcomes[3]).split_at(4);
        assert_eq!(allowed, [json!("two"), Value::Null, Value::Null, Value::Null], "{case}");
        assert!(refused.iter().all(|outcome| !code(outcome).is_empty()), "{case}: {refused:?}");
        assert_eq!(outcomes[4], "c", "{case}");
    });
}

#[test]
fn a_call_that_may_only_read_changes_nothing() {
    let steps = json!([
        ["write", "/workspace/a.txt", "ONE"],
        ["rename", "/workspace/b.txt", "/workspace/c.txt"],
        call_under(
            json!({ "conditions": ["read_only"] }),
            json!([
                ["read", "/workspace/a.txt"],
                ["read", "/workspace/c.txt"],
                ["list", "/workspace/sub"],
                ["write", "/workspace/a.txt", "x"],
                ["append", "/workspace/c.txt", "x"],
                ["create", "/workspace/new.txt", "x"],
                ["open", "f", "/workspace/a.txt", "rw"],
                ["remove", "/workspace/secret.txt"],
                ["rename", "/workspace/c.txt", "/workspace/d.txt"],
                ["make_folder", "/workspace/folder"],
                ["remove_folder", "/workspace/empty"],
                // A call of it may change files: it has a grant of its own.
                call(json!([["append", "/workspace/a.txt", "!"]])),
                ["read", "/workspace/a.txt"],
            ]),
        ),
        ["read", "/workspace/a.txt"],
    ]);
    let after = before_but(&[("a.txt", "ONE!"), ("c.txt", "two")], &["b.txt"]);
    check(&steps, &after, |outcomes, case| {
        let all = steps_of(&outcomes[2]);
        assert_eq!(all[..3], [json!("ONE"), json!("two"), json!(["deep", "in.txt"])], "{case}");
        assert!(all[3..11].iter().all(|outcome| !code(outcome).is_empty()), "{case}: {all:?}");
        assert_eq!(all[11..], [json!({ "steps": [null] }), json!("ONE!")], "{case}");
        assert_eq!(outcomes[3], "ONE!", "{case}");
    });
}

/// Also a program that may only read has calls that change its files, and sees it.
#[test]
fn a_program_that_may_only_read_sees_the_changes_of_its_calls() {
    let shared = Shared::start();
    let steps = json!([
        ["open", "f", "/workspace/a.txt", "r"],
        ["write", "/workspace/a.txt", "x"],
        call(json!([
            ["append", "/workspace/a.txt", "!"],
            ["rename", "/workspace/b.txt", "/workspace/c.txt"],
            ["remove", "/workspace/secret.txt"],
        ])),
        ["read", "/workspace/a.txt"],
        ["read_open", "f"],
        ["read", "/workspace/c.txt"],
        ["read", "/workspace/secret.txt"],
        ["remove", "/workspace/c.txt"],
    ]);
    let mut reading = program(Staged, steps);
    reading["arguments"]["grant"]["conditions"] = json!(["effects:staged", "read_only"]);
    let ran = shared.run(&reading);
    let outcomes = ran.outcomes();
    assert!(!code(&outcomes[1]).is_empty() && !code(&outcomes[7]).is_empty(), "{outcomes:?}");
    assert_eq!(outcomes[3..7], [json!("one!"), json!("one!"), json!("two"), missing()]);
    shared.settle(&ran);
    assert_eq!(shared.files(), before_but(&[("a.txt", "one!"), ("c.txt", "two")], &["b.txt", "secret.txt"]));
}

#[test]
fn a_program_without_files_has_calls_with_files_and_the_other_way_round() {
    for isolation in ISOLATIONS {
        let shared = Shared::start_with(Options::new().set("executor.isolation", isolation));
        for effects in Effects::APART {
            let case = format!("{isolation} {effects:?}");
            shared.set_files(BEFORE);
            let steps = json!([
                ["read", "/workspace/a.txt"],
                ["create", "/workspace/own.txt", "x"],
                call(json!([["append", "/workspace/a.txt", "!"], ["remove", "/workspace/b.txt"]])),
                call(json!([["read", "/workspace/a.txt"], ["read", "/workspace/b.txt"]])),
                ["list", "/workspace"],
            ]);
            let ran = shared.run(&granted(effects, json!({ "scope": [] }), steps));
            let outcomes = ran.outcomes();
            assert!([0, 1, 4].iter().all(|step| !code(&outcomes[*step]).is_empty()), "{case}: {outcomes:?}");
            assert_eq!(outcomes[3]["steps"], json!(["one!", missing()]), "{case}");
            shared.settle(&ran);
            assert_eq!(shared.files(), before_but(&[("a.txt", "one!")], &["b.txt"]), "{case}");
        }
        let steps = json!([
            ["write", "/workspace/a.txt", "ONE"],
            call_in(
                &[],
                json!([
                    ["read", "/workspace/a.txt"],
                    ["create", "/workspace/own.txt", "x"],
                    // It has no files, and its call has some.
                    call(json!([["append", "/workspace/a.txt", "!"]])),
                ]),
            ),
            ["read", "/workspace/a.txt"],
        ]);
        shared.set_files(BEFORE);
        let ran = shared.run(&program(Staged, steps));
        let all = steps_of(&ran.outcomes()[1]);
        assert!(!code(&all[0]).is_empty() && !code(&all[1]).is_empty(), "{isolation}: {all:?}");
        assert_eq!(
            (&all[2], &ran.outcomes()[2]),
            (&json!({ "steps": [null] }), &json!("ONE!")),
            "{isolation}"
        );
        shared.settle(&ran);
        assert_eq!(shared.files(), before_but(&[("a.txt", "ONE!")], &[]), "{isolation}");
    }
}

#[test]
fn a_folder_that_only_the_program_has_made_is_the_scope_of_a_call() {
    let made = &["/workspace/made/**"];
    let deep = &["/workspace/made/deep/**"];
    let steps = json!([
        // Before it is there, nothing can be made in it, and it is made by nobody.
        call_in(
            made,
            json!([
                ["list", "/workspace/made"],
                ["create", "/workspace/made/x", "x"],
                ["make_folder", "/workspace/made"],
            ]),
        ),
        ["make_folder", "/workspace/made"],
        ["write", "/workspace/made/own.txt", "own"],
        call_in(
            made,
            json!([
                ["list", "/workspace/made"],
                ["append", "/workspace/made/own.txt", "!"],
                ["create", "/workspace/made/new.txt", "new"],
                ["make_folder", "/workspace/made/deep"],
                ["read", "/workspace/a.txt"],
                // Made by a call of the program, for a call of that call.
                call_in(
                    deep,
                    json!([
                        ["create", "/workspace/made/deep/x", "deep"],
                        ["read", "/workspace/made/own.txt"],
                    ]),
                ),
            ]),
        ),
        ["read", "/workspace/made/own.txt"],
        ["list", "/workspace/made"],
        ["rename", "/workspace/made/deep", "/workspace/deep"],
        ["remove", "/workspace/sub/in.txt"],
        ["rename", "/workspace/sub/deep", "/workspace/made/deep"],
        call_in(
            deep,
            json!([["list", "/workspace/made/deep"], ["append", "/workspace/made/deep/more.txt", "!"]]),
        ),
        ["remove_folder", "/workspace/empty"],
        ["create", "/workspace/empty", "a file"],
        // A file has taken the place of a folder that is still there on the host.
        call_in(
            &["/workspace/empty/**"],
            json!([["list", "/workspace/empty"], ["read", "/workspace/empty"]])
        ),
    ]);
    let changed = [
        ("deep/", ""),
        ("deep/x", "deep"),
        ("empty", "a file"),
        ("made/", ""),
        ("made/deep/", ""),
        ("made/deep/more.txt", "more!"),
        ("made/new.txt", "new"),
        ("made/own.txt", "own!"),
    ];
    let after = before_but(&changed, &["empty/", "sub/deep/", "sub/deep/more.txt", "sub/in.txt"]);
    check(&steps, &after, |outcomes, case| {
        let early = steps_of(&outcomes[0]);
        assert!(early.iter().all(|outcome| !code(outcome).is_empty()), "{case}: {early:?}");
        let later = steps_of(&outcomes[3]);
        assert_eq!(later[..4], [json!(["own.txt"]), Value::Null, Value::Null, Value::Null], "{case}");
        assert!(!code(&later[4]).is_empty(), "{case}: {later:?}");
        let deepest = steps_of(&later[5]);
        assert!(deepest[0].is_null() && !code(&deepest[1]).is_empty(), "{case}: {deepest:?}");
        assert_eq!(outcomes[4..6], [json!("own!"), json!(["deep", "new.txt", "own.txt"])], "{case}");
        assert_eq!(outcomes[9]["steps"], json!([["more.txt"], null]), "{case}");
        let last = steps_of(&outcomes[12]);
        assert!(last.iter().all(|outcome| !code(outcome).is_empty()), "{case}: {last:?}");
    });
}

/// A call whose changes would wait by themselves, while its program goes on without them.
#[test]
fn a_staged_call_is_refused_unless_its_program_is_staged() {
    let shared = Shared::start();
    for effects in Effects::ALL {
        shared.set_files(BEFORE);
        let staged = call_under(
            json!({ "conditions": ["effects:staged"] }),
            json!([["write", "/workspace/a.txt", "by the call"]]),
        );
        let ran = shared.run(&program(effects, json!([staged, ["read", "/workspace/a.txt"]])));
        let [ended, read] = ran.outcomes() else { panic!("{}", ran.report) };
        if effects == Staged {
            assert_eq!((ended, read), (&json!({ "steps": [null] }), &json!("by the call")));
            shared.settle(&ran);
            assert_eq!(shared.files()["a.txt"], "by the call");
            continue;
        }
        assert_eq!((code(ended), read), ("denied", &json!("one")), "{effects:?}");
        assert_eq!(ended["detail"]["blocked_by"], "scope_unenforceable", "{effects:?}: {ended}");
        let message = ended["message"].as_str().expect("a message");
        assert!(message.contains("`staged`") && message.contains("take_steps"), "{effects:?}: {message}");
        assert_eq!(shared.files(), entries(BEFORE), "{effects:?}");
    }
    assert!(shared.sets().iter().all(|set| set["state"] != "waiting"), "{:?}", shared.sets());
}

/// A request of the call could not be taken back with the changes of its program.
#[test]
fn a_call_with_a_network_is_refused_unless_its_program_changes_files_at_once() {
    let online = Options::new().set("ceilings.network_allowed", true);
    let shared = Shared::start_with(online.set("network.allowed_domains", json!(["*.example"])));
    for effects in Effects::ALL {
        for has_network in [true, false] {
            shared.set_files(BEFORE);
            let sends = json!(["call", NETWORK, { "grant": { "network": has_network } }]);
            let ran = shared.run(&program(effects, json!([["write", "/workspace/a.txt", "ONE"], sends])));
            let ended = &ran.outcomes()[1];
            if has_network && effects != Direct {
                assert_eq!(code(ended), "denied", "{effects:?}: {ended}");
                assert_eq!(ended["detail"]["blocked_by"], "scope_unenforceable", "{effects:?}: {ended}");
                let message = ended["message"].as_str().expect("a message");
                assert!(message.contains("over the network") && message.contains(TOOL), "{message}");
            } else {
                assert_eq!(code(ended), "", "{effects:?} {has_network}: {ended}");
            }
            shared.settle(&ran);
            assert_eq!(shared.files(), before_but(&[("a.txt", "ONE")], &[]), "{effects:?} {has_network}");
        }
    }
}

/// A call under `atomic` is one with its program if that is kept apart, and else one for itself.
#[test]
fn an_atomic_call_takes_effect_with_its_program() {
    let shared = Shared::start();
    for effects in Effects::ALL {
        shared.set_files(BEFORE);
        let atomic = |steps: Value| call_under(json!({ "conditions": ["effects:atomic"] }), steps);
        let steps = json!([
            ["write", "/workspace/a.txt", "ONE"],
            atomic(json!([["append", "/workspace/a.txt", "!"]])),
            ["read", "/workspace/a.txt"],
            atomic(json!([["write", "/workspace/a.txt", "x"], ["fail", "wanted"]])),
            ["read", "/workspace/a.txt"],
        ]);
        let ran = shared.run(&program(effects, steps));
        let outcomes = ran.outcomes();
        assert_eq!((&outcomes[2], &outcomes[4]), (&json!("ONE!"), &json!("ONE!")), "{effects:?}");
        assert_eq!(code(&outcomes[3]), "wanted", "{effects:?}");
        let mode = &shared.report(&ran.nested(1))["usage"]["effects"]["mode"];
        assert_eq!(*mode, if effects == Staged { "staged" } else { "atomic" }, "{effects:?}");
        shared.settle(&ran);
        assert_eq!(shared.files(), before_but(&[("a.txt", "ONE!")], &[]), "{effects:?}");
    }
}

/// The effects of the program are those of its calls, and not of others: a call from outside is as its own grant says.
#[test]
fn a_call_from_outside_sees_nothing_of_a_program() {
    let shared = Shared::start();
    let ran = shared.run(&program(
        Staged,
        json!([["write", "/workspace/a.txt", "ONE"], call(json!([["write", "/workspace/b.txt", "TWO"]])),]),
    ));
    let looks = json!([["read", "/workspace/a.txt"], ["read", "/workspace/b.txt"]]);
    for effects in Effects::ALL {
        let outside = shared.run(&program(effects, json!([call(looks.clone()), ["list", "/workspace"]])));
        assert_eq!(outside.outcomes()[0]["steps"], json!(["one", "two"]), "{effects:?}");
    }
    // Neither does a program whose intent the agent names like a call of that program.
    let mut planted = program(Atomic, looks);
    planted["intent_id"] = ran.nested(2).into();
    assert_eq!(shared.run(&planted).outcomes(), [json!("one"), json!("two")]);
    // The name of a call that has run is taken.
    let mut taken = intent(TOOL, json!({ "steps": [] }));
    taken["intent_id"] = ran.nested(1).into();
    let answer = shared.executor.rpc("a2g/intent", &taken);
    assert!(answer.get("error").is_some(), "{answer}");
    shared.settle(&ran);
    assert_eq!(shared.files(), before_but(&[("a.txt", "ONE"), ("b.txt", "TWO")], &[]));
}

/// A standing policy of the agent says the same for calls as for programs.
#[test]
fn a_policy_for_the_tool_of_a_call_holds_in_a_program() {
    let shared = Shared::start();
    let mut tools = json!({});
    tools[TOOL] = json!({ "allowed": true, "constraints": { "effects": "staged" } });
    let policy = json!({ "agent_did": AGENT, "version": "v", "capabilities": { "tools": tools } });
    assert_eq!(result(&shared.executor.rpc("g2a/policy", &policy))["accepted"], true);
    let steps = json!([
        ["write", "/workspace/a.txt", "ONE"],
        call(json!([["append", "/workspace/a.txt", "!"]])),
        call_under(json!({ "verdict": "DENIED" }), json!([])),
    ]);
    let ran = shared.run(&program(Direct, steps));
    assert_eq!(ran.report["status"], "STAGED", "{}", ran.report);
    assert_eq!(code(&ran.outcomes()[2]), "denied");
    shared.settle(&ran);
    assert_eq!(shared.files(), before_but(&[("a.txt", "ONE!")], &[]));
}
