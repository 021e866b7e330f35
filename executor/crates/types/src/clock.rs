//! The clocks of the executor, and the only code that reads the real ones.
//!
//! A verdict expires by the wall clock. The deadline of a run is on the monotonic clock, so a jump of the wall clock
//! can neither extend nor shorten a run.

use std::time::Instant;
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

/// A source of the time. Tests use a [`ManualClock`].
pub trait Clock: Send + Sync + 'static {
    /// The wall clock, in UTC.
    fn now(&self) -> OffsetDateTime;
    /// The monotonic clock.
    fn monotonic(&self) -> Instant;
}

/// A time to the second, in UTC, for messages: more digits would only clutter them.
#[must_use]
pub fn format_seconds(at: OffsetDateTime) -> String {
    let at = at.to_offset(UtcOffset::UTC).truncate_to_second();
    // Only a year beyond 9999 has no such form.
    at.format(&Rfc3339).unwrap_or_else(|_unprintable| at.unix_timestamp().to_string())
}

/// The microseconds since 1970, as they are stored.
#[must_use]
pub fn to_micros(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}

/// The time so many microseconds after 1970; the beginning of 1970 for one that has no date.
#[must_use]
pub fn from_micros(micros: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// The clocks of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[allow(clippy::disallowed_methods, reason = "the only code that reads the real clocks")]
impl Clock for SystemClock {
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }

    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

/// A clock whose wall time stands still until it is set, and whose monotonic time is the machine's.
#[derive(Debug)]
pub struct ManualClock(parking_lot::Mutex<OffsetDateTime>);

impl ManualClock {
    /// Makes a clock that shows `now`.
    #[must_use]
    pub fn new(now: OffsetDateTime) -> Self {
        Self(parking_lot::Mutex::new(now))
    }

    /// Sets the wall time that the clock shows.
    pub fn set(&self, now: OffsetDateTime) {
        *self.0.lock() = now;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> OffsetDateTime {
        *self.0.lock()
    }

    fn monotonic(&self) -> Instant {
        SystemClock.monotonic()
    }
}
