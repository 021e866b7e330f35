//! The session layer of the doors, of peers and not of tools: the messages that wait for a peer, and the connection that
//! reads them.
//!
//! ```text
//! BoundedQueue: pushed ─▶ waits ─ popped ─▶ removed
//! ReplayQueue:  pushed ─▶ waits ─ due ─▶ sent ─ acknowledged ─▶ removed
//!                           ▲───────────┘ after the resend time, or when the peer resumes
//! ```
//! This module opens no socket, spawns no task and reads no clock: the doors pass the time, so that property tests can
//! produce every order of events.

use a2g_types::memory::CountedBytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The size of a queued message.
pub trait ByteSize {
    /// Bytes that count against the limit of a queue.
    fn byte_size(&self) -> usize;
}

impl ByteSize for String {
    fn byte_size(&self) -> usize {
        self.len()
    }
}

impl<T: ByteSize> ByteSize for Arc<T> {
    fn byte_size(&self) -> usize {
        T::byte_size(self)
    }
}

/// The limit of a queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueLimit {
    /// Maximum number of messages.
    pub messages: usize,
    /// Maximum number of their bytes.
    pub bytes: usize,
}

/// A first-in, first-out queue of messages.
#[derive(Debug)]
pub struct BoundedQueue<T> {
    messages: VecDeque<T>,
    bytes: usize,
    limit: QueueLimit,
    /// The reservation of `bytes` in a caller's share of memory.
    reservation: Option<CountedBytes>,
}

impl<T: ByteSize> BoundedQueue<T> {
    /// An empty queue. Its bytes count against the reservation, if there is one.
    #[must_use]
    pub fn new(limit: QueueLimit, reservation: Option<CountedBytes>) -> Self {
        Self { messages: VecDeque::new(), bytes: 0, limit, reservation }
    }

    /// Returns `true` if no message is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The number of queued messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// The bytes of the queued messages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The message that was added last.
    #[must_use]
    pub fn last(&self) -> Option<&T> {
        self.messages.back()
    }

    /// Returns `true` if a message of one byte fits.
    #[must_use]
    pub fn has_capacity(&self) -> bool {
        self.fits(1, 1)
    }

    fn fits(&self, messages: usize, bytes: usize) -> bool {
        self.messages.len().saturating_add(messages) <= self.limit.messages
            && self.bytes.saturating_add(bytes) <= self.limit.bytes
            && self.reservation.as_ref().is_none_or(|held| held.has_room(bytes as u64))
    }

    /// Adds all of these messages, or none if they do not fit. Returns `true` if they were added.
    pub fn offer(&mut self, messages: Vec<T>) -> bool {
        let fits = self.fits(messages.len(), messages.iter().map(T::byte_size).sum());
        if fits {
            messages.into_iter().for_each(|message| self.push(message));
        }
        fits
    }

    /// Adds a message, even when the queue is full.
    pub fn push(&mut self, message: T) {
        self.set_bytes(self.bytes.saturating_add(message.byte_size()));
        self.messages.push_back(message);
    }

    /// Takes the oldest message.
    pub fn pop(&mut self) -> Option<T> {
        let message = self.messages.pop_front()?;
        self.set_bytes(self.bytes.saturating_sub(message.byte_size()));
        Some(message)
    }

    /// Takes all messages.
    pub fn take_all(&mut self) -> VecDeque<T> {
        self.set_bytes(0);
        std::mem::take(&mut self.messages)
    }

    /// Keeps the messages for which `keep` returns `true`. Returns the number of dropped messages.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) -> usize {
        let before = self.messages.len();
        self.messages.retain(keep);
        self.set_bytes(self.messages.iter().map(T::byte_size).sum());
        before - self.messages.len()
    }

    fn set_bytes(&mut self, bytes: usize) {
        self.bytes = bytes;
        if let Some(held) = &mut self.reservation {
            held.set(bytes as u64);
        }
    }
}

/// A message that stays queued until the peer acknowledges it.
#[derive(Debug)]
struct Unacknowledged<T> {
    message: T,
    attempts: u32,
    sent_at: Option<Instant>,
}

impl<T: ByteSize> ByteSize for Unacknowledged<T> {
    fn byte_size(&self) -> usize {
        self.message.byte_size()
    }
}

impl<T> Unacknowledged<T> {
    fn is_due(&self, now: Instant, resend: Duration) -> bool {
        self.sent_at.is_none_or(|sent_at| now.saturating_duration_since(sent_at) >= resend)
    }
}

/// Messages that are sent again until the peer acknowledges them.
#[derive(Debug)]
pub struct ReplayQueue<T> {
    queue: BoundedQueue<Unacknowledged<T>>,
    /// Maximum number of messages in flight.
    window: usize,
    /// Time without an acknowledgement after which a message is sent again.
    resend: Duration,
}

