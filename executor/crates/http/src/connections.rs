//! The connections of the HTTP listener: their limit, and the eviction of idle ones when the limit is reached.
//!
//! A connection is idle unless a fully read request is being handled. At the limit, each new connection evicts an idle
//! one: the longest idle unauthenticated one, or else the longest idle one. A client that sends heads and bodies
//! slowly, or nothing, therefore cannot lock out clients that send requests.

use super::bare_lf::BareLfFilter;
use super::drain_body::BorrowedBody;
use super::listen::{ClientStream, Listener};
use super::partial_message::PartialMessage;
use super::tls::{self, Tls};
use a2g_types::memory;
use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

/// Maximum length of the head of a request.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Delay before `accept` is called again after an error, such as a lack of file descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The answer to plain HTTP on a port with TLS.
const PLAIN_HTTP_REFUSED: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 71\r\n\
    connection: close\r\n\r\nplain http is refused: this port has TLS (`server.tls`), so use https\r\n";
/// Maximum number of bytes that are read of plain HTTP on a port with TLS.
const MAX_PLAIN_BYTES: usize = 8 << 10;

/// Interval of the checks of the memory budget.
const PRESSURE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of idle connections that one check closes when the memory budget is used up.
const MAX_CLOSED_AT_ONCE: usize = 32;

/// The operator's limits for HTTP and WebSocket connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Maximum number of open connections. Beyond it, an idle connection is evicted for each new one.
    pub max_connections: usize,
    /// Maximum time for each of: a TLS handshake, a request's head, its body, a blocked write.
    pub request_timeout: Duration,
    /// Maximum number of requests without valid credentials from one address, in a burst, and then on average per minute.
    pub unauthenticated_per_minute: NonZeroU32,
}

/// The default of [`ConnectionLimits::unauthenticated_per_minute`].
const UNAUTHENTICATED_PER_MINUTE: NonZeroU32 = NonZeroU32::new(6000).unwrap();

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max_connections: 512,
            request_timeout: Duration::from_secs(30),
            unauthenticated_per_minute: UNAUTHENTICATED_PER_MINUTE,
        }
    }
}

/// The open connections of one listener, and the state that decides which idle one is evicted next.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// A logical clock: it orders events without reading the time.
    now: u64,
    open: BTreeMap<u64, ConnectionState>,
}

#[derive(Debug)]
struct ConnectionState {
    /// Requests that are being handled.
    active_requests: usize,
    idle_since: u64,
    /// `true` once a caller has authenticated on the connection.
    authenticated: bool,
    close: Arc<Notify>,
}

/// One connection. Dropping the last reference removes it from the set.
#[derive(Debug)]
pub struct Connection {
    all: Arc<Connections>,
    id: u64,
    close: Arc<Notify>,
    /// The address of the client; `None` for a Unix socket.
    pub(super) address: Option<IpAddr>,
    /// Counts the bytes of an incomplete WebSocket message.
    pub(super) partial_message: Arc<PartialMessage>,
}

/// Keeps a connection from being idle while a request is handled.
pub struct RequestGuard(Arc<Connection>);

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }

    pub(super) fn count(&self) -> usize {
        self.lock().open.len()
    }

    /// Closes up to `max` idle connections, unauthenticated and longest idle ones first, to free memory: each may hold
    /// part of a message, or an unread answer. Returns the number of closed ones.
    fn close_idle(&self, max: usize) -> usize {
        let mut inner = self.lock();
        let mut idle = inner
            .open
            .iter()
            .filter(|(_, state)| state.active_requests == 0)
            .map(|(id, state)| (state.authenticated, state.idle_since, *id))
            .collect::<Vec<_>>();
        idle.sort_unstable();
        for (_, _, id) in idle.iter().take(max) {
            if let Some(state) = inner.open.remove(id) {
                state.close.notify_one();
            }
        }
        idle.len().min(max)
    }

    /// Adds a connection. If `max` are open, evicts an idle one, or returns `None` if none is idle.
    fn admit(self: &Arc<Self>, max: usize, address: Option<IpAddr>) -> Option<Arc<Connection>> {
        let mut inner = self.lock();
        if inner.open.len() >= max {
            let idle = inner.open.iter().filter(|(_, state)| state.active_requests == 0);
            let (&id, state) = idle.min_by_key(|(_, state)| (state.authenticated, state.idle_since))?;
            state.close.notify_one();
            inner.open.remove(&id);
        }
        inner.now += 1;
        let id = inner.now;
        let close = Arc::new(Notify::new());
        inner.open.insert(
            id,
            ConnectionState {
                active_requests: 0,
                idle_since: id,
                authenticated: false,
                close: Arc::clone(&close),
            },
        );
        drop(inner);
        let partial_message = Arc::default();
        Some(Arc::new(Connection { all: Arc::clone(self), id, close, address, partial_message }))
    }
}

