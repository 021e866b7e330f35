//! The walk over a table that finds its changes.

use super::{
    Change, ChangeKind, Effects, EffectsError, EffectsLimits, MAX_DEPTH, MAX_PATHS_BYTES, NewContent,
    NewEntry, Read,
};
use crate::commit::{Conflict, ConflictKind};
use crate::current::{CurrentRoots, hash_unchanged, is_absence, open_staged};
use crate::hash::Sha256;
use crate::lower::Access;
use crate::name::{EntryPath, Name};
use crate::seen::{EntryKind, FileTime, MODE_BITS, Seen};
use crate::table::{Modified, Node, NodeId, NodeKind, Override, Table};
use crate::upper::Upper;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// The permissions that a program can give: it cannot make a file run as another user.
const PLAIN_MODE_BITS: u32 = 0o777;

struct Collector<'a> {
    table: &'a Table,
    current: &'a CurrentRoots<'a>,
    upper: &'a Upper,
    limits: EffectsLimits,
    /// The bytes that may still be hashed.
    hashable: u64,
    /// The bytes that paths may still have.
    path_room: usize,
    conflicts: Vec<Conflict>,
    deleted: BTreeMap<EntryPath, ChangeKind>,
    renamed: BTreeMap<EntryPath, ChangeKind>,
    others: BTreeMap<EntryPath, ChangeKind>,
}

/// Finds the changes of a table.
pub(super) fn collect(
    table: &Table,
    current: &CurrentRoots<'_>,
    upper: &Upper,
    limits: EffectsLimits,
) -> Result<Effects, EffectsError> {
    let mut collector = Collector {
        table,
        current,
        upper,
        limits,
        hashable: limits.max_hashed_bytes,
        path_room: MAX_PATHS_BYTES,
        conflicts: Vec::new(),
        deleted: BTreeMap::new(),
        renamed: BTreeMap::new(),
        others: BTreeMap::new(),
    };
    for (root, id) in table.roots().iter().enumerate() {
        let path = EntryPath::of_root(root);
        collector.add_attributes(*id, &path, &path)?;
        collector.visit_folder(*id, &path, Some(&path))?;
    }
    let Collector { conflicts, deleted, renamed, others, .. } = collector;
    if !conflicts.is_empty() {
        return Err(EffectsError::Conflicts(conflicts));
    }
    let changes = deleted.into_iter().chain(renamed).chain(others);
    let changes = changes.map(|(path, kind)| Change { path, kind }).collect::<Vec<_>>();
    for Change { path, kind } in &changes {
        let from = match kind {
            ChangeKind::Renamed { from, .. } => from,
            ChangeKind::Deleted { .. }
            | ChangeKind::Created { .. }
            | ChangeKind::Changed { .. }
            | ChangeKind::Attributes { .. } => path,
        };
        for path in [path, from] {
            if current.roots().get(path.root).is_none_or(|root| root.access == Access::Read) {
                return Err(EffectsError::ReadOnly(path.clone()));
            }
        }
    }
    let read = |(path, seen): (&Arc<EntryPath>, &Seen)| Read { path: EntryPath::clone(path), seen: *seen };
    let reads = table.originals().iter().map(read).collect();
    Ok(Effects { changes, reads })
}

impl<'a> Collector<'a> {
    fn add(
        &mut self,
        group: fn(&mut Self) -> &mut BTreeMap<EntryPath, ChangeKind>,
        path: EntryPath,
        kind: ChangeKind,
    ) -> Result<(), EffectsError> {
        let count = self.deleted.len() + self.renamed.len() + self.others.len();
        if count >= self.limits.max_changes {
            return Err(EffectsError::TooMany { max: self.limits.max_changes });
        }
        let size = path.names.iter().map(|name| size_of::<Name>() + name.as_bytes().len()).sum();
        self.path_room = self.path_room.checked_sub(size).ok_or(EffectsError::TooLong)?;
        group(self).insert(path, kind);
        Ok(())
    }

