//! The standing policies of this executor's agents, and the limits that they set for one call.
//!
//! ```text
//! (none) ── g2a/policy ─▶ active ── g2a/revoke ─▶ revoked ── g2a/policy ─▶ active
//! ```
//! An agent without a standing policy is bound only by the other layers. A revoked agent is rejected until a new policy
//! arrives. A tool whose rule cannot be enforced exactly is refused.
//!
//! This module grants nothing: its result is the limits of one layer, which `a2g_capability::Grant` intersects with
//! those of the other layers.

use super::arguments::Arguments;
use super::rule::{Breach, Rule, RuleError, host_claims};
use a2g_capability::{Area, Claims, HostClaims, HostError};
use a2g_types::call::Call;
use a2g_types::fault::BlockedBy;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::limit::Access;
use a2g_types::verdict::{Policy, ToolRule};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use time::OffsetDateTime;

/// A call's tool and standing policy. `Display` names only the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRef {
    /// The agent of the call.
    pub agent: AgentDid,
    /// The version of the agent's policy.
    pub version: String,
    /// The tool of the call.
    pub tool: ToolName,
}

impl fmt::Display for PolicyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the standing policy `{}` of `{}`", self.version, self.agent)
    }
}

/// The reason why the standing policy refuses a call. Every message names the agent and the reason; most name the
/// necessary change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StandingPolicyError {
    /// The governor revoked the agent's capabilities.
    #[error(
        "the capabilities of `{agent}` are revoked (`g2a/revoke`) until the governor sends a new `g2a/policy`"
    )]
    Revoked {
        /// The revoked agent.
        agent: AgentDid,
    },
    /// The policy does not list the tool.
    #[error(
        "{0} does not list the tool `{tool}`; use another one, or ask the operator to add it under \
         `capabilities.tools`",
        tool = .0.tool
    )]
    NotListed(PolicyRef),
    /// The policy lists the tool and does not allow it.
    #[error(
        "{0} does not allow the tool `{tool}`; use another one, or ask the operator to set \
         `capabilities.tools.{tool}.allowed` to true",
        tool = .0.tool
    )]
    NotAllowed(PolicyRef),
    /// An argument violates a constraint.
    #[error("{0} refuses these arguments of `{tool}`: {1}", tool = .0.tool)]
    Argument(PolicyRef, Breach),
    /// The rule of the tool cannot be enforced exactly.
    #[error("{0} has a rule for `{tool}` that cannot be enforced: {1}; change that rule", tool = .0.tool)]
    Unenforceable(PolicyRef, RuleError),
    /// The policy limits the disk, which this version cannot enforce, and the tool writes.
    #[error(
        "{0} sets `resources.max_disk_mb`, which this version cannot enforce, so `{tool}` may not write; \
         remove the limit, or use a tool that only reads",
        tool = .0.tool
    )]
    DiskUnenforceable(PolicyRef),
    /// The policy names hosts that cannot be parsed, and the tool uses the network.
    #[error(
        "{0} names hosts in `capabilities.network` that cannot be parsed, so `{tool}` may not use the network: {1}",
        tool = .0.tool
    )]
    InvalidHosts(PolicyRef, HostError),
}

impl StandingPolicyError {
    /// The value for `data.blocked_by`.
    #[must_use]
    pub fn blocked_by(&self) -> BlockedBy {
        match self {
            Self::Revoked { .. }
            | Self::NotListed(_)
            | Self::NotAllowed(_)
            | Self::Argument(..)
            | Self::Unenforceable(..)
            | Self::DiskUnenforceable(_)
            | Self::InvalidHosts(..) => BlockedBy::StandingPolicy,
        }
    }
}

/// The standing policies of every agent that has one.
#[derive(Debug, Default)]
pub struct StandingPolicies {
    table: RwLock<PolicyTable>,
}

/// The author of a policy or a revocation, and the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyOrigin {
    /// The name of the caller, or the governor to which the executor is connected.
    pub by: String,
    /// The time.
    pub since: OffsetDateTime,
}

/// A standing policy as it is listed.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedPolicy {
    /// The agent; `None` for every agent that has no entry of its own.
    pub agent: Option<AgentDid>,
    /// The policy; `None` if the agent's capabilities are revoked.
    pub policy: Option<Policy>,
    /// Its author, and the time.
    pub origin: PolicyOrigin,
}

#[derive(Debug, Default)]
struct PolicyTable {
    by_agent: BTreeMap<AgentDid, AgentEntry>,
    every_agent: Option<AgentEntry>,
}

