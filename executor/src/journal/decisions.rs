//! Intents that wait for a person, the decisions of people, and calls that were not run.
//!
//! A decision is a record before its answer is sent.

use super::batch::{Hold, Revocation, Stop, Waits};
use super::claims::{Asked, content};
use super::log::Refusal;
use super::record::{self, Kind};
use super::writer::Entry;
use super::{Journal, JournalError, micros};
use crate::call::Call;
use crate::fault::BlockedBy;
use crate::ident::{AgentDid, IntentId};
use crate::verdict::Manifest;
use std::sync::PoisonError;
use time::OffsetDateTime;

/// The end of an intent's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// A person let it run.
    Approved,
    /// A person did not, for good.
    Denied,
    /// Its agent, or an operator, took it back.
    Cancelled,
    /// The governor took it back.
    Revoked,
    /// Its verdict expired, or it can run no more.
    Expired,
}

impl Resolution {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Approved => Kind::Approved,
            Self::Denied => Kind::Denied,
            Self::Cancelled => Kind::Cancelled,
            Self::Revoked => Kind::Revoked,
            Self::Expired => Kind::Expired,
        }
    }
}

/// A decision about an intent that waits.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The intent.
    pub intent: IntentId,
    /// The decision.
    pub how: Resolution,
    /// The caller who decided, or why nobody can any more.
    pub by: String,
    /// The governor's estimate, for the answer to a repeat.
    pub risk_score: Option<f64>,
    /// The manifest that replaces the verdict's.
    pub manifest: Option<Manifest>,
}

/// An intent that a person denied.
#[derive(Debug, Clone, PartialEq)]
pub struct Denial {
    /// The caller who did.
    pub by: String,
    /// The governor's estimate.
    pub risk_score: Option<f64>,
}

impl From<record::Decided> for Denial {
    fn from(decided: record::Decided) -> Self {
        Self { by: decided.by, risk_score: decided.risk_score }
    }
}

/// An intent that an earlier process held.
#[derive(Debug, Clone)]
pub struct HeldIntent {
    /// The text that its holder wrote.
    pub text: String,
    /// The approval, when somebody approved it. It has not started then.
    pub approval: Option<Approval>,
}

/// The approval of an intent.
#[derive(Debug, Clone)]
pub struct Approval {
    /// The caller who did.
    pub by: String,
    /// The manifest that replaces the verdict's.
    pub manifest: Option<Manifest>,
}

impl Journal {
    /// Keeps an escalated intent until `until`, with the text that whoever holds it reads again, until it starts or is
    /// resolved, also across restarts. What is held and resolved is written in the order of these calls, however late
    /// their answers are waited for.
    ///
    /// # Errors
    /// [`JournalError`]; then it is not kept.
    pub fn hold(
        &self,
        call: &Call,
        text: String,
        until: OffsetDateTime,
    ) -> impl Future<Output = Result<Waits, JournalError>> + Send + use<> {
        let hold = Hold { asked: Asked::of(call), content: content(call), text, until: micros(until) };
        let held = self.tell(|reply| Entry::Hold(Box::new(hold), reply));
        async { held.answer().await?.map_err(|_no_room| JournalError::NoRoom) }
    }

    /// Decides about escalated intents: once it is answered, a crash does not undo it. Gives the number of those that
    /// waited. While there is no room, an approval fails for good, and any other decision is retried.
    ///
    /// # Errors
    /// [`JournalError::NoRoom`]: it is not on the disk yet, or never will be; [`JournalError::Broken`].
    pub fn resolve(
        &self,
        resolved: Vec<Resolved>,
    ) -> impl Future<Output = Result<usize, JournalError>> + Send + use<> {
        let written = self.tell(|reply| Entry::Resolve(resolved, Some(reply)));
        async { written.answer().await?.map_err(|_no_room| JournalError::NoRoom) }
    }

    /// Records who stopped runs, or what was queued, by which method.
    ///
    /// # Errors
    /// [`JournalError::NoRoom`]: it is not on the disk yet, and is retried; [`JournalError::Broken`].
    pub async fn stopped(
        &self,
        intents: &[IntentId],
        by: &str,
        method: &'static str,
    ) -> Result<(), JournalError> {
        let stops = intents.iter().map(|intent| Stop { intent: *intent, by: by.to_owned(), method });
        let stops = stops.collect();
        self.ask(|reply| Entry::Stop(stops, Some(reply))).await?.map_err(|_no_room| JournalError::NoRoom)
    }

    /// Records a revocation, and how many runs and waiting intents it ended.
    ///
    /// # Errors
    /// As [`Self::stopped`].
    pub async fn revoked(
        &self,
        agent: Option<&AgentDid>,
        intent: Option<IntentId>,
        by: &str,
        stopped: usize,
    ) -> Result<(), JournalError> {
        let revocation = Revocation { agent: agent.cloned(), intent, by: by.to_owned(), stopped };
        let written = self.ask(|reply| Entry::Revoke(Box::new(revocation), Some(reply))).await?;
        written.map_err(|_no_room| JournalError::NoRoom)
    }

    /// The escalated intents that an earlier process held. They are given once.
    pub fn held(&self) -> Vec<HeldIntent> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps, among the latest, that a call was not run. Nobody waits for it, and a full disk drops it.
    pub fn refused(&self, asked: &Asked, blocked_by: BlockedBy, message: &str, now: OffsetDateTime) {
        let Asked { intent, agent, tool } = asked;
        self.say(Entry::Refuse(Box::new(Refusal {
            refused: micros(now),
            intent: *intent,
            agent: agent.clone(),
            tool: tool.clone(),
            blocked_by: blocked_by.as_str(),
            message: message.to_owned(),
        })));
    }
}
