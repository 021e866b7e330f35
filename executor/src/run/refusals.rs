//! The one place that every refused call passes: it is logged with its reason, and a flood of refusals
//! does not become a flood of lines.

use crate::fault::Fault;
use crate::journal::Asked;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many lines one second has room for. The rest is counted, and the count is logged.
const LINES_A_SECOND: u32 = 100;

/// What was logged of late.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Second>);

#[derive(Debug, Default)]
struct Second {
    began: Option<Instant>,
    lines: u32,
    left_out: u64,
}

/// What to log of one more refusal.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// Its line, after how many were left out before it.
    Write {
        left_out: u64,
    },
    LeaveOut,
}

impl Second {
    fn next(&mut self, now: Instant) -> Line {
        let over =
            self.began.is_none_or(|began| now.saturating_duration_since(began) >= Duration::from_secs(1));
        if over {
            let left_out = self.left_out;
            *self = Self { began: Some(now), lines: 1, left_out: 0 };
            return Line::Write { left_out };
        }
        if self.lines >= LINES_A_SECOND {
            self.left_out += 1;
            return Line::LeaveOut;
        }
        self.lines += 1;
        Line::Write { left_out: 0 }
    }
}

impl Refusals {
    /// Records that a call was refused, in the span of its intent, when it was about one, which says why. The
    /// sentence for the caller may quote arguments, and is left to the journal. Faults that are no refusals,
    /// such as a tool that failed, are left to whoever answers.
    pub(super) fn record(&self, call: Option<&Asked>, fault: &Fault, now: Instant) {
        let Fault::Refused { intent: _, risk_score, blocked_by, message: _ } = fault else { return };
        tracing::Span::current().record("blocked_by", blocked_by.as_str());
        let line = self.0.lock().unwrap_or_else(PoisonError::into_inner).next(now);
        let Line::Write { left_out } = line else { return };
        if left_out > 0 {
            tracing::warn!(left_out, "more calls were refused than there is room for in the log");
        }
        let blocked_by = call.is_none().then(|| blocked_by.as_str());
        tracing::warn!(blocked_by, risk_score, "refused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    #[test]
    fn a_flood_is_counted_instead_of_written() {
        let mut second = Second::default();
        let now = SystemClock.monotonic();
        for _ in 0..LINES_A_SECOND {
            assert_eq!(second.next(now), Line::Write { left_out: 0 });
        }
        for _ in 0..5 {
            assert_eq!(second.next(now), Line::LeaveOut);
        }
        let later = now + Duration::from_secs(1);
        assert_eq!(second.next(later), Line::Write { left_out: 5 });
        assert_eq!(second.next(later), Line::Write { left_out: 0 });
    }
}
