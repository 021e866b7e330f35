//! The stored calls: those that wait without their callers. If the node of one is lost, it waits at another node.
//!
//! ```text
//! a task that waits for a slot:      `call.NODE.INTENT` ─▶ the intent has a claim, of a run or a denial ─▶ removed
//! an intent that waits for a person: `wait.NODE.INTENT` ─▶ it waits no longer                           ─▶ removed
//!                                           └─▶ its holder is lost: another node becomes the holder
//! ```
//! Only the claim decides what becomes of the intent. So a call that is removed may come back, as after a server of NATS
//! was killed: the next sweep finds the claim, and removes the call again.

use crate::FleetError;
use crate::claims::Claims;
use crate::member::Member;
use crate::record::{decode, encode, skip_unreadable};
use crate::store::{Store, StoredValue, Write};
use a2g_types::ident::IntentId;
use a2g_types::node::{CallMessage, NodeName, PassedCall};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::Notify;

/// An epoch that no node has: the first one is 1.
const NO_EPOCH: u64 = 0;

/// The value of a stored call.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredCallRecord {
    /// The node at which the call waits.
    pub(crate) holder: NodeName,
    /// The epoch of that node when it got the call.
    pub(crate) epoch: u64,
    pub(crate) call: CallMessage,
}

/// What a stored call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// A free slot.
    Slot,
    /// A person's decision.
    Person,
}

/// What a node does with the stored call of a lost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// The call waits at this node.
    Take,
    /// The call stays for another node.
    Leave,
    /// The call is removed: it can run nowhere.
    Remove,
}

/// Decides about the stored call of a lost node.
pub type TakeoverRule<'a> = &'a (dyn Fn(WaitsFor, &PassedCall) -> Takeover + Sync);

/// The stored calls of this process that wait for the same.
#[derive(Default)]
pub(crate) struct WaitingCalls {
    /// Those that wait here.
    pub(crate) held: Mutex<HashMap<IntentId, HeldCall>>,
    /// Those that were taken over from lost nodes, until [`StoredCalls::next_orphan`] returns them.
    orphans: Mutex<VecDeque<OrphanCall>>,
    has_orphans: Notify,
}

impl WaitingCalls {
    fn holds(&self, intent: IntentId) -> bool {
        self.held.lock().contains_key(&intent)
    }

    pub(crate) fn key_of(&self, intent: IntentId) -> Option<String> {
        self.held.lock().get(&intent).map(|call| call.key.clone())
    }

    pub(crate) fn hold(&self, intent: IntentId, key: String, state: HeldState) {
        self.held.lock().insert(intent, HeldCall { key, state });
    }

    /// Notes that a call may be stored here, unless another write of it has stored it in this epoch already.
    pub(crate) fn hold_unless_stored(&self, intent: IntentId, key: &str, epoch: u64) {
        let mut held = self.held.lock();
        let stored = HeldState::Stored(epoch);
        let is_stored = held.get(&intent).is_some_and(|call| call.key == key && call.state == stored);
        if !is_stored {
            held.insert(intent, HeldCall { key: key.to_owned(), state: HeldState::Unknown });
        }
    }
}

/// A stored call that waits here.
#[derive(Debug)]
pub(crate) struct HeldCall {
    /// The key, which has the name of the node at which the call waited first.
    pub(crate) key: String,
    pub(crate) state: HeldState,
}

/// The state of the value of a stored call, as far as this process knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldState {
    /// It may not be written yet.
    Unknown,
    /// It names this node, in this epoch, as the holder. Used for calls that wait for a person.
    Stored(u64),
    /// It does too, but the call does not wait here yet.
    Orphan,
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

/// The calls that wait without their callers, until their intents have claims. Those that wait for a person are stored
/// and removed by [`crate::StoredWaits`].
pub struct StoredCalls<S> {
    member: Arc<Member<S>>,
    claims: Arc<Claims<S>>,
    for_slots: WaitingCalls,
    for_people: Arc<WaitingCalls>,
}

