//! The kernel's own limit on a run: a control group for each child, where some are delegated to this user.
//!
//! ```text
//! delegated ─▶ set_up ─▶ group ─ enter(pid) ─ limit(grant) ─▶ guest ─▶ dropped: used again, or removed
//!                └────────────────────── end: everybody in them is killed ──────────────┘
//! ```
//! The limiter, the throttle and `RLIMIT_DATA` hold a guest exactly. A group is for a child that has broken out
//! of them, and for what they do not see: memory that the kernel holds for it, and files in memory. So its limits
//! are a little wider, and a guest that is held by the others never meets it.

use super::confine::{OVERHEAD_BYTES, OVERHEAD_PER_OUTPUT_BYTE};
use crate::capability::Grant;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Where control groups are mounted.
const MOUNTED: &str = "/sys/fs/cgroup";
/// What the folders of executors begin with, before the number of their process.
const OURS: &str = "a2g-executor-";
/// What the folder ends with in which version 2 wants the executor itself to be.
const SERVER: &str = "-server";
/// What a child may have that no other limit counts: its copy of the zygote's pages, and the kernel's memory
/// for it.
const HEADROOM_BYTES: u64 = 64 << 20;
/// What may be left of a run in a group that is used again, such as the kernel's names of files. A group with
/// more is removed, because the next run would pay for it.
const MAX_RESIDUE_BYTES: u64 = 8 << 20;
/// How many groups that nobody is in are kept for the next runs: the kernel takes longer to make and to remove one
/// than to run a small guest. One comes back while another is about to be used.
const MAX_SPARE_GROUPS: usize = 2;
/// After how long it is first tried again to remove a group whose child was not quite gone when nobody needed it any
/// more, and the longest pause from then on, each twice the one before.
const SWEEPS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The time over which the kernel counts CPU time, in microseconds: its longest, so that no guest that the
/// throttle lets run in one piece is stopped here.
const PERIOD_US: u64 = 1_000_000;
/// How often, and after how long, it is tried again to remove a group whose processes were killed.
const REMOVALS: (u32, Duration) = (100, Duration::from_millis(2));

/// Why there is no folder in which this user may make groups.
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

/// The folders in which this user may make groups with memory and CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Delegated {
    /// Version 1: a hierarchy for each.
    One { memory: PathBuf, cpu: PathBuf },
    /// Version 2: one folder for both.
    Two(PathBuf),
}

