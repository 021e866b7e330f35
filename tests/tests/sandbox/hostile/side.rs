//! Checks that run beside every hostile case: health, accounting, files and leftovers.
//!
//! ```text
//! Health            /health answers while a call runs
//! ReportAccounting  the governor: exactly one report for each intent that was accepted, and no other
//! UngrantedFiles    files outside every grant have not changed
//! IdleResources     a second later no process, thread, descriptor, cgroup or temporary file is left
//! ```
//! The harmless tool that runs beside a call is called like any other: see `bench.rs`.
//!
//! Bounds on time are generous, because the machine may be busy. With `A2G_TEST_QUIET` in the
//! environment they are the promised ones.

use super::disk::look;
use harness::{FakeGovernor, HttpClient, Reply, TIMEOUT, eventually};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The size from which a report may come more than once.
const LARGE_REPORT_BYTES: usize = 1 << 20;

/// True if this machine is otherwise idle, so that the promised latencies are asserted.
fn is_quiet() -> bool {
    std::env::var_os("A2G_TEST_QUIET").is_some()
}

/// Time limit of `/health`.
fn longest_health() -> Duration {
    if is_quiet() { Duration::from_millis(100) } else { Duration::from_secs(2) }
}

/// Time limit for resources of a case to be released after it.
// Generous, because the kernel decides when the control group of a killed process can be removed.
fn longest_leftover() -> Duration {
    Duration::from_secs(if is_quiet() { 1 } else { 30 })
}

/// Number of control groups without a process that the server keeps.
const KEPT_CGROUPS: usize = 2;
/// Interval between requests of `/health` while a call runs.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(20);

/// Asks for `/health` while calls run, from a thread and over a connection of its own.
pub(super) struct Health {
    watched: Arc<(Mutex<Watch>, Condvar)>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Watch {
    /// Number of running calls.
    running: usize,
    over: bool,
    answers: u64,
    slowest: Duration,
}

impl Health {
    /// Starts the thread, which sends no requests until a call begins.
    pub(super) fn of(address: SocketAddr) -> Self {
        let watched = Arc::<(Mutex<Watch>, Condvar)>::default();
        let shared = Arc::clone(&watched);
        let thread = std::thread::spawn(move || {
            let (watch, changed) = &*shared;
            let mut client = HttpClient::connect(address);
            loop {
                let state = watch.lock().unwrap();
                let state = changed.wait_while(state, |watch| watch.running == 0 && !watch.over).unwrap();
                if state.over {
                    return;
                }
                drop(state);
                let began = Instant::now();
                let answer = client.request("GET", "/health", &[], b"");
                let took = began.elapsed();
                assert_eq!(answer.status, 200, "{answer:?}");
                let mut state = watch.lock().unwrap();
                state.answers += 1;
                state.slowest = state.slowest.max(took);
                changed.notify_all();
                drop(changed.wait_timeout(state, BETWEEN_QUESTIONS).unwrap());
            }
        });
        Self { watched, thread }
    }

    /// Requests `/health` repeatedly until the returned value is dropped.
    pub(super) fn during(&self) -> During<'_> {
        let mut watch = self.watched.0.lock().unwrap();
        watch.running += 1;
        self.watched.1.notify_all();
        During { health: self, answers: watch.answers }
    }

    /// Ends the thread, checks that no answer was too late, and returns the time of the slowest
    /// one.
    pub(super) fn finish(self) -> Duration {
        let (watch, changed) = &*self.watched;
        watch.lock().unwrap().over = true;
        changed.notify_all();
        self.thread.join().expect("/health answers 200 while a call runs");
        let Watch { answers, slowest, .. } = &*watch.lock().unwrap();
        eprintln!("/health: {answers} answers while calls ran, the slowest after {slowest:?}");
        assert!(*slowest <= longest_health(), "/health took {slowest:?} while a call ran");
        *slowest
    }
}

/// A running call, during which `/health` is requested.
pub(super) struct During<'a> {
    health: &'a Health,
    /// Number of answers before the call.
    answers: u64,
}

