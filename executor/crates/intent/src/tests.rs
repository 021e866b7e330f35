#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

use crate::{
    Abortable, Changes, ClaimError, Content, Ended, HoldError, Intents, Outdated, Owner, Registration,
    Removal, RunNumber, RunPlace, StartError, WaitNumber, WakeCondition,
};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::AbortReason;
use a2g_types::stop::{OperatorReason, Stop, StopTarget};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use time::OffsetDateTime;

const NOW: OffsetDateTime = time::macros::datetime!(2026-11-23 12:00 UTC);
const EXPIRED: OffsetDateTime = time::macros::datetime!(2026-11-23 12:01 UTC);

#[derive(Debug)]
struct Plain;

/// A run that remembers why it was aborted.
#[derive(Debug, Clone, Default)]
struct TestRun(Rc<RefCell<Vec<AbortReason>>>);

impl Abortable for TestRun {
    fn abort(&self, reason: AbortReason) {
        self.0.borrow_mut().push(reason);
    }
}

impl Content for Plain {
    type Call = &'static str;
    type Approval = &'static str;
    type PartialApproval = &'static str;
    type Run = TestRun;
}

fn intents() -> Intents<Plain> {
    Intents::new(4, 3, 7)
}

fn owner(agent: &str) -> Owner {
    Owner { agent: agent_did(agent), tool: ToolName::parse("t").unwrap(), parent: None }
}

fn agent_did(agent: &str) -> AgentDid {
    AgentDid::parse(&format!("did:a:{agent}")).unwrap()
}

fn stop(target: StopTarget) -> Stop {
    Stop { target, reason: OperatorReason::parse("why").unwrap(), by: "anna".to_owned(), since: NOW }
}

fn hold(intents: &mut Intents<Plain>, intent: IntentId) -> WaitNumber {
    match intents.hold(intent, owner("b"), "call", EXPIRED).unwrap() {
        Registration::New(wait) => wait,
        Registration::Known => panic!("it waits already"),
    }
}

fn with_one() -> (Intents<Plain>, IntentId, WaitNumber) {
    let mut intents = intents();
    let intent = IntentId::random();
    let wait = hold(&mut intents, intent);
    (intents, intent, wait)
}

fn take(intents: &mut Intents<Plain>, intent: IntentId) -> Option<WaitNumber> {
    match intents.take_undecided(intent) {
        Removal::Removed((_, taken)) => Some(taken),
        Removal::InDecision | Removal::Absent => None,
    }
}

fn cancel(intents: &mut Intents<Plain>, intent: IntentId) -> Option<Ended<&'static str>> {
    intents.end(intent, |_| true, AbortReason::Cancelled)
}

#[test]
fn an_approved_intent_that_waits_again_has_no_approval_and_a_new_number() {
    let (mut intents, intent, first) = with_one();
    assert_eq!(take(&mut intents, intent), Some(first));
    intents.wait_to_run(first, "approval");
    assert_eq!(intents.take_approved(intent), Some(((&"call", first), "approval")));
    assert_eq!(intents.awaiting_decision().count(), 0, "it is announced again if it waits again");
    let second = intents.wait_again(first).unwrap();
    assert_eq!(intents.approved().count(), 0);
    assert_eq!(take(&mut intents, intent), Some(second));
    assert_eq!(intents.check_current(first), Err(Outdated::WaitEnded));
    assert_eq!(intents.check_current(second), Ok(()));
    assert_eq!(intents.wait_again(first), None, "another wait");
    assert!(intents.end_wait(second));
    assert_eq!(intents.wait_again(second), None, "it was stopped");
}

// A revocation may come while an approved intent is taken for another attempt to run.
#[test]
fn an_approved_intent_that_was_revoked_and_sent_again_is_neither_claimed_nor_approved() {
    let (mut intents, intent, first) = with_one();
    assert_eq!(take(&mut intents, intent), Some(first));
    assert_eq!(cancel(&mut intents, intent), Some(Ended::Wait("call")));
    assert!(!intents.mark_claimed(first));
    hold(&mut intents, intent);
    assert!(!intents.mark_claimed(first) && !intents.end_wait(first));
    intents.wait_to_run(first, "approval");
    assert_eq!(intents.approved().count(), 0);
    assert!(take(&mut intents, intent).is_some());
}

