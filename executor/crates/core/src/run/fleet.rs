//! The fleet: claims that all nodes see, and the work that this node does for lost ones.
//!
//! ```text
//! join:     head of the journal ─▶ lease ─▶ ends of interrupted runs
//! look-up:  journal ─▶ fleet                     (an intent of another node is followed until its receipt exists)
//!           journal ─▶ start                     (a call with a verdict that finds a free slot: the claim looks it up)
//! start:    claim in the fleet ─▶ start in the journal ─▶ guest
//! end:      receipt in the fleet ─▶ receipt in the journal ─▶ answer, report
//! ```
//! The fleet gets the end first. If this node was lost in between, another one has ended the intent, and this node's
//! journal gets that receipt: no two nodes answer differently.

pub use a2g_fleet::{Delivery, NodeLoad, NodeStatus};

use super::faults::busy_fault;
use super::open_intents::ActiveRun;
use super::wait_records::denial_fault;
use super::{Membership, RETRY_AFTER_MS};
use a2g_fleet::{
    Claim, ClaimReply, FinishReply, FleetError, FleetKey, FleetSettings, FoundClaim, FoundState, LocalReport,
    NewClaim, NewDenial, NodeHead, NodeState, OrphanReport, RecordedEnd, RememberedFleet, UnrecordedEnd,
};
use a2g_journal::chain::from_hex;
use a2g_journal::{
    IntentDenial, InterruptedEnd, InterruptedJournal, KnownIntent, RecoveredState, ReportState, Reporting,
    Stage, StageSource, StartRequest, content_hash,
};
use a2g_runtime::spawn::SessionTasks;
use a2g_types::call::Call;
use a2g_types::clock::Clock;
use a2g_types::error_chain::{BoxedError, ErrorChain};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::node::NodeName;
use a2g_types::outcome::{AbortReason, Receipt};
use a2g_types::stored::{self, v1};
use a2g_types::tool::Digest;
use a2g_types::verdict::Verdict;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::watch;

/// The fleet of an executor.
pub type Fleet = a2g_fleet::Fleet<a2g_fleet::ServerStore>;

/// The first and the maximum delay between two requests for the state of an intent of another node.
pub(super) const FOLLOW_DELAYS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// The number of failed requests in a row after which an intent of another node is no longer followed.
pub(super) const MAX_FAILED_REQUESTS: u32 = 10;
/// The time between two checks of the lease during a run.
const LEASE_CHECK: Duration = Duration::from_millis(250);
/// The time before a subscription that failed is requested again.
const SUBSCRIBE_DELAY: Duration = Duration::from_secs(1);
/// The time in which the state of all nodes is read.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// The first and the maximum delay between two attempts to write an end.
const FINISH_DELAYS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// The denial of an intent, as the fleet stores it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum FleetDenial {
    /// A person has denied it.
    ByPerson { by: String, risk_score: Option<f64>, reason: Option<String> },
    /// It was cancelled, revoked or stopped before it ran.
    Withdrawn {
        #[serde(with = "v1::AbortReason")]
        reason: AbortReason,
    },
    /// A node could not run the call, which waited for a slot.
    Refused { message: String },
}

impl FleetDenial {
    pub(super) fn read(text: &RawValue) -> Result<Self, Fault> {
        serde_json::from_str(text.get()).map_err(|error| Fault::Internal(error.to_string()))
    }

    pub(super) fn to_raw(&self) -> Result<Box<RawValue>, Fault> {
        to_raw_value(self).map_err(|error| Fault::Internal(error.to_string()))
    }

    /// The denial, as callers are told of it.
    fn into_denial(self) -> IntentDenial {
        let without_author = |reason| IntentDenial { by: None, risk_score: None, reason: Some(reason) };
        match self {
            Self::ByPerson { by, risk_score, reason } => IntentDenial { by: Some(by), risk_score, reason },
            Self::Withdrawn { reason } => without_author(format!("{}, before it ran", reason.message())),
            Self::Refused { message } => without_author(message),
        }
    }

    /// The fault of every call with the denied intent.
    pub(super) fn into_fault(self, intent: IntentId) -> Fault {
        denial_fault(intent, &self.into_denial())
    }
}

