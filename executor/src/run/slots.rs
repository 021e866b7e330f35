//! Admission to execution: which intents run, wait, or have to be sent again.
//!
//! ```text
//! place(agent) ─▶ Place: claimed and not finished ─ slot() ─▶ Slot: a guest may run
//!      └─▶ Full: the executor closes, the queue is full, or the agent's part of it is
//! ```
//! An agent that sends more than its share delays itself and not others: it has as many claims on slots as its share
//! allows, and each claim has its turn. Among the waiters of one agent, and among all agents with a claim, the higher
//! priority goes first, and within one priority the earlier arrival. A priority gives no agent more slots than its
//! share.
//!
//! No waiter starves: after [`MAX_OVERTAKES`] slots that went to a higher priority ahead of an earlier arrival, one
//! slot goes to the earliest arrival of all.

use crate::call::Priority;
use crate::ident::AgentDid;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use strum::VariantArray as _;
use tokio::sync::{oneshot, watch};

/// The number of slots that go to a higher priority ahead of an earlier arrival before one goes to the earliest
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

/// The reason for which there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// No more calls are accepted.
    Closing,
    /// The queue is full.
    Everybody,
    /// The agent's part of the queue is full.
    Agent,
}

/// All places and slots.
#[derive(Debug)]
pub(super) struct Slots {
    capacity: Capacity,
    queue: Mutex<Queue>,
    /// The number of places in use.
    open: watch::Sender<usize>,
    closing: watch::Sender<bool>,
}

/// The free slots, and the running and waiting intents of each agent.
#[derive(Debug)]
struct Queue {
    /// The number of free slots.
    free: usize,
    /// The number of slots that went ahead of an earlier arrival since the last one that went by arrival.
    ahead: u32,
    /// A logical clock, incremented by every arrival and every claim.
    now: u64,
    agents: HashMap<AgentDid, Share>,
}

/// The places, slots, waiters and claims of one agent.
#[derive(Debug, Default)]
struct Share {
    open: usize,
    running: usize,
    /// The waiters by priority, in order of arrival.
    waiting: [VecDeque<Waiter>; Priority::VARIANTS.len()],
    /// The time at which each claim on a slot was made: one for every waiter, up to the room in the share.
    claims: VecDeque<u64>,
}

#[derive(Debug)]
struct Waiter {
    came: u64,
    wakes: oneshot::Sender<Slot>,
}

/// A place among the intents that are claimed and have not finished.
#[derive(Debug)]
pub(super) struct Place {
    slots: Arc<Slots>,
    agent: AgentDid,
}

/// The permission for one guest to run.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    agent: AgentDid,
}

/// A waiter, which leaves the queue on drop.
struct Waits<'a> {
    place: &'a Place,
    came: u64,
    priority: Priority,
}

