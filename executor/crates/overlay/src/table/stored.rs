//! The stored form of a table: JSON, of which nothing is believed when it is read.
//!
//! The process that ran the program wrote the table, and the program may have taken that process over. What a false table
//! can say is therefore no more than a true one could: changes below the roots, which people see before the commit.

use super::{Content, Modified, Node, NodeId, NodeKind, Originals, Override, Place, Table, TooDeep};
use crate::name::{EntryPath, Name, escape, unescape};
use crate::seen::{EntryKind, FileTime, MODE_BITS, Seen};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

/// The longest stored table, in bytes.
pub const MAX_TABLE_BYTES: usize = 64 << 20;

/// The longest target of a symbolic link, in bytes: Linux's limit of a path, without its NUL.
pub(crate) const MAX_TARGET_BYTES: usize = 4095;

/// The highest number of the next node or content: with more, a view could run out of numbers.
const MAX_NUMBER: u64 = 1 << 48;

/// The version of the form. A table is read by the program that wrote it, or by none.
const VERSION: u32 = 1;

/// The reason why bytes are not a table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The table is longer than it may be.
    #[error("the table of changes has {bytes} bytes, and may have {MAX_TABLE_BYTES}: change less in one run")]
    TooLong {
        /// The length of the table.
        bytes: usize,
    },
    /// The bytes are not the JSON of a table.
    #[error("the table of changes cannot be read: run it again")]
    Malformed(#[from] serde_json::Error),
    /// The table contradicts itself or its roots.
    #[error("the table of changes is not valid ({0}): check the tool")]
    Invalid(&'static str),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredTable {
    version: u32,
    /// The nodes; the first ones are the roots.
    nodes: Vec<StoredNode>,
    originals: Vec<StoredOriginal>,
    next_node: u64,
    next_content: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredOriginal {
    path: EntryPath,
    seen: Seen,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredNode {
    id: u64,
    kind: StoredKind,
    origin: Option<EntryPath>,
    mode: Option<u32>,
    modified: Option<StoredModified>,
    accessed: Option<FileTime>,
    changed: Option<FileTime>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pinned: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum StoredKind {
    LowerFile,
    UpperFile { number: u64 },
    Folder { entries: Vec<StoredEntry> },
    Link { target: String },
    Other,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredEntry {
    name: Name,
    /// The node that has the name; `None` if the name is removed.
    node: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum StoredModified {
    Set(FileTime),
    ByEntries(FileTime),
}

impl Table {
    /// The stored form.
    ///
    /// # Errors
    /// [`TableError::TooLong`] if the table is longer than [`MAX_TABLE_BYTES`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, TableError> {
        let others = self.nodes.iter().filter(|(id, _)| !self.roots.contains(id));
        let roots = self.roots.iter().filter_map(|id| Some((id, self.nodes.get(id)?)));
        let stored = StoredTable {
            version: VERSION,
            nodes: roots.chain(others).map(|(id, node)| store_node(*id, node)).collect(),
            originals: self
                .originals
                .iter()
                .map(|(path, seen)| StoredOriginal { path: path.clone(), seen: *seen })
                .collect(),
            next_node: self.next_node,
            next_content: self.next_content,
        };
        let bytes = serde_json::to_vec(&stored)?;
        if bytes.len() > MAX_TABLE_BYTES {
            return Err(TableError::TooLong { bytes: bytes.len() });
        }
        Ok(bytes)
    }

    /// Reads a stored table of changes below `roots` roots, and checks that it is one that a view could have made.
    ///
    /// # Errors
    /// [`TableError`] if it is not.
    pub fn from_bytes(bytes: &[u8], roots: usize) -> Result<Self, TableError> {
        if bytes.len() > MAX_TABLE_BYTES {
            return Err(TableError::TooLong { bytes: bytes.len() });
        }
        let stored: StoredTable = serde_json::from_slice(bytes)?;
        load(stored, roots).map_err(TableError::Invalid)
    }
}

fn store_node(id: NodeId, node: &Node) -> StoredNode {
    let kind = match &node.kind {
        NodeKind::File(Content::Lower) => StoredKind::LowerFile,
        NodeKind::File(Content::Upper(number)) => StoredKind::UpperFile { number: *number },
        NodeKind::Folder(entries) => {
            StoredKind::Folder { entries: entries.iter().map(store_entry).collect() }
        }
        NodeKind::Link(target) => StoredKind::Link { target: escape(target.as_bytes()) },
        NodeKind::Other => StoredKind::Other,
    };
    let modified = node.modified.map(|modified| match modified {
        Modified::Set(time) => StoredModified::Set(time),
        Modified::ByEntries(time) => StoredModified::ByEntries(time),
    });
    StoredNode {
        id: id.0,
        kind,
        origin: node.origin.clone(),
        mode: node.mode,
        modified,
        accessed: node.accessed,
        changed: node.changed,
        pinned: node.is_pinned,
    }
}

fn store_entry((name, override_): (&Name, &Override)) -> StoredEntry {
    let node = match override_ {
        Override::Removed => None,
        Override::Node(id) => Some(id.0),
    };
    StoredEntry { name: name.clone(), node }
}

fn load(stored: StoredTable, roots: usize) -> Result<Table, &'static str> {
    if stored.version != VERSION {
        return Err("another version of this program wrote it");
    }
    if stored.nodes.len() < roots {
        return Err("a root is missing");
    }
    if stored.next_node.max(stored.next_content) > MAX_NUMBER {
        return Err("its next number is too high");
    }
    let mut table = Table {
        roots: stored.nodes.iter().take(roots).map(|node| NodeId(node.id)).collect(),
        next_node: stored.next_node,
        next_content: stored.next_content,
        ..Table::default()
    };
    for StoredOriginal { path, seen } in stored.originals {
        let is_valid = path.root < roots && seen.mode & !MODE_BITS == 0;
        if !is_valid || !seen.mtime.is_valid() || !seen.ctime.is_valid() {
            return Err("the state of an original is impossible");
        }
        if table.originals.insert(path, seen).is_some() {
            return Err("an original occurs twice");
        }
    }
    let mut contents = BTreeSet::new();
    for node in stored.nodes {
        let id = NodeId(node.id);
        let node = load_node(node)?;
        if id.0 >= table.next_node {
            return Err("a node has a number that was not given");
        }
        if let Some(number) = node.upper()
            && (number == 0 || number >= table.next_content || !contents.insert(number))
        {
            return Err("the number of a content occurs twice, or was not given");
        }
        check_origin(&table, &node)?;
        if let Some(origin) = &node.origin
            && table.by_origin.insert(origin.clone(), id).is_some()
        {
            return Err("an original is at two places");
        }
        if table.nodes.insert(id, node).is_some() {
            return Err("two nodes have the same number");
        }
    }
    place_all(&mut table)?;
    check_entries(&table)?;
    Ok(table)
}

fn load_node(stored: StoredNode) -> Result<Node, &'static str> {
    let StoredNode { id: _, kind, origin, mode, modified, accessed, changed, pinned } = stored;
    let kind = match kind {
        StoredKind::LowerFile => NodeKind::File(Content::Lower),
        StoredKind::UpperFile { number } => NodeKind::File(Content::Upper(number)),
        StoredKind::Folder { entries } => NodeKind::Folder(load_entries(entries)?),
        StoredKind::Link { target } => NodeKind::Link(load_target(&target)?),
        StoredKind::Other => NodeKind::Other,
    };
    let modified = modified.map(|modified| match modified {
        StoredModified::Set(time) => Modified::Set(time),
        StoredModified::ByEntries(time) => Modified::ByEntries(time),
    });
    let mut times = [modified.map(Modified::time), accessed, changed].into_iter().flatten();
    if mode.is_some_and(|mode| mode & !MODE_BITS != 0) || times.any(|time| !time.is_valid()) {
        return Err("a mode or a time is impossible");
    }
    Ok(Node { kind, origin, place: None, mode, modified, accessed, changed, is_pinned: pinned })
}

fn load_entries(stored: Vec<StoredEntry>) -> Result<BTreeMap<Name, Override>, &'static str> {
    let mut entries = BTreeMap::new();
    for StoredEntry { name, node } in stored {
        let override_ = node.map_or(Override::Removed, |id| Override::Node(NodeId(id)));
        if entries.insert(name, override_).is_some() {
            return Err("a folder has a name twice");
        }
    }
    Ok(entries)
}

fn load_target(text: &str) -> Result<OsString, &'static str> {
    let target = unescape(text).map(OsString::from_vec);
    target.filter(|target| is_target(target)).ok_or("the target of a link is impossible")
}

/// `true` if a symbolic link can have this target.
pub(crate) fn is_target(target: &OsStr) -> bool {
    let bytes = target.as_bytes();
    !bytes.is_empty() && bytes.len() <= MAX_TARGET_BYTES && !bytes.contains(&0)
}

/// Checks that what a node says of its original fits what was seen of it.
fn check_origin(table: &Table, node: &Node) -> Result<(), &'static str> {
    let Some(origin) = &node.origin else {
        return match &node.kind {
            NodeKind::File(Content::Lower) | NodeKind::Other => {
                Err("a node without origin has an original's content")
            }
            NodeKind::File(Content::Upper(_)) | NodeKind::Folder(_) | NodeKind::Link(_) => Ok(()),
        };
    };
    match table.originals.get(origin) {
        Some(seen) if seen.kind == node.entry_kind() => Ok(()),
        Some(_) => Err("a node and its original are of different kinds"),
        None => Err("an original was never seen"),
    }
}