/// The reason why an executor cannot join its fleet.
#[derive(Debug, thiserror::Error)]
pub enum JoinFleetError {
    /// The fleet cannot be used.
    #[error("{failure}")]
    Fleet {
        /// Names the fleet and its servers.
        failure: String,
        /// The reason.
        #[source]
        error: FleetError,
    },
    /// A receipt in the journal cannot be read.
    #[error("the receipt of an interrupted run cannot be read: {0}")]
    Receipt(#[from] serde_json::Error),
    /// The journal cannot be read.
    #[error("the journal cannot be read: {0}")]
    Journal(BoxedError),
}

/// Joins a fleet, if its stream is the one that the journal remembers. Returns the fleet, and for the journal the end of
/// each run that this node's earlier process left open, and what it has to remember.
///
/// # Errors
/// If the fleet cannot be used, or the journal cannot be read.
pub async fn join_fleet(
    settings: &FleetSettings,
    key: FleetKey,
    clock: Arc<dyn Clock>,
    journal: &InterruptedJournal<'_>,
) -> Result<(Arc<Fleet>, RecoveredState), JoinFleetError> {
    let head = NodeHead { receipts: journal.head().number, hash: journal.head().hash };
    let has_receipt = |number, hash: &str| {
        from_hex(hash).is_some_and(|hash| journal.has_receipt(number, &hash).unwrap_or(false))
    };
    let failed = |error| JoinFleetError::Fleet { failure: settings.describe_failure(), error };
    let known = journal.fleet().map_err(JoinFleetError::Journal)?;
    let remembered = known.as_deref().map(RememberedFleet::parse).transpose().map_err(failed)?;
    let fleet = a2g_fleet::connect(settings, key, clock, head, remembered.as_ref(), has_receipt).await;
    let fleet = fleet.map_err(failed)?;
    let mut ends = Vec::new();
    for run in journal.runs() {
        let fallback = RawValue::from_string(run.fallback.to_owned())?;
        let receipt = stored::read_receipt(run.fallback.as_bytes())?;
        let agent = receipt.agent.as_str();
        let end = fleet.takeovers.end_interrupted(run.intent, run.content, agent, fallback).await;
        ends.push(match end.map_err(failed)? {
            RecordedEnd::Receipt(receipt) => InterruptedEnd::Receipt(receipt),
            RecordedEnd::Elsewhere => InterruptedEnd::Released,
        });
    }
    let to_remember = fleet.member.to_remember().to_text().map_err(failed)?;
    Ok((Arc::new(fleet), RecoveredState { ends, fleet: Some(to_remember) }))
}

/// The parts of a call that identify its run, without its arguments.
pub(super) struct CallIdentity {
    pub(super) intent: IntentId,
    pub(super) agent: AgentDid,
    content: [u8; 32],
}

impl CallIdentity {
    pub(super) fn of(call: &Call) -> Self {
        Self { intent: call.intent, agent: call.agent.clone(), content: content_hash(call) }
    }
}

/// The claim of a run in the fleet; empty without a fleet.
pub(super) struct FleetClaim(Option<(Arc<Fleet>, Claim)>);

impl FleetClaim {
    /// Returns `false` if another node may have ended the claim.
    pub(super) fn is_held(&self) -> bool {
        self.0.as_ref().is_none_or(|(fleet, claim)| fleet.claims.is_held(claim))
    }

    /// Waits for a run. If the lease is lost meanwhile, the run is aborted.
    pub(super) async fn abort_if_lost<T>(&self, running: &ActiveRun, run: impl Future<Output = T>) -> T {
        if self.0.is_none() {
            return run.await;
        }
        let mut run = pin!(run);
        loop {
            tokio::select! {
                biased;
                result = &mut run => return result,
                () = tokio::time::sleep(LEASE_CHECK) => {
                    if !self.is_held() {
                        running.abort(AbortReason::LeaseLost);
                        return run.await;
                    }
                }
            }
        }
    }

    /// Releases the claim of a guest that has not begun.
    pub(super) async fn release(self) {
        if let Some((fleet, claim)) = self.0 {
            fleet.claims.release(claim).await;
        }
    }

