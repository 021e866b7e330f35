//! Processes that serve several runs (`executor.reuse`): which runs share one, what is left of a run for the next, and
//! what ends a process.

use super::bench::{Bench, Call, CallAnswer, Report};
use super::cpu::assert_held;
use super::isolation::{SLEEPS, hang_up, kill_all_children};
use super::side::cgroups;
use harness::guests::{Guest, errno};
use harness::{Options, Tool, eventually, print_skipped, result, times};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::thread::{scope, sleep};
use std::time::Duration;

const OTHER_AGENT: &str = "did:aeon:other:1.0:abc123";

/// The settings for these tools. Their processes wait long enough for a busy machine.
fn reuse(tools: &[&str]) -> Value {
    json!({ "tools": tools, "idle_ms": 60_000 })
}

fn options_with(settings: Value) -> Options {
    Options::new().set("executor.isolation", "process").set("executor.reuse", settings)
}

/// Starts a bench that reuses the processes of all these guests.
fn start<const N: usize>(guests: [(&str, Guest); N]) -> Bench {
    let names = guests.each_ref().map(|(name, _)| *name);
    Bench::start_with(options_with(reuse(&names)), guests)
}

/// Sends a call when the process of the last run has cleared everything.
fn send(call: Call<'_>) -> CallAnswer {
    sleep(Duration::from_millis(50));
    call.send()
}

fn earlier_runs(report: &Report) -> u64 {
    let process = report.0["usage"]["process"].as_object().expect("each run has a process");
    process.get("earlier_runs").map_or(0, |count| count.as_u64().expect("a count"))
}

fn earlier_runs_of(call: Call<'_>) -> u64 {
    earlier_runs(&send(call).success())
}

/// Makes a call, and cancels it while its guest runs.
fn cancel(bench: &Bench, call: Call<'_>) -> CallAnswer {
    let intent = call.intent();
    scope(|scope| {
        let answer = scope.spawn(|| call.send());
        eventually("the guest runs", || (bench.state(&intent) == "running").then_some(()));
        // The state is `running` before the guest sleeps.
        sleep(Duration::from_millis(200));
        assert!(bench.cancel(&intent));
        answer.join().expect("no panic")
    })
}

#[test]
fn only_equal_calls_share_a_process() {
    let bench = start([("notes", Guest::new("")), ("same", Guest::new(""))]);
    let of =
        |tool| bench.call(tool).scope("/workspace/**").grant("max_memory_mb", 8).grant("timeout_seconds", 60);
    let own = || of("notes");
    assert_eq!(earlier_runs_of(own()), 0);
    let others = [
        ("another agent", own().agent(OTHER_AGENT)),
        ("another tool", of("same")),
        ("less memory", own().grant("max_memory_mb", 7)),
        ("less time", own().grant("timeout_seconds", 59)),
        ("less CPU", own().grant("max_cpu_percent", 50)),
        ("less output", own().condition("max_output_bytes:1000")),
        ("no files", own().grant("filesystem_scope", json!([]))),
        ("fewer files", own().scope("/workspace/*.txt")),
        ("a blocked path", own().condition("blocked_path:/workspace/secret/**")),
    ];
    for ((what, call), earlier) in others.into_iter().zip(1..) {
        assert_eq!(earlier_runs_of(call), 0, "{what}");
        assert_eq!(earlier_runs_of(own().arguments(json!({ "other": what }))), earlier, "after {what}");
    }
}

#[test]
fn a_replaced_folder_gets_another_process() {
    let looks = r#"(call $note (call $path_stat (i32.const 3) (i32.const 0) @"mark" (i32.const 512)))"#;
    let bench = start([("looks", Guest::new(looks))]);
    let folder = bench.executor.workspace().join("folder");
    std::fs::create_dir(&folder).expect("a folder");
    let look = || {
        let report = send(bench.call("looks").scope("/workspace/folder/**")).success();
        (earlier_runs(&report), report.notes())
    };
    assert_eq!(look(), (0, vec![errno::NOENT]));
    assert_eq!(look(), (1, vec![errno::NOENT]));
    std::fs::rename(&folder, folder.with_extension("away")).expect("a move");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(folder.join("mark"), "").expect("a file");
    assert_eq!(look(), (0, vec![errno::SUCCESS]));
    assert_eq!(look(), (1, vec![errno::SUCCESS]));
}