impl Delegated {
    /// Looks for them. Nothing is changed.
    ///
    /// # Ambient Authority
    /// Reads `/proc/self` and the folders of control groups.
    ///
    /// # Errors
    /// [`NotDelegatedError`] when there are none.
    pub(super) fn find() -> std::result::Result<Self, NotDelegatedError> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::among(&own, Path::new(MOUNTED))
    }

    /// Those of a process whose `/proc/self/cgroup` says `own`, where groups are mounted below `mounted`.
    fn among(own: &str, mounted: &Path) -> std::result::Result<Self, NotDelegatedError> {
        let ours = own.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((parts.next()?, parts.next()?.trim_start_matches('/')))
        });
        let (mut memory, mut cpu) = (None, None);
        for (controllers, path) in ours {
            if controllers.is_empty() {
                let folder = mounted.join(path);
                let changed = ["", "cgroup.procs", "cgroup.subtree_control"].map(|name| folder.join(name));
                if has_both(&folder, "cgroup.controllers") && changed.iter().all(|file| writable(file)) {
                    return alone_in(&folder).map(|()| Self::Two(folder));
                }
            }
            let folder = mounted.join(controllers).join(path);
            for controller in controllers.split(',').filter(|_| writable(&folder)) {
                match controller {
                    "memory" => memory = Some(folder.clone()),
                    "cpu" => cpu = Some(folder.clone()),
                    _ => {}
                }
            }
        }
        match (memory, cpu) {
            (Some(memory), Some(cpu)) => Ok(Self::One { memory, cpu }),
            (None, _) | (_, None) => Err(NotDelegatedError::Absent),
        }
    }

    /// For people.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::One { memory, cpu } => format!("version 1, {} and {}", memory.display(), cpu.display()),
            Self::Two(folder) => format!("version 2, {}", folder.display()),
        }
    }

    /// The folders of a group of this name below, once for each hierarchy.
    fn below(&self, name: &str) -> Self {
        match self {
            Self::One { memory, cpu } => Self::One { memory: memory.join(name), cpu: cpu.join(name) },
            Self::Two(folder) => Self::Two(folder.join(name)),
        }
    }

    fn folders(&self) -> impl Iterator<Item = &Path> {
        let (first, second) = match self {
            Self::One { memory, cpu } => (memory, Some(cpu)),
            Self::Two(folder) => (folder, None),
        };
        std::iter::once(first).chain(second).map(PathBuf::as_path)
    }

    fn make(&self) -> Result<()> {
        self.folders().try_for_each(|folder| match fs::create_dir(folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made,
        })
    }

    /// Sets what is the same for all runs. Swap would be memory beside the limit; a kernel may be built without.
    fn prepare(&self) -> Result<()> {
        let no_swap = match self {
            Self::One { memory, cpu } => {
                write(&cpu.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
                memory.join("memory.swappiness")
            }
            Self::Two(folder) => folder.join("memory.swap.max"),
        };
        match write(&no_swap, "0") {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            written => written,
        }
    }

    /// Removes a group. A group that was removed before is no error.
    fn remove(&self) -> Result<()> {
        self.folders().try_for_each(|folder| match fs::remove_dir(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        })
    }

    /// The processes in it.
    fn processes(&self) -> Vec<i32> {
        let lists = self.folders().filter_map(|folder| fs::read_to_string(folder.join("cgroup.procs")).ok());
        lists.flat_map(|list| list.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
    }

    /// Whether the runs before have left little in it.
    fn is_clean(&self) -> bool {
        let held = match self {
            Self::One { memory, .. } => memory.join("memory.usage_in_bytes"),
            Self::Two(folder) => folder.join("memory.current"),
        };
        let held = fs::read_to_string(held).ok().and_then(|bytes| bytes.trim().parse::<u64>().ok());
        held.is_some_and(|bytes| bytes <= MAX_RESIDUE_BYTES)
    }

    /// Kills everybody in it, and removes it.
    fn end(&self) {
        // Who has no CPU time left would have to wait for some to die with.
        let lifted = match self {
            Self::One { cpu, .. } => write(&cpu.join("cpu.cfs_quota_us"), "-1"),
            Self::Two(folder) => write(&folder.join("cpu.max"), "max"),
        };
        drop(lifted);
        for _ in 0..REMOVALS.0 {
            for pid in self.processes().into_iter().filter_map(rustix::process::Pid::from_raw) {
                let _already_gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            if self.remove().is_ok() {
                return;
            }
            std::thread::sleep(REMOVALS.1);
        }
        tracing::warn!(groups = self.shown(), "a control group cannot be removed");
    }

    /// Ends a group and those inside.
    fn end_all(&self) {
        self.inside().iter().for_each(|name| self.below(name).end());
        self.end();
    }

    /// The names of the groups inside, in whatever hierarchy: who was killed may have left one in one only.
    fn inside(&self) -> BTreeSet<String> {
        let entries = self.folders().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Those that executors left which are gone. One may have had the number of this process, which has none yet.
    fn left_behind(&self) -> impl Iterator<Item = Self> {
        let own = std::process::id().to_string();
        let dead = self.inside().into_iter().filter(move |name| {
            let pid = name.strip_prefix(OURS).map(|pid| pid.strip_suffix(SERVER).unwrap_or(pid));
            let pid = pid.filter(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()));
            pid.is_some_and(|pid| pid == own || !Path::new("/proc").join(pid).exists())
        });
        dead.map(|name| self.below(&name))
    }
}

/// Whether a list of controllers has memory and CPU.
fn has_both(folder: &Path, list: &str) -> bool {
    let list = fs::read_to_string(folder.join(list)).unwrap_or_default();
    ["memory", "cpu"].iter().all(|wanted| list.split_whitespace().any(|has| has == *wanted))
}

/// In version 2 a group whose groups have limits can hold no process itself, so that only a group can be
/// used in which there is nobody else to be moved.
fn alone_in(folder: &Path) -> std::result::Result<(), NotDelegatedError> {
    let own = std::process::id().to_string();
    let others = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    if has_both(folder, "cgroup.subtree_control") || others.lines().all(|pid| pid == own) {
        return Ok(());
    }
    Err(NotDelegatedError::Shared(folder.to_owned()))
}

fn writable(folder: &Path) -> bool {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
}

fn write(path: &Path, text: &str) -> Result<()> {
    let opened = OpenOptions::new().write(true).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| named(path, &error))
}

fn named(file: &Path, error: &Error) -> Error {
    Error::new(error.kind(), format!("{}: {error}", file.display()))
}

/// The groups of this process.
#[derive(Debug)]
pub struct Cgroups {
    base: Delegated,
    moved: Option<Moved>,
    next: AtomicU64,
    /// Those that no child is in any more, or will soon be.
    free: Mutex<Vec<Used>>,
    /// Whether a thread removes those of them that are too many.
    sweeping: AtomicBool,
}

/// A group that runs were in, with what it still limits.
#[derive(Debug, Clone)]
struct Used {
    folders: Delegated,
    memory_bytes: Option<u64>,
}

impl Cgroups {
    /// Makes a place for the groups of this process, and removes what executors left behind that are gone.
    /// `None` when nothing is delegated.
    ///
    /// # Ambient Authority
    /// Makes and removes control groups, and in version 2 moves this process into one of its own.
    ///
    /// # Errors
    /// When the kernel refuses what it seems to delegate.
    pub fn set_up() -> Result<Option<Arc<Self>>> {
        let delegated = match Delegated::find() {
            Ok(delegated) => delegated,
            Err(reason) => {
                tracing::info!(%reason, "tools are contained without control groups");
                return Ok(None);
            }
        };
        for left in delegated.left_behind() {
            left.end_all();
        }
        let moved = match &delegated {
            Delegated::Two(folder) if !has_both(folder, "cgroup.subtree_control") => {
                Some(Moved::into(folder, folder.join(format!("{OURS}{}{SERVER}", std::process::id())))?)
            }
            Delegated::One { .. } | Delegated::Two(_) => None,
        };
        let base = delegated.below(&format!("{OURS}{}", std::process::id()));
        base.make()?;
        if let Delegated::Two(folder) = &base {
            write(&folder.join("cgroup.subtree_control"), "+memory +cpu")?;
        }
        let (next, free, sweeping) = (AtomicU64::new(0), Mutex::default(), AtomicBool::new(false));
        Ok(Some(Arc::new(Self { base, moved, next, free, sweeping })))
    }

    /// A group with nobody in it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn group(self: &Arc<Self>) -> Result<Group> {
        let mut busy = Vec::new();
        let found = loop {
            let Some(used) = self.lock().pop() else { break None };
            // When a zygote has died, the kernel may not be done with its children.
            if !used.folders.processes().is_empty() {
                busy.push(used);
            } else if used.folders.is_clean() {
                break Some(used);
            } else if used.folders.remove().is_err() {
                busy.push(used);
            }
        };
        self.keep(busy);
        let Used { folders, memory_bytes } = match found {
            Some(used) => used,
            None => {
                let folders = self.base.below(&self.next.fetch_add(1, Ordering::Relaxed).to_string());
                folders.make()?;
                folders.prepare()?;
                Used { folders, memory_bytes: None }
            }
        };
        Ok(Group { all: Arc::clone(self), folders, memory_bytes: Mutex::new(memory_bytes) })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Used>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps groups to be used again. Those that are too many are removed when the kernel lets them go.
    fn keep(self: &Arc<Self>, used: impl IntoIterator<Item = Used>) {
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
            tracing::debug!(%error, "control groups wait for the next run");
            self.sweeping.store(false, Ordering::Release);
        }
    }

    fn sweep(&self) {
        let (mut pause, longest) = SWEEPS;
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
                // Said under the lock: whoever adds one from here on begins anew.
                return self.sweeping.store(false, Ordering::Release);
            }
        }
    }

    /// Kills every child, and removes all groups.
    pub fn end(&self) {
        self.base.end_all();
        // Another executor may have its groups beside these, and then the place stays as it needs it.
        if let Some(Err(error)) = self.moved.as_ref().map(Moved::back) {
            tracing::debug!(%error, "the control group of the server stays");
        }
    }
}

