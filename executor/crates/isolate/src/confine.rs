//! The kernel's restrictions on a child, which hold even if the engine is compromised.
//!
//! ```text
//! prepare ─▶ confine_zygote ─ fork ─▶ confine_waiting ─ confine_aux_thread (ticker) ─ job ─▶ apply ─▶ guest
//! └──── once, on one thread ────┘     └────────────────────── each child ────────────────────────┘
//! ```
//! No step widens what an earlier one has restricted. A control that this kernel lacks is skipped and named
//! ([`Applied`], [`support`]). If an available control fails, that is an error: the child must not run its guest.

use super::cgroup::CgroupDirs;
use super::process::thread_count;
use super::user::User;
use a2g_types::limit::Access;
use a2g_types::quantity::{MemoryLimit, OutputLimit};
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

/// The private memory that a child may use in addition to the guest's limit and the amount that it had when it was
/// confined: host calls, streams, the store.
pub const OVERHEAD_BYTES: u64 = 64 << 20;
/// The private memory that a child may additionally use for each byte of permitted output.
// A JSON value takes up to this many bytes for one byte of its text.
pub const OVERHEAD_PER_OUTPUT_BYTE: u64 = 64;
/// The private memory that a child may additionally use if the run's file changes are kept apart: for the table of the
/// changes and its stored form.
pub const OVERHEAD_OF_CHANGES: u64 = 384 << 20;

/// The newest Landlock ABI in use. An older kernel enforces the part that it supports.
const LANDLOCK: ABI = ABI::V9;

/// The capabilities of a child that stays root: those over files.
// A tool can then use the same files below a granted folder as one that runs inline.
const FILE_CAPABILITIES: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::FOWNER);
/// The additional capabilities of a zygote whose children get other users.
// CAP_KILL is for the parent-death signal: without it, the kernel does not send the signal to another user's process.
const USER_CHANGE_CAPABILITIES: CapabilitySet =
    CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL);
const NO_CAPABILITIES: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};

