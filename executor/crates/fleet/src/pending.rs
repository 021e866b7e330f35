//! The pending intents: those that wait for a person, and the calls of tasks that wait for a slot.
//!
//! ```text
//! `wait.INTENT`: undecided ─▶ approved ─▶ a node has claimed the intent and run it ─▶ removed
//!                  │    ▲         └─▶ its run would get more than was shown: undecided again, with another number
//!                  │    └──────────────────┘
//!                  ├─▶ denied ─▶ the denial has the claim                          ─▶ removed
//!                  └─▶ expired                                                     ─▶ removed
//! ```
//! Each change is a compare-and-set, so an intent has at most one decision, whichever nodes are asked. Every node has a copy
//! of all values and follows their changes: nothing is handed over when a node is lost.
//!
//! Only the claim lets a run begin, and only a denial or an end of a run that has the claim ends an intent for good. So a
//! value that is removed may come back, as after a server of NATS was killed: a later look finds the claim, and removes
//! it again. A node that has claimed an approved intent reads the value once more ([`PendingIntents::may_run`]): an
//! approval that was withdrawn before the claim starts no run.

use crate::FleetError;
use crate::member::Member;
use crate::record::{decode, encode};
use crate::store::{Store, StoredValue, Write};
use a2g_types::ident::IntentId;
use a2g_types::node::{CallMessage, NodeName, NodeText, PassedCall};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::sync::Arc;
use tokio::sync::Mutex;

const PREFIX: &str = "wait.";
/// The pattern of all keys.
const ALL: &str = "wait.*";
/// One of this many looks reads all values again: a stream that was restored may have lower revisions than those that
/// were read.
const LOOKS_UNTIL_ALL: u32 = 60;

/// What an intent waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// A free slot.
    Slot,
    /// A person's decision.
    Person,
}

/// The nodes that may run an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunsAt {
    /// Each one that has the tool.
    AnyNode,
    /// The one at which it arrived.
    OwnNode,
}

/// A person's decision on an intent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Decision {
    /// The intent may run.
    Approved {
        /// The node that runs it first; `None` if that node lacks the tool.
        node: Option<NodeName>,
        /// The approval, as the nodes read it.
        approval: Box<RawValue>,
    },
    /// The intent never runs. The denial has to take the claim too.
    Denied {
        /// The denial, as the nodes answer it.
        denial: Box<RawValue>,
    },
}

/// An intent that begins to wait.
#[derive(Debug, Clone)]
pub struct NewPending {
    /// Tells the wait from later ones of the same intent.
    pub number: u64,
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// The nodes that may run it.
    pub runs_at: RunsAt,
    /// The call and its verdict.
    pub call: CallMessage,
}

/// The value of a pending intent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PendingRecord {
    /// The node at which the intent arrived.
    node: NodeName,
    number: u64,
    waits_for: WaitsFor,
    runs_at: RunsAt,
    call: CallMessage,
    /// The approvals of an intent that needs more of them.
    approvals: Vec<Box<RawValue>>,
    decision: Option<Decision>,
}

/// A pending intent, as the fleet stores it.
#[derive(Debug, Clone)]
pub struct PendingIntent {
    /// The intent.
    pub intent: IntentId,
    revision: u64,
    record: PendingRecord,
}

impl PendingIntent {
    /// Grows with each change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The node at which the intent arrived.
    #[must_use]
    pub fn node(&self) -> &NodeName {
        &self.record.node
    }

