//! A journal that no longer has the report of a run, because it was pruned, or because an older copy of it was restored: what
//! was answered about the file changes holds.

use super::{AFTER, Act, BEFORE, EDITS, StagedFixture, StagedRun, Step, decided, edits, entries, tool};
use harness::{error, eventually, result};
use serde_json::{Value, json};

impl StagedFixture {
    /// Waits until the executor has the receipt of a run beside its changes, too.
    fn wait_for_receipt(&self, run: &StagedRun) {
        let has_receipt = || self.keeps_entry(&run.intent, "receipt.json").then_some(());
        eventually("the receipt is beside the changes", has_receipt);
    }

    /// Removes from the journal all that is reported. It waits for the report of this run, or decision.
    fn prune(&self, intent: &str) {
        eventually("its report is pruned", || {
            let pruned = self.home().run(&["journal", "prune", "--before", "0m"]);
            assert!(pruned.status.success(), "{}", String::from_utf8_lossy(&pruned.stderr));
            let status = self.ask("gov", "a2g/status", &json!({ "intent_id": intent }));
            result(&status).get("report").is_none().then_some(())
        });
    }

    fn restart(&mut self) {
        let home = self.kill();
        self.start_in(home);
    }
}

#[test]
fn decisions_need_no_report_of_the_run_in_the_journal() {
    let mut fixture = StagedFixture::start([edits(EDITS, "staged"), edits("together", "atomic")]);
    for is_restarted in [false, true] {
        for act in [Act::Commit, Act::Discard] {
            fixture.set_files(BEFORE);
            let run = fixture.stage(EDITS);
            fixture.wait_for_receipt(&run);
            fixture.prune(&run.intent);
            if is_restarted {
                fixture.restart();
            }
            let set = fixture.set(&run);
            let effects = &run.report["usage"]["effects"];
            assert_eq!((&set["state"], &set["files"]), (&json!("waiting"), &effects["files"]), "{set}");
            assert_eq!((&set["digest"], &set["counts"]), (&effects["digest"], &effects["counts"]), "{set}");
            decided(&fixture.decide("anna", act, &run), "SUCCESS");
            if act == Act::Commit {
                assert_eq!((&*fixture.state(&run), fixture.files()), ("in_force", entries(AFTER)));
                decided(&fixture.decide("anna", Act::Undo, &run), "SUCCESS");
            }
            assert_eq!(fixture.files(), entries(BEFORE), "{act:?}");
            eventually("nothing is kept of it", || (!fixture.keeps_entry(&run.intent, "")).then_some(()));
        }
        let run = fixture.run_apart("together", "SUCCESS");
        fixture.wait_for_receipt(&run);
        fixture.prune(&run.intent);
        if is_restarted {
            fixture.restart();
        }
        assert_eq!((&*fixture.state(&run), fixture.files()), ("in_force", entries(AFTER)));
        decided(&fixture.decide("anna", Act::Undo, &run), "SUCCESS");
        assert_eq!(fixture.files(), entries(BEFORE));
    }
}

/// A restart reads from the journal what was decided, and pruning takes the reports of decisions as well.
#[test]
fn decisions_that_were_pruned_count_after_a_restart() {
    let mut fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let committed = fixture.stage(EDITS);
    let commit = fixture.succeed("anna", Act::Commit, &committed);
    fixture.wait_for_receipt(&committed);
    fixture.prune(commit["intent_id"].as_str().expect("an id"));
    fixture.restart();
    assert_eq!((&*fixture.state(&committed), fixture.files()), ("in_force", entries(AFTER)));
    decided(&fixture.decide("anna", Act::Undo, &committed), "SUCCESS");
    assert_eq!(fixture.files(), entries(BEFORE));

    let waits = fixture.stage(EDITS);
    fixture.wait_for_receipt(&waits);
    let foreign = fixture.home().workspace().join("new.txt");
    std::fs::write(&foreign, "of another program").unwrap();
    let failed = decided(&fixture.decide("anna", Act::Commit, &waits), "FAILURE");
    fixture.prune(failed["intent_id"].as_str().expect("an id"));
    fixture.restart();
    std::fs::remove_file(foreign).unwrap();
    decided(&fixture.decide("anna", Act::Commit, &waits), "SUCCESS");
    assert_eq!((&*fixture.state(&waits), fixture.files()), ("in_force", entries(AFTER)));
}

/// The journal of the copy does not have the reports of what came later.
#[test]
fn an_older_copy_of_the_journal_takes_nothing_back() {
    let staged = ["early", "late", "waits"].map(|name| tool(name, "staged", &[Step::Write(name, "staged")]));
    let atomic = tool("together", "atomic", &[Step::Write("together", "atomic")]);
    let mut fixture = StagedFixture::start(staged.into_iter().chain([atomic]));
    fixture.set_files(&[]);
    let early = fixture.stage("early");
    fixture.wait_for_receipt(&early);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.db");
    let copy = path.to_str().unwrap();
    let saved = fixture.home().run(&["journal", "backup", copy]);
    assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));

    fixture.succeed("anna", Act::Commit, &early);
    let late = fixture.stage("late");
    fixture.succeed("anna", Act::Commit, &late);
    let unknown = [late, fixture.stage("waits"), fixture.run_apart("together", "SUCCESS")];
    unknown.iter().for_each(|run| fixture.wait_for_receipt(run));
    let files = entries(&[("early", "staged"), ("late", "staged"), ("together", "atomic")]);
    assert_eq!(fixture.files(), files);
    let home = fixture.stop();
    let restored = home.run(&["journal", "restore", "--replace", copy]);
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    fixture.start_in(home);

    // Twice: what is left to an operator stays so.
    for _ in 0..2 {
        fixture.executor().line_with("need an operator");
        assert_eq!(fixture.files(), files);
        for run in &unknown {
            for act in Act::ALL {
                let answer = fixture.decide("anna", act, run);
                assert!(answer.get("error").is_some(), "{act:?}: {answer}");
            }
            error(&fixture.ask("otto", "a2g/effects", &json!({ "intent": run.intent })), -32602);
            assert!(fixture.keeps_entry(&run.intent, "receipt.json"), "{}", run.report);
        }
        fixture.restart();
    }
    // Of this one, the copy knows that it waited. Its changes are in force, so it was committed.
    assert_eq!(fixture.state(&early), "in_force");
    let decisions = fixture.decisions(&early);
    assert_eq!(decisions, [["commit", "SUCCESS", "the executor (recovery)"].map(str::to_owned)]);
    fixture.succeed("anna", Act::Undo, &early);
    assert_eq!(fixture.sets("otto"), Vec::<Value>::new());
    assert_eq!(fixture.files(), entries(&[("late", "staged"), ("together", "atomic")]));
}
