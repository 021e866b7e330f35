//! The reasons why a journal cannot be opened, read or written.

use super::store::FORMAT;
use a2g_types::error_chain::BoxedError;
use rusqlite::ErrorCode;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The reason why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has locked the journal.
    #[error(
        "the journal `{0}` is in use by another executor, perhaps under another name: stop that executor, or name another \
         file (`journal.path`, or `--journal` of `mcp`)"
    )]
    InUse(PathBuf),
    /// The caller of `Journal::open_with_ends` could not find out how the interrupted runs ended.
    #[error(transparent)]
    Ends(BoxedError),
    /// The journal does not exist.
    #[error("there is no journal `{0}`: `serve` and `mcp` create it")]
    Missing(PathBuf),
    /// The journal does not exist, but another file shows that it did.
    #[error(
        "there is no journal `{path}`, but `{sign}` says that there was one: put it back, or restore a backup with \
         `a2g-executor journal restore`. With a new journal, intents that already ran could run again; if that is \
         acceptable, create one with `a2g-executor journal init` or `serve --new-journal`"
    )]
    Vanished {
        /// The path of the missing journal.
        path: PathBuf,
        /// The file that shows that there was a journal.
        sign: PathBuf,
    },
    /// The journal already exists.
    #[error("the journal `{0}` already exists: omit `--new-journal`, or set another `journal.path`")]
    Exists(PathBuf),
    /// Other users may access the file.
    #[error(
        "other users may access the journal `{path}`, which has mode {mode:04o}: run `chmod 600 '{path}'`"
    )]
    Mode {
        /// The path of the journal.
        path: PathBuf,
        /// The permission bits of the file.
        mode: u32,
    },
    /// The file has more than one name.
    #[error(
        "the journal `{path}` has {names} names (hard links), but SQLite would use another log for each: remove all but one"
    )]
    Names {
        /// The path of the journal.
        path: PathBuf,
        /// The number of hard links.
        names: u64,
    },
    /// The journal was written by a version of the executor that has another format.
    #[error(
        "the journal `{path}` has format {format}, and this version reads only format {FORMAT}: use the version of the \
         executor that wrote it, or archive the file and begin another with `journal.path`"
    )]
    Format {
        /// The path of the journal.
        path: PathBuf,
        /// The format version in the file.
        format: i64,
    },
    /// The file is not a journal.
    #[error("`{0}` is not a journal of the executor: set another `journal.path`")]
    NotAJournal(PathBuf),
    /// The content differs from the content that was written.
    #[error(
        "the journal `{path}` is damaged: {found}. It was not changed. `a2g-executor journal verify` checks all of it; \
         `a2g-executor journal restore --replace FILE` replaces it by a backup and keeps it under another name"
    )]
    Damaged {
        /// The path of the journal.
        path: PathBuf,
        /// The first finding.
        found: String,
    },
    /// The journal ends before its marker.
    #[error(
        "the journal `{path}` lacks its last records: it ends at record {last}, but `{path}.lock` names record {marked}. \
         It was replaced by an older copy, or `{path}-wal` was removed: put the right files back. Without the lost \
         records, their intents could run again; if that is acceptable, remove `{path}.lock`"
    )]
    Behind {
        /// The path of the journal.
        path: PathBuf,
        /// The number of its last record.
        last: i64,
        /// The number of the last record according to the marker.
        marked: i64,
    },
    /// The disk is full.
    #[error("there is no space for the journal `{path}` on its disk: free some, and start again")]
    NoSpace {
        /// The path of the journal.
        path: PathBuf,
        /// The error of the system or SQLite.
        source: BoxedError,
    },
    /// An error of the system or SQLite, or a row that cannot be parsed.
    #[error("the journal `{path}` cannot be opened")]
    Failed {
        /// The path of the journal.
        path: PathBuf,
        /// The error of the system or SQLite, or of the row.
        source: BoxedError,
    },
}

impl OpenError {
    pub(super) fn other(path: &Path, error: impl Into<BoxedError>) -> Self {
        Self::Failed { path: path.to_owned(), source: error.into() }
    }

    pub(super) fn from_io(path: &Path, error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::StorageFull {
            Self::NoSpace { path: path.to_owned(), source: error.into() }
        } else {
            Self::other(path, error)
        }
    }

