//! The originals: an opened folder for each root, of which nothing is followed out.

use crate::name::{EntryPath, Name};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;

/// The rights of a program below a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It may only read.
    Read,
    /// It may read and change.
    Write,
}

/// The original folder of a root.
#[derive(Debug)]
pub struct LowerRoot {
    /// The opened folder.
    pub dir: OwnedFd,
    /// The rights of the program below it.
    pub access: Access,
}

/// The bytes of a path that is opened in one call. Linux allows 4096 with the NUL.
const MAX_STEP_BYTES: usize = 3800;

impl LowerRoot {
    /// Opens the folder that `names` lead to, for look-ups in it (`O_PATH`), without following any link. No names are the
    /// root.
    ///
    /// # Errors
    /// As `openat2` with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`; `ENOTDIR` if a name is not a folder.
    pub fn open_folder(&self, names: &[Name]) -> Result<OwnedFd, Errno> {
        let mut rest = names;
        let mut folder = open_step(self.dir.as_fd(), &mut rest)?;
        while !rest.is_empty() {
            folder = open_step(folder.as_fd(), &mut rest)?;
        }
        Ok(folder)
    }

    /// Opens any entry for what needs no more than `O_PATH`, without following any link.
    ///
    /// # Errors
    /// As [`Self::open_folder`].
    pub fn open_entry(&self, names: &[Name]) -> Result<OwnedFd, Errno> {
        let Some((name, folder)) = names.split_last() else { return self.open_folder(&[]) };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(self.open_folder(folder)?, name.as_os_str(), flags, Mode::empty())
    }
}

/// Opens as many names as one path can have, and takes them from `names`.
fn open_step(start: BorrowedFd<'_>, names: &mut &[Name]) -> Result<OwnedFd, Errno> {
    let mut path = b".".to_vec();
    while let Some((name, rest)) = names.split_first() {
        if path.len() > MAX_STEP_BYTES {
            break;
        }
        path.push(b'/');
        path.extend_from_slice(name.as_bytes());
        *names = rest;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // The kernel answers EAGAIN if a rename elsewhere disturbs the walk.
    loop {
        match openat2(start, std::ffi::OsString::from_vec(path.clone()), flags, Mode::empty(), beneath) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

/// The root of a path.
///
/// # Errors
/// `EBADF` if there is no such root.
pub(crate) fn root_of<'a>(roots: &'a [LowerRoot], path: &EntryPath) -> Result<&'a LowerRoot, Errno> {
    roots.get(path.root).ok_or(Errno::BADF)
}
