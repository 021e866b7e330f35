//! What the kernel keeps a disposable child from, whatever happens inside of it.
//!
//! ```text
//! prepare ─▶ zygote ─ fork ─▶ waiting ─ bystander, in the ticker's thread ─ job ─▶ apply ─▶ guest
//! └──── once, one thread ─┘   └────────────────────── each child ──────────────────────┘
//! ```
//! Each step only narrows. What this kernel lacks is skipped and named ([`Applied`], [`support`]); a
//! control that it has and that fails is an error, and the child must not run its guest.

use super::cgroup::Delegated;
use super::process::threads;
use super::user::User;
use crate::limit::Access;
use crate::quantity::{MemoryLimit, OutputLimit};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, PathBeneath, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope, make_bitflags,
};
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, Signal, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// What a child may hold of private memory over what it had when it was confined and over the
/// guest's own limit: host calls, streams, the store.
pub const OVERHEAD_BYTES: u64 = 64 << 20;
/// And for each byte of output that it may give: a JSON value takes up to this much of its text.
pub const OVERHEAD_PER_OUTPUT_BYTE: u64 = 64;

/// The newest Landlock that is made use of. An older kernel restricts what it can.
const LANDLOCK: ABI = ABI::V9;

/// The rights of root that a child keeps where it stays root: those over files. A tool can use the same files below
/// a granted folder as it could inside the server.
const KEPT_CAPABILITIES: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::FOWNER);
/// The rights that the zygote keeps beside them where its children get other users. CAP_KILL is for the signal that
/// ends a child with its zygote: without it the kernel sends none to another user's process.
const CHANGING_CAPABILITIES: CapabilitySet =
    CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL);
const NO_CAPABILITIES: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};

