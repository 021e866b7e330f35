//! Copies of single entries: new contents into a stash, originals into the store and back.
//!
//! A new content is always a copy, never the staged file itself: the program that wrote it may still hold it open, or have
//! given it attributes. What is placed is thus a file that only this process has opened.

use super::disk::Disk;
use super::plan::SET_GROUP_ID;
use super::{CommitError, io_error};
use crate::current::open_regular;
use crate::seen::{EntryKind, FileTime, Seen, stat_at};
use crate::upper::Upper;
use rustix::fs::{Mode, OFlags, SeekFrom, fgetxattr, flistxattr, openat, readlinkat, seek};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt as _;

/// The bytes that are copied by one call.
const BLOCK_BYTES: usize = 1 << 20;

/// The longest list of extended attributes, and the longest one, that Linux allows.
pub(super) const MAX_XATTR_BYTES: usize = 64 << 10;

/// Copies the content of a file into a new, empty one. Holes stay holes.
pub(super) fn copy_content(disk: &Disk, from: &File, to: &File, size: u64) -> Result<(), Errno> {
    if disk.clone_file(from, to).is_ok() {
        return Ok(());
    }
    disk.set_size(to, size)?;
    let mut at = 0;
    while at < size {
        let start = match seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            // There is only a hole left.
            Err(Errno::NXIO) => return Ok(()),
            Err(_) => at,
        };
        let end = seek(from, SeekFrom::Hole(start)).map_or(size, |end| end.min(size));
        copy_bytes(disk, from, to, start, end)?;
        at = end.max(start + 1);
    }
    Ok(())
}

fn copy_bytes(disk: &Disk, from: &File, to: &File, start: u64, end: u64) -> Result<(), Errno> {
    let mut at = start;
    while at < end {
        let length = usize::try_from(end - at).map_or(BLOCK_BYTES, |rest| rest.min(BLOCK_BYTES));
        let copied = match disk.copy_range(from, to, at, length) {
            Ok(copied) => copied,
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
                let mut block = vec![0; length];
                let read = rustix::io::pread(from, &mut block, at)?;
                match block.get(..read) {
                    Some(part) if !part.is_empty() => disk.write(to, part, at)?,
                    Some(_) | None => 0,
                }
            }
            Err(error) => return Err(error),
        };
        if copied == 0 {
            // The file has become shorter.
            return Err(Errno::STALE);
        }
        at += copied as u64;
    }
    Ok(())
}

/// Copies an entry of one folder into another one, where it gets the name `name`.
pub(super) fn copy_entry(
    disk: &Disk,
    from: impl AsFd,
    from_name: &OsStr,
    to: impl AsFd,
    name: &OsStr,
) -> Result<(), CommitError> {
    let seen = Seen::look(&from, from_name).map_err(io_error("look at an original"))?;
    match seen.kind {
        EntryKind::File => {
            let (file, seen) = open_regular(&from, from_name).map_err(io_error("open an original"))?;
            let copy = disk.create_file(&to, name).map_err(io_error("create a copy"))?;
            let copy = File::from(copy);
            copy_content(disk, &file, &copy, seen.size).map_err(io_error("copy an original"))?;
            carry_owner(disk, &file, &copy)?;
            disk.set_mode(&copy, seen.mode).map_err(io_error("set the mode of a copy"))?;
        }
        EntryKind::Folder => {
            disk.make_folder(&to, name).map_err(io_error("make a folder"))?;
            let original = open_folder(&from, from_name).map_err(io_error("open a folder"))?;
            let copy = open_folder(&to, name).map_err(io_error("open a folder"))?;
            carry_owner(disk, &original, &copy)?;
            disk.set_mode(&copy, seen.mode).map_err(io_error("set the mode of a copy"))?;
        }
        EntryKind::Link => {
            let target = readlinkat(&from, from_name, Vec::new()).map_err(io_error("read a link"))?;
            let target = OsString::from_vec(target.into_bytes());
            disk.make_link(&target, &to, name).map_err(io_error("make a link"))?;
        }
        EntryKind::Other => return Err(io_error("copy a special file")(Errno::XDEV)),
    }
    set_mtime(disk, to, name, seen.mtime)
}

