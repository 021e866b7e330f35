//! The intents that wait for a person: what lets them wait, and what ends their waits without a run.

use super::due_ends::DueEnds;
use super::faults::{busy_fault, intent_conflict_fault, stop_fault, unsaved_decision_fault};
use super::fleet::FleetDenial;
use super::open_intents::{
    MAX_WAITING, MAX_WAITING_PER_AGENT, OpenIntents, RestoredApprovals, is_same_call, wait_of,
};
use super::refusals::Refusals;
use super::wait_records::{
    EndOfWait, await_withdrawal, denial_fault, new_decision, new_resolution, record_end_of_wait,
};
use super::{AgentFilter, all_agents, trace};
use a2g_govern::{Escalated, Governor};
use a2g_intent::{Ended, EndedAll, EndedWait, HoldError, HoldOutcome, IfIdle, WakeCondition};
use a2g_journal::{
    Decisions, HoldResult, IntentClaims, IntentDenial, IntentSummary, Journal, JournalError, KnownIntent,
    Resolution, ResolvedIntent,
};
use a2g_types::call::Call;
use a2g_types::clock::Clock;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::IntentId;
use a2g_types::outcome::AbortReason;
use a2g_types::tool::Digest;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::watch;

/// The end of the wait of an intent on which nobody decided.
pub(super) const EXPIRED_UNDECIDED: EndOfWait<'static> =
    EndOfWait::without_author(Resolution::Expired, "nobody decided before its verdict expired");
/// The end of the wait of an approved intent that has not run.
pub(super) const EXPIRED_UNRUN: EndOfWait<'static> =
    EndOfWait::without_author(Resolution::Expired, "its verdict expired before it could start");
/// The end of the wait of a nested call whose parent has ended.
const ENDED_WITH_PARENT: EndOfWait<'static> =
    EndOfWait::without_author(Resolution::Cancelled, "the run that made this call has ended");
/// The maximum time before the wall clock is read again. Verdicts expire by the wall clock, which may be set.
const MAX_EXPIRY_WAIT: Duration = Duration::from_secs(60);
/// The interval at which expired intents are removed that no task waits for. Until then they hold memory of their caller.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Restores the intents of an earlier process. Records those that have expired since.
pub(super) fn restore_intents(
    decisions: &Decisions,
    approvals: RestoredApprovals,
    governor: &Governor,
    now: OffsetDateTime,
) -> OpenIntents {
    let (intents, ended) = OpenIntents::restore(decisions, approvals, governor, now);
    let ended = ended.into_iter().map(|call| EndedWait { call, is_recorded: true });
    let (nested, expired): (Vec<_>, Vec<_>) = ended.partition(|ended| ended.call.call().parent.is_some());
    // The records are not awaited, because none of these intents can be approved.
    drop(record_end_of_wait(decisions, expired, EXPIRED_UNDECIDED, now));
    drop(record_end_of_wait(decisions, nested, ENDED_WITH_PARENT, now));
    intents
}

/// Intents that were ended in one step.
pub(super) struct EndedIntents<F> {
    /// The number of those that waited, and of those whose runs are aborted.
    pub(super) count: usize,
    /// The runs that were not aborted before.
    pub(super) newly_aborted: Vec<IntentId>,
    /// The records of the ends of the waits, which are sent.
    pub(super) recording: F,
}

/// The fault for a decision on an intent that does not wait, or no longer.
pub(super) fn not_waiting_fault() -> Fault {
    Fault::invalid("/intent_id", "no intent with this id waits for a decision")
}

/// The waits for a person.
pub(super) struct Waits {
    decisions: Arc<Decisions>,
    journal_claims: Arc<IntentClaims>,
    intents: Arc<OpenIntents>,
    refusals: Arc<Refusals>,
    due_ends: Arc<DueEnds>,
    clock: Arc<dyn Clock>,
}

/// The result of holding an escalated intent.
pub(super) enum Held {
    /// The intent waits from now on.
    New,
    /// The intent waits already.
    Known,
    /// Another request has started the intent since this one looked it up.
    Started(KnownIntent),
}

