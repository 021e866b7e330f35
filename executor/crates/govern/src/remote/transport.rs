//! The transports of the governor's client, which convert every received message into its normal form.
//!
//! jsonrpsee's client closes a WebSocket, and fails every call on it, at a message that it cannot parse or whose id
//! belongs to no open call. The reference governor's denial is such a message. These transports log and drop such
//! messages, and fail only the call that a message belongs to.

use super::{CALL_TIMEOUT, MAX_ANSWER_BYTES, MAX_REPORT_BYTES, PUSH_METHODS, Push};
use a2g_runtime::timer_now;
use a2g_types::ident::excerpt;
use a2g_types::log_limiter::LogLimiter;
use a2g_wire::jsonrpc::incoming::{self, Incoming, PeerMessageError};
use a2g_wire::jsonrpc::{self, Id};
use a2g_wire::strict_json::JsonBounds;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use jsonrpsee::client_transport::ws::{Url, WsTransportClientBuilder};
use jsonrpsee::core::BoxError;
use jsonrpsee::core::client::{
    Error as ClientError, IdKind, ReceivedMessage, TransportReceiverT, TransportSenderT,
};
use jsonrpsee::core::http_helpers::HttpError;
use jsonrpsee::http_client::transport::Error as TransportError;
use jsonrpsee::http_client::{HttpBackend, HttpRequest, HttpResponse, RpcLogger, RpcService};
use jsonrpsee::http_client::{HttpClient as Client, HttpClientBuilder};
use jsonrpsee::ws_client::{PingConfig, WsClient, WsClientBuilder};
use parking_lot::Mutex;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tower::{Layer, Service, ServiceBuilder};

/// Maximum size of a message on a WebSocket, in bytes. A larger one closes the connection; one beyond
/// [`MAX_ANSWER_BYTES`] fails only its own call.
const MAX_MESSAGE_BYTES: u32 = 16 << 20;
/// Maximum number of unanswered calls on one connection before it is replaced. The client stores each of
/// them until it is answered.
const MAX_UNANSWERED: usize = 16_384;

pub(super) type HttpClient = Client<RpcLogger<RpcService<NormalizedHttp<HttpBackend>>>>;

/// A client over HTTP whose answers are normalized.
///
/// # Errors
/// [`ClientError`] for an unusable URL.
pub(super) fn http(url: &str) -> Result<HttpClient, ClientError> {
    HttpClientBuilder::default()
        .request_timeout(CALL_TIMEOUT)
        .max_request_size(MAX_REPORT_BYTES)
        .max_response_size(MAX_ANSWER_BYTES)
        .id_format(IdKind::String)
        .set_http_middleware(ServiceBuilder::new().layer(Normalize))
        .build(url)
}

/// A WebSocket to a governor.
pub(super) struct GovernorConnection {
    pub(super) client: WsClient,
    open: Arc<OpenCalls>,
}

impl GovernorConnection {
    /// Connects. The governor's notifications go to `pushes`.
    ///
    /// # Errors
    /// [`ClientError`] when the connection fails.
    pub(super) async fn open(url: &str, pushes: mpsc::Sender<Push>) -> Result<Self, ClientError> {
        let url = Url::parse(url).map_err(|error| ClientError::Transport(error.into()))?;
        let transport = WsTransportClientBuilder::default()
            .connection_timeout(CALL_TIMEOUT)
            .max_request_size(MAX_REPORT_BYTES)
            .max_response_size(MAX_MESSAGE_BYTES);
        let (sender, receiver) =
            transport.build(url).await.map_err(|error| ClientError::Transport(error.into()))?;
        let open = Arc::new(OpenCalls::default());
        let sender = TrackingSender { inner: sender, open: Arc::clone(&open) };
        let receiver = NormalizedReceiver {
            inner: receiver,
            open: Arc::clone(&open),
            pushes,
            log: LogLimiter::default(),
        };
        let client = WsClientBuilder::default()
            .request_timeout(CALL_TIMEOUT)
            .id_format(IdKind::String)
            .enable_ws_ping(PingConfig::default())
            .build_with_transport(sender, receiver);
        Ok(Self { client, open })
    }

    /// `true` while the connection accepts another call.
    pub(super) fn is_usable(&self) -> bool {
        self.client.is_connected() && self.open.count() < MAX_UNANSWERED
    }
}

/// The ids of calls without an answer, which the client itself does not reveal.
#[derive(Debug, Default)]
struct OpenCalls(Mutex<HashSet<String>>);

impl OpenCalls {
    fn insert(&self, message: &str) {
        if let Some(id) = id_of(message) {
            self.0.lock().insert(id);
        }
    }

    /// Removes the call with the id of an answer; `false` if none is open.
    fn close(&self, id: &Id) -> bool {
        let Ok(id) = serde_json::from_str::<String>(id.as_json()) else { return false };
        self.0.lock().remove(&id)
    }

    fn count(&self) -> usize {
        self.0.lock().len()
    }
}

