//! The server's handle of one zygote and its children.
//!
//! ```text
//! started ── ready ──▶ in use ── retired ──▶ ends with its last child
//!                        └─ refill: forks a child for each that was taken
//! ```
//! A retired zygote forks no more. Its waiting children end when the last handle is dropped, and the zygote itself ends
//! with its last running child.

use super::PreforkConfig;
use super::cgroup::{Cgroups, Group};
use super::channel::{Channel, Exit, FromZygote, ToZygote, VERSION};
use super::error::ChildError;
use a2g_runtime::spawn;
use a2g_runtime::timer_now;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
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

/// The longest time in which a zygote may load its tools.
const MAX_START_TIME: Duration = Duration::from_secs(60);
/// The longest time in which a zygote may make a child.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(10);

/// A child, or the reason why it could not be forked.
pub(super) type ChildResult = std::result::Result<Child, ChildError>;

/// A tool in the form in which every zygote receives it.
pub(super) struct ToolImage {
    pub(super) message: ToZygote,
    pub(super) files: Vec<File>,
}

pub(super) struct ZygoteHandle {
    fork: mpsc::UnboundedSender<()>,
    waiting: Mutex<ReadyChildren>,
    /// The number of children that were taken for a run.
    runs: AtomicU64,
    started_at: Instant,
    retired: watch::Sender<bool>,
    /// Completes when the zygote is reaped; `None` if each child has a zygote of its own.
    ended: Option<JoinHandle<()>>,
}

struct ReadyChildren {
    /// Children that were forked by [`ZygoteHandle::warm_up`].
    first: VecDeque<ChildResult>,
    made: mpsc::UnboundedReceiver<ChildResult>,
}

/// A child process, waiting or running. Dropping it kills the process.
pub(super) struct Child {
    pub(super) channel: Channel,
    pub(super) pid: i32,
    pidfd: OwnedFd,
    pub(super) exit: oneshot::Receiver<Exit>,
    /// Its control group, where these are delegated.
    pub(super) group: Option<Arc<Group>>,
    /// Keeps the zygote alive, and with it the child, which would receive its death signal.
    _zygote: mpsc::UnboundedSender<()>,
}

/// Requests another child when it is dropped: after the previous one has received its job, or failed to.
pub(super) struct Refill(Arc<ZygoteHandle>);

impl Drop for Refill {
    fn drop(&mut self) {
        if !*self.0.retired.borrow() {
            let _zygote_is_gone = self.0.fork.send(());
        }
    }
}

impl ZygoteHandle {
    /// A handle whose children arrive in `made`, one for each message to `fork`.
    pub(super) fn new(fork: mpsc::UnboundedSender<()>, made: mpsc::UnboundedReceiver<ChildResult>) -> Self {
        Self {
            fork,
            waiting: Mutex::new(ReadyChildren { first: VecDeque::new(), made }),
            runs: AtomicU64::new(0),
            started_at: timer_now(),
            retired: watch::Sender::new(false),
            ended: None,
        }
    }

    /// Starts a zygote with `tools` that forks `children` ahead of time. Returns for each tool the reason that it
    /// cannot run, or `None`.
    pub(super) async fn start(
        tools: &[ToolImage],
        settings: &PreforkConfig,
        children: usize,
        cgroups: Option<Arc<Cgroups>>,
    ) -> Result<(Self, Vec<Option<String>>)> {
        let (ours, theirs) = UnixStream::pair()?;
        // The running program itself, even if its file was replaced since.
        let mut zygote = Command::new("/proc/self/exe")
            .arg("zygote")
            .args(settings.meters_fuel.then_some("--fuel"))
            .args(settings.run_as.changes_users().then_some("--changes-users"))
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(said) = zygote.stderr.take() {
            spawn::spawn_run_task(relay(Receiver::from_owned_fd(said.into())?));
        }
        let mut control = Channel::to_zygote(ours)?;
        let ready =
            async { tokio::time::timeout(MAX_START_TIME, send_tools(&mut control, tools, settings)).await? };
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
        for _ in 0..children {
            let _just_made = fork.send(());
        }
        let controller = ZygoteController {
            waits_since: None,
            control,
            wanted,
            fork: fork.downgrade(),
            made,
            pending: HashMap::new(),
            children: HashMap::new(),
            cgroups,
        };
        let ended = spawn::spawn_run_task(async move {
            if let Err(error) = controller.run().await {
                tracing::error!(%error, "the zygote has failed and is killed");
            }
            // The zygote has no children left, or does not answer.
            let _already_gone = zygote.kill();
            let _reaped = tokio::task::spawn_blocking(move || zygote.wait()).await;
        });
        Ok((Self { ended: Some(ended), ..Self::new(fork, ready) }, unusable))
    }