    /// The state of an original that the program saw, unless it is at another place now.
    fn displaced(&self, original: Option<&EntryPath>) -> Option<Seen> {
        let original = original.filter(|original| self.table.by_origin(original).is_none())?;
        self.table.originals().get(original).copied()
    }

    /// Visits the entries of a folder that is at `path`, and whose entries without an override are those of the original
    /// folder `base`.
    fn visit_folder(
        &mut self,
        folder: NodeId,
        path: &EntryPath,
        base: Option<&EntryPath>,
    ) -> Result<(), EffectsError> {
        if path.names.len() >= MAX_DEPTH {
            return Err(EffectsError::TooDeep);
        }
        let entries = self.table.node(folder).and_then(Node::entries);
        for (name, override_) in entries.into_iter().flatten() {
            let original = base.map(|base| base.child(name));
            match override_ {
                Override::Removed => self.delete(original.as_ref())?,
                Override::Node(node) => self.visit_node(*node, path.child(name), original.as_ref())?,
            }
        }
        Ok(())
    }

    fn visit_node(
        &mut self,
        id: NodeId,
        path: EntryPath,
        original: Option<&EntryPath>,
    ) -> Result<(), EffectsError> {
        let Some(node) = self.table.node(id) else { return Ok(()) };
        let Some(origin) = node.origin.as_deref() else {
            return self.visit_created(id, node, path, original);
        };
        if Some(origin) == original {
            match node.upper() {
                Some(number) => self.add_content(node, number, path.clone(), origin)?,
                None => self.add_attributes(id, &path, origin)?,
            }
        } else {
            self.delete(original)?;
            self.add_renamed(id, node, &path, origin)?;
        }
        self.visit_folder(id, &path, Some(origin))
    }

    fn add_renamed(
        &mut self,
        id: NodeId,
        node: &Node,
        path: &EntryPath,
        origin: &EntryPath,
    ) -> Result<(), EffectsError> {
        let Some(before) = self.table.originals().get(origin).copied() else { return Ok(()) };
        let new = node.upper().map(|number| self.stage(node, number, Some(before))).transpose()?;
        let is_same = match &new {
            Some(new) => self.hash_original(origin, before)? == Some(new.sha256),
            None => false,
        };
        match &new {
            Some(new) if is_same => {
                self.add_changed_attributes(path.clone(), before, rewritten_attributes(new, &before))?;
            }
            Some(_) => {}
            None => self.add_attributes(id, path, origin)?,
        }
        let after = new.filter(|_| !is_same);
        let kind = ChangeKind::Renamed { from: origin.clone(), before, after };
        self.add(|collector| &mut collector.renamed, path.clone(), kind)
    }

    /// An entry that the program made, perhaps in place of an original of this name.
    fn visit_created(
        &mut self,
        id: NodeId,
        node: &Node,
        path: EntryPath,
        original: Option<&EntryPath>,
    ) -> Result<(), EffectsError> {
        let displaced = self.displaced(original);
        if let Some((original, seen)) = original.zip(displaced) {
            match (&node.kind, seen.kind) {
                (NodeKind::File(_), EntryKind::File) => {
                    return node
                        .upper()
                        .map_or(Ok(()), |number| self.add_content(node, number, path, original));
                }
                (NodeKind::Folder(_), EntryKind::Folder) => {
                    self.add_changed_attributes(path.clone(), seen, attributes_of(node, &seen))?;
                    self.delete_hidden(id, original)?;
                    return self.visit_folder(id, &path, Some(original));
                }
                (NodeKind::File(_) | NodeKind::Folder(_) | NodeKind::Link(_) | NodeKind::Other, _) => {}
            }
        }
        self.delete(original)?;
        let mtime = set_time(node);
        let mode = node.mode.unwrap_or(0o700) & PLAIN_MODE_BITS;
        let new = match &node.kind {
            NodeKind::File(_) => match node.upper() {
                Some(number) => NewEntry::File(self.stage(node, number, None)?),
                None => return Ok(()),
            },
            NodeKind::Folder(_) => NewEntry::Folder { mode, mtime },
            NodeKind::Link(target) => NewEntry::Link { target: target.clone(), mtime },
            NodeKind::Other => return Ok(()),
        };
        self.add(|collector| &mut collector.others, path.clone(), ChangeKind::Created { new })?;
        self.visit_folder(id, &path, None)
    }

