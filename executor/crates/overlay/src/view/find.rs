//! Finding the entry that a name stands for, and the original behind a node.

use super::{Stat, Tree};
use crate::lower::root_of;
use crate::name::{EntryPath, Name};
use crate::seen::{EntryKind, FileTime, Seen, stat_at};
use crate::table::{Node, NodeId, Override};
use rustix::fs::{Mode, OFlags, Statx, openat, readlinkat};
use rustix::io::{Errno, Result};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;

/// An entry of a folder.
#[derive(Debug, Clone, Copy)]
pub(super) enum Found {
    /// One that has a node.
    Node(NodeId),
    /// An original in its place, of which the table knows nothing.
    Original(Original),
}

/// The state of an original now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Original {
    pub(super) seen: Seen,
    pub(super) owner: u32,
    accessed: FileTime,
}

impl From<&Statx> for Original {
    fn from(stat: &Statx) -> Self {
        Self { seen: Seen::from(stat), owner: stat.stx_uid, accessed: stat.stx_atime.into() }
    }
}

impl Original {
    pub(super) const fn stat(&self) -> Stat {
        Stat {
            kind: self.seen.kind,
            size: self.seen.size,
            mode: self.seen.mode,
            nlink: self.seen.nlink,
            modified: self.seen.mtime,
            accessed: self.accessed,
            changed: self.seen.ctime,
            identity: self.seen.identity(),
        }
    }
}

/// The target of a link of an original folder.
pub(super) fn read_target(folder: &OwnedFd, name: &Name) -> Result<OsString> {
    Ok(OsString::from_vec(readlinkat(folder, name.as_os_str(), Vec::new())?.into_bytes()))
}

impl Tree {
    pub(super) fn node(&self, id: NodeId) -> Result<&Node> {
        self.table.node(id).ok_or(Errno::BADF)
    }

    /// The node of a folder in which names can be looked up: `ENOENT` for one that was removed, as in the kernel.
    pub(super) fn folder(&self, id: NodeId) -> Result<&Node> {
        let node = self.node(id)?;
        if node.entry_kind() != EntryKind::Folder {
            return Err(Errno::NOTDIR);
        }
        if self.removed.contains(&id) {
            self.check_search(id)?;
            return Err(Errno::NOENT);
        }
        Ok(node)
    }

    /// The entry `name` of a folder; `None` if there is none.
    pub(super) fn find(&self, folder: NodeId, name: &Name) -> Result<Option<Found>> {
        let override_ = self.folder(folder)?.entries().and_then(|entries| entries.get(name));
        match override_ {
            Some(override_) => {
                self.check_search(folder)?;
                Ok(match override_ {
                    Override::Removed => None,
                    Override::Node(id) => Some(Found::Node(*id)),
                })
            }
            None => match self.lower_folder(folder)? {
                None => Ok(None),
                Some(lower) => match stat_at(&lower, name.as_os_str()) {
                    Ok(stat) => Ok(Some(Found::Original(Original::from(&stat)))),
                    Err(Errno::NOENT) => Ok(None),
                    Err(error) => Err(error),
                },
            },
        }
    }

    pub(super) fn kind(&self, found: &Found) -> Result<EntryKind> {
        match found {
            Found::Node(id) => Ok(self.node(*id)?.entry_kind()),
            Found::Original(original) => Ok(original.seen.kind),
        }
    }

    /// The original of an entry as it is now; `None` if the program made it.
    pub(super) fn original_of(&self, found: &Found) -> Result<Option<Original>> {
        match found {
            Found::Node(id) if self.node(*id)?.origin.is_none() => Ok(None),
            Found::Node(id) => self.original(*id).map(Some),
            Found::Original(original) => Ok(Some(*original)),
        }
    }

    /// A handle of the original folder of a folder; `None` if the program made it.
    pub(super) fn lower_folder(&self, id: NodeId) -> Result<Option<Arc<OwnedFd>>> {
        match self.handles.lower(id) {
            Some(lower) => Ok(Some(lower)),
            None => self.node(id)?.origin.as_ref().map(|origin| self.open_lower(origin)).transpose(),
        }
    }

    fn open_lower(&self, path: &EntryPath) -> Result<Arc<OwnedFd>> {
        root_of(&self.roots, path)?.open_folder(&path.names).map(Arc::new)
    }

    /// The original folder that contains the original of a node, and the original's name; `None` for a root, and for what
    /// the program made.
    pub(super) fn lower_place(&self, id: NodeId) -> Result<Option<(Arc<OwnedFd>, Name)>> {
        let Some((folder, name)) = self.node(id)?.origin.as_deref().and_then(EntryPath::split) else {
            return Ok(None);
        };
        let open = self.table.by_origin(&folder).and_then(|id| self.handles.lower(id));
        let folder = open.map_or_else(|| self.open_lower(&folder), Ok)?;
        Ok(Some((folder, name.clone())))
    }

    /// Opens the original of a file, to copy it.
    pub(super) fn open_lower_file(&self, id: NodeId) -> Result<OwnedFd> {
        let (folder, name) = self.lower_place(id)?.ok_or(Errno::BADF)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&folder, name.as_os_str(), flags, Mode::empty())?;
        let seen = Seen::look(&file, "")?;
        if seen.kind == EntryKind::File && seen.nlink == 1 { Ok(file) } else { Err(Errno::PERM) }
    }

    /// The original of a node that has one, as it is now.
    pub(super) fn original(&self, id: NodeId) -> Result<Original> {
        if let Some(lower) = self.handles.lower(id) {
            return Ok(Original::from(&stat_at(lower, "")?));
        }
        // An open file of the original answers without a walk, and even if another program has removed it.
        if let Some(file) = self.handles.open_original(id) {
            return Ok(Original::from(&stat_at(&*file, "")?));
        }
        let (folder, name) = self.lower_place(id)?.ok_or(Errno::BADF)?;
        Ok(Original::from(&stat_at(&folder, name.as_os_str())?))
    }
}
