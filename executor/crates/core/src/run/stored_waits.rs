//! Stored waits: the fleet stores an intent that waits for a person. If its node is lost or leaves, the intent waits at
//! another one.
//!
//! ```text
//! waits ─▶ stored ─▶ approved, denied, expired or stopped                       ─▶ removed
//!            │  └─▶ cancelled or revoked: the intent is denied at all nodes      ─▶ removed, answered
//!            └─▶ this node is lost: waits at another node ─▶ this node runs again ─▶ waits here again
//! ```
//! A run and a denial are claims, so an intent that waits at two nodes for a moment is decided once.

use super::current_catalog::CurrentCatalog;
use super::due_denials::DueDenials;
use super::engine::stored_calls::{TakenOverCall, TakenOverCalls};
use super::fleet::{Fleet, Node};
use super::open_intents::OpenIntents;
use super::trace;
use super::waits::{Held, Waits};
use super::{AgentFilter, CallFilter, LoadedCatalog, Membership};
use a2g_fleet::{
    FleetError, FoundState, MAX_MESSAGE_BYTES, OrphanCall, StoredWait, Takeover, WaitState, WaitsFor,
};
use a2g_govern::Escalated;
use a2g_journal::{IntentSummary, RunRecord};
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::IntentId;
use a2g_types::node::{CallMessage, PassedCall};
use a2g_types::outcome::AbortReason;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use tracing::Instrument as _;

/// The time after which the caller of an intent that waits here is answered, although no server has stored the intent.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two attempts to store it.
const STORE_INTERVAL: Duration = Duration::from_millis(200);
/// The number of checks after which the claims of stored waits are read: another node may have decided while this one
/// stored the wait or took it back.
const CLAIM_CHECKS: u32 = 4;
/// The recorded reason for an intent that another node has run.
const RUN_ELSEWHERE: &str = "another node of the fleet has run it";
/// The recorded reason for an intent that another node holds.
const TAKEN_BACK: &str = "it waits at another node of the fleet again";

/// Returns `true` if an intent no longer waits here because another node of the fleet has it: its end is not in this
/// journal.
#[must_use]
pub fn has_moved(record: &RunRecord) -> bool {
    // The task of the intent is written later.
    let last = record.events.iter().rfind(|event| event.kind != "task").and_then(|event| event.by.as_deref());
    last.is_some_and(|reason| [RUN_ELSEWHERE, TAKEN_BACK].contains(&reason))
}

