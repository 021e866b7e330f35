//! HTTP and WebSocket on one port, for all doors.
//!
//! `POST /jsonrpc`, WebSocket `/jsonrpc`, `GET /metrics`, `GET /health`, and the paths of each [`ProtocolRouter`]. Requests
//! with a foreign `Host` or `Origin` are refused, so that no web page can reach a loopback port, and so are
//! unauthenticated ones. The caller is authenticated again with every message of a WebSocket and every chunk of a
//! streamed answer. The port does that for all doors, because a door could forget it.

use super::answers;
use super::connections::{self, Connection, ConnectionLimits, Connections, PeerCertNames};
use super::listen::{ListenAddress, Listener};
use super::protocol::{
    AuthPolicy, BufferedBody, DoorAccess, NO_ROOM, NO_SHARE, ProtocolRouter, SMALL_MESSAGE_BYTES,
    SelfReauthenticating, charge,
};
use super::rpc::{Followups, Rpc, RpcAnswer};
use super::tls::Tls;
use a2g_core::run::Executor;
use a2g_govern::{AuthError, Caller, Callers, Credential, Role};
use a2g_journal::Condition;
use a2g_metrics::{CallerMetrics, MEDIA_TYPE};
use a2g_runtime::spawn::SessionTasks;
use a2g_runtime::timer_now;
use a2g_types::clock::Clock;
use a2g_types::log_limiter::LogLimiter;
use a2g_types::memory::{self, Charge, HeldBytes};
use a2g_types::rate_limit::{RateLimit, RateState};
use a2g_wire::strict_json::JsonBounds;
use axum::Extension;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http_body::Frame;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::{Semaphore, broadcast, mpsc};

/// The answer to a request without valid credentials.
pub(super) const UNAUTHENTICATED: &str =
    "show a token that this executor knows, as `Authorization: Bearer …`: see `a2g-executor caller`\n";
/// Another header for a token, at the doors whose protocols have it.
const API_KEY: &str = "x-api-key";
/// The scheme before a token, in lower case.
const BEARER: &[u8] = b"bearer ";

/// Bytes of a client's frame besides its content: a header of two, and a mask of four.
pub(super) const MIN_FRAME_BYTES: usize = 6;
/// Pings of one WebSocket, each of which is answered, also when no answer is taken: at most 20 in any second.
const PING_BURST: NonZeroU32 = NonZeroU32::new(10).unwrap();
const PING_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes that wait to be written to one WebSocket: the longest answer, and no more.
const MAX_UNREAD_BYTES: usize = 64 << 20;
/// Read buffer of a WebSocket. The library zeroes it before each read, so a larger one takes time and stays resident
/// for as long as the connection is open. It grows for a longer message.
const READ_AT_ONCE: usize = 8 << 10;
/// Messages of one WebSocket that are handled at once; further ones are not read until one is done.
pub(super) const MAX_CONCURRENT: usize = 64;

/// The list of callers, shared by all doors and by the reload.
#[derive(Debug, Clone)]
pub struct CallerDirectory {
    callers: Arc<RwLock<Arc<Callers>>>,
    metrics: CallerMetrics,
    /// Limits the log: an unauthenticated client could otherwise fill it.
    lines: Arc<LogLimiter>,
}

impl CallerDirectory {
    /// Starts with this list.
    #[must_use]
    pub fn new(callers: Callers) -> Self {
        Self {
            callers: Arc::new(RwLock::new(Arc::new(callers))),
            metrics: CallerMetrics::default(),
            lines: Arc::default(),
        }
    }

    /// Replaces the list, from the next message on.
    pub fn replace(&self, callers: Callers) {
        *self.callers.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(callers);
    }

    /// Authenticates a credential at a time. The reason of a failure is logged, and never sent to the client. The
    /// result is not cached: it would have to be invalidated by a reload and by a token's `exp`.
    pub(super) fn identify(&self, credential: &Credential, at: OffsetDateTime) -> Option<Arc<Caller>> {
        self.current().identify(credential, at).map_err(|reason| self.log_rejection(&reason)).ok()
    }

