//! The recording of refusals: they are counted, logged, and written to the journal if they are about a call.

use super::refusal_log::RefusalLog;
use super::trace;
use a2g_journal::{Decisions, IntentSummary};
use a2g_metrics::Metrics;
use a2g_types::call::Call;
use a2g_types::clock::Clock;
use a2g_types::fault::{BlockedBy, Fault};
use std::sync::Arc;
use time::OffsetDateTime;

/// The record of refusals.
pub struct Refusals {
    decisions: Arc<Decisions>,
    metrics: Arc<Metrics>,
    refusal_log: RefusalLog,
    clock: Arc<dyn Clock>,
}

impl Refusals {
    pub(super) fn new(decisions: Arc<Decisions>, metrics: Arc<Metrics>, clock: Arc<dyn Clock>) -> Self {
        Self { decisions, metrics, refusal_log: RefusalLog::default(), clock }
    }

    /// Records the refusal of a call, or of another request if `call` is `None`. Returns the fault.
    pub fn refuse(&self, call: Option<&Call>, blocked_by: BlockedBy, message: String) -> Fault {
        let intent = call.map(|call| call.intent);
        let refusal = Fault::Refused { intent, risk_score: None, blocked_by, message };
        match call {
            Some(call) => self.record_of_call(call, refusal),
            None => self.record(None, refusal),
        }
    }

    /// As [`Self::record`], within the span of the call.
    pub(super) fn record_of_call(&self, call: &Call, fault: Fault) -> Fault {
        let summary = IntentSummary::from_call(call);
        trace::intent_span(&summary, call.door).in_scope(|| self.record(Some(&summary), fault))
    }

    /// Counts and logs a refusal, and returns the fault. The refusal of a call is also recorded in the journal, and has
    /// to be passed here within the call's span.
    pub(super) fn record(&self, summary: Option<&IntentSummary>, fault: Fault) -> Fault {
        self.record_at(summary, fault, self.clock.now())
    }

    /// As [`Self::record`], at the time of the end of the call's wait.
    pub(super) fn record_at(
        &self,
        summary: Option<&IntentSummary>,
        fault: Fault,
        now: OffsetDateTime,
    ) -> Fault {
        if let Fault::Busy { .. } = &fault {
            self.metrics.count_busy();
        }
        let Fault::Refused { blocked_by, message, .. } = &fault else { return fault };
        self.metrics.count_refusal(*blocked_by);
        // An intent that waits for a person is not recorded, because it may still run.
        if let Some(summary) = summary.filter(|_| *blocked_by != BlockedBy::EscalationPending) {
            self.decisions.record_refusal(summary, *blocked_by, message, now);
        }
        self.refusal_log.record(summary, &fault, self.clock.monotonic());
        fault
    }
}
