//! The automatic removal of old records, on a thread of its own.

use super::prune::{PruneError, PruneSummary, prune_while};
use super::store::from_sqlite_int;
use super::{Journal, JournalBackend, spawn_thread};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::error_chain::ErrorChain;
use rusqlite::Connection;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// The interval between two checks of the age and size of the journal.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The pause of the check of the size after a removal that could not reach the limit: all of the rest is needed.
const FUTILE_INTERVAL: Duration = Duration::from_secs(3600);
/// The interval at which the end of the server is noticed.
const CLOSE_INTERVAL: Duration = Duration::from_millis(100);

/// The age and the size up to which records are kept. A run whose report was not delivered keeps all later records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// The age at which records are removed.
    pub max_age: Option<Duration>,
    /// The size of the records, in bytes, above which the oldest are removed.
    pub max_bytes: Option<u64>,
}

impl Journal {
    /// Removes old records until the journal is dropped. Begins once the background check has read all records: each removal
    /// would make it begin again. A journal in memory has none.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn prune_regularly(&self, retention: Retention) -> std::io::Result<()> {
        let JournalBackend::Disk { path, .. } = &self.backend else { return Ok(()) };
        if retention == Retention::default() {
            return Ok(());
        }
        let may_prune = Arc::clone(&self.may_prune);
        let mut pruner = Pruner::new(path.clone(), retention, Arc::clone(&self.is_closed));
        spawn_thread("journal prune", move || {
            if !wait_unless_closed(&pruner.is_closed, || may_prune.load(Relaxed)) {
                return;
            }
            loop {
                pruner.remove_old();
                let until = SystemClock.monotonic() + CHECK_INTERVAL;
                if !wait_unless_closed(&pruner.is_closed, || SystemClock.monotonic() >= until) {
                    return;
                }
            }
        })
        .map(drop)
    }
}

/// Waits until `is_over`. Returns `false` if the journal is closed before.
fn wait_unless_closed(is_closed: &AtomicBool, is_over: impl Fn() -> bool) -> bool {
    while !is_over() {
        if is_closed.load(Relaxed) {
            return false;
        }
        std::thread::sleep(CLOSE_INTERVAL);
    }
    true
}

/// Removes what is older or more than the [`Retention`] allows.
pub(super) struct Pruner {
    path: PathBuf,
    pub(super) retention: Retention,
    is_closed: Arc<AtomicBool>,
    /// The time from which on the size is checked again.
    size_due: Instant,
}

impl Pruner {
    pub(super) fn new(path: PathBuf, retention: Retention, is_closed: Arc<AtomicBool>) -> Self {
        Self { path, retention, is_closed, size_due: SystemClock.monotonic() }
    }

    /// Removes what is too old, and then the oldest records until the rest is small enough.
    pub(super) fn remove_old(&mut self) {
        let now = SystemClock.now();
        if let Some(max_age) = self.retention.max_age {
            let is_open = |_: &Connection| Ok(!self.is_closed.load(Relaxed));
            report(prune_while(&self.path, now - max_age, Some(now - max_age), now, is_open));
        }
        if let Some(max_bytes) = self.retention.max_bytes
            && SystemClock.monotonic() >= self.size_due
            && !self.shrink(max_bytes, now)
        {
            tracing::warn!(
                max_bytes,
                "the journal is larger than `journal.max_gb`, and the rest is still needed: deliver the waiting reports, \
                 or raise the limit"
            );
            self.size_due = SystemClock.monotonic() + FUTILE_INTERVAL;
        }
    }

    /// Removes the oldest records until the rest is small enough. Returns `false` if it is not, because all of it is
    /// needed.
    fn shrink(&self, max_bytes: u64, now: OffsetDateTime) -> bool {
        let mut is_over = false;
        // Tasks are bounded for each owner.
        let result = prune_while(&self.path, now, None, now, |connection| {
            is_over = used_bytes(connection)? > max_bytes;
            Ok(is_over && !self.is_closed.load(Relaxed))
        });
        let has_failed = result.is_err();
        report(result);
        !is_over || has_failed || self.is_closed.load(Relaxed)
    }
}

fn report(result: Result<PruneSummary, PruneError>) {
    match result {
        Ok(PruneSummary { receipts: 0, intents: 0, tasks: 0 }) => {}
        Ok(PruneSummary { receipts, intents, tasks }) => {
            tracing::info!(receipts, intents, tasks, "old records were removed from the journal");
        }
        // Tried again at the next check: another program may hold the file, or the disk may be full.
        Err(error) => tracing::warn!(error = %ErrorChain(&error), "old records cannot be removed"),
    }
}

/// The size of the pages in use, in bytes. SQLite uses the others again, so the file does not become smaller.
fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let read = |name: &str| connection.pragma_query_value(None, name, |row| row.get(0).map(from_sqlite_int));
    Ok(read("page_count")?.saturating_sub(read("freelist_count")?).saturating_mul(read("page_size")?))
}
