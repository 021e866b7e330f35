//! Admission to execution: intents run, wait, or are refused for lack of capacity.
//!
//! ```text
//! reserve(agent) ─▶ Place: the intent waits or runs ─ acquire_slot() ─▶ ExecutionSlot: a guest may run
//!        └─▶ CapacityError: the executor closes, the queue is full, or the agent's share of the queue is full
//!            (in a fleet, reserve_within() waits a little for a place that another node frees)
//!
//! In a fleet:  waiter with an Offer ─ pass_on() ─▶ another node, which has taken an IdleSlot, runs the call
//!              KeptSlot: the next slot that is returned is for a call of a higher priority at another node
//! ```
//! An agent that exceeds its share delays only itself: at most as many of its waiters are eligible for a slot as its
//! share has free slots. Among the waiters of one agent, and among all agents with eligible waiters, the higher
//! priority goes first, and within one priority the earlier arrival. A priority gives no agent more slots than its
//! share.
//!
//! No waiter for a slot starves: after [`MAX_OVERTAKES`] slots given to a higher priority ahead of an earlier arrival, one
//! slot goes to the earliest arrival of all. A waiter whose tool this executor lacks has a place, and gets no slot.
// The queue uses no semaphore, because a semaphore serves its waiters only in the order of arrival.

use a2g_types::call::Priority;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::node::{CallMessage, NodeName};
use a2g_types::tool::Digest;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use strum::VariantArray as _;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};

/// The maximum number of slots given to a higher priority ahead of an earlier arrival before one goes to the earliest
/// arrival.
const MAX_OVERTAKES: u32 = 8;

/// The maximum number of intents that wait for a place in a full queue.
const MAX_WAITING_FOR_PLACES: usize = 64;

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
    /// The number of places whose calls other nodes have.
    passed_on: AtomicUsize,
    /// The number of nested runs that use the slot of their parent.
    lent: AtomicUsize,
    closing: watch::Sender<bool>,
    /// Notified when a run returns its slot.
    slot_returned: Notify,
    /// Notified when a place is dropped, or its call is passed on to another node.
    place_freed: Notify,
    /// One permit for each intent that may wait for a place in a full queue.
    place_waiters: Semaphore,
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
    /// The waiters whose tool this executor lacks: they get no slot, and another node may run them.
    only_elsewhere: Vec<(AgentDid, Priority, Waiter)>,
    /// The priority of the call at another node for which the next returned slot is kept.
    kept_for: Option<Priority>,
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
    turn_tx: oneshot::Sender<SlotTurn>,
    offer: Option<Offer>,
}

/// The tool, and the module of it, that a node needs to run a waiting call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) tool: ToolName,
    /// `None` if this executor lacks the tool: any module is accepted.
    pub(super) module: Option<Digest>,
    /// The nodes that have taken the call and have not run it, and until when they do not get it again.
    pub(super) returned_by: Vec<(NodeName, Instant)>,
}

/// The request of another node for a waiting call, through which the call is sent.
#[derive(Debug)]
pub(super) struct PassOnRequest {
    /// The other node.
    pub(super) node: NodeName,
    pub(super) call: oneshot::Sender<CallMessage>,
}

/// The end of a wait for a slot.
#[derive(Debug)]
pub(super) enum SlotTurn {
    /// The guest may run here.
    Run(RunSlot),
    /// Another node runs the call.
    PassOn(PassOnRequest),
}

/// The place of one intent that waits or runs.
#[derive(Debug)]
pub(super) struct Place {
    slots: Arc<Slots>,
    agent: AgentDid,
    /// `false` until the limits were checked: the end of such a place frees nothing that a waiter could get.
    is_reserved: bool,
    /// `true` while another node has the call: the place does not count against the limits of the queue.
    is_passed_on: bool,
    /// The arrival of the intent in the queue; 0 before. It keeps its turn among the intents of its agent if it waits
    /// again.
    arrival: AtomicU64,
}

