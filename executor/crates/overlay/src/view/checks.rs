//! The permissions that the kernel would check on the plain folder. It is asked about the originals; what the program made
//! is its user's own.

use super::Tree;
use super::find::{Found, Original};
use crate::lower::{Access, root_of};
use crate::name::Name;
use crate::seen::{EntryKind, stat_at};
use crate::table::NodeId;
use crate::upper::Upper;
use rustix::fs::{Access as Rights, AtFlags, Mode, accessat, mkdirat, unlinkat};
use rustix::io::{Errno, Result};

/// The user of this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct User {
    pub(super) id: u32,
    pub(super) umask: u32,
    /// `CAP_FOWNER`.
    pub(super) may_act_for_owners: bool,
    /// `CAP_FSETID`: a write leaves the set-user-id bit.
    pub(super) keeps_set_id: bool,
}

const STICKY: u32 = 0o1000;

impl User {
    /// Finds out about this user from what it makes in the upper folder: the kernel tells the umask of a process only to
    /// one that sets it, or in `/proc`.
    pub(super) fn of_upper(upper: &Upper) -> Result<Self> {
        const PROBE: &str = "probe";
        // It is there if the process was killed between the next calls.
        let _may_be_missing = unlinkat(upper.dir(), PROBE, AtFlags::REMOVEDIR);
        mkdirat(upper.dir(), PROBE, Mode::RWXU | Mode::RWXG | Mode::RWXO)?;
        let looked = stat_at(upper.dir(), PROBE);
        unlinkat(upper.dir(), PROBE, AtFlags::REMOVEDIR)?;
        let probe = looked?;
        let capabilities = rustix::thread::capabilities(None)?.effective;
        Ok(Self {
            id: probe.stx_uid,
            umask: !u32::from(probe.stx_mode) & 0o777,
            may_act_for_owners: capabilities.contains(rustix::thread::CapabilitySet::FOWNER),
            keeps_set_id: capabilities.contains(rustix::thread::CapabilitySet::FSETID),
        })
    }
}

impl Tree {
    /// Refuses a change below a root that may only be read: `EPERM`, as from wasmtime's own folders.
    pub(super) fn check_root(&self, folder: NodeId) -> Result<()> {
        // A removed folder is below no root. Its own calls say that it is gone.
        let Some(path) = self.table.path_of(folder) else { return Ok(()) };
        match root_of(&self.roots, &path)?.access {
            Access::Write => Ok(()),
            Access::Read => Err(Errno::PERM),
        }
    }

    /// Checks that names may be looked up in a folder.
    pub(super) fn check_search(&self, folder: NodeId) -> Result<()> {
        self.check_folder(folder, Rights::EXEC_OK)
    }

    /// Checks that entries of a folder may be made and removed.
    pub(super) fn check_change(&self, folder: NodeId) -> Result<()> {
        self.check_folder(folder, Rights::WRITE_OK | Rights::EXEC_OK)
    }

    /// Refuses a change on a read-only file system, which the kernel checks before it looks for the entry.
    pub(super) fn check_file_system(&self, folder: NodeId) -> Result<()> {
        match self.check_change(folder) {
            Err(Errno::ROFS) => Err(Errno::ROFS),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn check_folder(&self, folder: NodeId, rights: Rights) -> Result<()> {
        match self.lower_folder(folder)? {
            Some(lower) => accessat(&lower, ".", rights, AtFlags::EACCESS),
            None => Ok(()),
        }
    }

    /// Checks that the content of an entry may be used.
    pub(super) fn check_entry(
        &self,
        folder: NodeId,
        name: &Name,
        found: &Found,
        rights: Rights,
    ) -> Result<()> {
        let flags = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
        match found {
            Found::Node(id) => self.check_node(*id, rights),
            Found::Original(_) => {
                let lower = self.lower_folder(folder)?.ok_or(Errno::NOENT)?;
                accessat(&lower, name.as_os_str(), rights, flags)
            }
        }
    }

    /// As [`Self::check_entry`], for a node.
    pub(super) fn check_node(&self, id: NodeId, rights: Rights) -> Result<()> {
        let flags = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
        match self.lower_place(id)? {
            Some((lower, name)) => accessat(&lower, name.as_os_str(), rights, flags),
            None => self.check_folder(id, rights),
        }
    }

    /// The kernel's `may_delete`, but for the kinds: entries of the folder may be removed, and of a sticky folder only
    /// those of this user.
    pub(super) fn check_remove(&self, folder: NodeId, found: &Found) -> Result<()> {
        self.check_change(folder)?;
        let Some(lower) = self.lower_folder(folder)? else { return Ok(()) };
        let in_folder = Original::from(&stat_at(&lower, "")?);
        if in_folder.seen.mode & STICKY == 0 || in_folder.owner == self.user.id {
            return Ok(());
        }
        if self.is_owner(found)? { Ok(()) } else { Err(Errno::PERM) }
    }

    /// `true` if the user owns an entry, or may act as if.
    pub(super) fn is_owner(&self, found: &Found) -> Result<bool> {
        let original = self.original_of(found)?;
        Ok(self.user.may_act_for_owners || original.is_none_or(|original| original.owner == self.user.id))
    }

    /// Checks the new times of an entry as `utimensat` does: both may be set to now by whoever may write the entry.
    pub(super) fn check_times(&self, id: NodeId, are_now: bool) -> Result<()> {
        let may_write = self.check_node(id, Rights::WRITE_OK);
        if may_write == Err(Errno::ROFS) || self.is_owner(&Found::Node(id))? {
            // Of a link, the kernel says nothing of writing, and of an owner it is not required.
            return may_write.or_else(|error| if error == Errno::ROFS { Err(error) } else { Ok(()) });
        }
        if are_now { may_write.map_err(|_| Errno::ACCESS) } else { Err(Errno::PERM) }
    }
}

/// Refuses to make entries of a kind that a file open cannot have.
pub(super) const fn check_openable(kind: EntryKind) -> Result<()> {
    match kind {
        EntryKind::File => Ok(()),
        EntryKind::Folder => Err(Errno::ISDIR),
        EntryKind::Link => Err(Errno::LOOP),
        EntryKind::Other => Err(Errno::OPNOTSUPP),
    }
}
