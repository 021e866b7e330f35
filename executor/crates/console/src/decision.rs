//! The decision on an intent that waits for a person.
//!
//! ```text
//! preview under the verdict ─▶ page: fields, grant, basis ─ form ─▶ manifest, never wider ─▶ preview again
//!                                   ▲                                   │ another basis: show it, decide nothing
//!                                   └───────────────────────────────────┤
//!                                                                       └ the same basis: apply_shown_directive
//! ```
//! The record of an approval has the grant that was shown. Each attempt to start the run, even after a restart,
//! compares its grant with that one. If any part of it is wider, the intent waits for a person again.

use super::ConsoleState;
use super::arguments::arguments;
use super::elsewhere::{self, IntentPage};
use super::form::FormFields;
use super::inbox::{risk_part, without_risk};
use super::page::{
    Viewer, at, countdown, counted, exact_time, fault_page, fault_text, forbidden, intent_link, line,
    missing_folders, not_found, set_by, whole,
};
use super::runs::may_read;
use super::session::{FORM_TOKEN, PostedForm, SignedIn};
use a2g_core::run::{ApprovalBar, DecisionBasis, DecisionPreview, DirectiveOutcome, has_run_elsewhere};
use a2g_types::fault::Fault;
use a2g_types::grant::{CallSummary, GrantSummary, SecretSummary};
use a2g_types::ident::IntentId;
use a2g_types::limit::{Bound, ClaimedLimits, Layer, LimitRow, Unit, rows_set_by};
use a2g_types::session::SessionRequest;
use a2g_types::stop::OperatorReason;
use a2g_types::tool::CallTargets;
use a2g_types::verdict::{Directive, Manifest, Verdict};
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

/// Minimum time between making the page and an approval. The script of the page (`console.js`) also requires that the page
/// has been visible for that long: only the browser knows when a person sees it.
const MIN_SHOWN: Duration = Duration::from_secs(1);
/// The fields of the form that are no limits.
const FIELDS: [&str; 7] = [FORM_TOKEN, "action", "basis", SHOWN_AT, "scope", "network", "reason"];
/// The field with the time at which the page was made.
pub(super) const SHOWN_AT: &str = "shown_at";

/// `GET /console/decide/{intent}`.
pub(super) async fn show(
    State(console): State<Arc<ConsoleState>>,
    signed_in: SignedIn,
    Path(intent): Path<String>,
) -> Response {
    let Ok(intent) = IntentId::parse(&intent) else { return not_found("intent") };
    if let Some(page) = find_page_here(&console, &signed_in, intent, Shown::WithTool).await {
        return page;
    }
    let elsewhere = match elsewhere::find_page(&console, &signed_in, IntentPage::Decision, intent).await {
        Ok(Some(page)) => return page,
        Ok(None) => not_found("intent"),
        Err(fault) => fault_page(&fault),
    };
    find_page_here(&console, &signed_in, intent, Shown::AlsoWithoutTool).await.unwrap_or(elsewhere)
}

/// The decisions for which a node of a fleet has a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// Those whose tool it has.
    WithTool,
    /// All.
    AlsoWithoutTool,
}

impl Shown {
    fn includes(self, console: &ConsoleState, preview: &DecisionPreview) -> bool {
        self == Self::AlsoWithoutTool || preview.tool.is_some() || console.executor.node.name().is_none()
    }
}

/// The page of an intent that waits, if it is to be shown here, or has waited here; `None` for any other intent.
pub(super) async fn find_page_here(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
    shown: Shown,
) -> Option<Response> {
    // Without an answer of the servers, the page may be old. A decision reads the intent again.
    let _known = console.executor.queries.refresh_wait(intent).await;
    match propose(console, signed_in, intent) {
        Some(proposal) if shown.includes(console, &proposal.original) => {
            Some(decision_page(console, signed_in, &proposal, Said::default()).await)
        }
        Some(_) => None,
        None => no_longer_waiting(console, signed_in, intent).await,
    }
}

