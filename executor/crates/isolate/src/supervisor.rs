//! The server's side of process isolation: every run has its own process, or one that has served runs of the same agent,
//! tool, module and grant, or turns of the same session.
//!
//! ```text
//! server ── control socket ──▶ zygote ── fork ──▶ child, child, … (a few are forked in advance)
//!    └───────────── one socket pair each ────────────┘
//! ```
//! The server enforces the deadline, counts a child's events against the limits itself, reads CPU time and memory from
//! the kernel, and ends every child with SIGKILL, however its last guest ended.

use super::cgroup::Cgroups;
use super::channel::{
    CodeForm, EndReport, Exit, FromChild, Job, JobLifetime, MAX_DESCRIPTORS, NextTurn, ReportedEnd, Task,
};
use super::error::ChildError;
use super::process::{cpu_of, peak_resident_of, reset_peak_resident_of};
use super::relay::{CallService, Services, serve_child};
use super::reuse::{Epoch, FolderId, IdleChildren, ReuseKey, UsedChild};
use super::session::{
    KeptProcess, RefusedSession, SessionKey, SessionProcess, SessionRefusal, check_session,
};
use super::tool_images::ToolImage;
use super::user::Owner;
use super::zygote_handle::{Child, Refill};
use super::zygote_pool::ZygotePool;
use super::{GRACE, Module, PreforkConfig};
use a2g_capability::{Grant, Handover, Permit, TurnLimits, Upper};
use a2g_runtime::spawn;
use a2g_sandbox::egress::SentSecrets;
use a2g_sandbox::{Event, Execution, error_detail, parse_result};
use a2g_types::clock::Clock;
use a2g_types::error_chain::ErrorChain;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::limit::Limit;
use a2g_types::outcome::{AbortReason, Denial, End, Outcome, Usage};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;

/// The number of attempts to start a run, in addition to one attempt for each waiting child.
const EXTRA_ATTEMPTS: usize = 3;
/// Maximum time for the kernel to tear down a killed process.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to reset the peak of a child's resident memory.
const MAX_RESET_TIME: Duration = Duration::from_millis(20);
/// Maximum size of a child's message in an outcome, in bytes. A longer message is truncated.
const MAX_TEXT_BYTES: usize = 8 << 10;
/// Arguments up to this many bytes are sent to a child before its run may begin.
// The caller drops the future of `prepare` once the start of the run is on the disk. Longer arguments exceed the
// socket's buffer, so that sending them waits for the child, and a drop meanwhile would leave the child half a job.
const MAX_EARLY_ARGUMENT_BYTES: usize = 64 << 10;
/// A result up to this many bytes is parsed on the runtime's thread; a longer one would delay other tasks.
const MAX_INLINE_PARSE_BYTES: usize = 256 << 10;
/// Extra bytes for a re-serialized result, beyond twice the output limit.
const SERIALIZATION_HEADROOM_BYTES: u64 = 64 << 10;
/// Maximum number of a run's folders: they are sent in one message, with the tool's code and the relay's socket.
const MAX_FOLDERS: usize = MAX_DESCRIPTORS - 2;
/// Maximum size of a child's report in addition to the tool's output: counts, denials and framing.
const REPORT_HEADROOM_BYTES: u64 = 16 << 20;

/// The end of a guest, and its process if that is used again.
pub(super) type GuestEnd = (Outcome, KeptProcess);

