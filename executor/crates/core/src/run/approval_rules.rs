//! The operator's rules about how many people have to approve an escalated intent.
//!
//! While an intent needs more approvals, those that it has are kept in memory only: after a restart, everybody has to
//! approve again. Nobody's approval counts twice, and nobody who may act for the intent's agent can approve.

use a2g_types::ident::ToolName;
use a2g_types::verdict::Manifest;

/// One rule (`[[approvals]]`). It applies to the calls of its tools with at least its risk.
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovalRule {
    /// The tools; empty for every tool.
    pub tools: Vec<ToolName>,
    /// The minimum risk score. A verdict without a score has the highest.
    pub min_risk: f64,
    /// The number of different people who have to approve.
    pub required: u32,
}

impl ApprovalRule {
    /// The maximum number of people that a rule may require.
    // All of them have to approve before the verdict expires, so a larger number is probably a mistake.
    pub const MAX_REQUIRED: u64 = 5;

    fn applies_to(&self, tool: &ToolName, risk: Option<f64>) -> bool {
        (self.tools.is_empty() || self.tools.contains(tool)) && risk.is_none_or(|risk| risk >= self.min_risk)
    }
}

/// The number of approvals that the strictest applicable rule requires. Without one, `None`: a single approval
/// suffices, also by somebody who may act for the agent.
pub(super) fn required_approvals(rules: &[ApprovalRule], tool: &ToolName, risk: Option<f64>) -> Option<u32> {
    rules.iter().filter(|rule| rule.applies_to(tool, risk)).map(|rule| rule.required).max()
}

/// The limits that both manifests allow. A pattern is kept if both have it, letter by letter.
pub(super) fn intersect(a: &Manifest, b: &Manifest) -> Manifest {
    fn narrower<T: Ord + Copy>(a: Option<T>, b: Option<T>) -> Option<T> {
        a.into_iter().chain(b).min()
    }
    let Manifest { max_memory, max_cpu, timeout, network_allowed, filesystem_scope } = a;
    let network = network_allowed.unwrap_or(false) && b.network_allowed.unwrap_or(false);
    Manifest {
        max_memory: narrower(*max_memory, b.max_memory),
        max_cpu: narrower(*max_cpu, b.max_cpu),
        timeout: narrower(*timeout, b.timeout),
        network_allowed: Some(network),
        filesystem_scope: filesystem_scope
            .iter()
            .filter(|pattern| b.filesystem_scope.contains(pattern))
            .cloned()
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        }
    }

    #[test]
    fn the_intersection_of_manifests_is_never_wider_than_either() {
        let memory = |mb| MemoryLimit::from_mb(mb).ok();
        let scope = |patterns: &[&str]| patterns.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let a = Manifest {
            max_memory: memory(16),
            network_allowed: Some(true),
            filesystem_scope: scope(&["/a/**", "/b/**"]),
            ..Manifest::default()
        };
        let b = Manifest {
            max_memory: None,
            network_allowed: None,
            filesystem_scope: scope(&["/b/**"]),
            ..a.clone()
        };
        let expected = Manifest {
            max_memory: memory(16),
            network_allowed: Some(false),
            filesystem_scope: scope(&["/b/**"]),
            ..Manifest::default()
        };
        assert_eq!((intersect(&a, &b), intersect(&b, &a)), (expected.clone(), expected));
    }
}
