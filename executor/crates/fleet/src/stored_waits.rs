//! The stored waits: the calls that wait for a person.
//!
//! The node at which an intent waits keeps it in its journal too, and takes it back from another node when it runs again:
//! the tasks and the approvals of the intent are there.

use crate::FleetError;
use crate::claims::{Claims, MAX_TRIES};
use crate::member::Member;
use crate::record::{decode, encode};
use crate::store::{Store, StoredValue, Write};
use crate::stored_calls::{
    HeldCall, HeldState, StoredCallRecord, WaitingCalls, WaitsFor, call_key, give_back, key_prefix,
};
use a2g_types::ident::IntentId;
use a2g_types::node::{CallMessage, PassedCall};
use std::sync::Arc;

/// The state of an intent that waits for a person at this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitState {
    /// The fleet stores that it waits here.
    Stored,
    /// It was taken over before this process started: it is stored once a sweep has taken it over again.
    NotYet,
    /// It has a claim, of a run or a denial.
    Claimed,
    /// It was taken over from a lost node, and waits at another node again.
    TakenBack,
}

/// A stored wait of any node.
#[derive(Debug)]
pub struct StoredWait {
    /// The call that waits.
    pub call: PassedCall,
    /// `true` if the node at which it waits is not known to be lost.
    pub has_live_holder: bool,
}

/// The intents that wait for a person, at this node and at others.
pub struct StoredWaits<S> {
    member: Arc<Member<S>>,
    claims: Arc<Claims<S>>,
    /// Those that wait here.
    calls: Arc<WaitingCalls>,
}

impl<S: Store> StoredWaits<S> {
    pub(crate) fn new(member: Arc<Member<S>>, claims: Arc<Claims<S>>, calls: Arc<WaitingCalls>) -> Self {
        Self { member, claims, calls }
    }

