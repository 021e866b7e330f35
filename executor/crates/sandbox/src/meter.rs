//! CPU time of one execution, from the kernel's clock of the thread or the process that runs it.
//!
//! The clock is read before and after every poll of the guest's future, so that the guest's host calls are counted and
//! waiting is not. During a poll, [`Meter::cpu`] adds the time since the poll began. The time between two polls counts as
//! well, from the second one on: a guest that waits for no time at all makes its thread park, wake up and poll again
//! without end, and sends what it asks of others.

use super::engine::Ticker;
use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// The CPU clock that is charged to a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Accounting {
    /// The clock of the polling thread, for a guest that shares the process with others. The thread has to do nothing else
    /// until the guest's end: it would be charged to the guest.
    #[default]
    Thread,
    /// The clock of the process, for a guest that has the process to itself.
    // The ticker's time is included, so that the enforced and the reported value are the same.
    Process,
}

/// The CPU time of one execution. The thread that polls the guest writes it, any thread may read it.
#[derive(Debug, Default)]
pub(super) struct Meter {
    accounting: Accounting,
    /// CPU time of finished polls, in nanoseconds.
    finished: AtomicU64,
    /// The clock's value at the start of the current poll, in nanoseconds.
    poll_start: AtomicU64,
    /// The thread of the current poll; 0 between polls.
    thread: AtomicI32,
}

impl Meter {
    pub(super) fn new(accounting: Accounting) -> Self {
        Self { accounting, ..Self::default() }
    }

    fn nanos(&self) -> u64 {
        let now = clock_gettime(match self.accounting {
            Accounting::Thread => ClockId::ThreadCPUTime,
            Accounting::Process => ClockId::ProcessCPUTime,
        });
        u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
    }

    /// CPU time so far. Call it only on the polling thread, during a poll.
    pub(super) fn cpu(&self) -> Duration {
        let running = self.nanos().saturating_sub(self.poll_start.load(Ordering::Relaxed));
        Duration::from_nanos(self.finished.load(Ordering::Relaxed) + running)
    }

    /// CPU time of all finished polls.
    #[must_use]
    pub(super) fn finished_polls(&self) -> Duration {
        Duration::from_nanos(self.finished.load(Ordering::Relaxed))
    }

    /// CPU time so far. Call it on any thread except the polling one.
    #[must_use]
    pub(super) fn cpu_from_other_thread(&self) -> Duration {
        let thread = self.thread.load(Ordering::Acquire);
        if thread == 0 {
            return self.finished_polls();
        }
        // A thread that is stuck in a host call cannot read its own clock, but the kernel still accounts for it.
        let on_cpu = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"))
            .ok()
            .and_then(|text| text.split_whitespace().next().and_then(|nanos| nanos.parse::<u64>().ok()))
            .unwrap_or(0);
        let running = on_cpu.saturating_sub(self.poll_start.load(Ordering::Relaxed));
        self.finished_polls() + Duration::from_nanos(running)
    }
}

/// A future whose polls are metered, with the ticker awake during each.
pub(super) struct MeteredFuture<'a, F> {
    inner: Pin<Box<F>>,
    meter: Arc<Meter>,
    ticker: &'a Ticker,
    /// The thread of the previous poll, and the value of its clock at the end of that poll.
    previous: Option<(i32, u64)>,
}

impl<'a, F: Future> MeteredFuture<'a, F> {
    pub(super) fn new(meter: Arc<Meter>, ticker: &'a Ticker, inner: F) -> Self {
        Self { inner: Box::pin(inner), meter, ticker, previous: None }
    }
}

impl<F: Future> Future for MeteredFuture<'_, F> {
    /// The inner output, or the error of starting the ticker's thread.
    type Output = std::io::Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let _ticking = match self.ticker.keep_awake() {
            Ok(guard) => guard,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let start = match self.previous {
            Some((previous, end)) if previous == thread => end,
            // The clock of another thread has another value.
            Some(_) | None => self.meter.nanos(),
        };
        self.meter.poll_start.store(start, Ordering::Relaxed);
        self.meter.thread.store(thread, Ordering::Release);
        let polled = self.inner.as_mut().poll(context);
        self.meter.thread.store(0, Ordering::Release);
        let end = self.meter.nanos();
        self.meter.finished.fetch_add(end.saturating_sub(start), Ordering::Relaxed);
        self.previous = Some((thread, end));
        polled.map(Ok)
    }
}
