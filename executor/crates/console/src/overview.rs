//! The overview: figures, active runs, containment, the inbox, and the stops in force with the form for another one.

use super::ConsoleState;
use super::active::ActiveList;
use super::containment;
use super::inbox::Inbox;
use super::page::{Viewer, at, elapsed, fault_page, forbidden, line, scrolling_table};
use super::session::{PostedForm, SignedIn};
use super::sign_in::{redeem_key, sign_in_first};
use a2g_core::run::{NodeLoad, NodeStatus};
use a2g_govern::Role;
use a2g_journal::{ChainCheck, Condition};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::memory;
use a2g_types::stop::{OperatorReason, Stop, StopTarget};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum number of agents that the form for a stop suggests.
const MAX_SUGGESTED: usize = 50;

#[derive(serde::Deserialize)]
pub(super) struct StartQuery {
    #[serde(default)]
    key: Option<String>,
}

/// `GET /console`. With the key of a link, it begins a session.
pub(super) async fn show(
    State(console): State<Arc<ConsoleState>>,
    method: Method,
    Query(query): Query<StartQuery>,
    headers: HeaderMap,
    signed_in: Option<SignedIn>,
) -> Response {
    // A program that checks a link with `HEAD` does not use it up.
    if let Some(key) = query.key.filter(|_| method == Method::GET) {
        return redeem_key(&console, &key).await;
    }
    let signed_in = match signed_in {
        Some(signed_in) => signed_in,
        None => return sign_in_first(&headers, "/console"),
    };
    let is_operator = signed_in.caller.is_any_of(&[Role::Operator]);
    let (active, inbox) =
        tokio::join!(ActiveList::read(&console, &signed_in), Inbox::read(&console, &signed_in));
    let body = html! {
        h1 { "Overview" }
        (figures(&console, &signed_in, &active))
        @if let Some(nodes) = inbox.nodes.as_ref().filter(|_| is_operator) { (fleet_part(nodes)) }
        @if is_operator { (containment::part(&console.containment)) }
        h2 { "Waiting for a decision" }
        (inbox.part(&console))
        // Only for those who may call `a2g/stops`: a stop names an agent that other callers may not know.
        @if signed_in.caller.stop_right().is_some() {
            h2 { "Stops" }
            (stops_part(&console, signed_in.viewer(&console)))
        }
    };
    signed_in.viewer(&console).page("Overview", &body)
}

/// The nodes of the fleet, which the page refreshes.
fn fleet_part(nodes: &Result<Vec<NodeStatus>, Fault>) -> Markup {
    html! {
        section #fleet hx-get="/console" hx-trigger="every 15s" hx-select="#fleet" hx-swap="outerHTML" {
            h2 { "Fleet" }
            @match nodes {
                Err(_) => p role="status" { "The servers of the fleet do not answer: nothing can run until they do." },
                Ok(nodes) => (scrolling_table("Nodes", &html! {
                    thead { tr {
                        th { "Node" } th { "State" } th { "Version" } th { "Running" } th { "Queued" }
                        th { "Waiting for a person" } th { "Open" } th { "Reports not delivered" }
                        th { "Last seen" }
                    } }
                    tbody {
                        @for node in nodes {
                            tr {
                                td { (node.node) }
                                td {
                                    (node.state_name())
                                    @if let Some(by) = node.taken_over_by() { ", " (by) " took over" }
                                }
                                td { (line(&node.version)) }
                                td { (figure(node, |load| format!("{} of {}", load.running, load.concurrent))) }
                                td { (figure(node, |load| load.queued.to_string())) }
                                td { (figure(node, |load| load.waiting.to_string())) }
                                td { (node.open) }
                                td { (figure(node, |load| load.undelivered.to_string())) }
                                td { (node.seen_text()) " ago" }
                            }
                        }
                    }
                    @let loads = nodes.iter().filter_map(|node| node.load).collect::<Vec<_>>();
                    @let sum = |figure: fn(&NodeLoad) -> usize| loads.iter().map(figure).sum::<usize>();
                    tfoot {
                        tr {
                            th { "All" } td {} td {}
                            td { (sum(|load| load.running)) " of " (sum(|load| load.concurrent)) }
                            td { (sum(|load| load.queued)) } td { (sum(|load| load.waiting)) }
                            td { (nodes.iter().map(|node| node.open).sum::<usize>()) }
                            td { (sum(|load| load.undelivered)) } td {}
                        }
                    }
                })),
            }
        }
    }
}

