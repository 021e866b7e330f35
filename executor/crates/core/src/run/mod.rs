//! The pipeline of every call, for all doors.
//!
//! ```text
//! Call ─ find tool ─▶ verdict ─ admit ─▶ Admitted ─ schema, grant, open ─▶ Permit ─ claim in the journal
//!   ─ slot ─▶ second check of expiry ─▶ isolate consumes the Permit ─▶ Outcome ─▶ journal: Receipt, report queued
//! ```
//! A claimed call runs in its own task, and continues if its caller disconnects. An intent runs at most once; a repeat
//! gets the receipt of that run.

mod admission;
mod approval_rules;
mod compile_waits;
mod decisions;
mod events;
mod execution;
mod faults;
mod fleet;
mod held_elsewhere;
mod nested;
mod open_intents;
mod orders;
mod output;
mod passing;
mod phases;
mod preview;
mod query;
mod questions;
mod refusal_log;
mod result_check;
mod slots;
mod stored_calls;
mod stored_waits;
mod subscribers;
mod switch;
mod trace;

pub use a2g_fleet::{NodeLoad, NodeName, NodeStatus};
pub use approval_rules::{ApprovalBar, ApprovalRule};
pub use decisions::DirectiveOutcome;
pub use events::{RunEvent, RunEventSink, TaskPersistence};
pub use fleet::{Fleet, JoinFleetError, join_fleet};
pub use preview::{DecisionBasis, DecisionPreview, WaitingSummary};
pub use query::{DeniedInFleet, IntentSignal};
pub use questions::ConsoleQuestion;
pub use slots::Capacity;
pub use stored_calls::TakenOverCall;
pub use stored_waits::has_moved;
pub use subscribers::{RunIdentity, RunNotification};

use crate::catalog::{Catalog, CatalogEntry, Tool};
use a2g_capability::{Ceilings, Mounts, Permit};
use a2g_govern::{
    AcceptUnsigned, Admitted, Callers, CurrentCallers, Governor, Granted, Granter, IntentSignatures,
    ListedPolicy, PolicyOrigin, StandingPolicies, Trust,
};
use a2g_intent::Intents;
use a2g_isolate::Isolate;
use a2g_journal::{Journal, KnownIntent, Stage};
use a2g_metrics::Metrics;
use a2g_runtime::spawn::SessionTasks;
use a2g_sandbox::egress::Egress;
use a2g_types::call::Call;
use a2g_types::clock::Clock;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::outcome::{AbortReason, Receipt};
use a2g_types::tool::Descriptor;
use a2g_types::verdict::{Policy, Verdict};
use arc_swap::ArcSwap;
use compile_waits::CompileWaits;
use open_intents::{ActiveRun, OpenIntents};
use orders::finish_order;
use output::ExpectedOutput;
use passing::{Passing, TakenCall};
use questions::Answers;
use refusal_log::RefusalLog;
use slots::{Place, Slots};
use std::sync::Arc;
use std::time::Duration;
use stored_calls::{StoredCalls, TakenOverCalls};
use stored_waits::DueDenials;
use subscribers::Subscribers;
use tokio::sync::{Semaphore, watch};

/// The delay after which a caller that was refused for lack of capacity should retry.
const RETRY_AFTER_MS: u64 = 500;
/// The maximum time for which the caller of an ended run waits for its receipt while the journal's disk is full.
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
    /// The permission to accept unsigned verdicts; `None` if they are refused.
    pub accept_unsigned: Option<AcceptUnsigned>,
    /// The rules about how many people have to approve an intent.
    pub approval_rules: Vec<ApprovalRule>,
    /// The check of intents' signatures; `None` if signatures are not required.
    pub signatures: Option<Arc<IntentSignatures>>,
}

/// A catalogue, and the isolate in which its tools run.
pub struct LoadedCatalog {
    catalog: Catalog,
    isolate: Isolate,
    /// The descriptors of the tools that are usable, or will be once they are compiled, by name.
    tools: Arc<[Descriptor]>,
}

