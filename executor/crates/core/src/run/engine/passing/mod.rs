//! Calls that one node of a fleet passes on, because it has no free slot or lacks the tool, and another node runs.
//!
//! ```text
//! the node at which a call waits                    a node with a free slot
//! announces that calls wait           ─▶
//!                                     ◀─  takes an idle slot, and asks for a call: tools, full agents, priority
//! the call that would run next        ─▶  claims the intent in the fleet, and runs it like its own
//! events for its door and its task    ◀─  events
//! the receipt, from the claim         ◀─  the end
//! ```
//! A node serves its own queue first, but a slot that becomes free goes to a call of a higher priority elsewhere.
//!
//! The claim decides who runs a call. If none appears in time, the call waits here again, and whoever claims it first
//! runs it. Nested calls, and calls that a person approved here, wait for a slot of this node only.
//!
//! A call whose tool this node lacks waits only for another node. Its refusal is the answer, unless it is only busy.

mod events;
mod waiting_nodes;

pub(in crate::run) use waiting_nodes::AVOID_TIME;

use super::checks::{check_arguments, check_memory};
use crate::run::faults::{NodeFault, busy_fault, lifted_stop_fault, receipt_pending_fault};
use crate::run::fleet::{CallIdentity, FOLLOW_DELAYS, Fleet, FleetDenial, MAX_FAILED_REQUESTS, subscribe};
use crate::run::message_size::{is_too_large, too_large_fault};
use crate::run::open_intents::ActiveRun;
use crate::run::reserved_claim::ReservedClaim;
use crate::run::slots::{IdleSlot, KeptSlot, Offer, PassOnRequest, Place, RunSlot, SlotTurn};
use crate::run::trace::{self, Stopwatch};
use crate::run::{Engine, LoadedCatalog, Membership, RunEventSink};
use a2g_capability::Ceilings;
use a2g_fleet::{CallSelection, EventMessages, FoundClaim, FoundState, TakeRequest};
use a2g_govern::{Admission, Admitted, Granted, VerifiedVerdict, admit};
use a2g_journal::{IntentSummary, KnownIntent, Stage, StageSource, content_hash};
use a2g_runtime::{spawn, timer_now};
use a2g_types::call::{Call, Priority};
use a2g_types::fault::Fault;
use a2g_types::node::{CallMessage, NodeName, PassedCall};
use a2g_types::outcome::{AbortReason, Receipt};
use a2g_types::tool::{Descriptor, Digest};
use a2g_types::verdict::Verdict;
use events::{EventReceiver, MAX_UNSENT_EVENTS, PassedEvent, event_sink, send_events};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tracing::Instrument as _;
use waiting_nodes::WaitingNodes;

/// The time after which a call that another node has taken waits here again, unless that node has claimed it.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(3);
/// The time after its request for a call in which a node has to claim it.
// Shorter than CLAIM_TIMEOUT, which begins later.
const CLAIM_DEADLINE: Duration = Duration::from_secs(2);
/// The time between two checks that another node still has the tool of a call that waits for it.
const TOOL_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The time before a call that could not be sent to a node is offered again.
const RESEND_DELAY: Duration = Duration::from_millis(250);
/// The time between two announcements of calls that keep waiting.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(250);
/// The minimum time between two announcements.
const MIN_ANNOUNCE_INTERVAL: Duration = Duration::from_millis(1);

/// The signal that a call waits which another node may run, and the numbers of calls that were shared.
#[derive(Debug, Default)]
pub(in crate::run) struct Passing {
    /// `true` if calls are passed on and taken.
    pub(in crate::run) is_enabled: bool,
    waiting: Notify,
    /// The number of calls that have waited here and run at another node.
    pub(in crate::run) passed: AtomicU64,
    /// The number of calls that have waited at another node and run here.
    pub(in crate::run) taken: AtomicU64,
}

impl Passing {
    pub(in crate::run) fn new(is_enabled: bool) -> Self {
        Self { is_enabled, ..Self::default() }
    }