#[derive(Debug)]
struct AgentEntry {
    state: AgentState,
    origin: PolicyOrigin,
}

#[derive(Debug, Clone)]
enum AgentState {
    Active(Arc<PolicyEntry>),
    Revoked,
}

#[derive(Debug)]
struct PolicyEntry {
    policy: Policy,
    rules: BTreeMap<ToolName, Result<Rule, RuleError>>,
    hosts: Result<HostClaims, HostError>,
}

impl StandingPolicies {
    /// No policies: no agent is limited or revoked.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the policy for the agent that it names, and ends that agent's revocation. A policy without an agent binds
    /// every agent that has no entry of its own.
    pub fn set(&self, policy: Policy, origin: PolicyOrigin) {
        let agent = policy.agent.clone();
        let state = AgentState::Active(Arc::new(PolicyEntry::new(policy)));
        let entry = AgentEntry { state, origin };
        let mut table = self.table.write();
        match agent {
            Some(agent) => {
                table.by_agent.insert(agent, entry);
            }
            None => table.every_agent = Some(entry),
        }
    }

    /// Revokes the capabilities of one agent, or of all, until a new policy arrives. An agent without a policy can also
    /// be revoked.
    pub fn revoke(&self, agent: Option<&AgentDid>, origin: PolicyOrigin) {
        let entry = AgentEntry { state: AgentState::Revoked, origin };
        let mut table = self.table.write();
        match agent {
            Some(agent) => {
                table.by_agent.insert(agent.clone(), entry);
            }
            None => {
                table.by_agent.clear();
                table.every_agent = Some(entry);
            }
        }
    }

    /// The policies and revocations that `filter` selects, at most `max`, the one for every agent first.
    #[must_use]
    pub fn list(&self, filter: impl Fn(Option<&AgentDid>) -> bool, max: usize) -> Vec<ListedPolicy> {
        let table = self.table.read();
        let every = table.every_agent.iter().map(|entry| (None, entry));
        let entries = every.chain(table.by_agent.iter().map(|(agent, entry)| (Some(agent), entry)));
        let selected = entries.filter(|(agent, _)| filter(*agent)).take(max);
        let listed = selected.map(|(agent, AgentEntry { state, origin })| ListedPolicy {
            agent: agent.cloned(),
            policy: match state {
                AgentState::Active(entry) => Some(entry.policy.clone()),
                AgentState::Revoked => None,
            },
            origin: origin.clone(),
        });
        listed.collect()
    }

    /// The limits that the standing policy of the calling agent sets for this call.
    ///
    /// Under a policy with `max_disk_mb`, `claims.access` is read-only, so that a run can never write under a disk
    /// limit that is not enforced. Under a policy with invalid hosts, the network is off.
    ///
    /// Before the run, [`Self::check_writes`] and [`Self::check_network`] refuse tools that need to write or to use the
    /// network, with a clear message.
    ///
    /// # Errors
    /// [`StandingPolicyError`] when the agent is revoked, the tool is not allowed, an argument breaks a
    /// constraint, or the rule cannot be enforced.
    pub fn claims_for(&self, call: &Call) -> Result<Claims, StandingPolicyError> {
        match self.state_of(&call.agent) {
            None => Ok(Claims::default()),
            Some(AgentState::Revoked) => Err(StandingPolicyError::Revoked { agent: call.agent.clone() }),
            Some(AgentState::Active(entry)) => entry.claims_for(call),
        }
    }

    /// For tools that declare read-write access: checks that the policy lets them run.
    ///
    /// # Errors
    /// [`StandingPolicyError::DiskUnenforceable`] under a policy with `max_disk_mb`;
    /// [`StandingPolicyError::Revoked`] when the agent is revoked.
    pub fn check_writes(&self, call: &Call) -> Result<(), StandingPolicyError> {
        match self.state_of(&call.agent) {
            None => Ok(()),
            Some(AgentState::Revoked) => Err(StandingPolicyError::Revoked { agent: call.agent.clone() }),
            Some(AgentState::Active(entry)) if entry.policy.resources.max_disk_mb.is_some() => {
                Err(StandingPolicyError::DiskUnenforceable(entry.reference(call)))
            }
            Some(AgentState::Active(_)) => Ok(()),
        }
    }

