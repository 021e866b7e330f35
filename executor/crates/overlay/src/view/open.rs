//! Opening folders and files.

use super::checks::check_openable;
use super::handles::{HandleContent, WriteMark};
use super::{Found, View};
use crate::name::Name;
use crate::seen::{EntryKind, kind_of, stat_at};
use crate::table::{Content, NodeId, NodeKind};
use rustix::fs::{Access as Rights, Mode, OFlags, openat};
use rustix::io::{Errno, Result};
use std::fs::File;
use std::sync::Arc;

/// The way in which a file is to be opened. A file that is neither read nor written is opened for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct How {
    /// The content will be read.
    pub read: bool,
    /// The content will be written.
    pub write: bool,
    /// Each write goes to the end.
    pub append: bool,
    /// The content is removed.
    pub truncate: bool,
    /// The action if there is no entry, or one.
    pub create: Create,
}

/// The opening of a file if there is no entry of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Create {
    /// It fails with `ENOENT`.
    #[default]
    No,
    /// It makes an empty file.
    IfMissing,
    /// It makes an empty file, and fails with `EEXIST` if there is an entry of any kind.
    Exclusive,
}

/// An open file.
#[derive(Debug)]
pub struct OpenFile {
    /// The file's node.
    pub node: NodeId,
    /// The handle. The view may put another file behind its descriptor, so it has to be read at explicit positions, and
    /// its descriptor must not be passed on. Dropping the last reference closes the file.
    pub file: Arc<File>,
    /// To be set by whoever has written the file or changed its size.
    pub written: WriteMark,
}

impl How {
    const fn is_writing(self) -> bool {
        self.write || self.append || self.truncate
    }

    fn rights(self) -> Rights {
        let mut rights = Rights::empty();
        rights.set(Rights::READ_OK, self.read || !(self.write || self.append));
        rights.set(Rights::WRITE_OK, self.is_writing());
        rights
    }

    fn flags(self) -> OFlags {
        let mut flags = match (self.read, self.write || self.append) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            (true | false, false) => OFlags::RDONLY,
        };
        flags.set(OFlags::APPEND, self.append);
        flags.set(OFlags::TRUNC, self.truncate);
        flags
    }
}

impl View {
    /// Opens the folder `name` of a folder.
    ///
    /// # Errors
    /// As `openat` with `O_RDONLY | O_DIRECTORY | O_NOFOLLOW`; `ENOSPC` if the table is full.
    pub fn open_folder(&mut self, folder: NodeId, name: &Name) -> Result<NodeId> {
        self.sweep_if_due();
        let found = self.tree.find(folder, name)?.ok_or(Errno::NOENT)?;
        if self.tree.kind(&found)? != EntryKind::Folder {
            return Err(Errno::NOTDIR);
        }
        self.tree.check_entry(folder, name, &found, Rights::READ_OK)?;
        let id = self.adopt(folder, name, &found)?;
        let lower = self.tree.lower_folder(id)?;
        self.tree.handles.hold_folder(id, lower);
        Ok(id)
    }

    /// Opens the folder at a place, as one of the folders with which a run begins: the folders that contain it need not be
    /// readable. `None` if there is no folder now.
    ///
    /// # Errors
    /// As `openat` with `O_PATH | O_DIRECTORY | O_NOFOLLOW`, but for absence; `EBADF` if there is no such root; `ENOSPC`
    /// if the table is full.
    pub fn open_place(&mut self, root: usize, names: &[Name]) -> Result<Option<NodeId>> {
        let mut folder = self.root(root).ok_or(Errno::BADF)?;
        for name in names {
            let Some(found) = self.tree.find(folder, name)? else { return Ok(None) };
            if self.tree.kind(&found)? != EntryKind::Folder {
                return Ok(None);
            }
            folder = self.adopt(folder, name, &found)?;
        }
        let lower = self.tree.lower_folder(folder)?;
        self.tree.handles.hold_folder(folder, lower);
        Ok(Some(folder))
    }