/// The rights of the viewer on the page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DecisionRights {
    Approve,
    DenyOnly(ApprovalBar),
    ReadOnly,
}

/// What the page proposes to approve.
struct Proposal {
    /// The preview without the person's changes: the most that may be approved, and the layer that set each limit.
    original: DecisionPreview,
    /// The preview under exactly the proposed manifest.
    proposed: DecisionPreview,
}

impl Proposal {
    /// The hash of what the page shows.
    fn basis(&self) -> DecisionBasis {
        self.proposed.basis
    }

    /// `true` if the person has narrowed a limit.
    fn is_changed(&self) -> bool {
        match (&self.original.grant, &self.proposed.grant) {
            (Ok(granted), Ok(shown)) => Limits { granted, shown }.is_changed(),
            (Err(_), _) | (_, Err(_)) => false,
        }
    }
}

/// What the page says about the form before.
#[derive(Clone, Copy, Default)]
struct Said<'a> {
    notice: Option<&'a str>,
    /// The reason that the person has typed.
    reason: &'a str,
}

/// The proposal to approve everything that the verdict grants.
fn propose(console: &ConsoleState, signed_in: &SignedIn, intent: IntentId) -> Option<Proposal> {
    let original = console.executor.previews.preview_decision(intent, None)?;
    if !signed_in.caller.may_read(&original.call.agent) {
        return None;
    }
    let manifest = original.grant.as_ref().ok().map(|grant| grant.to_manifest(&original.verdict.manifest));
    let proposed = console.executor.previews.preview_decision(intent, manifest.as_ref())?;
    Some(Proposal { original, proposed })
}

/// The answer for an intent that is not waiting; `None` if this node has no records of it that the caller may see.
async fn no_longer_waiting(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
) -> Option<Response> {
    match console.executor.queries.run_record(intent).await {
        Ok(Some(record)) if has_run_elsewhere(&record) => None,
        Ok(Some(record)) if may_read(&signed_in.caller, &record.agent) => {
            let body = html! {
                h1 { "This intent no longer waits" }
                @if record.has_expired() {
                    p.error role="status" { (EXPIRED) }
                } @else {
                    p role="status" { "Somebody has decided on it, or it was stopped." }
                }
                p { a href={ "/console/runs/" (intent.to_string()) } { "See what happened to it" } }
            };
            Some(signed_in.viewer(console).page("Decided", &body))
        }
        Ok(_) => None,
        Err(fault) => Some(fault_page(&fault)),
    }
}

const EXPIRED: &str =
    "Expired: nobody decided in time, so the call did not run. The agent has to send it again.";

