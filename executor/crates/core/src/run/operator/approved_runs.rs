//! The runs of intents that enough people have approved: when each starts, and what becomes of one that cannot.
//!
//! ```text
//! approved ─▶ claimed ─▶ runs
//!    ▲ │ └─▶ denied, stopped or expired: ends
//!    │ └─▶ would get more than was shown: waits for a person again
//!    └── cannot run now: another attempt later
//! ```

use crate::run::claims::{ClaimOutcome, ClaimedRun};
use crate::run::engine::checks::check_arguments;
use crate::run::events::RunEventSink;
use crate::run::faults::{busy_fault, intent_conflict_fault};
use crate::run::open_intents::Kept;
use crate::run::pending::{RUN_ELSEWHERE, WIDER_THAN_SHOWN};
use crate::run::preview::{changed_fault, summarize};
use crate::run::trace::{self, Stopwatch};
use crate::run::wait_records::new_resolution;
use crate::run::waits::EXPIRED_UNRUN;
use crate::run::{Operator, RETRY_AFTER_MS};
use a2g_govern::Escalated;
use a2g_intent::{Intents, Wait, WaitId};
use a2g_journal::{Approval, HoldResult, IntentSummary, Resolution};
use a2g_runtime::spawn;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::outcome::AbortReason;
use a2g_types::verdict::Directive;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument as _;

/// The recorded reason why an approved intent that a person denied at another node did not run.
const DENIED_ELSEWHERE: &str = "it was denied at another node of the fleet";
/// The recorded reason why an approved intent did not run because of a stop.
const STOPPED: &str = "an operator has stopped its agent, its tool or everything";
/// The first delay between two attempts to run an approved intent; each delay is twice the previous one.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(RETRY_AFTER_MS);
/// The maximum of these delays.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The reason why an approved intent is not claimed.
pub(super) enum NotClaimed {
    /// The grant of the run would be wider than a grant that an approver was shown.
    WiderThanShown,
    /// Any other reason.
    Refused(Fault),
}

impl From<Fault> for NotClaimed {
    fn from(fault: Fault) -> Self {
        Self::Refused(fault)
    }
}

impl NotClaimed {
    /// The fault for the person whose approval starts the run.
    pub(super) fn into_fault(self) -> Fault {
        match self {
            Self::WiderThanShown => changed_fault(),
            Self::Refused(fault) => fault,
        }
    }
}

/// The end of an approved intent that does not run.
struct EndOfApproval {
    fault: Fault,
    resolution: Resolution,
    reason: &'static str,
    /// The reason for which no other node of the fleet may run it either; `None` if none can.
    denied_as: Option<AbortReason>,
}

/// `true` if the run was stopped for good, so that it must not begin later.
pub(super) fn is_withdrawal(reason: AbortReason) -> bool {
    match reason {
        AbortReason::Cancelled | AbortReason::Revoked | AbortReason::ParentEnded | AbortReason::Stopped => {
            true
        }
        AbortReason::Shutdown | AbortReason::Lost | AbortReason::LeaseLost => false,
    }
}

impl Operator {
    /// Runs the intents that were approved in an earlier process and did not start there. In a fleet,
    /// [`Self::follow_decisions`] does.
    pub fn resume_approved(self: &Arc<Self>) {
        let approved =
            self.intents.read(|intents| intents.waits.select(Wait::is_approved).collect::<Vec<_>>());
        for intent in approved {
            let Some((escalated, taken, approval)) = self.intents.take_approved(intent) else { continue };
            self.spawn_approved(escalated, taken, approval);
        }
    }

    fn spawn_approved(self: &Arc<Self>, escalated: Escalated, taken: WaitId, approval: Approval) {
        let span = trace::intent_span(&IntentSummary::from_call(escalated.call()), escalated.call().door);
        let operator = Arc::clone(self);
        let run = async move { operator.run_approved(escalated, taken, approval, None).await };
        spawn::spawn_run_task(run.instrument(span));
    }

    /// Runs the approved intents that this node can run and no other one is about to, and completes the denials whose node
    /// was lost.
    pub(in crate::run) async fn follow_decisions(self: &Arc<Self>) {
        for intent in self.intents.read(|intents| intents.waits.select(Wait::is_decided).collect::<Vec<_>>())
        {
            match self.pending.follow_decision(intent).await {
                Ok(Some(approval)) if !self.slots.is_closed() => {
                    if let Some((escalated, taken)) = self.intents.take_decided(intent) {
                        self.spawn_approved(escalated, taken, approval);
                    }
                }
                Ok(_) => {}
                Err(fault) => tracing::debug!(%intent, ?fault, "a decision of the fleet is followed later"),
            }
        }
    }

