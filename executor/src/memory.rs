//! Counts the memory of the heap that this process uses, and gives back memory that it no longer uses.
//!
//! [`CountingAllocator`] stands before the system's allocator and counts. What the process was made to hold by
//! others (messages, results, answers that nobody takes) is then one number, whoever holds it and in which
//! form. Memory that SQLite takes is not among it: it is C's, and bounded by its own cache.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Counters, so that threads rarely write the same cache line.
const SHARDS: usize = 16;

/// A counter with a cache line of its own.
#[repr(align(128))]
struct Shard(AtomicI64);

static IN_USE: [Shard; SHARDS] = [const { Shard(AtomicI64::new(0)) }; SHARDS];
static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);
/// Bytes of large blocks that were ever allocated.
static LARGE_ALLOCATED: AtomicU64 = AtomicU64::new(0);
/// A block that is large: smaller ones are used again soon after they were freed.
const LARGE_BYTES: usize = 32 << 10;
/// The largest block that the allocator keeps for the next of its size.
const MAX_KEPT_BLOCK_BYTES: libc::c_int = 128 << 10;
/// Bytes above which nothing more is taken in.
static BUDGET: AtomicU64 = AtomicU64::new(u64::MAX);
/// The memory that each caller makes this process hold: messages that are worked on, and answers that are not taken.
static BY_CALLER: LazyLock<Arc<Shares>> = LazyLock::new(|| Shares::new(u64::MAX));

thread_local! {
    /// The shard of this thread, plus one; 0 until it is chosen.
    static SHARD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The system's allocator, counted.
#[derive(Debug)]
pub struct CountingAllocator;

fn count(bytes: usize, sign: i64) {
    if bytes >= LARGE_BYTES && sign > 0 {
        LARGE_ALLOCATED.fetch_add(bytes as u64, Relaxed);
    }
    let shard = SHARD.try_with(|shard| {
        if shard.get() == 0 {
            shard.set(NEXT_SHARD.fetch_add(1, Relaxed) % SHARDS + 1);
        }
        shard.get() - 1
    });
    // A thread that is ending has no variables of its own any more.
    if let Some(Shard(counter)) = IN_USE.get(shard.unwrap_or(0)) {
        counter.fetch_add(i64::try_from(bytes).unwrap_or(i64::MAX).saturating_mul(sign), Relaxed);
    }
}

#[allow(
    unsafe_code,
    reason = "each call is handed on to the system's allocator as it is, under the promises that its caller made; \
              what is counted beside it allocates nothing"
)]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(size, 1);
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Bytes of the heap that are in use. 0 in a program that does not allocate by [`CountingAllocator`].
#[must_use]
pub fn in_use() -> u64 {
    let sum = IN_USE.iter().map(|Shard(counter)| counter.load(Relaxed)).sum::<i64>();
    u64::try_from(sum).unwrap_or(0)
}

/// Bytes of large blocks that this process has ever allocated: by how much this grows, so much may be left free
/// inside of it.
#[must_use]
pub fn large_allocated() -> u64 {
    LARGE_ALLOCATED.load(Relaxed)
}

/// Sets how many bytes of the heap may be in use before nothing more is taken in, and how many of them one caller
/// may make this process hold.
pub fn set_budget(bytes: u64, caller_share: u64) {
    BUDGET.store(bytes, Relaxed);
    BY_CALLER.share.store(caller_share, Relaxed);
}

/// `true` when `more` bytes would stay within the budget.
#[must_use]
pub fn has_room(more: u64) -> bool {
    in_use().saturating_add(more) <= BUDGET.load(Relaxed)
}

/// Counts bytes against a caller's share until what this gives is dropped; `None` when the share has no room for
/// them. A caller that holds nothing may hold more than a share, once.
#[must_use]
pub fn hold(caller: &str, bytes: u64) -> Option<Held> {
    BY_CALLER.hold(caller, bytes)
}

/// As [`hold`], for bytes that are held already, beyond the share if need be. The caller then gets no more until they
/// are dropped.
#[must_use]
pub fn hold_always(caller: &str, bytes: u64) -> Held {
    BY_CALLER.add(&mut BY_CALLER.lock(), caller, bytes)
}

/// The bytes that each owner holds, each at most a share.
#[derive(Debug)]
pub struct Shares {
    share: AtomicU64,
    by_owner: Mutex<HashMap<Arc<str>, u64>>,
}

/// Bytes that count against the share of their owner until this is dropped.
#[derive(Debug)]
pub struct Held {
    shares: Arc<Shares>,
    owner: Arc<str>,
    bytes: u64,
}

