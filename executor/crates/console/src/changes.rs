//! The file changes of runs that wait for a decision, and those that can still be undone.
//!
//! ```text
//! receipt of a staged run ─▶ page: summary, removals, what has left, the rest ─ form with the digest ─▶ commit or discard
//!                                                   ▲                                                     │
//!                                                   └── the receipt of the decision, or why there is none ┘
//! ```
//! A commit names the digest that the page showed. The executor compares it with the changes that wait.

use super::change_list::{lists, may_do_harm, summary};
use super::decision::{SHOWN_AT, has_been_shown, shown_at_field};
use super::elsewhere::{self, FleetAnswers, IntentPage};
use super::form::FormFields;
use super::page::{
    Html, Viewer, at, cards, countdown, counted, exact_time, fault_page, fault_text, forbidden, intent_link,
    line, main_argument_part, not_found, short_id, status, waiting_changes_count, whole,
};
use super::session::{FORM_TOKEN, PostedForm, SignedIn};
use super::tools::find_tool;
use super::{ConsoleState, ReadingViewer};
use a2g_core::run::{ChangeSet, ChangeSetSummary};
use a2g_govern::Caller;
use a2g_journal::RunRecord;
use a2g_types::call::{StoredArguments, main_argument};
use a2g_types::failure_message::{describe, describe_failure};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::node::NodeName;
use a2g_types::outcome::{ChangeGroup, ChangeState, DecisionAct, FileChanges, Receipt};
use a2g_types::tool::{Descriptor, Digest};
use a2g_types::visible_text::escape_invisible;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;
use strum::VariantArray as _;
use time::OffsetDateTime;

/// The fields of the form.
const FIELDS: [&str; 4] = [FORM_TOKEN, "action", DIGEST, SHOWN_AT];
/// The field with the hash of the changes that the page shows.
const DIGEST: &str = "digest";
/// Maximum number of rows of each list of one node.
const MAX_LISTED: usize = 200;
/// Maximum length of the tool's description above the changes, in characters.
const MAX_DESCRIPTION_CHARS: usize = 80;

const EXPIRED: &str =
    "Expired: nobody decided in time, so the changes are discarded. The agent has to send the call again.";
const WHO_DECIDES: &str = "takes the role approver or governor, and a token whose scope does not name tools.";

/// The rights of a person over the changes of an agent's runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChangeRights {
    Decide,
    DiscardOnly,
    ReadOnly,
}

impl ChangeRights {
    fn of(caller: &Caller, agent: &AgentDid) -> Self {
        if caller.decision_right().is_some() {
            Self::Decide
        } else if caller.may_cancel(agent) {
            Self::DiscardOnly
        } else {
            Self::ReadOnly
        }
    }

    fn may_discard(self) -> bool {
        match self {
            Self::Decide | Self::DiscardOnly => true,
            Self::ReadOnly => false,
        }
    }
}

/// The changes at a node that a caller may see, in the form for another node.
#[derive(Serialize, Deserialize)]
pub(super) struct NodeChanges {
    waiting: NodeRows,
    in_force: NodeRows,
}

#[derive(Default, Serialize, Deserialize)]
struct NodeRows {
    /// At most [`MAX_LISTED`].
    rows: Vec<ChangesRow>,
    /// The number of all.
    count: usize,
}

#[derive(Serialize, Deserialize)]
struct ChangesRow {
    intent: IntentId,
    agent: AgentDid,
    tool: ToolName,
    count: u64,
    #[serde(default)]
    requests: u64,
    #[serde(with = "time::serde::timestamp")]
    until: OffsetDateTime,
}

impl NodeRows {
    fn select<'a>(sets: impl Iterator<Item = &'a ChangeSetSummary>, state: ChangeState) -> Self {
        let mut found = Self::default();
        for set in sets.filter(|set| set.state == state) {
            found.count = found.count.saturating_add(1);
            if found.rows.len() < MAX_LISTED {
                let ChangeSetSummary { intent, agent, tool, count, requests, until, .. } = set;
                found.rows.push(ChangesRow {
                    intent: *intent,
                    agent: agent.clone(),
                    tool: tool.clone(),
                    count: *count,
                    requests: *requests,
                    until: *until,
                });
            }
        }
        found
    }
}

