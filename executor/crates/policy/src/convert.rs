//! Policies in JSON, written in Cedar.
//!
//! The text decides as the policies do, or there is none: what Cedar cannot express exactly is an error that names it.
//! Rules that are equal for several tools are one rule, so a person can keep the result. There is one difference, which
//! the text names: nothing compares URLs in arguments of a tool without a network with hosts, because its run reaches
//! none.
//!
//! ```text
//! policy of an agent ───▶ rules with `principal == Agent::"…"`
//! policy of all others ─▶ rules `unless { principal in [Agent::"…", …] }`, which have policies of their own
//! thresholds ───────────▶ a forbid, and one permit with `@escalate` for each policy
//! ```

#[cfg(test)]
mod tests;

use crate::rule_text::{RuleText, any_of, quoted};
use crate::schema::action_name;
use a2g_capability::{Area, Host, HostError, HostPattern, ScopeError, Tree};
use a2g_types::ident::{AgentDid, SecretName, ToolName};
use a2g_types::tool::{CallTargets, DeclaredFilesystem, Descriptor};
use a2g_types::verdict::{NetworkRule, Policy, ToolRule};
use std::collections::{BTreeMap, BTreeSet};

/// The output limit of a call under conditions, as the decision by policies in JSON has it.
const CONDITIONAL_OUTPUT_BYTES: u64 = 64 * 1024;

/// The lowest risk scores of the decisions by policies in JSON, in hundredths: 70 is a score of 0.7. One that no score
/// reaches is above 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Minimum for conditions.
    pub conditions_from: u8,
    /// Minimum for a person's decision.
    pub escalate_from: u8,
    /// Minimum for a denial.
    pub deny_from: u8,
}

impl Thresholds {
    /// The least number of hundredths that reaches a score from 0 to 1.
    #[must_use]
    pub fn hundredths(score: f64) -> u8 {
        (0..=100_u8).find(|number| f64::from(*number) / 100.0 >= score).unwrap_or(101)
    }

    /// `true` if a score between 0 and 100 leads to conditions.
    fn have_conditions(self) -> bool {
        self.conditions_from < self.escalate_from.min(self.deny_from) && self.conditions_from <= 100
    }

    /// `true` if a score between 0 and 100 leads to a person's decision.
    fn have_escalations(self) -> bool {
        self.escalate_from < self.deny_from && self.escalate_from <= 100
    }
}

