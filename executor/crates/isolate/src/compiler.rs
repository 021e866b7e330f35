//! The confinement of the process that compiles a module.
//!
//! A module is untrusted input, and a vulnerability in the compiler compromises the process that compiles it. That
//! process therefore has no files, no network, no rights and no descriptors except its three standard streams. Its CPU
//! time and memory are limited, and it may make only the system calls of a guest and those that start threads.

use super::confine::{
    Applied, ConfineError, GUEST, NewCode, Support, conditional_calls, control_error, has_seccomp,
    landlock_abi, lower_limit, restrict_folders, unshare_network,
};
use super::process::close_inherited;
use a2g_types::quantity::MemoryLimit;
use rustix::process::{DumpableBehavior, Resource, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;

/// Maximum number of descriptors of the process: its standard streams, and those that the standard library opens
/// briefly.
const MAX_DESCRIPTORS: u64 = 16;

/// Limits of the process that compiles.
#[derive(Debug, Clone, Copy)]
pub struct CompilerLimits {
    /// CPU time of the process, in seconds.
    pub cpu_seconds: u64,
    /// Private memory of the process.
    pub memory: MemoryLimit,
    /// Maximum size of a file that the process writes, in bytes.
    pub output_bytes: u64,
}

/// Confines this process, which must have one thread and must not have read the module yet. Threads that it starts
/// later inherit the confinement.
///
/// # Errors
/// [`ConfineError`]: the process must not read the module.
pub fn confine_compiler(limits: CompilerLimits) -> Result<Applied, ConfineError> {
    let CompilerLimits { cpu_seconds, memory, output_bytes } = limits;
    close_inherited().map_err(control_error("to close inherited descriptors"))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(control_error("to set the parent-death signal"))?;
    let mut skipped = Vec::new();
    // `unshare_network` writes to files in /proc/self, which belong to root once the process is not dumpable.
    if !unshare_network()? {
        skipped.push(Support::NETWORK_NAMESPACE);
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).map_err(control_error("to drop capabilities"))?;
    rustix::thread::set_no_new_privs(true).map_err(control_error("to set no-new-privileges"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(control_error("to make the process non-dumpable"))?;
    lower_limit(Resource::Core, 0)?;
    lower_limit(Resource::Nofile, MAX_DESCRIPTORS)?;
    lower_limit(Resource::Fsize, output_bytes)?;
    lower_limit(Resource::Cpu, cpu_seconds)?;
    lower_limit(Resource::Data, memory.bytes())?;
    if landlock_abi().is_ok() {
        restrict_folders(&[])?;
    } else {
        skipped.push(Support::LANDLOCK);
    }
    if has_seccomp() {
        for program in programs().map_err(seccompiler::Error::Backend)? {
            seccompiler::apply_filter_all_threads(&program)?;
        }
    } else {
        skipped.push(Support::SECCOMP);
    }
    Ok(Applied { skipped })
}

/// The filters, which allow the system calls of a guest and those that start and name a thread. The kernel runs both
/// programs and applies the stricter result.
fn programs() -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let equal = |argument, value: i32| {
        SeccompCondition::new(
            argument,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Eq,
            u64::from(value.cast_unsigned()),
        )
    };
    let clone_thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
    let starts_thread = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::MaskedEq(clone_thread),
        clone_thread,
    )?;
    let mut rules = GUEST.iter().map(|call| (*call, Vec::new())).collect::<BTreeMap<_, _>>();
    rules.extend(conditional_calls(NewCode::Forbidden)?);
    // A failed allocation ends the process by a signal to itself.
    let own_pid = i32::try_from(std::process::id()).unwrap_or_default();
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![equal(0, own_pid)?])?]);
    // The C library installs a handler for an internal signal when it starts the first thread.
    rules.insert(libc::SYS_rt_sigaction, Vec::new());
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![starts_thread])?]);
    rules.insert(libc::SYS_clone3, Vec::new());
    rules.insert(libc::SYS_prctl, vec![SeccompRule::new(vec![equal(0, libc::PR_SET_NAME)?])?]);
    // The arguments of `clone3` are in memory, which a filter cannot read. With ENOSYS the C library falls back to
    // `clone`.
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let not_implemented = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let arch = || std::env::consts::ARCH.try_into();
    Ok([
        SeccompFilter::new(clone3, SeccompAction::Allow, not_implemented, arch()?)?.try_into()?,
        SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch()?)?.try_into()?,
    ])
}
