//! The spans of an intent in the log and in a trace: one for the intent, with a span in it for its time in the queue
//! and one for its run. Its delivery has a span of its own, because another process may deliver.
//!
//! The span of an intent has level `error`, so that its fields are on every line that is logged at all. They contain
//! neither arguments nor results.

use crate::call::Door;
use crate::journal::IntentSummary;
use crate::metrics::Times;
use crate::outcome::Status;
use std::time::{Duration, Instant};
use tracing::Span;
use tracing::field::Empty;

/// The arrival of a call, and the part of the time since then that the executor did not spend itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocked {
    entered: Instant,
    elsewhere: Duration,
}

impl Clocked {
    pub(super) fn from(entered: Instant) -> Self {
        Self { entered, elsewhere: Duration::ZERO }
    }

    /// Counts the time between two moments as spent elsewhere, and returns it.
    pub(super) fn elsewhere(&mut self, from: Instant, to: Instant) -> Duration {
        let passed = to.saturating_duration_since(from);
        self.elsewhere += passed;
        passed
    }

    /// The times of an execution that ends at `now`.
    pub(super) fn times(&self, queue: Duration, run: Duration, now: Instant) -> Times {
        let all = now.saturating_duration_since(self.entered);
        Times { queue, run, overhead: all.saturating_sub(self.elsewhere).saturating_sub(run) }
    }
}

/// The span of an intent.
pub(super) fn intent(asked: &IntentSummary, door: Door) -> Span {
    let IntentSummary { intent, agent, tool } = asked;
    let (agent, tool) = (agent.as_str(), tool.as_str());
    tracing::error_span!("intent", %intent, agent, tool, %door, status = Empty, blocked_by = Empty)
}

/// The span in which an intent waits for a slot.
pub(super) fn queue() -> Span {
    tracing::info_span!("queue")
}

/// The span in which a guest runs.
pub(super) fn run() -> Span {
    tracing::info_span!("run")
}

/// Logs that the receipt is on the disk: the one line that every execution gets.
pub(super) fn finished(status: Status, times: &Times) {
    let Times { queue, run, overhead } = times;
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
    use crate::clock::{Clock as _, SystemClock};

    #[test]
    fn overhead_is_what_nobody_else_took() {
        let ms = Duration::from_millis;
        let entered = SystemClock.monotonic();
        let mut clocked = Clocked::from(entered);
        clocked.elsewhere(entered + ms(1), entered + ms(11));
        let queue = clocked.elsewhere(entered + ms(12), entered + ms(32));
        let times = clocked.times(queue, ms(40), entered + ms(75));
        assert_eq!(times, Times { queue: ms(20), run: ms(40), overhead: ms(5) });
    }
}
