//! Copies of a journal: backups of a journal that may be in use, and their restoration.
//!
//! SQLite makes a copy of one snapshot. The copy is checked as a whole, and gets its name when it is on the disk.

use super::error::OpenError;
use super::files::{
    Files, IfMissing, beside, boot, draft, free_name, others, private, put_aside, rename_new, resolved, take,
    write_mark,
};
use super::log::Tip;
use super::store::{Reader, create, known_format};
use super::verify::{Finding, verify};
use crate::error_chain::BoxedError;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The pause between attempts to lock a file that another program holds, and their number.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
const BUSY_TRIES: u32 = 50;

/// The reason for which there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// An error of one of the two journals.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A file has the name already.
    #[error("there is a file `{0}` already: give another name")]
    Exists(PathBuf),
    /// There is a journal at the destination.
    #[error(
        "there is a journal `{0}` already: `--replace` puts the backup in its place and keeps it aside. What ran since the \
         backup was made would be forgotten, and could run again"
    )]
    Journal(PathBuf),
    /// The copy failed its check.
    #[error("`{path}` does not hold, so that nothing was changed: {finding}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The finding of the check.
        finding: Finding,
    },
    /// An error of the system or SQLite.
    #[error("`{path}` cannot be read or written")]
    Failed {
        /// The file.
        path: PathBuf,
        /// The error of the system or SQLite.
        source: BoxedError,
    },
}

impl CopyError {
    fn failed(path: &Path, error: impl Into<BoxedError>) -> Self {
        Self::Failed { path: path.to_owned(), source: error.into() }
    }
}

