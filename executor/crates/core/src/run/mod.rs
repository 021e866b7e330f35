//! The pipeline of every call, for all doors.
//!
//! ```text
//! Call ─ find tool ─▶ verdict ─ admit ─▶ Admitted ─ schema, grant, open ─▶ Permit ─ claim in the journal
//!   ─ slot ─▶ second check of expiry ─▶ isolate consumes the Permit ─▶ Outcome ─▶ journal: Receipt, report queued
//! ```
//! A claimed call runs in its own task, and continues if its caller disconnects. An intent runs at most once; a repeat
//! gets the receipt of that run.
//!
//! An [`Executor`] is its parts. Each has private fields, the methods that need only these, and the parts below it. Values
//! of calls that wait are defined beside the engine (`engine/stored_calls.rs`, `engine/passing`), and parts below it use
//! them. Membership's fields are open to this module, because its tasks are beside what they serve; those of Pending, because
//! they are filled here.
//!
//! ```text
//! Membership   the tasks of a node of a fleet: lease, lost nodes, calls and questions of others
//! Operator     decide, cancel, revoke, stop, resume, policies; starts what was approved
//! ChangeSets   decisions on the file changes of runs that have ended
//! Engine       runs calls: admission, slots, phases, nested calls, calls passed to other nodes
//! Queries, Previews                 what is read: intents, journal, figures; what a decision would run
//! Claims, CallStore                 claims and starts; the calls of tasks that wait here for a slot
//! Pending ─▶ Waits ─▶ DueEnds       what waits in the fleet; what waits here; ends that the fleet does not have yet
//! Refusals, CurrentCatalog ─▶ Policies   records of refusals; tools; governor, keys, callers, standing policies
//! Peers ─▶ Node                     questions to other nodes; claims in the fleet, orders. Empty without a fleet
//! OpenIntents, Slots, Journal, …    state under one lock each
//! ```
//! A door gets the executor, and calls the part that it needs.

mod approval_rules;
mod change_sets;
mod claims;
mod compile_waits;
mod current_catalog;
mod decision_basis;
mod due_ends;
mod effects;
mod engine;
mod events;
mod faults;
mod fleet;
mod membership;
mod message_size;
mod open_intents;
mod operator;
mod orders;
mod output;
mod pending;
mod policies;
mod preview;
mod query;
mod questions;
mod refusal_log;
mod refusals;
mod reserved_claim;
mod result_check;
mod slots;
mod subscribers;
mod tool_sessions;
mod trace;
mod wait_records;
mod waits;

pub use approval_rules::{ApprovalBar, ApprovalRule};
pub use change_sets::{ChangeSet, ChangeSets};
pub use current_catalog::{CurrentCatalog, LoadedCatalog};
pub use decision_basis::DecisionBasis;
pub use effects::{ChangeSetSummary, EffectsLocation, EffectsSettings};
pub use engine::Engine;
pub use events::{RunEvent, RunEventSink, TaskPersistence};
pub use fleet::{Delivery, Fleet, JoinFleetError, Node, NodeLoad, NodeStatus, join_fleet};
pub use membership::Membership;
pub use operator::Operator;
pub use operator::decisions::DirectiveOutcome;
pub use pending::has_run_elsewhere;
pub use policies::Policies;
pub use preview::{DecisionPreview, Previews, WaitingSummary};
pub use query::{DeniedInFleet, IntentSignal, Queries};
pub use questions::{ConsoleQuestion, Peers, QuestionEffect};
pub use refusals::Refusals;
pub use slots::Capacity;
pub use subscribers::{RunIdentity, RunNotification};
pub use tool_sessions::SessionSettings;

use a2g_capability::{Ceilings, Mounts};
use a2g_govern::{AcceptUnsigned, Governor, Granter, IntentSignatures, Trust};
use a2g_journal::{Journal, JournalError, Stage};
use a2g_metrics::Metrics;
use a2g_runtime::spawn::SessionTasks;
use a2g_sandbox::egress::Egress;
use a2g_types::clock::Clock;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::outcome::{AbortReason, Receipt};
use a2g_types::verdict::Verdict;
use claims::Claims;
use compile_waits::CompileWaits;
use due_ends::DueEnds;
use effects::EffectsFolder;
use engine::passing::Passing;
use engine::stored_calls::{CallStore, StoredCalls};
use open_intents::{OpenIntents, RestoredApprovals};
use output::ExpectedOutput;
use pending::{Pending, ReadState};
use questions::Answers;
use slots::Slots;
use std::sync::Arc;
use std::time::Duration;
use subscribers::Subscribers;
use tool_sessions::ToolSessions;
use waits::Waits;

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
    /// The limits on sessions of tools.
    pub sessions: SessionSettings,
}

