//! Intents that wait for a person; the journal stores them as well.
//!
//! ```text
//! hold ─▶ waits ─ decide ─▶ taken ─ claims ─▶ claimed ─ remove ─▶ its run has finished, or can no longer happen
//!           │ ▲               ▲ │                │
//!           │ └── give_back ──┼─┘                │ it could not begin
//!           │              resume                ▼
//!           │                 └───── approved, waits to run
//!           └─ drop_one, drop_all, drop_expired: denied, cancelled, revoked, expired
//! ```
//! An intent stays here until its run has finished, so that an intent that was claimed and could not begin is never
//! unknown. The journal has the stage of a claimed intent.
//!
//! A change of the waiting intents is sent to the journal under the lock, so that the journal receives changes in the
//! order in which they were made. Its answers are awaited afterwards.

use super::{Whose, not_usable};
use crate::call::Call;
use crate::fault::Fault;
use crate::govern::Escalated;
use crate::ident::{AgentDid, IntentId};
use crate::journal::{Approval, HeldIntent};
use crate::verdict::Verdict;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use time::OffsetDateTime;
use tokio::sync::watch;

/// The maximum number of waiting intents.
const MAX_WAITING: usize = 1000;
/// The maximum number of waiting intents of one agent.
const MAX_WAITING_PER_AGENT: usize = MAX_WAITING / 4;

/// All escalated intents whose verdicts have not expired.
#[derive(Debug)]
pub(super) struct Escalations {
    waiting: Mutex<HashMap<IntentId, Held>>,
    /// Notified whenever an intent stops waiting, or waits again.
    changes: watch::Sender<()>,
}

/// An intent that waits.
#[derive(Debug)]
struct Held {
    escalated: Escalated,
    phase: Phase,
    /// The approval of an intent that could not run at once.
    approval: Option<Approval>,
}

/// The phase of an intent that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Waits for a person, or to run.
    Waiting,
    /// A decision or an attempt to run is in progress, and excludes any other.
    Taken,
    /// Approved and claimed. If its run cannot begin, it waits to run again.
    Claimed,
}

/// The event that ends an intent's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The verdict expires at this time, unless there is a decision before.
    Until(OffsetDateTime),
    /// Another task decides about the intent, or runs it, and changes it.
    ForOthers,
}

impl Held {
    fn new(escalated: Escalated, approval: Option<Approval>) -> Self {
        Self { escalated, phase: Phase::Waiting, approval }
    }

    fn call(&self) -> &Call {
        self.escalated.call()
    }

    fn waits(&self, now: OffsetDateTime) -> bool {
        self.escalated.is_pending(now)
    }

    fn is_undecided(&self) -> bool {
        self.phase == Phase::Waiting && self.approval.is_none()
    }

    /// `true` for an intent that is shown as waiting without a look into the journal.
    fn is_shown(&self, now: OffsetDateTime) -> bool {
        self.phase != Phase::Claimed && self.waits(now)
    }

    /// `true` for an undecided intent that can no longer be approved. Every other intent is removed by its decider.
    fn has_expired(&self, now: OffsetDateTime) -> bool {
        self.is_undecided() && !self.waits(now)
    }
}

impl Escalations {
    fn lock(&self) -> MutexGuard<'_, HashMap<IntentId, Held>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The intents that an earlier process held. Returns those with an expired verdict separately.
    pub(super) fn new(held: Vec<HeldIntent>, now: OffsetDateTime) -> (Self, Vec<Escalated>) {
        let held = held.into_iter().filter_map(|HeldIntent { text, approval }| {
            let read = Escalated::from_journal(&text);
            read.inspect_err(|error| tracing::error!(%error, "an escalated intent of the journal is lost"))
                .ok()
                .map(|escalated| (escalated.call().intent, Held::new(escalated, approval)))
        });
        let mut held = held.collect::<HashMap<_, _>>();
        let expired = held.extract_if(|_, held| !held.waits(now)).map(|(_, held)| held.escalated).collect();
        (Self { waiting: Mutex::new(held), changes: watch::Sender::new(()) }, expired)
    }

    /// Notified whenever an intent stops waiting, or waits again.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The number of intents that wait for a person.
    pub(super) fn count(&self, now: OffsetDateTime) -> usize {
        self.lock().values().filter(|held| held.is_shown(now) && held.approval.is_none()).count()
    }

    /// The approved intents that wait to run.
    pub(super) fn approved(&self) -> Vec<IntentId> {
        self.lock().iter().filter(|(_, held)| held.approval.is_some()).map(|(intent, _)| *intent).collect()
    }