    /// Deletes what an original folder had, where the program made a folder of the same name with other entries.
    fn delete_hidden(&mut self, folder: NodeId, original: &EntryPath) -> Result<(), EffectsError> {
        let entries = self.table.node(folder).and_then(Node::entries);
        let depth = original.names.len();
        for (path, _) in below(self.table, original).filter(|(path, _)| path.names.len() == depth + 1) {
            let name = path.names.last();
            if name.is_some_and(|name| entries.is_none_or(|entries| !entries.contains_key(name))) {
                self.delete(Some(path))?;
            }
        }
        Ok(())
    }

    /// Deletes an original with all below it that the program saw, unless it is at another place now. What it did not
    /// see is found before the commit.
    fn delete(&mut self, original: Option<&EntryPath>) -> Result<(), EffectsError> {
        let Some((original, before)) = original.zip(self.displaced(original)) else { return Ok(()) };
        self.add_deleted(original, before)?;
        // A folder that was moved takes its entries along.
        let mut moved: Option<&EntryPath> = None;
        for (path, seen) in below(self.table, original) {
            if moved.is_some_and(|moved| path.names.starts_with(&moved.names)) {
                continue;
            }
            match self.table.by_origin(path) {
                Some(_) => moved = Some(path),
                None => self.add_deleted(path, *seen)?,
            }
        }
        Ok(())
    }

    fn add_deleted(&mut self, original: &EntryPath, before: Seen) -> Result<(), EffectsError> {
        if original.names.len() >= MAX_DEPTH {
            return Err(EffectsError::TooDeep);
        }
        let content = match before.kind {
            EntryKind::File => match self.hash_original(original, before) {
                // A process that may change its folder may remove a file without reading it.
                Err(EffectsError::Original { source: Errno::ACCESS, .. }) => None,
                other => other?,
            },
            EntryKind::Folder | EntryKind::Link | EntryKind::Other => None,
        };
        let kind = ChangeKind::Deleted { before, content };
        self.add(|collector| &mut collector.deleted, original.clone(), kind)
    }

    /// A file that stays at its place with a content in the upper folder.
    fn add_content(
        &mut self,
        node: &Node,
        number: u64,
        path: EntryPath,
        original: &EntryPath,
    ) -> Result<(), EffectsError> {
        let Some(before) = self.table.originals().get(original).copied() else { return Ok(()) };
        let new = self.stage(node, number, Some(before))?;
        let Some(content_before) = self.hash_original(original, before)? else {
            // A conflict is noted, unless the content is too large.
            let max = self.limits.max_hashed_bytes;
            return if self.conflicts.is_empty() { Err(EffectsError::TooLarge { max }) } else { Ok(()) };
        };
        // With several names, only this one is another file now, even if the content is the same.
        if content_before == new.sha256 && before.nlink == 1 {
            return self.add_changed_attributes(path, before, rewritten_attributes(&new, &before));
        }
        let kind = ChangeKind::Changed { before, content_before, new };
        self.add(|collector| &mut collector.others, path, kind)
    }

    fn add_attributes(
        &mut self,
        id: NodeId,
        path: &EntryPath,
        origin: &EntryPath,
    ) -> Result<(), EffectsError> {
        let before = self.table.originals().get(origin).copied();
        let Some((node, before)) = self.table.node(id).zip(before) else { return Ok(()) };
        self.add_changed_attributes(path.clone(), before, attributes_of(node, &before))
    }

    fn add_changed_attributes(
        &mut self,
        path: EntryPath,
        before: Seen,
        (mode, mtime): (Option<u32>, Option<FileTime>),
    ) -> Result<(), EffectsError> {
        if mode.is_none() && mtime.is_none() {
            return Ok(());
        }
        let kind = ChangeKind::Attributes { before, mode, mtime };
        self.add(|collector| &mut collector.others, path, kind)
    }