impl NodeChanges {
    pub(super) fn read(console: &ConsoleState, caller: &Caller) -> Self {
        let mut sets = console.executor.changes.list(&|agent| caller.may_read(agent));
        sets.sort_by_key(|set| set.until);
        Self {
            waiting: NodeRows::select(sets.iter(), ChangeState::Waiting),
            in_force: NodeRows::select(sets.iter().rev(), ChangeState::InForce),
        }
    }
}

/// The changes of all nodes that have answered.
struct FleetChanges {
    here: NodeChanges,
    elsewhere: FleetAnswers<NodeChanges>,
}

/// The rows of one list of all nodes.
struct FleetRows<'a> {
    rows: Vec<FleetRow<'a>>,
    left_out: usize,
}

struct FleetRow<'a> {
    /// `None` outside of a fleet.
    node: Option<&'a NodeName>,
    row: &'a ChangesRow,
}

impl FleetChanges {
    async fn read(console: &ConsoleState, caller: &Caller) -> Self {
        let elsewhere = elsewhere::list_changes(console, caller).await;
        Self { here: NodeChanges::read(console, caller), elsewhere }
    }

    fn merge<'a>(
        &'a self,
        own_name: Option<&'a NodeName>,
        list: fn(&NodeChanges) -> &NodeRows,
    ) -> FleetRows<'a> {
        let mut merged = FleetRows { rows: Vec::new(), left_out: 0 };
        let elsewhere = self.elsewhere.answers.iter().map(|(node, changes)| (Some(node), list(changes)));
        for (node, found) in std::iter::once((own_name, list(&self.here))).chain(elsewhere) {
            merged.rows.extend(found.rows.iter().map(|row| FleetRow { node, row }));
            let left_out = found.count.saturating_sub(found.rows.len());
            merged.left_out = merged.left_out.saturating_add(left_out);
        }
        merged
    }

    fn part(&self, own_name: Option<&NodeName>, now: OffsetDateTime) -> Markup {
        let mut waiting = self.merge(own_name, |changes| &changes.waiting);
        waiting.rows.sort_by_key(|row| row.row.until);
        let mut in_force = self.merge(own_name, |changes| &changes.in_force);
        in_force.rows.sort_by_key(|row| Reverse(row.row.until));
        html! {
            h2 { "Waiting for a decision" }
            @if waiting.rows.is_empty() { p { "No file changes wait for a decision." } }
            @else { (table("Changes that wait", "Discarded", &waiting, own_name, |row| countdown(row.until, now))) }
            @if !in_force.rows.is_empty() {
                h2 { "Applied, and can be undone" }
                (table("Changes that can be undone", "Can be undone until", &in_force, own_name, |row| at(row.until)))
            }
            @if let Some(notice) = &self.elsewhere.notice { p role="status" { (notice) } }
        }
    }
}

fn table(
    label: &str,
    until_title: &'static str,
    FleetRows { rows, left_out }: &FleetRows<'_>,
    own_name: Option<&NodeName>,
    show_until: impl Fn(&ChangesRow) -> Markup,
) -> Markup {
    let titles = ["Tool", "Changes", until_title, "Agent", "Node", "Look"];
    let columns = titles.iter().filter(|column| own_name.is_some() || **column != "Node");
    let cells = rows.iter().map(|FleetRow { node, row }| {
        let ChangesRow { intent, agent, tool, count, requests, until: _ } = row;
        html! {
            td role="cell" { strong { (tool) } }
            td.number role="cell" { (counted(*count, "change")) @if *requests > 0 { ", " (counted(*requests, "request")) } }
            td role="cell" data-label=(until_title) { (show_until(row)) }
            td.wide role="cell" { (line(agent.as_str())) }
            @if let Some(node) = node { td.wide role="cell" data-label="Node" { (node) } }
            td role="cell" { a href=(path_of(*intent)) { "Look at " (short_id(*intent)) } }
        }
    });
    html! {
        (cards(label, columns, cells))
        @if *left_out > 0 { p { "and " (left_out) " more" } }
    }
}

fn path_of(intent: IntentId) -> String {
    format!("/console/changes/{intent}")
}

