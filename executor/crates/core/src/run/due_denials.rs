//! The cancelled, revoked and stopped intents that have waited here, until they are denied at all nodes of the fleet, so
//! that none of them waits at another one later.

use super::engine::passing::Passing;
use super::faults::busy_fault;
use super::fleet::{Fleet, Node};
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::outcome::AbortReason;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The intents for which a denial at all nodes is due.
pub(super) struct DueDenials {
    calls: Mutex<HashMap<IntentId, (Arc<Call>, AbortReason)>>,
    node: Arc<Node>,
    passing: Arc<Passing>,
}

impl DueDenials {
    pub(super) fn new(node: Arc<Node>, passing: Arc<Passing>) -> Self {
        Self { calls: Mutex::default(), node, passing }
    }

    fn get(&self, intent: IntentId) -> Option<(Arc<Call>, AbortReason)> {
        self.calls.lock().get(&intent).cloned()
    }

    /// The fleet, if it stores what waits here.
    pub(super) fn fleet_of_waits(&self) -> Option<&Arc<Fleet>> {
        self.node.fleet().filter(|_| self.passing.is_enabled)
    }

    /// Notes that a call that was cancelled, revoked or stopped has to be denied at all nodes, so that it waits at no other
    /// one later.
    // Called under the lock of the intents: no intent stops waiting without the note.
    pub(super) fn note(&self, call: &Call, reason: AbortReason) {
        let Some(fleet) = self.fleet_of_waits() else { return };
        // A stop is in force at all nodes; but the own node of an intent that was taken over has it too, and could let it
        // wait again after the stop is lifted.
        let is_due = reason != AbortReason::Stopped || fleet.waits.is_taken_over(call.intent);
        if is_due && call.parent.is_none() {
            self.calls.lock().insert(call.intent, (Arc::new(call.clone()), reason));
        }
    }

    /// Denies a cancelled, revoked or stopped intent at all nodes, if that is due. Returns `false` if a node has claimed it before.
    ///
    /// # Errors
    /// If the fleet cannot be reached: a check repeats it.
    pub(super) async fn deny_if_due(&self, intent: IntentId) -> Result<bool, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(true) };
        let Some((call, reason)) = self.get(intent) else { return Ok(true) };
        let Ok(is_denied) = self.node.withdraw_in_fleet(fleet, &call, reason).await else {
            return Err(busy_fault(
                "the intent no longer waits here, but the fleet does not know it yet, and is told as soon as a server \
                 answers: until then, it would wait at another node if this one were lost",
            ));
        };
        self.calls.lock().remove(&intent);
        Ok(is_denied)
    }

    /// Denies all intents at all nodes for which that is due.
    ///
    /// # Errors
    /// If the fleet cannot be reached: a check repeats it.
    pub(super) async fn deny_all(&self) -> Result<(), Fault> {
        let due = self.calls.lock().keys().copied().collect::<Vec<_>>();
        for intent in due {
            self.deny_if_due(intent).await?;
        }
        Ok(())
    }
}
