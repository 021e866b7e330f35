//! The embedded governor: policy files, in JSON or in Cedar, and documented heuristics, and intentionally nothing more.
//!
//! This governor has no model and no database. With it an executor can be tried, tested and run on one machine, with
//! the same protocol as a real governor's. To replace it, put another governor behind a URL with `a2g/intent`;
//! the executor stays the same.
//!
//! ```text
//! Call ─▶ PolicySet ─▶ decide ─▶ Verdict ── ESCALATE ─▶ stored until `expires_at` or a directive
//! ```
//! Guarantees: a call is denied if its agent has no policy, its tool is not listed, or it violates a constraint; a
//! manifest never grants more than the policy's rule. Nothing survives a restart: sessions and escalations are lost,
//! agents register again, and an escalated intent ends with its verdict. The past of the agents, which policies in Cedar
//! read, is read again from the journal of the executor; a governor of its own (`a2g-executor governor`) has no journal,
//! and begins without one.
//!
//! A manifest cannot express "all of this tree but that file", a disk limit, or a list of domains. So the paths of
//! `blocked_paths` in a granted tree are conditions of the verdict, nothing may be written under `max_disk_mb`, and
//! domains are checked in the URLs of the arguments. Policies in Cedar set no standing policy: the hosts that they allow
//! are conditions of the verdict.

mod cedar;
mod decide;
mod domains;
mod history;
mod policy_set;
mod risk;
#[cfg(test)]
mod tests;

pub use cedar::{CedarPolicies, ListedRule, ObservedCounts, PolicyOverview, Trial, TrialOutcome, risk_of};
pub use decide::RiskThresholds;
pub use history::LedgerEntry;
pub use policy_set::{PolicyFileError, PolicySet};
pub use risk::only_reads;

use a2g_capability::Area;
use a2g_policy::{Done, EndedCall, Ledger};
use a2g_types::call::Call;
use a2g_types::clock::Clock;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::{Receipt, Status};
use a2g_types::tool::Descriptor;
use a2g_types::verdict::{Decision, Directive, Policy, Verdict};
use a2g_wire::a2g::decode::{ReportHead, ReportUsage, report_usage};
use history::CallHistory;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use time::OffsetDateTime;

/// Maximum number of sessions. Beyond it the oldest session is dropped, and its agent registers again.
const MAX_SESSIONS: usize = 4096;
/// Maximum number of waiting escalations. Beyond it new escalations are denied, so that a flood cannot
/// displace an escalation that a person is deciding.
const MAX_ESCALATIONS: usize = 1024;
/// Number of escalations, with decided ones, at which the decided ones are forgotten.
const MAX_KNOWN_ESCALATIONS: usize = 4 * MAX_ESCALATIONS;
/// Maximum number of waiting escalations of one agent, so that no agent keeps the others from escalating.
const MAX_ESCALATIONS_PER_AGENT: usize = MAX_ESCALATIONS / 4;

/// Says of a tool and a risk score if several people have to approve.
type NeedsSeveral = dyn Fn(&ToolName, f64) -> bool + Send + Sync;

/// A governor inside the executor's process, or behind `a2g-executor governor`.
pub struct LocalGovernor {
    policies: PolicySet,
    /// The areas that the executor opens; `None` if this governor does not know its executors.
    open: Option<Vec<Area>>,
    thresholds: RiskThresholds,
    /// Says of a tool and a risk score if the executor wants the approval of several people.
    needs_several: Box<NeedsSeveral>,
    /// The number of requests that a run may send, which counts while it runs.
    max_requests: u64,
    clock: Arc<dyn Clock>,
    state: Mutex<GovernorState>,
    /// Used only by policies in Cedar: no other reads the past.
    history: CallHistory,
}

#[derive(Debug, Default)]
struct GovernorState {
    /// Oldest first.
    sessions: VecDeque<AgentDid>,
    escalations: BTreeMap<IntentId, Escalation>,
    /// The end of each agent's journal at its latest heartbeat: the number of receipts, and the hash of the
    /// last one.
    journals: BTreeMap<AgentDid, (u64, String)>,
}

/// An escalated intent whose verdict has not expired.
#[derive(Debug)]
struct Escalation {
    expires_at: OffsetDateTime,
    agent: AgentDid,
    /// `true` once a directive came. It may come again, if it did not reach the executor.
    is_decided: bool,
}

