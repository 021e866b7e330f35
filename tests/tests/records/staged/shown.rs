//! The list of changes that a person decides on: in `usage.effects` of the report, and in `a2g/effects`.

use super::{
    AFTER, Act, EDITS, StagedFixture, Step, decided, edits, entries, read_entries, tool, tool_of_body,
};
use harness::{Options, approved, intent, manifest};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// The most changes, and the most bytes of their texts, that a list has beside deletions and renames.
const MAX_SHOWN: usize = 1_000;
const MAX_SHOWN_BYTES: usize = 64 << 10;

fn files(report: &Value) -> &[Value] {
    report["usage"]["effects"]["files"].as_array().map_or(&[], Vec::as_slice)
}

/// The numbers of a run that only deletes and creates.
fn counts(deleted: u64, created: u64) -> Value {
    json!({ "deleted": deleted, "renamed": 0, "emptied": 0, "changed": 0, "attributes": 0, "created": created })
}

fn left_out(report: &Value) -> u64 {
    report["usage"]["effects"]["left_out"].as_u64().unwrap_or_default()
}

/// The kind and the path of each change.
fn words(report: &Value) -> Vec<[&str; 2]> {
    files(report).iter().map(words_of).collect()
}

fn words_of(file: &Value) -> [&str; 2] {
    ["change", "path"].map(|member| file[member].as_str().expect("a text"))
}

/// The change of a path.
fn file<'a>(report: &'a Value, path: &str) -> &'a Value {
    let found = files(report).iter().find(|file| file["path"] == path);
    found.unwrap_or_else(|| panic!("{path} is not listed: {report}"))
}

#[test]
fn each_kind_of_change_is_listed_deletions_and_renames_first() {
    let fixture = StagedFixture::start([
        edits(EDITS, "staged"),
        tool("touches", "staged", &[Step::SetTime("keep.txt"), Step::RemoveFolder("empty")]),
    ]);
    let report = fixture.stage(EDITS).report;
    assert_eq!(
        words(&report)[..3],
        [
            ["deleted", "/workspace/empty"],
            ["deleted", "/workspace/gone.txt"],
            ["renamed", "/workspace/made/moved.txt"]
        ]
    );
    let mut others = words(&report)[3..].to_vec();
    others.sort_unstable();
    assert_eq!(
        others,
        [
            ["changed", "/workspace/a.txt"],
            ["created", "/workspace/made"],
            ["created", "/workspace/made/inner.txt"],
            ["created", "/workspace/new.txt"]
        ]
    );
    assert_eq!(left_out(&report), 0, "{report}");
    let bytes = |path: &str| {
        let file = file(&report, path);
        [&file["bytes_before"], &file["bytes_after"]].map(Value::as_u64)
    };
    assert_eq!(bytes("/workspace/gone.txt"), [Some(25), None]);
    assert_eq!(bytes("/workspace/empty"), [None, None]);
    assert_eq!(bytes("/workspace/a.txt"), [Some(14), Some(14)]);
    assert_eq!(bytes("/workspace/new.txt"), [None, Some(27)]);
    let entry = |path: &str| file(&report, path)["entry"].clone();
    assert_eq!([entry("/workspace/empty"), entry("/workspace/gone.txt")], ["folder", "file"]);
    let moved = file(&report, "/workspace/made/moved.txt");
    assert_eq!((&moved["from"], &moved["diff"]), (&json!("/workspace/old.txt"), &Value::Null), "{moved}");
    let changed = file(&report, "/workspace/a.txt");
    assert_eq!(changed["diff"], "@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n", "{changed}");
    assert!(changed.get("diff_cut").is_none(), "{changed}");

    let report = fixture.stage("touches").report;
    assert_eq!(
        words(&report),
        [["deleted", "/workspace/empty"], ["attributes", "/workspace/keep.txt"]],
        "{report}"
    );
}

