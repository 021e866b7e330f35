//! Decisions on the file changes of runs that have ended: commit, discard, undo.
//!
//! ```text
//! set taken ─ start in the journal ─▶ commit, undo, or nothing ─ receipt ─▶ set in force, waiting as before, or gone
//!                                        └─ the requests that the run has left are sent (`requests.rs`)
//! ```
//! A decision is a run without a guest: it has an intent of its own, a start that is on the disk before anything changes, a
//! receipt and a report. Its intent follows from a random number in the receipt of the run whose changes it is about, and
//! from the number of the decision. So a restart finds them, and brings the set to what they say. If a decision was
//! interrupted after it had taken effect, another one records that (`recovery.rs`).

mod decision;
mod recovery;
mod requests;

use super::approval_rules::required_approvals;
use super::claims::Claims;
use super::effects::{
    ApplyError, ChangeSetSummary, EffectsFolder, HeldList, RunChanges, TakenSet, wrong_state_fault,
};
use super::faults::{busy_fault, stop_fault};
use super::fleet::{FleetClaim, Node, StartOutcome};
use super::open_intents::OpenIntents;
use super::policies::Policies;
use super::slots::Slots;
use super::{AgentFilter, ExecutorSettings, Parts, RunIdentity};
use a2g_govern::{DecisionAuthor, DecisionRight};
use a2g_journal::{ClaimResult, IfFull, Journal, RunEffects, Stage, StartRequest};
use a2g_runtime::spawn;
use a2g_sandbox::egress::Egress;
use a2g_types::call::Call;
use a2g_types::clock::Clock;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::{AbortReason, ChangeState, DecisionAct, End, Receipt, Status};
use a2g_types::stop::Stop;
use a2g_types::tool::Digest;
use decision::{Decision, decisions_of, has_set, state_without_folder};
use std::sync::Arc;
use std::time::Duration;

/// The author of the end of a set whose time is over.
const EXPIRED: &str = "the executor (`effects.decide_within_hours`)";
/// The time between two looks for sets whose time is over.
const DUE_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of commits and undos of one set. Each that fails is one.
const MAX_DECISIONS: u32 = 100;
/// The time between two attempts to discard changes on which somebody else decides.
const DISCARD_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of these attempts.
const MAX_DISCARD_TRIES: u32 = 300;
/// The time for which the journal remembers a decision beside the time of its set.
const REMEMBERED: Duration = Duration::from_hours(24);

/// A set with the run that made it, and the decisions on it.
#[derive(Debug, Clone)]
pub struct ChangeSet {
    /// The set in short. For one that has ended, `until` is the time of the last look at it.
    pub summary: ChangeSetSummary,
    /// The receipt of the run, with the list of changes.
    pub receipt: Arc<Receipt>,
    /// The receipts of the decisions, oldest first.
    pub decisions: Vec<Arc<Receipt>>,
}

/// The file changes of runs that have ended, and the decisions on them.
pub struct ChangeSets {
    effects: Arc<EffectsFolder>,
    settings: Arc<ExecutorSettings>,
    policies: Arc<Policies>,
    journal: Arc<Journal>,
    claims: Arc<Claims>,
    node: Arc<Node>,
    slots: Arc<Slots>,
    intents: Arc<OpenIntents>,
    /// `None` if no run may use the network.
    egress: Option<Arc<Egress>>,
    clock: Arc<dyn Clock>,
}

impl ChangeSets {
    pub(super) fn new(parts: &Parts, claims: Arc<Claims>) -> Self {
        Self {
            effects: Arc::clone(&parts.effects),
            settings: Arc::clone(&parts.settings),
            policies: Arc::clone(&parts.policies),
            journal: Arc::clone(&parts.journal),
            claims,
            node: Arc::clone(&parts.node),
            slots: Arc::clone(&parts.slots),
            intents: Arc::clone(&parts.intents),
            egress: parts.egress.clone(),
            clock: Arc::clone(&parts.clock),
        }
    }