impl Shares {
    /// Shares of so many bytes for each owner.
    #[must_use]
    pub fn new(share: u64) -> Arc<Self> {
        Arc::new(Self { share: AtomicU64::new(share), by_owner: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, u64>> {
        self.by_owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds bytes of an owner; `None` when its share has no room for them. An owner that holds nothing may hold
    /// more than a share, once.
    #[must_use]
    pub fn hold(self: &Arc<Self>, owner: &str, bytes: u64) -> Option<Held> {
        let mut by_owner = self.lock();
        let before = by_owner.get(owner).copied().unwrap_or(0);
        let is_over = before > 0 && before.saturating_add(bytes) > self.share.load(Relaxed);
        (!is_over).then(|| self.add(&mut by_owner, owner, bytes))
    }

    fn add(self: &Arc<Self>, by_owner: &mut HashMap<Arc<str>, u64>, owner: &str, bytes: u64) -> Held {
        let owner =
            by_owner.get_key_value(owner).map_or_else(|| Arc::from(owner), |(owner, _)| Arc::clone(owner));
        let held = by_owner.entry(Arc::clone(&owner)).or_default();
        *held = held.saturating_add(bytes);
        Held { shares: Arc::clone(self), owner, bytes }
    }
}

impl Held {
    /// Counts so many bytes instead.
    pub fn set(&mut self, bytes: u64) {
        let mut by_owner = self.shares.lock();
        if let Some(held) = by_owner.get_mut(&self.owner) {
            *held = held.saturating_sub(self.bytes).saturating_add(bytes);
            self.bytes = bytes;
        }
    }

    /// `true` when its owner may hold so many bytes more: any number when nothing is held.
    #[must_use]
    pub fn has_room(&self, more: u64) -> bool {
        let held = self.shares.lock().get(&self.owner).copied().unwrap_or(0);
        held == 0 || held.saturating_add(more) <= self.shares.share.load(Relaxed)
    }
}

/// Memory that a message takes, counted until the last clone is dropped. It is no part of what the message says:
/// any two are equal.
#[derive(Debug, Clone, Default)]
pub struct Charge {
    _held: Option<Arc<Held>>,
}

impl From<Held> for Charge {
    fn from(held: Held) -> Self {
        Self { _held: Some(Arc::new(held)) }
    }
}

impl PartialEq for Charge {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut by_owner = self.shares.lock();
        if let Some(held) = by_owner.get_mut(&self.owner) {
            *held = held.saturating_sub(self.bytes);
            // An entry of zero bytes stays while another `Held` of its owner exists, which may count again.
            if *held == 0 && Arc::strong_count(&self.owner) <= 2 {
                by_owner.remove(&self.owner);
            }
        }
    }
}

/// Has the allocator take large blocks from the system one by one, so that each goes back when it is freed. By
/// default it would learn from the first large block that was freed to keep such blocks, up to 64 MB in each of
/// its arenas.
#[allow(unsafe_code, reason = "two calls that take two numbers and touch nothing that is in use")]
pub fn give_large_blocks_back() {
    #[cfg(target_env = "gnu")]
    for parameter in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        let _refused = unsafe { libc::mallopt(parameter, MAX_KEPT_BLOCK_BYTES) };
    }
}

/// Gives memory that is free back to the system. It takes milliseconds after much was freed.
#[allow(unsafe_code, reason = "a call that takes one number and touches nothing that is in use")]
pub fn trim() {
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_holds_its_share_and_no_other_ones() {
        let shares = Shares::new(100);
        let first = shares.hold("a", 60).unwrap();
        assert!(shares.hold("a", 41).is_none());
        let second = shares.hold("a", 40).unwrap();
        let other = shares.hold("b", 100).unwrap();
        assert!(shares.hold("b", 1).is_none());
        drop((first, other));
        assert!(shares.hold("a", 60).is_some());
        drop(second);
        let large = shares.hold("a", 1000).unwrap();
        assert!(shares.hold("a", 1).is_none());
        drop(large);
        assert!(shares.lock().is_empty());
        let mut line = shares.hold("a", 0).unwrap();
        assert!(line.has_room(1000));
        line.set(99);
        assert!(line.has_room(1) && !line.has_room(2) && shares.hold("a", 2).is_none());
        let more = shares.hold("a", 1).unwrap();
        line.set(0);
        drop(more);
        line.set(5);
        assert!(line.has_room(95) && !line.has_room(96));
        drop(line);
        assert!(shares.lock().is_empty());
    }
}