/// A process cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The kernel refused one control.
    #[error("the kernel refuses {control}")]
    Refused {
        /// The refused operation, as it completes "the kernel refuses …".
        control: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel has Landlock, and applying it failed.
    #[error("the folders cannot be confined")]
    Landlock(#[from] landlock::RulesetError),
    /// The system call filter cannot be compiled or applied.
    #[error("the system calls cannot be confined")]
    Seccomp(#[from] seccompiler::Error),
    /// The process that forked this one has ended.
    #[error("the process that started this one has ended")]
    Orphaned,
    /// [`Confinement::confine_waiting`] was not called before [`Confinement::apply`].
    #[error("the child was not confined while it waited")]
    Unprepared,
    /// A thread runs that never called [`Confinement::confine_aux_thread`]. Landlock restricts each thread separately.
    #[error("{threads} threads run, but only {expected} are confined")]
    Threads {
        /// The number of threads of the process.
        threads: u64,
        /// The number of confined threads: this one and the auxiliary ones.
        expected: u64,
    },
}

/// The result of a confinement: the controls that are not in effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The names in [`Support`] of the controls that this kernel lacks or does not allow.
    pub skipped: Vec<&'static str>,
}

/// The confinement of children, prepared before the first of them is forked.
#[derive(Debug)]
pub struct Confinement {
    /// The process that forks the children.
    parent: Pid,
    page_bytes: u64,
    landlock: bool,
    seccomp: Option<Programs>,
    /// `true` once the longer system call filter is applied.
    is_filtered: AtomicBool,
    /// `true` if the process that forks has the scheduling policy `SCHED_BATCH`.
    is_batch: AtomicBool,
    /// `true` if children may get another user.
    changes_users: AtomicBool,
    /// The capabilities of children that keep the zygote's user.
    file_capabilities: AtomicU64,
    /// `true` once [`Self::confine_waiting`] has succeeded.
    is_prepared: AtomicBool,
    aux_threads: AtomicUsize,
}

/// The system call filters of the two steps.
// Applying a longer program takes the kernel longer, so the zygote applies the long one and `apply` only a short one.
#[derive(Debug)]
struct Programs {
    waiting: BpfProgram,
    guest: BpfProgram,
    /// As `guest`, with the calls of a run whose file changes are kept apart, and without those that set times.
    staging_guest: BpfProgram,
    /// As `guest`, with the call that receives the socket of the relay of a further turn.
    session_guest: BpfProgram,
}

/// The kind of a guest, on which its system call filter depends.
#[derive(Debug, Clone, Copy)]
enum Guest<'a> {
    Plain,
    /// Its file changes are kept apart in this folder.
    Staging(BorrowedFd<'a>),
    /// It has a session, in which each further turn has a relay.
    Session,
}

impl Confinement {
    /// Prepares everything that does not depend on a job. Call this in the process that forks the children.
    ///
    /// # Errors
    /// [`ConfineError::Seccomp`] when the system call filter cannot be compiled for this machine.
    pub fn prepare() -> Result<Self, ConfineError> {
        Ok(Self {
            parent: rustix::process::getpid(),
            // rustix determines this by `prctl` once and caches it; a guest's process may not call `prctl`.
            page_bytes: rustix::param::page_size() as u64,
            landlock: landlock_abi().is_ok(),
            seccomp: has_seccomp()
                .then(Programs::compile)
                .transpose()
                .map_err(seccompiler::Error::Backend)?,
            is_filtered: AtomicBool::new(false),
            is_batch: AtomicBool::new(false),
            changes_users: AtomicBool::new(false),
            file_capabilities: AtomicU64::new(0),
            is_prepared: AtomicBool::new(false),
            aux_threads: AtomicUsize::new(0),
        })
    }

    /// Confines the process that forks; its children inherit the confinement. The process can no longer gain
    /// privileges, dump core or be traced. Of the capabilities of root, the process keeps those over files and, with
    /// `changes_users`, those that change the user. If the machine allows a network namespace, the process is in one
    /// without interfaces. Call this once, before a second thread runs.
    ///
    /// # Errors
    /// [`ConfineError::Refused`] names the control that failed.
    pub fn confine_zygote(&self, changes_users: bool) -> Result<Applied, ConfineError> {
        let current = rustix::thread::capabilities(None)
            .map_err(control_error("to report the process's capabilities"))?;
        let allowed =
            if changes_users { FILE_CAPABILITIES.union(USER_CHANGE_CAPABILITIES) } else { FILE_CAPABILITIES };
        let remaining = current.effective & allowed;
        self.changes_users.store(changes_users, Ordering::SeqCst);
        self.file_capabilities.store((remaining & FILE_CAPABILITIES).bits(), Ordering::SeqCst);
        // `unshare_network` writes to files in /proc/self, which belong to root once the process is not dumpable.
        let network = unshare_network()?;
        let sets = CapabilitySets { effective: remaining, permitted: remaining, ..NO_CAPABILITIES };
        rustix::thread::set_capabilities(None, sets).map_err(control_error("to drop capabilities"))?;
        rustix::thread::set_no_new_privs(true).map_err(control_error("to set no-new-privileges"))?;
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(control_error("to make the process non-dumpable"))?;
        lower_limit(Resource::Core, 0)?;
        ignore_file_size_signal()?;
        // The zygote must not preempt a running guest when it wakes up to fork the next child. A policy that the
        // operator has set is kept. `SCHED_IDLE` is not used: a child without privileges could not leave it again.
        let is_batch =
            scheduling_policy() == libc::SCHED_OTHER && set_scheduling_policy(libc::SCHED_BATCH).is_ok();
        self.is_batch.store(is_batch, Ordering::SeqCst);
        let skipped = if network { Vec::new() } else { vec![Support::NETWORK_NAMESPACE] };
        Ok(Applied { skipped })
    }

    /// Confines a new child that has no job yet: it ends with the process that forked it, and has at most `max_files`
    /// descriptors and files of at most `largest_file` bytes.
    ///
    /// # Errors
    /// [`ConfineError::Orphaned`] when the process that forked this one has already ended.
    pub fn confine_waiting(&self, max_files: u64, largest_file: u64) -> Result<(), ConfineError> {
        self.end_with_parent()?;
        if self.is_batch.load(Ordering::SeqCst) {
            set_scheduling_policy(libc::SCHED_OTHER)
                .map_err(control_error("to restore the scheduling policy"))?;
        }
        lower_limit(Resource::Core, 0)?;
        lower_limit(Resource::Nofile, max_files)?;
        lower_limit(Resource::Fsize, largest_file)?;
        self.filter_system_calls()?;
        self.is_prepared.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Restricts this process to the system calls that a guest needs, and to those that load tools and that fork and
    /// prepare children. Has no effect if it was called before, even in the zygote before the fork.
    ///
    /// # Errors
    /// [`ConfineError::Seccomp`] when the kernel refuses the filter.
    pub fn filter_system_calls(&self) -> Result<(), ConfineError> {
        // The zygote calls this, so that the kernel compiles the filter to machine code once and not for each child.
        if let Some(programs) = &self.seccomp
            && !self.is_filtered.swap(true, Ordering::SeqCst)
        {
            seccompiler::apply_filter_all_threads(&programs.waiting)?;
        }
        Ok(())
    }

    fn end_with_parent(&self) -> Result<(), ConfineError> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(control_error("to set the parent-death signal"))?;
        // The parent may have ended before the signal was requested.
        if rustix::process::getppid() == Some(self.parent) { Ok(()) } else { Err(ConfineError::Orphaned) }
    }

    /// Takes all files and all capabilities from the calling thread, which does not run the guest. [`Self::apply`]
    /// fails unless every such thread has called this.
    ///
    /// # Errors
    /// [`ConfineError`] if an available control fails.
    pub fn confine_aux_thread(&self) -> Result<(), ConfineError> {
        // Landlock restricts only the thread that requests it, and a compromised engine controls every thread.
        if self.landlock {
            restrict_folders(&[])?;
        }
        // The kernel stores the user per thread. This thread needs no file, so it changes to `nobody` without waiting
        // for the job, which names the guest's user. The C library is not used for it: it signals all threads to change
        // theirs, with a system call that the filter forbids.
        if self.changes_users.load(Ordering::SeqCst) {
            become_user(User::NOBODY)?;
        }
        rustix::thread::set_capabilities(None, NO_CAPABILITIES)
            .map_err(control_error("to drop capabilities"))?;
        self.aux_threads.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Confines a child that has its job, as the last step before the guest: to the folders of `roots`, to the private
    /// memory that a guest with the limits `memory` and `output` needs, to the rights of `user` (if it is `None`, to
    /// the zygote's capabilities over files), and to the system calls that a running guest needs. Any other system call
    /// ends the process with `SIGSYS`.
    ///
    /// With `upper`, the folder for the run's file changes, the child writes to that folder only, reads all others, and sets
    /// the times of no file. A root may be a single file then.
    ///
    /// A folder that the sandbox itself opens again has to be among the roots.
    ///
    /// # Errors
    /// [`ConfineError`]: the child is partly confined and must end.
    pub fn apply(
        &self,
        roots: &[(BorrowedFd<'_>, Access)],
        upper: Option<BorrowedFd<'_>>,
        memory: MemoryLimit,
        output: OutputLimit,
        user: Option<User>,
    ) -> Result<Applied, ConfineError> {
        self.apply_to_guest(upper.map_or(Guest::Plain, Guest::Staging), roots, memory, output, user)
    }

    /// Confines a child as [`Self::apply`] does, and lets it receive descriptors, of which the server sends
    /// one with each further turn of a session. Only the server has the other ends of the child's sockets.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(super) fn apply_to_session(
        &self,
        roots: &[(BorrowedFd<'_>, Access)],
        memory: MemoryLimit,
        output: OutputLimit,
        user: Option<User>,
    ) -> Result<Applied, ConfineError> {
        self.apply_to_guest(Guest::Session, roots, memory, output, user)
    }

    fn apply_to_guest(
        &self,
        guest: Guest<'_>,
        roots: &[(BorrowedFd<'_>, Access)],
        memory: MemoryLimit,
        output: OutputLimit,
        user: Option<User>,
    ) -> Result<Applied, ConfineError> {
        if !self.is_prepared.load(Ordering::SeqCst) {
            return Err(ConfineError::Unprepared);
        }
        let mut skipped = Vec::new();
        let of_changes = match guest {
            Guest::Staging(_) => OVERHEAD_OF_CHANGES,
            Guest::Plain | Guest::Session => 0,
        };
        let overhead = OVERHEAD_BYTES + OVERHEAD_PER_OUTPUT_BYTE * output.bytes() + of_changes;
        // The limit is relative to the current size, because the zygote's pages are not the guest's.
        let current = private_pages()? * self.page_bytes;
        lower_limit(Resource::Data, current + memory.bytes() + overhead)?;
        // Root ignores this limit. It is for a kernel without seccomp.
        lower_limit(Resource::Nproc, 0)?;
        if self.landlock {
            let threads = thread_count().map_err(control_error("to count threads"))?;
            let expected = 1 + self.aux_threads.load(Ordering::SeqCst) as u64;
            if threads != expected {
                return Err(ConfineError::Threads { threads, expected });
            }
            match guest {
                Guest::Staging(upper) => {
                    let read_only = roots.iter().map(|(folder, _)| (*folder, Access::ReadOnly));
                    let folders = read_only.chain([(upper, Access::ReadWrite)]).collect::<Vec<_>>();
                    restrict_folders(&folders)?;
                }
                Guest::Plain | Guest::Session => restrict_folders(roots)?,
            }
        } else {
            skipped.push(Support::LANDLOCK);
        }
        self.change_user(user)?;
        match &self.seccomp {
            Some(programs) => {
                let program = match guest {
                    Guest::Plain => &programs.guest,
                    Guest::Staging(_) => &programs.staging_guest,
                    Guest::Session => &programs.session_guest,
                };
                seccompiler::apply_filter_all_threads(program)?;
            }
            None => skipped.push(Support::SECCOMP),
        }
        Ok(Applied { skipped })
    }

    fn change_user(&self, user: Option<User>) -> Result<(), ConfineError> {
        if let Some(user) = user {
            become_user(user)?;
            // A change of user clears the death signal.
            self.end_with_parent()?;
            return rustix::thread::set_capabilities(None, NO_CAPABILITIES)
                .map_err(control_error("to drop capabilities"));
        }
        if self.changes_users.load(Ordering::SeqCst) {
            let remaining = CapabilitySet::from_bits_retain(self.file_capabilities.load(Ordering::SeqCst));
            let sets = CapabilitySets { effective: remaining, permitted: remaining, ..NO_CAPABILITIES };
            rustix::thread::set_capabilities(None, sets).map_err(control_error("to drop capabilities"))?;
        }
        Ok(())
    }
}

/// Permanently changes the user of the calling thread, which also loses its supplementary groups and capabilities.
fn become_user(User { uid, gid }: User) -> Result<(), ConfineError> {
    let change = || -> rustix::io::Result<()> {
        let uid = rustix::process::Uid::from_raw(uid);
        let gid = rustix::process::Gid::from_raw(gid);
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        // A change of user resets this attribute.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
    };
    change().map_err(control_error("to change the user"))
}

pub(super) fn control_error<E: Into<io::Error>>(control: &'static str) -> impl Fn(E) -> ConfineError {
    move |error| ConfineError::Refused { control, source: error.into() }
}

/// Permanently lowers a resource limit of this process; never raises it.
pub(super) fn lower_limit(resource: Resource, max: u64) -> Result<(), ConfineError> {
    let limit = Some(getrlimit(resource).maximum.map_or(max, |current| current.min(max)));
    setrlimit(resource, Rlimit { current: limit, maximum: limit })
        .map_err(control_error("to lower a resource limit"))
}

/// The current memory of this process as `RLIMIT_DATA` counts it, plus its stack, in pages.
fn private_pages() -> Result<u64, ConfineError> {
    let statm =
        std::fs::read_to_string("/proc/self/statm").map_err(control_error("to report the memory size"))?;
    let pages = statm.split_ascii_whitespace().nth(5).and_then(|pages| pages.parse::<u64>().ok());
    pages.ok_or(io::ErrorKind::InvalidData).map_err(control_error("to report the memory size"))
}

/// Confines the calling thread to these folders, without network access and without signals to other processes.
pub(super) fn restrict_folders(roots: &[(BorrowedFd<'_>, Access)]) -> Result<(), ConfineError> {
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
        RulesetStatus::NotEnforced => Err(control_error("to enforce Landlock")(io::ErrorKind::Unsupported)),
    }
}

/// The rights below a root. They never include executing programs or creating FIFOs, devices or sockets.
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

/// System calls that host calls, the engine and the network need, with any arguments.
#[rustfmt::skip]
pub(super) const GUEST: &[libc::c_long] = &[
    // Memory. `mmap` and `mprotect` are in `conditional_calls`.
    libc::SYS_brk, libc::SYS_madvise, libc::SYS_mremap, libc::SYS_munmap,
    // Existing threads, and time.
    libc::SYS_clock_getres, libc::SYS_clock_gettime, libc::SYS_clock_nanosleep, libc::SYS_exit,
    libc::SYS_exit_group, libc::SYS_futex, libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid,
    libc::SYS_nanosleep, libc::SYS_restart_syscall, libc::SYS_rseq, libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield, libc::SYS_set_robust_list,
    // Signals of this thread: a guest's trap arrives as one.
    libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_sigaltstack,
    // Open descriptors.
    libc::SYS_close, libc::SYS_fadvise64, libc::SYS_fallocate, libc::SYS_fdatasync, libc::SYS_fstat,
    libc::SYS_fstatfs, libc::SYS_fsync, libc::SYS_ftruncate, libc::SYS_getdents64, libc::SYS_lseek,
    libc::SYS_pread64, libc::SYS_preadv, libc::SYS_preadv2, libc::SYS_pwrite64, libc::SYS_pwritev,
    libc::SYS_pwritev2, libc::SYS_read,
    libc::SYS_readv, libc::SYS_sendmsg, libc::SYS_write, libc::SYS_writev,
    // Paths. Landlock restricts those that open or change something, but for times.
    libc::SYS_getcwd, libc::SYS_linkat, libc::SYS_mkdirat, libc::SYS_newfstatat, libc::SYS_openat,
    libc::SYS_openat2, libc::SYS_readlinkat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_statx,
    libc::SYS_symlinkat, libc::SYS_unlinkat, libc::SYS_utimensat,
    // A host backtrace reads the program's name this way.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    libc::SYS_getrandom,
];

/// System calls that only the zygote and a waiting child need: to fork and reap, to receive a job, to load a tool, to
/// start a ticker, and to confine themselves further.
#[rustfmt::skip]
const ONLY_WAITING: &[libc::c_long] = &[
    libc::SYS_clone, libc::SYS_clone3, libc::SYS_landlock_add_rule, libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self, libc::SYS_ppoll, libc::SYS_prctl, libc::SYS_prlimit64,
    libc::SYS_pidfd_open, libc::SYS_recvfrom, libc::SYS_recvmsg,
    libc::SYS_rt_sigaction, libc::SYS_sched_setscheduler, libc::SYS_seccomp, libc::SYS_wait4,
    libc::SYS_capset, libc::SYS_setgroups, libc::SYS_setresgid, libc::SYS_setresuid,
    // wasmtime lets all processors see new code.
    #[cfg(target_arch = "aarch64")]
    libc::SYS_membarrier,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// System calls that only a run whose file changes are kept apart needs, with any arguments, and a waiting child: to copy
/// files, to put a copy behind an open handle, and to ask for the rights that the user has over files.
#[rustfmt::skip]
const ONLY_STAGING: &[libc::c_long] = &[
    libc::SYS_capget, libc::SYS_copy_file_range, libc::SYS_dup3, libc::SYS_faccessat2,
];

/// System calls that such a run must not make. Landlock does not cover them, so they would change an original.
// The view of the run keeps the times that its guest sets in its table (`overlay/view/times.rs`).
const NEVER_STAGING: &[libc::c_long] = &[libc::SYS_utimensat];

/// The request of `ioctl` with which such a run lets a copy share the blocks of its original. The number is the same on
/// all processors that this program is built for.
const FICLONE: u64 = 0x4004_9409;

impl Programs {
    fn compile() -> Result<Self, seccompiler::BackendError> {
        let unconditional =
            |calls: &[libc::c_long]| calls.iter().map(|call| (*call, Vec::new())).collect::<Vec<_>>();
        let clones = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, FICLONE)?;
        let mut waiting = unconditional(GUEST);
        waiting.extend(unconditional(ONLY_WAITING));
        waiting.extend(unconditional(ONLY_STAGING));
        waiting.extend(conditional_calls(NewCode::Allowed)?);
        waiting.push((libc::SYS_ioctl, vec![SeccompRule::new(vec![clones])?]));
        let mut staging = unconditional(ONLY_WAITING);
        staging.extend(code_calls()?);
        let mut guest = staging.clone();
        guest.extend(unconditional(ONLY_STAGING));
        guest.push((libc::SYS_ioctl, Vec::new()));
        staging.extend(unconditional(NEVER_STAGING));
        let mut session = guest.clone();
        session.retain(|(call, _)| *call != libc::SYS_recvmsg);
        let program = |rules: Vec<(libc::c_long, Vec<SeccompRule>)>, unlisted, listed| {
            let arch = std::env::consts::ARCH.try_into()?;
            SeccompFilter::new(rules.into_iter().collect::<BTreeMap<_, _>>(), unlisted, listed, arch)?
                .try_into()
        };
        // The kernel runs both programs and applies the stricter result, so the second one needs to name only the
        // calls that it forbids.
        Ok(Self {
            waiting: program(waiting, SeccompAction::KillProcess, SeccompAction::Allow)?,
            guest: program(guest, SeccompAction::Allow, SeccompAction::KillProcess)?,
            staging_guest: program(staging, SeccompAction::Allow, SeccompAction::KillProcess)?,
            session_guest: program(session, SeccompAction::Allow, SeccompAction::KillProcess)?,
        })
    }
}

/// A filter's treatment of calls that make memory executable.
#[derive(Debug, Clone, Copy)]
pub(super) enum NewCode {
    /// For the zygote and a waiting child, which load tools and run no guest.
    Allowed,
    Forbidden,
}

/// System calls that are allowed only with certain arguments.
pub(super) fn conditional_calls(
    code: NewCode,
) -> Result<[(libc::c_long, Vec<SeccompRule>); 4], seccompiler::BackendError> {
    use SeccompCmpOp::Eq;
    // `RLIMIT_DATA` counts only private mappings: shared, growing or huge ones would escape it.
    let mapping = libc::MAP_TYPE | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB;
    let is_private = (3, masked(mapping), libc::MAP_PRIVATE);
    let has_no_code = (2, masked(libc::PROT_EXEC), 0);
    let fcntl = [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC];
    let fcntl = fcntl.iter().map(|command| rule(&[(1, Eq, *command)]));
    Ok([
        (
            libc::SYS_mmap,
            match code {
                NewCode::Allowed => vec![rule(&[is_private])?],
                NewCode::Forbidden => vec![rule(&[has_no_code.clone(), is_private])?],
            },
        ),
        (
            libc::SYS_mprotect,
            match code {
                NewCode::Allowed => Vec::new(),
                NewCode::Forbidden => vec![rule(&[has_no_code])?],
            },
        ),
        (libc::SYS_fcntl, fcntl.collect::<Result<_, _>>()?),
        // Without an address, this is a write to a connected stream socket.
        (libc::SYS_sendto, vec![rule(&[(5, Eq, 0)])?]),
    ])
}

/// System calls that make memory executable.
fn code_calls() -> Result<[(libc::c_long, Vec<SeccompRule>); 2], seccompiler::BackendError> {
    let has_code = || rule(&[(2, masked(libc::PROT_EXEC), libc::PROT_EXEC)]);
    Ok([(libc::SYS_mmap, vec![has_code()?]), (libc::SYS_mprotect, vec![has_code()?])])
}

/// A rule that applies if all of these arguments compare in these ways with these values.
fn rule(conditions: &[(u8, SeccompCmpOp, i32)]) -> Result<SeccompRule, seccompiler::BackendError> {
    let condition = |(argument, operator, value): &(u8, SeccompCmpOp, i32)| {
        let value = u64::from(value.cast_unsigned());
        SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, operator.clone(), value)
    };
    SeccompRule::new(conditions.iter().map(condition).collect::<Result<_, _>>()?)
}

/// A comparison of these bits alone.
fn masked(mask: i32) -> SeccompCmpOp {
    SeccompCmpOp::MaskedEq(u64::from(mask.cast_unsigned()))
}

/// Moves this process into a new network namespace, which has no interfaces. Returns `false` if that is not allowed.
pub(super) fn unshare_network() -> Result<bool, ConfineError> {
    if unshare(libc::CLONE_NEWNET) {
        return Ok(true);
    }
    // A process without root also needs a user namespace, which maps its user to itself.
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    if !unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) {
        return Ok(false);
    }
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ];
    for (file, map) in maps {
        std::fs::write(Path::new("/proc/self").join(file), map).map_err(control_error("to map the user"))?;
    }
    Ok(true)
}

#[allow(unsafe_code, reason = "a system call that takes one number and touches no memory")]
fn unshare(namespaces: i32) -> bool {
    unsafe { libc::unshare(namespaces) == 0 }
}

/// The scheduling policy of this process.
#[allow(unsafe_code, reason = "a system call that takes one number and touches no memory")]
fn scheduling_policy() -> i32 {
    unsafe { libc::sched_getscheduler(0) }
}

/// Sets the scheduling policy of this process.
#[allow(unsafe_code, reason = "a system call that reads one value of ours")]
fn set_scheduling_policy(policy: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        -1 => Err(io::Error::last_os_error()),
        _done => Ok(()),
    }
}

/// Ignores `SIGXFSZ`, so that a file beyond its limit is an error for the guest and not the end of the process.
#[allow(unsafe_code, reason = "sets a signal to be ignored; no handler runs, and nothing else sets this one")]
fn ignore_file_size_signal() -> Result<(), ConfineError> {
    let previous = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if previous == libc::SIG_ERR {
        return Err(control_error("to ignore a signal")(io::Error::last_os_error()));
    }
    Ok(())
}

#[allow(unsafe_code, reason = "queries a version: without attributes the kernel reads no memory")]
pub(super) fn landlock_abi() -> io::Result<i64> {
    const VERSION: libc::c_uint = 1;
    let no_attributes = std::ptr::null::<libc::c_void>();
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, no_attributes, 0_usize, VERSION) };
    if abi < 1 { Err(io::Error::last_os_error()) } else { Ok(abi) }
}

#[allow(unsafe_code, reason = "queries whether an action exists: the kernel reads one local number")]
pub(super) fn has_seccomp() -> bool {
    let action = libc::SECCOMP_RET_KILL_PROCESS;
    let operation = libc::SECCOMP_GET_ACTION_AVAIL;
    unsafe { libc::syscall(libc::SYS_seccomp, operation, 0, &raw const action) == 0 }
}

/// Returns `true` if this process could create a network namespace. A forked child, which ends at once, tries it.
#[allow(
    unsafe_code,
    reason = "between fork and _exit the child makes two system calls and touches nothing of this process"
)]
fn may_unshare_network() -> bool {
    match unsafe { libc::fork() } {
        0 => {
            let is_isolated =
                unshare(libc::CLONE_NEWNET) || unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET);
            unsafe { libc::_exit(i32::from(!is_isolated)) }
        }
        child => wait_for_success(child),
    }
}

