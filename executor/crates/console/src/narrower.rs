//! Narrower limits that would still have allowed the same runs, as text to copy.
//!
//! Every text starts from the current standing policy or `[capabilities]`, and never widens it. It narrows only limits whose
//! use receipts measure. [`METHOD`] states every rule, for the reader of the text.

use a2g_journal::{PairNeeds, RunNeeds};
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::limit::{ClaimedLimits, Group, LIMITS, Limit};
use a2g_types::quantity::{BYTES_PER_MB, MemoryLimit, Timeout};
use a2g_types::tool::{CallTargets, DeclaredCapabilities, DeclaredFilesystem};
use a2g_types::verdict::{Policy, ToolRule};
use a2g_wire::a2g::encode;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

/// The least suggested timeout, in seconds. A shorter one would end runs on a machine that is busy.
const MIN_SECONDS: u64 = 2;
/// The rules by which the limits are computed.
pub(super) const METHOD: &str = "Memory and the number of calls are the greatest use × 1.25, in whole MB and whole calls; \
     time is the longest run × 2, in whole seconds, at least 2; none is more than what was granted. The network is off if no \
     run made a request; otherwise its hosts are those that were contacted, if the receipts name all of them. Tools that the \
     agent neither used nor called are left out. The CPU share is not narrowed, because an average does not show the peak, \
     and neither are paths, sizes and rates, because receipts do not measure them.";

/// The standing policy of an agent, narrowed to the needs of its runs; `None` if no run was measured. The version names
/// the `date`.
pub(super) fn policy(
    agent: &AgentDid,
    current: Option<Policy>,
    pairs: &[&PairNeeds],
    date: time::Date,
) -> Option<Policy> {
    let mut total = RunNeeds::default();
    pairs.iter().for_each(|pair| total.merge(&pair.needs));
    if total.runs == 0 {
        return None;
    }
    let is_new = current.is_none();
    let Policy { tools: rules, mut network, mut resources, constitution_hash, .. } =
        current.unwrap_or_else(|| Policy {
            agent: None,
            version: String::new(),
            tools: BTreeMap::new(),
            network: Default::default(),
            resources: Default::default(),
            constitution_hash: None,
        });
    // A tool that the current policy no longer lists is not allowed again.
    let rule_of = |tool: &ToolName| match rules.get(tool) {
        Some(rule) => Some(rule.clone()),
        None => is_new.then(|| ToolRule { allowed: true, ..ToolRule::default() }),
    };
    let mut tools = BTreeMap::new();
    // The receipts of called tools may be older than those that were read.
    for called in total.called.iter().flatten() {
        tools.extend(rule_of(called).map(|rule| (called.clone(), rule)));
    }
    for PairNeeds { tool, needs, .. } in pairs {
        let Ok(tool) = ToolName::parse(tool) else { continue };
        if let Some(mut rule) = rule_of(&tool) {
            narrow_rule(&mut rule, needs);
            tools.insert(tool, rule);
        }
    }
    resources.limits = resources.limits.narrower(&ClaimedLimits::default().with(memory(&total)));
    network.allowed_domains = narrow_hosts(network.allowed_domains, &total);
    let agent = Some(agent.clone());
    let version = format!("usage-{date}");
    Some(Policy { agent, version, tools, network, resources, constitution_hash })
}

fn narrow_rule(rule: &mut ToolRule, needs: &RunNeeds) {
    if needs.runs == 0 {
        return;
    }
    rule.limits = rule.limits.narrower(&ClaimedLimits::default().with(timeout(needs)));
    if !needs.may_call {
        return;
    }
    if needs.calls == 0 {
        rule.calls = Some(CallTargets::none());
        rule.limits[Limit::Calls] = None;
        return;
    }
    rule.limits = rule.limits.narrower(&max_calls(needs));
    if let Some(called) = &needs.called {
        rule.calls = Some(narrow_targets(rule.calls.as_ref().unwrap_or(&CallTargets::All), called));
    }
}

/// The hosts that a policy allows, narrowed to those that were contacted.
fn narrow_hosts(current: Option<Vec<String>>, needs: &RunNeeds) -> Option<Vec<String>> {
    if !needs.has_used_network {
        return Some(Vec::new());
    }
    let Some(hosts) = &needs.hosts else { return current };
    let allowed = |host: &String| match &current {
        None => vec![host.clone()],
        Some(patterns) if patterns.iter().any(|pattern| covers(pattern, host)) => vec![host.clone()],
        // The name of the host would be wider than an entry with `https://`.
        Some(patterns) => patterns.iter().filter(|pattern| is_https_of(pattern, host)).cloned().collect(),
    };
    Some(hosts.iter().flat_map(allowed).collect())
}

/// `true` for the pattern `https://HOST` or `https://HOST:PORT` of this host.
fn is_https_of(pattern: &str, host: &str) -> bool {
    let Some(authority) = pattern.strip_prefix("https://") else { return false };
    let name = authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
    name.map_or(authority, |(name, _)| name).eq_ignore_ascii_case(host)
}

/// `true` if a pattern of a policy certainly matches a host. Only patterns for names match more than their own text.
fn covers(pattern: &str, host: &str) -> bool {
    let is_address = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
    let is_below = || {
        let parent = pattern.strip_prefix("*.").map(str::to_ascii_lowercase);
        parent.is_some_and(|parent| host.strip_suffix(&parent).is_some_and(|rest| rest.ends_with('.')))
    };
    pattern.eq_ignore_ascii_case(host) || (!is_address && (pattern == "*" || is_below()))
}

