//! The clocks of the executor, and the only place that reads the real ones.
//!
//! Expiry of a verdict is a matter of the wall clock; the run's own deadline is a matter of the
//! monotonic one, so that a clock that jumps can neither stretch nor cut a run.

use std::time::Instant;
use time::OffsetDateTime;

/// Where the time comes from. Tests turn a [`ManualClock`] by hand.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock, in UTC.
    fn now(&self) -> OffsetDateTime;
    /// The monotonic clock.
    fn monotonic(&self) -> Instant;
}

/// The clocks of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[allow(clippy::disallowed_methods, reason = "this is the one reader of the real clocks")]
impl Clock for SystemClock {
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }

    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

/// Now, on the clock of the runtime's timers: the monotonic clock, except in a test that pauses the runtime's time. A
/// deadline that a timer waits for, and an age that is compared with one, are on this clock.
#[allow(clippy::disallowed_methods, reason = "this is the one reader of the timers' clock")]
#[must_use]
pub fn timer_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// A wall clock that stands still until it is set; its monotonic side is the machine's.
#[derive(Debug)]
pub struct ManualClock(std::sync::Mutex<OffsetDateTime>);

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn at(now: OffsetDateTime) -> Self {
        Self(std::sync::Mutex::new(now))
    }

    /// Sets the time that the clock shows.
    pub fn set(&self, now: OffsetDateTime) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = now;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> OffsetDateTime {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn monotonic(&self) -> Instant {
        SystemClock.monotonic()
    }
}
