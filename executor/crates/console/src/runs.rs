//! The page of one run: its limits and their use, its effects, and its place in the chain; and that of a refused call.

use super::arguments::arguments;
use super::elsewhere::{self, IntentPage};
use super::live_log::RunLog;
use super::page::{
    Viewer, at, block, byte_size, counted, elapsed, fault_page, intent_link, limits_table, line,
    missing_folders, not_found, problem, scrolling_table, set_by, status, whole,
};
use super::session::{PostedForm, SignedIn};
use super::tools::find_tool;
use super::{ConsoleState, ReadingViewer};
use a2g_core::run::{IntentState, has_run_elsewhere};
use a2g_govern::Caller;
use a2g_journal::{RecordedReceipt, RefusalSearch, RunRecord};
use a2g_types::call::{ParentRun, StoredArguments};
use a2g_types::failure_message::{allow_command, describe};
use a2g_types::grant::GrantSummary;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::limit::{Layer, rows_set_by};
use a2g_types::node::NodeName;
use a2g_types::outcome::{Artifact, DecisionAct, NestedCall, Progress, Receipt, RunOutput, Status, Usage};
use a2g_types::session::SessionState;
use a2g_types::verdict::{Manifest, Observation, Rationale};
use a2g_types::visible_text::escape_invisible_lines;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use serde_json::Value;
use std::sync::Arc;

/// Maximum size of an artifact that is shown as text, in bytes.
const MAX_SHOWN_BYTES: usize = 64 << 10;

/// `true` if the caller may read the intents of an agent that is named in the journal.
pub(super) fn may_read(caller: &Caller, agent: &str) -> bool {
    AgentDid::parse(agent).is_ok_and(|agent| caller.may_read(&agent))
}

/// `true` if the caller may stop the runs of an agent.
fn may_stop(caller: &Caller, agent: &str) -> bool {
    AgentDid::parse(agent).is_ok_and(|agent| caller.may_cancel(&agent))
}

/// `GET /console/runs/{intent}`.
pub(super) async fn show(
    State(console): State<Arc<ConsoleState>>,
    ReadingViewer { signed_in, _place }: ReadingViewer,
    Path(intent): Path<String>,
) -> Response {
    let Ok(intent) = IntentId::parse(&intent) else { return not_found("run") };
    if let Some(page) = find_page_here(&console, &signed_in, intent).await {
        return page;
    }
    let fault = match elsewhere::find_page(&console, &signed_in, IntentPage::Run, intent).await {
        Ok(Some(page)) => return page,
        Ok(None) => None,
        Err(fault) => Some(fault),
    };
    // The fleet has the receipt, even if the node is lost or does not answer.
    let found = find_page_in_fleet(&console, &signed_in, intent).await;
    let page = found.or_else(|| fault.as_ref().map(fault_page));
    match page {
        Some(page) => page,
        // The node that has run it does not know it any more, or does not answer.
        None => {
            let page = make_page_here(&console, &signed_in, intent, IfElsewhere::Shown).await;
            page.unwrap_or_else(|| not_found("run"))
        }
    }
}

/// The page of an intent from what the fleet has of it, and the records that this node has; `None` for an intent that no
/// node has claimed and nobody has approved.
async fn find_page_in_fleet(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
) -> Option<Response> {
    match console.executor.queries.status(intent).await {
        Ok(Some((agent, state))) if signed_in.caller.may_read(&agent) => {
            let so_far = RunSoFar { calls: &[], said: None };
            let place = ProofPlace { intent, node: None, journal: None };
            let viewer = signed_in.viewer(console);
            let record = console.executor.queries.run_record(intent).await.unwrap_or_default();
            // Another agent may have used the id before.
            let record = record.filter(|record| record.agent == agent.as_str());
            let body = run_body(viewer, place, agent.as_str(), Some(&state), record.as_ref(), None, so_far);
            Some(signed_in.viewer(console).page("Run", &body))
        }
        Ok(_) => None,
        Err(fault) => Some(fault_page(&fault)),
    }
}

/// The page of an intent that this node has run, refused or let wait; `None` for any other intent, and for one of which
/// another node has more.
pub(super) async fn find_page_here(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
) -> Option<Response> {
    make_page_here(console, signed_in, intent, IfElsewhere::LeftOut).await
}

/// The place of the records of an intent of which another node has more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfElsewhere {
    Shown,
    LeftOut,
}