    /// Announces that a call waits, if other nodes may run it.
    pub(in crate::run) fn announce(&self, offer: Option<&Offer>) {
        if offer.is_some() {
            self.waiting.notify_one();
        }
    }

    /// The offer of a call to other nodes; `None` for a call that has to run here.
    pub(in crate::run) fn offer(
        &self,
        admitted: &Admitted<Granted>,
        loaded: &LoadedCatalog,
        ceilings: &Ceilings,
    ) -> Option<Offer> {
        let call = admitted.call();
        if !self.is_enabled || call.is_bound_to_node() || !admitted.may_run_elsewhere() {
            return None;
        }
        let Descriptor { digest, capabilities, .. } = &loaded.usable_tool(&call.tool)?.descriptor;
        // Another node could lack a secret. Of a tool that declares it, that node would refuse the call.
        let mut bound = ceilings.secrets.iter().filter(|binding| binding.is_for(&call.agent, &call.tool));
        if bound.any(|binding| !capabilities.secrets.contains(binding.name())) {
            return None;
        }
        Some(Offer { tool: call.tool.clone(), module: Some(*digest), returned_by: Vec::new() })
    }
}

/// The end of an attempt to pass a call on.
pub(in crate::run) enum PassedEnd {
    /// The other node has run the call.
    Finished(Arc<Receipt>),
    /// The other node has not run the call. The fault is its refusal; `None` if it sent none.
    Returned(Option<Fault>),
    /// The call was not sent.
    Kept,
}

impl PassedEnd {
    /// The end of a call whose intent has an end in the fleet.
    fn from_known(known: KnownIntent) -> Self {
        match known {
            KnownIntent::Same(StageSource::Final(Stage::Finished(receipt)), _) => Self::Finished(receipt),
            // Another call has the same id, or the intent is denied: the caller looks the intent up again.
            KnownIntent::Same(..) | KnownIntent::Conflict | KnownIntent::Denied(_) => Self::Returned(None),
        }
    }
}

/// The next step of a call whose tool this node lacks.
enum NextStep {
    PassOn(PassOnRequest),
    /// This node has the tool now.
    HasTool(Arc<LoadedCatalog>),
    Refused(Fault),
    Aborted(AbortReason),
}

/// The end of the offers of a call whose tool this node lacks.
enum OfferEnd {
    /// Another node has run the call.
    Finished(Arc<Receipt>),
    /// This node has the tool now.
    HasTool(Arc<LoadedCatalog>),
    /// A node has claimed or denied the intent, possibly with other content.
    Known(KnownIntent),
    Refused(Fault),
}

/// A call that waited at another node.
pub(in crate::run) struct TakenCall {
    /// `None` once the run has it.
    slot: Option<RunSlot>,
    claim_by: Instant,
}

impl TakenCall {
    pub(in crate::run) fn take_slot(&mut self) -> Option<RunSlot> {
        self.slot.take()
    }

    /// Returns `true` if the other node may have taken the call back.
    pub(in crate::run) fn is_late(&self, now: Instant) -> bool {
        now >= self.claim_by
    }
}

