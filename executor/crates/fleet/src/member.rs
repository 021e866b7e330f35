//! This node as a member of its fleet: its name, its lease and its stream, and the leases of the other nodes.

use crate::identity::{OwnStream, check_identity};
use crate::lease::{Lease, node_key};
use crate::record::{NodeRecord, skip_unreadable};
use crate::seal::SealedStore;
use crate::store::Store;
use crate::view::{is_drain_requested, nodes, read_status};
use crate::{
    FleetError, FleetKey, LeaseTimes, NodeHead, NodeLoad, NodeState, NodeStatus, RememberedFleet,
    ServerStore, StreamIdentity,
};
use a2g_types::clock::Clock;
use a2g_types::node::{FleetName, NodeName};
use a2g_types::tool::Digest;
use hmac::Mac as _;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The maximum age of the nodes that [`Member::read_live_others`] returns.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// This node as a member of its fleet. The parts of a [`crate::Fleet`] share it.
pub struct Member<S> {
    pub(crate) node: NodeName,
    pub(crate) store: SealedStore<S>,
    pub(crate) lease: Lease,
    pub(crate) clock: Arc<dyn Clock>,
    stream: OwnStream,
    /// The other nodes that held a lease at the latest sweep; `None` before the first one.
    pub(crate) live_others: Mutex<Option<HashSet<NodeName>>>,
    /// The latest result of [`Self::read_live_others`], and when it was read.
    read_others: Mutex<Option<(Instant, HashSet<NodeName>)>>,
}

