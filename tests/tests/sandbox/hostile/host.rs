//! Guests that want the host's own memory, descriptors and threads.

use super::bench::Bench;
use harness::guests::{Guest, SUBSCRIBE, component, component_poll, errno, poll, pollables, repeat};
use harness::{Options, Tool, eventually};
use std::time::Duration;

#[test]
fn random_bytes_are_limited_per_call() {
    let ask = |bytes: u64| format!("(call $note (call $random (i32.const 65536) (i32.const {bytes})))");
    let bench = Bench::start([
        ("some", Guest::new(ask(65_536)).memory(2)),
        ("one_more", Guest::new(ask(65_537)).memory(3)),
        ("a_gib", Guest::new(ask(1 << 30)).memory(3)),
        ("a_gib_that_fits", Guest::new(ask(1 << 30)).memory(16_386)),
    ]);
    assert_eq!(bench.call("some").send().success().notes(), [0]);
    for tool in ["one_more", "a_gib"] {
        let grown = bench.peak_since(|| drop(bench.call(tool).send().failure("the tool trapped: ")));
        assert!(grown < 64, "{tool}: the server grew by {grown} MB");
    }
    bench.call("a_gib_that_fits").send().limit("memory");
}

#[test]
fn a_poll_of_a_hundred_thousand_subscriptions_is_refused() {
    let one = |count: i32| {
        format!(
            "(call $note (call $poll (i32.const 65536) (i32.const 65536) (i32.const {count}) (i32.const 8)))"
        )
    };
    // One slot, so that the cap on handles is not what refuses a poll.
    let options = Options::new().set("executor.concurrent", 1);
    let guests = [
        ("most", Guest::new(poll(128)).memory(180)),
        ("one_more", Guest::new(poll(129)).memory(180)),
        ("ten_times", Guest::new(poll(1280)).memory(180)),
        ("far_more", Guest::new(poll(100_000)).memory(180)),
        ("none", Guest::new(one(0))),
        ("negative", Guest::new(one(-1))),
    ];
    let bench = Bench::start_with(options, guests);
    assert_eq!(bench.call("most").send().success().notes(), [0]);
    for tool in ["one_more", "ten_times", "far_more", "negative"] {
        let grown = bench.peak_since(|| drop(bench.call(tool).send().limit("subscriptions")));
        // The guest's own memory of eleven MB is the server's too.
        assert!(grown < 48, "{tool}: the server grew by {grown} MB");
    }
    assert_eq!(bench.call("none").send().success().notes(), [errno::INVAL]);
}

#[test]
fn one_host_call_copies_a_bounded_number_of_bytes() {
    // 16 MiB are the most that one call may take out of a guest.
    let writes = |bytes: u32| {
        Guest::new(format!(
            r#"(drop (call $create (i32.const 3) @"file"))
            (call $note (call $write (global.get $fd) (i32.const 65536) (i32.const {bytes})))
            (call $note (i32.load (i32.const 8)))"#
        ))
        .memory(600)
    };
    let bench = Bench::start([("fits", writes(15 << 20)), ("does_not", writes(17 << 20))]);
    let call = |tool: &str| bench.call(tool).scope("/workspace/**").send();
    assert_eq!(call("fits").success().notes(), [0, 15 << 20]);
    std::fs::remove_file(bench.executor.workspace().join("file")).expect("it was written");
    assert_eq!(call("does_not").success().notes(), [errno::NOMEM, 0]);
    let written = std::fs::metadata(bench.executor.workspace().join("file")).expect("it was made").len();
    assert_eq!(written, 0);
}

#[test]
fn a_component_cannot_exhaust_host_memory_by_polling() {
    let times = [100, 100_000, 4_000_000, 12_000_000];
    let polls = |times: u32| Tool::command_bytes(&format!("polls_{times}"), component_poll(times, 2000));
    let bench = Bench::start_tools(Options::new(), times.map(polls));
    bench.call("polls_100").send().success();
    for times in &times[1..] {
        let grown = bench.peak_since(|| {
            bench.call(&format!("polls_{times}")).grant("timeout_seconds", 20).send();
        });
        // The guest's own memory of 125 MiB is touched for four bytes a time.
        let own = (u64::from(*times) * 4) >> 20;
        assert!(grown < own + 160, "{times}: the server grew by {grown} MB");
        bench.assert_well("a component that polls");
    }
}

#[test]
fn a_component_holds_a_bounded_number_of_handles() {
    let hoards = "(loop $more (drop (call $subscribe (i64.const 0))) (br $more))";
    let hoards = component(&pollables(""), &[SUBSCRIBE], hoards);
    let bench = Bench::start_tools(Options::new(), [Tool::command_bytes("hoards", hoards)]);
    let grown = bench.peak_since(|| drop(bench.call("hoards").send().limit("handles")));
    assert!(grown < 32, "the server grew by {grown} MB");
    bench.assert_well("a component that hoards handles");
}