    /// Waits until `children` children are ready.
    pub(super) async fn warm_up(&self, children: usize) -> Result<()> {
        let mut waiting = self.waiting.lock().await;
        let all_made = async {
            while waiting.first.len() < children {
                let made = waiting.made.recv().await.ok_or_else(zygote_ended_error)?;
                waiting.first.push_back(made);
            }
            Ok(())
        };
        tokio::time::timeout(MAX_START_TIME, all_made).await?
    }

    /// A child that is ready now, if any.
    pub(super) fn try_next(&self) -> Option<ChildResult> {
        let mut waiting = self.waiting.try_lock().ok()?;
        waiting.first.pop_front().or_else(|| waiting.made.try_recv().ok())
    }

    /// The next child; `None` when the zygote has ended. Cancelling the wait loses no child.
    pub(super) async fn next(&self) -> Option<ChildResult> {
        let mut waiting = self.waiting.lock().await;
        match waiting.first.pop_front() {
            Some(made) => Some(made),
            None => waiting.made.recv().await,
        }
    }

    /// Counts a child that goes to a run. Returns the guard that requests the next one when it is dropped.
    pub(super) fn count_run(self: Arc<Self>) -> Refill {
        self.runs.fetch_add(1, Ordering::Relaxed);
        Refill(self)
    }

    /// Requests a replacement for a child that goes to no run.
    pub(super) fn request_replacement(self: &Arc<Self>) {
        drop(Refill(Arc::clone(self)));
    }

    pub(super) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    pub(super) fn started_at(&self) -> Instant {
        self.started_at
    }

    /// The zygote is alive.
    pub(super) fn is_alive(&self) -> bool {
        !self.fork.is_closed()
    }

    /// Stops forking, because another zygote has replaced this one.
    pub(super) fn retire(&self) {
        self.retired.send_replace(true);
    }

    /// Ends the zygote and waits until it is reaped.
    pub(super) async fn close(self) {
        let Self { fork, waiting, ended, .. } = self;
        drop((fork, waiting));
        if let Some(ended) = ended {
            let _it_is_gone_either_way = ended.await;
        }
    }

    /// Waits for [`Self::retire`].
    pub(super) async fn wait_retired(&self) {
        let mut retired = self.retired.subscribe();
        drop(retired.wait_for(|retired| *retired).await);
    }
}

/// Sends a new zygote its tools, and waits until it has loaded them.
async fn send_tools(
    control: &mut Channel,
    tools: &[ToolImage],
    settings: &PreforkConfig,
) -> Result<Vec<Option<String>>> {
    control.send(&ToZygote::Hello { version: VERSION }, &[]).await?;
    for ToolImage { message, files } in tools {
        let files = files.iter().map(File::as_fd).collect::<Vec<_>>();
        control.send(message, &files).await?;
    }
    let PreforkConfig { largest_file, handles, .. } = *settings;
    control.send(&ToZygote::Start { largest_file, handles }, &[]).await?;
    match control.receive().await? {
        Some(FromZygote::Ready { unusable }) => Ok(unusable),
        Some(_) | None => Err(Error::new(ErrorKind::UnexpectedEof, "the zygote did not start")),
    }
}

fn zygote_ended_error() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "the zygote ended")
}

/// Copies a zygote's standard error to this process's log.
async fn relay(said: Receiver) {
    let mut lines = BufReader::new(said).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        tracing::warn!(line, "message from the zygote");
    }
}

/// The only reader and writer of a zygote's socket.
struct ZygoteController {
    control: Channel,
    wanted: mpsc::UnboundedReceiver<()>,
    fork: mpsc::WeakUnboundedSender<()>,
    made: mpsc::UnboundedSender<ChildResult>,
    /// The server's ends of the sockets of children that are being forked.
    pending: HashMap<u64, UnixStream>,
    /// The time since which the zygote has not answered; `None` if no answer is due.
    waits_since: Option<Instant>,
    children: HashMap<u64, ChildEntry>,
    cgroups: Option<Arc<Cgroups>>,
}

