//! The searches of runs and of refused calls, page by page, over all nodes of the fleet.

use super::elsewhere::{self, FleetAnswers};
use super::merged_page::{MergedPage, NodePage, NodeRow, Positions};
use super::page::{
    MAX_LINE_CHARS, at, cards, counted, elapsed, fault_page, intent_link, line, main_argument_part, problem,
    status,
};
use super::runs::may_read;
use super::{ConsoleState, ReadingViewer};
use a2g_govern::Caller;
use a2g_journal::history::{Filter, RefusalEntry};
use a2g_journal::{NumberedRefusal, RefusalSearch, RunSearch, RunSummary};
use a2g_types::call::Door;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::node::NodeName;
use a2g_types::outcome::Status;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use strum::VariantArray as _;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Number of rows of one page.
const PAGE_ROWS: usize = 50;
/// The text for a query whose fields, which are texts, cannot be read because of `before`.
const WRONG_PAGE: &str = "the link does not say where a page begins";

/// The query of a search, of runs or of refused calls. An empty field does not restrict it.
// Nodes of an earlier version would ignore a new field: a new filter needs a request of its own between nodes.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
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
    before: Positions,
}

/// The kind of rows that a search lists.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ListKind {
    Runs,
    Refusals,
}

/// A run in a list.
#[derive(Serialize, Deserialize)]
pub(super) struct RunRow {
    intent: IntentId,
    agent: String,
    tool: String,
    /// The argument by which people recognise the call.
    main_argument: Option<String>,
    door: String,
    status: String,
    approved_by: Option<String>,
    wall: Duration,
    is_delivered: bool,
    is_nested: bool,
    calls: u32,
}

impl RunRow {
    pub(super) fn of_run(run: RunSummary) -> NodeRow<Self> {
        let content = Self {
            intent: run.intent,
            is_nested: run.is_nested(),
            agent: shorten(run.agent),
            tool: shorten(run.tool),
            main_argument: run.main_argument,
            door: run.door.to_string(),
            status: run.status,
            approved_by: run.approved_by.map(shorten),
            wall: run.wall,
            is_delivered: run.delivered,
            calls: run.calls,
        };
        NodeRow { number: run.record, at: run.ended, content }
    }
}

/// A refused call in a list.
#[derive(Serialize, Deserialize)]
pub(super) struct RefusalRow {
    intent: IntentId,
    agent: String,
    tool: String,
    /// As in [`RunRow`].
    main_argument: Option<String>,
    blocked_by: String,
    message: String,
}

impl RefusalRow {
    pub(super) fn of_refusal(refusal: NumberedRefusal) -> NodeRow<Self> {
        let NumberedRefusal { number, refusal, main_argument } = refusal;
        let RefusalEntry { at, intent, agent, tool, blocked_by, message } = refusal;
        let content = Self {
            intent,
            agent: shorten(agent),
            tool: shorten(tool),
            main_argument,
            blocked_by,
            message: shorten(message),
        };
        NodeRow { number, at, content }
    }
}

/// Shortens a text to what [`line`] shows of it, and one character more, which makes `line` say so.
fn shorten(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_LINE_CHARS + 1) {
        text.truncate(end);
    }
    text
}

/// The content of a page of a search.
pub(super) struct Listing<T> {
    pub(super) page: MergedPage<T>,
    pub(super) is_in_fleet: bool,
    /// A sentence about the rows of other nodes that are missing.
    pub(super) notice: Option<String>,
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

    fn to_run_search(&self) -> Result<RunSearch, String> {
        Ok(RunSearch { filter: self.to_filter()?, door: self.to_door()?, text: self.to_text() })
    }

    fn to_refusal_search(&self) -> Result<RefusalSearch, String> {
        let blocked_by = self.to_blocked_by()?;
        Ok(RefusalSearch { filter: self.to_filter()?, blocked_by, text: self.to_text() })
    }

    /// The URL of one page of this search: the page that begins at `before`, or the first one.
    fn url(&self, path: &str, before: Option<&Positions>) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.fields().into_iter().filter(|(_, value)| !value.is_empty()));
        query.extend_pairs(before.map(|before| ("before", String::from(before.clone()))));
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