    /// Returns `true` if the credential still identifies the same caller with the same rights.
    fn is_still_valid(&self, caller: &Caller, credential: &Credential, at: OffsetDateTime) -> bool {
        self.current().identify(credential, at).is_ok_and(|now| *now == *caller)
    }

    fn metrics(&self) -> &CallerMetrics {
        &self.metrics
    }

    fn log_rejection(&self, reason: &AuthError) {
        self.metrics.count_unauthenticated();
        if let AuthError::Token(refusal) = reason {
            self.metrics.count_rejected_token(refusal.as_str());
        }
        let Some(left_out) = self.lines.try_acquire(timer_now().into_std()) else { return };
        if left_out > 0 {
            tracing::info!(
                left_out,
                "authentication failures were left out of the log: too many in one second"
            );
        }
        tracing::info!(%reason, "authentication failed");
    }

    fn current(&self) -> Arc<Callers> {
        Arc::clone(&self.callers.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Settings of the HTTP port.
pub struct HttpSettings {
    /// `Host` names beside loopback names and the address listened on.
    pub allowed_hosts: Vec<String>,
    /// `Origin` values; a request without one is accepted.
    pub allowed_origins: Vec<String>,
    /// The list of callers.
    pub callers: CallerDirectory,
    /// The time at which credentials are checked.
    pub clock: Arc<dyn Clock>,
    /// TLS, if the port speaks it.
    pub tls: Option<Arc<Tls>>,
    /// Limits for connections.
    pub connections: ConnectionLimits,
    /// Messages to every WebSocket, if there are any.
    pub pushes: Option<broadcast::Sender<Arc<str>>>,
    /// The source of `GET /metrics` and `GET /health`, if there is one.
    pub executor: Option<Arc<Executor>>,
    /// The tasks of the sessions, which the owner of the server ends.
    pub sessions: SessionTasks,
    /// The routers of other protocols.
    pub protocols: Vec<ProtocolRouter>,
}

/// Wraps the paths of a protocol in its authentication. Their handlers find the body in the request's extensions.
fn protect(
    ProtocolRouter { routes, auth }: ProtocolRouter,
    state: &Arc<ServerState>,
) -> Router<Arc<ServerState>> {
    let (access, rejected_by) = match auth {
        AuthPolicy::Required(access) => (access, RejectedBy::Port),
        AuthPolicy::Delegated(access) => (access, RejectedBy::Door),
        AuthPolicy::Public => return routes.with_state(()),
    };
    let state = (Arc::clone(state), access, rejected_by);
    routes.layer(middleware::from_fn_with_state(state, buffer_body)).with_state(())
}

/// A bound listener that does not serve yet.
pub struct HttpServer {
    listener: Listener,
    address: ListenAddress,
    router: Router,
    state: Arc<ServerState>,
}

struct ServerState {
    rpc: Rpc,
    settings: HttpSettings,
    connections: Arc<Connections>,
    listens_on: Option<IpAddr>,
}

impl HttpServer {
    /// Binds an address.
    ///
    /// # Ambient Authority
    /// Binds the port, or creates the socket.
    ///
    /// # Errors
    /// If it cannot be bound.
    pub async fn bind(address: &ListenAddress, rpc: Rpc, settings: HttpSettings) -> std::io::Result<Self> {
        let (listener, address) = Listener::bind(address).await?;
        let mut settings = settings;
        let protocols = std::mem::take(&mut settings.protocols);
        let (connections, listens_on) = (Arc::default(), address.ip());
        let state = Arc::new(ServerState { rpc, settings, connections, listens_on });
        let own = Router::new()
            .route("/jsonrpc", get(upgrade).post(post))
            .route("/metrics", get(metrics))
            .layer(middleware::from_fn_with_state(Arc::clone(&state), require_auth));
        let router = protocols
            .into_iter()
            .fold(own, |all, protocol| all.merge(protect(protocol, &state)))
            .layer(middleware::from_fn_with_state(Arc::clone(&state), check_host_and_origin))
            .route("/health", get(health))
            .with_state(Arc::clone(&state));
        Ok(Self { listener, address, router, state })
    }

    /// The URL that it listens on; a Unix socket as `unix:` and its path.
    #[must_use]
    pub fn url(&self) -> String {
        match (&self.address, &self.state.settings.tls) {
            (ListenAddress::Tcp(address), None) => format!("http://{address}/jsonrpc"),
            (ListenAddress::Tcp(address), Some(_)) => format!("https://{address}/jsonrpc"),
            (ListenAddress::Unix(_), _) => self.address.to_string(),
        }
    }

    /// Serves until `stop` resolves, and then until open requests are answered.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let ServerState { settings: HttpSettings { connections: limits, tls, .. }, connections, .. } =
            &*self.state;
        let connections = Arc::clone(connections);
        connections::serve(self.listener, self.router, connections, *limits, tls.clone(), stop).await;
    }
}

/// Reports if calls can be run: they cannot while the journal accepts no writes.
async fn health(State(state): State<Arc<ServerState>>) -> impl IntoResponse {
    let condition = state.settings.executor.as_ref().map(|executor| executor.journal().condition());
    let (status, text) = match condition {
        None | Some(Condition::Works) => (StatusCode::OK, r#"{"status":"ok"}"#),
        Some(Condition::Full) => (
            StatusCode::SERVICE_UNAVAILABLE,
            r#"{"status":"unavailable","reason":"the journal has no room on its disk, or another program holds its file"}"#,
        ),
        Some(Condition::Broken(_)) => {
            (StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"unavailable","reason":"the journal is broken"}"#)
        }
    };
    (status, [(header::CONTENT_TYPE, "application/json")], text)
}

/// Metrics as text for Prometheus, for operators only.
async fn metrics(
    State(state): State<Arc<ServerState>>,
    Extension(caller): Extension<Arc<Caller>>,
) -> Response {
    let Some(executor) = &state.settings.executor else { return StatusCode::NOT_FOUND.into_response() };
    if !caller.is_any_of(&[Role::Operator]) {
        return (StatusCode::FORBIDDEN, "metrics are for callers with the role `operator`\n").into_response();
    }
    match executor.render_metrics(state.connections.count(), state.settings.callers.metrics()).await {
        Ok(text) => ([(header::CONTENT_TYPE, MEDIA_TYPE)], text).into_response(),
        Err(fault) => {
            tracing::error!(?fault, "the metrics cannot be collected");
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}

async fn post(
    State(state): State<Arc<ServerState>>,
    Extension(connection): Extension<Arc<Connection>>,
    Extension(credential): Extension<Credential>,
    Extension(caller): Extension<Arc<Caller>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    if !is_json(&headers) {
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, "send `Content-Type: application/json`\n")
            .into_response();
    }
    let body = match read_body(body, &state, &caller).await {
        Ok(body) => body,
        Err(refusal) => return *refusal,
    };
    // Authenticated again: the credential may have expired or been removed while the body arrived.
    let Some(caller) = state.caller(&credential) else { return unauthorized(&credential) };
    connection.mark_authenticated();
    let _work = connection.begin_request();
    let answer = match body {
        Some(bytes) => state.rpc.answer(&bytes, &caller).await,
        None => Some(state.rpc.too_long()),
    };
    match answer {
        Some(answer) => {
            let RpcAnswer { text, held } = answer;
            let answer = ([(header::CONTENT_TYPE, "application/json")], text).into_response();
            answers::hold_until_written(answer, held)
        }
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

async fn upgrade(
    State(state): State<Arc<ServerState>>,
    Extension(connection): Extension<Arc<Connection>>,
    Extension(credential): Extension<Credential>,
    Extension(caller): Extension<Arc<Caller>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return reject_upgrade(rejection),
    };
    connection.mark_authenticated();
    connection.partial_message.set_caller(caller.name());
    let sessions = state.settings.sessions.clone();
    with_limits(upgrade, state.rpc.bounds()).on_upgrade(async move |socket| {
        let conversation = async {
            tokio::select! {
                () = serve_websocket(state, Arc::clone(&connection), &credential, socket) => {}
                () = connection.wait_for_eviction() => {}
            }
        };
        sessions.adopt(conversation).await;
    })
}

/// The answer to a plain `GET` or `HEAD` on a WebSocket path, the same for both.
pub(super) fn reject_upgrade(rejection: WebSocketUpgradeRejection) -> Response {
    let asks_for_none = matches!(
        rejection,
        WebSocketUpgradeRejection::MethodNotGet(_)
            | WebSocketUpgradeRejection::InvalidConnectionHeader(_)
            | WebSocketUpgradeRejection::InvalidUpgradeHeader(_)
    );
    if !asks_for_none {
        return rejection.into_response();
    }
    let head = [(header::UPGRADE, "websocket"), (header::CONNECTION, "upgrade")];
    let message = "this is a WebSocket: ask with `Upgrade: websocket`, or send messages with `POST`\n";
    (StatusCode::UPGRADE_REQUIRED, head, message).into_response()
}

/// Applies the limits that hold at every door.
pub(super) fn with_limits(upgrade: WebSocketUpgrade, bounds: &JsonBounds) -> WebSocketUpgrade {
    let most = bounds.max_bytes;
    let upgrade = upgrade.read_buffer_size(READ_AT_ONCE).max_write_buffer_size(MAX_UNREAD_BYTES);
    upgrade.max_message_size(most).max_frame_size(most)
}

/// Serves one WebSocket. Messages are answered as they complete, in any order. Dropping this future releases everything
/// that the connection holds.
async fn serve_websocket(
    state: Arc<ServerState>,
    connection: Arc<Connection>,
    credential: &Credential,
    socket: WebSocket,
) {
    let (sink, stream) = socket.split();
    let (answers, outgoing) = mpsc::channel(MAX_CONCURRENT);
    let (known, sink) = tokio::join!(
        read_messages(Arc::clone(&state), connection, credential, stream, answers),
        write_messages(&state, sink, outgoing)
    );
    if let (false, Some(mut sink)) = (known, sink) {
        let frame = CloseFrame { code: close_code::POLICY, reason: UNAUTHENTICATED.trim_end().into() };
        let _nobody_reads = sink.send(Message::Close(Some(frame))).await;
    }
}

/// Reads messages until the peer closes or the writer has ended, or until the caller is no longer authenticated: only
/// then it returns `false`.
async fn read_messages(
    state: Arc<ServerState>,
    connection: Arc<Connection>,
    credential: &Credential,
    mut stream: SplitStream<WebSocket>,
    answers: mpsc::Sender<OutgoingMessage>,
) -> bool {
    let places = Arc::new(Semaphore::new(MAX_CONCURRENT));
    let mut pings = PingLimiter::default();
    loop {
        let message = tokio::select! {
            message = stream.next() => message,
            () = answers.closed() => return true,
        };
        let bytes = match message {
            Some(Ok(Message::Text(text))) => Bytes::from(text),
            Some(Ok(Message::Binary(bytes))) => bytes,
            Some(Ok(Message::Ping(sent))) if pings.acquire(&*state.settings.clock) => {
                connection.partial_message.subtract(sent.len() + MIN_FRAME_BYTES);
                continue;
            }
            Some(Ok(Message::Pong(sent))) => {
                connection.partial_message.subtract(sent.len() + MIN_FRAME_BYTES);
                continue;
            }
            Some(Ok(Message::Ping(_) | Message::Close(_)) | Err(_)) | None => return true,
        };
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return true };
        // Authenticated after the wait for a permit, which the peer can make as long as it likes.
        let Some(caller) = state.caller(credential) else { return false };
        connection.partial_message.complete();
        let (state, answers, work) = (Arc::clone(&state), answers.clone(), connection.begin_request());
        state.settings.sessions.clone().spawn(async move {
            let followups = Arc::new(Followups::default());
            let answer = state.rpc.answer_with_followups(&bytes, &caller, &followups).await;
            // Dropped before the answer is sent: a client that does not read its answers has an idle connection.
            drop(work);
            let answer = answer.map(|RpcAnswer { text, held }| (Arc::from(text), held));
            let followups = followups.take().into_iter().map(|message| (message, Vec::new()));
            for message in answer.into_iter().chain(followups) {
                let _nobody_reads = answers.send(message).await;
            }
            drop(place);
        });
    }
}

/// An answer with its memory charge.
type OutgoingMessage = (Arc<str>, Vec<HeldBytes>);

/// Writes answers and pushes until there are no more; `None` if the peer does not read them in time.
async fn write_messages(
    state: &ServerState,
    mut sink: SplitSink<WebSocket, Message>,
    mut outgoing: mpsc::Receiver<OutgoingMessage>,
) -> Option<SplitSink<WebSocket, Message>> {
    let mut pushes = state.settings.pushes.as_ref().map(broadcast::Sender::subscribe);
    loop {
        let (text, _held) = tokio::select! {
            answer = outgoing.recv() => match answer {
                Some(answer) => answer,
                None => return Some(sink),
            },
            pushed = next_push(&mut pushes) => (pushed, Vec::new()),
        };
        let sent = sink.send(Message::text(&*text));
        if !matches!(tokio::time::timeout(state.settings.connections.request_timeout, sent).await, Ok(Ok(())))
        {
            return None;
        }
    }
}

/// The limiter of the pings of one WebSocket.
#[derive(Default)]
pub(super) struct PingLimiter(RateState);

impl PingLimiter {
    /// Counts one ping; `false` when it is one too many.
    pub(super) fn acquire(&mut self, clock: &dyn Clock) -> bool {
        self.0.acquire(RateLimit::new(PING_BURST, PING_INTERVAL), clock.monotonic()).is_ok()
    }
}

async fn next_push(pushes: &mut Option<broadcast::Receiver<Arc<str>>>) -> Arc<str> {
    loop {
        match pushes {
            None => std::future::pending::<()>().await,
            Some(receiver) => match receiver.recv().await {
                Ok(pushed) => return pushed,
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "pushed messages are dropped: a connection reads too slowly");
                }
                Err(broadcast::error::RecvError::Closed) => *pushes = None,
            },
        }
    }
}

pub(super) fn is_json(headers: &HeaderMap) -> bool {
    media_type(headers) == "application/json"
}

/// The media type of a body in lower case, without its parameters; empty without a `Content-Type`.
pub(super) fn media_type(headers: &HeaderMap) -> String {
    let essence = |value: &str| value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let said = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    said.map(essence).unwrap_or_default()
}

/// Middleware that refuses unauthenticated requests, and gives handlers the caller and its credential.
async fn require_auth(State(state): State<Arc<ServerState>>, mut request: Request, next: Next) -> Response {
    let credential = read_credential(&request, token(request.headers()));
    let Some(caller) = state.caller(&credential) else { return unauthorized(&credential) };
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(credential);
    next.run(request).await
}

/// As [`require_auth`], for the doors of other protocols: a token may also be in `X-API-Key`. The body is read as
/// well, and the caller authenticated again after it, so that a handler gets the whole body with a current caller.
async fn buffer_body(
    State((state, access, rejected_by)): State<(Arc<ServerState>, DoorAccess, RejectedBy)>,
    Extension(connection): Extension<Arc<Connection>>,
    request: Request,
    next: Next,
) -> Response {
    let credential = read_credential(&request, token_or_key(request.headers()));
    let caller = || match access {
        DoorAccess::Callers => state.caller(&credential),
        DoorAccess::Public => Some(Arc::new(Caller::any_agent())),
    };
    let (mut head, body) = request.into_parts();
    let (caller, body) = match caller() {
        None => (None, BufferedBody::Whole(Bytes::new(), Charge::default())),
        Some(sender) => match read_body(body, &state, &sender).await {
            Ok(body) => (caller(), charge_body(body, &sender)),
            Err(refusal) => return *refusal,
        },
    };
    let extensions = &mut head.extensions;
    match (&caller, rejected_by) {
        (None, RejectedBy::Port) => return unauthorized(&credential),
        (Some(caller), RejectedBy::Port) => drop(extensions.insert(Arc::clone(caller))),
        (caller, RejectedBy::Door) => drop(extensions.insert(Option::clone(caller))),
    }
    if caller.is_some() {
        connection.mark_authenticated();
    }
    let _work = connection.begin_request();
    extensions.insert(credential.clone());
    extensions.insert(body);
    let mut answer = next.run(Request::from_parts(head, Body::empty())).await;
    if let Some(caller) = &caller {
        answer = answers::charge(caller, answer);
    }
    let is_whole = answer.body().size_hint().exact().is_some();
    let revalidates_itself = answer.extensions().get::<SelfReauthenticating>().is_some();
    match (caller, access) {
        (Some(caller), DoorAccess::Callers) if !(is_whole || revalidates_itself) => {
            answer.map(|pieces| Body::new(RevalidatingBody { pieces, state, credential, caller }))
        }
        (Some(_) | None, DoorAccess::Callers | DoorAccess::Public) => answer,
    }
}

/// The side that answers an unauthenticated request.
#[derive(Debug, Clone, Copy)]
enum RejectedBy {
    Port,
    Door,
}

/// A streamed answer, such as events. It is aborted once its caller is no longer authenticated or has other rights than
/// before, so that the client sees that something is missing. A new request gets what the caller may then see.
struct RevalidatingBody {
    pieces: Body,
    state: Arc<ServerState>,
    credential: Credential,
    caller: Arc<Caller>,
}

impl HttpBody for RevalidatingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let piece = ready!(Pin::new(&mut self.pieces).poll_frame(cx));
        let HttpSettings { callers, clock, .. } = &self.state.settings;
        if piece.is_none() || callers.is_still_valid(&self.caller, &self.credential, clock.now()) {
            return Poll::Ready(piece);
        }
        tracing::info!(
            caller = self.caller.name(),
            "a streamed answer is aborted: its caller is no longer authenticated, or has other rights"
        );
        Poll::Ready(Some(Err(axum::Error::new("the caller is no longer authenticated"))))
    }
}

