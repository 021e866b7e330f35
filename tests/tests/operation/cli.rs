//! The command line: its words, its exit codes, and what it prints where.

use harness::guests::component;
use harness::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Output;
use tempfile::TempDir;

/// A folder with a configuration for the small tools of the repository, in which commands run.
pub(super) struct CommandFolder {
    folder: TempDir,
    config: String,
}

impl CommandFolder {
    pub(super) fn new() -> Self {
        Self::with(&small_tools())
    }

    pub(super) fn with(catalogue: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("workspace")).unwrap();
        let config = json!({
            "catalog": { "tools": catalogue, "cache": cache() },
            "ceilings": { "filesystem_scope": ["/workspace/**"] },
            "mount": [{ "guest": "/workspace", "host": "workspace" }],
        });
        let place = Self { folder, config: toml::to_string(&config).unwrap() };
        place.configure("");
        place
    }

    fn run(&self, arguments: &[&str]) -> CommandResult {
        self.run_with(arguments, b"")
    }

    fn run_with(&self, arguments: &[&str], input: &[u8]) -> CommandResult {
        CommandResult::of(arguments, run_in(self.folder.path(), arguments.iter().copied(), input))
    }

    /// Runs a command in words without blanks, which has to end with this code, and to say each of these texts.
    pub(super) fn expect(&self, line: &str, code: i32, texts: &[&str]) -> CommandResult {
        let words = line.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>();
        self.run(&words).expect(code, texts)
    }

    /// Writes the configuration, and more of it.
    pub(super) fn configure(&self, more: &str) {
        self.put("executor.toml", format!("{}\n{more}\n", self.config));
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    fn module(&self, name: &str, wat: &str) {
        self.put(name, wat::parse_str(wat).unwrap());
    }
}

/// A command that has ended.
pub(super) struct CommandResult {
    what: String,
    code: i32,
    pub(super) stdout: String,
    stderr: String,
}

impl CommandResult {
    fn of(arguments: &[&str], output: Output) -> Self {
        let done = Self {
            what: arguments.join(" "),
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        };
        let escapes = done.stdout.contains('\u{1b}') || done.stderr.contains('\u{1b}');
        assert!(!escapes, "`{}` writes escape codes into a pipe", done.what);
        done
    }

    fn expect_exit(self, code: i32) -> Self {
        assert_eq!(self.code, code, "`{}`\n{}\n{}", self.what, self.stdout, self.stderr);
        self
    }

    fn expect(self, code: i32, texts: &[&str]) -> Self {
        texts.iter().fold(self.expect_exit(code), |done, text| done.expect_text(text))
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }

    fn expect_text(self, words: &str) -> Self {
        let stdout = &self.stdout;
        let stderr = &self.stderr;
        assert!(
            stdout.contains(words) || stderr.contains(words),
            "`{}` does not say `{words}`:\n{stdout}\n{stderr}",
            self.what
        );
        self
    }
}

#[test]
fn the_help_of_each_command_has_examples() {
    let place = CommandFolder::new();
    let commands = [
        "",
        "serve",
        "run",
        "tool",
        "tool list",
        "tool inspect",
        "tool add",
        "tool prepare",
        "tool new",
        "tool build",
        "tool check",
        "tool test",
        "tool dev",
        "tool allow",
        "governor",
        "config",
        "config check",
        "effects",
        "effects list",
        "effects show",
        "effects commit",
        "effects discard",
        "effects undo",
        "policy",
        "policy schema",
        "policy check",
        "policy convert",
        "policy test",
        "policy replay",
        "policy diff",
        "policy suggest",
        "doctor",
        "completions",
        "man",
    ];
    let mut without = Vec::new();
    for command in commands {
        let done = place.expect(&format!("{command} --help"), 0, &[]);
        assert!(done.stderr.is_empty() && done.stdout.contains("Usage:"), "{}", done.what);
        if !(done.stdout.contains("Example") && done.stdout.contains("  a2g-executor ")) {
            without.push(done.what);
        }
    }
    assert!(without.is_empty(), "no examples in {without:?}");
    place.expect("--version", 0, &["a2g-executor 0."]);
}

#[test]
fn an_invalid_command_line_exits_with_2() {
    let place = CommandFolder::new();
    place.module("m.wasm", "(module)");
    for line in [
        "",
        "fly",
        "serve --no-such-option",
        "serve --listen nowhere",
        "serve --governor ftp://x",
        "serve --governor http://127.0.0.1:1 --policies .",
        "run",
        "run list_directory --arguments {",
        "run list_directory --arguments []",
        r#"run list_directory --arguments {"path":"/a","path":"/b"}"#,
        "run list_directory --max-memory-mb 0",
        "run list_directory --max-memory-mb -1",
        "run list_directory --timeout-seconds 5.0",
        "run list_directory --mount .:/data",
        "run list_directory --agent me",
        "effects",
        "effects show",
        "effects show 550e",
        "effects commit 550e8400-e29b-41d4-a716-446655440000 --digest 550e",
        "completions cmd",
        "run ./m.wasm --mount nocolon",
        "run ./m.wasm --env noequals",
        "run ./m.wasm --scope /tmp/**",
        r#"run ./m.wasm --arguments {"a":1}"#,
    ] {
        let done = place.expect(line, 2, &[]);
        assert!(done.stdout.is_empty() && !done.stderr.is_empty(), "{}", done.what);
    }
    place.run(&["run", "list directory"]).expect_exit(2);
}

