//! The table of what a program has touched: a tree of nodes over the original folders, and the state in which each
//! original was first seen.
//!
//! A folder node has an override for each name whose entry is not simply that of the original folder: the name is
//! removed, or another node has it. A name without an override is looked up in the original folder that the node's
//! `origin` names, wherever the node is now. So a folder that was moved is one node, and a folder without origin hides
//! whatever the original folder of its name contains.
//!
//! The table is stored between a run and its commit ([`Table::to_bytes`], [`Table::from_bytes`]).

mod originals;
mod stored;

pub(crate) use originals::{Originals, TooDeep};
pub(crate) use stored::is_target;
#[cfg(test)]
pub(crate) use stored::tests as stored_tests;
pub use stored::{MAX_TABLE_BYTES, TableError};

use crate::lower::LowerRoot;
use crate::name::{EntryPath, Name};
use crate::seen::{EntryKind, FileTime, Identity, Seen};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::sync::Arc;

/// The number of a node, which a view hands out as the handle of a folder or file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) u64);

/// The changes and reads of a program. See the module.
#[derive(Debug, Clone, Default)]
pub struct Table {
    nodes: BTreeMap<NodeId, Node>,
    /// The node of each root, in the order of the roots.
    roots: Vec<NodeId>,
    /// The read set: each original that was opened, changed, removed or moved, or that contains such an entry.
    // A path is in memory once, however many members of this value and of the nodes have it.
    originals: BTreeMap<Arc<EntryPath>, Seen>,
    /// The node of each original that has one.
    by_origin: HashMap<Arc<EntryPath>, NodeId>,
    next_node: u64,
    next_content: u64,
    next_position: u64,
}

/// One file, folder or link that is not simply an original in its place, or that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    /// The original that this node is; `None` if the program made it.
    pub(crate) origin: Option<Arc<EntryPath>>,
    /// The node's name; `None` for a root, and for a node that was removed while it was open.
    pub(crate) place: Option<Place>,
    /// The permissions; `None` if they are those of the original.
    pub(crate) mode: Option<u32>,
    /// `None` if the time is that of the original, or of the file in the upper folder.
    pub(crate) modified: Option<Modified>,
    /// As `modified`.
    pub(crate) accessed: Option<FileTime>,
    /// The last change of attributes. The commit does not need it: no program can set it.
    pub(crate) changed: Option<FileTime>,
    /// `true` if another member of the program has the node open, so that it keeps its number.
    pub(crate) is_pinned: bool,
}

/// The kind of a node, with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeKind {
    File(Content),
    Folder(BTreeMap<Name, Override>),
    /// A symbolic link with its target.
    Link(OsString),
    /// An original FIFO, socket or device, which can only be moved.
    Other,
}

/// The content of a file node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// That of the original.
    Lower,
    /// That of the file with this number in the upper folder.
    Upper(u64),
}

/// The entry that a folder node has for a name, instead of that of the original folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Override {
    /// There is no entry, but the original folder has one.
    Removed,
    Node(NodeId),
}

/// The time of the last change of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Modified {
    /// The time that the program, or its last write, has set.
    Set(FileTime),
    /// Of a folder: an entry was made or removed then. The commit makes and removes entries itself, so it sets no time.
    ByEntries(FileTime),
}

/// The name of a node in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) folder: NodeId,
    pub(crate) name: Name,
    /// The place of the entry in listings: later entries have higher numbers. Not stored.
    pub(crate) position: u64,
}

impl Modified {
    pub(crate) const fn time(self) -> FileTime {
        match self {
            Self::Set(time) | Self::ByEntries(time) => time,
        }
    }
}

impl Node {
    /// A node of an original, as it was found.
    pub(crate) const fn of_original(kind: NodeKind, origin: Arc<EntryPath>) -> Self {
        Self {
            kind,
            origin: Some(origin),
            place: None,
            mode: None,
            modified: None,
            accessed: None,
            changed: None,
            is_pinned: false,
        }
    }

    pub(crate) const fn entry_kind(&self) -> EntryKind {
        match &self.kind {
            NodeKind::File(_) => EntryKind::File,
            NodeKind::Folder(_) => EntryKind::Folder,
            NodeKind::Link(_) => EntryKind::Link,
            NodeKind::Other => EntryKind::Other,
        }
    }

