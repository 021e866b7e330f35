//! Finds out whether the originals are still those that the program saw, and before an undo, whether the entries are still
//! those that the commit left.

use super::log::{Progress, Side};
use super::ownership::Ownership;
use super::plan::{Attached, Attributes, Expected, Moves, Plan, SET_GROUP_ID, StashPlace, Times, Whose};
use super::{CommitError, io_error};
use crate::commit::{Conflict, ConflictKind};
use crate::current::{CurrentRoots, hash_unchanged, is_absence, list, open_regular};
use crate::effects::{ChangeKind, Effects, Read};
use crate::hash::Sha256;
use crate::name::EntryPath;
use crate::seen::{EntryKind, Seen};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::AsFd;

/// The part of the originals that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Their states.
    States,
    /// Also the contents that are replaced or removed.
    Contents,
}

/// Compares an entry with what it should be, after or before it is taken out of its place; `None` if it is that.
///
/// A folder that `is_removed` must be empty.
pub(super) fn differs(
    folder: impl AsFd,
    name: &OsStr,
    expected: &Expected,
    depth: Depth,
    is_removed: bool,
) -> Result<Option<ConflictKind>, Errno> {
    let now = match Seen::look(&folder, name) {
        Err(error) if is_absence(error) => return Ok(Some(ConflictKind::Missing)),
        other => other?,
    };
    let identity = &expected.identity;
    if now.kind != identity.kind || now.inode != identity.inode {
        return Ok(Some(ConflictKind::Replaced));
    }
    if !identity.matches(&now) {
        return Ok(Some(ConflictKind::Changed));
    }
    if is_removed && now.kind == EntryKind::Folder {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if !list(openat(&folder, name, flags, Mode::empty())?)?.is_empty() {
            return Ok(Some(ConflictKind::Unseen));
        }
    }
    if let Some(ownership) = expected.ownership
        && Ownership::look(&folder, name)? != ownership
    {
        return Ok(Some(ConflictKind::Changed));
    }
    match expected.sha256 {
        Some(sha256) if depth == Depth::Contents => {
            let (file, seen) = open_regular(&folder, name)?;
            content_differs(&file, &seen, sha256)
        }
        Some(_) | None => Ok(None),
    }
}

fn content_differs(file: &std::fs::File, seen: &Seen, sha256: Sha256) -> Result<Option<ConflictKind>, Errno> {
    match hash_unchanged(file, seen) {
        Ok(now) if now == sha256 => Ok(None),
        Ok(_) => Ok(Some(ConflictKind::Changed)),
        Err(Errno::STALE) => Ok(Some(ConflictKind::Changed)),
        Err(error) => Err(error),
    }
}

/// Compares all that a commit relies on with what there is now.
pub(super) fn check(
    effects: &Effects,
    current: &CurrentRoots<'_>,
    stashes: &[StashPlace],
    depth: Depth,
) -> Result<Vec<Conflict>, CommitError> {
    let displaced = effects.changes.iter().filter_map(|change| match &change.kind {
        ChangeKind::Deleted { .. } => Some(&change.path),
        ChangeKind::Renamed { from, .. } => Some(from),
        ChangeKind::Created { .. } | ChangeKind::Changed { .. } | ChangeKind::Attributes { .. } => None,
    });
    let displaced = displaced.collect();
    let moves = Moves::of_effects(effects);
    let mut checker = Checker { current, stashes, depth, displaced, moves, conflicts: BTreeSet::new() };
    for Read { path, seen } in &effects.reads {
        checker.check_original(path, seen)?;
    }
    for change in &effects.changes {
        checker.check_change(&change.path, &change.kind)?;
    }
    Ok(checker.conflicts.into_iter().collect())
}

struct Checker<'a> {
    current: &'a CurrentRoots<'a>,
    stashes: &'a [StashPlace],
    depth: Depth,
    /// The originals that leave their places.
    displaced: BTreeSet<&'a EntryPath>,
    moves: Moves,
    conflicts: BTreeSet<Conflict>,
}

