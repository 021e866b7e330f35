//! Programs whose calls share their files: all of them work on one copy of the granted folders, and what they change takes
//! effect together or not at all.
//!
//! The guest `take_steps` is the program and its calls. The governor grants to each of them what its argument `grant` says.
//! The same steps with direct effects are the measure of what each step has to bring.

mod areas;
mod ends;
mod generated;
mod kept;
mod languages;
mod records;
mod scopes;
mod seen;
mod together;
mod users;

use harness::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The guest.
const TOOL: &str = "take_steps";
/// A tool without files that may use the network.
const NETWORK: &str = "uses_network";
const ISOLATIONS: [&str; 2] = ["process", "inline"];

/// Paths below the workspace with their contents; a path with `/` at its end is a folder.
const BEFORE: &[(&str, &str)] = &[
    ("a.txt", "one"),
    ("b.txt", "two"),
    ("empty/", ""),
    ("secret.txt", "the secret"),
    ("sub/", ""),
    ("sub/deep/", ""),
    ("sub/deep/more.txt", "more"),
    ("sub/in.txt", "inside"),
];

/// The entries below a folder, as in [`BEFORE`].
type Entries = BTreeMap<String, String>;

fn entries(listed: &[(&str, &str)]) -> Entries {
    listed.iter().map(|(path, content)| ((*path).to_owned(), (*content).to_owned())).collect()
}

/// [`BEFORE`] with other files, and without some paths.
fn before_but(changed: &[(&str, &str)], gone: &[&str]) -> Entries {
    let mut all = entries(BEFORE);
    all.retain(|path, _| !gone.contains(&&**path));
    all.extend(entries(changed));
    all
}

/// The time at which the changes of a program and its calls take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effects {
    Direct,
    Atomic,
    Staged,
}

impl Effects {
    /// Those under which a program has a copy of the files.
    const APART: [Self; 2] = [Self::Atomic, Self::Staged];
    const ALL: [Self; 3] = [Self::Direct, Self::Atomic, Self::Staged];

    fn word(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Atomic => "atomic",
            Self::Staged => "staged",
        }
    }

    /// A grant with the condition that says so.
    fn grant(self, mut grant: Value) -> Value {
        if self != Self::Direct {
            grant["conditions"] = json!([format!("effects:{}", self.word())]);
        }
        grant
    }

    /// The status of a success with changes.
    fn status(self) -> &'static str {
        match self {
            Self::Direct | Self::Atomic => "SUCCESS",
            Self::Staged => "STAGED",
        }
    }
}

/// The intent of a program that takes these steps.
fn program(effects: Effects, steps: Value) -> Value {
    granted(effects, json!({}), steps)
}

/// The intent of a program that takes these steps under this grant.
fn granted(effects: Effects, grant: Value, steps: Value) -> Value {
    intent(TOOL, arguments(effects.grant(grant), steps))
}

fn arguments(grant: Value, steps: Value) -> Value {
    json!({ "grant": grant, "steps": steps })
}

/// A step that calls the guest, which takes these steps.
fn call(steps: Value) -> Value {
    call_under(json!({}), steps)
}

/// A step that calls the guest under this grant.
fn call_under(grant: Value, steps: Value) -> Value {
    json!(["call", TOOL, arguments(grant, steps)])
}

/// A step that starts a call of this name, and does not wait for it.
fn start(name: &str, steps: Value) -> Value {
    json!(["start", name, TOOL, arguments(json!({}), steps)])
}

/// The outcome of a step that found nothing at its path.
fn missing() -> Value {
    json!({ "failed": "NotFound" })
}

/// The code of a step that failed; empty for one that did not.
fn code(outcome: &Value) -> &str {
    outcome["failed"].as_str().unwrap_or_default()
}

/// The outcomes with `null` for each that failed, whatever the reason was. Only for steps that bring something.
fn brought(outcomes: &[Value]) -> Vec<Value> {
    let brought = |outcome: &Value| if code(outcome).is_empty() { outcome.clone() } else { Value::Null };
    outcomes.iter().map(brought).collect()
}

