//! The kernel's own limits on a run: a control group for each child, if control groups are delegated to this user.
//!
//! ```text
//! delegated ─▶ set_up ─▶ group ─ enter(pid) ─ limit(grant) ─▶ guest ─▶ dropped: reused or removed
//!                └────────────────────── end: kills every process in them ──────────────┘
//! ```
//! The limiter, the throttle and `RLIMIT_DATA` limit a guest exactly. A group limits a child that has escaped them, and
//! the memory that they do not count: kernel memory that is allocated for the child, and files in a tmpfs. The group's
//! limits are slightly higher, so that a guest under the other limits never reaches them.
// The crate cgroups-rs is not used: it enables controllers from the root of the hierarchy, which a delegated user may
// not do, and ignores writes that the kernel refuses, so that a limit could be missing without an error.

use super::confine::{OVERHEAD_BYTES, OVERHEAD_OF_CHANGES, OVERHEAD_PER_OUTPUT_BYTE};
use a2g_capability::Grant;
use a2g_types::limit::Limit;
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
/// Maximum memory that earlier runs may leave charged to the group of the next run, such as cached directory entries
/// (dentries).
// A group with more is removed, because the next run would be charged for it.
pub(super) const MAX_RESIDUE_BYTES: u64 = 8 << 20;
/// Maximum number of empty groups for the next runs.
// Creating and removing a group takes the kernel longer than a small guest's run, and the kernel keeps a removed group
// for as long as a page of its files is cached. There are two spare groups, because one is returned while another is
// about to be used: with one, 132 of 1,000 runs created and removed a group; with two, 54.
const MAX_SPARE_GROUPS: usize = 2;
/// The first delay between attempts to remove surplus groups; each delay is twice the previous one.
// A group cannot be removed while its last process is being torn down.
const MIN_SWEEP_DELAY: Duration = Duration::from_millis(50);
/// The longest delay between these attempts.
const MAX_SWEEP_DELAY: Duration = Duration::from_secs(1);
/// The period of the CPU quota, in microseconds.
// It is the kernel's maximum. In a shorter period, the quota could stop a guest that the throttle still lets run.
const PERIOD_US: u64 = 1_000_000;
/// Maximum number of attempts to remove a group whose processes were killed.
const MAX_REMOVAL_ATTEMPTS: u32 = 100;
/// The delay between two such attempts.
const REMOVAL_DELAY: Duration = Duration::from_millis(2);

/// No folder is delegated in which this user may create groups.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotDelegatedError {
    #[error(
        "no cgroup with memory and CPU is delegated to this user: with systemd, set `Delegate=memory cpu` in the unit"
    )]
    Absent,
    #[error(
        "other processes are in the cgroup {}: with systemd, start the executor as a unit with `Delegate=memory cpu`",
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

    /// The delegated folders of a process whose `/proc/self/cgroup` contains `own`, with groups mounted at
    /// `mount_point`.
    fn find_in(own: &str, mount_point: &Path) -> std::result::Result<Self, NotDelegatedError> {
        let memberships = own.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((parts.next()?, parts.next()?.trim_start_matches('/')))
        });
        let mut memory = None;
        let mut cpu = None;
        for (controllers, path) in memberships {
            if controllers.is_empty() {
                let folder = mount_point.join(path);
                let required = ["", "cgroup.procs", "cgroup.subtree_control"].map(|name| folder.join(name));
                if has_memory_and_cpu(&folder, "cgroup.controllers")
                    && required.iter().all(|file| is_writable(file))
                {
                    return check_exclusive(&folder).map(|()| Self::V2(folder));
                }
            }
            let folder = mount_point.join(controllers).join(path);
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
            result => result,
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
            result => result,
        }
    }

    /// Removes a group. A missing group is not an error.
    fn remove(&self) -> Result<()> {
        self.folders().try_for_each(|folder| match fs::remove_dir(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result,
        })
    }

    /// The process ids in the group.
    fn processes(&self) -> Vec<i32> {
        let lists = self.folders().filter_map(|folder| fs::read_to_string(folder.join("cgroup.procs")).ok());
        lists.flat_map(|list| list.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
    }

    /// The memory that is charged to the group, in bytes; `None` if the kernel does not say.
    fn charged_bytes(&self) -> Option<u64> {
        let usage = match self {
            Self::V1 { memory, .. } => memory.join("memory.usage_in_bytes"),
            Self::V2(folder) => folder.join("memory.current"),
        };
        fs::read_to_string(usage).ok()?.trim().parse().ok()
    }

    /// Returns `true` if little memory of earlier runs is still charged to the group.
    fn is_clean(&self) -> bool {
        self.charged_bytes().is_some_and(|bytes| bytes <= MAX_RESIDUE_BYTES)
    }

    /// Kills every process in the group and removes the group.
    fn end(&self) {
        // A process needs CPU time to exit, and the group's quota may be used up. If this fails, the processes only
        // take longer to exit.
        let _ = match self {
            Self::V1 { cpu, .. } => write(&cpu.join("cpu.cfs_quota_us"), "-1"),
            Self::V2(folder) => write(&folder.join("cpu.max"), "max"),
        };
        for _ in 0..MAX_REMOVAL_ATTEMPTS {
            for pid in self.processes().into_iter().filter_map(rustix::process::Pid::from_raw) {
                // This fails if the process has ended already.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            if self.remove().is_ok() {
                return;
            }
            std::thread::sleep(REMOVAL_DELAY);
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

    /// The groups of executors that have ended. One of them may have had this process's id; this process has no group
    /// yet.
    fn stale_groups(&self) -> impl Iterator<Item = Self> {
        let own = std::process::id().to_string();
        let names = self.child_names().into_iter().filter(move |name| {
            let pid =
                name.strip_prefix(EXECUTOR_PREFIX).map(|pid| pid.strip_suffix(SERVER_SUFFIX).unwrap_or(pid));
            let pid = pid.filter(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()));
            pid.is_some_and(|pid| pid == own || !Path::new("/proc").join(pid).exists())
        });
        names.map(|name| self.child(&name))
    }
}

fn has_memory_and_cpu(folder: &Path, list: &str) -> bool {
    let list = fs::read_to_string(folder.join(list)).unwrap_or_default();
    ["memory", "cpu"].iter().all(|controller| list.split_whitespace().any(|word| word == *controller))
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

fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

fn write(path: &Path, text: &str) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| with_path(path, &error))
}

