//! The one place that every refused call passes: it is logged with its reason, and a flood of refusals
//! does not become a flood of lines.

use crate::fault::Fault;
use crate::journal::Asked;
use crate::lines::Lines;
use std::time::Instant;

/// What was logged of late.
#[derive(Debug, Default)]
pub(super) struct Refusals(Lines);

impl Refusals {
    /// Records that a call was refused, in the span of its intent, when it was about one, which says why. The
    /// sentence for the caller may quote arguments then, and is left to the journal. Faults that are no refusals,
    /// such as a tool that failed, are left to whoever answers.
    pub(super) fn record(&self, call: Option<&Asked>, fault: &Fault, now: Instant) {
        let Fault::Refused { intent: _, risk_score, blocked_by, message } = fault else { return };
        tracing::Span::current().record("blocked_by", blocked_by.as_str());
        let Some(left_out) = self.0.one_more(now) else { return };
        if left_out > 0 {
            tracing::warn!(left_out, "more calls were refused than there is room for in the log");
        }
        match call {
            Some(_) => tracing::warn!(risk_score, "refused"),
            None => tracing::warn!(blocked_by = blocked_by.as_str(), reason = message, "refused"),
        }
    }
}
