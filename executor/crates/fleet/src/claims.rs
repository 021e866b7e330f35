//! The claims of intents: one node of the fleet claims each, and one receipt ends it.

use crate::FleetError;
use crate::marks::{Mark, OrphanReport, OrphanReports, delivered_key, end_key};
use crate::member::Member;
use crate::record::{ClaimRecord, ClaimState, MarkRecord, ProofRecord, ReceiptPlace, encode};
use crate::store::{Store, Write};
use a2g_types::ident::IntentId;
use a2g_types::node::NodeName;
use a2g_types::tool::Digest;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum size of a receipt in a claim, and of each part of a longer one, in bytes. A server accepts messages of
/// 1 MiB by default.
const PART_BYTES: usize = 512 << 10;
/// The maximum size of a receipt, in bytes. A claim that names a longer one is refused.
const MAX_RECEIPT_BYTES: usize = 512 << 20;
/// The maximum number of times that a claim is read again because another node or task has changed it.
pub(crate) const MAX_TRIES: usize = 8;

/// The time for which a node looks for a claim whose request has failed: the request may still take effect.
const DOUBT: Duration = Duration::from_secs(60);

/// What a node claims: an intent, and what the fleet stores about it.
#[derive(Debug, Clone)]
pub struct NewClaim<'a> {
    /// The intent.
    pub intent: IntentId,
    /// The hash of the call's content.
    pub content: &'a [u8; 32],
    /// The agent.
    pub agent: &'a str,
    /// The governor's verdict, if the node asked the governor.
    pub verdict: Option<Box<RawValue>>,
    /// The receipt of the intent if this node is lost.
    pub fallback: Box<RawValue>,
    /// The identifier of the verdict's proof, which only one intent may use.
    pub proof: Option<&'a str>,
}

/// A claim of this node. It has to be passed to [`Claims::finish`] or [`Claims::release`].
#[derive(Debug)]
#[must_use]
pub struct Claim {
    intent: IntentId,
    epoch: u64,
    revision: u64,
    record: ClaimRecord,
}

/// The answer to a claim.
#[derive(Debug)]
pub enum ClaimReply {
    /// This node has claimed the intent.
    New(Claim),
    /// The intent was claimed before.
    Known(FoundClaim),
    /// Another intent has used the proof.
    Replayed,
}

/// A claim that exists.
#[derive(Debug, Clone)]
pub struct FoundClaim {
    /// The node that claimed the intent.
    pub node: NodeName,
    /// The hash of the call's content, in hexadecimal.
    pub content: String,
    /// The agent.
    pub agent: String,
    /// The governor's verdict, if the node asked the governor.
    pub verdict: Option<Box<RawValue>>,
    /// The state of the intent.
    pub state: FoundState,
}

/// The state of a claimed intent.
#[derive(Debug, Clone)]
pub enum FoundState {
    /// The intent runs.
    Open,
    /// The intent has run.
    Ended(FoundEnd),
    /// A person has denied the intent. The text is that of [`NewDenial::denial`].
    Denied(Box<RawValue>),
}

/// The denial of an intent that waits for a person.
#[derive(Debug, Clone)]
pub struct NewDenial<'a> {
    /// The intent.
    pub intent: IntentId,
    /// The hash of the call's content.
    pub content: &'a [u8; 32],
    /// The agent.
    pub agent: &'a str,
    /// The denial, for the answers of all nodes.
    pub denial: Box<RawValue>,
}

/// The end of a claimed intent.
#[derive(Debug, Clone)]
pub struct FoundEnd {
    intent: IntentId,
    place: ReceiptPlace,
}

/// The deeds of other nodes with the report of an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Another node has recorded that the governor has acknowledged it.
    Done,
    /// Another node, or another task of this one, has ended the intent, and delivers it.
    Pending,
    /// Nothing: this node has to deliver it.
    Here,
}

/// The answer to the end of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReply {
    /// The receipt ends the intent.
    Recorded,
    /// Another node ended the intent with this receipt, because this node had lost its lease.
    Superseded(Box<str>),
}

/// The claims of intents: at most one run, and one receipt, for each.
pub struct Claims<S> {
    member: Arc<Member<S>>,
    reports: Arc<OrphanReports>,
    /// The intents that this process claims, runs or releases.
    active: Mutex<HashSet<IntentId>>,
    /// Those of `active` whose claims have to be removed.
    abandoned: Mutex<Vec<IntentId>>,
    /// The intents whose claims may still be made by a request that has failed, and until when.
    doubtful: Mutex<Vec<(IntentId, Instant)>>,
}

