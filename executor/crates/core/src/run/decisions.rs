//! Decisions of people about intents: approve, deny, cancel, revoke.
//!
//! A decision is in the journal before its answer is sent. An approved intent runs once, at the latest when the
//! executor restarts; a denied intent never runs.

use super::escalations::{Escalations, WakeCondition};
use super::events::RunEventSink;
use super::trace::{self, Stopwatch};
use super::{AgentFilter, ClaimOutcome, ClaimedRun, Executor, RETRY_AFTER_MS, all_agents};
use a2g_govern::{DecisionRight, Escalated, denial_by};
use a2g_journal::{
    Approval, HoldResult, IntentDenial, IntentSummary, Journal, JournalError, Resolution, ResolvedIntent,
};
use a2g_runtime::spawn;
use a2g_types::error_chain::ErrorChain;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::outcome::AbortReason;
use a2g_types::verdict::Directive;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::{oneshot, watch};
use tracing::Instrument as _;

/// The recorded reasons of intents that stopped waiting without a run.
const UNDECIDED: &str = "nobody decided about it before its verdict expired";
const CANCELLED: &str = "it was cancelled while it waited for a directive";
const REVOKED: &str = "it was revoked while it waited for a directive";
/// The shortest and the longest pause between two attempts to run an approved intent.
const MIN_PAUSE: Duration = Duration::from_millis(RETRY_AFTER_MS);
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// The longest wait for an expiry before the wall clock is read again; verdicts expire by the wall clock.
const MAX_EXPIRY_WAIT: Duration = Duration::from_secs(60);

/// The intents that an earlier process held. Those that have expired since are recorded as expired.
pub(super) fn restore_escalations(journal: &Journal, now: OffsetDateTime) -> Escalations {
    let (escalations, expired) = Escalations::new(journal.take_held(), now);
    // The record can be late: an intent that has expired cannot be approved.
    drop(record_end_of_wait(journal, expired, Resolution::Expired, UNDECIDED, UNDECIDED, now));
    escalations
}

fn new_resolution(escalated: &Escalated, resolution: Resolution, by: &str) -> ResolvedIntent {
    let (intent, risk_score) = (escalated.call().intent, escalated.risk_score());
    ResolvedIntent { intent, resolution, by: by.to_owned(), risk_score, manifest: None }
}

/// Records that intents no longer wait: the decision, the decider, and the reason why they did not run.
fn record_end_of_wait(
    journal: &Journal,
    gone: Vec<Escalated>,
    resolution: Resolution,
    by: &str,
    why: &str,
    now: OffsetDateTime,
) -> impl Future<Output = Result<usize, JournalError>> + Send + use<> {
    for escalated in &gone {
        let asked = IntentSummary::from_call(escalated.call());
        let IntentSummary { intent, agent, tool } = &asked;
        tracing::info!(%intent, agent = agent.as_str(), %tool, reason = why, "waits no longer");
        journal.record_refusal(&asked, BlockedBy::EscalationPending, why, now);
    }
    journal.resolve(gone.iter().map(|escalated| new_resolution(escalated, resolution, by)).collect())
}

fn not_waiting_fault() -> Fault {
    Fault::invalid("/intent_id", "no intent with this id waits for a directive")
}

/// The fault for a repeat of a denied intent.
pub(super) fn denial_fault(intent: IntentId, IntentDenial { by, risk_score }: &IntentDenial) -> Fault {
    denial_by(by, intent, *risk_score)
}

impl Executor {
    /// Holds an escalated intent. It is on the disk before any caller learns that it waits.
    pub(super) async fn hold(&self, escalated: Escalated) -> Result<(), Fault> {
        let (call, until) = (escalated.call().clone(), escalated.expires_at());
        let text = escalated.to_journal().map_err(|error| Fault::Internal(error.to_string()))?;
        let now = self.clock.now();
        let (new, held) = self.escalations.hold(escalated, now, |expired| {
            self.record_expired(expired, now);
            self.journal.hold(&call, text, until)
        })?;
        let waits = held.await;
        if new && !matches!(waits, Ok(HoldResult::Waiting)) {
            self.escalations.remove_waiting(call.intent, &all_agents, drop);
        }
        match waits {
            Ok(HoldResult::Waiting) => {
                if new {
                    tracing::info!("waits for a directive");
                }
                Ok(())
            }
            Ok(HoldResult::Started) => {
                Err(self.busy_fault("the intent has started meanwhile: send it again"))
            }
            Ok(HoldResult::Denied(denial)) => Err(denial_fault(call.intent, &denial)),
            Err(error) => Err(self.journal_fault(&error)),
        }
    }