impl Waits {
    pub(super) fn new(
        journal: &Journal,
        intents: Arc<OpenIntents>,
        refusals: Arc<Refusals>,
        due_ends: Arc<DueEnds>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let decisions = Arc::clone(&journal.decisions);
        let journal_claims = Arc::clone(&journal.claims);
        Self { decisions, journal_claims, intents, refusals, due_ends, clock }
    }

    /// Holds an escalated intent, which is on the disk before the caller learns that it waits. The decision is bound to
    /// the module.
    pub(super) async fn hold(&self, escalated: Escalated, module: Digest) -> Result<Held, Fault> {
        let escalated = escalated.bind_to_module(module);
        let call = escalated.call().clone();
        let until = escalated.expires_at();
        self.decisions.check_share(&call.agent)?;
        let text = escalated.to_journal().map_err(|error| Fault::Internal(error.to_string()))?;
        let now = self.clock.now();
        let begun = self.intents.update(|intents| {
            self.record_expired(intents.waits.expire(now), now);
            // The caller checked this before it asked the governor. Since then, other content may have begun to wait.
            let earlier = intents.waits.get(call.intent);
            if earlier.is_some_and(|wait| !is_same_call(wait.call().call(), &call)) {
                return Err(intent_conflict_fault(call.intent));
            }
            // The journal of the node at which it arrived has it.
            if earlier.is_some_and(|wait| !wait.is_recorded()) {
                return Ok(None);
            }
            let held = intents.hold(call.intent, wait_of(escalated));
            let outcome = held.map_err(|error| self.hold_fault(&call, error))?;
            Ok(Some((outcome, self.decisions.hold(&call, text, until))))
        })?;
        let Some((outcome, pending)) = begun else { return Ok(Held::Known) };
        let result = pending.await;
        if let HoldOutcome::New(wait) = outcome
            && !matches!(result, Ok(HoldResult::Waiting))
        {
            self.intents.end_wait(wait);
        }
        match result {
            Ok(HoldResult::Waiting) => match outcome {
                HoldOutcome::New(_) => {
                    tracing::info!("waits for a directive");
                    Ok(Held::New)
                }
                HoldOutcome::Known => Ok(Held::Known),
            },
            Ok(HoldResult::Conflict) => Err(intent_conflict_fault(call.intent)),
            Ok(HoldResult::Started) => {
                let known = self.journal_claims.find(&call, None).await?;
                known
                    .map(Held::Started)
                    .ok_or_else(|| busy_fault("a run of the intent was released: send it again"))
            }
            Ok(HoldResult::Denied(denial)) => Err(denial_fault(call.intent, &denial)),
            Err(error) => Err(Fault::from(error)),
        }
    }

    /// The fault of a call that may not wait for a person.
    fn hold_fault(&self, call: &Call, error: HoldError) -> Fault {
        match error {
            HoldError::Stopped(stop) => stop_fault(call.intent, &stop),
            HoldError::ParentEnded => {
                let blocked_by = BlockedBy::EscalationPending;
                let message = ENDED_WITH_PARENT.reason.to_owned();
                Fault::Refused { intent: Some(call.intent), risk_score: None, blocked_by, message }
            }
            HoldError::NoRoom => Fault::Busy {
                message: format!(
                    "too many intents wait for a person: at most {MAX_WAITING} may, and {MAX_WAITING_PER_AGENT} of one agent"
                ),
                retry_after_ms: 60_000,
            },
        }
    }

    /// Writes an intent that arrived at another node to the journal too, before a decision on it.
    pub(super) async fn record_hold(&self, escalated: &Escalated) -> Result<(), Fault> {
        let call = escalated.call();
        let text = escalated.to_journal().map_err(|error| Fault::Internal(error.to_string()))?;
        match self.decisions.hold(call, text, escalated.expires_at()).await {
            Ok(HoldResult::Waiting) => {
                self.intents.update(|intents| intents.waits.fleet().mark_recorded(call.intent));
                Ok(())
            }
            Ok(HoldResult::Denied(denial)) => Err(denial_fault(call.intent, &denial)),
            Ok(HoldResult::Started) => Err(not_waiting_fault()),
            Ok(HoldResult::Conflict) => Err(intent_conflict_fault(call.intent)),
            Err(error) => Err(Fault::from(error)),
        }
    }