/// The values from which an executor is made.
pub struct ExecutorParts {
    /// The tools, and the isolate in which they run.
    pub loaded: LoadedCatalog,
    /// The governor that decides on calls.
    pub governor: Governor,
    /// The keys whose proofs are accepted.
    pub trust: Trust,
    /// The network access of runs; `None` if no run may use the network.
    pub egress: Option<Arc<Egress>>,
    /// The journal of intents and reports.
    pub journal: Journal,
    /// The location of the file changes that have not taken effect.
    pub effects: EffectsLocation,
    /// The operator's settings of these changes.
    pub effects_settings: EffectsSettings,
    /// The fleet with which the claims of intents are shared; `None` for an executor that shares nothing.
    pub fleet: Option<Arc<Fleet>>,
    /// `true` if a node of the fleet with a free slot runs calls that wait at another.
    pub passes_calls: bool,
    /// The clock for all timestamps and time limits.
    pub clock: Arc<dyn Clock>,
}

/// The values from which the parts of an executor are made. Each takes those that it needs.
struct Parts {
    settings: Arc<ExecutorSettings>,
    catalogue: Arc<CurrentCatalog>,
    policies: Arc<Policies>,
    refusals: Arc<Refusals>,
    journal: Arc<Journal>,
    effects: Arc<EffectsFolder>,
    node: Arc<Node>,
    peers: Arc<Peers>,
    answers: Arc<Answers>,
    passing: Arc<Passing>,
    stored_calls: Arc<StoredCalls>,
    due_ends: Arc<DueEnds>,
    waits: Arc<Waits>,
    pending: Arc<Pending>,
    slots: Arc<Slots>,
    compile_waits: CompileWaits,
    intents: Arc<OpenIntents>,
    subscribers: Arc<Subscribers>,
    metrics: Arc<Metrics>,
    session_tasks: SessionTasks,
    tool_sessions: Arc<ToolSessions>,
    egress: Option<Arc<Egress>>,
    clock: Arc<dyn Clock>,
}