    /// Holds an intent; the first verdict for it stays. `said` receives the other intents, which have expired, under
    /// the lock. Returns `true` if the intent is new, and the result of `said`.
    pub(super) fn hold<T>(
        &self,
        escalated: Escalated,
        now: OffsetDateTime,
        said: impl FnOnce(Vec<Escalated>) -> T,
    ) -> Result<(bool, T), Fault> {
        let mut waiting = self.lock();
        let intent = escalated.call().intent;
        let gone = expired(&mut waiting, now);
        let new = !waiting.contains_key(&intent);
        let shown = || waiting.values().filter(|held| held.phase != Phase::Claimed);
        let theirs = shown().filter(|held| held.call().agent == escalated.call().agent).count();
        if new && (shown().count() >= MAX_WAITING || theirs >= MAX_WAITING_PER_AGENT) {
            return Err(Fault::Busy {
                message: "too many intents wait for a person".to_owned(),
                retry_after_ms: 60_000,
            });
        }
        waiting.entry(intent).or_insert_with(|| Held::new(escalated, None));
        if !gone.is_empty() {
            self.changes.send_replace(());
        }
        Ok((new, said(gone)))
    }

    /// Removes the undecided intents that have expired, and passes them to `said`.
    pub(super) fn drop_expired(&self, now: OffsetDateTime, said: impl FnOnce(Vec<Escalated>)) {
        let mut waiting = self.lock();
        let gone = expired(&mut waiting, now);
        if !gone.is_empty() {
            self.changes.send_replace(());
            said(gone);
        }
    }

    /// The verdict of a call whose intent waits already.
    pub(super) fn waiting(&self, call: &Call, now: OffsetDateTime) -> Result<Option<Verdict>, Fault> {
        match self.lock().get(&call.intent).filter(|held| held.is_shown(now)) {
            None => Ok(None),
            Some(held) if same(held.call(), call) => Ok(Some(held.escalated.verdict().clone())),
            Some(_) => Err(not_usable(call.intent)),
        }
    }

    /// The agent of a waiting intent.
    pub(super) fn whose(&self, intent: IntentId, now: OffsetDateTime) -> Option<AgentDid> {
        self.lock().get(&intent).filter(|held| held.is_shown(now)).map(|held| held.call().agent.clone())
    }

    /// The agent of an intent that is not open in the journal: it waits, or its claim was just released and it is about
    /// to wait again.
    pub(super) fn whose_unopened(&self, intent: IntentId, now: OffsetDateTime) -> Option<AgentDid> {
        self.lock().get(&intent).filter(|held| held.waits(now)).map(|held| held.call().agent.clone())
    }

    /// The event that ends an intent's wait; `None` for an intent that is not held here.
    pub(super) fn wait_of(&self, intent: IntentId) -> Option<Wait> {
        self.lock().get(&intent).map(|held| {
            if held.is_undecided() { Wait::Until(held.escalated.expires_at()) } else { Wait::ForOthers }
        })
    }

    /// The intent, if it is undecided.
    pub(super) fn undecided(&self, intent: IntentId) -> Option<Escalated> {
        self.lock().get(&intent).filter(|held| held.is_undecided()).map(|held| held.escalated.clone())
    }

    /// Takes an undecided intent for a decision, and excludes any other until it is [given back](Self::give_back) or
    /// [removed](Self::remove).
    pub(super) fn decide(&self, intent: IntentId) -> Option<Escalated> {
        let mut waiting = self.lock();
        let held = waiting.get_mut(&intent).filter(|held| held.is_undecided())?;
        held.phase = Phase::Taken;
        Some(held.escalated.clone())
    }

    /// Takes an approved intent for a run; `None` if it was cancelled or revoked.
    pub(super) fn resume(&self, intent: IntentId) -> Option<(Escalated, Approval)> {
        let mut waiting = self.lock();
        let held = waiting.get_mut(&intent).filter(|held| held.phase == Phase::Waiting)?;
        let approval = held.approval.clone()?;
        held.phase = Phase::Taken;
        Some((held.escalated.clone(), approval))
    }

    /// Returns an intent to its wait: the decision cannot be carried out.
    pub(super) fn give_back(&self, intent: IntentId) {
        self.enter(intent, |held| held.phase = Phase::Waiting);
    }

    /// Marks an approved intent as claimed.
    pub(super) fn claims(&self, intent: IntentId) {
        self.enter(intent, |held| held.phase = Phase::Claimed);
    }

    /// Returns an approved intent that cannot run now to its wait. It can be cancelled or revoked until it is
    /// [resumed](Self::resume). An intent that was revoked meanwhile does not wait again.
    pub(super) fn wait_to_run(&self, intent: IntentId, approval: Approval) {
        self.enter(intent, |held| (held.phase, held.approval) = (Phase::Waiting, Some(approval)));
    }

    fn enter(&self, intent: IntentId, change: impl FnOnce(&mut Held)) {
        if let Some(held) = self.lock().get_mut(&intent) {
            change(held);
        }
        self.changes.send_replace(());
    }

    /// Removes an intent whose run has finished, or can no longer happen.
    pub(super) fn remove(&self, intent: IntentId) {
        self.lock().remove(&intent);
        self.changes.send_replace(());
    }

    /// Removes an intent of the selected agents about which no decision is in progress, and passes it to `said`.
    pub(super) fn drop_one<T>(
        &self,
        intent: IntentId,
        of: Whose<'_>,
        said: impl FnOnce(Vec<Escalated>) -> T,
    ) -> Option<T> {
        self.drop_if(intent, |held| held.phase == Phase::Waiting && of(&held.call().agent), said)
    }

