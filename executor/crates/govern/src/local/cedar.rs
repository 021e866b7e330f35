//! Policies in Cedar: the set that is in force for the tools of the executor, and its decisions.
//!
//! ```text
//! folder ─ read ─▶ CedarPolicies ─ use_tools ─▶ InForce ─ a call ─▶ rule of its tool ─▶ `decide::decide_under`
//!                                     │            ▲        └─ each observed file: what it would decide
//!                                     └─ an error: the set in force stays, and the error is shown
//! ```
//! Every call is denied before the first set compiles, and calls of a tool that the set in force does not know.
//! An observed file changes no outcome: it is evaluated in a set of its own, after the verdict is made.

#[cfg(test)]
mod convert_tests;
mod trial;

pub use trial::{Trial, TrialOutcome, risk_of};

use super::decide::{Demand, Setting, decide_under, denial};
use super::policy_set::LoadedPolicy;
use super::risk;
use crate::arguments::{ArgumentRole, Arguments};
use crate::rule::{NormalizedText, normalize};
use a2g_policy::{
    Allowed, Answer, CallFacts, CedarSet, CompiledPolicies, Denied, Past, PolicySources, RuleInfo, RuleName,
};
use a2g_types::call::Call;
use a2g_types::error_chain::ErrorChain;
use a2g_types::ident::{AgentDid, ToolName, excerpt};
use a2g_types::tool::{Descriptor, Digest};
use a2g_types::verdict::{Decision, Observation, Policy, Rationale, Risk, Verdict};
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use time::OffsetDateTime;

/// Number of digits of a set's hash in the version of its rules: enough to tell two sets of an operator apart.
const VERSION_DIGITS: usize = 12;

/// The policies of a folder, and the set of them that is in force.
#[derive(Debug)]
pub struct CedarPolicies {
    folder: PathBuf,
    sources: PolicySources,
    /// The names of the files that change no outcome.
    observe: Vec<String>,
    /// The tools of the latest set, compiled or not. Locked while a set is compiled.
    compiled_for: Mutex<Option<Vec<Descriptor>>>,
    in_force: ArcSwapOption<InForce>,
    /// The reason why the latest set did not compile.
    error: ArcSwapOption<String>,
    counts: Mutex<Counts>,
}

/// A compiled set.
#[derive(Debug)]
struct InForce {
    policies: CompiledPolicies,
    since: OffsetDateTime,
}

/// The decisions so far.
#[derive(Debug, Default)]
struct Counts {
    /// For each rule, the number of calls on which it decided, or would have decided.
    rules: BTreeMap<RuleName, u64>,
    /// By the name of each observed file.
    observed: BTreeMap<String, ObservedCounts>,
}

/// The number of calls that an observed file would have decided otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObservedCounts {
    /// All calls.
    pub calls: u64,
    /// Those that it would have denied, and that were not.
    pub denied: u64,
    /// Those that it would not have denied, and that were.
    pub allowed: u64,
    /// Those that would have had another decision that is not a denial either.
    pub otherwise: u64,
}

/// The set in force, for people.
#[derive(Debug, Clone)]
pub struct PolicyOverview {
    /// The folder of the policies.
    pub folder: PathBuf,
    /// The hash of the set, and the time from which it is in force; `None` if no set has compiled.
    pub in_force: Option<(Digest, OffsetDateTime)>,
    /// The reason why the latest set did not compile.
    pub error: Option<Arc<String>>,
    /// Its rules, by file and line.
    pub rules: Vec<ListedRule>,
    /// The observed files.
    pub observed: Vec<(String, ObservedCounts)>,
}

/// A rule of the set in force, for people.
#[derive(Debug, Clone)]
pub struct ListedRule {
    /// Its place.
    pub name: RuleName,
    /// `true` for a `permit`, `false` for a `forbid`.
    pub is_permit: bool,
    /// `true` if it changes no outcome.
    pub is_observed: bool,
    /// Its text, with its annotations.
    pub text: String,
    /// The number of calls on which it decided, or would have decided if it is observed.
    pub decided: u64,
}

