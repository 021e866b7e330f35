//! The view of a fleet for operators: what its nodes have written, read without joining it.

use crate::claims::Mark;
use crate::lease::{NodeLoad, NodeState, node_key};
use crate::record::{DrainRecord, NodeRecord, decode, encode};
use crate::seal::SealedStore;
use crate::store::{Store, StoredValue};
use crate::{Fleet, FleetError, FleetKey, FleetName, NodeName};

/// What the fleet knows of a node.
#[derive(Debug, Clone)]
pub struct NodeStatus {
    /// The name.
    pub node: NodeName,
    /// The state that the node, or the one that has taken over, has written.
    pub state: NodeState,
    /// The version of the executor.
    pub version: String,
    /// The number of the latest receipt in the node's journal.
    pub receipts: u64,
    /// The hash of that receipt, in hexadecimal.
    pub head: String,
    /// The load at the latest renewal; nothing runs or waits at a node that has ended.
    pub load: NodeLoad,
    /// The number of intents that the node has claimed, and whose reports are not delivered.
    pub open: usize,
}

impl NodeStatus {
    /// The state in one word.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.state {
            NodeState::Live => "live",
            NodeState::Draining => "draining",
            NodeState::Left => "left",
            NodeState::TakenOver(_) => "lost",
        }
    }

    /// The node that has taken over, if this one is lost.
    #[must_use]
    pub fn taken_over_by(&self) -> Option<&NodeName> {
        match &self.state {
            NodeState::TakenOver(by) => Some(by),
            NodeState::Live | NodeState::Draining | NodeState::Left => None,
        }
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
    /// [`FleetError`].
    pub async fn status(&self) -> Result<(Vec<NodeStatus>, Vec<FleetError>), FleetError> {
        read_status(&self.0).await
    }

    /// The epoch, the state and the load of a node; `None` if there is no such node.
    ///
    /// # Errors
    /// [`FleetError`], also if the lease of the node cannot be read.
    pub async fn find_node(&self, node: &NodeName) -> Result<Option<(u64, NodeState, NodeLoad)>, FleetError> {
        let record = read_node(&self.0, node).await?;
        Ok(record.map(|NodeRecord { epoch, state, load, .. }| (epoch, state, load)))
    }

    /// Asks a node to finish its runs and to leave. Returns the epoch of its current join; `None` if there is no such
    /// node, or it has left.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn request_drain(&self, node: &NodeName) -> Result<Option<u64>, FleetError> {
        let Some(NodeRecord { epoch, state, .. }) = read_node(&self.0, node).await? else { return Ok(None) };
        if state.has_ended() {
            return Ok(None);
        }
        self.0.put(&drain_key(node), &encode(&DrainRecord { epoch })?).await?;
        Ok(Some(epoch))
    }
}

impl<S: Store> Fleet<S> {
    /// All nodes of the fleet, by name, without those whose leases cannot be read.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn status(&self) -> Result<Vec<NodeStatus>, FleetError> {
        read_status(&self.store).await.map(|(nodes, _unreadable)| nodes)
    }
}

async fn read_status<S: Store>(
    store: &SealedStore<S>,
) -> Result<(Vec<NodeStatus>, Vec<FleetError>), FleetError> {
    let (mut all, mut unreadable) = (Vec::new(), Vec::new());
    for node in nodes(store).await? {
        let record = match read_node(store, &node).await {
            Ok(Some(record)) => record,
            Ok(None) => continue,
            Err(error @ FleetError::Value { .. }) => {
                unreadable.push(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let open = marks(store, &node).await?.len();
        let NodeRecord { state, receipts, head, version, load, .. } = record;
        // The latest load of a node that has ended says what others have taken over since.
        let load = match state.has_ended() {
            true => NodeLoad { running: 0, queued: 0, waiting: 0, ..load },
            false => load,
        };
        all.push(NodeStatus { node, state, version, receipts, head, load, open });
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
) -> Result<Option<NodeRecord>, FleetError> {
    let key = node_key(node);
    let Some(StoredValue { bytes, .. }) = store.get(&key).await? else { return Ok(None) };
    decode(&key, &bytes).map(Some)
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
