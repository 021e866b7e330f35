//! From one call and one policy to one verdict.
//!
//! ```text
//! policy for the agent ─▶ tool allowed ─▶ constraints ─▶ risk ─┬─ >= 0.8 ──▶ DENIED
//!      │ none                 │ no            │ broken         ├─ >= 0.7 ──▶ ESCALATE
//!      └──────────────────────┴───────────────┴─▶ DENIED       ├─ >= 0.4 ──▶ CONDITIONAL
//!                                                              └─ below ───▶ APPROVED
//! ```
//! A manifest is the least that the policy and the arguments need: the patterns of the rule that the
//! path arguments touch, and no others.

use super::policy_set::Entry;
use super::{domains, risk};
use crate::call::Call;
use crate::capability::Area;
use crate::govern::arguments::Arguments;
use crate::govern::rule::Rule;
use crate::verdict::{Decision, Manifest, NetworkRule, Policy, Risk, ToolRule, Verdict};
use time::{Duration, OffsetDateTime};

/// How long after the decision a guest may still start. Long enough for a queue, short enough that
/// a forgotten approval is worth nothing.
pub(super) const VALID_FOR: Duration = Duration::minutes(5);

/// From here on an intent is denied, as in the reference implementation.
const DENY_FROM: f64 = 0.8;
/// From here on a person decides: the lower bound of HIGH.
const ESCALATE_FROM: f64 = 0.7;
/// From here on there are conditions: the lower bound of MEDIUM.
const CONDITIONS_FROM: f64 = 0.4;

/// What a tool may hand out under conditions: enough for an answer, too little for a database.
const CONDITIONAL_OUTPUT_BYTES: u64 = 64 * 1024;

/// The condition that no file is changed.
const READ_ONLY: &str = "read_only";

/// Decides about one call.
pub(super) fn decide(entry: Option<&Entry>, call: &Call, now: OffsetDateTime) -> Verdict {
    let risk = risk::assess(call);
    let arguments = Arguments::of(&call.arguments);
    match entry.ok_or_else(|| no_policy(call)).and_then(|entry| permit(entry, call, &arguments)) {
        Ok(permitted) => weigh(&permitted, call, &arguments, risk, now),
        Err(PolicyDenialError(reason)) => denied(call, risk, reason),
    }
}

/// Why a policy denies a call: the sentence that its agent is told.
struct PolicyDenialError(String);

/// A denial for this reason.
pub(super) fn denied(call: &Call, risk: Risk, reason: String) -> Verdict {
    Verdict {
        decision: Decision::Denied,
        intent: call.intent,
        risk: Some(risk),
        manifest: Manifest::default(),
        conditions: Vec::new(),
        expires_at: None,
        reason: Some(reason),
    }
}

/// A tool that the policy allows with these arguments.
struct Permitted<'a> {
    policy: &'a Policy,
    written: &'a ToolRule,
    rule: &'a Rule,
    /// What the arguments touch.
    areas: Vec<Area>,
}

fn no_policy(call: &Call) -> PolicyDenialError {
    let message = format!("no policy of this governor covers `{}`; add a policy file for it", call.agent);
    PolicyDenialError(message)
}

/// A policy as an operator finds it: by the agent that it names.
fn named(policy: &Policy) -> String {
    let version = &policy.version;
    match &policy.agent {
        Some(agent) => format!("the policy of `{agent}` (version `{version}`)"),
        None => format!("the policy of every agent (version `{version}`)"),
    }
}

