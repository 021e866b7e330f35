use super::*;
use crate::table::stored_tests::{folder, node, original, path, read};
use serde_json::{Value, json};

/// A table with a folder `moved` from `old`, a removed file `gone` and folder `gone_folder`, and what the program made: the
/// file `made` (with content 1), the folder `made_folder` with a file, and a link.
fn before() -> Value {
    json!({
        "version": 1,
        "nodes": [
            node(0, folder(&top()), path(0, &[])),
            node(1, folder(&[]), path(1, &[])),
            node(2, folder(&[("x", Some(4))]), path(0, &["old"])),
            made(3, json!({ "upper_file": { "number": 1 } })),
            node(4, json!("lower_file"), path(0, &["old", "x"])),
            made(5, folder(&[("inner", Some(6))])),
            made(6, json!({ "upper_file": { "number": 2 } })),
            made(7, json!({ "link": { "target": "made" } })),
        ],
        "originals": [
            original(&path(0, &[]), "folder"),
            original(&path(1, &[]), "folder"),
            original(&path(0, &["old"]), "folder"),
            original(&path(0, &["old", "x"]), "file"),
            original(&path(0, &["gone"]), "file"),
            original(&path(0, &["gone_folder"]), "folder"),
            original(&path(0, &["seen"]), "file"),
        ],
        "next_node": 20,
        "next_content": 10,
    })
}

fn top() -> Vec<(&'static str, Option<u64>)> {
    vec![
        ("gone", None),
        ("gone_folder", None),
        ("link", Some(7)),
        ("made", Some(3)),
        ("made_folder", Some(5)),
        ("moved", Some(2)),
        ("old", None),
    ]
}

fn made(id: u64, kind: Value) -> Value {
    node(id, kind, Value::Null)
}

fn file(number: u64) -> Value {
    json!({ "upper_file": { "number": number } })
}

