//! The transports of the governor's client, with every received message in its normal form.
//!
//! jsonrpsee's client ends a WebSocket, and fails every call on it, at a message that it cannot parse or whose id it
//! does not know. Here such a message is logged and dropped, and ends no call but the one that it names.

use super::{CALL_TIMEOUT, MAX_ANSWER_BYTES, MAX_REPORT_BYTES, PUSHES, Push};
use crate::clock::timer_now;
use crate::ident::excerpt;
use crate::lines::Lines;
use crate::wire::jsonrpc::incoming::{self, Incoming, PeerMessageError};
use crate::wire::jsonrpc::{self, Id};
use crate::wire::strict_json::JsonBounds;
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
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::HashSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tower::{Layer, Service, ServiceBuilder};

/// The largest message that is read from a WebSocket, in bytes. One beyond it ends the connection; one beyond
/// [`MAX_ANSWER_BYTES`] only its own call.
const MAX_MESSAGE_BYTES: u32 = 16 << 20;
/// The most unanswered calls of one connection before another connection takes its place. The client keeps each of them
/// until it is answered.
const MAX_UNANSWERED: usize = 16_384;

/// A client over HTTP.
pub(super) type HttpClient = Client<RpcLogger<RpcService<NormalizedHttp<HttpBackend>>>>;

/// A client over HTTP whose answers are in normal form.
///
/// # Errors
/// When the URL cannot be used.
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
pub(super) struct Connection {
    pub(super) client: WsClient,
    open: Arc<OpenCalls>,
}

impl Connection {
    /// Connects. Notifications of the governor go to `pushes`.
    ///
    /// # Errors
    /// When there is no connection.
    pub(super) async fn open(url: &str, pushes: mpsc::Sender<Push>) -> Result<Self, ClientError> {
        let url = Url::parse(url).map_err(|error| ClientError::Transport(error.into()))?;
        let transport = WsTransportClientBuilder::default()
            .connection_timeout(CALL_TIMEOUT)
            .max_request_size(MAX_REPORT_BYTES)
            .max_response_size(MAX_MESSAGE_BYTES);
        let (sender, receiver) =
            transport.build(url).await.map_err(|error| ClientError::Transport(error.into()))?;
        let open = Arc::new(OpenCalls::default());
        let sender = NotingSender { inner: sender, open: Arc::clone(&open) };
        let receiver =
            NormalizedReceiver { inner: receiver, open: Arc::clone(&open), pushes, log: Lines::default() };
        let client = WsClientBuilder::default()
            .request_timeout(CALL_TIMEOUT)
            .id_format(IdKind::String)
            .enable_ws_ping(PingConfig::default())
            .build_with_transport(sender, receiver);
        Ok(Self { client, open })
    }

    /// `true` while another call can go over it.
    pub(super) fn is_usable(&self) -> bool {
        self.client.is_connected() && self.open.count() < MAX_UNANSWERED
    }
}

/// The ids of the calls that are sent and not answered.
#[derive(Debug, Default)]
struct OpenCalls(Mutex<HashSet<String>>);

impl OpenCalls {
    fn note(&self, message: &str) {
        if let Some(id) = id_of(message) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
        }
    }

    /// Takes out the call that an answer with this id is for.
    fn close(&self, id: &Id) -> bool {
        let Ok(id) = serde_json::from_str::<String>(id.as_json()) else { return false };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The id of a call of ours.
fn id_of(message: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Call<'a> {
        #[serde(borrow)]
        id: Cow<'a, str>,
    }
    serde_json::from_str::<Call<'_>>(message).ok().map(|call| call.id.into_owned())
}

/// A sender that notes which calls it sends.
struct NotingSender<S> {
    inner: S,
    open: Arc<OpenCalls>,
}

impl<S: TransportSenderT + Send> TransportSenderT for NotingSender<S> {
    type Error = S::Error;

    async fn send(&mut self, message: String) -> Result<(), Self::Error> {
        self.open.note(&message);
        self.inner.send(message).await
    }

    fn send_ping(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.inner.send_ping()
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.inner.close()
    }
}

/// A receiver that gives its client answers to open calls, in normal form, and nothing else.
struct NormalizedReceiver<R> {
    inner: R,
    open: Arc<OpenCalls>,
    pushes: mpsc::Sender<Push>,
    log: Lines,
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
    /// Reads a message; the answer when it is one to an open call.
    async fn answer(&mut self, message: &[u8]) -> Option<String> {
        match incoming::read(message, &bounds()) {
            Ok(Incoming::Answer(id, answer)) => {
                if self.open.close(&id) {
                    return Some(answer.get().to_owned());
                }
                self.log_dropped(message, "it answers no call that is open");
                None
            }
            Ok(Incoming::Notification(method, params)) => {
                match PUSHES.into_iter().find(|known| *known == method) {
                    // A governor that pushes faster than it is obeyed waits.
                    Some(method) => drop(self.pushes.send(Push { method, params }).await),
                    None => self.log_dropped(message, "a notification of an unknown method"),
                }
                None
            }
            Err(PeerMessageError { id, reason }) => {
                self.log_dropped(message, &reason);
                id.filter(|id| self.open.close(id)).map(|id| not_understood(&id, &reason))
            }
        }
    }

    fn log_dropped(&self, message: &[u8], reason: &str) {
        let Some(left_out) = self.log.one_more(timer_now().into_std()) else { return };
        let excerpt = excerpt(&String::from_utf8_lossy(message));
        tracing::warn!(reason, excerpt, left_out, "a message of the governor is dropped");
    }
}

fn bounds() -> JsonBounds {
    JsonBounds { max_bytes: MAX_ANSWER_BYTES as usize, ..JsonBounds::default() }
}

/// An answer in the place of one that is malformed, so that its call ends at once.
fn not_understood(id: &Id, reason: &str) -> String {
    let message = format!("an answer that cannot be understood: {reason}");
    jsonrpc::error(Some(id), super::INTERNAL_ERROR.into(), &message, None).get().to_owned()
}

/// Puts [`NormalizedHttp`] around a service.
struct Normalize;

impl<S> Layer<S> for Normalize {
    type Service = NormalizedHttp<S>;

    fn layer(&self, inner: S) -> Self::Service {
        NormalizedHttp(inner)
    }
}

/// An HTTP service whose answers are in normal form.
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
        let answered = self.0.call(request);
        Box::pin(async move {
            let (mut head, body) = answered.await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES as usize).collect().await;
            let body = body.map_err(unusable)?.to_bytes();
            let answer = match incoming::read(&body, &bounds()) {
                Ok(Incoming::Answer(_, answer)) => answer,
                Ok(Incoming::Notification(..)) => return Err(unusable("it is not an answer")),
                Err(PeerMessageError { id: _, reason }) => return Err(unusable(reason)),
            };
            // Its length may be another one now.
            head.headers.remove(http::header::CONTENT_LENGTH);
            Ok(HttpResponse::from_parts(head, Full::new(Bytes::from(answer.get().to_owned()))))
        })
    }
}

fn unusable(reason: impl Into<BoxError>) -> TransportError {
    TransportError::Http(HttpError::Stream(reason.into()))
}
