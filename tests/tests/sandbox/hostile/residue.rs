//! Guests that look for what another run has left: memory, globals, tables, descriptors, random numbers.

use super::bench::Bench;
use harness::guests::{Guest, errno};
use std::collections::BTreeSet;

#[test]
fn a_run_finds_no_state_of_the_previous_run() {
    let body = r#"
        (call $note (i32.load (i32.const 131000)))
        (call $note (i32.load (i32.const 300000)))
        (call $note (global.get $kept))
        (call $note (i32.eqz (ref.is_null (table.get $t (i32.const 1)))))
        (call $note (call $fd_fdstat (i32.const 5) (i32.const 512)))
        (i32.store (i32.const 131000) (i32.const 77))
        (i32.store (i32.const 300000) (i32.const 77))
        (global.set $kept (i32.const 77))
        (table.set $t (i32.const 1) (ref.func $f))
        (if (call $create (i32.const 3) @"file") (then (unreachable)))"#;
    let beside =
        "(global $kept (mut i32) (i32.const 0)) (table $t 2 funcref) (func $f) (elem declare func $f)";
    let bench = Bench::start([("looks", Guest::new(body).beside(beside).memory(5))]);
    for run in 0..6 {
        let report = bench.call("looks").scope("/workspace/**").send().success();
        assert_eq!(report.notes(), [0, 0, 0, 0, errno::BADF], "run {run}");
    }
}

#[test]
fn two_runs_get_different_random_numbers() {
    // Processes that wait are copies of one, which must not make their numbers the same.
    let draws = "(drop (call $random (i32.const 512) (i32.const 4))) (call $note (i32.load (i32.const 512)))";
    let bench = Bench::start([("draws", Guest::new(draws))]);
    let drawn: BTreeSet<_> = (0..24).flat_map(|_| bench.call("draws").send().success().notes()).collect();
    // That two of 24 are the same by chance happens once in fifteen million times.
    assert_eq!(drawn.len(), 24, "{drawn:?}");
}
