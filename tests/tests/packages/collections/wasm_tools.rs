//! The components and modules of wasm-tools' own tests, each added to a catalogue as a command.
//!
//! A valid one without imports is put into a component that instantiates it and is a command, and runs once. All
//! others are added as they are. The list in `collections/` says which sentences refuse how many of them, and where the
//! executor does not agree with wasm-tools. A case that differs from the list fails the test.

use harness::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use wasmparser::Payload;
use wast::lexer::Lexer;
use wast::parser::{self, ParseBuffer};
use wast::{QuoteWat, Wast, WastDirective, WastExecute};

/// Cases in one catalogue. Few enough that they are compiled within the time limit of the harness on a busy machine.
const MAX_BATCH: usize = 200;
const PREAMBLE_BYTES: usize = 8;
/// The size of a section with an empty module or component: its identifier, its length, and a preamble.
const EMPTY_SECTION_BYTES: usize = 2 + PREAMBLE_BYTES;
/// The beginning of each refusal by the validator. A valid module can be refused for its contract, or by the pool.
const NOT_COMPILED: &str = "the module cannot be compiled: ";
/// Parts of sentences about the compiler's process, which say nothing about the module.
const DEFECTS: [&str; 3] = ["internal error", "killed by signal", "compiling the module took"];

/// A component or module of a test.
struct Case {
    /// Its file and line.
    place: String,
    /// `false` if the test says that it must be refused.
    is_valid: bool,
    wasm: Vec<u8>,
}

impl Case {
    fn is_component(&self) -> bool {
        self.wasm.starts_with(b"\0asm\x0d\0\x01\0")
    }

    fn has_imports(&self) -> bool {
        let mut depth = 0;
        for payload in wasmparser::Parser::new(0).parse_all(&self.wasm) {
            match payload {
                Ok(Payload::ModuleSection { .. } | Payload::ComponentSection { .. }) => depth += 1,
                Ok(Payload::End(_)) => depth -= 1,
                Ok(Payload::ImportSection(_) | Payload::ComponentImportSection(_)) if depth == 0 => {
                    return true;
                }
                Ok(_) => {}
                // The parser's version here does not know all that wasm-tools does.
                Err(_) => return true,
            }
        }
        false
    }

    /// The tool that is added.
    fn tool(&self, name: &str) -> Tool {
        let fits = self.is_valid && !self.has_imports();
        Tool::command_bytes(name, if fits { command_around(self) } else { self.wasm.clone() })
    }
}

/// A component that instantiates a case without imports, and does nothing when it runs.
fn command_around(case: &Case) -> Vec<u8> {
    // The case takes the place of the empty section.
    let instance = if case.is_component() {
        "(component) (instance (instantiate 0))"
    } else {
        "(core module) (core instance (instantiate 0))"
    };
    let around = format!(
        r#"(component {instance}
          (core module $m (func (export "run") (result i32) (i32.const 0)))
          (core instance $i (instantiate $m))
          (func $run (result (result)) (canon lift (core func $i "run")))
          (instance $exported (export "run" (func $run)))
          (export "wasi:cli/run@0.2.0" (instance $exported)))"#
    );
    let around = wat::parse_str(around).expect("WAT");
    let (preamble, sections) = around.split_at(PREAMBLE_BYTES);
    let length = leb128(case.wasm.len());
    [preamble, &sections[..1], &length, &case.wasm, &sections[EMPTY_SECTION_BYTES..]].concat()
}

/// Encodes the length of a section.
fn leb128(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(number & 0x7f).expect("seven bits");
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// All test files below a folder, in order.
fn files_below(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            files_below(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "wast") {
            into.push(path);
        }
    }
}

/// The cases of a file.
fn cases_of(path: &str, text: &str) -> Vec<Case> {
    let mut lexer = Lexer::new(text);
    lexer.allow_confusing_unicode(true);
    let buffer = ParseBuffer::new_with_lexer(lexer).unwrap_or_else(|error| panic!("{path}: {error}"));
    let wast: Wast = parser::parse(&buffer).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut cases = Vec::new();
    wast.directives.into_iter().for_each(|directive| add_cases(path, text, directive, &mut cases));
    cases
}

