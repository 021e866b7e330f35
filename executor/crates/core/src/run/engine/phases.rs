//! A claimed call from its slot to its receipt. Each phase consumes the one before, so that none is skipped or repeated.
//!
//! ```text
//! ClaimedRun ─ a slot ─▶ Ready ─ start ─▶ Started ─ run ─▶ Ended ─ finish ─▶ Receipt
//!                          └─▶ released: nothing has run      └─ the slot is free again
//! ```
//! A call that is dropped before its start is recorded has not run, and nothing says that it has. From the record of its
//! start on, it has a receipt in any case: recovery stores the fallback if this process ends.

use super::nested::NestedCalls;
use crate::run::claims::ClaimedRun;
use crate::run::effects::{CallTurn, Kept, SettleError, Settled, StagedChanges};
use crate::run::faults::{busy_fault, receipt_pending_fault};
use crate::run::fleet::{FleetClaim, StartOutcome};
use crate::run::open_intents::ActiveRun;
use crate::run::output::OutputReservation;
use crate::run::result_check::check_result;
use crate::run::slots::{Place, RunSlot};
use crate::run::tool_sessions::{SessionLease, is_for_now, refused_session_fault};
use crate::run::trace::Stopwatch;
use crate::run::{Engine, LoadedCatalog, RECEIPT_TIMEOUT, RunEvent, RunEventSink, TaskPersistence, trace};
use a2g_capability::{Grant, GrantView, Permit};
use a2g_govern::{Admitted, Granted};
use a2g_intent::WaitId;
use a2g_isolate::{KeptProcess, PreparedChild, RefusedSession, RunRequest, SessionUse};
use a2g_journal::{KnownIntent, RunEffects, Stage, StartRequest};
use a2g_runtime::spawn;
use a2g_sandbox::egress::{Egress, Network};
use a2g_sandbox::{Calls, Outside};
use a2g_types::call::{Call, Door};
use a2g_types::clock::Clock;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::SecretName;
use a2g_types::limit::Limit;
use a2g_types::outcome::{AbortReason, CallUsage, End, Outcome, Receipt, Status};
use a2g_types::session::{SessionEnd, SessionState, SessionTurn};
use a2g_types::verdict::Verdict;
use futures_util::FutureExt as _;
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument as _;

/// The time that the executor itself has spent on a call, and the time in the queue.
#[derive(Debug, Clone, Copy)]
pub(in crate::run) struct Times {
    pub(in crate::run) stopwatch: Stopwatch,
    pub(in crate::run) queue: Duration,
}

/// The parts of a [`ClaimedRun`] that each later phase needs.
pub(in crate::run) struct ClaimedCall {
    engine: Arc<Engine>,
    admitted: Admitted<Granted>,
    loaded: Arc<LoadedCatalog>,
    /// The governor's verdict, if the governor was asked.
    verdict: Option<Arc<Verdict>>,
    /// The caller that approved the intent, if it waited for a person.
    approved_by: Option<String>,
    /// The wait from which the intent was taken, if it waited for a person.
    wait: Option<WaitId>,
    was_passed_on: bool,
    times: Times,
    sink: RunEventSink,
    // Dropped last: the intent counts as open until then.
    running: ActiveRun,
    _place: Place,
}

impl ClaimedCall {
    pub(in crate::run) fn call(&self) -> &Call {
        self.admitted.call()
    }

    /// Checks that the guest may still start. A call that may not is withdrawn rather than aborted, because nothing has run.
    fn check_start(&self) -> Result<(), Fault> {
        match self.engine.intents.check_start(self.call()) {
            // Another node may still have the call: if it were withdrawn, it could run there. So it ends as aborted.
            Err(_stopped) if self.was_passed_on => self.running.abort(AbortReason::Stopped),
            result => result?,
        }
        self.admitted.check_expiry(self.engine.clock.now())
    }

