//! Guests that want more CPU: they are slowed down, and never ended for it.

use super::bench::{Bench, HARMLESS, Report};
use harness::guests::{Guest, component, wasm};
use harness::{Options, Tool, isolation};
use std::collections::HashMap;
use std::thread::scope;
use std::time::Instant;

/// Computes for so many seconds of wall time.
fn busy(seconds: u64) -> Guest {
    Guest::new(format!("(call $be_busy (i64.const {}))", seconds * 1_000_000_000))
}

/// The same, inside host calls: all the work is the host's.
const BUSY_IN_HOST_CALLS: &str = "(local $end i64)
    (drop (call $clock (i32.const 1) (i64.const 1) (i32.const 32)))
    (local.set $end (i64.add (i64.load (i32.const 32)) (i64.const 3000000000)))
    (loop $more
      (drop (call $random (i32.const 65536) (i32.const 65536)))
      (drop (call $clock (i32.const 1) (i64.const 1) (i32.const 32)))
      (br_if $more (i64.lt_u (i64.load (i32.const 32)) (local.get $end))))";

pub(super) fn assert_held(report: &Report, percent: u32) {
    let used = report.metric("cpu_percent");
    let percent = f64::from(percent);
    // The promise is 10 %, or a point; a machine with other work gets twice that. It may also keep
    // a guest from getting its share.
    assert!(used <= percent * 1.2 + 2.0, "{used} % of {percent} %: {report:?}");
    assert!(used >= percent * 0.3 - 2.0, "{used} % of {percent} %: {report:?}");
    assert_eq!(report.in_force("max_cpu_percent")["granted"], percent);
    assert_eq!(report.in_force("max_cpu_percent")["used"], used);
}

#[test]
fn a_busy_guest_gets_exactly_its_cpu_share() {
    let options = Options::new().set("ceilings.max_random_bytes", 1_000_000_000);
    let guests = [("busy", busy(4)), ("host", Guest::new(BUSY_IN_HOST_CALLS))];
    let bench = Bench::start_with(options, guests).undisturbed();
    let run = |tool: &str, percent: u32| {
        let call = bench.call(tool).grant("max_cpu_percent", percent).grant("timeout_seconds", 60);
        call.send().success()
    };
    scope(|scope| {
        let shares = [10, 25, 50].map(|percent| (percent, scope.spawn(move || run("busy", percent))));
        for (percent, call) in shares {
            assert_held(&call.join().expect("no panic"), percent);
        }
    });
    // CPU time of host calls is charged to the guest.
    assert_held(&run("host", 20), 20);
}

/// A command that does this without end.
fn without_end(what: &str) -> Vec<u8> {
    Guest::new(format!("(loop $more {what} (br $more))")).wasm()
}

/// A command that gives up its turn without end.
fn yields() -> Vec<u8> {
    wasm(
        r#"(module (func $yield (import "wasi_snapshot_preview1" "sched_yield") (result i32))
        (memory (export "memory") 1)
        (func (export "_start") (loop $more (drop (call $yield)) (br $more))))"#,
    )
}

/// A component that calls a function of the executor's own interfaces without end. Its memory begins with the name of a
/// tool and `{}`.
fn asks(interface: &str, declared: &str, function: &str, signature: &str, call: &str) -> Vec<u8> {
    let before = format!(
        r#"(import "a2g:tool/{interface}@0.2.0" (instance $host {declared}))
        (core module $libc
          (memory (export "memory") 1)
          (data (i32.const 0) "{HARMLESS}{{}}")
          (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 32768)))
        (core instance $libc (instantiate $libc))
        (alias core export $libc "memory" (core memory $memory))
        (core func $ask (canon lower (func $host "{function}")
          (memory $memory) (realloc (core func $libc "realloc"))))"#
    );
    component(&before, &[("ask", signature)], &format!("(loop $more {call} (br $more))"))
}

/// The declaration of a function of the interface `calls` that may fail.
fn fallible(more: &str, function: &str, parameters: &str, success: &str) -> String {
    format!(
        r#"(type $e (record (field "code" string) (field "message" string) (field "detail" (option string))))
        (export "tool-error" (type $error (eq $e))) {more}
        (export "{function}" (func {parameters} (result (result {success} (error $error)))))"#
    )
}

