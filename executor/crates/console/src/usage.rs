//! Usage of agents and tools: charts over time, figures, and narrower limits as text to copy.

use super::chart::charts;
use super::elsewhere::{self, FleetAnswers};
use super::narrower;
use super::page::{at, byte_size, counted, elapsed, fault_page, line, scrolling_table};
use super::runs::may_read;
use super::{ConsoleState, ReadingViewer};
use a2g_core::run::Executor;
use a2g_govern::Caller;
use a2g_journal::{
    GroupUsage, LimitKind, LimitSlack, PairNeeds, RunNeeds, SeriesSpan, UsageFigures, UsageSummary, UsageSums,
};
use a2g_types::clock::format_seconds;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, ToolName};
use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

/// Maximum number of hours over which figures are computed: a leap year.
const MAX_HOURS: u16 = 366 * 24;
/// Maximum number of receipts from which figures are computed. The limit of time usually ends the reading before that.
const MAX_ROWS: u64 = 100_000;

/// The time over which usage is computed.
#[derive(Default, Deserialize)]
pub(super) struct UsageQuery {
    #[serde(default)]
    hours: Option<u16>,
}

/// The time between two whole seconds, in the form for another node.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct UsageSpan {
    #[serde(with = "time::serde::timestamp")]
    since: OffsetDateTime,
    #[serde(with = "time::serde::timestamp")]
    until: OffsetDateTime,
}

impl UsageSpan {
    fn new(hours: u16, now: OffsetDateTime) -> Self {
        let until = now.truncate_to_second();
        Self { since: until - Duration::from_secs(u64::from(hours) * 3600), until }
    }

    /// Reads the use of this node by the agents that the caller may see.
    ///
    /// # Errors
    /// The journal is busy or cannot be read.
    pub(super) async fn read(self, console: &ConsoleState, caller: &Arc<Caller>) -> Result<UsageSums, Fault> {
        let Self { since, until } = self;
        let caller = Arc::clone(caller);
        let filter = move |agent: &str| may_read(&caller, agent);
        console
            .executor
            .queries
            .usage(Some(since), filter, MAX_ROWS, Some(SeriesSpan::new(since, until)))
            .await
    }
}

/// `GET /console/usage`.
pub(super) async fn show(
    State(console): State<Arc<ConsoleState>>,
    ReadingViewer { signed_in, _place: place }: ReadingViewer,
    Query(query): Query<UsageQuery>,
) -> Response {
    let hours = query.hours.unwrap_or(24).clamp(1, MAX_HOURS);
    let now = console.executor.clock().now();
    let span = UsageSpan::new(hours, now);
    let mut usage = match span.read(&console, &signed_in.caller).await {
        Ok(usage) => usage,
        Err(fault) => return fault_page(&fault),
    };
    // Other nodes read their journals in places of their own.
    drop(place);
    let _place = match console.take_merge(&signed_in.caller) {
        Ok(place) => place,
        Err(too_many) => return too_many,
    };
    let FleetAnswers { answers, notice } = elsewhere::find_usage(&console, &signed_in.caller, span).await;
    let is_merged = !answers.is_empty();
    answers.into_iter().for_each(|(_, sums)| usage.merge(sums));
    let usage = usage.finish();
    // The limits of a tool hold for every agent, so they cannot be judged from the runs of some.
    let has_all_agents = signed_in.caller.may_read_all();
    let limits = NarrowerLimits {
        executor: &console.executor,
        has_all_agents,
        needs: &usage.needs,
        // Limits hold at all nodes, so they cannot be judged from the runs of some.
        are_needs_missing: usage.are_needs_truncated || notice.is_some(),
        since: if usage.is_complete { span.since } else { usage.searched_until.unwrap_or(span.since) },
        is_complete: usage.is_complete,
        is_merged,
        now,
    };
    let nodes = CountedNodes { notice: notice.as_deref(), is_merged };
    let render_policy = |agent: &str| limits.render_policy(agent);
    let render_capabilities = |tool: &str| limits.render_capabilities(tool);
    let body = usage_body(hours, &usage, nodes, render_policy, render_capabilities);
    signed_in.viewer(&console).page("Usage", &body)
}

/// The nodes of the fleet whose runs a page counts.
#[derive(Clone, Copy, Default)]
pub(super) struct CountedNodes<'a> {
    /// A sentence about the nodes that are missing.
    notice: Option<&'a str>,
    /// `true` if there is another node. Each reads back as far as it can.
    is_merged: bool,
}