    /// The run that is to be recorded as started. If it cannot run any more, only its end is recorded.
    async fn request_staged(
        &self,
        permit: Permit,
        shared_files: Option<CallTurn>,
    ) -> Result<RequestedRun, Fault> {
        let grant = permit.grant().clone();
        if let Some(reason) = self.running.abort_handle().reason() {
            return Ok(RequestedRun::without_start(&grant, reason.message().to_owned()));
        }
        match self.try_request(permit, shared_files).await {
            // It never can run, so another attempt would end in the same way. The report says so to all who
            // wait.
            Err(Fault::Refused { message, blocked_by, .. })
                if self.approved_by.is_some() && !is_for_now(blocked_by) =>
            {
                Ok(RequestedRun::without_start(&grant, message))
            }
            requested => requested,
        }
    }

    /// The request with what the run needs before it: the folders for its file changes if these are kept
    /// apart, and its session if it asks for one.
    async fn try_request(
        &self,
        permit: Permit,
        shared_files: Option<CallTurn>,
    ) -> Result<RequestedRun, Fault> {
        let Self { engine, .. } = self;
        let call = self.call();
        let Some(tool) = self.loaded.usable_tool(&call.tool) else {
            return Err(Fault::Internal("the tool of a claimed call is not in its catalogue".to_owned()));
        };
        self.read_secrets(&tool.descriptor.capabilities.secrets).await?;
        let mut changes = engine.effects.stage(call, &permit, shared_files, &engine.settings).await?;
        let mut lease = engine.tool_sessions.begin_turn(call, &tool.descriptor, permit.grant())?;
        let session = lease.as_mut().map_or(SessionUse::None, SessionLease::begin);
        match self.request(permit, changes.as_mut(), session) {
            Ok(request) => Ok(RequestedRun { request, changes, lease }),
            Err(RefusedSession { reason, process }) => {
                drop(changes);
                if let Some(lease) = lease {
                    lease.put_back(process);
                }
                Err(refused_session_fault(call, reason))
            }
        }
    }

    /// Reads the secrets that the tool declares, so that nothing of it runs without one.
    async fn read_secrets(&self, declared: &BTreeSet<SecretName>) -> Result<(), Fault> {
        let Some(egress) = &self.engine.egress else { return Ok(()) };
        for name in declared {
            if let Err(error) = egress.read_secret(name).await {
                tracing::warn!(secret = %name, %error, "a tool needs a secret that cannot be read");
                let message = format!(
                    "the secret `{name}` of `{}` cannot be read: `a2g-executor secret check` says why",
                    self.call().tool
                );
                return Err(self.admitted.refusal(BlockedBy::SecretMissing, message));
            }
        }
        Ok(())
    }

    /// The request for the run in this session, with the folders for its file changes if these are kept apart.
    fn request(
        &self,
        permit: Permit,
        changes: Option<&mut StagedChanges>,
        session: SessionUse,
    ) -> Result<RunRequest, RefusedSession> {
        let call = self.call();
        let narrowed = match changes.as_deref().and_then(StagedChanges::max_written) {
            Some(max_bytes) => permit.narrow_written(max_bytes),
            None => permit,
        };
        let run_permit = match changes.and_then(StagedChanges::take_upper) {
            Some(upper) => narrowed.with_upper(upper),
            None => narrowed,
        };
        // Without a usable tool, the isolation has no code for it, and the run does not start.
        let tool = self.loaded.usable_tool(&call.tool);
        let input = tool.map(|tool| tool.descriptor.input_text(&call.arguments)).unwrap_or_default();
        self.loaded.isolate.request(&call.agent, &call.tool, run_permit, input, session)
    }

    /// The effects of a run with this grant. To let others know of a run before its end is one: they find it again, also
    /// after a power failure. A caller that only waits for the answer, perhaps with the progress of the run, is told
    /// nothing that has to be true later.
    fn effects(&self, grant: &Grant) -> RunEffects {
        let is_known_to_others = self.approved_by.is_some()
            || self.sink.has_task()
            // The other nodes know of the claim, and of the end before it is in this node's journal.
            || self.engine.node.fleet().is_some()
            || answers_at_start(self.call().door);
        if grant.allows_effects() || is_known_to_others { RunEffects::Possible } else { RunEffects::None }
    }

    /// Releases the intent, which has not run.
    async fn release(&self, refusal: Fault) -> Fault {
        match self.engine.claims.release(self.call().intent).await {
            Ok(()) => refusal,
            Err(fault) => fault,
        }
    }

