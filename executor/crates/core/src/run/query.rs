//! Queries of intents, receipts, usage and the executor's state, and the wait for the end of an intent.

use super::compile_waits::CompileWaits;
use super::current_catalog::CurrentCatalog;
use super::engine::checks::check_memory;
use super::engine::passing::Passing;
use super::engine::stored_calls::StoredCalls;
use super::fleet::{FleetDenial, Node};
use super::open_intents::{Kept, OpenIntents};
use super::pending::Pending;
use super::questions::Peers;
use super::slots::Slots;
use super::tool_sessions::ToolSessions;
use super::wait_records::denial_fault;
use super::waits::Waits;
use super::{ExecutorSettings, IntentState, Parts, RunIdentity};
use a2g_capability::Ceilings;
use a2g_govern::{DENIED_BY_GOVERNOR, Escalated};
use a2g_intent::Wait;
use a2g_journal::history::RefusalEntry;
use a2g_journal::{
    IfFull, IntentRecords, Journal, NumberedRefusal, Page, ReceiptPage, RefusalSearch, RunRecord, RunSearch,
    RunSummary, SeriesSpan, Stage, UsageSums,
};
use a2g_metrics::{CallerMetrics, FleetGauges, Gauges, Metrics};
use a2g_types::call::{Call, StoredArguments};
use a2g_types::clock::Clock;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::memory;
use a2g_types::node::NodeName;
use a2g_types::outcome::{AbortReason, NestedCall, Receipt};
use a2g_types::stop::Stop;
use a2g_types::verdict::Verdict;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::watch;

/// The delay of a signal about an intent that is about to be open, or to wait.
const MAX_SIGNAL_DELAY: Duration = Duration::from_secs(1);
/// The maximum time for which a search waits until the latest refusals are written.
const MAX_WRITE_WAIT: Duration = Duration::from_secs(1);

/// A signal that the state of an intent may have changed since the signal was made.
pub struct IntentSignal {
    intent: IntentId,
    waits: watch::Receiver<()>,
    /// `None` if the intent is not open in the journal.
    stage: Option<watch::Receiver<Stage>>,
}

/// The denial of an intent at all nodes of the fleet.
#[derive(Debug)]
pub struct DeniedInFleet {
    /// The agent.
    pub agent: AgentDid,
    /// The fault of every call with the intent.
    pub fault: Fault,
    /// The reason for which the intent was withdrawn; `None` if it was denied or refused.
    pub withdrawn_for: Option<AbortReason>,
}

/// The reads of doors and people: the state of intents, what the journal has, and the figures.
pub struct Queries {
    journal: Arc<Journal>,
    catalogue: Arc<CurrentCatalog>,
    intents: Arc<OpenIntents>,
    compile_waits: CompileWaits,
    stored_calls: Arc<StoredCalls>,
    slots: Arc<Slots>,
    node: Arc<Node>,
    peers: Arc<Peers>,
    waits: Arc<Waits>,
    pending: Arc<Pending>,
    passing: Arc<Passing>,
    metrics: Arc<Metrics>,
    tool_sessions: Arc<ToolSessions>,
    settings: Arc<ExecutorSettings>,
    clock: Arc<dyn Clock>,
}

impl Queries {
    pub(super) fn new(parts: &Parts) -> Self {
        Self {
            journal: Arc::clone(&parts.journal),
            catalogue: Arc::clone(&parts.catalogue),
            intents: Arc::clone(&parts.intents),
            compile_waits: parts.compile_waits.clone(),
            stored_calls: Arc::clone(&parts.stored_calls),
            slots: Arc::clone(&parts.slots),
            node: Arc::clone(&parts.node),
            peers: Arc::clone(&parts.peers),
            waits: Arc::clone(&parts.waits),
            pending: Arc::clone(&parts.pending),
            passing: Arc::clone(&parts.passing),
            metrics: Arc::clone(&parts.metrics),
            tool_sessions: Arc::clone(&parts.tool_sessions),
            settings: Arc::clone(&parts.settings),
            clock: Arc::clone(&parts.clock),
        }
    }

