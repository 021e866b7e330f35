//! Other processes that change the roots while a commit or an undo runs: before each of its calls.

use super::stride;
use super::support::{Fixture, Snapshot};
use a2g_overlay::{CommitError, Disk, Recovered};
use std::cell::RefCell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;

const THEIRS: &str = "what another process wrote";

/// A change of a file by another process.
#[derive(Debug, Clone, Copy)]
enum Change {
    /// It writes the file that has this name, or makes it.
    Write(&'static str),
    /// It puts a new file in place of whatever has this name.
    Replace(&'static str),
    /// It removes the file.
    Remove(&'static str),
}

const CHANGES: [Change; 24] = [
    Change::Write("a"),
    Change::Write("b"),
    Change::Write("kept"),
    Change::Write("d/kept"),
    Change::Write("d/x"),
    Change::Write("gone/more"),
    Change::Write("new"),
    Change::Write("new/more"),
    Change::Write("moved/1"),
    Change::Write("d/new_place/1"),
    Change::Write("d/new_place/more"),
    Change::Write("touched"),
    Change::Replace("a"),
    Change::Replace("b"),
    Change::Replace("kept"),
    Change::Replace("d/kept"),
    Change::Replace("gone/inner/2"),
    Change::Replace("swap1"),
    Change::Replace("new/run"),
    Change::Replace("run"),
    Change::Replace("touched"),
    Change::Remove("a"),
    Change::Remove("swap2"),
    Change::Remove("new/sub/file"),
];

impl Change {
    const fn path(self) -> &'static str {
        match self {
            Self::Write(path) | Self::Replace(path) | Self::Remove(path) => path,
        }
    }

    /// Changes the file below a root; `false` if that is impossible now.
    fn apply(self, root: &Path) -> bool {
        let path = root.join(self.path());
        match self {
            Self::Write(_) => fs::write(path, THEIRS).is_ok(),
            Self::Replace(_) => {
                let temporary = root.join("../temporary");
                fs::write(&temporary, THEIRS).unwrap();
                fs::rename(temporary, path).is_ok()
            }
            Self::Remove(_) => fs::remove_file(path).is_ok(),
        }
    }
}

/// A disk whose hook makes the change before a call, and what says whether it was made.
fn disturbed(root: PathBuf, call: u64, change: Change) -> (Disk, Rc<RefCell<bool>>) {
    let is_made = Rc::new(RefCell::new(false));
    let note = Rc::clone(&is_made);
    let disk = Disk::with_hook(move |number| {
        if number == call {
            *note.borrow_mut() = change.apply(&root);
        }
        None
    });
    (disk, is_made)
}

/// All places where the other process's content is.
fn places_of_theirs(snapshot: &Snapshot) -> Vec<&Path> {
    let theirs = snapshot.iter().filter(|(_, (_, _, content))| content == THEIRS.as_bytes());
    theirs.map(|(path, _)| path.as_path()).collect()
}

/// The entries without those that the other process changed.
fn without(snapshot: &Snapshot, change: Change) -> Snapshot {
    let is_theirs =
        |path: &Path, content: &[u8]| path == Path::new(change.path()) || content == THEIRS.as_bytes();
    let others = snapshot.iter().filter(|(path, (_, _, content))| !is_theirs(path, content));
    others.map(|(path, seen)| (path.clone(), seen.clone())).collect()
}

/// Without the places of an original that moved with their content in it.
fn is_either(now: &Snapshot, states: &[Snapshot; 2], change: Change) -> bool {
    let moved =
        ["kept", "d/kept", "moved/1", "d/new_place/1", "swap1", "swap2", "run", "new/run"].map(Path::new);
    let strip = |snapshot: &Snapshot| {
        let mut rest = without(snapshot, change);
        if moved.contains(&Path::new(change.path())) {
            rest.retain(|path, _| !moved.contains(&path.as_path()));
        }
        rest
    };
    states.iter().any(|state| strip(now) == strip(state))
}

fn check(
    fixture: &Fixture,
    result: &Result<(), CommitError>,
    is_made: bool,
    change: Change,
    states: &[Snapshot; 2],
    context: &str,
) -> bool {
    let now = fixture.snapshot();
    if let Err(CommitError::Stranded { left }) = result {
        assert!(!left.is_empty());
        return true;
    }
    let is_removal = matches!(change, Change::Remove(_));
    if is_made && !is_removal {
        assert!(!places_of_theirs(&now).is_empty(), "{context}: lost, {result:?}");
    }
    match result {
        Ok(()) | Err(CommitError::Conflicts(_)) => {}
        Err(error) => panic!("{context}: {error:?}"),
    }
    assert!(is_either(&now, states, change), "{context}: {result:?}: {:?}", now.keys());
    let names = now.keys().filter(|path| path.to_str().unwrap().contains(".a2g-"));
    assert_eq!(names.count(), 0, "{context}");
    false
}

fn run(new: fn() -> Fixture, step: usize) {
    let fixture = new();
    let before = fixture.snapshot();
    let count = Disk::new();
    fixture.commit(&fixture.run_all(), &count).unwrap();
    let states = [before, fixture.snapshot()];
    let undo_count = Disk::new();
    fixture.undo(&undo_count).unwrap();
    let mut outcomes = [0, 0, 0];
    for (number, change) in CHANGES.into_iter().enumerate() {
        // Other calls for each change.
        let first = u64::try_from(number % step).unwrap();
        for call in (first..count.calls()).step_by(step) {
            let fixture = new();
            let effects = fixture.run_all();
            let (disk, is_made) = disturbed(fixture.root(), call, change);
            let result = fixture.commit(&effects, &disk);
            let context = format!("{change:?} before call {call} of a commit");
            let is_made = *is_made.borrow();
            let is_stranded = check(&fixture, &result, is_made, change, &states, &context);
            outcomes[if is_stranded { 2 } else { usize::from(result.is_err()) }] += 1;
            if !is_stranded {
                let expected = if result.is_ok() { Recovered::Committed } else { Recovered::Unchanged };
                assert_eq!(fixture.recover(&Disk::new()).unwrap(), expected, "{context}");
            }
        }
        for call in (first..undo_count.calls()).step_by(step) {
            let fixture = new();
            fixture.commit(&fixture.run_all(), &Disk::new()).unwrap();
            let (disk, is_made) = disturbed(fixture.root(), call, change);
            let result = fixture.undo(&disk);
            let context = format!("{change:?} before call {call} of an undo");
            let is_made = *is_made.borrow();
            let is_stranded = check(&fixture, &result, is_made, change, &states, &context);
            outcomes[if is_stranded { 2 } else { usize::from(result.is_err()) }] += 1;
        }
    }
    println!("done, refused, with stranded entries: {outcomes:?}");
    assert!(outcomes[0] > 0 && outcomes[1] > 0);
}

/// As [`run`], and soon after the change, this process ends and recovers.
fn run_and_end(step: usize) {
    let fixture = Fixture::new();
    let before = fixture.snapshot();
    let count = Disk::new();
    fixture.commit(&fixture.run_all(), &count).unwrap();
    let states = [before, fixture.snapshot()];
    let mut outcomes = [0, 0, 0];
    for (number, change) in CHANGES.into_iter().enumerate() {
        for call in (u64::try_from(number % step).unwrap()..count.calls()).step_by(step) {
            for later in 1..4 {
                let fixture = Fixture::new();
                let effects = fixture.run_all();
                let root = fixture.root();
                let is_made = Rc::new(RefCell::new(false));
                let note = Rc::clone(&is_made);
                let disk = Disk::with_hook(move |number| {
                    if number == call {
                        *note.borrow_mut() = change.apply(&root);
                    }
                    if number == call + later {
                        std::panic::resume_unwind(Box::new(()));
                    }
                    None
                });
                let ended = catch_unwind(AssertUnwindSafe(|| fixture.commit(&effects, &disk)));
                let result = ended.unwrap_or_else(|_| fixture.recover(&Disk::new()).map(drop_state));
                let context = format!("{change:?} before call {call}, end before call {}", call + later);
                let is_made = *is_made.borrow();
                let is_stranded = check(&fixture, &result, is_made, change, &states, &context);
                outcomes[if is_stranded { 2 } else { usize::from(result.is_err()) }] += 1;
            }
        }
    }
    println!("recovered, refused, with stranded entries: {outcomes:?}");
}

const fn drop_state(_: Recovered) {}

#[test]
fn nothing_is_lost_if_the_commit_is_interrupted_then() {
    run_and_end(stride(11));
}

#[test]
fn nothing_that_another_process_writes_is_lost() {
    run(Fixture::new, stride(7));
}

#[test]
fn nothing_is_lost_with_a_distant_store() {
    run(Fixture::with_distant_store, stride(31));
}