/// The reason why policies have no exact form in Cedar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// `resources.max_disk_mb`, which no executor enforces.
    #[error("{policy}: `resources.max_disk_mb` has no form in Cedar: remove it, and convert again")]
    MaxDisk {
        /// The policy.
        policy: String,
    },
    /// `network.allowed_domains` is absent, so that hosts in arguments are not compared with any list.
    #[error(
        "{policy}: without `network.allowed_domains`, URLs in arguments may name any host, which has no form in Cedar: \
         write `\"allowed_domains\": []` for no host, or the hosts, and convert again"
    )]
    NoHostList {
        /// The policy.
        policy: String,
    },
    /// A text that is no pattern of hosts.
    #[error("{policy}: `network`: {error}")]
    Host {
        /// The policy.
        policy: String,
        /// The problem.
        error: HostError,
    },
    /// Calls that run without a network for their risk, under a policy that allows hosts.
    #[error(
        "{policy}: calls from a risk of `governor.conditions_from` run without a network, although the policy allows \
         hosts. In Cedar, such a call is denied if it names one: set `governor.conditions_from` to the value of \
         `governor.escalate_from`, and convert again"
    )]
    Conditions {
        /// The policy.
        policy: String,
    },
    /// A tool with files and without `paths`, whose arguments may name any path, beside rules about folders.
    #[error(
        "{policy}: `{tool}` uses files, and without `paths` its arguments may name any of them, although none is granted, \
         which has no form in Cedar beside folders of other tools: write `\"paths\": []`, or the folders, and convert \
         again"
    )]
    NoPaths {
        /// The policy.
        policy: String,
        /// The tool.
        tool: ToolName,
    },
    /// A tool with files and with an empty `paths`, whose arguments may name no path, without a rule about folders.
    #[error(
        "{policy}: `{tool}` uses files and has no folder in `paths`, so its arguments may name none, which has no form in \
         Cedar without folders of other tools: remove `paths` or the tool, and convert again"
    )]
    EmptyPaths {
        /// The policy.
        policy: String,
        /// The tool.
        tool: ToolName,
    },
    /// A previewed tool whose run may do more, or less, in Cedar.
    #[error(
        "{policy}: the `preview` of `{tool}` has no exact form in Cedar, where a previewed run calls no other tool, and the \
         hosts of other tools do not bar it: remove `preview`, convert again, and write `@preview` where you want it"
    )]
    Preview {
        /// The policy.
        policy: String,
        /// The tool.
        tool: ToolName,
    },
    /// A tool without files and with `paths`, with which its arguments are compared.
    #[error(
        "{policy}: `{tool}` declares no files, so Cedar compares none of its arguments with `paths` or `blocked_paths`: \
         remove them, and convert again"
    )]
    NoFiles {
        /// The policy.
        policy: String,
        /// The tool.
        tool: ToolName,
    },
    /// A tool that writes and has the name of one that reads, which a risk makes read only.
    #[error(
        "{policy}: calls of `{tool}` from a risk of `governor.conditions_from` may only read files, because its name says \
         so, although it declares that it writes, which has no form in Cedar: set `governor.conditions_from` to the value of \
         `governor.escalate_from`, and convert again"
    )]
    ReadOnly {
        /// The policy.
        policy: String,
        /// The tool.
        tool: ToolName,
    },
    /// A pattern of `paths` with white space, which separates the patterns of `@scope`.
    #[error(
        "{policy}: the pattern `{pattern}` of `{tool}` has a space, and is no folder: `@scope` cannot have it"
    )]
    Space {
        /// The policy.
        policy: String,
        /// The tool.
        tool: ToolName,
        /// The pattern.
        pattern: String,
    },
    /// A pattern of `paths` or `blocked_paths` that is not valid.
    #[error("{policy}: `{tool}`: {error}")]
    Scope {
        /// The policy.
        policy: String,
        /// The tool.
        tool: ToolName,
        /// The problem.
        error: ScopeError,
    },
}

/// The executor on which policies decide.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// The scores by which policies in JSON decide.
    pub thresholds: Thresholds,
    /// The names of all secrets: a rule of JSON without `secrets` leaves its tool all of them, and one of Cedar names
    /// each.
    pub secrets: &'a BTreeSet<SecretName>,
    /// The tools of the catalogue. Rules for others are left out: nobody can call them, and Cedar knows no action for them.
    pub tools: &'a [&'a Descriptor],
    /// Says of a tool if its name makes it one that only reads.
    pub only_reads: fn(&ToolName) -> bool,
}

impl<'a> Surroundings<'a> {
    fn tool(&self, name: &ToolName) -> Option<&'a Descriptor> {
        self.tools.iter().copied().find(|tool| tool.name == *name)
    }
}

/// The policies in Cedar, with comments.
///
/// # Errors
/// [`ConvertError`] for the first member that Cedar cannot express exactly.
pub fn convert(policies: &[Policy], surroundings: Surroundings<'_>) -> Result<String, ConvertError> {
    let thresholds = surroundings.thresholds;
    let lists = policies.iter().map(|policy| &policy.network);
    let mut patterns =
        lists.flat_map(|network| network.allowed_domains.iter().flatten().chain(&network.blocked_domains));
    let has_folders = |policy: &Policy| {
        let allowed = policy.tools.values().filter(|rule| rule.allowed);
        allowed.flat_map(|rule| &rule.paths).any(|paths| !paths.is_empty())
    };
    // The scopes of rules for all agents match every agent.
    let all_have_folders = policies.iter().any(|policy| policy.agent.is_none() && has_folders(policy));
    let has_https = patterns.any(|pattern| pattern.starts_with("https://"));
    let own = policies.iter().filter_map(|policy| policy.agent.as_ref()).collect::<BTreeSet<_>>();
    let mut text = String::from(
        "// Written by `a2g-executor policy convert`: these rules decide as the policies in JSON did, but for URLs in\n\
         // arguments of tools without a network, which nothing compares with hosts any more: their runs reach none.\n",
    );
    for policy in policies {
        let others = if policy.agent.is_none() { own.clone() } else { BTreeSet::new() };
        let converted = Converted {
            policy,
            others,
            name: name_of(policy),
            surroundings,
            has_folders: all_have_folders || has_folders(policy),
            has_https,
        };
        text.push_str(&converted.write()?);
    }
    if thresholds.deny_from <= 100 {
        let mut rule = RuleText::forbid("action in Action::\"call\"", "resource");
        rule.annotate("id", "risk-denied");
        rule.annotate("reason", &format!("the risk of this call is {} or more", thresholds.deny_from));
        rule.when(format!("context.risk.score >= {}", thresholds.deny_from));
        text.push_str("\n// The risk of a call of any agent (`governor.deny_from`).\n");
        text.push_str(&rule.write());
    }
    Ok(text)
}

