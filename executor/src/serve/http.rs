//! HTTP and WebSocket on one port.
//!
//! `POST /jsonrpc`, WebSocket `/jsonrpc`, `GET /metrics`, `GET /health`. A request whose `Host` or `Origin` is not
//! one of ours is refused, so that no web page can talk to a loopback port.

use super::connections::{self, Connection, ConnectionLimits, Connections};
use super::rpc::Rpc;
use crate::metrics::MEDIA_TYPE;
use crate::run::Executor;
use axum::Extension;
use axum::Router;
use axum::body::Body;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::{SinkExt, StreamExt};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, broadcast, mpsc};

/// How many messages of one WebSocket are worked on at once; more are not read until one is done.
const MOST_AT_ONCE: usize = 64;

/// Who may talk to the door, and what it offers beside its methods.
#[derive(Clone)]
pub struct HttpSettings {
    /// `Host` names beside loopback names and the address listened on.
    pub allowed_hosts: Vec<String>,
    /// `Origin` values; a request without one is accepted.
    pub allowed_origins: Vec<String>,
    /// What connections may be.
    pub connections: ConnectionLimits,
    /// What is pushed to every WebSocket, if anything.
    pub pushes: Option<broadcast::Sender<Arc<str>>>,
    /// Whose figures `GET /metrics` gives, if anybody's.
    pub executor: Option<Arc<Executor>>,
}

/// A bound port that does not yet serve.
pub struct HttpDoor {
    listener: TcpListener,
    router: Router,
    address: SocketAddr,
    limits: ConnectionLimits,
    connections: Arc<Connections>,
}

struct Door {
    rpc: Rpc,
    settings: HttpSettings,
    connections: Arc<Connections>,
    listens_on: IpAddr,
}

impl HttpDoor {
    /// Binds a port.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn bind(address: SocketAddr, rpc: Rpc, settings: HttpSettings) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (limits, connections) = (settings.connections, Arc::<Connections>::default());
        let open = Arc::clone(&connections);
        let door = Arc::new(Door { rpc, settings, connections: open, listens_on: address.ip() });
        let router = Router::new()
            .route("/jsonrpc", get(upgrade).post(post))
            .route("/metrics", get(metrics))
            .layer(middleware::from_fn_with_state(Arc::clone(&door), only_friends))
            .route("/health", get(health))
            .with_state(door);
        Ok(Self { listener, router, address, limits, connections })
    }

    /// The bound address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` resolves, and then until open requests are answered.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        connections::serve(self.listener, self.router, self.connections, self.limits, stop).await;
    }
}

async fn health() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], r#"{"status":"ok"}"#)
}

/// What operators watch, as text for Prometheus.
async fn metrics(State(door): State<Arc<Door>>) -> Response {
    let Some(executor) = &door.settings.executor else { return StatusCode::NOT_FOUND.into_response() };
    match executor.figures(door.connections.open()) {
        Ok(text) => ([(header::CONTENT_TYPE, MEDIA_TYPE)], text).into_response(),
        Err(fault) => {
            tracing::error!(?fault, "the figures cannot be read");
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}

async fn post(
    State(door): State<Arc<Door>>,
    Extension(connection): Extension<Arc<Connection>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    if !is_json(&headers) {
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, "send `Content-Type: application/json`\n")
            .into_response();
    }
    let patience = door.settings.connections.request;
    let read = axum::body::to_bytes(body, door.rpc.bounds().max_bytes);
    let Ok(read) = tokio::time::timeout(patience, read).await else {
        let message = format!("the body took longer than {} seconds to arrive\n", patience.as_secs());
        return (StatusCode::REQUEST_TIMEOUT, [(header::CONNECTION, "close")], message).into_response();
    };
    let _work = connection.works();
    let answer = match read {
        Ok(bytes) => door.rpc.answer(&bytes).await,
        Err(_too_long) => Some(door.rpc.too_long()),
    };
    match answer {
        Some(answer) => ([(header::CONTENT_TYPE, "application/json")], answer).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

async fn upgrade(
    State(door): State<Arc<Door>>,
    Extension(connection): Extension<Arc<Connection>>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let most = door.rpc.bounds().max_bytes;
    upgrade.max_message_size(most).max_frame_size(most).on_upgrade(async move |socket| {
        tokio::select! {
            () = converse(door, Arc::clone(&connection), socket) => {}
            () = connection.gives_way() => {}
        }
    })
}

/// One WebSocket connection: messages are answered as they get done, in any order.
async fn converse(door: Arc<Door>, connection: Arc<Connection>, socket: WebSocket) {
    let (mut sink, mut stream) = socket.split();
    let (answers, mut outgoing) = mpsc::channel::<Arc<str>>(MOST_AT_ONCE);
    let mut pushes = door.settings.pushes.as_ref().map(broadcast::Sender::subscribe);
    let writer = tokio::spawn(async move {
        loop {
            let text = tokio::select! {
                answer = outgoing.recv() => match answer { Some(answer) => answer, None => break },
                pushed = next_push(&mut pushes) => pushed,
            };
            if sink.send(Message::text(&*text)).await.is_err() {
                break;
            }
        }
    });
    let places = Arc::new(Semaphore::new(MOST_AT_ONCE));
    while let Some(Ok(message)) = stream.next().await {
        let bytes = match message {
            Message::Text(text) => axum::body::Bytes::from(text),
            Message::Binary(bytes) => bytes,
            Message::Close(_) => break,
            Message::Ping(_) | Message::Pong(_) => continue,
        };
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
        let (door, answers, work) = (Arc::clone(&door), answers.clone(), connection.works());
        tokio::spawn(async move {
            let _work = work;
            if let Some(answer) = door.rpc.answer(&bytes).await {
                let _nobody_reads = answers.send(answer.into()).await;
            }
            drop(place);
        });
    }
    drop(answers);
    let _writer_ended = writer.await;
}

async fn next_push(pushes: &mut Option<broadcast::Receiver<Arc<str>>>) -> Arc<str> {
    loop {
        match pushes {
            None => std::future::pending::<()>().await,
            Some(receiver) => match receiver.recv().await {
                Ok(pushed) => return pushed,
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "a connection is too slow for what is pushed to it");
                }
                Err(broadcast::error::RecvError::Closed) => *pushes = None,
            },
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let essence = |value: &str| value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| essence(value) == "application/json")
}

/// Refuses what a web page or a rebound name would send.
async fn only_friends(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let authority = request.uri().authority().map(axum::http::uri::Authority::as_str);
    if !authority.or(host).is_some_and(|host| door.knows_host(host)) {
        return (StatusCode::FORBIDDEN, "this `Host` is not served here: see `server.allowed_hosts`\n")
            .into_response();
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let allowed =
            origin.to_str().is_ok_and(|origin| door.settings.allowed_origins.iter().any(|a| a == origin));
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

impl Door {
    fn knows_host(&self, authority: &str) -> bool {
        let host = match authority.strip_prefix('[') {
            Some(v6) => v6.split(']').next().unwrap_or_default(),
            None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
        };
        let host = host.to_ascii_lowercase();
        host == "localhost"
            || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback() || ip == self.listens_on)
            || self.settings.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(&host))
    }
}
