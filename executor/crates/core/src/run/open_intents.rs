//! The open intents of this executor and the stops in force, under one lock.
//!
//! Records of a step are sent to the journal under the lock, also those of a step that changes nothing here, which keeps
//! their order: one lock, and not one for readers. The journal's answers are awaited without the lock.

use super::approval_rules::PartialApproval;
use super::engine::nested::NestedCalls;
use super::faults::{intent_conflict_fault, lifted_stop_fault, stop_fault};
use super::message_size::is_too_large;
use super::{AgentFilter, RunIdentity};
use a2g_govern::{Escalated, Governor};
use a2g_intent::{
    Abortable, Changes, ClaimError, Content, HeldCall, IfIdle, Intents, Owner, RunId, RunPlace, StartError,
    Wait, WaitId, WakeCondition,
};
use a2g_journal::{Approval, Decisions, HeldIntent};
use a2g_sandbox::Abort;
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::AbortReason;
use a2g_types::stop::{Stop, StopTarget};
use a2g_types::verdict::Verdict;
use parking_lot::Mutex;
use std::sync::Arc;
use time::OffsetDateTime;
use tokio::sync::watch;
use uuid::Uuid;

/// The maximum number of waiting intents.
pub(super) const MAX_WAITING: usize = 1000;
/// The maximum number of waiting intents of one agent.
pub(super) const MAX_WAITING_PER_AGENT: usize = MAX_WAITING / 4;

/// The values that are kept with an intent.
#[derive(Debug)]
pub(super) enum Kept {}

impl Content for Kept {
    type Call = Escalated;
    type Approval = Approval;
    type PartialApproval = PartialApproval;
    type Run = RunHandle;
}

/// What becomes of the approvals of an earlier process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RestoredApprovals {
    /// The intents run.
    InForce,
    /// The fleet stores what was decided, of intents that are not too large for it.
    InFleet,
}

/// The means to abort a run, and to find its calls.
#[derive(Debug)]
pub(super) struct RunHandle {
    abort: Arc<Abort>,
    /// The calls of the run, once it has begun.
    calls: Option<Arc<NestedCalls>>,
}

impl Abortable for RunHandle {
    fn abort(&self, reason: AbortReason) {
        self.abort.trigger(reason);
    }
}

/// The open intents, and those who wait for their changes.
#[derive(Debug)]
pub(super) struct OpenIntents {
    intents: Mutex<Intents<Kept>>,
    /// Notified whenever an intent stops waiting, or waits again: every task that waits for an intent follows it.
    changes: watch::Sender<()>,
    /// Notified also when an intent begins to wait, which concerns only lists.
    list_changes: watch::Sender<()>,
}

impl OpenIntents {
    /// Restores the intents and the stops of an earlier process. Returns the calls that wait no longer: those with an
    /// expired verdict, and nested ones, whose parents have ended with that process. The governor counts the others again.
    pub(super) fn restore(
        decisions: &Decisions,
        approvals: RestoredApprovals,
        governor: &Governor,
        now: OffsetDateTime,
    ) -> (Self, Vec<Escalated>) {
        let (_, first_wait) = Uuid::new_v4().as_u64_pair();
        let mut intents = Intents::new(MAX_WAITING, MAX_WAITING_PER_AGENT, first_wait);
        for stop in decisions.take_stops() {
            tracing::warn!(stopped = %stop.target, by = stop.by, since = %stop.since, "stopped by an operator");
            intents.stops.set(stop);
        }
        let mut ended = Vec::new();
        for HeldIntent { text, approval } in decisions.take_held() {
            match Escalated::from_journal(&text) {
                Ok(escalated) if !escalated.is_in_time(now) || escalated.call().parent.is_some() => {
                    ended.push(escalated);
                }
                Ok(escalated) => {
                    let intent = escalated.call().intent;
                    let wait = wait_of(escalated.counted_by(governor));
                    match approvals {
                        RestoredApprovals::InFleet if approval.is_some() && !is_too_large(&text) => {
                            intents.waits.fleet().restore(intent, wait);
                        }
                        RestoredApprovals::InForce | RestoredApprovals::InFleet => {
                            intents.waits.restore(intent, wait, approval);
                        }
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "an escalated intent of the journal cannot be parsed");
                }
            }
        }
        let open = Self {
            intents: Mutex::new(intents),
            changes: watch::Sender::new(()),
            list_changes: watch::Sender::new(()),
        };
        (open, ended)
    }

