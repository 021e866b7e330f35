//! Counts the heap memory in use by this process, and returns unused memory to the system.
//!
//! [`CountingAllocator`] counts the bytes that it gets from the system's allocator. One number therefore covers all
//! memory that callers and tools make the process hold (messages, results, unread answers), in whatever form.
//! SQLite's memory is not included: it is allocated in C, and bounded by the size of SQLite's cache.

use parking_lot::{Mutex, MutexGuard};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

/// Number of counters: several, so that threads rarely write the same cache line.
const SHARDS: usize = 16;

/// A counter with a cache line of its own.
#[repr(align(128))]
struct Shard(AtomicI64);

static USED_BYTES: [Shard; SHARDS] = [const { Shard(AtomicI64::new(0)) }; SHARDS];
static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);
/// Total size in bytes of all large blocks ever freed.
static FREED_LARGE_BLOCK_BYTES: AtomicU64 = AtomicU64::new(0);
/// Minimum size of a large block. Smaller blocks are reused soon after they are freed.
const MIN_LARGE_BLOCK_BYTES: usize = 32 << 10;
/// Maximum size of a freed block that the allocator retains for reuse.
const MAX_RETAINED_BLOCK_BYTES: libc::c_int = 128 << 10;
/// Heap size in bytes above which no more input is accepted.
static BUDGET: AtomicU64 = AtomicU64::new(u64::MAX);
/// Messages and answers up to this size in bytes are not counted, and are accepted even when the memory budget is used up,
/// because a caller has to be able to cancel its calls.
pub const SMALL_MESSAGE_BYTES: u64 = 16 << 10;
/// The memory that each caller causes this process to hold: messages in progress, and unread answers.
static BY_CALLER: LazyLock<Arc<Shares>> = LazyLock::new(|| Shares::new(u64::MAX));

thread_local! {
    /// The shard of this thread, plus one; 0 until it is chosen.
    static SHARD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The system's allocator, which also counts the bytes in use.
#[derive(Debug)]
pub struct CountingAllocator;

fn count(bytes: usize, sign: i64) {
    if bytes >= MIN_LARGE_BLOCK_BYTES && sign < 0 {
        FREED_LARGE_BLOCK_BYTES.fetch_add(bytes as u64, Relaxed);
    }
    let shard = SHARD.try_with(|shard| {
        if shard.get() == 0 {
            shard.set(NEXT_SHARD.fetch_add(1, Relaxed) % SHARDS + 1);
        }
        shard.get() - 1
    });
    // A thread that is ending no longer has thread-local variables.
    if let Some(Shard(counter)) = USED_BYTES.get(shard.unwrap_or(0)) {
        counter.fetch_add(i64::try_from(bytes).unwrap_or(i64::MAX).saturating_mul(sign), Relaxed);
    }
}

#[allow(
    unsafe_code,
    reason = "each call is forwarded unchanged to the system's allocator, under the same safety contract; the \
              counting itself does not allocate"
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

/// Bytes of the heap that are in use. 0 in a program that does not allocate through [`CountingAllocator`].
#[must_use]
pub fn used_bytes() -> u64 {
    let sum = USED_BYTES.iter().map(|Shard(counter)| counter.load(Relaxed)).sum::<i64>();
    u64::try_from(sum).unwrap_or(0)
}

/// Total size in bytes of all large blocks that this process has ever freed. The allocator may retain part of them.
#[must_use]
pub fn freed_large_block_bytes() -> u64 {
    FREED_LARGE_BLOCK_BYTES.load(Relaxed)
}

/// Sets the heap size above which no more input is accepted, and the share of it that one caller may hold, both in
/// bytes.
pub fn set_budget(bytes: u64, caller_share: u64) {
    BUDGET.store(bytes, Relaxed);
    BY_CALLER.share.store(caller_share, Relaxed);
    // The rest is for results, and for what the server itself needs.
    BY_CALLER.total.store(bytes - bytes / 4, Relaxed);
}

/// `true` if `more` bytes would stay within the budget.
#[must_use]
pub fn has_room(more: u64) -> bool {
    used_bytes().saturating_add(more) <= BUDGET.load(Relaxed)
}

/// Counts bytes against a caller's share until the returned value is dropped. A caller that holds nothing may exceed its
/// share once.
///
/// # Errors
/// [`NoRoom`] if they would exceed the share, or the part of the budget that all callers share.
pub fn hold(caller: &str, bytes: u64) -> Result<CountedBytes, NoRoom> {
    BY_CALLER.hold(caller, bytes)
}

/// Counts a message of this size, as values in memory, against its caller's share.
///
/// # Errors
/// [`NoRoom`] if the memory budget or the caller's share is used up.
pub fn charge(caller: &str, bytes: u64) -> Result<Charge, NoRoom> {
    if bytes <= SMALL_MESSAGE_BYTES {
        return Ok(Charge::uncounted(caller));
    }
    if !has_room(bytes) {
        return Err(NoRoom::Budget);
    }
    hold(caller, bytes).map(Charge::from)
}

/// The reason why no more bytes can be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// The memory budget is used up.
    Budget,
    /// The caller's share of it is used up.
    Share,
}

