//! Runs under `effects = "staged"`: their file changes wait until somebody commits or discards them, and those in force can
//! be undone as long as no file has changed since.
//!
//! The tests decide over A2G as people with different roles, and compare the workspace, `a2g/effects`, the journal and the
//! reports that a governor in a process of its own has received.

mod attempts;
mod command_line;
mod conflicts;
mod decisions;
mod held;
mod hidden;
mod late_ends;
mod limits;
mod old_journals;
mod preview;
mod refusals;
mod shares;
mod shown;
mod special;
mod stuck;

use harness::callers::{List, agent, rpc};
use harness::guests::{Guest, repeat};
use harness::{
    AGENT, Catalogue, Executor, Governor, Home, Options, Tool, approved, execute, id_of, intent, manifest,
    result, set_member,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// An agent that stages nothing.
pub(crate) const OTHER: &str = "did:aeon:other:1.0:abc123";

/// The tool that makes [`AFTER`] of [`BEFORE`], in [`CHANGES`] changes.
pub(crate) const EDITS: &str = "edits";
pub(crate) const CHANGES: u64 = 7;

/// Paths below the workspace with their contents; a path with `/` at its end is a folder.
pub(crate) const BEFORE: &[(&str, &str)] = &[
    ("a.txt", "one\ntwo\nthree\n"),
    ("empty/", ""),
    ("gone.txt", "the file that is deleted\n"),
    ("keep.txt", "keep\n"),
    ("old.txt", "old\n"),
];
pub(crate) const AFTER: &[(&str, &str)] = &[
    ("a.txt", "one\nTWO\nthree\n"),
    ("keep.txt", "keep\n"),
    ("made/", ""),
    ("made/inner.txt", "inner"),
    ("made/moved.txt", "old\n"),
    ("new.txt", NEW),
];
/// A content that no other file has.
const NEW: &str = "the content of the new file";

/// The size of what [`large`] writes at once, in bytes.
const CHUNK_BYTES: usize = 16_384;

/// The entries below a folder, as in [`BEFORE`].
pub(crate) type Entries = BTreeMap<String, String>;

/// One call of a guest that has to succeed. Paths are relative to the workspace.
pub(crate) enum Step<'a> {
    /// Creates the file, or replaces all of its content. A byte of the content can be written as `\0a`.
    Write(&'a str, &'a str),
    /// Replaces a part of the content, from this offset on.
    Patch(&'a str, u64, &'a str),
    Read(&'a str),
    Remove(&'a str),
    Rename(&'a str, &'a str),
    MakeFolder(&'a str),
    RemoveFolder(&'a str),
    /// Sets the time of the last change of the content to one second after 1970.
    SetTime(&'a str),
}
use Step::{MakeFolder, Patch, Read, Remove, RemoveFolder, Rename, SetTime, Write};

/// Functions for the bodies of guests: writes at an offset; creates numbered files in the folder `many`.
const BESIDE: &str = r#"
(func $write_at (param $offset i64) (param $at i32) (param $length i32) (result i32)
  (i32.store (i32.const 0) (local.get $at))
  (i32.store (i32.const 4) (local.get $length))
  (call $fd_pwrite (global.get $fd) (i32.const 0) (i32.const 1) (local.get $offset) (i32.const 8)))
(data (i32.const 120000) "many/f00000")
(func $create_many (param $count i32) (local $number i32) (local $rest i32) (local $digit i32)
  (loop $more
    (local.set $rest (local.get $number))
    (local.set $digit (i32.const 120010))
    (loop $digits
      (i32.store8 (local.get $digit)
        (i32.add (i32.const 48) (i32.rem_u (local.get $rest) (i32.const 10))))
      (local.set $rest (i32.div_u (local.get $rest) (i32.const 10)))
      (local.set $digit (i32.sub (local.get $digit) (i32.const 1)))
      (br_if $digits (i32.gt_u (local.get $digit) (i32.const 120005))))
    (if (call $create (i32.const 3) (i32.const 120000) (i32.const 11)) (then (unreachable)))
    (if (call $fd_close (global.get $fd)) (then (unreachable)))
    (local.set $number (i32.add (local.get $number) (i32.const 1)))
    (br_if $more (i32.lt_u (local.get $number) (local.get $count)))))"#;

impl Step<'_> {
    fn calls(&self) -> String {
        let must = |call: String| format!("(if {call} (then (unreachable)))\n");
        let with_file = |open: String, use_it: String| {
            [must(open), must(use_it), must("(call $fd_close (global.get $fd))".to_owned())].concat()
        };
        match self {
            Write(path, content) => with_file(
                format!(r#"(call $open_with (i32.const 3) @"{path}" (i32.const 9) (i64.const 0x42))"#),
                format!(r#"(call $write (global.get $fd) @"{content}")"#),
            ),
            Patch(path, offset, content) => with_file(
                format!(r#"(call $open_rw (i32.const 3) @"{path}")"#),
                format!(r#"(call $write_at (i64.const {offset}) @"{content}")"#),
            ),
            Read(path) => with_file(
                format!(r#"(call $open (i32.const 3) @"{path}")"#),
                "(call $read (global.get $fd) (i32.const 512) (i32.const 64))".to_owned(),
            ),
            Remove(path) => must(format!(r#"(call $path_unlink (i32.const 3) @"{path}")"#)),
            Rename(from, to) => {
                must(format!(r#"(call $path_rename (i32.const 3) @"{from}" (i32.const 3) @"{to}")"#))
            }
            MakeFolder(path) => must(format!(r#"(call $path_mkdir (i32.const 3) @"{path}")"#)),
            RemoveFolder(path) => must(format!(r#"(call $path_rmdir (i32.const 3) @"{path}")"#)),
            // FSTFLAGS_MTIM
            SetTime(path) => must(format!(
                r#"(call $path_set_times (i32.const 3) (i32.const 0) @"{path}" (i64.const 0)
                   (i64.const 1000000000) (i32.const 4))"#
            )),
        }
    }
}

/// A tool that takes these steps, with these effects, and answers `[]`.
pub(crate) fn tool(name: &str, effects: &str, steps: &[Step<'_>]) -> Tool {
    tool_of_body(name, effects, steps.iter().map(Step::calls).collect::<String>())
}

fn tool_of_body(name: &str, effects: &str, body: String) -> Tool {
    Tool::command_bytes(name, Guest::new(body).beside(BESIDE).wasm()).effects(effects)
}

/// A tool that creates a file with so many chunks of [`CHUNK_BYTES`].
fn large(name: &str, chunks: u64) -> Tool {
    let opens = format!(
        r#"(if (call $create (i32.const 3) @"{name}") (then (unreachable)))
           (memory.fill (i32.const 65536) (i32.const 120) (i32.const {CHUNK_BYTES}))"#
    );
    let writes = format!(
        "(if (call $write (global.get $fd) (i32.const 65536) (i32.const {CHUNK_BYTES})) (then (unreachable)))"
    );
    tool_of_body(name, "staged", repeat(&opens, chunks, &writes))
}

/// The tool [`EDITS`] under another name, or with other effects.
pub(crate) fn edits(name: &str, effects: &str) -> Tool {
    let steps = [
        Read("keep.txt"),
        Write("a.txt", r"one\0aTWO\0athree\0a"),
        Write("new.txt", NEW),
        MakeFolder("made"),
        Write("made/inner.txt", "inner"),
        Rename("old.txt", "made/moved.txt"),
        Remove("gone.txt"),
        RemoveFolder("empty"),
    ];
    tool(name, effects, &steps)
}

/// A tool that answers with the four bytes of `a.txt` after the first four, as a number.
fn looks() -> Tool {
    let body = r#"
        (if (call $open (i32.const 3) @"a.txt") (then (unreachable)))
        (if (call $read (global.get $fd) (i32.const 512) (i32.const 64)) (then (unreachable)))
        (call $note (i32.load (i32.const 516)))"#;
    Tool::command_bytes("looks", Guest::new(body).wasm()).filesystem("read")
}

pub(crate) fn entries(listed: &[(&str, &str)]) -> Entries {
    listed.iter().map(|(path, content)| ((*path).to_owned(), (*content).to_owned())).collect()
}

/// A decision about the changes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Commit,
    Discard,
    Undo,
}

impl Act {
    pub(crate) const ALL: [Self; 3] = [Self::Commit, Self::Discard, Self::Undo];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Discard => "discard",
            Self::Undo => "undo",
        }
    }

    pub(crate) fn method(self) -> String {
        format!("a2g/{}", self.word())
    }

    /// The state of the changes after a success.
    pub(crate) fn state(self) -> &'static str {
        match self {
            Self::Commit => "in_force",
            Self::Discard => "discarded",
            Self::Undo => "undone",
        }
    }

    pub(crate) fn params(self, run: &StagedRun) -> Value {
        match self {
            Self::Commit => json!({ "intent": run.intent, "digest": run.digest }),
            Self::Discard | Self::Undo => json!({ "intent": run.intent }),
        }
    }
}

/// A run whose changes were kept apart until its end.
pub(crate) struct StagedRun {
    pub(crate) intent: String,
    pub(crate) digest: String,
    pub(crate) report: Value,
}

impl StagedRun {
    fn of(call: &Value, answer: &Value, status: &str) -> Self {
        let report = result(answer).clone();
        assert_eq!(report["status"], status, "{answer}");
        let digest = report["usage"]["effects"]["digest"].as_str().expect("a digest").to_owned();
        Self { intent: id_of(call), digest, report }
    }

    /// The intent of its nth call or decision.
    pub(crate) fn nested(&self, ordinal: u32) -> String {
        let run = self.intent.parse::<uuid::Uuid>().expect("a UUID");
        uuid::Uuid::new_v5(&run, ordinal.to_string().as_bytes()).to_string()
    }
}

/// The report of a decision that was made and has this status. One that fails is no error: it was made, and recorded.
pub(crate) fn decided(answer: &Value, status: &str) -> Value {
    let report = result(answer);
    assert_eq!(report["status"], status, "{answer}");
    report.clone()
}

/// An executor with callers of every role, and its governor.
pub(crate) struct StagedFixture {
    list: List,
    _catalogue: Catalogue,
    pub(crate) tokens: HashMap<&'static str, String>,
    pub(crate) governor: Governor,
    /// `None` while the server is being killed and started again.
    executor: Option<Executor>,
}

impl StagedFixture {
    /// Starts with these tools beside `looks`, and [`BEFORE`] in the workspace.
    pub(crate) fn start(tools: impl IntoIterator<Item = Tool>) -> Self {
        Self::start_with(tools, |options| options)
    }

    pub(crate) fn start_with(
        tools: impl IntoIterator<Item = Tool>,
        set: impl FnOnce(Options) -> Options,
    ) -> Self {
        let list = List::new();
        let mut tokens =
            HashMap::from([("agent", agent(&list, "agent", AGENT)), ("other", agent(&list, "other", OTHER))]);
        for (name, role) in [("anna", "approver"), ("gov", "governor"), ("otto", "operator")] {
            tokens.insert(name, list.add(name, &["--role", role]));
        }
        tokens.insert("both", list.add("both", &["--role", "agent", "--role", "approver", "--agent", AGENT]));
        let governor = Governor::start(&[]);
        let catalogue = tools.into_iter().chain([looks()]).fold(Catalogue::empty(), Catalogue::add);
        let options = set(list.options().catalogue(&catalogue).governor(&governor.http_url()));
        let executor = Some(Executor::start(options));
        let fixture = Self { list, _catalogue: catalogue, tokens, governor, executor };
        fixture.set_files(BEFORE);
        fixture
    }

    pub(crate) fn executor(&self) -> &Executor {
        self.executor.as_ref().expect("it runs")
    }

    pub(crate) fn home(&self) -> &Home {
        self.executor().home()
    }

    pub(crate) fn ask(&self, who: &str, method: &str, params: &Value) -> Value {
        rpc(&mut self.executor().client(), &self.tokens[who], method, params)
    }

    /// Runs a tool, whose changes have to wait then.
    pub(crate) fn stage(&self, tool: &str) -> StagedRun {
        self.run_apart(tool, "STAGED")
    }

    /// Runs a tool that keeps its changes apart until its end, and ends with this status.
    pub(crate) fn run_apart(&self, tool: &str, status: &str) -> StagedRun {
        let mut limits = manifest();
        limits["timeout_seconds"] = json!(60);
        let call = approved(intent(tool, json!({})), &limits);
        StagedRun::of(&call, &self.ask("agent", "a2g/execute", &call), status)
    }

    /// As [`Self::stage`], as the agent [`OTHER`].
    fn stage_as_other(&self, tool: &str) -> StagedRun {
        let call = execute_as_other(tool);
        StagedRun::of(&call, &self.ask("other", "a2g/execute", &call), "STAGED")
    }

    pub(crate) fn decide(&self, who: &str, act: Act, run: &StagedRun) -> Value {
        self.ask(who, &act.method(), &act.params(run))
    }

    /// Makes a decision, which has to succeed. Returns its report.
    pub(crate) fn succeed(&self, who: &str, act: Act, run: &StagedRun) -> Value {
        let report = decided(&self.decide(who, act, run), "SUCCESS");
        assert_eq!(self.state(run), act.state());
        report
    }

    /// The sets of changes that wait or can be undone, as this caller sees them.
    pub(crate) fn sets(&self, who: &str) -> Vec<Value> {
        result(&self.ask(who, "a2g/effects", &json!({})))["sets"].as_array().expect("a list").clone()
    }

    /// The set of one run.
    pub(crate) fn set(&self, run: &StagedRun) -> Value {
        let answer = self.ask("otto", "a2g/effects", &json!({ "intent": run.intent }));
        let sets = result(&answer)["sets"].as_array().expect("a list");
        assert_eq!(sets.len(), 1, "{answer}");
        sets[0].clone()
    }

    pub(crate) fn state(&self, run: &StagedRun) -> String {
        self.set(run)["state"].as_str().expect("a state").to_owned()
    }

    /// The acts about a run's changes with their statuses and authors, the oldest first.
    fn decisions(&self, run: &StagedRun) -> Vec<[String; 3]> {
        let set = self.set(run);
        let decisions = set["decisions"].as_array().expect("a list").iter();
        let text = |decision: &Value, member: &str| decision[member].as_str().expect("a text").to_owned();
        decisions.map(|decision| ["act", "status", "by"].map(|member| text(decision, member))).collect()
    }

    /// The intent of a decision.
    pub(crate) fn decision(&self, run: &StagedRun, index: usize) -> String {
        self.set(run)["decisions"][index]["intent"].as_str().expect("an id").to_owned()
    }

    /// The text that `looks` finds in `a.txt`, which is what any other run sees.
    fn seen_by_another_run(&self) -> String {
        let answer = self.ask("agent", "a2g/execute", &execute("looks", json!({})));
        let number = result(&answer)["result"][0].as_u64().and_then(|number| u32::try_from(number).ok());
        String::from_utf8(number.expect("a number").to_le_bytes().to_vec()).expect("text")
    }

    /// Replaces everything in the workspace.
    pub(crate) fn set_files(&self, listed: &[(&str, &str)]) {
        let workspace = self.home().workspace();
        for entry in std::fs::read_dir(&workspace).unwrap() {
            let path = entry.unwrap().path();
            let is_folder = std::fs::symlink_metadata(&path).unwrap().is_dir();
            let removed = if is_folder { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
            removed.unwrap();
        }
        write_entries(&workspace, listed);
    }

    /// Everything in the workspace.
    pub(crate) fn files(&self) -> Entries {
        read_entries(&self.home().workspace())
    }

    /// Asserts that the changes of the run are where its state says, and returns the state.
    pub(crate) fn assert_agrees(&self, run: &StagedRun, context: &str) -> String {
        let state = self.state(run);
        let expected = match &*state {
            "waiting" | "discarded" | "undone" => BEFORE,
            "in_force" | "kept" => AFTER,
            other => panic!("{context}: the state is {other}"),
        };
        assert_eq!(self.files(), entries(expected), "{context}: the state is {state}");
        state
    }

    /// `true` if a file in the executor's own folder has these bytes in it.
    fn keeps(&self, content: &str) -> bool {
        has_content(&self.home().journal().with_file_name("effects"), content.as_bytes())
    }

    /// The folder in which the executor keeps the changes of a run apart.
    fn find_run_folder(&self, run: &str) -> Option<PathBuf> {
        let folder = self.home().journal().with_file_name("effects").join("journal.db");
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths = entries.map(|entry| entry.path());
        paths.find(|path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(run.as_bytes())))
    }

    /// `true` if that folder is there, and has this entry.
    fn keeps_entry(&self, run: &str, entry: &str) -> bool {
        self.find_run_folder(run).is_some_and(|folder| folder.join(entry).exists())
    }

    /// Ends the server as a crash would, and returns its folders.
    pub(crate) fn kill(&mut self) -> Home {
        self.executor.take().expect("it runs").kill()
    }

    /// Stops the server in good order, and returns its folders.
    pub(crate) fn stop(&mut self) -> Home {
        let mut executor = self.executor.take().expect("it runs");
        executor.process().stop();
        executor.kill()
    }

    pub(crate) fn start_in(&mut self, home: Home) {
        self.executor = Some(Executor::start_in(home));
    }
}

/// A call of the agent [`OTHER`].
fn execute_as_other(tool: &str) -> Value {
    let mut call = execute(tool, json!({}));
    set_member(&mut call, "/intent/agent_did", OTHER.into());
    call
}

/// Makes these entries in a folder.
pub(crate) fn write_entries(folder: &Path, listed: &[(&str, &str)]) {
    for (path, content) in listed {
        if path.ends_with('/') {
            std::fs::create_dir_all(folder.join(path)).unwrap();
        } else {
            std::fs::write(folder.join(path), content).unwrap();
        }
    }
}

/// All entries below a folder. Names that are no text are shown as well as they can be.
pub(crate) fn read_entries(folder: &Path) -> Entries {
    let mut found = Entries::new();
    let mut left = vec![folder.to_owned()];
    while let Some(inner) = left.pop() {
        for entry in std::fs::read_dir(inner).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                found.insert(format!("{name}/"), String::new());
                left.push(path);
            } else {
                found.insert(name, String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned());
            }
        }
    }
    found
}

/// The entries of a folder may go while they are looked at.
fn has_content(folder: &Path, content: &[u8]) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        if path.is_dir() {
            return has_content(&path, content);
        }
        let bytes = std::fs::read(path).unwrap_or_default();
        bytes.windows(content.len()).any(|window| window == content)
    })
}