    /// Ends one use of an opened folder.
    pub fn close_folder(&mut self, id: NodeId) {
        self.tree.handles.release_folder(id);
        self.drop_unused(id);
    }

    /// Opens, and perhaps makes, the file `name` of a folder.
    ///
    /// # Errors
    /// As `openat` with `O_NOFOLLOW`, but `EISDIR` for any folder and `EOPNOTSUPP` for FIFOs, sockets and devices;
    /// `EPERM` below a root that may only be read, and for writing a file with several hard links; `ENOSPC` if the budget
    /// of the view is used up.
    pub fn open_file(&mut self, folder: NodeId, name: &Name, how: How) -> Result<OpenFile> {
        self.sweep_if_due();
        if how.is_writing() || how.create != Create::No {
            self.tree.check_root(folder)?;
        }
        let Some(found) = self.tree.find(folder, name)? else {
            return match how.create {
                Create::No => Err(Errno::NOENT),
                Create::IfMissing | Create::Exclusive => self.create_file(folder, name, how),
            };
        };
        if how.create == Create::Exclusive {
            return Err(Errno::EXIST);
        }
        check_openable(self.tree.kind(&found)?)?;
        let is_lower = match &found {
            Found::Node(id) => self.tree.node(*id)?.kind == NodeKind::File(Content::Lower),
            Found::Original(_) => true,
        };
        if is_lower && !how.is_writing() {
            return self.open_original(folder, name, &found);
        }
        self.tree.check_entry(folder, name, &found, how.rights())?;
        let is_new = matches!(found, Found::Original(_));
        let id = self.adopt(folder, name, &found)?;
        let opened = self.open_upper(id, how);
        if opened.is_err() && is_new {
            self.drop_unused(id);
        }
        opened
    }

    /// Opens an original that is not changed, for reading.
    fn open_original(&mut self, folder: NodeId, name: &Name, found: &Found) -> Result<OpenFile> {
        let place = match found {
            Found::Node(id) => self.tree.lower_place(*id)?,
            Found::Original(_) => self.tree.lower_folder(folder)?.map(|lower| (lower, name.clone())),
        };
        let (lower, lower_name) = place.ok_or(Errno::NOENT)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&lower, lower_name.as_os_str(), flags, Mode::empty())?;
        // Another program may have replaced the entry since it was looked at.
        check_openable(kind_of(&stat_at(&file, "")?))?;
        let node = self.adopt(folder, name, found)?;
        Ok(self.tree.handles.give_out(node, file, OFlags::RDONLY, HandleContent::Original))
    }

    fn open_upper(&mut self, id: NodeId, how: How) -> Result<OpenFile> {
        let mut content = if self.has_own_content(id)? { HandleContent::Own } else { HandleContent::Earlier };
        if how.is_writing() && content != HandleContent::Own {
            self.copy_up(id, how.truncate)?;
            content = HandleContent::Own;
        }
        let number = self.tree.node(id)?.upper().ok_or(Errno::BADF)?;
        let file = self.upper.open(number, how.flags())?;
        if how.truncate {
            // The kernel removes these bits from a file whose content is changed.
            self.clear_set_id(id)?;
            self.node_mut(id)?.modified = None;
        }
        Ok(self.tree.handles.give_out(id, file, how.flags(), content))
    }

    fn create_file(&mut self, folder: NodeId, name: &Name, how: How) -> Result<OpenFile> {
        self.tree.check_change(folder)?;
        self.check_room()?;
        let number = self.tree.table.take_content_number();
        drop(self.upper.create(number)?);
        let opened = self.upper.open(number, how.flags() & !OFlags::TRUNC);
        let file = opened.inspect_err(|_| self.upper.discard(number))?;
        let kind = NodeKind::File(Content::Upper(number));
        let id = self.tree.table.create(folder, name, kind, 0o666 & !self.tree.user.umask)?;
        Ok(self.tree.handles.give_out(id, file, how.flags(), HandleContent::Own))
    }
}
