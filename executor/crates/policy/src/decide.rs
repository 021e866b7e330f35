//! Decides on one call.
//!
//! ```text
//! call itself ─▶ folders ─▶ hosts ─▶ secrets ─▶ meet of the annotations ─▶ Allowed
//!     │ no permit, or a forbid         │ an error in any of them
//!     └────────────────────────────────┴─▶ Denied
//! ```
//! Each arrow asks Cedar one question for each resource that the policies for the agent name. What is granted is the
//! rule of one tool, in the form that a policy in JSON has: the checks of arguments and the conditions are made of it
//! as of any other.
//!
//! Invariant: a forbid that is added to a set, without exceptions, opens no folder, host or secret, and raises no limit
//! of the permits of calls. (The annotations of a permit of a folder go with the folder. And a call that must not read
//! a folder any more has not read it when policies are asked for hosts.)

mod context;
mod folders;
mod meet;
#[cfg(test)]
mod tests;

use crate::facts::{CallFacts, Past, Subject};
use crate::rule_name::RuleName;
use crate::schema::{EntityKind, REACH, READ, ToolShape, USE_SECRET, WRITE};
use crate::set::{CedarSet, FolderLiteral, HostLiteral, Literals, Rule};
use a2g_capability::{Area, Host, HostPattern, Tree};
use a2g_types::ident::{SecretName, excerpt};
use a2g_types::tool::DeclaredFilesystem;
use a2g_types::verdict::{NetworkRule, ResourceRule, ToolRule};
use cedar_policy::{
    AuthorizationError, Authorizer, Context, Decision, Diagnostics, Effect, EntityUid, PolicySet, Request,
    Schema,
};
use context::{ContextError, Contexts};
use folders::{Cell, Folders, Layout, Need};
use meet::Meet;
use std::collections::BTreeSet;

/// Maximum number of rules that a reason names.
const MAX_NAMED_RULES: usize = 3;

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The policies permit the call, within a rule.
    Allowed(Box<Allowed>),
    /// The policies do not permit it.
    Denied(Denied),
}

/// What a permitted call is granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// The rule of its tool.
    pub rule: ToolRule,
    /// The hosts that it may reach.
    pub network: NetworkRule,
    /// Its limits on memory and CPU.
    pub resources: ResourceRule,
    /// The reason why a person has to decide; `None` if nobody has to.
    pub escalate: Option<String>,
    /// The folders of policies of which it is granted something, with those around them: when policies were asked for
    /// hosts and secrets, it counted as having read them.
    pub folders: BTreeSet<String>,
    /// The rules that decided: first those on the call itself, then those on what it is granted, or not.
    pub decided_by: Vec<RuleName>,
}

/// The denial of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The reason, as a sentence for the agent.
    pub reason: String,
    /// The rules that decided; empty if none applies.
    pub decided_by: Vec<RuleName>,
}

impl CedarSet {
    /// Decides on a call.
    ///
    /// A policy that cannot be evaluated denies it: it could have been a forbid.
    #[must_use]
    pub fn decide(&self, facts: &CallFacts<'_>, past: &dyn Past) -> Answer {
        match self.resolve(facts, past) {
            Ok(allowed) => Answer::Allowed(Box::new(allowed)),
            Err(denied) => Answer::Denied(denied),
        }
    }

    fn resolve<'a>(&'a self, facts: &'a CallFacts<'a>, past: &'a dyn Past) -> Result<Allowed, Denied> {
        let shape = self.tool(facts.tool).ok_or_else(|| unknown_tool(facts))?;
        let contexts = Contexts::of(self, facts, past).map_err(|error| unreadable(facts, &error))?;
        let decider = Decider {
            set: self,
            facts,
            shape,
            contexts,
            authorizer: Authorizer::new(),
            agent: self.uid(EntityKind::Agent, facts.agent.as_str()),
        };
        let mut meet = Meet::of_call(&decider.permits_of_call()?);
        let literals = self.literals_for(facts.agent);
        let files = decider.files(&literals.folders, &mut meet)?;
        let network = decider.network(&literals.hosts, &files.read, &mut meet)?;
        let secrets = decider.secrets(&literals, &files.read, &mut meet)?;
        let (resources, limits) = meet.split_limits();
        Ok(Allowed {
            rule: ToolRule {
                allowed: true,
                paths: files.paths,
                blocked_paths: files.blocked_paths.into_iter().chain(meet.blocked_paths.clone()).collect(),
                blocked_patterns: meet.blocked_patterns.iter().cloned().collect(),
                max_size_bytes: None,
                effects: meet.effects,
                limits,
                calls: meet.calls.clone(),
                secrets: Some(secrets),
                grants_all_paths: meet.grants_all_paths,
                is_previewed: meet.is_previewed,
            },
            network: NetworkRule { max_requests_per_minute: meet.max_requests_per_minute, ..network },
            resources,
            escalate: meet.escalate(),
            folders: files.read,
            decided_by: meet.into_decided_by(),
        })
    }
}