async fn decision_page(
    console: &ConsoleState,
    signed_in: &SignedIn,
    proposal: &Proposal,
    said: Said<'_>,
) -> Response {
    let Proposal { original, proposed } = proposal;
    let missing_roots = console.executor.previews.find_missing_roots(proposed).await;
    let viewer = signed_in.viewer(console);
    let DecisionPreview { call, verdict, expires_at, tool, approved_by, required_approvals, .. } = original;
    let right = viewer.caller.decision_right();
    let rights = match &right {
        None => DecisionRights::ReadOnly,
        Some(right) => match console.executor.previews.approval_bar(call.intent, right) {
            None => DecisionRights::Approve,
            Some(bar) => DecisionRights::DenyOnly(bar),
        },
    };
    let now = console.executor.clock().now();
    let has_expired = now >= *expires_at;
    let schema = tool.as_ref().map(|tool| &tool.arguments_schema);
    let body = html! {
        // The script shows it once the time has come.
        p.error role="alert" data-expires=(exact_time(*expires_at)) hidden[!has_expired] { (EXPIRED) }
        h1 { "Decide: " (call.tool) }
        @if let Some(notice) = said.notice { p.notice role="alert" { (notice) } }
        (reason_part(verdict))
        dl.facts.pairs {
            dt { "Expires" } dd { (countdown(*expires_at, now)) " (" (at(*expires_at)) ")" }
            dt { "Agent" } dd { (line(call.agent.as_str())) }
            dt { "Tool" } dd {
                a href={ "/console/tools/" (call.tool.as_str()) } { (call.tool) }
                @if let Some(tool) = tool { " " (line(&tool.version)) ": " (line(&tool.description)) }
            }
            @if let Some(parent) = &call.parent {
                dt { "Called by" } dd { "call " (parent.ordinal) " of " (parent.tool) " " (intent_link(parent.intent)) }
            }
            @if let Some(node) = console.executor.node.name() { dt { "Node" } dd { (node) } }
            @if *required_approvals > 1 {
                dt { "Approvals" }
                dd { (approved_by.len()) " of " (required_approvals) @for name in approved_by { " · " (line(name)) } }
            }
        }
        h2 { "Arguments" }
        @if let Some(session) = &call.session { (session_part(session.request)) }
        (arguments(call.tool.as_str(), schema, &call.arguments))
        @match (&original.grant, &proposed.grant) {
            (Ok(granted), Ok(shown)) => {
                @for (name, path) in uncovered_arguments(&call.arguments, granted, shown) {
                    p.notice role="status" {
                        "The argument " code { (line(name)) } " names " code { (line(path)) } ", which only a pattern that you removed covered: the run will probably fail."
                    }
                }
                (missing_folders(&missing_roots))
                @if !has_expired { (decision_form(viewer, call.intent, proposal.basis(), Limits { granted, shown }, rights, said, now)) }
            }
            (Err(fault), _) | (_, Err(fault)) => {
                p.error { "An approval would be refused: " (fault_text(fault)) }
                @if !has_expired && rights != DecisionRights::ReadOnly { (deny_form(viewer, call.intent, said.reason)) }
            }
        }
        (hashes(original, proposal.basis()))
    };
    viewer.page("Inbox", &body)
}

/// The session in which the arguments take effect: what earlier calls have left in it may change what a program means.
fn session_part(request: SessionRequest) -> Markup {
    html! {
        p.notice role="status" {
            @match request {
                SessionRequest::New => { "The call opens a session: later calls of this caller find what it leaves." }
                SessionRequest::Continue(handle) => {
                    "The call goes on in the session " code { (handle.short()) "…" } ": it finds what earlier calls have left, which is not shown here."
                }
            }
        }
    }
}

/// The risk and the governor's reason.
fn reason_part(verdict: &Verdict) -> Markup {
    let risk = verdict.risk.as_ref();
    let level = risk.map(|risk| (risk.level.as_str(), risk.score));
    let reason = without_risk(verdict.reason.as_deref(), level);
    // The reason of the governor in this program lists the threats.
    let threats =
        risk.into_iter().flat_map(|risk| &risk.threats).filter(|threat| !reason.contains(&***threat));
    html! {
        div.why {
            p { "Risk " (risk_part(level)) }
            p { (whole(reason)) @for threat in threats { " · " (whole(threat)) } }
        }
    }
}

/// What identifies the call and all that is shown, for those who compare it with the journal.
fn hashes(DecisionPreview { call, tool, .. }: &DecisionPreview, basis: DecisionBasis) -> Markup {
    html! {
        details {
            summary { "Intent and hashes" }
            dl.facts {
                dt { "Intent" } dd { code { (call.intent.to_string()) } ", over " (call.door.to_string()) }
                @if let Some(tool) = tool { dt { "Module" } dd { code.hash { (tool.digest.to_string()) } } }
                dt { "Basis" } dd { code.hash { (basis.to_string()) } " (the hash of the call, the tool, the verdict and the limits; the record of your approval has it)" }
            }
        }
    }
}

