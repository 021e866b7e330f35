//! The stored calls: those that wait at a node while their callers do not. If the node is lost, another one runs them.
//!
//! ```text
//! store ─▶ `queued.NODE.INTENT` ─▶ the call has run at some node     ─▶ removed
//!                  │           └─▶ withdrawn: it runs at no node     ─▶ removed
//!                  └─▶ its holder is lost: another node becomes the holder, and runs it
//! ```
//! A withdrawal and a takeover name the revision that they replace, so one of them fails. The claim decides who runs the
//! call, as for every other one.

use crate::claims::Fleet;
use crate::lease::node_key;
use crate::messages::{CallMessage, PassedCall};
use crate::record::{NodeRecord, decode, encode};
use crate::store::{Store, StoredValue, Write};
use crate::takeover::skip_unreadable;
use crate::{FleetError, NodeName};
use a2g_types::ident::IntentId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tokio::sync::Notify;

/// The maximum number of times that a stored call is read again because another node has changed it.
const MAX_TRIES: usize = 8;

/// The value of a stored call.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredCallRecord {
    /// The node at which the call waits.
    holder: NodeName,
    /// The epoch of that node when it got the call.
    epoch: u64,
    /// `None` once the call is withdrawn.
    call: Option<CallMessage>,
}

/// A stored call that waits in this process.
#[derive(Debug, Clone)]
struct HeldCall {
    key: String,
    epoch: u64,
}

/// The stored calls of this process.
#[derive(Default)]
pub(crate) struct StoredCalls {
    held: Mutex<HashMap<IntentId, HeldCall>>,
    /// Those of lost nodes that do not wait here yet.
    lost: Mutex<Vec<LostCall>>,
    has_lost: Notify,
}

/// A call that waited at a lost node.
#[derive(Debug)]
pub struct LostCall {
    /// The intent.
    pub intent: IntentId,
    /// The node that had the call.
    pub from: NodeName,
    /// The call.
    pub call: PassedCall,
}

impl<S: Store> Fleet<S> {
    /// Stores a call that waits at this node. It is stored until it is passed to [`Self::remove_queued`] or
    /// [`Self::withdraw_queued`].
    ///
    /// # Errors
    /// [`FleetError`]; the call may have been stored.
    pub async fn store_queued(&self, intent: IntentId, call: CallMessage) -> Result<(), FleetError> {
        let (key, epoch) = (queued_key(&self.node, intent), self.lease.epoch());
        // Before the write: otherwise a sweep could remove it.
        let held = HeldCall { key: key.clone(), epoch };
        if self.stored_calls.held.lock().insert(intent, held).is_some() {
            return Err(FleetError::unavailable("store a call", "it is stored already"));
        }
        let record = StoredCallRecord { holder: self.node.clone(), epoch, call: Some(call) };
        self.store.put(&key, &encode(&record)?).await.map(drop)
    }

    /// Returns `true` if a call that waits at this node may be stored.
    #[must_use]
    pub fn holds_queued(&self, intent: IntentId) -> bool {
        self.stored_calls.held.lock().contains_key(&intent)
    }

    /// Removes a stored call of this node that has run.
    ///
    /// # Errors
    /// [`FleetError`]: a sweep removes it.
    pub async fn remove_queued(&self, intent: IntentId) -> Result<(), FleetError> {
        let Some(HeldCall { key, .. }) = self.stored_calls.held.lock().remove(&intent) else { return Ok(()) };
        match self.store.get(&key).await? {
            Some(StoredValue { revision, .. }) => self.store.remove(revision).await,
            None => Ok(()),
        }
    }

    /// Withdraws a call of this node, so that no other node takes it over. Returns `false` if one has done so before: the
    /// call may run there. A call that is not stored is withdrawn already.
    ///
    /// # Errors
    /// [`FleetError`]; the call can be repeated.
    pub async fn withdraw_queued(&self, intent: IntentId) -> Result<bool, FleetError> {
        let Some(HeldCall { key, epoch }) = self.stored_calls.held.lock().get(&intent).cloned() else {
            return Ok(true);
        };
        for _ in 0..MAX_TRIES {
            let Some(StoredValue { bytes, revision }) = self.store.get(&key).await? else {
                // It was never stored, or another node has taken it over and removed it after its run.
                let has_run = self.read_claim(intent).await?.is_some();
                self.stored_calls.held.lock().remove(&intent);
                return Ok(!has_run);
            };
            let record = decode::<StoredCallRecord>(&key, &bytes)?;
            if record.holder != self.node || record.epoch != epoch {
                self.stored_calls.held.lock().remove(&intent);
                return Ok(false);
            }
            let withdrawn = StoredCallRecord { call: None, ..record };
            if let Write::Done(revision) = self.store.update(&key, &encode(&withdrawn)?, revision).await? {
                self.stored_calls.held.lock().remove(&intent);
                // If this fails, a sweep removes it.
                drop(self.store.remove(revision).await);
                return Ok(true);
            }
        }
        Err(FleetError::unavailable("withdraw a call", "it keeps changing"))
    }

