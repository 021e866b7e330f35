//! WebSockets: the limits of a connection, authentication of every message, and writes with a timeout.

use crate::connections::{Connection, RequestGuard};
use a2g_govern::Caller;
use a2g_runtime::spawn::SessionTasks;
use a2g_types::clock::Clock;
use a2g_types::rate_limit::{RateLimit, RateState};
use a2g_wire::strict_json::JsonBounds;
use axum::body::Bytes;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Bytes of a client's frame besides its content: a header of two and a mask of four.
const MIN_FRAME_BYTES: usize = 6;
/// Maximum number of pings of one WebSocket in a burst. They are limited because each is answered, even if the peer
/// reads no answers.
const PING_BURST: NonZeroU32 = NonZeroU32::new(10).unwrap();
/// Average interval of further pings.
const PING_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of bytes that wait to be written to one WebSocket: as many as the longest answer has.
const MAX_UNREAD_BYTES: usize = 64 << 20;
/// Size of a WebSocket's read buffer, which grows for a longer message. The library zeroes it before each read, so a
/// larger one takes time and stays resident for as long as the connection is open.
const READ_BUFFER_BYTES: usize = 8 << 10;
/// Maximum number of messages of one WebSocket that are handled concurrently. Further ones are not read until one of
/// them is answered.
pub const MAX_CONCURRENT: usize = 64;

/// Accepts an upgrade, and serves the WebSocket until `serve` ends, the connection is evicted, or the sessions end.
/// `caller` is `None` if the request is not authenticated. Dropping the future of `serve` has to release its resources.
pub fn accept<F>(
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    bounds: &JsonBounds,
    connection: Arc<Connection>,
    caller: Option<&Caller>,
    sessions: SessionTasks,
    serve: impl FnOnce(WebSocket) -> F + Send + 'static,
) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let max_bytes = bounds.max_bytes;
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return reject_upgrade(rejection),
    };
    if let Some(caller) = caller {
        connection.mark_authenticated();
        connection.partial_message.set_caller(caller.name());
    }
    let upgrade = upgrade.read_buffer_size(READ_BUFFER_BYTES).max_write_buffer_size(MAX_UNREAD_BYTES);
    upgrade.max_message_size(max_bytes).max_frame_size(max_bytes).on_upgrade(async move |socket| {
        let conversation = async {
            tokio::select! {
                () = serve(socket) => {}
                () = connection.wait_for_eviction() => {}
            }
        };
        sessions.adopt(conversation).await;
    })
}

/// The answer to a request that cannot be upgraded. `GET` and `HEAD` without an upgrade get the same 426.
fn reject_upgrade(rejection: WebSocketUpgradeRejection) -> Response {
    let is_plain_request = matches!(
        rejection,
        WebSocketUpgradeRejection::MethodNotGet(_)
            | WebSocketUpgradeRejection::InvalidConnectionHeader(_)
            | WebSocketUpgradeRejection::InvalidUpgradeHeader(_)
    );
    if !is_plain_request {
        return rejection.into_response();
    }
    let head = [(header::UPGRADE, "websocket"), (header::CONNECTION, "upgrade")];
    let message =
        "this path is a WebSocket: request it with `Upgrade: websocket`, or send messages with `POST`\n";
    (StatusCode::UPGRADE_REQUIRED, head, message).into_response()
}

/// Splits a WebSocket into its two directions. `authenticate` is called for every message.
pub fn split<A>(
    socket: WebSocket,
    connection: Arc<Connection>,
    clock: Arc<dyn Clock>,
    write_timeout: Duration,
    authenticate: A,
) -> (MessageReader<A>, MessageSink) {
    let (sink, stream) = socket.split();
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
    let reader = MessageReader {
        stream,
        connection,
        clock,
        authenticate,
        permits,
        pings: RateState::default(),
        idle_timeout: None,
    };
    (reader, MessageSink { sink, write_timeout })
}