fn charge_body(body: Option<Bytes>, sender: &Caller) -> BufferedBody {
    let Some(body) = body else { return BufferedBody::TooLong };
    match charge(sender.name(), &body) {
        Ok(charge) => BufferedBody::Whole(body, charge),
        Err(fault) => BufferedBody::NoRoom(fault),
    }
}

/// Reads a body, for which the caller's share must have room from the start; `None` if it is too long.
///
/// # Errors
/// The response if it takes too long, or if the memory budget has no room.
async fn read_body(body: Body, state: &ServerState, caller: &Caller) -> Result<Option<Bytes>, Box<Response>> {
    let max_bytes = state.rpc.bounds().max_bytes;
    let announced = body.size_hint().upper().unwrap_or(u64::MAX).min(max_bytes as u64);
    let is_large = announced > SMALL_MESSAGE_BYTES;
    let hold = || memory::hold(caller.name(), announced).ok_or_else(|| retry_later(NO_SHARE));
    let _held = is_large.then(hold).transpose()?;
    let timeout = state.settings.connections.request_timeout;
    match tokio::time::timeout(timeout, collect_body(body, max_bytes)).await {
        Ok(collected) => collected,
        Err(_late) => {
            let message = format!("the body took longer than {} seconds to arrive\n", timeout.as_secs());
            Err(closing_response(StatusCode::REQUEST_TIMEOUT, message))
        }
    }
}

