//! The view compared with a plain folder: generated sequences of calls have the same results on both, and the originals
//! stay as they were until the commit. Then they are as the plain folder, and after its undo as before.
//!
//! `A2G_OVERLAY_SEQUENCES` sets the number of sequences (`cargo xtask torture` takes 100,000) and `A2G_OVERLAY_FIRST` the
//! first one. A sequence that fails prints its number and its calls. As root, every second sequence runs as an ordinary
//! user on a tree of two owners.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test stops at the first surprise, and matches what concerns it"
)]

mod call;
mod committed;
mod members;
mod overlay;
mod plain;
mod random;
mod tree;

use a2g_overlay::{Table, Upper};
use call::{Call, Facts, Outcome, Side, TimeCall};
use overlay::Overlay;
use plain::Plain;
use random::Random;
use rustix::fs::{Mode, OFlags};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use tempfile::TempDir;

/// The number of sequences without `A2G_OVERLAY_SEQUENCES`.
const SEQUENCES: u64 = 2_000;
const MAX_CALLS: u64 = 60;
const MAX_FILES: usize = 8;
const MAX_FOLDERS: usize = 8;
/// The slots of folders. Those after the first [`MAX_FOLDERS`] are for the comparison of trees, which nests.
const FOLDER_SLOTS: usize = 72;
const ROOTS: usize = 2;
/// The names of all entries, so that most calls meet an entry.
const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"\xff %"];
/// The user and group of sequences that root runs as an ordinary user.
const NOBODY: u32 = 65_534;

fn number_from_env(name: &str, default: u64) -> u64 {
    std::env::var_os(name).map_or(default, |value| value.to_str().unwrap().parse().unwrap())
}

#[test]
fn a_view_is_like_a_plain_folder() {
    run_seeds(run_sequence);
}

#[test]
fn the_views_of_a_program_are_like_processes_on_a_plain_folder() {
    run_seeds(members::run_program);
}

/// A sequence of calls, which returns the table that it leaves.
type Sequence = fn(seed: u64, folder: &Path) -> Table;

fn run_seeds(sequence: Sequence) {
    let first = number_from_env("A2G_OVERLAY_FIRST", 0);
    let sequences = number_from_env("A2G_OVERLAY_SEQUENCES", SEQUENCES);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(2) as u64;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for seed in (first..first + sequences).filter(|seed| seed % threads == thread) {
                    run_seed(seed, sequence);
                }
            });
        }
    });
}

