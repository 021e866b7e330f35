//! Histories of pending intents over a store that is slow and loses answers, at nodes that are lost.

use super::*;
use crate::claims::{ClaimReply, FoundState, NewClaim, NewDenial};
use crate::identity::IDENTITY;
use crate::lease::{NodeHead, NodeState, node_key};
use crate::record::NodeRecord;
use crate::seal::SealedStore;
use crate::store::matches;
use crate::{Fleet, FleetKey, LeaseTimes, StreamIdentity};
use a2g_types::clock::SystemClock;
use a2g_types::node::FleetName;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

type Node = Fleet<SlowStore>;

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
    async fn apply<T>(&self, request: impl FnOnce(&mut u64, &mut HashMap<String, StoredValue>) -> T) -> T {
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

    async fn next(&self, pattern: &str, revision: u64) -> Result<Option<(String, StoredValue)>, FleetError> {
        let next = self.apply(|_, values| {
            let later =
                values.iter().filter(|(key, value)| matches(pattern, key) && value.revision > revision);
            let (key, value) = later.min_by_key(|(_, value)| value.revision)?;
            Some((key.clone(), value.clone()))
        });
        Ok(next.await)
    }
}

fn next_random(seed: &mut u64, end: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*seed >> 33).unwrap() % end
}

/// Waits for a future whose requests all end.
fn finish<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(end) = future.as_mut().poll(&mut context) {
            return end;
        }
    }
}

struct Nodes {
    store: SlowStore,
    all: [Fleet<SlowStore>; 3],
}

impl Nodes {
    fn join() -> Self {
        let store = SlowStore::default();
        let (key, fleet) = Self::key_and_name();
        let identity = StreamIdentity::random(LeaseTimes::default());
        let sealed = SealedStore::new(store.clone(), key, fleet);
        finish(sealed.put(IDENTITY, &encode(&identity).unwrap())).unwrap();
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
        let joined = finish(Member::join(name, Arc::new(SystemClock), store.clone(), key, fleet, head));
        Fleet::new(joined.unwrap())
    }

    /// Lets the others know that a node is lost.
    fn lose(&self, nth: usize) {
        let node = &self.all[nth];
        let key = node_key(&node.member.node);
        let found = finish(node.member.store.get(&key)).unwrap().unwrap();
        let record: NodeRecord = decode(&key, &found.bytes).unwrap();
        let lost = NodeRecord { state: NodeState::TakenOver(self.all[2].member.node.clone()), ..record };
        finish(node.member.store.put(&key, &encode(&lost).unwrap())).unwrap();
    }
}

fn new(number: u64) -> NewPending {
    let call = CallMessage { text: "{}".to_owned(), asked_governor: true };
    NewPending { number, waits_for: WaitsFor::Person, runs_at: RunsAt::AnyNode, call }
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(format!("\"{text}\"")).unwrap()
}

fn add(node: &Node, intent: IntentId) -> PendingIntent {
    match finish(node.pending.add(intent, new(1))).unwrap() {
        Added::New(pending) => pending,
        Added::Known(known) => panic!("{known:?}"),
    }
}

fn read(node: &Node, intent: IntentId) -> Option<PendingIntent> {
    finish(node.pending.read(intent)).unwrap()
}

fn approved(by: &str) -> Decision {
    Decision::Approved { node: None, approval: raw(by) }
}

/// What the people and the runs of one history were told.
#[derive(Debug, Default)]
struct Ledger {
    /// The numbers of the waits that were approved.
    approved: Vec<u64>,
    denied: Vec<u64>,
    withdrawn: HashSet<u64>,
    runs: usize,
}

/// The acts of one history. They may end at any request, with their node.
struct History<'a> {
    nodes: &'a [Node; 3],
    intent: IntentId,
    ledger: Mutex<Ledger>,
    /// The nodes that are lost. A request of theirs may still take effect.
    lost: Mutex<HashSet<usize>>,
}

