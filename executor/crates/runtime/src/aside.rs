//! Work that would keep a worker busy for long: it is polled on threads of its own, in turns of its owner.
//!
//! ```text
//! task on a worker ─ waits for a turn ─▶ one poll on a thread of this module ─▶ ready, or back to the task until woken
//! ```
//! The workers, which serve all connections, only pass such work on. An owner's polls queue behind each other as soon as
//! they use the owner's share of the threads, so one owner never uses all of them.
// Not `spawn_blocking`: its threads are many, and each would keep the memory of the messages that it has read.

use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

/// The size of a message in bytes, as values in memory, above which it is handled aside. A shorter one takes less than a
/// millisecond.
pub const MAX_INLINE_BYTES: u64 = 64 << 10;

/// The turns of this process.
static TURNS: LazyLock<Turns> = LazyLock::new(|| Turns::new(max_threads(), (max_threads() / 2).max(1)));
/// The queue of the threads; `None` if they cannot be started.
static POLLS: LazyLock<Option<Sender<QueuedPoll>>> = LazyLock::new(|| start_threads().ok());

/// One poll of a future.
type QueuedPoll = Box<dyn FnOnce() + Send>;

thread_local! {
    /// `true` while this thread polls work of [`run_aside`].
    static IS_ASIDE: Cell<bool> = const { Cell::new(false) };
}

/// The number of threads: one for each core, and at least two, so that a second owner does not wait for the first.
fn max_threads() -> usize {
    std::thread::available_parallelism().map_or(2, NonZeroUsize::get).max(2)
}

/// Polls `work` on threads that may be busy for long, at most half of them for one owner. Work that is part of such work
/// is polled with it. Dropping the future drops the work, after its current poll.
pub async fn run_aside<F>(owner: &str, work: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    if IS_ASIDE.get() { work.await } else { TURNS.run(owner, work).await }
}

/// Handles a message of this size: a large one with [`run_aside`].
pub async fn run_large<F>(owner: &str, bytes: u64, work: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    // Boxed, because the futures of callers would nest deeper than the compiler computes layouts.
    let boxed = Box::pin(work);
    if bytes <= MAX_INLINE_BYTES { boxed.await } else { run_aside(owner, boxed).await }
}

/// Starts the threads, so that the first large message adds none: what a server has after a run is what it had before.
pub fn prepare() {
    LazyLock::force(&POLLS);
}

fn start_threads() -> std::io::Result<Sender<QueuedPoll>> {
    let (sender, queue) = channel::<QueuedPoll>();
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..max_threads() {
        let queue = Arc::clone(&queue);
        let next = move || queue.lock().recv();
        // The sender is never dropped, so the thread ends with the process.
        std::thread::Builder::new().name("aside".to_owned()).spawn(move || {
            while let Ok(poll) = next() {
                poll();
            }
        })?;
    }
    Ok(sender)
}

fn queue(poll: QueuedPoll) {
    match &*POLLS {
        // Fails only without threads.
        Some(threads) => drop(threads.send(poll)),
        None => poll(),
    }
}

/// The permits to poll, for all owners and for each of them.
struct Turns {
    all: Arc<Semaphore>,
    by_owner: Mutex<HashMap<Box<str>, Weak<Semaphore>>>,
    per_owner: usize,
}

/// The permits for one poll.
struct Turn {
    _own: Option<OwnedSemaphorePermit>,
    _any: Option<OwnedSemaphorePermit>,
}

