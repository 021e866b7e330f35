//! The stored form of a table: JSON, of which nothing is believed when it is read.
//!
//! A table is read one entry at a time, and counted meanwhile, so that no form of it takes more memory than a table may.
//! The process that ran the program wrote the table, and the program may have taken that process over. What a false table
//! can say is therefore no more than a true one could: changes below the roots, which people see before the commit.

use super::{Content, Modified, Node, NodeId, NodeKind, Originals, Override, Place, Table, TooDeep};
use crate::name::{EntryPath, MAX_PATH_NAMES, Name, escape, read_list, unescape};
use crate::seen::{EntryKind, FileTime, MODE_BITS, Seen};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::Arc;

/// The longest stored table, in bytes: 100,000 files of long paths, half of them changed.
pub const MAX_TABLE_BYTES: usize = 64 << 20;

/// The maximum number of a stored table's nodes and originals, together: more than any view has.
const MAX_TABLE_ENTRIES: usize = 1 << 17;

/// The maximum number of names in all paths of a stored table: 40 for each of 100,000 files.
const MAX_TABLE_NAMES: usize = 4 << 20;

// The heap that each part of a table takes at most. The nodes of a `BTreeMap` are at least half full, as are the tables of
// a `HashMap`.
const ORIGINAL_BYTES: usize =
    2 * (size_of::<Arc<EntryPath>>() + size_of::<Seen>()) + size_of::<EntryPath>() + ALLOCATION_BYTES;
const NODE_BYTES: usize = 2 * (size_of::<NodeId>() + size_of::<Node>())
    + 3 * (size_of::<Arc<EntryPath>>() + size_of::<NodeId>())
    + 3 * size_of::<NodeId>();
const ENTRY_BYTES: usize = 2 * (size_of::<Name>() + size_of::<Override>());
/// The first node of a folder's entries, which has space for 11.
const FOLDER_BYTES: usize = 12 * (size_of::<Name>() + size_of::<Override>());
/// A name that no other path has, besides its bytes.
const NEW_NAME_BYTES: usize = 3 * size_of::<Name>() + ALLOCATION_BYTES;
/// The counts of an [`Arc`], and what the allocator needs.
const ALLOCATION_BYTES: usize = 4 * size_of::<usize>();
/// The heap for which the reader of a table asks at once.
const STEP_BYTES: usize = 8 << 10;

/// The longest target of a symbolic link, in bytes: Linux's limit of a path, without its NUL.
pub(crate) const MAX_TARGET_BYTES: usize = 4095;

/// The highest number of the next node or content: with more, a view could run out of numbers.
const MAX_NUMBER: u64 = 1 << 48;

/// The version of the form. A table is read by the program that wrote it, or by none.
const VERSION: u32 = 1;

/// The reason why a table is not stored, or bytes are not a table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The table is larger than it may be.
    #[error(
        "the table of changes is too large: at most {MAX_TABLE_BYTES} bytes, {MAX_TABLE_ENTRIES} files and folders, \
         {MAX_TABLE_NAMES} names in their paths, and {MAX_PATH_NAMES} in one; use fewer files in one run"
    )]
    TooLarge,
    /// The caller has no memory for the table.
    #[error("there is no memory for the table of changes: run it again later")]
    NoRoom,
    /// The table cannot be written.
    #[error("the table of changes cannot be written: see that the disk has space")]
    Unwritten(#[source] io::Error),
    /// The bytes are not the JSON of a table.
    #[error("the table of changes cannot be read: run it again")]
    Malformed(#[from] serde_json::Error),
    /// The table contradicts itself or its roots.
    #[error("the table of changes is not valid ({0}): check the tool")]
    Invalid(&'static str),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredTable<'a> {
    version: u32,
    /// A list of [`StoredNode`]; the first ones are the roots.
    #[serde(borrow)]
    nodes: &'a RawValue,
    /// A list of [`StoredOriginal`].
    #[serde(borrow)]
    originals: &'a RawValue,
    next_node: u64,
    next_content: u64,
}

/// A table as it is stored.
struct Stored<'a>(&'a Table);
struct StoredNodes<'a>(&'a Table);
struct StoredOriginals<'a>(&'a Table);

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
    UpperFile {
        number: u64,
    },
    Folder {
        #[serde(deserialize_with = "read_entries")]
        entries: Vec<StoredEntry>,
    },
    Link {
        target: String,
    },
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