/// Collects the chunks of a body while the memory budget has room.
async fn collect_body(body: Body, max_bytes: usize) -> Result<Option<Bytes>, Box<Response>> {
    let mut pieces = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(piece) = pieces.next().await {
        // An aborted body is treated as too long: its client is gone and reads no answer.
        let Ok(piece) = piece else { return Ok(None) };
        let collected = whole.len() + piece.len();
        if collected > max_bytes {
            return Ok(None);
        }
        if collected as u64 > SMALL_MESSAGE_BYTES && !memory::has_room(piece.len() as u64) {
            return Err(retry_later(NO_ROOM));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(Some(whole.into()))
}

/// The answer to a request whose body is not read, which makes the connection unusable.
fn closing_response(status: StatusCode, message: impl IntoResponse) -> Box<Response> {
    Box::new((status, [(header::CONNECTION, "close")], message).into_response())
}

fn retry_later(message: &'static str) -> Box<Response> {
    closing_response(StatusCode::SERVICE_UNAVAILABLE, ([(header::RETRY_AFTER, "1")], message))
}

fn read_credential(request: &Request, token: Result<Option<&[u8]>, NoToken>) -> Credential {
    let PeerCertNames(names) = request.extensions().get().cloned().unwrap_or_default();
    match token {
        Ok(token) => Credential::new(token, names),
        Err(NoToken) => Credential::malformed(),
    }
}

fn unauthorized(credential: &Credential) -> Response {
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge(credential))], UNAUTHENTICATED)
        .into_response()
}

