//! Questions to the consoles of other nodes: for pages, decisions, active runs, rows, usage, tools and file changes.
//!
//! ```text
//! browser ─ session, form ─▶ this node ─ caller, request ─▶ the node that has the page: its list of callers, its page
//!         ◀─ token, page ───           ◀── page ──────────
//! ```
//! This node identifies the person and checks the form; the other node gives them the rights in its own list of callers. It
//! also decides, if this node lacks the tool that the page of the decision shows. The token of the person's forms stays
//! here: the other node writes a placeholder in its place.

use super::active::NodeRuns;
use super::changes::NodeChanges;
use super::decision::Shown;
use super::form::FormFields;
use super::merged_page::NodePage;
use super::page::{fault_page, not_found, problem};
use super::search::{ListKind, ListedRow, RefusalRow, RunRow, SearchQuery};
use super::session::{FORM_TOKEN, SignedIn, new_secret};
use super::tools::{NodeTool, list_own_tools};
use super::usage::UsageSpan;
use super::{ConsoleState, changes, decision, runs};
use a2g_core::run::{ConsoleQuestion, NodeStatus, QuestionEffect};
use a2g_govern::Caller;
use a2g_http::answers;
use a2g_journal::UsageSums;
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_types::node::NodeName;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse as _, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Maximum size of an answer to another node's console, in bytes. The reply to the question escapes it, which may double
/// it, and has at most 900 KiB.
const MAX_CONSOLE_ANSWER_BYTES: usize = 440 << 10;
/// Maximum size of a page that is sent to another node, in bytes. The answer escapes it, which may double it.
const MAX_PAGE_BYTES: usize = MAX_CONSOLE_ANSWER_BYTES / 2;
/// Maximum number of nodes that a page names because it has nothing of them.
const MAX_NAMED_NODES: usize = 5;

const ONLY_THIS_NODE: &str = "Only this node is shown: the other nodes of the fleet show what they have to people in \
                              `server.callers` whose token reaches all tools.";
const INCOMPLETE: &str = "A node of the fleet has given no answer: what it has is missing here. Load the page again. If that does \
                          not help, check that the node has a console, the same version and the same `server.callers`.";
const NOT_RUNNING: &str = "A node of the fleet does not run: what it has is missing here.";
const UNKNOWN_NODES: &str =
    "The list of the fleet's nodes cannot be read, so something may be missing here. Load the page again.";

/// A page about one intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum IntentPage {
    Decision,
    Run,
    /// The file changes of a run.
    Changes,
}

/// A question to the console of another node.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ConsoleRequest {
    /// The active runs there.
    ActiveRuns,
    /// One page of a search there, as [`NodePage`].
    Search { kind: ListKind, query: SearchQuery },
    /// The use of that node.
    Usage(UsageSpan),
    /// The tools there.
    Tools,
    /// The file changes there, of all runs.
    Changes,
    Show {
        page: IntentPage,
        intent: IntentId,
        /// What the page has in place of the token of its forms.
        token_placeholder: String,
    },
    Decide {
        intent: IntentId,
        /// As for [`Self::Show`].
        token_placeholder: String,
        form: FormFields,
    },
    /// A decision on the file changes of a run.
    DecideChanges {
        intent: IntentId,
        /// As for [`Self::Show`].
        token_placeholder: String,
        form: FormFields,
    },
}

impl ConsoleRequest {
    fn effect(&self) -> QuestionEffect {
        match self {
            Self::Decide { .. } | Self::DecideChanges { .. } => QuestionEffect::Decides,
            Self::ActiveRuns
            | Self::Search { .. }
            | Self::Usage(_)
            | Self::Tools
            | Self::Changes
            | Self::Show { .. } => QuestionEffect::Reads,
        }
    }
}

/// A page in the form for another node.
#[derive(Serialize, Deserialize)]
struct RenderedPage {
    status: u16,
    /// The target of a redirection.
    location: Option<String>,
    html: String,
}

/// The nodes of the fleet, also those that do not run, for a person who may read the intents of all agents.
pub(super) async fn known_nodes(
    console: &ConsoleState,
    caller: &Caller,
) -> Option<Result<Vec<NodeStatus>, Fault>> {
    if caller.may_read_all() { console.executor.node.list_nodes().await } else { None }
}

