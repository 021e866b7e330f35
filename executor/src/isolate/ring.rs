//! The process ring, from the server's side: every run in a process of its own.
//!
//! ```text
//! server ── control socket ──▶ zygote ── fork ──▶ child, child, … (a few wait ahead of time)
//!    └───────────── one socket pair each ────────────┘
//! ```
//! The server holds the deadline. It keeps its own books of what a child tells while it runs, takes
//! CPU time and memory from the kernel, and ends every child with SIGKILL, however the guest ended.

use super::cgroup::Cgroups;
use super::channel::{Ended, Exit, FromChild, Job, Task, Told};
use super::error::ChildError;
use super::generation::{Child, Refill};
use super::network::carry;
use super::nursery::Nursery;
use super::process::{cpu_of, peak_resident_of};
use super::user::Owner;
use super::{Ahead, GRACE, Module};
use crate::capability::{Grant, Handover, Permit};
use crate::clock::Clock;
use crate::error_chain::ErrorChain;
use crate::ident::ToolName;
use crate::limit::Limit;
use crate::outcome::{AbortReason, Denial, End, Outcome, Usage};
use crate::sandbox::{Event, Execution, error_detail, returned};
use std::io::{ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;

/// How often a run that has not begun is given to another child, beside those that waited.
const MAX_TRIES: usize = 3;
/// How long the kernel may take to take a killed process down.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest text of a child that is kept, in bytes.
const MAX_TEXT_BYTES: usize = 8 << 10;
/// Arguments up to this many bytes are sent to a child before its run may begin: the socket takes them at once.
const MAX_READ_AHEAD_BYTES: usize = 64 << 10;
/// A result up to this many bytes is read where it arrives; a longer one would keep others waiting.
const AT_ONCE_BYTES: usize = 256 << 10;
/// What a written value may be longer than it was beside twice its length.
const SMALL_BYTES: u64 = 64 << 10;
/// What a child may say beside its output: counts, denials, the frame around it all.
const REPORT_HEADROOM_BYTES: u64 = 16 << 20;

/// The process ring.
pub(super) struct Ring {
    nursery: Arc<Nursery>,
    clock: Arc<dyn Clock>,
}

impl Ring {
    /// Starts a zygote with `tools`, and gives the reason for each tool that it cannot run.
    pub(super) async fn start(
        tools: &[Module<'_>],
        settings: Ahead,
        cgroups: Option<Arc<Cgroups>>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Vec<(ToolName, String)>)> {
        let (nursery, unusable) = Nursery::start(tools, settings, cgroups).await?;
        Ok((Self { nursery, clock }, unusable))
    }

    /// The order for a child that is given a run, with the user that it takes.
    pub(super) fn order(&self, tool: &ToolName, permit: Permit, task: Task) -> Order {
        let owners = permit.roots().as_slice().iter().map(|root| Owner::of(&root.dir));
        let user = self.nursery.run_as().user_for(owners);
        let (permit, folders) = Handover::of(permit);
        Order { job: Job { tool: tool.to_string(), task, permit, network: false, user }, folders }
    }

    /// Ends the zygote and waits until it is reaped. Nothing runs any more.
    pub(super) async fn close(self) {
        self.nursery.close().await;
    }

    /// Has a child that waits make itself ready for a run that may not begin yet. `None` when none waits, or when
    /// what it needs is there only when it runs: then [`Self::run`] finds one.
    pub(super) async fn prepare(&self, order: &Order, grant: &Grant) -> Option<Prepared> {
        if grant.network().value || !order.is_short() {
            return None;
        }
        let prepared = match self.nursery.try_child()? {
            Ok((child, refill)) => child.prepared(refill, order, grant, Carried(None), None).await,
            Err(error) => Err(error),
        };
        let log = |error: &ChildError| {
            tracing::warn!(reason = %ErrorChain(error), "a child could not be prepared");
        };
        prepared.inspect_err(log).ok()
    }

    /// Runs one guest, and comes back at its end, or shortly after its deadline or at its
    /// cancellation, whatever the guest or the kernel is doing.
    pub(super) async fn run(
        &self,
        mut order: Order,
        mut prepared: Option<Prepared>,
        execution: &Execution,
    ) -> Outcome {
        order.job.network = execution.network().line().is_some();
        let mut last = String::new();
        // All that wait may have been killed at once.
        for _ in 0..self.nursery.waiting().saturating_add(MAX_TRIES) {
            let ran = match prepared.take() {
                Some(prepared) => self.follow(prepared, execution).await,
                None => self.in_another_child(&order, execution).await,
            };
            match ran {
                Ok(outcome) => return outcome,
                Err(error) => last = error.to_string(),
            }
            tracing::warn!(tool = order.job.tool, reason = last, "a child ended before its guest began");
        }
        execution.outcome(End::Crashed(last), self.clock.monotonic())
    }

    /// Calls `describe` of a typed tool: its name, version, description and argument schema.
    ///
    /// # Errors
    /// [`ChildError`] says why it gave none.
    pub(super) async fn describe(
        &self,
        tool: &ToolName,
        permit: Permit,
    ) -> std::result::Result<[String; 4], ChildError> {
        let (grant, timeout) = (permit.grant().clone(), permit.grant().timeout().value);
        let order = self.order(tool, permit, Task::Describe);
        let described = async {
            let (child, refill) = self.nursery.child().await?;
            let mut prepared = child.prepared(refill, &order, &grant, Carried(None), None).await?;
            let channel = &mut prepared.child.channel;
            channel.begin().await?;
            match channel.receive().await? {
                Some(FromChild::Described(described)) => {
                    described.map_err(|reason| ChildError::Reported(short(reason)))
                }
                Some(FromChild::Failed(reason)) => Err(ChildError::Reported(short(reason))),
                Some(FromChild::Began { .. } | FromChild::Event(_) | FromChild::Ended(_)) => {
                    Err(ChildError::NoDescription)
                }
                None => Err(ChildError::Ended(exit_of(&mut prepared.child).await.how)),
            }
        };
        let limit = timeout.duration() + GRACE;
        let late = |_late| Err(ChildError::DescribeTimeout(timeout));
        tokio::time::timeout(limit, described).await.unwrap_or_else(late)
    }

    /// Gives the job to a child and follows it to its end; an error says why its guest never began.
    async fn in_another_child(
        &self,
        order: &Order,
        execution: &Execution,
    ) -> std::result::Result<Outcome, ChildError> {
        let (child, refill) = tokio::select! {
            child = self.nursery.child() => child?,
            over = over(execution) => {
                let end = match over {
                    Over::Late => End::Unlinkable("no process could be had before its deadline".into()),
                    Over::Aborted(reason) => End::Aborted(reason),
                };
                return Ok(execution.outcome(end, self.clock.monotonic()));
            }
        };
        let (carried, network) = carried(execution)?;
        tokio::select! {
            prepared = child.prepared(refill, order, execution.grant(), carried, network) => {
                self.follow(prepared?, execution).await
            }
            over = over(execution) => Ok(execution.outcome(over.into(), self.clock.monotonic())),
        }
    }

    /// Has a child begin and follows it to its end; an error says why its guest never began.
    async fn follow(
        &self,
        prepared: Prepared,
        execution: &Execution,
    ) -> std::result::Result<Outcome, ChildError> {
        let Prepared { mut child, _carried } = prepared;
        let told = tokio::select! {
            told = child.channel.begin() => told,
            over = over(execution) => return Ok(execution.outcome(over.into(), self.clock.monotonic())),
        };
        match told {
            // What the child said before it ended is still to be read.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        let mut began = None;
        let mut ended = None;
        let end = loop {
            // Neither side is preferred: a child that never stops telling has a deadline all the same.
            let message = tokio::select! {
                message = child.channel.receive() => message,
                over = over(execution) => break over.into(),
            };
            match message {
                Ok(Some(FromChild::Began { cpu_ns })) => {
                    // It is said once, before there is a guest; after that there is nothing to believe.
                    began.get_or_insert(Duration::from_nanos(cpu_ns));
                }
                Ok(Some(FromChild::Event(event))) => execution.saw(event),
                Ok(Some(FromChild::Ended(told))) => {
                    let Ended { end, output_bytes, truncated, spent, denied, denied_truncated } = *told;
                    let counts = denied.into_iter().take(Usage::MAX_DENIALS);
                    counts.for_each(|Denial { what, reason, count }| {
                        execution.saw(Event::Denied(what, reason, count));
                    });
                    ended = Some((output_bytes, truncated, spent, denied_truncated));
                    break self.believed(end, execution).await;
                }
                Ok(Some(FromChild::Described(_))) => {
                    break End::Crashed("it described a tool that was to be run".to_owned());
                }
                Ok(Some(FromChild::Failed(reason))) if began.is_none() => {
                    return Err(ChildError::Reported(short(reason)));
                }
                Ok(Some(FromChild::Failed(reason))) => break End::Crashed(short(reason)),
                Ok(None) => {
                    let exit = tokio::select! {
                        exit = exit_of(&mut child) => exit,
                        over = over(execution) => break over.into(),
                    };
                    let Some(began) = began else { return Err(ChildError::Ended(exit.how)) };
                    let mut outcome = execution.outcome(End::Crashed(exit.how), self.clock.monotonic());
                    outcome.metrics.cpu = Duration::from_micros(exit.cpu_us).saturating_sub(began);
                    outcome.metrics.peak_resident_bytes = Some(exit.peak_resident);
                    outcome.usage.spent = None;
                    return Ok(outcome);
                }
                Err(error) => break End::Crashed(error.to_string()),
            }
        };
        // The child lives, so these are the kernel's numbers of it and of no other process.
        let cpu = began.and_then(|began| Some(cpu_of(child.pid)?.saturating_sub(began)));
        let mut outcome = execution.outcome(end, self.clock.monotonic());
        outcome.metrics.cpu = cpu.unwrap_or_default();
        outcome.metrics.peak_resident_bytes = peak_resident_of(child.pid);
        outcome.usage.spent = None;
        if let Some((output_bytes, truncated, spent, denied_truncated)) = ended {
            outcome.metrics.output_bytes = output_bytes.min(execution.output_limit());
            outcome.output.truncated |= truncated;
            outcome.usage.spent = spent.map(|spent| outcome.usage.budgets.believed(spent));
            outcome.usage.denied_truncated |= denied_truncated;
        }
        Ok(outcome)
    }

    /// What a child says of its guest's end, as far as that can be: nobody but this side cancels a run,
    /// and a deadline that is still to come has not passed.
    async fn believed(&self, told: Told, execution: &Execution) -> End {
        // Writing a value down again may lengthen its numbers.
        let most = execution.output_limit().saturating_mul(2).saturating_add(SMALL_BYTES);
        let fits = |bytes: usize| u64::try_from(bytes).is_ok_and(|bytes| bytes <= most);
        match told {
            Told::Returned(text) if fits(text.len()) => {
                if text.len() <= AT_ONCE_BYTES {
                    return returned(&text);
                }
                let checked = tokio::task::spawn_blocking(move || returned(&text)).await;
                checked.unwrap_or_else(|_| End::Crashed("its result could not be read".to_owned()))
            }
            Told::ToolError { code, message, detail }
                if fits(code.len() + message.len() + detail.as_ref().map_or(0, String::len)) =>
            {
                End::ToolError { code, message, detail: detail.as_deref().map(error_detail) }
            }
            Told::Returned(_) | Told::ToolError { .. } => End::LimitReached(Limit::Output),
            Told::Otherwise(End::LimitReached(Limit::Time))
                if self.clock.monotonic() < execution.deadline() =>
            {
                End::Crashed("it ended at a deadline that was still to come".to_owned())
            }
            Told::Otherwise(End::Returned(_) | End::ToolError { .. } | End::Aborted(_)) => {
                End::Crashed("it said what a child does not say".to_owned())
            }
            Told::Otherwise(End::Exited { code, stderr_tail }) => {
                End::Exited { code, stderr_tail: short(stderr_tail) }
            }
            Told::Otherwise(End::Trapped(trap)) => End::Trapped(short(trap)),
            Told::Otherwise(End::Unlinkable(missing)) => End::Unlinkable(short(missing)),
            Told::Otherwise(End::Crashed(how)) => End::Crashed(short(how)),
            Told::Otherwise(end @ (End::ResultNotJson | End::LimitReached(_))) => end,
        }
    }
}

/// What a child is given.
pub(super) struct Order {
    job: Job,
    folders: Vec<OwnedFd>,
}

impl Order {
    /// `true` when a child takes all of it at once, before its run may begin.
    fn is_short(&self) -> bool {
        match &self.job.task {
            Task::Invoke { arguments } => arguments.len() <= MAX_READ_AHEAD_BYTES,
            Task::Describe => true,
        }
    }
}

/// A child that has its job, confines itself for it, and waits for the word to begin.
pub struct Prepared {
    child: Child,
    _carried: Carried,
}

/// Carries the requests of one child. Dropped, it ends them all.
struct Carried(Option<AbortHandle>);

impl Drop for Carried {
    fn drop(&mut self) {
        if let Some(carrying) = &self.0 {
            carrying.abort();
        }
    }
}

/// Begins to carry the requests of a run that has a network, and gives the child's end of the socket.
fn carried(execution: &Execution) -> Result<(Carried, Option<UnixStream>)> {
    let Some(line) = execution.network().line().map(Arc::clone) else { return Ok((Carried(None), None)) };
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let ours = tokio::net::UnixStream::from_std(ours)?;
    let carrying = tokio::spawn(async move {
        if let Err(error) = carry(line, ours).await {
            tracing::warn!(%error, "the network of a run is closed");
        }
    });
    Ok((Carried(Some(carrying.abort_handle())), Some(theirs)))
}

/// Why the server ends a run.
enum Over {
    Aborted(AbortReason),
    /// Its deadline is past, and the grace after it.
    Late,
}

impl From<Over> for End {
    fn from(over: Over) -> Self {
        match over {
            Over::Aborted(reason) => Self::Aborted(reason),
            Over::Late => Self::LimitReached(Limit::Time),
        }
    }
}

/// Waits until the server ends a run: at its cancellation, or shortly after its deadline.
async fn over(execution: &Execution) -> Over {
    tokio::select! {
        reason = execution.abort().wait() => Over::Aborted(reason),
        () = tokio::time::sleep_until((execution.deadline() + GRACE).into()) => Over::Late,
    }
}

/// What the kernel said of a child whose socket is closed.
async fn exit_of(child: &mut Child) -> Exit {
    child.kill();
    match tokio::time::timeout(EXIT_TIMEOUT, &mut child.exit).await {
        Ok(Ok(exit)) => exit,
        Ok(Err(_)) => Exit { how: "its zygote ended with it".to_owned(), cpu_us: 0, peak_resident: 0 },
        Err(_) => Exit { how: "its zygote did not say how".to_owned(), cpu_us: 0, peak_resident: 0 },
    }
}

/// A text of a child, which is for people and may be of any length.
fn short(text: String) -> String {
    if text.len() <= MAX_TEXT_BYTES { text } else { text.chars().take(MAX_TEXT_BYTES / 4).collect() }
}

impl Child {
    /// Gives it its job, with its end of the run's network.
    async fn prepared(
        mut self,
        refill: Refill,
        order: &Order,
        grant: &Grant,
        carried: Carried,
        network: Option<UnixStream>,
    ) -> std::result::Result<Prepared, ChildError> {
        if let Some(group) = &self.group {
            group.limit(grant)?;
        }
        let handles = order.folders.iter().map(AsFd::as_fd).chain(network.as_ref().map(AsFd::as_fd));
        let handles = handles.collect::<Vec<_>>();
        // Output is told as JSON, which takes up to six bytes for one.
        let output = grant.output().value.bytes();
        self.channel.allow(output.saturating_mul(8).saturating_add(REPORT_HEADROOM_BYTES));
        self.channel.send(&order.job, &handles).await?;
        // The next child is made while this one runs.
        drop(refill);
        // Only the child holds its end of the network from here on.
        drop(network);
        Ok(Prepared { child: self, _carried: carried })
    }
}
