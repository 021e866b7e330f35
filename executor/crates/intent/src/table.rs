//! All open intents, and every step that one of them can take.

use crate::open::{Open, Phase, Run, Wait};
use crate::{Content, Outdated, Owner, RunNumber, RunPlace, Stops, WaitNumber, WakeCondition};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::AbortReason;
use a2g_types::stop::Stop;
use std::collections::HashMap;
use std::mem;
use time::OffsetDateTime;

/// The open intents of an executor, and the stops in force.
#[derive(Debug)]
pub struct Intents<C: Content> {
    open: HashMap<IntentId, Open<C>>,
    stops: Stops,
    /// The maximum number of intents that are held and not claimed, and of those of one agent.
    max_waiting: usize,
    max_waiting_per_agent: usize,
    /// The number of the latest wait.
    last_wait: u64,
    /// The number of the latest run.
    last_run: u64,
    /// The number of times that all partial approvals were forgotten.
    forget_count: u64,
    changes: Changes,
}

/// The changes since they were last taken, for those who wait for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Changes {
    /// Nothing that anybody waits for.
    None,
    /// An intent has begun to wait, which concerns only lists.
    List,
    /// An intent has stopped waiting, or waits again.
    Waits,
}

/// An intent that was taken for a decision.
pub type Taken<'a, C> = (&'a <C as Content>::Call, WaitNumber);

/// The reason why an intent does not wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldError {
    /// An operator has stopped its agent, its tool or everything.
    Stopped(Stop),
    /// The run that makes the call has ended.
    ParentEnded,
    /// The maximum number of intents wait.
    NoRoom,
}

/// The reason why an intent is not claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimError {
    /// An operator has stopped its agent, its tool or everything.
    Stopped(Stop),
}

/// The reason why a claimed intent may not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartError {
    /// An operator has stopped its agent, its tool or everything.
    Stopped(Stop),
    /// An operator has stopped the call, and has lifted the stop since.
    StopLifted,
}

/// A held intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// It is new.
    New(WaitNumber),
    /// It waited before, and keeps its call and verdict.
    Known,
}

/// The effect of ending an intent.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended<T> {
    /// It waited, and no longer does.
    Wait(T),
    /// It was claimed, and is aborted. `is_first` is `true` if nothing stopped it before.
    Run {
        /// Nothing stopped the run before.
        is_first: bool,
    },
    /// Another node has the call, and has to end it.
    Elsewhere,
}

/// The effect of ending several intents.
#[derive(Debug)]
pub struct EndedAll<T> {
    /// The calls that waited.
    pub waits: Vec<T>,
    /// The runs that are aborted.
    pub run_count: usize,
    /// Those that nothing stopped before.
    pub newly_stopped: Vec<IntentId>,
}

/// The result of taking or removing an undecided intent.
#[derive(Debug, PartialEq, Eq)]
pub enum Removal<T> {
    /// The intent was undecided.
    Removed(T),
    /// Another decision on the intent is in progress.
    InDecision,
    /// No such intent is undecided.
    Absent,
}

impl<T> EndedAll<T> {
    /// The effect of ending this intent, as that of ending several.
    pub fn of(intent: IntentId, ended: Option<Ended<T>>) -> Self {
        let mut all = Self { waits: Vec::new(), run_count: 0, newly_stopped: Vec::new() };
        match ended {
            Some(Ended::Wait(call)) => all.waits.push(call),
            Some(Ended::Run { is_first }) => {
                all.run_count = 1;
                all.newly_stopped.extend(is_first.then_some(intent));
            }
            Some(Ended::Elsewhere) | None => {}
        }
        all
    }
}

impl<T> Ended<T> {
    /// Maps the call that waited.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> Ended<U> {
        match self {
            Self::Wait(call) => Ended::Wait(map(call)),
            Self::Run { is_first } => Ended::Run { is_first },
            Self::Elsewhere => Ended::Elsewhere,
        }
    }
}

