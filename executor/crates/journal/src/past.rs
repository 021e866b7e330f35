//! What has happened since a time, oldest first: for a governor whose policies read it.
//!
//! The rows before that time are not read. The first one is found from the newest on, by the numbers of the rows; so the
//! work depends on what has happened since, and not on the size of the journal.

use super::history::{HistoryError, REFUSAL_COLUMNS, RefusalEntry, read_refusal};
use super::scan::{MAX_SCAN_TIME, Scan, ScanBudget, ScannedChain};
use super::search::{FoundRun, run_columns};
use super::store::Reader;
use super::{JournalError, Records, to_micros};
use a2g_types::outcome::Receipt;
use rusqlite::params;
use time::OffsetDateTime;

/// Something that has happened.
#[derive(Debug)]
pub enum PastEvent {
    /// A run has ended, or a decision on its file changes.
    Ended {
        /// The time of the end.
        ended: OffsetDateTime,
        /// The receipt.
        receipt: Box<Receipt>,
    },
    /// A call was refused.
    Refused(RefusalEntry),
}

impl Records {
    /// Passes all receipts since `since` to `each`, oldest first, and then all stored refusals. Returns their number. A
    /// journal in memory has none.
    ///
    /// # Errors
    /// [`JournalError::Busy`], and [`JournalError::Broken`] if the journal or a receipt cannot be read.
    pub async fn pass_since(
        &self,
        since: OffsetDateTime,
        each: impl FnMut(PastEvent) + Send + 'static,
    ) -> Result<u64, JournalError> {
        self.backend().query_history(move |reader| reader.pass_since(since, each)).await
    }
}

impl Reader {
    fn pass_since(
        &self,
        since: OffsetDateTime,
        mut each: impl FnMut(PastEvent),
    ) -> Result<u64, HistoryError> {
        // One snapshot for all queries.
        let _snapshot = self.connection().unchecked_transaction()?;
        let mut count = 0;
        let columns = run_columns();
        let mut statement = self.connection().prepare(&format!(
            "SELECT {columns} FROM records WHERE number >= ?1 AND kind = 'receipt' AND at >= ?2 ORDER BY number"
        ))?;
        let first = self.first_since(ScannedChain::Records, since)?;
        let mut rows = statement.query(params![first, to_micros(since)])?;
        while let Some(row) = rows.next()? {
            let run = FoundRun::read(row)?;
            let receipt = Box::new(run.parse_receipt(&run.body(self)?)?);
            each(PastEvent::Ended { ended: run.ended, receipt });
            count += 1;
        }
        let mut statement = self.connection().prepare(&format!(
            "SELECT {REFUSAL_COLUMNS} FROM refusals WHERE number >= ?1 AND refused >= ?2 ORDER BY number"
        ))?;
        let first = self.first_since(ScannedChain::Refusals, since)?;
        let mut rows = statement.query(params![first, to_micros(since)])?;
        while let Some(row) = rows.next()? {
            each(PastEvent::Refused(read_refusal(row)?));
            count += 1;
        }
        Ok(count)
    }

    /// The number of a row from which on all rows since `since` are found.
    pub(super) fn first_since(&self, chain: ScannedChain, since: OffsetDateTime) -> rusqlite::Result<i64> {
        let mut scan = Scan::new(self.connection(), chain, None, Some(since))?;
        while !scan.is_at_end() {
            // A budget bounds the answer to a caller, and nobody waits for this one.
            let mut budget = ScanBudget::start(MAX_SCAN_TIME);
            while scan.next_chunk(&mut budget)?.is_some() {}
        }
        Ok(scan.position())
    }
}
