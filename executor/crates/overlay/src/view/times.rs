//! Setting times, in the table alone. The process of a guest may set those of no file, not even of a staged one: Landlock
//! does not cover times, and a filter of system calls cannot tell a staged file from an original.
//!
//! So the time of a content is that of its file, unless the table has another one, which ends when the file is written
//! ([`WriteMark`](super::WriteMark)).

use super::View;
use crate::name::Name;
use crate::seen::FileTime;
use crate::table::{Modified, NodeId};
use rustix::io::{Errno, Result};

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

    fn resolve(self, now: FileTime) -> Option<FileTime> {
        match self {
            Self::Keep => None,
            Self::Now => Some(now),
            Self::At(time) => Some(time),
        }
    }
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
        self.take_write(id);
        let now = FileTime::now();
        let node = self.node_mut(id)?;
        node.accessed = accessed.resolve(now).or(node.accessed);
        node.modified = modified.resolve(now).map(Modified::Set).or(node.modified);
        node.changed = Some(now);
        Ok(())
    }

    /// Forgets the time that the table has for a content, if its file was written since.
    pub(super) fn take_write(&mut self, id: NodeId) {
        if self.tree.handles.take_write(id)
            && let Some(node) = self.tree.table.node_mut(id)
        {
            node.modified = None;
        }
    }

    /// Calls [`Self::take_write`] for all files, and returns those that were written.
    pub(super) fn take_writes(&mut self) -> Vec<NodeId> {
        let written = self.tree.handles.written_files();
        for id in &written {
            self.take_write(*id);
        }
        written
    }
}
