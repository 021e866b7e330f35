//! A histogram of wall times, for percentiles in constant memory.

use super::usage::WallTimes;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The number of buckets between a power of two and the next one. A percentile is too high by at most a sixteenth.
const STEPS: u64 = 1 << STEP_BITS;
const STEP_BITS: u32 = 4;
/// Times are distinguished up to 2^40 µs, which is 12 days; a run takes at most a week.
const MAX_BITS: u32 = 40;
const BUCKETS: usize = (((MAX_BITS - STEP_BITS) as usize) + 1) << STEP_BITS;

/// The number of runs by their wall time.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "SparseHistogram", into = "SparseHistogram")]
pub(super) struct WallHistogram {
    counts: Box<[u32]>,
    runs: u64,
    max: Duration,
}

impl Default for WallHistogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into(), runs: 0, max: Duration::ZERO }
    }
}

/// [`WallHistogram`] in JSON: only the buckets with runs.
#[derive(Serialize, Deserialize)]
struct SparseHistogram {
    counts: Vec<(usize, u32)>,
    max: Duration,
}

impl From<WallHistogram> for SparseHistogram {
    fn from(WallHistogram { counts, runs: _, max }: WallHistogram) -> Self {
        let counts = counts.iter().copied().enumerate().filter(|(_, count)| *count > 0);
        Self { counts: counts.collect(), max }
    }
}

impl From<SparseHistogram> for WallHistogram {
    fn from(SparseHistogram { counts, max }: SparseHistogram) -> Self {
        let mut histogram = Self { max, ..Self::default() };
        counts.into_iter().for_each(|(bucket, count)| histogram.add_runs(bucket, count));
        histogram
    }
}

impl WallHistogram {
    pub(super) fn merge(&mut self, other: &Self) {
        other.counts.iter().enumerate().for_each(|(bucket, count)| self.add_runs(bucket, *count));
        self.max = self.max.max(other.max);
    }

    fn add_runs(&mut self, bucket: usize, runs: u32) {
        if let Some(count) = self.counts.get_mut(bucket) {
            *count = count.saturating_add(runs);
            self.runs = self.runs.saturating_add(runs.into());
        }
    }

    pub(super) fn add(&mut self, wall: Duration) {
        self.add_runs(bucket_of(wall), 1);
        self.max = self.max.max(wall);
    }

    /// The percentiles that are shown; `None` without runs.
    pub(super) fn percentiles(&self) -> Option<WallTimes> {
        Some(WallTimes {
            p50: self.percentile(50)?,
            p95: self.percentile(95)?,
            p99: self.percentile(99)?,
            max: self.max,
        })
    }

    /// The time that `percent` of 100 runs do not exceed, too high by at most a sixteenth; `None` without runs.
    fn percentile(&self, percent: u64) -> Option<Duration> {
        let rank = self.runs.checked_mul(percent)?.div_ceil(100).max(1);
        let mut runs = 0;
        let bucket = self.counts.iter().position(|count| {
            runs += u64::from(*count);
            runs >= rank
        })?;
        Some(longest_in(bucket).min(self.max))
    }
}

/// The bucket of a time: whole microseconds up to [`STEPS`], and [`STEPS`] buckets for each power of two above.
fn bucket_of(wall: Duration) -> usize {
    let micros = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX).min((1 << MAX_BITS) - 1);
    // The first power of two with more than one microsecond in a bucket begins at `2 * STEPS`.
    let shift = micros.checked_ilog2().unwrap_or(0).saturating_sub(STEP_BITS);
    let bucket = u64::from(shift) * STEPS + (micros >> shift);
    usize::try_from(bucket).unwrap_or(usize::MAX)
}

/// The longest time of a bucket, in whole microseconds.
fn longest_in(bucket: usize) -> Duration {
    let bucket = bucket as u64;
    let shift = (bucket / STEPS).saturating_sub(1);
    let first = (bucket - shift * STEPS) << shift;
    Duration::from_micros(first + (1 << shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_too_high_by_at_most_a_sixteenth() {
        let mut state = 1_u64;
        let walls = (0..5_000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Duration::from_nanos((state >> 24) >> (state % 38))
        });
        let mut walls = walls.collect::<Vec<_>>();
        let mut histogram = WallHistogram::default();
        assert_eq!(histogram.percentile(50), None);
        walls.iter().for_each(|wall| histogram.add(*wall));
        walls.sort_unstable();
        for percent in [1, 50, 95, 99, 100] {
            let exact = walls[(walls.len() * usize::try_from(percent).unwrap()).div_ceil(100) - 1];
            let found = histogram.percentile(percent).unwrap();
            let bound = exact + exact / 16 + Duration::from_micros(1);
            assert!((exact..=bound).contains(&found), "{percent}: {found:?} instead of {exact:?}");
        }
        assert_eq!(histogram.max, *walls.last().unwrap());
    }

    #[test]
    fn buckets_are_consecutive() {
        for micros in (0..100_000).chain((10..MAX_BITS).flat_map(|bit| [(1 << bit) - 1, 1 << bit])) {
            let bucket = bucket_of(Duration::from_micros(micros));
            let next = bucket_of(Duration::from_micros(micros + 1));
            assert!(next == bucket || next == bucket + 1, "{micros}");
            assert!(Duration::from_micros(micros) < longest_in(bucket), "{micros}");
        }
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
    }
}
