//! The server's handle of one zygote and its children.
//!
//! ```text
//! started ── ready ──▶ in use ── retired ──▶ ends with its last child
//!                        └─ refill: forks a child for each one that is taken
//! ```
//! A retired zygote forks no more children. Those that wait end when the last handle is dropped, and the zygote itself
//! ends with its last running child.

use super::PreforkConfig;
use super::cgroup::{Cgroups, Group};
use super::channel::{Channel, Exit, FromZygote, ToZygote, VERSION};
use super::error::ChildError;
use super::tool_images::{KeptChange, ToolImages};
use a2g_runtime::spawn;
use a2g_runtime::timer_now;
use a2g_types::ident::ToolName;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Maximum time for a zygote to load its tools.
const MAX_START_TIME: Duration = Duration::from_secs(60);
/// Maximum time for a zygote to fork a child.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(10);

/// A child, or the reason why it could not be forked.
pub(super) type ChildResult = std::result::Result<Child, ChildError>;

/// The tools that a new zygote tries to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TriedTools {
    /// All of the catalogue.
    All,
    /// Those that it keeps.
    Kept,
}

/// A running zygote. The zygote lives as long as its handle or one of its children.
pub(super) struct ZygoteHandle {
    /// Each message requests one child.
    fork: mpsc::UnboundedSender<()>,
    waiting: Mutex<ReadyChildren>,
    /// The number of children that runs have taken.
    runs: AtomicU64,
    started_at: Instant,
    retired: watch::Sender<bool>,
    /// Completes when the zygote is reaped; `None` if each child has its own zygote.
    control_task: Option<JoinHandle<()>>,
}

struct ReadyChildren {
    /// Children that [`ZygoteHandle::warm_up`] has waited for.
    prewarmed: VecDeque<ChildResult>,
    children: mpsc::UnboundedReceiver<ChildResult>,
}

/// A child process, waiting or running. Dropping it kills the process.
pub(super) struct Child {
    pub(super) channel: Channel,
    pub(super) pid: i32,
    pidfd: OwnedFd,
    pub(super) exit: oneshot::Receiver<Exit>,
    /// Its control group; `None` if no cgroup is delegated to the server.
    pub(super) group: Option<Arc<Group>>,
    /// [`Child::memory_bytes`] before its first run; `None` if it serves one run.
    pub(super) memory_before: Option<u64>,
    /// Becomes `true` when another zygote has replaced its own.
    retired: watch::Receiver<bool>,
    /// Keeps the zygote alive, because the child would be killed at the zygote's end.
    _zygote: mpsc::UnboundedSender<()>,
}

/// Requests another child when it is dropped: once the child just taken has received its job or has failed.
pub(super) struct Refill(Arc<ZygoteHandle>);

impl Drop for Refill {
    fn drop(&mut self) {
        if !*self.0.retired.borrow() {
            let _zygote_may_have_ended = self.0.fork.send(());
        }
    }
}

impl ZygoteHandle {
    /// A handle whose children arrive in `children`, one for each message to `fork`.
    pub(super) fn new(
        fork: mpsc::UnboundedSender<()>,
        children: mpsc::UnboundedReceiver<ChildResult>,
    ) -> Self {
        Self {
            fork,
            waiting: Mutex::new(ReadyChildren { prewarmed: VecDeque::new(), children }),
            runs: AtomicU64::new(0),
            started_at: timer_now(),
            retired: watch::Sender::new(false),
            control_task: None,
        }
    }

