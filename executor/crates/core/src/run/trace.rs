//! The spans of an intent in the log and in traces: one for the intent, which contains one for the queue and one for
//! the run. The delivery has its own span, because another process may deliver the report.
//!
//! The span of an intent has level `error`, so that its fields are on every line of the log. The fields contain neither
//! arguments nor results.

use a2g_journal::IntentSummary;
use a2g_metrics::ExecutionTimes;
use a2g_types::call::Door;
use a2g_types::outcome::Status;
use std::time::{Duration, Instant};
use tracing::Span;
use tracing::field::Empty;

/// Measures the time that the executor itself spends on a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch {
    /// The arrival of the call.
    arrival: Instant,
    excluded: Duration,
}

impl Stopwatch {
    pub(super) fn start(arrival: Instant) -> Self {
        Self { arrival, excluded: Duration::ZERO }
    }

    /// Excludes the time between two instants, and returns it.
    pub(super) fn exclude(&mut self, from: Instant, to: Instant) -> Duration {
        let elapsed = to.saturating_duration_since(from);
        self.excluded += elapsed;
        elapsed
    }

    /// The times of an execution that ends at `now`.
    pub(super) fn times(&self, queue: Duration, run: Duration, now: Instant) -> ExecutionTimes {
        let total = now.saturating_duration_since(self.arrival);
        ExecutionTimes { queue, run, overhead: total.saturating_sub(self.excluded).saturating_sub(run) }
    }
}

/// The span of an intent.
pub(super) fn intent_span(summary: &IntentSummary, door: Door) -> Span {
    let IntentSummary { intent, agent, tool } = summary;
    let agent = agent.as_str();
    let tool = tool.as_str();
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

/// Logs that the receipt is on the disk, once for each execution.
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
        let arrival = SystemClock.monotonic();
        let mut stopwatch = Stopwatch::start(arrival);
        stopwatch.exclude(arrival + ms(1), arrival + ms(11));
        let queue = stopwatch.exclude(arrival + ms(12), arrival + ms(32));
        let times = stopwatch.times(queue, ms(40), arrival + ms(75));
        assert_eq!(times, ExecutionTimes { queue: ms(20), run: ms(40), overhead: ms(5) });
    }
}
