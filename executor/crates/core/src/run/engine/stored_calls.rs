//! Stored calls: the call of a task waits for a slot without its caller, so the fleet stores it until its intent has an
//! end. If its node is lost before the call has a claim, another one that has the tool runs it.
//!
//! ```text
//! waits ─▶ stored ─▶ runs at some node: the intent has a claim      ─▶ ends, removed, answered
//!             │  └─▶ refused or cancelled: the intent is denied       ─▶ removed, answered
//!             ├─▶ this node cannot run it now: waits here again
//!             └─▶ this node is lost: waits at every node that has the tool, and the claim decides
//! ```
//! The claim of a run and the denial exclude each other, so a call that was cancelled or refused runs at no node, and a
//! caller is told only what is so at all of them.

use super::checks::check_memory;
use super::passing::{Passing, node_text};
use crate::run::due_ends::DueEnds;
use crate::run::faults::busy_fault;
use crate::run::fleet::{CallIdentity, Fleet, FleetDenial, Node};
use crate::run::open_intents::OpenIntents;
use crate::run::pending::{WaitingCall, read_call};
use crate::run::trace::{self, Stopwatch};
use crate::run::{AgentFilter, Engine, Membership, Parts, RunEventSink};
use a2g_fleet::{FleetError, NewPending, PendingIntent, RunsAt, WaitsFor};
use a2g_govern::{Admitted, VerifiedVerdict};
use a2g_journal::IntentSummary;
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::node::{CallMessage, PassedCall};
use a2g_types::outcome::{AbortReason, Receipt};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument as _;

/// The time between two looks at what waits at all nodes.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two attempts to run or to deny a stored call, while this node or the fleet is busy.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two checks that a call that was withdrawn has ended.
const END_INTERVAL: Duration = Duration::from_millis(10);
/// The maximum number of such checks.
const MAX_END_CHECKS: u32 = 300;

/// The stored calls that wait or run in this process, those of lost nodes included, until their intents have ends.
#[derive(Debug, Default)]
pub(in crate::run) struct StoredCalls(Mutex<HashMap<IntentId, StoredCall>>);

#[derive(Debug)]
struct StoredCall {
    call: Arc<Call>,
    /// The reason for which the call has to end without a run.
    withdrawn_for: Option<AbortReason>,
    /// `true` once its intent has a claim.
    has_begun: bool,
}

impl StoredCalls {
    /// Adds a call. Returns `false` if it is stored already.
    pub(in crate::run) fn add(&self, call: &Call) -> bool {
        match self.0.lock().entry(call.intent) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(StoredCall {
                    call: Arc::new(call.clone()),
                    withdrawn_for: None,
                    has_begun: false,
                });
                true
            }
        }
    }

    /// Returns `true` if a call waits here without a claim.
    pub(in crate::run) fn waits(&self, intent: IntentId) -> bool {
        self.0.lock().get(&intent).is_some_and(|stored| !stored.has_begun)
    }

    /// Returns `true` if a call waits or runs here.
    fn contains(&self, intent: IntentId) -> bool {
        self.0.lock().contains_key(&intent)
    }

    /// The agent of a call that waits here without a claim.
    pub(in crate::run) fn agent_of(&self, intent: IntentId) -> Option<AgentDid> {
        let calls = self.0.lock();
        calls.get(&intent).filter(|stored| !stored.has_begun).map(|stored| stored.call.agent.clone())
    }

    fn call(&self, intent: IntentId) -> Option<Arc<Call>> {
        self.0.lock().get(&intent).map(|stored| Arc::clone(&stored.call))
    }

    /// Notes that the intent of a call has a claim.
    pub(in crate::run) fn begin(&self, intent: IntentId) {
        if let Some(stored) = self.0.lock().get_mut(&intent) {
            stored.has_begun = true;
        }
    }

    fn withdrawn_for(&self, intent: IntentId) -> Option<AbortReason> {
        self.0.lock().get(&intent)?.withdrawn_for
    }

    /// Marks a call of the selected agents, so that it does not wait again once its run is aborted.
    pub(in crate::run) fn withdraw(&self, intent: IntentId, filter: AgentFilter<'_>, reason: AbortReason) {
        if let Some(stored) = self.0.lock().get_mut(&intent).filter(|stored| filter(&stored.call.agent)) {
            stored.withdrawn_for.get_or_insert(reason);
        }
    }

    fn remove(&self, intent: IntentId) -> bool {
        self.0.lock().remove(&intent).is_some()
    }
}