impl<S: Store> Claims<S> {
    pub(crate) fn new(member: Arc<Member<S>>, reports: Arc<OrphanReports>) -> Self {
        let active = Mutex::default();
        Self { member, reports, active, abandoned: Mutex::default(), doubtful: Mutex::default() }
    }

    /// Returns `true` if no other node can have ended this claim: its guest may start or continue.
    #[must_use]
    pub fn is_held(&self, claim: &Claim) -> bool {
        self.member.holds_lease(claim.epoch)
    }

    /// Returns `true` while this process claims, runs or releases an intent.
    pub(crate) fn is_active(&self, intent: IntentId) -> bool {
        self.active.lock().contains(&intent)
    }

    /// Claims an intent.
    ///
    /// # Errors
    /// [`FleetError`]: nothing may run. A claim that was made nevertheless is removed by [`Self::remove_abandoned`].
    pub async fn claim(&self, new: NewClaim<'_>) -> Result<ClaimReply, FleetError> {
        let intent = new.intent;
        if !self.active.lock().insert(intent) {
            return Err(FleetError::contended("claim", "an earlier claim of the intent is being removed"));
        }
        let reply = self.try_claim(new).await;
        match &reply {
            Ok(ClaimReply::New(_)) => {}
            Ok(ClaimReply::Known(_)) => drop(self.active.lock().remove(&intent)),
            // Removed before the call is refused: if this node were lost with the claim, another would report it as
            // aborted.
            Ok(ClaimReply::Replayed) => {
                if self.remove_claim(intent).await.is_err() {
                    self.abandoned.lock().push(intent);
                }
            }
            Err(_) => {
                self.doubtful.lock().push((intent, self.member.clock.monotonic() + DOUBT));
                self.abandoned.lock().push(intent);
            }
        }
        reply
    }

    /// Denies an intent at all nodes: from now on, none can claim it. Returns the claim that exists already, if any.
    ///
    /// # Errors
    /// [`FleetError`]; the call can be repeated.
    pub async fn deny(&self, new: NewDenial<'_>) -> Result<Option<FoundClaim>, FleetError> {
        let NewDenial { intent, content, agent, denial } = new;
        let epoch = self.member.lease.epoch();
        let record = self.record(epoch, content, agent, ClaimState::Denied { denial });
        match self.member.store.update(&claim_key(intent), &encode(&record)?, 0).await? {
            Write::Done(_) => Ok(None),
            Write::Conflict => match self.find(intent).await? {
                Some(found) => Ok(Some(found)),
                None => Err(FleetError::contended("deny", "another node releases the intent")),
            },
        }
    }

    /// A record of this node, without a verdict.
    pub(crate) fn record(
        &self,
        epoch: u64,
        content: &[u8; 32],
        agent: &str,
        state: ClaimState,
    ) -> ClaimRecord {
        let node = self.member.node.clone();
        let content = Digest(*content).to_string();
        ClaimRecord { node, epoch, content, agent: agent.to_owned(), verdict: None, state }
    }

    async fn try_claim(&self, new: NewClaim<'_>) -> Result<ClaimReply, FleetError> {
        let NewClaim { intent, content, agent, verdict, fallback, proof } = new;
        let epoch = self.member.lease.epoch();
        if !self.member.holds_lease(epoch) {
            return Err(FleetError::LeaseLost);
        }
        let state = ClaimState::Open { fallback };
        let record = ClaimRecord { verdict, ..self.record(epoch, content, agent, state) };
        let claim = claim_key(intent);
        let mark = self.claim_mark(intent);
        let claim_value = encode(&record)?;
        let mark_value = encode(&MarkRecord { epoch })?;
        // Sent without waiting for each answer. The server stores them in this order, so a claim has a mark unless a
        // request is lost; `find` ends such a claim once its node is lost.
        let (marked, proved, created) = tokio::join!(
            biased;
            self.member.store.put(&mark.key, &mark_value),
            self.use_proof(intent, proof),
            self.member.store.update(&claim, &claim_value, 0)
        );
        let mark_revision = marked?;
        let is_first_use = proved?;
        let revision = match created? {
            Write::Done(revision) => revision,
            Write::Conflict => match self.find_with_revision(intent).await? {
                None => return Err(FleetError::contended("claim", "another node releases the intent")),
                // Made by a request whose answer was lost: `active` says that nothing of this process runs under it.
                Some((found, revision))
                    if found.node == self.member.node
                        && found.epoch == epoch
                        && found.content == record.content
                        && found.state.is_open() =>
                {
                    // Written again, because `find` may be about to remove the one that was found.
                    match self.member.store.update(&claim, &claim_value, revision).await? {
                        Write::Done(revision) => revision,
                        Write::Conflict => return Err(FleetError::contended("claim", "it is being removed")),
                    }
                }
                Some((found, _)) => {
                    if found.node != self.member.node {
                        self.member.store.remove(mark_revision).await?;
                    }
                    return Ok(ClaimReply::Known(found_claim(intent, found)));
                }
            },
        };
        let claimed = Claim { intent, epoch, revision, record };
        if !is_first_use {
            return Ok(ClaimReply::Replayed);
        }
        // Checked again: until the claim was made, another node may have taken over, and seen no claim to end.
        if self.is_held(&claimed) { Ok(ClaimReply::New(claimed)) } else { Err(FleetError::LeaseLost) }
    }

