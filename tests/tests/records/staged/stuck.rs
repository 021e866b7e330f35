//! A commit that can be neither carried out nor taken back as a whole, because another program makes an entry of the name of
//! a deleted one meanwhile: the executor has the only copy of that original, and gives it up for no decision.

use super::{Act, StagedFixture, StagedRun, Step, decided, has_content, tool};
use harness::{AGENT, Home, SetOnDrop, error, result};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The tool that deletes all files, the first one first.
const DELETES: &str = "deletes";
/// So many that another program sees the first one go before the last one does.
const FILES: usize = 2_000;
/// Attempts until the other program comes in time.
const ATTEMPTS: usize = 20;
/// The content of the first file, and what another program writes in its place.
const ORIGINAL: &str = "the original of file 0000";
const NEWER: &str = "newer";

fn name(number: usize) -> String {
    format!("f{number:04}")
}

/// Waits until the first file is gone, makes another one of its name, and changes the last one. Returns `true` if it did so
/// before `is_over`.
fn interfere(workspace: &Path, is_over: &AtomicBool) -> bool {
    let first = workspace.join(name(0));
    while !is_over.load(Ordering::SeqCst) {
        if first.exists() {
            continue;
        }
        let Ok(mut made) = File::create_new(&first) else { continue };
        made.write_all(NEWER.as_bytes()).unwrap();
        // The commit may have taken the last one already.
        let last = File::options().append(true).open(workspace.join(name(FILES - 1)));
        return last.is_ok_and(|mut last| last.write_all(b"more").is_ok());
    }
    false
}

/// Commits a run whose changes are in force in part afterwards.
fn commit_in_part(fixture: &StagedFixture) -> StagedRun {
    let names = (0..FILES).map(name).collect::<Vec<_>>();
    let mut files = names.iter().map(|name| (name.as_str(), "x")).collect::<Vec<_>>();
    files[0].1 = ORIGINAL;
    let workspace = fixture.home().workspace();
    for _ in 0..ATTEMPTS {
        fixture.set_files(&files);
        let run = fixture.stage(DELETES);
        let is_over = AtomicBool::new(false);
        let (answer, has_interfered) = std::thread::scope(|scope| {
            let interfering = scope.spawn(|| interfere(&workspace, &is_over));
            let over = SetOnDrop(&is_over);
            let answer = fixture.decide("anna", Act::Commit, &run);
            drop(over);
            (answer, interfering.join().unwrap())
        });
        if has_interfered && result(&answer)["left_to_operator"] == true {
            let report = decided(&answer, "FAILURE");
            let told = report["error"].as_str().unwrap_or_default();
            assert!(told.starts_with("some changes may be in force, and are left to an operator"), "{told}");
            return run;
        }
        // Too early, or too late. These changes wait, or are in force.
        fixture.decide("anna", Act::Discard, &run);
    }
    panic!("no other program came in time");
}

/// Asserts that no decision is made, and that both contents are there.
fn assert_nothing_is_lost(fixture: &StagedFixture, run: &StagedRun, after: &str) {
    for who in ["anna", "gov"] {
        for act in Act::ALL {
            error(&fixture.decide(who, act, run), -32600);
        }
    }
    error(&fixture.decide("agent", Act::Discard, run), -32600);
    let stash = fixture.find_run_folder(&run.intent).expect("it is kept").join("store/stash");
    assert!(has_content(&stash, ORIGINAL.as_bytes()), "{after}: the original is lost");
    let files = fixture.files();
    assert_eq!((files.len(), files[&name(0)].as_str()), (FILES, NEWER), "{after}");
}

/// Asserts that nothing is told that is not known.
fn assert_nothing_waits(fixture: &StagedFixture, run: &StagedRun) {
    assert_eq!(fixture.sets("otto"), Vec::<Value>::new());
    error(&fixture.ask("anna", "a2g/effects", &json!({ "intent": run.intent })), -32602);
    let status = fixture.ask("anna", "a2g/status", &json!({ "intent_id": run.intent }));
    assert_eq!(result(&status)["effects_state"], Value::Null, "{status}");
}

#[test]
fn originals_that_cannot_be_put_back_outlast_every_decision_and_restart() {
    let names = (0..FILES).map(name).collect::<Vec<_>>();
    let steps = names.iter().map(|name| Step::Remove(name)).collect::<Vec<_>>();
    let mut fixture = StagedFixture::start([tool(DELETES, "staged", &steps)]);
    let run = commit_in_part(&fixture);
    assert_nothing_is_lost(&fixture, &run, "the commit");
    assert_nothing_waits(&fixture, &run);
    for act in [Act::Commit, Act::Discard] {
        let refused = fixture.decide("anna", act, &run);
        let message = error(&refused, -32600)["message"].as_str().expect("a message");
        assert!(message.contains("operator"), "{message}");
    }
    let of_intent = json!({ "intent_id": run.intent });
    let of_agent = json!({ "agent_did": AGENT });
    for (who, method, params) in [
        ("agent", "a2g/cancel", &of_intent),
        ("gov", "g2a/revoke", &of_intent),
        ("gov", "g2a/revoke", &of_agent),
    ] {
        let answer = fixture.ask(who, method, params);
        assert!(answer.get("error").is_some(), "{method}: {answer}");
        assert_nothing_is_lost(&fixture, &run, method);
    }

    let ends: [fn(&mut StagedFixture) -> Home; 2] = [StagedFixture::kill, StagedFixture::stop];
    for end in ends {
        let home = end(&mut fixture);
        fixture.start_in(home);
        fixture.executor().line_with("need an operator");
        assert_nothing_is_lost(&fixture, &run, "a restart");
        assert_nothing_waits(&fixture, &run);
    }
}
