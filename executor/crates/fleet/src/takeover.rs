//! The takeover of lost nodes: their open claims are ended as aborted, and their reports delivered.

use crate::FleetError;
use crate::claims::{Claims, FoundEnd, claim_key};
use crate::lease::{NodeState, node_key};
use crate::marks::{Mark, OrphanReport, OrphanReports, delivered_key, end_key};
use crate::member::Member;
use crate::record::{ClaimRecord, ClaimState, MarkRecord, NodeRecord, ReceiptPlace, encode, skip_unreadable};
use crate::store::{Store, Write};
use crate::view::{marks, nodes};
use a2g_types::ident::IntentId;
use a2g_types::node::NodeName;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// What this process knows of the report of an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalReport {
    /// The intent runs here, or its report is in this process' outbox.
    Undelivered,
    /// This node has delivered the report, or has left it to the node that ended the claim.
    Delivered,
    /// This node's journal does not have the intent.
    Unknown,
}

/// The end of a run that the earlier process of this node did not finish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedEnd {
    /// The fleet has this stored receipt for the intent. [`Claims::delivery`] says who delivers the report.
    Receipt(Box<str>),
    /// The run had not begun, and another node has claimed the intent since, or a person has denied it.
    Elsewhere,
}

/// An end of a run that this node has claimed, and that its journal lacks: the process that claimed it ended before it
/// wrote the start.
#[derive(Debug)]
pub struct UnrecordedEnd {
    /// The intent.
    pub intent: IntentId,
    /// The hash of the call's content, in hexadecimal.
    pub content: String,
    /// The governor's verdict, if the node asked the governor.
    pub verdict: Option<Box<RawValue>>,
    /// The stored receipt. [`Claims::delivery`] says who delivers the report.
    pub receipt: Box<str>,
}

/// The result of the sweep of one node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeSweep {
    /// Another node, which holds its lease or is not known to be lost.
    Live,
    /// This node, a lost one, or one whose lease another node has changed meanwhile.
    Other,
}

/// What this node takes over from lost ones, and from its own earlier process.
pub struct Takeovers<S> {
    member: Arc<Member<S>>,
    claims: Arc<Claims<S>>,
    reports: Arc<OrphanReports>,
    /// The latest revision of each lease, and when this node saw it first.
    seen: Mutex<HashMap<NodeName, (u64, Instant)>>,
}

impl<S: Store> Takeovers<S> {
    pub(crate) fn new(member: Arc<Member<S>>, claims: Arc<Claims<S>>, reports: Arc<OrphanReports>) -> Self {
        Self { member, claims, reports, seen: Mutex::default() }
    }

    /// The ends of runs of this node that its journal lacks. The caller has to write each to the journal, and to pass its
    /// intent to [`Self::forget_end`]. `local` is that of [`Self::sweep`].
    ///
    /// # Errors
    /// The first [`FleetError`]; a later call returns the same ends.
    pub async fn unrecorded_ends(
        &self,
        local: impl Fn(IntentId) -> LocalReport + Sync,
    ) -> Result<Vec<UnrecordedEnd>, FleetError> {
        let mut ends = Vec::new();
        let prefix = end_key(&self.member.node, "");
        for key in self.member.store.keys(&format!("{prefix}>")).await? {
            let Some(Ok(intent)) = key.strip_prefix(&prefix).map(IntentId::parse) else { continue };
            ends.extend(skip_unreadable(self.unrecorded_end(intent, &local).await)?.flatten());
        }
        Ok(ends)
    }

    async fn unrecorded_end(
        &self,
        intent: IntentId,
        local: &(impl Fn(IntentId) -> LocalReport + Sync),
    ) -> Result<Option<UnrecordedEnd>, FleetError> {
        let claim = self.claims.read_claim(intent).await?.map(|(claim, _)| claim);
        let Some(ClaimRecord { content, verdict, state, .. }) =
            claim.filter(|claim| claim.node == self.member.node && !claim.state.is_denied())
        else {
            // The end was not written.
            self.forget_end(intent).await?;
            return Ok(None);
        };
        let receipt = match state {
            ClaimState::Ended { receipt, .. } => receipt,
            // Its end may be on its way.
            ClaimState::Open { .. } | ClaimState::Denied { .. } => return Ok(None),
        };
        match local(intent) {
            LocalReport::Unknown => {
                let receipt = self.claims.read_receipt(&FoundEnd::new(intent, receipt)).await?;
                Ok(Some(UnrecordedEnd { intent, content, verdict, receipt }))
            }
            // It may be open here without a start.
            LocalReport::Undelivered => Ok(None),
            LocalReport::Delivered => {
                self.forget_end(intent).await?;
                Ok(None)
            }
        }
    }

