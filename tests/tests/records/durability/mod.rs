//! Nothing is lost and nothing runs twice, whatever happens to the executor, its disk or its governor.
//!
//! The tests send many intents to an executor, whose governor is a process of its own. The tool
//! adds one byte to a file that only this intent has, so that the length of the file is the number
//! of runs of the intent. Afterwards a test compares what was asked and answered, what ran, and
//! which reports the governor received.

mod clock;
mod crash;
mod decisions;
mod disk;
mod effects;
mod formats;
mod outbox;
mod size;
mod staged;
mod starts;
mod stops;
mod tamper;
mod vanish;

use harness::{
    Catalogue, Executor, FakeGovernor, Governor, Home, HttpClient, Options, Reply, Tool, approved,
    assert_chain_holds, eventually, execute, in_seconds, intent, manifest, verdict,
};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A command that adds one `x` to the file of `/workspace` that is named by the six digits in
/// `{"n":"000000"}`, and answers `{}`.
const MARK: &str = r#"(module
  (import "wasi_snapshot_preview1" "path_open"
    (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 64) "x{}")
  ;; An array of one piece at 128: where and how long.
  (func $piece (param $at i32) (param $length i32)
    (i32.store (i32.const 128) (local.get $at))
    (i32.store (i32.const 132) (local.get $length)))
  (func (export "_start")
    (call $piece (i32.const 0) (i32.const 32))
    (drop (call $fd_read (i32.const 0) (i32.const 128) (i32.const 1) (i32.const 136)))
    ;; O_CREAT, FD_WRITE, FDFLAGS_APPEND
    (if (call $path_open (i32.const 3) (i32.const 0) (i32.const 6) (i32.const 6) (i32.const 1)
          (i64.const 64) (i64.const 0) (i32.const 1) (i32.const 140))
      (then unreachable))
    (call $piece (i32.const 64) (i32.const 1))
    (if (call $fd_write (i32.load (i32.const 140)) (i32.const 128) (i32.const 1) (i32.const 136))
      (then unreachable))
    (call $piece (i32.const 65) (i32.const 2))
    (drop (call $fd_write (i32.const 1) (i32.const 128) (i32.const 1) (i32.const 136)))))"#;

/// A command that ends only when it is ended.
const FOREVER: &str =
    r#"(module (memory (export "memory") 1) (func (export "_start") (loop $forever (br $forever))))"#;

fn catalogue() -> Catalogue {
    Catalogue::empty().add(Tool::command("mark", MARK))
}

/// A call of [`MARK`].
fn mark(n: u32) -> Value {
    execute("mark", json!({ "n": format!("{n:06}") }))
}

fn options(catalogue: &Catalogue, governor: &str) -> Options {
    Options::new().catalogue(catalogue).governor(governor)
}

/// A governor that escalates every intent, with a verdict that expires after so many seconds.
fn escalating(seconds: i64) -> FakeGovernor {
    FakeGovernor::deciding(move |intent| {
        let manifest = json!({ "filesystem_scope": ["/workspace/**"] });
        let mut escalation = verdict(intent["intent_id"].as_str().unwrap(), &manifest);
        escalation["verdict"] = "ESCALATE".into();
        escalation["expires_at"] = in_seconds(seconds).into();
        Reply::Result(escalation)
    })
}

/// One intent that was sent.
struct Sent {
    params: Value,
    /// The name of its file.
    file: String,
    /// True if its verdict had expired, so that it must not run.
    refused: bool,
    /// The whole answers that came back.
    answers: Vec<Value>,
}

/// All that was sent, by id.
#[derive(Default)]
struct Load {
    sent: Mutex<HashMap<String, Sent>>,
    next: AtomicUsize,
}

impl Load {
    /// Sends one intent, and stores the answer. Every seventh intent must be refused.
    fn send(&self, address: SocketAddr) -> Option<Value> {
        let nth = self.next.fetch_add(1, Ordering::SeqCst);
        let file = format!("{nth:06}");
        let refused = nth % 7 == 3;
        let mut params = approved(intent("mark", json!({ "n": file })), &manifest());
        // Reports are sent in order for each agent, and in parallel for different agents.
        params["intent"]["agent_did"] = format!("did:aeon:tester:1.0:{}", nth % 4).into();
        // Both margins are so large that a clock that is an hour off makes no difference.
        params["verdict"]["expires_at"] = in_seconds(if refused { -2 * 3600 } else { 3 * 3600 }).into();
        let id = params["intent"]["intent_id"].as_str().unwrap().to_owned();
        let sent = Sent { params: params.clone(), file, refused, answers: Vec::new() };
        self.sent.lock().unwrap().insert(id.clone(), sent);
        self.ask(address, &id, &params)
    }

    fn ask(&self, address: SocketAddr, id: &str, params: &Value) -> Option<Value> {
        let answer = HttpClient::ask(address, "a2g/execute", params);
        if let Some(answer) = &answer {
            self.sent.lock().unwrap().get_mut(id).unwrap().answers.push(answer.clone());
        }
        answer
    }

