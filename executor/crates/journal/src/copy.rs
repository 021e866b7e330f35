//! Backups of a journal, which may be in use, and their restoration.
//!
//! SQLite copies one snapshot. The whole copy is checked, and gets its final name once it is on the disk.

use super::error::OpenError;
use super::files::{
    IfMissing, JournalFiles, boot_id, draft_path, find_free_name, lock_file, open_private, rename_new,
    resolve_links, set_aside_remains, sibling_path, sidecar_files, write_marker,
};
use super::log::Tip;
use super::store::{Reader, check_format, create};
use super::sweep::{CopyLink, create_locked, part_path, remove_copy, sweep};
use super::verify::{Finding, verify};
use a2g_types::error_chain::BoxedError;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The delay before another attempt to copy a journal that another program has locked.
const BUSY_RETRY_DELAY: Duration = Duration::from_millis(100);
/// The maximum number of attempts to copy a locked journal.
const MAX_BUSY_TRIES: u32 = 50;

/// The reason why a backup or a restoration failed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// An error of one of the two journals.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A file already has the name of the backup.
    #[error("the file `{0}` already exists: choose another name for the backup")]
    Exists(PathBuf),
    /// There is a journal at the destination.
    #[error(
        "the journal `{0}` already exists: `--replace` replaces it by the backup and keeps it under another name. Intents \
         that ran since the backup could run again"
    )]
    Journal(PathBuf),
    /// The copy failed its check.
    #[error("nothing was changed, because the copy `{path}` is damaged: {finding}")]
    Damaged {
        /// The path of the copy.
        path: PathBuf,
        /// The finding of the check.
        finding: Finding,
    },
    /// An error of the system or SQLite.
    #[error("`{path}` cannot be read or written")]
    Failed {
        /// The file that cannot be read or written.
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

/// A copy of a journal.
#[derive(Debug)]
pub struct JournalCopy {
    /// The path of the copy.
    pub path: PathBuf,
    /// The finding of the check, with the checkpoint.
    pub finding: Finding,
    /// The size of the file, in bytes.
    pub bytes: u64,
}

/// A restored journal.
#[derive(Debug)]
pub struct RestoredJournal {
    /// The journal, as it was copied from the backup.
    pub copy: JournalCopy,
    /// The previous journal, under its new name; `None` if there was none.
    pub previous: Option<PathBuf>,
}

/// Creates a journal that does not exist, even if other files show that there was one.
///
/// # Errors
/// [`OpenError::Exists`], and the errors of the folder or the disk.
pub fn init(journal: &Path) -> Result<(), OpenError> {
    let files = JournalFiles::open(journal, IfMissing::CreateAnyway, create)?;
    // With the marker of the lost journal, the next start would refuse the new one.
    files.update_marker(0, &super::chain::INITIAL_HASH);
    Ok(())
}

/// Copies a journal to the new file `to`, with mode 0600, even while a server writes the journal.
///
/// # Errors
/// [`CopyError`]; then no file was created at `to`.
pub fn back_up(journal: &Path, to: &Path) -> Result<JournalCopy, CopyError> {
    if to.symlink_metadata().is_ok() {
        return Err(CopyError::Exists(to.to_owned()));
    }
    sweep(journal);
    let source = Reader::open(journal)?;
    let part = part_path(to);
    let _link = CopyLink::create(journal, &part);
    // Created with its mode before SQLite opens it, so that other users can never read it. Locked until it has its name.
    let _locked = create_locked(&part).map_err(|error| CopyError::other(&part, error))?;
    let finding = copy_and_check(source.connection(), &part).and_then(|finding| {
        rename_new(&part, to).map_err(|error| CopyError::other(to, error))?;
        Ok(finding)
    });
    remove_copy(&part);
    describe_copy(to, finding?)
}

fn describe_copy(path: &Path, finding: Finding) -> Result<JournalCopy, CopyError> {
    let metadata = path.metadata().map_err(|error| CopyError::other(path, error))?;
    Ok(JournalCopy { path: path.to_owned(), finding, bytes: metadata.len() })
}

/// Restores the backup `from` as a journal that no server uses. With `replace`, an existing journal is renamed before.
///
/// # Errors
/// [`CopyError`]; an existing journal is then kept, perhaps under its new name.
pub fn restore(from: &Path, journal: &Path, replace: bool) -> Result<RestoredJournal, CopyError> {
    let copy_error = |error: BoxedError| CopyError::other(journal, error);
    sweep(journal);
    let source = Reader::open(from)?;
    let real = resolve_links(journal).map_err(|error| copy_error(error.into()))?;
    let exists = real.exists();
    if exists && !replace {
        return Err(CopyError::Journal(journal.to_owned()));
    }
    let (_journal, marker) = acquire_locks(&real, journal)?;
    let draft = draft_path(&real);
    let _locked = create_locked(&draft).map_err(|error| copy_error(error.into()))?;
    let result = copy_and_check(source.connection(), &draft).and_then(|finding| {
        let tip = Connection::open(&draft)
            .and_then(|draft| Tip::read(&draft))
            .map_err(|error| copy_error(error.into()))?;
        // Renamed only after the copy was checked.
        let previous = if exists { Some(move_aside(&real)?) } else { None };
        set_aside_remains(&real).map_err(|error| copy_error(error.into()))?;
        // Before the rename: after a crash in between, a start would refuse the restored journal because of the old
        // marker.
        marker.set_len(0).map_err(|error| copy_error(error.into()))?;
        rename_new(&draft, &real).map_err(|error| copy_error(error.into()))?;
        write_marker(&marker, tip.number, &tip.hash, &boot_id()).map_err(|error| copy_error(error.into()))?;
        Ok((finding, previous))
    });
    remove_copy(&draft);
    let (finding, previous) = result?;
    Ok(RestoredJournal { copy: describe_copy(journal, finding)?, previous })
}

/// Takes the locks that a server takes, so that no server starts in the meantime.
fn acquire_locks(real: &Path, journal: &Path) -> Result<(Option<File>, File), CopyError> {
    let copy_error = |error: BoxedError| CopyError::other(journal, error);
    let open = |path: &Path| File::options().read(true).write(true).open(path);
    let database = real.exists().then(|| open(real)).transpose().map_err(|error| copy_error(error.into()))?;
    database.iter().try_for_each(|database| lock_file(database, journal))?;
    let marker = open_private(&sibling_path(real, ".lock")).map_err(|error| copy_error(error.into()))?;
    lock_file(&marker, journal)?;
    Ok((database, marker))
}

/// Renames a journal and its other files. Returns the journal's new path.
fn move_aside(real: &Path) -> Result<PathBuf, CopyError> {
    let copy_error = |error: BoxedError| CopyError::other(real, error);
    let previous = find_free_name(real, "replaced");
    rename_new(real, &previous).map_err(|error| copy_error(error.into()))?;
    // The log may have the last records of the old journal, and SQLite would apply the log to the new journal.
    for (old, new) in sidecar_files(real).iter().zip(sidecar_files(&previous)) {
        if old.exists() {
            rename_new(old, &new).map_err(|error| copy_error(error.into()))?;
        }
    }
    Ok(previous)
}

/// Copies a snapshot of a journal into an empty file, and checks the copy.
fn copy_and_check(source: &Connection, to: &Path) -> Result<Finding, CopyError> {
    let copy_error = |error: BoxedError| CopyError::other(to, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut copy = Connection::open_with_flags(to, flags).map_err(|error| copy_error(error.into()))?;
    copy_pages(source, &mut copy).map_err(copy_error)?;
    // Mode DELETE makes the copy a single file, without a log.
    copy.pragma_update(None, "journal_mode", "DELETE").map_err(|error| copy_error(error.into()))?;
    check_format(&copy, to)?;
    let finding = verify(&copy, to, None, |_| ()).map_err(|error| copy_error(error.into()))?;
    drop(copy);
    File::open(to).and_then(|file| file.sync_all()).map_err(|error| copy_error(error.into()))?;
    if matches!(finding, Finding::Holds { .. }) {
        Ok(finding)
    } else {
        Err(CopyError::Damaged { path: to.to_owned(), finding })
    }
}

fn copy_pages(source: &Connection, copy: &mut Connection) -> Result<(), BoxedError> {
    let backup = Backup::new(source, copy)?;
    for _ in 0..MAX_BUSY_TRIES {
        // One step for all pages: several steps would restart after each commit of a server.
        match backup.step(-1)? {
            StepResult::Done => return Ok(()),
            StepResult::More | StepResult::Busy | StepResult::Locked => std::thread::sleep(BUSY_RETRY_DELAY),
            other => return Err(format!("SQLite's backup ended as {other:?}").into()),
        }
    }
    Err("another program has locked the journal".into())
}