    /// Forgets an end that the journal of this node has now.
    ///
    /// # Errors
    /// [`FleetError`]; the call can be repeated.
    pub async fn forget_end(&self, intent: IntentId) -> Result<(), FleetError> {
        self.member.store.remove_key(&end_key(&self.member.node, &intent.to_string())).await
    }

    /// The number of reports of lost nodes that this one delivers.
    #[must_use]
    pub fn orphan_count(&self) -> usize {
        self.reports.count()
    }

    /// Waits for a report of a lost node. The caller has to deliver it, and to pass it to
    /// [`Self::mark_orphan_delivered`].
    pub async fn next_orphan(&self) -> OrphanReport {
        self.reports.next().await
    }

    /// Records that this node has delivered a report for another one, and removes its mark.
    ///
    /// # Errors
    /// [`FleetError`]; the call can be repeated.
    pub async fn mark_orphan_delivered(&self, report: &OrphanReport) -> Result<(), FleetError> {
        self.member.store.put(&delivered_key(report.intent), self.member.node.as_str().as_bytes()).await?;
        self.member.store.remove_key(&report.mark).await?;
        self.reports.unlock(&report.mark);
        Ok(())
    }

    /// Takes over the nodes that are lost, and ends what they left open. `local` says what this process does with the
    /// report of an intent that it has claimed.
    ///
    /// # Errors
    /// The first [`FleetError`]; a later call continues.
    pub async fn sweep(&self, local: impl Fn(IntentId) -> LocalReport + Sync) -> Result<(), FleetError> {
        let mut live_others = HashSet::new();
        for node in nodes(&self.member.store).await? {
            if skip_unreadable(self.sweep_node(&node, &local).await)? == Some(NodeSweep::Live) {
                live_others.insert(node);
            }
        }
        *self.member.live_others.lock() = Some(live_others);
        Ok(())
    }

    /// Ends the claims that a lost node, or an earlier epoch of this node, left open.
    async fn sweep_node(
        &self,
        node: &NodeName,
        local: &(impl Fn(IntentId) -> LocalReport + Sync),
    ) -> Result<NodeSweep, FleetError> {
        let key = node_key(node);
        let found = self.member.store.read::<NodeRecord>(&key).await?;
        let Some((record, revision)) = found else { return Ok(NodeSweep::Other) };
        if *node == self.member.node {
            // The claims of this epoch are those of this process.
            self.end_claims(node, record.epoch.saturating_sub(1), local).await?;
            return Ok(NodeSweep::Other);
        }
        let is_stale = self.is_stale(node, revision);
        match &record.state {
            NodeState::Live | NodeState::Draining if !is_stale => return Ok(NodeSweep::Live),
            NodeState::TakenOver(by) if *by != self.member.node && !is_stale => return Ok(NodeSweep::Other),
            NodeState::Live | NodeState::Draining | NodeState::Left | NodeState::TakenOver(_) => {}
        }
        // Nothing is written about a node that has ended, and left nothing open.
        if record.state.has_ended() && marks(&self.member.store, node).await?.is_empty() {
            return Ok(NodeSweep::Other);
        }
        let epoch = record.epoch;
        if record.state != NodeState::TakenOver(self.member.node.clone()) {
            let end = if record.state == NodeState::Left { "has left" } else { "is lost" };
            let taken = NodeRecord { state: NodeState::TakenOver(self.member.node.clone()), ..record };
            if self.member.store.update(&key, &encode(&taken)?, revision).await? == Write::Conflict {
                return Ok(NodeSweep::Other);
            }
            tracing::warn!(%node, "the node {end}: this one ends its open intents and delivers its reports");
        }
        self.end_claims(node, epoch, &|_| LocalReport::Unknown).await?;
        Ok(NodeSweep::Other)
    }

    /// Returns `true` if a lease has had this revision for its whole length, by the clock of this node.
    fn is_stale(&self, node: &NodeName, revision: u64) -> bool {
        let now = self.member.clock.monotonic();
        let mut seen = self.seen.lock();
        let (latest, since) = seen.entry(node.clone()).or_insert((revision, now));
        if *latest != revision {
            (*latest, *since) = (revision, now);
        }
        now.saturating_duration_since(*since) >= self.member.lease_times().lease()
    }

    /// Ends the claims that a node made until `epoch`, and queues its reports for delivery.
    async fn end_claims(
        &self,
        node: &NodeName,
        epoch: u64,
        local: &(impl Fn(IntentId) -> LocalReport + Sync),
    ) -> Result<(), FleetError> {
        for mark in marks(&self.member.store, node).await? {
            skip_unreadable(self.end_claim(node, epoch, mark, local).await)?;
        }
        Ok(())
    }

