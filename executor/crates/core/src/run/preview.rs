//! What a person sees before they decide on an escalated intent, and the check that what they saw still holds.
//!
//! A preview computes the grant exactly as the run would, and throws it away: only its description leaves this module.
//! [`DecisionBasis`] is the hash of what the decision depends on. A decision that names a basis applies only if a new
//! preview has the same one.

use super::approval_rules::{self, ApprovalBar};
use super::{AgentFilter, Executor};
use a2g_capability::Grant;
use a2g_govern::{DecisionRight, Escalated};
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::limit::{Access, Bound};
use a2g_types::outcome::HostRule;
use a2g_types::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use a2g_types::tool::{Descriptor, Digest};
use a2g_types::verdict::{Directive, Manifest, RiskLevel, Verdict};
use time::OffsetDateTime;

/// The description of a grant, for people. It carries no authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantSummary {
    /// Maximum memory, with the layer that set it.
    pub memory: Bound<MemoryLimit>,
    /// Maximum share of CPU, with the layer that set it.
    pub cpu: Bound<CpuPercent>,
    /// Maximum duration, with the layer that set it.
    pub timeout: Bound<Timeout>,
    /// Maximum output, with the layer that set it.
    pub output: Bound<OutputLimit>,
    /// `true` if the run may use the network, with the layer that decided.
    pub network: Bound<bool>,
    /// The hosts that the run may reach.
    pub allowed_hosts: Vec<HostRule>,
    /// The hosts that the run may not reach, even if another pattern allows them.
    pub blocked_hosts: Vec<HostRule>,
    /// The granted patterns of files, each with the layer that set it.
    pub areas: Vec<Bound<String>>,
    /// The patterns that are excluded from the granted ones.
    pub blocked_paths: Vec<Bound<String>>,
    /// The access to files, with the layer that set it.
    pub access: Bound<Access>,
    /// Maximum number of calls to other tools; `None` if the run may make none.
    pub max_calls: Option<Bound<u32>>,
}

impl GrantSummary {
    pub(super) fn new(grant: &Grant) -> Self {
        let host_rule = |(pattern, set_by): (&a2g_capability::HostPattern, _)| HostRule {
            pattern: pattern.to_string(),
            set_by,
        };
        let areas = grant.roots().iter().flat_map(|root| root.areas());
        let blocked = grant.roots().iter().flat_map(|root| root.blocked_globs());
        Self {
            memory: grant.memory(),
            cpu: grant.cpu(),
            timeout: grant.timeout(),
            output: grant.output(),
            network: grant.network(),
            allowed_hosts: grant.reach().allowed_patterns().map(host_rule).collect(),
            blocked_hosts: grant.reach().blocked_patterns().map(host_rule).collect(),
            areas: areas.map(|area| Bound { value: area.value.to_string(), layer: area.layer }).collect(),
            blocked_paths: blocked
                .map(|glob| Bound { value: glob.value.text().to_owned(), layer: glob.layer })
                .collect(),
            access: grant.access(),
            max_calls: grant.calls().allows_any().then(|| grant.calls().max_calls()),
        }
    }

    /// The manifest with these limits and the scope of `verdict`. Hosts, output and other limits are not part of a
    /// manifest.
    #[must_use]
    pub fn to_manifest(&self, verdict: &Manifest) -> Manifest {
        Manifest {
            max_memory: Some(self.memory.value),
            max_cpu: Some(self.cpu.value),
            timeout: Some(self.timeout.value),
            network_allowed: Some(self.network.value),
            // Not the granted patterns: an area that is the intersection of several has a text that is no pattern.
            filesystem_scope: verdict.filesystem_scope.clone(),
        }
    }

    /// `true` if `manifest` names every limit, and none of them is wider than here. Its scope is that of `verdict`, or
    /// only has patterns that are granted here.
    #[must_use]
    pub fn includes(&self, manifest: &Manifest, verdict: &Manifest) -> bool {
        let Manifest { max_memory, max_cpu, timeout, network_allowed, filesystem_scope } = manifest;
        max_memory.is_some_and(|memory| memory <= self.memory.value)
            && max_cpu.is_some_and(|cpu| cpu <= self.cpu.value)
            && timeout.is_some_and(|timeout| timeout <= self.timeout.value)
            && network_allowed.is_some_and(|network| network <= self.network.value)
            && (*filesystem_scope == verdict.filesystem_scope
                || filesystem_scope
                    .iter()
                    .all(|pattern| self.areas.iter().any(|area| area.value == *pattern)))
    }

