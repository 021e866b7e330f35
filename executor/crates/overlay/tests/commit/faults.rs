//! Calls that fail, as on a full or a broken disk.

use super::stride;
use super::support::Fixture;
use a2g_overlay::{CommitError, Disk, Recovered};
use rustix::io::Errno;

/// A disk of which one call fails, or that call and all later ones.
fn broken(call: u64, is_forever: bool) -> Disk {
    Disk::with_hook(move |number| {
        let fails = number == call || is_forever && number > call;
        fails.then_some(Errno::NOSPC)
    })
}

fn check(new: fn() -> Fixture, step: usize) {
    let fixture = new();
    let before = fixture.snapshot();
    let commit = Disk::new();
    fixture.commit(&fixture.run_all(), &commit).unwrap();
    let after = fixture.snapshot();
    let undo = Disk::new();
    fixture.undo(&undo).unwrap();
    for is_forever in [false, true] {
        for call in (0..commit.calls()).step_by(step) {
            let fixture = new();
            let result = fixture.commit(&fixture.run_all(), &broken(call, is_forever));
            let recovered = fixture.recover(&Disk::new()).unwrap();
            let is_known = matches!(result, Ok(()) | Err(CommitError::Io { .. }));
            assert!(is_known, "call {call}: {result:?}");
            assert!(result.is_err() || recovered == Recovered::Committed, "call {call}");
            let expected = if recovered == Recovered::Committed { &after } else { &before };
            assert_eq!(fixture.snapshot(), *expected, "call {call}: {result:?}");
            assert!(recovered == Recovered::Committed || fixture.is_store_empty());
        }
        for call in (0..undo.calls()).step_by(step) {
            let fixture = new();
            fixture.commit(&fixture.run_all(), &Disk::new()).unwrap();
            let result = fixture.undo(&broken(call, is_forever));
            let recovered = fixture.recover(&Disk::new()).unwrap();
            assert!(matches!(result, Ok(()) | Err(CommitError::Io { .. })), "call {call}: {result:?}");
            let expected = if recovered == Recovered::Committed { &after } else { &before };
            assert_eq!(fixture.snapshot(), *expected, "call {call} of the undo: {result:?}");
        }
    }
}

#[test]
fn a_failed_call_leaves_all_or_nothing() {
    check(Fixture::new, 1);
}

#[test]
fn a_failed_call_leaves_all_or_nothing_with_a_distant_store() {
    check(Fixture::with_distant_store, stride(5));
}
