//! A catalogue of a test's own, with tools from WAT or WebAssembly bytes.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A tool to install.
pub struct Tool {
    name: String,
    contract: &'static str,
    wasm: Vec<u8>,
    filesystem: String,
    network: bool,
    limits: Vec<(String, Value)>,
    schema: Value,
    more: Vec<(String, Value)>,
}

impl Tool {
    /// A command in WAT, which takes any arguments and may read and write files.
    pub fn command(name: &str, wat: &str) -> Self {
        Self::command_bytes(name, wat::parse_str(wat).expect("WAT"))
    }

    /// A command in bytes.
    pub fn command_bytes(name: &str, wasm: Vec<u8>) -> Self {
        Self {
            name: name.to_owned(),
            contract: "command",
            wasm,
            filesystem: "read-write".to_owned(),
            network: false,
            limits: Vec::new(),
            schema: json!({ "type": "object" }),
            more: Vec::new(),
        }
    }

    /// A typed tool in bytes, which describes its own arguments.
    pub fn typed_bytes(name: &str, wasm: Vec<u8>) -> Self {
        Self { contract: "typed", ..Self::command_bytes(name, wasm) }
    }

    /// `none`, `read` or `read-write`.
    pub fn filesystem(mut self, word: &str) -> Self {
        self.filesystem = word.to_owned();
        self
    }

    /// Declares the network.
    pub fn network(mut self) -> Self {
        self.network = true;
        self
    }

    /// Declares the only requests that it sends.
    pub fn requests(mut self, list: &[impl AsRef<str>]) -> Self {
        let list = list.iter().map(AsRef::as_ref).collect::<Vec<_>>();
        self.limits.push(("requests".to_owned(), json!(list)));
        self
    }

    /// Declares the secrets without which it does not run.
    pub fn secrets(mut self, names: &[&str]) -> Self {
        self.limits.push(("secrets".to_owned(), json!(names)));
        self
    }

    /// Declares a limit, such as `max_memory_mb`, `timeout_seconds` or `max_calls`.
    pub fn limit(mut self, name: &str, value: u64) -> Self {
        self.limits.push((name.to_owned(), value.into()));
        self
    }

    /// Declares the time at which its file changes take effect: `direct`, `atomic` or `staged`.
    pub fn effects(mut self, word: &str) -> Self {
        self.limits.push(("effects".to_owned(), json!(word)));
        self
    }

    /// Declares the tools that it calls.
    pub fn calls(mut self, tools: &[&str]) -> Self {
        self.limits.push(("calls".to_owned(), json!(tools)));
        self
    }

    /// The JSON Schema of its arguments.
    pub fn schema(mut self, schema: Value) -> Self {
        self.schema = schema;
        self
    }

    /// Any other key of `tool.toml`.
    pub fn declare(mut self, key: &str, value: Value) -> Self {
        self.more.push((key.to_owned(), value));
        self
    }

    /// Writes `tool.toml` and the module to a folder; with the digest of the module, or without.
    pub fn write(&self, folder: &Path, pinned: bool) {
        std::fs::create_dir_all(folder).expect("a folder");
        let mut capabilities = json!({ "filesystem": self.filesystem, "network": self.network });
        for (name, value) in &self.limits {
            capabilities[name] = value.clone();
        }
        let mut manifest = json!({
            "name": self.name,
            "version": "1.0.0",
            "description": "A tool of the tests.",
            "contract": self.contract,
            "module": "tool.wasm",
            "capabilities": capabilities,
        });
        for (key, value) in &self.more {
            manifest[key] = value.clone();
        }
        if self.contract == "command" {
            manifest["arguments"] = self.schema.clone();
        }
        if pinned {
            let digest = Sha256::digest(&self.wasm);
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            manifest["sha256"] = json!(digest);
        }
        std::fs::write(folder.join("tool.toml"), toml::to_string(&manifest).expect("TOML")).expect("a file");
        std::fs::write(folder.join("tool.wasm"), &self.wasm).expect("a file");
    }
}

/// A folder of tools.
pub struct Catalogue {
    folder: TempDir,
}

impl Catalogue {
    /// An empty one.
    pub fn empty() -> Self {
        Self { folder: tempfile::tempdir().expect("a temp folder") }
    }

    /// One with a copy of the tools of the repository, but for the interpreters and the shell, which are
    /// large.
    pub fn with_tools() -> Self {
        let tools = std::fs::read_dir(super::tools()).expect("the tools");
        let names = tools.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
        names
            .filter(|name| !super::INTERPRETERS.contains(&name.as_str()) && name != super::SHELL)
            .fold(Self::empty(), |catalogue, name| catalogue.copy(&name))
    }

    /// Adds a copy of a tool of the repository.
    pub fn copy(self, name: &str) -> Self {
        self.copy_from(&super::tools(), name)
    }

    /// Adds a copy of a tool of another catalogue.
    pub fn copy_from(self, tools: &Path, name: &str) -> Self {
        let from = tools.join(name);
        let to = self.folder().join(name);
        std::fs::create_dir(&to).expect("a folder");
        for file in ["tool.toml", "tool.wasm"] {
            std::fs::copy(from.join(file), to.join(file)).expect("a copy");
        }
        self
    }

