//! What each agent has done in the last 24 hours, as far as policies ask for it. No I/O and no clock.
//!
//! ```text
//! admit ─▶ in progress: counts as having done all that it may do ─┬─ end ────▶ counts as what was measured
//!            │ begin: from now on, only an end ends it            └─ forget ─▶ nothing has happened
//!            └─ never begun: forgotten after a day
//! ```
//! A call counts in a window from its decision on until the window has passed since its end. So nothing that a call has
//! done leaves a window too early, and the past is the same whether it was seen or is read from the receipts of a journal.
//!
//! Windows have everything of their time, and perhaps a little that is older (`series`). A look-up does not depend on the
//! number of calls: it reads at most 400 buckets for each of at most 128 keys.
//!
//! Memory is bounded: at most [`Ledger::MAX_AGENTS`] agents, and of each at most 128 tools, folders, hosts and secrets.
//! Agents without an event in 24 hours make room for others. If none does, a new agent has no place: its calls have to be
//! denied, because nothing they do could be counted ([`Ledger::has_room`]). Denied calls get only the first half of the
//! places, so that agents who may do nothing keep out nobody.
//!
//! Folders and hosts are kept as they were granted and contacted, and compared with the literals of a set of policies at
//! each look-up: another set, as after a restart, in a replay, or an observed one, reads the same past.

mod agent;
mod ended;
mod possible;
mod reach;
mod series;
#[cfg(test)]
mod tests;

pub use ended::{Done, EndedCall};
pub use possible::Possible;
pub(crate) use reach::LiteralNames;

use crate::facts::{History, Past, Subject};
use crate::set::{CedarSet, Literals};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::{DecisionAct, Receipt};
use agent::{Agent, OpenCall};
use series::Second;
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use time::OffsetDateTime;

/// The number of the latest ends that are recognized if they come again, as reports do whose answer was lost.
const MAX_KNOWN_ENDS: usize = 16 * 1024;
/// The time between two searches for agents that can be dropped, in seconds.
const SWEEP_INTERVAL: Second = 60;

/// The past of all agents.
#[derive(Debug, Default)]
pub struct Ledger {
    agents: HashMap<AgentDid, Agent>,
    /// The number of admissions so far.
    admissions: u64,
    swept_at: Second,
    known_ends: KnownEnds,
}

/// An admitted call in the ledger, by which it is found again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    agent: AgentDid,
    number: u64,
}

/// A call that was decided, with all that it may do.
#[derive(Debug, Clone)]
pub struct AdmittedCall<'a> {
    /// Its agent.
    pub agent: &'a AgentDid,
    /// Its intent.
    pub intent: IntentId,
    /// Its tool.
    pub tool: &'a ToolName,
    /// What it may do.
    pub possible: Possible,
}

impl Ledger {
    /// Maximum number of agents.
    pub const MAX_AGENTS: usize = 1 << 16;

    /// Returns `false` if what the agent does could not be counted: then none of its calls may run.
    pub fn has_room(&mut self, now: OffsetDateTime, agent: &AgentDid) -> bool {
        self.agents.contains_key(agent) || self.make_room(now.unix_timestamp(), Self::MAX_AGENTS)
    }

    /// Counts a call that may run, or that waits for a person. Ask [`Self::has_room`] before: beyond it, the call is counted
    /// all the same.
    pub fn admit(&mut self, now: OffsetDateTime, call: AdmittedCall<'_>) -> Admission {
        let AdmittedCall { agent, intent, tool, possible } = call;
        let second = now.unix_timestamp();
        self.admissions = self.admissions.wrapping_add(1);
        let number = self.admissions;
        let open = OpenCall::new(second, intent, tool.clone(), possible);
        self.agents.entry(agent.clone()).or_default().admit(second, number, open);
        self.make_room(second, usize::MAX);
        Admission { agent: agent.clone(), number }
    }

    /// Counts a denied call.
    pub fn deny(&mut self, now: OffsetDateTime, agent: &AgentDid) {
        let second = now.unix_timestamp();
        if self.agents.contains_key(agent) || self.make_room(second, Self::MAX_AGENTS / 2) {
            self.agents.entry(agent.clone()).or_default().deny(second);
        }
    }

