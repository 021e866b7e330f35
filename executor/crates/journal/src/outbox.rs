//! The order in which reports are sent to the governor.
//!
//! Reports of one agent are sent one after another, in the order in which their runs ended; those of different agents
//! are sent in parallel. A report that the governor keeps refusing is moved to its own lane, so that it does not block
//! the agent's other reports, and is retried without limit.

use super::Reporting;
use super::store::RunId;
use a2g_types::ident::AgentDid;
use a2g_types::outcome::Receipt;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// The number of refusals after which a report no longer blocks the later ones of its agent.
const MAX_REFUSALS: u32 = 8;
/// The maximum size of cached receipts, in bytes. Other receipts are read from the journal when they are sent.
const MAX_CACHED_BYTES: u64 = 8 << 20;
/// The memory of a parsed result, as a multiple of its text: measured at 60 for small objects.
const PARSED_FACTOR: u64 = 60;
/// The memory of a receipt without the tool's output, in bytes.
const RECEIPT_BYTES: u64 = 2 << 10;

/// A queue of reports that are sent one after another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Lane {
    Agent(AgentDid),
    /// A report that the governor keeps refusing, by the record of its receipt.
    Isolated(i64),
}

/// A report that is due to be sent.
#[derive(Debug)]
pub struct DueReport {
    lane: Lane,
    /// The record of its receipt.
    pub(super) record: i64,
    pub(super) run: RunId,
    /// The number of failed attempts.
    pub tries: u32,
    /// The receipt, if it is cached.
    pub(super) cached: Option<Arc<Receipt>>,
}

impl DueReport {
    /// Returns `true` for a report that was not sent before, of a run that this process has ended.
    #[must_use]
    pub fn is_first_attempt(&self) -> bool {
        self.tries == 0 && self.cached.is_some()
    }
}

#[derive(Debug, Default)]
struct LaneState {
    reports: VecDeque<QueuedReport>,
    /// The number of failed attempts for the first report.
    tries: u32,
    /// The number of those that the governor refused.
    refusals: u32,
}

#[derive(Debug)]
struct QueuedReport {
    record: i64,
    run: RunId,
    /// The receipt and its estimated size in memory, in bytes; `None` if it is not cached.
    cached: Option<(Arc<Receipt>, u64)>,
}

#[derive(Debug, Default)]
struct OutboxState {
    lanes: HashMap<Lane, LaneState>,
    /// The lanes whose first report can be sent now.
    due: VecDeque<Lane>,
    cached_bytes: u64,
}

/// The undelivered reports, in lanes. The journal stores them.
#[derive(Debug)]
pub(super) struct Outbox {
    inner: Mutex<OutboxState>,
    ready: Notify,
    undelivered: watch::Sender<usize>,
}

impl Outbox {
    /// An outbox with the undelivered reports of an earlier process, oldest first.
    pub(super) fn new(reports: impl IntoIterator<Item = (i64, RunId, AgentDid)>) -> Self {
        let outbox = Self { inner: Mutex::default(), ready: Notify::new(), undelivered: watch::channel(0).0 };
        reports
            .into_iter()
            .for_each(|(record, run, agent)| outbox.add(agent, QueuedReport { record, run, cached: None }));
        outbox
    }

    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.inner.lock()
    }

    /// Adds the report of a finished run.
    pub(super) fn push(&self, record: i64, run: RunId, receipt: &Arc<Receipt>, reporting: Reporting) {
        let bytes =
            receipt.outcome.metrics.output_bytes.saturating_mul(PARSED_FACTOR).saturating_add(RECEIPT_BYTES);
        let cached = match reporting {
            // As after a restart: the fleet is asked before the first attempt.
            Reporting::Elsewhere => None,
            Reporting::Here => {
                let mut inner = self.lock();
                let fits = inner.cached_bytes.saturating_add(bytes) <= MAX_CACHED_BYTES;
                inner.cached_bytes += if fits { bytes } else { 0 };
                fits.then(|| (Arc::clone(receipt), bytes))
            }
        };
        self.add(receipt.agent.clone(), QueuedReport { record, run, cached });
    }

    fn add(&self, agent: AgentDid, report: QueuedReport) {
        let mut inner = self.lock();
        let lane = Lane::Agent(agent);
        let state = inner.lanes.entry(lane.clone()).or_default();
        state.reports.push_back(report);
        // A lane is queued only once, for its first report: two reports at a time could arrive out of order.
        if state.reports.len() == 1 {
            inner.due.push_back(lane);
        }
        drop(inner);
        self.undelivered.send_modify(|count| *count += 1);
        self.ready.notify_one();
    }

    /// Waits for the next report. The caller has to pass it to [`Self::mark_delivered`], or to [`Self::mark_failed`]
    /// and then [`Self::requeue`].
    pub(super) async fn next(&self) -> DueReport {
        loop {
            let ready = self.ready.notified();
            if let Some(due) = self.lock().next() {
                return due;
            }
            ready.await;
        }
    }

    /// Removes a report that the governor has acknowledged.
    pub(super) fn mark_delivered(&self, due: &DueReport) {
        let mut inner = self.lock();
        inner.pop(&due.lane);
        inner.advance(&due.lane);
        drop(inner);
        self.undelivered.send_modify(|count| *count = count.saturating_sub(1));
        self.ready.notify_one();
    }

    /// Records that the governor refused the report, or could not be reached. After a pause, the caller passes the
    /// returned report to [`Self::requeue`].
    pub(super) fn mark_failed(&self, mut due: DueReport, is_refusal: bool) -> DueReport {
        let mut inner = self.lock();
        let Some(state) = inner.lanes.get_mut(&due.lane) else { return due };
        state.tries += 1;
        // Only refusals move a report out of its lane: the report is not the reason why a governor is unreachable.
        state.refusals += u32::from(is_refusal);
        due.tries = state.tries;
        if state.refusals < MAX_REFUSALS || matches!(due.lane, Lane::Isolated(_)) {
            return due;
        }
        let isolated = Lane::Isolated(due.record);
        let tries = state.tries;
        inner.pop(&due.lane);
        inner.advance(&due.lane);
        // Without `cached`: `pop` has subtracted the receipt from `cached_bytes`.
        let reports = VecDeque::from([QueuedReport { record: due.record, run: due.run, cached: None }]);
        inner.lanes.insert(isolated.clone(), LaneState { reports, tries, refusals: 0 });
        drop(inner);
        self.ready.notify_one();
        DueReport { lane: isolated, cached: None, ..due }
    }

    /// Queues a report for another attempt.
    pub(super) fn requeue(&self, due: DueReport) {
        self.lock().due.push_back(due.lane);
        self.ready.notify_one();
    }

    /// The number of undelivered reports.
    pub(super) fn undelivered_count(&self) -> usize {
        *self.undelivered.borrow()
    }

    /// Waits until every report has been delivered.
    pub(super) async fn wait_until_delivered(&self) {
        drop(self.undelivered.subscribe().wait_for(|count| *count == 0).await);
    }
}