    /// The keys of the stored waits of all nodes.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn keys(&self) -> Result<Vec<String>, FleetError> {
        self.member.store.keys(&format!("{}.>", key_prefix(WaitsFor::Person))).await
    }

    /// Returns `true` if the fleet stores that an intent waits for a person, at whichever node.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn is_stored_anywhere(&self, intent: IntentId) -> Result<bool, FleetError> {
        Ok(!self.keys_of(intent).await?.is_empty())
    }

    /// The keys of the stored waits of an intent.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn keys_of(&self, intent: IntentId) -> Result<Vec<String>, FleetError> {
        self.member.store.keys(&format!("{}.*.{intent}", key_prefix(WaitsFor::Person))).await
    }

    /// Reads a stored wait; `None` if it has been removed.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn read(&self, key: &str) -> Result<Option<StoredWait>, FleetError> {
        let Some(StoredValue { bytes, .. }) = self.member.store.get(key).await? else { return Ok(None) };
        let StoredCallRecord { holder, epoch, call } = decode(key, &bytes)?;
        let has_live_holder = self.member.read_epoch(&holder).await? == Some(epoch);
        Ok(Some(StoredWait { call: PassedCall::from_authenticated(call), has_live_holder }))
    }

    /// Stores an intent that waits for a person at this node, until [`Self::remove`]. If another node has taken it
    /// over, takes it back. An intent that waited here before this process started is added only if it is not stored as
    /// waiting at another node.
    ///
    /// # Errors
    /// [`FleetError`]; the call can be repeated.
    pub async fn store(
        &self,
        intent: IntentId,
        call: CallMessage,
        is_new: bool,
    ) -> Result<WaitState, FleetError> {
        let own_key = self.own_key(intent);
        let key = self.calls.key_of(intent).unwrap_or_else(|| own_key.clone());
        for _ in 0..MAX_TRIES {
            let found = self.member.store.get(&key).await?;
            if key != own_key && !self.is_held_here(&key, found.as_ref())? {
                return Ok(self.lose(intent));
            }
            if self.claims.read_claim(intent).await?.is_some() {
                return Ok(WaitState::Claimed);
            }
            if found.is_none()
                && !is_new
                && let Some(state) = self.find_other(intent).await?
            {
                return Ok(state);
            }
            let epoch = self.member.lease.epoch();
            let revision = found.map_or(0, |found| found.revision);
            // Held before it is written, so that it is removed even if the answer is lost.
            self.calls.hold_unless_stored(intent, &key, epoch);
            let record = StoredCallRecord { holder: self.member.node.clone(), epoch, call: call.clone() };
            if let Write::Done(_) = self.member.store.update(&key, &encode(&record)?, revision).await? {
                self.calls.hold(intent, key, HeldState::Stored(epoch));
                return Ok(WaitState::Stored);
            }
        }
        Err(FleetError::contended("store a wait", "other nodes change it"))
    }

    /// Returns `true` if the fleet is known to store, in the present epoch of this node, that an intent waits here.
    #[must_use]
    pub fn is_stored(&self, intent: IntentId) -> bool {
        let state = HeldState::Stored(self.member.lease.epoch());
        self.calls.held.lock().get(&intent).is_some_and(|held| held.state == state)
    }

    /// Returns `true` if an intent waits here that was taken over from a lost node: that node can take it back.
    #[must_use]
    pub fn is_taken_over(&self, intent: IntentId) -> bool {
        self.calls.key_of(intent).is_some_and(|key| key != self.own_key(intent))
    }

    /// Checks whether an intent that was taken over from a lost node still waits here.
    ///
    /// # Errors
    /// [`FleetError`]; the call can be repeated.
    pub async fn check(&self, intent: IntentId) -> Result<WaitState, FleetError> {
        let Some(key) = self.calls.key_of(intent) else { return Ok(WaitState::NotYet) };
        let is_here = self.read_own(&key).await?.is_some();
        Ok(if is_here { WaitState::Stored } else { self.lose(intent) })
    }

    /// The intents that the fleet may store as waiting here.
    #[must_use]
    pub fn stored(&self) -> Vec<IntentId> {
        let held = self.calls.held.lock();
        // An orphan does not wait here yet.
        let stored = held.iter().filter(|(_, held)| held.state != HeldState::Orphan);
        stored.map(|(intent, _)| *intent).collect()
    }

    /// Removes an intent that no longer waits here.
    ///
    /// # Errors
    /// [`FleetError`]; the call can be repeated.
    pub async fn remove(&self, intent: IntentId) -> Result<(), FleetError> {
        let Some(held) = self.calls.held.lock().remove(&intent) else { return Ok(()) };
        let removed = self.remove_if_held_here(&held.key).await;
        match &removed {
            // A value of a later version is removed by that version.
            Ok(()) | Err(FleetError::Value { .. }) => {}
            Err(_) => {
                let unknown = HeldCall { state: HeldState::Unknown, ..held };
                self.calls.held.lock().entry(intent).or_insert(unknown);
            }
        }
        removed
    }

    async fn remove_if_held_here(&self, key: &str) -> Result<(), FleetError> {
        let Some((_, revision)) = self.read_own(key).await? else { return Ok(()) };
        self.member.store.remove(revision).await
    }

    /// Gives an orphan that cannot wait here back: the next sweep of any node may take it over.
    ///
    /// # Errors
    /// [`FleetError`]; then this node tries it again.
    pub async fn give_up(&self, intent: IntentId) -> Result<(), FleetError> {
        let Some(held) = self.calls.held.lock().remove(&intent) else { return Ok(()) };
        let Some((record, revision)) = self.read_own(&held.key).await? else { return Ok(()) };
        give_back(&self.member, &held.key, record.call, revision).await
    }

    /// Reads a stored wait whose holder is this node.
    async fn read_own(&self, key: &str) -> Result<Option<(StoredCallRecord, u64)>, FleetError> {
        let found = self.member.store.read::<StoredCallRecord>(key).await?;
        Ok(found.filter(|(record, _)| record.holder == self.member.node))
    }

    /// The state of an intent that is stored under the key of another node; `None` if it is under none.
    async fn find_other(&self, intent: IntentId) -> Result<Option<WaitState>, FleetError> {
        let Some(key) = self.keys_of(intent).await?.into_iter().next() else { return Ok(None) };
        let Some(StoredValue { bytes, .. }) = self.member.store.get(&key).await? else { return Ok(None) };
        let StoredCallRecord { holder, epoch, .. } = decode(&key, &bytes)?;
        let is_elsewhere =
            holder != self.member.node && self.member.read_epoch(&holder).await? == Some(epoch);
        Ok(Some(if is_elsewhere { WaitState::TakenBack } else { WaitState::NotYet }))
    }

    fn own_key(&self, intent: IntentId) -> String {
        call_key(WaitsFor::Person, &self.member.node, intent)
    }

    fn is_held_here(&self, key: &str, found: Option<&StoredValue>) -> Result<bool, FleetError> {
        let record = found.map(|found| decode::<StoredCallRecord>(key, &found.bytes)).transpose()?;
        Ok(record.is_some_and(|record| record.holder == self.member.node))
    }

    /// Notes that another node has an intent. It stays held under its key until it waits here no longer.
    fn lose(&self, intent: IntentId) -> WaitState {
        let mut held = self.calls.held.lock();
        if let Some(held) = held.get_mut(&intent) {
            held.state = HeldState::Unknown;
        }
        WaitState::TakenBack
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fleet;
    use crate::claims::NewDenial;
    use crate::stored_calls::tests::{Nodes, SlowStore, TAKE_ALL, call, finish, interleave};
    use crate::stored_calls::{Takeover, TakeoverRule};
    use serde_json::value::RawValue;
    use std::pin::Pin;
    use std::sync::atomic::Ordering;

    type Node = Fleet<SlowStore>;

    fn store(node: &Node, intent: IntentId) -> WaitState {
        finish(node.waits.store(intent, call(), true))
    }

    fn take_over(node: &Node, lost: &Node, rule: TakeoverRule<'_>) -> bool {
        finish(node.calls.take_over(&lost.member.node, Some(rule)));
        has_orphan(node)
    }

    /// Returns `true` if the node has taken a wait over that does not wait there yet.
    fn has_orphan(node: &Node) -> bool {
        node.waits.calls.held.lock().values().any(|held| held.state == HeldState::Orphan)
    }

    #[test]
    fn a_wait_moves_to_one_node_and_back_to_its_own() {
        let mut by_two = 0;
        for seed in 0..1_000 {
            let nodes = Nodes::join();
            let [one, two, three] = &nodes.all;
            let intent = IntentId::random();
            assert_eq!(store(one, intent), WaitState::Stored);
            assert!(one.waits.is_stored(intent) && !take_over(two, one, TAKE_ALL), "the node is not lost");
            nodes.lose(0);
            assert!(finish(three.waits.is_stored_anywhere(intent)));
            let sweeps = [two, three].map(|node| {
                Box::pin(node.calls.take_over(&one.member.node, Some(TAKE_ALL)))
                    as Pin<Box<dyn Future<Output = _>>>
            });
            assert!(interleave(seed, sweeps.into()).iter().all(Result::is_ok));
            let has_taken = [two, three].map(has_orphan);
            assert_ne!(has_taken[0], has_taken[1], "seed {seed}");
            by_two += usize::from(has_taken[0]);
            let [taker, other] = if has_taken[0] { [two, three] } else { [three, two] };
            assert_eq!(taker.waits.stored(), [], "it does not wait there yet");
            assert_eq!(store(taker, intent), WaitState::Stored);
            assert!(!take_over(other, one, TAKE_ALL), "seed {seed}");
            // Its own node runs again.
            let one = nodes.restart(0);
            assert_eq!(finish(one.waits.store(intent, call(), false)), WaitState::Stored);
            assert_eq!(store(taker, intent), WaitState::TakenBack);
            finish(taker.waits.remove(intent));
            assert!(nodes.has_key("wait.one."), "seed {seed}");
            finish(one.waits.remove(intent));
            assert!(
                !nodes.has_key("wait.") && !finish(three.waits.is_stored_anywhere(intent)),
                "seed {seed}"
            );
        }
        assert!((100..900).contains(&by_two), "{by_two} of 1000");
    }

    #[test]
    fn a_wait_that_was_decided_elsewhere_is_not_stored_again() {
        let nodes = Nodes::join();
        let [one, two, _] = &nodes.all;
        let intent = IntentId::random();
        assert_eq!(store(one, intent), WaitState::Stored);
        nodes.lose(0);
        assert!(take_over(two, one, TAKE_ALL));
        assert_eq!(store(two, intent), WaitState::Stored);
        let denial = RawValue::from_string("{}".to_owned()).unwrap();
        finish(two.claims.deny(NewDenial { intent, content: &[0; 32], agent: "did:a:a", denial }));
        finish(two.waits.remove(intent));
        let one = nodes.restart(0);
        assert_eq!(store(&one, intent), WaitState::Claimed);
        assert!(!nodes.has_key("wait."));
    }

    #[test]
    fn a_rule_decides_which_waits_are_taken_over() {
        let nodes = Nodes::join();
        let [one, two, three] = &nodes.all;
        let intent = IntentId::random();
        assert_eq!(store(one, intent), WaitState::Stored);
        nodes.lose(0);
        finish(two.calls.take_over(&one.member.node, None));
        assert!(!has_orphan(two) && !take_over(two, one, &|_, _| Takeover::Leave));
        assert!(take_over(three, one, TAKE_ALL));
        // A node at which it cannot wait now tries again.
        finish(three.waits.give_up(intent));
        assert!(take_over(three, one, TAKE_ALL));
        finish(three.waits.give_up(intent));
        assert!(!take_over(three, one, &|_, _| Takeover::Remove));
        assert!(!nodes.has_key("wait."));
    }

    #[test]
    fn a_node_that_starts_again_adds_only_what_waits_nowhere_else() {
        let nodes = Nodes::join();
        let [one, _, three] = &nodes.all;
        let [taken_over, unknown, ended, returned] = [(); 4].map(|()| IntentId::random());
        let stored = [(one, taken_over), (three, ended), (one, returned)];
        assert_eq!(stored.map(|(node, intent)| store(node, intent)), [WaitState::Stored; 3]);
        nodes.lose(0);
        assert!(take_over(three, one, TAKE_ALL));
        assert_eq!([taken_over, returned].map(|intent| store(three, intent)), [WaitState::Stored; 2]);
        // Both start again. Three of the four still wait at the last one.
        let three = nodes.restart(2);
        let one_again = nodes.restart(0);
        assert_eq!(store(&one_again, returned), WaitState::Stored);
        let state = |intent| finish(three.waits.store(intent, call(), false));
        let states = [WaitState::NotYet, WaitState::Stored, WaitState::TakenBack];
        assert_eq!([taken_over, unknown, returned].map(state), states);
        finish(one_again.waits.remove(returned));
        nodes.lose(0);
        finish(three.takeovers.sweep(|_| crate::LocalReport::Unknown, Some(TAKE_ALL)));
        assert_eq!(state(taken_over), WaitState::Stored);
        assert!(nodes.has_key(&format!("wait.one.{taken_over}")));
        assert!(nodes.has_key(&format!("wait.three.{unknown}")));
        assert!(!nodes.has_key(&ended.to_string()), "the sweep has removed what no longer waits");
        assert!(!nodes.has_key(&format!("wait.three.{taken_over}")));
    }

    #[test]
    fn a_wait_whose_answers_were_lost_is_stored_and_removed() {
        let nodes = Nodes::join();
        let [one, ..] = &nodes.all;
        let intent = IntentId::random();
        nodes.store.loses_answer.store(true, Ordering::Relaxed);
        let failed = interleave(0, vec![Box::pin(one.waits.store(intent, call(), true))]);
        assert!(failed[0].is_err() && !one.waits.is_stored(intent));
        assert_eq!(one.waits.stored(), [intent]);
        assert_eq!(store(one, intent), WaitState::Stored);
        nodes.store.loses_answer.store(true, Ordering::Relaxed);
        let failed = interleave(0, vec![Box::pin(one.waits.store(intent, call(), true))]);
        assert!(failed[0].is_err() && one.waits.is_stored(intent), "a second write changes nothing");
        finish(one.waits.remove(intent));
        assert!(!nodes.has_key("wait.") && one.waits.stored().is_empty());
    }
}
