//! The intents that wait for a person, or have waited and have not ended.

mod fleet;
mod wait;

pub use fleet::{FleetWaits, StoredWait};
pub use wait::{EndedWait, Wait, WaitId, WakeCondition};

use crate::content::Content;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::stop::Stop;
use std::collections::HashMap;
use std::mem;
use time::OffsetDateTime;
use wait::Phase;

/// The call of a held intent, and its wait.
pub type HeldCall<'a, C> = (&'a <C as Content>::Call, WaitId);

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

/// The effect of letting an intent wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldOutcome {
    /// It waits from now on.
    New(WaitId),
    /// It waited before, and keeps its call and verdict.
    Known,
}

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

/// The reason why a decision on a taken intent can no longer be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outdated {
    /// The intent was denied, cancelled, revoked or stopped, or is in a new wait.
    WaitEnded,
    /// All partial approvals were forgotten, because the list of callers was replaced.
    ApprovalsForgotten,
}

/// The result of taking an undecided intent, or of removing one on which nobody acts.
#[derive(Debug, PartialEq, Eq)]
pub enum IfIdle<T> {
    /// Nobody acted on the intent, which is taken or removed.
    Idle(T),
    /// Another decision on the intent is in progress.
    InDecision,
    /// There is no such intent, or a task runs it.
    Absent,
}

impl<T> IfIdle<T> {
    /// Maps the intent that was taken or removed.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> IfIdle<U> {
        match self {
            Self::Idle(idle) => IfIdle::Idle(map(idle)),
            Self::InDecision => IfIdle::InDecision,
            Self::Absent => IfIdle::Absent,
        }
    }
}

/// The intents that wait for a person, or have waited and have not ended.
#[derive(Debug)]
pub struct Waits<C: Content> {
    by_intent: HashMap<IntentId, Wait<C>>,
    /// The maximum number of intents that are held and not claimed, and of those of one agent.
    max_waiting: usize,
    max_waiting_per_agent: usize,
    /// The number of the latest wait.
    last_number: u64,
    /// The number of times that all partial approvals were forgotten.
    forget_count: u64,
    changes: Changes,
}

impl<C: Content> Waits<C> {
    pub(crate) fn new(max_waiting: usize, max_waiting_per_agent: usize, first_number: u64) -> Self {
        Self {
            by_intent: HashMap::new(),
            max_waiting,
            max_waiting_per_agent,
            last_number: first_number,
            forget_count: 0,
            changes: Changes::None,
        }
    }