/// The page. `render_policy` and `render_capabilities` render the narrower limits of one agent or tool.
pub(super) fn usage_body(
    hours: u16,
    usage: &UsageSummary,
    CountedNodes { notice, is_merged }: CountedNodes<'_>,
    render_policy: impl Fn(&str) -> Markup,
    render_capabilities: impl Fn(&str) -> Markup,
) -> Markup {
    let UsageSummary {
        total,
        agents,
        tools,
        is_grouping_truncated,
        series,
        needs: _,
        are_needs_truncated,
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
        @if let Some(notice) = notice { p role="status" { (notice) " No narrower limits are shown, because they would hold at all nodes." } }
        @if *is_complete { p { (counted(total.runs, "run")) " in the last " (counted(hours, "hour")) "." } } @else {
            p {
                @if is_merged { (counted(total.runs, "run")) @if let Some(until) = searched_until { ": all since " (at(*until)) ", and some before" } }
                @else { "The latest " (counted(total.runs, "run")) @if let Some(until) = searched_until { ", since " (at(*until)) } }
                ". A page reads only for a fixed time, so older runs of the last " (counted(hours, "hour")) " are not counted: choose fewer hours." }
        }
        @if !are_refusals_complete { p { "Not all refused calls were counted: choose fewer hours." } }
        @if *is_grouping_truncated {
            p { "There are more agents or tools than are listed" @if is_merged { ", and the figures of those that are listed may lack runs of other nodes" } "." }
        }
        @if let Some(series) = series.as_ref().filter(|_| total.runs > 0) {
            (charts(series, searched_until.filter(|_| !is_complete)))
        }
        @if total.runs > 0 {
            details {
                summary { "How the narrower limits are computed" }
                p { (narrower::METHOD) }
                p { "A policy is the params of " code { "g2a/policy" } ", and replaces the agent's standing policy. Limits of a tool replace the section of its " code { "tool.toml" } "." }
            }
            @if *are_needs_truncated { p { "There are more pairs of an agent and a tool than the narrower limits can cover, so none are shown: choose fewer hours." } }
        }
        (groups("Agents", agents, render_policy))
        (groups("Tools", tools, render_capabilities))
    }
}

fn groups(title: &str, groups: &[GroupUsage], limits: impl Fn(&str) -> Markup) -> Markup {
    html! {
        h2 { (title) }
        @for GroupUsage { name, figures } in groups {
            details {
                summary { (line(name)) ": " (counted(figures.runs, "run")) ", " (figures.by_status.success) " succeeded, "
                    (figures.refusals.values().copied().fold(0, u64::saturating_add)) " refused" }
                (figures_part(figures))
                (limits(name))
            }
        }
        @if groups.is_empty() { p { "None." } }
    }
}

fn figures_part(figures: &UsageFigures) -> Markup {
    let ms = elapsed;
    html! {
        @let counts = figures.by_status;
        p { (counts.success) " succeeded, " (counts.failure) " failed, " (counts.timeout) " timed out, " (counts.aborted) " aborted." }
        @if let Some(wall) = figures.wall {
            p { "Wall time: median " (ms(wall.p50)) ", 95th percentile " (ms(wall.p95)) ", 99th percentile " (ms(wall.p99)) ", longest " (ms(wall.max)) "." }
        }
        @for (reason, count) in &figures.refusals { p { (count) " refused: " code { (line(reason)) } } }
        (scrolling_table("Limits and their use", &html! {
            thead { tr { th { "Limit" } th { "Greatest grant" } th { "Greatest use" } th { "Unused" } } }
            tbody {
                @for LimitSlack { limit, granted, used } in figures.slack.iter().filter(|slack| slack.used.is_some()) {
                    @let used = used.unwrap_or_default();
                    tr {
                        th scope="row" { (limit_name(*limit)) }
                        @for amount in [*granted, used, granted.saturating_sub(used)] { td.number { (limit_amount(*limit, amount)) } }
                    }
                }
            }
        }))
        @for (name, access, use_of_it) in [
            ("Network access", figures.network, "made a request"),
            ("Write access", figures.writing, "wrote to a file or created one"),
            ("Calls to other tools", figures.calling, "called one"),
        ] {
            @if access.granted > 0 && access.used == 0 {
                p.slack { (name) " was granted to " (counted(access.granted, "run")) ", and none " (use_of_it) "." }
            }
        }
    }
}

/// The units in the names of limits.
const UNITS: [&str; 3] = ["_bytes", "_ms", "_percent"];

fn limit_name(limit: LimitKind) -> String {
    let name = limit.as_str();
    let without_unit = UNITS.iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name);
    without_unit.replace('_', " ")
}