fn permit<'a>(
    entry: &'a Entry,
    call: &Call,
    arguments: &Arguments<'_>,
) -> Result<Permitted<'a>, PolicyDenialError> {
    let Entry { policy, rules, hosts, .. } = entry;
    let tool = &call.tool;
    let about = |what: String| PolicyDenialError(format!("{} {what}", named(policy)));
    let Some((written, rule)) = policy.tools.get(tool).zip(rules.get(tool)) else {
        return Err(about(format!("does not list the tool `{tool}`; add it under `capabilities.tools`")));
    };
    if !written.allowed {
        return Err(about(format!(
            "does not allow the tool `{tool}`; set `capabilities.tools.{tool}.allowed` to true"
        )));
    }
    let refused =
        |breach: &dyn std::error::Error| about(format!("refuses these arguments of `{tool}`: {breach}"));
    rule.check_paths(arguments).map_err(|breach| refused(&breach))?;
    rule.check_texts(arguments).map_err(|breach| refused(&breach))?;
    domains::check(hosts, arguments).map_err(|error| refused(&error))?;
    let areas = rule.touched(arguments).map_err(|breach| refused(&breach))?;
    if policy.resources.max_disk_mb.is_some() && !risk::only_reads(tool) {
        return Err(about(format!(
            "sets `resources.max_disk_mb`, which no executor of this version can enforce, so `{tool}` may \
             not write; take the limit out, or use a tool that only reads"
        )));
    }
    Ok(Permitted { policy, written, rule, areas })
}

fn weigh(
    permitted: &Permitted<'_>,
    call: &Call,
    arguments: &Arguments<'_>,
    risk: Risk,
    now: OffsetDateTime,
) -> Verdict {
    let why = format!("the risk is {:.2} ({}): {}", risk.score, risk.level.as_str(), risk.threats.join("; "));
    let no_writing = permitted.policy.resources.max_disk_mb.is_some();
    let (decision, reason) = if risk.score >= DENY_FROM {
        return denied(call, risk, format!("{why}; change the arguments"));
    } else if risk.score >= ESCALATE_FROM {
        (Decision::Escalate, Some(format!("{why}; a person has to answer by `g2a/directive`")))
    } else if risk.score >= CONDITIONS_FROM {
        (Decision::Conditional, Some(format!("{why}; it may run under the conditions")))
    } else if no_writing {
        (Decision::Conditional, Some("a disk limit that cannot be enforced allows no writing".to_owned()))
    } else {
        (Decision::Approved, no_files(permitted, arguments))
    };
    let conditions = match decision {
        Decision::Conditional if risk.score >= CONDITIONS_FROM => conditions(call),
        // A person's approval does not lift the disk limit.
        Decision::Conditional | Decision::Escalate if no_writing => vec![READ_ONLY.to_owned()],
        Decision::Approved | Decision::Denied | Decision::Escalate | Decision::Conditional => Vec::new(),
    };
    Verdict {
        decision,
        intent: call.intent,
        risk: Some(risk),
        manifest: manifest(permitted),
        conditions,
        // People read it too: whole seconds are enough.
        expires_at: Some(now.checked_add(VALID_FOR).unwrap_or(now).truncate_to_second()),
        reason,
    }
}

fn manifest(permitted: &Permitted<'_>) -> Manifest {
    let Permitted { policy, written, rule: _, areas } = permitted;
    Manifest {
        max_memory: policy.resources.max_memory,
        max_cpu: policy.resources.max_cpu,
        timeout: written.timeout,
        network_allowed: Some(network_allowed(&policy.network)),
        filesystem_scope: areas.iter().map(Area::to_string).collect(),
    }
}

/// Only a list of domains that is not empty asks for the network. A manifest has no word for the list
/// itself, nor for a rate: an executor holds them by the standing policy.
fn network_allowed(rule: &NetworkRule) -> bool {
    rule.allowed_domains.as_ref().is_some_and(|domains| !domains.is_empty())
}

/// A rule without `paths` grants no files, which surprises whoever sends a path.
fn no_files(permitted: &Permitted<'_>, arguments: &Arguments<'_>) -> Option<String> {
    let surprised = permitted.rule.areas().is_none() && arguments.paths().next().is_some();
    surprised.then(|| {
        format!(
            "nothing of the filesystem is granted: {} names no `paths` for the tool",
            named(permitted.policy)
        )
    })
}

fn conditions(call: &Call) -> Vec<String> {
    let read_only = risk::only_reads(&call.tool).then(|| READ_ONLY.to_owned());
    let always = ["no_network".to_owned(), format!("max_output_bytes:{CONDITIONAL_OUTPUT_BYTES}")];
    read_only.into_iter().chain(always).collect()
}
