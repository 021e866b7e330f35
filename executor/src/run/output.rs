//! Output that runs may still hand out, beside the memory that is in use.
//!
//! Output that has arrived is part of the heap, whoever holds it. What running guests may still add to it is
//! counted here, so that a new call finds room for its own.

use crate::memory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The output that all running guests may still hand out, in bytes.
#[derive(Debug, Default)]
pub(super) struct ExpectedOutput(Arc<AtomicU64>);

/// The output that one run may still hand out.
#[derive(Debug)]
pub(super) struct OutputShare {
    all: Arc<AtomicU64>,
    bytes: u64,
}

impl ExpectedOutput {
    /// `true` when a run of so much output would stay within the budget. One that may hand out more than the budget
    /// has room when no other runs.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let others = self.0.load(Relaxed);
        memory::has_room(if others == 0 { 0 } else { others.saturating_add(bytes) })
    }

    /// Counts a run that begins, until what this gives is dropped.
    pub(super) fn begin(&self, bytes: u64) -> OutputShare {
        self.0.fetch_add(bytes, Relaxed);
        OutputShare { all: Arc::clone(&self.0), bytes }
    }
}

impl Drop for OutputShare {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Relaxed);
    }
}
