//! Reused processes: children that have served a run and wait for another one of the same agent, tool, module and grant.
//!
//! ```text
//! run ── Ended ──▶ clears the store, counts what it holds ── Idle ──▶ waits ── arguments, begin ──▶ next run
//!   └─ any other end, an unexpected message, thread or descriptor, the last run that it may serve, no run in time, a stop
//!      or revocation since its last run was requested ──▶ SIGKILL
//! ```
//! A child keeps the one permit that it has received, so it can serve no other agent, tool or grant. The server reads the
//! message `Idle` only when the next run takes the child; until then nothing depends on it.

use super::cgroup::MAX_RESIDUE_BYTES;
use super::channel::FromChild;
use super::process::{anonymous_resident_of, descriptor_count, thread_count};
use super::supervisor::truncate;
use super::user::User;
use super::zygote_handle::Child;
use a2g_capability::{Handover, OpenRoot, Permit};
use a2g_runtime::{spawn, timer_now};
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::outcome::End;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::collections::VecDeque;
use std::io::Result;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of children that wait for another run.
const MAX_IDLE_CHILDREN: usize = 64;
/// Maximum number of those that wait for a run of one agent, so that no agent takes the place of all others.
const MAX_IDLE_CHILDREN_OF_AGENT: usize = 16;

/// The limits of a process that serves several runs. By default, none does.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReuseLimits {
    /// Maximum number of runs of one process.
    pub runs: u32,
    /// Maximum time for which a process waits for its next run.
    pub idle: Duration,
}

/// The properties that two runs share if one process may serve both. The module is the same as well, because a catalogue
/// has its own children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReuseKey {
    agent: AgentDid,
    tool: ToolName,
    /// The limits and patterns of the grant, each with the layer that has set it, as they are sent to a child.
    grant: String,
    folders: Vec<FolderId>,
    user: Option<User>,
}

/// A granted folder, by which runs are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FolderId {
    /// A host folder, and the mount through which it is reached.
    Host { mount: u64, device: (u32, u32), inode: u64 },
    /// A folder in the place of a missing one, which is a new one for each run.
    Missing,
}

impl ReuseKey {
    /// The key of a run of `tool` by `agent`, whose permit has these folders and is sent as `permit`. `None`
    /// if that cannot be serialized.
    pub(super) fn new(
        agent: &AgentDid,
        tool: &ToolName,
        permit: &Handover,
        folders: Vec<FolderId>,
        user: Option<User>,
    ) -> Option<Self> {
        let grant = serde_json::to_string(permit).ok()?;
        Some(Self { agent: agent.clone(), tool: tool.clone(), grant, folders, user })
    }
}

impl FolderId {
    /// The granted folders of a permit. `None` if the kernel does not tell which folders these are.
    pub(super) fn all_of(permit: &Permit) -> Option<Vec<Self>> {
        permit.roots().as_slice().iter().map(Self::of).collect()
    }

    fn of(root: &OpenRoot) -> Option<Self> {
        if root.is_missing {
            return Some(Self::Missing);
        }
        let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
        let found = statx(&root.dir, "", AtFlags::EMPTY_PATH, wanted).ok()?;
        let has_all = StatxFlags::from_bits_retain(found.stx_mask).contains(wanted);
        has_all.then_some(Self::Host {
            mount: found.stx_mnt_id,
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
        })
    }
}

/// `true` if a run under `permit` leaves nothing outside of its store, so that its process may serve another one.
// A network or calls have a relay with a thread of its own, and connections that outlive the guest. A folder in the place
// of a missing one is a new one for each run, so no other run would have the same. So is the folder for a run's file changes.
pub(super) fn may_share_process(permit: &Permit) -> bool {
    let grant = permit.grant();
    let has_missing = permit.roots().as_slice().iter().any(|root| root.is_missing);
    !grant.network().value && !grant.calls().allows_any() && !has_missing && permit.upper().is_none()
}

/// The number of times that all waiting children were ended. A child of a run from an earlier epoch is not kept: what ended
/// the others ends it as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Epoch(u64);

/// The child of a run that has ended, if it may serve another run. It is killed unless it is put back.
pub struct UsedChild {
    pub(super) idle: Arc<IdleChildren>,
    pub(super) key: ReuseKey,
    pub(super) child: Child,
    /// The number of runs that it has served.
    pub(super) served: u32,
    /// The epoch in which its last run was requested.
    pub(super) epoch: Epoch,
}

