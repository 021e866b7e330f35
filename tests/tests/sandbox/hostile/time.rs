//! Guests that want more time: whatever they do, the answer comes shortly after the deadline.

use super::bench::Bench;
use harness::guests::{Guest, Leased, SUBSCRIBE, component, errno, make_fifo, pollables};
use harness::{Options, Tool, eventually, print_skipped};
use std::time::Duration;

/// Allowed delay of an answer on a busy machine. An idle one takes some
/// twenty milliseconds.
const LATE: Duration = Duration::from_secs(2);

const FOREVER: &str = "(loop $forever (br $forever))";

#[test]
fn the_deadline_ends_every_kind_of_wait() {
    let fill =
        "(loop $again (memory.fill (i32.const 131072) (i32.const 1) (i32.const 60000000)) (br $again))";
    let beside = "(func $hang (loop $forever (br $forever))) (start $hang)";
    let guests = [
        ("loops", Guest::new(FOREVER)),
        ("loops_in_start", Guest::new("").beside(beside)),
        ("fills", Guest::new(fill).memory(1000)),
        ("sleeps", Guest::new("(drop (call $sleep (i64.const 3600000000000)))")),
        ("sleeps_again", Guest::new("(loop $again (drop (call $sleep (i64.const 1000000))) (br $again))")),
        ("sleeps_for_ever", Guest::new("(drop (call $sleep (i64.const -1)))")),
        (
            "random",
            Guest::new("(loop $again (drop (call $random (i32.const 0) (i32.const 65536))) (br $again))")
                .memory(4),
        ),
    ];
    let names: Vec<_> = guests.iter().map(|(name, _)| *name).collect();
    let block = r#"(export "[method]pollable.block" (func (param "self" (borrow $pollable))))"#;
    let block =
        pollables(block) + r#"(core func $block (canon lower (func $poll "[method]pollable.block")))"#;
    let sleep = "(call $block (call $subscribe (i64.const 3600000000000)))";
    let in_start = r"(core module $hangs (func $hang (loop $forever (br $forever))) (start $hang))
        (core instance (instantiate $hangs))";
    let components = [
        ("component", component("", &[], FOREVER)),
        ("component_start", component(in_start, &[], "")),
        ("component_sleep", component(&block, &[("block", "(param i32)"), SUBSCRIBE], sleep)),
    ];
    let names = names.into_iter().chain(components.each_ref().map(|(name, _)| *name));
    let tools = guests.into_iter().map(|(name, guest)| Tool::command_bytes(name, guest.wasm()));
    let tools = tools.chain(components.map(|(name, wasm)| Tool::command_bytes(name, wasm)));
    let options =
        Options::new().set("executor.concurrent", 32).set("ceilings.max_random_bytes", 1_000_000_000);
    let bench = Bench::start_tools(options, tools);

    std::thread::scope(|scope| {
        let calls: Vec<_> = names
            .map(|name| {
                let call = bench.call(name).scope("/workspace/**").grant("timeout_seconds", 2);
                // All of them together leave room for the others.
                let call = call.grant("max_cpu_percent", 10);
                (name, scope.spawn(|| call.send()))
            })
            .collect();
        bench.assert_well("guests that wait for their deadline");
        for (name, call) in calls {
            let answer = call.join().expect("no panic");
            let took = answer.took;
            let report = answer.limit("time");
            assert_eq!(
                report.sentence(),
                "the tool ran longer than its timeout of 2 s, set by the verdict",
                "{name}"
            );
            let deadline = Duration::from_secs(2);
            assert!(took >= deadline && took < deadline + LATE, "{name}: answered after {took:?}");
            let duration = report.metric("duration_ms");
            assert!((2000.0..4000.0).contains(&duration), "{name}: {duration} ms");
            assert_eq!(report.in_force("timeout_seconds")["granted"], 2, "{name}");
            assert_eq!(report.in_force("timeout_seconds")["slack"], 0.0, "{name}");
        }
    });
    bench.assert_well("guests that were ended at their deadline");
}