    /// Starts a zygote that keeps some of `tools` and forks `children` ahead of time. Returns those of the `tried` tools
    /// that cannot run, with the reasons.
    pub(super) async fn start(
        tools: &Arc<ToolImages>,
        tried: TriedTools,
        settings: &PreforkConfig,
        children: usize,
        cgroups: Option<Arc<Cgroups>>,
    ) -> Result<(Self, Vec<(ToolName, String)>)> {
        let (ours, theirs) = UnixStream::pair()?;
        // The running program itself, even if its file has been replaced since.
        let mut zygote = Command::new("/proc/self/exe")
            .arg("zygote")
            .args(settings.features.options())
            .args(settings.run_as.changes_users().then_some("--changes-users"))
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(stderr) = zygote.stderr.take() {
            spawn::spawn_run_task(log_stderr(Receiver::from_owned_fd(stderr.into())?));
        }
        let mut control = Channel::to_zygote(ours)?;
        let loading = send_tools(&mut control, tools, tried, settings);
        let ready = async { tokio::time::timeout(MAX_START_TIME, loading).await? };
        let LoadedTools { kept, unusable } = match ready.await {
            Ok(loaded) => loaded,
            Err(error) => {
                let _may_have_ended = zygote.kill();
                zygote.wait()?;
                return Err(error);
            }
        };
        let (fork, fork_requests) = mpsc::unbounded_channel();
        let (results, ready) = mpsc::unbounded_channel();
        for _ in 0..children {
            let _receiver_is_open = fork.send(());
        }
        let handle = Self::new(fork, ready);
        let controller = ZygoteController {
            unanswered_since: None,
            control,
            fork_requests,
            fork: handle.fork.downgrade(),
            retired: handle.retired.subscribe(),
            results,
            pending: HashMap::new(),
            children: HashMap::new(),
            cgroups,
            tools: Arc::clone(tools),
            kept,
        };
        let control_task = spawn::spawn_run_task(async move {
            if let Err(error) = controller.run().await {
                tracing::error!(%error, "the zygote has failed and is killed");
            }
            // The zygote has no children left, or does not answer.
            let _may_have_ended = zygote.kill();
            let _reaped = tokio::task::spawn_blocking(move || zygote.wait()).await;
        });
        Ok((Self { control_task: Some(control_task), ..handle }, unusable))
    }

    /// Waits until `children` children are ready.
    pub(super) async fn warm_up(&self, children: usize) -> Result<()> {
        let mut waiting = self.waiting.lock().await;
        let fill = async {
            while waiting.prewarmed.len() < children {
                let child = waiting.children.recv().await.ok_or_else(zygote_ended_error)?;
                waiting.prewarmed.push_back(child);
            }
            Ok(())
        };
        tokio::time::timeout(MAX_START_TIME, fill).await?
    }

    /// Takes a child that is ready now, if there is one.
    pub(super) fn try_take_child(&self) -> Option<ChildResult> {
        let mut waiting = self.waiting.try_lock().ok()?;
        waiting.prewarmed.pop_front().or_else(|| waiting.children.try_recv().ok())
    }

    /// Waits for the next child and takes it; `None` when the zygote has ended. Cancelling the wait loses no child.
    pub(super) async fn take_child(&self) -> Option<ChildResult> {
        let mut waiting = self.waiting.lock().await;
        match waiting.prewarmed.pop_front() {
            Some(child) => Some(child),
            None => waiting.children.recv().await,
        }
    }

    /// Counts a run that takes a child. Returns the guard that requests the next child when it is dropped.
    pub(super) fn count_run(self: Arc<Self>) -> Refill {
        self.runs.fetch_add(1, Ordering::Relaxed);
        Refill(self)
    }

    /// Requests another child in place of one that no run takes.
    pub(super) fn request_child(self: &Arc<Self>) {
        drop(Refill(Arc::clone(self)));
    }

    pub(super) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    pub(super) fn started_at(&self) -> Instant {
        self.started_at
    }

    /// Returns `true` until the zygote's control task has ended.
    pub(super) fn is_alive(&self) -> bool {
        !self.fork.is_closed()
    }

    /// Stops forking children: another zygote has replaced this one.
    pub(super) fn retire(&self) {
        self.retired.send_replace(true);
    }

    /// Ends the zygote and waits until it is reaped.
    pub(super) async fn close(self) {
        let Self { fork, waiting, control_task, .. } = self;
        drop((fork, waiting));
        if let Some(control_task) = control_task {
            let _may_have_panicked = control_task.await;
        }
    }