    /// The number of the wait.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.record.number
    }

    /// What the intent waits for.
    #[must_use]
    pub fn waits_for(&self) -> WaitsFor {
        self.record.waits_for
    }

    /// Returns `true` if each node that has the tool may run the intent.
    #[must_use]
    pub fn may_run_anywhere(&self) -> bool {
        self.record.runs_at == RunsAt::AnyNode
    }

    /// The call and its verdict.
    #[must_use]
    pub fn call(&self) -> PassedCall {
        PassedCall::from_authenticated(self.record.call.clone())
    }

    /// The approvals so far.
    pub fn approvals(&self) -> impl Iterator<Item = NodeText> {
        let texts = self.record.approvals.iter().map(|approval| approval.get().to_owned());
        texts.map(NodeText::from_authenticated)
    }

    /// Returns `true` if somebody has approved an intent that needs more approvals.
    #[must_use]
    pub fn has_approvals(&self) -> bool {
        !self.record.approvals.is_empty()
    }

    /// The decision, if there is one.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.record.decision.as_ref()
    }

    /// Returns `true` if the intent is approved, in the wait with this number.
    #[must_use]
    pub fn is_approved(&self, number: u64) -> bool {
        match self.decision() {
            Some(Decision::Approved { .. }) => self.number() == number,
            Some(Decision::Denied { .. }) | None => false,
        }
    }
}

/// A change of a pending intent.
#[derive(Debug)]
pub enum Change {
    /// Somebody has decided.
    Decide(Decision),
    /// Somebody has approved an intent that needs more approvals.
    AddApproval(Box<RawValue>),
    /// The approvals so far no longer count.
    ForgetApprovals,
    /// The decision is withdrawn: the intent waits for a person again.
    WaitAgain {
        /// The number of the new wait.
        number: u64,
    },
}

/// The result of [`PendingIntents::add`].
#[derive(Debug)]
pub enum Added {
    /// The intent is stored.
    New(PendingIntent),
    /// The intent was stored before, possibly with other content.
    Known(PendingIntent),
}

/// The changes that this node has read.
#[derive(Debug, Default)]
struct Seen {
    /// The highest revision.
    revision: u64,
    looks: u32,
}

/// The pending intents of all nodes.
pub struct PendingIntents<S> {
    member: Arc<Member<S>>,
    seen: Mutex<Seen>,
}

impl<S: Store> PendingIntents<S> {
    pub(crate) fn new(member: Arc<Member<S>>) -> Self {
        Self { member, seen: Mutex::default() }
    }

    /// Stores an intent that begins to wait at this node.
    ///
    /// # Errors
    /// [`FleetError`]; the call can be repeated.
    pub async fn add(&self, intent: IntentId, new: NewPending) -> Result<Added, FleetError> {
        let NewPending { number, waits_for, runs_at, call } = new;
        let node = self.member.node.clone();
        let record =
            PendingRecord { node, number, waits_for, runs_at, call, approvals: Vec::new(), decision: None };
        match self.member.store.update(&key_of(intent), &encode(&record)?, 0).await? {
            Write::Done(revision) => Ok(Added::New(PendingIntent { intent, revision, record })),
            Write::Conflict => match self.read(intent).await? {
                Some(known) => Ok(Added::Known(known)),
                None => Err(FleetError::contended("store a wait", "an earlier one has just ended")),
            },
        }
    }

