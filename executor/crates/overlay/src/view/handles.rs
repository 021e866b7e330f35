//! The open folders and files: folders by a count, files by weak references to the handles that were given out.

use super::View;
use crate::table::NodeId;
use crate::upper::Upper;
use rustix::fs::OFlags;
use rustix::io::{Errno, Result};
use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Arc, Weak};

/// The open handles of one node.
#[derive(Debug)]
pub(super) struct Live {
    /// The number of times that the folder was opened and not closed.
    pub(super) opens: usize,
    /// The original folder, while the folder is open.
    pub(super) lower: Option<Arc<OwnedFd>>,
    /// Kept by everything else that uses the folder.
    pub(super) pin: Arc<()>,
    files: Vec<Handle>,
}

#[derive(Debug)]
struct Handle {
    file: Weak<File>,
    /// The access for which it was opened.
    flags: OFlags,
    content: HandleContent,
}

/// The content behind a file handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandleContent {
    /// That of the original, to be read only.
    Original,
    /// One that another member of the program made, or for which another member made a new one.
    Earlier,
    /// One of the own upper folder.
    Own,
}

impl Default for Live {
    fn default() -> Self {
        Self { opens: 0, lower: None, pin: Arc::new(()), files: Vec::new() }
    }
}

impl Live {
    pub(super) fn of_folder(lower: Option<Arc<OwnedFd>>) -> Self {
        Self { opens: 1, lower, ..Self::default() }
    }

    pub(super) fn is_in_use(&self) -> bool {
        let is_open = |handle: &Handle| handle.file.strong_count() > 0;
        self.opens > 0 || Arc::strong_count(&self.pin) > 1 || self.files.iter().any(is_open)
    }

    pub(super) fn add_file(&mut self, file: &Arc<File>, flags: OFlags, content: HandleContent) {
        self.files.retain(|handle| handle.file.strong_count() > 0);
        self.files.push(Handle { file: Arc::downgrade(file), flags, content });
    }

    /// A handle that is open on the original.
    pub(super) fn open_original(&self) -> Option<Arc<File>> {
        let of_original = self.files.iter().filter(|handle| handle.content == HandleContent::Original);
        of_original.filter_map(|handle| handle.file.upgrade()).next()
    }

    /// Opens a content for each handle that has not one of the own folder, to replace it with.
    pub(super) fn prepare_redirection(&self, upper: &Upper, number: u64) -> Result<Redirection> {
        let others = self.files.iter().filter(|handle| handle.content != HandleContent::Own);
        let open = others.filter_map(|handle| Some((handle.file.upgrade()?, handle.flags)));
        open.map(|(file, flags)| Ok((file, upper.open(number, flags)?)))
            .collect::<Result<_>>()
            .map(Redirection)
    }

    /// Notes the content that all handles have.
    pub(super) fn set_content(&mut self, content: HandleContent) {
        for handle in &mut self.files {
            handle.content = content;
        }
    }

    /// `true` if the file is open for writing.
    pub(super) fn is_written(&self) -> bool {
        let can_write = |handle: &Handle| handle.flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        self.files.iter().any(|handle| can_write(handle) && handle.file.strong_count() > 0)
    }
}

/// The handles of a content, each with one of the content that takes its place.
#[derive(Default)]
pub(super) struct Redirection(Vec<(Arc<File>, OwnedFd)>);

impl Redirection {
    /// Makes each handle one of the new content, so that it sees what others write from now on, as on a plain folder.
    pub(super) fn apply(self) -> Result<()> {
        self.0.into_iter().try_for_each(|(file, new)| replace(&file, &new))
    }
}

/// Puts a duplicate of `new` behind the descriptor of `old`.
fn replace(old: &File, new: &OwnedFd) -> Result<()> {
    let number = old.as_raw_fd();
    // SAFETY: `old` owns the descriptor and outlives this function. `dup3` replaces what is behind it in one step, so it
    // is open at any time, and for whoever reads it on another thread it is the one file or the other. The second owner
    // made here never closes it.
    #[allow(unsafe_code, reason = "no safe crate replaces a descriptor that is shared")]
    let mut shared = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    loop {
        match rustix::io::dup3(new, &mut shared, rustix::io::DupFlags::CLOEXEC) {
            Err(Errno::INTR | Errno::BUSY) => {}
            other => return other,
        }
    }
}

impl View {
    /// Finds any open handle of a file.
    pub(super) fn find_handle(&self, id: NodeId) -> Result<Arc<File>> {
        let mut handles = self.live.get(&id).into_iter().flat_map(|live| &live.files);
        handles.find_map(|handle| handle.file.upgrade()).ok_or(Errno::NOENT)
    }

    /// Ends one use of an opened folder.
    pub fn close_folder(&mut self, id: NodeId) {
        if let Some(live) = self.live.get_mut(&id) {
            live.opens = live.opens.saturating_sub(1);
        }
        self.drop_unused(id);
    }
}
