//! Intents that wait for a person. The journal also stores them.
//!
//! ```text
//! hold ─▶ waits ─ take_undecided ─▶ taken ─ record_approval, mark_claimed ─▶ claimed ─ remove_taken ─▶ its run has finished
//!           │ ▲                      ▲ │                       │
//!           │ └────── release ───────┼─┘                       │ it could not begin
//!           │ └────── wait_again ────┤                         │
//!           │                  take_approved                   ▼
//!           │                        └───────────── approved, waits to run
//!           └─ remove_undecided, remove_waiting, remove_all, remove_expired: denied, cancelled, revoked, stopped, expired
//! ```
//! An intent that needs several approvals is released with each partial approval, and keeps it while it waits.
//! An intent stays here until its run has finished, so that it is not lost if it was claimed and its run could not
//! begin. The journal has the stage of a claimed intent.
//!
//! Changes of the waiting intents are sent to the journal under the lock, which keeps their order, and the journal's
//! answers are awaited without the lock.

use super::approval_rules::PartialApproval;
use super::faults::intent_conflict_fault;
use super::{AgentFilter, CallFilter};
use a2g_govern::Escalated;
use a2g_journal::{Approval, HeldIntent};
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::verdict::Verdict;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use time::OffsetDateTime;
use tokio::sync::watch;
use uuid::Uuid;

/// The maximum number of waiting intents.
const MAX_WAITING: usize = 1000;
/// The maximum number of waiting intents of one agent.
const MAX_WAITING_PER_AGENT: usize = MAX_WAITING / 4;

/// All escalated intents whose verdicts have not expired.
#[derive(Debug)]
pub(super) struct Escalations {
    waiting: Mutex<HashMap<IntentId, WaitingIntent>>,
    /// The number of the latest wait.
    last_wait: AtomicU64,
    /// The number of times that all partial approvals were forgotten.
    forget_count: AtomicU64,
    /// Notified whenever an intent stops waiting, or waits again: every task that waits for an intent follows it.
    changes: watch::Sender<()>,
    /// Notified also when an intent begins to wait, which concerns only lists.
    list_changes: watch::Sender<()>,
}

/// An escalated intent and the phase of its wait.
#[derive(Debug)]
struct WaitingIntent {
    escalated: Escalated,
    /// The number of this wait. An intent may wait again later under the same id.
    // Starts at a random number in each process, so that it does not repeat the numbers of an earlier one.
    wait: u64,
    // Stored here as well as in the journal: following the journal would need a wake-up after every commit.
    phase: WaitPhase,
    /// The approval of an intent that could not run immediately.
    approval: Option<Approval>,
    /// The approvals so far of an intent that needs more of them.
    partial: Vec<PartialApproval>,
}

/// Identifies one wait of an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaitNumber {
    intent: IntentId,
    wait: u64,
    /// The number of times that all partial approvals had been forgotten.
    forgotten: u64,
}

impl WaitNumber {
    /// The number of the wait. When the intent waits again, the number differs, even in another process.
    pub(super) fn number(self) -> u64 {
        self.wait
    }

    /// A number for tests.
    #[cfg(test)]
    pub(super) fn of(intent: IntentId, wait: u64) -> Self {
        Self { intent, wait, forgotten: 0 }
    }
}

/// The phase of an intent's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitPhase {
    /// The intent waits for a person or, once approved, to run.
    Waiting,
    /// A decision or an attempt to run is in progress, and excludes any other.
    Taken,
    /// The intent is claimed, and its approval is being recorded. From now on, a cancellation stops its run.
    Approving,
    /// The intent is approved and claimed. If its run cannot begin, it waits to run again.
    Claimed,
}

/// The event that ends an intent's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WakeCondition {
    /// The verdict expires at this time, unless a decision is made before.
    Until(OffsetDateTime),
    /// Another task, which decides on the intent or runs it, announces a change.
    AnotherTask,
}

/// The reason why a decision on a taken intent can no longer be recorded.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outdated {
    /// The intent was denied, cancelled, revoked or stopped, or is in a new wait.
    WaitEnded,
    /// All partial approvals were forgotten, because the list of callers was replaced.
    ApprovalsForgotten,
}

/// The result of removing an undecided intent.
#[derive(Debug)]
pub(super) enum Removal<T> {
    /// The intent was removed.
    Removed(T),
    /// Another decision on the intent is in progress.
    InDecision,
    /// No such intent is undecided.
    Absent,
}

impl WaitingIntent {
    fn new(escalated: Escalated, wait: u64, approval: Option<Approval>) -> Self {
        Self { escalated, wait, phase: WaitPhase::Waiting, approval, partial: Vec::new() }
    }

