//! Reused processes: children that have served a run and wait for another one of the same agent, tool and grant.
//!
//! ```text
//! run ── Ended ──▶ clears the store, counts what it holds ── Idle ──▶ waits ── arguments, begin ──▶ next run
//!   └─ any other end, a surprise, the last run that it may serve, or no run in time ──▶ SIGKILL
//! ```
//! A child keeps the one permit that it has received, so it can serve no other agent, tool or grant. The server looks at
//! a child's message that it is idle when the next run takes the child, and not before: until then nothing depends on it.

use super::channel::FromChild;
use super::process::{cpu_of, reset_peak_resident_of, thread_count};
use super::user::User;
use super::zygote_handle::Child;
use a2g_capability::{Handover, Permit};
use a2g_runtime::{spawn, timer_now};
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::outcome::End;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, StatxFlags, openat, statx};
use std::collections::VecDeque;
use std::io::{Error, Result};
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of children that wait for another run.
const MAX_IDLE_CHILDREN: usize = 64;
/// Maximum time for a child to clear the memory of its last run when the next one is there.
const MAX_CLEARING_TIME: Duration = Duration::from_millis(50);

/// The limits of a process that serves several runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReuseLimits {
    /// Maximum number of runs of one process.
    pub runs: u32,
    /// Maximum time for which a process waits for its next run.
    pub idle: Duration,
}

/// What two runs have in common if one process may serve both. The module is the same as well, because a catalogue has
/// its own children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReuseKey {
    agent: AgentDid,
    tool: ToolName,
    /// The limits and patterns of the grant, each with the layer that has set it, as they are sent to a child.
    grant: String,
    folders: Vec<FolderId>,
    user: Option<User>,
}

/// A host folder, and the mount through which it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FolderId {
    mount: u64,
    device: (u32, u32),
    inode: u64,
}

impl ReuseKey {
    /// The key of a run of `tool` by `agent`, whose permit is sent as `permit` and `folders`. `None` if it may not share its
    /// process, or the kernel does not tell which folders these are.
    pub(super) fn new(
        agent: &AgentDid,
        tool: &ToolName,
        permit: &Handover,
        folders: &[impl AsFd],
        user: Option<User>,
    ) -> Option<Self> {
        Some(Self {
            agent: agent.clone(),
            tool: tool.clone(),
            grant: serde_json::to_string(permit).ok()?,
            folders: folders.iter().map(FolderId::of).collect::<Option<_>>()?,
            user,
        })
    }
}

impl FolderId {
    fn of(folder: &impl AsFd) -> Option<Self> {
        let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
        let found = statx(folder, "", AtFlags::EMPTY_PATH, wanted).ok()?;
        let has_all = StatxFlags::from_bits_retain(found.stx_mask).contains(wanted);
        has_all.then_some(Self {
            mount: found.stx_mnt_id,
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
        })
    }
}

/// `true` if a run under `permit` leaves nothing outside of its store, so that its process may serve another one.
// A network or calls have a relay with a thread of its own, and connections that outlive the guest.
pub(super) fn may_share_process(permit: &Permit) -> bool {
    !permit.grant().network().value && !permit.grant().calls().allows_any()
}

/// `true` if a process may serve another run after one that ended so: the guest has ended by itself, in order.
pub(super) fn may_go_on_after(end: &End) -> bool {
    match end {
        End::Returned(_) | End::ToolError { .. } => true,
        End::Exited { .. }
        | End::ResultNotJson
        | End::ResultInvalid { .. }
        | End::Trapped(_)
        | End::NotStarted(_)
        | End::Crashed(_)
        | End::LimitReached(_)
        | End::Aborted(_) => false,
    }
}

/// What a child has served before its next run.
#[derive(Debug, Clone, Copy)]
pub(super) struct EarlierRuns {
    pub(super) count: u32,
    /// CPU time of the process at the start of the next run. The server has read it: the child could hide its own time.
    pub(super) cpu: Duration,
    /// `true` if the kernel counts the peak of resident memory anew.
    pub(super) is_peak_reset: bool,
}

/// The children that wait for another run.
pub(super) struct IdleChildren {
    limits: ReuseLimits,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Those that expire first are at the front.
    children: VecDeque<IdleChild>,
    /// `true` while a task ends those that have expired.
    is_watched: bool,
}

struct IdleChild {
    key: ReuseKey,
    child: Child,
    served: u32,
    expires_at: Instant,
}

impl IdleChildren {
    pub(super) fn new(limits: ReuseLimits) -> Arc<Self> {
        Arc::new(Self { limits, waiting: Mutex::default() })
    }