    /// Returns `true` if the fleet still has a call that waited at this node.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn is_queued(&self, intent: IntentId) -> Result<bool, FleetError> {
        let key = queued_key(&self.node, intent);
        let Some(StoredValue { bytes, .. }) = self.store.get(&key).await? else { return Ok(false) };
        Ok(decode::<StoredCallRecord>(&key, &bytes)?.call.is_some())
    }

    /// Waits for a call of a lost node. This node holds it until it is passed to [`Self::remove_queued`] or
    /// [`Self::withdraw_queued`].
    pub async fn next_lost_call(&self) -> LostCall {
        loop {
            let added = self.stored_calls.has_lost.notified();
            if let Some(call) = self.stored_calls.lost.lock().pop() {
                return call;
            }
            added.await;
        }
    }

    /// Takes over the stored calls of `node` whose holders are lost.
    pub(crate) async fn take_over_calls(&self, node: &NodeName) -> Result<(), FleetError> {
        let prefix = format!("queued.{node}.");
        let mut leases = HashMap::new();
        for key in self.store.keys(&prefix).await? {
            let intent = key.strip_prefix(&prefix).and_then(|intent| IntentId::parse(intent).ok());
            let Some(intent) = intent.filter(|intent| !self.holds_queued(*intent)) else { continue };
            skip_unreadable(self.take_over_call(intent, &key, &mut leases).await)?;
        }
        Ok(())
    }

    /// `leases` are the epochs of the leases that were read in this sweep; `None` for a node that has ended.
    async fn take_over_call(
        &self,
        intent: IntentId,
        key: &str,
        leases: &mut HashMap<NodeName, Option<u64>>,
    ) -> Result<(), FleetError> {
        let Some(StoredValue { bytes, revision }) = self.store.get(key).await? else { return Ok(()) };
        let StoredCallRecord { holder, epoch, call } = decode(key, &bytes)?;
        // Checked after the read: a call is held before it is stored.
        if self.holds_queued(intent) {
            return Ok(());
        }
        let current = match leases.get(&holder) {
            Some(current) => *current,
            None => {
                let current = self.read_epoch(&holder).await?;
                leases.insert(holder.clone(), current);
                current
            }
        };
        let is_held = current == Some(epoch);
        if is_held && holder != self.node {
            return Ok(());
        }
        // A call of this epoch of this node has ended here, and could not be removed.
        let has_ended = is_held || self.read_claim(intent).await?.is_some();
        let Some(call) = call.filter(|_| !has_ended) else { return self.store.remove(revision).await };
        let epoch = self.lease.epoch();
        let record = StoredCallRecord { holder: self.node.clone(), epoch, call: Some(call.clone()) };
        if let Write::Done(_) = self.store.update(key, &encode(&record)?, revision).await? {
            let held = HeldCall { key: key.to_owned(), epoch };
            self.stored_calls.held.lock().insert(intent, held);
            let lost = LostCall { intent, from: holder, call: PassedCall(call) };
            self.stored_calls.lost.lock().push(lost);
            self.stored_calls.has_lost.notify_one();
        }
        Ok(())
    }

    /// The epoch of a node's lease; `None` for a node that has ended.
    async fn read_epoch(&self, node: &NodeName) -> Result<Option<u64>, FleetError> {
        let key = node_key(node);
        let Some(StoredValue { bytes, .. }) = self.store.get(&key).await? else { return Ok(None) };
        let NodeRecord { epoch, state, .. } = decode(&key, &bytes)?;
        Ok((!state.has_ended()).then_some(epoch))
    }
}

