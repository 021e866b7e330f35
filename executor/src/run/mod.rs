//! The pipeline of every call, for all doors.
//!
//! ```text
//! Call ─ find tool ─▶ verdict ─ admit ─▶ Admitted ─ schema, grant, open ─▶ Permit ─ claim in the journal
//!   ─ slot ─▶ expiry again ─▶ isolate uses up the Permit ─▶ Outcome ─▶ journal: Receipt, report queued
//! ```
//! A claimed call runs in a task of its own: a caller that disconnects changes nothing. Execution is at most once; a
//! repeated intent gets the receipt of the one run.

mod active_runs;
mod decisions;
mod escalations;
mod events;
mod output;
mod refusal_log;
mod slots;
mod subscribers;
mod trace;

pub use events::{RunEvent, RunEventSink, TaskPersistence};
pub use slots::Capacity;
pub use subscribers::{RunIdentity, RunNotification};

use crate::call::{Call, ContextSignature};
use crate::capability::{Ceilings, Grant, Mounts, Permit, RootsError};
use crate::catalog::{Catalog, CatalogEntry, QuickCheck, Tool};
use crate::clock::Clock;
use crate::egress::{Egress, Network};
use crate::error_chain::ErrorChain;
use crate::fault::{BlockedBy, Fault};
use crate::govern::{
    AcceptUnsigned, Admission, Admitted, Governor, Granted, Granter, IntentSignatures, OperatorLimits,
    StandingPolicies, Trust, VerifiedVerdict, admit,
};
use crate::ident::{AgentDid, IntentId, ToolName, did_you_mean};
use crate::isolate::Isolate;
use crate::journal::{
    ClaimResult, IfFull, IntentSummary, Journal, JournalError, KnownIntent, Stage, StageSource, StartRequest,
    StartResult,
};
use crate::memory;
use crate::metrics::{CallerMetrics, Gauges, Metrics};
use crate::outcome::{AbortReason, End, Receipt};
use crate::spawn::{self, SessionTasks};
use crate::tool::Descriptor;
use crate::verdict::{Policy, Proof, Verdict};
use active_runs::{ActiveRun, ActiveRuns};
use escalations::Escalations;
use futures_util::FutureExt as _;
use output::ExpectedOutput;
use refusal_log::RefusalLog;
use serde_json::Value;
use slots::{CapacityError, QueuePlace, Slots};
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use subscribers::Subscribers;
use tokio::sync::watch;
use trace::Stopwatch;
use tracing::Instrument as _;

/// Pause before a caller that found no room should retry.
const RETRY_AFTER_MS: u64 = 500;
/// Pause before a caller whose tool is being compiled should retry.
const PREPARING_RETRY_MS: u64 = 1_000;
/// The message for a new call, or a request for a stored receipt, when memory is used up.
const NO_MEMORY: &str = "the executor holds as much as it may (`server.max_memory_mb`): messages, results that are not \
                         taken, and output that is still to come";
/// The time for which the caller of an ended run waits for its receipt to find room on the journal's disk.
const RECEIPT_TIMEOUT: Duration = Duration::from_secs(5);

/// The operator's settings of this executor.
#[derive(Debug)]
pub struct ExecutorSettings {
    /// The right to make grants of admitted calls.
    pub granter: Granter,
    /// The operator's ceilings.
    pub ceilings: Ceilings,
    /// The map from guest paths to host folders.
    pub mounts: Mounts,
    /// The limits on running and waiting executions.
    pub capacity: Capacity,
    /// The permission to accept unsigned verdicts, if it was given.
    pub accept_unsigned: Option<AcceptUnsigned>,
    /// The check of intents' signatures, if they are required.
    pub signatures: Option<Arc<IntentSignatures>>,
}

/// A catalogue, and the isolate in which its tools run.
pub struct LoadedCatalog {
    catalog: Catalog,
    isolate: Isolate,
    /// The descriptors of the usable tools, by name.
    tools: Arc<[Descriptor]>,
}

impl LoadedCatalog {
    /// A catalogue whose tools are ready to run in `isolate`.
    #[must_use]
    pub fn new(catalog: Catalog, isolate: Isolate) -> Self {
        let usable = catalog.ready_tools().filter(|(name, _)| isolate.check_usable(name).is_ok());
        let tools = usable.map(|(_, tool)| tool.descriptor.clone()).collect();
        Self { catalog, isolate, tools }
    }

    fn usable_tool(&self, name: &ToolName) -> Option<&Tool> {
        self.catalog.get(name)?.tool().map(|tool| &**tool)
    }
}

