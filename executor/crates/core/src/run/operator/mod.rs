//! The decisions of operators, governors and people, other than those on one waiting intent and on stops: cancellations,
//! revocations and standing policies.

mod approved_runs;
pub(super) mod decisions;
mod stops;

use super::change_sets::ChangeSets;
use super::claims::Claims;
use super::compile_waits::CompileWaits;
use super::current_catalog::CurrentCatalog;
use super::due_ends::DueEnds;
use super::faults::unsaved_decision_fault;
use super::fleet::{Fleet, Node};
use super::open_intents::OpenIntents;
use super::orders::{EndKind, finish_order};
use super::pending::{Pending, QueuedDenial};
use super::policies::Policies;
use super::preview::Previews;
use super::questions::Peers;
use super::refusals::Refusals;
use super::slots::Slots;
use super::tool_sessions::ToolSessions;
use super::wait_records::EndOfWait;
use super::waits::{EndedIntents, Waits};
use super::{AgentFilter, CallFilter, Engine, ExecutorSettings, Parts, all_agents};
use crate::run::engine::stored_calls::{CallStore, StoredCalls};
use a2g_intent::{AbortEffect, Ended, EndedAll, Scope};
use a2g_journal::{Decisions, JournalError, Resolution};
use a2g_types::clock::Clock;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::AbortReason;
use a2g_types::session::SessionEnd;
use a2g_types::verdict::Policy;
use std::sync::Arc;
use std::time::Duration;

/// The recorded reason why a cancelled intent did not run.
const CANCELLED: &str = "it was cancelled while it waited for a person";
/// The recorded reason why a revoked intent did not run.
const REVOKED: &str = "it was revoked while it waited for a person";
/// The time between two requests for the claim of a call that was passed on.
const CLAIM_INTERVAL: Duration = Duration::from_millis(20);

/// The acts of operators, governors and people: decide, cancel, revoke, stop, resume, and set policies.
pub struct Operator {
    settings: Arc<ExecutorSettings>,
    catalogue: Arc<CurrentCatalog>,
    policies: Arc<Policies>,
    refusals: Arc<Refusals>,
    decisions: Arc<Decisions>,
    node: Arc<Node>,
    peers: Arc<Peers>,
    stored_calls: Arc<StoredCalls>,
    due_ends: Arc<DueEnds>,
    pending: Arc<Pending>,
    waits: Arc<Waits>,
    slots: Arc<Slots>,
    compile_waits: CompileWaits,
    intents: Arc<OpenIntents>,
    clock: Arc<dyn Clock>,
    engine: Arc<Engine>,
    previews: Arc<Previews>,
    changes: Arc<ChangeSets>,
    claims: Arc<Claims>,
    call_store: Arc<CallStore>,
    tool_sessions: Arc<ToolSessions>,
}

impl Operator {
    pub(super) fn new(
        parts: &Parts,
        engine: Arc<Engine>,
        previews: Arc<Previews>,
        changes: Arc<ChangeSets>,
        claims: Arc<Claims>,
        call_store: Arc<CallStore>,
    ) -> Self {
        Self {
            settings: Arc::clone(&parts.settings),
            catalogue: Arc::clone(&parts.catalogue),
            policies: Arc::clone(&parts.policies),
            refusals: Arc::clone(&parts.refusals),
            decisions: Arc::clone(&parts.journal.decisions),
            node: Arc::clone(&parts.node),
            peers: Arc::clone(&parts.peers),
            stored_calls: Arc::clone(&parts.stored_calls),
            due_ends: Arc::clone(&parts.due_ends),
            pending: Arc::clone(&parts.pending),
            waits: Arc::clone(&parts.waits),
            slots: Arc::clone(&parts.slots),
            compile_waits: parts.compile_waits.clone(),
            intents: Arc::clone(&parts.intents),
            clock: Arc::clone(&parts.clock),
            engine,
            previews,
            changes,
            claims,
            call_store,
            tool_sessions: Arc::clone(&parts.tool_sessions),
        }
    }

    /// Sets the standing policy of an agent, or of every agent, on behalf of `by`, at all nodes of the fleet.
    ///
    /// # Errors
    /// If the other nodes of the fleet cannot be told; the policy is in force at this executor nevertheless.
    pub async fn set_policy(&self, policy: Policy, by: &str) -> Result<(), Fault> {
        let origin = self.policies.origin(by);
        let order = self.node.start_policy_order(policy.agent.as_ref(), Some(&policy), &origin);
        self.policies.set(policy, origin);
        finish_order(order).await
    }