/// The name of a policy in comments and messages.
fn name_of(policy: &Policy) -> String {
    match &policy.agent {
        Some(agent) => format!("the policy of `{agent}`"),
        None => "the policy of every agent without its own".to_owned(),
    }
}

/// The tools that something is equal for, in the order of their names.
type Tools<'a> = Vec<&'a ToolName>;

/// A policy on its way.
struct Converted<'a> {
    policy: &'a Policy,
    /// The agents to which the policy does not apply.
    others: BTreeSet<&'a AgentDid>,
    name: String,
    surroundings: Surroundings<'a>,
    /// `true` if a rule about folders matches its agents.
    has_folders: bool,
    /// `true` if a policy names a host over HTTPS only, which is then a part of that host.
    has_https: bool,
}

impl<'a> Converted<'a> {
    fn write(&self) -> Result<String, ConvertError> {
        let Self { policy, surroundings: Surroundings { thresholds, .. }, .. } = *self;
        if policy.resources.max_disk_mb.is_some() {
            return Err(ConvertError::MaxDisk { policy: self.name.clone() });
        }
        let version = policy.version.escape_debug();
        let mut text = format!("\n// --- {}, version {version} ---\n", self.name);
        let listed = policy.tools.iter().filter(|(_, rule)| rule.allowed).map(|(tool, _)| tool);
        let absent = listed.filter(|tool| self.surroundings.tool(tool).is_none()).map(ToolName::as_str);
        let absent = absent.collect::<Vec<_>>().join(", ");
        if !absent.is_empty() {
            text.push_str(&format!(
                "// Left out, because the catalogue does not have these tools: {absent}\n"
            ));
        }
        let allowed = self.allowed().map(|(tool, _)| tool).collect::<Tools<'_>>();
        if allowed.is_empty() {
            text.push_str("// It allows no tool that there is.\n");
            return Ok(text);
        }
        let mut push = |comment: &str, rules: Vec<RuleText>| {
            if rules.is_empty() {
                return;
            }
            text.push_str(&format!("\n// {comment}\n"));
            text.push_str(&rules.iter().map(RuleText::write).collect::<Vec<_>>().join("\n"));
        };
        push("The tools, with the limits of their runs.", self.tools()?);
        push("The folders. A path belongs to the deepest folder that a rule names.", self.folders()?);
        push("Folders that stay closed.", self.blocked_folders()?);
        push("Texts that no argument may have.", self.blocked_texts());
        push("The longest text of an argument, in bytes.", self.text_lengths());
        push("The hosts.", self.hosts()?);
        push("The secrets.", self.secrets());
        if thresholds.have_conditions() {
            self.check_read_only()?;
            if self.has_network() && !policy.network.allowed_domains.as_ref().is_some_and(Vec::is_empty) {
                return Err(ConvertError::Conditions { policy: self.name.clone() });
            }
            let mut rule = self.permit(&allowed);
            rule.annotate("max_output_bytes", &CONDITIONAL_OUTPUT_BYTES.to_string());
            rule.when(format!("context.risk.score >= {}", thresholds.conditions_from));
            rule.when(format!("context.risk.score < {}", thresholds.escalate_from.min(thresholds.deny_from)));
            push(
                "Less output at some risk (`governor.conditions_from`). It names the tools, to permit no others.",
                vec![rule],
            );
        }
        if thresholds.have_escalations() {
            self.check_previews()?;
            push(
                "A person decides at a high risk (`governor.escalate_from`). It names the tools, to permit no others.",
                self.escalations(thresholds.escalate_from),
            );
        }
        Ok(text)
    }

