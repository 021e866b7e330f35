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

mod decide;
mod follow;
mod stored_approval;

pub(super) use a2g_fleet::PendingIntent;
pub(super) use decide::QueuedDenial;
pub(super) use follow::ReadState;

use super::IntentState;
use super::current_catalog::CurrentCatalog;
use super::due_ends::DueEnds;
use super::engine::passing::Passing;
use super::faults::{busy_fault, intent_conflict_fault};
use super::fleet::Node;
use super::open_intents::OpenIntents;
use super::policies::Policies;
use super::waits::{Held, Waits};
use a2g_fleet::{Decision, FleetError, WaitsFor};
use a2g_govern::{Escalated, VerifiedVerdict};
use a2g_intent::Wait;
use a2g_journal::RunRecord;
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::tool::Digest;
use follow::StoreReply;
use std::sync::Arc;
use std::time::Duration;

/// The time after which the caller of an intent that waits here is answered, although no server has stored the intent.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two attempts to store it.
const STORE_INTERVAL: Duration = Duration::from_millis(200);
/// The recorded reason for an intent that another node has run.
pub(super) const RUN_ELSEWHERE: &str = "another node of the fleet has run it";
/// The recorded reason why an approval no longer counts.
pub(super) const WIDER_THAN_SHOWN: &str =
    "its run would get more than its approvers were shown, so it waits for a person again";

/// Returns `true` if an intent no longer waits here because another node of the fleet has run it: its end is not in this
/// journal.
#[must_use]
pub fn has_run_elsewhere(record: &RunRecord) -> bool {
    // The task of the intent is written later.
    let last = record.events.iter().rfind(|event| event.kind != "task").and_then(|event| event.by.as_deref());
    last == Some(RUN_ELSEWHERE)
}

/// The call of a pending intent.
pub(super) enum WaitingCall {
    /// It waits for a slot, with its verdict.
    Queued(Box<(Call, VerifiedVerdict)>),
    /// It waits for a person.
    Escalated(Box<Escalated>),
}

/// Reads the call of a pending intent; `None` if another version wrote it.
pub(super) fn read_call(stored: &PendingIntent) -> Option<WaitingCall> {
    let read = match stored.waits_for() {
        WaitsFor::Slot => VerifiedVerdict::from_node(&stored.call()).map(Box::new).map(WaitingCall::Queued),
        WaitsFor::Person => Escalated::from_node(&stored.call()).map(Box::new).map(WaitingCall::Escalated),
    };
    read.inspect_err(
        |error| tracing::debug!(intent = %stored.intent, %error, "a call of another version waits"),
    )
    .ok()
}

/// The pending intents. The fields are open to the module that makes them, and used by no other.
pub(super) struct Pending {
    pub(super) node: Arc<Node>,
    pub(super) passing: Arc<Passing>,
    pub(super) intents: Arc<OpenIntents>,
    pub(super) waits: Arc<Waits>,
    pub(super) due_ends: Arc<DueEnds>,
    pub(super) policies: Arc<Policies>,
    pub(super) catalog: Arc<CurrentCatalog>,
    pub(super) read: ReadState,
}

impl Pending {
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
                    Err(error) => tracing::debug!(%intent, %error, "what waits here may not be stored yet"),
                }
                tokio::time::sleep(STORE_INTERVAL).await;
            }
        };
        match tokio::time::timeout(STORE_TIMEOUT, store).await {
            Ok(StoreReply::OtherCall) => Err(intent_conflict_fault(intent)),
            Ok(StoreReply::Ended) => {
                Err(busy_fault("another node has decided on the intent meanwhile: send it again for its end"))
            }
            // A look stores it later if no server has answered.
            Ok(StoreReply::Stored(_) | StoreReply::NotStored) | Err(_) => Ok(held),
        }
    }

    /// Writes an intent that another node has stored to the journal, before a decision on it.
    pub(super) async fn record_hold(&self, escalated: &Escalated) -> Result<(), Fault> {
        let intent = escalated.call().intent;
        let is_recorded =
            self.intents.read(|intents| intents.waits.get(intent).is_none_or(Wait::is_recorded));
        if is_recorded { Ok(()) } else { self.waits.record_hold(escalated).await }
    }

    /// Returns `true` if the fleet stores an intent that is held here. It does not store one that is too large.
    fn is_stored(&self, intent: IntentId) -> bool {
        self.intents.read(|intents| intents.waits.get(intent).is_some_and(Wait::is_stored))
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
    pub(super) async fn find_call(&self, intent: IntentId) -> Result<Option<(Call, IntentState)>, Fault> {
        let Some(stored) = self.refresh(intent).await? else { return Ok(None) };
        Ok(match read_call(&stored) {
            Some(WaitingCall::Escalated(escalated)) if escalated.is_in_time(self.node.now()) => {
                let state = match stored.decision() {
                    Some(Decision::Approved { .. }) => IntentState::Queued,
                    Some(Decision::Denied { .. }) | None => IntentState::Escalated,
                };
                Some((escalated.call().clone(), state))
            }
            Some(WaitingCall::Queued(queued)) => Some((queued.0, IntentState::Queued)),
            Some(WaitingCall::Escalated(_)) | None => None,
        })
    }
}