impl Node {
    /// Denies the stored waits of the selected calls: for a revocation those of all nodes, otherwise those of nodes that do
    /// not run, because the others end theirs. Returns the number of the latter.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(super) async fn end_stored_waits(
        &self,
        filter: CallFilter<'_>,
        reason: AbortReason,
    ) -> Result<usize, Fault> {
        let Some(fleet) = self.fleet() else { return Ok(0) };
        let mut count = 0;
        for key in fleet.waits.keys().await.map_err(|error| self.fleet_fault(&error))? {
            let found = read_stored_wait(fleet, &key).await.map_err(|error| self.fleet_fault(&error))?;
            let Some((escalated, has_live_holder)) = found else { continue };
            let call = escalated.call();
            let is_included = !has_live_holder || reason == AbortReason::Revoked;
            if !is_included || !filter(&call.agent, &call.tool) {
                continue;
            }
            let is_denied = self.withdraw_in_fleet(fleet, call, reason).await?;
            count += usize::from(is_denied && !has_live_holder);
        }
        Ok(count)
    }

    /// An intent that waits for a person at a node that does not run.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(super) async fn find_orphan(&self, intent: IntentId) -> Result<Option<Escalated>, Fault> {
        let waits = self.find_stored_waits(intent).await?;
        Ok(waits.into_iter().find_map(|(escalated, has_live_holder)| (!has_live_holder).then_some(escalated)))
    }

    /// Denies an intent at all nodes that the fleet stores as waiting for a person, if `filter` selects its agent. Returns
    /// `false` if there is none.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(super) async fn end_stored_wait(
        &self,
        intent: IntentId,
        filter: AgentFilter<'_>,
        reason: AbortReason,
    ) -> Result<bool, Fault> {
        let Some(fleet) = self.fleet() else { return Ok(false) };
        // Also with a live holder: it may be about to hold an intent that it has taken over.
        let waits = self.find_stored_waits(intent).await?;
        let Some((escalated, _)) = waits.into_iter().find(|(escalated, _)| filter(&escalated.call().agent))
        else {
            return Ok(false);
        };
        self.withdraw_in_fleet(fleet, escalated.call(), reason).await
    }

    /// The stored waits of an intent that is neither decided nor expired, and whether the holder of each runs.
    async fn find_stored_waits(&self, intent: IntentId) -> Result<Vec<(Escalated, bool)>, Fault> {
        let Some(fleet) = self.fleet() else { return Ok(Vec::new()) };
        let find = async {
            let mut found = Vec::new();
            for key in fleet.waits.keys_of(intent).await? {
                let wait = read_stored_wait(fleet, &key).await?;
                found.extend(wait.filter(|(escalated, _)| escalated.is_pending(self.now())));
            }
            // The key of an intent that is decided is removed later.
            let is_open = !found.is_empty() && fleet.claims.find(intent).await?.is_none();
            Ok(if is_open { found } else { Vec::new() })
        };
        find.await.map_err(|error: FleetError| self.fleet_fault(&error))
    }
}

/// The waits that the fleet stores, and those that this node takes over.
pub(super) struct StoredWaits {
    node: Arc<Node>,
    intents: Arc<OpenIntents>,
    waits: Arc<Waits>,
    due_denials: Arc<DueDenials>,
    catalogue: Arc<CurrentCatalog>,
    taken_over: Arc<TakenOverCalls>,
}

impl StoredWaits {
    pub(super) fn new(
        node: Arc<Node>,
        intents: Arc<OpenIntents>,
        waits: Arc<Waits>,
        due_denials: Arc<DueDenials>,
        catalogue: Arc<CurrentCatalog>,
        taken_over: Arc<TakenOverCalls>,
    ) -> Self {
        Self { node, intents, waits, due_denials, catalogue, taken_over }
    }

    /// Holds an escalated intent: see [`Waits::hold`]. The fleet stores its wait, unless it is a nested call.
    pub(super) async fn hold(&self, escalated: Escalated, loaded: &LoadedCatalog) -> Result<Held, Fault> {
        let intent = escalated.call().intent;
        let is_nested = escalated.call().parent.is_some();
        let held = self.waits.hold(escalated, loaded).await?;
        if let Held::New = held
            && !is_nested
        {
            self.store_new_wait(intent).await;
        }
        Ok(held)
    }

    /// Stores a wait that has begun.
    pub(super) async fn store_new_wait(&self, intent: IntentId) {
        let Some(fleet) = self.due_denials.fleet_of_waits() else { return };
        let store = async {
            while let Err(error) = skip_unreadable(intent, self.store_wait(fleet, intent, true).await) {
                tracing::debug!(%intent, %error, "an intent that waits here may not be stored yet");
                tokio::time::sleep(STORE_INTERVAL).await;
            }
        };
        // A check stores it later.
        drop(tokio::time::timeout(STORE_TIMEOUT, store).await);
    }

    async fn store_wait(&self, fleet: &Fleet, intent: IntentId, is_new: bool) -> Result<(), FleetError> {
        let escalated = self.intents.inspect(intent, |escalated, _| escalated.clone());
        let text = escalated.and_then(|escalated| escalated.to_journal().ok());
        let Some(text) = text.filter(|text| text.len() <= MAX_MESSAGE_BYTES) else { return Ok(()) };
        // Only a call that waits for a slot needs to say whether the governor was asked.
        let call = CallMessage { text, asked_governor: true };
        let state = fleet.waits.store(intent, call, is_new).await?;
        self.follow_wait_state(fleet, intent, state).await
    }