/// The core that all doors share: each takes the part that it needs.
pub struct Executor {
    /// The part that runs calls.
    pub engine: Arc<Engine>,
    /// The acts of operators, governors and people.
    pub operator: Arc<Operator>,
    /// The decisions on file changes.
    pub changes: Arc<ChangeSets>,
    /// The reads of doors and people.
    pub queries: Arc<Queries>,
    /// The views of people before they decide.
    pub previews: Arc<Previews>,
    /// The tools.
    pub catalogue: Arc<CurrentCatalog>,
    /// The governor, the accepted keys, the callers and the standing policies.
    pub policies: Arc<Policies>,
    /// The record of refusals.
    pub refusals: Arc<Refusals>,
    /// The facts that this executor has of its fleet.
    pub node: Arc<Node>,
    /// The questions to the other nodes of the fleet.
    pub peers: Arc<Peers>,
    /// The tasks of a node of a fleet.
    pub membership: Arc<Membership>,
    /// The journal of intents and reports.
    pub journal: Arc<Journal>,
    waits: Arc<Waits>,
    slots: Arc<Slots>,
    compile_waits: CompileWaits,
    intents: Arc<OpenIntents>,
    subscribers: Arc<Subscribers>,
    metrics: Arc<Metrics>,
    session_tasks: SessionTasks,
    tool_sessions: Arc<ToolSessions>,
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

impl Parts {
    /// Restores the intents that waited and the stops that were in force, and makes what lies below the engine.
    fn new(settings: ExecutorSettings, parts: ExecutorParts) -> Self {
        let ExecutorParts { loaded, governor, trust, egress, journal, fleet, passes_calls, clock, .. } =
            parts;
        let ExecutorParts { effects, effects_settings, .. } = parts;
        let approvals = match &fleet {
            Some(_) => RestoredApprovals::InFleet,
            None => RestoredApprovals::InForce,
        };
        let policies = Arc::new(Policies::new(governor, trust, Arc::clone(&clock)));
        let intents = waits::restore_intents(&journal.decisions, approvals, policies.governor(), clock.now());
        let intents = Arc::new(intents);
        let metrics = Arc::new(Metrics::new(journal.metrics()));
        let journal = Arc::new(journal);
        let session_tasks = SessionTasks::default();
        let passing = Arc::new(Passing::new(fleet.is_some() && passes_calls));
        let node = Arc::new(Node::new(fleet, session_tasks.clone(), Arc::clone(&clock)));
        let answers = Arc::<Answers>::default();
        let tool_sessions = Arc::new(ToolSessions::new(settings.sessions));
        let catalogue = Arc::new(CurrentCatalog::new(
            loaded,
            Arc::clone(&policies),
            Arc::clone(&tool_sessions),
            Arc::clone(&clock),
        ));
        let refusals =
            Arc::new(Refusals::new(Arc::clone(&journal.decisions), Arc::clone(&metrics), Arc::clone(&clock)));
        let due_ends = Arc::new(DueEnds::new(Arc::clone(&node)));
        let waits = Arc::new(Waits::new(
            &journal,
            Arc::clone(&intents),
            Arc::clone(&refusals),
            Arc::clone(&due_ends),
            Arc::clone(&clock),
        ));
        let pending = Arc::new(Pending {
            node: Arc::clone(&node),
            passing: Arc::clone(&passing),
            intents: Arc::clone(&intents),
            waits: Arc::clone(&waits),
            due_ends: Arc::clone(&due_ends),
            policies: Arc::clone(&policies),
            catalog: Arc::clone(&catalogue),
            read: ReadState::default(),
        });
        Self {
            slots: Arc::new(Slots::new(settings.capacity)),
            settings: Arc::new(settings),
            catalogue,
            policies,
            refusals,
            journal,
            effects: Arc::new(EffectsFolder::new(effects, effects_settings)),
            peers: Arc::new(Peers::new(Arc::clone(&node), Arc::clone(&answers))),
            answers,
            node,
            passing,
            stored_calls: Arc::default(),
            due_ends,
            waits,
            pending,
            compile_waits: CompileWaits::default(),
            intents,
            subscribers: Arc::default(),
            metrics,
            session_tasks,
            tool_sessions,
            egress,
            clock,
        }
    }
}

impl Executor {
    /// Creates an executor, and restores the intents that waited and the stops that were in force when the
    /// earlier process ended.
    #[must_use]
    pub fn new(settings: ExecutorSettings, parts: ExecutorParts) -> Self {
        let parts = Parts::new(settings, parts);
        let queries = Arc::new(Queries::new(&parts));
        let previews = Arc::new(Previews::new(&parts));
        let output = ExpectedOutput::default();
        let claims = Arc::new(Claims::new(&parts, output.clone()));
        let call_store = Arc::new(CallStore::new(&parts));
        let engine = Arc::new(Engine::new(
            &parts,
            output,
            Arc::clone(&claims),
            Arc::clone(&call_store),
            Arc::clone(&queries),
        ));
        let changes = Arc::new(ChangeSets::new(&parts, Arc::clone(&claims)));
        let operator = Arc::new(Operator::new(
            &parts,
            Arc::clone(&engine),
            Arc::clone(&previews),
            Arc::clone(&changes),
            claims,
            call_store,
        ));
        let membership = Arc::new(Membership::new(
            &parts,
            Arc::clone(&engine),
            Arc::clone(&operator),
            Arc::clone(&queries),
        ));
        let Parts { catalogue, policies, refusals, journal, node, peers, .. } = parts;
        let Parts { waits, slots, compile_waits, intents, subscribers, metrics, .. } = parts;
        let Parts { session_tasks, tool_sessions, clock, .. } = parts;
        Self {
            engine,
            operator,
            changes,
            queries,
            previews,
            catalogue,
            policies,
            refusals,
            node,
            peers,
            membership,
            journal,
            waits,
            slots,
            compile_waits,
            intents,
            subscribers,
            metrics,
            session_tasks,
            tool_sessions,
            clock,
        }
    }

    /// Tells the built-in governor what the agents have done within a day, if its policies read it. Call this before
    /// anything runs, and before [`Self::recover_effects`].
    ///
    /// # Errors
    /// If the journal cannot be read: then no call may be decided.
    pub async fn read_history(&self) -> Result<(), JournalError> {
        self.policies.read_history(&self.journal.records).await
    }

    /// Brings the file changes of runs of earlier processes to what their receipts say. Call this before anything runs.
    ///
    /// # Ambient Authority
    /// Opens the folder of file changes, and the host folders that these runs changed.
    ///
    /// # Errors
    /// If the folder cannot be read or another process uses it.
    pub async fn recover_effects(&self) -> std::io::Result<()> {
        self.changes.recover().await
    }

    /// The metrics of the executor, including those of the journal.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The tasks of the server's sessions with its peers, which have nothing to do with those of tools.
    #[must_use]
    pub fn session_tasks(&self) -> &SessionTasks {
        &self.session_tasks
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

    /// Ends the waits of undecided intents and of file changes soon after they expire, until [`Self::session_tasks`] end.
    pub async fn end_expired_waits(self: Arc<Self>) {
        tokio::join!(self.waits.end_expired(), self.changes.end_due());
    }

    /// Stops accepting calls, and ends the sessions of tools: those of current turns after these.
    pub fn close(&self) {
        self.slots.close();
        self.tool_sessions.close();
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
        self.intents.update(|intents| intents.runs.abort_all())
    }
}
