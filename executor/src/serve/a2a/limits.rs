//! Rate limits of the A2A door, for each caller: requests a minute, an hour, and at once.

use crate::clock::Clock;
use crate::rate_limit::{RateLimit, RateState, to_whole_units};
use axum::http::{HeaderMap, HeaderValue};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Retry delay of a caller with too many requests at once: the limiter cannot know when one of them ends.
const AT_ONCE_RETRY: Duration = Duration::from_secs(1);

/// The limits for one caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimits {
    /// Requests in a burst, and then on average in a minute.
    pub per_minute: NonZeroU32,
    /// Requests in a burst, and then on average in an hour.
    pub per_hour: NonZeroU32,
    /// Requests at once. A stream counts while it is open.
    pub at_once: u32,
}

#[derive(Debug, Default)]
struct Used {
    minute: RateState,
    hour: RateState,
    at_once: u32,
}

/// Counts the requests of every caller. Callers come from the operator's list, which bounds the map.
pub(super) struct Limiter {
    limits: RateLimits,
    clock: Arc<dyn Clock>,
    used: Mutex<HashMap<Box<str>, Used>>,
}

/// An admitted request. Dropping it releases its place among those at once.
pub(super) struct Pass {
    limiter: Arc<Limiter>,
    caller: Box<str>,
}

/// The use of the limit that a caller reaches first, as the `X-RateLimit` headers report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    limit: u32,
    remaining: u32,
    /// The time until all of the limit is available again.
    full_after: Duration,
    /// The time after which a request is admitted; zero if this one was.
    wait: Duration,
}

impl RateLimits {
    /// Counts a request, or refuses it.
    fn enter(self, used: &mut Used, now: Instant) -> Standing {
        let (minute, hour) =
            (RateLimit::per_period(self.per_minute, MINUTE), RateLimit::per_period(self.per_hour, HOUR));
        let wait = used.minute.wait_time(minute, now).max(used.hour.wait_time(hour, now));
        if wait.is_zero() && used.at_once < self.at_once {
            let _both_have_room = (used.minute.acquire(minute, now), used.hour.acquire(hour, now));
            used.at_once += 1;
            return self.standing(used, now, Duration::ZERO);
        }
        self.standing(used, now, if wait.is_zero() { AT_ONCE_RETRY } else { wait })
    }

    fn standing(self, used: &Used, now: Instant, wait: Duration) -> Standing {
        let states = [(self.per_minute, MINUTE, used.minute), (self.per_hour, HOUR, used.hour)];
        let standings = states.map(|(count, period, state)| {
            let limit = RateLimit::per_period(count, period);
            let (remaining, full_after) = (state.remaining(limit, now), state.full_after(now));
            (state.wait_time(limit, now), Standing { limit: count.get(), remaining, full_after, wait })
        });
        let [(minute_wait, minute), (hour_wait, hour)] = standings;
        match hour_wait.cmp(&minute_wait).then(minute.remaining.cmp(&hour.remaining)) {
            Ordering::Greater => hour,
            Ordering::Less | Ordering::Equal => minute,
        }
    }
}

impl Limiter {
    pub(super) fn new(limits: RateLimits, clock: Arc<dyn Clock>) -> Self {
        Self { limits, clock, used: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Used>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request; `None` when it exceeds a limit.
    pub(super) fn enter(self: &Arc<Self>, caller: &str) -> (Standing, Option<Pass>) {
        let now = self.clock.monotonic();
        let standing = self.limits.enter(self.lock().entry(caller.into()).or_default(), now);
        let pass = || Pass { limiter: Arc::clone(self), caller: caller.into() };
        (standing, standing.wait.is_zero().then(pass))
    }

    /// Adds the headers that tell a caller where it stands.
    pub(super) fn write_headers(&self, standing: Standing, headers: &mut HeaderMap) {
        let Standing { limit, remaining, full_after, wait } = standing;
        let reset = self.clock.now().unix_timestamp().saturating_add_unsigned(whole_seconds(full_after));
        headers.insert("x-ratelimit-limit", HeaderValue::from(limit));
        headers.insert("x-ratelimit-remaining", HeaderValue::from(remaining));
        headers.insert("x-ratelimit-reset", HeaderValue::from(reset));
        if !wait.is_zero() {
            headers.insert(axum::http::header::RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(used) = self.limiter.lock().get_mut(&self.caller) {
            used.at_once = used.at_once.saturating_sub(1);
        }
    }
}

impl Standing {
    /// The time after which a request is let in, in milliseconds.
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
    use crate::clock::{ManualClock, SystemClock};
    use time::OffsetDateTime;

    fn limits(per_minute: u32, per_hour: u32, at_once: u32) -> RateLimits {
        let [per_minute, per_hour] = [per_minute, per_hour].map(|count| NonZeroU32::new(count).unwrap());
        RateLimits { per_minute, per_hour, at_once }
    }

    #[test]
    fn so_many_a_minute_and_an_hour() {
        let (limits, start) = (limits(3, 5, 9), SystemClock.monotonic());
        let mut used = Used::default();
        let mut enter = |seconds| {
            let Standing { limit, remaining, full_after, wait } =
                limits.enter(&mut used, start + Duration::from_secs(seconds));
            (limit, remaining, full_after.as_secs(), wait.as_secs())
        };
        assert_eq!(enter(0), (3, 2, 20, 0));
        assert_eq!(enter(0), (3, 1, 40, 0));
        assert_eq!(enter(0), (3, 0, 60, 0));
        assert_eq!(enter(0), (3, 0, 60, 20), "three without a pause");
        assert_eq!(enter(20), (3, 0, 60, 0), "one more after a third of a minute");
        assert_eq!(enter(60), (5, 0, 5 * 720 - 60, 0), "the hour has fewer left");
        assert_eq!(enter(60), (5, 0, 5 * 720 - 60, 660), "five without a pause");
        assert_eq!(enter(719).3, 1);
        assert_eq!(enter(720).3, 0);
    }

    #[test]
    fn so_many_at_once_and_each_caller_for_itself() {
        let clock = Arc::new(ManualClock::new(OffsetDateTime::UNIX_EPOCH + time::Duration::hours(10)));
        let limiter = Arc::new(Limiter::new(limits(3, 600, 2), clock));
        let [first, second] = [limiter.enter("a"), limiter.enter("a")];
        assert!(first.1.is_some() && second.1.is_some());
        let (standing, third) = limiter.enter("a");
        assert!(third.is_none() && limiter.enter("b").1.is_some());
        assert_eq!(
            (standing.wait, standing.remaining),
            (AT_ONCE_RETRY, 1),
            "a refused request is not counted"
        );
        drop(first);
        assert!(limiter.enter("a").1.is_some());
    }

    #[test]
    fn headers_are_whole_seconds_and_never_too_early() {
        let clock = Arc::new(ManualClock::new(OffsetDateTime::UNIX_EPOCH + time::Duration::hours(10)));
        let limiter = Limiter::new(limits(1, 1, 1), clock);
        let (full_after, wait) = (Duration::from_millis(59_001), Duration::from_micros(1_000_001));
        let standing = Standing { limit: 1, remaining: 0, full_after, wait };
        let mut headers = HeaderMap::new();
        limiter.write_headers(standing, &mut headers);
        assert_eq!(headers["x-ratelimit-reset"], "36060");
        assert_eq!(headers["retry-after"], "2");
        assert_eq!(standing.retry_after_ms(), 1001);
    }
}