/// An amount with the unit of its limit.
fn limit_amount(limit: LimitKind, amount: u64) -> String {
    match UNITS.iter().find(|unit| limit.as_str().ends_with(**unit)) {
        Some(&"_bytes") => byte_size(amount),
        Some(&"_ms") => elapsed(Duration::from_millis(amount)),
        Some(_percent) => format!("{amount} % of a core"),
        None => amount.to_string(),
    }
}

/// The input of the narrower limits.
struct NarrowerLimits<'a> {
    executor: &'a Executor,
    /// `true` if the figures cover the runs of every agent.
    has_all_agents: bool,
    needs: &'a [PairNeeds],
    are_needs_missing: bool,
    /// The time since which all runs were read.
    since: OffsetDateTime,
    is_complete: bool,
    /// As [`CountedNodes::is_merged`].
    is_merged: bool,
    now: OffsetDateTime,
}

impl NarrowerLimits<'_> {
    fn render_policy(&self, name: &str) -> Markup {
        let pairs = self.needs.iter().filter(|pair| pair.agent == name).collect::<Vec<_>>();
        let Ok(agent) = AgentDid::parse(name) else { return html! {} };
        if self.are_needs_missing || pairs.is_empty() {
            return html! {};
        }
        let current = self.executor.policies.policy_of(&agent);
        let tools = pairs.iter().filter_map(|pair| ToolName::parse(&pair.tool).ok());
        // A policy would end the revocation of a revoked agent, which has none.
        if current.is_none() && !tools.into_iter().any(|tool| self.executor.policies.may_reach(&agent, &tool))
        {
            return html! { p.hint { "No narrower policy is shown, because this agent is refused every tool that it used." } };
        }
        let needs = total(&pairs);
        let Some(narrower) = narrower::policy(&agent, current, &pairs, self.now.date()) else {
            return html! {};
        };
        html! {
            h3 { "A narrower policy" }
            p { "It would have allowed " (self.basis(&needs)) " Send it as " code { "g2a/policy" } "." }
            (copied(&format!("policy-{name}"), &narrower::policy_text(&narrower)))
        }
    }

    fn render_capabilities(&self, name: &str) -> Markup {
        let tools = self.executor.catalogue.tools();
        let tool = tools.iter().find(|tool| tool.name.as_str() == name);
        let (Some(tool), true, false) = (tool, self.has_all_agents, self.are_needs_missing) else {
            return html! {};
        };
        let pairs = self.needs.iter().filter(|pair| pair.tool == name).collect::<Vec<_>>();
        let needs = total(&pairs);
        let Some(narrower) = narrower::capabilities(&tool.capabilities, &needs) else { return html! {} };
        if narrower == tool.capabilities {
            return html! { p.hint { "The limits in its " code { "tool.toml" } " cannot be narrowed further." } };
        }
        let comment = format!("Covers {}", self.basis(&needs));
        html! {
            h3 { "Narrower limits" }
            p { "They would have allowed " (self.basis(&needs)) " Put them into " code { "tool.toml" } "." }
            (copied(&format!("limits-{name}"), &narrower::capabilities_text(&narrower, &needs, &comment)))
        }
    }

    /// The runs that a text covers, as the end of a sentence.
    fn basis(&self, needs: &RunNeeds) -> String {
        let RunNeeds { runs, unmeasured, .. } = needs;
        let noun = if *runs == 1 { "run" } else { "runs" };
        let since = format_seconds(self.since);
        let mut text = match self.is_complete || !self.is_merged {
            true => format!("{runs} {noun} since {since}."),
            false => format!("{runs} {noun}, among them all since {since}."),
        };
        if *unmeasured > 0 {
            text.push_str(&format!(
                " The use of {unmeasured} more is not known: the executor ended while they ran."
            ));
        }
        if !self.is_complete {
            text.push_str(if self.is_merged {
                " Not all earlier runs were read."
            } else {
                " Earlier runs were not read."
            });
        }
        text
    }
}

fn total(pairs: &[&PairNeeds]) -> RunNeeds {
    let mut total = RunNeeds::default();
    pairs.iter().for_each(|pair| total.merge(&pair.needs));
    total
}

/// A text to copy. A script shows the button; without it, the text can be selected.
pub(super) fn copied(id: &str, text: &str) -> Markup {
    html! {
        div.copied {
            button type="button" data-copy=(id) hidden { "Copy" }
            pre #(id) tabindex="0" { (text) }
        }
    }
}