impl Slots {
    pub(super) fn new(capacity: Capacity) -> Self {
        let queue = Queue { free: capacity.concurrent, ahead: 0, now: 0, agents: HashMap::new() };
        Self {
            capacity,
            queue: Mutex::new(queue),
            open: watch::channel(0).0,
            closing: watch::channel(false).0,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more of an agent's intents.
    pub(super) fn place(self: &Arc<Self>, agent: &AgentDid) -> Result<Place, Full> {
        let Capacity { concurrent, concurrent_per_agent, queue, queue_per_agent } = self.capacity;
        let mut agents = self.lock();
        let share = agents.agents.entry(agent.clone()).or_default();
        let theirs = share.open;
        share.open += 1;
        let place = Place { slots: Arc::clone(self), agent: agent.clone() };
        // A refusal below drops the place, which needs the lock.
        drop(agents);
        let mut open = 0;
        self.open.send_modify(|count| {
            open = *count;
            *count += 1;
        });
        // Counted first: either the task that closes sees the count, or this call sees the closing.
        if *self.closing.borrow() {
            return Err(Full::Closing);
        }
        if open >= concurrent.saturating_add(queue) {
            return Err(Full::Everybody);
        }
        if theirs >= concurrent_per_agent.saturating_add(queue_per_agent) {
            return Err(Full::Agent);
        }
        Ok(place)
    }

    /// The numbers of executions that run and that wait for a slot.
    pub(super) fn load(&self) -> (usize, usize) {
        let running = self.capacity.concurrent.saturating_sub(self.lock().free);
        (running, self.open.borrow().saturating_sub(running))
    }

    /// Gives out no more places.
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Waits until no more places are given out.
    pub(super) async fn closed(&self) {
        // The guard that `wait_for` returns locks the channel, and would block `close`.
        drop(self.closing.subscribe().wait_for(|closing| *closing).await);
    }

    /// Waits until every place has been returned.
    pub(super) async fn idle(&self) {
        // As above: the guard would block a call that arrives meanwhile.
        drop(self.open.subscribe().wait_for(|open| *open == 0).await);
    }

    /// Changes the queue, and gives out the slots that are free then.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut Queue) -> T) -> T {
        let mut queue = self.lock();
        let changed = change(&mut queue);
        let mut given = Vec::new();
        while let Some((agent, waiter)) = queue.next(self.capacity.concurrent_per_agent) {
            given.push((waiter, Slot { slots: Arc::clone(self), agent }));
        }
        // A slot that its waiter no longer takes is returned, which needs the lock.
        drop(queue);
        for (waiter, slot) in given {
            drop(waiter.wakes.send(slot));
        }
        changed
    }
}

impl Queue {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Removes the next waiter that may run, and takes a slot for it.
    fn next(&mut self, most: usize) -> Option<(AgentDid, Waiter)> {
        if self.free == 0 {
            return None;
        }
        let claiming = || self.agents.iter().filter(|(_, share)| !share.claims.is_empty());
        let by_arrival = claiming().min_by_key(|(_, share)| share.first_came())?;
        let by_priority = claiming().min_by_key(|(_, share)| {
            // Within one priority, the earlier arrival, or the earlier claim if the agent has had its turn.
            let (highest, came) = share.best().unzip();
            (std::cmp::Reverse(highest), share.claims.front().copied().max(came))
        })?;
        let overtakes = by_priority.1.best().map(|(highest, _)| highest) > by_arrival.1.priority_of_first();
        let in_turn = overtakes && self.ahead >= MAX_OVERTAKES;
        let (agent, priority) = if in_turn {
            (by_arrival.0.clone(), by_arrival.1.priority_of_first()?)
        } else {
            (by_priority.0.clone(), by_priority.1.best()?.0)
        };
        self.ahead = match (overtakes, in_turn) {
            (true, false) => self.ahead + 1,
            (true, true) => 0,
            (false, _) => self.ahead,
        };
        let share = self.agents.get_mut(&agent)?;
        let waiter = share.of(priority)?.pop_front()?;
        share.claims.pop_front();
        share.running += 1;
        self.free -= 1;
        self.claim(&agent, most);
        Some((agent, waiter))
    }

    /// Adjusts the claims of an agent to the number that it may have.
    fn claim(&mut self, agent: &AgentDid, most: usize) {
        let now = self.tick();
        let Some(share) = self.agents.get_mut(agent) else { return };
        let waiting: usize = share.waiting.iter().map(VecDeque::len).sum();
        share.claims.resize(waiting.min(most.saturating_sub(share.running)), now);
    }

    /// Removes an agent without places and slots.
    fn forget(&mut self, agent: &AgentDid) {
        if self.agents.get(agent).is_some_and(|share| share.open == 0 && share.running == 0) {
            self.agents.remove(agent);
        }
    }
}

impl Share {
    fn of(&mut self, priority: Priority) -> Option<&mut VecDeque<Waiter>> {
        self.waiting.get_mut(priority as usize)
    }

    /// The first waiter of each priority, by priority, with its arrival.
    fn fronts(&self) -> impl DoubleEndedIterator<Item = (Priority, u64)> {
        let fronts = Priority::VARIANTS.iter().copied().zip(&self.waiting);
        fronts.filter_map(|(priority, waiting)| Some((priority, waiting.front()?.came)))
    }

    /// The highest priority of the waiters, and the arrival of its first waiter.
    fn best(&self) -> Option<(Priority, u64)> {
        self.fronts().next_back()
    }

