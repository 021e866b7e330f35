//! A wall clock that somebody sets an hour forward or back while a server runs by it (W8 of the threats).
//!
//! The expiry of a verdict depends on the wall clock, since a governor wrote the time into it. So
//! one that expired an hour ago is fresh again on a machine whose clock was set back an hour; what nobody
//! can make of it is a second run. Everything else goes by the clock that nobody can set.

use super::{catalogue, load, options, wait_until_delivered};
use harness::methods;
use harness::proofs::{append, runs, trusting};
use harness::{
    Executor, FakeGovernor, Keys, Options, Reply, WallClock, assert_chain_holds, call_in_background,
    call_queued, error, eventually, execute, expect_blocked, in_seconds, result,
};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const HOUR: i64 = 3600;

/// A call of the gate that is approved for so many seconds.
fn gate(n: usize, seconds: i64) -> Value {
    in_time(execute("gate", json!({ "n": n })), seconds)
}

#[test]
fn a_clock_jump_forward_expires_queued_verdicts_but_ends_no_run() {
    let Some(clock) = WallClock::new() else { return };
    let catalogue = methods::catalogue();
    let options = Options::new().catalogue(&catalogue).set("executor.concurrent", 1);
    let executor = Executor::start(clock.for_server(options));
    let second = gate(2, HOUR / 2);
    let running = call_in_background(&executor, "a2g/execute", &gate(1, 2 * HOUR));
    executor.wait_at_the_gate(1);
    let waiting = call_queued(&executor, &second);
    clock.set(HOUR);
    expect_blocked(&executor.rpc("a2g/execute", &gate(3, HOUR / 2)), "verdict_expired");
    executor.open_the_gate();
    let ran = running.join().unwrap();
    assert_eq!(result(&ran)["status"], "SUCCESS", "{ran}");
    expect_blocked(&waiting.join().unwrap(), "verdict_expired");
    assert_eq!(executor.runs_of_the_gate(), 1);
}

#[test]
fn run_time_limits_ignore_clock_jumps() {
    let Some(clock) = WallClock::new() else { return };
    let catalogue = methods::catalogue();
    let executor = Executor::start(clock.for_server(Options::new().catalogue(&catalogue)));
    for (nth, jump) in [HOUR, -HOUR].into_iter().enumerate() {
        clock.set(0);
        let mut call = gate(nth, 3 * HOUR);
        call["verdict"]["capability_manifest"]["timeout_seconds"] = 2.into();
        let asked = Instant::now();
        let answer = std::thread::scope(|scope| {
            let asking = scope.spawn(|| executor.rpc("a2g/execute", &call));
            executor.wait_at_the_gate(nth + 1);
            clock.set(jump);
            asking.join().unwrap()
        });
        let took = asked.elapsed();
        let report = &error(&answer, -32003)["data"]["report"];
        assert_eq!(report["status"], "TIMEOUT", "{answer}");
        let wall = report["metrics"]["duration_ms"].as_u64().expect("a time");
        assert!((2000..20_000).contains(&wall), "{jump}: {wall} ms by the report");
        assert!((2.0..30.0).contains(&took.as_secs_f64()), "{jump}: {took:?}");
    }
}

/// The ids of what has run are forgotten when nothing that names them can be believed any more. A clock that
/// is ahead for a while, and a `journal prune` in that time, must not be enough to run something again.
#[test]
fn used_identifiers_stay_used_after_a_clock_jump_back() {
    let Some(clock) = WallClock::new() else { return };
    let keys = Keys::new();
    let executor = Executor::start(clock.for_server(trusting(&keys)));
    let call = keys.proven(append());
    let ran = executor.rpc("a2g/execute", &call);
    result(&ran);
    executor.wait_for_reports(1);
    wait_until_delivered(&executor);

    clock.set(HOUR);
    let later = executor.rpc("a2g/execute", &call);
    assert_eq!(result(&later), result(&ran), "it is answered from the record");
    expect_blocked(
        &executor.rpc("a2g/execute", &keys.proven(in_time(append(), HOUR / 2))),
        "verdict_expired",
    );
    let journal = executor.home().journal().to_str().unwrap().to_owned();
    let pruned = clock.run(&["journal", "prune", "--before", "1m", "--journal", &journal]);
    let says = String::from_utf8(pruned.stdout).unwrap();
    assert!(says.contains("1 receipt pruned"), "{says}{}", String::from_utf8_lossy(&pruned.stderr));

    clock.set(-HOUR);
    let early = executor.rpc("a2g/execute", &keys.proven(append()));
    assert!(expect_blocked(&early, "verdict_untrusted").contains("not valid before"), "{early}");
    clock.set(0);
    let mut executor = executor;
    for _ in 0..2 {
        let again = executor.rpc("a2g/execute", &call);
        assert!(error(&again, -32600)["message"].as_str().unwrap().contains("already ran"), "{again}");
        assert_eq!(runs(&executor), 1);
        executor = Executor::start_in(executor.kill());
    }
    assert_chain_holds(executor.home());
}

/// The same call with a verdict that expires in so many seconds.
fn in_time(mut call: Value, seconds: i64) -> Value {
    call["verdict"]["expires_at"] = in_seconds(seconds).into();
    call
}

#[test]
fn reports_heartbeats_and_the_journal_survive_clock_jumps() {
    let Some(clock) = WallClock::new() else { return };
    let catalogue = catalogue();
    let load = load();
    // Takes every report at the second time.
    let taken: Arc<Mutex<Vec<Value>>> = Arc::default();
    let once = Mutex::new(Vec::new());
    let takes = Arc::clone(&taken);
    let governor = FakeGovernor::start(move |method, params| {
        if method == "a2g/report" {
            let mut once = once.lock().unwrap();
            if !once.contains(params) {
                once.push(params.clone());
                return Reply::Hangup;
            }
            takes.lock().unwrap().push(params.clone());
        }
        Reply::Result(json!({ "accepted": true }))
    });
    let options = options(&catalogue, &governor.url()).set("governor.heartbeat_seconds", 1);
    let executor = Executor::start(clock.for_server(options));
    let beats = || governor.seen().iter().filter(|(method, _)| method == "a2g/heartbeat").count();
    for jump in [HOUR, -HOUR, 0] {
        for nth in 0..8 {
            load.send(executor.address());
            if nth == 4 {
                clock.set(jump);
            }
        }
        let before = beats();
        eventually("heartbeats go on", || (beats() >= before + 2).then_some(()));
        wait_until_delivered(&executor);
    }
    assert!(load.assert_balanced(executor.home(), &taken.lock().unwrap()) >= 18);
    let listed = executor.home().list_journal(&[]);
    let numbers: Vec<u64> = listed.iter().rev().map(|line| line["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    assert_chain_holds(executor.home());
    let executor = Executor::start_in(executor.kill());
    assert_chain_holds(executor.home());
}