    /// Removes the undecided intents that have expired, and wakes the tasks that wait for them.
    fn expire(&self) {
        let now = self.clock.now();
        self.escalations.remove_expired(now, |expired| self.record_expired(expired, now));
    }

    fn record_expired(&self, expired: Vec<Escalated>, now: OffsetDateTime) {
        // The record can be late: an intent that has expired cannot be approved.
        drop(record_end_of_wait(&self.journal, expired, Resolution::Expired, UNDECIDED, UNDECIDED, now));
    }

    /// Waits until a change of the held intents is announced, or until the wait of one ends by its expiry.
    pub(super) async fn wait_for_change_or_expiry(
        &self,
        wait: WakeCondition,
        changes: &mut watch::Receiver<()>,
    ) {
        match wait {
            WakeCondition::AnotherTask => drop(changes.changed().await),
            WakeCondition::Until(expires_at) => {
                let left = Duration::try_from(expires_at - self.clock.now()).unwrap_or_default();
                // The wall clock may be set forward meanwhile.
                let left = left.min(MAX_EXPIRY_WAIT);
                if tokio::time::timeout(left, changes.changed()).await.is_err() {
                    self.expire();
                }
            }
        }
    }

    /// The fault for a decision that is effective here, but not recorded on the disk yet.
    fn unsaved_decision_fault(&self, error: &JournalError) -> Fault {
        match error {
            JournalError::Backlog | JournalError::NoSpace | JournalError::Busy => self.busy_fault(
                "it is done, and the journal has no room to say so on its disk: until it has, a restart could undo it",
            ),
            JournalError::Broken(_) => Fault::Internal(ErrorChain(error).to_string()),
        }
    }

    /// Stops a running or waiting intent of the selected agents, on behalf of `by`. Returns `true` if there was
    /// something to stop.
    ///
    /// # Errors
    /// The decision is not on the disk yet; the intent is stopped nevertheless.
    pub async fn cancel(&self, intent: IntentId, filter: AgentFilter<'_>, by: &str) -> Result<bool, Fault> {
        let now = self.clock.now();
        let waited = self.escalations.remove_waiting(intent, filter, |waited| {
            record_end_of_wait(&self.journal, waited, Resolution::Cancelled, by, CANCELLED, now)
        });
        let recorded = match (waited, self.active_runs.abort_one(intent, filter, AbortReason::Cancelled)) {
            (Some(gone), _) => gone.await.map(drop),
            (None, Some(true)) => self.journal.record_stop(&[intent], by, "a2g/cancel").await,
            // The caller that stopped it first is on record.
            (None, Some(false)) => Ok(()),
            (None, None) => return Ok(false),
        };
        recorded.map(|()| true).map_err(|error| self.unsaved_decision_fault(&error))
    }

    /// Drops standing capabilities and stops the intents that run or wait under them, on behalf of `by`. Without an
    /// agent or an intent, everything is revoked. Returns the number of runs and waiting intents that were stopped.
    ///
    /// # Errors
    /// The revocation is not on the disk yet; all intents are stopped nevertheless.
    pub async fn revoke(
        &self,
        agent: Option<&AgentDid>,
        intent: Option<IntentId>,
        by: &str,
    ) -> Result<usize, Fault> {
        tracing::warn!(
            agent = agent.map(AgentDid::as_str),
            intent = intent.map(tracing::field::display),
            caller = by,
            "revoked"
        );
        let (filter, now) = (|owner: &AgentDid| agent.is_none_or(|agent| agent == owner), self.clock.now());
        let gone = |waited| record_end_of_wait(&self.journal, waited, Resolution::Revoked, by, REVOKED, now);
        let (waited, gone, ran, first) = if let Some(intent) = intent {
            let gone = self.escalations.remove_waiting(intent, &filter, gone);
            let ran = self.active_runs.abort_one(intent, &filter, AbortReason::Revoked);
            let first = if ran == Some(true) { vec![intent] } else { Vec::new() };
            (usize::from(gone.is_some()), gone, usize::from(ran.is_some()), first)
        } else {
            self.standing.revoke(agent);
            let (waited, gone) = self.escalations.remove_all(&filter, gone);
            let (ran, first) = self.active_runs.abort_all(&filter, AbortReason::Revoked);
            (waited, Some(gone), ran, first)
        };
        let recorded = async {
            if let Some(gone) = gone {
                gone.await?;
            }
            if !first.is_empty() {
                self.journal.record_stop(&first, by, "g2a/revoke").await?;
            }
            self.journal.record_revocation(agent, intent, by, waited + ran).await
        };
        recorded.await.map(|()| waited + ran).map_err(|error| self.unsaved_decision_fault(&error))
    }