impl Turns {
    fn new(all: usize, per_owner: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), by_owner: Mutex::default(), per_owner }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Weak<Semaphore>>> {
        self.by_owner.lock()
    }

    /// The permits of an owner, which exist as long as it has work.
    fn of(&self, owner: &str) -> Arc<Semaphore> {
        let mut by_owner = self.lock();
        if let Some(own) = by_owner.get(owner).and_then(Weak::upgrade) {
            return own;
        }
        by_owner.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(self.per_owner));
        by_owner.insert(owner.into(), Arc::downgrade(&own));
        own
    }

    /// Waits for a turn: first behind the owner's own work, and then behind that of others.
    async fn take(&self, own: &Arc<Semaphore>) -> Turn {
        // Neither fails: no semaphore is closed.
        let own = Arc::clone(own).acquire_owned().await.ok();
        Turn { _own: own, _any: Arc::clone(&self.all).acquire_owned().await.ok() }
    }

    async fn run<F>(&self, owner: &str, work: F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let own = self.of(owner);
        let woken = Arc::new(Woken(Notify::new()));
        let waker = Waker::from(Arc::clone(&woken));
        let mut work = Box::pin(work);
        loop {
            let turn = self.take(&own).await;
            let waker = waker.clone();
            let runtime = Handle::current();
            let (done, polled) = oneshot::channel();
            queue(Box::new(move || {
                let _context = runtime.enter();
                let poll = catch_unwind(AssertUnwindSafe(|| {
                    let _marked = Marked::set();
                    work.as_mut().poll(&mut Context::from_waker(&waker))
                }));
                // Kept to the end of the poll, even if its task was dropped before.
                drop(turn);
                let _task_was_dropped = done.send(poll.map(|poll| (work, poll)));
            }));
            match polled.await {
                Ok(Ok((_, Poll::Ready(output)))) => return output,
                Ok(Ok((pending, Poll::Pending))) => work = pending,
                Ok(Err(panic)) => resume_unwind(panic),
                // Not reached: every poll that is queued ends.
                Err(_) => return std::future::pending().await,
            }
            woken.0.notified().await;
        }
    }
}

/// Remembers a wake-up, even one during the poll.
struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Marks this thread until it is dropped.
struct Marked;

impl Marked {
    fn set() -> Self {
        IS_ASIDE.set(true);
        Self
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        IS_ASIDE.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Receiver;
    use std::time::Duration;

    const LONG_TIMEOUT: Duration = Duration::from_secs(60);

    /// Work that blocks its thread until the sender is dropped, and says when it has begun.
    fn blocker(begun: Sender<&'static str>, name: &'static str) -> (Sender<()>, impl Future<Output = ()>) {
        let (release, released): (_, Receiver<()>) = channel();
        (release, async move {
            begun.send(name).unwrap();
            let _released = released.recv();
        })
    }

    #[tokio::test]
    async fn blocking_work_delays_neither_the_worker_nor_another_owner() {
        let turns = Arc::new(Turns::new(2, 1));
        let (begun, began) = channel();
        let mut held = Vec::new();
        for (owner, name) in [("greedy", "first"), ("greedy", "second"), ("other", "third")] {
            let (release, work) = blocker(begun.clone(), name);
            let turns = Arc::clone(&turns);
            let task = crate::spawn::spawn_run_task(async move { turns.run(owner, work).await });
            held.push((release, task));
            // The only worker of this test is free although the work blocks.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let next = || began.recv_timeout(LONG_TIMEOUT).unwrap();
        assert_eq!([next(), next()], ["first", "third"], "the second waits behind its owner's first");
        assert!(began.try_recv().is_err());
        for (release, task) in held {
            drop(release);
            task.await.unwrap();
        }
        assert_eq!(next(), "second");
        drop(turns.of("new"));
        assert_eq!(turns.lock().len(), 1, "owners without work are forgotten");
    }

    #[tokio::test]
    async fn work_that_waits_holds_no_turn_and_is_polled_again_when_woken() {
        let turns = Arc::new(Turns::new(1, 1));
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let waiting = Arc::clone(&turns);
        let waiting = crate::spawn::spawn_run_task(async move {
            waiting.run("a", async move { (receiver.await, IS_ASIDE.get()) }).await
        });
        let inner = async { run_aside("b", async { IS_ASIDE.get() }).await };
        assert!(
            turns.run("a", inner).await,
            "work inside is polled with it, although there is no other turn"
        );
        sender.send(7).unwrap();
        assert_eq!(waiting.await.unwrap(), (Ok(7), true));
        assert!(!IS_ASIDE.get());
    }

    #[tokio::test]
    async fn a_panic_reaches_the_task_and_frees_its_turn() {
        let turns = Arc::new(Turns::new(1, 1));
        let failing = Arc::clone(&turns);
        let panics = std::future::poll_fn(|_| -> Poll<()> { panic!("on purpose") });
        let task = crate::spawn::spawn_run_task(async move { failing.run("a", panics).await });
        assert!(task.await.unwrap_err().is_panic());
        assert_eq!(turns.run("a", async { 1 }).await, 1);
    }
}
