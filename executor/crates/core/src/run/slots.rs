//! Admission to execution: intents run, wait, or are refused for lack of capacity.
//!
//! ```text
//! reserve(agent) ─▶ Place: the intent waits or runs ─ acquire_slot() ─▶ ExecutionSlot: a guest may run
//!        └─▶ CapacityError: the executor closes, the queue is full, or the agent's share of the queue is full
//! ```
//! An agent that exceeds its share delays only itself: at most as many of its waiters are eligible for a slot as its
//! share has free slots. Among the waiters of one agent, and among all agents with eligible waiters, the higher
//! priority goes first, and within one priority the earlier arrival. A priority gives no agent more slots than its
//! share.
//!
//! No waiter starves: after [`MAX_OVERTAKES`] slots given to a higher priority ahead of an earlier arrival, one slot
//! goes to the earliest arrival of all.
// The queue uses no semaphore, because a semaphore serves its waiters only in the order of arrival.

use a2g_types::call::Priority;
use a2g_types::ident::AgentDid;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use strum::VariantArray as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

/// The maximum number of slots given to a higher priority ahead of an earlier arrival before one goes to the earliest
/// arrival.
const MAX_OVERTAKES: u32 = 8;

/// The limits on running and waiting executions.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// The maximum number of running executions.
    pub concurrent: usize,
    /// The maximum number of running executions of one agent.
    pub concurrent_per_agent: usize,
    /// The maximum number of waiting executions.
    pub queue: usize,
    /// The maximum number of waiting executions of one agent.
    pub queue_per_agent: usize,
}

/// The reason why no place is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CapacityError {
    /// The executor accepts no more calls.
    Closing,
    /// The queue is full.
    QueueFull,
    /// The agent's share of the queue is full.
    AgentQueueFull,
}

/// All places and slots.
#[derive(Debug)]
pub(super) struct Slots {
    capacity: Capacity,
    queue: Mutex<SlotQueue>,
    /// The number of places in use.
    places: watch::Sender<usize>,
    /// The number of nested runs that use the slot of their parent.
    lent: AtomicUsize,
    closing: watch::Sender<bool>,
}

/// The free slots, and the running and waiting intents of each agent.
#[derive(Debug)]
struct SlotQueue {
    /// The number of free slots.
    free: usize,
    /// The number of slots given to a higher priority ahead of an earlier arrival. Reset when [`MAX_OVERTAKES`] gives a
    /// slot to the earliest arrival.
    overtakes: u32,
    /// A logical clock, incremented at every arrival and at every adjustment of an agent's eligible waiters.
    now: u64,
    agents: HashMap<AgentDid, AgentShare>,
}

/// The places, slots and waiters of one agent.
#[derive(Debug, Default)]
struct AgentShare {
    places: usize,
    running: usize,
    /// The waiters by priority, in order of arrival.
    waiting: [VecDeque<Waiter>; Priority::VARIANTS.len()],
    /// The logical times at which waiters became eligible for a slot: one for each waiter, up to the number of free
    /// slots in the share.
    eligible_since: VecDeque<u64>,
}

#[derive(Debug)]
struct Waiter {
    arrival: u64,
    slot_tx: oneshot::Sender<ExecutionSlot>,
}

/// The place of one intent that waits or runs.
#[derive(Debug)]
pub(super) struct Place {
    slots: Arc<Slots>,
    agent: AgentDid,
}

/// The right of one guest to run.
#[derive(Debug)]
pub(super) struct ExecutionSlot {
    slots: Arc<Slots>,
    agent: AgentDid,
}

/// The slot of a run: its own, or its parent's.
#[derive(Debug)]
#[allow(dead_code, reason = "the values are held until they are dropped")]
pub(super) enum RunSlot {
    Own(ExecutionSlot),
    Lent(OwnedSemaphorePermit, LentRun),
}

/// Counts a run that uses its parent's slot, for [`Slots::queue_stats`].
#[derive(Debug)]
pub(super) struct LentRun(Arc<Slots>);

impl LentRun {
    fn begin(slots: &Arc<Slots>) -> Self {
        slots.lent.fetch_add(1, Relaxed);
        Self(Arc::clone(slots))
    }
}

impl Drop for LentRun {
    fn drop(&mut self) {
        self.0.lent.fetch_sub(1, Relaxed);
    }
}