    /// Keeps a child whose last run ended in order, unless it has served all the runs that it may.
    pub(super) fn put(self: &Arc<Self>, key: ReuseKey, child: Child, served: u32) {
        if served >= self.limits.runs {
            return;
        }
        let expires_at = timer_now() + self.limits.idle;
        let mut waiting = self.waiting.lock();
        waiting.children.push_back(IdleChild { key, child, served, expires_at });
        let oldest = (waiting.children.len() > MAX_IDLE_CHILDREN).then(|| waiting.children.pop_front());
        let was_watched = std::mem::replace(&mut waiting.is_watched, true);
        drop(waiting);
        // A child is killed when it is dropped, which is a system call: not under the lock.
        drop(oldest);
        if !was_watched {
            spawn::spawn_run_task(end_expired(Arc::downgrade(self)));
        }
    }

    /// Takes a child that has served a run with this key and has cleared everything of it; `None` if there is none.
    pub(super) async fn take(&self, key: &ReuseKey) -> Option<(Child, EarlierRuns)> {
        loop {
            let IdleChild { mut child, served, .. } = self.remove(key)?;
            let message = tokio::time::timeout(MAX_CLEARING_TIME, child.channel.receive());
            let is_idle = match message.await {
                Ok(Ok(Some(FromChild::Idle))) => child.channel.is_silent() && child.is_alive(),
                Ok(Ok(Some(FromChild::Failed(reason)))) => {
                    tracing::warn!(tool = %key.tool, reason, "a process is not used again");
                    false
                }
                Ok(Ok(Some(
                    FromChild::Began { .. }
                    | FromChild::Event(_)
                    | FromChild::Ended(_)
                    | FromChild::Described(_),
                ))) => {
                    tracing::warn!(tool = %key.tool, "a process that should be idle sent something else");
                    false
                }
                Ok(Ok(None) | Err(_)) | Err(_) => false,
            };
            if let (true, Some(cpu)) = (is_idle, cpu_of(child.pid)) {
                let is_peak_reset = reset_peak_resident_of(child.pid);
                return Some((child, EarlierRuns { count: served, cpu, is_peak_reset }));
            }
        }
    }

    /// Removes the child that has waited for the shortest time: more of its memory is in the processor's cache.
    fn remove(&self, key: &ReuseKey) -> Option<IdleChild> {
        let mut waiting = self.waiting.lock();
        let index = waiting.children.iter().rposition(|idle| idle.key == *key)?;
        waiting.children.remove(index).filter(|idle| idle.expires_at > timer_now())
    }

    /// Ends the children that have expired. Returns the time at which the next one expires.
    fn end_expired(&self) -> Option<Instant> {
        let now = timer_now();
        let mut waiting = self.waiting.lock();
        let count = waiting.children.partition_point(|idle| idle.expires_at <= now);
        let expired = waiting.children.drain(..count).collect::<Vec<_>>();
        let next = waiting.children.front().map(|idle| idle.expires_at);
        waiting.is_watched = next.is_some();
        drop(waiting);
        drop(expired);
        next
    }
}

async fn end_expired(idle: Weak<IdleChildren>) {
    while let Some(next) = idle.upgrade().and_then(|idle| idle.end_expired()) {
        tokio::time::sleep_until(next).await;
    }
}

/// What a child may hold between two runs, counted from inside.
pub(super) struct OwnResources {
    folder: Dir,
    before: Held,
}

struct Held {
    threads: u64,
    descriptors: usize,
}

/// Opens the folder that lists this process's descriptors, before the process loses its access to it.
pub(super) fn open_own_descriptors() -> Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(Dir::new(openat(CWD, "/proc/self/fd", flags, Mode::empty())?)?)
}

impl OwnResources {
    /// Counts what this process holds before its first run.
    pub(super) fn count_now(mut descriptors: Dir) -> Result<Self> {
        let before = Held::count(&mut descriptors)?;
        Ok(Self { folder: descriptors, before })
    }

    /// Checks that this process has as many threads and descriptors as before its first run.
    ///
    /// # Errors
    /// If it has not, or they cannot be counted.
    pub(super) fn check(&mut self) -> Result<()> {
        let Held { threads, descriptors } = Held::count(&mut self.folder)?;
        let before = &self.before;
        if (threads, descriptors) == (before.threads, before.descriptors) {
            return Ok(());
        }
        Err(Error::other(format!(
            "after a run it has {threads} threads and {descriptors} descriptors, and before its first one it had \
             {} and {}",
            before.threads, before.descriptors
        )))
    }
}

impl Held {
    /// Counts the threads of this process, and its descriptors as the entries of the opened `folder`.
    fn count(folder: &mut Dir) -> Result<Self> {
        folder.rewind();
        let mut descriptors = 0;
        for entry in folder {
            entry?;
            descriptors += 1;
        }
        Ok(Self { threads: thread_count()?, descriptors })
    }
}