#[test]
fn a_cancellation_ends_the_wait_until_the_approval_is_recorded_and_the_run_afterwards() {
    let (mut intents, intent, taken) = with_one();
    assert_eq!(take(&mut intents, intent), Some(taken));
    let run = TestRun::default();
    let number = intents.claim(intent, owner("b"), run.clone()).unwrap();
    intents.mark_approving(taken);
    assert_eq!(intents.take_undecided(intent), Removal::InDecision, "the other decision may fail");
    assert_eq!(intents.remove_undecided(intent), Removal::InDecision);
    assert_eq!(cancel(&mut intents, intent), Some(Ended::Run { is_first: true }));
    assert_eq!(cancel(&mut intents, intent), Some(Ended::Run { is_first: false }));
    assert_eq!(*run.0.borrow(), [AbortReason::Cancelled; 2]);
    intents.take_back(taken);
    assert_eq!(cancel(&mut intents, intent), Some(Ended::Wait("call")));
    assert_eq!(intents.end_run(intent, number), Some(AbortReason::Cancelled));
    assert_eq!(cancel(&mut intents, intent), None);
}

// A decision in progress may end after its intent was removed and sent again.
#[test]
fn a_decision_ends_only_the_wait_that_it_was_taken_from() {
    let (mut intents, intent, first) = with_one();
    assert_eq!(take(&mut intents, intent), Some(first));
    assert!(intents.end_wait(first));
    let second = hold(&mut intents, intent);
    assert!(!intents.end_wait(first));
    assert_eq!(take(&mut intents, intent), Some(second));
    intents.release(first);
    assert_eq!(take(&mut intents, intent), None, "it is still taken");
    assert_eq!(intents.check_current(second), Ok(()));
    assert_eq!(intents.release_with_approval(first, "partial"), Err(Outdated::WaitEnded));
    assert_eq!(intents.release_with_approval(second, "partial"), Ok(()));
    assert_eq!(intents.held_call(intent), Some((&"call", &["partial"][..])));
    // An approver may have been removed from the list of callers.
    let third = take(&mut intents, intent).unwrap();
    intents.forget_all_partial_approvals();
    assert_eq!(intents.check_current(third), Err(Outdated::ApprovalsForgotten));
    assert_eq!(intents.release_with_approval(third, "partial"), Err(Outdated::ApprovalsForgotten));
    assert_eq!(intents.held_call(intent), Some((&"call", &[][..])));
}

// Between the release of its claim and its next wait, an approved intent is known only here.
#[test]
fn an_approved_intent_stays_until_its_run_has_finished() {
    let (mut intents, intent, taken) = with_one();
    assert_eq!(intents.take_changes(), Changes::List);
    assert_eq!(intents.wake_condition(intent), Some(WakeCondition::Until(EXPIRED)));
    assert_eq!(take(&mut intents, intent), Some(taken));
    assert_eq!(intents.wake_condition(intent), Some(WakeCondition::AnotherTask));
    assert!(intents.mark_claimed(taken));
    assert_eq!(intents.take_changes(), Changes::Waits, "tasks that wait for the intent look it up again");
    assert_eq!(intents.visible_call(intent, NOW), None, "only the journal answers for a claimed intent");
    assert!(intents.pending_call(intent, NOW).is_some());
    assert_eq!(intents.undecided_count(NOW), 0);
    assert_eq!(intents.expire(EXPIRED), [""; 0], "a claimed intent does not expire here");
    assert_eq!(cancel(&mut intents, intent), None);
    intents.wait_to_run(taken, "approval");
    assert!(intents.visible_call(intent, NOW).is_some());
    assert!(intents.take_approved(intent).is_some() && intents.take_approved(intent).is_none());
    assert!(intents.end_wait(taken));
    assert_eq!((intents.pending_call(intent, NOW), intents.wake_condition(intent)), (None, None));
}