impl Engine {
    /// Runs an admitted call at another node, because this one lacks its tool.
    pub(in crate::run) async fn run_elsewhere(
        self: &Arc<Self>,
        admitted: Admitted,
        verdict: Option<Arc<Verdict>>,
        stopwatch: Stopwatch,
        sink: RunEventSink,
    ) -> Result<Arc<Receipt>, Fault> {
        if node_text(&admitted).is_none() {
            return Err(too_large_fault(&admitted.call().tool));
        }
        let (mut place, running) = match self.claims.reserve_and_claim(&admitted, verdict.clone()).await? {
            ReservedClaim::New(place, running) => (place, running),
            ReservedClaim::Known(known) => {
                return Ok(self.claims.await_existing(&CallIdentity::of(admitted.call()), known).await?.0);
            }
        };
        let engine = Arc::clone(self);
        let identity = CallIdentity::of(admitted.call());
        let intent = identity.intent;
        let task_sink = sink.has_task().then(|| sink.clone());
        let run = async move |engine: &Arc<Self>| {
            engine.call_store.store(&admitted, verdict.is_some(), &sink).await;
            sink.notify_waiting();
            let end = engine.offer_call(&admitted, verdict.is_some(), &mut place, &running, &sink).await?;
            if !matches!(end, OfferEnd::Finished(_)) {
                engine.claims.release(intent).await?;
            }
            drop((place, running));
            match end {
                OfferEnd::Finished(receipt) => Ok(receipt),
                OfferEnd::HasTool(loaded) => {
                    check_arguments(&loaded, admitted.call()).await?;
                    engine.run(admitted, loaded, verdict, stopwatch, sink, None).await
                }
                OfferEnd::Known(known) => Ok(engine.claims.await_existing(&identity, known).await?.0),
                OfferEnd::Refused(fault) => Err(fault),
            }
        };
        let task = async move {
            let result = run(&engine).await;
            engine.end_stored_call(intent, result, task_sink).await
        };
        // Goes on if the caller disconnects, as a run does.
        let result = spawn::spawn_run_task(task.in_current_span()).await;
        result.unwrap_or_else(|error| {
            Err(Fault::Internal(format!("the task of a call that was passed on ended early: {error}")))
        })
    }

    /// Passes a claimed call on to the nodes that ask for it, until one has run or refused it, or this node has the tool.
    ///
    /// # Errors
    /// As for [`Self::pass_on`], which has released the intent.
    async fn offer_call(
        self: &Arc<Self>,
        admitted: &Admitted,
        asked_governor: bool,
        place: &mut Place,
        running: &ActiveRun,
        sink: &RunEventSink,
    ) -> Result<OfferEnd, Fault> {
        let call = admitted.call();
        let mut offer = Offer { tool: call.tool.clone(), module: None, returned_by: Vec::new() };
        // `true` once a node had the call and sent no refusal. It may still claim it, so a refusal here could be untrue.
        let mut may_be_claimed = false;
        let fault = loop {
            let request = match self.next_step(admitted, place, running, &offer).await {
                NextStep::PassOn(request) => request,
                NextStep::HasTool(loaded) => return Ok(OfferEnd::HasTool(loaded)),
                NextStep::Refused(fault) => break fault,
                NextStep::Aborted(reason) => {
                    let fault = self.end_aborted(call, reason, may_be_claimed).await;
                    return Ok(OfferEnd::Refused(fault));
                }
            };
            let node = request.node.clone();
            place.set_passed_on(true);
            let end = self.pass_on(admitted, asked_governor, request, running, sink).await?;
            place.set_passed_on(false);
            match end {
                PassedEnd::Finished(receipt) => return Ok(OfferEnd::Finished(receipt)),
                PassedEnd::Returned(Some(Fault::Busy { .. })) => {}
                PassedEnd::Returned(Some(refusal)) => break refusal,
                PassedEnd::Returned(None) => may_be_claimed = true,
                // Such as without a connection: the next request would end in the same way.
                PassedEnd::Kept => {
                    tokio::time::sleep(RESEND_DELAY).await;
                    continue;
                }
            }
            offer.returned_by.push((node, self.clock.monotonic() + AVOID_TIME));
            match self.node.find_in_fleet(&CallIdentity::of(call)).await {
                Ok(None) => {}
                Ok(Some(known)) => return Ok(OfferEnd::Known(known)),
                Err(fault) => break fault,
            }
        };
        let fault = if may_be_claimed { unknown_end(call, false) } else { fault };
        Ok(OfferEnd::Refused(fault))
    }

    /// Waits until a node asks for a call whose tool this one lacks.
    async fn next_step(
        &self,
        admitted: &Admitted,
        place: &Place,
        running: &ActiveRun,
        offer: &Offer,
    ) -> NextStep {
        tokio::select! {
            // Polled in this order, so that the call waits before it is announced.
            biased;
            turn = place.wait_for_turn(admitted.call().priority, Some(offer.clone())) => match turn {
                Some(SlotTurn::PassOn(request)) => match admitted.check_expiry(self.clock.now()) {
                    Ok(()) => NextStep::PassOn(request),
                    Err(expired) => NextStep::Refused(expired),
                },
                Some(SlotTurn::Run(_)) | None => {
                    let message = "a call whose tool this node lacks got a slot, or lost its place in the queue";
                    NextStep::Refused(Fault::Internal(message.to_owned()))
                }
            },
            reason = running.abort_handle().wait() => NextStep::Aborted(reason),
            next = self.announce_and_check(admitted, offer) => next,
        }
    }

