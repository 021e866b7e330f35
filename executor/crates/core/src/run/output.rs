//! The output that runs may still produce, in addition to the memory in use.
//!
//! Output that has arrived is part of the heap. The output that running guests may still produce is counted here, so
//! that a new call finds room for its own.

use a2g_types::memory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The output that all running guests may still produce, in bytes.
#[derive(Debug, Default)]
pub(super) struct ExpectedOutput(Arc<AtomicU64>);

/// The output that one run may still produce.
#[derive(Debug)]
pub(super) struct OutputShare {
    all: Arc<AtomicU64>,
    bytes: u64,
}

impl ExpectedOutput {
    /// `true` if a run with up to `bytes` of output stays within the budget. While no other run is counted, its output
    /// may exceed the budget.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let others = self.0.load(Relaxed);
        memory::has_room(if others == 0 { 0 } else { others.saturating_add(bytes) })
    }

    /// Counts the output of a run until the returned share is dropped.
    pub(super) fn reserve(&self, bytes: u64) -> OutputShare {
        self.0.fetch_add(bytes, Relaxed);
        OutputShare { all: Arc::clone(&self.0), bytes }
    }
}

impl Drop for OutputShare {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Relaxed);
    }
}