fn id_of(message: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Call<'a> {
        #[serde(borrow)]
        id: Cow<'a, str>,
    }
    serde_json::from_str::<Call<'_>>(message).ok().map(|call| call.id.into_owned())
}

/// A sender that records the ids of calls.
struct TrackingSender<S> {
    inner: S,
    open: Arc<OpenCalls>,
}

impl<S: TransportSenderT + Send> TransportSenderT for TrackingSender<S> {
    type Error = S::Error;

    async fn send(&mut self, message: String) -> Result<(), Self::Error> {
        self.open.insert(&message);
        self.inner.send(message).await
    }

    fn send_ping(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.inner.send_ping()
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.inner.close()
    }
}

/// A receiver that passes only normalized answers to open calls to its client.
struct NormalizedReceiver<R> {
    inner: R,
    open: Arc<OpenCalls>,
    pushes: mpsc::Sender<Push>,
    log: LogLimiter,
}

impl<R: TransportReceiverT + Send> TransportReceiverT for NormalizedReceiver<R> {
    type Error = R::Error;

    async fn receive(&mut self) -> Result<ReceivedMessage, Self::Error> {
        loop {
            let message = match self.inner.receive().await? {
                ReceivedMessage::Text(text) => text.into_bytes(),
                ReceivedMessage::Bytes(bytes) => bytes,
                ReceivedMessage::Pong => return Ok(ReceivedMessage::Pong),
            };
            if let Some(answer) = self.answer(&message).await {
                return Ok(ReceivedMessage::Text(answer));
            }
        }
    }
}

impl<R> NormalizedReceiver<R> {
    /// Processes a message, and returns its normal form if it answers an open call.
    async fn answer(&mut self, message: &[u8]) -> Option<String> {
        match incoming::read(message, &bounds()) {
            Ok(Incoming::Answer(id, answer)) => {
                if self.open.close(&id) {
                    return Some(answer.get().to_owned());
                }
                self.log_dropped(message, "it does not answer an open call");
                None
            }
            Ok(Incoming::Notification(method, params)) => {
                match PUSH_METHODS.into_iter().find(|known| *known == method) {
                    // The channel is bounded, so a governor cannot push messages faster than the executor applies them.
                    Some(method) => drop(self.pushes.send(Push { method, params }).await),
                    None => self.log_dropped(message, "a notification of an unknown method"),
                }
                None
            }
            Err(PeerMessageError { id, reason }) => {
                self.log_dropped(message, &reason);
                id.filter(|id| self.open.close(id)).map(|id| error_answer(&id, &reason))
            }
        }
    }

    fn log_dropped(&self, message: &[u8], reason: &str) {
        let Some(left_out) = self.log.try_acquire(timer_now().into_std()) else { return };
        let excerpt = excerpt(&String::from_utf8_lossy(message));
        tracing::warn!(reason, excerpt, left_out, "dropped a message of the governor");
    }
}

fn bounds() -> JsonBounds {
    JsonBounds { max_bytes: MAX_ANSWER_BYTES as usize, ..JsonBounds::default() }
}

/// The error answer that replaces a malformed answer, so that the call ends at once.
fn error_answer(id: &Id, reason: &str) -> String {
    let message = format!("the answer is not valid: {reason}");
    jsonrpc::error(Some(id), jsonrpc::INTERNAL_ERROR.into(), &message, None).get().to_owned()
}

/// The tower layer of [`NormalizedHttp`].
struct Normalize;

impl<S> Layer<S> for Normalize {
    type Service = NormalizedHttp<S>;

    fn layer(&self, inner: S) -> Self::Service {
        NormalizedHttp(inner)
    }
}

/// An HTTP service with normalized answers.
#[derive(Debug, Clone)]
pub(super) struct NormalizedHttp<S>(S);

impl<S, B> Service<HttpRequest> for NormalizedHttp<S>
where
    S: Service<HttpRequest, Response = HttpResponse<B>, Error = TransportError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = HttpResponse<Full<Bytes>>;
    type Error = TransportError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: HttpRequest) -> Self::Future {
        let response = self.0.call(request);
        Box::pin(async move {
            let (mut head, body) = response.await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES as usize).collect().await;
            let body = body.map_err(transport_error)?.to_bytes();
            let answer = match incoming::read(&body, &bounds()) {
                Ok(Incoming::Answer(_, answer)) => answer,
                Ok(Incoming::Notification(..)) => return Err(transport_error("it is not an answer")),
                Err(PeerMessageError { id: _, reason }) => return Err(transport_error(reason)),
            };
            // Normalization may have changed the length.
            head.headers.remove(http::header::CONTENT_LENGTH);
            Ok(HttpResponse::from_parts(head, Full::new(Bytes::from(answer.get().to_owned()))))
        })
    }
}

fn transport_error(reason: impl Into<BoxError>) -> TransportError {
    TransportError::Http(HttpError::Stream(reason.into()))
}
