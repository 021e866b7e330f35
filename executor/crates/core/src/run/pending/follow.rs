//! The pending intents that this node has read, and the looks at those that have changed.

use super::stored_approval::read_partial_approval;
use super::{Pending, RUN_ELSEWHERE, WIDER_THAN_SHOWN, WaitingCall, read_call};
use crate::run::approval_rules::PartialApproval;
use crate::run::fleet::{Fleet, FleetDenial};
use crate::run::message_size::is_too_large;
use crate::run::open_intents::{Kept, is_same_call, wait_of};
use crate::run::wait_records::EndOfWait;
use crate::run::waits::{EXPIRED_UNDECIDED, EXPIRED_UNRUN, not_waiting_fault};
use a2g_fleet::{Added, Change, FleetError, FoundState, NewPending, PendingIntent, RunsAt, WaitsFor};
use a2g_intent::{StoredWait, Wait};
use a2g_types::fault::Fault;
use a2g_types::ident::{IntentId, ToolName};
use a2g_types::node::{CallMessage, NodeName};
use a2g_types::outcome::AbortReason;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use time::OffsetDateTime;

/// The time after its expiry after which any node removes an intent: its own node may be lost.
const MAX_EXPIRED: Duration = Duration::from_secs(60);
/// The number of looks after which the claims of all waiting intents are read: a value may be older than its claim.
const CLAIM_LOOKS: u64 = 60;
/// The recorded reason for an intent whose id another call has in the fleet.
const OTHER_CALL: &str = "the fleet stores another call with its id";
/// The recorded reason for an approved intent that the fleet has lost.
const LOST_APPROVAL: &str = "the fleet has lost its approval: send it again";

/// A call that waits for a slot without its caller.
#[derive(Debug, Clone)]
pub(in crate::run) struct SlotWait {
    /// The node at which it arrived.
    pub(in crate::run) home: NodeName,
    pub(in crate::run) tool: ToolName,
}

/// The state of reading: what is known, and what has to be read again.
#[derive(Default)]
pub(in crate::run) struct ReadState {
    /// The calls that wait for a slot.
    slot_waits: Mutex<HashMap<IntentId, SlotWait>>,
    /// The intents that have changed while a task of this process decided on them or ran them.
    to_follow: Mutex<HashSet<IntentId>>,
    /// The number of looks. Locked during a look, so that whoever waits for one finds its changes here.
    look_count: tokio::sync::Mutex<u64>,
    /// The number of times that the list of callers has changed, and of those after which the fleet has forgotten all
    /// approvals of intents that need more of them.
    caller_list_changes: AtomicU64,
    forgotten: AtomicU64,
}

/// The result of storing an intent that is held here.
pub(super) enum StoreReply {
    Stored(Box<PendingIntent>),
    /// It is too large, or no longer waits.
    NotStored,
    /// Another node has denied or run it, so it no longer waits here.
    Ended,
    /// Another call has its id in the fleet, so it no longer waits here.
    OtherCall,
}

impl Pending {
    /// Stores an intent that is held here. Ends one whose id another call has in the fleet.
    pub(super) async fn store(&self, fleet: &Fleet, intent: IntentId) -> Result<StoreReply, FleetError> {
        let copy = |wait: &Wait<Kept>| (wait.call().clone(), wait.number());
        let held = self.intents.read(|intents| intents.waits.get(intent).map(copy));
        let Some((escalated, number)) = held else { return Ok(StoreReply::NotStored) };
        let Some(text) = escalated.to_journal().ok().filter(|text| !is_too_large(text)) else {
            return Ok(StoreReply::NotStored);
        };
        let is_movable = !escalated.call().is_bound_to_node() && self.passing.is_enabled;
        let runs_at = if is_movable { RunsAt::AnyNode } else { RunsAt::OwnNode };
        // Only a call that waits for a slot needs to say whether the governor was asked.
        let call = CallMessage { text, asked_governor: true };
        let new = NewPending { number, waits_for: WaitsFor::Person, runs_at, call };
        let mut added = fleet.pending.add(intent, new.clone()).await?;
        if let Added::Known(earlier) = &added
            && self.has_expired_undecided(earlier)
        {
            fleet.pending.remove_unchanged(earlier).await?;
            added = fleet.pending.add(intent, new).await?;
        }
        let stored = match added {
            Added::New(stored) => stored,
            Added::Known(stored) => match read_call(&stored) {
                Some(WaitingCall::Escalated(known)) if is_same_call(known.call(), escalated.call()) => stored,
                Some(_) | None => {
                    self.waits.end_idle(intent, EndOfWait::without_refusal(OTHER_CALL)).await;
                    return Ok(StoreReply::OtherCall);
                }
            },
        };
        // Another node may have ended the intent while this one asked the governor.
        if let Some(end) = fleet.claims.find(intent).await?
            && self.end_as_claimed(intent, end.state).await
        {
            fleet.pending.remove(intent).await?;
            return Ok(StoreReply::Ended);
        }
        self.follow(fleet, &stored).await;
        Ok(StoreReply::Stored(Box::new(stored)))
    }