    async fn end_claim(
        &self,
        node: &NodeName,
        epoch: u64,
        mark: Mark,
        local: &(impl Fn(IntentId) -> LocalReport + Sync),
    ) -> Result<(), FleetError> {
        let Mark { key, intent, is_takeover } = mark;
        let is_own = *node == self.member.node;
        // Without a read: most marks of this node are those of reports that the governor has not acknowledged yet.
        let is_reported_here = || is_own && !is_takeover && local(intent) == LocalReport::Undelivered;
        if self.reports.is_locked(&key) || is_reported_here() {
            return Ok(());
        }
        let found = self.member.store.read::<MarkRecord>(&key).await?;
        let Some((MarkRecord { epoch: marked }, revision)) = found else { return Ok(()) };
        if !is_own && marked > epoch {
            // The node has joined again.
            return Ok(());
        }
        let claim = self.claims.read_claim(intent).await?;
        // Checked after the reads: a claim that this process makes later writes the mark again.
        let is_active = is_own && !is_takeover && self.claims.is_active(intent);
        let local = if is_takeover { LocalReport::Unknown } else { local(intent) };
        if is_active || local == LocalReport::Undelivered {
            return Ok(());
        }
        let Some((claim, claim_revision)) = claim else {
            self.member.store.remove(revision).await?;
            return Ok(());
        };
        let is_lost = is_takeover && self.claims.is_lost(&claim).await?;
        let ClaimRecord { node: owner, epoch: claimed, state, .. } = claim;
        match state {
            // Left by a claim that failed because another node had claimed the intent.
            _ if (owner != *node) != is_takeover => self.member.store.remove(revision).await?,
            ClaimState::Open { .. } if is_lost || (!is_takeover && claimed <= epoch) => {
                self.claims.end_lost(intent, &owner, claim_revision).await?;
            }
            // A later epoch of the node has made this claim.
            ClaimState::Open { .. } => {}
            // The node that has ended it has its own mark for the report.
            ClaimState::Ended { by, .. } if by != *node => self.member.store.remove(revision).await?,
            // Left by a claim that failed because the intent was denied.
            ClaimState::Denied { .. } => self.member.store.remove(revision).await?,
            ClaimState::Ended { .. } if local == LocalReport::Delivered => {
                self.member.store.remove(revision).await?;
            }
            ClaimState::Ended { receipt, .. } => {
                let receipt = self.claims.read_receipt(&FoundEnd::new(intent, receipt)).await?;
                if let Some(lock) = self.reports.lock(&key) {
                    lock.push(OrphanReport { intent, node: owner, receipt, mark: key.clone() });
                }
            }
        }
        Ok(())
    }

    /// Ends a run that the earlier process of this node has started and not finished. Called before this process runs
    /// anything.
    ///
    /// # Errors
    /// [`FleetError`]; the call can be repeated.
    pub async fn end_interrupted(
        &self,
        intent: IntentId,
        content: &[u8; 32],
        agent: &str,
        fallback: Box<RawValue>,
    ) -> Result<RecordedEnd, FleetError> {
        let key = claim_key(intent);
        loop {
            let (record, revision) = match self.claims.read_claim(intent).await? {
                None => {
                    let epoch = self.member.lease.epoch();
                    let state = ClaimState::Open { fallback: fallback.clone() };
                    (self.claims.record(epoch, content, agent, state), 0)
                }
                Some(found) => found,
            };
            match record.state {
                ClaimState::Ended { by: _, receipt } if record.node == self.member.node => {
                    let receipt = self.claims.read_receipt(&FoundEnd::new(intent, receipt)).await?;
                    return Ok(RecordedEnd::Receipt(receipt));
                }
                ClaimState::Open { fallback } if record.node == self.member.node => {
                    let receipt = Box::from(fallback.get());
                    let mark = MarkRecord { epoch: self.member.lease.epoch() };
                    self.member.store.put(&self.claims.claim_mark(intent).key, &encode(&mark)?).await?;
                    let ended =
                        ClaimRecord { state: self.claims.ended(ReceiptPlace::Inline(fallback)), ..record };
                    let written = self.member.store.update(&key, &encode(&ended)?, revision).await?;
                    if let Write::Done(_) = written {
                        return Ok(RecordedEnd::Receipt(receipt));
                    }
                }
                ClaimState::Ended { .. } | ClaimState::Open { .. } | ClaimState::Denied { .. } => {
                    return Ok(RecordedEnd::Elsewhere);
                }
            }
        }
    }
}
