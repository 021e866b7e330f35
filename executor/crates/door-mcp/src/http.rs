//! Streamable HTTP: `POST`, `GET` and `DELETE` on `/mcp`.

use super::authorization::{Authorization, KnownCaller};
use super::session::Sessions;
use super::{MAX_UNREAD_NOTIFICATIONS, McpDoor, RequestContext};
use a2g_core::run::Executor;
use a2g_govern::Caller;
use a2g_http::CheckedHost;
use a2g_http::ConsoleUrl;
use a2g_http::McpSettings;
use a2g_http::connections::{Connection, RequestGuard};
use a2g_http::protocol::{AuthPolicy, ProtocolRouter};
use a2g_http::transport::events::event_response;
use a2g_http::transport::json::{JsonBody, json_response};
use a2g_types::fault::Fault;
use a2g_types::ident::ToolName;
use a2g_types::memory::Charge;
use a2g_wire::jsonrpc::Id;
use a2g_wire::mcp::decode::{
    self, ClientMessage, ClientNotification, ClientRequest, McpDecodeError, McpRequest,
};
use a2g_wire::mcp::elicit::Decider;
use a2g_wire::mcp::fault::McpError;
use a2g_wire::mcp::headers::{self, HeaderValues};
use a2g_wire::mcp::{ClientCapabilities, Revision};
use a2g_wire::strict_json::JsonBounds;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use futures_util::Stream;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::mpsc;

pub(super) const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) const LAST_EVENT_HEADER: HeaderName = HeaderName::from_static("last-event-id");

/// Maximum number of open notification streams of one caller. Each keeps its connection from counting as idle.
const MAX_STREAMS_PER_CALLER: usize = 64;

struct McpHttp {
    door: Arc<McpDoor>,
    /// The number of open notification streams, by the name of the caller.
    streams: Arc<Mutex<HashMap<String, usize>>>,
    sessions: Arc<Sessions>,
    authorization: Arc<Authorization>,
}

/// The routers of this door: its own path, and the metadata that anybody may read. Also spawns the task that ends idle
/// sessions.
#[must_use]
pub fn routers(
    executor: Arc<Executor>,
    settings: McpSettings,
    bounds: JsonBounds,
    console_url: ConsoleUrl,
) -> Vec<ProtocolRouter> {
    let access = settings.door.access;
    let authorization = Arc::new(Authorization::new(&settings));
    let sessions = Sessions::new(Arc::clone(&executor), &settings);
    let door = McpDoor::new(
        executor,
        settings.door,
        settings.listing,
        bounds,
        Decider::Approver,
        console_url,
        false,
    );
    let door = Arc::new(door);
    let metadata = authorization.router();
    let state = Arc::new(McpHttp {
        door,
        streams: Arc::default(),
        sessions,
        authorization: Arc::clone(&authorization),
    });
    let routes = Router::new()
        .route("/mcp", post(receive).get(listen_to_session).delete(end_session))
        .with_state(state)
        .layer(Extension(authorization));
    vec![ProtocolRouter { routes, auth: AuthPolicy::Delegated(access) }, metadata]
}

/// The headers of a request.
struct Headers<'a>(&'a HeaderMap);

impl HeaderValues for Headers<'_> {
    fn single(&self, name: &str) -> Result<Option<&str>, McpError> {
        let mut values = self.0.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => match value.to_str() {
                Ok(value) => Ok(Some(value.trim())),
                Err(_not_ascii) => Err(McpError::HeaderMismatch(format!("`{name}` is not visible ASCII"))),
            },
            (Some(_), Some(_)) => Err(McpError::HeaderMismatch(format!("`{name}` is sent twice"))),
        }
    }
}

/// The caller and the connection of a request.
struct Sender {
    caller: Arc<Caller>,
    charge: Charge,
    work: RequestGuard,
    accepts_events: bool,
}

fn error_response(error: &McpError, id: Option<&Id>, revision: Revision) -> Response {
    let status = StatusCode::from_u16(error.http_status(revision)).unwrap_or(StatusCode::BAD_REQUEST);
    json_response(status, error.response(id))
}