impl Checker<'_> {
    fn add(&mut self, path: &EntryPath, what: ConflictKind) {
        self.conflicts.insert(Conflict { path: path.clone(), what });
    }

    fn refuse(&mut self, path: &EntryPath, what: ConflictKind) -> Result<(), CommitError> {
        self.add(path, what);
        Ok(())
    }

    fn check_original(&mut self, path: &EntryPath, seen: &Seen) -> Result<(), CommitError> {
        match self.current.look(path) {
            Ok(now) if now.kind != seen.kind || !now.is_same_entry(seen) => {
                self.add(path, ConflictKind::Replaced)
            }
            // The times and the size of a folder change with its entries, of which each has its own state.
            Ok(now) if seen.kind == EntryKind::Folder && now.mode == seen.mode => {}
            Ok(now) if now == *seen => {}
            Ok(_) => self.add(path, ConflictKind::Changed),
            Err(error) if is_absence(error) => self.add(path, ConflictKind::Missing),
            Err(error) => return Err(io_error("look at an original")(error)),
        }
        Ok(())
    }

    fn check_change(&mut self, path: &EntryPath, kind: &ChangeKind) -> Result<(), CommitError> {
        match kind {
            ChangeKind::Deleted { before, content } => {
                self.check_mount(path)?;
                self.check_deleted(path, before, *content)
            }
            ChangeKind::Renamed { from, .. } => {
                self.check_mount(from)?;
                let mounts = self.current.mounts();
                if mounts.get(from.root) != mounts.get(path.root) {
                    self.add(path, ConflictKind::OtherMount);
                }
                self.check_name(path)
            }
            ChangeKind::Created { .. } => self.check_name(path),
            ChangeKind::Changed { before, content_before, .. } => match self.moves.old_place(path) {
                Some(old) => {
                    self.check_mount(&old)?;
                    self.check_content(&old, before, *content_before)
                }
                None => self.refuse(path, ConflictKind::Missing),
            },
            ChangeKind::Attributes { .. } => match self.moves.old_place(path) {
                Some(old) if old.names.is_empty() => Ok(()),
                Some(old) => self.check_mount(&old),
                None => self.refuse(path, ConflictKind::Missing),
            },
        }
    }

    fn check_deleted(
        &mut self,
        path: &EntryPath,
        before: &Seen,
        content: Option<Sha256>,
    ) -> Result<(), CommitError> {
        match before.kind {
            EntryKind::File => content.map_or(Ok(()), |content| self.check_content(path, before, content)),
            EntryKind::Folder => {
                let names = match self.current.list(path) {
                    Err(error) if is_absence(error) => return Ok(()),
                    other => other.map_err(io_error("list a folder"))?,
                };
                for child in names.iter().map(|name| path.child(name)) {
                    if !self.displaced.contains(&child) {
                        self.add(&child, ConflictKind::Unseen);
                    }
                }
                Ok(())
            }
            EntryKind::Link => Ok(()),
            EntryKind::Other => {
                if self.stashes.get(path.root) != Some(&StashPlace::Store) {
                    self.add(path, ConflictKind::Special);
                }
                Ok(())
            }
        }
    }

    fn check_content(&mut self, path: &EntryPath, before: &Seen, sha256: Sha256) -> Result<(), CommitError> {
        if self.depth == Depth::States {
            return Ok(());
        }
        let found = match self.current.open_file(path) {
            Ok((_, now)) if now != *before => Some(ConflictKind::Changed),
            Ok((file, now)) => content_differs(&file, &now, sha256).map_err(io_error("read an original"))?,
            Err(Errno::INVAL) => Some(ConflictKind::Replaced),
            Err(error) if is_absence(error) => Some(ConflictKind::Missing),
            Err(error) => return Err(io_error("open an original")(error)),
        };
        if let Some(what) = found {
            self.add(path, what);
        }
        Ok(())
    }

    /// Checks that an entry can be moved to the stash of its root.
    fn check_mount(&mut self, path: &EntryPath) -> Result<(), CommitError> {
        let mount = match self.current.open_parent(path) {
            Ok(_) => self.current.stat(path).map(|stat| stat.stx_mnt_id),
            Err(error) => Err(error),
        };
        match mount {
            Ok(mount) if Some(&mount) == self.current.mounts().get(path.root) => {}
            Ok(_) | Err(Errno::XDEV) => self.add(path, ConflictKind::OtherMount),
            Err(error) if is_absence(error) => self.add(path, ConflictKind::Missing),
            Err(error) => return Err(io_error("look at an original")(error)),
        }
        Ok(())
    }

    /// Checks that nothing is in the way of a new entry.
    fn check_name(&mut self, path: &EntryPath) -> Result<(), CommitError> {
        let Some((parent, name)) = path.split() else {
            self.add(path, ConflictKind::Exists);
            return Ok(());
        };
        // In a new folder, nothing can be in the way.
        let Some(parent) = self.moves.old_place(&parent) else { return Ok(()) };
        let place = parent.child(name);
        match self.current.open_parent(&place) {
            Err(Errno::XDEV) => return self.refuse(path, ConflictKind::OtherMount),
            Err(error) if is_absence(error) => return self.refuse(&parent, ConflictKind::Missing),
            other => drop(other.map_err(io_error("open a folder"))?),
        }
        match self.current.look(&place) {
            Err(Errno::NOENT) => {}
            Ok(_) if self.displaced.contains(&place) => {}
            Ok(_) => self.add(path, ConflictKind::Exists),
            Err(error) => return Err(io_error("look at a name")(error)),
        }
        Ok(())
    }
}

