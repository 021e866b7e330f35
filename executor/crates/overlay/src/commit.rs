//! Conflicts, the commit of changes, its recovery, and its undo.
//!
//! A commit is all or nothing, also if this process ends in the middle of it: the log in the store says what remains to do,
//! and [`recover`] does that. The store belongs to this program alone. It is not the upper folder, because what can write
//! there could write a log with steps that nobody has approved.
//!
//! Other processes may change the roots meanwhile. What they have changed before the commit takes an entry is a conflict,
//! which reverts the commit, and nothing of theirs is replaced or removed. An entry that can then not be put back, because
//! they have made another one of its name, stays in the store and is named ([`CommitError::Stranded`]).
//!
//! They can notice a commit: all changes are not seen at one moment; an entry that is moved or removed has no name for
//! a while; and what they write to a file that they have open goes to the original, which is kept, if that is replaced.

mod check;
mod copy;
mod disk;
mod log;
mod ownership;
mod plan;
mod prepare;
mod stash;
mod steps;

pub use disk::Disk;
pub use stash::is_stash_name;

use crate::current::{CurrentRoots, list};
use crate::effects::Effects;
use crate::lower::{Access, LowerRoot};
use crate::name::EntryPath;
use crate::seen::Seen;
use crate::upper::Upper;
use check::Depth;
use log::{Event, Log, Phase, Progress, Stage, Toward, Work};
use plan::Times;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use steps::{Engine, Trouble};

/// An original, or a name, that is not as the program saw it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The place of the original, or the name.
    pub path: EntryPath,
    /// The difference.
    pub what: ConflictKind,
}

/// The difference between an original and what the program saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConflictKind {
    /// It is gone, or the folder that contains it.
    Missing,
    /// Another entry has its name.
    Replaced,
    /// Its content or its attributes have changed.
    Changed,
    /// There is an entry where the program made or moved one.
    Exists,
    /// It is in a folder that is removed, and the program did not see it.
    Unseen,
    /// It is on another mount than its root, so it cannot be moved.
    OtherMount,
    /// It is a FIFO, a socket or a device on another mount than the store, so no copy of it can be kept.
    Special,
}

/// The folders of a commit.
#[derive(Debug, Clone, Copy)]
pub struct Folders<'a> {
    /// The roots, in the order of the table.
    pub roots: &'a [LowerRoot],
    /// The folder of the staged contents.
    pub upper: &'a Upper,
    /// A private folder for the log and what is kept for an undo, one for each list of changes. The process that runs the
    /// program must never get it. On the mount of the roots, an original is kept without copying it.
    pub store: &'a OwnedFd,
}

/// The reason why something was not committed or undone.
///
/// After [`Self::Io`] and [`Self::Log`], only [`recover`] says what was done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The originals, or what the commit left, are not as they were. Nothing is changed.
    #[error("{} entries have changed meanwhile, so nothing was changed: decide again after a new run", .0.len())]
    Conflicts(Vec<Conflict>),
    /// A conflict came up in the middle, and not all could be put back. What is not in its place is in the stash, a folder
    /// of the store or, on another mount, of the root (`.a2g-…`), until [`forget`].
    #[error("{} entries were changed by others at the same time and could not be put back: see the stash, then forget the commit", .left.len())]
    Stranded {
        /// The places of the entries.
        left: Vec<EntryPath>,
    },
    /// A root that a change concerns may only be read.
    #[error("a change concerns a folder that may only be read")]
    ReadOnly(EntryPath),
    /// The copy of an original that is kept for the undo is not as it was kept. Nothing is changed.
    #[error(
        "the copy that is kept of an original is damaged, so nothing was changed: put the original back from a backup"
    )]
    Kept(EntryPath),
    /// A staged content is not the one that was approved. Nothing is changed.
    #[error("the staged content {number} is not the one that was shown: discard the changes")]
    Staged {
        /// Its number.
        number: u64,
    },
    /// Another commit uses the store.
    #[error("the store is in use by another commit or undo: wait for it")]
    Busy,
    /// The store has a commit already.
    #[error("the store has a commit already: recover it, undo it, or forget it")]
    Used,
    /// There is no finished commit in the store.
    #[error("the store has no finished commit to undo")]
    NothingToUndo,
    /// The log cannot be understood.
    #[error("the log of the commit cannot be read ({0}): see the stash of the store")]
    Log(String),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The action that was to be done.
        what: &'static str,
        /// The reason.
        source: Errno,
    },
}

/// The state of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovered {
    /// No change is in the roots.
    Unchanged,
    /// All changes are in the roots, and can be undone.
    Committed,
}