impl<T: ByteSize + Clone> ReplayQueue<T> {
    /// An empty queue.
    #[must_use]
    pub fn new(limit: QueueLimit, window: usize, resend: Duration) -> Self {
        Self { queue: BoundedQueue::new(limit, None), window, resend }
    }

    /// Returns `true` if no message is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The number of queued messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// The bytes of the queued messages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// The message that was added last.
    #[must_use]
    pub fn last(&self) -> Option<&T> {
        self.queue.last().map(|entry| &entry.message)
    }

    /// Adds a message. Returns `false` if it does not fit.
    pub fn offer(&mut self, message: T) -> bool {
        self.queue.offer(vec![Unacknowledged { message, attempts: 0, sent_at: None }])
    }

    /// Makes every message due, because those in flight on an earlier connection may never have arrived.
    pub fn resume(&mut self) {
        self.queue.messages.iter_mut().for_each(|entry| entry.sent_at = None);
    }

    /// Removes and returns messages that are due once more after their last attempt.
    pub fn expire(&mut self, now: Instant, max_attempts: impl Fn(&T) -> u32) -> Vec<T> {
        let resend = self.resend;
        let mut expired = Vec::new();
        self.queue.retain(|entry| {
            let is_expired = entry.attempts >= max_attempts(&entry.message)
                && entry.sent_at.is_some()
                && entry.is_due(now, resend);
            if is_expired {
                expired.push(entry.message.clone());
            }
            !is_expired
        });
        expired
    }

    /// Returns the messages to send now, and marks them as sent.
    pub fn send_due(&mut self, now: Instant) -> Vec<T> {
        let resend = self.resend;
        let in_window = self.queue.messages.iter_mut().take(self.window);
        let due = in_window.filter(|entry| entry.is_due(now, resend)).map(|entry| {
            entry.sent_at = Some(now);
            entry.attempts = entry.attempts.saturating_add(1);
            entry.message.clone()
        });
        due.collect()
    }

    /// Keeps the messages for which `keep` returns `true`. Returns the number of dropped messages.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) -> usize {
        self.queue.retain(|entry| keep(&entry.message))
    }
}

/// The connection that reads the messages of a session.
#[derive(Debug, Default)]
pub struct Attachment {
    connection: Option<u64>,
    /// The time since which no connection is attached; also `None` before the first connection.
    detached: Option<Instant>,
}

impl Attachment {
    /// An attachment whose connection ended at `now`.
    pub fn detached(now: Instant) -> Self {
        Self { connection: None, detached: Some(now) }
    }

    /// Attaches a connection in place of the current one. Returns `false` if it already is the current one.
    pub fn attach(&mut self, connection: u64) -> bool {
        let is_new = !self.is_current(connection);
        *self = Self { connection: Some(connection), detached: None };
        is_new
    }

    /// Detaches a connection, unless another has replaced it.
    pub fn detach(&mut self, connection: u64, now: Instant) {
        if self.is_current(connection) {
            *self = Self::detached(now);
        }
    }

