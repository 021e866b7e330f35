//! The entries below the roots, as the commit finds them now.

use crate::hash::Sha256;
use crate::lower::{LowerRoot, root_of};
use crate::name::{EntryPath, Name};
use crate::seen::{EntryKind, Seen, stat_at};
use crate::upper::Upper;
use rustix::fs::{Dir, Mode, OFlags, Statx, openat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

/// The roots, and the mount of each.
pub(crate) struct CurrentRoots<'a> {
    roots: &'a [LowerRoot],
    mounts: Vec<u64>,
}

impl<'a> CurrentRoots<'a> {
    /// # Errors
    /// As `statx`.
    pub(crate) fn new(roots: &'a [LowerRoot]) -> Result<Self, Errno> {
        let mounts = roots.iter().map(|root| mount_of(&root.dir)).collect::<Result<_, _>>()?;
        Ok(Self { roots, mounts })
    }

    pub(crate) const fn roots(&self) -> &'a [LowerRoot] {
        self.roots
    }

    /// The numbers of the mounts of the roots.
    pub(crate) fn mounts(&self) -> &[u64] {
        &self.mounts
    }

    /// Looks at an entry, on whatever mount it is.
    pub(crate) fn look(&self, path: &EntryPath) -> Result<Seen, Errno> {
        Ok(Seen::from(&self.stat(path)?))
    }

    pub(crate) fn stat(&self, path: &EntryPath) -> Result<Statx, Errno> {
        let root = root_of(self.roots, path)?;
        match path.names.split_last() {
            Some((name, folder)) => stat_at(root.open_folder(folder)?, name.as_os_str()),
            None => stat_at(&root.dir, ""),
        }
    }

    /// Opens the folder in which an entry is made, moved or removed.
    ///
    /// # Errors
    /// As [`LowerRoot::open_folder`]; `EXDEV` if the folder is on another mount than its root, `EINVAL` for a root.
    pub(crate) fn open_parent<'p>(&self, path: &'p EntryPath) -> Result<(OwnedFd, &'p OsStr), Errno> {
        let (name, names) = path.names.split_last().ok_or(Errno::INVAL)?;
        let folder = root_of(self.roots, path)?.open_folder(names)?;
        if self.mounts.get(path.root) != Some(&mount_of(&folder)?) {
            return Err(Errno::XDEV);
        }
        Ok((folder, name.as_os_str()))
    }

    /// Opens a regular file for reading, with its state; `EINVAL` if it is none.
    pub(crate) fn open_file(&self, path: &EntryPath) -> Result<(File, Seen), Errno> {
        let (name, names) = path.names.split_last().ok_or(Errno::ISDIR)?;
        let folder = root_of(self.roots, path)?.open_folder(names)?;
        open_regular(&folder, name.as_os_str())
    }

    /// The names in a folder.
    pub(crate) fn list(&self, path: &EntryPath) -> Result<Vec<Name>, Errno> {
        list(root_of(self.roots, path)?.open_folder(&path.names)?)
    }
}

/// Opens an entry of a folder for reading, if it is a regular file; else `EINVAL`.
// The kind is looked at first, because opening a device can have effects, and once more in case it was replaced.
pub(crate) fn open_regular(folder: impl AsFd, name: &OsStr) -> Result<(File, Seen), Errno> {
    if Seen::look(&folder, name)?.kind != EntryKind::File {
        return Err(Errno::INVAL);
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::empty())?;
    let seen = Seen::look(&file, "")?;
    if seen.kind != EntryKind::File {
        return Err(Errno::INVAL);
    }
    Ok((File::from(file), seen))
}

/// Opens a staged content, which a program may have replaced by anything.
///
/// # Errors
/// As `openat`; `EINVAL` for anything but a regular file, `EMLINK` for one with several names.
pub(crate) fn open_staged(upper: &Upper, number: u64) -> Result<(File, Seen), Errno> {
    let (file, seen) = upper.find(number, |folder, name| open_regular(folder, OsStr::new(name)))?;
    if seen.nlink == 1 { Ok((file, seen)) } else { Err(Errno::MLINK) }
}

/// The names in an opened folder, which may be an `O_PATH` handle.
pub(crate) fn list(folder: impl AsFd) -> Result<Vec<Name>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut names = Vec::new();
    for entry in Dir::new(openat(folder, ".", flags, Mode::empty())?)? {
        let entry = entry?;
        // The kernel gives no other names that are none than `.` and `..`.
        names.extend(Name::new(OsStr::from_bytes(entry.file_name().to_bytes())));
    }
    Ok(names)
}

pub(crate) fn mount_of(handle: impl AsFd) -> Result<u64, Errno> {
    Ok(stat_at(handle, "")?.stx_mnt_id)
}

/// Hashes a file that must not change meanwhile.
///
/// # Errors
/// As `read`; `ESTALE` if the file changes.
pub(crate) fn hash_unchanged(file: &File, seen: &Seen) -> Result<Sha256, Errno> {
    let hash = Sha256::of_file(file, seen.size).map_err(|error| {
        if error.kind() == std::io::ErrorKind::UnexpectedEof { Errno::STALE } else { errno_of(&error) }
    })?;
    let now = Seen::look(file, "")?;
    let is_unchanged = now.size == seen.size && now.mtime == seen.mtime;
    if is_unchanged { Ok(hash) } else { Err(Errno::STALE) }
}

/// The system's error of an I/O error; `EIO` if it has none.
pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// `true` if an error says that no entry of this path is there.
pub(crate) const fn is_absence(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}