async fn make_page_here(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
    if_elsewhere: IfElsewhere,
) -> Option<Response> {
    let state = match console.executor.queries.status_here(intent).await {
        Ok(state) => state,
        Err(fault) => return Some(fault_page(&fault)),
    };
    let record = match console.executor.queries.run_record(intent).await {
        Ok(record) => record,
        Err(fault) => return Some(fault_page(&fault)),
    };
    let is_left_out = if_elsewhere == IfElsewhere::LeftOut;
    let is_elsewhere =
        console.executor.queries.is_decided(intent) || record.as_ref().is_some_and(has_run_elsewhere);
    if is_left_out && state.is_none() && is_elsewhere {
        return None;
    }
    // The node at which it arrived has its records.
    if is_left_out && record.is_none() && console.executor.queries.home_of_wait(intent).is_some() {
        return None;
    }
    let owner = state.as_ref().map(|(agent, _)| agent.to_string());
    let agent = owner.or_else(|| record.as_ref().map(|record| record.agent.clone()));
    let Some(agent) = agent else { return show_refusal(console, signed_in, intent).await };
    if !may_read(&signed_in.caller, &agent) {
        return None;
    }
    // Another agent may have used the id before.
    let record = record.filter(|record| record.agent == agent);
    let calls = console.executor.queries.nested_calls(intent);
    let state = state.map(|(_, state)| state);
    let said = console.live.logs.find(intent);
    let so_far = RunSoFar { calls: &calls, said: said.as_ref() };
    let journal = signed_in.caller.may_read_all().then(|| console.journal.display().to_string());
    let node = console.executor.node.name().map(NodeName::as_str);
    let place = ProofPlace { intent, node, journal: journal.as_deref() };
    let tools = console.executor.catalogue.tools();
    let tool = record.as_ref().and_then(|record| find_tool(&tools, &record.tool));
    let schema = tool.map(|tool| &tool.arguments_schema);
    let body =
        run_body(signed_in.viewer(console), place, &agent, state.as_ref(), record.as_ref(), schema, so_far);
    Some(signed_in.viewer(console).page("Run", &body))
}

/// The page of an intent that was refused, and so has no records.
async fn show_refusal(console: &ConsoleState, signed_in: &SignedIn, intent: IntentId) -> Option<Response> {
    let search = RefusalSearch { text: Some(intent.to_string()), ..RefusalSearch::default() };
    let caller = Arc::clone(&signed_in.caller);
    let is_visible = move |agent: &str| may_read(&caller, agent);
    let found = match console.executor.queries.search_refusals(search, is_visible, None, 1).await {
        Ok(found) => {
            found.items.into_iter().map(|found| found.refusal).find(|refusal| refusal.intent == intent)
        }
        Err(fault) => return Some(fault_page(&fault)),
    };
    let refusal = found?;
    let body = html! {
        h1 { "Refused call " code { (intent.to_string()) } }
        dl.facts {
            dt { "Agent" } dd { (line(&refusal.agent)) }
            dt { "Tool" } dd { (line(&refusal.tool)) }
            dt { "Refused" } dd { (at(refusal.at)) " by " code { (line(&refusal.blocked_by)) } }
            dt { "Reason" } dd { (line(&refusal.message)) }
        }
        p { "It did not run, and its arguments are not stored." }
    };
    Some(signed_in.viewer(console).page("Refused call", &body))
}

/// The arguments of the command that verifies a receipt.
#[derive(Clone, Copy)]
pub(super) struct ProofPlace<'a> {
    pub(super) intent: IntentId,
    /// The node of the fleet that has the journal.
    pub(super) node: Option<&'a str>,
    /// The journal's file, for viewers who may read all intents.
    pub(super) journal: Option<&'a str>,
}

/// The parts of a run that exist before its receipt.
#[derive(Clone, Copy)]
pub(super) struct RunSoFar<'a> {
    pub(super) calls: &'a [NestedCall],
    pub(super) said: Option<&'a RunLog>,
}