#[test]
fn an_expiry_is_a_change_and_no_wait_has_the_number_of_an_earlier_one() {
    let (mut intents, intent, first) = with_one();
    intents.take_changes();
    assert!(intents.expire(EXPIRED - time::Duration::NANOSECOND).is_empty());
    assert_eq!(intents.take_changes(), Changes::None);
    assert_eq!(intents.expire(EXPIRED), ["call"]);
    assert_eq!(intents.take_changes(), Changes::Waits);
    assert_eq!(intents.wake_condition(intent), None);
    assert_ne!(hold(&mut intents, intent).number(), first.number());
}

#[test]
fn only_so_many_intents_wait_and_claimed_ones_do_not_count() {
    let mut intents = intents();
    let waits = [(); 3].map(|()| IntentId::random());
    let first = waits.map(|intent| hold(&mut intents, intent))[0];
    let next = |intents: &mut Intents<Plain>, agent| {
        intents.hold(IntentId::random(), owner(agent), "call", EXPIRED).map(drop)
    };
    assert_eq!(next(&mut intents, "b"), Err(HoldError::NoRoom), "of one agent");
    assert_eq!(intents.hold(waits[0], owner("b"), "call", EXPIRED), Ok(Registration::Known), "a repeat");
    assert_eq!(next(&mut intents, "c"), Ok(()));
    assert_eq!(next(&mut intents, "d"), Err(HoldError::NoRoom), "of all");
    take(&mut intents, waits[0]);
    assert!(intents.mark_claimed(first));
    assert_eq!(next(&mut intents, "b"), Ok(()));
}

#[test]
fn a_call_that_is_stopped_neither_waits_nor_runs_until_the_stop_is_lifted() {
    for target in
        [StopTarget::Agent(agent_did("b")), StopTarget::Tool(owner("b").tool), StopTarget::Everything]
    {
        let (mut intents, waiting, _) = with_one();
        let [running, passed] = [(); 2].map(|()| IntentId::random());
        let other = hold_other(&mut intents);
        let run = TestRun::default();
        let number = intents.claim(running, owner("b"), run.clone()).unwrap();
        intents.claim(passed, owner("b"), TestRun::default()).unwrap();
        intents.pass_on(passed);
        let ended = intents.stop(stop(target.clone()));
        let includes_other = target != StopTarget::Agent(agent_did("b"));
        assert_eq!(ended.waits.len(), 1 + usize::from(includes_other));
        assert_eq!(
            (ended.run_count, &*ended.newly_stopped),
            (1, &[running][..]),
            "the other node stops its own"
        );
        assert_eq!((intents.is_held(waiting), intents.is_held(other)), (false, !includes_other));
        let stopped = stop(target.clone());
        let held = intents.hold(waiting, owner("b"), "call", EXPIRED);
        assert_eq!(held, Err(HoldError::Stopped(stopped.clone())));
        let claimed = intents.claim(IntentId::random(), owner("b"), TestRun::default());
        assert_eq!(claimed, Err(ClaimError::Stopped(stopped.clone())));
        let Owner { agent, tool, .. } = owner("b");
        assert_eq!(intents.check_start(running, &agent, &tool), Err(StartError::Stopped(stopped)));
        let stop_number = intents.stops().get(&target).unwrap().number;
        assert!(intents.stops_mut().remove(&target, stop_number) && intents.stops().list().is_empty());
        assert_eq!(intents.check_start(running, &agent, &tool), Err(StartError::StopLifted));
        intents.take_back_run(passed);
        assert_eq!(intents.check_start(passed, &agent, &tool), Err(StartError::StopLifted));
        assert_eq!(intents.end_run(running, number), Some(AbortReason::Stopped));
        assert_eq!(intents.check_start(IntentId::random(), &agent, &tool), Ok(()));
    }
}

fn hold_other(intents: &mut Intents<Plain>) -> IntentId {
    let other = IntentId::random();
    intents.hold(other, owner("c"), "other", EXPIRED).unwrap();
    other
}