impl<T> Removal<T> {
    /// Maps the intent that was undecided.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> Removal<U> {
        match self {
            Self::Removed(removed) => Removal::Removed(map(removed)),
            Self::InDecision => Removal::InDecision,
            Self::Absent => Removal::Absent,
        }
    }
}

impl<C: Content> Intents<C> {
    /// No intents, of which at most `max_waiting` may wait for a person, `max_waiting_per_agent` of one agent. `first_wait`
    /// is a random number, so that no wait has the number of one of an earlier process.
    #[must_use]
    pub fn new(max_waiting: usize, max_waiting_per_agent: usize, first_wait: u64) -> Self {
        Self {
            open: HashMap::new(),
            stops: Stops::default(),
            max_waiting,
            max_waiting_per_agent,
            last_wait: first_wait,
            last_run: 0,
            forget_count: 0,
            changes: Changes::None,
        }
    }

    /// Takes what has changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        mem::replace(&mut self.changes, Changes::None)
    }

    fn note(&mut self, changes: Changes) {
        self.changes = self.changes.max(changes);
    }

    /// The stops in force.
    #[must_use]
    pub fn stops(&self) -> &Stops {
        &self.stops
    }

    /// The stops in force, to be changed. [`Self::stop`] sets one.
    pub fn stops_mut(&mut self) -> &mut Stops {
        &mut self.stops
    }

    // Waits for a person.

    /// Restores the wait of an earlier process, with its approval if it has one.
    pub fn restore(
        &mut self,
        intent: IntentId,
        owner: Owner,
        call: C::Call,
        expires_at: OffsetDateTime,
        approval: Option<C::Approval>,
    ) {
        let number = self.next_wait();
        let phase = approval.map_or(Phase::Undecided, Phase::Approved);
        let wait = Wait { owner, call, expires_at, number, phase, partial: Vec::new() };
        self.open.insert(intent, Open { wait: Some(wait), run: None });
    }

    /// Lets an intent wait for a person. A later verdict does not replace the first one.
    ///
    /// # Errors
    /// [`HoldError`]; an intent that waits already goes on.
    pub fn hold(
        &mut self,
        intent: IntentId,
        owner: Owner,
        call: C::Call,
        expires_at: OffsetDateTime,
    ) -> Result<Registration, HoldError> {
        if let Some(stop) = self.stops.find(&owner.agent, &owner.tool) {
            return Err(HoldError::Stopped(stop.clone()));
        }
        if owner.parent.is_some_and(|parent| !self.is_active(parent)) {
            return Err(HoldError::ParentEnded);
        }
        if self.is_held(intent) {
            return Ok(Registration::Known);
        }
        if !self.has_room(&owner.agent) {
            return Err(HoldError::NoRoom);
        }
        let number = self.next_wait();
        let wait = Wait { owner, call, expires_at, number, phase: Phase::Undecided, partial: Vec::new() };
        self.open.entry(intent).or_default().wait = Some(wait);
        self.note(Changes::List);
        Ok(Registration::New(self.number(intent, number)))
    }

    /// Removes the undecided intents that have expired.
    pub fn expire(&mut self, now: OffsetDateTime) -> Vec<C::Call> {
        self.remove_waits(|wait| wait.has_expired(now))
    }

    /// Returns `true` if another intent of an agent may wait.
    #[must_use]
    pub fn has_room(&self, agent: &AgentDid) -> bool {
        let visible = || self.waits().filter(|(_, wait)| !matches!(wait.phase, Phase::Claimed));
        let of_agent = visible().filter(|(_, wait)| wait.owner.agent == *agent).count();
        visible().count() < self.max_waiting && of_agent < self.max_waiting_per_agent
    }

    /// Returns `true` if an intent is held: it waits for a person, or is approved and has not ended.
    #[must_use]
    pub fn is_held(&self, intent: IntentId) -> bool {
        self.wait(intent).is_some()
    }

    /// Returns `true` if an intent waits for a decision, or one is in progress.
    #[must_use]
    pub fn awaits_decision(&self, intent: IntentId) -> bool {
        self.wait(intent).is_some_and(Wait::awaits_decision)
    }

    /// The event that ends an intent's wait; `None` for an intent that is not held.
    #[must_use]
    pub fn wake_condition(&self, intent: IntentId) -> Option<WakeCondition> {
        self.wait(intent).map(Wait::wake_condition)
    }

    /// The call of an intent in any phase of its wait, and its approvals so far.
    #[must_use]
    pub fn held_call(&self, intent: IntentId) -> Option<(&C::Call, &[C::PartialApproval])> {
        self.wait(intent).map(|wait| (&wait.call, &*wait.partial))
    }

    /// The call of an intent that is reported as waiting.
    #[must_use]
    pub fn visible_call(&self, intent: IntentId, now: OffsetDateTime) -> Option<&C::Call> {
        self.wait(intent).filter(|wait| wait.is_visible(now)).map(|wait| &wait.call)
    }

    /// The call of an intent that has not expired, in any phase of its wait.
    #[must_use]
    pub fn pending_call(&self, intent: IntentId, now: OffsetDateTime) -> Option<&C::Call> {
        self.wait(intent).filter(|wait| wait.is_pending(now)).map(|wait| &wait.call)
    }

    /// The call of an undecided intent, and its wait.
    #[must_use]
    pub fn undecided_call(&self, intent: IntentId) -> Option<Taken<'_, C>> {
        let wait = self.wait(intent).filter(|wait| matches!(wait.phase, Phase::Undecided))?;
        Some((&wait.call, self.number(intent, wait.number)))
    }

    /// The number of an intent's wait in any phase.
    #[cfg(test)]
    pub(crate) fn wait_number(&self, intent: IntentId) -> Option<u64> {
        self.wait(intent).map(|wait| wait.number)
    }

    /// The calls on which a person can decide.
    pub fn undecided_calls(&self, now: OffsetDateTime) -> impl Iterator<Item = &C::Call> {
        let waits = self.waits().map(|(_, wait)| wait);
        let undecided =
            waits.filter(move |wait| matches!(wait.phase, Phase::Undecided) && wait.is_pending(now));
        undecided.map(|wait| &wait.call)
    }

    /// The number of intents that wait for a person.
    #[must_use]
    pub fn undecided_count(&self, now: OffsetDateTime) -> usize {
        self.waits().filter(|(_, wait)| wait.awaits_decision() && wait.is_pending(now)).count()
    }

    /// The intents that wait for a decision, or on which one is in progress. An approved intent may have to wait for
    /// another decision later.
    pub fn awaiting_decision(&self) -> impl Iterator<Item = IntentId> {
        self.waits().filter(|(_, wait)| wait.awaits_decision()).map(|(intent, _)| intent)
    }

    /// The approved intents that wait to run.
    pub fn approved(&self) -> impl Iterator<Item = IntentId> {
        let is_approved = |wait: &Wait<C>| matches!(wait.phase, Phase::Approved(_));
        self.waits().filter(move |(_, wait)| is_approved(wait)).map(|(intent, _)| intent)
    }

    /// The intents that wait without a run, except nested calls.
    pub fn waits_of_callers(&self) -> impl Iterator<Item = IntentId> {
        let waits = self.waits().filter(|(_, wait)| wait.ends_with_wait() && wait.owner.parent.is_none());
        waits.map(|(intent, _)| intent)
    }

    // Decisions.

    /// Takes an undecided intent for a decision. Any other decision is excluded until the intent is
    /// [released](Self::release) or [ended](Self::end_wait).
    pub fn take_undecided(&mut self, intent: IntentId) -> Removal<Taken<'_, C>> {
        let forgotten = self.forget_count;
        let wait = self.open.get_mut(&intent).and_then(|open| open.wait.as_mut());
        let Some(wait) = wait else { return Removal::Absent };
        match wait.phase {
            Phase::Undecided => {
                wait.phase = Phase::Deciding;
                Removal::Removed((&wait.call, WaitNumber { intent, wait: wait.number, forgotten }))
            }
            Phase::Deciding | Phase::Approving => Removal::InDecision,
            Phase::Claimed | Phase::Approved(_) | Phase::Retrying => Removal::Absent,
        }
    }

    /// Removes an undecided intent.
    pub fn remove_undecided(&mut self, intent: IntentId) -> Removal<C::Call> {
        match self.wait(intent).map(|wait| &wait.phase) {
            Some(Phase::Undecided) => self.remove_wait(intent).map_or(Removal::Absent, Removal::Removed),
            Some(Phase::Deciding | Phase::Approving) => Removal::InDecision,
            Some(Phase::Claimed | Phase::Approved(_) | Phase::Retrying) | None => Removal::Absent,
        }
    }

    /// Takes an approved intent for a run. Returns `None` if it was cancelled, revoked or stopped.
    pub fn take_approved(&mut self, intent: IntentId) -> Option<(Taken<'_, C>, C::Approval)> {
        let forgotten = self.forget_count;
        let wait = self.open.get_mut(&intent)?.wait.as_mut()?;
        let Phase::Approved(approval) = &wait.phase else { return None };
        let approval = approval.clone();
        wait.phase = Phase::Retrying;
        Some(((&wait.call, WaitNumber { intent, wait: wait.number, forgotten }), approval))
    }

    /// Checks that the wait is still the same, and that no approvals were forgotten since the intent was taken. A decision
    /// that is recorded in the same step is about this wait.
    ///
    /// # Errors
    /// [`Outdated`].
    pub fn check_current(&self, taken: WaitNumber) -> Result<(), Outdated> {
        let is_same = self.wait(taken.intent).is_some_and(|wait| wait.number == taken.wait);
        if is_same { self.check_not_forgotten(taken) } else { Err(Outdated::WaitEnded) }
    }

    /// Marks a claimed intent as one whose approval is being recorded. From now on, a cancellation stops the run instead of
    /// ending the wait.
    pub fn mark_approving(&mut self, taken: WaitNumber) {
        self.change(taken, |wait| wait.phase = Phase::Approving);
    }

    /// Lets an intent wait again, because the decision cannot be applied.
    pub fn release(&mut self, taken: WaitNumber) {
        self.change(taken, |wait| wait.phase = Phase::Undecided);
    }

    /// Adds an approval of an intent that needs more of them, and lets the intent wait again.
    ///
    /// # Errors
    /// [`Outdated`]: the approval does not count.
    pub fn release_with_approval(
        &mut self,
        taken: WaitNumber,
        approval: C::PartialApproval,
    ) -> Result<(), Outdated> {
        let current = self.check_not_forgotten(taken);
        let is_same = self.change(taken, |wait| {
            wait.phase = Phase::Undecided;
            if current.is_ok() {
                wait.partial.push(approval);
            }
        });
        if is_same { current } else { Err(Outdated::WaitEnded) }
    }

    /// Marks an intent as taken again, because its approval could not be recorded.
    pub fn take_back(&mut self, taken: WaitNumber) {
        self.change(taken, |wait| wait.phase = Phase::Deciding);
    }

    /// Marks an approved intent as claimed. Returns `false` if it was cancelled, revoked or stopped since it was taken.
    #[must_use]
    pub fn mark_claimed(&mut self, taken: WaitNumber) -> bool {
        self.change(taken, |wait| wait.phase = Phase::Claimed)
    }

    /// Lets an approved intent that cannot run now wait to run. One that was cancelled, revoked or stopped in the meantime
    /// does not.
    pub fn wait_to_run(&mut self, taken: WaitNumber, approval: C::Approval) {
        self.change(taken, |wait| wait.phase = Phase::Approved(approval));
    }

    /// Moves an approved intent that was [taken](Self::take_approved) to a new wait for a person. Returns `None` if it was
    /// cancelled, revoked or stopped.
    pub fn wait_again(&mut self, taken: WaitNumber) -> Option<WaitNumber> {
        let number = self.last_wait.wrapping_add(1);
        let is_same = self.change(taken, |wait| {
            wait.number = number;
            wait.phase = Phase::Undecided;
            wait.partial.clear();
        });
        is_same.then(|| {
            self.last_wait = number;
            self.number(taken.intent, number)
        })
    }

    /// Ends a wait: the run has finished or can no longer begin, or the journal does not have the wait. Returns `false` if
    /// the intent is not held, or is in a new wait.
    pub fn end_wait(&mut self, wait: WaitNumber) -> bool {
        self.note(Changes::Waits);
        let is_same = self.wait(wait.intent).is_some_and(|held| held.number == wait.wait);
        is_same && self.remove_wait(wait.intent).is_some()
    }

    /// Forgets the approvals so far of an intent.
    pub fn forget_partial_approvals(&mut self, intent: IntentId) {
        if let Some(wait) = self.open.get_mut(&intent).and_then(|open| open.wait.as_mut()) {
            wait.partial.clear();
        }
        self.note(Changes::Waits);
    }

    /// Forgets the approvals so far of all intents, also those that are being recorded.
    pub fn forget_all_partial_approvals(&mut self) {
        self.forget_count += 1;
        let waits = self.open.values_mut().filter_map(|open| open.wait.as_mut());
        waits.for_each(|wait| wait.partial.clear());
        self.note(Changes::Waits);
    }

    // Runs.

    /// Registers a claimed intent. A nested call whose parent has ended is aborted at once. Returns the number of the run,
    /// which tells it from a later one of the same intent.
    ///
    /// # Errors
    /// If an operator has stopped the call.
    pub fn claim(&mut self, intent: IntentId, owner: Owner, handle: C::Run) -> Result<RunNumber, ClaimError> {
        if let Some(stop) = self.stops.find(&owner.agent, &owner.tool) {
            return Err(ClaimError::Stopped(stop.clone()));
        }
        let is_orphan = owner.parent.is_some_and(|parent| !self.is_active(parent));
        self.last_run += 1;
        let number = RunNumber(self.last_run);
        let mut run = Run::new(owner, handle, number);
        if is_orphan {
            run.stop(AbortReason::ParentEnded);
        }
        self.open.entry(intent).or_default().run = Some(run);
        Ok(number)
    }

    /// Checks whether the guest of a claimed intent may begin. A stop that is set later aborts the run.
    ///
    /// # Errors
    /// If an operator has stopped the call, even if that stop has been lifted.
    pub fn check_start(&self, intent: IntentId, agent: &AgentDid, tool: &ToolName) -> Result<(), StartError> {
        if let Some(stop) = self.stops.find(agent, tool) {
            return Err(StartError::Stopped(stop.clone()));
        }
        match self.run(intent).and_then(|run| run.stopped) {
            Some(AbortReason::Stopped) => Err(StartError::StopLifted),
            Some(_) | None => Ok(()),
        }
    }

    /// Removes an intent whose guest has ended, so that it can no longer be stopped. Returns the reason if it was stopped
    /// before.
    pub fn end_run(&mut self, intent: IntentId, number: RunNumber) -> Option<AbortReason> {
        let open = self.open.get_mut(&intent)?;
        let ended = open.run.take_if(|run| run.number == number)?;
        if open.wait.is_none() {
            self.open.remove(&intent);
        }
        ended.stopped
    }

    /// Returns `true` if a claimed intent has not ended.
    #[must_use]
    pub fn is_active(&self, intent: IntentId) -> bool {
        self.run(intent).is_some()
    }

    /// The run of a claimed intent.
    #[must_use]
    pub fn run_handle(&self, intent: IntentId) -> Option<&C::Run> {
        self.run(intent).map(|run| &run.handle)
    }

    /// The run of a claimed intent, to be changed.
    pub fn run_handle_mut(&mut self, intent: IntentId) -> Option<&mut C::Run> {
        self.open.get_mut(&intent)?.run.as_mut().map(|run| &mut run.handle)
    }

    /// The runs here, in the order of their ids, without those whose calls another node has.
    #[must_use]
    pub fn runs_here(&self) -> Vec<(IntentId, &Owner)> {
        let runs = self.open.iter().filter_map(|(intent, open)| Some((*intent, open.run.as_ref()?)));
        let here = runs.filter(|(_, run)| run.is_here()).map(|(intent, run)| (intent, &run.owner));
        let mut here = here.collect::<Vec<_>>();
        here.sort_by_key(|(intent, _)| *intent);
        here
    }

    /// The owner of an intent that is claimed, and the place of its run.
    #[must_use]
    pub fn run_place(&self, intent: IntentId) -> Option<(&Owner, RunPlace)> {
        self.run(intent).map(|run| (&run.owner, run.place))
    }

    /// Notes that another node has the call of a run.
    pub fn pass_on(&mut self, intent: IntentId) {
        if let Some(run) = self.open.get_mut(&intent).and_then(|open| open.run.as_mut()) {
            run.place = RunPlace::Elsewhere { stop_on_return: None };
        }
    }

    /// Notes that this node has the call of a run again. The run is stopped if that was asked for meanwhile.
    pub fn take_back_run(&mut self, intent: IntentId) {
        if let Some(run) = self.open.get_mut(&intent).and_then(|open| open.run.as_mut())
            && let RunPlace::Elsewhere { stop_on_return } = mem::replace(&mut run.place, RunPlace::Here)
            && let Some(reason) = stop_on_return
        {
            run.stop(reason);
        }
    }

    // Ends.

    /// Ends an intent if its agent is selected: aborts its run, and removes its wait unless it ends with the run, so that a
    /// decision in progress can no longer be recorded. Returns `None` if there is no such intent, or its run has ended.
    pub fn end(
        &mut self,
        intent: IntentId,
        is_selected: impl Fn(&AgentDid) -> bool,
        reason: AbortReason,
    ) -> Option<Ended<C::Call>> {
        let open = self.open.get_mut(&intent)?;
        let run = open.run.as_mut().filter(|run| is_selected(&run.owner.agent));
        let stopped = run.map(|run| run.stop(reason));
        let wait = open.wait.as_ref().filter(|wait| is_selected(&wait.owner.agent) && wait.ends_with_wait());
        if wait.is_some()
            && let Some(call) = self.remove_wait(intent)
        {
            return Some(Ended::Wait(call));
        }
        stopped.map(|is_first| is_first.map_or(Ended::Elsewhere, |is_first| Ended::Run { is_first }))
    }

    /// As [`Self::end`], for all intents that are selected.
    pub fn end_all(
        &mut self,
        is_selected: impl Fn(&AgentDid, &ToolName) -> bool,
        reason: AbortReason,
    ) -> EndedAll<C::Call> {
        let is_selected = |owner: &Owner| is_selected(&owner.agent, &owner.tool);
        let mut ended = EndedAll { waits: Vec::new(), run_count: 0, newly_stopped: Vec::new() };
        for (intent, open) in &mut self.open {
            let run = open.run.as_mut().filter(|run| is_selected(&run.owner));
            let stopped = run.and_then(|run| run.stop(reason));
            // A run whose approval is not recorded yet ends with its wait.
            let ends_with_wait = |wait: &Wait<C>| is_selected(&wait.owner) && wait.ends_with_wait();
            let (Some(is_first), false) = (stopped, open.wait.as_ref().is_some_and(ends_with_wait)) else {
                continue;
            };
            ended.run_count += 1;
            if is_first {
                ended.newly_stopped.push(*intent);
            }
        }
        ended.waits = self.remove_waits(|wait| is_selected(&wait.owner) && wait.ends_with_wait());
        self.note(Changes::Waits);
        ended
    }

    /// Sets a stop, and ends all intents that it includes.
    pub fn stop(&mut self, stop: Stop) -> EndedAll<C::Call> {
        let target = stop.target.clone();
        self.stops.restore(stop);
        self.end_all(|agent, tool| target.includes(agent, tool), AbortReason::Stopped)
    }

    /// Aborts all runs, at the end of the process. What waits goes on waiting, in the next process. Returns the number of
    /// runs.
    pub fn abort_runs(&mut self) -> usize {
        let runs = self.open.values_mut().filter_map(|open| open.run.as_mut());
        runs.filter_map(|run| run.stop(AbortReason::Shutdown)).count()
    }

    /// Aborts the runs of the calls that a run has made.
    pub fn abort_children(&mut self, parent: IntentId) {
        let runs = self.open.values_mut().filter_map(|open| open.run.as_mut());
        for run in runs.filter(|run| run.owner.parent == Some(parent)) {
            run.stop(AbortReason::ParentEnded);
        }
    }

    /// Aborts a run, whatever waits. Returns `true` if nothing stopped it before; `None` if there is no such run, or another
    /// node has its call.
    pub fn abort_run(&mut self, intent: IntentId, reason: AbortReason) -> Option<bool> {
        self.open.get_mut(&intent)?.run.as_mut()?.stop(reason)
    }

    // Helpers.

    fn wait(&self, intent: IntentId) -> Option<&Wait<C>> {
        self.open.get(&intent)?.wait.as_ref()
    }

    fn run(&self, intent: IntentId) -> Option<&Run<C>> {
        self.open.get(&intent)?.run.as_ref()
    }

    fn waits(&self) -> impl Iterator<Item = (IntentId, &Wait<C>)> {
        self.open.iter().filter_map(|(intent, open)| Some((*intent, open.wait.as_ref()?)))
    }

    fn next_wait(&mut self) -> u64 {
        self.last_wait = self.last_wait.wrapping_add(1);
        self.last_wait
    }

    fn number(&self, intent: IntentId, wait: u64) -> WaitNumber {
        WaitNumber { intent, wait, forgotten: self.forget_count }
    }

    fn check_not_forgotten(&self, taken: WaitNumber) -> Result<(), Outdated> {
        if self.forget_count == taken.forgotten { Ok(()) } else { Err(Outdated::ApprovalsForgotten) }
    }

    /// Changes a taken intent. Returns `false` if it is not held, or is in a new wait.
    fn change(&mut self, taken: WaitNumber, change: impl FnOnce(&mut Wait<C>)) -> bool {
        self.note(Changes::Waits);
        let wait = self.open.get_mut(&taken.intent).and_then(|open| open.wait.as_mut());
        wait.filter(|wait| wait.number == taken.wait).map(change).is_some()
    }

    fn remove_wait(&mut self, intent: IntentId) -> Option<C::Call> {
        let open = self.open.get_mut(&intent)?;
        let wait = open.wait.take()?;
        if open.run.is_none() {
            self.open.remove(&intent);
        }
        self.note(Changes::Waits);
        Some(wait.call)
    }

    fn remove_waits(&mut self, is_selected: impl Fn(&Wait<C>) -> bool) -> Vec<C::Call> {
        let selected = self.waits().filter(|(_, wait)| is_selected(wait));
        let selected = selected.map(|(intent, _)| intent).collect::<Vec<_>>();
        selected.into_iter().filter_map(|intent| self.remove_wait(intent)).collect()
    }
}
