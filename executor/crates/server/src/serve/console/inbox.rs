//! The inbox: the intents that wait for a person, on a page of their own and on the overview.

use super::ConsoleState;
use super::page::{countdown, line, scrolling_table, short_id};
use super::session::SignedIn;
use a2g_core::run::{NodeStatus, WaitingSummary};
use a2g_types::fault::Fault;
use a2g_types::verdict::RiskLevel;
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use std::sync::Arc;
use time::OffsetDateTime;

/// `GET /console/inbox`.
pub(super) async fn list(State(console): State<Arc<ConsoleState>>, signed_in: SignedIn) -> Response {
    let waiting = visible_intents(&console, &signed_in);
    let nodes = readable_nodes(&console, &signed_in).await;
    let body = html! {
        h1 { "Inbox" }
        (list_part(&waiting, console.executor.clock().now()))
        (elsewhere_part(&console, nodes.as_ref()))
    };
    signed_in.viewer().page("Inbox", &body)
}

/// The waiting intents that the caller may see.
pub(super) fn visible_intents(console: &ConsoleState, signed_in: &SignedIn) -> Vec<WaitingSummary> {
    console.executor.waiting_intents(&|agent| signed_in.caller.may_read(agent))
}

/// The list, which the page refreshes when an intent starts or stops waiting.
pub(super) fn list_part(waiting: &[WaitingSummary], now: OffsetDateTime) -> Markup {
    html! {
        section #inbox hx-get="/console/inbox" hx-trigger="sse:inbox" hx-select="#inbox" hx-swap="outerHTML"
            aria-live="polite" {
            @if waiting.is_empty() {
                p { "Nothing waits for a decision." }
            } @else {
                (scrolling_table("Waiting calls", &html! {
                    thead { tr { th { "Intent" } th { "Agent" } th { "Tool" } th { "Risk" } th { "Why it waits" } th { "Expires" } } }
                    tbody {
                        @for WaitingSummary { intent, agent, tool, risk, reason, expires_at } in waiting {
                            tr {
                                td { a href={ "/console/decide/" (intent.to_string()) } { "Decide on " (short_id(*intent)) } }
                                td { (line(agent.as_str())) }
                                td { (tool) }
                                td { (risk_part(*risk)) }
                                td { (line(reason.as_deref().unwrap_or(NO_REASON))) }
                                td { (countdown(*expires_at, now)) }
                            }
                        }
                    }
                }))
            }
        }
    }
}

/// The nodes of the fleet, for a person who may read the intents of all agents.
pub(super) async fn readable_nodes(
    console: &ConsoleState,
    signed_in: &SignedIn,
) -> Option<Result<Vec<NodeStatus>, Fault>> {
    if signed_in.caller.may_read_all() { console.executor.fleet_nodes().await } else { None }
}

/// The numbers of intents that wait at other nodes of the fleet, whose consoles have them.
pub(super) fn elsewhere_part(
    console: &ConsoleState,
    nodes: Option<&Result<Vec<NodeStatus>, Fault>>,
) -> Markup {
    let Some(Ok(nodes)) = nodes else { return html! {} };
    let others = nodes.iter().filter(|node| Some(&node.node) != console.executor.node_name());
    html! {
        @for NodeStatus { node, load, .. } in others.filter(|node| node.load.waiting > 0) {
            p role="status" { (load.waiting) " more at the node " strong { (node) } ": its console shows them." }
        }
    }
}

/// The text for a verdict without a reason.
pub(super) const NO_REASON: &str = "the governor gave no reason";

pub(super) fn risk_part(risk: Option<(RiskLevel, f64)>) -> Markup {
    html! {
        @match risk {
            Some((level, score)) => {
                span.risk data-level=(level.as_str()) { (level.as_str()) " " (format!("{score:.2}")) }
            }
            None => { "not given" }
        }
    }
}
