//! The embedded governor: policy files and stated heuristics, and deliberately nothing more.
//!
//! It has no model, no people and no database. It is there so that an executor can be tried, tested
//! and run on one machine under the same protocol as with a real governor. Whoever needs more puts
//! their own governor behind the `a2g/intent` of a URL; nothing else of the executor changes.
//!
//! ```text
//! Call ─▶ PolicySet ─▶ decide ─▶ Verdict ── ESCALATE ─▶ remembered until `expires_at` or a directive
//! ```
//! What it guarantees: an agent without a policy, a tool that is not listed and a constraint that is
//! broken are denied, and a manifest never grants more than the policy's rule.
//! What it does not do: keep anything across a restart. Sessions and escalations are then gone,
//! agents register again, and an escalated intent ends with its verdict.
//!
//! A manifest has no word for "all of this tree but that file", for a disk limit or for a list of
//! domains. So a tree that may hold a path of `blocked_paths` is not granted at all, nothing is
//! written under `max_disk_mb`, and domains are checked in the URLs of the arguments.

mod decide;
mod domains;
mod policy_set;
mod risk;
#[cfg(test)]
mod tests;

pub use policy_set::{PolicyFileError, PolicySet};

use crate::call::Call;
use crate::clock::Clock;
use crate::fault::Fault;
use crate::ident::{AgentDid, IntentId};
use crate::verdict::{Decision, Directive, Policy, Verdict};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use time::OffsetDateTime;

/// The most sessions remembered. Past it the oldest is forgotten, and its agent registers again.
const MAX_SESSIONS: usize = 4096;
/// The most escalations that may wait. Past it new ones are denied, so that a flood of them cannot
/// push out one that a person is looking at.
const MAX_ESCALATIONS: usize = 1024;

/// A governor inside the executor's process, or behind `a2g-executor governor`.
pub struct LocalGovernor {
    policies: PolicySet,
    clock: Arc<dyn Clock>,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    /// Oldest first.
    sessions: VecDeque<AgentDid>,
    /// Until when each escalated intent waits.
    escalations: BTreeMap<IntentId, OffsetDateTime>,
    /// How far the journal of each agent with a session went at its latest heartbeat: how many receipts,
    /// and the hash of the last one.
    journals: BTreeMap<AgentDid, (u64, String)>,
}

/// Whether a journal is no continuation of what it was: it lost receipts, or its last one is another.
fn went_back(before: &(u64, String), now: &(u64, String)) -> bool {
    now.0 < before.0 || (now.0 == before.0 && before.0 > 0 && now.1 != before.1)
}

impl LocalGovernor {
    /// A governor with these policies and an empty memory.
    pub fn new(policies: PolicySet, clock: Arc<dyn Clock>) -> Self {
        Self { policies, clock, memory: Mutex::default() }
    }

    /// Decides about a call. It depends on the call, the policies and the clock alone, except that
    /// an escalation is denied while too many others wait.
    pub fn decide(&self, call: &Call) -> Verdict {
        let now = self.clock.now();
        let verdict = decide::decide(self.policies.entry_for(&call.agent), call, now);
        match verdict.decision {
            Decision::Escalate => self.escalated(call, verdict, now),
            Decision::Approved | Decision::Denied | Decision::Conditional => verdict,
        }
    }

    /// Opens a session, and answers with the policy to send as `g2a/policy`. It names the agent,
    /// also when it is the policy for every agent.
    ///
    /// `capabilities_requested` does not widen anything, and asking for too much is no reason to
    /// refuse: the policy that comes back says what the agent has.
    ///
    /// # Errors
    /// [`Fault::RegistrationFailed`] when no policy covers the agent.
    pub fn register(
        &self,
        agent: &AgentDid,
        capabilities_requested: &[String],
    ) -> Result<Option<Policy>, Fault> {
        let Some(entry) = self.policies.entry_for(agent) else {
            return Err(Fault::RegistrationFailed(format!(
                "no policy of this governor covers `{agent}`; add a policy file for it"
            )));
        };
        tracing::debug!(%agent, requested = capabilities_requested.len(), "agent registered");
        let mut memory = self.memory();
        memory.sessions.retain(|known| known != agent);
        if memory.sessions.len() >= MAX_SESSIONS {
            memory.sessions.pop_front();
        }
        memory.sessions.push_back(agent.clone());
        Ok(Some(Policy { agent: Some(agent.clone()), ..entry.policy.clone() }))
    }

    /// Says whether the agent's session is known here, and remembers how far its journal goes: how many
    /// receipts, and the hash of the last one. One that went back, or has another history, is logged.
    ///
    /// # Errors
    /// [`Fault::SessionExpired`] when it is not, as after a restart of the governor.
    pub fn heartbeat(&self, agent: &AgentDid, journal: Option<(u64, &str)>) -> Result<(), Fault> {
        let mut memory = self.memory();
        if memory.sessions.contains(agent) {
            let Some((count, root)) = journal else { return Ok(()) };
            let now = (count, root.to_owned());
            let before = memory.journals.insert(agent.clone(), now.clone()).unwrap_or_default();
            if went_back(&before, &now) {
                let (was, is) = (before.0, count);
                tracing::error!(%agent, was, is, "this executor's journal is not the one that it was");
            } else if before != now {
                let root = crate::ident::excerpt(root);
                tracing::info!(%agent, checkpoint = format!("{count}:{root}"), "journal");
            }
            let Memory { journals, sessions, .. } = &mut *memory;
            journals.retain(|known, _| sessions.contains(known));
            return Ok(());
        }
        Err(Fault::SessionExpired(format!("`{agent}` has no session here; send `a2g/register` again")))
    }

    /// Says whether a directive answers an escalation of this governor that has not expired. It is
    /// not used up, so that a directive whose relay failed can be sent again; that an intent runs
    /// once is the executor's promise.
    ///
    /// # Errors
    /// [`Fault::InvalidParams`] at `/intent_id` when no such escalation waits.
    pub fn resolve(&self, directive: &Directive) -> Result<(), Fault> {
        let now = self.clock.now();
        let until = self.memory().escalations.get(&directive.intent).copied();
        if until.is_some_and(|until| now < until) {
            return Ok(());
        }
        let message = format!(
            "no escalation of `{}` waits here: it was never escalated by this governor, or its verdict expired",
            directive.intent
        );
        Err(Fault::invalid("/intent_id", message))
    }

    /// The time by its clock.
    pub fn now(&self) -> OffsetDateTime {
        self.clock.now()
    }

    fn escalated(&self, call: &Call, verdict: Verdict, now: OffsetDateTime) -> Verdict {
        let mut memory = self.memory();
        memory.escalations.retain(|_, until| now < *until);
        let known = memory.escalations.contains_key(&call.intent);
        if let Some(risk) = verdict.risk.clone()
            && !known
            && memory.escalations.len() >= MAX_ESCALATIONS
        {
            let reason = format!("{MAX_ESCALATIONS} escalations already wait for a person; try again later");
            return decide::denied(call, risk, reason);
        }
        memory.escalations.insert(call.intent, verdict.expires_at.unwrap_or(now));
        verdict
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
