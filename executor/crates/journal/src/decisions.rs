//! Intents that wait for a person, the decisions of people, and calls that were not run.
//!
//! A decision is recorded before its answer is sent.

use super::batch::{HoldRecord, HoldResult, RevocationRecord, StopRecord};
use super::claims::{IntentSummary, content_hash};
use super::log::RefusalRecord;
use super::record::{self, RecordKind};
use super::writer::JournalEntry;
use super::{Journal, JournalError, to_micros};
use a2g_types::call::Call;
use a2g_types::fault::BlockedBy;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::verdict::Manifest;
use time::OffsetDateTime;

/// The end of an intent's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// A person permitted the run.
    Approved,
    /// A person refused the run, for good.
    Denied,
    /// Its agent, or an operator, cancelled it.
    Cancelled,
    /// The governor revoked it.
    Revoked,
    /// Its verdict expired, or it can no longer run.
    Expired,
}

impl Resolution {
    pub(super) fn kind(self) -> RecordKind {
        match self {
            Self::Approved => RecordKind::Approved,
            Self::Denied => RecordKind::Denied,
            Self::Cancelled => RecordKind::Cancelled,
            Self::Revoked => RecordKind::Revoked,
            Self::Expired => RecordKind::Expired,
        }
    }
}

/// A decision about an intent that waits.
#[derive(Debug, Clone)]
pub struct ResolvedIntent {
    /// The intent.
    pub intent: IntentId,
    /// The decision.
    pub resolution: Resolution,
    /// The caller that decided, or the reason for which a decision is no longer possible.
    pub by: String,
    /// The governor's risk estimate, for the answer to a repeat.
    pub risk_score: Option<f64>,
    /// The manifest that replaces the verdict's.
    pub manifest: Option<Manifest>,
}

/// An intent that a person denied.
#[derive(Debug, Clone, PartialEq)]
pub struct IntentDenial {
    /// The caller that denied it.
    pub by: String,
    /// The governor's risk estimate.
    pub risk_score: Option<f64>,
}

impl From<record::DecisionBody> for IntentDenial {
    fn from(decided: record::DecisionBody) -> Self {
        Self { by: decided.by, risk_score: decided.risk_score }
    }
}

/// An intent that an earlier process held.
#[derive(Debug, Clone)]
pub struct HeldIntent {
    /// The text of its holder, verbatim.
    pub text: String,
    /// The approval, if there is one; the intent has not started then.
    pub approval: Option<Approval>,
}

/// The approval of an intent.
#[derive(Debug, Clone)]
pub struct Approval {
    /// The caller that approved it.
    pub by: String,
    /// The manifest that replaces the verdict's.
    pub manifest: Option<Manifest>,
}

impl Journal {
    /// Stores an escalated intent until it starts or is resolved, also across restarts. `text` is returned to its
    /// holder verbatim after a restart; `until` is the expiry of its verdict. Held and resolved intents are written in
    /// the order of the calls, however late their answers are awaited.
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
        // The entry is sent before the future is polled, under the caller's lock: the file hears of changes in their
        // order.
        let held = self.submit(|reply| JournalEntry::Hold(Box::new(hold), reply));
        async { held.wait().await?.map_err(|_no_room| JournalError::NoRoom) }
    }

    /// Records decisions about escalated intents: after the answer, a crash does not undo them. Returns the number of
    /// intents that waited. While there is no room, an approval fails for good, and any other decision is retried.
    ///
    /// # Errors
    /// [`JournalError::NoRoom`]: the decision is not on the disk yet, or never will be; [`JournalError::Broken`].
    pub fn resolve(
        &self,
        resolved: Vec<ResolvedIntent>,
    ) -> impl Future<Output = Result<usize, JournalError>> + Send + use<> {
        // As in `hold`. The answer is awaited, because a denial that a crash forgets could be followed by an approval.
        let written = self.submit(|reply| JournalEntry::Resolve(resolved, Some(reply)));
        async { written.wait().await?.map_err(|_no_room| JournalError::NoRoom) }
    }

    /// Records the caller that stopped runs or queued intents, and the method.
    ///
    /// # Errors
    /// [`JournalError::NoRoom`]: the record is not on the disk yet, and is retried; [`JournalError::Broken`].
    pub async fn record_stop(
        &self,
        intents: &[IntentId],
        by: &str,
        method: &'static str,
    ) -> Result<(), JournalError> {
        let stops = intents.iter().map(|intent| StopRecord { intent: *intent, by: by.to_owned(), method });
        let stops = stops.collect();
        self.request(|reply| JournalEntry::Stop(stops, Some(reply)))
            .await?
            .map_err(|_no_room| JournalError::NoRoom)
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
        let written = self.request(|reply| JournalEntry::Revoke(Box::new(revocation), Some(reply))).await?;
        written.map_err(|_no_room| JournalError::NoRoom)
    }

    /// The escalated intents that an earlier process held. They are returned once.
    pub fn take_held(&self) -> Vec<HeldIntent> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// Records that a call was not run, among the latest refusals. No caller waits for the record, and a full disk
    /// drops it.
    pub fn record_refusal(
        &self,
        summary: &IntentSummary,
        blocked_by: BlockedBy,
        message: &str,
        now: OffsetDateTime,
    ) {
        let IntentSummary { intent, agent, tool } = summary;
        self.send(JournalEntry::Refuse(Box::new(RefusalRecord {
            refused: to_micros(now),
            intent: *intent,
            agent: agent.clone(),
            tool: tool.clone(),
            blocked_by: blocked_by.as_str(),
            // The sentence may quote an argument: it is for this file of mode 0600 and not for the log, which travels
            // further.
            message: message.to_owned(),
        })));
    }
}
