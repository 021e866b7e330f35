//! Tests of the rights that a confined child has left. Each test starts its program again for this
//! test alone. The new process forks one with a single thread in place of the zygote, which forks
//! the child.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    clippy::wildcard_enum_match_arm,
    reason = "a test stops at the first surprise"
)]

use a2g_capability::{Authority, Ceilings, Claims, Permit};
use a2g_core::catalog::create_sealed;
use a2g_isolate::{ConfineError, Confinement, OVERHEAD_BYTES, OVERHEAD_PER_OUTPUT_BYTE, User, support};
use a2g_sandbox::egress::Network;
use a2g_sandbox::{Abort, Code, Input, ModuleCompiler, Sandbox};
use a2g_types::limit::{Access, Limit, LimitMap};
use a2g_types::outcome::{End, Outcome};
use a2g_types::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, futimens, linkat, mkdirat, openat, renameat, symlinkat,
    unlinkat, utimensat,
};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// The environment variable with the name of the test that a process was started for.
const ALONE: &str = "A2G_TEST_CONFINED";
const DIED_OF_SIGSYS: i32 = 128 + libc::SIGSYS;
const MAX_FILES: u64 = 64;
const MAX_FILE_BYTES: u64 = 1 << 20;
/// True if children can change their user: the test runs as root, and this machine supports it.
static CHANGES_USERS: LazyLock<bool> =
    LazyLock::new(|| rustix::process::geteuid().is_root() && support().unprivileged_user.is_ok());

/// True if this machine has every control. Otherwise prints that the test is skipped.
fn can_be_confined() -> bool {
    let lacking = support().missing().map(|control| control.name).collect::<Vec<_>>();
    if !lacking.is_empty() {
        // The output of `println!` is hidden if the test passes.
        let _untold = writeln!(std::io::stderr(), "skipped: this machine lacks {}", lacking.join(", "));
    }
    lacking.is_empty()
}

/// Starts the test `name` alone in a new process, which runs `body` in a confined child, and checks
/// the exit code of that child: 128 plus the signal if a signal ended it. In the new process, runs
/// the child and exits with its code. Does nothing on a machine that lacks a control.
fn run_alone(name: &str, expected: i32, body: impl FnOnce(&Arc<Confinement>)) {
    if !can_be_confined() {
        return;
    }
    if std::env::var(ALONE).is_ok_and(|started| started == name) {
        std::process::exit(in_child(body));
    }
    let output = start(name).output().unwrap();
    print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(expected));
}

fn start(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--include-ignored"]).env(ALONE, name);
    command
}

/// Forks a process with a single thread in place of the zygote, which forks a child that runs
/// `body`. Like the zygote, the first of the two is killed when the process that forked it ends.
fn in_child(body: impl FnOnce(&Arc<Confinement>)) -> i32 {
    wait_for_exit_code(fork(|| {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
        let confinement = Arc::new(Confinement::prepare().unwrap());
        let applied = confinement.confine_zygote(*CHANGES_USERS).unwrap();
        assert_eq!(applied.skipped, [""; 0]);
        exit(wait_for_exit_code(fork(|| body(&confinement))));
    }))
}

#[allow(unsafe_code, reason = "ends this process")]
fn exit(code: i32) -> ! {
    unsafe { libc::_exit(code) }
}

#[allow(unsafe_code, reason = "the only other thread of this process waits for this one")]
fn fork(body: impl FnOnce()) -> libc::pid_t {
    match unsafe { libc::fork() } {
        0 => {
            let succeeded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
            exit(if succeeded { 0 } else { 101 })
        }
        child => child,
    }
}

fn wait_for_exit_code(child: libc::pid_t) -> i32 {
    let child = rustix::process::Pid::from_raw(child).unwrap();
    let options = rustix::process::WaitOptions::empty();
    let (_, status) = rustix::process::waitpid(Some(child), options).unwrap().unwrap();
    status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap())
}

/// A system call as a hijacked child could make it.
#[allow(unsafe_code, reason = "no call here is given memory that it could spoil")]
fn call(number: libc::c_long, arguments: [usize; 6]) -> libc::c_long {
    let [a, b, c, d, e, f] = arguments;
    unsafe { libc::syscall(number, a, b, c, d, e, f) }
}

fn memory(mb: u64) -> MemoryLimit {
    MemoryLimit::from_mb(mb).unwrap()
}

fn output(bytes: u64) -> OutputLimit {
    OutputLimit::from_bytes(bytes).unwrap()
}

