//! A disk that is full, that takes its time, or that does not keep what it was given.

use super::{MARK, catalogue, load, options};
use crate::staged::{AFTER, BEFORE, EDITS, edits, entries, read_entries, write_entries};
use harness::{
    Catalogue, Executor, GATE, Governor, Home, HttpClient, Options, Process, Tool, error, eventually,
    execute, id_of, print_skipped, program,
};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// A disk of a few MB, which only the processes see that are started on it.
struct SmallDisk {
    /// Holds the view of the files in which it is mounted.
    holder: Process,
    /// Its path in that view.
    place: PathBuf,
}

impl SmallDisk {
    /// `None`, with the reason on standard error, where no disk can be mounted.
    fn new() -> Option<Self> {
        let place = tempfile::tempdir().expect("a temp folder").keep();
        if !can_mount() {
            return None;
        }
        let mount = format!(
            "mount -t tmpfs -o size=8m,mode=700 none '{}' && echo mounted >&2 && exec sleep infinity",
            place.display()
        );
        let mut holder = Command::new("unshare");
        let holder = Process::spawn("disk", holder.args(["--mount", "sh", "-c", &mount]));
        holder.line_with("mounted");
        Some(Self { holder, place })
    }

    /// Starts a command that sees the disk.
    fn command(&mut self, command: &Command) -> Command {
        let id = self.holder.child().id().to_string();
        harness::under(&["nsenter", "--target", &id, "--mount"], command)
    }

    /// An executor with these tools and a governor, which keeps its journal there.
    fn serve(catalogue: &Catalogue) -> Option<(Self, Governor, Home, Process, SocketAddr)> {
        let governor = Governor::start(&[]);
        let mut disk = Self::new()?;
        let journal = disk.place.join("journal.db");
        let options = options(catalogue, &governor.http_url()).set("journal.path", json!(journal));
        let home = Home::new(options);
        let (process, address) = disk.start(&home);
        Some((disk, governor, home, process, address))
    }

    fn start(&mut self, home: &Home) -> (Process, SocketAddr) {
        let process = Process::spawn("executor", &mut self.command(&home.command()));
        let address = process.listens_on();
        (process, address)
    }

    /// Undelivered reports according to the journal, read inside the mount namespace of the disk.
    fn undelivered(&mut self, home: &Home) -> String {
        let mut list = Command::new(program());
        list.current_dir(home.folder());
        list.args(["journal", "list", "--undelivered", "--json", "--config"]).arg(home.config());
        let listed = self.command(&list).output().expect("nsenter");
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        String::from_utf8(listed.stdout).expect("UTF-8")
    }

    /// Fills it, and gives the file to remove for room.
    fn fill(&mut self) -> PathBuf {
        let disk = PathBuf::from(format!("/proc/{}/root{}", self.holder.child().id(), self.place.display()));
        let ballast = disk.join("ballast");
        let mut file = std::fs::File::create(&ballast).expect("a file");
        let mut full = 0;
        // The kernel counts the room of such a disk in parts, so that a little may come back a moment later.
        while full < 5 {
            let before = file.metadata().expect("a file").len();
            let mut left = 1 << 20;
            while left > 0 {
                match std::io::Write::write(&mut file, &vec![0; left]) {
                    Ok(_) => {}
                    Err(_full) => left /= 2,
                }
            }
            full = if file.metadata().expect("a file").len() == before { full + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(50));
        }
        ballast
    }
}

/// True if this user may mount file systems of its own; otherwise the test is named as skipped.
pub(super) fn can_mount() -> bool {
    let tried = Command::new("unshare").args(["--mount", "true"]).status();
    let can = tried.is_ok_and(|status| status.success());
    if !can {
        print_skipped("no file system can be mounted here");
    }
    can
}

fn busy(answer: &Value) -> bool {
    answer["error"]["code"] == -32003 && answer["error"]["data"]["retry_after_ms"].is_u64()
}

/// Counts the lines of the log that say that there is no room, and those that say that there is again.
fn lines(process: &Process) -> (usize, usize) {
    let said = process.stderr();
    (said.matches("cannot be written").count(), said.matches("can be written again").count())
}

