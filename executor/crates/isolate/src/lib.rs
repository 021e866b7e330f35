//! The isolation of runs.
//!
//! By default every run has its own process (process isolation), so that a vulnerability in the engine
//! compromises only a process without rights. The processes of a tool can also be reused, each for runs of
//! one agent under one grant, or keep a session of one agent. A tool that the operator trusts can run inline,
//! on a thread of the server.

mod cgroup;
mod channel;
mod child;
mod compiler;
mod confine;
mod error;
mod inline;
mod probe;
mod process;
mod relay;
mod reuse;
mod session;
mod supervisor;
mod tool_images;
mod user;
mod zygote;
mod zygote_handle;
mod zygote_pool;

pub use cgroup::Cgroups;
pub use compiler::{CompilerLimits, confine_compiler};
pub use confine::{
    Applied, ConfineError, Confinement, ControlRow, Feature, OVERHEAD_BYTES, OVERHEAD_OF_CHANGES,
    OVERHEAD_PER_OUTPUT_BYTE, Support, support,
};
pub use error::ChildError;
pub use inline::Inline;
pub use probe::probe;
pub use reuse::{ReuseLimits, UsedChild};
pub use session::{KeptProcess, RefusedSession, SessionProcess, SessionRefusal, SessionUse};
pub use supervisor::PreparedChild;
pub use user::{Owner, RunAs, User, UserError};
pub use zygote::run_zygote;

use a2g_capability::{Grant, GrantView, Permit};
use a2g_sandbox::egress::SentSecrets;
use a2g_sandbox::{
    Abort, Accounting, Artifact, Code, CodeFeatures, EventSink, Execution, Input, Outside, Sandbox,
};
use a2g_types::clock::Clock;
use a2g_types::error_chain::ErrorChain;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::outcome::{AbortReason, End, Outcome};
use reuse::may_share_process;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use supervisor::{ProcessUse, Supervisor};

/// The time that a guest has after the deadline to end by itself.
// The guest's own end is preferred, because it has more detail than the server's.
const GRACE: Duration = Duration::from_millis(20);

const NOT_LOADED: &str = "this tool is not loaded";

/// The isolation of a tool's runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// A separate process for each run, unless the tool's processes are reused.
    Process,
    /// A thread of the server for each run.
    Inline,
}

impl Isolation {
    /// The name used in the configuration and in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Inline => "inline",
        }
    }
}

/// The lifetime of a tool's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessLifetime {
    /// One run.
    OneRun,
    /// Several runs of one agent under one grant.
    Reused,
}

/// Settings of the processes that are forked before their runs are known.
#[derive(Debug, Clone, Copy)]
pub struct PreforkConfig {
    /// The number of children that are kept waiting for a job.
    pub waiting: usize,
    /// Maximum size of a file that a run writes, in bytes.
    pub largest_file: u64,
    /// Maximum number of handles of one run.
    pub handles: u64,
    /// The features of the tools' code.
    pub features: CodeFeatures,
    /// The number of runs after which the zygote is replaced.
    pub renew_runs: u64,
    /// The time after which the zygote is replaced, regardless of its runs.
    pub renew_after: Duration,
    /// `true` when each run gets a new address layout: one zygote per child.
    pub fresh_layout: bool,
    /// The rule that selects the user of a run.
    pub run_as: RunAs,
    /// The limits of a process that serves several runs.
    pub reuse: ReuseLimits,
}

impl PreforkConfig {
    fn children(&self) -> usize {
        // A child is forked when the previous one is taken, so the first one has to be forked at the start.
        self.waiting.max(1)
    }
}

/// A compiled tool, and the isolation that the operator has chosen for it.
#[derive(Debug, Clone, Copy)]
pub struct Module<'a> {
    /// The name by which runs select the tool.
    pub name: &'a ToolName,
    /// The compiled code and its contract.
    pub code: Code<'a>,
    /// The operator's choice for the tool.
    pub isolation: Isolation,
    /// The operator's choice for the tool's processes.
    pub lifetime: ProcessLifetime,
}

/// All loaded tools, each with its isolation.
pub struct Isolate {
    inline: Inline,
    supervisor: Option<Supervisor>,
    placements: BTreeMap<ToolName, Placement>,
    clock: Arc<dyn Clock>,
}

enum Placement {
    Process(ProcessLifetime),
    Inline(Artifact),
    /// The tool cannot run, for this reason.
    Unavailable(String),
}

