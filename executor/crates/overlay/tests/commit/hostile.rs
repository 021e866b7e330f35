//! An upper folder that a program wrote after it had broken out of its sandbox.

use super::support::{Fixture, LIMITS, open};
use a2g_overlay::{Access, CommitError, Disk, Effects, EffectsError, EffectsLimits, LowerRoot, Recovered};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

type Change = fn(&Fixture, &Path);

const CASES: &[Change] = &[
    |fixture, staged| {
        fs::remove_file(staged).unwrap();
        symlink(fixture.path("read"), staged).unwrap();
    },
    |fixture, staged| {
        fs::remove_file(staged).unwrap();
        fs::hard_link(fixture.path("read"), staged).unwrap();
    },
    |_, staged| {
        fs::remove_file(staged).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, staged, rustix::fs::Mode::RUSR).unwrap();
    },
    |_, staged| {
        fs::remove_file(staged).unwrap();
        fs::create_dir(staged).unwrap();
    },
    |_, staged| fs::remove_file(staged).unwrap(),
];

#[test]
fn only_a_plain_file_is_a_staged_content() {
    for (number, change) in CASES.iter().enumerate() {
        let fixture = Fixture::new();
        let before = fixture.snapshot();
        let table = fixture.run(|guest| guest.write("a", "new"));
        let effects = fixture.effects(&table).unwrap();
        change(&fixture, &fixture.upper_path("1"));
        let listed = fixture.effects(&table);
        assert!(matches!(listed, Err(EffectsError::Staged { number: 1, .. })), "case {number}: {listed:?}");
        let committed = fixture.commit(&effects, &Disk::new());
        assert!(matches!(committed, Err(CommitError::Staged { number: 1 })), "case {number}: {committed:?}");
        assert_eq!(fixture.snapshot(), before);
        assert!(fixture.is_store_empty());
    }
}

#[test]
fn another_content_than_the_approved_one_is_refused() {
    for content in ["old", "news", ""] {
        let fixture = Fixture::new();
        let before = fixture.snapshot();
        let effects = fixture.effects(&fixture.run(|guest| guest.write("a", "new"))).unwrap();
        fs::write(fixture.upper_path("1"), content).unwrap();
        let committed = fixture.commit(&effects, &Disk::new());
        assert!(matches!(committed, Err(CommitError::Staged { number: 1 })), "{committed:?}");
        assert_eq!(fixture.snapshot(), before);
    }
}

#[test]
fn a_staged_file_never_becomes_a_committed_one_itself() {
    let fixture = Fixture::new();
    let effects = fixture.effects(&fixture.run(|guest| guest.write("a", "new"))).unwrap();
    let staged = fixture.upper_path("1");
    fs::set_permissions(&staged, fs::Permissions::from_mode(0o6777)).unwrap();
    let held = fs::OpenOptions::new().write(true).open(&staged).unwrap();
    fixture.commit(&effects, &Disk::new()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&held, b"bad", 0).unwrap();
    assert_eq!(fixture.read("a"), "new");
    let metadata = fixture.path("a").metadata().unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.nlink()), (0o644, 1));
}

#[test]
fn a_log_in_the_upper_folder_does_nothing() {
    let fixture = Fixture::new();
    let other = Fixture::new();
    other.commit(&other.run_all(), &Disk::new()).unwrap();
    fs::copy(other.store_path("commit.log"), fixture.upper_path("commit.log")).unwrap();
    let before = fixture.snapshot();
    assert_eq!(fixture.recover(&Disk::new()).unwrap(), Recovered::Unchanged);
    assert_eq!(fixture.snapshot(), before);
}

#[test]
fn the_work_is_bounded() {
    let fixture = Fixture::new();
    let table = fixture.run(|guest| guest.write("a", "new"));
    fs::File::options().write(true).open(fixture.upper_path("1")).unwrap().set_len(1 << 40).unwrap();
    assert!(matches!(fixture.effects(&table), Err(EffectsError::TooLarge { .. })));
    let limits = EffectsLimits { max_changes: 0, ..LIMITS };
    let listed =
        Effects::of(&fixture.run(|guest| guest.remove("b")), &fixture.roots(), &fixture.upper(), limits);
    assert!(matches!(listed, Err(EffectsError::TooMany { max: 0 })));
}

#[test]
fn a_root_that_may_only_be_read_is_not_changed() {
    let fixture = Fixture::new();
    let table = fixture.run(|guest| guest.write("a", "new"));
    let effects = fixture.effects(&table).unwrap();
    let roots = [LowerRoot { dir: open(&fixture.root()), access: Access::Read }];
    let listed = Effects::of(&table, &roots, &fixture.upper(), LIMITS);
    assert!(matches!(listed, Err(EffectsError::ReadOnly(_))));
    let store = open(&fixture.store_path(""));
    let upper = fixture.upper();
    let folders = a2g_overlay::Folders { roots: &roots, upper: &upper, store: &store };
    let committed = a2g_overlay::commit(&effects, folders, &Disk::new());
    assert!(matches!(committed, Err(CommitError::ReadOnly(_))));
}

#[test]
fn a_folder_that_became_a_link_leads_nowhere() {
    let fixture = Fixture::new();
    let outside = Fixture::new();
    let effects = fixture.effects(&fixture.run(|guest| guest.write("d/x", "new"))).unwrap();
    fs::rename(fixture.path("d"), fixture.path("e")).unwrap();
    symlink(outside.path("d"), fixture.path("d")).unwrap();
    let before = outside.snapshot();
    assert!(matches!(fixture.commit(&effects, &Disk::new()), Err(CommitError::Conflicts(_))));
    assert_eq!(outside.snapshot(), before);
}
