//! The CPU limit: a leaky bucket of CPU time.
//!
//! At every tick the CPU time since the last tick is added to the bucket, which leaks at the granted share of
//! wall time. Above [`SLACK`], the guest sleeps until the bucket has leaked empty. The level may fall below zero
//! by the same slack, which compensates for sleeps that last too long; idle time beyond that is never credited.
//! Over any window a guest therefore uses at most its share plus twice the slack and one tick.

use a2g_types::limit::Bound;
use a2g_types::quantity::CpuPercent;
use std::time::{Duration, Instant};

/// Maximum deviation from its share that a guest can accumulate in either direction, in CPU seconds.
const SLACK: f64 = 0.002;

/// One execution's CPU limit.
#[derive(Debug)]
pub(super) struct Throttle {
    limit: Bound<CpuPercent>,
    /// CPU seconds in the bucket.
    level: f64,
    last_cpu: Duration,
    last_wall: Instant,
}

impl Throttle {
    pub(super) fn new(limit: Bound<CpuPercent>, now: Instant) -> Self {
        Self { limit, level: 0.0, last_cpu: Duration::ZERO, last_wall: now }
    }

    pub(super) fn limit(&self) -> Bound<CpuPercent> {
        self.limit
    }

    /// Accounts for the CPU time used until `now`. Returns the time that the guest has to sleep, if any.
    pub(super) fn charge(&mut self, cpu: Duration, now: Instant) -> Option<Duration> {
        let share = f64::from(self.limit.value.get()) / 100.0;
        let used = cpu.saturating_sub(self.last_cpu).as_secs_f64();
        let leaked = now.saturating_duration_since(self.last_wall).as_secs_f64() * share;
        self.level = (self.level + used - leaked).max(-SLACK);
        self.last_cpu = cpu;
        self.last_wall = now;
        (self.level > SLACK).then(|| Duration::from_secs_f64(self.level / share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::limit::Layer;

    /// Runs a guest that is always busy on a simulated clock. Returns the highest and the lowest CPU use of any second,
    /// in percent.
    fn max_and_min_cpu_of_a_second(percent: u64, oversleep: Duration) -> (f64, f64) {
        let value = CpuPercent::new(percent).unwrap();
        let start = a2g_types::clock::Clock::monotonic(&a2g_types::clock::SystemClock);
        let mut throttle = Throttle::new(Bound { value, layer: Layer::Verdict }, start);
        let tick = Duration::from_millis(1);
        let mut wall = Duration::ZERO;
        let mut cpu = Duration::ZERO;
        let mut history = vec![(wall, cpu)];
        while wall < Duration::from_secs(20) {
            (wall, cpu) = (wall + tick, cpu + tick);
            history.push((wall, cpu));
            if let Some(sleep) = throttle.charge(cpu, start + wall) {
                wall += sleep + oversleep;
                history.push((wall, cpu));
            }
        }
        let cpu_at = |t: Duration| {
            let after = history.partition_point(|(wall, _)| *wall <= t);
            let ((w0, c0), (w1, c1)) = (history[after - 1], history[after]);
            c0.as_secs_f64() + (c1 - c0).as_secs_f64() * (t - w0).as_secs_f64() / (w1 - w0).as_secs_f64()
        };
        let windows = (0..1800).map(|i| Duration::from_millis(i * 10));
        let per_second = windows.map(|t| cpu_at(t + Duration::from_secs(1)) - cpu_at(t)).collect::<Vec<_>>();
        let max = per_second.iter().copied().fold(0.0, f64::max);
        let min = per_second.iter().copied().fold(f64::MAX, f64::min);
        (max * 100.0, min * 100.0)
    }

    #[test]
    fn every_second_is_within_the_promised_deviation() {
        for percent in [1u64, 5, 10, 25, 50, 90] {
            for oversleep_us in [0, 100, 1000] {
                let (max, min) = max_and_min_cpu_of_a_second(percent, Duration::from_micros(oversleep_us));
                let limit = f64::from(u32::try_from(percent).unwrap());
                let allowed = if percent <= 10 { 1.0 } else { limit / 10.0 };
                assert!(max <= limit + allowed, "{percent} %: {max} in some second");
                assert!(min >= limit - allowed, "{percent} %: only {min} in some second");
            }
        }
    }

    #[test]
    fn idle_time_is_not_credited() {
        let start = a2g_types::clock::Clock::monotonic(&a2g_types::clock::SystemClock);
        let value = CpuPercent::new(10).unwrap();
        let mut throttle = Throttle::new(Bound { value, layer: Layer::Verdict }, start);
        let later = start + Duration::from_secs(3600);
        assert_eq!(throttle.charge(Duration::ZERO, later), None);
        let sleep = throttle.charge(Duration::from_millis(10), later + Duration::from_millis(10)).unwrap();
        assert!(sleep > Duration::from_millis(60), "{sleep:?}");
    }
}
