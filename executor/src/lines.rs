//! The rate limit of log lines of one kind. Lines beyond the limit are counted, and the count is logged.

use crate::rate_limit::{RateLimit, RateState};
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Together with [`LINE_INTERVAL`]: at most 100 lines in any second.
const LINE_BURST: NonZeroU32 = NonZeroU32::new(50).unwrap();
const LINE_INTERVAL: Duration = Duration::from_millis(20);

/// The rate limiter of one kind of line.
#[derive(Debug, Default)]
pub struct Lines(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    rate: RateState,
    left_out: u64,
}

impl Lines {
    /// `Some` if one more line may be logged, with the number of lines dropped since the last one; `None` otherwise.
    pub fn one_more(&self, now: Instant) -> Option<u64> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.rate.acquire(RateLimit::new(LINE_BURST, LINE_INTERVAL), now).is_err() {
            counts.left_out += 1;
            return None;
        }
        Some(std::mem::take(&mut counts.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    #[test]
    fn a_flood_is_counted_instead_of_written() {
        let lines = Lines::default();
        let now = SystemClock.monotonic();
        for _ in 0..LINE_BURST.get() {
            assert_eq!(lines.one_more(now), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(lines.one_more(now), None);
        }
        let later = now + LINE_INTERVAL;
        assert_eq!(lines.one_more(later), Some(5));
        assert_eq!(lines.one_more(later), None);
        assert_eq!(lines.one_more(now + Duration::from_secs(9)), Some(1));
    }

    #[test]
    fn no_second_has_more_than_a_hundred_lines() {
        let (lines, start) = (Lines::default(), SystemClock.monotonic());
        let written = (0..1000).filter(|&ms| lines.one_more(start + Duration::from_millis(ms)).is_some());
        assert_eq!(written.count(), 99);
    }
}