/// Compares what the commit left with what there is now.
pub(super) fn check_undo(
    progress: &Progress,
    current: &CurrentRoots<'_>,
) -> Result<Vec<Conflict>, CommitError> {
    let plan = &progress.plan;
    let removed = plan.detaches.iter().filter(|detach| detach.is_removed);
    let mut checker = UndoChecker {
        current,
        moves: Moves::of_plan(plan),
        times: Times::of_plan(plan),
        attached: plan.attaches.iter().map(|attach| &attach.at).collect(),
        removed: removed.map(|detach| &detach.at).collect(),
        attributes: plan.attributes.iter().map(|attributes| (&attributes.at, attributes)).collect(),
        conflicts: Vec::new(),
    };
    for exchange in &plan.exchanges {
        let expected = progress.new_state(exchange.item, Some(exchange.new))?;
        checker.check_left(&checker.moves.new_place(&exchange.at), &expected)?;
    }
    for attach in &plan.attaches {
        let mut expected = match &attach.what {
            Attached::Moved(old) => {
                let mut old = progress.old_state(attach.item, *old);
                let last = checker.times.last(&attach.at, old.identity.inode);
                old.identity.mtime = last.unwrap_or(old.identity.mtime);
                old
            }
            Attached::File(sha256) => progress.new_state(attach.item, Some(*sha256))?,
            Attached::Folder | Attached::Link => progress.new_state(attach.item, None)?,
        };
        if let Some(attributes) = checker.attributes.get(&attach.at) {
            let identity = &mut expected.identity;
            identity.mode = progress.modes(attributes).map_or(identity.mode, |(_, mode)| mode);
        }
        checker.check_left(&attach.at, &expected)?;
        if matches!(attach.what, Attached::Folder) {
            checker.check_entries(&attach.at)?;
        }
    }
    for attributes in &plan.attributes {
        if let Whose::Original { inode } = attributes.of {
            checker.check_attributes(attributes, inode)?;
        }
    }
    plan.detaches.iter().try_for_each(|detach| checker.check_free(&detach.at))?;
    checker.conflicts.sort_unstable();
    checker.conflicts.dedup();
    Ok(checker.conflicts)
}

struct UndoChecker<'a> {
    current: &'a CurrentRoots<'a>,
    moves: Moves,
    times: Times,
    /// The places of what the commit put somewhere.
    attached: BTreeSet<&'a EntryPath>,
    /// The places of the originals that the commit removed.
    removed: BTreeSet<&'a EntryPath>,
    attributes: BTreeMap<&'a EntryPath, &'a Attributes>,
    conflicts: Vec<Conflict>,
}

