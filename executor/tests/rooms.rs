//! `docs/architecture.md` lists the allowed dependencies; these tests compare the sources with it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "a test stops at the first surprise, and reads of a syntax tree what concerns it"
)]

mod source;

use source::{AuthorityItems, Name, NamePath, SourceFile, authority_items, files, names, root};
use std::collections::{BTreeMap, BTreeSet};

const VOCABULARY: [&str; 27] = [
    "json_schema",
    "ident",
    "node",
    "quantity",
    "clock",
    "memory",
    "spawn",
    "aside",
    "limit",
    "limit_keys",
    "log_limiter",
    "error_chain",
    "rate_limit",
    "session",
    "json",
    "strict_json",
    "call",
    "verdict",
    "request",
    "tool",
    "outcome",
    "durability",
    "failure_message",
    "fault",
    "grant",
    "stop",
    "visible_text",
];

const DOORS: [&str; 6] = ["a2g", "a2a", "a2e", "mcp", "nexus", "sovereign"];

/// The table of `docs/architecture.md`: a module and the modules that it may use.
fn table() -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let section = text.split("## Allowed dependencies").nth(1).unwrap().split("\n\n##").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| module"));
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

/// The room that a path reaches into; an error for one that stands for all rooms at once.
fn room_of(name: &Name) -> Result<Option<&str>, String> {
    match &name.path {
        NamePath::Scope(_) => Ok(None),
        NamePath::Crate(segments) => match segments.first().map(String::as_str) {
            None | Some("*") => Err("the root of the crate is imported: name the room".to_owned()),
            Some(room) => Ok(Some(room)),
        },
    }
}

#[test]
fn every_room_uses_only_what_the_table_allows() {
    let table = table();
    assert!(table.len() > 10, "the table of docs/architecture.md was not understood: {table:?}");
    for SourceFile { room, path, names, .. } in files() {
        if ["main", "cli"].contains(&room.as_str()) {
            continue;
        }
        if room == "lib" {
            // In a crate of several modules, a re-export at its root would be a way around the table.
            assert!(names.iter().all(|name| room_of(name) == Ok(None)), "{path} names a room");
            continue;
        }
        let key = if VOCABULARY.contains(&room.as_str()) { "vocabulary" } else { room };
        let may = table.get(key).unwrap_or_else(|| panic!("`{room}` is not in the table"));
        for name in names {
            let Some(used) = room_of(name).unwrap_or_else(|error| panic!("{path}: {error}")) else {
                continue;
            };
            assert!(used == room || may.contains(used), "{path}: `{room}` may not use `{used}`");
        }
    }
}

/// The table of `docs/architecture.md`: a crate and those that it depends on, as written there.
#[test]
fn crates_depend_on_each_other_as_the_table_says() {
    let text = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let section = text.split("## Crates").nth(1).unwrap().split("\n\n##").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let mut listed = BTreeMap::new();
    for row in rows {
        let cells =
            row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect::<Vec<_>>();
        let on = cells[1].split(", ").filter(|name| *name != "none").map(str::to_owned);
        listed.insert(cells[0].clone(), on.collect::<BTreeSet<_>>());
    }
    // A crate under another name or in another place would be read as a foreign one.
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for (name, rest) in workspace
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .filter(|(name, _)| name.starts_with("a2g-"))
    {
        let folder = name.strip_prefix("a2g-").unwrap();
        let expected = if folder == "executor" {
            "\"executor\"".to_owned()
        } else {
            format!("\"executor/crates/{folder}\"")
        };
        assert!(rest.contains(&format!("path = {expected}")) && !rest.contains("package"), "{name}: {rest}");
    }
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("executor/crates")).unwrap() {
        let entry = entry.unwrap();
        let manifest = std::fs::read_to_string(entry.path().join("Cargo.toml")).unwrap();
        for word in ["package =", "path =", "[dependencies.", "[target.", "[build-dependencies", "build ="] {
            assert!(
                !manifest.contains(word),
                "{}: `{word}` is not read by this test",
                entry.path().display()
            );
        }
        assert!(!entry.path().join("build.rs").exists(), "a build script is not read by this test");
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap().lines();
        let names = dependencies.filter_map(|line| line.split(['.', ' ']).next()).collect::<Vec<_>>();
        let name = entry.file_name().into_string().unwrap();
        if ["capability", "journal", "metrics", "policy", "redact", "types", "wire"].contains(&name.as_str())
        {
            let asynchronous = ["tokio", "tokio-util", "hyper", "axum"];
            let may = if name == "journal" { asynchronous[..2].to_vec() } else { Vec::new() };
            for one in asynchronous.iter().filter(|one| !may.contains(one)) {
                assert!(!names.contains(one), "{name} depends on {one}");
            }
        }
        let ours = names.iter().filter_map(|one| one.strip_prefix("a2g-")).map(str::to_owned);
        found.insert(name, ours.collect::<BTreeSet<_>>());
    }
    assert_eq!(found, listed);
}

