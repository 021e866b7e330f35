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
const MAX_ENTRIES_PER_NODE: usize = 200;

/// The waiting intents that a caller may see.
pub(super) struct Inbox {
    /// Those of all nodes that answered, the first to expire first, with their node; `None` for this one.
    entries: Vec<(InboxEntry, Option<NodeName>)>,
    /// The nodes of the fleet, for a person who may read the intents of all agents.
    pub(super) nodes: Option<Result<Vec<NodeStatus>, Fault>>,
    /// The other nodes that have not listed all of theirs, with the number of those that are left out.
    unlisted: Vec<(NodeName, usize, bool)>,
    /// `true` if all other nodes that are known to run have listed theirs.
    is_complete: bool,
}

/// The waiting intents of a node that a caller may see, in the form for another node.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct NodeInbox {
    /// At most [`MAX_ENTRIES_PER_NODE`].
    entries: Vec<InboxEntry>,
    /// The number of all.
    count: usize,
}

impl NodeInbox {
    pub(super) fn read(console: &ConsoleState, caller: &Caller) -> Self {
        let mut entries = InboxEntry::list_own(console, caller);
        let count = entries.len();
        entries.truncate(MAX_ENTRIES_PER_NODE);
        Self { entries, count }
    }
}

/// A line of the inbox, also in the form for another node.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct InboxEntry {
    pub(super) intent: IntentId,
    agent: AgentDid,
    tool: ToolName,
    risk: Option<(String, f64)>,
    reason: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
}

impl InboxEntry {
    /// The intents that wait at this node and that the caller may see, the first to expire first.
    pub(super) fn list_own(console: &ConsoleState, caller: &Caller) -> Vec<Self> {
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
        let (waiting, nodes) =
            (elsewhere::list_waiting(console, caller), elsewhere::known_nodes(console, caller));
        let ((elsewhere, is_complete), nodes) = tokio::join!(waiting, nodes);
        let own = InboxEntry::list_own(console, caller).into_iter().map(|entry| (entry, None));
        let mut entries = own.collect::<Vec<_>>();
        // The load of a node that has replied is older than its list.
        let silent = nodes.iter().flatten().flatten().filter(|node| {
            Some(&node.node) != console.executor.node_name() && !elsewhere.contains_key(&node.node)
        });
        let mut unlisted =
            silent.map(|node| (node.node.clone(), node.load.waiting, true)).collect::<Vec<_>>();
        for (node, NodeInbox { entries: listed, count }) in elsewhere {
            unlisted.push((node.clone(), count.saturating_sub(listed.len()), false));
            entries.extend(listed.into_iter().map(|entry| (entry, Some(node.clone()))));
        }
        unlisted.retain(|(_, count, _)| *count > 0);
        unlisted.sort_by(|(one, ..), (other, ..)| one.as_str().cmp(other.as_str()));
        entries.sort_by_key(|(entry, _)| (entry.expires_at, entry.intent));
        Self { entries, nodes, unlisted, is_complete }
    }

    /// The list, which the page refreshes when an intent starts or stops waiting at this node, and from time to time if
    /// other nodes may have some.
    pub(super) fn part(&self, console: &ConsoleState) -> Markup {
        let now = console.executor.clock().now();
        let own_name = console.executor.node_name();
        let trigger = if own_name.is_some() { "sse:inbox, every 15s" } else { "sse:inbox" };
        html! {
            section #inbox hx-get="/console/inbox" hx-trigger=(trigger) hx-select="#inbox" hx-swap="outerHTML"
                aria-live="polite" {
                @if self.entries.is_empty() {
                    p {
                        @if self.is_complete { "Nothing waits for a decision." }
                        @else { "Nothing waits at the nodes that have answered." }
                    }
                } @else {
                    (scrolling_table("Waiting calls", &html! {
                        thead { tr {
                            th { "Intent" } th { "Agent" } th { "Tool" } th { "Risk" } th { "Why it waits" } th { "Expires" }
                            @if own_name.is_some() { th { "Node" } }
                        } }
                        tbody {
                            @for (InboxEntry { intent, agent, tool, risk, reason, expires_at }, node) in &self.entries {
                                tr {
                                    td { a href={ "/console/decide/" (intent.to_string()) } { "Decide on " (short_id(*intent)) } }
                                    td { (line(agent.as_str())) }
                                    td { (tool) }
                                    td { (risk_part(risk.as_ref().map(|(level, score)| (level.as_str(), *score)))) }
                                    td { (line(reason.as_deref().unwrap_or(NO_REASON))) }
                                    td { (countdown(*expires_at, now)) }
                                    @if let Some(own_name) = own_name { td { (node.as_ref().unwrap_or(own_name)) } }
                                }
                            }
                        }
                    }))
                }
                @for (node, count, is_silent) in &self.unlisted {
                    p role="status" {
                        (count) " more at the node " strong { (node) }
                        @if *is_silent { ", which does not answer: if it stays away, they appear here within 25 s." }
                        @else { ": its console shows them." }
                    }
                }
                @if !self.is_complete {
                    p role="status" {
                        "A node of the fleet has not listed the intents that wait there: they are missing here."
                    }
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
