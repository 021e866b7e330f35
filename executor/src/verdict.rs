//! What a governor says: verdicts and standing policies, as claims.
//!
//! Nothing here carries authority. A verdict becomes something that can run only in
//! [`crate::govern::admit`], and a limit only counts once [`crate::capability`] has met it with
//! the other layers.

use crate::ident::{AgentDid, IntentId, ToolName};
use crate::quantity::{CpuPercent, MemoryLimit, Timeout};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use strum::{IntoStaticStr, VariantArray};
use time::OffsetDateTime;

/// The four answers to an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "UPPERCASE")]
pub enum Decision {
    /// May run.
    Approved,
    /// Never runs.
    Denied,
    /// Waits for a person, who answers by `g2a/directive`.
    Escalate,
    /// May run when every condition is one that the executor can enforce.
    Conditional,
}

impl Decision {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// How bad a score is. The bounds are the reference implementation's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "UPPERCASE")]
pub enum RiskLevel {
    /// Below 0.4.
    Low,
    /// 0.4 and above.
    Medium,
    /// 0.7 and above.
    High,
    /// 0.9 and above.
    Critical,
}

impl RiskLevel {
    /// The level of a score from 0 to 1.
    #[must_use]
    pub fn of(score: f64) -> Self {
        if score >= 0.9 {
            Self::Critical
        } else if score >= 0.7 {
            Self::High
        } else if score >= 0.4 {
            Self::Medium
        } else {
            Self::Low
        }
    }

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A governor's estimate of an intent. Scores run from 0.0 (harmless) to 1.0.
#[derive(Debug, Clone, PartialEq)]
pub struct Risk {
    /// The combined score.
    pub score: f64,
    /// The level that the governor named.
    pub level: RiskLevel,
    /// The score of the governor's model, when it has one.
    pub model_score: Option<f64>,
    /// The score of the governor's rules, when it has any.
    pub heuristic_score: Option<f64>,
    /// What the governor saw, in its own words.
    pub threats: Vec<String>,
}

/// What a verdict grants. An absent number leaves the executor's own ceiling in force; an absent
/// scope or network grants nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest {
    /// The most memory.
    pub max_memory: Option<MemoryLimit>,
    /// The largest share of CPU.
    pub max_cpu: Option<CpuPercent>,
    /// The longest run.
    pub timeout: Option<Timeout>,
    /// Whether the network is on.
    pub network_allowed: Option<bool>,
    /// The filesystem patterns, as sent.
    pub filesystem_scope: Vec<String>,
}

/// A governor's answer to one intent.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The answer.
    pub decision: Decision,
    /// The intent that is answered.
    pub intent: IntentId,
    /// The governor's estimate, when it gave one.
    pub risk: Option<Risk>,
    /// What is granted.
    pub manifest: Manifest,
    /// Conditions, as sent.
    pub conditions: Vec<String>,
    /// The latest moment at which the guest may start. Absent only from a denial.
    pub expires_at: Option<OffsetDateTime>,
    /// Why, for people. Never interpreted.
    pub reason: Option<String>,
}

/// What came along to show who said a verdict: a claim as well, until [`crate::govern`] believes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Proof {
    /// A compact JWS (RFC 7515), as sent.
    pub compact: String,
    /// The verdict as sent, without a member `proof`: a governor's answer has it beside the others.
    pub verdict: Map<String, Value>,
}

/// What a person decided about an escalated intent (`g2a/directive`).
#[derive(Debug, Clone, PartialEq)]
pub struct Directive {
    /// The intent that waits.
    pub intent: IntentId,
    /// Whether it may run.
    pub approved: bool,
    /// A manifest that takes the place of the verdict's, when given.
    pub manifest: Option<Manifest>,
}

/// What a standing policy says about one tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolRule {
    /// Whether the tool may be used at all.
    pub allowed: bool,
    /// Patterns of paths that it may touch; `None` says nothing about paths.
    pub paths: Option<Vec<String>>,
    /// Patterns of paths that it may not touch.
    pub blocked_paths: Vec<String>,
    /// Texts that no argument may contain.
    pub blocked_patterns: Vec<String>,
    /// The longest string argument, in bytes.
    pub max_size_bytes: Option<u64>,
    /// The longest run.
    pub timeout: Option<Timeout>,
}

/// The network part of a standing policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkRule {
    /// Domains that may be reached. `None` says nothing; an empty list allows none.
    pub allowed_domains: Option<Vec<String>>,
    /// Domains that may not be reached. They win.
    pub blocked_domains: Vec<String>,
    /// The most requests a minute.
    pub max_requests_per_minute: Option<u64>,
}

/// The resource part of a standing policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResourceRule {
    /// The most memory.
    pub max_memory: Option<MemoryLimit>,
    /// The largest share of CPU.
    pub max_cpu: Option<CpuPercent>,
    /// The most disk, in MB.
    pub max_disk_mb: Option<u64>,
}

/// Standing limits for one agent (`g2a/policy`).
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The agent that it binds; `None` binds every agent, which only a policy file may say.
    pub agent: Option<AgentDid>,
    /// The governor's version of it.
    pub version: String,
    /// Per tool. A tool that is not listed is not allowed.
    pub tools: BTreeMap<ToolName, ToolRule>,
    /// The network part.
    pub network: NetworkRule,
    /// The resource part.
    pub resources: ResourceRule,
    /// The hash of the governor's constitution, as sent.
    pub constitution_hash: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn risk_levels_change_at_their_bounds() {
        let cases = [
            (0.0, RiskLevel::Low),
            (0.399, RiskLevel::Low),
            (0.4, RiskLevel::Medium),
            (0.7, RiskLevel::High),
            (0.899, RiskLevel::High),
            (0.9, RiskLevel::Critical),
            (1.0, RiskLevel::Critical),
        ];
        for (score, level) in cases {
            assert_eq!(RiskLevel::of(score), level, "{score}");
        }
    }
}