/// A copy that was made.
#[derive(Debug)]
pub struct Copied {
    /// The file.
    pub path: PathBuf,
    /// The finding of the check, with the checkpoint.
    pub finding: Finding,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A restored journal.
#[derive(Debug)]
pub struct Restored {
    /// The journal.
    pub copy: Copied,
    /// The previous journal, under its new name.
    pub kept: Option<PathBuf>,
}

/// Creates a journal that does not exist, even if other files show that there was one.
///
/// # Errors
/// [`OpenError::Exists`], and the errors of the folder or the disk.
pub fn init(journal: &Path) -> Result<(), OpenError> {
    let files = Files::open(journal, IfMissing::CreateAnyway, create)?;
    files.mark(0, &super::chain::NOTHING);
    Ok(())
}

/// Copies a journal to the new file `to`, with mode 0600. A server may write the journal meanwhile.
///
/// # Errors
/// [`CopyError`]; there is then nothing at `to`.
pub fn back_up(journal: &Path, to: &Path) -> Result<Copied, CopyError> {
    if to.symlink_metadata().is_ok() {
        return Err(CopyError::Exists(to.to_owned()));
    }
    let source = Reader::open(journal)?;
    let part = beside(to, ".part");
    let finding = copied(source.connection(), &part).and_then(|finding| {
        rename_new(&part, to).map_err(|error| CopyError::failed(to, error))?;
        Ok(finding)
    });
    remove(&part);
    done(to, finding?)
}

fn done(path: &Path, finding: Finding) -> Result<Copied, CopyError> {
    let is = path.metadata().map_err(|error| CopyError::failed(path, error))?;
    Ok(Copied { path: path.to_owned(), finding, bytes: is.len() })
}

/// Replaces a journal that no server holds by the backup `from`. With `replace`, an existing journal is preserved under
/// another name.
///
/// # Errors
/// [`CopyError`]; an existing journal is then still there.
pub fn restore(from: &Path, journal: &Path, replace: bool) -> Result<Restored, CopyError> {
    let failed = |error: BoxedError| CopyError::failed(journal, error);
    let source = Reader::open(from)?;
    let real = resolved(journal).map_err(|error| failed(error.into()))?;
    let is_there = real.exists();
    if is_there && !replace {
        return Err(CopyError::Journal(journal.to_owned()));
    }
    let (_journal, marker) = locks(&real, journal)?;
    let draft = draft(&real);
    let restored = copied(source.connection(), &draft).and_then(|finding| {
        let tip = Connection::open(&draft)
            .and_then(|draft| Tip::read(&draft))
            .map_err(|error| failed(error.into()))?;
        let kept = if is_there { Some(aside(&real)?) } else { None };
        put_aside(&real).map_err(|error| failed(error.into()))?;
        marker.set_len(0).map_err(|error| failed(error.into()))?;
        rename_new(&draft, &real).map_err(|error| failed(error.into()))?;
        write_mark(&marker, tip.number, &tip.hash, &boot()).map_err(|error| failed(error.into()))?;
        Ok((finding, kept))
    });
    remove(&draft);
    let (finding, kept) = restored?;
    Ok(Restored { copy: done(journal, finding)?, kept })
}

/// Takes the locks of a server, so that none starts meanwhile.
fn locks(real: &Path, journal: &Path) -> Result<(Option<File>, File), CopyError> {
    let failed = |error: BoxedError| CopyError::failed(journal, error);
    let open = |path: &Path| File::options().read(true).write(true).open(path);
    let database = real.exists().then(|| open(real)).transpose().map_err(|error| failed(error.into()))?;
    database.iter().try_for_each(|database| take(database, journal))?;
    let marker = private(&beside(real, ".lock")).map_err(|error| failed(error.into()))?;
    take(&marker, journal)?;
    Ok((database, marker))
}

/// Renames a journal and its log, and returns the journal's new path.
fn aside(real: &Path) -> Result<PathBuf, CopyError> {
    let failed = |error: BoxedError| CopyError::failed(real, error);
    let kept = free_name(real, "replaced");
    rename_new(real, &kept).map_err(|error| failed(error.into()))?;
    for (old, new) in others(real).iter().zip(others(&kept)) {
        if old.exists() {
            rename_new(old, &new).map_err(|error| failed(error.into()))?;
        }
    }
    Ok(kept)
}

/// Copies a snapshot of a journal into a new file, and checks the copy.
fn copied(source: &Connection, to: &Path) -> Result<Finding, CopyError> {
    let failed = |error: BoxedError| CopyError::failed(to, error);
    remove(to);
    let made = File::options().write(true).create_new(true).mode(0o600).open(to);
    made.map_err(|error| failed(error.into()))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut copy = Connection::open_with_flags(to, flags).map_err(|error| failed(error.into()))?;
    all_pages(source, &mut copy).map_err(failed)?;
    // A single file, without a log beside it.
    copy.pragma_update(None, "journal_mode", "DELETE").map_err(|error| failed(error.into()))?;
    known_format(&copy, to)?;
    let finding = verify(&copy, to, None, |_| ()).map_err(|error| failed(error.into()))?;
    drop(copy);
    File::open(to).and_then(|file| file.sync_all()).map_err(|error| failed(error.into()))?;
    if matches!(finding, Finding::Holds { .. }) {
        Ok(finding)
    } else {
        Err(CopyError::Damaged { path: to.to_owned(), finding })
    }
}

fn all_pages(source: &Connection, copy: &mut Connection) -> Result<(), BoxedError> {
    let backup = Backup::new(source, copy)?;
    for _ in 0..BUSY_TRIES {
        // A single step copies one snapshot of a journal that others write; several steps would restart at each commit.
        match backup.step(-1)? {
            StepResult::Done => return Ok(()),
            StepResult::More | StepResult::Busy | StepResult::Locked => std::thread::sleep(BUSY_PAUSE),
            other => return Err(format!("SQLite's backup ended as {other:?}").into()),
        }
    }
    Err("another program holds the journal".into())
}

/// Removes the remains of an incomplete copy.
fn remove(copy: &Path) {
    for file in [copy.to_owned(), beside(copy, "-journal")].into_iter().chain(others(copy)) {
        let _is_gone = std::fs::remove_file(file);
    }
}