/// Removes its waiter from the queue on drop.
struct WaitGuard<'a> {
    place: &'a Place,
    arrival: u64,
    priority: Priority,
}

impl Slots {
    pub(super) fn new(capacity: Capacity) -> Self {
        let queue = SlotQueue { free: capacity.concurrent, overtakes: 0, now: 0, agents: HashMap::new() };
        Self {
            capacity,
            queue: Mutex::new(queue),
            places: watch::channel(0).0,
            lent: AtomicUsize::new(0),
            closing: watch::channel(false).0,
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotQueue> {
        self.queue.lock()
    }

    /// Reserves a queue place for an intent of an agent.
    pub(super) fn reserve(self: &Arc<Self>, agent: &AgentDid) -> Result<Place, CapacityError> {
        let Capacity { concurrent, concurrent_per_agent, queue: max_queue, queue_per_agent } = self.capacity;
        let (place, places, places_of_agent) = self.take_place(agent);
        // Checked after the count, so that either `wait_until_idle` counts this place or this call sees `close`.
        if *self.closing.borrow() {
            return Err(CapacityError::Closing);
        }
        if places >= concurrent.saturating_add(max_queue) {
            return Err(CapacityError::QueueFull);
        }
        if places_of_agent >= concurrent_per_agent.saturating_add(queue_per_agent) {
            return Err(CapacityError::AgentQueueFull);
        }
        Ok(place)
    }

    /// Reserves a place for a nested call, even if the queue is full or the executor is closing: the parent may not be
    /// able to end before the call does.
    pub(super) fn reserve_nested(self: &Arc<Self>, agent: &AgentDid) -> Place {
        self.take_place(agent).0
    }

    /// Takes a place. Returns it with the numbers of places that were taken before, by all agents and by this agent.
    fn take_place(self: &Arc<Self>, agent: &AgentDid) -> (Place, usize, usize) {
        let mut queue = self.lock();
        let share = queue.agents.entry(agent.clone()).or_default();
        let places_of_agent = share.places;
        share.places += 1;
        let place = Place { slots: Arc::clone(self), agent: agent.clone() };
        drop(queue);
        let mut places = 0;
        self.places.send_modify(|count| {
            places = *count;
            *count += 1;
        });
        (place, places, places_of_agent)
    }

    /// The numbers of executions that run and that wait for a slot.
    pub(super) fn queue_stats(&self) -> (usize, usize) {
        let running = self.capacity.concurrent.saturating_sub(self.lock().free) + self.lent.load(Relaxed);
        (running, self.places.borrow().saturating_sub(running))
    }

    /// Stops reserving places.
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Returns `true` once [`Self::close`] was called.
    pub(super) fn is_closed(&self) -> bool {
        *self.closing.borrow()
    }

    /// Waits until [`Self::close`] is called.
    pub(super) async fn wait_until_closed(&self) {
        // The guard that `wait_for` returns locks the channel, and would block `close`.
        drop(self.closing.subscribe().wait_for(|closing| *closing).await);
    }

    /// Waits until every place has been returned.
    pub(super) async fn wait_until_idle(&self) {
        // As above: the guard would block `reserve`.
        drop(self.places.subscribe().wait_for(|places| *places == 0).await);
    }

    /// Changes the queue, and assigns the free slots.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut SlotQueue) -> T) -> T {
        let mut queue = self.lock();
        let result = change(&mut queue);
        let mut assignments = Vec::new();
        while let Some((agent, waiter)) = queue.pop_next(self.capacity.concurrent_per_agent) {
            assignments.push((waiter, ExecutionSlot { slots: Arc::clone(self), agent }));
        }
        // If a waiter is gone, its slot is dropped here, and `ExecutionSlot::drop` takes the lock.
        drop(queue);
        for (waiter, slot) in assignments {
            drop(waiter.slot_tx.send(slot));
        }
        result
    }
}

impl SlotQueue {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Removes the next waiter that may run, and takes a slot for it.
    fn pop_next(&mut self, max_running: usize) -> Option<(AgentDid, Waiter)> {
        if self.free == 0 {
            return None;
        }
        let eligible = || self.agents.iter().filter(|(_, share)| !share.eligible_since.is_empty());
        let by_arrival = eligible().min_by_key(|(_, share)| share.earliest_arrival())?;
        let by_priority = eligible().min_by_key(|(_, share)| {
            // Agents of one priority are ordered by the later of two times: when the agent's first waiter of that
            // priority arrived, and when the agent's waiter that has been eligible for longest became eligible. For
            // an agent that was just served, the second time is recent, so the agent goes behind the others.
            let (highest, arrival) = share.highest_waiting().unzip();
            (std::cmp::Reverse(highest), share.eligible_since.front().copied().max(arrival))
        })?;
        let is_overtaking =
            by_priority.1.highest_waiting().map(|(highest, _)| highest) > by_arrival.1.earliest_priority();
        let is_by_arrival = is_overtaking && self.overtakes >= MAX_OVERTAKES;
        let (agent, priority) = if is_by_arrival {
            (by_arrival.0.clone(), by_arrival.1.earliest_priority()?)
        } else {
            (by_priority.0.clone(), by_priority.1.highest_waiting()?.0)
        };
        self.overtakes = match (is_overtaking, is_by_arrival) {
            (true, false) => self.overtakes + 1,
            (true, true) => 0,
            (false, _) => self.overtakes,
        };
        let share = self.agents.get_mut(&agent)?;
        let waiter = share.waiters_mut(priority)?.pop_front()?;
        share.eligible_since.pop_front();
        share.running += 1;
        self.free -= 1;
        self.adjust_eligible(&agent, max_running);
        Some((agent, waiter))
    }