    /// Takes what has changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        mem::replace(&mut self.changes, Changes::None)
    }

    pub(crate) fn note(&mut self, changes: Changes) {
        self.changes = self.changes.max(changes);
    }

    /// The wait of an intent, in any phase.
    #[must_use]
    pub fn get(&self, intent: IntentId) -> Option<&Wait<C>> {
        self.by_intent.get(&intent)
    }

    /// Returns `true` if an intent is held: it waits for a person, or is approved and has not ended.
    #[must_use]
    pub fn is_held(&self, intent: IntentId) -> bool {
        self.by_intent.contains_key(&intent)
    }

    /// Returns `true` if another intent of an agent may wait.
    #[must_use]
    pub fn has_room(&self, agent: &AgentDid) -> bool {
        let counted = || self.by_intent.values().filter(|wait| !wait.is_claimed());
        let of_agent = counted().filter(|wait| wait.owner.agent == *agent).count();
        counted().count() < self.max_waiting && of_agent < self.max_waiting_per_agent
    }

    /// The call of an intent that is reported as waiting without a look-up in the journal.
    #[must_use]
    pub fn visible_call(&self, intent: IntentId, now: OffsetDateTime) -> Option<&C::Call> {
        self.get(intent).filter(|wait| !wait.is_claimed() && wait.is_in_time(now)).map(Wait::call)
    }

    /// The call of an undecided intent, and its wait.
    #[must_use]
    pub fn undecided_call(&self, intent: IntentId) -> Option<HeldCall<'_, C>> {
        let wait = self.get(intent).filter(|wait| wait.is_undecided())?;
        Some((&wait.call, wait.id(intent, self.forget_count)))
    }

    /// The waits on which a person can decide.
    pub fn undecided(&self, now: OffsetDateTime) -> impl Iterator<Item = &Wait<C>> {
        let waits = self.by_intent.values();
        waits.filter(move |wait| wait.is_undecided() && wait.is_in_time(now))
    }

    /// The intents whose waits are selected.
    pub fn select(&self, is_selected: impl Fn(&Wait<C>) -> bool) -> impl Iterator<Item = IntentId> {
        let waits = self.by_intent.iter().filter(move |(_, wait)| is_selected(wait));
        waits.map(|(intent, _)| *intent)
    }

    /// Restores the wait of an earlier process, with its approval if it has one.
    pub fn restore(&mut self, intent: IntentId, wait: Wait<C>, approval: Option<C::Approval>) {
        let phase = approval.map_or(Phase::Undecided, Phase::Approved);
        self.insert(intent, Wait { phase, ..wait });
    }

    /// Lets an intent wait for a person: see [`crate::Intents::hold`], which calls this.
    pub(crate) fn begin(&mut self, intent: IntentId, wait: Wait<C>) -> Result<HoldOutcome, HoldError> {
        if self.is_held(intent) {
            return Ok(HoldOutcome::Known);
        }
        if !self.has_room(&wait.owner.agent) {
            return Err(HoldError::NoRoom);
        }
        self.note(Changes::List);
        Ok(HoldOutcome::New(self.insert(intent, wait)))
    }

    fn insert(&mut self, intent: IntentId, wait: Wait<C>) -> WaitId {
        let number = self.next_number();
        self.by_intent.insert(intent, Wait { number, ..wait });
        WaitId { intent, number, forget_count: self.forget_count }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number = self.last_number.wrapping_add(1);
        self.last_number
    }

    /// Ends a wait: the run has finished or can no longer begin, or the journal does not have the wait. Returns `false` if
    /// the intent is not held, or is in a new wait.
    pub fn end(&mut self, wait: WaitId) -> bool {
        self.note(Changes::Waits);
        self.remove_if(wait.intent, |held| held.number == wait.number).is_some()
    }

    /// Removes the undecided intents that have expired. Any other expired intent is removed by the task that decides on it
    /// or runs it.
    pub fn expire(&mut self, now: OffsetDateTime) -> Vec<EndedWait<C::Call>> {
        self.remove_all(|wait| wait.is_undecided() && !wait.is_in_time(now))
    }

    /// Removes the wait of an intent if it is selected.
    pub(crate) fn remove_if(
        &mut self,
        intent: IntentId,
        is_selected: impl Fn(&Wait<C>) -> bool,
    ) -> Option<EndedWait<C::Call>> {
        self.get(intent).filter(|wait| is_selected(wait))?;
        self.note(Changes::Waits);
        self.by_intent.remove(&intent).map(EndedWait::of)
    }

    /// Removes all waits that are selected.
    pub(crate) fn remove_all(&mut self, is_selected: impl Fn(&Wait<C>) -> bool) -> Vec<EndedWait<C::Call>> {
        let removed = self.by_intent.extract_if(|_, wait| is_selected(wait));
        let ended = removed.map(|(_, wait)| EndedWait::of(wait)).collect::<Vec<_>>();
        if !ended.is_empty() {
            self.note(Changes::Waits);
        }
        ended
    }

    /// Takes an undecided intent for a decision. Any other decision is excluded until the intent is
    /// [released](Self::release) or [ended](Self::end).
    pub fn take_undecided(&mut self, intent: IntentId) -> IfIdle<HeldCall<'_, C>> {
        let Some(wait) = self.by_intent.get_mut(&intent) else { return IfIdle::Absent };
        match wait.phase {
            Phase::Undecided => {
                wait.phase = Phase::Deciding;
                IfIdle::Idle((&wait.call, wait.id(intent, self.forget_count)))
            }
            Phase::Deciding | Phase::Approving => IfIdle::InDecision,
            Phase::Claimed | Phase::Approved(_) | Phase::Retrying | Phase::Decided => IfIdle::Absent,
        }
    }

    /// Removes an intent that is undecided, or whose decision the fleet stores.
    pub fn remove_idle(&mut self, intent: IntentId) -> IfIdle<EndedWait<C::Call>> {
        match self.get(intent).map(|wait| &wait.phase) {
            Some(Phase::Undecided | Phase::Decided) => {
                self.remove_if(intent, Wait::is_idle).map_or(IfIdle::Absent, IfIdle::Idle)
            }
            Some(Phase::Deciding | Phase::Approving) => IfIdle::InDecision,
            Some(Phase::Claimed | Phase::Approved(_) | Phase::Retrying) | None => IfIdle::Absent,
        }
    }

    /// Takes an approved intent for a run. Returns `None` if it was cancelled, revoked or stopped.
    pub fn take_approved(&mut self, intent: IntentId) -> Option<(&C::Call, WaitId, C::Approval)> {
        let wait = self.by_intent.get_mut(&intent)?;
        let Phase::Approved(approval) = wait.phase.clone() else { return None };
        wait.phase = Phase::Retrying;
        Some((&wait.call, wait.id(intent, self.forget_count), approval))
    }

    /// Checks that the wait is still the same, and that no approvals were forgotten since the intent was taken. A decision
    /// that is recorded in the same step is about this wait.
    ///
    /// # Errors
    /// [`Outdated`].
    pub fn check_current(&self, taken: WaitId) -> Result<(), Outdated> {
        let is_same = self.get(taken.intent).is_some_and(|wait| wait.number == taken.number);
        match is_same {
            true if self.forget_count == taken.forget_count => Ok(()),
            true => Err(Outdated::ApprovalsForgotten),
            false => Err(Outdated::WaitEnded),
        }
    }

    /// Marks a claimed intent as one whose approval is being recorded. From now on, a cancellation aborts the run instead of
    /// ending the wait.
    pub fn mark_approving(&mut self, taken: WaitId) {
        self.change(taken, |wait| wait.phase = Phase::Approving);
    }

    /// Marks an intent as taken again, because its approval could not be recorded.
    pub fn mark_deciding(&mut self, taken: WaitId) {
        self.change(taken, |wait| wait.phase = Phase::Deciding);
    }

    /// Marks an approved intent as claimed. Returns `false` if it was cancelled, revoked or stopped since it was taken.
    #[must_use]
    pub fn mark_claimed(&mut self, taken: WaitId) -> bool {
        self.change(taken, |wait| wait.phase = Phase::Claimed)
    }

    /// Lets an intent wait again, because the decision cannot be applied.
    pub fn release(&mut self, taken: WaitId) {
        self.change(taken, |wait| wait.phase = Phase::Undecided);
    }

    /// Adds an approval of an intent that needs more of them, and lets the intent wait again.
    ///
    /// # Errors
    /// [`Outdated`]: the approval does not count.
    pub fn release_with_approval(
        &mut self,
        taken: WaitId,
        approval: C::PartialApproval,
    ) -> Result<(), Outdated> {
        let current = self.check_current(taken);
        self.change(taken, |wait| {
            wait.phase = Phase::Undecided;
            if current.is_ok() {
                wait.partial_approvals.push(approval);
            }
        });
        current
    }

    /// Lets an approved intent that cannot run now wait to run. One that was cancelled, revoked or stopped in the meantime
    /// does not.
    pub fn wait_to_run(&mut self, taken: WaitId, approval: C::Approval) {
        self.change(taken, |wait| wait.phase = Phase::Approved(approval));
    }

    /// Moves an approved intent that was [taken](Self::take_approved) to a new wait for a person. Returns `None` if it was
    /// cancelled, revoked or stopped.
    pub fn wait_again(&mut self, taken: WaitId) -> Option<WaitId> {
        let number = self.next_number();
        let is_same = self.change(taken, |wait| {
            wait.number = number;
            wait.phase = Phase::Undecided;
            wait.partial_approvals.clear();
        });
        is_same.then_some(WaitId { intent: taken.intent, number, forget_count: self.forget_count })
    }

    /// Forgets the approvals so far of an intent.
    pub fn forget_partial_approvals(&mut self, intent: IntentId) {
        if let Some(wait) = self.by_intent.get_mut(&intent) {
            wait.partial_approvals.clear();
        }
        self.note(Changes::Waits);
    }

    /// Forgets the approvals so far of all intents, also those that are being recorded.
    pub fn forget_all_partial_approvals(&mut self) {
        self.forget_count += 1;
        self.by_intent.values_mut().for_each(|wait| wait.partial_approvals.clear());
        self.note(Changes::Waits);
    }

    /// Changes a taken intent. Returns `false` if it is not held, or is in a new wait.
    fn change(&mut self, taken: WaitId, change: impl FnOnce(&mut Wait<C>)) -> bool {
        self.note(Changes::Waits);
        let wait = self.by_intent.get_mut(&taken.intent).filter(|wait| wait.number == taken.number);
        wait.map(change).is_some()
    }
}