/// Like [`hold`], for bytes that are already held; they may exceed the share. The caller can then hold no more until
/// enough of its bytes are dropped.
#[must_use]
pub fn hold_always(caller: &str, bytes: u64) -> CountedBytes {
    BY_CALLER.add(&mut BY_CALLER.lock(), caller, bytes)
}

/// The bytes that each owner holds. Each owner may hold at most one share, and all owners the total.
#[derive(Debug)]
pub struct Shares {
    share: AtomicU64,
    total: AtomicU64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    by_owner: HashMap<Arc<str>, u64>,
    total: u64,
}

/// Bytes that count against the share of their owner until this value is dropped.
#[derive(Debug)]
pub struct CountedBytes {
    shares: Arc<Shares>,
    owner: Arc<str>,
    bytes: u64,
}

impl Shares {
    /// Makes shares of `share` bytes for each owner, without a limit for all of them.
    #[must_use]
    pub fn new(share: u64) -> Arc<Self> {
        Arc::new(Self {
            share: AtomicU64::new(share),
            total: AtomicU64::new(u64::MAX),
            held: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }

    /// Counts bytes against an owner's share. An owner that holds nothing may exceed its share once.
    ///
    /// # Errors
    /// [`NoRoom`] if they would exceed the share or the total.
    pub fn hold(self: &Arc<Self>, owner: &str, bytes: u64) -> Result<CountedBytes, NoRoom> {
        let mut held = self.lock();
        self.check(&held, owner, bytes)?;
        Ok(self.add(&mut held, owner, bytes))
    }

    fn check(&self, held: &Held, owner: &str, more: u64) -> Result<(), NoRoom> {
        let exceeds =
            |held: u64, limit: &AtomicU64| held > 0 && held.saturating_add(more) > limit.load(Relaxed);
        if exceeds(held.by_owner.get(owner).copied().unwrap_or(0), &self.share) {
            return Err(NoRoom::Share);
        }
        if exceeds(held.total, &self.total) { Err(NoRoom::Budget) } else { Ok(()) }
    }

    fn add(self: &Arc<Self>, held: &mut Held, owner: &str, bytes: u64) -> CountedBytes {
        let Held { by_owner, total } = held;
        let owner =
            by_owner.get_key_value(owner).map_or_else(|| Arc::from(owner), |(owner, _)| Arc::clone(owner));
        let owned = by_owner.entry(Arc::clone(&owner)).or_default();
        (*owned, *total) = (owned.saturating_add(bytes), total.saturating_add(bytes));
        CountedBytes { shares: Arc::clone(self), owner, bytes }
    }
}

impl Held {
    /// Replaces a number of bytes of an owner by another one.
    fn change(&mut self, owner: &str, before: u64, after: u64) {
        if let Some(owned) = self.by_owner.get_mut(owner) {
            *owned = owned.saturating_sub(before).saturating_add(after);
            self.total = self.total.saturating_sub(before).saturating_add(after);
        }
    }
}

impl CountedBytes {
    /// The number of bytes that this value counts.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets the number of bytes that this value counts.
    pub fn set(&mut self, bytes: u64) {
        self.shares.lock().change(&self.owner, self.bytes, bytes);
        self.bytes = bytes;
    }

    /// `true` if so many bytes are more than the owner's share, whatever else it holds.
    #[must_use]
    pub fn exceeds_share(&self, bytes: u64) -> bool {
        bytes > self.shares.share.load(Relaxed)
    }

    /// Sets the number of bytes that this value counts, where the owner must not exceed its share even once.
    ///
    /// # Errors
    /// [`NoRoom`] if a larger number would exceed the share, the total or the memory budget. It stays as it was then.
    pub fn try_set(&mut self, bytes: u64) -> Result<(), NoRoom> {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else {
            self.set(bytes);
            return Ok(());
        };
        if !has_room(more) {
            return Err(NoRoom::Budget);
        }
        let mut held = self.shares.lock();
        let owned = held.by_owner.get(&self.owner).copied().unwrap_or(0);
        if owned.saturating_add(more) > self.shares.share.load(Relaxed) {
            return Err(NoRoom::Share);
        }
        if held.total.saturating_add(more) > self.shares.total.load(Relaxed) {
            return Err(NoRoom::Budget);
        }
        held.change(&self.owner, self.bytes, bytes);
        self.bytes = bytes;
        Ok(())
    }

    /// `true` if the owner may hold `more` bytes in addition. An owner that holds nothing may hold any number.
    #[must_use]
    pub fn has_room(&self, more: u64) -> bool {
        self.shares.check(&self.shares.lock(), &self.owner, more).is_ok()
    }
}

/// The memory of a message, counted until the last clone is dropped. A charge is not part of the message's value, so
/// any two charges are equal. By default, it has no owner.
#[derive(Debug, Clone, Default)]
pub struct Charge(Option<ChargedTo>);

#[derive(Debug, Clone)]
enum ChargedTo {
    /// The message is too short to be counted.
    Uncounted(Arc<str>),
    Counted(Arc<CountedBytes>),
}

impl From<CountedBytes> for Charge {
    fn from(counted: CountedBytes) -> Self {
        Self(Some(ChargedTo::Counted(Arc::new(counted))))
    }
}

impl Charge {
    /// The charge of a message that is too short to be counted.
    #[must_use]
    pub fn uncounted(owner: &str) -> Self {
        Self(Some(ChargedTo::Uncounted(owner.into())))
    }

    /// The owner of the message, against whose share the messages that follow from it are counted, too.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        self.0.as_ref().map(|charged| match charged {
            ChargedTo::Uncounted(owner) => &**owner,
            ChargedTo::Counted(counted) => &*counted.owner,
        })
    }

    /// The number of counted bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Some(ChargedTo::Counted(counted)) => counted.bytes,
            Some(ChargedTo::Uncounted(_)) | None => 0,
        }
    }
}

