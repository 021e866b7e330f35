//! The operator's rules about how many people have to approve an escalated intent, and the limits that all of them allow.
//!
//! The approvals of an intent that needs more of them are kept in memory, and by a fleet in what it stores of the intent.
//! Without a fleet, everybody has to approve again after a restart. Nobody's approval counts twice, and nobody who may act
//! for the intent's agent can approve.

use super::decision_basis::DecisionBasis;
use a2g_govern::DecisionAuthor;
use a2g_types::grant::GrantSummary;
use a2g_types::ident::ToolName;
use a2g_types::verdict::Manifest;

/// One rule (`[[approvals]]`). It applies to those calls of its tools that have at least the risk `min_risk`.
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovalRule {
    /// The tools; empty for every tool.
    pub tools: Vec<ToolName>,
    /// The minimum risk score. A verdict without a score counts as one with the highest.
    pub min_risk: f64,
    /// The number of different people who have to approve.
    pub required: u32,
}

impl ApprovalRule {
    /// The maximum number of people that a rule may require.
    // All of them have to approve before the verdict expires, so a larger number is probably a mistake.
    pub const MAX_REQUIRED: u64 = 5;

    /// `true` if a rule applies to a call of the tool with this risk score, and requires several people.
    #[must_use]
    pub fn needs_several(rules: &[Self], tool: &ToolName, risk: f64) -> bool {
        required_approvals(rules, tool, Some(risk)).is_some_and(|required| required > 1)
    }

    fn applies_to(&self, tool: &ToolName, risk: Option<f64>) -> bool {
        (self.tools.is_empty() || self.tools.contains(tool)) && risk.is_none_or(|risk| risk >= self.min_risk)
    }
}

/// The number of approvals that the strictest applicable rule requires. Without one, `None`: a single approval
/// suffices, also by somebody who may act for the agent.
pub(super) fn required_approvals(rules: &[ApprovalRule], tool: &ToolName, risk: Option<f64>) -> Option<u32> {
    rules.iter().filter(|rule| rule.applies_to(tool, risk)).map(|rule| rule.required).max()
}

/// The reason why an approval does not count under a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalBar {
    /// The person may act for the intent's agent.
    OwnAgent,
    /// The person has approved the intent before.
    AlreadyApproved,
    /// The governor approves, and a rule requires people.
    Governor,
}

/// An approval of an intent that needs more of them.
#[derive(Debug, Clone)]
pub(super) struct PartialApproval {
    /// The person. The approval counts only while they may still decide.
    pub(super) author: DecisionAuthor,
    /// The limits that the person chose; `None` for those of the verdict.
    pub(super) manifest: Option<Manifest>,
    /// The grant that the person approved. The run never gets more.
    pub(super) grant: GrantSummary,
    /// The hash of what the person was shown, if a page showed it.
    pub(super) basis: Option<DecisionBasis>,
}

/// The limits of a verdict, narrowed by every manifest. A scope equal to the verdict's narrows nothing. Of scopes that
/// differ from it, only the patterns remain that all of them have.
pub(super) fn narrow<'a>(verdict: &Manifest, manifests: impl IntoIterator<Item = &'a Manifest>) -> Manifest {
    manifests.into_iter().fold(verdict.clone(), |narrowed, manifest| {
        let Manifest { limits, network_allowed, filesystem_scope } = manifest;
        let network = network_allowed.unwrap_or(false) && narrowed.network_allowed.unwrap_or(false);
        let scope = if *filesystem_scope == verdict.filesystem_scope {
            narrowed.filesystem_scope
        } else if narrowed.filesystem_scope == verdict.filesystem_scope {
            filesystem_scope.clone()
        } else {
            let mut both = narrowed.filesystem_scope;
            both.retain(|pattern| filesystem_scope.contains(pattern));
            both
        };
        Manifest {
            limits: narrowed.limits.narrower(limits),
            network_allowed: Some(network),
            filesystem_scope: scope,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::limit::ClaimedLimits;
    use a2g_types::quantity::MemoryLimit;

    #[test]
    fn the_strictest_rule_counts() {
        let [read, write] = ["read_file", "write_file"].map(|name| ToolName::parse(name).unwrap());
        let rule = |tools: &[&ToolName], min_risk, required| ApprovalRule {
            tools: tools.iter().map(|tool| (*tool).clone()).collect(),
            min_risk,
            required,
        };
        let rules = [rule(&[], 0.9, 2), rule(&[&write], 0.5, 3), rule(&[&write], 0.0, 1)];
        for (tool, risk, expected) in [
            (&read, Some(0.8), None),
            (&read, Some(0.9), Some(2)),
            (&read, None, Some(2)),
            (&write, Some(0.4), Some(1)),
            (&write, Some(0.5), Some(3)),
        ] {
            assert_eq!(required_approvals(&rules, tool, risk), expected, "{tool} {risk:?}");
            if let Some(score) = risk {
                let several = expected.is_some_and(|required| required > 1);
                assert_eq!(ApprovalRule::needs_several(&rules, tool, score), several, "{tool} {score}");
            }
        }
    }

    #[test]
    fn every_manifest_narrows_the_verdict() {
        let memory = |mb| ClaimedLimits::default().with(MemoryLimit::from_mb(mb).ok());
        let manifest = |mb, network, scope: &[&str]| Manifest {
            limits: memory(mb),
            network_allowed: network,
            filesystem_scope: scope.iter().map(|text| (*text).to_owned()).collect(),
        };
        let verdict = manifest(64, Some(true), &["/**"]);
        let [first, second] = [manifest(16, Some(true), &["/a/**", "/b/**"]), manifest(32, None, &["/b/**"])];
        let unchanged = manifest(64, Some(true), &["/**"]);
        let narrowed = |manifests: &[&Manifest]| narrow(&verdict, manifests.iter().copied());
        assert_eq!(narrowed(&[]), verdict);
        assert_eq!(narrowed(&[&unchanged]), verdict);
        assert_eq!(narrowed(&[&first, &unchanged]), first);
        let both = manifest(16, Some(false), &["/b/**"]);
        assert_eq!((narrowed(&[&first, &second]), narrowed(&[&second, &first])), (both.clone(), both));
    }
}