/// The core that all doors share.
pub struct Executor {
    settings: ExecutorSettings,
    /// Replaced as a whole; each run holds the one that it began with.
    loaded: RwLock<Arc<LoadedCatalog>>,
    governor: Governor,
    /// The keys whose proofs are accepted. Replaced as a whole.
    trust: RwLock<Arc<Trust>>,
    /// The way to the network, if any run may have one.
    egress: Option<Arc<Egress>>,
    standing: StandingPolicies,
    journal: Journal,
    slots: Arc<Slots>,
    output: ExpectedOutput,
    active_runs: ActiveRuns,
    escalations: Escalations,
    refusal_log: RefusalLog,
    subscribers: Subscribers,
    metrics: Metrics,
    sessions: SessionTasks,
    clock: Arc<dyn Clock>,
}

/// A predicate that selects intents by their agent.
pub type AgentFilter<'a> = &'a (dyn Fn(&AgentDid) -> bool + Sync);

/// Selects the intents of every agent.
pub fn all_agents(_: &AgentDid) -> bool {
    true
}

/// The state of an intent.
#[derive(Debug)]
pub enum IntentState {
    /// It waits for a person.
    Escalated,
    /// It waits for a slot.
    Queued,
    /// Its guest runs.
    Running,
    /// It has finished. The receipt may have been pruned.
    Finished(Option<Arc<Receipt>>),
}

/// The result of a gateway call.
#[derive(Debug)]
pub struct GatewayAnswer {
    /// The governor's verdict.
    pub verdict: Arc<Verdict>,
    /// The receipt, if the tool ran.
    pub receipt: Option<Arc<Receipt>>,
}

impl Executor {
    /// An executor of these parts, with the intents that an earlier process held.
    #[must_use]
    pub fn new(
        settings: ExecutorSettings,
        loaded: LoadedCatalog,
        governor: Governor,
        trust: Trust,
        egress: Option<Arc<Egress>>,
        journal: Journal,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let escalations = decisions::restore_escalations(&journal, clock.now());
        let metrics = Metrics::new(journal.metrics());
        Self {
            slots: Arc::new(Slots::new(settings.capacity)),
            output: ExpectedOutput::default(),
            settings,
            loaded: RwLock::new(Arc::new(loaded)),
            governor,
            trust: RwLock::new(Arc::new(trust)),
            egress,
            standing: StandingPolicies::default(),
            journal,
            active_runs: ActiveRuns::default(),
            escalations,
            refusal_log: RefusalLog::default(),
            subscribers: Subscribers::default(),
            metrics,
            sessions: SessionTasks::default(),
            clock,
        }
    }

    /// The descriptors of all usable tools, sorted by name.
    #[must_use]
    pub fn tools(&self) -> Arc<[Descriptor]> {
        Arc::clone(&self.current_catalog().tools)
    }

    /// The catalogue.
    #[must_use]
    pub fn catalog(&self) -> Catalog {
        self.current_catalog().catalog.clone()
    }

    /// The names of the tools that are usable or being prepared.
    #[must_use]
    pub fn tool_names(&self) -> Vec<String> {
        let loaded = self.current_catalog();
        let known = loaded.catalog.iter().filter(|(name, entry)| match entry {
            CatalogEntry::Ready(_) => loaded.isolate.check_usable(name).is_ok(),
            CatalogEntry::Preparing => true,
            CatalogEntry::Broken(_) => false,
        });
        known.map(|(name, _)| name.to_string()).collect()
    }

    /// Replaces the catalogue for all later calls. Runs that have begun end with the catalogue that they began with.
    pub fn replace_catalog(&self, loaded: LoadedCatalog) {
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
    }