/// The forms of a loop without end, each with its scope: a pattern makes a core module a component.
fn loops() -> Vec<(&'static str, Tool, &'static str)> {
    const TREE: &str = "/workspace/**";
    const PATTERN: &str = "/workspace/*.txt";
    let definition = r#"(type $d (record (field "name" string) (field "description" string)
            (field "arguments-schema" string) (field "result-schema" (option string))))
        (export "definition" (type $definition (eq $d)))"#;
    let describe = fallible(definition, "describe", r#"(param "name" string)"#, "$definition");
    let call = fallible("", "call", r#"(param "name" string) (param "arguments" string)"#, "string");
    let progress = r#"(export "progress" (func (param "percent" (option f32)) (param "message" string)))"#;
    let log = r#"(type $l (enum "debug" "info" "warn" "error")) (export "level" (type $level (eq $l)))
        (export "log" (func (param "level" $level) (param "message" string)))"#;
    let name = HARMLESS.len();
    let sleep = "(drop (call $sleep (i64.const 0)))";
    let stat = r#"(drop (call $path_stat (i32.const 3) (i32.const 0) @"no.txt" (i32.const 1024)))"#;
    let refused =
        format!("(call $ask (i32.const 1) (i32.const 3) (i32.const {name}) (i32.const 2) (i32.const 256))");
    let forms = [
        ("polls", without_end(sleep), PATTERN),
        (
            "describes",
            asks(
                "calls",
                &describe,
                "describe",
                "(param i32 i32 i32)",
                &format!("(call $ask (i32.const 0) (i32.const {name}) (i32.const 256))"),
            ),
            TREE,
        ),
        ("is_refused", asks("calls", &call, "call", "(param i32 i32 i32 i32 i32)", &refused), TREE),
        ("yields", yields(), PATTERN),
        ("polls_natively", without_end(sleep), TREE),
        ("yields_natively", yields(), TREE),
        ("computes", without_end(""), PATTERN),
        (
            "reads_the_clock",
            without_end("(drop (call $clock (i32.const 1) (i64.const 1) (i32.const 32)))"),
            PATTERN,
        ),
        ("takes_random", without_end("(drop (call $random (i32.const 1024) (i32.const 8)))"), PATTERN),
        ("stats", without_end(stat), PATTERN),
        ("stats_natively", without_end(stat), TREE),
        ("writes", without_end("(drop (call $write (i32.const 2) (i32.const 0) (i32.const 0)))"), PATTERN),
        (
            "logs",
            asks(
                "host",
                log,
                "log",
                "(param i32 i32 i32)",
                "(call $ask (i32.const 0) (i32.const 0) (i32.const 0))",
            ),
            TREE,
        ),
        (
            "progresses",
            asks(
                "host",
                progress,
                "progress",
                "(param i32 f32 i32 i32)",
                "(call $ask (i32.const 0) (f32.const 0) (i32.const 0) (i32.const 0))",
            ),
            TREE,
        ),
    ];
    forms.map(|(name, wasm, scope)| (name, Tool::command_bytes(name, wasm).calls(&["*"]), scope)).into()
}

/// The CPU time of each thread of a process, in seconds.
fn thread_times(process: u32) -> HashMap<String, f64> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it lives").flatten();
    let time = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanos = text.split_whitespace().next()?.parse::<f64>().ok()?;
        Some((task.file_name().to_string_lossy().into_owned(), nanos / 1e9))
    };
    tasks.filter_map(time).collect()
}

