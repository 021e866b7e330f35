//! Making and removing entries, and giving them nodes.

use super::find::read_target;
use super::{Found, Tree, View};
use crate::name::Name;
use crate::seen::{EntryKind, FileTime};
use crate::table::{Content, Node, NodeId, NodeKind, Override, is_target};
use rustix::fs::{Mode, OFlags, RawDir, openat};
use rustix::io::{Errno, Result};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

const SET_GROUP_ID: u32 = 0o2000;

impl View {
    /// Makes the folder `name` in a folder, with all permissions that the umask leaves.
    ///
    /// # Errors
    /// As `mkdirat`; `EPERM` below a root that may only be read; `ENOSPC` if the table is full.
    pub fn create_folder(&mut self, folder: NodeId, name: &Name) -> Result<()> {
        self.check_new(folder, name)?;
        // A folder inherits the group's inheritance from its own folder.
        let inherited = match self.tree.node(folder)?.mode {
            Some(mode) => mode & SET_GROUP_ID,
            None => self.tree.original(folder)?.seen.mode & SET_GROUP_ID,
        };
        let mode = (0o777 & !self.tree.user.umask) | inherited;
        self.tree.table.create(folder, name, NodeKind::Folder(BTreeMap::new()), mode)?;
        Ok(())
    }

    /// Makes the symbolic link `name` in a folder. Where its target leads is for those to check who follow links.
    ///
    /// # Errors
    /// As `symlinkat`; `EPERM` below a root that may only be read; `ENOSPC` if the table is full.
    pub fn symlink(&mut self, target: &OsStr, folder: NodeId, name: &Name) -> Result<()> {
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        if !is_target(target) {
            return Err(if target.as_bytes().contains(&0) { Errno::INVAL } else { Errno::NAMETOOLONG });
        }
        self.check_new(folder, name)?;
        self.tree.table.create(folder, name, NodeKind::Link(target.to_owned()), 0o777)?;
        Ok(())
    }

    /// Refuses a call if the table is full.
    pub(super) fn check_room(&self) -> Result<()> {
        if self.tree.table.len() < self.budget.max_nodes { Ok(()) } else { Err(Errno::NOSPC) }
    }

    /// Gives an entry a node, if it has none.
    pub(super) fn adopt(&mut self, folder: NodeId, name: &Name, found: &Found) -> Result<NodeId> {
        let original = match found {
            Found::Node(id) => return Ok(*id),
            Found::Original(original) => original,
        };
        self.check_room()?;
        let kind = match original.seen.kind {
            EntryKind::File => NodeKind::File(Content::Lower),
            EntryKind::Folder => NodeKind::Folder(BTreeMap::new()),
            EntryKind::Link => {
                let lower = self.tree.lower_folder(folder)?.ok_or(Errno::NOENT)?;
                NodeKind::Link(read_target(&lower, name)?)
            }
            EntryKind::Other => NodeKind::Other,
        };
        let origin = self.tree.table.note_entry(folder, name, original.seen)?;
        let id = self.tree.table.insert(Node::of_original(kind, origin));
        self.tree.table.place(id, folder, name);
        Ok(id)
    }

    fn check_new(&mut self, folder: NodeId, name: &Name) -> Result<()> {
        self.sweep_if_due();
        self.tree.check_root(folder)?;
        if self.tree.find(folder, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        self.tree.check_change(folder)?;
        self.check_room()
    }

    /// Removes the entry `name` of a folder, which is no folder itself. If it is open, it can be used until it is closed.
    ///
    /// # Errors
    /// As `unlinkat`; `EPERM` below a root that may only be read; `ENOSPC` if the table is full.
    pub fn unlink(&mut self, folder: NodeId, name: &Name) -> Result<()> {
        let found = self.find_to_remove(folder, name)?;
        if self.tree.kind(&found)? == EntryKind::Folder {
            return Err(Errno::ISDIR);
        }
        self.remove(folder, name, &found)?;
        self.tree.table.touch(folder)
    }

    /// Removes the empty folder `name` of a folder.
    ///
    /// # Errors
    /// As `unlinkat` with `AT_REMOVEDIR`; `EPERM` below a root that may only be read; `EACCES` if an original folder may
    /// not be read, so that it is not known whether it is empty; `ENOSPC` if the table is full.
    pub fn remove_folder(&mut self, folder: NodeId, name: &Name) -> Result<()> {
        let found = self.find_to_remove(folder, name)?;
        if self.tree.kind(&found)? != EntryKind::Folder {
            return Err(Errno::NOTDIR);
        }
        self.tree.check_empty(folder, name, &found)?;
        self.remove(folder, name, &found)?;
        self.tree.table.touch(folder)
    }

    fn find_to_remove(&mut self, folder: NodeId, name: &Name) -> Result<Found> {
        self.sweep_if_due();
        self.tree.check_root(folder)?;
        self.tree.folder(folder)?;
        self.tree.check_file_system(folder)?;
        let found = self.tree.find(folder, name)?.ok_or(Errno::NOENT)?;
        self.tree.check_remove(folder, &found)?;
        Ok(found)
    }

    /// Takes an entry out of its folder. An original under its name stays hidden.
    pub(super) fn remove(&mut self, folder: NodeId, name: &Name, found: &Found) -> Result<()> {
        match found {
            Found::Original(original) => {
                self.check_room()?;
                self.tree.table.note_entry(folder, name, original.seen)?;
                self.tree.table.set_override(folder, name, Some(Override::Removed));
            }
            Found::Node(id) => {
                self.tree.table.take_out(*id);
                self.tree.removed.insert(*id);
                if let Some(node) = self.tree.table.node_mut(*id) {
                    node.changed = Some(FileTime::now());
                }
                self.drop_unused(*id);
            }
        }
        Ok(())
    }
}

impl Tree {
    /// Checks that a folder has no entry.
    pub(super) fn check_empty(&self, folder: NodeId, name: &Name, found: &Found) -> Result<()> {
        let no_overrides = BTreeMap::new();
        let mut overrides = &no_overrides;
        let mut lower = None;
        match found {
            Found::Node(id) => {
                overrides = self.node(*id)?.entries().ok_or(Errno::NOTDIR)?;
                if let Some((parent, name)) = self.lower_place(*id)? {
                    lower = Some(open_to_list(&parent, name.as_os_str())?);
                }
            }
            Found::Original(_) => {
                let parent = self.lower_folder(folder)?.ok_or(Errno::NOENT)?;
                lower = Some(open_to_list(&parent, name.as_os_str())?);
            }
        }
        if overrides.values().any(|override_| *override_ != Override::Removed) {
            return Err(Errno::NOTEMPTY);
        }
        let is_removed = |name: &OsStr| Name::new(name).is_ok_and(|name| overrides.contains_key(&name));
        let Some(lower) = lower else { return Ok(()) };
        let mut buffer = [MaybeUninit::uninit(); 8 << 10];
        let mut entries = RawDir::new(&lower, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") && !is_removed(OsStr::from_bytes(name)) {
                return Err(Errno::NOTEMPTY);
            }
        }
        Ok(())
    }
}

pub(super) fn open_to_list(folder: &OwnedFd, name: &OsStr) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, name, flags, Mode::empty())
}
