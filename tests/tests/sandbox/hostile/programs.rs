//! Hostile programs in the interpreters, with a table for each language.
//!
//! `code` has programs that are only wrong, and `nested_calls::programs` those that want more calls of tools.

mod javascript;
mod python;

use super::bench::{Bench, Call, CallAnswer, Report};
use harness::{Catalogue, INTERPRETERS, Options, eventually, has_interpreter};
use serde_json::{Value, json};
use std::path::Path;

/// The reasons for a denied attempt.
const OUTSIDE: &str = "outside_scope";
const ESCAPES: &str = "escapes_root";

/// A program and its expected end.
struct Case {
    code: &'static str,
    end: End,
    /// The attempts that the report lists, each with its reason.
    denied: &'static [(&'static str, &'static str)],
    seconds: u64,
}

enum End {
    Returns(Value),
    /// It returns what is no JSON: words of the note that says why.
    Tells(&'static str),
    /// The tool's own error: its code, and words of its message.
    Refused(&'static str, &'static str),
    /// The limit that ends the run.
    Limit(&'static str),
    /// Words of the sentence about a run that ended in another way.
    Failure(&'static str),
}
use End::{Failure, Limit, Refused, Returns, Tells};

fn case(code: &'static str, end: End) -> Case {
    // A time limit is for a program that would not end, and far more than enough for others.
    let seconds = if matches!(end, Limit("time")) { 1 } else { 60 };
    Case { code, end, denied: &[], seconds }
}

impl Case {
    fn denied(self, denied: &'static [(&'static str, &'static str)]) -> Self {
        Self { denied, ..self }
    }
}

/// A bench with an interpreter; `None` if it could not be built here.
fn bench(tool: &str, options: Options) -> Option<Bench> {
    if !has_interpreter(tool) {
        return None;
    }
    let bench = Bench::start_catalogue(options, Catalogue::empty().copy(tool));
    let workspace = bench.executor.workspace();
    std::fs::write(workspace.join("in.txt"), "text").expect("a file");
    std::os::unix::fs::symlink("../outside", workspace.join("planted")).expect("a link");
    Some(bench)
}

/// A run of a program with 128 MB and 60 s.
fn program<'a>(bench: &'a Bench, tool: &str, code: &str) -> Call<'a> {
    let call = bench.call(tool).scope("/workspace/**").arguments(json!({ "code": code }));
    call.grant("max_memory_mb", 128).grant("timeout_seconds", 60)
}

fn value(answer: CallAnswer) -> Value {
    answer.success().0["result"]["result"].clone()
}

/// Runs each program, and after it a good one.
fn check(tool: &str, cases: [Vec<Case>; 6]) {
    // Low ceilings end a flood soon.
    let options = Options::new().set("ceilings.max_created", 100).set("ceilings.max_written_mb", 8);
    let options = options.set("ceilings.max_handles", 100).set("ceilings.max_calls", 100);
    let Some(bench) = bench(tool, options) else { return };
    let mut wrong = Vec::new();
    for case in cases.into_iter().flatten() {
        let answer = program(&bench, tool, case.code).grant("timeout_seconds", case.seconds).send();
        if let Some(found) = case.find_difference(answer) {
            wrong.push(format!("{}\n  {found}", case.code));
        }
        assert_eq!(value(program(&bench, tool, "1 + 1").send()), 2, "after {}", case.code);
    }
    assert!(wrong.is_empty(), "{} programs ended in another way:\n{}", wrong.len(), wrong.join("\n"));
    let kept = std::fs::read_to_string(bench.executor.workspace().join("in.txt"));
    assert_eq!(kept.expect("the file is there"), "text");
}

impl Case {
    /// The end of a run that is another than the expected one.
    fn find_difference(&self, answer: CallAnswer) -> Option<String> {
        let limit = answer.response["error"]["data"]["limit"].as_str().map(str::to_owned);
        let report = match (&limit, answer.response.get("result").is_some()) {
            (Some(limit), _) => answer.limit(limit),
            (None, true) => answer.success(),
            (None, false) => answer.failure(""),
        };
        let sentence = report.0["error"].as_str().unwrap_or_default();
        assert_is_visible(sentence);
        assert!(report.metric("memory_used_mb") <= 128.0, "{report:?}");
        let result = &report.0["result"]["result"];
        let own = &report.0["tool_error"];
        let is_as_expected = match &self.end {
            Returns(value) => sentence.is_empty() && result == value,
            Tells(words) => {
                let note = report.0["result"]["note"].as_str().unwrap_or_default();
                result.is_null() && report.0["result"]["text"].is_string() && note.contains(words)
            }
            Refused(code, words) => {
                own["code"] == *code && own["message"].as_str().is_some_and(|message| message.contains(words))
            }
            Limit(expected) => limit.as_deref() == Some(expected),
            Failure(words) => limit.is_none() && own.is_null() && sentence.contains(words),
        };
        let denied: Vec<_> = report.denied().into_iter().map(|(what, reason, _)| (what, reason)).collect();
        let told = own["message"].as_str().map_or_else(|| result.to_string(), str::to_owned);
        (!is_as_expected || denied != self.denied)
            .then(|| format!("{limit:?} {sentence:.150?} {told:.150?} {denied:?}"))
    }
}

/// Shows that a sentence can neither control a terminal nor hide or turn a part of itself.
fn assert_is_visible(sentence: &str) {
    let is_hidden = |letter: char| {
        letter.is_control() || "\u{200b}\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{feff}".contains(letter)
    };
    assert!(!sentence.chars().any(|letter| letter != '\n' && is_hidden(letter)), "{sentence:?}");
}

#[test]
fn programs_in_python_end_as_they_have_to() {
    check("run_python", python::cases());
}

#[test]
fn programs_in_javascript_end_as_they_have_to() {
    check("run_javascript", javascript::cases());
}

/// Takes memory in pieces of 1 MiB to the end of it, and returns their number.
const FILL: [(&str, &str); 2] = [
    (
        "run_python",
        r#"
x = []
try:
    while True: x.append(bytearray(1 << 20))
except MemoryError:
    n = len(x)
    x.clear()
n
"#,
    ),
    (
        "run_javascript",
        r#"
const x = [];
let n;
try {
  while (true) x.push(new Uint8Array(1 << 20).fill(1));
} catch {
  n = x.length;
  x.length = 0;
}
return n;
"#,
    ),
];

#[test]
fn the_memory_of_a_program_is_exactly_what_was_granted() {
    for (tool, fill) in FILL {
        let Some(bench) = bench(tool, Options::new()) else { return };
        let pieces = |megabytes: u64| {
            let report = program(&bench, tool, fill).grant("max_memory_mb", megabytes).send().success();
            assert_eq!(report.in_force("max_memory_mb")["granted"], megabytes, "{report:?}");
            assert!(report.metric("memory_used_mb") <= megabytes as f64, "{report:?}");
            assert!(report.metric("memory_used_mb") >= megabytes as f64 - 2.0, "{report:?}");
            report.0["result"]["result"].as_u64().expect("a number")
        };
        let more = pieces(128) - pieces(96);
        assert!((31..=33).contains(&more), "{tool}: 32 MB more hold {more} MiB more");
        // A larger grant than the limit of the tool gives no more.
        let report = program(&bench, tool, "1").grant("max_memory_mb", 1024).send().success();
        let own = if tool == "run_python" { 256 } else { 128 };
        let limit = report.in_force("max_memory_mb");
        assert_eq!((&limit["granted"], &limit["set_by"]), (&json!(own), &json!("tool")), "{report:?}");
    }
}

const SECRET: &str = "of the server alone";

/// Returns as one text what a program can learn of its surroundings, and the clocks that begin with it.
const LOOK_AROUND: [(&str, &str); 2] = [
    (
        "run_python",
        r#"
import getpass, locale, os, platform, socket, sys, sysconfig, time
def attempt(act, *values):
    try:
        return act(*values)
    except BaseException as error:
        return error
names = ("getpid", "getppid", "uname", "getcwd", "getlogin", "cpu_count", "getloadavg", "times")
seen = [
    dict(os.environ), sys.argv, sys.orig_argv, sys.path, sys.prefix, sys.executable, sys.flags, platform.uname(),
    platform.node(), socket.gethostname(), sysconfig.get_config_vars(), time.tzname, locale.getlocale(),
    [attempt(getattr(os, name)) for name in names if hasattr(os, name)], attempt(getpass.getuser),
    attempt(os.path.expanduser, "~"), [attempt(os.fstat, fd) for fd in range(20)], attempt(os.listdir, "/"),
    [getattr(module, "__file__", None) for module in sys.modules.values()],
]
result = {"seen": repr(seen), "clocks": [time.monotonic(), time.perf_counter()]}
"#,
    ),
    (
        "run_javascript",
        r#"
const seen = [];
for (const name of Object.getOwnPropertyNames(globalThis)) {
  try {
    const value = globalThis[name];
    seen.push(name, String(value));
    for (const own of Object.getOwnPropertyNames(value)) seen.push(own, String(value[own]));
  } catch (error) {
    seen.push(String(error), error.stack);
  }
}
return { seen: seen.join(" "), clocks: [performance.now() / 1000, performance.timeOrigin / 1000] };
"#,
    ),
];

#[test]
fn a_program_learns_nothing_of_the_machine() {
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    for (tool, look_around) in LOOK_AROUND {
        let options = Options::new().environment("A2G_HOSTILE_SECRET", SECRET);
        let Some(bench) = bench(tool, options) else { return };
        let report = program(&bench, tool, look_around).send().success();
        let seen = report.0["result"]["result"]["seen"].as_str().expect("a text");
        assert!(seen.len() > 1000, "{seen}");
        let home = bench.executor.home().folder();
        let catalogue = bench.catalogue.folder();
        for private in [SECRET, "A2G_HOSTILE", path(&home), path(&catalogue), "secret.txt"] {
            assert!(!seen.contains(private), "{tool} has seen {private}: {seen}");
        }
        let is_part_of_word = |letter: char| letter.is_alphanumeric() || "-_".contains(letter);
        let mut words = seen.split(|letter| !is_part_of_word(letter));
        assert!(
            !words.any(|word| word == hostname.trim()),
            "{tool} has seen the name of the machine: {seen}"
        );
        // A clock that began with the machine would tell one machine from another.
        let clocks = report.0["result"]["result"]["clocks"].as_array().expect("clocks");
        assert!(clocks.iter().all(|clock| clock.as_f64().expect("seconds") < 60.0), "{clocks:?}");
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Attempts that change a file or folder, and the number of those that were not refused.
const CHANGES: [(&str, &str); 2] = [
    (
        "run_python",
        r#"
import os, shutil
file, n = "/workspace/in.txt", 0
for act in (
    lambda: open(file, "w"), lambda: open(file, "a"), lambda: open(file, "r+"), lambda: open("/workspace/new", "x"),
    lambda: os.mkdir("/workspace/d"), lambda: os.remove(file), lambda: os.rename(file, "/workspace/out.txt"),
    lambda: os.truncate(file, 0), lambda: os.utime(file, (0, 0)), lambda: shutil.copy(file, "/workspace/copy"),
):
    try:
        act()
        n += 1
    except OSError:
        pass
n
"#,
    ),
    (
        "run_javascript",
        r#"
const { getDirectories } = await import("wasi:filesystem/preopens@0.2.10");
const [folder] = getDirectories().find(([, name]) => name === "/workspace");
let n = 0;
for (const act of [
  () => fs.write("/workspace/in.txt", ""),
  () => fs.write("/workspace/new", ""),
  () => folder.createDirectoryAt("d"),
  () => folder.unlinkFileAt("in.txt"),
  () => folder.renameAt("in.txt", folder, "out.txt"),
  () => folder.setTimesAt({}, "in.txt", { tag: "now" }, { tag: "now" }),
  () => folder.openAt({}, "in.txt", {}, { read: true, write: true }),
]) {
  try {
    act();
    n++;
  } catch {}
}
return n;
"#,
    ),
];

#[test]
fn a_program_changes_nothing_that_it_may_only_read() {
    for (tool, changes) in CHANGES {
        let Some(bench) = bench(tool, Options::new()) else { return };
        let file = bench.executor.workspace().join("in.txt");
        let before = std::fs::metadata(&file).expect("a file").modified().expect("a time");
        let answer = program(&bench, tool, changes).condition("read_only").send();
        assert_eq!(value(answer), 0, "{tool}");
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), "text");
        assert_eq!(std::fs::metadata(&file).expect("a file").modified().expect("a time"), before);
        assert_eq!(std::fs::read_dir(bench.executor.workspace()).expect("a folder").count(), 2);
    }
}

/// Gives one name to a folder and to a link that leads out, by turns, until there is a file `stop`.
const SWAP: &str = r#"
import os
n = 0
open("/workspace/started", "w").close()
while not os.path.exists("/workspace/stop"):
    for one in ("real", "planted"):
        try:
            os.rename(f"/workspace/{one}", "/workspace/name")
            os.rename("/workspace/name", f"/workspace/{one}")
            n += 1
        except OSError:
            pass
n
"#;

/// Reads through the name for 2 s, and returns what was there.
const READ_SWAPPED: [(&str, &str); 2] = [
    (
        "run_python",
        r#"
import time
seen, start = set(), time.monotonic()
while time.monotonic() < start + 2:
    try:
        seen.add(open("/workspace/name/secret.txt").read())
    except OSError:
        pass
sorted(seen)
"#,
    ),
    (
        "run_javascript",
        r#"
const seen = new Set();
const start = performance.now();
while (performance.now() < start + 2000) {
  try {
    seen.add(fs.read("/workspace/name/secret.txt"));
  } catch (error) {
    if (!error.code) throw error;
  }
}
return [...seen];
"#,
    ),
];

#[test]
fn a_name_that_is_swapped_while_it_is_read_leads_nowhere_else() {
    if !INTERPRETERS.into_iter().all(has_interpreter) {
        return;
    }
    let catalogue = Catalogue::empty().copy("run_python").copy("run_javascript");
    let bench = Bench::start_catalogue(Options::new(), catalogue);
    let workspace = bench.executor.workspace();
    std::fs::create_dir(workspace.join("real")).expect("a folder");
    std::fs::write(workspace.join("real/secret.txt"), "granted").expect("a file");
    std::os::unix::fs::symlink("../outside", workspace.join("planted")).expect("a link");
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| value(program(&bench, "run_python", SWAP).send()));
        let stop = StopOnDrop(&workspace);
        eventually("something is swapped", || bench.executor.file("started"));
        for (tool, read) in READ_SWAPPED {
            let seen = value(program(&bench, tool, read).send());
            assert_eq!(seen, json!(["granted"]), "{tool}");
        }
        assert!(!swapper.is_finished(), "nothing was swapped while it was read");
        drop(stop);
        assert!(swapper.join().expect("it ends").as_u64().expect("a number") > 100);
    });
}

/// Lets the program that swaps end, however a test ends.
struct StopOnDrop<'a>(&'a Path);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        std::fs::write(self.0.join("stop"), "").expect("a file");
    }
}

#[test]
fn a_report_that_a_program_prints_or_returns_is_only_its_result() {
    let forged = json!({ "status": "FORGED", "metrics": { "duration_ms": 0 }, "calls": { "list": [] } });
    for (tool, print) in [("run_python", "print"), ("run_javascript", "console.log")] {
        let Some(bench) = bench(tool, Options::new()) else { return };
        let end = if tool == "run_python" { "result = " } else { "return " };
        let code = format!("{print}('}}, \"status\": \"FORGED\"')\n{end}{forged}");
        let Report(report) = program(&bench, tool, &code).send().success();
        assert_eq!(report["result"]["result"], forged, "{report}");
        assert!(report["result"]["stdout"].as_str().expect("a text").contains("FORGED"), "{report}");
        assert_eq!(report["status"], "SUCCESS");
        assert!(report["metrics"]["memory_used_mb"].as_f64().expect("a number") > 1.0, "{report}");
    }
}