    /// The overrides of a folder; `None` for any other node.
    pub(crate) const fn entries(&self) -> Option<&BTreeMap<Name, Override>> {
        match &self.kind {
            NodeKind::Folder(entries) => Some(entries),
            NodeKind::File(_) | NodeKind::Link(_) | NodeKind::Other => None,
        }
    }

    const fn entries_mut(&mut self) -> Option<&mut BTreeMap<Name, Override>> {
        match &mut self.kind {
            NodeKind::Folder(entries) => Some(entries),
            NodeKind::File(_) | NodeKind::Link(_) | NodeKind::Other => None,
        }
    }

    /// The number of the node's file in the upper folder.
    pub(crate) const fn upper(&self) -> Option<u64> {
        match self.kind {
            NodeKind::File(Content::Upper(number)) => Some(number),
            NodeKind::File(Content::Lower) | NodeKind::Folder(_) | NodeKind::Link(_) | NodeKind::Other => {
                None
            }
        }
    }

    /// `true` if nothing of the node itself differs from its original. Its place may.
    pub(crate) fn is_unchanged(&self) -> bool {
        let has_content = match &self.kind {
            NodeKind::File(Content::Lower) | NodeKind::Link(_) | NodeKind::Other => false,
            NodeKind::File(Content::Upper(_)) => true,
            NodeKind::Folder(entries) => !entries.is_empty(),
        };
        let has_attributes = self.mode.is_some() || self.modified.is_some() || self.accessed.is_some();
        self.origin.is_some() && !has_content && !has_attributes
    }
}

impl Table {
    /// A table without changes. Each root is a folder node, whose original has been seen.
    ///
    /// # Errors
    /// If a root cannot be examined.
    pub fn new(roots: &[LowerRoot]) -> Result<Self, Errno> {
        let mut table = Self { next_content: 1, ..Self::default() };
        for (index, root) in roots.iter().enumerate() {
            let path = table.note_original(EntryPath::of_root(index), Seen::look(&root.dir, "")?);
            let node = Node::of_original(NodeKind::Folder(BTreeMap::new()), path);
            let id = table.insert(node);
            table.roots.push(id);
        }
        Ok(table)
    }