impl UsedChild {
    /// Lets the child wait for another run after one that ended with `end`, whatever the child reported. Kills it if it may
    /// serve no run after that end, has served all the runs that it may, or many wait already.
    pub fn put_back(self, end: &End) {
        let Self { idle, key, mut child, served, epoch } = self;
        let limits = idle.limits;
        let may_go_on = end.is_answer() && served < limits.runs && !child.is_retired();
        if !may_go_on || !child.channel.shrink() {
            return;
        }
        let expires_at = timer_now() + limits.idle;
        let mut queue = idle.queue.lock();
        let of_agent = queue.children.iter().filter(|other| other.key.agent == key.agent).count();
        let is_full = queue.children.len() >= MAX_IDLE_CHILDREN || of_agent >= MAX_IDLE_CHILDREN_OF_AGENT;
        if is_full || queue.epoch != epoch {
            return;
        }
        queue.children.push_back(IdleChild { key, child, served, expires_at });
        let was_watched = std::mem::replace(&mut queue.is_watched, true);
        drop(queue);
        if !was_watched {
            spawn::spawn_run_task(end_expired(Arc::downgrade(&idle)));
        }
    }
}

/// The children that wait for another run.
pub(super) struct IdleChildren {
    limits: ReuseLimits,
    queue: Mutex<IdleQueue>,
}

#[derive(Default)]
struct IdleQueue {
    /// Those that expire first are at the front.
    children: VecDeque<IdleChild>,
    epoch: Epoch,
    /// `true` while a task ends those that have expired.
    is_watched: bool,
}

struct IdleChild {
    key: ReuseKey,
    child: Child,
    served: u32,
    expires_at: Instant,
}

/// The next step for an idle child that is considered for a run.
enum Readiness {
    Ready,
    /// It still clears the memory of its last run.
    Clearing,
    /// It must not be used again.
    Unusable,
}

impl IdleChildren {
    pub(super) fn new(limits: ReuseLimits) -> Arc<Self> {
        Arc::new(Self { limits, queue: Mutex::default() })
    }

    /// The current epoch.
    pub(super) fn epoch(&self) -> Epoch {
        self.queue.lock().epoch
    }

    /// Takes a child that has served a run with this key and has cleared everything of it, and the number of runs that it
    /// has served. Returns `None` if there is none.
    pub(super) fn take(&self, key: &ReuseKey) -> Option<(Child, u32)> {
        let mut unusable = Vec::new();
        let mut queue = self.queue.lock();
        let mut found = None;
        // The last one has waited for the shortest time: more of its memory is in the processor's cache.
        for index in (0..queue.children.len()).rev() {
            let Some(idle) = queue.children.get_mut(index).filter(|idle| idle.key == *key) else { continue };
            match idle.readiness() {
                Readiness::Ready => {
                    found = queue.children.remove(index);
                    break;
                }
                Readiness::Clearing => {}
                Readiness::Unusable => unusable.extend(queue.children.remove(index)),
            }
        }
        drop(queue);
        // A child is killed when it is dropped, which is a system call: not under the lock.
        drop(unusable);
        found.map(|IdleChild { child, served, .. }| (child, served))
    }

    /// Ends all children that wait, and those of the current runs with these runs.
    pub(super) fn end_all(&self) {
        let mut queue = self.queue.lock();
        queue.epoch.0 = queue.epoch.0.wrapping_add(1);
        let children = std::mem::take(&mut queue.children);
        drop(queue);
        drop(children);
    }

    /// Ends the children that have expired. Returns the time at which the next one expires.
    fn end_expired(&self) -> Option<Instant> {
        let now = timer_now();
        let mut queue = self.queue.lock();
        let count = queue.children.partition_point(|idle| idle.expires_at <= now);
        let expired = queue.children.drain(..count).collect::<Vec<_>>();
        let next = queue.children.front().map(|idle| idle.expires_at);
        queue.is_watched = next.is_some();
        drop(queue);
        drop(expired);
        next
    }
}