    /// For tools that declare the network: checks that the policy lets them run.
    ///
    /// # Errors
    /// [`StandingPolicyError::InvalidHosts`] under a policy whose hosts cannot be parsed;
    /// [`StandingPolicyError::Revoked`] when the agent is revoked.
    pub fn check_network(&self, call: &Call) -> Result<(), StandingPolicyError> {
        match self.state_of(&call.agent) {
            None => Ok(()),
            Some(AgentState::Revoked) => Err(StandingPolicyError::Revoked { agent: call.agent.clone() }),
            Some(AgentState::Active(entry)) => match &entry.hosts {
                Ok(_) => Ok(()),
                Err(error) => Err(StandingPolicyError::InvalidHosts(entry.reference(call), error.clone())),
            },
        }
    }

    /// The hosts that the standing policy of an agent sets for the runs of a tool, whatever their arguments.
    ///
    /// # Errors
    /// [`StandingPolicyError`] when the agent is revoked, the tool is not allowed, or the hosts cannot be parsed.
    pub fn hosts_for(&self, agent: &AgentDid, tool: &ToolName) -> Result<HostClaims, StandingPolicyError> {
        let entry = match self.state_of(agent) {
            None => return Ok(HostClaims::default()),
            Some(AgentState::Revoked) => return Err(StandingPolicyError::Revoked { agent: agent.clone() }),
            Some(AgentState::Active(entry)) => entry,
        };
        let reference =
            || PolicyRef { agent: agent.clone(), version: entry.policy.version.clone(), tool: tool.clone() };
        match entry.policy.tools.get(tool) {
            None => Err(StandingPolicyError::NotListed(reference())),
            Some(rule) if !rule.allowed => Err(StandingPolicyError::NotAllowed(reference())),
            Some(_) => {
                entry.hosts.clone().map_err(|error| StandingPolicyError::InvalidHosts(reference(), error))
            }
        }
    }

    /// Returns `true` if the agent's policy allows the tool at all, or it has no policy. A call may still be refused
    /// for its arguments.
    #[must_use]
    pub fn may_reach(&self, agent: &AgentDid, tool: &ToolName) -> bool {
        match self.state_of(agent) {
            None => true,
            Some(AgentState::Revoked) => false,
            Some(AgentState::Active(entry)) => entry.policy.tools.get(tool).is_some_and(|rule| rule.allowed),
        }
    }

    /// The standing policy of an agent; `None` if it has none or is revoked.
    #[must_use]
    pub fn policy_of(&self, agent: &AgentDid) -> Option<Policy> {
        match self.state_of(agent)? {
            AgentState::Active(entry) => Some(Policy { agent: Some(agent.clone()), ..entry.policy.clone() }),
            AgentState::Revoked => None,
        }
    }

    fn state_of(&self, agent: &AgentDid) -> Option<AgentState> {
        let table = self.table.read();
        table.by_agent.get(agent).or(table.every_agent.as_ref()).map(|entry| entry.state.clone())
    }
}

impl PolicyEntry {
    fn new(policy: Policy) -> Self {
        let rules = policy.tools.iter().map(|(tool, rule)| (tool.clone(), Rule::read(rule))).collect();
        let hosts = host_claims(&policy.network);
        Self { policy, rules, hosts }
    }

    fn claims_for(&self, call: &Call) -> Result<Claims, StandingPolicyError> {
        let Some((tool_rule, rule)) = self.policy.tools.get(&call.tool).zip(self.rules.get(&call.tool))
        else {
            return Err(StandingPolicyError::NotListed(self.reference(call)));
        };
        if !tool_rule.allowed {
            return Err(StandingPolicyError::NotAllowed(self.reference(call)));
        }
        let rule = match rule {
            Ok(rule) => rule,
            Err(error) => {
                return Err(StandingPolicyError::Unenforceable(self.reference(call), error.clone()));
            }
        };
        match rule.check_texts(&Arguments::of(&call.arguments)) {
            Ok(()) => Ok(self.claims(tool_rule, rule)),
            Err(breach) => Err(StandingPolicyError::Argument(self.reference(call), breach)),
        }
    }

    fn claims(&self, tool_rule: &ToolRule, rule: &Rule) -> Claims {
        let resources = &self.policy.resources;
        Claims {
            limits: resources.limits.narrower(&tool_rule.limits),
            network: self.hosts.is_err().then_some(false),
            hosts: self.hosts.clone().unwrap_or_default(),
            areas: rule.areas().map(<[Area]>::to_vec),
            access: resources.max_disk_mb.map(|_| Access::ReadOnly),
            effects: tool_rule.effects.unless_direct(),
            blocked: rule.blocked_globs().cloned().collect(),
            calls: tool_rule.calls.clone(),
            secrets: tool_rule.secrets.clone(),
        }
    }

