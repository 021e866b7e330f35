//! Many sessions, as many at a time as there may be: what they have taken is free after them.

use super::*;
use std::collections::VecDeque;

/// Number of sessions at a time.
const MAX_OPEN: usize = 8;
/// The time for which a session waits for its next turn.
const IDLE_SECONDS: u64 = 2;
/// Number of sessions after which the server has all that it needs for further ones.
const WARM_UP: usize = 2 * MAX_OPEN;
/// Number of processes that wait for a run.
const WAITING: usize = 2;
/// Maximum growth of the server's memory, in KiB: the caches of the journal may grow, but not by 8 KiB for each of 1,000
/// sessions.
const MAX_GROWTH_KIB: u64 = 8 << 10;
/// Maximum number of further descriptors: connections to the governor.
const MAX_MORE_DESCRIPTORS: usize = 8;

/// The sessions that have had their first turn, of which the oldest one ends to make room.
struct Load {
    fixture: Fixture,
    /// The number of each session, and its handle.
    sessions: VecDeque<(usize, String)>,
    /// The number of sessions that had a second turn.
    continued: usize,
}

impl Load {
    fn start() -> Self {
        let limits = options()
            .set("sessions.max", MAX_OPEN)
            .set("sessions.max_per_agent", MAX_OPEN)
            .set("sessions.idle_seconds", IDLE_SECONDS)
            .set("executor.waiting", WAITING);
        Self { fixture: Fixture::start(limits), sessions: VecDeque::new(), continued: 0 }
    }

    /// Opens a session as soon as there is room.
    fn open(&mut self, number: usize) {
        let handle = eventually("there is room", || {
            let answer = self.fixture.ask(&turn("new", json!([["keep", "a"]])));
            if answer.get("result").is_some() {
                return Some(handle_of(&report_of(&answer)));
            }
            expect_blocked(&answer, "sessions_exhausted");
            self.end_oldest();
            None
        });
        self.sessions.push_back((number, handle));
    }

    /// Takes another turn in the oldest session, and ends it: by request, by a trap, or by its idle time.
    fn end_oldest(&mut self) {
        let Some((number, handle)) = self.sessions.pop_front() else { return };
        let answer = self.fixture.ask(&turn(&handle, json!([["keep", "b"]])));
        if answer["error"]["data"]["blocked_by"] == "session_lost" {
            // It has been idle for too long, because this machine is busy.
            return;
        }
        assert_eq!(*first_step(&report_of(&answer)), json!(["a", "b"]), "{answer}");
        self.continued += 1;
        match number % 4 {
            0 => {}
            1 => {
                let trapped = report_of(&self.fixture.ask(&turn(&handle, json!([["trap"]]))));
                assert_eq!(trapped["session"]["state"], "ended", "{trapped}");
            }
            _ => assert!(self.fixture.end(AGENT, &handle)),
        }
    }

    /// Opens and ends so many sessions, and waits until the last one has ended.
    fn open_and_end(&mut self, count: usize) {
        (0..count).for_each(|number| self.open(number));
        while !self.sessions.is_empty() {
            self.end_oldest();
        }
        eventually("each process that is left waits for a run", || {
            (processes(&self.fixture.executor) == 1 + WAITING).then_some(())
        });
        assert!(scrape(&self.fixture.executor).is("a2g_sessions", 0.0));
    }
}

/// Number of processes that an executor has started: zygotes and their children.
fn processes(executor: &Executor) -> usize {
    let zygotes = children_of(executor.id());
    zygotes.len() + zygotes.into_iter().map(|zygote| children_of(zygote).len()).sum::<usize>()
}

/// Number of descriptors that an executor has open.
fn descriptors(executor: &Executor) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", executor.id())).expect("it runs").count()
}

#[test]
fn what_many_sessions_have_taken_is_free_after_them() {
    let mut load = Load::start();
    load.open_and_end(WARM_UP);
    let descriptors_before = descriptors(&load.fixture.executor);
    let held_kib = load.fixture.executor.held_kib();
    let count = times(40);
    load.open_and_end(count);
    eventually("the descriptors are closed", || {
        let now = descriptors(&load.fixture.executor);
        (now <= descriptors_before + MAX_MORE_DESCRIPTORS).then_some(())
    });
    let grown = load.fixture.executor.held_kib().saturating_sub(held_kib);
    println!("{count} sessions, {} with a second turn: the server has grown by {grown} KiB", load.continued);
    assert!(grown < MAX_GROWTH_KIB, "{grown} KiB after {count} sessions");
    assert!(load.continued > 0, "no session had a second turn");
}