    /// Ends a call that was aborted while it waited for another node. One that was cancelled or revoked can then run at no
    /// node. Returns the fault for its caller.
    async fn end_aborted(&self, call: &Call, reason: AbortReason, may_be_claimed: bool) -> Fault {
        match reason {
            AbortReason::Cancelled | AbortReason::Revoked => {
                let denied = match self.node.fleet() {
                    Some(fleet) => self.node.withdraw_in_fleet(fleet, call, reason).await,
                    None => Ok(true),
                };
                match denied {
                    // As its repeats.
                    Ok(true) => FleetDenial::Withdrawn { reason }.into_fault(call.intent),
                    Ok(false) | Err(_) => unknown_end(call, false),
                }
            }
            AbortReason::Stopped if !may_be_claimed => {
                self.intents.check_stopped(call).err().unwrap_or_else(|| lifted_stop_fault(call.intent))
            }
            AbortReason::Shutdown if !may_be_claimed => busy_fault("the executor is shutting down"),
            AbortReason::Stopped
            | AbortReason::Shutdown
            | AbortReason::Lost
            | AbortReason::LeaseLost
            | AbortReason::ParentEnded => unknown_end(call, false),
        }
    }

    /// Announces a call whose tool this node lacks, until its verdict expires, this node has the tool, or none has it.
    async fn announce_and_check(&self, admitted: &Admitted, offer: &Offer) -> NextStep {
        let call = admitted.call();
        self.passing.announce(Some(offer));
        loop {
            tokio::time::sleep(TOOL_CHECK_INTERVAL).await;
            if let Err(expired) = admitted.check_expiry(self.clock.now()) {
                return NextStep::Refused(expired);
            }
            if let Ok(loaded) = self.catalogue.find(call) {
                return NextStep::HasTool(loaded);
            }
            match self.check_tool_elsewhere(call).await {
                // A node that does not answer may come back.
                Ok(()) | Err(Fault::Busy { .. }) => {}
                Err(absent) => return NextStep::Refused(absent),
            }
        }
    }

    /// Passes a call on to the node that asked for it, and waits for its receipt. Releases the intent on an error.
    pub(in crate::run) async fn pass_on<L>(
        self: &Arc<Self>,
        admitted: &Admitted<L>,
        asked_governor: bool,
        request: PassOnRequest,
        running: &ActiveRun,
        sink: &RunEventSink,
    ) -> Result<PassedEnd, Fault> {
        let call = admitted.call();
        let Some(fleet) = self.node.fleet() else { return Ok(PassedEnd::Kept) };
        // Subscribed before the other node has the call, so that no event is lost.
        let Ok(messages) = fleet.messages.events_of(call.intent).await else { return Ok(PassedEnd::Kept) };
        let Some(text) = node_text(admitted) else { return Ok(PassedEnd::Kept) };
        running.pass_on();
        let is_stopped = running.abort_handle().reason().is_some();
        if is_stopped || request.call.send(CallMessage { text, asked_governor }).is_err() {
            running.take_back();
            return Ok(PassedEnd::Kept);
        }
        tracing::debug!("passed on");
        // The other node may run it, whatever is heard of it.
        admitted.note_begun();
        let sink = self.subscribers.wrap(call, sink.clone());
        let mut events = EventReceiver::new(sink);
        let end = self.follow_passed(fleet, call, messages, running, &mut events).await;
        match &end {
            Ok(PassedEnd::Finished(receipt)) => {
                events.complete(receipt);
                // The other node decides by the past that it has seen, and this one by what it has decided on.
                self.policies.governor().observe_end(receipt);
                self.journal_claims.close_elsewhere(call.intent, Arc::clone(receipt));
                self.subscribers.publish_finished(receipt);
                self.passing.passed.fetch_add(1, Relaxed);
            }
            Ok(PassedEnd::Returned(_) | PassedEnd::Kept) => {
                tracing::debug!("the other node has not run the call");
                self.journal_claims.announce_stage(call.intent, Stage::Queued);
                running.take_back();
            }
            Err(_) => self.claims.release(call.intent).await?,
        }
        end
    }

