//! HTTP and WebSocket on one port, for all doors.
//!
//! `POST /jsonrpc`, WebSocket `/jsonrpc`, `GET /metrics`, `GET /health`, and the paths of each [`ProtocolRouter`].
//! Requests with a foreign `Host` or `Origin` are refused, so that no web page can reach a loopback port.
//! Unauthenticated requests are also refused. The caller is authenticated again with every message of a WebSocket and
//! every chunk of a streamed answer. The port does all of this for the doors, so that no door can omit it.

use super::address_rates::AddressRates;
use super::answers;
use super::auth::{CallerDirectory, Unauthenticated, read_credential, token, token_or_key};
use super::body::{BufferedBody, read_body};
use super::connections::{self, Connection, ConnectionLimits, Connections};
use super::listen::{ListenAddress, Listener};
use super::protocol::{AuthPolicy, DoorAccess, IsSignedIn, ProtocolRouter, SelfReauthenticating};
use super::rpc::{Followups, Rpc, RpcAnswer};
use super::tls::Tls;
use super::transport::json::{JsonContentType, json_response};
use super::transport::websocket::{
    self, Incoming, IncomingMessage, MAX_CONCURRENT, MessageReader, MessageSink,
};
use a2g_core::run::Executor;
use a2g_govern::local::CedarPolicies;
use a2g_govern::{Caller, Credential, Role};
use a2g_journal::Condition;
use a2g_metrics::MEDIA_TYPE;
use a2g_runtime::aside::run_large;
use a2g_runtime::spawn::SessionTasks;
use a2g_types::clock::Clock;
use a2g_types::memory::{Charge, CountedBytes};
use a2g_types::rate_limit::to_whole_units;
use a2g_wire::strict_json::{JsonBounds, text_bytes};
use axum::Extension;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body::Frame;
use jsonrpsee::Methods;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};

/// Settings of the HTTP port.
pub struct HttpSettings {
    /// `Host` names that are accepted in addition to loopback names and the address of the port.
    pub allowed_hosts: Vec<String>,
    /// `Origin` values that are accepted, as are requests without `Origin`.
    pub allowed_origins: Vec<String>,
    /// The list of callers.
    pub callers: CallerDirectory,
    /// The clock that credentials expire by.
    pub clock: Arc<dyn Clock>,
    /// The TLS configuration; `None`: plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// Limits for connections.
    pub connections: ConnectionLimits,
    /// Messages that are pushed to every WebSocket; `None` at an executor's port.
    pub pushes: Option<broadcast::Sender<Arc<str>>>,
    /// The executor that `GET /metrics` and `GET /health` describe; `None` at a governor's port.
    pub executor: Option<Arc<Executor>>,
    /// Spawns the tasks of the sessions, which the owner of the server ends.
    pub sessions: SessionTasks,
    /// The routers of other protocols.
    pub protocols: Vec<ProtocolRouter>,
}

/// Wraps the paths of a protocol in the authentication that they require. Their handlers find the body in the request's
/// extensions.
fn protect(
    ProtocolRouter { routes, auth }: ProtocolRouter,
    state: &Arc<ServerState>,
) -> Router<Arc<ServerState>> {
    let (access, rejected_by) = match auth {
        AuthPolicy::Required(access) => (access, RejectedBy::Port),
        AuthPolicy::Delegated(access) => (access, RejectedBy::Door),
        AuthPolicy::Public => return limit_unknown(routes, state, Box::new(|_| false)),
        AuthPolicy::Session(is_signed_in) => return limit_unknown(routes, state, is_signed_in),
    };
    let state = (Arc::clone(state), access, rejected_by);
    routes.layer(middleware::from_fn_with_state(state, buffer_body)).with_state(())
}

/// Wraps paths that need no authentication in the limit on the rate of unknown senders.
fn limit_unknown(
    routes: Router,
    state: &Arc<ServerState>,
    is_signed_in: IsSignedIn,
) -> Router<Arc<ServerState>> {
    let state = (Arc::clone(state), Arc::new(is_signed_in));
    routes.layer(middleware::from_fn_with_state(state, admit_unknown)).with_state(())
}

/// Middleware that refuses an unknown sender above the rate of its address. A connection on which a caller has
/// authenticated is not limited.
async fn admit_unknown(
    State((state, is_signed_in)): State<(Arc<ServerState>, Arc<IsSignedIn>)>,
    Extension(connection): Extension<Arc<Connection>>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    if !(connection.is_authenticated() || is_signed_in(&head))
        && let Err(refusal) = state.admit_unknown(&connection)
    {
        return *refusal;
    }
    next.run(Request::from_parts(head, body)).await
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
    unknown: AddressRates,
    listens_on: Option<IpAddr>,
}

