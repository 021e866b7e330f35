//! Copies of a journal: backups of a journal that may be in use, and their restoration.
//!
//! SQLite makes a copy of one snapshot. The copy is checked as a whole, and gets its name when it is on the disk.

use super::error::OpenError;
use super::files::{
    IfMissing, JournalFiles, boot_id, draft_path, find_free_name, lock_file, open_private, rename_new,
    resolve_links, set_aside_remains, sibling_path, sidecar_files, write_marker,
};
use super::log::Tip;
use super::store::{Reader, check_format, create};
use super::verify::{Finding, verify};
use a2g_types::error_chain::BoxedError;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The pause between attempts to lock a file that another program holds, and their number.
const BUSY_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_BUSY_TRIES: u32 = 50;

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
    fn other(path: &Path, error: impl Into<BoxedError>) -> Self {
        Self::Failed { path: path.to_owned(), source: error.into() }
    }
}

/// A copy that was made.
#[derive(Debug)]
pub struct JournalCopy {
    /// The file.
    pub path: PathBuf,
    /// The finding of the check, with the checkpoint.
    pub finding: Finding,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A restored journal.
#[derive(Debug)]
pub struct RestoredJournal {
    /// The journal.
    pub copy: JournalCopy,
    /// The previous journal, under its new name.
    pub previous: Option<PathBuf>,
}

/// Creates a journal that does not exist, even if other files show that there was one.
///
/// # Errors
/// [`OpenError::Exists`], and the errors of the folder or the disk.
pub fn init(journal: &Path) -> Result<(), OpenError> {
    let files = JournalFiles::open(journal, IfMissing::CreateAnyway, create)?;
    // The marker of the lost journal would make the next start refuse the new one.
    files.update_marker(0, &super::chain::INITIAL_HASH);
    Ok(())
}

/// Copies a journal to the new file `to`, with mode 0600. A server may write the journal meanwhile.
///
/// # Errors
/// [`CopyError`]; there is then nothing at `to`.
pub fn back_up(journal: &Path, to: &Path) -> Result<JournalCopy, CopyError> {
    if to.symlink_metadata().is_ok() {
        return Err(CopyError::Exists(to.to_owned()));
    }
    let source = Reader::open(journal)?;
    let part = sibling_path(to, ".part");
    let finding = copy_and_check(source.connection(), &part).and_then(|finding| {
        rename_new(&part, to).map_err(|error| CopyError::other(to, error))?;
        Ok(finding)
    });
    remove_copy(&part);
    describe_copy(to, finding?)
}

fn describe_copy(path: &Path, finding: Finding) -> Result<JournalCopy, CopyError> {
    let is = path.metadata().map_err(|error| CopyError::other(path, error))?;
    Ok(JournalCopy { path: path.to_owned(), finding, bytes: is.len() })
}

/// Replaces a journal that no server holds by the backup `from`. With `replace`, an existing journal is preserved under
/// another name.
///
/// # Errors
/// [`CopyError`]; an existing journal is then still there.
pub fn restore(from: &Path, journal: &Path, replace: bool) -> Result<RestoredJournal, CopyError> {
    let failed = |error: BoxedError| CopyError::other(journal, error);
    let source = Reader::open(from)?;
    let real = resolve_links(journal).map_err(|error| failed(error.into()))?;
    let is_there = real.exists();
    if is_there && !replace {
        return Err(CopyError::Journal(journal.to_owned()));
    }
    let (_journal, marker) = acquire_locks(&real, journal)?;
    let draft = draft_path(&real);
    let restored = copy_and_check(source.connection(), &draft).and_then(|finding| {
        let tip = Connection::open(&draft)
            .and_then(|draft| Tip::read(&draft))
            .map_err(|error| failed(error.into()))?;
        // The journal moves only now, after the copy has passed its check.
        let previous = if is_there { Some(move_aside(&real)?) } else { None };
        set_aside_remains(&real).map_err(|error| failed(error.into()))?;
        // The old marker goes before the new file comes: after a crash in between, it would refuse the restored
        // journal.
        marker.set_len(0).map_err(|error| failed(error.into()))?;
        rename_new(&draft, &real).map_err(|error| failed(error.into()))?;
        write_marker(&marker, tip.number, &tip.hash, &boot_id()).map_err(|error| failed(error.into()))?;
        Ok((finding, previous))
    });
    remove_copy(&draft);
    let (finding, previous) = restored?;
    Ok(RestoredJournal { copy: describe_copy(journal, finding)?, previous })
}

/// Takes the locks of a server, so that none starts meanwhile.
fn acquire_locks(real: &Path, journal: &Path) -> Result<(Option<File>, File), CopyError> {
    let failed = |error: BoxedError| CopyError::other(journal, error);
    let open = |path: &Path| File::options().read(true).write(true).open(path);
    let database = real.exists().then(|| open(real)).transpose().map_err(|error| failed(error.into()))?;
    database.iter().try_for_each(|database| lock_file(database, journal))?;
    let marker = open_private(&sibling_path(real, ".lock")).map_err(|error| failed(error.into()))?;
    lock_file(&marker, journal)?;
    Ok((database, marker))
}

/// Renames a journal and its log, and returns the journal's new path.
fn move_aside(real: &Path) -> Result<PathBuf, CopyError> {
    let failed = |error: BoxedError| CopyError::other(real, error);
    let previous = find_free_name(real, "replaced");
    rename_new(real, &previous).map_err(|error| failed(error.into()))?;
    // The log may hold the last records of the old journal, and SQLite would put it into the new one.
    for (old, new) in sidecar_files(real).iter().zip(sidecar_files(&previous)) {
        if old.exists() {
            rename_new(old, &new).map_err(|error| failed(error.into()))?;
        }
    }
    Ok(previous)
}

/// Copies a snapshot of a journal into a new file, and checks the copy.
fn copy_and_check(source: &Connection, to: &Path) -> Result<Finding, CopyError> {
    let failed = |error: BoxedError| CopyError::other(to, error);
    remove_copy(to);
    // The file has its mode before SQLite writes the first page, so that it is never readable by others.
    let made = File::options().write(true).create_new(true).mode(0o600).open(to);
    made.map_err(|error| failed(error.into()))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut copy = Connection::open_with_flags(to, flags).map_err(|error| failed(error.into()))?;
    copy_pages(source, &mut copy).map_err(failed)?;
    // A single file, without a log beside it.
    copy.pragma_update(None, "journal_mode", "DELETE").map_err(|error| failed(error.into()))?;
    check_format(&copy, to)?;
    let finding = verify(&copy, to, None, |_| ()).map_err(|error| failed(error.into()))?;
    drop(copy);
    File::open(to).and_then(|file| file.sync_all()).map_err(|error| failed(error.into()))?;
    if matches!(finding, Finding::Holds { .. }) {
        Ok(finding)
    } else {
        Err(CopyError::Damaged { path: to.to_owned(), finding })
    }
}

fn copy_pages(source: &Connection, copy: &mut Connection) -> Result<(), BoxedError> {
    let backup = Backup::new(source, copy)?;
    for _ in 0..MAX_BUSY_TRIES {
        // A single step copies one snapshot of a journal that others write; several steps would restart at each commit.
        match backup.step(-1)? {
            StepResult::Done => return Ok(()),
            StepResult::More | StepResult::Busy | StepResult::Locked => std::thread::sleep(BUSY_RETRY_DELAY),
            other => return Err(format!("SQLite's backup ended as {other:?}").into()),
        }
    }
    Err("another program holds the journal".into())
}

/// Removes the remains of an incomplete copy.
fn remove_copy(copy: &Path) {
    for file in [copy.to_owned(), sibling_path(copy, "-journal")].into_iter().chain(sidecar_files(copy)) {
        let _is_gone = std::fs::remove_file(file);
    }
}
