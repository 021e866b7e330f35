//! Renaming, with the checks of the kernel in the kernel's order.

use super::{Found, Tree, View};
use crate::name::Name;
use crate::seen::{EntryKind, FileTime, Identity, device_of, stat_at};
use crate::table::NodeId;
use rustix::fs::Access as Rights;
use rustix::io::{Errno, Result};

impl View {
    /// Gives the entry `name` of a folder another name, in this or another folder, in place of an entry that has it.
    ///
    /// # Errors
    /// As `renameat`; `EPERM` below a root that may only be read; `ENOSPC` if the table is full.
    pub fn rename(&mut self, from: (NodeId, &Name), to: (NodeId, &Name)) -> Result<()> {
        self.sweep_if_due();
        let (from_folder, from_name) = from;
        let (to_folder, to_name) = to;
        self.tree.check_root(from_folder)?;
        self.tree.check_root(to_folder)?;
        self.tree.check_search(from_folder)?;
        self.tree.check_search(to_folder)?;
        self.tree.folder(from_folder)?;
        self.tree.folder(to_folder)?;
        if self.tree.mount_of(from_folder)? != self.tree.mount_of(to_folder)? {
            return Err(Errno::XDEV);
        }
        self.tree.check_file_system(from_folder)?;
        let moved = self.tree.find(from_folder, from_name)?.ok_or(Errno::NOENT)?;
        let replaced = self.tree.find(to_folder, to_name)?;
        // A folder that contains one with a node has one itself.
        let contains = |above: &Found, folder| match above {
            Found::Node(id) => self.tree.table.is_at_or_above(*id, folder),
            Found::Original(_) => false,
        };
        if contains(&moved, to_folder) {
            return Err(Errno::INVAL);
        }
        if replaced.as_ref().is_some_and(|replaced| contains(replaced, from_folder)) {
            return Err(Errno::NOTEMPTY);
        }
        if let Some(replaced) = &replaced
            && self.tree.identity_of(&moved) == self.tree.identity_of(replaced)
        {
            return Ok(());
        }
        self.tree.check_rename(from, &moved, to, replaced.as_ref())?;
        self.apply_rename(from, &moved, to, replaced.as_ref())
    }

    fn apply_rename(
        &mut self,
        (from_folder, from_name): (NodeId, &Name),
        moved: &Found,
        (to_folder, to_name): (NodeId, &Name),
        replaced: Option<&Found>,
    ) -> Result<()> {
        let id = self.adopt(from_folder, from_name, moved)?;
        // The name stays where it is in a listing that has been begun.
        let position = match replaced {
            Some(Found::Node(replaced)) => {
                self.tree.node(*replaced)?.place.as_ref().map(|place| place.position)
            }
            Some(Found::Original(_)) | None => None,
        };
        if let Some(replaced) = replaced {
            self.remove(to_folder, to_name, replaced)?;
        }
        self.tree.table.take_out(id);
        match position {
            Some(position) => self.tree.table.place_at(id, to_folder, to_name, position),
            None => self.tree.table.place(id, to_folder, to_name),
        }
        self.node_mut(id)?.changed = Some(FileTime::now());
        self.tree.table.touch(from_folder)?;
        self.tree.table.touch(to_folder)
    }
}

impl Tree {
    /// The checks of the kernel's `vfs_rename`.
    fn check_rename(
        &self,
        (from_folder, from_name): (NodeId, &Name),
        moved: &Found,
        (to_folder, to_name): (NodeId, &Name),
        replaced: Option<&Found>,
    ) -> Result<()> {
        let is_folder = self.kind(moved)? == EntryKind::Folder;
        self.check_remove(from_folder, moved)?;
        match replaced {
            None => self.check_change(to_folder)?,
            Some(replaced) => {
                self.check_remove(to_folder, replaced)?;
                match (is_folder, self.kind(replaced)? == EntryKind::Folder) {
                    (true, false) => return Err(Errno::NOTDIR),
                    (false, true) => return Err(Errno::ISDIR),
                    (true, true) | (false, false) => {}
                }
            }
        }
        if is_folder && from_folder != to_folder {
            // The folder's own entry `..` changes.
            self.check_entry(from_folder, from_name, moved, Rights::WRITE_OK)?;
        }
        match replaced {
            Some(replaced) if is_folder => self.check_empty(to_folder, to_name, replaced),
            Some(_) | None => Ok(()),
        }
    }

    fn identity_of(&self, found: &Found) -> Identity {
        match found {
            Found::Node(id) => self.table.identity(*id),
            Found::Original(original) => original.seen.identity(),
        }
    }

    /// The mount and the device on which the entries of a folder would lie on the plain folder: those of the nearest folder
    /// that has an original.
    fn mount_of(&self, folder: NodeId) -> Result<(u64, u64)> {
        let mut id = folder;
        loop {
            if let Some(lower) = self.lower_folder(id)? {
                let stat = stat_at(&lower, "")?;
                return Ok((stat.stx_mnt_id, device_of(&stat)));
            }
            id = self.table.parent(id).ok_or(Errno::NOENT)?;
        }
    }
}