    /// The new content of a file, hashed.
    fn stage(&mut self, node: &Node, number: u64, before: Option<Seen>) -> Result<NewContent, EffectsError> {
        let staged = |source| EffectsError::Staged { number, source };
        let (file, seen) = open_staged(self.upper, number).map_err(staged)?;
        if !self.take_hashable(seen.size) {
            return Err(EffectsError::TooLarge { max: self.limits.max_hashed_bytes });
        }
        let sha256 = hash_unchanged(&file, &seen).map_err(staged)?;
        let mode = node.mode.or(before.map(|before| before.mode)).unwrap_or(0o600) & PLAIN_MODE_BITS;
        let mtime = node.modified.map_or(seen.mtime, Modified::time);
        Ok(NewContent { number, size: seen.size, sha256, mode, mtime })
    }

    /// Hashes an original; `None` if it is too large or has changed, which is then noted as a conflict.
    fn hash_original(&mut self, path: &'_ EntryPath, before: Seen) -> Result<Option<Sha256>, EffectsError> {
        if !self.take_hashable(before.size) {
            return Ok(None);
        }
        let what = match self.current.open_file(path) {
            Ok((_, now)) if !now.is_same_entry(&before) => ConflictKind::Replaced,
            Ok((_, now)) if now != before => ConflictKind::Changed,
            Ok((file, now)) => match hash_unchanged(&file, &now) {
                Ok(hash) => return Ok(Some(hash)),
                Err(Errno::STALE) => ConflictKind::Changed,
                Err(source) => return Err(EffectsError::Original { path: path.clone(), source }),
            },
            Err(Errno::INVAL) => ConflictKind::Replaced,
            Err(error) if is_absence(error) => ConflictKind::Missing,
            Err(source) => return Err(EffectsError::Original { path: path.clone(), source }),
        };
        self.conflicts.push(Conflict { path: path.clone(), what });
        Ok(None)
    }

    const fn take_hashable(&mut self, bytes: u64) -> bool {
        match self.hashable.checked_sub(bytes) {
            Some(rest) => {
                self.hashable = rest;
                true
            }
            None => false,
        }
    }
}

/// The originals that the program saw below an original folder: each folder before its entries.
fn below<'a>(
    table: &'a Table,
    folder: &EntryPath,
) -> impl Iterator<Item = (&'a EntryPath, &'a Seen)> + use<'a> {
    let folder = folder.clone();
    let behind = table.originals().range::<EntryPath, _>((Bound::Excluded(folder.clone()), Bound::Unbounded));
    behind
        .map(|(path, seen)| (&**path, seen))
        .take_while(move |(path, _)| path.root == folder.root && path.names.starts_with(&folder.names))
}

/// The permissions and the time of an entry, where they differ from those of its original.
fn attributes_of(node: &Node, before: &Seen) -> (Option<u32>, Option<FileTime>) {
    let special = before.mode & !PLAIN_MODE_BITS & MODE_BITS;
    let mode = node.mode.map(|mode| mode & PLAIN_MODE_BITS | special);
    let mode = mode.filter(|mode| *mode != before.mode && before.kind != EntryKind::Link);
    (mode, set_time(node).filter(|time| *time != before.mtime))
}

/// The changed attributes of a file that was written again with the content that it had.
fn rewritten_attributes(new: &NewContent, before: &Seen) -> (Option<u32>, Option<FileTime>) {
    let mode = (new.mode != before.mode & PLAIN_MODE_BITS).then_some(new.mode);
    (mode, (new.mtime != before.mtime).then_some(new.mtime))
}

/// The time that the program has set.
fn set_time(node: &Node) -> Option<FileTime> {
    match node.modified {
        Some(Modified::Set(time)) => Some(time),
        Some(Modified::ByEntries(_)) | None => None,
    }
}
