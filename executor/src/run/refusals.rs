//! The log of refused calls. Every refusal passes here with its reason; the number of lines is limited, so that many
//! refusals do not flood the log.

use crate::fault::Fault;
use crate::journal::Asked;
use crate::log_limiter::LogLimiter;
use std::time::Instant;

/// The refusals that were logged recently.
#[derive(Debug, Default)]
pub(super) struct Refusals(LogLimiter);

impl Refusals {
    /// Logs a refusal. If it is about a call, the span of its intent has the reason, and the message for the caller,
    /// which may quote arguments, is left to the journal. Faults other than refusals, such as a failed tool, are left
    /// to the code that answers.
    pub(super) fn record(&self, call: Option<&Asked>, fault: &Fault, now: Instant) {
        let Fault::Refused { intent: _, risk_score, blocked_by, message } = fault else { return };
        tracing::Span::current().record("blocked_by", blocked_by.as_str());
        let Some(left_out) = self.0.try_acquire(now) else { return };
        if left_out > 0 {
            tracing::warn!(left_out, "more calls were refused than there is room for in the log");
        }
        match call {
            Some(_) => tracing::warn!(risk_score, "refused"),
            None => tracing::warn!(blocked_by = blocked_by.as_str(), reason = message, "refused"),
        }
    }
}
