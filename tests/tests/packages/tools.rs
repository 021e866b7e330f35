//! The tools of the repository, as they are built.

use harness::{guest, tools};
use std::collections::BTreeSet;
use wasmparser::{Parser, Payload};

/// The modules that a core module imports from.
fn imports(wasm: &[u8]) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    for payload in Parser::new(0).parse_all(wasm) {
        if let Payload::ImportSection(section) = payload.expect("a module") {
            for import in section.into_imports() {
                modules.insert(import.expect("an import").module.to_owned());
            }
        }
    }
    modules
}

fn calls_tools(imports: &BTreeSet<String>) -> bool {
    imports.iter().any(|module| module.starts_with("a2g:tool/calls@"))
}

/// Authors who call no tools pay nothing for the SDK's ability to.
#[test]
fn only_a_guest_that_calls_tools_imports_them() {
    assert!(calls_tools(&imports(&guest("fan_out"))));
    for other in ["hostile_artifact", "hostile_http"] {
        assert!(!calls_tools(&imports(&guest(other))), "{other}");
    }
}

#[test]
fn only_a_tool_that_declares_the_network_or_calls_imports_them() {
    let mut with = Vec::new();
    for entry in std::fs::read_dir(tools()).expect("the tools") {
        let folder = entry.expect("an entry").path();
        let manifest = std::fs::read_to_string(folder.join("tool.toml")).expect("a manifest");
        let manifest: toml::Table = manifest.parse().expect("TOML");
        let declared = manifest["capabilities"]["network"].as_bool().expect("a boolean");
        let module = std::fs::read(folder.join("tool.wasm")).expect("a module");
        if Parser::is_component(&module) {
            // An interpreter's own libraries import what its programs cannot use.
            continue;
        }
        let imports = imports(&module);
        assert!(imports.contains("wasi_snapshot_preview1"), "{imports:?}");
        let imported = imports
            .iter()
            .any(|module| module.starts_with("wasi:http/") || module.starts_with("wasi:sockets/"));
        assert_eq!(imported, declared, "{}: {imports:?}", folder.display());
        let declares_calls =
            manifest["capabilities"].as_table().is_some_and(|table| table.contains_key("calls"));
        assert_eq!(calls_tools(&imports), declares_calls, "{}: {imports:?}", folder.display());
        if declared {
            with.push(manifest["name"].as_str().expect("a name").to_owned());
        }
    }
    assert_eq!(with, ["http_fetch"]);
}
