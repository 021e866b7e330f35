//! The stops in force.

use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::stop::{Stop, StopTarget};
use std::collections::BTreeMap;
use time::OffsetDateTime;

/// A stop, and a number that tells it from a later one of the same target.
#[derive(Debug, Clone)]
pub struct NumberedStop {
    /// The stop.
    pub stop: Stop,
    /// The number.
    pub number: u64,
}

/// The agents, tools or all that operators have stopped.
#[derive(Debug, Default)]
pub struct Stops {
    by_target: BTreeMap<StopTarget, NumberedStop>,
    /// The number of stops so far in this process.
    count: u64,
    /// The times of the latest stops that nodes of the fleet have set or lifted.
    ordered_at: BTreeMap<StopTarget, OffsetDateTime>,
    /// `true` if other nodes of the fleet may not know of a stop.
    has_unpublished: bool,
}

impl Stops {
    /// The stop that includes the calls of `agent` with `tool`, if any.
    #[must_use]
    pub fn find(&self, agent: &AgentDid, tool: &ToolName) -> Option<&Stop> {
        // Operators set few stops, so all are compared.
        let mut stops = self.by_target.values().map(|numbered| &numbered.stop);
        stops.find(|stop| stop.target.includes(agent, tool))
    }

    /// The stop of exactly this target.
    #[must_use]
    pub fn get(&self, target: &StopTarget) -> Option<&NumberedStop> {
        self.by_target.get(target)
    }

    /// The stops in force, by target.
    #[must_use]
    pub fn list(&self) -> Vec<Stop> {
        self.by_target.values().map(|numbered| numbered.stop.clone()).collect()
    }

    /// Sets a stop, in place of an earlier one of the same target. It ends no intent: see [`crate::Intents::stop`].
    pub fn set(&mut self, stop: Stop) {
        self.count += 1;
        let number = self.count;
        self.by_target.insert(stop.target.clone(), NumberedStop { stop, number });
    }

    /// Removes the stop with this number. Returns `false` if it was lifted or replaced before.
    pub fn remove(&mut self, target: &StopTarget, number: u64) -> bool {
        let is_same = self.by_target.get(target).is_some_and(|numbered| numbered.number == number);
        is_same && self.by_target.remove(target).is_some()
    }

    /// Remembers that other nodes of the fleet may not know of a stop.
    pub fn mark_unpublished(&mut self) {
        self.has_unpublished = true;
    }

    /// Returns `true` if other nodes of the fleet may not know of a stop, and forgets it.
    pub fn take_unpublished(&mut self) -> bool {
        std::mem::take(&mut self.has_unpublished)
    }

    /// Remembers the time of a stop that a node of the fleet has set or lifted.
    pub fn note_order(&mut self, target: &StopTarget, since: OffsetDateTime) {
        let latest = self.ordered_at.entry(target.clone()).or_insert(since);
        *latest = since.max(*latest);
    }

    /// The time of the latest stop of a target that a node of the fleet has set or lifted.
    #[must_use]
    pub fn latest_order(&self, target: &StopTarget) -> Option<OffsetDateTime> {
        self.ordered_at.get(target).copied()
    }
}