/// The answer of the policies on one resource.
enum Ruling<'a> {
    /// These permits apply, and no forbid.
    Permitted(Vec<&'a Rule>),
    /// These forbids apply.
    Forbidden(Vec<&'a Rule>),
    /// Nothing applies.
    Unmatched,
}

/// The answers for folders, as cells.
fn cells(rulings: &[Ruling<'_>], literals: &[FolderLiteral]) -> Vec<Cell> {
    let cell = |(ruling, literal): (&Ruling<'_>, &FolderLiteral)| match ruling {
        Ruling::Permitted(_) if literal.is_permitted => Cell::Open,
        Ruling::Permitted(_) => Cell::Within,
        Ruling::Forbidden(_) | Ruling::Unmatched => Cell::Closed,
    };
    rulings.iter().zip(literals).map(cell).collect()
}

/// The files of a call.
#[derive(Default)]
struct Files {
    paths: Option<Vec<String>>,
    blocked_paths: Vec<String>,
    /// The folders of policies of which it is granted something, and so may read it.
    read: BTreeSet<String>,
}

/// The decision on one call.
struct Decider<'a> {
    set: &'a CedarSet,
    facts: &'a CallFacts<'a>,
    shape: &'a ToolShape,
    contexts: Contexts<'a>,
    authorizer: Authorizer,
    agent: EntityUid,
}

impl<'a> Decider<'a> {
    /// The permits of the call itself.
    fn permits_of_call(&self) -> Result<Vec<&'a Rule>, Denied> {
        let ToolShape { action, resource, input, .. } = self.shape;
        let policies = self.set.policies_for(self.facts.agent, action, resource);
        // The arguments are checked whatever the policies read of them: a decision does not depend on where they are
        // read.
        let input = context::input(self.facts.arguments, input).map_err(|error| self.unreadable(&error))?;
        let context = self.contexts.of_call(input).map_err(|error| self.unreadable(&error))?;
        match self.ask(&policies, action, resource, context, Some(self.set.schema()))? {
            Ruling::Permitted(rules) => Ok(rules),
            Ruling::Forbidden(rules) => {
                let CallFacts { agent, tool, .. } = self.facts;
                let advice = "do without it, or ask the operator";
                Err(forbidden(&rules, &format!("this call of `{tool}` by `{agent}`"), advice))
            }
            Ruling::Unmatched => Err(self.unmatched(&policies)),
        }
    }

    /// The denial of a call that no permit matches.
    fn unmatched(&self, policies: &PolicySet) -> Denied {
        let CallFacts { agent, tool, .. } = self.facts;
        let permits = policies.policies().filter(|policy| policy.effect() == Effect::Permit);
        let mut names =
            permits.filter_map(|policy| Some(&self.set.rule(policy.id())?.name)).collect::<Vec<_>>();
        names.sort();
        let reason = if names.is_empty() {
            format!(
                "no policy permits `{tool}` for `{agent}`; use another tool, or ask the operator to add a `permit` \
                 for it"
            )
        } else {
            format!(
                "no policy permits this call of `{tool}` by `{agent}`: the conditions of {} are not met; change the \
                 call, or ask the operator",
                join(&names)
            )
        };
        Denied { reason, decided_by: Vec::new() }
    }

    /// The files that the call is granted.
    fn files(&self, literals: &[FolderLiteral], meet: &mut Meet<'a>) -> Result<Files, Denied> {
        let need = if meet.grants_all_paths { Need::All } else { Need::Paths(&self.facts.paths) };
        let folders = Folders::of(literals.iter().map(|literal| &literal.tree));
        let rulings = self.folders(literals, &folders, need)?;
        if let Some(denied) = self.forbidden_path(&folders, &rulings) {
            return Err(denied);
        }
        let Layout { regions, blocked, granted } = folders.layout(&cells(&rulings, literals), need);
        let tree = |index: usize| literals.get(index).map(|literal| &literal.tree);
        let regions = regions.into_iter().filter_map(tree).cloned().map(Area::from).collect::<Vec<_>>();
        if regions.is_empty() && !self.has_folder_permit(literals) {
            // As in a rule without `paths`, no file is granted.
            return Ok(Files::default());
        }
        let areas = meet.narrow(regions).map_err(|error| Denied {
            reason: format!("`{}` is denied: {error}", self.facts.tool),
            decided_by: Vec::new(),
        })?;
        let blocked_trees = blocked.iter().copied().filter_map(tree).collect::<Vec<_>>();
        let read = folders_in(&areas, &blocked_trees, need, literals);
        for index in granted {
            if tree(index).is_some_and(|tree| read.contains(tree.path()))
                && let Some(Ruling::Permitted(rules)) = rulings.get(index)
            {
                meet.add(rules);
            }
        }
        for index in blocked {
            if let Some(Ruling::Forbidden(rules)) = rulings.get(index) {
                meet.name(rules);
            }
        }
        let paths = areas.into_iter().map(|(pattern, _)| pattern).collect::<BTreeSet<_>>();
        Ok(Files {
            paths: Some(paths.into_iter().collect()),
            blocked_paths: blocked_trees.into_iter().map(Tree::to_string).collect(),
            read,
        })
    }

    /// The answers for the folders that the call needs; for all of them if some of its paths lie in none that it may
    /// use, so that a message names those.
    fn folders(
        &self,
        literals: &[FolderLiteral],
        folders: &Folders<'_>,
        need: Need<'_>,
    ) -> Result<Vec<Ruling<'a>>, Denied> {
        let mut rulings = Vec::with_capacity(literals.len());
        for literal in literals {
            let is_concerned = need.concerns(&literal.tree);
            rulings.push(if is_concerned { self.folder(literal)? } else { Ruling::Unmatched });
        }
        if folders.has_all(&cells(&rulings, literals), need) {
            return Ok(rulings);
        }
        for (ruling, literal) in rulings.iter_mut().zip(literals) {
            if !need.concerns(&literal.tree) {
                *ruling = self.folder(literal)?;
            }
        }
        Ok(rulings)
    }

    /// The answer for one folder.
    fn folder(&self, literal: &FolderLiteral) -> Result<Ruling<'a>, Denied> {
        let ask = |wanted, action| {
            let subject = Subject::Folder(literal.tree.path());
            self.ask_part(wanted, action, &literal.uid, subject, &BTreeSet::new())
        };
        // A forbid that nothing had to outweigh says better than no permit why the folder is closed.
        let answer = |action| match ask(Effect::Permit, action)? {
            Ruling::Unmatched => ask(Effect::Forbid, action),
            ruling @ (Ruling::Permitted(_) | Ruling::Forbidden(_)) => Ok(ruling),
        };
        match self.shape.filesystem {
            DeclaredFilesystem::None => Ok(Ruling::Unmatched),
            DeclaredFilesystem::Read => answer(READ),
            DeclaredFilesystem::ReadWrite => match answer(WRITE)? {
                // A run that may write can read too, so what must not be read is not opened for it.
                Ruling::Permitted(rules) => match ask(Effect::Forbid, READ)? {
                    Ruling::Forbidden(forbids) => Ok(Ruling::Forbidden(forbids)),
                    Ruling::Permitted(_) | Ruling::Unmatched => Ok(Ruling::Permitted(rules)),
                },
                Ruling::Forbidden(rules) => Ok(Ruling::Forbidden(rules)),
                Ruling::Unmatched => Ok(Ruling::Unmatched),
            },
        }
    }

    /// The denial of a call whose arguments name a file in a forbidden folder. The rule would refuse it too, and could
    /// not say why.
    fn forbidden_path(&self, folders: &Folders<'_>, rulings: &[Ruling<'a>]) -> Option<Denied> {
        self.facts.paths.iter().find_map(|path| {
            let Some(Ruling::Forbidden(rules)) = rulings.get(folders.of_path(path)?) else { return None };
            let CallFacts { agent, tool, .. } = self.facts;
            let what = format!("`{}` to `{tool}` of `{agent}`", excerpt(path));
            Some(forbidden(rules, &what, "use another path, or ask the operator"))
        })
    }

    /// `true` if the scope of a permit matches a folder.
    fn has_folder_permit(&self, literals: &[FolderLiteral]) -> bool {
        let action = match self.shape.filesystem {
            DeclaredFilesystem::None => return false,
            DeclaredFilesystem::Read => READ,
            DeclaredFilesystem::ReadWrite => WRITE,
        };
        let action = self.set.uid(EntityKind::Action, action);
        literals.iter().any(|literal| {
            has_effect(&self.set.policies_for(self.facts.agent, &action, &literal.uid), Effect::Permit)
        })
    }

    /// The hosts that the call may reach.
    fn network(
        &self,
        literals: &[HostLiteral],
        read: &BTreeSet<String>,
        meet: &mut Meet<'a>,
    ) -> Result<NetworkRule, Denied> {
        if !self.shape.has_network {
            return Ok(NetworkRule::default());
        }
        let mut allowed = Vec::new();
        let mut closed = Vec::new();
        for HostLiteral { pattern, uid, literal, is_permitted } in literals {
            match self.ask_part(Effect::Permit, REACH, uid, Subject::Host(literal), read)? {
                Ruling::Permitted(rules) if *is_permitted => {
                    meet.add(&rules);
                    allowed.push(pattern);
                }
                // No permit names hosts around it, so it is in none of those that are allowed.
                Ruling::Permitted(_) => {}
                Ruling::Forbidden(rules) => closed.push((pattern, rules)),
                Ruling::Unmatched => closed.push((pattern, Vec::new())),
            }
        }
        // A pattern of a closed host is needed only where an allowed one matches it too. An address may be that of any name.
        closed
            .retain(|(pattern, _)| is_address(pattern) || allowed.iter().any(|other| other.covers(pattern)));
        closed.iter().for_each(|(_, rules)| meet.name(rules));
        Ok(NetworkRule {
            allowed_domains: Some(allowed.into_iter().map(HostPattern::to_string).collect()),
            blocked_domains: closed.into_iter().map(|(pattern, _)| pattern.to_string()).collect(),
            max_requests_per_minute: None,
        })
    }

    /// The secrets that requests of the call may get: of those that permits name, also in `@secrets`.
    fn secrets(
        &self,
        literals: &Literals,
        read: &BTreeSet<String>,
        meet: &mut Meet<'a>,
    ) -> Result<BTreeSet<SecretName>, Denied> {
        if !self.shape.has_network {
            return Ok(BTreeSet::new());
        }
        let candidates = match meet.secrets.clone() {
            Some(named) => named,
            None => literals.secrets.iter().cloned().collect(),
        };
        let mut secrets = BTreeSet::new();
        for name in candidates {
            let uid = self.set.uid(EntityKind::Secret, name.as_str());
            let subject = Subject::Secret(name.as_str());
            let ruling = self.ask_part(Effect::Permit, USE_SECRET, &uid, subject, read)?;
            if let Ruling::Permitted(rules) = ruling {
                meet.add(&rules);
                secrets.insert(name);
            }
        }
        Ok(secrets)
    }

    /// Asks for a folder, a host or a secret; not if no policy of the effect `wanted` matches it, without which the
    /// answer makes no difference.
    fn ask_part(
        &self,
        wanted: Effect,
        action: &str,
        resource: &EntityUid,
        subject: Subject<'_>,
        granted: &BTreeSet<String>,
    ) -> Result<Ruling<'a>, Denied> {
        let action = self.set.uid(EntityKind::Action, action);
        let policies = self.set.policies_for(self.facts.agent, &action, resource);
        if !has_effect(&policies, wanted) {
            return Ok(Ruling::Unmatched);
        }
        // Only a condition can read the context.
        let context = if policies.policies().any(|policy| policy.has_non_scope_constraint()) {
            self.contexts.of_part(subject, granted).map_err(|error| self.unreadable(&error))?
        } else {
            Context::empty()
        };
        // It is made of facts that have types, and fits the schema: a test checks it.
        self.ask(&policies, &action, resource, context, None)
    }

    fn ask(
        &self,
        policies: &PolicySet,
        action: &EntityUid,
        resource: &EntityUid,
        context: Context,
        schema: Option<&Schema>,
    ) -> Result<Ruling<'a>, Denied> {
        let request = Request::new(self.agent.clone(), action.clone(), resource.clone(), context, schema);
        let request = request.map_err(|error| self.unreadable(&ContextError::Cedar(error.to_string())))?;
        let response = self.authorizer.is_authorized(&request, policies, self.set.entities());
        let diagnostics = response.diagnostics();
        if let Some(denied) = self.failed(diagnostics) {
            return Err(denied);
        }
        let rules = diagnostics.reason().map(|id| self.set.rule(id)).collect::<Option<Vec<_>>>();
        // A permit without its annotations would grant more than it says.
        let mut rules = rules.ok_or_else(|| {
            let message = "a policy that applies has no place in a file".to_owned();
            self.unreadable(&ContextError::Cedar(message))
        })?;
        rules.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(match response.decision() {
            Decision::Allow => Ruling::Permitted(rules),
            Decision::Deny if rules.is_empty() => Ruling::Unmatched,
            Decision::Deny => Ruling::Forbidden(rules),
        })
    }

    /// The denial because a policy could not be evaluated.
    fn failed(&self, diagnostics: &Diagnostics) -> Option<Denied> {
        let errors = diagnostics.errors().map(|AuthorizationError::PolicyEvaluationError(error)| {
            (self.set.rule(error.policy_id()).map(|rule| &rule.name), error.inner().to_string())
        });
        let (name, error) = errors.min()?;
        let rule = name.map_or_else(|| "a policy".to_owned(), |name| format!("`{name}`"));
        let tool = self.facts.tool;
        let reason = format!(
            "{rule} cannot be evaluated for this call of `{tool}`: {error}; the call is denied, because a policy that \
             fails could have forbidden it; change the arguments, or tell the operator"
        );
        Some(Denied { reason, decided_by: name.into_iter().cloned().collect() })
    }

    fn unreadable(&self, error: &ContextError) -> Denied {
        unreadable(self.facts, error)
    }
}