/// Opens a file so many times and keeps it open.
pub(super) fn opens(times: u32) -> String {
    repeat("", times.into(), r#"(if (call $open (i32.const 3) @"file") (then (unreachable)))"#)
}

/// Opens a file again and again until that is refused, and notes how often that went well.
const HOARDS: &str = r#"(local $opened i32)
    (block $refused
      (loop $more
        (br_if $refused (call $open (i32.const 3) @"file"))
        (local.set $opened (i32.add (local.get $opened) (i32.const 1)))
        (br_if $more (i32.lt_u (local.get $opened) (i32.const 5000)))))
    (call $note (local.get $opened))"#;

#[test]
fn descriptors_are_limited_and_released() {
    let holds = format!("{} (drop (call $sleep (i64.const 3600000000000)))", opens(200));
    // Few slots, so that each may have all of the cap on any machine.
    let bench = Bench::start_with(
        Options::new().set("executor.isolation", "inline").set("executor.concurrent", 4),
        [("hoards", Guest::new(HOARDS)), ("holds", Guest::new(holds)), ("fits", Guest::new(opens(900)))],
    );
    std::fs::write(bench.executor.workspace().join("file"), "").expect("a file");
    let call = |tool: &str| bench.call(tool).scope("/workspace/**").grant("timeout_seconds", 3);
    // The first run of a tool opens what is kept for the next ones.
    for tool in ["hoards", "holds", super::bench::HARMLESS] {
        call(tool).send();
    }
    let descriptors = bench.descriptors();
    let threads = bench.status("Threads");

    if most_descriptors() >= 8192 {
        call("fits").send().success();
    }
    // The guest asks for five thousand, and is ended at its cap.
    let report = call("hoards").send().limit("handles");
    assert!(report.sentence().contains("open files and handles limit of "), "{}", report.sentence());
    // Some guests hold what they have until their deadline, and give it back.
    std::thread::scope(|scope| {
        // Long enough to be seen together, also on a busy machine.
        let held = || call("holds").grant("timeout_seconds", 15).send().limit("time");
        let holders: Vec<_> = (0..3).map(|_| scope.spawn(held)).collect();
        // Three times two hundred, but for what was on its way out when it was counted before.
        eventually("the guests hold theirs", || (bench.descriptors() >= descriptors + 580).then_some(()));
        bench.assert_well("guests that hold descriptors");
        holders.into_iter().for_each(|holder| drop(holder.join().expect("no panic")));
    });
    eventually("the descriptors are back", || (bench.descriptors() <= descriptors + 8).then_some(()));
    assert!(bench.status("Threads") <= threads + 8, "{threads} threads, then {}", bench.status("Threads"));
}

/// Number of descriptors that a process of this machine may have.
pub(super) fn most_descriptors() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.maximum.unwrap_or(u64::MAX)
}

#[test]
fn guests_that_hoard_descriptors_do_not_starve_the_server() {
    // As many guests as can run at once, and each takes a thousand or what it can get, and keeps it.
    // Together they ask for more than most machines let one process have.
    let hoards = r#"(local $left i32)
        (local.set $left (i32.const 1000))
        (block $refused
          (loop $more
            (br_if $refused (call $open (i32.const 3) @"file"))
            (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1))))))
        (drop (call $sleep (i64.const 3600000000000)))"#;
    let bench = Bench::start_with(
        Options::new().set("executor.isolation", "inline").set("executor.concurrent", 64),
        [("hoards", Guest::new(hoards))],
    );
    std::fs::write(bench.executor.workspace().join("file"), "").expect("a file");
    let began = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..63 {
            let call = bench.call("hoards").scope("/workspace/**").grant("timeout_seconds", 20);
            scope.spawn(|| call.send());
        }
        let well = |_| bench.assert_well("guests that hoard descriptors");
        (0..20).for_each(well);
    });
    assert!(began.elapsed() < Duration::from_secs(15), "no answer while guests hoard: {:?}", began.elapsed());
}

#[test]
fn a_thousand_short_runs_leak_no_resources() {
    let guests = [
        ("traps", Guest::new("(unreachable)")),
        ("grows", Guest::new("(drop (memory.grow (i32.const 500))) (memory.fill (i32.const 0) (i32.const 1) (i32.const 9000000)) (unreachable)").memory(2)),
    ];
    let bench = Bench::start(guests);
    let round = |times: u32| {
        for _ in 0..times {
            bench.call("traps").send().failure("unreachable");
            bench.call("grows").send();
        }
    };
    round(100);
    let memory = bench.status("VmRSS") >> 10;
    let descriptors = bench.descriptors();
    round(400);
    let grown = (bench.status("VmRSS") >> 10).saturating_sub(memory);
    assert!(grown < 64, "the server grew by {grown} MB");
    let now = bench.descriptors();
    assert!(now <= descriptors + 4, "{descriptors} descriptors, then {now}");
}

#[test]
fn a_large_folder_is_read_within_the_deadline() {
    let reads = r#"(local $times i32)
        (drop (call $open_dir (i32.const 3) @"large"))
        (loop $again
          (drop (call $fd_readdir (global.get $fd) (i32.const 65536) (i32.const 1000000) (i64.const 0) (i32.const 8)))
          (br $again))"#;
    // A fast machine lists the million entries of the default within the second.
    let options = Options::new().set("ceilings.max_directory_entries", 1_000_000_000);
    let bench = Bench::start_with(options, [("reads", Guest::new(reads).memory(20))]);
    let large = bench.executor.workspace().join("large");
    std::fs::create_dir(&large).expect("a folder");
    for index in 0..5_000 {
        std::fs::write(large.join(format!("{index:08}")), "").expect("a file");
    }
    let grown = bench.peak_since(|| {
        let answer = bench.call("reads").scope("/workspace/**").grant("timeout_seconds", 1).send();
        assert!(answer.took < Duration::from_secs(3), "{:?}", answer.took);
        answer.limit("time");
    });
    assert!(grown < 64, "the server grew by {grown} MB");
}