/// Applies both steps of confinement, as a child does.
fn apply(confinement: &Confinement, roots: &[(BorrowedFd<'_>, Access)]) {
    confinement.confine_waiting(MAX_FILES, MAX_FILE_BYTES).unwrap();
    apply_last_step(confinement, roots);
}

fn apply_last_step(confinement: &Confinement, roots: &[(BorrowedFd<'_>, Access)]) {
    let applied = confinement.apply(roots, None, memory(16), output(1 << 20), None).unwrap();
    assert_eq!(applied.skipped, [""; 0]);
}

/// As [`apply`], for a run whose file changes are kept in `upper`.
fn apply_with_upper(confinement: &Confinement, roots: &[(BorrowedFd<'_>, Access)], upper: &File) {
    confinement.confine_waiting(MAX_FILES, MAX_FILE_BYTES).unwrap();
    let upper = Some(upper.as_fd());
    let applied = confinement.apply(roots, upper, memory(16), output(1 << 20), None).unwrap();
    assert_eq!(applied.skipped, [""; 0]);
}

fn is_denied<T, E: Into<std::io::Error>>(result: Result<T, E>) -> bool {
    result.is_err_and(|error| error.into().raw_os_error() == Some(libc::EACCES))
}

/// A folder with a file `in`, a folder `sub`, and a link out.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in"), "content").unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
    folder
}

#[test]
fn only_granted_folders_are_visible() {
    run_alone("only_granted_folders_are_visible", 0, |confinement| {
        let granted = folder();
        let other = folder();
        let root = File::open(granted.path()).unwrap();
        apply(confinement, &[(root.as_fd(), Access::ReadWrite)]);
        let at = |name: &str| granted.path().join(name);

        assert_eq!(fs::read_to_string(at("in")).unwrap(), "content");
        let again = format!("/proc/self/fd/{}", root.as_raw_fd());
        assert_eq!(fs::read_dir(again).unwrap().count(), 3);
        fs::write(at("new"), "new").unwrap();
        File::options().write(true).open(at("new")).unwrap().set_len(1).unwrap();
        fs::write(at("new"), "").unwrap();
        renameat(CWD, at("new"), CWD, at("sub/moved")).unwrap();
        linkat(CWD, at("in"), CWD, at("sub/linked"), AtFlags::empty()).unwrap();
        symlinkat("in", CWD, at("sub/symlink")).unwrap();
        mkdirat(CWD, at("sub/made"), 0o755.into()).unwrap();
        unlinkat(CWD, at("sub/made"), AtFlags::REMOVEDIR).unwrap();
        unlinkat(CWD, at("sub/moved"), AtFlags::empty()).unwrap();

        for path in ["/etc/passwd", "/proc/self/mem", "/proc/self/maps", "/dev/null", "/"] {
            assert!(is_denied(File::open(path)), "{path}");
        }
        assert!(is_denied(File::open(at("link"))), "through a link in the granted folder");
        assert!(is_denied(File::open(at("../../etc/passwd"))), "through `..`");
        assert!(is_denied(fs::read_dir(other.path())));
        assert!(is_denied(fs::write(other.path().join("new"), "new")));
        assert!(is_denied(unlinkat(CWD, other.path().join("in"), AtFlags::empty())));
        let out = renameat(CWD, at("in"), CWD, other.path().join("stolen"));
        assert!(matches!(out, Err(rustix::io::Errno::ACCESS | rustix::io::Errno::XDEV)), "{out:?}");
    });
}

#[test]
fn a_read_only_root_is_read_only() {
    run_alone("a_read_only_root_is_read_only", 0, |confinement| {
        let granted = folder();
        let root = File::open(granted.path()).unwrap();
        apply(confinement, &[(root.as_fd(), Access::ReadOnly)]);
        let at = |name: &str| granted.path().join(name);
        assert_eq!(fs::read_to_string(at("in")).unwrap(), "content");
        assert_eq!(fs::read_dir(granted.path()).unwrap().count(), 3);
        assert!(is_denied(fs::write(at("new"), "new")));
        assert!(is_denied(File::options().append(true).open(at("in"))));
        assert!(is_denied(mkdirat(CWD, at("made"), 0o755.into())));
        assert!(is_denied(renameat(CWD, at("in"), CWD, at("out"))));
        assert!(is_denied(unlinkat(CWD, at("in"), AtFlags::empty())));
    });
}

#[test]
fn originals_are_read_only_while_changes_are_kept_apart() {
    run_alone("originals_are_read_only_while_changes_are_kept_apart", 0, |confinement| {
        let granted = folder();
        let changes = folder();
        let root = File::open(granted.path()).unwrap();
        let upper = File::open(changes.path()).unwrap();
        apply_with_upper(confinement, &[(root.as_fd(), Access::ReadWrite)], &upper);
        let at = |name: &str| granted.path().join(name);
        let kept = |name: &str| changes.path().join(name);
        assert_eq!(fs::read_to_string(at("in")).unwrap(), "content");
        assert!(is_denied(fs::write(at("new"), "new")));
        assert!(is_denied(File::options().append(true).open(at("in"))));
        assert!(is_denied(mkdirat(CWD, at("made"), 0o755.into())));
        assert!(is_denied(symlinkat("in", CWD, at("symlink"))));
        assert!(is_denied(renameat(CWD, at("in"), CWD, at("out"))));
        assert!(is_denied(unlinkat(CWD, at("in"), AtFlags::empty())));
        assert!(is_denied(unlinkat(CWD, at("sub"), AtFlags::REMOVEDIR)));
        for (from, to) in [(kept("in"), at("out")), (at("in"), kept("out"))] {
            let moved = renameat(CWD, &from, CWD, &to);
            assert!(matches!(moved, Err(rustix::io::Errno::ACCESS | rustix::io::Errno::XDEV)), "{moved:?}");
            let linked = linkat(CWD, &from, CWD, &to, AtFlags::empty());
            assert!(matches!(linked, Err(rustix::io::Errno::ACCESS | rustix::io::Errno::XDEV)), "{linked:?}");
        }
        // A view needs these.
        fs::write(kept("1"), "changed").unwrap();
        let copy = File::open(kept("1")).unwrap();
        let _may_not_be_supported = rustix::fs::ioctl_ficlone(&upper, &copy);
        let original = File::open(at("in")).unwrap();
        let mut reader = std::os::fd::OwnedFd::from(original);
        rustix::io::dup3(&copy, &mut reader, rustix::io::DupFlags::CLOEXEC).unwrap();
        let mut read = String::new();
        File::from(reader).read_to_string(&mut read).unwrap();
        assert_eq!(read, "changed");
        let flags = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::accessat(&root, "in", rustix::fs::Access::READ_OK, flags).unwrap();
        rustix::thread::capabilities(None).unwrap();
        let target = File::create(kept("2")).unwrap();
        assert_eq!(rustix::fs::copy_file_range(&copy, Some(&mut 0), &target, Some(&mut 0), 7), Ok(7));
        mkdirat(CWD, kept("probe"), 0o755.into()).unwrap();
        unlinkat(CWD, kept("probe"), AtFlags::REMOVEDIR).unwrap();
        unlinkat(CWD, kept("1"), AtFlags::empty()).unwrap();
    });
}

/// As a guest that has broken out would try it: calls at random, each on an original in some way.
#[test]
fn ten_thousand_calls_change_no_original() {
    run_alone("ten_thousand_calls_change_no_original", 0, |_| {
        let confinement = &Confinement::prepare().unwrap();
        let granted = folder();
        let changes = folder();
        let root = File::open(granted.path()).unwrap();
        let upper = File::open(changes.path()).unwrap();
        let confine = || apply_with_upper(confinement, &[(root.as_fd(), Access::ReadWrite)], &upper);
        let before = list_tree(granted.path());
        let code = wait_for_exit_code(fork(|| {
            confine();
            try_calls(granted.path(), changes.path());
        }));
        assert_eq!(code, 0);
        // The first attempt to set a time ends the process.
        for original in ["in", "sub", "."] {
            let path = granted.path().join(original);
            let open = File::open(&path).unwrap();
            let by_path = fork(|| {
                confine();
                let _ends = utimensat(CWD, &path, &OLD_TIMES, AtFlags::SYMLINK_NOFOLLOW);
            });
            let by_descriptor = fork(|| {
                confine();
                let _ends = futimens(&open, &OLD_TIMES);
            });
            for child in [by_path, by_descriptor] {
                assert_eq!(wait_for_exit_code(child), DIED_OF_SIGSYS, "{original}");
            }
        }
        assert_eq!(list_tree(granted.path()), before);
        // Nothing else prevents it.
        utimensat(CWD, granted.path().join("in"), &OLD_TIMES, AtFlags::empty()).unwrap();
        assert_ne!(list_tree(granted.path()), before);
    });
}

const OLD_TIMES: Timestamps = Timestamps {
    last_access: Timespec { tv_sec: 1, tv_nsec: 0 },
    last_modification: Timespec { tv_sec: 1, tv_nsec: 0 },
};

/// Makes ten thousand calls in a confined process, of which none may change an original.
fn try_calls(granted: &Path, changes: &Path) {
    let originals = ["in", "sub", "link", "sub/../in", "new", "sub/new", "."];
    let kept = ["1", "2", "sub"];
    // This needs no right to write, as Landlock sees it.
    let truncates = OFlags::RDONLY | OFlags::TRUNC | OFlags::NOFOLLOW;
    let mut own_writes = 0;
    let mut random = 1_u64;
    let mut next = |count: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap() % count
    };
    for _ in 0..10_000 {
        let original = granted.join(originals[next(originals.len())]);
        let other = granted.join(originals[next(originals.len())]);
        let own = changes.join(kept[next(kept.len())]);
        let flags = [AtFlags::empty(), AtFlags::REMOVEDIR][next(2)];
        let is_done = match next(11) {
            0 => fs::write(&original, "changed").is_ok(),
            1 => File::options().append(true).create(true).open(&original).is_ok(),
            2 => mkdirat(CWD, &original, 0o755.into()).is_ok(),
            3 => symlinkat("in", CWD, &original).is_ok(),
            4 => renameat(CWD, &original, CWD, &other).is_ok(),
            5 => renameat(CWD, &own, CWD, &original).is_ok(),
            6 => linkat(CWD, &own, CWD, &original, AtFlags::empty()).is_ok(),
            7 => unlinkat(CWD, &original, flags).is_ok(),
            8 => File::open(&original).is_ok_and(|file| {
                let is_cut = file.set_len(0).is_ok();
                is_cut || rustix::io::pwrite(&file, b"changed", 0).is_ok()
            }),
            9 => openat(CWD, &original, truncates, Mode::empty()).is_ok(),
            _ => {
                own_writes += u32::from(fs::write(&own, "own").is_ok());
                false
            }
        };
        assert!(!is_done, "{} {}", original.display(), other.display());
    }
    assert!(own_writes > 0, "the own folder can be written");
}

/// A folder and all in it, each with its mode, its times but for that of access, and its content.
fn list_tree(path: &Path) -> Vec<(PathBuf, u32, [i64; 4], Vec<u8>)> {
    let metadata = fs::symlink_metadata(path).unwrap();
    let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
    let content = if metadata.is_file() { fs::read(path).unwrap() } else { Vec::new() };
    let mut entries = vec![(path.to_owned(), metadata.mode(), times, content)];
    if metadata.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            entries.extend(list_tree(&entry.unwrap().path()));
        }
    }
    entries.sort();
    entries
}

/// The area that the program's files lie in is open for look-ups, and only a part of it is granted.
#[test]
fn a_run_of_a_program_reads_what_it_is_given_and_changes_its_own_folder_only() {
    let name = "a_run_of_a_program_reads_what_it_is_given_and_changes_its_own_folder_only";
    run_alone(name, 0, |confinement| {
        let area = folder();
        let granted = area.path().join("sub");
        fs::write(granted.join("granted"), "granted").unwrap();
        fs::write(area.path().join("moved"), "moved").unwrap();
        let changes = folder();
        let earlier = folder();
        let lookup = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        let roots = rustix::fs::open(area.path(), lookup, rustix::fs::Mode::empty()).unwrap();
        let opened = [granted, earlier.path().to_owned(), area.path().join("moved")]
            .map(|path| File::open(path).unwrap());
        let folders = opened.iter().map(|folder| (folder.as_fd(), Access::ReadWrite)).collect::<Vec<_>>();
        apply_with_upper(confinement, &folders, &File::open(changes.path()).unwrap());

        // The view finds entries of the area, and opens what the run was given.
        rustix::fs::statat(&roots, "in", AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let read_only = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let open = |path: &str| rustix::fs::openat(&roots, path, read_only, rustix::fs::Mode::empty());
        for path in ["sub", "sub/granted", "moved"] {
            open(path).unwrap();
        }
        for path in ["in", "."] {
            assert!(is_denied(open(path)), "{path}");
        }
        assert!(is_denied(fs::write(area.path().join("moved"), "changed")));

        let of_others = |name: &str| earlier.path().join(name);
        assert_eq!(fs::read_to_string(of_others("in")).unwrap(), "content");
        assert!(is_denied(fs::write(of_others("in"), "changed")));
        assert!(is_denied(fs::write(of_others("new"), "new")));
        assert!(is_denied(unlinkat(CWD, of_others("in"), AtFlags::empty())));
        assert!(is_denied(renameat(CWD, of_others("in"), CWD, of_others("out"))));
        let taken = renameat(CWD, of_others("in"), CWD, changes.path().join("taken"));
        assert!(matches!(taken, Err(rustix::io::Errno::ACCESS | rustix::io::Errno::XDEV)), "{taken:?}");
        fs::write(changes.path().join("1"), "own").unwrap();
    });
}

#[test]
fn an_unnamed_folder_must_also_be_a_root() {
    run_alone("an_unnamed_folder_must_also_be_a_root", 0, |confinement| {
        let deleted_folder = || {
            let folder = tempfile::tempdir().unwrap();
            let handle = File::open(folder.path()).unwrap();
            folder.close().unwrap();
            handle
        };
        let granted = deleted_folder();
        let other = deleted_folder();
        apply(confinement, &[(granted.as_fd(), Access::ReadOnly)]);
        let reopen = |handle: &File| File::open(format!("/proc/self/fd/{}", handle.as_raw_fd()));
        reopen(&granted).unwrap();
        assert!(is_denied(reopen(&other)));
    });
}

/// System calls that no guest needs, with arguments that do no harm if a call is not blocked.
const FORBIDDEN: &[(&str, libc::c_long, [usize; 6])] = &[
    ("socket", libc::SYS_socket, [libc::AF_UNIX as usize, libc::SOCK_STREAM as usize, 0, 0, 0, 0]),
    ("connect", libc::SYS_connect, [999, 0, 0, 0, 0, 0]),
    ("bind", libc::SYS_bind, [999, 0, 0, 0, 0, 0]),
    ("recvmsg", libc::SYS_recvmsg, [999, 0, 0, 0, 0, 0]),
    ("recvfrom", libc::SYS_recvfrom, [999, 0, 0, 0, 0, 0]),
    ("sendto an address", libc::SYS_sendto, [999, 0, 0, 0, 8, 8]),
    ("kill", libc::SYS_kill, [0x7fff_0000, 0, 0, 0, 0, 0]),
    ("tgkill", libc::SYS_tgkill, [0x7fff_0000, 0x7fff_0000, 0, 0, 0, 0]),
    ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo, [0x7fff_0000, 0, 0, 0, 0, 0]),
    ("setitimer", libc::SYS_setitimer, [9999, 0, 0, 0, 0, 0]),
    ("timer_create", libc::SYS_timer_create, [9999, 0, 0, 0, 0, 0]),
    ("timerfd_create", libc::SYS_timerfd_create, [9999, 0, 0, 0, 0, 0]),
    ("ptrace", libc::SYS_ptrace, [9999, 0, 0, 0, 0, 0]),
    ("clone", libc::SYS_clone, [usize::MAX, 0, 0, 0, 0, 0]),
    ("clone3", libc::SYS_clone3, [0; 6]),
    ("execve", libc::SYS_execve, [0; 6]),
    ("execveat", libc::SYS_execveat, [0; 6]),
    ("memfd_create", libc::SYS_memfd_create, [0; 6]),
    ("keyctl", libc::SYS_keyctl, [9999, 0, 0, 0, 0, 0]),
    ("io_uring_setup", libc::SYS_io_uring_setup, [0; 6]),
    ("userfaultfd", libc::SYS_userfaultfd, [usize::MAX, 0, 0, 0, 0, 0]),
    ("bpf", libc::SYS_bpf, [9999, 0, 0, 0, 0, 0]),
    ("perf_event_open", libc::SYS_perf_event_open, [0; 6]),
    ("unshare", libc::SYS_unshare, [0; 6]),
    ("mount", libc::SYS_mount, [0; 6]),
    ("prctl", libc::SYS_prctl, [9999, 0, 0, 0, 0, 0]),
    ("setgroups", libc::SYS_setgroups, [0; 6]),
    ("setresuid", libc::SYS_setresuid, [0; 6]),
    ("setresgid", libc::SYS_setresgid, [0; 6]),
    ("capset", libc::SYS_capset, [0; 6]),
    ("prlimit64", libc::SYS_prlimit64, [0, 9999, 0, 0, 0, 0]),
    ("seccomp", libc::SYS_seccomp, [9999, 0, 0, 0, 0, 0]),
    ("ioctl", libc::SYS_ioctl, [999, 0, 0, 0, 0, 0]),
    ("process_vm_writev", libc::SYS_process_vm_writev, [0; 6]),
    ("shmget", libc::SYS_shmget, [0; 6]),
    ("dup3", libc::SYS_dup3, [999, 998, 0, 0, 0, 0]),
    ("copy_file_range", libc::SYS_copy_file_range, [999, 0, 998, 0, 1, 0]),
    ("faccessat2", libc::SYS_faccessat2, [999, 0, 0, 0, 0, 0]),
    ("capget", libc::SYS_capget, [0; 6]),
    ("ioctl with FICLONE", libc::SYS_ioctl, [999, 0x4004_9409, 998, 0, 0, 0]),
    ("fchmodat", libc::SYS_fchmodat, [0; 6]),
    ("fcntl with an owner", libc::SYS_fcntl, [999, libc::F_SETOWN as usize, 0, 0, 0, 0]),
    ("mmap of executable memory", libc::SYS_mmap, [0, 4096, 5, 0x22, usize::MAX, 0]),
    ("mmap shared", libc::SYS_mmap, [0, 4096, 3, 0x21, usize::MAX, 0]),
    ("mprotect to executable memory", libc::SYS_mprotect, [0, 0, 5, 0, 0, 0]),
    ("a number that no kernel has", 0xfff, [0; 6]),
    #[cfg(target_arch = "x86_64")]
    ("a system call of the x32 ABI", 0x4000_0000, [0; 6]),
];

#[test]
fn forbidden_system_calls_end_the_process() {
    run_alone("forbidden_system_calls_end_the_process", 0, |_| {
        let confinement = &Confinement::prepare().unwrap();
        for (name, number, arguments) in FORBIDDEN {
            let code = wait_for_exit_code(fork(|| {
                apply(confinement, &[]);
                call(*number, *arguments);
            }));
            assert_eq!(code, DIED_OF_SIGSYS, "{name}");
        }
        let code = wait_for_exit_code(fork(|| apply(confinement, &[])));
        assert_eq!(code, 0, "a child without a forbidden call exits with 0");
        let upper = &tempfile::tempdir().unwrap();
        let code = wait_for_exit_code(fork(|| {
            apply_with_upper(confinement, &[], &File::open(upper.path()).unwrap());
            call(libc::SYS_ioctl, [999, 999, 0, 0, 0, 0]);
        }));
        assert_eq!(code, DIED_OF_SIGSYS, "another request of `ioctl`");
    });
}

#[test]
fn no_second_process_can_be_started() {
    run_alone("no_second_process_can_be_started", DIED_OF_SIGSYS, |confinement| {
        apply(confinement, &[]);
        let _started = Command::new("/bin/true").status();
    });
}

#[test]
fn no_thread_can_be_started() {
    run_alone("no_thread_can_be_started", DIED_OF_SIGSYS, |confinement| {
        apply(confinement, &[]);
        let _started = std::thread::Builder::new().spawn(|| ());
    });
}

#[test]
fn a_child_reaches_the_peer_of_its_open_socket() {
    run_alone("a_child_reaches_the_peer_of_its_open_socket", 0, |confinement| {
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        // The child uses `read`, as for a file: `recvfrom` and `recvmsg` are forbidden.
        let mut theirs = File::from(std::os::fd::OwnedFd::from(theirs));
        apply(confinement, &[]);
        ours.write_all(b"outcome").unwrap();
        drop(ours);
        let mut read = String::new();
        theirs.read_to_string(&mut read).unwrap();
        assert_eq!(read, "outcome");
    });
}

#[test]
fn private_memory_ends_at_the_limit_and_the_overhead() {
    run_alone("private_memory_ends_at_the_limit_and_the_overhead", 0, |confinement| {
        apply(confinement, &[]);
        let allowed = (16 << 20) + OVERHEAD_BYTES + (OVERHEAD_PER_OUTPUT_BYTE << 20);
        let take = |bytes: u64| Vec::<u8>::new().try_reserve_exact(bytes as usize);
        take(allowed - (4 << 20)).unwrap();
        assert!(take(allowed + (4 << 20)).is_err());
    });
}

#[test]
fn a_waiting_child_has_a_low_file_count_and_file_size_limit() {
    run_alone("a_waiting_child_has_a_low_file_count_and_file_size_limit", 0, |confinement| {
        confinement.confine_waiting(MAX_FILES, MAX_FILE_BYTES).unwrap();
        let open = (0..MAX_FILES + 8).map_while(|_| File::open("/dev/null").ok()).collect::<Vec<_>>();
        assert!((open.len() as u64) < MAX_FILES, "{}", open.len());
        drop(open);
        let file = tempfile::tempfile().unwrap();
        file.set_len(MAX_FILE_BYTES).unwrap();
        let too_large = file.set_len(MAX_FILE_BYTES + 1).unwrap_err();
        assert_eq!(too_large.raw_os_error(), Some(libc::EFBIG));
        let core = rustix::process::getrlimit(rustix::process::Resource::Core);
        assert_eq!((core.current, core.maximum), (Some(0), Some(0)));
    });
}

#[test]
fn a_child_inherits_the_dropped_rights_of_its_zygote() {
    run_alone("a_child_inherits_the_dropped_rights_of_its_zygote", 0, |_| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        use rustix::thread::CapabilitySet as Set;
        // Capabilities to change the user. A child drops them with the rest before its guest
        // begins.
        let users = if *CHANGES_USERS { Set::SETUID | Set::SETGID | Set::KILL } else { Set::empty() };
        let kept = Set::DAC_OVERRIDE | Set::FOWNER | users;
        for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            assert_eq!(field(set) & !kept.bits(), 0, "{set}");
        }
        assert_eq!(field("NoNewPrivs:"), 1);
        let dumpable = rustix::process::dumpable_behavior().unwrap();
        assert_eq!(dumpable, rustix::process::DumpableBehavior::NotDumpable);
        // Outside of the network namespace, where nobody listens on this port, it would be
        // ECONNREFUSED.
        let unreachable = std::net::TcpStream::connect("127.0.0.1:9").unwrap_err();
        assert_eq!(unreachable.raw_os_error(), Some(libc::ENETUNREACH));
    });
}