    /// Runs the checks of an approved intent, and claims it. The run gets the grant of this claim. Each attempt
    /// compares it with the grants that were shown, because standing policies, the catalogue and, after a restart, the
    /// configuration may have changed.
    pub(super) async fn claim_approved(
        self: &Arc<Self>,
        escalated: &Escalated,
        taken: WaitId,
        approval: &Approval,
    ) -> Result<Box<ClaimedRun>, NotClaimed> {
        let Approval { by, manifest, basis, grants } = approval;
        let intent = escalated.call().intent;
        let directive =
            Directive { intent, approved: true, manifest: manifest.clone(), reason: None, digest: None };
        let admitted = escalated.clone().resolve(&directive, by, self.clock.now())?;
        // The catalogue may have been replaced since the intent began to wait.
        let loaded = self.catalogue.find(admitted.call())?;
        check_arguments(&loaded, admitted.call()).await?;
        let claimed =
            match self.claims.claim(admitted, loaded, Some(Arc::new(escalated.verdict().clone()))).await? {
                ClaimOutcome::Claimed(claimed) => claimed,
                ClaimOutcome::Known(..) => {
                    return Err(busy_fault("another call with this intent is about to start it").into());
                }
            };
        let grant = summarize(claimed.permit.grant());
        // The record of an approval from a page has the grant that was shown.
        let is_comparable = basis.is_none() || !grants.is_empty();
        if !is_comparable || !grants.iter().all(|shown| grant.is_within(shown)) {
            drop(claimed);
            self.claims.release(intent).await?;
            return Err(NotClaimed::WiderThanShown);
        }
        Ok(Box::new(ClaimedRun { approved_by: Some(by.clone()), wait: Some(taken), ..*claimed }))
    }

