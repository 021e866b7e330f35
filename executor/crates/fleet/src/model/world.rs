//! The simulated servers, network and clocks, and the scheduler: what happens next depends on the seed alone.

use super::history::History;
use crate::record::{ClaimRecord, ClaimState};
use crate::store::matches;
use crate::{FleetError, Store, StoredValue, Write};
use a2g_types::clock::{Clock, SystemClock};
use a2g_types::ident::IntentId;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// The number of nodes.
pub(super) const NODES: usize = 5;
/// The time after which a request fails, in microseconds.
const TIMEOUT: u64 = 3_000_000;
/// The maximum delay of a request that is slow, in microseconds.
const SLOW: u64 = 40_000_000;
/// The length of the code before each value.
const CODE_BYTES: usize = 32;

/// A small generator of random numbers (SplitMix64).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }

    /// Returns `true` in this number of 1000 cases.
    pub(super) fn chance(&mut self, thousandths: u64) -> bool {
        thousandths > 0 && self.below(1000) < thousandths
    }
}

/// What may go wrong. Probabilities are in thousandths.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    /// The maximum delay of a request or an answer, in microseconds.
    pub(super) latency: u64,
    /// The maximum time of a write to a journal, in microseconds.
    pub(super) write: u64,
    /// A request arrives much later.
    pub(super) slow: u64,
    /// A request never arrives.
    pub(super) lost: u64,
    /// An answer never arrives.
    pub(super) unanswered: u64,
    /// A request fails before it arrives.
    pub(super) early_error: u64,
    /// A node is killed, paused or cut off at the moment when its write takes effect.
    pub(super) strike: u64,
    /// A node gets a call at the moment when it reads what concerns the intent.
    pub(super) provoke: u64,
    /// The governor does not acknowledge a report.
    pub(super) governor: u64,
    /// A journal, or a check before a start, refuses a start.
    pub(super) refusal: u64,
}

/// A request to the servers.
#[derive(Debug)]
pub(super) enum Op {
    Get(String),
    Update(String, Bytes, u64),
    Put(String, Bytes),
    Remove(u64),
    Keys(String),
    Next(String, u64),
}

#[derive(Debug)]
enum Answer {
    Value(Option<StoredValue>),
    Write(Write),
    Revision(u64),
    Removed,
    Keys(Vec<String>),
    Next(Option<(String, StoredValue)>),
}

/// The place of an answer. `None` for a request that has failed.
#[derive(Debug, Default)]
struct Slot {
    answer: Option<Option<Answer>>,
    waker: Option<Waker>,
}

impl Slot {
    fn set(&mut self, answer: Option<Answer>) {
        if self.answer.is_none() {
            self.answer = Some(answer);
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
    }
}

/// A process of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ProcessId {
    pub(super) node: usize,
    pub(super) number: u32,
}

#[derive(Debug)]
pub(super) struct Request {
    op: Op,
    from: ProcessId,
    slot: Arc<Mutex<Slot>>,
    sent_at: u64,
    /// `None` if the answer is lost.
    back: Option<u64>,
}

/// What happens to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blow {
    Kill,
    Start,
    Pause,
    Resume,
    /// Cuts the network off for this time, in microseconds.
    Cut(u64),
    Leave,
    /// A client sends the call with this number.
    Call(usize),
    /// A person denies the intent of this call.
    Deny(usize),
    /// A person approves the intent of this call, which waits for one.
    Approve(usize),
}

#[derive(Debug)]
enum Event {
    Apply(Request),
    Answer(ProcessId, Arc<Mutex<Slot>>, Answer, u64),
    Fail(Arc<Mutex<Slot>>),
    Wake(Waker),
    Blow(usize, Blow),
}

struct Entry {
    key: Reverse<(u64, u64)>,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NodeStatus {
    /// The number of the current process.
    pub(super) number: u32,
    pub(super) is_alive: bool,
    pub(super) is_paused: bool,
    cut_until: u64,
}

pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) struct State {
    pub(super) random: Random,
    /// The time, in microseconds.
    pub(super) now: u64,
    pub(super) faults: Faults,
    pub(super) nodes: [NodeStatus; NODES],
    pub(super) history: History,
    /// Tasks that have been spawned, but not polled. `true` for those of clients.
    pub(super) spawned: Vec<(ProcessId, bool, Task)>,
    pub(super) violation: Option<String>,
    pub(super) trace: Option<Vec<String>>,
    pub(super) requests: u64,
    /// The number of calls that may still be provoked.
    provocations: u32,
    events: BinaryHeap<Entry>,
    values: BTreeMap<String, StoredValue>,
    keys: HashMap<u64, String>,
    last_revision: u64,
}