/// This process in a group of its own, which version 2 wants: a group whose groups have limits holds no process.
#[derive(Debug)]
struct Moved {
    from: PathBuf,
    to: PathBuf,
}

impl Moved {
    /// Moves this process, and lets the groups inside have limits.
    fn into(from: &Path, to: PathBuf) -> Result<Self> {
        let moved = Self { from: from.to_owned(), to };
        fs::create_dir_all(&moved.to)?;
        let enabled = write(&moved.to.join("cgroup.procs"), &std::process::id().to_string())
            .and_then(|()| write(&from.join("cgroup.subtree_control"), "+memory +cpu"));
        match enabled {
            Ok(()) => Ok(moved),
            Err(error) => {
                let _what_can_be = moved.back();
                Err(error)
            }
        }
    }

    /// Leaves the place as it was: for as long as its groups may have limits, nobody can be put into it.
    fn back(&self) -> Result<()> {
        write(&self.from.join("cgroup.subtree_control"), "-memory -cpu")?;
        write(&self.from.join("cgroup.procs"), &std::process::id().to_string())?;
        // A zygote that is about to end.
        Delegated::Two(self.to.clone()).end();
        Ok(())
    }
}

/// The group of one child.
#[derive(Debug)]
pub(super) struct Group {
    all: Arc<Cgroups>,
    folders: Delegated,
    /// The limit on memory that the kernel holds now.
    memory_bytes: Mutex<Option<u64>>,
}