#[test]
fn a_file_that_is_no_text_is_listed_by_its_changed_ranges() {
    let patches = tool("patches", "staged", &[Step::Patch("data.bin", 500, r"\01\02\03")]);
    let fixture = StagedFixture::start([patches]);
    let file_on_disk = fixture.home().workspace().join("data.bin");
    let before = [0_u8; 1000];
    std::fs::write(&file_on_disk, before).unwrap();
    let run = fixture.stage("patches");
    let shown = file(&run.report, "/workspace/data.bin");
    assert_eq!(shown["ranges"], json!([{ "start": 500, "old_bytes": 3, "new_bytes": 3 }]), "{shown}");
    assert!(shown.get("diff").is_none(), "{shown}");
    fixture.succeed("anna", Act::Commit, &run);
    let after = std::fs::read(&file_on_disk).unwrap();
    assert_eq!((&after[..500], &after[500..503], after.len()), (&before[..500], &[1, 2, 3][..], 1000));
    fixture.succeed("anna", Act::Undo, &run);
    assert_eq!(std::fs::read(&file_on_disk).unwrap(), before);
}

/// Names come from agents and from other programs: a person reads them, and a terminal shows them.
#[test]
fn names_are_escaped_and_may_be_no_text() {
    // A line end, the start of a terminal's escape sequence, and a mark that turns the direction of text.
    let hostile = r"x\0a\1b[31m\e2\80\ae.txt";
    let steps =
        [Step::Write(hostile, "hostile"), Step::Rename("folder", "moved"), Step::RemoveFolder("emptied")];
    let fixture = StagedFixture::start([tool("names", "staged", &steps)]);
    fixture.set_files(&[("folder/", ""), ("emptied/", "")]);
    let workspace = fixture.home().workspace();
    let no_text = OsStr::from_bytes(b"caf\xe9");
    std::fs::write(workspace.join("folder").join(no_text), "within").unwrap();
    let run = fixture.stage("names");
    let paths = words(&run.report).into_iter().map(|[_, path]| path).collect::<Vec<_>>();
    assert_eq!(paths.len(), 3, "{paths:?}");
    let is_shown = |c: char| !c.is_control() && c != '\u{202e}';
    assert!(paths.iter().all(|path| path.chars().all(is_shown)), "{paths:?}");
    assert!(paths.contains(&r"/workspace/x\n\u{1b}[31m\u{202e}.txt"), "{paths:?}");
    assert_eq!(file(&run.report, "/workspace/moved")["from"], "/workspace/folder");

    // A conflict is named in the same way.
    std::fs::write(workspace.join("emptied").join(no_text), "unseen").unwrap();
    let failed = decided(&fixture.decide("anna", Act::Commit, &run), "FAILURE");
    let error = failed["error"].as_str().expect("a sentence");
    assert!(error.contains("/workspace/emptied"), "{error}");
    assert!(error.chars().all(is_shown), "{error:?}");
    std::fs::remove_file(workspace.join("emptied").join(no_text)).unwrap();

    fixture.succeed("anna", Act::Commit, &run);
    assert_eq!(std::fs::read(workspace.join("moved").join(no_text)).unwrap(), b"within");
    assert_eq!(std::fs::read(workspace.join("x\n\u{1b}[31m\u{202e}.txt")).unwrap(), b"hostile");
    fixture.succeed("anna", Act::Undo, &run);
    assert_eq!(std::fs::read(workspace.join("folder").join(no_text)).unwrap(), b"within");
    assert_eq!(std::fs::read_dir(&workspace).unwrap().count(), 2);
}

