//! A node: what the executor does with the fleet, and what its journal keeps from one process to the next.

use super::world::{ProcessId, SimulatedClock, SimulatedStore, World};
use crate::{
    Added, Change, Claim, ClaimReply, Decision, Delivery, FinishReply, Fleet, FleetError, FleetKey,
    FoundClaim, FoundState, LocalReport, Member, NewClaim, NewDenial, NewPending, NodeHead, NodeLoad,
    NodeState, OrphanReport, PendingIntent, RecordedEnd, RunsAt, UnrecordedEnd, WaitsFor,
};
use a2g_types::ident::IntentId;
use a2g_types::node::{CallMessage, FleetName, NodeName};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

// As in `core::run::fleet` and `core::deliver`.
const FOLLOW_DELAYS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
const MAX_FAILED_LOOKS: u32 = 10;
const LEASE_CHECK: Duration = Duration::from_millis(250);
const FINISH_DELAYS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];
const SWEEP_ROUNDS: u32 = 2;
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The number of times that a caller asks for the end of a call that waits for a person.
const MAX_FOLLOWS: u32 = 60;
const REPORT_DELAYS: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(30)];

/// A call that clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) intent: IntentId,
    pub(super) proof: Option<u8>,
    /// The time that the guest needs.
    pub(super) run: Duration,
    /// `true` if a person has to approve it.
    pub(super) waits: bool,
}

/// An intent in a journal.
#[derive(Debug, Clone)]
enum Entry {
    Started { fallback: String },
    Finished { receipt: String, is_undelivered: bool },
}

/// The journal of a node, on its disk.
#[derive(Debug, Default)]
pub(super) struct Journal(Mutex<HashMap<IntentId, Entry>>);

impl Journal {
    fn find(&self, intent: IntentId) -> Option<Entry> {
        self.0.lock().get(&intent).cloned()
    }

    fn set(&self, intent: IntentId, entry: Entry) {
        self.0.lock().insert(intent, entry);
    }

    /// The intents whose runs were interrupted, and their fallback receipts.
    fn interrupted(&self) -> Vec<(IntentId, String)> {
        let entries = self.0.lock();
        let running = entries.iter().filter_map(|(intent, entry)| match entry {
            Entry::Started { fallback } => Some((*intent, fallback.clone())),
            Entry::Finished { .. } => None,
        });
        let mut started = running.collect::<Vec<_>>();
        started.sort_unstable();
        started
    }

    pub(super) fn undelivered(&self) -> Vec<IntentId> {
        let entries = self.0.lock();
        let undelivered = |entry: &Entry| matches!(entry, Entry::Finished { is_undelivered: true, .. });
        let open = entries.iter().filter(|(_, entry)| undelivered(entry)).map(|(intent, _)| *intent);
        let mut intents = open.collect::<Vec<_>>();
        intents.sort_unstable();
        intents
    }

    /// Returns `true` if the journal has the end of an intent.
    pub(super) fn has_end(&self, intent: IntentId) -> bool {
        matches!(self.find(intent), Some(Entry::Finished { .. }))
    }

    fn mark_delivered(&self, intent: IntentId) {
        if let Some(Entry::Finished { is_undelivered, .. }) = self.0.lock().get_mut(&intent) {
            *is_undelivered = false;
        }
    }
}

/// A process of a node.
pub(super) struct Process {
    id: ProcessId,
    world: World,
    fleet: Fleet<SimulatedStore>,
    journal: Arc<Journal>,
    /// The intents that are open in this process.
    open: Mutex<HashSet<IntentId>>,
    /// The pending intents of all nodes.
    pending: Mutex<HashMap<IntentId, PendingIntent>>,
    is_closed: AtomicBool,
}

/// Where the current processes of the nodes are found.
pub(super) type Processes = Arc<Mutex<Vec<Option<Arc<Process>>>>>;

/// The fleet of all nodes.
pub(super) fn fleet_name() -> FleetName {
    FleetName::try_from("model".to_owned()).unwrap()
}

const HEAD: NodeHead = NodeHead { receipts: 0, hash: [0; 32] };