fn add_cases(path: &str, text: &str, directive: WastDirective<'_>, into: &mut Vec<Case>) {
    let place = format!("{path}:{}", directive.span().linecol_in(text).0 + 1);
    let (is_valid, mut module) = match directive {
        WastDirective::Module(module) | WastDirective::ModuleDefinition(module) => (true, module),
        WastDirective::AssertUnlinkable { module, .. }
        | WastDirective::AssertTrap { exec: WastExecute::Wat(module), .. } => (true, QuoteWat::Wat(module)),
        WastDirective::AssertInvalid { module, .. } | WastDirective::AssertMalformed { module, .. } => {
            (false, module)
        }
        WastDirective::Thread(thread) => {
            return thread.directives.into_iter().for_each(|inner| add_cases(path, text, inner, into));
        }
        // The others call what these define, or are about custom sections, which the executor does not read.
        WastDirective::ModuleInstance { .. }
        | WastDirective::Register { .. }
        | WastDirective::Invoke(_)
        | WastDirective::AssertReturn { .. }
        | WastDirective::AssertTrap { .. }
        | WastDirective::AssertException { .. }
        | WastDirective::AssertExhaustion { .. }
        | WastDirective::AssertSuspension { .. }
        | WastDirective::AssertInvalidCustom { .. }
        | WastDirective::AssertMalformedCustom { .. }
        | WastDirective::Wait { .. } => return,
    };
    match module.encode() {
        Ok(wasm) => into.push(Case { place, is_valid, wasm }),
        // The text format must be refused here, and the executor reads only binaries.
        Err(error) => assert!(!is_valid, "{place}: {error}"),
    }
}

/// The list of the collection.
struct List {
    left_out: Vec<String>,
    /// The numbers of cases by what becomes of them.
    figures: BTreeMap<String, u64>,
    /// The kinds of refusals, each with parts of its sentences. The first one that fits is the kind of a sentence.
    kinds: Vec<(String, Vec<String>)>,
    /// By the place of a case.
    exceptions: BTreeMap<String, Exception>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Exception {
    /// wasm-tools refuses it, and the executor's compiler does not.
    Accepts,
    /// wasm-tools accepts it, and the executor says that it is not valid.
    Refuses,
    /// The process that compiles it panics.
    Panics,
}

impl List {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("collections/wasm-tools.toml");
        let list: Value = toml::from_str(&std::fs::read_to_string(path).unwrap()).expect("TOML");
        let texts = |value: &Value| -> Vec<String> {
            let texts = value.as_array().into_iter().flatten();
            texts.map(|text| text.as_str().expect("a text").to_owned()).collect()
        };
        let figures = list["figures"].as_object().expect("figures").iter();
        let mut figures: BTreeMap<_, _> =
            figures.map(|(name, count)| (name.clone(), count.as_u64().expect("a number"))).collect();
        let mut kinds = Vec::new();
        for refusal in list["refusals"].as_array().expect("refusals") {
            let kind = refusal["kind"].as_str().expect("a kind");
            for validity in ["valid", "invalid"] {
                if let Some(count) = refusal[validity].as_u64() {
                    figures.insert(figure_name(kind, validity == "valid"), count);
                }
            }
            kinds.push((kind.to_owned(), texts(&refusal["says"])));
        }
        let mut exceptions = BTreeMap::new();
        for group in list["exceptions"].as_array().expect("exceptions") {
            let reason = group["reason"].as_str().expect("a reason");
            let fields = [
                ("accepts", Exception::Accepts),
                ("refuses", Exception::Refuses),
                ("panics", Exception::Panics),
            ];
            for (field, exception) in fields {
                for place in texts(&group[field]) {
                    let twice = exceptions.insert(place.clone(), exception);
                    assert_eq!(twice, None, "{place} is listed twice, also as `{reason}`");
                }
            }
        }
        Self { left_out: texts(&list["left_out"]), figures, kinds, exceptions }
    }

    /// The kind of a refusal.
    fn kind_of(&self, sentence: &str) -> Option<&str> {
        let is_said = |says: &[String]| says.iter().any(|part| sentence.contains(part.as_str()));
        let kind = self.kinds.iter().find(|(_, says)| is_said(says));
        kind.map(|(kind, _)| kind.as_str())
    }
}

fn figure_name(kind: &str, is_valid: bool) -> String {
    format!("{kind}, {}", if is_valid { "valid" } else { "invalid" })
}

/// The results of all cases.
#[derive(Default)]
struct Findings {
    figures: BTreeMap<String, u64>,
    exceptions: BTreeMap<String, (Exception, String)>,
    /// Differences that no case may have.
    differences: Vec<String>,
}

impl Findings {
    fn count(&mut self, figure: &str) {
        *self.figures.entry(figure.to_owned()).or_default() += 1;
    }

    /// Records that a case was refused, or accepted.
    fn record(&mut self, case: &Case, list: &List, refusal: Option<&str>) {
        let place = &case.place;
        let mut except = |exception, sentence: &str| {
            let twice = self.exceptions.insert(place.clone(), (exception, sentence.to_owned()));
            assert!(twice.is_none(), "two cases at {place}");
        };
        let Some(sentence) = refusal else {
            if !case.is_valid {
                except(Exception::Accepts, "it is accepted");
            }
            return self.count(if case.is_component() { "components that run" } else { "modules that run" });
        };
        if sentence.contains("the compiler has a bug") {
            return except(Exception::Panics, sentence);
        }
        let is_defect = DEFECTS.iter().any(|part| sentence.contains(part));
        let Some(kind) = list.kind_of(sentence).filter(|_| !is_defect) else {
            return self.differences.push(format!("a sentence of no kind, {place}: {sentence}"));
        };
        if case.is_valid && kind == "invalid" {
            return except(Exception::Refuses, sentence);
        }
        if !case.is_valid && !sentence.starts_with(NOT_COMPILED) {
            return except(Exception::Accepts, sentence);
        }
        if kind == "pool" && numbers_in(sentence) < 2 {
            self.differences.push(format!("a refusal without both numbers, {place}: {sentence}"));
        }
        self.count(&figure_name(kind, case.is_valid));
    }