    /// Takes one or more steps, and tells those who wait for the changes.
    pub(super) fn update<T>(&self, step: impl FnOnce(&mut Intents<Kept>) -> T) -> T {
        let mut intents = self.intents.lock();
        let result = step(&mut intents);
        match intents.waits.take_changes() {
            Changes::None => {}
            Changes::List => {
                self.list_changes.send_replace(());
            }
            Changes::Waits => {
                self.changes.send_replace(());
                self.list_changes.send_replace(());
            }
        }
        result
    }

    /// Reads the intents. It must not take long, and copies only what is needed.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Intents<Kept>) -> T) -> T {
        read(&self.intents.lock())
    }

    /// Changes when an intent stops waiting, or waits again.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Changes when an intent begins or stops to wait.
    pub(super) fn list_changes(&self) -> watch::Receiver<()> {
        self.list_changes.subscribe()
    }

    /// Registers a claimed call, unless an operator has stopped it.
    pub(super) fn claim(self: &Arc<Self>, call: &Call) -> Result<ActiveRun, ClaimError> {
        let abort = Arc::new(Abort::default());
        let handle = RunHandle { abort: Arc::clone(&abort), calls: None };
        let id = self.update(|intents| intents.claim(call.intent, owner_of(call), handle))?;
        Ok(ActiveRun { intents: Arc::clone(self), id, abort })
    }

    /// Returns `true` if an intent is held: it waits for a person, or is approved and has not ended.
    pub(super) fn is_held(&self, intent: IntentId) -> bool {
        self.read(|intents| intents.waits.is_held(intent))
    }

    /// Returns `true` if an intent waits for a decision, or one is in progress.
    pub(super) fn awaits_decision(&self, intent: IntentId) -> bool {
        self.read(|intents| intents.waits.get(intent).is_some_and(Wait::awaits_decision))
    }

    /// The number of intents that arrived here and wait for a decision, or on which one is in progress, and that have not
    /// expired.
    pub(super) fn awaiting_decision_count(&self, now: OffsetDateTime) -> usize {
        let is_counted = |wait: &Wait<Kept>| wait.awaits_decision_here() && wait.is_in_time(now);
        self.read(|intents| intents.waits.select(is_counted).count())
    }

    /// The event that ends an intent's wait; `None` for an intent that is not held.
    pub(super) fn wake_condition(&self, intent: IntentId) -> Option<WakeCondition> {
        self.read(|intents| intents.waits.get(intent).map(Wait::wake_condition))
    }

    /// Copies what is needed of a held call in any phase; `None` if the intent is not held.
    pub(super) fn inspect<T>(
        &self,
        intent: IntentId,
        read: impl FnOnce(&Escalated, &[PartialApproval]) -> T,
    ) -> Option<T> {
        self.read(|intents| {
            let wait = intents.waits.get(intent)?;
            Some(read(wait.call(), wait.partial_approvals()))
        })
    }

    /// Maps the waits on which a person can decide now.
    pub(super) fn map_undecided<T>(
        &self,
        now: OffsetDateTime,
        map: impl Fn(&Wait<Kept>) -> Option<T>,
    ) -> Vec<T> {
        self.read(|intents| intents.waits.undecided(now).filter_map(map).collect())
    }

    /// Copies those approvals of an intent that count.
    pub(super) fn partial_approvals(
        &self,
        intent: IntentId,
        counts: impl Fn(&PartialApproval) -> bool,
    ) -> Vec<PartialApproval> {
        let copy = |approvals: &[PartialApproval]| {
            approvals.iter().filter(|approval| counts(approval)).cloned().collect()
        };
        self.inspect(intent, |_, approvals| copy(approvals)).unwrap_or_default()
    }

    /// The calls that a run makes; `None` if it makes none or has ended.
    pub(super) fn calls_of(&self, intent: IntentId) -> Option<Arc<NestedCalls>> {
        self.read(|intents| intents.runs.handle(intent)?.calls.clone())
    }

    /// The identities of the runs, in the order of their ids, without those whose calls another node has.
    pub(super) fn runs_here(&self) -> Vec<RunIdentity> {
        let identity = |(intent, Owner { agent, tool, .. }): (IntentId, &Owner)| RunIdentity {
            agent: agent.clone(),
            intent,
            tool: tool.clone(),
        };
        self.read(|intents| intents.runs.here().into_iter().map(identity).collect())
    }

    /// The agent of an intent that runs or waits for a slot here; `None` if another node has the call.
    pub(super) fn agent_of_run(&self, intent: IntentId) -> Option<AgentDid> {
        self.read(|intents| {
            let run = intents.runs.place(intent).filter(|(_, place)| *place == RunPlace::Here);
            run.map(|(owner, _)| owner.agent.clone())
        })
    }

    /// Returns `true` if another node has the call of an intent of the selected agents.
    pub(super) fn is_passed_on(&self, intent: IntentId, filter: AgentFilter<'_>) -> bool {
        self.read(|intents| match intents.runs.place(intent) {
            Some((owner, RunPlace::Elsewhere { .. })) => filter(&owner.agent),
            Some((_, RunPlace::Here)) | None => false,
        })
    }

    /// The stop that includes the calls of `agent` with `tool`, if any.
    pub(super) fn find_stop(&self, agent: &AgentDid, tool: &ToolName) -> Option<Stop> {
        self.read(|intents| intents.stops.find(agent, tool).cloned())
    }

    /// The verdict of a call whose intent already waits; `None` if it does not wait.
    ///
    /// # Errors
    /// If the waiting intent has different content.
    pub(super) fn pending_verdict(&self, call: &Call, now: OffsetDateTime) -> Result<Option<Verdict>, Fault> {
        self.read(|intents| match intents.waits.visible_call(call.intent, now) {
            None => Ok(None),
            Some(held) if is_same_call(held.call(), call) => Ok(Some(held.verdict().clone())),
            Some(_) => Err(intent_conflict_fault(call.intent)),
        })
    }

    /// The intent and its wait, if it is undecided.
    pub(super) fn find_undecided(&self, intent: IntentId) -> Option<(Escalated, WaitId)> {
        self.read(|intents| intents.waits.undecided_call(intent).map(copy_call))
    }

    /// Takes an undecided intent for a decision.
    pub(super) fn take_undecided(&self, intent: IntentId) -> IfIdle<(Escalated, WaitId)> {
        self.update(|intents| intents.waits.take_undecided(intent).map(copy_call))
    }

    /// Takes an approved intent for a run. Returns `None` if it was cancelled, revoked or stopped.
    pub(super) fn take_approved(&self, intent: IntentId) -> Option<(Escalated, WaitId, Approval)> {
        self.update(|intents| {
            let (escalated, taken, approval) = intents.waits.take_approved(intent)?;
            Some((escalated.clone(), taken, approval))
        })
    }

    /// Takes an intent for a run whose approval the fleet stores.
    pub(super) fn take_decided(&self, intent: IntentId) -> Option<(Escalated, WaitId)> {
        self.update(|intents| intents.waits.fleet().take_decided(intent).map(copy_call))
    }

    /// Lets an intent wait again, because the decision on it cannot be applied.
    pub(super) fn release_taken(&self, taken: WaitId) {
        self.update(|intents| intents.waits.release(taken));
    }

    /// Leaves a taken intent to what the fleet stores of it.
    pub(super) fn leave_to_fleet(&self, taken: WaitId) {
        self.update(|intents| intents.waits.fleet().leave(taken));
    }

    /// Ends a wait. Returns `false` if the intent is not held, or is in a new wait.
    pub(super) fn end_wait(&self, wait: WaitId) -> bool {
        self.update(|intents| intents.waits.end(wait))
    }

    /// The stop of exactly this target.
    pub(super) fn find_exact_stop(&self, target: &StopTarget) -> Option<Stop> {
        self.read(|intents| intents.stops.get(target).map(|numbered| numbered.stop.clone()))
    }

    /// Remembers that other nodes of the fleet may not know of a stop.
    pub(super) fn mark_unpublished_stops(&self) {
        self.update(|intents| intents.stops.mark_unpublished());
    }

    /// Returns `true` if other nodes of the fleet may not know of a stop, and forgets it.
    pub(super) fn take_unpublished_stops(&self) -> bool {
        self.update(|intents| intents.stops.take_unpublished())
    }

    /// Refuses a call that an operator has stopped, before the governor or a person is asked.
    pub(super) fn check_stopped(&self, call: &Call) -> Result<(), Fault> {
        let stop = self.find_stop(&call.agent, &call.tool);
        stop.map_or(Ok(()), |stop| Err(stop_fault(call.intent, &stop)))
    }

    /// Refuses a claimed call, before its guest begins, if an operator has stopped it, even if that stop has been lifted.
    pub(super) fn check_start(&self, call: &Call) -> Result<(), Fault> {
        let Call { intent, agent, tool, .. } = call;
        match self.read(|intents| intents.check_start(*intent, agent, tool)) {
            Ok(()) => Ok(()),
            Err(StartError::Stopped(stop)) => Err(stop_fault(*intent, &stop)),
            Err(StartError::StopLifted) => Err(lifted_stop_fault(*intent)),
        }
    }
}

