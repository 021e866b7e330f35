//! The intents that no longer wait, as far as this node is concerned, until the fleet has their ends: a cancelled, revoked
//! or stopped one has to be denied at all nodes, and the value of one that has run or expired has to be removed.

use super::faults::busy_fault;
use super::fleet::{Fleet, Node};
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::outcome::AbortReason;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// An end that the fleet does not have yet.
#[derive(Debug, Clone)]
enum DueEnd {
    /// The intent must never run.
    Denial(Arc<Call>, AbortReason),
    /// The intent has its end, or has expired.
    Removal,
}

/// The ends that the fleet does not have yet.
pub(super) struct DueEnds {
    ends: Mutex<HashMap<IntentId, DueEnd>>,
    node: Arc<Node>,
}

impl DueEnds {
    pub(super) fn new(node: Arc<Node>) -> Self {
        Self { ends: Mutex::default(), node }
    }

    /// Notes that a call that was cancelled, revoked or stopped has to be denied at all nodes.
    // Called under the lock of the intents: no intent stops waiting without the note.
    pub(super) fn note_denial(&self, call: &Call, reason: AbortReason) {
        if self.node.fleet().is_some() {
            self.ends.lock().insert(call.intent, DueEnd::Denial(Arc::new(call.clone()), reason));
        }
    }

    /// Notes that an intent waits no longer, and need not be denied.
    pub(super) fn note_removal(&self, intent: IntentId) {
        if self.node.fleet().is_some() {
            self.ends.lock().entry(intent).or_insert(DueEnd::Removal);
        }
    }

    /// Returns `true` if the value of an intent says nothing any more.
    pub(super) fn contains(&self, intent: IntentId) -> bool {
        self.ends.lock().contains_key(&intent)
    }

    /// Tells the fleet of the end of an intent, if that is due. Returns `false` if a node had claimed an intent that has to
    /// be denied.
    ///
    /// # Errors
    /// If the fleet cannot be reached: a look repeats it.
    pub(super) async fn finish(&self, intent: IntentId) -> Result<bool, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(true) };
        let Some(end) = self.ends.lock().get(&intent).cloned() else { return Ok(true) };
        let told = self.tell(fleet, intent, end).await;
        told.map_err(|_fault| {
            busy_fault(
                "the intent no longer waits here, but the fleet does not know it yet, and is told as soon as a server \
                 answers: until then, it may wait at the other nodes",
            )
        })
    }

    async fn tell(&self, fleet: &Fleet, intent: IntentId, end: DueEnd) -> Result<bool, Fault> {
        let is_denied = match end {
            DueEnd::Denial(call, reason) => self.node.withdraw_in_fleet(fleet, &call, reason).await?,
            DueEnd::Removal => true,
        };
        if is_denied {
            // The denial is stored, so only the removal is still due if this fails.
            self.ends.lock().insert(intent, DueEnd::Removal);
            fleet.pending.remove(intent).await.map_err(|error| self.node.fleet_fault(&error))?;
        }
        self.ends.lock().remove(&intent);
        Ok(is_denied)
    }

    /// Tells the fleet of all ends that are due.
    ///
    /// # Errors
    /// As for [`Self::finish`].
    pub(super) async fn finish_all(&self) -> Result<(), Fault> {
        let due = self.ends.lock().keys().copied().collect::<Vec<_>>();
        let mut result = Ok(());
        for intent in due {
            result = self.finish(intent).await.map(drop).and(result);
        }
        result
    }
}
