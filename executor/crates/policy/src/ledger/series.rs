//! How often one thing has happened in the last minute, hour and day.
//!
//! ```text
//! age of an event     up to 2 minutes   up to 2 hours   up to a day   older
//! kept to             the second        the minute      15 minutes    not at all
//! ```
//! A bucket counts as its latest event does. So a window has every event of its time, and perhaps some that are older:
//! by less than a second for the minute, by less than a minute for the hour, and by less than 15 minutes for the day.
//! A series has at most 400 buckets of 16 bytes, whatever happens.

use crate::facts::Window;
use std::collections::{BTreeMap, VecDeque};

/// Seconds since 1970.
pub(super) type Second = i64;

const MINUTE: Second = 60;
const HOUR: Second = 60 * MINUTE;
/// The longest window: what is older is forgotten.
pub(super) const DAY: Second = 24 * HOUR;

/// The events of this age are kept to the second, and older ones to the minute.
const SECONDS_UNTIL: Second = 2 * MINUTE;
/// The events of this age are kept to the minute, and older ones to [`COARSE`].
const MINUTES_UNTIL: Second = 2 * HOUR;
const COARSE: Second = 15 * MINUTE;

/// Maximum number of keys of one kind for one agent.
pub(super) const MAX_KEYS: usize = 128;

/// Events that count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bucket {
    /// The time of the latest of them.
    last: Second,
    count: u64,
}

/// The counts of one thing.
#[derive(Debug, Clone, Default)]
pub(super) struct Series {
    /// Oldest first.
    buckets: VecDeque<Bucket>,
    /// The time at which old buckets were joined last.
    joined_at: Second,
}

impl Series {
    /// Counts events. One that is older than the latest counts at its time: a clock that is set back takes nothing out of
    /// a window.
    pub(super) fn add(&mut self, at: Second, count: u64) {
        if count == 0 {
            return;
        }
        let at = self.last().map_or(at, |last| last.max(at));
        match self.buckets.back_mut() {
            Some(newest) if newest.last == at => newest.count = newest.count.saturating_add(count),
            Some(_) | None => self.buckets.push_back(Bucket { last: at, count }),
        }
        if at.saturating_sub(self.joined_at) >= MINUTE {
            self.join(at);
        }
    }

    /// The time of the latest event.
    pub(super) fn last(&self) -> Option<Second> {
        self.buckets.back().map(|newest| newest.last)
    }

    /// `true` if something has happened within a day.
    pub(super) fn is_recent(&self, now: Second) -> bool {
        self.last().is_some_and(|last| is_recent(last, now))
    }

    /// The counts of the windows that end now.
    pub(super) fn window(&self, now: Second) -> Window {
        let mut window = Window::default();
        for Bucket { last, count } in self.buckets.iter().rev() {
            let age = now.saturating_sub(*last);
            if age > DAY {
                break;
            }
            window.day = window.day.saturating_add(*count);
            if age <= HOUR {
                window.hour = window.hour.saturating_add(*count);
            }
            if age <= MINUTE {
                window.minute = window.minute.saturating_add(*count);
            }
        }
        window
    }

    /// Joins buckets that need not be told apart any more, and drops those that no window has.
    fn join(&mut self, now: Second) {
        self.joined_at = now;
        let mut joined = VecDeque::<Bucket>::with_capacity(self.buckets.len());
        for bucket in self.buckets.drain(..).filter(|bucket| is_recent(bucket.last, now)) {
            let width = match now.saturating_sub(bucket.last) {
                age if age <= SECONDS_UNTIL => 1,
                age if age <= MINUTES_UNTIL => MINUTE,
                _older => COARSE,
            };
            match joined.back_mut() {
                Some(earlier) if earlier.last.div_euclid(width) == bucket.last.div_euclid(width) => {
                    earlier.last = bucket.last;
                    earlier.count = earlier.count.saturating_add(bucket.count);
                }
                Some(_) | None => joined.push_back(bucket),
            }
        }
        self.buckets = joined;
    }

    /// The number of buckets.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }
}

/// `true` for a time within the last day, or in the future.
pub(super) fn is_recent(at: Second, now: Second) -> bool {
    now.saturating_sub(at) <= DAY
}

/// The sum of two counts.
pub(super) fn sum(one: Window, other: Window) -> Window {
    Window {
        minute: one.minute.saturating_add(other.minute),
        hour: one.hour.saturating_add(other.hour),
        day: one.day.saturating_add(other.day),
    }
}

/// The series of the keys of one kind. Beyond [`MAX_KEYS`], a new key counts as the one that stands for every subject: an
/// agent that makes up names is counted too often rather than not at all.
#[derive(Debug)]
pub(super) struct Keyed<K>(BTreeMap<K, Series>);

impl<K> Default for Keyed<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Keyed<K> {
    /// Counts events of a key; `every` stands for every subject.
    pub(super) fn add(&mut self, key: K, every: K, at: Second, count: u64) {
        if count == 0 {
            return;
        }
        let has_room = self.0.len() < MAX_KEYS || self.0.contains_key(&key);
        self.0.entry(if has_room { key } else { every }).or_default().add(at, count);
    }

    /// The counts of one key.
    pub(super) fn window_of(&self, key: &K, now: Second) -> Window {
        self.0.get(key).map(|series| series.window(now)).unwrap_or_default()
    }

    /// The counts of all keys that match.
    pub(super) fn window(&self, now: Second, matches: impl Fn(&K) -> bool) -> Window {
        let windows = self.0.iter().map(
            |(key, series)| {
                if matches(key) { series.window(now) } else { Window::default() }
            },
        );
        windows.fold(Window::default(), sum)
    }

    /// The keys of the last day.
    pub(super) fn recent(&self, now: Second) -> impl Iterator<Item = &K> {
        self.0.iter().filter(move |(_, series)| series.is_recent(now)).map(|(key, _)| key)
    }

    /// Drops the keys of which nothing has happened within a day.
    pub(super) fn prune(&mut self, now: Second) {
        self.0.retain(|_, series| series.is_recent(now));
    }

    /// The number of keys.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
