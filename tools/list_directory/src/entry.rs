//! One line of a listing.

use std::fs::{FileType, Metadata};
use std::path::Path;
use std::time::UNIX_EPOCH;

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{schemars, serde};

/// Type of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(crate = "serde", rename_all = "snake_case")]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    Other,
}

impl From<FileType> for Kind {
    fn from(file_type: FileType) -> Self {
        if file_type.is_file() {
            Self::File
        } else if file_type.is_dir() {
            Self::Directory
        } else if file_type.is_symlink() {
            Self::Symlink
        } else {
            Self::Other
        }
    }
}

/// A file, directory or link below the listed directory.
#[derive(Debug, Serialize, schemars::JsonSchema)]
#[serde(crate = "serde")]
pub(crate) struct Entry {
    /// Its path, below the listed one, as other tools take it.
    path: String,
    /// Its path relative to the listed directory.
    relative: String,
    /// Links are listed and not followed.
    kind: Kind,
    // The size of a directory means something else on each filesystem.
    /// In bytes, of files only.
    size: Option<u64>,
    /// In whole seconds since 1970.
    modified: Option<u64>,
}

impl Entry {
    /// The grant may allow to see a name but not to look at what it stands for; the entry then says
    /// less.
    pub(crate) fn new(path: &Path, relative: &Path, kind: Kind, metadata: Option<&Metadata>) -> Self {
        Self {
            path: path.to_string_lossy().into_owned(),
            relative: relative.to_string_lossy().into_owned(),
            kind,
            size: metadata.filter(|_| kind == Kind::File).map(Metadata::len),
            modified: metadata.and_then(modified_seconds),
        }
    }
}

fn modified_seconds(metadata: &Metadata) -> Option<u64> {
    let modified = metadata.modified().ok()?;
    let since = modified.duration_since(UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}
