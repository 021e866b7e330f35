//! Decides on one call under one policy. Policies in Cedar make one of a single tool for each call (`cedar.rs`), with
//! what they demand themselves in place of the thresholds of the risk.
//!
//! ```text
//! policy for the agent ─▶ tool allowed ─▶ constraints ─▶ risk ─┬─ deny_from ───────▶ DENIED
//!      │ none                 │ no            │ broken         ├─ escalate_from ───▶ ESCALATE, or CONDITIONAL (`preview`)
//!      └──────────────────────┴───────────────┴─▶ DENIED       ├─ conditions_from ─▶ CONDITIONAL
//!                                                              └─ below ───────────▶ APPROVED
//! ```
//! A manifest grants the minimum for the arguments: the patterns of the rule that contain a path of the
//! arguments, and no others. The blocked paths in them are conditions, which the executor enforces at the files.
//!
//! A call that would be escalated may run at once under a rule with `preview`, if all that it can do waits for a person:
//! it is staged, no run of its agent has a network, and one person may decide on its file changes.

use super::domains::{self, DomainError};
use super::policy_set::{LoadedPolicy, PolicyOrigin};
use super::risk;
use crate::arguments::Arguments;
use crate::rule::{Breach, Rule};
use a2g_capability::Area;
use a2g_policy::Ledger;
use a2g_types::call::Call;
use a2g_types::ident::ToolName;
use a2g_types::limit::{ClaimedLimits, FileEffects, Layer, Limit};
use a2g_types::tool::CallTargets;
use a2g_types::verdict::{Decision, Manifest, NetworkRule, Policy, Rationale, Risk, ToolRule, Verdict};
use time::{Duration, OffsetDateTime};

/// Maximum time between the decision and the start of the guest: long enough for a queue, and short enough that
/// a forgotten approval expires.
pub(super) const VALID_FOR: Duration = Duration::minutes(5);

/// The lowest risk scores of the decisions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RiskThresholds {
    /// Minimum risk score for conditions.
    pub conditions_from: f64,
    /// Minimum risk score for a person's decision.
    pub escalate_from: f64,
    /// Minimum risk score for a denial.
    pub deny_from: f64,
}

impl Default for RiskThresholds {
    /// The lower bounds of MEDIUM and HIGH, and the score of a denial in the reference implementation.
    fn default() -> Self {
        Self { conditions_from: 0.4, escalate_from: 0.7, deny_from: 0.8 }
    }
}

/// The output limit under conditions: enough for an answer, too small for a database.
const CONDITIONAL_OUTPUT_BYTES: u64 = 64 * 1024;

const READ_ONLY: &str = "read_only";

/// The circumstances of a verdict, besides the policy and the call.
pub(super) struct Setting<'a> {
    /// The areas that the executor opens, if they are known; reasons name no others.
    pub(super) open: Option<&'a [Area]>,
    pub(super) thresholds: RiskThresholds,
    /// Says of a tool and a risk score if the executor wants the approval of several people.
    pub(super) needs_several: &'a (dyn Fn(&ToolName, f64) -> bool + Send + Sync),
    pub(super) now: OffsetDateTime,
    /// The earlier calls, which policies in Cedar may read.
    pub(super) ledger: &'a Ledger,
}

/// What a call demands, beyond the rule of its tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Demand {
    /// Nothing.
    None,
    /// The conditions of an uncertain call, for this reason.
    Conditions(String),
    /// A person, for this reason, which is a clause.
    Person(String),
    /// To be denied, for this reason.
    Denial(String),
}

impl Demand {
    fn of_risk(risk: &Risk, thresholds: RiskThresholds) -> Self {
        let RiskThresholds { conditions_from, escalate_from, deny_from } = thresholds;
        let text = risk_text(risk);
        if risk.score >= deny_from {
            let advice = if risk.threats.is_empty() {
                "`governor.deny_from` denies every call of this tool: ask the operator"
            } else {
                "change the arguments"
            };
            Self::Denial(format!("{text}; {advice}"))
        } else if risk.score >= escalate_from {
            Self::Person(text)
        } else if risk.score >= conditions_from {
            Self::Conditions(format!("{text}; it may run only under conditions"))
        } else {
            Self::None
        }
    }
}

pub(super) fn decide(entry: Option<&LoadedPolicy>, call: &Call, setting: &Setting<'_>) -> Verdict {
    let risk = risk::assess(call);
    let arguments = Arguments::of(&call.arguments);
    match entry {
        Some(entry) => {
            let demand = Demand::of_risk(&risk, setting.thresholds);
            decide_under(entry, call, &arguments, risk, demand, setting)
        }
        None => denial(call, risk, no_policy_reason(call)),
    }
}