fn status(address: SocketAddr) -> u16 {
    HttpClient::connect(address).request("GET", "/health", &[], b"").status
}

#[test]
fn a_full_disk_starts_no_run_and_loses_no_record() {
    let catalogue = catalogue();
    let load = load();
    let Some((mut disk, governor, home, process, address)) = SmallDisk::serve(&catalogue) else { return };
    load.during(4, address, || std::thread::sleep(Duration::from_millis(300)));
    assert_eq!((status(address), lines(&process)), (200, (0, 0)));
    let began = Instant::now();
    let ballast = load.during(4, address, || {
        let ballast = disk.fill();
        eventually("it is noticed", || (status(address) == 503).then_some(()));
        std::thread::sleep(Duration::from_millis(700));
        ballast
    });
    let refused = HttpClient::ask(address, "a2g/execute", &execute("mark", json!({ "n": "999999" })));
    let refused = refused.expect("an answer");
    assert!(busy(&refused), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("disk is full"), "{refused}");
    assert!(!home.workspace().join("999999").exists());
    let health = HttpClient::connect(address).request("GET", "/health", &[], b"");
    assert!(health.text().contains("disk is full"), "{}", health.text());
    // Hundreds of calls were refused.
    let (full, again) = lines(&process);
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap() + 1;
    assert!(full >= 1 && full + again <= seconds + 1, "{full} and {again} lines in {seconds} s");
    std::fs::remove_file(ballast).unwrap();
    eventually("there is room again", || (status(address) == 200).then_some(()));
    process.line_with("the journal can be written again");
    let (full, again) = lines(&process);
    assert_eq!(full, again, "each time, and at the end: {}", process.stderr());
    load.during(4, address, || std::thread::sleep(Duration::from_millis(300)));
    load.send_again(address);
    let reports = eventually("every report is delivered", || {
        let waiting = disk.undelivered(&home);
        waiting.is_empty().then(|| governor.reports())
    });
    assert!(load.assert_balanced(&home, &reports) > 0);
}

