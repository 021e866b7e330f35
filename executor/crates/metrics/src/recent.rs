//! The latest runs, in fixed memory: how many ended in the last minute, and how long those of the last minutes took.
//!
//! The histograms of [`Metrics`](super::Metrics) count since the start, so they cannot give the rate of the last minute.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time whose runs are counted.
const RATE_WINDOW: Duration = Duration::from_secs(60);
/// The time whose runs have percentiles.
const WALL_WINDOW: Duration = Duration::from_secs(300);
/// The maximum number of runs that have percentiles, each of which takes 32 bytes.
const MAX_SAMPLES: usize = 1_000;

/// The latest runs.
#[derive(Debug, Default)]
pub struct RecentRuns {
    state: Mutex<RecentState>,
}

#[derive(Debug, Default)]
struct RecentState {
    /// The number of runs that ended in each of the last seconds, the latest last. Seconds without runs are left out.
    seconds: VecDeque<(Instant, u64)>,
    /// The wall times of the latest runs, with the time at which each ended.
    samples: VecDeque<(Instant, Duration)>,
}

/// A summary of the latest runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecentSummary {
    /// The number of runs that ended in the last minute.
    pub last_minute: u64,
    /// The wall times of the latest 1,000 runs at most, of the last five minutes; `None` if none ended then.
    pub wall: Option<RecentWall>,
}

/// Exact percentiles of the latest wall times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecentWall {
    /// Half of the runs took no longer.
    pub p50: Duration,
    /// 95 of 100 runs took no longer.
    pub p95: Duration,
}

impl RecentRuns {
    /// Counts a run that ended `now`.
    pub(super) fn record(&self, now: Instant, wall: Duration) {
        let mut state = self.state.lock();
        match state.seconds.back_mut() {
            Some((begin, count)) if now.saturating_duration_since(*begin) < Duration::from_secs(1) => {
                *count += 1
            }
            Some(_) | None => state.seconds.push_back((now, 1)),
        }
        if state.samples.len() >= MAX_SAMPLES {
            state.samples.pop_front();
        }
        state.samples.push_back((now, wall));
        state.drop_old(now);
    }

    /// The summary of the runs up to `now`.
    #[must_use]
    pub fn summarize(&self, now: Instant) -> RecentSummary {
        let mut state = self.state.lock();
        state.drop_old(now);
        let last_minute = state.seconds.iter().map(|(_, count)| count).sum();
        let mut walls = state.samples.iter().map(|(_, wall)| *wall).collect::<Vec<_>>();
        drop(state);
        walls.sort_unstable();
        let percentile =
            |percent: usize| walls.get((walls.len() * percent).div_ceil(100).max(1) - 1).copied();
        let wall = percentile(50).zip(percentile(95)).map(|(p50, p95)| RecentWall { p50, p95 });
        RecentSummary { last_minute, wall }
    }
}

impl RecentState {
    fn drop_old(&mut self, now: Instant) {
        let is_old = |at: &Instant, window: Duration| now.saturating_duration_since(*at) >= window;
        while self.seconds.front().is_some_and(|(at, _)| is_old(at, RATE_WINDOW)) {
            self.seconds.pop_front();
        }
        while self.samples.front().is_some_and(|(at, _)| is_old(at, WALL_WINDOW)) {
            self.samples.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "an instant has no other constructor")]
    fn old_runs_are_forgotten_and_the_memory_is_bounded() {
        let start = Instant::now();
        let recent = RecentRuns::default();
        assert_eq!(recent.summarize(start), RecentSummary::default());
        for ms in 1..=100 {
            recent.record(start + Duration::from_millis(ms * 10), Duration::from_millis(ms));
        }
        let ms = Duration::from_millis;
        let wall = Some(RecentWall { p50: ms(50), p95: ms(95) });
        assert_eq!(
            recent.summarize(start + Duration::from_secs(2)),
            RecentSummary { last_minute: 100, wall }
        );
        assert_eq!(recent.summarize(start + Duration::from_secs(70)), RecentSummary { last_minute: 0, wall });
        assert_eq!(recent.summarize(start + Duration::from_secs(400)), RecentSummary::default());
        for second in 0..5_000 {
            recent.record(start + Duration::from_secs(second), ms(7));
            recent.record(start + Duration::from_secs(second), ms(7));
        }
        let state = recent.state.lock();
        assert!(state.seconds.len() <= 60 && state.samples.len() <= MAX_SAMPLES);
        drop(state);
        let summary = recent.summarize(start + Duration::from_secs(5_000));
        assert!((116..=120).contains(&summary.last_minute), "{summary:?}");
        assert_eq!(summary.wall, Some(RecentWall { p50: ms(7), p95: ms(7) }));
    }
}
