//! What a person sees before they decide on an escalated intent, and the check that what they saw still holds.
//!
//! A preview computes the grant exactly as the run would, and throws it away: only its description leaves this module.
//! [`DecisionBasis`] is the hash of what the decision depends on. A decision that names a basis applies only if a new
//! preview has the same one.

use super::{Executor, approval_rules};
use a2g_capability::Grant;
use a2g_govern::Escalated;
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::limit::{Access, Bound};
use a2g_types::outcome::HostRule;
use a2g_types::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use a2g_types::tool::{Descriptor, Digest};
use a2g_types::verdict::{Directive, Manifest, Verdict};
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
    fn new(grant: &Grant) -> Self {
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

    /// The manifest with these limits. Other limits, such as hosts and output, are not part of a manifest.
    #[must_use]
    pub fn to_manifest(&self) -> Manifest {
        Manifest {
            max_memory: Some(self.memory.value),
            max_cpu: Some(self.cpu.value),
            timeout: Some(self.timeout.value),
            network_allowed: Some(self.network.value),
            filesystem_scope: self.areas.iter().map(|area| area.value.clone()).collect(),
        }
    }

    /// `true` if `manifest` names every limit, and none of them is wider than here. Its scope may only contain patterns
    /// that are granted here.
    #[must_use]
    pub fn includes(&self, manifest: &Manifest) -> bool {
        let Manifest { max_memory, max_cpu, timeout, network_allowed, filesystem_scope } = manifest;
        max_memory.is_some_and(|memory| memory <= self.memory.value)
            && max_cpu.is_some_and(|cpu| cpu <= self.cpu.value)
            && timeout.is_some_and(|timeout| timeout <= self.timeout.value)
            && network_allowed.is_some_and(|network| network <= self.network.value)
            && filesystem_scope.iter().all(|pattern| self.areas.iter().any(|area| area.value == *pattern))
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

    fn compute(
        escalated: &Escalated,
        module: Option<Digest>,
        approved_by: &[String],
        grant: &Result<GrantSummary, Fault>,
    ) -> Self {
        let (call, verdict) = (escalated.call(), escalated.verdict());
        // The rest of a call is not shown, or does not change what runs. The debug format of the other values has all of
        // their fields.
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

/// An escalated intent in a list.
#[derive(Debug, Clone)]
pub struct WaitingSummary {
    /// The call.
    pub call: Call,
    /// The governor's verdict.
    pub verdict: Verdict,
    /// The time from which the call can no longer be approved.
    pub expires_at: OffsetDateTime,
}

impl Executor {
    /// The intents that wait for a person, the first to expire first.
    #[must_use]
    pub fn waiting_intents(&self) -> Vec<WaitingSummary> {
        let summary = |escalated: Escalated| WaitingSummary {
            call: escalated.call().clone(),
            verdict: escalated.verdict().clone(),
            expires_at: escalated.expires_at(),
        };
        let undecided = self.escalations.undecided(self.clock.now());
        let mut waiting = undecided.into_iter().map(summary).collect::<Vec<_>>();
        waiting.sort_by_key(|waiting| (waiting.expires_at, waiting.call.intent));
        waiting
    }

    /// What an approval of a waiting intent would run, under `manifest` in place of the verdict's. `None` if the intent
    /// does not wait.
    #[must_use]
    pub fn preview_decision(&self, intent: IntentId, manifest: Option<&Manifest>) -> Option<DecisionPreview> {
        Some(self.preview(&self.escalations.find_undecided(intent)?, manifest))
    }

    pub(super) fn preview(&self, escalated: &Escalated, manifest: Option<&Manifest>) -> DecisionPreview {
        let (call, verdict) = (escalated.call(), escalated.verdict());
        // Every approval so far limits the run.
        let approvals = self.escalations.partial_approvals(call.intent);
        let proposed = manifest.unwrap_or(&verdict.manifest);
        let narrowed = approvals.iter().fold(proposed.clone(), |narrowed, approval| {
            approval_rules::intersect(&narrowed, approval.manifest.as_ref().unwrap_or(&verdict.manifest))
        });
        let directive =
            Directive { intent: call.intent, approved: true, manifest: Some(narrowed), reason: None };
        let approved_by = approvals.into_iter().map(|approval| approval.by).collect::<Vec<_>>();
        let rules = &self.settings.approval_rules;
        let required = approval_rules::required_approvals(rules, &call.tool, escalated.risk_score());
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

    /// Checks that a preview made now has the basis that a person was shown.
    pub(super) fn check_basis(
        &self,
        escalated: &Escalated,
        manifest: Option<&Manifest>,
        shown: DecisionBasis,
    ) -> Result<(), Fault> {
        if self.preview(escalated, manifest).basis == shown {
            return Ok(());
        }
        Err(Fault::InvalidRequest(
            "something that you were shown has changed: the tool, a policy, a limit or an approval. Look at the intent \
             again before you decide"
                .to_owned(),
        ))
    }
}
