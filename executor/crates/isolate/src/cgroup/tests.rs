use super::*;
use a2g_capability::Ceilings;
use a2g_types::limit::{LimitMap, NetworkBudgets};
use a2g_types::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

#[test]
fn version_1_needs_both_hierarchies() {
    let both = tree(&[("memory/box/tasks", ""), ("cpu,cpuacct/tasks", "")]);
    let own = "4:memory:/box\n1:cpu,cpuacct:/\n0::/\n";
    let found = CgroupDirs::find_in(own, both.path()).unwrap();
    let memory = both.path().join("memory/box");
    let cpu = both.path().join("cpu,cpuacct");
    assert_eq!(found, CgroupDirs::V1 { memory, cpu });
    let reason = CgroupDirs::find_in("4:memory:/box\n", both.path()).unwrap_err();
    assert_eq!(reason, NotDelegatedError::Absent);
}

#[test]
fn version_2_needs_both_controllers_and_nobody_else_inside() {
    let own = "0::/unit\n";
    let us = std::process::id().to_string();
    let among = |files: &[(&str, &str)]| {
        let root = tree(files);
        CgroupDirs::find_in(own, root.path()).map(|found| found == CgroupDirs::V2(root.path().join("unit")))
    };
    let controllers = ("unit/cgroup.controllers", "cpu io memory");
    let alone = ("unit/cgroup.subtree_control", "");
    assert_eq!(among(&[controllers, ("unit/cgroup.procs", &us), alone]), Ok(true));
    let others = format!("{us}\n1\n");
    let crowded = among(&[controllers, ("unit/cgroup.procs", &others), alone]);
    assert!(matches!(crowded.unwrap_err(), NotDelegatedError::Shared(_)));
    let shared = ("unit/cgroup.subtree_control", "cpu memory");
    assert_eq!(among(&[controllers, ("unit/cgroup.procs", &others), shared]), Ok(true));
    assert!(among(&[("unit/cgroup.controllers", "io memory"), ("unit/cgroup.procs", &us), alone]).is_err());
    assert!(
        among(&[controllers, ("unit/cgroup.procs", &us)]).is_err(),
        "what may not be changed is not delegated"
    );
}

/// The groups of this process; `None`, with a message, if this machine delegates none. An executor with the same
/// process id has ended before and left a group.
fn groups() -> Option<Arc<Cgroups>> {
    match CgroupDirs::find() {
        Ok(delegated) => {
            let before = delegated.child(&format!("{EXECUTOR_PREFIX}{}", std::process::id()));
            let left = before.child("left");
            before.create().unwrap();
            left.create().unwrap();
            let groups = Cgroups::set_up().unwrap().unwrap();
            assert!(left.folders().all(|folder| !folder.exists()));
            Some(groups)
        }
        Err(reason) => {
            // A passing test shows nothing that `println!` prints.
            let _untold = writeln!(std::io::stderr(), "skipped: {reason}");
            None
        }
    }
}

fn grant(memory: u64, cpu: u64) -> Grant {
    Grant::meet(crate::test_authority(), [], &ceilings(memory, cpu)).unwrap()
}

pub(crate) fn ceilings(memory: u64, cpu: u64) -> Ceilings {
    Ceilings {
        limits: LimitMap::defaults()
            .with(MemoryLimit::from_mb(memory).unwrap())
            .with(CpuPercent::new(cpu).unwrap())
            .with(Timeout::from_seconds(1).unwrap())
            .with(OutputLimit::from_bytes(1024).unwrap()),
        network_budgets: NetworkBudgets {
            requests: 1,
            connections: 1,
            sent_bytes: 1,
            received_bytes: 1,
            ..NetworkBudgets::ZERO
        },
        ..Ceilings::closed()
    }
}

/// A program that waits for a line before it begins, and is killed when a test fails.
struct Program(Child);

impl Program {
    fn new(script: &str) -> Self {
        let script = format!("read line; {script}");
        Self(Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap())
    }