    /// Applies a decision to an escalated intent. An approved intent runs in its own task; `a2g/status` shows
    /// it.
    ///
    /// # Errors
    /// No such intent waits, or its verdict has expired. If the intent cannot be run as approved, or the approval
    /// cannot be written, the intent continues to wait. If a denial is not on the disk yet, the intent stays denied.
    pub async fn apply_directive(
        self: &Arc<Self>,
        directive: &Directive,
        right: DecisionRight<'_>,
    ) -> Result<(), Fault> {
        let by = right.by();
        let Directive { intent, approved, manifest } = directive;
        if !approved {
            return self.deny(directive, by).await;
        }
        let escalated = self.escalations.take_undecided(*intent).ok_or_else(not_waiting_fault)?;
        let span = trace::intent_span(&IntentSummary::from_call(escalated.call()), escalated.call().door);
        let approval = Approval { by: by.to_owned(), manifest: manifest.clone() };
        // A task of its own: the approver may disconnect.
        let (answer_tx, answer) = oneshot::channel();
        let executor = Arc::clone(self);
        spawn::spawn_run_task(
            async move { executor.approve(escalated, approval, answer_tx).await }.instrument(span),
        );
        answer
            .await
            .unwrap_or_else(|_gone| Err(Fault::Internal("the task of an approval ended early".to_owned())))
    }

    /// Denies a waiting intent. The denial is recorded like any other refusal, and every repeat of the intent gets the
    /// same fault.
    async fn deny(&self, directive: &Directive, by: &str) -> Result<(), Fault> {
        let escalated = self.escalations.find_undecided(directive.intent).ok_or_else(not_waiting_fault)?;
        let asked = IntentSummary::from_call(escalated.call());
        let span = trace::intent_span(&asked, escalated.call().door);
        let denial = async {
            let denial = new_resolution(&escalated, Resolution::Denied, by);
            let fault = denial_by(by, asked.intent, escalated.risk_score());
            let gone =
                self.escalations.remove_undecided(asked.intent, |_waited| self.journal.resolve(vec![denial]));
            let gone = gone.ok_or_else(not_waiting_fault)?;
            self.record_refusal(Some(&asked), fault);
            match gone.await {
                Ok(0) => Err(not_waiting_fault()),
                Ok(_one) => Ok(()),
                Err(error) => Err(self.unsaved_decision_fault(&error)),
            }
        };
        denial.instrument(span).await
    }

    /// Records an approval, answers the approver, and runs the intent.
    async fn approve(
        self: Arc<Self>,
        escalated: Escalated,
        approval: Approval,
        answer_tx: oneshot::Sender<Result<(), Fault>>,
    ) {
        let recorded = self.record_approval(&escalated, &approval).await;
        let claimed = match recorded {
            Ok(claimed) => claimed,
            Err(fault) => {
                self.escalations.release(escalated.call().intent);
                let fault = self.record_refusal(Some(&IntentSummary::from_call(escalated.call())), fault);
                let _gone = answer_tx.send(Err(fault));
                return;
            }
        };
        let _gone = answer_tx.send(Ok(()));
        self.run_approved(escalated, approval, Some(claimed)).await;
    }

    async fn record_approval(
        self: &Arc<Self>,
        escalated: &Escalated,
        approval: &Approval,
    ) -> Result<Box<ClaimedRun>, Fault> {
        let claimed = self.claim_approved(escalated, approval).await?;
        let approved = new_resolution(escalated, Resolution::Approved, &approval.by);
        let approved = ResolvedIntent { manifest: approval.manifest.clone(), ..approved };
        let fault = match self.journal.resolve(vec![approved]).await {
            Ok(0) => not_waiting_fault(),
            Ok(_one) => return Ok(claimed),
            Err(error) => self.journal_fault(&error),
        };
        self.release(escalated.call().intent).await?;
        Err(fault)
    }