impl Group {
    /// Takes a process in, with all its threads.
    pub(super) fn enter(&self, pid: i32) -> Result<()> {
        self.folders.folders().try_for_each(|folder| write(&folder.join("cgroup.procs"), &pid.to_string()))
    }

    /// Sets what the child of a run may take: what its guest may have, and room for the executor's own. Files that
    /// it writes may lie in memory.
    pub(super) fn limit(&self, grant: &Grant) -> Result<()> {
        let own = OVERHEAD_BYTES
            .saturating_add(OVERHEAD_PER_OUTPUT_BYTE.saturating_mul(grant.output().value.bytes()))
            .saturating_add(grant.budgets().written.bytes())
            .saturating_add(HEADROOM_BYTES);
        let memory_bytes = grant.memory().value.bytes().saturating_add(own);
        // A tenth and five points more than the throttle, which has to be the one that a guest meets.
        let percent = u64::from(grant.cpu().value.get());
        let quota_us = (percent * 11).div_ceil(10).saturating_add(5).saturating_mul(PERIOD_US / 100);
        let (memory_limit, cpu_limit, quota) = match &self.folders {
            Delegated::One { memory, cpu } => {
                (memory.join("memory.limit_in_bytes"), cpu.join("cpu.cfs_quota_us"), quota_us.to_string())
            }
            Delegated::Two(folder) => {
                (folder.join("memory.max"), folder.join("cpu.max"), format!("{quota_us} {PERIOD_US}"))
            }
        };
        // To write the same again would take as long as the first time.
        let mut held = self.memory_bytes();
        if *held != Some(memory_bytes) {
            *held = None;
            write(&memory_limit, &memory_bytes.to_string())?;
            *held = Some(memory_bytes);
        }
        // Also when it is the same: this gives the run a whole period, of which the run before has used nothing.
        write(&cpu_limit, &quota)
    }

    fn memory_bytes(&self) -> std::sync::MutexGuard<'_, Option<u64>> {
        self.memory_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Group {
    /// Some are kept to be used again, and one whose child is not quite gone.
    fn drop(&mut self) {
        let memory_bytes = *self.memory_bytes();
        let room = self.all.lock().len() < MAX_SPARE_GROUPS;
        if room || self.folders.remove().is_err() {
            self.all.keep([Used { folders: self.folders.clone(), memory_bytes }]);
        }
    }
}

#[cfg(test)]
mod tests;
