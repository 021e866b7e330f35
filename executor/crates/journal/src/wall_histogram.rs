//! A histogram of wall times, for percentiles in constant memory.

use super::usage::WallTimes;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Times are distinguished up to 2^40 µs, which is 12 days; a run takes at most a week.
const MAX_MICROS: u64 = (1 << 40) - 1;
/// One significant digit: 16 buckets between a power of two and the next one. So a percentile is too high by at most a
/// sixteenth.
const DIGITS: u8 = 1;

/// The number of runs by their wall time.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "SparseHistogram", into = "SparseHistogram")]
pub(super) struct WallHistogram {
    /// In whole microseconds; `None` before the first run.
    counts: Option<Histogram<u32>>,
    max: Duration,
}

/// [`WallHistogram`] in JSON: the longest time of each bucket with runs, and their number.
#[derive(Serialize, Deserialize)]
struct SparseHistogram {
    counts: Vec<(u64, u32)>,
    max: Duration,
}

impl From<WallHistogram> for SparseHistogram {
    fn from(histogram: WallHistogram) -> Self {
        Self { counts: histogram.buckets().collect(), max: histogram.max }
    }
}

impl From<SparseHistogram> for WallHistogram {
    fn from(SparseHistogram { counts, max }: SparseHistogram) -> Self {
        let mut histogram = Self { counts: None, max };
        counts.into_iter().for_each(|(micros, runs)| histogram.add_runs(micros, runs));
        histogram
    }
}

impl WallHistogram {
    /// The longest time of each bucket with runs, and their number.
    fn buckets(&self) -> impl Iterator<Item = (u64, u32)> {
        let recorded = self.counts.iter().flat_map(Histogram::iter_recorded);
        recorded.map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
    }

    pub(super) fn merge(&mut self, other: &Self) {
        other.buckets().for_each(|(micros, runs)| self.add_runs(micros, runs));
        self.max = self.max.max(other.max);
    }

    fn add_runs(&mut self, micros: u64, runs: u32) {
        if self.counts.is_none() {
            // These bounds are valid.
            self.counts = Histogram::new_with_bounds(1, MAX_MICROS, DIGITS).ok();
        }
        if let Some(counts) = &mut self.counts {
            counts.saturating_record_n(micros, runs);
        }
    }

    pub(super) fn add(&mut self, wall: Duration) {
        self.add_runs(u64::try_from(wall.as_micros()).unwrap_or(u64::MAX), 1);
        self.max = self.max.max(wall);
    }

    /// The percentiles that are shown; `None` without runs.
    pub(super) fn percentiles(&self) -> Option<WallTimes> {
        Some(WallTimes {
            p50: self.percentile(50.0)?,
            p95: self.percentile(95.0)?,
            p99: self.percentile(99.0)?,
            max: self.max,
        })
    }

    /// The time that `percent` of 100 runs do not exceed, too high by at most a sixteenth; `None` without runs.
    fn percentile(&self, percent: f64) -> Option<Duration> {
        let counts = self.counts.as_ref().filter(|counts| !counts.is_empty())?;
        // The runs of a bucket may have taken almost a microsecond longer than its last whole one.
        Some(Duration::from_micros(counts.value_at_percentile(percent) + 1).min(self.max))
    }
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
        assert_eq!(histogram.percentiles(), None);
        walls.iter().for_each(|wall| histogram.add(*wall));
        let text = serde_json::to_string(&histogram).unwrap();
        let read = serde_json::from_str::<WallHistogram>(&text).unwrap();
        walls.sort_unstable();
        for percent in [1_u32, 50, 95, 99, 100] {
            let exact = walls[(walls.len() * percent as usize).div_ceil(100) - 1];
            let found = histogram.percentile(percent.into()).unwrap();
            let bound = exact + exact / 16 + Duration::from_micros(1);
            assert!((exact..=bound).contains(&found), "{percent}: {found:?} instead of {exact:?}");
            assert_eq!(read.percentile(percent.into()), Some(found), "{percent}");
        }
        assert_eq!(histogram.max, *walls.last().unwrap());
    }

    #[test]
    fn times_beyond_the_bounds_are_counted() {
        let mut histogram = WallHistogram::default();
        [Duration::ZERO, Duration::MAX].into_iter().for_each(|wall| histogram.add(wall));
        let WallTimes { p50, p95, max, .. } = histogram.percentiles().unwrap();
        assert_eq!((p50, max), (Duration::from_micros(1), Duration::MAX));
        assert!(p95 > Duration::from_hours(24 * 7));
    }
}