    fn receipt(&self, calls: Option<CallUsage>, session: Option<SessionTurn>, outcome: Outcome) -> Receipt {
        let Call { agent, intent, tool, door, parent, .. } = self.call();
        let descriptor = self.loaded.usable_tool(tool).map(|tool| &tool.descriptor);
        Receipt {
            agent: agent.clone(),
            intent: *intent,
            tool: tool.clone(),
            door: *door,
            approved_by: self.approved_by.clone(),
            durability: self.engine.durability,
            parent: parent.clone(),
            calls,
            signature: descriptor.and_then(|descriptor| descriptor.signature.clone()),
            session,
            rationale: self.admitted.rationale().clone(),
            outcome,
        }
    }

    /// Makes the end of a run agree with what others were told of it. From here on, whoever stops a run whose changes are
    /// kept apart finds these.
    fn settle_end(&self, claim: &FleetClaim, changes: Option<&StagedChanges>, outcome: &mut Outcome) {
        let hand_on = || changes.into_iter().for_each(StagedChanges::note_end);
        // The receipt has to agree with the answer to the caller that stopped the run, even if the guest ended first.
        if let Some(reason) = self.running.end_with(hand_on) {
            outcome.end = End::Aborted(reason);
        } else if !claim.is_held() {
            // Another node may have ended the intent as aborted while the guest was running.
            outcome.end = End::Aborted(AbortReason::LeaseLost);
        }
        let tool = self.loaded.usable_tool(&self.call().tool);
        if let Some(network) = &mut outcome.usage.network_used {
            network.remote_server = tool.and_then(|tool| tool.descriptor.remote_server());
        }
        if outcome.end == End::LimitReached(Limit::Memory) {
            let needed = tool.map(|tool| tool.facts.start_memory_bytes);
            let limit = outcome.usage.memory.value.bytes();
            outcome.usage.start_memory_bytes = needed.filter(|needed| *needed > limit);
        }
    }
}

/// `true` for a door that answers its caller once a run has started. The MCP door may do so later, and syncs the journal
/// then.
fn answers_at_start(door: Door) -> bool {
    match door {
        Door::Console => true,
        // The calls of A2A that have a task are told by it.
        Door::A2g | Door::A2a | Door::A2e | Door::Mcp | Door::Nexus | Door::Sovereign | Door::Cli => false,
    }
}

/// A run that may be recorded as started.
struct RequestedRun {
    request: RunRequest,
    /// `None` if each file change takes effect at once.
    changes: Option<StagedChanges>,
    /// `None` for a run without a session.
    lease: Option<SessionLease>,
}

impl RequestedRun {
    /// One that has ended for this reason.
    fn without_start(grant: &GrantView, reason: String) -> Self {
        Self { request: RunRequest::without_start(grant, reason), changes: None, lease: None }
    }
}

/// A claimed call that has waited for its slot.
pub(in crate::run) struct Ready {
    claimed: ClaimedCall,
    permit: Permit,
    /// `None` if the call was stopped while it waited: its end is recorded without a run.
    slot: Option<RunSlot>,
    shared_files: Option<CallTurn>,
    /// `true` if this executor took the call from another node too long ago.
    is_late: bool,
}

/// The result of recording the start of a run.
pub(in crate::run) enum Start {
    /// It is recorded, and the guest may run.
    New(Box<Started>),
    /// The intent has started before.
    Known(Box<ClaimedCall>, KnownIntent),
}

impl Ready {
    pub(in crate::run) fn new(
        engine: Arc<Engine>,
        claimed: ClaimedRun,
        slot: Option<RunSlot>,
        sink: RunEventSink,
        times: Times,
    ) -> Self {
        let ClaimedRun {
            admitted,
            loaded,
            verdict,
            approved_by,
            wait,
            permit,
            place,
            lent_slot: _,
            taken,
            was_passed_on,
            running,
            shared_files,
        } = claimed;
        let is_late = taken.is_some_and(|taken| taken.is_late(engine.clock.monotonic()));
        let claimed = ClaimedCall {
            engine,
            admitted,
            loaded,
            verdict,
            approved_by,
            wait,
            was_passed_on,
            times,
            sink,
            running,
            _place: place,
        };
        Self { claimed, permit, slot, shared_files, is_late }
    }