    fn call(&self) -> &Call {
        self.escalated.call()
    }

    fn is_pending(&self, now: OffsetDateTime) -> bool {
        self.escalated.is_pending(now)
    }

    fn is_undecided(&self) -> bool {
        self.phase == WaitPhase::Waiting && self.approval.is_none()
    }

    /// `true` if the intent is reported as waiting without a look-up in the journal.
    fn is_visible(&self, now: OffsetDateTime) -> bool {
        self.phase != WaitPhase::Claimed && self.is_pending(now)
    }

    /// `true` if the intent ends with its wait. A claimed intent ends with its run.
    fn ends_with_wait(&self) -> bool {
        match self.phase {
            WaitPhase::Waiting | WaitPhase::Taken => true,
            WaitPhase::Approving | WaitPhase::Claimed => false,
        }
    }

    /// `true` if the intent is undecided and can no longer be approved. Any other expired intent is removed by the task
    /// that decides on it or runs it.
    fn has_expired(&self, now: OffsetDateTime) -> bool {
        self.is_undecided() && !self.is_pending(now)
    }
}

impl Escalations {
    fn lock(&self) -> MutexGuard<'_, HashMap<IntentId, WaitingIntent>> {
        self.waiting.lock()
    }

    /// Restores the intents of an earlier process. Returns those with an expired verdict separately, and nested calls,
    /// whose parents have ended with that process.
    pub(super) fn new(held: Vec<HeldIntent>, now: OffsetDateTime) -> (Self, Vec<Escalated>) {
        let (_, first_wait) = Uuid::new_v4().as_u64_pair();
        let held = held.into_iter().filter_map(|HeldIntent { text, approval }| {
            Escalated::from_journal(&text)
                .inspect_err(
                    |error| tracing::error!(%error, "an escalated intent of the journal cannot be parsed"),
                )
                .ok()
                .map(|escalated| {
                    (escalated.call().intent, WaitingIntent::new(escalated, first_wait, approval))
                })
        });
        let mut held = held.collect::<HashMap<_, _>>();
        let expired = held
            .extract_if(|_, held| !held.is_pending(now) || held.call().parent.is_some())
            .map(|(_, held)| held.escalated)
            .collect();
        (
            Self {
                waiting: Mutex::new(held),
                last_wait: AtomicU64::new(first_wait),
                forget_count: AtomicU64::new(0),
                changes: watch::Sender::new(()),
                list_changes: watch::Sender::new(()),
            },
            expired,
        )
    }

    /// Subscribes to changes of the list: an intent begins or stops to wait.
    pub(super) fn list_changes(&self) -> watch::Receiver<()> {
        self.list_changes.subscribe()
    }

    fn notify(&self) {
        self.changes.send_replace(());
        self.list_changes.send_replace(());
    }

    /// Subscribes to changes: an intent stops waiting, or waits again.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The number of intents that wait for a person.
    pub(super) fn undecided_count(&self, now: OffsetDateTime) -> usize {
        self.lock().values().filter(|held| held.is_visible(now) && held.approval.is_none()).count()
    }

    /// The intents that wait for a decision, or on which one is in progress. An approved intent may have to wait for
    /// another decision later.
    pub(super) fn held_intents(&self) -> HashSet<IntentId> {
        let waiting = self.lock();
        let held =
            waiting.iter().filter(|(_, held)| held.approval.is_none() && held.phase != WaitPhase::Claimed);
        held.map(|(intent, _)| *intent).collect()
    }

    /// The approved intents that wait to run.
    pub(super) fn approved_intents(&self) -> Vec<IntentId> {
        self.lock().iter().filter(|(_, held)| held.approval.is_some()).map(|(intent, _)| *intent).collect()
    }

    /// The intents that wait without a run, except nested calls.
    pub(super) fn waits_of_callers(&self) -> Vec<IntentId> {
        let waiting = self.lock();
        let waits = waiting.iter().filter(|(_, held)| held.ends_with_wait() && held.call().parent.is_none());
        waits.map(|(intent, _)| *intent).collect()
    }

    /// Returns `true` if another intent of an agent may wait.
    pub(super) fn has_room(&self, agent: &AgentDid) -> bool {
        has_room(&self.lock(), agent)
    }

    /// Holds an intent. A later verdict does not replace the first one. Removes expired intents and passes them to
    /// `on_removed` under the lock. Returns the wait if the intent is new, and the result of `on_removed`.
    ///
    /// # Errors
    /// If the intent is already held with different content, or too many are held.
    pub(super) fn hold<T>(
        &self,
        escalated: Escalated,
        now: OffsetDateTime,
        on_removed: impl FnOnce(Vec<Escalated>) -> T,
    ) -> Result<(Option<WaitNumber>, T), Fault> {
        let mut waiting = self.lock();
        let intent = escalated.call().intent;
        // The caller checked this before it asked the governor. Since then, other content may have begun to wait.
        if waiting.get(&intent).is_some_and(|held| !is_same_call(held.call(), escalated.call())) {
            return Err(intent_conflict_fault(intent));
        }
        let removed = extract_expired(&mut waiting, now);
        let is_new = !waiting.contains_key(&intent);
        if is_new && !has_room(&waiting, &escalated.call().agent) {
            return Err(Fault::Busy {
                message: format!(
                    "too many intents wait for a person: at most {MAX_WAITING} may, and {MAX_WAITING_PER_AGENT} of one agent"
                ),
                retry_after_ms: 60_000,
            });
        }
        let wait = self.next_wait();
        let forgotten = self.forget_count.load(Ordering::Relaxed);
        waiting.entry(intent).or_insert_with(|| WaitingIntent::new(escalated, wait, None));
        if !removed.is_empty() {
            self.notify();
        } else if is_new {
            self.list_changes.send_replace(());
        }
        Ok((is_new.then_some(WaitNumber { intent, wait, forgotten }), on_removed(removed)))
    }

    /// Removes the undecided intents that have expired, and passes them to `on_removed`.
    pub(super) fn remove_expired(&self, now: OffsetDateTime, on_removed: impl FnOnce(Vec<Escalated>)) {
        let mut waiting = self.lock();
        let removed = extract_expired(&mut waiting, now);
        if !removed.is_empty() {
            self.notify();
            on_removed(removed);
        }
    }

    /// The verdict of a call whose intent already waits; `None` if it does not wait.
    ///
    /// # Errors
    /// If the waiting intent has different content.
    pub(super) fn pending_verdict(&self, call: &Call, now: OffsetDateTime) -> Result<Option<Verdict>, Fault> {
        match self.lock().get(&call.intent).filter(|held| held.is_visible(now)) {
            None => Ok(None),
            Some(held) if is_same_call(held.call(), call) => Ok(Some(held.escalated.verdict().clone())),
            Some(_) => Err(intent_conflict_fault(call.intent)),
        }
    }

    /// The agent of a waiting intent.
    pub(super) fn agent_of(&self, intent: IntentId, now: OffsetDateTime) -> Option<AgentDid> {
        self.inspect_visible(intent, now, |escalated| escalated.call().agent.clone())
    }

    /// Reads a waiting intent under the lock; `None` if it does not wait.
    pub(super) fn inspect_visible<T>(
        &self,
        intent: IntentId,
        now: OffsetDateTime,
        read: impl FnOnce(&Escalated) -> T,
    ) -> Option<T> {
        self.lock().get(&intent).filter(|held| held.is_visible(now)).map(|held| read(&held.escalated))
    }

    /// The agent of an intent that is not open in the journal: it waits, or its claim was released and it is about to
    /// wait again.
    pub(super) fn agent_of_unclaimed(&self, intent: IntentId, now: OffsetDateTime) -> Option<AgentDid> {
        self.lock().get(&intent).filter(|held| held.is_pending(now)).map(|held| held.call().agent.clone())
    }

    /// The event that ends an intent's wait; `None` for an intent that is not held here.
    pub(super) fn wake_condition(&self, intent: IntentId) -> Option<WakeCondition> {
        self.lock().get(&intent).map(|held| {
            if held.is_undecided() {
                WakeCondition::Until(held.escalated.expires_at())
            } else {
                WakeCondition::AnotherTask
            }
        })
    }

    /// The intent and its wait, if it is undecided.
    pub(super) fn find_undecided(&self, intent: IntentId) -> Option<(Escalated, WaitNumber)> {
        let waiting = self.lock();
        let held = waiting.get(&intent).filter(|held| held.is_undecided())?;
        let forgotten = self.forget_count.load(Ordering::Relaxed);
        Some((held.escalated.clone(), WaitNumber { intent, wait: held.wait, forgotten }))
    }

    /// Maps the intents that a person can decide on now.
    pub(super) fn map_undecided<T>(
        &self,
        now: OffsetDateTime,
        map: impl Fn(&Escalated) -> Option<T>,
    ) -> Vec<T> {
        let waiting = self.lock();
        let undecided = waiting.values().filter(|held| held.is_undecided() && held.is_pending(now));
        undecided.filter_map(|held| map(&held.escalated)).collect()
    }

    /// Returns `true` if an intent is held here: it waits for a person, or is approved and has not ended.
    pub(super) fn is_held(&self, intent: IntentId) -> bool {
        self.lock().contains_key(&intent)
    }

    /// Returns `true` if an intent waits for a decision, or one is in progress.
    pub(super) fn awaits_decision(&self, intent: IntentId) -> bool {
        let waiting = self.lock();
        waiting.get(&intent).is_some_and(|held| held.approval.is_none() && held.phase != WaitPhase::Claimed)
    }

    /// Takes an undecided intent for a decision. Any other decision is excluded until the intent is
    /// [released](Self::release) or [removed](Self::remove).
    pub(super) fn take_undecided(&self, intent: IntentId) -> Option<(Escalated, WaitNumber)> {
        let mut waiting = self.lock();
        let held = waiting.get_mut(&intent).filter(|held| held.is_undecided())?;
        held.phase = WaitPhase::Taken;
        let forgotten = self.forget_count.load(Ordering::Relaxed);
        Some((held.escalated.clone(), WaitNumber { intent, wait: held.wait, forgotten }))
    }

    /// As [`Self::take_undecided`]; says whether an intent that cannot be taken is in another decision.
    pub(super) fn take_for_denial(&self, intent: IntentId) -> Removal<(Escalated, WaitNumber)> {
        let mut waiting = self.lock();
        let Some(held) = waiting.get_mut(&intent).filter(|held| held.approval.is_none()) else {
            return Removal::Absent;
        };
        match held.phase {
            WaitPhase::Taken | WaitPhase::Approving => Removal::InDecision,
            WaitPhase::Claimed => Removal::Absent,
            WaitPhase::Waiting => {
                held.phase = WaitPhase::Taken;
                let forgotten = self.forget_count.load(Ordering::Relaxed);
                let wait = WaitNumber { intent, wait: held.wait, forgotten };
                Removal::Removed((held.escalated.clone(), wait))
            }
        }
    }

    /// Takes an approved intent for a run. Returns `None` if it was cancelled, revoked or stopped.
    pub(super) fn take_approved(&self, intent: IntentId) -> Option<(Escalated, WaitNumber, Approval)> {
        let mut waiting = self.lock();
        let held = waiting.get_mut(&intent).filter(|held| held.phase == WaitPhase::Waiting)?;
        let approval = held.approval.clone()?;
        held.phase = WaitPhase::Taken;
        let forgotten = self.forget_count.load(Ordering::Relaxed);
        Some((held.escalated.clone(), WaitNumber { intent, wait: held.wait, forgotten }, approval))
    }

    /// Reads an intent in any phase, and its approvals so far, under the lock; `None` if it is not held.
    pub(super) fn inspect<T>(
        &self,
        intent: IntentId,
        read: impl FnOnce(&Escalated, &[PartialApproval]) -> T,
    ) -> Option<T> {
        self.lock().get(&intent).map(|held| read(&held.escalated, &held.partial))
    }

    /// Copies those approvals of an intent that count.
    pub(super) fn partial_approvals(
        &self,
        intent: IntentId,
        counts: impl Fn(&PartialApproval) -> bool,
    ) -> Vec<PartialApproval> {
        let waiting = self.lock();
        let partial = waiting.get(&intent).map_or(&[][..], |held| &held.partial);
        partial.iter().filter(|approval| counts(approval)).cloned().collect()
    }

    /// Adds an approval of an intent that needs more of them, and lets the intent wait again.
    pub(super) fn release_with_approval(
        &self,
        taken: WaitNumber,
        approval: PartialApproval,
    ) -> Result<(), Outdated> {
        let mut added = Err(Outdated::WaitEnded);
        let _is_same_wait = self.change_taken(taken, |held| {
            held.phase = WaitPhase::Waiting;
            added = self.check_not_forgotten(taken);
            if added.is_ok() {
                held.partial.push(approval);
            }
        });
        added
    }

    /// Calls `record` under the lock, if the wait is still the same and no approvals were forgotten since the intent
    /// was taken. The decision that `record` sends to the journal is therefore about this wait.
    pub(super) fn record_current<T>(
        &self,
        taken: WaitNumber,
        record: impl FnOnce() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.record_as(taken, WaitPhase::Taken, record)
    }

    /// Like [`Self::record_current`], for the approval of a claimed intent. From now on, a cancellation stops the run
    /// instead of ending the wait.
    pub(super) fn record_approval<T>(
        &self,
        taken: WaitNumber,
        record: impl FnOnce() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.record_as(taken, WaitPhase::Approving, record)
    }

    fn record_as<T>(
        &self,
        taken: WaitNumber,
        phase: WaitPhase,
        record: impl FnOnce() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut waiting = self.lock();
        let same = waiting.get_mut(&taken.intent).filter(|held| held.wait == taken.wait);
        let held = same.ok_or(Outdated::WaitEnded)?;
        self.check_not_forgotten(taken)?;
        let recorded = record()?;
        held.phase = phase;
        Ok(recorded)
    }

    fn check_not_forgotten(&self, taken: WaitNumber) -> Result<(), Outdated> {
        match self.forget_count.load(Ordering::Relaxed) == taken.forgotten {
            true => Ok(()),
            false => Err(Outdated::ApprovalsForgotten),
        }
    }

    /// Forgets the approvals so far of an intent.
    pub(super) fn forget_partial_approvals(&self, intent: IntentId) {
        let _is_there = self.change(intent, |held| held.partial.clear());
    }

    /// Forgets the approvals so far of all intents.
    pub(super) fn forget_all_partial_approvals(&self) {
        let mut waiting = self.lock();
        // Under the lock, so that an approval that is being recorded is not added afterwards.
        self.forget_count.fetch_add(1, Ordering::Relaxed);
        waiting.values_mut().for_each(|held| held.partial.clear());
        drop(waiting);
        self.notify();
    }

    /// Marks an intent as taken again, because its approval could not be recorded.
    pub(super) fn take_back(&self, taken: WaitNumber) {
        let _is_same_wait = self.change_taken(taken, |held| held.phase = WaitPhase::Taken);
    }

    /// Lets an intent wait again, because the decision cannot be applied.
    pub(super) fn release(&self, taken: WaitNumber) {
        let _is_same_wait = self.change_taken(taken, |held| held.phase = WaitPhase::Waiting);
    }

    /// Ends a wait: the run has finished or can no longer begin, or the journal does not have the wait. Returns `false`
    /// if the intent is not here, or is in a new wait.
    pub(super) fn remove_taken(&self, wait: WaitNumber) -> bool {
        let mut waiting = self.lock();
        let is_same = waiting.get(&wait.intent).is_some_and(|held| held.wait == wait.wait);
        if is_same {
            waiting.remove(&wait.intent);
        }
        drop(waiting);
        self.notify();
        is_same
    }

    /// Changes a taken intent. Returns `false` if it is not here, or is in a new wait.
    fn change_taken(&self, taken: WaitNumber, change: impl FnOnce(&mut WaitingIntent)) -> bool {
        let mut waiting = self.lock();
        let same = waiting.get_mut(&taken.intent).filter(|held| held.wait == taken.wait);
        let is_same = same.map(change).is_some();
        drop(waiting);
        self.notify();
        is_same
    }

    /// Marks an approved intent as claimed. Returns `false` if it was cancelled, revoked or stopped since it was taken.
    #[must_use]
    pub(super) fn mark_claimed(&self, taken: WaitNumber) -> bool {
        self.change_taken(taken, |held| held.phase = WaitPhase::Claimed)
    }

    /// Lets an approved intent that cannot run now wait again. The intent can be cancelled or revoked until it is
    /// [claimed](Self::mark_claimed). An intent that was revoked in the meantime does not wait again.
    pub(super) fn wait_to_run(&self, taken: WaitNumber, approval: Approval) {
        let wait =
            |held: &mut WaitingIntent| (held.phase, held.approval) = (WaitPhase::Waiting, Some(approval));
        let _is_same_wait = self.change_taken(taken, wait);
    }

    /// Moves an approved intent that was [taken](Self::take_approved) to a new wait for a person, and calls
    /// `on_waiting` under the lock. Returns `None` if it was cancelled, revoked or stopped.
    pub(super) fn wait_again<T>(
        &self,
        taken: WaitNumber,
        on_waiting: impl FnOnce() -> T,
    ) -> Option<(WaitNumber, T)> {
        let intent = taken.intent;
        let mut waiting = self.lock();
        let held = waiting.get_mut(&intent).filter(|held| held.wait == taken.wait)?;
        *held = WaitingIntent::new(held.escalated.clone(), self.next_wait(), None);
        let forgotten = self.forget_count.load(Ordering::Relaxed);
        let number = WaitNumber { intent, wait: held.wait, forgotten };
        self.notify();
        Some((number, on_waiting()))
    }

    /// The number of the next wait.
    fn next_wait(&self) -> u64 {
        self.last_wait.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Changes an intent. Returns `false` if it is not here.
    fn change(&self, intent: IntentId, change: impl FnOnce(&mut WaitingIntent)) -> bool {
        let is_there = self.lock().get_mut(&intent).map(change).is_some();
        self.notify();
        is_there
    }

    /// Removes an intent of the selected agents unless it is claimed, and passes it to `on_removed`. A decision in
    /// progress on it can then no longer be recorded, and an approved intent that waits to run does not run.
    pub(super) fn remove_waiting<T>(
        &self,
        intent: IntentId,
        filter: AgentFilter<'_>,
        on_removed: impl FnOnce(Vec<Escalated>) -> T,
    ) -> Option<T> {
        self.remove_if(intent, |held| held.ends_with_wait() && filter(&held.call().agent), on_removed)
    }

    /// Removes an undecided intent if `may_remove` allows it under the lock, and passes it to `on_removed`.
    ///
    /// # Errors
    /// That of `may_remove`; the intent then continues to wait.
    pub(super) fn remove_undecided<T>(
        &self,
        intent: IntentId,
        may_remove: impl FnOnce() -> Result<(), Fault>,
        on_removed: impl FnOnce(Vec<Escalated>) -> T,
    ) -> Result<Removal<T>, Fault> {
        let mut waiting = self.lock();
        let Some(held) = waiting.get(&intent).filter(|held| held.approval.is_none()) else {
            return Ok(Removal::Absent);
        };
        Ok(match held.phase {
            WaitPhase::Taken | WaitPhase::Approving => Removal::InDecision,
            WaitPhase::Claimed => Removal::Absent,
            WaitPhase::Waiting => {
                may_remove()?;
                match waiting.remove(&intent) {
                    Some(removed) => {
                        self.notify();
                        Removal::Removed(on_removed(vec![removed.escalated]))
                    }
                    None => Removal::Absent,
                }
            }
        })
    }

    fn remove_if<T>(
        &self,
        intent: IntentId,
        predicate: impl FnOnce(&WaitingIntent) -> bool,
        on_removed: impl FnOnce(Vec<Escalated>) -> T,
    ) -> Option<T> {
        let mut waiting = self.lock();
        waiting.get(&intent).filter(|held| predicate(held))?;
        let removed = waiting.remove(&intent)?;
        self.notify();
        Some(on_removed(vec![removed.escalated]))
    }

    /// Removes all selected intents except claimed ones, whose runs are stopped elsewhere, and passes them to
    /// `on_removed`. Returns their number and the result of `on_removed`.
    pub(super) fn remove_all<T>(
        &self,
        filter: CallFilter<'_>,
        on_removed: impl FnOnce(Vec<Escalated>) -> T,
    ) -> (usize, T) {
        let mut waiting = self.lock();
        let is_selected =
            |held: &WaitingIntent| held.ends_with_wait() && filter(&held.call().agent, &held.call().tool);
        let removed = waiting.extract_if(|_, held| is_selected(held)).map(|(_, held)| held.escalated);
        let removed = removed.collect::<Vec<_>>();
        self.notify();
        (removed.len(), on_removed(removed))
    }
}