    /// Delivers the events of a call that was passed on, and reads its claim until the call has ended or was not
    /// claimed in time.
    async fn follow_passed(
        self: &Arc<Self>,
        fleet: &Arc<Fleet>,
        call: &Call,
        mut messages: EventMessages,
        running: &ActiveRun,
        events: &mut EventReceiver,
    ) -> Result<PassedEnd, Fault> {
        let [mut delay, max_delay] = FOLLOW_DELAYS;
        let passed_at = timer_now();
        let mut next_request = passed_at + delay;
        let mut is_claimed = false;
        let mut has_ended = false;
        let mut failed = 0;
        let content = Digest(content_hash(call)).to_string();
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => {
                        let is_last = self.deliver_message(call, &message, events);
                        if !is_last {
                            continue;
                        }
                        has_ended = true;
                    }
                    // Without a connection, the claim cannot be read either.
                    None => tokio::time::sleep_until(next_request).await,
                },
                () = tokio::time::sleep_until(next_request) => {}
                // Only the end of this process stops a call that was passed on.
                _stopped = running.abort_handle().wait() => return Err(unknown_end(call, is_claimed)),
            }
            delay = (delay * 3 / 2).min(max_delay);
            next_request = timer_now() + delay;
            let found = match fleet.claims.find(call.intent).await {
                Ok(Some(FoundClaim { state: FoundState::Open, content: found, .. })) if found == content => {
                    (is_claimed, failed) = (true, 0);
                    continue;
                }
                Ok(Some(found)) => {
                    let known = self.node.known_in_fleet(fleet, &CallIdentity::of(call), found).await;
                    known.map(PassedEnd::from_known)
                }
                Ok(None) if is_claimed || has_ended || passed_at.elapsed() >= CLAIM_TIMEOUT => {
                    return Ok(PassedEnd::Returned(events.refusal.take()));
                }
                Ok(None) => continue,
                Err(error) => Err(self.node.fleet_fault(&error)),
            };
            match found {
                Ok(end) => return Ok(end),
                Err(_) if failed >= MAX_FAILED_REQUESTS => return Err(unknown_end(call, is_claimed)),
                Err(_) => failed += 1,
            }
        }
    }

    /// Delivers a message of the node that runs a call. Returns `true` for the last one.
    fn deliver_message(&self, call: &Call, message: &[u8], events: &mut EventReceiver) -> bool {
        match serde_json::from_slice::<PassedEvent>(message) {
            Ok(PassedEvent::Ended) => return true,
            Ok(PassedEvent::Refused(fault)) => events.refusal = Some(fault.into_fault(call.intent)),
            Ok(event) => {
                self.journal_claims.announce_stage(call.intent, Stage::Running);
                events.deliver(event);
            }
            Err(_other_version) => {}
        }
        false
    }

    /// Admits a call of another node, under the stops of this one. Returns the verdict to store, if the governor was asked.
    pub(in crate::run) fn admit_from_node(
        &self,
        call: Call,
        verdict: VerifiedVerdict,
        asked_governor: bool,
    ) -> Result<(Admitted, Option<Arc<Verdict>>), Fault> {
        self.intents.check_stopped(&call)?;
        let stored_verdict = asked_governor.then(|| Arc::clone(verdict.verdict()));
        match admit(call, verdict, self.clock.now())? {
            Admission::Run(admitted) => Ok((*admitted, stored_verdict)),
            Admission::Wait(escalated) => {
                Err(Fault::Internal(format!("the intent {} waits for a person", escalated.call().intent)))
            }
        }
    }
}