    /// Compares everything with the list.
    fn compare(mut self, list: &List) {
        for (place, (exception, sentence)) in &self.exceptions {
            if list.exceptions.get(place) != Some(exception) {
                self.differences.push(format!("not listed as {exception:?}, {place}: {sentence}"));
            }
        }
        for (place, exception) in &list.exceptions {
            if !self.exceptions.contains_key(place) {
                self.differences
                    .push(format!("listed as {exception:?}, and as it should be or not there: {place}"));
            }
        }
        let names = list.figures.keys().chain(self.figures.keys()).collect::<BTreeSet<_>>();
        for name in names {
            let [listed, found] = [&list.figures, &self.figures].map(|all| all.get(name).unwrap_or(&0));
            if listed != found {
                self.differences.push(format!("{found} instead of {listed}: {name}"));
            }
        }
        assert!(
            self.differences.is_empty(),
            "{} differences:\n{}",
            self.differences.len(),
            self.differences.join("\n")
        );
    }
}

fn numbers_in(sentence: &str) -> usize {
    let words = sentence.split(|character: char| !character.is_ascii_alphanumeric());
    words.filter(|word| word.parse::<u64>().is_ok()).count()
}

/// Adds some cases to a catalogue of their own, and runs those that are accepted.
fn try_batch(batch: &[Case], list: &List, findings: &mut Findings) {
    let named: BTreeMap<_, _> =
        batch.iter().enumerate().map(|(index, case)| (format!("case-{index}"), case)).collect();
    let catalogue =
        named.iter().fold(Catalogue::empty(), |catalogue, (name, case)| catalogue.add(case.tool(name)));
    let cache = tempfile::tempdir().expect("a temp folder");
    let home = Home::new(Options::new().catalogue(&catalogue).set("catalog.cache", json!(cache.path())));
    let listed = home.run(&["tool", "list", "--json"]);
    let stderr = String::from_utf8_lossy(&listed.stderr);
    // The log quotes the panic of a compiler process.
    let has_panicked = stderr.lines().any(|line| line.starts_with("thread "));
    assert!(listed.status.success() && !has_panicked, "{stderr}");
    let tools: Vec<Value> = serde_json::from_slice(&listed.stdout).expect("JSON");
    let refusals: BTreeMap<_, _> =
        tools.iter().map(|tool| (tool["name"].as_str().expect("a name"), tool["error"].as_str())).collect();
    for (name, case) in &named {
        findings.record(case, list, refusals[name.as_str()]);
        if refusals[name.as_str()].is_some() {
            // The server would compile it once more.
            std::fs::remove_dir_all(catalogue.folder().join(name)).expect("its folder");
        }
    }
    let executor = Executor::start_in(home);
    let mut client = executor.client();
    for (name, case) in named.iter().filter(|(name, _)| refusals[name.as_str()].is_none()) {
        let answer = client.rpc("a2g/execute", &execute(name, json!({})));
        if answer.get("result").is_none() {
            findings.differences.push(format!("no result, {}: {answer}", case.place));
        }
    }
    assert!(!executor.stderr().contains("panicked"), "{}", executor.stderr());
}

#[test]
fn each_case_of_wasm_tools_runs_or_is_refused_as_listed() {
    let folder = collection("wasm-tools");
    if !folder.exists() {
        return print_skipped("the collection is not there: see `cargo xtask setup`");
    }
    let root = folder.join("tests");
    let list = List::read();
    let mut files = Vec::new();
    files_below(&root, &mut files);
    let mut cases = Vec::new();
    let mut seen = HashSet::new();
    let mut findings = Findings::default();
    for file in files {
        let path = file.strip_prefix(&root).unwrap().to_str().expect("UTF-8");
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
        // A file of comments names a test of the specification, which is not in the crate.
        let is_reference = text.lines().all(|line| line.is_empty() || line.starts_with(";;"));
        if is_reference || list.left_out.iter().any(|left_out| left_out == path) {
            findings.count("files without cases");
            continue;
        }
        findings.count("files");
        cases.extend(
            cases_of(path, &text).into_iter().filter(|case| seen.insert((case.wasm.clone(), case.is_valid))),
        );
    }
    for case in &cases {
        let kind = if case.is_component() { "components" } else { "modules" };
        findings.count(&figure_name(kind, case.is_valid));
    }
    cases.chunks(MAX_BATCH).for_each(|batch| try_batch(batch, &list, &mut findings));
    findings.figures.iter().for_each(|(name, count)| println!("{count} {name}"));
    findings.compare(&list);
}