/// Why a process cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The kernel refused one control.
    #[error("the kernel refuses {control}")]
    Refused {
        /// The control.
        control: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Landlock is there and failed.
    #[error("the folders cannot be confined")]
    Landlock(#[from] landlock::RulesetError),
    /// The list of system calls cannot be made or put in force.
    #[error("the system calls cannot be confined")]
    Seccomp(#[from] seccompiler::Error),
    /// The process that forked this one is gone, so that nobody waits for it.
    #[error("the process that started this one has ended")]
    Orphaned,
    /// The child did not take the step before this one.
    #[error("the child was not confined while it waited")]
    Unprepared,
    /// A thread runs that never called [`Confinement::bystander`]. Landlock binds single threads.
    #[error("{threads} threads run where {expected} are confined")]
    Threads {
        /// How many threads the process has.
        threads: u64,
        /// This one, and the bystanders.
        expected: u64,
    },
}

/// What is in force now, by what is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The controls that this kernel lacks or does not allow, by their names in [`Support`].
    pub skipped: Vec<&'static str>,
}

/// The confinement of children, made ready before the first of them is forked.
#[derive(Debug)]
pub struct Confinement {
    /// The process that forks the children.
    parent: Pid,
    page_bytes: u64,
    landlock: bool,
    seccomp: Option<Programs>,
    /// Whether the longer list of system calls is in force.
    listed: AtomicBool,
    /// Whether the process that forks is a batch process.
    batch: AtomicBool,
    /// `true` when children may get another user.
    changes_users: AtomicBool,
    /// The rights of those that do not.
    kept: AtomicU64,
    waited: AtomicBool,
    bystanders: AtomicUsize,
}

/// The system calls, narrowed in two steps, because the kernel takes longer over a longer program:
/// the zygote has the long one, and only the short one is left for `apply`.
#[derive(Debug)]
struct Programs {
    waiting: BpfProgram,
    guest: BpfProgram,
}

impl Confinement {
    /// Makes ready what does not depend on a job. This process is the one that has to fork.
    ///
    /// # Errors
    /// [`ConfineError::Seccomp`] when the list of system calls cannot be compiled for this machine.
    pub fn prepare() -> Result<Self, ConfineError> {
        Ok(Self {
            parent: rustix::process::getpid(),
            // rustix finds this out by `prctl`, once, and needs it again when a guest runs.
            page_bytes: rustix::param::page_size() as u64,
            landlock: landlock_abi().is_ok(),
            seccomp: has_seccomp()
                .then(Programs::compile)
                .transpose()
                .map_err(seccompiler::Error::Backend)?,
            listed: AtomicBool::new(false),
            batch: AtomicBool::new(false),
            changes_users: AtomicBool::new(false),
            kept: AtomicU64::new(0),
            waited: AtomicBool::new(false),
            bystanders: AtomicUsize::new(0),
        })
    }

    /// Confines the process that forks, which its children inherit: no new privileges, no rights of
    /// root but those over files and, where its children get other users (`changes_users`), to change the user, no
    /// core dumps, no `ptrace` by others, and a network namespace without a network where the machine allows one.
    /// Call it once, before a second thread runs.
    ///
    /// # Errors
    /// [`ConfineError::Refused`] names the control that failed.
    pub fn zygote(&self, changes_users: bool) -> Result<Applied, ConfineError> {
        let held = rustix::thread::capabilities(None).map_err(refused("to say what rights there are"))?;
        let wanted =
            if changes_users { KEPT_CAPABILITIES.union(CHANGING_CAPABILITIES) } else { KEPT_CAPABILITIES };
        let kept = held.effective & wanted;
        self.changes_users.store(changes_users, Ordering::SeqCst);
        self.kept.store((kept & KEPT_CAPABILITIES).bits(), Ordering::SeqCst);
        // Before the process stops being dumpable: then its own files in /proc are root's.
        let network = leave_the_network()?;
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        rustix::thread::set_capabilities(None, sets).map_err(refused("to take rights away"))?;
        rustix::thread::set_no_new_privs(true).map_err(refused("to hold privileges back"))?;
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(refused("to keep its memory to itself"))?;
        lower(Resource::Core, 0)?;
        ignore_file_size_signal()?;
        // Its next child can wait: what it is woken for need not interrupt a guest. An operator's own choice stays.
        let is_batch = policy() == libc::SCHED_OTHER && schedule(libc::SCHED_BATCH).is_ok();
        self.batch.store(is_batch, Ordering::SeqCst);
        let skipped = if network { Vec::new() } else { vec![Support::NETWORK_NAMESPACE] };
        Ok(Applied { skipped })
    }

    /// Confines a fresh child that has no job yet: it ends with the process that forked it, has at
    /// most `most_files` descriptors and files of at most `largest_file` bytes.
    ///
    /// # Errors
    /// [`ConfineError::Orphaned`] when the process that prepared this is already gone.
    pub fn waiting(&self, most_files: u64, largest_file: u64) -> Result<(), ConfineError> {
        self.end_with_parent()?;
        if self.batch.load(Ordering::SeqCst) {
            schedule(libc::SCHED_OTHER).map_err(refused("to be scheduled as the server is"))?;
        }
        lower(Resource::Core, 0)?;
        lower(Resource::Nofile, most_files)?;
        lower(Resource::Fsize, largest_file)?;
        self.list()?;
        self.waited.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Leaves this process no system calls but those that a guest needs, and those that children are
    /// forked and prepared with. Called by the process that forks, its children inherit it, and the
    /// kernel makes machine code of it once; a child for which that was not done does it by itself.
    ///
    /// # Errors
    /// [`ConfineError::Seccomp`] when the kernel refuses the list.
    pub fn list(&self) -> Result<(), ConfineError> {
        if let Some(programs) = &self.seccomp
            && !self.listed.swap(true, Ordering::SeqCst)
        {
            seccompiler::apply_filter_all_threads(&programs.waiting)?;
        }
        Ok(())
    }

    fn end_with_parent(&self) -> Result<(), ConfineError> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(refused("to end the process with its parent"))?;
        // The parent may have ended before the signal was asked for.
        if rustix::process::getppid() == Some(self.parent) { Ok(()) } else { Err(ConfineError::Orphaned) }
    }

    /// Takes every file and every right away from the calling thread, which runs beside the guest and needs none.
    /// [`Self::apply`] insists that each thread but its own has called this: Landlock binds only the
    /// thread that asks for it, and a hole in the engine is a hole in every thread.
    ///
    /// # Errors
    /// [`ConfineError`] when the kernel has Landlock and refuses it.
    pub fn bystander(&self) -> Result<(), ConfineError> {
        if self.landlock {
            keep_to(&[])?;
        }
        if self.changes_users.load(Ordering::SeqCst) {
            become_user(User::NOBODY)?;
        }
        rustix::thread::set_capabilities(None, NO_CAPABILITIES).map_err(refused("to take rights away"))?;
        self.bystanders.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Confines a child that has its job, as the last thing before the guest: to the folders of
    /// `roots`, to private memory for a guest of `memory` with `output`, to the rights of `user` where it gets one
    /// and to those over files where not, and to the system calls that a running guest needs. Any other system call
    /// ends the process with `SIGSYS`.
    ///
    /// A folder that the sandbox opens again for itself has to be one of the roots too.
    ///
    /// # Errors
    /// [`ConfineError`]; then the child is half confined, and must end.
    pub fn apply(
        &self,
        roots: &[(BorrowedFd<'_>, Access)],
        memory: MemoryLimit,
        output: OutputLimit,
        user: Option<User>,
    ) -> Result<Applied, ConfineError> {
        if !self.waited.load(Ordering::SeqCst) {
            return Err(ConfineError::Unprepared);
        }
        let mut skipped = Vec::new();
        let overhead = OVERHEAD_BYTES + OVERHEAD_PER_OUTPUT_BYTE * output.bytes();
        lower(Resource::Data, private_pages()? * self.page_bytes + memory.bytes() + overhead)?;
        // Root passes over this one. It is for a kernel without seccomp.
        lower(Resource::Nproc, 0)?;
        if self.landlock {
            let threads = threads().map_err(refused("to count threads"))?;
            let expected = 1 + self.bystanders.load(Ordering::SeqCst) as u64;
            if threads != expected {
                return Err(ConfineError::Threads { threads, expected });
            }
            keep_to(roots)?;
        } else {
            skipped.push(Support::LANDLOCK);
        }
        self.take_user(user)?;
        match &self.seccomp {
            Some(programs) => seccompiler::apply_filter_all_threads(&programs.guest)?,
            None => skipped.push(Support::SECCOMP),
        }
        Ok(Applied { skipped })
    }

    fn take_user(&self, user: Option<User>) -> Result<(), ConfineError> {
        if let Some(user) = user {
            become_user(user)?;
            // A change of user clears the signal that ends this process with its parent.
            self.end_with_parent()?;
            return rustix::thread::set_capabilities(None, NO_CAPABILITIES)
                .map_err(refused("to take rights away"));
        }
        if self.changes_users.load(Ordering::SeqCst) {
            let kept = CapabilitySet::from_bits_retain(self.kept.load(Ordering::SeqCst));
            let sets = CapabilitySets { effective: kept, permitted: kept, ..NO_CAPABILITIES };
            rustix::thread::set_capabilities(None, sets).map_err(refused("to take rights away"))?;
        }
        Ok(())
    }
}

/// Makes the calling thread another user's for good, without groups beside its own and without rights. What belongs to
/// the whole process, such as not being dumpable, the kernel may change with it.
fn become_user(User { uid, gid }: User) -> Result<(), ConfineError> {
    let changed = || -> rustix::io::Result<()> {
        let (uid, gid) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(gid));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
    };
    changed().map_err(refused("to change the user"))
}

pub(super) fn refused<E: Into<io::Error>>(control: &'static str) -> impl Fn(E) -> ConfineError {
    move |error| ConfineError::Refused { control, source: error.into() }
}

/// Sets a limit of this process, for good, and never higher than it is.
pub(super) fn lower(resource: Resource, most: u64) -> Result<(), ConfineError> {
    let most = Some(getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most)));
    setrlimit(resource, Rlimit { current: most, maximum: most }).map_err(refused("a resource limit"))
}

/// What `RLIMIT_DATA` counts of this process now, in pages, and its stack.
fn private_pages() -> Result<u64, ConfineError> {
    let statm = std::fs::read_to_string("/proc/self/statm").map_err(refused("to say how large it is"))?;
    let pages = statm.split_ascii_whitespace().nth(5).and_then(|pages| pages.parse::<u64>().ok());
    pages.ok_or(io::ErrorKind::InvalidData).map_err(refused("to say how large it is"))
}

/// Confines the calling thread to these folders, without a network and without others to signal.
pub(super) fn keep_to(roots: &[(BorrowedFd<'_>, Access)]) -> Result<(), ConfineError> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?;
    for (folder, access) in roots {
        ruleset = ruleset.add_rule(PathBeneath::new(folder, rights(*access)))?;
    }
    match ruleset.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err(refused("to confine folders")(io::ErrorKind::Unsupported)),
    }
}

/// What a guest may do below a root. Nothing may be run, and no FIFO, device or socket be made.
fn rights(access: Access) -> BitFlags<AccessFs> {
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    match access {
        Access::ReadOnly => read,
        Access::ReadWrite => {
            read | make_bitflags!(AccessFs::{
                WriteFile | Truncate | MakeReg | MakeDir | MakeSym | RemoveFile | RemoveDir | Refer
            })
        }
    }
}

/// System calls that host calls, the engine and the way out need, with any arguments.
#[rustfmt::skip]
pub(super) const GUEST: &[libc::c_long] = &[
    // Memory. What maps and protects has conditions.
    libc::SYS_brk, libc::SYS_madvise, libc::SYS_mremap, libc::SYS_munmap,
    // Threads that are there, and time.
    libc::SYS_clock_getres, libc::SYS_clock_gettime, libc::SYS_clock_nanosleep, libc::SYS_exit,
    libc::SYS_exit_group, libc::SYS_futex, libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid,
    libc::SYS_nanosleep, libc::SYS_restart_syscall, libc::SYS_rseq, libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield, libc::SYS_set_robust_list,
    // Signals of this thread: a trap of the guest comes as one.
    libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_sigaltstack,
    // Open descriptors.
    libc::SYS_close, libc::SYS_fadvise64, libc::SYS_fallocate, libc::SYS_fdatasync, libc::SYS_fstat,
    libc::SYS_fstatfs, libc::SYS_fsync, libc::SYS_ftruncate, libc::SYS_getdents64, libc::SYS_lseek,
    libc::SYS_pread64, libc::SYS_preadv, libc::SYS_preadv2, libc::SYS_pwrite64, libc::SYS_pwritev,
    libc::SYS_pwritev2, libc::SYS_read,
    libc::SYS_readv, libc::SYS_sendmsg, libc::SYS_write, libc::SYS_writev,
    // Paths. Landlock holds those that open or change a folder.
    libc::SYS_getcwd, libc::SYS_linkat, libc::SYS_mkdirat, libc::SYS_newfstatat, libc::SYS_openat,
    libc::SYS_openat2, libc::SYS_readlinkat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_statx,
    libc::SYS_symlinkat, libc::SYS_unlinkat, libc::SYS_utimensat,
    // A backtrace of the host asks for the program's own name this way.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    libc::SYS_getrandom,
];

/// And those that only the zygote and a child that waits need: to fork and reap, to receive a job, to
/// start a ticker, and to confine themselves further.
#[rustfmt::skip]
const ONLY_WAITING: &[libc::c_long] = &[
    libc::SYS_clone, libc::SYS_clone3, libc::SYS_landlock_add_rule, libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self, libc::SYS_ppoll, libc::SYS_prctl, libc::SYS_prlimit64,
    libc::SYS_dup3, libc::SYS_pidfd_open, libc::SYS_recvfrom, libc::SYS_recvmsg,
    libc::SYS_rt_sigaction, libc::SYS_sched_setscheduler, libc::SYS_seccomp, libc::SYS_wait4,
    libc::SYS_capset, libc::SYS_setgroups, libc::SYS_setresgid, libc::SYS_setresuid,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

impl Programs {
    /// What is not on a list ends the process, also where a program knows only the other list: the
    /// kernel runs both and takes the harsher answer.
    fn compile() -> Result<Self, seccompiler::BackendError> {
        let any = |calls: &[libc::c_long]| calls.iter().map(|call| (*call, Vec::new())).collect::<Vec<_>>();
        let mut waiting = any(GUEST);
        waiting.extend(any(ONLY_WAITING));
        waiting.extend(conditional()?);
        let program = |rules: Vec<(libc::c_long, Vec<SeccompRule>)>, unlisted, listed| {
            let arch = std::env::consts::ARCH.try_into()?;
            SeccompFilter::new(rules.into_iter().collect::<BTreeMap<_, _>>(), unlisted, listed, arch)?
                .try_into()
        };
        Ok(Self {
            waiting: program(waiting, SeccompAction::KillProcess, SeccompAction::Allow)?,
            guest: program(any(ONLY_WAITING), SeccompAction::Allow, SeccompAction::KillProcess)?,
        })
    }
}

/// System calls that are allowed with some arguments only.
pub(super) fn conditional() -> Result<[(libc::c_long, Vec<SeccompRule>); 4], seccompiler::BackendError> {
    use SeccompCmpOp::{Eq, MaskedEq};
    let when = |conditions: &[(u8, SeccompCmpOp, i32)]| {
        let condition = |(argument, operator, value): &(u8, SeccompCmpOp, i32)| {
            let value = u64::from(value.cast_unsigned());
            SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, operator.clone(), value)
        };
        SeccompRule::new(conditions.iter().map(condition).collect::<Result<_, _>>()?)
    };
    let bits = |mask: i32| MaskedEq(u64::from(mask.cast_unsigned()));
    // Private memory is what `RLIMIT_DATA` counts; shared, growing down or huge, it would not be.
    let kinds = libc::MAP_TYPE | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB;
    let fcntl = [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC];
    let fcntl = fcntl.iter().map(|command| when(&[(1, Eq, *command)]));
    Ok([
        (libc::SYS_mmap, vec![when(&[(2, bits(libc::PROT_EXEC), 0), (3, bits(kinds), libc::MAP_PRIVATE)])?]),
        (libc::SYS_mprotect, vec![when(&[(2, bits(libc::PROT_EXEC), 0)])?]),
        (libc::SYS_fcntl, fcntl.collect::<Result<_, _>>()?),
        // Without an address: what a stream socket does to write.
        (libc::SYS_sendto, vec![when(&[(5, Eq, 0)])?]),
    ])
}

/// Moves this process into a network namespace of its own, which has no network. Whether it may.
pub(super) fn leave_the_network() -> Result<bool, ConfineError> {
    if unshare(libc::CLONE_NEWNET) {
        return Ok(true);
    }
    // Without root: inside a user namespace, in which this user is who it was.
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    if !unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) {
        return Ok(false);
    }
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ];
    for (file, map) in maps {
        std::fs::write(Path::new("/proc/self").join(file), map).map_err(refused("to keep its user"))?;
    }
    Ok(true)
}