/// A figure of a node's load; a dash if the load is not known.
fn figure(node: &NodeStatus, show: impl FnOnce(NodeLoad) -> String) -> String {
    node.load.map_or_else(|| "–".to_owned(), show)
}

/// The figures, which the page refreshes while runs begin and end.
fn figures(console: &ConsoleState, signed_in: &SignedIn, active: &ActiveList) -> Markup {
    let executor = &console.executor;
    let (running, queued) = executor.queries.queue_stats();
    let journal = &executor.journal;
    let recent = executor.metrics().recent().summarize(executor.clock().monotonic());
    let condition = match journal.condition() {
        Condition::Works => "works",
        Condition::Full => {
            "accepts no writes, because its disk is full or another program holds its file: free some space, or end that program"
        }
        Condition::Broken(_) => "is broken: see the log",
    };
    let own_name = executor.node.name();
    let figure =
        |name: &str, value: String| html! { div.figure { span.value { (value) } span.name { (name) } } };
    html! {
        section #figures hx-get="/console" hx-trigger="sse:runs, every 15s" hx-select="#figures" hx-swap="outerHTML" {
            // Only for those who may read `GET /metrics`: these figures cover all agents.
            @if signed_in.caller.is_any_of(&[Role::Operator]) {
                div.figures {
                    (figure("running", running.to_string()))
                    (figure("queued", queued.to_string()))
                    (figure("runs per second, in the last minute", per_second(recent.last_minute)))
                    @if let Some(wall) = recent.wall {
                        (figure("median wall time, latest runs", elapsed(wall.p50)))
                        (figure("95th percentile of it", elapsed(wall.p95)))
                    }
                    (figure("receipts", journal.head().number.to_string()))
                    (figure("reports not delivered", journal.deliveries.undelivered_count().to_string()))
                    (figure("MB of journal", (journal.bytes() >> 20).to_string()))
                    (figure("MB of memory in use", (memory::used_bytes() >> 20).to_string()))
                }
                @if let Some(node) = own_name { p { "These are the figures of the node " strong { (node) } "." } }
                p { "The journal " (condition) ". " @if let Some(check) = journal.chain_check() { (verified(&check)) } }
            }
            (active.part(own_name))
        }
    }
}

/// The runs per second of a minute.
fn per_second(last_minute: u64) -> String {
    let tenths = last_minute.div_ceil(6);
    match last_minute {
        0 => "0".to_owned(),
        1..600 => format!("{}.{}", tenths / 10, tenths % 10),
        _ => (last_minute / 60).to_string(),
    }
}

/// The part of the chain that was read and verified since the start.
fn verified(check: &ChainCheck) -> Markup {
    let ChainCheck { last_receipt, at: time, is_whole } = *check;
    html! {
        @match (last_receipt, is_whole) {
            (0, _) => "The journal had no receipts to verify at the start.",
            (_, true) => { "The chain was verified up to receipt " (last_receipt) ", " (at(time)) "." },
            (_, false) => {
                "The latest " (ChainCheck::MAX_RECORDS_AT_START) " records, up to receipt " (last_receipt) ", were verified at the start, "
                (at(time)) ". Earlier records have not been verified yet."
            }
        }
    }
}

