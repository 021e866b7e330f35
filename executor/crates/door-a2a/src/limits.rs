//! Limits of the A2A door for each caller: requests per minute, requests per hour, and concurrent requests.

use a2g_http::RateLimits;
use a2g_types::clock::Clock;
use a2g_types::rate_limit::{RateLimit, RateState, to_whole_units};
use axum::http::{HeaderMap, HeaderValue};
use parking_lot::{Mutex, MutexGuard};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Retry delay of a caller with too many concurrent requests: the limiter cannot know when one of them ends.
const CONCURRENT_RETRY_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct CallerUsage {
    minute: RateState,
    hour: RateState,
    concurrent: u32,
}

/// Counts the requests of every caller. The operator's list of callers bounds the map.
pub(super) struct CallerLimiter {
    limits: RateLimits,
    clock: Arc<dyn Clock>,
    usage: Mutex<HashMap<Box<str>, CallerUsage>>,
}

/// Counts an admitted request as concurrent until this is dropped.
pub(super) struct RateLimitGuard {
    limiter: Arc<CallerLimiter>,
    caller: Box<str>,
}

/// The use of the limit that a caller reaches first, as the `X-RateLimit` headers report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RateLimitStatus {
    limit: u32,
    remaining: u32,
    /// The time until all of the limit is available again.
    full_after: Duration,
    /// The time after which a request is admitted; zero if this request was admitted.
    wait: Duration,
}

impl CallerUsage {
    /// Counts a request if no limit refuses it. The status of a refused one has a `wait` above zero.
    fn try_acquire(&mut self, limits: RateLimits, now: Instant) -> RateLimitStatus {
        let minute = RateLimit::per_period(limits.per_minute, MINUTE);
        let hour = RateLimit::per_period(limits.per_hour, HOUR);
        let wait = self.minute.wait_time(minute, now).max(self.hour.wait_time(hour, now));
        if wait.is_zero() && self.concurrent < limits.concurrent {
            let _both_admitted = (self.minute.acquire(minute, now), self.hour.acquire(hour, now));
            self.concurrent += 1;
            return self.status(limits, now, Duration::ZERO);
        }
        self.status(limits, now, if wait.is_zero() { CONCURRENT_RETRY_DELAY } else { wait })
    }

    fn status(&self, limits: RateLimits, now: Instant, wait: Duration) -> RateLimitStatus {
        let states = [(limits.per_minute, MINUTE, self.minute), (limits.per_hour, HOUR, self.hour)];
        let statuses = states.map(|(count, period, state)| {
            let limit = RateLimit::per_period(count, period);
            let remaining = state.remaining(limit, now);
            let full_after = state.full_after(now);
            (state.wait_time(limit, now), RateLimitStatus { limit: count.get(), remaining, full_after, wait })
        });
        let [(minute_wait, minute), (hour_wait, hour)] = statuses;
        match hour_wait.cmp(&minute_wait).then(minute.remaining.cmp(&hour.remaining)) {
            Ordering::Greater => hour,
            Ordering::Less | Ordering::Equal => minute,
        }
    }
}

