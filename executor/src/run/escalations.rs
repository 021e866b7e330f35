//! Intents that wait for a person, which the journal keeps as well.

use super::Whose;
use crate::call::Call;
use crate::fault::Fault;
use crate::govern::Escalated;
use crate::ident::{AgentDid, IntentId};
use crate::verdict::Verdict;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use time::OffsetDateTime;

/// How many intents may wait at once.
const MOST_WAITING: usize = 1000;

/// All escalated intents whose verdicts have not expired.
#[derive(Debug)]
pub(super) struct Escalations(Mutex<HashMap<IntentId, Escalated>>);

fn expired(escalated: &Escalated, now: OffsetDateTime) -> bool {
    escalated.verdict().expires_at.is_none_or(|at| at <= now)
}

impl Escalations {
    fn lock(&self) -> MutexGuard<'_, HashMap<IntentId, Escalated>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With those that an earlier process held.
    pub(super) fn new(held: &[String], now: OffsetDateTime) -> Self {
        let held = held.iter().filter_map(|text| {
            let read = Escalated::from_journal(text);
            read.inspect_err(|error| tracing::error!(%error, "an escalated intent of the journal is lost"))
                .ok()
        });
        let held = held.filter(|escalated| !expired(escalated, now));
        Self(Mutex::new(held.map(|escalated| (escalated.call().intent, escalated)).collect()))
    }

    /// Holds an intent, and says whether it is new. The first verdict for it stays.
    pub(super) fn hold(&self, escalated: Escalated, now: OffsetDateTime) -> Result<bool, Fault> {
        let mut waiting = self.lock();
        waiting.retain(|_, held| !expired(held, now));
        if waiting.len() >= MOST_WAITING && !waiting.contains_key(&escalated.call().intent) {
            return Err(Fault::Busy {
                message: "too many intents wait for a person".to_owned(),
                retry_after_ms: 60_000,
            });
        }
        let new = !waiting.contains_key(&escalated.call().intent);
        waiting.entry(escalated.call().intent).or_insert(escalated);
        Ok(new)
    }

    /// The verdict of a call that waits already.
    pub(super) fn waiting(&self, call: &Call, now: OffsetDateTime) -> Result<Option<Verdict>, Fault> {
        match self.lock().get(&call.intent).filter(|held| !expired(held, now)) {
            None => Ok(None),
            Some(held) if same(held.call(), call) => Ok(Some(held.verdict().clone())),
            Some(_) => Err(Fault::InvalidRequest(format!(
                "the intent `{}` waits for a directive with other content: every intent needs an id of its own",
                call.intent
            ))),
        }
    }

    /// Whose intent it is, when it waits.
    pub(super) fn whose(&self, intent: IntentId, now: OffsetDateTime) -> Option<AgentDid> {
        self.lock().get(&intent).filter(|held| !expired(held, now)).map(|held| held.call().agent.clone())
    }

    pub(super) fn get(&self, intent: IntentId) -> Option<Escalated> {
        self.lock().get(&intent).cloned()
    }

    /// Drops one, if it is one of these agents'.
    pub(super) fn drop_one(&self, intent: IntentId, of: Whose<'_>) -> Option<IntentId> {
        let mut waiting = self.lock();
        let theirs = waiting.get(&intent).is_some_and(|held| of(&held.call().agent));
        theirs.then(|| waiting.remove(&intent)).map(|_held| intent)
    }

    /// Drops all of these agents.
    pub(super) fn drop_all(&self, of: Whose<'_>) -> Vec<IntentId> {
        self.lock().extract_if(|_, held| of(&held.call().agent)).map(|(intent, _)| intent).collect()
    }
}

fn same(a: &Call, b: &Call) -> bool {
    a.agent == b.agent && a.tool == b.tool && a.arguments == b.arguments
}
