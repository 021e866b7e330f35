//! The inbox: the intents that wait for a person, on a page of their own and on the overview.

use super::page::{cards, countdown, line, main_argument_part, short_id, waiting_count};
use super::session::SignedIn;
use super::{ConsoleState, elsewhere};
use a2g_core::run::{NodeStatus, WaitingSummary};
use a2g_types::fault::Fault;
use a2g_types::node::NodeName;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use maud::{Markup, html};
use std::sync::Arc;
use time::OffsetDateTime;

/// The waiting intents that a caller may see.
pub(super) struct Inbox {
    /// Those of all nodes, the first to expire first.
    entries: Vec<WaitingSummary>,
    /// The nodes of the fleet, for a person who may read the intents of all agents.
    pub(super) nodes: Option<Result<Vec<NodeStatus>, Fault>>,
    /// `true` if those of other nodes are known.
    is_complete: bool,
}

impl Inbox {
    pub(super) async fn read(console: &ConsoleState, signed_in: &SignedIn) -> Self {
        let caller = &*signed_in.caller;
        let nodes = elsewhere::known_nodes(console, caller);
        let (is_complete, nodes) = tokio::join!(console.executor.queries.refresh_waits(), nodes);
        let entries = console.executor.previews.waiting_intents(&|agent| caller.may_read(agent));
        Self { entries, nodes, is_complete }
    }

    fn table(&self, own_name: Option<&NodeName>, now: OffsetDateTime) -> Markup {
        let titles = ["Risk", "Tool", "Expires", "Main argument", "Why it waits", "Agent", "Node", "Decide"];
        let columns = titles.iter().filter(|column| own_name.is_some() || **column != "Node");
        let rows = self.entries.iter().map(|entry| {
            let WaitingSummary { intent, agent, tool, session, main_argument, risk, reason, expires_at, node } =
                entry;
            let risk = risk.as_ref().map(|(level, score)| (level.as_str(), *score));
            html! {
                td role="cell" { (risk_part(risk)) }
                td role="cell" {
                    strong { (tool) }
                    @if let Some(session) = session { " in session " code { (session.short()) } }
                }
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

    /// The list, which the page refreshes when an intent starts or stops waiting.
    pub(super) fn part(&self, console: &ConsoleState) -> Markup {
        let now = console.executor.clock().now();
        let own_name = console.executor.node.name();
        html! {
            section #inbox hx-get="/console/inbox" hx-trigger="sse:inbox" hx-select="#inbox" hx-swap="outerHTML"
                aria-live="polite" {
                @if self.entries.is_empty() {
                    p {
                        @if self.is_complete { "Nothing waits for a decision." }
                        @else { "Nothing is known to wait." }
                    }
                } @else {
                    (self.table(own_name, now))
                }
                @if !self.is_complete {
                    p role="status" {
                        "The servers of the fleet do not answer: what has begun or ceased to wait at other nodes since is not known here."
                    }
                }
            }
        }
    }
}

/// `GET /console/waiting`: the number of waiting intents, for the navigation of an open page.
pub(super) async fn count(State(console): State<Arc<ConsoleState>>, signed_in: SignedIn) -> Response {
    super::page::Html(waiting_count(signed_in.viewer(&console).waiting)).into_response()
}

/// `GET /console/inbox`.
pub(super) async fn list(State(console): State<Arc<ConsoleState>>, signed_in: SignedIn) -> Response {
    let inbox = Inbox::read(&console, &signed_in).await;
    let body = html! {
        h1 { "Inbox" }
        (inbox.part(&console))
        p.hint { "The file changes of runs that have ended wait on the page " a href="/console/changes" { "Changes" } "." }
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