impl Drop for During<'_> {
    /// Waits until there was an answer after the begin of the call, even if the call was short.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let (watch, changed) = &*self.health.watched;
        let state = watch.lock().unwrap();
        let (mut state, late) =
            changed.wait_timeout_while(state, TIMEOUT, |watch| watch.answers == self.answers).unwrap();
        state.running -= 1;
        assert!(!late.timed_out(), "no answer of /health in {TIMEOUT:?}");
    }
}

/// Compares the reports in the answers to callers with the reports that the governor received.
pub(super) struct ReportAccounting {
    governor: FakeGovernor,
    reports: Arc<Mutex<Vec<Value>>>,
    /// The report that each accepted intent was answered with.
    accepted: Mutex<BTreeMap<String, Value>>,
}

impl ReportAccounting {
    /// Starts a governor that accepts every report.
    pub(super) fn open() -> Self {
        let reports = Arc::<Mutex<Vec<Value>>>::default();
        let into = Arc::clone(&reports);
        let governor = FakeGovernor::start(move |method, params| {
            if method == "a2g/report" {
                into.lock().unwrap().push(params.clone());
            }
            // Closes the connection, so that it is not counted as an open descriptor of the server.
            Reply::Last(json!({ "accepted": true }))
        });
        Self { governor, reports, accepted: Mutex::default() }
    }

    /// URL of the governor.
    pub(super) fn url(&self) -> String {
        self.governor.url()
    }

    /// The reports of one intent that have arrived so far.
    pub(super) fn reports_of(&self, intent: &str) -> Vec<Value> {
        let reports = self.reports.lock().unwrap();
        reports.iter().filter(|report| report["intent_id"] == intent).cloned().collect()
    }

    /// All reports that have arrived so far, as text.
    pub(super) fn text(&self) -> String {
        self.reports.lock().unwrap().iter().map(Value::to_string).collect()
    }

    /// Notes what the caller of an intent was answered. Only what was accepted is answered with a report.
    pub(super) fn note(&self, intent: String, response: &Value) {
        let report = response.get("result").or_else(|| response["error"]["data"].get("report"));
        if let Some(report) = report {
            self.accepted.lock().unwrap().insert(intent, report.clone());
        }
    }

    /// Checks that the governor received one report of each accepted intent, the same as
    /// the caller, and no other report. The caller has to make sure that no report is still to
    /// come.
    pub(super) fn assert_balanced(&self) {
        let accepted = self.accepted.lock().unwrap();
        eventually("a report of every accepted intent", || {
            let reports = self.reports.lock().unwrap();
            let told: BTreeSet<_> =
                reports.iter().filter_map(|report| report["intent_id"].as_str()).collect();
            accepted.keys().all(|intent| told.contains(&**intent)).then_some(())
        });
        let reports = self.reports.lock().unwrap();
        for report in &*reports {
            let intent = report["intent_id"].as_str().expect("an id");
            let times = reports.iter().filter(|other| other["intent_id"] == intent).count();
            // A report that is not acknowledged in time comes again, as a large one does on a busy machine.
            let is_large = || report.to_string().len() > LARGE_REPORT_BYTES;
            assert!(times == 1 || is_large(), "more than one report of an intent: {report}");
            let answered = accepted.get(intent);
            assert!(answered.is_some(), "a report of an intent that was not accepted: {report}");
            assert_eq!(answered, Some(report), "the caller was told something else");
        }
    }
}

/// Files that no guest of a bench is granted: its home except `/workspace`, its catalogue, and the
/// entries beside its mounts.
pub(super) struct UngrantedFiles {
    roots: Vec<PathBuf>,
    granted: Vec<PathBuf>,
    /// The snapshot before the first call.
    before: Mutex<Option<BTreeMap<PathBuf, String>>>,
}

impl UngrantedFiles {
    /// Writes files that nobody may touch to `home`, beside the folders that may be `granted`.
    /// Watches these files, `home`, the catalogue, and the parent folders of the granted ones.
    pub(super) fn of(home: &Path, catalogue: PathBuf, granted: Vec<PathBuf>) -> Self {
        // A folder whose name begins like the granted one, and one that does not.
        for folder in ["workspacefoo", "outside/folder"] {
            fs::create_dir_all(home.join(folder)).expect("a folder");
        }
        for file in ["secret.txt", "workspacefoo/secret.txt", "outside/secret.txt"] {
            fs::write(home.join(file), "nobody may read or change this").expect("a file");
        }
        let beside = granted.iter().filter_map(|folder| folder.parent().map(Path::to_owned));
        let roots: BTreeSet<_> = beside.chain([home.to_owned(), catalogue]).collect();
        Self { roots: roots.into_iter().collect(), granted, before: Mutex::default() }
    }