impl Membership {
    /// Passes on calls that wait here, and runs calls that wait at other nodes, until the sessions end.
    pub(in crate::run) fn share_calls(self: &Arc<Self>, fleet: &Arc<Fleet>) {
        if self.passing.is_enabled {
            self.sessions.spawn(Arc::clone(self).announce_calls(Arc::clone(fleet)));
            self.sessions.spawn(Arc::clone(self).answer_requests(Arc::clone(fleet)));
            self.sessions.spawn(Arc::clone(self).take_calls(Arc::clone(fleet)));
        }
    }

    /// Announces the calls that wait here.
    async fn announce_calls(self: Arc<Self>, fleet: Arc<Fleet>) {
        loop {
            self.passing.waiting.notified().await;
            while let Some(priority) = self.slots.highest_offer() {
                // If the servers do not answer, `keep_fleet` logs it.
                drop(fleet.messages.announce_waiting(priority.level()).await);
                tokio::time::sleep(MIN_ANNOUNCE_INTERVAL).await;
                drop(tokio::time::timeout(ANNOUNCE_INTERVAL, self.passing.waiting.notified()).await);
            }
        }
    }

    /// Replies to the requests of other nodes for calls that wait here.
    async fn answer_requests(self: Arc<Self>, fleet: Arc<Fleet>) {
        let mut requests = subscribe(|| fleet.messages.take_requests()).await;
        while let Some(request) = requests.next().await {
            let CallSelection { tools, full_agents, above } = &request.selection;
            let call = self.slots.pass_on(&request.node, self.clock.monotonic(), |agent, priority, offer| {
                let module = tools.get(offer.tool.as_str());
                let is_usable = |module: &String| offer.module.is_none_or(|own| *module == own.to_string());
                module.is_some_and(is_usable)
                    && !full_agents.iter().any(|full| full == agent.as_str())
                    && above.is_none_or(|above| priority.level() > above)
            });
            let fleet = Arc::clone(&fleet);
            self.sessions.spawn(async move {
                let call = match call {
                    Some(call) => call.await.ok(),
                    None => None,
                };
                reply(&fleet, request, call).await;
            });
        }
    }

    /// Takes calls that wait at other nodes, while a slot is free.
    async fn take_calls(self: Arc<Self>, fleet: Arc<Fleet>) {
        let mut announcements = subscribe(|| fleet.messages.announcements()).await;
        let mut waiting = WaitingNodes::default();
        let kept_slot = KeptSlot::new(&self.slots);
        loop {
            let highest = waiting.highest_priority(self.clock.monotonic());
            kept_slot.keep_for(highest.and_then(Priority::from_level));
            tokio::select! {
                announcement = announcements.next() => {
                    let Some(announcement) = announcement else { return };
                    waiting.hear(announcement, self.clock.monotonic());
                }
                () = self.slots.wait_for_returned_slot(), if !waiting.is_empty() => {}
            }
            waiting.expire(self.clock.monotonic());
            let mut unused = None;
            while !waiting.is_empty() {
                let slot = unused.take().or_else(|| self.slots.take_idle());
                let Some(slot) = slot.filter(|_| self.may_take(&fleet)) else { break };
                let above = slot.above().map(Priority::level);
                let asked_at = self.clock.monotonic();
                let Some(next) = waiting.choose(above, asked_at) else { break };
                let full_agents = self.slots.full_agents().iter().map(ToString::to_string).collect();
                let tools = self.catalogue.tools();
                let tools =
                    tools.iter().map(|tool| (tool.name.to_string(), tool.digest.to_string())).collect();
                // A call of a lower priority than announced stays there: another node may have one between the two.
                let selection =
                    CallSelection { tools, full_agents, above: above.max(next.priority.checked_sub(1)) };
                let reply = fleet.messages.take_call(&next.node, &next.ticket, selection).await;
                let now = self.clock.monotonic();
                match reply {
                    Ok(Some(call)) => {
                        waiting.mark_served(&next.node, now);
                        self.begin_taken(&fleet, next.node, &call, slot, asked_at + CLAIM_DEADLINE);
                    }
                    Ok(None) => {
                        waiting.lower(&next, above, now, now.saturating_duration_since(asked_at));
                        unused = Some(slot);
                    }
                    Err(_) => waiting.avoid(next.node, now),
                }
            }
        }
    }