    /// Records the end of a run for all nodes, as soon as the servers can be reached. Returns the receipt that counts,
    /// and which executor reports it.
    pub(super) async fn finish(&self, receipt: Arc<Receipt>) -> Result<(Arc<Receipt>, Reporting), Fault> {
        let Some((fleet, claim)) = &self.0 else { return Ok((receipt, Reporting::Here)) };
        let text = stored::write_receipt(&receipt).map_err(|error| Fault::Internal(error.to_string()))?;
        let [mut delay, max_delay] = FINISH_DELAYS;
        loop {
            match fleet.claims.finish(claim, &text).await {
                Ok(FinishReply::Recorded) => return Ok((receipt, Reporting::Here)),
                Ok(FinishReply::Superseded(text)) => {
                    tracing::warn!("another node has ended this intent, because this one had lost its lease");
                    let receipt = stored::read_receipt(text.as_bytes());
                    let receipt = receipt.map_err(|error| Fault::Internal(error.to_string()))?;
                    return Ok((Arc::new(receipt), Reporting::Elsewhere));
                }
                Err(error) => {
                    if delay == FINISH_DELAYS[0] {
                        tracing::warn!(%error, "the end of a run cannot be stored in the fleet yet, and is retried");
                    }
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(max_delay);
                }
            }
        }
    }
}

/// The start of a run that was recorded, or the reason why there is none.
pub(super) enum StartOutcome {
    /// The guest may begin.
    New(FleetClaim),
    /// The intent has started before.
    Known(KnownIntent),
    /// The proof was used for another intent.
    Replayed,
}

/// The facts that this executor has of its fleet: none without one.
pub struct Node {
    /// `None` for an executor that shares nothing with others.
    fleet: Option<Arc<Fleet>>,
    pub(super) sessions: SessionTasks,
    clock: Arc<dyn Clock>,
}

impl Node {
    pub(super) fn new(fleet: Option<Arc<Fleet>>, sessions: SessionTasks, clock: Arc<dyn Clock>) -> Self {
        Self { fleet, sessions, clock }
    }

    /// The current time.
    pub(super) fn now(&self) -> OffsetDateTime {
        self.clock.now()
    }

    /// The fleet that this executor is a node of.
    #[must_use]
    pub fn fleet(&self) -> Option<&Arc<Fleet>> {
        self.fleet.as_ref()
    }

    /// The name of this executor in its fleet.
    #[must_use]
    pub fn name(&self) -> Option<&NodeName> {
        self.fleet.as_ref().map(|fleet| fleet.member.node())
    }

    /// The nodes of the fleet, by name; `None` without a fleet.
    ///
    /// # Errors
    /// If the fleet cannot be read in time.
    pub async fn list_nodes(&self) -> Option<Result<Vec<NodeStatus>, Fault>> {
        let fleet = self.fleet.as_ref()?;
        let nodes = tokio::time::timeout(STATUS_TIMEOUT, fleet.member.status()).await;
        let timeout = |_elapsed| busy_fault("the servers of the fleet do not answer");
        Some(nodes.map_err(timeout).and_then(|nodes| nodes.map_err(|error| self.fleet_fault(&error))))
    }

    /// Looks up an intent in the fleet.
    pub(super) async fn find_in_fleet(
        self: &Arc<Self>,
        call: &CallIdentity,
    ) -> Result<Option<KnownIntent>, Fault> {
        let Some(fleet) = &self.fleet else { return Ok(None) };
        match fleet.claims.find(call.intent).await.map_err(|error| self.fleet_fault(&error))? {
            None => Ok(None),
            Some(found) => self.known_in_fleet(fleet, call, found).await.map(Some),
        }
    }

    /// Claims an intent in the fleet, if there is one.
    pub(super) async fn claim_in_fleet(
        self: &Arc<Self>,
        request: &StartRequest<'_>,
        verdict: Option<&Verdict>,
    ) -> Result<StartOutcome, Fault> {
        let Some(fleet) = &self.fleet else { return Ok(StartOutcome::New(FleetClaim(None))) };
        let StartRequest { call, proof, fallback_receipt, .. } = request;
        let internal = |error: serde_json::Error| Fault::Internal(error.to_string());
        let verdict = verdict.map(stored::write_verdict).transpose().map_err(internal)?;
        // Another node does not know the calls of a lost one's run.
        let fallback = Receipt { calls: None, ..(*fallback_receipt).clone() };
        let fallback = stored::write_receipt(&fallback).map_err(internal)?;
        let proof = proof.map(|proof| format!("{} {}", proof.issuer(), proof.identifier()));
        let new = NewClaim {
            intent: call.intent,
            content: &content_hash(call),
            agent: call.agent.as_str(),
            verdict: verdict.map(RawValue::from_string).transpose().map_err(internal)?,
            fallback: RawValue::from_string(fallback).map_err(internal)?,
            proof: proof.as_deref(),
        };
        match fleet.claims.claim(new).await.map_err(|error| self.fleet_fault(&error))? {
            ClaimReply::New(claim) => Ok(StartOutcome::New(FleetClaim(Some((Arc::clone(fleet), claim))))),
            ClaimReply::Known(found) => {
                let call = CallIdentity::of(call);
                self.known_in_fleet(fleet, &call, found).await.map(StartOutcome::Known)
            }
            ClaimReply::Replayed => Ok(StartOutcome::Replayed),
        }
    }