    fn current_catalog(&self) -> Arc<LoadedCatalog> {
        Arc::clone(&self.loaded.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the keys whose proofs are accepted.
    pub fn replace_trust(&self, trust: Trust) {
        *self.trust.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(trust);
    }

    fn trust(&self) -> Arc<Trust> {
        Arc::clone(&self.trust.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The governor.
    #[must_use]
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// The journal.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The metrics of this executor.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// All metrics as text for Prometheus, with the numbers of open connections and of unknown callers.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn render_metrics(&self, connections: usize, callers: &CallerMetrics) -> Result<String, Fault> {
        let (running, queued) = self.queue_stats();
        let oldest = self.journal.oldest_undelivered_at().await;
        let oldest = oldest.map_err(|error| self.journal_fault(&error))?;
        let now = self.clock.now();
        let waited = oldest.and_then(|since| Duration::try_from(now - since).ok()).unwrap_or_default();
        // Counted last: the oldest report may have been delivered since it was read.
        let undelivered = self.journal.undelivered_count();
        let levels = Gauges {
            running,
            queued,
            connections,
            waiting: self.escalations.undecided_count(now),
            receipts: self.journal.head().number,
            journal_bytes: self.journal.bytes(),
            undelivered,
            heap_bytes: memory::used_bytes(),
            oldest_undelivered: if undelivered == 0 { Duration::ZERO } else { waited },
        };
        self.metrics.encode(&levels, callers).map_err(|error| Fault::Internal(error.to_string()))
    }

    /// The tasks of the sessions that this executor serves.
    #[must_use]
    pub fn sessions(&self) -> &SessionTasks {
        &self.sessions
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Calls `subscriber` for every event of all later runs, for all doors, on the run's own thread. It must not block.
    pub fn subscribe(&self, subscriber: impl Fn(&RunIdentity, RunNotification<'_>) + Send + Sync + 'static) {
        self.subscribers.add(subscriber);
    }

    /// Records the refusal of a request that its caller may not make, about a call or not. Returns the fault.
    pub fn refuse(&self, call: Option<&Call>, blocked_by: BlockedBy, message: String) -> Fault {
        let intent = call.map(|call| call.intent);
        let refusal = Fault::Refused { intent, risk_score: None, blocked_by, message };
        let Some(call) = call else { return self.record_refusal(None, refusal) };
        let asked = IntentSummary::from_call(call);
        trace::intent_span(&asked, call.door).in_scope(|| self.record_refusal(Some(&asked), refusal))
    }

    /// The check of the signatures of intents; `None` if they need none.
    #[must_use]
    pub fn signatures(&self) -> Option<&IntentSignatures> {
        self.settings.signatures.as_deref()
    }

    /// Checks the signature of an intent, if signatures are required.
    pub fn check_signature(&self, call: &Call, signature: Option<&ContextSignature>) -> Result<(), Fault> {
        let Some(signatures) = self.signatures() else { return Ok(()) };
        let checked = signatures.check(signature, self.clock.now());
        checked.map_err(|bad| self.refuse(Some(call), bad.blocked_by, bad.message.to_owned()))
    }

    /// Counts and logs a refusal, and records it if it is about a call, in the span of that call. Every refusal passes
    /// here.
    fn record_refusal(&self, asked: Option<&IntentSummary>, fault: Fault) -> Fault {
        if let Fault::Busy { .. } = &fault {
            self.metrics.count_busy();
        }
        let Fault::Refused { blocked_by, message, .. } = &fault else { return fault };
        self.metrics.count_refusal(*blocked_by);
        // An intent that waits for a person may still run.
        if let Some(asked) = asked.filter(|_| *blocked_by != BlockedBy::EscalationPending) {
            self.journal.record_refusal(asked, *blocked_by, message, self.clock.now());
        }
        self.refusal_log.record(asked, &fault, self.clock.monotonic());
        fault
    }

    /// The numbers of executions that run and that wait for a slot.
    #[must_use]
    pub fn queue_stats(&self) -> (usize, usize) {
        self.slots.queue_stats()
    }

    /// Runs a call under a verdict that came with it (`a2g/execute`), if its proof or the operator's permission makes
    /// the verdict valid.
    ///
    /// # Errors
    /// Every refusal, and the failure or the limit that ended the run.
    pub async fn execute(
        self: &Arc<Self>,
        call: Call,
        verdict: Verdict,
        proof: Option<&Proof>,
    ) -> Result<Arc<Receipt>, Fault> {
        let asked = IntentSummary::from_call(&call);
        let span = trace::intent_span(&asked, call.door);
        let execution = async {
            self.execute_call(call, verdict, proof)
                .await
                .map_err(|fault| self.record_refusal(Some(&asked), fault))
        };
        execution.instrument(span).await
    }

    async fn execute_call(
        self: &Arc<Self>,
        call: Call,
        verdict: Verdict,
        proof: Option<&Proof>,
    ) -> Result<Arc<Receipt>, Fault> {
        let stopwatch = Stopwatch::start(self.clock.monotonic());
        let (trust, permission) = (self.trust(), self.settings.accept_unsigned);
        let (call, verdict) =
            VerifiedVerdict::from_call(call, verdict, proof, &trust, permission, self.clock.now())?;
        let loaded = self.find_tool(&call)?;
        self.check_memory()?;
        let known = self.journal.find(&call, verdict.verdict().expires_at).await;
        if let Some(known) = known.map_err(|error| self.journal_fault(&error))? {
            return require_success(self.await_existing(&call, known).await?.0);
        }
        let now = self.clock.now();
        // An intent that waits with other content can be neither run nor held by this call.
        self.escalations.pending_verdict(&call, now)?;
        match admit(call, verdict, now)? {
            Admission::Run(admitted) => {
                Self::check_arguments(&loaded, admitted.call()).await?;
                require_success(self.run(*admitted, loaded, None, stopwatch, RunEventSink::none()).await?)
            }
            Admission::Wait(escalated) => {
                Self::check_arguments(&loaded, escalated.call()).await?;
                let intent = escalated.call().intent;
                let risk_score = escalated.verdict().risk.as_ref().map(|risk| risk.score);
                self.hold(*escalated).await?;
                Err(Fault::Refused {
                    intent: Some(intent),
                    risk_score,
                    blocked_by: BlockedBy::EscalationPending,
                    message: "a person has to decide: the intent runs when `g2a/directive` approves it"
                        .to_owned(),
                })
            }
        }
    }

    /// Runs a call under the operator's own limits (`a2g-executor run`).
    ///
    /// # Errors
    /// Every refusal, and the failure or the limit that ended the run.
    pub async fn execute_for_operator(
        self: &Arc<Self>,
        call: Call,
        limits: OperatorLimits,
    ) -> Result<Arc<Receipt>, Fault> {
        let asked = IntentSummary::from_call(&call);
        let span = trace::intent_span(&asked, call.door);
        let execution = async {
            let stopwatch = Stopwatch::start(self.clock.monotonic());
            let loaded = self.find_tool(&call)?;
            let admitted = limits.admit(call, self.clock.now())?;
            Self::check_arguments(&loaded, admitted.call()).await?;
            require_success(self.run(admitted, loaded, None, stopwatch, RunEventSink::none()).await?)
        };
        let execution = async { execution.await.map_err(|fault| self.record_refusal(Some(&asked), fault)) };
        execution.instrument(span).await
    }

    /// Asks the governor about a call, and runs it if it is permitted. `sink` receives the events of the run; it
    /// receives none of a run that began before.
    ///
    /// # Errors
    /// Every refusal before the run; the outcome of the run is in the answer.
    pub async fn handle_intent(
        self: &Arc<Self>,
        call: Call,
        sink: RunEventSink,
    ) -> Result<GatewayAnswer, Fault> {
        let asked = IntentSummary::from_call(&call);
        let span = trace::intent_span(&asked, call.door);
        let answer = async {
            self.decide_and_run(call, sink).await.map_err(|fault| self.record_refusal(Some(&asked), fault))
        };
        answer.instrument(span).await
    }

    async fn decide_and_run(
        self: &Arc<Self>,
        call: Call,
        sink: RunEventSink,
    ) -> Result<GatewayAnswer, Fault> {
        let mut stopwatch = Stopwatch::start(self.clock.monotonic());
        let loaded = self.find_tool(&call)?;
        self.check_memory()?;
        let known = if call.is_new { Ok(None) } else { self.journal.find(&call, None).await };
        if let Some(known) = known.map_err(|error| self.journal_fault(&error))?
            && let (receipt, Some(verdict)) = self.await_existing(&call, known).await?
        {
            return Ok(GatewayAnswer { verdict, receipt: Some(receipt) });
        }
        if let Some(waiting) = self.escalations.pending_verdict(&call, self.clock.now())? {
            return Ok(GatewayAnswer { verdict: Arc::new(waiting), receipt: None });
        }
        match self.governor {
            Governor::Local(..) => {}
            Governor::Remote(_) => sink.notify_waiting(),
        }
        let sent = self.clock.monotonic();
        let decided = self.governor.decide(&call).await;
        self.metrics.record_verdict_time(stopwatch.exclude(sent, self.clock.monotonic()));
        let authentic = decided?;
        // The context is for the governor; nothing here stores it.
        let call = Call { context: None, ..call };
        let verdict = Arc::new(authentic.verdict().clone());
        let now = self.clock.now();
        match admit(call, authentic, now)? {
            Admission::Wait(escalated) => {
                Self::check_arguments(&loaded, escalated.call()).await?;
                sink.notify_waiting();
                self.hold(*escalated).await?;
                Ok(GatewayAnswer { verdict, receipt: None })
            }
            Admission::Run(admitted) => {
                Self::check_arguments(&loaded, admitted.call()).await?;
                let known = Some(Arc::clone(&verdict));
                let receipt = self.run(*admitted, loaded, known, stopwatch, sink).await?;
                Ok(GatewayAnswer { verdict, receipt: Some(receipt) })
            }
        }
    }

    /// The governor's verdict for an intent that has started, if this executor asked the governor.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn verdict(&self, intent: IntentId) -> Result<Option<Verdict>, Fault> {
        self.journal.verdict(intent).map_err(|error| self.journal_fault(&error))
    }

    /// The agent and the state of an intent; `None` for an unknown intent.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn status(&self, intent: IntentId) -> Result<Option<(AgentDid, IntentState)>, Fault> {
        if let Some(agent) = self.escalations.agent_of(intent, self.clock.now()) {
            return Ok(Some((agent, IntentState::Escalated)));
        }
        self.check_memory()?;
        let stage =
            self.journal.stage(intent, IfFull::Refuse).await.map_err(|error| self.journal_fault(&error))?;
        let found = stage.and_then(|(agent, stage)| {
            let whereabouts = match stage {
                Stage::Queued => IntentState::Queued,
                Stage::Running | Stage::Ended => IntentState::Running,
                Stage::Finished(receipt) => IntentState::Finished(Some(receipt)),
                Stage::Pruned => IntentState::Finished(None),
                Stage::Released => return None,
            };
            Some((agent, whereabouts))
        });
        // An approved intent that could not begin is about to wait again.
        let waits = || self.escalations.agent_of_unopened(intent, self.clock.now());
        Ok(found.or_else(|| waits().map(|agent| (agent, IntentState::Escalated))))
    }

    /// Checks that a call names a tool that can run.
    ///
    /// # Errors
    /// [`Fault::InvalidParams`] or [`Fault::ToolUnavailable`].
    pub fn check_tool(&self, call: &Call) -> Result<(), Fault> {
        self.find_tool(call).map(drop)
    }

    /// Waits until an intent has finished, for any caller and however often it waits for a person before. Returns its
    /// receipt; `None` if it did not run and no longer waits, or if the receipt was pruned.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn await_outcome(&self, intent: IntentId) -> Result<Option<Arc<Receipt>>, Fault> {
        let mut changes = self.escalations.changes();
        loop {
            changes.mark_unchanged();
            if let Some(mut stage) = self.journal.subscribe(intent) {
                let finished =
                    |stage: &Stage| !matches!(stage, Stage::Queued | Stage::Running | Stage::Ended);
                if let Ok(Stage::Finished(receipt)) =
                    stage.wait_for(finished).await.map(|stage| stage.clone())
                {
                    return Ok(Some(receipt));
                }
                continue;
            }
            // Checked second: an intent is open in the journal before it stops waiting.
            if let Some(wait) = self.escalations.wake_condition(intent) {
                self.wait_for_change_or_expiry(wait, &mut changes).await;
                continue;
            }
            let stage = self.journal.stage(intent, IfFull::Wait).await;
            match stage.map_err(|error| self.journal_fault(&error))? {
                Some((_, Stage::Finished(receipt))) => return Ok(Some(receipt)),
                Some((_, Stage::Queued | Stage::Running | Stage::Ended)) => {}
                Some((_, Stage::Pruned | Stage::Released)) | None => return Ok(None),
            }
        }
    }

    /// Sets a standing policy.
    pub fn set_policy(&self, policy: Policy) {
        tracing::info!(
            agent = policy.agent.as_ref().map(AgentDid::as_str),
            version = policy.version,
            "standing policy"
        );
        self.standing.set(policy);
    }

    /// The standing policy that binds an agent.
    #[must_use]
    pub fn policy_of(&self, agent: &AgentDid) -> Option<Policy> {
        self.standing.policy_of(agent)
    }

    /// Stops accepting calls.
    pub fn close(&self) {
        self.slots.close();
    }

    /// Waits until calls are no longer accepted.
    pub async fn wait_until_closed(&self) {
        self.slots.wait_until_closed().await;
    }

    /// Waits until every claimed intent has finished and its receipt is on the disk.
    pub async fn wait_until_idle(&self) {
        self.slots.wait_until_idle().await;
    }

    /// Stops all runs, and returns their number.
    pub fn abort_all(&self) -> usize {
        self.active_runs.abort_all(&all_agents, AbortReason::Shutdown).0
    }

    /// Finds the catalogue in which a call's tool is usable. The run uses the tool of that catalogue.
    fn find_tool(&self, call: &Call) -> Result<Arc<LoadedCatalog>, Fault> {
        let loaded = self.current_catalog();
        let unavailable = |message| Fault::ToolUnavailable { tool: call.tool.clone(), message };
        match loaded.catalog.get(&call.tool) {
            Some(CatalogEntry::Ready(_)) => {
                loaded.isolate.check_usable(&call.tool).map_err(|reason| unavailable(reason.to_owned()))?;
            }
            Some(CatalogEntry::Preparing) => {
                let message =
                    format!("the tool `{}` is being prepared: its module is compiled once", call.tool);
                return Err(Fault::Busy { message, retry_after_ms: PREPARING_RETRY_MS });
            }
            Some(CatalogEntry::Broken(error)) => return Err(unavailable(error.public_message())),
            None => {
                let known = loaded.catalog.iter().map(|(name, _)| name.as_str());
                let nearest = did_you_mean(call.tool.as_str(), known);
                let message = format!(
                    "there is no tool `{}` in the catalogue{nearest}: ask for the list of tools",
                    call.tool
                );
                return Err(Fault::invalid("/tool", message));
            }
        }
        Ok(loaded)
    }

    /// Checks a call's arguments against the schema of its tool. Only a call that its governor did not deny is checked,
    /// so that a denied agent learns nothing about a schema.
    async fn check_arguments(loaded: &Arc<LoadedCatalog>, call: &Call) -> Result<(), Fault> {
        let Some(tool) = loaded.usable_tool(&call.tool) else { return Ok(()) };
        let arguments = Value::Object(call.arguments.clone());
        let checked = match tool.schema.check_quickly(&arguments) {
            QuickCheck::Done(checked) => checked,
            QuickCheck::Unfinished => {
                let (loaded, name) = (Arc::clone(loaded), call.tool.clone());
                let check = move || {
                    let tool = loaded.usable_tool(&name);
                    tool.map_or(Ok(()), |tool| tool.schema.check(&arguments))
                };
                let checked = tokio::task::spawn_blocking(check).await;
                checked
                    .map_err(|error| Fault::Internal(format!("arguments could not be checked: {error}")))?
            }
        };
        checked.map_err(|violation| {
            let message = format!("the arguments break the schema of `{}`: {}", call.tool, violation.message);
            Fault::invalid(format!("/arguments{}", violation.pointer), message)
        })
    }

    /// Refuses a request that would load a stored receipt when the memory budget is used up.
    fn check_memory(&self) -> Result<(), Fault> {
        if memory::has_room(0) {
            return Ok(());
        }
        Err(self.busy_fault(NO_MEMORY))
    }

    /// Waits for the receipt of a known intent. Returns the governor's verdict with it, if the governor was asked.
    async fn await_existing(
        &self,
        call: &Call,
        known: KnownIntent,
    ) -> Result<(Arc<Receipt>, Option<Arc<Verdict>>), Fault> {
        let (followed, verdict) = match known {
            KnownIntent::Same(followed, verdict) => (followed, verdict),
            KnownIntent::Denied(denial) => return Err(decisions::denial_fault(call.intent, &denial)),
            KnownIntent::Conflict => return Err(intent_conflict_fault(call.intent)),
        };
        let ended = match followed {
            StageSource::Final(stage) => stage,
            StageSource::Live(stage) => {
                // Waiters count against the same limit as runs; otherwise repeats could keep other calls out.
                let _place = self.reserve_place(&call.agent)?;
                wait_for_end(stage).await
            }
        };
        match ended {
            Stage::Finished(receipt) => Ok((receipt, verdict)),
            Stage::Pruned => Err(Fault::InvalidRequest(format!(
                "the intent `{}` ran before, and its report is no longer kept here",
                call.intent
            ))),
            Stage::Ended => Err(receipt_pending_fault(call.intent)),
            Stage::Queued | Stage::Running | Stage::Released => {
                Err(self
                    .busy_fault("the first call with this intent was refused before it ran: send it again"))
            }
        }
    }

    /// The fault for a call that cannot be recorded, and so is not run.
    fn journal_fault(&self, error: &JournalError) -> Fault {
        match error {
            JournalError::Backlog | JournalError::NoRoom | JournalError::Busy => {
                self.busy_fault(&error.to_string())
            }
            JournalError::Broken(_) => Fault::Internal(ErrorChain(error).to_string()),
        }
    }

    fn busy_fault(&self, message: &str) -> Fault {
        Fault::Busy { message: message.to_owned(), retry_after_ms: RETRY_AFTER_MS }
    }

    /// Claims an admitted call and runs it in a task of its own.
    async fn run(
        self: &Arc<Self>,
        admitted: Admitted,
        loaded: Arc<LoadedCatalog>,
        verdict: Option<Arc<Verdict>>,
        stopwatch: Stopwatch,
        sink: RunEventSink,
    ) -> Result<Arc<Receipt>, Fault> {
        let claimed = match self.claim(admitted, loaded, verdict)? {
            ClaimOutcome::Claimed(claimed) => claimed,
            ClaimOutcome::Known(call, known) => return Ok(self.await_existing(&call, known).await?.0),
        };
        let executor = Arc::clone(self);
        let task = async move { executor.run_claimed(*claimed, stopwatch, sink).await };
        let task = spawn::spawn_run_task(task.in_current_span());
        match task.await {
            Ok(result) => result,
            Err(panicked) => Err(Fault::Internal(format!("the task of a run ended early: {panicked}"))),
        }
    }

    /// Makes all checks that can refuse a call, and claims its intent.
    fn claim(
        self: &Arc<Self>,
        admitted: Admitted,
        loaded: Arc<LoadedCatalog>,
        verdict: Option<Arc<Verdict>>,
    ) -> Result<ClaimOutcome, Fault> {
        let Some(tool) = loaded.usable_tool(&admitted.call().tool) else {
            return Err(Fault::Internal("an admitted call's tool is gone".to_owned()));
        };
        let ExecutorSettings { granter, ceilings, .. } = &self.settings;
        let (admitted, grant) = admitted.grant(granter, &self.standing, &tool.descriptor, ceilings)?;
        if let Some(Err(reason)) = &tool.componentised
            && !grant.has_only_whole_trees()
        {
            let message = format!(
                "the tool `{}` can run under whole trees such as `/workspace/**` only, because it is a core module, and \
                 {reason}: grant trees, or build it as a component",
                admitted.call().tool
            );
            return Err(admitted.refusal(BlockedBy::ScopeUnenforceable, message));
        }
        let permit = self.open_permit(&admitted, grant)?;
        let place = self.reserve_place(&admitted.call().agent)?;
        if !self.output.has_room(permit.grant().output().value.bytes()) {
            return Err(self.busy_fault(NO_MEMORY));
        }
        let claimed = self.journal.claim(admitted.call(), admitted.remember_until(), verdict.clone());
        match claimed.map_err(|error| self.journal_fault(&error))? {
            ClaimResult::New => {}
            ClaimResult::Known(known) => return Ok(ClaimOutcome::Known(Box::new(admitted.call().clone()), known)),
        }
        let Call { intent, agent, .. } = admitted.call();
        let running = self.active_runs.register(*intent, agent.clone());
        let approved_by = None;
        let claimed = ClaimedRun { admitted, loaded, verdict, approved_by, permit, place, running };
        Ok(ClaimOutcome::Claimed(Box::new(claimed)))
    }

    /// Opens the granted folders.
    fn open_permit(&self, admitted: &Admitted<Granted>, grant: Grant) -> Result<Permit, Fault> {
        Permit::open(grant, &self.settings.mounts, &self.settings.ceilings.areas).map_err(|error| {
            if let RootsError::Refused { path, source } = &error {
                tracing::warn!(path, %source, "a granted folder cannot be opened");
            }
            admitted.refusal(BlockedBy::ScopeUnenforceable, error.to_string())
        })
    }

    /// Reserves a place for one more intent of the agent.
    fn reserve_place(&self, agent: &AgentDid) -> Result<QueuePlace, Fault> {
        self.slots.reserve(agent).map_err(|error| {
            self.busy_fault(match error {
                CapacityError::Closing => "the executor is shutting down",
                CapacityError::QueueFull => "the queue is full",
                CapacityError::AgentQueueFull => {
                    "too many intents of this agent wait: `executor.queue_per_agent` says how many may"
                }
            })
        })
    }

    /// Runs a claimed intent until it has a receipt or is released.
    async fn run_claimed(
        self: Arc<Self>,
        claimed: ClaimedRun,
        mut stopwatch: Stopwatch,
        sink: RunEventSink,
    ) -> Result<Arc<Receipt>, Fault> {
        let ClaimedRun { admitted, loaded, verdict, approved_by, permit, place, running } = claimed;
        let call = admitted.call();
        let queued = self.clock.monotonic();
        let slot = {
            // An intent that is cancelled while it waits needs no slot.
            let slot = async {
                tracing::debug!("queued");
                tokio::select! {
                    slot = place.acquire_slot(call.priority) => slot,
                    _cancelled = running.abort().wait() => None,
                }
            };
            let mut slot = pin!(slot.instrument(trace::queue_span()));
            match slot.as_mut().now_or_never() {
                Some(slot) => slot,
                None => {
                    sink.notify_waiting();
                    slot.await
                }
            }
        };
        let queue = stopwatch.exclude(queued, self.clock.monotonic());
        if approved_by.is_some() && running.abort().reason() == Some(AbortReason::Shutdown) {
            // No caller but the approver waits for it: the next process runs it.
            self.release(call.intent).await?;
            return Err(self.busy_fault("the executor is shutting down"));
        }
        let output = self.output.reserve(permit.grant().output().value.bytes());
        if let Err(expired) = admitted.check_expiry(self.clock.now()) {
            self.release(call.intent).await?;
            return Err(expired);
        }
        let arguments = Value::Object(call.arguments.clone()).to_string();
        let run_request = loaded.isolate.request(&call.tool, permit, arguments);
        let receipt = |outcome| {
            let Call { agent, intent, tool, .. } = call;
            let (approved_by, durability) = (approved_by.clone(), self.journal.durability());
            let (agent, intent, tool) = (agent.clone(), *intent, tool.clone());
            Receipt { agent, intent, tool, approved_by, durability, outcome }
        };
        let fallback = receipt(loaded.isolate.lost_outcome(&run_request));
        let persistence = sink.persistence();
        let task = persistence.as_ref().and_then(|persistence| persistence.fallback_task());
        let (keep_until, proof) = (admitted.remember_until(), admitted.proof_id());
        let intended = StartRequest { call, keep_until, proof, fallback_receipt: &fallback, task: task.as_ref() };
        let written = self.journal.start(intended, self.clock.now());
        let (began, prepared) = join_until_first(written, loaded.isolate.prepare(&run_request)).await;
        let prepared = prepared.flatten();
        match began.map_err(|error| self.journal_fault(&error))? {
            StartResult::New => {}
            StartResult::Known(known) => {
                drop(prepared);
                return Ok(self.await_existing(call, known).await?.0);
            }
            StartResult::Replayed => {
                let message = "the `proof` was used before, for another intent: ask the governor again";
                return Err(admitted.refusal(BlockedBy::VerdictReplayed, message));
            }
        }
        // The disk may have been slow.
        if let Err(expired) = admitted.check_expiry(self.clock.now()) {
            drop(prepared);
            self.release(call.intent).await?;
            return Err(expired);
        }
        let sink = self.subscribers.wrap(call, sink);
        let open = |egress: &Arc<Egress>| egress.open(&call.agent, run_request.grant());
        let network = self.egress.as_ref().map_or(Network::Off, open);
        sink.send(RunEvent::Started);
        let abort = Arc::clone(running.abort());
        let execution = loaded.isolate.begin(&run_request, network, abort, sink.event_sink());
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
                run.instrument(trace::run_span()).await
            }
        };
        // The caller that stopped the run was told so, and the receipt has to agree, even if the guest ended meanwhile.
        if let Some(reason) = running.deregister() {
            outcome.end = End::Aborted(reason);
        }
        // Another guest may run while the receipt is written; this run produces no more output.
        drop((slot, output));
        let receipt = Arc::new(receipt(outcome));
        let task = persistence.map(|persistence| persistence.final_task(&receipt, verdict.as_deref()));
        let intent = call.intent;
        let finish = async move {
            // The intent counts as open until its receipt is on the disk.
            let _open = (place, running);
            let finished = self.journal.finish(Arc::clone(&receipt), task, self.clock.now()).await;
            finished.map_err(|error| self.journal_fault(&error))?;
            let times = stopwatch.times(queue, receipt.outcome.metrics.wall, self.clock.monotonic());
            self.metrics.record_execution(&receipt, &times);
            trace::log_finished(receipt.outcome.end.status(), &times);
            self.subscribers.publish_finished(&receipt);
            Ok(receipt)
        };
        let mut finish = Box::pin(finish);
        match tokio::time::timeout(RECEIPT_TIMEOUT, &mut finish).await {
            Ok(finished) => finished,
            Err(_no_room) => {
                spawn::spawn_run_task(finish.in_current_span());
                Err(receipt_pending_fault(intent))
            }
        }
    }

