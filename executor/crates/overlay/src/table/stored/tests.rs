use super::*;

/// A table of two roots, in which `a` was moved to `b`, `c` was removed, and `d` was made.
fn table() -> serde_json::Value {
    serde_json::json!({
        "version": 1,
        "nodes": [
            node(0, folder(&[("a", None), ("b", Some(2)), ("c", None), ("d", Some(3))]), path(0, &[])),
            node(1, folder(&[]), path(1, &[])),
            node(2, folder(&[("x", Some(4))]), path(0, &["a"])),
            node(3, serde_json::json!({ "upper_file": { "number": 1 } }), serde_json::Value::Null),
            node(4, serde_json::json!("lower_file"), path(0, &["a", "x"])),
        ],
        "originals": [
            original(&path(0, &[]), "folder"),
            original(&path(1, &[]), "folder"),
            original(&path(0, &["a"]), "folder"),
            original(&path(0, &["a", "x"]), "file"),
            original(&path(0, &["c"]), "file"),
        ],
        "next_node": 5,
        "next_content": 2,
    })
}

pub(crate) fn path(root: usize, names: &[&str]) -> serde_json::Value {
    serde_json::json!({ "root": root, "names": names })
}

pub(crate) fn folder(entries: &[(&str, Option<u64>)]) -> serde_json::Value {
    let entry = |(name, node): &(&str, Option<u64>)| serde_json::json!({ "name": name, "node": node });
    serde_json::json!({ "folder": { "entries": entries.iter().map(entry).collect::<Vec<_>>() } })
}

pub(crate) fn node(id: u64, kind: serde_json::Value, origin: serde_json::Value) -> serde_json::Value {
    let mode = 0o755;
    let time = serde_json::Value::Null;
    serde_json::json!({
        "id": id, "kind": kind, "origin": origin, "mode": mode, "modified": time, "accessed": time, "changed": time,
    })
}

pub(crate) fn original(path: &serde_json::Value, kind: &str) -> serde_json::Value {
    let time = serde_json::json!({ "seconds": 1, "nanoseconds": 0 });
    let seen = serde_json::json!({
        "kind": kind, "device": 1, "inode": 1, "size": 0, "mode": 0o755, "mtime": time, "ctime": time, "nlink": 1,
    });
    serde_json::json!({ "path": path, "seen": seen })
}

pub(crate) fn read(table: &serde_json::Value) -> Result<Table, TableError> {
    Table::from_bytes(&serde_json::to_vec(table).unwrap(), 2)
}

#[test]
fn a_table_is_read_as_it_was_written() {
    let read = read(&table()).unwrap();
    let bytes = read.to_bytes().unwrap();
    let again = Table::from_bytes(&bytes, 2).unwrap();
    assert_eq!(again.to_bytes().unwrap(), bytes);
    assert_eq!(read.path_of(NodeId(4)).unwrap().names, [Name::new("b").unwrap(), Name::new("x").unwrap()]);
}