impl HttpServer {
    /// Binds an address.
    ///
    /// # Ambient Authority
    /// Binds the port, or creates the socket.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn bind(address: &ListenAddress, rpc: Rpc, settings: HttpSettings) -> std::io::Result<Self> {
        let own_routes = |state: &Arc<ServerState>| {
            Router::new()
                .route("/jsonrpc", get(upgrade).post(post))
                .route("/metrics", get(metrics))
                .layer(middleware::from_fn_with_state(Arc::clone(state), require_auth))
        };
        Self::bind_with(address, rpc, settings, own_routes).await
    }

    /// Binds an address that serves the protocols of `settings` and `GET /health`, but neither A2G nor `/metrics`.
    ///
    /// # Ambient Authority
    /// Binds the port, or creates the socket.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn bind_protocols(
        address: &ListenAddress,
        bounds: JsonBounds,
        settings: HttpSettings,
    ) -> std::io::Result<Self> {
        let rpc = Rpc::new(Methods::new(), bounds, &[]);
        Self::bind_with(address, rpc, settings, |_| Router::new()).await
    }

    async fn bind_with(
        address: &ListenAddress,
        rpc: Rpc,
        mut settings: HttpSettings,
        own_routes: impl FnOnce(&Arc<ServerState>) -> Router<Arc<ServerState>>,
    ) -> std::io::Result<Self> {
        let (listener, address) = Listener::bind(address).await?;
        let protocols = std::mem::take(&mut settings.protocols);
        let connections = Arc::default();
        let unknown = AddressRates::new(settings.connections.unauthenticated_per_minute);
        let state = Arc::new(ServerState { rpc, settings, connections, unknown, listens_on: address.ip() });
        let own = own_routes(&state);
        let router = protocols
            .into_iter()
            .fold(own, |all, protocol| all.merge(protect(protocol, &state)))
            .layer(middleware::from_fn_with_state(Arc::clone(&state), check_host_and_origin))
            .route("/health", get(health))
            .with_state(Arc::clone(&state));
        Ok(Self { listener, address, router, state })
    }

    /// The URL of `/jsonrpc`; for a Unix socket, `unix:` and the socket's path.
    #[must_use]
    pub fn url(&self) -> String {
        self.origin().map_or_else(|| self.address.to_string(), |origin| format!("{origin}/jsonrpc"))
    }

    /// Scheme, address and port; `None` for a Unix socket.
    #[must_use]
    pub fn origin(&self) -> Option<String> {
        let scheme = if self.state.settings.tls.is_some() { "https" } else { "http" };
        match &self.address {
            ListenAddress::Tcp(address) => Some(format!("{scheme}://{address}")),
            ListenAddress::Unix(_) => None,
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

/// Reports whether calls can run, which they cannot while the journal accepts no writes, the fleet no claims, or no policies
/// fit the tools.
async fn health(State(state): State<Arc<ServerState>>) -> impl IntoResponse {
    let executor = state.settings.executor.as_ref();
    let condition = executor.map(|executor| executor.journal.condition());
    let fleet = executor.and_then(|executor| executor.node.fleet());
    let has_no_lease = fleet.is_some_and(|fleet| !fleet.member.may_run());
    let has_lost_claims = fleet.is_some_and(|fleet| fleet.member.loss().is_some());
    let policies = executor.and_then(|executor| executor.policies.governor().cedar());
    let (status, text) = match condition {
        None | Some(Condition::Works) if has_lost_claims => (
            StatusCode::SERVICE_UNAVAILABLE,
            r#"{"status":"unavailable","reason":"the claims of the fleet are gone, see the log"}"#,
        ),
        None | Some(Condition::Works) if has_no_lease => (
            StatusCode::SERVICE_UNAVAILABLE,
            r#"{"status":"unavailable","reason":"the servers of the fleet cannot be reached"}"#,
        ),
        None | Some(Condition::Works) if policies.is_some_and(CedarPolicies::denies_everything) => (
            StatusCode::SERVICE_UNAVAILABLE,
            r#"{"status":"unavailable","reason":"the policies do not fit the tools, see the log"}"#,
        ),
        None | Some(Condition::Works) if policies.is_some_and(|policies| policies.error().is_some()) => (
            StatusCode::OK,
            r#"{"status":"ok","warning":"the policies do not fit the tools, see the log: earlier ones are in force"}"#,
        ),
        None | Some(Condition::Works) => (StatusCode::OK, r#"{"status":"ok"}"#),
        Some(Condition::Full) => (
            StatusCode::SERVICE_UNAVAILABLE,
            r#"{"status":"unavailable","reason":"the journal's disk is full, or another program holds its file"}"#,
        ),
        Some(Condition::Broken(_)) => {
            (StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"unavailable","reason":"the journal is broken"}"#)
        }
    };
    (status, [(header::CONTENT_TYPE, "application/json")], text)
}

/// Metrics as text for Prometheus, only for operators.
async fn metrics(
    State(state): State<Arc<ServerState>>,
    Extension(caller): Extension<Arc<Caller>>,
) -> Response {
    let Some(executor) = &state.settings.executor else { return StatusCode::NOT_FOUND.into_response() };
    if !caller.is_any_of(&[Role::Operator]) {
        return (StatusCode::FORBIDDEN, "metrics are for callers with the role `operator`\n").into_response();
    }
    match executor.queries.render_metrics(state.connections.count(), state.settings.callers.metrics()).await {
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
    _: JsonContentType,
    body: Body,
) -> Response {
    let body = match state.read_body(body, &caller).await {
        Ok(body) => body,
        Err(refusal) => return *refusal,
    };
    // Authenticated again: the credential may have expired or been removed while the body arrived.
    let caller = match state.caller(&credential) {
        Ok(caller) => caller,
        Err(reason) => return reason.answer(reason.challenge(&credential)),
    };
    connection.mark_authenticated();
    let _work = connection.begin_request();
    let owner = Arc::clone(&caller);
    let bytes = body.as_ref().map_or(0, |body| text_bytes(body.len()));
    let answer = async move {
        match body {
            Some(message) => state.rpc.answer(&message, &caller).await,
            None => Some(state.rpc.too_long()),
        }
    };
    match run_large(owner.name(), bytes, answer).await {
        Some(answer) => {
            let RpcAnswer { text, counted } = answer;
            answers::hold_until_written(json_response(StatusCode::OK, text), counted)
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
    let sessions = state.settings.sessions.clone();
    let bounds = *state.rpc.bounds();
    websocket::accept(
        upgrade,
        &bounds,
        Arc::clone(&connection),
        Some(&caller),
        sessions,
        async move |socket| {
            serve_websocket(&state, connection, &credential, socket).await;
        },
    )
}

/// Serves one WebSocket. Each message is answered as soon as its answer is ready, in any order.
async fn serve_websocket(
    state: &Arc<ServerState>,
    connection: Arc<Connection>,
    credential: &Credential,
    socket: WebSocket,
) {
    let HttpSettings { clock, connections, .. } = &state.settings;
    let authenticate = || state.caller(credential).ok();
    let (reader, sink) =
        websocket::split(socket, connection, Arc::clone(clock), connections.request_timeout, authenticate);
    let (answers, outgoing) = mpsc::channel(MAX_CONCURRENT);
    let (is_authenticated, sink) =
        tokio::join!(read_messages(state, reader, answers), write_messages(state, sink, outgoing));
    if let (false, Some(mut sink)) = (is_authenticated, sink) {
        let reason = state.caller(credential).err().unwrap_or_default();
        sink.close(close_code::POLICY, &reason.message()).await;
    }
}

/// Reads messages until the peer closes the connection, the writer has ended, or the caller is no longer authenticated.
/// Returns `false` only in the last case.
async fn read_messages<A: FnMut() -> Option<Arc<Caller>>>(
    state: &Arc<ServerState>,
    mut reader: MessageReader<A>,
    answers: mpsc::Sender<OutgoingMessage>,
) -> bool {
    loop {
        let incoming = tokio::select! {
            incoming = reader.next() => incoming,
            () = answers.closed() => return true,
        };
        let IncomingMessage { bytes, caller, work, permit } = match incoming {
            Incoming::Message(message) => message,
            Incoming::Closed => return true,
            Incoming::Unauthenticated => return false,
        };
        let state = Arc::clone(state);
        let answers = answers.clone();
        state.settings.sessions.clone().spawn(async move {
            let followups = Arc::new(Followups::default());
            let owner = Arc::clone(&caller);
            let for_answer = Arc::clone(&followups);
            let length = text_bytes(bytes.len());
            let call = async move { state.rpc.answer_with_followups(&bytes, &caller, &for_answer).await };
            let answer = run_large(owner.name(), length, call).await;
            // Dropped before the answer is sent, so that the connection of a client that reads no answers counts as
            // idle.
            drop(work);
            let answer = answer.map(|RpcAnswer { text, counted }| (Arc::from(text), counted));
            let followups = followups.take().into_iter().map(|message| (message, Vec::new()));
            for message in answer.into_iter().chain(followups) {
                let _closed = answers.send(message).await;
            }
            drop(permit);
        });
    }
}

/// An answer with its memory charge.
type OutgoingMessage = (Arc<str>, Vec<CountedBytes>);

/// Writes answers and pushes until the reader and all handlers have ended; `None` if the peer does not read in time.
async fn write_messages(
    state: &ServerState,
    mut sink: MessageSink,
    mut outgoing: mpsc::Receiver<OutgoingMessage>,
) -> Option<MessageSink> {
    let mut pushes = state.settings.pushes.as_ref().map(broadcast::Sender::subscribe);
    loop {
        let (text, _held) = tokio::select! {
            answer = outgoing.recv() => match answer {
                Some(answer) => answer,
                None => return Some(sink),
            },
            pushed = next_push(&mut pushes) => (pushed, Vec::new()),
        };
        if !sink.send(Message::text(&*text)).await {
            return None;
        }
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

/// Middleware that refuses unauthenticated requests, and gives handlers the caller and its credential.
async fn require_auth(
    State(state): State<Arc<ServerState>>,
    Extension(connection): Extension<Arc<Connection>>,
    mut request: Request,
    next: Next,
) -> Response {
    let credential = read_credential(&request, token(request.headers()));
    let caller = match state.caller(&credential) {
        Ok(caller) => caller,
        Err(reason) => {
            let challenge = || reason.answer(reason.challenge(&credential));
            return state.admit_unknown(&connection).map_or_else(|refusal| *refusal, |()| challenge());
        }
    };
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(credential);
    next.run(request).await
}

/// Like [`require_auth`], for the doors of other protocols: a token may also be in `X-API-Key`. The middleware also
/// reads the body, and then authenticates the caller again, so that a handler gets the whole body and a current caller.
async fn buffer_body(
    State((state, access, rejected_by)): State<(Arc<ServerState>, DoorAccess, RejectedBy)>,
    Extension(connection): Extension<Arc<Connection>>,
    request: Request,
    next: Next,
) -> Response {
    let credential = read_credential(&request, token_or_key(request.headers()));
    let authenticate = || match access {
        DoorAccess::Callers => state.caller(&credential),
        DoorAccess::Public => Ok(Arc::new(Caller::any_agent())),
    };
    let (mut head, body) = request.into_parts();
    let (caller, body) = match authenticate() {
        Err(reason) => (Err(reason), None),
        Ok(sender) => match state.read_body(body, &sender).await {
            Ok(body) => (authenticate(), Some((body, sender))),
            Err(refusal) => return *refusal,
        },
    };
    if caller.is_err()
        && let Err(refusal) = state.admit_unknown(&connection)
    {
        return *refusal;
    }
    let extensions = &mut head.extensions;
    match (&caller, rejected_by) {
        (Err(reason), RejectedBy::Port) => return reason.answer(reason.challenge(&credential)),
        (Ok(caller), RejectedBy::Port) => drop(extensions.insert(Arc::clone(caller))),
        (caller, RejectedBy::Door) => drop(extensions.insert(Result::clone(caller))),
    }
    if caller.is_ok() {
        connection.mark_authenticated();
    }
    let _work = connection.begin_request();
    extensions.insert(credential.clone());
    let mut answer = match body {
        None => {
            extensions.insert(BufferedBody::Whole(Bytes::new(), Charge::default()));
            next.run(Request::from_parts(head, Body::empty())).await
        }
        Some((body, sender)) => {
            let owner = Arc::clone(&sender);
            let bytes = body.as_ref().map_or(0, |body| text_bytes(body.len()));
            let answer = async move {
                head.extensions.insert(BufferedBody::new(body, &sender));
                next.run(Request::from_parts(head, Body::empty())).await
            };
            run_large(owner.name(), bytes, answer).await
        }
    };
    if let Ok(caller) = &caller {
        answer = answers::charge(caller, answer);
    }
    let is_whole = answer.body().size_hint().exact().is_some();
    let door_reauthenticates = answer.extensions().get::<SelfReauthenticating>().is_some();
    match (caller, access) {
        (Ok(caller), DoorAccess::Callers) if !(is_whole || door_reauthenticates) => {
            answer.map(|chunks| Body::new(RevalidatingBody { chunks, state, credential, caller }))
        }
        (Ok(_) | Err(_), DoorAccess::Callers | DoorAccess::Public) => answer,
    }
}

/// The side that answers an unauthenticated request.
#[derive(Debug, Clone, Copy)]
enum RejectedBy {
    Port,
    Door,
}

/// A streamed answer, such as events. Once its caller is no longer authenticated, or has other rights than before, it
/// is aborted instead of ended, so that the client knows that the answer is incomplete.
struct RevalidatingBody {
    chunks: Body,
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
        let chunk = ready!(Pin::new(&mut self.chunks).poll_frame(cx));
        let HttpSettings { callers, clock, .. } = &self.state.settings;
        if chunk.is_none() || callers.is_still_valid(&self.caller, &self.credential, clock.now()) {
            return Poll::Ready(chunk);
        }
        tracing::info!(
            caller = self.caller.name(),
            "a streamed answer is aborted: its caller is no longer authenticated, or has other rights"
        );
        Poll::Ready(Some(Err(axum::Error::new("the caller is no longer authenticated"))))
    }
}

/// Middleware that refuses requests from foreign web pages, and requests under a DNS name that was rebound to this
/// address.
async fn check_host_and_origin(
    State(state): State<Arc<ServerState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().filter(|_| hosts.next().is_none()).and_then(|host| host.to_str().ok());
    let authority = request.uri().authority().map(axum::http::uri::Authority::as_str);
    let Some(host) = authority.or(host).filter(|host| state.is_own_host(host)) else {
        return (StatusCode::FORBIDDEN, "this `Host` is not served here: see `server.allowed_hosts`\n")
            .into_response();
    };
    let checked = CheckedHost(host.to_owned());
    // A second one would not be checked.
    if headers.get_all(header::ORIGIN).iter().count() > 1 {
        return (StatusCode::FORBIDDEN, "`Origin` is sent twice\n").into_response();
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let allowed = origin.to_str().is_ok_and(|origin| {
            state.settings.allowed_origins.iter().any(|allowed| allowed == origin)
                || state.is_own_origin(origin, host)
        });
        if !allowed {
            return (
                StatusCode::FORBIDDEN,
                "this `Origin` is not served here: see `server.allowed_origins`\n",
            )
                .into_response();
        }
    }
    request.extensions_mut().insert(checked);
    next.run(request).await
}

/// The name under which a client reaches this port: an extension of each request, from the target or from `Host`.
#[derive(Debug, Clone)]
pub struct CheckedHost(pub String);

impl ServerState {
    fn caller(&self, credential: &Credential) -> Result<Arc<Caller>, Unauthenticated> {
        self.settings.callers.identify(credential, self.settings.clock.now())
    }

    /// Counts a request without valid credentials against the rate of its address. It is counted once it is known to be
    /// one, so that nobody can use up the rate of callers behind the same address.
    ///
    /// # Errors
    /// The error response, if there are too many.
    fn admit_unknown(&self, connection: &Connection) -> Result<(), Box<Response>> {
        let Some(address) = connection.address else { return Ok(()) };
        let wait = match self.unknown.acquire(address, self.settings.clock.monotonic()) {
            Ok(()) => return Ok(()),
            Err(wait) => to_whole_units(wait, Duration::from_secs(1)),
        };
        let message = format!(
            "your address sends more than {} requests a minute without valid credentials \
             (`server.unauthenticated_per_minute`): show a token, or wait {wait} s\n",
            self.settings.connections.unauthenticated_per_minute
        );
        let head = [(header::RETRY_AFTER, wait.to_string())];
        Err(Box::new((StatusCode::TOO_MANY_REQUESTS, head, message).into_response()))
    }

    async fn read_body(&self, body: Body, caller: &Caller) -> Result<Option<Bytes>, Box<Response>> {
        let timeout = self.settings.connections.request_timeout;
        read_body(body, self.rpc.bounds().max_bytes, timeout, caller).await
    }

    /// Returns `true` for the origin of this port itself, under the name in `Host`, which is checked before.
    fn is_own_origin(&self, origin: &str, host: &str) -> bool {
        let scheme = if self.settings.tls.is_some() { "https://" } else { "http://" };
        origin.strip_prefix(scheme).is_some_and(|authority| authority.eq_ignore_ascii_case(host))
    }

    fn is_own_host(&self, authority: &str) -> bool {
        let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if is_port(port) => host,
            Some(_) | None => authority,
        };
        let v6 = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let bare = v6.unwrap_or(host);
        let host = bare.to_ascii_lowercase();
        is_loopback_host(&host)
            || host.parse::<IpAddr>().is_ok_and(|ip| Some(ip) == self.listens_on)
            || self.settings.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(&host))
    }
}

/// Returns `true` for a name or an address of this machine, without brackets.
pub(super) fn is_loopback_host(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