    /// Takes a snapshot of the files, unless there is one.
    pub(super) fn remember(&self) {
        self.before.lock().unwrap().get_or_insert_with(|| self.look());
    }

    /// Drops the snapshot, because the test itself is about to change something.
    pub(super) fn forget(&self) {
        *self.before.lock().unwrap() = None;
    }

    /// Checks that the files are the same as in the snapshot.
    pub(super) fn assert_unchanged(&self) {
        let before = self.before.lock().unwrap();
        let Some(before) = &*before else { return };
        let now = self.look();
        let paths: BTreeSet<_> = before.keys().chain(now.keys()).collect();
        let changed = paths.into_iter().filter(|path| before.get(*path) != now.get(*path));
        let changed: Vec<_> = changed.map(|path| (path, before.get(path), now.get(path))).collect();
        assert!(changed.is_empty(), "something outside the scope has changed: {changed:#?}");
    }

    /// A snapshot without the journal (`state`), which changes with every run.
    fn look(&self) -> BTreeMap<PathBuf, String> {
        look(self.roots.clone(), |path| self.granted.iter().any(|of| of == path) || path.ends_with("state"))
    }
}

/// Resources of an idle server.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct IdleResources {
    /// The processes that the server started: with process isolation, the zygote.
    children: usize,
    /// The processes that those started: the ones that are forked in advance.
    waiting: usize,
    threads: usize,
    descriptors: usize,
    /// The descriptors of all children of the server together, as far as they can be read.
    descriptors_of_children: usize,
    /// The running threads of all these processes, with the kernel's counters of each.
    computing: Vec<String>,
    /// The control groups of the server for runs: one for each waiting process, and some for reuse.
    cgroups: BTreeMap<String, BTreeMap<PathBuf, String>>,
    temporary: BTreeSet<PathBuf>,
}

impl IdleResources {
    /// Waits until a server that has just run something has as many children and waiting
    /// grandchildren as `expected`, and two measurements in a row are equal: processes can end and
    /// start during one.
    pub(super) fn before(server: u32, temporary: &Path, expected: (usize, usize)) -> Self {
        let mut last = None;
        eventually("the server is idle", || {
            let idle = Self::now(server, temporary);
            let is_idle = (idle.children, idle.waiting) == expected && idle.computing.is_empty();
            let before = last.replace(idle)?;
            last.as_ref().filter(|idle| is_idle && **idle == before).cloned()
        })
    }