    /// A manifest with the limits of this grant where `manifest` has none.
    pub(super) fn complete(&self, manifest: &Manifest) -> Manifest {
        Manifest {
            max_memory: manifest.max_memory.or(Some(self.memory.value)),
            max_cpu: manifest.max_cpu.or(Some(self.cpu.value)),
            timeout: manifest.timeout.or(Some(self.timeout.value)),
            network_allowed: Some(manifest.network_allowed.unwrap_or(false)),
            filesystem_scope: manifest.filesystem_scope.clone(),
        }
    }

    /// `true` if this grants nothing that `shown` does not. Patterns are compared as texts.
    pub(super) fn is_within(&self, shown: &Self) -> bool {
        fn has<T: PartialEq>(all: &[Bound<T>], one: &Bound<T>) -> bool {
            all.iter().any(|other| other.value == one.value)
        }
        fn has_host(all: &[HostRule], one: &HostRule) -> bool {
            all.iter().any(|other| other.pattern == one.pattern)
        }
        let Self {
            memory,
            cpu,
            timeout,
            output,
            network,
            allowed_hosts,
            blocked_hosts,
            areas,
            blocked_paths,
            access,
            max_calls,
        } = self;
        memory.value <= shown.memory.value
            && cpu.value <= shown.cpu.value
            && timeout.value <= shown.timeout.value
            && output.value <= shown.output.value
            && network.value <= shown.network.value
            && access.value <= shown.access.value
            && allowed_hosts.iter().all(|rule| has_host(&shown.allowed_hosts, rule))
            && shown.blocked_hosts.iter().all(|rule| has_host(blocked_hosts, rule))
            && areas.iter().all(|area| has(&shown.areas, area))
            && shown.blocked_paths.iter().all(|path| has(blocked_paths, path))
            && max_calls.is_none_or(|calls| shown.max_calls.is_some_and(|shown| calls.value <= shown.value))
    }
}

/// The SHA-256 of what a decision depends on: the call, the module, the verdict, the approvals so far and the grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecisionBasis(Digest);

impl DecisionBasis {
    /// Parses the text of a basis, as [`Self::to_string`] writes it.
    ///
    /// # Errors
    /// If the text is not 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        Digest::parse(text).map(Self)
    }

    /// The bytes of the hash.
    pub(super) fn hash(self) -> [u8; 32] {
        self.0.0
    }

    fn compute(
        escalated: &Escalated,
        module: Option<Digest>,
        approved_by: &[String],
        grant: &Result<GrantSummary, Fault>,
    ) -> Self {
        let (call, verdict) = (escalated.call(), escalated.verdict());
        // The fields that are left out are not shown, change nothing in what runs, or have their effect in the grant.
        // The debug format of a value that is hashed has all of its fields.
        let Call {
            door,
            agent,
            intent,
            is_new: _,
            tool,
            arguments,
            context: _,
            caller_timeout: _,
            priority: _,
            charge: _,
            parent,
        } = call;
        let arguments = serde_json::Value::Object(arguments.clone());
        let shown = format!(
            "{intent} {door:?} {agent:?} {tool:?} {arguments} {parent:?} {module:?} {verdict:?} {approved_by:?} {grant:?}"
        );
        Self(Digest::compute(shown.as_bytes()))
    }
}

impl std::fmt::Display for DecisionBasis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// An escalated intent, as it is shown to the person who decides on it.
#[derive(Debug, Clone)]
pub struct DecisionPreview {
    /// The call.
    pub call: Call,
    /// The governor's verdict.
    pub verdict: Verdict,
    /// The time from which the call can no longer be approved.
    pub expires_at: OffsetDateTime,
    /// The tool, as it is installed; `None` if it cannot be used now.
    pub tool: Option<Descriptor>,
    /// Who has approved the intent so far.
    pub approved_by: Vec<String>,
    /// The number of people who have to approve it.
    pub required_approvals: u32,
    /// The grant of an approved run, or the reason why it would be refused.
    pub grant: Result<GrantSummary, Fault>,
    /// The hash of the call, the module, the verdict, the approvals so far and the grant.
    pub basis: DecisionBasis,
}