/// Decides under the policy of an agent.
pub(super) fn decide_under(
    entry: &LoadedPolicy,
    call: &Call,
    arguments: &Arguments<'_>,
    risk: Risk,
    demand: Demand,
    setting: &Setting<'_>,
) -> Verdict {
    match permit(entry, call, arguments, setting.open) {
        Ok(permitted) => verdict_on(&permitted, call, arguments, risk, demand, setting),
        Err(PolicyDenialError(reason)) => denial(call, risk, reason),
    }
}

/// The reason why a policy denies a call, as a sentence for the agent.
struct PolicyDenialError(String);

pub(super) fn denial(call: &Call, risk: Risk, reason: String) -> Verdict {
    Verdict {
        decision: Decision::Denied,
        intent: call.intent,
        risk: Some(risk),
        manifest: Manifest::default(),
        conditions: Vec::new(),
        expires_at: None,
        reason: Some(reason),
        rationale: Rationale::default(),
    }
}

/// A call whose tool and arguments the policy allows.
struct PermittedCall<'a> {
    policy: &'a Policy,
    tool_rule: &'a ToolRule,
    rule: &'a Rule,
    /// The areas that the arguments need.
    areas: Vec<Area>,
    origin: PolicyOrigin,
}

fn no_policy_reason(call: &Call) -> String {
    format!(
        "no policy of this governor covers `{}`; ask the operator to add a policy file for it",
        call.agent
    )
}

/// The way to change a policy that no file has.
const OWN_POLICY_ADVICE: &str = "that policy is part of the program: to change it, write one of your own, and name its \
                                 folder in `governor.policies` (policies/README.md)";

/// The name of a policy in messages.
fn policy_label(policy: &Policy) -> String {
    let version = &policy.version;
    match &policy.agent {
        Some(agent) => format!("the policy of `{agent}` (version `{version}`)"),
        None => format!("the policy of every agent (version `{version}`)"),
    }
}

fn permit<'a>(
    entry: &'a LoadedPolicy,
    call: &Call,
    arguments: &Arguments<'_>,
    open: Option<&[Area]>,
) -> Result<PermittedCall<'a>, PolicyDenialError> {
    let LoadedPolicy { policy, rules, hosts, origin, .. } = entry;
    let tool = &call.tool;
    let denial_error = |reason: String| PolicyDenialError(format!("{} {reason}", policy_label(policy)));
    let Some((tool_rule, rule)) = policy.tools.get(tool).zip(rules.get(tool)) else {
        let remedy = match origin {
            PolicyOrigin::File | PolicyOrigin::McpCommand => {
                "use another one, or ask the operator to add it under `capabilities.tools`"
            }
            PolicyOrigin::Cedar => "use another one, or ask the operator to permit it",
            PolicyOrigin::Program => OWN_POLICY_ADVICE,
        };
        return Err(denial_error(format!("does not list the tool `{tool}`; {remedy}")));
    };
    if !tool_rule.allowed && *origin == PolicyOrigin::McpCommand {
        return Err(PolicyDenialError(format!(
            "`{tool}` needs a network, and `a2g-executor mcp` grants none without `--config`; do without it, or \
             configure a network and a policy for it (`network.allowed_domains`, `governor.policies`)"
        )));
    }
    if !tool_rule.allowed {
        return Err(denial_error(format!(
            "does not allow the tool `{tool}`; use another one, or ask the operator to set \
             `capabilities.tools.{tool}.allowed` to true"
        )));
    }
    let breach_error = |breach: &dyn std::error::Error| {
        let advice = match origin {
            PolicyOrigin::File | PolicyOrigin::McpCommand | PolicyOrigin::Cedar => String::new(),
            PolicyOrigin::Program => format!(" ({OWN_POLICY_ADVICE})"),
        };
        denial_error(format!("refuses these arguments of `{tool}`: {breach}{advice}"))
    };
    rule.check_paths(arguments, open).map_err(|breach| {
        let reason = match origin {
            PolicyOrigin::McpCommand => mcp_path_reason(&breach),
            PolicyOrigin::Cedar => cedar_path_reason(tool, &breach),
            PolicyOrigin::File | PolicyOrigin::Program => None,
        };
        reason.unwrap_or_else(|| breach_error(&breach))
    })?;
    rule.check_texts(arguments).map_err(|breach| breach_error(&breach))?;
    domains::check(hosts, arguments).map_err(|error| match origin {
        PolicyOrigin::Cedar => cedar_host_reason(tool, &error),
        PolicyOrigin::File | PolicyOrigin::Program | PolicyOrigin::McpCommand => breach_error(&error),
    })?;
    let areas = rule.areas_for(arguments, tool_rule.grants_all_paths);
    if policy.resources.max_disk_mb.is_some() && !risk::only_reads(tool) {
        return Err(denial_error(format!(
            "sets `resources.max_disk_mb`, which no executor of this version can enforce, so `{tool}` may \
             not write; remove the limit, or use a tool that only reads"
        )));
    }
    Ok(PermittedCall { policy, tool_rule, rule, areas, origin: *origin })
}