/// A search form, folded unless it restricts what is listed.
fn search_form(path: &str, query: &SearchQuery, fields: &Markup) -> Markup {
    let is_open = query.fields().iter().any(|(_, value)| !value.is_empty());
    html! {
        details open[is_open] {
            summary { "Search" }
            form.search method="get" action=(path) role="search" { (fields) p { button type="submit" { "Search" } } }
        }
    }
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

/// The sentence about missing rows, above the list, and the one that stands for an empty list of `things`.
fn notice_part<T>(listing: &Listing<T>, things: &str) -> Markup {
    html! {
        @if let Some(notice) = &listing.notice { p role="status" { (notice) } }
        @if listing.page.rows.is_empty() {
            p { "No " (things) " were found" @if listing.notice.is_some() { " at the nodes that have answered" } "." }
        }
    }
}

/// The link to the next page of a search, and how far the search has come.
fn next_part<T>(query: &SearchQuery, path: &str, listing: &Listing<T>) -> Markup {
    let MergedPage { rows: _, next, searched_until } = &listing.page;
    html! {
        @if let Some(next) = next {
            p { a href=(query.url(path, Some(next))) { @if searched_until.is_none() { "Older" } @else { "Search further back" } }
                @if let Some(until) = searched_until { ": searched back to " (at(*until)) }
            }
        }
    }
}

/// The reason why there is no list.
pub(super) enum SearchRefusal {
    /// A sentence for the person, without its full stop.
    Invalid(String),
    Fault(Fault),
}

impl SearchRefusal {
    fn into_response(self) -> Response {
        match self {
            Self::Invalid(error) => refuse_search(&error),
            Self::Fault(fault) => fault_page(&fault),
        }
    }
}

/// The key of this node's pages and positions, which is empty outside of a fleet.
fn own_name(console: &ConsoleState) -> &str {
    console.executor.node.name().map_or("", NodeName::as_str)
}

/// The number before which the page of this node begins.
fn own_position(console: &ConsoleState, query: &SearchQuery) -> Option<u64> {
    query.before.of(own_name(console))
}

/// Selects the agents whose runs and refused calls a caller may see.
fn visible_agents(caller: &Arc<Caller>) -> impl Fn(&str) -> bool + use<> {
    let caller = Arc::clone(caller);
    move |agent| may_read(&caller, agent)
}

/// A row of a list, in the form for another node.
pub(super) trait ListedRow: Serialize + DeserializeOwned {
    const KIND: ListKind;
    const TITLE: &str;

    /// The rows that the journal of this node has.
    async fn find_here(
        console: &ConsoleState,
        caller: &Arc<Caller>,
        query: &SearchQuery,
    ) -> Result<NodePage<Self>, SearchRefusal>;

    fn body(query: &SearchQuery, listing: &Listing<Self>) -> Markup;
}

impl ListedRow for RunRow {
    const KIND: ListKind = ListKind::Runs;
    const TITLE: &str = "Runs";

    async fn find_here(
        console: &ConsoleState,
        caller: &Arc<Caller>,
        query: &SearchQuery,
    ) -> Result<NodePage<Self>, SearchRefusal> {
        let search = query.to_run_search().map_err(SearchRefusal::Invalid)?;
        let is_visible = visible_agents(caller);
        let before = own_position(console, query);
        let found = console.executor.queries.search_runs(search, is_visible, before, PAGE_ROWS).await;
        found.map(|page| NodePage::new(page, Self::of_run)).map_err(SearchRefusal::Fault)
    }

    fn body(query: &SearchQuery, listing: &Listing<Self>) -> Markup {
        runs_body(query, listing)
    }
}

impl ListedRow for RefusalRow {
    const KIND: ListKind = ListKind::Refusals;
    const TITLE: &str = "Refused calls";

    async fn find_here(
        console: &ConsoleState,
        caller: &Arc<Caller>,
        query: &SearchQuery,
    ) -> Result<NodePage<Self>, SearchRefusal> {
        let search = query.to_refusal_search().map_err(SearchRefusal::Invalid)?;
        let is_visible = visible_agents(caller);
        let before = own_position(console, query);
        let found = console.executor.queries.search_refusals(search, is_visible, before, PAGE_ROWS).await;
        found.map(|page| NodePage::new(page, Self::of_refusal)).map_err(SearchRefusal::Fault)
    }

    fn body(query: &SearchQuery, listing: &Listing<Self>) -> Markup {
        refused_body(query, listing)
    }
}

/// `GET /console/runs` and `GET /console/refused`.
pub(super) async fn list<R: ListedRow>(
    State(console): State<Arc<ConsoleState>>,
    ReadingViewer { signed_in, _place: place }: ReadingViewer,
    query: Result<Query<SearchQuery>, QueryRejection>,
) -> Response {
    let Ok(Query(query)) = query else { return refuse_search(WRONG_PAGE) };
    let here = match R::find_here(&console, &signed_in.caller, &query).await {
        Ok(here) => here,
        Err(refusal) => return refusal.into_response(),
    };
    // Other nodes read their journals in places of their own.
    drop(place);
    let listing = merge_nodes(&console, &signed_in.caller, &query, here).await;
    signed_in.viewer(&console).page(R::TITLE, &R::body(&query, &listing))
}

/// Merges the rows that this node has found with those that the others find.
async fn merge_nodes<R: ListedRow>(
    console: &ConsoleState,
    caller: &Caller,
    query: &SearchQuery,
    here: NodePage<R>,
) -> Listing<R> {
    let FleetAnswers { answers, notice } = elsewhere::find_rows(console, caller, query).await;
    let mut pages =
        answers.into_iter().map(|(node, page)| (node.to_string(), page)).collect::<BTreeMap<_, _>>();
    pages.insert(own_name(console).to_owned(), here);
    let is_in_fleet = console.executor.node.name().is_some();
    Listing { page: MergedPage::merge(pages, &query.before, PAGE_ROWS), is_in_fleet, notice }
}

fn refuse_search(error: &str) -> Response {
    problem(StatusCode::BAD_REQUEST, "This search is not valid", &format!("{}.", line(error)))
}

fn runs_body(query: &SearchQuery, listing: &Listing<RunRow>) -> Markup {
    const PATH: &str = "/console/runs";
    let trigger = match (query.before.is_empty(), listing.is_in_fleet) {
        (true, false) => Some("sse:runs"),
        // Events report only the runs of this node.
        (true, true) => Some("sse:runs, every 15s"),
        // On a later page, the rows would move while somebody reads them.
        (false, _) => None,
    };
    html! {
        h1 { "Runs" }
        p { a href="/console/refused" { "Refused calls" } }
        (search_form(PATH, query, &html! {
            (search_input("agent", "Agent", "text", &query.agent))
            (search_input("tool", "Tool", "text", &query.tool))
            (search_select("door", "Door", Door::VARIANTS.iter().map(Door::to_string), &query.door))
            (search_select("status", "Status", Status::VARIANTS.iter().map(|status| status.as_str()), &query.status))
            (search_input("text", "Text (intent, agent, tool, host, granted or denied path, reason, error)", "text", &query.text))
            (search_input("since", "Since (UTC)", "datetime-local", &query.since))
            (search_input("until", "Until (UTC)", "datetime-local", &query.until))
            p { label { input type="checkbox" name="undelivered" value="yes" checked[!query.undelivered.is_empty()]; " report not delivered" } }
        }))
        section #runs hx-get=(query.url(PATH, None)) hx-trigger=[trigger] hx-select="#runs" hx-swap="outerHTML" {
            (notice_part(listing, "runs"))
            @if !listing.page.rows.is_empty() { (table(listing)) }
            (next_part(query, PATH, listing))
        }
    }
}

