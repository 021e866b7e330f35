//! The values that the nodes of a fleet have written, for operators and nodes, and an operator's request to drain one.

use crate::identity::read_identity;
use crate::lease::{LeaseTimes, NodeLoad, NodeState, node_key};
use crate::marks::Mark;
use crate::record::{DrainRecord, NodeRecord, decode, encode};
use crate::seal::SealedStore;
use crate::store::{Store, StoredValue};
use crate::{FleetError, FleetKey};
use a2g_types::node::{FleetName, NodeName};
use std::time::Duration;

/// What the fleet knows of a node.
#[derive(Debug, Clone)]
pub struct NodeStatus {
    /// The name.
    pub node: NodeName,
    /// Increases each time that the node joins.
    pub epoch: u64,
    /// The state that the node, or the one that has taken over, has written.
    pub state: NodeState,
    /// The time since the state was written, by the clock of the servers: the age of the node's last sign of life, or the
    /// time since it has left or was taken over.
    pub seen: Duration,
    /// `true` if the node has not renewed its lease for its whole length, and no other node has taken over yet.
    pub is_overdue: bool,
    /// The version of the executor.
    pub version: String,
    /// The number of the latest receipt in the node's journal.
    pub receipts: u64,
    /// The hash of that receipt, in hexadecimal.
    pub head: String,
    /// The load at the latest renewal, `None` if that is too long ago; all figures of a node that has ended are 0.
    pub load: Option<NodeLoad>,
    /// The number of intents that the node has claimed, and whose reports are not delivered.
    pub open: usize,
}

impl NodeStatus {
    /// The state in one word.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.state {
            NodeState::Live | NodeState::Draining if self.is_overdue => "lost",
            NodeState::Live => "live",
            NodeState::Draining => "draining",
            NodeState::Left => "left",
            NodeState::TakenOver(_) => "lost",
        }
    }

    /// Returns `true` if the node holds a lease.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.state.has_ended() && !self.is_overdue
    }

    /// The node that has taken over, if this one is lost.
    #[must_use]
    pub fn taken_over_by(&self) -> Option<&NodeName> {
        match &self.state {
            NodeState::TakenOver(by) => Some(by),
            NodeState::Live | NodeState::Draining | NodeState::Left => None,
        }
    }

    /// The time since the state was written, such as `3 s`.
    #[must_use]
    pub fn seen_text(&self) -> String {
        format_age(self.seen)
    }
}

/// A time in one unit.
fn format_age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// A fleet, as an operator sees it.
pub struct FleetView<S>(SealedStore<S>);

impl<S: Store> FleetView<S> {
    /// The fleet in a store.
    #[must_use]
    pub fn new(store: S, key: FleetKey, fleet: FleetName) -> Self {
        Self(SealedStore::new(store, key, fleet))
    }

    /// All nodes of the fleet, by name, and the errors of the leases that cannot be read.
    ///
    /// # Errors
    /// [`FleetError`], also if no lease can be read.
    pub async fn status(&self) -> Result<(Vec<NodeStatus>, Vec<FleetError>), FleetError> {
        let (nodes, unreadable) = read_status(&self.0, self.lease_times().await?).await?;
        if nodes.is_empty() && !unreadable.is_empty() {
            return Err(FleetError::OtherKey { fleet: self.0.seal.fleet().clone() });
        }
        Ok((nodes, unreadable))
    }

    /// The facts that the fleet knows of a node; `None` if there is no such node.
    ///
    /// # Errors
    /// [`FleetError`], also if the lease of the node cannot be read.
    pub async fn find_node(&self, node: &NodeName) -> Result<Option<NodeStatus>, FleetError> {
        read_node(&self.0, node, self.lease_times().await?).await
    }

    /// Asks a node to finish its runs and to leave, if it runs. Returns what the fleet knew of it; `None` if there is no
    /// such node.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn request_drain(&self, node: &NodeName) -> Result<Option<NodeStatus>, FleetError> {
        let Some(status) = self.find_node(node).await? else { return Ok(None) };
        if status.is_running() {
            let epoch = status.epoch;
            self.0.put(&drain_key(node), &encode(&DrainRecord { epoch })?).await?;
        }
        Ok(Some(status))
    }

    async fn lease_times(&self) -> Result<LeaseTimes, FleetError> {
        let missing = || FleetError::NoStream { fleet: self.0.seal.fleet().clone() };
        let (identity, _revision) = read_identity(&self.0).await?.ok_or_else(missing)?;
        Ok(identity.lease)
    }
}

