//! The delivery of reports to the governor.

use super::backend::Backend;
use super::outbox::{DueReport, Outbox};
use super::readers::IfFull;
use super::store::Reader;
use super::writer::JournalEntry;
use super::{JournalError, from_micros};
use a2g_types::outcome::Receipt;
use std::sync::Arc;
use time::OffsetDateTime;

/// The undelivered reports.
pub struct Deliveries {
    backend: Arc<Backend>,
    outbox: Arc<Outbox>,
}

impl Deliveries {
    pub(super) fn new(backend: Arc<Backend>, outbox: Arc<Outbox>) -> Self {
        Self { backend, outbox }
    }

    /// Waits for the next report to deliver, and returns it with its receipt.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub async fn next_report(&self) -> Result<(DueReport, Arc<Receipt>), JournalError> {
        let mut due = self.outbox.next().await;
        let receipt = match due.cached.take() {
            Some(receipt) => receipt,
            None => {
                // Pruning stops at the first run in `open`, so the receipt of an undelivered report is missing only
                // after damage.
                let missing =
                    || JournalError::Broken("the receipt of an undelivered report is missing".into());
                // Unlike a caller, the delivery cannot be asked to retry, so it waits for capacity in the queue.
                self.backend.receipt(due.record, IfFull::Wait).await?.ok_or_else(missing)?
            }
        };
        Ok((due, receipt))
    }

    /// Records that the governor has acknowledged a report.
    pub fn mark_delivered(&self, due: &DueReport) {
        // The entry is sent before the outbox changes: a server that stops waits only for an empty outbox, and could
        // otherwise end without the entry.
        self.backend.send(JournalEntry::Delivered(due.run, due.record));
        self.outbox.mark_delivered(due);
    }

    /// Records that the governor refused a report, or could not be reached. After a pause, the caller passes the
    /// returned report to [`Self::requeue`].
    #[must_use]
    pub fn mark_failed(&self, due: DueReport, is_refusal: bool) -> DueReport {
        self.outbox.mark_failed(due, is_refusal)
    }

    /// Queues a report for another attempt.
    pub fn requeue(&self, due: DueReport) {
        self.outbox.requeue(due);
    }

    /// The number of undelivered reports.
    #[must_use]
    pub fn undelivered_count(&self) -> usize {
        self.outbox.undelivered_count()
    }

    /// The end time of the oldest run with an undelivered report; `None` if every report was delivered.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub async fn oldest_undelivered_at(&self) -> Result<Option<OffsetDateTime>, JournalError> {
        // The last delivery may not be on the disk yet.
        if self.undelivered_count() == 0 {
            return Ok(None);
        }
        let oldest = self.backend.read_long(IfFull::Wait, Reader::oldest_undelivered_at).await?;
        Ok(oldest.map(from_micros))
    }

    /// Waits until every report has been delivered.
    pub async fn wait_until_delivered(&self) {
        self.outbox.wait_until_delivered().await;
    }
}