/// The decision of one set.
struct Decided {
    verdict: Verdict,
    decided_by: Vec<RuleName>,
}

/// A call, with what all sets read of it.
struct Question<'a> {
    call: &'a Call,
    arguments: &'a Arguments<'a>,
    risk: &'a Risk,
    facts: &'a CallFacts<'a>,
    setting: &'a Setting<'a>,
}

impl CedarPolicies {
    pub(super) fn new(folder: PathBuf, sources: PolicySources, observe: Vec<String>) -> Self {
        Self {
            folder,
            sources,
            observe,
            compiled_for: Mutex::default(),
            in_force: ArcSwapOption::empty(),
            error: ArcSwapOption::empty(),
            counts: Mutex::default(),
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Compiles the policies for these tools, unless they are those of the latest set. If that fails, the set in force
    /// stays in force.
    pub(super) fn use_tools<'a>(&self, tools: impl IntoIterator<Item = &'a Descriptor>, now: OffsetDateTime) {
        let tools = tools.into_iter().cloned().collect::<Vec<_>>();
        let mut compiled_for = self.compiled_for.lock();
        if compiled_for.as_ref() == Some(&tools) {
            return;
        }
        match CompiledPolicies::compile(&self.sources, &self.observe, &tools) {
            Ok(policies) => {
                let rules = policies.enforced.rules().count();
                let observed = policies.observed.len();
                tracing::info!(folder = %self.folder.display(), rules, observed, "policies in Cedar");
                self.in_force.store(Some(Arc::new(InForce { policies, since: now })));
                self.error.store(None);
            }
            Err(error) => {
                let consequence = match &*self.in_force.load() {
                    Some(_) => "the earlier set stays in force, and denies tools that it does not know",
                    None => "every call is denied",
                };
                let text = ErrorChain(&error).to_string();
                tracing::error!(folder = %self.folder.display(), error = text, "the policies do not fit the tools: {consequence}");
                self.error.store(Some(Arc::new(text)));
            }
        }
        *compiled_for = Some(tools);
    }

    /// The reason why the latest set did not compile.
    #[must_use]
    pub fn error(&self) -> Option<Arc<String>> {
        self.error.load_full()
    }

    /// Returns `true` if no set has compiled, so that every call is denied.
    #[must_use]
    pub fn denies_everything(&self) -> bool {
        self.in_force.load().is_none()
    }

    pub(super) fn may_reach(&self, agent: &AgentDid, tool: &ToolName) -> bool {
        let in_force = self.in_force.load();
        in_force.as_ref().is_some_and(|in_force| in_force.policies.enforced.may_reach(agent, tool))
    }

    /// The set in force, for people.
    #[must_use]
    pub fn overview(&self) -> PolicyOverview {
        let in_force = self.in_force.load_full();
        let counts = self.counts.lock();
        let enforced = in_force.iter().flat_map(|in_force| in_force.policies.enforced.rules());
        let observed = in_force.iter().flat_map(|in_force| &in_force.policies.observed);
        // An observed set has the rules that are enforced, too.
        let observed =
            observed.flat_map(|(file, set)| set.rules().filter(move |rule| rule.name.file == *file));
        let listed = |is_observed: bool| {
            let decided = |name: &RuleName| counts.rules.get(name).copied().unwrap_or_default();
            move |rule: RuleInfo<'_>| ListedRule {
                name: rule.name.clone(),
                is_permit: rule.is_permit,
                is_observed,
                text: rule.text.to_owned(),
                decided: decided(rule.name),
            }
        };
        let mut rules = enforced.map(listed(false)).chain(observed.map(listed(true))).collect::<Vec<_>>();
        rules.sort_by(|one, other| one.name.cmp(&other.name));
        let of_file = |file: &String| (file.clone(), counts.observed.get(file).copied().unwrap_or_default());
        PolicyOverview {
            folder: self.folder.clone(),
            in_force: in_force.as_ref().map(|set| (set.policies.enforced.hash(), set.since)),
            error: self.error(),
            rules,
            observed: self.observe.iter().map(of_file).collect(),
        }
    }