    /// Notes that the run of an admitted call begins, or that another executor has the call: from now on it counts until
    /// its end.
    pub fn begin(&mut self, admission: &Admission) {
        if let Some(agent) = self.agents.get_mut(&admission.agent) {
            agent.begin(admission.number);
        }
    }

    /// Replaces what an admitted call may do.
    pub fn amend(&mut self, admission: &Admission, possible: Possible) {
        if let Some(agent) = self.agents.get_mut(&admission.agent) {
            agent.amend(admission.number, possible);
        }
    }

    /// Forgets an admitted call that has not begun, and never will. Without effect on one that has ended.
    pub fn forget(&mut self, admission: &Admission) {
        if let Some(agent) = self.agents.get_mut(&admission.agent) {
            agent.forget(admission.number);
        }
    }

    /// Replaces a call in progress by what it has done. A call that was not admitted here counts too, and an end that
    /// comes again does not.
    pub fn end(&mut self, now: OffsetDateTime, end: EndedCall<'_>) {
        let EndedCall { agent, intent, tool, is_success, done } = end;
        if !self.known_ends.insert(agent, intent) {
            return;
        }
        let agent = self.agents.entry(agent.clone()).or_default();
        agent.end(now.unix_timestamp(), intent, tool, is_success, done);
    }

    /// As [`Self::end`], for the receipt of a run or of a decision on file changes. The decision is no call of the agent; a
    /// commit lets the tool succeed whose changes it makes.
    pub fn end_of(&mut self, now: OffsetDateTime, receipt: &Receipt) {
        match DecisionAct::of_tool(receipt.tool.as_str()) {
            None => self.end(now, EndedCall::of_receipt(receipt)),
            Some(DecisionAct::Commit) if ended::is_success(receipt) => {
                if let Some(parent) = &receipt.parent {
                    let agent = self.agents.entry(receipt.agent.clone()).or_default();
                    agent.note_success(now.unix_timestamp(), parent.tool.clone());
                }
            }
            Some(DecisionAct::Commit | DecisionAct::Discard | DecisionAct::Undo) => {}
        }
    }

    /// The past as a set of policies reads it for an agent: by the folders and hosts that the policies for it name.
    #[must_use]
    pub fn view(&self, set: &CedarSet, agent: &AgentDid) -> LedgerView<'_> {
        self.view_by(set.literals_for(agent))
    }

    fn view_by(&self, literals: Arc<Literals>) -> LedgerView<'_> {
        LedgerView { ledger: self, literals, facts: OnceCell::new() }
    }

    /// Drops agents of which nothing has happened within a day, at intervals. Returns `true` if there are fewer than `max`.
    fn make_room(&mut self, now: Second, max: usize) -> bool {
        if now.saturating_sub(self.swept_at) >= SWEEP_INTERVAL {
            self.swept_at = now;
            self.agents.retain(|_, agent| !agent.is_over(now));
        }
        self.agents.len() < max
    }
}

/// A [`Ledger`] for one decision by a set of policies.
#[derive(Debug)]
pub struct LedgerView<'a> {
    ledger: &'a Ledger,
    literals: Arc<Literals>,
    /// The facts that are the same for every subject, once they were asked for, with their agent and time.
    facts: OnceCell<(AgentDid, OffsetDateTime, History)>,
}

impl Past for LedgerView<'_> {
    fn history(&self, agent: &AgentDid, subject: Subject<'_>, now: OffsetDateTime) -> History {
        let Some(found) = self.ledger.agents.get(agent) else { return History::default() };
        let second = now.unix_timestamp();
        let compute = || found.facts(second, &self.literals.names);
        let (of, at, first) = self.facts.get_or_init(|| (agent.clone(), now, compute()));
        let facts = if of == agent && *at == now { first.clone() } else { compute() };
        History { same: found.same(second, subject), ..facts }
    }
}

/// The latest ends.
#[derive(Debug, Default)]
struct KnownEnds {
    set: HashSet<(AgentDid, IntentId)>,
    /// Oldest first.
    order: VecDeque<(AgentDid, IntentId)>,
}

impl KnownEnds {
    /// Adds an end. Returns `false` if it is known.
    fn insert(&mut self, agent: &AgentDid, intent: IntentId) -> bool {
        let end = (agent.clone(), intent);
        if !self.set.insert(end.clone()) {
            return false;
        }
        self.order.push_back(end);
        if self.order.len() > MAX_KNOWN_ENDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
        true
    }
}