    /// The answer to a call whose intent a node of the fleet has claimed.
    pub(super) async fn known_in_fleet(
        self: &Arc<Self>,
        fleet: &Arc<Fleet>,
        call: &CallIdentity,
        found: FoundClaim,
    ) -> Result<KnownIntent, Fault> {
        if found.content != Digest(call.content).to_string() {
            return Ok(KnownIntent::Conflict);
        }
        if let FoundState::Denied(denial) = &found.state {
            return Ok(KnownIntent::Denied(FleetDenial::read(denial)?.into_denial()));
        }
        let verdict = found.verdict.as_deref().map(|verdict| stored::read_verdict(verdict.get())).transpose();
        let verdict = verdict.map_err(|error| Fault::Internal(error.to_string()))?.map(Arc::new);
        let source = match found.state {
            FoundState::Open => StageSource::Live(self.follow(fleet, call.intent)),
            FoundState::Ended(_) | FoundState::Denied(_) => {
                StageSource::Final(self.stage_in_fleet(fleet, found).await?)
            }
        };
        Ok(KnownIntent::Same(source, verdict))
    }

    async fn stage_in_fleet(&self, fleet: &Fleet, found: FoundClaim) -> Result<Stage, Fault> {
        let end = match found.state {
            FoundState::Open => return Ok(Stage::Running),
            FoundState::Denied(_) => return Ok(Stage::Released),
            FoundState::Ended(end) => end,
        };
        let receipt = fleet.claims.read_receipt(&end).await.map_err(|error| self.fleet_fault(&error))?;
        let receipt = stored::read_receipt(receipt.as_bytes());
        receipt
            .map(|receipt| Stage::Finished(Arc::new(receipt)))
            .map_err(|error| Fault::Internal(error.to_string()))
    }

    /// Denies an intent at all nodes, before this one records the denial. Returns another denial that is in force already.
    ///
    /// # Errors
    /// If the fleet cannot be reached, or a node has claimed the intent.
    pub(super) async fn deny_in_fleet(
        &self,
        fleet: &Fleet,
        call: &Call,
        denial: &FleetDenial,
    ) -> Result<Option<FleetDenial>, Fault> {
        let new = NewDenial {
            intent: call.intent,
            content: &content_hash(call),
            agent: call.agent.as_str(),
            denial: denial.to_raw()?,
        };
        let found = fleet.claims.deny(new).await.map_err(|error| self.fleet_fault(&error))?;
        match found.map(|found| found.state) {
            None => Ok(None),
            Some(FoundState::Denied(known)) => {
                Ok(Some(FleetDenial::read(&known)?).filter(|known| known != denial))
            }
            Some(FoundState::Open | FoundState::Ended(_)) => Err(Fault::invalid(
                "/intent_id",
                "a node of the fleet runs or has run this intent: it can no longer be denied",
            )),
        }
    }

    /// Denies an intent at all nodes that was withdrawn before it ran. Returns `false` if a node has claimed it.
    ///
    /// # Errors
    /// [`Fault::Busy`] if the fleet cannot be reached.
    pub(super) async fn withdraw_in_fleet(
        &self,
        fleet: &Fleet,
        call: &Call,
        reason: AbortReason,
    ) -> Result<bool, Fault> {
        match self.deny_in_fleet(fleet, call, &FleetDenial::Withdrawn { reason }).await {
            Ok(_denied) => Ok(true),
            Err(busy @ Fault::Busy { .. }) => Err(busy),
            Err(_claimed) => Ok(false),
        }
    }

