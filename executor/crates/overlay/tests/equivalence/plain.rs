//! The plain folder: the kernel's own calls.

use super::call::{Call, Facts, Outcome, Side, TimeCall};
use super::{FOLDER_SLOTS, MAX_FILES, ROOTS};
use a2g_overlay::{Create, EntryKind, FileTime, How, Name};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RawDir, fstat, futimens, mkdirat, openat, readlinkat, renameat,
    statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;

pub(super) struct Plain {
    folders: [Option<Folder>; FOLDER_SLOTS],
    files: [Option<OpenFile>; MAX_FILES],
    /// The inodes of files that had several names at the start.
    hard_linked: BTreeSet<u64>,
}

struct OpenFile {
    handle: File,
    is_read_only: bool,
}

struct Folder {
    handle: OwnedFd,
    is_read_only: bool,
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Plain {
    pub(super) fn new(roots: [OwnedFd; ROOTS], is_read_only: [bool; ROOTS]) -> Self {
        let mut folders = [const { None }; FOLDER_SLOTS];
        let mut hard_linked = BTreeSet::new();
        for (slot, (handle, is_read_only)) in roots.into_iter().zip(is_read_only).enumerate() {
            find_hard_linked(handle.as_fd(), &mut hard_linked);
            folders[slot] = Some(Folder { handle, is_read_only });
        }
        Self { folders, files: [const { None }; MAX_FILES], hard_linked }
    }

    /// Another process on the same folders.
    pub(super) fn beside(&self, roots: [OwnedFd; ROOTS], is_read_only: [bool; ROOTS]) -> Self {
        Self { hard_linked: self.hard_linked.clone(), ..Self::new(roots, is_read_only) }
    }

    /// Uses the folders at two places instead of the roots, if both are there and can be read.
    pub(super) fn use_places(&mut self, places: &[Vec<Name>; ROOTS]) -> bool {
        let open_place = |root: usize| {
            let start = openat(self.folder(root), ".", FOLDER, Mode::empty());
            places[root].iter().try_fold(start.ok()?, |folder, name| {
                openat(folder, name.as_os_str(), FOLDER, Mode::empty()).ok()
            })
        };
        let [Some(first), Some(second)] = [0, 1].map(open_place) else { return false };
        for (slot, handle) in [first, second].into_iter().enumerate() {
            self.folders[slot].as_mut().unwrap().handle = handle;
        }
        true
    }

    pub(super) fn open_folders(&self) -> Vec<usize> {
        (0..FOLDER_SLOTS).filter(|slot| self.folders[*slot].is_some()).collect()
    }

    pub(super) fn open_files(&self) -> Vec<usize> {
        (0..MAX_FILES).filter(|slot| self.files[*slot].is_some()).collect()
    }

    pub(super) fn removed_files(&self) -> Vec<usize> {
        let nlink = |slot: usize| fstat(self.file(slot)).unwrap().st_nlink;
        self.open_files().into_iter().filter(|slot| nlink(*slot) == 0).collect()
    }

    pub(super) fn close_all(&mut self) {
        self.folders[ROOTS..].fill_with(|| None);
        self.files.fill_with(|| None);
    }

    fn folder(&self, slot: usize) -> &OwnedFd {
        &self.folders[slot].as_ref().unwrap().handle
    }

    fn file(&self, slot: usize) -> &File {
        &self.files[slot].as_ref().unwrap().handle
    }

    fn stat(&self, folder: usize, name: &OsStr) -> Result<rustix::fs::Stat> {
        statat(self.folder(folder), name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// `true` for a call whose result is documented to differ: see the head of `view.rs`.
    pub(super) fn is_known_difference(&self, call: &Call) -> bool {
        let is_hard_linked =
            |stat: Result<rustix::fs::Stat>| stat.is_ok_and(|stat| self.hard_linked.contains(&stat.st_ino));
        let is_unreadable = |folder: usize, name: &OsStr| {
            openat(self.folder(folder), name, FOLDER, Mode::empty()).err() == Some(Errno::ACCESS)
        };
        match call {
            Call::Open { folder, name, how, .. } => {
                let is_sticky = fstat(self.folder(*folder)).unwrap().st_mode & 0o1000 != 0;
                let is_writing = how.write || how.append || how.truncate;
                (how.create == Create::IfMissing && is_sticky)
                    || (is_writing && is_hard_linked(self.stat(*folder, name)))
            }
            Call::SetTimes { at: TimeCall::Entry(folder, name), .. } => {
                is_hard_linked(self.stat(*folder, name))
            }
            Call::SetTimes { at: TimeCall::File(slot), .. } => is_hard_linked(fstat(self.file(*slot))),
            Call::RemoveFolder { folder, name } => is_unreadable(*folder, name),
            Call::Rename { to_folder, to, .. } => is_unreadable(*to_folder, to),
            _ => false,
        }
    }

    fn check_writable(&self, folder: usize) -> Result<()> {
        if self.folders[folder].as_ref().unwrap().is_read_only { Err(Errno::PERM) } else { Ok(()) }
    }

    fn open_file(&self, folder: usize, name: &OsStr, how: How) -> Result<File> {
        let How { read, write, append, truncate, create } = how;
        if write || append || truncate || create != Create::No {
            self.check_writable(folder)?;
        }
        if create != Create::Exclusive {
            match self.stat(folder, name).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
                Ok(FileType::Directory) => return Err(Errno::ISDIR),
                Ok(FileType::Fifo) => return Err(Errno::OPNOTSUPP),
                _ => {}
            }
        }
        let mut flags = match (read, write || append) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            (_, false) => OFlags::RDONLY,
        };
        flags.set(OFlags::APPEND, append);
        flags.set(OFlags::TRUNC, truncate);
        flags.set(OFlags::CREATE, create != Create::No);
        flags.set(OFlags::EXCL, create == Create::Exclusive);
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(self.folder(folder), name, flags, Mode::from_raw_mode(0o666)).map(File::from)
    }

    fn facts(&self, stat: &rustix::fs::Stat) -> Facts {
        let modified = FileTime { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 };
        let kind = kind_of(FileType::from_raw_mode(stat.st_mode));
        let mode = stat.st_mode & 0o7777;
        let mut facts = Facts::new(kind, stat.st_size as u64, mode, stat.st_nlink, modified);
        if self.hard_linked.contains(&stat.st_ino) {
            facts.nlink = None;
        }
        facts
    }

    fn list(&self, folder: usize) -> Result<Outcome> {
        let handle = openat(self.folder(folder), ".", FOLDER, Mode::empty())?;
        let mut names = BTreeMap::new();
        // `Dir` would hide that a folder was removed.
        let mut buffer = [MaybeUninit::uninit(); 8 << 10];
        let mut entries = RawDir::new(&handle, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            if name != "." && name != ".." {
                names.insert(name, kind_of(entry.file_type()));
            }
        }
        Ok(Outcome::Names(names))
    }
}

fn find_hard_linked(folder: impl AsFd, found: &mut BTreeSet<u64>) {
    let Ok(handle) = openat(folder, ".", FOLDER, Mode::empty()) else { return };
    let Ok(entries) = Dir::read_from(&handle) else { return };
    for entry in entries {
        let name = entry.unwrap().file_name().to_owned();
        if matches!(name.as_bytes(), b"." | b"..") {
            continue;
        }
        if let Ok(stat) = statat(&handle, &name, AtFlags::SYMLINK_NOFOLLOW)
            && FileType::from_raw_mode(stat.st_mode) != FileType::Directory
            && stat.st_nlink > 1
        {
            found.insert(stat.st_ino);
        }
        if let Ok(inner) = openat(&handle, &name, FOLDER, Mode::empty()) {
            find_hard_linked(inner, found);
        }
    }
}

fn kind_of(kind: FileType) -> EntryKind {
    match kind {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Folder,
        FileType::Symlink => EntryKind::Link,
        _ => EntryKind::Other,
    }
}

/// Reads and writes of an open file, which are the same on both sides.
pub(super) fn use_file(file: &File, call: &Call) -> Result<Outcome> {
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap();
    match call {
        Call::Read { at, length, .. } => {
            let mut buffer = vec![0; *length];
            let read = file.read_at(&mut buffer, *at).map_err(errno)?;
            buffer.truncate(read);
            Ok(Outcome::Bytes(buffer))
        }
        Call::ReadAll { .. } => {
            let mut content = Vec::new();
            let mut file = file;
            file.read_to_end(&mut content).map_err(errno)?;
            Ok(Outcome::Bytes(content))
        }
        Call::Write { at, data, .. } => file.write_at(data, *at).map(Outcome::Count).map_err(errno),
        Call::Resize { size, .. } => file.set_len(*size).map(|()| Outcome::Done).map_err(errno),
        other => panic!("{other:?} is no use of a file"),
    }
}

impl Side for Plain {
    fn try_run(&mut self, call: &Call) -> Result<Outcome> {
        match call {
            Call::OpenFolder { folder, name, slot } => {
                let handle = openat(self.folder(*folder), name, FOLDER, Mode::empty())?;
                let is_read_only = self.folders[*folder].as_ref().unwrap().is_read_only;
                self.folders[*slot] = Some(Folder { handle, is_read_only });
            }
            Call::Reload => self.close_all(),
            Call::CloseFolder { slot } => self.folders[*slot] = None,
            Call::Open { folder, name, how, slot } => {
                let handle = self.open_file(*folder, name, *how)?;
                let is_read_only = self.folders[*folder].as_ref().unwrap().is_read_only;
                self.files[*slot] = Some(OpenFile { handle, is_read_only });
            }
            Call::Close { slot } => self.files[*slot] = None,
            Call::Read { slot, .. }
            | Call::ReadAll { slot }
            | Call::Write { slot, .. }
            | Call::Resize { slot, .. } => return use_file(self.file(*slot), call),
            Call::Stat { folder, name } => {
                return Ok(Outcome::Facts(self.facts(&self.stat(*folder, name)?)));
            }
            Call::StatFile { slot } => return Ok(Outcome::Facts(self.facts(&fstat(self.file(*slot))?))),
            Call::StatFolder { folder } => {
                return Ok(Outcome::Facts(self.facts(&fstat(self.folder(*folder))?)));
            }
            Call::List { folder } => return self.list(*folder),
            Call::MakeFolder { folder, name } => {
                self.check_writable(*folder)?;
                mkdirat(self.folder(*folder), name, Mode::from_raw_mode(0o777))?;
            }
            Call::RemoveFolder { folder, name } => {
                self.check_writable(*folder)?;
                unlinkat(self.folder(*folder), name, AtFlags::REMOVEDIR)?;
            }
            Call::Unlink { folder, name } => {
                self.check_writable(*folder)?;
                unlinkat(self.folder(*folder), name, AtFlags::empty())?;
            }
            Call::Rename { folder, name, to_folder, to } => {
                self.check_writable(*folder)?;
                self.check_writable(*to_folder)?;
                renameat(self.folder(*folder), name, self.folder(*to_folder), to)?;
            }
            Call::Symlink { folder, name, target } => {
                if target.is_empty() {
                    return Err(Errno::NOENT);
                }
                self.check_writable(*folder)?;
                symlinkat(target, self.folder(*folder), name)?;
            }
            Call::ReadLink { folder, name } => {
                let target = readlinkat(self.folder(*folder), name, Vec::new())?;
                return Ok(Outcome::Target(OsStr::from_bytes(target.as_bytes()).to_owned()));
            }
            Call::SetTimes { at, times } => self.set_times(at, &times.timestamps())?,
            Call::IsSame { folder, name, slot } => {
                let entry = self.stat(*folder, name)?;
                return Ok(Outcome::Is(entry.st_ino == fstat(self.file(*slot))?.st_ino));
            }
        }
        Ok(Outcome::Done)
    }
}

impl Plain {
    fn set_times(&self, at: &TimeCall, times: &rustix::fs::Timestamps) -> Result<()> {
        match at {
            TimeCall::Entry(folder, name) => {
                self.check_writable(*folder)?;
                utimensat(self.folder(*folder), name, times, AtFlags::SYMLINK_NOFOLLOW)
            }
            TimeCall::File(slot) if self.files[*slot].as_ref().unwrap().is_read_only => Err(Errno::PERM),
            TimeCall::File(slot) => futimens(self.file(*slot), times),
            TimeCall::Folder(folder) => {
                self.check_writable(*folder)?;
                futimens(self.folder(*folder), times)
            }
        }
    }
}