/// The lines of `/proc/thread-self/status` with these names.
fn status_of_thread(names: &[&str]) -> Vec<String> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let value = |name: &&str| {
        let line = status.lines().find_map(|line| line.strip_prefix(*name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    names.iter().map(value).collect()
}

/// Confines a child of root as `user`, and checks the user and rights of both of its threads.
fn assert_user(name: &str, user: Option<User>, expected: &[&str]) {
    if !*CHANGES_USERS {
        // The output of `println!` is hidden if the test passes.
        let _untold = writeln!(std::io::stderr(), "skipped: this is not root, or it may not change its user");
        return;
    }
    run_alone(name, 0, |confinement| {
        // The child is granted `/proc`, because the test reads files there.
        let proc = File::open("/proc").unwrap();
        confinement.confine_waiting(MAX_FILES, MAX_FILE_BYTES).unwrap();
        let own = Arc::clone(confinement);
        let (send_status, statuses) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut status = File::open("/proc/thread-self/status").unwrap();
            own.confine_aux_thread().unwrap();
            let mut read = String::new();
            status.read_to_string(&mut read).unwrap();
            send_status.send(read).unwrap();
            let _never = wait.recv();
        });
        let of_aux_thread = statuses.recv().unwrap();
        assert!(of_aux_thread.contains("Uid:\t65534\t65534\t65534\t65534"), "{of_aux_thread}");
        assert!(of_aux_thread.contains("CapPrm:\t0000000000000000"), "{of_aux_thread}");
        let root = [(proc.as_fd(), Access::ReadOnly)];
        confinement.apply(&root, None, memory(16), output(1 << 20), user).unwrap();
        assert_eq!(status_of_thread(&["Uid:", "Gid:", "CapEff:", "CapPrm:"]), expected);
        assert!(status_of_thread(&["Groups:"]) == [""] || user.is_none(), "it has supplementary groups");
        assert!(fs::read_to_string("/proc/self/environ").is_err() || user.is_none(), "it is dumpable");
        drop(done);
        thread.join().unwrap();
    });
}