impl<S: Store> StoredCalls<S> {
    pub(crate) fn new(member: Arc<Member<S>>, claims: Arc<Claims<S>>, for_people: Arc<WaitingCalls>) -> Self {
        Self { member, claims, for_slots: WaitingCalls::default(), for_people }
    }

    fn that_wait_for(&self, waits_for: WaitsFor) -> &WaitingCalls {
        match waits_for {
            WaitsFor::Slot => &self.for_slots,
            WaitsFor::Person => &self.for_people,
        }
    }

    /// Stores a call that waits for a slot at this node, until [`Self::remove`].
    ///
    /// # Errors
    /// [`FleetError`]; the call may have been stored.
    pub async fn store(&self, intent: IntentId, call: CallMessage) -> Result<(), FleetError> {
        let key = call_key(WaitsFor::Slot, &self.member.node, intent);
        let record =
            StoredCallRecord { holder: self.member.node.clone(), epoch: self.member.lease.epoch(), call };
        // Held before it is written: otherwise a sweep could take it over.
        self.for_slots.hold(intent, key.clone(), HeldState::Unknown);
        self.member.store.put(&key, &encode(&record)?).await.map(drop)
    }

    /// Removes a call that waited for a slot, and whose intent has a claim.
    ///
    /// # Errors
    /// [`FleetError`]; a sweep removes the call.
    pub async fn remove(&self, intent: IntentId) -> Result<(), FleetError> {
        let Some(held) = self.for_slots.held.lock().remove(&intent) else { return Ok(()) };
        self.member.store.remove_key(&held.key).await
    }

    /// Reads a call that waits for a slot at this node; `None` if the fleet does not have it.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn read(&self, intent: IntentId) -> Result<Option<PassedCall>, FleetError> {
        let Some(key) = self.for_slots.key_of(intent) else { return Ok(None) };
        let found = self.member.store.read::<StoredCallRecord>(&key).await?;
        Ok(found.map(|(record, _)| PassedCall::from_authenticated(record.call)))
    }

    /// Returns `true` if the fleet stores a call that has waited for a slot at this node.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn is_stored(&self, intent: IntentId) -> Result<bool, FleetError> {
        Ok(self.member.store.get(&call_key(WaitsFor::Slot, &self.member.node, intent)).await?.is_some())
    }

    /// Waits for a call of a lost node, which waits at this one from now on: until [`Self::remove`], or, if it waits for a
    /// person, [`crate::StoredWaits::remove`] or [`crate::StoredWaits::give_up`].
    pub async fn next_orphan(&self, waits_for: WaitsFor) -> OrphanCall {
        let calls = self.that_wait_for(waits_for);
        loop {
            let added = calls.has_orphans.notified();
            if let Some(call) = calls.orphans.lock().pop_front() {
                return call;
            }
            added.await;
        }
    }

    /// Takes over the stored calls of `node` whose holders are lost. Without a `rule`, only those of this node.
    pub(crate) async fn take_over(
        &self,
        node: &NodeName,
        rule: Option<TakeoverRule<'_>>,
    ) -> Result<(), FleetError> {
        if rule.is_none() && *node != self.member.node {
            return Ok(());
        }
        let mut epochs = HashMap::new();
        for waits_for in [WaitsFor::Slot, WaitsFor::Person] {
            let calls = self.that_wait_for(waits_for);
            let prefix = format!("{}.{node}.", key_prefix(waits_for));
            for key in self.member.store.keys(&format!("{prefix}>")).await? {
                let intent = key.strip_prefix(&prefix).and_then(|intent| IntentId::parse(intent).ok());
                let Some(intent) = intent.filter(|intent| !calls.holds(*intent)) else { continue };
                let found = StoredKey { waits_for, node, intent, key: &key };
                skip_unreadable(self.take_over_one(found, rule, &mut epochs).await)?;
            }
        }
        Ok(())
    }

    /// Takes over one stored call, or removes it if its intent has ended. `epochs` has the epoch of each lease that was
    /// read in this sweep; `None` for a node that has ended.
    async fn take_over_one(
        &self,
        StoredKey { waits_for, node, intent, key }: StoredKey<'_>,
        rule: Option<TakeoverRule<'_>>,
        epochs: &mut HashMap<NodeName, Option<u64>>,
    ) -> Result<(), FleetError> {
        let Some(StoredValue { bytes, revision }) = self.member.store.get(key).await? else { return Ok(()) };
        let StoredCallRecord { holder, epoch, call } = decode(key, &bytes)?;
        let current = match epochs.get(&holder) {
            Some(current) => *current,
            None => {
                let current = self.member.read_epoch(&holder).await?;
                epochs.insert(holder.clone(), current);
                current
            }
        };
        if current == Some(epoch) && holder != self.member.node {
            return Ok(());
        }
        let claim = self.claims.read_claim(intent).await?;
        let calls = self.that_wait_for(waits_for);
        // Checked after the reads: a call is held before it is stored, and until it has a claim.
        if calls.holds(intent) {
            return Ok(());
        }
        match claim {
            // It may still be released; if not, a later sweep removes the call.
            Some((claim, _)) if claim.state.is_open() => return Ok(()),
            Some(_) => return self.member.store.remove(revision).await,
            None => {}
        }
        let is_own = *node == self.member.node;
        if is_own && waits_for == WaitsFor::Person && holder == self.member.node {
            // The journal of this node has what waits here.
            return self.member.store.remove(revision).await;
        }
        let passed = PassedCall::from_authenticated(call.clone());
        let takeover = match rule {
            _ if is_own && waits_for == WaitsFor::Slot => Takeover::Take,
            Some(rule) => rule(waits_for, &passed),
            None => Takeover::Leave,
        };
        match takeover {
            Takeover::Take => {}
            Takeover::Leave if holder == self.member.node && epoch != NO_EPOCH => {
                return give_back(&self.member, key, call, revision).await;
            }
            Takeover::Leave => return Ok(()),
            Takeover::Remove => return self.member.store.remove(revision).await,
        }
        let record =
            StoredCallRecord { holder: self.member.node.clone(), epoch: self.member.lease.epoch(), call };
        if let Write::Done(_) = self.member.store.update(key, &encode(&record)?, revision).await? {
            calls.hold(intent, key.to_owned(), HeldState::Orphan);
            calls.orphans.lock().push_back(OrphanCall { intent, from: holder, call: passed });
            calls.has_orphans.notify_one();
        }
        Ok(())
    }
}