fn read_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<StoredEntry>, D::Error> {
    read_list(deserializer, MAX_TABLE_ENTRIES)
}

impl Serialize for Stored<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(table) = self;
        let mut stored = serializer.serialize_struct("Table", 5)?;
        stored.serialize_field("version", &VERSION)?;
        stored.serialize_field("nodes", &StoredNodes(table))?;
        stored.serialize_field("originals", &StoredOriginals(table))?;
        stored.serialize_field("next_node", &table.next_node)?;
        stored.serialize_field("next_content", &table.next_content)?;
        stored.end()
    }
}

impl Serialize for StoredNodes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(table) = self;
        let others = table.nodes.iter().filter(|(id, _)| !table.roots.contains(id));
        let roots = table.roots.iter().filter_map(|id| Some((id, table.nodes.get(id)?)));
        serializer.collect_seq(roots.chain(others).map(|(id, node)| store_node(*id, node)))
    }
}

impl Serialize for StoredOriginals<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let store = |(path, seen): (&Arc<EntryPath>, &Seen)| StoredOriginal {
            path: EntryPath::clone(path),
            seen: *seen,
        };
        serializer.collect_seq(self.0.originals.iter().map(store))
    }
}

/// Writes no more than the bytes of a table.
struct Limited<W> {
    to: W,
    room: usize,
}

impl<W: Write> Write for Limited<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.room.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        let written = self.to.write(bytes)?;
        self.room = left.saturating_add(bytes.len().saturating_sub(written));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl Table {
    /// The stored form.
    ///
    /// # Errors
    /// [`TableError::TooLarge`] if the table is larger than one may be.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TableError> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes the stored form in small pieces.
    ///
    /// # Errors
    /// [`TableError::TooLarge`] if the table is larger than one may be; [`TableError::Unwritten`] if `to` does not take it.
    pub fn write_to(&self, to: impl Write) -> Result<(), TableError> {
        let names = self.originals.keys().map(|path| path.names.len());
        let is_deep = names.clone().any(|count| count > MAX_PATH_NAMES);
        if is_deep || self.len() > MAX_TABLE_ENTRIES || names.sum::<usize>() > MAX_TABLE_NAMES {
            return Err(TableError::TooLarge);
        }
        let mut limited = Limited { to, room: MAX_TABLE_BYTES };
        serde_json::to_writer(&mut limited, &Stored(self)).map_err(io::Error::from).map_err(|error| {
            if error.kind() == io::ErrorKind::FileTooLarge {
                TableError::TooLarge
            } else {
                TableError::Unwritten(error)
            }
        })
    }

    /// Reads a stored table of changes below `roots` roots, and checks that it is one that a view could have made.
    ///
    /// # Errors
    /// [`TableError`] if it is not.
    pub fn from_bytes(bytes: &[u8], roots: usize) -> Result<Self, TableError> {
        Self::from_bytes_within(bytes, roots, &mut |_| true)
    }

    /// As [`Self::from_bytes`], for a caller that counts its memory. `has_room` gets the bytes of the heap that the table
    /// takes up to a point, each time before it takes them; those that it gets last are what the whole table takes.
    ///
    /// # Errors
    /// As [`Self::from_bytes`]; [`TableError::NoRoom`] once `has_room` is `false`.
    pub fn from_bytes_within(
        bytes: &[u8],
        roots: usize,
        has_room: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, TableError> {
        if bytes.len() > MAX_TABLE_BYTES {
            return Err(TableError::TooLarge);
        }
        let stored: StoredTable<'_> = serde_json::from_slice(bytes)?;
        load(&stored, roots, Size { entries: 0, overrides: 0, names: 0, heap: 0, asked: 0, has_room })
    }
}

/// The size of a table that is read.
struct Size<'r> {
    /// The nodes and originals.
    entries: usize,
    overrides: usize,
    /// The names in the paths of the originals.
    names: usize,
    /// The bytes of the heap.
    heap: usize,
    /// Those for which there is room.
    asked: usize,
    has_room: &'r mut dyn FnMut(usize) -> bool,
}

