//! The runs of a time span by the time at which they ended, in buckets of equal width, for charts.

use super::usage::{StatusCounts, WallTimes};
use super::wall_histogram::WallHistogram;
use a2g_types::outcome::{Receipt, Status};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use time::OffsetDateTime;

/// The maximum number of buckets, each of which takes about 2.5 kB. A span is cut into 48 buckets at most, and one more
/// because it seldom begins where a bucket does.
const MAX_BUCKETS: usize = 49;
/// The widths of buckets, in seconds: divisors or multiples of an hour or a day, so that buckets begin at times that
/// people read easily.
const WIDTHS: [i64; 16] = [
    60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 432_000, 864_000,
    MAX_WIDTH,
];
/// The widest bucket: 20 days.
const MAX_WIDTH: i64 = 1_728_000;

/// A time span, divided into buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesSpan {
    #[serde(with = "time::serde::timestamp")]
    begin: OffsetDateTime,
    width_seconds: i64,
    buckets: usize,
}

impl SeriesSpan {
    /// Divides the time from `since` to `until` into at most 49 buckets. Each begins at a multiple of the width since 1970, so
    /// that a later call gives the same buckets. If the span is longer than 960 days, the last bucket also has all later runs.
    #[must_use]
    pub fn new(since: OffsetDateTime, until: OffsetDateTime) -> Self {
        let seconds = (until - since).whole_seconds().max(1);
        let fits = |width: &&i64| seconds <= **width * (MAX_BUCKETS as i64 - 1);
        let width_seconds = WIDTHS.iter().find(fits).copied().unwrap_or(MAX_WIDTH);
        let first = since.unix_timestamp().div_euclid(width_seconds);
        let last = until.unix_timestamp().div_euclid(width_seconds);
        let begin = OffsetDateTime::from_unix_timestamp(first * width_seconds).unwrap_or(since);
        let buckets = usize::try_from(last - first + 1).unwrap_or(1).clamp(1, MAX_BUCKETS);
        Self { begin, width_seconds, buckets }
    }

    /// The bucket of a time. A time outside of the span, which a clock that was set back can cause, counts in the first
    /// or the last bucket.
    fn bucket_of(&self, at: OffsetDateTime) -> usize {
        let bucket = (at - self.begin).whole_seconds().div_euclid(self.width_seconds);
        usize::try_from(bucket).unwrap_or(0).min(self.buckets - 1)
    }

    fn begin_of(&self, bucket: usize) -> OffsetDateTime {
        let bucket = i64::try_from(bucket).unwrap_or(i64::MAX);
        self.begin + time::Duration::seconds(bucket.saturating_mul(self.width_seconds))
    }
}

/// The runs of a time span, in buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageSeries {
    /// The width of each bucket.
    pub width: Duration,
    /// The buckets, the oldest first. The first one begins before the span, and the last one ends after it.
    pub buckets: Vec<SeriesBucket>,
}

/// The runs that ended in one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeriesBucket {
    /// The begin of the bucket.
    pub begin: OffsetDateTime,
    /// The number of runs with each status.
    pub by_status: StatusCounts,
    /// The wall times; `None` if no run was measured.
    pub wall: Option<WallTimes>,
}

/// The sums of a series while receipts are read.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SeriesSums {
    span: SeriesSpan,
    buckets: Vec<BucketSums>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct BucketSums {
    by_status: StatusCounts,
    wall: WallHistogram,
}

impl SeriesSums {
    pub(super) fn new(span: SeriesSpan) -> Self {
        let buckets = std::iter::repeat_with(BucketSums::default).take(span.buckets).collect();
        Self { span, buckets }
    }

    /// Adds a run, with its wall time if it was measured.
    pub(super) fn add(&mut self, receipt: &Receipt, ended: OffsetDateTime, wall: Option<Duration>) {
        let Some(bucket) = self.buckets.get_mut(self.span.bucket_of(ended)) else { return };
        bucket.by_status.add(receipt.outcome.end.status());
        if let Some(wall) = wall {
            bucket.wall.add(wall);
        }
    }

    /// Adds the sums of another series. Returns `false`, and adds nothing, if that has another span.
    pub(super) fn merge(&mut self, other: Self) -> bool {
        if (self.span, self.buckets.len()) != (other.span, other.buckets.len()) {
            return false;
        }
        for (own, BucketSums { by_status, wall }) in self.buckets.iter_mut().zip(other.buckets) {
            own.by_status.merge(by_status);
            own.wall.merge(&wall);
        }
        true
    }

    pub(super) fn finish(self) -> UsageSeries {
        let Self { span, buckets } = self;
        let finish = |(number, BucketSums { by_status, wall }): (usize, BucketSums)| SeriesBucket {
            begin: span.begin_of(number),
            by_status,
            wall: wall.percentiles(),
        };
        UsageSeries {
            width: Duration::from_secs(span.width_seconds.unsigned_abs()),
            buckets: buckets.into_iter().enumerate().map(finish).collect(),
        }
    }
}

impl StatusCounts {
    pub(super) fn add(&mut self, status: Status) {
        let count = match status {
            Status::Success | Status::Staged => &mut self.success,
            Status::Failure => &mut self.failure,
            Status::Timeout => &mut self.timeout,
            Status::Aborted => &mut self.aborted,
        };
        *count += 1;
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self { success, failure, timeout, aborted } = other;
        self.success = self.success.saturating_add(success);
        self.failure = self.failure.saturating_add(failure);
        self.timeout = self.timeout.saturating_add(timeout);
        self.aborted = self.aborted.saturating_add(aborted);
    }

    /// The number of runs with any status.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Self { success, failure, timeout, aborted } = self;
        success.saturating_add(*failure).saturating_add(*timeout).saturating_add(*aborted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn a_span_has_few_buckets_at_readable_times() {
        let until = datetime!(2026-11-26 13:37:11 UTC);
        for (hours, width, buckets) in [
            (1, 120, 31),
            (24, 1_800, 49),
            (48, 3_600, 49),
            (168, 21_600, 29),
            (720, 86_400, 31),
            (8_784, 864_000, 38),
        ] {
            let span = SeriesSpan::new(until - time::Duration::hours(hours), until);
            assert_eq!((span.width_seconds, span.buckets), (width, buckets), "{hours}");
            assert!(span.begin <= until - time::Duration::hours(hours), "{hours}");
            assert_eq!(span.begin.unix_timestamp() % width, 0, "{hours}");
            assert_eq!(span.bucket_of(until), buckets - 1, "{hours}");
            assert_eq!(span.bucket_of(until - time::Duration::hours(hours)), 0, "{hours}");
        }
        let backwards = SeriesSpan::new(until, until - time::Duration::hours(1));
        assert_eq!((backwards.width_seconds, backwards.buckets), (60, 1));
        let long = SeriesSpan::new(until - time::Duration::days(5_000), until);
        assert_eq!(long.buckets, MAX_BUCKETS);
        assert_eq!(long.bucket_of(until), MAX_BUCKETS - 1);
        assert_eq!(long.bucket_of(until - time::Duration::days(6_000)), 0);
    }
}
