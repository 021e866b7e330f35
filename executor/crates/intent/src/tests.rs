#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

use crate::{
    AbortEffect, Abortable, Changes, ClaimError, Content, Ended, EndedWait, HoldError, HoldOutcome, IfIdle,
    Intents, Outdated, Owner, RunId, RunPlace, Scope, StartError, StoredWait, Wait, WaitId, WakeCondition,
};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::node::NodeName;
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

fn wait(agent: &str) -> Wait<Plain> {
    Wait::new(owner(agent), "call", EXPIRED)
}

fn agent_did(agent: &str) -> AgentDid {
    AgentDid::parse(&format!("did:a:{agent}")).unwrap()
}

fn stop(target: StopTarget) -> Stop {
    Stop { target, reason: OperatorReason::parse("why").unwrap(), by: "anna".to_owned(), since: NOW }
}

fn hold(intents: &mut Intents<Plain>, intent: IntentId) -> WaitId {
    match intents.hold(intent, wait("b")).unwrap() {
        HoldOutcome::New(wait) => wait,
        HoldOutcome::Known => panic!("it waits already"),
    }
}

fn with_one() -> (Intents<Plain>, IntentId, WaitId) {
    let mut intents = intents();
    let intent = IntentId::random();
    let wait = hold(&mut intents, intent);
    (intents, intent, wait)
}

fn take(intents: &mut Intents<Plain>, intent: IntentId) -> Option<WaitId> {
    match intents.waits.take_undecided(intent) {
        IfIdle::Idle((_, taken)) => Some(taken),
        IfIdle::InDecision | IfIdle::Absent => None,
    }
}

fn partial_approvals(intents: &Intents<Plain>, intent: IntentId) -> &[&'static str] {
    intents.waits.get(intent).unwrap().partial_approvals()
}

fn count(intents: &Intents<Plain>, is_selected: impl Fn(&Wait<Plain>) -> bool) -> usize {
    intents.waits.select(is_selected).count()
}

fn wake_condition(intents: &Intents<Plain>, intent: IntentId) -> Option<WakeCondition> {
    intents.waits.get(intent).map(Wait::wake_condition)
}

fn cancel(intents: &mut Intents<Plain>, intent: IntentId) -> Option<Ended<&'static str>> {
    let ended = intents.end(intent, |_| true, AbortReason::Cancelled)?;
    Some(ended.map(|wait| wait.call))
}

#[test]
fn an_approved_intent_that_waits_again_has_no_approval_and_a_new_number() {
    let (mut intents, intent, first) = with_one();
    assert_eq!(take(&mut intents, intent), Some(first));
    intents.waits.wait_to_run(first, "approval");
    assert_eq!(intents.waits.take_approved(intent), Some((&"call", first, "approval")));
    let announced = count(&intents, Wait::awaits_decision_here);
    assert_eq!(announced, 0, "it is announced again if it waits again");
    let second = intents.waits.wait_again(first).unwrap();
    assert_eq!(count(&intents, Wait::is_approved), 0);
    assert_eq!(take(&mut intents, intent), Some(second));
    assert_eq!(intents.waits.check_current(first), Err(Outdated::WaitEnded));
    assert_eq!(intents.waits.check_current(second), Ok(()));
    assert_eq!(intents.waits.wait_again(first), None, "another wait");
    assert!(intents.waits.end(second));
    assert_eq!(intents.waits.wait_again(second), None, "it was stopped");
}

