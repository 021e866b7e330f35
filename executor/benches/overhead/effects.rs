//! (k): what it costs to keep file changes apart until somebody decides on them, beside the same work at once.
//!
//! Every run has a process of its own. The changed files, the folder of the changes and the journal are on one disk.

use super::client::{Http, post};
use super::doors::{Server, install_declaring};
use super::{median, micros};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The rounds of small runs, and of those that go before them.
const ROUNDS: usize = 200;
const WARM: usize = 20;
/// The rounds of the large file, and of many files.
const FEW_ROUNDS: usize = 10;
const LARGE_MB: usize = 100;
const FILES: usize = 100;

const STAGED: &[&str] = &["effects:staged"];
const DIRECT: &[&str] = &[];

/// A guest with these data and functions. Its `$open` opens a file of the granted folder to change it, `$write` writes,
/// and `$print` prints a number.
fn guest(more: &str) -> String {
    format!(
        r#"(module
  (import "wasi_snapshot_preview1" "path_open"
    (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_close" (func $fd_close (param i32) (result i32)))
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 32) "changed")
  (func $open (param $at i32) (param $length i32) (result i32)
    ;; Reads and writes, from FD_READ and FD_WRITE.
    (if (call $path_open (i32.const 3) (i32.const 0) (local.get $at) (local.get $length) (i32.const 0)
          (i64.const 66) (i64.const 0) (i32.const 0) (i32.const 140))
      (then unreachable))
    (i32.load (i32.const 140)))
  (func $write (param $file i32) (param $at i32) (param $length i32)
    (i32.store (i32.const 128) (local.get $at))
    (i32.store (i32.const 132) (local.get $length))
    (if (call $fd_write (local.get $file) (i32.const 128) (i32.const 1) (i32.const 136)) (then unreachable)))
  ;; In microseconds, on the monotonic clock.
  (func $now (result i32)
    (if (call $clock (i32.const 1) (i64.const 1) (i32.const 144)) (then unreachable))
    (i32.wrap_i64 (i64.div_u (i64.load (i32.const 144)) (i64.const 1000))))
  (func $print (param $number i32) (local $at i32)
    (local.set $at (i32.const 190))
    (loop $digits
      (local.set $at (i32.sub (local.get $at) (i32.const 1)))
      (i32.store8 (local.get $at)
        (i32.add (i32.const 48) (i32.rem_u (local.get $number) (i32.const 10))))
      (br_if $digits (local.tee $number (i32.div_u (local.get $number) (i32.const 10)))))
    (call $write (i32.const 1) (local.get $at) (i32.sub (i32.const 190) (local.get $at))))
  {more})"#
    )
}

/// Changes the beginning of `small.txt`.
const SMALL: &str = r#"
  (data (i32.const 0) "small.txt")
  (func (export "_start")
    (call $write (call $open (i32.const 0) (i32.const 9)) (i32.const 32) (i32.const 7))
    (call $print (i32.const 0)))"#;

/// Changes the beginning of `large.bin`, and answers with the time that this took.
const LARGE: &str = r#"
  (data (i32.const 0) "large.bin")
  (func (export "_start") (local $began i32)
    (local.set $began (call $now))
    (call $write (call $open (i32.const 0) (i32.const 9)) (i32.const 32) (i32.const 1))
    (call $print (i32.sub (call $now) (local.get $began))))"#;

/// Changes the beginnings of `many/00` to `many/99`.
const MANY: &str = r#"
  (data (i32.const 0) "many/00")
  (func (export "_start") (local $number i32)
    (loop $more
      (i32.store8 (i32.const 5) (i32.add (i32.const 48) (i32.div_u (local.get $number) (i32.const 10))))
      (i32.store8 (i32.const 6) (i32.add (i32.const 48) (i32.rem_u (local.get $number) (i32.const 10))))
      (call $write (call $open (i32.const 0) (i32.const 7)) (i32.const 32) (i32.const 7))
      (if (call $fd_close (i32.load (i32.const 140))) (then unreachable))
      (br_if $more
        (i32.lt_u (local.tee $number (i32.add (local.get $number) (i32.const 1))) (i32.const 100))))
    (call $print (i32.const 0)))"#;

pub(crate) fn measure(target: &Path) {
    let binary = crate::executor();
    // Beside what is built, because the system's temporary folder may be a RAM disk.
    let folder = tempfile::tempdir_in(target).unwrap();
    let data = folder.path().join("data");
    make_files(&data);
    let guests = [("small", SMALL), ("large", LARGE), ("many", MANY)].map(|(name, more)| (name, guest(more)));
    let tools = guests.each_ref().map(|(name, text)| (*name, text.as_str()));
    let declares = "[capabilities]\nfilesystem = \"read-write\"\n";
    install_declaring(&binary, folder.path(), &data, &tools, declares);
    let server = Server::start(&binary, folder.path(), &folder.path().join("catalogue"));
    let mut http = Http::connect(&server.address);
    println!(
        "{:<56} {:>6} {:>12} {:>12}",
        "(k) file changes that wait for a decision", "ratio", "compared", "this"
    );
    measure_small(&mut http);
    measure_large(&mut http, &data);
    measure_many(&mut http, &data);
    println!(
        "Medians. `compared` is the second of each row. The copy of a large file shares its blocks with the"
    );
    println!("original where the file system can do that.");
}