impl LoadedCatalog {
    /// A catalogue whose tools are ready to run in `isolate`.
    #[must_use]
    pub fn new(catalog: Catalog, isolate: Isolate) -> Self {
        let tools = catalog.iter().filter_map(|(name, entry)| match entry {
            CatalogEntry::Ready(tool) => isolate.check_usable(name).is_ok().then_some(&tool.descriptor),
            CatalogEntry::Preparing(preparing) => preparing.descriptor.as_deref(),
            CatalogEntry::Broken(_) => None,
        });
        let tools = tools.cloned().collect();
        Self { catalog, isolate, tools }
    }

    /// Returns `true` if the folder of tools has none, not even one that is broken or being prepared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.catalog.iter().next().is_none()
    }

    fn usable_tool(&self, name: &ToolName) -> Option<&Tool> {
        self.catalog.get(name)?.tool().map(|tool| &**tool)
    }
}

/// The core that all doors share.
pub struct Executor {
    settings: ExecutorSettings,
    /// Replaced as a whole. Each run keeps the one that it began with.
    loaded: ArcSwap<LoadedCatalog>,
    catalog_changes: watch::Sender<()>,
    tool_changes: watch::Sender<()>,
    governor: Governor,
    /// The keys whose proofs are accepted. Replaced as a whole.
    trust: ArcSwap<Trust>,
    /// The callers of all doors. The author of a decision has to be in the list when the decision is recorded.
    callers: CurrentCallers,
    /// The network access of runs; `None` if no run may use the network.
    egress: Option<Arc<Egress>>,
    standing: StandingPolicies,
    journal: Journal,
    /// `None` for an executor that shares nothing with others.
    fleet: Option<Arc<Fleet>>,
    passing: Passing,
    stored_calls: StoredCalls,
    taken_over: TakenOverCalls,
    due_denials: DueDenials,
    answers: Answers,
    slots: Arc<Slots>,
    output: ExpectedOutput,
    compile_waits: CompileWaits,
    intents: Arc<OpenIntents>,
    refusal_log: RefusalLog,
    subscribers: Subscribers,
    metrics: Metrics,
    sessions: SessionTasks,
    clock: Arc<dyn Clock>,
}

/// A predicate that selects intents by their agent.
pub type AgentFilter<'a> = &'a (dyn Fn(&AgentDid) -> bool + Sync);

/// A predicate that selects intents by their agent and tool.
type CallFilter<'a> = &'a (dyn Fn(&AgentDid, &ToolName) -> bool + Sync);

/// Selects the intents of every agent.
pub fn all_agents(_: &AgentDid) -> bool {
    true
}

/// The state of an intent.
#[derive(Debug)]
pub enum IntentState {
    /// The intent waits for a person.
    Escalated,
    /// The intent waits for a slot.
    Queued,
    /// The guest runs.
    Running,
    /// The intent has finished. `None` if the receipt was pruned.
    Finished(Option<Arc<Receipt>>),
}

impl IntentState {
    /// The state of an intent whose claim has this stage; `None` for a claim that was released.
    fn from_stage(stage: Stage) -> Option<Self> {
        match stage {
            Stage::Queued => Some(Self::Queued),
            Stage::Running | Stage::Ended => Some(Self::Running),
            Stage::Finished(receipt) => Some(Self::Finished(Some(receipt))),
            Stage::Pruned => Some(Self::Finished(None)),
            Stage::Released => None,
        }
    }
}

/// The answer to a call about which the governor was asked.
#[derive(Debug)]
pub struct IntentAnswer {
    /// The governor's verdict.
    pub verdict: Arc<Verdict>,
    /// The receipt, if the tool ran.
    pub receipt: Option<Arc<Receipt>>,
}