    /// Returns `true` if a connection is attached.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.connection.is_some()
    }

    /// Returns `true` if this connection is attached.
    #[must_use]
    pub fn is_current(&self, connection: u64) -> bool {
        self.connection == Some(connection)
    }

    /// The time without a connection; `None` while one is attached, and before the first.
    pub fn time_detached(&self, now: Instant) -> Option<Duration> {
        self.detached.map(|since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::clock::{Clock as _, SystemClock};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const LIMIT: QueueLimit = QueueLimit { messages: 8, bytes: 40 };
    const WINDOW: usize = 3;
    const RESEND: Duration = Duration::from_secs(5);
    const MAX_ATTEMPTS: u32 = 4;

    /// A message with a unique number, and its size in bytes.
    #[derive(Debug, Clone, PartialEq)]
    struct Numbered(u32, usize);

    impl ByteSize for Numbered {
        fn byte_size(&self) -> usize {
            self.1
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Offer(Vec<usize>),
        Push(usize),
        Take,
        Attach(u64),
        Detach(u64),
        Acknowledge(usize),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            prop::collection::vec(0..16_usize, 0..4).prop_map(Step::Offer),
            (0..16_usize).prop_map(Step::Push),
            Just(Step::Take),
            (0..3_u64).prop_map(Step::Attach),
            (0..3_u64).prop_map(Step::Detach),
            (0..4_usize).prop_map(Step::Acknowledge),
            (0..9_u64).prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 0..120)
    }

    proptest! {
        #[test]
        fn a_bounded_queue_takes_all_or_none_and_keeps_the_order(steps in steps()) {
            let mut queue = BoundedQueue::new(LIMIT, None);
            let mut next = 0;
            let mut waiting = VecDeque::new();
            let mut number = |size| {
                next += 1;
                Numbered(next, size)
            };
            for step in steps {
                match step {
                    Step::Offer(sizes) => {
                        let messages = sizes.into_iter().map(&mut number).collect::<Vec<_>>();
                        let bytes = waiting.iter().chain(&messages).map(ByteSize::byte_size).sum::<usize>();
                        let fits = waiting.len() + messages.len() <= LIMIT.messages && bytes <= LIMIT.bytes;
                        prop_assert_eq!(queue.offer(messages.clone()), fits);
                        if fits {
                            waiting.extend(messages);
                        }
                    }
                    Step::Push(size) => {
                        let message = number(size);
                        queue.push(message.clone());
                        waiting.push_back(message);
                    }
                    Step::Take => prop_assert_eq!(queue.pop(), waiting.pop_front()),
                    Step::Acknowledge(nth) => {
                        let removed = waiting.remove(nth);
                        let dropped = queue.retain(|message| Some(message) != removed.as_ref());
                        prop_assert_eq!(dropped, usize::from(removed.is_some()));
                    }
                    Step::Attach(_) | Step::Detach(_) | Step::Wait(_) => {}
                }
                prop_assert_eq!(queue.bytes, waiting.iter().map(ByteSize::byte_size).sum::<usize>());
                prop_assert_eq!(queue.is_empty(), waiting.is_empty());
                prop_assert_eq!(queue.has_capacity(), waiting.len() < LIMIT.messages && queue.bytes < LIMIT.bytes);
            }
            prop_assert_eq!(queue.take_all(), waiting);
            prop_assert_eq!(queue.bytes, 0);
        }

        #[test]
        fn a_message_is_sent_until_it_is_acknowledged_and_never_after(steps in steps()) {
            let mut now = SystemClock.monotonic();
            let mut session = Attachment::default();
            let mut queue = ReplayQueue::new(LIMIT, WINDOW, RESEND);
            let mut next = 0;
            let mut sent = BTreeMap::<u32, (u32, Instant, u32)>::new();
            let mut unacknowledged = BTreeSet::new();
            let mut removed = BTreeSet::new();
            let mut resumed = 0;
            for step in steps {
                match step {
                    Step::Push(size) => {
                        next += 1;
                        if queue.offer(Numbered(next, size)) {
                            unacknowledged.insert(next);
                        }
                    }
                    Step::Attach(connection) => if session.attach(connection) {
                        queue.resume();
                        resumed += 1;
                    },
                    Step::Detach(connection) => session.detach(connection, now),
                    Step::Take => if session.is_attached() {
                        for Numbered(number, _) in queue.expire(now, |_| MAX_ATTEMPTS) {
                            prop_assert!(unacknowledged.remove(&number) && sent[&number].0 >= MAX_ATTEMPTS);
                            removed.insert(number);
                        }
                        let first = unacknowledged.iter().take(WINDOW).copied().collect::<BTreeSet<_>>();
                        for Numbered(number, _) in queue.send_due(now) {
                            prop_assert!(first.contains(&number) && !removed.contains(&number));
                            let (attempts, last, resumed_before) = sent.get(&number).copied().unwrap_or((0, now, 0));
                            prop_assert!(attempts == 0 || resumed_before != resumed || now - last >= RESEND);
                            sent.insert(number, (attempts + 1, now, resumed));
                        }
                        for number in first {
                            let resumed_before = sent.get(&number).map(|(_, _, resumed_before)| *resumed_before);
                            prop_assert_eq!(resumed_before, Some(resumed), "{} is in the window", number);
                        }
                        prop_assert!(queue.send_due(now).is_empty(), "not before the resend time");
                    },
                    Step::Acknowledge(nth) => if let Some(&number) = unacknowledged.iter().nth(nth) {
                        prop_assert_eq!(queue.retain(|message| message.0 != number), 1);
                        unacknowledged.remove(&number);
                        removed.insert(number);
                    },
                    Step::Wait(seconds) => now += Duration::from_secs(seconds),
                    Step::Offer(_) => {}
                }
                prop_assert_eq!(queue.len(), unacknowledged.len());
                prop_assert!(queue.len() <= LIMIT.messages && queue.queue.bytes <= LIMIT.bytes);
            }
        }

        #[test]
        fn time_detached_counts_from_the_end_of_the_last_connection(steps in steps()) {
            let mut now = SystemClock.monotonic();
            let mut session = Attachment::detached(now);
            let mut current = None;
            let mut since = Some(now);
            for step in steps {
                match step {
                    Step::Attach(connection) => {
                        prop_assert_eq!(session.attach(connection), current != Some(connection));
                        (current, since) = (Some(connection), None);
                    }
                    Step::Detach(connection) => {
                        session.detach(connection, now);
                        if current == Some(connection) {
                            (current, since) = (None, Some(now));
                        }
                    }
                    Step::Wait(seconds) => now += Duration::from_secs(seconds),
                    Step::Offer(_) | Step::Push(_) | Step::Take | Step::Acknowledge(_) => {}
                }
                prop_assert_eq!(session.time_detached(now), since.map(|since| now - since));
                prop_assert_eq!(session.is_attached(), current.is_some());
            }
        }
    }
}