/// The outcomes of a call that succeeded.
fn steps_of(outcome: &Value) -> &[Value] {
    outcome["steps"].as_array().unwrap_or_else(|| panic!("no steps: {outcome}"))
}

/// The intent of a call of a run.
fn nested(parent: &str, ordinal: u32) -> String {
    let parent = parent.parse::<uuid::Uuid>().expect("an id");
    uuid::Uuid::new_v5(&parent, ordinal.to_string().as_bytes()).to_string()
}

fn decide(call: &Value) -> Value {
    // An interpreter has no such argument.
    let of_arguments = &call["arguments"]["grant"];
    let grant = if of_arguments.is_null() { &call["context"]["grant"] } else { of_arguments };
    let mut limits = manifest();
    limits["timeout_seconds"] = json!(60);
    for (member, limit) in [
        ("scope", "filesystem_scope"),
        ("seconds", "timeout_seconds"),
        ("network", "network_allowed"),
        ("memory_mb", "max_memory_mb"),
    ] {
        if let Some(value) = grant.get(member) {
            limits[limit] = value.clone();
        }
    }
    let mut verdict = verdict(call["intent_id"].as_str().expect("an id"), &limits);
    if let Some(conditions) = grant.get("conditions") {
        verdict["verdict"] = "CONDITIONAL".into();
        verdict["conditions"] = conditions.clone();
    }
    if let Some(word) = grant.get("verdict") {
        verdict["verdict"] = word.clone();
        verdict["reason"] = "this is what the test wants".into();
    }
    verdict
}

/// A program that has succeeded.
struct Ran {
    intent: String,
    report: Value,
}

impl Ran {
    fn of(program: &Value, answer: &Value) -> Self {
        let report = result(answer)["report"].clone();
        let status = report["status"].as_str().unwrap_or_default();
        assert!(["SUCCESS", "STAGED"].contains(&status), "{answer}");
        Self { intent: program["intent_id"].as_str().expect("an id").to_owned(), report }
    }

    fn outcomes(&self) -> &[Value] {
        steps_of(&self.report["result"])
    }

    /// The intent of its nth call.
    fn nested(&self, ordinal: u32) -> String {
        nested(&self.intent, ordinal)
    }
}

/// An executor with the guest, and its governor.
struct Shared {
    executor: Executor,
    governor: FakeGovernor,
    catalogue: Catalogue,
}

impl Shared {
    fn start() -> Self {
        Self::start_with(Options::new())
    }

    fn start_with(options: Options) -> Self {
        let guest = Tool::typed_bytes(TOOL, guest(TOOL)).calls(&["*"]);
        let network = Tool::command(NETWORK, &saying(1, "{}", 0)).filesystem("none").network();
        Self::start_in(options, Catalogue::empty().add(guest).add(network))
    }

    /// Starts with the tools of this catalogue.
    fn start_in(options: Options, catalogue: Catalogue) -> Self {
        let governor = FakeGovernor::deciding(|call| Reply::Result(decide(call)));
        let executor = Executor::start(options.catalogue(&catalogue).governor(&governor.url()));
        let shared = Self { executor, governor, catalogue };
        shared.set_files(BEFORE);
        shared
    }

    /// Ends the server as a crash would, lets `meanwhile` look at what is left, and starts it again.
    fn restart(self, meanwhile: impl FnOnce(&Home)) -> Self {
        let Self { executor, governor, catalogue } = self;
        let home = executor.kill();
        meanwhile(&home);
        Self { executor: Executor::start_in(home), governor, catalogue }
    }

    /// Runs a program, which has to succeed.
    fn run(&self, program: &Value) -> Ran {
        Ran::of(program, &self.executor.rpc("a2g/intent", program))
    }