    /// Cancels a running or waiting intent of the selected agents, on behalf of `by`, or discards its file changes if they
    /// wait for a decision. Returns `false` if there is no such intent: also if a commit was sending its requests, which
    /// ends the sending.
    ///
    /// # Errors
    /// If the cancellation is not on the disk yet; the intent is cancelled nevertheless.
    pub async fn cancel(&self, intent: IntentId, filter: AgentFilter<'_>, by: &str) -> Result<bool, Fault> {
        if self.changes.has_open(intent, filter) {
            return self.changes.revoke(intent, filter, by).await;
        }
        if self.cancel_here(intent, filter, by).await? {
            // The caller may have sent the same call to another node too, and that claimed it first.
            if let Ok(true) = self.node.is_running_elsewhere(intent, filter).await {
                return self.end_elsewhere(intent, filter, by, EndKind::Cancellation).await;
            }
            return Ok(true);
        }
        // The fleet may store it as waiting, and this node has not followed that yet.
        if self.pending.refresh(intent).await?.is_some() && self.cancel_here(intent, filter, by).await? {
            return Ok(true);
        }
        // The last attempt here finds a call that another node has given back meanwhile.
        Ok(self.end_elsewhere(intent, filter, by, EndKind::Cancellation).await?
            || self.cancel_here(intent, filter, by).await?)
    }

    /// Ends an intent of any agent at this executor only. Returns `false` if there is no such intent.
    pub(super) async fn end_here(&self, intent: IntentId, by: &str, kind: EndKind) -> Result<bool, Fault> {
        match kind {
            EndKind::Cancellation => self.cancel_here(intent, &all_agents, by).await,
            EndKind::Revocation => Ok(self.revoke_here(None, Some(intent), by, Scope::ThisNode).await? > 0),
        }
    }

    /// As [`Self::cancel`], at this executor only.
    async fn cancel_here(&self, intent: IntentId, filter: AgentFilter<'_>, by: &str) -> Result<bool, Fault> {
        self.stored_calls.withdraw(intent, filter, AbortReason::Cancelled);
        let is_selected = |waiting, agent: &AgentDid, _: &ToolName| waiting == intent && filter(agent);
        // The callers of these are refused, which is recorded. They may be repeats of an intent that waits or runs.
        let was_compiling = self.compile_waits.end(is_selected, AbortReason::Cancelled) > 0;
        let end = EndOfWait {
            resolution: Resolution::Cancelled,
            author_or_reason: by,
            blocked_by: Some(BlockedBy::EscalationPending),
            reason: CANCELLED,
        };
        let result = match self.waits.end_open(intent, filter, AbortReason::Cancelled, end) {
            Some(Ended::Wait(recording)) => recording.await.map(drop),
            Some(Ended::Run(AbortEffect::First)) => {
                self.decisions.record_stop(&[intent], by, "a2g/cancel").await
            }
            // The journal has the caller that ended it first.
            Some(Ended::Run(AbortEffect::Repeated)) => Ok(()),
            // Its guest has ended, and its changes have not taken effect.
            None if self.changes.withdraw(intent, filter, AbortReason::Cancelled) => {
                self.decisions.record_stop(&[intent], by, "a2g/cancel").await
            }
            Some(Ended::Run(AbortEffect::Elsewhere)) | None => {
                let ended =
                    self.call_store.end_unclaimed_call(intent, filter, AbortReason::Cancelled).await?;
                return Ok(ended || was_compiling);
            }
        };
        if !self.due_ends.finish(intent).await? {
            return Ok(false);
        }
        self.call_store.await_end(intent).await?;
        result.map(|()| true).map_err(|error| unsaved_decision_fault(&error))
    }

