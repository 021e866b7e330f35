//! The pending intents of all nodes of a fleet, as this one follows and changes them.
//!
//! ```text
//! arrives here ─▶ in the journal, held here ─▶ the value `wait.INTENT` ─▶ held at all nodes
//! decided      ─▶ the value, at most once   ─▶ in the journal           ─▶ answered
//! ended        ─▶ the claim (a run, a denial) ─▶ the value is removed   ─▶ held nowhere
//! ```
//! A decision is made here, on the value that was read for it, and under the list of callers of this node. The journal has
//! the intents that arrived here and those that were decided here; it learns their ends from the claims.
//!
//! Without a fleet, nothing here has an effect.

use super::approval_rules::PartialApproval;
use super::current_catalog::CurrentCatalog;
use super::due_ends::DueEnds;
use super::engine::passing::Passing;
use super::faults::{busy_fault, intent_conflict_fault};
use super::fleet::{Fleet, FleetDenial, Node};
use super::open_intents::{Kept, OpenIntents, is_same_call, wait_of};
use super::policies::Policies;
use super::preview::{DecisionBasis, changed_fault};
use super::wait_records::EndOfWait;
use super::waits::{EXPIRED_UNDECIDED, Held, Waits, not_waiting_fault};
use super::{AgentFilter, IntentState};
use a2g_fleet::{Added, Change, Decision, FleetError, FoundState, NewPending, RunsAt, WaitsFor};
pub(super) use a2g_fleet::{MAX_MESSAGE_BYTES, PendingIntent};
use a2g_govern::{Escalated, VerifiedVerdict};
use a2g_intent::{StoredWait, Wait, WaitId};
use a2g_journal::{Approval, RunRecord};
use a2g_types::call::{Call, Door};
use a2g_types::fault::Fault;
use a2g_types::grant::GrantSummary;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::node::{CallMessage, NodeName, NodeText};
use a2g_types::outcome::AbortReason;
use a2g_types::stored::v1;
use a2g_types::tool::Digest;
use a2g_types::verdict::Manifest;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The time after which the caller of an intent that waits here is answered, although no server has stored the intent.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two attempts to store it.
const STORE_INTERVAL: Duration = Duration::from_millis(200);
/// The time after its expiry after which any node removes an intent: its own node may be lost.
const MAX_EXPIRED: Duration = Duration::from_secs(60);
/// The number of looks after which the claims of all waiting intents are read: a value may be older than its claim.
const CLAIM_LOOKS: u64 = 60;
/// The maximum number of times that an intent is read again because another node has changed it.
const MAX_TRIES: usize = 8;
/// The recorded reason for an intent that another node has run.
pub(super) const RUN_ELSEWHERE: &str = "another node of the fleet has run it";
/// The recorded reason for an intent whose id another call has in the fleet.
const OTHER_CALL: &str = "another call with its id waits at another node of the fleet";
/// The recorded reason why an approval no longer counts.
pub(super) const WIDER_THAN_SHOWN: &str =
    "its run would get more than its approvers were shown, so it waits for a person again";
/// The recorded reason for an approved intent that the fleet has lost.
const LOST_APPROVAL: &str = "the fleet has lost its approval: send it again";

/// Returns `true` if an intent no longer waits here because another node of the fleet has it: its end is not in this
/// journal.
#[must_use]
pub fn has_moved(record: &RunRecord) -> bool {
    // The task of the intent is written later.
    let last = record.events.iter().rfind(|event| event.kind != "task").and_then(|event| event.by.as_deref());
    last == Some(RUN_ELSEWHERE)
}

/// A call that the fleet stores, in short.
#[derive(Debug, Clone)]
pub struct PendingCall {
    /// The agent.
    pub agent: AgentDid,
    /// The tool.
    pub tool: ToolName,
    /// The door through which its node got the call.
    pub door: Door,
}