    /// Makes a decision about the changes of a program, which has to succeed.
    fn decide(&self, act: &str, ran: &Ran) {
        let params = match act {
            "commit" => json!({ "intent": ran.intent, "digest": ran.report["usage"]["effects"]["digest"] }),
            _without_digest => json!({ "intent": ran.intent }),
        };
        let answer = self.executor.rpc(&format!("a2g/{act}"), &params);
        assert_eq!(result(&answer)["status"], "SUCCESS", "{act}: {answer}");
    }

    /// Lets the changes of a program take effect, if they wait, and asserts that they had not before.
    fn settle(&self, ran: &Ran) {
        if ran.report["status"] == "STAGED" {
            assert_eq!(self.files(), entries(BEFORE), "nothing is in force before the decision");
            self.decide("commit", ran);
        }
    }

    /// The state of an intent.
    fn state(&self, intent: &str) -> String {
        let status = self.executor.rpc("a2g/status", &json!({ "intent_id": intent }));
        status["result"]["state"].as_str().unwrap_or("unknown").to_owned()
    }

    /// The report of an intent that has ended.
    fn report(&self, intent: &str) -> Value {
        eventually("it has a report", || {
            let status = self.executor.rpc("a2g/status", &json!({ "intent_id": intent }));
            status["result"].get("report").cloned()
        })
    }

    fn wait_until(&self, intent: &str, state: &str) {
        eventually(&format!("it is {state}"), || (self.state(intent) == state).then_some(()));
    }

    fn cancel(&self, intent: &str) {
        let cancelled = self.executor.rpc("a2g/cancel", &json!({ "intent_id": intent }));
        assert_eq!(result(&cancelled)["cancelled"], true, "{cancelled}");
    }

    /// The sets of changes that wait or can be undone.
    fn sets(&self) -> Vec<Value> {
        let answer = self.executor.rpc("a2g/effects", &json!({}));
        result(&answer)["sets"].as_array().expect("a list").clone()
    }

    /// Everything in the workspace.
    fn files(&self) -> Entries {
        read_entries(&self.executor.workspace())
    }

    /// Replaces everything in the workspace.
    fn set_files(&self, listed: &[(&str, &str)]) {
        let workspace = self.executor.workspace();
        for entry in std::fs::read_dir(&workspace).unwrap() {
            let path = entry.unwrap().path();
            let removed =
                if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
            removed.unwrap();
        }
        write_entries(&workspace, listed);
    }

    /// `true` if the executor's own folder has a file with this content.
    fn keeps(&self, content: &str) -> bool {
        has_content(&effects_folder(self.executor.home()), content.as_bytes())
    }

    /// Waits until the executor keeps nothing of any run.
    fn assert_nothing_is_kept(&self) {
        let folder = effects_folder(self.executor.home());
        eventually("nothing is kept", || {
            let entries = std::fs::read_dir(&folder).into_iter().flatten();
            (entries.count() == 0).then_some(())
        });
    }
}

/// The folder in which the executor keeps changes that are not in force.
fn effects_folder(home: &Home) -> PathBuf {
    home.journal().with_file_name("effects").join("journal.db")
}

fn write_entries(folder: &Path, listed: &[(&str, &str)]) {
    for (path, content) in listed {
        if path.ends_with('/') {
            std::fs::create_dir_all(folder.join(path)).unwrap();
        } else {
            std::fs::write(folder.join(path), content).unwrap();
        }
    }
}

/// All entries below a folder.
fn read_entries(folder: &Path) -> Entries {
    let mut found = Entries::new();
    let mut left = vec![folder.to_owned()];
    while let Some(inner) = left.pop() {
        for entry in std::fs::read_dir(inner).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().to_str().expect("UTF-8").to_owned();
            if path.is_dir() {
                found.insert(format!("{name}/"), String::new());
                left.push(path);
            } else {
                found.insert(name, std::fs::read_to_string(path).unwrap());
            }
        }
    }
    found
}

/// `true` if a file below a folder has this content. Entries may go while they are looked at.
fn has_content(folder: &Path, content: &[u8]) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        if path.is_dir() {
            has_content(&path, content)
        } else {
            std::fs::read(path).is_ok_and(|b| b == content)
        }
    })
}
