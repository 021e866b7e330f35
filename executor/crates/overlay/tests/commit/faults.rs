//! Calls that fail, as on a full or a broken disk, or on one that moves nothing from folder to folder.

use super::stride;
use super::support::Fixture;
use a2g_overlay::{CommitError, Disk, Recovered};
use rustix::io::Errno;

/// A disk of which one call fails with an error, or that call and all later ones.
fn broken(call: u64, is_forever: bool, error: Errno) -> Disk {
    Disk::with_hook(move |number| {
        let fails = number == call || is_forever && number > call;
        fails.then_some(error)
    })
}

/// `true` for the ends that a commit or an undo may have: a rename between two mounts is a conflict.
fn is_known(result: &Result<(), CommitError>, error: Errno) -> bool {
    let is_conflict = matches!(result, Err(CommitError::Conflicts(_)));
    matches!(result, Ok(()) | Err(CommitError::Io { .. })) || is_conflict && error == Errno::XDEV
}

fn check(new: fn() -> Fixture, step: usize, error: Errno) {
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
            let result = fixture.commit(&fixture.run_all(), &broken(call, is_forever, error));
            let recovered = fixture.recover(&Disk::new()).unwrap();
            assert!(is_known(&result, error), "call {call}: {result:?}");
            assert!(result.is_err() || recovered == Recovered::Committed, "call {call}");
            let expected = if recovered == Recovered::Committed { &after } else { &before };
            assert_eq!(fixture.snapshot(), *expected, "call {call}: {result:?}");
            assert!(recovered == Recovered::Committed || fixture.is_store_empty());
        }
        for call in (0..undo.calls()).step_by(step) {
            let fixture = new();
            fixture.commit(&fixture.run_all(), &Disk::new()).unwrap();
            let result = fixture.undo(&broken(call, is_forever, error));
            let recovered = fixture.recover(&Disk::new()).unwrap();
            assert!(is_known(&result, error), "call {call} of the undo: {result:?}");
            let expected = if recovered == Recovered::Committed { &after } else { &before };
            assert_eq!(fixture.snapshot(), *expected, "call {call} of the undo: {result:?}");
        }
    }
}

#[test]
fn a_failed_call_leaves_all_or_nothing() {
    check(Fixture::new, 1, Errno::NOSPC);
}

#[test]
fn a_failed_call_leaves_all_or_nothing_with_a_distant_store() {
    check(Fixture::with_distant_store, stride(5), Errno::NOSPC);
}

#[test]
fn a_move_that_the_file_system_refuses_leaves_all_or_nothing() {
    check(Fixture::new, stride(3), Errno::XDEV);
}