/// The reason why policies in Cedar refuse a path, which has no member of a policy file in it.
fn cedar_path_reason(tool: &ToolName, breach: &Breach) -> Option<PolicyDenialError> {
    let reason = if let Breach::Outside { path, usable } = breach {
        format!(
            "no policy permits `{tool}` the folder of `{path}`, but {usable}; name an absolute path inside, or ask the \
             operator for a `permit` of `Action::\"read\"` or `Action::\"write\"`"
        )
    } else if let Breach::Relative { path, usable } = breach {
        format!("`{path}` is not an absolute path; write it in full, inside {usable}")
    } else if let Breach::BlockedPath { path, pattern } = breach {
        format!(
            "the policies do not permit `{tool}` the files in `{pattern}`, such as `{path}`; use another path"
        )
    } else {
        return None;
    };
    Some(PolicyDenialError(reason))
}

/// The reason why policies in Cedar refuse a host.
fn cedar_host_reason(tool: &ToolName, error: &DomainError) -> PolicyDenialError {
    let (DomainError::Blocked(host)
    | DomainError::NotAllowed(host)
    | DomainError::OnlyHttps(host)
    | DomainError::OtherPort { host, port: _ }) = error;
    PolicyDenialError(format!(
        "no policy permits `{tool}` to reach `{host}` now; use another host, or ask the operator for a `permit` of \
         `Action::\"reach\"`"
    ))
}

/// The reason why `a2g-executor mcp` refuses a path, if it differs from the reason of a policy file.
fn mcp_path_reason(breach: &Breach) -> Option<PolicyDenialError> {
    let reason = if let Breach::Outside { path, usable } = breach {
        format!(
            "`{path}` lies outside {usable}, the only files that `a2g-executor mcp` lets tools use; name an absolute path \
             inside (in a container, its own paths count), or start it with the other folder in `--scope`"
        )
    } else if let Breach::Relative { path, usable } = breach {
        format!(
            "`{path}` is not an absolute path; write it in full, inside {usable} (`--scope` of `a2g-executor mcp`)"
        )
    } else if let Breach::BlockedPath { path, pattern } = breach {
        format!(
            "`{path}` is blocked (`{pattern}`): `a2g-executor mcp` keeps tools from its own files, and from places of \
             secrets unless it is started with `--with-secrets`; do without it, or ask the person"
        )
    } else {
        return None;
    };
    Some(PolicyDenialError(reason))
}

