//! The messages of a governor, as received: verdicts, directives and standing policies.
//!
//! No type here carries authority. A verdict only becomes runnable in `a2g_govern::admit`, and a limit only takes
//! effect once `a2g_capability` has combined it with the other layers.

use crate::ident::{AgentDid, IntentId, SecretName, ToolName};
use crate::limit::{ClaimedLimits, FileEffects};
use crate::stop::OperatorReason;
use crate::tool::{CallTargets, Digest};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use strum::{IntoStaticStr, VariantArray};
use time::OffsetDateTime;

/// The possible answers to an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "UPPERCASE")]
pub enum Decision {
    /// The intent may run.
    Approved,
    /// The intent never runs.
    Denied,
    /// The intent waits for a person, who answers by `g2a/directive`.
    Escalate,
    /// The intent may run if the executor can enforce every condition.
    Conditional,
}

impl Decision {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The severity of a risk score. The bounds are those of the reference implementation.
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
    pub fn from_score(score: f64) -> Self {
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

    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A governor's estimate of the risk of an intent. Scores run from 0.0 (harmless) to 1.0.
#[derive(Debug, Clone, PartialEq)]
pub struct Risk {
    /// The combined score.
    pub score: f64,
    /// The level that the governor named.
    pub level: RiskLevel,
    /// The score of the governor's model; `None` if the governor has no model.
    pub model_score: Option<f64>,
    /// The score of the governor's rules; `None` if the governor has no rules.
    pub heuristic_score: Option<f64>,
    /// The threats that the governor detected, in its own words.
    pub threats: Vec<String>,
}

/// The capabilities that a verdict grants. An absent number leaves the executor's own ceiling effective; an absent
/// scope or network grants nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest {
    /// The limits of the run.
    pub limits: ClaimedLimits,
    /// `true` if the run may use the network.
    pub network_allowed: Option<bool>,
    /// The patterns of the files that the run may access, as sent.
    pub filesystem_scope: Vec<String>,
}

/// A governor's answer to one intent.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The decision on the intent.
    pub decision: Decision,
    /// The intent that the verdict answers.
    pub intent: IntentId,
    /// The governor's estimate of the risk, if it sent one.
    pub risk: Option<Risk>,
    /// The granted capabilities.
    pub manifest: Manifest,
    /// The conditions under which the intent may run, as sent.
    pub conditions: Vec<String>,
    /// The latest time at which the guest may start. Absent only from a denial.
    pub expires_at: Option<OffsetDateTime>,
    /// The reason, for people. Never interpreted.
    pub reason: Option<String>,
    /// The rules that decided, for people. Never interpreted.
    pub rationale: Rationale,
}

/// The rules of policies behind a verdict, if its governor names them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rationale {
    /// The names of the rules that decided, such as `mail.cedar:12`.
    pub decided_by: Vec<String>,
    /// What policy files that change no outcome would have decided.
    pub observed: Vec<Observation>,
}

impl Rationale {
    /// Returns `true` if it names nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { decided_by, observed } = self;
        decided_by.is_empty() && observed.is_empty()
    }
}

/// The decision that a call would have got with one more policy file in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// The name of the file.
    pub file: String,
    /// The decision.
    pub decision: Decision,
    /// The names of the rules that would have decided.
    pub decided_by: Vec<String>,
}

/// The proof of a verdict's origin. It is untrusted until `a2g_govern` has verified it.
#[derive(Debug, Clone, PartialEq)]
pub struct Proof {
    /// A compact JWS (RFC 7515), as sent.
    pub compact: String,
    /// The verdict as sent, without its member `proof`.
    pub verdict: Map<String, Value>,
}

/// A person's decision on an escalated intent (`g2a/directive`).
#[derive(Debug, Clone, PartialEq)]
pub struct Directive {
    /// The escalated intent.
    pub intent: IntentId,
    /// `true` if the intent may run.
    pub approved: bool,
    /// The manifest that replaces the verdict's; `None` keeps the verdict's.
    pub manifest: Option<Manifest>,
    /// The person's reason for a denial, which the agent is told.
    pub reason: Option<OperatorReason>,
    /// For an approval of file changes that wait: their digest, as it was shown.
    pub digest: Option<Digest>,
}

/// The rules of a standing policy for one tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolRule {
    /// `true` if the agent may use the tool.
    pub allowed: bool,
    /// Patterns of the paths that the tool may access; `None` leaves paths to the other layers.
    pub paths: Option<Vec<String>>,
    /// Patterns of the paths that the tool may not access.
    pub blocked_paths: Vec<String>,
    /// Texts that no argument may contain.
    pub blocked_patterns: Vec<String>,
    /// Maximum length of a string argument in bytes.
    pub max_size_bytes: Option<u64>,
    /// The time at which the file changes of a run take effect; direct leaves it to the other layers.
    pub effects: FileEffects,
    /// The limits of a run of the tool.
    pub limits: ClaimedLimits,
    /// The tools that a run of the tool may call; `None` leaves them to the other layers.
    pub calls: Option<CallTargets>,
    /// The secrets that requests of the tool may get; `None` leaves them to the other layers.
    pub secrets: Option<BTreeSet<SecretName>>,
    /// `true` if a manifest grants all of `paths`, and not only the parts that the arguments name: for a tool whose
    /// arguments are a program.
    pub grants_all_paths: bool,
    /// `true` if a call that would wait for a person runs at once instead, under `staged` and without a network, and a
    /// person decides on its file changes.
    pub is_previewed: bool,
}

/// The network part of a standing policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkRule {
    /// Domains that may be reached. `None` leaves them to the other layers; an empty list allows none.
    pub allowed_domains: Option<Vec<String>>,
    /// Domains that may not be reached. They take precedence over allowed ones.
    pub blocked_domains: Vec<String>,
    /// Maximum number of requests per minute.
    pub max_requests_per_minute: Option<u64>,
}

/// The resource part of a standing policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResourceRule {
    /// The limits of each run.
    pub limits: ClaimedLimits,
    /// Maximum disk space in MB. No executor can enforce this limit, so tools may not write if it is set.
    pub max_disk_mb: Option<u64>,
}

/// Standing limits for one agent (`g2a/policy`).
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The agent that the policy binds; `None` binds every agent, which only a policy file may specify.
    pub agent: Option<AgentDid>,
    /// The policy's version, as sent.
    pub version: String,
    /// The rules per tool. A tool that is not listed is not allowed.
    pub tools: BTreeMap<ToolName, ToolRule>,
    /// The limits on network access.
    pub network: NetworkRule,
    /// The limits on memory, CPU and disk.
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
            assert_eq!(RiskLevel::from_score(score), level, "{score}");
        }
    }
}
