//! Rate limits of the A2A door, for each caller: requests a minute, an hour, and at once.

use crate::clock::Clock;
use axum::http::{HeaderMap, HeaderValue};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MINUTE: i64 = 60;
const HOUR: i64 = 3600;

/// The limits for one caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimits {
    /// Requests in one minute of the wall clock.
    pub per_minute: u32,
    /// Requests in one hour of the wall clock.
    pub per_hour: u32,
    /// Requests at once. A stream counts while it is open.
    pub at_once: u32,
}

#[derive(Debug, Default)]
struct Used {
    minute: Window,
    hour: Window,
    at_once: u32,
}

#[derive(Debug, Default)]
struct Window {
    began: i64,
    count: u32,
}

impl Window {
    /// Returns how many of `most` requests remain in the window that `now` falls into.
    fn left(&mut self, most: u32, now: i64, length: i64) -> u32 {
        let began = now - now.rem_euclid(length);
        if self.began != began {
            (self.began, self.count) = (began, 0);
        }
        most.saturating_sub(self.count)
    }
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

/// The use of a caller's limits, as the `X-RateLimit` headers report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    limit: u32,
    remaining: u32,
    /// Seconds since 1970.
    reset: i64,
    /// Seconds.
    retry: i64,
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
        let now = self.clock.now().unix_timestamp();
        let RateLimits { per_minute, per_hour, at_once } = self.limits;
        let mut all = self.lock();
        let used = all.entry(caller.into()).or_default();
        let (minute, hour) = (used.minute.left(per_minute, now, MINUTE), used.hour.left(per_hour, now, HOUR));
        let (limit, left, ends) = if hour < minute {
            (per_hour, hour, used.hour.began + HOUR)
        } else {
            (per_minute, minute, used.minute.began + MINUTE)
        };
        let standing = |remaining, retry| Standing { limit, remaining, reset: ends, retry };
        if left == 0 {
            return (standing(0, (ends - now).max(1)), None);
        }
        if used.at_once >= at_once {
            return (standing(left, 1), None);
        }
        used.minute.count += 1;
        used.hour.count += 1;
        used.at_once += 1;
        (standing(left - 1, 0), Some(Pass { limiter: Arc::clone(self), caller: caller.into() }))
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
    pub(super) fn say(self, headers: &mut HeaderMap) {
        let Self { limit, remaining, reset, retry } = self;
        headers.insert("x-ratelimit-limit", HeaderValue::from(limit));
        headers.insert("x-ratelimit-remaining", HeaderValue::from(remaining));
        headers.insert("x-ratelimit-reset", HeaderValue::from(reset));
        if retry > 0 {
            headers.insert(axum::http::header::RETRY_AFTER, HeaderValue::from(retry));
        }
    }

    /// Milliseconds until a retry can succeed.
    pub(super) fn retry_after_ms(self) -> u64 {
        u64::try_from(self.retry).unwrap_or_default().saturating_mul(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use time::{Duration, OffsetDateTime};

    #[test]
    fn so_many_a_minute_an_hour_and_at_once_and_each_caller_for_itself() {
        let start = OffsetDateTime::UNIX_EPOCH + Duration::hours(10);
        let clock = Arc::new(ManualClock::at(start));
        let limits = RateLimits { per_minute: 3, per_hour: 5, at_once: 2 };
        let limiter = Arc::new(Limiter::new(limits, Arc::<ManualClock>::clone(&clock)));
        let (standing, first) = limiter.enter("a");
        assert_eq!((standing.limit, standing.remaining, standing.reset), (3, 2, 36_060));
        let second = limiter.enter("a").1;
        assert!(first.is_some() && second.is_some());
        assert!(limiter.enter("a").1.is_none(), "two at once");
        drop((first, second));
        assert!(limiter.enter("a").1.is_some());
        let (standing, fourth) = limiter.enter("a");
        assert!(fourth.is_none());
        assert_eq!((standing.remaining, standing.retry), (0, 60));
        assert!(limiter.enter("b").1.is_some());
        clock.set(start + Duration::minutes(1));
        assert!(limiter.enter("a").1.is_some());
        assert!(limiter.enter("a").1.is_some());
        let (standing, sixth) = limiter.enter("a");
        assert!(sixth.is_none(), "five an hour");
        assert_eq!((standing.limit, standing.reset), (5, 39_600));
        clock.set(start + Duration::hours(1));
        assert!(limiter.enter("a").1.is_some());
    }
}
