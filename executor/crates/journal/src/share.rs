//! The share of each agent in the growth of the journal: without one, a single permitted agent fills the disk for all.
//!
//! An agent may add its share at once. What it has added drains evenly: the whole share within an hour. The state is in
//! memory only.

use super::{JournalError, JournalLimits};
use a2g_types::call::Call;
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::ident::AgentDid;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The time in which a whole share drains.
const PERIOD: Duration = Duration::from_secs(3600);
/// The number of agents above which those that have added nothing lately are forgotten.
const MAX_IDLE_AGENTS: usize = 1_000;

/// The operator's limits on what a journal stores, and what each agent has used of its share.
#[derive(Debug)]
pub(super) struct StorageLimits {
    limits: JournalLimits,
    shares: AgentShares,
}

/// What each agent has added.
#[derive(Debug, Default)]
struct AgentShares(Mutex<HashMap<AgentDid, Added>>);

/// What an agent had added at a time, less what had drained.
#[derive(Debug, Clone, Copy)]
struct Added {
    bytes: u64,
    at: Instant,
}

impl Added {
    fn at(self, max_bytes: u64, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.at);
        let drained = u128::from(max_bytes) * elapsed.as_nanos() / PERIOD.as_nanos();
        self.bytes.saturating_sub(u64::try_from(drained).unwrap_or(u64::MAX))
    }
}

impl AgentShares {
    /// Checks that an agent has not used up its share.
    ///
    /// # Errors
    /// The time after which it has some again.
    fn check(&self, agent: &AgentDid, max_bytes: u64, now: Instant) -> Result<(), Duration> {
        let added = self.0.lock().get(agent).map_or(0, |added| added.at(max_bytes, now));
        let Some(excess) = added.checked_sub(max_bytes) else { return Ok(()) };
        let nanos = PERIOD.as_nanos() * (u128::from(excess) + 1) / u128::from(max_bytes.max(1));
        Err(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    fn add(&self, agent: &AgentDid, bytes: usize, max_bytes: u64, now: Instant) {
        let mut agents = self.0.lock();
        if agents.len() > MAX_IDLE_AGENTS && !agents.contains_key(agent) {
            agents.retain(|_, added| added.at(max_bytes, now) > 0);
        }
        let added = agents.entry(agent.clone()).or_insert(Added { bytes: 0, at: now });
        let bytes = added.at(max_bytes, now).saturating_add(bytes as u64);
        *added = Added { bytes, at: now };
    }
}

impl StorageLimits {
    pub(super) fn new(limits: JournalLimits) -> Self {
        Self { limits, shares: AgentShares::default() }
    }

    /// The text of a call's arguments to store; `None` if only their hash is stored.
    pub(super) fn arguments_text(&self, call: &Call) -> Option<String> {
        self.limits.arguments.text(call)
    }

    /// Checks that an agent may add more to the journal.
    ///
    /// # Errors
    /// [`JournalError::Share`].
    pub(super) fn check_share(&self, agent: &AgentDid) -> Result<(), JournalError> {
        let max_bytes = self.limits.max_bytes_per_agent_hour;
        let checked = self.shares.check(agent, max_bytes, SystemClock.monotonic());
        checked.map_err(|retry_after| JournalError::Share { max_mb: max_bytes >> 20, retry_after })
    }

    /// Counts what is written for an agent.
    pub(super) fn count_bytes(&self, agent: &AgentDid, bytes: usize) {
        self.shares.add(agent, bytes, self.limits.max_bytes_per_agent_hour, SystemClock.monotonic());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_drains_evenly_and_belongs_to_one_agent() {
        let [agent, other] = ["did:a:b", "did:a:c"].map(|did| AgentDid::parse(did).unwrap());
        let shares = AgentShares::default();
        let start = SystemClock.monotonic();
        let max = 3_600;
        let check = |agent, seconds| shares.check(agent, max, start + Duration::from_secs(seconds));
        shares.add(&agent, 3_599, max, start);
        assert_eq!(check(&agent, 0), Ok(()));
        shares.add(&agent, 11, max, start);
        assert_eq!(check(&agent, 0), Err(Duration::from_secs(11)));
        assert_eq!(check(&agent, 10), Err(Duration::from_secs(1)));
        assert_eq!((check(&agent, 11), check(&other, 0)), (Ok(()), Ok(())));
        shares.add(&agent, 3_600, max, start + Duration::from_secs(4_000));
        assert_eq!(check(&agent, 4_000), Err(Duration::from_secs(1)), "nothing is saved up");
    }

    #[test]
    fn idle_agents_are_forgotten() {
        let shares = AgentShares::default();
        let start = SystemClock.monotonic();
        for nth in 0..=MAX_IDLE_AGENTS {
            shares.add(&AgentDid::parse(&format!("did:a:{nth}")).unwrap(), 1, 3_600, start);
        }
        let agent = AgentDid::parse("did:a:late").unwrap();
        shares.add(&agent, 1, 3_600, start + Duration::from_secs(2));
        assert_eq!(shares.0.lock().len(), 1);
    }
}