/// The nodes that a page expects to answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// Also those that do not run: their journals have rows.
    All,
    Running,
}

/// The answers of the other nodes of the fleet.
pub(super) struct FleetAnswers<T> {
    /// In the order of the nodes' names.
    pub(super) answers: Vec<(NodeName, T)>,
    /// A sentence about the nodes whose answers are missing.
    pub(super) notice: Option<String>,
}

/// The rows that other nodes find in a search.
pub(super) async fn find_rows<R: ListedRow>(
    console: &ConsoleState,
    caller: &Caller,
    query: &SearchQuery,
) -> FleetAnswers<NodePage<R>> {
    let request = ConsoleRequest::Search { kind: R::KIND, query: query.clone() };
    collect(console, caller, &request, Expected::All).await
}

/// The active runs at other nodes that the caller may see.
pub(super) async fn list_active_runs(console: &ConsoleState, caller: &Caller) -> FleetAnswers<NodeRuns> {
    collect(console, caller, &ConsoleRequest::ActiveRuns, Expected::Running).await
}

/// The use of other nodes by the agents that the caller may see.
pub(super) async fn find_usage(
    console: &ConsoleState,
    caller: &Caller,
    span: UsageSpan,
) -> FleetAnswers<UsageSums> {
    collect(console, caller, &ConsoleRequest::Usage(span), Expected::All).await
}

/// The tools of other nodes.
pub(super) async fn list_tools(console: &ConsoleState, caller: &Caller) -> FleetAnswers<Vec<NodeTool>> {
    collect(console, caller, &ConsoleRequest::Tools, Expected::Running).await
}

/// The file changes at other nodes that the caller may see.
pub(super) async fn list_changes(console: &ConsoleState, caller: &Caller) -> FleetAnswers<NodeChanges> {
    collect(console, caller, &ConsoleRequest::Changes, Expected::Running).await
}

/// Asks the other nodes, and says whose answers are missing.
async fn collect<T: DeserializeOwned>(
    console: &ConsoleState,
    caller: &Caller,
    request: &ConsoleRequest,
    expected: Expected,
) -> FleetAnswers<T> {
    let Some(own_name) = console.executor.node.name() else {
        return FleetAnswers { answers: Vec::new(), notice: None };
    };
    if caller.to_node().is_none() {
        return FleetAnswers { answers: Vec::new(), notice: Some(ONLY_THIS_NODE.to_owned()) };
    }
    let asked = ask_all(console, caller, request);
    let ((mut answers, is_complete), nodes) = tokio::join!(asked, console.executor.node.list_nodes());
    answers.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
    let Some(Ok(nodes)) = nodes else {
        return FleetAnswers { answers, notice: Some(UNKNOWN_NODES.to_owned()) };
    };
    let has_answered =
        |node: &NodeName| node == own_name || answers.iter().any(|(answered, _)| answered == node);
    let is_expected = |node: &&NodeStatus| expected == Expected::All || !node.state.has_ended();
    let missing =
        nodes.iter().filter(is_expected).filter(|node| !has_answered(&node.node)).collect::<Vec<_>>();
    let notice = if is_complete && missing.is_empty() {
        None
    } else if !missing.is_empty() && caller.may_read_all() {
        Some(name_missing(&missing))
    } else if is_complete && missing.iter().all(|node| node.state.has_ended()) {
        Some(NOT_RUNNING.to_owned())
    } else {
        Some(INCOMPLETE.to_owned())
    };
    FleetAnswers { answers, notice }
}

/// Names the nodes of which a page has nothing. The fleet also remembers nodes that do not run.
fn name_missing(nodes: &[&NodeStatus]) -> String {
    let describe = |node: &&NodeStatus| {
        let state = if node.state.has_ended() { node.state_name() } else { "no answer" };
        format!("{} ({state})", node.node)
    };
    let named = nodes.iter().take(MAX_NAMED_NODES).map(describe).collect::<Vec<_>>().join(", ");
    match nodes.len().checked_sub(MAX_NAMED_NODES) {
        None | Some(0) => format!("What these nodes have is missing here: {named}."),
        Some(more) => format!("What these nodes have is missing here: {named}, and {more} more."),
    }
}

