//! SIGKILL at any moment.

use super::{assert_settled, catalogue, load, moment, options, wait_until_settled};
use harness::{Executor, Governor, Process, assert_chain_holds, has_strace, times, under_strace};

/// Number of clients that send at once.
const CLIENTS: usize = 4;

#[test]
fn repeated_kills_lose_and_repeat_no_run() {
    killed_again_and_again("power-loss");
}

/// A kill takes nothing that the kernel has.
#[test]
fn repeated_kills_at_lower_durability_lose_and_repeat_no_run() {
    killed_again_and_again("process-crash");
}

fn killed_again_and_again(durability: &str) {
    let governor = Governor::start(&[]);
    let catalogue = catalogue();
    let load = load();
    let options = options(&catalogue, &governor.http_url()).set("journal.durability", durability);
    let mut executor = Executor::start(options);
    for _ in 0..times(6) {
        load.during(CLIENTS, executor.address(), || std::thread::sleep(moment(150)));
        // The clients are still at it when it dies.
        let address = executor.address();
        let home = load.during(CLIENTS, address, || {
            std::thread::sleep(moment(40));
            executor.kill()
        });
        executor = Executor::start_in(home);
    }
    load.send_again(executor.address());
    let reports = wait_until_settled(&executor, &governor);
    executor.process().stop();
    let ran = load.assert_balanced(executor.home(), &reports);
    assert!(ran > times(6), "only {ran} intents ran");
    // Refused calls are on record, except those in progress at the kill.
    let refused = executor.home().list_journal(&["--refused", "--limit", "1000000"]);
    let all_expired = refused.iter().all(|line| line.to_string().contains("verdict_expired"));
    assert!(!refused.is_empty() && all_expired, "{refused:?}");
    assert_chain_holds(executor.home());
    // Every report says so, where a power cut could take it.
    let said = reports.iter().filter(|report| report.get("durability").is_some()).count();
    assert_eq!(said, if durability == "power-loss" { 0 } else { reports.len() });
}

/// A crash at the nth call of one system call, for calls that the journal, the doors and process
/// isolation live on.
#[test]
fn a_kill_at_any_system_call_loses_and_repeats_no_run() {
    if !has_strace() {
        return;
    }
    let governor = Governor::start(&[]);
    let catalogue = catalogue();
    let load = load();
    let mut home = Executor::start(options(&catalogue, &governor.http_url())).kill();
    let calls = ["fdatasync", "pwrite64", "sendmsg", "writev", "sendto"];
    let mut kills = 0;
    // Each of the calls once.
    for round in 0..times(5) {
        let call = calls[round % calls.len()];
        let nth = 1 + moment(60).as_millis();
        let inject = format!("--inject={call}:signal=KILL:when={nth}");
        let mut traced = Process::spawn("traced executor", &mut under_strace(&home, call, &inject));
        let Some(address) = traced.listens_on_unless_it_ends() else { continue };
        load.during(CLIENTS, address, || {
            // Some points are not reached by this load.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(3);
            while traced.is_running() && std::time::Instant::now() < deadline {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            kills += usize::from(!traced.is_running());
            traced.kill_children();
            traced.wait_for_exit();
        });
        home = Executor::start_in(home).kill();
    }
    assert!(kills > 0, "no process was killed at a system call");
    assert!(assert_settled(&Executor::start_in(home), &load, &governor) > 0);
}