fn has_room(waiting: &HashMap<IntentId, WaitingIntent>, agent: &AgentDid) -> bool {
    let visible = || waiting.values().filter(|held| held.phase != WaitPhase::Claimed);
    let count_of_agent = visible().filter(|held| held.call().agent == *agent).count();
    visible().count() < MAX_WAITING && count_of_agent < MAX_WAITING_PER_AGENT
}

fn extract_expired(waiting: &mut HashMap<IntentId, WaitingIntent>, now: OffsetDateTime) -> Vec<Escalated> {
    waiting.extract_if(|_, held| held.has_expired(now)).map(|(_, held)| held.escalated).collect()
}

fn is_same_call(a: &Call, b: &Call) -> bool {
    a.agent == b.agent && a.tool == b.tool && a.arguments == b.arguments && a.parent == b.parent
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use time::Duration;

    const NOW: OffsetDateTime = time::macros::datetime!(2026-11-23 12:00 UTC);
    const EXPIRED: OffsetDateTime = time::macros::datetime!(2026-11-23 12:01 UTC);

    fn escalated_intent() -> Escalated {
        let intent = IntentId::random();
        let text = json!({
            "call": {
                "door": "A2g", "agent": "did:a:b", "intent": intent.to_string(), "tool": "t", "arguments": {},
                "context": null, "at_most": null, "priority": "Normal"
            },
            "verdict": {
                "decision": "Escalate", "intent": intent.to_string(), "risk": null,
                "manifest": {
                    "max_memory": null, "max_cpu": null, "timeout": null, "network_allowed": null, "filesystem_scope": []
                },
                "conditions": [], "expires_at": "2026-11-23T12:01:00Z", "reason": null
            },
            "proven": null
        });
        Escalated::from_journal(&text.to_string()).unwrap()
    }

    fn escalations_with_one() -> (Escalations, IntentId) {
        let escalations = Escalations::new(Vec::new(), NOW).0;
        let escalated = escalated_intent();
        let intent = escalated.call().intent;
        assert!(escalations.hold(escalated, NOW, drop).unwrap().0.is_some());
        (escalations, intent)
    }

    fn approval() -> Approval {
        Approval { by: "anna".to_owned(), manifest: None, basis: None, grants: Vec::new() }
    }

    #[test]
    fn an_approved_intent_that_waits_again_has_no_approval_and_a_new_number() {
        let (escalations, intent) = escalations_with_one();
        let (_, first) = escalations.take_undecided(intent).unwrap();
        escalations.wait_to_run(first, approval());
        let (_, taken, _) = escalations.take_approved(intent).unwrap();
        assert_eq!(taken, first);
        assert!(!escalations.held_intents().contains(&intent), "it is announced again if it waits again");
        assert!(escalations.wait_again(first, || ()).is_some());
        assert!(escalations.approved_intents().is_empty());
        let (_, second) = escalations.take_undecided(intent).unwrap();
        let is_current = |number| escalations.record_current(number, || Ok(())).is_ok();
        assert!(!is_current(first) && is_current(second));
        assert!(escalations.wait_again(first, || panic!("another wait")).is_none());
        assert!(escalations.remove_taken(second));
        assert!(escalations.wait_again(second, || panic!("it was stopped")).is_none());
    }

    // A revocation may come while an approved intent is taken for another attempt to run.
    #[test]
    fn an_approved_intent_that_was_revoked_and_sent_again_is_neither_claimed_nor_approved() {
        let (escalations, intent) = escalations_with_one();
        let (escalated, taken) = escalations.take_undecided(intent).unwrap();
        assert_eq!(
            escalations.remove_waiting(intent, &super::super::all_agents, |removed| removed.len()),
            Some(1)
        );
        assert!(!escalations.mark_claimed(taken));
        assert!(escalations.hold(escalated, NOW, drop).unwrap().0.is_some());
        assert!(!escalations.mark_claimed(taken) && !escalations.remove_taken(taken));
        escalations.wait_to_run(taken, approval());
        assert!(escalations.approved_intents().is_empty());
        assert!(escalations.take_undecided(intent).is_some());
    }

    #[test]
    fn an_approval_that_is_being_recorded_is_not_withdrawn() {
        let (escalations, intent) = escalations_with_one();
        let all = &super::super::all_agents;
        let (_, taken) = escalations.take_undecided(intent).unwrap();
        assert!(escalations.record_approval(taken, || Ok(())).is_ok());
        assert!(escalations.remove_waiting(intent, all, |_| panic!("its run is stopped")).is_none());
        let (count, ()) = escalations.remove_all(&|_, _| true, |removed| assert!(removed.is_empty()));
        assert_eq!(count, 0);
        let denied = |_| panic!("the other decision may fail");
        let removal = escalations.remove_undecided(intent, || Ok(()), denied).unwrap();
        assert!(matches!(removal, Removal::InDecision));
        escalations.release(taken);
        assert!(escalations.remove_waiting(intent, all, drop).is_some());
    }

    // The list of callers may be replaced between the check of a denial and the denial.
    #[test]
    fn a_denial_is_checked_when_it_is_made() {
        let (escalations, intent) = escalations_with_one();
        let refuse = || Err(intent_conflict_fault(intent));
        let denied = |_| panic!("it was refused");
        assert!(escalations.remove_undecided(intent, refuse, denied).is_err());
        let removal = escalations.remove_undecided(intent, || Ok(()), |removed| removed.len()).unwrap();
        assert!(matches!(removal, Removal::Removed(1)));
    }

    // A decision in progress may end after its intent was removed and sent again.
    #[test]
    fn a_decision_ends_only_the_wait_that_it_was_taken_from() {
        let (escalations, intent) = escalations_with_one();
        let (escalated, first) = escalations.take_undecided(intent).unwrap();
        assert!(escalations.remove_taken(first));
        assert!(escalations.hold(escalated, NOW, drop).unwrap().0.is_some());
        escalations.remove_taken(first);
        let (_, second) = escalations.take_undecided(intent).unwrap();
        escalations.release(first);
        assert!(escalations.take_undecided(intent).is_none(), "it is still taken");
        let record = |taken| escalations.record_current(taken, || Ok(()));
        assert!(matches!(record(first), Err(Fault::InvalidParams { .. })));
        assert!(record(second).is_ok());
        escalations.release(second);
        let (_, third) = escalations.take_undecided(intent).unwrap();
        // An approver may have been removed from the list of callers.
        escalations.forget_all_partial_approvals();
        assert!(matches!(record(third), Err(Fault::InvalidRequest(_))));
        escalations.remove_taken(third);
        assert_eq!(escalations.wake_condition(intent), None);
    }

    // A governor may take long to answer about the other content.
    #[test]
    fn an_id_that_waits_is_held_with_no_other_content() {
        let (escalations, intent) = escalations_with_one();
        let text = escalations.find_undecided(intent).unwrap().0.to_journal().unwrap();
        let other = text.replace(r#""arguments":{}"#, r#""arguments":{"other":1}"#);
        let hold = |text: &str| escalations.hold(Escalated::from_journal(text).unwrap(), NOW, drop);
        assert!(hold(&text).unwrap().0.is_none(), "a repeat");
        assert!(matches!(hold(&other), Err(Fault::InvalidRequest(_))));
        let (_, taken) = escalations.take_undecided(intent).unwrap();
        assert!(matches!(hold(&other), Err(Fault::InvalidRequest(_))));
        assert!(escalations.mark_claimed(taken));
        assert!(matches!(hold(&other), Err(Fault::InvalidRequest(_))));
    }

    #[test]
    fn no_number_of_a_wait_is_used_again() {
        let restored = |text: &str| {
            let held = vec![HeldIntent { text: text.to_owned(), approval: None }];
            Escalations::new(held, NOW).0
        };
        let text = escalated_intent().to_journal().unwrap();
        let escalated = Escalated::from_journal(&text).unwrap();
        let intent = escalated.call().intent;
        let number = |escalations: &Escalations| escalations.find_undecided(intent).unwrap().1.number();
        let escalations = restored(&text);
        let first = number(&escalations);
        assert_ne!(first, number(&restored(&text)), "another process");
        assert!(escalations.remove_taken(escalations.find_undecided(intent).unwrap().1));
        assert!(escalations.hold(escalated, NOW, drop).unwrap().0.is_some());
        assert_ne!(first, number(&escalations), "it was sent again");
    }

    // Between the release of its claim and its next wait, an approved intent is known only here.
    #[test]
    fn an_approved_intent_stays_until_its_run_has_finished() {
        let (escalations, intent) = escalations_with_one();
        assert_eq!(escalations.wake_condition(intent), Some(WakeCondition::Until(EXPIRED)));
        let changes = escalations.changes();
        let (_, taken) = escalations.take_undecided(intent).unwrap();
        assert_eq!(escalations.wake_condition(intent), Some(WakeCondition::AnotherTask));
        assert!(escalations.mark_claimed(taken));
        assert!(changes.has_changed().unwrap(), "tasks that wait for the intent look it up again");
        assert_eq!(escalations.agent_of(intent, NOW), None, "only the journal answers for a claimed intent");
        assert!(escalations.agent_of_unclaimed(intent, NOW).is_some());
        assert_eq!(escalations.wake_condition(intent), Some(WakeCondition::AnotherTask));
        assert_eq!(escalations.undecided_count(NOW), 0);
        escalations.wait_to_run(taken, approval());
        assert!(escalations.agent_of(intent, NOW).is_some());
        assert!(escalations.take_approved(intent).is_some() && escalations.take_approved(intent).is_none());
        assert!(escalations.remove_taken(taken));
        assert_eq!(
            (escalations.agent_of_unclaimed(intent, NOW), escalations.wake_condition(intent)),
            (None, None)
        );
    }

    #[test]
    fn a_claimed_intent_is_neither_removed_nor_expired() {
        let (escalations, intent) = escalations_with_one();
        let (_, taken) = escalations.take_undecided(intent).unwrap();
        assert!(escalations.mark_claimed(taken));
        assert_eq!(escalations.remove_all(&super::super::all_calls, |removed| removed.len()), (0, 0));
        assert!(escalations.remove_waiting(intent, &super::super::all_agents, drop).is_none());
        escalations.remove_expired(EXPIRED, |_| panic!("a claimed intent does not expire here"));
        assert!(escalations.wake_condition(intent).is_some());
        // An intent that was revoked during another attempt does not wait again.
        escalations.wait_to_run(taken, approval());
        assert_eq!(escalations.remove_all(&super::super::all_calls, |removed| removed.len()), (1, 1));
        escalations.wait_to_run(taken, approval());
        assert_eq!(escalations.wake_condition(intent), None);
    }

    #[test]
    fn an_expiry_notifies_like_every_other_change() {
        let (escalations, intent) = escalations_with_one();
        let changes = escalations.changes();
        let mut expired = Vec::new();
        escalations.remove_expired(EXPIRED - Duration::NANOSECOND, |removed| expired = removed);
        assert!(expired.is_empty() && !changes.has_changed().unwrap());
        escalations.remove_expired(EXPIRED, |removed| expired = removed);
        assert!(changes.has_changed().unwrap());
        assert_eq!(expired.len(), 1);
        assert_eq!(escalations.wake_condition(intent), None);
    }
}