async fn receive(
    State(state): State<Arc<McpHttp>>,
    KnownCaller(caller): KnownCaller,
    Extension(connection): Extension<Arc<Connection>>,
    Extension(host): Extension<CheckedHost>,
    headers: HeaderMap,
    JsonBody(body): JsonBody,
) -> Response {
    let message = match body.text(&state.door.bounds) {
        Ok(text) => decode::message(text),
        Err(fault) => Err(fault.into()),
    };
    let request = match message {
        Ok(ClientMessage::Request(request)) => request,
        Ok(ClientMessage::Notification(notification)) => {
            return match state.sessions.named(&Headers(&headers), &caller) {
                Ok(session) => {
                    if let (Some(session), ClientNotification::Cancelled(id)) = (session, notification) {
                        session.cancel(&id);
                    }
                    StatusCode::ACCEPTED.into_response()
                }
                Err(error) => error_response(&error, None, Revision::Session),
            };
        }
        Ok(ClientMessage::Answer { id, answer }) => {
            return match state.sessions.named(&Headers(&headers), &caller) {
                Ok(Some(session)) if session.questions().answer(&id, answer, &caller) => {
                    StatusCode::ACCEPTED.into_response()
                }
                Ok(_) => {
                    let message =
                        "there is no request of this server with this id, so there is nothing to answer";
                    let fault = Fault::InvalidRequest(message.to_owned());
                    error_response(&fault.into(), None, Revision::Session)
                }
                Err(error) => error_response(&error, None, Revision::Session),
            };
        }
        Err(McpDecodeError { id, error }) => {
            return error_response(&error, id.as_ref(), Revision::Stateless);
        }
    };
    let sender = Sender {
        caller,
        charge: body.charge(),
        work: connection.begin_request(),
        accepts_events: accepts_events(&headers),
    };
    if let Some(tool) = request.called_tool()
        && !state.door.describes(&tool)
        && let Ok(tool) = ToolName::parse(&tool)
        && !sender.caller.tools().includes(&tool)
    {
        return state.authorization.refuse_scope(&state.door.executor, &tool, &host);
    }
    let id = request.id.clone();
    match select_revision(&request, &Headers(&headers)) {
        Ok(Revision::Stateless) => match state.answer_stateless(request, &headers, sender).await {
            Ok(response) => response,
            Err(error) => error_response(&error, Some(&id), Revision::Stateless),
        },
        Ok(Revision::Session) => match state.answer_in_session(request, &headers, sender).await {
            Ok(response) => response,
            Err(error) => error_response(&error, Some(&id), Revision::Session),
        },
        Err(error) => error_response(&error, Some(&id), Revision::Stateless),
    }
}

/// The revision of a request, by its method, its `_meta` and its headers.
fn select_revision(request: &ClientRequest<'_>, headers: &Headers<'_>) -> Result<Revision, McpError> {
    if request.meta.version.is_some() {
        return Ok(Revision::Stateless);
    }
    if request.method == "initialize" || headers.single(SESSION_HEADER.as_str())?.is_some() {
        return Ok(Revision::Session);
    }
    match headers.single(headers::PROTOCOL_VERSION)? {
        Some(version) if decode::is_session_version(version) => Err(McpError::SessionRequired),
        Some(_) | None => Ok(Revision::Stateless),
    }
}

/// Returns `true` if the client reads server-sent events. A client without an `Accept` header accepts everything.
fn accepts_events(headers: &HeaderMap) -> bool {
    let mut accepted =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).peekable();
    accepted.peek().is_none()
        || accepted
            .any(|value| ["text/event-stream", "text/*", "*/*"].iter().any(|kind| value.contains(kind)))
}

