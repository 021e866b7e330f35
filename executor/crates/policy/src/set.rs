//! A compiled set of policies in Cedar: what a decision reads.
//!
//! ```text
//! sources, tools ─▶ compile ─┬─ rules: each policy with its place and its annotations, as values
//!                            ├─ tools: the actions, and the types of their arguments
//!                            ├─ entities: tools with labels, agents with groups, folders and hosts with those above them
//!                            └─ caches: what may apply to one agent, action and resource
//! ```
//! Compiling refuses what would not mean what it says: an unknown tool, group or label, a folder that is a pattern, an
//! annotation out of range. After it, no text of a policy is interpreted again.
//!
//! Invariant: an agent that neither a policy nor `entities.json` names shares its cached parts with all others like it,
//! so callers who make up names use no more memory than one.

mod annotations;
mod bounded;
mod compile;
mod expression;
mod literals;
mod members;
mod remarks;
mod scope;
#[cfg(test)]
mod tests;

pub use remarks::RuleScope;

pub(crate) use annotations::Annotations;
pub(crate) use literals::{FolderLiteral, HostLiteral, Literals};

use crate::rule_name::RuleName;
use crate::schema::{EntityKind, EntityTypes, ToolShape};
use crate::source::{PolicyError, PolicySources};
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::tool::{Descriptor, Digest};
use bounded::Bounded;
use cedar_policy::{Effect, Entities, EntityUid, Policy, PolicyId, PolicySet, Schema};
use literals::Named;
use scope::Scope;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A compiled set of policies.
#[derive(Debug)]
pub struct CedarSet {
    schema: Schema,
    types: EntityTypes,
    entities: Entities,
    /// Every policy, for the case that a part of them cannot be made.
    all: Arc<PolicySet>,
    rules: BTreeMap<PolicyId, Rule>,
    tools: BTreeMap<ToolName, ToolShape>,
    /// The agents that a policy or `entities.json` names.
    named_agents: BTreeSet<AgentDid>,
    mentions_text: bool,
    hash: Digest,
    /// The policies of [`Self::policies_for`].
    slices: Bounded<SliceKey, Arc<PolicySet>>,
    /// The literals of [`Self::literals_for`].
    literals: Bounded<Option<AgentDid>, Arc<Literals>>,
}

/// What a policy takes in memory beside its text, in bytes.
const RULE_BYTES: usize = 1024;
/// What a literal takes in memory, in bytes.
const LITERAL_BYTES: usize = 256;

/// An agent (`None` for all that nobody names), an action and a resource.
type SliceKey = (Option<AgentDid>, EntityUid, EntityUid);

/// A policy of the set.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) name: RuleName,
    pub(crate) annotations: Annotations,
    policy: Policy,
    /// The text of the policy, with its annotations.
    text: String,
    scope: Scope,
    /// What it names, scope and conditions.
    named: Named,
    /// `true` if it may read `context.text`.
    mentions_text: bool,
}

impl Rule {
    /// Permit or forbid.
    pub(crate) fn effect(&self) -> Effect {
        self.policy.effect()
    }
}

/// A rule, for people.
#[derive(Debug, Clone, Copy)]
pub struct RuleInfo<'a> {
    /// Its place.
    pub name: &'a RuleName,
    /// `true` for a `permit`, `false` for a `forbid`.
    pub is_permit: bool,
    /// Its text, with its annotations.
    pub text: &'a str,
}

/// A set of policies that decides, and sets that are only observed.
#[derive(Debug)]
pub struct CompiledPolicies {
    /// The policies of all files that are not observed.
    pub enforced: CedarSet,
    /// For each observed file, its name and the set that would decide if it were enforced too.
    pub observed: Vec<(String, CedarSet)>,
}

impl CompiledPolicies {
    /// Compiles the policies of a folder.
    ///
    /// # Errors
    /// [`PolicyError`] if a file of `observe` is not there, or a set does not compile.
    pub fn compile<'a>(
        sources: &PolicySources,
        observe: &[String],
        tools: impl IntoIterator<Item = &'a Descriptor>,
    ) -> Result<Self, PolicyError> {
        sources.check_observed(observe)?;
        let tools = tools.into_iter().collect::<Vec<_>>();
        // Of two observed files, each is compared with what is enforced, and not with the other.
        let with = |own: Option<&str>| {
            CedarSet::compile(
                &sources.filtered(|name| Some(name) == own || !observe.iter().any(|other| other == name)),
                tools.iter().copied(),
            )
        };
        let observed = observe.iter().map(|name| with(Some(name.as_str())).map(|set| (name.clone(), set)));
        Ok(Self { enforced: with(None)?, observed: observed.collect::<Result<_, PolicyError>>()? })
    }
}

