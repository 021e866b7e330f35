//! The lease of a node, and what a node sees of the other nodes' leases.

use crate::FleetError;
use crate::record::{NodeRecord, encode};
use crate::seal::SealedStore;
use crate::store::{Store, Write};
use a2g_types::clock::Clock;
use a2g_types::node::NodeName;
use a2g_types::tool::Digest;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

pub use crate::record::{NodeLoad, NodeState};

/// The times of the leases of a fleet. They are stored in the stream, so all nodes have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct LeaseTimes {
    /// A number of [`LeaseTimes::SECONDS`].
    seconds: u64,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self { seconds: 20 }
    }
}

impl LeaseTimes {
    /// The permitted lengths of a lease, in seconds.
    // Runs have a quarter of it to end, and a request may take 3 s.
    pub const SECONDS: std::ops::RangeInclusive<u64> = 5..=300;

    /// The length of a lease, in seconds.
    #[must_use]
    pub fn seconds(self) -> u64 {
        self.seconds
    }

    /// The time without a change of a lease after which another node takes over.
    #[must_use]
    pub fn lease(self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// The time without a renewal after which a node stops its runs: shorter than [`Self::lease`] by the time that runs
    /// need to end.
    #[must_use]
    pub fn fence(self) -> Duration {
        self.lease() * 3 / 4
    }

    /// The time between two renewals.
    #[must_use]
    pub fn renewal(self) -> Duration {
        self.lease() * 3 / 20
    }

    /// The number of renewals in a time.
    pub(crate) fn renewals_in(self, time: Duration) -> u64 {
        u64::try_from(time.as_millis() / self.renewal().as_millis().max(1)).unwrap_or(u64::MAX)
    }

    /// The number of renewals after which a lease that was not renewed has certainly ended.
    pub(crate) fn renewals_until_ended(self) -> u32 {
        u32::try_from(self.renewals_in(self.lease()) + 1).unwrap_or(u32::MAX)
    }

    /// The time for which a node that starts with another journal waits at most for the lease of its earlier process.
    #[must_use]
    pub fn restart_wait(self) -> Duration {
        self.renewal() * self.renewals_until_ended()
    }

    /// The time between two checks of the leases and marks of all nodes.
    #[must_use]
    pub fn sweep(self) -> Duration {
        self.lease() / 4
    }
}

impl From<LeaseTimes> for u64 {
    fn from(times: LeaseTimes) -> Self {
        times.seconds
    }
}

impl TryFrom<u64> for LeaseTimes {
    type Error = &'static str;

    fn try_from(seconds: u64) -> Result<Self, Self::Error> {
        if Self::SECONDS.contains(&seconds) {
            Ok(Self { seconds })
        } else {
            Err("has to be 5 to 300 seconds")
        }
    }
}

/// The maximum number of times that a renewal is sent, if earlier ones took effect without an answer.
const MAX_TRIES: usize = 3;

/// The latest receipt of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeHead {
    /// The number of the receipt, from 1; 0 for a journal without receipts.
    pub receipts: u64,
    /// The hash of the receipt's record.
    pub hash: [u8; 32],
}

/// The lease of this node.
pub(crate) struct Lease {
    node: NodeName,
    process: String,
    clock: Arc<dyn Clock>,
    times: LeaseTimes,
    own: Mutex<OwnLease>,
}

#[derive(Debug, Clone, Copy)]
struct OwnLease {
    epoch: u64,
    revision: u64,
    renewals: u64,
    /// The time just before the latest answered renewal was sent.
    renewed_at: Instant,
    /// `true` if another node, or another process, has replaced the lease.
    is_replaced: bool,
    /// `true` if this process has left the fleet, or is about to.
    is_left: bool,
}

impl Lease {
    /// Takes the lease of a node, whatever its state is. The earlier process of the node must have ended.
    pub(crate) async fn take<S: Store>(
        node: NodeName,
        clock: Arc<dyn Clock>,
        store: &SealedStore<S>,
        times: LeaseTimes,
        head: NodeHead,
    ) -> Result<Self, FleetError> {
        let process = Uuid::new_v4().to_string();
        let own = join(&node, &process, clock.as_ref(), store, head, NodeLoad::default(), None).await?;
        Ok(Self { node, process, clock, times, own: Mutex::new(own) })
    }

    /// Takes the lease again after another node has taken over.
    ///
    /// # Errors
    /// [`FleetError::NodeRuns`] if another process has taken the name of this node.
    pub(crate) async fn retake<S: Store>(
        &self,
        store: &SealedStore<S>,
        head: NodeHead,
        load: NodeLoad,
    ) -> Result<(), FleetError> {
        let latest = Some(self.epoch());
        let own = join(&self.node, &self.process, self.clock.as_ref(), store, head, load, latest).await?;
        *self.own.lock() = own;
        tracing::warn!(epoch = own.epoch, "this node had lost its lease, and has joined the fleet again");
        Ok(())
    }

    /// The random name of this process.
    pub(crate) fn process(&self) -> &str {
        &self.process
    }

    pub(crate) fn renewals(&self) -> u64 {
        self.own.lock().renewals
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.own.lock().epoch
    }

