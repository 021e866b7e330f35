//! The smallest policies for what an agent has used.

use crate::rule_text::{RuleText, any_of, quoted};
use crate::schema::action_name;
use a2g_types::ident::{AgentDid, SecretName, ToolName};
use a2g_types::limit::{ClaimedLimits, FileEffects};
use std::collections::{BTreeMap, BTreeSet};

/// What the runs of one tool have used, and what narrowed them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolUse {
    /// The number of calls.
    pub calls: u64,
    /// The folders of the files, by absolute paths.
    pub folders: BTreeSet<String>,
    /// `true` if the tool asks for folders to write in.
    pub writes: bool,
    /// `true` if its arguments do not name its files.
    pub grants_all_paths: bool,
    /// The granted patterns, if one of them is not a whole folder.
    pub scope: BTreeSet<String>,
    /// The patterns that were blocked.
    pub blocked_paths: BTreeSet<String>,
    /// The hosts that were contacted, or that arguments name.
    pub hosts: BTreeSet<String>,
    /// The secrets that were sent.
    pub secrets: BTreeSet<SecretName>,
    /// The tools that the runs have called; `None` for a tool that calls none.
    pub called: Option<BTreeSet<ToolName>>,
    /// The limits, as counted amounts (bytes, not MB).
    pub limits: ClaimedLimits,
    /// The time at which file changes took effect.
    pub effects: FileEffects,
    /// The rate of requests that applied.
    pub max_requests_per_minute: Option<u32>,
    /// `true` if a person decided on one of the calls.
    pub is_escalated: bool,
}

/// Policies for one agent that permit these uses.
#[must_use]
pub fn suggest(agent: &AgentDid, uses: &BTreeMap<ToolName, ToolUse>) -> String {
    let mut text =
        format!("// Suggested by `a2g-executor policy suggest`: what {agent} has used, and nothing else.\n");
    for (tool, used) in uses {
        let calls = if used.calls == 1 { "1 call".to_owned() } else { format!("{} calls", used.calls) };
        text.push_str(&format!("\n// {tool}: {calls}.\n"));
        let rules = rules(tool, used).into_iter().map(|mut rule| {
            rule.of_principal(format!("principal == Agent::{}", quoted(agent.as_str())));
            rule.write()
        });
        text.push_str(&rules.collect::<Vec<_>>().join("\n"));
    }
    text
}

fn rules(tool: &ToolName, used: &ToolUse) -> Vec<RuleText> {
    let ToolUse { folders, hosts, secrets, writes, max_requests_per_minute, .. } = used;
    let of_tool = format!("context.tool == Tool::{}", quoted(tool.as_str()));
    let part = |action: &str, kind: &str, relation: &str, names: Vec<&str>| {
        let mut rule = RuleText::permit(&format!("action == Action::{}", quoted(action)), "resource");
        rule.when(any_of(names.iter().map(|name| format!("resource {relation} {kind}::{}", quoted(name)))));
        rule.when(of_tool.clone());
        rule
    };
    let mut rules = vec![rule_of_calls(tool, used)];
    if !folders.is_empty() {
        let action = if *writes { "write" } else { "read" };
        rules.push(part(action, "Folder", "in", folders.iter().map(String::as_str).collect()));
    }
    if !hosts.is_empty() {
        let mut rule = part("reach", "Host", "==", hosts.iter().map(String::as_str).collect());
        if let Some(rate) = max_requests_per_minute {
            rule.annotate("max_requests_per_minute", &rate.to_string());
        }
        rules.push(rule);
    }
    if !secrets.is_empty() {
        rules.push(part("use_secret", "Secret", "==", secrets.iter().map(SecretName::as_str).collect()));
    }
    rules
}

/// The permit of the calls themselves.
fn rule_of_calls(tool: &ToolName, used: &ToolUse) -> RuleText {
    let mut rule = RuleText::permit(&format!("action == Action::{}", quoted(&action_name(tool))), "resource");
    for (row, amount) in used.limits.claimed() {
        rule.annotate(row.key(), &row.to_number(amount).to_string());
    }
    let joined = |texts: &BTreeSet<String>| texts.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    if !used.scope.is_empty() {
        rule.annotate("scope", &joined(&used.scope));
    }
    if !used.blocked_paths.is_empty() {
        rule.annotate("blocked_paths", &joined(&used.blocked_paths));
    }
    if let Some(effects) = used.effects.unless_direct() {
        rule.annotate("effects", effects.as_str());
    }
    if let Some(called) = &used.called {
        let names = called.iter().map(ToolName::as_str).collect::<Vec<_>>();
        rule.annotate("calls", &names.join(" "));
    }
    if used.grants_all_paths {
        rule.annotate("grant_all_paths", "");
    }
    if used.is_escalated {
        rule.annotate("escalate", "a person decided on such a call before");
    }
    rule
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::limit::Limit;

    #[test]
    fn each_use_has_a_rule_of_its_own() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let read = ToolUse {
            calls: 1,
            folders: names(&["/workspace"]),
            limits: ClaimedLimits::default().with_amount(Limit::Memory, Some(3 << 20)),
            ..ToolUse::default()
        };
        let fetch = ToolUse {
            calls: 2,
            hosts: names(&["api.example.com"]),
            secrets: BTreeSet::from([SecretName::parse("key").unwrap()]),
            max_requests_per_minute: Some(20),
            is_escalated: true,
            ..ToolUse::default()
        };
        let program = ToolUse {
            calls: 3,
            folders: names(&["/tmp", "/workspace"]),
            writes: true,
            grants_all_paths: true,
            blocked_paths: names(&[".env"]),
            called: Some(BTreeSet::from([ToolName::parse("read_file").unwrap()])),
            effects: FileEffects::Staged,
            ..ToolUse::default()
        };
        let uses = [("read_file", read), ("fetch", fetch), ("run", program)];
        let uses = uses.map(|(name, used)| (ToolName::parse(name).unwrap(), used));
        let text = suggest(&AgentDid::parse("did:a:b").unwrap(), &BTreeMap::from(uses));
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "// fetch: 2 calls. @escalate(\"a person decided on such a call before\") permit \
             (principal == Agent::\"did:a:b\", action == Action::\"fetch\", resource);",
            "@max_requests_per_minute(\"20\") permit (principal == Agent::\"did:a:b\", action == Action::\"reach\", \
             resource) when { resource == Host::\"api.example.com\" && context.tool == Tool::\"fetch\" };",
            "when { resource == Secret::\"key\" && context.tool == Tool::\"fetch\" };",
            "// read_file: 1 call. @max_memory_mb(\"3\") permit",
            "action == Action::\"read\", resource) when { resource in Folder::\"/workspace\" && \
             context.tool == Tool::\"read_file\" };",
            "@blocked_paths(\".env\") @effects(\"staged\") @calls(\"read_file\") @grant_all_paths permit",
            "action == Action::\"write\", resource) when { (resource in Folder::\"/tmp\" || \
             resource in Folder::\"/workspace\") && context.tool == Tool::\"run\" };",
        ] {
            assert!(words.contains(part), "{part}\n{text}");
        }
    }
}