impl Node {
    /// Reads a stored call of this process as soon as the servers can be reached; `None` if the fleet does not have it.
    async fn read_stored_call(&self, intent: IntentId) -> Option<PassedCall> {
        let fleet = self.fleet()?;
        loop {
            match fleet.pending.read(intent).await {
                Ok(stored) => return stored.map(|stored| stored.call()),
                Err(error) => tracing::debug!(%error, "a stored call cannot be read yet"),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

/// The calls that wait here without their callers, and their copies in the fleet.
pub(in crate::run) struct CallStore {
    node: Arc<Node>,
    passing: Arc<Passing>,
    stored_calls: Arc<StoredCalls>,
    due_ends: Arc<DueEnds>,
    intents: Arc<OpenIntents>,
}

impl CallStore {
    pub(in crate::run) fn new(parts: &Parts) -> Self {
        Self {
            node: Arc::clone(&parts.node),
            passing: Arc::clone(&parts.passing),
            stored_calls: Arc::clone(&parts.stored_calls),
            due_ends: Arc::clone(&parts.due_ends),
            intents: Arc::clone(&parts.intents),
        }
    }

    /// Stores the call of a task, which has to wait, for the case that this node is lost.
    pub(in crate::run) async fn store<L>(
        &self,
        admitted: &Admitted<L>,
        asked_governor: bool,
        sink: &RunEventSink,
    ) {
        let Some(fleet) = self.node.fleet().filter(|_| self.passing.is_enabled && sink.has_task()) else {
            return;
        };
        let call = admitted.call();
        let Some(text) = node_text(admitted).filter(|_| self.stored_calls.add(call)) else { return };
        let call_message = CallMessage { text, asked_governor };
        let new =
            NewPending { number: 0, waits_for: WaitsFor::Slot, runs_at: RunsAt::AnyNode, call: call_message };
        if let Err(error) = fleet.pending.add(call.intent, new).await {
            // The call waits nevertheless. While the servers do not answer, nothing is claimed either.
            tracing::debug!(%error, "a call that waits here may not be stored");
        }
    }

    /// Removes the stored call of an intent that has an end.
    pub(in crate::run) fn remove(&self, intent: IntentId) {
        if self.stored_calls.remove(intent) {
            self.due_ends.note_removal(intent);
        }
    }

    /// Denies a stored call of the selected agents that has no claim yet: it then runs at no node. Returns `false` if there
    /// is none.
    ///
    /// # Errors
    /// If the fleet cannot be reached: the call is denied as soon as it can be.
    pub(in crate::run) async fn end_unclaimed_call(
        &self,
        intent: IntentId,
        filter: AgentFilter<'_>,
        reason: AbortReason,
    ) -> Result<bool, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(false) };
        let Some(call) = self.stored_calls.call(intent) else { return Ok(false) };
        if !filter(&call.agent) || self.intents.is_passed_on(intent, filter) {
            return Ok(false);
        }
        let is_denied = self.node.withdraw_in_fleet(fleet, &call, reason).await?;
        if is_denied {
            // The task that runs the call finds the denial.
            self.remove(intent);
        }
        Ok(is_denied)
    }

    /// Waits until a call that was withdrawn has a claim or a denial: until then, it would run elsewhere if this node were
    /// lost.
    ///
    /// # Errors
    /// [`Fault::Busy`] if it has none in time.
    pub(in crate::run) async fn await_end(&self, intent: IntentId) -> Result<(), Fault> {
        for _ in 0..MAX_END_CHECKS {
            if !self.stored_calls.waits(intent) {
                return Ok(());
            }
            tokio::time::sleep(END_INTERVAL).await;
        }
        Err(busy_fault("the call is being ended, and the fleet does not know it yet: ask for its state"))
    }
}

impl Engine {
    /// Ends the storage of a call that has ended here with `result`, before its caller is answered. A call that this node
    /// could not run waits here again. `task_sink` is the sink of its run; `None` unless it is the call of a task.
    pub(in crate::run) async fn end_stored_call(
        self: &Arc<Self>,
        intent: IntentId,
        result: Result<Arc<Receipt>, Fault>,
        task_sink: Option<RunEventSink>,
    ) -> Result<Arc<Receipt>, Fault> {
        // `run_stored_call` ends the storage of the calls that it runs.
        let Some(sink) = task_sink else { return result };
        let Some(call) = self.stored_calls.call(intent) else { return result };
        match result {
            Ok(_) | Err(Fault::ReceiptPending { .. }) => {
                self.call_store.remove(intent);
                result
            }
            Err(fault @ Fault::Busy { .. }) => match self.node.read_stored_call(intent).await {
                Some(passed) => match VerifiedVerdict::from_node(&passed) {
                    Ok((call, verdict)) => {
                        tracing::debug!(?fault, "a call waits here again");
                        self.run_stored_call(call, verdict, passed.has_asked_governor(), sink).await
                    }
                    Err(error) => self.deny_stored_call(&call, Fault::Internal(error.to_string())).await,
                },
                None => self.deny_stored_call(&call, fault).await,
            },
            Err(fault) => self.deny_stored_call(&call, fault).await,
        }
    }

    /// Denies a call that does not run here, as soon as the servers can be reached, and returns the reason. If another node
    /// has claimed its intent, returns the end of that run.
    pub(in crate::run) async fn deny_stored_call(
        self: &Arc<Self>,
        call: &Call,
        fault: Fault,
    ) -> Result<Arc<Receipt>, Fault> {
        let Some(fleet) = self.node.fleet() else { return Err(fault) };
        let denial = match self.stored_calls.withdrawn_for(call.intent) {
            Some(reason) => FleetDenial::Withdrawn { reason },
            None => FleetDenial::Refused { message: denial_reason(&fault).to_owned() },
        };
        loop {
            match self.node.deny_in_fleet(fleet, call, &denial).await {
                Ok(_denied) => {
                    self.call_store.remove(call.intent);
                    return Err(fault);
                }
                // Until then, another node may run the call, so an answer could be untrue.
                Err(Fault::Busy { .. }) => {}
                Err(_claimed) => {
                    let identity = CallIdentity::of(call);
                    if let Ok(Some(known)) = self.node.find_in_fleet(&identity).await {
                        match self.claims.await_existing(&identity, known).await {
                            Err(Fault::Busy { .. }) => {}
                            result => {
                                self.call_store.remove(call.intent);
                                return result.map(|(receipt, _verdict)| receipt);
                            }
                        }
                    }
                }
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Runs a stored call as soon as this node can, unless it is withdrawn before.
    async fn run_stored_call(
        self: &Arc<Self>,
        call: Call,
        verdict: VerifiedVerdict,
        asked_governor: bool,
        sink: RunEventSink,
    ) -> Result<Arc<Receipt>, Fault> {
        // Without the task: its call is stored already, and its end is written by the door.
        let sink = sink.without_task();
        loop {
            if let Some(reason) = self.stored_calls.withdrawn_for(call.intent) {
                let fault = FleetDenial::Withdrawn { reason }.into_fault(call.intent);
                return self.deny_stored_call(&call, fault).await;
            }
            let run = self.admit_stored_call(call.clone(), verdict.clone(), asked_governor, sink.clone());
            match run.await {
                Ok(receipt) => {
                    self.call_store.remove(call.intent);
                    return Ok(receipt);
                }
                Err(pending @ Fault::ReceiptPending { .. }) => {
                    self.call_store.remove(call.intent);
                    return Err(pending);
                }
                // Such as a full queue, or a fleet that cannot be reached.
                Err(Fault::Busy { .. }) => tokio::time::sleep(RETRY_INTERVAL).await,
                Err(fault) => return self.deny_stored_call(&call, fault).await,
            }
        }
    }

    /// Admits and runs a stored call, under the policies, ceilings and stops of this node.
    // Boxed, because the run of a call can end in another one of the same call.
    fn admit_stored_call<'a>(
        self: &'a Arc<Self>,
        call: Call,
        verdict: VerifiedVerdict,
        asked_governor: bool,
        sink: RunEventSink,
    ) -> BoxFuture<'a, Result<Arc<Receipt>, Fault>> {
        Box::pin(async move {
            let stopwatch = Stopwatch::start(self.clock.monotonic());
            check_memory()?;
            if let Some(known) = self.claims.find_known(&call, None).await? {
                return Ok(self.claims.await_existing(&CallIdentity::of(&call), known).await?.0);
            }
            let (admitted, stored_verdict) = self.admit_from_node(call, verdict, asked_governor)?;
            // The tool may be at a node that is not back yet; the expiry of the verdict limits the wait.
            let location = self.locate_tool(admitted.call());
            let location = location.map_err(|_| busy_fault("the tool of a stored call is not here yet"))?;
            self.run_at(location, admitted, stored_verdict, stopwatch, sink).await
        })
    }
}

impl Membership {
    /// Follows what waits at all nodes, and runs what this one has to run, until the sessions end.
    pub(in crate::run) async fn follow_pending(self: Arc<Self>, fleet: Arc<Fleet>) {
        loop {
            // `keep_fleet` logs that the servers do not answer.
            if self.pending.refresh_all().await {
                self.operator.follow_decisions().await;
                if let Err(error) = self.run_left_calls(&fleet).await {
                    tracing::debug!(%error, "the calls that wait at lost nodes are looked at later");
                }
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Runs the calls that wait for a slot at lost nodes, and at the earlier process of this one.
    async fn run_left_calls(self: &Arc<Self>, fleet: &Arc<Fleet>) -> Result<(), FleetError> {
        if !self.passing.is_enabled || self.slots.is_closed() {
            return Ok(());
        }
        let loaded = self.catalogue.current();
        for (intent, wait) in self.pending.slot_waits() {
            let is_own = wait.home == *fleet.member.node();
            if self.stored_calls.contains(intent)
                || loaded.usable_tool(&wait.tool).is_none()
                || (!is_own && fleet.member.is_running(&wait.home).await?)
            {
                continue;
            }
            if self.pending.remove_if_ended(fleet, intent).await?
                && let Some(stored) = fleet.pending.read(intent).await?
            {
                self.run_left_call(&stored);
            }
        }
        Ok(())
    }

    fn run_left_call(self: &Arc<Self>, stored: &PendingIntent) {
        let Some(WaitingCall::Queued(queued)) = read_call(stored) else { return };
        let (call, verdict) = *queued;
        if !self.stored_calls.add(&call) {
            return;
        }
        let span = trace::intent_span(&IntentSummary::from_call(&call), call.door);
        let from = stored.node();
        span.in_scope(|| tracing::info!(%from, "the call waited at a lost node, and waits here now"));
        let member = Arc::clone(self);
        let asked_governor = stored.call().has_asked_governor();
        let run = async move {
            let sink = RunEventSink::none();
            if let Err(fault) = member.engine.run_stored_call(call, verdict, asked_governor, sink).await {
                tracing::warn!(?fault, "the call of a lost node has not run");
            }
        };
        self.sessions.spawn(run.instrument(span));
    }
}

/// The reason in the denial of a call that does not run.
fn denial_reason(fault: &Fault) -> &str {
    match fault {
        Fault::Refused { message, .. }
        | Fault::InvalidParams { message, .. }
        | Fault::ToolUnavailable { message, .. }
        | Fault::Busy { message, .. }
        | Fault::InvalidRequest(message) => message,
        Fault::Internal(_)
        | Fault::Parse(_)
        | Fault::MethodNotFound(_)
        | Fault::RegistrationFailed(_)
        | Fault::SessionExpired(_)
        | Fault::Failed(_)
        | Fault::LimitReached(..)
        | Fault::ReceiptPending { .. } => "its node has failed: the log there has the reason",
    }
}