    async fn release(&self, intent: IntentId) -> Result<(), Fault> {
        self.journal.release(intent).await.map_err(|error| self.journal_fault(&error))
    }
}

/// Waits until an intent has finished, or until its run has ended and its receipt has waited too long for room.
async fn wait_for_end(mut stage: watch::Receiver<Stage>) -> Stage {
    let ran = |stage: &Stage| !matches!(stage, Stage::Queued | Stage::Running);
    let finished = |stage: &Stage| ran(stage) && *stage != Stage::Ended;
    let gone = |_gone| Stage::Released;
    let ended = stage.wait_for(ran).await.map_or_else(gone, |stage| stage.clone());
    if ended != Stage::Ended {
        return ended;
    }
    let written = tokio::time::timeout(RECEIPT_TIMEOUT, stage.wait_for(finished)).await;
    written.map_or(Stage::Ended, |stage| stage.map_or_else(gone, |stage| stage.clone()))
}

fn receipt_pending_fault(intent: IntentId) -> Fault {
    Fault::ReceiptPending { intent, retry_after_ms: RETRY_AFTER_MS }
}

/// Waits for `first` and polls `second` meanwhile. Returns `None` for a `second` that is not ready by then; it is
/// cancelled.
async fn join_until_first<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> (A, Option<B>) {
    let (mut first, mut second, mut done) = (pin!(first), pin!(second), None);
    loop {
        tokio::select! {
            biased;
            first = &mut first => return (first, done.or_else(|| second.as_mut().now_or_never())),
            second = &mut second, if done.is_none() => done = Some(second),
        }
    }
}