#[test]
fn a_process_serves_a_limited_number_of_runs_within_a_time() {
    let with = |name: &str, value: u64| {
        let mut settings = reuse(&["notes"]);
        settings[name] = value.into();
        Bench::start_with(options_with(settings), [("notes", Guest::new(""))])
    };
    let few = with("runs", 3);
    let earlier = std::iter::repeat_with(|| earlier_runs_of(few.call("notes"))).take(7).collect::<Vec<_>>();
    assert_eq!(earlier, [0, 1, 2, 0, 1, 2, 0]);
    let short = with("idle_ms", 10);
    for _ in 0..3 {
        assert_eq!(earlier_runs_of(short.call("notes")), 0);
    }
}

#[test]
fn without_the_setting_each_run_has_a_process_of_its_own() {
    for settings in [json!({}), reuse(&["same"])] {
        let guests = [("notes", Guest::new("")), ("same", Guest::new(""))];
        let bench = Bench::start_with(options_with(settings), guests);
        for _ in 0..3 {
            assert_eq!(earlier_runs_of(bench.call("notes")), 0);
        }
    }
}

#[test]
fn a_run_finds_nothing_of_earlier_runs_of_its_process() {
    // The guest grows its memory first, counts the words in it that are not zero, and then fills it.
    let body = r#"
        (local $at i32) (local $found i32)
        (drop (memory.grow (i32.const 3)))
        (local.set $at (i32.const 65536))
        (loop $more
          (if (i32.load (local.get $at)) (then (local.set $found (i32.add (local.get $found) (i32.const 1)))))
          (local.set $at (i32.add (local.get $at) (i32.const 4)))
          (br_if $more (i32.lt_u (local.get $at) (i32.shl (memory.size) (i32.const 16)))))
        (call $note (local.get $found))
        (call $note (memory.size))
        (call $note (global.get $kept))
        (call $note (i32.eqz (ref.is_null (table.get $t (i32.const 1)))))
        (call $note (call $fd_fdstat (i32.const 5) (i32.const 512)))
        (drop (call $random (i32.const 512) (i32.const 4)))
        (call $note (i32.load (i32.const 512)))
        (memory.fill (i32.const 65536) (i32.const 170) (i32.const 458752))
        (global.set $kept (i32.const 77))
        (table.set $t (i32.const 1) (ref.func $f))
        (call $cry @"said once\0a")
        (if (call $create (i32.const 3) @"file") (then (unreachable)))"#;
    let beside =
        "(global $kept (mut i32) (i32.const 0)) (table $t 2 funcref) (func $f) (elem declare func $f)";
    let bench = start([("looks", Guest::new(body).beside(beside).memory(5))]);
    let mut drawn = BTreeSet::new();
    for run in 0..6 {
        let report = send(bench.call("looks").scope("/workspace/**")).success();
        assert_eq!(earlier_runs(&report), run);
        let notes = report.notes();
        assert_eq!(notes[..5], [0, 8, 0, 0, errno::BADF], "run {run}");
        assert_eq!(report.logs(), ["said once"], "run {run}");
        assert!(drawn.insert(notes[5]), "run {run} drew {} again", notes[5]);
    }
}