impl CallerLimiter {
    pub(super) fn new(limits: RateLimits, clock: Arc<dyn Clock>) -> Self {
        Self { limits, clock, usage: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, CallerUsage>> {
        self.usage.lock()
    }

    /// Counts a request; the guard is `None` if the request exceeds a limit.
    pub(super) fn try_acquire(self: &Arc<Self>, caller: &str) -> (RateLimitStatus, Option<RateLimitGuard>) {
        let now = self.clock.monotonic();
        let status = self.lock().entry(caller.into()).or_default().try_acquire(self.limits, now);
        let guard = || RateLimitGuard { limiter: Arc::clone(self), caller: caller.into() };
        (status, status.wait.is_zero().then(guard))
    }

    /// Adds the headers that report the status to the caller.
    pub(super) fn write_headers(&self, status: RateLimitStatus, headers: &mut HeaderMap) {
        let RateLimitStatus { limit, remaining, full_after, wait } = status;
        let reset = self.clock.now().unix_timestamp().saturating_add_unsigned(whole_seconds(full_after));
        headers.insert("x-ratelimit-limit", HeaderValue::from(limit));
        headers.insert("x-ratelimit-remaining", HeaderValue::from(remaining));
        headers.insert("x-ratelimit-reset", HeaderValue::from(reset));
        if !wait.is_zero() {
            headers.insert(axum::http::header::RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
    }
}

impl Drop for RateLimitGuard {
    fn drop(&mut self) {
        if let Some(usage) = self.limiter.lock().get_mut(&self.caller) {
            usage.concurrent = usage.concurrent.saturating_sub(1);
        }
    }
}

impl RateLimitStatus {
    /// The time after which a request is admitted, in milliseconds.
    pub(super) fn retry_after_ms(self) -> u64 {
        to_whole_units(self.wait, Duration::from_millis(1))
    }
}

fn whole_seconds(time: Duration) -> u64 {
    to_whole_units(time, Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::clock::{ManualClock, SystemClock};
    use std::num::NonZeroU32;
    use time::OffsetDateTime;

    fn limits(per_minute: u32, per_hour: u32, concurrent: u32) -> RateLimits {
        let [per_minute, per_hour] = [per_minute, per_hour].map(|count| NonZeroU32::new(count).unwrap());
        RateLimits { per_minute, per_hour, concurrent }
    }

    #[test]
    fn requests_are_limited_by_minute_and_hour() {
        let limits = limits(3, 5, 9);
        let start = SystemClock.monotonic();
        let mut usage = CallerUsage::default();
        let mut try_acquire = |seconds| {
            let RateLimitStatus { limit, remaining, full_after, wait } =
                usage.try_acquire(limits, start + Duration::from_secs(seconds));
            (limit, remaining, full_after.as_secs(), wait.as_secs())
        };
        assert_eq!(try_acquire(0), (3, 2, 20, 0));
        assert_eq!(try_acquire(0), (3, 1, 40, 0));
        assert_eq!(try_acquire(0), (3, 0, 60, 0));
        assert_eq!(try_acquire(0), (3, 0, 60, 20), "three in a burst");
        assert_eq!(try_acquire(20), (3, 0, 60, 0), "one more after a third of a minute");
        assert_eq!(try_acquire(60), (5, 0, 5 * 720 - 60, 0), "fewer remain of the hourly limit");
        assert_eq!(try_acquire(60), (5, 0, 5 * 720 - 60, 660), "five in an hour");
        assert_eq!(try_acquire(719).3, 1);
        assert_eq!(try_acquire(720).3, 0);
    }

    #[test]
    fn concurrent_requests_are_limited_by_caller() {
        let clock = Arc::new(ManualClock::new(OffsetDateTime::UNIX_EPOCH + time::Duration::hours(10)));
        let limiter = Arc::new(CallerLimiter::new(limits(3, 600, 2), clock));
        let [first, second] = [limiter.try_acquire("a"), limiter.try_acquire("a")];
        assert!(first.1.is_some() && second.1.is_some());
        let (status, third) = limiter.try_acquire("a");
        assert!(third.is_none() && limiter.try_acquire("b").1.is_some());
        assert_eq!(
            (status.wait, status.remaining),
            (CONCURRENT_RETRY_DELAY, 1),
            "a refused request is not counted"
        );
        drop(first);
        assert!(limiter.try_acquire("a").1.is_some());
    }

    #[test]
    fn headers_round_up_to_whole_seconds() {
        let clock = Arc::new(ManualClock::new(OffsetDateTime::UNIX_EPOCH + time::Duration::hours(10)));
        let limiter = CallerLimiter::new(limits(1, 1, 1), clock);
        let full_after = Duration::from_millis(59_001);
        let wait = Duration::from_micros(1_000_001);
        let status = RateLimitStatus { limit: 1, remaining: 0, full_after, wait };
        let mut headers = HeaderMap::new();
        limiter.write_headers(status, &mut headers);
        assert_eq!(headers["x-ratelimit-reset"], "36060");
        assert_eq!(headers["retry-after"], "2");
        assert_eq!(status.retry_after_ms(), 1001);
    }
}
