//! The sources of authority: the governor, the keys of proofs, the callers, and the standing policies of agents.

use super::approval_rules::PartialApproval;
use a2g_govern::{
    Callers, CurrentCallers, DENIED_BY_GOVERNOR, DecisionAuthor, Governor, ListedPolicy, PolicyOrigin,
    StandingPolicies, Trust,
};
use a2g_journal::{JournalError, PastEvent, Records};
use a2g_types::clock::Clock;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::verdict::Policy;
use arc_swap::ArcSwap;
use std::sync::Arc;
use time::Duration;

/// The time that policies may ask for, before now.
const HISTORY: Duration = Duration::DAY;

/// The governor, the accepted keys, the callers and the standing policies.
pub struct Policies {
    governor: Governor,
    /// The keys whose proofs are accepted. Replaced as a whole.
    trust: ArcSwap<Trust>,
    /// The callers of all doors. The author of a decision has to be in the list when the decision is recorded.
    callers: CurrentCallers,
    standing: StandingPolicies,
    clock: Arc<dyn Clock>,
}

impl Policies {
    pub(super) fn new(governor: Governor, trust: Trust, clock: Arc<dyn Clock>) -> Self {
        Self {
            governor,
            trust: ArcSwap::from_pointee(trust),
            callers: CurrentCallers::new(Callers::empty()),
            standing: StandingPolicies::default(),
            clock,
        }
    }

    /// The standing policies, for a grant.
    pub(super) fn standing(&self) -> &StandingPolicies {
        &self.standing
    }

    /// Revokes the standing policies of an agent, or of all, on behalf of `by`.
    pub(super) fn revoke(&self, agent: Option<&AgentDid>, by: &str) {
        self.standing.revoke(agent, self.origin(by));
    }

    /// The governor that decides on calls.
    #[must_use]
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// Tells the built-in governor what the agents have done within a day, if its policies read it.
    pub(super) async fn read_history(&self, records: &Records) -> Result<(), JournalError> {
        if !self.governor.reads_history() {
            return Ok(());
        }
        let governor = self.governor.clone();
        let begun = self.clock.monotonic();
        let each = move |event: PastEvent| match event {
            PastEvent::Ended { ended, receipt } => governor.observe_end_at(ended, &receipt),
            PastEvent::Refused(refusal) => {
                if refusal.message.starts_with(DENIED_BY_GOVERNOR)
                    && let Ok(agent) = AgentDid::parse(&refusal.agent)
                {
                    governor.observe_denial_at(refusal.at, &agent);
                }
            }
        };
        let events = records.pass_since(self.clock.now() - HISTORY, each).await?;
        let ms = self.clock.monotonic().saturating_duration_since(begun).as_millis();
        tracing::info!(events, ms, "the policies know the calls of the last 24 hours");
        Ok(())
    }

    pub(super) fn trust(&self) -> Arc<Trust> {
        self.trust.load_full()
    }

    /// Replaces the keys whose proofs are accepted.
    pub fn replace_trust(&self, trust: Trust) {
        self.trust.store(Arc::new(trust));
    }

    /// The current list of callers, which the doors of this executor share. It is empty until it is replaced: until
    /// then no listed caller can decide.
    #[must_use]
    pub fn callers(&self) -> &CurrentCallers {
        &self.callers
    }

    /// Returns `false` if the policies refuse every call of an agent with a tool.
    #[must_use]
    pub fn may_reach(&self, agent: &AgentDid, tool: &ToolName) -> bool {
        self.governor.may_reach(agent, tool) && self.standing.may_reach(agent, tool)
    }

    /// The standing policies and revocations that `filter` selects, at most `max`, the one for every agent first.
    #[must_use]
    pub fn list(&self, filter: impl Fn(Option<&AgentDid>) -> bool, max: usize) -> Vec<ListedPolicy> {
        self.standing.list(filter, max)
    }

    /// The standing policy that applies to an agent.
    #[must_use]
    pub fn policy_of(&self, agent: &AgentDid) -> Option<Policy> {
        self.standing.policy_of(agent)
    }

    /// The origin of a policy change by `by`, at the current time.
    pub(super) fn origin(&self, by: &str) -> PolicyOrigin {
        PolicyOrigin { by: by.to_owned(), since: self.clock.now() }
    }

    /// Sets a standing policy at this executor.
    pub(super) fn set(&self, policy: Policy, origin: PolicyOrigin) {
        tracing::info!(
            agent = policy.agent.as_ref().map(AgentDid::as_str),
            version = policy.version,
            by = origin.by,
            "standing policy"
        );
        self.standing.set(policy, origin);
    }

    /// Checks in the current list of callers that all authors may still decide: since they were authenticated, the list
    /// may have been replaced, or an entry may have expired. If `must_not_act_for` is set, no author may act for that agent.
    pub(super) fn check_authors(
        &self,
        intent: IntentId,
        authors: &[DecisionAuthor],
        must_not_act_for: Option<&AgentDid>,
    ) -> Result<(), Fault> {
        let callers = self.callers.load();
        let now = self.clock.now();
        let may_decide = |author: &DecisionAuthor| match must_not_act_for {
            Some(agent) => callers.may_decide_for_others(author, agent, now),
            None => callers.may_decide(author, now),
        };
        let Some(author) = authors.iter().find(|author| !may_decide(author)) else { return Ok(()) };
        Err(Fault::Refused {
            intent: Some(intent),
            risk_score: None,
            blocked_by: BlockedBy::CallerUnauthorized,
            message: format!(
                "`{}` may no longer decide on this intent: the entry in `server.callers` was removed or changed, or has expired",
                author.name()
            ),
        })
    }

    /// `true` if the author of an earlier approval is still listed, may still decide, and does not act for `agent`.
    pub(super) fn counts(&self, earlier: &PartialApproval, agent: &AgentDid) -> bool {
        self.callers.load().may_decide_for_others(&earlier.author, agent, self.clock.now())
    }
}