/// `true` if another escalation of an agent would be one too many among those that wait.
fn is_full(escalations: &BTreeMap<IntentId, Escalation>, agent: &AgentDid) -> bool {
    let waiting = || escalations.values().filter(|escalation| !escalation.is_decided);
    let of_agent = waiting().filter(|escalation| escalation.agent == *agent).count();
    waiting().count() >= MAX_ESCALATIONS || of_agent >= MAX_ESCALATIONS_PER_AGENT
}

/// `true` when a journal lost receipts, or its last receipt was replaced.
fn is_rollback(before: &(u64, String), now: &(u64, String)) -> bool {
    now.0 < before.0 || (now.0 == before.0 && before.0 > 0 && now.1 != before.1)
}

impl LocalGovernor {
    /// Makes a governor with these policies and no sessions.
    pub fn new(policies: PolicySet, clock: Arc<dyn Clock>) -> Self {
        Self {
            policies,
            open: None,
            thresholds: RiskThresholds::default(),
            needs_several: Box::new(|_, _| false),
            max_requests: 1,
            clock,
            state: Mutex::default(),
            history: CallHistory::default(),
        }
    }

    /// Names no other paths than these in the reasons of its denials: those that the only executor of this governor
    /// opens. They change no verdict.
    #[must_use]
    pub fn with_open_areas(self, open: Vec<Area>) -> Self {
        Self { open: Some(open), ..self }
    }

    /// Decides by these risk scores instead of the default ones.
    #[must_use]
    pub fn with_thresholds(self, thresholds: RiskThresholds) -> Self {
        Self { thresholds, ..self }
    }

    /// Escalates calls of those tools and risk scores for which the only executor of this governor wants the approval of
    /// several people, instead of a preview: it lets nobody alone commit their file changes.
    #[must_use]
    pub fn with_joint_approvals(
        self,
        needs_several: impl Fn(&ToolName, f64) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { needs_several: Box::new(needs_several), ..self }
    }

    /// Counts a call in progress as having sent this number of requests: as many as a run of the only executor of this
    /// governor may send. Otherwise it counts as one.
    #[must_use]
    pub fn with_max_requests(self, max_requests: u64) -> Self {
        Self { max_requests, ..self }
    }

    /// The policies by which this governor decides.
    #[must_use]
    pub fn policies(&self) -> &PolicySet {
        &self.policies
    }