/// The caller is told that it ran, and gets the receipt when there is room for it.
#[test]
fn a_run_that_ends_on_a_full_disk_is_answered_in_seconds() {
    let catalogue = Catalogue::empty().add(Tool::command("gate", GATE));
    let Some((mut disk, _governor, home, process, address)) = SmallDisk::serve(&catalogue) else { return };
    let call = execute("gate", json!({}));
    let id = json!({ "intent_id": id_of(&call) });
    let ask = |method: &str, params: &Value| HttpClient::ask(address, method, params).expect("an answer");
    let is_pending = |answer: &Value| {
        let error = error(answer, -32003);
        assert_eq!(error["data"]["ran"], true, "{answer}");
        assert_eq!(error["data"]["intent_id"], id["intent_id"], "{answer}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("its receipt is not here yet"), "{answer}");
        assert!(message.contains("after a power failure, it may repeat a run that can change"), "{answer}");
        assert!(error["data"]["retry_after_ms"].is_u64(), "{answer}");
    };
    let ballast = std::thread::scope(|scope| {
        let calling = scope.spawn(|| ask("a2g/execute", &call));
        eventually("it runs", || home.workspace().join("runs").exists().then_some(()));
        let ballast = disk.fill();
        eventually("the journal finds that its disk is full", || {
            busy(&ask("a2g/execute", &execute("gate", json!({ "n": 1 })))).then_some(())
        });
        let began = Instant::now();
        std::fs::write(home.workspace().join("go"), "").unwrap();
        is_pending(&calling.join().unwrap());
        let took = began.elapsed();
        assert!((4..30).contains(&took.as_secs()), "{took:?}");
        ballast
    });
    assert_eq!(ask("a2g/status", &id)["result"]["state"], "running");
    // So is whoever sends it again.
    is_pending(&ask("a2g/execute", &call));
    std::fs::remove_file(ballast).unwrap();
    let answer = eventually("its receipt is there", || {
        let answer = ask("a2g/execute", &call);
        answer.get("result").is_some().then_some(answer)
    });
    assert_eq!(answer["result"]["status"], "SUCCESS");
    assert_eq!(ask("a2g/status", &id)["result"]["report"], answer["result"]);
    assert_eq!(std::fs::read_to_string(home.workspace().join("runs")).unwrap().matches('x').count(), 1);
    process.line_with("the journal can be written again");
}

/// Runs that a kill cut off find no room for their receipts: the server says 503, and goes on when there is room.
#[test]
fn a_server_started_on_a_full_disk_waits_for_space() {
    let catalogue = Catalogue::empty().add(Tool::command("gate", GATE));
    let served = SmallDisk::serve(&catalogue);
    let Some((mut disk, _governor, home, mut process, address)) = served else { return };
    let call = execute("gate", json!({}));
    std::thread::scope(|scope| {
        scope.spawn(|| HttpClient::ask(address, "a2g/execute", &call));
        eventually("it runs", || home.workspace().join("runs").exists().then_some(()));
        process.kill();
    });
    let ballast = disk.fill();
    let (process, address) = disk.start(&home);
    let ask = |method: &str, params: &Value| HttpClient::ask(address, method, params).expect("an answer");
    // The server listens a moment before its journal tries to write.
    eventually("the full disk is noticed", || (status(address) == 503).then_some(()));
    assert!(busy(&ask("a2g/execute", &execute("gate", json!({ "n": 1 })))));
    let id = json!({ "intent_id": id_of(&call) });
    assert_eq!(ask("a2g/status", &id)["result"]["state"], "running");
    std::fs::remove_file(&ballast).unwrap();
    eventually("there is room", || (status(address) == 200).then_some(()));
    let report = eventually("what was cut off is reported", || {
        let status = ask("a2g/status", &id);
        (status["result"]["state"] == "finished").then(|| status["result"]["report"].clone())
    });
    assert_eq!(report["status"], "ABORTED", "{report}");
    process.line_with("the journal can be written again");
    // Without what SQLite had made before there is nothing that could wait: it says so and ends.
    let mut process = process;
    process.stop();
    // A server that still finds a little room gets more. Once its journal has written, its end leaves no log of
    // SQLite's, and the disk is filled again.
    let mut process = loop {
        let ballast = disk.fill();
        let mut process = Process::spawn("executor", &mut disk.command(&home.command()));
        let Some(address) = process.listens_on_unless_it_ends() else { break process };
        std::fs::remove_file(ballast).unwrap();
        eventually("there is room", || (status(address) == 200).then_some(()));
        process.terminate();
        process.wait_for_exit();
    };
    assert_eq!(process.wait_for_exit().code(), Some(1), "{}", process.stderr());
    assert!(process.whole_stderr().contains("no space for the journal"), "{}", process.stderr());
}

/// A tool that is new, so that its definition cannot be recorded, is left out; the others are served.
#[test]
fn a_start_on_a_full_disk_leaves_out_only_tools_without_a_recorded_definition() {
    let catalogue = catalogue();
    let governor = Governor::start(&[]);
    let Some(mut disk) = SmallDisk::new() else { return };
    let options = options(&catalogue, &governor.http_url())
        .set("journal.path", json!(disk.place.join("journal.db")))
        .set("catalog.definitions", json!(disk.place.join("definitions.json")));
    let home = Home::new(options);
    let (mut process, address) = disk.start(&home);
    let ask = |address, tool: &str| {
        HttpClient::ask(address, "a2g/execute", &execute(tool, json!({ "n": "000001" }))).expect("an answer")
    };
    assert_eq!(ask(address, "mark")["result"]["status"], "SUCCESS");
    // What SQLite has made beside the journal stays, so that a start needs no room for it.
    process.kill();
    let _with_a_new_tool = catalogue.add(Tool::command("new", MARK));
    let ballast = disk.fill();
    let (process, address) = disk.start(&home);
    eventually("the tools are prepared", || (ask(address, "new")["error"]["code"] != -32003).then_some(()));
    let left_out = ask(address, "new");
    let told = error(&left_out, -32000)["message"].as_str().unwrap();
    assert!(told.contains("its definition cannot be recorded"), "{told}");
    let listed = HttpClient::ask(address, "a2g/tools", &json!({})).expect("an answer");
    assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(1), "{listed}");
    std::fs::remove_file(ballast).unwrap();
    process.hang_up();
    eventually("it is recorded", || (ask(address, "new")["result"]["status"] == "SUCCESS").then_some(()));
    assert_eq!(ask(address, "mark")["result"]["status"], "SUCCESS");
}