/// Lets any node take a stored call over that this one holds.
pub(crate) async fn give_back<S: Store>(
    member: &Member<S>,
    key: &str,
    call: CallMessage,
    revision: u64,
) -> Result<(), FleetError> {
    let record = StoredCallRecord { holder: member.node.clone(), epoch: NO_EPOCH, call };
    member.store.update(key, &encode(&record)?, revision).await.map(drop)
}

/// A key of a stored call, and its parts.
#[derive(Clone, Copy)]
struct StoredKey<'a> {
    waits_for: WaitsFor,
    /// The node at which the call waited first.
    node: &'a NodeName,
    intent: IntentId,
    key: &'a str,
}

pub(crate) fn key_prefix(waits_for: WaitsFor) -> &'static str {
    match waits_for {
        WaitsFor::Slot => "call",
        WaitsFor::Person => "wait",
    }
}

pub(crate) fn call_key(waits_for: WaitsFor, node: &NodeName, intent: IntentId) -> String {
    format!("{}.{node}.{intent}", key_prefix(waits_for))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::claims::{ClaimReply, NewClaim, NewDenial};
    use crate::identity::IDENTITY;
    use crate::lease::{NodeHead, NodeState, node_key};
    use crate::record::NodeRecord;
    use crate::seal::SealedStore;
    use crate::store::matches;
    use crate::{Fleet, FleetKey, LeaseTimes, StreamIdentity};
    use a2g_types::clock::SystemClock;
    use a2g_types::node::FleetName;
    use bytes::Bytes;
    use serde_json::value::RawValue;
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    type Values = Arc<Mutex<(u64, HashMap<String, StoredValue>)>>;

    /// A store whose requests wait once before they take effect, and once before they are answered.
    #[derive(Clone, Default)]
    pub(crate) struct SlowStore {
        values: Values,
        /// `true` if the next update takes effect, but its answer is lost.
        pub(crate) loses_answer: Arc<AtomicBool>,
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

        async fn get_with_age(&self, key: &str) -> Result<Option<(StoredValue, Duration)>, FleetError> {
            Ok(self.get(key).await?.map(|value| (value, Duration::ZERO)))
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
                let reason = "the answer is lost".to_owned();
                return Err(FleetError::Unavailable { request: "write a key", reason });
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

        async fn keys(&self, pattern: &str) -> Result<Vec<String>, FleetError> {
            let is_listed = |key: &&String| matches(pattern, key);
            Ok(self.apply(|_, values| values.keys().filter(is_listed).cloned().collect()).await)
        }
    }

    /// Polls all futures in an order that `seed` determines, until all have ended.
    pub(crate) fn interleave<'a, T>(
        mut seed: u64,
        futures: Vec<Pin<Box<dyn Future<Output = T> + 'a>>>,
    ) -> Vec<T> {
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

    pub(crate) fn finish<T>(future: impl Future<Output = Result<T, FleetError>>) -> T {
        interleave(0, vec![Box::pin(future)]).pop().unwrap().unwrap()
    }

    pub(crate) struct Nodes {
        pub(crate) store: SlowStore,
        pub(crate) all: [Fleet<SlowStore>; 3],
    }

    impl Nodes {
        pub(crate) fn join() -> Self {
            let store = SlowStore::default();
            let (key, fleet) = Self::key_and_name();
            let identity = StreamIdentity::random(LeaseTimes::default());
            let sealed = SealedStore::new(store.clone(), key, fleet);
            finish(sealed.put(IDENTITY, &encode(&identity).unwrap()));
            let all = ["one", "two", "three"].map(|name| Self::start(&store, name));
            Self { store, all }
        }

        fn key_and_name() -> (FleetKey, FleetName) {
            (FleetKey::parse(&[b'a'; 64]).unwrap(), FleetName::try_from("tests".to_owned()).unwrap())
        }

        fn start(store: &SlowStore, name: &str) -> Fleet<SlowStore> {
            let name = NodeName::try_from(name.to_owned()).unwrap();
            let (key, fleet) = Self::key_and_name();
            let head = NodeHead { receipts: 0, hash: [0; 32] };
            Fleet::new(finish(Member::join(name, Arc::new(SystemClock), store.clone(), key, fleet, head)))
        }

        /// Starts a node that is lost, or is about to be, again.
        pub(crate) fn restart(&self, nth: usize) -> Fleet<SlowStore> {
            self.lose(nth);
            Self::start(&self.store, self.all[nth].member.node().as_str())
        }

        /// Lets the others know that a node is lost.
        pub(crate) fn lose(&self, nth: usize) {
            let node = &self.all[nth];
            let key = node_key(&node.member.node);
            let found = finish(node.member.store.get(&key)).unwrap();
            let record: NodeRecord = decode(&key, &found.bytes).unwrap();
            let lost = NodeRecord { state: NodeState::TakenOver(self.all[2].member.node.clone()), ..record };
            finish(node.member.store.put(&key, &encode(&lost).unwrap()));
        }

        pub(crate) fn has_key(&self, part: &str) -> bool {
            self.store.values.lock().1.keys().any(|key| key.contains(part))
        }
    }

    pub(crate) fn call() -> CallMessage {
        CallMessage { text: "{}".to_owned(), asked_governor: true }
    }

    fn take_orphans(node: &Fleet<SlowStore>) -> usize {
        std::mem::take(&mut *node.calls.for_slots.orphans.lock()).len()
    }

    pub(crate) const TAKE_ALL: TakeoverRule<'static> = &|_, _| Takeover::Take;

    #[test]
    fn one_node_takes_over_the_call_of_a_lost_one() {
        let mut by_two = 0;
        for seed in 0..1_000 {
            let nodes = Nodes::join();
            let [one, two, three] = &nodes.all;
            let intent = IntentId::random();
            finish(one.calls.store(intent, call()));
            finish(two.calls.take_over(&one.member.node, Some(TAKE_ALL)));
            assert_eq!(take_orphans(two), 0, "the node is not lost");
            nodes.lose(0);
            let sweeps = [two, three].map(|node| {
                Box::pin(node.calls.take_over(&one.member.node, Some(TAKE_ALL)))
                    as Pin<Box<dyn Future<Output = _>>>
            });
            assert!(interleave(seed, sweeps.into()).iter().all(Result::is_ok));
            let taken = [two, three].map(take_orphans);
            assert_eq!(taken.iter().sum::<usize>(), 1, "seed {seed}");
            by_two += taken[0];
            // The next one takes it over if that node is lost too.
            nodes.lose(1);
            finish(three.calls.take_over(&one.member.node, Some(TAKE_ALL)));
            assert_eq!(take_orphans(three), taken[0], "seed {seed}");
            assert!(finish(one.calls.is_stored(intent)));
            finish(three.calls.remove(intent));
            assert!(!nodes.has_key("call."), "seed {seed}");
        }
        assert!((100..900).contains(&by_two), "{by_two} of 1000");
    }

    #[test]
    fn a_call_whose_claim_has_ended_is_removed() {
        let nodes = Nodes::join();
        let [one, two, _] = &nodes.all;
        let [claimed, denied] = [(); 2].map(|()| IntentId::random());
        for intent in [claimed, denied] {
            finish(one.calls.store(intent, call()));
        }
        let empty = || RawValue::from_string("{}".to_owned()).unwrap();
        let content = &[0; 32];
        let agent = "did:a:a";
        let fallback = empty();
        let new = NewClaim { intent: claimed, content, agent, verdict: None, fallback, proof: None };
        let ClaimReply::New(claim) = finish(two.claims.claim(new)) else { panic!("not claimed") };
        finish(two.claims.deny(NewDenial { intent: denied, content, agent, denial: empty() }));
        nodes.lose(0);
        let take_over = || finish(two.calls.take_over(&one.member.node, Some(TAKE_ALL)));
        take_over();
        let keys = || [claimed, denied].map(|intent| nodes.has_key(&format!("call.one.{intent}")));
        assert_eq!((take_orphans(two), keys()), (0, [true, false]), "an open claim can be released");
        finish(two.claims.finish(&claim, "{}"));
        take_over();
        assert_eq!((take_orphans(two), keys()), (0, [false, false]));
    }

    #[test]
    fn a_takeover_whose_answer_was_lost_is_repeated() {
        let nodes = Nodes::join();
        let [one, two, _] = &nodes.all;
        let intent = IntentId::random();
        finish(one.calls.store(intent, call()));
        nodes.lose(0);
        nodes.store.loses_answer.store(true, Ordering::Relaxed);
        let failed = interleave(0, vec![Box::pin(two.calls.take_over(&one.member.node, Some(TAKE_ALL)))]);
        assert!(failed[0].is_err() && take_orphans(two) == 0);
        finish(two.calls.take_over(&one.member.node, Some(TAKE_ALL)));
        assert_eq!((take_orphans(two), two.calls.for_slots.holds(intent)), (1, true));
        assert_eq!(finish(two.calls.read(intent)).unwrap().text(), "{}");
    }

    #[test]
    fn a_node_takes_over_the_calls_of_its_earlier_process() {
        let nodes = Nodes::join();
        let [one, ..] = &nodes.all;
        let intent = IntentId::random();
        finish(one.calls.store(intent, call()));
        finish(one.calls.take_over(&one.member.node, Some(TAKE_ALL)));
        assert_eq!(take_orphans(one), 0, "it waits here");
        one.calls.for_slots.held.lock().clear();
        finish(one.calls.take_over(&one.member.node, Some(TAKE_ALL)));
        assert_eq!((take_orphans(one), one.calls.for_slots.holds(intent)), (1, true));
        finish(one.calls.remove(intent));
        assert!(!nodes.has_key("call."));
    }
}