/// A run that is about to start, with its isolation.
pub struct RunRequest {
    grant: GrantView,
    assigned: AssignedRun,
}

impl RunRequest {
    /// A run that ends without a start, for this reason.
    #[must_use]
    pub fn without_start(grant: &GrantView, reason: String) -> Self {
        Self { grant: grant.clone(), assigned: AssignedRun::Unavailable(reason) }
    }

    /// The grant that the run executes under.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The values of secrets that earlier turns of the run's session have sent.
    #[must_use]
    pub fn sent_secrets(&self) -> SentSecrets {
        match &self.assigned {
            AssignedRun::Process(job) => job.sent_secrets(),
            AssignedRun::Inline(..) | AssignedRun::Unavailable(_) => SentSecrets::default(),
        }
    }
}

/// One run's authority and its arguments as JSON text, assigned to its tool's isolation.
enum AssignedRun {
    Process(Box<supervisor::JobRequest>),
    Inline(Artifact, Box<Permit>, String),
    /// It cannot start, for this reason.
    Unavailable(String),
}

impl Isolate {
    /// Loads `tools`, and starts a zygote if any of them has process isolation. Each child is in a control group if
    /// `cgroups` are available.
    ///
    /// # Errors
    /// If no zygote can be started.
    pub async fn start(
        tools: &[Module<'_>],
        prefork: PreforkConfig,
        cgroups: Option<Arc<Cgroups>>,
        sandbox: &Arc<Sandbox>,
        clock: &Arc<dyn Clock>,
    ) -> std::io::Result<Self> {
        let (process_tools, inline_tools): (Vec<Module<'_>>, Vec<_>) =
            tools.iter().partition(|tool| tool.isolation == Isolation::Process);
        let inline_placements = inline_tools.into_iter().map(|tool| {
            let placement = match sandbox.load(tool.code) {
                Ok(artifact) => Placement::Inline(artifact),
                Err(error) => Placement::Unavailable(ErrorChain(&error).to_string()),
            };
            (tool.name.clone(), placement)
        });
        let mut placements = inline_placements.collect::<BTreeMap<_, _>>();
        let mut supervisor = None;
        if !process_tools.is_empty() {
            let (started, unusable) =
                Supervisor::start(&process_tools, prefork, cgroups, Arc::clone(clock)).await?;
            supervisor = Some(started);
            placements.extend(
                process_tools.iter().map(|tool| (tool.name.clone(), Placement::Process(tool.lifetime))),
            );
            placements
                .extend(unusable.into_iter().map(|(tool, reason)| (tool, Placement::Unavailable(reason))));
        }
        let inline = Inline::new(Arc::clone(sandbox), Arc::clone(clock));
        Ok(Self { inline, supervisor, placements, clock: Arc::clone(clock) })
    }

    /// Checks that a tool can run.
    ///
    /// # Errors
    /// If it cannot run: the reason, as a clause whose subject is the tool.
    pub fn check_usable(&self, tool: &ToolName) -> Result<(), &str> {
        match self.placements.get(tool) {
            Some(Placement::Process(_) | Placement::Inline(_)) => Ok(()),
            Some(Placement::Unavailable(reason)) => Err(reason),
            None => Err("it was not loaded"),
        }
    }

    /// A run of `tool` by `agent` under `permit` with `arguments` as JSON text, as a turn of `session`.
    ///
    /// # Errors
    /// If the tool can have no session under this permit, or the run does not continue the given one. Never
    /// with [`SessionUse::None`].
    pub fn request(
        &self,
        agent: &AgentDid,
        tool: &ToolName,
        permit: Permit,
        arguments: String,
        session: SessionUse,
    ) -> Result<RunRequest, RefusedSession> {
        let grant = permit.grant().clone();
        let assigned = match (self.placements.get(tool), &self.supervisor) {
            (Some(Placement::Process(lifetime)), Some(supervisor)) => {
                let task = channel::Task::Invoke { arguments };
                let process_use = match (&session, lifetime) {
                    (SessionUse::None, ProcessLifetime::Reused) if may_share_process(&permit) => {
                        ProcessUse::Runs(agent)
                    }
                    (SessionUse::None, ProcessLifetime::OneRun | ProcessLifetime::Reused) => {
                        ProcessUse::OneRun
                    }
                    (
                        SessionUse::Opens | SessionUse::Continues(_),
                        ProcessLifetime::OneRun | ProcessLifetime::Reused,
                    ) => {
                        if let Err(reason) = supervisor.check_session(tool, &permit) {
                            return Err(session.refuse(reason));
                        }
                        ProcessUse::Turns(agent)
                    }
                };
                match (supervisor.job_request(tool, permit, task, process_use), session) {
                    (Ok(job), SessionUse::None | SessionUse::Opens) => AssignedRun::Process(Box::new(job)),
                    (Ok(job), SessionUse::Continues(process)) => {
                        AssignedRun::Process(Box::new(job.continue_session(process)?))
                    }
                    (Err(error), _) => AssignedRun::Unavailable(error.to_string()),
                }
            }
            (Some(Placement::Inline(artifact)), _) => match session {
                SessionUse::None => AssignedRun::Inline(artifact.clone(), Box::new(permit), arguments),
                SessionUse::Opens | SessionUse::Continues(_) => {
                    return Err(session.refuse(SessionRefusal::Inline));
                }
            },
            (Some(Placement::Process(_)), None) | (Some(Placement::Unavailable(_)) | None, _) => {
                AssignedRun::Unavailable(NOT_LOADED.to_owned())
            }
        };
        Ok(RunRequest { grant, assigned })
    }

    /// Ends the processes that wait for another run. That of a current run ends with its run, and that of a
    /// session when its owner drops it.
    pub fn end_idle(&self) {
        if let Some(supervisor) = &self.supervisor {
            supervisor.end_idle();
        }
    }

    /// Prepares a child before the run may begin; no code of the guest runs. Returns `None` if no child can be
    /// prepared; [`Self::run`] then finds one.
    pub async fn prepare(&self, request: &RunRequest) -> Option<PreparedChild> {
        match (&request.assigned, &self.supervisor) {
            (AssignedRun::Process(job), Some(supervisor)) => supervisor.prepare(job, &request.grant).await,
            (AssignedRun::Process(_), None) | (AssignedRun::Inline(..) | AssignedRun::Unavailable(_), _) => {
                None
            }
        }
    }

    /// Starts the clock of a run that reaches `outside` and returns the run's observer. `abort` can stop the run, and
    /// `events` receives its events.
    #[must_use]
    pub fn begin(
        &self,
        request: &RunRequest,
        outside: Outside,
        abort: Arc<Abort>,
        events: EventSink,
    ) -> Execution {
        let grant = request.grant.clone();
        Execution::begin(grant, outside, abort, Accounting::Thread, events, self.clock.monotonic())
    }

    /// The outcome to be reported if this process dies during the run.
    #[must_use]
    pub fn lost_outcome(&self, request: &RunRequest) -> Outcome {
        let execution = self.begin(request, Outside::default(), Arc::default(), EventSink::default());
        execution.outcome(End::Aborted(AbortReason::Lost), execution.started_at())
    }

    /// Runs one guest with its tool's isolation, in the `prepared` child if there is one. Then closes the
    /// run's network connections. Also returns what is left of the run: a session only after a result or the
    /// tool's own error.
    pub async fn run(
        &self,
        request: RunRequest,
        prepared: Option<PreparedChild>,
        execution: &Execution,
    ) -> (Outcome, KeptProcess) {
        let not_started = |reason| {
            (execution.outcome(End::NotStarted(reason), self.clock.monotonic()), KeptProcess::Nothing)
        };
        let end = match (request.assigned, &self.supervisor) {
            (AssignedRun::Process(job), Some(supervisor)) => supervisor.run(*job, prepared, execution).await,
            (AssignedRun::Inline(artifact, permit, arguments), _) => (
                self.inline.run(artifact, *permit, Input::Arguments(arguments), execution).await,
                KeptProcess::Nothing,
            ),
            (AssignedRun::Process(_), None) => not_started(NOT_LOADED.to_owned()),
            (AssignedRun::Unavailable(reason), _) => not_started(reason),
        };
        execution.network().close();
        end
    }
}

/// The authority of the test process, which its tests share.
#[cfg(test)]
fn test_authority() -> &'static a2g_capability::Authority {
    static AUTHORITY: std::sync::LazyLock<a2g_capability::Authority> =
        std::sync::LazyLock::new(|| a2g_capability::Authority::take().expect("the only one"));
    &AUTHORITY
}