#[test]
fn a_child_of_root_changes_user_in_all_its_threads() {
    let no_rights = "0000000000000000";
    assert_user(
        "a_child_of_root_changes_user_in_all_its_threads",
        Some(User { uid: 4321, gid: 4322 }),
        &["4321 4321 4321 4321", "4322 4322 4322 4322", no_rights, no_rights],
    );
}

#[test]
fn a_child_that_stays_root_keeps_file_capabilities_only() {
    let files = "000000000000000a";
    let name = "a_child_that_stays_root_keeps_file_capabilities_only";
    assert_user(name, None, &["0 0 0 0", "0 0 0 0", files, files]);
}

#[test]
fn no_confinement_step_can_be_skipped() {
    run_alone("no_confinement_step_can_be_skipped", 0, |confinement| {
        let refused = confinement.apply(&[], None, memory(16), output(1 << 20), None);
        assert!(matches!(refused, Err(ConfineError::Unprepared)), "{refused:?}");
    });
}

#[test]
fn a_thread_that_still_shares_its_files_is_detected() {
    run_alone("a_thread_that_still_shares_its_files_is_detected", 0, |confinement| {
        confinement.confine_waiting(MAX_FILES, MAX_FILE_BYTES).unwrap();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv());
        let refused = confinement.apply(&[], None, memory(16), output(1 << 20), None);
        assert!(matches!(refused, Err(ConfineError::Threads { threads: 2, expected: 1 })), "{refused:?}");
        drop(done);
        let _dropped = thread.join().unwrap();
    });
}