    /// Writes to the journal that an intent whose approval another node has withdrawn waits no longer. The next decision here
    /// writes its wait again.
    pub(super) async fn record_withdrawal(&self, intent: IntentId, revision: u64, reason: &'static str) {
        let now = self.clock.now();
        let withdrawal = self.intents.update(|intents| {
            let escalated = intents.waits.fleet().mark_unrecorded(intent, revision)?;
            let end = new_resolution(&self.decisions, escalated, Resolution::Cancelled, reason, now);
            Some(self.decisions.resolve(vec![end]))
        });
        if let Some(recording) = withdrawal {
            await_withdrawal(recording).await;
        }
    }

    /// Ends the wait of an intent on which no task acts here.
    pub(super) async fn end_idle(&self, intent: IntentId, end: EndOfWait<'_>) {
        let now = self.clock.now();
        let removal = self.intents.update(|intents| {
            let removal = intents.waits.remove_idle(intent);
            removal.map(|ended| record_end_of_wait(&self.decisions, vec![ended], end, now))
        });
        if let IfIdle::Idle(recording) = removal {
            await_withdrawal(recording).await;
        }
    }

    /// Ends the wait of an intent on which no task acts here, because a node has denied it.
    pub(super) async fn end_denied(&self, intent: IntentId, denial: &FleetDenial) {
        let end = match denial {
            FleetDenial::ByPerson { by, reason, risk_score: _ } => {
                if let Err(fault) = self.deny_here(intent, by, reason.as_deref(), || Ok(())).await {
                    tracing::debug!(%intent, ?fault, "the denial of an intent is not recorded here yet");
                }
                return;
            }
            FleetDenial::Withdrawn { reason } => EndOfWait::withdrawn(*reason),
            FleetDenial::Refused { message } => EndOfWait::without_author(Resolution::Cancelled, message),
        };
        self.end_idle(intent, end).await;
    }

    /// Ends a nested call whose parent has ended.
    pub(super) async fn end_nested(&self, intent: IntentId) {
        match self.end_open(intent, &all_agents, AbortReason::ParentEnded, ENDED_WITH_PARENT) {
            Some(Ended::Wait(recording)) => await_withdrawal(recording).await,
            Some(Ended::Run(_)) | None => {}
        }
    }

    /// Ends an intent of the selected agents that waits here or is claimed. The result has the record of the end of a wait,
    /// which is already sent.
    pub(super) fn end_open(
        &self,
        intent: IntentId,
        filter: AgentFilter<'_>,
        reason: AbortReason,
        end: EndOfWait<'_>,
    ) -> Option<Ended<impl Future<Output = Result<usize, JournalError>> + Send + use<>>> {
        let now = self.clock.now();
        self.intents.update(|intents| {
            let ended = intents.end(intent, filter, reason)?;
            Some(ended.map(|ended| {
                self.due_ends.note_denial(ended.call.call(), reason);
                record_end_of_wait(&self.decisions, vec![ended], end, now)
            }))
        })
    }

    /// Ends the waits of undecided intents soon after they expire, until the sessions end.
    pub(super) async fn end_expired(&self) {
        loop {
            tokio::time::sleep(EXPIRY_INTERVAL).await;
            self.expire();
        }
    }

    /// Removes the undecided intents that have expired, and wakes the tasks that wait for them.
    fn expire(&self) {
        let now = self.clock.now();
        self.intents.update(|intents| self.record_expired(intents.waits.expire(now), now));
    }

    fn record_expired(&self, expired: Vec<EndedWait<Escalated>>, now: OffsetDateTime) {
        if expired.is_empty() {
            return;
        }
        // The own node of an intent removes its value. Another one does so later if that node is lost.
        expired.iter().filter(|ended| ended.is_recorded).for_each(|ended| {
            self.due_ends.note_removal(ended.call.call().intent);
        });
        // The record is not awaited, because an intent that has expired cannot be approved.
        drop(record_end_of_wait(&self.decisions, expired, EXPIRED_UNDECIDED, now));
    }

