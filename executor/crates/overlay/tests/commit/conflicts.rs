//! Originals that other processes change between the run and the commit, or between the commit and its undo.

use super::support::{Fixture, set_old};
use a2g_overlay::{CommitError, Conflict, ConflictKind, Disk, EffectsError, Recovered};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

fn list(conflicts: &[Conflict]) -> Vec<(String, ConflictKind)> {
    let text = |conflict: &Conflict| {
        let names = conflict.path.names.iter().map(|name| name.as_os_str().to_str().unwrap());
        (names.collect::<Vec<_>>().join("/"), conflict.what)
    };
    conflicts.iter().map(text).collect()
}

type Change = fn(&Fixture);

/// A change that needs a right, or something of the file system, and is `false` without it.
type Attempt = fn(&Fixture) -> bool;

fn set_xattr(fixture: &Fixture, path: &str) -> bool {
    let entry = fs::File::open(fixture.path(path)).unwrap();
    rustix::fs::fsetxattr(&entry, "user.note", b"theirs", rustix::fs::XattrFlags::empty()).is_ok()
}

fn set_group(fixture: &Fixture, path: &str) -> bool {
    std::os::unix::fs::lchown(fixture.path(path), None, Some(12)).is_ok()
}

fn add_name(fixture: &Fixture, path: &str) -> bool {
    fs::hard_link(fixture.path(path), fixture.path("second")).is_ok()
}

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
    if !is_distant(&fixture) {
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

#[test]
fn what_others_set_beside_the_content_prevents_an_undo_that_would_lose_it() {
    let cases: &[(Attempt, Option<&str>)] = &[
        (|fixture| set_xattr(fixture, "a"), Some("a")),
        (|fixture| set_xattr(fixture, "d/x"), Some("d/x")),
        (|fixture| set_xattr(fixture, "new"), Some("new")),
        (|fixture| set_xattr(fixture, "new/run"), Some("new/run")),
        (|fixture| set_group(fixture, "a"), Some("a")),
        (|fixture| set_group(fixture, "new/sub"), Some("new/sub")),
        (|fixture| set_group(fixture, "new/link"), Some("new/link")),
        (|fixture| add_name(fixture, "a"), Some("a")),
        (|fixture| add_name(fixture, "new/sub/file"), Some("new/sub/file")),
        (|fixture| add_name(fixture, "new/link"), Some("new/link")),
        // What was only moved takes it along.
        (|fixture| set_xattr(fixture, "d/kept"), None),
        (|fixture| set_group(fixture, "swap1"), None),
        (|fixture| add_name(fixture, "d/new_place/deep/3"), None),
        (|fixture| set_xattr(fixture, "touched"), None),
    ];
    for (number, (change, refused)) in cases.iter().enumerate() {
        for fixture in [Fixture::new(), Fixture::with_distant_store()] {
            fixture.commit(&fixture.run_all(), &Disk::new()).unwrap();
            if !change(&fixture) {
                println!("case {number} cannot be tried here");
                continue;
            }
            let before = fixture.snapshot();
            match (fixture.undo(&Disk::new()), refused) {
                (Ok(()), None) => {}
                (Err(CommitError::Conflicts(conflicts)), Some(path)) => {
                    let expected = [((*path).to_owned(), ConflictKind::Changed)];
                    assert_eq!(list(&conflicts), expected, "case {number}");
                    assert_eq!(fixture.snapshot(), before, "case {number}");
                    assert_eq!(fixture.recover(&Disk::new()).unwrap(), Recovered::Committed);
                }
                (undone, _) => panic!("case {number}: {undone:?}"),
            }
        }
    }
}

/// The file of a store that has the content of `a`, if there is a copy of it.
fn kept_copy(store: &Path) -> Option<PathBuf> {
    let mut files = fs::read_dir(store.join("stash")).ok()?.map(|file| file.unwrap().path());
    files.find(|file| fs::read(file).is_ok_and(|content| content == b"the content of a\n"))
}

fn is_distant(fixture: &Fixture) -> bool {
    let device = |path: &Path| path.metadata().unwrap().dev();
    device(&fixture.root()) != device(&fixture.store_path(""))
}

#[test]
fn a_copy_that_is_not_the_original_is_neither_kept_nor_put_back() {
    let fixture = Fixture::with_distant_store();
    if !is_distant(&fixture) {
        return;
    }
    let before = fixture.snapshot();
    let effects = fixture.run_all();
    let store = fixture.store_path("");
    let disk = Disk::with_hook(move |_| {
        if let Some(copy) = kept_copy(&store) {
            fs::write(copy, "damaged").unwrap();
        }
        None
    });
    let Err(CommitError::Conflicts(conflicts)) = fixture.commit(&effects, &disk) else { panic!() };
    assert_eq!(list(&conflicts), [("a".to_owned(), ConflictKind::Changed)]);
    assert_eq!(fixture.snapshot(), before);
    assert!(fixture.is_store_empty());
    fixture.commit(&effects, &Disk::new()).unwrap();
    let after = fixture.snapshot();
    let copy = kept_copy(&fixture.store_path("")).unwrap();
    fs::write(&copy, "damaged").unwrap();
    let undone = fixture.undo(&Disk::new());
    assert!(matches!(&undone, Err(CommitError::Kept(path)) if path.names.len() == 1), "{undone:?}");
    assert_eq!(fixture.snapshot(), after);
    assert_eq!(fixture.recover(&Disk::new()).unwrap(), Recovered::Committed);
    fs::write(copy, "the content of a\n").unwrap();
    fixture.undo(&Disk::new()).unwrap();
}