/// The forms in which a file of `serve/a2a` could name another room.
#[test]
fn every_form_of_a_path_is_attributed_to_its_room() {
    let forms = [
        "use crate::journal::Journal;",
        "use crate::{call::Call, journal::{Journal, JournalError as E,},};",
        "use {crate::journal};",
        "use super::super::super::journal::Journal;",
        "use super::super::{serve, super::journal};",
        "mod inner { use super::super::super::super::journal; }",
        "fn f() { log!(crate::journal::HEAD, [crate :: journal :: f()]); }",
        "macro_rules! m { () => { $crate::journal::f() } }",
        "#[serde(with = \"crate::journal::format\")] struct S;",
        "fn f() -> Vec<crate::journal::Record> {}",
        "pub(crate) struct S(pub crate::journal::Record);",
        "pub(in crate::serve) fn f(of: impl crate::journal::T) {}",
    ];
    let module = ["serve", "a2a", "tasks"].map(str::to_owned).to_vec();
    for text in forms {
        let named = names(text, "", module.clone(), false);
        let rooms = named.iter().filter_map(|name| room_of(name).unwrap()).collect::<BTreeSet<_>>();
        assert!(rooms.contains("journal"), "{text}: {rooms:?}");
    }
    for text in
        ["use crate as all;", "use crate::*;", "use super::super::super::*;", "use crate::{self as all};"]
    {
        let named = names(text, "", module.clone(), false);
        assert!(named.iter().any(|name| room_of(name).is_err()), "{text}");
    }
    for text in
        ["pub(crate) fn f(self) {}", "/// See `crate::journal`.\nstruct S;", "fn f() -> impl T + use<> {}"]
    {
        assert!(
            names(text, "", module.clone(), false).iter().all(|name| room_of(name) == Ok(None)),
            "{text}"
        );
    }
}

/// The door that a path belongs to: `wire/<door>` or `serve/<door>`.
fn door<'a>(segments: &[&'a str]) -> Option<&'a str> {
    let [side, door, ..] = segments else { return None };
    let door = door.trim_end_matches(".rs");
    (["wire", "serve"].contains(side) && DOORS.contains(&door)).then_some(door)
}

#[test]
fn doors_never_use_each_other() {
    let mut seen = BTreeSet::new();
    for SourceFile { path, names, .. } in files() {
        let parts = path.split('/').collect::<Vec<_>>();
        let Some(own) = door(&parts) else { continue };
        seen.insert((parts[0].to_owned(), own.to_owned()));
        for name in names.iter().filter(|name| matches!(name.path, NamePath::Crate(_))) {
            let used = door(&name.segments().iter().map(String::as_str).collect::<Vec<_>>());
            assert!(used.is_none_or(|used| used == own), "{path} uses the door {used:?}");
        }
    }
    assert_eq!(seen.len(), 2 * DOORS.len(), "a side of a door was not found: {seen:?}");
}

/// `true` for a path of another crate, and for an import that makes another name for it.
fn is_of(name: &Name, part: &[&str]) -> bool {
    let NamePath::Scope(segments) = &name.path else { return false };
    let shared = segments.iter().zip(part).take_while(|(segment, part)| *segment == *part).count();
    // An import of a part's parent could name the part afterwards.
    let whole = shared == part.len() && (segments.len() > shared || name.imported);
    whole || (name.imported && shared > 0 && shared == segments.iter().filter(|one| *one != "*").count())
}

