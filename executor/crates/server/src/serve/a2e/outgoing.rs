//! The bounded queue of lines to the agent of one session.
//!
//! Every line counts against its caller's share of memory. An answer is always queued, but no new call begins while the
//! queue is full. An event is dropped when the queue is full, so that a slow agent never blocks a run.

use a2g_runtime::timer_now;
use a2g_types::memory::{self, HeldBytes};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Bytes above which no new call begins: room for a long answer and its events.
const MAX_QUEUED_BYTES: usize = 16 << 20;
/// Lines above which no new call begins.
const MAX_QUEUED_LINES: usize = 4096;

#[derive(Debug)]
pub(super) struct OutgoingQueue {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug)]
struct Queue {
    lines: VecDeque<String>,
    bytes: usize,
    /// The bytes, held in the share of the session's caller.
    held: HeldBytes,
    /// `true` once no more lines are added.
    closed: bool,
    /// The current reader. A new reader replaces the one before.
    reader: u64,
    attached: bool,
    /// The time of the last attach or detach.
    since: Instant,
    /// The time when a line was last taken, or when the oldest waiting line was added, if that is later.
    moved: Instant,
}

/// The presence of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// A reader is attached and has taken nothing for this long although lines wait.
    Attached(Duration),
    /// No reader has been attached for this long.
    Detached(Duration),
}

impl OutgoingQueue {
    pub(super) fn new(owner: &str) -> Self {
        let now = timer_now();
        let queue = Queue {
            lines: VecDeque::new(),
            bytes: 0,
            held: memory::hold_always(owner, 0),
            closed: false,
            reader: 0,
            attached: false,
            since: now,
            moved: now,
        };
        Self { queue: Mutex::new(queue), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Adds an answer, also when the queue is full.
    pub(super) fn push(&self, line: String) {
        self.lock().add(line);
        self.changed.notify_waiters();
    }

    /// Adds all of these lines, or none if they do not fit. Returns `true` if they were added.
    pub(super) fn offer(&self, lines: Vec<String>) -> bool {
        let mut queue = self.lock();
        let more: usize = lines.iter().map(String::len).sum();
        let fits = queue.bytes.saturating_add(more) <= MAX_QUEUED_BYTES
            && queue.held.has_room(more as u64)
            && queue.lines.len().saturating_add(lines.len()) <= MAX_QUEUED_LINES;
        if fits {
            lines.into_iter().for_each(|line| queue.add(line));
            drop(queue);
            self.changed.notify_waiters();
        }
        fits
    }

    /// Returns `true` if a new call may begin.
    pub(super) fn has_room(&self) -> bool {
        self.lock().has_room()
    }

    /// Waits until a new call may begin, or the queue is closed.
    pub(super) async fn wait_for_room(&self) {
        self.wait_until(|queue| (queue.has_room() || queue.closed).then_some(())).await;
    }

    /// Attaches a reader in place of the previous one, and returns its number.
    pub(super) fn attach(&self) -> u64 {
        let mut queue = self.lock();
        let now = timer_now();
        queue.reader += 1;
        (queue.attached, queue.since, queue.moved) = (true, now, now);
        let reader = queue.reader;
        drop(queue);
        self.changed.notify_waiters();
        reader
    }

    /// Detaches a reader, unless another has replaced it.
    pub(super) fn detach(&self, reader: u64) {
        let mut queue = self.lock();
        if queue.reader == reader {
            (queue.attached, queue.since) = (false, timer_now());
        }
    }

    pub(super) fn presence(&self) -> Presence {
        let queue = self.lock();
        match (queue.attached, queue.lines.is_empty()) {
            (false, _) => Presence::Detached(queue.since.elapsed()),
            (true, true) => Presence::Attached(Duration::ZERO),
            (true, false) => Presence::Attached(queue.moved.elapsed()),
        }
    }

    /// Waits for the next line; `None` if there will be no more for this reader.
    pub(super) async fn next(&self, reader: u64) -> Option<String> {
        let line = self.wait_until(|queue| {
            if queue.reader != reader {
                return Some(None);
            }
            match queue.lines.pop_front() {
                Some(line) => {
                    queue.set_bytes(queue.bytes.saturating_sub(line.len()));
                    queue.moved = timer_now();
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
        queue.lines.clear();
        queue.set_bytes(0);
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

    async fn wait_until<T>(&self, mut ask: impl FnMut(&mut Queue) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let found = ask(&mut self.lock());
            if let Some(found) = found {
                return found;
            }
            changed.await;
        }
    }
}

impl Queue {
    fn add(&mut self, line: String) {
        if self.closed {
            return;
        }
        if self.lines.is_empty() {
            self.moved = timer_now();
        }
        self.set_bytes(self.bytes + line.len());
        self.lines.push_back(line);
    }

    fn set_bytes(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.held.set(bytes as u64);
    }

    fn has_room(&self) -> bool {
        self.bytes < MAX_QUEUED_BYTES && self.held.has_room(1) && self.lines.len() < MAX_QUEUED_LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_wait_for_room_and_answers_do_not() {
        let out = OutgoingQueue::new("anybody");
        let reader = out.attach();
        let large = "x".repeat(MAX_QUEUED_BYTES / 2);
        assert!(out.offer(vec![large.clone(), "y".to_owned()]));
        assert!(!out.offer(vec!["z".to_owned(), large.clone()]), "all or none");
        assert!(out.offer(vec!["z".to_owned()]));
        out.push(large.clone());
        assert!(!out.has_room() && !out.offer(vec!["z".to_owned()]));
        for line in [&large, "y", "z", &large] {
            assert_eq!(out.next(reader).await.as_deref(), Some(line));
        }
        assert!(out.has_room());
        for _ in 0..MAX_QUEUED_LINES {
            assert!(out.offer(vec![String::new()]));
        }
        assert!(!out.has_room() && !out.offer(vec![String::new()]), "lines count as well");
    }

    #[tokio::test]
    async fn whoever_comes_later_takes_the_rest() {
        let out = OutgoingQueue::new("anybody");
        assert!(matches!(out.presence(), Presence::Detached(_)));
        let first = out.attach();
        out.push("one".to_owned());
        let second = out.attach();
        assert_eq!(out.next(first).await, None);
        out.detach(first);
        assert!(matches!(out.presence(), Presence::Attached(_)), "the first is not missed");
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
