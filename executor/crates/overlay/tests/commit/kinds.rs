//! What each change of a program is in the list, and after the commit and its undo.

use super::support::{Fixture, Guest, OLD};
use a2g_overlay::{Change, ChangeKind, CommitError, Disk, Effects, EntryPath, NewEntry, Recovered};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

fn text(path: &EntryPath) -> String {
    path.names.iter().map(|name| name.as_os_str().to_str().unwrap()).collect::<Vec<_>>().join("/")
}

/// A change in few words.
fn describe(change: &Change) -> String {
    let path = text(&change.path);
    match &change.kind {
        ChangeKind::Deleted { content, .. } => {
            format!("- {path}{}", if content.is_some() { "" } else { " *" })
        }
        ChangeKind::Renamed { from, after, .. } => {
            format!("{} > {path}{}", text(from), if after.is_some() { " !" } else { "" })
        }
        ChangeKind::Created { new: NewEntry::File(content) } => format!("+ {path} {}", content.size),
        ChangeKind::Created { new: NewEntry::Folder { .. } } => format!("+ {path}/"),
        ChangeKind::Created { new: NewEntry::Link { target, .. } } => {
            format!("+ {path} @ {}", target.display())
        }
        ChangeKind::Changed { before, new, .. } => format!("! {path} {} {}", before.size, new.size),
        ChangeKind::Attributes { mode, mtime, .. } => {
            format!("~ {path} {mode:?} {:?}", mtime.map(|mtime| mtime.seconds - OLD))
        }
    }
}

fn list(effects: &Effects) -> Vec<String> {
    effects.changes.iter().map(describe).collect()
}

#[test]
fn each_kind_is_listed_committed_and_undone() {
    type Act = fn(&mut Guest);
    let cases: &[(Act, &[&str])] = &[
        (|guest| guest.read("a"), &[]),
        (|guest| guest.write("a", "1234"), &["! a 17 4"]),
        (|guest| guest.write("a", "the content of a\n"), &["~ a None Some(17)"]),
        (|guest| guest.write("new", "1"), &["+ new 1"]),
        (|guest| guest.write("new", ""), &["+ new 0"]),
        (
            |guest| {
                guest.write("new", "1");
                guest.remove("new");
            },
            &[],
        ),
        (|guest| guest.remove("a"), &["- a"]),
        (|guest| guest.remove("link"), &["- link *"]),
        (|guest| guest.link("x/y", "new"), &["+ new @ x/y"]),
        (
            |guest| {
                guest.link("x/y", "new");
                guest.set_time("new", OLD);
            },
            &["+ new @ x/y"],
        ),
        (|guest| guest.make_folder("new"), &["+ new/"]),
        (
            |guest| {
                guest.make_folder("new");
                guest.set_time("new", OLD);
            },
            &["+ new/"],
        ),
        (|guest| guest.set_time("a", OLD + 9), &["~ a None Some(9)"]),
        (|guest| guest.set_time("d", OLD + 9), &["~ d None Some(9)"]),
        (|guest| guest.rename("a", "d/a"), &["a > d/a"]),
        (|guest| guest.rename("moved", "other"), &["moved > other"]),
        (|guest| guest.rename("a", "b"), &["- b", "a > b"]),
        (
            |guest| {
                guest.rename("a", "new");
                guest.write("new", "22");
            },
            &["a > new !"],
        ),
        (
            |guest| {
                guest.rename("a", "new");
                guest.set_time("new", OLD + 3);
            },
            &["a > new", "~ new None Some(3)"],
        ),
        (
            |guest| {
                guest.rename("a", "new");
                guest.rename("new", "a");
            },
            &[],
        ),
        (
            |guest| {
                guest.remove("a");
                guest.write("a", "333");
            },
            &["! a 17 3"],
        ),
        (
            |guest| {
                guest.write("temporary", "4444");
                guest.rename("temporary", "a");
            },
            &["! a 17 4"],
        ),
        (
            |guest| {
                guest.rename("a", "new");
                guest.write("a", "333");
            },
            &["a > new", "+ a 3"],
        ),
        (
            |guest| {
                guest.remove("a");
                guest.make_folder("a");
                guest.write("a/b", "1");
            },
            &["- a", "+ a/", "+ a/b 1"],
        ),
        (
            |guest| {
                guest.remove("gone/1");
                guest.remove("gone/inner/2");
                guest.remove_folder("gone/inner");
                guest.remove_folder("gone");
            },
            &["- gone *", "- gone/1", "- gone/inner *", "- gone/inner/2"],
        ),
        (
            |guest| {
                guest.rename("gone/inner", "d/inner");
                guest.remove("gone/1");
                guest.remove_folder("gone");
                guest.make_folder("gone");
                guest.write("gone/1", "1");
                guest.rename("d/inner", "gone/inner");
            },
            &["! gone/1 22 1"],
        ),
        (
            |guest| {
                guest.rename("moved/deep", "deep");
                guest.rename("moved", "deep/moved");
                guest.write("deep/moved/1", "1");
                guest.remove("deep/2");
            },
            &["- moved/deep/2", "moved/deep > deep", "moved > deep/moved", "! deep/moved/1 23 1"],
        ),
        (
            |guest| {
                guest.rename("swap1", "new");
                guest.rename("swap2", "swap1");
                guest.rename("new", "swap2");
            },
            &["swap2 > swap1", "swap1 > swap2"],
        ),
    ];
    for (number, (act, expected)) in cases.iter().enumerate() {
        let fixture = Fixture::new();
        let before = fixture.snapshot();
        let effects = fixture.effects(&fixture.run(act)).unwrap();
        assert_eq!(list(&effects), *expected, "case {number}");
        assert_eq!(fixture.snapshot(), before, "case {number}: nothing changes before the commit");
        fixture.commit(&effects, &Disk::new()).unwrap();
        assert_eq!(
            fixture.snapshot() == before,
            effects.is_empty() || expected.iter().all(|line| line.starts_with("~ d"))
        );
        assert!(matches!(fixture.commit(&effects, &Disk::new()), Err(CommitError::Used)));
        assert_eq!(fixture.recover(&Disk::new()).unwrap(), Recovered::Committed);
        fixture.undo(&Disk::new()).unwrap_or_else(|error| panic!("case {number}: {error:?}"));
        assert_eq!(fixture.snapshot(), before, "case {number}: everything is undone");
        assert!(fixture.is_store_empty());
        assert!(matches!(fixture.undo(&Disk::new()), Err(CommitError::NothingToUndo)));
    }
}