/// Starts a process. It is in `processes` once it can be called.
pub(super) async fn start(
    id: ProcessId,
    world: World,
    key: FleetKey,
    journal: Arc<Journal>,
    processes: Processes,
) {
    loop {
        match join(id, &world, key.clone(), &journal).await {
            Ok(fleet) => {
                let process = Arc::new(Process {
                    id,
                    world,
                    fleet,
                    journal,
                    open: Mutex::default(),
                    pending: Mutex::default(),
                    is_closed: AtomicBool::new(false),
                });
                for intent in process.journal.undelivered() {
                    process.spawn(Arc::clone(&process).deliver(intent, false));
                }
                process.spawn(Arc::clone(&process).keep_fleet());
                process.spawn(Arc::clone(&process).deliver_orphans());
                process.spawn(Arc::clone(&process).follow_pending());
                processes.lock()[id.node] = Some(process);
                return;
            }
            Err(error) => {
                world.lock().note(|| format!("n{}.{} cannot join: {error}", id.node, id.number));
                // Something starts it again.
                world.sleep_below(Duration::from_secs(3)).await;
            }
        }
    }
}

/// As `cli::fleet::join` and `Journal::open_with_ends`. The process takes the lease of the earlier one at once, because
/// it has locked the journal that the earlier one used.
async fn join(
    id: ProcessId,
    world: &World,
    key: FleetKey,
    journal: &Journal,
) -> Result<Fleet<SimulatedStore>, FleetError> {
    let store = SimulatedStore { world: world.clone(), process: id };
    let clock = Arc::new(SimulatedClock::new(world.clone(), id.node));
    let node = NodeName::try_from(format!("n{}", id.node)).unwrap();
    let name = fleet_name();
    let fleet = Fleet::new(Member::join(node, clock, store, key, name, HEAD).await?);
    let mut ends = Vec::new();
    for (intent, fallback) in journal.interrupted() {
        let fallback = RawValue::from_string(fallback).unwrap();
        let end = fleet.takeovers.end_interrupted(intent, &content(intent), "did:a:model", fallback).await?;
        ends.push((intent, end));
    }
    let max = world.lock().faults.write;
    world.sleep_below(Duration::from_micros(max)).await;
    for (intent, end) in ends {
        world.lock().note(|| format!("n{} ends the interrupted {intent} with {end:?}", id.node));
        match end {
            RecordedEnd::Receipt(receipt) => {
                let receipt = receipt.into_string();
                journal.set(intent, Entry::Finished { receipt, is_undelivered: true });
            }
            RecordedEnd::Elsewhere => drop(journal.0.lock().remove(&intent)),
        }
    }
    Ok(fleet)
}

fn content(intent: IntentId) -> [u8; 32] {
    let mut content = [0; 32];
    content[..16].copy_from_slice(intent.as_bytes());
    content
}

