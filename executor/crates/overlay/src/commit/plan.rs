//! The steps of a commit, as its log has them.
//!
//! Each root has a *stash*, a folder on its mount. Every content and entry that comes or goes is an *item*: an entry of the
//! stash whose name is its number. There are four phases:
//!
//! 1. *exchange*: a new content in the stash and the original in its place change places;
//! 2. *detach*: an original that is removed or moved goes from its place into the stash, the deepest first;
//! 3. *attach*: an item goes from the stash to its new place, the outermost first;
//! 4. *attributes*: modes and times are set.
//!
//! The first two name places as they were, the last two as they will be, so no step has to know how far another one got.
//! The stash alone says whether a step is done: of the first phase by the inode of the item, of the others by whether
//! there is one. An undo is the same in the opposite direction.

use super::ownership::Ownership;
use crate::effects::{ChangeKind, Effects, NewContent, NewEntry};
use crate::hash::Sha256;
use crate::name::{EntryPath, Name};
use crate::seen::{EntryKind, FileTime, Seen};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

/// The number of an item.
pub(super) type Item = u64;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    pub(super) version: u32,
    /// The digest of the effects.
    pub(super) digest: Sha256,
    /// The stash of each root.
    pub(super) stashes: Vec<StashPlace>,
    pub(super) exchanges: Vec<Exchange>,
    pub(super) detaches: Vec<Detach>,
    pub(super) attaches: Vec<Attach>,
    pub(super) attributes: Vec<Attributes>,
}

