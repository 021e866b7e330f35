//! The bounded queue of lines to the agent of one session.
//!
//! Every line counts against its caller's share of memory. An answer is always queued, but no new call begins while the
//! queue is full. An event is dropped when the queue is full, so that a slow agent never blocks a run.

use a2g_http::session::{Attachment, BoundedQueue, QueueLimit};
use a2g_runtime::timer_now;
use a2g_types::memory;
use parking_lot::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The limit above which no new call begins: enough for a long answer and its events.
const LIMIT: QueueLimit = QueueLimit { messages: 4096, bytes: 16 << 20 };

#[derive(Debug)]
pub(super) struct OutgoingQueue {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug)]
struct Queue {
    lines: BoundedQueue<String>,
    /// `true` once lines are no longer accepted.
    closed: bool,
    /// The current reader. A new reader replaces the previous one.
    reader: Attachment,
    /// The number of the last reader.
    last_reader: u64,
    /// The time when a line was last taken, or when the oldest waiting line was added, if that is later.
    last_progress: Instant,
}

fn now() -> Instant {
    timer_now().into_std()
}

/// The reader's state: attached or not, and the time since which nothing has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// A reader is attached. Lines have waited for this long without being read; zero if no lines wait.
    Attached(Duration),
    /// No reader has been attached for this long.
    Detached(Duration),
}

impl OutgoingQueue {
    pub(super) fn new(owner: &str) -> Self {
        let now = now();
        let queue = Queue {
            lines: BoundedQueue::new(LIMIT, Some(memory::hold_always(owner, 0))),
            closed: false,
            reader: Attachment::detached(now),
            last_reader: 0,
            last_progress: now,
        };
        Self { queue: Mutex::new(queue), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Adds an answer, even when the queue is full.
    pub(super) fn push(&self, line: String) {
        self.add(|lines| lines.push(line));
    }

    /// Adds all of these lines, or none if they do not fit. Returns `true` if they were added, or if the queue is
    /// closed.
    pub(super) fn offer(&self, lines: Vec<String>) -> bool {
        self.add(|queue| queue.offer(lines)).unwrap_or(true)
    }

    /// Adds lines; `None` if the queue is closed.
    fn add<T>(&self, add: impl FnOnce(&mut BoundedQueue<String>) -> T) -> Option<T> {
        let mut queue = self.lock();
        if queue.closed {
            return None;
        }
        if queue.lines.is_empty() {
            queue.last_progress = now();
        }
        let added = add(&mut queue.lines);
        drop(queue);
        self.changed.notify_waiters();
        Some(added)
    }

    /// Returns `true` if a new call may begin.
    pub(super) fn has_capacity(&self) -> bool {
        self.lock().lines.has_capacity()
    }

    /// Waits until a new call may begin, or the queue is closed.
    pub(super) async fn wait_for_capacity(&self) {
        self.wait_until(|queue| (queue.lines.has_capacity() || queue.closed).then_some(())).await;
    }

    /// Attaches a reader in place of the previous one, and returns its number.
    pub(super) fn attach(&self) -> u64 {
        let mut queue = self.lock();
        queue.last_reader += 1;
        let reader = queue.last_reader;
        queue.reader.attach(reader);
        queue.last_progress = now();
        drop(queue);
        self.changed.notify_waiters();
        reader
    }

    /// Detaches a reader, unless another has replaced it.
    pub(super) fn detach(&self, reader: u64) {
        self.lock().reader.detach(reader, now());
    }

    pub(super) fn presence(&self) -> Presence {
        let queue = self.lock();
        let now = now();
        match queue.reader.time_detached(now) {
            Some(detached) => Presence::Detached(detached),
            None if queue.lines.is_empty() => Presence::Attached(Duration::ZERO),
            None => Presence::Attached(now.saturating_duration_since(queue.last_progress)),
        }
    }

    /// Waits for the next line; `None` if this reader gets no more.
    pub(super) async fn next(&self, reader: u64) -> Option<String> {
        let line = self.wait_until(|queue| {
            if !queue.reader.is_current(reader) {
                return Some(None);
            }
            match queue.lines.pop() {
                Some(line) => {
                    queue.last_progress = now();
                    Some(Some(line))
                }
                None => queue.closed.then_some(None),
            }
        });
        let line = line.await;
        self.changed.notify_waiters();
        line
    }

    /// Closes the queue. Lines that wait can still be taken.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_waiters();
    }

    /// Closes the queue and drops its lines.
    pub(super) fn discard(&self) {
        let mut queue = self.lock();
        queue.lines.take_all();
        queue.closed = true;
        drop(queue);
        self.changed.notify_waiters();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Returns `true` if the queue is closed and empty.
    pub(super) fn has_ended(&self) -> bool {
        let queue = self.lock();
        queue.closed && queue.lines.is_empty()
    }

    async fn wait_until<T>(&self, mut poll: impl FnMut(&mut Queue) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let result = poll(&mut self.lock());
            if let Some(result) = result {
                return result;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_queue_refuses_events_and_accepts_answers() {
        let out = OutgoingQueue::new("owner");
        let reader = out.attach();
        let large = "x".repeat(LIMIT.bytes / 2);
        assert!(out.offer(vec![large.clone(), "y".to_owned()]));
        assert!(!out.offer(vec!["z".to_owned(), large.clone()]), "all or none");
        assert!(out.offer(vec!["z".to_owned()]));
        out.push(large.clone());
        assert!(!out.has_capacity() && !out.offer(vec!["z".to_owned()]));
        for line in [&large, "y", "z", &large] {
            assert_eq!(out.next(reader).await.as_deref(), Some(line));
        }
        assert!(out.has_capacity());
        for _ in 0..LIMIT.messages {
            assert!(out.offer(vec![String::new()]));
        }
        assert!(!out.has_capacity() && !out.offer(vec![String::new()]), "lines count as well");
    }

    #[tokio::test]
    async fn a_new_reader_replaces_the_previous_one() {
        let out = OutgoingQueue::new("owner");
        assert!(matches!(out.presence(), Presence::Detached(_)));
        let first = out.attach();
        out.push("one".to_owned());
        let second = out.attach();
        assert_eq!(out.next(first).await, None);
        out.detach(first);
        assert!(matches!(out.presence(), Presence::Attached(_)), "the first reader was already replaced");
        assert_eq!(out.next(second).await.as_deref(), Some("one"));
        out.push("two".to_owned());
        out.close();
        out.push("three".to_owned());
        assert!(!out.has_ended());
        assert_eq!(out.next(second).await.as_deref(), Some("two"));
        assert_eq!(out.next(second).await, None);
        assert!(out.has_ended());
        out.detach(second);
        assert!(matches!(out.presence(), Presence::Detached(_)));
    }
}
