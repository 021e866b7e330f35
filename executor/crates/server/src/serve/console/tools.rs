//! The catalogue, and what agents and tools used of their limits.

use super::ConsoleState;
use super::form::FormFields;
use super::page::{Viewer, at, block, fault_page, line, milliseconds, not_found, scrolling_table};
use super::runs::may_read;
use super::send;
use super::session::SignedIn;
use a2g_journal::{GroupUsage, LimitSlack, UsageFigures, UsageSummary};
use a2g_types::ident::ToolName;
use a2g_types::tool::{DeclaredCapabilities, Descriptor};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of hours over which figures are computed: a leap year.
const MAX_HOURS: u16 = 366 * 24;
/// Maximum number of receipts from which figures are computed. The limit of time usually ends the reading before that.
const MAX_ROWS: u64 = 100_000;

/// `GET /console/tools`.
pub(super) async fn list(State(console): State<Arc<ConsoleState>>, signed_in: SignedIn) -> Response {
    let tools = console.executor.tools();
    let body = html! {
        h1 { "Tools" }
        @if tools.is_empty() { p { "There are no tools: add some with " code { "a2g-executor tool add" } "." } } @else {
            (scrolling_table("Tools", &html! {
                thead { tr { th { "Tool" } th { "Version" } th { "Description" } th { "Files" } th { "Network" } th { "May call" } } }
                tbody {
                    @for tool in tools.iter() {
                        tr {
                            td { a href={ "/console/tools/" (tool.name) } { (tool.name) } }
                            td { (line(&tool.version)) }
                            td { (line(&tool.description)) }
                            td { (tool.capabilities.filesystem.as_str()) }
                            td { @if tool.capabilities.network { "yes" } @else { "no" } }
                            td { (tool.capabilities.calls.targets.to_names().join(", ")) }
                        }
                    }
                }
            }))
        }
    };
    signed_in.viewer().page("Tools", &body)
}

/// `GET /console/tools/{tool}`.
pub(super) async fn show(
    State(console): State<Arc<ConsoleState>>,
    signed_in: SignedIn,
    Path(name): Path<String>,
) -> Response {
    let tools = console.executor.tools();
    let Some(tool) = find_tool(&tools, &name) else { return not_found("tool") };
    tool_page(signed_in.viewer(), tool, None)
}

/// The tool with this name.
pub(super) fn find_tool<'a>(tools: &'a [Descriptor], name: &str) -> Option<&'a Descriptor> {
    let name = ToolName::parse(name).ok()?;
    tools.iter().find(|tool| tool.name == name)
}

/// The page of a tool. After a failed attempt to send an intent, it has the fields of that attempt and the error, a
/// sentence without its full stop.
pub(super) fn tool_page(
    viewer: Viewer<'_>,
    tool: &Descriptor,
    attempt: Option<(&FormFields, &str)>,
) -> Response {
    let body = html! {
        @if let Some((_, error)) = attempt { p.error role="alert" { "The intent did not run: " (error) "." } }
        (tool_body(tool))
        (send::intent_form(viewer, tool, attempt.map(|(form, _)| form)))
    };
    viewer.page("Tool", &body)
}

fn tool_body(tool: &Descriptor) -> Markup {
    let Descriptor {
        name,
        title,
        version,
        description,
        contract,
        digest,
        arguments_schema,
        result_schema,
        is_idempotent,
        capabilities,
    } = tool;
    let DeclaredCapabilities { filesystem, network, memory, cpu, timeout, calls } = capabilities;
    let schema = |schema| block(&serde_json::to_string_pretty(schema).unwrap_or_default());
    html! {
        h1 { (name) }
        @if let Some(title) = title { p { (line(title)) } }
        p { (line(description)) }
        dl.facts {
            dt { "Version" } dd { (line(version)) }
            dt { "Contract" } dd { (contract.as_str()) }
            dt { "Module" } dd { code.hash { (digest.to_string()) } }
            dt { "Files" } dd { (filesystem.as_str()) }
            dt { "Network" } dd { @if *network { "yes" } @else { "no" } }
            @if let Some(memory) = memory { dt { "Memory" } dd { "at most " (memory.to_string()) } }
            @if let Some(cpu) = cpu { dt { "CPU" } dd { "at most " (cpu.to_string()) } }
            @if let Some(timeout) = timeout { dt { "Time" } dd { "at most " (timeout.to_string()) } }
            dt { "May call" } dd { (calls.targets.to_names().join(", ")) @if calls.targets.is_empty() { "none" } }
            dt { "Idempotent" } dd { @if *is_idempotent { "yes, as its author declares" } @else { "not declared" } }
        }
        h2 { "Arguments" }
        (schema(arguments_schema))
        @if let Some(result) = result_schema { h2 { "Result" } (schema(result)) }
        p { a href={ "/console/runs?tool=" (name) } { "Runs of this tool" } }
    }
}