#[test]
fn a_guest_that_finishes_in_time_succeeds() {
    let bench = Bench::start([("naps", Guest::new("(call $note (call $sleep (i64.const 300000000)))"))]);
    let report = bench.call("naps").grant("timeout_seconds", 20).send().success();
    assert_eq!(report.notes(), [0]);
    let duration = report.metric("duration_ms");
    assert!((300.0..20_000.0).contains(&duration), "{duration} ms");
    // Waiting is not computing.
    assert!(report.metric("cpu_percent") < 30.0, "{report:?}");
}

#[test]
fn time_in_the_queue_is_not_charged_to_the_guest() {
    let guests = [("naps", Guest::new("(drop (call $sleep (i64.const 1500000000)))"))];
    let bench = Bench::start_with(Options::new().set("executor.concurrent", 1), guests);
    std::thread::scope(|scope| {
        let call = || bench.call("naps").grant("timeout_seconds", 10).send().success();
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(call)).collect();
        let durations: Vec<_> =
            calls.into_iter().map(|call| call.join().expect("no panic").metric("duration_ms")).collect();
        // In one slot the last of three waits for three seconds before its own second and a half.
        assert!(durations.iter().all(|ms| (1500.0..3000.0).contains(ms)), "{durations:?}");
    });
}

#[test]
fn timed_out_guests_leave_no_process_behind() {
    // More of them than there are slots, so that one that went on would be missed.
    let guests = [
        ("loops", Guest::new(FOREVER)),
        ("sleeps", Guest::new("(drop (call $sleep (i64.const 3600000000000)))")),
        ("sleeps_for_ever", Guest::new("(drop (call $sleep (i64.const -1)))")),
    ];
    // With more than one core granted, nothing slows the loop down, and so nothing interrupts it but
    // the deadline.
    let options = Options::new().set("executor.concurrent", 2).set("ceilings.max_cpu_percent", 400);
    let bench = Bench::start_with(options, guests);
    for round in 0..4 {
        std::thread::scope(|scope| {
            for tool in ["loops", "sleeps", "sleeps_for_ever"] {
                let call = bench.call(tool).grant("timeout_seconds", 1);
                scope.spawn(|| call.send().limit("time"));
            }
        });
        bench.assert_well(&format!("round {round} of guests that are late"));
    }
}

#[test]
fn a_sleep_ends_on_time() {
    // Subscription: user data 77, monotonic clock, relative. Event: user data, error, type.
    let sleeps = |nanoseconds: u64| {
        format!(
            "(i64.store (i32.const 64) (i64.const 77))
            (i32.store (i32.const 80) (i32.const 1))
            (i64.store (i32.const 88) (i64.const {nanoseconds}))
            (call $note (call $poll (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 8)))
            (call $note (i32.load (i32.const 8)))
            (call $note (i32.load (i32.const 128)))
            (call $note (i32.load16_u (i32.const 136)))
            (call $note (i32.load8_u (i32.const 138)))
            (call $note (i64.eq (i64.load (i32.const 88)) (i64.const {nanoseconds})))"
        )
    };
    let bench = Bench::start([
        ("long", Guest::new(sleeps(200_000_000))),
        ("short", Guest::new(sleeps(10_000))),
        ("none", Guest::new(sleeps(0))),
    ]);
    for (tool, least) in [("long", 200.0), ("short", 0.0), ("none", 0.0)] {
        let report = bench.call(tool).grant("timeout_seconds", 20).send().success();
        assert_eq!(report.notes(), [0, 1, 77, 0, 0, 1], "{tool}");
        let duration = report.metric("duration_ms");
        assert!((least..5000.0).contains(&duration), "{tool}: {duration} ms");
    }
}