/// The answers of other nodes to a request, and `true` if all nodes that run have given one.
async fn ask_all<T: DeserializeOwned>(
    console: &ConsoleState,
    caller: &Caller,
    request: &ConsoleRequest,
) -> (Vec<(NodeName, T)>, bool) {
    let Ok(request) = serde_json::to_string(request) else { return (Vec::new(), false) };
    let asked = console.executor.peers.ask_all_consoles(caller, request).await;
    let (answers, mut is_complete) = asked.unwrap_or_default();
    let mut parsed = Vec::with_capacity(answers.len());
    for (node, answer) in answers {
        match serde_json::from_str(&answer) {
            Ok(answer) => parsed.push((node, answer)),
            Err(_) => is_complete = false,
        }
    }
    (parsed, is_complete)
}

/// The page of an intent at another node, or the page that says that there is none.
pub(super) async fn show(
    console: &ConsoleState,
    signed_in: &SignedIn,
    page: IntentPage,
    intent: IntentId,
) -> Response {
    match find_page(console, signed_in, page, intent).await {
        Ok(found) => found.unwrap_or_else(|| not_found("intent")),
        Err(fault) => fault_page(&fault),
    }
}

/// The page of an intent at another node; `None` if no node has a page that the caller may see.
pub(super) async fn find_page(
    console: &ConsoleState,
    signed_in: &SignedIn,
    page: IntentPage,
    intent: IntentId,
) -> Result<Option<Response>, Fault> {
    let token_placeholder = new_token_placeholder()?;
    let request = ConsoleRequest::Show { page, intent, token_placeholder: token_placeholder.clone() };
    ask(console, signed_in, &request, &token_placeholder).await
}

/// Passes a decision on to a node that has the tool of its intent.
pub(super) async fn decide(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
    mut form: FormFields,
) -> Response {
    form.remove(FORM_TOKEN);
    pass_on(console, signed_in, IntentPage::Decision, intent, |token_placeholder| ConsoleRequest::Decide {
        intent,
        token_placeholder,
        form,
    })
    .await
}

/// Passes a decision on file changes on to the node that has them.
pub(super) async fn decide_changes(
    console: &ConsoleState,
    signed_in: &SignedIn,
    intent: IntentId,
    mut form: FormFields,
) -> Response {
    form.remove(FORM_TOKEN);
    pass_on(console, signed_in, IntentPage::Changes, intent, |token_placeholder| {
        ConsoleRequest::DecideChanges { intent, token_placeholder, form }
    })
    .await
}

/// Passes on a request that has a placeholder for the token, and shows `page` if no node has decided.
async fn pass_on(
    console: &ConsoleState,
    signed_in: &SignedIn,
    page: IntentPage,
    intent: IntentId,
    to_request: impl FnOnce(String) -> ConsoleRequest,
) -> Response {
    let decide = async {
        let token_placeholder = new_token_placeholder()?;
        let request = to_request(token_placeholder.clone());
        ask(console, signed_in, &request, &token_placeholder).await
    };
    match decide.await {
        Ok(Some(page)) => page,
        // The other node may have decided meanwhile.
        Ok(None) => show(console, signed_in, page, intent).await,
        Err(fault) => fault_page(&fault),
    }
}

fn new_token_placeholder() -> Result<String, Fault> {
    new_secret().map_err(|error| Fault::Internal(error.to_string()))
}

async fn ask(
    console: &ConsoleState,
    signed_in: &SignedIn,
    request: &ConsoleRequest,
    token_placeholder: &str,
) -> Result<Option<Response>, Fault> {
    let text = serde_json::to_string(request).map_err(|error| Fault::Internal(error.to_string()))?;
    let answer = console.executor.peers.ask_consoles(&signed_in.caller, text, request.effect()).await?;
    let page = answer.and_then(|answer| serde_json::from_str::<RenderedPage>(&answer).ok());
    Ok(page.map(|page| page.into_response(signed_in, token_placeholder)))
}