/// The shared state of a simulation.
#[derive(Clone)]
pub(super) struct World(Arc<Mutex<State>>);

impl World {
    pub(super) fn new(seed: u64, is_traced: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            random: Random::new(seed),
            now: 0,
            faults: Faults { latency: 1000, write: 5000, ..Faults::default() },
            nodes: Default::default(),
            history: History::default(),
            spawned: Vec::new(),
            violation: None,
            trace: is_traced.then(Vec::new),
            requests: 0,
            provocations: 10,
            events: BinaryHeap::new(),
            values: BTreeMap::new(),
            keys: HashMap::new(),
            last_revision: 0,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    pub(super) fn spawn(
        &self,
        process: ProcessId,
        is_call: bool,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.lock().spawned.push((process, is_call, Box::pin(task)));
    }

    pub(super) async fn sleep(&self, duration: Duration) {
        let at = self.lock().now + u64::try_from(duration.as_micros()).unwrap();
        let mut is_set = false;
        std::future::poll_fn(|cx| {
            let mut state = self.lock();
            if state.now >= at {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut is_set, true) {
                state.schedule(at, Event::Wake(cx.waker().clone()));
            }
            Poll::Pending
        })
        .await;
    }

    /// Sleeps for a random time below this one.
    pub(super) async fn sleep_below(&self, max: Duration) {
        let max = u64::try_from(max.as_micros()).unwrap();
        let micros = self.lock().random.below(max + 1);
        self.sleep(Duration::from_micros(micros)).await;
    }

    pub(super) fn chance(&self, thousandths: impl FnOnce(&Faults) -> u64) -> bool {
        let mut state = self.lock();
        let thousandths = thousandths(&state.faults);
        state.random.chance(thousandths)
    }
}

impl State {
    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let now = self.now;
            trace.push(format!("{:>4}.{:06} {}", now / 1_000_000, now % 1_000_000, text()));
        }
    }

    pub(super) fn violate(&mut self, text: String) {
        self.note(|| format!("VIOLATION {text}"));
        self.violation.get_or_insert(text);
    }

    /// Returns `true` if this process runs at the moment.
    pub(super) fn is_running(&self, process: ProcessId) -> bool {
        let node = &self.nodes[process.node];
        node.is_alive && !node.is_paused && node.number == process.number
    }

    fn schedule(&mut self, at: u64, event: Event) {
        // Events of one moment happen in a random order.
        let key = Reverse((at, self.random.next()));
        self.events.push(Entry { key, event });
    }

    pub(super) fn schedule_blow(&mut self, at: u64, node: usize, blow: Blow) {
        self.schedule(at, Event::Blow(node, blow));
    }

    fn send(&mut self, from: ProcessId, op: Op) -> Arc<Mutex<Slot>> {
        self.requests += 1;
        let slot = Arc::<Mutex<Slot>>::default();
        let faults = self.faults;
        let now = self.now;
        let random = &mut self.random;
        let cut_until = self.nodes[from.node].cut_until;
        let mut delay = 50 + random.below(faults.latency);
        if random.chance(faults.slow) {
            delay += random.below(SLOW);
        }
        let is_lost = random.chance(faults.lost) || (cut_until > now && random.chance(500));
        if cut_until > now {
            delay += cut_until - now;
        }
        let back = (!random.chance(faults.unanswered)).then(|| 50 + random.below(faults.latency));
        let fails_early = random.chance(faults.early_error);
        let fails_after = if fails_early { random.below(delay + 1) } else { TIMEOUT };
        if is_lost || fails_early || delay + back.unwrap_or(TIMEOUT) >= TIMEOUT {
            self.schedule(now + fails_after, Event::Fail(Arc::clone(&slot)));
        }
        if is_lost {
            self.note(|| format!("n{} sends {op:.80?}, which is lost", from.node));
        } else {
            let request = Request { op, from, slot: Arc::clone(&slot), sent_at: now, back };
            self.schedule(now + delay, Event::Apply(request));
        }
        slot
    }

    /// Lets the next event happen, unless it is later than `until`.
    pub(super) fn step(&mut self, until: u64) -> Option<Option<(usize, Blow)>> {
        if self.events.peek().is_none_or(|entry| entry.key.0.0 > until) {
            return None;
        }
        let Entry { key, event } = self.events.pop()?;
        self.now = self.now.max(key.0.0);
        match event {
            Event::Apply(request) => self.apply(request),
            Event::Answer(from, slot, answer, sent_at) => {
                if self.nodes[from.node].cut_until > self.now {
                    let at = self.now.max(sent_at + TIMEOUT);
                    self.schedule(at, Event::Fail(slot));
                } else {
                    slot.lock().set(Some(answer));
                }
            }
            Event::Fail(slot) => slot.lock().set(None),
            Event::Wake(waker) => waker.wake(),
            Event::Blow(node, Blow::Cut(micros)) => {
                self.nodes[node].cut_until = self.now + micros;
                self.note(|| format!("n{node} is cut off for {} ms", micros / 1000));
            }
            Event::Blow(node, blow) => return Some(Some((node, blow))),
        }
        Some(None)
    }

    fn apply(&mut self, request: Request) {
        let Request { op, from, slot, sent_at, back } = request;
        let NodeStatus { number, is_alive, .. } = self.nodes[from.node];
        if (!is_alive || number != from.number) && self.random.chance(500) {
            return;
        }
        let text = self.trace.is_some().then(|| describe(&op));
        let is_write = match &op {
            Op::Get(_) | Op::Keys(_) | Op::Next(..) => false,
            Op::Update(key, ..) | Op::Put(key, _) => !key.starts_with("node."),
            Op::Remove(_) => true,
        };
        let mut read = match &op {
            Op::Get(key) => Some(key.clone()),
            Op::Update(..) | Op::Put(..) | Op::Remove(_) | Op::Keys(_) | Op::Next(..) => None,
        };
        let answer = match op {
            Op::Get(key) => Answer::Value(self.values.get(&key).cloned()),
            Op::Update(key, value, expected) => {
                let found = self.values.get(&key).map_or(0, |value| value.revision);
                Answer::Write(if found == expected {
                    Write::Done(self.write(key, value))
                } else {
                    Write::Conflict
                })
            }
            Op::Put(key, value) => Answer::Revision(self.write(key, value)),
            Op::Remove(revision) => {
                if let Some(key) = self.keys.remove(&revision) {
                    self.values.remove(&key);
                    self.watch_mark(&key);
                    self.watch(&key);
                }
                Answer::Removed
            }
            Op::Keys(pattern) => {
                let prefix = pattern.split(['*', '>']).next().unwrap_or_default().to_owned();
                let later = self.values.range(prefix.clone()..).map(|(key, _)| key);
                let keys = later.take_while(|key| key.starts_with(&prefix));
                Answer::Keys(keys.filter(|key| matches(&pattern, key)).cloned().collect())
            }
            Op::Next(pattern, revision) => {
                let later = |(key, value): &(&String, &StoredValue)| {
                    value.revision > revision && matches(&pattern, key)
                };
                let next = self.values.iter().filter(later).min_by_key(|(_, value)| value.revision);
                Answer::Next(next.map(|(key, value)| (key.clone(), value.clone())))
            }
        };
        if let Answer::Keys(keys) = &answer {
            read = keys.first().cloned();
        }
        if let Some(intent) = read.as_deref().and_then(find_intent) {
            self.provoke(from.node, intent);
        }
        if let Some(text) = text {
            let process = format!("n{}.{}", from.node, from.number);
            let fate = if back.is_some() { "" } else { ", unanswered" };
            self.note(|| format!("{process} {text} => {}{fate}", describe_answer(&answer)));
        }
        match back {
            Some(back) => self.schedule(self.now + back, Event::Answer(from, slot, answer, sent_at)),
            None => self.schedule(self.now.max(sent_at + TIMEOUT), Event::Fail(slot)),
        }
        if is_write && self.random.chance(self.faults.strike) {
            self.strike(from.node);
        }
    }

    /// A call at a moment when it matters.
    fn provoke(&mut self, node: usize, intent: IntentId) {
        if self.provocations > 0 && self.random.chance(self.faults.provoke) {
            self.provocations -= 1;
            let at = self.now + self.random.below(6 * self.faults.latency);
            self.schedule_blow(at, node, Blow::Call(usize::from(intent.as_bytes()[15])));
        }
    }

    /// A fault of a node at a moment when it matters.
    fn strike(&mut self, node: usize) {
        let at = self.now + self.random.below(2 * self.faults.latency);
        let until = at + self.random.below(50_000_000);
        match self.random.below(3) {
            0 => {
                self.schedule_blow(at, node, Blow::Kill);
                self.schedule_blow(until, node, Blow::Start);
            }
            1 => {
                self.schedule_blow(at, node, Blow::Pause);
                self.schedule_blow(until, node, Blow::Resume);
            }
            _ => self.schedule_blow(at, node, Blow::Cut(until - at)),
        }
    }

    pub(super) fn write(&mut self, key: String, bytes: Bytes) -> u64 {
        self.last_revision += 1;
        let revision = self.last_revision;
        self.keys.insert(revision, key.clone());
        if let Some(old) = self.values.insert(key.clone(), StoredValue { bytes, revision }) {
            self.keys.remove(&old.revision);
        }
        self.watch(&key);
        self.watch_wait(&key);
        revision
    }

    /// Checks a change of a pending intent.
    fn watch_wait(&mut self, key: &str) {
        let Some(intent) = key.strip_prefix("wait.") else { return };
        let intent = IntentId::parse(intent).unwrap();
        let Some((number, decision)) = self.wait(intent) else { return };
        let claim = self.claim(intent);
        // A late call may store it again, until a node looks.
        if claim.as_ref().is_some_and(|claim| !claim.state.is_open()) {
            return;
        }
        if claim.is_none() {
            self.history.wait(intent, number);
        }
        let Some(decision) = decision else { return };
        if !self.history.decide(intent, number, decision) {
            self.violate(format!("the wait {number} of {intent} has two decisions"));
        }
    }

    /// The number of a pending intent's wait, and its decision.
    pub(super) fn wait(&self, intent: IntentId) -> Option<(u64, Option<String>)> {
        let value = self.values.get(&format!("wait.{intent}"))?;
        let record = serde_json::from_slice::<serde_json::Value>(&value.bytes[CODE_BYTES..]).unwrap();
        let decision = Some(&record["decision"]).filter(|decision| !decision.is_null());
        Some((record["number"].as_u64().unwrap(), decision.map(ToString::to_string)))
    }

    /// Checks that the mark of a running guest is not removed.
    fn watch_mark(&mut self, key: &str) {
        let Some(intent) = find_intent(key).filter(|_| key.starts_with("open.")) else { return };
        let Some(process) = self.history.running(intent) else { return };
        let is_own = key == format!("open.n{}.{intent}", process.node);
        let is_open = self.claim(intent).is_some_and(|claim| claim.state.is_open());
        if is_own && is_open {
            self.violate(format!("the mark of {intent} is removed while its guest runs on {process:?}"));
        }
    }

    /// Checks a change of a claim.
    fn watch(&mut self, key: &str) {
        let Some(intent) = key.strip_prefix("claim.") else { return };
        let intent = IntentId::parse(intent).unwrap();
        let claim = self.claim(intent);
        let receipt = claim.as_ref().and_then(|claim| match &claim.state {
            ClaimState::Ended { receipt, .. } => Some(format!("{receipt:?}")),
            ClaimState::Open { .. } | ClaimState::Denied { .. } => None,
        });
        if let Some(first) = self.history.end(intent)
            && receipt.as_ref() != Some(first)
        {
            let text = format!("the end of {intent} has changed from {first} to {receipt:?}");
            return self.violate(text);
        }
        let is_ended = receipt.is_some();
        self.history.set_end(intent, receipt);
        if is_ended || claim.is_none() {
            let running = self.history.running(intent);
            if let Some(process) = running {
                if self.is_running(process) {
                    self.violate(format!("the claim of {intent} ends while its guest runs on {process:?}"));
                }
                self.history.outlived(intent);
            }
        }
    }

    pub(super) fn claim(&self, intent: IntentId) -> Option<ClaimRecord> {
        let value = self.values.get(&format!("claim.{intent}"))?;
        Some(serde_json::from_slice(&value.bytes[CODE_BYTES..]).unwrap())
    }

    /// Loses all claims and marks, as servers do that come back with an old copy of their disks.
    pub(super) fn lose_claims(&mut self) {
        self.values.retain(|key, _| !key.starts_with("claim.") && !key.starts_with("open."));
    }

    /// The keys that match a pattern of [`Store::keys`].
    pub(super) fn keys(&self, pattern: &str) -> Vec<&str> {
        self.values.keys().filter(|key| matches(pattern, key)).map(String::as_str).collect()
    }

    /// Ends all faults. Requests that are still on their way arrive soon.
    pub(super) fn heal(&mut self) {
        self.faults = Faults { latency: 1000, write: 5000, ..Faults::default() };
        for node in &mut self.nodes {
            node.cut_until = 0;
        }
        let soon = self.now + 2_000_000;
        for Entry { key: Reverse((at, order)), event } in std::mem::take(&mut self.events).into_vec() {
            let is_delayed = match &event {
                Event::Apply(_) => true,
                Event::Blow(..) => continue,
                Event::Answer(..) | Event::Fail(_) | Event::Wake(_) => false,
            };
            let at = if is_delayed && at > soon { soon - self.random.below(2_000_000) } else { at };
            self.events.push(Entry { key: Reverse((at, order)), event });
        }
    }
}

