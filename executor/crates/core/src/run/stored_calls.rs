//! Stored calls: the call of a task waits for a slot without its caller, so the fleet stores it, and another node runs it
//! if this one is lost.
//!
//! ```text
//! waits ─▶ stored ─▶ has a claim                                        ─▶ removed
//!             │  └─▶ does not run: withdrawn, so that no other node runs it ─▶ answered
//!             └─▶ its node is lost: an orphan, which waits at another node
//! ```

use super::fleet::Fleet;
use super::passing::{DENIED_BY, node_text};
use super::trace::{self, Stopwatch};
use super::{AgentFilter, Executor, RunEventSink};
use a2g_fleet::{CallMessage, OrphanCall, Withdrawal};
use a2g_govern::{Admitted, VerifiedVerdict};
use a2g_journal::IntentSummary;
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::outcome::{AbortReason, Receipt};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument as _;

/// The time between two attempts to withdraw a call, or to run an orphan while this node is busy.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The calls of lost nodes that this one runs, also while they have no place in the queue.
#[derive(Debug, Default)]
pub(super) struct OrphanCalls(Mutex<HashMap<IntentId, Arc<Call>>>);

impl OrphanCalls {
    /// The agent of a call.
    pub(super) fn agent_of(&self, intent: IntentId) -> Option<AgentDid> {
        self.0.lock().get(&intent).map(|call| call.agent.clone())
    }

    fn get(&self, intent: IntentId) -> Option<Arc<Call>> {
        self.0.lock().get(&intent).cloned()
    }
}

impl Executor {
    /// Stores the call of a task, which has to wait, for the case that this node is lost.
    pub(super) async fn store_waiting_call<L>(
        &self,
        admitted: &Admitted<L>,
        asked_governor: bool,
        sink: &RunEventSink,
    ) {
        let Some(fleet) = self.fleet.as_ref().filter(|_| self.passing.is_enabled && sink.has_task()) else {
            return;
        };
        let intent = admitted.call().intent;
        let Some(text) = node_text(admitted).filter(|_| !fleet.holds_call(intent)) else { return };
        if let Err(error) = fleet.store_call(intent, CallMessage { text, asked_governor }).await {
            // The call waits nevertheless. While the servers do not answer, nothing is claimed either.
            tracing::debug!(%error, "a call that waits here may not be stored");
        }
    }

    /// Removes the stored call of an intent that has a claim.
    pub(super) fn remove_stored_call(&self, intent: IntentId) {
        if let Some(fleet) = self.fleet.clone().filter(|fleet| fleet.holds_call(intent)) {
            self.sessions.spawn(async move { remove_call(&fleet, intent).await });
        }
    }