    /// Records that an intent uses a proof. Returns `false` if another one has used it.
    async fn use_proof(&self, intent: IntentId, proof: Option<&str>) -> Result<bool, FleetError> {
        let Some(proof) = proof else { return Ok(true) };
        let key = format!("proof.{}", Digest::compute(proof.as_bytes()));
        let intent = intent.to_string();
        match self.member.store.update(&key, &encode(&ProofRecord { intent: intent.clone() })?, 0).await? {
            Write::Done(_) => Ok(true),
            Write::Conflict => {
                let stored = self.member.store.read::<ProofRecord>(&key).await?;
                let (found, _) =
                    stored.ok_or(FleetError::contended("read a proof", "it has just expired"))?;
                Ok(found.intent == intent)
            }
        }
    }

    /// The claim of an intent; `None` if no node has claimed it. A claim whose node is lost is ended first.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn find(&self, intent: IntentId) -> Result<Option<FoundClaim>, FleetError> {
        let found = self.find_with_revision(intent).await?;
        Ok(found.map(|(record, _)| found_claim(intent, record)))
    }

    async fn find_with_revision(&self, intent: IntentId) -> Result<Option<(ClaimRecord, u64)>, FleetError> {
        for _ in 0..MAX_TRIES {
            let Some((record, revision)) = self.read_claim(intent).await? else { return Ok(None) };
            if self.is_stray(intent, &record) {
                self.member.store.remove(revision).await?;
            } else if self.is_lost(&record).await? {
                self.end_lost(intent, &record.node, revision).await?;
            } else {
                return Ok(Some((record, revision)));
            }
        }
        Err(FleetError::contended("read a claim", "it keeps changing"))
    }

    pub(crate) async fn read_claim(
        &self,
        intent: IntentId,
    ) -> Result<Option<(ClaimRecord, u64)>, FleetError> {
        self.member.store.read(&claim_key(intent)).await
    }

    /// Returns `true` if a claim is open, and its node does not hold the lease of that epoch any more.
    pub(crate) async fn is_lost(&self, claim: &ClaimRecord) -> Result<bool, FleetError> {
        if !claim.state.is_open() {
            return Ok(false);
        }
        Ok(self.member.read_epoch(&claim.node).await?.is_none_or(|epoch| epoch > claim.epoch))
    }

    /// Returns `true` if an open claim was made by a request of this process that was given up: nothing runs under it.
    fn is_stray(&self, intent: IntentId, claim: &ClaimRecord) -> bool {
        claim.state.is_open()
            && claim.node == self.member.node
            && claim.epoch == self.member.lease.epoch()
            && !self.is_active(intent)
    }

    /// Ends the claim with this revision, whose node is lost. Its report becomes one of this node's.
    pub(crate) async fn end_lost(
        &self,
        intent: IntentId,
        node: &NodeName,
        lost: u64,
    ) -> Result<(), FleetError> {
        let mark = Mark::new(&self.member.node, node, intent);
        let Some(lock) = self.reports.lock(&mark.key) else { return Ok(()) };
        // Read again under the lock: another task may just have ended it and delivered its report.
        let Some((claim, revision)) = self.read_claim(intent).await? else { return Ok(()) };
        let ClaimState::Open { fallback } = claim.state else { return Ok(()) };
        if revision != lost {
            return Ok(());
        }
        let value = encode(&MarkRecord { epoch: self.member.lease.epoch() })?;
        self.member.store.put(&mark.key, &value).await?;
        // The node's journal lacks the intent if its process ended between the claim and the start.
        self.member.store.put(&end_key(&claim.node, &intent.to_string()), &value).await?;
        let receipt = Box::from(fallback.get());
        let ended = ClaimRecord { state: self.ended(ReceiptPlace::Inline(fallback)), ..claim };
        match self.member.store.update(&claim_key(intent), &encode(&ended)?, revision).await? {
            Write::Done(_) => {
                lock.push(OrphanReport { intent, node: ended.node, receipt, mark: mark.key.clone() })
            }
            // The mark stays: a request of an earlier process of this node may have ended the claim. `sweep` finds out.
            Write::Conflict => {}
        }
        Ok(())
    }

    /// Reads the receipt of an ended intent, and checks its size and hash.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn read_receipt(&self, end: &FoundEnd) -> Result<Box<str>, FleetError> {
        let FoundEnd { intent, place } = end;
        let (epoch, parts, bytes, sha256) = match place {
            ReceiptPlace::Inline(receipt) => return Ok(receipt.get().into()),
            ReceiptPlace::Parts { epoch, parts, bytes, sha256 } => (*epoch, *parts, *bytes, sha256),
        };
        let damaged = |reason: &str| FleetError::value(&part_key(*intent, epoch, 0), reason);
        if bytes > MAX_RECEIPT_BYTES || parts != bytes.div_ceil(PART_BYTES) {
            return Err(damaged("the claim names a size that no receipt has"));
        }
        let mut text = Vec::with_capacity(bytes);
        for part in 0..parts {
            let value = self.member.store.get(&part_key(*intent, epoch, part)).await?;
            text.extend_from_slice(&value.ok_or_else(|| damaged("a part is missing"))?.bytes);
        }
        if text.len() != bytes || Digest::compute(&text).to_string() != *sha256 {
            return Err(damaged("its hash is not that of the claim"));
        }
        String::from_utf8(text).map(String::into_boxed_str).map_err(|_| damaged("it is not text"))
    }

    /// Ends a claim of this node with a receipt. The mark stays until [`Self::mark_delivered`].
    ///
    /// # Errors
    /// [`FleetError`]; the call can be repeated.
    pub async fn finish(&self, claim: &Claim, receipt: &str) -> Result<FinishReply, FleetError> {
        let place = self.store_receipt(claim.intent, claim.epoch, receipt).await?;
        let ended = ClaimRecord { state: self.ended(place), ..claim.record.clone() };
        let value = encode(&ended)?;
        let mut expected = claim.revision;
        for _ in 0..MAX_TRIES {
            let written = self.member.store.update(&claim_key(claim.intent), &value, expected).await?;
            if let Write::Done(_) = written {
                self.active.lock().remove(&claim.intent);
                return Ok(FinishReply::Recorded);
            }
            match self.read_claim(claim.intent).await? {
                // An administrator has removed the claim, it has expired, or the servers have lost it. With the mark, another
                // node delivers the report if this one is lost.
                None => {
                    let mark = encode(&MarkRecord { epoch: claim.epoch })?;
                    self.member.store.put(&self.claim_mark(claim.intent).key, &mark).await?;
                    expected = 0;
                }
                Some((found, revision)) => match found.state {
                    // A denial is possible only after an administrator has removed the claim; the intent has run.
                    ClaimState::Open { .. } | ClaimState::Denied { .. } => expected = revision,
                    ClaimState::Ended { receipt: place, .. } => {
                        let end = FoundEnd { intent: claim.intent, place };
                        let found = self.read_receipt(&end).await?;
                        self.active.lock().remove(&claim.intent);
                        // The same receipt if the answer to an earlier request was lost.
                        let is_same = *found == *receipt;
                        return Ok(if is_same {
                            FinishReply::Recorded
                        } else {
                            FinishReply::Superseded(found)
                        });
                    }
                },
            }
        }
        Err(FleetError::contended("end a claim", "it keeps changing"))
    }

    /// The end of a claim by this node.
    pub(crate) fn ended(&self, receipt: ReceiptPlace) -> ClaimState {
        ClaimState::Ended { by: self.member.node.clone(), receipt }
    }

    async fn store_receipt(
        &self,
        intent: IntentId,
        epoch: u64,
        receipt: &str,
    ) -> Result<ReceiptPlace, FleetError> {
        if receipt.len() <= PART_BYTES {
            let receipt = RawValue::from_string(receipt.to_owned());
            return receipt.map(ReceiptPlace::Inline).map_err(|error| FleetError::value("(new)", error));
        }
        let parts = receipt.as_bytes().chunks(PART_BYTES);
        let count = parts.len();
        for (nth, part) in parts.enumerate() {
            self.member.store.put(&part_key(intent, epoch, nth), part).await?;
        }
        let sha256 = Digest::compute(receipt.as_bytes()).to_string();
        Ok(ReceiptPlace::Parts { epoch, parts: count, bytes: receipt.len(), sha256 })
    }

    /// Releases a claim whose guest has not begun: any node may claim the intent again.
    pub async fn release(&self, claim: Claim) {
        if self.remove_claim(claim.intent).await.is_err() {
            self.abandoned.lock().push(claim.intent);
        }
    }

    /// Removes the claims that could not be removed before, and those that were made by failed requests.
    ///
    /// # Errors
    /// The first [`FleetError`]; the others are kept for the next call.
    pub async fn remove_abandoned(&self) -> Result<(), FleetError> {
        loop {
            let Some(intent) = self.abandoned.lock().last().copied() else { break };
            self.remove_claim(intent).await?;
            self.abandoned.lock().retain(|other| *other != intent);
        }
        let now = self.member.clock.monotonic();
        let doubtful = {
            let mut doubtful = self.doubtful.lock();
            doubtful.retain(|(_, until)| *until > now);
            doubtful.iter().map(|(intent, _)| *intent).collect::<HashSet<_>>()
        };
        for intent in doubtful {
            // A stray claim is removed, and without one the next sweep removes the mark.
            self.find_with_revision(intent).await?;
        }
        Ok(())
    }

    /// Removes an open claim of this node and its mark.
    async fn remove_claim(&self, intent: IntentId) -> Result<(), FleetError> {
        let Member { node, lease, .. } = &*self.member;
        let is_own = |claim: &ClaimRecord| {
            claim.state.is_open() && claim.node == *node && claim.epoch <= lease.epoch()
        };
        if let Some((_, revision)) = self.read_claim(intent).await?.filter(|(claim, _)| is_own(claim)) {
            self.member.store.remove(revision).await?;
        }
        // Read again: if another node has ended the claim in between, its report may still need the mark.
        let found = self.read_claim(intent).await?;
        if found.is_none_or(|(claim, _)| claim.node != self.member.node) {
            self.member.store.remove_key(&self.claim_mark(intent).key).await?;
        }
        self.active.lock().remove(&intent);
        Ok(())
    }

    /// The deeds of other nodes, or of [`crate::Takeovers::next_orphan`], with the report of an intent that this node has
    /// claimed.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn delivery(&self, intent: IntentId) -> Result<Delivery, FleetError> {
        if self.reports.is_locked(&self.claim_mark(intent).key) {
            return Ok(Delivery::Pending);
        }
        if let Some((ClaimRecord { node, state: ClaimState::Ended { by, .. }, .. }, _)) =
            self.read_claim(intent).await?
            && by != self.member.node
            && self.member.store.get(&Mark::new(&by, &node, intent).key).await?.is_some()
        {
            return Ok(Delivery::Pending);
        }
        // Read after the mark, which is removed after this key is written.
        let delivered = self.member.store.get(&delivered_key(intent)).await?;
        Ok(if delivered.is_some() { Delivery::Done } else { Delivery::Here })
    }

    /// Removes the mark of an intent whose report this node has delivered.
    ///
    /// # Errors
    /// [`FleetError`]; the call can be repeated.
    pub async fn mark_delivered(&self, intent: IntentId) -> Result<(), FleetError> {
        self.member.store.remove_key(&self.claim_mark(intent).key).await
    }

    /// The mark of a claim of this node.
    pub(crate) fn claim_mark(&self, intent: IntentId) -> Mark {
        Mark::new(&self.member.node, &self.member.node, intent)
    }
}

pub(crate) fn found_claim(intent: IntentId, record: ClaimRecord) -> FoundClaim {
    let ClaimRecord { node, content, agent, verdict, state, epoch: _ } = record;
    let state = match state {
        ClaimState::Open { .. } => FoundState::Open,
        ClaimState::Ended { receipt: place, .. } => FoundState::Ended(FoundEnd { intent, place }),
        ClaimState::Denied { denial } => FoundState::Denied(denial),
    };
    FoundClaim { node, content, agent, verdict, state }
}

impl FoundEnd {
    pub(crate) fn new(intent: IntentId, place: ReceiptPlace) -> Self {
        Self { intent, place }
    }
}

pub(crate) fn claim_key(intent: IntentId) -> String {
    format!("claim.{intent}")
}

fn part_key(intent: IntentId, epoch: u64, part: usize) -> String {
    format!("part.{intent}.{epoch}.{part}")
}