/// The challenge to an unauthenticated client, as in RFC 6750, section 3. A client that presented a token learns that
/// it is not valid, and not why.
pub(super) fn challenge(credential: &Credential) -> &'static str {
    if credential.has_token() { r#"Bearer error="invalid_token""# } else { "Bearer" }
}

/// Something was presented as a token that is not exactly one.
struct NoToken;

/// The bearer token of a request, if it has one. Anything but exactly one token is an error, so that no request with a
/// bad token passes as one without.
fn token(headers: &HeaderMap) -> Result<Option<&[u8]>, NoToken> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(first) = values.next() else { return Ok(None) };
    let (scheme, token) = first.as_bytes().split_at_checked(BEARER.len()).ok_or(NoToken)?;
    let one = values.next().is_none() && scheme.eq_ignore_ascii_case(BEARER) && !token.is_empty();
    if one { Ok(Some(token)) } else { Err(NoToken) }
}

/// The token of a request, from one of the two headers and not from both.
fn token_or_key(headers: &HeaderMap) -> Result<Option<&[u8]>, NoToken> {
    let mut keys = headers.get_all(API_KEY).iter();
    let (bearer, key) = (token(headers)?, keys.next());
    match (bearer, key, keys.next()) {
        (bearer, None, _) => Ok(bearer),
        (None, Some(key), None) if !key.is_empty() => Ok(Some(key.as_bytes())),
        (_, Some(_), _) => Err(NoToken),
    }
}