#[test]
fn a_report_measures_its_own_run_only() {
    // The guest uses 64 MB of memory, 0.3 seconds and some of each budget, unless the file `small` exists.
    let body = r#"
        (if (call $open (i32.const 3) @"small") (then
          (drop (memory.grow (i32.const 1024)))
          (memory.fill (i32.const 65536) (i32.const 120) (i32.const 67108864))
          (call $be_busy (i64.const 300000000))
          (drop (call $random (i32.const 65536) (i32.const 4096)))
          (if (call $create (i32.const 3) @"made") (then (unreachable)))
          (drop (call $write (global.get $fd) (i32.const 131072) (i32.const 3000000)))
          (drop (call $fd_readdir (i32.const 3) (i32.const 65536) (i32.const 4096) (i64.const 0) (i32.const 8)))
          (call $cry (i32.const 131072) (i32.const 1000))))"#;
    let bench = start([("varies", Guest::new(body))]).undisturbed();
    let run = || send(bench.call("varies").scope("/workspace/**").grant("max_memory_mb", 80)).success();
    let used = |report: &Report, limit: &str| report.in_force(limit)["used"].as_f64().expect("a number");
    let cpu_ms = |report: &Report| report.metric("duration_ms") * report.metric("cpu_percent") / 100.0;
    let peak = |report: &Report| report.0["usage"]["process"]["peak_resident_mb"].as_u64();
    let large = run();
    std::fs::write(bench.executor.workspace().join("small"), "").expect("a file");
    let small = run();
    assert_eq!((earlier_runs(&large), earlier_runs(&small)), (0, 1));
    for (limit, most) in [
        ("max_memory_mb", 1.0),
        ("max_output_bytes", 2.0),
        ("max_written_mb", 0.0),
        ("max_created", 0.0),
        ("max_random_bytes", 0.0),
        ("max_directory_entries", 0.0),
    ] {
        assert!(used(&large, limit) > most, "{limit}: {large:?}");
        assert!(used(&small, limit) <= most, "{limit}: {small:?}");
    }
    assert!(cpu_ms(&small) * 2.0 < cpu_ms(&large), "{large:?}\n{small:?}");
    assert!(small.metric("duration_ms") < large.metric("duration_ms"), "{large:?}\n{small:?}");
    // Only root can let the kernel count the peak anew.
    if let Some(small) = peak(&small) {
        assert!(peak(&large).is_some_and(|large| small + 32 < large), "{small} MB after {:?}", peak(&large));
    }
}

