//! The run of a claimed intent: the slot, the start record, the guest, the receipt.

use super::faults::receipt_pending_fault;
use super::fleet::{CallIdentity, StartOutcome};
use super::nested::NestedCalls;
use super::open_intents::ActiveRun;
use super::passing::{AVOID_TIME, PassedEnd, TakenCall};
use super::slots::{RunSlot, SlotTurn};
use super::trace::Stopwatch;
use super::{
    ClaimOutcome, ClaimedRun, Executor, LoadedCatalog, RECEIPT_TIMEOUT, RunEvent, RunEventSink, trace,
};
use a2g_govern::{Admitted, Granted};
use a2g_journal::{Stage, StartRequest};
use a2g_runtime::spawn;
use a2g_sandbox::egress::{Egress, Network};
use a2g_sandbox::{Calls, Outside};
use a2g_types::call::Call;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::IntentId;
use a2g_types::limit::Limit;
use a2g_types::outcome::{AbortReason, End, Receipt};
use a2g_types::verdict::Verdict;
use futures_util::FutureExt as _;
use std::pin::pin;
use std::sync::Arc;
use tracing::Instrument as _;

/// The end of the wait of a claimed intent.
enum SlotWait {
    /// The guest may run here.
    Run(RunSlot),
    /// The intent was cancelled or stopped while it waited.
    Aborted,
    /// Another node has run the call.
    Finished(Arc<Receipt>),
}

impl Executor {
    /// Claims an admitted call and runs it in its own task. `idle_slot` is the slot that was taken for the call, if the
    /// call waited at another node.
    pub(super) async fn run(
        self: &Arc<Self>,
        admitted: Admitted,
        loaded: Arc<LoadedCatalog>,
        verdict: Option<Arc<Verdict>>,
        stopwatch: Stopwatch,
        sink: RunEventSink,
        taken: Option<TakenCall>,
    ) -> Result<Arc<Receipt>, Fault> {
        let claimed = match self.claim(admitted, loaded, verdict).await? {
            ClaimOutcome::Claimed(claimed) => ClaimedRun { taken, ..*claimed },
            ClaimOutcome::Known(call, known) => {
                // The earlier call may wait here for this slot.
                drop(taken);
                return Ok(self.await_existing(&CallIdentity::of(&call), known).await?.0);
            }
        };
        let (executor, intent) = (Arc::clone(self), claimed.admitted.call().intent);
        let task_sink = sink.has_task().then(|| sink.clone());
        let task = async move {
            let result = Arc::clone(&executor).run_claimed(claimed, stopwatch, sink).await;
            executor.end_stored_call(intent, result, task_sink).await
        };
        let task = spawn::spawn_run_task(task.in_current_span());
        match task.await {
            Ok(result) => result,
            Err(error) => Err(Fault::Internal(format!("the task of a run ended early: {error}"))),
        }
    }

