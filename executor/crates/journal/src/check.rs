//! Checks a journal at the start, before its content is trusted, and in the background.
//!
//! The start checks the schema, the marker, the last [`LAST_RECORDS`] records and their open intents, and runs SQLite's
//! own check for at most [`START_CHECK_TIMEOUT`]. Afterwards a thread with the lowest priority checks the whole journal
//! once.

use super::error::{BrokenError, OpenError};
use super::files::{JournalFiles, Marker, boot_id, data_files};
use super::finding::{CheckError, Finding};
use super::log::Extent;
use super::store::Reader;
use super::verify::{CHUNK_RECORDS, Verifier, check_marker, check_schema, check_structure};
use super::{ChainCheck, Condition};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::durability::Durability;
use a2g_types::error_chain::ErrorChain;
use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The number of last records that the start checks.
// Checking all records of a large journal takes too long for a restart: 3.5 s for 685,000.
const LAST_RECORDS: i64 = ChainCheck::MAX_RECORDS_AT_START;
/// The maximum duration of SQLite's own check at the start.
const START_CHECK_TIMEOUT: Duration = Duration::from_millis(50);
/// SQLite's steps between two calls of the progress handler.
const PROGRESS_STEPS: i32 = 1_000;
/// The number of records that one snapshot of the background check reads. Between two snapshots, SQLite can move its
/// log into the file.
const BACKGROUND_CHUNK: usize = 1_000;
/// The maximum growth of the log, in bytes, during SQLite's own check in the background.
// That check is one long snapshot, and SQLite moves its log into the file only up to the oldest snapshot.
const MAX_LOG_BYTES: u64 = 64 << 20;
/// The priority of the background thread, as a nice value.
const LOWEST_PRIORITY: i32 = 19;

/// Checks the last records of a journal before it is written.
///
/// # Errors
/// [`OpenError::Damaged`] with the first finding, and [`OpenError::Behind`].
pub(super) fn check_at_start(
    connection: &mut Connection,
    path: &Path,
    files: &JournalFiles,
    durability: Durability,
) -> Result<(), OpenError> {
    let damage_error =
        |found: &Finding| OpenError::Damaged { path: path.to_owned(), found: found.to_string() };
    let marker = files.read_marker().filter(|marker| !is_loss_expected(connection, marker, durability));
    let check = || {
        // The schema is checked first, because every later query relies on it.
        check_schema(connection)?;
        let end = SystemClock.monotonic() + START_CHECK_TIMEOUT;
        let _is_complete = check_structure_unless(connection, move || SystemClock.monotonic() >= end)?;
        let mut verifier = Verifier::last_records(connection, LAST_RECORDS)?;
        while verifier.check_chunk(connection, CHUNK_RECORDS)? {}
        verifier.finish(connection)?;
        check_marker(connection, marker.as_ref())
    };
    match { check }() {
        Ok(()) => Ok(()),
        // This is not damage: the existing records are intact, and the operator has to put a file back or accept the
        // loss.
        Err(CheckError::Found(Finding::Cut { last, was }))
            if marker.as_ref().is_some_and(|marker| marker.number == was) =>
        {
            Err(OpenError::Behind { path: path.to_owned(), last, marked: was })
        }
        Err(CheckError::Found(found)) => Err(damage_error(&found)),
        Err(CheckError::Sqlite(error)) => Err(OpenError::from_sqlite(path)(error)),
    }
}

/// `true` if the last records are missing, the operator accepted their loss by a power failure, and there may have been
/// one.
fn is_loss_expected(connection: &Connection, marker: &Marker, durability: Durability) -> bool {
    let is_behind = Extent::read(connection, "records").is_ok_and(|extent| extent.last < marker.number);
    // Within one boot of the kernel, committed records survive, so the loss would mean an older copy.
    let is_expected = is_behind && durability == Durability::ProcessCrash && marker.boot != boot_id();
    if is_expected {
        tracing::warn!(
            last = marker.number,
            "the journal lost its last records in a power failure, which `journal.durability = \"process-crash\"` allows"
        );
    }
    is_expected
}

/// Runs SQLite's check of its pages. Returns `false` if `should_stop` interrupted it.
fn check_structure_unless(
    connection: &mut Connection,
    should_stop: impl FnMut() -> bool + Send + 'static,
) -> Result<bool, CheckError> {
    connection.progress_handler(PROGRESS_STEPS, Some(should_stop))?;
    let result = check_structure(connection, 0);
    // The handler would also interrupt later statements, and the writer continues to use the connection.
    connection.progress_handler(PROGRESS_STEPS, None::<fn() -> bool>)?;
    match result {
        Err(CheckError::Sqlite(error))
            if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) =>
        {
            Ok(false)
        }
        result => result.map(|()| true),
    }
}

/// Sets `may_prune` when it is dropped, also by a panic, unless records are damaged.
pub(super) struct PruningGuard<'a> {
    pub(super) may_prune: &'a AtomicBool,
    pub(super) is_damaged: bool,
}

impl Drop for PruningGuard<'_> {
    fn drop(&mut self) {
        if !self.is_damaged {
            self.may_prune.store(true, Relaxed);
        }
    }
}

