//! A disk that is full, that takes its time, or that does not keep what it was given.

use super::{assert_chain_holds, catalogue, load, options, settled};
use crate::harness::{
    Executor, Governor, Home, HttpClient, Options, Process, eventually, execute, program, skipped,
};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// An executor whose journal is on a disk of its own of a few MB, which nobody else sees.
struct SmallDisk {
    executor: Executor,
    /// The disk as it is seen from here.
    disk: PathBuf,
}

impl SmallDisk {
    /// `None`, with the reason on standard error, where no disk can be mounted.
    fn start(options: Options) -> Option<Self> {
        let place = tempfile::tempdir().expect("a temp folder").keep();
        let can =
            Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success());
        if !can {
            skipped("no file system can be mounted here");
            return None;
        }
        let journal = place.join("journal.db");
        let mount = format!("mount -t tmpfs -o size=8m,mode=700 none '{}' && exec \"$@\"", place.display());
        let options = options.set("journal.path", journal.to_str().unwrap());
        let mut executor = Executor::start_under(&["unshare", "--mount", "sh", "-c", &mount, "sh"], options);
        let id = executor.process().child().id();
        // `unshare` and `sh` have become the executor, so this is its own view.
        let disk = PathBuf::from(format!("/proc/{id}/root{}", place.display()));
        Some(Self { executor, disk })
    }

    /// What the journal says that the governor does not have, asked where the disk is seen.
    fn undelivered(&mut self) -> String {
        let id = self.executor.process().child().id().to_string();
        let config = self.executor.home().config();
        let mut there = Command::new("nsenter");
        there.args(["--target", &id, "--mount"]).arg(program());
        there.args(["journal", "list", "--undelivered", "--json", "--config"]).arg(config);
        let listed = there.output().expect("nsenter");
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        String::from_utf8(listed.stdout).expect("UTF-8")
    }

    fn fill(&self) -> PathBuf {
        let ballast = self.disk.join("ballast");
        let mut left = 1 << 20;
        let mut file = std::fs::File::create(&ballast).expect("a file");
        while left > 0 {
            match std::io::Write::write(&mut file, &vec![0; left]) {
                Ok(_) => {}
                Err(_full) => left /= 2,
            }
        }
        ballast
    }
}

fn busy(answer: &Value) -> bool {
    answer["error"]["code"] == -32003 && answer["error"]["data"]["retry_after_ms"].is_u64()
}

#[test]
fn on_a_full_disk_nothing_more_runs_and_nothing_is_lost() {
    let (governor, catalogue, load) = (Governor::start(&[]), catalogue(), load());
    let Some(mut small) = SmallDisk::start(options(&catalogue, &governor.http_url())) else { return };
    let address = small.executor.address();
    load.during(4, address, || std::thread::sleep(Duration::from_millis(300)));
    let ballast = load.during(4, address, || {
        let ballast = small.fill();
        std::thread::sleep(Duration::from_millis(700));
        ballast
    });
    let refused = HttpClient::ask(address, "a2g/execute", &execute("mark", json!({ "n": "999999" })));
    let refused = refused.expect("an answer");
    assert!(busy(&refused), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("no room"), "{refused}");
    assert!(small.executor.file("999999").is_none());
    assert!(HttpClient::connect(address).request("GET", "/health", &[], b"").text().contains("ok"));
    std::fs::remove_file(ballast).unwrap();
    eventually("there is room again", || {
        load.send(address).filter(|answer| answer.get("result").is_some()).map(drop)
    });
    load.during(4, address, || std::thread::sleep(Duration::from_millis(300)));
    load.send_again(address);
    let reports = eventually("every report is delivered", || {
        let waiting = small.undelivered();
        waiting.is_empty().then(|| governor.reports())
    });
    load.assert_balanced(small.executor.home(), &reports);
    assert!(
        small.executor.stderr().contains("the journal can be written again"),
        "{}",
        small.executor.stderr()
    );
}

/// A task of A2A that was refused for want of room never was, also when there is room again.
#[test]
fn a_task_that_found_no_room_is_not_there_later() {
    let (governor, catalogue) = (Governor::start(&[]), catalogue());
    let Some(small) = SmallDisk::start(options(&catalogue, &governor.http_url())) else { return };
    let mut client = small.executor.client();
    let mut ask = |method: &str, params: &Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let headers = [("Content-Type", "application/json")];
        client.request("POST", "/a2a/rpc", &headers, body.as_bytes()).json()
    };
    let hello = json!({ "message": {
        "kind": "message", "messageId": "m", "role": "user", "parts": [{ "kind": "text", "text": "Hello!" }],
    } });
    let ballast = small.fill();
    let refused = eventually("the journal finds that its disk is full", || {
        let answer = ask("message/send", &hello);
        answer.get("error").is_some().then_some(answer)
    });
    assert!(refused["error"]["message"].as_str().unwrap().contains("no room"), "{refused}");
    let kept = ask("tasks/list", &json!({}))["result"]["total"].as_u64();
    for _ in 0..5 {
        assert!(ask("message/send", &hello).get("error").is_some());
    }
    std::fs::remove_file(ballast).unwrap();
    eventually("there is room again", || ask("message/send", &hello).get("result").map(drop));
    assert_eq!(ask("tasks/list", &json!({}))["result"]["total"].as_u64(), kept.map(|kept| kept + 1));
}