/// `GET /console/changes`.
pub(super) async fn list(State(console): State<Arc<ConsoleState>>, signed_in: SignedIn) -> Response {
    let changes = FleetChanges::read(&console, &signed_in.caller).await;
    let own_name = console.executor.node.name();
    // Events report only what this node has.
    let trigger =
        if own_name.is_some() { "sse:changes, sse:runs, every 15s" } else { "sse:changes, sse:runs" };
    let body = html! {
        h1 { "File changes" }
        p.hint { "A successful run under `staged` leaves its file changes here. They are not applied until somebody commits them." }
        section #changes hx-get="/console/changes" hx-trigger=(trigger) hx-select="#changes" hx-swap="outerHTML" aria-live="polite" {
            (changes.part(own_name, console.executor.clock().now()))
        }
    };
    signed_in.viewer(&console).page("Changes", &body)
}

/// `GET /console/waiting-changes`: the number of runs whose changes wait, for the navigation of an open page.
pub(super) async fn count(State(console): State<Arc<ConsoleState>>, signed_in: SignedIn) -> Response {
    Html(waiting_changes_count(signed_in.viewer(&console).waiting_changes)).into_response()
}

/// `GET /console/changes/{intent}`.
pub(super) async fn show(
    State(console): State<Arc<ConsoleState>>,
    ReadingViewer { signed_in, _place }: ReadingViewer,
    Path(intent): Path<String>,
) -> Response {
    let Ok(intent) = IntentId::parse(&intent) else { return not_found("run") };
    match find_page_here(&console, &signed_in, intent).await {
        Some(page) => page,
        None => elsewhere::show(&console, &signed_in, IntentPage::Changes, intent).await,
    }
}

/// The page of the changes of a run, if this node has them.
pub(super) async fn find_page_here(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
) -> Option<Response> {
    match find_here(console, signed_in, intent).await {
        Ok(Some(set)) => Some(set_page(console, signed_in, &set, None).await),
        Ok(None) => None,
        Err(fault) => Some(fault_page(&fault)),
    }
}

/// The changes of a run, if this node has them and the caller may see them.
async fn find_here(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
) -> Result<Option<ChangeSet>, Fault> {
    let found = console.executor.changes.find(intent).await?;
    Ok(found.filter(|set| signed_in.caller.may_read(&set.summary.agent)))
}

async fn set_page(
    console: &ConsoleState,
    signed_in: &SignedIn,
    set: &ChangeSet,
    notice: Option<&str>,
) -> Response {
    let ChangeSetSummary { intent, agent, tool, .. } = &set.summary;
    // Without an answer of the journal, the page lacks only the time and the argument of the call.
    let found = console.executor.queries.run_record(*intent).await.unwrap_or_default();
    // Another agent may have used the id before.
    let record = found.filter(|record| record.agent == agent.as_str());
    let tools = console.executor.catalogue.tools();
    let right = signed_in.caller.decision_right();
    let with_bodies = console.executor.changes.with_bodies(&set.receipt, right.as_ref()).await;
    let set_with_bodies = with_bodies.map(|receipt| ChangeSet { receipt: Arc::new(receipt), ..set.clone() });
    let page = SetPage {
        set: set_with_bodies.as_ref().unwrap_or(set),
        record: record.as_ref(),
        tool: find_tool(&tools, tool.as_str()),
        node: console.executor.node.name(),
        keep: console.keep_changes,
        notice,
    };
    let now = console.executor.clock().now();
    let viewer = signed_in.viewer(console);
    viewer.page("Changes", &set_body(viewer, page, now))
}

/// The page after a form that has decided nothing, for the reason `error`.
async fn refusal_page(
    console: &ConsoleState,
    signed_in: &SignedIn,
    set: &ChangeSet,
    error: &str,
) -> Response {
    let notice = format!("Nothing was decided: {error}.");
    set_page(console, signed_in, set, Some(&notice)).await
}

/// The content of the page of the changes of one run.
#[derive(Clone, Copy)]
pub(super) struct SetPage<'a> {
    pub(super) set: &'a ChangeSet,
    /// The records of the run; `None` if the journal has none of its agent.
    pub(super) record: Option<&'a RunRecord>,
    /// The tool as it is now; `None` if the catalogue has none of this name.
    pub(super) tool: Option<&'a Descriptor>,
    /// `None` outside of a fleet.
    pub(super) node: Option<&'a NodeName>,
    /// The time for which committed changes can be undone; zero if they cannot.
    pub(super) keep: Duration,
    pub(super) notice: Option<&'a str>,
}