impl Process {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.world.spawn(self.id, false, task);
    }

    fn note(&self, text: impl FnOnce() -> String) {
        let ProcessId { node, number } = self.id;
        self.world.lock().note(|| format!("n{node}.{number} {}", text()));
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn may_run(&self) -> bool {
        self.fleet.member.may_run()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// As `Engine::execute`: an answer is recorded.
    pub(super) async fn call(self: Arc<Self>, call: Call) {
        if self.is_closed() {
            return;
        }
        let receipt = self.find_or_run(call).await;
        self.note(|| format!("answers {} with {receipt:?}", call.intent));
        if let Some(receipt) = receipt {
            self.world.lock().history.answer(call.intent, receipt);
        }
    }

    /// As `Pending::hold`.
    async fn hold(&self, Call { intent, proof, run, waits: _ }: Call) -> Result<(), FleetError> {
        let text = serde_json::to_string(&(proof, run)).unwrap();
        let call = CallMessage { text, asked_governor: true };
        let new = NewPending { number: 1, waits_for: WaitsFor::Person, runs_at: RunsAt::AnyNode, call };
        match self.fleet.pending.add(intent, new).await? {
            Added::New(stored) | Added::Known(stored) => drop(self.pending.lock().insert(intent, stored)),
        }
        Ok(())
    }

    /// As `Operator::decide`.
    pub(super) async fn approve(self: Arc<Self>, intent: IntentId) {
        let Ok(Some(stored)) = self.fleet.pending.read(intent).await else { return };
        let approval = RawValue::from_string(format!("{}", self.id.node)).unwrap();
        let node = self.world.chance(|_| 500).then(|| self.fleet.member.node().clone());
        let decision = Change::Decide(Decision::Approved { node, approval });
        let decided = self.fleet.pending.change(&stored, decision).await;
        self.note(|| format!("has approved {intent}: {decided:?}"));
        if let Ok(Some(stored)) = decided {
            self.world.lock().history.approve(intent, stored.number());
        }
    }

    /// As `Membership::follow_pending`.
    async fn follow_pending(self: Arc<Self>) {
        loop {
            // Most histories have none, and many have none for long.
            let has_waits = !self.world.lock().keys("wait.>").is_empty() || !self.pending.lock().is_empty();
            if has_waits && let Err(error) = self.look().await {
                self.note(|| format!("cannot look at what waits: {error}"));
            }
            self.world.sleep(LOOK_INTERVAL).await;
        }
    }

    async fn look(self: &Arc<Self>) -> Result<(), FleetError> {
        let Fleet { member, claims, pending, .. } = &self.fleet;
        for stored in pending.changed().await? {
            self.pending.lock().insert(stored.intent, stored);
        }
        let known = self.pending.lock().keys().copied().collect();
        for intent in pending.missing(known).await? {
            self.pending.lock().remove(&intent);
        }
        let all = self.pending.lock().values().cloned().collect::<Vec<_>>();
        for stored in all {
            let intent = stored.intent;
            match claims.find(intent).await?.map(|found| found.state) {
                Some(FoundState::Open) => continue,
                Some(FoundState::Ended(_) | FoundState::Denied(_)) => {
                    pending.remove(intent).await?;
                    continue;
                }
                None => {}
            }
            match stored.decision() {
                None => {}
                Some(Decision::Denied { .. }) => drop(self.deny_claim(intent).await),
                Some(Decision::Approved { node, .. }) => {
                    let is_left = match node {
                        Some(node) => node != member.node() && member.is_running(node).await?,
                        None => false,
                    };
                    if !is_left && !self.is_closed() && self.open.lock().insert(intent) {
                        self.spawn(Arc::clone(self).run_approved(stored));
                    }
                }
            }
        }
        Ok(())
    }

    /// As `Operator::run_approved`: the run may get more than was shown.
    async fn run_approved(self: Arc<Self>, stored: PendingIntent) {
        let intent = stored.intent;
        if self.world.chance(|faults| faults.refusal) {
            let again = Change::WaitAgain { number: stored.number() + 1 };
            let withdrawn = self.fleet.pending.change(&stored, again).await;
            self.note(|| format!("withdraws the approval of {intent}: {withdrawn:?}"));
            return self.close_intent(intent);
        }
        let (proof, run) = serde_json::from_str(stored.call().text()).unwrap();
        let call = Call { intent, proof, run, waits: true };
        if self.journal.find(intent).is_some() {
            return self.close_intent(intent);
        }
        let receipt = self.run_claimed(call, Some(stored.number())).await;
        self.note(|| format!("has run the approved {intent}: {receipt:?}"));
        if receipt.is_some() {
            let _looked_later = self.fleet.pending.remove(intent).await;
        }
    }

    /// As `Operator::deny`, of an intent that may wait for a person.
    pub(super) async fn deny(self: Arc<Self>, intent: IntentId) {
        let pending = &self.fleet.pending;
        let Ok(stored) = pending.read(intent).await else { return };
        if let Some(stored) = stored {
            let denial = RawValue::from_string("{}".to_owned()).unwrap();
            let decision = Change::Decide(Decision::Denied { denial });
            let Ok(Some(_)) = pending.change(&stored, decision).await else { return };
        }
        if self.deny_claim(intent).await {
            let _looked_later = pending.remove(intent).await;
        }
    }

    async fn deny_claim(&self, intent: IntentId) -> bool {
        let denial = RawValue::from_string("{}".to_owned()).unwrap();
        let new = NewDenial { intent, content: &content(intent), agent: "did:a:model", denial };
        let is_denied = match self.fleet.claims.deny(new).await {
            Ok(None) => true,
            Ok(Some(found)) => matches!(found.state, FoundState::Denied(_)),
            Err(_) => false,
        };
        self.note(|| format!("has denied {intent}: {is_denied}"));
        let mut state = self.world.lock();
        if is_denied && !state.history.deny(intent) {
            state.violate(format!("{intent} is denied after its guest has begun"));
        }
        is_denied
    }

    /// `None` if the call is refused.
    async fn find_or_run(self: &Arc<Self>, call: Call) -> Option<String> {
        let intent = call.intent;
        if self.open.lock().contains(&intent) || self.journal.find(intent).is_some() {
            return self.await_local(intent).await;
        }
        match self.fleet.claims.find(intent).await.ok()? {
            Some(found) => return self.await_found(intent, found).await,
            None if self.is_closed() => return None,
            None if call.waits => return self.hold_and_follow(call).await,
            None => {}
        }
        if !self.open.lock().insert(intent) {
            return self.await_local(intent).await;
        }
        self.run_claimed(call, None).await
    }

    /// Lets a call wait for a person, and waits for a while.
    async fn hold_and_follow(&self, call: Call) -> Option<String> {
        self.hold(call).await.ok()?;
        for _ in 0..MAX_FOLLOWS {
            self.world.sleep(LOOK_INTERVAL).await;
            if let Ok(Some(found)) = self.fleet.claims.find(call.intent).await {
                return self.await_found(call.intent, found).await;
            }
        }
        None
    }

    /// Waits for the end of an intent that this process runs.
    async fn await_local(&self, intent: IntentId) -> Option<String> {
        while self.open.lock().contains(&intent) {
            self.world.sleep(FOLLOW_DELAYS[1]).await;
        }
        match self.journal.find(intent)? {
            Entry::Finished { receipt, .. } => Some(receipt),
            Entry::Started { .. } => None,
        }
    }

    async fn await_found(&self, intent: IntentId, mut found: FoundClaim) -> Option<String> {
        let [mut delay, max_delay] = FOLLOW_DELAYS;
        let mut failed = 0;
        loop {
            match found.state {
                FoundState::Ended(end) => {
                    return self.fleet.claims.read_receipt(&end).await.ok().map(String::from);
                }
                FoundState::Denied(_) => return None,
                FoundState::Open => {}
            }
            found = loop {
                self.world.sleep(delay).await;
                delay = (delay * 3 / 2).min(max_delay);
                match self.fleet.claims.find(intent).await {
                    Ok(Some(found)) => break found,
                    Ok(None) => return None,
                    Err(_) if failed == MAX_FAILED_LOOKS => return None,
                    Err(_) => failed += 1,
                }
            };
            failed = 0;
        }
    }

    fn close_intent(&self, intent: IntentId) {
        self.open.lock().remove(&intent);
    }

    async fn write_journal(&self) {
        let max = self.world.lock().faults.write;
        self.world.sleep_below(Duration::from_micros(max)).await;
    }

    /// Claims and runs a call. `approved` is the number of the wait in which a person has approved it.
    async fn run_claimed(self: &Arc<Self>, call: Call, approved: Option<u64>) -> Option<String> {
        let Call { intent, proof, run, waits: _ } = call;
        let ProcessId { node, number } = self.id;
        let fallback = format!("\"lost by n{node}.{number}\"");
        let proof = proof.map(|proof| format!("proof {proof}"));
        let content = content(intent);
        let claimed = self.fleet.claims.claim(NewClaim {
            intent,
            content: &content,
            agent: "did:a:model",
            verdict: None,
            fallback: RawValue::from_string(fallback.clone()).unwrap(),
            proof: proof.as_deref(),
        });
        let claim = match claimed.await {
            Ok(ClaimReply::New(claim)) => claim,
            Ok(ClaimReply::Known(found)) => {
                self.close_intent(intent);
                return self.await_found(intent, found).await;
            }
            Ok(ClaimReply::Replayed) => {
                self.world.lock().history.replay(intent);
                self.close_intent(intent);
                return None;
            }
            Err(error) => {
                self.note(|| format!("does not claim {intent}: {error}"));
                self.close_intent(intent);
                return None;
            }
        };
        self.write_journal().await;
        // The disk is full, or the journal has the intent.
        if self.world.chance(|faults| faults.refusal) || self.journal.find(intent).is_some() {
            self.close_intent(intent);
            self.fleet.claims.release(claim).await;
            return None;
        }
        self.journal.set(intent, Entry::Started { fallback });
        self.write_journal().await;
        let may_begin = match approved {
            Some(number) => self.fleet.pending.may_run(intent, number).await.unwrap_or(false),
            None => !self.world.chance(|faults| faults.refusal),
        };
        if !self.fleet.claims.is_held(&claim) || !may_begin {
            self.fleet.claims.release(claim).await;
            self.write_journal().await;
            self.journal.0.lock().remove(&intent);
            self.close_intent(intent);
            return None;
        }
        if approved.is_some_and(|number| !self.world.lock().history.is_approved(intent, number)) {
            self.world.lock().violate(format!("{intent} runs without an approval"));
        }
        let receipt = self.run_guest(&claim, intent, run, call.proof).await;
        let (receipt, is_first) = self.finish(&claim, receipt).await;
        self.write_journal().await;
        self.journal.set(intent, Entry::Finished { receipt: receipt.clone(), is_undelivered: true });
        self.spawn(Arc::clone(self).deliver(intent, is_first));
        self.close_intent(intent);
        Some(receipt)
    }

    async fn run_guest(&self, claim: &Claim, intent: IntentId, run: Duration, proof: Option<u8>) -> String {
        self.begin_guest(intent, proof);
        let mut left = run;
        loop {
            let pause = left.min(LEASE_CHECK);
            self.world.sleep(pause).await;
            left -= pause;
            let is_held = self.fleet.claims.is_held(claim);
            if left.is_zero() || !is_held {
                self.world.lock().history.stop(intent);
                let end = if is_held { "done" } else { "aborted" };
                return format!("\"{end} by n{}.{}\"", self.id.node, self.id.number);
            }
            let mut state = self.world.lock();
            if state.history.is_outlived(intent) {
                state.violate(format!("the guest of {intent} continues after its claim has ended"));
            }
        }
    }

    fn begin_guest(&self, intent: IntentId, proof: Option<u8>) {
        self.note(|| format!("begins the guest of {intent}"));
        let name = self.fleet.member.node();
        let mut state = self.world.lock();
        let is_own = state.claim(intent).is_some_and(|claim| claim.node == *name && claim.state.is_open());
        if !is_own {
            state.violate(format!("a guest of {intent} begins without a claim"));
        }
        if !state.keys("open.>").contains(&format!("open.{name}.{intent}").as_str()) {
            state.violate(format!("a guest of {intent} begins without a mark"));
        }
        if state.history.is_denied(intent) {
            state.violate(format!("a guest of {intent} begins after its denial"));
        }
        if !state.history.begin(intent, self.id) {
            state.violate(format!("a second guest of {intent} begins"));
        }
        if proof.is_some_and(|proof| !state.history.use_proof(proof, intent)) {
            state.violate(format!("a second intent, {intent}, uses a proof"));
        }
    }

    /// Returns the receipt that counts, and whether this node reports it without asking the fleet.
    async fn finish(&self, claim: &Claim, receipt: String) -> (String, bool) {
        let [mut delay, max_delay] = FINISH_DELAYS;
        loop {
            match self.fleet.claims.finish(claim, &receipt).await {
                Ok(FinishReply::Recorded) => return (receipt, true),
                Ok(FinishReply::Superseded(receipt)) => return (receipt.into_string(), false),
                Err(_) => {
                    self.world.sleep(delay).await;
                    delay = (delay * 2).min(max_delay);
                }
            }
        }
    }

    /// Sends a report to the governor. Returns `false` if it is not acknowledged.
    async fn report(&self, intent: IntentId, receipt: &str) -> bool {
        let is_refused = self.world.chance(|faults| faults.governor);
        let arrives_early = self.world.chance(|_| 500);
        let deliver = || {
            self.note(|| format!("delivers the report {receipt} of {intent}"));
            self.world.lock().history.report(intent, receipt.to_owned());
        };
        let is_delivered = !is_refused || self.world.chance(|_| 500);
        if is_delivered && arrives_early {
            deliver();
        }
        self.write_journal().await;
        if is_delivered && !arrives_early {
            deliver();
        }
        !is_refused
    }

    /// As `core::deliver::deliver_reports`.
    async fn deliver(self: Arc<Self>, intent: IntentId, mut is_first: bool) {
        let [mut delay, max_delay] = REPORT_DELAYS;
        loop {
            let Some(Entry::Finished { receipt, .. }) = self.journal.find(intent) else { return };
            let delivery = match is_first {
                true => Delivery::Here,
                false => self.fleet.claims.delivery(intent).await.unwrap_or(Delivery::Here),
            };
            match delivery {
                Delivery::Done => {
                    self.write_journal().await;
                    return self.mark_delivered(intent);
                }
                Delivery::Pending => {}
                Delivery::Here if self.report(intent, &receipt).await => {
                    // The journal writes it soon.
                    let writer = Arc::clone(&self);
                    self.spawn(async move {
                        writer.write_journal().await;
                        writer.mark_delivered(intent);
                    });
                    let _swept_later = self.fleet.claims.mark_delivered(intent).await;
                    return;
                }
                Delivery::Here => {}
            }
            is_first = false;
            self.world.sleep(delay).await;
            delay = (delay * 2).min(max_delay);
        }
    }

    fn mark_delivered(&self, intent: IntentId) {
        self.journal.mark_delivered(intent);
        let mut state = self.world.lock();
        if !state.history.is_reported(intent) {
            state.violate(format!("the report of {intent} counts as delivered, and the governor has none"));
        }
    }

    async fn deliver_orphans(self: Arc<Self>) {
        loop {
            let report = self.fleet.takeovers.next_orphan().await;
            self.spawn(Arc::clone(&self).deliver_orphan(report));
        }
    }

    async fn deliver_orphan(self: Arc<Self>, report: OrphanReport) {
        let [mut delay, max_delay] = FINISH_DELAYS;
        while !self.report(report.intent, &report.receipt).await {
            self.world.sleep(delay).await;
            delay = (delay * 2).min(max_delay);
        }
        while self.fleet.takeovers.mark_orphan_delivered(&report).await.is_err() {
            self.world.sleep(max_delay).await;
        }
    }

    async fn keep_fleet(self: Arc<Self>) {
        let mut rounds = 0_u32;
        loop {
            self.world.sleep(self.fleet.member.lease_times().renewal()).await;
            rounds = rounds.wrapping_add(1);
            if let Err(error) = self.maintain_fleet(rounds.is_multiple_of(SWEEP_ROUNDS)).await {
                self.note(|| format!("cannot use the fleet: {error}"));
            }
        }
    }

    async fn maintain_fleet(self: &Arc<Self>, is_sweep: bool) -> Result<(), FleetError> {
        let is_closed = self.is_closed.load(Ordering::Relaxed);
        let state = if is_closed { NodeState::Draining } else { NodeState::Live };
        let Fleet { member, claims, takeovers, .. } = &self.fleet;
        member.renew(state, HEAD, NodeLoad::default()).await?;
        claims.remove_abandoned().await?;
        if is_sweep {
            takeovers.sweep(|intent| self.report_state(intent)).await?;
            for end in takeovers.unrecorded_ends(|intent| self.report_state(intent)).await? {
                self.record_end(end).await?;
            }
        }
        Ok(())
    }

    /// As `Membership::record_missing_end`.
    async fn record_end(self: &Arc<Self>, end: UnrecordedEnd) -> Result<(), FleetError> {
        let UnrecordedEnd { intent, receipt, .. } = end;
        if !self.open.lock().insert(intent) {
            return Ok(());
        }
        self.write_journal().await;
        self.note(|| format!("records the end {receipt} of {intent}"));
        if self.journal.find(intent).is_none() {
            let receipt = receipt.into_string();
            self.journal.set(intent, Entry::Started { fallback: receipt.clone() });
            self.write_journal().await;
            self.journal.set(intent, Entry::Finished { receipt, is_undelivered: true });
            self.spawn(Arc::clone(self).deliver(intent, false));
        }
        self.close_intent(intent);
        self.fleet.takeovers.forget_end(intent).await
    }

    fn report_state(&self, intent: IntentId) -> LocalReport {
        if self.open.lock().contains(&intent) {
            return LocalReport::Undelivered;
        }
        match self.journal.find(intent) {
            None => LocalReport::Unknown,
            Some(Entry::Started { .. } | Entry::Finished { is_undelivered: true, .. }) => {
                LocalReport::Undelivered
            }
            Some(Entry::Finished { is_undelivered: false, .. }) => LocalReport::Delivered,
        }
    }

    /// As the end of `cli::serve`: the runs end, the node leaves, and the process ends a little later.
    pub(super) async fn leave(self: Arc<Self>) {
        while !self.open.lock().is_empty() {
            self.world.sleep(LEASE_CHECK).await;
        }
        let _left = self.fleet.member.renew(NodeState::Left, HEAD, NodeLoad::default()).await;
        self.note(|| "has left".to_owned());
    }
}