impl PartialEq for Charge {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        let mut held = self.shares.lock();
        held.change(&self.owner, self.bytes, 0);
        // An entry of zero bytes stays while its owner has another `CountedBytes`, which may be set to a
        // larger number later.
        if held.by_owner.get(&self.owner) == Some(&0) && Arc::strong_count(&self.owner) <= 2 {
            held.by_owner.remove(&self.owner);
        }
    }
}

/// Makes the allocator request large blocks from the system one by one, so that each is returned when it is freed. By
/// default it retains such blocks, up to 64 MB in each of its arenas, after the first large one was freed.
// jemalloc returns them by itself, but reserves memory that counts against a child's `RLIMIT_DATA`.
#[allow(unsafe_code, reason = "both calls set a numeric parameter and touch no memory in use")]
pub fn return_large_blocks_on_free() {
    #[cfg(target_env = "gnu")]
    for parameter in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        let _refused = unsafe { libc::mallopt(parameter, MAX_RETAINED_BLOCK_BYTES) };
    }
}

/// Returns free memory to the system. This takes milliseconds after much memory was freed.
#[allow(unsafe_code, reason = "the call takes a number and touches no memory in use")]
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
    fn an_owner_cannot_exceed_its_share() {
        let shares = Shares::new(100);
        let first = shares.hold("a", 60).unwrap();
        assert!(shares.hold("a", 41).is_err());
        let second = shares.hold("a", 40).unwrap();
        let other = shares.hold("b", 100).unwrap();
        assert!(shares.hold("b", 1).is_err());
        drop((first, other));
        assert!(shares.hold("a", 60).is_ok());
        drop(second);
        let large = shares.hold("a", 1000).unwrap();
        assert!(shares.hold("a", 1).is_err());
        drop(large);
        assert!(shares.lock().by_owner.is_empty());
        let mut held = shares.hold("a", 0).unwrap();
        assert!(held.has_room(1000));
        held.set(99);
        assert!(held.has_room(1) && !held.has_room(2) && shares.hold("a", 2).is_err());
        let more = shares.hold("a", 1).unwrap();
        held.set(0);
        drop(more);
        held.set(5);
        assert!(held.has_room(95) && !held.has_room(96));
        drop(held);
        assert!(shares.lock().by_owner.is_empty());
        let mut strict = shares.hold("a", 0).unwrap();
        assert_eq!(strict.try_set(101), Err(NoRoom::Share));
        strict.try_set(100).unwrap();
        strict.try_set(40).unwrap();
        let other = shares.hold("a", 60).unwrap();
        assert_eq!(strict.try_set(41), Err(NoRoom::Share));
        drop(other);
        strict.try_set(41).unwrap();
        drop(strict);
        assert!(shares.lock().by_owner.is_empty());
    }

    #[test]
    fn all_owners_together_cannot_exceed_the_total() {
        let shares = Shares::new(100);
        shares.total.store(150, Relaxed);
        let mut first = shares.hold("a", 100).unwrap();
        assert_eq!(shares.hold("a", 1).unwrap_err(), NoRoom::Share);
        assert_eq!(shares.hold("b", 51).unwrap_err(), NoRoom::Budget);
        let second = shares.hold("b", 50).unwrap();
        assert!(!second.has_room(1));
        first.set(10);
        assert!(second.has_room(50) && !second.has_room(51));
        drop((first, second));
        assert_eq!(shares.lock().total, 0);
        // Alone, a message longer than the total passes once, as it does for a share.
        drop(shares.hold("a", 1000).unwrap());
    }
}
