//! The calls of a sequence, and their outcomes.

use a2g_overlay::{EntryKind, FileTime, How, NewTime};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsString;

/// A call. Folders and files are the numbers of slots; the first folders are the roots.
#[derive(Debug, Clone)]
pub(super) enum Call {
    /// Everything is closed, and the changes are stored and loaded.
    Reload,
    OpenFolder {
        folder: usize,
        name: OsString,
        slot: usize,
    },
    CloseFolder {
        slot: usize,
    },
    Open {
        folder: usize,
        name: OsString,
        how: How,
        slot: usize,
    },
    Close {
        slot: usize,
    },
    Read {
        slot: usize,
        at: u64,
        length: usize,
    },
    ReadAll {
        slot: usize,
    },
    Write {
        slot: usize,
        at: u64,
        data: Vec<u8>,
    },
    Resize {
        slot: usize,
        size: u64,
    },
    Stat {
        folder: usize,
        name: OsString,
    },
    StatFile {
        slot: usize,
    },
    StatFolder {
        folder: usize,
    },
    List {
        folder: usize,
    },
    MakeFolder {
        folder: usize,
        name: OsString,
    },
    RemoveFolder {
        folder: usize,
        name: OsString,
    },
    Unlink {
        folder: usize,
        name: OsString,
    },
    Rename {
        folder: usize,
        name: OsString,
        to_folder: usize,
        to: OsString,
    },
    Symlink {
        folder: usize,
        name: OsString,
        target: OsString,
    },
    ReadLink {
        folder: usize,
        name: OsString,
    },
    SetTimes {
        at: TimeCall,
        times: Times,
    },
    /// Asks whether an entry is the open file.
    IsSame {
        folder: usize,
        name: OsString,
        slot: usize,
    },
}

#[derive(Debug, Clone)]
pub(super) enum TimeCall {
    Entry(usize, OsString),
    File(usize),
    Folder(usize),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) accessed: NewTime,
    pub(super) modified: NewTime,
}

impl Times {
    pub(super) fn timestamps(self) -> Timestamps {
        let timespec = |time| match time {
            NewTime::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            NewTime::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            NewTime::At(time) => time.to_timespec(),
        };
        Timestamps { last_access: timespec(self.accessed), last_modification: timespec(self.modified) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Failed(Errno),
    Bytes(Vec<u8>),
    Count(usize),
    Target(OsString),
    Facts(Facts),
    Names(BTreeMap<OsString, EntryKind>),
    Is(bool),
}

/// The attributes of an entry that can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) kind: EntryKind,
    /// 0 for a folder.
    pub(super) size: u64,
    pub(super) mode: u32,
    /// `None` for a folder, and on the plain side for a file that had several names at the start.
    pub(super) nlink: Option<u64>,
    /// `None` for a time during the test.
    pub(super) modified: Option<FileTime>,
}

impl Facts {
    pub(super) fn is_folder(&self) -> bool {
        self.kind == EntryKind::Folder
    }

    pub(super) fn new(kind: EntryKind, size: u64, mode: u32, nlink: u64, modified: FileTime) -> Self {
        let is_folder = kind == EntryKind::Folder;
        Self {
            kind,
            size: if is_folder { 0 } else { size },
            mode,
            nlink: (!is_folder).then_some(nlink),
            modified: Some(modified).filter(|time| time.seconds < 1_500_000_000),
        }
    }
}

pub(super) trait Side {
    fn try_run(&mut self, call: &Call) -> Result<Outcome, Errno>;

    fn run(&mut self, call: &Call) -> Outcome {
        self.try_run(call).unwrap_or_else(Outcome::Failed)
    }
}