/// The arguments whose path is below a folder of `granted`, but below none of `proposed`, with these paths.
fn uncovered_arguments<'a>(
    arguments: &'a serde_json::Map<String, serde_json::Value>,
    granted: &GrantSummary,
    proposed: &GrantSummary,
) -> Vec<(&'a str, &'a str)> {
    // The prefix of a pattern before its first wildcard is enough to compare folders, without resolving paths.
    fn is_below(path: &str, areas: &[Bound<String>]) -> bool {
        let folder = |pattern: &str| pattern.split(['*', '?', '[', '{']).next().map(str::to_owned);
        areas.iter().filter_map(|area| folder(&area.value)).any(|folder| path.starts_with(&folder))
    }
    let texts = arguments.iter().filter_map(|(name, value)| Some((&**name, value.as_str()?)));
    let is_uncovered = |path: &str| is_below(path, &granted.areas) && !is_below(path, &proposed.areas);
    texts.filter(|(_, path)| is_uncovered(path)).collect()
}

/// The limits that a page shows.
#[derive(Clone, Copy)]
struct Limits<'a> {
    /// The most that may be approved.
    granted: &'a GrantSummary,
    /// What the run gets.
    shown: &'a GrantSummary,
}

impl Limits<'_> {
    /// `true` if the person has narrowed a limit.
    fn is_changed(self) -> bool {
        let Self { granted, shown } = self;
        lowerable(granted).any(|row| shown.limits[row.limit].value != granted.limits[row.limit].value)
            || shown.network.value != granted.network.value
            || granted.areas.iter().any(|area| !has_area(shown, &area.value))
    }
}

fn has_area(grant: &GrantSummary, pattern: &str) -> bool {
    grant.areas.iter().any(|area| area.value == pattern)
}

/// The limits that a person may lower, except those that are not counted.
fn lowerable(granted: &GrantSummary) -> impl Iterator<Item = &'static LimitRow> {
    rows_set_by(Layer::Verdict).filter(move |row| granted.amount(row.limit).is_some())
}

/// The mark of a limit that the person has narrowed.
fn changed(text: &str) -> Markup {
    html! { " " mark.changed { (text) } }
}

/// The field of a limit that a person may lower.
fn limit_field(row: &LimitRow, limits: Limits<'_>, may_approve: bool) -> Markup {
    let Limits { granted, shown } = limits;
    let name = row.name();
    let unit = match row.unit {
        Unit::Count => "",
        Unit::Bytes => " bytes",
        Unit::Megabytes => " MB",
        Unit::Percent => " % of a core",
        Unit::Seconds => " s",
    };
    let max = row.to_number(granted.limits[row.limit].value);
    let value = row.to_number(shown.limits[row.limit].value);
    html! {
        div.limit {
            label for=(name) { (row.label()) }
            span { input id=(name) name=(name) type="number" min=(row.min) max=(max) value=(value) readonly[!may_approve]; (unit) }
            span.hint {
                @if value != max { "at most " (max) (unit) ", " }
                "set by " (set_by(granted.limits[row.limit].layer))
                @if value != max { (changed(&format!("you lowered it from {max}{unit}"))) }
            }
        }
    }
}

