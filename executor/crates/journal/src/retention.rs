//! The automatic removal of old records, on a thread of its own.

use super::prune::{PruneError, PruneSummary, prune_while};
use super::store::from_sqlite_int;
use super::{Condition, Journal, spawn_thread};
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
/// While the background check reads the records, a journal may exceed its maximum size by its size divided by this.
const EXCESS_DIVISOR: u64 = 4;
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
    /// makes it begin again. Until then, records are removed only from a journal that exceeds its maximum size by more than
    /// a quarter. A journal in memory has no records.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn prune_regularly(&self, retention: Retention) -> std::io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if retention == Retention::default() {
            return Ok(());
        }
        let may_prune = Arc::clone(&self.may_prune);
        let condition = self.backend.condition().clone();
        let mut pruner = Pruner::new(path.clone(), retention, Arc::clone(self.backend.closed_flag()));
        spawn_thread("journal prune", move || {
            // On a machine without idle time, or with frequent restarts, the check may never end.
            while !may_prune.load(Relaxed) {
                // Records of a damaged journal are left for the operator.
                if matches!(*condition.borrow(), Condition::Broken(_)) {
                    return;
                }
                pruner.remove_excess();
                if !pruner.wait_unless_closed(|| may_prune.load(Relaxed)) {
                    return;
                }
            }
            loop {
                pruner.remove_old();
                if !pruner.wait_unless_closed(|| false) {
                    return;
                }
            }
        })
        .map(drop)
    }
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
        if let Some(max_bytes) = self.retention.max_bytes {
            self.limit_size(max_bytes, max_bytes, now);
        }
    }

    /// Removes the oldest records of a journal that is far larger than allowed, until it is small enough.
    pub(super) fn remove_excess(&mut self) {
        if let Some(max_bytes) = self.retention.max_bytes {
            let max_excess = max_bytes / EXCESS_DIVISOR;
            self.limit_size(max_bytes.saturating_add(max_excess), max_bytes, SystemClock.now());
        }
    }

    /// Waits for the next check, or until `is_over`. Returns `false` if the journal is closed before.
    fn wait_unless_closed(&self, is_over: impl Fn() -> bool) -> bool {
        let until = SystemClock.monotonic() + CHECK_INTERVAL;
        while !is_over() && SystemClock.monotonic() < until {
            if self.is_closed.load(Relaxed) {
                return false;
            }
            std::thread::sleep(CLOSE_INTERVAL);
        }
        true
    }

    /// Removes the oldest records of a journal of more than `limit` until it has at most `max_bytes`.
    fn limit_size(&mut self, limit: u64, max_bytes: u64, now: OffsetDateTime) {
        if SystemClock.monotonic() >= self.size_due && !self.shrink(limit, max_bytes, now) {
            tracing::warn!(
                max_bytes,
                "the journal is larger than `journal.max_gb`, and the rest is still needed: deliver the waiting reports, \
                 or raise the limit"
            );
            self.size_due = SystemClock.monotonic() + FUTILE_INTERVAL;
        }
    }

    /// As [`Self::limit_size`]. Returns `false` if the rest is still too large, because all of it is needed.
    fn shrink(&self, mut limit: u64, max_bytes: u64, now: OffsetDateTime) -> bool {
        let mut is_over = false;
        // Tasks are bounded for each owner.
        let result = prune_while(&self.path, now, None, now, |connection| {
            is_over = used_bytes(connection)? > limit;
            limit = max_bytes;
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
