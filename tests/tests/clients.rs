//! Clients that nobody here wrote: the protocol's own libraries, where `cargo xtask setup` could install them.

use crate::harness::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a client wants of this door's executor.
fn run_client(command: &mut Command, script: &str, more: &[&Path]) {
    let executor = Executor::start(Options::new());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script);
    let url = format!("http://{}", executor.address());
    let output = command.arg(script).arg(url).args(more).output().expect("it starts");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    assert_eq!(executor.file("a").as_deref(), Some("hi"));
}

/// Where a client is installed; says so when it is not.
fn installed(name: &str, part: &str) -> Option<PathBuf> {
    let path = clients().join(part);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: the client {name} is not installed");
    None
}

#[test]
fn a2a_sdk_of_python() {
    let Some(python) = installed("a2a-sdk", "python/bin/python") else { return };
    run_client(&mut Command::new(python), "a2a_sdk.py", &[]);
}

#[test]
fn a2a_sdk_of_javascript() {
    let Some(library) = installed("@a2a-js/sdk", "node/node_modules/@a2a-js/sdk") else { return };
    let folder = library.ancestors().nth(3).expect("the folder of node_modules").to_owned();
    run_client(&mut Command::new("node"), "a2a_sdk.mjs", &[&folder]);
}