/// The page of a run, whose tool has this schema if it is in the catalogue.
pub(super) fn run_body(
    viewer: Viewer<'_>,
    place: ProofPlace<'_>,
    agent: &str,
    state: Option<&IntentState>,
    record: Option<&RunRecord>,
    schema: Option<&Value>,
    RunSoFar { calls, said }: RunSoFar<'_>,
) -> Markup {
    let intent = place.intent;
    let recorded = record.and_then(|record| record.receipt.as_ref());
    let receipt = match (recorded, state) {
        (Some(recorded), _) => Some(&recorded.receipt),
        (None, Some(IntentState::Finished(receipt))) => receipt.as_deref(),
        (None, _) => None,
    };
    let (name, is_open) = match state {
        Some(IntentState::Escalated) => ("WAITS FOR A PERSON", true),
        Some(IntentState::Queued) => ("QUEUED", true),
        Some(IntentState::Running) => ("RUNNING", true),
        Some(IntentState::Finished(receipt)) => {
            (receipt.as_ref().map_or("FINISHED", |receipt| receipt.outcome.end.status().as_str()), false)
        }
        None if record.is_some_and(RunRecord::has_expired) => ("EXPIRED", false),
        None => ("DID NOT RUN", false),
    };
    let path = format!("/console/runs/{intent}");
    html! {
        h1 { "Run " code { (intent.to_string()) } }
        section #run hx-get=(path) hx-trigger=[is_open.then_some("sse:runs, sse:inbox")] hx-select="#run" hx-swap="outerHTML" {
            dl.facts {
                dt { "Status" } dd { (status(name)) }
                @if let Some(node) = place.node { dt { "Node" } dd { (line(node)) } }
                dt { "Agent" } dd { (line(agent)) }
                @if let Some(record) = record { dt { "Tool" } dd { (tool_part(&record.tool)) } }
                @if let Some(door) = receipt.map(|receipt| receipt.door) { dt { "Door" } dd { (door) } }
                @if let Some(parent) = receipt.and_then(|receipt| receipt.parent.as_ref()) { dt { "Called by" } dd { (parent_line(parent)) } }
            }
            @if let Some((run, changes)) = receipt.and_then(changes_of) {
                p { a href={ "/console/changes/" (run.to_string()) } { (changes) } }
            }
            @if matches!(state, Some(IntentState::Escalated)) {
                p { a href={ "/console/decide/" (intent.to_string()) } { "See the decision page" } }
            }
            @if let Some(record) = record { (stored_arguments(record, schema)) }
            @if let Some(receipt) = receipt { (outcome(&path, receipt)) }
            @else {
                @if !calls.is_empty() { h2 { "Calls so far" } (nested(calls)) }
                @if let Some(said) = said { (log_so_far(said)) }
            }
            @if let Some(record) = record { (timeline(record)) }
            @if let Some(recorded) = recorded { (proof(place, recorded)) }
            @if is_open && may_stop(viewer.caller, agent) {
                form method="post" action={ (path) "/stop" } {
                    (viewer.token_field())
                    p { button.danger type="submit" { "Stop this run" } }
                }
            }
        }
    }
}

/// The tool of a run. A decision on file changes is a run without one.
fn tool_part(tool: &str) -> Markup {
    html! {
        @if DecisionAct::of_tool(tool).is_some() { (line(tool)) ", a decision on the file changes of another run" }
        @else { a href={ "/console/tools/" (line(tool)) } { (line(tool)) } }
    }
}

/// The run whose file changes have a page, for the run itself or a decision on them, and the text of the link to it.
fn changes_of(receipt: &Receipt) -> Option<(IntentId, String)> {
    if DecisionAct::of_tool(receipt.tool.as_str()).is_some() {
        let decided = receipt.parent.as_ref()?.intent;
        return Some((decided, "See the file changes that it decided on".to_owned()));
    }
    let count = receipt.outcome.usage.changes.as_ref()?.count;
    Some((receipt.intent, format!("See its {}, and whether they are applied", counted(count, "file change"))))
}

/// What the journal has of the arguments.
fn stored_arguments(record: &RunRecord, schema: Option<&Value>) -> Markup {
    let Some(stored) = &record.arguments else { return html! {} };
    html! {
        h2 { "Arguments" }
        @match stored {
            StoredArguments::Kept { arguments: kept, left_out } => {
                @if schema.is_some() { (arguments(&record.tool, schema, kept)) }
                @else { (block(&serde_json::to_string_pretty(kept).unwrap_or_default())) }
                @if !left_out.is_empty() {
                    p { "Left out, because the operator never wants them stored: " @for place in left_out { code { (line(place)) } " " } }
                }
            }
            StoredArguments::TooLarge { max_bytes } => p { "They are not stored: they had more than " (max_bytes) " bytes." }
        }
    }
}