impl<S: Store> Member<S> {
    /// Joins the fleet. The earlier process of the node must have ended.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn join(
        node: NodeName,
        clock: Arc<dyn Clock>,
        store: S,
        key: FleetKey,
        fleet: FleetName,
        head: NodeHead,
    ) -> Result<Self, FleetError> {
        let store = SealedStore::new(store, key, fleet);
        let stream = OwnStream::new(check_identity(&store, None).await?);
        let lease =
            Lease::take(node.clone(), Arc::clone(&clock), &store, stream.identity.lease, head).await?;
        let live_others = Mutex::default();
        Ok(Self { node, store, lease, clock, stream, live_others, read_others: Mutex::default() })
    }

    /// The name of this node.
    #[must_use]
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// The number of values in the stream that no node of this fleet wrote.
    #[must_use]
    pub fn refused_values(&self) -> u64 {
        self.store.seal.refused()
    }

    /// Returns `true` while this node may start and continue runs.
    #[must_use]
    pub fn may_run(&self) -> bool {
        self.holds_lease(self.lease.epoch())
    }

    pub(crate) fn holds_lease(&self, epoch: u64) -> bool {
        self.lease.is_held(epoch) && !self.stream.is_lost()
    }

    /// Renews the lease of this node. If another node has taken over, joins again.
    ///
    /// # Errors
    /// [`FleetError::NodeRuns`] if another process has taken the name of this node.
    pub async fn renew(&self, state: NodeState, head: NodeHead, load: NodeLoad) -> Result<(), FleetError> {
        self.stream.check(&self.store, self.lease.renewals()).await?;
        match self.lease.renew(&self.store, state, head, load).await {
            Err(FleetError::LeaseLost) => self.lease.retake(&self.store, head, load).await,
            result => result,
        }
    }

    /// Returns `true` if an operator has asked this node to finish its runs and to leave.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn is_drain_requested(&self) -> Result<bool, FleetError> {
        is_drain_requested(&self.store, &self.node, self.lease.epoch()).await
    }

    /// The identity of the stream that this node has joined.
    #[must_use]
    pub fn identity(&self) -> &StreamIdentity {
        &self.stream.identity
    }

    /// The facts that the journal of this node has to remember.
    #[must_use]
    pub fn to_remember(&self) -> RememberedFleet {
        RememberedFleet { stream: self.identity().clone(), process: self.lease.process().to_owned() }
    }

    /// The times of the leases of all nodes.
    #[must_use]
    pub fn lease_times(&self) -> LeaseTimes {
        self.stream.identity.lease
    }

    /// The reason why the claims are gone, if the latest renewal has found that they are.
    #[must_use]
    pub fn loss(&self) -> Option<FleetError> {
        self.stream.loss()
    }

    /// The epoch of a node's lease; `None` for a node that has ended.
    pub(crate) async fn read_epoch(&self, node: &NodeName) -> Result<Option<u64>, FleetError> {
        let found = self.store.read::<NodeRecord>(&node_key(node)).await?;
        Ok(found.filter(|(record, _)| !record.state.has_ended()).map(|(record, _)| record.epoch))
    }

    /// All nodes of the fleet, by name, without those whose leases cannot be read.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn status(&self) -> Result<Vec<NodeStatus>, FleetError> {
        read_status(&self.store, self.lease_times()).await.map(|(nodes, _unreadable)| nodes)
    }

    /// The other nodes that held a lease at the latest sweep; `None` before the first one.
    pub(crate) fn live_others(&self) -> Option<HashSet<NodeName>> {
        self.live_others.lock().clone()
    }

    /// Returns `true` if another node held a lease at the latest sweep; `false` before the first one.
    #[must_use]
    pub fn has_live_others(&self) -> bool {
        self.live_others.lock().as_ref().is_some_and(|others| !others.is_empty())
    }

    /// Returns `true` if a node is this one, or was not known to be lost at most [`READ_INTERVAL`] ago.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn is_running(&self, node: &NodeName) -> Result<bool, FleetError> {
        Ok(*node == self.node || self.read_live_others().await?.contains(node))
    }

    /// The other nodes that held a lease, or were not known to be lost, at most [`READ_INTERVAL`] ago.
    pub(crate) async fn read_live_others(&self) -> Result<HashSet<NodeName>, FleetError> {
        let now = self.clock.monotonic();
        if let Some((read_at, others)) = &*self.read_others.lock()
            && now.saturating_duration_since(*read_at) < READ_INTERVAL
        {
            return Ok(others.clone());
        }
        let mut others = HashSet::new();
        for node in nodes(&self.store).await?.into_iter().filter(|node| *node != self.node) {
            // As in a sweep, a lease that cannot be read is that of no node.
            if skip_unreadable(self.read_epoch(&node).await)?.flatten().is_some() {
                others.insert(node);
            }
        }
        *self.read_others.lock() = Some((now, others.clone()));
        Ok(others)
    }

    /// Makes an id that a client gets and sends back, to any node: a random UUID, `extra`, and a code that binds both to the
    /// owner. `extra` has no dot.
    #[must_use]
    pub fn issue_id(&self, purpose: &str, extra: &str, owner: &str) -> String {
        let text = format!("{}.{extra}", Uuid::new_v4());
        let code = self.store.seal.code(&client_key(purpose), format!("{text}.{owner}").as_bytes());
        format!("{text}.{}", Digest(code.finalize().into_bytes().into()))
    }

    /// The `extra` of an id that a node of this fleet has made for this purpose and owner; `None` for any other text.
    #[must_use]
    pub fn read_id<'a>(&self, purpose: &str, id: &'a str, owner: &str) -> Option<&'a str> {
        let (text, code) = id.rsplit_once('.')?;
        let Digest(code) = Digest::parse(code).ok()?;
        let expected = self.store.seal.code(&client_key(purpose), format!("{text}.{owner}").as_bytes());
        expected.verify_slice(&code).ok()?;
        text.split_once('.').map(|(_uuid, extra)| extra)
    }
}

impl Member<ServerStore> {
    /// The addresses of the servers, without passwords.
    #[must_use]
    pub fn servers(&self) -> &str {
        self.store.store.servers()
    }
}

/// The key under which texts for clients are authenticated. No value has such a key.
fn client_key(purpose: &str) -> String {
    format!("client.{purpose}")
}