fn queued_key(node: &NodeName, intent: IntentId) -> String {
    format!("queued.{node}.{intent}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{NewClaim, NewDenial};
    use crate::lease::{NodeHead, NodeState};
    use crate::{FleetKey, FleetName};
    use a2g_types::clock::SystemClock;
    use bytes::Bytes;
    use serde_json::value::RawValue;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    type Values = Arc<Mutex<(u64, HashMap<String, StoredValue>)>>;

    /// A store whose requests wait once before they take effect, and once before they are answered.
    #[derive(Clone, Default)]
    struct SlowStore(Values);

    async fn wait_once() {
        let mut has_waited = false;
        std::future::poll_fn(|_| {
            if std::mem::replace(&mut has_waited, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    impl SlowStore {
        async fn apply<T>(
            &self,
            request: impl FnOnce(&mut u64, &mut HashMap<String, StoredValue>) -> T,
        ) -> T {
            wait_once().await;
            let answer = {
                let (revision, values) = &mut *self.0.lock();
                request(revision, values)
            };
            wait_once().await;
            answer
        }
    }

    impl Store for SlowStore {
        async fn get(&self, key: &str) -> Result<Option<StoredValue>, FleetError> {
            Ok(self.apply(|_, values| values.get(key).cloned()).await)
        }

        async fn update(&self, key: &str, bytes: Bytes, expected: u64) -> Result<Write, FleetError> {
            let write = self.apply(|latest, values| {
                if values.get(key).map_or(0, |value| value.revision) != expected {
                    return Write::Conflict;
                }
                *latest += 1;
                values.insert(key.to_owned(), StoredValue { bytes, revision: *latest });
                Write::Done(*latest)
            });
            Ok(write.await)
        }

        async fn put(&self, key: &str, bytes: Bytes) -> Result<u64, FleetError> {
            let revision = self.apply(|latest, values| {
                *latest += 1;
                values.insert(key.to_owned(), StoredValue { bytes, revision: *latest });
                *latest
            });
            Ok(revision.await)
        }

        async fn remove(&self, revision: u64) -> Result<(), FleetError> {
            self.apply(|_, values| values.retain(|_, value| value.revision != revision)).await;
            Ok(())
        }

        async fn keys(&self, prefix: &str) -> Result<Vec<String>, FleetError> {
            let is_listed = |key: &&String| key.starts_with(prefix);
            Ok(self.apply(|_, values| values.keys().filter(is_listed).cloned().collect()).await)
        }
    }

    /// Polls all futures in an order that `seed` determines, until all have ended.
    fn interleave<'a, T>(mut seed: u64, futures: Vec<Pin<Box<dyn Future<Output = T> + 'a>>>) -> Vec<T> {
        let mut context = Context::from_waker(Waker::noop());
        let mut ends = futures.iter().map(|_| None).collect::<Vec<_>>();
        let mut open = futures.into_iter().enumerate().collect::<Vec<_>>();
        while !open.is_empty() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let nth = usize::try_from(seed >> 33).unwrap() % open.len();
            let (position, future) = &mut open[nth];
            if let Poll::Ready(end) = future.as_mut().poll(&mut context) {
                ends[*position] = Some(end);
                drop(open.swap_remove(nth));
            }
        }
        ends.into_iter().flatten().collect()
    }

    fn finish<T>(future: impl Future<Output = Result<T, FleetError>>) -> T {
        interleave(0, vec![Box::pin(future)]).pop().unwrap().unwrap()
    }

    struct Nodes {
        store: SlowStore,
        all: [Fleet<SlowStore>; 3],
    }

    impl Nodes {
        fn join() -> Self {
            let store = SlowStore::default();
            let all = ["one", "two", "three"].map(|name| {
                let name = NodeName::try_from(name.to_owned()).unwrap();
                let fleet = FleetName::try_from("tests".to_owned()).unwrap();
                let key = FleetKey::parse(&[b'a'; 64]).unwrap();
                let head = NodeHead { receipts: 0, hash: [0; 32] };
                finish(Fleet::join(name, Arc::new(SystemClock), store.clone(), key, fleet, head))
            });
            Self { store, all }
        }

        /// Lets the others know that a node is lost.
        fn lose(&self, nth: usize) {
            let node = &self.all[nth];
            let key = node_key(&node.node);
            let found = finish(node.store.get(&key)).unwrap();
            let record: NodeRecord = decode(&key, &found.bytes).unwrap();
            let lost = NodeRecord { state: NodeState::TakenOver(self.all[2].node.clone()), ..record };
            finish(node.store.put(&key, &encode(&lost).unwrap()));
        }

        fn has_key(&self, part: &str) -> bool {
            self.store.0.lock().1.keys().any(|key| key.contains(part))
        }
    }

    fn call() -> CallMessage {
        CallMessage { text: "{}".to_owned(), asked_governor: true }
    }

    fn taken(node: &Fleet<SlowStore>) -> usize {
        std::mem::take(&mut *node.stored_calls.lost.lock()).len()
    }

    #[test]
    fn a_call_is_withdrawn_or_taken_over_and_never_both() {
        let mut withdrawn = 0;
        for seed in 0..3_000 {
            let nodes = Nodes::join();
            let [one, two, three] = &nodes.all;
            let intent = IntentId::random();
            finish(one.store_queued(intent, call()));
            finish(two.take_over_calls(&one.node));
            assert_eq!(taken(two), 0, "the node is not lost");
            nodes.lose(0);
            let sweep = async |node: &Fleet<SlowStore>| {
                node.take_over_calls(&one.node).await.unwrap();
                None
            };
            let withdraw = async {
                for _ in 0..seed % 12 {
                    wait_once().await;
                }
                Some(one.withdraw_queued(intent).await.unwrap())
            };
            let ends =
                interleave(seed, vec![Box::pin(withdraw), Box::pin(sweep(two)), Box::pin(sweep(three))]);
            let is_withdrawn = ends[0].unwrap();
            let (by_two, by_three) = (taken(two), taken(three));
            assert_eq!(by_two + by_three, usize::from(!is_withdrawn), "seed {seed}");
            withdrawn += u32::from(is_withdrawn);
            assert!(!one.holds_queued(intent));
            // The next one takes it over if that node is lost too.
            nodes.lose(1);
            finish(three.take_over_calls(&one.node));
            assert_eq!(taken(three), by_two, "seed {seed}");
            assert_eq!(finish(one.is_queued(intent)), !is_withdrawn);
            finish(three.remove_queued(intent));
            assert!(!nodes.has_key("queued"), "seed {seed}");
        }
        assert!((300..2_700).contains(&withdrawn), "{withdrawn} of 3000");
    }

    #[test]
    fn a_call_that_has_a_claim_is_not_taken_over() {
        let nodes = Nodes::join();
        let [one, two, _] = &nodes.all;
        let [claimed, denied] = [(); 2].map(|()| IntentId::random());
        for intent in [claimed, denied] {
            finish(one.store_queued(intent, call()));
        }
        let empty = || RawValue::from_string("{}".to_owned()).unwrap();
        let (content, agent, fallback) = (&[0; 32], "did:a:a", empty());
        let new = NewClaim { intent: claimed, content, agent, verdict: None, fallback, proof: None };
        finish(two.claim(new));
        finish(two.deny(NewDenial { intent: denied, content, agent, denial: empty() }));
        nodes.lose(0);
        finish(two.take_over_calls(&one.node));
        assert_eq!((taken(two), nodes.has_key("queued")), (0, false));
        // The node had them until it was lost, and learns that they may have run.
        assert!(!finish(one.withdraw_queued(claimed)) && !finish(one.withdraw_queued(denied)));
    }

    #[test]
    fn a_node_takes_over_the_calls_of_its_earlier_process() {
        let nodes = Nodes::join();
        let [one, ..] = &nodes.all;
        let [waits, ended] = [(); 2].map(|()| IntentId::random());
        finish(one.store_queued(waits, call()));
        finish(one.take_over_calls(&one.node));
        assert_eq!(taken(one), 0, "it waits here");
        // Removed from memory only, as by a process that ended, and by a removal that failed.
        one.stored_calls.held.lock().clear();
        let record = |epoch| StoredCallRecord { holder: one.node.clone(), epoch, call: Some(call()) };
        let put = |intent, epoch| {
            finish(one.store.put(&queued_key(&one.node, intent), &encode(&record(epoch)).unwrap()))
        };
        put(waits, one.lease.epoch() - 1);
        put(ended, one.lease.epoch());
        finish(one.take_over_calls(&one.node));
        assert_eq!((taken(one), one.holds_queued(waits), one.holds_queued(ended)), (1, true, false));
        assert!(!nodes.has_key(&ended.to_string()));
        finish(one.remove_queued(waits));
        assert!(!nodes.has_key("queued"));
    }
}