impl From<&Call> for PendingCall {
    fn from(Call { agent, tool, door, .. }: &Call) -> Self {
        Self { agent: agent.clone(), tool: tool.clone(), door: *door }
    }
}

/// A call that waits for a slot without its caller.
#[derive(Debug, Clone)]
pub(super) struct SlotWait {
    /// The node at which it arrived.
    pub(super) home: NodeName,
    pub(super) tool: ToolName,
}

/// An approval, as the fleet stores it.
#[derive(Debug, Serialize, Deserialize)]
struct StoredApproval {
    /// The names of all who have approved.
    by: String,
    /// Of an intent that needs more approvals: read by [`a2g_govern::Callers::author_from_node`].
    author: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "v1::optional_manifest")]
    manifest: Option<Manifest>,
    basis: Option<Digest>,
    /// The grants that were shown.
    #[serde(with = "v1::grants")]
    grants: Vec<GrantSummary>,
}

/// The result of storing an intent that is held here.
enum StoreReply {
    Stored(Box<PendingIntent>),
    /// It is too large, or no longer waits.
    NotStored,
    /// Another call has its id in the fleet, so it no longer waits here.
    OtherCall,
}

/// The pending intents.
pub(super) struct Pending {
    node: Arc<Node>,
    passing: Arc<Passing>,
    intents: Arc<OpenIntents>,
    waits: Arc<Waits>,
    due_ends: Arc<DueEnds>,
    policies: Arc<Policies>,
    catalogue: Arc<CurrentCatalog>,
    /// The calls that wait for a slot.
    slots: Mutex<HashMap<IntentId, SlotWait>>,
    /// The intents that have changed while a task of this process decided on them or ran them.
    behind: Mutex<HashSet<IntentId>>,
    /// Held during a look, so that whoever waits for one finds its changes here.
    look: tokio::sync::Mutex<()>,
    looks: AtomicU64,
    /// The number of times that the list of callers has changed, and of those after which the fleet has forgotten all
    /// approvals of intents that need more of them.
    list_changes: AtomicU64,
    forgotten: AtomicU64,
}

impl Pending {
    pub(super) fn new(
        node: Arc<Node>,
        passing: Arc<Passing>,
        intents: Arc<OpenIntents>,
        waits: Arc<Waits>,
        due_ends: Arc<DueEnds>,
        policies: Arc<Policies>,
        catalogue: Arc<CurrentCatalog>,
    ) -> Self {
        Self {
            node,
            passing,
            intents,
            waits,
            due_ends,
            policies,
            catalogue,
            slots: Mutex::default(),
            behind: Mutex::default(),
            look: tokio::sync::Mutex::default(),
            looks: AtomicU64::new(0),
            list_changes: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
        }
    }

    fn fault(&self, error: &FleetError) -> Fault {
        self.node.fleet_fault(error)
    }

    /// Holds an escalated intent, bound to a module: see [`Waits::hold`]. The fleet stores it before its caller learns that
    /// it waits.
    pub(super) async fn hold(&self, escalated: Escalated, module: Digest) -> Result<Held, Fault> {
        let intent = escalated.call().intent;
        // An earlier wait of the intent may have expired just now.
        self.due_ends.finish(intent).await?;
        let held = self.waits.hold(escalated, module).await?;
        let (Some(fleet), Held::New) = (self.node.fleet(), &held) else { return Ok(held) };
        let store = async {
            loop {
                match self.store(fleet, intent).await {
                    Ok(reply) => return reply,
                    Err(error) => {
                        tracing::debug!(%intent, %error, "an intent that waits here may not be stored yet");
                    }
                }
                tokio::time::sleep(STORE_INTERVAL).await;
            }
        };
        match tokio::time::timeout(STORE_TIMEOUT, store).await {
            Ok(StoreReply::OtherCall) => Err(intent_conflict_fault(intent)),
            // A look stores it later if no server has answered.
            Ok(StoreReply::Stored(_) | StoreReply::NotStored) | Err(_) => Ok(held),
        }
    }