/// Gives the folder at the top other entries in place of those of these names, or in addition.
fn set_top(table: &mut Value, entries: &[(&'static str, Option<u64>)]) {
    let mut all = top();
    all.retain(|(name, _)| !entries.iter().any(|(other, _)| other == name));
    all.extend(entries);
    table["nodes"][0]["kind"] = folder(&all);
}

/// Makes the granted folder `mine` known, with these entries.
fn set_mine(table: &mut Value, entries: &[(&'static str, Option<u64>)]) {
    add(table, "originals", original(&path(0, &["mine"]), "folder"));
    add(table, "nodes", node(20, folder(entries), path(0, &["mine"])));
    let mut names = top();
    names.push(("mine", Some(20)));
    table["nodes"][0]["kind"] = folder(&names);
    table["next_node"] = 30.into();
    table["next_content"] = 20.into();
}

fn add(table: &mut Value, list: &str, item: Value) {
    table[list].as_array_mut().unwrap().push(item);
}

fn remove_name(table: &mut Value, name: &str) {
    let entries = table["nodes"][0]["kind"]["folder"]["entries"].as_array_mut().unwrap();
    entries.retain(|entry| entry["name"] != name);
}

fn remove_node(table: &mut Value, id: u64) {
    table["nodes"].as_array_mut().unwrap().retain(|node| node["id"] != id);
}

fn set(table: &mut Value, id: u64, field: &str, value: Value) {
    let nodes = table["nodes"].as_array_mut().unwrap();
    nodes.iter_mut().find(|node| node["id"] == id).unwrap()[field] = value;
}

fn time(kind: &str) -> Value {
    json!({ kind: { "seconds": 7, "nanoseconds": 0 } })
}

/// The member may do anything below `mine`, and nothing else.
fn check(change: impl FnOnce(&mut Value)) -> Result<(), MemberError> {
    let mut after = before();
    change(&mut after);
    let after = read(&after).unwrap();
    let is_mine = |path: &EntryPath| path.names.first().is_some_and(|name| name.as_bytes() == b"mine");
    Table::check_member(&read(&before()).unwrap(), &after, |path, _| is_mine(path))
}

fn not_granted(names: &[&str]) -> MemberError {
    MemberError::NotGranted(entry_path(names))
}

fn entry_path(names: &[&str]) -> EntryPath {
    EntryPath { root: 0, names: names.iter().map(|name| Name::new(name).unwrap()).collect() }
}

type Change = fn(&mut Value);
type Case = (&'static str, Change, fn() -> MemberError);

const FORGED: &[Case] = &[
    (
        "another content",
        |table| {
            set(table, 3, "kind", file(10));
            table["next_content"] = 11.into();
        },
        || not_granted(&["made"]),
    ),
    ("an earlier content", |table| set(table, 3, "kind", file(5)), || MemberError::Numbers),
    ("another mode", |table| set(table, 4, "mode", 0o777.into()), || not_granted(&["moved", "x"])),
    ("a time", |table| set(table, 4, "modified", time("set")), || not_granted(&["moved", "x"])),
    ("a time of a folder", |table| set(table, 0, "modified", time("set")), || not_granted(&[])),
    (
        "a time that only a folder has",
        |table| set(table, 3, "modified", time("by_entries")),
        || not_granted(&["made"]),
    ),
    (
        "another target",
        |table| set(table, 7, "kind", json!({ "link": { "target": "moved" } })),
        || not_granted(&["link"]),
    ),
    (
        "a removed file",
        |table| {
            remove_node(table, 3);
            remove_name(table, "made");
        },
        || not_granted(&["made"]),
    ),
    (
        "a renamed file",
        |table| {
            remove_name(table, "made");
            set_top(table, &[("renamed", Some(3))]);
            remove_name(table, "made");
        },
        || not_granted(&["made"]),
    ),
    (
        "a file taken away",
        |table| {
            set_mine(table, &[("made", Some(3))]);
            remove_name(table, "made");
        },
        || not_granted(&["made"]),
    ),
    (
        "a folder taken away with what is in it",
        |table| {
            set_mine(table, &[("moved", Some(2))]);
            remove_name(table, "moved");
        },
        || not_granted(&["moved"]),
    ),
    (
        "a file out of a made folder",
        |table| {
            set_mine(table, &[("inner", Some(6))]);
            set(table, 5, "kind", folder(&[]));
        },
        || not_granted(&["made_folder", "inner"]),
    ),
    (
        "a new file",
        |table| {
            set_top(table, &[("new", Some(20))]);
            add(table, "nodes", made(20, file(10)));
            table["next_node"] = 21.into();
            table["next_content"] = 11.into();
        },
        || not_granted(&["new"]),
    ),
    (
        "a new file in place of one that nobody knew",
        |table| {
            set_top(table, &[("seen", Some(20))]);
            add(table, "nodes", made(20, folder(&[])));
            table["next_node"] = 21.into();
        },
        || not_granted(&["seen"]),
    ),
    (
        "a number that was given",
        |table| {
            set_mine(table, &[("new", Some(19))]);
            add(table, "nodes", made(19, folder(&[])));
        },
        || MemberError::Numbers,
    ),
    (
        "a content that was given",
        |table| {
            set_mine(table, &[("new", Some(21))]);
            add(table, "nodes", made(21, file(9)));
        },
        || MemberError::Numbers,
    ),
    (
        "the number of another entry",
        |table| {
            set_mine(table, &[("new", Some(3))]);
            set_top(table, &[("mine", Some(20)), ("made", Some(21))]);
            add(table, "nodes", made(21, file(10)));
            set(table, 3, "kind", file(1));
        },
        || not_granted(&["made"]),
    ),
    (
        "the number of an original",
        |table| {
            set_mine(table, &[("f", Some(4))]);
            set(table, 2, "kind", folder(&[]));
            set(table, 4, "origin", path(0, &["mine", "f"]));
            add(table, "originals", original(&path(0, &["mine", "f"]), "file"));
        },
        || MemberError::Numbers,
    ),
    ("a lower next number", |table| table["next_node"] = 19.into(), || MemberError::Numbers),
    ("a lower next content", |table| table["next_content"] = 9.into(), || MemberError::Numbers),
    ("a removed original that is back", |table| remove_name(table, "gone"), || not_granted(&["gone"])),
    (
        "a removed original that is somewhere else",
        |table| {
            set_mine(table, &[("got", Some(21))]);
            add(table, "nodes", node(21, json!("lower_file"), path(0, &["gone"])));
        },
        || not_granted(&["mine", "got"]),
    ),
    (
        "an original of a removed folder",
        |table| {
            set_mine(table, &[("got", Some(21))]);
            add(table, "nodes", node(21, json!("lower_file"), path(0, &["gone_folder", "in"])));
            add(table, "originals", original(&path(0, &["gone_folder", "in"]), "file"));
        },
        || MemberError::Reads(entry_path(&["gone_folder", "in"])),
    ),
    (
        "an original from elsewhere",
        |table| {
            set_mine(table, &[("got", Some(21))]);
            set_top(table, &[("mine", Some(20)), ("secret", None)]);
            add(table, "nodes", node(21, json!("lower_file"), path(0, &["secret"])));
            add(table, "originals", original(&path(0, &["secret"]), "file"));
        },
        || not_granted(&["secret"]),
    ),
    (
        "a folder from elsewhere",
        |table| {
            set_mine(table, &[("got", Some(21))]);
            set_top(table, &[("mine", Some(20)), ("secret", None)]);
            add(table, "nodes", node(21, folder(&[]), path(0, &["secret"])));
            add(table, "originals", original(&path(0, &["secret"]), "folder"));
        },
        || not_granted(&["secret"]),
    ),
    (
        "an original of the moved folder",
        |table| {
            set_mine(table, &[("got", Some(21))]);
            set(table, 2, "kind", folder(&[("x", Some(4)), ("y", None)]));
            add(table, "nodes", node(21, json!("lower_file"), path(0, &["old", "y"])));
            add(table, "originals", original(&path(0, &["old", "y"]), "file"));
        },
        || not_granted(&["moved", "y"]),
    ),
    (
        "a removed original",
        |table| {
            set_top(table, &[("other", None)]);
            add(table, "originals", original(&path(0, &["other"]), "folder"));
        },
        || not_granted(&["other"]),
    ),
    (
        "a read of another file",
        |table| add(table, "originals", original(&path(0, &["secret"]), "file")),
        || not_granted(&["secret"]),
    ),
    (
        "another state of what was read",
        |table| table["originals"][6]["seen"]["inode"] = 2.into(),
        || MemberError::Reads(entry_path(&["seen"])),
    ),
    (
        "a forgotten read",
        |table| drop(table["originals"].as_array_mut().unwrap().remove(6)),
        || MemberError::Reads(entry_path(&["seen"])),
    ),
    (
        "a forgotten original with its node",
        |table| {
            remove_node(table, 4);
            set(table, 2, "kind", folder(&[]));
            table["originals"].as_array_mut().unwrap().remove(3);
        },
        || MemberError::Reads(entry_path(&["old", "x"])),
    ),
    (
        "a folder that was moved back",
        |table| {
            set_top(table, &[("old", Some(2))]);
            remove_name(table, "moved");
        },
        || not_granted(&["moved"]),
    ),
];

#[test]
fn what_was_not_granted_is_not_taken() {
    for (what, change, error) in FORGED {
        assert_eq!(check(change), Err(error()), "{what}");
    }
}

const TRUE: &[(&str, Change)] = &[
    ("nothing", |_| {}),
    ("entries that came and went", |table| set(table, 0, "modified", time("by_entries"))),
    ("a time of access", |table| set(table, 3, "accessed", time("set")["set"].clone())),
    ("a folder that is open", |table| {
        set_mine(table, &[]);
        set(table, 20, "pinned", true.into());
    }),
    ("a read file, and the folders and links on its way", |table| {
        for (names, kind) in [(&["mine", "f"][..], "file"), (&["way"], "folder"), (&["way", "link"], "link")]
        {
            add(table, "originals", original(&path(0, names), kind));
        }
    }),
    ("new, moved and removed entries", |table| {
        set_mine(table, &[("f", None), ("g", Some(21)), ("h", None), ("new", Some(22)), ("sub", Some(23))]);
        add(table, "nodes", node(21, file(11), path(0, &["mine", "f"])));
        add(table, "nodes", made(22, file(10)));
        add(table, "nodes", made(23, folder(&[])));
        for name in ["f", "h"] {
            add(table, "originals", original(&path(0, &["mine", name]), "file"));
        }
    }),
];

#[test]
fn what_was_granted_is_taken() {
    for (what, change) in TRUE {
        assert_eq!(check(change), Ok(()), "{what}");
    }
}

#[test]
fn a_moved_folder_needs_a_right_to_all_in_it() {
    let mut after = before();
    set_top(&mut after, &[("again", Some(2))]);
    remove_name(&mut after, "moved");
    let acts = std::cell::RefCell::new(Vec::new());
    let grant = |path: &EntryPath, act: Act| {
        acts.borrow_mut().push((path.clone(), act));
        true
    };
    Table::check_member(&read(&before()).unwrap(), &read(&after).unwrap(), grant).unwrap();
    let expected = [(entry_path(&["moved"]), Act::Move), (entry_path(&["again"]), Act::Move)];
    assert_eq!(acts.into_inner(), expected);
}

#[test]
fn what_was_moved_in_is_named() {
    let mut table = before();
    set_mine(&mut table, &[("a", Some(21)), ("b", Some(22)), ("c", Some(23)), ("own", Some(24))]);
    add(&mut table, "nodes", node(21, folder(&[("deep", Some(25))]), path(0, &["from"])));
    add(&mut table, "nodes", node(22, file(11), path(0, &["rewritten"])));
    add(&mut table, "nodes", node(23, json!("lower_file"), path(1, &["file"])));
    add(&mut table, "nodes", node(24, folder(&[]), path(0, &["mine", "before"])));
    add(&mut table, "nodes", node(25, json!("lower_file"), path(0, &["from", "sub", "deep"])));
    for (root, names, kind) in [
        (0, &["from"][..], "folder"),
        (0, &["rewritten"], "file"),
        (1, &["file"], "file"),
        (0, &["mine", "before"], "folder"),
        (0, &["from", "sub", "deep"], "file"),
    ] {
        add(&mut table, "originals", original(&path(root, names), kind));
    }
    // What was moved out of its folder is removed there.
    let mut all = top();
    all.extend([("mine", Some(20)), ("from", None), ("rewritten", None)]);
    table["nodes"][0]["kind"] = folder(&all);
    table["nodes"][1]["kind"] = folder(&[("file", None)]);
    set(
        &mut table,
        20,
        "kind",
        folder(&[("a", Some(21)), ("b", Some(22)), ("before", None), ("c", Some(23)), ("own", Some(24))]),
    );
    set(&mut table, 21, "kind", folder(&[("deep", Some(25)), ("sub", Some(26))]));
    add(&mut table, "nodes", node(26, folder(&[("deep", None)]), path(0, &["from", "sub"])));
    add(&mut table, "originals", original(&path(0, &["from", "sub"]), "folder"));
    let table = read(&table).unwrap();
    let elsewhere = EntryPath { root: 1, names: vec![Name::new("file").unwrap()] };
    assert_eq!(table.moved_in(&[entry_path(&["mine"])]), [entry_path(&["from"]), elsewhere]);
    // Below the moved folder, with and without a node.
    assert_eq!(table.moved_in(&[entry_path(&["moved"])]), [entry_path(&["old"])]);
    assert_eq!(table.moved_in(&[entry_path(&["moved", "y", "z"])]), [entry_path(&["old", "y", "z"])]);
    for nothing in [&["made_folder"][..], &["made_folder", "x"], &["gone"], &["old"], &["other"], &[]] {
        let found = table.moved_in(&[entry_path(nothing)]);
        let is_all = nothing.is_empty();
        assert_eq!(found.len(), usize::from(is_all), "{nothing:?}: {found:?}");
    }
}
