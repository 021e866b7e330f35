//! The process ring, from the server's side: every run in a process of its own.
//!
//! ```text
//! server ── control socket ──▶ zygote ── fork ──▶ child, child, … (a few wait ahead of time)
//!    └───────────── one socket pair each ────────────┘
//! ```
//! The server holds the deadline. It keeps its own books of what a child tells while it runs, takes
//! CPU time and memory from the kernel, and ends every child with SIGKILL, however the guest ended.

use super::channel::{Channel, Exit, FromChild, FromZygote, Job, ToZygote};
use super::process::{cpu_of, peak_resident_of};
use super::{Ahead, GRACE, Module};
use crate::capability::{Handover, Permit};
use crate::clock::Clock;
use crate::ident::ToolName;
use crate::limit::Limit;
use crate::outcome::{End, Outcome};
use crate::sandbox::Execution;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Result, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, oneshot};

/// How often a run that has not begun is given to another child.
const MOST_TRIES: usize = 3;
/// How long the kernel may take to take a killed process down.
const LONGEST_EXIT: Duration = Duration::from_secs(5);
/// What a child may say beside its output: counts, denials, the frame around it all.
const BESIDE_OUTPUT_BYTES: u64 = 16 << 20;

/// The process ring.
pub(super) struct Ring {
    tools: Vec<Loaded>,
    settings: Ahead,
    current: Mutex<Option<Arc<Generation>>>,
    clock: Arc<dyn Clock>,
}

/// A tool that every zygote is given.
struct Loaded {
    message: ToZygote,
    compiled: File,
}

/// One zygote with its children. It ends when nobody holds it and its last child is gone.
struct Generation {
    fork: mpsc::UnboundedSender<()>,
    ready: Mutex<mpsc::UnboundedReceiver<std::result::Result<Child, String>>>,
}

/// A child that waits for its job or runs.
struct Child {
    channel: Channel,
    pid: i32,
    pidfd: OwnedFd,
    exit: oneshot::Receiver<Exit>,
    /// Keeps the zygote, and with it the child, alive.
    _zygote: mpsc::UnboundedSender<()>,
}