/// The result of claiming an admitted call.
enum ClaimOutcome {
    /// This call runs the intent.
    Claimed(Box<ClaimedRun>),
    /// The intent was claimed before.
    Known(Box<Call>, KnownIntent),
}

/// An intent that this process has claimed, with everything that its run needs.
struct ClaimedRun {
    admitted: Admitted<Granted>,
    loaded: Arc<LoadedCatalog>,
    /// The governor's verdict, if the governor was asked.
    verdict: Option<Arc<Verdict>>,
    /// The caller that approved the intent, if it waited for a person.
    approved_by: Option<String>,
    permit: Permit,
    place: QueuePlace,
    running: ActiveRun,
}

/// The fault for a call whose intent exists with other content. The message is the same in every state and for every
/// agent, so that an agent learns nothing about the intents of others.
fn intent_conflict_fault(intent: IntentId) -> Fault {
    Fault::InvalidRequest(format!(
        "the intent id `{intent}` cannot be used for this call: every intent needs a new one, such as a random UUID, and \
         a repeat the same content"
    ))
}

/// Maps a receipt to the answer to `a2g/execute`: only a success is a result.
fn require_success(receipt: Arc<Receipt>) -> Result<Arc<Receipt>, Fault> {
    match &receipt.outcome.end {
        End::Returned(_) => Ok(receipt),
        End::LimitReached(limit) => {
            let limit = *limit;
            Err(Fault::LimitReached(receipt, limit))
        }
        End::ToolError { .. }
        | End::Exited { .. }
        | End::ResultNotJson
        | End::Trapped(_)
        | End::NotStarted(_)
        | End::Crashed(_)
        | End::Aborted(_) => Err(Fault::Failed(receipt)),
    }
}