impl IdleChild {
    fn readiness(&mut self) -> Readiness {
        let Self { key, child, expires_at, .. } = self;
        let message = match child.channel.take_only_message() {
            Ok(message) => message,
            // It was killed, or has sent more than that it is idle.
            Err(_) => return Readiness::Unusable,
        };
        match message {
            None => return Readiness::Clearing,
            Some(FromChild::Idle) => {}
            Some(FromChild::Failed(reason)) => {
                tracing::warn!(tool = %key.tool, reason = truncate(reason), "a process is not used again");
                return Readiness::Unusable;
            }
            Some(
                FromChild::Began { .. } | FromChild::Event(_) | FromChild::Ended(_) | FromChild::Described(_),
            ) => {
                tracing::warn!(tool = %key.tool, "a process that should be idle sent something else");
                return Readiness::Unusable;
            }
        }
        let is_usable =
            *expires_at > timer_now() && child.is_alive() && !child.is_retired() && has_little_residue(child);
        if is_usable { Readiness::Ready } else { Readiness::Unusable }
    }
}

/// `true` if a child's runs have left little memory, such as files in a tmpfs that are charged to its group: the next run
/// would be charged for it.
fn has_little_residue(child: &Child) -> bool {
    is_little_residue(child.memory_before, child.memory_bytes())
}

/// `true` if little memory was added. Memory that cannot be read may be any.
fn is_little_residue(before: Option<u64>, now: Option<u64>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => now <= before.saturating_add(MAX_RESIDUE_BYTES),
        (None, _) | (_, None) => false,
    }
}

impl Child {
    /// The memory of a living child in bytes: what is charged to its group, or without one its resident memory that no file
    /// backs; `None` if the kernel does not say.
    // Pages of files are left out: a guest that only runs more of its code would end its child.
    pub(super) fn memory_bytes(&self) -> Option<u64> {
        match &self.group {
            Some(group) => group.charged_bytes(),
            None => anonymous_resident_of(self.pid),
        }
    }
}

async fn end_expired(idle: Weak<IdleChildren>) {
    while let Some(next) = idle.upgrade().and_then(|idle| idle.end_expired()) {
        tokio::time::sleep_until(next).await;
    }
}

/// The threads and descriptors that a child has between two runs, as it counts them itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResourceCounts {
    threads: u64,
    descriptors: u64,
}

impl ResourceCounts {
    /// Counts the threads and descriptors of this process, whose descriptors are numbered below `max_descriptors`.
    pub(super) fn count(max_descriptors: u64) -> Result<Self> {
        Ok(Self { threads: thread_count()?, descriptors: descriptor_count(max_descriptors)? })
    }

    /// Checks that these, of before a child's first run, are also the resources `now`.
    ///
    /// # Errors
    /// The difference.
    pub(super) fn check(&self, now: &Self) -> std::result::Result<(), String> {
        if self == now { Ok(()) } else { Err(self.difference(now)) }
    }

    /// Checks that the resources `now` are at most these, of before a session's first turn, and `max_kept`
    /// descriptors that the guest keeps from turn to turn.
    ///
    /// # Errors
    /// The difference.
    // The first relay, whose descriptors are among these, is closed by now: there may be fewer.
    pub(super) fn check_kept(&self, now: &Self, max_kept: u64) -> std::result::Result<(), String> {
        let has_few = now.descriptors <= self.descriptors.saturating_add(max_kept);
        if has_few && self.threads == now.threads { Ok(()) } else { Err(self.difference(now)) }
    }

    fn difference(&self, now: &Self) -> String {
        format!(
            "after a run it has {} threads and {} descriptors, and before its first one it had {} and {}",
            now.threads, now.descriptors, self.threads, self.descriptors
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_may_keep_as_many_descriptors_as_its_guest_may_have_handles() {
        let counts = |threads, descriptors| ResourceCounts { threads, descriptors };
        let before = counts(3, 20);
        for (now, is_same, is_kept) in [
            (counts(3, 20), true, true),
            (counts(3, 18), false, true),
            (counts(3, 84), false, true),
            (counts(3, 85), false, false),
            (counts(4, 20), false, false),
            (counts(2, 20), false, false),
        ] {
            assert_eq!(before.check(&now).is_ok(), is_same, "{now:?}");
            assert_eq!(before.check_kept(&now, 64).is_ok(), is_kept, "{now:?}");
        }
    }

    #[test]
    fn memory_that_is_not_known_is_not_little() {
        for (before, now, is_little) in [
            (Some(1), Some(1), true),
            (Some(1), Some(0), true),
            (Some(1), Some(1 + MAX_RESIDUE_BYTES), true),
            (Some(1), Some(2 + MAX_RESIDUE_BYTES), false),
            (Some(1), None, false),
            (None, Some(1), false),
            (None, None, false),
        ] {
            assert_eq!(is_little_residue(before, now), is_little, "{before:?}, {now:?}");
        }
    }
}
