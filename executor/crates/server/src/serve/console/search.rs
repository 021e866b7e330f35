//! The searches of runs and of refused calls, page by page.

use super::page::{at, fault_page, intent_link, line, milliseconds, problem, scrolling_table, status};
use super::runs::may_read;
use super::{ConsoleState, ReadingViewer};
use a2g_journal::history::Filter;
use a2g_journal::{NumberedRefusal, Page, RefusalSearch, RunSearch, RunSummary};
use a2g_types::call::Door;
use a2g_types::fault::BlockedBy;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::outcome::Status;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use std::fmt::Display;
use std::sync::Arc;
use strum::VariantArray as _;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Number of rows of one page.
const PAGE_ROWS: usize = 50;

/// The query of a search, of runs or of refused calls. An empty field does not restrict it.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct SearchQuery {
    agent: String,
    tool: String,
    door: String,
    status: String,
    blocked_by: String,
    since: String,
    until: String,
    undelivered: String,
    text: String,
    before: Option<u64>,
}

impl SearchQuery {
    /// The fields that a form has, with their names.
    fn fields(&self) -> [(&'static str, &str); 9] {
        [
            ("agent", &self.agent),
            ("tool", &self.tool),
            ("door", &self.door),
            ("status", &self.status),
            ("blocked_by", &self.blocked_by),
            ("since", &self.since),
            ("until", &self.until),
            ("undelivered", &self.undelivered),
            ("text", &self.text),
        ]
    }

    /// The selection of these fields.
    ///
    /// # Errors
    /// A sentence for the person, without its full stop.
    fn to_filter(&self) -> Result<Filter, String> {
        fn parse<T, E: Display>(
            text: &str,
            parse: impl Fn(&str) -> Result<T, E>,
        ) -> Result<Option<T>, String> {
            let text = Some(text.trim()).filter(|text| !text.is_empty());
            text.map(parse).transpose().map_err(|error| error.to_string())
        }
        let status = |name: &str| {
            let known = Status::VARIANTS.iter().find(|status| status.as_str() == name);
            known.copied().ok_or("there is no such status in the list")
        };
        Ok(Filter {
            agent: parse(&self.agent, AgentDid::parse)?,
            tool: parse(&self.tool, ToolName::parse)?,
            status: parse(&self.status, status)?,
            since: parse(&self.since, parse_time)?,
            until: parse(&self.until, parse_time)?,
            undelivered: !self.undelivered.is_empty(),
        })
    }

    fn to_blocked_by(&self) -> Result<Option<BlockedBy>, String> {
        let known = BlockedBy::VARIANTS.iter().find(|known| known.as_str() == self.blocked_by);
        match known {
            None if !self.blocked_by.is_empty() => Err("there is no such reason in the list".to_owned()),
            known => Ok(known.copied()),
        }
    }

    fn to_door(&self) -> Result<Option<Door>, String> {
        match Door::VARIANTS.iter().find(|door| door.to_string() == self.door) {
            None if !self.door.is_empty() => Err("there is no such door in the list".to_owned()),
            known => Ok(known.copied()),
        }
    }

    fn to_text(&self) -> Option<String> {
        Some(self.text.clone()).filter(|text| !text.is_empty())
    }

    /// The URL of one page of this search: with the rows before the number `before`, or the first page.
    fn url(&self, path: &str, before: Option<u64>) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.fields().into_iter().filter(|(_, value)| !value.is_empty()));
        query.extend_pairs(before.map(|before| ("before", before.to_string())));
        format!("{path}?{}", query.finish())
    }
}

/// A time as browsers send it, such as `2026-11-25T21:00`, in UTC.
fn parse_time(text: &str) -> Result<OffsetDateTime, &'static str> {
    // Seconds are sent only if they are not 0.
    let text =
        if text.len() == "2026-11-25T21:00".len() { format!("{text}:00Z") } else { format!("{text}Z") };
    OffsetDateTime::parse(&text, &Rfc3339).map_err(|_| "a time is written like 2026-11-25T21:00")
}

/// An input of a search form.
fn search_input(name: &str, label: &str, kind: &str, value: &str) -> Markup {
    html! { p { label for=(name) { (label) } input id=(name) name=(name) type=(kind) value=(value); } }
}

/// A selection of a search form.
fn search_select(
    name: &str,
    label: &str,
    options: impl Iterator<Item = impl AsRef<str>>,
    selected: &str,
) -> Markup {
    html! {
        p { label for=(name) { (label) }
            select id=(name) name=(name) {
                option value="" { "any" }
                @for option in options {
                    @let option = option.as_ref();
                    option value=(option) selected[option == selected] { (option) }
                }
            }
        }
    }
}

/// The link to the next page of a search, and how far the search has come.
fn next_link<T>(query: &SearchQuery, path: &str, page: &Page<T>) -> Markup {
    html! {
        @if let Some(next) = page.next {
            p { a href=(query.url(path, Some(next))) { @if page.is_complete { "Older" } @else { "Search further back" } }
                @if let (false, Some(until)) = (page.is_complete, page.searched_until) { ": searched back to " (at(until)) }
            }
        }
    }
}

/// `GET /console/runs`.
pub(super) async fn list_runs(
    State(console): State<Arc<ConsoleState>>,
    ReadingViewer { signed_in, _place }: ReadingViewer,
    Query(query): Query<SearchQuery>,
) -> Response {
    let (filter, door) = match (query.to_filter(), query.to_door()) {
        (Ok(filter), Ok(door)) => (filter, door),
        (Err(error), _) | (_, Err(error)) => return refuse_search(&error),
    };
    let search = RunSearch { filter, door, text: query.to_text() };
    let caller = Arc::clone(&signed_in.caller);
    let is_visible = move |agent: &str| may_read(&caller, agent);
    match console.executor.search_runs(search, is_visible, query.before, PAGE_ROWS).await {
        Ok(page) => signed_in.viewer().page("Runs", &list_body(&query, &page)),
        Err(fault) => fault_page(&fault),
    }
}