    /// Revokes the standing policies of an agent, and its runs and waiting intents, or one intent, on behalf of `by`.
    /// Without an agent and an intent, the revocation covers all agents. Returns the number of runs and waiting intents.
    ///
    /// # Errors
    /// If the revocation is not on the disk yet; all intents are revoked nevertheless.
    pub async fn revoke(
        &self,
        agent: Option<&AgentDid>,
        intent: Option<IntentId>,
        by: &str,
    ) -> Result<usize, Fault> {
        let Some(intent) = intent else {
            let order = self.node.start_policy_order(agent, None, &self.policies.origin(by));
            let count = self.revoke_here(agent, None, by, Scope::Fleet).await;
            finish_order(order).await?;
            self.pending.refresh_all().await;
            let is_included = |owner: &AgentDid, _: &ToolName| agent.is_none_or(|agent| agent == owner);
            let later = self.end_later_waits(&is_included, AbortReason::Revoked, revoked_by(by)).await?;
            return count.map(|count| count + later);
        };
        let is_included = |owner: &AgentDid| agent.is_none_or(|agent| agent == owner);
        let mut count = self.revoke_here(agent, Some(intent), by, Scope::Fleet).await?;
        // As in `cancel`.
        if count == 0 && self.pending.refresh(intent).await?.is_some() && self.intents.is_held(intent) {
            count = self.revoke_here(agent, Some(intent), by, Scope::Fleet).await?;
        }
        if count > 0 {
            // As in `cancel`.
            if let Ok(true) = self.node.is_running_elsewhere(intent, &is_included).await {
                let is_ended = self.end_elsewhere(intent, is_included, by, EndKind::Revocation).await?;
                return Ok(usize::from(is_ended));
            }
            return Ok(count);
        }
        if self.end_elsewhere(intent, is_included, by, EndKind::Revocation).await? {
            return Ok(1);
        }
        // As in `cancel`.
        self.revoke_here(agent, Some(intent), by, Scope::Fleet).await
    }

    /// Ends the intents of other nodes that this one has learnt of since it ended the others, and waits until the fleet has
    /// all ends. Returns the number of the former.
    async fn end_later_waits(
        &self,
        is_included: CallFilter<'_>,
        reason: AbortReason,
        end: EndOfWait<'_>,
    ) -> Result<usize, Fault> {
        if self.node.fleet().is_none() {
            return Ok(0);
        }
        let (count, ended) = self.intents.update(|intents| {
            let ended = intents.end_all(is_included, Scope::Fleet, reason);
            (ended.waits.len(), self.waits.record_ended(ended, reason, end))
        });
        ended.recording.await.map_err(|error| unsaved_decision_fault(&error))?;
        self.due_ends.finish_all().await?;
        Ok(count)
    }

    /// As [`Self::revoke`], at this executor only.
    pub(super) async fn revoke_here(
        &self,
        agent: Option<&AgentDid>,
        intent: Option<IntentId>,
        by: &str,
        scope: Scope,
    ) -> Result<usize, Fault> {
        tracing::warn!(
            agent = agent.map(AgentDid::as_str),
            intent = intent.map(tracing::field::display),
            caller = by,
            "revoked"
        );
        let filter = |owner: &AgentDid| agent.is_none_or(|agent| agent == owner);
        if intent.is_none() {
            self.policies.revoke(agent, by);
        }
        let EndedIntents { count, newly_aborted, recording } = self.end_revoked(intent, &filter, by, scope);
        let record_all = async {
            recording.await?;
            if !newly_aborted.is_empty() {
                self.decisions.record_stop(&newly_aborted, by, "g2a/revoke").await?;
            }
            self.decisions.record_revocation(agent, intent, by, count).await
        };
        let recorded = record_all.await.map_err(|error| unsaved_decision_fault(&error));
        // Also those of runs that have ended before: nothing of the agent takes effect from now on.
        let Some(intent) = intent else {
            let discarded = self.changes.discard_all(&filter, by, AbortReason::Revoked).await?;
            return recorded.map(|()| count + discarded);
        };
        if self.changes.withdraw(intent, &filter, AbortReason::Revoked) && count == 0 {
            self.call_store.await_end(intent).await?;
            return recorded.map(|()| 1);
        }
        if self.changes.has_open(intent, &filter) {
            let is_discarded = self.changes.revoke(intent, &filter, by).await?;
            return recorded.map(|()| usize::from(is_discarded));
        }
        // Another node has claimed the intent, and the code that called this ends it there.
        if !self.due_ends.finish(intent).await? {
            return recorded.map(|()| 0);
        }
        if count == 0 {
            let is_ended = self.call_store.end_unclaimed_call(intent, &filter, AbortReason::Revoked).await?;
            return recorded.map(|()| usize::from(is_ended));
        }
        self.call_store.await_end(intent).await?;
        recorded.map(|()| count)
    }

