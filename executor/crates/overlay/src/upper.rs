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
    base: Option<OwnedFd>,
    from: u64,
    earlier: Vec<EarlierFolder>,
}

/// A folder with contents of a run whose call this one is, or of one above that.
#[derive(Debug)]
pub struct EarlierFolder {
    /// The folder.
    pub folder: OwnedFd,
    /// The first number of that run: [`Table::next_content`](crate::Table::next_content) of the table with which it began.
    pub from: u64,
}

impl Upper {
    /// The name of the file with the stored table of changes, beside the staged contents.
    pub const TABLE: &'static str = "table";

    /// The upper folder behind a handle. Only this user may write in it.
    #[must_use]
    pub const fn new(own: OwnedFd) -> Self {
        Self { own, base: None, from: 0, earlier: Vec::new() }
    }

    /// The upper folder of a member of a program.
    ///
    /// `base` has the contents of those calls of this run that have ended. Only the server writes there. `from` is the
    /// first number of this run, as in [`EarlierFolder`], and `earlier` has the folders of the runs above, for each run its
    /// base before its own.
    ///
    /// A content is looked for in the folders of the one run whose numbers it is among, in this order: a run that was taken
    /// over can make files of any number in its own folder, and none of them is another run's content.
    #[must_use]
    pub const fn of_member(own: OwnedFd, base: OwnedFd, from: u64, earlier: Vec<EarlierFolder>) -> Self {
        Self { own, base: Some(base), from, earlier }
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

    /// Removes a content of the own folder that no node has. One that remains is removed with the folder.
    pub(crate) fn discard(&self, number: u64) {
        let _remains = unlinkat(&self.own, number.to_string(), AtFlags::empty());
    }

    /// Looks up a content in the folder that has it.
    pub(crate) fn find<T>(
        &self,
        number: u64,
        look: impl Fn(&OwnedFd, &str) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let name = number.to_string();
        let mut found = self.folders(number).map(|folder| look(folder, &name));
        let is_there = |found: &Result<T, Errno>| !matches!(found, Err(Errno::NOENT));
        found.find(is_there).unwrap_or(Err(Errno::NOENT))
    }

    /// `true` if this run wrote a content, and may write it.
    pub(crate) fn is_own(&self, number: u64) -> Result<bool, Errno> {
        if number < self.from {
            return Ok(false);
        }
        let Some(base) = &self.base else { return Ok(true) };
        match stat_at(base, number.to_string()) {
            Ok(_) => Ok(false),
            Err(Errno::NOENT) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The folders that can have a content.
    fn folders(&self, number: u64) -> impl Iterator<Item = &OwnedFd> {
        let is_mine = number >= self.from;
        let mine = self.base.iter().chain([&self.own]).filter(move |_| is_mine);
        let from = self.earlier.iter().map(|earlier| earlier.from).filter(|from| *from <= number).max();
        let others = self.earlier.iter().filter(move |earlier| !is_mine && Some(earlier.from) == from);
        mine.chain(others.map(|earlier| &earlier.folder))
    }
}
