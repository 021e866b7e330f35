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
use super::elsewhere::{self, IntentPage};
use super::form::FormFields;
use super::inbox::{NO_REASON, risk_part};
use super::page::{
    Viewer, at, block, countdown, fault_page, fault_text, forbidden, intent_link, limits_table, line,
    not_found, set_by, whole,
};
use super::runs::may_read;
use super::session::{PostedForm, SignedIn};
use a2g_core::run::{ApprovalBar, DecisionBasis, DecisionPreview, DirectiveOutcome, has_moved};
use a2g_types::fault::Fault;
use a2g_types::grant::{CallSummary, GrantSummary};
use a2g_types::ident::IntentId;
use a2g_types::limit::{Bound, Layer};
use a2g_types::quantity::{CpuPercent, MemoryLimit, Timeout};
use a2g_types::stop::OperatorReason;
use a2g_types::tool::CallTargets;
use a2g_types::verdict::{Directive, Manifest};
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

/// Minimum time between opening the page and an approval. Until then the button takes no clicks (`console.css`).
const MIN_SHOWN: Duration = Duration::from_secs(1);
/// Maximum length of an argument's JSON that is indented, in bytes.
const MAX_INDENTED_BYTES: usize = 4 << 10;

/// `GET /console/decide/{intent}`.
pub(super) async fn show(
    State(console): State<Arc<ConsoleState>>,
    signed_in: SignedIn,
    Path(intent): Path<String>,
) -> Response {
    let Ok(intent) = IntentId::parse(&intent) else { return not_found("intent") };
    match find_page_here(&console, &signed_in, intent).await {
        Some(page) => page,
        None => elsewhere::show(&console, &signed_in, IntentPage::Decision, intent).await,
    }
}

