//! Decisions that somebody may not make, or not now. None of them changes anything, and the changes still wait.

use super::{AFTER, Act, BEFORE, EDITS, OTHER, StagedFixture, StagedRun, edits, entries};
use harness::{AGENT, Options, Tool, execute, expect_blocked, guest, id_of, intent_id, result, set_member};
use serde_json::{Value, json};

/// Asserts that the changes wait, and that nobody has made a decision.
fn assert_undecided(fixture: &StagedFixture, run: &StagedRun, after: &str) {
    assert_eq!((&*fixture.state(run), fixture.files()), ("waiting", entries(BEFORE)), "{after}");
    assert_eq!(fixture.decisions(run), Vec::<[String; 3]>::new(), "{after}");
}

#[test]
fn only_deciders_commit_and_undo() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let run = fixture.stage(EDITS);
    for who in ["agent", "other", "otto"] {
        for act in [Act::Commit, Act::Undo] {
            expect_blocked(&fixture.decide(who, act, &run), "caller_unauthorized");
            assert_undecided(&fixture, &run, who);
        }
    }
    fixture.succeed("gov", Act::Commit, &run);
    for who in ["agent", "other", "otto"] {
        expect_blocked(&fixture.decide(who, Act::Undo, &run), "caller_unauthorized");
    }
    assert_eq!((&*fixture.state(&run), fixture.files()), ("in_force", entries(AFTER)));
}

/// To an agent, the changes of other agents do not exist.
#[test]
fn an_agent_sees_and_discards_its_own_changes_only() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let run = fixture.stage(EDITS);
    let unknown = StagedRun { intent: intent_id(), digest: run.digest.clone(), report: Value::Null };
    let answers = |params: &dyn Fn(&StagedRun) -> Value, method: &str| {
        [&run, &unknown].map(|asked| {
            let answer = fixture.ask("other", method, &params(asked));
            answer.to_string().replace(&asked.intent, "INTENT")
        })
    };
    let only_intent = |run: &StagedRun| json!({ "intent": run.intent });
    for method in ["a2g/effects", "a2g/discard"] {
        let [foreign, nobodys] = answers(&only_intent, method);
        assert_eq!(foreign, nobodys, "{method}");
        assert!(!foreign.contains("a.txt"), "{method}: {foreign}");
    }
    assert_eq!(fixture.sets("other"), Vec::<Value>::new());
    for who in ["agent", "both", "anna", "gov", "otto"] {
        assert_eq!(fixture.sets(who).len(), 1, "{who}");
    }
    assert_undecided(&fixture, &run, "an agent that may not");
    let mut call = execute(EDITS, json!({}));
    set_member(&mut call, "/intent/agent_did", OTHER.into());
    assert_eq!(result(&fixture.ask("other", "a2g/execute", &call))["status"], "STAGED");
    assert_eq!(
        [fixture.sets("other").len(), fixture.sets("agent").len(), fixture.sets("gov").len()],
        [1, 1, 2]
    );
}

#[test]
fn nothing_can_be_decided_about_an_intent_without_changes() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let looked = execute("looks", json!({}));
    result(&fixture.ask("agent", "a2g/execute", &looked));
    for intent in [intent_id(), id_of(&looked)] {
        let run = StagedRun { intent, digest: "0".repeat(64), report: Value::Null };
        for act in Act::ALL {
            let answer = fixture.decide("anna", act, &run);
            assert!(answer.get("error").is_some(), "{act:?}: {answer}");
        }
    }
    for (method, params) in [
        ("a2g/effects", json!({ "intent": "x" })),
        ("a2g/commit", json!({ "intent": intent_id() })),
        ("a2g/commit", json!({ "digest": "0".repeat(64) })),
        ("a2g/discard", json!({})),
        ("a2g/undo", json!({ "intent": 1 })),
    ] {
        let answer = fixture.ask("gov", method, &params);
        assert_eq!(answer["error"]["code"], -32602, "{method} {params}: {answer}");
    }
}