    /// Adjusts the number of an agent's eligible waiters to its waiters and the free slots of its share.
    fn adjust_eligible(&mut self, agent: &AgentDid, max_running: usize) {
        let now = self.tick();
        let Some(share) = self.agents.get_mut(agent) else { return };
        let waiting: usize = share.waiting.iter().map(VecDeque::len).sum();
        share.eligible_since.resize(waiting.min(max_running.saturating_sub(share.running)), now);
    }

    /// Removes an agent that has neither places nor slots.
    fn remove_if_unused(&mut self, agent: &AgentDid) {
        if self.agents.get(agent).is_some_and(|share| share.places == 0 && share.running == 0) {
            self.agents.remove(agent);
        }
    }
}

impl AgentShare {
    fn waiters_mut(&mut self, priority: Priority) -> Option<&mut VecDeque<Waiter>> {
        self.waiting.get_mut(priority as usize)
    }

    /// The arrival of the first waiter of each priority, in ascending order of priority.
    fn fronts(&self) -> impl DoubleEndedIterator<Item = (Priority, u64)> {
        let fronts = Priority::VARIANTS.iter().copied().zip(&self.waiting);
        fronts.filter_map(|(priority, waiting)| Some((priority, waiting.front()?.arrival)))
    }

    /// The highest priority of all waiters, and the arrival of its first waiter.
    fn highest_waiting(&self) -> Option<(Priority, u64)> {
        self.fronts().next_back()
    }

    /// The priority of the earliest arrival.
    fn earliest_priority(&self) -> Option<Priority> {
        self.fronts().min_by_key(|(_, arrival)| *arrival).map(|(priority, _)| priority)
    }