    /// The nodes of the roots.
    pub(crate) fn roots(&self) -> &[NodeId] {
        &self.roots
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&id)
    }

    /// All nodes by number.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// The read set: what was seen of each original that matters, by its path.
    pub(crate) const fn originals(&self) -> &BTreeMap<Arc<EntryPath>, Seen> {
        &self.originals
    }

    /// The nodes and the originals of the read set, which a budget bounds together.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len().saturating_add(self.originals.len())
    }

    /// Adds an original to the read set, if it is not there: what was seen first counts. Returns its path, to be shared.
    pub(crate) fn note_original(&mut self, path: EntryPath, seen: Seen) -> Arc<EntryPath> {
        if let Some((known, _)) = self.originals.get_key_value(&path) {
            return Arc::clone(known);
        }
        let shared = Arc::new(path);
        self.originals.insert(Arc::clone(&shared), seen);
        shared
    }

    /// As [`Self::note_original`], for the original that a folder has under a name.
    ///
    /// # Errors
    /// `ENOENT` if the program made the folder, `EBADF` if there is none.
    pub(crate) fn note_entry(
        &mut self,
        folder: NodeId,
        name: &Name,
        seen: Seen,
    ) -> Result<Arc<EntryPath>, Errno> {
        let origin = self.node(folder).ok_or(Errno::BADF)?.origin.as_ref();
        let path = origin.ok_or(Errno::NOENT)?.child(name);
        Ok(self.note_original(path, seen))
    }

    fn forget_original(&mut self, path: &EntryPath) {
        self.originals.remove(path);
    }

    /// The node of an original, wherever it is now.
    pub(crate) fn by_origin(&self, original: &EntryPath) -> Option<NodeId> {
        self.by_origin.get(original).copied()
    }

    /// The number of the next new node. All later ones are higher.
    pub(crate) const fn next_node(&self) -> u64 {
        self.next_node
    }

    /// The number of the next new content. All later ones are higher.
    #[must_use]
    pub const fn next_content(&self) -> u64 {
        self.next_content
    }

    /// A number for a new file of the upper folder.
    pub(crate) const fn take_content_number(&mut self) -> u64 {
        let number = self.next_content;
        self.next_content = number.saturating_add(1);
        number
    }

    /// Adds a node without a place.
    pub(crate) fn insert(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.next_node);
        self.next_node = self.next_node.saturating_add(1);
        if let Some(origin) = &node.origin {
            self.by_origin.insert(Arc::clone(origin), id);
        }
        self.nodes.insert(id, node);
        id
    }

    /// Adds the node of an entry that the program makes in a folder. A file has the times of its content.
    ///
    /// # Errors
    /// As [`Self::touch`].
    pub(crate) fn create(
        &mut self,
        folder: NodeId,
        name: &Name,
        kind: NodeKind,
        mode: u32,
    ) -> Result<NodeId, Errno> {
        let is_file = matches!(kind, NodeKind::File(_));
        let time = (!is_file).then(FileTime::now);
        let id = self.insert(Node {
            kind,
            origin: None,
            place: None,
            mode: Some(mode),
            modified: time.map(Modified::ByEntries),
            accessed: time,
            changed: time,
            is_pinned: false,
        });
        self.place(id, folder, name);
        self.touch(folder)?;
        Ok(id)
    }

    /// Adds the node of an entry that is no longer in the tree, under its own number.
    pub(crate) fn keep_removed(&mut self, id: NodeId, mut node: Node) {
        node.place = None;
        if let Some(entries) = node.entries_mut() {
            entries.clear();
        }
        self.nodes.insert(id, node);
    }

    /// Drops a node that has no place, with its overrides.
    pub(crate) fn drop_node(&mut self, id: NodeId) {
        if let Some(origin) = self.nodes.remove(&id).and_then(|node| node.origin)
            && self.by_origin.get(&origin) == Some(&id)
        {
            self.by_origin.remove(&origin);
        }
    }

    /// Drops a node of which nothing differs from its original in its place.
    pub(crate) fn drop_unchanged(&mut self, id: NodeId) {
        let Some(node) = self.node(id) else { return };
        let is_kept = node.is_pinned || self.roots.contains(&id);
        if is_kept || !node.is_unchanged() || !self.is_in_place(id) {
            return;
        }
        // Of a folder only its changes matter. That a file was opened matters as long as the table does.
        if let (EntryKind::Folder, Some(origin)) = (node.entry_kind(), node.origin.clone()) {
            self.forget_original(&origin);
        }
        self.unplace(id, None);
        self.drop_node(id);
    }

    /// Gives a node the name `name` in a folder, in place of the override that is there.
    pub(crate) fn place(&mut self, id: NodeId, folder: NodeId, name: &Name) {
        let position = self.next_position;
        self.next_position = position.saturating_add(1);
        self.place_at(id, folder, name, position);
    }

    /// As [`Self::place`], at the position of an entry that has left the folder.
    pub(crate) fn place_at(&mut self, id: NodeId, folder: NodeId, name: &Name, position: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.place = Some(Place { folder, name: name.clone(), position });
        }
        self.set_override(folder, name, Some(Override::Node(id)));
    }

    /// Takes a node out of its folder, and leaves `override_` there.
    fn unplace(&mut self, id: NodeId, override_: Option<Override>) {
        if let Some(place) = self.nodes.get_mut(&id).and_then(|node| node.place.take()) {
            self.set_override(place.folder, &place.name, override_);
        }
    }

    pub(crate) fn set_override(&mut self, folder: NodeId, name: &Name, override_: Option<Override>) {
        let entries = self.nodes.get_mut(&folder).and_then(Node::entries_mut);
        match (entries, override_) {
            (Some(entries), Some(override_)) => drop(entries.insert(name.clone(), override_)),
            (Some(entries), None) => drop(entries.remove(name)),
            (None, _) => {}
        }
    }

    /// Takes a node out of its folder. An original under its name stays hidden: it was seen before the node could take its
    /// place.
    pub(crate) fn take_out(&mut self, id: NodeId) {
        let is_seen = |place: &Place| {
            let origin = self.node(place.folder).and_then(|folder| folder.origin.as_ref());
            origin.is_some_and(|origin| self.originals.contains_key(&origin.child(&place.name)))
        };
        let is_hidden = self.node(id).and_then(|node| node.place.as_ref()).is_some_and(is_seen);
        self.unplace(id, is_hidden.then_some(Override::Removed));
    }

    /// Notes that an entry of a folder was made or removed.
    ///
    /// # Errors
    /// `EBADF` if there is no such node.
    pub(crate) fn touch(&mut self, folder: NodeId) -> Result<(), Errno> {
        let now = FileTime::now();
        let node = self.node_mut(folder).ok_or(Errno::BADF)?;
        node.modified = Some(Modified::ByEntries(now));
        node.changed = Some(now);
        Ok(())
    }

    /// The state in which the original of a node was first seen; `None` if the program made the node.
    pub(crate) fn first_seen(&self, node: &Node) -> Option<&Seen> {
        self.originals.get(node.origin.as_ref()?)
    }

    /// The permissions of a node.
    pub(crate) fn mode(&self, id: NodeId) -> Option<u32> {
        let node = self.node(id)?;
        node.mode.or_else(|| self.first_seen(node).map(|seen| seen.mode))
    }

    /// The numbers of a node: those of its original, else its own, which no original has.
    pub(crate) fn identity(&self, id: NodeId) -> Identity {
        let seen = self.node(id).and_then(|node| self.first_seen(node));
        seen.map_or(Identity { device: 0, inode: id.0 }, Seen::identity)
    }

    /// The folder that contains a node; `None` for a root, and for a node that was removed.
    pub(crate) fn parent(&self, id: NodeId) -> Option<NodeId> {
        Some(self.node(id)?.place.as_ref()?.folder)
    }

    /// `true` if a node is a folder, or one of the folders that contain it.
    pub(crate) fn is_at_or_above(&self, above: NodeId, folder: NodeId) -> bool {
        std::iter::successors(Some(folder), |id| self.parent(*id)).any(|id| id == above)
    }

    /// Takes over from an earlier table of the same view what is not stored: the positions of entries that keep their
    /// names, and what others have pinned.
    pub(crate) fn succeed(&mut self, old: &Self) {
        self.next_position = old.next_position;
        for (id, node) in &mut self.nodes {
            node.is_pinned = old.nodes.get(id).is_some_and(|old| old.is_pinned);
            let Some(place) = &mut node.place else { continue };
            place.position = old.position(place.folder, &place.name).unwrap_or_else(|| {
                let position = self.next_position;
                self.next_position = position.saturating_add(1);
                position
            });
        }
    }

    /// The position of the entry that has a name and a node.
    pub(crate) fn position(&self, folder: NodeId, name: &Name) -> Option<u64> {
        match self.nodes.get(&folder)?.entries()?.get(name)? {
            Override::Node(id) => Some(self.nodes.get(id)?.place.as_ref()?.position),
            Override::Removed => None,
        }
    }

    /// The path at which a node is now; `None` if it was removed.
    pub(crate) fn path_of(&self, id: NodeId) -> Option<EntryPath> {
        let mut names = Vec::new();
        let mut node = self.nodes.get(&id)?;
        while let Some(place) = &node.place {
            names.push(place.name.clone());
            node = self.nodes.get(&place.folder)?;
        }
        names.reverse();
        // Only a root has neither a place nor names in its origin, and no root is ever removed.
        let origin = node.origin.as_deref().filter(|origin| origin.names.is_empty())?;
        Some(EntryPath { root: origin.root, names })
    }

    /// `true` if a node is the original of its own place.
    pub(crate) fn is_in_place(&self, id: NodeId) -> bool {
        let Some(node) = self.node(id) else { return false };
        match (&node.origin, &node.place) {
            (Some(origin), Some(place)) => {
                let parent = self.node(place.folder).and_then(|folder| folder.origin.as_deref());
                let split = origin.split();
                split.is_some_and(|(folder, name)| *name == place.name && parent == Some(&folder))
            }
            (Some(origin), None) => origin.names.is_empty(),
            (None, _) => false,
        }
    }
}
