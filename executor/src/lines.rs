//! A flood of what is worth a line does not become a flood of lines.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many lines one second has room for. The rest is counted, and the count is logged.
const LINES_A_SECOND: u32 = 100;

/// What was logged of late.
#[derive(Debug, Default)]
pub struct Lines(Mutex<Second>);

#[derive(Debug, Default)]
struct Second {
    began: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Lines {
    /// Whether there is room for one more line: after how many were left out before it, or `None`.
    pub fn one_more(&self, now: Instant) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next(now)
    }
}

impl Second {
    fn next(&mut self, now: Instant) -> Option<u64> {
        let over =
            self.began.is_none_or(|began| now.saturating_duration_since(began) >= Duration::from_secs(1));
        if over {
            let left_out = self.left_out;
            *self = Self { began: Some(now), lines: 1, left_out: 0 };
            return Some(left_out);
        }
        if self.lines >= LINES_A_SECOND {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(0)
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
        for _ in 0..LINES_A_SECOND {
            assert_eq!(lines.one_more(now), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(lines.one_more(now), None);
        }
        let later = now + Duration::from_secs(1);
        assert_eq!(lines.one_more(later), Some(5));
        assert_eq!(lines.one_more(later), Some(0));
    }
}