pub(crate) async fn read_status<S: Store>(
    store: &SealedStore<S>,
    times: LeaseTimes,
) -> Result<(Vec<NodeStatus>, Vec<FleetError>), FleetError> {
    let mut all = Vec::new();
    let mut unreadable = Vec::new();
    for node in nodes(store).await? {
        match read_node(store, &node, times).await {
            Ok(found) => all.extend(found),
            Err(error @ FleetError::Value { .. }) => unreadable.push(error),
            Err(error) => return Err(error),
        }
    }
    all.sort_by(|a, b| a.node.as_str().cmp(b.node.as_str()));
    Ok((all, unreadable))
}

/// Returns `true` if an operator has asked the node to leave since it joined with this epoch.
pub(crate) async fn is_drain_requested<S: Store>(
    store: &SealedStore<S>,
    node: &NodeName,
    epoch: u64,
) -> Result<bool, FleetError> {
    let key = drain_key(node);
    match store.get(&key).await {
        Ok(Some(StoredValue { bytes, .. })) => Ok(decode::<DrainRecord>(&key, &bytes)?.epoch == epoch),
        // A value that no node wrote asks for nothing.
        Ok(None) | Err(FleetError::Value { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn read_node<S: Store>(
    store: &SealedStore<S>,
    node: &NodeName,
    times: LeaseTimes,
) -> Result<Option<NodeStatus>, FleetError> {
    let key = node_key(node);
    let Some((StoredValue { bytes, .. }, seen)) = store.get_with_age(&key).await? else { return Ok(None) };
    let record = decode::<NodeRecord>(&key, &bytes)?;
    let NodeRecord { epoch, state, receipts, head, version, load, .. } = record;
    let open = marks(store, node).await?.len();
    let is_overdue = !state.has_ended() && seen >= times.lease();
    let load = if is_overdue { None } else { Some(current_load(&state, load)) };
    let node = node.clone();
    Ok(Some(NodeStatus { node, epoch, state, seen, is_overdue, version, receipts, head, load, open }))
}

/// The load of a node, of which `latest` was the load at its latest renewal.
fn current_load(state: &NodeState, latest: NodeLoad) -> NodeLoad {
    // Others have taken over the work of a node that has ended.
    if state.has_ended() { NodeLoad::default() } else { latest }
}

/// The nodes that have joined the fleet.
pub(crate) async fn nodes<S: Store>(store: &SealedStore<S>) -> Result<Vec<NodeName>, FleetError> {
    let keys = store.keys("node.>").await?;
    let names = keys.iter().filter_map(|key| key.strip_prefix("node."));
    Ok(names.filter_map(|name| NodeName::try_from(name.to_owned()).ok()).collect())
}

/// The marks of a node.
pub(crate) async fn marks<S: Store>(
    store: &SealedStore<S>,
    node: &NodeName,
) -> Result<Vec<Mark>, FleetError> {
    let prefix = format!("open.{node}.");
    let keys = store.keys(&format!("{prefix}>")).await?;
    Ok(keys.into_iter().filter_map(|key| Mark::parse(&prefix, key)).collect())
}

fn drain_key(node: &NodeName) -> String {
    format!("drain.{node}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_has_ended_has_no_load() {
        let latest = NodeLoad { running: 1, queued: 2, waiting: 3, concurrent: 4, undelivered: 5 };
        for state in [NodeState::Live, NodeState::Draining] {
            assert_eq!(current_load(&state, latest), latest);
        }
        let other = NodeName::try_from("other".to_owned()).unwrap();
        for state in [NodeState::Left, NodeState::TakenOver(other)] {
            assert_eq!(current_load(&state, latest), NodeLoad::default());
        }
    }

    #[test]
    fn ages_have_one_unit() {
        for (seconds, text) in [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7_199, "119 min"),
            (7_200, "2 h"),
            (172_800, "2 days"),
        ] {
            assert_eq!(format_age(Duration::from_secs(seconds)), text);
        }
    }
}