/// The page of the changes of one run.
pub(super) fn set_body(viewer: Viewer<'_>, page: SetPage<'_>, now: OffsetDateTime) -> Markup {
    let ChangeSet {
        summary: ChangeSetSummary { intent, tool, mode, state, digest, until, count, .. }, ..
    } = page.set;
    let ChangeSet { receipt, decisions, .. } = page.set;
    let changes = receipt.outcome.usage.changes.as_ref();
    let failure = decisions.last().and_then(|last| Some((verb_of(last), describe(&last.outcome)?)));
    let loss_note = (*state == ChangeState::Waiting).then(|| describe_undo(page.keep));
    html! {
        @if *state == ChangeState::Waiting {
            // The script shows it once the time has come.
            p.error role="alert" data-expires=(exact_time(*until)) hidden[now < *until] { (EXPIRED) }
        }
        h1 { "File changes of " (tool) }
        (origin_part(page))
        @if let Some(notice) = page.notice { p.notice role="alert" { (notice) } }
        @if let Some((verb, reason)) = failure { p.error role="status" { "The last attempt to " (verb) " them failed: " (whole(&reason)) "." } }
        div.why {
            @if let Some(changes) = changes { (summary(changes)) }
            p { (state_part(*state, *count, *until, now)) }
            @if let Some(changes) = changes { (sent_part(*state, changes, decisions)) }
        }
        @if let Some(changes) = changes { (lists(receipt, changes, loss_note.as_deref())) }
        h2 { "The run" }
        dl.facts.pairs {
            dt { "Run" } dd { (intent_link(*intent)) ", with its arguments and its result" }
            dt { "Changes" } dd { (mode.as_str()) ": " (mode.summary()) }
            @if let Some(node) = page.node { dt { "Node" } dd { (node) } }
        }
        @if !decisions.is_empty() {
            h2 { "Decisions" }
            ol.timeline { @for decision in decisions { (decision_row(decision)) } }
        }
        details {
            summary { "Hash of the changes" }
            p { code.hash { (digest.to_string()) } " covers every change, listed or not, and what the run has read. A commit names it." }
        }
        (decision_bar(viewer, page.set, now))
    }
}

/// The call whose run made the changes. Its texts are shortened, so that they move no deletion far down.
fn origin_part(SetPage { set, record, tool, .. }: SetPage<'_>) -> Markup {
    let ChangeSetSummary { agent, tool: name, .. } = &set.summary;
    let called = record.and_then(|record| record.events.first());
    let argument = record.and_then(find_main_argument);
    html! {
        p.origin {
            "Tool " a href={ "/console/tools/" (name.as_str()) } { (name) }
            @if let Some(tool) = tool { ": " (escape_invisible(&tool.description, MAX_DESCRIPTION_CHARS)) }
            " · agent " (line(agent.as_str()))
            @if let Some(called) = called { " · called " (at(called.at)) }
            @if argument.is_some() { " with " (main_argument_part(argument.as_deref())) }
        }
    }
}

/// The main argument of a call whose arguments the journal has.
fn find_main_argument(record: &RunRecord) -> Option<String> {
    match record.arguments.as_ref()? {
        StoredArguments::Kept { arguments, left_out: _ } => main_argument(arguments),
        StoredArguments::TooLarge { max_bytes: _ } => None,
    }
}

/// The time for which a commit can be undone. Lack of space may end it earlier.
fn describe_undo(keep: Duration) -> String {
    match keep.as_secs() / 86_400 {
        0 => "cannot be undone after a commit".to_owned(),
        days => format!("can be undone for up to {} after a commit", counted(days, "day")),
    }
}

/// The state of the changes, and what comes next. `count` is the number of file changes.
fn state_part(state: ChangeState, count: u64, until: OffsetDateTime, now: OffsetDateTime) -> Markup {
    html! {
        @match state {
            ChangeState::Waiting => {
                strong { "Not applied yet" } ": discarded " (countdown(until, now)) " (" (at(until)) ") unless committed. All of it or none: there is no way to commit a part."
            }
            ChangeState::InForce => {
                strong { "Applied" } ": it can be undone until " (at(until)) ", as long as none of these files has changed since."
            }
            ChangeState::Sending => { strong { "Committed" } ": its requests are being sent." }
            ChangeState::Kept if count == 0 => { strong { "Committed" } ": it has changed no file, so there is nothing to undo." }
            ChangeState::Kept => { strong { "Applied" } ": it can no longer be undone." }
            ChangeState::Discarded => { strong { "Not applied" } ": it was discarded." }
            ChangeState::Undone => { strong { "No longer applied" } ": it was undone." }
        }
    }
}