/// The intent of a claim or a mark.
fn find_intent(key: &str) -> Option<IntentId> {
    let name = key.strip_prefix("claim.").or_else(|| key.strip_prefix("open.")?.get("nX.".len()..))?;
    IntentId::parse(name.get(..36)?).ok()
}

fn value(bytes: &Bytes) -> String {
    String::from_utf8_lossy(&bytes[CODE_BYTES..]).into_owned()
}

fn describe_answer(answer: &Answer) -> String {
    match answer {
        Answer::Value(None) => "none".to_owned(),
        Answer::Value(Some(found)) => format!("{} {}", found.revision, value(&found.bytes)),
        Answer::Write(write) => format!("{write:?}"),
        Answer::Revision(revision) => revision.to_string(),
        Answer::Removed => "done".to_owned(),
        Answer::Keys(keys) => keys.join(" "),
        Answer::Next(None) => "none".to_owned(),
        Answer::Next(Some((key, found))) => format!("{key} {} {}", found.revision, value(&found.bytes)),
    }
}

fn describe(op: &Op) -> String {
    match op {
        Op::Get(key) => format!("get {key}"),
        Op::Update(key, bytes, expected) => format!("update {key} {expected} {}", value(bytes)),
        Op::Put(key, bytes) => format!("put {key} {}", value(bytes)),
        Op::Remove(revision) => format!("remove {revision}"),
        Op::Keys(pattern) => format!("keys {pattern}"),
        Op::Next(pattern, revision) => format!("next {pattern} {revision}"),
    }
}