    /// Renders all metrics as text for Prometheus, with the numbers of open connections and of unknown callers.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub async fn render_metrics(&self, connections: usize, callers: &CallerMetrics) -> Result<String, Fault> {
        let (running, queued) = self.queue_stats();
        let oldest = self.journal.deliveries.oldest_undelivered_at().await?;
        let now = self.clock.now();
        let oldest_age = oldest.and_then(|since| Duration::try_from(now - since).ok()).unwrap_or_default();
        // Counted after the query: the oldest report may have been delivered in between.
        let undelivered = self.journal.deliveries.undelivered_count();
        let gauges = Gauges {
            running,
            queued,
            connections,
            sessions: self.tool_sessions.count(),
            escalated: self.intents.awaiting_decision_count(now),
            receipts: self.journal.head().number,
            journal_bytes: self.journal.bytes(),
            undelivered,
            heap_bytes: memory::used_bytes(),
            oldest_undelivered: if undelivered == 0 { Duration::ZERO } else { oldest_age },
            fleet: self.node.fleet().map(|fleet| FleetGauges {
                may_claim: fleet.member.may_run(),
                refused_values: fleet.member.refused_values(),
                reports_of_others: fleet.takeovers.orphan_count(),
                passed_calls: self.passing.passed.load(Relaxed),
                taken_calls: self.passing.taken.load(Relaxed),
            }),
        };
        self.metrics.encode(&gauges, callers).map_err(|error| Fault::Internal(error.to_string()))
    }

    /// The numbers of executions that run and that wait for a slot.
    #[must_use]
    pub fn queue_stats(&self) -> (usize, usize) {
        self.slots.queue_stats()
    }

    /// The governor's verdict for an intent that has started, if this executor asked the governor.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub fn verdict(&self, intent: IntentId) -> Result<Option<Verdict>, Fault> {
        self.journal.records.verdict(intent).map_err(Fault::from)
    }

    /// The calls that a run has made so far; empty for a run that has ended or makes none.
    #[must_use]
    pub fn nested_calls(&self, intent: IntentId) -> Vec<NestedCall> {
        self.intents.calls_of(intent).map_or_else(Vec::new, |calls| calls.list())
    }

    /// Changes when an intent begins or stops to wait for a person.
    #[must_use]
    pub fn escalation_changes(&self) -> watch::Receiver<()> {
        self.intents.list_changes()
    }

    /// The intents that arrived here and wait for a person, and those that a decision is being made on. An approved intent
    /// may have to wait for another decision later.
    #[must_use]
    pub fn held_intents(&self) -> HashSet<IntentId> {
        self.intents.read(|intents| intents.waits.select(Wait::awaits_decision_here).collect())
    }

    /// Follows what the fleet stores of the intents that wait. Returns `false` if the servers do not answer.
    pub async fn refresh_waits(&self) -> bool {
        self.pending.refresh_all().await
    }

    /// As [`Self::refresh_waits`], for one intent.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub async fn refresh_wait(&self, intent: IntentId) -> Result<(), Fault> {
        self.pending.refresh(intent).await.map(drop)
    }

    /// Returns `true` if a person can see here what they decide on: this node has the tool of the intent, which waits.
    #[must_use]
    pub fn can_show(&self, intent: IntentId) -> bool {
        let is_alone = self.node.fleet().is_none();
        let has_tool = |escalated: &Escalated, _: &[_]| {
            is_alone || self.catalogue.current().usable_tool(&escalated.call().tool).is_some()
        };
        self.intents.inspect(intent, has_tool).unwrap_or(false)
    }

    /// The node of the fleet at which an intent arrived that waits for a person; `None` for this one.
    #[must_use]
    pub fn home_of_wait(&self, intent: IntentId) -> Option<NodeName> {
        self.intents.read(|intents| intents.waits.get(intent)?.home().cloned())
    }

    /// The runs that have begun or wait for a slot here, in the order of their ids.
    #[must_use]
    pub fn active_runs(&self) -> Vec<RunIdentity> {
        self.intents.runs_here()
    }

    /// The call and the verdict of an intent that waits for a person.
    #[must_use]
    pub fn undecided_call(&self, intent: IntentId) -> Option<(Call, Verdict)> {
        let (escalated, _) = self.intents.find_undecided(intent)?;
        Some((escalated.call().clone(), escalated.verdict().clone()))
    }

    /// The records of an intent, in short; `None` for an intent without records.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn intent_records(&self, intent: IntentId) -> Result<Option<IntentRecords>, Fault> {
        self.journal.records.intent_records(intent).map_err(Fault::from)
    }

    /// The arguments of an agent's intent that waits, runs, has run or was not approved; `None` if they are not stored.
    /// The code that calls this checks that its client may see the agent, which is part of the question: callers choose
    /// the ids, and another agent's intent may have the same one here.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn arguments(&self, intent: IntentId, agent: &AgentDid) -> Result<Option<StoredArguments>, Fault> {
        let waiting = self.undecided_call(intent).filter(|(call, _)| call.agent == *agent);
        if let Some((Call { arguments, .. }, _)) = waiting {
            return Ok(Some(StoredArguments::Kept { arguments, left_out: Vec::new() }));
        }
        self.journal.records.arguments(intent, agent).map_err(Fault::from)
    }

    /// The agent and the fault of an intent that a person denied here or at another node; `None` for any other intent.
    ///
    /// # Errors
    /// The journal cannot be read, or the fleet cannot be reached.
    pub async fn denial_anywhere(&self, intent: IntentId) -> Result<Option<(AgentDid, Fault)>, Fault> {
        if let Some(fault) = self.denial(intent)? {
            return Ok(self.intent_records(intent)?.map(|records| (records.agent, fault)));
        }
        let denied = self.node.find_denial_in_fleet(intent).await?;
        Ok(denied.and_then(|(agent, denial)| match denial {
            FleetDenial::ByPerson { .. } => Some((agent, denial.into_fault(intent))),
            FleetDenial::Withdrawn { .. } | FleetDenial::Refused { .. } => None,
        }))
    }

    /// The message for the caller of an intent that the governor denied here; `None` for an intent of an agent that
    /// `may_see` does not select, or that has waited or begun since. A call that was refused for another reason is not
    /// denied: nobody has decided on it.
    ///
    /// # Errors
    /// The journal is busy or cannot be read.
    pub async fn denial_by_governor(
        &self,
        intent: IntentId,
        may_see: impl Fn(&AgentDid) -> bool + Send + 'static,
    ) -> Result<Option<String>, Fault> {
        let is_denial = move |refusal: &RefusalEntry| {
            refusal.blocked_by == BlockedBy::VerdictDenied.as_str()
                // The denials of people have the same code.
                && refusal.message.starts_with(DENIED_BY_GOVERNOR)
                && AgentDid::parse(&refusal.agent).is_ok_and(|agent| may_see(&agent))
        };
        // A refusal is written shortly after its answer, and on a full disk not before there is room.
        let _is_written = tokio::time::timeout(MAX_WRITE_WAIT, self.journal.flush()).await;
        let denial = self.journal.records.find_refusal(intent, is_denial).await;
        Ok(denial?.map(|refusal| refusal.message))
    }

    /// The fault of a call with an intent that a person denied; `None` for any other intent.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn denial(&self, intent: IntentId) -> Result<Option<Fault>, Fault> {
        let denial = self.journal.records.denial(intent)?;
        Ok(denial.map(|denial| denial_fault(intent, &denial)))
    }

    /// The denial of an intent at all nodes of the fleet.
    ///
    /// # Errors
    /// The fleet cannot be reached.
    pub async fn denial_in_fleet(&self, intent: IntentId) -> Result<Option<DeniedInFleet>, Fault> {
        let denial = self.node.find_denial_in_fleet(intent).await?;
        Ok(denial.map(|(agent, denial)| {
            let withdrawn_for = match denial {
                FleetDenial::Withdrawn { reason } => Some(reason),
                FleetDenial::ByPerson { .. } | FleetDenial::Refused { .. } => None,
            };
            DeniedInFleet { agent, fault: denial.into_fault(intent), withdrawn_for }
        }))
    }

    /// The hash of the record with the receipt of an intent, in hexadecimal; `None` without a journal on the disk.
    #[must_use]
    pub fn receipt_hash(&self, intent: IntentId) -> Option<String> {
        // A damaged file stops the server; see `Journal::wait_until_broken`.
        let hash = self.journal.records.receipt_hash(intent).ok().flatten()?;
        Some(a2g_journal::chain::to_hex(&hash))
    }

    /// The latest receipts of the agents that `filter` selects: see [`a2g_journal::Records::recent_receipts`].
    ///
    /// # Errors
    /// The journal is busy or cannot be read.
    pub async fn recent_receipts(
        &self,
        filter: impl Fn(&str) -> bool + Send + 'static,
        before: Option<u64>,
        limit: usize,
    ) -> Result<ReceiptPage, Fault> {
        self.journal.records.recent_receipts(filter, before, limit).await.map_err(Fault::from)
    }

    /// The latest runs that `search` selects, of the agents that `may_see` selects: see
    /// [`a2g_journal::Records::search_runs`].
    ///
    /// # Errors
    /// The journal is busy or cannot be read.
    pub async fn search_runs(
        &self,
        search: RunSearch,
        may_see: impl Fn(&str) -> bool + Send + 'static,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Page<RunSummary>, Fault> {
        self.journal.records.search_runs(search, may_see, before, limit).await.map_err(Fault::from)
    }

    /// The latest refused calls that `search` selects, of the agents that `may_see` selects: see
    /// [`a2g_journal::Records::search_refusals`].
    ///
    /// # Errors
    /// The journal is busy or cannot be read.
    pub async fn search_refusals(
        &self,
        search: RefusalSearch,
        may_see: impl Fn(&str) -> bool + Send + 'static,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Page<NumberedRefusal>, Fault> {
        self.journal.records.search_refusals(search, may_see, before, limit).await.map_err(Fault::from)
    }

    /// Everything that the records say about an intent; `None` for an intent without records. The code that calls
    /// this checks that its client may see the agent.
    ///
    /// # Errors
    /// The journal is busy or cannot be read.
    pub async fn run_record(&self, intent: IntentId) -> Result<Option<RunRecord>, Fault> {
        self.journal.records.run_record(intent).await.map_err(Fault::from)
    }

    /// The use of the executor by the agents that `filter` selects, from the latest `max_rows` receipts at most, with a
    /// series if there is a `span`: see [`a2g_journal::Records::usage`].
    ///
    /// # Errors
    /// The journal is busy or cannot be read.
    pub async fn usage(
        &self,
        since: Option<OffsetDateTime>,
        filter: impl Fn(&str) -> bool + Send + 'static,
        max_rows: u64,
        span: Option<SeriesSpan>,
    ) -> Result<UsageSums, Fault> {
        self.journal.records.usage(since, filter, max_rows, span).await.map_err(Fault::from)
    }

    /// The agent of an intent that has started at this executor, without its receipt; `None` for any other intent.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub fn agent_of_start(&self, intent: IntentId) -> Result<Option<AgentDid>, Fault> {
        self.journal.records.agent_of_start(intent).map_err(Fault::from)
    }

    /// The agent and the state of an intent that waits, has run or runs at this executor; `None` for any other intent.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub async fn status_here(&self, intent: IntentId) -> Result<Option<(AgentDid, IntentState)>, Fault> {
        if self.intents.is_held(intent)
            && let Err(fault) = self.pending.refresh(intent).await
        {
            tracing::debug!(%intent, ?fault, "the state of an intent may be old");
        }
        // The claim says what becomes of a claimed or a decided one.
        let unclaimed = self.held_state(intent, |wait| !wait.is_claimed() && !wait.is_decided());
        if unclaimed.is_some() {
            return Ok(unclaimed);
        }
        if let Some(agent) = self.compile_waits.agent_of(intent) {
            return Ok(Some((agent, IntentState::Queued)));
        }
        check_memory()?;
        let recorded = self.journal.claims.stage(intent, IfFull::Refuse).await?;
        let stage = recorded.or_else(|| Some((self.stored_calls.agent_of(intent)?, Stage::Queued)));
        let state = stage.and_then(|(agent, stage)| Some((agent, IntentState::from_stage(stage)?)));
        // An approved intent that could not begin is about to wait again.
        Ok(state.or_else(|| self.held_state(intent, |wait| !wait.is_decided())))
    }

    /// The state of an intent that is held here and selected. One that is approved waits to run.
    fn held_state(
        &self,
        intent: IntentId,
        is_selected: impl Fn(&Wait<Kept>) -> bool,
    ) -> Option<(AgentDid, IntentState)> {
        let now = self.clock.now();
        self.intents.read(|intents| {
            let wait = intents.waits.get(intent).filter(|wait| is_selected(wait) && wait.is_in_time(now))?;
            let state = if wait.awaits_decision() { IntentState::Escalated } else { IntentState::Queued };
            Some((wait.call().call().agent.clone(), state))
        })
    }

    /// As [`Self::status_here`], also of an intent that a node of the fleet has claimed.
    ///
    /// # Errors
    /// If the journal cannot be read, or the fleet cannot be reached.
    pub async fn status(&self, intent: IntentId) -> Result<Option<(AgentDid, IntentState)>, Fault> {
        if let Some(known) = self.status_here(intent).await? {
            return Ok(Some(known));
        }
        let found = self.node.find_stage_in_fleet(intent).await?;
        let claimed = found.and_then(|(agent, stage)| Some((agent, IntentState::from_stage(stage)?)));
        if claimed.is_some() || !self.is_decided(intent) {
            return Ok(claimed);
        }
        // Somebody has decided, and nothing has the claim yet.
        let pending = self.pending.find_call(intent).await?;
        Ok(pending.map(|(call, state)| (call.agent, state)))
    }

    /// Returns `true` if the fleet stores a decision on an intent, and no task of this process acts on it.
    #[must_use]
    pub fn is_decided(&self, intent: IntentId) -> bool {
        self.intents.read(|intents| intents.waits.get(intent).is_some_and(Wait::is_decided))
    }

    /// As [`Self::status`], also of an intent that has begun to wait just now, or waits for a slot at another node of the
    /// fleet.
    ///
    /// # Errors
    /// If the journal cannot be read, or the fleet cannot be reached.
    pub async fn status_anywhere(&self, intent: IntentId) -> Result<Option<(AgentDid, IntentState)>, Fault> {
        if let Some(known) = self.status(intent).await? {
            return Ok(Some(known));
        }
        if let Some((call, state)) = self.pending.find_call(intent).await? {
            return Ok(Some((call.agent, state)));
        }
        let queued = self.peers.find_queued(intent).await?;
        Ok(queued.map(|agent| (agent, IntentState::Queued)))
    }

    /// A call that the fleet stores, whichever node it arrived at, and its state; `None` for any other intent.
    ///
    /// # Errors
    /// If the journal cannot be read, or the fleet cannot be reached.
    pub async fn find_pending(&self, intent: IntentId) -> Result<Option<(Call, IntentState)>, Fault> {
        let Some((call, unclaimed)) = self.pending.find_call(intent).await? else { return Ok(None) };
        let state = self.status(intent).await?.map(|(_agent, state)| state);
        Ok(Some((call, state.unwrap_or(unclaimed))))
    }

    /// Returns `true` if the fleet stores an intent as waiting for a person or for a slot.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub async fn may_still_wait(&self, intent: IntentId) -> Result<bool, Fault> {
        self.pending.is_pending(intent).await
    }

    /// Makes a signal before the state of an intent is read, so that no change in between is lost.
    #[must_use]
    pub fn intent_signal(&self, intent: IntentId) -> IntentSignal {
        let waits = self.intents.changes();
        let stage = self.journal.claims.subscribe(intent);
        IntentSignal { intent, waits, stage }
    }

    /// Waits until the state of an intent may have changed.
    pub async fn wait_for_signal(&self, signal: IntentSignal) {
        let IntentSignal { intent, mut waits, stage } = signal;
        match (stage, self.intents.wake_condition(intent)) {
            // An error means that the intent is no longer open.
            (Some(mut stage), _) => drop(stage.changed().await),
            (None, Some(condition)) => self.waits.wait_for_change_or_expiry(condition, &mut waits).await,
            (None, None) => tokio::time::sleep(MAX_SIGNAL_DELAY).await,
        }
    }

    /// Waits until an intent has finished, including its waits for a person, also while the journal is busy or the servers
    /// of the fleet do not answer. Returns its receipt; `None` if the intent did not run and no longer waits, or if the
    /// receipt was pruned.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub async fn await_outcome(&self, intent: IntentId) -> Result<Option<Arc<Receipt>>, Fault> {
        loop {
            match self.follow_to_end(intent).await {
                Err(Fault::Busy { retry_after_ms, .. }) => {
                    tokio::time::sleep(Duration::from_millis(retry_after_ms)).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn follow_to_end(&self, intent: IntentId) -> Result<Option<Arc<Receipt>>, Fault> {
        let mut changes = self.intents.changes();
        loop {
            changes.mark_unchanged();
            if let Some(mut stage) = self.journal.claims.subscribe(intent) {
                let has_finished =
                    |stage: &Stage| !matches!(stage, Stage::Queued | Stage::Running | Stage::Ended);
                if let Ok(Stage::Finished(receipt)) =
                    stage.wait_for(has_finished).await.map(|stage| stage.clone())
                {
                    return Ok(Some(receipt));
                }
                continue;
            }
            // Checked after the journal: an approved intent is open in the journal before it is no longer held.
            if let Some(condition) = self.intents.wake_condition(intent) {
                self.waits.wait_for_change_or_expiry(condition, &mut changes).await;
                continue;
            }
            match self.journal.claims.stage(intent, IfFull::Wait).await? {
                Some((_, Stage::Finished(receipt))) => return Ok(Some(receipt)),
                Some((_, Stage::Queued | Stage::Running | Stage::Ended)) => {}
                Some((_, Stage::Pruned | Stage::Released)) => return Ok(None),
                None => {
                    // Read before the claim, because a stored call is removed once its intent has a claim.
                    let may_wait = self.pending.is_pending(intent).await?;
                    match self.node.find_stage_in_fleet(intent).await? {
                        Some((_, Stage::Finished(receipt))) => return Ok(Some(receipt)),
                        Some((_, Stage::Pruned | Stage::Released)) => return Ok(None),
                        None if !may_wait => return Ok(None),
                        Some((_, Stage::Queued | Stage::Running | Stage::Ended)) | None => {
                            tokio::time::sleep(MAX_SIGNAL_DELAY).await;
                        }
                    }
                }
            }
        }
    }

    /// The stops in force, by target.
    #[must_use]
    pub fn stops(&self) -> Vec<Stop> {
        self.intents.read(|intents| intents.stops.list())
    }

    /// The operator's ceilings.
    #[must_use]
    pub fn ceilings(&self) -> &Ceilings {
        &self.settings.ceilings
    }
}