#[allow(unsafe_code, reason = "a system call that takes one number and touches no memory")]
fn unshare(namespaces: i32) -> bool {
    unsafe { libc::unshare(namespaces) == 0 }
}

/// By which policy the kernel schedules this process.
#[allow(unsafe_code, reason = "a system call that takes one number and touches no memory")]
fn policy() -> i32 {
    unsafe { libc::sched_getscheduler(0) }
}

/// Has the kernel schedule this process by that policy.
#[allow(unsafe_code, reason = "a system call that reads one value of ours")]
fn schedule(policy: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        -1 => Err(io::Error::last_os_error()),
        _done => Ok(()),
    }
}

/// A file that grows over its limit is an error in the guest, not the end of the process.
#[allow(unsafe_code, reason = "sets a signal to be ignored; no handler runs, and nothing else sets this one")]
fn ignore_file_size_signal() -> Result<(), ConfineError> {
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if before == libc::SIG_ERR {
        return Err(refused("to ignore a signal")(io::Error::last_os_error()));
    }
    Ok(())
}

#[allow(unsafe_code, reason = "asks for a version: with no attributes the kernel reads no memory")]
pub(super) fn landlock_abi() -> io::Result<i64> {
    const VERSION: libc::c_uint = 1;
    let nothing = std::ptr::null::<libc::c_void>();
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, VERSION) };
    if abi < 1 { Err(io::Error::last_os_error()) } else { Ok(abi) }
}

