//! Records of waiting intents, of people's decisions on them, and of refused calls.
//!
//! A decision is recorded before its answer is sent.

use super::backend::Backend;
use super::batch::{HoldRecord, HoldResult, RECORD_BYTES, RevocationRecord, StopRecord};
use super::chain::Hash;
use super::claims::{IntentSummary, content_hash};
use super::log::RefusalRecord;
use super::record::{self, RecordKind};
use super::stops::StopLift;
use super::writer::JournalEntry;
use super::{JournalError, to_micros};
use a2g_types::call::Call;
use a2g_types::fault::BlockedBy;
use a2g_types::grant::GrantSummary;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::stop::{Stop, StopTarget};
use a2g_types::verdict::Manifest;
use parking_lot::Mutex;
use std::sync::Arc;
use strum::VariantArray;
use time::OffsetDateTime;

/// A decision on an intent that waits, or the reason why it stopped waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray)]
pub enum Resolution {
    /// A person approved the intent, which needs more approvals and continues to wait.
    PartlyApproved,
    /// A person approved the intent, and it may run.
    Approved,
    /// A person denied the intent, permanently.
    Denied,
    /// The agent or an operator cancelled the intent.
    Cancelled,
    /// The governor revoked the intent.
    Revoked,
    /// The verdict expired, or the intent can no longer run.
    Expired,
}

impl Resolution {
    pub(super) fn kind(self) -> RecordKind {
        match self {
            Self::PartlyApproved => RecordKind::PartlyApproved,
            Self::Approved => RecordKind::Approved,
            Self::Denied => RecordKind::Denied,
            Self::Cancelled => RecordKind::Cancelled,
            Self::Revoked => RecordKind::Revoked,
            Self::Expired => RecordKind::Expired,
        }
    }
}

/// A decision on an intent that waits.
#[derive(Debug, Clone)]
pub struct ResolvedIntent {
    /// The intent.
    pub intent: IntentId,
    /// The time of the decision. The refusal of a call that stops waiting has the same one, by which the call's arguments
    /// are found.
    pub at: OffsetDateTime,
    /// The [hash](super::content_hash) of the content that a person decided on: the decision applies to no other
    /// content. `None` if the wait ended without a person, whatever the content is.
    pub content: Option<Hash>,
    /// The decision.
    pub resolution: Resolution,
    /// The caller that decided, or the reason why a decision is no longer possible.
    pub by: String,
    /// The governor's risk estimate, for the answer to a repeat.
    pub risk_score: Option<f64>,
    /// The manifest that replaces the verdict's.
    pub manifest: Option<Manifest>,
    /// The reason; `None` if the person gave none.
    pub reason: Option<String>,
    /// The hash of what the person was shown, if a page showed it.
    pub basis: Option<Hash>,
    /// For an approval: the grants that its approvers were shown.
    pub grants: Vec<GrantSummary>,
    /// For the end of a wait: the [text](Decisions::arguments_text) of the call's arguments, if they are stored.
    pub arguments: Option<String>,
}

/// An intent that a person denied.
#[derive(Debug, Clone, PartialEq)]
pub struct IntentDenial {
    /// The caller that denied it; `None` if it was withdrawn or refused at a node of the fleet, for the reason.
    pub by: Option<String>,
    /// The governor's risk estimate.
    pub risk_score: Option<f64>,
    /// The reason; `None` if the person gave none.
    pub reason: Option<String>,
}

impl From<record::DecisionBody> for IntentDenial {
    fn from(decided: record::DecisionBody) -> Self {
        Self { by: Some(decided.by), risk_score: decided.risk_score, reason: decided.reason }
    }
}

/// An escalated intent of an earlier process.
#[derive(Debug, Clone)]
pub struct HeldIntent {
    /// The text that was passed to [`Decisions::hold`], verbatim.
    pub text: String,
    /// The approval, if a person has approved the intent. It has not started.
    pub approval: Option<Approval>,
}

/// The approval of an intent.
#[derive(Debug, Clone)]
pub struct Approval {
    /// The caller that approved it.
    pub by: String,
    /// The manifest that replaces the verdict's.
    pub manifest: Option<Manifest>,
    /// The basis of the last approval, if a page showed it.
    pub basis: Option<Hash>,
    /// The grants that the approvers were shown: the run gets no more than any of them. Empty for an approval without a
    /// shown grant.
    pub grants: Vec<GrantSummary>,
}

/// What waits for a decision, and what was decided: held intents, resolutions, stops, revocations and refusals.
pub struct Decisions {
    backend: Arc<Backend>,
    /// The held intents of an earlier process, until [`Decisions::take_held`] returns them.
    held: Mutex<Vec<HeldIntent>>,
    /// The stops in force at the start, until [`Decisions::take_stops`] returns them.
    stops: Mutex<Vec<Stop>>,
}

impl Decisions {
    pub(super) fn new(backend: Arc<Backend>, held: Vec<HeldIntent>, stops: Vec<Stop>) -> Self {
        Self { backend, held: Mutex::new(held), stops: Mutex::new(stops) }
    }

    /// The text of a call's arguments, as the journal stores it; `None` if it stores none.
    #[must_use]
    pub fn arguments_text(&self, call: &Call) -> Option<String> {
        self.backend.limits().arguments_text(call)
    }

    /// Checks that an agent may add more to the journal.
    ///
    /// # Errors
    /// [`JournalError::Share`].
    pub fn check_share(&self, agent: &AgentDid) -> Result<(), JournalError> {
        self.backend.limits().check_share(agent)
    }

