//! Checks of a journal: those at its opening, before its content is trusted, and those in the background.
//!
//! At the start: tables and indexes, the marker, SQLite's own check within [`START_CHECK_TIMEOUT`], the last
//! [`LAST_RECORDS`], and the intents that are open by them. Afterwards a thread of its own, of the lowest priority,
//! checks the whole journal once.

use super::Condition;
use super::error::{BrokenError, OpenError};
use super::files::{JournalFiles, Marker, boot_id, data_files};
use super::finding::{CheckError, Finding};
use super::log::Extent;
use super::store::Reader;
use super::verify::{CHUNK_RECORDS, Verifier, check_marker, check_schema, check_structure};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::durability::Durability;
use a2g_types::error_chain::ErrorChain;
use rusqlite::{Connection, ErrorCode};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The number of last records that are checked at the start.
// All records of a large journal take seconds (3.5 s for 685,000), which a restart must not wait for.
const LAST_RECORDS: i64 = 10_000;
/// The maximum duration of SQLite's own check at the start.
const START_CHECK_TIMEOUT: Duration = Duration::from_millis(50);
/// SQLite's steps between two calls of the progress handler.
const PROGRESS_STEPS: i32 = 1_000;
/// Records that are read in the background before the file is released for a moment, so that SQLite can checkpoint its
/// log into it.
const BACKGROUND_CHUNK: usize = 1_000;
/// The maximum growth of the log, in bytes, while SQLite checks its pages in the background.
// SQLite's check is one long snapshot, and the log cannot be put into the file beyond the oldest snapshot.
const MAX_LOG_BYTES: u64 = 64 << 20;
/// The priority of the background thread: below everything else.
const LOWEST_PRIORITY: i32 = 19;

/// Checks the end of a journal that is about to be written.
///
/// # Errors
/// [`OpenError::Damaged`] with the first finding, and [`OpenError::Behind`].
pub(super) fn check_at_start(
    connection: &mut Connection,
    path: &Path,
    files: &JournalFiles,
    durability: Durability,
) -> Result<(), OpenError> {
    let damaged = |found: &Finding| OpenError::Damaged { path: path.to_owned(), found: found.to_string() };
    let marked = files.read_marker().filter(|marked| !is_loss_expected(connection, marked, durability));
    let check = || {
        // The tables come first, because every later query relies on them.
        check_schema(connection)?;
        let end = SystemClock.monotonic() + START_CHECK_TIMEOUT;
        let _may_be_cut_short = check_structure_unless(connection, move || SystemClock.monotonic() >= end)?;
        let mut verifier = Verifier::last_records(connection, LAST_RECORDS)?;
        while verifier.check_chunk(connection, CHUNK_RECORDS)? {}
        verifier.finish(connection)?;
        check_marker(connection, marked.as_ref())
    };
    match { check }() {
        Ok(()) => Ok(()),
        // This is no damage: all that is there holds, and the operator has to put back a file or accept the loss.
        Err(CheckError::Found(Finding::Cut { last, was }))
            if marked.as_ref().is_some_and(|marked| marked.number == was) =>
        {
            Err(OpenError::Behind { path: path.to_owned(), last, marked: was })
        }
        Err(CheckError::Found(found)) => Err(damaged(&found)),
        Err(CheckError::Sqlite(error)) => Err(OpenError::from_sqlite(path)(error)),
    }
}

/// `true` if the operator accepted that a power cut loses the last records, and there may have been one.
fn is_loss_expected(connection: &Connection, marked: &Marker, durability: Durability) -> bool {
    let is_behind = Extent::read(connection, "records").is_ok_and(|extent| extent.last < marked.number);
    // The kernel's boot tells a power cut from an older copy: within one boot, what was committed outlives the process.
    let may_be = is_behind && durability == Durability::ProcessCrash && marked.boot != boot_id();
    if may_be {
        tracing::warn!(
            last = marked.number,
            "a power cut took the last records of the journal, as `journal.durability = \"process-crash\"` lets it"
        );
    }
    may_be
}

