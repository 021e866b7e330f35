//! One zygote with its children, from the server's side.
//!
//! ```text
//! started ── ready ──▶ in use ── retired ──▶ ends with its last child
//!                        └─ refill: a child is forked for each that was taken
//! ```
//! A generation that was retired forks no more. Its waiting children end when its last handle is dropped, and the
//! zygote itself with the last child that runs.

use super::Ahead;
use super::cgroup::{Cgroups, Group};
use super::channel::{Channel, Exit, FromZygote, ToZygote, VERSION};
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

/// A child, or why there is none.
pub(super) type Made = std::result::Result<Child, String>;

/// A tool that every zygote is given.
pub(super) struct Loaded {
    pub(super) message: ToZygote,
    pub(super) files: Vec<File>,
}

/// One zygote with its children.
pub(super) struct Generation {
    fork: mpsc::UnboundedSender<()>,
    waiting: Mutex<Waiting>,
    /// Children that were taken for a run.
    runs: AtomicU64,
    since: Instant,
    retired: watch::Sender<bool>,
    /// Ends when its zygote is reaped, where it has one for all children.
    ended: Option<JoinHandle<()>>,
}

/// The children that wait for a job.
struct Waiting {
    /// Children that were made before the first run.
    first: VecDeque<Made>,
    made: mpsc::UnboundedReceiver<Made>,
}

/// A child that waits for its job or runs.
pub(super) struct Child {
    pub(super) channel: Channel,
    pub(super) pid: i32,
    pidfd: OwnedFd,
    pub(super) exit: oneshot::Receiver<Exit>,
    /// The kernel's limits on it, where control groups are delegated.
    pub(super) group: Option<Arc<Group>>,
    /// Keeps the zygote, and with it the child, alive.
    _zygote: mpsc::UnboundedSender<()>,
}

/// Dropped, it asks the zygote for another child: when the one before has its job, or never will.
pub(super) struct Refill(Arc<Generation>);

impl Drop for Refill {
    fn drop(&mut self) {
        if !*self.0.retired.borrow() {
            let _zygote_is_gone = self.0.fork.send(());
        }
    }
}

impl Generation {
    /// A generation whose children come from `made`, one for each message to `fork`.
    pub(super) fn new(fork: mpsc::UnboundedSender<()>, made: mpsc::UnboundedReceiver<Made>) -> Self {
        Self {
            fork,
            waiting: Mutex::new(Waiting { first: VecDeque::new(), made }),
            runs: AtomicU64::new(0),
            since: Instant::now(),
            retired: watch::Sender::new(false),
            ended: None,
        }
    }

    /// Starts a zygote with `tools` that forks so many children ahead of time, and gives the reason for each tool that
    /// it cannot run.
    pub(super) async fn start(
        tools: &[Loaded],
        settings: &Ahead,
        children: usize,
        cgroups: Option<Arc<Cgroups>>,
    ) -> Result<(Self, Vec<Option<String>>)> {
        let (ours, theirs) = UnixStream::pair()?;
        // The program that runs, even when its file was replaced meanwhile.
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
            tokio::spawn(relay(Receiver::from_owned_fd(said.into())?));
        }
        let mut control = Channel::to_zygote(ours)?;
        let ready =
            async { tokio::time::timeout(MAX_START_TIME, ready(&mut control, tools, settings)).await? };
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
        let keeper = Keeper {
            waits_since: None,
            control,
            wanted,
            fork: fork.downgrade(),
            made,
            asked: HashMap::new(),
            living: HashMap::new(),
            cgroups,
        };
        let ended = tokio::spawn(async move {
            if let Err(error) = keeper.keep().await {
                tracing::error!(%error, "the zygote is given up");
            }
            // It has no children any more, or does not answer.
            let _already_gone = zygote.kill();
            let _reaped = tokio::task::spawn_blocking(move || zygote.wait()).await;
        });
        Ok((Self { ended: Some(ended), ..Self::new(fork, ready) }, unusable))
    }

    /// Waits until `children` of its children wait for work, so that the next run need not.
    pub(super) async fn warm_up(&self, children: usize) -> Result<()> {
        let mut waiting = self.waiting.lock().await;
        let all_made = async {
            while waiting.first.len() < children {
                let made = waiting.made.recv().await.ok_or_else(ended)?;
                waiting.first.push_back(made);
            }
            Ok(())
        };
        tokio::time::timeout(MAX_START_TIME, all_made).await?
    }

    /// A child that waits already, if any.
    pub(super) fn try_next(&self) -> Option<Made> {
        let mut waiting = self.waiting.try_lock().ok()?;
        waiting.first.pop_front().or_else(|| waiting.made.try_recv().ok())
    }

    /// The next child; `None` when the zygote has ended. A wait that is given up loses no child.
    pub(super) async fn next(&self) -> Option<Made> {
        let mut waiting = self.waiting.lock().await;
        match waiting.first.pop_front() {
            Some(made) => Some(made),
            None => waiting.made.recv().await,
        }
    }

    /// Counts a child that goes to a run, and gives the guard that asks for the next one when it is dropped.
    pub(super) fn taken(self: Arc<Self>) -> Refill {
        self.runs.fetch_add(1, Ordering::Relaxed);
        Refill(self)
    }

    /// Takes note of a child that goes to no run.
    pub(super) fn lost(self: &Arc<Self>) {
        drop(Refill(Arc::clone(self)));
    }

    /// The number of runs that it has made children for.
    pub(super) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// The time of its start.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// `true` while its zygote lives.
    pub(super) fn lives(&self) -> bool {
        !self.fork.is_closed()
    }

    /// Stops its forking, because another generation has taken its place.
    pub(super) fn retire(&self) {
        self.retired.send_replace(true);
    }

    /// Ends its zygote and waits until that is reaped.
    pub(super) async fn close(self) {
        let Self { fork, waiting, ended, .. } = self;
        drop((fork, waiting));
        if let Some(ended) = ended {
            let _it_is_gone_either_way = ended.await;
        }
    }

    /// Waits until it is retired.
    pub(super) async fn retired(&self) {
        let mut retired = self.retired.subscribe();
        drop(retired.wait_for(|retired| *retired).await);
    }
}