fn verdict_on(
    permitted: &PermittedCall<'_>,
    call: &Call,
    arguments: &Arguments<'_>,
    risk: Risk,
    demand: Demand,
    setting: &Setting<'_>,
) -> Verdict {
    let is_read_only = permitted.policy.resources.max_disk_mb.is_some();
    let preview = match &demand {
        Demand::Person(_) => Preview::of(permitted, call, risk.score, setting),
        Demand::None | Demand::Conditions(_) | Demand::Denial(_) => Preview::NotAsked,
    };
    // In Cedar, each call of a previewed run would be decided by itself, perhaps with a network.
    let forbids_calls = preview == Preview::Runs && permitted.origin == PolicyOrigin::Cedar;
    let call_conditions = call_conditions(permitted.tool_rule, forbids_calls);
    let of_requests = request_conditions(permitted);
    let effects = match preview {
        Preview::Runs => Some(FileEffects::Staged),
        Preview::NotAsked | Preview::Barred(_) => permitted.tool_rule.effects.unless_direct(),
    };
    let effects_condition = effects.map(|effects| format!("effects:{}", effects.as_str()));
    let blocked =
        permitted.rule.blocked_in(&permitted.areas).map(|pattern| format!("blocked_path:{pattern}"));
    let blocked = blocked.collect::<Vec<_>>();
    let is_uncertain = demand != Demand::None;
    let (decision, reason) = match demand {
        Demand::Denial(reason) => return denial(call, risk, reason),
        Demand::Person(reason) => (preview.decision(), Some(format!("{reason}; {}", preview.reason()))),
        Demand::Conditions(reason) => (Decision::Conditional, Some(reason)),
        Demand::None => {
            let limits = if is_read_only {
                let why = "the policy sets `resources.max_disk_mb`, which cannot be enforced, so the tool may not write";
                Some(why.to_owned())
            } else if !call_conditions.is_empty() {
                Some("the policy limits the tools that a run may call".to_owned())
            } else if let Some(effects) = effects {
                Some(format!("by the policy, {}", effects.summary()))
            } else if !blocked.is_empty() {
                Some("the policy blocks some of the paths in the granted folders".to_owned())
            } else {
                (!of_requests.is_empty()).then(|| "the policies name the hosts that it may reach".to_owned())
            };
            match limits {
                Some(reason) => (Decision::Conditional, Some(reason)),
                None => (Decision::Approved, missing_paths_notice(permitted, arguments)),
            }
        }
    };
    let mut conditions = match decision {
        Decision::Conditional if is_uncertain => conditions(call),
        // A person's approval does not lift the disk limit.
        Decision::Conditional | Decision::Escalate if is_read_only => vec![READ_ONLY.to_owned()],
        Decision::Approved | Decision::Denied | Decision::Escalate | Decision::Conditional => Vec::new(),
    };
    // A person's approval does not lift these either.
    let of_rule = call_conditions.into_iter().chain(effects_condition).chain(blocked).chain(of_requests);
    conditions.extend(of_rule);
    Verdict {
        decision,
        intent: call.intent,
        risk: Some(risk),
        manifest: manifest(permitted),
        conditions,
        // Whole seconds are easier to read and exact enough.
        expires_at: Some(setting.now.checked_add(VALID_FOR).unwrap_or(setting.now).truncate_to_second()),
        reason,
        rationale: Rationale::default(),
    }
}

/// An answer to a call that a person would have to approve: it may run first, so that the person decides on what it would
/// change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preview {
    /// The rule does not ask for it, or nobody has to approve the call.
    NotAsked,
    /// The call runs.
    Runs,
    /// The call waits for the person, for this reason, which is a clause.
    Barred(&'static str),
}

impl Preview {
    fn of(permitted: &PermittedCall<'_>, call: &Call, risk_score: f64, setting: &Setting<'_>) -> Self {
        let PermittedCall { policy, tool_rule, rule: _, areas, origin } = permitted;
        if !tool_rule.is_previewed {
            return Self::NotAsked;
        }
        let changes_nothing =
            risk::only_reads(&call.tool) || policy.resources.max_disk_mb.is_some() || areas.is_empty();
        // A remote executor says it in the context, where an agent can only bar its own preview.
        let is_nested = call.parent.is_some()
            || call.context.as_ref().is_some_and(|context| context.contains_key("parent"));
        // The network of the whole policy: the calls that the run makes are decided by the same policy.
        if allows_network(&policy.network) {
            Self::Barred(match origin {
                PolicyOrigin::Cedar => {
                    "the policies let it reach hosts, and nobody can take back what a run sends"
                }
                PolicyOrigin::File | PolicyOrigin::Program | PolicyOrigin::McpCommand => {
                    "the policy allows hosts in `allowed_domains`, and nobody can take back what a run sends"
                }
            })
        } else if changes_nothing {
            Self::Barred("it is granted no file that it may change, so it would leave nothing to decide on")
        } else if is_nested {
            Self::Barred("the run that makes this call would go on as if its changes were in force")
        } else if (setting.needs_several)(&call.tool, risk_score) {
            Self::Barred("`[[approvals]]` want several people, and one person decides on file changes")
        } else {
            Self::Runs
        }
    }

    /// The decision on a call that a person has to approve.
    fn decision(self) -> Decision {
        match self {
            Self::Runs => Decision::Conditional,
            Self::NotAsked | Self::Barred(_) => Decision::Escalate,
        }
    }

    /// The consequence for such a call, as a clause.
    fn reason(self) -> String {
        match self {
            Self::NotAsked => "a person has to decide".to_owned(),
            Self::Runs => "by the policy (`preview`), it runs at once, without a network, and a person has to decide on its \
                           file changes before they are in force"
                .to_owned(),
            Self::Barred(why) => format!("a person has to decide before it runs (no `preview`: {why})"),
        }
    }
}