    /// The rules of the tools that may be called.
    fn allowed(&self) -> impl Iterator<Item = (&'a ToolName, &'a ToolRule)> + use<'a> {
        let surroundings = self.surroundings;
        self.policy.tools.iter().filter(move |(tool, rule)| rule.allowed && surroundings.tool(tool).is_some())
    }

    /// The allowed tools by what `of` says of each, in the order of the first tool of each group.
    fn grouped<K: Ord>(&self, of: impl Fn(&'a ToolRule) -> K) -> Vec<(K, Tools<'a>)> {
        let mut groups = BTreeMap::<K, Tools<'a>>::new();
        for (tool, rule) in self.allowed() {
            groups.entry(of(rule)).or_default().push(tool);
        }
        let mut groups = groups.into_iter().collect::<Vec<_>>();
        groups.sort_by(|(_, one), (_, other)| one.cmp(other));
        groups
    }

    fn tools(&self) -> Result<Vec<RuleText>, ConvertError> {
        for (tool, rule) in self.allowed() {
            self.check_files(tool, rule)?;
            self.check_scope(tool, rule)?;
        }
        let rules = self.grouped(|rule| self.annotations(rule)).into_iter().map(|(annotations, tools)| {
            let mut rule = self.permit(&tools);
            annotations.iter().for_each(|(name, value)| rule.annotate(name, value));
            rule
        });
        Ok(rules.collect())
    }

    /// The annotations of the permit of a tool.
    fn annotations(&self, rule: &ToolRule) -> Vec<(&'static str, String)> {
        let limits = self.policy.resources.limits.narrower(&rule.limits);
        let numbers = limits.claimed().map(|(row, amount)| (row.key(), row.to_number(amount).to_string()));
        let mut annotations = numbers.collect::<Vec<(&'static str, String)>>();
        let mut add = |name: &'static str, value: Option<String>| {
            annotations.extend(value.map(|value| (name, value)));
        };
        add("scope", scope_of(rule));
        add("blocked_paths", joined(&globs_of(&rule.blocked_paths), " "));
        add("blocked_patterns", joined(&pipelines_of(rule), "\n"));
        add("effects", rule.effects.unless_direct().map(|effects| effects.as_str().to_owned()));
        add("calls", rule.calls.as_ref().map(|calls| self.existing(calls).join(" ")));
        add("grant_all_paths", rule.grants_all_paths.then(String::new));
        add("preview", rule.is_previewed.then(String::new));
        annotations
    }

    /// The names of the tools that may be called and are in the catalogue.
    fn existing(&self, calls: &CallTargets) -> Vec<String> {
        let is_there = |name: &&ToolName| self.surroundings.tool(name).is_some();
        match calls {
            CallTargets::All => vec!["*".to_owned()],
            CallTargets::Named(named) => named.iter().filter(is_there).map(ToString::to_string).collect(),
        }
    }

    /// Checks that arguments are compared with the same paths.
    fn check_files(&self, tool: &ToolName, rule: &ToolRule) -> Result<(), ConvertError> {
        let policy = self.name.clone();
        let name = tool.clone();
        let declared = self.surroundings.tool(tool).map(|found| found.capabilities.filesystem);
        let has_files = declared.is_some_and(|declared| declared > DeclaredFilesystem::None);
        let has_rules = rule.paths.is_some() || !rule.blocked_paths.is_empty();
        match (has_files, &rule.paths) {
            (true, None) if self.has_folders => Err(ConvertError::NoPaths { policy, tool: name }),
            (true, Some(paths)) if paths.is_empty() && !self.has_folders => {
                Err(ConvertError::EmptyPaths { policy, tool: name })
            }
            (false, _) if has_rules => Err(ConvertError::NoFiles { policy, tool: name }),
            (true | false, _) => Ok(()),
        }
    }

    /// `true` if an allowed tool uses the network.
    fn has_network(&self) -> bool {
        let uses =
            |tool: &ToolName| self.surroundings.tool(tool).is_some_and(|found| found.capabilities.network);
        self.allowed().any(|(tool, _)| uses(tool))
    }

    /// Checks that previewed runs may do the same.
    fn check_previews(&self) -> Result<(), ConvertError> {
        let has_hosts = self.policy.network.allowed_domains.as_ref().is_some_and(|hosts| !hosts.is_empty());
        let none = CallTargets::none();
        let differs = |tool: &ToolName, rule: &ToolRule| {
            let Some(Descriptor { capabilities, .. }) = self.surroundings.tool(tool) else { return false };
            let calls_nothing = capabilities.calls == none || rule.calls.as_ref() == Some(&none);
            !calls_nothing || (has_hosts && !capabilities.network)
        };
        match self.allowed().find(|(tool, rule)| rule.is_previewed && differs(tool, rule)) {
            Some((tool, _)) => Err(ConvertError::Preview { policy: self.name.clone(), tool: tool.clone() }),
            None => Ok(()),
        }
    }

    /// Checks that no tool that writes is made read only by its name.
    fn check_read_only(&self) -> Result<(), ConvertError> {
        let Surroundings { only_reads, .. } = self.surroundings;
        let writes = |tool: &ToolName| {
            let found = self.surroundings.tool(tool);
            found.is_some_and(|found| found.capabilities.filesystem == DeclaredFilesystem::ReadWrite)
        };
        match self.allowed().find(|(tool, _)| only_reads(tool) && writes(tool)) {
            Some((tool, _)) => Err(ConvertError::ReadOnly { policy: self.name.clone(), tool: tool.clone() }),
            None => Ok(()),
        }
    }

    /// Checks that the patterns of a rule can stand in annotations.
    fn check_scope(&self, tool: &ToolName, rule: &ToolRule) -> Result<(), ConvertError> {
        self.areas(tool, rule)?;
        let scoped = if scope_of(rule).is_some() { rule.paths.as_deref().unwrap_or_default() } else { &[] };
        let listed = scoped.iter().chain(globs_of(&rule.blocked_paths));
        match listed.into_iter().find(|pattern| pattern.contains(char::is_whitespace)) {
            Some(pattern) => Err(ConvertError::Space {
                policy: self.name.clone(),
                tool: tool.clone(),
                pattern: pattern.clone(),
            }),
            None => Ok(()),
        }
    }

    fn areas(&self, tool: &ToolName, rule: &ToolRule) -> Result<Vec<Area>, ConvertError> {
        let patterns = rule.paths.iter().flatten();
        let areas = patterns.map(|pattern| Area::parse(pattern)).collect::<Result<Vec<_>, _>>();
        let error = |error| ConvertError::Scope { policy: self.name.clone(), tool: tool.clone(), error };
        Ok(areas.map_err(error)?.concat())
    }

    fn folders(&self) -> Result<Vec<RuleText>, ConvertError> {
        let mut folders = BTreeMap::new();
        for (tool, rule) in self.allowed() {
            let roots = self.areas(tool, rule)?.iter().map(|area| area.root().path().to_owned()).collect();
            folders.entry(outermost(roots)).or_insert_with(Vec::new).push(tool);
        }
        let count = self.allowed().count();
        let groups = folders.into_iter().filter(|(roots, _)| !roots.is_empty());
        let rules = groups.map(|(roots, tools)| {
            let mut rule = self.folder_rule(RuleText::permit, &roots);
            // A call that may use a folder has to be permitted too.
            if tools.len() < count {
                rule.when(tool_condition(&tools));
            }
            rule
        });
        Ok(rules.collect())
    }

    fn blocked_folders(&self) -> Result<Vec<RuleText>, ConvertError> {
        let groups = self.grouped(|rule| outermost(folders_of(&rule.blocked_paths)));
        let groups = groups.into_iter().filter(|(roots, _)| !roots.is_empty());
        let rules = groups.map(|(roots, tools)| {
            let mut rule = self.folder_rule(RuleText::forbid, &roots);
            if tools.len() < self.allowed().count() {
                rule.when(tool_condition(&tools));
            }
            rule
        });
        Ok(rules.collect())
    }

    fn folder_rule(&self, effect: fn(&str, &str) -> RuleText, roots: &BTreeSet<String>) -> RuleText {
        let within = |root: &String| format!("resource in Folder::{}", quoted(root));
        let action = "action in [Action::\"read\", Action::\"write\"]";
        let mut rule = match (roots.first(), roots.len()) {
            (Some(only), 1) => effect(action, &within(only)),
            _several => {
                let mut rule = effect(action, "resource");
                rule.when(any_of(roots.iter().map(within)));
                rule
            }
        };
        self.bind(&mut rule);
        rule
    }

    fn blocked_texts(&self) -> Vec<RuleText> {
        let groups = self.grouped(plain_patterns_of).into_iter().filter(|(texts, _)| !texts.is_empty());
        let rules = groups.map(|(texts, tools)| {
            let mut rule = self.forbid(&tools);
            rule.annotate("reason", "a text of the arguments is blocked (`blocked_patterns`); remove it");
            rule.when(any_of(texts.iter().map(|text| format!("context.text like {}", around(text)))));
            rule
        });
        rules.collect()
    }

    fn text_lengths(&self) -> Vec<RuleText> {
        let groups = self.grouped(|rule| rule.max_size_bytes);
        let rules = groups.into_iter().filter_map(|(max, tools)| {
            let max = max?;
            let mut rule = self.forbid(&tools);
            rule.annotate("reason", &format!("a text of the arguments has more than {max} bytes; send less"));
            rule.when(format!("context.longest_text > {max}"));
            Some(rule)
        });
        rules.collect()
    }

    fn hosts(&self) -> Result<Vec<RuleText>, ConvertError> {
        let NetworkRule { allowed_domains, blocked_domains, max_requests_per_minute } = &self.policy.network;
        let Some(domains) = allowed_domains else {
            let error = ConvertError::NoHostList { policy: self.name.clone() };
            return if self.has_network() { Err(error) } else { Ok(Vec::new()) };
        };
        let mut rules = Vec::new();
        if let Some(condition) = self.host_condition(domains)? {
            let mut rule = RuleText::permit("action == Action::\"reach\"", "resource");
            if let Some(rate) = max_requests_per_minute {
                rule.annotate("max_requests_per_minute", &rate.to_string());
            }
            rule.when(condition);
            self.bind(&mut rule);
            rules.push(rule);
            if let Some(condition) = self.host_condition(blocked_domains)? {
                let mut rule = RuleText::forbid("action == Action::\"reach\"", "resource");
                rule.when(condition);
                self.bind(&mut rule);
                rules.push(rule);
            }
        }
        Ok(rules)
    }

    /// The condition of a list of hosts; `None` for an empty one.
    fn host_condition(&self, patterns: &[String]) -> Result<Option<String>, ConvertError> {
        let conditions = patterns.iter().map(|text| {
            let parsed = HostPattern::parse(text);
            let pattern = parsed.map_err(|error| ConvertError::Host { policy: self.name.clone(), error })?;
            let literal = format!("Host::{}", quoted(&pattern.to_string()));
            Ok(match &pattern {
                HostPattern::Exactly(Host::Name(name)) if self.has_https => {
                    let below = quoted(&format!("*.{}", name.as_str()));
                    format!("(resource in {literal} && !(resource in Host::{below}))")
                }
                HostPattern::Exactly(_) | HostPattern::Https(..) => format!("resource == {literal}"),
                HostPattern::Below(_) | HostPattern::EveryName => format!("resource in {literal}"),
            })
        });
        let conditions = conditions.collect::<Result<Vec<_>, _>>()?;
        Ok((!conditions.is_empty()).then(|| any_of(conditions)))
    }

    fn secrets(&self) -> Vec<RuleText> {
        let all = self.surroundings.secrets;
        let groups = self.grouped(|rule| match &rule.secrets {
            Some(named) => named.intersection(all).cloned().collect::<BTreeSet<_>>(),
            None => all.clone(),
        });
        let count = self.allowed().count();
        let rules = groups.into_iter().filter(|(names, _)| !names.is_empty()).map(|(names, tools)| {
            let mut rule = RuleText::permit("action == Action::\"use_secret\"", "resource");
            rule.when(any_of(
                names.iter().map(|name| format!("resource == Secret::{}", quoted(name.as_str()))),
            ));
            if tools.len() < count {
                rule.when(tool_condition(&tools));
            }
            self.bind(&mut rule);
            rule
        });
        rules.collect()
    }

    fn escalations(&self, from: u8) -> Vec<RuleText> {
        let rules = self.grouped(|rule| rule.is_previewed).into_iter().map(|(is_previewed, tools)| {
            let mut rule = self.permit(&tools);
            rule.annotate("escalate", &format!("the risk of this call is {from} or more"));
            if is_previewed {
                rule.annotate("preview", "");
            }
            rule.when(format!("context.risk.score >= {from}"));
            rule
        });
        rules.collect()
    }

    /// A permit of calls of these tools.
    fn permit(&self, tools: &[&ToolName]) -> RuleText {
        let mut rule = RuleText::permit(&action_condition(tools), "resource");
        self.bind(&mut rule);
        rule
    }

    /// A forbid of calls of these tools.
    fn forbid(&self, tools: &[&ToolName]) -> RuleText {
        let mut rule = RuleText::forbid(&action_condition(tools), "resource");
        self.bind(&mut rule);
        rule
    }

    /// Binds a rule to the agents of the policy.
    fn bind(&self, rule: &mut RuleText) {
        let literal = |agent: &AgentDid| format!("Agent::{}", quoted(agent.as_str()));
        if let Some(agent) = &self.policy.agent {
            rule.of_principal(format!("principal == {}", literal(agent)));
        }
        if !self.others.is_empty() {
            let others = self.others.iter().copied().map(literal).collect::<Vec<_>>().join(", ");
            rule.unless(format!("principal in [{others}]"));
        }
    }
}

