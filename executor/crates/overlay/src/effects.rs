//! The list of changes that a table describes, which people see and a commit applies.
//!
//! A path that is deleted, read or moved away is a path of the originals; any other path is where the entry is after the
//! commit. An entry inside a moved folder moves with it, so only its own changes are listed.

mod collect;
mod digest;

use crate::commit::Conflict;
use crate::current::CurrentRoots;
use crate::hash::Sha256;
use crate::lower::LowerRoot;
use crate::name::EntryPath;
use crate::seen::{FileTime, Seen};
use crate::table::Table;
use crate::upper::Upper;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// The maximum number of folders in one another. Deeper changes cannot be committed.
pub const MAX_DEPTH: usize = 256;

/// The maximum memory of the paths of all changes, in bytes.
pub const MAX_PATHS_BYTES: usize = 64 << 20;

/// All that a commit does, and all that it relies on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effects {
    /// The changes: deletions, moves, then all others; each group in the order of its paths.
    pub changes: Vec<Change>,
    /// The originals that the program read, changed, moved or removed, in the order of their paths, each as it was when
    /// the program first touched it.
    pub reads: Vec<Read>,
}

/// An original that the program touched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// Its place.
    pub path: EntryPath,
    /// Its state then.
    pub seen: Seen,
}

/// One change of an entry. An entry that was moved may have another one, of its attributes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The entry. See the module.
    pub path: EntryPath,
    /// Its change.
    pub kind: ChangeKind,
}

/// The kind of change of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ChangeKind {
    /// The original is removed. Each entry of a removed folder has a change of its own.
    Deleted {
        /// Its state.
        before: Seen,
        /// The hash of its content; `None` for anything but a file, for one that may not be read, and where hashing it would
        /// exceed [`EffectsLimits::max_hashed_bytes`].
        content: Option<Sha256>,
    },
    /// The original `from` is moved here.
    Renamed {
        /// Its place before.
        from: EntryPath,
        /// Its state.
        before: Seen,
        /// Its new content, if that changes too.
        after: Option<NewContent>,
    },
    /// An entry is made.
    Created {
        /// The entry.
        new: NewEntry,
    },
    /// The content of a file changes, and perhaps its mode and time.
    Changed {
        /// The state of the original.
        before: Seen,
        /// The hash of its content.
        content_before: Sha256,
        /// The new content.
        new: NewContent,
    },
    /// Only attributes change.
    Attributes {
        /// The state of the original.
        before: Seen,
        /// The new permissions.
        mode: Option<u32>,
        /// The new time of the last change of the content.
        mtime: Option<FileTime>,
    },
}

/// An entry that is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NewEntry {
    /// A file.
    File(NewContent),
    /// A folder. Its entries are changes of their own.
    Folder {
        /// The permissions.
        mode: u32,
        /// The time that the program has set; `None` if it has set none.
        mtime: Option<FileTime>,
    },
    /// A symbolic link.
    Link {
        /// Its target.
        #[serde(with = "target_text")]
        target: OsString,
        /// The time that the program has set; `None` if it has set none.
        mtime: Option<FileTime>,
    },
}

/// The new content of a file, with its attributes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewContent {
    /// The number of the file in the upper folder.
    pub number: u64,
    /// The size in bytes.
    pub size: u64,
    /// The hash of the content.
    pub sha256: Sha256,
    /// The permissions, without set-user-id, set-group-id and sticky.
    pub mode: u32,
    /// The time of the last change of the content.
    pub mtime: FileTime,
}

/// The bounds of the work for one list of changes.
#[derive(Debug, Clone, Copy)]
pub struct EffectsLimits {
    /// The maximum number of changes.
    pub max_changes: usize,
    /// The maximum size of all new contents and of the originals that they replace, in bytes, which are all read.
    pub max_hashed_bytes: u64,
}

/// The reason why there is no list of changes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EffectsError {
    /// Originals have changed since the program saw them.
    #[error("{} originals have changed since the program read them: run it again", .0.len())]
    Conflicts(Vec<Conflict>),
    /// There are more changes than allowed.
    #[error("the program made more than {max} changes, the limit of a list: change fewer in one run")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// The contents are larger than allowed.
    #[error("the changed contents have more than {max} bytes, the limit of a list: change less in one run")]
    TooLarge {
        /// The limit.
        max: u64,
    },
    /// The paths are longer than allowed.
    #[error(
        "the paths of the changes have more than {MAX_PATHS_BYTES} bytes, the limit of a list: change less in one run"
    )]
    TooLong,
    /// A path has more names than allowed.
    #[error(
        "a changed entry lies deeper than {MAX_DEPTH} folders, the limit of a commit: change none below that"
    )]
    TooDeep,
    /// A change concerns a root that may only be read.
    #[error("a change concerns a folder that may only be read")]
    ReadOnly(EntryPath),
    /// A file of the upper folder is not what the table says.
    #[error("the staged content {number} is missing or not a regular file ({source}): run it again")]
    Staged {
        /// The number of the file.
        number: u64,
        /// The reason.
        source: Errno,
    },
    /// An original cannot be read.
    #[error("an original cannot be read: {source}")]
    Original {
        /// Its place.
        path: EntryPath,
        /// The reason.
        source: Errno,
    },
}

impl Effects {
    /// The changes that a table describes. The contents of all new files and of the originals that they replace are read.
    ///
    /// # Errors
    /// [`EffectsError`]; nothing was changed.
    pub fn of(
        table: &Table,
        roots: &[LowerRoot],
        upper: &Upper,
        limits: EffectsLimits,
    ) -> Result<Self, EffectsError> {
        let current = CurrentRoots::new(roots)
            .map_err(|source| EffectsError::Original { path: EntryPath::of_root(0), source })?;
        collect::collect(table, &current, upper, limits)
    }

    /// The SHA-256 of the canonical form, of which everything is a part: who approved this value approved these changes
    /// of these originals.
    #[must_use]
    pub fn digest(&self) -> Sha256 {
        digest::digest(self)
    }

    /// `true` if nothing changes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// All paths that a commit changes, of originals and of new places: each must lie in what the program may change.
    ///
    /// A moved folder takes its entries along, which are not listed.
    pub fn changed_paths(&self) -> impl Iterator<Item = &EntryPath> {
        self.changes.iter().flat_map(|change| {
            let from = match &change.kind {
                ChangeKind::Renamed { from, .. } => Some(from),
                ChangeKind::Deleted { .. }
                | ChangeKind::Created { .. }
                | ChangeKind::Changed { .. }
                | ChangeKind::Attributes { .. } => None,
            };
            from.into_iter().chain([&change.path])
        })
    }
}

/// The target of a link as text, in the same form as names.
mod target_text {
    use crate::name::{escape, unescape};
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

    pub(super) fn serialize<S: Serializer>(target: &OsStr, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&escape(target.as_bytes()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OsString, D::Error> {
        let text = String::deserialize(deserializer)?;
        let target = unescape(&text).map(OsString::from_vec);
        target.ok_or_else(|| D::Error::custom("the target of a link is not escaped as it should be"))
    }
}