fn stops_part(console: &ConsoleState, viewer: Viewer<'_>) -> Markup {
    let stops = console.executor.queries.stops();
    let active = console.executor.queries.active_runs();
    // Active runs may belong to thousands of agents.
    let visible = active.iter().map(|run| &run.agent).filter(|agent| viewer.caller.may_read(agent));
    let agents = visible.collect::<BTreeSet<_>>().into_iter().take(MAX_SUGGESTED);
    html! {
        @if stops.is_empty() { p { "Nothing is stopped." } }
        @for stop in &stops { (stop_row(stop, viewer)) }
        form method="post" action="/console/stop" {
            (viewer.token_field())
            p { "A stop aborts the target's runs, withdraws its waiting calls and refuses new ones, until somebody resumes it." }
            p {
                label for="target" { "What" } " "
                select #target name="target" {
                    option value="agent" { "one agent" }
                    option value="tool" { "one tool" }
                    option value="everything" { "everything" }
                }
                " " label for="name" { "Name of the agent or tool (empty for everything)" } " "
                input #name name="name" list="names";
            }
            datalist #names {
                @for agent in agents { option value=(agent.as_str()) {} }
                @for tool in console.executor.catalogue.tools().iter() { option value=(tool.name) {} }
            }
            p { label for="stop-reason" { "Reason, which every refused agent is told" } }
            p { input #stop-reason name="reason" required maxlength=(OperatorReason::MAX_CHARS); }
            p { button.danger type="submit" { "Stop" } }
        }
    }
}

fn stop_row(stop: &Stop, viewer: Viewer<'_>) -> Markup {
    let Stop { target, reason, by, since } = stop;
    let (kind, name) = match target {
        StopTarget::Agent(agent) => ("agent", agent.as_str()),
        StopTarget::Tool(tool) => ("tool", tool.as_str()),
        StopTarget::Everything => ("everything", ""),
    };
    html! {
        form.stopped method="post" action="/console/resume" {
            (viewer.token_field())
            input type="hidden" name="target" value=(kind);
            input type="hidden" name="name" value=(name);
            p role="status" {
                strong { "Stopped: " (line(&target.to_string())) } ", by " (line(by)) " since " (at(*since)) ": " (line(reason.as_str()))
            }
            p { button type="submit" { "Resume " (line(&target.to_string())) } }
        }
    }
}

/// The target of a posted form.
///
/// # Errors
/// A sentence for the person, without its full stop.
fn target(form: &super::form::FormFields) -> Result<StopTarget, String> {
    let name = form.get("name").unwrap_or_default().trim();
    let error = |error: a2g_types::ident::IdentError| error.to_string();
    match form.get("target") {
        Some("agent") => AgentDid::parse(name).map(StopTarget::Agent).map_err(error),
        Some("tool") => ToolName::parse(name).map(StopTarget::Tool).map_err(error),
        Some("everything") => Ok(StopTarget::Everything),
        Some(_) | None => Err("choose an agent, a tool or everything".to_owned()),
    }
}

fn refuse_form(error: &str) -> Response {
    super::page::problem(
        axum::http::StatusCode::BAD_REQUEST,
        "Nothing was changed",
        &format!("{}.", line(error)),
    )
}

/// `POST /console/stop`.
pub(super) async fn stop(
    State(console): State<Arc<ConsoleState>>,
    PostedForm { signed_in, form }: PostedForm,
) -> Response {
    let Some(right) = signed_in.caller.stop_right() else { return forbidden("operator") };
    let reason = OperatorReason::parse(form.get("reason").unwrap_or_default());
    let (target, reason) = match (target(&form), reason) {
        (Ok(target), Ok(reason)) => (target, reason),
        (Err(error), _) => return refuse_form(&error),
        (_, Err(error)) => return refuse_form(&error.to_string()),
    };
    match console.executor.operator.stop(target, reason, right).await {
        Ok(_stopped) => Redirect::to("/console").into_response(),
        Err(fault) => fault_page(&fault),
    }
}

/// `POST /console/resume`.
pub(super) async fn resume(
    State(console): State<Arc<ConsoleState>>,
    PostedForm { signed_in, form }: PostedForm,
) -> Response {
    let Some(right) = signed_in.caller.stop_right() else { return forbidden("operator") };
    let target = match target(&form) {
        Ok(target) => target,
        Err(error) => return refuse_form(&error),
    };
    match console.executor.operator.resume(&target, right).await {
        Ok(_was_stopped) => Redirect::to("/console").into_response(),
        Err(fault) => fault_page(&fault),
    }
}