/// The value of an intent that arrived at another node.
fn stored(
    revision: u64,
    number: u64,
    partial_approvals: &[&'static str],
    is_decided: bool,
) -> StoredWait<Plain> {
    let home = Some(NodeName::try_from("other".to_owned()).unwrap());
    let partial_approvals = partial_approvals.to_vec();
    StoredWait { wait: wait("b"), home, revision, number, partial_approvals, is_decided }
}

#[test]
fn an_intent_of_another_node_is_decided_and_run_here_or_there() {
    let mut intents = intents();
    let intent = IntentId::random();
    intents.waits.fleet().follow(intent, stored(1, 5, &[], false));
    assert_eq!(intents.waits.take_changes(), Changes::List);
    let wait = intents.waits.get(intent).unwrap();
    assert!(wait.is_stored() && !wait.is_recorded() && wait.home().is_some());
    assert_eq!((intents.waits.undecided(NOW).count(), count(&intents, Wait::awaits_decision_here)), (1, 0));
    intents.waits.fleet().follow(intent, stored(1, 5, &[], false));
    assert_eq!(intents.waits.take_changes(), Changes::None, "nothing has changed");
    intents.waits.fleet().follow(intent, stored(2, 5, &["partial"], false));
    intents.waits.fleet().follow(intent, stored(1, 5, &[], false));
    assert_eq!(partial_approvals(&intents, intent), ["partial"], "the value is older");
    // The task that decides here finds out itself that somebody else has decided.
    let taken = take(&mut intents, intent).unwrap();
    assert_eq!(taken.number(), 5);
    assert!(!intents.waits.fleet().follow(intent, stored(3, 5, &[], true)));
    assert_eq!(intents.waits.take_undecided(intent), IfIdle::InDecision);
    intents.waits.release(taken);
    intents.waits.fleet().follow(intent, stored(3, 5, &[], true));
    assert_eq!(intents.waits.take_undecided(intent), IfIdle::Absent);
    assert_eq!(count(&intents, Wait::is_decided), 1);
    let run = intents.waits.fleet().take_decided(intent).unwrap().1;
    assert!(intents.waits.fleet().take_decided(intent).is_none() && count(&intents, Wait::is_followed) == 1);
    intents.waits.fleet().leave(run);
    intents.waits.fleet().follow(intent, stored(4, 6, &[], false));
    assert!(!intents.waits.mark_claimed(run), "it is in a new wait");
    // Each node ends its own intents when it is told of a stop.
    let follows = intents.stop(stop(StopTarget::Everything), Scope::ThisNode);
    assert!(follows.waits.is_empty() && intents.waits.is_held(intent));
    let ended = intents.stop(stop(StopTarget::Everything), Scope::Fleet);
    assert_eq!(ended.waits, [EndedWait { call: "call", is_recorded: false }]);
}

#[test]
fn an_intent_that_was_decided_here_is_recorded_here() {
    let mut intents = intents();
    let intent = IntentId::random();
    intents.waits.fleet().follow(intent, stored(3, 5, &[], true));
    intents.waits.fleet().mark_recorded(intent);
    // The approval is withdrawn by a later value only.
    intents.waits.fleet().note_revision(intent, 4);
    assert_eq!(intents.waits.fleet().mark_unrecorded(intent, 4), None);
    assert_eq!(intents.waits.fleet().mark_unrecorded(intent, 5), Some(&"call"));
    intents.waits.fleet().mark_recorded(intent);
    let ended = intents.waits.remove_idle(intent);
    assert_eq!(ended, IfIdle::Idle(EndedWait { call: "call", is_recorded: true }));
    assert_eq!(intents.waits.remove_idle(intent), IfIdle::Absent);
}

// A revocation may come while an approved intent is taken for another attempt to run.
#[test]
fn an_approved_intent_that_was_revoked_and_sent_again_is_neither_claimed_nor_approved() {
    let (mut intents, intent, first) = with_one();
    assert_eq!(take(&mut intents, intent), Some(first));
    assert_eq!(cancel(&mut intents, intent), Some(Ended::Wait("call")));
    assert!(!intents.waits.mark_claimed(first));
    hold(&mut intents, intent);
    assert!(!intents.waits.mark_claimed(first) && !intents.waits.end(first));
    intents.waits.wait_to_run(first, "approval");
    assert_eq!(count(&intents, Wait::is_approved), 0);
    assert!(take(&mut intents, intent).is_some());
}

#[test]
fn a_cancellation_ends_the_wait_until_the_approval_is_being_recorded_and_then_the_run() {
    let (mut intents, intent, taken) = with_one();
    assert_eq!(take(&mut intents, intent), Some(taken));
    let run = TestRun::default();
    let id = intents.claim(intent, owner("b"), run.clone()).unwrap();
    intents.waits.mark_approving(taken);
    assert_eq!(intents.waits.take_undecided(intent), IfIdle::InDecision, "the other decision may fail");
    assert_eq!(intents.waits.remove_idle(intent), IfIdle::InDecision);
    assert_eq!(cancel(&mut intents, intent), Some(Ended::Run(AbortEffect::First)));
    assert_eq!(cancel(&mut intents, intent), Some(Ended::Run(AbortEffect::Repeated)));
    assert_eq!(*run.0.borrow(), [AbortReason::Cancelled; 2]);
    intents.waits.mark_deciding(taken);
    assert_eq!(cancel(&mut intents, intent), Some(Ended::Wait("call")));
    assert_eq!(intents.runs.end(id), Some(AbortReason::Cancelled));
    assert_eq!(cancel(&mut intents, intent), None);
}

// A decision in progress may end after its intent was removed and sent again.
#[test]
fn a_decision_ends_only_the_wait_that_it_was_taken_from() {
    let (mut intents, intent, first) = with_one();
    assert_eq!(take(&mut intents, intent), Some(first));
    assert!(intents.waits.end(first));
    let second = hold(&mut intents, intent);
    assert!(!intents.waits.end(first));
    assert_eq!(take(&mut intents, intent), Some(second));
    intents.waits.release(first);
    assert_eq!(take(&mut intents, intent), None, "it is still taken");
    assert_eq!(intents.waits.check_current(second), Ok(()));
    assert_eq!(intents.waits.release_with_approval(first, "partial"), Err(Outdated::WaitEnded));
    assert_eq!(intents.waits.release_with_approval(second, "partial"), Ok(()));
    assert_eq!(partial_approvals(&intents, intent), ["partial"]);
    // An approver may have been removed from the list of callers.
    let third = take(&mut intents, intent).unwrap();
    intents.waits.forget_all_partial_approvals();
    assert_eq!(intents.waits.check_current(third), Err(Outdated::ApprovalsForgotten));
    assert_eq!(intents.waits.release_with_approval(third, "partial"), Err(Outdated::ApprovalsForgotten));
    assert_eq!(partial_approvals(&intents, intent), [""; 0]);
}

// Between the release of its claim and its next wait, an approved intent is known only here.
#[test]
fn an_approved_intent_stays_until_its_run_has_finished() {
    let (mut intents, intent, taken) = with_one();
    assert_eq!(intents.waits.take_changes(), Changes::List);
    assert_eq!(wake_condition(&intents, intent), Some(WakeCondition::Until(EXPIRED)));
    assert_eq!(take(&mut intents, intent), Some(taken));
    assert_eq!(wake_condition(&intents, intent), Some(WakeCondition::AnotherTask));
    assert!(intents.waits.mark_claimed(taken));
    assert_eq!(
        intents.waits.take_changes(),
        Changes::Waits,
        "tasks that wait for the intent look it up again"
    );
    assert_eq!(
        intents.waits.visible_call(intent, NOW),
        None,
        "only the journal answers for a claimed intent"
    );
    assert!(intents.waits.get(intent).is_some_and(|wait| wait.is_in_time(NOW)));
    assert_eq!(count(&intents, Wait::awaits_decision_here), 0);
    assert!(intents.waits.expire(EXPIRED).is_empty(), "a claimed intent does not expire here");
    assert_eq!(cancel(&mut intents, intent), None);
    intents.waits.wait_to_run(taken, "approval");
    assert!(intents.waits.visible_call(intent, NOW).is_some());
    assert!(intents.waits.take_approved(intent).is_some() && intents.waits.take_approved(intent).is_none());
    assert!(intents.waits.end(taken));
    assert_eq!(wake_condition(&intents, intent), None);
}

#[test]
fn an_expiry_is_a_change_and_no_wait_has_the_number_of_an_earlier_one() {
    let (mut intents, intent, first) = with_one();
    intents.waits.take_changes();
    assert!(intents.waits.expire(EXPIRED - time::Duration::NANOSECOND).is_empty());
    assert_eq!(intents.waits.take_changes(), Changes::None);
    assert_eq!(intents.waits.expire(EXPIRED), [EndedWait { call: "call", is_recorded: true }]);
    assert_eq!(intents.waits.take_changes(), Changes::Waits);
    assert_eq!(wake_condition(&intents, intent), None);
    assert_ne!(hold(&mut intents, intent).number(), first.number());
}

#[test]
fn only_so_many_intents_wait_and_claimed_ones_do_not_count() {
    let mut intents = intents();
    let waits = [(); 3].map(|()| IntentId::random());
    let first = waits.map(|intent| hold(&mut intents, intent))[0];
    let next = |intents: &mut Intents<Plain>, agent| intents.hold(IntentId::random(), wait(agent)).map(drop);
    assert_eq!(next(&mut intents, "b"), Err(HoldError::NoRoom), "of one agent");
    assert_eq!(intents.hold(waits[0], wait("b")), Ok(HoldOutcome::Known), "a repeat");
    assert_eq!(next(&mut intents, "c"), Ok(()));
    assert_eq!(next(&mut intents, "d"), Err(HoldError::NoRoom), "of all");
    take(&mut intents, waits[0]);
    assert!(intents.waits.mark_claimed(first));
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
        let id = intents.claim(running, owner("b"), run.clone()).unwrap();
        let passed_run = intents.claim(passed, owner("b"), TestRun::default()).unwrap();
        intents.runs.pass_on(passed_run);
        let ended = intents.stop(stop(target.clone()), Scope::Fleet);
        let includes_other = target != StopTarget::Agent(agent_did("b"));
        assert_eq!(ended.waits.len(), 1 + usize::from(includes_other));
        assert_eq!(
            (ended.run_count, &*ended.newly_aborted),
            (1, &[running][..]),
            "the other node aborts its own"
        );
        assert_eq!((intents.waits.is_held(waiting), intents.waits.is_held(other)), (false, !includes_other));
        let stopped = stop(target.clone());
        let held = intents.hold(waiting, wait("b"));
        assert_eq!(held, Err(HoldError::Stopped(stopped.clone())));
        let claimed = intents.claim(IntentId::random(), owner("b"), TestRun::default());
        assert_eq!(claimed, Err(ClaimError::Stopped(stopped.clone())));
        let Owner { agent, tool, .. } = owner("b");
        assert_eq!(intents.check_start(running, &agent, &tool), Err(StartError::Stopped(stopped)));
        let stop_number = intents.stops.get(&target).unwrap().number;
        assert!(intents.stops.remove(&target, stop_number) && intents.stops.list().is_empty());
        assert_eq!(intents.check_start(running, &agent, &tool), Err(StartError::StopLifted));
        intents.runs.take_back(passed_run);
        assert_eq!(intents.check_start(passed, &agent, &tool), Err(StartError::StopLifted));
        assert_eq!(intents.runs.end(id), Some(AbortReason::Stopped));
        assert_eq!(intents.check_start(IntentId::random(), &agent, &tool), Ok(()));
    }
}