    /// Waits for [`Self::retire`].
    pub(super) async fn wait_retired(&self) {
        let mut retired = self.retired.subscribe();
        drop(retired.wait_for(|retired| *retired).await);
    }
}

/// The tools that a new zygote has loaded.
struct LoadedTools {
    /// The names of those that it keeps.
    kept: BTreeSet<ToolName>,
    /// Those that cannot run, with the reasons.
    unusable: Vec<(ToolName, String)>,
}

/// Sends a new zygote its tools, and waits until it has loaded them.
async fn send_tools(
    control: &mut Channel,
    tools: &ToolImages,
    tried: TriedTools,
    settings: &PreforkConfig,
) -> Result<LoadedTools> {
    control.send(&ToZygote::Hello { version: VERSION }, &[]).await?;
    let kept = tools.kept();
    let mut sent = Vec::new();
    for image in tools.all() {
        let message = match tried {
            TriedTools::All | TriedTools::Kept if kept.contains(&image.name) => image.load_message(),
            TriedTools::All => image.check_message(),
            TriedTools::Kept => continue,
        };
        control.send(&message, &image.files()).await?;
        sent.push(image.name.clone());
    }
    let PreforkConfig { largest_file, handles, .. } = *settings;
    control.send(&ToZygote::Start { largest_file, handles }, &[]).await?;
    match control.receive().await? {
        Some(FromZygote::Ready { unusable: reasons }) => {
            let results = sent.into_iter().zip(reasons);
            let unusable = results.filter_map(|(tool, reason)| Some((tool, reason?)));
            Ok(LoadedTools { kept, unusable: unusable.collect() })
        }
        Some(_) | None => Err(Error::new(ErrorKind::UnexpectedEof, "the zygote did not start")),
    }
}

fn zygote_ended_error() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "the zygote ended")
}

/// Copies a zygote's standard error to this process's log.
async fn log_stderr(stderr: Receiver) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        tracing::warn!(line, "message from the zygote");
    }
}

/// The only reader and writer of a zygote's socket.
struct ZygoteController {
    control: Channel,
    fork_requests: mpsc::UnboundedReceiver<()>,
    fork: mpsc::WeakUnboundedSender<()>,
    retired: watch::Receiver<bool>,
    results: mpsc::UnboundedSender<ChildResult>,
    /// The server's ends of the sockets of children that are being forked.
    pending: HashMap<u64, UnixStream>,
    /// The start of the current wait for the zygote's answer; `None` if every request is answered.
    unanswered_since: Option<Instant>,
    children: HashMap<u64, ChildEntry>,
    cgroups: Option<Arc<Cgroups>>,
    tools: Arc<ToolImages>,
    /// The tools that the zygote was told to keep.
    kept: BTreeSet<ToolName>,
}

/// The state of a child until it is reaped.
struct ChildEntry {
    exit: oneshot::Sender<Exit>,
    _group: Option<Arc<Group>>,
}

impl ZygoteController {
    /// Runs until the zygote ends, or until every handle and every child has been dropped.
    async fn run(mut self) -> Result<()> {
        let mut next_child = 0;
        loop {
            let answer_due = self.unanswered_since.map(|since| since + MAX_ANSWER_TIME);
            tokio::select! {
                request = self.fork_requests.recv() => {
                    if request.is_none() {
                        return Ok(());
                    }
                    next_child += 1;
                    // The failure of one child must not end the others.
                    match UnixStream::pair() {
                        Ok((ours, theirs)) => {
                            self.pending.insert(next_child, ours);
                            self.unanswered_since.get_or_insert_with(timer_now);
                            tokio::time::timeout(MAX_ANSWER_TIME, self.request_child(next_child, theirs)).await??;
                        }
                        Err(error) => drop(self.results.send(Err(error.into()))),
                    }
                }
                message = self.control.receive() => match message? {
                    Some(message) => {
                        self.handle_message(message).await?;
                        self.unanswered_since = (!self.pending.is_empty()).then(timer_now);
                    }
                    None => return Ok(()),
                },
                () = tokio::time::sleep_until(answer_due.unwrap_or_else(timer_now)), if answer_due.is_some() => {
                    return Err(Error::new(ErrorKind::TimedOut, "the zygote did not answer in time"));
                }
            }
        }
    }