    /// The agent and the denial of an intent that any node has denied; `None` for an intent that is not denied.
    pub(super) async fn find_denial_in_fleet(
        &self,
        intent: IntentId,
    ) -> Result<Option<(AgentDid, FleetDenial)>, Fault> {
        let Some(fleet) = &self.fleet else { return Ok(None) };
        let Some(found) = fleet.claims.find(intent).await.map_err(|error| self.fleet_fault(&error))? else {
            return Ok(None);
        };
        match found.state {
            FoundState::Denied(denial) => Ok(Some((parse_agent(&found.agent)?, FleetDenial::read(&denial)?))),
            FoundState::Open | FoundState::Ended(_) => Ok(None),
        }
    }

    /// The agent of an intent that has run at another node, and that node.
    pub(super) async fn find_node_of_run(
        &self,
        intent: IntentId,
    ) -> Result<Option<(AgentDid, NodeName)>, Fault> {
        let Some(fleet) = &self.fleet else { return Ok(None) };
        let Some(found) = fleet.claims.find(intent).await.map_err(|error| self.fleet_fault(&error))? else {
            return Ok(None);
        };
        match found.state {
            FoundState::Ended(_) if found.node != *fleet.member.node() => {
                Ok(Some((parse_agent(&found.agent)?, found.node)))
            }
            FoundState::Ended(_) | FoundState::Open | FoundState::Denied(_) => Ok(None),
        }
    }

    /// The agent and the stage of an intent that another node has claimed.
    pub(super) async fn find_stage_in_fleet(
        &self,
        intent: IntentId,
    ) -> Result<Option<(AgentDid, Stage)>, Fault> {
        let Some(fleet) = &self.fleet else { return Ok(None) };
        let Some(found) = fleet.claims.find(intent).await.map_err(|error| self.fleet_fault(&error))? else {
            return Ok(None);
        };
        let agent = parse_agent(&found.agent)?;
        Ok(Some((agent, self.stage_in_fleet(fleet, found).await?)))
    }

    /// Follows the run of another node, until nobody waits for it.
    fn follow(self: &Arc<Self>, fleet: &Arc<Fleet>, intent: IntentId) -> watch::Receiver<Stage> {
        let (sender, receiver) = watch::channel(Stage::Running);
        let node = Arc::clone(self);
        let fleet = Arc::clone(fleet);
        self.sessions.spawn(async move {
            let [mut delay, max_delay] = FOLLOW_DELAYS;
            let mut failed = 0;
            while !sender.is_closed() && failed < MAX_FAILED_REQUESTS {
                tokio::time::sleep(delay).await;
                delay = (delay * 3 / 2).min(max_delay);
                let stage = match fleet.claims.find(intent).await {
                    Ok(Some(found)) => node.stage_in_fleet(&fleet, found).await,
                    Ok(None) => Ok(Stage::Released),
                    Err(error) => Err(node.fleet_fault(&error)),
                };
                failed = if stage.is_ok() { 0 } else { failed + 1 };
                if let Some(ended) = stage.ok().filter(|stage| *stage != Stage::Running) {
                    sender.send_replace(ended);
                    return;
                }
            }
        });
        receiver
    }

    pub(super) fn fleet_fault(&self, error: &FleetError) -> Fault {
        // The error of a request does not say that the whole stream is gone, and what to do.
        let loss = self.fleet.as_ref().and_then(|fleet| fleet.member.loss());
        let error = loss.as_ref().unwrap_or(error);
        let message = format!("the fleet cannot be used at the moment: {error}");
        Fault::Busy { message, retry_after_ms: RETRY_AFTER_MS }
    }

    /// Tells the fleet that this node has delivered a report.
    pub async fn mark_reported(&self, intent: IntentId) {
        let Some(fleet) = &self.fleet else { return };
        if let Err(error) = fleet.claims.mark_delivered(intent).await {
            // The next sweep removes the mark.
            tracing::debug!(%intent, %error, "the delivery of a report is not recorded in the fleet yet");
        }
    }

