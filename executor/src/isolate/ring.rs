//! The process ring, from the server's side: every run in a process of its own.
//!
//! ```text
//! server ── control socket ──▶ zygote ── fork ──▶ child, child, … (a few wait ahead of time)
//!    └───────────── one socket pair each ────────────┘
//! ```
//! The server holds the deadline. It keeps its own books of what a child tells while it runs, takes
//! CPU time and memory from the kernel, and ends every child with SIGKILL, however the guest ended.

use super::cgroup::{Cgroups, Group};
use super::channel::{Channel, Ended, Exit, FromChild, FromZygote, Job, Task, ToZygote, Told};
use super::network::carry;
use super::process::{cpu_of, peak_resident_of};
use super::{Ahead, GRACE, Module};
use crate::capability::{Grant, Handover, Permit};
use crate::clock::Clock;
use crate::ident::ToolName;
use crate::limit::Limit;
use crate::outcome::{AbortReason, Denial, End, Outcome, Usage};
use crate::sandbox::{Code, Event, Execution, error_detail, returned};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle};

/// How often a run that has not begun is given to another child, beside those that waited.
const MOST_TRIES: usize = 3;
/// How long the kernel may take to take a killed process down.
const LONGEST_EXIT: Duration = Duration::from_secs(5);
/// How long a zygote may take to load its tools.
const LONGEST_START: Duration = Duration::from_secs(60);
/// How long a zygote may take to make a child.
const LONGEST_ANSWER: Duration = Duration::from_secs(10);
/// How long to wait before a child is asked for that could not be made.
const BEFORE_ANOTHER: Duration = Duration::from_millis(50);
/// The longest text of a child that is kept, in bytes.
const LONGEST_TEXT: usize = 8 << 10;
/// Arguments up to this many bytes are sent to a child before its run may begin: the socket takes them at once.
const MOST_AHEAD_BYTES: usize = 64 << 10;
/// A result up to this many bytes is read where it arrives; a longer one would keep others waiting.
const AT_ONCE_BYTES: usize = 256 << 10;
/// What a written value may be longer than it was beside twice its length.
const SMALL_BYTES: u64 = 64 << 10;
/// What a child may say beside its output: counts, denials, the frame around it all.
const BESIDE_OUTPUT_BYTES: u64 = 16 << 20;

/// The process ring.
pub(super) struct Ring {
    nursery: Arc<Nursery>,
    clock: Arc<dyn Clock>,
}

/// Where zygotes come from.
struct Nursery {
    tools: Vec<Loaded>,
    settings: Ahead,
    cgroups: Option<Arc<Cgroups>>,
    current: Mutex<Option<Arc<Generation>>>,
}

/// A tool that every zygote is given.
struct Loaded {
    message: ToZygote,
    files: Vec<File>,
}

/// One zygote with its children. It ends when nobody holds it and its last child is gone.
struct Generation {
    fork: mpsc::UnboundedSender<()>,
    ready: Mutex<mpsc::UnboundedReceiver<std::result::Result<Child, String>>>,
    /// Ends when the zygote is reaped.
    ended: JoinHandle<()>,
}

/// A child that waits for its job or runs.
struct Child {
    channel: Channel,
    pid: i32,
    pidfd: OwnedFd,
    exit: oneshot::Receiver<Exit>,
    /// What the kernel limits of it, where control groups are delegated.
    group: Option<Arc<Group>>,
    /// Keeps the zygote, and with it the child, alive.
    _zygote: mpsc::UnboundedSender<()>,
}

