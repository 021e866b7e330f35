//! Ways of a run to hide a change from the person who decides: other changes that use up the list, a byte that makes a
//! content no text, a name that looks like another one.

use super::{StagedFixture, StagedRun, Step, tool, tool_of_body};
use serde_json::{Value, json};

/// The files that a run changes: what it does to them must not be hidden.
const CHANGED: [&str; 5] = ["z0.txt", "z1.txt", "z2.txt", "z3.txt", "z4.txt"];

fn files(run: &StagedRun) -> &[Value] {
    run.report["usage"]["effects"]["files"].as_array().expect("a list")
}

/// The change of a file in the workspace.
fn file<'a>(run: &'a StagedRun, name: &str) -> &'a Value {
    let found = files(run).iter().find(|file| file["path"] == *shown(name));
    found.unwrap_or_else(|| panic!("{name} is not listed: {}", run.report))
}

fn shown(name: &str) -> String {
    format!("/workspace/{name}")
}

/// The steps that change [`CHANGED`].
fn changes<'a>() -> impl Iterator<Item = Step<'a>> {
    CHANGED.into_iter().map(|name| Step::Write(name, r"one\0aharm\0a"))
}

/// Stages a run that changes [`CHANGED`] and creates so many files, and asserts that the former are listed first.
fn stage_changes(fixture: &StagedFixture, created: u64) -> StagedRun {
    let originals = CHANGED.map(|name| (name, "one\ntwo\n"));
    fixture.set_files(&[&originals[..], &[("many/", "")]].concat());
    let run = fixture.stage("hides");
    for (file, name) in files(&run).iter().zip(CHANGED) {
        assert_eq!((&file["change"], &file["path"]), (&json!("changed"), &json!(shown(name))));
    }
    let counts = json!({
        "deleted": 0, "renamed": 0, "emptied": 0, "changed": CHANGED.len(), "attributes": 0, "created": created,
    });
    assert_eq!(run.report["usage"]["effects"]["counts"], counts);
    run
}

#[test]
fn long_new_files_take_no_room_from_changed_ones() {
    let long = r"the new line of this file, which is as long as most lines of texts are\0a".repeat(180);
    let names = [0, 1, 2, 3, 4].map(|number| format!("a{number}"));
    let creates = names.iter().map(|name| Step::Write(name, &long));
    let steps = creates.chain(changes()).collect::<Vec<_>>();
    let fixture = StagedFixture::start([tool("hides", "staged", &steps)]);
    let run = stage_changes(&fixture, 5);
    assert_eq!(files(&run).len(), CHANGED.len() + names.len(), "each change is listed: {}", run.report);
    for name in CHANGED {
        let file = file(&run, name);
        assert_eq!(file["diff"], "@@ -1,2 +1,2 @@\n one\n-two\n+harm\n", "{file}");
        assert_eq!(file.get("diff_cut"), None, "{file}");
    }
    // All of them together are too long for a list.
    assert!(files(&run).iter().any(|file| file["diff_cut"] == true), "{}", run.report);
}

#[test]
fn many_new_files_take_no_place_from_changed_ones() {
    const CREATED: u64 = 1_100;
    let writes = changes().map(|step| step.calls()).collect::<String>();
    let body = format!("(call $create_many (i32.const {CREATED})) {writes}");
    let fixture = StagedFixture::start([tool_of_body("hides", "staged", body)]);
    let run = stage_changes(&fixture, CREATED);
    assert!(run.report["usage"]["effects"]["left_out"].as_u64() > Some(0), "the list is too short for all");
    let is_named = |name: &&str| file(&run, name)["diff"].is_string() || file(&run, name)["diff_cut"] == true;
    assert!(CHANGED.iter().all(is_named), "{}", run.report);
}

/// A shell runs a script with a NUL byte, which is no text.
#[test]
fn a_content_that_is_not_shown_is_named() {
    let steps = [
        Step::Write("changed.sh", r"echo harm\0a# \00\0a"),
        Step::Write("created.sh", r"echo harm\0a# \00\0a"),
        Step::Write("plain.sh", r"echo plain\0a"),
    ];
    let fixture = StagedFixture::start([tool("hides", "staged", &steps)]);
    fixture.set_files(&[("changed.sh", "echo good\n")]);
    let run = fixture.stage("hides");
    for name in ["changed.sh", "created.sh"] {
        let file = file(&run, name);
        assert_eq!((&file["diff_cut"], file.get("diff")), (&json!(true), None), "{file}");
        assert!(file["ranges"].as_array().is_some_and(|ranges| !ranges.is_empty()), "{file}");
    }
    let plain = file(&run, "plain.sh");
    assert_eq!((&plain["diff"], plain.get("diff_cut")), (&json!("@@ -0,0 +1,1 @@\n+echo plain\n"), None));
}

/// A byte that is no text is shown as `\xff`, and a line end as `\n`.
#[test]
fn a_backslash_in_a_name_looks_like_nothing_else() {
    let steps = [Step::Write(r"a\5cn", "x"), Step::Write(r"b\5cxff", "x")];
    let fixture = StagedFixture::start([tool("hides", "staged", &steps)]);
    fixture.set_files(&[]);
    let run = fixture.stage("hides");
    let paths = files(&run).iter().map(|file| file["path"].as_str().expect("a text")).collect::<Vec<_>>();
    assert_eq!(paths, [r"/workspace/a\\n", r"/workspace/b\\xff"]);
}
