//! The log of a commit, from which it is resumed: a file of the store, one line of JSON for each event.
//!
//! A line is on the disk before what it announces is done. A last line without its end was not written completely, so what
//! it announces was not begun.

use super::disk::Disk;
use super::ownership::Ownership;
use super::plan::{Identity, Item, Plan};
use super::{CommitError, io_error};
use crate::current::{errno_of, open_regular};
use crate::seen::Seen;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

const LOG: &str = "commit.log";

/// The longest log. A plan has some hundred bytes for each change.
const MAX_LOG_BYTES: u64 = 1 << 30;

/// The room that is kept for the lines of the steps, of which each has less than 100 bytes.
const ROOM_BYTES: u64 = 64 << 10;

/// One of the phases of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    Exchange,
    Detach,
    Attach,
    Attributes,
}

/// The state to which the steps lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Toward {
    Before,
    After,
}

/// The phase that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Work {
    pub(super) phase: Phase,
    pub(super) toward: Toward,
    /// `true` if the direction was changed because of a conflict or an error. It is changed only once.
    pub(super) is_turned: bool,
}

/// Which content of an item is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Side {
    /// The original.
    Old,
    /// The staged one.
    New,
}

/// The state of an item that this program has made in a stash.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stashed {
    pub(super) item: Item,
    pub(super) side: Side,
    pub(super) identity: Identity,
    /// What an undo compares beside that; `None` for an original, and in the log of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ownership: Option<Ownership>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Event {
    Plan(Box<Plan>),
    #[serde(rename = "held")]
    Stashed(Vec<Stashed>),
    Work(Work),
    /// The step of this item cannot be done in the changed direction either.
    Stranded(Item),
    /// All steps are done, but for those of stranded items.
    Stuck,
    /// All steps are done; what is not needed any more is removed.
    Clean(Toward),
    /// The commit is done.
    Committed,
    /// The undo begins.
    Undo,
}

/// The stage that a commit has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Preparing,
    Working(Work),
    Stuck,
    Cleaning(Toward),
    Committed,
    PreparingUndo,
}

/// The progress of a commit, as the log tells it.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) plan: Plan,
    pub(super) stashed: BTreeMap<(Item, Side), Stashed>,
    pub(super) stranded: Vec<Item>,
    pub(super) stage: Stage,
}

/// The open log.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    end: u64,
}

impl Log {
    /// Begins a log, which must not exist.
    pub(super) fn create(store: &OwnedFd, disk: &Disk, plan: &Plan) -> Result<Self, CommitError> {
        let created = disk.create_file(store, LOG).map_err(io_error("create the log"))?;
        let mut log = Self { file: File::from(created), end: 0 };
        log.append(disk, &Event::Plan(Box::new(plan.clone())))?;
        disk.sync(store).map_err(io_error("save the log"))?;
        Ok(log)
    }

    /// Writes an event, and waits until it is on the disk.
    pub(super) fn append(&mut self, disk: &Disk, event: &Event) -> Result<(), CommitError> {
        let mut line = serde_json::to_vec(event).map_err(|error| CommitError::Log(error.to_string()))?;
        line.push(b'\n');
        let mut rest = &*line;
        while !rest.is_empty() {
            let written = disk.write(&self.file, rest, self.end).map_err(io_error("write the log"))?;
            self.end += written as u64;
            rest = rest.get(written..).unwrap_or_default();
        }
        disk.sync(&self.file).map_err(io_error("save the log"))
    }

    /// Keeps room on the disk for what follows before the steps end.
    pub(super) fn reserve(&self, disk: &Disk) -> Result<(), CommitError> {
        disk.reserve(&self.file, self.end, ROOM_BYTES).map_err(io_error("keep room for the log"))
    }

    /// Opens the log of a store; `None` if there is none, or none with a plan.
    pub(super) fn open(store: &OwnedFd, disk: &Disk) -> Result<Option<(Self, Progress)>, CommitError> {
        let bytes = match open_regular(store, OsStr::new(LOG)) {
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(io_error("open the log")(error)),
            Ok((_, seen)) if seen.size > MAX_LOG_BYTES => {
                return Err(CommitError::Log(format!("it has more than {MAX_LOG_BYTES} bytes")));
            }
            Ok((file, seen)) => read_all(&file, seen.size).map_err(io_error("read the log"))?,
        };
        // The end of the last complete line.
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let lines = bytes.get(..end).unwrap_or_default();
        let Some(progress) = Progress::read(lines)? else {
            remove(store, disk)?;
            return Ok(None);
        };
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(store, LOG, flags, Mode::empty()).map_err(io_error("open the log"))?;
        let end = end as u64;
        if end != bytes.len() as u64 {
            disk.set_size(&file, end).map_err(io_error("write the log"))?;
        }
        Ok(Some((Self { file: File::from(file), end }, progress)))
    }
}

/// `true` if a store has a log.
pub(super) fn is_there(store: &OwnedFd) -> Result<bool, CommitError> {
    match Seen::look(store, LOG) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(io_error("look at the log")(error)),
    }
}

/// Removes the log, which ends a commit without a trace.
pub(super) fn remove(store: &OwnedFd, disk: &Disk) -> Result<(), CommitError> {
    match disk.remove_file(store, LOG) {
        Ok(()) | Err(Errno::NOENT) => disk.sync(store).map_err(io_error("save the store")),
        Err(error) => Err(io_error("remove the log")(error)),
    }
}

fn read_all(file: &File, size: u64) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; usize::try_from(size).map_err(|_| Errno::FBIG)?];
    file.read_exact_at(&mut bytes, 0).map_err(|error| errno_of(&error))?;
    Ok(bytes)
}

impl Progress {
    /// Reads complete lines; `None` if there is no plan.
    fn read(lines: &[u8]) -> Result<Option<Self>, CommitError> {
        let mut progress = None;
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let event = serde_json::from_slice(line).map_err(|error| CommitError::Log(error.to_string()))?;
            progress = match (progress, event) {
                (None, Event::Plan(plan)) => Some(Self::begin(*plan)?),
                (Some(progress), event) => Some(Self::follow(progress, event)?),
                (None, event) => return Err(CommitError::Log(format!("it begins with {event:?}"))),
            };
        }
        Ok(progress)
    }

    pub(super) fn begin(plan: Plan) -> Result<Self, CommitError> {
        if plan.version != 1 {
            return Err(CommitError::Log("another version of this program wrote it".to_owned()));
        }
        Ok(Self { plan, stashed: BTreeMap::new(), stranded: Vec::new(), stage: Stage::Preparing })
    }

    /// Notes the states of items that this program has made.
    pub(super) fn add_stashed(&mut self, stashed: Vec<Stashed>) {
        self.stashed.extend(stashed.into_iter().map(|one| ((one.item, one.side), one)));
    }

    fn follow(mut self, event: Event) -> Result<Self, CommitError> {
        match event {
            Event::Plan(_) => return Err(CommitError::Log("it has two plans".to_owned())),
            Event::Stashed(stashed) => self.add_stashed(stashed),
            Event::Work(work) => self.stage = Stage::Working(work),
            Event::Stranded(item) => self.stranded.push(item),
            Event::Stuck => self.stage = Stage::Stuck,
            Event::Clean(toward) => self.stage = Stage::Cleaning(toward),
            Event::Committed => self.stage = Stage::Committed,
            Event::Undo => self.stage = Stage::PreparingUndo,
        }
        Ok(self)
    }
}