    /// Waits until a change of the held intents is announced, or until the wait in question may have ended by expiry.
    pub(super) async fn wait_for_change_or_expiry(
        &self,
        condition: WakeCondition,
        changes: &mut watch::Receiver<()>,
    ) {
        match condition {
            WakeCondition::AnotherTask => drop(changes.changed().await),
            WakeCondition::Until(expires_at) => {
                let remaining = Duration::try_from(expires_at - self.clock.now()).unwrap_or_default();
                // The wall clock may be set forward during the wait.
                let remaining = remaining.min(MAX_EXPIRY_WAIT);
                if tokio::time::timeout(remaining, changes.changed()).await.is_err() {
                    self.expire();
                }
            }
        }
    }

    /// Sends the records of intents that were ended in this step.
    pub(super) fn record_ended(
        &self,
        ended: EndedAll<EndedWait<Escalated>>,
        reason: AbortReason,
        end: EndOfWait<'_>,
    ) -> EndedIntents<impl Future<Output = Result<usize, JournalError>> + Send + use<>> {
        let EndedAll { waits, run_count, newly_aborted } = ended;
        waits.iter().for_each(|ended| self.due_ends.note_denial(ended.call.call(), reason));
        let count = waits.len() + run_count;
        let recording = record_end_of_wait(&self.decisions, waits, end, self.clock.now());
        EndedIntents { count, newly_aborted, recording }
    }

    /// Records the end of an approved intent that has not run.
    pub(super) async fn record_end(
        &self,
        escalated: &Escalated,
        resolution: Resolution,
        author_or_reason: &str,
        now: OffsetDateTime,
    ) {
        let ended = new_resolution(&self.decisions, escalated, resolution, author_or_reason, now);
        if let Err(error) = self.decisions.resolve(vec![ended]).await {
            tracing::warn!(%error, "the end of an approved intent cannot be recorded yet");
        }
    }

    /// Denies an intent at this executor, if `may_deny` allows it when the denial is recorded.
    pub(super) async fn deny_here(
        &self,
        intent: IntentId,
        by: &str,
        reason: Option<&str>,
        may_deny: impl Fn() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let now = self.clock.now();
        let record = |EndedWait { call: escalated, is_recorded }| {
            let denial = ResolvedIntent {
                reason: reason.map(str::to_owned),
                ..new_decision(&self.decisions, &escalated, Resolution::Denied, by, now)
            };
            let recording = is_recorded.then(|| self.decisions.resolve(vec![denial]));
            (escalated, recording)
        };
        let mut changes = self.intents.changes();
        let (escalated, recording) = loop {
            changes.mark_unchanged();
            // The list is read under the lock, because the other decision, which a denial waits for, may take long.
            let removal = self.intents.update(|intents| {
                if intents.waits.undecided_call(intent).is_some() {
                    may_deny()?;
                }
                Ok::<_, Fault>(intents.waits.remove_idle(intent).map(record))
            });
            match removal? {
                IfIdle::Idle(denied) => break denied,
                // The other decision may let the intent wait again, and the denial must not be lost then.
                IfIdle::InDecision => drop(changes.changed().await),
                IfIdle::Absent => return Err(not_waiting_fault()),
            }
        };
        // The journal of the node that has decided has it.
        let Some(recording) = recording else { return Ok(()) };
        let summary = IntentSummary::from_call(escalated.call());
        let reason = reason.map(str::to_owned);
        let denial = IntentDenial { by: Some(by.to_owned()), risk_score: escalated.risk_score(), reason };
        let fault = denial_fault(summary.intent, &denial);
        let span = trace::intent_span(&summary, escalated.call().door);
        span.in_scope(|| self.refusals.record_at(Some(&summary), fault, now));
        match recording.await {
            Ok(0) => Err(not_waiting_fault()),
            Ok(_one) => Ok(()),
            Err(error) => Err(unsaved_decision_fault(&error)),
        }
    }
}
