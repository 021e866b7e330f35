//! The automatic removal of old records, on a thread of its own.

use super::prune::{PruneError, PruneSummary, prune_while};
use super::store::from_sqlite_int;
use super::{Journal, JournalBackend, spawn_thread};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::error_chain::ErrorChain;
use rusqlite::Connection;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The interval between two checks of the age and size of the journal.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The pause after a removal that could not reach the limit on the size: all of the rest is needed.
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
    /// Removes old records from now on, until the journal is dropped. A journal in memory has none.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn prune_regularly(&self, retention: Retention) -> std::io::Result<()> {
        let JournalBackend::Disk { path, .. } = &self.backend else { return Ok(()) };
        if retention == Retention::default() {
            return Ok(());
        }
        let (path, is_closed) = (path.clone(), Arc::clone(&self.is_closed));
        spawn_thread("journal prune", move || {
            loop {
                let interval = remove_old(&path, retention, &is_closed);
                let until = SystemClock.monotonic() + interval;
                if !wait_unless_closed(until, &is_closed) {
                    return;
                }
            }
        })
        .map(drop)
    }
}

/// Returns `false` if the journal is closed before `until`.
fn wait_unless_closed(until: Instant, is_closed: &AtomicBool) -> bool {
    while SystemClock.monotonic() < until {
        if is_closed.load(Relaxed) {
            return false;
        }
        std::thread::sleep(CLOSE_INTERVAL);
    }
    true
}

/// Removes what is too old, and then the oldest records until the rest is small enough. Returns the pause after it.
fn remove_old(path: &Path, Retention { max_age, max_bytes }: Retention, is_closed: &AtomicBool) -> Duration {
    let now = SystemClock.now();
    let is_open = |_: &Connection| Ok(!is_closed.load(Relaxed));
    if let Some(max_age) = max_age {
        report(prune_while(path, now - max_age, Some(now - max_age), now, is_open));
    }
    let Some(max_bytes) = max_bytes else { return CHECK_INTERVAL };
    let mut is_over = false;
    // Tasks are bounded for each owner.
    let result = prune_while(path, now, None, now, |connection| {
        is_over = used_bytes(connection)? > max_bytes;
        Ok(is_over && is_open(connection)?)
    });
    let has_failed = result.is_err();
    report(result);
    if is_over && !has_failed && !is_closed.load(Relaxed) {
        tracing::warn!(
            max_bytes,
            "the journal is larger than `journal.max_gb`, and the rest is still needed: deliver the waiting reports, or \
             raise the limit"
        );
        return FUTILE_INTERVAL;
    }
    CHECK_INTERVAL
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