#[test]
fn an_aux_thread_has_no_files_and_only_the_guests_system_calls() {
    run_alone("an_aux_thread_has_no_files_and_only_the_guests_system_calls", DIED_OF_SIGSYS, |confinement| {
        let granted = folder();
        let root = File::open(granted.path()).unwrap();
        let ((ready, is_ready), (go, may_go)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        confinement.confine_waiting(MAX_FILES, MAX_FILE_BYTES).unwrap();
        let own = Arc::clone(confinement);
        let file = granted.path().join("in");
        let (send_result, results) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            own.confine_aux_thread().unwrap();
            ready.send(()).unwrap();
            let () = may_go.recv().unwrap();
            send_result.send(is_denied(File::open(file)) && is_denied(File::open("/etc/passwd"))).unwrap();
            let () = may_go.recv().unwrap();
            call(libc::SYS_socket, [libc::AF_UNIX as usize, libc::SOCK_STREAM as usize, 0, 0, 0, 0]);
            send_result.send(false).unwrap();
        });
        is_ready.recv().unwrap();
        apply_last_step(confinement, &[(root.as_fd(), Access::ReadWrite)]);
        go.send(()).unwrap();
        assert!(results.recv().unwrap(), "the thread can open files");
        go.send(()).unwrap();
        let _never = results.recv();
    });
}

