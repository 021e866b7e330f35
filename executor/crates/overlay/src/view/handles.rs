//! The open folders and files: folders by a count, files by weak references to the handles that were given out.

use super::OpenFile;
use crate::table::NodeId;
use crate::upper::Upper;
use rustix::fs::OFlags;
use rustix::io::{Errno, Result};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// The open handles, by node.
#[derive(Debug, Default)]
pub(super) struct Handles(HashMap<NodeId, Live>);

/// The open handles of one node.
#[derive(Debug, Default)]
struct Live {
    /// The number of times that the folder was opened and not closed.
    opens: usize,
    /// The original folder, while the folder is open.
    lower: Option<Arc<OwnedFd>>,
    /// Kept by everything else that uses the folder.
    pin: Arc<()>,
    files: Vec<Handle>,
    written: WriteMark,
}

/// The note that an open file was written. The time that the view keeps for its content ends with it.
#[derive(Debug, Clone, Default)]
pub struct WriteMark(Arc<AtomicBool>);

impl WriteMark {
    /// Notes that the content or the size was changed.
    pub fn set(&self) {
        // A view and its files are used by one thread.
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Removes the note. Returns `true` if there was one.
    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
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

impl Handle {
    fn is_open(&self) -> bool {
        self.file.strong_count() > 0
    }
}

impl Handles {
    /// `true` if a folder or file is in use.
    pub(super) fn is_open(&self, id: NodeId) -> bool {
        let is_held = |live: &Live| live.opens > 0 || Arc::strong_count(&live.pin) > 1;
        self.0.get(&id).is_some_and(is_held) || self.files(id).any(Handle::is_open)
    }

    /// Forgets all nodes that are not in use, and returns those that are.
    pub(super) fn keep_open(&mut self) -> BTreeSet<NodeId> {
        let open = self.0.keys().copied().filter(|id| self.is_open(*id)).collect::<BTreeSet<_>>();
        self.0.retain(|id, _| open.contains(id));
        open
    }

    /// Forgets a node that is not in use.
    pub(super) fn forget(&mut self, id: NodeId) {
        self.0.remove(&id);
    }

    /// Counts one more use of a folder, whose original is `lower`.
    pub(super) fn hold_folder(&mut self, id: NodeId, lower: Option<Arc<OwnedFd>>) {
        let live = self.0.entry(id).or_default();
        live.opens = live.opens.saturating_add(1);
        live.lower = lower;
    }

    /// Counts one use less.
    pub(super) fn release_folder(&mut self, id: NodeId) {
        if let Some(live) = self.0.get_mut(&id) {
            live.opens = live.opens.saturating_sub(1);
        }
    }

    /// The original folder of an open folder.
    pub(super) fn lower(&self, id: NodeId) -> Option<Arc<OwnedFd>> {
        self.0.get(&id)?.lower.clone()
    }

    /// Keeps a folder in use until the result is dropped.
    pub(super) fn pin(&mut self, id: NodeId) -> Arc<()> {
        Arc::clone(&self.0.entry(id).or_default().pin)
    }

    /// Makes a handle of an open file, which is in use until the handle is dropped.
    pub(super) fn give_out(
        &mut self,
        node: NodeId,
        file: OwnedFd,
        flags: OFlags,
        content: HandleContent,
    ) -> OpenFile {
        let file = Arc::new(File::from(file));
        let live = self.0.entry(node).or_default();
        live.files.retain(Handle::is_open);
        live.files.push(Handle { file: Arc::downgrade(&file), flags: flags & !OFlags::TRUNC, content });
        OpenFile { node, file, written: live.written.clone() }
    }

    fn files(&self, id: NodeId) -> impl Iterator<Item = &Handle> {
        self.0.get(&id).into_iter().flat_map(|live| &live.files)
    }

    /// Finds any open handle of a file.
    pub(super) fn find(&self, id: NodeId) -> Result<Arc<File>> {
        self.files(id).find_map(|handle| handle.file.upgrade()).ok_or(Errno::NOENT)
    }

    /// A handle of a file that is open on the original.
    pub(super) fn open_original(&self, id: NodeId) -> Option<Arc<File>> {
        let mut of_original = self.files(id).filter(|handle| handle.content == HandleContent::Original);
        of_original.find_map(|handle| handle.file.upgrade())
    }

    /// `true` if a file is open for writing.
    pub(super) fn is_open_for_writing(&self, id: NodeId) -> bool {
        let can_write = |handle: &Handle| handle.flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        self.files(id).any(|handle| can_write(handle) && handle.is_open())
    }

    /// `true` if a file was written and [`Self::take_write`] was not called since.
    pub(super) fn has_write(&self, id: NodeId) -> bool {
        self.0.get(&id).is_some_and(|live| live.written.is_set())
    }

    /// The files of which [`Self::has_write`] is true.
    pub(super) fn written_files(&self) -> Vec<NodeId> {
        self.0.keys().copied().filter(|id| self.has_write(*id)).collect()
    }

    /// Removes the note that a file was written. Returns `true` if there was one.
    pub(super) fn take_write(&self, id: NodeId) -> bool {
        self.0.get(&id).is_some_and(|live| live.written.take())
    }

    /// Notes the content that all handles of a file have.
    pub(super) fn set_content(&mut self, id: NodeId, content: HandleContent) {
        let Some(live) = self.0.get_mut(&id) else { return };
        // The writes were to the content before.
        live.written.take();
        for handle in &mut live.files {
            handle.content = content;
        }
    }

    /// Opens a content for each handle of a file that has not one of the own folder, to replace it with.
    pub(super) fn prepare_redirection(&self, id: NodeId, upper: &Upper, number: u64) -> Result<Redirection> {
        let others = self.files(id).filter(|handle| handle.content != HandleContent::Own);
        let open = others.filter_map(|handle| Some((handle.file.upgrade()?, handle.flags)));
        open.map(|(file, flags)| Ok((file, upper.open(number, flags)?)))
            .collect::<Result<_>>()
            .map(Redirection)
    }
}

/// The handles of a content, each with one of the content that takes its place.
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
