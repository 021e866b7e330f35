//! The languages' own tests as programs of the interpreters: those of CPython's library, and test262.
//!
//! The lists in `collections/` say which tests run, and which of them do not pass and why. A test that fails and is not
//! listed is an error, and so is a listed one that passes.

mod wasm_tools;

use harness::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Programs at once: other tests run beside these.
const WORKERS: usize = 2;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// An executor with one interpreter and the collection as `/suite`; `None` without either of them.
fn start(tool: &str, collection: &Path) -> Option<Executor> {
    for (what, path) in [(tool, tools().join(tool)), ("the collection", collection.to_owned())] {
        if !path.exists() {
            print_skipped(&format!("{what} is not there: see `cargo xtask setup`"));
            return None;
        }
    }
    let catalogue = Catalogue::empty().copy(tool);
    let options = Options::new().catalogue(&catalogue).mount("/suite", collection);
    Some(Executor::start(options.set("ceilings.timeout_seconds", 300).scope(&["/workspace/**", "/suite/**"])))
}

fn run(client: &mut HttpClient, tool: &str, arguments: Value) -> Value {
    let mut grant = manifest();
    grant["max_memory_mb"] = json!(256);
    grant["timeout_seconds"] = json!(300);
    grant["filesystem_scope"] = json!(["/workspace/**", "/suite/**"]);
    client.rpc("a2g/execute", &approved(intent(tool, arguments), &grant))
}

/// The list of a collection.
struct List {
    /// The modules, or the files and folders.
    runs: Vec<String>,
    /// By the name of a test.
    exceptions: BTreeMap<String, Exception>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Exception {
    /// The test itself says that something is wrong.
    Fails,
    /// It ends the run, so that it runs alone.
    Ends,
    /// It would take too long, and does not run.
    LeftOut,
}

impl List {
    fn read(name: &str) -> Self {
        let list: Value = toml::from_str(&text(&here("collections").join(name))).expect("TOML");
        let texts = |value: &Value| -> Vec<String> {
            let texts = value.as_array().into_iter().flatten();
            texts.map(|text| text.as_str().expect("a text").to_owned()).collect()
        };
        let mut exceptions = BTreeMap::new();
        for group in list["exceptions"].as_array().expect("exceptions") {
            let reason = group["reason"].as_str().expect("a reason");
            let kinds =
                [("fails", Exception::Fails), ("ends", Exception::Ends), ("left_out", Exception::LeftOut)];
            for (kind, exception) in kinds {
                for test in texts(&group[kind]) {
                    let twice = exceptions.insert(test.clone(), exception);
                    assert_eq!(twice, None, "{test} is listed twice, also as `{reason}`");
                }
            }
        }
        Self { runs: texts(&list["runs"]), exceptions }
    }

    fn of_kind(&self, kind: Exception) -> impl Iterator<Item = &str> {
        self.exceptions.iter().filter(move |(_, found)| **found == kind).map(|(test, _)| test.as_str())
    }

    /// Compares the tests that did not pass, each with what went wrong, with the list.
    fn compare(&self, found: &BTreeMap<String, (Exception, String)>) {
        let of_found = |test: &str| found.get(test).map(|(kind, _)| *kind);
        let unexpected: Vec<_> = found
            .iter()
            .filter(|(test, (kind, _))| self.exceptions.get(*test) != Some(kind))
            .map(|(test, (kind, wrong))| format!("{kind:?} {test}: {wrong}"))
            .collect();
        let passed: Vec<_> = self
            .exceptions
            .iter()
            .filter(|(test, kind)| **kind != Exception::LeftOut && of_found(test).is_none())
            .map(|(test, kind)| format!("listed as {kind:?}, and it passes or is not there: {test}"))
            .collect();
        let all = [unexpected, passed].concat();
        assert!(all.is_empty(), "{} tests are not as listed:\n{}", all.len(), all.join("\n"));
    }
}

/// Does this with each item, several at once, each worker with a connection of its own.
fn for_each<T: Sync>(executor: &Executor, items: &[T], act: impl Fn(&mut HttpClient, &T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let mut client = executor.client();
                while let Some(item) = items.get(next.fetch_add(1, Ordering::SeqCst)) {
                    act(&mut client, item);
                }
            });
        }
    });
}

/// The end of a run that its guest did not report; `None` if there is a result, or an error of the tool's own.
fn sudden_end(answer: &Value) -> Option<String> {
    let error = answer.get("error")?;
    let own = &error["data"]["report"]["tool_error"];
    own.is_null().then(|| error["message"].as_str().expect("a message").to_owned())
}