#[test]
fn heavy_dependencies_are_used_in_their_rooms_only() {
    let parts = [
        ("wasmtime", vec!["sandbox"]),
        ("wasmtime_wasi", vec!["sandbox"]),
        ("wasmtime_wasi_http", vec!["sandbox"]),
        ("wiggle", vec!["sandbox"]),
        ("axum", vec!["serve"]),
        ("hyper", vec!["serve/http", "serve/mcp", "egress", "cli/tool/registry"]),
        ("hyper_util", vec!["serve/http", "serve/mcp", "egress", "cli/tool/registry"]),
        ("rustls", vec!["egress", "serve"]),
        ("hyper_rustls", vec!["cli", "serve/mcp"]),
        ("tokio_rustls", vec!["egress", "serve/http"]),
        ("jsonrpsee", vec!["serve/a2g", "serve/http", "govern"]),
        ("tower", vec!["govern"]),
        ("async_nats", vec!["fleet"]),
        ("rusqlite", vec!["journal"]),
        ("cap_std", vec!["capability"]),
        ("aho_corasick", vec!["redact"]),
        ("cedar_policy", vec!["policy"]),
        ("ed25519_dalek", vec!["govern"]),
        ("ring::signature", vec!["govern"]),
        ("rustls_pki_types", vec!["govern"]),
        ("hmac", vec!["fleet", "govern", "secrets", "wire/nexus"]),
        ("aes_gcm", vec!["wire/nexus", "wire/mcp"]),
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
    for SourceFile { room, path, names, .. } in files() {
        for (part, rooms) in &parts {
            let segments = part.split("::").collect::<Vec<_>>();
            let below = |folder: &&str| path.starts_with(&format!("{folder}/"));
            let may = rooms.contains(&room.as_str()) || rooms.iter().any(below);
            assert!(may || !names.iter().any(|name| is_of(name, &segments)), "{path} names {part}");
        }
    }
}

/// Each type that carries authority or evidence of it, with all that gives others one by value. Evidence can be cloned:
/// it makes nothing run by itself.
const MAKERS: [(&str, &[&str]); 17] = [
    ("Authority", &["Authority::for_engine", "Authority::take", "take_authority"]),
    ("Granter", &["Granter::new"]),
    ("OperatorLimits", &["OperatorLimits::new"]),
    ("AcceptUnsigned", &["AcceptUnsigned::from_command_line", "derive(Clone)", "derive(Copy)"]),
    (
        "VerifiedVerdict",
        &[
            "VerifiedVerdict::from_governor_connection",
            "VerifiedVerdict::counted_as",
            "VerifiedVerdict::from_call",
            "VerifiedVerdict::from_node",
            "Governor::decide",
            "derive(Clone)",
        ],
    ),
    (
        "Escalated",
        &[
            "Escalated::bind_to_module",
            "Escalated::counted_by",
            "Escalated::from_journal",
            "Escalated::from_node",
            "OpenIntents::find_undecided",
            "OpenIntents::restore",
            "OpenIntents::take_approved",
            "OpenIntents::take_decided",
            "OpenIntents::take_undecided",
            "derive(Clone)",
        ],
    ),
    ("DecisionRight", &["Caller::decision_right", "DecisionRight::of_governor", "Governor::decision_right"]),
    ("StopRight", &["Caller::stop_right"]),
    (
        "Caller",
        &[
            "Caller::any_agent",
            "Caller::console_person",
            "Caller::anonymous",
            "Caller::local_person",
            "Callers::caller_from_node",
            "Callers::identify",
            "CallerDirectory::identify",
        ],
    ),
    (
        "Admitted",
        &["Admitted::grant", "Engine::admit_from_node", "Escalated::resolve", "OperatorLimits::admit"],
    ),
    (
        "Grant",
        &[
            "Admitted::grant",
            "Grant::bind_secrets",
            "Grant::for_operator",
            "Grant::from_transfer",
            "Grant::meet",
            "Grant::without_access",
        ],
    ),
    (
        "Permit",
        &[
            "Permit::new",
            "Permit::for_operator",
            "Permit::without_access",
            "Permit::open",
            "Permit::duplicate",
            "Permit::with_upper",
            "Permit::for_turn",
            "Permit::narrow_written",
            "ReceivedPermit::duplicate",
            "ReceivedPermit::duplicate_for_turn",
            "ReceivedPermit::into_permit",
        ],
    ),
    ("ReceivedPermit", &["Handover::receive"]),
    ("TrustedTool", &["ToolTrust::check", "check_trust", "derive(Clone)"]),
    ("Handover", &["Handover::from_permit", "derive(Deserialize)"]),
    (
        "NodeText",
        &["Messages::ask", "Messages::ask_all", "NodeText::from_authenticated", "PendingIntent::approvals"],
    ),
    ("PassedCall", &["Messages::take_call", "PassedCall::from_authenticated", "PendingIntent::call"]),
];

#[test]
fn only_listed_functions_construct_authority() {
    let kinds = MAKERS.map(|(kind, _)| kind);
    let mut found = AuthorityItems::default();
    files().iter().for_each(|file| authority_items(file, &kinds, &mut found));
    assert_eq!(
        found.declared,
        kinds.map(str::to_owned).into(),
        "a type that carries authority was not found"
    );
    assert_eq!(found.open, Vec::<String>::new());
    let named = MAKERS
        .iter()
        .flat_map(|(kind, makers)| makers.iter().map(move |maker| format!("{kind} from {maker}")));
    assert_eq!(found.makers, named.collect(), "the functions that make authority");
}

#[test]
fn only_the_command_line_takes_the_process_authority() {
    let mut takes = BTreeSet::new();
    let mut names_it = BTreeSet::new();
    for SourceFile { path, names, .. } in files() {
        for name in names.iter().filter(|name| !name.test) {
            let segments = name.segments();
            if segments.ends_with(&["Authority".to_owned(), "take".to_owned()]) {
                takes.insert(path.clone());
            }
            assert!(
                !segments.contains(&"for_engine".to_owned()),
                "{path}: the program has only the authority of the process"
            );
            // Other crates have types of this name.
            let ends = |with: &str| segments.ends_with(&["capability".to_owned(), with.to_owned()]);
            if ends("Authority") || ends("*") {
                names_it.insert(path.clone());
            }
        }
    }
    // A child takes the authority of its process with the one permit that it receives.
    assert_eq!(takes, BTreeSet::from(["capability/handover.rs", "cli/setup.rs"].map(str::to_owned)));
    // The sandbox reads of an authority which engine it is for.
    let rooms = names_it.iter().collect::<Vec<_>>();
    assert_eq!(rooms, ["cli/setup.rs", "govern/admit.rs", "sandbox/builder.rs"]);
}

/// These make a permit without a verdict: of the operator's limits, and for a tool that describes itself.
#[test]
fn permits_without_a_verdict_are_made_in_the_listed_files_only() {
    let listed = [
        ("for_operator", vec!["cli/run.rs"]),
        ("without_access", vec!["isolate/probe.rs", "sandbox/walk/tests.rs"]),
    ];
    for (constructor, listed) in listed {
        let is_named = |name: &Name| name.segments().ends_with(&[constructor.to_owned()]);
        let naming =
            files().iter().filter(|file| file.room != "capability" && file.names.iter().any(is_named));
        let naming = naming.map(|file| file.path.as_str()).collect::<BTreeSet<_>>();
        assert_eq!(naming, BTreeSet::from_iter(listed), "{constructor}");
    }
}

/// What another node says counts as verified, so only what checks its authentication code makes such a value.
#[test]
fn the_words_of_other_nodes_are_made_in_the_listed_files_only() {
    let is_named = |name: &Name| name.segments().ends_with(&["from_authenticated".to_owned()]);
    let naming = files().iter().filter(|file| file.names.iter().any(is_named));
    let naming = naming.map(|file| file.path.as_str()).collect::<BTreeSet<_>>();
    let listed = ["fleet/messages.rs", "fleet/pending.rs"];
    assert_eq!(naming, BTreeSet::from(listed));
}

/// The seam between the pipeline and the fleet.
#[test]
fn only_the_listed_files_of_the_pipeline_know_the_fleet() {
    let knows_it = |file: &&SourceFile| file.names.iter().any(|name| room_of(name) == Ok(Some("fleet")));
    let knowing = files().iter().filter(|file| file.room == "run").filter(knows_it);
    let knowing = knowing.map(|file| file.path.as_str()).collect::<BTreeSet<_>>();
    let listed = [
        "run/engine/passing/events.rs",
        "run/engine/passing/mod.rs",
        "run/engine/passing/waiting_nodes.rs",
        "run/engine/stored_calls.rs",
        "run/fleet.rs",
        "run/message_size.rs",
        "run/orders.rs",
        "run/pending/decide.rs",
        "run/pending/follow.rs",
        "run/pending/mod.rs",
        "run/questions.rs",
    ];
    assert_eq!(knowing, BTreeSet::from(listed));
}

#[test]
fn a_permit_is_handed_over_only_to_a_child() {
    let names_it =
        |file: &SourceFile| file.names.iter().any(|name| name.segments().iter().any(|s| s == "Handover"));
    let rooms =
        files().iter().filter(|file| names_it(file)).map(|file| file.room.clone()).collect::<BTreeSet<_>>();
    assert_eq!(rooms, BTreeSet::from(["capability".to_owned(), "isolate".to_owned()]));
}

#[test]
fn unsafe_code_is_confined_to_the_listed_files() {
    let has_unsafe = |file: &SourceFile| file.names.iter().any(|name| name.segments() == ["unsafe"]);
    let paths = files().iter().filter(|file| has_unsafe(file)).map(|file| file.path.as_str());
    let known = [
        "isolate/confine.rs",
        "isolate/process.rs",
        "memory.rs",
        "overlay/view/handles.rs",
        "sandbox/artifact.rs",
    ];
    assert_eq!(paths.collect::<BTreeSet<_>>(), BTreeSet::from(known));
}
