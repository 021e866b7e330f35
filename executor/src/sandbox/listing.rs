//! Listing a folder, a piece at a time.
//!
//! wasmtime-wasi reads a folder whole before the guest has its first entry, and in preview 1 once more
//! for each call. Here the host never holds more than one answer of the kernel, whatever the folder
//! has, and where a listing goes on is the kernel's own cookie.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, openat, seek, statat};
use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::io::Result;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

/// How much of a folder is read at once. An entry takes at most 280 bytes.
const READ_BYTES: usize = 8 << 10;

/// One name in a folder.
pub(super) struct Entry {
    pub(super) name: CString,
    pub(super) kind: FileType,
    /// Where the listing goes on after it.
    pub(super) next: u64,
}

impl Entry {
    /// Whether it is `.` or `..`.
    pub(super) fn is_dots(&self) -> bool {
        matches!(self.name.as_bytes(), b"." | b"..")
    }
}

/// A folder that is being listed.
pub(super) struct Listing {
    /// A descriptor of its own, whose position no other listing shares.
    folder: OwnedFd,
    read: VecDeque<Entry>,
}

impl Listing {
    /// Lists `folder` from where an earlier entry said; 0 is its start.
    ///
    /// # Errors
    /// When it may not be read, or the kernel does not know `start`.
    pub(super) fn open(folder: &File, start: u64) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(folder, ".", flags, Mode::empty())?;
        if start != 0 {
            seek(&folder, SeekFrom::Start(start))?;
        }
        Ok(Self { folder, read: VecDeque::new() })
    }

    /// The next entry, `.` and `..` among them; `None` at the end.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn next(&mut self) -> Result<Option<Entry>> {
        if self.read.is_empty() {
            self.read_more()?;
        }
        let Some(mut entry) = self.read.pop_front() else { return Ok(None) };
        if entry.kind == FileType::Unknown {
            // Not every file system keeps kinds beside names. What is gone meanwhile stays unknown.
            let stat = statat(&self.folder, &entry.name, AtFlags::SYMLINK_NOFOLLOW);
            entry.kind = stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode));
        }
        Ok(Some(entry))
    }

    /// Asks the kernel once, and keeps all that it says.
    fn read_more(&mut self) -> Result<()> {
        let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
        let mut answer = RawDir::new(&self.folder, &mut buffer);
        while let Some(entry) = answer.next() {
            let entry = entry?;
            self.read.push_back(Entry {
                name: entry.file_name().to_owned(),
                kind: entry.file_type(),
                next: entry.next_entry_cookie(),
            });
            if answer.is_buffer_empty() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &File, start: u64, most: usize) -> (Vec<String>, u64) {
        let mut listing = Listing::open(folder, start).unwrap();
        let (mut names, mut next) = (Vec::new(), start);
        while let Some(entry) = listing.next().unwrap() {
            assert!(listing.read.len() * 24 <= READ_BYTES, "one answer of the kernel at most");
            next = entry.next;
            names.push(entry.name.into_string().unwrap());
            if names.len() == most {
                break;
            }
        }
        (names, next)
    }

    #[test]
    fn pieces_come_to_the_same_as_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        for index in 0..1000 {
            std::fs::write(folder.path().join(format!("{index:04}")), "").unwrap();
        }
        let folder = File::open(folder.path()).unwrap();
        let (mut whole, _) = names(&folder, 0, usize::MAX);
        let (mut pieces, mut start) = (Vec::new(), 0);
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