/// The place of the stash of a root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum StashPlace {
    /// In the store, which is on the same mount.
    Store,
    /// In the top folder of this root, while the steps run. What has to be kept is copied to the store.
    Root { root: usize, name: Name },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exchange {
    pub(super) item: Item,
    pub(super) at: EntryPath,
    pub(super) old: Expected,
    pub(super) new: Sha256,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Detach {
    pub(super) item: Item,
    pub(super) at: EntryPath,
    pub(super) old: Expected,
    /// `false` if a later step attaches it again.
    pub(super) is_removed: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Attach {
    pub(super) item: Item,
    pub(super) at: EntryPath,
    pub(super) what: Attached,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Attached {
    /// A detached original.
    Moved(Expected),
    /// A new file, with the hash of its content.
    File(Sha256),
    Folder,
    Link,
}

/// The state in which an item is taken out of its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expected {
    pub(super) identity: Identity,
    pub(super) sha256: Option<Sha256>,
    /// Of what this program has made; an original takes along what others set of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ownership: Option<Ownership>,
}

/// The facts compared of an entry that was renamed, or restored after a restart: neither the device, whose number may
/// be another one, nor the time of its attributes, which every rename sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Identity {
    pub(super) kind: EntryKind,
    pub(super) inode: u64,
    pub(super) size: u64,
    pub(super) mode: u32,
    pub(super) mtime: FileTime,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Attributes {
    /// A number of its own, which is that of no entry of a stash.
    pub(super) item: Item,
    pub(super) at: EntryPath,
    pub(super) of: Whose,
    pub(super) kind: EntryKind,
    /// The mode before and after.
    pub(super) mode: Option<(u32, u32)>,
    /// The time before, unless the entry is new, and after.
    pub(super) mtime: Option<(Option<FileTime>, FileTime)>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Whose {
    /// The original with this inode.
    Original { inode: u64 },
    /// A new folder, which has got its set-group-id bit from the folder that contains it.
    New { item: Item },
}

/// An item that is made before the steps.
pub(super) struct Staging {
    pub(super) item: Item,
    pub(super) root: usize,
    pub(super) what: StagedEntry,
    /// The deepest original folder that contains its place.
    pub(super) anchor: EntryPath,
}

pub(super) enum StagedEntry {
    /// A content, and the original whose owner and extended attributes it takes over.
    File(NewContent, Option<EntryPath>),
    Folder,
    /// The target, and the time if the program has set one.
    Link(OsString, Option<FileTime>),
}

impl Identity {
    pub(super) const fn of(seen: &Seen) -> Self {
        Self { kind: seen.kind, inode: seen.inode, size: seen.size, mode: seen.mode, mtime: seen.mtime }
    }

    /// `true` if an entry is in this state. The size and the time of a folder change with its entries.
    pub(super) fn matches(&self, seen: &Seen) -> bool {
        let now = Self::of(seen);
        let is_same = self.kind == now.kind && self.inode == now.inode && self.mode == now.mode;
        is_same && (self.kind == EntryKind::Folder || *self == now)
    }
}

impl Expected {
    const fn of(seen: &Seen, sha256: Option<Sha256>) -> Self {
        Self { identity: Identity::of(seen), sha256, ownership: None }
    }
}

/// The moves of originals: from what is in a place afterwards to what was there before, and back.
pub(super) struct Moves {
    /// From the new place to the old one.
    old_places: BTreeMap<EntryPath, EntryPath>,
    new_places: BTreeMap<EntryPath, EntryPath>,
    /// The new folders.
    created: BTreeSet<EntryPath>,
}

impl Moves {
    pub(super) fn of_plan(plan: &Plan) -> Self {
        let old_places =
            plan.detaches.iter().map(|detach| (detach.item, &detach.at)).collect::<BTreeMap<_, _>>();
        let moved = plan.attaches.iter().filter_map(|attach| {
            let old = old_places.get(&attach.item)?;
            Some((attach.at.clone(), (*old).clone()))
        });
        let created = plan.attaches.iter().filter(|attach| matches!(attach.what, Attached::Folder));
        Self::new(moved.collect(), created.map(|attach| attach.at.clone()).collect())
    }

    pub(super) fn of_effects(effects: &Effects) -> Self {
        let mut old_places = BTreeMap::new();
        let mut created = BTreeSet::new();
        for change in &effects.changes {
            match &change.kind {
                ChangeKind::Renamed { from, .. } => {
                    old_places.insert(change.path.clone(), from.clone());
                }
                ChangeKind::Created { new: NewEntry::Folder { .. } } => {
                    created.insert(change.path.clone());
                }
                ChangeKind::Deleted { .. }
                | ChangeKind::Created { .. }
                | ChangeKind::Changed { .. }
                | ChangeKind::Attributes { .. } => {}
            }
        }
        Self::new(old_places, created)
    }

    fn new(old_places: BTreeMap<EntryPath, EntryPath>, created: BTreeSet<EntryPath>) -> Self {
        let new_places = old_places.iter().map(|(new, old)| (old.clone(), new.clone())).collect();
        Self { old_places, new_places, created }
    }

    /// The old place of the original that is at `path` afterwards, if one is: of the moves of its folders, the
    /// innermost counts.
    pub(super) fn old_place(&self, path: &EntryPath) -> Option<EntryPath> {
        map(&self.old_places, path, |above| self.created.contains(above))
    }

    /// The place afterwards of the original at `path`, if nothing removes it.
    pub(super) fn new_place(&self, path: &EntryPath) -> EntryPath {
        map(&self.new_places, path, |_| false).unwrap_or_else(|| path.clone())
    }

    /// The deepest original folder that contains the place `path`, by its old place.
    fn anchor(&self, path: &EntryPath) -> EntryPath {
        let mut folder = path.clone();
        while folder.names.pop().is_some() {
            if let Some(old) = self.old_place(&folder) {
                return old;
            }
        }
        EntryPath::of_root(path.root)
    }
}

/// The place to which the innermost move of a path's folders leads; `None` if one before that is to be left out.
fn map(
    moves: &BTreeMap<EntryPath, EntryPath>,
    path: &EntryPath,
    is_left_out: impl Fn(&EntryPath) -> bool,
) -> Option<EntryPath> {
    let mut above = path.clone();
    let mut below = Vec::new();
    loop {
        if is_left_out(&above) {
            return None;
        }
        if let Some(other) = moves.get(&above) {
            let mut place = other.clone();
            place.names.extend(below.into_iter().rev());
            return Some(place);
        }
        match above.names.pop() {
            Some(name) => below.push(name),
            None => return Some(path.clone()),
        }
    }
}

/// Makes the plan of a commit, and the list of what has to be staged for it.
pub(super) fn make_plan(effects: &Effects, stashes: Vec<StashPlace>) -> (Plan, Vec<Staging>) {
    let plan = Plan {
        version: 1,
        digest: effects.digest(),
        stashes,
        exchanges: Vec::new(),
        detaches: Vec::new(),
        attaches: Vec::new(),
        attributes: Vec::new(),
    };
    let moves = Moves::of_effects(effects);
    let mut planner = Planner { plan, staged: Vec::new(), moves, next_item: 1 };
    for change in &effects.changes {
        planner.add(&change.path, &change.kind);
    }
    let Planner { mut plan, staged, .. } = planner;
    // Sorts are stable, so the order is always the same.
    plan.detaches.sort_by_key(|detach| std::cmp::Reverse(detach.at.names.len()));
    plan.attaches.sort_by_key(|attach| attach.at.names.len());
    plan.attributes.sort_by_key(|attributes| std::cmp::Reverse(attributes.at.names.len()));
    (plan, staged)
}

struct Planner {
    plan: Plan,
    staged: Vec<Staging>,
    moves: Moves,
    next_item: Item,
}

impl Planner {
    fn take_item(&mut self) -> Item {
        let item = self.next_item;
        self.next_item += 1;
        item
    }

    fn stage(&mut self, path: &EntryPath, what: StagedEntry) -> Item {
        let item = self.take_item();
        let anchor = self.moves.anchor(path);
        self.staged.push(Staging { item, root: path.root, what, anchor });
        item
    }

    fn add(&mut self, path: &EntryPath, kind: &ChangeKind) {
        match kind {
            ChangeKind::Deleted { before, content } => {
                let item = self.take_item();
                let old = Expected::of(before, *content);
                self.plan.detaches.push(Detach { item, at: path.clone(), old, is_removed: true });
            }
            ChangeKind::Renamed { from, before, after } => {
                let item = self.take_item();
                let old = Expected::of(before, None);
                let is_removed = after.is_some();
                self.plan.detaches.push(Detach { item, at: from.clone(), old, is_removed });
                match after {
                    None => self.attach(item, path, Attached::Moved(old)),
                    Some(new) => {
                        let staged = StagedEntry::File(new.clone(), Some(from.clone()));
                        let item = self.stage(path, staged);
                        self.attach(item, path, Attached::File(new.sha256));
                    }
                }
            }
            ChangeKind::Created { new } => self.add_created(path, new),
            ChangeKind::Changed { before, content_before, new } => {
                let at = self.moves.old_place(path).unwrap_or_else(|| path.clone());
                let item = self.stage(path, StagedEntry::File(new.clone(), Some(at.clone())));
                let old = Expected::of(before, Some(*content_before));
                self.plan.exchanges.push(Exchange { item, at, old, new: new.sha256 });
            }
            ChangeKind::Attributes { before, mode, mtime } => {
                let item = self.take_item();
                self.plan.attributes.push(Attributes {
                    item,
                    at: path.clone(),
                    of: Whose::Original { inode: before.inode },
                    kind: before.kind,
                    mode: mode.map(|mode| (before.mode, mode)),
                    mtime: mtime.map(|mtime| (Some(before.mtime), mtime)),
                });
            }
        }
    }

    fn attach(&mut self, item: Item, path: &EntryPath, what: Attached) {
        self.plan.attaches.push(Attach { item, at: path.clone(), what });
    }

    fn add_created(&mut self, path: &EntryPath, new: &NewEntry) {
        match new {
            NewEntry::File(content) => {
                let item = self.stage(path, StagedEntry::File(content.clone(), None));
                self.attach(item, path, Attached::File(content.sha256));
            }
            NewEntry::Folder { mode, mtime } => {
                let folder = self.stage(path, StagedEntry::Folder);
                self.attach(folder, path, Attached::Folder);
                let attributes = Attributes {
                    item: self.take_item(),
                    at: path.clone(),
                    of: Whose::New { item: folder },
                    kind: EntryKind::Folder,
                    mode: Some((NEW_FOLDER_MODE, *mode)),
                    mtime: mtime.map(|mtime| (None, mtime)),
                };
                self.plan.attributes.push(attributes);
            }
            NewEntry::Link { target, mtime } => {
                let item = self.stage(path, StagedEntry::Link(target.clone(), *mtime));
                self.attach(item, path, Attached::Link);
            }
        }
    }
}

/// The bit of a folder whose new entries get its group, and if they are folders, this bit.
pub(super) const SET_GROUP_ID: u32 = 0o2000;

/// The permissions of a new folder until its entries are in it.
pub(super) const NEW_FOLDER_MODE: u32 = 0o700;

/// The times that the steps set of originals. A file with several names has one time, and each name can have a step.
#[derive(Debug)]
pub(super) struct Times {
    /// The first root of the mount of each root: inodes of different mounts can have the same number.
    mounts: Vec<Option<usize>>,
    by_inode: BTreeMap<(Option<usize>, u64), Vec<FileTime>>,
}

impl Times {
    pub(super) fn of_plan(plan: &Plan) -> Self {
        let first = |place: &StashPlace| plan.stashes.iter().position(|other| other == place);
        let mut times = Self { mounts: plan.stashes.iter().map(first).collect(), by_inode: BTreeMap::new() };
        for step in &plan.attributes {
            if let (Whose::Original { inode }, Some((before, after))) = (step.of, step.mtime) {
                let key = (times.mount(&step.at), inode);
                times.by_inode.entry(key).or_default().extend(before.into_iter().chain([after]));
            }
        }
        times
    }

    fn mount(&self, at: &EntryPath) -> Option<usize> {
        self.mounts.get(at.root).copied().flatten()
    }

    /// `true` if a step finds or leaves the original at a place with this time.
    pub(super) fn has(&self, at: &EntryPath, inode: u64, time: FileTime) -> bool {
        self.by_inode.get(&(self.mount(at), inode)).is_some_and(|times| times.contains(&time))
    }

    /// The time of the original at a place after all steps, if one of them sets it.
    pub(super) fn last(&self, at: &EntryPath, inode: u64) -> Option<FileTime> {
        self.by_inode.get(&(self.mount(at), inode))?.last().copied()
    }
}

impl Plan {
    /// The highest number of an item.
    pub(super) fn last_item(&self) -> Item {
        let exchanged = self.exchanges.iter().map(|exchange| exchange.item);
        let detached = self.detaches.iter().map(|detach| detach.item);
        let attached = self.attaches.iter().map(|attach| attach.item);
        exchanged.chain(detached).chain(attached).max().unwrap_or(0)
    }
}
