//! The reasons for which a journal cannot be opened, or written.

use a2g_types::error_chain::BoxedError;
use rusqlite::ErrorCode;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The reason for which a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process writes it.
    #[error(
        "the journal `{0}` is in use by another executor, which may know it under another name: stop that one, or give this \
         one a `journal.path` of its own"
    )]
    InUse(PathBuf),
    /// The journal does not exist.
    #[error("there is no journal `{0}`: it is made when the executor first serves")]
    Missing(PathBuf),
    /// The journal does not exist, but did before.
    #[error(
        "there is no journal `{path}`, but `{sign}` says that there was one: put it back, or restore a backup with \
         `a2g-executor journal restore`. What ran under it could run again under a new one; only if that is acceptable, begin \
         one with `a2g-executor journal init` or `serve --new-journal`"
    )]
    Vanished {
        /// The path at which it should be.
        path: PathBuf,
        /// The file that shows it.
        sign: PathBuf,
    },
    /// The journal exists already.
    #[error("there is a journal `{0}` already: leave `--new-journal` out, or give another `journal.path`")]
    Exists(PathBuf),
    /// Other users may read or write it.
    #[error(
        "the journal `{path}` has mode {mode:04o}, so that others may read or change it: `chmod 600 '{path}'`"
    )]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file has more than one name.
    #[error(
        "the journal `{path}` has {names} names (hard links), and SQLite keeps a log of its own for each: remove the others"
    )]
    Names {
        /// The file.
        path: PathBuf,
        /// The number of its names.
        names: u64,
    },
    /// The journal has a format before the previous one.
    #[error(
        "the journal `{path}` has format {format}, which this version does not read: keep it for the record, and begin \
         another with `journal.path`; an executor of its own version can still list and export it"
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: i64,
    },
    /// The journal has the previous format, which only `serve` converts.
    #[error(
        "the journal `{path}` has format {format}: `serve` converts it at its next start, and keeps the old file beside it"
    )]
    Unconverted {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: i64,
    },
    /// The journal was written by a later version.
    #[error(
        "the journal `{path}` has format {format} of a later version of the executor: serve it with that one"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: i64,
    },
    /// The file is not a journal.
    #[error("`{0}` is not a journal of the executor: give another `journal.path`")]
    NotAJournal(PathBuf),
    /// Its content differs from the content that was written.
    #[error(
        "the journal `{path}` is damaged: {found}. It is left as it is. `a2g-executor journal verify` says what holds; \
         `a2g-executor journal restore --replace FILE` puts a backup in its place and keeps this one aside"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first thing that was found.
        found: String,
    },
    /// The journal ends before its marker.
    #[error(
        "the journal `{path}` lacks its last records: it ends at {last}, and `{path}.lock` says that there was a record \
         {marked}. An older copy was put there, or `{path}-wal` was removed: put back what belongs there. What the lost \
         records say would be forgotten, and could run again; only if that may be, remove `{path}.lock`"
    )]
    Behind {
        /// The file.
        path: PathBuf,
        /// Its last record.
        last: i64,
        /// The last record according to the marker.
        marked: i64,
    },
    /// There is no room on its disk.
    #[error("there is no room for the journal `{path}` on its disk: make room, and start again")]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// The error of the system or SQLite.
        source: BoxedError,
    },
    /// An error of the system or SQLite, or a row that cannot be parsed.
    #[error("the journal `{path}` cannot be opened")]
    Failed {
        /// The file.
        path: PathBuf,
        /// The error.
        source: BoxedError,
    },
}

impl OpenError {
    pub(super) fn other(path: &Path, error: impl Into<BoxedError>) -> Self {
        Self::Failed { path: path.to_owned(), source: error.into() }
    }

    pub(super) fn from_io(path: &Path, error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::StorageFull {
            Self::NoRoom { path: path.to_owned(), source: error.into() }
        } else {
            Self::other(path, error)
        }
    }

    /// Turns SQLite's error about a journal into an [`OpenError`].
    pub(super) fn from_sqlite(path: &Path) -> impl Fn(rusqlite::Error) -> Self + use<> {
        let path = path.to_owned();
        move |error| {
            let path = path.clone();
            match error.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => Self::NoRoom { path, source: error.into() },
                // SQLite cannot create its files beside the journal on a full disk.
                Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) if has_no_room(&path) => {
                    Self::NoRoom { path, source: error.into() }
                }
                Some(ErrorCode::NotADatabase) => Self::NotAJournal(path),
                Some(ErrorCode::DatabaseCorrupt) => Self::Damaged { path, found: error.to_string() },
                Some(_) | None => Self::other(&path, error),
            }
        }
    }
}

/// `true` if less space is free beside a file than SQLite needs to open it.
fn has_no_room(path: &Path) -> bool {
    const NEEDED: u64 = 1 << 20;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    rustix::fs::statvfs(folder).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < NEEDED)
}

/// The reason for which this process can no longer read or write its journal. It is shared because every waiting caller
/// receives it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BrokenError {
    /// SQLite could not write. After a failed fsync the kernel may have dropped the pages, so that another attempt
    /// would only seem to succeed.
    #[error(
        "the journal cannot be written any more: what had started is reported when the executor starts again"
    )]
    Write(#[source] Arc<rusqlite::Error>),
    /// A record cannot be represented as JSON.
    #[error("a record of the journal cannot be made")]
    Record(#[source] Arc<serde_json::Error>),
    /// SQLite could not read, or a row has another form than the one that was written.
    #[error(transparent)]
    Read(Arc<dyn std::error::Error + Send + Sync>),
    /// The files are not those that were opened.
    #[error(transparent)]
    Files(Arc<ReplacedError>),
    /// The records are not those that this process wrote.
    #[error("the journal was changed by another program: {0}")]
    Changed(String),
    /// A contradiction within the journal.
    #[error("{0}")]
    State(&'static str),
}

impl BrokenError {
    /// The reason made from an error of SQLite, or of a row.
    pub(super) fn from_read(error: impl Into<BoxedError>) -> Self {
        Self::Read(error.into().into())
    }
}

impl From<&'static str> for BrokenError {
    fn from(contradiction: &'static str) -> Self {
        Self::State(contradiction)
    }
}

/// The journal's files are not those that this process opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "the journal `{}` is not what this executor opened: {change}; nothing can be recorded there any more, so it stops",
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

/// The reason for which nothing was written.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum WriteError {
    /// There is no room, or the file is locked: a later attempt may succeed.
    #[error(transparent)]
    NoRoom(#[from] NoRoomError),
    /// The content of the disk is no longer known.
    #[error(transparent)]
    Broken(#[from] BrokenError),
}

/// There is no room, or another program holds the file.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum NoRoomError {
    /// SQLite reported it.
    #[error(transparent)]
    Sqlite(Arc<rusqlite::Error>),
    /// There was no room a moment ago, and the earlier entries go first.
    #[error("no room")]
    Earlier,
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            // A transaction that ends like this is rolled back, so that another attempt is safe; after any other error
            // nobody knows what is on the disk.
            Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                NoRoomError::Sqlite(error.into()).into()
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
pub(super) fn changed_error(what: &str) -> WriteError {
    BrokenError::Changed(what.to_owned()).into()
}