    /// The sets of the selected agents that wait for a decision or can be undone, newest first.
    #[must_use]
    pub fn list(&self, filter: AgentFilter<'_>) -> Vec<ChangeSetSummary> {
        self.effects.list(filter)
    }

    /// The number of the sets of the selected agents that wait for a decision.
    #[must_use]
    pub fn waiting_count(&self, filter: AgentFilter<'_>) -> usize {
        self.effects.waiting_count(filter)
    }

    /// The set of a run, also one that has ended; `None` for an intent whose run kept no changes apart, or is not known.
    ///
    /// # Errors
    /// The journal is busy or cannot be read.
    pub async fn find(&self, intent: IntentId) -> Result<Option<ChangeSet>, Fault> {
        let Some(receipt) = self.receipt(intent).await? else { return Ok(None) };
        let Some(changes) = receipt.outcome.usage.changes.clone().filter(|_| has_set(&receipt)) else {
            return Ok(None);
        };
        if self.effects.is_blocked(intent) {
            return Ok(None);
        }
        let decisions = self.decisions(&receipt).await?;
        let kept = self.effects.summary(intent);
        let summary = kept.unwrap_or_else(|| {
            let now = self.clock.now();
            ChangeSetSummary {
                intent,
                agent: receipt.agent.clone(),
                tool: receipt.tool.clone(),
                mode: receipt.outcome.usage.effects.value,
                state: state_without_folder(&receipt, &decisions),
                count: changes.count,
                requests: u64::try_from(changes.requests.len()).unwrap_or(u64::MAX),
                digest: changes.digest,
                bytes: 0,
                since: now,
                until: now,
            }
        });
        Ok(Some(ChangeSet { summary, receipt, decisions }))
    }

    /// The receipt of a run with the texts of the short bodies of its requests that wait, for the holder of a
    /// `right` who may commit them: they may be secrets. `None` for anybody else, and if there are none.
    pub async fn with_bodies(&self, receipt: &Receipt, right: Option<&DecisionRight<'_>>) -> Option<Receipt> {
        let intent = receipt.intent;
        receipt.outcome.usage.changes.as_ref().filter(|changes| !changes.requests.is_empty())?;
        let summary = self.effects.summary(intent)?;
        self.check_author(&summary, right?).ok()?;
        let effects = Arc::clone(&self.effects);
        let read = tokio::task::spawn_blocking(move || effects.read_body_texts(intent)).await;
        let texts = read.ok().flatten()?;
        let mut shown = receipt.clone();
        let requests = shown.outcome.usage.changes.iter_mut().flat_map(|changes| &mut changes.requests);
        for (request, text) in requests.zip(texts) {
            request.body = text;
        }
        Some(shown)
    }