    fn go(&mut self) {
        self.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    /// CPU time of the program so far.
    fn used(&self) -> Duration {
        super::super::process::cpu_of(self.pid()).unwrap()
    }

    fn signal(mut self) -> Option<i32> {
        self.0.wait().unwrap().signal()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Checks ten times a second, for ten seconds.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut looks = (0..100).map(|_| {
        std::thread::sleep(Duration::from_millis(100));
        is_so()
    });
    assert!(looks.any(|is_so| is_so), "did not happen in time: {what}");
}

/// One test, because control groups belong to the whole process.
#[test]
fn a_group_holds_what_broke_out_and_is_gone_at_the_end() {
    let Some(groups) = groups() else { return };
    let here = groups.base.clone();
    // Memory, including kernel memory and files in a tmpfs.
    let mut greedy = Program::new("exec tail /dev/zero");
    let group = groups.group().unwrap();
    group.enter(greedy.pid()).unwrap();
    group.limit(&grant(1, 100)).unwrap();
    greedy.go();
    assert_eq!(greedy.signal(), Some(9), "the kernel ends it");
    // CPU time.
    let mut busy = Program::new("while :; do :; done");
    let second = groups.group().unwrap();
    second.enter(busy.pid()).unwrap();
    second.limit(&grant(1, 1)).unwrap();
    busy.go();
    let first = busy.used();
    let watched = Duration::from_secs(3);
    std::thread::sleep(watched);
    let used = busy.used() - first;
    let share = used.as_secs_f64() / watched.as_secs_f64();
    assert!((0.01..0.25).contains(&share), "{share}: 7 % and what a period more may have");
    // The next run has a whole period, regardless of the use by the one before.
    let mut before = busy.used();
    let mut moves = || std::mem::replace(&mut before, busy.used()) != before;
    eventually("a period begins", &mut moves);
    eventually("it has used its share of that", || !moves());
    second.limit(&grant(1, 1)).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let more = busy.used() - before;
    assert!(more > Duration::from_millis(10), "{more:?}: it waits for the period of the run before");
    // No swap in addition to it, if this kernel has swap.
    let of_swap = ["memory.swappiness", "memory.swap.max"];
    let files = group.folders.folders().flat_map(|folder| of_swap.map(|file| folder.join(file)));
    for file in files.filter(|file| file.exists()) {
        assert_eq!(fs::read_to_string(&file).unwrap().trim(), "0", "{}", file.display());
    }
    // An empty group is reused.
    let folders = group.folders.clone();
    let in_use = second.folders.clone();
    drop((group, second));
    let third = groups.group().unwrap();
    assert_ne!(third.folders, in_use, "a process is in it");
    let fourth = groups.group().unwrap();
    assert!([third.folders.clone(), fourth.folders.clone()].contains(&folders));
    drop((third, fourth));
    // Groups whose children are still being torn down are removed afterwards, although nothing else runs.
    let mut slow = (0..MAX_SPARE_GROUPS + 3).map(|_| Program::new("sleep 60")).collect::<Vec<_>>();
    let all = slow.iter().map(|program| {
        let group = groups.group().unwrap();
        group.enter(program.pid()).unwrap();
        group
    });
    drop(all.collect::<Vec<_>>());
    let kept = || here.folders().map(|folder| fs::read_dir(folder).unwrap().flatten());
    let most = || kept().map(|all| all.filter(|entry| entry.path().is_dir()).count()).max().unwrap();
    assert!(most() > MAX_SPARE_GROUPS + 3, "{}", most());
    slow.clear();
    // One still belongs to `busy`.
    eventually("the others are removed", || most() <= MAX_SPARE_GROUPS + 1);
    // An executor that was killed has left a group in one hierarchy only.
    fs::create_dir(here.folders().next().unwrap().join("half")).unwrap();
    // At the end every group is empty and removed.
    groups.end();
    assert_eq!(busy.signal(), Some(9));
    assert!(here.folders().all(|folder| !folder.exists()));
}
