//! `a2g-executor effects`: the list of changes, and decisions on exactly what was shown.

use super::{AFTER, BEFORE, EDITS, StagedFixture, StagedRun, edits, entries};
use harness::{Home, Options, run, set_mode};
use serde_json::{Value, json};

/// The end of a command: its exit code, and all that it printed.
pub(super) struct Ended {
    code: Option<i32>,
    pub(super) printed: String,
}

impl Ended {
    pub(super) fn expect(&self, code: i32, texts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.printed);
        let mut rest = &*self.printed;
        for text in texts {
            let found = rest.split_once(text);
            rest = found.unwrap_or_else(|| panic!("`{text}` is not next in\n{}", self.printed)).1;
        }
    }
}

impl StagedFixture {
    pub(super) fn effects(&self, who: &str, arguments: &[&str]) -> Ended {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, &self.tokens[who]).unwrap();
        set_mode(&token, 0o600);
        let url = self.executor().http_url();
        let address = ["--url", &url, "--token-file", token.to_str().unwrap()];
        let output = run([&["effects"], arguments, &address].concat());
        let printed = [output.stdout, output.stderr].concat();
        Ended { code: output.status.code(), printed: String::from_utf8(printed).unwrap() }
    }

    fn effects_json(&self, who: &str, arguments: &[&str]) -> Value {
        let shown = self.effects(who, arguments);
        serde_json::from_str(&shown.printed).unwrap_or_else(|error| panic!("{error}: {}", shown.printed))
    }
}

fn block(run: &StagedRun) -> &str {
    run.intent.split('-').next().unwrap()
}

#[test]
fn the_command_line_shows_and_decides_on_exactly_what_was_shown() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    fixture.effects("anna", &["list"]).expect(0, &["no file changes wait"]);
    let run = fixture.stage(EDITS);
    let block = block(&run);
    fixture.effects("anna", &["list"]).expect(0, &["until", "waiting", EDITS, block]);
    fixture.effects("other", &["list"]).expect(0, &["no file changes wait"]);
    let parts = ["state    waiting, not in force", "Deleted (", "gone.txt", "Renamed (1)", "old.txt", "-> "];
    let changed = ["Changed (1)", "a.txt", "-two", "+TWO", "Created (", "new.txt"];
    fixture.effects("otto", &["show", block]).expect(0, &[&parts[..], &changed].concat());
    assert_eq!(fixture.effects_json("agent", &["show", &run.intent, "--json"])["digest"], run.digest);

    // Nobody is asked without a terminal, so the command says how to decide.
    let digest = format!("--digest {}", run.digest);
    fixture.effects("anna", &["commit", block]).expect(3, &["Deleted (", "not confirmed", &digest]);
    fixture.effects("anna", &["discard", block]).expect(3, &["not confirmed", "--yes"]);
    let other = "0".repeat(64);
    fixture.effects("anna", &["commit", block, "--digest", &other]).expect(1, &["nothing was committed"]);
    fixture.effects("anna", &["undo", block, "--yes"]).expect(1, &["cannot be undone: waiting"]);
    fixture.effects("otto", &["commit", block, "--yes"]).expect(1, &["is for callers with the role"]);
    assert_eq!((&*fixture.state(&run), fixture.files()), ("waiting", entries(BEFORE)));

    let committed = fixture.effects("anna", &["commit", block, "--digest", &run.digest]);
    committed.expect(0, &["Committed: 7 changes", "effects undo"]);
    assert_eq!(fixture.files(), entries(AFTER));
    fixture.effects("anna", &["commit", block, "--yes"]).expect(1, &["cannot be committed: in force"]);
    let shown = ["state    in force; can be undone until", "decided  commit by anna: SUCCESS"];
    fixture.effects("agent", &["show", block]).expect(0, &shown);

    fixture.effects("gov", &["undo", block, "--yes"]).expect(0, &["Undone: 7 changes"]);
    assert_eq!(fixture.files(), entries(BEFORE));
    fixture.effects("anna", &["show", block]).expect(1, &["write the whole id"]);
    let shown = ["state    undone", "commit by anna: SUCCESS", "undo by gov: SUCCESS"];
    fixture.effects("anna", &["show", &run.intent]).expect(0, &shown);
}

#[test]
fn an_agent_discards_its_own_changes_on_the_command_line() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let run = fixture.stage(EDITS);
    fixture.effects("other", &["discard", &run.intent, "--yes"]).expect(1, &["the executor refused"]);
    fixture.effects("agent", &["discard", block(&run), "--yes"]).expect(0, &["Discarded: 7 changes"]);
    assert_eq!((&*fixture.state(&run), fixture.files()), ("discarded", entries(BEFORE)));
}

#[test]
fn a_commit_over_changed_files_says_what_to_do() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let run = fixture.stage(EDITS);
    std::fs::write(fixture.home().workspace().join("a.txt"), "somebody else's\n").unwrap();
    let refused = fixture.effects("anna", &["commit", block(&run), "--yes"]);
    refused.expect(1, &["error: ", "a.txt", "the changes still wait", "put those back"]);
    assert_eq!(fixture.state(&run), "waiting");
}

/// The journal of that command is in memory.
#[test]
fn a_single_run_is_committed_if_it_is_confirmed() {
    let home = Home::new(Options::new().set("ceilings.effects", "staged"));
    let arguments = json!({ "path": "/workspace/a.txt", "content": "one" }).to_string();
    let run = |more: &[&str]| {
        let words = ["run", "write_file", "--scope", "/workspace/**", "--arguments", &arguments];
        let output = home.run(&[&words[..], more].concat());
        let printed = [output.stdout, output.stderr].concat();
        Ended { code: output.status.code(), printed: String::from_utf8(printed).unwrap() }
    };
    run(&[]).expect(1, &["Created (1)", "/workspace/a.txt", "not confirmed: no file was changed"]);
    assert!(!home.workspace().join("a.txt").exists());
    run(&["--yes"]).expect(0, &["Created (1)", "+one", "committed: creates 1"]);
    assert_eq!(std::fs::read_to_string(home.workspace().join("a.txt")).unwrap(), "one");
}