impl Connection {
    /// Marks that a whole request was read: the connection is not evicted until the guard is dropped.
    #[must_use]
    pub fn begin_request(self: &Arc<Self>) -> RequestGuard {
        if let Some(state) = self.all.lock().open.get_mut(&self.id) {
            state.active_requests += 1;
        }
        RequestGuard(Arc::clone(self))
    }

    /// Marks the connection as authenticated: it is evicted only when no unauthenticated connection is idle.
    pub(super) fn mark_authenticated(&self) {
        if let Some(state) = self.all.lock().open.get_mut(&self.id) {
            state.authenticated = true;
        }
    }

    /// Returns `true` once a caller has authenticated on the connection.
    pub(super) fn is_authenticated(&self) -> bool {
        self.all.lock().open.get(&self.id).is_some_and(|state| state.authenticated)
    }

    /// Waits until the connection is evicted.
    pub(super) async fn wait_for_eviction(&self) {
        self.close.notified().await;
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut inner = self.0.all.lock();
        inner.now += 1;
        let now = inner.now;
        if let Some(state) = inner.open.get_mut(&self.0.id) {
            state.active_requests = state.active_requests.saturating_sub(1);
            state.idle_since = now;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.lock().open.remove(&self.id);
    }
}

/// The names in the verified client certificate of a request's connection.
#[derive(Debug, Clone, Default)]
pub struct PeerCertNames(pub Arc<[Box<str>]>);

#[derive(Clone)]
struct ConnectionContext {
    router: Router,
    limits: ConnectionLimits,
    tls: Option<Arc<Tls>>,
    stopped: watch::Receiver<bool>,
}

/// Serves until `stop` resolves, and then until open requests are answered. `accept` is retried after an error.
pub(super) async fn serve(
    listener: Listener,
    router: Router,
    connections: Arc<Connections>,
    limits: ConnectionLimits,
    tls: Option<Arc<Tls>>,
    stop: impl Future<Output = ()>,
) {
    let (stopping, stopped) = watch::channel(false);
    let context = ConnectionContext { router, limits, tls, stopped };
    let mut tasks = JoinSet::new();
    let mut pressure = tokio::time::interval(PRESSURE_INTERVAL);
    pressure.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _tick = pressure.tick() => {
                if !memory::has_room(0) {
                    let closed = connections.close_idle(MAX_CLOSED_AT_ONCE);
                    tracing::warn!(closed, "idle connections are closed: the memory budget (`server.max_memory_mb`) is used up");
                }
                continue;
            }
            Some(_ended) = tasks.join_next() => continue,
            () = &mut stop => break,
        };
        match accepted {
            Ok(stream) => match connections.admit(limits.max_connections, stream.address()) {
                Some(connection) => {
                    tasks.spawn(serve_stream(stream, connection, context.clone()));
                }
                None => tracing::warn!(
                    max_connections = limits.max_connections,
                    "a connection is refused: there are `server.max_connections` connections, and none is idle"
                ),
            },
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
    drop(listener);
    stopping.send_replace(true);
    while tasks.join_next().await.is_some() {}
}

/// Serves one connection to its end. TLS, if configured, applies to ports only, never to Unix sockets.
async fn serve_stream(stream: ClientStream, connection: Arc<Connection>, context: ConnectionContext) {
    match (stream, context.tls.clone()) {
        (ClientStream::Unix(stream), _) => {
            serve_requests(stream, connection, PeerCertNames::default(), context).await
        }
        (ClientStream::Tcp(stream), None) => {
            serve_requests(stream, connection, PeerCertNames::default(), context).await
        }
        (ClientStream::Tcp(stream), Some(tls)) => {
            let handshake = tokio::time::timeout(context.limits.request_timeout, accept_tls(stream, &tls));
            let accepted = tokio::select! {
                accepted = handshake => accepted,
                () = connection.wait_for_eviction() => return,
            };
            match accepted {
                Ok(Ok(stream)) => {
                    let (_, session) = stream.get_ref();
                    let peer_names = PeerCertNames(tls::certificate_names(
                        session.peer_certificates().unwrap_or_default(),
                    ));
                    serve_requests(stream, connection, peer_names, context).await;
                }
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_too_slow) => tracing::debug!("a TLS handshake took too long"),
            }
        }
    }
}

/// Accepts a TLS connection. A client that sends plain HTTP is told so.
async fn accept_tls(mut stream: TcpStream, tls: &Tls) -> io::Result<TlsStream<TcpStream>> {
    let mut first = [0];
    // A handshake begins with 22, a request with the first letter of its method.
    if stream.peek(&mut first).await? == 1 && first.iter().all(u8::is_ascii_uppercase) {
        // Closing a connection with unread bytes resets it, and the client would not see the answer.
        let _read = stream.read(&mut vec![0; MAX_PLAIN_BYTES]).await?;
        stream.write_all(PLAIN_HTTP_REFUSED).await?;
        stream.shutdown().await?;
        return Err(io::Error::other("the client sent plain HTTP"));
    }
    tls.acceptor().accept(stream).await
}