    /// Adds a tool, pinned.
    pub fn add(self, tool: Tool) -> Self {
        tool.write(&self.folder().join(&tool.name), true);
        self
    }

    /// The folder.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// The module of one tool.
    pub fn module(&self, tool: &str) -> PathBuf {
        self.folder.path().join(tool).join("tool.wasm")
    }
}

/// A command that writes a text to a descriptor and exits with a code.
pub fn saying(descriptor: u8, text: &str, code: u8) -> String {
    let length = text.len();
    let text = text.replace('"', "\\\"").replace('\n', "\\n");
    format!(
        r#"(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{text}")
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 16))
    (i32.store (i32.const 4) (i32.const {length}))
    (drop (call $write (i32.const {descriptor}) (i32.const 0) (i32.const 1) (i32.const 8)))
    (call $exit (i32.const {code}))))"#
    )
}

/// A command that adds one `x` to `/workspace/runs`, waits until there is a `/workspace/go`, and
/// answers `{"waited":true}`. It can be stopped while it waits, and the number of its runs is the
/// length of `runs`.
pub const GATE: &str = r#"(module
  (import "wasi_snapshot_preview1" "path_open"
    (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "runs")
  (data (i32.const 16) "go")
  (data (i32.const 32) "x")
  (data (i32.const 48) "{\"waited\":true}")
  (func $write (param $fd i32) (param $at i32) (param $length i32)
    (i32.store (i32.const 128) (local.get $at))
    (i32.store (i32.const 132) (local.get $length))
    (if (call $fd_write (local.get $fd) (i32.const 128) (i32.const 1) (i32.const 136)) (then (unreachable))))
  (func (export "_start")
    ;; O_CREAT, and every write at the end.
    (if (call $path_open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 4) (i32.const 1)
          (i64.const 64) (i64.const 0) (i32.const 1) (i32.const 140))
      (then (unreachable)))
    (call $write (i32.load (i32.const 140)) (i32.const 32) (i32.const 1))
    (block $open
      (loop $closed
        (br_if $open (i32.eqz
          (call $path_open (i32.const 3) (i32.const 0) (i32.const 16) (i32.const 2) (i32.const 0)
            (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 140))))
        ;; Sleep for 10 ms on the monotonic clock.
        (i32.store (i32.const 216) (i32.const 1))
        (i64.store (i32.const 224) (i64.const 10000000))
        (drop (call $poll_oneoff (i32.const 200) (i32.const 256) (i32.const 1) (i32.const 300)))
        (br $closed)))
    (call $write (i32.const 1) (i32.const 48) (i32.const 15))))"#;

/// A typed tool as a component, which describes itself with this name and schema after it has done `describe`,
/// and answers every call with `{}`.
pub fn typed(name: &str, schema: &Value, describe: &str) -> Vec<u8> {
    let texts = [name, "1.0.0", "A tool of the tests.", &schema.to_string()];
    let mut at = 4096;
    let mut data = String::new();
    let mut record = String::new();
    for (index, text) in texts.iter().enumerate() {
        let escaped: String = text.bytes().map(|byte| format!("\\{byte:02x}")).collect();
        data.push_str(&format!("(data (i32.const {at}) \"{escaped}\")"));
        let place = 256 + index * 8;
        let length = text.len();
        record.push_str(&format!(
            "(i32.store (i32.const {place}) (i32.const {at})) (i32.store (i32.const {}) (i32.const {length}))",
            place + 4
        ));
        at += length;
    }
    let pages = at / 65536 + 2;
    let text = format!(
        r#"(component
          (type $descriptor' (record (field "name" string) (field "version" string)
            (field "description" string) (field "arguments-schema" string)))
          (export $descriptor "descriptor" (type $descriptor'))
          (type $error' (record (field "code" string) (field "message" string) (field "detail" (option string))))
          (export $error "tool-error" (type $error'))
          (core module $m
            (memory (export "memory") {pages})
            {data}
            (data (i32.const 512) "{{}}")
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
            (func (export "describe") (result i32) {describe} {record} (i32.const 256))
            (func (export "invoke") (param i32 i32) (result i32)
              (i32.store (i32.const 600) (i32.const 0))
              (i32.store (i32.const 604) (i32.const 512))
              (i32.store (i32.const 608) (i32.const 2))
              (i32.const 600)))
          (core instance $i (instantiate $m))
          (alias core export $i "memory" (core memory $memory))
          (alias core export $i "realloc" (core func $realloc))
          (func $describe (result $descriptor)
            (canon lift (core func $i "describe") (memory $memory) (realloc $realloc)))
          (func $invoke (param "arguments" string) (result (result string (error $error)))
            (canon lift (core func $i "invoke") (memory $memory) (realloc $realloc)))
          (export "describe" (func $describe))
          (export "invoke" (func $invoke)))"#
    );
    wat::parse_str(text).expect("WAT")
}