/// The folders of policies of which something lies in the areas that a call is granted.
fn folders_in(
    areas: &[(String, Area)],
    blocked: &[&Tree],
    need: Need<'_>,
    literals: &[FolderLiteral],
) -> BTreeSet<String> {
    let is_needed = |area: &Area| need.has_path(|path| area.contains(path) || area.root().path() == path);
    let roots = areas.iter().filter(|(_, area)| is_needed(area)).map(|(_, area)| area.root());
    let roots = roots.collect::<BTreeSet<_>>();
    let is_open = |tree: &&Tree| {
        roots.iter().any(|root| root.covers(tree) || tree.covers(root))
            && !blocked.iter().any(|blocked| blocked.covers(tree))
    };
    let trees = literals.iter().map(|literal| &literal.tree).filter(is_open);
    trees.map(|tree| tree.path().to_owned()).collect()
}

fn has_effect(policies: &PolicySet, effect: Effect) -> bool {
    policies.policies().any(|policy| policy.effect() == effect)
}

/// The denial by forbids.
fn forbidden(rules: &[&Rule], what: &str, advice: &str) -> Denied {
    let names = rules.iter().map(|rule| &rule.name).collect::<Vec<_>>();
    let verb = if names.len() == 1 { "forbids" } else { "forbid" };
    let mut reasons = rules.iter().filter_map(|rule| rule.annotations.reason.as_deref()).collect::<Vec<_>>();
    reasons.dedup();
    let why = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
    let reason = format!("{} {verb} {what}{why}; {advice}", join(&names));
    Denied { reason, decided_by: names.into_iter().cloned().collect() }
}

/// The names of rules, in backquotes.
fn join(names: &[&RuleName]) -> String {
    let named = names.iter().take(MAX_NAMED_RULES).map(|name| format!("`{name}`")).collect::<Vec<_>>();
    match names.len().saturating_sub(MAX_NAMED_RULES) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

fn unknown_tool(facts: &CallFacts<'_>) -> Denied {
    let reason = format!(
        "the policies do not know the tool `{}`, because it was not there when they were loaded; use another one, or \
         ask the operator to load them again",
        facts.tool
    );
    Denied { reason, decided_by: Vec::new() }
}

fn unreadable(facts: &CallFacts<'_>, error: &ContextError) -> Denied {
    let reason = format!("the policies cannot read this call of `{}`: {error}", facts.tool);
    Denied { reason, decided_by: Vec::new() }
}

/// `true` for a pattern of one address.
fn is_address(pattern: &HostPattern) -> bool {
    match pattern {
        HostPattern::Exactly(host) | HostPattern::Https(host, _) => matches!(host, Host::Address(_)),
        HostPattern::EveryName | HostPattern::Below(_) => false,
    }
}
