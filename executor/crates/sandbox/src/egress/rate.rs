//! The number of requests that an agent made within the last minute, in all of its runs.
//!
//! Requests are counted per second of the monotonic clock, so that the memory for an agent is bounded. A second counts
//! until all of it is more than a minute old.
//!
//! A policy limits the requests in any minute. [`RateLimit`](a2g_types::rate_limit::RateLimit) could enforce that only
//! with half the burst and half the rate, so this is a sliding window.

use a2g_types::ident::AgentDid;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Instant;

/// The length of the window: a minute, and the second that has just begun.
const WINDOW_SECONDS: u64 = 61;

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

    /// Counts one request of an agent. Returns `false` if the agent has already made `max` requests within a minute.
    pub(super) fn try_take(&self, agent: &AgentDid, max: u32, now: Instant) -> bool {
        let second = now.saturating_duration_since(self.start).as_secs();
        let mut agents = self.agents.lock();
        // Agents without recent requests are removed.
        agents.retain(|_, counts| {
            counts.retain(|(at, _)| at.saturating_add(WINDOW_SECONDS) > second);
            !counts.is_empty()
        });
        let counts = agents.entry(agent.clone()).or_default();
        let total = counts.iter().fold(0_u32, |total, (_, count)| total.saturating_add(*count));
        if total >= max {
            return false;
        }
        match counts.last_mut() {
            Some((at, count)) if *at == second => *count = count.saturating_add(1),
            Some(_) | None => counts.push((second, 1)),
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
        fn a_request_is_refused_only_in_a_full_minute(
            max in 1_u32..8,
            pauses in proptest::collection::vec(prop_oneof![0_u64..20, 0_u64..2000, 0_u64..90_000], 1..120),
        ) {
            let rates = Rates::new(SystemClock.monotonic());
            let agent = AgentDid::parse("did:a2g:one:1").unwrap();
            let mut now = rates.start;
            let mut accepted = Vec::new();
            for pause in pauses {
                now += Duration::from_millis(pause);
                let within = |seconds| {
                    let recent = accepted.iter().filter(|&&at| now - at < Duration::from_secs(seconds));
                    recent.count() as u64
                };
                let minute = within(60);
                let and_a_second = within(WINDOW_SECONDS);
                let is_accepted = rates.try_take(&agent, max, now);
                prop_assert!(!is_accepted || minute < max.into(), "one too many");
                prop_assert!(is_accepted || and_a_second >= max.into(), "refused without need");
                if is_accepted {
                    accepted.push(now);
                }
            }
        }
    }

    #[test]
    fn a_request_counts_for_a_minute_and_only_for_its_agent() {
        let start = SystemClock.monotonic();
        let rates = Rates::new(start);
        let one = AgentDid::parse("did:a2g:one:1").unwrap();
        let other = AgentDid::parse("did:a2g:other:1").unwrap();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        assert!(rates.try_take(&one, 2, at(0.9)) && rates.try_take(&one, 2, at(1.0)));
        assert!(!rates.try_take(&one, 2, at(1.1)) && rates.try_take(&other, 1, at(1.1)));
        assert!(!rates.try_take(&one, 2, at(60.8)), "59.9 s after the first");
        assert!(rates.try_take(&one, 2, at(61.0)), "the first is over a minute old");
        assert!(!rates.try_take(&one, 2, at(61.1)));
        assert!(rates.try_take(&other, 1, at(200.0)));
        assert_eq!(rates.agents.lock().len(), 1);
    }
}