/// A stop of everything that an agent does, or of commits, covers its commits.
#[test]
fn a_stop_refuses_commits_and_keeps_the_changes() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let run = fixture.stage(EDITS);
    for target in [json!({ "agent_did": AGENT }), json!({ "tool": "effects.commit" }), json!({ "all": true })]
    {
        let stop = json!({ "target": target, "reason": "it changes the wrong files" });
        result(&fixture.ask("otto", "a2g/stop", &stop));
        for who in ["anna", "gov"] {
            let answer = fixture.decide(who, Act::Commit, &run);
            let message = expect_blocked(&answer, "stopped");
            assert!(message.contains("it changes the wrong files"), "{message}");
        }
        assert_undecided(&fixture, &run, &target.to_string());
        result(&fixture.ask("otto", "a2g/resume", &json!({ "target": target })));
    }
    let other = json!({ "target": { "agent_did": OTHER }, "reason": "another agent" });
    result(&fixture.ask("otto", "a2g/stop", &other));
    fixture.succeed("anna", Act::Commit, &run);
    let undo = json!({ "target": { "tool": "effects.undo" }, "reason": "it undoes the wrong files" });
    result(&fixture.ask("otto", "a2g/stop", &undo));
    expect_blocked(&fixture.decide("anna", Act::Undo, &run), "stopped");
    assert_eq!((&*fixture.state(&run), fixture.files()), ("in_force", entries(AFTER)));
}

#[test]
fn rules_for_approvals_apply_to_commits() {
    let rule = |required: u32| {
        move |options: Options| options.set("approvals", json!([{ "tools": [EDITS], "required": required }]))
    };
    let fixture = StagedFixture::start_with([edits(EDITS, "staged"), edits("others", "staged")], rule(1));
    let run = fixture.stage(EDITS);
    let own = fixture.decide("both", Act::Commit, &run);
    assert!(own.get("error").is_some(), "somebody who acts for the agent commits its changes: {own}");
    assert_undecided(&fixture, &run, "their own agent");
    fixture.succeed("anna", Act::Commit, &run);
    fixture.succeed("anna", Act::Undo, &run);
    // Without a rule, one decider suffices, also one who acts for the agent.
    let run = fixture.stage("others");
    fixture.succeed("both", Act::Commit, &run);

    let fixture = StagedFixture::start_with([edits(EDITS, "staged")], rule(2));
    let run = fixture.stage(EDITS);
    for who in ["anna", "gov", "both"] {
        let answer = fixture.decide(who, Act::Commit, &run);
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains("approvals"), "{message}");
        assert_undecided(&fixture, &run, who);
    }
    fixture.succeed("anna", Act::Discard, &run);
}

/// The names and the intents of decisions can be computed by anybody who knows the intent of the run.
#[test]
fn an_agent_cannot_decide_by_a_call() {
    let fan_out = Tool::typed_bytes("fan_out", guest("fan_out")).calls(&["*"]);
    let fixture = StagedFixture::start([edits(EDITS, "staged"), fan_out]);
    let run = fixture.stage(EDITS);
    for act in Act::ALL {
        let tool = format!("effects.{}", act.word());
        let mut call = execute(&tool, act.params(&run));
        for intent in [intent_id(), run.nested(1)] {
            set_member(&mut call, "/intent/intent_id", intent.clone().into());
            set_member(&mut call, "/verdict/intent_id", intent.into());
            let answer = fixture.ask("agent", "a2g/execute", &call);
            assert!(answer.get("error").is_some(), "{tool}: {answer}");
        }
        let nested = json!({ "calls": [{ "tool": tool, "arguments": act.params(&run) }] });
        let answer = fixture.ask("agent", "a2g/execute", &execute("fan_out", nested));
        let outcome = &result(&answer)["result"]["outcomes"][0];
        assert!(outcome["error"]["code"].is_string(), "{tool}: {answer}");
        assert_undecided(&fixture, &run, &tool);
    }
    // Calls under the next intents are no decisions, and do not prevent one.
    for ordinal in 1..=3 {
        let mut call = execute("looks", json!({}));
        set_member(&mut call, "/intent/intent_id", run.nested(ordinal).into());
        set_member(&mut call, "/verdict/intent_id", run.nested(ordinal).into());
        fixture.ask("agent", "a2g/execute", &call);
    }
    assert_undecided(&fixture, &run, "calls under the intents of decisions");
    fixture.succeed("anna", Act::Commit, &run);
    assert_eq!(fixture.decisions(&run), [["commit", "SUCCESS", "anna"].map(str::to_owned)]);
    assert_eq!(fixture.files(), entries(AFTER));
}
