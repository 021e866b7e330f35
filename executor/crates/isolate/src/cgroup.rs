//! The kernel's own limits on a run: a control group for each child, if control groups are delegated to this user.
//!
//! ```text
//! delegated ─▶ set_up ─▶ group ─ enter(pid) ─ limit(grant) ─▶ guest ─▶ dropped: reused or removed
//!                └────────────────────── end: kills every process in them ──────────────┘
//! ```
//! The limiter, the throttle and `RLIMIT_DATA` limit a guest exactly. A group limits a child that has escaped them, and
//! the memory that they do not count: the kernel's for the child, and files in memory. Its limits are slightly
//! wider, so that a guest under the other limits never reaches them.
// Not the crate cgroups-rs: it enables controllers from the root of the hierarchy, which a delegated user may not, and
// ignores writes that the kernel refuses, so that a limit may be missing unnoticed.

use super::confine::{OVERHEAD_BYTES, OVERHEAD_PER_OUTPUT_BYTE};
use a2g_capability::Grant;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The mount point of control groups.
const MOUNT_POINT: &str = "/sys/fs/cgroup";
/// The prefix of an executor's folders, before its process id.
const EXECUTOR_PREFIX: &str = "a2g-executor-";
/// The suffix of the folder for the executor's own process, which version 2 requires.
const SERVER_SUFFIX: &str = "-server";
/// The memory of a child that no other limit counts: its copies of the zygote's pages, and the kernel's memory for it.
const HEADROOM_BYTES: u64 = 64 << 20;
/// The memory that a run may leave charged to a group that is reused, such as the kernel's file names.
// A group with more is removed, because the next run would be charged for it.
const MAX_RESIDUE_BYTES: u64 = 8 << 20;
/// The number of empty groups that are kept for the next runs.
// Creating and removing a group takes the kernel longer than a small guest's run, and the kernel keeps a removed group
// for as long as a page of its files is cached. Two, because one is returned while
// another is about to be used: with one, 132 of 1,000 runs created and removed a group; with two, 54.
const MAX_SPARE_GROUPS: usize = 2;
/// The first and the longest pause between attempts to remove spare groups; each pause is twice the one before.
// A group cannot be removed while its last process is being torn down.
const SWEEP_PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The period of the CPU quota, in microseconds.
// The kernel's longest: a guest that the throttle lets run in one piece must not be stopped here.
const PERIOD_US: u64 = 1_000_000;
/// The number of attempts to remove a group whose processes were killed, and the pause between them.
const REMOVAL_ATTEMPTS: (u32, Duration) = (100, Duration::from_millis(2));

/// No folder is delegated in which this user may create groups.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotDelegatedError {
    #[error(
        "none with memory and CPU is delegated to this user: with systemd, `Delegate=memory cpu` in the unit"
    )]
    Absent,
    #[error(
        "other processes are in {}: with systemd, start the executor as a unit with `Delegate=memory cpu`",
        .0.display()
    )]
    Shared(PathBuf),
}

/// Folders of control groups: those in which this user may create groups, or those of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CgroupDirs {
    /// Version 1: one hierarchy per controller.
    V1 { memory: PathBuf, cpu: PathBuf },
    /// Version 2: one folder for both controllers.
    V2(PathBuf),
}

