//! The records of decisions on the waits for a person, and of the ends of these waits.

use a2g_govern::{Escalated, denial_by};
use a2g_intent::EndedWait;
use a2g_journal::{
    Decisions, IntentDenial, IntentSummary, JournalError, Resolution, ResolvedIntent, content_hash,
};
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::IntentId;
use a2g_types::outcome::AbortReason;
use time::OffsetDateTime;

/// The reason why intents no longer wait.
#[derive(Clone, Copy)]
pub(super) struct EndOfWait<'a> {
    pub(super) resolution: Resolution,
    /// The author, or the reason if nobody decided.
    pub(super) author_or_reason: &'a str,
    /// The code of the refusal; `None` for an intent that is not refused here.
    pub(super) blocked_by: Option<BlockedBy>,
    /// The reason why the intents did not run.
    pub(super) reason: &'a str,
}

impl<'a> EndOfWait<'a> {
    /// The end of a wait without an author.
    pub(super) const fn without_author(resolution: Resolution, reason: &'a str) -> Self {
        let blocked_by = Some(BlockedBy::EscalationPending);
        Self { resolution, author_or_reason: reason, blocked_by, reason }
    }

    /// The end of a wait that is no refusal: another node has the intent, or the fleet has lost it.
    pub(super) const fn without_refusal(reason: &'a str) -> Self {
        Self { resolution: Resolution::Cancelled, author_or_reason: reason, blocked_by: None, reason }
    }

    /// The end of a wait that another node has withdrawn.
    pub(super) fn withdrawn(reason: AbortReason) -> Self {
        let is_revoked = reason == AbortReason::Revoked;
        let resolution = if is_revoked { Resolution::Revoked } else { Resolution::Cancelled };
        let is_stopped = reason == AbortReason::Stopped;
        let blocked_by = if is_stopped { BlockedBy::Stopped } else { BlockedBy::EscalationPending };
        Self { blocked_by: Some(blocked_by), ..Self::without_author(resolution, reason.message()) }
    }
}

/// A person's decision on an intent, bound to the intent's content.
pub(super) fn new_decision(
    decisions: &Decisions,
    escalated: &Escalated,
    resolution: Resolution,
    by: &str,
    now: OffsetDateTime,
) -> ResolvedIntent {
    let content = Some(content_hash(escalated.call()));
    ResolvedIntent { content, ..new_resolution(decisions, escalated, resolution, by, now) }
}

/// The end of a wait. It names its author, or the reason if nobody decided.
pub(super) fn new_resolution(
    decisions: &Decisions,
    escalated: &Escalated,
    resolution: Resolution,
    author_or_reason: &str,
    now: OffsetDateTime,
) -> ResolvedIntent {
    let intent = escalated.call().intent;
    let risk_score = escalated.risk_score();
    let ends_unrun = match resolution {
        // The start of the run has the arguments.
        Resolution::PartlyApproved | Resolution::Approved => false,
        Resolution::Denied | Resolution::Cancelled | Resolution::Revoked | Resolution::Expired => true,
    };
    ResolvedIntent {
        intent,
        at: now,
        content: None,
        resolution,
        by: author_or_reason.to_owned(),
        risk_score,
        manifest: None,
        reason: None,
        basis: None,
        grants: Vec::new(),
        arguments: if ends_unrun { decisions.arguments_text(escalated.call()) } else { None },
    }
}

/// Records that intents no longer wait, and their refusals, of those whose waits this journal has.
pub(super) fn record_end_of_wait(
    decisions: &Decisions,
    ended: Vec<EndedWait<Escalated>>,
    end: EndOfWait<'_>,
    now: OffsetDateTime,
) -> impl Future<Output = Result<usize, JournalError>> + Send + use<> {
    let EndOfWait { resolution, author_or_reason, blocked_by, reason } = end;
    let recorded = || ended.iter().filter(|ended| ended.is_recorded);
    for ended in recorded() {
        let summary = IntentSummary::from_call(ended.call.call());
        let IntentSummary { intent, agent, tool } = &summary;
        tracing::info!(%intent, agent = agent.as_str(), %tool, reason, "waits no longer");
        if let Some(blocked_by) = blocked_by {
            decisions.record_refusal(&summary, blocked_by, reason, now);
        }
    }
    let end =
        |ended: &EndedWait<_>| new_resolution(decisions, &ended.call, resolution, author_or_reason, now);
    decisions.resolve(recorded().map(end).collect())
}

/// Waits until the end of a wait is recorded. If it cannot be yet, the journal goes on trying.
pub(super) async fn await_withdrawal(recording: impl Future<Output = Result<usize, JournalError>>) {
    if let Err(error) = recording.await {
        tracing::warn!(%error, "the end of a wait cannot be recorded yet");
    }
}

/// The fault for a call with a denied intent.
pub(super) fn denial_fault(
    intent: IntentId,
    IntentDenial { by, risk_score, reason }: &IntentDenial,
) -> Fault {
    match by {
        Some(by) => denial_by(by, reason.as_deref(), intent, *risk_score),
        None => Fault::Refused {
            intent: Some(intent),
            risk_score: *risk_score,
            blocked_by: BlockedBy::VerdictDenied,
            message: reason.clone().unwrap_or_default(),
        },
    }
}