fn refuse_search(error: &str) -> Response {
    problem(StatusCode::BAD_REQUEST, "This search is not valid", &format!("{}.", line(error)))
}

pub(super) fn list_body(query: &SearchQuery, page: &Page<RunSummary>) -> Markup {
    const PATH: &str = "/console/runs";
    // Only the first page refreshes itself: on a later one, the rows would move while somebody reads them.
    let trigger = query.before.is_none().then_some("sse:runs");
    html! {
        h1 { "Runs" }
        form.search method="get" action=(PATH) role="search" {
            (search_input("agent", "Agent", "text", &query.agent))
            (search_input("tool", "Tool", "text", &query.tool))
            (search_select("door", "Door", Door::VARIANTS.iter().map(Door::to_string), &query.door))
            (search_select("status", "Status", Status::VARIANTS.iter().map(|status| status.as_str()), &query.status))
            (search_input("text", "Text (intent, agent, host, granted or denied path, reason, error)", "text", &query.text))
            (search_input("since", "Since (UTC)", "datetime-local", &query.since))
            (search_input("until", "Until (UTC)", "datetime-local", &query.until))
            p { label { input type="checkbox" name="undelivered" value="yes" checked[!query.undelivered.is_empty()]; " report not delivered" } }
            p { button type="submit" { "Search" } " " a href="/console/refused" { "Refused calls" } }
        }
        section #runs hx-get=(query.url(PATH, None)) hx-trigger=[trigger] hx-select="#runs" hx-swap="outerHTML" {
            @if page.items.is_empty() { p { "No runs were found." } } @else { (table(&page.items)) }
            (next_link(query, PATH, page))
        }
    }
}

fn table(runs: &[RunSummary]) -> Markup {
    scrolling_table(
        "Runs",
        &html! {
            thead { tr { th { "Ended" } th { "Run" } th { "Agent" } th { "Tool" } th { "Door" } th { "Status" } th { "Time" } th { "Report" } } }
            tbody {
                @for run in runs {
                    tr {
                        td { (at(run.ended)) }
                        td { (intent_link(run.intent)) @if run.is_nested() { " (nested)" } @if run.calls > 0 { " (" (run.calls) " calls)" } }
                        td { (line(&run.agent)) }
                        td { (line(&run.tool)) }
                        td { @if let Some(door) = run.door { (door) } }
                        td { (status(&run.status)) @if let Some(by) = &run.approved_by { " approved by " (line(by)) } }
                        td.number { (milliseconds(run.wall)) }
                        td { @if run.delivered { "delivered" } @else { "not delivered yet" } }
                    }
                }
            }
        },
    )
}

/// `GET /console/refused`.
pub(super) async fn list_refusals(
    State(console): State<Arc<ConsoleState>>,
    ReadingViewer { signed_in, _place }: ReadingViewer,
    Query(query): Query<SearchQuery>,
) -> Response {
    let (filter, blocked_by) = match (query.to_filter(), query.to_blocked_by()) {
        (Ok(filter), Ok(blocked_by)) => (filter, blocked_by),
        (Err(error), _) | (_, Err(error)) => return refuse_search(&error),
    };
    let search = RefusalSearch { filter, blocked_by, text: query.to_text() };
    let caller = Arc::clone(&signed_in.caller);
    let is_visible = move |agent: &str| may_read(&caller, agent);
    match console.executor.search_refusals(search, is_visible, query.before, PAGE_ROWS).await {
        Ok(page) => signed_in.viewer().page("Refused calls", &refused_body(&query, &page)),
        Err(fault) => fault_page(&fault),
    }
}

pub(super) fn refused_body(query: &SearchQuery, page: &Page<NumberedRefusal>) -> Markup {
    const PATH: &str = "/console/refused";
    html! {
        h1 { "Refused calls" }
        form.search method="get" action=(PATH) role="search" {
            (search_input("agent", "Agent", "text", &query.agent))
            (search_input("tool", "Tool", "text", &query.tool))
            (search_select("blocked_by", "Refused by", BlockedBy::VARIANTS.iter().map(|reason| reason.as_str()), &query.blocked_by))
            (search_input("text", "Text", "text", &query.text))
            (search_input("since", "Since (UTC)", "datetime-local", &query.since))
            (search_input("until", "Until (UTC)", "datetime-local", &query.until))
            p { button type="submit" { "Search" } " " a href="/console/runs" { "Runs" } }
        }
        @if page.items.is_empty() { p { "No refused calls were found." } } @else {
            (scrolling_table("Refused calls", &html! {
                thead { tr { th { "When" } th { "Intent" } th { "Agent" } th { "Tool" } th { "Refused by" } th { "Why, and what to change" } } }
                tbody {
                    @for NumberedRefusal { refusal, .. } in &page.items {
                        tr {
                            td { (at(refusal.at)) } td { (intent_link(refusal.intent)) }
                            td { (line(&refusal.agent)) } td { (line(&refusal.tool)) }
                            td { code { (line(&refusal.blocked_by)) } } td { (line(&refusal.message)) }
                        }
                    }
                }
            }))
        }
        (next_link(query, PATH, page))
    }
}