/// Checks the whole journal once, and stops the server on a finding. Sets `may_prune` once the records are checked, or
/// cannot be.
pub(super) fn check_in_background(
    path: &Path,
    is_closed: &Arc<AtomicBool>,
    may_prune: &AtomicBool,
    condition: &watch::Sender<Condition>,
    chain_check: &Mutex<Option<ChainCheck>>,
) {
    // Lowers the priority of only this thread, so that the check does not compete with the server's other threads.
    let _best_effort = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
    let mut guard = PruningGuard { may_prune, is_damaged: false };
    let Ok(reader) = Reader::open(path) else { return };
    let mut connection = reader.into_connection();
    let records = check_all_records(&connection, is_closed);
    // Records with damage are left for the operator. Pruning does not wait for SQLite's own check, which may have to be
    // repeated for as long as much is written.
    guard.is_damaged = matches!(records, Err(CheckError::Found(_)));
    drop(guard);
    let checked = records.and_then(|read| match read {
        BackgroundCheck::Whole { .. } => check_pages(&mut connection, path, is_closed).map(|()| read),
        BackgroundCheck::Closed | BackgroundCheck::CoveredByStart => Ok(read),
    });
    let found = match checked {
        Ok(BackgroundCheck::Closed) => return,
        Ok(BackgroundCheck::CoveredByStart) => {
            if let Some(check) = &mut *chain_check.lock() {
                check.is_whole = true;
            }
            return;
        }
        Ok(BackgroundCheck::Whole { last_record, last_receipt }) => {
            *chain_check.lock() = Some(ChainCheck { last_receipt, at: SystemClock.now(), is_whole: true });
            return tracing::debug!(records = last_record, "the journal was checked");
        }
        Err(CheckError::Sqlite(error)) => {
            // This is not damage: for example, the file may be locked.
            return tracing::warn!(error = %ErrorChain(&error), "the journal could not be checked in the background");
        }
        Err(CheckError::Found(found)) => found,
    };
    let damaged = OpenError::Damaged { path: path.to_owned(), found: found.to_string() };
    tracing::error!(reason = %damaged, "the journal is damaged");
    condition.send_replace(Condition::Broken(BrokenError::from_read(damaged)));
}

/// The result of a background check of the records that found nothing.
enum BackgroundCheck {
    /// The journal was closed before all records were read.
    Closed,
    /// The check at the start has read all records.
    CoveredByStart,
    /// All records were read: up to this record and this receipt.
    Whole { last_record: i64, last_receipt: u64 },
}

/// Checks all records.
fn check_all_records(connection: &Connection, is_closed: &AtomicBool) -> Result<BackgroundCheck, CheckError> {
    let Extent { first, last, .. } = Extent::read(connection, "records")?;
    if last - first <= LAST_RECORDS {
        return Ok(BackgroundCheck::CoveredByStart);
    }
    let mut verifier = Verifier::full(connection, None)?;
    loop {
        if is_closed.load(Relaxed) {
            return Ok(BackgroundCheck::Closed);
        }
        // Each chunk has one snapshot; the last chunk shares its snapshot with `finish`.
        let snapshot = connection.unchecked_transaction()?;
        // `journal prune` may have removed the next records, as may the automatic pruning of a journal that is far too
        // large. Otherwise the automatic pruning waits for this check, which it would make begin again every 30 s.
        if !verifier.is_unpruned(connection)? {
            verifier = Verifier::full(connection, None)?;
        }
        if !verifier.check_chunk(connection, BACKGROUND_CHUNK)? {
            verifier.finish(connection)?;
            break;
        }
        drop(snapshot);
    }
    Ok(BackgroundCheck::Whole { last_record: verifier.tip.number, last_receipt: verifier.tip.head.number })
}

/// Runs SQLite's check of its pages, and restarts it later if the log grows too much.
fn check_pages(
    connection: &mut Connection,
    path: &Path,
    is_closed: &Arc<AtomicBool>,
) -> Result<(), CheckError> {
    const PAUSE: Duration = Duration::from_secs(60);
    let log = data_files(path)[1].clone();
    loop {
        let should_stop = watch_log_growth(log.clone(), Arc::clone(is_closed));
        if check_structure_unless(connection, should_stop)? {
            return Ok(());
        }
        let retry_at = SystemClock.monotonic() + PAUSE;
        while SystemClock.monotonic() < retry_at {
            if is_closed.load(Relaxed) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Returns a predicate that becomes `true` when the log has grown too much or the journal is closed.
fn watch_log_growth(log: PathBuf, is_closed: Arc<AtomicBool>) -> impl FnMut() -> bool + Send + 'static {
    let bytes = move || log.metadata().map_or(0, |log| log.len());
    let initial_bytes = bytes();
    let mut checked_at: Option<Instant> = None;
    move || {
        let now = SystemClock.monotonic();
        if checked_at.is_some_and(|at| now.saturating_duration_since(at) < Duration::from_millis(100)) {
            return false;
        }
        checked_at = Some(now);
        is_closed.load(Relaxed) || bytes().saturating_sub(initial_bytes) > MAX_LOG_BYTES
    }
}