    /// Records the start of the run in the fleet and in the journal, while a child is prepared. The intent is released if
    /// it may not start.
    pub(in crate::run) async fn start(self) -> Result<Start, Fault> {
        if let Err(refusal) = self.check() {
            let Self { claimed, shared_files, .. } = self;
            // The files first: the run that makes this call may end as soon as the call is released.
            drop(shared_files);
            return Err(claimed.release(refusal).await);
        }
        let Self { claimed, permit, slot, shared_files, is_late: _ } = self;
        let engine = &claimed.engine;
        let call = claimed.call();
        let output_bytes = permit.grant().output().value.bytes();
        let requested = match claimed.request_staged(permit, shared_files).await {
            Ok(requested) => requested,
            Err(refusal) => return Err(claimed.release(refusal).await),
        };
        let output = engine.output.reserve(output_bytes);
        let isolate = &claimed.loaded.isolate;
        let RequestedRun { request, changes, lease } = requested;
        // Recovery adds the calls to this receipt.
        let no_calls = NestedCalls::none_yet(request.grant());
        let lost_turn = lease.as_ref().map(|lease| lease.ended(SessionEnd::Shutdown));
        let fallback = claimed.receipt(no_calls, lost_turn, isolate.lost_outcome(&request));
        let task = claimed.sink.persistence().and_then(|persistence| persistence.fallback_task());
        let record = StartRequest {
            call,
            keep_until: claimed.admitted.keep_until(),
            proof: claimed.admitted.proof_id(),
            fallback_receipt: &fallback,
            task: task.as_ref(),
            effects: claimed.effects(request.grant()),
        };
        let start = engine.claims.start(record, claimed.verdict.as_deref());
        let (started, prepared) = join_until_first(start, isolate.prepare(&request)).await;
        let claim = match started? {
            StartOutcome::New(claim) => claim,
            StartOutcome::Known(known) => return Ok(Start::Known(Box::new(claimed), known)),
            StartOutcome::Replayed => {
                let message = "the `proof` was already used for another intent: ask the governor again";
                return Err(claimed.admitted.refusal(BlockedBy::VerdictReplayed, message));
            }
        };
        let held = HeldWhileRunning { _slot: slot, _output: output };
        let prepared = prepared.flatten();
        let started = Started { claimed, claim, held, changes, request, prepared, lease };
        started.check().await.map(|started| Start::New(Box::new(started)))
    }

    fn check(&self) -> Result<(), Fault> {
        let engine = &self.claimed.engine;
        let has_no_caller =
            self.claimed.approved_by.is_some() || engine.stored_calls.waits(self.claimed.call().intent);
        if has_no_caller && self.claimed.running.abort_handle().reason() == Some(AbortReason::Shutdown) {
            // The next process or another node runs it: no caller waits for the result.
            return Err(busy_fault("the executor is shutting down"));
        }
        if self.is_late {
            let message = "this executor took the call from another node too long ago";
            return Err(busy_fault(message));
        }
        self.claimed.check_start()
    }
}

/// The slot and the output memory of a run, held until its guest has ended.
struct HeldWhileRunning {
    _slot: Option<RunSlot>,
    _output: OutputReservation,
}

/// A call whose start is recorded, and whose guest has not begun.
pub(in crate::run) struct Started {
    claimed: ClaimedCall,
    claim: FleetClaim,
    held: HeldWhileRunning,
    /// `None` if each file change takes effect at once.
    changes: Option<StagedChanges>,
    request: RunRequest,
    prepared: Option<PreparedChild>,
    /// `None` for a run without a session.
    lease: Option<SessionLease>,
}