impl CedarSet {
    /// Compiles policies for these tools.
    ///
    /// # Errors
    /// [`PolicyError`], with the file and the line.
    pub fn compile<'a>(
        sources: &PolicySources,
        tools: impl IntoIterator<Item = &'a Descriptor>,
    ) -> Result<Self, PolicyError> {
        compile::compile_apart(sources, &tools.into_iter().collect::<Vec<_>>())
    }

    /// Its rules, by file and line.
    pub fn rules(&self) -> impl Iterator<Item = RuleInfo<'_>> {
        let mut rules = self.rules.values().collect::<Vec<_>>();
        rules.sort_by(|one, other| one.name.cmp(&other.name));
        rules.into_iter().map(|rule| RuleInfo {
            name: &rule.name,
            is_permit: rule.effect() == Effect::Permit,
            text: &rule.text,
        })
    }

    /// `true` if the scope of a permit matches calls of the tool by the agent: without one, every call is denied.
    #[must_use]
    pub fn may_reach(&self, agent: &AgentDid, tool: &ToolName) -> bool {
        self.tools.get(tool).is_some_and(|shape| {
            let policies = self.policies_for(agent, &shape.action, &shape.resource);
            policies.policies().any(|policy| policy.effect() == Effect::Permit)
        })
    }

    /// `true` if the tool was in the catalogue when the set was compiled.
    #[must_use]
    pub fn knows(&self, tool: &ToolName) -> bool {
        self.tools.contains_key(tool)
    }

    /// The digest of all sources and of the schema: it changes when a decision could change.
    #[must_use]
    pub fn hash(&self) -> Digest {
        self.hash
    }

    /// `true` if a policy may read `context.text`, which takes time to compute.
    #[must_use]
    pub fn mentions_text(&self) -> bool {
        self.mentions_text
    }

    /// The action and the arguments of a tool; `None` for a tool that the catalogue lacked when the set was compiled.
    pub(crate) fn tool(&self, tool: &ToolName) -> Option<&ToolShape> {
        self.tools.get(tool)
    }

    /// The rule of a policy of this set.
    pub(crate) fn rule(&self, id: &PolicyId) -> Option<&Rule> {
        self.rules.get(id)
    }

    /// The schema that requests have to fit.
    pub(crate) fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The entities that requests are evaluated with. An agent that is not in it has no groups.
    pub(crate) fn entities(&self) -> &Entities {
        &self.entities
    }

    /// The identifier of an entity.
    pub(crate) fn uid(&self, kind: EntityKind, id: &str) -> EntityUid {
        self.types.uid(kind, id)
    }

    /// The policies whose scopes match this agent, action and resource; conditions are not evaluated.
    pub(crate) fn policies_for(
        &self,
        agent: &AgentDid,
        action: &EntityUid,
        resource: &EntityUid,
    ) -> Arc<PolicySet> {
        let agent = self.named(agent);
        let key = (agent.cloned(), action.clone(), resource.clone());
        if let Some(policies) = self.slices.get(&key) {
            return policies;
        }
        let matches = |rule: &&Rule| {
            rule.scope.matches_action(action, &self.entities)
                && rule.scope.matches_resource(resource, &self.entities)
        };
        let matching = self.rules_for(agent).filter(matches).collect::<Vec<_>>();
        let weight = matching.iter().map(|rule| RULE_BYTES + rule.text.len()).sum();
        let policies = PolicySet::from_policies(matching.iter().map(|rule| rule.policy.clone()));
        // More policies than match take longer, and decide the same.
        let policies = policies.map_or_else(|_| Arc::clone(&self.all), Arc::new);
        self.slices.insert(key, policies, weight)
    }

    /// The folders, hosts and secrets that the policies for this agent name.
    pub(crate) fn literals_for(&self, agent: &AgentDid) -> Arc<Literals> {
        let agent = self.named(agent);
        let key = agent.cloned();
        if let Some(literals) = self.literals.get(&key) {
            return literals;
        }
        let mut named = Named::default();
        let mut permitted = Named::default();
        for rule in self.rules_for(agent) {
            named.add(&rule.named);
            if rule.effect() == Effect::Permit {
                permitted.add(&rule.named);
            }
        }
        let literals = Literals::of(&named, &permitted, &self.types);
        let weight = literals.len() * LITERAL_BYTES;
        self.literals.insert(key, Arc::new(literals), weight)
    }

    /// The rules whose scopes match an agent; `None` stands for every agent that nobody names.
    fn rules_for(&self, agent: Option<&AgentDid>) -> impl Iterator<Item = &Rule> {
        let principal = agent.map(|agent| self.uid(EntityKind::Agent, agent.as_str()));
        let matches =
            move |rule: &&Rule| rule.scope.matches_principal(principal.as_ref(), &self.types, &self.entities);
        self.rules.values().filter(matches)
    }

    /// The agent, if a policy or `entities.json` names it.
    fn named<'a>(&self, agent: &'a AgentDid) -> Option<&'a AgentDid> {
        self.named_agents.contains(agent).then_some(agent)
    }
}