    /// Compiles policies in Cedar for these tools, unless they are the same as before. If the policies do not fit them,
    /// those in force stay in force, and the error is logged and shown.
    pub fn use_tools<'a>(&self, tools: impl IntoIterator<Item = &'a Descriptor>) {
        if let Some(cedar) = self.policies.cedar() {
            cedar.use_tools(tools, self.clock.now());
        }
    }

    /// Decides on a call of an executor elsewhere. The verdict depends only on the call, the policies, the clock and, with
    /// policies in Cedar, the past of the agent, except that an escalation is denied while too many others wait.
    ///
    /// The call counts for the agent's later ones until its end is observed, or for a day: nobody says that it does not
    /// run.
    pub fn decide(&self, call: &Call) -> Verdict {
        let (verdict, entry) = self.decide_counted(call, |_| true);
        entry.iter().for_each(LedgerEntry::keep);
        verdict
    }

    /// As [`Self::decide`], for an executor that knows which escalations still wait for a person, and that keeps the entry
    /// of the call for as long as it may run. There is none for a denied call, and none if no policy reads the past.
    pub fn decide_counted(
        &self,
        call: &Call,
        still_waits: impl Fn(IntentId) -> bool,
    ) -> (Verdict, Option<LedgerEntry>) {
        let now = self.clock.now();
        let Some(cedar) = self.policies.cedar() else {
            let entry = self.policies.entry_for(&call.agent);
            let verdict = decide::decide(entry, call, &self.setting(now, &Ledger::default()));
            return (self.hold(call, verdict, now, still_waits), None);
        };
        let decide = |ledger: &Ledger| cedar.decide(call, &self.setting(now, ledger));
        let (verdict, entry) = self.history.decide(call, now, self.max_requests, decide);
        let was_denied = verdict.decision == Decision::Denied;
        let verdict = self.hold(call, verdict, now, still_waits);
        if verdict.decision == Decision::Denied && !was_denied {
            self.history.deny(now, &call.agent);
            return (verdict, None);
        }
        (verdict, entry)
    }

    fn setting<'a>(&'a self, now: OffsetDateTime, ledger: &'a Ledger) -> decide::Setting<'a> {
        decide::Setting {
            open: self.open.as_deref(),
            thresholds: self.thresholds,
            needs_several: &*self.needs_several,
            now,
            ledger,
        }
    }

    /// Lets an escalated call wait, or denies it while too many others do.
    fn hold(
        &self,
        call: &Call,
        verdict: Verdict,
        now: OffsetDateTime,
        still_waits: impl Fn(IntentId) -> bool,
    ) -> Verdict {
        match verdict.decision {
            Decision::Escalate => self.record_escalation(call, verdict, now, still_waits),
            Decision::Approved | Decision::Denied | Decision::Conditional => verdict,
        }
    }

    /// Returns `true` if the policies read the past of agents.
    #[must_use]
    pub fn reads_history(&self) -> bool {
        self.policies.cedar().is_some()
    }

    /// Counts the end of a run, or of a decision on its file changes, for the next decision. Call this before anybody is
    /// told of the end.
    pub fn observe_end(&self, receipt: &Receipt) {
        self.observe_end_at(self.clock.now(), receipt);
    }

    /// As [`Self::observe_end`], for a run that has ended at that time: in the order of the ends, before the first decision.
    pub fn observe_end_at(&self, ended: OffsetDateTime, receipt: &Receipt) {
        if self.reads_history() {
            self.history.end_of(ended, receipt);
        }
    }

    /// As [`Self::observe_end`], for the report of an executor elsewhere; `params` are those of `a2g/report`. A report that
    /// comes again counts once. What it does not name counts as the verdict allowed it.
    pub fn observe_report(&self, head: &ReportHead, params: &str) {
        if !self.reads_history() {
            return;
        }
        let done = report_usage(params).map(|usage| {
            let ReportUsage { granted, blocked, contacted, secrets, written_bytes } = &usage;
            let contacted = contacted.iter().map(|(authority, requests)| (authority.as_str(), *requests));
            Done::new(granted, blocked, contacted, secrets.iter().cloned(), *written_bytes)
        });
        let ReportHead { agent, intent, status } = head;
        let end =
            EndedCall { agent, intent: *intent, tool: None, is_success: *status == Status::Success, done };
        self.history.end(self.clock.now(), end);
    }

    /// Counts a call that was denied at that time, before the first decision.
    pub fn observe_denial_at(&self, denied: OffsetDateTime, agent: &AgentDid) {
        if self.reads_history() {
            self.history.deny(denied, agent);
        }
    }

    /// Counts a call again that waits since an earlier process; `None` if no policy reads the past.
    pub(crate) fn recount(&self, call: &Call, verdict: &Verdict) -> Option<LedgerEntry> {
        let recount = || self.history.recount(call, verdict, self.clock.now(), self.max_requests);
        self.reads_history().then(recount)
    }

    /// Returns `true` if the policy of an agent allows a tool at all. A call may still be denied for its arguments.
    #[must_use]
    pub fn may_reach(&self, agent: &AgentDid, tool: &ToolName) -> bool {
        if let Some(cedar) = self.policies.cedar() {
            return cedar.may_reach(agent, tool);
        }
        let entry = self.policies.entry_for(agent);
        entry.and_then(|entry| entry.policy.tools.get(tool)).is_some_and(|rule| rule.allowed)
    }

    /// Opens a session and returns the policy to send as `g2a/policy`, with the agent's DID even if the
    /// governor has only the policy for every agent. Policies in Cedar send none: all that they grant is in the verdicts.
    ///
    /// `capabilities_requested` widens nothing, and excessive requests are not rejected: the returned policy lists
    /// the agent's capabilities.
    ///
    /// # Errors
    /// [`Fault::RegistrationFailed`] when no policy covers the agent.
    pub fn register(
        &self,
        agent: &AgentDid,
        capabilities_requested: &[String],
    ) -> Result<Option<Policy>, Fault> {
        let entry = self.policies.entry_for(agent);
        if entry.is_none() && self.policies.cedar().is_none() {
            return Err(Fault::RegistrationFailed(format!(
                "no policy of this governor covers `{agent}`; add a policy file for it"
            )));
        }
        tracing::debug!(%agent, requested = capabilities_requested.len(), "agent registered");
        let mut state = self.lock_state();
        state.sessions.retain(|known| known != agent);
        if state.sessions.len() >= MAX_SESSIONS {
            state.sessions.pop_front();
        }
        state.sessions.push_back(agent.clone());
        Ok(entry.map(|entry| Policy { agent: Some(agent.clone()), ..entry.policy.clone() }))
    }

    /// Checks that the agent has a session, and stores the end of its journal: the number of receipts, and the
    /// hash of the last one. A journal that lost receipts or changed its history is logged.
    ///
    /// # Errors
    /// [`Fault::SessionExpired`] if the agent has no session, as after a restart of the governor.
    pub fn heartbeat(&self, agent: &AgentDid, journal: Option<(u64, &str)>) -> Result<(), Fault> {
        let mut state = self.lock_state();
        if state.sessions.contains(agent) {
            let Some((count, root)) = journal else { return Ok(()) };
            let now = (count, root.to_owned());
            let before = state.journals.insert(agent.clone(), now.clone()).unwrap_or_default();
            if is_rollback(&before, &now) {
                let was = before.0;
                let is = count;
                tracing::error!(%agent, was, is, "the journal of this executor was truncated or replaced");
            } else if before != now {
                let root = a2g_types::ident::excerpt(root);
                tracing::info!(%agent, checkpoint = format!("{count}:{root}"), "journal");
            }
            let GovernorState { journals, sessions, .. } = &mut *state;
            journals.retain(|known, _| sessions.contains(known));
            return Ok(());
        }
        Err(Fault::SessionExpired(format!("`{agent}` has no session here; send `a2g/register` again")))
    }

    /// Checks that a directive answers an unexpired escalation of this governor. The escalation is retained, so
    /// that a directive can be sent again if it did not reach the executor; the executor guarantees that an intent runs
    /// once.
    ///
    /// # Errors
    /// [`Fault::InvalidParams`] at `/intent_id` when no such escalation waits.
    pub fn resolve(&self, directive: &Directive) -> Result<(), Fault> {
        let now = self.clock.now();
        let mut state = self.lock_state();
        let escalation = state.escalations.get_mut(&directive.intent);
        if let Some(escalation) = escalation.filter(|escalation| now < escalation.expires_at) {
            escalation.is_decided = true;
            return Ok(());
        }
        let message = format!(
            "no escalation of `{}` is waiting: this governor never escalated it, or its verdict expired",
            directive.intent
        );
        Err(Fault::invalid("/intent_id", message))
    }

    /// The current time of the governor's clock.
    pub fn now(&self) -> OffsetDateTime {
        self.clock.now()
    }

    fn record_escalation(
        &self,
        call: &Call,
        verdict: Verdict,
        now: OffsetDateTime,
        still_waits: impl Fn(IntentId) -> bool,
    ) -> Verdict {
        let mut state = self.lock_state();
        let escalations = &mut state.escalations;
        escalations.retain(|_, escalation| now < escalation.expires_at);
        if escalations.len() >= MAX_KNOWN_ESCALATIONS {
            escalations.retain(|_, escalation| !escalation.is_decided);
        }
        let is_known = escalations.contains_key(&call.intent);
        if !is_known && is_full(escalations, &call.agent) {
            // The executor tells nobody when a call was withdrawn, so it is asked.
            escalations.retain(|intent, _| still_waits(*intent));
        }
        if let Some(risk) = verdict.risk.clone()
            && !is_known
            && is_full(escalations, &call.agent)
        {
            let reason = format!(
                "too many escalations wait for a person: at most {MAX_ESCALATIONS} may, and \
                 {MAX_ESCALATIONS_PER_AGENT} of one agent; try again later"
            );
            return decide::denial(call, risk, reason);
        }
        let expires_at = verdict.expires_at.unwrap_or(now);
        let agent = call.agent.clone();
        let new = Escalation { expires_at, agent, is_decided: false };
        escalations.entry(call.intent).or_insert(new).expires_at = expires_at;
        verdict
    }

    fn lock_state(&self) -> MutexGuard<'_, GovernorState> {
        self.state.lock()
    }
}
