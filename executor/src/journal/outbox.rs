//! The order in which reports go to the governor.
//!
//! Reports of one agent go one after another, in the order in which their runs ended; those of different agents go in
//! parallel. A report that the governor keeps refusing leaves its agent's line, so that it does not hold up the others,
//! and is retried without a limit.

use super::store::Run;
use crate::ident::AgentDid;
use crate::outcome::Receipt;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// The number of refusals of a report after which others of its agent go first.
const MAX_REFUSALS: u32 = 8;
/// The maximum size of cached receipts, in bytes. The others are read again when their turn comes.
const MAX_CACHED_BYTES: u64 = 8 << 20;
/// The ratio of a parsed result's memory to its text: measured at 60 for small objects.
const PARSED_FACTOR: u64 = 60;
/// The memory of a receipt without the output of its tool, in bytes.
const RECEIPT_BYTES: u64 = 2 << 10;

/// A line of reports that wait for each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Line {
    Agent(AgentDid),
    Alone(i64),
}

/// A report whose turn it is.
#[derive(Debug)]
pub struct Due {
    line: Line,
    /// The record of its receipt.
    pub(super) record: i64,
    pub(super) run: Run,
    /// The number of earlier attempts.
    pub tries: u32,
    /// The receipt, if it is cached.
    pub(super) at_hand: Option<Arc<Receipt>>,
}

#[derive(Debug, Default)]
struct Waiting {
    reports: VecDeque<Report>,
    tries: u32,
    refusals: u32,
}

#[derive(Debug)]
struct Report {
    record: i64,
    run: Run,
    at_hand: Option<(Arc<Receipt>, u64)>,
}

#[derive(Debug, Default)]
struct Inner {
    lines: HashMap<Line, Waiting>,
    due: VecDeque<Line>,
    bytes_at_hand: u64,
}

/// The outbox.
#[derive(Debug)]
pub(super) struct Outbox {
    inner: Mutex<Inner>,
    ready: Notify,
    undelivered: watch::Sender<usize>,
}

impl Outbox {
    /// An outbox with the reports that an earlier process left, oldest first.
    pub(super) fn new(left: impl IntoIterator<Item = (i64, Run, AgentDid)>) -> Self {
        let outbox = Self { inner: Mutex::default(), ready: Notify::new(), undelivered: watch::channel(0).0 };
        left.into_iter()
            .for_each(|(record, run, agent)| outbox.add(agent, Report { record, run, at_hand: None }));
        outbox
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the report of a finished run.
    pub(super) fn push(&self, record: i64, run: Run, receipt: &Arc<Receipt>) {
        let bytes =
            receipt.outcome.metrics.output_bytes.saturating_mul(PARSED_FACTOR).saturating_add(RECEIPT_BYTES);
        let at_hand = {
            let mut inner = self.lock();
            let room = inner.bytes_at_hand.saturating_add(bytes) <= MAX_CACHED_BYTES;
            inner.bytes_at_hand += if room { bytes } else { 0 };
            room.then(|| (Arc::clone(receipt), bytes))
        };
        self.add(receipt.agent.clone(), Report { record, run, at_hand });
    }

    fn add(&self, agent: AgentDid, report: Report) {
        let mut inner = self.lock();
        let line = Line::Agent(agent);
        let waiting = inner.lines.entry(line.clone()).or_default();
        waiting.reports.push_back(report);
        if waiting.reports.len() == 1 {
            inner.due.push_back(line);
        }
        drop(inner);
        self.undelivered.send_modify(|count| *count += 1);
        self.ready.notify_one();
    }

    /// Waits for the next report. It belongs to the caller until [`Self::delivered`], or [`Self::failed`] and
    /// [`Self::again`].
    pub(super) async fn next(&self) -> Due {
        loop {
            let ready = self.ready.notified();
            if let Some(due) = self.lock().next() {
                return due;
            }
            ready.await;
        }
    }

    /// Removes a report that the governor has.
    pub(super) fn delivered(&self, due: &Due) {
        let mut inner = self.lock();
        inner.step_out(&due.line);
        inner.go_on(&due.line);
        drop(inner);
        self.undelivered.send_modify(|count| *count = count.saturating_sub(1));
        self.ready.notify_one();
    }

    /// Records that the governor refused the report, or could not be reached. After a pause, the caller passes it to
    /// [`Self::again`].
    pub(super) fn failed(&self, mut due: Due, refused: bool) -> Due {
        let mut inner = self.lock();
        let Some(waiting) = inner.lines.get_mut(&due.line) else { return due };
        waiting.tries += 1;
        waiting.refusals += u32::from(refused);
        due.tries = waiting.tries;
        if waiting.refusals < MAX_REFUSALS || matches!(due.line, Line::Alone(_)) {
            return due;
        }
        let alone = Line::Alone(due.record);
        let tries = waiting.tries;
        inner.step_out(&due.line);
        inner.go_on(&due.line);
        let reports = VecDeque::from([Report { record: due.record, run: due.run, at_hand: None }]);
        inner.lines.insert(alone.clone(), Waiting { reports, tries, refusals: 0 });
        drop(inner);
        self.ready.notify_one();
        Due { line: alone, at_hand: None, ..due }
    }

    /// Queues a report for another attempt.
    pub(super) fn again(&self, due: Due) {
        self.lock().due.push_back(due.line);
        self.ready.notify_one();
    }

    /// The number of reports that the governor does not have.
    pub(super) fn undelivered(&self) -> usize {
        *self.undelivered.borrow()
    }

    /// Waits until the governor has every report.
    pub(super) async fn all_delivered(&self) {
        drop(self.undelivered.subscribe().wait_for(|count| *count == 0).await);
    }
}

impl Inner {
    fn next(&mut self) -> Option<Due> {
        let line = self.due.pop_front()?;
        let Waiting { reports, tries, .. } = self.lines.get(&line)?;
        let Report { record, run, at_hand } = reports.front()?;
        let at_hand = at_hand.as_ref().map(|(receipt, _)| Arc::clone(receipt));
        Some(Due { record: *record, run: *run, tries: *tries, at_hand, line })
    }