    /// Returns `true` if no other node can have taken over the claims of `epoch`.
    pub(crate) fn is_held(&self, epoch: u64) -> bool {
        let own = *self.own.lock();
        let age = self.clock.monotonic().saturating_duration_since(own.renewed_at);
        own.epoch == epoch && !own.is_replaced && !own.is_left && age < self.times.fence()
    }

    /// Renews the lease.
    pub(crate) async fn renew<S: Store>(
        &self,
        store: &SealedStore<S>,
        state: NodeState,
        head: NodeHead,
        load: NodeLoad,
    ) -> Result<(), FleetError> {
        let own = {
            let mut own = self.own.lock();
            own.is_left |= state == NodeState::Left;
            *own
        };
        if own.is_replaced {
            return Err(FleetError::LeaseLost);
        }
        if own.is_left && state != NodeState::Left {
            return Ok(());
        }
        let key = node_key(&self.node);
        let OwnLease { mut revision, mut renewals, .. } = own;
        for _ in 0..MAX_TRIES {
            renewals += 1;
            let record = record(&self.process, own.epoch, state.clone(), head, load, renewals);
            let sent_at = self.clock.monotonic();
            if let Write::Done(revision) = store.update(&key, &encode(&record)?, revision).await? {
                let mut current = self.own.lock();
                let is_left = current.is_left;
                *current = OwnLease { revision, renewals, renewed_at: sent_at, is_left, ..own };
                return Ok(());
            }
            let Some((found, found_revision)) = store.read::<NodeRecord>(&key).await? else { break };
            if found.process != self.process || !is_own(&found, own.epoch) {
                break;
            }
            // A renewal whose answer was lost. Other nodes may have seen it long ago, so the time of this node does not
            // start with it.
            (revision, renewals) = (found_revision, found.renewals);
        }
        let mut current = self.own.lock();
        if current.is_left {
            return Ok(());
        }
        current.is_replaced = true;
        Err(FleetError::LeaseLost)
    }
}

/// Returns `true` if a lease was written by this process.
// Only the process that increased the epoch writes `Live` and `Draining` with it.
fn is_own(record: &NodeRecord, epoch: u64) -> bool {
    record.epoch == epoch
        && match record.state {
            NodeState::Live | NodeState::Draining => true,
            NodeState::Left | NodeState::TakenOver(_) => false,
        }
}

/// Replaces the lease with one of a new epoch. `latest` is the epoch of this process, if it has joined before.
async fn join<S: Store>(
    node: &NodeName,
    process: &str,
    clock: &dyn Clock,
    store: &SealedStore<S>,
    head: NodeHead,
    load: NodeLoad,
    latest: Option<u64>,
) -> Result<OwnLease, FleetError> {
    let key = node_key(node);
    let (found, expected) = match store.read::<NodeRecord>(&key).await? {
        Some((found, revision)) => {
            // A node that takes over keeps the name of the process; so does an earlier try whose answer was lost.
            if latest.is_some() && found.process != process {
                return Err(FleetError::NodeRuns { node: node.clone() });
            }
            (found.epoch, revision)
        }
        None => (latest.unwrap_or(0), 0),
    };
    let epoch = found + 1;
    let renewed_at = clock.monotonic();
    let record = record(process, epoch, NodeState::Live, head, load, 0);
    match store.update(&key, &encode(&record)?, expected).await? {
        Write::Done(revision) => {
            Ok(OwnLease { epoch, revision, renewals: 0, renewed_at, is_replaced: false, is_left: false })
        }
        Write::Conflict => Err(FleetError::NodeRuns { node: node.clone() }),
    }
}

fn record(
    process: &str,
    epoch: u64,
    state: NodeState,
    head: NodeHead,
    load: NodeLoad,
    renewals: u64,
) -> NodeRecord {
    NodeRecord {
        epoch,
        process: process.to_owned(),
        state,
        receipts: head.receipts,
        head: Digest(head.hash).to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        load,
        renewals,
    }
}

pub(crate) fn node_key(node: &NodeName) -> String {
    format!("node.{node}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_fleets_names_the_times() {
        let page = include_str!("../../../../docs/fleet.md").split_whitespace().collect::<Vec<_>>().join(" ");
        let times = LeaseTimes::default();
        let [lease, fence, renewal, sweep, restart_wait] =
            [times.lease(), times.fence(), times.renewal(), times.sweep(), times.restart_wait()].map(
                |time| {
                    assert_eq!(time.subsec_nanos(), 0);
                    time.as_secs()
                },
            );
        let latest = lease + sweep;
        let permitted = LeaseTimes::SECONDS;
        for named in [
            format!("| {renewal} s | a node renews its lease, "),
            format!("| {fence} s | a node that could not renew its lease stops its runs "),
            format!("| {lease} to {latest} s | a lease was not renewed: another node takes over "),
            format!("the times for a lease of {lease} s; "),
            format!("`fleet init --lease-seconds N` ({} to {})", permitted.start(), permitted.end()),
            format!("The node counts the {fence} s from "),
            format!("the other node the {lease} s from "),
            format!("Runs end within the {} s in between.", lease - fence),
            format!("it waits up to {restart_wait} s for the lease of an earlier process"),
        ] {
            assert!(page.contains(&named), "{named}");
        }
    }
}