    /// The priority of the earliest arrival.
    fn priority_of_first(&self) -> Option<Priority> {
        self.fronts().min_by_key(|(_, came)| *came).map(|(priority, _)| priority)
    }

    /// The earliest arrival.
    fn first_came(&self) -> Option<u64> {
        self.fronts().map(|(_, came)| came).min()
    }
}

impl Place {
    /// Waits until the agent's share and the executor have a free slot and no other waiter goes first.
    pub(super) async fn slot(&self, priority: Priority) -> Option<Slot> {
        let (wakes, given) = oneshot::channel();
        let most = self.slots.capacity.concurrent_per_agent;
        let came = self.slots.change(|queue| {
            let came = queue.tick();
            let share = queue.agents.entry(self.agent.clone()).or_default();
            if let Some(waiting) = share.of(priority) {
                waiting.push_back(Waiter { came, wakes });
            }
            queue.claim(&self.agent, most);
            came
        });
        let _waits = Waits { place: self, came, priority };
        given.await.ok()
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let Self { place: Place { slots, agent }, came, priority } = self;
        let mut queue = slots.lock();
        let waiting = queue.agents.get_mut(agent).and_then(|share| share.of(*priority));
        if let Some(waiting) = waiting
            && let Ok(at) = waiting.binary_search_by_key(came, |waiter| waiter.came)
        {
            waiting.remove(at);
            queue.claim(agent, slots.capacity.concurrent_per_agent);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.change(|queue| {
            queue.free += 1;
            if let Some(share) = queue.agents.get_mut(&self.agent) {
                share.running = share.running.saturating_sub(1);
            }
            queue.claim(&self.agent, self.slots.capacity.concurrent_per_agent);
            queue.forget(&self.agent);
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queue = self.slots.lock();
        if let Some(share) = queue.agents.get_mut(&self.agent) {
            share.open = share.open.saturating_sub(1);
        }
        queue.forget(&self.agent);
        drop(queue);
        self.slots.open.send_modify(|count| *count = count.saturating_sub(1));
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
    fn an_agent_fills_its_own_queue_and_not_the_others() {
        let slots = slots(2, 1, 4, 2);
        let (greedy, other) = (agent("greedy"), agent("other"));
        let places = [0; 3].map(|_| slots.place(&greedy).unwrap());
        assert_eq!(slots.place(&greedy).unwrap_err(), Full::Agent);
        let others = [0; 3].map(|_| slots.place(&other).unwrap());
        assert_eq!(slots.place(&agent("third")).unwrap_err(), Full::Everybody);
        assert_eq!(*slots.open.borrow(), 6, "what was refused takes no place");
        drop((places, others));
        assert_eq!((slots.load(), slots.lock().agents.len()), ((0, 0), 0));
    }

    #[test]
    fn an_agent_waits_for_itself_and_not_before_others() {
        let slots = slots(2, 1, 8, 8);
        let (greedy, other) = (agent("greedy"), agent("other"));
        let places = [0; 3].map(|_| slots.place(&greedy).unwrap());
        let running = places[0].slot(Priority::Normal).now_or_never().unwrap().unwrap();
        assert!(places[1].slot(Priority::Normal).now_or_never().is_none());
        let place = slots.place(&other).unwrap();
        let theirs = place.slot(Priority::Normal).now_or_never().unwrap();
        assert!(theirs.is_some() && slots.load() == (2, 2));
        drop(running);
        assert!(places[1].slot(Priority::Normal).now_or_never().is_some());
    }

    #[test]
    fn nothing_is_taken_any_more_once_it_closes() {
        let slots = slots(1, 1, 1, 1);
        let last = slots.place(&agent("a")).unwrap();
        slots.close();
        assert_eq!(slots.place(&agent("b")).unwrap_err(), Full::Closing);
        assert!(slots.closed().now_or_never().is_some() && slots.idle().now_or_never().is_none());
        drop(last);
        assert!(slots.idle().now_or_never().is_some());
    }

    /// Runs all waiters one after another, and returns their names in that order.
    fn order(per_agent: usize, waiting: &[(&str, &str, Priority)]) -> Vec<String> {
        let all = slots(1, per_agent, 100, 100);
        let first = all.place(&agent("first")).unwrap();
        let running = first.slot(Priority::Low).now_or_never().unwrap().unwrap();
        let places = waiting.iter().map(|(of, ..)| all.place(&agent(of)).unwrap()).collect::<Vec<_>>();
        let mut waits = places
            .iter()
            .zip(waiting)
            .map(|(place, (_, name, priority))| (*name, Box::pin(place.slot(*priority))))
            .collect::<Vec<_>>();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        for (_, wait) in &mut waits {
            assert!(wait.as_mut().poll(&mut context).is_pending());
        }
        let mut last = Some(running);
        let mut served = Vec::new();
        while !waits.is_empty() {
            drop(last.take());
            let ready = waits.iter_mut().enumerate().find_map(|(at, (name, wait))| {
                match wait.as_mut().poll(&mut context) {
                    std::task::Poll::Ready(slot) => Some((at, (*name).to_owned(), slot.unwrap())),
                    std::task::Poll::Pending => None,
                }
            });
            let (at, name, slot) = ready.expect("somebody runs");
            drop(waits.remove(at));
            served.push(name);
            last = Some(slot);
        }
        served
    }

    #[test]
    fn the_higher_priority_goes_first_and_of_one_priority_whoever_came_first() {
        let waiting = vec![
            ("a", "low", Priority::Low),
            ("a", "normal 1", Priority::Normal),
            ("b", "normal 2", Priority::Normal),
            ("a", "high", Priority::High),
            ("b", "critical", Priority::Critical),
            ("c", "normal 3", Priority::Normal),
        ];
        assert_eq!(order(8, &waiting), ["critical", "high", "normal 1", "normal 2", "normal 3", "low"]);
        // An agent that may not have a second slot yet lets others go first, as without priorities.
        assert_eq!(order(1, &waiting), ["critical", "high", "normal 3", "normal 2", "normal 1", "low"]);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let mut waiting = vec![("a", "low 1", Priority::Low), ("b", "low 2", Priority::Low)];
        waiting.extend((0..40).map(|_| ("c", "critical", Priority::Critical)));
        let served = order(1, &waiting);
        let low = |name: &str| served.iter().position(|served| served == name).unwrap();
        let most = usize::try_from(MAX_OVERTAKES).unwrap();
        assert_eq!((low("low 1"), low("low 2")), (most, 2 * most + 1), "{served:?}");
    }

    #[test]
    fn a_priority_takes_no_slot_of_anothers_share() {
        let slots = slots(2, 1, 8, 8);
        let (greedy, other) = (agent("greedy"), agent("other"));
        let places = [0; 3].map(|_| slots.place(&greedy).unwrap());
        let _running = places[0].slot(Priority::Critical).now_or_never().unwrap().unwrap();
        let mut waits = Box::pin(places[1].slot(Priority::Critical));
        assert!((&mut waits).now_or_never().is_none(), "one slot is free, and it is not theirs");
        let place = slots.place(&other).unwrap();
        assert!(place.slot(Priority::Low).now_or_never().is_some());
    }

    #[test]
    fn who_gives_up_leaves_nothing_behind() {
        let slots = slots(1, 1, 8, 8);
        let place = slots.place(&agent("a")).unwrap();
        let running = place.slot(Priority::Normal).now_or_never().unwrap().unwrap();
        let others = [0; 3].map(|_| slots.place(&agent("b")).unwrap());
        let mut given = Box::pin(others[0].slot(Priority::Normal));
        assert!((&mut given).now_or_never().is_none());
        assert!(others[1].slot(Priority::High).now_or_never().is_none(), "and is dropped at once");
        drop(running);
        // It was given a slot that it never takes.
        drop(given);
        assert!(others[2].slot(Priority::Low).now_or_never().flatten().is_some());
        drop((others, place));
        assert_eq!((slots.load(), slots.lock().agents.len()), ((0, 0), 0));
        assert_eq!(slots.lock().free, 1);
    }
}
