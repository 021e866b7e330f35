//! Guests that want more memory: one limit over everything that a store holds.

use super::bench::{Bench, CallAnswer};
use harness::guests::{Guest, repeat};

/// Result of a refused `memory.grow` or `table.grow`.
const REFUSED: u64 = 0xffff_ffff;

/// Grows to the 16 pages of one MB, and then by one page more.
const GROWS_TO_ONE_MB_AND_ON: &str = "
    (call $note (memory.grow (i32.const 14)))
    (call $note (memory.grow (i32.const 1)))";

fn one_mb(bench: &Bench, tool: &str) -> CallAnswer {
    bench.call(tool).grant("max_memory_mb", 1).send()
}

#[test]
fn memory_grows_to_exactly_its_limit() {
    let bench = Bench::start([
        ("copes", Guest::new(GROWS_TO_ONE_MB_AND_ON)),
        ("traps", Guest::new(format!("{GROWS_TO_ONE_MB_AND_ON} (unreachable)"))),
        ("exits", Guest::new(format!("{GROWS_TO_ONE_MB_AND_ON} (call $exit (i32.const 3))"))),
        ("only_traps", Guest::new("(drop (memory.grow (i32.const 14))) (unreachable)")),
    ]);
    let report = one_mb(&bench, "copes").success();
    assert_eq!(report.notes(), [2, REFUSED], "a refused growth is -1, and the guest may cope with it");
    assert_eq!(report.metric("memory_used_mb"), 1.0);
    assert_eq!(report.in_force("max_memory_mb")["used"], 1);
    assert_eq!(report.in_force("max_memory_mb")["slack"], 0);

    for tool in ["traps", "exits"] {
        let report = one_mb(&bench, tool).limit("memory");
        assert_eq!(report.sentence(), "the tool reached its memory limit of 1 MB, set by the verdict");
        assert_eq!(report.metric("memory_used_mb"), 1.0);
        assert_eq!(report.in_force("max_memory_mb")["granted"], 1);
        assert_eq!(report.in_force("max_memory_mb")["set_by"], "verdict");
    }
    // A trap alone is not blamed on the memory.
    one_mb(&bench, "only_traps").failure("unreachable");
    bench.assert_well("guests at their memory limit");
}

#[test]
fn peak_memory_is_rounded_up_to_the_next_mb() {
    let bench = Bench::start([
        ("sixteen", Guest::new("").memory(16)),
        ("seventeen", Guest::new("").memory(17)),
        ("none_touched", Guest::new("").memory(2)),
    ]);
    let used =
        |tool: &str| bench.call(tool).grant("max_memory_mb", 8).send().success().metric("memory_used_mb");
    assert_eq!(used("sixteen"), 1.0);
    assert_eq!(used("seventeen"), 2.0);
    assert_eq!(used("none_touched"), 1.0);
}

#[test]
fn a_module_with_initial_memory_over_the_limit_never_runs() {
    let bench = Bench::start([
        ("fits", Guest::new("").memory(16)),
        ("does_not", Guest::new("").memory(17)),
        ("four_gib", Guest::new("").memory(65536)),
    ]);
    one_mb(&bench, "fits").success();
    one_mb(&bench, "does_not").limit("memory");
    one_mb(&bench, "four_gib").limit("memory");
    bench.assert_well("memories that do not fit");
}

#[test]
fn memory_usage_is_summed_over_all_memories() {
    let three_more = "(memory $a 1) (memory $b 1) (memory $c 1)";
    let body = "
        (call $note (memory.grow $c (i32.const 11)))
        (call $note (memory.grow $a (i32.const 1)))
        (call $note (memory.grow $b (i32.const 1)))
        (call $note (memory.grow (i32.const 1)))";
    let bench = Bench::start([
        ("copes", Guest::new(body).beside(three_more)),
        ("traps", Guest::new(format!("{body} (unreachable)")).beside(three_more)),
        ("too_much_at_once", Guest::new("").beside("(memory $a 14) (memory $b 1)")),
    ]);
    let report = one_mb(&bench, "copes").success();
    assert_eq!(report.notes(), [1, REFUSED, REFUSED, REFUSED]);
    assert_eq!(report.metric("memory_used_mb"), 1.0);
    one_mb(&bench, "traps").limit("memory");
    one_mb(&bench, "too_much_at_once").limit("memory");
}