    /// The state of the changes of a run; `None` for one whose changes were not kept apart, and where it is not known.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub async fn state_of(&self, receipt: &Receipt) -> Result<Option<ChangeState>, Fault> {
        // The state of blocked changes is not known: they are left to an operator.
        if !has_set(receipt) || self.effects.is_blocked(receipt.intent) {
            return Ok(None);
        }
        if let Some(summary) = self.effects.summary(receipt.intent) {
            return Ok(Some(summary.state));
        }
        // Another node of the fleet has them.
        if self.receipt(receipt.intent).await?.is_none() {
            return Ok(None);
        }
        let decisions = self.decisions(receipt).await?;
        Ok(Some(state_without_folder(receipt, &decisions)))
    }

    /// Lets the changes of a staged run take effect, all or none. `digest` is that of the changes that were shown. The
    /// returned receipt says whether they are in force.
    ///
    /// # Errors
    /// If no such changes wait, the caller may not decide on them, or the decision cannot be recorded.
    pub async fn commit(
        self: &Arc<Self>,
        intent: IntentId,
        digest: &Digest,
        right: DecisionRight<'_>,
    ) -> Result<Arc<Receipt>, Fault> {
        let taken = self.take(intent, DecisionAct::Commit).await?;
        if taken.summary.digest != *digest {
            return Err(Fault::InvalidRequest(format!(
                "the file changes of the intent `{intent}` have the digest `{}`, and not the given one: look at them again \
                 before you commit them",
                taken.summary.digest
            )));
        }
        self.check_author(&taken.summary, &right)?;
        self.decide(taken, DecisionAct::Commit, right.by().to_owned(), Some(right.author())).await
    }

    /// Discards the changes of a staged run of one of the selected agents.
    ///
    /// # Errors
    /// If no such changes wait, or the decision cannot be recorded.
    pub async fn discard(
        self: &Arc<Self>,
        intent: IntentId,
        filter: AgentFilter<'_>,
        by: &str,
    ) -> Result<Arc<Receipt>, Fault> {
        if !self.has_waiting(intent, filter) {
            return Err(wrong_state_fault(intent, ChangeState::Waiting));
        }
        let taken = self.effects.take(intent, DecisionAct::Discard.applies_to())?;
        self.decide(taken, DecisionAct::Discard, by.to_owned(), None).await
    }

    /// Takes the changes of a run back, if no file has changed since. The returned receipt says whether they are in force.
    ///
    /// # Errors
    /// If no such changes can be undone, the caller may not decide on them, or the decision cannot be recorded.
    pub async fn undo(
        self: &Arc<Self>,
        intent: IntentId,
        right: DecisionRight<'_>,
    ) -> Result<Arc<Receipt>, Fault> {
        let taken = self.take(intent, DecisionAct::Undo).await?;
        self.check_author(&taken.summary, &right)?;
        self.decide(taken, DecisionAct::Undo, right.by().to_owned(), Some(right.author())).await
    }

    /// Takes a set for a decision of a caller who may decide on the changes of every agent.
    async fn take(&self, intent: IntentId, act: DecisionAct) -> Result<TakenSet, Fault> {
        match self.effects.take(intent, act.applies_to()) {
            Ok(taken) => Ok(taken),
            Err(fault) => match self.find_elsewhere(intent, &super::all_agents).await {
                Some(elsewhere) => Err(Fault::InvalidRequest(elsewhere)),
                None => Err(fault),
            },
        }
    }

    /// A sentence that names the node of the fleet with the changes of an intent of the selected agents, and says what to
    /// do. `None` if its run was not at another node, or the fleet cannot be asked now.
    pub async fn find_elsewhere(&self, intent: IntentId, filter: AgentFilter<'_>) -> Option<String> {
        match self.node.find_node_of_run(intent).await {
            Ok(Some((agent, node))) if filter(&agent) => Some(format!(
                "the call `{intent}` ran at the node `{node}`, which has its file changes if it has made any: send this to that \
                 node, or use the console of any node"
            )),
            Ok(Some(_) | None) | Err(_) => None,
        }
    }

    /// `true` if changes of an intent of the selected agents wait for a decision.
    pub(super) fn has_waiting(&self, intent: IntentId, filter: AgentFilter<'_>) -> bool {
        let is_waiting =
            |summary: ChangeSetSummary| summary.state == ChangeState::Waiting && filter(&summary.agent);
        self.effects.summary(intent).is_some_and(is_waiting)
    }

    /// `true` if changes of an intent of the selected agents wait for a decision, or their requests are being sent.
    pub(super) fn has_open(&self, intent: IntentId, filter: AgentFilter<'_>) -> bool {
        self.has_waiting(intent, filter) || self.effects.is_sending(intent, filter)
    }

    /// Discards the waiting changes of the selected agents, on behalf of `by`, and those that are about to wait or to take
    /// effect. Returns their number. No decision in progress commits any of them, or sends a request, from now on.
    ///
    /// # Errors
    /// The first reason why a set still waits, because a decision on it cannot be recorded. The others are discarded.
    pub(super) async fn discard_all(
        self: &Arc<Self>,
        filter: AgentFilter<'_>,
        by: &str,
        reason: AbortReason,
    ) -> Result<usize, Fault> {
        let mut count = self.effects.withdraw_runs(|run| filter(&run.agent), reason);
        let mut result = Ok(());
        for intent in self.effects.withdraw_sets(filter) {
            match self.discard_patiently(intent, filter, by).await {
                Ok(Some(_receipt)) => count += 1,
                Ok(None) => {}
                Err(fault) => result = result.and(Err(fault)),
            }
        }
        result.map(|()| count)
    }

    /// Discards waiting changes, also while somebody else decides on them; `None` if they do not wait any more, and none of
    /// their requests is being sent.
    async fn discard_patiently(
        self: &Arc<Self>,
        intent: IntentId,
        filter: AgentFilter<'_>,
        by: &str,
    ) -> Result<Option<Arc<Receipt>>, Fault> {
        for _ in 0..MAX_DISCARD_TRIES {
            if self.has_waiting(intent, filter) {
                match self.discard(intent, filter, by).await {
                    Err(Fault::Busy { .. }) => {}
                    // It was committed meanwhile.
                    Err(Fault::InvalidRequest(_)) if !self.has_waiting(intent, filter) => {}
                    result => return result.map(Some),
                }
            } else if !self.effects.is_sending(intent, filter) {
                return Ok(None);
            }
            tokio::time::sleep(DISCARD_INTERVAL).await;
        }
        Err(busy_fault("somebody else decides on these file changes, and has not ended yet"))
    }

    /// Discards the waiting changes of one intent of the selected agents, and ends the sending of their requests. No decision
    /// in progress commits them or sends more from now on. Returns `false` if they were decided on before.
    ///
    /// # Errors
    /// If the decision cannot be recorded.
    pub(super) async fn revoke(
        self: &Arc<Self>,
        intent: IntentId,
        filter: AgentFilter<'_>,
        by: &str,
    ) -> Result<bool, Fault> {
        self.effects.withdraw_set(intent, filter);
        Ok(self.discard_patiently(intent, filter, by).await?.is_some())
    }

    /// Stops the run of a call whose guest has ended, and whose changes have not taken effect. Returns `false` if there is
    /// none.
    pub(super) fn withdraw(&self, intent: IntentId, filter: AgentFilter<'_>, reason: AbortReason) -> bool {
        self.effects.withdraw_runs(|run| run.intent == intent && filter(&run.agent), reason) > 0
    }

    /// As [`Self::withdraw`], for all runs that a stop includes. Returns their number.
    pub(super) fn withdraw_stopped(&self, stop: &Stop) -> usize {
        let is_included = |run: &RunIdentity| stop.target.includes(&run.agent, &run.tool);
        self.effects.withdraw_runs(is_included, AbortReason::Stopped)
    }

    /// Ends the sets whose time is over, and forgets those in force for which there is no room, until the task ends.
    pub(super) async fn end_due(self: &Arc<Self>) {
        loop {
            tokio::time::sleep(DUE_INTERVAL).await;
            for summary in self.effects.due(self.clock.now()) {
                if summary.state == ChangeState::Waiting {
                    self.discard_due(summary.intent).await;
                } else {
                    self.forget(summary.intent, ChangeState::InForce).await;
                }
            }
            for intent in self.effects.excess() {
                self.forget(intent, ChangeState::InForce).await;
            }
        }
    }

    /// Discards waiting changes whose time is over.
    async fn discard_due(self: &Arc<Self>, intent: IntentId) {
        let stage = self.journal.claims.stage(intent, IfFull::Wait).await;
        if let Ok(Some((_, Stage::Pruned))) = stage {
            tracing::warn!(%intent, "file changes whose time is over are removed, without a record: the report of their run was pruned");
            return self.forget(intent, ChangeState::Waiting).await;
        }
        if let Err(fault) = self.discard(intent, &super::all_agents, EXPIRED).await {
            tracing::warn!(%intent, ?fault, "file changes whose time is over still wait");
        }
    }

    /// Removes what is kept of changes, which stay as they are.
    async fn forget(&self, intent: IntentId, state: ChangeState) {
        let Ok(taken) = self.effects.take(intent, state) else { return };
        if tokio::task::spawn_blocking(move || taken.remove()).await.is_err() {
            tracing::warn!(%intent, "the folder of file changes was not removed");
        }
    }

    /// The receipt of a run that has ended: the journal's, or that beside the changes if the journal has pruned it.
    async fn receipt(&self, intent: IntentId) -> Result<Option<Arc<Receipt>>, Fault> {
        let stage = self.journal.claims.stage(intent, IfFull::Wait).await?;
        match stage {
            Some((_, Stage::Finished(receipt))) => Ok(Some(receipt)),
            // A journal in memory forgets a run when it ends.
            Some((_, Stage::Pruned)) | None => {
                let effects = Arc::clone(&self.effects);
                let read = tokio::task::spawn_blocking(move || effects.read_receipt(intent)).await;
                Ok(read.ok().flatten().map(Arc::new))
            }
            Some((_, Stage::Queued | Stage::Running | Stage::Ended | Stage::Released)) => Ok(None),
        }
    }

    /// The receipts of the decisions on a run's changes, oldest first.
    async fn decisions(&self, receipt: &Receipt) -> Result<Vec<Arc<Receipt>>, Fault> {
        Ok(self.past_decisions(receipt).await?.receipts)
    }

    async fn past_decisions(&self, receipt: &Receipt) -> Result<PastDecisions, Fault> {
        let mut past = PastDecisions::default();
        let Some(namespace) = decisions_of(receipt) else { return Ok(past) };
        // One more for the discard, and one for what a recovery records.
        for number in 1..=MAX_DECISIONS + 2 {
            let stage = self.journal.claims.stage(namespace.nested(number), IfFull::Wait).await?;
            match stage {
                Some((_, Stage::Finished(decision))) => past.receipts.push(decision),
                Some((_, Stage::Pruned)) => {}
                Some((_, Stage::Queued | Stage::Running | Stage::Ended | Stage::Released)) | None => break,
            }
            past.count = number;
        }
        Ok(past)
    }

    /// Checks that the holder of `right` may still decide, also under the operator's rules about approvals.
    fn check_author(&self, summary: &ChangeSetSummary, right: &DecisionRight<'_>) -> Result<(), Fault> {
        let author = right.author();
        self.policies.check_authors(summary.intent, std::slice::from_ref(&author), None)?;
        let verdict = self.journal.records.verdict(summary.intent)?;
        let risk_score = verdict.and_then(|verdict| verdict.risk).map(|risk| risk.score);
        let rules = &self.settings.approval_rules;
        let message = match required_approvals(rules, &summary.tool, risk_score) {
            None => return Ok(()),
            Some(required) if required > 1 => format!(
                "{required} people have to approve what `{}` does (`[[approvals]]`), and one person decides on file changes: \
                 discard them, and let the call be approved before it runs",
                summary.tool
            ),
            Some(_) if right.is_of_governor() => format!(
                "the governor's decision does not count here: a person, listed in `server.callers`, has to decide on what `{}` \
                 has changed (`[[approvals]]`)",
                summary.tool
            ),
            Some(_) if right.acts_for(&summary.agent) => format!(
                "`{}` may act for `{}`, so another person, listed in `server.callers`, has to decide on its file changes \
                 (`[[approvals]]`)",
                right.by(),
                summary.agent
            ),
            Some(_) => return Ok(()),
        };
        let blocked_by = BlockedBy::CallerUnauthorized;
        Err(Fault::Refused { intent: Some(summary.intent), risk_score, blocked_by, message })
    }

    /// Carries a decision out in a task of its own, because the caller may disconnect.
    async fn decide(
        self: &Arc<Self>,
        taken: TakenSet,
        act: DecisionAct,
        by: String,
        author: Option<DecisionAuthor>,
    ) -> Result<Arc<Receipt>, Fault> {
        let sets = Arc::clone(self);
        let task = async move { sets.carry_out(taken, act, &by, author).await };
        let ended_early = |error| Fault::Internal(format!("the task of a decision ended early: {error}"));
        spawn::spawn_run_task(task).await.map_err(ended_early)?
    }

    async fn carry_out(
        self: &Arc<Self>,
        mut taken: TakenSet,
        act: DecisionAct,
        by: &str,
        author: Option<DecisionAuthor>,
    ) -> Result<Arc<Receipt>, Fault> {
        let intent = taken.summary.intent;
        let missing = || busy_fault("the report of the run is not stored yet");
        let receipt = self.receipt(intent).await?.ok_or_else(missing)?;
        let decision = Decision::new(&receipt, act, by, taken.next_decision())?;
        match act {
            DecisionAct::Commit | DecisionAct::Undo => self.check_decision(&decision, &receipt, &taken)?,
            // Nothing changes, so nothing is against it.
            DecisionAct::Discard => {}
        }
        // Counts as a call, so that a server that stops waits for it.
        let _place = self.slots.reserve_nested(&decision.call.agent);
        let claim = self.start(&decision).await?;
        taken.count_decision();
        let begun = self.clock.monotonic();
        let check = Arc::new(self.check_again(&decision, &receipt, act, author));
        let first_check = self.check_all(act, &check, &receipt);
        let Done { mut taken, changes, applied } = self.perform(taken, act, &claim, first_check).await;
        let held_list = changes.as_ref().and_then(|changes| changes.requests.clone());
        // Other commits may run meanwhile: a slow server delays none of them.
        let ends = match (act, &held_list.filter(|_| applied.is_ok())) {
            (DecisionAct::Commit, Some(list)) => {
                taken.note_sending();
                let may_begin = || {
                    if !claim.is_held() {
                        return Err("the lease in the fleet was lost".to_owned());
                    }
                    if self.slots.is_closed() {
                        return Err("the executor is shutting down".to_owned());
                    }
                    check()
                };
                self.send_requests(list, &receipt, &may_begin, &*check).await
            }
            (DecisionAct::Undo, Some(list)) => requests::read_ends(list).await,
            (DecisionAct::Discard, Some(_))
            | (DecisionAct::Commit | DecisionAct::Discard | DecisionAct::Undo, None) => Vec::new(),
        };
        let wall = self.clock.monotonic().saturating_duration_since(begun);
        let has_taken_effect = applied.is_ok()
            && match act {
                DecisionAct::Commit | DecisionAct::Undo => true,
                DecisionAct::Discard => false,
            };
        let is_left_to_operator = matches!(applied, Err(ApplyError::LeftToOperator(_)));
        let end = match applied {
            Ok(()) => decision.success(&ends),
            Err(_reason) if !claim.is_held() => End::Aborted(AbortReason::LeaseLost),
            Err(error) => error.into_end(),
        };
        if is_left_to_operator {
            // No other decision may touch it: what is left has the only copy of some originals.
            taken.leave();
            return self.finish(&decision, &claim, end, wall).await;
        }
        let recorded = match self.finish(&decision, &claim, end, wall).await {
            Ok(finished) if has_taken_effect && finished.outcome.end.status() != Status::Success => {
                // Another node has reported the decision as aborted.
                self.record_again(&mut taken, &receipt, act, by, &ends).await.ok_or(finished)
            }
            Err(fault) if has_taken_effect => {
                leave_unrecorded(taken, act);
                return Err(fault);
            }
            finished => Ok(finished?),
        };
        let finished = match recorded {
            Ok(recorded) => recorded,
            Err(aborted) => {
                leave_unrecorded(taken, act);
                return Ok(aborted);
            }
        };
        tracing::info!(%intent, decision = act.tool(), caller = by, status = finished.outcome.end.status().as_str(), "decided on file changes");
        if finished.outcome.end.status() == Status::Success {
            self.settle(taken, changes, act).await;
        }
        Ok(finished)
    }

    /// Checks that a commit or an undo may be made now.
    fn check_decision(&self, decision: &Decision, run: &Receipt, taken: &TakenSet) -> Result<(), Fault> {
        let stop = find_stop(&self.intents, &decision.call, &run.agent, &run.tool);
        stop.map_or(Ok(()), |stop| Err(stop_fault(run.intent, &stop)))?;
        if taken.next_decision() > MAX_DECISIONS {
            return Err(Fault::InvalidRequest(format!(
                "{MAX_DECISIONS} decisions on the file changes of the intent `{}` have had no effect: discard them",
                run.intent
            )));
        }
        Ok(())
    }

    /// The check right before a decision takes effect: `check`, and for a commit the hosts of all requests that it sends.
    fn check_all(
        self: &Arc<Self>,
        act: DecisionAct,
        check: &Arc<impl Fn() -> Result<(), String> + Send + Sync + 'static>,
        run: &Arc<Receipt>,
    ) -> impl FnOnce(Option<&HeldList>) -> Result<(), String> + Send + 'static {
        let sets = Arc::clone(self);
        let check = Arc::clone(check);
        let run = Arc::clone(run);
        move |list: Option<&HeldList>| {
            check()?;
            match (act, list) {
                (DecisionAct::Commit, Some(list)) => sets.check_hosts(list, &run),
                (DecisionAct::Commit, None) | (DecisionAct::Discard | DecisionAct::Undo, _) => Ok(()),
            }
        }
    }

    /// The check right before a decision takes effect, before each request that it sends, and meanwhile: it may have waited
    /// for others.
    fn check_again(
        &self,
        decision: &Decision,
        staged: &Receipt,
        act: DecisionAct,
        author: Option<DecisionAuthor>,
    ) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let requests = staged.outcome.usage.changes.as_ref().map_or(0, |changes| changes.requests.len());
        let max_requests = self.settings.ceilings.network_budgets.held_requests;
        let has_too_many = usize::try_from(max_requests).is_ok_and(|max| requests > max);
        let policies = Arc::clone(&self.policies);
        let intents = Arc::clone(&self.intents);
        let effects = Arc::clone(&self.effects);
        let call = decision.call.clone();
        let run =
            RunIdentity { intent: staged.intent, agent: staged.agent.clone(), tool: staged.tool.clone() };
        move || {
            match act {
                // Nothing changes, so nothing is against it.
                DecisionAct::Discard => return Ok(()),
                DecisionAct::Commit if effects.is_withdrawn(run.intent) => {
                    return Err("the run was cancelled or revoked meanwhile".to_owned());
                }
                DecisionAct::Commit if has_too_many => {
                    return Err(format!(
                        "the operator lets {max_requests} requests of a run wait now (`ceilings.held_requests`), and these are \
                         {requests}: discard them"
                    ));
                }
                DecisionAct::Commit | DecisionAct::Undo => {}
            }
            find_stop(&intents, &call, &run.agent, &run.tool)
                .map_or(Ok(()), |stop| Err(stop.refusal_message()))?;
            let Some(author) = &author else { return Ok(()) };
            let checked = policies.check_authors(run.intent, std::slice::from_ref(author), None);
            checked.map_err(|_gone| format!("`{}` may no longer decide", author.name()))
        }
    }

    /// Does what a decision is about, once `check` allows it.
    async fn perform(
        &self,
        taken: TakenSet,
        act: DecisionAct,
        claim: &FleetClaim,
        check: impl FnOnce(Option<&HeldList>) -> Result<(), String> + Send + 'static,
    ) -> Done {
        let apply: fn(&RunChanges, &Digest) -> Result<(), ApplyError> = match act {
            DecisionAct::Discard => return Done { taken, changes: None, applied: Ok(()) },
            DecisionAct::Commit => RunChanges::commit,
            DecisionAct::Undo => |changes, _digest| changes.undo(),
        };
        let work = move || match taken.open() {
            Ok(changes) => {
                let checked = check(changes.requests.as_deref()).map_err(ApplyError::Unchanged);
                let applied = checked.and_then(|()| apply(&changes, &taken.summary.digest));
                Done { taken, changes: Some(changes), applied }
            }
            Err(reason) => Done { taken, changes: None, applied: Err(ApplyError::Unchanged(reason)) },
        };
        let done = self.effects.change_originals(work).await;
        if claim.is_held() || act != DecisionAct::Commit || done.applied.is_err() {
            return done;
        }
        // Another node may have reported the decision as aborted.
        let Done { taken, changes, applied: _ } = done;
        self.effects
            .change_originals(move || {
                let error = match changes.as_ref().map(RunChanges::undo) {
                    Some(Err(error)) => error,
                    Some(Ok(())) | None => {
                        ApplyError::Unchanged("the lease in the fleet was lost".to_owned())
                    }
                };
                Done { taken, changes, applied: Err(error) }
            })
            .await
    }

    /// Brings a set to its state after a decision that has taken effect and is on the disk.
    async fn settle(&self, mut taken: TakenSet, changes: Option<RunChanges>, act: DecisionAct) {
        let keep = self.effects.settings().keep;
        let has_files = taken.summary.count > 0;
        let now = self.clock.now();
        let settled = tokio::task::spawn_blocking(move || {
            let stays = match act {
                DecisionAct::Commit => has_files && !keep.is_zero(),
                DecisionAct::Discard | DecisionAct::Undo => false,
            };
            match changes.filter(|_| stays) {
                Some(changes) => {
                    if let Err(error) = taken.set_in_force(&changes, now, now + keep) {
                        tracing::warn!(intent = %taken.summary.intent, %error, "file changes that are in force cannot be undone");
                        taken.remove();
                    }
                }
                None => taken.remove(),
            }
        });
        if settled.await.is_err() {
            tracing::warn!("the folder of file changes was not brought to the state after a decision");
        }
    }

    /// Records the start of a decision.
    async fn start(&self, decision: &Decision) -> Result<FleetClaim, Fault> {
        let call = &decision.call;
        let keep = self.effects.settings();
        let keep_until = self.clock.now() + keep.decide_within + keep.keep + REMEMBERED;
        match self.journal.claims.claim(call, keep_until, None)? {
            ClaimResult::New => {}
            ClaimResult::Known(_) => {
                return Err(busy_fault("somebody else decides on these file changes now"));
            }
        }
        let fallback =
            decision.receipt(self.journal.durability(), End::Aborted(AbortReason::Lost), Duration::ZERO);
        let request = StartRequest {
            call,
            keep_until,
            proof: None,
            fallback_receipt: &fallback,
            task: None,
            effects: RunEffects::Possible,
        };
        match self.claims.start(request, None).await? {
            StartOutcome::New(claim) => Ok(claim),
            StartOutcome::Known(_) | StartOutcome::Replayed => Err(Fault::Internal(
                "the number of a decision on file changes was used before: restart the executor".to_owned(),
            )),
        }
    }

    /// Records the end of a decision.
    async fn finish(
        &self,
        decision: &Decision,
        claim: &FleetClaim,
        end: End,
        wall: Duration,
    ) -> Result<Arc<Receipt>, Fault> {
        let receipt = Arc::new(decision.receipt(self.journal.durability(), end, wall));
        let intent = receipt.intent;
        self.journal.claims.announce_stage(intent, Stage::Ended);
        let (receipt, reporting) = claim.finish(receipt).await?;
        self.policies.governor().observe_end(&receipt);
        self.journal.claims.finish(Arc::clone(&receipt), None, reporting, self.clock.now()).await?;
        Ok(receipt)
    }
}

/// The decisions on a set so far.
#[derive(Default)]
struct PastDecisions {
    /// Those that the journal has not pruned, oldest first.
    receipts: Vec<Arc<Receipt>>,
    /// The number of all.
    count: u32,
}

/// A decision that was carried out.
struct Done {
    taken: TakenSet,
    changes: Option<RunChanges>,
    applied: Result<(), ApplyError>,
}

/// Leaves a set to the next start, which records the decision that has taken effect.
fn leave_unrecorded(taken: TakenSet, act: DecisionAct) {
    let intent = taken.summary.intent;
    tracing::error!(%intent, decision = act.tool(), "a decision on file changes has taken effect and cannot be recorded: the next start of the executor does that");
    taken.leave();
}

/// The stop of a decision, or of the tool whose changes it is about.
fn find_stop(intents: &OpenIntents, decision: &Call, agent: &AgentDid, tool: &ToolName) -> Option<Stop> {
    intents.find_stop(&decision.agent, &decision.tool).or_else(|| intents.find_stop(agent, tool))
}