fn hold_other(intents: &mut Intents<Plain>) -> IntentId {
    let other = IntentId::random();
    intents.hold(other, Wait::new(owner("c"), "other", EXPIRED)).unwrap();
    other
}

#[test]
fn a_resumption_does_not_lift_a_later_stop() {
    let mut intents = intents();
    intents.stop(stop(StopTarget::Everything), Scope::ThisNode);
    let first = intents.stops.get(&StopTarget::Everything).unwrap().number;
    intents.stop(stop(StopTarget::Everything), Scope::ThisNode);
    assert!(!intents.stops.remove(&StopTarget::Everything, first));
    assert_eq!(intents.stops.list().len(), 1);
}

#[test]
fn a_nested_call_ends_with_its_parent() {
    let mut intents = intents();
    let [parent, child, late] = [(); 3].map(|()| IntentId::random());
    let nested = Owner { parent: Some(parent), ..owner("b") };
    let parent_run = intents.claim(parent, owner("b"), TestRun::default()).unwrap();
    let run = TestRun::default();
    intents.claim(child, nested.clone(), run.clone()).unwrap();
    assert!(matches!(
        intents.hold(late, Wait::new(nested.clone(), "call", EXPIRED)),
        Ok(HoldOutcome::New(_))
    ));
    intents.runs.end(parent_run);
    intents.runs.abort_children(parent);
    assert_eq!(*run.0.borrow(), [AbortReason::ParentEnded]);
    assert_eq!(
        intents.hold(IntentId::random(), Wait::new(nested.clone(), "call", EXPIRED)),
        Err(HoldError::ParentEnded)
    );
    let orphan = TestRun::default();
    intents.claim(IntentId::random(), nested, orphan.clone()).unwrap();
    assert_eq!(*orphan.0.borrow(), [AbortReason::ParentEnded]);
}