fn with_path(file: &Path, error: &Error) -> Error {
    Error::new(error.kind(), format!("{}: {error}", file.display()))
}

/// The groups of this process and its children.
#[derive(Debug)]
pub struct Cgroups {
    base: CgroupDirs,
    server_group: Option<ServerGroup>,
    next: AtomicU64,
    /// Groups whose child has ended or is ending.
    spare: Mutex<Vec<SpareGroup>>,
    /// `true` while a thread removes surplus groups.
    is_sweeping: AtomicBool,
}

/// A group of earlier runs, with the memory limit that it still has.
#[derive(Debug, Clone)]
struct SpareGroup {
    folders: CgroupDirs,
    memory_bytes: Option<u64>,
}

impl Cgroups {
    /// Creates the parent of this process's groups, and removes groups of executors that have ended. Returns `None` if
    /// no groups are delegated.
    ///
    /// # Ambient Authority
    /// Creates and removes control groups, and in version 2 moves this process into one of its own.
    ///
    /// # Errors
    /// If the kernel refuses a change to a folder that appears to be delegated.
    pub fn set_up() -> Result<Option<Arc<Self>>> {
        let delegated = match CgroupDirs::find() {
            Ok(delegated) => delegated,
            Err(reason) => {
                tracing::info!(%reason, "tools are contained without control groups");
                return Ok(None);
            }
        };
        for group in delegated.stale_groups() {
            group.end_all();
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
        let next = AtomicU64::new(0);
        let spare = Mutex::default();
        let is_sweeping = AtomicBool::new(false);
        Ok(Some(Arc::new(Self { base, server_group, next, spare, is_sweeping })))
    }

    /// An empty group, reused or new.
    ///
    /// # Errors
    /// If the kernel refuses to create one.
    pub(super) fn group(self: &Arc<Self>) -> Result<Group> {
        let mut busy = Vec::new();
        let reusable = loop {
            let Some(spare) = self.lock().pop() else { break None };
            // After the death of a zygote, the kernel may still be tearing down its children.
            if !spare.folders.processes().is_empty() {
                busy.push(spare);
            } else if spare.folders.is_clean() {
                break Some(spare);
            } else if spare.folders.remove().is_err() {
                busy.push(spare);
            }
        };
        self.put_back(busy);
        let SpareGroup { folders, memory_bytes } = match reusable {
            Some(spare) => spare,
            None => {
                let folders = self.base.child(&self.next.fetch_add(1, Ordering::Relaxed).to_string());
                folders.create()?;
                folders.prepare()?;
                SpareGroup { folders, memory_bytes: None }
            }
        };
        Ok(Group { cgroups: Arc::clone(self), folders, memory_bytes: Mutex::new(memory_bytes) })
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Vec<SpareGroup>> {
        self.spare.lock()
    }

    /// Stores groups for reuse. A thread removes surplus ones as soon as the kernel allows it.
    fn put_back(self: &Arc<Self>, groups: impl IntoIterator<Item = SpareGroup>) {
        let mut spare = self.lock();
        spare.extend(groups);
        let has_surplus = spare.len() > MAX_SPARE_GROUPS;
        drop(spare);
        if !has_surplus || self.is_sweeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let cgroups = Arc::clone(self);
        let thread = std::thread::Builder::new().name("cgroups".to_owned());
        if let Err(error) = thread.spawn(move || cgroups.sweep()) {
            tracing::debug!(%error, "no thread can be started to remove control groups; retried after the next run");
            self.is_sweeping.store(false, Ordering::Release);
        }
    }

    /// Removes surplus groups until none is left.
    fn sweep(&self) {
        let mut delay = MIN_SWEEP_DELAY;
        loop {
            std::thread::sleep(delay);
            delay = MAX_SWEEP_DELAY.min(delay * 2);
            // The lock is not held during the removal: a run that needs a group must not wait for the kernel.
            let mut spare = self.lock();
            let spare_count = spare.len().min(MAX_SPARE_GROUPS);
            let mut surplus = spare.split_off(spare_count);
            drop(spare);
            surplus.retain(|group| group.folders.remove().is_err());
            let mut spare = self.lock();
            spare.append(&mut surplus);
            if spare.len() <= MAX_SPARE_GROUPS {
                // The flag is cleared under the lock, so that a group that is added later starts a new thread.
                return self.is_sweeping.store(false, Ordering::Release);
            }
        }
    }

    /// Kills every child and removes all groups.
    pub fn end(&self) {
        self.base.end_all();
        // This fails if another executor has groups in the same folder, which must then keep its limits enabled.
        if let Some(Err(error)) = self.server_group.as_ref().map(ServerGroup::leave) {
            tracing::debug!(%error, "the server stays in its control group");
        }
    }
}

/// The group that this process moved to, and the one that it came from.
// Version 2 requires the move: a group whose child groups have limits cannot contain processes.
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
        let result = write(&group.to.join("cgroup.procs"), &std::process::id().to_string())
            .and_then(|()| write(&from.join("cgroup.subtree_control"), "+memory +cpu"));
        match result {
            Ok(()) => Ok(group),
            Err(error) => {
                // Undone as far as possible; the first error is the one that is reported.
                let _ = group.leave();
                Err(error)
            }
        }
    }

