//! Sets of file changes across restarts and kills: the disk, `a2g/effects`, the journal and the reports agree, and what was
//! answered holds.

use super::{moment, wait_until_delivered};
use crate::staged::{AFTER, Act, BEFORE, EDITS, StagedFixture, StagedRun, decided, edits, entries};
use harness::{HttpClient, Process, assert_chain_holds, has_strace, times, under_strace};
use serde_json::Value;

/// System calls of decisions and of the journal. The server is killed at each of them in turn.
const CALLS: [&str; 6] = ["renameat,renameat2", "fsync", "mkdirat", "unlinkat", "syncfs", "fdatasync"];

/// A run about which `act` can be decided.
fn prepare(fixture: &StagedFixture, act: Act) -> StagedRun {
    fixture.set_files(BEFORE);
    let run = fixture.stage(EDITS);
    if act == Act::Undo {
        fixture.succeed("anna", Act::Commit, &run);
    }
    run
}

/// Compares disk, state, decisions and the answer, if there was one, after a start. Then makes the decision if it was not
/// made.
fn settle(fixture: &StagedFixture, run: &StagedRun, act: Act, answer: Option<&Value>, context: &str) {
    let state = fixture.assert_agrees(run, context);
    assert_decisions_agree(fixture, run, &state, context);
    if let Some(answer) = answer {
        decided(answer, "SUCCESS");
        assert_eq!(state, act.state(), "{context}: {answer}");
    }
    if state != act.state() {
        decided(&fixture.decide("anna", act, run), "SUCCESS");
    }
    assert_eq!(fixture.assert_agrees(run, context), act.state(), "{context}");
    assert_decisions_agree(fixture, run, act.state(), context);
}

/// Asserts that the last decision that succeeded is the one that the state follows from.
fn assert_decisions_agree(fixture: &StagedFixture, run: &StagedRun, state: &str, context: &str) {
    let set = fixture.set(run);
    let decisions = set["decisions"].as_array().expect("a list");
    let mut succeeded = decisions.iter().filter(|decision| decision["status"] == "SUCCESS");
    let last = succeeded.next_back().map(|decision| decision["act"].as_str().expect("a word"));
    let expected = Act::ALL.into_iter().find(|act| Some(act.word()) == last).map_or("waiting", Act::state);
    assert_eq!(state, expected, "{context}: {set}");
    let is_known =
        |decision: &Value| ["SUCCESS", "FAILURE", "ABORTED"].iter().any(|word| decision["status"] == *word);
    assert!(decisions.iter().all(is_known), "{context}: {set}");
}

/// Asserts that the governor was told of every run and of every decision as the journal says.
fn assert_reported(fixture: &StagedFixture, runs: &[StagedRun]) {
    wait_until_delivered(fixture.executor());
    let all = fixture.governor.reports();
    let assert_told = |intent: &Value, status: &Value| {
        let reports = all.iter().filter(|report| report["intent_id"] == *intent).collect::<Vec<_>>();
        // A report may arrive twice, but not two different ones.
        assert!(reports.windows(2).all(|pair| pair[0] == pair[1]), "{reports:?}");
        assert_eq!(reports.first().map(|report| &report["status"]), Some(status), "{intent}");
    };
    for run in runs {
        assert_told(&run.intent.as_str().into(), &"STAGED".into());
        let set = fixture.set(run);
        for decision in set["decisions"].as_array().expect("a list") {
            assert_told(&decision["intent"], &decision["status"]);
        }
    }
    assert_chain_holds(fixture.home());
}

#[test]
fn sets_and_decisions_survive_any_restart() {
    let mut fixture = StagedFixture::start([edits(EDITS, "staged"), edits("together", "atomic")]);
    let waiting = fixture.stage(EDITS);
    let discarded = fixture.stage(EDITS);
    fixture.succeed("otto", Act::Discard, &discarded);
    let atomic = fixture.run_apart("together", "SUCCESS");
    let ids = [&waiting, &discarded, &atomic];
    let states = ["waiting", "discarded", "in_force"];
    for is_killed in [true, false] {
        let sets = fixture.sets("gov");
        let whole = fixture.set(&waiting);
        assert_eq!(sets.len(), 2, "{sets:?}");
        let home = if is_killed { fixture.kill() } else { fixture.stop() };
        fixture.start_in(home);
        assert_eq!(ids.map(|run| fixture.state(run)), states, "{is_killed}");
        assert_eq!((fixture.sets("gov"), fixture.set(&waiting)), (sets, whole), "{is_killed}");
        assert_eq!(fixture.files(), entries(AFTER), "{is_killed}");
    }
    fixture.succeed("anna", Act::Undo, &atomic);
    assert_eq!(fixture.files(), entries(BEFORE));
    let home = fixture.kill();
    fixture.start_in(home);
    // The undo has moved the originals back, which the waiting run saw: they are others to it, in their times at least.
    let run = fixture.stage(EDITS);
    fixture.succeed("anna", Act::Commit, &run);
    let home = fixture.kill();
    fixture.start_in(home);
    assert_eq!(fixture.assert_agrees(&run, "a commit before a kill"), "in_force");
    fixture.succeed("anna", Act::Undo, &run);
    let home = fixture.stop();
    fixture.start_in(home);
    assert_eq!(fixture.assert_agrees(&run, "an undo before a stop"), "undone");
    assert_reported(&fixture, &[waiting, discarded, run]);
}

