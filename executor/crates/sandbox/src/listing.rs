//! Listing a folder in bounded pieces.
//!
//! The host never holds more than one `getdents64` result, regardless of the folder's size, and a position in
//! the listing is the kernel's own cookie.
// wasmtime-wasi reads a folder whole, with two `stat` calls per name, before the guest receives the first entry, and
// in preview 1 again for each call. Counting the names beforehand would be a second pass over the same folder.

use a2g_overlay::is_stash_name;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, openat, seek, statat};
use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::io::Result;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

/// The buffer of one `getdents64` call, in bytes. An entry takes at most 280 bytes.
const READ_BYTES: usize = 8 << 10;

pub(super) struct ListingEntry {
    pub(super) name: CString,
    pub(super) kind: FileType,
    /// The kernel's cookie of the position after this entry.
    #[cfg_attr(
        not(feature = "preview1"),
        allow(dead_code, reason = "only preview 1 continues from a cookie")
    )]
    pub(super) next: u64,
}

impl ListingEntry {
    pub(super) fn is_dots(&self) -> bool {
        matches!(self.name.as_bytes(), b"." | b"..")
    }
}

/// An open listing of one folder.
pub(super) struct Listing {
    /// A separate descriptor, whose position no other listing shares.
    folder: OwnedFd,
    entries: VecDeque<ListingEntry>,
}

impl Listing {
    /// Lists `folder` from the cookie `start` of an earlier entry; 0 is the beginning.
    ///
    /// # Errors
    /// If the folder may not be read, or the kernel rejects the cookie.
    pub(super) fn open(folder: &File, start: u64) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(folder, ".", flags, Mode::empty())?;
        if start != 0 {
            seek(&folder, SeekFrom::Start(start))?;
        }
        Ok(Self { folder, entries: VecDeque::new() })
    }

    /// The next entry, including `.` and `..` and without the stash of a commit; `None` at the end.
    ///
    /// # Errors
    /// If `getdents64` fails.
    pub(super) fn next(&mut self) -> Result<Option<ListingEntry>> {
        let mut entry = loop {
            if self.entries.is_empty() {
                self.read_more()?;
            }
            let Some(next) = self.entries.pop_front() else { return Ok(None) };
            if !is_stash_name(next.name.as_bytes()) {
                break next;
            }
        };
        if entry.kind == FileType::Unknown {
            // Some file systems do not store kinds with names. The kind of an entry that has vanished stays unknown.
            let stat = statat(&self.folder, &entry.name, AtFlags::SYMLINK_NOFOLLOW);
            entry.kind = stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode));
        }
        Ok(Some(entry))
    }

    /// Calls `getdents64` once and stores its result.
    fn read_more(&mut self) -> Result<()> {
        let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
        let mut raw_entries = RawDir::new(&self.folder, &mut buffer);
        while let Some(entry) = raw_entries.next() {
            let entry = entry?;
            self.entries.push_back(ListingEntry {
                name: entry.file_name().to_owned(),
                kind: entry.file_type(),
                next: entry.next_entry_cookie(),
            });
            if raw_entries.is_buffer_empty() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &File, start: u64, max: usize) -> (Vec<String>, u64) {
        let mut listing = Listing::open(folder, start).unwrap();
        let mut names = Vec::new();
        let mut next = start;
        while let Some(entry) = listing.next().unwrap() {
            assert!(listing.entries.len() * 24 <= READ_BYTES, "at most one `getdents64` result");
            next = entry.next;
            names.push(entry.name.into_string().unwrap());
            if names.len() == max {
                break;
            }
        }
        (names, next)
    }

    #[test]
    fn the_stash_of_a_commit_is_not_listed() {
        let folder = tempfile::tempdir().unwrap();
        for name in [".a2g-0123456789abcdef", ".a2g-0123456789abcde", ".a2g-0123456789abcdefg", "a"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let (mut listed, _) = names(&File::open(folder.path()).unwrap(), 0, usize::MAX);
        listed.sort();
        assert_eq!(listed, [".", "..", ".a2g-0123456789abcde", ".a2g-0123456789abcdefg", "a"]);
    }

    #[test]
    fn a_listing_in_pieces_has_the_same_entries_as_a_whole_one() {
        let folder = tempfile::tempdir().unwrap();
        for index in 0..1000 {
            std::fs::write(folder.path().join(format!("{index:04}")), "").unwrap();
        }
        let folder = File::open(folder.path()).unwrap();
        let (mut whole, _) = names(&folder, 0, usize::MAX);
        let mut pieces = Vec::new();
        let mut start = 0;
        loop {
            let (some, next) = names(&folder, start, 7);
            if some.is_empty() {
                break;
            }
            pieces.extend(some);
            start = next;
        }
        whole.sort();
        pieces.sort();
        assert_eq!((whole.len(), &whole), (1002, &pieces));
    }
}
