//! The steps of a plan, in both directions.
//!
//! Each step compares an entry before it takes it out of its place, and once more when it is in the stash, where no other
//! process finds it by name: then its inode, mode, size, time, and the hash of a content that is replaced or removed; of what
//! a commit has made, also its owner, group, extended attributes and number of names. What has changed in between is put
//! back. So other processes lose nothing that they have written by then. What remains: after that second comparison, they
//! may write to a file that they still have open, and between the two, they may set the owner, the group or the extended
//! attributes of an original. That then concerns the kept original, and not the committed file; where the store is on
//! another mount, what is kept is a copy from before the steps, so that is lost.

use super::check::{Depth, differs};
use super::disk::Disk;
use super::log::{Event, Log, Phase, Progress, Toward, Work};
use super::plan::{Attached, Attributes, Expected, Identity, Item, Times, Whose};
use super::stash::{Stashes, item_name};
use super::{CommitError, io_error};
use crate::commit::{Conflict, ConflictKind};
use crate::current::{CurrentRoots, is_absence};
use crate::name::EntryPath;
use crate::seen::{EntryKind, Seen};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// The maximum number of times that two entries that other processes replace meanwhile are exchanged.
const MAX_EXCHANGES: usize = 8;

/// Runs the steps.
pub(super) struct Engine<'a> {
    pub(super) current: &'a CurrentRoots<'a>,
    pub(super) disk: &'a Disk,
    pub(super) log: Log,
    pub(super) progress: Progress,
    pub(super) stashes: Stashes,
    pub(super) times: Times,
}

/// The reason why a step is not done.
#[derive(Debug)]
pub(super) enum Trouble {
    Conflict(Conflict),
    Failed(CommitError),
}

/// The entry that a step moves, and its two names.
struct Move<'a> {
    item: Item,
    at: &'a EntryPath,
    expected: Expected,
    /// `true` for a folder that has to be empty.
    is_removed: bool,
}

