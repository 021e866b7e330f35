//! Decisions that are made: what they change, who is told, and what the records say.

use super::{
    AFTER, Act, BEFORE, CHANGES, EDITS, NEW, StagedFixture, StagedRun, decided, edits, entries, tool,
};
use harness::{AGENT, assert_chain_holds, error, eventually, execute, expect_blocked, result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

fn modes(folder: &Path) -> BTreeMap<&'static str, u32> {
    let mode = |name: &str| folder.join(name).metadata().unwrap().permissions().mode();
    BEFORE.iter().map(|(name, _)| (*name, mode(name))).collect()
}

fn time(set: &Value, member: &str) -> OffsetDateTime {
    OffsetDateTime::parse(set[member].as_str().expect("a time"), &Rfc3339).expect("a time")
}

/// Asserts that a decision was refused before it began.
fn assert_refused(answer: &Value) {
    error(answer, -32600);
}

#[test]
fn changes_take_effect_only_with_their_digest_and_can_be_undone_once() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let workspace = fixture.home().workspace();
    std::fs::set_permissions(workspace.join("gone.txt"), std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::set_permissions(workspace.join("old.txt"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let modes_before = modes(&workspace);

    let run = fixture.stage(EDITS);
    assert_waits(&fixture, &run);
    let reversed = run.digest.chars().rev().collect::<String>();
    for digest in [&*"0".repeat(64), &reversed, "", &run.digest[1..]] {
        let other = StagedRun { digest: digest.into(), intent: run.intent.clone(), report: Value::Null };
        // A text that is no digest is refused as such.
        let answer = fixture.decide("anna", Act::Commit, &other);
        assert!([-32600, -32602].map(Value::from).contains(&answer["error"]["code"]), "{digest}: {answer}");
    }
    assert_waits(&fixture, &run);
    assert_refused(&fixture.decide("anna", Act::Undo, &run));

    let committed = fixture.succeed("anna", Act::Commit, &run);
    assert_decision(&fixture, &run, &committed, "anna", 1);
    assert_eq!(fixture.files(), entries(AFTER));
    assert_eq!(fixture.seen_by_another_run(), "TWO\n");
    for act in [Act::Commit, Act::Discard] {
        assert_refused(&fixture.decide("gov", act, &run));
    }
    assert_eq!((fixture.files(), &*fixture.state(&run)), (entries(AFTER), "in_force"));

    let undone = fixture.succeed("gov", Act::Undo, &run);
    assert_decision(&fixture, &run, &undone, "gov", 2);
    assert_eq!((fixture.files(), modes(&workspace)), (entries(BEFORE), modes_before));
    for act in Act::ALL {
        assert_refused(&fixture.decide("anna", act, &run));
    }
    let made =
        [["commit", "SUCCESS", "anna"], ["undo", "SUCCESS", "gov"]].map(|words| words.map(str::to_owned));
    assert_eq!(fixture.decisions(&run), made);
    assert!(fixture.sets("otto").is_empty(), "neither waits nor can be undone");
    eventually("nothing is kept of it", || (!fixture.keeps(NEW)).then_some(()));
    assert_records_agree(&fixture, &run, &[committed, undone]);
}

/// Asserts that the changes of a run wait, that everybody is told so, and that nobody sees them.
fn assert_waits(fixture: &StagedFixture, run: &StagedRun) {
    assert_eq!(fixture.files(), entries(BEFORE));
    assert_eq!(fixture.seen_by_another_run(), "two\n");
    let effects = &run.report["usage"]["effects"];
    assert_eq!(run.report["result"], json!([]), "the tool's answer is there");
    assert_eq!(
        (&effects["mode"], &effects["set_by"], &effects["changes"]),
        (&json!("staged"), &json!("tool"), &json!(CHANGES)),
        "{effects}"
    );
    let status = fixture.ask("agent", "a2g/status", &json!({ "intent_id": run.intent }));
    assert_eq!(
        (&status["result"]["state"], &status["result"]["effects_state"]),
        (&json!("finished"), &json!("waiting")),
        "{status}"
    );
    let listed = fixture.sets("gov");
    assert_eq!(listed.len(), 1, "{listed:?}");
    let set = fixture.set(run);
    for set in [&listed[0], &set] {
        for (member, value) in [
            ("intent", &*run.intent),
            ("agent", AGENT),
            ("tool", EDITS),
            ("mode", "staged"),
            ("state", "waiting"),
            ("digest", &*run.digest),
        ] {
            assert_eq!(set[member], value, "{member}: {set}");
        }
        assert_eq!(set["changes"], CHANGES, "{set}");
        assert!(set["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{set}");
        assert_eq!((time(set, "until") - time(set, "since")).whole_hours(), 24, "{set}");
    }
    assert_eq!((&set["files"], &set["decisions"]), (&effects["files"], &json!([])), "{set}");
    assert!(listed[0].get("files").is_none(), "a list has no changes: {listed:?}");
}

/// Asserts that a decision is reported as a run of its own, whose parent is the staged run.
fn assert_decision(fixture: &StagedFixture, run: &StagedRun, report: &Value, by: &str, ordinal: u32) {
    assert_eq!(report["result"], json!({ "changes": CHANGES, "digest": run.digest }), "{report}");
    assert_ne!(report["intent_id"], run.nested(ordinal), "a caller could use it up: {report}");
    assert!(report["usage"].get("effects").is_none(), "{report}");
    assert_eq!(report["agent_did"], AGENT, "{report}");
    let parent = &report["parent"];
    assert_eq!(
        (&parent["intent_id"], &parent["tool"], &parent["ordinal"]),
        (&json!(run.intent), &json!(EDITS), &json!(ordinal)),
        "{report}"
    );
    let set = fixture.set(run);
    let last = set["decisions"].as_array().expect("a list").last().expect("a decision");
    assert_eq!((&last["intent"], &last["by"]), (&report["intent_id"], &json!(by)), "{set}");
    let state = fixture.ask("agent", "a2g/status", &json!({ "intent_id": report["intent_id"] }));
    assert_eq!(state["result"]["report"], *report, "{state}");
}

/// Asserts that journal and governor have the run and its decisions as the callers were told of them.
fn assert_records_agree(fixture: &StagedFixture, run: &StagedRun, decisions: &[Value]) {
    let status = fixture.ask("agent", "a2g/status", &json!({ "intent_id": run.intent }));
    assert_eq!(status["result"]["report"], run.report, "the receipt of the run never changes");
    for report in [&run.report].into_iter().chain(decisions) {
        let id = report["intent_id"].as_str().expect("an id");
        assert_eq!(fixture.governor.reports_of(id), std::slice::from_ref(report));
        let shown = fixture.home().run(&["journal", "show", id, "--json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        assert_eq!(shown["report"], *report);
        let by = shown["approved_by"].as_str();
        assert_eq!(by.is_some(), id != run.intent, "{shown}");
    }
    let listed = fixture.home().list_journal(&[]);
    let tools = listed.iter().filter_map(|line| line["tool"].as_str());
    let acts = tools.filter(|tool| tool.starts_with("effects.")).collect::<Vec<_>>();
    // The newest is first.
    assert_eq!(acts, ["effects.undo", "effects.commit"]);
    assert_chain_holds(fixture.home());
}

#[test]
fn everybody_who_sees_a_set_can_discard_it_once() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    for who in ["agent", "anna", "both", "gov", "otto"] {
        let run = fixture.stage(EDITS);
        eventually("its new file is kept", || fixture.keeps(NEW).then_some(()));
        let report = fixture.succeed(who, Act::Discard, &run);
        assert_decision(&fixture, &run, &report, who, 1);
        assert_eq!(fixture.files(), entries(BEFORE), "{who}");
        for act in Act::ALL {
            assert_refused(&fixture.decide("anna", act, &run));
        }
        assert_eq!(fixture.decisions(&run), [["discard", "SUCCESS", who].map(str::to_owned)]);
        let intent = report["intent_id"].as_str().expect("an id");
        assert_eq!(fixture.governor.reports_of(intent), std::slice::from_ref(&report));
        eventually("nothing is kept of it", || (!fixture.keeps(NEW)).then_some(()));
    }
    assert!(fixture.sets("otto").is_empty());
}

/// A report without changes has nothing to decide, and an end without success leaves nothing.
#[test]
fn only_a_success_with_changes_waits() {
    let nothing = tool("nothing", "staged", &[super::Step::Read("a.txt")]);
    let fails = tool("fails", "staged", &[super::Step::Write("a.txt", "x"), super::Step::Read("missing")]);
    let fixture = StagedFixture::start([nothing, fails]);
    let call = execute("nothing", json!({}));
    let answer = fixture.ask("agent", "a2g/execute", &call);
    assert_eq!(result(&answer)["status"], "SUCCESS", "{answer}");
    let failed = fixture.ask("agent", "a2g/execute", &execute("fails", json!({})));
    assert_eq!(failed["error"]["data"]["report"]["status"], "FAILURE", "{failed}");
    assert_eq!((fixture.files(), fixture.sets("otto")), (entries(BEFORE), Vec::new()));
    let run = StagedRun { intent: harness::id_of(&call), digest: "0".repeat(64), report: Value::Null };
    for act in Act::ALL {
        assert!(fixture.decide("anna", act, &run).get("error").is_some(), "{act:?}");
    }
}

/// The changes of an atomic run are in force at once, and can be undone like committed ones.
#[test]
fn an_atomic_run_can_be_undone_but_not_committed_or_discarded() {
    let fixture = StagedFixture::start([edits("together", "atomic")]);
    let run = fixture.run_apart("together", "SUCCESS");
    assert_eq!(fixture.files(), entries(AFTER));
    let set = fixture.set(&run);
    assert_eq!((&set["mode"], &set["state"]), (&json!("atomic"), &json!("in_force")), "{set}");
    assert_eq!(fixture.sets("anna").len(), 1);
    for act in [Act::Commit, Act::Discard] {
        assert_refused(&fixture.decide("anna", act, &run));
    }
    fixture.succeed("anna", Act::Undo, &run);
    assert_eq!(fixture.files(), entries(BEFORE));
    let status = fixture.ask("agent", "a2g/status", &json!({ "intent_id": run.intent }));
    assert_eq!(
        (&status["result"]["report"]["status"], &status["result"]["effects_state"]),
        (&json!("SUCCESS"), &json!("undone")),
        "{status}"
    );
    assert_refused(&fixture.decide("anna", Act::Undo, &run));
    assert_eq!(fixture.decisions(&run), [["undo", "SUCCESS", "anna"].map(str::to_owned)]);
}

/// A directive decides on the changes as it decides on a call that waits, but an approval has to name them: one without
/// their digest may be a repeat of the approval of the call.
#[test]
fn directives_commit_and_discard() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let direct = |who: &str, run: &StagedRun, decision: &str, digest: Option<&str>| {
        let mut params = json!({ "intent_id": run.intent, "decision": decision });
        digest.into_iter().for_each(|digest| params["digest"] = json!(digest));
        fixture.ask(who, "g2a/directive", &params)
    };
    for (who, decision, act, expected) in
        [("gov", "DENIED", Act::Discard, BEFORE), ("anna", "APPROVED", Act::Commit, AFTER)]
    {
        let run = fixture.stage(EDITS);
        let digest = (decision == "APPROVED").then_some(&*run.digest);
        for role in ["agent", "otto"] {
            expect_blocked(&direct(role, &run, decision, digest), "caller_unauthorized");
        }
        for wrong in [None, Some(&*"0".repeat(64))] {
            assert!(direct(who, &run, "APPROVED", wrong).get("error").is_some());
            assert_eq!((&*fixture.state(&run), fixture.files()), ("waiting", entries(BEFORE)));
        }
        assert_eq!(result(&direct(who, &run, decision, digest))["accepted"], true);
        assert_eq!((&*fixture.state(&run), fixture.files()), (act.state(), entries(expected)), "{decision}");
        assert_eq!(fixture.decisions(&run), [[act.word(), "SUCCESS", who].map(str::to_owned)]);
        assert!(
            direct("anna", &run, "APPROVED", Some(&run.digest)).get("error").is_some(),
            "it is decided only once"
        );
    }
}

/// The parameters of a method, for a run.
type Params<'a> = &'a dyn Fn(&StagedRun) -> Value;

#[test]
fn cancellations_and_revocations_discard() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let of_intent = |run: &StagedRun| json!({ "intent_id": run.intent });
    let of_agent = |_: &StagedRun| json!({ "agent_did": AGENT });
    let ends: [(&str, &str, Params<'_>); 4] = [
        ("agent", "a2g/cancel", &of_intent),
        ("otto", "a2g/cancel", &of_intent),
        ("gov", "g2a/revoke", &of_intent),
        // The agent can send nothing afterwards, so this is the last.
        ("gov", "g2a/revoke", &of_agent),
    ];
    for (who, method, params) in ends {
        let run = fixture.stage(EDITS);
        let foreign = fixture.ask("other", "a2g/cancel", &of_intent(&run));
        assert_eq!((&result(&foreign)["cancelled"], &*fixture.state(&run)), (&json!(false), "waiting"));
        let ended = fixture.ask(who, method, &params(&run));
        let member = if method == "a2g/cancel" { "cancelled" } else { "accepted" };
        assert_eq!(result(&ended)[member], true, "{ended}");
        assert_eq!((&*fixture.state(&run), fixture.files()), ("discarded", entries(BEFORE)), "{method}");
        assert_refused(&fixture.decide("anna", Act::Commit, &run));
        let decisions = fixture.decisions(&run);
        assert_eq!(decisions, [["discard", "SUCCESS", who].map(str::to_owned)], "{method}");
    }
    // A run whose changes are in force has ended: there is nothing to cancel.
    let policy = json!({ "agent_did": AGENT, "version": "1", "capabilities": { "tools": { EDITS: { "allowed": true } } } });
    result(&fixture.ask("gov", "g2a/policy", &policy));
    let run = fixture.stage(EDITS);
    fixture.succeed("anna", Act::Commit, &run);
    assert_eq!(result(&fixture.ask("otto", "a2g/cancel", &of_intent(&run)))["cancelled"], false);
    assert_eq!((&*fixture.state(&run), fixture.files()), ("in_force", entries(AFTER)));
}

/// Decisions about other runs are made in any order.
#[test]
fn each_set_is_decided_by_itself() {
    let tools = ["one", "two", "three"];
    let fixture = StagedFixture::start(
        tools.map(|name| tool(name, "staged", &[super::Step::Write(&format!("{name}.txt"), name)])),
    );
    fixture.set_files(&[]);
    let runs = tools.map(|name| fixture.stage(name));
    let listed = fixture.sets("gov");
    let newest_first = listed.iter().map(|set| set["tool"].as_str().expect("a name")).collect::<Vec<_>>();
    assert_eq!(newest_first, ["three", "two", "one"]);
    decided(&fixture.decide("anna", Act::Commit, &runs[2]), "SUCCESS");
    decided(&fixture.decide("agent", Act::Discard, &runs[1]), "SUCCESS");
    decided(&fixture.decide("gov", Act::Commit, &runs[0]), "SUCCESS");
    assert_eq!(fixture.files(), entries(&[("one.txt", "one"), ("three.txt", "three")]));
    decided(&fixture.decide("gov", Act::Undo, &runs[2]), "SUCCESS");
    assert_eq!(fixture.files(), entries(&[("one.txt", "one")]));
    assert_eq!(runs.map(|run| fixture.state(&run)), ["in_force", "discarded", "undone"]);
}