impl Executor {
    /// Creates an executor from its parts, and restores the intents that waited and the stops that were in force when the
    /// earlier process ended.
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
        let intents = decisions::restore_intents(&journal, clock.now());
        let metrics = Metrics::new(journal.metrics());
        Self {
            slots: Arc::new(Slots::new(settings.capacity)),
            output: ExpectedOutput::default(),
            settings,
            loaded: ArcSwap::from_pointee(loaded),
            catalog_changes: watch::Sender::new(()),
            tool_changes: watch::Sender::new(()),
            governor,
            trust: ArcSwap::from_pointee(trust),
            callers: CurrentCallers::new(Callers::empty()),
            egress,
            standing: StandingPolicies::default(),
            journal,
            fleet: None,
            passing: Passing::default(),
            stored_calls: StoredCalls::default(),
            taken_over: TakenOverCalls::default(),
            due_denials: DueDenials::default(),
            answers: Answers::new(clock.monotonic()),
            compile_waits: CompileWaits::default(),
            intents: Arc::new(intents),
            refusal_log: RefusalLog::default(),
            subscribers: Subscribers::default(),
            metrics,
            sessions: SessionTasks::default(),
            clock,
        }
    }

    /// Shares the claims of intents with the other nodes of a fleet. If `passes_calls` is `true`, a node with a free
    /// slot runs calls that wait at another.
    #[must_use]
    pub fn with_fleet(self, fleet: Option<Arc<Fleet>>, passes_calls: bool) -> Self {
        Self { passing: Passing::new(fleet.is_some() && passes_calls), fleet, ..self }
    }

    /// The current list of callers, which the doors of this executor share. It is empty until it is replaced: until
    /// then no listed caller can decide.
    #[must_use]
    pub fn callers(&self) -> &CurrentCallers {
        &self.callers
    }

    /// The descriptors of all tools that are usable, or will be once they are compiled, sorted by name. A tool that is
    /// not compiled yet is included if its package describes it.
    #[must_use]
    pub fn tools(&self) -> Arc<[Descriptor]> {
        Arc::clone(&self.current_catalog().tools)
    }

    /// The current catalogue.
    #[must_use]
    pub fn catalog(&self) -> Catalog {
        self.current_catalog().catalog.clone()
    }

    /// The names of the tools that are usable or being prepared.
    #[must_use]
    pub fn tool_names(&self) -> Vec<String> {
        let loaded = self.current_catalog();
        let entries = loaded.catalog.iter().filter(|(name, entry)| match entry {
            CatalogEntry::Ready(_) => loaded.isolate.check_usable(name).is_ok(),
            CatalogEntry::Preparing(_) => true,
            CatalogEntry::Broken(_) => false,
        });
        entries.map(|(name, _)| name.to_string()).collect()
    }

    /// Replaces the catalogue for later calls. A run that has begun keeps its catalogue.
    pub fn replace_catalog(&self, mut loaded: LoadedCatalog) {
        let old = self.tools();
        let is_changed = old != loaded.tools;
        if !is_changed {
            // The same list, so that what doors made of it stays in use.
            loaded.tools = old;
        }
        self.loaded.store(Arc::new(loaded));
        self.catalog_changes.send_replace(());
        if is_changed {
            self.tool_changes.send_replace(());
        }
    }

    /// Changes when a tool is added, removed or described otherwise, but not when one is compiled.
    #[must_use]
    pub fn tool_changes(&self) -> watch::Receiver<()> {
        self.tool_changes.subscribe()
    }

    /// Changes when the catalogue is replaced.
    #[must_use]
    pub fn catalog_changes(&self) -> watch::Receiver<()> {
        self.catalog_changes.subscribe()
    }

    /// Waits until every tool that is not broken has a descriptor.
    pub async fn wait_until_described(&self) {
        self.wait_for_catalog(Catalog::has_all_descriptors).await;
    }

    /// Waits until a condition of the catalogue is true.
    async fn wait_for_catalog(&self, is_true: impl Fn(&Catalog) -> bool) {
        let mut changes = self.catalog_changes();
        while !is_true(&self.current_catalog().catalog) && changes.changed().await.is_ok() {}
    }

    fn current_catalog(&self) -> Arc<LoadedCatalog> {
        self.loaded.load_full()
    }

    /// Replaces the keys whose proofs are accepted.
    pub fn replace_trust(&self, trust: Trust) {
        self.trust.store(Arc::new(trust));
    }

    fn trust(&self) -> Arc<Trust> {
        self.trust.load_full()
    }

    /// The governor that decides on calls.
    #[must_use]
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// The journal of intents and reports.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The metrics of the executor, including those of the journal.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The tasks of the server's sessions.
    #[must_use]
    pub fn sessions(&self) -> &SessionTasks {
        &self.sessions
    }

    /// The clock for all timestamps and time limits.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Calls `subscriber` for every event of all later runs of all doors, on the run's thread. It must not block.
    pub fn subscribe(&self, subscriber: impl Fn(&RunIdentity, RunNotification<'_>) + Send + Sync + 'static) {
        self.subscribers.add(subscriber);
    }

    /// The operator's ceilings.
    #[must_use]
    pub fn ceilings(&self) -> &Ceilings {
        &self.settings.ceilings
    }

    /// Sets the standing policy of an agent, or of every agent, on behalf of `by`, at all nodes of the fleet.
    ///
    /// # Errors
    /// If the other nodes of the fleet cannot be told; the policy is in force at this executor nevertheless.
    pub async fn set_policy(&self, policy: Policy, by: &str) -> Result<(), Fault> {
        let origin = self.policy_origin(by);
        let order = self.start_policy_order(policy.agent.as_ref(), Some(&policy), &origin);
        self.set_policy_here(policy, origin);
        finish_order(order).await
    }

    /// As [`Self::set_policy`], at this executor only.
    fn set_policy_here(&self, policy: Policy, origin: PolicyOrigin) {
        tracing::info!(
            agent = policy.agent.as_ref().map(AgentDid::as_str),
            version = policy.version,
            by = origin.by,
            "standing policy"
        );
        self.standing.set(policy, origin);
    }

    /// The origin of a policy change by `by`, at the current time.
    fn policy_origin(&self, by: &str) -> PolicyOrigin {
        PolicyOrigin { by: by.to_owned(), since: self.clock.now() }
    }

    /// The standing policies and revocations that `filter` selects, at most `max`, the one for every agent first.
    #[must_use]
    pub fn list_policies(&self, filter: impl Fn(Option<&AgentDid>) -> bool, max: usize) -> Vec<ListedPolicy> {
        self.standing.list(filter, max)
    }

    /// The standing policy that applies to an agent.
    #[must_use]
    pub fn policy_of(&self, agent: &AgentDid) -> Option<Policy> {
        self.standing.policy_of(agent)
    }

    /// Stops accepting calls.
    pub fn close(&self) {
        self.slots.close();
    }

    /// Waits until [`Self::close`] is called.
    pub async fn wait_until_closed(&self) {
        self.slots.wait_until_closed().await;
    }

    /// Waits until every claimed intent has finished and its receipt is on the disk.
    pub async fn wait_until_idle(&self) {
        self.slots.wait_until_idle().await;
    }

    /// Stops all runs. Returns their number.
    pub fn abort_all(&self) -> usize {
        self.compile_waits.end(|_, _, _| true, AbortReason::Shutdown);
        self.intents.update(Intents::abort_runs)
    }
}

/// The result of claiming an admitted call.
enum ClaimOutcome {
    /// The intent is claimed, and this call runs it.
    Claimed(Box<ClaimedRun>),
    /// The intent was already claimed.
    Known(Box<Call>, KnownIntent),
}

/// A claimed intent with everything that its run needs.
struct ClaimedRun {
    admitted: Admitted<Granted>,
    loaded: Arc<LoadedCatalog>,
    /// The governor's verdict, if the governor was asked.
    verdict: Option<Arc<Verdict>>,
    /// The caller that approved the intent, if it waited for a person.
    approved_by: Option<String>,
    permit: Permit,
    place: Place,
    /// The slot of the call's parent, which the call may use.
    lent_slot: Option<Arc<Semaphore>>,
    /// For a call that waited at another node: its slot, and the time until which it has to be claimed.
    taken: Option<TakenCall>,
    /// `true` if another node has taken the call and given it back, or may still claim it.
    was_passed_on: bool,
    running: ActiveRun,
}