impl History<'_> {
    fn is_lost(&self, at: usize) -> bool {
        self.lost.lock().contains(&at)
    }

    async fn approve(&self, at: usize) {
        let node = &self.nodes[at];
        let Ok(Some(found)) = node.pending.read(self.intent).await else { return };
        let decided = node.pending.change(&found, Change::Decide(approved("ann"))).await;
        if let Ok(Some(_)) = decided
            && !self.is_lost(at)
        {
            self.ledger.lock().approved.push(found.number());
        }
    }

    async fn deny(&self, at: usize) {
        let node = &self.nodes[at];
        let Ok(Some(found)) = node.pending.read(self.intent).await else { return };
        let decision = Decision::Denied { denial: raw("no") };
        if let Ok(Some(_)) = node.pending.change(&found, Change::Decide(decision)).await
            && self.complete_denial(at).await
            && !self.is_lost(at)
        {
            self.ledger.lock().denied.push(found.number());
        }
    }

    /// Takes the claim for a denial.
    async fn complete_denial(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        let denial =
            NewDenial { intent: self.intent, content: &[0; 32], agent: "did:a:a", denial: raw("no") };
        let has_claim = match node.claims.deny(denial).await {
            Ok(None) => true,
            Ok(Some(found)) => matches!(found.state, FoundState::Denied(_)),
            Err(_) => false,
        };
        if has_claim {
            drop(node.pending.remove(self.intent).await);
        }
        has_claim
    }

    /// Lets an approved intent wait again.
    async fn withdraw(&self, at: usize) {
        let node = &self.nodes[at];
        let Ok(Some(found)) = node.pending.read(self.intent).await else { return };
        let is_approved = matches!(found.decision(), Some(Decision::Approved { .. }));
        if is_approved
            && let Ok(Some(_)) =
                node.pending.change(&found, Change::WaitAgain { number: found.number() + 1 }).await
        {
            self.ledger.lock().withdrawn.insert(found.number());
        }
    }

    /// Runs the intent if it is approved.
    async fn run(&self, at: usize) {
        let node = &self.nodes[at];
        let Ok(Some(found)) = node.pending.read(self.intent).await else { return };
        let Some(Decision::Approved { .. }) = found.decision() else { return };
        let number = found.number();
        let new = NewClaim {
            intent: self.intent,
            content: &[0; 32],
            agent: "did:a:a",
            verdict: None,
            fallback: raw("lost"),
            proof: None,
        };
        match node.claims.claim(new).await {
            Ok(ClaimReply::New(claim)) => {
                let was_withdrawn = self.ledger.lock().withdrawn.contains(&number);
                if !matches!(node.pending.may_run(self.intent, number).await, Ok(true)) {
                    return node.claims.release(claim).await;
                }
                if self.is_lost(at) {
                    return;
                }
                assert!(!was_withdrawn, "it runs after its approval was withdrawn");
                self.ledger.lock().runs += 1;
                while node.claims.finish(&claim, "{}").await.is_err() {}
                drop(node.pending.remove(self.intent).await);
            }
            Ok(ClaimReply::Known(found)) if !matches!(found.state, FoundState::Open) => {
                drop(node.pending.remove(self.intent).await);
            }
            Ok(ClaimReply::Known(_) | ClaimReply::Replayed) | Err(_) => {}
        }
    }
}

#[test]
fn an_intent_has_one_decision_which_is_not_lost_with_its_node() {
    let mut ends = HashMap::<_, u32>::new();
    for first_seed in 0..4_000_u64 {
        let mut seed = first_seed;
        let nodes = Nodes::join();
        let history = History {
            nodes: &nodes.all,
            intent: IntentId::random(),
            ledger: Mutex::default(),
            lost: Mutex::default(),
        };
        add(&nodes.all[0], history.intent);
        let mut open = Vec::<(usize, Pin<Box<dyn Future<Output = ()>>>)>::new();
        for nth in 0..9 {
            let at = next_random(&mut seed, 3);
            open.push((
                at,
                match nth {
                    0..2 => Box::pin(history.approve(at)),
                    2 => Box::pin(history.deny(at)),
                    3 => Box::pin(history.withdraw(at)),
                    _ => Box::pin(history.run(at)),
                },
            ));
        }
        let mut context = Context::from_waker(Waker::noop());
        while !open.is_empty() {
            match next_random(&mut seed, 100) {
                // The last one survives.
                0..2 => {
                    let nth = next_random(&mut seed, 2);
                    if history.lost.lock().insert(nth) {
                        nodes.lose(nth);
                    }
                }
                2..4 => nodes.store.loses_answer.store(true, Ordering::Relaxed),
                _ => {}
            }
            let nth = next_random(&mut seed, open.len());
            let (at, act) = &mut open[nth];
            // An act of a lost node may take one more step.
            let is_last = history.is_lost(*at);
            let has_ended = is_last && next_random(&mut seed, 2) == 0;
            if has_ended || act.as_mut().poll(&mut context).is_ready() || is_last {
                drop(open.swap_remove(nth));
            }
        }
        drop(open);
        nodes.store.loses_answer.store(false, Ordering::Relaxed);
        let survivor = &nodes.all[2];
        for (nth, node) in nodes.all.iter().enumerate() {
            if !history.is_lost(nth) {
                finish(node.claims.remove_abandoned()).unwrap();
            }
        }
        for _ in 0..10 {
            finish(survivor.claims.remove_abandoned()).unwrap();
            match read(survivor, history.intent).and_then(|found| found.decision().cloned()) {
                Some(Decision::Approved { .. }) => finish(history.run(2)),
                Some(Decision::Denied { .. }) => drop(finish(history.complete_denial(2))),
                None => break,
            }
        }
        let claim = finish(survivor.claims.find(history.intent)).unwrap();
        if claim.is_some() {
            // As a look does: the approval was withdrawn while the intent ran.
            finish(survivor.pending.remove(history.intent)).unwrap();
        }
        let rest = read(survivor, history.intent);
        let Ledger { approved, denied, withdrawn, runs } = std::mem::take(&mut *history.ledger.lock());
        let told =
            format!("seed {first_seed}: {approved:?} {denied:?} {withdrawn:?} {runs} {rest:?} {claim:?}");
        let decided = approved.iter().chain(&denied).collect::<HashSet<_>>();
        assert_eq!(decided.len(), approved.len() + denied.len(), "two decisions on one wait: {told}");
        assert!(runs <= 1 && (runs == 0 || denied.is_empty()), "{told}");
        let is_denied = claim.as_ref().is_some_and(|claim| matches!(claim.state, FoundState::Denied(_)));
        assert!(denied.is_empty() || is_denied, "{told}");
        assert!(rest.is_some() != claim.is_some(), "it neither waits nor has ended, or both: {told}");
        // It waits again only because an approval was withdrawn, or was never given.
        let latest = rest.as_ref().map_or(u64::MAX, PendingIntent::number);
        assert!(approved.iter().all(|number| *number < latest), "an approval is lost: {told}");
        let end = if rest.is_some() {
            "waits"
        } else if is_denied {
            "denied"
        } else {
            "has run"
        };
        *ends.entry(end).or_default() += 1;
    }
    assert!(ends.len() == 3 && ends.values().all(|count| *count > 200), "{ends:?}");
}