/// The ends of the requests at a commit, which no undo takes back.
fn sent_part(state: ChangeState, changes: &FileChanges, decisions: &[Arc<Receipt>]) -> Markup {
    let was_committed = match state {
        ChangeState::InForce | ChangeState::Kept | ChangeState::Undone => true,
        ChangeState::Waiting | ChangeState::Sending | ChangeState::Discarded => false,
    };
    let note = decisions.iter().rev().find_map(|decision| DecisionAct::find_note(decision));
    html! {
        @if was_committed && !changes.requests.is_empty() {
            p {
                @if let Some(note) = note { "Requests: " (whole(&note)) "." }
                @else { "What a commit has sent stays sent." }
            }
        }
    }
}

/// The verb of a decision.
fn verb_of(decision: &Receipt) -> &str {
    let tool = decision.tool.as_str();
    match DecisionAct::of_tool(tool) {
        Some(act) => act.as_str(),
        None => tool,
    }
}

fn decision_row(decision: &Receipt) -> Markup {
    html! {
        li {
            strong { (verb_of(decision)) }
            @if let Some(by) = &decision.approved_by { " by " (line(by)) }
            " " (status(decision.outcome.end.status().as_str())) " " (intent_link(decision.intent))
            @if let Some(note) = describe(&decision.outcome).or_else(|| DecisionAct::find_note(decision)) { ": " (whole(&note)) }
        }
    }
}

/// The buttons, which stay in view however long the page is. The form has no field to type in, so Enter presses none.
fn decision_bar(viewer: Viewer<'_>, set: &ChangeSet, now: OffsetDateTime) -> Markup {
    let ChangeSetSummary { intent, agent, state, count, digest, until, .. } = &set.summary;
    let changes = set.receipt.outcome.usage.changes.as_ref();
    let deletions = changes.map_or(0, |changes| changes.count_all(ChangeGroup::Deleted));
    let unseen = changes.and_then(FileChanges::describe_unseen);
    let is_harmful = changes.is_none_or(may_do_harm);
    let sends = changes.and_then(FileChanges::describe_sending);
    let commit = html! {
        // A commit that may do harm has the colour of danger, and no more emphasis than the other button.
        button.primary.danger[is_harmful] type="submit" name="action" value="commit" {
            "Commit" @if *count > 0 { " all " (count) } @if deletions > 0 { ", deleting " (deletions) }
            @if let Some(sends) = &sends { ": " (sends) }
        }
    };
    let discard =
        html! { button.danger[!is_harmful] type="submit" name="action" value="discard" { "Discard all" } };
    let undo = html! { button.primary type="submit" name="action" value="undo" { "Undo all " (count) } };
    let form = |buttons: &Markup| {
        html! {
            form.bar method="post" action=(path_of(*intent)) autocomplete="off" {
                (viewer.token_field())
                input type="hidden" name=(DIGEST) value=(digest.to_string());
                (shown_at_field(now))
                p.notice.early role="alert" hidden { "Nothing is decided yet: you saw this page for less than a second. Look at it, and press the button again if you agree." }
                @if let Some(unseen) = unseen.as_ref().filter(|_| *state == ChangeState::Waiting) {
                    p.hint { (unseen) " A commit includes it." }
                }
                p.actions { (buttons) }
            }
        }
    };
    let refusal = |what: &str| html! { p role="status" { (what) " " (WHO_DECIDES) } };
    match (*state, ChangeRights::of(viewer.caller, agent)) {
        (ChangeState::Waiting, _) if now >= *until => html! {},
        (ChangeState::Waiting, ChangeRights::Decide) => form(&html! { (commit) (discard) }),
        (ChangeState::Waiting, ChangeRights::DiscardOnly) => html! {
            (refusal("You can discard these changes. Committing them"))
            (form(&discard))
        },
        (ChangeState::InForce, ChangeRights::Decide) => form(&undo),
        (ChangeState::Waiting | ChangeState::InForce, ChangeRights::DiscardOnly | ChangeRights::ReadOnly) => {
            refusal("You can see these changes, but not decide on them: that")
        }
        (
            ChangeState::Sending | ChangeState::Kept | ChangeState::Discarded | ChangeState::Undone,
            ChangeRights::Decide | ChangeRights::DiscardOnly | ChangeRights::ReadOnly,
        ) => html! {},
    }
}

