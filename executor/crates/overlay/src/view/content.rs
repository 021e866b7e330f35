//! Copying a content into the own upper folder before it is written.

use super::View;
use super::handles::{HandleContent, Redirection};
use crate::seen::stat_at;
use crate::table::{Content, Modified, NodeId, NodeKind};
use rustix::fs::{OFlags, SeekFrom, Statx, copy_file_range, ftruncate, ioctl_ficlone, seek};
use rustix::io::{Errno, Result, pread, pwrite};
use std::os::fd::OwnedFd;

/// The set-user-id and set-group-id bits, and the one of execution that makes the latter count.
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o0010;

/// The buffer of a copy that the kernel does not make itself, in bytes.
const COPY_BYTES: usize = 64 << 10;

/// The bytes that a file occupies.
pub(super) fn allocated(stat: &Statx) -> u64 {
    stat.stx_blocks.saturating_mul(512)
}

impl View {
    /// `true` if the content of a file may be written as it is.
    pub(super) fn has_own_content(&self, id: NodeId) -> Result<bool> {
        self.tree.node(id)?.upper().map_or(Ok(false), |number| self.upper.is_own(number))
    }

    /// The attributes of a content. If it is one of an ended call, and was removed while its file is open here, only the
    /// open handles have it.
    pub(super) fn stat_content(&self, id: NodeId, number: u64) -> Result<Statx> {
        match self.upper.stat(number) {
            Err(Errno::NOENT) => stat_at(&*self.tree.handles.find(id)?, ""),
            found => found,
        }
    }

    /// Gives a file node whose content is not in the own folder a copy of it there, or an empty file, and puts that behind
    /// all open handles.
    pub(super) fn copy_up(&mut self, id: NodeId, is_empty: bool) -> Result<()> {
        if self.tree.node(id)?.upper().is_none() && self.tree.original(id)?.seen.nlink > 1 {
            return Err(Errno::PERM);
        }
        // The copy has times of its own.
        let before = if is_empty { None } else { Some(self.stat(id)?) };
        let number = self.tree.table.take_content_number();
        let result = self.copy_to(id, number, is_empty);
        let (bytes, handles) = result.inspect_err(|_| self.upper.discard(number))?;
        self.copied_bytes = self.copied_bytes.saturating_add(bytes);
        let node = self.node_mut(id)?;
        node.kind = NodeKind::File(Content::Upper(number));
        node.modified = before.map(|stat| Modified::Set(stat.modified));
        node.accessed = before.map(|stat| stat.accessed);
        self.tree.handles.set_content(id, HandleContent::Own);
        self.clear_set_id(id)?;
        handles.apply()
    }

    /// Does all of a copy that may fail.
    fn copy_to(&self, id: NodeId, number: u64, is_empty: bool) -> Result<(u64, Redirection)> {
        let copy = self.upper.create(number)?;
        let mut bytes = 0;
        if !is_empty {
            let source = match self.tree.node(id)?.upper() {
                Some(earlier) => self.upper.open(earlier, OFlags::RDONLY)?,
                None => self.tree.open_lower_file(id)?,
            };
            let stat = stat_at(&source, "")?;
            bytes = allocated(&stat).min(stat.stx_size);
            if self.copied_bytes.saturating_add(bytes) > self.budget.max_bytes {
                return Err(Errno::NOSPC);
            }
            copy_content(&source, &copy, stat.stx_size)?;
        }
        Ok((bytes, self.tree.handles.prepare_redirection(id, &self.upper, number)?))
    }

    /// Removes the set-user-id and set-group-id bits, as a write does. The kernel does it at the first write; here, a file
    /// that is opened for writing counts as written.
    pub(super) fn clear_set_id(&mut self, id: NodeId) -> Result<()> {
        let mode = self.tree.table.mode(id).ok_or(Errno::BADF)?;
        let removed = if mode & GROUP_EXECUTES == 0 { SET_USER_ID } else { SET_USER_ID | SET_GROUP_ID };
        if !self.tree.user.keeps_set_id && mode & removed != 0 {
            self.node_mut(id)?.mode = Some(mode & !removed);
        }
        Ok(())
    }
}

/// Copies the first `size` bytes of a file into an empty one. Holes stay holes.
fn copy_content(from: &OwnedFd, to: &OwnedFd, size: u64) -> Result<()> {
    if ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let mut start = 0;
    while start < size {
        let data = match seek(from, SeekFrom::Data(start)) {
            Ok(data) => data.min(size),
            Err(Errno::NXIO) => break,
            // A file system without holes.
            Err(_) => start,
        };
        let hole = seek(from, SeekFrom::Hole(data)).map_or(size, |hole| hole.min(size));
        copy_range(from, to, data, hole)?;
        start = hole.max(data);
        if hole <= data {
            break;
        }
    }
    ftruncate(to, size)
}

fn copy_range(from: &OwnedFd, to: &OwnedFd, start: u64, end: u64) -> Result<()> {
    let mut at = start;
    while at < end {
        let mut read_at = at;
        let mut write_at = at;
        let length = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX).min(1 << 30);
        match copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), length) {
            Ok(0) => return Ok(()),
            Ok(_) => at = read_at,
            Err(Errno::INTR) => {}
            // Two file systems of different kinds, or one that cannot.
            Err(_) => return copy_by_hand(from, to, at, end),
        }
    }
    Ok(())
}

fn copy_by_hand(from: &OwnedFd, to: &OwnedFd, start: u64, end: u64) -> Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = start;
    while at < end {
        let length = usize::try_from(end.saturating_sub(at)).unwrap_or(COPY_BYTES).min(COPY_BYTES);
        let read = match pread(from, buffer.get_mut(..length).unwrap_or_default(), at) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        let mut rest = buffer.get(..read).unwrap_or_default();
        while !rest.is_empty() {
            match pwrite(to, rest, at) {
                Ok(written) => {
                    rest = rest.get(written..).unwrap_or_default();
                    at = at.saturating_add(u64::try_from(written).unwrap_or(0));
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    #[test]
    fn holes_stay_holes_however_a_file_is_copied() {
        let mut from = tempfile::tempfile().unwrap();
        from.write_all_at(b"start", 0).unwrap();
        from.write_all_at(b"end", 40 << 20).unwrap();
        from.set_len(50 << 20).unwrap();
        let size = from.metadata().unwrap().len();
        let mut whole = Vec::new();
        from.read_to_end(&mut whole).unwrap();
        for by_hand in [false, true] {
            let mut to = tempfile::tempfile().unwrap();
            let fds = (OwnedFd::from(from.try_clone().unwrap()), OwnedFd::from(to.try_clone().unwrap()));
            if by_hand {
                copy_by_hand(&fds.0, &fds.1, 0, size).unwrap();
            } else {
                copy_content(&fds.0, &fds.1, size).unwrap();
                assert!(to.metadata().unwrap().blocks() < 1000);
            }
            let mut copied = Vec::new();
            to.rewind().unwrap();
            to.read_to_end(&mut copied).unwrap();
            assert!(copied == whole, "by hand: {by_hand}");
            to.flush().unwrap();
        }
    }
}
