//! A process that ends before each of its calls that change something.

use super::stride;
use super::support::{Fixture, Snapshot, interrupt};
use a2g_overlay::{Disk, Effects, Recovered};
use std::path::Path;
use std::process::{Command, Stdio};

/// The process to be killed gets its folders and the number of its last call in this variable.
const JOB: &str = "A2G_OVERLAY_KILLED";

/// The state before the commit, and the one after it.
fn states(new: fn() -> Fixture) -> [Snapshot; 2] {
    let fixture = new();
    let before = fixture.snapshot();
    fixture.commit(&fixture.run_all(), &Disk::new()).unwrap();
    [before, fixture.snapshot()]
}

/// The number of calls of a commit, and of its undo.
fn calls(new: fn() -> Fixture) -> [u64; 2] {
    let fixture = new();
    let commit = Disk::new();
    fixture.commit(&fixture.run_all(), &commit).unwrap();
    let undo = Disk::new();
    fixture.undo(&undo).unwrap();
    [commit.calls(), undo.calls()]
}

fn check(fixture: &Fixture, recovered: Recovered, [before, after]: &[Snapshot; 2]) {
    match recovered {
        Recovered::Unchanged => {
            assert_eq!(fixture.snapshot(), *before);
            assert!(fixture.is_store_empty());
        }
        Recovered::Committed => assert_eq!(fixture.snapshot(), *after),
    }
    assert_eq!(fixture.recover(&Disk::new()).unwrap(), recovered);
}

/// The process that is killed: another test starts it, with a job.
#[test]
fn killed() {
    let Some(job) = std::env::var_os(JOB).map(|job| job.into_string().unwrap()) else { return };
    let [what, folder, store, call]: [&str; 4] = job.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let call = call.parse::<u64>().unwrap();
    let disk = Disk::with_hook(move |number| {
        if number == call {
            std::process::abort();
        }
        None
    });
    let fixture = Fixture::again(Path::new(folder), Path::new(store));
    match what {
        "commit" => {
            let effects: Effects =
                serde_json::from_slice(&std::fs::read(fixture.paths().0.join("effects")).unwrap()).unwrap();
            fixture.commit(&effects, &disk).unwrap();
        }
        _ => fixture.undo(&disk).unwrap(),
    }
}

fn kill(fixture: &Fixture, what: &str, call: u64) {
    let (folder, store) = fixture.paths();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "kills::killed"]).stdout(Stdio::null()).stderr(Stdio::null());
    child.env(JOB, format!("{what} {} {} {call}", folder.display(), store.display()));
    assert!(!child.status().unwrap().success(), "call {call} was not reached");
}

#[test]
fn a_kill_before_any_call_leaves_all_or_nothing() {
    for (new, step) in [(Fixture::new as fn() -> Fixture, 1), (Fixture::with_distant_store, stride(5))] {
        let states = states(new);
        let [commit_calls, undo_calls] = calls(new);
        let mut outcomes = [0, 0];
        for call in (0..commit_calls).step_by(step) {
            let fixture = new();
            let effects = serde_json::to_vec(&fixture.run_all()).unwrap();
            std::fs::write(fixture.paths().0.join("effects"), effects).unwrap();
            kill(&fixture, "commit", call);
            let recovered = fixture.recover(&Disk::new()).unwrap();
            outcomes[usize::from(recovered == Recovered::Committed)] += 1;
            check(&fixture, recovered, &states);
        }
        for call in (0..undo_calls).step_by(step) {
            let fixture = new();
            fixture.commit(&fixture.run_all(), &Disk::new()).unwrap();
            kill(&fixture, "undo", call);
            let recovered = fixture.recover(&Disk::new()).unwrap();
            outcomes[usize::from(recovered == Recovered::Committed)] += 1;
            check(&fixture, recovered, &states);
        }
        println!("{commit_calls} calls of a commit, {undo_calls} of an undo; nothing or all: {outcomes:?}");
        assert!(outcomes.iter().all(|count| *count > 10), "{outcomes:?}");
    }
}

#[test]
fn a_recovery_can_be_interrupted_too() {
    for new in [Fixture::new, Fixture::with_distant_store] {
        let states = states(new);
        let [commit_calls, undo_calls] = calls(new);
        for call in (0..commit_calls + undo_calls).step_by(stride(5)) {
            let fixture = new();
            let effects = fixture.run_all();
            if call < commit_calls {
                assert!(interrupt(call, |disk| fixture.commit(&effects, disk).unwrap()));
            } else {
                fixture.commit(&effects, &Disk::new()).unwrap();
                assert!(interrupt(call - commit_calls, |disk| fixture.undo(disk).unwrap()));
            }
            // Each recovery gets further than the one before.
            let mut last = None;
            for next in (0..).step_by(2) {
                if !interrupt(next, |disk| last = Some(fixture.recover(disk).unwrap())) {
                    break;
                }
            }
            check(&fixture, last.unwrap(), &states);
        }
    }
}