/// The state of a child until it is reaped.
struct ChildEntry {
    exit: oneshot::Sender<Exit>,
    _group: Option<Arc<Group>>,
}

impl ZygoteController {
    /// Runs until the zygote ends, or until every handle and every child has been dropped.
    async fn run(mut self) -> Result<()> {
        let mut next = 0;
        loop {
            let answer_due = self.waits_since.map(|since| since + MAX_ANSWER_TIME);
            tokio::select! {
                wanted = self.wanted.recv() => {
                    if wanted.is_none() {
                        return Ok(());
                    }
                    next += 1;
                    // The failure of one child must not end the others.
                    match UnixStream::pair() {
                        Ok((ours, theirs)) => {
                            self.pending.insert(next, ours);
                            self.waits_since.get_or_insert_with(timer_now);
                            let fork = ToZygote::Fork { child: next };
                            tokio::time::timeout(MAX_ANSWER_TIME, self.control.send(&fork, &[theirs.as_fd()])).await??;
                        }
                        Err(error) => drop(self.made.send(Err(error.into()))),
                    }
                }
                message = self.control.receive() => match message? {
                    Some(message) => {
                        self.on_message(message).await?;
                        self.waits_since = (!self.pending.is_empty()).then(timer_now);
                    }
                    None => return Ok(()),
                },
                () = tokio::time::sleep_until(answer_due.unwrap_or_else(timer_now)), if answer_due.is_some() => {
                    return Err(Error::new(ErrorKind::TimedOut, "the zygote does not answer"));
                }
            }
        }
    }

    /// A control group with the new child in it; `None` where none are delegated.
    async fn group_of(&self, pid: i32) -> Result<Option<Arc<Group>>> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(None) };
        // The kernel may take milliseconds to create a group. On this thread it would block a worker at every run, and
        // tokio would move other tasks to yet another thread, each with a malloc arena of its own.
        let entered = tokio::task::spawn_blocking(move || {
            let group = cgroups.group()?;
            group.enter(pid)?;
            Ok(Some(Arc::new(group)))
        });
        entered.await.unwrap_or_else(|panicked| Err(Error::other(panicked)))
    }

    async fn on_message(&mut self, message: FromZygote) -> Result<()> {
        let unexpected = || Error::new(ErrorKind::InvalidData, "the zygote sent an unexpected message");
        match message {
            FromZygote::Forked { child, pid } => {
                let socket = self.pending.remove(&child).ok_or_else(unexpected)?;
                let (gone, exit) = oneshot::channel();
                let pidfd = self.control.take_handle();
                let (group, ungrouped) = match self.group_of(pid).await {
                    Ok(group) => (group, None),
                    Err(error) => (None, Some(error)),
                };
                self.children.insert(child, ChildEntry { exit: gone, _group: group.clone() });
                let Some(zygote) = self.fork.upgrade() else { return Ok(()) };
                // A missing descriptor or a failed registration means that this process has reached a
                // limit. The child ends when its socket is closed.
                let made = match (pidfd, Channel::to_child(socket), ungrouped) {
                    (Some(pidfd), Ok(channel), None) => {
                        Ok(Child { channel, pid, pidfd, exit, group, _zygote: zygote })
                    }
                    (None, _, _) => Err(ChildError::NoDescriptor),
                    (_, Err(error), _) => Err(error.into()),
                    (_, _, Some(ungrouped)) => Err(ungrouped.into()),
                };
                let _nobody_waits = self.made.send(made);
            }
            FromZygote::Refused { child, reason } => {
                self.pending.remove(&child).ok_or_else(unexpected)?;
                let _nobody_waits = self.made.send(Err(ChildError::Reported(reason)));
            }
            FromZygote::Exited { child, exit } => {
                let gone = self.children.remove(&child).ok_or_else(unexpected)?;
                let _nobody_asks = gone.exit.send(exit);
            }
            FromZygote::Ready { .. } => return Err(unexpected()),
        }
        Ok(())
    }
}

impl Child {
    /// The process has not ended.
    pub(super) fn is_alive(&self) -> bool {
        let mut gone = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut gone, Some(&now)).is_ok_and(|ended| ended == 0)
    }

    pub(super) fn kill(&self) {
        // The pidfd refers to this process alone, even after it has ended and its number was reused.
        let _already_gone = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