/// The messages of a WebSocket.
pub struct MessageReader<A> {
    stream: SplitStream<WebSocket>,
    connection: Arc<Connection>,
    clock: Arc<dyn Clock>,
    authenticate: A,
    permits: Arc<Semaphore>,
    pings: RateState,
    idle_timeout: Option<Duration>,
}

/// The result of reading from a WebSocket.
pub enum Incoming {
    /// A message of an authenticated caller.
    Message(IncomingMessage),
    /// The peer closed the connection, was silent for too long, or sent too many pings or a message that is invalid or
    /// too long.
    Closed,
    /// The caller of a message is no longer authenticated.
    Unauthenticated,
}

/// A message of an authenticated caller.
pub struct IncomingMessage {
    /// Its content.
    pub bytes: Bytes,
    /// Its sender.
    pub caller: Arc<Caller>,
    /// Keeps the connection from being evicted.
    pub work: RequestGuard,
    /// One of the [`MAX_CONCURRENT`] permits, to be dropped when the message is answered.
    pub permit: OwnedSemaphorePermit,
}

impl<A: FnMut() -> Option<Arc<Caller>>> MessageReader<A> {
    /// Adds a timeout: the connection of a peer that sends nothing for this long, not even a pong, is closed.
    #[must_use]
    pub fn with_idle_timeout(self, idle_timeout: Duration) -> Self {
        Self { idle_timeout: Some(idle_timeout), ..self }
    }

    /// Reads the next message, and waits until fewer than [`MAX_CONCURRENT`] others are being handled.
    pub async fn next(&mut self) -> Incoming {
        let bytes = loop {
            let frame = match self.idle_timeout {
                None => self.stream.next().await,
                Some(idle_timeout) => match timeout(idle_timeout, self.stream.next()).await {
                    Ok(frame) => frame,
                    Err(_elapsed) => {
                        tracing::debug!("a WebSocket is closed: it was silent for too long");
                        return Incoming::Closed;
                    }
                },
            };
            match frame {
                Some(Ok(Message::Text(text))) => break Bytes::from(text),
                Some(Ok(Message::Binary(bytes))) => break bytes,
                Some(Ok(Message::Ping(content))) if self.acquire_ping() => {
                    self.subtract_control_frame(&content);
                }
                Some(Ok(Message::Pong(content))) => self.subtract_control_frame(&content),
                Some(Ok(Message::Ping(_) | Message::Close(_)) | Err(_)) | None => return Incoming::Closed,
            }
        };
        let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else { return Incoming::Closed };
        // Authenticated after the wait for a permit, because the peer can prolong that wait.
        let Some(caller) = (self.authenticate)() else { return Incoming::Unauthenticated };
        self.connection.partial_message.complete();
        let work = self.connection.begin_request();
        Incoming::Message(IncomingMessage { bytes, caller, work, permit })
    }

    /// Counts one ping. Returns `false` if it exceeds the limit.
    fn acquire_ping(&mut self) -> bool {
        self.pings.acquire(RateLimit::new(PING_BURST, PING_INTERVAL), self.clock.monotonic()).is_ok()
    }

    /// Subtracts a control frame from the bytes of the partial message.
    fn subtract_control_frame(&self, content: &Bytes) {
        self.connection.partial_message.subtract(content.len() + MIN_FRAME_BYTES);
    }
}

/// The writing direction of a WebSocket.
pub struct MessageSink {
    sink: SplitSink<WebSocket, Message>,
    write_timeout: Duration,
}

impl MessageSink {
    /// Sends a message. Returns `false` if the peer does not read it in time, or has disconnected.
    pub async fn send(&mut self, message: Message) -> bool {
        matches!(timeout(self.write_timeout, self.sink.send(message)).await, Ok(Ok(())))
    }

    /// Closes the connection with a code of RFC 6455 and a reason of at most 123 bytes.
    pub async fn close(&mut self, code: u16, reason: &str) {
        let frame = CloseFrame { code, reason: reason.into() };
        let _disconnected = self.send(Message::Close(Some(frame))).await;
    }
}
