//! The members of a program, which share one table: the process that runs the program, and those of its calls.
//!
//! They take turns. A member begins with the table that the last one has left ([`View::load`], [`View::reload`]), and leaves
//! one for the next ([`View::snapshot`], [`View::into_table`]). Contents have numbers that are given once in a program, so a
//! content is never written by two members.
//!
//! A member may have been taken over by the guest that it runs, so the table that it leaves is compared with the one that
//! it got ([`Table::check_member`]): outside of what it was granted, both have to say the same. A content stays its
//! member's own where another member has moved it, as a file that a process has open.
//!
//! [`View::load`]: crate::View::load
//! [`View::reload`]: crate::View::reload
//! [`View::snapshot`]: crate::View::snapshot
//! [`View::into_table`]: crate::View::into_table

use crate::current::open_staged;
use crate::name::{EntryPath, Name};
use crate::seen::{EntryKind, Seen};
use crate::table::{Content, Modified, Node, NodeId, NodeKind, Originals, Override, Table, TooDeep};
use crate::upper::Upper;
use rustix::fs::{AtFlags, renameat, unlinkat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;

/// The use of an entry by a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// It has read the file.
    Read,
    /// It has changed the content or the attributes of the entry.
    Alter,
    /// It has made, removed or moved the entry. Other entries of a folder that was removed are named themselves.
    Change,
    /// It has moved the folder with all entries below it, which are not named.
    Move,
}

/// The reason why the table of a member is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// It was not granted what it did with this entry.
    #[error("it says that an entry was changed or read that was not granted")]
    NotGranted(EntryPath),
    /// It says something else of an original than the table before it, or knows one that could not be reached.
    #[error("it is not true to what was read before")]
    Reads(EntryPath),
    /// A node or content has a number that was given before.
    #[error("it gives a number twice")]
    Numbers,
    /// The comparison would take too long.
    #[error("its folders lie too deep in one another")]
    TooDeep,
}

impl MemberError {
    /// The entry in question.
    #[must_use]
    pub const fn path(&self) -> Option<&EntryPath> {
        match self {
            Self::NotGranted(path) | Self::Reads(path) => Some(path),
            Self::Numbers | Self::TooDeep => None,
        }
    }
}

impl From<TooDeep> for MemberError {
    fn from(TooDeep: TooDeep) -> Self {
        Self::TooDeep
    }
}

impl Table {
    /// Checks that a member has changed nothing but what it was granted, in its turn between two tables.
    ///
    /// Paths are those below the roots of the table, where an entry is before or after the turn. That entries of a folder
    /// came and went is no change of the folder.
    ///
    /// # Errors
    /// [`MemberError`] says what is wrong with `after`.
    pub fn check_member(
        before: &Self,
        after: &Self,
        is_granted: impl Fn(&EntryPath, Act) -> bool,
    ) -> Result<(), MemberError> {
        if before.roots() != after.roots()
            || before.next_node() > after.next_node()
            || before.next_content() > after.next_content()
        {
            return Err(MemberError::Numbers);
        }
        let mut check = Check { before: Originals::new(before), after: Originals::new(after), is_granted };
        check.check_nodes()?;
        check.check_originals()
    }

    /// The originals from outside some folders that are inside now, each with all below it: who may read these folders of
    /// the program needs to read them.
    #[must_use]
    pub fn moved_in(&self, folders: &[EntryPath]) -> Vec<EntryPath> {
        let is_inside = |path: &EntryPath| {
            let contains =
                |folder: &EntryPath| folder.root == path.root && path.names.starts_with(&folder.names);
            folders.iter().any(contains)
        };
        let mut found = Vec::new();
        for folder in folders {
            let Some((id, rest)) = self.walk(folder) else { continue };
            let Some(node) = self.node(id) else { continue };
            if !rest.is_empty() {
                let mut origin = node.origin.as_deref().cloned();
                if let Some(origin) = &mut origin {
                    origin.names.extend_from_slice(rest);
                }
                found.extend(origin);
                continue;
            }
            let mut open = vec![node];
            while let Some(node) = open.pop() {
                // The original of a file with a staged content is not read, and no link is followed.
                let is_read = match node.kind {
                    NodeKind::File(Content::Lower) | NodeKind::Folder(_) => true,
                    NodeKind::File(Content::Upper(_)) | NodeKind::Link(_) | NodeKind::Other => false,
                };
                found.extend(node.origin.as_deref().filter(|_| is_read).cloned());
                open.extend(node.entries().into_iter().flatten().filter_map(|(_, entry)| match entry {
                    Override::Removed => None,
                    Override::Node(id) => self.node(*id),
                }));
            }
        }
        found.retain(|origin| !is_inside(origin));
        found.sort_unstable();
        found.dedup_by(|path, above| path.root == above.root && path.names.starts_with(&above.names));
        found
    }