impl OutboxState {
    fn next(&mut self) -> Option<DueReport> {
        let lane = self.due.pop_front()?;
        let LaneState { reports, tries, .. } = self.lanes.get(&lane)?;
        let QueuedReport { record, run, cached } = reports.front()?;
        let cached = cached.as_ref().map(|(receipt, _)| Arc::clone(receipt));
        Some(DueReport { record: *record, run: *run, tries: *tries, cached, lane })
    }

    /// Removes the first report from a lane.
    fn pop(&mut self, lane: &Lane) {
        let Some(state) = self.lanes.get_mut(lane) else { return };
        let removed = state.reports.pop_front();
        (state.tries, state.refusals) = (0, 0);
        let bytes = removed.and_then(|report| report.cached).map_or(0, |(_, bytes)| bytes);
        self.cached_bytes = self.cached_bytes.saturating_sub(bytes);
    }

    /// Makes a lane due for its next report, or removes the lane if it is empty.
    fn advance(&mut self, lane: &Lane) {
        if self.lanes.get(lane).is_some_and(|state| state.reports.is_empty()) {
            self.lanes.remove(lane);
        } else {
            self.due.push_back(lane.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox(reports: &[(i64, &str)]) -> Outbox {
        Outbox::new(
            reports.iter().map(|(record, agent)| (*record, RunId(0), AgentDid::parse(agent).unwrap())),
        )
    }

    fn next(outbox: &Outbox) -> Option<DueReport> {
        outbox.lock().next()
    }

    #[test]
    fn reports_of_one_agent_are_sent_in_order() {
        let outbox = outbox(&[(1, "did:a:x"), (2, "did:a:x"), (3, "did:a:y")]);
        let first = next(&outbox).unwrap();
        let other = next(&outbox).unwrap();
        assert_eq!((first.record, other.record), (1, 3));
        assert!(next(&outbox).is_none());
        outbox.mark_delivered(&first);
        assert_eq!(next(&outbox).unwrap().record, 2);
        assert_eq!(outbox.undelivered_count(), 2);
    }

    #[test]
    fn a_repeatedly_refused_report_does_not_block_the_next_one() {
        let outbox = outbox(&[(1, "did:a:x"), (2, "did:a:x")]);
        for tries in 1..MAX_REFUSALS {
            let failed = outbox.mark_failed(next(&outbox).unwrap(), true);
            assert_eq!((failed.record, failed.tries), (1, tries));
            outbox.requeue(failed);
        }
        let isolated = outbox.mark_failed(next(&outbox).unwrap(), true);
        let second = next(&outbox).unwrap();
        assert_eq!((second.record, second.tries), (2, 0));
        outbox.requeue(isolated);
        let first = next(&outbox).unwrap();
        assert_eq!((first.record, first.tries), (1, MAX_REFUSALS));
        outbox.mark_delivered(&second);
        outbox.mark_delivered(&first);
        assert_eq!(outbox.undelivered_count(), 0);
        assert!(outbox.lock().lanes.is_empty() && next(&outbox).is_none());
    }

    #[test]
    fn an_unreachable_governor_does_not_change_the_order() {
        let outbox = outbox(&[(1, "did:a:x"), (2, "did:a:x")]);
        for _ in 0..3 * MAX_REFUSALS {
            let failed = outbox.mark_failed(next(&outbox).unwrap(), false);
            assert_eq!(failed.record, 1);
            assert!(next(&outbox).is_none());
            outbox.requeue(failed);
        }
    }
}
