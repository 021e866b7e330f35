//! A rate limiter: the generic cell rate algorithm (GCRA).
//!
//! In any interval of length `t` at most `burst + t / interval` requests pass. A limiter with fixed windows would let
//! twice as many pass around a window's edge. The limiter reads no clock: the caller passes the time, and holds one
//! [`RateState`] per key.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// At most `burst` requests at once, and one more after each `interval`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    burst: NonZeroU32,
    interval: Duration,
}

/// The state of one key: the time at which its whole burst is available again. By default, nothing of it is used.
#[derive(Debug, Clone, Copy, Default)]
pub struct RateState(Option<Instant>);

impl RateLimit {
    /// Makes a limit of at most `burst` requests at once and one more after each `interval`, which is at least a
    /// nanosecond.
    #[must_use]
    pub const fn new(burst: NonZeroU32, interval: Duration) -> Self {
        let interval = if interval.is_zero() { Duration::from_nanos(1) } else { interval };
        Self { burst, interval }
    }

    /// Makes a limit of `count` requests at once and `count` in each following `period`, evenly spread.
    #[must_use]
    pub fn per_period(count: NonZeroU32, period: Duration) -> Self {
        Self::new(count, period / count.get())
    }

    /// A request passes if the whole burst is available again within this time.
    fn tolerance(self) -> Duration {
        self.interval.saturating_mul(self.burst.get() - 1)
    }
}

impl RateState {
    /// Admits and counts one request, or refuses it.
    ///
    /// # Errors
    /// If the request is refused: the time to wait until one passes. A refused request is not counted.
    pub fn acquire(&mut self, limit: RateLimit, now: Instant) -> Result<(), Duration> {
        let wait = self.wait_time(limit, now);
        if !wait.is_zero() {
            return Err(wait);
        }
        self.0 = now.checked_add(self.full_after(now) + limit.interval);
        Ok(())
    }

    /// The time until the next request passes; zero if it passes now.
    #[must_use]
    pub fn wait_time(&self, limit: RateLimit, now: Instant) -> Duration {
        self.full_after(now).saturating_sub(limit.tolerance())
    }

    /// The time until the whole burst is available again.
    #[must_use]
    pub fn full_after(&self, now: Instant) -> Duration {
        self.0.map_or(Duration::ZERO, |full| full.saturating_duration_since(now))
    }

    /// The number of requests that pass at this moment.
    #[must_use]
    pub fn remaining(&self, limit: RateLimit, now: Instant) -> u32 {
        let used = self.full_after(now).as_nanos().div_ceil(limit.interval.as_nanos());
        limit.burst.get().saturating_sub(u32::try_from(used).unwrap_or(u32::MAX))
    }
}

/// Converts a wait to whole units, rounded up, so that a request after that time passes.
#[must_use]
pub fn to_whole_units(wait: Duration, unit: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(unit.as_nanos().max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, SystemClock};
    use proptest::prelude::*;

    const NANOSECOND: Duration = Duration::from_nanos(1);

    fn limit(burst: u32, interval: Duration) -> RateLimit {
        RateLimit::new(NonZeroU32::new(burst).unwrap(), interval)
    }

    /// The definition of the limit: `true` if one more request keeps the bound in every interval that ends now.
    fn is_within_the_bound(limit: RateLimit, accepted: &[Instant], now: Instant) -> bool {
        accepted.iter().rev().zip(2_u128..).all(|(&first, count)| {
            let refilled = (now - first).as_nanos() / limit.interval.as_nanos();
            count <= u128::from(limit.burst.get()) + refilled
        })
    }

    proptest! {
        #[test]
        fn no_interval_has_more_requests_than_its_burst_and_its_rate(
            burst in 1_u32..12,
            interval in 1_u64..50,
            pauses in proptest::collection::vec(prop_oneof![Just(0_u64), 0_u64..60, 0_u64..1000], 1..120),
        ) {
            let limit = limit(burst, Duration::from_nanos(interval));
            let mut state = RateState::default();
            let mut accepted = Vec::new();
            let mut now = SystemClock.monotonic();
            for pause in pauses {
                now += Duration::from_nanos(pause);
                let is_expected = is_within_the_bound(limit, &accepted, now);
                prop_assert_eq!(state.remaining(limit, now) > 0, is_expected);
                match state.acquire(limit, now) {
                    Ok(()) => {
                        prop_assert!(is_expected);
                        accepted.push(now);
                    }
                    Err(wait) => {
                        prop_assert!(!is_expected);
                        prop_assert!(is_within_the_bound(limit, &accepted, now + wait), "the wait is long enough");
                        prop_assert!(!is_within_the_bound(limit, &accepted, now + wait - NANOSECOND), "the wait is not too long");
                    }
                }
            }
        }
    }

    #[test]
    fn no_second_burst_passes_at_the_edge_of_a_period() {
        let mut state = RateState::default();
        let start = SystemClock.monotonic();
        let limit = RateLimit::per_period(NonZeroU32::new(60).unwrap(), Duration::from_secs(60));
        let mut accepted = |now| (0..100).filter(|_| state.acquire(limit, now).is_ok()).count();
        assert_eq!(accepted(start + Duration::from_millis(59_999)), 60);
        assert_eq!(accepted(start + Duration::from_millis(60_001)), 0);
        assert_eq!(accepted(start + Duration::from_millis(60_999)), 1);
        assert_eq!(accepted(start + Duration::from_secs(300)), 60, "no more than a burst is saved up");
    }

    #[test]
    fn a_clock_that_stands_or_steps_back_refills_nothing() {
        let mut state = RateState::default();
        let now = SystemClock.monotonic() + Duration::from_secs(9);
        let limit = limit(2, Duration::from_secs(1));
        assert!(state.acquire(limit, now).is_ok() && state.acquire(limit, now).is_ok());
        assert_eq!(state.acquire(limit, now), Err(Duration::from_secs(1)));
        assert_eq!(state.acquire(limit, now - Duration::from_secs(3)), Err(Duration::from_secs(4)));
        assert_eq!(state.full_after(now), Duration::from_secs(2));
    }
}