impl Size<'_> {
    fn add_original(&mut self, names: usize) -> Result<(), TableError> {
        self.entries = self.entries.saturating_add(1);
        self.names = self.names.saturating_add(names);
        self.add_heap(ORIGINAL_BYTES.saturating_add(names.saturating_mul(size_of::<Name>())))
    }

    fn add_node(&mut self, kind: &StoredKind) -> Result<(), TableError> {
        self.entries = self.entries.saturating_add(1);
        let own = match kind {
            StoredKind::LowerFile | StoredKind::UpperFile { .. } | StoredKind::Other => 0,
            StoredKind::Folder { entries } => {
                self.overrides = self.overrides.saturating_add(entries.len());
                FOLDER_BYTES.saturating_add(entries.len().saturating_mul(ENTRY_BYTES))
            }
            StoredKind::Link { target } => target.len().saturating_add(ALLOCATION_BYTES),
        };
        self.add_heap(NODE_BYTES.saturating_add(own))
    }

    fn add_heap(&mut self, bytes: usize) -> Result<(), TableError> {
        self.heap = self.heap.saturating_add(bytes);
        // Each override is a node, or an original that is removed.
        if self.entries.max(self.overrides) > MAX_TABLE_ENTRIES || self.names > MAX_TABLE_NAMES {
            return Err(TableError::TooLarge);
        }
        if self.heap <= self.asked { Ok(()) } else { self.ask(self.heap.saturating_add(STEP_BYTES)) }
    }

    fn ask(&mut self, heap: usize) -> Result<(), TableError> {
        self.asked = heap;
        if (self.has_room)(heap) { Ok(()) } else { Err(TableError::NoRoom) }
    }
}

/// The names of a table that is read. Equal ones share their bytes.
#[derive(Default)]
struct Names(HashSet<Name>);

impl Names {
    fn share(&mut self, name: Name, size: &mut Size<'_>) -> Result<Name, TableError> {
        if let Some(known) = self.0.get(&name) {
            return Ok(known.clone());
        }
        size.add_heap(NEW_NAME_BYTES.saturating_add(name.as_bytes().len()))?;
        self.0.insert(name.clone());
        Ok(name)
    }
}

/// Reads the items of a list one at a time.
struct Items<'f, T> {
    take: &'f mut dyn FnMut(T) -> Result<(), TableError>,
    refused: &'f mut Option<TableError>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<'_, T> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element::<T>()? {
            if let Err(error) = (self.take)(item) {
                *self.refused = Some(error);
                return Err(A::Error::custom("an item is refused"));
            }
        }
        Ok(())
    }
}

