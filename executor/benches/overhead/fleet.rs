//! (j): what a fleet gains and costs: the built binary as one and as four nodes with a tool that sleeps, the latency of
//! a call with and without a fleet, and an idle node.

use super::HELLO;
use super::client::{Http, post};
use super::doors::{Memory, Server, install, request, serve};
use super::median;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The variables in which `cargo xtask bench` names the servers that it has started, separated by commas.
const ONE: &str = "A2G_NATS_ONE";
const THREE: &str = "A2G_NATS_THREE";
/// The variable with the words for where the messages and journals are.
const PLACE: &str = "A2G_BENCH_PLACE";

const NODES: usize = 4;
/// Concurrent runs of a node.
const SLOTS: usize = 8;
/// Clients of a node: while one's answer is on its way, another one's call waits for the slot.
const CLIENTS: usize = 2 * SLOTS;
const FROM_EACH_CLIENT: usize = 25;
/// Of four nodes, compared with one.
const THROUGHPUT_GOAL: f64 = 0.9 * NODES as f64;

/// Blocks of calls to each server, so that no call is slowed by the writes of the one before it, to another server.
const BLOCKS: usize = 18;
/// Calls of a block. The first ones are not measured.
const IN_BLOCK: usize = 55;
const WARM_UP_IN_BLOCK: usize = 5;
/// The pause before each call: the report of the call before, and the next child, take time too.
const PAUSE: Duration = Duration::from_millis(10);
/// Calls of each server before the measurement.
const WARM_UP: usize = 200;
/// Of a call with one server of NATS on this machine, in milliseconds.
const ADDED_GOAL: f64 = 0.5;

const IDLE: Duration = Duration::from_secs(20);
/// Until the work of the start is over.
const SETTLED: Duration = Duration::from_secs(3);
const CPU_GOAL_PERCENT: f64 = 1.0;
const MEMORY_GOAL_MB: f64 = 5.0;

/// A command that sleeps for 200 ms and answers `1`.
const SLEEPS: &str = r#"(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 160) "1")
  (func (export "_start")
    (i32.store (i32.const 16) (i32.const 1))
    (i64.store (i32.const 24) (i64.const 200000000))
    (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)))
    (i32.store (i32.const 0) (i32.const 160))
    (i32.store (i32.const 4) (i32.const 1))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;

/// The URLs of running servers of NATS: one, and a cluster of three.
pub(crate) struct NatsServers {
    one: Vec<String>,
    three: Vec<String>,
}

impl NatsServers {
    /// Those that `cargo xtask bench` has started for this part.
    pub(crate) fn find() -> Option<Self> {
        let read = |name| {
            std::env::var(name).ok().map(|urls| urls.split(',').map(str::to_owned).collect::<Vec<_>>())
        };
        Some(Self { one: read(ONE)?, three: read(THREE)? })
    }
}

pub(crate) fn measure(data: &Path, servers: &NatsServers) {
    let folder = tempfile::tempdir().unwrap();
    let binary = crate::executor();
    install(&binary, folder.path(), data, &[("hello", HELLO), ("sleeps", SLEEPS)]);
    let key = folder.path().join("fleet.key");
    std::fs::write(&key, "5".repeat(64)).unwrap();
    std::fs::set_permissions(key, Permissions::from_mode(0o600)).unwrap();
    let place = Place { binary: &binary, root: folder.path() };
    let title = format!("(j) a fleet on this machine, {}", std::env::var(PLACE).unwrap_or_default());
    println!("{title:<58} {:>10} {:>12}", "", "goal");
    throughput(&place, servers);
    latency(&place, servers);
    idle(&place, servers);
    println!("Clients, executors and servers of NATS share this machine.");
}

/// The program and the folder of all nodes, which have one catalogue.
struct Place<'a> {
    binary: &'a Path,
    root: &'a Path,
}

impl Place<'_> {
    /// Starts an executor in a folder of its own, as a node if there is a fleet: its name, and its servers of NATS.
    fn start(&self, node: &str, fleet: Option<(&str, &[String])>) -> Server {
        let folder = self.root.join(node);
        std::fs::create_dir(&folder).unwrap();
        let cache = self.root.join("cache");
        let mut config = format!(
            "[executor]\ndid = \"did:a2g:executor:1.0:{node}\"\nconcurrent = {SLOTS}\nconcurrent_per_agent = {SLOTS}\n\
             [catalog]\ncache = {cache:?}\n[journal]\npath = \"journal.db\"\n\
             [ceilings]\nfilesystem_scope = [\"/data/**\"]\n"
        );
        if let Some((name, servers)) = fleet {
            let replicas = servers.len();
            config += &format!(
                "[fleet]\nname = \"{name}\"\nnode = \"{node}\"\nservers = {servers:?}\n\
                 key_file = \"../fleet.key\"\nreplicas = {replicas}\n"
            );
        }
        std::fs::write(folder.join("executor.toml"), config).unwrap();
        if fleet.is_some() {
            let mut init = Command::new(self.binary);
            init.args(["fleet", "init", "--config"]).arg(folder.join("executor.toml"));
            let output = init.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let mut command = serve(self.binary, &folder, &self.root.join("catalogue"));
        Server::spawn(command.args(["--listen", "127.0.0.1:0"]))
    }
}