    /// The earliest arrival.
    fn earliest_arrival(&self) -> Option<u64> {
        self.fronts().map(|(_, arrival)| arrival).min()
    }
}

impl Place {
    /// Waits until the agent's share and the executor have a free slot and no other waiter goes first.
    pub(super) async fn acquire_slot(&self, priority: Priority) -> Option<ExecutionSlot> {
        let (slot_tx, slot) = oneshot::channel();
        let max_running = self.slots.capacity.concurrent_per_agent;
        let arrival = self.slots.change(|queue| {
            let arrival = queue.tick();
            let share = queue.agents.entry(self.agent.clone()).or_default();
            if let Some(waiting) = share.waiters_mut(priority) {
                waiting.push_back(Waiter { arrival, slot_tx });
            }
            queue.adjust_eligible(&self.agent, max_running);
            arrival
        });
        let _guard = WaitGuard { place: self, arrival, priority };
        slot.await.ok()
    }
}

impl Place {
    /// Like [`Self::acquire_slot`], or takes `lent`, the slot of a nested call's parent, if that is free first.
    pub(super) async fn acquire_slot_or(
        &self,
        priority: Priority,
        lent: Option<Arc<Semaphore>>,
    ) -> Option<RunSlot> {
        let Some(lent) = lent else { return self.acquire_slot(priority).await.map(RunSlot::Own) };
        tokio::select! {
            biased;
            lent = lent.acquire_owned() => {
                lent.ok().map(|permit| RunSlot::Lent(permit, LentRun::begin(&self.slots)))
            }
            slot = self.acquire_slot(priority) => slot.map(RunSlot::Own),
        }
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let Self { place: Place { slots, agent }, arrival, priority } = self;
        let mut queue = slots.lock();
        let waiting = queue.agents.get_mut(agent).and_then(|share| share.waiters_mut(*priority));
        if let Some(waiting) = waiting
            && let Ok(at) = waiting.binary_search_by_key(arrival, |waiter| waiter.arrival)
        {
            waiting.remove(at);
            queue.adjust_eligible(agent, slots.capacity.concurrent_per_agent);
        }
    }
}

impl Drop for ExecutionSlot {
    fn drop(&mut self) {
        self.slots.change(|queue| {
            queue.free += 1;
            if let Some(share) = queue.agents.get_mut(&self.agent) {
                share.running = share.running.saturating_sub(1);
            }
            queue.adjust_eligible(&self.agent, self.slots.capacity.concurrent_per_agent);
            queue.remove_if_unused(&self.agent);
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queue = self.slots.lock();
        if let Some(share) = queue.agents.get_mut(&self.agent) {
            share.places = share.places.saturating_sub(1);
        }
        queue.remove_if_unused(&self.agent);
        drop(queue);
        self.slots.places.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    fn slots(
        concurrent: usize,
        concurrent_per_agent: usize,
        queue: usize,
        queue_per_agent: usize,
    ) -> Arc<Slots> {
        Arc::new(Slots::new(Capacity { concurrent, concurrent_per_agent, queue, queue_per_agent }))
    }

    fn agent(name: &str) -> AgentDid {
        AgentDid::parse(&format!("did:a:{name}")).unwrap()
    }

    #[test]
    fn an_agent_fills_only_its_share_of_the_queue() {
        let slots = slots(2, 1, 4, 2);
        let (greedy, other) = (agent("greedy"), agent("other"));
        let places = [0; 3].map(|_| slots.reserve(&greedy).unwrap());
        assert_eq!(slots.reserve(&greedy).unwrap_err(), CapacityError::AgentQueueFull);
        let others = [0; 3].map(|_| slots.reserve(&other).unwrap());
        assert_eq!(slots.reserve(&agent("third")).unwrap_err(), CapacityError::QueueFull);
        assert_eq!(*slots.places.borrow(), 6, "a refused intent takes no place");
        drop((places, others));
        assert_eq!((slots.queue_stats(), slots.lock().agents.len()), ((0, 0), 0));
    }

    #[test]
    fn an_agent_that_exceeds_its_share_delays_only_itself() {
        let slots = slots(2, 1, 8, 8);
        let (greedy, other) = (agent("greedy"), agent("other"));
        let places = [0; 3].map(|_| slots.reserve(&greedy).unwrap());
        let running = places[0].acquire_slot(Priority::Normal).now_or_never().unwrap().unwrap();
        assert!(places[1].acquire_slot(Priority::Normal).now_or_never().is_none());
        let place = slots.reserve(&other).unwrap();
        let slot = place.acquire_slot(Priority::Normal).now_or_never().unwrap();
        assert!(slot.is_some() && slots.queue_stats() == (2, 2));
        drop(running);
        assert!(places[1].acquire_slot(Priority::Normal).now_or_never().is_some());
    }

    #[test]
    fn no_place_is_reserved_after_close() {
        let slots = slots(1, 1, 1, 1);
        let last = slots.reserve(&agent("a")).unwrap();
        slots.close();
        assert_eq!(slots.reserve(&agent("b")).unwrap_err(), CapacityError::Closing);
        assert!(
            slots.wait_until_closed().now_or_never().is_some()
                && slots.wait_until_idle().now_or_never().is_none()
        );
        drop(last);
        assert!(slots.wait_until_idle().now_or_never().is_some());
    }

    /// Runs all waiters one after another. Returns their names in that order.
    fn serving_order(per_agent: usize, waiting: &[(&str, &str, Priority)]) -> Vec<String> {
        let all = slots(1, per_agent, 100, 100);
        let first = all.reserve(&agent("first")).unwrap();
        let running = first.acquire_slot(Priority::Low).now_or_never().unwrap().unwrap();
        let places = waiting.iter().map(|(name, ..)| all.reserve(&agent(name)).unwrap()).collect::<Vec<_>>();
        let mut waits = places
            .iter()
            .zip(waiting)
            .map(|(place, (_, name, priority))| (*name, Box::pin(place.acquire_slot(*priority))))
            .collect::<Vec<_>>();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        for (_, wait) in &mut waits {
            assert!(wait.as_mut().poll(&mut context).is_pending());
        }
        let mut last = Some(running);
        let mut order = Vec::new();
        while !waits.is_empty() {
            drop(last.take());
            let ready = waits.iter_mut().enumerate().find_map(|(at, (name, wait))| {
                match wait.as_mut().poll(&mut context) {
                    std::task::Poll::Ready(slot) => Some((at, (*name).to_owned(), slot.unwrap())),
                    std::task::Poll::Pending => None,
                }
            });
            let (at, name, slot) = ready.expect("a waiter gets the slot");
            drop(waits.remove(at));
            order.push(name);
            last = Some(slot);
        }
        order
    }

    #[test]
    fn the_higher_priority_goes_first_then_the_earlier_arrival() {
        let waiting = vec![
            ("a", "low", Priority::Low),
            ("a", "normal 1", Priority::Normal),
            ("b", "normal 2", Priority::Normal),
            ("a", "high", Priority::High),
            ("b", "critical", Priority::Critical),
            ("c", "normal 3", Priority::Normal),
        ];
        assert_eq!(
            serving_order(8, &waiting),
            ["critical", "high", "normal 1", "normal 2", "normal 3", "low"]
        );
        // With one slot for each agent, a second waiter of an agent goes behind the other agents.
        assert_eq!(
            serving_order(1, &waiting),
            ["critical", "high", "normal 3", "normal 2", "normal 1", "low"]
        );
    }

    #[test]
    fn no_waiter_starves() {
        let mut waiting = vec![("a", "low 1", Priority::Low), ("b", "low 2", Priority::Low)];
        waiting.extend((0..40).map(|_| ("c", "critical", Priority::Critical)));
        let order = serving_order(1, &waiting);
        let low = |name: &str| order.iter().position(|served| served == name).unwrap();
        let overtakes = usize::try_from(MAX_OVERTAKES).unwrap();
        assert_eq!((low("low 1"), low("low 2")), (overtakes, 2 * overtakes + 1), "{order:?}");
    }

    #[test]
    fn a_priority_does_not_exceed_the_share() {
        let slots = slots(2, 1, 8, 8);
        let (greedy, other) = (agent("greedy"), agent("other"));
        let places = [0; 3].map(|_| slots.reserve(&greedy).unwrap());
        let _running = places[0].acquire_slot(Priority::Critical).now_or_never().unwrap().unwrap();
        let mut waits = Box::pin(places[1].acquire_slot(Priority::Critical));
        assert!((&mut waits).now_or_never().is_none(), "the free slot is not in this agent's share");
        let place = slots.reserve(&other).unwrap();
        assert!(place.acquire_slot(Priority::Low).now_or_never().is_some());
    }

    #[test]
    fn a_cancelled_waiter_returns_its_slot() {
        let slots = slots(1, 1, 8, 8);
        let place = slots.reserve(&agent("a")).unwrap();
        let running = place.acquire_slot(Priority::Normal).now_or_never().unwrap().unwrap();
        let others = [0; 3].map(|_| slots.reserve(&agent("b")).unwrap());
        let mut wait = Box::pin(others[0].acquire_slot(Priority::Normal));
        assert!((&mut wait).now_or_never().is_none());
        assert!(
            others[1].acquire_slot(Priority::High).now_or_never().is_none(),
            "the waiter waits, and is dropped immediately"
        );
        drop(running);
        // It got a slot that it never takes.
        drop(wait);
        assert!(others[2].acquire_slot(Priority::Low).now_or_never().flatten().is_some());
        drop((others, place));
        assert_eq!((slots.queue_stats(), slots.lock().agents.len()), ((0, 0), 0));
        assert_eq!(slots.lock().free, 1);
    }
}