impl UndoChecker<'_> {
    fn add(&mut self, path: &EntryPath, what: ConflictKind) {
        self.conflicts.push(Conflict { path: path.clone(), what });
    }

    fn check_left(&mut self, path: &EntryPath, expected: &Expected) -> Result<(), CommitError> {
        let found = match self.current.open_parent(path) {
            Ok((folder, name)) => differs(folder, name, expected, Depth::Contents, false),
            Err(error) if is_absence(error) => Ok(Some(ConflictKind::Missing)),
            Err(error) => Err(error),
        };
        if let Some(what) = found.map_err(io_error("look at a committed entry"))? {
            self.add(path, what);
        }
        Ok(())
    }

    /// Checks that a new folder has no other entries than the commit made.
    fn check_entries(&mut self, folder: &EntryPath) -> Result<(), CommitError> {
        let names = match self.current.list(folder) {
            Err(error) if is_absence(error) => return Ok(()),
            other => other.map_err(io_error("list a folder"))?,
        };
        for child in names.iter().map(|name| folder.child(name)) {
            if !self.attached.contains(&child) {
                self.add(&child, ConflictKind::Unseen);
            }
        }
        Ok(())
    }

    fn check_attributes(&mut self, attributes: &Attributes, inode: u64) -> Result<(), CommitError> {
        let what = match self.current.look(&attributes.at) {
            Ok(now) if now.kind != attributes.kind || now.inode != inode => Some(ConflictKind::Replaced),
            Ok(now) => {
                let is_mode = attributes.mode.is_none_or(|(_, mode)| mode == now.mode);
                let is_time = self.times.last(&attributes.at, inode).is_none_or(|mtime| mtime == now.mtime);
                let is_left = is_mode && (is_time || now.kind == EntryKind::Folder);
                (!is_left).then_some(ConflictKind::Changed)
            }
            Err(error) if is_absence(error) => Some(ConflictKind::Missing),
            Err(error) => return Err(io_error("look at a committed entry")(error)),
        };
        if let Some(what) = what {
            self.add(&attributes.at, what);
        }
        Ok(())
    }

    /// Checks that the place of an original is free, unless the commit put another entry there.
    fn check_free(&mut self, at: &EntryPath) -> Result<(), CommitError> {
        let Some((parent, name)) = at.split() else { return Ok(()) };
        // The folder itself will be restored.
        if self.removed.contains(&parent) {
            return Ok(());
        }
        let place = self.moves.new_place(&parent).child(name);
        match self.current.look(&place) {
            Ok(_) if self.attached.contains(&place) => {}
            Ok(_) => self.add(&place, ConflictKind::Exists),
            Err(Errno::NOENT) => {}
            Err(error) if is_absence(error) => self.add(&place, ConflictKind::Missing),
            Err(error) => return Err(io_error("look at a name")(error)),
        }
        Ok(())
    }
}

impl Progress {
    /// The state of an original: as planned, unless it was restored from a copy.
    pub(super) fn old_state(&self, item: u64, planned: Expected) -> Expected {
        let identity =
            self.stashed.get(&(item, Side::Old)).map_or(planned.identity, |stashed| stashed.identity);
        Expected { identity, ..planned }
    }

    /// The modes of a step before and after: a new folder keeps what it got from the folder that contains it.
    pub(super) fn modes(&self, step: &Attributes) -> Option<(u32, u32)> {
        let inherited = match step.of {
            Whose::Original { .. } => 0,
            Whose::New { item } => {
                self.stashed.get(&(item, Side::New)).map_or(0, |stashed| stashed.identity.mode & SET_GROUP_ID)
            }
        };
        step.mode.map(|(before, after)| (before | inherited, after | inherited))
    }

    /// The state of what was staged.
    pub(super) fn new_state(&self, item: u64, sha256: Option<Sha256>) -> Result<Expected, CommitError> {
        let noted = self.stashed.get(&(item, Side::New));
        let noted = noted.ok_or_else(|| CommitError::Log(format!("it does not say what item {item} is")))?;
        Ok(Expected { identity: noted.identity, sha256, ownership: noted.ownership })
    }
}

impl Progress {
    /// The places of what could not be put back.
    pub(super) fn stranded_paths(&self) -> Vec<EntryPath> {
        let Plan { exchanges, detaches, attaches, attributes, .. } = &self.plan;
        let exchanges = exchanges.iter().map(|step| (step.item, &step.at));
        let detaches = detaches.iter().map(|step| (step.item, &step.at));
        let attaches = attaches.iter().map(|step| (step.item, &step.at));
        let attributes = attributes.iter().map(|step| (step.item, &step.at));
        let mut left = BTreeMap::new();
        for (item, at) in exchanges.chain(detaches).chain(attaches).chain(attributes) {
            if self.stranded.contains(&item) {
                left.entry(item).or_insert_with(|| at.clone());
            }
        }
        left.into_values().collect()
    }
}