    /// The lowest node on a path, and the names from there on, which are those of originals; `None` if there is no such
    /// entry.
    fn walk<'p>(&self, path: &'p EntryPath) -> Option<(NodeId, &'p [Name])> {
        let mut at = *self.roots().get(path.root)?;
        let mut rest = path.names.as_slice();
        while let Some((name, after)) = rest.split_first() {
            match self.node(at)?.entries()?.get(name) {
                Some(Override::Node(id)) => at = *id,
                Some(Override::Removed) => return None,
                None => return Some((at, rest)),
            }
            rest = after;
        }
        Some((at, rest))
    }

    /// Moves the contents of a run that has ended well to `base`, the one of the run that called it. `from` is the run's
    /// first number, this table its last one, and `upper` has its own folder and its base. Its process has ended.
    ///
    /// # Errors
    /// As `openat` and `renameat`; `EINVAL` or `EMLINK` if a content is not a regular file of one name. Then none is in
    /// `base`, whose numbers will be given again.
    pub fn move_contents(&self, from: u64, upper: &Upper, base: &OwnedFd) -> Result<(), Errno> {
        let numbers = self.contents().filter(|number| *number >= from).collect::<Vec<_>>();
        for number in &numbers {
            open_staged(upper, *number)?;
        }
        let move_one = |number: &u64| upper.find(*number, |folder, name| renameat(folder, name, base, name));
        let moved = numbers.iter().try_for_each(move_one);
        if moved.is_err() {
            for number in &numbers {
                let _may_not_be_there = unlinkat(base, number.to_string(), AtFlags::empty());
            }
        }
        moved
    }

    /// Removes from `base` the contents that this table has, and `next`, which takes its place for good, has not. No number
    /// is given again, so no later table has them. A process that has one of them open reads it on.
    ///
    /// # Errors
    /// As `unlinkat`, but for absence.
    pub fn discard_contents(&self, next: &Self, base: &OwnedFd) -> Result<(), Errno> {
        let kept = next.contents().collect::<HashSet<_>>();
        for number in self.contents().filter(|number| !kept.contains(number)) {
            match unlinkat(base, number.to_string(), AtFlags::empty()) {
                // It is in another run's folder.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The numbers of all contents.
    fn contents(&self) -> impl Iterator<Item = u64> {
        self.nodes().filter_map(|(_, node)| node.upper())
    }
}

/// The comparison of two tables.
struct Check<'a, G> {
    before: Originals<'a>,
    after: Originals<'a>,
    is_granted: G,
}

/// An entry of a table.
struct Entry<'a> {
    /// Its folder and name; `None` for a root.
    place: Option<(Folder<'a>, &'a Name)>,
    node: Option<&'a Node>,
    /// The lowest node on its path.
    above: NodeId,
    /// The names from there on.
    rest: &'a [Name],
}

/// A folder, wherever it is.
#[derive(PartialEq)]
enum Folder<'a> {
    Original(usize, &'a [Name]),
    Made(NodeId),
}

impl<'a> Entry<'a> {
    fn of_node(table: &'a Table, id: NodeId) -> Option<Self> {
        let node = table.node(id)?;
        let place = node.place.as_ref().map(|place| {
            let origin = table.node(place.folder).and_then(|folder| folder.origin.as_deref());
            let folder = origin.map(|origin| Folder::Original(origin.root, &origin.names));
            (folder.unwrap_or(Folder::Made(place.folder)), &place.name)
        });
        Some(Self { place, node: Some(node), above: id, rest: &[] })
    }

    /// The entry that is an original, wherever it is now; `None` if it is nowhere.
    fn of_original(side: &mut Originals<'a>, original: &'a EntryPath) -> Result<Option<Self>, TooDeep> {
        if let Some(id) = side.table.by_origin(original) {
            return Ok(Self::of_node(side.table, id));
        }
        let Some((above, index)) = side.find_plain(original)? else { return Ok(None) };
        let Some((name, folder)) = original.names.split_last() else { return Ok(None) };
        let place = Some((Folder::Original(original.root, folder), name));
        let rest = original.names.get(index..).unwrap_or_default();
        Ok(Some(Self { place, node: None, above, rest }))
    }

    fn path(&self, side: &mut Originals<'a>) -> Result<EntryPath, MemberError> {
        // A table that was read has a path for each node.
        side.path_of(self.above, self.rest)?.ok_or(MemberError::Numbers)
    }
}

impl<'a, G: Fn(&EntryPath, Act) -> bool> Check<'a, G> {
    fn grant(&self, path: EntryPath, act: Act) -> Result<(), MemberError> {
        if (self.is_granted)(&path, act) { Ok(()) } else { Err(MemberError::NotGranted(path)) }
    }

    fn grant_before(&mut self, entry: &Entry<'a>, act: Act) -> Result<(), MemberError> {
        let path = entry.path(&mut self.before)?;
        self.grant(path, act)
    }

    fn grant_after(&mut self, entry: &Entry<'a>, act: Act) -> Result<(), MemberError> {
        let path = entry.path(&mut self.after)?;
        self.grant(path, act)
    }