/// Middleware that refuses requests of web pages, and of DNS names that were rebound to this address.
async fn check_host_and_origin(
    State(state): State<Arc<ServerState>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().filter(|_| hosts.next().is_none()).and_then(|host| host.to_str().ok());
    let authority = request.uri().authority().map(axum::http::uri::Authority::as_str);
    if !authority.or(host).is_some_and(|host| state.is_own_host(host)) {
        return (StatusCode::FORBIDDEN, "this `Host` is not served here: see `server.allowed_hosts`\n")
            .into_response();
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let allowed =
            origin.to_str().is_ok_and(|origin| state.settings.allowed_origins.iter().any(|a| a == origin));
        if !allowed {
            return (
                StatusCode::FORBIDDEN,
                "this `Origin` is not served here: see `server.allowed_origins`\n",
            )
                .into_response();
        }
    }
    next.run(request).await
}

impl ServerState {
    fn caller(&self, credential: &Credential) -> Option<Arc<Caller>> {
        self.settings.callers.identify(credential, self.settings.clock.now())
    }

    fn is_own_host(&self, authority: &str) -> bool {
        let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if digits(port) => host,
            Some(_) | None => authority,
        };
        let v6 = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let host = v6.unwrap_or(host);
        let host = host.to_ascii_lowercase();
        host == "localhost"
            || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback() || Some(ip) == self.listens_on)
            || self.settings.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(&host))
    }
}
