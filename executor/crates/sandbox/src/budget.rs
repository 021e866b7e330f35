//! Budgets for a guest's use of the host (bytes written to files, names created, folder entries listed, random
//! bytes), and the streams that charge a component's file calls to them.
//!
//! Each use is charged before the call, so that no call exceeds a budget. Bytes written twice to the same place
//! count twice, and a write beyond the end counts everything that the file grows by.

use super::state::CurrentStats;
use super::termination::TerminationReason;
use a2g_overlay::WriteMark;
use a2g_types::limit::{BudgetUsage, Budgets, Consumption, Limit, LimitMap, budget_rows};
use bytes::Bytes;
use futures_util::FutureExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use wasmtime_wasi::p2::{
    DynInputStream, DynOutputStream, InputStream, OutputStream, Pollable, StreamError, StreamResult,
};

/// The budgets of one execution, with their use so far.
#[derive(Debug)]
pub(super) struct Budget {
    granted: Budgets,
    used: LimitMap<AtomicU64>,
    fuel: OnceLock<u64>,
}

impl Budget {
    pub(super) fn new(granted: Budgets) -> Self {
        Self { granted, used: LimitMap::from_fn(|_| AtomicU64::new(0)), fuel: OnceLock::new() }
    }

    /// Charges `added` to a limit, or ends the run.
    pub(super) fn charge(&self, limit: Limit, added: u64) -> Result<(), TerminationReason> {
        let used = &self.used[limit];
        // Load and store need no atomic update: one guest has one thread, and others only read.
        let total = used.load(Ordering::Relaxed).saturating_add(added);
        self.check(limit, total)?;
        used.store(total, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the run if it holds more at one time than a limit permits.
    fn check(&self, limit: Limit, held: u64) -> Result<(), TerminationReason> {
        if held > self.granted.amount(limit) { Err(TerminationReason::Limit(limit)) } else { Ok(()) }
    }

    /// Charges `bytes` written to files, or ends the run.
    // This is a budget and not a quota: overwritten bytes count again, because the budget limits the load and wear of
    // the disk, and no count ever has to be reduced.
    pub(super) fn charge_write(&self, bytes: u64) -> Result<(), TerminationReason> {
        self.charge(Limit::Written, bytes)
    }

    /// Charges one created name, or ends the run.
    pub(super) fn charge_create(&self) -> Result<(), TerminationReason> {
        self.charge(Limit::Created, 1)
    }

    /// Charges `bytes` of randomness, or ends the run.
    pub(super) fn charge_random(&self, bytes: u64) -> Result<(), TerminationReason> {
        self.charge(Limit::RandomBytes, bytes)
    }

    /// Charges one listed folder entry, or ends the run.
    pub(super) fn charge_entry(&self) -> Result<(), TerminationReason> {
        self.charge(Limit::DirectoryEntries, 1)
    }

    /// Ends the run if one poll has more subscriptions than permitted.
    pub(super) fn check_poll(&self, subscriptions: u64) -> Result<(), TerminationReason> {
        // A list of subscriptions is host memory: 700,000 subscriptions took 155 MB.
        self.check(Limit::Subscriptions, subscriptions)
    }

    /// Records the fuel that remained at the guest's end.
    pub(super) fn record_remaining_fuel(&self, remaining: u64) {
        if let Some(granted) = self.granted.granted(Limit::Fuel) {
            let _set_once = self.fuel.set(granted.saturating_sub(remaining));
        }
    }

    /// The use of each budget so far.
    pub(super) fn usage(&self) -> BudgetUsage {
        let rows = budget_rows().filter(|row| row.consumption == Consumption::Total);
        let used = |limit| match limit == Limit::Fuel {
            // The engine counts it, and it is read at the guest's end.
            true => self.fuel.get().copied(),
            false => Some(self.used[limit].load(Ordering::Relaxed)),
        };
        rows.filter_map(|row| Some((row.limit, used(row.limit)?))).collect()
    }

    /// The budgets as granted.
    pub(super) fn limits(&self) -> Budgets {
        self.granted
    }
}

/// Polls a future that completes at its first poll, and returns its output.
// Used with wasmtime's `blocking_` calls, which work on this thread. Its other calls move the work to a thread,
// which a confined process cannot start and whose CPU time would not be charged to the guest.
fn poll_once<T>(work: impl Future<Output = StreamResult<T>>) -> StreamResult<T> {
    let not_ready = || Err(StreamError::Trap(wasmtime::Error::msg("a file was not ready")));
    work.now_or_never().unwrap_or_else(not_ready)
}

/// A file's input stream, which reads on the guest's thread.
pub(super) struct FileInputStream {
    pub(super) inner: DynInputStream,
}

#[wasmtime_wasi::async_trait]
impl Pollable for FileInputStream {
    async fn ready(&mut self) {
        self.inner.ready().await;
    }
}

#[wasmtime_wasi::async_trait]
impl InputStream for FileInputStream {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        poll_once(self.inner.blocking_read(size))
    }

    async fn blocking_read(&mut self, size: usize) -> StreamResult<Bytes> {
        self.inner.blocking_read(size).await
    }

    async fn cancel(&mut self) {
        self.inner.cancel().await;
    }
}

/// A file's output stream, which charges each write to the budget and notes it.
pub(super) struct FileOutputStream {
    pub(super) inner: DynOutputStream,
    pub(super) current: Arc<CurrentStats>,
    /// `None` in a run whose file changes are not kept apart.
    pub(super) mark: Option<WriteMark>,
}

impl FileOutputStream {
    fn begin_write(&self, bytes: usize) -> StreamResult<()> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.current.get().budget.charge_write(bytes).map_err(|stop| StreamError::Trap(stop.into()))?;
        // A write that fails may have written a part.
        if let Some(mark) = self.mark.as_ref().filter(|_| bytes > 0) {
            mark.set();
        }
        Ok(())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for FileOutputStream {
    async fn ready(&mut self) {
        self.inner.ready().await;
    }
}

#[wasmtime_wasi::async_trait]
impl OutputStream for FileOutputStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.begin_write(bytes.len())?;
        poll_once(self.inner.blocking_write_and_flush(bytes))
    }

    async fn blocking_write_and_flush(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.begin_write(bytes.len())?;
        self.inner.blocking_write_and_flush(bytes).await
    }

    fn flush(&mut self) -> StreamResult<()> {
        self.inner.flush()
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        self.inner.check_write()
    }

    async fn cancel(&mut self) {
        self.inner.cancel().await;
    }
}