    /// Returns `true` if this node may claim and run one more call.
    fn may_take(&self, fleet: &Fleet) -> bool {
        fleet.member.may_run() && check_memory().is_ok()
    }

    /// Runs a call that waited at another node. Only that node answers its caller: it gets the refusal of this one, and
    /// lets the call wait again if it has the tool itself.
    fn begin_taken(
        self: &Arc<Self>,
        fleet: &Arc<Fleet>,
        from: NodeName,
        passed: &PassedCall,
        slot: IdleSlot,
        claim_by: Instant,
    ) {
        let (call, verdict) = match VerifiedVerdict::from_node(passed) {
            Ok(call) => call,
            Err(error) => return tracing::warn!(%from, %error, "a call of another node cannot be read"),
        };
        let stopwatch = Stopwatch::start(self.clock.monotonic());
        let summary = IntentSummary::from_call(&call);
        let span = trace::intent_span(&summary, call.door);
        let (event_tx, events) = mpsc::channel(MAX_UNSENT_EVENTS);
        let sink = event_sink(event_tx.clone());
        let sender = send_events(Arc::clone(fleet), call.intent, events);
        // Before the next request, which names the agents whose share is full.
        let slot = slot.assign(&call.agent);
        let asked_governor = passed.has_asked_governor();
        let member = Arc::clone(self);
        let run = async move {
            let Some(slot) = slot else { return };
            tracing::debug!(%from, "taken from another node");
            let taken = TakenCall { slot: Some(slot), claim_by };
            match member.admit_taken(call, verdict, asked_governor, stopwatch, sink, taken).await {
                Ok(_receipt) => drop(member.passing.taken.fetch_add(1, Relaxed)),
                Err(fault) => {
                    tracing::debug!(?fault, "a call of another node has not run");
                    drop(event_tx.send(PassedEvent::Refused(NodeFault::new(fault))).await);
                }
            }
        };
        // The sender ends once the run has dropped `sink` and `event_tx`.
        self.sessions.spawn(async move {
            tokio::join!(run.instrument(span), sender);
        });
    }

    /// Admits and runs a call that waited at another node, under the policies, ceilings and stops of this one.
    async fn admit_taken(
        self: &Arc<Self>,
        call: Call,
        verdict: VerifiedVerdict,
        asked_governor: bool,
        stopwatch: Stopwatch,
        sink: RunEventSink,
        taken: TakenCall,
    ) -> Result<Arc<Receipt>, Fault> {
        self.engine.wait_until_compiled(&call, verdict.verdict().expires_at, &sink).await?;
        let loaded = self.catalogue.find(&call)?;
        let (admitted, stored_verdict) = self.engine.admit_from_node(call, verdict, asked_governor)?;
        check_arguments(&loaded, admitted.call()).await?;
        self.engine.run(admitted, loaded, stored_verdict, stopwatch, sink, Some(taken)).await
    }
}

/// The text of a call for another node; `None` if it is too large for a message or may run only here.
pub(in crate::run) fn node_text<L>(admitted: &Admitted<L>) -> Option<String> {
    admitted.to_node().ok().flatten().filter(|text| !is_too_large(text))
}

async fn reply(fleet: &Fleet, request: TakeRequest, call: Option<CallMessage>) {
    if let Err(error) = fleet.messages.reply_to_take(request, call).await {
        // The call waits here again after `CLAIM_TIMEOUT`.
        tracing::debug!(%error, "the reply to a request for a call was not sent");
    }
}

/// The fault for a call whose end this node cannot learn now.
fn unknown_end(call: &Call, is_claimed: bool) -> Fault {
    if is_claimed {
        return receipt_pending_fault(call.intent);
    }
    busy_fault("another node of the fleet has taken the call, and may run it: send it again to learn its end")
}