/// Returns `true` if this process could change its user and signal children of that user. A forked child, which ends at
/// once, tries it.
#[allow(
    unsafe_code,
    reason = "between fork and _exit the child makes three system calls and touches nothing of this process"
)]
fn may_change_users() -> bool {
    let current = rustix::thread::capabilities(None).map(|sets| sets.effective);
    if !current.is_ok_and(|current| current.contains(USER_CHANGE_CAPABILITIES)) {
        return false;
    }
    match unsafe { libc::fork() } {
        0 => unsafe { libc::_exit(i32::from(become_user(User::NOBODY).is_err())) },
        child => wait_for_success(child),
    }
}

/// Waits for a child; `true` if it exited with code 0.
fn wait_for_success(child: libc::pid_t) -> bool {
    let result = Pid::from_raw(child)
        .and_then(|child| rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).ok());
    result.flatten().is_some_and(|(_, status)| status.exit_status() == Some(0))
}

/// The support for one control: `Ok` with details, or `Err` with the missing prerequisite and how to provide it.
pub type Feature = Result<String, String>;

/// The confinement that this machine supports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Support {
    /// Starting a setuid program gains no privileges.
    pub no_new_privileges: Feature,
    /// System call filters.
    pub seccomp: Feature,
    /// Access control for folders.
    pub landlock: Feature,
    /// Network namespaces for children.
    pub network_namespace: Feature,
    /// The kernel's own limits on memory and CPU of a child.
    pub cgroup: Feature,
    /// Another user for the children of a server that is root.
    pub unprivileged_user: Feature,
}

