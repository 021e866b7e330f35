//! The A2A door: `POST /a2a/rpc`, the agent card, and the governance history of a task.
//!
//! Errors of the protocol are answered with HTTP 200. A request without an `id` is answered with the id `null`, because
//! the known clients send such requests and wait for an answer.

mod elsewhere;
mod follow;
mod limits;
mod stream;
mod tasks;

use a2g_core::deliver::WebhookPoster;
use a2g_core::run::{DirectiveOutcome, Executor};
use a2g_govern::Caller;
use a2g_govern::Role::{self, Approver, Governor, Operator};
use a2g_http::A2aSettings;
use a2g_http::connections::Connection;
use a2g_http::document::{Document, PerCatalogue};
use a2g_http::protocol::{AuthPolicy, DoorAccess, ProtocolRouter, with_caller};
use a2g_http::transport::events::single_event_response;
use a2g_http::transport::json::{JsonBody, json_response};
use a2g_journal::{TaskKey, TaskQuery, TaskSummary};
use a2g_types::call::{Call, Door, Priority};
use a2g_types::error_chain::ErrorChain;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::memory::Charge;
use a2g_types::tool::Descriptor;
use a2g_types::verdict::Directive;
use a2g_wire::a2a::card::{self, CardSettings};
use a2g_wire::a2a::decode::{self, A2aDecodeError, A2aRequest, SendParams, StreamingMethod};
use a2g_wire::a2a::fault::Problem;
use a2g_wire::a2a::governance::PermissionDecision;
use a2g_wire::a2a::message::{Message, Part, TaskState};
use a2g_wire::a2a::page::PageToken;
use a2g_wire::a2a::push::{self, PushConfig};
use a2g_wire::a2a::{Dialect, encode, fault};
use a2g_wire::jsonrpc::Id;
use a2g_wire::strict_json::JsonBounds;
use axum::extract::{Path, Request as HttpRequest, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use limits::{CallerLimiter, RateLimitGuard};
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use stream::{StreamStart, TaskStream};
use tasks::{TaskHandle, TaskRecord, TaskStore, TaskWebhooks};

/// Maximum number of messages of a task that waits for a message with a tool call.
const MAX_MESSAGES: usize = 100;
/// Maximum total size of these messages.
const MAX_HISTORY_BYTES: usize = 256 << 10;
/// Maximum number of webhooks of a task.
const MAX_WEBHOOKS: usize = 8;
/// Maximum wait for the end of a canceled run before `tasks/cancel` is answered.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);
/// The header, and the parameter of the URL, in which clients of A2A 1.0 name a version.
const VERSION: &str = "a2a-version";
/// Retry delay for a request that the shutdown interrupted.
const SHUTDOWN_RETRY_MS: u64 = 1_000;
/// Roles that may read the tasks of other callers.
const READ_ALL_ROLES: [Role; 3] = [Governor, Approver, Operator];

const CALL_PROMPT: &str = "This executor runs tools. Send a `data` part {\"tool\": name, \"arguments\": {…}} with this \
                           `taskId`; the skills of the agent card are the tools.";

/// The properties of the HTTP port that the A2A door is served on.
#[derive(Debug, Clone, Copy)]
pub struct A2aPort {
    /// Size and depth limits of a message.
    pub bounds: JsonBounds,
    /// `true` if the port speaks TLS: the agent card then has `https` URLs.
    pub tls: bool,
    /// `true` if the operator has a list of callers.
    pub lists_callers: bool,
    /// `true` if any listed caller may present a JSON Web Token.
    pub accepts_jwts: bool,
    /// Maximum time for a client to read an event of a stream.
    pub write_timeout: Duration,
}

struct A2a {
    executor: Arc<Executor>,
    settings: A2aSettings,
    port: A2aPort,
    webhooks: Option<Arc<WebhookPoster>>,
    store: TaskStore,
    public_card: PerCatalogue<Document>,
    extended_card: PerCatalogue<Document>,
}

/// Returns the routers of this door, for its authenticated paths and for the public agent card, and resumes the tasks
/// that an earlier process left open.
///
/// # Errors
/// If the journal cannot be read.
pub async fn routers(
    executor: Arc<Executor>,
    settings: A2aSettings,
    port: A2aPort,
    webhooks: Option<Arc<WebhookPoster>>,
) -> Result<[ProtocolRouter; 2], Fault> {
    let access = settings.door.access;
    let limiter = Arc::new(CallerLimiter::new(settings.limits, Arc::clone(executor.clock())));
    let task_webhooks = webhooks.clone().map(|poster| TaskWebhooks { poster, dialect: settings.dialect });
    let store = TaskStore::new(Arc::clone(&executor), task_webhooks).await?;
    let door = Arc::new(A2a {
        executor,
        settings,
        port,
        webhooks,
        store,
        public_card: PerCatalogue::default(),
        extended_card: PerCatalogue::default(),
    });
    door.resume().await?;
    elsewhere::share_tasks(&door);
    let routes = Router::new()
        .route("/a2a/rpc", post(rpc))
        .route("/a2a/tasks/{task}/governor/history", get(governor_history))
        .route("/a2a/tasks/{task}/stream", get(task_stream))
        .layer(middleware::from_fn_with_state((limiter, door.settings.dialect), limit_rate))
        .with_state(Arc::clone(&door));
    let public = Router::new().route(card::PATH, get(public_card)).with_state(door);
    Ok([
        ProtocolRouter { routes, auth: AuthPolicy::Required(access) },
        ProtocolRouter { routes: public, auth: AuthPolicy::Public },
    ])
}

/// Middleware that counts a request, or refuses it at a limit, and adds the `X-RateLimit` headers.
async fn limit_rate(
    State((limiter, dialect)): State<(Arc<CallerLimiter>, Dialect)>,
    Extension(caller): Extension<Arc<Caller>>,
    mut request: HttpRequest,
    next: Next,
) -> Response {
    let (status, guard) = limiter.try_acquire(caller.name());
    let mut response = match guard {
        Some(guard) => {
            request.extensions_mut().insert(Arc::new(guard));
            next.run(request).await
        }
        None => {
            let message = "too many requests: see the `X-RateLimit` headers".to_owned();
            let fault = Fault::Busy { message, retry_after_ms: status.retry_after_ms() };
            let text = fault::to_error(&fault.into(), dialect).response(&Id::null(), dialect);
            json_response(StatusCode::TOO_MANY_REQUESTS, text)
        }
    };
    limiter.write_headers(status, response.headers_mut());
    response
}

async fn public_card(State(door): State<Arc<A2a>>, uri: Uri, headers: HeaderMap) -> Response {
    let render = |tools: &[Descriptor]| {
        Document::new(|url| card::public_card(&door.card_settings(url), tools).to_string())
    };
    door.public_card.get(door.executor.catalogue.tools(), render).respond(&headers, &door.url(&uri, &headers))
}

async fn governor_history(
    State(door): State<Arc<A2a>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(task): Path<String>,
) -> Response {
    match door.readable_task(&caller, &task).await {
        Ok(handle) => {
            let history = serde_json::to_string(&handle.record().governance).unwrap_or_default();
            json_response(StatusCode::OK, history)
        }
        Err(problem) => door.http_problem(&problem),
    }
}

/// The event stream that `message/stream` names in the ACP dialect.
async fn task_stream(
    State(door): State<Arc<A2a>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(connection): Extension<Arc<Connection>>,
    Extension(guard): Extension<Arc<RateLimitGuard>>,
    Path(task): Path<String>,
) -> Response {
    match door.follow_task(&caller, &task).await {
        Ok(start) => door.stream_task(start, Id::null(), guard, &connection),
        Err(problem) => door.http_problem(&problem),
    }
}

/// The caller of a request, and the guards that a streamed answer keeps.
struct RequestContext {
    caller: Arc<Caller>,
    connection: Arc<Connection>,
    guard: Arc<RateLimitGuard>,
    /// The URL by which the client names this door.
    url: String,
    /// The request's charge against its caller's share of memory.
    charge: Charge,
}

async fn rpc(
    State(door): State<Arc<A2a>>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(connection): Extension<Arc<Connection>>,
    Extension(guard): Extension<Arc<RateLimitGuard>>,
    JsonBody(body): JsonBody,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let dialect = door.settings.dialect;
    let message = match body.text(&door.port.bounds) {
        Ok(text) => decode::request(text),
        Err(fault) => Err(A2aDecodeError { id: Id::null(), fault, streaming: None }),
    };
    let (id, streaming, decoded) = match message {
        Ok((id, request)) => (id, request.streaming(), Ok(request)),
        Err(A2aDecodeError { id, fault, streaming }) => (id, streaming, Err(Problem::from(fault))),
    };
    // A message of another version may not be readable as one of this.
    let supported = check_version(&uri, &headers).and(decoded);
    let request = match supported {
        Ok(request) => request,
        Err(problem) => return error_response(&id, &problem, streaming, dialect),
    };
    let url = door.url(&uri, &headers);
    let request_context = RequestContext { caller, connection, guard, url, charge: body.charge() };
    // Runs in its own tokio task, because a client that disconnects must not leave an A2A task without its follower. To
    // answer in the connection's tokio task, and change to another only if the connection ends, was measured to be 20
    // µs slower.
    let answer_id = id.clone();
    let sessions = door.executor.sessions().clone();
    let answer = sessions.spawn(async move { door.answer(request_context, &answer_id, request).await });
    let problem = match answer.await {
        Ok(Some(Ok(response))) => return response,
        Ok(Some(Err(problem))) => problem,
        Ok(None) => {
            let message = "the executor is shutting down".to_owned();
            Fault::Busy { message, retry_after_ms: SHUTDOWN_RETRY_MS }.into()
        }
        Err(panicked) => Fault::Internal(format!("the task of an answer panicked: {panicked}")).into(),
    };
    if let Problem::Core(Fault::Internal(detail)) = &problem {
        tracing::error!(detail, "internal error at the A2A door");
    }
    error_response(&id, &problem, streaming, dialect)
}

/// Checks the version of A2A that a client of A2A 1.0 names, in a header or a parameter of the URL.
fn check_version(uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let in_headers = headers.get_all(VERSION).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let parameters =
        uri.query().unwrap_or_default().split('&').filter_map(|parameter| parameter.split_once('='));
    let in_url = parameters.filter(|(name, _)| name.eq_ignore_ascii_case(VERSION));
    let mut named = in_headers.chain(in_url.map(|(_, version)| version.into()));
    match named.find(|version| !card::is_supported_version(version)) {
        Some(version) => Err(Problem::UnsupportedVersion(version.into_owned())),
        None => Ok(()),
    }
}

/// The error response; an event if the method streams, because the clients of such a method read only events.
fn error_response(
    id: &Id,
    problem: &Problem,
    streaming: Option<StreamingMethod>,
    dialect: Dialect,
) -> Response {
    let response = fault::to_error(problem, dialect).response(id, dialect);
    match streaming {
        Some(method) if method.is_event_stream(dialect) => single_event_response(response),
        Some(_) | None => ok_response(response),
    }
}

/// Checks that a task was canceled: it may have ended in another way just before.
fn check_canceled(state: TaskState) -> Result<(), Problem> {
    match state {
        TaskState::Completed | TaskState::Failed | TaskState::Rejected => Err(Problem::NotCancelable(state)),
        TaskState::Canceled | TaskState::Submitted | TaskState::Working | TaskState::InputRequired => Ok(()),
    }
}

impl A2a {
    /// Answers a request.
    async fn answer(
        self: Arc<Self>,
        request_context: RequestContext,
        id: &Id,
        request: A2aRequest,
    ) -> Result<Response, Problem> {
        let caller = &*request_context.caller;
        match request {
            A2aRequest::Send(sent) | A2aRequest::Provide { sent } => {
                self.send(&request_context, id, *sent).await
            }
            A2aRequest::Stream(sent) => self.send_and_follow(request_context, id, *sent).await,
            A2aRequest::Get { task, history } => self.get_task(caller, id, &task, history).await,
            A2aRequest::List { context, limit, offset, after } => {
                let query = self.task_query(caller, context, after)?;
                self.list_tasks(id, query, limit, offset).await
            }
            A2aRequest::Cancel { task } => self.cancel_task(caller, id, &task).await,
            A2aRequest::Resubscribe { task } => {
                let start = self.follow_task(caller, &task).await?;
                Ok(self.stream_task(start, id.clone(), request_context.guard, &request_context.connection))
            }
            A2aRequest::Permit { task, approved } => self.permit(caller, id, &task, approved).await,
            A2aRequest::SetPush { task, config } => self.set_push(caller, id, &task, *config).await,
            A2aRequest::GetPush { task, config } => self.get_push(caller, id, &task, config.as_deref()).await,
            A2aRequest::ListPush { task } => self.list_push(caller, id, &task).await,
            A2aRequest::DeletePush { task, config } => self.delete_push(caller, id, &task, &config).await,
            A2aRequest::ExtendedCard => self.extended_card(id, &request_context.url),
        }
    }

    async fn send(
        self: &Arc<Self>,
        request_context: &RequestContext,
        id: &Id,
        sent: SendParams,
    ) -> Result<Response, Problem> {
        let history = sent.history;
        let answered = if sent.blocking { AnswerTime::Settled } else { AnswerTime::AtOnce };
        let AcceptedMessage { handle, call } = self.accept_message(request_context, sent, answered).await?;
        let record = match (call, answered) {
            (Some(call), AnswerTime::Settled) => self.run_until_settled(&handle, call).await,
            (Some(call), AnswerTime::AtOnce) => {
                self.start(Arc::clone(&handle), call);
                handle.record()
            }
            (None, AnswerTime::Settled | AnswerTime::AtOnce) => handle.record(),
        };
        Ok(ok_response(encode::task_response(id, &record.task, history, self.settings.dialect)))
    }

    async fn send_and_follow(
        self: &Arc<Self>,
        request_context: RequestContext,
        id: &Id,
        sent: SendParams,
    ) -> Result<Response, Problem> {
        let AcceptedMessage { handle, call } =
            self.accept_message(&request_context, sent, AnswerTime::AtOnce).await?;
        let (record, updates) = handle.subscribe();
        if let Some(call) = call {
            self.start(Arc::clone(&handle), call);
        }
        Ok(match self.settings.dialect {
            Dialect::A2a => {
                let start = StreamStart { record, updates, waits_for_a_person: false };
                self.stream_task(start, id.clone(), request_context.guard, &request_context.connection)
            }
            Dialect::Acp => ok_response(encode::stream_response(id, &record.task.id)),
        })
    }

    async fn get_task(
        &self,
        caller: &Caller,
        id: &Id,
        task: &str,
        history: Option<usize>,
    ) -> Result<Response, Problem> {
        let record = match self.readable_task(caller, task).await {
            Ok(handle) => handle.record(),
            Err(Problem::TaskNotFound) => Arc::new(self.find_elsewhere(caller, task, &READ_ALL_ROLES).await?),
            Err(problem) => return Err(problem),
        };
        Ok(ok_response(encode::task_response(id, &record.task, history, self.settings.dialect)))
    }

    /// The query for the tasks that a caller may read. Its `limit` is still to be set.
    fn task_query(
        &self,
        caller: &Caller,
        context: Option<String>,
        after: Option<PageToken>,
    ) -> Result<TaskQuery, Problem> {
        let owner = if caller.is_any_of(&READ_ALL_ROLES) { None } else { Some(self.agent_of(caller)?) };
        let unsaved = self.unsaved_tasks(owner.as_ref(), context.as_deref());
        let after = after.map(|PageToken { created, task }| TaskKey { created, task });
        Ok(TaskQuery { owner, context, after, limit: 0, unsaved })
    }

    async fn cancel_task(&self, caller: &Caller, id: &Id, task: &str) -> Result<Response, Problem> {
        let record = match self.find_task(caller, task, &[Governor, Operator]).await {
            Ok(handle) => self.cancel(caller, &handle).await?,
            Err(Problem::TaskNotFound) => Arc::new(self.cancel_elsewhere(caller, task).await?),
            Err(problem) => return Err(problem),
        };
        Ok(ok_response(encode::cancel_response(id, &record.task, self.settings.dialect)))
    }

    async fn permit(
        &self,
        caller: &Caller,
        id: &Id,
        task: &str,
        approved: bool,
    ) -> Result<Response, Problem> {
        let record = self.answer_prompt(caller, task, approved).await?;
        Ok(ok_response(encode::task_response(id, &record.task, None, self.settings.dialect)))
    }

    async fn get_push(
        &self,
        caller: &Caller,
        id: &Id,
        task: &str,
        config: Option<&str>,
    ) -> Result<Response, Problem> {
        let record = self.webhook_task(caller, task).await?.record();
        let matches = |webhook: &&PushConfig| config.is_none_or(|id| webhook.id == id);
        let webhook = record.webhooks.iter().find(matches).ok_or(Problem::PushNotFound)?;
        Ok(ok_response(push::get_response(id, task, webhook)))
    }

    async fn list_push(&self, caller: &Caller, id: &Id, task: &str) -> Result<Response, Problem> {
        let record = self.webhook_task(caller, task).await?.record();
        Ok(ok_response(push::list_response(id, task, &record.webhooks)))
    }

    async fn delete_push(
        &self,
        caller: &Caller,
        id: &Id,
        task: &str,
        config: &str,
    ) -> Result<Response, Problem> {
        let handle = self.webhook_task(caller, task).await?;
        let pending_write = handle.try_change(self.executor.journal(), |record| {
            let before = record.webhooks.len();
            record.webhooks.retain(|webhook| webhook.id != config);
            if record.webhooks.len() < before { Ok(Vec::new()) } else { Err(Problem::PushNotFound) }
        })?;
        pending_write.await.map_err(|error| tasks::journal_fault(&error))?;
        Ok(ok_response(push::delete_response(id)))
    }

    /// The card for authenticated clients; in the ACP dialect, every client gets it.
    fn extended_card(&self, id: &Id, url: &str) -> Result<Response, Problem> {
        let dialect = self.settings.dialect;
        if dialect == Dialect::A2a && !self.requires_auth() {
            return Err(Problem::NoExtendedCard);
        }
        let render = |tools: &[Descriptor]| {
            Document::new(|url| card::extended_card(&self.card_settings(url), tools, dialect).to_string())
        };
        let text = self.extended_card.get(self.executor.catalogue.tools(), render).text(url);
        let card = RawValue::from_string(text).map_err(|error| Fault::Internal(error.to_string()))?;
        Ok(ok_response(encode::response(id, &card)))
    }

    /// The URL by which a client names this door. `Host` was checked before the handler ran.
    fn url(&self, uri: &Uri, headers: &HeaderMap) -> String {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let authority = uri.authority().map(axum::http::uri::Authority::as_str).or(host).unwrap_or_default();
        let scheme = if self.port.tls { "https" } else { "http" };
        format!("{scheme}://{authority}/a2a/rpc")
    }

    /// The settings of the agent cards, with the URL of this door.
    fn card_settings(&self, url: &str) -> CardSettings {
        CardSettings {
            url: url.to_owned(),
            requires_auth: self.requires_auth(),
            accepts_jwts: self.port.accepts_jwts,
            supports_push: self.webhooks.is_some(),
        }
    }

    /// Returns `true` if callers must authenticate.
    fn requires_auth(&self) -> bool {
        self.port.lists_callers && self.settings.door.access == DoorAccess::Callers
    }

    /// A task that the caller may read. The task of another caller is reported as not found.
    async fn readable_task(&self, caller: &Caller, task: &str) -> Result<Arc<TaskHandle>, Problem> {
        self.find_task(caller, task, &READ_ALL_ROLES).await
    }

    /// A task of the caller, or any task for a caller with one of these roles.
    async fn find_task(
        &self,
        caller: &Caller,
        task: &str,
        roles: &[Role],
    ) -> Result<Arc<TaskHandle>, Problem> {
        // Task ids are UUIDs: any other text names no task.
        let Ok(id) = IntentId::parse(task) else { return Err(Problem::TaskNotFound) };
        let handle = self.store.find(id).await?.ok_or(Problem::TaskNotFound)?;
        let may_access = caller.may_act_as(&handle.record().owner) || caller.is_any_of(roles);
        if may_access { Ok(handle) } else { Err(Problem::TaskNotFound) }
    }

    /// A task of the caller, if webhooks are enabled.
    async fn webhook_task(&self, caller: &Caller, task: &str) -> Result<Arc<TaskHandle>, Problem> {
        match self.webhooks {
            Some(_) => self.find_task(caller, task, &[]).await,
            None => Err(Problem::PushUnsupported),
        }
    }

    /// Checks the URL of a webhook, and adds an id and the time of creation.
    fn complete_webhook(&self, config: PushConfig, pointer: &str) -> Result<PushConfig, Problem> {
        let webhooks = self.webhooks.as_ref().ok_or(Problem::PushUnsupported)?;
        webhooks.check(&config.url).map_err(|error| {
            let message = format!(
                "the URL cannot receive webhooks ({error}): `doors.a2a.webhook_domains` lists the allowed hosts"
            );
            Problem::invalid(pointer, &message)
        })?;
        let id = if config.id.is_empty() { IntentId::random().to_string() } else { config.id };
        Ok(PushConfig { id, created_at: self.executor.clock().now().truncate_to_millisecond(), ..config })
    }

    async fn set_push(
        &self,
        caller: &Caller,
        id: &Id,
        task: &str,
        config: PushConfig,
    ) -> Result<Response, Problem> {
        let handle = self.webhook_task(caller, task).await?;
        let config = self.complete_webhook(config, "/pushNotificationConfig/url")?;
        let webhook = config.clone();
        let pending_write = handle.try_change(self.executor.journal(), |record| {
            add_webhook(record, webhook)?;
            Ok::<_, Problem>(Vec::new())
        })?;
        pending_write.await.map_err(|error| tasks::journal_fault(&error))?;
        Ok(ok_response(push::set_response(id, task, &config, self.settings.dialect)))
    }

    /// The agent that owns the tasks of a caller.
    fn agent_of(&self, caller: &Caller) -> Result<AgentDid, Problem> {
        let agent = self.settings.door.agent_of(Door::A2a, caller, None)?;
        if caller.may_act_as(&agent) {
            return Ok(agent);
        }
        let message = format!("`{}` may not send intents in the name of `{agent}`", caller.name());
        Err(self.executor.refusals.refuse(None, BlockedBy::CallerUnauthorized, message).into())
    }

    /// Runs a call until its task has settled and is on the disk. A task that has settled but not ended is followed
    /// further in the background.
    async fn run_until_settled(self: &Arc<Self>, handle: &Arc<TaskHandle>, call: Call) -> Arc<TaskRecord> {
        let door = Arc::clone(self);
        let task = Arc::clone(handle);
        let mut follow = Box::pin(async move { door.run_to_end(&task, call).await });
        tokio::select! {
            () = &mut follow => handle.record(),
            settled = handle.wait_until_settled() => {
                self.executor.sessions().spawn(follow);
                settled
            }
        }
    }

    /// Accepts a message for a new task or an existing one.
    async fn accept_message(
        &self,
        request_context: &RequestContext,
        sent: SendParams,
        answered: AnswerTime,
    ) -> Result<AcceptedMessage, Problem> {
        let caller = &request_context.caller;
        let SendParams { message, call: tool_call, blocking: _, history: _, accepts, push: webhook } = sent;
        let push = webhook
            .map(|config| self.complete_webhook(*config, "/configuration/pushNotificationConfig/url"))
            .transpose()?;
        if !encode::is_output_accepted(&accepts) {
            let message = "results are `application/json` or `text/plain`: accept one of them".to_owned();
            return Err(Problem::ContentType(message));
        }
        let agent = self.agent_of(caller)?;
        let existing = match &message.task_id {
            Some(task) => Some(self.find_task(caller, task, &[]).await?),
            None => None,
        };
        let id = existing.as_ref().map_or_else(IntentId::random, |handle| handle.id);
        let owner = existing.as_ref().map_or(agent, |handle| handle.record().owner.clone());
        let call = match tool_call {
            None => None,
            Some(tool_call) => {
                let unchecked = Call {
                    door: Door::A2a,
                    agent: owner.clone(),
                    intent: id,
                    is_new: existing.is_none(),
                    tool: tool_call.tool.clone(),
                    arguments: tool_call.arguments.clone(),
                    context: None,
                    priority: Priority::Normal,
                    caller_timeout: tool_call.timeout,
                    charge: request_context.charge.clone(),
                    parent: None,
                    caller_tools: None,
                };
                let call = with_caller(&self.executor, caller, unchecked)?;
                let checked = self.executor.engine.check_tool(&call).await;
                checked.map_err(|fault| tool_call.relocate_fault(fault))?;
                Some(call)
            }
        };
        let handle = match existing {
            Some(handle) => self.continue_task(handle, message, call.as_ref(), push).await?,
            None => self.create_task(id, owner, message, call.as_ref(), push, answered).await?,
        };
        Ok(AcceptedMessage { handle, call })
    }

    async fn create_task(
        &self,
        id: IntentId,
        owner: AgentDid,
        message: Message,
        call: Option<&Call>,
        push: Option<PushConfig>,
        answered: AnswerTime,
    ) -> Result<Arc<TaskHandle>, Problem> {
        let now = self.executor.clock().now();
        if call.is_none() && !fits_history(&[&message]) {
            return Err(too_long_fault());
        }
        let mut record = TaskRecord::new(id, owner, message, now);
        record.webhooks.extend(push);
        match call {
            Some(call) => record.tool = Some(call.tool.clone()),
            None => {
                record.set_state(TaskState::InputRequired, vec![Part::text(CALL_PROMPT)], now);
            }
        }
        let handle = self.store.add(id, record)?;
        // If the message is answered only when the task settles, the task is written with its run, which saves a
        // transaction.
        if answered == AnswerTime::AtOnce || call.is_none() {
            handle.persist(self.executor.journal()).await.map_err(|error| tasks::journal_fault(&error))?;
        }
        Ok(handle)
    }

    async fn continue_task(
        &self,
        handle: Arc<TaskHandle>,
        message: Message,
        call: Option<&Call>,
        push: Option<PushConfig>,
    ) -> Result<Arc<TaskHandle>, Problem> {
        let now = self.executor.clock().now();
        let pending_write = handle.try_change(self.executor.journal(), |record| {
            check_accepts(record, &message)?;
            if let Some(push) = push {
                add_webhook(record, push)?;
            }
            let update = match call {
                Some(call) => {
                    record.tool = Some(call.tool.clone());
                    record.set_state(TaskState::Submitted, Vec::new(), now)
                }
                None => record.set_state(TaskState::InputRequired, vec![Part::text(CALL_PROMPT)], now),
            };
            let task_id = Some(record.task.id.clone());
            let context_id = Some(record.task.context_id.clone());
            record.task.history.push(Message { task_id, context_id, ..message });
            Ok::<_, Problem>(vec![update])
        })?;
        // The journal retries the write, and the task continues.
        if let Err(error) = pending_write.await {
            tracing::error!(task = %handle.id, error = %ErrorChain(&error), "a task could not be written to the journal");
        }
        Ok(handle)
    }

    /// A page of the tasks that a query selects.
    async fn list_tasks(
        &self,
        id: &Id,
        query: TaskQuery,
        limit: usize,
        offset: usize,
    ) -> Result<Response, Problem> {
        // The query asks for one more task than fits the page, to learn whether there is a next page.
        let result = self.executor.journal().tasks(TaskQuery { limit: offset + limit + 1, ..query }).await;
        let (found, total) = result.map_err(|error| tasks::journal_fault(&error))?;
        let mut rest = found.into_iter().skip(offset);
        let page = rest.by_ref().take(limit).collect::<Vec<_>>();
        let next =
            rest.next().and(page.last()).map(|last| PageToken { created: last.created, task: last.task });
        let items = page.iter().map(|task| self.list_item(task)).collect::<Vec<_>>();
        Ok(ok_response(encode::list_response(id, &items, total, next.as_ref())))
    }

    /// The tasks of an owner and a context (`None`: any) that are not in the journal yet.
    fn unsaved_tasks(&self, owner: Option<&AgentDid>, context: Option<&str>) -> Vec<TaskSummary> {
        let unsaved = self.store.unsaved_handles().into_iter().map(|handle| (handle.id, handle.record()));
        let selected = unsaved.filter(|(_, record)| {
            owner.is_none_or(|owner| *owner == record.owner)
                && context.is_none_or(|context| context == record.task.context_id)
        });
        let to_summary = |(task, record): (IntentId, Arc<TaskRecord>)| TaskSummary {
            task,
            context: record.task.context_id.clone(),
            created: record.created,
            status: record.status_json(),
        };
        selected.map(to_summary).collect()
    }

    /// A list item with the current status of its task.
    fn list_item(&self, summary: &TaskSummary) -> serde_json::Value {
        let TaskSummary { task, context, created, status } = summary;
        let text = match self.store.get_cached(*task) {
            Some(handle) => handle.record().status_json(),
            None => status.clone(),
        };
        let current = serde_json::from_str(&text).unwrap_or_default();
        encode::list_item(&task.to_string(), context, &current, *created, self.settings.dialect)
    }

    async fn cancel(&self, caller: &Caller, handle: &TaskHandle) -> Result<Arc<TaskRecord>, Problem> {
        let now = self.executor.clock().now();
        let canceled = handle.try_change(self.executor.journal(), |record| {
            if record.state() == TaskState::InputRequired && !record.is_prompting() {
                return Ok(vec![record.set_state(TaskState::Canceled, Vec::new(), now)]);
            }
            Err(record.state())
        });
        match canceled {
            Ok(pending_write) => {
                if let Err(error) = pending_write.await {
                    tracing::error!(task = %handle.id, error = %ErrorChain(&error), "a task could not be written to the journal");
                }
            }
            Err(state) if state.is_terminal() => return Err(Problem::NotCancelable(state)),
            Err(_runs) => {
                let was_prompting = handle.record().is_prompting();
                handle.stop(caller.name());
                let end = tokio::time::timeout(CANCEL_TIMEOUT, handle.wait_until_ended()).await;
                if was_prompting && end.is_ok_and(|record| record.state() == TaskState::Canceled) {
                    self.record_canceled(caller, handle).await;
                }
            }
        }
        let record = handle.record();
        check_canceled(record.state()).map(|()| record)
    }

    /// Records the denial of a permission prompt that was pending when its task was canceled.
    async fn record_canceled(&self, caller: &Caller, handle: &TaskHandle) {
        let now = self.executor.clock().now();
        handle
            .change(self.executor.journal(), |record| {
                let source = format!("caller:{}", caller.name());
                let call = handle.id.to_string();
                let decision = PermissionDecision::new(&call, &source, false, now, "the task was canceled");
                record.governance.permission_decisions.push(decision);
                Vec::new()
            })
            .await;
    }

    /// Answers the permission prompt of a task.
    async fn answer_prompt(
        &self,
        caller: &Caller,
        task: &str,
        approved: bool,
    ) -> Result<Arc<TaskRecord>, Problem> {
        let handle = self.readable_task(caller, task).await?;
        // Whoever may read the task learns that there is nothing to answer, with or without the right to decide.
        if !handle.record().is_prompting() {
            return Err(Problem::invalid(
                "/permissionOptionId",
                "no permission prompt of this task is pending",
            ));
        }
        let Some(right) = caller.decision_right() else {
            let message = format!(
                "a permission prompt is for callers with the role `approver` or `governor`, and `{}` has neither",
                caller.name()
            );
            return Err(self.executor.refusals.refuse(None, BlockedBy::CallerUnauthorized, message).into());
        };
        let directive = Directive { intent: handle.id, approved, manifest: None, reason: None };
        let _until_recorded = handle.directive.lock().await;
        tracing::info!(intent = %handle.id, approved, caller = caller.name(), "a permission was answered");
        let outcome = self.executor.operator.apply_directive(&directive, right).await.map_err(|fault| {
            let Fault::InvalidParams { message, pointer: _ } = fault else { return fault };
            Fault::invalid("/permissionOptionId", message)
        })?;
        let now = self.executor.clock().now();
        handle
            .change(self.executor.journal(), |record| {
                let source = format!("caller:{}", caller.name());
                let summary = if approved { "approved by a person" } else { "denied by a person" };
                let decision =
                    PermissionDecision::new(&handle.id.to_string(), &source, approved, now, summary);
                record.governance.permission_decisions.push(decision);
                if outcome == DirectiveOutcome::NeedsMoreApprovals {
                    // The prompt stays for the next person.
                    return Vec::new();
                }
                record.governance.pending_permissions.clear();
                match (approved, record.state()) {
                    (true, TaskState::InputRequired) => {
                        vec![record.set_state(TaskState::Working, Vec::new(), now)]
                    }
                    (false, TaskState::InputRequired) => {
                        let details = serde_json::Map::from_iter([("ran".to_owned(), false.into())]);
                        record.end(TaskState::Rejected, summary.to_owned(), details, now)
                    }
                    (
                        _,
                        TaskState::Submitted
                        | TaskState::Working
                        | TaskState::Completed
                        | TaskState::Canceled
                        | TaskState::Failed
                        | TaskState::Rejected,
                    ) => Vec::new(),
                }
            })
            .await;
        Ok(handle.record())
    }

    fn new_stream(&self, id: Id, guard: Arc<RateLimitGuard>, connection: &Arc<Connection>) -> TaskStream {
        TaskStream {
            id,
            dialect: self.settings.dialect,
            write_timeout: self.port.write_timeout,
            _guard: guard,
            _work: connection.begin_request(),
        }
    }

    /// A task from its current state on. The stream stays open while the task waits for a permission.
    async fn follow_task(self: &Arc<Self>, caller: &Caller, task: &str) -> Result<StreamStart, Problem> {
        let (record, updates) = match self.readable_task(caller, task).await {
            Ok(handle) => handle.subscribe(),
            Err(Problem::TaskNotFound) => self.follow_elsewhere(caller, task).await?,
            Err(problem) => return Err(problem),
        };
        Ok(StreamStart { record, updates, waits_for_a_person: true })
    }

    fn stream_task(
        &self,
        start: StreamStart,
        id: Id,
        guard: Arc<RateLimitGuard>,
        connection: &Arc<Connection>,
    ) -> Response {
        self.new_stream(id, guard, connection).into_response(start, self.executor.sessions())
    }

    /// The response to a failed request that is not JSON-RPC.
    fn http_problem(&self, problem: &Problem) -> Response {
        let failure = fault::to_error(problem, self.settings.dialect);
        let status = match problem {
            Problem::TaskNotFound => StatusCode::NOT_FOUND,
            Problem::UnsupportedVersion(_) => StatusCode::BAD_REQUEST,
            Problem::Core(_)
            | Problem::ContextMismatch
            | Problem::NotCancelable(_)
            | Problem::TakesNoMessage(_)
            | Problem::PushUnsupported
            | Problem::PushNotFound
            | Problem::NoExtendedCard
            | Problem::ContentType(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        json_response(status, serde_json::json!({ "error": failure.message }).to_string())
    }
}

/// The time at which a message is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerTime {
    /// Once it is accepted.
    AtOnce,
    /// Once its task has settled.
    Settled,
}

/// A task that accepted a message, with the call to run.
struct AcceptedMessage {
    handle: Arc<TaskHandle>,
    call: Option<Call>,
}

/// Adds a webhook; one with the same id is replaced.
fn add_webhook(record: &mut TaskRecord, config: PushConfig) -> Result<(), Problem> {
    record.webhooks.retain(|before| before.id != config.id);
    if record.webhooks.len() >= MAX_WEBHOOKS {
        return Err(Problem::invalid(
            "/pushNotificationConfig",
            &format!("the task has {MAX_WEBHOOKS} webhooks, which is the maximum: delete one first"),
        ));
    }
    record.webhooks.push(config);
    Ok(())
}

/// Checks that a task accepts this message in its current state.
fn check_accepts(record: &TaskRecord, message: &Message) -> Result<(), Problem> {
    let reject = |reason: String| Err(Problem::TakesNoMessage(reason));
    if message.context_id.as_ref().is_some_and(|context| *context != record.task.context_id) {
        return Err(Problem::ContextMismatch);
    }
    match record.state() {
        TaskState::InputRequired => {}
        state @ (TaskState::Completed | TaskState::Canceled | TaskState::Failed | TaskState::Rejected) => {
            return reject(format!("the task is {}: send a new message without a `taskId`", state.as_str()));
        }
        state @ (TaskState::Submitted | TaskState::Working) => {
            return reject(format!(
                "the task is {}, and accepts no message until it asks for one",
                state.as_str()
            ));
        }
    }
    if record.is_prompting() {
        return reject("a permission prompt is pending: answer it with `permissionOptionId`".to_owned());
    }
    if record.task.history.iter().any(|before| before.message_id == message.message_id) {
        return reject("a message with this `messageId` was sent before".to_owned());
    }
    let all = record.task.history.iter().chain([message]).collect::<Vec<_>>();
    if all.len() > MAX_MESSAGES || !fits_history(&all) {
        return reject(
            "the history of the task is too long: send a new message without a `taskId`".to_owned(),
        );
    }
    Ok(())
}

/// Returns `true` if these messages have at most [`MAX_HISTORY_BYTES`]. They are bounded because a waiting task stays
/// in memory without counting against its owner's share.
fn fits_history(messages: &[&Message]) -> bool {
    serde_json::to_string(messages).is_ok_and(|text| text.len() <= MAX_HISTORY_BYTES)
}

fn too_long_fault() -> Problem {
    let message = format!("a message that calls no tool has at most {MAX_HISTORY_BYTES} bytes");
    Fault::invalid("/params/message", message).into()
}

fn ok_response(text: String) -> Response {
    json_response(StatusCode::OK, text)
}
