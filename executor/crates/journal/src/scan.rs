//! Scans of a chain from its newest row to its oldest, within a fixed time.
//!
//! No index fits every search, and any index would slow down each write. A scan therefore reads the rows themselves, in
//! chunks, and stops when its budget is used up; its position is where the next scan continues. A scan makes progress
//! however small its budget is: it reads at least one row.

use super::log::Extent;
use super::store::{from_sqlite_int, to_sqlite_int};
use super::{from_micros, to_micros};
use a2g_types::clock::{Clock as _, SystemClock};
use rusqlite::{Connection, OptionalExtension as _};
use std::ops::Range;
use std::time::Duration;
use time::OffsetDateTime;

/// The maximum time of one scan. With the chunk or the receipt that is read at its end, an answer takes less than 100
/// ms.
pub(super) const MAX_SCAN_TIME: Duration = Duration::from_millis(60);
/// The maximum number of rows of one scan, in case the clock stands still.
const MAX_ROWS: i64 = 1_000_000;
/// The number of rows that SQLite reads without a look at the clock. Reading them takes 0.1 ms, or about 5 ms if the
/// kernel does not have them in memory.
pub(super) const CHUNK_ROWS: i64 = 128;
/// A scan ends after this many consecutive chunks from before the sought time. One would not suffice, because a few
/// receipts may be written late.
const OLD_CHUNKS: u32 = 4;
/// The time by which a record may be older than records before it: the clock may be set back, and a receipt is written
/// later than its run ended if the disk is full.
const CLOCK_SLACK: time::Duration = time::Duration::minutes(10);

/// The work that one scan may do.
pub(super) struct ScanBudget {
    rows: i64,
    is_over: Box<dyn FnMut() -> bool>,
}

impl ScanBudget {
    /// The budget of a scan that begins now and takes up to `time`.
    pub(super) fn start(time: Duration) -> Self {
        let end = SystemClock.monotonic() + time;
        Self { rows: MAX_ROWS, is_over: Box::new(move || SystemClock.monotonic() >= end) }
    }

    /// A budget that ends when `is_over` returns `true`, for tests.
    #[cfg(test)]
    pub(super) fn until(is_over: impl FnMut() -> bool + 'static) -> Self {
        Self { rows: MAX_ROWS, is_over: Box::new(is_over) }
    }

    /// `true` if the time has passed.
    pub(super) fn is_over(&mut self) -> bool {
        (self.is_over)()
    }
}

/// The chain that is scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScannedChain {
    Records,
    Refusals,
}

impl ScannedChain {
    fn name(self) -> &'static str {
        match self {
            Self::Records => "records",
            Self::Refusals => "refusals",
        }
    }

    fn time_query(self) -> &'static str {
        match self {
            Self::Records => "SELECT at FROM records WHERE number = ?1",
            Self::Refusals => "SELECT refused FROM refusals WHERE number = ?1",
        }
    }
}

/// A scan of one chain.
pub(super) struct Scan<'a> {
    connection: &'a Connection,
    chain: ScannedChain,
    /// The number of the last pruned row.
    last_pruned: i64,
    /// Every row from this number on was read, or is newer than the place where the scan begins.
    position: i64,
    /// Rows before this time, in microseconds since 1970, are not sought: the sought time less [`CLOCK_SLACK`].
    cutoff: Option<i64>,
    /// The number of consecutive chunks that ended before `cutoff`.
    old_chunks: u32,
    /// `true` once the caller got a chunk.
    is_begun: bool,
    /// `true` if no row before `position` can be sought.
    is_at_end: bool,
}

impl<'a> Scan<'a> {
    /// A scan of the rows before the row `before`, or of all rows. It ends before the rows that are certainly older
    /// than `since`.
    pub(super) fn new(
        connection: &'a Connection,
        chain: ScannedChain,
        before: Option<u64>,
        since: Option<OffsetDateTime>,
    ) -> rusqlite::Result<Self> {
        let Extent { first: last_pruned, last, .. } = Extent::read(connection, chain.name())?;
        let end = last.saturating_add(1);
        let position = before.map_or(end, |before| to_sqlite_int(before).min(end));
        Ok(Self {
            connection,
            chain,
            last_pruned,
            position,
            cutoff: since.map(|since| to_micros(since.saturating_sub(CLOCK_SLACK))),
            old_chunks: 0,
            is_begun: false,
            is_at_end: false,
        })
    }

    /// The numbers of the next rows to read, which the caller reads from the last to the first; `None` at the end of
    /// the chain or of the budget.
    pub(super) fn next_chunk(&mut self, budget: &mut ScanBudget) -> rusqlite::Result<Option<Range<i64>>> {
        if self.is_at_end() || self.note_age()? {
            self.is_at_end = true;
            return Ok(None);
        }
        if self.is_begun && (budget.rows <= 0 || budget.is_over()) {
            return Ok(None);
        }
        let start = self.position.saturating_sub(CHUNK_ROWS).max(self.last_pruned.saturating_add(1));
        let chunk = start..self.position;
        budget.rows = budget.rows.saturating_sub(CHUNK_ROWS);
        (self.position, self.is_begun) = (start, true);
        Ok(Some(chunk))
    }

    /// Counts the last chunk if it is old. Returns `true` after [`OLD_CHUNKS`] consecutive ones.
    fn note_age(&mut self) -> rusqlite::Result<bool> {
        let Some(cutoff) = self.cutoff.filter(|_| self.is_begun) else { return Ok(false) };
        let is_old = self.time_at(self.position)?.is_some_and(|at| at < cutoff);
        self.old_chunks = if is_old { self.old_chunks + 1 } else { 0 };
        Ok(self.old_chunks >= OLD_CHUNKS)
    }

    /// Skips the rows from `number` on, which the caller does not seek.
    pub(super) fn skip_to(&mut self, number: i64) {
        self.position = self.position.min(number);
    }

    /// The number before which the next row is read.
    pub(super) fn position(&self) -> i64 {
        self.position
    }

    /// Records that the caller stopped after it had read the row `number` of the current chunk.
    pub(super) fn stop_after(&mut self, number: i64) {
        self.position = number;
    }

    /// Records that the caller seeks no further rows.
    pub(super) fn end(&mut self) {
        self.is_at_end = true;
    }

    /// `true` if no row is left that the caller could seek.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_at_end || self.position <= self.last_pruned.saturating_add(1)
    }

    /// The number before which the next scan begins; `None` at the end.
    pub(super) fn next(&self) -> Option<u64> {
        (!self.is_at_end()).then(|| from_sqlite_int(self.position))
    }

    /// The time of the last row that was read; `None` if none was.
    pub(super) fn searched_until(&self) -> rusqlite::Result<Option<OffsetDateTime>> {
        Ok(if self.is_begun { self.time_at(self.position)?.map(from_micros) } else { None })
    }

    /// The time of a row, in microseconds since 1970.
    fn time_at(&self, number: i64) -> rusqlite::Result<Option<i64>> {
        let mut statement = self.connection.prepare_cached(self.chain.time_query())?;
        statement.query_row([number], |row| row.get(0)).optional()
    }
}