fn make_files(data: &Path) {
    fs::create_dir_all(data.join("many")).unwrap();
    fs::create_dir(data.join("by-hand")).unwrap();
    fs::write(data.join("small.txt"), "the original of a small file\n").unwrap();
    let mut large = File::create(data.join("large.bin")).unwrap();
    // Some file systems keep no block of zeros.
    let mb = b"\x010123456789abcde".repeat((1 << 20) / 16);
    (0..LARGE_MB).for_each(|_| large.write_all(&mb).unwrap());
    large.sync_all().unwrap();
    for file in 0..FILES {
        for folder in ["many", "by-hand"] {
            fs::write(data.join(folder).join(format!("{file:02}")), "the original\n").unwrap();
        }
    }
}

fn measure_small(http: &mut Http) {
    let mut direct = Vec::new();
    let mut staged = Vec::new();
    for round in 0..WARM + ROUNDS {
        let (direct_took, _) = run(http, "small", DIRECT, "SUCCESS");
        let (staged_took, report) = run(http, "small", STAGED, "STAGED");
        decide(http, "a2g/discard", &report);
        if round >= WARM {
            direct.push(direct_took);
            staged.push(staged_took);
        }
    }
    row("a run that changes a file: staged, direct", &mut staged, &mut direct);
}

fn measure_large(http: &mut Http, data: &Path) {
    let mut opened = Vec::new();
    let mut copied = Vec::new();
    for _ in 0..FEW_ROUNDS {
        let (_, report) = run(http, "large", STAGED, "STAGED");
        opened.push(Duration::from_micros(report["result"].as_u64().unwrap()));
        decide(http, "a2g/discard", &report);
        let copy = data.join("copy");
        let mut cp = Command::new("cp");
        cp.arg("--reflink=auto").arg(data.join("large.bin")).arg(&copy);
        let started = Instant::now();
        assert!(cp.status().unwrap().success());
        copied.push(started.elapsed());
        fs::remove_file(copy).unwrap();
    }
    let what = format!("the first change of {LARGE_MB} MB: the run's, `cp --reflink=auto`");
    row(&what, &mut opened, &mut copied);
}

fn measure_many(http: &mut Http, data: &Path) {
    let mut commits = Vec::new();
    let mut undos = Vec::new();
    let mut by_hand = Vec::new();
    for _ in 0..FEW_ROUNDS {
        let (_, report) = run(http, "many", STAGED, "STAGED");
        assert_eq!(report["usage"]["effects"]["changes"], FILES);
        commits.push(decide(http, "a2g/commit", &report));
        undos.push(decide(http, "a2g/undo", &report));
        by_hand.push(replace_by_hand(&data.join("by-hand")));
    }
    row(&format!("commit of {FILES} files, each replaced by hand"), &mut commits, &mut by_hand);
    row(&format!("undo of {FILES} files, each replaced by hand"), &mut undos, &mut by_hand);
}

/// Replaces each file as a careful program does: by a new one that is on the disk before it gets the name.
fn replace_by_hand(folder: &Path) -> Duration {
    let started = Instant::now();
    for number in 0..FILES {
        let new = folder.join("new");
        let mut file = File::create(&new).unwrap();
        file.write_all(b"changed by hand\n").unwrap();
        file.sync_all().unwrap();
        fs::rename(new, folder.join(format!("{number:02}"))).unwrap();
    }
    File::open(folder).unwrap().sync_all().unwrap();
    started.elapsed()
}

/// Prints the median of the first times, that of the others, and their ratio.
fn row(what: &str, these: &mut [Duration], others: &mut [Duration]) {
    let this = median(these);
    let other = median(others);
    let ratio = this.as_secs_f64() / other.as_secs_f64();
    println!("{what:<56} {ratio:>6.2} {:>9.0} µs {:>9.0} µs", micros(other), micros(this));
}

/// Runs a tool under these conditions, and gives the time until its report and the report.
fn run(http: &mut Http, tool: &str, conditions: &[&str], status: &str) -> (Duration, Value) {
    let intent = uuid::Uuid::new_v4().to_string();
    let decision = if conditions.is_empty() { "APPROVED" } else { "CONDITIONAL" };
    let params = json!({
        "intent": {
            "agent_did": "did:a2g:bench:1.0:x", "intent_id": intent, "tool": tool, "arguments": {},
        },
        "verdict": {
            "verdict": decision,
            "intent_id": intent,
            "capability_manifest": {
                "max_memory_mb": 64, "max_cpu_percent": 100, "timeout_seconds": 60, "network_allowed": false,
                "filesystem_scope": ["/data/**"],
            },
            "conditions": conditions,
            "expires_at": "2999-01-01T00:00:00Z",
        },
    });
    call(http, "a2g/execute", &params, status)
}

/// Decides on the changes of a run, and gives the time until the answer.
fn decide(http: &mut Http, method: &str, run: &Value) -> Duration {
    let params = match method {
        "a2g/commit" => json!({ "intent": run["intent_id"], "digest": run["usage"]["effects"]["digest"] }),
        _without_digest => json!({ "intent": run["intent_id"] }),
    };
    call(http, method, &params, "SUCCESS").0
}

/// Calls a method whose result is a report with this status, and gives the time until the answer and the report.
pub(crate) fn call(http: &mut Http, method: &str, params: &Value, status: &str) -> (Duration, Value) {
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let request = post("/jsonrpc", "", &message.to_string());
    let started = Instant::now();
    let answer = http.exchange(&request);
    let took = started.elapsed();
    let mut parsed = serde_json::from_str::<Value>(answer).unwrap();
    assert_eq!(parsed["result"]["status"], status, "{parsed}");
    (took, parsed["result"].take())
}