#[test]
fn a_table_that_no_view_makes_is_refused() {
    let null = serde_json::Value::Null;
    let time = serde_json::json!({ "set": { "seconds": 1, "nanoseconds": 1_000_000_000 } });
    for (pointer, value, reason) in [
        ("/version", 2.into(), "another version"),
        ("/next_node", 4.into(), "a number that was not given"),
        ("/next_content", 1.into(), "was not given"),
        ("/nodes/3/kind/upper_file/number", 0.into(), "was not given"),
        ("/nodes/4/kind", serde_json::json!({ "link": { "target": "" } }), "target of a link"),
        ("/nodes/4/kind", serde_json::json!({ "link": { "target": "a" } }), "of different kinds"),
        ("/nodes/4/kind", serde_json::json!({ "link": { "target": "%41" } }), "target of a link"),
        ("/nodes/3/kind", "lower_file".into(), "without origin"),
        ("/nodes/3/kind", "other".into(), "without origin"),
        ("/nodes/3/mode", 0o10_000.into(), "a mode or a time"),
        ("/nodes/3/modified", time, "a mode or a time"),
        ("/nodes/3/id", 4.into(), "the same number"),
        ("/nodes/3/origin", path(0, &["new"]), "never seen"),
        ("/nodes/4/origin", path(0, &["a"]), "of different kinds"),
        ("/nodes/4/origin", path(2, &["a", "x"]), "never seen"),
        ("/nodes/1/origin", path(0, &[]), "two places"),
        ("/nodes/1/kind", folder(&[("loop", Some(1))]), "two places"),
        ("/nodes/1/kind", folder(&[("again", Some(3))]), "two places"),
        ("/nodes/1/kind", folder(&[("again", Some(9))]), "does not exist"),
        ("/nodes/1/kind", folder(&[("unseen", None)]), "not an original"),
        ("/nodes/1/kind", folder(&[("x", None), ("x", None)]), "a name twice"),
        ("/nodes/2/kind", folder(&[]), "at no place"),
        // A cycle that no root reaches.
        ("/nodes/0/kind", folder(&[("a", None), ("c", None), ("d", Some(3))]), "at no place"),
        // `a` could be seen at its first place.
        ("/nodes/0/kind/folder/entries/0/name", "c2".into(), "not an original"),
        ("/nodes/0/kind", folder(&[("b", Some(2)), ("c", None), ("d", Some(3))]), "two places"),
        ("/nodes/0/kind/folder/entries/0/name", "..".into(), ""),
        ("/nodes/0/kind/folder/entries/0/name", "a/b".into(), ""),
        ("/originals/0/seen/mode", 0o40_755.into(), "the state of an original"),
        ("/originals/0/path", path(1, &[]), "occurs twice"),
        ("/originals/0/path", path(2, &[]), "the state of an original"),
        ("/originals/0/seen/kind", "device".into(), ""),
        ("/nodes/0/kind", null, ""),
    ] {
        let mut table = table();
        *table.pointer_mut(pointer).unwrap() = value.clone();
        let error = read(&table).unwrap_err();
        let is_right = match &error {
            TableError::Invalid(found) => !reason.is_empty() && found.contains(reason),
            TableError::Malformed(_) => reason.is_empty(),
            TableError::TooLarge | TableError::NoRoom | TableError::Unwritten(_) => false,
        };
        assert!(is_right, "{pointer} = {value}: {error:?}");
    }
    let mut unknown = table();
    unknown["more"] = 1.into();
    assert!(matches!(read(&unknown), Err(TableError::Malformed(_))));
    assert!(matches!(
        Table::from_bytes(&serde_json::to_vec(&table()).unwrap(), 3),
        Err(TableError::Invalid(_))
    ));
}

#[test]
fn a_table_takes_no_more_than_its_reader_has() {
    let folders = ["d"; 200];
    let mut table = table();
    for file in 0..1_000 {
        let name = file.to_string();
        let names = [&folders[..], &[name.as_str()]].concat();
        table["originals"].as_array_mut().unwrap().push(original(&path(0, &names), "file"));
    }
    let bytes = serde_json::to_vec(&table).unwrap();
    let mut all = 0;
    let whole = Table::from_bytes_within(&bytes, 2, &mut |heap| {
        all = heap;
        true
    });
    assert_eq!(whole.unwrap().originals().len(), 1_005);
    // A name takes 16 bytes in each path, and its letters are in memory once.
    assert!((3 << 20..4 << 20).contains(&all), "{all} for {} bytes", bytes.len());
    for limit in [0, 1 << 20, all - 1] {
        let mut most = 0;
        let refused = Table::from_bytes_within(&bytes, 2, &mut |heap| {
            most = heap;
            heap <= limit
        });
        assert!(matches!(refused, Err(TableError::NoRoom)), "{refused:?}");
        assert!(most <= limit + 2 * STEP_BYTES, "{most} is asked for, of {limit}");
    }
}