fn log_so_far(RunLog { lines, is_shortened, progress, .. }: &RunLog) -> Markup {
    html! {
        @if let Some(Progress { percent, message }) = progress {
            p role="status" { "Progress: " @if let Some(percent) = percent { (format!("{percent:.0}")) "% " } (line(message)) }
        }
        @if !lines.is_empty() {
            h2 { "Log so far" }
            @if *is_shortened { p { "The receipt will have the earlier lines." } }
            pre tabindex="0" { @for (level, message) in lines { (level.as_str()) " " (line(message)) "\n" } }
        }
    }
}

fn parent_line(parent: &ParentRun) -> Markup {
    html! { "call " (parent.ordinal) " of " (parent.tool) " " (intent_link(parent.intent)) }
}

fn outcome(path: &str, receipt: &Receipt) -> Markup {
    let outcome = &receipt.outcome;
    let RunOutput { logs, progress: _, artifacts, truncated } = &outcome.output;
    html! {
        @if let Some(failure) = describe(outcome) { p.error { (line(&failure)) } }
        @if let Some(result) = outcome.end.result() { h2 { "Result" } (block(result.as_str())) }
        h2 { "Limits" }
        (limits(receipt))
        @if !outcome.usage.denied.is_empty() {
            h2 { "Denied" }
            (denials(&outcome.usage))
            @if let Some(command) = allow_command(&receipt.tool, &outcome.usage) {
                p { "To print what would allow the tool that host: " code { (line(&command)) } }
            }
        }
        @if let Some(calls) = &receipt.calls {
            @if !calls.calls.is_empty() { h2 { "Calls (" (calls.count) " of at most " (calls.max_calls.value) ")" } (nested(&calls.calls)) }
        }
        @if !logs.is_empty() {
            h2 { "Log" }
            pre tabindex="0" { @for log in logs { (log.level.as_str()) " " (escape_invisible_lines(&log.message)) "\n" } }
        }
        @if !artifacts.is_empty() { h2 { "Artifacts" } @for (index, artifact) in artifacts.iter().enumerate() { (artifact_part(path, index, artifact)) } }
        @if *truncated { p { "Output was dropped at the output limit." } }
    }
}

