//! Listing a folder in bounded pieces.
//!
//! First come `.` and `..`, then every name that the original folder has, in its order, with the entry that the name
//! stands for now, but for the stash of a commit, and then what only the program made, in the order in which it was made. So an entry that exists
//! throughout a listing occurs once, whatever happens to the others: a name is never in both parts.

use super::change::open_to_list;
use super::{Tree, View};
use crate::commit::is_stash_name;
use crate::name::Name;
use crate::seen::{EntryKind, kind_of, kind_of_type, stat_at};
use crate::table::{NodeId, Override};
use rustix::fs::{RawDir, SeekFrom, seek};
use rustix::io::{Errno, Result};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

/// The buffer of one `getdents64` call, in bytes. An entry takes at most 280 bytes.
const READ_BYTES: usize = 8 << 10;

/// The cookies of positions outside the original folder. The kernel's own are file offsets, which are never negative.
const OWN_COOKIE: u64 = 1 << 63;
const AFTER_DOT: u64 = OWN_COOKIE;
const AFTER_DOTS: u64 = OWN_COOKIE + 1;
const FIRST_MADE: u64 = OWN_COOKIE + 2;

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEntry {
    /// The name, which may be `.` or `..`.
    pub name: OsString,
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The inode of the entry; of `..` in a root, that of the root.
    pub inode: u64,
    /// The cookie from which a listing continues after this entry.
    pub next: u64,
}

/// An open listing of one folder.
#[derive(Debug)]
pub struct Listing {
    folder: NodeId,
    /// Keeps the folder's node.
    _pin: Arc<()>,
    /// The original folder, with a position of its own.
    lower: Option<OwnedFd>,
    stage: Stage,
}

/// The part that a listing has reached.
#[derive(Debug)]
enum Stage {
    Dot,
    DotDot,
    /// The names of the original folder, of which some have been read.
    Lower(VecDeque<ListedEntry>),
    /// The entries that only the program made, by position.
    Made(VecDeque<(u64, Name)>),
}

impl View {
    /// Lists a folder from the cookie `start` of an earlier entry; 0 is the beginning.
    ///
    /// # Errors
    /// If the folder may not be read, or the kernel rejects the cookie.
    pub fn list(&mut self, folder: NodeId, start: u64) -> Result<Listing> {
        let node = self.tree.node(folder)?;
        if node.entry_kind() != EntryKind::Folder {
            return Err(Errno::NOTDIR);
        }
        let original = self.tree.lower_folder(folder)?;
        let lower = original.map(|handle| open_to_list(&handle, OsStr::new("."))).transpose()?;
        let stage = match start {
            0 => Stage::Dot,
            AFTER_DOT => Stage::DotDot,
            AFTER_DOTS => Stage::Lower(VecDeque::new()),
            FIRST_MADE.. => Stage::made(&self.tree, folder, start.saturating_sub(FIRST_MADE))?,
            cookie => {
                match &lower {
                    Some(lower) => drop(seek(lower, SeekFrom::Start(cookie))?),
                    None => return Err(Errno::INVAL),
                }
                Stage::Lower(VecDeque::new())
            }
        };
        let pin = self.tree.handles.pin(folder);
        Ok(Listing { folder, _pin: pin, lower, stage })
    }
}

impl Stage {
    /// The entries that only the program made, from a position on.
    fn made(tree: &Tree, folder: NodeId, start: u64) -> Result<Self> {
        let entries = tree.folder(folder)?.entries().into_iter().flatten();
        let mut made = entries
            .filter_map(|(name, _)| {
                let position = tree.table.position(folder, name)?;
                (position >= start).then(|| (position, name.clone()))
            })
            .collect::<Vec<_>>();
        made.sort_unstable();
        Ok(Self::Made(made.into()))
    }
}

