//! Programs that do anything, whose commits and undos are interrupted anywhere.

use super::stride;
use super::support::{Fixture, Guest, OLD, interrupt, name};
use a2g_overlay::{Create, Disk, FileTime, How, NewTime, NodeId, Recovered};
use rustix::io::Errno;
use std::os::unix::fs::FileExt as _;

const NAMES: [&str; 9] = ["a", "b", "d", "sub", "gone", "inner", "moved", "deep", "1"];
const MAX_CALLS: u64 = 40;

/// A small generator, the same on every machine (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn name(&mut self) -> &'static str {
        NAMES[usize::try_from(self.below(NAMES.len() as u64)).unwrap()]
    }
}

/// A folder at some depth.
fn folder(guest: &mut Guest, random: &mut Random) -> NodeId {
    let mut folder = guest.view.root(0).unwrap();
    for _ in 0..random.below(4) {
        folder = guest.view.open_folder(folder, &name(random.name())).unwrap_or(folder);
    }
    folder
}

fn call(guest: &mut Guest, random: &mut Random) -> Result<(), Errno> {
    let parent = folder(guest, random);
    let leaf = name(random.name());
    match random.below(8) {
        0 | 1 => {
            let how = How { write: true, truncate: true, create: Create::IfMissing, ..How::default() };
            let opened = guest.view.open_file(parent, &leaf, how)?;
            let length = random.below(30);
            opened.file.write_all_at(&vec![b'x'; usize::try_from(length).unwrap()], 0).unwrap();
            drop(opened);
            let time = FileTime { seconds: OLD + i64::try_from(length).unwrap(), nanoseconds: 0 };
            guest.view.set_times_at(parent, &leaf, NewTime::Keep, NewTime::At(time))
        }
        2 => guest.view.unlink(parent, &leaf),
        3 => guest.view.remove_folder(parent, &leaf),
        4 => guest.view.create_folder(parent, &leaf),
        5 => guest.view.symlink("somewhere".as_ref(), parent, &leaf),
        _ => {
            let other = folder(guest, random);
            guest.view.rename((parent, &leaf), (other, &name(random.name())))
        }
    }
}

/// Returns the number of changes.
fn run(seed: u64) -> usize {
    let new: fn() -> Fixture =
        if seed.is_multiple_of(4) { Fixture::with_distant_store } else { Fixture::new };
    let act = |guest: &mut Guest| {
        let mut random = Random(seed);
        for _ in 0..random.below(MAX_CALLS) {
            let _may_fail = call(guest, &mut random);
        }
    };
    let fixture = new();
    let before = fixture.snapshot();
    let effects = fixture.effects(&fixture.run(act)).unwrap();
    let context = format!("seed {seed}: {:?}", effects.changes);
    let commit = Disk::new();
    fixture.commit(&effects, &commit).unwrap_or_else(|error| panic!("{error:?}: {context}"));
    let after = fixture.snapshot();
    let undo = Disk::new();
    fixture.undo(&undo).unwrap_or_else(|error| panic!("{error:?}: {context}"));
    assert_eq!(fixture.snapshot(), before, "{context}");
    let mut random = Random(!seed);
    for is_undo in [false, true] {
        let fixture = new();
        let effects = fixture.effects(&fixture.run(act)).unwrap();
        let calls = if is_undo { undo.calls() } else { commit.calls() };
        let call = random.below(calls);
        let is_ended = if is_undo {
            fixture.commit(&effects, &Disk::new()).unwrap();
            interrupt(call, |disk| fixture.undo(disk).unwrap())
        } else {
            interrupt(call, |disk| fixture.commit(&effects, disk).unwrap())
        };
        assert!(is_ended, "{context}");
        let again = random.below(calls);
        let _may_have_ended_before = interrupt(again, |disk| {
            assert!(matches!(fixture.recover(disk), Ok(Recovered::Unchanged | Recovered::Committed)))
        });
        let context = format!("is_undo {is_undo}, call {call}, again {again}, {context}");
        let recovered = fixture.recover(&Disk::new()).unwrap_or_else(|error| panic!("{error:?}: {context}"));
        let expected = if recovered == Recovered::Committed { &after } else { &before };
        assert_eq!(fixture.snapshot(), *expected, "{context}");
        assert!(recovered == Recovered::Committed || fixture.is_store_empty(), "{context}");
    }
    effects.changes.len()
}

#[test]
fn any_program_takes_effect_wholly_or_not() {
    let count = 20_000 / stride(100);
    let changes = (0..count).map(|seed| run(u64::try_from(seed).unwrap())).sum::<usize>();
    println!("{count} programs made {changes} changes");
    assert!(changes > 3 * count, "{changes}");
}
