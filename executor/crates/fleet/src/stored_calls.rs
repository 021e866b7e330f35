//! The stored calls: those of A2A tasks, whose callers do not wait with them. If the node of one is lost, another node
//! runs it.
//!
//! ```text
//! store ─▶ `call.NODE.INTENT` ─▶ the intent has a claim          ─▶ removed
//!                │           └─▶ withdrawn: it runs at no node   ─▶ removed
//!                └─▶ its holder is lost: another node becomes the holder, and runs it
//! ```
//! A withdrawal and a takeover name the revision that they replace, so one of them fails. The claim decides which node
//! runs the call, as for any other.

use crate::claims::{Fleet, MAX_TRIES};
use crate::messages::{CallMessage, PassedCall};
use crate::record::{decode, encode};
use crate::store::{Store, StoredValue, Write};
use crate::takeover::skip_unreadable;
use crate::{FleetError, NodeName};
use a2g_types::ident::IntentId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, VecDeque};
use tokio::sync::Notify;

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
    /// The calls that were taken over from lost nodes, and that nobody has asked for yet.
    orphans: Mutex<VecDeque<OrphanCall>>,
    has_orphans: Notify,
    /// The intents whose takeover by this process may have taken effect, because its answer was lost.
    doubtful: Mutex<HashSet<IntentId>>,
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

/// The end of a withdrawal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Withdrawal {
    /// No other node runs the call.
    Withdrawn,
    /// Another node has taken the call over before, and may run it.
    TakenOver,
}

impl<S: Store> Fleet<S> {
    /// Stores a call that waits at this node. It is stored until it is passed to [`Self::remove_call`] or
    /// [`Self::withdraw_call`].
    ///
    /// # Errors
    /// [`FleetError`]; the call may have been stored.
    pub async fn store_call(&self, intent: IntentId, call: CallMessage) -> Result<(), FleetError> {
        let (key, epoch) = (call_key(&self.node, intent), self.lease.epoch());
        let record = StoredCallRecord { holder: self.node.clone(), epoch, call: Some(call) };
        // Held before it is written: otherwise a sweep could remove it.
        self.stored_calls.held.lock().insert(intent, HeldCall { key: key.clone(), epoch });
        self.store.put(&key, &encode(&record)?).await.map(drop)
    }

    /// Returns `true` if this process has a call that may be stored.
    #[must_use]
    pub fn holds_call(&self, intent: IntentId) -> bool {
        self.stored_calls.held.lock().contains_key(&intent)
    }

    /// Removes the stored call of an intent that has a claim.
    ///
    /// # Errors
    /// [`FleetError`]; the next sweep removes the call.
    pub async fn remove_call(&self, intent: IntentId) -> Result<(), FleetError> {
        let Some(HeldCall { key, .. }) = self.stored_calls.held.lock().remove(&intent) else { return Ok(()) };
        match self.store.get(&key).await? {
            Some(StoredValue { revision, .. }) => self.store.remove(revision).await,
            None => Ok(()),
        }
    }

    /// Withdraws a call of this process, so that no other node takes it over. A call that this process does not hold is
    /// withdrawn already.
    ///
    /// # Errors
    /// [`FleetError`]; the withdrawal can be repeated.
    pub async fn withdraw_call(&self, intent: IntentId) -> Result<Withdrawal, FleetError> {
        let Some(held) = self.stored_calls.held.lock().get(&intent).cloned() else {
            return Ok(Withdrawal::Withdrawn);
        };
        let end = self.try_withdrawal(intent, &held).await?;
        self.stored_calls.held.lock().remove(&intent);
        Ok(end)
    }

    async fn try_withdrawal(&self, intent: IntentId, held: &HeldCall) -> Result<Withdrawal, FleetError> {
        let HeldCall { key, epoch } = held;
        let withdrawn = StoredCallRecord { holder: self.node.clone(), epoch: *epoch, call: None };
        let withdrawn = encode(&withdrawn)?;
        for _ in 0..MAX_TRIES {
            let Some(StoredValue { bytes, revision }) = self.store.get(key).await? else {
                if self.read_claim(intent).await?.is_some() {
                    return Ok(Withdrawal::TakenOver);
                }
                // A request to store it that failed may still take effect, but not after this later one.
                drop(self.store.remove(self.store.put(key, &withdrawn).await?).await);
                return Ok(Withdrawal::Withdrawn);
            };
            let found = decode::<StoredCallRecord>(key, &bytes)?;
            if found.holder != self.node || found.epoch != *epoch {
                return Ok(Withdrawal::TakenOver);
            }
            if let Write::Done(revision) = self.store.update(key, &withdrawn, revision).await? {
                // If this fails, a sweep removes it.
                drop(self.store.remove(revision).await);
                return Ok(Withdrawal::Withdrawn);
            }
        }
        Err(FleetError::unavailable("withdraw a call", "other nodes keep changing it"))
    }