impl Started {
    /// Checks again, because the writes of the start may have been slow.
    async fn check(self) -> Result<Self, Fault> {
        let approval = match self.claimed.wait {
            Some(wait) => self.claimed.engine.pending.check_claimed(self.claimed.call().intent, wait).await,
            None => Ok(()),
        };
        let checked = match approval {
            Ok(()) if self.claim.is_held() => self.claimed.check_start(),
            Ok(()) => Err(busy_fault(
                "this executor lost its lease in the fleet before the tool ran: send the call again",
            )),
            withdrawn => withdrawn,
        };
        let Err(refusal) = checked else { return Ok(self) };
        let Self { claimed, claim, prepared, changes, lease, .. } = self;
        // The files first: the run that makes this call may end as soon as the call is released.
        drop((prepared, changes, lease));
        claim.release().await;
        Err(claimed.release(refusal).await)
    }

    /// Runs the guest.
    pub(in crate::run) async fn run(self) -> Ended {
        let Self { claimed, claim, held, changes, request, prepared, mut lease } = self;
        let engine = &claimed.engine;
        let call = claimed.call();
        // From here on, only the receipt says what the call has done.
        claimed.admitted.note_begun();
        engine.stored_calls.begin(call.intent);
        let sink = engine.subscribers.wrap(call, claimed.sink.clone());
        let requests = changes.as_ref().and_then(StagedChanges::held_requests);
        let sent = request.sent_secrets();
        let open = |egress: &Arc<Egress>| egress.open_holding(&call.agent, request.grant(), requests, sent);
        let network = engine.egress.as_ref().map_or(Network::Off, open);
        sink.send(RunEvent::Started);
        let member = changes.as_ref().and_then(StagedChanges::member);
        let calls = NestedCalls::open(engine, call, request.grant(), &sink, member);
        claimed.running.set_calls(calls.as_ref());
        let backend = calls.clone().map(|calls| Calls::new(calls));
        let outside = Outside { network, calls: backend.unwrap_or_default() };
        let abort = Arc::clone(claimed.running.abort_handle());
        let isolate = &claimed.loaded.isolate;
        let execution = isolate.begin(&request, outside, abort, sink.event_sink());
        let (mut outcome, used) = match claimed.running.abort_handle().reason() {
            Some(reason) => {
                drop((request, prepared));
                let outcome = execution.outcome(End::Aborted(reason), engine.clock.monotonic());
                (outcome, KeptProcess::Nothing)
            }
            None => {
                let run = async {
                    tracing::debug!("started");
                    isolate.run(request, prepared, &execution).await
                };
                claim.abort_if_lost(&claimed.running, run.instrument(trace::run_span())).await
            }
        };
        claimed.settle_end(&claim, changes.as_ref(), &mut outcome);
        // Only now: a run that was aborted as its guest ended leaves no process.
        let process = match used {
            KeptProcess::Nothing => None,
            KeptProcess::Child(child) => {
                child.put_back(&outcome.end);
                None
            }
            KeptProcess::Session(process) => Some(process),
        };
        let calls = match calls {
            Some(calls) => Some(calls.close().await),
            None => None,
        };
        check_result(&claimed.loaded, &call.tool, &mut outcome.end).await;
        let kept = settle(changes, &mut outcome, &engine.clock).await;
        // Released before the receipt is written: another guest may run, and this run produces no more output.
        drop(held);
        let turn = lease.as_mut().map(|lease| lease.settle(&outcome.end, process));
        let receipt = Arc::new(claimed.receipt(calls, turn, outcome));
        let persistence = claimed.sink.persistence();
        let ClaimedCall { engine, verdict, times, running, _place, .. } = claimed;
        Ended { engine, verdict, times, persistence, claim, receipt, kept, lease, _open: (running, _place) }
    }
}

/// Lets the file changes of a successful run take effect, or wait if it is staged, and discards those of any other. If that
/// is not possible, the run is a failure.
async fn settle(
    staged: Option<StagedChanges>,
    outcome: &mut Outcome,
    clock: &Arc<dyn Clock>,
) -> Option<Kept> {
    let run_changes = staged?;
    match outcome.end.status() {
        Status::Success => {}
        Status::Staged | Status::Failure | Status::Timeout => {
            // The receipt has to agree with the answer to the caller that stopped the run after its guest.
            if let Err(reason) = run_changes.discard() {
                outcome.end = End::Aborted(reason);
            }
            return None;
        }
        Status::Aborted => return None,
    }
    match run_changes.settle(clock).await {
        Ok(Settled::HandedOver) => None,
        Ok(Settled::Unchanged(changes)) => {
            outcome.usage.changes = Some(changes);
            None
        }
        Ok(Settled::Kept(changes, kept)) => {
            outcome.usage.changes = Some(changes);
            if let (Status::Staged, End::Returned(result)) = (kept.status(), &outcome.end) {
                outcome.end = End::Staged(result.clone());
            }
            Some(*kept)
        }
        Err(SettleError::Withdrawn(reason)) => {
            outcome.end = End::Aborted(reason);
            None
        }
        Err(SettleError::NotCommitted(reason)) => {
            outcome.end = End::NotCommitted(reason);
            None
        }
        Err(SettleError::LeftToOperator(reason)) => {
            outcome.end = End::LeftToOperator(reason);
            None
        }
    }
}

