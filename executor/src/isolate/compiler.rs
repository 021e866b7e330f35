//! The confinement of the process that compiles a module.
//!
//! A module is made by its author, and a hole in the compiler would be a hole in the process that compiles. So
//! that process has no files, no network, no rights and no descriptors but its three standard streams, takes
//! only so much CPU time and memory, and makes no system calls but those of a guest and of threads.

use super::confine::{
    Applied, ConfineError, GUEST, Support, conditional, has_seccomp, keep_to, landlock_abi,
    leave_the_network, lower, refused,
};
use super::process::close_inherited;
use crate::quantity::MemoryLimit;
use rustix::process::{DumpableBehavior, Resource, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;

/// Descriptors of the process: its standard streams, and what the standard library opens for a moment.
const MAX_FILES: u64 = 16;

/// Limits of the process that compiles.
#[derive(Debug, Clone, Copy)]
pub struct CompilerLimits {
    /// CPU time of all its threads, in seconds.
    pub cpu_seconds: u64,
    /// Memory that it may write.
    pub memory: MemoryLimit,
    /// Bytes that it may write to a file.
    pub output_bytes: u64,
}

/// Confines this process, which has one thread and is about to read a module. Threads that it starts later
/// are confined like it.
///
/// # Errors
/// [`ConfineError`]; then the process must not read the module.
pub fn confine_compiler(limits: CompilerLimits) -> Result<Applied, ConfineError> {
    let CompilerLimits { cpu_seconds, memory, output_bytes } = limits;
    close_inherited().map_err(refused("to close what was inherited"))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(refused("to end the process with its parent"))?;
    let mut skipped = Vec::new();
    // Before the process stops being dumpable: then its own files in /proc are root's.
    if !leave_the_network()? {
        skipped.push(Support::NETWORK_NAMESPACE);
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).map_err(refused("to take rights away"))?;
    rustix::thread::set_no_new_privs(true).map_err(refused("to hold privileges back"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(refused("to keep its memory to itself"))?;
    lower(Resource::Core, 0)?;
    lower(Resource::Nofile, MAX_FILES)?;
    lower(Resource::Fsize, output_bytes)?;
    lower(Resource::Cpu, cpu_seconds)?;
    lower(Resource::Data, memory.bytes())?;
    if landlock_abi().is_ok() {
        keep_to(&[])?;
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

/// System calls of a guest, and those that start and name a thread. The kernel runs both programs and takes the
/// harsher answer.
fn programs() -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let equal = |argument, value: i32| {
        SeccompCondition::new(
            argument,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Eq,
            u64::from(value.cast_unsigned()),
        )
    };
    let thread = SeccompCmpOp::MaskedEq(u64::from(libc::CLONE_THREAD.cast_unsigned()));
    let thread = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        thread,
        u64::from(libc::CLONE_THREAD.cast_unsigned()),
    )?;
    let mut rules = GUEST.iter().map(|call| (*call, Vec::new())).collect::<BTreeMap<_, _>>();
    rules.extend(conditional()?);
    // An allocation that fails ends the process by a signal to itself.
    let itself = i32::try_from(std::process::id()).unwrap_or_default();
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![equal(0, itself)?])?]);
    // The C library takes one signal for itself when it starts its first thread.
    rules.insert(libc::SYS_rt_sigaction, Vec::new());
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![thread])?]);
    rules.insert(libc::SYS_clone3, Vec::new());
    rules.insert(libc::SYS_prctl, vec![SeccompRule::new(vec![equal(0, libc::PR_SET_NAME)?])?]);
    // The arguments of `clone3` stand in memory, where no filter sees them. Told that there is none, the C
    // library uses `clone`.
    let no_clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let missing = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let arch = || std::env::consts::ARCH.try_into();
    Ok([
        SeccompFilter::new(no_clone3, SeccompAction::Allow, missing, arch()?)?.try_into()?,
        SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch()?)?.try_into()?,
    ])
}