    /// Stores an escalated intent until it starts or is resolved, also across restarts. [`Self::take_held`] returns
    /// `text` after a restart; `until` is the expiry of the verdict. Calls of `hold` and [`Self::resolve`] are written
    /// in their order, independent of when their futures are awaited.
    ///
    /// # Errors
    /// [`JournalError`]; the intent is then not stored.
    pub fn hold(
        &self,
        call: &Call,
        text: String,
        until: OffsetDateTime,
    ) -> impl Future<Output = Result<HoldResult, JournalError>> + Send + use<> {
        let hold = HoldRecord {
            summary: IntentSummary::from_call(call),
            content: content_hash(call),
            text,
            until: to_micros(until),
        };
        self.backend.limits().count_bytes(&call.agent, RECORD_BYTES + hold.text.len());
        // Sent here and not when the future is polled: the caller holds a lock that keeps the order of the changes.
        self.backend.submit(|reply| JournalEntry::Hold(Box::new(hold), reply)).wait_unless_full()
    }

    /// Records decisions on escalated intents: after the answer, a crash does not undo them. Returns the number of
    /// decisions that applied. While the disk is full, an approval fails, and any other decision is retried.
    ///
    /// # Errors
    /// [`JournalError::NoSpace`]: the decision is not on the disk; unless it is an approval, it is retried.
    /// [`JournalError::Broken`].
    pub fn resolve(
        &self,
        resolved: Vec<ResolvedIntent>,
    ) -> impl Future<Output = Result<usize, JournalError>> + Send + use<> {
        // Sent here as in `hold`.
        self.backend.submit(|reply| JournalEntry::Resolve(resolved, Some(reply))).wait_unless_full()
    }

    /// Records the caller that stopped runs or queued intents, and the method.
    ///
    /// # Errors
    /// [`JournalError::NoSpace`]: the record is not on the disk yet, and is retried; [`JournalError::Broken`].
    pub async fn record_stop(
        &self,
        intents: &[IntentId],
        by: &str,
        method: &'static str,
    ) -> Result<(), JournalError> {
        let stops = intents.iter().map(|intent| StopRecord { intent: *intent, by: by.to_owned(), method });
        let stops = stops.collect();
        self.backend.submit(|reply| JournalEntry::Stop(stops, Some(reply))).wait_unless_full().await
    }

    /// Records a stop, which replaces an earlier one of the same target. The records of `set_stop` and
    /// [`Self::lift_stop`] are written in the order of the calls, no matter when the futures are awaited.
    ///
    /// # Errors
    /// [`JournalError::NoSpace`]: the record is not on the disk yet, and is retried; [`JournalError::Broken`].
    pub fn set_stop(&self, stop: &Stop) -> impl Future<Output = Result<(), JournalError>> + Send + use<> {
        // Sent here and not when the future is polled: the caller holds a lock that keeps the order of the changes.
        let pending = self.backend.submit(|reply| JournalEntry::SetStop(Box::new(stop.clone()), Some(reply)));
        pending.wait_unless_full()
    }

    /// Records that `by` has lifted a stop. Returns `false` if the target is not stopped.
    ///
    /// # Errors
    /// [`JournalError::NoSpace`]: the stop stays in force, and the record is not retried; [`JournalError::Broken`].
    pub fn lift_stop(
        &self,
        target: &StopTarget,
        by: &str,
    ) -> impl Future<Output = Result<bool, JournalError>> + Send + use<> {
        let lift = StopLift { target: target.clone(), by: by.to_owned() };
        self.backend.submit(|reply| JournalEntry::LiftStop(Box::new(lift), reply)).wait_unless_full()
    }

    /// Takes the stops that were in force when the journal was opened: a second call returns none.
    pub fn take_stops(&self) -> Vec<Stop> {
        std::mem::take(&mut *self.stops.lock())
    }

    /// Records a revocation, with the number of runs and waiting intents that it ended.
    ///
    /// # Errors
    /// As [`Self::record_stop`].
    pub async fn record_revocation(
        &self,
        agent: Option<&AgentDid>,
        intent: Option<IntentId>,
        by: &str,
        stopped: usize,
    ) -> Result<(), JournalError> {
        let revocation = RevocationRecord { agent: agent.cloned(), intent, by: by.to_owned(), stopped };
        let pending = self.backend.submit(|reply| JournalEntry::Revoke(Box::new(revocation), Some(reply)));
        pending.wait_unless_full().await
    }

    /// Takes the escalated intents of the earlier process: a second call returns none.
    pub fn take_held(&self) -> Vec<HeldIntent> {
        std::mem::take(&mut *self.held.lock())
    }

    /// Records the refusal of a call. Only the latest refusals are stored. No caller waits for the record; it is
    /// dropped if the disk is full.
    pub fn record_refusal(
        &self,
        summary: &IntentSummary,
        blocked_by: BlockedBy,
        message: &str,
        now: OffsetDateTime,
    ) {
        let IntentSummary { intent, agent, tool } = summary;
        self.backend.send(JournalEntry::Refuse(Box::new(RefusalRecord {
            refused: to_micros(now),
            intent: *intent,
            agent: agent.clone(),
            tool: tool.clone(),
            blocked_by: blocked_by.as_str(),
            // The message may quote an argument, so it is written to this private file and not to the log.
            message: message.to_owned(),
        })));
    }
}