    /// Returns `true` if an intent waits only until the first look after its expiry.
    fn has_expired_undecided(&self, stored: &PendingIntent) -> bool {
        match read_call(stored) {
            Some(WaitingCall::Escalated(call)) => {
                stored.decision().is_none() && !call.is_in_time(self.node.now())
            }
            Some(WaitingCall::Queued(_)) | None => false,
        }
    }

    /// Ends the wait of an intent here if its claim has its end. Returns `false` if a run is open: it may still be released.
    async fn end_as_claimed(&self, intent: IntentId, claim: FoundState) -> bool {
        match claim {
            FoundState::Denied(denial) => {
                if let Ok(denial) = FleetDenial::read(&denial) {
                    self.waits.end_denied(intent, &denial).await;
                }
                true
            }
            FoundState::Ended(_) => {
                self.waits.end_idle(intent, EndOfWait::without_refusal(RUN_ELSEWHERE)).await;
                true
            }
            FoundState::Open => false,
        }
    }

    /// Reads what the fleet stores of an intent, and follows it here. Returns `None` without a fleet, and for an intent that
    /// is not pending, or is too large to be stored.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(in crate::run) async fn refresh(&self, intent: IntentId) -> Result<Option<PendingIntent>, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(None) };
        let read = async {
            match fleet.pending.read(intent).await? {
                Some(_) if self.due_ends.contains(intent) => Ok(None),
                Some(stored) => {
                    self.follow(fleet, &stored).await;
                    Ok(Some(stored))
                }
                None => self.follow_missing(fleet, intent).await,
            }
        };
        read.await.map_err(|error| self.fault(&error))
    }

    /// As [`Self::refresh`], before a decision on the intent.
    ///
    /// # Errors
    /// As [`Self::refresh`], and if the intent has been decided or has ended.
    pub(in crate::run) async fn refresh_for_decision(
        &self,
        intent: IntentId,
    ) -> Result<Option<PendingIntent>, Fault> {
        let stored = self.refresh(intent).await?;
        if stored.is_none() && self.is_stored(intent) { Err(not_waiting_fault()) } else { Ok(stored) }
    }

    /// Follows all changes of other nodes. Returns `false` if the servers do not answer.
    pub(in crate::run) async fn refresh_all(&self) -> bool {
        let Some(fleet) = self.node.fleet() else { return true };
        let looked = self.look(fleet).await;
        looked
            .inspect_err(|error| tracing::debug!(%error, "not all pending intents may be known here yet"))
            .is_ok()
    }

    /// Follows what the fleet stores of an intent.
    async fn follow(&self, fleet: &Fleet, stored: &PendingIntent) {
        let intent = stored.intent;
        let is_own = stored.node() == fleet.member.node();
        let escalated = match read_call(stored) {
            Some(WaitingCall::Queued(queued)) => {
                let wait = SlotWait { home: stored.node().clone(), tool: queued.0.tool };
                self.read.slot_waits.lock().insert(intent, wait);
                return;
            }
            Some(WaitingCall::Escalated(escalated)) if escalated.is_in_time(self.node.now()) => escalated,
            Some(WaitingCall::Escalated(_)) | None => return,
        };
        let is_other = self.intents.inspect(intent, |held, _| !is_same_call(held.call(), escalated.call()));
        if is_other == Some(true) {
            // It began to wait here while the servers did not answer.
            self.waits.end_idle(intent, EndOfWait::without_refusal(OTHER_CALL)).await;
        }
        if stored.decision().is_none() {
            self.waits.record_withdrawal(intent, stored.revision(), WIDER_THAN_SHOWN).await;
        }
        let partial_approvals = self.read_approvals(stored);
        self.intents.update(|intents| {
            if self.due_ends.contains(intent) {
                return;
            }
            let call = escalated.call();
            match intents.waits.get(intent) {
                Some(held) if !is_same_call(held.call().call(), call) => return,
                // The process in which its parent ran has ended.
                None if is_own && call.parent.is_some() => return self.due_ends.note_removal(intent),
                Some(_) | None => {}
            }
            let stored = StoredWait {
                home: (!is_own).then(|| stored.node().clone()),
                revision: stored.revision(),
                number: stored.number(),
                partial_approvals,
                is_decided: stored.decision().is_some(),
                wait: wait_of(*escalated),
            };
            if !intents.waits.fleet().follow(intent, stored) {
                self.read.to_follow.lock().insert(intent);
            }
        });
    }

    /// Ends an intent here that is not pending any more, or stores it if it has not been stored yet.
    async fn follow_missing(
        &self,
        fleet: &Fleet,
        intent: IntentId,
    ) -> Result<Option<PendingIntent>, FleetError> {
        self.read.slot_waits.lock().remove(&intent);
        let now = self.node.now();
        let copy = |wait: &Wait<Kept>| (wait.is_idle(), end_without_claim(wait, now));
        let held = self.intents.read(|intents| intents.waits.get(intent).map(copy));
        let Some((is_idle, end)) = held else { return Ok(None) };
        let claim = fleet.claims.find(intent).await?.map(|found| found.state);
        if !is_idle {
            if let Some(FoundState::Denied(_)) = claim {
                // It waits for a slot here, or somebody decides on it: their tasks find the denial.
                self.intents.update(|intents| intents.runs.abort_of(intent, AbortReason::Cancelled));
            }
            return Ok(None);
        }
        match claim {
            // An open run is about to end, or to wait again.
            Some(claim) => {
                self.end_as_claimed(intent, claim).await;
            }
            None => {
                if let Some(end) = end {
                    self.waits.end_idle(intent, end).await;
                } else if let StoreReply::Stored(stored) = self.store(fleet, intent).await? {
                    return Ok(Some(*stored));
                }
            }
        }
        Ok(None)
    }

    /// Follows the changes of all nodes since the last look.
    ///
    /// # Errors
    /// [`FleetError`]; the next look goes on.
    async fn look(&self, fleet: &Fleet) -> Result<(), FleetError> {
        let mut look_count = self.read.look_count.lock().await;
        if let Err(fault) = self.due_ends.finish_all().await {
            tracing::debug!(?fault, "the fleet does not have all ends of intents yet");
        }
        let caller_list_changes = self.read.caller_list_changes.load(Relaxed);
        if self.must_forget() {
            fleet.pending.read_all_again().await;
        }
        for stored in fleet.pending.changed().await? {
            skip_unreadable(self.follow_change(fleet, stored).await)?;
        }
        self.read.forgotten.store(caller_list_changes, Relaxed);
        let to_follow = std::mem::take(&mut *self.read.to_follow.lock());
        for intent in to_follow {
            match fleet.pending.read(intent).await {
                Ok(Some(stored)) => self.follow(fleet, &stored).await,
                Ok(None) => {}
                Err(_) => drop(self.read.to_follow.lock().insert(intent)),
            }
        }
        let mut held =
            self.intents.read(|intents| intents.waits.select(Wait::is_followed).collect::<Vec<_>>());
        let reads_claims = look_count.is_multiple_of(CLAIM_LOOKS);
        *look_count += 1;
        if reads_claims {
            for intent in &held {
                skip_unreadable(self.remove_if_ended(fleet, *intent).await.map(drop))?;
            }
        }
        held.extend(self.read.slot_waits.lock().keys());
        for intent in fleet.pending.missing(held).await? {
            skip_unreadable(self.follow_missing(fleet, intent).await.map(drop))?;
        }
        Ok(())
    }

    async fn follow_change(&self, fleet: &Fleet, stored: PendingIntent) -> Result<(), FleetError> {
        let is_left = match read_call(&stored) {
            Some(WaitingCall::Escalated(call)) if call.expires_at() + MAX_EXPIRED < self.node.now() => true,
            // A nested call ends with the process in which its parent runs.
            Some(WaitingCall::Escalated(call)) if call.call().parent.is_some() => {
                !fleet.member.is_running(stored.node()).await?
            }
            Some(WaitingCall::Escalated(_) | WaitingCall::Queued(_)) | None => false,
        };
        if is_left {
            return fleet.pending.remove_unchanged(&stored).await;
        }
        let mut latest = Some(stored);
        while let Some(stored) = latest.take_if(|stored| self.must_forget() && stored.has_approvals()) {
            latest = match fleet.pending.change(&stored, Change::ForgetApprovals).await? {
                None => fleet.pending.read(stored.intent).await?,
                changed => changed,
            };
        }
        if let Some(latest) = latest {
            self.follow(fleet, &latest).await;
        }
        Ok(())
    }

    /// Removes the value of an intent that has its end. Returns `true` if the intent has no claim.
    pub(in crate::run) async fn remove_if_ended(
        &self,
        fleet: &Fleet,
        intent: IntentId,
    ) -> Result<bool, FleetError> {
        match fleet.claims.find(intent).await?.map(|found| found.state) {
            Some(FoundState::Ended(_) | FoundState::Denied(_)) => {
                fleet.pending.remove(intent).await.map(|()| false)
            }
            // It may still be released.
            Some(FoundState::Open) => Ok(false),
            None => Ok(true),
        }
    }

    /// The calls that wait for a slot, of all nodes.
    pub(in crate::run) fn slot_waits(&self) -> Vec<(IntentId, SlotWait)> {
        self.read.slot_waits.lock().iter().map(|(intent, wait)| (*intent, wait.clone())).collect()
    }

    /// Returns `true` if the list of callers has changed, and the fleet may still have earlier approvals.
    pub(super) fn must_forget(&self) -> bool {
        self.read.caller_list_changes.load(Relaxed) != self.read.forgotten.load(Relaxed)
    }

    /// The approvals of an intent that needs more of them; none after a change of the list of callers, until the fleet has
    /// forgotten them.
    fn read_approvals(&self, stored: &PendingIntent) -> Vec<PartialApproval> {
        if self.must_forget() {
            return Vec::new();
        }
        let callers = self.policies.callers().load();
        stored.approvals().filter_map(|text| read_partial_approval(&text, &callers)).collect()
    }

    /// Forgets the approvals of all intents that need more of them, because the list of callers has changed.
    pub(in crate::run) fn forget_approvals(self: &Arc<Self>) {
        self.read.caller_list_changes.fetch_add(1, Relaxed);
        if self.node.fleet().is_some() {
            let pending = Arc::clone(self);
            // Repeated by the next look.
            self.node.sessions.spawn(async move {
                let _is_done = pending.refresh_all().await;
            });
        }
    }
}

