//! The log of refusals. The number of lines is limited, so that many refusals do not flood the log.

use a2g_journal::IntentSummary;
use a2g_types::fault::Fault;
use a2g_types::log_limiter::LogLimiter;
use std::time::Instant;

/// The refusals that were logged recently.
#[derive(Debug, Default)]
pub(super) struct RefusalLog(LogLimiter);

impl RefusalLog {
    /// Logs a refusal; ignores other faults. For a call, the current span gets the reason, and the message, which may
    /// quote arguments, is not logged.
    pub(super) fn record(&self, call: Option<&IntentSummary>, fault: &Fault, now: Instant) {
        let Fault::Refused { intent: _, risk_score, blocked_by, message } = fault else { return };
        tracing::Span::current().record("blocked_by", blocked_by.as_str());
        let Some(suppressed) = self.0.try_acquire(now) else { return };
        if suppressed > 0 {
            tracing::warn!(
                left_out = suppressed,
                "some refusals were not logged, because there were too many"
            );
        }
        match call {
            Some(_) => tracing::warn!(risk_score, "refused"),
            None => tracing::warn!(blocked_by = blocked_by.as_str(), reason = message, "refused"),
        }
    }
}
