//! Originals that other processes change between the run and the commit, or between the commit and its undo.

use super::support::{Fixture, set_old};
use a2g_overlay::{CommitError, Conflict, ConflictKind, Disk, EffectsError, Recovered};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

fn list(conflicts: &[Conflict]) -> Vec<(String, ConflictKind)> {
    let text = |conflict: &Conflict| {
        let names = conflict.path.names.iter().map(|name| name.as_os_str().to_str().unwrap());
        (names.collect::<Vec<_>>().join("/"), conflict.what)
    };
    conflicts.iter().map(text).collect()
}

type Change = fn(&Fixture);

fn replace(fixture: &Fixture, path: &str) {
    let content = fs::read(fixture.path(path)).unwrap();
    fs::write(fixture.path("temporary"), content).unwrap();
    set_old(&fixture.path("temporary"));
    fs::rename(fixture.path("temporary"), fixture.path(path)).unwrap();
}

#[test]
fn a_changed_original_prevents_the_commit() {
    use ConflictKind::{Changed, Exists, Missing, Replaced, Unseen};
    let cases: &[(Change, &[(&str, ConflictKind)])] = &[
        (|fixture| fixture.write("read", "x"), &[("read", Changed)]),
        (|fixture| fixture.write("a", "x"), &[("a", Changed)]),
        // Size and time are the same.
        (|fixture| fixture.write("a", "the content of b\n"), &[("a", Changed)]),
        (|fixture| fixture.write("b", "x"), &[("b", Changed)]),
        (|fixture| replace(fixture, "a"), &[("a", Replaced)]),
        (|fixture| replace(fixture, "gone/inner/2"), &[("gone/inner/2", Replaced)]),
        (|fixture| fs::remove_file(fixture.path("kept")).unwrap(), &[("kept", Missing)]),
        (|fixture| fixture.write("gone/more", ""), &[("gone/more", Unseen)]),
        (|fixture| fixture.write("new", ""), &[("new", Exists)]),
        (|fixture| fixture.write("d/kept", ""), &[("d/kept", Exists)]),
        (|fixture| fixture.write("moved/more", ""), &[("d/new_place/more", Exists)]),
        (
            |fixture| {
                let mode = fs::Permissions::from_mode(0o600);
                fs::set_permissions(fixture.path("touched"), mode).unwrap();
            },
            &[("touched", Changed)],
        ),
        (
            |fixture| {
                fs::remove_file(fixture.path("read")).unwrap();
                fs::create_dir(fixture.path("read")).unwrap();
            },
            &[("read", Replaced)],
        ),
        (
            |fixture| {
                fs::rename(fixture.path("d"), fixture.path("e")).unwrap();
                fs::create_dir(fixture.path("d")).unwrap();
            },
            &[("d", Replaced), ("d/x", Missing)],
        ),
    ];
    for (number, (change, expected)) in cases.iter().enumerate() {
        let fixture = Fixture::new();
        let effects = fixture.run_all();
        change(&fixture);
        let before = fixture.snapshot();
        let Err(CommitError::Conflicts(conflicts)) = fixture.commit(&effects, &Disk::new()) else {
            panic!("case {number} was committed");
        };
        let expected = expected.iter().map(|(path, what)| ((*path).to_owned(), *what)).collect::<Vec<_>>();
        assert_eq!(list(&conflicts), expected, "case {number}");
        assert_eq!(fixture.snapshot(), before, "case {number}");
        assert!(fixture.is_store_empty(), "case {number}");
        assert_eq!(fixture.recover(&Disk::new()).unwrap(), Recovered::Unchanged);
    }
}

#[test]
fn an_original_that_changed_before_the_list_was_made_is_named() {
    let fixture = Fixture::new();
    let table = fixture.run(|guest| guest.write("a", "new"));
    fixture.write("a", "x");
    let Err(EffectsError::Conflicts(conflicts)) = fixture.effects(&table) else { panic!() };
    assert_eq!(list(&conflicts), [("a".to_owned(), ConflictKind::Changed)]);
}

/// Only a move keeps one for the undo.
#[test]
fn a_fifo_is_not_deleted_on_another_mount_than_the_store() {
    let fixture = Fixture::with_distant_store();
    let device = |path: &Path| path.metadata().unwrap().dev();
    if device(&fixture.root()) == device(&fixture.store_path("")) {
        return;
    }
    let fifo = fixture.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    let effects = fixture.effects(&fixture.run(|guest| guest.remove("fifo"))).unwrap();
    let Err(CommitError::Conflicts(conflicts)) = fixture.commit(&effects, &Disk::new()) else { panic!() };
    assert_eq!(list(&conflicts), [("fifo".to_owned(), ConflictKind::Special)]);
    assert_eq!(fixture.recover(&Disk::new()).unwrap(), Recovered::Unchanged);
    assert!(fifo.exists());
}

#[test]
fn a_change_after_the_commit_prevents_the_undo() {
    use ConflictKind::{Changed, Exists, Missing, Replaced, Unseen};
    let cases: &[(Change, &[(&str, ConflictKind)])] = &[
        (|fixture| fixture.write("a", "x"), &[("a", Changed)]),
        (|fixture| replace(fixture, "a"), &[("a", Replaced)]),
        (|fixture| fixture.write("b", "x"), &[("b", Exists)]),
        (|fixture| fixture.write("new/more", "x"), &[("new/more", Unseen)]),
        (|fixture| fs::remove_file(fixture.path("new/run")).unwrap(), &[("new/run", Missing)]),
        (|fixture| fixture.write("d/new_place/1", "x"), &[("d/new_place/1", Changed)]),
        (|fixture| fixture.write("d/new_place/deep/2", "x"), &[("d/new_place/deep/2", Exists)]),
        (|fixture| fixture.write("moved", "x"), &[("moved", Exists)]),
        (|fixture| fixture.write("touched", "x"), &[("touched", Changed)]),
        (
            |fixture| {
                // While the old link exists, the new one has another inode.
                std::os::unix::fs::symlink("../a", fixture.path("temporary")).unwrap();
                fs::rename(fixture.path("temporary"), fixture.path("new/link")).unwrap();
            },
            &[("new/link", Replaced)],
        ),
    ];
    for (number, (change, expected)) in cases.iter().enumerate() {
        let fixture = Fixture::new();
        fixture.commit(&fixture.run_all(), &Disk::new()).unwrap();
        change(&fixture);
        let before = fixture.snapshot();
        let Err(CommitError::Conflicts(conflicts)) = fixture.undo(&Disk::new()) else {
            panic!("case {number} was undone");
        };
        let expected = expected.iter().map(|(path, what)| ((*path).to_owned(), *what)).collect::<Vec<_>>();
        assert_eq!(list(&conflicts), expected, "case {number}");
        assert_eq!(fixture.snapshot(), before, "case {number}");
        assert_eq!(fixture.recover(&Disk::new()).unwrap(), Recovered::Committed);
    }
}