    /// Stores an intent that is held here. Ends one whose id another call has in the fleet.
    async fn store(&self, fleet: &Fleet, intent: IntentId) -> Result<StoreReply, FleetError> {
        let copy = |wait: &Wait<Kept>| (wait.call().clone(), wait.number());
        let held = self.intents.read(|intents| intents.waits.get(intent).map(copy));
        let Some((escalated, number)) = held else { return Ok(StoreReply::NotStored) };
        let Some(text) = escalated.to_journal().ok().filter(|text| text.len() <= MAX_MESSAGE_BYTES) else {
            return Ok(StoreReply::NotStored);
        };
        let is_movable = escalated.call().parent.is_none() && self.passing.is_enabled;
        let runs_at = if is_movable { RunsAt::AnyNode } else { RunsAt::OwnNode };
        // Only a call that waits for a slot needs to say whether the governor was asked.
        let call = CallMessage { text, asked_governor: true };
        let new = NewPending { number, waits_for: WaitsFor::Person, runs_at, call };
        let stored = match fleet.pending.add(intent, new).await? {
            Added::New(stored) => stored,
            Added::Known(stored) if is_wait_of(&stored, escalated.call()) => stored,
            Added::Known(_) => {
                self.waits.end_idle(intent, EndOfWait::moved(OTHER_CALL)).await;
                return Ok(StoreReply::OtherCall);
            }
        };
        self.follow(fleet, &stored).await;
        Ok(StoreReply::Stored(Box::new(stored)))
    }