impl Engine<'_> {
    /// Runs the steps from a phase on. A step that cannot be done turns the direction, once.
    ///
    /// Returns where the steps led, and the first reason against the other direction.
    pub(super) fn run(&mut self, start: Work) -> Result<(Toward, Option<Trouble>), CommitError> {
        let mut work = start;
        let mut first = None;
        loop {
            self.log.append(self.disk, &Event::Work(work))?;
            match self.run_phase(work)? {
                Some(trouble) if !work.is_turned => {
                    first = Some(trouble);
                    work = Work { phase: work.phase, toward: opposite(work.toward), is_turned: true };
                    continue;
                }
                Some(trouble) => first = first.or(Some(trouble)),
                None => {}
            }
            self.sync()?;
            match next_phase(work) {
                Some(phase) => work.phase = phase,
                None => return Ok((work.toward, first)),
            }
        }
    }

    pub(super) fn sync(&self) -> Result<(), CommitError> {
        self.stashes
            .all()
            .try_for_each(|stash| self.disk.sync_all(stash))
            .map_err(io_error("save the changes"))
    }

    /// Runs the steps of a phase. Before the direction is turned, the first trouble ends it; afterwards, what is in trouble
    /// is left where it is.
    fn run_phase(&mut self, work: Work) -> Result<Option<Trouble>, CommitError> {
        let count = match work.phase {
            Phase::Exchange => self.progress.plan.exchanges.len(),
            Phase::Detach => self.progress.plan.detaches.len(),
            Phase::Attach => self.progress.plan.attaches.len(),
            Phase::Attributes => self.progress.plan.attributes.len(),
        };
        let mut first = None;
        for step in 0..count {
            let index = match work.toward {
                Toward::After => step,
                Toward::Before => count - 1 - step,
            };
            let Some((item, done)) = self.run_step(work, index) else { continue };
            match (done, work) {
                (Ok(()), _) => {}
                (Err(trouble), Work { is_turned: false, .. }) => return Ok(Some(trouble)),
                // Attributes that another process has changed are its own.
                (Err(Trouble::Conflict(_)), Work { phase: Phase::Attributes, .. }) => {}
                (Err(trouble), _) => {
                    self.strand(item)?;
                    first = first.or(Some(trouble));
                }
            }
        }
        Ok(first)
    }

    fn strand(&mut self, item: Item) -> Result<(), CommitError> {
        if !self.progress.stranded.contains(&item) {
            self.log.append(self.disk, &Event::Stranded(item))?;
            self.progress.stranded.push(item);
        }
        Ok(())
    }

    /// Runs one step, unless its item is stranded.
    fn run_step(&mut self, work: Work, index: usize) -> Option<(Item, Result<(), Trouble>)> {
        let plan = &self.progress.plan;
        let is_stranded = |item| self.progress.stranded.contains(&item);
        match work.phase {
            Phase::Exchange => {
                let step = plan.exchanges.get(index).filter(|step| !is_stranded(step.item))?.clone();
                let old = self.progress.old_state(step.item, step.old);
                let new = self.progress.new_state(step.item, Some(step.new));
                let done = new.map_err(Trouble::Failed).and_then(|new| match work.toward {
                    Toward::After => self.exchange(step.item, &step.at, old, new),
                    Toward::Before => self.exchange(step.item, &step.at, new, old),
                });
                Some((step.item, done))
            }
            Phase::Detach => {
                let step = plan.detaches.get(index).filter(|step| !is_stranded(step.item))?.clone();
                let expected = self.progress.old_state(step.item, step.old);
                let is_removed = step.is_removed;
                let done = match work.toward {
                    Toward::After => {
                        self.take_out(&Move { item: step.item, at: &step.at, expected, is_removed })
                    }
                    Toward::Before => self.put_in(step.item, &step.at),
                };
                Some((step.item, done))
            }
            Phase::Attach => {
                let step = plan.attaches.get(index).filter(|step| !is_stranded(step.item))?.clone();
                let done = match work.toward {
                    Toward::After => self.put_in(step.item, &step.at),
                    Toward::Before => self.attached_state(step.item, &step.what).and_then(|expected| {
                        let is_removed = matches!(step.what, Attached::Folder);
                        self.take_out(&Move { item: step.item, at: &step.at, expected, is_removed })
                    }),
                };
                Some((step.item, done))
            }
            Phase::Attributes => {
                let step = plan.attributes.get(index)?;
                Some((step.item, self.set_attributes(step, work.toward)))
            }
        }
    }

    fn attached_state(&self, item: Item, what: &Attached) -> Result<Expected, Trouble> {
        let state = match what {
            Attached::Moved(old) => return Ok(self.progress.old_state(item, *old)),
            Attached::File(sha256) => self.progress.new_state(item, Some(*sha256)),
            Attached::Folder | Attached::Link => self.progress.new_state(item, None),
        };
        state.map_err(Trouble::Failed)
    }

    /// Moves an entry into the stash, if it is the expected one.
    fn take_out(&self, step: &Move<'_>) -> Result<(), Trouble> {
        let name = item_name(step.item);
        let stash = self.stashes.of(step.at);
        if !self.is_in_stash(step.item, step.at)? {
            let (folder, leaf) = self.open_parent(step.at)?;
            refuse(step.at, differs(&folder, leaf, &step.expected, Depth::States, step.is_removed))?;
            let moved = self.disk.rename((&folder, leaf), (stash, &name));
            moved.map_err(|error| trouble(step.at, "move an entry", error))?;
        }
        let found = differs(stash, &name, &step.expected, Depth::Contents, step.is_removed);
        if !matches!(found, Ok(None))
            && let Ok((folder, leaf)) = self.current.open_parent(step.at)
        {
            // If that fails, because another process has made an entry of this name, or because the folder is in the stash
            // too, then the steps in the other direction put it back.
            let _is_back = self.disk.rename((stash, &name), (&folder, leaf));
        }
        refuse(step.at, found)
    }

    /// Moves an item from the stash to its place, if nothing is there.
    fn put_in(&self, item: Item, at: &EntryPath) -> Result<(), Trouble> {
        if !self.is_in_stash(item, at)? {
            return Ok(());
        }
        let (folder, leaf) = self.open_parent(at)?;
        let moved = self.disk.rename((self.stashes.of(at), &item_name(item)), (&folder, leaf));
        moved.map_err(|error| trouble(at, "move an entry", error))
    }

    /// Exchanges the entry at a place, which has to be `out`, with the item in the stash, which is `inside`.
    fn exchange(
        &mut self,
        item: Item,
        at: &EntryPath,
        out: Expected,
        inside: Expected,
    ) -> Result<(), Trouble> {
        let name = item_name(item);
        let (folder, leaf) = self.open_parent(at)?;
        let stash = self.stashes.of(at);
        let now = Seen::look(stash, &name).map_err(|error| trouble(at, "look into the stash", error))?;
        if now.inode == inside.identity.inode {
            refuse(at, differs(&folder, leaf, &out, Depth::States, false))?;
            let exchanged = self.disk.exchange((stash, &name), (&folder, leaf));
            exchanged.map_err(|error| trouble(at, "exchange a file", error))?;
        }
        let found = differs(stash, &name, &out, Depth::Contents, false);
        if matches!(found, Ok(None)) {
            return Ok(());
        }
        if !self.exchange_back(stash, &name, &folder, leaf, inside.identity) {
            self.strand(item).map_err(Trouble::Failed)?;
        }
        refuse(at, found)
    }

    /// Puts back what came out of a place; `false` if the item is not in the stash afterwards.
    ///
    /// `ours` is what should be in the place. If it is not, then another process has put something newer there.
    fn exchange_back(
        &self,
        stash: BorrowedFd<'_>,
        name: &OsStr,
        folder: &OwnedFd,
        leaf: &OsStr,
        ours: Identity,
    ) -> bool {
        let mut in_place = ours;
        for _ in 0..MAX_EXCHANGES {
            let Ok(inside) = Seen::look(stash, name) else { return false };
            match self.disk.exchange((stash, name), (folder, leaf)) {
                Ok(()) => {}
                // Another process has removed what was in the place.
                Err(Errno::NOENT) => {
                    let _stays_in_the_stash = self.disk.rename((stash, name), (folder, leaf));
                    return false;
                }
                Err(_) => return false,
            }
            let Ok(out) = Seen::look(stash, name) else { return false };
            if in_place.matches(&out) {
                return in_place == ours;
            }
            in_place = Identity::of(&inside);
        }
        false
    }

    fn set_attributes(&self, step: &Attributes, toward: Toward) -> Result<(), Trouble> {
        let at = &step.at;
        let inode = match step.of {
            Whose::Original { inode } => inode,
            Whose::New { item } => {
                self.progress.new_state(item, None).map_err(Trouble::Failed)?.identity.inode
            }
        };
        let (folder, leaf) = if at.names.is_empty() { self.open_root(at)? } else { self.open_parent(at)? };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(&folder, leaf, flags, Mode::empty());
        let entry = opened.map_err(|error| trouble(at, "open an entry", error))?;
        let now = Seen::look(&entry, "").map_err(|error| trouble(at, "look at an entry", error))?;
        if now.kind != step.kind || now.inode != inode {
            return Err(conflict(at, ConflictKind::Replaced));
        }
        let modes = self.progress.modes(step);
        let is_known_mode = modes.is_none_or(|(before, after)| now.mode == before || now.mode == after);
        let is_known_time = step.mtime.is_none_or(|(before, after)| {
            let is_own = now.mtime == after || before.is_none_or(|before| now.mtime == before);
            is_own || self.times.has(at, inode, now.mtime)
        });
        if !is_known_mode || !is_known_time && now.kind != EntryKind::Folder {
            return Err(conflict(at, ConflictKind::Changed));
        }
        let mode = modes.map(|(before, after)| if toward == Toward::After { after } else { before });
        if let Some(mode) = mode.filter(|mode| *mode != now.mode) {
            self.set_mode(&folder, leaf, inode, mode).map_err(|error| trouble(at, "set a mode", error))?;
        }
        let mtime =
            step.mtime.and_then(|(before, after)| if toward == Toward::After { Some(after) } else { before });
        if let Some(mtime) = mtime.filter(|mtime| *mtime != now.mtime) {
            self.disk.set_mtime(&entry, mtime).map_err(|error| trouble(at, "set a time", error))?;
        }
        Ok(())
    }

    /// Sets the mode of an entry that is not another one yet: an `O_PATH` handle does not suffice.
    fn set_mode(&self, folder: &OwnedFd, leaf: &OsStr, inode: u64, mode: u32) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let entry = openat(folder, leaf, flags, Mode::empty())?;
        if Seen::look(&entry, "")?.inode != inode {
            return Err(Errno::STALE);
        }
        self.disk.set_mode(entry, mode)
    }

    fn is_in_stash(&self, item: Item, at: &EntryPath) -> Result<bool, Trouble> {
        match Seen::look(self.stashes.of(at), item_name(item)) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(trouble(at, "look into the stash", error)),
        }
    }

    fn open_parent<'p>(&self, at: &'p EntryPath) -> Result<(OwnedFd, &'p OsStr), Trouble> {
        self.current.open_parent(at).map_err(|error| trouble(at, "open a folder", error))
    }

    fn open_root(&self, at: &EntryPath) -> Result<(OwnedFd, &'static OsStr), Trouble> {
        let root =
            self.current.roots().get(at.root).ok_or_else(|| trouble(at, "open a root", Errno::BADF))?;
        let root = root.dir.as_fd().try_clone_to_owned();
        let root = root.map_err(|error| trouble(at, "open a root", crate::current::errno_of(&error)))?;
        Ok((root, OsStr::new(".")))
    }
}

