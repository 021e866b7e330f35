//! Guests that want more CPU: they are slowed down, and never ended for it.

use super::bench::{Bench, Report};
use super::guest::Guest;
use crate::harness::Options;
use std::thread::scope;

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

fn assert_held(report: &Report, percent: u32) {
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
    let (whole, tenth) = (run(100), run(10));
    // The same work may need several times the CPU time on a busy host that shares its cores with others. A meter
    // that counted the pauses would show ten times as much, and one that missed CPU time next to nothing.
    let cpu_ms = |report: &Report| report.metric("duration_ms") * report.metric("cpu_percent") / 100.0;
    let (most, least) = (cpu_ms(&whole) * 5.0, cpu_ms(&whole) / 5.0);
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