/// The time over which usage is computed.
#[derive(Default, serde::Deserialize)]
pub(super) struct UsageQuery {
    #[serde(default)]
    hours: Option<u16>,
}

/// `GET /console/usage`.
pub(super) async fn usage(
    State(console): State<Arc<ConsoleState>>,
    signed_in: SignedIn,
    Query(query): Query<UsageQuery>,
) -> Response {
    let hours = query.hours.unwrap_or(24).clamp(1, MAX_HOURS);
    let since = console.executor.clock().now() - Duration::from_secs(u64::from(hours) * 3600);
    let caller = Arc::clone(&signed_in.caller);
    let filter = move |agent: &str| may_read(&caller, agent);
    match console.executor.usage(Some(since), filter, MAX_ROWS).await {
        Ok(usage) => signed_in.viewer().page("Usage", &usage_body(hours, &usage)),
        Err(fault) => fault_page(&fault),
    }
}

fn usage_body(hours: u16, usage: &UsageSummary) -> Markup {
    let UsageSummary {
        total,
        agents,
        tools,
        is_grouping_truncated,
        searched_until,
        is_complete,
        are_refusals_complete,
    } = usage;
    html! {
        h1 { "Usage" }
        form.search method="get" action="/console/usage" {
            p { label for="hours" { "Hours" } input #hours name="hours" type="number" min="1" max=(MAX_HOURS) value=(hours); }
            p { button type="submit" { "Show" } }
        }
        @if *is_complete { p { (total.runs) " runs in the last " (hours) " hours." } } @else {
            p { "The latest " (total.runs) " runs" @if let Some(until) = searched_until { ", since " (at(*until)) }
                ". A page reads only for a fixed time, so older runs of the last " (hours) " hours are not counted: choose fewer hours." }
        }
        @if !are_refusals_complete { p { "Not all refused calls were counted: choose fewer hours." } }
        @if *is_grouping_truncated { p { "There are more agents or tools than are listed." } }
        (groups("Agents", agents))
        (groups("Tools", tools))
    }
}

fn groups(title: &str, groups: &[GroupUsage]) -> Markup {
    html! {
        h2 { (title) }
        @for GroupUsage { name, figures } in groups {
            details {
                summary { (line(name)) ": " (figures.runs) " runs, " (figures.by_status.success) " succeeded, "
                    (figures.refusals.values().sum::<u64>()) " refused" }
                (figures_part(figures))
            }
        }
        @if groups.is_empty() { p { "None." } }
    }
}

fn figures_part(figures: &UsageFigures) -> Markup {
    let ms = milliseconds;
    html! {
        @let counts = figures.by_status;
        p { (counts.success) " succeeded, " (counts.failure) " failed, " (counts.timeout) " timed out, " (counts.aborted) " aborted." }
        @if let Some(wall) = figures.wall {
            p { "Time: half took at most " (ms(wall.p50)) ", 95 of 100 at most " (ms(wall.p95)) ", 99 of 100 at most " (ms(wall.p99)) ", the longest " (ms(wall.max)) "." }
        }
        @for (reason, count) in &figures.refusals { p { (count) " refused: " code { (line(reason)) } } }
        (scrolling_table("Limits and their use", &html! {
            thead { tr { th { "Limit" } th { "Greatest grant" } th { "Greatest use" } th { "Unused" } } }
            tbody {
                @for LimitSlack { limit, granted, used } in figures.slack.iter().filter(|slack| slack.used.is_some()) {
                    tr {
                        th scope="row" { (limit.as_str()) }
                        td.number { (granted) } td.number { (used.unwrap_or_default()) }
                        td.number { (granted.saturating_sub(used.unwrap_or_default())) }
                    }
                }
            }
        }))
        @for (name, access) in [("network", figures.network), ("writing", figures.writing), ("calling tools", figures.calling)] {
            @if access.granted > 0 && access.used == 0 {
                p.slack { (name) " was granted to " (access.granted) " runs, and none used it: consider removing it from the policy or from " code { "tool.toml" } "." }
            }
        }
    }
}