    /// Reads an intent; `None` if it is not pending.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn read(&self, intent: IntentId) -> Result<Option<PendingIntent>, FleetError> {
        let found = self.member.store.read::<PendingRecord>(&key_of(intent)).await?;
        Ok(found.map(|(record, revision)| PendingIntent { intent, revision, record }))
    }

    /// Changes an intent as it was read. Returns `None` if it has changed since, or if it is decided and the change is
    /// a decision or an approval.
    ///
    /// # Errors
    /// [`FleetError`]; the change may have been made.
    pub async fn change(
        &self,
        PendingIntent { intent, revision, record }: &PendingIntent,
        change: Change,
    ) -> Result<Option<PendingIntent>, FleetError> {
        let mut record = record.clone();
        match change {
            Change::Decide(_) | Change::AddApproval(_) if record.decision.is_some() => return Ok(None),
            Change::Decide(decision) => record.decision = Some(decision),
            Change::AddApproval(approval) => record.approvals.push(approval),
            Change::ForgetApprovals => record.approvals.clear(),
            Change::WaitAgain { number } => {
                record.number = number;
                record.approvals.clear();
                record.decision = None;
            }
        }
        match self.member.store.update(&key_of(*intent), &encode(&record)?, *revision).await? {
            Write::Done(revision) => Ok(Some(PendingIntent { intent: *intent, revision, record })),
            Write::Conflict => Ok(None),
        }
    }

    /// Removes an intent that waits no longer, whatever has become of it since it was read.
    ///
    /// # Errors
    /// [`FleetError`]; the call can be repeated.
    pub async fn remove(&self, intent: IntentId) -> Result<(), FleetError> {
        match self.member.store.remove_key(&key_of(intent)).await {
            // A value of a later version is removed by that version.
            Err(FleetError::Value { .. }) => Ok(()),
            result => result,
        }
    }

    /// Removes an intent if it is as it was read.
    ///
    /// # Errors
    /// [`FleetError`]; the call can be repeated.
    pub async fn remove_unchanged(&self, pending: &PendingIntent) -> Result<(), FleetError> {
        self.member.store.remove(pending.revision).await
    }

    /// The intents that have changed since the last call: the first one returns all. One that no node wrote is left out,
    /// with a warning in the log.
    ///
    /// # Errors
    /// [`FleetError`]: the next call returns these intents.
    pub async fn changed(&self) -> Result<Vec<PendingIntent>, FleetError> {
        let mut seen = self.seen.lock().await;
        let looks = (seen.looks + 1) % LOOKS_UNTIL_ALL;
        let mut latest = if looks == 0 { 0 } else { seen.revision };
        let mut changed = Vec::new();
        while let Some((key, value)) = self.member.store.store.next(ALL, latest).await? {
            latest = value.revision;
            match self.open(&key, value) {
                Ok(pending) => changed.extend(pending),
                Err(error) => tracing::warn!(%error, "a value in the fleet is ignored"),
            }
        }
        *seen = Seen { revision: latest, looks };
        Ok(changed)
    }

    /// Lets the next call of [`Self::changed`] return all intents.
    pub async fn read_all_again(&self) {
        self.seen.lock().await.revision = 0;
    }

    fn open(
        &self,
        key: &str,
        StoredValue { bytes, revision }: StoredValue,
    ) -> Result<Option<PendingIntent>, FleetError> {
        let bytes = self.member.store.seal.open(key, &bytes)?;
        let intent = key.strip_prefix(PREFIX).and_then(|intent| IntentId::parse(intent).ok());
        let record = decode(key, &bytes)?;
        Ok(intent.map(|intent| PendingIntent { intent, revision, record }))
    }

    /// Those of `intents` that are not pending.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn missing(&self, intents: Vec<IntentId>) -> Result<Vec<IntentId>, FleetError> {
        if intents.is_empty() {
            return Ok(intents);
        }
        let keys = self.member.store.keys(ALL).await?.into_iter().collect::<std::collections::HashSet<_>>();
        let mut missing = Vec::new();
        for intent in intents {
            let key = key_of(intent);
            // Read, because the intent may have been stored since the keys were listed.
            if !keys.contains(&key) && self.member.store.store.get(&key).await?.is_none() {
                missing.push(intent);
            }
        }
        Ok(missing)
    }

    /// Returns `true` if an intent that this node has claimed may run: it is still approved, in the wait with this number.
    /// One that is not pending was not stored, or is about to be removed by an earlier look: the claim alone decides.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn may_run(&self, intent: IntentId, number: u64) -> Result<bool, FleetError> {
        Ok(self.read(intent).await?.is_none_or(|pending| pending.is_approved(number)))
    }
}

fn key_of(intent: IntentId) -> String {
    format!("{PREFIX}{intent}")
}

#[cfg(test)]
mod tests;
