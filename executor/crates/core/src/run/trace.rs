//! The spans of an intent in the log and in a trace: one for the intent, with a span in it for its time in the queue
//! and one for its run. Its delivery has a span of its own, because another process may deliver.
//!
//! The span of an intent has level `error`, so that its fields are on every line that is logged at all. They contain
//! neither arguments nor results.

use a2g_journal::IntentSummary;
use a2g_metrics::ExecutionTimes;
use a2g_types::call::Door;
use a2g_types::outcome::Status;
use std::time::{Duration, Instant};
use tracing::Span;
use tracing::field::Empty;

/// The arrival of a call, and the part of the time since then that the executor did not spend itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch {
    entered: Instant,
    excluded: Duration,
}

impl Stopwatch {
    pub(super) fn start(entered: Instant) -> Self {
        Self { entered, excluded: Duration::ZERO }
    }

    /// Counts the time between two moments as not spent by the executor, and returns it.
    pub(super) fn exclude(&mut self, from: Instant, to: Instant) -> Duration {
        let passed = to.saturating_duration_since(from);
        self.excluded += passed;
        passed
    }

    /// The times of an execution that ends at `now`.
    pub(super) fn times(&self, queue: Duration, run: Duration, now: Instant) -> ExecutionTimes {
        let all = now.saturating_duration_since(self.entered);
        ExecutionTimes { queue, run, overhead: all.saturating_sub(self.excluded).saturating_sub(run) }
    }
}

/// The span of an intent.
pub(super) fn intent_span(asked: &IntentSummary, door: Door) -> Span {
    let IntentSummary { intent, agent, tool } = asked;
    let (agent, tool) = (agent.as_str(), tool.as_str());
    tracing::error_span!("intent", %intent, agent, tool, %door, status = Empty, blocked_by = Empty)
}

/// The span in which an intent waits for a slot.
pub(super) fn queue_span() -> Span {
    tracing::info_span!("queue")
}

/// The span in which a guest runs.
pub(super) fn run_span() -> Span {
    tracing::info_span!("run")
}

/// Logs that the receipt is on the disk: the one line that every execution gets.
pub(super) fn log_finished(status: Status, times: &ExecutionTimes) {
    let ExecutionTimes { queue, run, overhead } = times;
    Span::current().record("status", status.as_str());
    tracing::info!(
        wall_us = run.as_micros(),
        queue_us = queue.as_micros(),
        overhead_us = overhead.as_micros(),
        "finished"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::clock::{Clock as _, SystemClock};

    #[test]
    fn overhead_excludes_queue_and_run() {
        let ms = Duration::from_millis;
        let entered = SystemClock.monotonic();
        let mut stopwatch = Stopwatch::start(entered);
        stopwatch.exclude(entered + ms(1), entered + ms(11));
        let queue = stopwatch.exclude(entered + ms(12), entered + ms(32));
        let times = stopwatch.times(queue, ms(40), entered + ms(75));
        assert_eq!(times, ExecutionTimes { queue: ms(20), run: ms(40), overhead: ms(5) });
    }
}