/// A policy as the params of `g2a/policy`. Text is written in ASCII, so that nothing invisible is copied.
pub(super) fn policy_text(policy: &Policy) -> String {
    let message = encode::policy(policy);
    let value = serde_json::from_str::<serde_json::Value>(message.get()).unwrap_or_default();
    let text = serde_json::to_string_pretty(&value).unwrap_or_default();
    let mut ascii = String::with_capacity(text.len());
    for c in text.chars() {
        // Other characters stand only in strings, where JSON can escape each of them.
        if c == '\n' || (' '..='~').contains(&c) {
            ascii.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _infallible = write!(ascii, "\\u{unit:04x}");
            }
        }
    }
    ascii
}

/// The section `[capabilities]` of a tool, narrowed to the needs of its runs; `None` if no run was measured.
pub(super) fn capabilities(
    declared: &DeclaredCapabilities,
    needs: &RunNeeds,
) -> Option<DeclaredCapabilities> {
    if needs.runs == 0 {
        return None;
    }
    let mut narrower = declared.clone();
    let DeclaredCapabilities { filesystem, effects: _, network, requests, secrets, limits, calls } =
        &mut narrower;
    if !needs.has_files {
        *filesystem = DeclaredFilesystem::None;
    }
    *network &= needs.has_used_network;
    requests.retain(|_| *network);
    secrets.retain(|_| *network);
    *limits = limits.narrower(&ClaimedLimits::default().with(memory(needs)).with(timeout(needs)));
    if needs.calls == 0 {
        *calls = CallTargets::none();
        LIMITS.iter().filter(|row| row.group == Group::Calls).for_each(|row| limits[row.limit] = None);
    } else {
        *limits = limits.narrower(&max_calls(needs));
        if let Some(called) = &needs.called {
            *calls = narrow_targets(calls, called);
        }
    }
    Some(narrower)
}

/// The section `[capabilities]` as TOML, after `comment` in one line.
pub(super) fn capabilities_text(
    capabilities: &DeclaredCapabilities,
    needs: &RunNeeds,
    comment: &str,
) -> String {
    let DeclaredCapabilities { filesystem, effects, network, requests, secrets, limits, calls } =
        capabilities;
    let mut text = format!("# {comment}\n[capabilities]\nfilesystem = \"{}\"\n", filesystem.as_str());
    if *filesystem == DeclaredFilesystem::ReadWrite && !needs.has_written {
        text.push_str(
            "# No run wrote to a file or created one, so \"read\" suffices, unless the tool removes, renames or truncates\n\
             # files, or sets their times: receipts do not count that.\n",
        );
    }
    let mut set = |key: &str, value: Option<String>| {
        let _infallible = value.map(|value| writeln!(text, "{key} = {value}"));
    };
    set("effects", effects.unless_direct().map(|effects| format!("\"{}\"", effects.as_str())));
    set("network", Some(network.to_string()));
    let list = |texts: Vec<String>| (!texts.is_empty()).then(|| format!("[\"{}\"]", texts.join("\", \"")));
    set("requests", list(requests.iter().map(ToString::to_string).collect()));
    set("secrets", list(secrets.iter().map(ToString::to_string).collect()));
    for row in &LIMITS {
        if row.group == Group::Calls && calls.is_empty() {
            continue;
        }
        if row.limit == Limit::Calls {
            let names = calls.to_names().into_iter().map(|name| format!("\"{name}\""));
            set("calls", Some(format!("[{}]", names.collect::<Vec<_>>().join(", "))));
        }
        set(row.key(), limits[row.limit].map(|amount| row.to_number(amount).to_string()));
    }
    text
}

/// The tools of `current` that were called.
fn narrow_targets(current: &CallTargets, called: &BTreeSet<ToolName>) -> CallTargets {
    CallTargets::Named(called.iter().filter(|tool| current.includes(tool)).cloned().collect())
}

fn memory(needs: &RunNeeds) -> Option<MemoryLimit> {
    let mb =
        add_quarter(needs.memory_bytes).div_ceil(BYTES_PER_MB).min(needs.granted_memory_bytes / BYTES_PER_MB);
    MemoryLimit::from_mb(mb.max(1)).ok()
}

fn timeout(needs: &RunNeeds) -> Option<Timeout> {
    let seconds = needs.wall_ms.saturating_mul(2).div_ceil(1_000).max(MIN_SECONDS);
    Timeout::from_seconds(seconds.min(needs.granted_ms.div_ceil(1_000)).max(1)).ok()
}

fn max_calls(needs: &RunNeeds) -> ClaimedLimits {
    // A policy and a tool may set no more than the ceiling may be.
    let max = Limit::Calls.row().map_or(u64::MAX, |row| row.max);
    let count = add_quarter(needs.calls.into()).min(max);
    ClaimedLimits::default().with_amount(Limit::Calls, Some(count))
}

/// An amount and a quarter of it, rounded up.
fn add_quarter(amount: u64) -> u64 {
    amount.saturating_add(amount.div_ceil(4))
}

#[cfg(test)]
mod tests;
