//! A component of componentize-py for the first contract is added to a catalogue and run. One language is enough: the
//! executor does not know of which one a component was made. Components for the contract of today are made by the
//! templates (`authoring`) and are the bundled interpreters.

use harness::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The time in which a component is made or compiled: far more than a busy machine needs.
const MAKE_TIMEOUT: Duration = Duration::from_secs(600);

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/languages").join(name)
}

/// The first contract, which components that exist were made for.
fn wit_0_1() -> PathBuf {
    source("wit-0.1")
}

fn succeed(command: Command) {
    let output = run_to_end_within(command, b"", MAKE_TIMEOUT);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
}

/// A catalogue with one tool, which `make` writes to the path of its module.
fn catalogue(name: &str, make: impl FnOnce(&Path) -> Command) -> Catalogue {
    let folder = tempfile::tempdir().expect("a folder");
    let catalogue = Catalogue::empty();
    succeed(make(&folder.path().join("tool.wasm")));
    let manifest = format!(
        "name = \"{name}\"\nversion = \"1.0.0\"\ndescription = \"A tool of the tests.\"\ncontract = \"typed\"\n\
         [capabilities]\nfilesystem = \"read\"\nmax_memory_mb = 256\n"
    );
    std::fs::write(folder.path().join("tool.toml"), manifest).expect("a file");
    let mut add = Command::new(program());
    add.args(["tool", "add"]).arg(folder.path()).arg("--tools").arg(catalogue.folder());
    add.env("XDG_CACHE_HOME", cache_home());
    succeed(add);
    catalogue
}

fn call(executor: &Executor, tool: &str, arguments: Value) -> Value {
    executor.rpc("a2g/execute", &execute(tool, arguments))
}

#[test]
fn a_component_of_componentize_py_for_contract_0_1_runs() {
    let Some(program) = client_folder("componentize-py", "python/bin/componentize-py") else { return };
    let catalogue = catalogue("count_words", |module| {
        let mut command = Command::new(program);
        command
            .arg("-d")
            .arg(wit_0_1())
            .args(["-w", "tool", "componentize", "count_words", "-o"])
            .arg(module);
        // A copy, because Python writes its compiled form beside it.
        let folder = module.parent().expect("a folder");
        std::fs::copy(source("count_words.py"), folder.join("count_words.py")).expect("a copy");
        command.arg("-p").arg(folder);
        command
    });
    let executor = Executor::start(Options::new().catalogue(&catalogue));
    std::fs::write(executor.workspace().join("text"), "one two, two").expect("a file");
    let counted = call(&executor, "count_words", json!({ "path": "/workspace/text" }));
    assert_eq!(counted["result"]["result"], json!({ "words": 3, "most": ["two", 2] }), "{counted}");
    let missing = call(&executor, "count_words", json!({ "path": "/workspace/missing" }));
    assert_eq!(missing["error"]["data"]["report"]["tool_error"]["code"], "unreadable", "{missing}");
}