#[test]
fn the_tests_of_pythons_library() {
    let Some(executor) = start("run_python", &collection("python")) else { return };
    let list = List::read("python.toml");
    let code = text(&here("guests/code/library_tests.py"));
    let leave_out: Vec<_> =
        [Exception::Ends, Exception::LeftOut].into_iter().flat_map(|kind| list.of_kind(kind)).collect();
    let modules = list.runs.iter().map(|module| (module.as_str(), None));
    let alone =
        list.of_kind(Exception::Ends).map(|test| (test.split_once('.').expect("a module").0, Some(test)));
    let items: Vec<_> = modules.chain(alone).collect();
    let found = Mutex::new(BTreeMap::new());
    let passed = AtomicUsize::new(0);
    let skipped = AtomicUsize::new(0);
    for_each(&executor, &items, |client, (module, only)| {
        let input = json!({ "module": module, "only": only, "leave_out": leave_out });
        let answer = run(client, "run_python", json!({ "code": code, "input": input }));
        let mut found = found.lock().unwrap();
        if let Some(end) = sudden_end(&answer) {
            found.insert(only.unwrap_or(module).to_owned(), (Exception::Ends, end));
            return;
        }
        let result = &answer["result"]["result"]["result"];
        let Some(wrong) = result["wrong"].as_object() else { panic!("{module}: {answer}") };
        for (test, wrong) in wrong {
            found.insert(test.clone(), (Exception::Fails, wrong.to_string()));
        }
        for (count, name) in [(&passed, "passed"), (&skipped, "skipped")] {
            count.fetch_add(usize::try_from(result[name].as_u64().unwrap()).unwrap(), Ordering::SeqCst);
        }
    });
    let passed = passed.into_inner();
    println!("{passed} tests of Python's library passed, {} skipped themselves", skipped.into_inner());
    list.compare(&found.into_inner().unwrap());
    assert!(passed > 1000, "only {passed} tests passed");
}

/// The tests at a path of the list, a file or a folder with others.
fn files_at(root: &Path, path: &str, into: &mut Vec<String>) {
    let at = root.join(path);
    if at.is_file() {
        return into.push(path.to_owned());
    }
    let entries = std::fs::read_dir(&at).unwrap_or_else(|error| panic!("{}: {error}", at.display()));
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in names {
        let is_test = name.ends_with(".js") && !name.ends_with("_FIXTURE.js");
        if !["shell.js", "browser.js"].contains(&&*name) && (is_test || at.join(&name).is_dir()) {
            files_at(root, &format!("{path}/{name}"), into);
        }
    }
}

/// The functions that tests of a folder use, from all `shell.js` above it.
fn helpers(root: &Path, path: &str) -> String {
    let folders = Path::new(path).ancestors().skip(1).collect::<Vec<_>>();
    let shells = folders.into_iter().rev().map(|folder| root.join(folder).join("shell.js"));
    let texts = shells.filter(|shell| shell.exists()).map(|shell| text(&shell));
    // The host functions that follow are those of the shell of SpiderMonkey.
    texts
        .map(|text| text.split("// file: test262-host.js").next().unwrap_or_default().to_owned() + "\n")
        .collect()
}

/// A test as a program, and the name of the error that it ends with if it is as it should be.
fn program_of(root: &Path, path: &str, prelude: &str) -> (String, Option<String>) {
    let test = text(&root.join(path));
    let first = test.lines().next().unwrap_or_default();
    let flags = first.strip_prefix("// |reftest| ").unwrap_or_default();
    let error = flags.split_whitespace().find_map(|flag| flag.strip_prefix("error:")).map(str::to_owned);
    let code = test.lines().find(|line| !line.is_empty() && !line.starts_with("//")).unwrap_or_default();
    let strict = if code.contains("use strict") { "\"use strict\";\n" } else { "" };
    let wait = if flags.split_whitespace().any(|flag| flag == "async") { "await finished;\n" } else { "" };
    let helpers = helpers(root, path);
    (format!("{strict}{prelude}\n{helpers}{test}\n;{wait}return \"passed\";"), error)
}

/// The difference between the answer to a test and the right one, if there is any.
fn wrong(answer: &Value, error: Option<&str>) -> Option<(Exception, String)> {
    if let Some(end) = sudden_end(answer) {
        return Some((Exception::Ends, end));
    }
    let own = &answer["error"]["data"]["report"]["tool_error"];
    let said = own["message"].as_str().unwrap_or("no error");
    let is_right = match error {
        // This one of the collection's own is not derived from `Error`.
        Some("Test262Error") => said.starts_with("uncaught: Test262Error"),
        Some(error) => own["detail"]["type"] == error,
        None => answer["result"]["result"]["result"] == "passed",
    };
    (!is_right).then(|| (Exception::Fails, said.chars().take(200).collect()))
}

#[test]
fn test262() {
    let folder = collection("javascript");
    let root = folder.join("test262");
    let Some(executor) = start("run_javascript", &folder) else { return };
    let list = List::read("javascript.toml");
    let prelude = text(&here("guests/code/test262.js"));
    let mut files = Vec::new();
    list.runs.iter().for_each(|path| files_at(&root, path, &mut files));
    files.retain(|path| list.exceptions.get(path) != Some(&Exception::LeftOut));
    let found = Mutex::new(BTreeMap::new());
    for_each(&executor, &files, |client, path| {
        let (code, error) = program_of(&root, path, &prelude);
        let answer = run(client, "run_javascript", json!({ "code": code }));
        if let Some(wrong) = wrong(&answer, error.as_deref()) {
            found.lock().unwrap().insert(path.clone(), wrong);
        }
    });
    let found = found.into_inner().unwrap();
    println!("{} of {} tests of test262 passed", files.len() - found.len(), files.len());
    list.compare(&found);
    assert!(files.len() > 500, "only {} tests", files.len());
}