    fn reference(&self, call: &Call) -> PolicyRef {
        let agent = call.agent.clone();
        let version = self.policy.version.clone();
        PolicyRef { agent, version, tool: call.tool.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_capability::{Ceilings, Glob, Grant, HostPattern, Tree};
    use a2g_types::call::{Door, Priority};
    use a2g_types::ident::IntentId;
    use a2g_types::limit::{ClaimedLimits, FileEffects, Layer, LimitMap};

    use a2g_types::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
    use a2g_types::verdict::{NetworkRule, ResourceRule};
    use serde_json::json;

    const AGENT: &str = "did:aeon:tester:1.0:a";

    fn agent(did: &str) -> AgentDid {
        AgentDid::parse(did).unwrap()
    }

    fn call(tool: &str, arguments: &serde_json::Value) -> Call {
        Call {
            caller_timeout: None,
            priority: Priority::Normal,
            door: Door::A2g,
            agent: agent(AGENT),
            intent: IntentId::random(),
            is_new: false,
            charge: a2g_types::memory::Charge::default(),
            parent: None,
            caller_tools: None,
            session: None,
            tool: ToolName::parse(tool).unwrap(),
            arguments: arguments.as_object().unwrap().clone(),
            context: None,
        }
    }

    fn origin() -> PolicyOrigin {
        PolicyOrigin { by: "anna".to_owned(), since: OffsetDateTime::UNIX_EPOCH }
    }

    fn rule() -> ToolRule {
        ToolRule { allowed: true, ..ToolRule::default() }
    }

    fn policy(did: Option<&str>, rule: ToolRule) -> Policy {
        Policy {
            agent: did.map(agent),
            version: "7".into(),
            tools: [(ToolName::parse("write_file").unwrap(), rule)].into(),
            network: NetworkRule::default(),
            resources: ResourceRule::default(),
            constitution_hash: None,
        }
    }

    fn claims_under(policy: Policy, arguments: &serde_json::Value) -> Result<Claims, StandingPolicyError> {
        let standing = StandingPolicies::new();
        standing.set(policy, origin());
        standing.claims_for(&call("write_file", arguments))
    }

    #[test]
    fn an_agent_without_a_policy_has_no_claims() {
        let claims = StandingPolicies::new().claims_for(&call("anything", &json!({}))).unwrap();
        assert_eq!(claims, Claims::default());
    }

    #[test]
    fn an_agents_own_policy_takes_precedence_over_the_one_for_all() {
        let standing = StandingPolicies::new();
        standing.set(policy(None, ToolRule::default()), origin());
        let refusal = standing.claims_for(&call("write_file", &json!({}))).unwrap_err();
        assert!(matches!(refusal, StandingPolicyError::NotAllowed { .. }), "{refusal}");
        standing.set(policy(Some(AGENT), rule()), origin());
        assert!(standing.claims_for(&call("write_file", &json!({}))).is_ok());
        standing.set(policy(Some("did:aeon:other:1.0:b"), ToolRule::default()), origin());
        assert!(standing.claims_for(&call("write_file", &json!({}))).is_ok());
    }

    #[test]
    fn a_revocation_lasts_until_a_new_policy() {
        for revoked in [Some(agent(AGENT)), None] {
            let standing = StandingPolicies::new();
            standing.set(policy(Some(AGENT), rule()), origin());
            standing.revoke(revoked.as_ref(), origin());
            let call = call("write_file", &json!({}));
            let refusal = standing.claims_for(&call).unwrap_err();
            assert_eq!(refusal, StandingPolicyError::Revoked { agent: agent(AGENT) });
            assert_eq!(standing.check_writes(&call).unwrap_err(), refusal);
            standing.set(policy(Some(AGENT), rule()), origin());
            assert!(standing.claims_for(&call).is_ok());
        }
    }

    #[test]
    fn the_hosts_of_a_tool_are_those_of_the_present_policy() {
        let standing = StandingPolicies::new();
        let [listed, other] = ["write_file", "read_file"].map(|name| ToolName::parse(name).unwrap());
        let own = agent(AGENT);
        assert_eq!(standing.hosts_for(&own, &other), Ok(HostClaims::default()));
        let network = NetworkRule { blocked_domains: vec!["a.example".to_owned()], ..NetworkRule::default() };
        standing.set(Policy { network, ..policy(Some(AGENT), rule()) }, origin());
        let blocked = vec![HostPattern::parse("a.example").unwrap()];
        assert_eq!(standing.hosts_for(&own, &listed).unwrap().blocked, blocked);
        assert!(matches!(standing.hosts_for(&own, &other), Err(StandingPolicyError::NotListed(_))));
        standing.set(policy(Some(AGENT), ToolRule::default()), origin());
        assert!(matches!(standing.hosts_for(&own, &listed), Err(StandingPolicyError::NotAllowed(_))));
        standing.revoke(None, origin());
        assert_eq!(
            standing.hosts_for(&own, &listed),
            Err(StandingPolicyError::Revoked { agent: own.clone() })
        );
    }

    #[test]
    fn a_revocation_of_one_agent_does_not_affect_others() {
        let standing = StandingPolicies::new();
        standing.revoke(Some(&agent("did:aeon:other:1.0:b")), origin());
        assert!(standing.claims_for(&call("write_file", &json!({}))).is_ok());
    }

    #[test]
    fn a_tool_is_refused_unless_it_is_listed_and_allowed() {
        let standing = StandingPolicies::new();
        standing.set(policy(Some(AGENT), rule()), origin());
        let refusal = standing.claims_for(&call("read_file", &json!({}))).unwrap_err();
        assert!(matches!(refusal, StandingPolicyError::NotListed { .. }));
        assert_eq!(
            refusal.to_string(),
            "the standing policy `7` of `did:aeon:tester:1.0:a` does not list the tool `read_file`; \
             use another one, or ask the operator to add it under `capabilities.tools`"
        );
    }

    #[test]
    fn blocked_patterns_and_long_arguments_are_refused() {
        let strict = ToolRule { blocked_patterns: vec!["rm -rf".into()], max_size_bytes: Some(8), ..rule() };
        for (content, is_allowed) in
            [("12345678", true), ("123456789", false), ("rm  -rf", false), ("rm", true)]
        {
            let claims = claims_under(policy(Some(AGENT), strict.clone()), &json!({ "content": content }));
            assert_eq!(claims.is_ok(), is_allowed, "{content}: {claims:?}");
            if let Err(refusal) = claims {
                assert_eq!(refusal.blocked_by(), BlockedBy::StandingPolicy);
            }
        }
    }

    #[test]
    fn every_limit_becomes_a_claim() {
        let mut full = policy(
            Some(AGENT),
            ToolRule {
                paths: Some(vec!["/workspace/**".into()]),
                blocked_paths: vec!["/workspace/secret/**".into()],
                effects: FileEffects::Atomic,
                secrets: Some([].into()),
                limits: ClaimedLimits::default().with(Timeout::from_seconds(5).ok()),
                ..rule()
            },
        );
        full.resources.limits =
            ClaimedLimits::default().with(MemoryLimit::from_mb(8).ok()).with(CpuPercent::new(20).ok());
        full.network.allowed_domains = Some(Vec::new());
        full.network.blocked_domains = vec!["*.Onion.".into()];
        full.network.max_requests_per_minute = Some(60);
        let claims = claims_under(full, &json!({})).unwrap();
        assert_eq!(
            claims,
            Claims {
                limits: ClaimedLimits::default()
                    .with(MemoryLimit::from_mb(8).ok())
                    .with(CpuPercent::new(20).ok())
                    .with(Timeout::from_seconds(5).ok()),
                network: None,
                hosts: HostClaims {
                    allowed: Some(Vec::new()),
                    blocked: vec![HostPattern::parse("*.onion").unwrap()],
                    requests: None,
                    requests_per_minute: Some(60),
                },
                areas: Some(vec![Tree::parse_path("/workspace").unwrap().into()]),
                access: None,
                effects: Some(FileEffects::Atomic),
                blocked: Glob::parse_blocking("/workspace/secret/**").unwrap(),
                calls: None,
                secrets: Some([].into()),
            }
        );
    }

    #[test]
    fn invalid_hosts_turn_the_network_off_and_refuse_a_tool_that_uses_it() {
        let call = call("write_file", &json!({}));
        for text in ["https://*.github.com", "10.0.0.0/8", "0x7f.1", "a@b", ""] {
            let rules = [
                NetworkRule { allowed_domains: Some(vec![text.into()]), ..NetworkRule::default() },
                NetworkRule { blocked_domains: vec![text.into()], ..NetworkRule::default() },
            ];
            for network in rules {
                let standing = StandingPolicies::new();
                standing.set(Policy { network, ..policy(Some(AGENT), rule()) }, origin());
                assert_eq!(standing.claims_for(&call).unwrap().network, Some(false), "{text}");
                let refusal = standing.check_network(&call).unwrap_err();
                assert!(refusal.to_string().contains("capabilities.network"), "{refusal}");
            }
        }
        let standing = StandingPolicies::new();
        standing.set(policy(Some(AGENT), rule()), origin());
        assert_eq!(standing.claims_for(&call).unwrap().network, None);
        assert_eq!(standing.claims_for(&call).unwrap().hosts, HostClaims::default());
        assert!(standing.check_network(&call).is_ok());
    }

    #[test]
    fn a_path_pattern_that_cannot_be_enforced_refuses_the_call() {
        for pattern in ["workspace/**", "/**", "/workspace/{a", "/workspace/a**"] {
            let bad = ToolRule { paths: Some(vec![pattern.into()]), ..rule() };
            let refusal = claims_under(policy(Some(AGENT), bad), &json!({})).unwrap_err();
            assert!(matches!(refusal, StandingPolicyError::Unenforceable { .. }), "{pattern}");
            assert_eq!(refusal.blocked_by(), BlockedBy::StandingPolicy, "{pattern}");
        }
    }

    /// The grant that results when the verdict grants `/workspace`.
    fn grant(rule: ToolRule) -> Grant {
        let workspace = || vec![Tree::parse_path("/workspace").unwrap().into()];
        let ceilings = Ceilings {
            limits: LimitMap::defaults()
                .with(MemoryLimit::from_mb(64).unwrap())
                .with(Timeout::from_seconds(30).unwrap())
                .with(OutputLimit::from_bytes(1024).unwrap()),
            areas: workspace(),
            access: Access::ReadWrite,
            ..Ceilings::closed()
        };
        let verdict = Claims { areas: Some(workspace()), ..Claims::default() };
        let standing = claims_under(policy(Some(AGENT), rule), &json!({})).unwrap();
        Grant::meet(
            crate::test_authority(),
            [(Layer::Verdict, verdict), (Layer::StandingPolicy, standing)],
            &ceilings,
        )
        .unwrap()
    }

    #[test]
    fn a_blocked_path_is_excluded_from_the_grant_at_any_depth() {
        for (pattern, blocked) in [
            (".env", "/workspace/a/.env"),
            (".ssh/**", "/workspace/.ssh/id"),
            ("*.pem", "/workspace/a/b/key.pem"),
            ("/workspace/secret.txt", "/workspace/secret.txt"),
            ("/workspace/secret/**", "/workspace/secret"),
        ] {
            let rule = ToolRule { blocked_paths: vec![pattern.into()], ..rule() };
            let grant_with_block = grant(rule.clone());
            let root = &grant_with_block.roots()[0];
            assert!(!root.grants(blocked) && root.grants("/workspace/a"), "{pattern}");
            assert!(!root.grants(&format!("{blocked}/below")), "{pattern}");
            let no_files = ToolRule { paths: Some(Vec::new()), ..rule };
            assert!(grant(no_files).roots().is_empty(), "{pattern}");
        }
        let elsewhere = ToolRule { blocked_paths: vec!["/etc/**".into()], ..rule() };
        assert!(grant(elsewhere).roots()[0].is_whole());
        let outside = ToolRule {
            paths: Some(vec!["/workspace/**".into()]),
            blocked_paths: vec!["/etc/shadow".into(), "/tmp/*.key".into()],
            ..rule()
        };
        assert!(grant(outside).roots()[0].is_whole());
    }

    #[test]
    fn a_disk_limit_makes_a_run_read_only_and_refuses_a_tool_that_writes() {
        let mut limited = policy(Some(AGENT), rule());
        limited.resources.max_disk_mb = Some(10);
        let standing = StandingPolicies::new();
        let call = call("write_file", &json!({}));
        standing.set(limited, origin());
        assert_eq!(standing.claims_for(&call).unwrap().access, Some(Access::ReadOnly));
        let refusal = standing.check_writes(&call).unwrap_err();
        assert!(refusal.to_string().contains("max_disk_mb"), "{refusal}");
        standing.set(policy(Some(AGENT), rule()), origin());
        assert_eq!(standing.claims_for(&call).unwrap().access, None);
        assert!(standing.check_writes(&call).is_ok());
    }
}
