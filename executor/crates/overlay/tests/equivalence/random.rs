//! The generator of calls.

use super::call::Times;
use a2g_overlay::{Create, FileTime, How, NewTime};
use std::ffi::OsString;

/// A small generator of random numbers (SplitMix64).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub(super) fn pick_slot(&mut self, first: usize, end: usize) -> usize {
        first + self.below((end - first) as u64) as usize
    }

    /// Returns `true` in this number of 1000 cases.
    pub(super) fn chance(&mut self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }

    pub(super) fn bytes(&mut self, end: u64) -> Vec<u8> {
        let length = self.below(end);
        (0..length).map(|_| self.next() as u8).collect()
    }

    pub(super) fn how(&mut self) -> How {
        How {
            read: self.chance(600),
            write: self.chance(500),
            append: self.chance(100),
            truncate: self.chance(200),
            create: self.pick(&[
                Create::No,
                Create::No,
                Create::IfMissing,
                Create::IfMissing,
                Create::Exclusive,
            ]),
        }
    }

    pub(super) fn target(&mut self) -> OsString {
        self.pick(&["a", "../b", "/nowhere", "", "\u{1f980}", "."]).into()
    }

    pub(super) fn times(&mut self) -> Times {
        Times { accessed: self.time(), modified: self.time() }
    }

    fn time(&mut self) -> NewTime {
        match self.below(4) {
            0 => NewTime::Keep,
            1 => NewTime::Now,
            2 if self.chance(100) => NewTime::At(FileTime { seconds: 0, nanoseconds: 1_000_000_000 }),
            _ => NewTime::At(self.old_time()),
        }
    }

    /// A time before this test runs.
    pub(super) fn old_time(&mut self) -> FileTime {
        FileTime { seconds: self.below(1_000_000_000) as i64, nanoseconds: self.below(1_000_000_000) as u32 }
    }
}