/// A task of A2A that was refused for want of room never was, also when there is room again.
#[test]
fn a_task_that_could_not_be_stored_is_absent_later() {
    let catalogue = catalogue();
    let Some((mut disk, _governor, _home, _process, address)) = SmallDisk::serve(&catalogue) else { return };
    let mut client = HttpClient::connect(address);
    let mut ask = |method: &str, params: &Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let headers = [("Content-Type", "application/json")];
        client.request("POST", "/a2a/rpc", &headers, body.as_bytes()).json()
    };
    let hello = json!({ "message": {
        "kind": "message", "messageId": "m", "role": "user", "parts": [{ "kind": "text", "text": "Hello!" }],
    } });
    let ballast = disk.fill();
    let refused = eventually("the journal finds that its disk is full", || {
        let answer = ask("message/send", &hello);
        answer.get("error").is_some().then_some(answer)
    });
    assert!(refused["error"]["message"].as_str().unwrap().contains("disk is full"), "{refused}");
    let kept = ask("tasks/list", &json!({}))["result"]["total"].as_u64();
    for _ in 0..5 {
        assert!(ask("message/send", &hello).get("error").is_some());
    }
    std::fs::remove_file(ballast).unwrap();
    eventually("there is room again", || ask("message/send", &hello).get("result").map(drop));
    assert_eq!(ask("tasks/list", &json!({}))["result"]["total"].as_u64(), kept.map(|kept| kept + 1));
}

/// Without space in `effects.folder`, the files are as before the run, the commit or the undo, or it is done
/// as a whole.
#[test]
fn a_full_folder_of_file_changes_leaves_nothing_half_done() {
    let catalogue = Catalogue::empty().add(edits(EDITS, "staged"));
    let governor = Governor::start(&[]);
    let Some(mut disk) = SmallDisk::new() else { return };
    let options =
        options(&catalogue, &governor.http_url()).set("effects.folder", json!(disk.place.join("effects")));
    let home = Home::new(options);
    let (_process, address) = disk.start(&home);
    let ask = |method: &str, params: &Value| HttpClient::ask(address, method, params).expect("an answer");
    let files = || read_entries(&home.workspace());
    write_entries(&home.workspace(), BEFORE);
    let run = ask("a2g/execute", &execute(EDITS, json!({})));
    let report = harness::result(&run);
    assert_eq!(report["status"], "STAGED", "{run}");
    let set = json!({ "intent": report["intent_id"] });
    let commit = json!({ "intent": report["intent_id"], "digest": report["usage"]["effects"]["digest"] });
    // Tries on the full disk, and again with space.
    let mut decide = |method: &str, params: &Value, before: &[(&str, &str)], after: &[(&str, &str)]| {
        let ballast = disk.fill();
        let full = ask(method, params);
        let is_done = full["result"]["status"] == "SUCCESS";
        assert_eq!(full["result"].get("left_to_operator"), None, "{method}: {full}");
        assert_eq!(files(), entries(if is_done { after } else { before }), "{method}: {full}");
        std::fs::remove_file(ballast).unwrap();
        if !is_done {
            let answer = ask(method, params);
            assert_eq!(harness::result(&answer)["status"], "SUCCESS", "{method}: {answer}");
        }
        assert_eq!(files(), entries(after), "{method}");
        is_done
    };
    let is_committed = decide("a2g/commit", &commit, BEFORE, AFTER);
    assert!(!is_committed, "a commit keeps copies of what it replaces");
    decide("a2g/undo", &set, AFTER, BEFORE);

    let ballast = disk.fill();
    let full = ask("a2g/execute", &execute(EDITS, json!({})));
    assert!(full.get("error").is_some(), "{full}");
    assert_eq!(files(), entries(BEFORE));
    std::fs::remove_file(ballast).unwrap();
    let sets = ask("a2g/effects", &json!({}));
    assert_eq!(harness::result(&sets)["sets"], json!([]), "{sets}");
}

