//! The room of sets, and the decisions on them.

use super::*;
use crate::run::effects::{EffectsLocation, EffectsSettings};
use std::time::Duration;

/// The room of all sets together, in bytes.
const ROOM: u64 = 100;
/// The room with which a run may begin.
const LEAST: u64 = ROOM / 8;

fn new_folder() -> Arc<EffectsFolder> {
    let minute = Duration::from_secs(60);
    let settings = EffectsSettings { decide_within: minute, keep: minute, max_bytes: ROOM };
    Arc::new(EffectsFolder::new(EffectsLocation::Temporary, settings))
}

fn agent(name: &str) -> AgentDid {
    AgentDid::parse(&format!("did:aeon:{name}:1.0:abc123")).unwrap()
}

/// Adds a set of an agent that uses so many bytes, and that is in its state since so many microseconds.
fn add(effects: &EffectsFolder, of: &str, state: KeptState, bytes: u64, since: i64) -> IntentId {
    let run = run(of);
    let stored = StoredSet { version: VERSION, state, since, until: since + 1, bytes };
    effects.remember(&run, FileEffects::Staged, &one_change(), format!("{}-0", run.intent), stored, 0);
    run.intent
}

fn run(of: &str) -> RunIdentity {
    RunIdentity { intent: IntentId::random(), agent: agent(of), tool: ToolName::parse("tool").unwrap() }
}

fn one_change() -> FileChanges {
    FileChanges::new(1, Digest([0; 32]))
}

/// The message for a run for which there is no room.
fn refusal(effects: &EffectsFolder, of: &str, mode: FileEffects) -> String {
    let refused = effects.check_room(&agent(of), mode);
    let Err(Fault::Busy { message, .. }) = refused else { panic!("{refused:?}") };
    message
}

#[test]
fn the_oldest_undo_of_the_agent_that_uses_most_is_forgotten_first() {
    let effects = new_folder();
    add(&effects, "small", KeptState::InForce, 10, 0);
    let large = [1, 2, 3].map(|since| add(&effects, "large", KeptState::InForce, 30, since));
    assert!(effects.excess().is_empty());
    add(&effects, "large", KeptState::Waiting, 5, 0);
    assert_eq!(effects.excess(), large[..1]);
    // So many that one is not enough. What waits is never forgotten.
    add(&effects, "other", KeptState::Waiting, 50, 0);
    assert_eq!(effects.excess(), large[..2]);
    // Nor is a set that somebody decides on, or that an operator has to look at.
    let deciding = effects.take(large[0], ChangeState::InForce).unwrap();
    assert_eq!(effects.excess(), large[1..]);
    effects.take(large[1], ChangeState::InForce).unwrap().leave();
    drop(deciding);
    assert_eq!(effects.excess(), [large[0], large[2]]);
}

#[test]
fn an_agent_has_half_of_the_room_for_what_waits() {
    let effects = new_folder();
    let modes = [FileEffects::Atomic, FileEffects::Staged];
    // What is in force counts for nobody.
    add(&effects, "greedy", KeptState::InForce, 90, 0);
    add(&effects, "greedy", KeptState::Waiting, ROOM / 2 - LEAST, 0);
    modes.iter().for_each(|mode| effects.check_room(&agent("greedy"), *mode).unwrap());
    assert_eq!((effects.room(&agent("greedy")), effects.room(&agent("other"))), (LEAST, ROOM / 2));
    add(&effects, "greedy", KeptState::Waiting, 1, 0);
    for mode in modes {
        let message = refusal(&effects, "greedy", mode);
        assert!(message.contains("half of `effects.max_mb`"), "{message}");
        effects.check_room(&agent("other"), mode).unwrap();
    }
    add(&effects, "other", KeptState::Waiting, ROOM / 2, 0);
    for mode in modes {
        let message = refusal(&effects, "third", mode);
        assert!(message.contains("all of `effects.max_mb`"), "{message}");
    }
}