#[test]
fn a_kill_at_any_step_of_a_decision_leaves_what_its_state_says() {
    if !has_strace() {
        return;
    }
    // Compiled once, so that the tool is ready below.
    let mut fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let steps = Act::ALL.len() * CALLS.len();
    let mut runs = Vec::new();
    let mut kills = 0;
    for round in 0..times(2 * steps) {
        let act = Act::ALL[round % Act::ALL.len()];
        let call = CALLS[round / Act::ALL.len() % CALLS.len()];
        let nth = 1 + round / steps;
        let context = format!("{act:?}, {call} {nth}");
        let run = prepare(&fixture, act);
        let home = fixture.kill();
        let inject = format!("--inject={call}:signal=KILL:when={nth}");
        let mut traced = Process::spawn("traced executor", &mut under_strace(&home, call, &inject));
        let answer = traced.listens_on_unless_it_ends().and_then(|address| {
            let answer =
                HttpClient::ask_as(address, &fixture.tokens["anna"], &act.method(), &act.params(&run));
            kills += usize::from(answer.is_none());
            answer
        });
        traced.kill_children();
        traced.wait_for_exit();
        fixture.start_in(home);
        settle(&fixture, &run, act, answer.as_ref(), &context);
        runs.push(run);
    }
    assert!(kills > 0, "no process was killed during a decision");
    assert_reported(&fixture, &runs);
}

#[test]
fn answered_decisions_on_file_changes_survive_a_kill() {
    let mut fixture = StagedFixture::start([edits(EDITS, "staged")]);
    let mut runs = Vec::new();
    for round in 0..times(6) {
        let act = Act::ALL[round % Act::ALL.len()];
        let run = prepare(&fixture, act);
        let address = fixture.executor().address();
        let token = fixture.tokens["anna"].clone();
        let (home, answer) = std::thread::scope(|scope| {
            let deciding =
                scope.spawn(|| HttpClient::ask_as(address, &token, &act.method(), &act.params(&run)));
            std::thread::sleep(moment(40));
            let home = fixture.kill();
            (home, deciding.join().unwrap())
        });
        fixture.start_in(home);
        settle(&fixture, &run, act, answer.as_ref(), &format!("{act:?}, {round}"));
        runs.push(run);
    }
    assert_reported(&fixture, &runs);
}

/// Several people decide on one set at the same moment: one of them does.
#[test]
fn a_set_is_decided_once_however_many_decide() {
    let fixture = StagedFixture::start([edits(EDITS, "staged")]);
    for round in 0..times(3) {
        let run = prepare(&fixture, Act::Commit);
        let address = fixture.executor().address();
        let acts =
            [("anna", Act::Commit), ("gov", Act::Commit), ("agent", Act::Discard), ("otto", Act::Discard)];
        let answers = std::thread::scope(|scope| {
            let deciding = acts.map(|(who, act)| {
                let token = &fixture.tokens[who];
                let run = &run;
                scope.spawn(move || HttpClient::ask_as(address, token, &act.method(), &act.params(run)))
            });
            deciding.map(|thread| thread.join().unwrap().expect("an answer"))
        });
        let made = answers.iter().zip(acts).filter(|(answer, _)| answer.get("result").is_some());
        let made = made.map(|(_, (_, act))| act).collect::<Vec<_>>();
        assert_eq!(made.len(), 1, "{round}: {answers:?}");
        let state = fixture.assert_agrees(&run, "one decision");
        assert_eq!(state, made[0].state(), "{round}");
        assert_decisions_agree(&fixture, &run, &state, "one decision");
        assert_eq!(fixture.set(&run)["decisions"].as_array().map(Vec::len), Some(1));
    }
}