/// Gives a zygote its tools.
async fn ready(control: &mut Channel, tools: &[Loaded], settings: &Ahead) -> Result<Vec<Option<String>>> {
    control.send(&ToZygote::Hello { version: VERSION }, &[]).await?;
    for Loaded { message, files } in tools {
        let files = files.iter().map(File::as_fd).collect::<Vec<_>>();
        control.send(message, &files).await?;
    }
    let Ahead { largest_file, handles, .. } = *settings;
    control.send(&ToZygote::Start { largest_file, handles }, &[]).await?;
    match control.receive().await? {
        Some(FromZygote::Ready { unusable }) => Ok(unusable),
        Some(_) | None => Err(Error::new(ErrorKind::UnexpectedEof, "the zygote did not start")),
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "the zygote ended")
}

/// Copies a zygote's standard error to the log of this process, which answers for it.
async fn relay(said: Receiver) {
    let mut lines = BufReader::new(said).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        tracing::warn!(line, "the zygote says");
    }
}

/// The one reader and writer of a zygote's socket.
struct Keeper {
    control: Channel,
    wanted: mpsc::UnboundedReceiver<()>,
    fork: mpsc::WeakUnboundedSender<()>,
    made: mpsc::UnboundedSender<Made>,
    /// Our ends of the sockets of children that are being made.
    asked: HashMap<u64, UnixStream>,
    /// The time since which the zygote owes an answer.
    waits_since: Option<tokio::time::Instant>,
    living: HashMap<u64, Living>,
    cgroups: Option<Arc<Cgroups>>,
}

/// The record of a child that is kept until the kernel has reaped it.
struct Living {
    exit: oneshot::Sender<Exit>,
    _group: Option<Arc<Group>>,
}

impl Keeper {
    /// Keeps the zygote until it ends, or until nobody wants children and the last one is gone.
    async fn keep(mut self) -> Result<()> {
        let mut next = 0;
        loop {
            let patience = self.waits_since.map(|since| since + MAX_ANSWER_TIME);
            tokio::select! {
                wanted = self.wanted.recv() => {
                    if wanted.is_none() {
                        return Ok(());
                    }
                    next += 1;
                    // The failure of one child must not end the others.
                    match UnixStream::pair() {
                        Ok((ours, theirs)) => {
                            self.asked.insert(next, ours);
                            self.waits_since.get_or_insert_with(tokio::time::Instant::now);
                            let fork = ToZygote::Fork { child: next };
                            tokio::time::timeout(MAX_ANSWER_TIME, self.control.send(&fork, &[theirs.as_fd()])).await??;
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
        // The kernel may take milliseconds to make a group.
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

impl Child {
    /// `true` unless it was killed while it waited.
    pub(super) fn lives(&self) -> bool {
        let mut gone = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut gone, Some(&now)).is_ok_and(|ended| ended == 0)
    }

    pub(super) fn kill(&self) {
        // The descriptor names this process and no other, also when it is gone already.
        let _already_gone = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