#[test]
fn a_table_of_too_many_parts_is_not_read_to_its_end() {
    let seen = original(&path(0, &[]), "file")["seen"].clone();
    let list_originals = |names: usize, files: usize| {
        let folders = r#""d","#.repeat(names - 1);
        let one = |file| format!(r#"{{"path":{{"root":0,"names":[{folders}"{file}"]}},"seen":{seen}}}"#);
        (0..files).map(one).collect::<Vec<_>>().join(",")
    };
    let folder = |entries: usize| {
        let entries = vec![r#"{"name":"x","node":null}"#; entries].join(",");
        format!(r#"{{"id":0,"kind":{{"folder":{{"entries":[{entries}]}}}}}}"#)
    };
    for (what, nodes, originals, is_too_large) in [
        ("one path", folder(0), list_originals(MAX_PATH_NAMES + 1, 1), false),
        ("one folder", folder(MAX_TABLE_ENTRIES + 1), String::new(), false),
        ("all paths", folder(0), list_originals(MAX_PATH_NAMES, MAX_TABLE_NAMES / MAX_PATH_NAMES + 1), true),
        ("all originals", folder(0), list_originals(1, MAX_TABLE_ENTRIES + 1), true),
    ] {
        let table = format!(
            r#"{{"version":1,"nodes":[{nodes}],"originals":[{originals}],"next_node":9,"next_content":1}}"#
        );
        let mut most = 0;
        let refused = Table::from_bytes_within(table.as_bytes(), 1, &mut |heap| {
            most = heap;
            true
        });
        let is_right = match &refused {
            Err(TableError::TooLarge) => is_too_large,
            Err(TableError::Malformed(_)) => !is_too_large,
            Err(TableError::NoRoom | TableError::Unwritten(_) | TableError::Invalid(_)) | Ok(_) => false,
        };
        assert!(is_right && most < 100 << 20, "{what}: {:?}, {most} bytes", refused.map(drop));
    }
    // A table that would not be read is not stored.
    let mut table = Table::default();
    let names = vec![Name::new("d").unwrap(); MAX_PATH_NAMES + 1];
    table.note_original(EntryPath { root: 0, names }, serde_json::from_value(seen).unwrap());
    assert!(matches!(table.to_bytes(), Err(TableError::TooLarge)));
}

/// Each of many moved originals has a long path, of which every part was moved as well.
#[test]
fn a_table_cannot_take_long_to_check() {
    let deep = (0..400).map(|_| "d").collect::<Vec<_>>();
    let mut table = table();
    let mut top = vec![("c", None), ("d", None)];
    let names = (0..2_000).map(|index| format!("n{index}")).collect::<Vec<_>>();
    let mut nodes = Vec::new();
    let mut originals = table["originals"].as_array().unwrap().clone();
    for depth in 1..=deep.len() {
        let id = 10 + depth as u64;
        let removed = names.iter().map(|name| (name.as_str(), None)).collect::<Vec<_>>();
        let entries = if depth == deep.len() { folder(&removed) } else { folder(&[("d", None)]) };
        nodes.push(node(id, entries, path(0, &deep[..depth])));
        originals.push(original(&path(0, &deep[..depth]), "folder"));
    }
    for (index, name) in names.iter().enumerate() {
        let id = 10_000 + index as u64;
        let origin = [&deep[..], &[name]].concat();
        nodes.push(node(id, "lower_file".into(), path(0, &origin)));
        originals.push(original(&path(0, &origin), "file"));
        top.push((name, Some(id)));
    }
    let moved = (1..=deep.len()).map(|depth| format!("m{depth}")).collect::<Vec<_>>();
    top.extend(moved.iter().zip(11..).map(|(name, id)| (name.as_str(), Some(id))));
    nodes.insert(0, node(0, folder(&top), path(0, &[])));
    nodes.insert(1, node(1, folder(&[]), path(1, &[])));
    originals.retain(|original| original["path"]["names"][0] != "a");
    table["nodes"] = nodes.into();
    table["originals"] = originals.into();
    table["next_node"] = 100_000.into();
    let error = read(&table).unwrap_err();
    assert!(matches!(error, TableError::Invalid(reason) if reason.contains("too deep")), "{error}");
}