    async fn follow_wait_state(
        &self,
        fleet: &Fleet,
        intent: IntentId,
        state: WaitState,
    ) -> Result<(), FleetError> {
        match state {
            WaitState::Stored | WaitState::NotYet => Ok(()),
            WaitState::Claimed => self.end_claimed_wait(fleet, intent).await,
            WaitState::TakenBack => {
                self.waits.withdraw_undecided(intent, TAKEN_BACK).await;
                Ok(())
            }
        }
    }

    /// Ends the wait of an intent that another node has run or denied.
    async fn end_claimed_wait(&self, fleet: &Fleet, intent: IntentId) -> Result<(), FleetError> {
        match fleet.claims.find(intent).await?.map(|found| found.state) {
            Some(FoundState::Denied(_)) => {
                // The fault is the denial.
                let _denied = self.waits.check_denied_in_fleet(intent).await;
            }
            Some(FoundState::Ended(_)) => self.waits.withdraw_undecided(intent, RUN_ELSEWHERE).await,
            // An open claim may be released.
            Some(FoundState::Open) | None => {}
        }
        Ok(())
    }

    async fn check_waits(&self, fleet: &Fleet, count: u32) -> Result<(), FleetError> {
        if self.due_denials.deny_all().await.is_err() {
            return Err(FleetError::NotAnswered);
        }
        for intent in fleet.waits.stored() {
            self.remove_ended_wait(fleet, intent).await?;
        }
        for intent in self.intents.read(|intents| intents.waits.of_callers().collect::<Vec<_>>()) {
            skip_unreadable(intent, self.check_wait(fleet, intent, count).await)?;
        }
        Ok(())
    }

    async fn check_wait(&self, fleet: &Fleet, intent: IntentId, count: u32) -> Result<(), FleetError> {
        if !fleet.waits.is_stored(intent) {
            return self.store_wait(fleet, intent, false).await;
        }
        if fleet.waits.is_taken_over(intent) {
            let state = fleet.waits.check(intent).await?;
            return self.follow_wait_state(fleet, intent, state).await;
        }
        if count.is_multiple_of(CLAIM_CHECKS) { self.end_claimed_wait(fleet, intent).await } else { Ok(()) }
    }

    async fn remove_ended_wait(&self, fleet: &Fleet, intent: IntentId) -> Result<(), FleetError> {
        match self.intents.is_held(intent) {
            true => Ok(()),
            false => skip_unreadable(intent, fleet.waits.remove(intent).await),
        }
    }

