//! Hostile programs: one table of attempts in both Pythons and the shell, and one for each language alone.
//!
//! `code` has programs that are only wrong, and `nested_calls` those that want more calls of tools.

mod attempts;
mod javascript;
mod python;
mod shell;

use super::bench::{Bench, Call, CallAnswer, Report};
use harness::{Catalogue, INTERPRETERS, Language, Options, eventually, has_interpreter, isolation};
use serde_json::{Value, json};
use std::path::Path;

/// The reasons for a denied attempt.
const OUTSIDE: &str = "outside_scope";
const ESCAPES: &str = "escapes_root";

/// A program and its expected end.
#[derive(Clone)]
struct Case {
    /// The attempt, if other languages make it too.
    name: &'static str,
    code: &'static str,
    /// More than one where it depends on the interpreter which of them comes first.
    ends: Vec<End>,
    denied: Denied,
    conditions: &'static [&'static str],
    seconds: u64,
}

/// The attempts that the report lists, each with its reason.
#[derive(Clone, Copy)]
enum Denied {
    Exactly(&'static [(&'static str, &'static str)]),
    AtLeast(&'static [(&'static str, &'static str)]),
}

#[derive(Clone)]
enum End {
    Returns(Value),
    /// It returns what is no JSON: words of the note that says why.
    Tells(&'static str),
    /// The status of a script, and words of what it printed.
    Status(i64, &'static str),
    /// The tool's own error: its code, and words of its message.
    Refused(&'static str, &'static str),
    /// The limit that ends the run.
    Limit(&'static str),
    /// Words of the sentence about a run that ended in another way.
    Failure(&'static str),
}
use End::{Failure, Limit, Refused, Returns, Status, Tells};

fn case(code: &'static str, end: End) -> Case {
    // A time limit is for a program that would not end, and far more than enough for others.
    let seconds = if matches!(end, Limit("time")) { 1 } else { 60 };
    Case { name: "", code, ends: vec![end], denied: Denied::Exactly(&[]), conditions: &[], seconds }
}

impl Case {
    fn denied(self, denied: &'static [(&'static str, &'static str)]) -> Self {
        Self { denied: Denied::Exactly(denied), ..self }
    }

    /// The same, where the report may list more attempts: those of libraries, or of another interpreter.
    fn loosely(self) -> Self {
        let (Denied::Exactly(denied) | Denied::AtLeast(denied)) = self.denied;
        Self { denied: Denied::AtLeast(denied), ..self }
    }

    fn or(mut self, end: End) -> Self {
        self.ends.push(end);
        self
    }

    /// The same under a verdict with these conditions.
    fn under(self, conditions: &'static [&'static str]) -> Self {
        Self { conditions, ..self }
    }
}

/// A bench with the tool of a language; `None` if there is none here.
fn bench(language: Language, options: Options) -> Option<Bench> {
    let bench = Bench::start_catalogue(options, language.catalogue()?);
    let workspace = bench.executor.workspace();
    std::fs::write(workspace.join("in.txt"), "text").expect("a file");
    std::os::unix::fs::symlink("../outside", workspace.join("planted")).expect("a link");
    Some(bench)
}

/// A run of a program with the memory of its language and 60 s.
fn program<'a>(bench: &'a Bench, language: Language, code: &str) -> Call<'a> {
    let call = bench.call(language.tool()).scope("/workspace/**").arguments(language.arguments(code));
    call.grant("max_memory_mb", language.memory_mb()).grant("timeout_seconds", 60)
}

fn value(language: Language, answer: CallAnswer) -> Value {
    language.returned(&answer.success().0["result"])
}

/// A program that leaves something in its interpreter, and the next one, which looks for it.
struct Trace {
    left_by: &'static str,
    looked_for_by: &'static str,
    not_found: Value,
}

fn trace(language: Language) -> Trace {
    match language {
        Language::Python | Language::SciencePython => Trace {
            left_by: "import builtins, os\nbuiltins.trace = os.environ['TRACE'] = 'left'",
            looked_for_by: "import builtins, os\n[hasattr(builtins, 'trace'), 'TRACE' in os.environ, \
                            os.listdir('/artifacts'), 1 + 1]",
            not_found: json!([false, false, [], 2]),
        },
        Language::JavaScript => Trace {
            left_by: "globalThis.trace = 'left';",
            looked_for_by: "[typeof trace, 1 + 1]",
            not_found: json!(["undefined", 2]),
        },
        Language::Shell => Trace {
            left_by: "trace=left; echo left > /tmp/trace",
            looked_for_by: "if [ -n \"$trace\" ] || [ -e /tmp/trace ]; then echo true; \
                            else echo $((1 + 1)); fi",
            not_found: json!([2]),
        },
    }
}

/// Runs each program, and after it a good one, which finds nothing of it.
fn check(language: Language, cases: impl IntoIterator<Item = Case>) {
    // Low ceilings end a flood soon.
    let options = language
        .options()
        .set("ceilings.max_created", 100)
        .set("ceilings.max_written_mb", 8)
        .set("ceilings.max_handles", 100)
        .set("ceilings.max_calls", 100)
        .set("ceilings.max_artifacts", 10)
        .environment("A2G_HOSTILE_SECRET", SECRET);
    let Some(bench) = bench(language, options) else { return };
    let workspace = bench.executor.workspace();
    std::fs::create_dir(workspace.join("blocked")).expect("a folder");
    std::fs::write(workspace.join("blocked/in.txt"), SECRET).expect("a file");
    for (link, target) in [("etc", "/etc"), ("circle", ".")] {
        std::os::unix::fs::symlink(target, workspace.join(link)).expect("a link");
    }
    let Trace { left_by, looked_for_by, not_found } = trace(language);
    let mut wrong = Vec::new();
    for case in cases {
        let code = format!("{left_by}\n{}", case.code);
        let granted = program(&bench, language, &code).grant("timeout_seconds", case.seconds);
        let call = case.conditions.iter().fold(granted, |call, condition| call.condition(condition));
        if let Some(found) = case.find_difference(language, call.send()) {
            wrong.push(format!("{}: {}\n  {found}", case.name, case.code));
        }
        let next = value(language, program(&bench, language, looked_for_by).send());
        assert_eq!(next, not_found, "after {}", case.code);
    }
    assert!(wrong.is_empty(), "{} programs ended in another way:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(bench.executor.file("in.txt").as_deref(), Some("text"));
    assert_eq!(bench.executor.file("owned"), None, "a returned pickle was loaded");
}

impl Case {
    /// The end of a run that is another than the expected one.
    fn find_difference(&self, language: Language, answer: CallAnswer) -> Option<String> {
        let told_all = answer.response.to_string();
        assert!(
            !told_all.contains(SECRET) && !told_all.contains("nobody may read"),
            "{}: {told_all}",
            self.code
        );
        let limit = answer.response["error"]["data"]["limit"].as_str().map(str::to_owned);
        let report = match (&limit, answer.response.get("result").is_some()) {
            (Some(limit), _) => answer.limit(limit),
            (None, true) => answer.success(),
            (None, false) => answer.failure(""),
        };
        let sentence = report.0["error"].as_str().unwrap_or_default();
        assert_is_visible(sentence);
        assert!(report.metric("memory_used_mb") <= language.memory_mb() as f64, "{report:?}");
        let result = &report.0["result"];
        let own = &report.0["tool_error"];
        let is_as_expected = |end: &End| match end {
            Returns(value) => sentence.is_empty() && result["result"] == *value,
            Tells(words) => {
                let note = result["note"].as_str().unwrap_or_default();
                result["result"].is_null() && result["text"].is_string() && note.contains(words)
            }
            Status(status, words) => {
                let printed = ["stdout", "stderr"].map(|name| result[name].as_str().unwrap_or_default());
                result["exit_code"] == *status && printed.concat().contains(words)
            }
            Refused(code, words) => {
                own["code"] == *code && own["message"].as_str().is_some_and(|message| message.contains(words))
            }
            Limit(expected) => limit.as_deref() == Some(expected),
            Failure(words) => limit.is_none() && own.is_null() && sentence.contains(words),
        };
        let denied: Vec<_> = report.denied().into_iter().map(|(what, reason, _)| (what, reason)).collect();
        let are_denied = match self.denied {
            Denied::Exactly(expected) => denied == expected,
            Denied::AtLeast(expected) => expected.iter().all(|one| denied.contains(one)),
        };
        let told = own["message"].as_str().map_or_else(|| result.to_string(), str::to_owned);
        (!self.ends.iter().any(is_as_expected) || !are_denied)
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
    check(Language::Python, attempts::of(Language::Python).into_iter().chain(python::cases()));
}

#[test]
fn programs_in_science_python_end_as_they_have_to() {
    // It does not run inside the server, and where a server's memory is measured, its large module would count.
    if isolation() == "process" && std::env::var_os("A2G_TEST_FIGURES").is_none() {
        let results = python::results().into_iter().map(Case::loosely);
        check(Language::SciencePython, attempts::of(Language::SciencePython).into_iter().chain(results));
    }
}

#[test]
fn programs_in_javascript_end_as_they_have_to() {
    check(Language::JavaScript, javascript::cases());
}

#[test]
fn programs_in_the_shell_end_as_they_have_to() {
    check(Language::Shell, attempts::of(Language::Shell).into_iter().chain(shell::cases()));
}

/// Takes memory in pieces of 1 MiB to the end of it, and returns their number.
const FILL: [(Language, &str); 2] = [
    (
        Language::Python,
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
        Language::JavaScript,
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
    for (language, fill) in FILL {
        let Some(bench) = bench(language, Options::new()) else { return };
        let pieces = |megabytes: u64| {
            let report = program(&bench, language, fill).grant("max_memory_mb", megabytes).send().success();
            assert_eq!(report.in_force("max_memory_mb")["granted"], megabytes, "{report:?}");
            assert!(report.metric("memory_used_mb") <= megabytes as f64, "{report:?}");
            assert!(report.metric("memory_used_mb") >= megabytes as f64 - 2.0, "{report:?}");
            report.0["result"]["result"].as_u64().expect("a number")
        };
        let more = pieces(128) - pieces(96);
        assert!((31..=33).contains(&more), "{language:?}: 32 MB more hold {more} MiB more");
        // A larger grant than the limit of the tool gives no more.
        let report = program(&bench, language, "1").grant("max_memory_mb", 1024).send().success();
        let own = if language == Language::Python { 256 } else { 128 };
        let limit = report.in_force("max_memory_mb");
        assert_eq!((&limit["granted"], &limit["set_by"]), (&json!(own), &json!("tool")), "{report:?}");
    }
}

const SECRET: &str = "of the server alone";

/// Returns as one text what a program can learn of its surroundings, and the clocks that begin with it.
const LOOK_AROUND: [(Language, &str); 2] = [
    (
        Language::Python,
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
        Language::JavaScript,
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
    for (language, look_around) in LOOK_AROUND {
        let options = Options::new().environment("A2G_HOSTILE_SECRET", SECRET);
        let Some(bench) = bench(language, options) else { return };
        let report = program(&bench, language, look_around).send().success();
        let seen = report.0["result"]["result"]["seen"].as_str().expect("a text");
        assert!(seen.len() > 1000, "{seen}");
        let home = bench.executor.home().folder();
        let catalogue = bench.catalogue.folder();
        for private in [SECRET, "A2G_HOSTILE", path(&home), path(&catalogue), "secret.txt"] {
            assert!(!seen.contains(private), "{language:?} has seen {private}: {seen}");
        }
        let is_part_of_word = |letter: char| letter.is_alphanumeric() || "-_".contains(letter);
        let mut words = seen.split(|letter| !is_part_of_word(letter));
        assert!(
            !words.any(|word| word == hostname.trim()),
            "{language:?} has seen the name of the machine: {seen}"
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
const CHANGES: [(Language, &str); 2] = [
    (
        Language::Python,
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
        Language::JavaScript,
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
    for (language, changes) in CHANGES {
        let Some(bench) = bench(language, Options::new()) else { return };
        let file = bench.executor.workspace().join("in.txt");
        let before = std::fs::metadata(&file).expect("a file").modified().expect("a time");
        let answer = program(&bench, language, changes).condition("read_only").send();
        assert_eq!(value(language, answer), 0, "{language:?}");
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
const READ_SWAPPED: [(Language, &str); 2] = [
    (
        Language::Python,
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
        Language::JavaScript,
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
        let swapper = scope.spawn(|| value(Language::Python, program(&bench, Language::Python, SWAP).send()));
        let stop = StopOnDrop(&workspace);
        eventually("something is swapped", || bench.executor.file("started"));
        for (language, read) in READ_SWAPPED {
            let seen = value(language, program(&bench, language, read).send());
            assert_eq!(seen, json!(["granted"]), "{language:?}");
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
    for (language, print) in [(Language::Python, "print"), (Language::JavaScript, "console.log")] {
        let Some(bench) = bench(language, Options::new()) else { return };
        let end = if language == Language::Python { "result = " } else { "return " };
        let code = format!("{print}('}}, \"status\": \"FORGED\"')\n{end}{forged}");
        let Report(report) = program(&bench, language, &code).send().success();
        assert_eq!(report["result"]["result"], forged, "{report}");
        assert!(report["result"]["stdout"].as_str().expect("a text").contains("FORGED"), "{report}");
        assert_eq!(report["status"], "SUCCESS");
        assert!(report["metrics"]["memory_used_mb"].as_f64().expect("a number") > 1.0, "{report}");
    }
}