    /// Runs an approved intent as soon as possible, with retries until its verdict expires or an operator stops it.
    pub(super) async fn run_approved(
        self: Arc<Self>,
        mut escalated: Escalated,
        mut taken: WaitId,
        mut approval: Approval,
        mut claimed: Option<Box<ClaimedRun>>,
    ) {
        let intent = escalated.call().intent;
        let mut delay = MIN_RETRY_DELAY;
        loop {
            let attempt = match claimed.take() {
                Some(claimed) => Ok(claimed),
                None => self.claim_approved(&escalated, taken, &approval).await,
            };
            let fault = match attempt {
                Ok(claimed) => self.run_claimed_approval(&escalated, taken, claimed).await,
                Err(NotClaimed::WiderThanShown) => return self.return_to_waiting(&escalated, taken).await,
                Err(NotClaimed::Refused(fault)) => Some(fault),
            };
            let Some(fault) = fault else { return };
            // Before the fleet is asked, so that a cancellation meanwhile finds the wait.
            self.intents.update(|intents| intents.waits.wait_to_run(taken, approval));
            if let Some(end) = self.find_final_end(&escalated, &fault).await {
                return self.end_approved(&escalated, taken, end).await;
            }
            let detail = if let Fault::Internal(detail) = &fault { Some(detail) } else { None };
            tracing::warn!(?fault, detail, pause_ms = delay.as_millis(), "an approved intent cannot run yet");
            // The delay ends at the expiry, so that the intent expires on time.
            let remaining = Duration::try_from(escalated.expires_at() - self.clock.now()).unwrap_or_default();
            tokio::select! {
                () = tokio::time::sleep(delay.min(remaining)) => {}
                // The next start of the executor runs the intent.
                () = self.slots.wait_until_closed() => return,
            }
            // Another node may have run it, or withdrawn its approval.
            if !self.pending.may_still_run(intent, taken).await {
                return self.intents.leave_to_fleet(taken);
            }
            // The intent may have been cancelled or revoked.
            let Some(again) = self.intents.take_approved(intent) else { return };
            (escalated, taken, approval) = again;
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }

    /// Runs a claimed intent that is approved. Returns the fault if it has not run and has not ended.
    async fn run_claimed_approval(
        self: &Arc<Self>,
        escalated: &Escalated,
        taken: WaitId,
        claimed: Box<ClaimedRun>,
    ) -> Option<Fault> {
        if !self.intents.update(|intents| intents.waits.mark_claimed(taken)) {
            drop(claimed);
            // The task that removed the intent has recorded its end.
            if let Err(fault) = self.claims.release(escalated.call().intent).await {
                tracing::warn!(?fault, "the claim of a withdrawn intent cannot be released");
            }
            return None;
        }
        let abort = Arc::clone(claimed.running.abort_handle());
        let stopwatch = Stopwatch::start(self.clock.monotonic());
        match Arc::clone(&self.engine).run_claimed(*claimed, stopwatch, RunEventSink::none()).await {
            Ok(_) | Err(Fault::ReceiptPending { .. }) => {
                self.due_ends.note_removal(escalated.call().intent);
                self.intents.end_wait(taken);
                if self.node.fleet().is_some() {
                    // Without effect if it has started here.
                    let now = self.clock.now();
                    self.waits.record_end(escalated, Resolution::Cancelled, RUN_ELSEWHERE, now).await;
                }
                None
            }
            Err(fault) => match abort.reason().filter(|reason| is_withdrawal(*reason)) {
                Some(reason) => {
                    let end = EndOfApproval {
                        fault,
                        resolution: Resolution::Cancelled,
                        reason: reason.message(),
                        denied_as: Some(reason),
                    };
                    self.end_approved(escalated, taken, end).await;
                    None
                }
                None => Some(fault),
            },
        }
    }

    /// The end of an approved intent that cannot run now and never will; `None` if it may run later.
    async fn find_final_end(&self, escalated: &Escalated, fault: &Fault) -> Option<EndOfApproval> {
        let intent = escalated.call().intent;
        let end = |fault, resolution, reason, denied_as| {
            Some(EndOfApproval { fault, resolution, reason, denied_as })
        };
        // Another node has recorded a denial since the approval.
        if let Ok(Some((_agent, denial))) = self.node.find_denial_in_fleet(intent).await {
            return end(denial.into_fault(intent), Resolution::Cancelled, DENIED_ELSEWHERE, None);
        }
        if matches!(fault, Fault::Refused { blocked_by: BlockedBy::Stopped, .. }) {
            return end(fault.clone(), Resolution::Cancelled, STOPPED, Some(AbortReason::Stopped));
        }
        if !escalated.is_in_time(self.clock.now()) {
            return end(fault.clone(), EXPIRED_UNRUN.resolution, EXPIRED_UNRUN.reason, None);
        }
        None
    }

    /// Lets an intent whose approval no longer counts wait for a person again. If that cannot be recorded, the intent
    /// is refused; sent again, it waits again.
    async fn return_to_waiting(&self, escalated: &Escalated, taken: WaitId) {
        let call = escalated.call();
        let text = match escalated.to_journal() {
            Ok(text) => text,
            Err(error) => {
                let fault = Fault::Internal(error.to_string());
                let reason = WIDER_THAN_SHOWN;
                let end = EndOfApproval { fault, resolution: Resolution::Cancelled, reason, denied_as: None };
                return self.end_approved(escalated, taken, end).await;
            }
        };
        if !self.pending.wait_again(call.intent, taken.number()).await {
            return self.intents.leave_to_fleet(taken);
        }
        let now = self.clock.now();
        let withdrawn =
            new_resolution(&self.decisions, escalated, Resolution::Cancelled, WIDER_THAN_SHOWN, now);
        let again = self.intents.update(|intents| {
            let is_recorded = intents.waits.get(call.intent).is_some_and(Wait::is_recorded);
            let wait = intents.waits.wait_again(taken)?;
            if !is_recorded {
                return None;
            }
            let withdrawal = self.decisions.resolve(vec![withdrawn]);
            Some((wait, withdrawal, self.decisions.hold(call, text, escalated.expires_at())))
        });
        if let Err(fault) = self.pending.refresh(call.intent).await {
            tracing::debug!(?fault, "a look follows the new wait");
        }
        let Some((wait, withdrawal, held)) = again else { return };
        let held = match withdrawal.await {
            Ok(_count) => held.await,
            Err(error) => Err(error),
        };
        let fault = match held {
            Ok(HoldResult::Waiting) => {
                tracing::warn!(
                    "waits for a person again: its run would get more than its approvers were shown"
                );
                return;
            }
            Ok(HoldResult::Started | HoldResult::Denied(_)) => {
                busy_fault("the intent was decided in the meantime: send it again")
            }
            Ok(HoldResult::Conflict) => intent_conflict_fault(call.intent),
            Err(error) => Fault::from(error),
        };
        if self.intents.end_wait(wait) {
            self.refusals.record(Some(&IntentSummary::from_call(call)), fault);
        }
    }

    /// Ends the wait of an approved intent that can no longer run.
    async fn end_approved(&self, escalated: &Escalated, taken: WaitId, end: EndOfApproval) {
        let call = escalated.call();
        let is_recorded =
            |intents: &Intents<Kept>| intents.waits.get(call.intent).is_some_and(Wait::is_recorded);
        let is_recorded = self.intents.read(is_recorded);
        match end.denied_as {
            Some(reason) => self.due_ends.note_denial(call, reason),
            None => self.due_ends.note_removal(call.intent),
        }
        // A stop that has removed the intent has also recorded its end.
        if !self.intents.end_wait(taken) || !is_recorded {
            return;
        }
        let now = self.clock.now();
        self.refusals.record_at(Some(&IntentSummary::from_call(escalated.call())), end.fault, now);
        self.waits.record_end(escalated, end.resolution, end.reason, now).await;
    }
}