fn decision_form(
    viewer: Viewer<'_>,
    intent: IntentId,
    basis: DecisionBasis,
    limits: Limits<'_>,
    rights: DecisionRights,
    said: Said<'_>,
    now: OffsetDateTime,
) -> Markup {
    let shown = limits.shown;
    let may_approve = rights == DecisionRights::Approve;
    let limits_part = html! {
        input type="hidden" name="basis" value=(basis.to_string());
        (shown_at_field(now))
        h2 { "What the run may touch" }
        (files_part(limits, may_approve))
        (network_part(limits, may_approve))
        // A person cannot narrow the calls, so they are shown as in the proposed grant, which the basis covers.
        @if let Some(calls) = &shown.calls { (calls_part(calls)) }
        h2 { "Limits of the run" }
        @for row in lowerable(limits.granted) { (limit_field(row, limits, may_approve)) }
    };
    let why_not = match rights {
        DecisionRights::Approve => None,
        DecisionRights::DenyOnly(ApprovalBar::OwnAgent) => {
            Some("Another person has to approve this call: you may act for its agent. You can still deny it.")
        }
        DecisionRights::DenyOnly(ApprovalBar::AlreadyApproved) => Some(
            "Another person has to approve this call: you have already approved it. You can still deny it.",
        ),
        DecisionRights::DenyOnly(ApprovalBar::Governor) => {
            Some("People listed in `server.callers` have to approve this call. You can still deny it.")
        }
        DecisionRights::ReadOnly => Some(
            "You can see this, but not decide on it. Deciding takes the role approver or governor, and a token whose scope does not name tools.",
        ),
    };
    html! {
        @if let Some(why_not) = why_not {
            (limits_part)
            p role="status" { (why_not) }
            @if rights != DecisionRights::ReadOnly { (deny_form(viewer, intent, said.reason)) }
        } @else {
            // A browser that reloads the page keeps the fields that a person has typed into. The hash and the time of the
            // page before would come with them.
            form.decision method="post" action={ "/console/decide/" (intent.to_string()) } autocomplete="off" {
                (viewer.token_field())
                (limits_part)
                // Enter in any field presses the first button of its form, so this one comes before the others.
                p.actions {
                    button type="submit" name="action" value="preview" { "Preview my changes" }
                    span.hint { "Changed limits are shown again before you can approve them." }
                }
                p.notice.early role="alert" hidden { "Nothing is decided yet: you saw this page for less than a second. Look at it, and approve what is shown if you agree." }
                p.actions { button.primary type="submit" name="action" value="approve" { "Approve what is shown" } }
                (deny_part(said.reason))
            }
        }
    }
}

/// The granted patterns of files, of which a person may remove some.
fn files_part(Limits { granted, shown }: Limits<'_>, may_approve: bool) -> Markup {
    html! {
        fieldset {
            legend { "Files, " (shown.access.value.as_str()) " (set by " (set_by(shown.access.layer)) ")" }
            @if granted.areas.is_empty() { p { "None: the run gets no files." } }
            @for area in &granted.areas {
                @let is_kept = has_area(shown, &area.value);
                p { label {
                    input type="checkbox" name="scope" value=(area.value) checked[is_kept] disabled[!may_approve];
                    " " code { (whole(&area.value)) } " set by " (set_by(area.layer))
                    @if !is_kept { (changed("you removed it")) }
                } }
            }
            @for blocked in &shown.blocked_paths {
                p { "except " code { (whole(&blocked.value)) } ", set by " (set_by(blocked.layer)) }
            }
            @if let Some(effects) = shown.effects.value.unless_direct() {
                p { "Changes are " (effects.as_str()) " (set by " (set_by(shown.effects.layer)) "): " (effects.summary()) "." }
            }
        }
    }
}

/// The network, which a person may switch off, with its hosts.
fn network_part(Limits { granted, shown }: Limits<'_>, may_approve: bool) -> Markup {
    html! {
        fieldset {
            legend { "Network" }
            p {
                input #network name="network" type="checkbox" value="yes" checked[shown.network.value] disabled[!granted.network.value || !may_approve];
                " " label for="network" { @if shown.network.value { "allowed" } @else { "off" } }
                ", set by " (set_by(granted.network.layer))
                @if shown.network.value != granted.network.value { (changed("you switched it off")) }
            }
            @if shown.network.value { (hosts(shown)) (secrets(shown)) }
        }
    }
}

fn hosts(shown: &GrantSummary) -> Markup {
    let rule = |pattern: &str, layer| html! { code { (whole(pattern)) } " (set by " (set_by(layer)) ") " };
    html! {
        p { "Hosts that the run may reach: "
            @if shown.allowed_hosts.is_empty() { "none" }
            @for host in &shown.allowed_hosts { (rule(&host.pattern, host.set_by)) }
            @for host in &shown.blocked_hosts { "except " (rule(&host.pattern, host.set_by)) }
            @if !shown.allowed_requests.is_empty() { "with no other requests than " }
            @for request in &shown.allowed_requests { (rule(&request.value, request.layer)) }
            @if let Some(rate) = &shown.requests_per_minute { "at most " (counted(rate.value, "request")) " a minute (set by " (set_by(rate.layer)) ")" }
        }
    }
}

