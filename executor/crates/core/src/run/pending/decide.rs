//! The decisions of this node on pending intents, and the decided intents that it runs.

use super::stored_approval::{read_approval, write_approval, write_partial_approval};
use super::{Pending, WaitingCall, read_call};
use crate::run::AgentFilter;
use crate::run::approval_rules::PartialApproval;
use crate::run::faults::busy_fault;
use crate::run::fleet::FleetDenial;
use crate::run::preview::changed_fault;
use crate::run::waits::not_waiting_fault;
use a2g_fleet::{Change, Decision, FleetError, PendingIntent};
use a2g_govern::Escalated;
use a2g_intent::WaitId;
use a2g_journal::Approval;
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::outcome::AbortReason;

/// The maximum number of times that an intent is read again because another node has changed it.
const MAX_TRIES: usize = 8;

/// The result of denying a call that waits for a slot.
pub(in crate::run) enum QueuedDenial {
    /// The call runs at no node.
    Denied,
    /// The intent waits for a person, its agent is not selected, or a node has claimed it.
    Kept,
    /// The fleet does not store the intent as waiting.
    NotPending,
}

impl Pending {
    /// Changes an intent as it was read. Returns `None` if somebody else has changed it or decided meanwhile.
    ///
    /// # Errors
    /// [`Fault::Busy`] if the fleet cannot be reached: the change may have been made.
    async fn change(&self, stored: &PendingIntent, change: Change) -> Result<Option<PendingIntent>, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(Some(stored.clone())) };
        let changed = fleet.pending.change(stored, change).await.map_err(|error| self.fault(&error))?;
        if let Some(changed) = &changed {
            self.intents
                .update(|intents| intents.waits.fleet().note_revision(changed.intent, changed.revision()));
        }
        Ok(changed)
    }

    /// As [`Self::change`], for a person who was shown the intent as it was read.
    ///
    /// # Errors
    /// As [`Self::change`], and if somebody else has changed it or decided meanwhile.
    async fn change_shown(&self, stored: &PendingIntent, change: Change) -> Result<PendingIntent, Fault> {
        self.change(stored, change).await?.ok_or_else(changed_fault)
    }

    /// Decides that an intent may run, as it was read. `is_run_here` is `true` if this node runs it first.
    ///
    /// # Errors
    /// As for [`Self::change_shown`].
    pub(in crate::run) async fn approve(
        &self,
        stored: &PendingIntent,
        approval: &Approval,
        is_run_here: bool,
    ) -> Result<(), Fault> {
        let node = self.node.name().filter(|_| is_run_here).cloned();
        let approval = write_approval(approval)?;
        self.change_shown(stored, Change::Decide(Decision::Approved { node, approval })).await?;
        self.check_unclaimed(stored.intent).await
    }

    /// Checks, after an approval is stored, that the intent has no claim: its value may have come back, or have been written
    /// by a node that did not know of the end.
    async fn check_unclaimed(&self, intent: IntentId) -> Result<(), Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(()) };
        let is_unclaimed = self.remove_if_ended(fleet, intent).await.map_err(|error| self.fault(&error))?;
        if is_unclaimed { Ok(()) } else { Err(not_waiting_fault()) }
    }

    /// Adds an approval of an intent that needs more of them, as it was read.
    ///
    /// # Errors
    /// As for [`Self::change_shown`].
    pub(in crate::run) async fn add_approval(
        &self,
        stored: &PendingIntent,
        approval: &PartialApproval,
    ) -> Result<(), Fault> {
        let approval = write_partial_approval(approval, &self.policies.callers().load())?;
        let without_approvals = match self.must_forget() && stored.has_approvals() {
            true => Some(self.change_shown(stored, Change::ForgetApprovals).await?),
            false => None,
        };
        let stored = without_approvals.as_ref().unwrap_or(stored);
        self.change_shown(stored, Change::AddApproval(approval)).await?;
        self.check_unclaimed(stored.intent).await
    }

    /// Forgets the approvals of an intent that needs more of them, if this node has just forgotten them. If the fleet cannot
    /// be reached, the next approval is compared with them again.
    pub(in crate::run) async fn forget_approvals_of(&self, stored: &PendingIntent) {
        let is_forgotten_here = self.intents.partial_approvals(stored.intent, |_| true).is_empty();
        if is_forgotten_here && stored.has_approvals() {
            let _compared_again = self.change(stored, Change::ForgetApprovals).await;
        }
    }

    /// Lets an approved intent wait for a person again. Returns `false` if its approval was withdrawn before, or if the
    /// fleet cannot be reached.
    pub(in crate::run) async fn wait_again(&self, intent: IntentId, number: u64) -> bool {
        let Some(fleet) = self.node.fleet().filter(|_| self.is_stored(intent)) else { return true };
        let Ok(Some(stored)) = fleet.pending.read(intent).await else { return false };
        let again = Change::WaitAgain { number: number.wrapping_add(1) };
        stored.is_approved(number) && matches!(self.change(&stored, again).await, Ok(Some(_)))
    }

    /// Decides that an intent never runs. Its denial has to take the claim afterwards.
    ///
    /// # Errors
    /// If somebody has approved the intent; [`Fault::Busy`] if the fleet cannot be reached: it may be denied.
    pub(in crate::run) async fn deny(&self, intent: IntentId, denial: &FleetDenial) -> Result<(), Fault> {
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
            if self.change(&stored, Change::Decide(decision)).await?.is_some() {
                return Ok(());
            }
        }
        Err(changed_fault())
    }

    /// Denies a call that waits for a slot without its caller, at whichever node, if `filter` selects its agent.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(in crate::run) async fn deny_queued(
        &self,
        intent: IntentId,
        filter: AgentFilter<'_>,
        reason: AbortReason,
    ) -> Result<QueuedDenial, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(QueuedDenial::NotPending) };
        let read = fleet.pending.read(intent).await.map_err(|error| self.fault(&error))?;
        let Some(stored) = read.filter(|_| !self.due_ends.contains(intent)) else {
            return Ok(QueuedDenial::NotPending);
        };
        let Some(WaitingCall::Queued(queued)) = read_call(&stored) else { return Ok(QueuedDenial::Kept) };
        let call = &queued.0;
        if !filter(&call.agent) || !self.node.withdraw_in_fleet(fleet, call, reason).await? {
            return Ok(QueuedDenial::Kept);
        }
        self.due_ends.note_removal(intent);
        // A look repeats it.
        let _removed = self.due_ends.finish(intent).await;
        Ok(QueuedDenial::Denied)
    }

    /// The approval of a decided intent, if this node has to run it now. Completes a denial whose node was lost.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(in crate::run) async fn follow_decision(&self, intent: IntentId) -> Result<Option<Approval>, Fault> {
        let (Some(fleet), Some(stored)) = (self.node.fleet(), self.refresh(intent).await?) else {
            return Ok(None);
        };
        let unavailable = |error: FleetError| self.fault(&error);
        if !self.remove_if_ended(fleet, intent).await.map_err(unavailable)? {
            return Ok(None);
        }
        let Some(WaitingCall::Escalated(escalated)) = read_call(&stored) else { return Ok(None) };
        match stored.decision() {
            None => Ok(None),
            Some(Decision::Denied { denial }) => {
                let denial = FleetDenial::read(denial)?;
                self.node.deny_in_fleet(fleet, escalated.call(), &denial).await.map(|_denied| None)
            }
            Some(Decision::Approved { node, approval }) => {
                let is_left = match node {
                    Some(node) if node != fleet.member.node() => {
                        !fleet.member.is_running(node).await.map_err(unavailable)?
                    }
                    Some(_) | None => true,
                };
                let is_run_here = is_left && self.runs_here(&escalated, Some(&stored));
                is_run_here.then(|| read_approval(approval)).transpose()
            }
        }
    }

    /// Returns `true` if this node runs an approved intent itself. In a fleet, it leaves those to the others whose tool it
    /// lacks, and those that only their own node may run.
    pub(in crate::run) fn runs_here(&self, escalated: &Escalated, stored: Option<&PendingIntent>) -> bool {
        let (Some(fleet), Some(stored)) = (self.node.fleet(), stored) else { return true };
        let call = escalated.call();
        let loaded = self.catalog.current();
        if stored.node() == fleet.member.node() {
            // If its tool was replaced or is broken, the approver is told.
            return loaded.catalog.get(&call.tool).is_some() || !self.passing.is_enabled;
        }
        let module = loaded.usable_tool(&call.tool).map(|tool| tool.descriptor.digest);
        let has_module = module.is_some() && (escalated.module().is_none() || escalated.module() == module);
        has_module && self.passing.is_enabled && stored.may_run_anywhere()
    }

    /// Returns `true` if an intent that was taken for a run is still approved, as far as the fleet can be asked.
    pub(in crate::run) async fn may_still_run(&self, intent: IntentId, taken: WaitId) -> bool {
        let Some(fleet) = self.node.fleet() else { return true };
        match fleet.pending.read(intent).await {
            Ok(Some(stored)) => stored.is_approved(taken.number()),
            Ok(None) => !self.is_stored(intent),
            Err(_) => true,
        }
    }

    /// Checks, after the claim of an approved intent, that it is still approved.
    ///
    /// # Errors
    /// [`Fault::Busy`]: it must not run.
    pub(in crate::run) async fn check_claimed(&self, intent: IntentId, taken: WaitId) -> Result<(), Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(()) };
        match fleet.pending.may_run(intent, taken.number()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(busy_fault("the approval of the intent was withdrawn before it ran")),
            Err(error) => Err(self.fault(&error)),
        }
    }
}