    /// Returns `true` if the fleet stores a call that has waited for a slot at this node, or waits for a person at any.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(super) async fn may_still_wait(&self, intent: IntentId) -> Result<bool, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(false) };
        let may_wait = async {
            // The key of a wait that has ended here would only be removed by the next check.
            if fleet.waits.stored().contains(&intent) {
                self.remove_ended_wait(fleet, intent).await?;
            }
            Ok(fleet.calls.is_stored(intent).await? || fleet.waits.is_stored_anywhere(intent).await?)
        };
        may_wait.await.map_err(|error: FleetError| self.node.fleet_fault(&error))
    }

    /// Lets an intent of a lost node wait here.
    async fn hold_orphan(&self, fleet: &Fleet, OrphanCall { intent, from, call: passed }: OrphanCall) {
        let held = match Escalated::from_node(&passed) {
            Ok(escalated) => {
                let call = escalated.call();
                let span = trace::intent_span(&IntentSummary::from_call(call), call.door);
                self.hold_escalated_orphan(escalated).instrument(span).await
            }
            Err(error) => Err(Fault::Internal(error.to_string())),
        };
        let result = match held {
            Ok(()) => {
                tracing::info!(%intent, %from, "the intent waited at a node that is lost or has left, and waits here now");
                Ok(())
            }
            // An operator has stopped it, or somebody has denied it.
            Err(Fault::Refused { blocked_by: BlockedBy::Stopped | BlockedBy::VerdictDenied, .. }) => {
                fleet.waits.remove(intent).await
            }
            Err(fault) => {
                tracing::debug!(%intent, %from, ?fault, "an intent of a lost node cannot wait here");
                fleet.waits.give_up(intent).await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%intent, %error, "an intent that does not wait here is stored as waiting here");
        }
    }

    async fn hold_escalated_orphan(&self, escalated: Escalated) -> Result<(), Fault> {
        let call = escalated.call();
        let loaded = self.catalogue.find(call)?;
        self.taken_over.add(call.intent, TakenOverCall::from(call));
        self.hold(escalated, &loaded).await.map(drop)
    }

    /// Returns `true` if this node has room for an intent, and could run it as it was shown.
    fn can_hold(&self, escalated: &Escalated) -> bool {
        let call = escalated.call();
        let Ok(loaded) = self.catalogue.find(call) else { return false };
        let module = loaded.usable_tool(&call.tool).map(|tool| tool.descriptor.digest);
        module.is_some() && module == escalated.module() && self.intents.has_room(&call.agent)
    }
}

impl Membership {
    /// Decides what becomes of a stored call of a lost node.
    pub(super) fn decide_on_takeover(&self, waits_for: WaitsFor, passed: &PassedCall) -> Takeover {
        match waits_for {
            // A node that ends would have to be replaced too.
            WaitsFor::Slot | WaitsFor::Person if self.slots.is_closed() => Takeover::Leave,
            WaitsFor::Slot => Takeover::Take,
            WaitsFor::Person => match Escalated::from_node(passed) {
                Ok(escalated) if !escalated.is_pending(self.clock.now()) => Takeover::Remove,
                Ok(escalated) if self.stored_waits.can_hold(&escalated) => Takeover::Take,
                // Such as a call of a later version.
                Ok(_) | Err(_) => Takeover::Leave,
            },
        }
    }

    /// Keeps what waits here stored, and lets the intents of lost nodes wait here, until the sessions end.
    pub(super) async fn keep_waits_stored(self: Arc<Self>, fleet: Arc<Fleet>) {
        if !self.passing.is_enabled {
            return;
        }
        // As the sweep, which finds what a lost node has left.
        let mut checks = tokio::time::interval(fleet.member.lease_times().sweep());
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut count = 0_u32;
        loop {
            tokio::select! {
                _ = checks.tick() => {
                    count = count.wrapping_add(1);
                    self.call_store.forget_ended_calls();
                    if fleet.member.may_run() && let Err(error) = self.stored_waits.check_waits(&fleet, count).await {
                        tracing::debug!(%error, "the fleet may not store all that waits here yet");
                    }
                }
                orphan = fleet.calls.next_orphan(WaitsFor::Person) => self.stored_waits.hold_orphan(&fleet, orphan).await,
            }
        }
    }
}

/// Reads a stored wait, and whether its holder runs; `None` if it was removed, or another version or no node wrote it.
async fn read_stored_wait(fleet: &Fleet, key: &str) -> Result<Option<(Escalated, bool)>, FleetError> {
    match fleet.waits.read(key).await {
        Ok(Some(StoredWait { call, has_live_holder })) => {
            Ok(Escalated::from_node(&call).ok().map(|escalated| (escalated, has_live_holder)))
        }
        Ok(None) | Err(FleetError::Value { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Passes over an intent whose value another version wrote, or no node.
fn skip_unreadable(intent: IntentId, result: Result<(), FleetError>) -> Result<(), FleetError> {
    match result {
        Err(error @ FleetError::Value { .. }) => {
            tracing::debug!(%intent, %error, "the stored value of an intent cannot be read");
            Ok(())
        }
        result => result,
    }
}