    /// Sends intents from `clients` threads until `meanwhile` has returned.
    fn during<T>(&self, clients: usize, address: SocketAddr, meanwhile: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..clients {
                scope.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        if self.send(address).is_none() {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                    }
                });
            }
            let result = meanwhile();
            over.store(true, Ordering::SeqCst);
            result
        })
    }

    /// Sends all intents without an answer again, and some with an answer: none may run twice.
    fn send_again(&self, address: SocketAddr) {
        let again: Vec<(String, Value)> = {
            let sent = self.sent.lock().unwrap();
            let again =
                sent.iter().enumerate().filter(|(nth, (_, sent))| sent.answers.is_empty() || nth % 5 == 0);
            again.map(|(_, (id, sent))| (id.clone(), sent.params.clone())).collect()
        };
        for (id, params) in again {
            assert!(self.ask(address, &id, &params).is_some(), "a running executor answers");
        }
    }

    /// Compares the intents, their answers, their runs and the reports. Returns the number of runs.
    fn assert_balanced(&self, home: &Home, reports: &[Value]) -> usize {
        let mut told: HashMap<&str, Vec<&Value>> = HashMap::new();
        for report in reports {
            told.entry(report["intent_id"].as_str().unwrap()).or_default().push(report);
        }
        let sent = self.sent.lock().unwrap();
        assert!(told.keys().all(|id| sent.contains_key(*id)), "a report of an intent that nobody sent");
        let mut ran = 0;
        for (id, Sent { file, refused, answers, .. }) in &*sent {
            let runs = std::fs::read(home.workspace().join(file)).map_or(0, |marks| marks.len());
            assert!(runs <= 1, "{id} ran {runs} times");
            ran += runs;
            let reports = told.get(id.as_str()).map(Vec::as_slice).unwrap_or_default();
            // A report may arrive twice, but not two different ones.
            assert!(reports.windows(2).all(|pair| pair[0] == pair[1]), "{id}: {reports:?}");
            let report = reports.first();
            if *refused {
                assert!(runs == 0 && report.is_none(), "{id} was refused, and yet: {runs} runs, {report:?}");
                assert!(answers.iter().all(|answer| answer["error"]["code"] == -32000), "{id}: {answers:?}");
                continue;
            }
            let status = report.map(|report| report["status"].as_str().unwrap());
            match status {
                None => assert!(runs == 0, "{id} ran, and the governor never heard of it"),
                Some("SUCCESS") => assert!(runs == 1, "{id} is reported as a success and did not run"),
                Some("ABORTED") => {}
                // A kill may hit the process of a guest or its zygote.
                Some("FAILURE") if ended_early(report) => {}
                Some(other) => panic!("{id} is reported as {other}: {report:?}"),
            }
            for answer in answers {
                let answered = match (answer.get("result"), answer["error"]["code"].as_i64()) {
                    (Some(result), None) => result,
                    (None, Some(-32001)) => &answer["error"]["data"]["report"],
                    // Busy or out of space: it did not run because of this request. Broken: only
                    // the report says whether it ran.
                    (None, Some(-32003 | -32603)) => continue,
                    _ => panic!("{id}: {answer}"),
                };
                assert_eq!(Some(&answered), report, "the answer of {id} differs from its report");
            }
        }
        ran
    }
}

fn ended_early(report: Option<&&Value>) -> bool {
    let error = report.and_then(|report| report["error"].as_str());
    error.is_some_and(|error| error.starts_with("the process that ran the tool ended early"))
}

/// Waits until the governor has the reports of all runs that have ended, and returns all reports.
fn wait_until_settled(executor: &Executor, governor: &Governor) -> Vec<Value> {
    wait_until_delivered(executor);
    governor.reports()
}

/// Sends unanswered intents again, compares everything and checks the chain. Returns the number of
/// runs.
fn assert_settled(executor: &Executor, load: &Load, governor: &Governor) -> usize {
    load.send_again(executor.address());
    let ran = load.assert_balanced(executor.home(), &wait_until_settled(executor, governor));
    assert_chain_holds(executor.home());
    ran
}

/// Waits until the journal has no report that the governor has not acknowledged.
fn wait_until_delivered(executor: &Executor) {
    eventually("every report is delivered", || {
        executor.home().list_journal(&["--undelivered"]).is_empty().then_some(())
    });
}

/// The text of the marker beside the journal, which names a record.
fn read_marker(executor: &Executor) -> String {
    std::fs::read_to_string(executor.home().journal().with_file_name("journal.db.lock")).unwrap()
}

/// A random duration of less than so many milliseconds.
fn moment(most: u128) -> Duration {
    Duration::from_millis(u64::try_from(uuid::Uuid::new_v4().as_u128() % most).unwrap())
}

/// An empty load, which threads can share.
fn load() -> Arc<Load> {
    Arc::default()
}