fn throughput(place: &Place<'_>, servers: &NatsServers) {
    let [one, four] = [1, NODES].map(|count| {
        let name = format!("throughput-{count}");
        let start = |node| place.start(&format!("{name}-{node}"), Some((&name, &servers.one)));
        let nodes: Vec<Server> = (0..count).map(start).collect();
        let per_second = calls_per_second(&nodes);
        let what = format!("200 ms asleep, {SLOTS} at once on each: nodes: {count}");
        println!("{what:<58} {per_second:>8.1}/s");
        per_second
    });
    let ratio = four / one;
    row(
        "  four nodes, compared with one",
        &format!("{ratio:.2}"),
        &format!("{THROUGHPUT_GOAL:.1}"),
        ratio >= THROUGHPUT_GOAL,
    );
}

/// The calls of the clients of all nodes.
fn calls_per_second(nodes: &[Server]) -> f64 {
    let clients = || nodes.iter().flat_map(|node| [&node.address; CLIENTS]);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for address in clients() {
            scope.spawn(move || {
                let mut http = Http::connect(address);
                for _ in 0..FROM_EACH_CLIENT {
                    call(&mut http, "sleeps");
                }
            });
        }
    });
    (clients().count() * FROM_EACH_CLIENT) as f64 / started.elapsed().as_secs_f64()
}

/// One client that calls three executors in turn.
fn latency(place: &Place<'_>, servers: &NatsServers) {
    let executors = [
        place.start("without", None),
        place.start("with-one", Some(("latency-1", &servers.one))),
        place.start("with-three", Some(("latency-3", &servers.three))),
    ];
    let mut clients = executors.each_ref().map(|executor| Http::connect(&executor.address));
    for client in &mut clients {
        for _ in 0..WARM_UP {
            call(client, "hello");
        }
    }
    let mut times = [(); 3].map(|()| Vec::with_capacity(BLOCKS * (IN_BLOCK - WARM_UP_IN_BLOCK)));
    for block in 0..BLOCKS {
        // Each is the first one equally often.
        for nth in (0..3).map(|nth| (nth + block) % 3) {
            for round in 0..IN_BLOCK {
                std::thread::sleep(PAUSE);
                let took = call(&mut clients[nth], "hello");
                if round >= WARM_UP_IN_BLOCK {
                    times[nth].push(took);
                }
            }
        }
    }
    let [without, one, three] = times.each_mut().map(|times| median(times));
    println!("{:<58} {:>7.2} ms", "a call without a fleet, median", millis(without));
    println!("{:<58} {:>7.2} ms", "the same on a node, one server of NATS", millis(one));
    let added = millis(one) - millis(without);
    let goal = format!("{ADDED_GOAL:.1} ms");
    row("  added", &format!("{added:.2} ms"), &goal, added <= ADDED_GOAL);
    println!("{:<58} {:>7.2} ms", "the same on a node, three servers of NATS", millis(three));
    println!("{:<58} {:>7.2} ms", "  added", millis(three) - millis(without));
}

/// An executor without a fleet and a node, at the same time, to which nobody sends anything.
fn idle(place: &Place<'_>, servers: &NatsServers) {
    let executors =
        [place.start("idle-without", None), place.start("idle-with", Some(("idle", &servers.one)))];
    for executor in &executors {
        let mut http = Http::connect(&executor.address);
        for _ in 0..WARM_UP {
            call(&mut http, "hello");
        }
    }
    std::thread::sleep(SETTLED);
    let cpu = || executors.each_ref().map(|executor| cpu_seconds(&executor.processes()));
    let before = cpu();
    let started = Instant::now();
    std::thread::sleep(IDLE);
    let after = cpu();
    let took = started.elapsed().as_secs_f64();
    let percent = |index: usize| 100.0 * (after[index] - before[index]) / took;
    let [without, with] = executors.each_ref().map(Server::memory).map(|Memory { rss_mb, pss_mb: _ }| rss_mb);
    let seconds = IDLE.as_secs();
    println!("{:<58} {:>7.2} %", format!("idle for {seconds} s without a fleet: of a core"), percent(0));
    let goal = format!("{CPU_GOAL_PERCENT:.0} %");
    row("the same on a node", &format!("{:.2} %", percent(1)), &goal, percent(1) < CPU_GOAL_PERCENT);
    let more = with - without;
    println!("{:<58} {without:>7.1} MB", "resident without a fleet");
    let goal = format!("{MEMORY_GOAL_MB:.0} MB");
    row("  more on a node", &format!("{more:.1} MB"), &goal, more <= MEMORY_GOAL_MB);
}

/// The CPU time of processes so far, in seconds.
fn cpu_seconds(processes: &[u32]) -> f64 {
    let ticks = |process: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // User and system time. The name, which may contain blanks, is in parentheses.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        fields.map(|field| field.parse::<u64>().unwrap()).sum::<u64>()
    };
    let ticks: u64 = processes.iter().map(ticks).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Sends one call and waits for its success.
fn call(http: &mut Http, tool: &str) -> Duration {
    let request = post("/jsonrpc", "", &request(tool));
    let started = Instant::now();
    let answer = http.exchange(&request);
    let took = started.elapsed();
    assert!(answer.contains(r#""status":"SUCCESS""#), "{answer}");
    took
}

fn row(what: &str, figure: &str, goal: &str, is_met: bool) {
    let goal = format!("{goal}{}", if is_met { "" } else { ", missed" });
    println!("{what:<58} {figure:>10} {goal:>12}");
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