    /// Moves this process back and disables the limits of child groups.
    fn leave(&self) -> Result<()> {
        // This comes first, because no process can be moved into the parent of groups that may have limits.
        write(&self.from.join("cgroup.subtree_control"), "-memory -cpu")?;
        write(&self.from.join("cgroup.procs"), &std::process::id().to_string())?;
        // A zygote that is ending may still be in the group.
        CgroupDirs::V2(self.to.clone()).end();
        Ok(())
    }
}

/// The group of one child.
#[derive(Debug)]
pub(super) struct Group {
    cgroups: Arc<Cgroups>,
    folders: CgroupDirs,
    /// The memory limit that is set in the kernel; `None` if unknown.
    memory_bytes: Mutex<Option<u64>>,
}

impl Group {
    /// Moves a process into the group, with all its threads.
    pub(super) fn enter(&self, pid: i32) -> Result<()> {
        self.folders.folders().try_for_each(|folder| write(&folder.join("cgroup.procs"), &pid.to_string()))
    }

    /// Sets the limits of a run's child: those of its guest, plus the executor's own overhead.
    pub(super) fn limit(&self, grant: &Grant) -> Result<()> {
        let written = grant.limit(Limit::Written).value;
        // The table of changes, and the copies of what is changed.
        let of_changes =
            if grant.effects().value.is_direct() { 0 } else { OVERHEAD_OF_CHANGES.saturating_add(written) };
        // Files that the run writes are included, because they may be in a tmpfs.
        let overhead = OVERHEAD_BYTES
            .saturating_add(OVERHEAD_PER_OUTPUT_BYTE.saturating_mul(grant.output().value.bytes()))
            .saturating_add(written)
            .saturating_add(of_changes)
            .saturating_add(HEADROOM_BYTES);
        let memory_bytes = grant.memory().value.bytes().saturating_add(overhead);
        // A tenth and five percentage points more than the throttle allows, so that a guest reaches the throttle first.
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
        let mut kernel_limit = self.memory_bytes();
        if *kernel_limit != Some(memory_bytes) {
            *kernel_limit = None;
            write(&memory_limit, &memory_bytes.to_string())?;
            *kernel_limit = Some(memory_bytes);
        }
        // An unchanged quota is also written, because the write starts a new period. Without it, a run of a few
        // milliseconds at 1 % stood still for most of a second: the previous run had used up the period's quota.
        write(&cpu_limit, &quota)
    }

    /// The memory that is charged to the group, in bytes; `None` if the kernel does not say.
    pub(super) fn charged_bytes(&self) -> Option<u64> {
        self.folders.charged_bytes()
    }

    fn memory_bytes(&self) -> parking_lot::MutexGuard<'_, Option<u64>> {
        self.memory_bytes.lock()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Removing fails while the child is being torn down; the group is then stored and removed later.
        let memory_bytes = *self.memory_bytes();
        let is_needed = self.cgroups.lock().len() < MAX_SPARE_GROUPS;
        if is_needed || self.folders.remove().is_err() {
            self.cgroups.put_back([SpareGroup { folders: self.folders.clone(), memory_bytes }]);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