    /// Removes the first report from a line.
    fn step_out(&mut self, line: &Line) {
        let Some(waiting) = self.lines.get_mut(line) else { return };
        let gone = waiting.reports.pop_front();
        (waiting.tries, waiting.refusals) = (0, 0);
        let bytes = gone.and_then(|report| report.at_hand).map_or(0, |(_, bytes)| bytes);
        self.bytes_at_hand = self.bytes_at_hand.saturating_sub(bytes);
    }

    /// Queues a line for its next report, or removes the line if it is empty.
    fn go_on(&mut self, line: &Line) {
        if self.lines.get(line).is_some_and(|waiting| waiting.reports.is_empty()) {
            self.lines.remove(line);
        } else {
            self.due.push_back(line.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox(left: &[(i64, &str)]) -> Outbox {
        Outbox::new(left.iter().map(|(record, agent)| (*record, Run(0), AgentDid::parse(agent).unwrap())))
    }

    fn next(outbox: &Outbox) -> Option<Due> {
        outbox.lock().next()
    }

    #[test]
    fn an_agents_reports_wait_for_each_other_and_no_others() {
        let outbox = outbox(&[(1, "did:a:x"), (2, "did:a:x"), (3, "did:a:y")]);
        let (first, other) = (next(&outbox).unwrap(), next(&outbox).unwrap());
        assert_eq!((first.record, other.record), (1, 3));
        assert!(next(&outbox).is_none());
        outbox.delivered(&first);
        assert_eq!(next(&outbox).unwrap().record, 2);
        assert_eq!(outbox.undelivered(), 2);
    }

    #[test]
    fn a_report_that_is_refused_again_and_again_lets_others_go_first() {
        let outbox = outbox(&[(1, "did:a:x"), (2, "did:a:x")]);
        for tries in 1..MAX_REFUSALS {
            let failed = outbox.failed(next(&outbox).unwrap(), true);
            assert_eq!((failed.record, failed.tries), (1, tries));
            outbox.again(failed);
        }
        let alone = outbox.failed(next(&outbox).unwrap(), true);
        let second = next(&outbox).unwrap();
        assert_eq!((second.record, second.tries), (2, 0));
        outbox.again(alone);
        let first = next(&outbox).unwrap();
        assert_eq!((first.record, first.tries), (1, MAX_REFUSALS));
        outbox.delivered(&second);
        outbox.delivered(&first);
        assert_eq!(outbox.undelivered(), 0);
        assert!(outbox.lock().lines.is_empty() && next(&outbox).is_none());
    }

    #[test]
    fn a_governor_that_cannot_be_reached_changes_no_order() {
        let outbox = outbox(&[(1, "did:a:x"), (2, "did:a:x")]);
        for _ in 0..3 * MAX_REFUSALS {
            let failed = outbox.failed(next(&outbox).unwrap(), false);
            assert_eq!(failed.record, 1);
            assert!(next(&outbox).is_none());
            outbox.again(failed);
        }
    }
}
