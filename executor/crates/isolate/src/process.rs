//! The process functions that no safe crate offers: fork, reap and the CPU clock of another process.

use super::channel::Exit;
use std::io::{Error, Result};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

/// The process in which a fork returned.
pub(super) enum ForkSide {
    Child,
    Parent { pid: i32 },
}

/// The number of threads of this process.
pub(super) fn thread_count() -> Result<u64> {
    // The folder has one link per subfolder, that is, per thread, and two that every folder has.
    Ok(std::fs::metadata("/proc/self/task")?.nlink().saturating_sub(2))
}

/// The number of open descriptors of this process, which are numbered below `max`.
pub(super) fn descriptor_count(max: u64) -> Result<u64> {
    // Since Linux 6.2 the size of the folder says it.
    match std::fs::metadata("/proc/self/fd")?.len() {
        0 => Ok(count_descriptors_below(max)),
        count => Ok(count),
    }
}

#[allow(unsafe_code, reason = "fcntl only tells whether such a descriptor is open")]
fn count_descriptors_below(max: u64) -> u64 {
    let is_open = |number: &u64| {
        let number = libc::c_int::try_from(*number).unwrap_or(libc::c_int::MAX);
        unsafe { libc::fcntl(number, libc::F_GETFD) != -1 }
    };
    (0..max).filter(is_open).count() as u64
}

/// Forks this process.
///
/// # Errors
/// If this process has more than one thread, or the kernel cannot create another process.
#[allow(
    unsafe_code,
    reason = "fork is only sound in a process with one thread: no lock can be held by a thread that the copy \
              lacks. That is checked here, every time"
)]
pub(super) fn fork() -> Result<ForkSide> {
    if thread_count()? != 1 {
        return Err(Error::other("a process with several threads cannot be forked"));
    }
    match unsafe { libc::fork() } {
        -1 => Err(Error::last_os_error()),
        0 => Ok(ForkSide::Child),
        pid => Ok(ForkSide::Parent { pid }),
    }
}

/// Closes every descriptor except the three standard streams.
// The server may itself have inherited descriptors that a new program keeps.
#[allow(
    unsafe_code,
    reason = "this process uses no descriptors yet except its standard streams, which stay open"
)]
pub(super) fn close_inherited() -> Result<()> {
    // Not the function of the C library, which glibc has since version 2.34 only.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _failed => Err(Error::last_os_error()),
    }
}

/// Waits for a child that has ended. Returns the kernel's report about it.
#[allow(unsafe_code, reason = "wait4 fills in two values that are ours")]
pub(super) fn reap(pid: i32) -> Result<Exit> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    let usage = unsafe {
        if libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) != pid {
            return Err(Error::last_os_error());
        }
        usage.assume_init()
    };
    let micros = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
    };
    let description = if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        match signal {
            libc::SIGKILL => "it was killed (SIGKILL)".to_owned(),
            libc::SIGSYS => "it made a system call that no tool may make (SIGSYS)".to_owned(),
            other => format!("signal {other}"),
        }
    } else {
        format!("exit code {}", libc::WEXITSTATUS(status))
    };
    Ok(Exit {
        description,
        cpu_us: micros(usage.ru_utime) + micros(usage.ru_stime),
        peak_resident: u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10,
    })
}

/// CPU time of a living process, from the kernel's clock of that process; `None` if the clock cannot be read.
#[allow(unsafe_code, reason = "two calls that fill in values of ours")]
pub(super) fn cpu_of(pid: i32) -> Option<Duration> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let is_read = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0 && libc::clock_gettime(clock, &raw mut time) == 0
    };
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    is_read.then(|| Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos))
}

/// Peak resident memory of a living process in bytes, as the kernel counts it; `None` if it cannot be read.
pub(super) fn peak_resident_of(pid: i32) -> Option<u64> {
    read_memory(pid, "VmHWM:")
}

/// Resident memory of a living process that no file backs, in bytes, as the kernel counts it; `None` if it cannot be read.
pub(super) fn anonymous_resident_of(pid: i32) -> Option<u64> {
    read_memory(pid, "RssAnon:")
}

/// An amount of memory of a living process in bytes, by its name in `/proc/PID/status`.
fn read_memory(pid: i32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kb| kb << 10)
}

/// Lets the kernel count the peak of a living process's resident memory anew. Returns `false` if this process may not.
pub(super) fn reset_peak_resident_of(pid: i32) -> bool {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_of_a_process_is_measured() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let before = anonymous_resident_of(pid).unwrap();
        let touched = vec![1_u8; 64 << 20];
        let after = anonymous_resident_of(pid).unwrap();
        // Other tests may free some meanwhile.
        assert!(after > before + (32 << 20), "{after} bytes after {before}, {}", touched.len());
        assert_eq!(anonymous_resident_of(-1), None);
    }

    #[test]
    fn both_ways_to_count_descriptors_agree() {
        let _more = [(); 20].map(|()| std::fs::File::open("/dev/null").unwrap());
        // Other tests open and close descriptors meanwhile.
        let agree = (0..1000).any(|_| descriptor_count(4096).unwrap() == count_descriptors_below(4096));
        assert!(agree && count_descriptors_below(4096) > 20);
    }
}