/// One row for each limit, with a bar that shows how much of it was used.
fn limits(receipt: &Receipt) -> Markup {
    let usage = &receipt.outcome.usage;
    let metrics = &receipt.outcome.metrics;
    // The limits of a verdict that a person approved are those of the approval.
    let by = |layer| match (layer, &receipt.approved_by) {
        (Layer::Verdict, Some(_)) => "the approval",
        (layer, _) => set_by(layer),
    };
    let row = |name: &str, used: f64, granted: f64, shown: &str, layer: Layer| {
        html! { tr {
            th scope="row" { (name) }
            td { meter min="0" max=(granted) value=(used.min(granted)) aria-label={ (name) " used" } {} }
            td.number { (shown) }
            td { (by(layer)) }
        } }
    };
    let figures = |name: &str, used: f64, granted: f64, unit: &str, layer: Layer| {
        row(name, used, granted, &format!("{} of {} {unit}", figure(used), figure(granted)), layer)
    };
    #[allow(clippy::cast_precision_loss, reason = "a bar is less exact")]
    let sizes = |name: &str, used: u64, granted: u64, layer: Layer| {
        let shown = format!("{} of {}", byte_size(used), byte_size(granted));
        row(name, used as f64, granted as f64, &shown, layer)
    };
    html! {
        (limits_table("Limits", &html! {
            thead { tr { th { "Limit" } th { "Share" } th { "Used of granted" } th { "Set by" } } }
            tbody {
                (sizes("Memory", metrics.peak_memory_bytes, usage.memory.value.bytes(), usage.memory.layer))
                (figures("CPU", metrics.cpu_percent(), usage.cpu.value.get().into(), "% of a core", usage.cpu.layer))
                (figures("Time", metrics.wall.as_secs_f64(), usage.timeout.value.duration().as_secs_f64(), "s", usage.timeout.layer))
                (sizes("Output", metrics.output_bytes, usage.output.value.bytes(), usage.output.layer))
            }
        }))
        @if metrics.cpu_percent() > usage.cpu.value.get().into() {
            p { "The share of CPU is above the limit because the run was short: the limit allows a few milliseconds of CPU at once." }
        }
        dl.facts {
            dt { "Files" }
            dd {
                @if usage.filesystem.is_empty() { "none" @if let Some(layer) = usage.filesystem_emptied_by { ", by " (by(layer)) } }
                @for area in &usage.filesystem { p { code { (line(&area.pattern)) } " " (area.access.value.as_str()) ", set by " (by(area.set_by)) } }
                @for blocked in &usage.blocked { p { "except " code { (line(&blocked.value)) } ", set by " (by(blocked.layer)) } }
                (missing_folders(&usage.missing_roots))
            }
            @if let Some(effects) = usage.effects.value.unless_direct() {
                dt { "File changes" }
                dd {
                    (effects.as_str()) ", set by " (by(usage.effects.layer))
                    @if let Some(changes) = &usage.changes {
                        "; " (changes.count)
                        @if DecisionAct::of_tool(receipt.tool.as_str()).is_some() { " were decided on" }
                        @else if receipt.outcome.end.status() == Status::Staged { " waited for a decision" }
                        @else { " took effect" }
                        @if let Some(sends) = changes.describe_sending() { "; a commit " (sends) }
                    }
                }
            }
            dt { "Network" }
            dd {
                @if usage.network.value { "granted" } @else { "off" } ", set by " (by(usage.network.layer))
                @for contact in usage.network_used.iter().flat_map(|used| &used.contacted) {
                    p { code { (line(&contact.authority)) } ": " (counted(contact.requests, "request")) ", " (counted(contact.sent_bytes, "byte")) " sent, " (counted(contact.received_bytes, "byte")) " received" }
                }
                @for secret in usage.network_used.iter().flat_map(|used| &used.secrets).filter(|secret| secret.redacted > 0) {
                    p { "the value of the secret " code { (secret.name.as_str()) } " was replaced " (counted(secret.redacted, "time")) " in what came back" }
                }
                @if let Some(server) = usage.network_used.as_ref().and_then(|used| used.remote_server.as_deref()) {
                    p { "Confinement ends at the request: what the MCP server " code { (line(server)) } " does is not limited by this executor." }
                }
            }
            @if let Some(session) = &receipt.session {
                dt { "Session" }
                dd { code { (session.handle.short()) "…" } ", turn " (session.turn) ", " (session_state(session.state)) }
            }
            @if metrics.earlier_runs > 0 {
                dt { "Process" }
                dd { "had served " (counted(metrics.earlier_runs, "run")) " of this agent and tool before, under the same grant" }
            }
        }
    }
}

/// A session after a turn, as people read it.
fn session_state(state: SessionState) -> String {
    match state {
        SessionState::Kept { idle_seconds } => format!("kept for {idle_seconds} s after the turn"),
        SessionState::Ended(end) => format!("ended: {}", end.clause()),
    }
}

/// A figure with up to three decimals, without zeros at its end.
fn figure(value: f64) -> String {
    let digits = if value < 10.0 { format!("{value:.3}") } else { format!("{value:.1}") };
    let text = digits.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() { "0".to_owned() } else { text.to_owned() }
}

fn denials(usage: &Usage) -> Markup {
    html! {
        (scrolling_table("Denied accesses", &html! {
            thead { tr { th { "What" } th { "Why" } th { "Times" } } }
            tbody {
                @for denial in &usage.denied { tr { td { code { (line(&denial.what)) } } td { code { (denial.reason.as_str()) } } td.number { (denial.count) } } }
            }
        }))
        @if usage.denied_truncated { p { "There were more." } }
    }
}

fn nested(calls: &[NestedCall]) -> Markup {
    html! {
        ol.calls {
            @for call in calls {
                li value=(call.ordinal) {
                    (line(&call.tool)) " " (call.decision.map_or("-", |decision| decision.as_str())) " "
                    (status(call.end.as_str())) " in " (elapsed(call.duration)) " " (intent_link(call.intent))
                }
            }
        }
    }
}

fn artifact_part(path: &str, index: usize, artifact: &Artifact) -> Markup {
    let Artifact { name, mime, content } = artifact;
    let link = format!("{path}/artifacts/{index}");
    let text = std::str::from_utf8(content).ok().filter(|text| text.len() <= MAX_SHOWN_BYTES);
    html! {
        p { a href=(link) download { (line(name)) } " (" (line(mime)) ", " (byte_size(content.len() as u64)) ")" }
        @if image_type(content).is_some() { p { img loading="lazy" src={ (link) "?image=true" } alt={ "Artifact " (line(name)) }; } }
        @else if let Some(text) = text { (block(text)) }
    }
}

