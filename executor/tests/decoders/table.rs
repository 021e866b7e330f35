//! The tables of file changes, which the processes of runs write.

use a2g_overlay::{Act, EntryPath, Name, Table};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const ROOTS: usize = 2;
/// The member may do anything below this folder of the first root, and nothing else.
const GRANTED: &str = "granted";

/// The input is two lines with a table each: those before and after the turn of one member. A table that is read is
/// written as the same bytes. If what the member says is taken, then every entry outside of its grant is what it was.
pub(crate) fn table(body: &[u8]) {
    let mut lines = body.splitn(2, |byte| *byte == b'\n');
    let Some(before) = read(lines.next()) else { return };
    assert_eq!(Table::check_member(&before.table, &before.table, |_, _| false), Ok(()));
    let Some(after) = read(lines.next()) else { return };
    let is_granted = |path: &EntryPath, _: Act| is_granted(path);
    if Table::check_member(&before.table, &after.table, is_granted).is_err() {
        return;
    }
    for path in before.paths().union(&after.paths()).filter(|path| !self::is_granted(path)) {
        let was = before.find(path);
        let is = after.find(path);
        assert!(is_same(was.as_ref(), is.as_ref()), "{path:?} was {was:?} and is {is:?}");
    }
}

fn is_granted(path: &EntryPath) -> bool {
    path.root == 0 && path.names.first().is_some_and(|name| name.as_bytes() == GRANTED.as_bytes())
}

struct Read {
    table: Table,
    nodes: BTreeMap<u64, Value>,
    roots: Vec<u64>,
    /// What was seen of each original.
    originals: BTreeMap<EntryPath, Value>,
}

fn read(line: Option<&[u8]>) -> Option<Read> {
    let line = line?;
    let table = Table::from_bytes(line, ROOTS).ok()?;
    let written = table.to_bytes().unwrap();
    assert_eq!(Table::from_bytes(&written, ROOTS).unwrap().to_bytes().unwrap(), written);
    let stored = serde_json::from_slice::<Value>(line).unwrap();
    let list = |name: &str| stored[name].as_array().unwrap().clone();
    let path = |value: &Value| serde_json::from_value::<EntryPath>(value.clone()).unwrap();
    let roots = list("nodes").iter().take(ROOTS).map(id).collect();
    let nodes = list("nodes").into_iter().map(|node| (id(&node), node)).collect();
    let originals = list("originals").into_iter().map(|original| (path(&original["path"]), original));
    Some(Read { table, nodes, roots, originals: originals.collect() })
}

fn id(node: &Value) -> u64 {
    node["id"].as_u64().unwrap()
}

/// An entry: which one it is, and what takes effect of it.
#[derive(Debug)]
struct Entry {
    identity: Identity,
    state: Value,
    /// `None` if the time of the last change is that of the original, or the entry is a folder of which entries came or went.
    time: Option<Value>,
    are_entries_touched: bool,
}

#[derive(Debug, PartialEq)]
enum Identity {
    Original(EntryPath),
    Made(u64),
}

fn is_same(was: Option<&Entry>, is: Option<&Entry>) -> bool {
    match (was, is) {
        (None, None) => true,
        (Some(was), Some(is)) => {
            let is_time_same = was.time == is.time || is.are_entries_touched;
            was.identity == is.identity && was.state == is.state && is_time_same
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

impl Read {
    /// The paths of all entries that the table knows: those of its nodes, and where each original was at the start.
    fn paths(&self) -> BTreeSet<EntryPath> {
        let mut paths = self.originals.keys().cloned().collect::<BTreeSet<_>>();
        let mut open = self.roots.iter().enumerate().map(|(root, id)| (EntryPath::of_root(root), *id));
        let mut open = open.by_ref().collect::<Vec<_>>();
        while let Some((path, id)) = open.pop() {
            for (name, node) in self.entries(id) {
                let path = path.child(&name);
                open.extend(node.map(|node| (path.clone(), node)));
                paths.insert(path);
            }
            paths.insert(path);
        }
        paths
    }

    fn entries(&self, id: u64) -> BTreeMap<Name, Option<u64>> {
        let entries = self.nodes[&id]["kind"]["folder"]["entries"].as_array().cloned().unwrap_or_default();
        let name = |entry: &Value| serde_json::from_value::<Name>(entry["name"].clone()).unwrap();
        entries.iter().map(|entry| (name(entry), entry["node"].as_u64())).collect()
    }

    /// The entry at a path; `None` if there is certainly none.
    fn find(&self, path: &EntryPath) -> Option<Entry> {
        let mut at = *self.roots.get(path.root)?;
        for (index, name) in path.names.iter().enumerate() {
            let node = &self.nodes[&at];
            if node["kind"]["folder"].is_null() {
                return None;
            }
            match self.entries(at).get(name) {
                Some(entry) => at = (*entry)?,
                None => {
                    let mut origin = origin(node)?;
                    origin.names.extend_from_slice(&path.names[index..]);
                    let identity = Identity::Original(origin);
                    let state = json!([null, null, null]);
                    return Some(Entry { identity, state, time: None, are_entries_touched: false });
                }
            }
        }
        Some(self.entry(at))
    }

    fn entry(&self, id: u64) -> Entry {
        let node = &self.nodes[&id];
        let origin = origin(node);
        let seen = origin.as_ref().and_then(|origin| self.originals.get(origin));
        let mode = Some(&node["mode"]).filter(|mode| seen.is_none_or(|seen| seen["seen"]["mode"] != **mode));
        let target = Some(&node["kind"]["link"]).filter(|_| origin.is_none());
        let state = json!([node["kind"]["upper_file"], mode, target.filter(|target| !target.is_null())]);
        let are_entries_touched =
            !node["kind"]["folder"].is_null() && !node["modified"]["by_entries"].is_null();
        let time = Some(node["modified"].clone()).filter(|time| !time.is_null() && !are_entries_touched);
        let identity = origin.map_or(Identity::Made(id), Identity::Original);
        Entry { identity, state, time, are_entries_touched }
    }
}

fn origin(node: &Value) -> Option<EntryPath> {
    serde_json::from_value(node["origin"].clone()).unwrap()
}