/// The entry of a run in [`OpenIntents`], removed when this is dropped.
#[derive(Debug)]
pub(super) struct ActiveRun {
    intents: Arc<OpenIntents>,
    id: RunId,
    abort: Arc<Abort>,
}

impl ActiveRun {
    /// The handle that aborts the guest.
    pub(super) fn abort_handle(&self) -> &Arc<Abort> {
        &self.abort
    }

    /// Notes that another node has the call.
    pub(super) fn pass_on(&self) {
        self.intents.update(|intents| intents.runs.pass_on(self.id));
    }

    /// Notes that this node has the call again.
    pub(super) fn take_back(&self) {
        self.intents.update(|intents| intents.runs.take_back(self.id));
    }

    /// Aborts the run.
    pub(super) fn abort(&self, reason: AbortReason) {
        self.intents.update(|intents| intents.runs.abort(self.id, reason));
    }

    /// Notes the calls that the run makes.
    pub(super) fn set_calls(&self, calls: Option<&Arc<NestedCalls>>) {
        self.intents.update(|intents| {
            if let Some(run) = intents.runs.handle_mut(self.id) {
                run.calls = calls.cloned();
            }
        });
    }

    /// Removes the run, so that it can no longer be aborted. Returns the reason if it was aborted before.
    pub(super) fn end(&self) -> Option<AbortReason> {
        self.end_with(|| ())
    }

