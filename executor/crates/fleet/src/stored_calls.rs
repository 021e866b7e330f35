//! The stored calls: those of A2A tasks, whose callers do not wait with them. If the node of one is lost, another node
//! runs it.
//!
//! ```text
//! store ─▶ `call.NODE.INTENT` ─▶ the intent has a claim, of a run or a denial ─▶ removed
//!                └─▶ its holder is lost: another node becomes the holder, and runs or denies it
//! ```
//! Only the claim decides what becomes of the intent. So a call that is removed may come back, as after a server of NATS
//! was killed: the next sweep finds the claim, and removes the call again.

use crate::claims::Fleet;
use crate::messages::{CallMessage, PassedCall};
use crate::record::{decode, encode};
use crate::store::{Store, StoredValue, Write};
use crate::takeover::skip_unreadable;
use crate::{FleetError, NodeName};
use a2g_types::ident::IntentId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use tokio::sync::Notify;

/// The value of a stored call.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredCallRecord {
    /// The node at which the call waits.
    holder: NodeName,
    /// The epoch of that node when it got the call.
    epoch: u64,
    call: CallMessage,
}

/// The stored calls of this process.
#[derive(Default)]
pub(crate) struct StoredCalls {
    /// The keys of the calls that wait here.
    held: Mutex<HashMap<IntentId, String>>,
    /// Those that were taken over from lost nodes, until [`Fleet::next_orphan_call`] returns them.
    orphans: Mutex<VecDeque<OrphanCall>>,
    has_orphans: Notify,
}

/// A call that a lost node left.
#[derive(Debug)]
pub struct OrphanCall {
    /// The intent.
    pub intent: IntentId,
    /// The node that had the call.
    pub from: NodeName,
    /// The call.
    pub call: PassedCall,
}

impl<S: Store> Fleet<S> {
    /// Stores a call that waits at this node, until [`Self::remove_call`].
    ///
    /// # Errors
    /// [`FleetError`]; the call may have been stored.
    pub async fn store_call(&self, intent: IntentId, call: CallMessage) -> Result<(), FleetError> {
        let (key, epoch) = (call_key(&self.node, intent), self.lease.epoch());
        let record = StoredCallRecord { holder: self.node.clone(), epoch, call };
        // Held before it is written: otherwise a sweep could take it over.
        self.stored_calls.held.lock().insert(intent, key.clone());
        self.store.put(&key, &encode(&record)?).await.map(drop)
    }

    /// Removes a call whose intent has a claim.
    ///
    /// # Errors
    /// [`FleetError`]; a sweep removes the call.
    pub async fn remove_call(&self, intent: IntentId) -> Result<(), FleetError> {
        let Some(key) = self.stored_calls.held.lock().remove(&intent) else { return Ok(()) };
        match self.store.get(&key).await? {
            Some(StoredValue { revision, .. }) => self.store.remove(revision).await,
            None => Ok(()),
        }
    }

    /// Reads a call that waits at this node; `None` if the fleet does not have it.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn read_call(&self, intent: IntentId) -> Result<Option<PassedCall>, FleetError> {
        let Some(key) = self.stored_calls.held.lock().get(&intent).cloned() else { return Ok(None) };
        let Some(StoredValue { bytes, .. }) = self.store.get(&key).await? else { return Ok(None) };
        let record = decode::<StoredCallRecord>(&key, &bytes)?;
        Ok(Some(PassedCall::from_sealed_value(record.call)))
    }

    /// Returns `true` if the fleet stores a call that has waited at this node.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn is_call_stored(&self, intent: IntentId) -> Result<bool, FleetError> {
        Ok(self.store.get(&call_key(&self.node, intent)).await?.is_some())
    }

    /// Waits for a call of a lost node, which waits at this one from now on, until [`Self::remove_call`].
    pub async fn next_orphan_call(&self) -> OrphanCall {
        loop {
            let added = self.stored_calls.has_orphans.notified();
            if let Some(call) = self.stored_calls.orphans.lock().pop_front() {
                return call;
            }
            added.await;
        }
    }

    fn holds_call(&self, intent: IntentId) -> bool {
        self.stored_calls.held.lock().contains_key(&intent)
    }

    /// Takes over the stored calls of `node` whose holders are lost.
    pub(crate) async fn take_over_calls(&self, node: &NodeName) -> Result<(), FleetError> {
        let prefix = format!("call.{node}.");
        let mut epochs = HashMap::new();
        for key in self.store.keys(&prefix).await? {
            let intent = key.strip_prefix(&prefix).and_then(|intent| IntentId::parse(intent).ok());
            let Some(intent) = intent.filter(|intent| !self.holds_call(*intent)) else { continue };
            skip_unreadable(self.take_over_call(intent, &key, &mut epochs).await)?;
        }
        Ok(())
    }

    /// Takes over one stored call, or removes it if its intent has a claim. `epochs` has the epoch of each lease that was
    /// read in this sweep; `None` for a node that has ended.
    async fn take_over_call(
        &self,
        intent: IntentId,
        key: &str,
        epochs: &mut HashMap<NodeName, Option<u64>>,
    ) -> Result<(), FleetError> {
        let Some(StoredValue { bytes, revision }) = self.store.get(key).await? else { return Ok(()) };
        let StoredCallRecord { holder, epoch, call } = decode(key, &bytes)?;
        let current = match epochs.get(&holder) {
            Some(current) => *current,
            None => {
                let current = self.read_epoch(&holder).await?;
                epochs.insert(holder.clone(), current);
                current
            }
        };
        if current == Some(epoch) && holder != self.node {
            return Ok(());
        }
        let has_claim = self.read_claim(intent).await?.is_some();
        // Checked after the reads: a call is held before it is stored, and until it has a claim.
        if self.holds_call(intent) {
            return Ok(());
        }
        if has_claim {
            return self.store.remove(revision).await;
        }
        let record = StoredCallRecord { holder: self.node.clone(), epoch: self.lease.epoch(), call };
        if let Write::Done(_) = self.store.update(key, &encode(&record)?, revision).await? {
            self.stored_calls.held.lock().insert(intent, key.to_owned());
            let orphan =
                OrphanCall { intent, from: holder, call: PassedCall::from_sealed_value(record.call) };
            self.stored_calls.orphans.lock().push_back(orphan);
            self.stored_calls.has_orphans.notify_one();
        }
        Ok(())
    }
}