impl Listing {
    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// As `getdents64`: `ENOENT` in a folder that was removed; `EOVERFLOW` if a file system has cookies that are no
    /// offsets.
    pub fn next(&mut self, view: &View) -> Result<Option<ListedEntry>> {
        let tree = &view.tree;
        tree.folder(self.folder)?;
        loop {
            match &mut self.stage {
                Stage::Dot => {
                    self.stage = Stage::DotDot;
                    return Ok(Some(self.own_entry(tree)));
                }
                Stage::DotDot => {
                    self.stage = Stage::Lower(VecDeque::new());
                    return Ok(Some(self.parent_entry(tree)));
                }
                Stage::Lower(read) => {
                    let next = match (read.pop_front(), &self.lower) {
                        (Some(entry), Some(lower)) => {
                            if let Some(entry) = self.merge(tree, lower, entry)? {
                                return Ok(Some(entry));
                            }
                            continue;
                        }
                        (None, Some(lower)) => read_more(lower)?,
                        (_, None) => VecDeque::new(),
                    };
                    self.stage =
                        if next.is_empty() { Stage::made(tree, self.folder, 0)? } else { Stage::Lower(next) };
                }
                Stage::Made(made) => {
                    let Some((position, name)) = made.pop_front() else { return Ok(None) };
                    let entry = self.made_entry(tree, (position, &name))?;
                    if entry.is_some() {
                        return Ok(entry);
                    }
                }
            }
        }
    }

    fn own_entry(&self, tree: &Tree) -> ListedEntry {
        let inode = tree.table.identity(self.folder).inode;
        ListedEntry { name: ".".into(), kind: EntryKind::Folder, inode, next: AFTER_DOT }
    }

    fn parent_entry(&self, tree: &Tree) -> ListedEntry {
        let inode = tree.table.identity(tree.table.parent(self.folder).unwrap_or(self.folder)).inode;
        ListedEntry { name: "..".into(), kind: EntryKind::Folder, inode, next: AFTER_DOTS }
    }

    /// The entry that a name of the original folder stands for; `None` if it is removed.
    fn merge(&self, tree: &Tree, lower: &OwnedFd, entry: ListedEntry) -> Result<Option<ListedEntry>> {
        let Ok(name) = Name::new(&entry.name) else { return Ok(None) };
        if is_stash_name(entry.name.as_bytes()) {
            return Ok(None);
        }
        match tree.folder(self.folder)?.entries().and_then(|entries| entries.get(&name)) {
            Some(Override::Removed) => Ok(None),
            Some(Override::Node(id)) => {
                let kind = tree.node(*id)?.entry_kind();
                Ok(Some(ListedEntry { kind, inode: tree.table.identity(*id).inode, ..entry }))
            }
            None if entry.kind == EntryKind::Other => {
                // Some file systems do not store kinds with names. Of an entry that has vanished it stays unknown.
                let kind = stat_at(lower, name.as_os_str()).map_or(entry.kind, |stat| kind_of(&stat));
                Ok(Some(ListedEntry { kind, ..entry }))
            }
            None => Ok(Some(entry)),
        }
    }

    /// An entry that only the program made, if it still exists.
    fn made_entry(&self, tree: &Tree, (position, name): (u64, &Name)) -> Result<Option<ListedEntry>> {
        let entry = tree.folder(self.folder)?.entries().and_then(|entries| entries.get(name));
        let id = match entry {
            Some(Override::Node(id)) if tree.table.position(self.folder, name) == Some(position) => *id,
            Some(Override::Node(_) | Override::Removed) | None => return Ok(None),
        };
        let is_listed_below = |lower: &OwnedFd| stat_at(lower, name.as_os_str()).is_ok();
        if tree.table.is_in_place(id) || self.lower.as_ref().is_some_and(is_listed_below) {
            return Ok(None);
        }
        Ok(Some(ListedEntry {
            name: name.as_os_str().to_owned(),
            kind: tree.node(id)?.entry_kind(),
            inode: tree.table.identity(id).inode,
            next: FIRST_MADE.saturating_add(position).saturating_add(1),
        }))
    }
}

/// Calls `getdents64` once.
fn read_more(folder: &OwnedFd) -> Result<VecDeque<ListedEntry>> {
    let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
    let mut raw_entries = RawDir::new(folder, &mut buffer);
    let mut entries = VecDeque::new();
    while let Some(entry) = raw_entries.next() {
        let entry = entry?;
        let next = entry.next_entry_cookie();
        if next & OWN_COOKIE != 0 {
            return Err(Errno::OVERFLOW);
        }
        let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
        // An unknown kind is examined later, like all that are no file, folder or link.
        let kind = kind_of_type(entry.file_type());
        entries.push_back(ListedEntry { name, kind, inode: entry.ino(), next });
        if raw_entries.is_buffer_empty() {
            break;
        }
    }
    Ok(entries)
}