    /// The state, at other nodes, of the report of an intent that this node has run.
    pub async fn delivery_elsewhere(&self, intent: IntentId) -> Delivery {
        let Some(fleet) = &self.fleet else { return Delivery::Here };
        // A report that is sent twice is better than one that is not sent.
        fleet.claims.delivery(intent).await.unwrap_or(Delivery::Here)
    }
}

impl Membership {
    /// Renews the lease of this node, takes over lost nodes, delivers their reports, follows the orders of other nodes and
    /// what waits, shares waiting calls with them and answers their questions, until the sessions end.
    pub async fn keep_fleet(self: Arc<Self>) {
        let Some(fleet) = self.node.fleet().cloned() else { return };
        self.sessions.spawn(deliver_orphans(Arc::clone(&self), Arc::clone(&fleet)));
        self.sessions.spawn(Arc::clone(&self).follow_orders(Arc::clone(&fleet)));
        self.sessions.spawn(Arc::clone(&self).follow_pending(Arc::clone(&fleet)));
        self.sessions.spawn(Arc::clone(&self).sweep_fleet(Arc::clone(&fleet)));
        self.share_calls(&fleet);
        self.sessions.spawn(Arc::clone(&self).answer_questions(Arc::clone(&fleet)));
        let mut is_away = false;
        let mut has_lease = true;
        let mut is_lost = false;
        loop {
            tokio::time::sleep(fleet.member.lease_times().renewal()).await;
            let result = self.maintain_lease(&fleet).await;
            if has_lease && !fleet.member.may_run() {
                tracing::warn!("this node holds no lease any more: its runs are aborted");
            }
            has_lease = fleet.member.may_run();
            let loss = fleet.member.loss();
            if let Some(error) = loss.as_ref().filter(|_| !is_lost) {
                tracing::error!(%error, "nothing runs until an operator acts");
            }
            is_lost = loss.is_some();
            match &result {
                Err(error) if !is_away => {
                    let servers = fleet.member.servers();
                    tracing::warn!(servers, %error, "the fleet cannot be used: calls are refused until it can");
                }
                Ok(()) if is_away => tracing::info!("the fleet can be used again"),
                Ok(()) | Err(_) => {}
            }
            is_away = result.is_err();
        }
    }

    async fn maintain_lease(&self, fleet: &Fleet) -> Result<(), FleetError> {
        let state = if self.slots.is_closed() { NodeState::Draining } else { NodeState::Live };
        self.renew_lease(fleet, state).await?;
        if fleet.member.is_drain_requested().await? && !self.slots.is_closed() {
            tracing::warn!(
                "an operator has asked this node to leave the fleet: it finishes its runs and ends"
            );
            self.slots.close();
        }
        Ok(())
    }

    /// Removes abandoned claims, takes over lost nodes, and completes the journal.
    // A task of its own: it may take longer than the lease lasts.
    async fn sweep_fleet(self: Arc<Self>, fleet: Arc<Fleet>) {
        loop {
            tokio::time::sleep(fleet.member.lease_times().sweep()).await;
            let local = |intent| match self.journal.claims.report_state(intent) {
                Ok(ReportState::Unknown) => LocalReport::Unknown,
                Ok(ReportState::Delivered) => LocalReport::Delivered,
                // Left alone if the journal cannot be read.
                Ok(ReportState::Undelivered) | Err(_) => LocalReport::Undelivered,
            };
            let sweep = async {
                fleet.claims.remove_abandoned().await?;
                fleet.takeovers.sweep(local).await?;
                self.record_missing_ends(&fleet, local).await
            };
            if let Err(error) = sweep.await {
                tracing::debug!(%error, "the other nodes could not be checked, which is repeated");
            }
        }
    }