/// A slot that is kept for a call of another node. It is free again when it is dropped without [`Self::assign`].
#[derive(Debug)]
pub(super) struct IdleSlot {
    slots: Arc<Slots>,
    /// The highest priority of the waiters here that could have had the slot; `None` if there were none.
    above: Option<Priority>,
    is_assigned: bool,
}

/// Keeps the next returned slot for a call that waits at another node, if its priority is higher than that of every
/// waiter here that could get the slot. The slot goes to the waiters here once this value is dropped.
#[derive(Debug)]
pub(super) struct KeptSlot(Arc<Slots>);

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
        let queue = SlotQueue {
            free: capacity.concurrent,
            overtakes: 0,
            now: 0,
            agents: HashMap::new(),
            only_elsewhere: Vec::new(),
            kept_for: None,
        };
        Self {
            capacity,
            queue: Mutex::new(queue),
            places: watch::channel(0).0,
            passed_on: AtomicUsize::new(0),
            lent: AtomicUsize::new(0),
            closing: watch::channel(false).0,
            slot_returned: Notify::new(),
            place_freed: Notify::new(),
            place_waiters: Semaphore::new(MAX_WAITING_FOR_PLACES),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotQueue> {
        self.queue.lock()
    }

    /// Reserves a queue place for an intent of an agent.
    pub(super) fn reserve(self: &Arc<Self>, agent: &AgentDid) -> Result<Place, CapacityError> {
        let Capacity { concurrent, concurrent_per_agent, queue: max_queue, queue_per_agent } = self.capacity;
        let (mut place, places, places_of_agent) = self.take_place(agent);
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
        place.is_reserved = true;
        Ok(place)
    }

    /// As [`Self::reserve`]. If the queue is full, waits for a place for at most `timeout`, unless
    /// [`MAX_WAITING_FOR_PLACES`] intents do so.
    pub(super) async fn reserve_within(
        self: &Arc<Self>,
        agent: &AgentDid,
        timeout: Duration,
    ) -> Result<Place, CapacityError> {
        let refused = match self.reserve(agent) {
            Ok(place) => return Ok(place),
            Err(CapacityError::Closing) => return Err(CapacityError::Closing),
            Err(refused @ (CapacityError::QueueFull | CapacityError::AgentQueueFull)) => refused,
        };
        let Ok(_wait) = self.place_waiters.try_acquire() else { return Err(refused) };
        let reserve = async {
            loop {
                // Created before the attempt, so that no place that is freed in between is missed.
                let freed = self.place_freed.notified();
                match self.reserve(agent) {
                    Err(CapacityError::QueueFull | CapacityError::AgentQueueFull) => freed.await,
                    result => return result,
                }
            }
        };
        tokio::time::timeout(timeout, reserve).await.unwrap_or(Err(refused))
    }

    /// Reserves a place for a nested call, even if the queue is full or the executor is closing: the parent may not be
    /// able to end before the call does.
    pub(super) fn reserve_nested(self: &Arc<Self>, agent: &AgentDid) -> Place {
        let mut place = self.take_place(agent).0;
        place.is_reserved = true;
        place
    }

    /// Takes a place. Returns it with the numbers of places that were taken before, by all agents and by this agent.
    fn take_place(self: &Arc<Self>, agent: &AgentDid) -> (Place, usize, usize) {
        let mut queue = self.lock();
        let share = queue.agents.entry(agent.clone()).or_default();
        let places_of_agent = share.places;
        share.places += 1;
        let place = Place {
            slots: Arc::clone(self),
            agent: agent.clone(),
            is_reserved: false,
            is_passed_on: false,
            arrival: AtomicU64::new(0),
        };
        drop(queue);
        let mut places = 0;
        self.places.send_modify(|count| {
            places = *count;
            *count += 1;
        });
        (place, places.saturating_sub(self.passed_on.load(Relaxed)), places_of_agent)
    }

    /// The numbers of executions that run and that wait for a slot.
    pub(super) fn queue_stats(&self) -> (usize, usize) {
        let running = self.capacity.concurrent.saturating_sub(self.lock().free) + self.lent.load(Relaxed);
        (running, self.places.borrow().saturating_sub(running + self.passed_on.load(Relaxed)))
    }

    /// Returns `true` if a call of an agent would get a slot at once.
    pub(super) fn has_free(&self, agent: &AgentDid) -> bool {
        let queue = self.lock();
        let running = queue.agents.get(agent).map_or(0, |share| share.running);
        queue.free > 0 && running < self.capacity.concurrent_per_agent && !self.is_closed()
    }

    /// Takes a slot for a call of another node: one that no waiter of this executor may use, or one that was kept. More
    /// slots are kept only after the next [`KeptSlot::keep_for`].
    pub(super) fn take_idle(self: &Arc<Self>) -> Option<IdleSlot> {
        if self.is_closed() {
            return None;
        }
        let above = self.change(|queue| {
            queue.free = queue.free.checked_sub(1)?;
            queue.kept_for = None;
            Some(queue.eligible().filter_map(|(_, share)| Some(share.highest_waiting()?.0)).max())
        })?;
        Some(IdleSlot { slots: Arc::clone(self), above, is_assigned: false })
    }

    /// Waits until a run has returned its slot, which a waiter of this executor may have got.
    pub(super) async fn wait_for_returned_slot(&self) {
        self.slot_returned.notified().await;
    }

    /// The agents whose share has no free slot.
    pub(super) fn full_agents(&self) -> Vec<AgentDid> {
        let queue = self.lock();
        let full =
            queue.agents.iter().filter(|(_, share)| share.running >= self.capacity.concurrent_per_agent);
        full.map(|(agent, _)| agent.clone()).collect()
    }

    /// The highest priority of the waiters that another node may run; `None` if there are none.
    pub(super) fn highest_offer(&self) -> Option<Priority> {
        let queue = self.lock();
        let offered = queue.waiters().filter(|(_, _, waiter)| waiter.offer.is_some());
        offered.map(|(_, priority, _)| priority).max()
    }

    /// Passes on the earliest waiter of the highest priority, among the waiters whose agent, priority and offer are
    /// accepted. Returns `None` if there is none. The call arrives through the receiver, unless the waiter is gone.
    pub(super) fn pass_on(
        &self,
        node: &NodeName,
        now: Instant,
        is_accepted: impl Fn(&AgentDid, Priority, &Offer) -> bool,
    ) -> Option<oneshot::Receiver<CallMessage>> {
        let mut queue = self.lock();
        let accepted = queue.waiters().filter(|(agent, priority, waiter)| {
            let may_get =
                |offer: &&Offer| offer.returned_by.iter().all(|(by, until)| by != node || *until <= now);
            let offer = waiter.offer.as_ref().filter(may_get);
            offer.is_some_and(|offer| is_accepted(agent, *priority, offer))
        });
        let (agent, priority, waiter) =
            accepted.max_by_key(|(_, priority, waiter)| (*priority, std::cmp::Reverse(waiter.arrival)))?;
        let agent = agent.clone();
        let arrival = waiter.arrival;
        let waiter = queue.remove_waiter(&agent, priority, arrival, self.capacity.concurrent_per_agent)?;
        drop(queue);
        let (call_tx, call) = oneshot::channel();
        let request = PassOnRequest { node: node.clone(), call: call_tx };
        waiter.turn_tx.send(SlotTurn::PassOn(request)).ok()?;
        Some(call)
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
            drop(waiter.turn_tx.send(SlotTurn::Run(RunSlot::Own(slot))));
        }
        result
    }
}