fn table(listing: &Listing<RunRow>) -> Markup {
    let titles =
        ["Status", "Tool", "Ended", "Took", "Main argument", "Agent", "Door", "Report", "Run", "Node"];
    let columns = titles.iter().filter(|column| listing.is_in_fleet || **column != "Node");
    let rows = listing.page.rows.iter().map(|(node, NodeRow { at: ended, content: run, number: _ })| {
        html! {
            td role="cell" { (status(&run.status)) @if let Some(by) = &run.approved_by { " approved by " (line(by)) } }
            td role="cell" { strong { (line(&run.tool)) } }
            td role="cell" { (at(*ended)) }
            td.number role="cell" { (elapsed(run.wall)) }
            td.wide role="cell" { (main_argument_part(run.main_argument.as_deref())) }
            td.wide role="cell" { (line(&run.agent)) }
            td role="cell" data-label="Door" { (line(&run.door)) }
            td role="cell" data-label="Report" { @if run.is_delivered { "delivered" } @else { "not delivered yet" } }
            td role="cell" data-label="Run" {
                (intent_link(run.intent))
                @if run.is_nested { " (nested)" }
                @if run.calls > 0 { " (" (counted(run.calls, "call")) ")" }
            }
            @if listing.is_in_fleet { td role="cell" data-label="Node" { (line(node)) } }
        }
    });
    cards("Runs", columns, rows)
}