    /// Reads what the fleet stores of an intent, and follows it here. Returns `None` without a fleet, and for an intent that
    /// is not pending, or is too large to be stored.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(super) async fn refresh(&self, intent: IntentId) -> Result<Option<PendingIntent>, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(None) };
        let read = async {
            match fleet.pending.read(intent).await {
                Ok(Some(_)) if self.due_ends.contains(intent) => Ok(None),
                Ok(Some(stored)) => {
                    self.follow(fleet, &stored).await;
                    Ok(Some(stored))
                }
                Ok(None) => self.follow_missing(fleet, intent).await,
                Err(error) => Err(error),
            }
        };
        read.await.map_err(|error| self.fault(&error))
    }

    /// As [`Self::refresh`], before a decision on the intent.
    ///
    /// # Errors
    /// As [`Self::refresh`], and if the intent has been decided or has ended.
    pub(super) async fn refresh_for_decision(
        &self,
        intent: IntentId,
    ) -> Result<Option<PendingIntent>, Fault> {
        let stored = self.refresh(intent).await?;
        if stored.is_none() && self.is_stored(intent) { Err(not_waiting_fault()) } else { Ok(stored) }
    }

    /// Returns `true` if the fleet stores an intent that is held here. It does not store one that is too large.
    fn is_stored(&self, intent: IntentId) -> bool {
        self.intents.read(|intents| intents.waits.get(intent).is_some_and(Wait::is_stored))
    }

    /// Follows all changes of other nodes. Returns `false` if the servers do not answer.
    pub(super) async fn refresh_all(&self) -> bool {
        let Some(fleet) = self.node.fleet() else { return true };
        let looked = self.look(fleet).await;
        if let Err(error) = &looked {
            tracing::debug!(%error, "the pending intents of the fleet may not all be known here yet");
        }
        looked.is_ok()
    }

    /// Follows what the fleet stores of an intent.
    async fn follow(&self, fleet: &Fleet, stored: &PendingIntent) {
        let intent = stored.intent;
        let is_own = stored.node() == fleet.member.node();
        match stored.waits_for() {
            WaitsFor::Slot => {
                if let Ok((Call { tool, .. }, _)) = VerifiedVerdict::from_node(&stored.call()) {
                    self.slots.lock().insert(intent, SlotWait { home: stored.node().clone(), tool });
                }
                return;
            }
            WaitsFor::Person => {}
        }
        let escalated = match Escalated::from_node(&stored.call()) {
            Ok(escalated) => escalated,
            Err(error) => return tracing::debug!(%intent, %error, "a call of another version waits"),
        };
        if !escalated.is_pending(self.node.now()) {
            return;
        }
        let is_other = |held: &Escalated, _: &[_]| !is_same_call(held.call(), escalated.call());
        if self.intents.inspect(intent, is_other) == Some(true) {
            // It began to wait here while the servers did not answer.
            self.waits.end_idle(intent, EndOfWait::moved(OTHER_CALL)).await;
        }
        if stored.decision().is_none() {
            self.waits.forget_record(intent, stored.revision(), WIDER_THAN_SHOWN).await;
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
                wait: wait_of(escalated),
            };
            if !intents.waits.fleet().follow(intent, stored) {
                self.behind.lock().insert(intent);
            }
        });
    }

    /// Ends an intent here that is not pending any more, or stores it if it has not been stored yet.
    async fn follow_missing(
        &self,
        fleet: &Fleet,
        intent: IntentId,
    ) -> Result<Option<PendingIntent>, FleetError> {
        self.slots.lock().remove(&intent);
        let now = self.node.now();
        let copy = |wait: &Wait<Kept>| {
            (wait.home().is_none() && wait.is_pending(now), wait.is_decided(), wait.is_idle())
        };
        let held = self.intents.read(|intents| intents.waits.get(intent).map(copy));
        let Some((may_wait, is_decided, is_idle)) = held else { return Ok(None) };
        match fleet.claims.find(intent).await?.map(|found| found.state) {
            Some(FoundState::Denied(_)) if !is_idle => {
                // It waits for a slot here, or somebody decides on it: their tasks find the denial.
                self.intents.update(|intents| intents.runs.abort_of(intent, AbortReason::Cancelled));
            }
            _ if !is_idle => {}
            Some(FoundState::Denied(denial)) => {
                if let Ok(denial) = FleetDenial::read(&denial).map(FleetDenial::into_denial) {
                    self.waits.end_denied(intent, &denial).await;
                }
            }
            Some(FoundState::Ended(_)) => self.waits.end_idle(intent, EndOfWait::moved(RUN_ELSEWHERE)).await,
            // It is about to end, or to wait again.
            Some(FoundState::Open) => {}
            None if !may_wait => self.waits.end_idle(intent, EXPIRED_UNDECIDED).await,
            None if is_decided => self.waits.end_idle(intent, EndOfWait::moved(LOST_APPROVAL)).await,
            None => match self.store(fleet, intent).await? {
                StoreReply::Stored(stored) => return Ok(Some(*stored)),
                StoreReply::NotStored | StoreReply::OtherCall => {}
            },
        }
        Ok(None)
    }

    /// Follows the changes of all nodes since the last look.
    ///
    /// # Errors
    /// [`FleetError`]; the next look goes on.
    pub(super) async fn look(&self, fleet: &Fleet) -> Result<(), FleetError> {
        let _others_wait = self.look.lock().await;
        if let Err(fault) = self.due_ends.finish_all().await {
            tracing::debug!(?fault, "the fleet does not have all ends of intents yet");
        }
        let list_changes = self.list_changes.load(Relaxed);
        if self.must_forget() {
            fleet.pending.read_all_again().await;
        }
        for stored in fleet.pending.changed().await? {
            skip_unreadable(self.follow_change(fleet, stored).await)?;
        }
        self.forgotten.store(list_changes, Relaxed);
        let behind = std::mem::take(&mut *self.behind.lock());
        for intent in behind {
            match fleet.pending.read(intent).await {
                Ok(Some(stored)) => self.follow(fleet, &stored).await,
                Ok(None) => {}
                Err(_) => drop(self.behind.lock().insert(intent)),
            }
        }
        let mut held =
            self.intents.read(|intents| intents.waits.select(Wait::is_followed).collect::<Vec<_>>());
        if self.looks.fetch_add(1, Relaxed).is_multiple_of(CLAIM_LOOKS) {
            for intent in &held {
                skip_unreadable(self.remove_if_ended(fleet, *intent).await)?;
            }
        }
        held.extend(self.slots.lock().keys());
        for intent in fleet.pending.missing(held).await? {
            skip_unreadable(self.follow_missing(fleet, intent).await.map(drop))?;
        }
        Ok(())
    }

    async fn follow_change(&self, fleet: &Fleet, stored: PendingIntent) -> Result<(), FleetError> {
        let is_left = match stored.waits_for() {
            WaitsFor::Slot => false,
            WaitsFor::Person => Escalated::from_node(&stored.call())
                .is_ok_and(|escalated| escalated.expires_at() + MAX_EXPIRED < self.node.now()),
        };
        // A nested call ends with the process in which its parent runs.
        let has_no_parent = is_nested(&stored) && !fleet.member.is_running(stored.node()).await?;
        if is_left || has_no_parent {
            return fleet.pending.remove_unchanged(&stored).await;
        }
        let mut latest = stored;
        while self.must_forget() && latest.approvals().next().is_some() {
            latest = match fleet.pending.change(&latest, Change::ForgetApprovals).await? {
                Some(changed) => changed,
                None => match fleet.pending.read(latest.intent).await? {
                    Some(changed) => changed,
                    None => return Ok(()),
                },
            };
        }
        self.follow(fleet, &latest).await;
        Ok(())
    }

    /// Removes the value of an intent that has its end.
    async fn remove_if_ended(&self, fleet: &Fleet, intent: IntentId) -> Result<(), FleetError> {
        match fleet.claims.find(intent).await?.map(|found| found.state) {
            Some(FoundState::Ended(_) | FoundState::Denied(_)) => fleet.pending.remove(intent).await,
            Some(FoundState::Open) | None => Ok(()),
        }
    }

    /// The calls that wait for a slot, of all nodes.
    pub(super) fn slot_waits(&self) -> Vec<(IntentId, SlotWait)> {
        self.slots.lock().iter().map(|(intent, wait)| (*intent, wait.clone())).collect()
    }

    /// Returns `true` if the fleet stores an intent as waiting.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(super) async fn is_pending(&self, intent: IntentId) -> Result<bool, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(false) };
        self.due_ends.finish(intent).await?;
        let found = fleet.pending.read(intent).await.map_err(|error| self.fault(&error))?;
        Ok(found.is_some())
    }

    /// The call of a pending intent, and its state if it has no claim.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(super) async fn find_call(
        &self,
        intent: IntentId,
    ) -> Result<Option<(PendingCall, IntentState)>, Fault> {
        let Some(stored) = self.refresh(intent).await? else { return Ok(None) };
        Ok(match stored.waits_for() {
            WaitsFor::Person => {
                let escalated = Escalated::from_node(&stored.call()).ok();
                let pending = escalated.filter(|escalated| escalated.is_pending(self.node.now()));
                pending.map(|escalated| (escalated.call().into(), IntentState::Escalated))
            }
            WaitsFor::Slot => {
                let call = VerifiedVerdict::from_node(&stored.call()).ok();
                call.map(|(call, _)| ((&call).into(), IntentState::Queued))
            }
        })
    }

    /// Denies a call that waits for a slot without its caller, at whichever node, if `filter` selects its agent. Returns
    /// `false` if it does not, or a node has claimed the call, and `None` if the intent is not pending.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(super) async fn deny_queued(
        &self,
        intent: IntentId,
        filter: AgentFilter<'_>,
        reason: AbortReason,
    ) -> Result<Option<bool>, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(None) };
        let read = fleet.pending.read(intent).await.map_err(|error| self.fault(&error))?;
        let Some(stored) = read.filter(|_| !self.due_ends.contains(intent)) else { return Ok(None) };
        let call = VerifiedVerdict::from_node(&stored.call()).ok();
        let is_selected = |call: &Call| stored.waits_for() == WaitsFor::Slot && filter(&call.agent);
        let Some((call, _)) = call.filter(|(call, _)| is_selected(call)) else { return Ok(Some(false)) };
        let is_denied = self.node.withdraw_in_fleet(fleet, &call, reason).await?;
        if is_denied {
            self.due_ends.note_removal(intent);
            // A look repeats it.
            let _removed = self.due_ends.finish(intent).await;
        }
        Ok(Some(is_denied))
    }

    /// The approval of a decided intent, if this node has to run it now. Completes a denial whose node was lost.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(super) async fn follow_decision(&self, intent: IntentId) -> Result<Option<Approval>, Fault> {
        let (Some(fleet), Some(stored)) = (self.node.fleet(), self.refresh(intent).await?) else {
            return Ok(None);
        };
        let unavailable = |error: FleetError| self.fault(&error);
        match fleet.claims.find(intent).await.map_err(unavailable)?.map(|found| found.state) {
            Some(FoundState::Open) => return Ok(None),
            Some(FoundState::Ended(_) | FoundState::Denied(_)) => {
                return fleet.pending.remove(intent).await.map(|()| None).map_err(unavailable);
            }
            None => {}
        }
        let Ok(escalated) = Escalated::from_node(&stored.call()) else { return Ok(None) };
        match stored.decision() {
            None => Ok(None),
            Some(Decision::Denied { denial }) => {
                let denial = FleetDenial::read(denial)?;
                self.node.deny_in_fleet(fleet, escalated.call(), &denial).await.map(|()| None)
            }
            Some(Decision::Approved { node, approval }) => {
                let is_running_elsewhere = match node {
                    Some(node) if node != fleet.member.node() => {
                        fleet.member.is_running(node).await.map_err(unavailable)?
                    }
                    Some(_) | None => false,
                };
                if is_running_elsewhere || !self.runs_here(&escalated, Some(&stored)) {
                    return Ok(None);
                }
                read_approval(approval).map(Some)
            }
        }
    }

    /// Returns `true` if this node runs an approved intent itself. In a fleet, it leaves those to the others whose tool it
    /// lacks, and those that only their own node may run.
    pub(super) fn runs_here(&self, escalated: &Escalated, stored: Option<&PendingIntent>) -> bool {
        let (Some(fleet), Some(stored)) = (self.node.fleet(), stored) else { return true };
        let call = escalated.call();
        let loaded = self.catalogue.current();
        if stored.node() == fleet.member.node() {
            // If its tool was replaced or is broken, the approver is told.
            return loaded.catalog.get(&call.tool).is_some() || !self.passing.is_enabled;
        }
        let module = loaded.usable_tool(&call.tool).map(|tool| tool.descriptor.digest);
        let has_module = module.is_some() && (escalated.module().is_none() || escalated.module() == module);
        has_module && self.passing.is_enabled && stored.may_run_anywhere()
    }

    /// Writes an intent that another node has stored to the journal, before a decision on it.
    pub(super) async fn record_hold(&self, escalated: &Escalated) -> Result<(), Fault> {
        let intent = escalated.call().intent;
        let is_recorded =
            self.intents.read(|intents| intents.waits.get(intent).is_none_or(Wait::is_recorded));
        if is_recorded {
            return Ok(());
        }
        self.waits.record_hold(escalated).await
    }

    /// Changes an intent as it was read for a decision.
    ///
    /// # Errors
    /// If somebody else has decided or approved meanwhile; [`Fault::Busy`] if the fleet cannot be reached: the change may
    /// have been made.
    async fn change(&self, stored: &PendingIntent, change: Change) -> Result<PendingIntent, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(stored.clone()) };
        let changed = fleet.pending.change(stored, change).await.map_err(|error| self.fault(&error))?;
        let changed = changed.ok_or_else(changed_fault)?;
        self.intents
            .update(|intents| intents.waits.fleet().note_revision(changed.intent, changed.revision()));
        Ok(changed)
    }

    /// Decides that an intent may run, as it was read. `is_run_here` is `true` if this node runs it first.
    ///
    /// # Errors
    /// As for [`Self::change`].
    pub(super) async fn approve(
        &self,
        stored: &PendingIntent,
        approval: &Approval,
        is_run_here: bool,
    ) -> Result<(), Fault> {
        let node = self.node.name().filter(|_| is_run_here).cloned();
        let Approval { by, manifest, basis, grants } = approval.clone();
        let approval =
            to_raw(&StoredApproval { by, author: None, manifest, basis: basis.map(Digest), grants })?;
        self.change(stored, Change::Decide(Decision::Approved { node, approval })).await.map(drop)
    }

    /// Adds an approval of an intent that needs more of them, as it was read.
    ///
    /// # Errors
    /// As for [`Self::change`].
    pub(super) async fn add_approval(
        &self,
        stored: &PendingIntent,
        approval: &PartialApproval,
    ) -> Result<(), Fault> {
        let PartialApproval { author, manifest, grant, basis } = approval;
        let approval = to_raw(&StoredApproval {
            by: author.name().to_owned(),
            author: author.to_node(),
            manifest: manifest.clone(),
            basis: basis.map(|basis| Digest(basis.hash())),
            grants: vec![grant.clone()],
        })?;
        let are_forgotten = self.must_forget() && stored.approvals().next().is_some();
        let stored = match are_forgotten {
            true => self.change(stored, Change::ForgetApprovals).await?,
            false => stored.clone(),
        };
        self.change(&stored, Change::AddApproval(approval)).await.map(drop)
    }

    /// Returns `true` if the list of callers has changed, and the fleet may still have earlier approvals.
    fn must_forget(&self) -> bool {
        self.list_changes.load(Relaxed) != self.forgotten.load(Relaxed)
    }

    /// The approvals of an intent that needs more of them; none after a change of the list of callers, until the fleet has
    /// forgotten them.
    fn read_approvals(&self, stored: &PendingIntent) -> Vec<PartialApproval> {
        if self.must_forget() {
            return Vec::new();
        }
        stored.approvals().filter_map(|text| self.read_partial_approval(&text)).collect()
    }

    fn read_partial_approval(&self, text: &NodeText) -> Option<PartialApproval> {
        let author = self.policies.callers().load().author_from_node(text)?;
        let StoredApproval { manifest, basis, grants, .. } = serde_json::from_str(text.as_str()).ok()?;
        let basis = basis.map(|Digest(hash)| DecisionBasis::from_hash(hash));
        Some(PartialApproval { author, manifest, grant: grants.into_iter().next()?, basis })
    }

    /// Forgets the approvals of all intents that need more of them, because the list of callers has changed.
    pub(super) fn forget_approvals(self: &Arc<Self>) {
        self.list_changes.fetch_add(1, Relaxed);
        if self.node.fleet().is_some() {
            let pending = Arc::clone(self);
            // Repeated by the next look.
            self.node.sessions.spawn(async move {
                let _is_done = pending.refresh_all().await;
            });
        }
    }

    /// Forgets the approvals of one intent that needs more of them. If the fleet cannot be reached, the next approval is
    /// compared with them again.
    pub(super) async fn forget_approvals_of(&self, stored: &PendingIntent) {
        let _compared_again = self.change(stored, Change::ForgetApprovals).await;
    }

    /// Lets an approved intent wait for a person again. Returns `false` if its approval was withdrawn before, or if the
    /// fleet cannot be reached.
    pub(super) async fn wait_again(&self, intent: IntentId, number: u64) -> bool {
        let Some(fleet) = self.node.fleet().filter(|_| self.is_stored(intent)) else { return true };
        let Ok(Some(stored)) = fleet.pending.read(intent).await else { return false };
        let again = Change::WaitAgain { number: number.wrapping_add(1) };
        is_approved(&stored, number) && self.change(&stored, again).await.is_ok()
    }

    /// Decides that an intent never runs. Its denial has to take the claim afterwards.
    ///
    /// # Errors
    /// If somebody has approved the intent; [`Fault::Busy`] if the fleet cannot be reached: it may be denied.
    pub(super) async fn deny(&self, intent: IntentId, denial: &FleetDenial) -> Result<(), Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(()) };
        for _ in 0..MAX_TRIES {
            let read = fleet.pending.read(intent).await.map_err(|error| self.fault(&error))?;
            // One that is not stored is too large, or has ended: the claim decides.
            let Some(stored) = read else { return Ok(()) };
            match stored.decision() {
                Some(Decision::Denied { .. }) => return Ok(()),
                Some(Decision::Approved { .. }) => return Err(not_waiting_fault()),
                None => {}
            }
            let decision = Decision::Denied { denial: denial.to_raw()? };
            match self.change(&stored, Change::Decide(decision)).await {
                // Somebody has approved or decided meanwhile.
                Err(Fault::InvalidRequest(_)) => {}
                result => return result.map(drop),
            }
        }
        Err(changed_fault())
    }

    /// Returns `true` if an intent that was taken for a run is still approved, as far as the fleet can be asked.
    pub(super) async fn may_still_run(&self, intent: IntentId, taken: WaitId) -> bool {
        let Some(fleet) = self.node.fleet() else { return true };
        match fleet.pending.read(intent).await {
            Ok(Some(stored)) => is_approved(&stored, taken.number()),
            Ok(None) => !self.is_stored(intent),
            Err(_) => true,
        }
    }

    /// Checks, after the claim of an approved intent, that it is still approved.
    ///
    /// # Errors
    /// [`Fault::Busy`]: it must not run.
    pub(super) async fn check_claimed(&self, intent: IntentId, taken: WaitId) -> Result<(), Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(()) };
        match fleet.pending.is_approved(intent, taken.number()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(busy_fault("the approval of the intent was withdrawn before it ran")),
            Err(error) => Err(self.fault(&error)),
        }
    }
}