    /// Decides on a call, and records which rules decided and what the observed files would have decided.
    pub(super) fn decide(&self, call: &Call, setting: &Setting<'_>) -> Verdict {
        let risk = risk::assess(call);
        let Some(in_force) = self.in_force.load_full() else {
            let reason = "the policies of this governor do not fit its tools, so every call is denied: the operator finds the \
                          reason in the log, and on the console";
            return denial(call, risk, reason.to_owned());
        };
        let CompiledPolicies { enforced, observed } = &in_force.policies;
        let arguments = Arguments::of(&call.arguments);
        let mentions_text = enforced.mentions_text() || observed.iter().any(|(_, set)| set.mentions_text());
        let text = mentions_text.then(|| normalized_text(&arguments));
        let facts = facts(call, &arguments, &risk, text.as_deref(), setting);
        let question = Question { call, arguments: &arguments, risk: &risk, facts: &facts, setting };
        let Decided { mut verdict, decided_by } = question.decide_by(enforced);
        let would = observed.iter().map(|(file, set)| (file, question.decide_by(set))).collect::<Vec<_>>();
        self.count(&decided_by, verdict.decision, &would);
        let names = |rules: &[RuleName]| rules.iter().map(RuleName::to_string).collect::<Vec<_>>();
        verdict.rationale = Rationale {
            decided_by: names(&decided_by),
            observed: would
                .iter()
                .map(|(file, would)| Observation {
                    file: (*file).clone(),
                    decision: would.verdict.decision,
                    decided_by: names(&would.decided_by),
                })
                .collect(),
        };
        verdict
    }

    fn count(&self, decided_by: &[RuleName], decision: Decision, would: &[(&String, Decided)]) {
        let mut counts = self.counts.lock();
        let Counts { rules, observed } = &mut *counts;
        let of_observed = would.iter().flat_map(|(file, decided)| {
            // The others are those that are enforced.
            decided.decided_by.iter().filter(move |rule| rule.file == **file)
        });
        for rule in decided_by.iter().chain(of_observed) {
            match rules.get_mut(rule) {
                Some(count) => *count += 1,
                None => {
                    rules.insert(rule.clone(), 1);
                }
            }
        }
        for (file, decided) in would {
            let of_file = observed.entry((*file).clone()).or_default();
            of_file.calls += 1;
            let instead = decided.verdict.decision;
            match (decision == Decision::Denied, instead == Decision::Denied) {
                (false, true) => of_file.denied += 1,
                (true, false) => of_file.allowed += 1,
                (false, false) if instead != decision => of_file.otherwise += 1,
                (false, false) | (true, true) => {}
            }
        }
    }
}

impl Question<'_> {
    fn decide_by(&self, set: &CedarSet) -> Decided {
        self.decide_in(set, &self.setting.ledger.view(set, &self.call.agent)).0
    }

    /// As [`Self::decide_by`], in another past, and with what the policies give the call.
    fn decide_in(&self, set: &CedarSet, past: &dyn Past) -> (Decided, Option<Box<Allowed>>) {
        let Self { call, arguments, risk, facts, setting } = *self;
        if let Some(reason) = other_spelling(arguments) {
            return (Decided { verdict: denial(call, risk.clone(), reason), decided_by: Vec::new() }, None);
        }
        let allowed = match set.decide(facts, past) {
            Answer::Allowed(allowed) => allowed,
            Answer::Denied(Denied { reason, decided_by }) => {
                let verdict = denial(call, risk.clone(), reason);
                return (Decided { verdict, decided_by }, None);
            }
        };
        let decided_by = allowed.decided_by.clone();
        let version = set.hash().to_string().chars().take(VERSION_DIGITS).collect();
        let policy = Policy {
            agent: Some(call.agent.clone()),
            version,
            tools: BTreeMap::from([(call.tool.clone(), allowed.rule.clone())]),
            network: allowed.network.clone(),
            resources: allowed.resources.clone(),
            constitution_hash: None,
        };
        let demand = allowed.escalate.clone().map_or(Demand::None, Demand::Person);
        let verdict = match LoadedPolicy::of_cedar(policy) {
            Ok(entry) => decide_under(&entry, call, arguments, risk.clone(), demand, setting),
            Err(error) => denial(call, risk.clone(), error.to_string()),
        };
        let is_granted = verdict.decision != Decision::Denied;
        (Decided { verdict, decided_by }, is_granted.then_some(allowed))
    }
}