#[test]
fn a_resumption_does_not_lift_a_later_stop() {
    let mut intents = intents();
    intents.stop(stop(StopTarget::Everything));
    let first = intents.stops().get(&StopTarget::Everything).unwrap().number;
    intents.stop(stop(StopTarget::Everything));
    assert!(!intents.stops_mut().remove(&StopTarget::Everything, first));
    assert_eq!(intents.stops().list().len(), 1);
}

#[test]
fn a_nested_call_ends_with_its_parent() {
    let mut intents = intents();
    let [parent, child, late] = [(); 3].map(|()| IntentId::random());
    let nested = Owner { parent: Some(parent), ..owner("b") };
    let parent_run = intents.claim(parent, owner("b"), TestRun::default()).unwrap();
    let run = TestRun::default();
    intents.claim(child, nested.clone(), run.clone()).unwrap();
    assert!(matches!(intents.hold(late, nested.clone(), "call", EXPIRED), Ok(Registration::New(_))));
    assert_eq!(intents.waits_of_callers().count(), 0);
    intents.end_run(parent, parent_run);
    intents.abort_children(parent);
    assert_eq!(*run.0.borrow(), [AbortReason::ParentEnded]);
    assert_eq!(
        intents.hold(IntentId::random(), nested.clone(), "call", EXPIRED),
        Err(HoldError::ParentEnded)
    );
    let orphan = TestRun::default();
    intents.claim(IntentId::random(), nested, orphan.clone()).unwrap();
    assert_eq!(*orphan.0.borrow(), [AbortReason::ParentEnded]);
}

#[test]
fn a_call_at_another_node_is_stopped_when_it_comes_back_or_at_the_end_of_the_process() {
    let mut intents = intents();
    let intent = IntentId::random();
    let run = TestRun::default();
    intents.claim(intent, owner("b"), run.clone()).unwrap();
    intents.pass_on(intent);
    assert!(intents.runs_here().is_empty());
    assert_eq!(cancel(&mut intents, intent), Some(Ended::Elsewhere));
    assert_eq!(intents.end(intent, |_| true, AbortReason::Revoked), Some(Ended::Elsewhere));
    assert!(run.0.borrow().is_empty());
    intents.take_back_run(intent);
    assert_eq!(*run.0.borrow(), [AbortReason::Cancelled], "the first reason");
    assert_eq!(intents.run_place(intent), Some((&owner("b"), RunPlace::Here)));
    intents.pass_on(intent);
    assert_eq!(intents.abort_runs(), 1);
    assert_eq!(*run.0.borrow(), [AbortReason::Cancelled, AbortReason::Shutdown]);
}

/// One step of a history; the numbers choose an intent, and one of the decisions that are in progress.
#[derive(Debug, Clone, Copy)]
enum Step {
    Hold(usize),
    Take(usize),
    Release(usize),
    Claim(usize),
    RecordApproval(usize),
    TakeBack(usize),
    MarkClaimed(usize),
    WaitToRun(usize),
    Retry(usize),
    WaitAgain(usize),
    Deny(usize),
    Cancel(usize),
    EndRun(usize),
    EndWait(usize),
    PassOn(usize),
    ComeBack(usize),
    Stop,
    Resume,
    Expire,
    Forget,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = 0..6_usize;
    let step = prop_oneof![
        4 => number.clone().prop_map(Step::Hold),
        4 => number.clone().prop_map(Step::Take),
        2 => number.clone().prop_map(Step::Release),
        3 => number.clone().prop_map(Step::Claim),
        3 => number.clone().prop_map(Step::RecordApproval),
        1 => number.clone().prop_map(Step::TakeBack),
        3 => number.clone().prop_map(Step::MarkClaimed),
        2 => number.clone().prop_map(Step::WaitToRun),
        2 => number.clone().prop_map(Step::Retry),
        1 => number.clone().prop_map(Step::WaitAgain),
        2 => number.clone().prop_map(Step::Deny),
        2 => number.clone().prop_map(Step::Cancel),
        2 => number.clone().prop_map(Step::EndRun),
        1 => number.clone().prop_map(Step::EndWait),
        1 => number.clone().prop_map(Step::PassOn),
        1 => number.prop_map(Step::ComeBack),
        1 => Just(Step::Stop),
        2 => Just(Step::Resume),
        1 => Just(Step::Expire),
        1 => Just(Step::Forget),
    ];
    prop::collection::vec(step, 1..120)
}