impl McpHttp {
    async fn answer_stateless(
        &self,
        request: ClientRequest<'_>,
        headers: &HeaderMap,
        sender: Sender,
    ) -> Result<Response, McpError> {
        let names = Headers(headers);
        if request.meta.version.is_some() {
            headers::check(&names, &request)?;
        }
        let capabilities = request.stateless_capabilities()?;
        let decoded = request.decode(Revision::Stateless)?;
        if let McpRequest::CallTool(call) = &decoded {
            let tools = self.door.executor.catalogue.tools();
            let agent = self.door.agent_of(&sender.caller)?;
            if let Some(tool) = tools.iter().find(|tool| tool.name.as_str() == call.tool)
                && self.door.may_see(&sender.caller, &agent, &tool.name)
            {
                headers::check_arguments(&names, &tool.arguments_schema, &call.arguments)?;
            }
        }
        let ClientRequest { id, meta, .. } = request;
        let Sender { caller, charge, work, accepts_events } = sender;
        let wants_events = meta.progress_token.is_some() || meta.log_level.is_some();
        let is_streamed = accepts_events && wants_events && matches!(decoded, McpRequest::CallTool(_));
        let (notifications, unread) = mpsc::channel(MAX_UNREAD_NOTIFICATIONS);
        let context = RequestContext {
            revision: Revision::Stateless,
            id,
            caller,
            log_level: meta.log_level,
            meta,
            capabilities,
            charge,
            notifications: is_streamed.then_some(notifications),
            elicitor: None,
        };
        if let McpRequest::Listen(filter) = decoded {
            decode::check_subscription(&filter, capabilities)?;
            let place = self.open_stream(&context.caller)?;
            let messages = Arc::clone(&self.door).subscribe(context, filter).await;
            return Ok(event_stream(hold(messages, (place, work))));
        }
        if !is_streamed {
            // Dropped when the client closes the connection, which cancels its call.
            let text = self.door.answer(context, decoded).await?;
            return Ok(json_response(StatusCode::OK, text));
        }
        let door = Arc::clone(&self.door);
        let answer = async move {
            let id = context.id.clone();
            door.answer(context, decoded).await.unwrap_or_else(|error| error.response(Some(&id)))
        };
        Ok(event_stream(hold(notifications_then_answer(unread, answer), work)))
    }

    async fn answer_in_session(
        &self,
        request: ClientRequest<'_>,
        headers: &HeaderMap,
        sender: Sender,
    ) -> Result<Response, McpError> {
        let decoded = request.decode(Revision::Session)?;
        let ClientRequest { id, meta, .. } = request;
        let Sender { caller, charge, work, accepts_events } = sender;
        let context = RequestContext {
            revision: Revision::Session,
            id,
            caller: Arc::clone(&caller),
            meta,
            capabilities: ClientCapabilities::default(),
            log_level: None,
            charge,
            notifications: None,
            elicitor: None,
        };
        if let McpRequest::Initialize { capabilities, .. } = &decoded {
            let session = self.sessions.open(&caller, *capabilities)?;
            let text = self.door.answer(context, decoded).await?;
            let mut response = json_response(StatusCode::OK, text);
            if let Ok(value) = HeaderValue::from_str(session.id()) {
                response.headers_mut().insert(SESSION_HEADER, value);
            }
            return Ok(response);
        }
        let names = Headers(headers);
        if let Some(version) = names.single(headers::PROTOCOL_VERSION)?
            && !decode::is_session_version(version)
        {
            return Err(McpError::UnsupportedVersion(version.to_owned()));
        }
        let session = self.sessions.named(&names, &caller)?.ok_or(McpError::SessionRequired)?;
        if let McpRequest::SetLogLevel(level) = &decoded {
            session.set_log_level(*level);
        }
        let is_call = matches!(decoded, McpRequest::CallTool(_));
        if !(is_call && accepts_events) {
            let text = session.answer(&self.door, context, decoded).await?;
            return Ok(json_response(StatusCode::OK, text));
        }
        let events = session.answer_on_stream(&self.door, context, decoded)?;
        Ok(resumable_event_stream(hold(events, work)))
    }

    /// Counts a notification stream until the returned value is dropped.
    ///
    /// # Errors
    /// If the caller has [`MAX_STREAMS_PER_CALLER`].
    fn open_stream(&self, caller: &Caller) -> Result<StreamPlace, McpError> {
        let mut streams = self.streams.lock();
        let count = streams.entry(caller.name().to_owned()).or_default();
        if *count >= MAX_STREAMS_PER_CALLER {
            let message =
                format!("you have {MAX_STREAMS_PER_CALLER} streams of notifications: close one of them");
            return Err(super::busy_fault(message).into());
        }
        *count += 1;
        Ok(StreamPlace { streams: Arc::clone(&self.streams), caller: caller.name().to_owned() })
    }
}

