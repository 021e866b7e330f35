//! Effects before approval: the file changes of a program are kept apart from the originals, shown to people, and then
//! committed or discarded as a whole.
//!
//! A [`View`] answers a program's file calls. It reads the originals through opened folders ([`LowerRoot`]) and never
//! writes them: contents that the program writes are files of the private [`Upper`] folder, and all else that it changes
//! is in the [`Table`]. Links are never followed, and every path is a folder that is open and one [`Name`] in it, so that
//! nothing outside the roots can be reached.
//!
//! This crate knows files only: no tool, no protocol, no asynchronous code. It is for Linux.

mod commit;
mod current;
mod diff;
mod effects;
mod hash;
mod lower;
mod member;
mod name;
mod seen;
mod table;
mod upper;
mod view;

pub use commit::{
    CommitError, Conflict, ConflictKind, Disk, Folders, Recovered, commit, discard, forget, is_stash_name,
    recover, size_of, undo,
};
pub use diff::{
    ByteRange, DiffBudget, Difference, Hunk, Line, MAX_BYTE_RANGES, MAX_COMPARED_BYTES, MAX_TEXT_BYTES,
    MAX_TEXT_LINES,
};
pub use effects::{
    Change, ChangeKind, Effects, EffectsError, EffectsLimits, MAX_DEPTH, MAX_PATHS_BYTES, NewContent,
    NewEntry, Read,
};
pub use hash::Sha256;
pub use lower::{Access, LowerRoot};
pub use member::{Act, MemberError};
pub use name::{EntryPath, MAX_NAME_BYTES, Name, NameError};
pub use seen::{EntryKind, FileTime, Identity, MODE_BITS, Seen};
pub use table::{MAX_TABLE_BYTES, NodeId, Table, TableError};
pub use upper::{EarlierFolder, Upper};
pub use view::{Create, How, ListedEntry, Listing, NewTime, OpenFile, Stat, UpperBudget, View, WriteMark};
