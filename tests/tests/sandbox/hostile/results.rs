//! Results that would take many times their length if the server made values of them.

use super::bench::Bench;
use harness::guests::{Guest, repeat};
use harness::{Options, eventually};

/// Memory that the server may take beside its own while one such result passes through, in MB.
const MAX_GROWTH_MB: u64 = 40;
/// The part of it that may be left some seconds later, in KiB.
const MAX_LEFT_KIB: u64 = 12 << 10;

/// Answers a list of 300,000 objects: as values they would take 200 MB.
fn objects() -> Guest {
    let chunk = r"{\22\22:0},".repeat(1000);
    let (open, more) = (r#"(call $say @"[")"#, format!(r#"(call $say @"{chunk}")"#));
    Guest::new(repeat(open, 300, &more) + r#"(call $say @"0]")"#).silent()
}

#[test]
fn the_memory_of_a_large_result_is_bounded_and_released() {
    let options = Options::new().set("ceilings.max_output_bytes", 8 << 20);
    let bench = Bench::start_with(options, [("objects", objects())]);
    bench.assert_well("the first run");
    let before = bench.status("VmRSS");
    let one = || {
        let report = bench.call("objects").grant("timeout_seconds", 60).send().success();
        assert_eq!(report.0["result"].as_array().map(Vec::len), Some(300_001));
    };
    let grown = bench.peak_since(one);
    assert!(grown < MAX_GROWTH_MB, "2.1 MB of result made the server grow by {grown} MB");
    let grown = bench.peak_since(|| std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(one)))));
    assert!(grown < 2 * MAX_GROWTH_MB, "three of them made the server grow by {grown} MB");
    eventually("the memory goes back to the system", || {
        (bench.status("VmRSS") < before + MAX_LEFT_KIB).then_some(())
    });
}

#[test]
fn output_is_limited_to_1_mib_unless_the_operator_allows_more() {
    let bench = Bench::start([("objects", objects())]);
    let report = bench.call("objects").send().limit("output");
    let limit = report.in_force("max_output_bytes");
    assert_eq!((&limit["granted"], &limit["set_by"]), (&(1 << 20).into(), &"executor".into()));
}