/// Answers requests until the peer closes the connection, the server stops, or the connection is evicted.
async fn serve_requests<S>(
    stream: S,
    connection: Arc<Connection>,
    peer_names: PeerCertNames,
    context: ConnectionContext,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let ConnectionContext { router, limits, tls: _, mut stopped } = context;
    let handle = Arc::clone(&connection);
    let line_feeds = BareLfFilter::default();
    let partial_message = Arc::clone(&connection.partial_message);
    let upgraded = line_feeds.upgrade_flag();
    let is_used = AtomicBool::new(false);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&handle));
        request.extensions_mut().insert(peer_names.clone());
        let expects_continue = request.headers().contains_key(header::EXPECT);
        let request = request.map(BorrowedBody::new);
        let body = request.body().clone();
        let answered = TowerToHyperService::new(router.clone()).call(request);
        let upgraded = Arc::clone(&upgraded);
        let is_first = !is_used.swap(true, Ordering::Relaxed);
        async move {
            // The requests of a connection may all have arrived: other connections take their turns in between.
            if !is_first {
                tokio::task::yield_now().await;
            }
            let mut answer = answered.await?;
            if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                upgraded.store(true, Ordering::Release);
            }
            body.drain(expects_continue, answer.headers_mut()).await;
            Ok::<_, Infallible>(answer)
        }
    });
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(
            TokioIo::new(WriteTimeoutStream::new(
                stream,
                limits.request_timeout,
                line_feeds,
                partial_message,
            )),
            service,
        )
        .with_upgrades();
    tokio::pin!(conversation);
    let result = tokio::select! {
        result = &mut conversation => result,
        () = connection.wait_for_eviction() => return,
        () = async { drop(stopped.wait_for(|stopped| *stopped).await) } => {
            conversation.as_mut().graceful_shutdown();
            conversation.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended");
    }
}

/// A stream with a timeout for writes: a peer that reads nothing for that long is disconnected. Bytes that are read
/// pass through [`BareLfFilter`], and are counted while they belong to an incomplete WebSocket message.
// tokio-io-timeout does not count those bytes.
struct WriteTimeoutStream<S> {
    stream: S,
    line_feeds: BareLfFilter,
    partial_message: Arc<PartialMessage>,
    timeout: Duration,
    /// Runs while a write is pending.
    pending: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeoutStream<S> {
    fn new(
        stream: S,
        timeout: Duration,
        line_feeds: BareLfFilter,
        partial_message: Arc<PartialMessage>,
    ) -> Self {
        Self { stream, line_feeds, partial_message, timeout, pending: None }
    }

    /// Returns the result of a write, or `TimedOut` if writes have been blocked for too long.
    fn check_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.pending = None;
            return written;
        }
        let timeout = self.timeout;
        let pending = self.pending.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        if pending.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        tracing::info!(seconds = timeout.as_secs(), "a connection is closed: its answers are not read");
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        self.line_feeds.filter(into.filled_mut().get_mut(before..).unwrap_or_default());
        if let Err(error) = self.partial_message.add(into.filled().len() - before) {
            tracing::info!("a WebSocket is closed: its message exceeds its caller's share of memory");
            return Poll::Ready(Err(error));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check_timeout(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.check_timeout(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.check_timeout(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.check_timeout(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_peer_that_reads_nothing_times_out_and_a_slow_one_does_not() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let timeout = Duration::from_millis(400);
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut ours = WriteTimeoutStream::new(ours, timeout, BareLfFilter::default(), Arc::default());
        let slow = async {
            for _ in 0..4 {
                tokio::time::sleep(timeout / 4).await;
                theirs.read_exact(&mut [0; 8]).await.unwrap();
            }
            theirs
        };
        let (written, theirs) = tokio::join!(ours.write_all(&[0; 40]), slow);
        written.unwrap();
        let error = ours.write_all(&[0; 40]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
    }

    #[tokio::test]
    async fn unauthenticated_connections_are_evicted_first() {
        let all = Arc::new(Connections::default());
        let [first, second] = std::array::from_fn(|_| all.admit(2, None).unwrap());
        first.mark_authenticated();
        let third = all.admit(2, None).unwrap();
        second.wait_for_eviction().await;
        third.mark_authenticated();
        drop(second);
        let fourth = all.admit(2, None).unwrap();
        first.wait_for_eviction().await;
        drop((first, third, fourth));
    }

    #[tokio::test]
    async fn the_longest_idle_connection_is_evicted_and_a_busy_one_is_not() {
        let all = Arc::new(Connections::default());
        let [first, second, third] = std::array::from_fn(|_| all.admit(3, None).unwrap());
        let working = first.begin_request();
        drop(second.begin_request());
        let fourth = all.admit(3, None).unwrap();
        third.wait_for_eviction().await;
        let fifth = all.admit(3, None).unwrap();
        second.wait_for_eviction().await;
        let busy = (fourth.begin_request(), fifth.begin_request());
        assert!(all.admit(3, None).is_none());
        drop((second, third));
        assert_eq!(all.lock().open.len(), 3);
        drop((busy, fourth, fifth, working, first));
        assert_eq!(all.lock().open.len(), 0);
    }
}
