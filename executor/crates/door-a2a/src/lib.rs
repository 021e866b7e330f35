//! The A2A door: `POST /a2a/rpc`, the agent card, and the governance history of a task.
//!
//! Errors of the protocol are answered with HTTP 200. A request without an `id` is answered with the id `null`, because
//! the known clients send such requests and wait for an answer.

mod cards;
mod elsewhere;
mod follow;
mod limits;
mod messages;
mod push;
mod record;
mod stream;
mod tasks;

use a2g_core::deliver::WebhookPoster;
use a2g_core::run::Executor;
use a2g_govern::Caller;
use a2g_govern::Role::{Governor, Operator};
use a2g_http::A2aSettings;
use a2g_http::connections::Connection;
use a2g_http::conversations::ConversationSessions;
use a2g_http::protocol::{AuthPolicy, ProtocolRouter};
use a2g_http::transport::events::single_event_response;
use a2g_http::transport::json::{JsonBody, json_response};
use a2g_journal::{TaskKey, TaskQuery, TaskSummary};
use a2g_types::fault::Fault;
use a2g_types::memory::Charge;
use a2g_wire::a2a::card;
use a2g_wire::a2a::decode::{self, A2aDecodeError, A2aRequest, SendParams, StreamingMethod};
use a2g_wire::a2a::fault::Problem;
use a2g_wire::a2a::page::PageToken;
use a2g_wire::a2a::{Dialect, encode, fault};
use a2g_wire::jsonrpc::Id;
use a2g_wire::strict_json::JsonBounds;
use axum::extract::{Path, Request as HttpRequest, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use cards::Cards;
use elsewhere::OtherNodes;
use follow::Follower;
use limits::{CallerLimiter, RateLimitGuard};
use messages::{AcceptedMessage, AnswerTime, Messages};
use push::Push;
use std::sync::Arc;
use std::time::Duration;
use stream::{StreamStart, TaskStream};
use tasks::{READ_ALL_ROLES, TaskStore, TaskWebhooks};

/// The header, and the parameter of the URL, in which clients of A2A 1.0 name a version.
const VERSION: &str = "a2a-version";
/// Retry delay for a request that the shutdown interrupted.
const SHUTDOWN_RETRY_MS: u64 = 1_000;

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

/// The methods of the protocol. Each asks the part that does the work, and encodes the answer.
struct A2a {
    executor: Arc<Executor>,
    dialect: Dialect,
    port: A2aPort,
    store: Arc<TaskStore>,
    messages: Messages,
    follower: Arc<Follower>,
    other_nodes: Arc<OtherNodes>,
    push: Arc<Push>,
    cards: Cards,
}

/// The encoded answer to a request.
type Answer = Result<String, Problem>;

/// Returns the routers of this door, for its authenticated paths and for the public agent card, and resumes the tasks
/// that an earlier process left open.
///
/// # Errors
/// If the journal cannot be read.
pub async fn routers(
    executor: Arc<Executor>,
    settings: A2aSettings,
    port: A2aPort,
    poster: Option<Arc<WebhookPoster>>,
) -> Result<[ProtocolRouter; 2], Fault> {
    let access = settings.door.access;
    let dialect = settings.dialect;
    let limiter = Arc::new(CallerLimiter::new(settings.limits, Arc::clone(executor.clock())));
    let cards = Cards::new(Arc::clone(&executor), &settings, &port, poster.is_some());
    let webhooks = poster.map(|poster| TaskWebhooks { poster, dialect });
    let store = Arc::new(TaskStore::new(Arc::clone(&executor), webhooks.clone()).await?);
    let push = Arc::new(Push::new(Arc::clone(&executor), Arc::clone(&store), webhooks));
    let door = Arc::new(A2a {
        messages: Messages::new(
            Arc::clone(&executor),
            settings.door,
            Arc::clone(&store),
            Arc::clone(&push),
            Arc::new(ConversationSessions::new(Arc::clone(&executor))),
        ),
        follower: Arc::new(Follower::new(Arc::clone(&executor), Arc::clone(&store))),
        other_nodes: Arc::new(OtherNodes::new(Arc::clone(&executor))),
        executor,
        dialect,
        port,
        store,
        push,
        cards,
    });
    door.follower.resume().await?;
    door.other_nodes.share_tasks(&door.store);
    let routes = Router::new()
        .route("/a2a/rpc", post(rpc))
        .route("/a2a/tasks/{task}/governor/history", get(governor_history))
        .route("/a2a/tasks/{task}/stream", get(task_stream))
        .layer(middleware::from_fn_with_state((limiter, dialect), limit_rate))
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
    door.cards.public(&uri, &headers)
}

async fn governor_history(
    State(door): State<Arc<A2a>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(task): Path<String>,
) -> Response {
    match door.store.find_for(&caller, &task, &READ_ALL_ROLES).await {
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
    let dialect = door.dialect;
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
    let url = door.cards.url(&uri, &headers);
    let request_context = RequestContext { caller, connection, guard, url, charge: body.charge() };
    // Runs in its own tokio task, because a client that disconnects must not leave an A2A task without its follower. To
    // answer in the connection's tokio task, and change to another only if the connection ends, was measured to be 20
    // µs slower.
    let answer_id = id.clone();
    let sessions = door.executor.session_tasks().clone();
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

impl A2a {
    /// Answers a request.
    async fn answer(
        &self,
        request_context: RequestContext,
        id: &Id,
        request: A2aRequest,
    ) -> Result<Response, Problem> {
        let caller = &*request_context.caller;
        let text = match request {
            A2aRequest::Send(sent) | A2aRequest::Provide { sent } => {
                self.send(&request_context, id, *sent).await?
            }
            A2aRequest::Stream(sent) => return self.send_and_follow(request_context, id, *sent).await,
            A2aRequest::Get { task, history } => self.get_task(caller, id, &task, history).await?,
            A2aRequest::List { context, limit, offset, after } => {
                let query = self.task_query(caller, context, after)?;
                self.list_tasks(id, query, limit, offset).await?
            }
            A2aRequest::Cancel { task } => self.cancel_task(caller, id, &task).await?,
            A2aRequest::Resubscribe { task } => {
                let start = self.follow_task(caller, &task).await?;
                let RequestContext { guard, connection, .. } = request_context;
                return Ok(self.stream_task(start, id.clone(), guard, &connection));
            }
            A2aRequest::Permit { task, answer } => {
                let handle = self.store.find_for(caller, &task, &READ_ALL_ROLES).await?;
                let record = self.follower.answer_prompt(caller, &handle, answer).await?;
                encode::task_response(id, &record.task, None, self.dialect)
            }
            A2aRequest::SetPush { task, config } => self.push.set(caller, id, &task, *config).await?,
            A2aRequest::GetPush { task, config } => {
                self.push.get(caller, id, &task, config.as_deref()).await?
            }
            A2aRequest::ListPush { task } => self.push.list(caller, id, &task).await?,
            A2aRequest::DeletePush { task, config } => self.push.delete(caller, id, &task, &config).await?,
            A2aRequest::ExtendedCard => self.cards.extended(id, &request_context.url)?,
        };
        Ok(ok_response(text))
    }

    async fn send(&self, request_context: &RequestContext, id: &Id, sent: SendParams) -> Answer {
        let history = sent.history;
        let answered = if sent.blocking { AnswerTime::Settled } else { AnswerTime::AtOnce };
        let RequestContext { caller, charge, .. } = request_context;
        let AcceptedMessage { handle, call } = self.messages.accept(caller, charge, sent, answered).await?;
        let record = match (call, answered) {
            (Some(call), AnswerTime::Settled) => self.follower.run_until_settled(&handle, call).await,
            (Some(call), AnswerTime::AtOnce) => {
                self.follower.start(Arc::clone(&handle), call);
                handle.record()
            }
            (None, AnswerTime::Settled | AnswerTime::AtOnce) => handle.record(),
        };
        Ok(encode::task_response(id, &record.task, history, self.dialect))
    }

    async fn send_and_follow(
        &self,
        request_context: RequestContext,
        id: &Id,
        sent: SendParams,
    ) -> Result<Response, Problem> {
        let RequestContext { caller, connection, guard, charge, .. } = request_context;
        let accepted = self.messages.accept(&caller, &charge, sent, AnswerTime::AtOnce).await?;
        let AcceptedMessage { handle, call } = accepted;
        let (record, updates) = handle.subscribe();
        if let Some(call) = call {
            self.follower.start(Arc::clone(&handle), call);
        }
        Ok(match self.dialect {
            Dialect::A2a => {
                let start = StreamStart { record, updates, waits_for_a_person: false };
                self.stream_task(start, id.clone(), guard, &connection)
            }
            Dialect::Acp => ok_response(encode::stream_response(id, &record.task.id)),
        })
    }

    async fn get_task(&self, caller: &Caller, id: &Id, task: &str, history: Option<usize>) -> Answer {
        let record = match self.store.find_for(caller, task, &READ_ALL_ROLES).await {
            Ok(handle) => handle.record(),
            Err(Problem::TaskNotFound) => {
                Arc::new(self.other_nodes.find(caller, task, &READ_ALL_ROLES).await?)
            }
            Err(problem) => return Err(problem),
        };
        Ok(encode::task_response(id, &record.task, history, self.dialect))
    }

    async fn cancel_task(&self, caller: &Caller, id: &Id, task: &str) -> Answer {
        let record = match self.store.find_for(caller, task, &[Governor, Operator]).await {
            Ok(handle) => self.follower.cancel(caller, &handle).await?,
            Err(Problem::TaskNotFound) => Arc::new(self.other_nodes.cancel(caller, task).await?),
            Err(problem) => return Err(problem),
        };
        Ok(encode::cancel_response(id, &record.task, self.dialect))
    }

    /// The query for the tasks that a caller may read. Its `limit` is still to be set.
    fn task_query(
        &self,
        caller: &Caller,
        context: Option<String>,
        after: Option<PageToken>,
    ) -> Result<TaskQuery, Problem> {
        let is_reader = caller.is_any_of(&READ_ALL_ROLES);
        let owner = if is_reader { None } else { Some(self.messages.agent_of(caller)?) };
        let unsaved = self.store.unsaved_tasks(owner.as_ref(), context.as_deref());
        let after = after.map(|PageToken { created, task }| TaskKey { created, task });
        Ok(TaskQuery { owner, context, after, limit: 0, unsaved })
    }

    /// A page of the tasks that a query selects.
    async fn list_tasks(&self, id: &Id, query: TaskQuery, limit: usize, offset: usize) -> Answer {
        // The query asks for one more task than fits the page, to learn whether there is a next page.
        let result = self.executor.journal.tasks.list(TaskQuery { limit: offset + limit + 1, ..query }).await;
        let (found, total) = result.map_err(Fault::from)?;
        let mut rest = found.into_iter().skip(offset);
        let page = rest.by_ref().take(limit).collect::<Vec<_>>();
        let next =
            rest.next().and(page.last()).map(|last| PageToken { created: last.created, task: last.task });
        let items = page.iter().map(|task| self.list_item(task)).collect::<Vec<_>>();
        Ok(encode::list_response(id, &items, total, next.as_ref()))
    }

    /// A list item with the current status of its task.
    fn list_item(&self, summary: &TaskSummary) -> serde_json::Value {
        let TaskSummary { task, context, created, status } = summary;
        let text = match self.store.get_cached(*task) {
            Some(handle) => handle.record().status_json(),
            None => status.clone(),
        };
        let current = serde_json::from_str(&text).unwrap_or_default();
        encode::list_item(&task.to_string(), context, &current, *created, self.dialect)
    }

    /// A task from its current state on. The stream stays open while the task waits for a permission.
    async fn follow_task(&self, caller: &Caller, task: &str) -> Result<StreamStart, Problem> {
        let (record, updates) = match self.store.find_for(caller, task, &READ_ALL_ROLES).await {
            Ok(handle) => handle.subscribe(),
            Err(Problem::TaskNotFound) => self.other_nodes.follow(caller, task).await?,
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
        let write_timeout = self.port.write_timeout;
        let work = connection.begin_request();
        let stream = TaskStream { id, dialect: self.dialect, write_timeout, _guard: guard, _work: work };
        stream.into_response(start, self.executor.session_tasks())
    }

    /// The response to a failed request that is not JSON-RPC.
    fn http_problem(&self, problem: &Problem) -> Response {
        let failure = fault::to_error(problem, self.dialect);
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

fn ok_response(text: String) -> Response {
    json_response(StatusCode::OK, text)
}