    /// Writes to the journal the ends of runs that an earlier process of this node had claimed and not started.
    async fn record_missing_ends(
        &self,
        fleet: &Fleet,
        local: impl Fn(IntentId) -> LocalReport + Sync,
    ) -> Result<(), FleetError> {
        for end in fleet.takeovers.unrecorded_ends(local).await? {
            let intent = end.intent;
            match self.record_missing_end(end).await {
                Ok(true) => fleet.takeovers.forget_end(intent).await?,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%intent, error = %ErrorChain(&*error), "the end of a run that the fleet has is not in the journal yet, which is repeated");
                }
            }
        }
        Ok(())
    }

    /// Returns `false` if the intent is open at this node.
    async fn record_missing_end(&self, end: UnrecordedEnd) -> Result<bool, BoxedError> {
        let receipt = Arc::new(stored::read_receipt(end.receipt.as_bytes())?);
        let Digest(content) = Digest::parse(&end.content)?;
        let verdict = end.verdict.map(|verdict| verdict.get().to_owned());
        let now = self.clock.now();
        let is_recorded = self.journal.claims.record_end(content, verdict, Arc::clone(&receipt), now).await?;
        if is_recorded {
            self.policies.governor().observe_end(&receipt);
        }
        Ok(is_recorded)
    }

    async fn renew_lease(&self, fleet: &Fleet, state: NodeState) -> Result<(), FleetError> {
        let last = self.journal.head();
        let (running, queued) = self.queries.queue_stats();
        let head = NodeHead { receipts: last.number, hash: last.hash };
        let concurrent = self.settings.capacity.concurrent;
        let waiting = self.intents.awaiting_decision_count(self.clock.now());
        let undelivered = self.journal.deliveries.undelivered_count();
        let load = NodeLoad { running, queued, waiting, concurrent, undelivered };
        fleet.member.renew(state, head, load).await
    }

    /// Leaves the fleet: other nodes deliver the reports that this one has not, and do not wait for its lease.
    pub async fn leave_fleet(&self) {
        let Some(fleet) = self.node.fleet() else { return };
        if let Err(error) = self.renew_lease(fleet, NodeState::Left).await {
            tracing::warn!(%error, "the fleet was not told that this node leaves: another one takes over once the lease has ended");
        }
    }
}

/// The agent of a claim, as another node has written it.
fn parse_agent(agent: &str) -> Result<AgentDid, Fault> {
    AgentDid::parse(agent).map_err(|error| Fault::Internal(error.to_string()))
}

/// Requests a subscription until it succeeds.
pub(super) async fn subscribe<T, R>(request: impl Fn() -> R) -> T
where
    R: Future<Output = Result<T, FleetError>>,
{
    loop {
        match request().await {
            Ok(subscription) => return subscription,
            Err(error) => tracing::debug!(%error, "a subscription failed, and is retried"),
        }
        tokio::time::sleep(SUBSCRIBE_DELAY).await;
    }
}

/// Delivers the reports of lost nodes.
async fn deliver_orphans(member: Arc<Membership>, fleet: Arc<Fleet>) {
    loop {
        let report = fleet.takeovers.next_orphan().await;
        let member = Arc::clone(&member);
        let fleet = Arc::clone(&fleet);
        member.sessions.clone().spawn(async move { deliver_orphan(&member, &fleet, &report).await });
    }
}

async fn deliver_orphan(member: &Membership, fleet: &Fleet, report: &OrphanReport) {
    let OrphanReport { intent, node, .. } = report;
    let receipt = match stored::read_receipt(report.receipt.as_bytes()) {
        Ok(receipt) => receipt,
        Err(error) => {
            return tracing::error!(%intent, %node, %error, "the receipt of a lost node cannot be read");
        }
    };
    let [mut delay, max_delay] = FINISH_DELAYS;
    loop {
        let result = member.policies.governor().report(&receipt).await;
        member.metrics.record_delivery(result.is_ok());
        let Err(error) = result else { break };
        tracing::warn!(%intent, %node, error = %ErrorChain(&error), "the report of a lost node was not delivered, and is retried");
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(max_delay);
    }
    tracing::info!(%intent, %node, "the report of a lost node is delivered");
    while fleet.takeovers.mark_orphan_delivered(report).await.is_err() {
        tokio::time::sleep(max_delay).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_writes_is_not_taken_for_a_withdrawal() {
        let reason = AbortReason::Cancelled;
        let written = Some(reason.message().to_owned());
        for (denial, told) in [
            (
                FleetDenial::ByPerson { by: "the executor".to_owned(), risk_score: None, reason: written },
                "denied by `the executor` (`g2a/directive`): cancelled by `a2g/cancel`",
            ),
            (FleetDenial::Withdrawn { reason }, "cancelled by `a2g/cancel`, before it ran"),
            (FleetDenial::Refused { message: "no such tool".to_owned() }, "no such tool"),
        ] {
            let read = FleetDenial::read(&denial.to_raw().unwrap()).unwrap();
            assert_eq!(read, denial);
            let Fault::Refused { message, .. } = read.into_fault(IntentId::random()) else {
                panic!("{denial:?}")
            };
            assert_eq!(message, told);
        }
    }
}