#[test]
fn every_node_follows_the_changes_and_the_ends() {
    let nodes = Nodes::join();
    let [one, two, three] = &nodes.all;
    let [kept, ended] = [(); 2].map(|()| IntentId::random());
    let pending = [kept, ended].map(|intent| add(one, intent));
    let ids = |changed: Vec<PendingIntent>| changed.into_iter().map(|found| found.intent).collect::<Vec<_>>();
    let changed = |node: &Node| ids(finish(node.pending.changed()).unwrap());
    assert_eq!(changed(two), [kept, ended], "in the order of their revisions");
    assert_eq!(changed(two), []);
    let change =
        |node: &Node, found: &PendingIntent, change| finish(node.pending.change(found, change)).unwrap();
    let once = change(two, &pending[0], Change::AddApproval(raw("ann"))).unwrap();
    assert_eq!(changed(two), [kept]);
    assert_eq!(changed(three), [ended, kept]);
    // An approval counts only if nothing has changed.
    assert!(change(three, &pending[0], Change::AddApproval(raw("bob"))).is_none());
    let twice = change(three, &once, Change::AddApproval(raw("bob"))).unwrap();
    let texts =
        |found: &PendingIntent| found.approvals().map(|text| text.as_str().to_owned()).collect::<Vec<_>>();
    assert_eq!(texts(&twice), ["\"ann\"", "\"bob\""]);
    let none = change(one, &twice, Change::ForgetApprovals).unwrap();
    let decided = change(two, &none, Change::Decide(approved("ann"))).unwrap();
    for late in [Change::Decide(approved("bob")), Change::AddApproval(raw("bob"))] {
        assert!(change(one, &decided, late).is_none(), "it is decided");
    }
    assert!(finish(three.pending.may_run(kept, 1)).unwrap());
    let again = change(two, &decided, Change::WaitAgain { number: 2 }).unwrap();
    assert!(texts(&again).is_empty() && again.decision().is_none());
    assert!(!finish(three.pending.may_run(kept, 1)).unwrap());
    // A value that has changed stays.
    finish(one.pending.remove_unchanged(&decided)).unwrap();
    finish(one.pending.remove(ended)).unwrap();
    let unknown = IntentId::random();
    let missing = finish(two.pending.missing(vec![kept, ended, unknown])).unwrap();
    assert_eq!(missing, [ended, unknown]);
    finish(two.pending.read_all_again());
    assert_eq!(changed(two), [kept]);
    assert!(
        matches!(finish(three.pending.add(kept, new(9))).unwrap(), Added::Known(known) if known.number() == 2)
    );
}

#[test]
fn an_intent_whose_answers_were_lost_is_stored_once() {
    let nodes = Nodes::join();
    let [one, ..] = &nodes.all;
    let intent = IntentId::random();
    nodes.store.loses_answer.store(true, Ordering::Relaxed);
    assert!(finish(one.pending.add(intent, new(1))).is_err());
    assert!(matches!(finish(one.pending.add(intent, new(1))).unwrap(), Added::Known(_)));
    finish(one.pending.remove(intent)).unwrap();
    assert!(read(one, intent).is_none());
}