    /// As [`Self::end`]. Calls `hand_on` in the same step, unless the run was aborted before: a caller that no longer
    /// finds the run finds what `hand_on` has noted.
    pub(super) fn end_with(&self, hand_on: impl FnOnce()) -> Option<AbortReason> {
        self.intents.update(|intents| {
            let aborted = intents.runs.end(self.id);
            if aborted.is_none() {
                hand_on();
            }
            aborted
        })
    }
}

impl Drop for ActiveRun {
    fn drop(&mut self) {
        self.end();
    }
}

/// The parts of a call by which it is selected.
fn owner_of(call: &Call) -> Owner {
    let parent = call.parent.as_ref().map(|parent| parent.intent);
    Owner { agent: call.agent.clone(), tool: call.tool.clone(), parent }
}

fn copy_call((escalated, wait): HeldCall<'_, Kept>) -> (Escalated, WaitId) {
    (escalated.clone(), wait)
}

/// The wait of an intent for a person, until its verdict expires.
pub(super) fn wait_of(escalated: Escalated) -> Wait<Kept> {
    let owner = owner_of(escalated.call());
    let expires_at = escalated.expires_at();
    Wait::new(owner, escalated, expires_at)
}

/// Returns `true` if two calls have the same content.
pub(super) fn is_same_call(a: &Call, b: &Call) -> bool {
    a.agent == b.agent && a.tool == b.tool && a.arguments == b.arguments && a.parent == b.parent
}