/// What a history has to keep true of one intent.
#[derive(Debug, Default)]
struct Ledger {
    /// The waits that began and that have not ended.
    open_waits: u32,
    runs: Vec<(RunNumber, TestRun)>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order: a wait ends once, a decision is about the wait that it was taken from, what is
    /// stopped neither waits nor begins, and what a cancellation found has ended or was told to.
    #[test]
    fn every_history_keeps_the_promises(steps in steps()) {
        let ids = [(); 3].map(|()| IntentId::random());
        let mut intents = Intents::<Plain>::new(100, 100, 0);
        let mut ledger = ids.map(|intent| (intent, Ledger::default())).into_iter().collect::<HashMap<_, _>>();
        let mut taken = Vec::<WaitNumber>::new();
        let mut numbers = Vec::<u64>::new();
        let Owner { agent, tool, .. } = owner("b");
        let one_of = |taken: &[WaitNumber], number: usize| taken.get(number % taken.len().max(1)).copied();
        for step in steps {
            match step {
                Step::Hold(number) => {
                    let intent = ids[number % ids.len()];
                    let was_held = intents.is_held(intent);
                    match intents.hold(intent, owner("b"), "call", EXPIRED) {
                        Ok(Registration::New(wait)) => {
                            prop_assert!(!was_held && !numbers.contains(&wait.number()));
                            numbers.push(wait.number());
                            ledger.get_mut(&intent).unwrap().open_waits += 1;
                        }
                        Ok(Registration::Known) => prop_assert!(was_held),
                        Err(HoldError::Stopped(_)) => prop_assert!(!intents.stops().list().is_empty()),
                        Err(other) => prop_assert!(false, "{other:?}"),
                    }
                }
                Step::Take(number) => {
                    let intent = ids[number % ids.len()];
                    if let Some(wait) = take(&mut intents, intent) {
                        // Any other decision is excluded.
                        prop_assert_eq!(intents.take_undecided(intent), Removal::InDecision);
                        taken.push(wait);
                    }
                }
                Step::Release(number) => {
                    if let Some(wait) = one_of(&taken, number) {
                        intents.release(wait);
                    }
                }
                Step::Claim(number) => {
                    let intent = ids[number % ids.len()];
                    // The journal lets one call claim an intent.
                    if !intents.is_active(intent) {
                        let run = TestRun::default();
                        let is_stopped = !intents.stops().list().is_empty();
                        let claimed = intents.claim(intent, owner("b"), run.clone());
                        prop_assert_eq!(claimed.is_err(), is_stopped);
                        if let Ok(number) = claimed {
                            ledger.get_mut(&intent).unwrap().runs.push((number, run));
                        }
                    }
                }
                Step::RecordApproval(number) => {
                    if let Some(wait) = one_of(&taken, number) {
                        let held = intents.wait_number(wait.intent);
                        let current = intents.check_current(wait);
                        prop_assert!(current.is_err() || held == Some(wait.number()));
                        if current.is_ok() {
                            intents.mark_approving(wait);
                        }
                    }
                }
                Step::TakeBack(number) => {
                    if let Some(wait) = one_of(&taken, number) {
                        intents.take_back(wait);
                    }
                }
                Step::MarkClaimed(number) => {
                    if let Some(wait) = one_of(&taken, number) {
                        let held = intents.wait_number(wait.intent);
                        prop_assert_eq!(intents.mark_claimed(wait), held == Some(wait.number()));
                    }
                }
                Step::WaitToRun(number) => {
                    if let Some(wait) = one_of(&taken, number) {
                        intents.wait_to_run(wait, "approval");
                    }
                }
                Step::Retry(number) => {
                    let intent = ids[number % ids.len()];
                    let retried = intents.take_approved(intent).map(|((_, wait), _)| wait);
                    taken.extend(retried);
                }
                Step::WaitAgain(number) => {
                    if let Some(wait) = one_of(&taken, number)
                        && let Some(again) = intents.wait_again(wait)
                    {
                        prop_assert!(!numbers.contains(&again.number()));
                        numbers.push(again.number());
                    }
                }
                Step::Deny(number) => {
                    let intent = ids[number % ids.len()];
                    if let Removal::Removed(_) = intents.remove_undecided(intent) {
                        ledger.get_mut(&intent).unwrap().open_waits -= 1;
                        prop_assert!(!intents.is_held(intent));
                    }
                }
                Step::Cancel(number) => {
                    let intent = ids[number % ids.len()];
                    let place = intents.run_place(intent).map(|(_, place)| place);
                    match intents.end(intent, |_| true, AbortReason::Cancelled) {
                        Some(Ended::Wait(_)) => {
                            ledger.get_mut(&intent).unwrap().open_waits -= 1;
                            prop_assert!(!intents.is_held(intent));
                        }
                        Some(Ended::Run { is_first }) => {
                            let (_, run) = ledger[&intent].runs.last().unwrap();
                            prop_assert_eq!(run.0.borrow().len() == 1, is_first);
                        }
                        Some(Ended::Elsewhere) => {
                            let is_elsewhere = matches!(place, Some(RunPlace::Elsewhere { .. }));
                            prop_assert!(is_elsewhere);
                        }
                        None => prop_assert_eq!(place, None),
                    }
                }
                Step::EndRun(number) => {
                    let intent = ids[number % ids.len()];
                    let runs = &ledger[&intent].runs;
                    if let Some((earlier, _)) = runs.iter().rev().nth(1) {
                        prop_assert_eq!(intents.end_run(intent, *earlier), None, "it ends no later run");
                    }
                    if let Some((number, run)) = runs.last() {
                        let was_active = intents.is_active(intent);
                        let aborted = run.0.borrow().first().copied().filter(|_| was_active);
                        prop_assert_eq!(intents.end_run(intent, *number), aborted);
                        prop_assert!(!intents.is_active(intent));
                    }
                }
                Step::EndWait(number) => {
                    if let Some(wait) = one_of(&taken, number)
                        && intents.end_wait(wait)
                    {
                        ledger.get_mut(&wait.intent).unwrap().open_waits -= 1;
                    }
                }
                Step::PassOn(number) => intents.pass_on(ids[number % ids.len()]),
                Step::ComeBack(number) => intents.take_back_run(ids[number % ids.len()]),
                Step::Stop => {
                    let ended = intents.stop(stop(StopTarget::Everything));
                    prop_assert!(ended.newly_stopped.len() <= ended.run_count);
                    for intent in ids {
                        // What is still held has a run, which was told to end, or its run has just ended.
                        if !intents.is_held(intent) {
                            ledger.get_mut(&intent).unwrap().open_waits = 0;
                        }
                        prop_assert!(intents.check_start(intent, &agent, &tool).is_err());
                    }
                }
                Step::Resume => {
                    if let Some(stop) = intents.stops().get(&StopTarget::Everything) {
                        let number = stop.number;
                        prop_assert!(intents.stops_mut().remove(&StopTarget::Everything, number));
                    }
                }
                Step::Expire => {
                    intents.expire(EXPIRED);
                    for intent in ids {
                        if !intents.is_held(intent) {
                            ledger.get_mut(&intent).unwrap().open_waits = 0;
                        }
                    }
                }
                Step::Forget => intents.forget_all_partial_approvals(),
            }
            for intent in ids {
                // No wait is lost, and none is there twice.
                prop_assert_eq!(ledger[&intent].open_waits, u32::from(intents.is_held(intent)));
            }
        }
    }
}