impl CgroupDirs {
    /// Finds the delegated folders without changing anything.
    ///
    /// # Ambient Authority
    /// Reads `/proc/self` and the folders of control groups.
    ///
    /// # Errors
    /// [`NotDelegatedError`] with the setting to change, if there are none.
    pub(super) fn find() -> std::result::Result<Self, NotDelegatedError> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::find_in(&own, Path::new(MOUNT_POINT))
    }

    /// The delegated folders of a process with `own` as its `/proc/self/cgroup`, with groups mounted at `mounted`.
    fn find_in(own: &str, mounted: &Path) -> std::result::Result<Self, NotDelegatedError> {
        let ours = own.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((parts.next()?, parts.next()?.trim_start_matches('/')))
        });
        let (mut memory, mut cpu) = (None, None);
        for (controllers, path) in ours {
            if controllers.is_empty() {
                let folder = mounted.join(path);
                let changed = ["", "cgroup.procs", "cgroup.subtree_control"].map(|name| folder.join(name));
                if has_memory_and_cpu(&folder, "cgroup.controllers")
                    && changed.iter().all(|file| is_writable(file))
                {
                    return check_exclusive(&folder).map(|()| Self::V2(folder));
                }
            }
            let folder = mounted.join(controllers).join(path);
            for controller in controllers.split(',').filter(|_| is_writable(&folder)) {
                match controller {
                    "memory" => memory = Some(folder.clone()),
                    "cpu" => cpu = Some(folder.clone()),
                    _ => {}
                }
            }
        }
        match (memory, cpu) {
            (Some(memory), Some(cpu)) => Ok(Self::V1 { memory, cpu }),
            (None, _) | (_, None) => Err(NotDelegatedError::Absent),
        }
    }

    pub(super) fn description(&self) -> String {
        match self {
            Self::V1 { memory, cpu } => format!("version 1, {} and {}", memory.display(), cpu.display()),
            Self::V2(folder) => format!("version 2, {}", folder.display()),
        }
    }

    /// The folders of the child group `name`.
    fn child(&self, name: &str) -> Self {
        match self {
            Self::V1 { memory, cpu } => Self::V1 { memory: memory.join(name), cpu: cpu.join(name) },
            Self::V2(folder) => Self::V2(folder.join(name)),
        }
    }

    fn folders(&self) -> impl Iterator<Item = &Path> {
        let (first, second) = match self {
            Self::V1 { memory, cpu } => (memory, Some(cpu)),
            Self::V2(folder) => (folder, None),
        };
        std::iter::once(first).chain(second).map(PathBuf::as_path)
    }

    fn create(&self) -> Result<()> {
        self.folders().try_for_each(|folder| match fs::create_dir(folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made,
        })
    }

    /// Sets the limits that are the same for all runs.
    fn prepare(&self) -> Result<()> {
        let no_swap = match self {
            Self::V1 { memory, cpu } => {
                write(&cpu.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
                memory.join("memory.swappiness")
            }
            Self::V2(folder) => folder.join("memory.swap.max"),
        };
        // Swap would be memory in addition to the limit. A kernel without swap has no such file.
        match write(&no_swap, "0") {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            written => written,
        }
    }

    /// Removes a group. A missing group is no error.
    fn remove(&self) -> Result<()> {
        self.folders().try_for_each(|folder| match fs::remove_dir(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        })
    }

    /// The process ids in the group.
    fn processes(&self) -> Vec<i32> {
        let lists = self.folders().filter_map(|folder| fs::read_to_string(folder.join("cgroup.procs")).ok());
        lists.flat_map(|list| list.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
    }

    /// Earlier runs have left little memory charged to the group.
    fn is_clean(&self) -> bool {
        let held = match self {
            Self::V1 { memory, .. } => memory.join("memory.usage_in_bytes"),
            Self::V2(folder) => folder.join("memory.current"),
        };
        let held = fs::read_to_string(held).ok().and_then(|bytes| bytes.trim().parse::<u64>().ok());
        held.is_some_and(|bytes| bytes <= MAX_RESIDUE_BYTES)
    }

    /// Kills every process in the group and removes it.
    fn end(&self) {
        // A process needs CPU time to die, and its quota may be used up.
        let lifted = match self {
            Self::V1 { cpu, .. } => write(&cpu.join("cpu.cfs_quota_us"), "-1"),
            Self::V2(folder) => write(&folder.join("cpu.max"), "max"),
        };
        drop(lifted);
        for _ in 0..REMOVAL_ATTEMPTS.0 {
            for pid in self.processes().into_iter().filter_map(rustix::process::Pid::from_raw) {
                let _already_gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            if self.remove().is_ok() {
                return;
            }
            std::thread::sleep(REMOVAL_ATTEMPTS.1);
        }
        tracing::warn!(groups = self.description(), "a control group cannot be removed");
    }

    /// Ends a group and its child groups.
    fn end_all(&self) {
        self.child_names().iter().for_each(|name| self.child(name).end());
        self.end();
    }

    /// The names of the child groups in any hierarchy.
    // An executor that was killed may have left a group in one of the two.
    fn child_names(&self) -> BTreeSet<String> {
        let entries = self.folders().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// The groups of executors that have ended. One of them may have had this process's id, which owns no group yet.
    fn stale(&self) -> impl Iterator<Item = Self> {
        let own = std::process::id().to_string();
        let dead = self.child_names().into_iter().filter(move |name| {
            let pid =
                name.strip_prefix(EXECUTOR_PREFIX).map(|pid| pid.strip_suffix(SERVER_SUFFIX).unwrap_or(pid));
            let pid = pid.filter(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()));
            pid.is_some_and(|pid| pid == own || !Path::new("/proc").join(pid).exists())
        });
        dead.map(|name| self.child(&name))
    }
}

fn has_memory_and_cpu(folder: &Path, list: &str) -> bool {
    let list = fs::read_to_string(folder.join(list)).unwrap_or_default();
    ["memory", "cpu"].iter().all(|wanted| list.split_whitespace().any(|has| has == *wanted))
}

/// Checks that no other process is in `folder`.
// In version 2 a group whose child groups have limits cannot contain processes. This process can move itself to a
// child group, but must not move others.
fn check_exclusive(folder: &Path) -> std::result::Result<(), NotDelegatedError> {
    let own = std::process::id().to_string();
    let others = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    if has_memory_and_cpu(folder, "cgroup.subtree_control") || others.lines().all(|pid| pid == own) {
        return Ok(());
    }
    Err(NotDelegatedError::Shared(folder.to_owned()))
}

fn is_writable(folder: &Path) -> bool {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
}

fn write(path: &Path, text: &str) -> Result<()> {
    let opened = OpenOptions::new().write(true).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| with_path(path, &error))
}

fn with_path(file: &Path, error: &Error) -> Error {
    Error::new(error.kind(), format!("{}: {error}", file.display()))
}

/// The groups of this process.
#[derive(Debug)]
pub struct Cgroups {
    base: CgroupDirs,
    server_group: Option<ServerGroup>,
    next: AtomicU64,
    /// Groups whose child has ended or is ending.
    free: Mutex<Vec<SpareGroup>>,
    /// A thread is removing surplus groups.
    sweeping: AtomicBool,
}

/// A group of earlier runs, with the memory limit that it still has.
#[derive(Debug, Clone)]
struct SpareGroup {
    folders: CgroupDirs,
    memory_bytes: Option<u64>,
}

impl Cgroups {
    /// Creates the parent of this process's groups, and removes groups of executors that have ended. `None` if no
    /// groups are delegated.
    ///
    /// # Ambient Authority
    /// Creates and removes control groups, and in version 2 moves this process into one of its own.
    ///
    /// # Errors
    /// The kernel refuses a change to a folder that it appears to delegate.
    pub fn set_up() -> Result<Option<Arc<Self>>> {
        let delegated = match CgroupDirs::find() {
            Ok(delegated) => delegated,
            Err(reason) => {
                tracing::info!(%reason, "tools are contained without control groups");
                return Ok(None);
            }
        };
        for left in delegated.stale() {
            left.end_all();
        }
        let server_group = match &delegated {
            CgroupDirs::V2(folder) if !has_memory_and_cpu(folder, "cgroup.subtree_control") => {
                Some(ServerGroup::enter(
                    folder,
                    folder.join(format!("{EXECUTOR_PREFIX}{}{SERVER_SUFFIX}", std::process::id())),
                )?)
            }
            CgroupDirs::V1 { .. } | CgroupDirs::V2(_) => None,
        };
        let base = delegated.child(&format!("{EXECUTOR_PREFIX}{}", std::process::id()));
        base.create()?;
        if let CgroupDirs::V2(folder) = &base {
            write(&folder.join("cgroup.subtree_control"), "+memory +cpu")?;
        }
        let (next, free, sweeping) = (AtomicU64::new(0), Mutex::default(), AtomicBool::new(false));
        Ok(Some(Arc::new(Self { base, server_group, next, free, sweeping })))
    }

    /// An empty group, reused or new.
    ///
    /// # Errors
    /// The kernel refuses to create one.
    pub(super) fn group(self: &Arc<Self>) -> Result<Group> {
        let mut busy = Vec::new();
        let found = loop {
            let Some(used) = self.lock().pop() else { break None };
            // After the death of a zygote, the kernel may still be tearing down its children.
            if !used.folders.processes().is_empty() {
                busy.push(used);
            } else if used.folders.is_clean() {
                break Some(used);
            } else if used.folders.remove().is_err() {
                busy.push(used);
            }
        };
        self.put_back(busy);
        let SpareGroup { folders, memory_bytes } = match found {
            Some(used) => used,
            None => {
                let folders = self.base.child(&self.next.fetch_add(1, Ordering::Relaxed).to_string());
                folders.create()?;
                folders.prepare()?;
                SpareGroup { folders, memory_bytes: None }
            }
        };
        Ok(Group { all: Arc::clone(self), folders, memory_bytes: Mutex::new(memory_bytes) })
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Vec<SpareGroup>> {
        self.free.lock()
    }

    /// Stores groups for reuse. A thread removes surplus ones as soon as the kernel allows it.
    fn put_back(self: &Arc<Self>, used: impl IntoIterator<Item = SpareGroup>) {
        let mut free = self.lock();
        free.extend(used);
        let too_many = free.len() > MAX_SPARE_GROUPS;
        drop(free);
        if !too_many || self.sweeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let all = Arc::clone(self);
        let thread = std::thread::Builder::new().name("cgroups".to_owned());
        if let Err(error) = thread.spawn(move || all.sweep()) {
            tracing::debug!(%error, "no thread can be started to remove control groups; retried after the next run");
            self.sweeping.store(false, Ordering::Release);
        }
    }

    fn sweep(&self) {
        let (mut pause, longest) = SWEEP_PAUSES;
        loop {
            std::thread::sleep(pause);
            pause = longest.min(pause * 2);
            // A run that wants a group must not wait for the kernel to remove one.
            let mut free = self.lock();
            let kept = free.len().min(MAX_SPARE_GROUPS);
            let mut too_many = free.split_off(kept);
            drop(free);
            too_many.retain(|used| used.folders.remove().is_err());
            let mut free = self.lock();
            free.append(&mut too_many);
            if free.len() <= MAX_SPARE_GROUPS {
                // Cleared under the lock: a group that is added after this starts a new thread.
                return self.sweeping.store(false, Ordering::Release);
            }
        }
    }

    /// Kills every child and removes all groups.
    pub fn end(&self) {
        self.base.end_all();
        // Fails if another executor has groups in the same folder, which then has to stay as it is.
        if let Some(Err(error)) = self.server_group.as_ref().map(ServerGroup::leave) {
            tracing::debug!(%error, "the server's control group is kept");
        }
    }
}

/// This process's move to a group of its own.
// Version 2 requires it: a group whose child groups have limits cannot contain processes.
#[derive(Debug)]
struct ServerGroup {
    from: PathBuf,
    to: PathBuf,
}

impl ServerGroup {
    /// Moves this process to `to`, and enables limits for the child groups of `from`.
    fn enter(from: &Path, to: PathBuf) -> Result<Self> {
        let group = Self { from: from.to_owned(), to };
        fs::create_dir_all(&group.to)?;
        let enabled = write(&group.to.join("cgroup.procs"), &std::process::id().to_string())
            .and_then(|()| write(&from.join("cgroup.subtree_control"), "+memory +cpu"));
        match enabled {
            Ok(()) => Ok(group),
            Err(error) => {
                let _what_can_be = group.leave();
                Err(error)
            }
        }
    }

    /// Moves this process back and disables the limits of child groups.
    fn leave(&self) -> Result<()> {
        // First: as long as child groups may have limits, no process can be moved into their parent.
        write(&self.from.join("cgroup.subtree_control"), "-memory -cpu")?;
        write(&self.from.join("cgroup.procs"), &std::process::id().to_string())?;
        // A zygote that is ending may still be in it.
        CgroupDirs::V2(self.to.clone()).end();
        Ok(())
    }
}

/// The group of one child.
#[derive(Debug)]
pub(super) struct Group {
    all: Arc<Cgroups>,
    folders: CgroupDirs,
    /// The memory limit that the kernel has at present; `None` if unknown.
    memory_bytes: Mutex<Option<u64>>,
}

impl Group {
    /// Moves a process into the group, with all its threads.
    pub(super) fn enter(&self, pid: i32) -> Result<()> {
        self.folders.folders().try_for_each(|folder| write(&folder.join("cgroup.procs"), &pid.to_string()))
    }

    /// Sets the limits of a run's child: those of its guest, plus the executor's own overhead.
    pub(super) fn limit(&self, grant: &Grant) -> Result<()> {
        // Files that the run writes are included, because they may lie in memory.
        let own = OVERHEAD_BYTES
            .saturating_add(OVERHEAD_PER_OUTPUT_BYTE.saturating_mul(grant.output().value.bytes()))
            .saturating_add(grant.budgets().written.bytes())
            .saturating_add(HEADROOM_BYTES);
        let memory_bytes = grant.memory().value.bytes().saturating_add(own);
        // A tenth and five points more than the throttle, so that a guest reaches the throttle first.
        let percent = u64::from(grant.cpu().value.get());
        let quota_us = (percent * 11).div_ceil(10).saturating_add(5).saturating_mul(PERIOD_US / 100);
        let (memory_limit, cpu_limit, quota) = match &self.folders {
            CgroupDirs::V1 { memory, cpu } => {
                (memory.join("memory.limit_in_bytes"), cpu.join("cpu.cfs_quota_us"), quota_us.to_string())
            }
            CgroupDirs::V2(folder) => {
                (folder.join("memory.max"), folder.join("cpu.max"), format!("{quota_us} {PERIOD_US}"))
            }
        };
        // Writing the same limit again would take as long as the first time.
        let mut held = self.memory_bytes();
        if *held != Some(memory_bytes) {
            *held = None;
            write(&memory_limit, &memory_bytes.to_string())?;
            *held = Some(memory_bytes);
        }
        // Also if unchanged: the write starts a new period. Without it, a run of a few milliseconds at 1 % stood still
        // for most of a second, because the run before had used up the period's quota.
        write(&cpu_limit, &quota)
    }

    fn memory_bytes(&self) -> parking_lot::MutexGuard<'_, Option<u64>> {
        self.memory_bytes.lock()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Removing fails while the child is being torn down; the group is then stored and removed later.
        let memory_bytes = *self.memory_bytes();
        let room = self.all.lock().len() < MAX_SPARE_GROUPS;
        if room || self.folders.remove().is_err() {
            self.all.put_back([SpareGroup { folders: self.folders.clone(), memory_bytes }]);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