    /// Checks that a number means the same in both tables, and the entries that the program made.
    fn check_nodes(&mut self) -> Result<(), MemberError> {
        let before = self.before.table;
        let after = self.after.table;
        for (id, node) in after.nodes() {
            let Some(entry) = Entry::of_node(after, id) else { continue };
            match before.node(id) {
                Some(old) if old.origin == node.origin && old.entry_kind() == node.entry_kind() => {}
                Some(_) => return Err(MemberError::Numbers),
                None if id.0 < before.next_node() => return Err(MemberError::Numbers),
                None if node.origin.is_none() => {
                    self.check_number(None, node.upper())?;
                    self.grant_after(&entry, Act::Change)?;
                }
                None => {}
            }
        }
        for (id, _) in before.nodes().filter(|(_, node)| node.origin.is_none()) {
            let Some(old) = Entry::of_node(before, id) else { continue };
            match Entry::of_node(after, id) {
                Some(new) => self.compare(&old, &new, None)?,
                None => self.grant_before(&old, Act::Change)?,
            }
        }
        Ok(())
    }

    /// Checks the originals of both tables: none is forgotten, and where each is.
    fn check_originals(&mut self) -> Result<(), MemberError> {
        let before = self.before.table;
        let after = self.after.table;
        for (path, seen) in before.originals() {
            let is_known = match after.originals().get(path) {
                Some(now) => now == seen,
                // A folder without changes needs not be known.
                None => seen.kind == EntryKind::Folder && self.after.find_plain(path)?.is_some(),
            };
            if !is_known {
                return Err(MemberError::Reads(EntryPath::clone(path)));
            }
            self.check_original(path, seen)?;
        }
        for (path, seen) in
            after.originals().iter().filter(|(path, _)| !before.originals().contains_key(*path))
        {
            let Some(entry) = Entry::of_original(&mut self.before, path)? else {
                return Err(MemberError::Reads(EntryPath::clone(path)));
            };
            // A path may lead through links and folders that are not granted themselves.
            if seen.kind == EntryKind::File {
                self.grant_before(&entry, Act::Read)?;
            }
            self.check_original(path, seen)?;
        }
        Ok(())
    }

    fn check_original(&mut self, path: &'a EntryPath, seen: &'a Seen) -> Result<(), MemberError> {
        let old = Entry::of_original(&mut self.before, path)?;
        let new = Entry::of_original(&mut self.after, path)?;
        match (old, new) {
            (None, None) => Ok(()),
            (Some(old), None) => self.grant_before(&old, Act::Change),
            // No view brings back what is removed.
            (None, Some(new)) => Err(MemberError::NotGranted(new.path(&mut self.after)?)),
            (Some(old), Some(new)) => self.compare(&old, &new, Some(seen)),
        }
    }

    /// Compares one entry in both tables.
    fn compare(
        &mut self,
        old: &Entry<'a>,
        new: &Entry<'a>,
        original: Option<&Seen>,
    ) -> Result<(), MemberError> {
        if old.place != new.place {
            let kind = original.map(|seen| seen.kind).or(new.node.map(Node::entry_kind));
            let act = if kind == Some(EntryKind::Folder) { Act::Move } else { Act::Change };
            self.grant_before(old, act)?;
            self.grant_after(new, act)?;
        }
        let before = State::of(old.node, original);
        let after = State::of(new.node, original);
        if before.is_same(&after) {
            return Ok(());
        }
        self.check_number(before.content, after.content)?;
        self.grant_after(new, Act::Alter)
    }

    fn check_number(&self, before: Option<u64>, after: Option<u64>) -> Result<(), MemberError> {
        match after {
            Some(number) if before != after && number < self.before.table.next_content() => {
                Err(MemberError::Numbers)
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The part of an entry that takes effect, besides its place.
struct State<'a> {
    /// `None` for that of the original.
    content: Option<u64>,
    /// `None` for that of the original.
    mode: Option<u32>,
    modified: Time,
    /// `None` if only the original says it.
    target: Option<&'a OsStr>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Time {
    Of(Option<Modified>),
    /// Entries of the folder came or went.
    ByEntries,
}

impl<'a> State<'a> {
    fn of(node: Option<&'a Node>, original: Option<&Seen>) -> Self {
        let Some(node) = node else {
            return Self { content: None, mode: None, modified: Time::Of(None), target: None };
        };
        let target = match &node.kind {
            NodeKind::Link(target) => Some(target.as_os_str()),
            NodeKind::File(_) | NodeKind::Folder(_) | NodeKind::Other => None,
        };
        let modified = match (&node.kind, node.modified) {
            (NodeKind::Folder(_), Some(Modified::ByEntries(_))) => Time::ByEntries,
            (_, modified) => Time::Of(modified),
        };
        let mode = node.mode.filter(|mode| original.is_none_or(|seen| seen.mode != *mode));
        Self { content: node.upper(), mode, modified, target }
    }

    fn is_same(&self, after: &Self) -> bool {
        let is_same_time = match (self.modified, after.modified) {
            (_, Time::ByEntries) | (Time::ByEntries, Time::Of(None)) => true,
            (before, after) => before == after,
        };
        let is_same_target = self.target.zip(after.target).is_none_or(|(before, after)| before == after);
        self.content == after.content && self.mode == after.mode && is_same_time && is_same_target
    }
}

#[cfg(test)]
mod tests;
