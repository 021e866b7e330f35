//! The files as a program sees them: the originals, with its changes laid over them.
//!
//! Every call behaves, down to its error, as the kernel's would on a plain folder with the same history, so that a program
//! cannot tell the difference, and what people approve is what happens. `tests/equivalence/` compares the two.
//!
//! These differences are known:
//! - A file with several hard links is not written (`EPERM`): its other names would not change with it.
//! - A file that may be written but not read can only be truncated or removed, because its content cannot be copied; and a
//!   folder that may not be read cannot be removed, because nothing says whether it is empty (`EACCES` in both cases).
//! - A running program's file can be written (`ETXTBSY` otherwise), and the kernel's `protected_regular` does not apply.
//! - What the program made is owned by this user with all of the owner's rights, even if the umask takes those away, and
//!   default access control lists do not apply to it.
//! - A changed folder has one hard link, as on file systems that do not count subfolders.
//! - Reading a file does not change its time of access if the program has set one, or has opened an original for writing.
//!
//! A program whose calls change its files differs from processes on one folder in this:
//! - What it writes to a file while a call writes that file, too, is lost when it goes on with the table of the call. If the
//!   call sets only the times, these are lost.
//! - A file that calls have both written and removed has, for those who have it open, the content of before.
//!
//! Besides calls on files and folders, a view needs these system calls: `faccessat2`, `dup3`, `copy_file_range`,
//! `ioctl(FICLONE)` and, when it is made, `capget`.

mod change;
mod checks;
mod content;
mod find;
mod handles;
mod listing;
mod open;
mod program;
mod prune;
mod rename;
mod times;

pub use handles::WriteMark;
pub use listing::{ListedEntry, Listing};
pub use open::{Create, How, OpenFile};
pub use times::NewTime;

