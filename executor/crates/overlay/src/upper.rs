//! The folders of staged contents: flat, with one file for each, whose name is its number.

use crate::seen::{EntryKind, kind_of, stat_at};
use rustix::fs::{AtFlags, Mode, OFlags, Statx, openat, unlinkat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// The opened folder of a run's own contents, and those of other members of its program, which it only reads.
///
/// Its files have the mode 0600, whatever mode the program sees: the table has that one. So this process can open each of
/// them again, and none is ever set-user-id while it is staged.
#[derive(Debug)]
pub struct Upper {
    own: OwnedFd,
    earlier: Vec<OwnedFd>,
    /// The contents from this number on are in `own`, whatever is in the other folders: another member that was taken over
    /// may have made files there with any number.
    own_from: u64,
}

impl Upper {
    /// The name of the file with the stored table of changes, beside the staged contents.
    pub const TABLE: &'static str = "table";

    /// The upper folder behind a handle. Only this user may write in it.
    #[must_use]
    pub const fn new(own: OwnedFd) -> Self {
        Self { own, earlier: Vec::new(), own_from: 0 }
    }

    /// The upper folder of a member of a program, and the folders of earlier contents. The first of `earlier` that has a
    /// content counts, and `own` comes last. So the folder in which only the server puts contents comes first.
    #[must_use]
    pub const fn with_earlier(own: OwnedFd, earlier: Vec<OwnedFd>) -> Self {
        Self { own, earlier, own_from: u64::MAX }
    }

    /// The handle of the own folder.
    #[must_use]
    pub const fn dir(&self) -> &OwnedFd {
        &self.own
    }

    /// Opens a staged content with the given flags. Those for writing are for the own folder's contents.
    ///
    /// # Errors
    /// As `openat`; `ELOOP` or `EINVAL` if the entry is not a regular file, which this program never makes.
    pub fn open(&self, number: u64, flags: OFlags) -> Result<OwnedFd, Errno> {
        let always = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.find(number, |folder, name| openat(folder, name, flags | always, Mode::empty()))?;
        if kind_of(&stat_at(&file, "")?) == EntryKind::File { Ok(file) } else { Err(Errno::INVAL) }
    }

    pub(crate) fn create(&self, number: u64) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.own, number.to_string(), flags, Mode::RUSR | Mode::WUSR)
    }

    pub(crate) fn stat(&self, number: u64) -> Result<Statx, Errno> {
        self.find(number, |folder, name| stat_at(folder, name))
    }

    /// Removes a content of the own folder.
    pub(crate) fn remove(&self, number: u64) -> Result<(), Errno> {
        unlinkat(&self.own, number.to_string(), AtFlags::empty())
    }

    /// Looks up a content in the folder that has it.
    pub(crate) fn find<T>(
        &self,
        number: u64,
        look: impl Fn(&OwnedFd, &str) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let name = number.to_string();
        for folder in self.earlier_of(number) {
            match look(folder, &name) {
                Err(Errno::NOENT) => {}
                found => return found,
            }
        }
        look(&self.own, &name)
    }

    /// `true` if this member wrote a content, and may write it.
    pub(crate) fn is_own(&self, number: u64) -> Result<bool, Errno> {
        let name = number.to_string();
        for folder in self.earlier_of(number) {
            match stat_at(folder, &name) {
                Ok(_) => return Ok(false),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Notes that the contents from a number on are made by this member alone.
    pub(crate) const fn begin_own(&mut self, number: u64) {
        self.own_from = number;
    }

    fn earlier_of(&self, number: u64) -> &[OwnedFd] {
        if number < self.own_from { &self.earlier } else { &[] }
    }
}