fn conflict(at: &EntryPath, what: ConflictKind) -> Trouble {
    Trouble::Conflict(Conflict { path: at.clone(), what })
}

fn refuse(at: &EntryPath, found: Result<Option<ConflictKind>, Errno>) -> Result<(), Trouble> {
    match found {
        Ok(None) => Ok(()),
        Ok(Some(what)) => Err(conflict(at, what)),
        Err(error) => Err(trouble(at, "read an entry", error)),
    }
}

/// An error of a step: a conflict where it says that the entries are others than they were.
fn trouble(at: &EntryPath, what: &'static str, error: Errno) -> Trouble {
    match error {
        Errno::EXIST => conflict(at, ConflictKind::Exists),
        Errno::XDEV => conflict(at, ConflictKind::OtherMount),
        error if is_absence(error) => conflict(at, ConflictKind::Missing),
        error => Trouble::Failed(io_error(what)(error)),
    }
}

const fn opposite(toward: Toward) -> Toward {
    match toward {
        Toward::Before => Toward::After,
        Toward::After => Toward::Before,
    }
}

/// The phase after this one in the direction of the work.
const fn next_phase(work: Work) -> Option<Phase> {
    match (work.toward, work.phase) {
        (Toward::After, Phase::Exchange) | (Toward::Before, Phase::Attach) => Some(Phase::Detach),
        (Toward::After, Phase::Detach) | (Toward::Before, Phase::Attributes) => Some(Phase::Attach),
        (Toward::After, Phase::Attach) => Some(Phase::Attributes),
        (Toward::Before, Phase::Detach) => Some(Phase::Exchange),
        (Toward::After, Phase::Attributes) | (Toward::Before, Phase::Exchange) => None,
    }
}