/// Duration of an fsync on the slow disk.
const AN_FSYNC: Duration = Duration::from_secs(2);

/// An executor whose disk takes its time for each fsync, started as `command` makes of it.
fn on_a_slow_disk(command: impl FnOnce(Command) -> Command) -> Option<(Process, Home)> {
    if !harness::has_strace() {
        return None;
    }
    let home = Executor::start(Options::new()).kill();
    let slowly = format!("--inject=fdatasync:delay_enter={}", AN_FSYNC.as_micros());
    let mut traced = command(harness::under_strace(&home, "fdatasync", &slowly));
    Some((Process::spawn("traced executor", &mut traced), home))
}

/// Response time of `/health`.
fn health(address: SocketAddr) -> Duration {
    let began = Instant::now();
    assert_eq!(HttpClient::connect(address).request("GET", "/health", &[], b"").status, 200);
    began.elapsed()
}

/// The journal's writer has a thread of its own: on a thread of the runtime, and one core, nobody else would go on.
#[test]
fn a_slow_disk_does_not_delay_requests_that_need_no_disk() {
    let Some((mut slow, _home)) = on_a_slow_disk(on_one_core) else { return };
    let address = slow.listens_on();
    let list = execute("list_directory", json!({ "path": "/workspace" }));
    let mut slowest = Duration::ZERO;
    let mut asked = 0;
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
    slow.wait_for_exit();
    assert_eq!(answer["result"]["status"], "SUCCESS", "{answer}");
    assert!(asked > 20 && slowest < AN_FSYNC / 2, "{asked} times, {slowest:?} at most");
}

/// Records that no caller waits for are written after a delay, when the server is idle. A thread of the runtime that did it
/// would be the one that watches sockets and timers, on any number of cores.
#[test]
fn recording_a_refusal_on_a_slow_disk_delays_no_request() {
    let Some((mut slow, _home)) = on_a_slow_disk(|command| command) else { return };
    let address = slow.listens_on();
    let mut expired = execute("list_directory", json!({ "path": "/workspace" }));
    expired["verdict"]["expires_at"] = json!("2001-01-01T00:00:00Z");
    let refused = HttpClient::connect(address).rpc("a2g/execute", &expired);
    std::thread::sleep(Duration::from_millis(300));
    let took = health(address);
    slow.kill_children();
    slow.wait_for_exit();
    assert_eq!(refused["error"]["data"]["blocked_by"], "verdict_expired", "{refused}");
    assert!(took < AN_FSYNC / 2, "{took:?}");
}

/// A command that has one core, the first of those that this process has.
fn on_one_core(command: Command) -> Command {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status");
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("the cores");
    let core = cores.trim().split([',', '-']).next().expect("a core");
    harness::under(&["taskset", "--cpu-list", core], &command)
}

/// After a failed fsync nobody knows what is on the disk: the process ends instead of going on.
#[test]
fn a_failed_fsync_ends_the_process_without_reporting_success() {
    if !harness::has_strace() {
        return;
    }
    let governor = Governor::start(&[]);
    let catalogue = catalogue();
    let load = load();
    let mut home = Executor::start(options(&catalogue, &governor.http_url())).kill();
    for (call, error) in [("fdatasync", "EIO"), ("pwrite64", "EIO")] {
        // The first few are those of opening.
        let inject = format!("--inject={call}:error={error}:when=12+");
        let mut traced = Process::spawn("traced executor", &mut harness::under_strace(&home, call, &inject));
        let Some(address) = traced.listens_on_unless_it_ends() else { panic!("{}", traced.stderr()) };
        load.during(4, address, || {
            assert_eq!(traced.wait_for_exit().code(), Some(1), "{call} {error}: {}", traced.stderr());
        });
        let said = traced.stderr();
        assert!(said.contains("the journal cannot be written any more"), "{call} {error}: {said}");
        home = Executor::start_in(home).kill();
    }
    super::assert_settled(&Executor::start_in(home), &load, &governor);
}