/// A folder in memory, if there is one and `TMPDIR` does not say otherwise: on a disk, each commit waits for it.
fn temporary_folder() -> TempDir {
    let in_memory = std::env::var_os("TMPDIR").is_none().then(|| tempfile::tempdir_in("/dev/shm").ok());
    in_memory.flatten().unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// Makes the trees, runs one sequence as its user, and checks that the originals are untouched.
fn run_seed(seed: u64, sequence: Sequence) {
    let folder = temporary_folder();
    let is_root = rustix::process::geteuid().is_root();
    let user = (is_root && seed / 2 % 2 == 1).then_some(NOBODY);
    for side in ["plain", "lower"] {
        let mut random = Random::new(seed);
        for root in 0..ROOTS {
            tree::build(&folder.path().join(side).join(root.to_string()), &mut random, user);
        }
    }
    for contents in ["upper", "base", "calls"] {
        let path = folder.path().join(contents);
        std::fs::create_dir(&path).unwrap();
        std::os::unix::fs::chown(&path, user, user).unwrap();
    }
    tree::open_to_all(folder.path());
    let before = tree::snapshot(&folder.path().join("lower"));
    let run = || {
        if let Some(user) = user {
            rustix::thread::set_thread_groups(&[]).unwrap();
            let gid = rustix::fs::Gid::from_raw(user);
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            let uid = rustix::fs::Uid::from_raw(user);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        }
        sequence(seed, folder.path())
    };
    // The user of a thread stays that of the thread.
    let result = std::thread::scope(|scope| scope.spawn(run).join());
    let table = result.unwrap_or_else(|_| panic!("sequence {seed} failed"));
    let after = tree::snapshot(&folder.path().join("lower"));
    assert_eq!(before, after, "sequence {seed} changed originals");
    let contents = |name: &str| open(&folder.path().join(name));
    let upper = Upper::of_member(contents("upper"), contents("base"), 0, Vec::new());
    committed::check(seed, folder.path(), &table, &upper, &before);
}

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// Prints the calls of a sequence that fails.
struct Log {
    seed: u64,
    calls: Vec<Logged>,
}

enum Logged {
    Call(Call, Outcome),
    /// Another member of the program has run here.
    Member(Vec<Logged>),
}

fn print_all(calls: &[Logged], depth: usize) {
    let indent = "    ".repeat(depth);
    for call in calls {
        match call {
            Logged::Call(call, outcome) => println!("{indent}{call:?} -> {outcome:?}"),
            Logged::Member(calls) => {
                println!("{indent}a call of the program:");
                print_all(calls, depth + 1);
            }
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("sequence {}:", self.seed);
            print_all(&self.calls, 0);
        }
    }
}

/// Runs a sequence, and returns its table.
fn run_sequence(seed: u64, folder: &Path) -> Table {
    let mut random = Random::new(!seed);
    let is_read_only = [false, random.chance(200)];
    let roots = |side: &str| [0, 1].map(|root| open(&folder.join(side).join(root.to_string())));
    let plain = Plain::new(roots("plain"), is_read_only);
    let overlay = Overlay::new(folder.join("upper"), folder.join("lower"), is_read_only);
    let mut both = Both::new(seed, plain, overlay);
    for _ in 0..=random.below(MAX_CALLS) {
        if random.chance(15) {
            both.reload();
        } else if random.chance(30) {
            both.list_during_a_change(&mut random);
        } else {
            both.run_one(&mut random);
        }
    }
    both.compare_trees();
    both.reload();
    both.compare_trees();
    both.overlay.into_table()
}

struct Both {
    plain: Plain,
    overlay: Overlay,
    log: Log,
    /// `false` once the table has been stored: of a folder without changes, it does not keep that entries came and went.
    compares_folder_times: bool,
}

impl Both {
    fn new(seed: u64, plain: Plain, overlay: Overlay) -> Self {
        let log = Log { seed, calls: Vec::new() };
        Self { plain, overlay, log, compares_folder_times: true }
    }

    fn run_one(&mut self, random: &mut Random) {
        let Some(call) = self.generate(random) else { return };
        let _same = self.run(&call);
    }

    fn run(&mut self, call: &Call) -> Outcome {
        let mut expected = self.plain.run(call);
        let mut actual = self.overlay.run(call);
        self.log.calls.push(Logged::Call(call.clone(), expected.clone()));
        if let (Outcome::Facts(plain), Outcome::Facts(overlay)) = (&mut expected, &mut actual) {
            self.forgive(plain, overlay);
        }
        assert_eq!(expected, actual, "plain folder, then view: {call:?}");
        expected
    }

    /// The open files that no folder contains any more.
    fn removed_files(&self) -> Vec<usize> {
        let removed = self.overlay.removed_files();
        // In the view, each name of a file with several is a file of its own.
        assert!(self.plain.removed_files().iter().all(|slot| removed.contains(slot)));
        removed
    }

    /// Removes from both what cannot be compared.
    fn forgive(&self, plain: &mut Facts, overlay: &mut Facts) {
        if plain.nlink.is_none() {
            overlay.nlink = None;
        }
        if plain.is_folder() && !self.compares_folder_times {
            plain.modified = None;
            overlay.modified = None;
        }
    }

    fn generate(&self, random: &mut Random) -> Option<Call> {
        let folders = self.plain.open_folders();
        let folder = random.pick(&folders);
        let name = OsStr::from_bytes(random.pick(&NAMES)).to_owned();
        let files = self.plain.open_files();
        let file = (!files.is_empty()).then(|| random.pick(&files));
        let call = match random.below(100) {
            0..12 => Call::OpenFolder { folder, name, slot: random.pick_slot(ROOTS, MAX_FOLDERS) },
            12..14 => Call::CloseFolder { slot: random.pick_slot(ROOTS, MAX_FOLDERS) },
            14..30 => {
                let how = random.how();
                Call::Open { folder, name, how, slot: random.pick_slot(0, MAX_FILES) }
            }
            30..34 => Call::Close { slot: file? },
            34..42 => Call::Read { slot: file?, at: random.below(40), length: 64 },
            42..50 => {
                let data = random.bytes(20);
                Call::Write { slot: file?, at: random.below(40), data }
            }
            50..53 => Call::Resize { slot: file?, size: random.below(50) },
            53..58 => Call::Stat { folder, name },
            58..61 => Call::StatFile { slot: file? },
            61..63 => Call::StatFolder { folder },
            63..66 => Call::List { folder },
            66..72 => Call::MakeFolder { folder, name },
            72..76 => Call::RemoveFolder { folder, name },
            76..81 => Call::Unlink { folder, name },
            81..91 => {
                let to = OsStr::from_bytes(random.pick(&NAMES)).to_owned();
                Call::Rename { folder, name, to_folder: random.pick(&folders), to }
            }
            91..93 => Call::Symlink { folder, name, target: random.target() },
            93..95 => Call::ReadLink { folder, name },
            95..97 => Call::SetTimes { at: TimeCall::Entry(folder, name), times: random.times() },
            97 => Call::SetTimes { at: TimeCall::File(file?), times: random.times() },
            98 => Call::SetTimes { at: TimeCall::Folder(folder), times: random.times() },
            _ => Call::IsSame { folder, name, slot: file? },
        };
        (!self.plain.is_known_difference(&call)).then_some(call)
    }

    /// Changes something in the middle of a listing of the view. What was there before and after is listed once.
    fn list_during_a_change(&mut self, random: &mut Random) {
        let folder = random.pick(&self.plain.open_folders());
        let Outcome::Names(before) = self.run(&Call::List { folder }) else { return };
        let mut listed = self.overlay.list_some(folder, random.below(4) as usize);
        match self.generate(random) {
            Some(Call::OpenFolder { slot, .. } | Call::CloseFolder { slot }) if slot == folder => {}
            Some(call) => drop(self.run(&call)),
            None => {}
        }
        let Outcome::Names(after) = self.run(&Call::List { folder }) else { return };
        listed.finish(&mut self.overlay, random.chance(500));
        let names = listed.names;
        for (name, _) in before.iter().filter(|(name, _)| after.contains_key(*name)) {
            let times = names.iter().filter(|listed| *listed == name).count();
            assert_eq!(times, 1, "{name:?} is listed {times} times");
        }
        for name in &names {
            assert!(before.contains_key(name) || after.contains_key(name), "{name:?} was never there");
        }
    }

    /// Stores the changes and continues with them. Whatever is open is closed.
    fn reload(&mut self) {
        self.run(&Call::Reload);
        self.compares_folder_times = false;
    }

    /// Compares all that can be reached.
    fn compare_trees(&mut self) {
        self.plain.close_all();
        self.overlay.close_all();
        for root in 0..ROOTS {
            self.compare_folder(root, MAX_FOLDERS);
        }
    }

    /// Compares what is in a folder. Inner folders are opened in the slots from `slot`.
    fn compare_folder(&mut self, folder: usize, slot: usize) {
        self.run(&Call::StatFolder { folder });
        let Outcome::Names(names) = self.run(&Call::List { folder }) else { return };
        let names: Vec<OsString> = names.into_keys().collect();
        for name in names {
            self.run(&Call::Stat { folder, name: name.clone() });
            self.run(&Call::ReadLink { folder, name: name.clone() });
            let how = a2g_overlay::How { read: true, ..Default::default() };
            if self.run(&Call::Open { folder, name: name.clone(), how, slot: 0 }) == Outcome::Done {
                self.run(&Call::ReadAll { slot: 0 });
                self.run(&Call::Close { slot: 0 });
            }
            if self.run(&Call::OpenFolder { folder, name, slot }) == Outcome::Done {
                self.compare_folder(slot, slot + 1);
                self.run(&Call::CloseFolder { slot });
            }
        }
    }
}