impl Ring {
    /// Starts a zygote with `tools`, and gives the reason for each tool that it cannot run.
    pub(super) async fn start(
        tools: &[Module<'_>],
        settings: Ahead,
        cgroups: Option<Arc<Cgroups>>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Vec<(ToolName, String)>)> {
        let loaded = tools.iter().map(|tool| {
            let Code { module, component, componentised, contract } = tool.code;
            let message = ToZygote::load(tool.name, component, contract);
            let files = std::iter::once(module).chain(componentised).map(File::try_clone);
            Ok(Loaded { message, files: files.collect::<Result<_>>()? })
        });
        let tools_loaded = loaded.collect::<Result<_>>()?;
        let nursery = Nursery { tools: tools_loaded, settings, cgroups, current: Mutex::default() };
        let (generation, unusable) = nursery.generation().await?;
        *nursery.current.lock().await = Some(Arc::new(generation));
        let unusable = tools.iter().zip(unusable);
        let unusable = unusable.filter_map(|(tool, reason)| Some((tool.name.clone(), reason?))).collect();
        Ok((Self { nursery: Arc::new(nursery), clock }, unusable))
    }

    /// Ends the zygote and waits until it is reaped. Nothing runs any more.
    pub(super) async fn close(self) {
        let current = self.nursery.current.lock().await.take();
        let Some(Generation { fork, ready, ended }) = current.and_then(Arc::into_inner) else { return };
        drop((fork, ready));
        let _it_is_gone_either_way = ended.await;
    }

    /// Has a child that waits make itself ready for a run that may not begin yet. `None` when none waits, or when
    /// what it needs is there only when it runs: then [`Self::run`] finds one.
    pub(super) async fn prepare(&self, order: &Order, grant: &Grant) -> Option<Prepared> {
        if grant.network().value || !order.is_short() {
            return None;
        }
        let generation = self.nursery.living()?;
        let made = generation.ready.try_lock().ok()?.try_recv().ok()?;
        let refill = Refill(generation);
        let prepared = match made {
            Ok(child) if child.lives() => child.prepared(refill, order, grant, Carried(None), None).await,
            Ok(_killed_while_it_waited) => return None,
            Err(reason) => Err(reason),
        };
        prepared.inspect_err(|reason| tracing::warn!(reason, "a child could not be prepared")).ok()
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
        for _ in 0..self.nursery.settings.waiting.saturating_add(MOST_TRIES) {
            let ran = match prepared.take() {
                Some(prepared) => self.follow(prepared, execution).await,
                None => self.in_another_child(&order, execution).await,
            };
            match ran {
                Ok(outcome) => return outcome,
                Err(reason) => last = reason,
            }
            tracing::warn!(tool = order.job.tool, reason = last, "a child ended before its guest began");
        }
        execution.outcome(End::Crashed(last), self.clock.monotonic())
    }

    /// Calls `describe` of a typed tool: its name, version, description and argument schema.
    ///
    /// # Errors
    /// Why it gave none, in words.
    pub(super) async fn describe(
        &self,
        tool: &ToolName,
        permit: Permit,
    ) -> std::result::Result<[String; 4], String> {
        let (grant, timeout) = (permit.grant().clone(), permit.grant().timeout().value);
        let order = Order::new(tool, permit, Task::Describe);
        let described = async {
            let (child, refill) = self.child().await?;
            let mut prepared = child.prepared(refill, &order, &grant, Carried(None), None).await?;
            let channel = &mut prepared.child.channel;
            channel.begin().await.map_err(|error| error.to_string())?;
            match channel.receive().await.map_err(|error| error.to_string())? {
                Some(FromChild::Described(described)) => described.map_err(short),
                Some(FromChild::Failed(reason)) => Err(short(reason)),
                Some(FromChild::Began { .. } | FromChild::Event(_) | FromChild::Ended(_)) => {
                    Err("its process said what a description does not say".to_owned())
                }
                None => Err(exit_of(&mut prepared.child).await.how),
            }
        };
        let limit = timeout.duration() + GRACE;
        let late = |_late| Err(format!("`describe` did not answer within {timeout}"));
        tokio::time::timeout(limit, described).await.unwrap_or_else(late)
    }

    /// Gives the job to a child and follows it to its end; an error says why its guest never began.
    async fn in_another_child(
        &self,
        order: &Order,
        execution: &Execution,
    ) -> std::result::Result<Outcome, String> {
        let (child, refill) = tokio::select! {
            child = self.child() => child?,
            over = over(execution) => {
                let end = match over {
                    Over::Late => End::Unlinkable("no process could be had before its deadline".into()),
                    Over::Aborted(reason) => End::Aborted(reason),
                };
                return Ok(execution.outcome(end, self.clock.monotonic()));
            }
        };
        let (carried, network) = carried(execution).map_err(|error| error.to_string())?;
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
    ) -> std::result::Result<Outcome, String> {
        let Prepared { mut child, _carried } = prepared;
        let told = tokio::select! {
            told = child.channel.begin() => told,
            over = over(execution) => return Ok(execution.outcome(over.into(), self.clock.monotonic())),
        };
        match told {
            // What the child said before it ended is still to be read.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.to_string()),
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
                    let counts = denied.into_iter().take(Usage::MOST_DENIALS);
                    counts.for_each(|Denial { what, reason, count }| {
                        execution.saw(Event::Denied(what, reason, count));
                    });
                    ended = Some((output_bytes, truncated, spent, denied_truncated));
                    break self.believed(end, execution).await;
                }
                Ok(Some(FromChild::Described(_))) => {
                    break End::Crashed("it described a tool that was to be run".to_owned());
                }
                Ok(Some(FromChild::Failed(reason))) if began.is_none() => return Err(short(reason)),
                Ok(Some(FromChild::Failed(reason))) => break End::Crashed(short(reason)),
                Ok(None) => {
                    let exit = tokio::select! {
                        exit = exit_of(&mut child) => exit,
                        over = over(execution) => break over.into(),
                    };
                    let Some(began) = began else { return Err(exit.how) };
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

    /// A child that waits, or a new one when none does.
    async fn child(&self) -> std::result::Result<(Child, Refill), String> {
        let generation = match self.nursery.living() {
            Some(generation) => generation,
            // In a task of its own: a run that is cancelled meanwhile leaves no zygote behind.
            None => {
                let started = tokio::spawn(Arc::clone(&self.nursery).renewed()).await;
                started.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?
            }
        };
        loop {
            let made = generation.ready.lock().await.recv().await;
            match made.ok_or("its zygote ended")? {
                Ok(child) if child.lives() => return Ok((child, Refill(generation))),
                Ok(_killed_while_it_waited) => drop(Refill(Arc::clone(&generation))),
                Err(reason) => {
                    // Another is asked for, so that there are as many as before when there is room again.
                    drop(Refill(Arc::clone(&generation)));
                    tracing::warn!(reason, "a child could not be made");
                    tokio::time::sleep(BEFORE_ANOTHER).await;
                }
            }
        }
    }
}

/// What a child is given.
pub(super) struct Order {
    job: Job,
    folders: Vec<OwnedFd>,
}

impl Order {
    pub(super) fn new(tool: &ToolName, permit: Permit, task: Task) -> Self {
        let (permit, folders) = Handover::of(permit);
        Self { job: Job { tool: tool.to_string(), task, permit, network: false }, folders }
    }

    /// Whether a child takes all of it at once, before its run may begin.
    fn is_short(&self) -> bool {
        match &self.job.task {
            Task::Invoke { arguments } => arguments.len() <= MOST_AHEAD_BYTES,
            Task::Describe => true,
        }
    }
}

/// A child that has its job, confines itself for it, and waits for the word to begin.
pub struct Prepared {
    child: Child,
    _carried: Carried,
}

/// Dropped, it asks the zygote for another child: when the one before has its job, or never will.
struct Refill(Arc<Generation>);

impl Drop for Refill {
    fn drop(&mut self) {
        let _zygote_is_gone = self.0.fork.send(());
    }
}

/// What the zygote says goes into the log of the process that answers for it.
async fn relay(said: Receiver) {
    let mut lines = BufReader::new(said).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        tracing::warn!(line, "the zygote says");
    }
}

impl Nursery {
    /// The zygote, when it lives and nobody is about to replace it.
    fn living(&self) -> Option<Arc<Generation>> {
        let current = self.current.try_lock().ok()?;
        current.as_ref().filter(|living| !living.fork.is_closed()).map(Arc::clone)
    }

    /// The zygote, or another when it is gone.
    async fn renewed(self: Arc<Self>) -> Result<Arc<Generation>> {
        let mut current = self.current.lock().await;
        match &*current {
            Some(living) if !living.fork.is_closed() => Ok(Arc::clone(living)),
            Some(_) | None => {
                tracing::warn!("the zygote is gone, and another is started");
                let (started, _) = self.generation().await?;
                Ok(Arc::clone(current.insert(Arc::new(started))))
            }
        }
    }

    /// Starts a zygote.
    async fn generation(&self) -> Result<(Generation, Vec<Option<String>>)> {
        let (ours, theirs) = UnixStream::pair()?;
        // The program that runs, even when its file was replaced meanwhile.
        let mut zygote = Command::new("/proc/self/exe")
            .arg("zygote")
            .args(self.settings.meters_fuel.then_some("--fuel"))
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(said) = zygote.stderr.take() {
            tokio::spawn(relay(Receiver::from_owned_fd(said.into())?));
        }
        let mut control = Channel::to_zygote(ours)?;
        let ready = async {
            for Loaded { message, files } in &self.tools {
                let files = files.iter().map(File::as_fd).collect::<Vec<_>>();
                control.send(message, &files).await?;
            }
            let Ahead { waiting: _, largest_file, handles, meters_fuel: _ } = self.settings;
            control.send(&ToZygote::Start { largest_file, handles }, &[]).await?;
            match control.receive().await? {
                Some(FromZygote::Ready { unusable }) => Ok(unusable),
                Some(_) | None => Err(Error::new(ErrorKind::UnexpectedEof, "the zygote did not start")),
            }
        };
        let ready = async { tokio::time::timeout(LONGEST_START, ready).await? };
        let unusable = match ready.await {
            Ok(unusable) => unusable,
            Err(error) => {
                let _already_gone = zygote.kill();
                zygote.wait()?;
                return Err(error);
            }
        };
        let (fork, wanted) = mpsc::unbounded_channel();
        let (made, ready) = mpsc::unbounded_channel();
        for _ in 0..self.settings.waiting.max(1) {
            let _just_made = fork.send(());
        }
        let keeper = Keeper {
            waits_since: None,
            control,
            wanted,
            fork: fork.downgrade(),
            made,
            asked: HashMap::new(),
            living: HashMap::new(),
            cgroups: self.cgroups.clone(),
        };
        let ended = tokio::spawn(async move {
            if let Err(error) = keeper.keep().await {
                tracing::error!(%error, "the zygote is given up");
            }
            // It has no children any more, or does not answer.
            let _already_gone = zygote.kill();
            let _reaped = tokio::task::spawn_blocking(move || zygote.wait()).await;
        });
        Ok((Generation { fork, ready: Mutex::new(ready), ended }, unusable))
    }
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

/// The one reader and writer of a zygote's socket.
struct Keeper {
    control: Channel,
    wanted: mpsc::UnboundedReceiver<()>,
    fork: mpsc::WeakUnboundedSender<()>,
    made: mpsc::UnboundedSender<std::result::Result<Child, String>>,
    /// Our ends of the sockets of children that are being made.
    asked: HashMap<u64, UnixStream>,
    /// Since when the zygote owes an answer.
    waits_since: Option<tokio::time::Instant>,
    living: HashMap<u64, Living>,
    cgroups: Option<Arc<Cgroups>>,
}

/// What is kept of a child until the kernel is done with it.
struct Living {
    exit: oneshot::Sender<Exit>,
    _group: Option<Arc<Group>>,
}

impl Keeper {
    /// Keeps the zygote until it ends, or until nobody wants children and the last one is gone.
    async fn keep(mut self) -> Result<()> {
        let mut next = 0;
        loop {
            let patience = self.waits_since.map(|since| since + LONGEST_ANSWER);
            tokio::select! {
                wanted = self.wanted.recv() => {
                    if wanted.is_none() {
                        return Ok(());
                    }
                    next += 1;
                    // What fails for one child must not end the others.
                    match UnixStream::pair() {
                        Ok((ours, theirs)) => {
                            self.asked.insert(next, ours);
                            self.waits_since.get_or_insert_with(tokio::time::Instant::now);
                            let fork = ToZygote::Fork { child: next };
                            tokio::time::timeout(LONGEST_ANSWER, self.control.send(&fork, &[theirs.as_fd()])).await??;
                        }
                        Err(error) => drop(self.made.send(Err(error.to_string()))),
                    }
                }
                message = self.control.receive() => match message? {
                    Some(message) => {
                        self.heard(message).await?;
                        self.waits_since = (!self.asked.is_empty()).then(tokio::time::Instant::now);
                    }
                    None => return Ok(()),
                },
                () = tokio::time::sleep_until(patience.unwrap_or_else(tokio::time::Instant::now)), if patience.is_some() => {
                    return Err(Error::new(ErrorKind::TimedOut, "the zygote does not answer"));
                }
            }
        }
    }

    /// A control group with a new child in it, where there are any.
    async fn group_of(&self, pid: i32) -> Result<Option<Arc<Group>>> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(None) };
        let entered = tokio::task::spawn_blocking(move || {
            let group = cgroups.group()?;
            group.enter(pid)?;
            Ok(Some(Arc::new(group)))
        });
        // It may take the kernel milliseconds.
        entered.await.unwrap_or_else(|panicked| Err(Error::other(panicked)))
    }

    async fn heard(&mut self, message: FromZygote) -> Result<()> {
        let unexpected = || Error::new(ErrorKind::InvalidData, "the zygote said what was not expected of it");
        match message {
            FromZygote::Forked { child, pid } => {
                let socket = self.asked.remove(&child).ok_or_else(unexpected)?;
                let (gone, exit) = oneshot::channel();
                let pidfd = self.control.handle();
                let (group, ungrouped) = match self.group_of(pid).await {
                    Ok(group) => (group, None),
                    Err(error) => (None, Some(error.to_string())),
                };
                self.living.insert(child, Living { exit: gone, _group: group.clone() });
                let Some(zygote) = self.fork.upgrade() else { return Ok(()) };
                // A descriptor that did not arrive, or a socket that cannot be watched, is for want of
                // room here; the child ends when its socket closes.
                let made = match (pidfd, Channel::to_child(socket), ungrouped) {
                    (Some(pidfd), Ok(channel), None) => {
                        Ok(Child { channel, pid, pidfd, exit, group, _zygote: zygote })
                    }
                    (None, _, _) => Err("the server has no room for a descriptor".to_owned()),
                    (_, Err(error), _) => Err(error.to_string()),
                    (_, _, Some(ungrouped)) => Err(ungrouped),
                };
                let _nobody_waits = self.made.send(made);
            }
            FromZygote::Refused { child, reason } => {
                self.asked.remove(&child).ok_or_else(unexpected)?;
                let _nobody_waits = self.made.send(Err(reason));
            }
            FromZygote::Exited { child, exit } => {
                let gone = self.living.remove(&child).ok_or_else(unexpected)?;
                let _nobody_asks = gone.exit.send(exit);
            }
            FromZygote::Ready { .. } => return Err(unexpected()),
        }
        Ok(())
    }
}

/// What the kernel said of a child whose socket is closed.
async fn exit_of(child: &mut Child) -> Exit {
    child.kill();
    match tokio::time::timeout(LONGEST_EXIT, &mut child.exit).await {
        Ok(Ok(exit)) => exit,
        Ok(Err(_)) => Exit { how: "its zygote ended with it".to_owned(), cpu_us: 0, peak_resident: 0 },
        Err(_) => Exit { how: "its zygote did not say how".to_owned(), cpu_us: 0, peak_resident: 0 },
    }
}

/// A text of a child, which is for people and may be of any length.
fn short(text: String) -> String {
    if text.len() <= LONGEST_TEXT { text } else { text.chars().take(LONGEST_TEXT / 4).collect() }
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
    ) -> std::result::Result<Prepared, String> {
        if let Some(group) = &self.group {
            group.limit(grant).map_err(|error| error.to_string())?;
        }
        let handles = order.folders.iter().map(AsFd::as_fd).chain(network.as_ref().map(AsFd::as_fd));
        let handles = handles.collect::<Vec<_>>();
        // Output is told as JSON, which takes up to six bytes for one.
        let output = grant.output().value.bytes();
        self.channel.allow(output.saturating_mul(8).saturating_add(BESIDE_OUTPUT_BYTES));
        self.channel.send(&order.job, &handles).await.map_err(|error| error.to_string())?;
        // The next child is made while this one runs.
        drop(refill);
        // Only the child holds its end of the network from here on.
        drop(network);
        Ok(Prepared { child: self, _carried: carried })
    }

    /// Whether it was not killed while it waited.
    fn lives(&self) -> bool {
        let mut gone = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut gone, Some(&now)).is_ok_and(|ended| ended == 0)
    }

    fn kill(&self) {
        // The descriptor names this process and no other, also when it is gone already.
        let _already_gone = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
