//! The upper folder: private, flat, with one file for each staged content, whose name is its number.

use crate::seen::{EntryKind, kind_of, stat_at};
use rustix::fs::{AtFlags, Mode, OFlags, Statx, openat, unlinkat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// The opened upper folder.
///
/// Its files have the mode 0600, whatever mode the program sees: the table has that one. So this process can open each of
/// them again, and none is ever set-user-id while it is staged.
#[derive(Debug)]
pub struct Upper {
    dir: OwnedFd,
}

impl Upper {
    /// The name of the file with the stored table of changes, beside the staged contents.
    pub const TABLE: &'static str = "table";

    /// The upper folder behind a handle. Only this user may write in it.
    #[must_use]
    pub const fn new(dir: OwnedFd) -> Self {
        Self { dir }
    }

    /// The handle of the folder.
    #[must_use]
    pub const fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Opens a staged content with the given flags.
    ///
    /// # Errors
    /// As `openat`; `ELOOP` or `EINVAL` if the entry is not a regular file, which this program never makes.
    pub fn open(&self, number: u64, flags: OFlags) -> Result<OwnedFd, Errno> {
        let always = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = openat(&self.dir, number.to_string(), flags | always, Mode::empty())?;
        if kind_of(&stat_at(&file, "")?) == EntryKind::File { Ok(file) } else { Err(Errno::INVAL) }
    }

    pub(crate) fn create(&self, number: u64) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.dir, number.to_string(), flags, Mode::RUSR | Mode::WUSR)
    }

    pub(crate) fn stat(&self, number: u64) -> Result<Statx, Errno> {
        stat_at(&self.dir, number.to_string())
    }

    pub(crate) fn remove(&self, number: u64) -> Result<(), Errno> {
        unlinkat(&self.dir, number.to_string(), AtFlags::empty())
    }
}