/// The media type of an image that every browser renders without running anything, from its first bytes. What the tool
/// says about an artifact counts for nothing.
fn image_type(content: &[u8]) -> Option<&'static str> {
    match content {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

fn timeline(record: &RunRecord) -> Markup {
    html! {
        h2 { "Timeline" }
        @if let Some(verdict) = &record.verdict {
            p { "Verdict " strong { (verdict.decision.as_str()) }
                @if let Some(reason) = &verdict.reason { ": " (line(reason)) }
                @for condition in &verdict.conditions { " · " code { (line(condition)) } }
            }
            (rationale_part(&verdict.rationale))
        }
        @match (&record.approved_grant, &record.approved_manifest) {
            (Some(grant), _) => { p { "Approved as it was shown: " (grant_line(grant)) } }
            (None, Some(manifest)) => { p { "Approved under these limits: " (manifest_line(manifest)) } }
            (None, None) => {}
        }
        ol.timeline {
            @for event in &record.events {
                li { (at(event.at)) " " strong { (event_name(event.kind)) } @if let Some(by) = &event.by { ": " (line(by)) } " (record " (event.record) ")"
                    @if let Some(reason) = &event.reason { ": " (line(reason)) }
                    @if let Some(basis) = &event.basis { br; "What was shown: " code.hash { (a2g_journal::chain::to_hex(basis)) } }
                }
            }
        }
    }
}

/// The rules behind a verdict, and the decisions that observed files would have made.
fn rationale_part(rationale: &Rationale) -> Markup {
    let Rationale { decided_by, observed } = rationale;
    let rules = |names: &[String]| html! { @for name in names { " " code { (line(name)) } } };
    html! {
        @if !decided_by.is_empty() { p { "Decided by" (rules(decided_by)) } }
        @for Observation { file, decision, decided_by } in observed {
            p { "With the observed file " code { (line(file)) } ", it would have been " strong { (decision.as_str()) } @if !decided_by.is_empty() { ", by" (rules(decided_by)) } }
        }
    }
}

/// What a record of the journal means, for people.
fn event_name(kind: &str) -> &str {
    match kind {
        "held" => "began to wait",
        "claim" => "started",
        "receipt" => "ended",
        "released" => "did not start",
        other => other,
    }
}

/// A grant that a person was shown.
fn grant_line(grant: &GrantSummary) -> Markup {
    let GrantSummary {
        limits: _,
        network,
        allowed_hosts,
        blocked_hosts,
        allowed_requests,
        requests_per_minute,
        areas,
        blocked_paths,
        access,
        effects,
        calls,
        secrets,
    } = grant;
    html! {
        // The page of a decision shows only what a verdict sets.
        @for row in rows_set_by(Layer::Verdict) {
            (row.summarize(grant.amount(row.limit))) " · "
        }
        "network "
        @if network.value {
            @if allowed_hosts.is_empty() { "allowed, to no host" } @else { "to " }
            @for host in allowed_hosts { code { (whole(&host.pattern)) } " " }
            @for host in blocked_hosts { "except " code { (whole(&host.pattern)) } " " }
            @if !allowed_requests.is_empty() { "with no other requests than " }
            @for request in allowed_requests { code { (whole(&request.value)) } " " }
            @if let Some(rate) = requests_per_minute { "at most " (counted(rate.value, "request")) " a minute" }
        } @else { "off" }
        " · files "
        @if areas.is_empty() { "none" } @else { (access.value.as_str()) }
        @for area in areas { " " code { (whole(&area.value)) } }
        @for path in blocked_paths { " except " code { (whole(&path.value)) } }
        @if let Some(effects) = effects.value.unless_direct() { " · file changes " (effects.as_str()) }
        @if let Some(calls) = calls {
            " · at most " (counted(calls.max_calls.value, "call")) ", " (calls.max_parallel.value) " at the same time"
            @for targets in &calls.targets { ", to " (line(&targets.value.to_names().join(", "))) }
        }
        @for secret in secrets {
            " · the secret " (secret.name) " in " code { (whole(&secret.place)) }
            @if secret.withheld_by.is_some() { ", withheld" } @else { " of at most " (counted(secret.max_uses, "request")) }
        }
    }
}

fn manifest_line(manifest: &Manifest) -> Markup {
    let Manifest { limits, network_allowed, filesystem_scope } = manifest;
    html! {
        @for (row, amount) in limits.claimed() { (row.summarize(Some(amount))) " · " }
        "network " @if network_allowed.unwrap_or(false) { "allowed" } @else { "off" } " · files "
        @for pattern in filesystem_scope { code { (line(pattern)) } " " }
        @if filesystem_scope.is_empty() { "none" }
    }
}

fn proof(ProofPlace { intent, node, journal }: ProofPlace<'_>, recorded: &RecordedReceipt) -> Markup {
    let hex = |hash: &a2g_journal::chain::Hash| a2g_journal::chain::to_hex(hash);
    let journal = journal.map(|journal| format!(" --journal '{}'", line(&journal.replace('\'', "'\\''"))));
    let journal = journal.unwrap_or_default();
    let checkpoint = format!("{}:{}", recorded.number, hex(&recorded.hash));
    html! {
        h2 { "Proof" }
        dl.facts {
            dt { "Receipt" } dd { (recorded.number) ", in record " (recorded.record) }
            dt { "Hash" } dd { code.hash { (hex(&recorded.hash)) } }
            @if let Some(previous) = &recorded.previous_hash { dt { "Hash of the record before" } dd { code.hash { (hex(previous)) } } }
            dt { "Report" } dd { @if recorded.delivered { "delivered to the governor" } @else { "not delivered to the governor yet" } }
        }
        p {
            "Verify that the chain has exactly this receipt, and read it, without the server"
            @if let Some(node) = node { ", on the machine of the node " strong { (line(node)) } }
            ":"
        }
        pre tabindex="0" { code {
            "a2g-executor journal verify" (journal) " --checkpoint " (checkpoint) "
    "
            "a2g-executor journal show" (journal) " " (intent.to_string())
        } }
    }
}

/// `POST /console/runs/{intent}/stop`.
pub(super) async fn stop(
    State(console): State<Arc<ConsoleState>>,
    Path(intent): Path<String>,
    PostedForm { signed_in, form: _ }: PostedForm,
) -> Response {
    let Ok(intent) = IntentId::parse(&intent) else { return not_found("run") };
    let caller = &signed_in.caller;
    let may_cancel = |agent: &AgentDid| caller.may_cancel(agent);
    match console.executor.operator.cancel(intent, &may_cancel, caller.name()).await {
        Ok(true) => Redirect::to(&format!("/console/runs/{intent}")).into_response(),
        Ok(false) => problem(
            StatusCode::CONFLICT,
            "There was nothing to stop",
            "The run has ended, or it is not yours to stop.",
        ),
        Err(fault) => fault_page(&fault),
    }
}

#[derive(Default, serde::Deserialize)]
pub(super) struct ArtifactQuery {
    #[serde(default)]
    image: bool,
}

/// `GET /console/runs/{intent}/artifacts/{index}`: a download, or an image for the page.
pub(super) async fn artifact(
    State(console): State<Arc<ConsoleState>>,
    ReadingViewer { signed_in, _place }: ReadingViewer,
    Path((intent, index)): Path<(String, usize)>,
    Query(query): Query<ArtifactQuery>,
) -> Response {
    let Ok(intent) = IntentId::parse(&intent) else { return not_found("artifact") };
    let receipt = match console.executor.queries.status(intent).await {
        Ok(Some((agent, IntentState::Finished(receipt)))) if signed_in.caller.may_read(&agent) => receipt,
        Ok(_) => None,
        Err(fault) => return fault_page(&fault),
    };
    let artifact = receipt.as_ref().and_then(|receipt| receipt.outcome.output.artifacts.get(index));
    let Some(artifact) = artifact else { return not_found("artifact") };
    let image = image_type(&artifact.content).filter(|_| query.image);
    let mut response = artifact.content.clone().into_response();
    let headers = response.headers_mut();
    let mime = HeaderValue::from_static(image.unwrap_or("application/octet-stream"));
    headers.insert(header::CONTENT_TYPE, mime);
    // Even if a browser opens it as a page, it may do nothing.
    let confined = HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'");
    headers.insert(header::CONTENT_SECURITY_POLICY, confined);
    if image.is_none() {
        // The name that the tool gave is not used: it could end in `.html`.
        let name = format!("attachment; filename=\"artifact-{index}.bin\"");
        if let Ok(name) = HeaderValue::from_str(&name) {
            headers.insert(header::CONTENT_DISPOSITION, name);
        }
    }
    response
}
