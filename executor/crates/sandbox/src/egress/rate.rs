//! How many requests an agent made within the last minute, in all of its runs together.
//!
//! Counted by whole seconds of the monotonic clock, so that the memory for an agent is the same
//! whatever it may ask. A second counts until it is wholly over a minute old.
//!
//! A policy promises at most so many requests in any minute. The crate's [`RateLimit`](a2g_types::rate_limit::RateLimit)
//! keeps that only with half the burst and half the rate, so this is a sliding window.

use a2g_types::ident::AgentDid;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Instant;

/// A minute in seconds, and the one that has just begun.
const SECONDS: u64 = 61;

/// The requests of all agents.
#[derive(Debug)]
pub(super) struct Rates {
    start: Instant,
    agents: Mutex<BTreeMap<AgentDid, Vec<(u64, u32)>>>,
}

impl Rates {
    pub(super) fn new(start: Instant) -> Self {
        Self { start, agents: Mutex::default() }
    }

    /// Counts one request of an agent, unless it would be one more than `most` within a minute.
    pub(super) fn take(&self, agent: &AgentDid, most: u32, now: Instant) -> bool {
        let second = now.saturating_duration_since(self.start).as_secs();
        let mut agents = self.agents.lock();
        // Agents that have asked for nothing lately are forgotten.
        agents.retain(|_, asked| {
            asked.retain(|(at, _)| at.saturating_add(SECONDS) > second);
            !asked.is_empty()
        });
        let asked = agents.entry(agent.clone()).or_default();
        let total = asked.iter().fold(0_u32, |total, (_, count)| total.saturating_add(*count));
        if total >= most {
            return false;
        }
        match asked.last_mut() {
            Some((at, count)) if *at == second => *count = count.saturating_add(1),
            Some(_) | None => asked.push((second, 1)),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::clock::{Clock as _, SystemClock};
    use proptest::prelude::*;
    use std::time::Duration;

    proptest! {
        #[test]
        fn no_minute_has_more_and_none_that_has_room_refuses(
            most in 1_u32..8,
            pauses in proptest::collection::vec(prop_oneof![0_u64..20, 0_u64..2000, 0_u64..90_000], 1..120),
        ) {
            let (rates, agent) = (Rates::new(SystemClock.monotonic()), AgentDid::parse("did:a2g:one:1").unwrap());
            let (mut now, mut accepted) = (rates.start, Vec::new());
            for pause in pauses {
                now += Duration::from_millis(pause);
                let within = |seconds| {
                    let recent = accepted.iter().filter(|&&at| now - at < Duration::from_secs(seconds));
                    recent.count() as u64
                };
                let (minute, and_a_second) = (within(60), within(SECONDS));
                let is_accepted = rates.take(&agent, most, now);
                prop_assert!(!is_accepted || minute < most.into(), "one too many");
                prop_assert!(is_accepted || and_a_second >= most.into(), "refused without need");
                if is_accepted {
                    accepted.push(now);
                }
            }
        }
    }

    #[test]
    fn no_minute_has_more_than_its_rate() {
        let start = SystemClock.monotonic();
        let rates = Rates::new(start);
        let (one, other) =
            (AgentDid::parse("did:a2g:one:1").unwrap(), AgentDid::parse("did:a2g:other:1").unwrap());
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        assert!(rates.take(&one, 2, at(0.9)) && rates.take(&one, 2, at(1.0)));
        assert!(!rates.take(&one, 2, at(1.1)) && rates.take(&other, 1, at(1.1)));
        assert!(!rates.take(&one, 2, at(60.8)), "59.9 s after the first");
        assert!(rates.take(&one, 2, at(61.0)), "the first is over a minute old");
        assert!(!rates.take(&one, 2, at(61.1)));
        assert!(rates.take(&other, 1, at(200.0)));
        assert_eq!(rates.agents.lock().len(), 1);
    }
}