fn for_each<'a, T: Deserialize<'a>>(
    list: &'a RawValue,
    mut take: impl FnMut(T) -> Result<(), TableError>,
) -> Result<(), TableError> {
    let mut refused = None;
    let mut reader = serde_json::Deserializer::from_str(list.get());
    let read = reader.deserialize_seq(Items { take: &mut take, refused: &mut refused });
    match refused {
        Some(error) => Err(error),
        None => Ok(read?),
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
        origin: node.origin.as_deref().cloned(),
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

fn load(stored: &StoredTable<'_>, roots: usize, mut size: Size<'_>) -> Result<Table, TableError> {
    if stored.version != VERSION {
        return invalid("another version of this program wrote it");
    }
    if stored.next_node.max(stored.next_content) > MAX_NUMBER {
        return invalid("its next number is too high");
    }
    let mut table =
        Table { next_node: stored.next_node, next_content: stored.next_content, ..Table::default() };
    let mut names = Names::default();
    // Before the nodes, which share their paths.
    for_each(stored.originals, |StoredOriginal { path: EntryPath { root, names: separate }, seen }| {
        let is_valid = root < roots && seen.mode & !MODE_BITS == 0;
        if !is_valid || !seen.mtime.is_valid() || !seen.ctime.is_valid() {
            return invalid("the state of an original is impossible");
        }
        size.add_original(separate.len())?;
        let mut shared = Vec::with_capacity(separate.len());
        for name in separate {
            shared.push(names.share(name, &mut size)?);
        }
        match table.originals.insert(Arc::new(EntryPath { root, names: shared }), seen) {
            Some(_) => invalid("an original occurs twice"),
            None => Ok(()),
        }
    })?;
    let mut contents = BTreeSet::new();
    for_each(stored.nodes, |stored_node: StoredNode| {
        size.add_node(&stored_node.kind)?;
        let id = NodeId(stored_node.id);
        let node = load_node(stored_node, &table, &mut names, &mut size)?;
        if id.0 >= table.next_node {
            return invalid("a node has a number that was not given");
        }
        if let Some(number) = node.upper()
            && (number == 0 || number >= table.next_content || !contents.insert(number))
        {
            return invalid("the number of a content occurs twice, or was not given");
        }
        check_origin(&table, &node).map_err(TableError::Invalid)?;
        if let Some(origin) = &node.origin
            && table.by_origin.insert(Arc::clone(origin), id).is_some()
        {
            return invalid("an original is at two places");
        }
        if table.roots.len() < roots {
            table.roots.push(id);
        }
        match table.nodes.insert(id, node) {
            Some(_) => invalid("two nodes have the same number"),
            None => Ok(()),
        }
    })?;
    if table.roots.len() < roots {
        return invalid("a root is missing");
    }
    place_all(&mut table).and_then(|()| check_entries(&table)).map_err(TableError::Invalid)?;
    size.ask(size.heap)?;
    Ok(table)
}

fn invalid<T>(reason: &'static str) -> Result<T, TableError> {
    Err(TableError::Invalid(reason))
}

fn load_node(
    stored: StoredNode,
    table: &Table,
    names: &mut Names,
    size: &mut Size<'_>,
) -> Result<Node, TableError> {
    let StoredNode { id: _, kind, origin, mode, modified, accessed, changed, pinned } = stored;
    let kind = match kind {
        StoredKind::LowerFile => NodeKind::File(Content::Lower),
        StoredKind::UpperFile { number } => NodeKind::File(Content::Upper(number)),
        StoredKind::Folder { entries } => NodeKind::Folder(load_entries(entries, names, size)?),
        StoredKind::Link { target } => NodeKind::Link(load_target(&target).map_err(TableError::Invalid)?),
        StoredKind::Other => NodeKind::Other,
    };
    let origin = origin.map(|path| {
        let known = table.originals.get_key_value(&path);
        known.map_or_else(|| Arc::new(path), |(shared, _)| Arc::clone(shared))
    });
    let modified = modified.map(|modified| match modified {
        StoredModified::Set(time) => Modified::Set(time),
        StoredModified::ByEntries(time) => Modified::ByEntries(time),
    });
    let mut times = [modified.map(Modified::time), accessed, changed].into_iter().flatten();
    if mode.is_some_and(|mode| mode & !MODE_BITS != 0) || times.any(|time| !time.is_valid()) {
        return invalid("a mode or a time is impossible");
    }
    Ok(Node { kind, origin, place: None, mode, modified, accessed, changed, is_pinned: pinned })
}

fn load_entries(
    stored: Vec<StoredEntry>,
    names: &mut Names,
    size: &mut Size<'_>,
) -> Result<BTreeMap<Name, Override>, TableError> {
    let mut entries = BTreeMap::new();
    for StoredEntry { name, node } in stored {
        let override_ = node.map_or(Override::Removed, |id| Override::Node(NodeId(id)));
        if entries.insert(names.share(name, size)?, override_).is_some() {
            return invalid("a folder has a name twice");
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
        if node.origin.as_deref() != Some(&EntryPath::of_root(root)) || node.entry_kind() != EntryKind::Folder
        {
            return Err("a root is not the folder of a root");
        }
    }
    let mut open = table.roots.clone();
    while let Some(folder) = open.pop() {
        let entries = table.nodes.get(&folder).and_then(Node::entries).into_iter().flatten();
        let inside = entries.filter_map(|(name, override_)| match override_ {
            Override::Removed => None,
            Override::Node(id) => Some((name.clone(), *id)),
        });
        for (name, id) in inside.collect::<Vec<_>>() {
            let position = table.next_position;
            table.next_position = position.saturating_add(1);
            let node = table.nodes.get_mut(&id).ok_or("an entry has a node that does not exist")?;
            let before = node.place.replace(Place { folder, name, position });
            if before.is_some() || table.roots.contains(&id) {
                return Err("a node is at two places");
            }
            open.push(id);
        }
    }
    let has_place = |(id, node): (&NodeId, &Node)| node.place.is_some() || table.roots.contains(id);
    if table.nodes.iter().all(has_place) { Ok(()) } else { Err("a node is at no place") }
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
