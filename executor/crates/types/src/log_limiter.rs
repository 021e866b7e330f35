//! The rate limit of log lines of one kind. Lines beyond the limit are counted, and the count is logged.

use crate::rate_limit::{RateLimit, RateState};
use parking_lot::Mutex;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// Together with [`LINE_INTERVAL`]: at most 100 lines in any second.
const LINE_BURST: NonZeroU32 = NonZeroU32::new(50).unwrap();
const LINE_INTERVAL: Duration = Duration::from_millis(20);

/// The rate limiter of one kind of line.
#[derive(Debug, Default)]
pub struct LogLimiter(Mutex<LimiterState>);

#[derive(Debug, Default)]
struct LimiterState {
    rate: RateState,
    suppressed: u64,
}

impl LogLimiter {
    /// `Some` if one more line may be logged, with the number of lines dropped since the last logged one; else `None`.
    pub fn try_acquire(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.rate.acquire(RateLimit::new(LINE_BURST, LINE_INTERVAL), now).is_err() {
            state.suppressed += 1;
            return None;
        }
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    #[test]
    fn a_flood_is_counted_instead_of_written() {
        let limiter = LogLimiter::default();
        let now = SystemClock.monotonic();
        for _ in 0..LINE_BURST.get() {
            assert_eq!(limiter.try_acquire(now), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(limiter.try_acquire(now), None);
        }
        let later = now + LINE_INTERVAL;
        assert_eq!(limiter.try_acquire(later), Some(5));
        assert_eq!(limiter.try_acquire(later), None);
        assert_eq!(limiter.try_acquire(now + Duration::from_secs(9)), Some(1));
    }

    #[test]
    fn no_second_has_more_than_a_hundred_lines() {
        let limiter = LogLimiter::default();
        let start = SystemClock.monotonic();
        let written =
            (0..1000).filter(|&ms| limiter.try_acquire(start + Duration::from_millis(ms)).is_some());
        assert_eq!(written.count(), 99);
    }
}