/// One control in a table for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlRow<'a> {
    /// The control's name.
    pub name: &'static str,
    /// Its effect on a run.
    pub purpose: &'static str,
    /// `true` if `containment = "required"` requires the control.
    pub required: bool,
    /// Its support on this machine.
    pub state: &'a Feature,
}

impl Support {
    const NO_NEW_PRIVILEGES: &'static str = "no-new-privileges";
    pub(super) const SECCOMP: &'static str = "seccomp";
    pub(super) const LANDLOCK: &'static str = "landlock";
    pub(super) const NETWORK_NAMESPACE: &'static str = "network-namespace";
    /// The name of the control group, which [`Support::cgroup`] only says can be set up.
    pub const CGROUP: &'static str = "cgroup";
    const UNPRIVILEGED_USER: &'static str = "unprivileged-user";

    /// All controls, in display order.
    ///
    /// A cgroup is not required: it has to be delegated, which few machines do, and memory and CPU of a child are
    /// also limited without one. Another user is not required either: a server that is not root has no rights of root
    /// to give up. The required controls are those that still hold when the engine is compromised.
    #[must_use]
    pub fn rows(&self) -> [ControlRow<'_>; 6] {
        let Self { no_new_privileges, seccomp, landlock, network_namespace, cgroup, unprivileged_user } =
            self;
        let row = |name, purpose, required, state| ControlRow { name, purpose, required, state };
        [
            row(Self::NO_NEW_PRIVILEGES, "setuid programs give no privileges", true, no_new_privileges),
            row(Self::SECCOMP, "only the system calls that a guest needs", true, seccomp),
            row(Self::LANDLOCK, "no files except below the granted folders", true, landlock),
            row(Self::NETWORK_NAMESPACE, "no network", true, network_namespace),
            row(Self::CGROUP, "the kernel limits memory and CPU of each run as well", false, cgroup),
            row(Self::UNPRIVILEGED_USER, "no run is root", false, unprivileged_user),
        ]
    }