    /// Runs a claimed intent until it has a receipt or is released.
    pub(super) async fn run_claimed(
        self: Arc<Self>,
        mut claimed: ClaimedRun,
        mut stopwatch: Stopwatch,
        sink: RunEventSink,
    ) -> Result<Arc<Receipt>, Fault> {
        let queued_at = self.clock.monotonic();
        let wait = self.wait_for_slot(&mut claimed, &sink).await;
        let ClaimedRun {
            admitted,
            loaded,
            verdict,
            approved_by,
            permit,
            place,
            running,
            taken,
            was_passed_on,
            ..
        } = claimed;
        let slot = match wait? {
            SlotWait::Run(slot) => Some(slot),
            SlotWait::Aborted => None,
            SlotWait::Finished(receipt) => return Ok(receipt),
        };
        let call = admitted.call();
        let queue = stopwatch.exclude(queued_at, self.clock.monotonic());
        let runs_later = approved_by.is_some() || self.stored_calls.contains(call.intent);
        if runs_later && running.abort().reason() == Some(AbortReason::Shutdown) {
            // The next process or another node runs it: no caller waits for the result.
            self.release(call.intent).await?;
            return Err(self.busy_fault("the executor is shutting down"));
        }
        let is_late = taken.is_some_and(|taken| taken.is_late(self.clock.monotonic()));
        let check = if is_late {
            Err(self.busy_fault("this executor took the call from another node too long ago"))
        } else {
            self.check_start(&admitted, &running, was_passed_on)
        };
        if let Err(refusal) = check {
            self.release(call.intent).await?;
            return Err(refusal);
        }
        let output = self.output.reserve(permit.grant().output().value.bytes());
        // A map with text keys: serializing it cannot fail.
        let arguments = serde_json::to_string(&call.arguments).unwrap_or_default();
        let run_request = loaded.isolate.request(&call.tool, permit, arguments);
        let signature = loaded.usable_tool(&call.tool).and_then(|tool| tool.descriptor.signature.as_ref());
        let receipt = |calls, outcome| {
            let Call { agent, intent, tool, door, parent, .. } = call;
            let (approved_by, durability) = (approved_by.clone(), self.journal.durability());
            let (agent, intent, tool, parent) = (agent.clone(), *intent, tool.clone(), parent.clone());
            let (door, signature) = (*door, signature.cloned());
            Receipt { agent, intent, tool, door, approved_by, durability, parent, calls, signature, outcome }
        };
        // Recovery adds the calls to this receipt.
        let no_calls = NestedCalls::none_yet(run_request.grant());
        let fallback = receipt(no_calls, loaded.isolate.lost_outcome(&run_request));
        let persistence = sink.persistence();
        let task = persistence.as_ref().and_then(|persistence| persistence.fallback_task());
        let (keep_until, proof) = (admitted.keep_until(), admitted.proof_id());
        let request =
            StartRequest { call, keep_until, proof, fallback_receipt: &fallback, task: task.as_ref() };
        let start = self.start(request, verdict.as_deref());
        let (start_outcome, prepared) = join_until_first(start, loaded.isolate.prepare(&run_request)).await;
        let prepared = prepared.flatten();
        let claim = match start_outcome? {
            StartOutcome::New(claim) => claim,
            StartOutcome::Known(known) => {
                drop((prepared, slot, output));
                return Ok(self.await_existing(&CallIdentity::of(call), known).await?.0);
            }
            StartOutcome::Replayed => {
                let message = "the `proof` was already used for another intent: ask the governor again";
                return Err(admitted.refusal(BlockedBy::VerdictReplayed, message));
            }
        };
        // Checked again, because the writes of the start may have been slow.
        let check = if claim.is_held() {
            self.check_start(&admitted, &running, was_passed_on)
        } else {
            Err(self.busy_fault(
                "this executor lost its lease in the fleet before the tool ran: send the call again",
            ))
        };
        if let Err(refusal) = check {
            drop(prepared);
            claim.release().await;
            self.release(call.intent).await?;
            return Err(refusal);
        }
        self.remove_stored_call(call.intent);
        let sink = self.subscribers.wrap(call, sink);
        let open = |egress: &Arc<Egress>| egress.open(&call.agent, run_request.grant());
        let network = self.egress.as_ref().map_or(Network::Off, open);
        sink.send(RunEvent::Started);
        let calls = NestedCalls::open(&self, call, run_request.grant(), &sink);
        running.set_calls(calls.as_ref());
        let backend = calls.clone().map(|calls| Calls::new(calls));
        let outside = Outside { network, calls: backend.unwrap_or_default() };
        let abort = Arc::clone(running.abort());
        let execution = loaded.isolate.begin(&run_request, outside, abort, sink.event_sink());
        let mut outcome = match running.abort().reason() {
            Some(reason) => {
                drop((run_request, prepared));
                execution.outcome(End::Aborted(reason), self.clock.monotonic())
            }
            None => {
                let run = async {
                    tracing::debug!("started");
                    loaded.isolate.run(run_request, prepared, &execution).await
                };
                claim.abort_if_lost(&running, run.instrument(trace::run_span())).await
            }
        };
        // The receipt has to agree with the answer to the caller that stopped the run, even if the guest ended first.
        if let Some(reason) = running.end() {
            outcome.end = End::Aborted(reason);
        } else if !claim.is_held() {
            // Another node may have ended the intent as aborted while the guest was running.
            outcome.end = End::Aborted(AbortReason::LeaseLost);
        }
        if outcome.end == End::LimitReached(Limit::Memory) {
            let needed = loaded.usable_tool(&call.tool).map(|tool| tool.facts.start_memory_bytes);
            let limit = outcome.usage.memory.value.bytes();
            outcome.usage.start_memory_bytes = needed.filter(|needed| *needed > limit);
        }
        let calls = match calls {
            Some(calls) => Some(calls.close().await),
            None => None,
        };
        Self::check_result(&loaded, &call.tool, &mut outcome.end).await;
        // Released before the receipt is written: another guest may run, and this run produces no more output.
        drop((slot, output));
        let receipt = Arc::new(receipt(calls, outcome));
        let intent = call.intent;
        let finish = async move {
            // Dropped once the receipt is on the disk, because the intent counts as open until then.
            let _open = (place, running);
            self.journal.announce_stage(intent, Stage::Ended);
            let (receipt, reporting) = claim.finish(receipt).await?;
            let task = persistence.map(|persistence| persistence.final_task(&receipt, verdict.as_deref()));
            let result = self.journal.finish(Arc::clone(&receipt), task, reporting, self.clock.now()).await;
            result.map_err(|error| self.journal_fault(&error))?;
            let now = self.clock.monotonic();
            let times = stopwatch.times(queue, receipt.outcome.metrics.wall, now);
            self.metrics.record_execution(&receipt, &times, now);
            trace::log_finished(receipt.outcome.end.status(), &times);
            self.subscribers.publish_finished(&receipt);
            Ok(receipt)
        };
        let mut finish = Box::pin(finish);
        match tokio::time::timeout(RECEIPT_TIMEOUT, &mut finish).await {
            Ok(result) => result,
            Err(_elapsed) => {
                spawn::spawn_run_task(finish.in_current_span());
                Err(receipt_pending_fault(intent))
            }
        }
    }

