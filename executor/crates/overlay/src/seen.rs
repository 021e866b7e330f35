//! The state of an original entry as it was when the program first touched it.

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, StatxTimestamp, Timespec, statx};
use rustix::io::Errno;
use rustix::path::Arg;
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;

/// The bits of a mode that are permissions, including set-user-id, set-group-id and sticky.
pub const MODE_BITS: u32 = 0o7777;

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A FIFO, a socket or a device: a program may list it, but nothing else.
    Other,
}

/// A point in time of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileTime {
    /// The seconds since 1970, which may be negative.
    pub seconds: i64,
    /// The nanoseconds after those seconds, below 1,000,000,000.
    pub nanoseconds: u32,
}

impl FileTime {
    /// The time for system calls.
    #[must_use]
    pub fn to_timespec(self) -> Timespec {
        Timespec { tv_sec: self.seconds, tv_nsec: self.nanoseconds.into() }
    }

    /// The time now, as the kernel writes it into inodes.
    pub(crate) fn now() -> Self {
        // The same clock as that of file systems: with another one, a file could be older than its folder.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Self { seconds: now.tv_sec, nanoseconds: u32::try_from(now.tv_nsec).unwrap_or(0) }
    }

    pub(crate) const fn is_valid(self) -> bool {
        self.nanoseconds < 1_000_000_000
    }
}

impl From<StatxTimestamp> for FileTime {
    fn from(time: StatxTimestamp) -> Self {
        Self { seconds: time.tv_sec, nanoseconds: time.tv_nsec }
    }
}

/// The numbers by which a program recognises an entry. They stay the same when the entry is changed or moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The number of the device; 0 for what the program made.
    pub device: u64,
    /// The inode on that device.
    pub inode: u64,
}

/// The state of an original: enough to notice that it was changed or replaced since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The number of the file system's device.
    pub device: u64,
    /// The inode on that device.
    pub inode: u64,
    /// The size in bytes.
    pub size: u64,
    /// The permissions ([`MODE_BITS`]).
    pub mode: u32,
    /// The time of the last change of the content.
    pub mtime: FileTime,
    /// The time of the last change of content or attributes.
    pub ctime: FileTime,
    /// The number of hard links.
    pub nlink: u64,
}

impl Seen {
    /// Looks at the entry `name` of an opened folder, without following a link. An empty name is the handle itself.
    ///
    /// # Errors
    /// As `statx`.
    pub fn look(folder: impl AsFd, name: impl Arg) -> Result<Self, Errno> {
        Ok(Self::from(&stat_at(folder, name)?))
    }

    /// The numbers of the entry.
    pub(crate) const fn identity(&self) -> Identity {
        Identity { device: self.device, inode: self.inode }
    }

    /// `true` if this is still the same entry, whatever has changed in it.
    #[must_use]
    pub const fn is_same_entry(&self, other: &Self) -> bool {
        self.device == other.device && self.inode == other.inode
    }
}

impl From<&Statx> for Seen {
    fn from(stat: &Statx) -> Self {
        Self {
            kind: kind_of(stat),
            device: device_of(stat),
            inode: stat.stx_ino,
            size: stat.stx_size,
            mode: u32::from(stat.stx_mode) & MODE_BITS,
            mtime: stat.stx_mtime.into(),
            ctime: stat.stx_ctime.into(),
            nlink: stat.stx_nlink.into(),
        }
    }
}

/// `statx` without following a link. Its fields have the same types on every processor, unlike those of `stat`.
pub(crate) fn stat_at(folder: impl AsFd, name: impl Arg) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    statx(folder, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}

pub(crate) fn device_of(stat: &Statx) -> u64 {
    rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

pub(crate) fn kind_of(stat: &Statx) -> EntryKind {
    kind_of_type(FileType::from_raw_mode(stat.stx_mode.into()))
}

pub(crate) const fn kind_of_type(kind: FileType) -> EntryKind {
    match kind {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Folder,
        FileType::Symlink => EntryKind::Link,
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => EntryKind::Other,
    }
}