/// Sets the time of an entry of a stash, also of a link itself.
pub(super) fn set_mtime(
    disk: &Disk,
    folder: impl AsFd,
    name: &OsStr,
    mtime: FileTime,
) -> Result<(), CommitError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entry = openat(folder, name, flags, Mode::empty()).map_err(io_error("open a copy"))?;
    disk.set_mtime(entry, mtime).map_err(io_error("set the time of a copy"))
}

/// Opens a folder for reading, without following a link.
pub(super) fn open_folder(folder: impl AsFd, name: &OsStr) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(folder, name, flags, Mode::empty())?))
}

/// Gives a copy the owner, the group and the extended attributes of its original, access lists among them.
pub(super) fn carry_owner(disk: &Disk, original: &File, copy: &File) -> Result<(), CommitError> {
    let was = stat_at(original, "").map_err(io_error("look at an original"))?;
    let is = stat_at(copy, "").map_err(io_error("look at a copy"))?;
    let owner = (was.stx_uid != is.stx_uid).then_some(was.stx_uid);
    let group = (was.stx_gid != is.stx_gid).then_some(was.stx_gid);
    if owner.is_some() || group.is_some() {
        disk.set_owner(copy, owner, group).map_err(io_error("give a copy the owner of its original"))?;
    }
    carry_xattrs(disk, original, copy).map_err(io_error("copy extended attributes"))
}

/// The names of the extended attributes of an entry, each with its NUL; none where the file system has no such attributes.
pub(super) fn xattr_names(entry: &File) -> Result<Vec<u8>, Errno> {
    let mut list = vec![0; MAX_XATTR_BYTES];
    let length = match flistxattr(entry, &mut *list) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => 0,
        other => other?,
    };
    list.truncate(length);
    Ok(list)
}

fn carry_xattrs(disk: &Disk, original: &File, copy: &File) -> Result<(), Errno> {
    let list = xattr_names(original)?;
    if list.is_empty() {
        return Ok(());
    }
    let mut value = vec![0; MAX_XATTR_BYTES];
    let mut present = vec![0; MAX_XATTR_BYTES];
    for name in list.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let length = fgetxattr(original, name, &mut *value)?;
        let wanted = value.get(..length).unwrap_or_default();
        // A label of a security module that the copy has anyway may not be settable.
        let is_there =
            fgetxattr(copy, name, &mut *present).is_ok_and(|length| present.get(..length) == Some(wanted));
        if !is_there {
            disk.set_xattr(copy, name, wanted)?;
        }
    }
    Ok(())
}

/// Gives a new entry to the user of the run, who owns the upper folder, and to the group of the folder that it is made for,
/// if that folder wants it; the mode is set later.
///
/// Returns the bit that a new folder gets from it.
pub(super) fn give_to_user(
    disk: &Disk,
    upper: &Upper,
    anchor: &rustix::fs::Statx,
    entry: &File,
) -> Result<u32, CommitError> {
    let user = stat_at(upper.dir(), "").map_err(io_error("look at the upper folder"))?;
    let is = stat_at(entry, "").map_err(io_error("look at a new entry"))?;
    let inherited = u32::from(anchor.stx_mode) & SET_GROUP_ID;
    let owner = (user.stx_uid != is.stx_uid).then_some(user.stx_uid);
    let group = if inherited == 0 { owner.and(Some(user.stx_gid)) } else { Some(anchor.stx_gid) };
    if owner.is_some() || group.is_some() {
        disk.set_owner(entry, owner, group).map_err(io_error("give a new entry to the run's user"))?;
    }
    Ok(inherited)
}