fn call_key(node: &NodeName, intent: IntentId) -> String {
    format!("call.{node}.{intent}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{NewClaim, NewDenial};
    use crate::lease::{NodeHead, NodeState, node_key};
    use crate::record::NodeRecord;
    use crate::{FleetKey, FleetName};
    use a2g_types::clock::SystemClock;
    use bytes::Bytes;
    use serde_json::value::RawValue;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Waker};

    type Values = Arc<Mutex<(u64, HashMap<String, StoredValue>)>>;

    /// A store whose requests wait once before they take effect, and once before they are answered.
    #[derive(Clone, Default)]
    struct SlowStore {
        values: Values,
        /// `true` if the next update takes effect, but its answer is lost.
        loses_answer: Arc<AtomicBool>,
    }

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
                let (revision, values) = &mut *self.values.lock();
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
            let write = write.await;
            if self.loses_answer.swap(false, Ordering::Relaxed) {
                return Err(FleetError::unavailable("write a key", "the answer is lost"));
            }
            Ok(write)
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
            self.store.values.lock().1.keys().any(|key| key.contains(part))
        }
    }

    fn call() -> CallMessage {
        CallMessage { text: "{}".to_owned(), asked_governor: true }
    }

    fn take_orphans(node: &Fleet<SlowStore>) -> usize {
        std::mem::take(&mut *node.stored_calls.orphans.lock()).len()
    }

    #[test]
    fn one_node_takes_over_the_call_of_a_lost_one() {
        let mut by_two = 0;
        for seed in 0..1_000 {
            let nodes = Nodes::join();
            let [one, two, three] = &nodes.all;
            let intent = IntentId::random();
            finish(one.store_call(intent, call()));
            finish(two.take_over_calls(&one.node));
            assert_eq!(take_orphans(two), 0, "the node is not lost");
            nodes.lose(0);
            let sweeps = [two, three]
                .map(|node| Box::pin(node.take_over_calls(&one.node)) as Pin<Box<dyn Future<Output = _>>>);
            assert!(interleave(seed, sweeps.into()).iter().all(Result::is_ok));
            let taken = [two, three].map(take_orphans);
            assert_eq!(taken.iter().sum::<usize>(), 1, "seed {seed}");
            by_two += taken[0];
            // The next one takes it over if that node is lost too.
            nodes.lose(1);
            finish(three.take_over_calls(&one.node));
            assert_eq!(take_orphans(three), taken[0], "seed {seed}");
            assert!(finish(one.is_call_stored(intent)));
            finish(three.remove_call(intent));
            assert!(!nodes.has_key("call."), "seed {seed}");
        }
        assert!((100..900).contains(&by_two), "{by_two} of 1000");
    }

    #[test]
    fn a_call_that_has_a_claim_is_removed() {
        let nodes = Nodes::join();
        let [one, two, _] = &nodes.all;
        let [claimed, denied] = [(); 2].map(|()| IntentId::random());
        for intent in [claimed, denied] {
            finish(one.store_call(intent, call()));
        }
        let empty = || RawValue::from_string("{}".to_owned()).unwrap();
        let (content, agent, fallback) = (&[0; 32], "did:a:a", empty());
        let new = NewClaim { intent: claimed, content, agent, verdict: None, fallback, proof: None };
        finish(two.claim(new));
        finish(two.deny(NewDenial { intent: denied, content, agent, denial: empty() }));
        nodes.lose(0);
        finish(two.take_over_calls(&one.node));
        assert_eq!((take_orphans(two), nodes.has_key("call.")), (0, false));
    }

    #[test]
    fn a_takeover_whose_answer_was_lost_is_repeated() {
        let nodes = Nodes::join();
        let [one, two, _] = &nodes.all;
        let intent = IntentId::random();
        finish(one.store_call(intent, call()));
        nodes.lose(0);
        nodes.store.loses_answer.store(true, Ordering::Relaxed);
        let failed = interleave(0, vec![Box::pin(two.take_over_calls(&one.node))]);
        assert!(failed[0].is_err() && take_orphans(two) == 0);
        finish(two.take_over_calls(&one.node));
        assert_eq!((take_orphans(two), two.holds_call(intent)), (1, true));
        assert_eq!(finish(two.read_call(intent)).unwrap().text(), "{}");
    }

    #[test]
    fn a_node_takes_over_the_calls_of_its_earlier_process() {
        let nodes = Nodes::join();
        let [one, ..] = &nodes.all;
        let intent = IntentId::random();
        finish(one.store_call(intent, call()));
        finish(one.take_over_calls(&one.node));
        assert_eq!(take_orphans(one), 0, "it waits here");
        one.stored_calls.held.lock().clear();
        finish(one.take_over_calls(&one.node));
        assert_eq!((take_orphans(one), one.holds_call(intent)), (1, true));
        finish(one.remove_call(intent));
        assert!(!nodes.has_key("call."));
    }
}