    /// Checks an approved intent, and claims it.
    async fn claim_approved(
        self: &Arc<Self>,
        escalated: &Escalated,
        approval: &Approval,
    ) -> Result<Box<ClaimedRun>, Fault> {
        let Approval { by, manifest } = approval;
        let intent = escalated.call().intent;
        let directive = Directive { intent, approved: true, manifest: manifest.clone() };
        let admitted = escalated.clone().resolve(&directive, by, self.clock.now())?;
        // The catalogue may have been replaced since the intent began to wait.
        let loaded = self.find_tool(admitted.call())?;
        Self::check_arguments(&loaded, admitted.call()).await?;
        match self.claim(admitted, loaded, Some(Arc::new(escalated.verdict().clone())))? {
            ClaimOutcome::Claimed(claimed) => {
                Ok(Box::new(ClaimedRun { approved_by: Some(by.clone()), ..*claimed }))
            }
            ClaimOutcome::Known(..) => {
                Err(self.busy_fault("another call with this intent is about to start it"))
            }
        }
    }

    /// Runs the intents that were approved in an earlier process and have not started.
    pub fn resume_approved(self: &Arc<Self>) {
        for intent in self.escalations.approved_intents() {
            let Some((escalated, approval)) = self.escalations.take_approved(intent) else { continue };
            let span = trace::intent_span(&IntentSummary::from_call(escalated.call()), escalated.call().door);
            let executor = Arc::clone(self);
            let run = async move { executor.run_approved(escalated, approval, None).await };
            spawn::spawn_run_task(run.instrument(span));
        }
    }

    /// Runs an approved intent as soon as possible, until its verdict expires. It stays in the journal meanwhile.
    async fn run_approved(
        self: Arc<Self>,
        mut escalated: Escalated,
        mut approval: Approval,
        claimed: Option<Box<ClaimedRun>>,
    ) {
        let (intent, mut claimed, mut pause) = (escalated.call().intent, claimed, MIN_PAUSE);
        loop {
            let attempt = match claimed.take() {
                Some(claimed) => Ok(claimed),
                None => self.claim_approved(&escalated, &approval).await,
            };
            let fault = match attempt {
                Ok(claimed) => {
                    self.escalations.mark_claimed(intent);
                    let stopwatch = Stopwatch::start(self.clock.monotonic());
                    match Arc::clone(&self).run_claimed(*claimed, stopwatch, RunEventSink::none()).await {
                        Ok(_) | Err(Fault::ReceiptPending { .. }) => return self.escalations.remove(intent),
                        Err(fault) => fault,
                    }
                }
                Err(fault) => fault,
            };
            if !escalated.is_pending(self.clock.now()) {
                return self.expire_approved(&escalated, fault).await;
            }
            let detail = if let Fault::Internal(detail) = &fault { Some(detail) } else { None };
            tracing::warn!(?fault, detail, pause_ms = pause.as_millis(), "an approved intent cannot run yet");
            self.escalations.wait_to_run(intent, approval);
            // Bounded, so that the intent expires on time even after the pause has grown.
            let left = Duration::try_from(escalated.expires_at() - self.clock.now()).unwrap_or_default();
            tokio::select! {
                () = tokio::time::sleep(pause.min(left)) => {}
                // The intent runs when the executor starts again.
                () = self.wait_until_closed() => return,
            }
            // The intent may have been cancelled or revoked.
            let Some(again) = self.escalations.take_approved(intent) else { return };
            (escalated, approval) = again;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Ends the wait of an approved intent that can no longer run.
    async fn expire_approved(&self, escalated: &Escalated, fault: Fault) {
        self.escalations.remove(escalated.call().intent);
        self.record_refusal(Some(&IntentSummary::from_call(escalated.call())), fault);
        let expired =
            new_resolution(escalated, Resolution::Expired, "its verdict expired before it could start");
        if let Err(error) = self.journal.resolve(vec![expired]).await {
            tracing::warn!(%error, "an approved intent has expired");
        }
    }
}