/// Reads the decision in a posted form.
fn read_act(form: &FormFields) -> Option<DecisionAct> {
    let posted = form.get("action")?;
    DecisionAct::VARIANTS.iter().copied().find(|act| act.as_str() == posted)
}

/// `POST /console/changes/{intent}`.
pub(super) async fn decide(
    State(console): State<Arc<ConsoleState>>,
    Path(intent): Path<String>,
    PostedForm { signed_in, form }: PostedForm,
) -> Response {
    let Ok(intent) = IntentId::parse(&intent) else { return not_found("run") };
    match decide_here(&console, &signed_in, intent, &form).await {
        Some(page) => page,
        None => elsewhere::decide_changes(&console, &signed_in, intent, form).await,
    }
}

/// Takes the decision in a form; `None` if this node does not have the changes.
pub(super) async fn decide_here(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
    form: &FormFields,
) -> Option<Response> {
    let set = match find_here(console, signed_in, intent).await {
        Ok(set) => set?,
        Err(fault) => return Some(fault_page(&fault)),
    };
    let caller = &*signed_in.caller;
    if !ChangeRights::of(caller, &set.summary.agent).may_discard() {
        return Some(forbidden("approver or governor"));
    }
    if let Err(error) = form.check_names(|name| FIELDS.contains(&name), |_name| false) {
        return Some(refusal_page(console, signed_in, &set, &error).await);
    }
    let Some(act) = read_act(form) else {
        let error = "the form names no action: open the page again";
        return Some(refusal_page(console, signed_in, &set, error).await);
    };
    let is_early = !has_been_shown(form, console.executor.clock().now());
    let posted = form.get(DIGEST).and_then(|text| Digest::parse(text).ok());
    let digest = posted.filter(|digest| *digest == set.summary.digest);
    let changes = &console.executor.changes;
    let result = match (act, caller.decision_right()) {
        (DecisionAct::Discard, _) => {
            let may_discard = |agent: &AgentDid| ChangeRights::of(caller, agent).may_discard();
            changes.discard(intent, &may_discard, caller.name()).await
        }
        (DecisionAct::Commit | DecisionAct::Undo, None) => return Some(forbidden("approver or governor")),
        (DecisionAct::Commit | DecisionAct::Undo, Some(_)) if is_early => {
            return Some(refusal_page(console, signed_in, &set, TOO_EARLY).await);
        }
        (DecisionAct::Commit, Some(right)) => match digest {
            Some(digest) => changes.commit(intent, &digest, right).await,
            None => return Some(refusal_page(console, signed_in, &set, OTHER_CHANGES).await),
        },
        (DecisionAct::Undo, Some(right)) => match digest {
            Some(_) => changes.undo(intent, right).await,
            None => return Some(refusal_page(console, signed_in, &set, OTHER_CHANGES).await),
        },
    };
    match result {
        // There is no page of these any more.
        Ok(receipt) if receipt.outcome.end.is_left_to_operator() => {
            Some(fault_page(&Fault::InvalidRequest(describe_failure(&receipt.outcome))))
        }
        // The page says how the decision ended.
        Ok(_receipt) => Some(Redirect::to(&path_of(intent)).into_response()),
        Err(fault) => Some(after_fault(console, signed_in, intent, &fault).await),
    }
}

const TOO_EARLY: &str =
    "the button was pressed within a second of the page; look again, and press it if you agree";
const OTHER_CHANGES: &str =
    "the form is of other changes than these; look at these, and press the button if you agree";

/// The page as it is after a decision that the executor has refused, or whose end is not known.
async fn after_fault(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
    fault: &Fault,
) -> Response {
    let is_known = match fault {
        Fault::Internal(_) | Fault::ReceiptPending { .. } => false,
        Fault::Parse(_)
        | Fault::InvalidRequest(_)
        | Fault::MethodNotFound(_)
        | Fault::InvalidParams { .. }
        | Fault::ToolUnavailable { .. }
        | Fault::Refused { .. }
        | Fault::RegistrationFailed(_)
        | Fault::SessionExpired(_)
        | Fault::Busy { .. }
        | Fault::Failed(_)
        | Fault::LimitReached(..) => true,
    };
    match find_here(console, signed_in, intent).await {
        Ok(Some(set)) if is_known => refusal_page(console, signed_in, &set, &fault_text(fault)).await,
        // It does not say that nothing was decided: a decision may be in force that is not on the disk yet.
        Ok(_) | Err(_) => fault_page(fault),
    }
}