    /// Waits until a claimed intent has a slot. Another node may run the call meanwhile, unless a person approved it or
    /// it came from another node.
    async fn wait_for_slot(
        self: &Arc<Self>,
        claimed: &mut ClaimedRun,
        sink: &RunEventSink,
    ) -> Result<SlotWait, Fault> {
        if let Some(slot) = claimed.taken.as_mut().and_then(TakenCall::take_slot) {
            return Ok(SlotWait::Run(slot));
        }
        let ClaimedRun {
            admitted,
            loaded,
            verdict,
            approved_by,
            place,
            lent_slot,
            running,
            was_passed_on,
            ..
        } = claimed;
        let call = admitted.call();
        let mut offer = if approved_by.is_none() { self.offer(admitted, loaded) } else { None };
        loop {
            let turn = {
                // `None` if the intent is cancelled or stopped while it waits.
                let turn = async {
                    tracing::debug!("queued");
                    tokio::select! {
                        turn = place.acquire_slot(call.priority, lent_slot.clone(), offer.clone()) => turn,
                        _cancelled = running.abort().wait() => None,
                    }
                };
                let mut turn = pin!(turn.instrument(trace::queue_span()));
                match turn.as_mut().now_or_never() {
                    Some(turn) => turn,
                    None => {
                        sink.notify_waiting();
                        self.passing.announce(offer.as_ref());
                        let store = async {
                            if offer.is_some() {
                                self.store_waiting_call(admitted, verdict.is_some(), sink).await;
                            }
                        };
                        tokio::join!(turn, store).0
                    }
                }
            };
            let request = match turn {
                Some(SlotTurn::Run(slot)) => return Ok(SlotWait::Run(slot)),
                Some(SlotTurn::PassOn(request)) => request,
                None => return Ok(SlotWait::Aborted),
            };
            let node = request.node.clone();
            place.set_passed_on(true);
            match self.pass_on(admitted, verdict.is_some(), request, running, sink).await? {
                PassedEnd::Finished(receipt) => return Ok(SlotWait::Finished(receipt)),
                // This node has the tool, so its own rules decide, not the refusal of the other node.
                PassedEnd::Returned(_refusal) => {
                    *was_passed_on = true;
                    let until = self.clock.monotonic() + AVOID_TIME;
                    offer.iter_mut().for_each(|offer| offer.returned_by.push((node.clone(), until)));
                }
                PassedEnd::Kept => offer = None,
            }
            place.set_passed_on(false);
        }
    }

    /// Checks that the guest may still start. A call that may not is withdrawn rather than aborted, because nothing has run.
    fn check_start(
        &self,
        admitted: &Admitted<Granted>,
        running: &ActiveRun,
        was_passed_on: bool,
    ) -> Result<(), Fault> {
        match self.check_start_of(admitted.call()) {
            // Another node may still have the call: if it were withdrawn, it could run there. So it ends as aborted.
            Err(_stopped) if was_passed_on => running.stop(AbortReason::Stopped),
            result => result?,
        }
        admitted.check_expiry(self.clock.now())
    }

    pub(super) async fn release(&self, intent: IntentId) -> Result<(), Fault> {
        self.journal.release(intent).await.map_err(|error| self.journal_fault(&error))
    }
}

/// Polls both futures until `first` is ready. If `second` is not ready by then, drops it and returns `None` for it.
async fn join_until_first<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> (A, Option<B>) {
    let (mut first, mut second, mut second_result) = (pin!(first), pin!(second), None);
    loop {
        tokio::select! {
            biased;
            result = &mut first => return (result, second_result.or_else(|| second.as_mut().now_or_never())),
            result = &mut second, if second_result.is_none() => second_result = Some(result),
        }
    }
}