    /// Ends one intent, or all, of the selected agents here, because `by` has revoked it or them.
    fn end_revoked(
        &self,
        intent: Option<IntentId>,
        filter: AgentFilter<'_>,
        by: &str,
        scope: Scope,
    ) -> EndedIntents<impl Future<Output = Result<usize, JournalError>> + Send + use<>> {
        const REASON: AbortReason = AbortReason::Revoked;
        if let Some(intent) = intent {
            self.stored_calls.withdraw(intent, filter, REASON);
        }
        let mut ended = self.intents.update(|intents| {
            let ended = match intent {
                Some(intent) => EndedAll::of(intent, intents.end(intent, filter, REASON)),
                None => intents.end_all(|agent, _| filter(agent), scope, REASON),
            };
            self.waits.record_ended(ended, REASON, revoked_by(by))
        });
        let is_selected = |waiting, agent: &AgentDid, _: &ToolName| {
            intent.is_none_or(|intent| waiting == intent) && filter(agent)
        };
        ended.count += self.compile_waits.end(is_selected, REASON);
        // As at a stop. That of one intent ends with its turn.
        if intent.is_none() {
            self.tool_sessions.end_all(|agent, _tool| filter(agent), SessionEnd::Stopped);
        }
        self.catalogue.current().isolate.end_idle();
        ended
    }

    /// Ends an intent that runs or waits for a slot at another node, if `filter` selects its agent. Returns `false`
    /// if there is no such intent.
    async fn end_elsewhere(
        &self,
        intent: IntentId,
        filter: impl Fn(&AgentDid) -> bool + Sync,
        by: &str,
        kind: EndKind,
    ) -> Result<bool, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(false) };
        let mut is_running = self.node.is_running_elsewhere(intent, &filter).await?;
        let mut was_passed_on = false;
        while !is_running && self.intents.is_passed_on(intent, &filter) {
            was_passed_on = true;
            // An order has no effect at the other node before that node has claimed the intent.
            tokio::time::sleep(CLAIM_INTERVAL).await;
            is_running = self.node.is_running_elsewhere(intent, &filter).await?;
        }
        if !is_running && was_passed_on {
            // The other node has given it back, so the stop that was kept for this case ends it here.
            return self.node.await_ordered_end(intent).await;
        }
        if !is_running {
            return self.end_queued_elsewhere(fleet, intent, &filter, by, kind).await;
        }
        self.node.order_end(fleet, intent, filter, by, kind).await
    }

    /// Ends a call that waits for a slot at another node, if `filter` selects its agent. Returns `false` if there is none.
    async fn end_queued_elsewhere(
        &self,
        fleet: &Arc<Fleet>,
        intent: IntentId,
        filter: AgentFilter<'_>,
        by: &str,
        kind: EndKind,
    ) -> Result<bool, Fault> {
        match self.pending.deny_queued(intent, filter, kind.reason()).await? {
            QueuedDenial::Denied => {
                self.node.give_end_order(fleet, intent, by, kind).await?;
                self.node.withdraw_end_order_later(fleet, intent);
                return Ok(true);
            }
            QueuedDenial::Kept => return Ok(false),
            QueuedDenial::NotPending => {}
        }
        // A node that does not answer has nothing to say about it.
        if self.node.has_ended_in_fleet(intent).await? {
            return Ok(false);
        }
        match self.peers.find_queued(intent).await? {
            // Its caller gets the end as the end of a run.
            Some(agent) if filter(&agent) => {
                self.node.give_end_order(fleet, intent, by, kind).await?;
                let has_ended = self.node.await_ordered_end(intent).await;
                self.node.withdraw_end_order(fleet, intent).await;
                has_ended
            }
            Some(_) | None => Ok(false),
        }
    }
}

/// The end of a wait that `by` has revoked.
fn revoked_by(by: &str) -> EndOfWait<'_> {
    EndOfWait {
        resolution: Resolution::Revoked,
        author_or_reason: by,
        blocked_by: Some(BlockedBy::EscalationPending),
        reason: REVOKED,
    }
}