    /// Waits until the server has no more resources than these, plus `more` descriptors.
    pub(super) fn assert_again(&self, server: u32, temporary: &Path, more: usize) {
        let deadline = Instant::now() + longest_leftover();
        loop {
            let now = Self::now(server, temporary);
            let left = self.leftovers(&now, more);
            if left.is_empty() {
                return;
            }
            let long = longest_leftover();
            assert!(Instant::now() < deadline, "left over {long:?} after a case: {left:#?}\n{now:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Descriptions of the resources in `now` that exceed these, with so many more `descriptors`.
    fn leftovers(&self, now: &Self, descriptors: usize) -> Vec<String> {
        let counts = [
            ("processes of the server", self.children, now.children, 0),
            ("processes of its children", self.waiting, now.waiting, 0),
            ("threads", self.threads, now.threads, 0),
            ("descriptors", self.descriptors, now.descriptors, descriptors),
            ("descriptors of its children", self.descriptors_of_children, now.descriptors_of_children, 0),
        ];
        let more = counts.into_iter().filter(|(_, before, now, slack)| *now > before + slack);
        let mut left: Vec<_> =
            more.map(|(what, before, now, _)| format!("{now} {what}, {before} before")).collect();
        if (now.children, now.waiting) < (self.children, self.waiting) {
            left.push("fewer processes than before".to_owned());
        }
        left.extend(now.computing.iter().map(|thread| format!("a thread that computes: {thread}")));
        // An inline server makes none, but a killed executor with the same process id may have left some.
        let earlier = if self.children == 0 { self.cgroups.len() } else { 0 };
        let cgroups = now.cgroups.len().saturating_sub(earlier);
        if cgroups > self.waiting + KEPT_CGROUPS {
            left.push(format!("{cgroups} control groups for {} processes: {:#?}", self.waiting, now.cgroups));
        }
        // No temporary file may be left, not even one of the start.
        left.extend(now.temporary.iter().map(|path| format!("{path:?}")));
        left
    }

    fn now(server: u32, temporary: &Path) -> Self {
        let parents = parents();
        let children = |of: u32| parents.iter().filter(move |(_, parent)| *parent == of).map(|(pid, _)| *pid);
        let own: Vec<u32> = children(server).collect();
        let theirs: Vec<u32> = own.iter().flat_map(|pid| children(*pid)).collect();
        let descriptors = own.iter().filter_map(|pid| count(&format!("/proc/{pid}/fd")));
        let all = own.iter().chain(&theirs).chain([&server]);
        Self {
            children: own.len(),
            waiting: theirs.len(),
            threads: count(&format!("/proc/{server}/task")).expect("the server lives"),
            descriptors: count(&format!("/proc/{server}/fd")).expect("the server lives"),
            descriptors_of_children: descriptors.sum(),
            computing: all.flat_map(|pid| computing_threads(*pid)).collect(),
            cgroups: cgroups(server),
            temporary: names(temporary).into_iter().collect(),
        }
    }
}

fn names(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn count(folder: &str) -> Option<usize> {
    Some(fs::read_dir(folder).ok()?.count())
}

/// State and parent from a line of `/proc/PID/stat`.
fn state(stat: &Path) -> Option<(char, u32)> {
    let stat = fs::read_to_string(stat).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Every process with its parent, including zombies.
fn parents() -> Vec<(u32, u32)> {
    let pids = names(Path::new("/proc")).into_iter();
    let pids = pids.filter_map(|path| Some((path.file_name()?.to_str()?.parse().ok()?, path)));
    pids.filter_map(|(pid, path)| Some((pid, state(&path.join("stat"))?.1))).collect()
}

/// The threads of a process that are running or ready to run: name, scheduler statistics (time on a
/// core, time of waiting for one, number of time slices) and control groups.
fn computing_threads(pid: u32) -> Vec<String> {
    let threads = names(Path::new(&format!("/proc/{pid}/task"))).into_iter();
    let running = threads.filter(|thread| state(&thread.join("stat")).is_some_and(|(state, _)| state == 'R'));
    let read = |thread: &Path, what| fs::read_to_string(thread.join(what)).unwrap_or_default();
    let describe = |thread: PathBuf| {
        let facts = ["comm", "schedstat", "cgroup"].map(|what| read(&thread, what).trim().replace('\n', " "));
        format!("{pid} {}", facts.join(", "))
    };
    running.map(describe).collect()
}

/// The control groups that a server made for runs: by the server's name, its folders in all hierarchies with the
/// processes in them.
// Other folders do not count: a killed executor with the same process id may have left some.
pub(super) fn cgroups(server: u32) -> BTreeMap<String, BTreeMap<PathBuf, String>> {
    let memberships = fs::read_to_string(format!("/proc/{server}/cgroup")).unwrap_or_default();
    let mut found = BTreeMap::<_, BTreeMap<_, _>>::new();
    for line in memberships.lines() {
        let [_, hierarchy, path] = line.splitn(3, ':').collect::<Vec<_>>()[..] else { continue };
        let group = Path::new("/sys/fs/cgroup").join(hierarchy).join(path.trim_start_matches('/'));
        // In version 2 the server is in a group beside those of its runs.
        let parents = [Some(&*group), group.parent()].into_iter().flatten();
        let runs = parents.flat_map(|parent| names(&parent.join(format!("a2g-executor-{server}"))));
        for folder in runs.filter(|path| path.is_dir()) {
            let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
            let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            found.entry(name).or_default().insert(folder, processes.replace('\n', " "));
        }
    }
    found
}