fn action_condition(tools: &[&ToolName]) -> String {
    let literal = |tool: &&ToolName| format!("Action::{}", quoted(&action_name(tool)));
    match tools {
        [only] => format!("action == {}", literal(only)),
        several => {
            format!("action in [{}]", several.iter().map(literal).collect::<Vec<_>>().join(", "))
        }
    }
}

/// The condition of a folder, host or secret that it is for a call of one of these tools.
fn tool_condition(tools: &[&ToolName]) -> String {
    let literal = |tool: &&ToolName| format!("Tool::{}", quoted(tool.as_str()));
    match tools {
        [only] => format!("context.tool == {}", literal(only)),
        several => {
            format!("[{}].contains(context.tool)", several.iter().map(literal).collect::<Vec<_>>().join(", "))
        }
    }
}

/// A pattern of `like` for texts that contain this one, whose stars are not those of the pattern.
fn around(text: &str) -> String {
    let literal = quoted(text).replace('*', "\\*");
    let inner = literal.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
    format!("\"*{inner}*\"")
}

fn joined(texts: &[impl AsRef<str>], separator: &str) -> Option<String> {
    let texts = texts.iter().map(AsRef::as_ref).collect::<Vec<_>>();
    (!texts.is_empty()).then(|| texts.join(separator))
}