/// What deletes has to be seen first, however much else a run does.
#[test]
fn five_deletions_are_seen_before_ten_thousand_new_files() {
    const CREATED: u64 = 10_000;
    let names = [0, 1, 2, 3, 4].map(|number| format!("z{number}"));
    let deletes = names.iter().map(|name| Step::Remove(name).calls()).collect::<String>();
    let body = format!("(call $create_many (i32.const {CREATED})) {deletes}");
    let set =
        |options: Options| options.set("ceilings.max_created", 20_000).set("ceilings.timeout_seconds", 300);
    let fixture = StagedFixture::start_with([tool_of_body("creates", "staged", body)], set);
    let listed = names.iter().map(|name| (name.as_str(), "deleted")).chain([("many/", "")]);
    let before = listed.collect::<Vec<_>>();
    fixture.set_files(&before);
    let mut limits = manifest();
    limits["timeout_seconds"] = json!(300);
    let call = approved(intent("creates", json!({})), &limits);
    let answer = fixture.ask("agent", "a2g/execute", &call);
    let run = super::StagedRun::of(&call, &answer, "STAGED");
    let report = &run.report;
    assert_eq!(report["usage"]["effects"]["changes"], CREATED + 5);
    let words = words(report);
    let deleted = names.each_ref().map(|name| format!("/workspace/{name}"));
    assert_eq!(words[..5], deleted.each_ref().map(|path| ["deleted", path.as_str()]));
    assert!(words[5..].iter().all(|[kind, _]| *kind == "created"), "{:?}", &words[..20]);
    let shown = u64::try_from(words.len()).unwrap();
    assert!(words.len() <= MAX_SHOWN && shown > 100, "{shown}");
    assert_eq!(shown + left_out(report), CREATED + 5);
    assert_eq!(report["usage"]["effects"]["counts"], counts(5, CREATED));
    // All of them are committed, and undone.
    fixture.succeed("anna", Act::Commit, &run);
    assert_eq!(fixture.files().len(), usize::try_from(CREATED).unwrap() + 1);
    fixture.succeed("anna", Act::Undo, &run);
    assert_eq!(read_entries(&fixture.home().workspace()), entries(&before));
}

/// A list without some of the deletions could not be decided on.
#[test]
fn every_deletion_is_listed() {
    let count = MAX_SHOWN + 200;
    let names = (0..count).map(|number| format!("d{number:04}")).collect::<Vec<_>>();
    let mut steps = names.iter().map(|name| Step::Remove(name)).collect::<Vec<_>>();
    steps.push(Step::Write("new.txt", "new"));
    let fixture = StagedFixture::start([tool("deletes", "staged", &steps)]);
    fixture.set_files(&names.iter().map(|name| (name.as_str(), "")).collect::<Vec<_>>());
    let run = fixture.stage("deletes");
    let deleted = words(&run.report).into_iter().filter(|[kind, _]| *kind == "deleted").count();
    assert_eq!(deleted, count);
    let shown = u64::try_from(files(&run.report).len()).unwrap();
    assert_eq!(shown + left_out(&run.report), u64::try_from(count).unwrap() + 1);
    fixture.succeed("anna", Act::Commit, &run);
    assert_eq!(fixture.files(), entries(&[("new.txt", "new")]));
}

/// A difference that is too long is cut, and says so.
#[test]
fn the_texts_of_a_list_are_bounded() {
    let long = r"the new line of this file, which is as long as most lines of texts are\0a".repeat(250);
    let names = [0, 1, 2, 3].map(|number| format!("t{number}"));
    let steps = names.each_ref().map(|name| Step::Write(name, &long));
    let fixture = StagedFixture::start([tool("rewrites", "staged", &steps)]);
    fixture.set_files(&names.each_ref().map(|name| (name.as_str(), "one line\n")));
    let run = fixture.stage("rewrites");
    let diffs = files(&run.report).iter().map(|file| file["diff"].as_str().unwrap_or_default().len());
    let length = diffs.sum::<usize>();
    assert!(length <= MAX_SHOWN_BYTES, "{length}");
    assert!(files(&run.report).iter().any(|file| file["diff_cut"] == true), "{}", run.report);
    let is_whole = |file: &Value| file["diff"].is_string() || file["diff_cut"] == true;
    assert!(files(&run.report).iter().all(is_whole), "what is left out is said: {}", run.report);
    // The digest is that of everything, also of what is not shown.
    fixture.succeed("anna", Act::Commit, &run);
    assert!(fixture.files().values().all(|content| content.lines().count() == 250));
}

/// The list is in the stored receipt, so that it can be read after everything else of the set has gone.
#[test]
fn the_list_stays_in_the_report_of_the_run() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let run = fixture.stage(EDITS);
    let listed = run.report["usage"]["effects"]["files"].clone();
    fixture.succeed("anna", Act::Commit, &run);
    assert_eq!(fixture.files(), entries(AFTER));
    fixture.succeed("anna", Act::Undo, &run);
    assert_eq!(fixture.set(&run)["files"], listed);
}