    /// The required controls that this machine lacks.
    pub fn missing(&self) -> impl Iterator<Item = ControlRow<'_>> {
        self.rows().into_iter().filter(|row| row.required && row.state.is_err())
    }
}

/// Determines the controls that this machine supports. Does not change this process.
///
/// # Ambient Authority
/// Reads `/proc/self` and the cgroup folders, and forks processes that try to create a network namespace and to change
/// their user.
#[must_use]
pub fn support() -> Support {
    Support {
        no_new_privileges: rustix::thread::no_new_privs().map(|_| "Linux 3.5 or newer".to_owned()).map_err(
            |error| format!("{error}: requires Linux 3.5 or newer"),
        ),
        seccomp: if has_seccomp() {
            Ok("ends a process at the first system call that is not allowed".to_owned())
        } else {
            Err("requires Linux 4.14 or newer with CONFIG_SECCOMP_FILTER".to_owned())
        },
        landlock: landlock_abi().map(|abi| format!("ABI {abi}")).map_err(|error| {
            format!(
                "{error}: requires Linux 5.13 or newer with CONFIG_SECURITY_LANDLOCK, and `landlock` in `lsm=` on the kernel's command line"
            )
        }),
        network_namespace: if may_unshare_network() {
            Ok("each child is in a namespace without interfaces".to_owned())
        } else {
            Err("not allowed: run as root, or allow user namespaces (user.max_user_namespaces over 0, kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)".to_owned())
        },
        cgroup: CgroupDirs::find().map(|dirs| dirs.description()).map_err(|error| error.to_string()),
        unprivileged_user: if !rustix::process::geteuid().is_root() {
            Ok("this user is not root".to_owned())
        } else if may_change_users() {
            Ok("each run has the user that owns its folders, unless the owner is root (`config check` lists such folders)"
                .to_owned())
        } else {
            Err(format!(
                "root may not change its user here: give the executor CAP_SETUID, CAP_SETGID, CAP_KILL and the user \
                 id {}, or do not run as root",
                User::NOBODY.uid
            ))
        },
    }
}
