//! `policies/`: the policies in Cedar that come with the executor pass their tests, and the pages show them as they are.

use super::cli::CommandFolder;
use harness::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A module that does nothing: tests of policies run no tool.
const IDLE: &str = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;
/// The lines of an example that a person reads at one glance.
const MAX_LINES: usize = 25;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files in Cedar of a folder.
fn cedar_files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut files =
        entries.filter(|path| path.extension().is_some_and(|end| end == "cedar")).collect::<Vec<_>>();
    files.sort();
    files
}

/// A tool that the examples name, with these arguments, all of which it requires.
fn tool(name: &str, arguments: &Value) -> Tool {
    let required = arguments.as_object().unwrap().keys().collect::<Vec<_>>();
    let schema = json!({ "type": "object", "required": required, "properties": arguments });
    Tool::command(name, IDLE).filesystem("none").schema(schema)
}

/// The small tools that come with the executor, and those that the examples name besides.
fn catalogue() -> Catalogue {
    let text = || json!({ "type": "string" });
    let amount = || json!({ "type": "integer" });
    let programs = [("run_python", "code"), ("run_javascript", "code"), ("run_shell", "script")];
    let programs = programs.map(|(name, argument)| {
        tool(name, &json!({ argument: text() })).filesystem("read-write").calls(&["*"])
    });
    let others = [
        tool("check_order", &json!({ "order": text() })),
        tool("refund_order", &json!({ "order": text(), "amount": amount() })),
        tool("pay_invoice", &json!({ "invoice": text(), "amount": amount() })),
        tool("orders_get", &json!({ "id": text() })).network(),
    ];
    programs.into_iter().chain(others).fold(Catalogue::with_tools(), Catalogue::add)
}

#[test]
fn every_policy_that_comes_with_the_executor_passes_its_tests() {
    let catalogue = catalogue();
    let place = CommandFolder::with(&catalogue.folder());
    let examples = cedar_files("policies/examples");
    assert_eq!(examples.len(), 20, "docs/policies.md says so");
    for file in &examples {
        assert!(read(file).lines().count() <= MAX_LINES, "{}", file.display());
    }
    for file in examples.iter().chain(&cedar_files("policies/cedar")) {
        assert!(file.with_extension("test.toml").is_file(), "{} has no tests", file.display());
        place.expect(&format!("policy test {}", file.display()), 0, &[]);
    }
}

#[test]
fn the_readme_shows_an_example_as_it_is() {
    let shown = format!("```cedar\n{}```\n", read(&root().join("policies/examples/one-host.cedar")));
    assert!(read(&root().join("README.md")).contains(&shown), "README.md has another text");
}