use crate::lower::LowerRoot;
use crate::name::Name;
use crate::seen::{EntryKind, FileTime, Identity, Seen};
use crate::table::{Content, Modified, Node, NodeId, NodeKind, Table};
use crate::upper::Upper;
use checks::User;
use find::{Found, Original};
use handles::Handles;
use rustix::io::{Errno, Result};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The budget of a view, set by the operator. A call that needs more fails with `ENOSPC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpperBudget {
    /// The bytes that are copied from originals. What a program writes is its caller's to count.
    pub max_bytes: u64,
    /// The nodes and the seen originals of the table, together.
    pub max_nodes: usize,
}

/// The attributes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The size in bytes; of a link, the length of its target.
    pub size: u64,
    /// The permissions.
    pub mode: u32,
    /// The number of hard links.
    pub nlink: u64,
    /// The time of the last change of the content.
    pub modified: FileTime,
    /// The time of the last access.
    pub accessed: FileTime,
    /// The time of the last change of content or attributes.
    pub changed: FileTime,
    /// The numbers of the entry.
    pub identity: Identity,
}

impl Stat {
    /// The attributes of a folder or link that the program made, but for its times.
    fn of_made(id: NodeId, node: &Node) -> Self {
        let size = match &node.kind {
            NodeKind::Link(target) => u64::try_from(target.len()).unwrap_or(u64::MAX),
            NodeKind::File(_) | NodeKind::Folder(_) | NodeKind::Other => 4096,
        };
        let epoch = FileTime { seconds: 0, nanoseconds: 0 };
        Self {
            kind: node.entry_kind(),
            size,
            mode: node.mode.unwrap_or(0o777),
            nlink: 1,
            modified: epoch,
            accessed: epoch,
            changed: epoch,
            identity: Identity { device: 0, inode: id.0 },
        }
    }
}

/// The files of one program, which has all of them for itself, or in turns with its calls.
///
/// Folders and files are named by their [`NodeId`]; a number that is not in use is `EBADF`. A folder that was opened, and
/// each root, can be used until [`View::close_folder`].
#[derive(Debug)]
pub struct View {
    tree: Tree,
    upper: Upper,
    budget: UpperBudget,
    /// The bytes that were copied.
    copied_bytes: u64,
    /// The size of the table at which nodes that nothing needs are looked for.
    sweep_at: usize,
    /// The calls since the last sweep.
    calls: usize,
}

/// The entries as they are now. Its methods find them and check what the kernel would check, and change nothing.
#[derive(Debug)]
struct Tree {
    table: Table,
    roots: Vec<LowerRoot>,
    user: User,
    handles: Handles,
    /// The nodes without a place: removed while they were open.
    removed: BTreeSet<NodeId>,
}

/// The size of a table below which it is not swept.
const MIN_SWEEP: usize = 256;

impl View {
    /// A view of the originals below `roots`, without changes. `upper` is an empty folder of this user.
    ///
    /// # Errors
    /// If a root or `upper` cannot be examined, or nothing can be made in `upper`.
    pub fn new(upper: OwnedFd, roots: Vec<LowerRoot>, budget: UpperBudget) -> Result<Self> {
        Self::with_table(Table::new(&roots)?, Upper::new(upper), roots, budget)
    }

    /// A view with the changes of an earlier one, or of other members of a program. The roots are those of the table, and
    /// `upper` has all its contents.
    ///
    /// # Errors
    /// As [`Self::new`]; `ESTALE` if a root is another folder than it was, `EINVAL` if the number of roots differs.
    pub fn load(table: Table, upper: Upper, roots: Vec<LowerRoot>, budget: UpperBudget) -> Result<Self> {
        if table.roots().len() != roots.len() {
            return Err(Errno::INVAL);
        }
        for (root, id) in roots.iter().zip(table.roots()) {
            let seen = table.node(*id).and_then(|node| table.first_seen(node));
            let now = Seen::look(&root.dir, "")?;
            if !seen.is_some_and(|seen| seen.is_same_entry(&now)) {
                return Err(Errno::STALE);
            }
        }
        let mut view = Self::with_table(table, upper, roots, budget)?;
        view.copied_bytes = view.count_contents()?;
        Ok(view)
    }

    fn with_table(table: Table, upper: Upper, roots: Vec<LowerRoot>, budget: UpperBudget) -> Result<Self> {
        let user = User::of_upper(&upper)?;
        let mut handles = Handles::default();
        for (root, id) in roots.iter().zip(table.roots()) {
            let lower = rustix::io::fcntl_dupfd_cloexec(&root.dir, 0)?;
            handles.hold_folder(*id, Some(Arc::new(lower)));
        }
        let tree = Tree { table, roots, user, handles, removed: BTreeSet::new() };
        Ok(Self { tree, upper, budget, copied_bytes: 0, sweep_at: MIN_SWEEP, calls: 0 })
    }

    /// The folder of a root; `None` if there is no such root.
    #[must_use]
    pub fn root(&self, index: usize) -> Option<NodeId> {
        self.tree.table.roots().get(index).copied()
    }

    /// The bytes that were copied from originals so far, because they were to be changed.
    #[must_use]
    pub const fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// The attributes of the entry `name` of a folder.
    ///
    /// # Errors
    /// As `fstatat` without following a link.
    pub fn lookup(&self, folder: NodeId, name: &Name) -> Result<Stat> {
        match self.tree.find(folder, name)?.ok_or(Errno::NOENT)? {
            Found::Original(original) => Ok(original.stat()),
            Found::Node(id) => self.stat(id),
        }
    }

    /// The target of the symbolic link `name` of a folder.
    ///
    /// # Errors
    /// As `readlinkat`.
    pub fn read_link(&mut self, folder: NodeId, name: &Name) -> Result<std::ffi::OsString> {
        match self.tree.find(folder, name)?.ok_or(Errno::NOENT)? {
            Found::Original(original) => {
                if original.seen.kind != EntryKind::Link {
                    return Err(Errno::INVAL);
                }
                let lower = self.tree.lower_folder(folder)?.ok_or(Errno::NOENT)?;
                let target = find::read_target(&lower, name)?;
                self.check_room()?;
                self.tree.table.note_entry(folder, name, original.seen)?;
                Ok(target)
            }
            Found::Node(id) => match &self.tree.node(id)?.kind {
                NodeKind::Link(target) => Ok(target.clone()),
                NodeKind::File(_) | NodeKind::Folder(_) | NodeKind::Other => Err(Errno::INVAL),
            },
        }
    }

    /// The attributes of an open folder or file.
    ///
    /// # Errors
    /// As `fstat`.
    pub fn stat(&self, id: NodeId) -> Result<Stat> {
        let node = self.tree.node(id)?;
        let mut stat = match (&node.kind, &node.origin) {
            (NodeKind::File(Content::Upper(number)), _) => {
                let original = Original::from(&self.stat_content(id, *number)?);
                let mode = self.tree.table.mode(id).ok_or(Errno::BADF)?;
                Stat { mode, identity: self.tree.table.identity(id), ..original.stat() }
            }
            (_, Some(_)) => self.tree.original(id)?.stat(),
            (_, None) => Stat::of_made(id, node),
        };
        if node.entries().is_some_and(|entries| !entries.is_empty()) {
            stat.nlink = 1;
        }
        if self.tree.removed.contains(&id) {
            stat.nlink = 0;
        }
        let kept = node.modified.filter(|_| !self.tree.handles.has_write(id));
        stat.modified = kept.map_or(stat.modified, Modified::time);
        stat.accessed = node.accessed.unwrap_or(stat.accessed);
        stat.changed = node.changed.unwrap_or(stat.changed).max(stat.changed);
        Ok(stat)
    }

    fn node_mut(&mut self, id: NodeId) -> Result<&mut Node> {
        self.tree.table.node_mut(id).ok_or(Errno::BADF)
    }
}