/// An escalated intent in a list, without its arguments.
#[derive(Debug, Clone)]
pub struct WaitingSummary {
    /// The intent.
    pub intent: IntentId,
    /// The agent.
    pub agent: AgentDid,
    /// The tool.
    pub tool: ToolName,
    /// The governor's estimate of the risk, if it sent one.
    pub risk: Option<(RiskLevel, f64)>,
    /// The governor's reason, shortened.
    pub reason: Option<String>,
    /// The time from which the call can no longer be approved.
    pub expires_at: OffsetDateTime,
}

/// Maximum length of a reason in a list, in characters.
const MAX_REASON_CHARS: usize = 300;

impl Executor {
    /// The intents of the selected agents that wait for a person, the first to expire first.
    #[must_use]
    pub fn waiting_intents(&self, filter: AgentFilter<'_>) -> Vec<WaitingSummary> {
        // Copied under a lock, so without the arguments, which may be long.
        let summary = |escalated: &Escalated| {
            let (call, verdict) = (escalated.call(), escalated.verdict());
            let shorten = |reason: &String| reason.chars().take(MAX_REASON_CHARS).collect();
            filter(&call.agent).then(|| WaitingSummary {
                intent: call.intent,
                agent: call.agent.clone(),
                tool: call.tool.clone(),
                risk: verdict.risk.as_ref().map(|risk| (risk.level, risk.score)),
                reason: verdict.reason.as_ref().map(shorten),
                expires_at: escalated.expires_at(),
            })
        };
        let mut waiting = self.escalations.map_undecided(self.clock.now(), summary);
        waiting.sort_by_key(|waiting| (waiting.expires_at, waiting.intent));
        waiting
    }

    /// What a waiting intent would run if it were approved with `manifest`, or with the verdict's limits. `None` if the
    /// intent does not wait.
    #[must_use]
    pub fn preview_decision(&self, intent: IntentId, manifest: Option<&Manifest>) -> Option<DecisionPreview> {
        Some(self.preview(&self.escalations.find_undecided(intent)?, manifest))
    }

    /// The reason why an approval by the holder of `right` would not count for an intent that waits; `None` if it would, or
    /// if the intent is not held. Where `[[approvals]]` applies, only people approve, nobody for their own agent, and nobody
    /// twice. A denial always counts.
    #[must_use]
    pub fn approval_bar(&self, intent: IntentId, right: &DecisionRight<'_>) -> Option<ApprovalBar> {
        let rules = &self.settings.approval_rules;
        self.escalations.inspect(intent, |escalated, earlier| {
            let call = escalated.call();
            approval_rules::required_approvals(rules, &call.tool, escalated.risk_score())?;
            if right.is_of_governor() {
                Some(ApprovalBar::Governor)
            } else if right.acts_for(&call.agent) {
                Some(ApprovalBar::OwnAgent)
            } else if earlier.iter().any(|earlier| earlier.by == right.by()) {
                Some(ApprovalBar::AlreadyApproved)
            } else {
                None
            }
        })?
    }