#[allow(unsafe_code, reason = "asks whether an action exists: the kernel reads one number, which lives here")]
pub(super) fn has_seccomp() -> bool {
    let action = libc::SECCOMP_RET_KILL_PROCESS;
    let ask = libc::SECCOMP_GET_ACTION_AVAIL;
    unsafe { libc::syscall(libc::SYS_seccomp, ask, 0, &raw const action) == 0 }
}

/// Whether a process like this one may leave the network, found out by one that ends at once.
#[allow(
    unsafe_code,
    reason = "between fork and _exit the child makes two system calls and touches nothing of this process"
)]
fn may_leave_the_network() -> bool {
    match unsafe { libc::fork() } {
        0 => {
            let left = unshare(libc::CLONE_NEWNET) || unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET);
            unsafe { libc::_exit(i32::from(!left)) }
        }
        child => has_ended_well(child),
    }
}

/// `true` when a process like this one may take another user, found out by one that ends at once. Its children then end
/// with it only where it may also send them a signal.
#[allow(
    unsafe_code,
    reason = "between fork and _exit the child makes three system calls and touches nothing of this process"
)]
fn may_change_users() -> bool {
    let held = rustix::thread::capabilities(None).map(|held| held.effective);
    if !held.is_ok_and(|held| held.contains(CHANGING_CAPABILITIES)) {
        return false;
    }
    match unsafe { libc::fork() } {
        0 => unsafe { libc::_exit(i32::from(become_user(User::NOBODY).is_err())) },
        child => has_ended_well(child),
    }
}

