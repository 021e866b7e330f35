//! Who may run now, who may wait, and who has to come again.
//!
//! ```text
//! place(agent) ─▶ Place: claimed and not over ─ slot() ─▶ Slot: a guest may run
//!      └─▶ Full: the executor closes, everybody's queue is full, or this agent's is
//! ```
//! An agent that sends more than its share waits for itself and not before others: whoever waits
//! for a slot of everybody's holds one of its agent's already.

use crate::ident::AgentDid;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// How much there may be at once.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// How many executions run at once.
    pub concurrent: usize,
    /// How many of them may be one agent's.
    pub concurrent_per_agent: usize,
    /// How many more may wait.
    pub queue: usize,
    /// How many of those may be one agent's.
    pub queue_per_agent: usize,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// Nothing more is taken.
    Closing,
    /// The queue is full.
    Everybody,
    /// The agent's part of the queue is.
    Agent,
}

/// All places and slots.
#[derive(Debug)]
pub(super) struct Slots {
    capacity: Capacity,
    free: Arc<Semaphore>,
    agents: Mutex<HashMap<AgentDid, Share>>,
    /// How many places are taken.
    open: watch::Sender<usize>,
    closing: watch::Sender<bool>,
}

/// What one agent has.
#[derive(Debug)]
struct Share {
    open: usize,
    free: Arc<Semaphore>,
}

/// A place among what is claimed and not over.
#[derive(Debug)]
pub(super) struct Place {
    slots: Arc<Slots>,
    agent: AgentDid,
    /// The agent's own.
    free: Arc<Semaphore>,
}

/// The leave for one guest to run.
#[derive(Debug)]
pub(super) struct Slot {
    _everybodys: OwnedSemaphorePermit,
    _agents: OwnedSemaphorePermit,
}

impl Slots {
    pub(super) fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            free: Arc::new(Semaphore::new(capacity.concurrent)),
            agents: Mutex::default(),
            open: watch::channel(0).0,
            closing: watch::channel(false).0,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AgentDid, Share>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more of an agent's intents.
    pub(super) fn place(self: &Arc<Self>, agent: &AgentDid) -> Result<Place, Full> {
        let Capacity { concurrent, concurrent_per_agent, queue, queue_per_agent } = self.capacity;
        let mut agents = self.lock();
        let share = agents.entry(agent.clone());
        let share =
            share.or_insert_with(|| Share { open: 0, free: Arc::new(Semaphore::new(concurrent_per_agent)) });
        let theirs = share.open;
        share.open += 1;
        let place = Place { slots: Arc::clone(self), agent: agent.clone(), free: Arc::clone(&share.free) };
        // What is refused from here on gives its place back, which needs the lock.
        drop(agents);
        let mut open = 0;
        self.open.send_modify(|count| {
            open = *count;
            *count += 1;
        });
        // Counted first: whoever closes sees either the count, or nobody who overlooked the closing.
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

    /// Executions that run, and that wait for a slot.
    pub(super) fn load(&self) -> (usize, usize) {
        let running = self.capacity.concurrent.saturating_sub(self.free.available_permits());
        (running, self.open.borrow().saturating_sub(running))
    }

    /// Gives no more places.
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Waits until no more places are given.
    pub(super) async fn closed(&self) {
        // What `wait_for` gives locks the channel, and whoever closes would wait for it.
        drop(self.closing.subscribe().wait_for(|closing| *closing).await);
    }

    /// Waits until every place was given back.
    pub(super) async fn idle(&self) {
        // As above: a call that comes meanwhile would wait for it.
        drop(self.open.subscribe().wait_for(|open| *open == 0).await);
    }
}

impl Place {
    /// A slot, as soon as the agent and everybody have one free.
    pub(super) async fn slot(&self) -> Option<Slot> {
        let agents = Arc::clone(&self.free).acquire_owned().await.ok()?;
        let everybodys = Arc::clone(&self.slots.free).acquire_owned().await.ok()?;
        Some(Slot { _everybodys: everybodys, _agents: agents })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut agents = self.slots.lock();
        if let Entry::Occupied(mut share) = agents.entry(self.agent.clone()) {
            share.get_mut().open -= 1;
            if share.get().open == 0 {
                share.remove();
            }
        }
        drop(agents);
        self.slots.open.send_modify(|count| *count -= 1);
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
        assert_eq!((slots.load(), slots.lock().len()), ((0, 0), 0));
    }

    #[test]
    fn an_agent_waits_for_itself_and_not_before_others() {
        let slots = slots(2, 1, 8, 8);
        let (greedy, other) = (agent("greedy"), agent("other"));
        let places = [0; 3].map(|_| slots.place(&greedy).unwrap());
        let running = places[0].slot().now_or_never().unwrap().unwrap();
        assert!(places[1].slot().now_or_never().is_none());
        let place = slots.place(&other).unwrap();
        let theirs = place.slot().now_or_never().unwrap();
        assert!(theirs.is_some() && slots.load() == (2, 2));
        drop(running);
        assert!(places[1].slot().now_or_never().is_some());
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
}
