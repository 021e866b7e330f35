//! A call up to its slot: its claim, and the wait for a slot here or at another node. [`super::phases`] runs it.

use super::passing::{AVOID_TIME, PassedEnd, TakenCall};
use super::phases::{Ready, Start, Times};
use crate::run::claims::{ClaimOutcome, ClaimedRun};
use crate::run::effects::CallTurn;
use crate::run::fleet::CallIdentity;
use crate::run::slots::{Offer, RunSlot, SlotTurn};
use crate::run::trace::Stopwatch;
use crate::run::{Engine, LoadedCatalog, RunEventSink, trace};
use a2g_govern::Admitted;
use a2g_runtime::spawn;
use a2g_types::fault::Fault;
use a2g_types::outcome::Receipt;
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

impl Engine {
    /// Claims an admitted call and runs it in its own task. `taken` has the slot that was taken for the call, if the
    /// call waited at another node.
    pub(in crate::run) async fn run(
        self: &Arc<Self>,
        admitted: Admitted,
        loaded: Arc<LoadedCatalog>,
        verdict: Option<Arc<Verdict>>,
        stopwatch: Stopwatch,
        sink: RunEventSink,
        taken: Option<TakenCall>,
    ) -> Result<Arc<Receipt>, Fault> {
        let claimed = match self.claims.claim(admitted, loaded, verdict).await? {
            ClaimOutcome::Claimed(claimed) => ClaimedRun { taken, ..*claimed },
            ClaimOutcome::Known(call, known) => {
                // The earlier call may wait here for this slot.
                drop(taken);
                return Ok(self.claims.await_existing(&CallIdentity::of(&call), known).await?.0);
            }
        };
        let engine = Arc::clone(self);
        let intent = claimed.admitted.call().intent;
        let task_sink = sink.has_task().then(|| sink.clone());
        let task = async move {
            let result = Arc::clone(&engine).run_claimed(claimed, stopwatch, sink).await;
            engine.end_stored_call(intent, result, task_sink).await
        };
        let task = spawn::spawn_run_task(task.in_current_span());
        match task.await {
            Ok(result) => result,
            Err(error) => Err(Fault::Internal(format!("the task of a run ended early: {error}"))),
        }
    }

    /// Runs a claimed intent until it has a receipt or is released.
    pub(in crate::run) async fn run_claimed(
        self: Arc<Self>,
        mut claimed: ClaimedRun,
        mut stopwatch: Stopwatch,
        sink: RunEventSink,
    ) -> Result<Arc<Receipt>, Fault> {
        let queued_at = self.clock.monotonic();
        // Before it has a slot, which others can use meanwhile.
        claimed.shared_files = self.wait_for_files(&claimed).await;
        let slot = match self.wait_for_slot(&mut claimed, &sink).await? {
            SlotWait::Run(slot) => Some(slot),
            SlotWait::Aborted => None,
            SlotWait::Finished(receipt) => return Ok(receipt),
        };
        let queue = stopwatch.exclude(queued_at, self.clock.monotonic());
        let ready = Ready::new(Arc::clone(&self), claimed, slot, sink, Times { stopwatch, queue });
        let started = match ready.start().await? {
            Start::New(started) => started,
            Start::Known(call, known) => {
                return Ok(self.claims.await_existing(&CallIdentity::of(call.call()), known).await?.0);
            }
        };
        started.run().await.finish().await
    }

    /// Waits until a call has the files of the run that makes it, if it shares them.
    async fn wait_for_files(&self, claimed: &ClaimedRun) -> Option<CallTurn> {
        let ClaimedRun { admitted, permit, .. } = claimed;
        let has_files = !permit.roots().as_slice().is_empty() || permit.grant().calls().allows_any();
        let parent = admitted.call().parent.as_ref().filter(|_| has_files);
        let calls = parent.and_then(|parent| self.intents.calls_of(parent.intent));
        let caller = calls.and_then(|calls| calls.member())?;
        tokio::select! {
            turn = caller.wait_for_turn() => Some(turn),
            // It ends without a run.
            _reason = claimed.running.abort_handle().wait() => None,
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
        let mut offer = match claimed.approved_by {
            Some(_) => None,
            None => self.passing.offer(&claimed.admitted, &claimed.loaded, &self.settings.ceilings),
        };
        loop {
            let request = match self.next_turn(claimed, offer.as_ref(), sink).await {
                Some(SlotTurn::Run(slot)) => return Ok(SlotWait::Run(slot)),
                Some(SlotTurn::PassOn(request)) => request,
                None => return Ok(SlotWait::Aborted),
            };
            let node = request.node.clone();
            let ClaimedRun { admitted, verdict, place, running, was_passed_on, .. } = &mut *claimed;
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

    /// Waits for a slot, or for a node that takes the call. Returns `None` if the intent is cancelled or stopped meanwhile.
    async fn next_turn(
        self: &Arc<Self>,
        claimed: &ClaimedRun,
        offer: Option<&Offer>,
        sink: &RunEventSink,
    ) -> Option<SlotTurn> {
        let ClaimedRun { admitted, verdict, place, lent_slot, running, .. } = claimed;
        let turn = async {
            tracing::debug!("queued");
            tokio::select! {
                turn = place.acquire_slot(admitted.call().priority, lent_slot.clone(), offer.cloned()) => turn,
                _cancelled = running.abort_handle().wait() => None,
            }
        };
        let mut turn = pin!(turn.instrument(trace::queue_span()));
        if let Some(turn) = turn.as_mut().now_or_never() {
            return turn;
        }
        sink.notify_waiting();
        self.passing.announce(offer);
        let store = async {
            if offer.is_some() {
                self.call_store.store(admitted, verdict.is_some(), sink).await;
            }
        };
        tokio::join!(turn, store).0
    }
}