/// How long an fsync takes on a disk that takes its time.
const AN_FSYNC: Duration = Duration::from_secs(2);

/// An executor whose disk takes its time for each fsync, started as `command` makes of it.
fn on_a_slow_disk(command: impl FnOnce(Command) -> Command) -> Option<(Process, Home)> {
    if !Path::new("/usr/bin/strace").exists() {
        skipped("there is no strace here");
        return None;
    }
    let home = Executor::start(Options::new()).killed();
    let slowly = format!("--inject=fdatasync:delay_enter={}", AN_FSYNC.as_micros());
    let mut traced = command(super::crash::under_strace(&home, "fdatasync", &slowly));
    Some((Process::spawn("traced executor", &mut traced), home))
}

/// How long `/health` takes.
fn health(address: SocketAddr) -> Duration {
    let began = Instant::now();
    assert_eq!(HttpClient::connect(address).request("GET", "/health", &[], b"").status, 200);
    began.elapsed()
}

/// The journal's writer has a thread of its own: on a thread of the runtime, and one core, nobody else would go on.
#[test]
fn a_disk_that_takes_its_time_keeps_nobody_waiting_who_needs_no_disk() {
    let Some((mut slow, _home)) = on_a_slow_disk(on_one_core) else { return };
    let address = slow.listens_on();
    let list = execute("list_directory", json!({ "path": "/workspace" }));
    let (mut slowest, mut asked) = (Duration::ZERO, 0);
    let answer = std::thread::scope(|scope| {
        let run = scope.spawn(|| HttpClient::connect(address).rpc("a2g/execute", &list));
        while !run.is_finished() {
            slowest = slowest.max(health(address));
            asked += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
        run.join().unwrap()
    });
    slow.kill_children();
    slow.ended();
    assert_eq!(answer["result"]["status"], "SUCCESS", "{answer}");
    assert!(asked > 20 && slowest < AN_FSYNC / 2, "{asked} times, {slowest:?} at most");
}

/// What nobody waits for is written a moment later, when nothing else goes on. A thread of the runtime that did it
/// would be the one that watches sockets and timers, on any number of cores.
#[test]
fn what_a_slow_disk_takes_of_a_refusal_keeps_nobody_waiting() {
    let Some((mut slow, _home)) = on_a_slow_disk(|command| command) else { return };
    let address = slow.listens_on();
    let mut expired = execute("list_directory", json!({ "path": "/workspace" }));
    expired["verdict"]["expires_at"] = json!("2001-01-01T00:00:00Z");
    let refused = HttpClient::connect(address).rpc("a2g/execute", &expired);
    std::thread::sleep(Duration::from_millis(300));
    let took = health(address);
    slow.kill_children();
    slow.ended();
    assert_eq!(refused["error"]["data"]["blocked_by"], "verdict_expired", "{refused}");
    assert!(took < AN_FSYNC / 2, "{took:?}");
}

/// A command that has one core, the first of those that this process has.
fn on_one_core(command: Command) -> Command {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status");
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("the cores");
    let core = cores.trim().split([',', '-']).next().expect("a core");
    super::crash::under(&["taskset", "--cpu-list", core], &command)
}

/// After a failed fsync nobody knows what is on the disk: the process ends instead of going on.
#[test]
fn a_failed_fsync_ends_the_process_and_nothing_is_a_success_that_is_not_on_the_disk() {
    if !Path::new("/usr/bin/strace").exists() {
        skipped("there is no strace here");
        return;
    }
    let (governor, catalogue, load) = (Governor::start(&[]), catalogue(), load());
    let mut home = Executor::start(options(&catalogue, &governor.http_url())).killed();
    for (call, error) in [("fdatasync", "EIO"), ("pwrite64", "EIO")] {
        // The first few are those of opening.
        let inject = format!("--inject={call}:error={error}:when=12+");
        let mut traced =
            Process::spawn("traced executor", &mut super::crash::under_strace(&home, call, &inject));
        let Some(address) = traced.listens_on_unless_it_ends() else { panic!("{}", traced.stderr()) };
        load.during(4, address, || {
            assert_eq!(traced.ended().code(), Some(1), "{call} {error}: {}", traced.stderr());
        });
        let said = traced.stderr();
        assert!(said.contains("the journal cannot be written any more"), "{call} {error}: {said}");
        home = Executor::start_in(home).killed();
    }
    let executor = Executor::start_in(home);
    load.send_again(executor.address());
    let reports = settled(&executor, &governor);
    load.assert_balanced(executor.home(), &reports);
    assert_chain_holds(executor.home());
}
