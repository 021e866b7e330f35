//! Guests that want more of the host than the executor's own ceilings give: random bytes, handles,
//! subscriptions, entries of folders.

use super::bench::{Bench, Call, Report};
use super::host::{most_descriptors, opens};
use harness::guests::{Guest, SUBSCRIBE, component, component_poll, errno, poll, pollables, repeat};
use harness::{Options, Tool, guest, print_skipped};
use serde_json::{Value, json};
use std::path::Path;

pub(super) fn spent(used: u64, granted: u64) -> Value {
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
    let before = format!(
        r#"(import "wasi:random/{interface}@0.2.0" (instance $random
          (export "{function}" (func (result u64)))))
        (core func $take (canon lower (func $random "{function}")))"#
    );
    component(&before, &[("take", "(result i64)")], &repeat("", 100_000, "(drop (call $take))"))
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

#[test]
fn artifacts_have_a_ceiling() {
    let tool = Tool::typed_bytes("hostile_artifact", guest("hostile_artifact"));
    let bench = Bench::start_tools(Options::new().set("ceilings.max_artifacts", 4), [tool]);
    // The tool hands out each artifact twice: whole and in pieces.
    let hands_out = |count: usize| {
        let artifact = |number: usize| json!({ "name": number.to_string(), "mime": "text/plain" });
        let artifacts = (0..count).map(artifact).collect::<Vec<_>>();
        bench.call("hostile_artifact").arguments(json!({ "artifacts": artifacts }))
    };
    let report = hands_out(2).send().success();
    assert_eq!(report.in_force("max_artifacts"), &spent(4, 4));
    ends_at(hands_out(3), "artifacts", "max_artifacts", 4);
}

/// A resource of a component's own, which the host knows nothing of.
const THING: &str = r#"(type $thing (resource (rep i32)))
    (core func $new (canon resource.new $thing))
    (core func $drop (canon resource.drop $thing))"#;

#[test]
fn handles_have_a_ceiling() {
    let opens = |times: u32| Guest::new(opens(times)).wasm();
    let new = ("new", "(param i32) (result i32)");
    let ready = r#"(export "[method]pollable.ready" (func (param "self" (borrow $pollable)) (result bool)))"#;
    let lendable = format!(
        r#"{THING} {} (core func $ready (canon lower (func $poll "[method]pollable.ready")))"#,
        pollables(ready)
    );
    // It has 50 handles, one of them of the host, and lends that one to a call.
    let subscribe = "(local.set $p (call $subscribe (i64.const 0)))";
    let lends = repeat(subscribe, 49, "(drop (call $new (i32.const 7)))");
    let lends = format!("(local $p i32) {lends} (drop (call $ready (local.get $p)))");
    let lends = component(&lendable, &[new, SUBSCRIBE, ("ready", "(param i32) (result i32)")], &lends);
    let own = component(THING, &[new], &repeat("", 100, "(drop (call $new (i32.const 7)))"));
    // It names a handle that it never had.
    let wrong = component(THING, &[("drop", "(param i32)")], "(call $drop (i32.const 7))");
    let tools = [
        Tool::command_bytes("opens_40", opens(40)),
        Tool::command_bytes("opens_60", opens(60)),
        Tool::command_bytes("own", own),
        Tool::command_bytes("lends", lends),
        Tool::command_bytes("wrong", wrong),
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
        print_skipped("this machine gives no process so many descriptors");
    }
}

#[test]
fn subscriptions_have_a_ceiling() {
    let poll = |count: u32| Guest::new(poll(count)).wasm();
    let tools = [
        Tool::command_bytes("command_5", poll(5)),
        Tool::command_bytes("command_6", poll(6)),
        Tool::command_bytes("component_5", component_poll(5, 1)),
        Tool::command_bytes("component_6", component_poll(6, 1)),
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
    let peeks = repeat(
        r#"(if (call $open_dir (i32.const 3) @"large") (then (unreachable)))"#,
        500,
        "(if (call $fd_readdir (global.get $fd) (i32.const 65536) (i32.const 200) (i64.const 0) (i32.const 8))
          (then (unreachable)))",
    );
    let bench = Bench::start([("peeks", Guest::new(peeks).memory(2))]);
    fill(&bench.executor.workspace().join("large"), 20_000);
    let report = bench.call("peeks").scope("/workspace/**").grant("timeout_seconds", 5).send().success();
    let listed = report.in_force("max_directory_entries")["used"].as_u64().expect("a number");
    assert!((1500..=3500).contains(&listed), "{listed}");
}

#[test]
fn fuel_is_limited_and_metered() {
    let guests = [
        ("counts", Guest::new(repeat("", 100_000, ""))),
        ("counts_on", Guest::new(repeat("", 2_000_000, ""))),
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