    /// Returns `true` if the fleet stores a call that has waited at this node.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn is_call_stored(&self, intent: IntentId) -> Result<bool, FleetError> {
        let key = call_key(&self.node, intent);
        let Some(StoredValue { bytes, .. }) = self.store.get(&key).await? else { return Ok(false) };
        Ok(decode::<StoredCallRecord>(&key, &bytes)?.call.is_some())
    }

    /// Waits for a call of a lost node. This process holds it until it is passed to [`Self::remove_call`] or
    /// [`Self::withdraw_call`].
    pub async fn next_orphan_call(&self) -> OrphanCall {
        loop {
            let added = self.stored_calls.has_orphans.notified();
            if let Some(call) = self.stored_calls.orphans.lock().pop_front() {
                return call;
            }
            added.await;
        }
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

    /// Takes over one stored call, or removes it if it has ended. `epochs` has the epoch of each lease that was read in
    /// this sweep; `None` for a node that has ended.
    async fn take_over_call(
        &self,
        intent: IntentId,
        key: &str,
        epochs: &mut HashMap<NodeName, Option<u64>>,
    ) -> Result<(), FleetError> {
        let Some(StoredValue { bytes, revision }) = self.store.get(key).await? else { return Ok(()) };
        let StoredCallRecord { holder, epoch, call } = decode(key, &bytes)?;
        let was_doubtful = self.stored_calls.doubtful.lock().remove(&intent);
        // Checked after the read, because a call is held before it is stored.
        if self.holds_call(intent) {
            return Ok(());
        }
        let current = match epochs.get(&holder) {
            Some(current) => *current,
            None => {
                let current = self.read_epoch(&holder).await?;
                epochs.insert(holder.clone(), current);
                current
            }
        };
        let is_current = current == Some(epoch);
        if is_current && holder != self.node {
            return Ok(());
        }
        // A call of this process that it no longer holds is left from a removal that failed, or from a takeover whose
        // answer was lost.
        let has_ended = (is_current && !was_doubtful) || self.read_claim(intent).await?.is_some();
        let Some(call) = call.filter(|_| !has_ended) else { return self.store.remove(revision).await };
        let epoch = self.lease.epoch();
        let record = StoredCallRecord { holder: self.node.clone(), epoch, call: Some(call.clone()) };
        self.stored_calls.doubtful.lock().insert(intent);
        let written = self.store.update(key, &encode(&record)?, revision).await?;
        self.stored_calls.doubtful.lock().remove(&intent);
        if let Write::Done(_) = written {
            let held = HeldCall { key: key.to_owned(), epoch };
            self.stored_calls.held.lock().insert(intent, held);
            let orphan = OrphanCall { intent, from: holder, call: PassedCall(call) };
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
    fn a_call_is_withdrawn_or_taken_over_and_never_both() {
        let mut withdrawn = 0;
        for seed in 0..3_000 {
            let nodes = Nodes::join();
            let [one, two, three] = &nodes.all;
            let intent = IntentId::random();
            finish(one.store_call(intent, call()));
            finish(two.take_over_calls(&one.node));
            assert_eq!(take_orphans(two), 0, "the node is not lost");
            nodes.lose(0);
            let sweep = async |node: &Fleet<SlowStore>| {
                node.take_over_calls(&one.node).await.unwrap();
                None
            };
            let withdraw = async {
                for _ in 0..seed % 12 {
                    wait_once().await;
                }
                Some(one.withdraw_call(intent).await.unwrap())
            };
            let ends =
                interleave(seed, vec![Box::pin(withdraw), Box::pin(sweep(two)), Box::pin(sweep(three))]);
            let is_withdrawn = ends[0] == Some(Withdrawal::Withdrawn);
            let (by_two, by_three) = (take_orphans(two), take_orphans(three));
            assert_eq!(by_two + by_three, usize::from(!is_withdrawn), "seed {seed}");
            withdrawn += u32::from(is_withdrawn);
            assert!(!one.holds_call(intent));
            // The next one takes it over if that node is lost too.
            nodes.lose(1);
            finish(three.take_over_calls(&one.node));
            assert_eq!(take_orphans(three), by_two, "seed {seed}");
            assert_eq!(finish(one.is_call_stored(intent)), !is_withdrawn);
            finish(three.remove_call(intent));
            assert!(!nodes.has_key("call."), "seed {seed}");
        }
        assert!((300..2_700).contains(&withdrawn), "{withdrawn} of 3000");
    }

    #[test]
    fn a_call_that_has_a_claim_is_not_taken_over() {
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
        // The node had them until it was lost, and learns that they may have run.
        for intent in [claimed, denied] {
            assert_eq!(finish(one.withdraw_call(intent)), Withdrawal::TakenOver);
        }
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
        assert_eq!(finish(two.withdraw_call(intent)), Withdrawal::Withdrawn);
        assert!(!nodes.has_key("call."));
    }

    #[test]
    fn a_node_takes_over_the_calls_of_its_earlier_process() {
        let nodes = Nodes::join();
        let [one, ..] = &nodes.all;
        let [waits, ended] = [(); 2].map(|()| IntentId::random());
        finish(one.store_call(waits, call()));
        finish(one.take_over_calls(&one.node));
        assert_eq!(take_orphans(one), 0, "it waits here");
        // Removed from memory only, as by a process that ended, and by a removal that failed.
        one.stored_calls.held.lock().clear();
        let record = |epoch| StoredCallRecord { holder: one.node.clone(), epoch, call: Some(call()) };
        let put = |intent, epoch| {
            finish(one.store.put(&call_key(&one.node, intent), &encode(&record(epoch)).unwrap()))
        };
        put(waits, one.lease.epoch() - 1);
        put(ended, one.lease.epoch());
        finish(one.take_over_calls(&one.node));
        assert_eq!((take_orphans(one), one.holds_call(waits), one.holds_call(ended)), (1, true, false));
        assert!(!nodes.has_key(&ended.to_string()));
        finish(one.remove_call(waits));
        assert!(!nodes.has_key("call."));
    }
}