/// `GET /mcp`: the messages of a session that belong to no request, or the rest of a stream that broke.
async fn listen_to_session(
    State(state): State<Arc<McpHttp>>,
    KnownCaller(caller): KnownCaller,
    Extension(connection): Extension<Arc<Connection>>,
    headers: HeaderMap,
) -> Response {
    let session = match state.sessions.named(&Headers(&headers), &caller) {
        Ok(Some(session)) => session,
        Ok(None) => return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")]).into_response(),
        Err(error) => return error_response(&error, None, Revision::Session),
    };
    let work = connection.begin_request();
    let last = headers.get(LAST_EVENT_HEADER).and_then(|value| value.to_str().ok());
    match last {
        None => match state.open_stream(&caller) {
            Ok(place) => event_stream(hold(session.notifications(&state.door, &caller), (place, work))),
            Err(error) => error_response(&error, None, Revision::Session),
        },
        Some(last) => match session.resume(last) {
            Some(events) => resumable_event_stream(hold(events, work)),
            None => {
                let message = "`Last-Event-ID` names no event that can be sent again: repeat the request\n";
                (StatusCode::BAD_REQUEST, message).into_response()
            }
        },
    }
}

/// `DELETE /mcp`: ends a session and cancels its calls.
async fn end_session(
    State(state): State<Arc<McpHttp>>,
    KnownCaller(caller): KnownCaller,
    headers: HeaderMap,
) -> Response {
    match state.sessions.end(&Headers(&headers), &caller) {
        Ok(true) => StatusCode::NO_CONTENT.into_response(),
        Ok(false) => (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")]).into_response(),
        Err(error) => error_response(&error, None, Revision::Session),
    }
}

/// Notifications as they arrive, then the answer. Dropping the stream drops the answer's future, which cancels its
/// call.
fn notifications_then_answer(
    unread: mpsc::Receiver<String>,
    answer: impl Future<Output = String> + Send + 'static,
) -> impl Stream<Item = String> + Send {
    enum Progress<F> {
        Running(mpsc::Receiver<String>, Pin<Box<F>>),
        Answered(mpsc::Receiver<String>, String),
        Done,
    }
    futures_util::stream::unfold(Progress::Running(unread, Box::pin(answer)), async |progress| match progress
    {
        Progress::Running(mut unread, mut answer) => {
            let text = tokio::select! {
                biased;
                Some(text) = unread.recv() => return Some((text, Progress::Running(unread, answer))),
                text = &mut answer => text,
            };
            // Sent before the answer was ready.
            match unread.try_recv() {
                Ok(notification) => Some((notification, Progress::Answered(unread, text))),
                Err(_none) => Some((text, Progress::Done)),
            }
        }
        Progress::Answered(mut unread, text) => match unread.try_recv() {
            Ok(notification) => Some((notification, Progress::Answered(unread, text))),
            Err(_none) => Some((text, Progress::Done)),
        },
        Progress::Done => None,
    })
}

/// A counted notification stream.
struct StreamPlace {
    streams: Arc<Mutex<HashMap<String, usize>>>,
    caller: String,
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut streams = self.streams.lock();
        if let Some(count) = streams.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                streams.remove(&self.caller);
            }
        }
    }
}

/// Keeps `held` until the stream ends: its connection counts as busy, and is not evicted.
fn hold<T>(
    stream: impl Stream<Item = T> + Send + 'static,
    held: impl Send + 'static,
) -> impl Stream<Item = T> + Send {
    futures_util::StreamExt::map(stream, move |item| {
        let _held = &held;
        item
    })
}

/// A response of events without ids.
fn event_stream(texts: impl Stream<Item = String> + Send + 'static) -> Response {
    without_buffering(event_response(texts))
}

/// A response of events with ids, after each of which a client can resume.
fn resumable_event_stream(events: impl Stream<Item = (String, String)> + Send + 'static) -> Response {
    without_buffering(a2g_http::transport::events::numbered_event_response(events))
}

/// Tells proxies not to collect events before they pass them on.
fn without_buffering(mut response: Response) -> Response {
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