#[test]
fn table_elements_count_as_memory() {
    // Eight pages are half a MB; 65,536 elements of eight bytes are the other half.
    let table = "(table $t 0 funcref)";
    let grow = |by: u32| format!("(call $note (table.grow $t (ref.null func) (i32.const {by})))");
    let grows = grow(65_536) + &grow(1) + "(call $note (memory.grow (i32.const 1)))";
    let bench = Bench::start([
        ("copes", Guest::new(&grows).memory(8).beside(table)),
        ("traps", Guest::new(grows + "(unreachable)").memory(8).beside(table)),
        ("initial", Guest::new("").memory(8).beside("(table 65537 funcref)")),
    ]);
    let report = one_mb(&bench, "copes").success();
    assert_eq!(report.notes(), [0, REFUSED, REFUSED]);
    assert_eq!(report.metric("memory_used_mb"), 1.0);
    one_mb(&bench, "traps").limit("memory");
    one_mb(&bench, "initial").limit("memory");
}

#[test]
fn a_growth_that_fails_within_the_limit_is_not_charged_or_reported() {
    // The first memory may have four pages by its own declaration. Growing it over that fails after
    // the limit allowed it, a hundred times; the second memory then still gets all that is left.
    let other = "(memory $other 1) (table $t 0 100 funcref)";
    let fails = |grow: &str| {
        let tries = format!("(if (i32.ne ({grow}) (i32.const -1)) (then (unreachable)))");
        repeat("", 100, &tries) + "(call $note (memory.grow $other (i32.const 13)))"
    };
    let body = fails("memory.grow (i32.const 3)");
    let table = fails("table.grow $t (ref.null func) (i32.const 101)");
    let bench = Bench::start([
        ("memory", Guest::new(body).memory("2 4").beside(other)),
        ("table", Guest::new(table).memory("2 4").beside(other)),
        ("traps", Guest::new("(drop (memory.grow (i32.const 3))) (unreachable)").memory("2 4")),
    ]);
    assert_eq!(one_mb(&bench, "memory").success().notes(), [1]);
    assert_eq!(one_mb(&bench, "table").success().notes(), [1]);
    one_mb(&bench, "traps").failure("unreachable");
}

#[test]
fn a_failed_growth_refunds_exactly_its_charge() {
    // Grows, and then fails by its own maximum in every way that there is, hoping that the failure
    // takes the growth before it off the bill.
    let body = "
        (call $note (memory.grow $other (i32.const 7)))
        (drop (memory.grow (i32.const 1)))
        (drop (memory.grow (i32.const 65535)))
        (drop (memory.grow (i32.const -1)))
        (drop (table.grow $t (ref.null func) (i32.const 101)))
        (drop (table.grow $t (ref.null func) (i32.const -1)))
        (call $note (memory.grow $other (i32.const 7)))
        (call $note (memory.grow $other (i32.const 6)))
        (call $note (memory.grow $other (i32.const 1)))";
    let beside = "(memory $other 1) (table $t 0 100 funcref)";
    let bench = Bench::start([("cheats", Guest::new(body).memory("2 2").beside(beside))]);
    let report = one_mb(&bench, "cheats").success();
    assert_eq!(report.notes(), [1, REFUSED, 8, REFUSED]);
    assert_eq!(report.metric("memory_used_mb"), 1.0);
}

#[test]
fn guests_at_their_memory_limit_do_not_affect_others() {
    let hold = "(drop (memory.grow (i32.const 14))) (drop (memory.grow (i32.const 1))) \
                (drop (call $sleep (i64.const 1000000000)))";
    let bench = Bench::start([("holds", Guest::new(hold))]);
    std::thread::scope(|scope| {
        let holders: Vec<_> = (0..4).map(|_| scope.spawn(|| one_mb(&bench, "holds").success())).collect();
        bench.assert_well("neighbours at their memory limit");
        for holder in holders {
            assert_eq!(holder.join().expect("no panic").metric("memory_used_mb"), 1.0);
        }
    });
}
