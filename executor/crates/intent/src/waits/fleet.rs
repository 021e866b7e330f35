//! The stored waits of the fleet, as this process follows them.

use super::wait::{Phase, Wait, WaitId};
use super::{Changes, HeldCall, Waits};
use crate::content::Content;
use a2g_types::ident::IntentId;
use a2g_types::node::NodeName;

/// The stored wait of an intent in the fleet.
#[derive(Debug)]
pub struct StoredWait<C: Content> {
    /// The wait, as it began.
    pub wait: Wait<C>,
    /// The node at which the intent arrived; `None` for this one.
    pub home: Option<NodeName>,
    /// The revision of the value.
    pub revision: u64,
    /// The number of the wait.
    pub number: u64,
    /// The approvals so far of an intent that needs more of them.
    pub partial_approvals: Vec<C::PartialApproval>,
    /// `true` once somebody has decided.
    pub is_decided: bool,
}

/// The steps of [`Waits`] that follow the fleet. Each ends this view.
#[derive(Debug)]
pub struct FleetWaits<'a, C: Content>(&'a mut Waits<C>);

impl<C: Content> Waits<C> {
    /// The waits, to follow what the fleet stores of them.
    pub fn fleet(&mut self) -> FleetWaits<'_, C> {
        FleetWaits(self)
    }
}

impl<'a, C: Content> FleetWaits<'a, C> {
    /// Restores the wait of an earlier process, of which the fleet stores whether somebody has decided.
    pub fn restore(self, intent: IntentId, wait: Wait<C>) {
        self.0.insert(intent, Wait { phase: Phase::Decided, ..wait });
    }

    /// Follows what the fleet stores of a wait, unless a later value is known. Returns `false` if it has to be followed later,
    /// because a task of this process decides on the intent or runs it: that task finds the change itself.
    pub fn follow(self, intent: IntentId, stored: StoredWait<C>) -> bool {
        let StoredWait { wait: new, home, revision, number, partial_approvals, is_decided } = stored;
        let phase = if is_decided { Phase::Decided } else { Phase::Undecided };
        let Some(wait) = self.0.by_intent.get_mut(&intent) else {
            let is_recorded = false;
            let wait = Wait { home, revision, is_recorded, number, phase, partial_approvals, ..new };
            self.0.by_intent.insert(intent, wait);
            self.0.note(Changes::List);
            return true;
        };
        if revision < wait.revision || !wait.is_idle() {
            return revision <= wait.revision;
        }
        let is_changed = wait.is_decided() != is_decided
            || wait.number != number
            || wait.partial_approvals.len() != partial_approvals.len();
        wait.home = home;
        wait.revision = revision;
        wait.number = number;
        wait.phase = phase;
        wait.partial_approvals = partial_approvals;
        if is_changed {
            self.0.note(Changes::Waits);
        }
        true
    }

    /// Notes the revision of a value that this process has written or found.
    pub fn note_revision(self, intent: IntentId, revision: u64) {
        if let Some(wait) = self.0.by_intent.get_mut(&intent) {
            wait.revision = wait.revision.max(revision);
        }
    }

    /// Takes a decided intent for a run: see [`Wait::is_decided`].
    pub fn take_decided(self, intent: IntentId) -> Option<HeldCall<'a, C>> {
        let wait = self.0.by_intent.get_mut(&intent).filter(|wait| wait.is_decided())?;
        wait.phase = Phase::Retrying;
        Some((&wait.call, wait.id(intent, self.0.forget_count)))
    }

    /// Leaves a taken intent to what the fleet stores of it. The next [`Self::follow`] says whether it is decided.
    pub fn leave(self, taken: WaitId) {
        self.0.change(taken, |wait| wait.phase = Phase::Decided);
    }

    /// Notes that the journal of this executor has a wait.
    pub fn mark_recorded(self, intent: IntentId) {
        if let Some(wait) = self.0.by_intent.get_mut(&intent) {
            wait.is_recorded = true;
        }
    }

    /// Notes that the journal of this executor no longer has the wait of an intent whose decision was withdrawn by the value
    /// with this revision. Returns its call.
    pub fn mark_unrecorded(self, intent: IntentId, revision: u64) -> Option<&'a C::Call> {
        let is_withdrawn =
            |wait: &&mut Wait<C>| wait.is_decided() && wait.is_recorded && wait.revision < revision;
        let wait = self.0.by_intent.get_mut(&intent).filter(is_withdrawn)?;
        wait.is_recorded = false;
        Some(&wait.call)
    }
}
