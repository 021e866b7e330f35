//! The other nodes at which calls wait, by what they have announced and how they have replied.

use a2g_fleet::Announcement;
use a2g_types::node::NodeName;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The time for which a node that has not replied is asked for no call, and one that has not run a call does not get it
/// again.
pub(in crate::run) const AVOID_TIME: Duration = Duration::from_secs(5);
/// The time after which an announcement that was not repeated is ignored.
const ANNOUNCEMENT_LIFE: Duration = Duration::from_secs(1);
/// The time for which no slot is kept for a node that had no call for one, in times of its reply: a kept slot is idle
/// until the reply.
const UNKEPT_REPLY_TIMES: u32 = 20;

/// The other nodes at which calls wait.
#[derive(Debug, Default)]
pub(super) struct WaitingNodes {
    /// The latest announcement of each node, and its time.
    announced: HashMap<NodeName, (Announcement, Instant)>,
    /// The nodes that have not replied, and until when they are not asked.
    avoided: HashMap<NodeName, Instant>,
    /// The nodes that had no call for a kept slot, and until when no slot is kept for them.
    unkept: HashMap<NodeName, Instant>,
    /// The time of the latest call of each node.
    served_at: HashMap<NodeName, Instant>,
}

impl WaitingNodes {
    pub(super) fn hear(&mut self, announcement: Announcement, now: Instant) {
        if self.avoided.get(&announcement.node).is_none_or(|until| *until <= now) {
            self.announced.insert(announcement.node.clone(), (announcement, now));
        }
    }

    /// Returns `true` if no node has announced that calls wait there.
    pub(super) fn is_empty(&self) -> bool {
        self.announced.is_empty()
    }

    /// Removes what is over.
    pub(super) fn expire(&mut self, now: Instant) {
        let is_recent = |at: Instant, time| now.saturating_duration_since(at) < time;
        self.announced.retain(|_, (_, heard_at)| is_recent(*heard_at, ANNOUNCEMENT_LIFE));
        self.served_at.retain(|_, at| is_recent(*at, AVOID_TIME));
        self.avoided.retain(|_, until| *until > now);
        self.unkept.retain(|_, until| *until > now);
    }

    fn may_keep_for(&self, node: &NodeName, now: Instant) -> bool {
        self.unkept.get(node).is_none_or(|until| *until <= now)
    }

    /// The highest priority for which a slot may be kept.
    pub(super) fn highest_priority(&self, now: Instant) -> Option<u8> {
        let announced = self.announced.values().map(|(announcement, _)| announcement);
        announced.filter(|one| self.may_keep_for(&one.node, now)).map(|one| one.priority).max()
    }

    /// The announcement of the highest priority, of these the one of the node that was served the longest ago. `above` is
    /// the priority that it has to exceed if the slot was kept.
    pub(super) fn choose(&self, above: Option<u8>, now: Instant) -> Option<Announcement> {
        let announced = self.announced.values().map(|(announcement, _)| announcement);
        let fits = |one: &&Announcement| {
            above.is_none_or(|above| one.priority > above && self.may_keep_for(&one.node, now))
        };
        let order = |one: &&Announcement| (one.priority, Reverse(self.served_at.get(&one.node)));
        announced.filter(fits).max_by_key(order).cloned()
    }

    pub(super) fn mark_served(&mut self, node: &NodeName, now: Instant) {
        self.served_at.insert(node.clone(), now);
    }

    /// Lowers the priority of an announcement whose node has no call of that priority for this one. If a slot was kept in
    /// vain, no slot is kept for that node for a while.
    pub(super) fn lower(
        &mut self,
        announcement: &Announcement,
        above: Option<u8>,
        now: Instant,
        reply_time: Duration,
    ) {
        let lower = announcement.priority.checked_sub(1);
        match lower {
            Some(lower) => {
                if let Some((announced, _)) = self.announced.get_mut(&announcement.node) {
                    announced.priority = lower;
                }
            }
            None => drop(self.announced.remove(&announcement.node)),
        }
        if above.is_some() && lower <= above {
            self.unkept.insert(announcement.node.clone(), now + reply_time * UNKEPT_REPLY_TIMES);
        }
    }

    pub(super) fn avoid(&mut self, node: NodeName, now: Instant) {
        self.announced.remove(&node);
        self.avoided.insert(node, now + AVOID_TIME);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::clock::{Clock as _, SystemClock};

    fn announcement(node: &str, priority: u8) -> Announcement {
        Announcement { node: node.to_owned().try_into().unwrap(), priority, ticket: String::new() }
    }

    fn chosen(waiting: &WaitingNodes, above: Option<u8>, now: Instant) -> Option<String> {
        waiting.choose(above, now).map(|announcement| announcement.node.to_string())
    }

    #[test]
    fn nodes_with_the_same_priority_take_turns() {
        let mut waiting = WaitingNodes::default();
        let now = SystemClock.monotonic();
        for (node, priority) in [("a", 3), ("b", 3), ("c", 1)] {
            waiting.hear(announcement(node, priority), now);
        }
        let mut served = Vec::new();
        for turn in 1..5 {
            let next = waiting.choose(None, now).unwrap();
            waiting.mark_served(&next.node, now + Duration::from_millis(turn));
            served.push(next.node.to_string());
        }
        assert!(served[0] != served[1] && served[..2] == served[2..], "{served:?}");
        assert!(!served.contains(&"c".to_owned()), "{served:?}");
    }

    #[test]
    fn no_slot_is_kept_for_a_node_that_had_no_call_for_one() {
        let mut waiting = WaitingNodes::default();
        let now = SystemClock.monotonic();
        let reply_time = Duration::from_millis(100);
        waiting.hear(announcement("a", 3), now);
        // Lower priorities above that of the waiters here are asked for at once.
        for priority in [3, 2] {
            let next = waiting.choose(Some(1), now).unwrap();
            assert_eq!(next.priority, priority);
            waiting.lower(&next, Some(1), now, reply_time);
        }
        assert_eq!(chosen(&waiting, Some(1), now), None);
        waiting.hear(announcement("a", 3), now);
        assert_eq!((waiting.highest_priority(now), chosen(&waiting, Some(1), now)), (None, None));
        // An idle slot costs nothing here.
        assert_eq!(chosen(&waiting, None, now).as_deref(), Some("a"));
        let later = now + reply_time * UNKEPT_REPLY_TIMES;
        waiting.hear(announcement("a", 3), later);
        assert_eq!(
            (waiting.highest_priority(later), chosen(&waiting, Some(1), later)),
            (Some(3), Some("a".to_owned()))
        );
        waiting.avoid("a".to_owned().try_into().unwrap(), later);
        waiting.hear(announcement("a", 3), later);
        assert_eq!(chosen(&waiting, None, later), None);
    }
}