/// The secrets that the executor sets in requests of the run, which does not see them.
fn secrets(shown: &GrantSummary) -> Markup {
    html! {
        @for SecretSummary { name, place, requests, max_uses, withheld_by } in &shown.secrets {
            p {
                "The secret " strong { (name) }
                @if let Some(layer) = withheld_by { " is withheld (set by " (set_by(*layer)) ")" }
                @else { " goes into " code { (whole(place)) } " of at most " (counted(*max_uses, "request")) }
                ": "
                @for request in requests { code { (whole(request)) } " " }
            }
        }
    }
}

/// The calls to other tools, with the tools that each layer allows.
fn calls_part(CallSummary { targets, max_calls, max_parallel, max_depth }: &CallSummary) -> Markup {
    html! {
        fieldset {
            legend { "Calls to other tools" }
            p {
                "The run may make " (counted(max_calls.value, "call")) " (set by " (set_by(max_calls.layer)) "), at most "
                (max_parallel.value) " at the same time (set by " (set_by(max_parallel.layer)) "), nested at most "
                (max_depth) " deep (set by " (set_by(Layer::Executor)) "). The governor decides on each of them."
            }
            @if targets.len() > 1 { p { "It may call the tools that all of these allow:" } }
            @for Bound { value, layer } in targets {
                p {
                    @match value {
                        CallTargets::All => { "every tool" }
                        CallTargets::Named(names) if names.is_empty() => { "no tool" }
                        CallTargets::Named(names) => {
                            @for (index, name) in names.iter().enumerate() { @if index > 0 { ", " } code { (name) } }
                        }
                    }
                    ", set by " (set_by(*layer))
                }
            }
        }
    }
}

/// The form of those who may only deny.
fn deny_form(viewer: Viewer<'_>, intent: IntentId, reason: &str) -> Markup {
    html! {
        form.decision method="post" action={ "/console/decide/" (intent.to_string()) } autocomplete="off" {
            (viewer.token_field())
            // As in the form above: Enter in the field of the reason does not deny.
            button type="submit" name="action" value="preview" hidden { "Preview" }
            (deny_part(reason))
        }
    }
}