/// A run whose guest has ended. The call and the catalogue are dropped already: the receipt may have to wait for the disk.
pub(in crate::run) struct Ended {
    engine: Arc<Engine>,
    verdict: Option<Arc<Verdict>>,
    times: Times,
    persistence: Option<Arc<dyn TaskPersistence>>,
    claim: FleetClaim,
    receipt: Arc<Receipt>,
    /// The changes that are kept until the receipt is on the disk.
    kept: Option<Kept>,
    /// The session until the receipt is stored; `None` for a run without one.
    lease: Option<SessionLease>,
    // Until this is dropped, the intent counts as open.
    _open: (ActiveRun, Place),
}

impl Ended {
    /// Stores the receipt. If that takes long, it goes on without the caller.
    pub(in crate::run) async fn finish(self) -> Result<Arc<Receipt>, Fault> {
        let intent = self.receipt.intent;
        let mut finish = Box::pin(self.store());
        match tokio::time::timeout(RECEIPT_TIMEOUT, &mut finish).await {
            Ok(result) => result,
            Err(_elapsed) => {
                spawn::spawn_run_task(finish.in_current_span());
                Err(receipt_pending_fault(intent))
            }
        }
    }

    async fn store(self) -> Result<Arc<Receipt>, Fault> {
        let Self { engine, verdict, times, persistence, claim, receipt, kept, lease, _open } = self;
        engine.journal_claims.announce_stage(receipt.intent, Stage::Ended);
        let (receipt, reporting) = claim.finish(receipt).await?;
        // Before anybody is told, so that the next call of the agent finds this one. Until then, it counts as in progress.
        engine.policies.governor().observe_end(&receipt);
        let status = receipt.outcome.end.status();
        let kept = match kept {
            // Another node has ended the intent meanwhile, and its receipt counts.
            Some(changes) if changes.status() != status => {
                changes.take_back().await;
                None
            }
            kept => kept,
        };
        let task = persistence.map(|persistence| persistence.final_task(&receipt, verdict.as_deref()));
        let now = engine.clock.now();
        engine.journal_claims.finish(Arc::clone(&receipt), task, reporting, now).await?;
        if let Some(changes) = kept {
            changes.finish(&receipt).await;
        }
        // Not if another node has ended the intent meanwhile: its receipt names no session that is kept.
        let is_kept =
            receipt.session.as_ref().is_some_and(|turn| matches!(turn.state, SessionState::Kept { .. }));
        if let Some(lease) = lease.filter(|_| is_kept) {
            lease.give_back();
        }
        let now = engine.clock.monotonic();
        let Times { stopwatch, queue } = times;
        let times = stopwatch.times(queue, receipt.outcome.metrics.wall, now);
        engine.metrics.record_execution(&receipt, &times, now);
        trace::log_finished(receipt.outcome.end.status(), &times);
        engine.subscribers.publish_finished(&receipt);
        Ok(receipt)
    }
}

/// Polls both futures until `first` is ready. If `second` is not ready by then, drops it and returns `None` for it.
async fn join_until_first<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> (A, Option<B>) {
    let mut first = pin!(first);
    let mut second = pin!(second);
    let mut second_result = None;
    loop {
        tokio::select! {
            biased;
            result = &mut first => return (result, second_result.or_else(|| second.as_mut().now_or_never())),
            result = &mut second, if second_result.is_none() => second_result = Some(result),
        }
    }
}