impl SlotQueue {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// All waiters, with their agents and priorities.
    fn waiters(&self) -> impl Iterator<Item = (&AgentDid, Priority, &Waiter)> {
        let here = self.agents.iter().flat_map(|(agent, share)| {
            let by_priority = Priority::VARIANTS.iter().copied().zip(&share.waiting);
            by_priority.flat_map(move |(priority, waiting)| {
                waiting.iter().map(move |waiter| (agent, priority, waiter))
            })
        });
        here.chain(self.only_elsewhere.iter().map(|(agent, priority, waiter)| (agent, *priority, waiter)))
    }

    /// The agents with waiters that may get the next slot.
    fn eligible(&self) -> impl Iterator<Item = (&AgentDid, &AgentShare)> {
        self.agents.iter().filter(|(_, share)| !share.eligible_since.is_empty())
    }

    /// Removes the next waiter that may run, and takes a slot for it. Returns `None` if there is none, or if the slot
    /// is kept for a call of another node.
    fn pop_next(&mut self, max_running: usize) -> Option<(AgentDid, Waiter)> {
        if self.free == 0 {
            return None;
        }
        let by_arrival = self.eligible().min_by_key(|(_, share)| share.earliest_arrival())?;
        let by_priority = self.eligible().min_by_key(|(_, share)| {
            // Agents of one priority are ordered by the later of two times: when the agent's first waiter of that
            // priority arrived, and when the agent's waiter that has been eligible for longest became eligible. For
            // an agent that was just served, the second time is recent, so the agent goes behind the others.
            let (highest, arrival) = share.highest_waiting().unzip();
            (std::cmp::Reverse(highest), share.eligible_since.front().copied().max(arrival))
        })?;
        let highest = by_priority.1.highest_waiting().map(|(highest, _)| highest);
        let is_overtaking = highest.max(self.kept_for) > by_arrival.1.earliest_priority();
        let is_by_arrival = is_overtaking && self.overtakes >= MAX_OVERTAKES;
        if self.kept_for > highest && !is_by_arrival {
            return None;
        }
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

    /// Inserts a waiter by its arrival.
    fn insert_waiter(&mut self, agent: &AgentDid, priority: Priority, waiter: Waiter, max_running: usize) {
        let share = self.agents.entry(agent.clone()).or_default();
        if let Some(waiting) = share.waiters_mut(priority) {
            let position = waiting.partition_point(|other| other.arrival < waiter.arrival);
            waiting.insert(position, waiter);
        }
        self.adjust_eligible(agent, max_running);
    }

    /// Removes a waiter from the queue.
    fn remove_waiter(
        &mut self,
        agent: &AgentDid,
        priority: Priority,
        arrival: u64,
        max_running: usize,
    ) -> Option<Waiter> {
        if let Some(at) = self.only_elsewhere.iter().position(|(_, _, waiter)| waiter.arrival == arrival) {
            return Some(self.only_elsewhere.swap_remove(at).2);
        }
        let waiting = self.agents.get_mut(agent)?.waiters_mut(priority)?;
        let at = waiting.binary_search_by_key(&arrival, |waiter| waiter.arrival).ok()?;
        let waiter = waiting.remove(at);
        self.adjust_eligible(agent, max_running);
        waiter
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
    /// Waits until the agent's share and the executor have a free slot and no other waiter goes first, or until another
    /// node takes the call. If `offer` names no module, waits only for another node.
    pub(super) async fn wait_for_turn(&self, priority: Priority, offer: Option<Offer>) -> Option<SlotTurn> {
        let (turn_tx, turn) = oneshot::channel();
        let may_run_here = offer.as_ref().is_none_or(|offer| offer.module.is_some());
        let arrival = self.slots.change(|queue| {
            let arrival = match self.arrival.load(Relaxed) {
                0 => queue.tick(),
                earlier => earlier,
            };
            self.arrival.store(arrival, Relaxed);
            let waiter = Waiter { arrival, turn_tx, offer };
            if may_run_here {
                let max_running = self.slots.capacity.concurrent_per_agent;
                queue.insert_waiter(&self.agent, priority, waiter, max_running);
            } else {
                queue.only_elsewhere.push((self.agent.clone(), priority, waiter));
            }
            arrival
        });
        let _guard = WaitGuard { place: self, arrival, priority };
        turn.await.ok()
    }

    /// Waits for a slot: its own, or `lent`, the slot of a nested call's parent, if that is free first. If `offer` is
    /// given, another node may take the call instead.
    pub(super) async fn acquire_slot(
        &self,
        priority: Priority,
        lent: Option<Arc<Semaphore>>,
        offer: Option<Offer>,
    ) -> Option<SlotTurn> {
        let turn = self.wait_for_turn(priority, offer);
        let Some(lent) = lent else { return turn.await };
        tokio::select! {
            biased;
            lent = lent.acquire_owned() => {
                lent.ok().map(|permit| SlotTurn::Run(RunSlot::Lent(permit, LentRun::begin(&self.slots))))
            }
            turn = turn => turn,
        }
    }

    /// Frees the place in the queue while another node has the call, or takes it again. In both cases
    /// [`Slots::wait_until_idle`] waits until the place is dropped.
    pub(super) fn set_passed_on(&mut self, is_passed_on: bool) {
        if self.is_passed_on == is_passed_on {
            return;
        }
        self.is_passed_on = is_passed_on;
        let mut queue = self.slots.lock();
        let share = queue.agents.entry(self.agent.clone()).or_default();
        if is_passed_on {
            share.places = share.places.saturating_sub(1);
            queue.remove_if_unused(&self.agent);
            self.slots.passed_on.fetch_add(1, Relaxed);
            self.slots.place_freed.notify_waiters();
        } else {
            share.places += 1;
            self.slots.passed_on.fetch_sub(1, Relaxed);
        }
    }
}

impl KeptSlot {
    /// Keeps no slot yet.
    pub(super) fn new(slots: &Arc<Slots>) -> Self {
        Self(Arc::clone(slots))
    }

    /// Keeps the next returned slot for a call of this priority; with `None`, keeps none.
    pub(super) fn keep_for(&self, priority: Option<Priority>) {
        let Self(slots) = self;
        let is_closed = slots.is_closed();
        // A slot that is free now is idle and need not be kept. No event would wake `wait_for_returned_slot` for it.
        slots.change(|queue| queue.kept_for = priority.filter(|_| queue.free == 0 && !is_closed));
    }
}

impl Drop for KeptSlot {
    fn drop(&mut self) {
        self.keep_for(None);
    }
}

impl IdleSlot {
    /// The priority that a call for this slot has to exceed, because a waiter of that priority could have it.
    pub(super) fn above(&self) -> Option<Priority> {
        self.above
    }

    /// Gives the slot to a run of an agent. Returns `None` if the agent's share has no free slot any more.
    pub(super) fn assign(mut self, agent: &AgentDid) -> Option<RunSlot> {
        let mut queue = self.slots.lock();
        let max_running = self.slots.capacity.concurrent_per_agent;
        let share = queue.agents.entry(agent.clone()).or_default();
        if share.running >= max_running {
            return None;
        }
        share.running += 1;
        queue.adjust_eligible(agent, max_running);
        // `take_idle` does not count it: a slot for which no call came has overtaken nobody.
        queue.overtakes += u32::from(self.above.is_some());
        drop(queue);
        self.is_assigned = true;
        Some(RunSlot::Own(ExecutionSlot { slots: Arc::clone(&self.slots), agent: agent.clone() }))
    }
}

impl Drop for IdleSlot {
    fn drop(&mut self) {
        if !self.is_assigned {
            self.slots.change(|queue| {
                queue.free += 1;
                // This slot does not wake `wait_for_returned_slot`.
                queue.kept_for = None;
            });
        }
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let Self { place: Place { slots, agent, .. }, arrival, priority } = self;
        let _removed =
            slots.lock().remove_waiter(agent, *priority, *arrival, slots.capacity.concurrent_per_agent);
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
        self.slots.slot_returned.notify_one();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.set_passed_on(false);
        let mut queue = self.slots.lock();
        if let Some(share) = queue.agents.get_mut(&self.agent) {
            share.places = share.places.saturating_sub(1);
        }
        queue.remove_if_unused(&self.agent);
        drop(queue);
        self.slots.places.send_modify(|count| *count = count.saturating_sub(1));
        if self.is_reserved {
            self.slots.place_freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::clock::{Clock as _, SystemClock};
    use futures_util::FutureExt as _;

    fn slots(
        concurrent: usize,
        concurrent_per_agent: usize,
        queue: usize,
        queue_per_agent: usize,
    ) -> Arc<Slots> {
        Arc::new(Slots::new(Capacity { concurrent, concurrent_per_agent, queue, queue_per_agent }))
    }

    /// A time that no test reaches.
    fn later() -> Instant {
        SystemClock.monotonic() + std::time::Duration::from_secs(3600)
    }

    fn node(name: &str) -> NodeName {
        NodeName::try_from(name.to_owned()).unwrap()
    }

    fn agent(name: &str) -> AgentDid {
        AgentDid::parse(&format!("did:a:{name}")).unwrap()
    }

    #[test]
    fn an_agent_fills_only_its_share_of_the_queue() {
        let slots = slots(2, 1, 4, 2);
        let greedy = agent("greedy");
        let other = agent("other");
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
        let greedy = agent("greedy");
        let other = agent("other");
        let places = [0; 3].map(|_| slots.reserve(&greedy).unwrap());
        let running = places[0].acquire_slot(Priority::Normal, None, None).now_or_never().unwrap().unwrap();
        assert!(places[1].acquire_slot(Priority::Normal, None, None).now_or_never().is_none());
        let place = slots.reserve(&other).unwrap();
        let slot = place.acquire_slot(Priority::Normal, None, None).now_or_never().unwrap();
        assert!(slot.is_some() && slots.queue_stats() == (2, 2));
        drop(running);
        assert!(places[1].acquire_slot(Priority::Normal, None, None).now_or_never().is_some());
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
        let running = first.acquire_slot(Priority::Low, None, None).now_or_never().unwrap().unwrap();
        let places = waiting.iter().map(|(name, ..)| all.reserve(&agent(name)).unwrap()).collect::<Vec<_>>();
        let mut waits = places
            .iter()
            .zip(waiting)
            .map(|(place, (_, name, priority))| (*name, Box::pin(place.acquire_slot(*priority, None, None))))
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
        let greedy = agent("greedy");
        let other = agent("other");
        let places = [0; 3].map(|_| slots.reserve(&greedy).unwrap());
        let _running =
            places[0].acquire_slot(Priority::Critical, None, None).now_or_never().unwrap().unwrap();
        let mut waits = Box::pin(places[1].acquire_slot(Priority::Critical, None, None));
        assert!((&mut waits).now_or_never().is_none(), "the free slot is not in this agent's share");
        let place = slots.reserve(&other).unwrap();
        assert!(place.acquire_slot(Priority::Low, None, None).now_or_never().is_some());
    }

    #[test]
    fn a_cancelled_waiter_returns_its_slot() {
        let slots = slots(1, 1, 8, 8);
        let place = slots.reserve(&agent("a")).unwrap();
        let running = place.acquire_slot(Priority::Normal, None, None).now_or_never().unwrap().unwrap();
        let others = [0; 3].map(|_| slots.reserve(&agent("b")).unwrap());
        let mut wait = Box::pin(others[0].acquire_slot(Priority::Normal, None, None));
        assert!((&mut wait).now_or_never().is_none());
        assert!(
            others[1].acquire_slot(Priority::High, None, None).now_or_never().is_none(),
            "the waiter waits, and is dropped immediately"
        );
        drop(running);
        // It got a slot that it never takes.
        drop(wait);
        assert!(others[2].acquire_slot(Priority::Low, None, None).now_or_never().flatten().is_some());
        drop((others, place));
        assert_eq!((slots.queue_stats(), slots.lock().agents.len()), ((0, 0), 0));
        assert_eq!(slots.lock().free, 1);
    }

    /// Waits with an offer. Returns `true` if another node asked for the call and got `text`.
    async fn offered(place: Place, priority: Priority, text: &'static str) -> bool {
        let offer = Offer {
            tool: ToolName::parse("t").unwrap(),
            module: Some(Digest([0; 32])),
            returned_by: vec![(node("bad"), later())],
        };
        match place.acquire_slot(priority, None, Some(offer)).await {
            Some(SlotTurn::PassOn(request)) => {
                request.call.send(CallMessage { text: text.to_owned(), asked_governor: false }).is_ok()
            }
            Some(SlotTurn::Run(_)) | None => false,
        }
    }

    #[tokio::test]
    async fn a_waiter_without_its_tool_gets_no_slot() {
        let slots = slots(1, 1, 8, 8);
        let offer = Offer { tool: ToolName::parse("t").unwrap(), module: None, returned_by: Vec::new() };
        let [passed, dropped] = [(); 2].map(|()| slots.reserve(&agent("a")).unwrap());
        let mut passed = Box::pin(passed.wait_for_turn(Priority::Normal, Some(offer.clone())));
        let mut dropped = Box::pin(dropped.wait_for_turn(Priority::Low, Some(offer)));
        assert!((&mut passed).now_or_never().is_none() && (&mut dropped).now_or_never().is_none());
        assert_eq!(slots.lock().free, 1);
        assert_eq!(slots.highest_offer(), Some(Priority::Normal));
        let call = slots.pass_on(&node("b"), SystemClock.monotonic(), |_, _, offer| offer.module.is_none());
        let _call = call.unwrap();
        let turn = (&mut passed).now_or_never().unwrap();
        assert!(matches!(turn, Some(SlotTurn::PassOn(_))), "{turn:?}");
        assert_eq!(slots.highest_offer(), Some(Priority::Low));
        drop(dropped);
        assert_eq!(slots.highest_offer(), None);
    }

    #[tokio::test]
    async fn the_highest_priority_is_passed_on_first() {
        let slots = slots(1, 1, 8, 8);
        let place = slots.reserve(&agent("a")).unwrap();
        let running = place.acquire_slot(Priority::Low, None, None).now_or_never().unwrap().unwrap();
        let kept = slots.reserve(&agent("a")).unwrap();
        let mut kept = Box::pin(kept.acquire_slot(Priority::Critical, None, None));
        assert!((&mut kept).now_or_never().is_none(), "it waits, without an offer");
        let waiting = [
            ("b", Priority::Normal, "normal"),
            ("a", Priority::High, "high"),
            ("c", Priority::High, "later"),
            ("full", Priority::Critical, "full"),
        ];
        let waiting = waiting.map(|(name, priority, text)| {
            let place = slots.reserve(&agent(name)).unwrap();
            a2g_runtime::spawn::spawn_run_task(offered(place, priority, text))
        });
        tokio::task::yield_now().await;
        assert_eq!(slots.highest_offer(), Some(Priority::Critical));
        let now = SystemClock.monotonic();
        let is_accepted = |other: &AgentDid, _, _: &Offer| *other != agent("full");
        assert!(slots.pass_on(&node("good"), now, |_, priority, _| priority < Priority::Normal).is_none());
        for text in ["high", "later", "normal"] {
            assert!(slots.pass_on(&node("bad"), now, is_accepted).is_none());
            assert_eq!(slots.pass_on(&node("good"), now, is_accepted).unwrap().await.unwrap().text, text);
        }
        assert!(slots.pass_on(&node("good"), later(), is_accepted).is_none());
        assert_eq!(slots.queue_stats(), (1, 2));
        let [normal, high, later, full] = waiting;
        assert!(normal.await.unwrap() && high.await.unwrap() && later.await.unwrap());
        full.abort();
        drop(running);
        assert!(matches!(kept.await, Some(SlotTurn::Run(_))));
    }

    #[test]
    fn an_idle_slot_stays_within_the_share() {
        let slots = slots(3, 1, 8, 8);
        let idle = [(); 3].map(|()| slots.take_idle().unwrap());
        assert!(slots.take_idle().is_none() && slots.full_agents().is_empty());
        let [first, second, third] = idle;
        let running = first.assign(&agent("a")).unwrap();
        assert_eq!(slots.full_agents(), [agent("a")]);
        assert!(second.assign(&agent("a")).is_none(), "the share of the agent is full");
        let place = slots.reserve(&agent("b")).unwrap();
        assert!(
            place.acquire_slot(Priority::Low, None, None).now_or_never().is_some(),
            "the slot is free again"
        );
        drop((running, third));
        assert_eq!((slots.queue_stats().0, slots.full_agents()), (0, Vec::new()));
        slots.close();
        assert!(slots.take_idle().is_none());
    }

    #[test]
    fn a_returned_slot_is_kept_for_a_higher_priority_elsewhere() {
        let slots = slots(1, 1, 8, 8);
        let place = slots.reserve(&agent("b")).unwrap();
        let kept_slot = KeptSlot::new(&slots);
        for (elsewhere, is_kept) in [
            (None, false),
            (Some(Priority::Low), false),
            (Some(Priority::Normal), false),
            (Some(Priority::High), true),
        ] {
            let running = slots.take_idle().unwrap().assign(&agent("a")).unwrap();
            let mut wait = Box::pin(place.acquire_slot(Priority::Normal, None, None));
            assert!((&mut wait).now_or_never().is_none());
            kept_slot.keep_for(elsewhere);
            drop(running);
            if is_kept {
                assert!((&mut wait).now_or_never().is_none(), "the slot is kept");
                // No call comes for it.
                assert_eq!(slots.take_idle().unwrap().above(), Some(Priority::Normal));
            }
            assert!(wait.now_or_never().flatten().is_some(), "{elsewhere:?}");
        }
        let running = slots.take_idle().unwrap().assign(&agent("a")).unwrap();
        let mut wait = Box::pin(place.acquire_slot(Priority::Normal, None, None));
        assert!((&mut wait).now_or_never().is_none());
        kept_slot.keep_for(Some(Priority::High));
        drop(running);
        assert!((&mut wait).now_or_never().is_none(), "the slot is kept");
        drop(kept_slot);
        assert!(wait.now_or_never().flatten().is_some());
        assert_eq!(slots.lock().overtakes, 0, "no call has come");
    }

    #[test]
    fn calls_of_other_nodes_starve_no_waiter() {
        let slots = slots(1, 1, 8, 8);
        let place = slots.reserve(&agent("b")).unwrap();
        let kept_slot = KeptSlot::new(&slots);
        let mut running = slots.take_idle().unwrap().assign(&agent("a"));
        let mut wait = Box::pin(place.acquire_slot(Priority::Low, None, None));
        assert!((&mut wait).now_or_never().is_none());
        for _ in 0..MAX_OVERTAKES {
            kept_slot.keep_for(Some(Priority::Critical));
            drop(running);
            assert!((&mut wait).now_or_never().is_none());
            running = slots.take_idle().unwrap().assign(&agent("a"));
        }
        kept_slot.keep_for(Some(Priority::Critical));
        drop(running);
        assert!(wait.now_or_never().flatten().is_some());
    }

    #[test]
    fn a_place_that_was_passed_on_leaves_room_in_the_queue() {
        let slots = slots(0, 0, 1, 1);
        let mut place = slots.reserve(&agent("a")).unwrap();
        assert_eq!(slots.reserve(&agent("a")).unwrap_err(), CapacityError::QueueFull);
        place.set_passed_on(true);
        let second = slots.reserve(&agent("a")).unwrap();
        assert_eq!(slots.queue_stats(), (0, 1));
        drop((place, second));
        assert_eq!((slots.queue_stats(), slots.lock().agents.len(), *slots.places.borrow()), ((0, 0), 0, 0));
    }

    #[test]
    fn a_call_that_waits_again_keeps_its_turn_among_those_of_its_agent() {
        let slots = slots(1, 1, 8, 8);
        let places = ["a", "b", "b"].map(|name| slots.reserve(&agent(name)).unwrap());
        let [running, first, second] = &places;
        let slot = running.acquire_slot(Priority::Normal, None, None).now_or_never().unwrap().unwrap();
        assert!(first.acquire_slot(Priority::Normal, None, None).now_or_never().is_none());
        let mut second = Box::pin(second.acquire_slot(Priority::Normal, None, None));
        assert!((&mut second).now_or_never().is_none());
        let mut again = Box::pin(first.acquire_slot(Priority::Normal, None, None));
        assert!((&mut again).now_or_never().is_none());
        drop(slot);
        let turn = again.now_or_never();
        assert!(turn.is_some() && (&mut second).now_or_never().is_none());
    }
}