    /// Removes an undecided intent, and passes it to `said`.
    pub(super) fn deny<T>(&self, intent: IntentId, said: impl FnOnce(Vec<Escalated>) -> T) -> Option<T> {
        self.drop_if(intent, Held::is_undecided, said)
    }

    fn drop_if<T>(
        &self,
        intent: IntentId,
        may: impl FnOnce(&Held) -> bool,
        said: impl FnOnce(Vec<Escalated>) -> T,
    ) -> Option<T> {
        let mut waiting = self.lock();
        waiting.get(&intent).filter(|held| may(held))?;
        let gone = waiting.remove(&intent)?;
        self.changes.send_replace(());
        Some(said(vec![gone.escalated]))
    }

    /// Removes all intents of the selected agents and passes them to `said`. Returns their number and its result.
    /// Claimed intents are stopped in their runs.
    pub(super) fn drop_all<T>(&self, of: Whose<'_>, said: impl FnOnce(Vec<Escalated>) -> T) -> (usize, T) {
        let mut waiting = self.lock();
        let theirs = |held: &Held| held.phase != Phase::Claimed && of(&held.call().agent);
        let gone = waiting.extract_if(|_, held| theirs(held)).map(|(_, held)| held.escalated);
        let gone = gone.collect::<Vec<_>>();
        self.changes.send_replace(());
        (gone.len(), said(gone))
    }
}

fn expired(waiting: &mut HashMap<IntentId, Held>, now: OffsetDateTime) -> Vec<Escalated> {
    waiting.extract_if(|_, held| held.has_expired(now)).map(|(_, held)| held.escalated).collect()
}

fn same(a: &Call, b: &Call) -> bool {
    a.agent == b.agent && a.tool == b.tool && a.arguments == b.arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use time::Duration;

    const NOW: OffsetDateTime = time::macros::datetime!(2026-11-23 12:00 UTC);
    const EXPIRED: OffsetDateTime = time::macros::datetime!(2026-11-23 12:01 UTC);

    fn escalated() -> Escalated {
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

    fn held() -> (Escalations, IntentId) {
        let escalations = Escalations::new(Vec::new(), NOW).0;
        let escalated = escalated();
        let intent = escalated.call().intent;
        assert!(escalations.hold(escalated, NOW, drop).unwrap().0);
        (escalations, intent)
    }

    fn approval() -> Approval {
        Approval { by: "anna".to_owned(), manifest: None }
    }

    /// Between the release of its claim and its next wait, an approved intent is known here only.
    #[test]
    fn an_approved_intent_is_known_until_its_run_is_over() {
        let (escalations, intent) = held();
        assert_eq!(escalations.wait_of(intent), Some(Wait::Until(EXPIRED)));
        let changes = escalations.changes();
        assert!(escalations.decide(intent).is_some());
        assert_eq!(escalations.wait_of(intent), Some(Wait::ForOthers));
        escalations.claims(intent);
        assert!(changes.has_changed().unwrap(), "whoever waits for it looks where it runs");
        assert_eq!(escalations.whose(intent, NOW), None, "the journal says how far it is");
        assert!(escalations.whose_unopened(intent, NOW).is_some());
        assert_eq!(escalations.wait_of(intent), Some(Wait::ForOthers));
        assert_eq!(escalations.count(NOW), 0);
        escalations.wait_to_run(intent, approval());
        assert!(escalations.whose(intent, NOW).is_some());
        assert!(escalations.resume(intent).is_some() && escalations.resume(intent).is_none());
        escalations.remove(intent);
        assert_eq!((escalations.whose_unopened(intent, NOW), escalations.wait_of(intent)), (None, None));
    }

    #[test]
    fn what_is_claimed_is_neither_revoked_nor_expired_here() {
        let (escalations, intent) = held();
        assert!(escalations.decide(intent).is_some());
        escalations.claims(intent);
        assert_eq!(escalations.drop_all(&super::super::anybodys, |gone| gone.len()), (0, 0));
        assert!(escalations.drop_one(intent, &super::super::anybodys, drop).is_none());
        escalations.drop_expired(EXPIRED, |_| panic!("its run sees to its expiry"));
        assert!(escalations.wait_of(intent).is_some());
        // An intent that was revoked during another attempt does not come back.
        escalations.wait_to_run(intent, approval());
        assert_eq!(escalations.drop_all(&super::super::anybodys, |gone| gone.len()), (1, 1));
        escalations.wait_to_run(intent, approval());
        assert_eq!(escalations.wait_of(intent), None);
    }

    #[test]
    fn an_expiry_is_announced_as_every_other_change() {
        let (escalations, intent) = held();
        let changes = escalations.changes();
        let mut expired = Vec::new();
        escalations.drop_expired(EXPIRED - Duration::NANOSECOND, |gone| expired = gone);
        assert!(expired.is_empty() && !changes.has_changed().unwrap());
        escalations.drop_expired(EXPIRED, |gone| expired = gone);
        assert!(changes.has_changed().unwrap());
        assert_eq!(expired.len(), 1);
        assert_eq!(escalations.wait_of(intent), None);
    }
}
