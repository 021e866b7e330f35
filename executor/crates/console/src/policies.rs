//! The policies by which the governor in this program decides, the standing policies in force, and the revocations.

use super::ConsoleState;
use super::page::{at, block, counted, line};
use super::session::SignedIn;
use a2g_govern::local::{CedarPolicies, ListedRule, ObservedCounts, PolicyOverview, PolicySet};
use a2g_govern::{Caller, ListedPolicy, PolicyOrigin};
use a2g_types::ident::AgentDid;
use a2g_types::verdict::Policy;
use a2g_wire::a2g::encode;
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use std::sync::Arc;

/// Maximum number of policies on the page.
const MAX_LISTED: usize = 100;

/// `true` if the caller may read the policy of an agent, or the one for all agents.
fn may_read_policy(caller: &Caller, agent: Option<&AgentDid>) -> bool {
    match agent {
        Some(agent) => caller.may_read(agent),
        None => caller.may_read_all(),
    }
}

/// `GET /console/policies`.
pub(super) async fn list(State(console): State<Arc<ConsoleState>>, signed_in: SignedIn) -> Response {
    let caller = &signed_in.caller;
    let mut policies = console.executor.policies.list(|agent| may_read_policy(caller, agent), MAX_LISTED + 1);
    let are_more = policies.len() > MAX_LISTED;
    policies.truncate(MAX_LISTED);
    let governor = console.executor.policies.governor();
    let body = html! {
        h1 { "Policies" }
        h2 { "Of the governor" }
        @match governor.policies() {
            None => { p { "The governor " (line(governor.endpoint())) " decides on each intent. It does not publish its policies." } }
            Some(policies) => {
                @match policies.cedar() {
                    Some(cedar) => { (cedar_part(cedar, caller)) }
                    None => { (governor_part(policies, caller)) }
                }
            }
        }
        h2 { "Standing policies" }
        p { "A standing policy limits every intent of its agent, in addition to the verdict, the tool and the executor's ceilings. The governor sets and revokes them. They are not kept across a restart, after which the governor sends them again." }
        @if policies.is_empty() { p { "No agent that you may see has one." } }
        @for policy in &policies { (policy_part(policy)) }
        @if are_more { p { "There are more than " (MAX_LISTED) " policies; the rest is not listed." } }
    };
    signed_in.viewer(&console).page("Policies", &body)
}

/// The policies that decide on each intent.
fn governor_part(policies: &PolicySet, caller: &Caller) -> Markup {
    let readable = policies.iter().filter(|(policy, _)| may_read_policy(caller, policy.agent.as_ref()));
    let visible = readable.take(MAX_LISTED + 1).collect::<Vec<_>>();
    html! {
        p { "The governor inside this program decides on each intent by the policy of its agent, or else by the policy for every agent without one. A change takes effect when the program starts again." }
        @if visible.is_empty() { p { "There is none that you may see." } }
        @for (policy, from) in visible.iter().take(MAX_LISTED) {
            h3 { (policy_name(policy.agent.as_ref())) }
            p { "From " (line(from)) }
            (policy_facts(policy))
        }
        @if visible.len() > MAX_LISTED { p { "There are more than " (MAX_LISTED) "; the rest is not listed." } }
    }
}

/// The rules in Cedar that decide on each intent, for callers that may read all policies.
fn cedar_part(policies: &CedarPolicies, caller: &Caller) -> Markup {
    if !may_read_policy(caller, None) {
        return html! { p { "The governor inside this program decides on each intent by policies in Cedar, which you may not see." } };
    }
    let PolicyOverview { folder, in_force, error, rules, observed } = policies.overview();
    html! {
        p { "The governor inside this program decides on each intent by the policies in Cedar in " code { (line(&folder.display().to_string())) } ". A change takes effect when the program starts again." }
        @if let Some(error) = &error {
            p.error { "The policies do not fit the tools: " (line(error)) }
            p.error { @if in_force.is_some() { "The earlier ones stay in force, and deny tools that they do not know." } @else { "Every intent is denied." } }
        }
        @if let Some((hash, since)) = &in_force {
            dl.facts {
                dt { "Version" } dd { code.hash { (hash.to_string()) } }
                dt { "In force since" } dd { (at(*since)) }
            }
        }
        @for (file, counts) in &observed { (observed_part(file, *counts)) }
        @for rule in rules.iter().take(MAX_LISTED) { (rule_part(rule)) }
        @if rules.len() > MAX_LISTED { p { "There are more than " (MAX_LISTED) " rules; the rest is not listed." } }
    }
}

/// What an observed file would have changed.
fn observed_part(file: &str, counts: ObservedCounts) -> Markup {
    let ObservedCounts { calls, denied, allowed, otherwise } = counts;
    html! {
        p {
            code { (line(file)) } " is observed and changes no outcome. Of " (counted(calls, "intent")) " since the program started, it would have denied "
            (denied) " more, allowed " (allowed) " that were denied, and decided " (otherwise) " otherwise."
        }
    }
}

fn rule_part(rule: &ListedRule) -> Markup {
    let ListedRule { name, is_permit, is_observed, text, decided } = rule;
    html! {
        h3 { (line(&name.to_string())) }
        p {
            @if *is_permit { "Permits" } @else { "Forbids" } @if *is_observed { ", observed: it would have decided " } @else { ": it decided " }
            (counted(*decided, "intent"))
        }
        (block(text))
    }
}

fn policy_name(agent: Option<&AgentDid>) -> Markup {
    html! { @match agent { Some(agent) => { (line(agent.as_str())) } None => { "Every agent without a policy of its own (" code { "*" } ")" } } }
}

fn policy_part(ListedPolicy { agent, policy, origin }: &ListedPolicy) -> Markup {
    let PolicyOrigin { by, since } = origin;
    html! {
        h3 { (policy_name(agent.as_ref())) }
        p { @if policy.is_some() { "Set" } @else { "Revoked" } " by " (line(by)) ", " (at(*since)) }
        @match policy {
            Some(policy) => { (policy_facts(policy)) }
            None => { p.error { "Every intent is refused until the governor sends a new policy." } }
        }
    }
}

fn policy_facts(policy: &Policy) -> Markup {
    let allowed = policy.tools.iter().filter(|(_, rule)| rule.allowed).map(|(tool, _)| tool.as_str());
    let json = serde_json::from_str::<serde_json::Value>(encode::policy(policy).get());
    html! {
        dl.facts {
            dt { "Version" } dd { (line(&policy.version)) }
            dt { "Allowed tools" } dd { (allowed.collect::<Vec<_>>().join(", ")) }
        }
        @if let Ok(json) = json { (block(&serde_json::to_string_pretty(&json).unwrap_or_default())) }
    }
}