impl RenderedPage {
    /// Reads the answer of this node's own console.
    async fn from_response(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        let target = parts.headers.get(header::LOCATION).and_then(|location| location.to_str().ok());
        let location = target.map(str::to_owned);
        let body = axum::body::to_bytes(body, MAX_PAGE_BYTES).await;
        match body.ok().and_then(|body| String::from_utf8(body.into()).ok()) {
            Some(html) => Self { status: parts.status.as_u16(), location, html },
            None => {
                let text = "It cannot be sent from the node of the fleet that has it: open the console of that node.";
                let page = problem(StatusCode::CONFLICT, "This page is too long", text);
                Box::pin(Self::from_response(page)).await
            }
        }
    }

    fn into_response(self, signed_in: &SignedIn, token_placeholder: &str) -> Response {
        let Self { status, location, html } = self;
        let html = html.replace(token_placeholder, &signed_in.form_token);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Html(html)).into_response();
        let location = location.filter(|location| location.starts_with("/console/"));
        if let Some(location) = location.and_then(|location| HeaderValue::from_str(&location).ok()) {
            response.headers_mut().insert(header::LOCATION, location);
        }
        answers::charge(&signed_in.caller, response)
    }
}

/// Answers the questions of other nodes' consoles.
pub(super) fn answer_other_nodes(console: &Arc<ConsoleState>) {
    let weak = Arc::downgrade(console);
    console.executor.peers.answer_consoles(move |question| {
        let weak = weak.clone();
        Box::pin(async move { answer(&*weak.upgrade()?, question).await })
    });
}

async fn find_rows_here<R: ListedRow>(
    console: &ConsoleState,
    caller: &Arc<Caller>,
    query: &SearchQuery,
) -> Option<String> {
    serde_json::to_string(&R::find_here(console, caller, query).await.ok()?).ok()
}

/// The answer to a question; `None` if there is none, or if it is too long.
async fn answer(console: &ConsoleState, question: ConsoleQuestion) -> Option<String> {
    let answer = find_answer(console, question).await?;
    if answer.len() > MAX_CONSOLE_ANSWER_BYTES {
        tracing::warn!(
            bytes = answer.len(),
            "an answer to another node's console is too long, and is not sent"
        );
        return None;
    }
    Some(answer)
}

async fn find_answer(console: &ConsoleState, question: ConsoleQuestion) -> Option<String> {
    let ConsoleQuestion { caller, text } = question;
    let request = serde_json::from_str(&text).ok()?;
    let page = match request {
        ConsoleRequest::ActiveRuns => {
            return serde_json::to_string(&NodeRuns::read(console, &caller)).ok();
        }
        ConsoleRequest::Tools => return serde_json::to_string(&list_own_tools(console)).ok(),
        ConsoleRequest::Changes => {
            return serde_json::to_string(&NodeChanges::read(console, &caller)).ok();
        }
        ConsoleRequest::Usage(span) => {
            let _place = console.take_reading(&caller).ok()?;
            return span.read(console, &caller).await.ok()?.to_json(MAX_CONSOLE_ANSWER_BYTES);
        }
        ConsoleRequest::Search { kind, query } => {
            let _place = console.take_reading(&caller).ok()?;
            return match kind {
                ListKind::Runs => find_rows_here::<RunRow>(console, &caller, &query).await,
                ListKind::Refusals => find_rows_here::<RefusalRow>(console, &caller, &query).await,
            };
        }
        ConsoleRequest::Show { page, intent, token_placeholder } => match console.take_reading(&caller) {
            Err(too_many) => too_many,
            Ok(_place) => {
                let signed_in = SignedIn { caller, form_token: token_placeholder };
                match page {
                    IntentPage::Decision => {
                        decision::find_page_here(console, &signed_in, intent, Shown::WithTool).await?
                    }
                    IntentPage::Run => runs::find_page_here(console, &signed_in, intent).await?,
                    IntentPage::Changes => changes::find_page_here(console, &signed_in, intent).await?,
                }
            }
        },
        ConsoleRequest::Decide { intent, token_placeholder, form } => {
            let signed_in = SignedIn { caller, form_token: token_placeholder };
            decision::decide_here(console, &signed_in, intent, &form, Shown::WithTool).await?
        }
        ConsoleRequest::DecideChanges { intent, token_placeholder, form } => {
            let signed_in = SignedIn { caller, form_token: token_placeholder };
            changes::decide_here(console, &signed_in, intent, &form).await?
        }
    };
    serde_json::to_string(&RenderedPage::from_response(page).await).ok()
}
