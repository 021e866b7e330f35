//! The originals after the commit of a sequence, and after its undo.

use super::tree::{Snapshot, snapshot};
use super::{ROOTS, open};
use a2g_overlay::{
    Access, CommitError, Disk, Effects, EffectsError, EffectsLimits, Folders, LowerRoot, Recovered, Table,
    Upper, commit, recover, undo,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const LIMITS: EffectsLimits = EffectsLimits { max_changes: 100_000, max_hashed_bytes: 1 << 30 };
/// The first second of times during the test.
const NOW: i64 = 1_500_000_000;

/// The facts of an entry that have to be equal.
type Comparable = (i64, Option<i64>, Option<Vec<u8>>, Option<OsString>);

pub(super) fn check(seed: u64, folder: &Path, table: &Table, upper: &Upper, before: &Snapshot) {
    let roots = (0..ROOTS).map(|root| LowerRoot {
        dir: open(&folder.join("lower").join(root.to_string())),
        access: Access::Write,
    });
    let roots = roots.collect::<Vec<_>>();
    let plain = folder.join("plain");
    let lower = folder.join("lower");
    let store_path = folder.join("store");
    std::fs::create_dir(&store_path).unwrap();
    let store: OwnedFd = open(&store_path);
    let folders = Folders { roots: &roots, upper, store: &store };
    // An ordinary user may remove a file that it may not read, and write one in a folder that it may not write. Neither can
    // be committed by that user.
    let is_root = rustix::process::geteuid().is_root();
    let effects = match Effects::of(table, &roots, upper, LIMITS) {
        Err(EffectsError::Original { source: Errno::ACCESS, .. }) if !is_root => return,
        effects => effects.unwrap(),
    };
    let message = |what: &str| format!("sequence {seed}, {what}: {effects:?}");
    match commit(&effects, folders, &Disk::new()) {
        Ok(()) => {}
        Err(CommitError::Io { source: Errno::ACCESS | Errno::PERM, .. }) if !is_root => {
            assert_eq!(recover(folders, &Disk::new()).unwrap(), Recovered::Unchanged);
            let after = comparable(&lower, &snapshot(&lower));
            return compare(&comparable(&lower, before), &after, &message("refused commit"));
        }
        Err(error) => panic!("{error:?}: {}", message("commit")),
    }
    let left = comparable(&lower, &snapshot(&lower));
    compare(&comparable(&plain, &snapshot(&plain)), &left, &message("commit"));
    undo(folders, &Disk::new()).unwrap_or_else(|error| panic!("{error:?}: {}", message("undo")));
    compare(&comparable(&lower, before), &comparable(&lower, &snapshot(&lower)), &message("undo"));
}

fn compare(expected: &BTreeMap<PathBuf, Comparable>, actual: &BTreeMap<PathBuf, Comparable>, message: &str) {
    for path in expected.keys().chain(actual.keys()) {
        let both = (expected.get(path), actual.get(path));
        assert!(both.0 == both.1, "{} should be {:?} and is {:?}: {message}", path.display(), both.0, both.1);
    }
}

fn comparable(top: &Path, snapshot: &Snapshot) -> BTreeMap<PathBuf, Comparable> {
    let of = |(path, (numbers, content, target)): (&PathBuf, &super::tree::Entry)| {
        let mode = numbers[3];
        let modified = numbers[5];
        let nanoseconds = numbers[6];
        let is_folder = mode & 0o170_000 == 0o040_000;
        // The commit gives no folder the set-group-id bit, which a plain one inherits, and takes no sticky bit from an
        // original that the program replaced by a folder of its own.
        let mode = if is_folder { mode & !0o3000 } else { mode };
        // The commit itself makes and removes entries of folders.
        let time = (!is_folder && modified < NOW).then_some(modified * 1_000_000_000 + nanoseconds);
        (path.strip_prefix(top).unwrap().to_owned(), (mode, time, content.clone(), target.clone()))
    };
    snapshot.iter().map(of).collect()
}