impl Ring {
    /// Starts a zygote with `tools`, and gives the reason for each tool that it cannot run.
    pub(super) async fn start(
        tools: &[Module<'_>],
        settings: Ahead,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Vec<(ToolName, String)>)> {
        let loaded = tools.iter().map(|tool| {
            let mut compiled = File::from(memfd_create("tool", MemfdFlags::CLOEXEC)?);
            compiled.write_all(tool.compiled)?;
            Ok(Loaded { message: ToZygote::load(tool.name, tool.component, tool.contract), compiled })
        });
        let ring = Self { tools: loaded.collect::<Result<_>>()?, settings, current: Mutex::default(), clock };
        let (generation, unusable) = ring.generation().await?;
        *ring.current.lock().await = Some(Arc::new(generation));
        let unusable = tools.iter().zip(unusable);
        let unusable = unusable.filter_map(|(tool, reason)| Some((tool.name.clone(), reason?))).collect();
        Ok((ring, unusable))
    }

    /// Runs one guest, and comes back at its end, or shortly after its deadline or at its
    /// cancellation, whatever the guest or the kernel is doing.
    pub(super) async fn run(
        &self,
        tool: &ToolName,
        permit: Permit,
        arguments: String,
        execution: &Execution,
    ) -> Outcome {
        let (permit, folders) = Handover::of(permit);
        let job = Job { tool: tool.to_string(), arguments, permit };
        let mut last = String::new();
        for _ in 0..MOST_TRIES {
            let child = tokio::select! {
                child = self.child() => child,
                end = over(execution) => return execution.outcome(end, self.clock.monotonic()),
            };
            match child {
                Ok((child, generation)) => {
                    match self.with(child, &generation, &job, &folders, execution).await {
                        Ok(outcome) => return outcome,
                        Err(reason) => last = reason,
                    }
                }
                Err(reason) => last = reason,
            }
            tracing::warn!(%tool, reason = last, "a child ended before its guest began");
        }
        execution.outcome(End::Crashed(last), self.clock.monotonic())
    }

    /// Gives the job to a child and follows it to its end; an error says why its guest never began.
    async fn with(
        &self,
        mut child: Child,
        generation: &Generation,
        job: &Job,
        folders: &[OwnedFd],
        execution: &Execution,
    ) -> std::result::Result<Outcome, String> {
        let handles = folders.iter().map(AsFd::as_fd).collect::<Vec<_>>();
        // Output is told as JSON, which takes up to six bytes for one.
        child.channel.allow(execution.output_limit().saturating_mul(8).saturating_add(BESIDE_OUTPUT_BYTES));
        let sent = child.channel.send(job, &handles).await;
        // The next child is made while this one runs.
        let _zygote_is_gone = generation.fork.send(());
        if let Err(error) = sent {
            return Err(error.to_string());
        }
        let mut began = None;
        let mut ended = None;
        let end = loop {
            let message = tokio::select! {
                biased;
                message = child.channel.receive() => message,
                end = over(execution) => break end,
            };
            match message {
                Ok(Some(FromChild::Began { cpu_ns })) => began = Some(Duration::from_nanos(cpu_ns)),
                Ok(Some(FromChild::Event(event))) => execution.saw(event),
                Ok(Some(FromChild::Ended(told))) => {
                    let end = told.end.clone();
                    ended = Some(told);
                    break end;
                }
                Ok(Some(FromChild::Failed(reason))) if began.is_none() => return Err(reason),
                Ok(Some(FromChild::Failed(reason))) => break End::Crashed(reason),
                Ok(None) => {
                    let exit = self.exit_of(&mut child).await;
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
        outcome.usage.spent = ended.as_ref().and_then(|told| told.spent);
        if let Some(told) = ended {
            outcome.metrics.output_bytes = told.output_bytes;
            outcome.output.truncated |= told.truncated;
            outcome.usage.denied = told.denied;
            outcome.usage.denied_truncated = told.denied_truncated;
        }
        Ok(outcome)
    }

    /// What the kernel said of a child whose socket is closed.
    async fn exit_of(&self, child: &mut Child) -> Exit {
        child.kill();
        match tokio::time::timeout(LONGEST_EXIT, &mut child.exit).await {
            Ok(Ok(exit)) => exit,
            Ok(Err(_)) | Err(_) => {
                Exit { how: "its zygote ended with it".to_owned(), cpu_us: 0, peak_resident: 0 }
            }
        }
    }

    /// A child that waits, or a new one when none does.
    async fn child(&self) -> std::result::Result<(Child, Arc<Generation>), String> {
        let generation = {
            let mut current = self.current.lock().await;
            match &*current {
                Some(living) if !living.fork.is_closed() => Arc::clone(living),
                Some(_) | None => {
                    tracing::warn!("the zygote is gone, and another is started");
                    let (started, _) = self.generation().await.map_err(|error| error.to_string())?;
                    Arc::clone(current.insert(Arc::new(started)))
                }
            }
        };
        let child = generation.ready.lock().await.recv().await;
        Ok((child.ok_or("its zygote ended")??, generation))
    }

    /// Starts a zygote.
    async fn generation(&self) -> Result<(Generation, Vec<Option<String>>)> {
        let (ours, theirs) = UnixStream::pair()?;
        // The program that runs, even when its file was replaced meanwhile.
        let mut zygote = Command::new("/proc/self/exe")
            .arg("zygote")
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        let mut control = Channel::new(ours)?;
        let ready = async {
            for Loaded { message, compiled } in &self.tools {
                // Each zygote reads through a copy of the descriptor, whose position they share.
                (&*compiled).rewind()?;
                control.send(message, &[compiled.as_fd()]).await?;
            }
            control.send(&ToZygote::Start { largest_file: self.settings.largest_file }, &[]).await?;
            match control.receive().await? {
                Some(FromZygote::Ready { unusable }) => Ok(unusable),
                Some(_) | None => Err(Error::new(ErrorKind::UnexpectedEof, "the zygote did not start")),
            }
        };
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
            control,
            wanted,
            fork: fork.downgrade(),
            made,
            asked: HashMap::new(),
            exits: HashMap::new(),
        };
        tokio::spawn(async move {
            if let Err(error) = keeper.keep().await {
                tracing::error!(%error, "the zygote's socket failed");
            }
            let _reaped = tokio::task::spawn_blocking(move || zygote.wait()).await;
        });
        Ok((Generation { fork, ready: Mutex::new(ready) }, unusable))
    }
}

/// When the server ends a run: at its cancellation, or shortly after its deadline.
async fn over(execution: &Execution) -> End {
    tokio::select! {
        reason = execution.abort().wait() => End::Aborted(reason),
        () = tokio::time::sleep_until((execution.deadline() + GRACE).into()) => End::LimitReached(Limit::Time),
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
    exits: HashMap<u64, oneshot::Sender<Exit>>,
}

impl Keeper {
    /// Keeps the zygote until it ends, or until nobody wants children and the last one is gone.
    async fn keep(mut self) -> Result<()> {
        let mut next = 0;
        loop {
            tokio::select! {
                wanted = self.wanted.recv() => {
                    if wanted.is_none() {
                        return Ok(());
                    }
                    next += 1;
                    let (ours, theirs) = UnixStream::pair()?;
                    self.control.send(&ToZygote::Fork { child: next }, &[theirs.as_fd()]).await?;
                    self.asked.insert(next, ours);
                }
                message = self.control.receive() => match message? {
                    Some(message) => self.heard(message)?,
                    None => return Ok(()),
                },
            }
        }
    }

    fn heard(&mut self, message: FromZygote) -> Result<()> {
        let unexpected = || Error::new(ErrorKind::InvalidData, "the zygote said what was not expected of it");
        match message {
            FromZygote::Forked { child, pid } => {
                let socket = self.asked.remove(&child).ok_or_else(unexpected)?;
                let pidfd = self.control.handle().ok_or_else(unexpected)?;
                let (gone, exit) = oneshot::channel();
                self.exits.insert(child, gone);
                let Some(zygote) = self.fork.upgrade() else { return Ok(()) };
                let child = Child { channel: Channel::new(socket)?, pid, pidfd, exit, _zygote: zygote };
                let _nobody_waits = self.made.send(Ok(child));
            }
            FromZygote::Refused { child, reason } => {
                self.asked.remove(&child).ok_or_else(unexpected)?;
                let _nobody_waits = self.made.send(Err(reason));
            }
            FromZygote::Exited { child, exit } => {
                let gone = self.exits.remove(&child).ok_or_else(unexpected)?;
                let _nobody_asks = gone.send(exit);
            }
            FromZygote::Ready { .. } => return Err(unexpected()),
        }
        Ok(())
    }
}

impl Child {
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