/// The patterns of `paths` as the value of `@scope`; `None` if all of them are whole folders.
fn scope_of(rule: &ToolRule) -> Option<String> {
    let is_folder = |pattern: &String| {
        Area::parse(pattern).is_ok_and(|areas| areas.iter().all(|area| area.globs().is_empty()))
    };
    let patterns = rule.paths.as_deref().unwrap_or_default();
    joined(patterns, " ").filter(|_| !patterns.iter().all(is_folder))
}

/// The folder that a pattern of `blocked_paths` blocks as a whole; `None` if it blocks something else.
fn blocked_folder(pattern: &str) -> Option<String> {
    let folder = Tree::parse_path(pattern.strip_suffix("/**").unwrap_or(pattern)).ok()?;
    Some(folder.path().to_owned())
}

/// The patterns of `blocked_paths` that block whole folders, as folders.
fn folders_of(patterns: &[String]) -> BTreeSet<String> {
    patterns.iter().filter_map(|pattern| blocked_folder(pattern)).collect()
}

/// The other patterns of `blocked_paths`.
fn globs_of(patterns: &[String]) -> Vec<&String> {
    patterns.iter().filter(|pattern| blocked_folder(pattern).is_none()).collect()
}

/// The folders that lie in no other one of them.
fn outermost(folders: BTreeSet<String>) -> BTreeSet<String> {
    let is_in = |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'));
    let is_outermost = |folder: &&String| !folders.iter().any(|other| is_in(folder, other));
    folders.iter().filter(is_outermost).cloned().collect()
}

/// A text of `blocked_patterns` as it is compared.
fn normalized(pattern: &str) -> String {
    pattern.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The texts of `blocked_patterns` that are compared as a whole.
fn plain_patterns_of(rule: &ToolRule) -> Vec<String> {
    let plain = rule.blocked_patterns.iter().filter(|pattern| !pattern.contains('|'));
    plain.map(|pattern| normalized(pattern)).collect()
}

/// The texts of `blocked_patterns` that are compared with the stages of a pipeline in one line, which `like` cannot.
fn pipelines_of(rule: &ToolRule) -> Vec<String> {
    let pipelines = rule.blocked_patterns.iter().filter(|pattern| pattern.contains('|'));
    pipelines.map(|pattern| normalized(pattern)).collect()
}
