//! The faults of the pipeline, and the recording of refusals.

use super::{Executor, RETRY_AFTER_MS, trace};
use a2g_journal::{IntentSummary, JournalError};
use a2g_types::call::Call;
use a2g_types::error_chain::ErrorChain;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::IntentId;

impl Executor {
    /// Records the refusal of a call, or of another request if `call` is `None`. Returns the fault.
    pub fn refuse(&self, call: Option<&Call>, blocked_by: BlockedBy, message: String) -> Fault {
        let intent = call.map(|call| call.intent);
        let refusal = Fault::Refused { intent, risk_score: None, blocked_by, message };
        let Some(call) = call else { return self.record_refusal(None, refusal) };
        let summary = IntentSummary::from_call(call);
        trace::intent_span(&summary, call.door).in_scope(|| self.record_refusal(Some(&summary), refusal))
    }

    /// Counts and logs a refusal, and returns the fault. The refusal of a call is also recorded in the journal, and has
    /// to be passed here within the call's span.
    pub(super) fn record_refusal(&self, summary: Option<&IntentSummary>, fault: Fault) -> Fault {
        if let Fault::Busy { .. } = &fault {
            self.metrics.count_busy();
        }
        let Fault::Refused { blocked_by, message, .. } = &fault else { return fault };
        self.metrics.count_refusal(*blocked_by);
        // An intent that waits for a person is not recorded, because it may still run.
        if let Some(summary) = summary.filter(|_| *blocked_by != BlockedBy::EscalationPending) {
            self.journal.record_refusal(summary, *blocked_by, message, self.clock.now());
        }
        self.refusal_log.record(summary, &fault, self.clock.monotonic());
        fault
    }

    /// The fault for an error of the journal.
    pub(super) fn journal_fault(&self, error: &JournalError) -> Fault {
        match error {
            JournalError::Backlog | JournalError::NoSpace | JournalError::Busy => {
                self.busy_fault(&error.to_string())
            }
            JournalError::Broken(_) => Fault::Internal(ErrorChain(error).to_string()),
        }
    }

    pub(super) fn busy_fault(&self, message: &str) -> Fault {
        Fault::Busy { message: message.to_owned(), retry_after_ms: RETRY_AFTER_MS }
    }
}

pub(super) fn receipt_pending_fault(intent: IntentId) -> Fault {
    Fault::ReceiptPending { intent, retry_after_ms: RETRY_AFTER_MS }
}

/// The fault for a call whose intent id exists with other content. The message does not depend on the state or the
/// agent of that intent, so that an agent learns nothing about the intents of others.
pub(super) fn intent_conflict_fault(intent: IntentId) -> Fault {
    Fault::InvalidRequest(format!(
        "the intent id `{intent}` cannot be used for this call: every intent needs a new one, such as a random UUID, and \
         a repeat the same content"
    ))
}
