//! SIGKILL of the guests or of the executor, at any moment of a turn: the next turn finds what the last receipt says, or is
//! refused with `session_lost`.

use super::*;
use rustix::process::{Pid, Signal, kill_process};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// The executor is killed in one of so many rounds, and the guests in the others.
const ROUNDS_FOR_EXECUTOR: usize = 5;

/// Kills every process that runs or may run a guest.
pub(super) fn kill_guests(executor: &Executor) {
    for guest in children_of(executor.id()).into_iter().flat_map(children_of) {
        let pid = Pid::from_raw(i32::try_from(guest).expect("a pid")).expect("a pid");
        let _gone = kill_process(pid, Signal::KILL);
        eventually("the process has ended", || parent_of(guest).is_none().then_some(()));
    }
}

/// A turn that keeps a text in this session, and works for a while.
fn keep_and_work(session: &str) -> Value {
    turn(session, json!([["keep", "x"], ["work", 5]]))
}

/// The number of texts that a session has kept after a turn.
fn texts(report: &Value) -> usize {
    first_step(report).as_array().unwrap_or_else(|| panic!("{report}")).len()
}

#[test]
fn after_a_kill_a_session_is_as_its_last_receipt_says_or_lost() {
    let mut fixture = Fixture::start(options());
    let mut amid = 0;
    for round in 0..times(30) {
        // None before the first turn, which opens the session, one, or two.
        let mut session = "new".to_owned();
        let earlier = round % 3;
        for _ in 0..earlier {
            session = handle_of(&fixture.run(&keep_and_work(&session)));
        }
        let call = keep_and_work(&session);
        let sent = call.clone();
        let address = fixture.executor.address();
        let running = spawn(move || HttpClient::ask(address, "a2g/intent", &sent));
        sleep(Duration::from_millis(u64::try_from(round * 7 % 31).expect("a number")));
        let is_executor_killed = round % ROUNDS_FOR_EXECUTOR == ROUNDS_FOR_EXECUTOR - 1;
        if is_executor_killed {
            fixture = fixture.restart();
        } else {
            kill_guests(&fixture.executor);
        }
        let answer = running.join().expect("no panic");
        assert!(answer.is_some() || is_executor_killed, "round {round}: no answer");

        // The record of the call, whether its caller was told or not.
        let recorded = fixture.status(&call["intent_id"])["result"].get("report").cloned();
        let Some(report) = recorded else {
            // It has not begun. Without an earlier turn, there is no session.
            if let Some(answer) = &answer {
                expect_blocked(answer, "session_lost");
            }
            if earlier > 0 {
                fixture.expect_lost(&session);
            }
            continue;
        };
        if let Some(answer) = answer {
            assert_eq!(report_of(&answer), report);
        }
        let handle = report["session"]["handle"].as_str().unwrap_or_else(|| panic!("{report}"));
        let is_success = report["status"] == "SUCCESS";
        let is_kept = report["session"]["state"] == "kept";
        assert!(is_success || !is_kept, "{report}");
        assert!(earlier == 0 || handle == session, "{report}");
        assert_eq!(report["session"]["turn"], earlier + 1, "{report}");
        if is_success {
            assert_eq!(texts(&report), earlier + 1, "{report}");
        } else {
            amid += 1;
        }
        let next_answer = fixture.ask(&keep_and_work(handle));
        if next_answer["error"]["data"]["blocked_by"] == "session_lost" {
            continue;
        }
        assert!(is_kept && !is_executor_killed, "{report} {next_answer}");
        let next = report_of(&next_answer);
        assert_eq!((next["status"].as_str(), texts(&next)), (Some("SUCCESS"), earlier + 2), "{next}");
        assert!(fixture.end(AGENT, handle));
    }
    assert!(amid > 0 || times(30) < 30, "no kill was amid a turn");
}