/// The use of a run's process after the run.
#[derive(Clone, Copy)]
pub(super) enum ProcessUse<'a> {
    /// None.
    OneRun,
    /// Further runs of this agent, which the permit allows (`may_share_process`).
    Runs(&'a AgentDid),
    /// Further turns of a session of this agent.
    Turns(&'a AgentDid),
}

/// Supervises the runs that have their own process.
pub(super) struct Supervisor {
    pool: Arc<ZygotePool>,
    idle: Arc<IdleChildren>,
    clock: Arc<dyn Clock>,
}

impl Supervisor {
    /// Starts a zygote with `tools`. Returns the tools that it cannot run, with the reasons.
    pub(super) async fn start(
        tools: &[Module<'_>],
        settings: PreforkConfig,
        cgroups: Option<Arc<Cgroups>>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Vec<(ToolName, String)>)> {
        let (pool, unusable) = ZygotePool::start(tools, settings, cgroups).await?;
        let idle = IdleChildren::new(pool.reuse());
        Ok((Self { pool, idle, clock }, unusable))
    }

    /// The job of one run. Its user depends on the owners of the granted folders, and on those of the program's contents,
    /// which it has to read.
    ///
    /// # Errors
    /// If there is no such tool, the folders for the run's file changes cannot be given to that user, a
    /// process cannot have so many folders, or the kernel does not tell which folders those of a session are.
    /// The message is a clause about the run.
    pub(super) fn job_request(
        &self,
        tool: &ToolName,
        permit: Permit,
        task: Task,
        process_use: ProcessUse<'_>,
    ) -> std::result::Result<JobRequest, ChildError> {
        let image = self.pool.image(tool).ok_or(ChildError::UnknownTool)?;
        let form = CodeForm::of(image.code().for_grant(permit.grant()));
        let member = permit.upper().and_then(Upper::member);
        let earlier = member.map(|member| member.earlier.as_slice()).unwrap_or_default();
        let granted = permit.roots().as_slice().iter().map(|root| Owner::of(&root.dir));
        let owners = granted.chain(earlier.iter().map(|earlier| Owner::of(&earlier.folder)));
        let user = self.pool.run_as().user_for(owners);
        if let (Some(upper), Some(user)) = (permit.upper(), user) {
            let base = member.map(|member| member.base.as_fd());
            let given = base.into_iter().chain([upper.as_fd()]).try_for_each(|folder| user.own(folder));
            given.map_err(|error| {
                Error::other(format!(
                    "the folder for its file changes cannot be given to its user {user} ({error}): give the executor \
                     CAP_CHOWN, or do not run it as root"
                ))
            })?;
        }
        // Those that share a process have no other folders than the granted ones.
        let folder_ids = match process_use {
            ProcessUse::OneRun => None,
            ProcessUse::Runs(_) | ProcessUse::Turns(_) => FolderId::all_of(&permit),
        };
        let grant = permit.grant().clone();
        let (permit, folders) = Handover::from_permit(permit);
        if folders.len() > MAX_FOLDERS {
            let message = format!(
                "it needs {} folders, and {MAX_FOLDERS} can be passed to its process: grant fewer folders",
                folders.len()
            );
            return Err(Error::other(message).into());
        }
        let further_use = match process_use {
            ProcessUse::OneRun => FurtherUse::None,
            ProcessUse::Runs(agent) => {
                let key = folder_ids.and_then(|folders| ReuseKey::new(agent, tool, &permit, folders, user));
                key.map_or(FurtherUse::None, FurtherUse::Runs)
            }
            ProcessUse::Turns(agent) => {
                let unknown = "the kernel does not tell which folders it has, so it can have no session";
                let folders = folder_ids.ok_or_else(|| Error::other(unknown))?;
                let key = SessionKey { agent: agent.clone(), tool: tool.clone(), folders, user, grant };
                FurtherUse::Turns { key, earlier: None }
            }
        };
        let job = Job {
            tool: tool.to_string(),
            form,
            task,
            permit,
            network: false,
            max_parallel_calls: 0,
            user,
            lifetime: match &further_use {
                FurtherUse::None => JobLifetime::OneRun,
                FurtherUse::Runs(_) => JobLifetime::Runs,
                FurtherUse::Turns { .. } => JobLifetime::Turns,
            },
        };
        Ok(JobRequest { job, image, folders, further_use, epoch: self.idle.epoch() })
    }

    /// Checks that a tool can have a session under `permit`. A tool that does not exist is found by
    /// [`Self::job_request`].
    pub(super) fn check_session(
        &self,
        tool: &ToolName,
        permit: &Permit,
    ) -> std::result::Result<(), SessionRefusal> {
        self.pool.image(tool).map_or(Ok(()), |image| check_session(image.code().expected_contract(), permit))
    }

    /// Ends the zygote and waits until it is reaped. Call this when no run is left.
    pub(super) async fn close(self) {
        // A child keeps its zygote alive.
        drop(self.idle);
        self.pool.close().await;
    }

    /// Sends the job to a waiting child, which then applies the job's confinement to itself. Returns `None` if no child
    /// waits or the job cannot be sent yet; [`Self::run`] then finds a child.
    pub(super) async fn prepare(&self, request: &JobRequest, grant: &Grant) -> Option<PreparedChild> {
        // The start of the run has to be in the journal, on the disk, before the guest's first instruction; meanwhile a
        // child can read its job and apply the job's confinement. A job with a network or with calls has to wait,
        // because its relay starts with the execution. A session has its process.
        let starts_relay = grant.network().value || grant.calls().allows_any();
        let has_process = matches!(request.further_use, FurtherUse::Turns { earlier: Some(_), .. });
        if starts_relay || !request.is_short() || has_process {
            return None;
        }
        let prepared = match self.take_reused(request, grant) {
            Some(prepared) => prepared,
            None => match self.pool.try_take_child(&request.image.name)? {
                Ok((child, refill)) => child.assign(refill, request, grant, RelayGuard(None), None).await,
                Err(error) => Err(error),
            },
        };
        let log = |error: &ChildError| {
            tracing::warn!(reason = %ErrorChain(error), "a child could not be prepared");
        };
        prepared.inspect_err(log).ok()
    }

    /// Runs one guest. Returns when it ends, when the run is cancelled or shortly after the deadline, whichever is
    /// first, even if the guest or the kernel is stuck.
    pub(super) async fn run(
        &self,
        mut request: JobRequest,
        mut prepared: Option<PreparedChild>,
        execution: &Execution,
    ) -> GuestEnd {
        request.job.network = execution.network().session().is_some();
        let max_parallel = execution.grant().calls().max_parallel().value;
        request.job.max_parallel_calls = execution.calls().backend().map_or(0, |_| max_parallel);
        if let FurtherUse::Turns { earlier, .. } = &mut request.further_use
            && let Some(process) = earlier.take()
        {
            let result = self.run_turn(*process, &request, execution).await;
            // It cannot be repeated in another child, which would have an empty store.
            return result.unwrap_or_else(|error| {
                self.end_without_process(execution, End::Crashed(error.to_string()))
            });
        }
        let mut last_error = String::new();
        // All waiting children may have been killed at the same time.
        for _ in 0..self.pool.waiting().saturating_add(EXTRA_ATTEMPTS) {
            let result = match prepared.take() {
                Some(prepared) => self.supervise(prepared, &request, execution).await,
                None => self.run_in_child(&request, execution).await,
            };
            match result {
                Ok(end) => return end,
                Err(error) => last_error = error.to_string(),
            }
            tracing::warn!(
                tool = request.job.tool,
                reason = last_error,
                "a child ended before its guest began"
            );
        }
        self.end_without_process(execution, End::Crashed(last_error))
    }

    /// Calls a typed tool's `describe`, which returns name, version, description and argument schema.
    ///
    /// # Errors
    /// [`ChildError`] with the reason.
    pub(super) async fn describe(
        &self,
        tool: &ToolName,
        permit: Permit,
    ) -> std::result::Result<[String; 4], ChildError> {
        let grant = permit.grant().clone();
        let timeout = permit.grant().timeout().value;
        let request = self.job_request(tool, permit, Task::Describe, ProcessUse::OneRun)?;
        let description = async {
            let (child, refill) = self.pool.take_child(tool).await?;
            let mut prepared = child.assign(refill, &request, &grant, RelayGuard(None), None).await?;
            let channel = &mut prepared.child.channel;
            channel.begin().await?;
            match channel.receive().await? {
                Some(FromChild::Described(result)) => {
                    result.map_err(|reason| ChildError::Reported(truncate(reason)))
                }
                Some(FromChild::Failed(reason)) => Err(ChildError::Reported(truncate(reason))),
                Some(
                    FromChild::Began { .. } | FromChild::Event(_) | FromChild::Ended(_) | FromChild::Idle,
                ) => Err(ChildError::NoDescription),
                None => Err(ChildError::Ended(kill_and_wait(&mut prepared.child).await.description)),
            }
        };
        let limit = timeout.duration() + GRACE;
        let timeout_error = |_| Err(ChildError::DescribeTimeout(timeout));
        tokio::time::timeout(limit, description).await.unwrap_or_else(timeout_error)
    }

    /// Ends the children that wait for another run, and those of the current runs with these runs.
    pub(super) fn end_idle(&self) {
        self.idle.end_all();
    }

    /// Takes a child that has served a run like this one; `None` if there is none.
    fn take_reused(
        &self,
        request: &JobRequest,
        grant: &Grant,
    ) -> Option<std::result::Result<PreparedChild, ChildError>> {
        let FurtherUse::Runs(key) = &request.further_use else { return None };
        let (child, earlier_runs) = self.idle.take(key)?;
        Some(child.prepare_again(earlier_runs, grant))
    }

    /// Runs a further turn of a session in its process. Fails with the reason if the guest never began.
    async fn run_turn(
        &self,
        mut process: SessionProcess,
        request: &JobRequest,
        execution: &Execution,
    ) -> std::result::Result<GuestEnd, ChildError> {
        process.child.channel.set_receive_limit(max_report_bytes(execution.grant()));
        tokio::select! {
            idle = process.wait_idle() => idle?,
            stop = await_stop(execution) => return Ok(self.end_without_process(execution, stop.into())),
        }
        if let Some(group) = &process.child.group {
            group.limit(execution.grant())?;
        }
        let (relay, socket) = start_relay(execution)?;
        let SessionProcess { child, turns, cpu, .. } = process;
        let limits = execution.grant().turn_limits();
        let earlier = EarlierRuns::Turns { count: turns, cpu, limits, socket };
        let prepared = PreparedChild { child, earlier, _relay: relay };
        self.supervise(prepared, request, execution).await
    }

    /// The end of a run of which no process is left.
    fn end_without_process(&self, execution: &Execution, end: End) -> GuestEnd {
        (execution.outcome(end, self.clock.monotonic()), KeptProcess::Nothing)
    }

    /// Runs the job in a reused child, or else in one that waits or is forked now. Fails with the reason if the guest never
    /// began.
    async fn run_in_child(
        &self,
        request: &JobRequest,
        execution: &Execution,
    ) -> std::result::Result<GuestEnd, ChildError> {
        if let Some(prepared) = self.take_reused(request, execution.grant()) {
            return self.supervise(prepared?, request, execution).await;
        }
        let (child, refill) = tokio::select! {
            child = self.pool.take_child(&request.image.name) => child?,
            stop = await_stop(execution) => {
                let end = match stop {
                    OperatorReason::DeadlinePassed => {
                        End::NotStarted("no process was available before the run's deadline".to_owned())
                    }
                    OperatorReason::Aborted(reason) => End::Aborted(reason),
                };
                return Ok(self.end_without_process(execution, end));
            }
        };
        let (relay, socket) = start_relay(execution)?;
        tokio::select! {
            prepared = child.assign(refill, request, execution.grant(), relay, socket) => {
                self.supervise(prepared?, request, execution).await
            }
            stop = await_stop(execution) => Ok(self.end_without_process(execution, stop.into())),
        }
    }

    /// Lets a prepared child begin and supervises it to its end. Fails with the reason if the guest never began.
    async fn supervise(
        &self,
        prepared: PreparedChild,
        request: &JobRequest,
        execution: &Execution,
    ) -> std::result::Result<GuestEnd, ChildError> {
        let PreparedChild { mut child, earlier, _relay } = prepared;
        // With a start, the run is not repeated in another child: this one gets the arguments.
        let mut start_cpu = match &earlier {
            EarlierRuns::None => None,
            EarlierRuns::Runs(_) => Some(child.cpu_before_next_run()?),
            EarlierRuns::Turns { cpu, .. } => Some(*cpu),
        };
        let earlier_runs = earlier.count();
        let has_own_peak = earlier_runs == 0 || reset_peak_resident(child.pid).await;
        tokio::select! {
            begun = begin_child(&child, earlier, request) => begun?,
            stop = await_stop(execution) => return Ok(self.end_without_process(execution, stop.into())),
        }
        let mut report = None;
        let end = loop {
            // The `select!` is not `biased`, so that a child that never stops sending reaches its deadline.
            let message = tokio::select! {
                message = child.channel.receive() => message,
                stop = await_stop(execution) => break stop.into(),
            };
            match message {
                Ok(Some(FromChild::Began { cpu_ns })) => {
                    // Only the first message counts. It is sent before the guest starts; a later one could come from a
                    // compromised child that hides its CPU time.
                    start_cpu.get_or_insert(Duration::from_nanos(cpu_ns));
                }
                Ok(Some(FromChild::Event(event))) => execution.record_event(event),
                Ok(Some(FromChild::Ended(end_report))) => {
                    let EndReport { end, output_bytes, truncated, spent, denied, denied_truncated } =
                        *end_report;
                    let denials = denied.into_iter().take(Usage::MAX_DENIALS);
                    // No layer is taken from a child: it knows the list of none.
                    denials.for_each(|Denial { what, reason, set_by: _, count }| {
                        execution.record_event(Event::Denied(what, reason, count));
                    });
                    report = Some((output_bytes, truncated, spent, denied_truncated));
                    break self.validate_reported_end(end, execution).await;
                }
                Ok(Some(FromChild::Described(_))) => {
                    break End::Crashed("it sent a description instead of running the tool".to_owned());
                }
                Ok(Some(FromChild::Idle)) => {
                    break End::Crashed("it sent that it is idle instead of running the tool".to_owned());
                }
                Ok(Some(FromChild::Failed(reason))) if start_cpu.is_none() => {
                    return Err(ChildError::Reported(truncate(reason)));
                }
                Ok(Some(FromChild::Failed(reason))) => break End::Crashed(truncate(reason)),
                Ok(None) => {
                    let exit = tokio::select! {
                        exit = kill_and_wait(&mut child) => exit,
                        stop = await_stop(execution) => break stop.into(),
                    };
                    let Some(start_cpu) = start_cpu else { return Err(ChildError::Ended(exit.description)) };
                    let mut outcome =
                        execution.outcome(End::Crashed(exit.description), self.clock.monotonic());
                    outcome.metrics.earlier_runs = earlier_runs;
                    outcome.metrics.cpu = Duration::from_micros(exit.cpu_us).saturating_sub(start_cpu);
                    outcome.metrics.peak_resident_bytes = has_own_peak.then_some(exit.peak_resident);
                    outcome.usage.spent = None;
                    return Ok((outcome, KeptProcess::Nothing));
                }
                Err(error) => break End::Crashed(error.to_string()),
            }
        };
        // CPU time and memory are read before the child is killed: until then its pid cannot be reused, and the CPU
        // time does not include the teardown of the process, which takes longer than a short run.
        let end_cpu = cpu_of(child.pid);
        let cpu = start_cpu.and_then(|start_cpu| Some(end_cpu?.saturating_sub(start_cpu)));
        let mut outcome = execution.outcome(end, self.clock.monotonic());
        outcome.metrics.cpu = cpu.unwrap_or_default();
        outcome.metrics.peak_resident_bytes = has_own_peak.then(|| peak_resident_of(child.pid)).flatten();
        outcome.metrics.earlier_runs = earlier_runs;
        outcome.usage.spent = None;
        let Some((output_bytes, truncated, spent, denied_truncated)) = report else {
            return Ok((outcome, KeptProcess::Nothing));
        };
        outcome.metrics.output_bytes = output_bytes.min(execution.output_limit());
        outcome.output.truncated |= truncated;
        outcome.usage.spent = spent.map(|spent| outcome.usage.budgets.cap(spent));
        outcome.usage.denied_truncated |= denied_truncated;
        let served = earlier_runs.saturating_add(1);
        let kept = self.keep(child, served, end_cpu, request, &outcome.end, execution);
        Ok((outcome, kept))
    }

    /// Keeps the child of a run that has ended with `end`, if it may be used again. It has served `served`
    /// runs, and has used the CPU time `cpu`.
    fn keep(
        &self,
        mut child: Child,
        served: u32,
        cpu: Option<Duration>,
        request: &JobRequest,
        end: &End,
        execution: &Execution,
    ) -> KeptProcess {
        match (&request.further_use, cpu) {
            (FurtherUse::Runs(key), _) => {
                let idle = Arc::clone(&self.idle);
                KeptProcess::Child(UsedChild { idle, key: key.clone(), child, served, epoch: request.epoch })
            }
            (FurtherUse::Turns { key, .. }, Some(cpu)) if end.is_answer() && child.channel.shrink() => {
                let network = execution.network().session();
                let sent = network.map(|session| session.sent_secrets()).unwrap_or_default();
                KeptProcess::Session(SessionProcess { key: key.clone(), child, turns: served, cpu, sent })
            }
            (FurtherUse::None | FurtherUse::Turns { .. }, _) => KeptProcess::Nothing,
        }
    }

    /// Returns the reported end, or a crash if no child may report such an end: only the server cancels runs, and no
    /// run times out before its deadline. A result that is too long counts as reaching the output limit.
    async fn validate_reported_end(&self, reported: ReportedEnd, execution: &Execution) -> End {
        // Serializing a value again may lengthen its numbers.
        let max = execution.output_limit().saturating_mul(2).saturating_add(SERIALIZATION_HEADROOM_BYTES);
        let fits = |bytes: usize| u64::try_from(bytes).is_ok_and(|bytes| bytes <= max);
        match reported {
            ReportedEnd::Returned(text) if fits(text.len()) => {
                if text.len() <= MAX_INLINE_PARSE_BYTES {
                    return parse_result(&text);
                }
                let end = tokio::task::spawn_blocking(move || parse_result(&text)).await;
                end.unwrap_or_else(|_| End::Crashed("its result could not be read".to_owned()))
            }
            ReportedEnd::ToolError { code, message, detail }
                if fits(code.len() + message.len() + detail.as_ref().map_or(0, String::len)) =>
            {
                End::ToolError { code, message, detail: detail.as_deref().map(error_detail) }
            }
            ReportedEnd::Returned(_) | ReportedEnd::ToolError { .. } => End::LimitReached(Limit::Output),
            ReportedEnd::Other(End::LimitReached(Limit::Time))
                if self.clock.monotonic() < execution.deadline() =>
            {
                End::Crashed("it reported a deadline that has not passed".to_owned())
            }
            // Its changes cannot be stored, or those of its calls cannot be read.
            ReportedEnd::Other(End::NotCommitted(reason))
                if !execution.grant().effects().value.is_direct() =>
            {
                End::NotCommitted(truncate(reason))
            }
            ReportedEnd::Other(
                End::Returned(_)
                | End::Staged(_)
                | End::ToolError { .. }
                | End::ResultInvalid { .. }
                | End::NotCommitted(_)
                | End::LeftToOperator(_)
                | End::Aborted(_),
            ) => End::Crashed("it reported an end that a child may not report".to_owned()),
            ReportedEnd::Other(End::Exited { code, stderr_tail }) => {
                End::Exited { code, stderr_tail: truncate(stderr_tail) }
            }
            ReportedEnd::Other(End::Trapped(trap)) => End::Trapped(truncate(trap)),
            ReportedEnd::Other(End::NotStarted(reason)) => End::NotStarted(truncate(reason)),
            ReportedEnd::Other(End::Crashed(reason)) => End::Crashed(truncate(reason)),
            ReportedEnd::Other(end @ (End::ResultNotJson | End::LimitReached(_))) => end,
        }
    }
}

/// Lets a child begin. Fails if the run may be repeated in another child.
async fn begin_child(
    child: &Child,
    earlier: EarlierRuns,
    request: &JobRequest,
) -> std::result::Result<(), ChildError> {
    let may_repeat = matches!(earlier, EarlierRuns::None);
    match child.begin(earlier, request.arguments()).await {
        // A child that has ended may have sent its reason before, which is read afterwards.
        Err(error) if error.kind() != ErrorKind::BrokenPipe && may_repeat => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The job of one child, the code of its tool and its folders: the granted ones, and those for its file changes.
pub(super) struct JobRequest {
    job: Job,
    image: Arc<ToolImage>,
    folders: Vec<OwnedFd>,
    further_use: FurtherUse,
    /// The epoch in which the run was requested.
    epoch: Epoch,
}

/// The use of a child for other runs.
enum FurtherUse {
    None,
    /// It may serve further runs with this key, and one of those that have served some may serve the run.
    Runs(ReuseKey),
    /// It keeps a session for turns with this key.
    Turns {
        key: SessionKey,
        /// The process that has served the turns before this one; `None` for the first one.
        earlier: Option<Box<SessionProcess>>,
    },
}

impl JobRequest {
    /// Lets this turn continue the session of `process`.
    ///
    /// # Errors
    /// If it does not.
    pub(super) fn continue_session(
        mut self,
        process: Box<SessionProcess>,
    ) -> std::result::Result<Self, RefusedSession> {
        let refused = match &mut self.further_use {
            FurtherUse::Turns { key, earlier } => match process.check_turn(key) {
                Ok(()) => {
                    *earlier = Some(process);
                    return Ok(self);
                }
                Err(reason) => reason,
            },
            FurtherUse::None | FurtherUse::Runs(_) => SessionRefusal::Ended,
        };
        let left = (refused != SessionRefusal::Ended).then_some(process);
        Err(RefusedSession { reason: refused, process: left })
    }

    /// The values of secrets that earlier turns of its session have sent.
    pub(super) fn sent_secrets(&self) -> SentSecrets {
        match &self.further_use {
            FurtherUse::Turns { earlier: Some(process), .. } => process.sent.clone(),
            FurtherUse::None | FurtherUse::Runs(_) | FurtherUse::Turns { earlier: None, .. } => {
                SentSecrets::default()
            }
        }
    }

    /// The arguments as JSON text.
    fn arguments(&self) -> &str {
        match &self.job.task {
            Task::Invoke { arguments } => arguments,
            Task::Describe => "",
        }
    }

    /// Returns `true` if the job fits the socket's buffer, so that sending it does not wait for the child.
    fn is_short(&self) -> bool {
        match &self.job.task {
            Task::Invoke { arguments } => arguments.len() <= MAX_EARLY_ARGUMENT_BYTES,
            Task::Describe => true,
        }
    }
}

/// A child that has received its job, applies the job's confinement to itself and waits for the signal to begin.
pub struct PreparedChild {
    child: Child,
    earlier: EarlierRuns,
    _relay: RelayGuard,
}

/// The runs that a child has served before it begins another one.
enum EarlierRuns {
    None,
    /// That many, each in a store of its own.
    Runs(u32),
    /// The turns of its session.
    Turns {
        count: u32,
        /// CPU time of the child at the end of the last turn.
        cpu: Duration,
        /// The limits of the next one.
        limits: TurnLimits,
        /// The child's end of the next relay's socket pair, which the child gets when the turn begins.
        socket: Option<UnixStream>,
    },
}

impl EarlierRuns {
    fn count(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Runs(count) | Self::Turns { count, .. } => *count,
        }
    }
}

/// The task that serves the requests of one child. Dropping the guard aborts the task, which ends all requests.
struct RelayGuard(Option<AbortHandle>);

impl Drop for RelayGuard {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Starts the server's side of the relay of a run that has a network or may call tools. Returns the child's end of the
/// socket.
fn start_relay(execution: &Execution) -> Result<(RelayGuard, Option<UnixStream>)> {
    let calls = execution.grant().calls();
    let services = Services {
        network: execution.network().session().map(Arc::clone),
        calls: execution.calls().backend().map(|backend| CallService {
            backend: Arc::clone(backend),
            max_calls: calls.max_calls().value,
            max_parallel: calls.max_parallel().value,
        }),
    };
    if services.network.is_none() && services.calls.is_none() {
        return Ok((RelayGuard(None), None));
    }
    // These runs have an additional socket pair. On the child's channel, bodies would be JSON, the limit on output
    // would apply to them, and the loop that supervises the run would have to read them.
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let ours = tokio::net::UnixStream::from_std(ours)?;
    let task = spawn::spawn_run_task(async move {
        if let Err(error) = serve_child(services, ours).await {
            tracing::warn!(%error, "the relay of a run has failed");
        }
    });
    Ok((RelayGuard(Some(task.abort_handle())), Some(theirs)))
}

/// The server's reason to end a run.
enum OperatorReason {
    Aborted(AbortReason),
    /// The deadline and the grace period after it have passed.
    DeadlinePassed,
}

impl From<OperatorReason> for End {
    fn from(stop: OperatorReason) -> Self {
        match stop {
            OperatorReason::Aborted(reason) => Self::Aborted(reason),
            OperatorReason::DeadlinePassed => Self::LimitReached(Limit::Time),
        }
    }
}

/// Waits for the run's cancellation, or until shortly after its deadline.
async fn await_stop(execution: &Execution) -> OperatorReason {
    tokio::select! {
        reason = execution.abort().wait() => OperatorReason::Aborted(reason),
        () = tokio::time::sleep_until((execution.deadline() + GRACE).into()) => OperatorReason::DeadlinePassed,
    }
}

/// Kills a child whose socket is closed, and waits for the report of its exit.
async fn kill_and_wait(child: &mut Child) -> Exit {
    child.kill();
    match tokio::time::timeout(EXIT_TIMEOUT, &mut child.exit).await {
        Ok(Ok(exit)) => exit,
        Ok(Err(_)) => Exit {
            description: "the zygote, which forks the processes of runs, ended before it reported the exit"
                .to_owned(),
            cpu_us: 0,
            peak_resident: 0,
        },
        Err(_) => Exit {
            description: "the zygote, which forks the processes of runs, did not report the exit in time"
                .to_owned(),
            cpu_us: 0,
            peak_resident: 0,
        },
    }
}

/// Maximum number of bytes that a child may send about a run.
fn max_report_bytes(grant: &Grant) -> u64 {
    // Output is reported as JSON, in which one byte becomes up to six. The factor 8 leaves room for the other members of
    // the report.
    grant.output().value.bytes().saturating_mul(8).saturating_add(REPORT_HEADROOM_BYTES)
}

/// Lets the kernel count the peak of a child's resident memory anew. Returns `false` if it does not in time.
// The kernel takes a lock of the child's memory for this, which a child can hold for long: not on the runtime's thread.
async fn reset_peak_resident(pid: i32) -> bool {
    let reset = tokio::task::spawn_blocking(move || reset_peak_resident_of(pid));
    tokio::time::timeout(MAX_RESET_TIME, reset).await.is_ok_and(|result| result.unwrap_or(false))
}

/// Truncates a child's message, which may have any length.
pub(super) fn truncate(text: String) -> String {
    if text.len() <= MAX_TEXT_BYTES { text } else { text.chars().take(MAX_TEXT_BYTES / 4).collect() }
}

impl Child {
    /// Sends the child its job, the code of its tool and its end of the relay's socket pair.
    async fn assign(
        mut self,
        refill: Refill,
        request: &JobRequest,
        grant: &Grant,
        relay: RelayGuard,
        socket: Option<UnixStream>,
    ) -> std::result::Result<PreparedChild, ChildError> {
        if let Some(group) = &self.group {
            group.limit(grant)?;
        }
        if let FurtherUse::Runs(_) = &request.further_use {
            self.memory_before = self.memory_bytes();
        }
        // The code is sent even if the child's zygote had the tool loaded: the server does not know which tools a child has.
        let code = request.image.code().for_grant(grant).compiled_file();
        let folders = request.folders.iter().map(AsFd::as_fd).chain(socket.as_ref().map(AsFd::as_fd));
        // The code comes first: a child at its limit on descriptors loses the last ones, and must not load another file.
        let handles = std::iter::once(code.as_fd()).chain(folders).collect::<Vec<_>>();
        self.channel.set_receive_limit(max_report_bytes(grant));
        self.channel.send(&request.job, &handles).await?;
        // The next child is forked while this one runs. Measured on two cores: forking it only after the run is slower,
        // because that delays the answer.
        drop(refill);
        // From here on only the child has its end of the socket pair, so that the connection closes when it exits.
        drop(socket);
        Ok(PreparedChild { child: self, earlier: EarlierRuns::None, _relay: relay })
    }

    /// CPU time of a living child at the start of its next run.
    // The server reads it: an earlier guest that has taken over the child could hide its own time.
    fn cpu_before_next_run(&self) -> std::result::Result<Duration, ChildError> {
        let cpu = cpu_of(self.pid).filter(|_| self.is_alive());
        cpu.ok_or_else(|| ChildError::Ended("it ended while it waited for its next run".to_owned()))
    }

    /// Lets a prepared child begin. After `earlier` runs it gets the `arguments` of this one first: its job had
    /// those of its first run.
    async fn begin(&self, earlier: EarlierRuns, arguments: &str) -> Result<()> {
        // Not before the start of the run is on the disk: the child could act on the arguments at once.
        match earlier {
            EarlierRuns::None => {}
            EarlierRuns::Runs(_) => self.channel.send(&arguments, &[]).await?,
            EarlierRuns::Turns { limits, socket, .. } => {
                let handles = socket.as_ref().map(AsFd::as_fd);
                let next = NextTurn { arguments: arguments.into(), limits };
                self.channel.send(&next, handles.as_slice()).await?;
                // From here on only the child has its end of the socket pair, as after `assign`.
                drop(socket);
            }
        }
        self.channel.begin().await
    }

    /// Prepares a child that has cleared everything of its `earlier_runs`, which are at least one.
    fn prepare_again(
        mut self,
        earlier_runs: u32,
        grant: &Grant,
    ) -> std::result::Result<PreparedChild, ChildError> {
        if let Some(group) = &self.group {
            group.limit(grant)?;
        }
        self.channel.set_receive_limit(max_report_bytes(grant));
        Ok(PreparedChild { child: self, earlier: EarlierRuns::Runs(earlier_runs), _relay: RelayGuard(None) })
    }
}