/// Applies all changes, or none.
///
/// # Errors
/// [`CommitError`]. After a conflict, nothing is changed.
pub fn commit(effects: &Effects, folders: Folders<'_>, disk: &Disk) -> Result<(), CommitError> {
    let _lock = lock(folders.store)?;
    if log::is_there(folders.store)? {
        return Err(CommitError::Used);
    }
    let current = CurrentRoots::new(folders.roots).map_err(io_error("look at a root"))?;
    for path in effects.changed_paths() {
        if folders.roots.get(path.root).is_none_or(|root| root.access == Access::Read) {
            return Err(CommitError::ReadOnly(path.clone()));
        }
    }
    let stashes = stash::choose(folders.store, &current)?;
    refuse(check::check(effects, &current, &stashes, Depth::States)?)?;
    let (plan, staged) = plan::make_plan(effects, stashes);
    let log = Log::create(folders.store, disk, &plan)?;
    let mut prepared = Prepared { folders, current: &current, disk, log, progress: Progress::begin(plan)? };
    if let Err(error) = prepared.stage(effects, &staged) {
        clean_before(folders, &prepared.progress, disk)?;
        // The failure may be due to an original that was changed.
        refuse(check::check(effects, &current, &prepared.progress.plan.stashes, Depth::States)?)?;
        return Err(error);
    }
    prepared.run(Phase::Exchange, Toward::After)
}

/// A commit or an undo that can begin its steps.
struct Prepared<'a> {
    folders: Folders<'a>,
    current: &'a CurrentRoots<'a>,
    disk: &'a Disk,
    log: Log,
    progress: Progress,
}

impl Prepared<'_> {
    fn run(self, phase: Phase, toward: Toward) -> Result<(), CommitError> {
        self.resume(Work { phase, toward, is_turned: false }).map(drop)
    }

    /// Runs the steps from a phase on, and cleans up.
    fn resume(self, work: Work) -> Result<Recovered, CommitError> {
        let Self { folders, current, disk, log, progress } = self;
        let stashes = stash::Stashes::open(folders.store, folders.roots, &progress.plan.stashes)?;
        let stashes = stashes.ok_or_else(|| CommitError::Log("its stash is missing".to_owned()))?;
        let times = Times::of_plan(&progress.plan);
        let mut engine = Engine { current, disk, log, progress, stashes, times };
        let (toward, trouble) = engine.run(work)?;
        let Engine { mut log, progress, .. } = engine;
        if !progress.stranded.is_empty() {
            log.append(disk, &Event::Stuck)?;
            return Err(CommitError::Stranded { left: progress.stranded_paths() });
        }
        log.append(disk, &Event::Clean(toward))?;
        let state = clean(folders, &mut log, &progress, disk, toward)?;
        match trouble {
            None => Ok(state),
            Some(Trouble::Conflict(conflict)) => Err(CommitError::Conflicts(vec![conflict])),
            Some(Trouble::Failed(error)) => Err(error),
        }
    }
}

/// Removes what is not needed any more after the steps.
fn clean(
    folders: Folders<'_>,
    log: &mut Log,
    progress: &Progress,
    disk: &Disk,
    toward: Toward,
) -> Result<Recovered, CommitError> {
    match toward {
        Toward::Before => {
            clean_before(folders, progress, disk)?;
            Ok(Recovered::Unchanged)
        }
        Toward::After => {
            stash::remove_own(folders.roots, &progress.plan, disk)?;
            log.append(disk, &Event::Committed)?;
            Ok(Recovered::Committed)
        }
    }
}

/// Removes everything of a commit that changed nothing.
fn clean_before(folders: Folders<'_>, progress: &Progress, disk: &Disk) -> Result<(), CommitError> {
    stash::remove_own(folders.roots, &progress.plan, disk)?;
    stash::remove_kept(folders.store, &progress.plan, disk)?;
    log::remove(folders.store, disk)
}

/// Ends a commit or an undo that was interrupted, at the start of the program: forward if its steps had begun, else back.
///
/// # Errors
/// As [`commit`]. A conflict leads back, so the state is [`Recovered::Unchanged`] after a commit and
/// [`Recovered::Committed`] after an undo.
pub fn recover(folders: Folders<'_>, disk: &Disk) -> Result<Recovered, CommitError> {
    let _lock = lock(folders.store)?;
    let Some((mut log, progress)) = Log::open(folders.store, disk)? else { return Ok(Recovered::Unchanged) };
    match progress.stage {
        Stage::Preparing => {
            clean_before(folders, &progress, disk)?;
            Ok(Recovered::Unchanged)
        }
        Stage::Working(work) => {
            let current = CurrentRoots::new(folders.roots).map_err(io_error("look at a root"))?;
            Prepared { folders, current: &current, disk, log, progress }.resume(work)
        }
        Stage::Stuck => Err(CommitError::Stranded { left: progress.stranded_paths() }),
        Stage::Cleaning(toward) => clean(folders, &mut log, &progress, disk, toward),
        Stage::PreparingUndo => clean(folders, &mut log, &progress, disk, Toward::After),
        Stage::Committed => Ok(Recovered::Committed),
    }
}