/// The page of an intent that waits or has waited at this node; `None` for any other intent.
pub(super) async fn find_page_here(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
) -> Option<Response> {
    match propose(console, signed_in, intent) {
        Some(proposal) => Some(decision_page(console, signed_in.viewer(), &proposal, None)),
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

/// The proposal to approve everything that the verdict grants.
fn propose(console: &ConsoleState, signed_in: &SignedIn, intent: IntentId) -> Option<Proposal> {
    let original = console.executor.preview_decision(intent, None)?;
    if !signed_in.caller.may_read(&original.call.agent) {
        return None;
    }
    let manifest = original.grant.as_ref().ok().map(|grant| grant.to_manifest(&original.verdict.manifest));
    let proposed = console.executor.preview_decision(intent, manifest.as_ref())?;
    Some(Proposal { original, proposed })
}

/// The answer for an intent that is not waiting; `None` if this node has no records of it that the caller may see.
async fn no_longer_waiting(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
) -> Option<Response> {
    match console.executor.run_record(intent).await {
        Ok(Some(record)) if has_moved(&record) => None,
        Ok(Some(record)) if may_read(&signed_in.caller, &record.agent) => {
            let body = html! {
                h1 { "This intent no longer waits" }
                p role="status" { "Somebody has decided on it, it has expired, or it was stopped." }
                p { a href={ "/console/runs/" (intent.to_string()) } { "See what happened to it" } }
            };
            Some(signed_in.viewer().page("Decided", &body))
        }
        Ok(_) => None,
        Err(fault) => Some(fault_page(&fault)),
    }
}

fn decision_page(
    console: &ConsoleState,
    viewer: Viewer<'_>,
    Proposal { original, proposed }: &Proposal,
    notice: Option<&str>,
) -> Response {
    let DecisionPreview { call, verdict, expires_at, tool, approved_by, required_approvals, .. } = original;
    let right = viewer.caller.decision_right();
    let rights = match &right {
        None => DecisionRights::ReadOnly,
        Some(right) => match console.executor.approval_bar(call.intent, right) {
            None => DecisionRights::Approve,
            Some(bar) => DecisionRights::DenyOnly(bar),
        },
    };
    let now = console.executor.clock().now();
    let body = html! {
        h1 { "Decide: " (call.tool) }
        @if let Some(notice) = notice { p.notice role="alert" { (notice) } }
        dl.facts {
            @if let Some(node) = console.executor.node_name() { dt { "Node" } dd { (node) } }
            dt { "Agent" } dd { (line(call.agent.as_str())) }
            dt { "Tool" } dd {
                a href={ "/console/tools/" (call.tool.as_str()) } { (call.tool) }
                @if let Some(tool) = tool { " " (line(&tool.version)) ": " (line(&tool.description)) }
            }
            dt { "Intent" } dd { code { (call.intent.to_string()) } ", over " (call.door.to_string()) }
            @if let Some(parent) = &call.parent {
                dt { "Called by" } dd { "call " (parent.ordinal) " of " (parent.tool) " " (intent_link(parent.intent)) }
            }
            dt { "Why it waits" } dd { (whole(verdict.reason.as_deref().unwrap_or(NO_REASON))) }
            dt { "Risk" } dd { (risk_part(verdict.risk.as_ref().map(|risk| (risk.level.as_str(), risk.score)))) @if let Some(risk) = &verdict.risk { @for threat in &risk.threats { " · " (whole(threat)) } } }
            dt { "Expires" } dd { (at(*expires_at)) " (" (countdown(*expires_at, now)) ")" }
            @if let Some(tool) = tool { dt { "Module" } dd { code.hash { (tool.digest.to_string()) } } }
            dt { "Basis" } dd { code.hash { (proposed.basis.to_string()) } " (the hash of the call, the tool, the verdict and the limits; the record of your approval has it)" }
            @if *required_approvals > 1 {
                dt { "Approvals" }
                dd { (approved_by.len()) " of " (required_approvals) @for name in approved_by { " · " (line(name)) } }
            }
        }
        h2 { "Arguments" }
        p { "The tool gets exactly these. Control and invisible characters are shown as escapes such as " code { "\\u{202e}" } "." }
        (arguments(&call.arguments))
        h2 { "Limits of the run" }
        @match (&original.grant, &proposed.grant) {
            (Ok(granted), Ok(proposal)) => {
                @for (name, path) in uncovered_arguments(&call.arguments, granted, proposal) {
                    p.notice role="status" {
                        "The argument " code { (line(name)) } " names " code { (line(path)) } ", which only a pattern that you removed covered: the run will probably fail."
                    }
                }
                (decision_form(viewer, call.intent, granted, proposal, proposed.basis, rights, now)) }
            (Err(fault), _) | (_, Err(fault)) => {
                p.error { "An approval would be refused: " (fault_text(fault)) }
            }
        }
        @if rights != DecisionRights::ReadOnly { (deny_form(viewer, call.intent)) }
    };
    viewer.page("Inbox", &body)
}

/// The JSON of an argument, indented unless it is so long that the indentation could be many times its size.
fn argument_text(value: &serde_json::Value) -> String {
    let compact = value.to_string();
    if compact.len() > MAX_INDENTED_BYTES {
        return compact;
    }
    serde_json::to_string_pretty(value).unwrap_or(compact)
}

/// The arguments as JSON, one below the other.
pub(super) fn arguments(arguments: &serde_json::Map<String, serde_json::Value>) -> Markup {
    html! {
        @if arguments.is_empty() { p { "None." } }
        dl.arguments {
            @for (name, value) in arguments {
                // As JSON, which doubles a backslash of the agent: its own `\u{…}` differs from an escape of this page.
                dt { (whole(&serde_json::Value::from(&**name).to_string())) }
                dd {
                    (block(&argument_text(value)))
                    @if let Some(text) = value.as_str().filter(|text| text.contains('\n')) {
                        @let lines = text.lines().count();
                        details {
                            summary { "as text, " (lines) " line" @if lines != 1 { "s" } }
                            (block(text))
                        }
                    }
                }
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

/// The layer that set a proposed limit; `you` if the deciding person narrowed it.
fn set_by_or_you<T: PartialEq>(granted: &Bound<T>, proposed: &T) -> &'static str {
    if granted.value == *proposed { set_by(granted.layer) } else { "you" }
}

/// A limit that a person may lower.
struct LimitRow {
    /// The name of the field.
    name: &'static str,
    label: &'static str,
    unit: &'static str,
    /// The limit without the person's change.
    max: u64,
    value: u64,
    set_by: &'static str,
}

fn limit_row(LimitRow { name, label, unit, max, value, set_by }: &LimitRow, may_approve: bool) -> Markup {
    html! {
        tr {
            th scope="row" { label for=(name) { (label) } }
            td { input id=(name) name=(name) type="number" min="1" max=(max) value=(value) readonly[!may_approve]; " " (unit) }
            td { (max) " " (unit) }
            td { (set_by) }
        }
    }
}

fn decision_form(
    viewer: Viewer<'_>,
    intent: IntentId,
    granted: &GrantSummary,
    proposed: &GrantSummary,
    basis: DecisionBasis,
    rights: DecisionRights,
    now: OffsetDateTime,
) -> Markup {
    let rows = [
        LimitRow {
            name: "memory",
            label: "Memory",
            unit: "MB",
            max: granted.memory.value.mb(),
            value: proposed.memory.value.mb(),
            set_by: set_by_or_you(&granted.memory, &proposed.memory.value),
        },
        LimitRow {
            name: "cpu",
            label: "CPU",
            unit: "% of a core",
            max: granted.cpu.value.get().into(),
            value: proposed.cpu.value.get().into(),
            set_by: set_by_or_you(&granted.cpu, &proposed.cpu.value),
        },
        LimitRow {
            name: "timeout",
            label: "Time",
            unit: "s",
            max: granted.timeout.value.seconds(),
            value: proposed.timeout.value.seconds(),
            set_by: set_by_or_you(&granted.timeout, &proposed.timeout.value),
        },
    ];
    let may_approve = rights == DecisionRights::Approve;
    html! {
        form method="post" action={ "/console/decide/" (intent.to_string()) } {
            (viewer.token_field())
            input type="hidden" name="basis" value=(basis.to_string());
            input type="hidden" name="shown_at" value=(milliseconds_since_1970(now));
            (limits_table("Limits", &html! {
                thead { tr { th { "Limit" } th { "The run gets" } th { "At most" } th { "Set by" } } }
                tbody {
                    @for row in &rows { (limit_row(row, may_approve)) }
                    tr {
                        th scope="row" { label for="network" { "Network" } }
                        td { input #network name="network" type="checkbox" value="yes" checked[proposed.network.value] disabled[!granted.network.value || !may_approve]; }
                        td { @if granted.network.value { "allowed" } @else { "off" } }
                        td { (set_by_or_you(&granted.network, &proposed.network.value)) }
                    }
                }
            }))
            // What cannot be narrowed here is shown as the proposed grant has it, because the basis covers that grant.
            @if proposed.network.value { (hosts(proposed)) }
            (files_part(granted, proposed, may_approve))
            @if let Some(calls) = &proposed.calls { (calls_part(calls)) }
            @if may_approve {
                p.actions {
                    button.primary type="submit" name="action" value="approve" { "Approve what is shown" }
                    button type="submit" name="action" value="preview" { "Preview my changes" }
                }
                p.hint { "If you change a limit, you see the new limits before you can approve them." }
            } @else {
                p role="status" {
                    @match rights {
                        DecisionRights::DenyOnly(ApprovalBar::OwnAgent) => "Another person has to approve this call: you may act for its agent. You can still deny it.",
                        DecisionRights::DenyOnly(ApprovalBar::AlreadyApproved) => "Another person has to approve this call: you have already approved it. You can still deny it.",
                        DecisionRights::DenyOnly(ApprovalBar::Governor) => "People listed in `server.callers` have to approve this call. You can still deny it.",
                        DecisionRights::Approve | DecisionRights::ReadOnly => "You can see this, but not decide on it. Deciding takes the role approver or governor, and a token whose scope does not name tools.",
                    }
                }
            }
        }
    }
}

/// The granted patterns of files, of which a person may remove some.
fn files_part(granted: &GrantSummary, proposed: &GrantSummary, may_approve: bool) -> Markup {
    html! {
        fieldset {
            legend { "Files, " (proposed.access.value.as_str()) " (set by " (set_by(proposed.access.layer)) ")" }
            @if granted.areas.is_empty() { p { "None: the run gets no files." } }
            @for area in &granted.areas {
                @let kept = proposed.areas.iter().any(|kept| kept.value == area.value);
                p { label {
                    input type="checkbox" name="scope" value=(area.value) checked[kept] disabled[!may_approve];
                    " " code { (whole(&area.value)) } " set by " (set_by(area.layer))
                } }
            }
            @for blocked in &proposed.blocked_paths {
                p { "except " code { (whole(&blocked.value)) } ", set by " (set_by(blocked.layer)) }
            }
        }
    }
}

fn hosts(proposed: &GrantSummary) -> Markup {
    html! {
        p { "Hosts that the run may reach: "
            @if proposed.allowed_hosts.is_empty() { "none" }
            @for rule in &proposed.allowed_hosts { code { (whole(&rule.pattern)) } " (set by " (set_by(rule.set_by)) ") " }
            @for rule in &proposed.blocked_hosts { "except " code { (whole(&rule.pattern)) } " (set by " (set_by(rule.set_by)) ") " }
            @if let Some(rate) = &proposed.requests_per_minute { "at most " (rate.value) " requests a minute (set by " (set_by(rate.layer)) ")" }
        }
    }
}

/// The calls to other tools, with the tools that each layer allows.
fn calls_part(CallSummary { targets, max_calls, max_parallel, max_depth }: &CallSummary) -> Markup {
    html! {
        fieldset {
            legend { "Calls to other tools" }
            p {
                "The run may make " (max_calls.value) " calls (set by " (set_by(max_calls.layer)) "), at most "
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

fn deny_form(viewer: Viewer<'_>, intent: IntentId) -> Markup {
    html! {
        form.deny method="post" action={ "/console/decide/" (intent.to_string()) } {
            (viewer.token_field())
            h2 { "Or deny it" }
            p { label for="reason" { "Reason, which the agent is told" } }
            p { input #reason name="reason" maxlength=(OperatorReason::MAX_CHARS); }
            p { button.danger type="submit" name="action" value="deny" { "Deny permanently" } }
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
    match decide_here(&console, &signed_in, intent, &form).await {
        Some(page) => page,
        None => elsewhere::decide(&console, &signed_in, intent, form).await,
    }
}

/// Takes the decision in a form; `None` for an intent that neither waits nor has waited at this node.
pub(super) async fn decide_here(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
    form: &FormFields,
) -> Option<Response> {
    let Some(right) = signed_in.caller.decision_right() else {
        return Some(forbidden("approver or governor"));
    };
    let Some(proposal) = propose(console, signed_in, intent) else {
        return no_longer_waiting(console, signed_in, intent).await;
    };
    let result = match PostedDecision::read(form) {
        Some(PostedDecision::Deny) => match denial(intent, form) {
            Ok(directive) => console.executor.apply_directive(&directive, right).await,
            Err(error) => return Some(undecided_page(console, signed_in, &proposal, &error)),
        },
        Some(action @ (PostedDecision::Approve | PostedDecision::Preview)) => {
            let manifest = match parse_narrowing(&proposal.original, form) {
                Ok(manifest) => manifest,
                Err(error) => return Some(undecided_page(console, signed_in, &proposal, &error)),
            };
            let Some(proposed) = console.executor.preview_decision(intent, Some(&manifest)) else {
                return no_longer_waiting(console, signed_in, intent).await;
            };
            let basis = proposed.basis;
            let is_as_shown = form.get("basis").map(DecisionBasis::parse) == Some(Ok(basis));
            let is_too_early = !has_been_shown(form, console.executor.clock().now());
            if !(matches!(action, PostedDecision::Approve) && is_as_shown) || is_too_early {
                let notice = if is_as_shown && is_too_early && matches!(action, PostedDecision::Approve) {
                    "Nothing is decided yet: the approval came within a second of the page. Look again, and approve what is \
                     shown if you agree."
                } else {
                    "Nothing is decided yet. These are the limits of the run now: look again, and approve them if you agree."
                };
                let proposal = Proposal { proposed, ..proposal };
                return Some(decision_page(console, signed_in.viewer(), &proposal, Some(notice)));
            }
            let directive = Directive { intent, approved: true, manifest: Some(manifest), reason: None };
            console.executor.apply_shown_directive(&directive, right, basis).await
        }
        None => {
            let error = "the form names no action: open the page again";
            return Some(undecided_page(console, signed_in, &proposal, error));
        }
    };
    Some(after_decision(console, signed_in, intent, result))
}

/// The answer to a decision that the executor has taken or refused.
fn after_decision(
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
            decision_page(console, signed_in.viewer(), &proposal, Some(notice))
        }
        (Err(fault), Some(proposal)) => undecided_page(console, signed_in, &proposal, &fault_text(&fault)),
        // It does not say that nothing was decided: a denial may be in force that is not on the disk yet.
        (Err(fault), None) => fault_page(&fault),
    }
}

/// The decision page again, with the reason why nothing was decided.
fn undecided_page(
    console: &ConsoleState,
    signed_in: &SignedIn,
    proposal: &Proposal,
    error: &str,
) -> Response {
    let notice = format!("Nothing was decided: {error}.");
    decision_page(console, signed_in.viewer(), proposal, Some(&notice))
}

/// `true` if the page with this form has been shown for at least [`MIN_SHOWN`].
// Another page may open this one under a double-click. Only the person's browser sends the form, so its time needs no
// signature.
fn has_been_shown(form: &FormFields, now: OffsetDateTime) -> bool {
    let shown_at = form.get("shown_at").and_then(|text| text.parse::<i128>().ok());
    let min = i128::try_from(MIN_SHOWN.as_millis()).unwrap_or(i128::MAX);
    shown_at.is_some_and(|shown_at| milliseconds_since_1970(now).saturating_sub(shown_at) >= min)
}

fn milliseconds_since_1970(time: OffsetDateTime) -> i128 {
    time.unix_timestamp_nanos() / 1_000_000
}

/// The denial in a form.
///
/// # Errors
/// A sentence for the person, without its full stop.
fn denial(intent: IntentId, form: &FormFields) -> Result<Directive, String> {
    let reason = form.get("reason").map(str::trim).filter(|reason| !reason.is_empty());
    let reason = reason.map(OperatorReason::parse).transpose().map_err(|error| error.to_string())?;
    Ok(Directive { intent, approved: false, manifest: None, reason })
}

/// The manifest of a form, which is never wider than the grant.
///
/// # Errors
/// A sentence for the person, without its full stop.
fn parse_narrowing(original: &DecisionPreview, form: &FormFields) -> Result<Manifest, String> {
    let Ok(granted) = &original.grant else {
        return Err("the call would be refused".to_owned());
    };
    let number = |name: &str, shown: u64| match form.get(name) {
        // An unchanged field stands for the exact limit, which may be finer than the unit of the form.
        Some(text) if text == shown.to_string() => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| format!("`{name}` is not a whole number")),
        None => Err(format!("`{name}` is missing: open the page again")),
    };
    let out_of_range = |error: a2g_types::quantity::OutOfRangeError| error.to_string();
    let memory = match number("memory", granted.memory.value.mb())? {
        None => granted.memory.value,
        Some(mb) => MemoryLimit::from_mb(mb).map_err(out_of_range)?,
    };
    let cpu = match number("cpu", granted.cpu.value.get().into())? {
        None => granted.cpu.value,
        Some(percent) => CpuPercent::new(percent).map_err(out_of_range)?,
    };
    let timeout = match number("timeout", granted.timeout.value.seconds())? {
        None => granted.timeout.value,
        Some(seconds) => Timeout::from_seconds(seconds).map_err(out_of_range)?,
    };
    let verdict = &original.verdict.manifest;
    let kept = form.all("scope").map(str::to_owned).collect::<Vec<_>>();
    let keeps_all =
        kept.len() == granted.areas.len() && granted.areas.iter().all(|area| kept.contains(&area.value));
    let manifest = Manifest {
        max_memory: Some(memory),
        max_cpu: Some(cpu),
        timeout: Some(timeout),
        network_allowed: Some(form.get("network").is_some()),
        filesystem_scope: if keeps_all { verdict.filesystem_scope.clone() } else { kept },
    };
    if granted.includes(&manifest, verdict) {
        return Ok(manifest);
    }
    Err("a limit of yours is wider than the current grant, which is shown below".to_owned())
}