#[test]
fn tools_are_listed_and_inspected_as_tables_and_as_json() {
    let catalogue = Catalogue::with_tools().add(Tool::command("broken", GATE));
    std::fs::write(catalogue.module("broken"), "changed").unwrap();
    let place = CommandFolder::with(&catalogue.folder());
    let list = place.expect("tool list", 0, &[]);
    for tool in ["edit_file", "hash_file", "list_directory", "read_file", "search_text", "write_file"] {
        let row = list.stdout.lines().find(|line| line.contains(tool)).unwrap();
        assert!(row.contains("ready") && row.contains("read"), "{row}");
    }
    assert!(list.stdout.lines().any(|line| line.contains("http_fetch") && line.contains("ready")));
    assert!(list.stdout.lines().any(|line| line.contains("broken")), "{}", list.stdout);
    let widest = list.stdout.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{widest:?} columns\n{}", list.stdout);

    let list = place.expect("tool list --json", 0, &[]).json();
    assert_eq!(list.as_array().unwrap().len(), 8);
    let of = |name: &str| list.as_array().unwrap().iter().find(|tool| tool["name"] == name).unwrap();
    assert!(of("broken")["error"].as_str().unwrap().contains("SHA-256"));
    assert_eq!(of("hash_file")["capabilities"]["filesystem"], "read");
    assert_eq!(of("http_fetch")["capabilities"]["network"], true);

    let text = place.expect("tool inspect hash_file", 0, &["sha256", "files      read"]);
    let json = place.expect("tool inspect hash_file --json", 0, &[]).json();
    assert_eq!(json, *of("hash_file"));
    let digest = json["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    assert!(text.stdout.contains(digest), "{}", text.stdout);
    place.expect("tool inspect http_fetch", 0, &["network    yes", "files      none"]);
    place.expect("tool inspect nothing", 1, &["tool list"]);
    place.expect("tool inspect broken", 1, &["SHA-256"]);
    // The hint is about what there is: here nothing, and then what `cargo xtask tools` builds.
    place.expect("tool list --tools missing", 1, &["a2g-executor tool add"]);
    std::fs::create_dir_all(place.path("target/tools")).unwrap();
    place.expect("tool list --tools missing", 1, &["--tools target/tools"]);
    place.expect("tool list --tools workspace", 0, &["--tools target/tools"]);
}

#[test]
fn tool_output_cannot_control_the_terminal() {
    let catalogue = Catalogue::empty().add(Tool::command("gate", GATE));
    let manifest = catalogue.folder().join("gate/tool.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let evil = text.replace("A tool of the tests.", r"\u001b[2J\u009b2J\u007f\nsha256     forged");
    std::fs::write(&manifest, evil).unwrap();
    let place = CommandFolder::with(&catalogue.folder());
    for arguments in [&["tool", "list"][..], &["tool", "list", "--json"], &["tool", "inspect", "gate"]] {
        let done = place.run(arguments).expect_exit(0);
        let steers = |c: char| c.is_control() && c != '\n';
        assert!(!done.stdout.contains(steers), "{}: {:?}", done.what, done.stdout);
        assert!(!done.stdout.lines().any(|line| line.starts_with("sha256     forged")), "{}", done.stdout);
    }
    let list = place.run(&["tool", "list", "--json"]).json();
    assert!(list[0]["description"].as_str().unwrap().starts_with("\u{1b}[2J\u{9b}2J\u{7f}\n"), "{list}");
}

#[test]
fn a_system_error_is_printed_once() {
    let place = CommandFolder::new();
    for arguments in [
        &["config", "check", "--config", "missing.toml"][..],
        &["run", "write_file", "--policy", "missing.json"],
        &["run", "write_file", "--arguments", "@missing.json"],
        &["run", "./missing.wasm"],
    ] {
        let done = place.run(arguments);
        assert_eq!(done.stderr.matches("No such file").count(), 1, "{}: {}", done.what, done.stderr);
    }
    let done = place.run(&["tool", "add", "missing"]);
    assert!(
        done.stderr.contains("`missing` does not exist") && done.stderr.contains("`oci://"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_tool_is_added_with_its_digest_and_then_runs() {
    let catalogue = Catalogue::empty();
    let place = CommandFolder::with(&catalogue.folder());
    let source = place.path("source");
    Tool::command("gate", GATE).write(&source, false);
    place.expect("tool add source", 0, &["added gate 1.0.0 (sha256 "]);
    assert!(
        std::fs::read_to_string(catalogue.folder().join("gate/tool.toml")).unwrap().contains("sha256 = ")
    );
    place.put("workspace/go", "");
    let done = place.expect("run gate --scope /workspace/**", 0, &[]);
    assert_eq!(done.json(), json!({ "waited": true }));

    // A bare typed module says itself what it is.
    let bare = tools().join("write_file/tool.wasm");
    let added =
        place.run(&["tool", "add", bare.to_str().unwrap()]).expect_exit(0).expect_text("added write_file");
    let manifest = catalogue.folder().join("write_file/tool.toml");
    let line = r#"filesystem = "none""#;
    assert!(added.stdout.contains(line) && added.stdout.contains(manifest.to_str().unwrap()));
    assert!(std::fs::read_to_string(&manifest).unwrap().lines().any(|found| found == line));
    let names = place.expect("tool list --json", 0, &[]).json();
    assert_eq!(
        names.as_array().unwrap().iter().map(|tool| &tool["name"]).collect::<Vec<_>>(),
        ["gate", "write_file"]
    );

    // A tool that does not match is not added, and the existing one stays.
    let before = std::fs::read(catalogue.module("gate")).unwrap();
    place.module("command.wasm", GATE);
    place.expect("tool add command.wasm", 1, &[]);
    place.expect("tool add missing", 1, &[]);
    Tool::command_bytes("gate", b"no module".to_vec()).write(&source, false);
    place.expect("tool add source", 1, &[]);
    Tool::command("gate", GATE).write(&source, true);
    std::fs::write(source.join("tool.wasm"), wat::parse_str("(module)").unwrap()).unwrap();
    place.expect("tool add source", 1, &["SHA-256"]);
    assert_eq!(std::fs::read(catalogue.module("gate")).unwrap(), before);
    let left: Vec<_> = std::fs::read_dir(catalogue.folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_module_of_another_contract_is_distinguished_from_one_of_none() {
    let catalogue = Catalogue::empty();
    let place = CommandFolder::with(&catalogue.folder());
    let typed = std::fs::read(tools().join("write_file/tool.wasm")).unwrap();
    let typed_component = r#"(component
        (core module $m (func (export "f")))
        (core instance $i (instantiate $m))
        (func $f (canon lift (core func $i "f")))
        (export "describe" (func $f)) (export "invoke" (func $f)))"#;
    let wat = |text: &str| wat::parse_str(text).unwrap();
    let command_in = "it looks like a command: write `contract = \"command\"`";
    let typed_in = "it looks like a typed tool: write `contract = \"typed\"`";
    for (nth, (tool, says)) in [
        (Tool::command_bytes("other", typed.clone()), typed_in),
        (Tool::command_bytes("other", wat(typed_component)), typed_in),
        (Tool::typed_bytes("other", wat(GATE)), command_in),
        (Tool::typed_bytes("other", component("", &[], "")), command_in),
        (Tool::command("other", "(module)"), "exports no function `_start`"),
        (Tool::typed_bytes("other", wat("(module)")), "has to be a component"),
    ]
    .into_iter()
    .enumerate()
    {
        let source = format!("source{nth}");
        tool.write(&place.path(&source), false);
        place.run(&["tool", "add", &source]).expect_exit(1).expect_text(says);
    }
    place.put("typed.wasm", typed);
    place.expect("run ./typed.wasm", 1, &[typed_in]);
}

#[test]
fn tool_list_keeps_to_the_column_width_with_broken_manifests() {
    let catalogue = Catalogue::empty();
    let place = CommandFolder::with(&catalogue.folder());
    for name in ["half", "odd"] {
        std::fs::create_dir(catalogue.folder().join(name)).unwrap();
    }
    std::fs::write(catalogue.folder().join("odd/tool.toml"), "name = \"odd\"\nversoin = \"1\"\n").unwrap();
    std::fs::write(catalogue.folder().join("half/tool.toml"), "name = \"half\"\n[capabilities\n").unwrap();
    let config = place.path("executor.toml");
    let wide = |columns: &str| on_a_screen(columns, &["tool", "list", "--config", config.to_str().unwrap()]);
    let list = wide("300");
    assert!(!list.contains("u000a"), "{list}");
    assert!(list.contains("line 2: unknown field `versoin`") && list.contains("line 2: "), "{list}");
    // No word is broken, so that a path as long as these is what may be wider.
    let longest = |list: &str| list.split_whitespace().map(|word| word.chars().count()).max().unwrap();
    for (columns, fits) in [("60", 60), ("120", 120), ("none", 100), ("1", 40)] {
        let list = wide(columns);
        let widest = list.lines().map(|line| line.chars().count()).max().unwrap();
        let room = fits.max(longest(&list) + 20);
        assert!(widest <= room && widest > fits - 20, "COLUMNS={columns}: {widest}\n{list}");
    }
    let listed = place.expect("tool list --json", 0, &[]).json();
    assert!(listed[1]["error"].as_str().unwrap().contains("line 2: unknown field"), "{listed}");
}

#[test]
fn arguments_are_read_from_the_command_line_a_file_or_standard_input() {
    let place = CommandFolder::new();
    let write = r#"{"path":"/workspace/a.txt","content":"Hello, World!"}"#;
    let written = json!({ "bytes_written": 13, "path": "/workspace/a.txt" });
    place.put("arguments.json", write);
    for (arguments, input) in [(write, ""), ("@arguments.json", ""), ("-", write)] {
        let line = ["run", "write_file", "--arguments", arguments, "--scope", "/workspace/**"];
        let done = place.run_with(&line, input.as_bytes()).expect_exit(0);
        assert_eq!(done.json(), written);
        assert!(done.stderr.contains("SUCCESS"), "{}", done.stderr);
        assert_eq!(std::fs::read_to_string(place.path("workspace/a.txt")).unwrap(), "Hello, World!");
        std::fs::remove_file(place.path("workspace/a.txt")).unwrap();
    }
    let more = "--json --arguments @arguments.json --max-memory-mb 40 --scope /workspace/**";
    let report = place.expect(&format!("run write_file {more}"), 0, &[]).json();
    assert_eq!((&report["status"], &report["result"]), (&json!("SUCCESS"), &written));
    assert_eq!(report["usage"]["limits"]["max_memory_mb"]["granted"], 40);
    place.expect("run write_file --arguments @missing.json", 1, &["missing.json"]);
}

#[test]
fn exit_codes_distinguish_failure_refusal_and_limit() {
    let catalogue = Catalogue::with_tools().add(Tool::command("gate", GATE));
    let place = CommandFolder::with(&catalogue.folder());
    let read = r#"run read_file --arguments {"path":"/workspace/missing"} --scope"#;
    place.expect(&format!("{read} /workspace/**"), 1, &["not_found"]);
    let report = place.expect(&format!("{read} /workspace/** --json"), 1, &[]).json();
    assert_eq!(report["status"], "FAILURE");

    for refused in [
        "run nothing",
        "run read_file",
        &format!("{read} /workspace/../**"),
        &format!("{read} /workspace/missing/**"),
        &format!("{read} /workspace/{{file"),
    ] {
        let done = place.expect(refused, 3, &["refused"]);
        assert!(done.stdout.is_empty(), "{}", done.stdout);
    }
    let limited = "run gate --timeout-seconds 1 --scope /workspace/**";
    place.expect(limited, 4, &["timeout of 1 s, set on the command line"]);
    let report = place.expect(&format!("{limited} --json"), 4, &[]).json();
    assert_eq!(report["status"], "TIMEOUT");
    assert!(report["error"].as_str().unwrap().ends_with("timeout of 1 s, set by the operator"), "{report}");
    let limits = &report["usage"]["limits"];
    for (limit, set_by) in
        [("timeout_seconds", "operator"), ("network_allowed", "operator"), ("max_memory_mb", "executor")]
    {
        assert_eq!(limits[limit]["set_by"], set_by, "{limits}");
    }
    assert_eq!(limits["filesystem_scope"]["trees"][0]["set_by"], "operator", "{limits}");
}

#[test]
fn a_refusal_names_the_command_line_option_to_change() {
    let place = CommandFolder::new();
    place.expect("run nothing", 3, &["`nothing`: `a2g-executor tool list` lists"]);
    place.expect(r#"run read_file --arguments {"path":5}"#, 3, &["`path`: the value is not of type"]);
    let outside = [
        "denied /workspace/a (outside_scope, once)",
        "`--scope` grants access to files; the configuration allows `/workspace/**`",
    ];
    place.expect(r#"run read_file --arguments {"path":"/workspace/a"}"#, 1, &outside);
}

#[test]
fn a_policy_replaces_limits_of_the_command_line() {
    let place = CommandFolder::new();
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/default.json");
    let restricted = default.with_file_name("demo-restricted.json");
    let default = default.to_str().unwrap();
    let restricted = restricted.to_str().unwrap();
    let run = |arguments: &str, policy: &str, agent: &str, code: i32, texts: &[&str]| {
        let line = ["run", "write_file", "--arguments", arguments, "--policy", policy, "--agent", agent];
        place.run(&line).expect(code, texts)
    };
    let anyone = "did:aeon:anyone:1.0:x";
    let write = r#"{"path":"/workspace/a.txt","content":"x"}"#;
    assert_eq!(run(write, default, anyone, 0, &[]).json()["bytes_written"], 1);
    let outside = r#"{"path":"/etc/a.txt","content":"x"}"#;
    run(outside, default, anyone, 3, &["denied by the governor"]);
    let escalates = r#"{"path":"/workspace/b.txt","content":"-----BEGIN PRIVATE KEY-----"}"#;
    run(escalates, default, anyone, 3, &["ESCALATE"]);
    run(write, restricted, "did:aeon:restricted:1.0:demo", 3, &["does not allow"]);
    run(write, restricted, anyone, 3, &["no policy"]);
    assert!(!place.path("workspace/b.txt").exists());
    // A limit that would have no effect is refused, not dropped.
    for (option, value) in [("--max-memory-mb", "3"), ("--scope", "/workspace/**")] {
        let line = ["run", "write_file", "--arguments", write, "--policy", default, option, value];
        place.run(&line).expect(2, &["leave one of the two out"]);
    }
    let missing = format!("run write_file --arguments {write} --policy missing.json");
    place.expect(&missing, 2, &["missing.json"]);
}

/// Copies standard input to standard output.
const CAT: &str = r#"(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (loop $more
      (i32.store (i32.const 0) (i32.const 64))
      (i32.store (i32.const 4) (i32.const 4096))
      (if (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then (unreachable)))
      (if (i32.load (i32.const 8))
        (then
          (i32.store (i32.const 4) (i32.load (i32.const 8)))
          (if (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)) (then (unreachable)))
          (br $more))))))"#;

/// Writes its arguments to standard output and its environment to standard error, each with a NUL
/// behind it, and exits with code 7.
const TELL: &str = r#"(module
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_get" (func $args_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ_sizes_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_get" (func $environ_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (drop (call $args_sizes_get (i32.const 0) (i32.const 12)))
    (drop (call $args_get (i32.const 1024) (i32.const 4096)))
    (i32.store (i32.const 8) (i32.const 4096))
    (drop (call $fd_write (i32.const 1) (i32.const 8) (i32.const 1) (i32.const 0)))
    (drop (call $environ_sizes_get (i32.const 0) (i32.const 12)))
    (drop (call $environ_get (i32.const 1024) (i32.const 4096)))
    (drop (call $fd_write (i32.const 2) (i32.const 8) (i32.const 1) (i32.const 0)))
    (call $proc_exit (i32.const 7))))"#;

#[test]
fn a_command_module_has_its_own_streams_arguments_and_exit_code() {
    let place = CommandFolder::new();
    place.module("cat.wasm", CAT);
    let long = "all of this, ".repeat(20_000);
    let done = place.run_with(&["run", "./cat.wasm"], long.as_bytes()).expect_exit(0);
    assert!(done.stdout == long, "{} bytes of {}", done.stdout.len(), long.len());

    place.module("tell.wasm", TELL);
    let done = place
        .run(&["run", "tell.wasm", "--env", "LANG=C", "--env", "EMPTY=", "--", "one", "--two", "three four"])
        .expect_exit(7);
    assert_eq!(done.stdout, "tell.wasm\0one\0--two\0three four\0");
    assert_eq!(done.stderr, "LANG=C\0EMPTY=\0", "nothing of the host's environment");

    place.module("gate.wasm", GATE);
    place.put("workspace/go", "");
    let done = place.expect("run ./gate.wasm --mount workspace:/data", 0, &[]);
    assert_eq!(done.stdout, r#"{"waited":true}"#);
    assert_eq!(std::fs::read_to_string(place.path("workspace/runs")).unwrap(), "x");
    // Without the mount there is no folder.
    place.expect("run ./gate.wasm", 134, &[]);
    place.expect("run ./gate.wasm --mount missing:/data", 1, &[]);
}

#[test]
fn a_stopped_module_exits_with_the_shell_codes() {
    let place = CommandFolder::new();
    place.module("gate.wasm", GATE);
    place.expect("run ./gate.wasm --mount workspace:/data --timeout-seconds 1", 124, &["timeout"]);
    place.module("spin.wasm", r#"(module (func (export "_start") (loop $l (br $l))))"#);
    place.expect("run ./spin.wasm --timeout-seconds 1", 124, &[]);
    place.module("trap.wasm", r#"(module (func (export "_start") unreachable))"#);
    place.expect("run ./trap.wasm", 134, &["unreachable"]);
    place.module("nothing.wasm", "(module)");
    assert_ne!(place.run(&["run", "./nothing.wasm"]).code, 0);
    place.put("garbage.wasm", "garbage");
    place.expect("run ./garbage.wasm", 1, &[]);
    place.expect("run ./missing.wasm", 1, &["missing.wasm"]);
    for code in [0, 1, 42, 125, 126, 255] {
        let wat = format!(
            r#"(module (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
               (memory (export "memory") 1) (func (export "_start") (call $exit (i32.const {code}))))"#
        );
        place.module("exit.wasm", &wat);
        place.expect("run ./exit.wasm", code, &[]);
    }
}

#[test]
fn doctor_reports_missing_controls_in_its_exit_code() {
    let place = CommandFolder::new();
    let json = place.run(&["doctor", "--json"]);
    let rows = json.json().as_array().unwrap().clone();
    let ill = rows.iter().any(|row| row["required"] == true && !row["missing"].is_null());
    assert!(rows.iter().all(|row| row["missing"].is_null() != row["detail"].is_null()), "{rows:?}");
    let done = place.run(&["doctor"]).expect_exit(i32::from(ill));
    for row in &rows {
        assert!(done.stdout.contains(row["name"].as_str().unwrap()), "{}", done.what);
    }
    json.expect_exit(i32::from(ill));
    place.configure("[executor]\nreuse.tools = [\"hash_file\"]");
    let configured = place.run(&["doctor", "--json"]).json();
    let mut configured_rows = configured.as_array().unwrap().iter();
    let row = configured_rows.find(|row| row["name"] == "process-for-each-run").unwrap();
    assert!(row["missing"].as_str().is_some_and(|reason| reason.starts_with("hash_file: ")), "{row}");
}

/// The output of a command on a screen of so many columns, in a time zone five hours ahead of UTC.
fn on_a_screen(columns: impl ToString, arguments: &[&str]) -> String {
    let mut command = std::process::Command::new(program());
    command.args(arguments).env_remove("RUST_LOG").env("COLUMNS", columns.to_string()).env("TZ", "FIVE-5");
    let output = command.output().unwrap();
    assert!(output.status.success() || arguments[0] == "doctor", "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Shows that every one of these stands in a text whole.
fn assert_whole(shown: &str, names: &[&str]) {
    let words = shown.split([' ', '\n']).collect::<Vec<_>>();
    for name in names {
        assert!(words.contains(name), "`{name}` is not whole in\n{shown}");
    }
}

#[test]
fn doctor_prints_available_or_missing_without_splitting_words() {
    let rows = serde_json::from_slice::<Value>(&run(["doctor", "--json"]).stdout).unwrap();
    let text = |row: &Value, name: &str| row[name].as_str().map(str::to_owned);
    for columns in [40, 80, 100, 120, 200] {
        let shown = on_a_screen(columns, &["doctor"]);
        for row in rows.as_array().unwrap() {
            let detail = text(row, "detail").or(text(row, "missing")).unwrap();
            assert_whole(&shown, &detail.split(' ').collect::<Vec<_>>());
        }
        let states = rows.as_array().unwrap().iter().filter(|row| row["missing"].is_null()).count();
        assert!(shown.matches(" available").count() >= states, "{shown}");
        let widest = shown.lines().map(|line| line.chars().count()).max();
        let longest = shown.split_whitespace().map(|word| word.chars().count()).max().unwrap();
        assert!(widest <= Some(columns.max(longest + 20)), "{widest:?} of {columns} columns\n{shown}");
    }
}

#[test]
fn journal_list_prints_a_line_and_journal_show_a_page_for_each_entry() {
    let executor = Executor::start(Options::new());
    let ran = execute("write_file", json!({ "path": "/workspace/a.txt", "content": "x" }));
    let failed = execute("read_file", json!({ "path": "/workspace/none.txt" }));
    let mut refused = execute("hash_file", json!({ "path": "/workspace/a.txt", "algorithm": "sha256" }));
    refused["verdict"]["verdict"] = json!("DENIED");
    for call in [&ran, &failed, &refused] {
        executor.rpc("a2g/execute", call);
    }
    let config = executor.home().config();
    let journal = |columns: usize, arguments: &[&str]| {
        let place = ["--config", config.to_str().unwrap()];
        on_a_screen(columns, &[&["journal"], arguments, &place].concat())
    };
    let json = |arguments: &[&str]| executor.home().list_journal(arguments);
    let id = |call: &Value| call["intent"]["intent_id"].as_str().unwrap().to_owned();
    let block = |call: &Value| id(call)[..8].to_owned();

    let list = journal(80, &["list"]);
    let lines = list.lines().collect::<Vec<_>>();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["ended", "status", "tool", "agent", "intent"]
    );
    assert!(lines.len() == 3 && lines.iter().all(|line| line.chars().count() <= 80), "{list}");
    let agent = AGENT.rsplit(':').next().unwrap();
    assert_whole(lines[1], &["FAILURE", "read_file", agent, &block(&failed)]);
    assert_whole(lines[2], &["SUCCESS", "write_file", agent, &block(&ran)]);
    // The time of the list is this zone's, that of JSON is UTC.
    let utc = json(&[])[1]["ended"].as_str().unwrap().to_owned();
    let utc = time::OffsetDateTime::parse(&utc, &time::format_description::well_known::Rfc3339).unwrap();
    let here = utc.to_offset(time::UtcOffset::from_hms(5, 0, 0).unwrap());
    let here = format!("{} {:02}:{:02}:{:02}", here.date(), here.hour(), here.minute(), here.second());
    assert!(lines[2].starts_with(&here), "{here}: {list}");
    let day = here.split(' ').next().unwrap();
    assert_eq!(journal(80, &["list", "--since", day]), list, "a day begins at its midnight here");

    // A wide list has a second line for what does not fit into the first; any list uses the width that there is.
    for (columns, count) in [(80, 6), (120, 6), (200, 3)] {
        let wide = journal(columns, &["list", "--wide"]);
        assert_eq!(wide.lines().count(), count, "{wide}");
        assert_whole(&wide, &[AGENT, &id(&ran), &id(&failed), "SUCCESS", "+05:00"]);
        let fits = |list: &str| list.lines().all(|line| line.chars().count() <= columns);
        assert!(
            fits(&wide) && fits(&journal(columns, &["list", "--refused", "--wide"])),
            "{columns}: {wide}"
        );
        assert_eq!(journal(columns, &["list"]).contains(&id(&ran)), columns >= 120);
    }

    // It is written a moment after it is answered.
    let refusals = || Some(journal(80, &["list", "--refused"])).filter(|list| list.lines().count() > 1);
    let refusals = eventually("the refusal is there", refusals);
    let lines = refusals.lines().collect::<Vec<_>>();
    assert_whole(lines[1], &["verdict_denied", "hash_file", agent, &block(&refused)]);
    assert!(lines[2].starts_with("    ") && lines[2].contains("denied"), "{refusals}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{refusals}");
    assert_whole(&journal(80, &["list", "--refused", "--wide"]), &[AGENT, &id(&refused)]);

    let page = journal(80, &["show", &block(&ran)]);
    assert_eq!(page, journal(80, &["show", &id(&ran)]));
    assert_whole(&page, &[AGENT, &id(&ran), "write_file", "SUCCESS", "+05:00", "max_memory_mb"]);
    assert!(page.contains("\"path\": \"/workspace/a.txt\"") && page.starts_with("number"), "{page}");
    let whole: Value = serde_json::from_str(&journal(80, &["show", &block(&ran), "--json"])).unwrap();
    assert_eq!((&whole["intent_id"], &whole["report"]["status"]), (&json!(id(&ran)), &json!("SUCCESS")));
    let absent = executor.home().run(&["journal", "show", "00000000"]);
    let said = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert!(!absent.status.success() && said.contains("no intent whose id begins with `00000000`"), "{said}");
}

/// A run, a call that waits and one that was denied show their arguments, unless the operator wants less to be stored.
#[test]
fn arguments_are_shown_as_far_as_they_are_stored() {
    let given = json!({ "path": "/workspace/a.txt", "content": "secret" });
    let cases = [
        (Options::new(), json!({ "arguments": given })),
        (
            Options::new().set("journal.never_store", json!(["Content"])),
            json!({ "arguments": { "path": "/workspace/a.txt" }, "arguments_left_out": ["/content"] }),
        ),
        (
            Options::new().set("journal.max_arguments_bytes", 9),
            json!({ "arguments_not_stored": "they had more than 9 bytes (`journal.max_arguments_bytes`)" }),
        ),
        (Options::new().set("journal.arguments", "hash"), json!({})),
    ];
    for (options, expected) in cases {
        let executor = Executor::start(options);
        let ran = execute("write_file", given.clone());
        let [mut waits, mut refused] = [(); 2].map(|()| execute("write_file", given.clone()));
        (waits["verdict"]["verdict"], refused["verdict"]["verdict"]) = (json!("ESCALATE"), json!("DENIED"));
        for call in [&ran, &waits, &refused] {
            executor.rpc("a2g/execute", call);
        }
        let id = |call: &Value| call["intent"]["intent_id"].clone();
        let stored = |shown: &Value| {
            let names = ["arguments", "arguments_left_out", "arguments_not_stored"];
            let members =
                names.iter().filter_map(|name| Some(((*name).to_owned(), shown.get(name)?.clone())));
            Value::Object(members.collect())
        };
        let show = |call: &Value| {
            // A refusal is written soon after its answer.
            eventually("the journal has the intent", || {
                let shown = executor.home().run(&["journal", "show", "--json", id(call).as_str().unwrap()]);
                serde_json::from_slice::<Value>(&shown.stdout).ok()
            })
        };
        let status =
            |call: &Value| executor.rpc("a2g/status", &json!({ "intent_id": id(call) }))["result"].take();
        assert_eq!((stored(&show(&ran)), stored(&status(&ran))), (expected.clone(), expected.clone()));
        // A call that waits has to be stored whole.
        let whole = json!({ "arguments": given });
        assert_eq!((stored(&show(&waits)), stored(&status(&waits))), (whole.clone(), whole));
        assert_eq!(show(&waits)["state"], "waits for a person");
        let shown = eventually("the refusal is there", || {
            Some(show(&refused)).filter(|shown| shown["blocked_by"] == "verdict_denied")
        });
        assert_eq!((&shown["state"], stored(&shown)), (&json!("did not run"), json!({})), "{shown}");

        let decided = json!({ "intent_id": id(&waits), "decision": "DENIED" });
        result(&executor.rpc("g2a/directive", &decided));
        let denied = status(&waits);
        let shown = show(&waits);
        assert_eq!((&denied["state"], stored(&denied)), (&json!("denied"), expected.clone()), "{denied}");
        assert!(denied["reason"].as_str().unwrap().contains("denied"), "{denied}");
        assert_eq!((&shown["state"], stored(&shown)), (&json!("did not run"), expected), "{shown}");
        let page = executor.home().run(&["journal", "show", id(&ran).as_str().unwrap()]);
        let page = String::from_utf8(page.stdout).unwrap();
        assert!(stored(&show(&ran)).as_object().unwrap().keys().all(|name| page.contains(name)), "{page}");
        let verified = executor.home().run(&["journal", "verify"]);
        assert!(verified.status.success(), "{verified:?}");
    }
}

#[test]
fn listed_values_are_not_truncated_at_80_columns() {
    let catalogue = Catalogue::empty();
    let long = "a_tool_with_a_long_name_that_nobody_wants_to_see_in_two_pieces";
    Tool::command(long, GATE).write(&catalogue.folder().join(long), true);
    let place = CommandFolder::with(&catalogue.folder());
    let config = place.path("executor.toml");
    let config = config.to_str().unwrap();
    assert_whole(&on_a_screen(80, &["tool", "list", "--config", config]), &[long, "ready", "1.0.0"]);

    let callers = place.path("callers.toml");
    let callers = callers.to_str().unwrap();
    let agents = ["did:aeon:a-rather-long-name-of-an-agent:1.0:abc123", "did:aeon:another:1.0:def456"];
    let new = ["caller", "new", "planner", "--callers", callers, "--role", "agent"];
    run(new.iter().copied().chain(agents.iter().flat_map(|agent| ["--agent", agent])));
    let list = on_a_screen(80, &["caller", "list", "--callers", callers]);
    assert_whole(&list, &["planner", &format!("{},", agents[0]), agents[1]]);
    assert!(list.lines().all(|line| line.chars().count() <= 80), "{list}");

    let keys = place.path("keys");
    let pair = place.path("governor.jwk");
    let keys = keys.to_str().unwrap();
    let pair = pair.to_str().unwrap();
    let issuer = "https://governor.example/with/a/path/that/is/long";
    place.run(&["key", "new", pair, "--issuer", issuer]).expect_exit(0);
    let public = place.run(&["key", "show", "--json", pair]).expect_exit(0);
    place.run(&["key", "trust", public.stdout.trim(), "--keys", keys]).expect_exit(0);
    let id = public.json()["kid"].as_str().unwrap().to_owned();
    assert_whole(&on_a_screen(80, &["key", "list", "--keys", keys]), &[&id, issuer]);
}

#[test]
fn a_misspelled_name_gets_the_nearest_valid_one() {
    let place = CommandFolder::new();
    place.expect("tool inspect hash_fil", 1, &["(did you mean `hash_file`?)"]);
    place.expect("run read-file", 3, &["there is no tool `read-file` (did you mean `read_file`?)"]);
    place.expect("journl list", 2, &["'journal'"]);
    place.configure("[server]\nlisen = \"127.0.0.1:0\"");
    place.expect("config check", 2, &["`lisen` (did you mean `listen`?)"]);
    place.configure("[executor]\ninline_tools = [\"hash_fiel\"]");
    place.expect("config check", 2, &["`hash_fiel` (did you mean `hash_file`?)"]);
    let executor = Executor::start(Options::new());
    let told =
        |method: &str| executor.rpc(method, &json!({}))["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(told("a2g/excute"), "there is no method `a2g/excute` (did you mean `a2g/execute`?)");
    assert_eq!(told("fly"), "there is no method `fly`");
    let call = execute("write_fil", json!({ "path": "/workspace/a.txt", "content": "x" }));
    let told = executor.rpc("a2g/execute", &call);
    assert!(told["error"]["message"].as_str().unwrap().contains("(did you mean `write_file`?)"), "{told}");
}

#[test]
fn completions_are_generated_for_each_shell() {
    let place = CommandFolder::new();
    for (shell, mark) in
        [("bash", "complete "), ("zsh", "#compdef a2g-executor"), ("fish", "complete -c a2g-executor")]
    {
        let done = place.run(&["completions", shell]).expect_exit(0);
        assert!(done.stdout.contains(mark) && done.stdout.contains("governor"), "{shell}: {}", done.stdout);
        assert!(done.stderr.is_empty());
    }
}

#[test]
fn config_check_prints_the_effective_configuration() {
    let place = CommandFolder::new();
    let done = place.expect("config check", 0, &["the configuration is valid"]);
    for line in [
        "listen      127.0.0.1:7420",
        "governor    built in",
        "policies    built in, for every other agent",
        "scope       /workspace/**",
        "budgets     1024 MB written, 10000 created, 1024 handles, 128 subscriptions, 16777216 random bytes",
        "1000000 directory entries, unlimited fuel, ",
        ", hard-linked files refused",
        "mount       /workspace is ./workspace",
    ] {
        assert!(done.stdout.contains(line), "{}", done.stdout);
    }
    assert!(done.stderr.is_empty(), "{}", done.stderr);
    let elsewhere = place.path("executor.toml");
    let done = run(["config", "check", "--config", elsewhere.to_str().unwrap()]);
    assert!(done.status.success());
    assert!(String::from_utf8_lossy(&done.stdout).contains(cache().to_str().unwrap()));
    // A default does not refuse itself, as in a clone below /tmp; what the operator wrote is refused.
    let below_tmp = |more: &str| {
        let config = format!("[catalog]\ntools = {:?}\ncache = \"/tmp/nowhere/cache\"\n{more}", tools());
        place.put("executor.toml", config);
        place.run(&["config", "check"])
    };
    let narrowed = below_tmp("").expect(0, &["`/workspace/**` alone", "`catalog.cache`"]);
    assert!(narrowed.stdout.contains("scope       /workspace/**\n"), "{}", narrowed.stdout);
    below_tmp("[ceilings]\nfilesystem_scope = [\"/tmp/**\"]\n")
        .expect(2, &["line 5", "`ceilings.filesystem_scope`"]);
}

#[test]
fn config_check_reports_missing_folders() {
    let place = CommandFolder::new();
    std::fs::remove_dir(place.path("workspace")).unwrap();
    for command in ["config check", "serve"] {
        place.expect(
            command,
            2,
            &["`mount.host` names `", "executor.toml` line ", "there is no such folder"],
        );
    }
    std::fs::create_dir(place.path("workspace")).unwrap();
    place.configure("[governor]\npolicies = \"nowhere\"");
    place.expect("config check", 2, &["nowhere"]);
    place.configure("[executor]\ninline_tools = [\"hash_file\", \"nothing\"]");
    place.expect("config check", 2, &["`executor.inline_tools` names `nothing`", " line "]);
    place.configure("[executor]\ninline_tools = [\"hash_file\"]");
    place.expect("config check", 0, &["inline      hash_file"]);
    place.configure("[executor]\nreuse.tools = [\"hash_file\", \"nothing\"]");
    place.expect("config check", 2, &["`executor.reuse.tools` names `nothing`", " line "]);
    place.configure("[executor]\nreuse.tools = [\"hash_file\"]");
    place.expect(
        "config check",
        0,
        &["reused      processes of hash_file, for up to 100 runs, at most 500 ms apart"],
    );
    place.configure("");
    let executor = Executor::start(Options::new().set("executor.inline_tools", json!(["nothing"])));
    executor.line_with("`executor.inline_tools` names a tool that is not in the catalogue");
    place.expect("config check --tools missing", 2, &["`--tools` is `missing`, which is not a folder"]);
    std::fs::remove_file(place.path("executor.toml")).unwrap();
    place.expect("config check", 2, &["`catalog.tools` names `./tools`"]);
}

#[test]
fn a_policy_that_gives_a_program_no_file_is_told_so() {
    let catalogue = Catalogue::empty().copy(SHELL);
    let narrow = json!({ "paths": ["/workspace/**"] });
    let whole = json!({ "paths": ["/workspace/**"], "grant_all_paths": true });
    let other = ("read_file", narrow.clone());
    let warning = "has `paths` without `grant_all_paths` for run_shell:";
    for (rule, is_warned) in [(narrow, true), (whole, false), (json!({ "paths": [] }), false)] {
        let policies = methods::policy_folder(&[policy_for_all(&[(SHELL, rule.clone()), other.clone()])]);
        let place = CommandFolder::with(&catalogue.folder());
        place.configure(&format!("[governor]\npolicies = {:?}", policies.path()));
        let checked = place.expect("config check", 0, &["the configuration is valid"]);
        assert_eq!(checked.stderr.contains(warning), is_warned, "{rule}: {}", checked.stderr);
        if is_warned {
            let executor = Executor::start(Options::new().catalogue(&catalogue).policies(policies.path()));
            executor.line_with(warning);
        }
    }
}

#[test]
fn config_check_refuses_a_file_of_reports_that_others_may_access() {
    let place = CommandFolder::new();
    let reports = place.path("reports.ndjson");
    place.configure("[governor]\nreports = \"reports.ndjson\"");
    place.expect("config check", 0, &["the configuration is valid"]);
    assert!(!reports.exists());
    place.put("reports.ndjson", "");
    for mode in [0o666, 0o640, 0o601] {
        set_mode(&reports, mode);
        place.expect("config check", 1, &["reports.ndjson", &format!("the mode {mode:04o}"), "chmod 600"]);
    }
    set_mode(&reports, 0o600);
    place.expect("config check", 0, &["the configuration is valid"]);
    place.configure("[governor]\nreports = \"missing/reports.ndjson\"");
    place.expect("config check", 1, &["missing/reports.ndjson"]);
    // Serving would otherwise wait for a reader before it listens.
    std::fs::remove_file(&reports).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &reports, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    place.configure("[governor]\nreports = \"reports.ndjson\"");
    place.expect("serve", 1, &["reports.ndjson"]);
}

#[test]
fn a_host_name_is_a_valid_listen_address() {
    let executor = Executor::start(Options::new().argument("--listen").argument("localhost:0"));
    assert!(executor.address().ip().is_loopback());
}

#[test]
fn serve_writes_no_escape_codes_into_a_pipe() {
    for variable in [None, Some(("NO_COLOR", "1")), Some(("CLICOLOR_FORCE", "1"))] {
        let mut options = Options::new().environment("RUST_LOG", "debug");
        if let Some((name, value)) = variable {
            options = options.environment(name, value);
        }
        let executor = Executor::start(options);
        executor.rpc("a2g/execute", &execute("nothing", json!({})));
        assert!(!executor.stderr().contains('\u{1b}'), "{}", executor.stderr());
    }
}

#[test]
fn a_port_in_use_is_reported_and_exits_with_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let place = CommandFolder::new();
    place.put("executor.toml", "[journal]\npath = \"journal.db\"\n[ceilings]\nfilesystem_scope = []\n");
    std::fs::create_dir(place.path("tools")).unwrap();
    let refused = |arguments: &[&str], setting: &str| {
        place.run(arguments).expect_exit(1).expect_text(&format!("cannot listen on {address} (`{setting}`"));
    };
    refused(&["serve", "--listen", &address], "server.listen");
    refused(&["governor", "--listen", &address], "--listen");
    let text = std::fs::read_to_string(place.path("executor.toml")).unwrap();
    place.put("executor.toml", format!("{text}[console]\nlisten = \"{address}\"\n"));
    refused(&["serve", "--listen", "127.0.0.1:0"], "console.listen");
}

#[test]
fn the_command_for_the_console_says_when_the_server_has_ended() {
    let executor = Executor::start(Options::new());
    let link = |home: &Home| CommandResult::of(&["console"], home.run(&["console", "--print"]));
    let shown = link(executor.home()).expect_exit(0);
    assert!(shown.stdout.contains("/console?key="), "{}", shown.stdout);
    // It leaves its last link behind.
    let home = executor.kill();
    let told =
        link(&home).expect(1, &["no server listens on 127.0.0.1:", "it has ended", "a2g-executor serve"]);
    assert!(told.stdout.is_empty(), "{}", told.stdout);
}
