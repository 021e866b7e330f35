//! The memory limit: one sum over all linear memories and tables of a store.

use super::engine::{MAX_INSTANCES, MAX_MEMORIES, MAX_TABLES};
use super::events::{Event, EventSink};
use a2g_types::limit::Bound;
use a2g_types::quantity::{BYTES_PER_MB, MemoryLimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use wasmtime::ResourceLimiter;

/// The measurements of a limiter. Shared, so that another thread can read them while a guest is stuck.
#[derive(Debug, Default)]
pub(super) struct MemoryGauge {
    /// The peak sum of memories and tables so far, in bytes.
    pub(super) peak: AtomicU64,
    // A refused growth returns -1 to the guest, which then usually traps. This flag attributes that trap to the
    // memory limit.
    pub(super) refused: AtomicBool,
    pub(super) events: EventSink,
}

impl MemoryGauge {
    pub(super) fn record(&self, total: u64) {
        let previous = self.peak.fetch_max(total, Ordering::Relaxed);
        // One event per MB: a guest that grows page by page must not send one for each page.
        if total.div_ceil(BYTES_PER_MB) > previous.div_ceil(BYTES_PER_MB) {
            self.events.emit(|| Event::MemoryPeak(total));
        }
    }
}

/// One execution's memory limit.
#[derive(Debug)]
pub(super) struct Limiter {
    limit: Bound<MemoryLimit>,
    bytes: u64,
    /// Bytes added by the last permitted growth, to be released if the allocator then fails.
    last_growth: u64,
    gauge: Arc<MemoryGauge>,
}

/// The host memory of one table element: wasmtime stores a pointer.
const TABLE_ELEMENT_BYTES: u64 = size_of::<usize>() as u64;

impl Limiter {
    pub(super) fn new(limit: Bound<MemoryLimit>, gauge: Arc<MemoryGauge>) -> Self {
        Self { limit, bytes: 0, last_growth: 0, gauge }
    }

    pub(super) fn limit(&self) -> Bound<MemoryLimit> {
        self.limit
    }

    /// Goes on with the measurements of the next turn of a session, whose peak begins with what the store
    /// holds now.
    pub(super) fn begin_turn(&mut self, gauge: Arc<MemoryGauge>) {
        gauge.record(self.bytes);
        self.gauge = gauge;
    }

    fn grow(&mut self, current: usize, desired: usize, unit: u64) -> bool {
        let added = u64::try_from(desired.saturating_sub(current)).unwrap_or(u64::MAX).saturating_mul(unit);
        // All memories and tables are summed: with a limit for each, a guest would only have to create more of them.
        let total = self.bytes.saturating_add(added);
        if total > self.limit.value.bytes() {
            self.gauge.refused.store(true, Ordering::Relaxed);
            return false;
        }
        self.bytes = total;
        self.last_growth = added;
        self.gauge.record(total);
        true
    }

    fn release_last_growth(&mut self) {
        self.bytes = self.bytes.saturating_sub(std::mem::take(&mut self.last_growth));
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(current, desired, 1))
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.release_last_growth();
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(current, desired, TABLE_ELEMENT_BYTES))
    }

    fn table_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.release_last_growth();
        Ok(())
    }

    fn instances(&self) -> usize {
        MAX_INSTANCES as usize
    }

    fn tables(&self) -> usize {
        MAX_TABLES as usize
    }

    fn memories(&self) -> usize {
        MAX_MEMORIES as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::limit::Layer;

    #[test]
    fn memories_and_tables_are_summed() {
        let gauge = Arc::new(MemoryGauge::default());
        let value = MemoryLimit::from_mb(1).unwrap();
        let mut limiter = Limiter::new(Bound { value, layer: Layer::Verdict }, Arc::clone(&gauge));
        assert!(limiter.memory_growing(0, 512 << 10, None).unwrap());
        assert!(limiter.memory_growing(0, 256 << 10, None).unwrap());
        assert!(limiter.table_growing(0, (256 << 10) / 8, None).unwrap());
        assert!(!gauge.refused.load(Ordering::Relaxed));
        assert!(!limiter.memory_growing(0, 1, None).unwrap());
        assert!(gauge.refused.load(Ordering::Relaxed));
        assert_eq!(gauge.peak.load(Ordering::Relaxed), 1 << 20);
    }

    #[test]
    fn a_turn_begins_with_the_memory_that_the_last_one_left() {
        let first = Arc::new(MemoryGauge::default());
        let value = MemoryLimit::from_mb(1).unwrap();
        let mut limiter = Limiter::new(Bound { value, layer: Layer::Verdict }, Arc::clone(&first));
        assert!(limiter.memory_growing(0, 768 << 10, None).unwrap());
        assert!(!limiter.memory_growing(768 << 10, 2 << 20, None).unwrap());
        let second = Arc::new(MemoryGauge::default());
        limiter.begin_turn(Arc::clone(&second));
        assert_eq!(second.peak.load(Ordering::Relaxed), 768 << 10);
        assert!(
            !second.refused.load(Ordering::Relaxed),
            "only the turn that was refused memory fails for it"
        );
        assert!(
            !limiter.memory_growing(768 << 10, 2 << 20, None).unwrap(),
            "the limit is that of the session"
        );
        assert!(second.refused.load(Ordering::Relaxed));
        assert_eq!(first.peak.load(Ordering::Relaxed), 768 << 10);
    }

    #[test]
    fn a_growth_that_the_allocator_refuses_does_not_count() {
        let value = MemoryLimit::from_mb(1).unwrap();
        let mut limiter = Limiter::new(Bound { value, layer: Layer::Verdict }, Arc::default());
        assert!(limiter.memory_growing(0, 1 << 20, None).unwrap());
        limiter.memory_grow_failed(wasmtime::Error::msg("no pages")).unwrap();
        assert!(limiter.memory_growing(0, 1 << 20, None).unwrap());
    }
}