/// The risk and its threats, as the beginning of a reason. The score of a tool alone comes without a threat.
fn risk_text(risk: &Risk) -> String {
    let Risk { score, level, threats, .. } = risk;
    let text = format!("the risk is {score:.2} ({})", level.as_str());
    if threats.is_empty() { text } else { format!("{text}: {}", threats.join("; ")) }
}

/// The conditions of a rule that limits calls to other tools, or of a run that may make none.
fn call_conditions(rule: &ToolRule, forbids_calls: bool) -> Vec<String> {
    let named = rule.calls.as_ref().filter(|calls| **calls != CallTargets::All).map(CallTargets::to_names);
    // No condition can name an empty list.
    let no_calls = (forbids_calls || named.as_ref().is_some_and(Vec::is_empty)).then_some(0);
    let claimed = rule.limits.narrower(&ClaimedLimits::default().with_amount(Limit::Calls, no_calls));
    // The manifest has the limits that a verdict sets.
    let others = claimed.claimed().filter(|(row, _)| !row.is_set_by(Layer::Verdict));
    let others = others.map(|(row, amount)| format!("{}:{}", row.key(), row.to_number(amount)));
    named.into_iter().flatten().map(|name| format!("calls:{name}")).chain(others).collect()
}

/// The conditions that name the hosts and secrets of policies in Cedar, which no standing policy enforces.
fn request_conditions(permitted: &PermittedCall<'_>) -> Vec<String> {
    let NetworkRule { allowed_domains, blocked_domains, max_requests_per_minute } = &permitted.policy.network;
    match permitted.origin {
        PolicyOrigin::Cedar if allows_network(&permitted.policy.network) => {
            let allowed = allowed_domains.iter().flatten().map(|pattern| format!("host:{pattern}"));
            let blocked = blocked_domains.iter().map(|pattern| format!("blocked_host:{pattern}"));
            let rate = max_requests_per_minute.map(|rate| format!("max_requests_per_minute:{rate}"));
            let secrets = permitted.tool_rule.secrets.as_ref();
            // No condition can name an empty set.
            let none = secrets.filter(|names| names.is_empty()).map(|_| "no_secrets".to_owned());
            let named = secrets.into_iter().flatten().map(|name| format!("secrets:{name}"));
            allowed.chain(blocked).chain(rate).chain(none).chain(named).collect()
        }
        PolicyOrigin::Cedar | PolicyOrigin::File | PolicyOrigin::Program | PolicyOrigin::McpCommand => {
            Vec::new()
        }
    }
}

fn manifest(permitted: &PermittedCall<'_>) -> Manifest {
    let PermittedCall { policy, tool_rule, rule: _, areas, origin: _ } = permitted;
    let claimed = policy.resources.limits.narrower(&tool_rule.limits);
    let limits = claimed.claimed().filter(|(row, _)| row.is_set_by(Layer::Verdict));
    Manifest {
        limits: limits.map(|(row, amount)| (row.limit, amount)).collect(),
        network_allowed: Some(allows_network(&policy.network)),
        filesystem_scope: areas.iter().map(Area::to_string).collect(),
    }
}

/// `true` for a non-empty list of domains. A manifest can express neither the list nor a rate; the executor
/// enforces them by the standing policy.
fn allows_network(rule: &NetworkRule) -> bool {
    rule.allowed_domains.as_ref().is_some_and(|domains| !domains.is_empty())
}

/// A notice for a path argument under a rule without `paths`, which grants no files.
fn missing_paths_notice(permitted: &PermittedCall<'_>, arguments: &Arguments<'_>) -> Option<String> {
    let is_needed = permitted.rule.areas().is_none() && arguments.paths().next().is_some();
    is_needed.then(|| match permitted.origin {
        PolicyOrigin::Cedar => {
            "no part of the filesystem is granted: no policy permits the tool a folder".to_owned()
        }
        PolicyOrigin::File | PolicyOrigin::Program | PolicyOrigin::McpCommand => format!(
            "no part of the filesystem is granted: {} names no `paths` for the tool",
            policy_label(permitted.policy)
        ),
    })
}

fn conditions(call: &Call) -> Vec<String> {
    let read_only = risk::only_reads(&call.tool).then(|| READ_ONLY.to_owned());
    let always = ["no_network".to_owned(), format!("max_output_bytes:{CONDITIONAL_OUTPUT_BYTES}")];
    read_only.into_iter().chain(always).collect()
}
