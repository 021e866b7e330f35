//! The inbox: the intents that wait for a person, on a page of their own and on the overview.

use super::ConsoleState;
use super::page::{countdown, line, scrolling_table, short_id};
use super::session::SignedIn;
use a2g_core::run::WaitingSummary;
use a2g_types::verdict::RiskLevel;
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use std::sync::Arc;
use time::OffsetDateTime;

/// `GET /console/inbox`.
pub(super) async fn list(State(console): State<Arc<ConsoleState>>, signed_in: SignedIn) -> Response {
    let waiting = visible_intents(&console, &signed_in);
    let body = html! {
        h1 { "Inbox" }
        (list_part(&waiting, console.executor.clock().now()))
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