fn has_ended_well(child: libc::pid_t) -> bool {
    let waited = Pid::from_raw(child)
        .and_then(|child| rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).ok());
    waited.flatten().is_some_and(|(_, status)| status.exit_status() == Some(0))
}

/// What of one control this machine has: details, or what is missing and how to get it.
pub type Feature = Result<String, String>;

/// What of the confinement this machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Support {
    /// A program that is started gains nothing by it.
    pub no_new_privileges: Feature,
    /// System calls can be denied.
    pub seccomp: Feature,
    /// Folders can be denied.
    pub landlock: Feature,
    /// A child can be without a network.
    pub network_namespace: Feature,
    /// Memory and CPU of a child can be limited by the kernel as well.
    pub cgroup: Feature,
    /// A child of root can be another user's.
    pub unprivileged_user: Feature,
}

/// One control, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row<'a> {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// Whether `containment = "required"` insists on it.
    pub required: bool,
    /// Whether it is there.
    pub state: &'a Feature,
}

impl Support {
    const NO_NEW_PRIVILEGES: &'static str = "no-new-privileges";
    pub(super) const SECCOMP: &'static str = "seccomp";
    pub(super) const LANDLOCK: &'static str = "landlock";
    pub(super) const NETWORK_NAMESPACE: &'static str = "network-namespace";
    const CGROUP: &'static str = "cgroup";
    const UNPRIVILEGED_USER: &'static str = "unprivileged-user";