#[test]
fn a_guest_blocked_in_the_kernel_times_out() {
    let opens = r#"(call $note (call $open (i32.const 3) @"leased"))"#;
    let bench = Bench::start([("opens", Guest::new(opens))]);
    let leased = bench.executor.workspace().join("leased");
    let Some(lease) = Leased::take(&leased) else { return };
    let call = |seconds: u32| bench.call("opens").scope("/workspace/**").grant("timeout_seconds", seconds);
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| call(2).send());
        bench.assert_well("a guest that is stuck in the kernel");
        let answer = stuck.join().expect("no panic");
        let took = answer.took;
        assert!(
            took >= Duration::from_secs(2) && took < Duration::from_secs(2) + LATE,
            "answered after {took:?}"
        );
        let report = answer.limit("time");
        assert!(report.metric("cpu_percent") < 50.0, "waiting is not computing: {report:?}");
    });
    // Once the kernel lets go, the thread and what it held are free again.
    let threads = bench.status("Threads");
    drop(lease);
    eventually("the file can be opened", || (call(5).send().success().notes() == [0]).then_some(()));
    assert!(bench.status("Threads") <= threads + 2);
}

#[test]
fn a_fifo_is_not_opened() {
    // Opening a FIFO that nobody writes to holds the thread that does it until the kernel lets go.
    let opens = |path: &str| format!("(call $note (call $open (i32.const 3) @\"{path}\"))");
    let writes = r#"
        (call $note (call $open_rw (i32.const 3) @"fifo"))
        (call $note (call $create (i32.const 3) @"fifo"))
        (call $note (call $open_with (i32.const 3) @"fifo" (i32.const 0) (i64.const 0x40)))
        (call $note (call $open_with (i32.const 3) @"fifo" (i32.const 8) (i64.const 0x42)))
        (call $note (call $open (i32.const 3) @"fil"))"#;
    let bench = Bench::start_with(
        Options::new().set("executor.concurrent", 2),
        [
            ("reads", Guest::new(opens("fifo"))),
            ("by_link", Guest::new(opens("link"))),
            ("by_dots", Guest::new(opens("folder/../fifo"))),
            ("writes", Guest::new(writes)),
            ("socket", Guest::new(opens("socket"))),
            ("file", Guest::new(opens("file"))),
        ],
    );
    let workspace = bench.executor.workspace();
    make_fifo(&workspace.join("fifo"));
    std::fs::write(workspace.join("file"), "").expect("a file");
    std::fs::create_dir(workspace.join("folder")).expect("a folder");
    std::os::unix::fs::symlink("folder/../fifo", workspace.join("link")).expect("a link");
    let _socket = std::os::unix::net::UnixListener::bind(workspace.join("socket")).expect("a socket");
    let run = |tool: &str| {
        let call = bench.call(tool).scope("/workspace/**").grant("timeout_seconds", 3);
        call.send().success().notes()
    };
    for tool in ["reads", "by_link", "by_dots", "socket", "reads", "by_link"] {
        assert_eq!(run(tool), [errno::NOTSUP], "{tool}");
    }
    assert_eq!(
        run("writes"),
        [errno::NOTSUP, errno::NOTSUP, errno::NOTSUP, errno::NOTSUP, errno::NOENT],
        "a file that is not there is not there"
    );
    assert_eq!(run("file"), [0]);
    bench.assert_well("a FIFO");
}

#[test]
fn a_device_is_not_opened() {
    // One that never ends, and a terminal, under names that look harmless.
    let opens = |name: &str| format!("(call $note (call $open (i32.const 3) @\"{name}\"))");
    let bench = Bench::start([("opens", Guest::new(opens("zero") + &opens("terminal") + &opens("link")))]);
    let workspace = bench.executor.workspace();
    for (name, major, minor) in [("zero", 1, 5), ("terminal", 5, 0)] {
        use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
        let path = workspace.join(name);
        let mode = Mode::RUSR | Mode::WUSR;
        if mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(major, minor)).is_err() {
            print_skipped("this user may not make devices");
            return;
        }
    }
    std::os::unix::fs::symlink("zero", workspace.join("link")).expect("a link");
    for pattern in ["/workspace/**", "/workspace/*"] {
        let report = bench.call("opens").scope(pattern).grant("timeout_seconds", 3).send().success();
        assert!(report.notes().iter().all(|error| *error != errno::SUCCESS), "{pattern}: {report:?}");
    }
}