/// Runs SQLite's check of its pages; returns `false` if `stops` interrupted it.
fn check_structure_unless(
    connection: &mut Connection,
    stops: impl FnMut() -> bool + Send + 'static,
) -> Result<bool, CheckError> {
    connection.progress_handler(PROGRESS_STEPS, Some(stops))?;
    let checked = check_structure(connection, 0);
    // The handler would interrupt every later statement of the connection, which the writer goes on using.
    connection.progress_handler(PROGRESS_STEPS, None::<fn() -> bool>)?;
    match checked {
        Err(CheckError::Sqlite(error))
            if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) =>
        {
            Ok(false)
        }
        checked => checked.map(|()| true),
    }
}

/// Checks the whole journal once, and stops the server on a finding.
pub(super) fn check_in_background(
    path: &Path,
    is_closed: &Arc<AtomicBool>,
    condition: &watch::Sender<Condition>,
) {
    // The priority of this thread only. At the normal priority, the check competes with the server's own threads.
    let _as_it_was = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
    let Ok(reader) = Reader::open(path) else { return };
    let found = match check_all_records(&mut reader.into_connection(), path, is_closed) {
        Ok(None) => return,
        Ok(Some(records)) => return tracing::debug!(records, "the journal was checked"),
        Err(CheckError::Sqlite(error)) => {
            // A file that is locked for the moment says nothing about its content, so the server goes on.
            return tracing::warn!(error = %ErrorChain(&error), "the journal could not be checked");
        }
        Err(CheckError::Found(found)) => found,
    };
    let damaged = OpenError::Damaged { path: path.to_owned(), found: found.to_string() };
    tracing::error!(reason = %damaged, "the journal is damaged");
    condition.send_replace(Condition::Broken(BrokenError::from_read(damaged)));
}

/// Checks all records, and then SQLite's pages. Returns the number of the last record; `None` if it was interrupted.
fn check_all_records(
    connection: &mut Connection,
    path: &Path,
    is_closed: &Arc<AtomicBool>,
) -> Result<Option<i64>, CheckError> {
    let Extent { first, last, .. } = Extent::read(connection, "records")?;
    if last - first <= LAST_RECORDS {
        // The check at the start has read all of it.
        return Ok(Some(last));
    }
    let mut verifier = Verifier::full(connection, None)?;
    loop {
        if is_closed.load(Relaxed) {
            return Ok(None);
        }
        // Each chunk is one snapshot, and the last chunk shares its snapshot with the comparison.
        let snapshot = connection.unchecked_transaction()?;
        // `journal prune` may have removed the records that come next.
        if !verifier.is_unpruned(connection)? {
            verifier = Verifier::full(connection, None)?;
        }
        if !verifier.check_chunk(connection, BACKGROUND_CHUNK)? {
            verifier.finish(connection)?;
            break;
        }
        drop(snapshot);
    }
    check_pages(connection, path, is_closed)?;
    Ok(Some(verifier.tip.number))
}

/// Runs SQLite's check of its pages, and repeats it if the log grew too much meanwhile.
fn check_pages(
    connection: &mut Connection,
    path: &Path,
    is_closed: &Arc<AtomicBool>,
) -> Result<(), CheckError> {
    const PAUSE: Duration = Duration::from_secs(60);
    let log = data_files(path)[1].clone();
    loop {
        let has_to_stop = watch_log_growth(log.clone(), Arc::clone(is_closed));
        if check_structure_unless(connection, has_to_stop)? {
            return Ok(());
        }
        let again = SystemClock.monotonic() + PAUSE;
        while SystemClock.monotonic() < again {
            if is_closed.load(Relaxed) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn watch_log_growth(log: PathBuf, is_closed: Arc<AtomicBool>) -> impl FnMut() -> bool + Send + 'static {
    let bytes = move || log.metadata().map_or(0, |log| log.len());
    let (before, mut looked): (u64, Option<Instant>) = (bytes(), None);
    move || {
        let now = SystemClock.monotonic();
        if looked.is_some_and(|at| now.saturating_duration_since(at) < Duration::from_millis(100)) {
            return false;
        }
        looked = Some(now);
        is_closed.load(Relaxed) || bytes().saturating_sub(before) > MAX_LOG_BYTES
    }
}
