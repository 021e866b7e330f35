//! Files that others have changed before a commit or an undo: nothing is overwritten, nothing is done in part, and the set
//! stays as it was.

use super::{AFTER, Act, BEFORE, EDITS, StagedFixture, StagedRun, Step, decided, edits, entries, tool};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// What another program does in the workspace, and the path that the decision's failure names.
type Interference = (&'static str, fn(&Path), &'static str);

/// Asserts that a decision fails because of these paths, and that it changes nothing.
fn assert_conflict(fixture: &StagedFixture, act: Act, run: &StagedRun, paths: &[&str], after: &str) {
    let before = (fixture.state(run), fixture.files());
    let answer = fixture.decide("anna", act, run);
    let report = decided(&answer, "FAILURE");
    let error = report["error"].as_str().expect("a sentence");
    assert!(paths.iter().all(|path| error.contains(path)), "{after}: {error}");
    assert!(report.get("result").is_none(), "{after}: {report}");
    assert_eq!((fixture.state(run), fixture.files()), before, "{after}");
    let last = fixture.decisions(run).pop().expect("a decision");
    assert_eq!(last, [act.word(), "FAILURE", "anna"].map(str::to_owned), "{after}");
    let id = report["intent_id"].as_str().expect("an id");
    assert_eq!(fixture.governor.reports_of(id), std::slice::from_ref(&report), "{after}");
}

fn write(path: &Path) {
    fs::write(path, "of another program").unwrap();
}

#[test]
fn a_commit_changes_nothing_if_a_file_has_changed_since_the_run() {
    let interferences: [Interference; 10] = [
        ("a file that is changed", |folder| write(&folder.join("a.txt")), "`/workspace/a.txt`"),
        (
            "a file that is changed, replaced by an equal one",
            |folder| {
                fs::copy(folder.join("a.txt"), folder.join("copy")).unwrap();
                fs::rename(folder.join("copy"), folder.join("a.txt")).unwrap();
            },
            "`/workspace/a.txt`",
        ),
        ("a file that is deleted", |folder| write(&folder.join("gone.txt")), "`/workspace/gone.txt`"),
        (
            "a file that is deleted, with another mode",
            |folder| {
                fs::set_permissions(folder.join("gone.txt"), fs::Permissions::from_mode(0o600)).unwrap();
            },
            "`/workspace/gone.txt`",
        ),
        (
            "a file that is renamed",
            |folder| fs::remove_file(folder.join("old.txt")).unwrap(),
            "`/workspace/old.txt`",
        ),
        ("a file that was read", |folder| write(&folder.join("keep.txt")), "`/workspace/keep.txt`"),
        ("a name that is created", |folder| write(&folder.join("new.txt")), "`/workspace/new.txt`"),
        (
            "a folder that is created",
            |folder| fs::create_dir(folder.join("made")).unwrap(),
            "`/workspace/made`",
        ),
        ("a folder that is removed", |folder| write(&folder.join("empty/unseen")), "`/workspace/empty"),
        (
            "a file that is replaced by a link",
            |folder| {
                fs::remove_file(folder.join("a.txt")).unwrap();
                std::os::unix::fs::symlink("keep.txt", folder.join("a.txt")).unwrap();
            },
            "`/workspace/a.txt`",
        ),
    ];
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    for (what, interfere, path) in interferences {
        fixture.set_files(BEFORE);
        let run = fixture.stage(EDITS);
        interfere(&fixture.home().workspace());
        assert_conflict(&fixture, Act::Commit, &run, &[path], what);
        assert_eq!(fixture.state(&run), "waiting", "{what}");
        // The decision can be repeated, with the same end.
        assert_conflict(&fixture, Act::Commit, &run, &[path], what);
        fixture.succeed("anna", Act::Discard, &run);
    }
}

#[test]
fn a_conflict_names_the_paths() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let run = fixture.stage(EDITS);
    let names = ["a.txt", "gone.txt", "keep.txt", "old.txt"];
    names.iter().for_each(|name| write(&fixture.home().workspace().join(name)));
    let paths = names.map(|name| format!("`/workspace/{name}`"));
    assert_conflict(&fixture, Act::Commit, &run, &paths.each_ref().map(String::as_str), "four files");
}

#[test]
fn a_file_that_two_runs_change_is_committed_for_one_of_them() {
    let tools = ["first", "second"]
        .map(|name| tool(name, "staged", &[Step::Write("a.txt", name), Step::Write(name, "made")]));
    let fixture = StagedFixture::start(tools);
    let [first, second] = ["first", "second"].map(|name| fixture.stage(name));
    assert_ne!(first.digest, second.digest);
    fixture.succeed("anna", Act::Commit, &second);
    assert_conflict(&fixture, Act::Commit, &first, &["`/workspace/a.txt`"], "a commit of another run");
    assert_eq!(fixture.files()["a.txt"], "second");
    assert!(!fixture.files().contains_key("first"), "nothing of the first run is in force");
    // A new run sees what is in force, so that its changes can be committed.
    let again = fixture.stage("first");
    fixture.succeed("anna", Act::Commit, &again);
    assert_eq!(fixture.files()["a.txt"], "first");
    // The older one of two commits cannot be undone before the newer one.
    assert_conflict(&fixture, Act::Undo, &second, &["`/workspace/a.txt`"], "a newer commit");
    fixture.succeed("anna", Act::Undo, &again);
    assert_eq!(fixture.files()["a.txt"], "second");
}

#[test]
fn an_undo_changes_nothing_if_a_file_has_changed_since() {
    let interferences: [Interference; 5] = [
        ("a changed file", |folder| write(&folder.join("a.txt")), "`/workspace/a.txt`"),
        ("a created file", |folder| write(&folder.join("new.txt")), "`/workspace/new.txt`"),
        ("a renamed file", |folder| fs::remove_file(folder.join("made/moved.txt")).unwrap(), "moved.txt`"),
        ("the name of a deleted file", |folder| write(&folder.join("gone.txt")), "`/workspace/gone.txt`"),
        ("a created folder", |folder| write(&folder.join("made/more")), "`/workspace/made"),
    ];
    for (mode, status) in [("staged", "STAGED"), ("atomic", "SUCCESS")] {
        let fixture = StagedFixture::start([edits(EDITS, mode)]);
        for (what, interfere, path) in interferences {
            fixture.set_files(BEFORE);
            let run = fixture.run_apart(EDITS, status);
            if mode == "staged" {
                fixture.succeed("anna", Act::Commit, &run);
            }
            assert_eq!(fixture.files(), entries(AFTER), "{mode}");
            interfere(&fixture.home().workspace());
            assert_conflict(&fixture, Act::Undo, &run, &[path], &format!("{mode}: {what}"));
            assert_eq!(fixture.state(&run), "in_force", "{mode}: {what}");
        }
        // What a decision does not concern may change.
        fixture.set_files(BEFORE);
        let run = fixture.run_apart(EDITS, status);
        if mode == "staged" {
            fixture.succeed("anna", Act::Commit, &run);
        }
        write(&fixture.home().workspace().join("keep.txt"));
        fixture.succeed("anna", Act::Undo, &run);
        assert_eq!(fixture.files()["a.txt"], "one\ntwo\nthree\n", "{mode}");
        assert_eq!(fixture.files()["keep.txt"], "of another program", "{mode}");
    }
}