#[test]
fn changes_wait_only_if_there_is_room_for_them() {
    let effects = new_folder();
    let wait = |of: &str, bytes| {
        let run = run(of);
        let stored = StoredSet { version: VERSION, state: KeptState::Waiting, since: 0, until: 1, bytes };
        effects.remember_waiting(&run, &one_change(), format!("{}-0", run.intent), stored)
    };
    // Both have begun while there was room for each of them.
    wait("one", 40).unwrap();
    assert!(wait("one", 11).unwrap_err().contains("`effects.max_mb`"));
    wait("one", 10).unwrap();
    wait("two", 50).unwrap();
    assert!(wait("three", 1).is_err());
    let waiting = effects.list(&|_: &AgentDid| true);
    assert_eq!(waiting.iter().map(|set| set.bytes).sum::<u64>(), ROOM);
}

#[test]
fn an_agent_has_a_part_of_the_number_of_sets_that_wait() {
    let effects = new_folder();
    for _ in 1..MAX_WAITING_PER_AGENT {
        add(&effects, "many", KeptState::Waiting, 0, 0);
    }
    effects.check_room(&agent("many"), FileEffects::Staged).unwrap();
    add(&effects, "many", KeptState::Waiting, 0, 0);
    let message = refusal(&effects, "many", FileEffects::Staged);
    assert!(message.contains("too many"), "{message}");
    effects.check_room(&agent("many"), FileEffects::Atomic).unwrap();
    effects.check_room(&agent("other"), FileEffects::Staged).unwrap();
}

#[test]
fn one_decision_is_made_at_a_time_and_none_on_what_an_operator_has_to_look_at() {
    let effects = new_folder();
    let intent = add(&effects, "agent", KeptState::Waiting, 1, 0);
    let until = effects.summary(intent).unwrap().until;
    let due = || effects.due(until).into_iter().map(|summary| summary.intent).collect::<Vec<_>>();
    let take = |state| effects.take(intent, state);
    assert!(matches!(take(ChangeState::InForce), Err(Fault::InvalidRequest(_))));
    assert_eq!(due(), [intent]);
    let mut first = take(ChangeState::Waiting).unwrap();
    first.count_decision();
    assert!(matches!(take(ChangeState::Waiting), Err(Fault::Busy { .. })));
    assert!(due().is_empty());
    drop(first);
    let second = take(ChangeState::Waiting).unwrap();
    assert_eq!(second.next_decision(), 2);
    second.leave();
    let refused = take(ChangeState::Waiting).map(drop);
    let Err(Fault::InvalidRequest(message)) = &refused else { panic!("{refused:?}") };
    assert!(message.contains("operator"), "{message}");
    assert!(due().is_empty());
    assert_eq!(effects.summary(intent).unwrap().state, ChangeState::Waiting);
}

#[test]
fn what_is_being_sent_is_withdrawn_and_not_decided_on() {
    let effects = new_folder();
    let intent = add(&effects, "own", KeptState::Waiting, 1, 0);
    let mut sending = effects.take(intent, ChangeState::Waiting).unwrap();
    sending.note_sending();
    let all = |_: &AgentDid| true;
    assert!(effects.is_sending(intent, &all) && effects.waiting_count(&all) == 0);
    assert_eq!(effects.summary(intent).unwrap().state, ChangeState::Sending);
    for state in [ChangeState::Waiting, ChangeState::InForce] {
        assert!(matches!(effects.take(intent, state), Err(Fault::Busy { .. })));
    }
    assert_eq!(effects.withdraw_sets(&all), [intent]);
    assert!(effects.is_withdrawn(intent));
    // A decision that is dropped then has taken effect without a record.
    drop(sending);
    assert!(effects.is_blocked(intent) && !effects.is_sending(intent, &all));
}

#[test]
fn what_waits_is_withdrawn_also_while_somebody_decides_on_it() {
    let effects = new_folder();
    let waits = add(&effects, "own", KeptState::Waiting, 1, 0);
    let in_force = add(&effects, "own", KeptState::InForce, 1, 0);
    let foreign = add(&effects, "other", KeptState::Waiting, 1, 0);
    let deciding = effects.take(waits, ChangeState::Waiting).unwrap();
    let own = agent("own");
    assert_eq!(effects.withdraw_sets(&|of: &AgentDid| *of == own), [waits]);
    drop(deciding);
    assert_eq!([waits, in_force, foreign].map(|set| effects.is_withdrawn(set)), [true, false, false]);
    assert!(effects.is_withdrawn(IntentId::random()), "a set that is gone is committed by nobody");
}
