//! The inbox: the intents that wait for a person, on a page of their own and on the overview.

use super::page::{cards, countdown, line, main_argument_part, short_id, waiting_count};
use super::session::SignedIn;
use super::{ConsoleState, elsewhere};
use a2g_core::run::{NodeStatus, WaitingSummary};
use a2g_govern::Caller;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::node::NodeName;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
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
    /// The argument by which people recognise the call.
    main_argument: Option<String>,
    risk: Option<(String, f64)>,
    reason: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
}

impl InboxEntry {
    /// The intents that wait at this node and that the caller may see, the first to expire first.
    pub(super) fn list_own(console: &ConsoleState, caller: &Caller) -> Vec<Self> {
        let waiting = console.executor.previews.waiting_intents(&|agent| caller.may_read(agent));
        let intents = waiting.into_iter().map(|waiting| {
            let WaitingSummary { intent, agent, tool, main_argument, risk, reason, expires_at } = waiting;
            let risk = risk.map(|(level, score)| (level.as_str().to_owned(), score));
            Self { intent, agent, tool, main_argument, risk, reason, expires_at }
        });
        intents.collect()
    }
}

impl Inbox {
    pub(super) async fn read(console: &ConsoleState, signed_in: &SignedIn) -> Self {
        let caller = &*signed_in.caller;
        let waiting = elsewhere::list_waiting(console, caller);
        let nodes = elsewhere::known_nodes(console, caller);
        let ((elsewhere, is_complete), nodes) = tokio::join!(waiting, nodes);
        let own = InboxEntry::list_own(console, caller).into_iter().map(|entry| (entry, None));
        let mut entries = own.collect::<Vec<_>>();
        // The load of a node that has replied is older than its list.
        let silent = nodes.iter().flatten().flatten().filter(|node| {
            Some(&node.node) != console.executor.node.name() && !elsewhere.contains_key(&node.node)
        });
        let mut unlisted = silent
            .map(|node| (node.node.clone(), node.load.map_or(0, |load| load.waiting), true))
            .collect::<Vec<_>>();
        for (node, NodeInbox { entries: listed, count }) in elsewhere {
            unlisted.push((node.clone(), count.saturating_sub(listed.len()), false));
            entries.extend(listed.into_iter().map(|entry| (entry, Some(node.clone()))));
        }
        unlisted.retain(|(_, count, _)| *count > 0);
        unlisted.sort_by(|(one, ..), (other, ..)| one.as_str().cmp(other.as_str()));
        entries.sort_by_key(|(entry, _)| (entry.expires_at, entry.intent));
        Self { entries, nodes, unlisted, is_complete }
    }

    /// The number of waiting intents, at nodes that have not listed theirs as well.
    fn count(&self) -> usize {
        self.entries.len() + self.unlisted.iter().map(|(_, count, _)| count).sum::<usize>()
    }

    fn table(&self, own_name: Option<&NodeName>, now: OffsetDateTime) -> Markup {
        let titles = ["Risk", "Tool", "Expires", "Main argument", "Why it waits", "Agent", "Node", "Decide"];
        let columns = titles.iter().filter(|column| own_name.is_some() || **column != "Node");
        let rows = self.entries.iter().map(|(entry, node)| {
            let InboxEntry { intent, agent, tool, main_argument, risk, reason, expires_at } = entry;
            let risk = risk.as_ref().map(|(level, score)| (level.as_str(), *score));
            html! {
                td role="cell" { (risk_part(risk)) }
                td role="cell" { strong { (tool) } }
                td role="cell" { (countdown(*expires_at, now)) }
                td.wide role="cell" { (main_argument_part(main_argument.as_deref())) }
                td.wide role="cell" { (line(without_risk(reason.as_deref(), risk))) }
                td.wide role="cell" { (line(agent.as_str())) }
                @if let Some(own_name) = own_name { td.wide role="cell" data-label="Node" { (node.as_ref().unwrap_or(own_name)) } }
                td role="cell" { a href={ "/console/decide/" (intent.to_string()) } { "Decide on " (short_id(*intent)) } }
            }
        });
        cards("Waiting calls", columns, rows)
    }

    /// The list, which the page refreshes when an intent starts or stops waiting at this node, and from time to time if
    /// other nodes may have some.
    pub(super) fn part(&self, console: &ConsoleState) -> Markup {
        let now = console.executor.clock().now();
        let own_name = console.executor.node.name();
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
                    (self.table(own_name, now))
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

/// `GET /console/waiting`: the number of waiting intents, for the navigation of an open page.
pub(super) async fn count(State(console): State<Arc<ConsoleState>>, signed_in: SignedIn) -> Response {
    let is_in_fleet = console.executor.node.name().is_some();
    let count = if is_in_fleet {
        Inbox::read(&console, &signed_in).await.count()
    } else {
        signed_in.viewer(&console).waiting
    };
    super::page::Html(waiting_count(count, is_in_fleet)).into_response()
}

/// `GET /console/inbox`.
pub(super) async fn list(State(console): State<Arc<ConsoleState>>, signed_in: SignedIn) -> Response {
    let inbox = Inbox::read(&console, &signed_in).await;
    let body = html! {
        h1 { "Inbox" }
        (inbox.part(&console))
    };
    signed_in.viewer(&console).page("Inbox", &body)
}

/// A governor's reason without the risk at its beginning, with which the governor in this program begins it: the page shows
/// the risk beside it.
pub(super) fn without_risk<'a>(reason: Option<&'a str>, risk: Option<(&str, f64)>) -> &'a str {
    let reason = reason.unwrap_or("the governor gave no reason");
    let rest = risk.and_then(|(level, score)| {
        let rest = reason.strip_prefix(&*format!("the risk is {score:.2} ({level})"))?;
        // Threats follow a colon. Without any, advice follows a semicolon.
        rest.strip_prefix(": ").or_else(|| rest.strip_prefix("; "))
    });
    rest.unwrap_or(reason)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_does_not_repeat_the_risk_beside_it() {
        for (reason, shown) in [
            (
                "the risk is 0.75 (HIGH): private_key: a key; a person has to decide",
                "private_key: a key; a person has to decide",
            ),
            ("the risk is 0.75 (HIGH); a person has to decide", "a person has to decide"),
            (
                "the risk is 0.75 (HIGH), says another governor",
                "the risk is 0.75 (HIGH), says another governor",
            ),
            ("the risk is 0.74 (HIGH); no", "the risk is 0.74 (HIGH); no"),
        ] {
            assert_eq!(without_risk(Some(reason), Some(("HIGH", 0.75))), shown);
        }
        assert_eq!(without_risk(None, None), "the governor gave no reason");
    }
}
