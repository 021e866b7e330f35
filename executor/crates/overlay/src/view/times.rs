//! Setting times.

use super::View;
use crate::name::Name;
use crate::seen::FileTime;
use crate::table::{Modified, NodeId};
use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;

/// The new value of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewTime {
    /// It stays as it is.
    Keep,
    /// The time now.
    Now,
    /// The given time.
    At(FileTime),
}

impl NewTime {
    const fn is_valid(self) -> bool {
        match self {
            Self::Keep | Self::Now => true,
            Self::At(time) => time.is_valid(),
        }
    }

    fn to_timespec(self) -> Timespec {
        match self {
            Self::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            Self::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            Self::At(time) => time.to_timespec(),
        }
    }

    fn resolve(self, now: FileTime) -> Option<FileTime> {
        match self {
            Self::Keep => None,
            Self::Now => Some(now),
            Self::At(time) => Some(time),
        }
    }
}

/// Sets both times of an open file.
pub(super) fn set_both(file: &OwnedFd, accessed: FileTime, modified: FileTime) -> Result<()> {
    let times = Timestamps { last_access: accessed.to_timespec(), last_modification: modified.to_timespec() };
    futimens(file, &times)
}

impl View {
    /// Sets the times of the entry `name` of a folder, also of a symbolic link itself.
    ///
    /// # Errors
    /// As `utimensat` without following a link; `EPERM` below a root that may only be read; `ENOSPC` if the table is full.
    pub fn set_times_at(
        &mut self,
        folder: NodeId,
        name: &Name,
        accessed: NewTime,
        modified: NewTime,
    ) -> Result<()> {
        self.sweep_if_due();
        self.tree.check_root(folder)?;
        if accessed == NewTime::Keep && modified == NewTime::Keep {
            return Ok(());
        }
        let found = self.tree.find(folder, name)?.ok_or(Errno::NOENT)?;
        if !accessed.is_valid() || !modified.is_valid() {
            return Err(Errno::INVAL);
        }
        let id = self.adopt(folder, name, &found)?;
        let result = self.apply_times(id, accessed, modified);
        self.drop_unused(id);
        result
    }

    /// Sets the times of an open folder or file.
    ///
    /// # Errors
    /// As `futimens`; `EPERM` below a root that may only be read.
    pub fn set_times(&mut self, id: NodeId, accessed: NewTime, modified: NewTime) -> Result<()> {
        self.tree.check_root(id)?;
        if accessed == NewTime::Keep && modified == NewTime::Keep {
            return Ok(());
        }
        if !accessed.is_valid() || !modified.is_valid() {
            return Err(Errno::INVAL);
        }
        self.apply_times(id, accessed, modified)
    }

    fn apply_times(&mut self, id: NodeId, accessed: NewTime, modified: NewTime) -> Result<()> {
        self.tree.check_times(id, accessed == NewTime::Now && modified == NewTime::Now)?;
        let now = FileTime::now();
        if self.tree.node(id)?.upper().is_some() {
            if !self.has_own_content(id)? {
                self.copy_up(id, false)?;
            }
            let number = self.tree.node(id)?.upper().ok_or(Errno::BADF)?;
            let times =
                Timestamps { last_access: accessed.to_timespec(), last_modification: modified.to_timespec() };
            return match self.upper.open(number, OFlags::RDONLY) {
                // As in `stat_content`.
                Err(Errno::NOENT) => futimens(&*self.tree.handles.find(id)?, &times),
                opened => futimens(opened?, &times),
            };
        }
        let node = self.node_mut(id)?;
        node.accessed = accessed.resolve(now).or(node.accessed);
        node.modified = modified.resolve(now).map(Modified::Set).or(node.modified);
        node.changed = Some(now);
        Ok(())
    }
}