    pub(super) fn preview(&self, escalated: &Escalated, manifest: Option<&Manifest>) -> DecisionPreview {
        let (call, verdict) = (escalated.call(), escalated.verdict());
        let rules = &self.settings.approval_rules;
        let required = approval_rules::required_approvals(rules, &call.tool, escalated.risk_score());
        // Every approval so far limits the run. Without a rule, the manifest of a directive replaces the verdict's.
        let approvals = self.escalations.partial_approvals(call.intent);
        let earlier = approvals.iter().filter_map(|approval| approval.manifest.as_ref());
        let narrowed = match (required, manifest) {
            (None, Some(manifest)) => manifest.clone(),
            (None, None) => verdict.manifest.clone(),
            (Some(_), manifest) => approval_rules::narrow(&verdict.manifest, earlier.chain(manifest)),
        };
        let directive =
            Directive { intent: call.intent, approved: true, manifest: Some(narrowed), reason: None };
        let approved_by = approvals.into_iter().map(|approval| approval.by).collect::<Vec<_>>();
        let usable = self
            .find_catalog(call)
            .map(|loaded| loaded.usable_tool(&call.tool).map(|tool| tool.descriptor.clone()));
        let (tool, unusable) = match usable {
            Ok(tool) => (tool, None),
            Err(fault) => (None, Some(fault)),
        };
        let granted = match (&tool, unusable) {
            (Some(tool), None) => {
                let admitted = escalated.clone().resolve(&directive, "", self.clock.now());
                admitted.and_then(|admitted| {
                    admitted.grant(&self.settings.granter, &self.standing, tool, &self.settings.ceilings)
                })
            }
            (_, Some(fault)) => Err(fault),
            (None, None) => Err(Fault::invalid(
                "/tool",
                "the tool is not in the catalogue, or cannot be used now: see `a2g-executor tool list`",
            )),
        };
        let grant = granted.map(|(_admitted, grant)| GrantSummary::new(&grant));
        let module = tool.as_ref().map(|tool| tool.digest);
        DecisionPreview {
            basis: DecisionBasis::compute(escalated, module, &approved_by, &grant),
            approved_by,
            required_approvals: required.unwrap_or(1),
            call: call.clone(),
            verdict: verdict.clone(),
            expires_at: escalated.expires_at(),
            tool,
            grant,
        }
    }
}

/// The fault for a person who decided on something that has changed since it was shown.
pub(super) fn changed_fault() -> Fault {
    Fault::InvalidRequest(
        "something that you were shown has changed: the tool, a policy, a limit or an approval. Look at the intent again \
         before you decide"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::limit::Layer;

    fn bound<T>(value: T) -> Bound<T> {
        Bound { value, layer: Layer::Verdict }
    }

    fn summary() -> GrantSummary {
        let rule = |pattern: &str| HostRule { pattern: pattern.to_owned(), set_by: Layer::Verdict };
        GrantSummary {
            memory: bound(MemoryLimit::from_mb(2).unwrap()),
            cpu: bound(CpuPercent::new(50).unwrap()),
            timeout: bound(Timeout::from_seconds(2).unwrap()),
            output: bound(OutputLimit::from_bytes(2048).unwrap()),
            network: bound(false),
            allowed_hosts: vec![rule("a.example")],
            blocked_hosts: vec![rule("b.example")],
            areas: vec![bound("/a/**".to_owned())],
            blocked_paths: vec![bound("/a/x".to_owned())],
            access: bound(Access::ReadOnly),
            max_calls: Some(bound(2)),
        }
    }

    #[test]
    fn a_grant_that_is_wider_in_any_limit_is_not_within_what_was_shown() {
        let shown = summary();
        assert!(shown.is_within(&shown));
        let changes: [fn(&mut GrantSummary); 11] = [
            |wider| wider.memory.value = MemoryLimit::from_mb(3).unwrap(),
            |wider| wider.cpu.value = CpuPercent::new(51).unwrap(),
            |wider| wider.timeout.value = Timeout::from_seconds(3).unwrap(),
            |wider| wider.output.value = OutputLimit::from_bytes(4096).unwrap(),
            |wider| wider.network.value = true,
            |wider| wider.allowed_hosts[0].pattern = "*".to_owned(),
            |wider| wider.blocked_hosts.clear(),
            |wider| wider.areas[0].value = "/**".to_owned(),
            |wider| wider.blocked_paths.clear(),
            |wider| wider.access.value = Access::ReadWrite,
            |wider| wider.max_calls = Some(bound(3)),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut wider = summary();
            change(&mut wider);
            assert!(!wider.is_within(&shown), "{index}");
            assert!(index == 5 || index == 7 || shown.is_within(&wider), "{index}");
        }
        let none =
            GrantSummary { max_calls: None, allowed_hosts: Vec::new(), areas: Vec::new(), ..summary() };
        assert!(none.is_within(&shown) && !shown.is_within(&none));
    }
}