/// Gives each node its place. Every node but the roots has exactly one, and all are below the roots.
fn place_all(table: &mut Table) -> Result<(), &'static str> {
    for (root, id) in table.roots.iter().enumerate() {
        let node = table.nodes.get(id).ok_or("a root is missing")?;
        if node.origin.as_ref() != Some(&EntryPath::of_root(root)) || node.entry_kind() != EntryKind::Folder {
            return Err("a root is not the folder of a root");
        }
    }
    let mut places = HashMap::new();
    let mut open = table.roots.clone();
    while let Some(folder) = open.pop() {
        let entries = table.nodes.get(&folder).and_then(Node::entries).into_iter().flatten();
        for (name, override_) in entries {
            let id = match override_ {
                Override::Removed => continue,
                Override::Node(id) => *id,
            };
            let position = table.next_position;
            table.next_position = position.saturating_add(1);
            let place = Place { folder, name: name.clone(), position };
            if table.roots.contains(&id) || places.insert(id, place).is_some() {
                return Err("a node is at two places");
            }
            open.push(id);
        }
    }
    for (id, node) in &mut table.nodes {
        node.place = places.remove(id);
        if node.place.is_none() && !table.roots.contains(id) {
            return Err("a node is at no place");
        }
    }
    if places.is_empty() { Ok(()) } else { Err("an entry has a node that does not exist") }
}

/// Checks that only originals are removed, and that no original that has a node can also be seen at its first place.
fn check_entries(table: &Table) -> Result<(), &'static str> {
    let mut originals = Originals::new(table);
    for node in table.nodes.values() {
        for (name, override_) in node.entries().into_iter().flatten() {
            let original = node.origin.as_ref().map(|origin| origin.child(name));
            if *override_ == Override::Removed
                && original.is_none_or(|original| !table.originals.contains_key(&original))
            {
                return Err("an entry is removed that is not an original");
            }
        }
        if let Some(origin) = &node.origin
            && originals
                .find_plain(origin)
                .map_err(|TooDeep| "its folders lie too deep in one another")?
                .is_some()
        {
            return Err("an original is at two places");
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