    /// Requests a child that has the tools that are kept now.
    async fn request_child(&mut self, child: u64, socket: UnixStream) -> Result<()> {
        let KeptChange { removed, added } = self.tools.change_from(&self.kept);
        for tool in removed {
            self.control.send(&ToZygote::Unload { tool: tool.to_string() }, &[]).await?;
            self.kept.remove(&tool);
        }
        for image in added {
            self.control.send(&image.load_message(), &image.files()).await?;
            self.kept.insert(image.name.clone());
        }
        self.control.send(&ToZygote::Fork { child }, &[socket.as_fd()]).await
    }

    /// Moves a new child into a control group. Returns `None` if no cgroup is delegated to the server.
    async fn enter_group(&self, pid: i32) -> Result<Option<Arc<Group>>> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(None) };
        // The kernel may take milliseconds to create a group. On this thread that would block a worker at every run,
        // and tokio would move other tasks to additional threads, each with its own malloc arena.
        let group = tokio::task::spawn_blocking(move || {
            let group = cgroups.group()?;
            group.enter(pid)?;
            Ok(Some(Arc::new(group)))
        });
        group.await.unwrap_or_else(|error| Err(Error::other(error)))
    }

    async fn handle_message(&mut self, message: FromZygote) -> Result<()> {
        let unexpected = || Error::new(ErrorKind::InvalidData, "the zygote sent an unexpected message");
        match message {
            FromZygote::Forked { child, pid } => {
                let socket = self.pending.remove(&child).ok_or_else(unexpected)?;
                let (exit_tx, exit) = oneshot::channel();
                let pidfd = self.control.take_handle();
                let (group, group_error) = match self.enter_group(pid).await {
                    Ok(group) => (group, None),
                    Err(error) => (None, Some(error)),
                };
                self.children.insert(child, ChildEntry { exit: exit_tx, _group: group.clone() });
                let Some(zygote) = self.fork.upgrade() else { return Ok(()) };
                // A missing descriptor or a failed registration means that this process has reached a
                // limit. The child ends when its socket is closed.
                let child = match (pidfd, Channel::to_child(socket), group_error) {
                    (Some(pidfd), Ok(channel), None) => Ok(Child {
                        channel,
                        pid,
                        pidfd,
                        exit,
                        group,
                        memory_before: None,
                        retired: self.retired.clone(),
                        _zygote: zygote,
                    }),
                    (None, _, _) => Err(ChildError::NoDescriptor),
                    (_, Err(error), _) => Err(error.into()),
                    (_, _, Some(error)) => Err(error.into()),
                };
                let _nobody_waits = self.results.send(child);
            }
            FromZygote::Refused { child, reason } => {
                self.pending.remove(&child).ok_or_else(unexpected)?;
                let _nobody_waits = self.results.send(Err(ChildError::Reported(reason)));
            }
            FromZygote::Exited { child, exit } => {
                let entry = self.children.remove(&child).ok_or_else(unexpected)?;
                let _nobody_waits = entry.exit.send(exit);
            }
            FromZygote::Ready { .. } => return Err(unexpected()),
        }
        Ok(())
    }
}

impl Child {
    pub(super) fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|count| count == 0)
    }

    /// `true` if another zygote has replaced the child's, whose address layout it has.
    pub(super) fn is_retired(&self) -> bool {
        *self.retired.borrow()
    }

    pub(super) fn kill(&self) {
        // The pidfd refers only to this process, even after it has ended and its number was reused.
        let _may_have_ended = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