/// The end of an idle wait of which the fleet has neither a value nor a claim; `None` for one that it has yet to store.
fn end_without_claim(wait: &Wait<Kept>, now: OffsetDateTime) -> Option<EndOfWait<'static>> {
    let may_begin = wait.is_in_time(now);
    match wait.is_decided() {
        true if may_begin => Some(EndOfWait::without_refusal(LOST_APPROVAL)),
        true => Some(EXPIRED_UNRUN),
        false if may_begin && wait.home().is_none() => None,
        false => Some(EXPIRED_UNDECIDED),
    }
}

/// Passes over an intent whose value or claim another version wrote, or no node.
fn skip_unreadable(result: Result<(), FleetError>) -> Result<(), FleetError> {
    match result {
        Err(error @ FleetError::Value { .. }) => {
            tracing::debug!(%error, "a value of an intent cannot be read");
            Ok(())
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::preview::tests::escalated;
    use a2g_intent::Intents;

    #[test]
    fn a_wait_that_the_fleet_has_lost_is_stored_again_or_ends_with_what_is_known_of_it() {
        let wait = wait_of(escalated());
        let expiry = wait.call().expires_at();
        let in_time = expiry - Duration::from_secs(1);
        let intent = wait.call().call().intent;
        let other = Some(NodeName::try_from("other".to_owned()).unwrap());
        for (home, is_decided, now, end) in [
            (None, false, in_time, None),
            (None, false, expiry, Some(EXPIRED_UNDECIDED)),
            (other.clone(), false, expiry, Some(EXPIRED_UNDECIDED)),
            (None, true, in_time, Some(EndOfWait::without_refusal(LOST_APPROVAL))),
            (other.clone(), true, in_time, Some(EndOfWait::without_refusal(LOST_APPROVAL))),
            (other.clone(), true, expiry, Some(EXPIRED_UNRUN)),
        ] {
            let shown = format!("{home:?}, {is_decided}, {now}");
            let wait = wait_of(escalated());
            let partial_approvals = Vec::new();
            let stored = StoredWait { wait, home, revision: 1, number: 1, partial_approvals, is_decided };
            let mut intents = Intents::<Kept>::new(1, 1, 0);
            assert!(intents.waits.fleet().follow(intent, stored));
            let found = end_without_claim(intents.waits.get(intent).unwrap(), now);
            assert_eq!(found.map(|end| end.reason), end.map(|end| end.reason), "{shown}");
        }
    }
}
