//! The tree at the start, and snapshots of one.

use super::NAMES;
use super::random::Random;
use rustix::fs::{AtFlags, CWD, FileType, Mode, mknodat, utimensat};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

const MAX_DEPTH: usize = 3;
const SPARSE_BYTES: u64 = 300_000;

/// Fills a folder. If there is a `user`, the entries belong to root or to it.
pub(super) fn build(path: &Path, random: &mut Random, user: Option<u32>) {
    std::fs::create_dir_all(path).unwrap();
    fill(path, random, user, 0);
    chown(path, user, user).unwrap();
    set_time(path, random);
}

fn fill(path: &Path, random: &mut Random, user: Option<u32>, depth: usize) {
    for name in NAMES {
        let entry = path.join(OsStr::from_bytes(name));
        let owner = user.filter(|_| random.chance(700));
        match random.below(14 + 4 * depth as u64) {
            0..4 => file(&entry, random, owner),
            4..7 if depth < MAX_DEPTH => {
                std::fs::create_dir(&entry).unwrap();
                fill(&entry, random, user, depth + 1);
                chown(&entry, owner, owner).unwrap();
                let modes = [0o755, 0o755, 0o777, 0o700, 0o500, 0o555, 0o400, 0o1777, 0o2755];
                set_mode(&entry, random.pick(&modes));
            }
            7 => symlink(OsStr::from_bytes(random.pick(&NAMES)), &entry).unwrap(),
            8 if random.chance(300) => {
                mknodat(CWD, &entry, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
            }
            9 => {
                // A second name of a file, if the folder has one.
                let other = path.join(OsStr::from_bytes(random.pick(&NAMES)));
                if !other.is_file() || std::fs::hard_link(&other, &entry).is_err() {
                    continue;
                }
            }
            _ => continue,
        }
        set_time(&entry, random);
    }
}

fn file(path: &Path, random: &mut Random, owner: Option<u32>) {
    let file = std::fs::File::create(path).unwrap();
    file.write_all_at(&random.bytes(30), 0).unwrap();
    if random.chance(100) {
        file.write_all_at(b"end", SPARSE_BYTES).unwrap();
    }
    chown(path, owner, owner).unwrap();
    set_mode(path, random.pick(&[0o644, 0o644, 0o600, 0o666, 0o400, 0o444, 0o755, 0o000]));
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn set_time(path: &Path, random: &mut Random) {
    let time = random.old_time().to_timespec();
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Lets every user reach what is in a temporary folder.
pub(super) fn open_to_all(path: &Path) {
    set_mode(path, 0o755);
    for side in ["plain", "lower"] {
        set_mode(&path.join(side), 0o755);
    }
}

/// The numbers of `lstat`, the content and the target of an entry.
pub(super) type Entry = (Vec<i64>, Option<Vec<u8>>, Option<OsString>);

pub(super) type Snapshot = BTreeMap<PathBuf, Entry>;

/// All that a change of a tree would change, but for the times of access.
pub(super) fn snapshot(path: &Path) -> Snapshot {
    let mut found = BTreeMap::new();
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        // An ordinary user cannot examine everything.
        let Ok(is) = std::fs::symlink_metadata(&path) else { continue };
        let numbers = [is.ino(), is.nlink(), is.size(), is.mode().into(), is.uid().into()];
        let mut numbers = numbers.map(|number| number as i64).to_vec();
        numbers.extend([is.mtime(), is.mtime_nsec(), is.ctime(), is.ctime_nsec()]);
        let content = is.is_file().then(|| std::fs::read(&path).unwrap_or_default());
        let target = std::fs::read_link(&path).ok().map(PathBuf::into_os_string);
        if is.is_dir()
            && let Ok(entries) = std::fs::read_dir(&path)
        {
            open.extend(entries.map(|entry| entry.unwrap().path()));
        }
        found.insert(path, (numbers, content, target));
    }
    found
}