/// The servers, as one process sees them.
#[derive(Clone)]
pub(super) struct SimulatedStore {
    pub(super) world: World,
    pub(super) process: ProcessId,
}

impl SimulatedStore {
    async fn request(&self, op: Op) -> Result<Answer, FleetError> {
        let slot = self.world.lock().send(self.process, op);
        std::future::poll_fn(|cx| {
            let mut slot = slot.lock();
            match slot.answer.take() {
                Some(answer) => {
                    let lost =
                        || FleetError::Unavailable { request: "request", reason: "it is lost".to_owned() };
                    Poll::Ready(answer.ok_or_else(lost))
                }
                None => {
                    slot.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Store for SimulatedStore {
    async fn get(&self, key: &str) -> Result<Option<StoredValue>, FleetError> {
        let Answer::Value(value) = self.request(Op::Get(key.to_owned())).await? else { unreachable!() };
        Ok(value)
    }

    async fn get_with_age(&self, key: &str) -> Result<Option<(StoredValue, Duration)>, FleetError> {
        // No node reads an age.
        Ok(self.get(key).await?.map(|value| (value, Duration::ZERO)))
    }

    async fn update(&self, key: &str, value: Bytes, expected: u64) -> Result<Write, FleetError> {
        let op = Op::Update(key.to_owned(), value, expected);
        let Answer::Write(write) = self.request(op).await? else { unreachable!() };
        Ok(write)
    }

    async fn put(&self, key: &str, value: Bytes) -> Result<u64, FleetError> {
        let op = Op::Put(key.to_owned(), value);
        let Answer::Revision(revision) = self.request(op).await? else { unreachable!() };
        Ok(revision)
    }

    async fn remove(&self, revision: u64) -> Result<(), FleetError> {
        let Answer::Removed = self.request(Op::Remove(revision)).await? else { unreachable!() };
        Ok(())
    }

    async fn keys(&self, pattern: &str) -> Result<Vec<String>, FleetError> {
        let Answer::Keys(keys) = self.request(Op::Keys(pattern.to_owned())).await? else { unreachable!() };
        Ok(keys)
    }

    async fn next(&self, pattern: &str, revision: u64) -> Result<Option<(String, StoredValue)>, FleetError> {
        let op = Op::Next(pattern.to_owned(), revision);
        let Answer::Next(next) = self.request(op).await? else { unreachable!() };
        Ok(next)
    }
}

/// The clocks of a node: its wall clock is wrong, and its monotonic clock has its own start.
pub(super) struct SimulatedClock {
    world: World,
    start: Instant,
    wall: OffsetDateTime,
}

impl SimulatedClock {
    pub(super) fn new(world: World, node: usize) -> Self {
        let shift = u64::try_from(node).unwrap();
        let start = SystemClock.monotonic() + Duration::from_secs(1000 * shift);
        Self { world, start, wall: OffsetDateTime::UNIX_EPOCH + Duration::from_secs(7777 * shift) }
    }

    fn elapsed(&self) -> Duration {
        Duration::from_micros(self.world.lock().now)
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> OffsetDateTime {
        self.wall + self.elapsed()
    }

    fn monotonic(&self) -> Instant {
        self.start + self.elapsed()
    }
}

struct TaskWaker {
    task: usize,
    ready: Arc<Mutex<Vec<usize>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.lock().push(self.task);
    }
}

struct Running {
    process: ProcessId,
    is_call: bool,
    task: Task,
    waker: Waker,
}

/// The tasks of all processes.
#[derive(Default)]
pub(super) struct Tasks {
    all: Vec<Option<Running>>,
    ready: Arc<Mutex<Vec<usize>>>,
    /// The tasks of paused nodes that are to be polled.
    parked: Vec<usize>,
}

impl Tasks {
    /// Polls tasks until all wait.
    pub(super) fn poll(&mut self, world: &World) {
        loop {
            for (process, is_call, task) in std::mem::take(&mut world.lock().spawned) {
                let id = self.all.len();
                let waker = Waker::from(Arc::new(TaskWaker { task: id, ready: Arc::clone(&self.ready) }));
                self.all.push(Some(Running { process, is_call, task, waker }));
                self.ready.lock().push(id);
            }
            let id = {
                let mut ready = self.ready.lock();
                if ready.is_empty() {
                    return;
                }
                let nth = world.lock().random.below(ready.len() as u64);
                ready.swap_remove(usize::try_from(nth).unwrap())
            };
            let Some(running) = &mut self.all[id] else { continue };
            if world.lock().nodes[running.process.node].is_paused {
                self.parked.push(id);
                continue;
            }
            let mut context = Context::from_waker(&running.waker);
            if running.task.as_mut().poll(&mut context).is_ready() {
                self.all[id] = None;
            }
        }
    }

    /// Ends all tasks of a node.
    pub(super) fn kill(&mut self, node: usize) {
        for slot in &mut self.all {
            if slot.as_ref().is_some_and(|running| running.process.node == node) {
                *slot = None;
            }
        }
    }

    pub(super) fn unpark(&mut self) {
        self.ready.lock().append(&mut self.parked);
    }

    /// Returns `true` if no client waits for an answer.
    pub(super) fn is_idle(&self) -> bool {
        !self.all.iter().flatten().any(|running| running.is_call)
    }
}
