//! The calls of a commit that change something. There are no others, so that tests can stop it before each of them.

use rustix::fs::Timespec;
use rustix::fs::{
    AtFlags, FallocateFlags, Gid, Mode, OFlags, RenameFlags, Timestamps, UTIME_OMIT, Uid, XattrFlags,
    copy_file_range, fallocate, fchmod, fchown, fsetxattr, fsync, ftruncate, ioctl_ficlone, mkdirat, openat,
    renameat_with, symlinkat, syncfs, unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::path::Arg;
use std::cell::Cell;
use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use crate::seen::FileTime;

/// A function that tests run before a call. It returns the error with which the call fails instead of being made.
type Hook = dyn Fn(u64) -> Option<Errno>;

/// The disk as a commit writes it: counts the calls that change something.
#[derive(Default)]
pub struct Disk {
    calls: Cell<u64>,
    before_call: Option<Box<Hook>>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Disk").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl Disk {
    /// The disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The disk for tests of crashes, failures and races: calls `before_call` with the number of each call before it, from
    /// 0. If that returns an error, the call is not made and fails with it.
    #[must_use]
    pub fn with_hook(before_call: impl Fn(u64) -> Option<Errno> + 'static) -> Self {
        Self { calls: Cell::new(0), before_call: Some(Box::new(before_call)) }
    }

    /// The number of calls so far.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.calls.get()
    }

    fn count(&self) -> Result<(), Errno> {
        let call = self.calls.get();
        self.calls.set(call.saturating_add(1));
        self.before_call.as_ref().and_then(|before_call| before_call(call)).map_or(Ok(()), Err)
    }

    /// Moves an entry to a name that does not exist.
    pub(super) fn rename(
        &self,
        (from, from_name): (impl AsFd, &OsStr),
        (to, to_name): (impl AsFd, &OsStr),
    ) -> Result<(), Errno> {
        self.count()?;
        renameat_with(from, from_name, to, to_name, RenameFlags::NOREPLACE)
    }

    /// Exchanges two entries.
    pub(super) fn exchange(
        &self,
        (one, one_name): (impl AsFd, &OsStr),
        (other, other_name): (impl AsFd, &OsStr),
    ) -> Result<(), Errno> {
        self.count()?;
        renameat_with(one, one_name, other, other_name, RenameFlags::EXCHANGE)
    }

    pub(super) fn create_file(&self, folder: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
        self.count()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(folder, name, flags, Mode::RUSR | Mode::WUSR)
    }

    /// Makes a folder that only this user can open.
    pub(super) fn make_folder(&self, folder: impl AsFd, name: impl Arg) -> Result<(), Errno> {
        self.count()?;
        mkdirat(folder, name, Mode::RWXU)
    }

    pub(super) fn make_link(&self, target: &OsStr, folder: impl AsFd, name: impl Arg) -> Result<(), Errno> {
        self.count()?;
        symlinkat(target, folder, name)
    }

    pub(super) fn remove_file(&self, folder: impl AsFd, name: impl Arg) -> Result<(), Errno> {
        self.count()?;
        unlinkat(folder, name, AtFlags::empty())
    }

    pub(super) fn remove_folder(&self, folder: impl AsFd, name: impl Arg) -> Result<(), Errno> {
        self.count()?;
        unlinkat(folder, name, AtFlags::REMOVEDIR)
    }

    /// Shares the blocks of another file, where the file system can.
    pub(super) fn clone_file(&self, from: impl AsFd, to: impl AsFd) -> Result<(), Errno> {
        self.count()?;
        ioctl_ficlone(to, from)
    }

    /// Makes sure that a file can be continued. File systems that cannot do that may still have room.
    pub(super) fn reserve(&self, file: impl AsFd, start: u64, length: u64) -> Result<(), Errno> {
        self.count()?;
        match fallocate(file, FallocateFlags::KEEP_SIZE, start, length) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            other => other,
        }
    }

    pub(super) fn set_size(&self, file: impl AsFd, size: u64) -> Result<(), Errno> {
        self.count()?;
        ftruncate(file, size)
    }

    /// Copies bytes to the same position of another file.
    pub(super) fn copy_range(
        &self,
        from: impl AsFd,
        to: impl AsFd,
        start: u64,
        length: usize,
    ) -> Result<usize, Errno> {
        self.count()?;
        let mut from_start = start;
        let mut to_start = start;
        copy_file_range(from, Some(&mut from_start), to, Some(&mut to_start), length)
    }

    pub(super) fn write(&self, file: impl AsFd, bytes: &[u8], start: u64) -> Result<usize, Errno> {
        self.count()?;
        rustix::io::pwrite(file, bytes, start)
    }

    pub(super) fn set_mode(&self, file: impl AsFd, mode: u32) -> Result<(), Errno> {
        self.count()?;
        fchmod(file, Mode::from_raw_mode(mode))
    }

    pub(super) fn set_owner(
        &self,
        file: impl AsFd,
        owner: Option<u32>,
        group: Option<u32>,
    ) -> Result<(), Errno> {
        self.count()?;
        fchown(file, owner.map(Uid::from_raw), group.map(Gid::from_raw))
    }

    pub(super) fn set_xattr(&self, file: impl AsFd, name: impl Arg, value: &[u8]) -> Result<(), Errno> {
        self.count()?;
        fsetxattr(file, name, value, XattrFlags::empty())
    }

    /// Sets the time of the last change of the content behind a handle, which may be an `O_PATH` one.
    pub(super) fn set_mtime(&self, entry: impl AsFd, mtime: FileTime) -> Result<(), Errno> {
        self.count()?;
        let kept = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: kept, last_modification: mtime.to_timespec() };
        utimensat(entry, "", &times, AtFlags::EMPTY_PATH)
    }

    /// Waits until a file is on the disk.
    pub(super) fn sync(&self, file: impl AsFd) -> Result<(), Errno> {
        self.count()?;
        fsync(file)
    }

    /// Waits until all of a file system is on the disk.
    // One call for any number of files and folders; one for each would be a commit of the file system's own journal each.
    pub(super) fn sync_all(&self, folder: impl AsFd) -> Result<(), Errno> {
        self.count()?;
        syncfs(folder)
    }
}
