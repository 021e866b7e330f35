//! `docs/architecture.md` says who may use whom; this reads the `use` lines and holds it to that.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const VOCABULARY: [&str; 16] = [
    "ident",
    "quantity",
    "clock",
    "memory",
    "limit",
    "lines",
    "error_chain",
    "rate_limit",
    "json",
    "strict_json",
    "call",
    "verdict",
    "tool",
    "outcome",
    "durability",
    "fault",
];

/// The table of `docs/architecture.md`: a room and what it may use, as written there.
fn table() -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let section = text.split("## Who may use whom").nth(1).unwrap().split("\n\n##").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| room"));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let room = cells.next().unwrap().to_owned();
        let mut may = BTreeSet::new();
        for used in cells.next().unwrap().split(", ") {
            match used {
                "vocabulary" => may.extend(VOCABULARY.map(str::to_owned)),
                room => drop(may.insert(room.to_owned())),
            }
        }
        (room, may)
    })
    .collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Each file with its room and its text, comments left out.
fn files() -> Vec<(String, PathBuf, String)> {
    let source = root().join("executor/src");
    let mut paths = Vec::new();
    rust_files(&source, &mut paths);
    paths
        .into_iter()
        .map(|path| {
            let first = path.strip_prefix(&source).unwrap().components().next().unwrap();
            let room = first.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned();
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let code = code.collect::<Vec<_>>().join("\n");
            (room, path, code)
        })
        .collect()
}

fn rooms_named_in(code: &str) -> BTreeSet<String> {
    code.split("crate::")
        .skip(1)
        .map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>())
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn every_room_uses_only_what_the_table_allows() {
    let table = table();
    assert!(table.len() > 10, "the table of docs/architecture.md was not understood: {table:?}");
    for (room, path, code) in files() {
        if ["main", "lib", "cli"].contains(&room.as_str()) {
            continue;
        }
        let key = if VOCABULARY.contains(&room.as_str()) { "vocabulary" } else { &room };
        let may = table.get(key).unwrap_or_else(|| panic!("`{room}` is not in the table"));
        for used in rooms_named_in(&code) {
            assert!(used == room || may.contains(&used), "{}: `{room}` may not use `{used}`", path.display());
        }
    }
}

#[test]
fn doors_never_use_each_other() {
    for (_, path, code) in files() {
        let path = path.to_str().unwrap();
        let Some(door) = path.split("/wire/").nth(1).and_then(|rest| rest.split('/').next()) else {
            continue;
        };
        for other in ["a2g", "a2a", "a2e", "nexus", "sovereign"] {
            assert!(
                door == other || !code.contains(&format!("wire::{other}")),
                "{path} uses the door {other}"
            );
        }
    }
}

/// Whether a crate is named, and neither one whose name ends like its nor a module of another.
fn names(code: &str, part: &str) -> bool {
    let path = format!("{part}::");
    code.match_indices(&path).any(|(at, _)| {
        !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':')
    })
}

#[test]
fn large_parts_stay_in_their_rooms() {
    let parts = [
        ("wasmtime", vec!["sandbox"]),
        ("wiggle", vec!["sandbox"]),
        ("axum", vec!["serve"]),
        ("hyper", vec!["serve", "egress"]),
        ("hyper_util", vec!["serve", "egress"]),
        ("rustls", vec!["egress", "serve"]),
        ("hyper_rustls", vec!["cli"]),
        ("tokio_rustls", vec!["egress", "serve"]),
        ("jsonrpsee", vec!["serve", "govern"]),
        ("tower", vec!["govern"]),
        ("rusqlite", vec!["journal"]),
        ("cap_std", vec!["capability"]),
        ("ed25519_dalek", vec!["govern"]),
        ("ring::signature", vec!["govern"]),
        ("hmac", vec!["govern", "wire/nexus"]),
        ("aes_gcm", vec!["wire/nexus"]),
        ("serde_json_canonicalizer", vec!["govern"]),
        ("anyhow", vec!["cli", "main"]),
        ("clap", vec!["cli", "main"]),
        ("prometheus_client", vec!["metrics"]),
        ("tracing_subscriber", vec!["cli"]),
        ("opentelemetry", vec!["cli"]),
        ("opentelemetry_http", vec!["cli"]),
        ("opentelemetry_otlp", vec!["cli"]),
        ("opentelemetry_sdk", vec!["cli"]),
    ];
    for (room, path, code) in files() {
        for (part, rooms) in &parts {
            let named = names(&code, part) || names(&code, &format!("{part}_wasi"));
            let below = |folder: &&str| path.starts_with(root().join("executor/src").join(folder));
            let may = rooms.contains(&room.as_str()) || rooms.iter().any(below);
            assert!(!named || may, "{} names {part}", path.display());
        }
    }
}

#[test]
fn types_that_carry_authority_cannot_be_made_from_the_wire() {
    let mut seen = 0;
    for (_, path, code) in files() {
        for kind in ["Grant", "Permit", "Admitted", "Authentic", "Escalated", "Caller"] {
            for maker in ["Default", "Deserialize<'de>", "FromStr"] {
                assert!(
                    !code.contains(&format!("{maker} for {kind} ")),
                    "{}: {maker} for {kind}",
                    path.display()
                );
            }
            let declared = [format!("pub struct {kind} {{"), format!("pub struct {kind}(")];
            let Some(at) = declared.iter().find_map(|declaration| code.find(declaration)) else { continue };
            let attributes = code[..at].rsplit("\n\n").next().unwrap();
            assert!(
                !attributes.contains("Deserialize") && !attributes.contains("Default"),
                "{kind}: {attributes}"
            );
            let fields = code[at..].split('}').next().unwrap();
            assert!(!fields.contains("    pub "), "{kind} has a public field");
            seen += 1;
        }
    }
    assert_eq!(seen, 6, "a type that carries authority was not found");
}

#[test]
fn a_permit_is_handed_over_to_a_child_and_nowhere_else() {
    let naming = files().into_iter().filter(|(_, _, code)| code.contains("Handover"));
    let rooms = naming.map(|(room, ..)| room).collect::<BTreeSet<_>>();
    assert_eq!(rooms, BTreeSet::from(["capability".to_owned(), "isolate".to_owned()]));
}

#[test]
fn unsafe_code_stays_where_its_reasons_are() {
    let allowing = files().into_iter().filter(|(_, _, code)| code.contains("unsafe {"));
    let mut paths =
        allowing.map(|(_, path, _)| path.strip_prefix(root()).unwrap().to_owned()).collect::<Vec<_>>();
    paths.sort();
    let known = ["isolate/confine.rs", "isolate/process.rs", "memory.rs", "sandbox/artifact.rs"];
    assert_eq!(paths, known.map(|path| Path::new("executor/src").join(path)));
}
