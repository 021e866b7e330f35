//! What waits for the agent of one session to take it: lines, in order, under a bound.
//!
//! Every line here counts against its caller's share of memory. An answer always finds room, and no new call is begun
//! while there is none. An event is dropped when there is no room: a slow agent holds no run up.

use crate::clock::timer_now;
use crate::memory::{self, Held};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How many bytes may wait before nothing new is begun: a long answer and its events.
const MAX_QUEUED_BYTES: usize = 16 << 20;
/// How many lines may wait.
const MAX_QUEUED_LINES: usize = 4096;

/// The lines of one session.
#[derive(Debug)]
pub(super) struct Outgoing {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug)]
struct Queue {
    lines: VecDeque<String>,
    bytes: usize,
    /// The bytes, in the share of the session's caller.
    held: Held,
    /// Nothing more comes.
    closed: bool,
    /// Who takes the lines now: each newcomer takes the place of the one before.
    reader: u64,
    attached: bool,
    /// Since when somebody is there, or nobody.
    since: Instant,
    /// When the last line was taken, or the first came that is not.
    moved: Instant,
}

/// Who is there to take the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// Somebody, who has taken nothing for so long although something waits.
    There(Duration),
    /// Nobody for so long.
    Away(Duration),
}

impl Outgoing {
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
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an answer.
    pub(super) fn push(&self, line: String) {
        self.lock().add(line);
        self.changed.notify_waiters();
    }

    /// Adds lines that belong together, all or none: none when there is no room.
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

    /// Whether something new may be begun.
    pub(super) fn has_room(&self) -> bool {
        self.lock().has_room()
    }

    /// Waits until something new may be begun, or nothing is begun any more.
    pub(super) async fn room(&self) {
        self.until(|queue| (queue.has_room() || queue.closed).then_some(())).await;
    }

    /// Somebody comes to take the lines; whoever took them before gets no more.
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

    /// Somebody goes. It changes nothing when another has come meanwhile.
    pub(super) fn detach(&self, reader: u64) {
        let mut queue = self.lock();
        if queue.reader == reader {
            (queue.attached, queue.since) = (false, timer_now());
        }
    }

    pub(super) fn presence(&self) -> Presence {
        let queue = self.lock();
        match (queue.attached, queue.lines.is_empty()) {
            (false, _) => Presence::Away(queue.since.elapsed()),
            (true, true) => Presence::There(Duration::ZERO),
            (true, false) => Presence::There(queue.moved.elapsed()),
        }
    }

    /// The next line, in time; `None` when there will be no more for this reader.
    pub(super) async fn next(&self, reader: u64) -> Option<String> {
        let line = self.until(|queue| {
            if queue.reader != reader {
                return Some(None);
            }
            match queue.lines.pop_front() {
                Some(line) => {
                    queue.count(queue.bytes.saturating_sub(line.len()));
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

    /// Nothing more comes; what waits can still be taken.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_waiters();
    }

    /// Nothing more comes, and nothing waits any longer.
    pub(super) fn discard(&self) {
        let mut queue = self.lock();
        queue.lines.clear();
        queue.count(0);
        queue.closed = true;
        drop(queue);
        self.changed.notify_waiters();
    }

    /// Whether nothing more comes.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether nothing waits and nothing more comes.
    pub(super) fn is_over(&self) -> bool {
        let queue = self.lock();
        queue.closed && queue.lines.is_empty()
    }

    async fn until<T>(&self, mut ask: impl FnMut(&mut Queue) -> Option<T>) -> T {
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
        self.count(self.bytes + line.len());
        self.lines.push_back(line);
    }

    fn count(&mut self, bytes: usize) {
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
        let out = Outgoing::new("anybody");
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
        let out = Outgoing::new("anybody");
        assert!(matches!(out.presence(), Presence::Away(_)));
        let first = out.attach();
        out.push("one".to_owned());
        let second = out.attach();
        assert_eq!(out.next(first).await, None);
        out.detach(first);
        assert!(matches!(out.presence(), Presence::There(_)), "the first is not missed");
        assert_eq!(out.next(second).await.as_deref(), Some("one"));
        out.push("two".to_owned());
        out.close();
        out.push("three".to_owned());
        assert!(!out.is_over());
        assert_eq!(out.next(second).await.as_deref(), Some("two"));
        assert_eq!(out.next(second).await, None);
        assert!(out.is_over());
        out.detach(second);
        assert!(matches!(out.presence(), Presence::Away(_)));
    }
}