#[test]
fn every_other_end_ends_the_process() {
    // The guest ends in this way if the file `bad` exists.
    let if_told =
        |body: &str| Guest::new(format!(r#"(if (i32.eqz (call $open (i32.const 3) @"bad")) (then {body}))"#));
    let bodies = [
        ("traps", "(unreachable)"),
        ("exits", "(call $exit (i32.const 1))"),
        ("grows", "(drop (memory.grow (i32.const 1000))) (unreachable)"),
        ("is_no_json", r#"(call $say @"{")"#),
        ("times_out", SLEEPS),
        ("is_cancelled", SLEEPS),
    ];
    let bench = start(bodies.map(|(name, body)| (name, if_told(body))));
    let bad = bench.executor.workspace().join("bad");
    for (tool, _) in bodies {
        let seconds = if tool == "times_out" { 1 } else { 60 };
        let call = || {
            let call = bench.call(tool).scope("/workspace/**").grant("max_memory_mb", 8);
            call.grant("timeout_seconds", seconds)
        };
        assert_eq!(earlier_runs_of(call()), 0, "{tool}");
        assert_eq!(earlier_runs_of(call()), 1, "{tool}");
        std::fs::write(&bad, "").expect("a file");
        let report = match tool {
            "traps" => send(call()).failure("unreachable"),
            "exits" => send(call()).failure("exited with code 1"),
            "grows" => send(call()).limit("memory"),
            "is_no_json" => send(call()).failure("is not one JSON value"),
            "times_out" => send(call()).limit("time"),
            _ => cancel(&bench, call()).aborted("cancelled"),
        };
        assert_eq!(earlier_runs(&report), 2, "{tool}");
        std::fs::remove_file(&bad).expect("a file");
        assert_eq!(earlier_runs_of(call()), 0, "{tool}");
    }
}

#[test]
fn a_tools_own_error_does_not_end_its_process() {
    let bench = Bench::start_typed(options_with(reuse(&["read_file"])));
    for earlier in 0..3 {
        let call = bench
            .call("read_file")
            .scope("/workspace/**")
            .arguments(json!({ "path": "/workspace/none.txt" }));
        let report = send(call).failure("the tool failed with ");
        assert_eq!(earlier_runs(&report), earlier);
    }
}

#[test]
fn a_process_that_is_killed_while_it_waits_fails_no_run() {
    let bench = start([("notes", Guest::new(""))]).undisturbed();
    for _ in 0..3 {
        assert_eq!(earlier_runs_of(bench.call("notes")), 0);
        assert_eq!(earlier_runs_of(bench.call("notes")), 1);
        kill_all_children(&bench);
    }
}

#[test]
fn a_run_with_a_network_or_calls_shares_no_process() {
    let notes = || Guest::new("").wasm();
    let options = options_with(reuse(&["calls", "fetches"]))
        .set("ceilings.network_allowed", true)
        .set("network.allowed_domains", json!(["*.test"]));
    let tools = [
        Tool::command_bytes("calls", notes()).calls(&["*"]),
        Tool::command_bytes("fetches", notes()).network(),
    ];
    let bench = Bench::start_tools(options, tools);
    for earlier in 0..3 {
        assert_eq!(earlier_runs_of(bench.call("calls")), 0);
        assert_eq!(earlier_runs_of(bench.call("fetches").grant("network_allowed", true)), 0);
        assert_eq!(earlier_runs_of(bench.call("fetches")), earlier);
    }
}

#[test]
fn a_replaced_tool_is_not_run_by_an_old_process() {
    let note = |number: u32| Guest::new(format!("(call $note (i32.const {number}))"));
    let bench = start([("notes", note(1))]);
    let run = || {
        let report = send(bench.call("notes")).success();
        (earlier_runs(&report), report.notes())
    };
    assert_eq!(run(), (0, vec![1]));
    assert_eq!(run(), (1, vec![1]));
    bench.change_outside(|| {
        Tool::command_bytes("notes", note(2).wasm()).write(&bench.catalogue.folder().join("notes"), true);
    });
    hang_up(&bench);
    bench.executor.line_with("catalogue reloaded");
    assert_eq!(run(), (0, vec![2]));
    assert_eq!(run(), (1, vec![2]));
}

#[test]
fn each_run_of_a_process_keeps_to_its_share_of_cpu() {
    let bench = start([("busy", Guest::new("(call $be_busy (i64.const 2000000000))"))]).undisturbed();
    for earlier in 0..3 {
        let call = bench.call("busy").grant("max_cpu_percent", 5).grant("timeout_seconds", 60);
        let report = send(call).success();
        assert_eq!(earlier_runs(&report), earlier);
        assert_held(&report, 5);
    }
}

/// Stops something else than the guests, and resumes it.
fn stop(bench: &Bench) {
    let target = json!({ "tool": "harmless" });
    result(&bench.executor.rpc("a2g/stop", &json!({ "target": target, "reason": "a test" })));
    assert_eq!(result(&bench.executor.rpc("a2g/resume", &json!({ "target": target })))["resumed"], true);
}

/// Revokes an agent, whose calls are then refused, so that the processes of another one are looked at.
fn revoke(bench: &Bench) {
    result(&bench.executor.rpc("g2a/revoke", &json!({ "agent_did": OTHER_AGENT })));
}

/// A process has the folders of its grant open while it waits. All end, whatever the order is about.
#[test]
fn a_stop_or_revocation_ends_the_processes_that_wait() {
    let bench = start([("notes", Guest::new(""))]);
    for end_all in [stop, revoke] {
        assert_eq!([(); 2].map(|()| earlier_runs_of(bench.call("notes"))), [0, 1]);
        end_all(&bench);
    }
    assert_eq!(earlier_runs_of(bench.call("notes")), 0);
}

/// Nor does a run leave one that goes on meanwhile.
#[test]
fn a_run_during_a_stop_or_revocation_leaves_no_process() {
    let bench = start([("busy", Guest::new("(call $be_busy (i64.const 2000000000))"))]).undisturbed();
    let call = || bench.call("busy").grant("timeout_seconds", 60);
    for end_all in [stop, revoke] {
        let run = call();
        let intent = run.intent();
        scope(|scope| {
            let answer = scope.spawn(|| send(run));
            eventually("the guest runs", || (bench.state(&intent) == "running").then_some(()));
            end_all(&bench);
            assert_eq!(earlier_runs(&answer.join().expect("no panic").success()), 0);
        });
    }
    assert_eq!(earlier_runs_of(call()), 0);
}

/// The cancellation often comes while the server reads the long result that the process has reported.
#[test]
fn a_process_serves_no_run_after_one_that_was_cancelled_as_it_ended() {
    let spaces = r#"
        (memory.fill (i32.const 65536) (i32.const 32) (i32.const 900000))
        (call $say (i32.const 65536) (i32.const 900000))"#;
    let bench = start([("spaces", Guest::new(spaces).memory(16))]).undisturbed();
    let mut delay = Duration::from_millis(20);
    for _ in 0..times(60) {
        let call = bench.call("spaces");
        let id = json!({ "intent_id": call.intent() });
        let answer = scope(|scope| {
            let answer = scope.spawn(|| call.send());
            sleep(delay);
            bench.executor.rpc("a2g/cancel", &id);
            answer.join().expect("no panic")
        });
        // About every second call is cancelled before its end.
        let report = &answer.response["error"]["data"]["report"];
        let step = Duration::from_micros(500);
        delay = if report.is_null() { delay.saturating_sub(step) } else { delay + step };
        let next = earlier_runs_of(bench.call("spaces"));
        if let Some(earlier) = report["usage"]["process"]["earlier_runs"].as_u64() {
            assert_ne!(next, earlier + 1, "{report}");
        }
    }
}

/// Else an address layout would outlive `executor.renew_seconds` for as long as calls arrive.
#[test]
fn a_process_is_not_used_after_its_zygote_was_replaced() {
    let options = options_with(reuse(&["notes"])).set("executor.renew_seconds", 1);
    let bench = Bench::start_with(options, [("notes", Guest::new(""))]);
    eventually("a second run of a process", || (earlier_runs_of(bench.call("notes")) > 0).then_some(()));
    eventually("another process", || (earlier_runs_of(bench.call("notes")) == 0).then_some(()));
}

#[test]
fn one_agent_takes_not_all_places_of_idle_processes() {
    let bench = start([("notes", Guest::new(""))]);
    for seconds in 2..80 {
        bench.call("notes").agent(OTHER_AGENT).grant("timeout_seconds", seconds).send().success();
    }
    assert_eq!([(); 2].map(|()| earlier_runs_of(bench.call("notes"))), [0, 1]);
}

#[test]
fn a_run_is_not_charged_for_the_files_in_memory_of_earlier_runs() {
    // Writes 1 MiB to a file with a new name.
    let writes = r#"
        (local $left i32)
        (drop (call $random (i32.const 600) (i32.const 8)))
        (local.set $left (i32.const 8))
        (loop $name
          (local.set $left (i32.sub (local.get $left) (i32.const 1)))
          (i32.store8 (i32.add (i32.const 600) (local.get $left)) (i32.add (i32.const 97)
            (i32.and (i32.load8_u (i32.add (i32.const 600) (local.get $left))) (i32.const 15))))
          (br_if $name (local.get $left)))
        (call $note (call $create (i32.const 3) (i32.const 600) (i32.const 8)))
        (local.set $left (i32.const 16))
        (loop $write
          (call $note (call $write (global.get $fd) (i32.const 0) (i32.const 65536)))
          (br_if $write (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))"#;
    let in_memory = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    // The bench watches the folder around it as well, and other programs use `/dev/shm`.
    let folder = in_memory.path().join("shared");
    std::fs::create_dir(&folder).expect("a folder");
    let options = options_with(reuse(&["writes"])).mount("/shared", &folder).scope(&["/shared/**"]);
    let bench = Bench::start_with(options, [("writes", Guest::new(writes))]);
    if cgroups(bench.process).is_empty() {
        return print_skipped("no control group is delegated");
    }
    let runs = std::iter::repeat_with(|| {
        let report = send(bench.call("writes").scope("/shared/**")).success();
        assert_eq!(report.notes(), [errno::SUCCESS; 17]);
        earlier_runs(&report)
    });
    let earlier = runs.take(30).collect::<Vec<_>>();
    // A group may keep 8 MiB.
    let most = earlier.iter().max();
    assert!(most.is_some_and(|most| (3..15).contains(most)), "{earlier:?}");
}