    /// Maps SQLite's error about a journal to an [`OpenError`].
    pub(super) fn from_sqlite(path: &Path) -> impl Fn(rusqlite::Error) -> Self + use<> {
        let path = path.to_owned();
        move |error| {
            let path = path.clone();
            match error.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => Self::NoSpace { path, source: error.into() },
                // On a full disk, SQLite reports these when it cannot create its files beside the journal.
                Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) if is_disk_full(&path) => {
                    Self::NoSpace { path, source: error.into() }
                }
                Some(ErrorCode::NotADatabase) => Self::NotAJournal(path),
                Some(ErrorCode::DatabaseCorrupt) => Self::Damaged { path, found: error.to_string() },
                Some(_) | None => Self::other(&path, error),
            }
        }
    }
}

/// `true` if the file's disk has less space than SQLite needs to open the file.
fn is_disk_full(path: &Path) -> bool {
    const MIN_FREE_BYTES: u64 = 1 << 20;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    rustix::fs::statvfs(folder).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < MIN_FREE_BYTES)
}

/// The reason why this process can no longer read or write its journal. It is cheap to clone, because every waiting
/// caller gets one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BrokenError {
    /// SQLite could not write. A write is not retried: after a failed fsync the kernel may have dropped the pages, so a
    /// later success would not mean that they are on the disk.
    #[error(
        "the journal cannot be written any more: the next start of the executor reports the runs that had started"
    )]
    Write(#[source] Arc<rusqlite::Error>),
    /// A record has no JSON form.
    #[error("a record of the journal cannot be written as JSON")]
    Record(#[source] Arc<serde_json::Error>),
    /// SQLite could not read, or a row has a form that this version does not write.
    #[error(transparent)]
    Read(Arc<dyn std::error::Error + Send + Sync>),
    /// The files are not the ones that were opened.
    #[error(transparent)]
    Files(Arc<ReplacedError>),
    /// The records are not the ones that this process wrote.
    #[error("the journal was changed by another program: {0}")]
    Changed(String),
    /// A contradiction within the journal.
    #[error("{0}")]
    State(&'static str),
}

impl BrokenError {
    /// The reason for an error of SQLite or of a row.
    pub(super) fn from_read(error: impl Into<BoxedError>) -> Self {
        Self::Read(error.into().into())
    }
}

impl From<&'static str> for BrokenError {
    fn from(contradiction: &'static str) -> Self {
        Self::State(contradiction)
    }
}

/// The journal's files are not the ones that this process opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "the journal `{}` is not what this executor opened: {change}; the executor stops because it can record nothing there",
    path.display()
)]
pub struct ReplacedError {
    /// The journal.
    pub(super) path: PathBuf,
    /// The difference.
    pub(super) change: String,
    /// The system's error, if the files cannot be inspected.
    pub(super) source: Option<std::io::Error>,
}

/// The reason why nothing was written.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum WriteError {
    /// The disk is full, or another program has locked the file. A later attempt may succeed.
    #[error(transparent)]
    NoSpace(#[from] NoSpaceError),
    /// The content of the file is no longer known.
    #[error(transparent)]
    Broken(#[from] BrokenError),
}

/// The disk is full, or another program has locked the file.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum NoSpaceError {
    /// SQLite's error.
    #[error(transparent)]
    Sqlite(Arc<rusqlite::Error>),
    /// Earlier entries already wait for space.
    #[error("no space")]
    Earlier,
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            // SQLite rolls back a transaction that ends like this, so a retry is safe. After any other error, the
            // content of the file is not known.
            Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                NoSpaceError::Sqlite(error.into()).into()
            }
            Some(_) | None => BrokenError::Write(error.into()).into(),
        }
    }
}

impl From<serde_json::Error> for WriteError {
    fn from(error: serde_json::Error) -> Self {
        BrokenError::Record(error.into()).into()
    }
}

impl From<ReplacedError> for WriteError {
    fn from(error: ReplacedError) -> Self {
        BrokenError::Files(error.into()).into()
    }
}

/// The error of a journal that another program has changed.
pub(super) fn changed_error(change: &str) -> WriteError {
    BrokenError::Changed(change.to_owned()).into()
}