    /// Ends the storage of a call that has ended here with `result`, before its caller is answered. Returns the receipt of
    /// another node that has taken the call over.
    pub(super) async fn end_stored_call(
        self: &Arc<Self>,
        intent: IntentId,
        result: Result<Arc<Receipt>, Fault>,
    ) -> Result<Arc<Receipt>, Fault> {
        let Some(fleet) = self.fleet.as_ref().filter(|fleet| fleet.holds_call(intent)) else {
            return result;
        };
        let fault = match result {
            Ok(_) | Err(Fault::ReceiptPending { .. }) => {
                self.remove_stored_call(intent);
                return result;
            }
            Err(fault) => fault,
        };
        match withdraw(fleet, intent).await {
            Withdrawal::Withdrawn => return Err(fault),
            Withdrawal::TakenOver => {}
        }
        loop {
            match self.await_outcome(intent).await {
                Ok(receipt) => return receipt.ok_or(fault),
                Err(Fault::Busy { .. }) => tokio::time::sleep(RETRY_INTERVAL).await,
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Withdraws the stored call of an intent that is being stopped, if `filter` selects its agent.
    ///
    /// # Errors
    /// If the fleet cannot be reached: another node could run the call if this one were lost.
    pub(super) async fn withdraw_stored_call(
        &self,
        intent: IntentId,
        filter: AgentFilter<'_>,
    ) -> Result<Withdrawal, Fault> {
        let agent = self.active_runs.agent_of(intent);
        match &self.fleet {
            Some(fleet) if agent.is_some_and(|agent| filter(&agent)) => {
                fleet.withdraw_call(intent).await.map_err(|error| self.fleet_fault(&error))
            }
            Some(_) | None => Ok(Withdrawal::Withdrawn),
        }
    }

    /// Ends an orphan that has no place in the queue, if `filter` selects its agent: it runs at no node, also not at the
    /// one that was lost. Returns `false` if there is none.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(super) async fn end_orphan_call(
        &self,
        intent: IntentId,
        filter: AgentFilter<'_>,
        reason: AbortReason,
    ) -> Result<bool, Fault> {
        let Some(call) = self.orphan_calls.get(intent).filter(|call| filter(&call.agent)) else {
            return Ok(false);
        };
        let Some(fleet) = &self.fleet else { return Ok(false) };
        match fleet.withdraw_call(intent).await.map_err(|error| self.fleet_fault(&error))? {
            Withdrawal::Withdrawn => {}
            Withdrawal::TakenOver => return Ok(false),
        }
        match self.deny_in_fleet(fleet, &call, None, DENIED_BY, Some(reason.message())).await {
            Ok(()) => Ok(true),
            Err(busy @ Fault::Busy { .. }) => Err(busy),
            // The node that was lost has come back, and has claimed the intent.
            Err(_claimed) => Ok(false),
        }
    }

    /// Returns `true` if the fleet stores a call that has waited at this node.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub async fn is_call_stored(&self, intent: IntentId) -> Result<bool, Fault> {
        let Some(fleet) = &self.fleet else { return Ok(false) };
        fleet.is_call_stored(intent).await.map_err(|error| self.fleet_fault(&error))
    }

    /// Runs the calls of lost nodes, until the sessions end.
    pub(super) async fn run_orphan_calls(self: Arc<Self>, fleet: Arc<Fleet>) {
        loop {
            let OrphanCall { intent, from, call: passed } = fleet.next_orphan_call().await;
            let (call, verdict) = match VerifiedVerdict::from_node(&passed) {
                Ok(call) => call,
                Err(error) => {
                    tracing::error!(%intent, %from, %error, "the call of a lost node is dropped: this version cannot read it");
                    remove_call(&fleet, intent).await;
                    continue;
                }
            };
            let span = trace::intent_span(&IntentSummary::from_call(&call), call.door);
            span.in_scope(|| tracing::info!(%from, "the call waited at a lost node, and waits here now"));
            self.orphan_calls.0.lock().insert(intent, Arc::new(call.clone()));
            let (executor, fleet) = (Arc::clone(&self), Arc::clone(&fleet));
            let asked_governor = passed.has_asked_governor();
            let run = async move {
                executor.run_orphan_call(&fleet, call, verdict, asked_governor).await;
                executor.orphan_calls.0.lock().remove(&intent);
            };
            self.sessions.spawn(run.instrument(span));
        }
    }

    /// Runs a call of a lost node, as soon as this node can, unless it is withdrawn before.
    async fn run_orphan_call(
        self: &Arc<Self>,
        fleet: &Fleet,
        call: Call,
        verdict: VerifiedVerdict,
        asked_governor: bool,
    ) {
        let intent = call.intent;
        while fleet.holds_call(intent) {
            match self.admit_orphan_call(call.clone(), verdict.clone(), asked_governor).await {
                Ok(_) | Err(Fault::ReceiptPending { .. }) => return remove_call(fleet, intent).await,
                // Such as a full queue, or a tool that is being compiled.
                Err(Fault::Busy { .. }) => tokio::time::sleep(RETRY_INTERVAL).await,
                Err(fault) => {
                    tracing::warn!(?fault, "the call of a lost node does not run");
                    // Compared with the holder, because another node may have taken the call over.
                    let _end = withdraw(fleet, intent).await;
                    return;
                }
            }
        }
    }

    /// Admits and runs a call of a lost node, under the policies, ceilings and stops of this one.
    async fn admit_orphan_call(
        self: &Arc<Self>,
        call: Call,
        verdict: VerifiedVerdict,
        asked_governor: bool,
    ) -> Result<Arc<Receipt>, Fault> {
        let stopwatch = Stopwatch::start(self.clock.monotonic());
        self.check_memory()?;
        if let Some(known) = self.find_known(&call, None).await? {
            return Ok(self.await_existing(&call, known).await?.0);
        }
        let (admitted, stored_verdict) = self.admit_from_node(call, verdict, asked_governor)?;
        // The tool may be at a node that is not back yet; the expiry of the verdict limits the wait.
        let location = self.locate_tool(admitted.call());
        let location =
            location.map_err(|_| self.busy_fault("the tool of a lost node's call is not here yet"))?;
        self.run_at(location, admitted, stored_verdict, stopwatch, RunEventSink::none()).await
    }
}

/// Withdraws a call, as soon as the servers can be reached: until then, another node may run it, so an answer could be
/// untrue.
async fn withdraw(fleet: &Fleet, intent: IntentId) -> Withdrawal {
    loop {
        match fleet.withdraw_call(intent).await {
            Ok(end) => return end,
            Err(error) => tracing::debug!(%error, "a stored call is not withdrawn yet"),
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn remove_call(fleet: &Fleet, intent: IntentId) {
    if let Err(error) = fleet.remove_call(intent).await {
        // The next sweep removes it.
        tracing::debug!(%intent, %error, "a stored call is not removed yet");
    }
}