fn deny_part(reason: &str) -> Markup {
    html! {
        p.actions {
            span { label for="reason" { "Reason, which the agent is told" } input #reason name="reason" value=(reason) maxlength=(OperatorReason::MAX_CHARS); }
            button.danger type="submit" name="action" value="deny" { "Deny permanently" }
        }
    }
}

/// The decision in a posted form.
enum PostedDecision {
    Approve,
    Preview,
    Deny,
}

impl PostedDecision {
    fn read(form: &FormFields) -> Option<Self> {
        match form.get("action") {
            Some("approve") => Some(Self::Approve),
            Some("preview") => Some(Self::Preview),
            Some("deny") => Some(Self::Deny),
            Some(_) | None => None,
        }
    }
}

/// `POST /console/decide/{intent}`.
pub(super) async fn decide(
    State(console): State<Arc<ConsoleState>>,
    Path(intent): Path<String>,
    PostedForm { signed_in, form }: PostedForm,
) -> Response {
    let Ok(intent) = IntentId::parse(&intent) else { return not_found("intent") };
    match decide_here(&console, &signed_in, intent, &form, Shown::WithTool).await {
        Some(page) => page,
        None => elsewhere::decide(&console, &signed_in, intent, form).await,
    }
}

/// Takes the decision in a form; `None` for an intent that neither waits nor has waited here, or is not to be shown here.
pub(super) async fn decide_here(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
    form: &FormFields,
    shown: Shown,
) -> Option<Response> {
    let _known = console.executor.queries.refresh_wait(intent).await;
    let Some(right) = signed_in.caller.decision_right() else {
        return Some(forbidden("approver or governor"));
    };
    let Some(proposal) = propose(console, signed_in, intent) else {
        return no_longer_waiting(console, signed_in, intent).await;
    };
    if !shown.includes(console, &proposal.original) {
        return None;
    }
    if let Err(error) = check_fields(&proposal.original, form) {
        return Some(undecided_page(console, signed_in, &proposal, &error, typed_reason(form)).await);
    }
    let result = match PostedDecision::read(form) {
        Some(PostedDecision::Deny) => match denial(intent, form) {
            Ok(directive) => console.executor.operator.apply_directive(&directive, right).await,
            Err(error) => {
                return Some(undecided_page(console, signed_in, &proposal, &error, typed_reason(form)).await);
            }
        },
        // The form of those who may only deny has no limits.
        Some(PostedDecision::Preview) if form.get("basis").is_none() => {
            let said = Said { notice: Some("Nothing is decided yet."), reason: typed_reason(form) };
            return Some(decision_page(console, signed_in, &proposal, said).await);
        }
        Some(action @ (PostedDecision::Approve | PostedDecision::Preview)) => {
            let manifest = match parse_narrowing(&proposal.original, form) {
                Ok(manifest) => manifest,
                Err(error) => {
                    return Some(
                        undecided_page(console, signed_in, &proposal, &error, typed_reason(form)).await,
                    );
                }
            };
            let Some(proposed) = console.executor.previews.preview_decision(intent, Some(&manifest)) else {
                return no_longer_waiting(console, signed_in, intent).await;
            };
            let basis = proposed.basis;
            let is_as_shown = form.get("basis").map(DecisionBasis::parse) == Some(Ok(basis));
            let is_too_early = !has_been_shown(form, console.executor.clock().now());
            let is_approved = matches!(action, PostedDecision::Approve);
            if !(is_approved && is_as_shown) || is_too_early {
                let proposal = Proposal { proposed, ..proposal };
                let notice = if is_approved && is_as_shown {
                    "Nothing is decided yet: the approval came within a second of the page. Look again, and approve what is \
                     shown if you agree."
                } else if proposal.is_changed() {
                    "Nothing is decided yet. What you changed is marked: look again, and approve the new limits if you agree."
                } else {
                    "Nothing is decided yet. These are the limits of the run now: look again, and approve them if you agree."
                };
                let said = Said { notice: Some(notice), reason: typed_reason(form) };
                return Some(decision_page(console, signed_in, &proposal, said).await);
            }
            let directive =
                Directive { intent, approved: true, manifest: Some(manifest), reason: None, digest: None };
            console.executor.operator.apply_shown_directive(&directive, right, basis).await
        }
        None => {
            let error = "the form names no action: open the page again";
            return Some(undecided_page(console, signed_in, &proposal, error, typed_reason(form)).await);
        }
    };
    Some(after_decision(console, signed_in, intent, result).await)
}

/// The answer to a decision that the executor has taken or refused.
async fn after_decision(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
    result: Result<DirectiveOutcome, Fault>,
) -> Response {
    match (result, propose(console, signed_in, intent)) {
        (Ok(_), None) | (Ok(DirectiveOutcome::Applied), Some(_)) => {
            Redirect::to(&format!("/console/runs/{intent}")).into_response()
        }
        (Ok(DirectiveOutcome::NeedsMoreApprovals), Some(proposal)) => {
            let notice = "Your approval counts. More people have to approve before the call runs.";
            decision_page(console, signed_in, &proposal, Said { notice: Some(notice), reason: "" }).await
        }
        (Err(fault), Some(proposal)) => {
            undecided_page(console, signed_in, &proposal, &fault_text(&fault), "").await
        }
        // It does not say that nothing was decided: a denial may be in force that is not on the disk yet.
        (Err(fault), None) => fault_page(&fault),
    }
}

/// The decision page again, with the reason why nothing was decided.
async fn undecided_page(
    console: &ConsoleState,
    signed_in: &SignedIn,
    proposal: &Proposal,
    error: &str,
    reason: &str,
) -> Response {
    let notice = format!("Nothing was decided: {error}.");
    decision_page(console, signed_in, proposal, Said { notice: Some(&notice), reason }).await
}

/// Refuses a form with other fields than those of the page: a misspelt limit that is ignored would be approved wider than
/// the person means.
///
/// # Errors
/// A sentence for the person, without its full stop.
fn check_fields(original: &DecisionPreview, form: &FormFields) -> Result<(), String> {
    let granted = original.grant.as_ref().ok();
    // A page from before the call would be refused has the limits, and its denial counts.
    let is_shown = |row: &LimitRow| granted.is_none_or(|grant| grant.amount(row.limit).is_some());
    let is_limit = |name: &str| rows_set_by(Layer::Verdict).any(|row| row.name() == name && is_shown(row));
    form.check_names(|name| FIELDS.contains(&name) || is_limit(name), |name| name == "scope")
}

/// The reason for a denial in a form, as the person has typed it.
fn typed_reason(form: &FormFields) -> &str {
    form.get("reason").unwrap_or_default()
}

/// `true` if the page with this form was made at least [`MIN_SHOWN`] ago.
// Another page may open this one under a double-click. Only the person's browser sends the form, because nobody else has
// the token of its session: so the time needs no signature.
pub(super) fn has_been_shown(form: &FormFields, now: OffsetDateTime) -> bool {
    let shown_at = form.get(SHOWN_AT).and_then(|text| text.parse::<i128>().ok());
    let min = i128::try_from(MIN_SHOWN.as_millis()).unwrap_or(i128::MAX);
    shown_at.is_some_and(|shown_at| milliseconds_since_1970(now).saturating_sub(shown_at) >= min)
}

/// The field that says when the page was made.
pub(super) fn shown_at_field(now: OffsetDateTime) -> Markup {
    html! { input type="hidden" name=(SHOWN_AT) value=(milliseconds_since_1970(now)); }
}

fn milliseconds_since_1970(time: OffsetDateTime) -> i128 {
    time.unix_timestamp_nanos() / 1_000_000
}

/// The denial in a form.
///
/// # Errors
/// A sentence for the person, without its full stop.
fn denial(intent: IntentId, form: &FormFields) -> Result<Directive, String> {
    let typed = Some(typed_reason(form).trim()).filter(|reason| !reason.is_empty());
    let reason = typed.map(OperatorReason::parse).transpose().map_err(|error| error.to_string())?;
    Ok(Directive { intent, approved: false, manifest: None, reason, digest: None })
}

/// The manifest of a form, which is never wider than the grant.
///
/// # Errors
/// A sentence for the person, without its full stop.
fn parse_narrowing(original: &DecisionPreview, form: &FormFields) -> Result<Manifest, String> {
    let Ok(granted) = &original.grant else {
        return Err("the call would be refused".to_owned());
    };
    let parse_amount = |row: &LimitRow| -> Result<u64, String> {
        let name = row.name();
        let exact = granted.limits[row.limit].value;
        match form.get(name) {
            // An unchanged field stands for the exact limit, which may be finer than the unit of the form.
            Some(text) if text == row.to_number(exact).to_string() => Ok(exact),
            Some(text) => {
                let number = text.parse::<u64>().map_err(|_| format!("`{name}` is not a whole number"))?;
                row.parse_amount(Layer::Verdict, number).map_err(|error| format!("`{name}` {error}"))
            }
            None => Err(format!("`{name}` is missing: open the page again")),
        }
    };
    let mut limits = ClaimedLimits::default();
    for row in lowerable(granted) {
        limits[row.limit] = Some(parse_amount(row)?);
    }
    let verdict = &original.verdict.manifest;
    let kept = form.all("scope").map(str::to_owned).collect::<Vec<_>>();
    let keeps_all =
        kept.len() == granted.areas.len() && granted.areas.iter().all(|area| kept.contains(&area.value));
    let manifest = Manifest {
        limits,
        network_allowed: Some(form.get("network").is_some()),
        filesystem_scope: if keeps_all { granted.to_scope(verdict) } else { kept },
    };
    if granted.includes(&manifest, verdict) {
        return Ok(manifest);
    }
    Err("a limit of yours is wider than the current grant, which is shown below".to_owned())
}
