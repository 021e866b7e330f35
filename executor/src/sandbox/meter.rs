//! CPU time of one execution, from the kernel's clock of the thread that runs it.
//!
//! The clock is read before and after every poll of the guest's future, so that host calls that the
//! guest causes are counted and waiting is not. While a poll lasts, [`Meter::cpu`] adds what the
//! thread has used since the poll began.

use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// The CPU time of one execution. Written by the thread that polls the guest, read by anyone.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Nanoseconds of finished polls.
    finished: AtomicU64,
    /// The thread's clock when the current poll began.
    poll_began: AtomicU64,
    /// The thread of the current poll; 0 between polls.
    thread: AtomicI32,
}

fn thread_cpu_nanos() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl Meter {
    /// CPU time so far, as the polling thread sees it.
    pub(super) fn cpu(&self) -> Duration {
        let running = thread_cpu_nanos().saturating_sub(self.poll_began.load(Ordering::Relaxed));
        Duration::from_nanos(self.finished.load(Ordering::Relaxed) + running)
    }

    /// CPU time of all finished polls.
    #[must_use]
    pub(super) fn finished(&self) -> Duration {
        Duration::from_nanos(self.finished.load(Ordering::Relaxed))
    }

    /// CPU time so far, as another thread sees it: for a guest stuck inside a host call. The kernel
    /// accounts the stuck thread in `/proc/self/task/<id>/schedstat`.
    #[must_use]
    pub(super) fn seen_from_outside(&self) -> Duration {
        let thread = self.thread.load(Ordering::Acquire);
        if thread == 0 {
            return self.finished();
        }
        let on_cpu = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"))
            .ok()
            .and_then(|text| text.split_whitespace().next().and_then(|nanos| nanos.parse::<u64>().ok()))
            .unwrap_or(0);
        let running = on_cpu.saturating_sub(self.poll_began.load(Ordering::Relaxed));
        self.finished() + Duration::from_nanos(running)
    }
}

/// A future whose polls are metered.
pub(super) struct Metered<F> {
    inner: Pin<Box<F>>,
    meter: Arc<Meter>,
}

impl<F: Future> Metered<F> {
    pub(super) fn new(meter: Arc<Meter>, inner: F) -> Self {
        Self { inner: Box::pin(inner), meter }
    }
}

impl<F: Future> Future for Metered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let began = thread_cpu_nanos();
        self.meter.poll_began.store(began, Ordering::Relaxed);
        self.meter.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
        let polled = self.inner.as_mut().poll(context);
        self.meter.thread.store(0, Ordering::Release);
        self.meter.finished.fetch_add(thread_cpu_nanos().saturating_sub(began), Ordering::Relaxed);
        polled
    }
}
