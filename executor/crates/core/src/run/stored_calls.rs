//! The calls of tasks that wait for a slot: their callers do not wait with them, so the fleet stores each one, and another
//! node runs it if this one is lost.
//!
//! ```text
//! waits ─▶ stored ─▶ has run, or its claim says so                ─▶ removed, answered
//!             │  └─▶ did not run: withdrawn, so that no node runs it ─▶ answered
//!             └─▶ this node is lost: another one lets the call wait there
//! ```

use super::fleet::Fleet;
use super::passing::node_text;
use super::trace::{self, Stopwatch};
use super::{AgentFilter, Executor, RunEventSink};
use a2g_fleet::{CallMessage, LostCall};
use a2g_govern::{Admission, Admitted, VerifiedVerdict, admit};
use a2g_journal::IntentSummary;
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::outcome::Receipt;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument as _;

/// The time between two attempts to withdraw a call, or to run one of a lost node while this one is busy.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Executor {
    /// Stores the call of a task, which has to wait, for the case that this node is lost.
    pub(super) async fn store_waiting<L>(
        &self,
        admitted: &Admitted<L>,
        asked_governor: bool,
        sink: &RunEventSink,
    ) {
        let Some(fleet) = self.fleet.as_ref().filter(|_| self.passing.is_enabled && sink.has_task()) else {
            return;
        };
        let intent = admitted.call().intent;
        let Some(text) = node_text(admitted).filter(|_| !fleet.holds_queued(intent)) else { return };
        if let Err(error) = fleet.store_queued(intent, CallMessage { text, asked_governor }).await {
            // The call waits nevertheless. While the servers do not answer, nothing is claimed either.
            tracing::debug!(%error, "the fleet may not have a call that waits here");
        }
    }

    /// Ends the storage of a call that has ended here with `result`, before the caller gets it. If another node has taken the
    /// call over, returns the receipt of its run there.
    pub(super) async fn end_stored(
        self: &Arc<Self>,
        intent: IntentId,
        result: Result<Arc<Receipt>, Fault>,
    ) -> Result<Arc<Receipt>, Fault> {
        let Some(fleet) = self.fleet.as_ref().filter(|fleet| fleet.holds_queued(intent)) else {
            return result;
        };
        let fault = match result {
            // The claim prevents another run.
            Ok(_) | Err(Fault::ReceiptPending { .. }) => {
                let fleet = Arc::clone(fleet);
                self.sessions.spawn(async move { remove(&fleet, intent).await });
                return result;
            }
            Err(fault) => fault,
        };
        loop {
            match fleet.withdraw_queued(intent).await {
                Ok(true) => return Err(fault),
                Ok(false) => break,
                // An answer could be untrue: another node may run the call.
                Err(error) => tracing::debug!(%error, "a stored call is not withdrawn yet"),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        loop {
            match self.await_outcome(intent).await {
                Ok(receipt) => return receipt.ok_or(fault),
                Err(Fault::Busy { .. }) => tokio::time::sleep(RETRY_INTERVAL).await,
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Withdraws the stored call of an intent that is about to be stopped, if `filter` selects its agent. Returns `false` if
    /// another node has taken the call over.
    ///
    /// # Errors
    /// If the fleet cannot be reached: another node could run the call later.
    pub(super) async fn withdraw_stored(
        &self,
        intent: IntentId,
        filter: AgentFilter<'_>,
    ) -> Result<bool, Fault> {
        let Some(fleet) = &self.fleet else { return Ok(true) };
        if !self.active_runs.agent_of(intent).is_some_and(|agent| filter(&agent)) {
            return Ok(true);
        }
        fleet.withdraw_queued(intent).await.map_err(|error| self.fleet_fault(&error))
    }

    /// Returns `true` if the fleet has the call of a task that waited at this node when its process ended.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub async fn is_stored(&self, intent: IntentId) -> Result<bool, Fault> {
        let Some(fleet) = &self.fleet else { return Ok(false) };
        fleet.is_queued(intent).await.map_err(|error| self.fleet_fault(&error))
    }

    /// Runs the stored calls of lost nodes, until the sessions end.
    pub(super) async fn run_lost_calls(self: Arc<Self>, fleet: Arc<Fleet>) {
        loop {
            let lost = fleet.next_lost_call().await;
            let LostCall { intent, from, call: passed } = lost;
            let (call, verdict) = match VerifiedVerdict::from_node(&passed) {
                Ok(call) => call,
                Err(error) => {
                    tracing::error!(%intent, %from, %error, "the call of a lost node cannot be read");
                    continue;
                }
            };
            let span = trace::intent_span(&IntentSummary::from_call(&call), call.door);
            span.in_scope(|| tracing::info!(%from, "the call waited at a lost node, and waits here now"));
            let (executor, fleet) = (Arc::clone(&self), Arc::clone(&fleet));
            let asked_governor = passed.has_asked_governor();
            let run = async move { executor.run_lost(&fleet, call, verdict, asked_governor).await };
            self.sessions.spawn(run.instrument(span));
        }
    }

    async fn run_lost(
        self: &Arc<Self>,
        fleet: &Arc<Fleet>,
        call: Call,
        verdict: VerifiedVerdict,
        asked_governor: bool,
    ) {
        let intent = call.intent;
        loop {
            match self.admit_lost(call.clone(), verdict.clone(), asked_governor).await {
                Ok(_) | Err(Fault::ReceiptPending { .. }) => break,
                // Such as a full queue, or a tool that is being compiled.
                Err(Fault::Busy { .. }) => tokio::time::sleep(RETRY_INTERVAL).await,
                Err(fault) => {
                    tracing::warn!(?fault, "the call of a lost node does not run");
                    break;
                }
            }
        }
        remove(fleet, intent).await;
    }

    /// Admits and runs a call of a lost node, under the policies, ceilings and stops of this one.
    async fn admit_lost(
        self: &Arc<Self>,
        call: Call,
        verdict: VerifiedVerdict,
        asked_governor: bool,
    ) -> Result<Arc<Receipt>, Fault> {
        let stopwatch = Stopwatch::start(self.clock.monotonic());
        let location = self.locate_tool(&call)?;
        self.check_memory()?;
        if let Some(known) = self.find_known(&call, None).await? {
            return Ok(self.await_existing(&call, known).await?.0);
        }
        self.check_stopped(&call)?;
        let stored_verdict = asked_governor.then(|| Arc::clone(verdict.verdict()));
        match admit(call, verdict, self.clock.now())? {
            Admission::Run(admitted) => {
                self.run_at(location, *admitted, stored_verdict, stopwatch, RunEventSink::none()).await
            }
            Admission::Wait(escalated) => {
                Err(Fault::Internal(format!("the intent {} waits for a person", escalated.call().intent)))
            }
        }
    }
}

async fn remove(fleet: &Fleet, intent: IntentId) {
    if let Err(error) = fleet.remove_queued(intent).await {
        // The next sweep removes it.
        tracing::debug!(%intent, %error, "a stored call is not removed yet");
    }
}