fn refused_body(query: &SearchQuery, listing: &Listing<RefusalRow>) -> Markup {
    const PATH: &str = "/console/refused";
    html! {
        h1 { "Refused calls" }
        p { a href="/console/runs" { "Runs" } }
        (search_form(PATH, query, &html! {
            (search_input("agent", "Agent", "text", &query.agent))
            (search_input("tool", "Tool", "text", &query.tool))
            (search_select("blocked_by", "Refused by", BlockedBy::VARIANTS.iter().map(|reason| reason.as_str()), &query.blocked_by))
            (search_input("text", "Text", "text", &query.text))
            (search_input("since", "Since (UTC)", "datetime-local", &query.since))
            (search_input("until", "Until (UTC)", "datetime-local", &query.until))
        }))
        (notice_part(listing, "refused calls"))
        @if !listing.page.rows.is_empty() { (refused_table(listing)) }
        (next_part(query, PATH, listing))
    }
}

fn refused_table(listing: &Listing<RefusalRow>) -> Markup {
    let titles =
        ["Refused by", "Tool", "When", "Main argument", "Why, and what to change", "Agent", "Intent", "Node"];
    let columns = titles.iter().filter(|column| listing.is_in_fleet || **column != "Node");
    let rows = listing.page.rows.iter().map(|(node, NodeRow { at: refused, content: call, number: _ })| {
        html! {
            td role="cell" { code { (line(&call.blocked_by)) } }
            td role="cell" { strong { (line(&call.tool)) } }
            td role="cell" { (at(*refused)) }
            td.wide role="cell" { (main_argument_part(call.main_argument.as_deref())) }
            td.wide role="cell" { (line(&call.message)) }
            td.wide role="cell" { (line(&call.agent)) }
            td role="cell" data-label="Intent" { (intent_link(call.intent)) }
            @if listing.is_in_fleet { td role="cell" data-label="Node" { (line(node)) } }
        }
    });
    cards("Refused calls", columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A list with one row, in the form in which another node sends it.
    fn listing<T: DeserializeOwned>(row: Value) -> Listing<T> {
        let content = serde_json::from_value(row).unwrap();
        let row = NodeRow { number: 1, at: OffsetDateTime::UNIX_EPOCH, content };
        let page = MergedPage { rows: vec![("two".to_owned(), row)], next: None, searched_until: None };
        Listing { page, is_in_fleet: true, notice: None }
    }

    #[test]
    fn rows_without_a_main_argument_are_shown() {
        const EMPTY: &str = r#"<td class="wide" role="cell"></td>"#;
        let intent = "550e8400-e29b-41d4-a716-446655440000";
        let run = json!({
            "intent": intent, "agent": "did:a:b", "tool": "t", "door": "A2G", "status": "SUCCESS",
            "approved_by": null, "wall": { "secs": 1, "nanos": 0 }, "is_delivered": true, "is_nested": false,
            "calls": 0,
        });
        let runs = table(&listing(run)).into_string();
        assert!(runs.contains(EMPTY) && runs.contains("did:a:b"), "{runs}");
        let refusal =
            json!({ "intent": intent, "agent": "did:a:b", "tool": "t", "blocked_by": "x", "message": "no" });
        let refusals = refused_table(&listing(refusal)).into_string();
        assert!(refusals.contains(EMPTY) && refusals.contains("did:a:b"), "{refusals}");
    }
}
