//! The executor's use of tokio's runtime: tasks with an owner that ends them, work that would keep a worker busy, and the
//! clock of the timers.

pub mod aside;
pub mod spawn;

/// Reads the clock of tokio's timers. In a test that pauses the timers, it is the test's clock.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the one place that reads the clock of timers")]
pub fn timer_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}