/// Reads an approval that the fleet stores.
fn read_approval(approval: &RawValue) -> Result<Approval, Fault> {
    let read = serde_json::from_str(approval.get());
    let StoredApproval { by, author: _, manifest, basis, grants } =
        read.map_err(|error| Fault::Internal(error.to_string()))?;
    Ok(Approval { by, manifest, basis: basis.map(|Digest(hash)| hash), grants })
}

fn is_approved(stored: &PendingIntent, number: u64) -> bool {
    match stored.decision() {
        Some(Decision::Approved { .. }) => stored.number() == number,
        Some(Decision::Denied { .. }) | None => false,
    }
}

/// Returns `true` if this value is the wait of a call for a person.
fn is_wait_of(stored: &PendingIntent, call: &Call) -> bool {
    match stored.waits_for() {
        WaitsFor::Person => {
            let escalated = Escalated::from_node(&stored.call());
            escalated.is_ok_and(|escalated| is_same_call(escalated.call(), call))
        }
        WaitsFor::Slot => false,
    }
}

fn is_nested(stored: &PendingIntent) -> bool {
    let has_parent = |escalated: Escalated| escalated.call().parent.is_some();
    !stored.may_run_anywhere() && Escalated::from_node(&stored.call()).is_ok_and(has_parent)
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

fn to_raw(value: &impl Serialize) -> Result<Box<RawValue>, Fault> {
    to_raw_value(value).map_err(|error| Fault::Internal(error.to_string()))
}