#[test]
fn a_moved_file_with_its_content_written_again_has_the_time_of_that() {
    let fixture = Fixture::new();
    let effects = fixture.effects(&fixture.run(|guest| {
        guest.rename("a", "new");
        guest.write_now("new", "the content of a\n");
    }));
    let effects = effects.unwrap();
    assert_eq!(list(&effects)[0], "a > new");
    fixture.commit(&effects, &Disk::new()).unwrap();
    let age = fixture.path("new").metadata().unwrap().modified().unwrap().elapsed().unwrap();
    assert!(age.as_secs() < 600, "{age:?}");
}

#[test]
fn all_kinds_at_once_are_committed_and_undone() {
    for fixture in [Fixture::new(), Fixture::with_distant_store()] {
        let before = fixture.snapshot();
        let effects = fixture.run_all();
        fixture.commit(&effects, &Disk::new()).unwrap();
        assert_eq!(fixture.read("a"), "another content\n");
        assert_eq!(fixture.read("swap1"), "the content of swap2\n");
        assert_eq!(fixture.read("d/kept"), "the content of kept\n");
        assert_eq!(fixture.read("d/new_place/1"), "changed after the move\n");
        assert_eq!(fixture.read("d/new_place/deep/3"), "the content of moved/deep/3\n");
        assert_eq!(fixture.read("new/run"), "moved and changed\n");
        assert_eq!(fixture.path("new/run").metadata().unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(fixture.path("touched").metadata().unwrap().mtime(), OLD + 7);
        assert_eq!(fixture.path("new/link").read_link().unwrap().to_str(), Some("../a"));
        let after = fixture.snapshot();
        let names = after.keys().map(|path| path.to_str().unwrap()).collect::<Vec<_>>();
        let expected = [
            "a",
            "d",
            "d/kept",
            "d/new_place",
            "d/new_place/1",
            "d/new_place/deep",
            "d/new_place/deep/3",
            "d/new_place/more",
            "d/sub",
            "d/sub/z",
            "d/x",
            "link",
            "new",
            "new/link",
            "new/run",
            "new/sub",
            "new/sub/file",
            "read",
            "swap1",
            "swap2",
            "touched",
        ];
        assert_eq!(names, expected);
        fixture.undo(&Disk::new()).unwrap();
        assert_eq!(fixture.snapshot(), before);
        assert!(fixture.is_store_empty());
        // The staged contents are still there, so the same list can be committed once more, but for what was restored from
        // copies, which are other files.
        let again = fixture.commit(&effects, &Disk::new());
        match again {
            Ok(()) => assert_eq!(fixture.snapshot(), after),
            Err(error) => assert!(matches!(error, CommitError::Conflicts(_)), "{error:?}"),
        }
    }
}

#[test]
fn what_is_kept_can_be_forgotten() {
    let fixture = Fixture::new();
    fixture.forget().unwrap();
    fixture.commit(&fixture.run_all(), &Disk::new()).unwrap();
    let after = fixture.snapshot();
    assert!(!fixture.is_store_empty());
    fixture.forget().unwrap();
    assert!(fixture.is_store_empty());
    assert_eq!(fixture.snapshot(), after);
    assert!(matches!(fixture.undo(&Disk::new()), Err(CommitError::NothingToUndo)));
    a2g_overlay::discard(&fixture.upper()).unwrap();
    assert_eq!(a2g_overlay::size_of(fixture.upper().dir()).unwrap(), (0, 0));
}

#[test]
fn the_digest_covers_every_change_and_every_original() {
    let fixture = Fixture::new();
    let effects = fixture.run_all();
    let mut digests = std::collections::BTreeSet::from([effects.digest()]);
    for index in 0..effects.changes.len() {
        let mut other = effects.clone();
        other.changes.remove(index);
        assert!(digests.insert(other.digest()));
    }
    for index in 0..effects.reads.len() {
        let mut other = effects.clone();
        other.reads[index].seen.ctime.nanoseconds ^= 1;
        assert!(digests.insert(other.digest()));
    }
    assert_eq!(effects.digest(), effects.clone().digest());
}

#[test]
fn a_changed_file_keeps_the_extended_attributes_of_its_original() {
    let fixture = Fixture::new();
    let original = std::fs::File::open(fixture.path("a")).unwrap();
    if rustix::fs::fsetxattr(&original, "user.kept", b"1", rustix::fs::XattrFlags::empty()).is_err() {
        println!("this file system has no extended attributes");
        return;
    }
    let effects = fixture.effects(&fixture.run(|guest| guest.write("a", "new"))).unwrap();
    let staged = std::fs::File::open(fixture.upper_path("1")).unwrap();
    rustix::fs::fsetxattr(&staged, "user.bad", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    fixture.commit(&effects, &Disk::new()).unwrap();
    let committed = std::fs::File::open(fixture.path("a")).unwrap();
    let mut list = [0; 100];
    let length = rustix::fs::flistxattr(&committed, &mut list).unwrap();
    let list = String::from_utf8(list[..length].to_vec()).unwrap();
    assert!(list.contains("user.kept\0") && !list.contains("user.bad\0"), "{list}");
}

#[test]
fn another_name_of_a_replaced_file_keeps_its_attributes() {
    let fixture = Fixture::new();
    std::fs::hard_link(fixture.path("a"), fixture.path("other")).unwrap();
    let before = fixture.snapshot();
    let table = fixture.run(|guest| {
        guest.remove("a");
        guest.write("a", "the content of a\n");
    });
    let effects = fixture.effects(&table).unwrap();
    assert_eq!(list(&effects), ["! a 17 17"]);
    fixture.commit(&effects, &Disk::new()).unwrap();
    assert_eq!(fixture.path("a").metadata().unwrap().mtime(), OLD + 17);
    assert_eq!(fixture.path("other").metadata().unwrap().mtime(), OLD);
    fixture.undo(&Disk::new()).unwrap();
    assert_eq!(fixture.snapshot(), before);
    assert_eq!(fixture.path("a").metadata().unwrap().nlink(), 2);
}

/// A program sees each name as a file of its own; the times of all names are one.
#[test]
fn times_of_several_names_of_a_file_are_committed_and_undone() {
    let fixture = Fixture::new();
    for other in ["other", "third", "fourth"] {
        std::fs::hard_link(fixture.path("a"), fixture.path(other)).unwrap();
    }
    let before = fixture.snapshot();
    let table = fixture.run(|guest| {
        guest.set_time("a", OLD + 3);
        guest.set_time("other", OLD + 5);
        guest.rename("third", "d/third");
        guest.remove("fourth");
    });
    let effects = fixture.effects(&table).unwrap();
    fixture.commit(&effects, &Disk::new()).unwrap();
    let time = |path: &str| fixture.path(path).metadata().unwrap().mtime() - OLD;
    assert!([3, 5].contains(&time("a")), "{}", time("a"));
    assert_eq!([time("other"), time("d/third")], [time("a"); 2]);
    fixture.undo(&Disk::new()).unwrap();
    assert_eq!(fixture.snapshot(), before);
    assert_eq!(fixture.path("a").metadata().unwrap().nlink(), 4);
}

#[test]
fn holes_stay_holes() {
    for fixture in [Fixture::new(), Fixture::with_distant_store()] {
        let table = fixture.run(|guest| guest.write("new", "beginning"));
        let staged = std::fs::File::options().write(true).open(fixture.upper_path("1")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&staged, b"end", (16 << 20) + 5).unwrap();
        let effects = fixture.effects(&table).unwrap();
        fixture.commit(&effects, &Disk::new()).unwrap();
        let committed = fixture.path("new").metadata().unwrap();
        assert_eq!(committed.len(), (16 << 20) + 8);
        assert!(committed.blocks() * 512 < 1 << 20, "{} blocks", committed.blocks());
        assert!(std::fs::read(fixture.path("new")).unwrap().ends_with(b"\0end"));
    }
}

/// A server that is root commits the changes of runs that have another user.
#[test]
fn a_new_entry_belongs_to_the_user_of_the_run() {
    let fixture = Fixture::new();
    let user = 12;
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || std::os::unix::fs::chown(fixture.upper_path(""), Some(user), Some(user)).is_err() {
        return;
    }
    let effects = fixture.effects(&fixture.run(|guest| {
        guest.make_folder("d/new");
        guest.write("d/new/file", "1");
    }));
    fixture.commit(&effects.unwrap(), &Disk::new()).unwrap();
    for path in ["d/new", "d/new/file"] {
        let metadata = fixture.path(path).metadata().unwrap();
        assert_eq!([metadata.uid(), metadata.gid()], [user; 2], "{path}");
    }
}

#[test]
fn a_new_entry_gets_the_group_of_its_folder() {
    let fixture = Fixture::new();
    std::fs::set_permissions(fixture.path("d"), std::fs::Permissions::from_mode(0o2755)).unwrap();
    let group = 12;
    let is_set = rustix::process::geteuid().is_root()
        && std::os::unix::fs::chown(fixture.path("d"), None, Some(group)).is_ok();
    let effects = fixture.effects(&fixture.run(|guest| {
        guest.make_folder("d/new");
        guest.make_folder("d/new/inner");
        guest.write("d/new/inner/file", "1");
    }));
    let before = fixture.snapshot();
    fixture.commit(&effects.unwrap(), &Disk::new()).unwrap();
    for path in ["d/new", "d/new/inner", "d/new/inner/file"] {
        let metadata = fixture.path(path).metadata().unwrap();
        assert_eq!(metadata.mode() & 0o2000 != 0, metadata.is_dir(), "{path}");
        assert!(!is_set || metadata.gid() == group, "{path}");
    }
    fixture.undo(&Disk::new()).unwrap();
    assert_eq!(fixture.snapshot(), before);
}
