//! The output that runs may still produce, as part of the memory budget.
//!
//! Output that has arrived is counted as heap. The output that running guests may still produce is counted here, so
//! that memory for it is reserved before a new call is admitted.

use a2g_types::memory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The output that all running guests may still produce, in bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct ExpectedOutput(Arc<AtomicU64>);

/// The output that one run may still produce.
#[derive(Debug)]
pub(super) struct OutputReservation {
    all: Arc<AtomicU64>,
    bytes: u64,
}

impl ExpectedOutput {
    /// `true` if another run with up to `bytes` of output stays within the memory budget. A single run may exceed the
    /// budget.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let others = self.0.load(Relaxed);
        memory::has_room(if others == 0 { 0 } else { others.saturating_add(bytes) })
    }

    /// Reserves memory for the output of a run until the returned value is dropped.
    pub(super) fn reserve(&self, bytes: u64) -> OutputReservation {
        self.0.fetch_add(bytes, Relaxed);
        OutputReservation { all: Arc::clone(&self.0), bytes }
    }
}

impl Drop for OutputReservation {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Relaxed);
    }
}