#[test]
fn a_child_ends_with_the_process_that_forked_it() {
    if !can_be_confined() {
        return;
    }
    let name = "a_child_ends_with_the_process_that_forked_it";
    if std::env::var(ALONE).is_ok() {
        std::process::exit(in_child(|confinement| {
            confinement.confine_waiting(MAX_FILES, MAX_FILE_BYTES).unwrap();
            println!("waiting");
            std::thread::sleep(Duration::from_secs(10));
        }));
    }
    let mut zygote = start(name).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = zygote.stdout.take().unwrap();
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains("waiting") {
        let mut more = [0; 256];
        let length = said.read(&mut more).unwrap();
        assert_ne!(length, 0, "the child ended before it waited");
        read.extend_from_slice(&more[..length]);
    }
    let killed = Instant::now();
    zygote.kill().unwrap();
    // The child has the other end of the pipe, too, so this returns only when the child has ended.
    said.read_to_end(&mut read).unwrap();
    zygote.wait().unwrap();
    assert!(killed.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_child_whose_parent_is_gone_exits_before_it_runs() {
    run_alone("a_child_whose_parent_is_gone_exits_before_it_runs", 0, |confinement| {
        // The parent of this grandchild is not the process that prepared the confinement.
        let code = wait_for_exit_code(fork(|| {
            let refused = confinement.confine_waiting(MAX_FILES, MAX_FILE_BYTES);
            assert!(matches!(refused, Err(ConfineError::Orphaned)), "{refused:?}");
        }));
        assert_eq!(code, 0);
    });
}

/// Compiles a guest, before a child is forked: the compiler has threads.
fn compile(wat: &str) -> File {
    let compiled = ModuleCompiler::new().unwrap().compile(&wat::parse_str(wat).unwrap()).unwrap();
    create_sealed(&compiled).unwrap()
}

/// Runs a guest in a confined child, with `folder` as its `/`.
fn guest(confinement: &Arc<Confinement>, compiled: &File, folder: &Path, cpu: u64, timeout: u64) -> Outcome {
    let own = Arc::clone(confinement);
    let first = move || own.confine_aux_thread().map_err(std::io::Error::other);
    let sandbox = Sandbox::builder().build().unwrap();
    sandbox.start_ticker(first).unwrap();
    let ceilings = Ceilings {
        limits: LimitMap::defaults()
            .with(memory(16))
            .with(CpuPercent::new(cpu).unwrap())
            .with(Timeout::from_seconds(timeout).unwrap()),
        access: Access::ReadWrite,
        ..Ceilings::closed()
    };
    let folders = [(folder.to_owned(), "/".to_owned())];
    static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::take().unwrap());
    let permit = Permit::for_operator(&AUTHORITY, Claims::default(), &ceilings, &folders).unwrap();
    let root = permit.roots().as_slice()[0].dir.as_fd().try_clone_to_owned().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let execution = sandbox.begin(&permit, Network::Off, Arc::new(Abort::default()));
    confinement.confine_waiting(MAX_FILES, MAX_FILE_BYTES).unwrap();
    // A child that waits may load code, and may not once the last step is done.
    let artifact = sandbox.load(Code::module(compiled)).unwrap();
    apply_last_step(confinement, &[(root.as_fd(), Access::ReadWrite)]);
    runtime.block_on(sandbox.execute(&artifact, permit, Input::Arguments("{}".to_owned()), &execution))
}

/// A guest of preview 1 that prints `true` on success, and traps at the first failed call.
fn wat(body: &str) -> String {
    format!(
        r#"(module
            (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_pwrite" (func $pwrite (param i32 i32 i32 i64 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_pread" (func $pread (param i32 i32 i32 i64 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_seek" (func $seek (param i32 i64 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_sync" (func $sync (param i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_datasync" (func $datasync (param i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_advise" (func $advise (param i32 i64 i64 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_allocate" (func $allocate (param i32 i64 i64) (result i32)))
            (import "wasi_snapshot_preview1" "fd_fdstat_get" (func $fdstat (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_fdstat_set_flags" (func $set_flags (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_filestat_get" (func $stat (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_filestat_set_size" (func $set_size (param i32 i64) (result i32)))
            (import "wasi_snapshot_preview1" "fd_filestat_set_times" (func $set_times (param i32 i64 i64 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_readdir" (func $readdir (param i32 i32 i32 i64 i32) (result i32)))
            (import "wasi_snapshot_preview1" "path_filestat_get" (func $path_stat (param i32 i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "path_filestat_set_times" (func $path_times (param i32 i32 i32 i32 i64 i64 i32) (result i32)))
            (import "wasi_snapshot_preview1" "path_create_directory" (func $mkdir (param i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "path_remove_directory" (func $rmdir (param i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "path_rename" (func $rename (param i32 i32 i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "path_link" (func $link (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "path_symlink" (func $symlink (param i32 i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "path_readlink" (func $readlink (param i32 i32 i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "path_unlink_file" (func $unlink (param i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
            (import "wasi_snapshot_preview1" "clock_res_get" (func $clock_res (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
            (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 2)
            (data (i32.const 0) "file\00sub\00sub/moved\00out\00linked\00symlink")
            (data (i32.const 100) "true")
            (func $ok (param i32) (if (local.get 0) (then unreachable)))
            (func $iov (i32.store (i32.const 200) (i32.const 100)) (i32.store (i32.const 204) (i32.const 4)))
            (func $forever (loop $l (br $l)))
            (func $deep (param i32) (result i32) (i32.add (call $deep (i32.add (local.get 0) (i32.const 1))) (i32.const 1)))
            (func (export "_start") (local $fd i32)
                {body}
                (call $iov) (call $ok (call $write (i32.const 1) (i32.const 200) (i32.const 1) (i32.const 208)))
            )
        )"#
    )
}

/// Uses everything that preview 1 has for files, clocks, randomness and memory.
const BUSY: &str = r"
    ;; a file: created, written, read, looked at, changed
    (call $ok (call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 4) (i32.const 1) (i64.const 0x1fffffff) (i64.const 0) (i32.const 0) (i32.const 220)))
    (local.set $fd (i32.load (i32.const 220)))
    (call $iov)
    (call $ok (call $write (local.get $fd) (i32.const 200) (i32.const 1) (i32.const 208)))
    (call $ok (call $pwrite (local.get $fd) (i32.const 200) (i32.const 1) (i64.const 8) (i32.const 208)))
    (call $ok (call $seek (local.get $fd) (i64.const 0) (i32.const 0) (i32.const 224)))
    (i32.store (i32.const 200) (i32.const 300))
    (call $ok (call $read (local.get $fd) (i32.const 200) (i32.const 1) (i32.const 208)))
    (call $ok (call $pread (local.get $fd) (i32.const 200) (i32.const 1) (i64.const 0) (i32.const 208)))
    (call $ok (call $sync (local.get $fd)))
    (call $ok (call $datasync (local.get $fd)))
    (call $ok (call $advise (local.get $fd) (i64.const 0) (i64.const 0) (i32.const 0)))
    (drop (call $allocate (local.get $fd) (i64.const 0) (i64.const 100)))
    (call $ok (call $fdstat (local.get $fd) (i32.const 400)))
    (drop (call $set_flags (local.get $fd) (i32.const 1)))
    (call $ok (call $stat (local.get $fd) (i32.const 400)))
    (call $ok (call $set_size (local.get $fd) (i64.const 2)))
    (call $ok (call $set_times (local.get $fd) (i64.const 0) (i64.const 0) (i32.const 10)))
    (call $ok (call $close (local.get $fd)))
    ;; a file that is there: truncated
    (call $ok (call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 4) (i32.const 8) (i64.const 0x1fffffff) (i64.const 0) (i32.const 0) (i32.const 220)))
    (call $ok (call $close (i32.load (i32.const 220))))
    ;; paths
    (call $ok (call $path_stat (i32.const 3) (i32.const 1) (i32.const 0) (i32.const 4) (i32.const 400)))
    (call $ok (call $path_times (i32.const 3) (i32.const 1) (i32.const 0) (i32.const 4) (i64.const 0) (i64.const 0) (i32.const 10)))
    (call $ok (call $path_times (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 4) (i64.const 0) (i64.const 0) (i32.const 10)))
    (drop (call $mkdir (i32.const 3) (i32.const 19) (i32.const 3)))
    (call $ok (call $rename (i32.const 3) (i32.const 0) (i32.const 4) (i32.const 3) (i32.const 9) (i32.const 9)))
    (call $ok (call $link (i32.const 3) (i32.const 0) (i32.const 9) (i32.const 9) (i32.const 3) (i32.const 23) (i32.const 6)))
    (call $ok (call $symlink (i32.const 9) (i32.const 9) (i32.const 3) (i32.const 30) (i32.const 7)))
    (call $ok (call $readlink (i32.const 3) (i32.const 30) (i32.const 7) (i32.const 300) (i32.const 50) (i32.const 208)))
    (call $ok (call $open (i32.const 3) (i32.const 1) (i32.const 30) (i32.const 7) (i32.const 0) (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 220)))
    (call $ok (call $readdir (i32.const 3) (i32.const 1000) (i32.const 1000) (i64.const 0) (i32.const 208)))
    (call $ok (call $unlink (i32.const 3) (i32.const 23) (i32.const 6)))
    (call $ok (call $unlink (i32.const 3) (i32.const 30) (i32.const 7)))
    (call $ok (call $rmdir (i32.const 3) (i32.const 19) (i32.const 3)))
    ;; clocks, sleep, randomness, memory
    (call $ok (call $random (i32.const 2000) (i32.const 60000)))
    (call $ok (call $clock (i32.const 0) (i64.const 1) (i32.const 400)))
    (call $ok (call $clock (i32.const 1) (i64.const 1) (i32.const 400)))
    (call $ok (call $clock_res (i32.const 1) (i32.const 400)))
    (call $ok (call $yield))
    (i64.store (i32.const 400) (i64.const 1))
    (i32.store (i32.const 408) (i32.const 0))
    (i32.store (i32.const 416) (i32.const 1))
    (i64.store (i32.const 424) (i64.const 20000000))
    (i64.store (i32.const 432) (i64.const 0))
    (i32.store16 (i32.const 440) (i32.const 0))
    (call $ok (call $poll (i32.const 400) (i32.const 504) (i32.const 1) (i32.const 208)))
    (if (i32.eq (memory.grow (i32.const 200)) (i32.const -1)) (then unreachable))
    (memory.fill (i32.const 70000) (i32.const 1) (i32.const 13000000))
    (if (i32.ne (memory.grow (i32.const 200)) (i32.const -1)) (then unreachable))
";

#[test]
fn a_guest_that_uses_every_host_call_succeeds_under_confinement() {
    let compiled = compile(&wat(BUSY));
    run_alone("a_guest_that_uses_every_host_call_succeeds_under_confinement", 0, |confinement| {
        let folder = folder();
        let outcome = guest(confinement, &compiled, folder.path(), 10_000, 10);
        assert_eq!(outcome.end, End::Returned(serde_json::Value::Bool(true).into()));
        assert_eq!(fs::read(folder.path().join("sub/moved")).unwrap(), b"");
        // Freeing the outcome and leaving the function must be allowed, too.
        drop(outcome);
    });
}

#[test]
fn a_trap_is_distinguished_from_a_breach() {
    let guests = [
        ("(drop (call $deep (i32.const 0)))", None),
        ("unreachable", Some("unreachable")),
        ("(drop (i32.div_s (i32.const 1) (i32.load (i32.const 60000))))", Some("divi")),
        ("(drop (i32.load (i32.const -8)))", Some("out of bounds")),
        ("(call $exit (i32.const 3))", Some("")),
    ];
    let guests = guests.map(|(body, expected)| (body, compile(&wat(body)), expected));
    run_alone("a_trap_is_distinguished_from_a_breach", 0, |_| {
        let confinement = &Arc::new(Confinement::prepare().unwrap());
        let folder = folder();
        for (body, compiled, expected) in &guests {
            let code = wait_for_exit_code(fork(|| {
                let end = guest(confinement, compiled, folder.path(), 100, 10).end;
                match (&end, expected) {
                    (End::LimitReached(Limit::Stack), None) | (End::Exited { code: 3, .. }, Some("")) => {}
                    (End::Trapped(why), Some(word)) if why.contains(word) => {}
                    _ => panic!("{body}: {end:?}"),
                }
            }));
            assert_eq!(code, 0, "{body}");
        }
    });
}

#[test]
fn a_busy_guest_is_throttled_and_ended() {
    let compiled = compile(&wat("(call $forever)"));
    run_alone("a_busy_guest_is_throttled_and_ended", 0, |confinement| {
        let folder = folder();
        let outcome = guest(confinement, &compiled, folder.path(), 10, 2);
        assert_eq!(outcome.end, End::LimitReached(Limit::Time));
        let share = outcome.metrics.cpu.as_secs_f64() / outcome.metrics.wall.as_secs_f64();
        assert!((0.08..=0.12).contains(&share), "{share}");
    });
}

#[test]
fn a_panic_of_the_host_is_distinguished_from_a_breach() {
    run_alone("a_panic_of_the_host_is_distinguished_from_a_breach", 101, |confinement| {
        apply(confinement, &[]);
        panic!("on purpose");
    });
}
