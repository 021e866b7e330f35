//! Guests that want more of the host than the executor's own ceilings give: random bytes, handles,
//! subscriptions, entries of folders.

use super::bench::{Bench, Call, Report};
use super::guest::{Guest, errno, wasm};
use super::host::most_descriptors;
use crate::harness::{Options, Tool};
use serde_json::{Value, json};
use std::path::Path;

fn spent(used: u64, granted: u64) -> Value {
    json!({ "granted": granted, "used": used, "slack": granted - used, "set_by": "executor" })
}

/// Ends at a ceiling, and says which key to change.
fn ends_at(call: Call<'_>, limit: &str, key: &str, most: u64) {
    let report = call.send().limit(limit);
    let sentence = report.sentence();
    let said = format!("limit of {most}, set by the executor's configuration (`ceilings.{key}`)");
    assert!(sentence.contains(&said), "{sentence}");
    assert_eq!(report.in_force(key)["granted"], most);
}

/// A component that calls a function of `wasi:random` again and again.
fn random_component(interface: &str, function: &str) -> Vec<u8> {
    wasm(&format!(
        r#"(component
        (import "wasi:random/{interface}@0.2.0" (instance $random
          (export "{function}" (func (result u64)))))
        (core func $take (canon lower (func $random "{function}")))
        (core module $m
          (import "host" "take" (func $take (result i64)))
          (func (export "run") (result i32) (local $left i32)
            (local.set $left (i32.const 100000))
            (loop $more
              (drop (call $take))
              (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
            (i32.const 0)))
        (core instance $i (instantiate $m (with "host" (instance (export "take" (func $take))))))
        (func $run (result (result)) (canon lift (core func $i "run")))
        (instance $command (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $command)))"#
    ))
}

#[test]
fn random_bytes_have_a_ceiling() {
    let take = |pieces: &[u32]| {
        let one = |bytes: &u32| format!("(call $note (call $random (i32.const 65536) (i32.const {bytes})))");
        Tool::command_bytes(
            &format!("takes_{}", pieces.iter().sum::<u32>()),
            Guest::new(pieces.iter().map(one).collect::<String>()).memory(2).wasm(),
        )
    };
    let tools = [
        take(&[65_536, 34_464]),
        take(&[65_536, 34_465]),
        Tool::command_bytes("component", random_component("random", "get-random-u64")),
        Tool::command_bytes("insecure", random_component("insecure", "get-insecure-random-u64")),
    ];
    let bench = Bench::start_tools(Options::new().set("ceilings.max_random_bytes", 100_000), tools);
    let report = bench.call("takes_100000").send().success();
    assert_eq!(report.notes(), [0, 0]);
    assert_eq!(report.in_force("max_random_bytes"), &spent(100_000, 100_000));
    for tool in ["takes_100001", "component", "insecure"] {
        ends_at(bench.call(tool), "random_bytes", "max_random_bytes", 100_000);
    }
}

/// A component that makes handles of a resource of its own, which the host knows nothing of.
const OWN_HANDLES: &str = r#"(component
    (type $thing (resource (rep i32)))
    (core func $new (canon resource.new $thing))
    (core module $m
      (import "own" "new" (func $new (param i32) (result i32)))
      (func (export "run") (result i32) (local $left i32)
        (local.set $left (i32.const 100))
        (loop $more
          (drop (call $new (i32.const 7)))
          (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
        (i32.const 0)))
    (core instance $i (instantiate $m (with "own" (instance (export "new" (func $new))))))
    (func $run (result (result)) (canon lift (core func $i "run")))
    (instance $command (export "run" (func $run)))
    (export "wasi:cli/run@0.2.0" (instance $command)))"#;

/// A component that has 50 handles, one of them of the host, and lends that one to a call.
const LENDS: &str = r#"(component
    (import "wasi:io/poll@0.2.0" (instance $poll
      (export "pollable" (type $pollable (sub resource)))
      (export "[method]pollable.ready" (func (param "self" (borrow $pollable)) (result bool)))))
    (alias export $poll "pollable" (type $pollable))
    (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
      (alias outer 1 $pollable (type $outer))
      (export "pollable" (type $pollable (eq $outer)))
      (export "subscribe-duration" (func (param "when" u64) (result (own $pollable))))))
    (type $thing (resource (rep i32)))
    (core func $new (canon resource.new $thing))
    (core func $subscribe (canon lower (func $clock "subscribe-duration")))
    (core func $ready (canon lower (func $poll "[method]pollable.ready")))
    (core module $m
      (import "own" "new" (func $new (param i32) (result i32)))
      (import "host" "subscribe" (func $subscribe (param i64) (result i32)))
      (import "host" "ready" (func $ready (param i32) (result i32)))
      (func (export "run") (result i32) (local $left i32) (local $pollable i32)
        (local.set $pollable (call $subscribe (i64.const 0)))
        (local.set $left (i32.const 49))
        (loop $more
          (drop (call $new (i32.const 7)))
          (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
        (drop (call $ready (local.get $pollable)))
        (i32.const 0)))
    (core instance $i (instantiate $m
      (with "own" (instance (export "new" (func $new))))
      (with "host" (instance (export "subscribe" (func $subscribe)) (export "ready" (func $ready))))))
    (func $run (result (result)) (canon lift (core func $i "run")))
    (instance $command (export "run" (func $run)))
    (export "wasi:cli/run@0.2.0" (instance $command)))"#;

/// A component that names a handle that it never had.
const WRONG_HANDLE: &str = r#"(component
    (type $thing (resource (rep i32)))
    (core func $drop (canon resource.drop $thing))
    (core module $m
      (import "own" "drop" (func $drop (param i32)))
      (func (export "run") (result i32) (call $drop (i32.const 7)) (i32.const 0)))
    (core instance $i (instantiate $m (with "own" (instance (export "drop" (func $drop))))))
    (func $run (result (result)) (canon lift (core func $i "run")))
    (instance $command (export "run" (func $run)))
    (export "wasi:cli/run@0.2.0" (instance $command)))"#;

#[test]
fn handles_have_a_ceiling() {
    let opens = |times: u32| {
        Guest::new(format!(
            r#"(local $left i32)
            (local.set $left (i32.const {times}))
            (loop $more
              (if (call $open (i32.const 3) @"file") (then (unreachable)))
              (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))"#
        ))
        .wasm()
    };
    let tools = [
        Tool::command_bytes("opens_40", opens(40)),
        Tool::command_bytes("opens_60", opens(60)),
        Tool::command_bytes("own", wasm(OWN_HANDLES)),
        Tool::command_bytes("lends", wasm(LENDS)),
        Tool::command_bytes("wrong", wasm(WRONG_HANDLE)),
    ];
    let bench = Bench::start_tools(Options::new().set("ceilings.max_handles", 50), tools);
    std::fs::write(bench.executor.workspace().join("file"), "").expect("a file");
    let call = |tool: &str| bench.call(tool).scope("/workspace/**");
    let report = call("opens_40").send().success();
    assert_eq!(report.in_force("max_handles"), &json!({ "granted": 50, "set_by": "executor" }));
    // The engine refuses each in words of its own: what it cannot name, and what it cannot lend.
    for tool in ["opens_60", "own", "lends"] {
        ends_at(call(tool), "handles", "max_handles", 50);
    }
    call("wrong").send().failure("broke the contract of a host call");
    // A ceiling above what was once the most is given as well.
    let tools = [("opens_1500", opens(1500)), ("opens_2100", opens(2100))]
        .map(|(name, wasm)| Tool::command_bytes(name, wasm));
    let options = Options::new().set("ceilings.max_handles", 2000).set("executor.concurrent", 2);
    let bench = Bench::start_tools(options, tools);
    std::fs::write(bench.executor.workspace().join("file"), "").expect("a file");
    let call = |tool: &str| bench.call(tool).scope("/workspace/**");
    // Inline, four stores share what the process has.
    if most_descriptors() >= 4 * 2000 + 256 {
        call("opens_1500").send().success();
        ends_at(call("opens_2100"), "handles", "max_handles", 2000);
    } else {
        eprintln!("skipped: this machine gives no process so many descriptors");
    }
}

/// A component that polls one pollable, listed so many times.
fn component_poll(times: u32) -> Vec<u8> {
    wasm(&format!(
        r#"(component
        (import "wasi:io/poll@0.2.0" (instance $poll
          (export "pollable" (type $pollable (sub resource)))
          (export "poll" (func (param "in" (list (borrow $pollable))) (result (list u32))))))
        (alias export $poll "pollable" (type $pollable))
        (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
          (alias outer 1 $pollable (type $outer))
          (export "pollable" (type $pollable (eq $outer)))
          (export "subscribe-duration" (func (param "when" u64) (result (own $pollable))))))
        (core module $libc
          (memory (export "memory") 1)
          (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 8192)))
        (core instance $libc (instantiate $libc))
        (core func $poll (canon lower (func $poll "poll")
          (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
        (core func $subscribe (canon lower (func $clock "subscribe-duration")))
        (core module $m
          (import "libc" "memory" (memory 1))
          (import "host" "poll" (func $poll (param i32 i32 i32)))
          (import "host" "subscribe" (func $subscribe (param i64) (result i32)))
          (func (export "run") (result i32) (local $handle i32) (local $left i32)
            (local.set $handle (call $subscribe (i64.const 0)))
            (local.set $left (i32.const {times}))
            (loop $more
              (i32.store (i32.add (i32.const 1024) (i32.shl (local.get $left) (i32.const 2))) (local.get $handle))
              (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
            (call $poll (i32.const 1028) (i32.const {times}) (i32.const 0))
            (i32.const 0)))
        (core instance $i (instantiate $m
          (with "libc" (instance $libc))
          (with "host" (instance (export "poll" (func $poll)) (export "subscribe" (func $subscribe))))))
        (func $run (result (result)) (canon lift (core func $i "run")))
        (instance $command (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $command)))"#
    ))
}

#[test]
fn subscriptions_have_a_ceiling() {
    // A list of equal subscriptions: the monotonic clock, in no time at all.
    let poll = |count: u32| {
        Guest::new(format!(
            "(local $at i32)
            (local.set $at (i32.const 65536))
            (loop $more
              (i32.store offset=16 (local.get $at) (i32.const 1))
              (local.set $at (i32.add (local.get $at) (i32.const 48)))
              (br_if $more (i32.lt_u (local.get $at) (i32.const 70000))))
            (call $note (call $poll (i32.const 65536) (i32.const 80000) (i32.const {count}) (i32.const 8)))"
        ))
        .wasm()
    };
    let tools = [
        Tool::command_bytes("command_5", poll(5)),
        Tool::command_bytes("command_6", poll(6)),
        Tool::command_bytes("component_5", component_poll(5)),
        Tool::command_bytes("component_6", component_poll(6)),
    ];
    let bench = Bench::start_tools(Options::new().set("ceilings.max_subscriptions", 5), tools);
    for tool in ["command_5", "component_5"] {
        let report = bench.call(tool).send().success();
        assert_eq!(report.in_force("max_subscriptions"), &json!({ "granted": 5, "set_by": "executor" }));
    }
    for tool in ["command_6", "component_6"] {
        ends_at(bench.call(tool), "subscriptions", "max_subscriptions", 5);
    }
}

fn fill(folder: &Path, files: u32) {
    std::fs::create_dir(folder).expect("a folder");
    for index in 0..files {
        std::fs::write(folder.join(format!("{index:05}")), "").expect("a file");
    }
}

/// Lists a folder from its start to its end with a buffer of so many bytes, and notes how many whole
/// entries came, and how many of them were no files.
fn lists(folder: &str, buffer: u32) -> String {
    format!(
        r#"(local $cookie i64) (local $at i32) (local $end i32) (local $next i32)
        (local $entries i32) (local $folders i32) (local $whole i32)
        (if (call $open_dir (i32.const 3) @"{folder}") (then (unreachable)))
        (loop $again
          (if (call $fd_readdir (global.get $fd) (i32.const 65536) (i32.const {buffer}) (local.get $cookie) (i32.const 8))
            (then (unreachable)))
          (local.set $at (i32.const 65536))
          (local.set $end (i32.add (local.get $at) (i32.load (i32.const 8))))
          (local.set $whole (i32.const 0))
          (block $cut
            (loop $each
              (br_if $cut (i32.gt_u (i32.add (local.get $at) (i32.const 24)) (local.get $end)))
              (local.set $next
                (i32.add (i32.add (local.get $at) (i32.const 24)) (i32.load offset=16 (local.get $at))))
              (br_if $cut (i32.gt_u (local.get $next) (local.get $end)))
              (local.set $cookie (i64.load (local.get $at)))
              (local.set $whole (i32.const 1))
              (local.set $entries (i32.add (local.get $entries) (i32.const 1)))
              (if (i32.ne (i32.load8_u offset=20 (local.get $at)) (i32.const 4))
                (then (local.set $folders (i32.add (local.get $folders) (i32.const 1)))))
              (local.set $at (local.get $next))
              (br $each)))
          (br_if $again (local.get $whole)))
        (call $note (local.get $entries))
        (call $note (local.get $folders))"#
    )
}

#[test]
fn directory_entries_have_a_ceiling() {
    let guests = [
        ("lists_fifty", Guest::new(lists("fifty", 65_536)).memory(2)),
        ("lists_fifty_in_pieces", Guest::new(lists("fifty", 100)).memory(2)),
        ("lists_one_more", Guest::new(lists("one_more", 65_536)).memory(2)),
        ("lists_one_more_in_pieces", Guest::new(lists("one_more", 100)).memory(2)),
        (
            "lists_what_is_no_folder",
            Guest::new(
                r#"(call $note (call $open (i32.const 3) @"file"))
            (call $note (call $fd_readdir (global.get $fd) (i32.const 65536) (i32.const 100) (i64.const 0) (i32.const 8)))
            (call $note (call $fd_readdir (i32.const 99) (i32.const 65536) (i32.const 100) (i64.const 0) (i32.const 8)))
            (call $note (call $fd_readdir (i32.const 1) (i32.const 65536) (i32.const 100) (i64.const 0) (i32.const 8)))"#,
            ),
        ),
    ];
    let tools = guests.into_iter().map(|(name, guest)| Tool::command_bytes(name, guest.wasm()));
    let bench = Bench::start_tools(Options::new().set("ceilings.max_directory_entries", 50), tools);
    let workspace = bench.executor.workspace();
    fill(&workspace.join("fifty"), 50);
    fill(&workspace.join("one_more"), 51);
    std::fs::write(workspace.join("file"), "").expect("a file");
    let call = |tool: &str| bench.call(tool).scope("/workspace/**");
    for tool in ["lists_fifty", "lists_fifty_in_pieces"] {
        let report = call(tool).send().success();
        // With `.` and `..`, which cost nothing.
        assert_eq!(report.notes(), [52, 2], "{tool}");
        assert_eq!(report.in_force("max_directory_entries"), &spent(50, 50), "{tool}");
    }
    for tool in ["lists_one_more", "lists_one_more_in_pieces"] {
        ends_at(call(tool), "directory_entries", "max_directory_entries", 50);
    }
    let not_a_folder = call("lists_what_is_no_folder").send().success();
    assert_eq!(not_a_folder.notes(), [0, errno::BADF, errno::BADF, errno::BADF]);
}

#[test]
fn component_directory_listings_have_the_same_ceiling() {
    let bench = Bench::start_typed(Options::new().set("ceilings.max_directory_entries", 50));
    let workspace = bench.executor.workspace();
    fill(&workspace.join("fifty"), 50);
    fill(&workspace.join("one_more"), 51);
    let call = |folder: &str| {
        let arguments = json!({ "path": format!("/workspace/{folder}") });
        bench.call("list_directory").scope("/workspace/**").arguments(arguments)
    };
    let report = call("fifty").send().success();
    assert_eq!(report.0["result"]["entries"].as_array().map(Vec::len), Some(50));
    assert_eq!(report.in_force("max_directory_entries"), &spent(50, 50));
    ends_at(call("one_more"), "directory_entries", "max_directory_entries", 50);
}

#[test]
fn the_host_reads_directory_entries_on_demand() {
    // Five hundred times the first entries of twenty thousand: whole, each would take the host a
    // twentieth of a second and more.
    let peeks = r#"(local $left i32)
        (local.set $left (i32.const 500))
        (if (call $open_dir (i32.const 3) @"large") (then (unreachable)))
        (loop $more
          (if (call $fd_readdir (global.get $fd) (i32.const 65536) (i32.const 200) (i64.const 0) (i32.const 8))
            (then (unreachable)))
          (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))"#;
    let bench = Bench::start([("peeks", Guest::new(peeks).memory(2))]);
    fill(&bench.executor.workspace().join("large"), 20_000);
    let report = bench.call("peeks").scope("/workspace/**").grant("timeout_seconds", 5).send().success();
    let listed = report.in_force("max_directory_entries")["used"].as_u64().expect("a number");
    assert!((1500..=3500).contains(&listed), "{listed}");
}

/// Counts down from so many.
fn counts(times: u32) -> Guest {
    Guest::new(format!(
        "(local $left i32)
        (local.set $left (i32.const {times}))
        (loop $more (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))"
    ))
}

#[test]
fn fuel_is_limited_and_metered() {
    let guests = [
        ("counts", counts(100_000)),
        ("counts_on", counts(2_000_000)),
        ("traps", Guest::new("(unreachable)")),
        ("never_ends", Guest::new("(loop $more (br $more))")),
        ("sleeps", Guest::new("(drop (call $sleep (i64.const 3600000000000)))")),
    ];
    let granted = 5_000_000_u64;
    let bench = Bench::start_with(Options::new().set("ceilings.max_fuel", granted), guests);
    let fuel = |report: &Report| report.in_force("max_fuel").clone();
    let first = bench.call("counts").send().success();
    let used = first.in_force("max_fuel")["used"].as_u64().expect("it is counted");
    // Five instructions each time round, and a few more.
    assert!((500_000..500_100).contains(&used), "{used}");
    assert_eq!(fuel(&first), spent(used, granted));
    for _ in 0..5 {
        assert_eq!(fuel(&bench.call("counts").send().success()), spent(used, granted), "each time the same");
    }
    assert!(
        bench.call("traps").send().failure("unreachable").in_force("max_fuel")["used"].as_u64() < Some(100)
    );
    for tool in ["counts_on", "never_ends"] {
        let report = bench.call(tool).send().limit("fuel");
        assert_eq!(fuel(&report), spent(granted, granted), "{tool}");
        assert_eq!(
            report.sentence(),
            "the tool reached its fuel limit of 5000000, set by the executor's configuration (`ceilings.max_fuel`)"
        );
    }
    // The stopped runs had not been counted yet.
    let stopped = bench.call("sleeps").grant("timeout_seconds", 1).send().limit("time");
    let unknown = json!({ "granted": granted, "used": null, "slack": null, "set_by": "executor" });
    assert_eq!(fuel(&stopped), unknown);
    let much = 1_u64 << 53;
    let guests = [("never_ends", Guest::new("(loop $more (br $more))"))];
    let bench = Bench::start_with(Options::new().set("ceilings.max_fuel", much), guests);
    let stopped = bench.call("never_ends").grant("timeout_seconds", 1).send().limit("time");
    let unknown = json!({ "granted": much, "used": null, "slack": null, "set_by": "executor" });
    assert_eq!(fuel(&stopped), unknown);
}

#[test]
fn fuel_is_counted_for_components_and_only_under_a_ceiling() {
    let hash = |bench: &Bench| {
        std::fs::write(bench.executor.workspace().join("file"), [7; 100_000]).expect("a file");
        let arguments = json!({ "path": "/workspace/file", "algorithm": "sha256" });
        bench.call("hash_file").scope("/workspace/**").arguments(arguments).send()
    };
    let metered = Bench::start_typed(Options::new().set("ceilings.max_fuel", 1_000_000_000_u64));
    let used = || hash(&metered).success().in_force("max_fuel")["used"].as_u64();
    let first = used();
    assert!(first > Some(100_000), "{first:?}");
    assert_eq!((used(), used()), (first, first));
    hash(&Bench::start_typed(Options::new().set("ceilings.max_fuel", 100_000_u64))).limit("fuel");
    let report = hash(&Bench::start_typed(Options::new())).success();
    assert!(report.0["usage"]["limits"].get("max_fuel").is_none(), "{report:?}");
}