/// Every form of a loop keeps to its share, as the kernel counts it: of the guest's process, or of its thread.
#[test]
fn no_form_of_a_loop_uses_more_than_its_share() {
    let options = Options::new()
        .set("ceilings.max_random_bytes", 1_000_000_000)
        // Logs count to it, and a fast machine would end at the default first.
        .set("ceilings.max_output_bytes", 64 << 20)
        .set("executor.concurrent", 32)
        .set("executor.concurrent_per_agent", 32);
    let loops = loops();
    let bench = Bench::start_tools(options, self::loops().into_iter().map(|(_, tool, _)| tool)).undisturbed();
    let is_inline = isolation() == "inline";
    // More at once would get less than their shares, because a small machine has no more. One second is enough for a large
    // share, which has more tolerance.
    for (percent, at_once, seconds) in [(5, loops.len(), 2), (10, loops.len(), 2), (25, 4, 1), (50, 2, 1)] {
        let max = (f64::from(percent) * 1.1).max(f64::from(percent) + 1.0) + 0.5;
        for batch in loops.chunks(at_once) {
            let began = Instant::now();
            let before = thread_times(bench.process);
            let used = scope(|scope| {
                let started = batch.iter().map(|(name, _, area)| {
                    let call = bench.call(name).scope(area).grant("max_cpu_percent", percent);
                    let call = call.grant("timeout_seconds", seconds);
                    (*name, scope.spawn(move || call.send().limit("time").metric("cpu_percent")))
                });
                let started = started.collect::<Vec<_>>();
                let ended = started.into_iter().map(|(name, run)| (name, run.join().expect("no panic")));
                ended.collect::<Vec<_>>()
            });
            // The clock of a process is the kernel's; that of a thread is read here as well.
            let took = began.elapsed().as_secs_f64();
            let after = thread_times(bench.process);
            let threads = after.iter().filter(|_| is_inline).map(|(thread, time)| {
                ("a thread of the server", (time - before.get(thread).unwrap_or(&0.0)) / took * 100.0)
            });
            let all = used.iter().copied().chain(threads).collect::<Vec<_>>();
            assert!(all.iter().all(|(_, used)| *used <= max), "of {percent} %, at most {max}: {all:?}");
            // A machine with much other work gives them less.
            assert!(used.iter().all(|(_, used)| *used > 0.0), "of {percent} %: {used:?}");
        }
    }
}

#[test]
fn a_share_of_100_percent_is_a_whole_core() {
    let bench = Bench::start([("busy", busy(1))]).undisturbed();
    let run = || bench.call("busy").grant("max_cpu_percent", 100).send().success().metric("cpu_percent");
    // A machine with much other work gives it less.
    let used: Vec<_> = std::iter::repeat_with(run).take(5).collect();
    assert!(used.iter().all(|used| *used <= 102.0), "{used:?} %");
    assert!(used.iter().any(|used| *used > 5.0), "{used:?} %");
}

#[test]
fn a_throttled_guest_takes_longer_and_succeeds() {
    // A fixed amount of work, which takes a few hundred milliseconds of CPU.
    let work = "(local $spin i32)
        (local.set $spin (i32.const 400000000))
        (loop $spinning (br_if $spinning (local.tee $spin (i32.sub (local.get $spin) (i32.const 1)))))";
    let bench = Bench::start([("works", Guest::new(work))]).undisturbed();
    let run = |percent: u32| bench.call("works").grant("max_cpu_percent", percent).send().success();
    let whole = run(100);
    let tenth = run(10);
    // The same work may need several times the CPU time on a busy host that shares its cores with others. A meter
    // that counted the pauses would show ten times as much, and one that missed CPU time next to nothing.
    let cpu_ms = |report: &Report| report.metric("duration_ms") * report.metric("cpu_percent") / 100.0;
    let most = cpu_ms(&whole) * 5.0;
    let least = cpu_ms(&whole) / 5.0;
    assert!((least..most).contains(&cpu_ms(&tenth)), "{whole:?}\n{tenth:?}");
    assert!(tenth.metric("duration_ms") > cpu_ms(&tenth) * 8.0, "{tenth:?}");
    assert!(tenth.metric("cpu_percent") <= 14.0, "{tenth:?}");
}

#[test]
fn a_throttled_guest_is_still_stopped_by_deadline_and_cancel() {
    let bench = Bench::start([("busy", busy(3600))]).undisturbed();
    let answer = bench.call("busy").grant("max_cpu_percent", 1).grant("timeout_seconds", 2).send();
    let report = answer.limit("time");
    assert!(report.metric("duration_ms") < 4000.0, "{report:?}");
    assert!(report.metric("cpu_percent") <= 3.2, "{report:?}");
}