#[test]
fn a_call_at_another_node_is_aborted_when_it_comes_back_or_at_the_end_of_the_process() {
    let mut intents = intents();
    let intent = IntentId::random();
    let run = TestRun::default();
    let id = intents.claim(intent, owner("b"), run.clone()).unwrap();
    intents.runs.pass_on(id);
    assert!(intents.runs.here().is_empty());
    assert_eq!(cancel(&mut intents, intent), Some(Ended::Run(AbortEffect::Elsewhere)));
    assert_eq!(intents.end(intent, |_| true, AbortReason::Revoked), Some(Ended::Run(AbortEffect::Elsewhere)));
    assert!(run.0.borrow().is_empty());
    intents.runs.take_back(id);
    assert_eq!(*run.0.borrow(), [AbortReason::Cancelled], "the first reason");
    assert_eq!(intents.runs.place(intent), Some((&owner("b"), RunPlace::Here)));
    intents.runs.pass_on(id);
    assert_eq!(intents.runs.abort_all(), 1);
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
    runs: Vec<(RunId, TestRun)>,
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
        let mut taken = Vec::<WaitId>::new();
        let mut numbers = Vec::<u64>::new();
        let Owner { agent, tool, .. } = owner("b");
        let one_of = |taken: &[WaitId], number: usize| taken.get(number % taken.len().max(1)).copied();
        for step in steps {
            match step {
                Step::Hold(number) => {
                    let intent = ids[number % ids.len()];
                    let was_held = intents.waits.is_held(intent);
                    match intents.hold(intent, wait("b")) {
                        Ok(HoldOutcome::New(wait)) => {
                            prop_assert!(!was_held && !numbers.contains(&wait.number()));
                            numbers.push(wait.number());
                            ledger.get_mut(&intent).unwrap().open_waits += 1;
                        }
                        Ok(HoldOutcome::Known) => prop_assert!(was_held),
                        Err(HoldError::Stopped(_)) => prop_assert!(!intents.stops.list().is_empty()),
                        Err(other) => prop_assert!(false, "{other:?}"),
                    }
                }
                Step::Take(number) => {
                    let intent = ids[number % ids.len()];
                    if let Some(wait) = take(&mut intents, intent) {
                        // Any other decision is excluded.
                        prop_assert_eq!(intents.waits.take_undecided(intent), IfIdle::InDecision);
                        taken.push(wait);
                    }
                }
                Step::Release(number) => {
                    if let Some(wait) = one_of(&taken, number) {
                        intents.waits.release(wait);
                    }
                }
                Step::Claim(number) => {
                    let intent = ids[number % ids.len()];
                    // The journal lets one call claim an intent.
                    if !intents.runs.is_active(intent) {
                        let run = TestRun::default();
                        let is_stopped = !intents.stops.list().is_empty();
                        let claimed = intents.claim(intent, owner("b"), run.clone());
                        prop_assert_eq!(claimed.is_err(), is_stopped);
                        if let Ok(id) = claimed {
                            ledger.get_mut(&intent).unwrap().runs.push((id, run));
                        }
                    }
                }
                Step::RecordApproval(number) => {
                    if let Some(wait) = one_of(&taken, number) {
                        let held = intents.waits.get(wait.intent).map(Wait::number);
                        let current = intents.waits.check_current(wait);
                        prop_assert!(current.is_err() || held == Some(wait.number()));
                        if current.is_ok() {
                            intents.waits.mark_approving(wait);
                        }
                    }
                }
                Step::TakeBack(number) => {
                    if let Some(wait) = one_of(&taken, number) {
                        intents.waits.mark_deciding(wait);
                    }
                }
                Step::MarkClaimed(number) => {
                    if let Some(wait) = one_of(&taken, number) {
                        let held = intents.waits.get(wait.intent).map(Wait::number);
                        prop_assert_eq!(intents.waits.mark_claimed(wait), held == Some(wait.number()));
                    }
                }
                Step::WaitToRun(number) => {
                    if let Some(wait) = one_of(&taken, number) {
                        intents.waits.wait_to_run(wait, "approval");
                    }
                }
                Step::Retry(number) => {
                    let intent = ids[number % ids.len()];
                    let retried = intents.waits.take_approved(intent).map(|(_, wait, _)| wait);
                    taken.extend(retried);
                }
                Step::WaitAgain(number) => {
                    if let Some(wait) = one_of(&taken, number)
                        && let Some(again) = intents.waits.wait_again(wait)
                    {
                        prop_assert!(!numbers.contains(&again.number()));
                        numbers.push(again.number());
                    }
                }
                Step::Deny(number) => {
                    let intent = ids[number % ids.len()];
                    if let IfIdle::Idle(_) = intents.waits.remove_idle(intent) {
                        ledger.get_mut(&intent).unwrap().open_waits -= 1;
                        prop_assert!(!intents.waits.is_held(intent));
                    }
                }
                Step::Cancel(number) => {
                    let intent = ids[number % ids.len()];
                    let place = intents.runs.place(intent).map(|(_, place)| place);
                    match intents.end(intent, |_| true, AbortReason::Cancelled) {
                        Some(Ended::Wait(_)) => {
                            ledger.get_mut(&intent).unwrap().open_waits -= 1;
                            prop_assert!(!intents.waits.is_held(intent));
                        }
                        Some(Ended::Run(effect @ (AbortEffect::First | AbortEffect::Repeated))) => {
                            let (_, run) = ledger[&intent].runs.last().unwrap();
                            prop_assert_eq!(run.0.borrow().len() == 1, effect == AbortEffect::First);
                        }
                        Some(Ended::Run(AbortEffect::Elsewhere)) => {
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
                        prop_assert_eq!(intents.runs.end(*earlier), None, "it ends no later run");
                    }
                    if let Some((id, run)) = runs.last() {
                        let was_active = intents.runs.is_active(intent);
                        let aborted = run.0.borrow().first().copied().filter(|_| was_active);
                        prop_assert_eq!(intents.runs.end(*id), aborted);
                        prop_assert!(!intents.runs.is_active(intent));
                    }
                }
                Step::EndWait(number) => {
                    if let Some(wait) = one_of(&taken, number)
                        && intents.waits.end(wait)
                    {
                        ledger.get_mut(&wait.intent).unwrap().open_waits -= 1;
                    }
                }
                Step::PassOn(number) => {
                    if let Some((id, _)) = ledger[&ids[number % ids.len()]].runs.last() {
                        intents.runs.pass_on(*id);
                    }
                }
                Step::ComeBack(number) => {
                    if let Some((id, _)) = ledger[&ids[number % ids.len()]].runs.last() {
                        intents.runs.take_back(*id);
                    }
                }
                Step::Stop => {
                    let ended = intents.stop(stop(StopTarget::Everything), Scope::ThisNode);
                    prop_assert!(ended.newly_aborted.len() <= ended.run_count);
                    for intent in ids {
                        // What is still held has a run, which was told to end, or its run has just ended.
                        if !intents.waits.is_held(intent) {
                            ledger.get_mut(&intent).unwrap().open_waits = 0;
                        }
                        prop_assert!(intents.check_start(intent, &agent, &tool).is_err());
                    }
                }
                Step::Resume => {
                    if let Some(stop) = intents.stops.get(&StopTarget::Everything) {
                        let number = stop.number;
                        prop_assert!(intents.stops.remove(&StopTarget::Everything, number));
                    }
                }
                Step::Expire => {
                    intents.waits.expire(EXPIRED);
                    for intent in ids {
                        if !intents.waits.is_held(intent) {
                            ledger.get_mut(&intent).unwrap().open_waits = 0;
                        }
                    }
                }
                Step::Forget => intents.waits.forget_all_partial_approvals(),
            }
            for intent in ids {
                // No wait is lost, and none is there twice.
                prop_assert_eq!(ledger[&intent].open_waits, u32::from(intents.waits.is_held(intent)));
            }
        }
    }
}