/// What policies may read of a call.
fn facts<'a>(
    call: &'a Call,
    arguments: &Arguments<'_>,
    risk: &Risk,
    text: Option<&'a str>,
    setting: &Setting<'_>,
) -> CallFacts<'a> {
    let sent = arguments.texts().iter().filter(|text| text.role != ArgumentRole::Joined);
    let longest = sent.map(|text| text.text.len()).max().unwrap_or_default();
    let (depth, parent) = parent_of(call);
    CallFacts {
        agent: &call.agent,
        tool: &call.tool,
        arguments: &call.arguments,
        paths: arguments.paths().filter_map(normalize).filter(|path| path.starts_with('/')).collect(),
        depth,
        // A governor that does not know its executors sees its own door only.
        door: setting.open.map(|_| call.door),
        is_in_session: call.session.is_some(),
        parent,
        risk_score: percent(risk.score),
        threats: threat_names(risk),
        now: setting.now,
        text,
        longest_text: u64::try_from(longest).unwrap_or(u64::MAX),
    }
}

/// The reason to deny a call with a path that has a shorter spelling: rules compare arguments as they are written, and
/// another spelling of the same file would pass them.
fn other_spelling(arguments: &Arguments<'_>) -> Option<String> {
    let absolute = arguments.paths().filter(|path| path.starts_with('/'));
    let mut spellings = absolute.filter_map(|path| Some((path, normalize(path)?)));
    let (path, shortest) = spellings.find(|(path, shortest)| *path != shortest.as_str())?;
    Some(format!("the path `{}` has a shorter spelling; write `{}`", excerpt(path), excerpt(&shortest)))
}

/// The number of runs above a call, and the tool of the run that makes it.
fn parent_of(call: &Call) -> (u32, Option<ToolName>) {
    if let Some(parent) = &call.parent {
        return (parent.depth, Some(parent.tool.clone()));
    }
    // A remote executor says it in the context, from which it removes what agents write there.
    let Some(parent) = call.context.as_ref().and_then(|context| context.get("parent")) else {
        return (0, None);
    };
    let depth = parent.get("depth").and_then(Value::as_u64).and_then(|depth| u32::try_from(depth).ok());
    let tool = parent.get("tool").and_then(Value::as_str).and_then(|tool| ToolName::parse(tool).ok());
    (depth.unwrap_or(u32::MAX), tool)
}

/// A score from 0 to 1 in hundredths, rounded. A score that is no number is the highest.
fn percent(score: f64) -> u8 {
    (0..=100_u8).rfind(|step| f64::from(*step) <= score.mul_add(100.0, 0.5)).unwrap_or(100)
}

/// The names of the heuristics that match.
fn threat_names(risk: &Risk) -> BTreeSet<String> {
    let named = risk.threats.iter().filter_map(|threat| threat.split_once(": "));
    named.map(|(name, _)| name.to_owned()).collect()
}

/// All texts of the arguments as `blocked_patterns` of a policy in JSON compare them, one a line.
fn normalized_text(arguments: &Arguments<'_>) -> String {
    let texts = arguments.texts().iter().map(|text| NormalizedText::of(&text.text).whole);
    texts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn a_score_is_rounded_to_hundredths() {
        for (score, hundredths) in
            [(0.0, 0), (0.05, 5), (0.149, 15), (0.754_9, 75), (0.755, 76), (1.0, 100), (f64::NAN, 100)]
        {
            assert_eq!(percent(score), hundredths, "{score}");
        }
    }
}