/// Puts everything back to what it was before the commit of this store, but for the times of folders.
///
/// Nothing else has changed since in the entries that the commit made, changed, moved or removed. Entries of a moved folder
/// that it did not touch go back with it as they are, and so do owners and extended attributes of what it only moved.
///
/// # Errors
/// [`CommitError::Conflicts`] names what is not as the commit left it; then nothing is changed.
pub fn undo(folders: Folders<'_>, disk: &Disk) -> Result<(), CommitError> {
    let _lock = lock(folders.store)?;
    let Some((log, progress)) = Log::open(folders.store, disk)? else {
        return Err(CommitError::NothingToUndo);
    };
    match progress.stage {
        Stage::Committed => {}
        Stage::Preparing | Stage::Working(_) | Stage::Stuck | Stage::Cleaning(_) | Stage::PreparingUndo => {
            return Err(CommitError::NothingToUndo);
        }
    }
    let current = CurrentRoots::new(folders.roots).map_err(io_error("look at a root"))?;
    refuse(check::check_undo(&progress, &current)?)?;
    let mut prepared = Prepared { folders, current: &current, disk, log, progress };
    prepared.log.append(disk, &Event::Undo)?;
    if let Err(error) = prepared.bring_back() {
        clean(folders, &mut prepared.log, &prepared.progress, disk, Toward::After)?;
        return Err(error);
    }
    prepared.run(Phase::Attributes, Toward::Before)
}

/// Removes what a finished commit keeps for its undo, which is impossible afterwards, or what is stranded. Without a commit,
/// nothing happens.
///
/// # Errors
/// [`CommitError::Used`] if the commit is not finished; otherwise as the system calls.
pub fn forget(folders: Folders<'_>, disk: &Disk) -> Result<(), CommitError> {
    let _lock = lock(folders.store)?;
    let Some((_, progress)) = Log::open(folders.store, disk)? else { return Ok(()) };
    match progress.stage {
        Stage::Committed | Stage::Stuck => clean_before(folders, &progress, disk),
        Stage::Preparing | Stage::Working(_) | Stage::Cleaning(_) | Stage::PreparingUndo => {
            Err(CommitError::Used)
        }
    }
}

/// Removes all staged contents.
///
/// # Errors
/// As the system calls. A folder, which this program never makes there, stays, and is an error.
pub fn discard(upper: &Upper) -> Result<(), CommitError> {
    let names = list(upper.dir()).map_err(io_error("list the staged contents"))?;
    let disk = Disk::new();
    let mut names = names.iter();
    names
        .try_for_each(|name| disk.remove_file(upper.dir(), name.as_os_str()))
        .map_err(io_error("remove a staged content"))
}

/// The number of the entries of a flat folder, and their size in bytes: of an upper folder, or of a store's stash.
///
/// # Errors
/// As the system calls.
pub fn size_of(folder: &OwnedFd) -> Result<(usize, u64), CommitError> {
    let names = list(folder).map_err(io_error("list a folder"))?;
    let mut bytes = 0_u64;
    for name in &names {
        let seen = Seen::look(folder, name.as_os_str()).map_err(io_error("look at a file"))?;
        bytes = bytes.saturating_add(seen.size);
    }
    Ok((names.len(), bytes))
}

fn refuse(conflicts: Vec<Conflict>) -> Result<(), CommitError> {
    if conflicts.is_empty() { Ok(()) } else { Err(CommitError::Conflicts(conflicts)) }
}

/// A locked store. A process that is forked meanwhile has the handle too, so dropping it would not unlock the store.
struct Lock(OwnedFd);

impl Drop for Lock {
    fn drop(&mut self) {
        let _is_unlocked_at_the_end_of_the_process = flock(&self.0, FlockOperation::Unlock);
    }
}

fn lock(store: &OwnedFd) -> Result<Lock, CommitError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = openat(store, ".", flags, Mode::empty()).map_err(io_error("open the store"))?;
    match flock(&handle, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock(handle)),
        Err(Errno::WOULDBLOCK) => Err(CommitError::Busy),
        Err(error) => Err(io_error("lock the store")(error)),
    }
}

/// Names the call that failed.
fn io_error(what: &'static str) -> impl Fn(Errno) -> CommitError {
    move |source| CommitError::Io { what, source }
}
