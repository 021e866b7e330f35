//! Guests that are stopped from outside: promptly, whatever they do, and with exactly one report.

use super::bench::Bench;
use harness::guests::{Guest, Leased};
use harness::{Options, eventually, result};
use serde_json::json;
use std::time::{Duration, Instant};

/// Time limit of a stop on a busy machine.
const PROMPTLY: Duration = Duration::from_secs(2);

const GUESTS: [(&str, &str); 4] = [
    ("loops", "(loop $forever (br $forever))"),
    ("sleeps", "(drop (call $sleep (i64.const 3600000000000)))"),
    ("naps", "(loop $again (drop (call $sleep (i64.const 1000000))) (br $again))"),
    ("crawls", "(call $be_busy (i64.const 3600000000000))"),
];

fn start() -> Bench {
    let guests = GUESTS.map(|(name, body)| (name, Guest::new(body)));
    Bench::start_with(Options::new().set("executor.concurrent", 8), guests)
}

fn wait_until_running(bench: &Bench, intent: &str) {
    eventually("the guest runs", || (bench.state(intent) == "running").then_some(()));
}

/// Checks that the governor has a report of this intent, and that it is `ABORTED`.
fn assert_reported(bench: &Bench, intent: &str) {
    // That there is no second one is shown when the bench ends.
    let report = eventually("the report", || bench.books.reports_of(intent).pop());
    assert_eq!(report["status"], "ABORTED", "{report:?}");
}

#[test]
fn a_cancelled_guest_ends_at_once() {
    let bench = start();
    for (tool, _) in GUESTS {
        let call = bench.call(tool).scope("/workspace/**").grant("timeout_seconds", 60);
        let call = if tool == "crawls" { call.grant("max_cpu_percent", 1) } else { call };
        let intent = call.intent();
        let (report, took) = std::thread::scope(|scope| {
            let answer = scope.spawn(|| call.send());
            wait_until_running(&bench, &intent);
            bench.assert_well("a guest that is to be cancelled");
            let began = Instant::now();
            assert!(bench.cancel(&intent), "{tool}");
            let answer = answer.join().expect("no panic");
            (answer.aborted("cancelled by `a2g/cancel`"), began.elapsed())
        });
        assert!(took < PROMPTLY, "{tool}: stopped after {took:?}");
        assert!(report.metric("duration_ms") > 0.0, "{tool}: {report:?}");
        assert_reported(&bench, &intent);
        // A second cancel finds nothing.
        assert!(!bench.cancel(&intent), "{tool}");
        assert_eq!(bench.state(&intent), "finished", "{tool}");
    }
}

#[test]
fn cancelled_guests_leave_no_process_behind() {
    let guests = GUESTS.map(|(name, body)| (name, Guest::new(body)));
    // Nothing slows a loop down that may have more than one core.
    let options = Options::new().set("executor.concurrent", 1).set("ceilings.max_cpu_percent", 400);
    let bench = Bench::start_with(options, guests);
    for (tool, _) in GUESTS.iter().chain(&GUESTS) {
        let call = bench.call(tool).grant("timeout_seconds", 60);
        let intent = call.intent();
        std::thread::scope(|scope| {
            let answer = scope.spawn(|| call.send());
            wait_until_running(&bench, &intent);
            assert!(bench.cancel(&intent), "{tool}");
            answer.join().expect("no panic").aborted("cancelled");
        });
        // In the only slot.
        bench.assert_well(tool);
    }
}

#[test]
fn a_guest_blocked_in_the_kernel_is_cancelled() {
    let bench = Bench::start([("opens", Guest::new(r#"(drop (call $open (i32.const 3) @"leased"))"#))]);
    let Some(_lease) = Leased::take(&bench.executor.workspace().join("leased")) else { return };
    let call = bench.call("opens").scope("/workspace/**").grant("timeout_seconds", 60);
    let intent = call.intent();
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| call.send());
        wait_until_running(&bench, &intent);
        bench.assert_well("a guest that is stuck in the kernel");
        let began = Instant::now();
        assert!(bench.cancel(&intent));
        answer.join().expect("no panic").aborted("cancelled by `a2g/cancel`");
        assert!(began.elapsed() < PROMPTLY, "stopped after {:?}", began.elapsed());
    });
    assert_reported(&bench, &intent);
}

#[test]
fn runs_of_a_revoked_agent_stop_and_new_ones_are_refused() {
    const REVOKED: &str = "did:aeon:revoked:1.0:abc123";
    let bench = start();
    let calls = GUESTS.map(|(tool, _)| {
        let call = bench.call(tool).agent(REVOKED).scope("/workspace/**").grant("timeout_seconds", 60);
        (tool, call.grant("max_cpu_percent", 10))
    });
    let intents: Vec<_> = calls.iter().map(|(_, call)| call.intent()).collect();
    // Another agent's guest, which goes on.
    let other = bench.call("sleeps").grant("timeout_seconds", 60);
    let other_intent = other.intent();
    std::thread::scope(|scope| {
        let answers = calls.map(|(tool, call)| (tool, scope.spawn(|| call.send())));
        let other = scope.spawn(|| other.send());
        intents.iter().chain([&other_intent]).for_each(|intent| wait_until_running(&bench, intent));
        let began = Instant::now();
        let revoked = bench.executor.rpc("g2a/revoke", &json!({ "agent_did": REVOKED }));
        assert_eq!(result(&revoked)["aborted"], 4);
        for (tool, answer) in answers {
            answer.join().expect("no panic").aborted("revoked by the governor");
            assert!(began.elapsed() < PROMPTLY, "{tool}: stopped after {:?}", began.elapsed());
        }
        assert_eq!(bench.state(&other_intent), "running");
        let revoked = bench.executor.rpc("g2a/revoke", &json!({ "intent_id": other_intent }));
        assert_eq!(result(&revoked)["aborted"], 1);
        other.join().expect("no panic").aborted("revoked by the governor");
    });
    for intent in &intents {
        assert_reported(&bench, intent);
    }
    let refused = bench.call("sleeps").agent(REVOKED).send();
    harness::expect_blocked(&refused.response, "standing_policy");
    bench.assert_well("an agent that was revoked");
}