    /// All controls, in the order in which people should read them.
    ///
    /// A cgroup is not required: it has to be delegated, which few machines do, and memory and CPU
    /// of a child are limited without one. Nor is another user: a server that is not root has no root's rights to
    /// give up. The other controls are the ones that still hold when the engine has a hole.
    #[must_use]
    pub fn rows(&self) -> [Row<'_>; 6] {
        let Self { no_new_privileges, seccomp, landlock, network_namespace, cgroup, unprivileged_user } =
            self;
        let row = |name, purpose, required, state| Row { name, purpose, required, state };
        [
            row(Self::NO_NEW_PRIVILEGES, "no setuid program gives rights", true, no_new_privileges),
            row(Self::SECCOMP, "only the system calls that a guest needs", true, seccomp),
            row(Self::LANDLOCK, "no file but below the granted folders", true, landlock),
            row(Self::NETWORK_NAMESPACE, "no network", true, network_namespace),
            row(Self::CGROUP, "the kernel limits memory and CPU of each run as well", false, cgroup),
            row(Self::UNPRIVILEGED_USER, "no run is root", false, unprivileged_user),
        ]
    }

    /// The required controls that this machine lacks.
    pub fn missing(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows().into_iter().filter(|row| row.required && row.state.is_err())
    }
}

/// Asks the machine what it has. Nothing of this process changes.
///
/// # Ambient Authority
/// Reads `/proc/self` and the cgroup folders, and forks a process that tries to leave the network.
#[must_use]
pub fn support() -> Support {
    Support {
        no_new_privileges: rustix::thread::no_new_privs().map(|_| "Linux 3.5 or newer".to_owned()).map_err(
            |error| format!("{error}: it takes Linux 3.5 or newer"),
        ),
        seccomp: if has_seccomp() {
            Ok("ends a process at the first system call that is not on the list".to_owned())
        } else {
            Err("it takes Linux 4.14 or newer with CONFIG_SECCOMP_FILTER".to_owned())
        },
        landlock: landlock_abi().map(|abi| format!("ABI {abi}")).map_err(|error| {
            format!(
                "{error}: it takes Linux 5.13 or newer with CONFIG_SECURITY_LANDLOCK, and `landlock` in `lsm=` on the kernel's command line"
            )
        }),
        network_namespace: if may_leave_the_network() {
            Ok("each child is in one without interfaces".to_owned())
        } else {
            Err("not allowed: run as root, or allow user namespaces (user.max_user_namespaces over 0, kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)".to_owned())
        },
        cgroup: Delegated::find().map(|delegated| delegated.shown()).map_err(|error| error.to_string()),
        unprivileged_user: if !rustix::process::geteuid().is_root() {
            Ok("this user is not root".to_owned())
        } else if may_change_users() {
            Ok("each run has the owner of its folders, where that is not root (`config check` says where it is)"
                .to_owned())
        } else {
            Err(format!(
                "root may not change its user here: give it CAP_SETUID, CAP_SETGID and CAP_KILL and the user {}, or do \
                 not run as root",
                User::NOBODY.uid
            ))
        },
    }
}
