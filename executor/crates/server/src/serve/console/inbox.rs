//! The inbox: the intents that wait for a person, on a page of their own and on the overview.

use super::page::{countdown, line, scrolling_table, short_id};
use super::session::SignedIn;
use super::{ConsoleState, elsewhere};
use a2g_core::run::{NodeName, NodeStatus, WaitingSummary};
use a2g_govern::Caller;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use std::sync::Arc;
use time::OffsetDateTime;

/// Maximum number of intents of one node that the consoles of other nodes list.
pub(super) const MAX_LISTED_ELSEWHERE: usize = 200;

/// The waiting intents that a caller may see.
pub(super) struct Inbox {
    /// Those of all nodes that answered, the first to expire first.
    intents: Vec<(WaitingIntent, Option<NodeName>)>,
    /// The nodes of the fleet, for a person who may read the intents of all agents.
    pub(super) nodes: Option<Result<Vec<NodeStatus>, Fault>>,
    /// The other nodes that did not list all of theirs, with the number of those that are left out.
    unlisted: Vec<(NodeName, usize)>,
}

/// A waiting intent in the list, and in the answer to another node.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct WaitingIntent {
    pub(super) intent: IntentId,
    agent: AgentDid,
    tool: ToolName,
    risk: Option<(String, f64)>,
    reason: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
}

impl WaitingIntent {
    /// The intents that wait at this node and that the caller may see, the first to expire first.
    pub(super) fn list(console: &ConsoleState, caller: &Caller) -> Vec<Self> {
        let waiting = console.executor.waiting_intents(&|agent| caller.may_read(agent));
        let intents = waiting.into_iter().map(|waiting| {
            let WaitingSummary { intent, agent, tool, risk, reason, expires_at } = waiting;
            let risk = risk.map(|(level, score)| (level.as_str().to_owned(), score));
            Self { intent, agent, tool, risk, reason, expires_at }
        });
        intents.collect()
    }
}

impl Inbox {
    pub(super) async fn read(console: &ConsoleState, signed_in: &SignedIn) -> Self {
        let caller = &*signed_in.caller;
        let nodes = async { if caller.may_read_all() { console.executor.fleet_nodes().await } else { None } };
        let (elsewhere, nodes) = tokio::join!(elsewhere::list_waiting(console, caller), nodes);
        let own = WaitingIntent::list(console, caller).into_iter().map(|waiting| (waiting, None));
        let mut intents = own.collect::<Vec<_>>();
        let others = nodes.iter().flatten().flatten();
        let others = others.filter(|node| Some(&node.node) != console.executor.node_name());
        let unlisted = others.filter_map(|NodeStatus { node, load, .. }| {
            let listed = match elsewhere.get(node) {
                // The load is older than the list.
                Some(listed) if listed.len() < MAX_LISTED_ELSEWHERE => return None,
                Some(listed) => listed.len(),
                None => 0,
            };
            let count = load.waiting.saturating_sub(listed);
            (count > 0).then(|| (node.clone(), count))
        });
        let unlisted = unlisted.collect();
        intents.extend(elsewhere.into_iter().flat_map(|(node, waiting)| {
            waiting.into_iter().map(move |waiting| (waiting, Some(node.clone())))
        }));
        intents.sort_by_key(|(waiting, _)| (waiting.expires_at, waiting.intent));
        Self { intents, nodes, unlisted }
    }

    /// The list, which the page refreshes when an intent starts or stops waiting at this node, and from time to time if
    /// other nodes may have some.
    pub(super) fn part(&self, console: &ConsoleState) -> Markup {
        let now = console.executor.clock().now();
        let is_in_fleet = console.executor.node_name().is_some();
        let trigger = if is_in_fleet { "sse:inbox, every 15s" } else { "sse:inbox" };
        html! {
            section #inbox hx-get="/console/inbox" hx-trigger=(trigger) hx-select="#inbox" hx-swap="outerHTML"
                aria-live="polite" {
                @if self.intents.is_empty() {
                    p { "Nothing waits for a decision." }
                } @else {
                    (scrolling_table("Waiting calls", &html! {
                        thead { tr {
                            th { "Intent" } th { "Agent" } th { "Tool" } th { "Risk" } th { "Why it waits" } th { "Expires" }
                            @if is_in_fleet { th { "Node" } }
                        } }
                        tbody {
                            @for (WaitingIntent { intent, agent, tool, risk, reason, expires_at }, node) in &self.intents {
                                tr {
                                    td { a href={ "/console/decide/" (intent.to_string()) } { "Decide on " (short_id(*intent)) } }
                                    td { (line(agent.as_str())) }
                                    td { (tool) }
                                    td { (risk_part(risk.as_ref().map(|(level, score)| (level.as_str(), *score)))) }
                                    td { (line(reason.as_deref().unwrap_or(NO_REASON))) }
                                    td { (countdown(*expires_at, now)) }
                                    @if is_in_fleet { td { @match node { Some(node) => (node), None => "this one" } } }
                                }
                            }
                        }
                    }))
                }
                @for (node, count) in &self.unlisted {
                    p role="status" { (count) " more at the node " strong { (node) } ": its console shows them." }
                }
            }
        }
    }
}

/// `GET /console/inbox`.
pub(super) async fn list(State(console): State<Arc<ConsoleState>>, signed_in: SignedIn) -> Response {
    let inbox = Inbox::read(&console, &signed_in).await;
    let body = html! {
        h1 { "Inbox" }
        (inbox.part(&console))
    };
    signed_in.viewer().page("Inbox", &body)
}

/// The text for a verdict without a reason.
pub(super) const NO_REASON: &str = "the governor gave no reason";

pub(super) fn risk_part(risk: Option<(&str, f64)>) -> Markup {
    html! {
        @match risk {
            Some((level, score)) => {
                span.risk data-level=(level) { (level) " " (format!("{score:.2}")) }
            }
            None => { "not given" }
        }
    }
}
