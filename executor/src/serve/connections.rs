//! The connections of the HTTP port: their limit, and the eviction of idle ones when the limit is reached.
//!
//! A connection counts as idle until a whole request has been read. When there is no room for another, the one that has
//! been idle for longest is closed, unauthenticated ones first. So a client that sends heads and bodies slowly, or
//! nothing at all, cannot keep out one that sends requests.

use super::arriving::Arriving;
use super::heads::Heads;
use super::leftover::Lent;
use super::listen::{Listener, Stream};
use super::tls::{self, Tls};
use crate::memory;
use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Sleep;

/// Length of the head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Pause after an error of `accept`, such as having no file descriptors left.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Interval between checks of the memory budget, and the number of idle connections that are closed each time it is
/// used up.
const PRESSURE_INTERVAL: Duration = Duration::from_secs(1);
const SHED_AT_ONCE: usize = 32;

/// Limits for connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Connections at once.
    pub most: usize,
    /// Time that a TLS handshake, the head of a request and its body may each take to arrive.
    pub request: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { most: 512, request: Duration::from_secs(30) }
    }
}

/// All open connections.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// A logical clock: it orders events without reading the time.
    now: u64,
    open: BTreeMap<u64, State>,
}

#[derive(Debug)]
struct State {
    /// Requests that are being handled.
    works: usize,
    idle_since: u64,
    /// `true` once a caller was authenticated on it.
    known: bool,
    close: Arc<Notify>,
}

/// One connection. Dropping the last reference removes it from the set.
#[derive(Debug)]
pub(super) struct Connection {
    all: Arc<Connections>,
    id: u64,
    close: Arc<Notify>,
    /// The bytes of an incomplete WebSocket message.
    pub(super) arriving: Arc<Arriving>,
}

/// Keeps a connection from being idle while a request is handled.
pub(super) struct Work(Arc<Connection>);

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open(&self) -> usize {
        self.lock().open.len()
    }

    /// Closes up to `most` of the longest idle connections because the memory budget is used up: each may hold part of
    /// a message, or an answer that is not read.
    fn shed(&self, most: usize) -> usize {
        let mut inner = self.lock();
        let mut idle = inner
            .open
            .iter()
            .filter(|(_, state)| state.works == 0)
            .map(|(id, state)| (state.known, state.idle_since, *id))
            .collect::<Vec<_>>();
        idle.sort_unstable();
        for (_, _, id) in idle.iter().take(most) {
            if let Some(state) = inner.open.remove(id) {
                state.close.notify_one();
            }
        }
        idle.len().min(most)
    }

    /// Adds a connection, if necessary in place of the longest idle one. `None` if none is idle.
    fn admit(self: &Arc<Self>, most: usize) -> Option<Arc<Connection>> {
        let mut inner = self.lock();
        if inner.open.len() >= most {
            let idle = inner.open.iter().filter(|(_, state)| state.works == 0);
            let (&id, state) = idle.min_by_key(|(_, state)| (state.known, state.idle_since))?;
            state.close.notify_one();
            inner.open.remove(&id);
        }
        inner.now += 1;
        let (id, close) = (inner.now, Arc::new(Notify::new()));
        inner.open.insert(id, State { works: 0, idle_since: id, known: false, close: Arc::clone(&close) });
        drop(inner);
        Some(Arc::new(Connection { all: Arc::clone(self), id, close, arriving: Arc::default() }))
    }
}

impl Connection {
    /// Marks that a whole request was read: the connection is not evicted until the guard is dropped.
    pub(super) fn works(self: &Arc<Self>) -> Work {
        if let Some(state) = self.all.lock().open.get_mut(&self.id) {
            state.works += 1;
        }
        Work(Arc::clone(self))
    }

    /// Marks the connection as authenticated: it is evicted only when every idle connection is.
    pub(super) fn known(&self) {
        if let Some(state) = self.all.lock().open.get_mut(&self.id) {
            state.known = true;
        }
    }

    /// Waits until the connection is evicted.
    pub(super) async fn gives_way(&self) {
        self.close.notified().await;
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let mut inner = self.0.all.lock();
        inner.now += 1;
        let now = inner.now;
        if let Some(state) = inner.open.get_mut(&self.0.id) {
            state.works = state.works.saturating_sub(1);
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
pub(super) struct Certified(pub(super) Arc<[Box<str>]>);

#[derive(Clone)]
struct Terms {
    router: Router,
    limits: ConnectionLimits,
    tls: Option<Arc<Tls>>,
    stopped: watch::Receiver<bool>,
}

/// Serves until `stop` resolves, and then until open requests are answered. Errors of `accept` are retried.
pub(super) async fn serve(
    listener: Listener,
    router: Router,
    connections: Arc<Connections>,
    limits: ConnectionLimits,
    tls: Option<Arc<Tls>>,
    stop: impl Future<Output = ()>,
) {
    let (stopping, stopped) = watch::channel(false);
    let terms = Terms { router, limits, tls, stopped };
    let mut tasks = JoinSet::new();
    let mut pressure = tokio::time::interval(PRESSURE_INTERVAL);
    pressure.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _tick = pressure.tick() => {
                if !memory::has_room(0) {
                    let closed = connections.shed(SHED_AT_ONCE);
                    tracing::warn!(closed, "idle connections are closed: the memory budget (`server.max_memory_mb`) is used up");
                }
                continue;
            }
            Some(_ended) = tasks.join_next() => continue,
            () = &mut stop => break,
        };
        match accepted {
            Ok(stream) => match connections.admit(limits.most) {
                Some(connection) => {
                    tasks.spawn(receive(stream, connection, terms.clone()));
                }
                None => tracing::warn!(
                    most = limits.most,
                    "a connection is refused: there are as many as `server.max_connections` allows, and none is idle"
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
async fn receive(stream: Stream, connection: Arc<Connection>, terms: Terms) {
    match (stream, terms.tls.clone()) {
        (Stream::Unix(stream), _) => converse(stream, connection, Certified::default(), terms).await,
        (Stream::Tcp(stream), None) => converse(stream, connection, Certified::default(), terms).await,
        (Stream::Tcp(stream), Some(tls)) => {
            let handshake = tokio::time::timeout(terms.limits.request, tls.acceptor().accept(stream));
            let shaken = tokio::select! {
                shaken = handshake => shaken,
                () = connection.gives_way() => return,
            };
            match shaken {
                Ok(Ok(stream)) => {
                    let (_, session) = stream.get_ref();
                    let certified = Certified(tls::names(session.peer_certificates().unwrap_or_default()));
                    converse(stream, connection, certified, terms).await;
                }
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_too_slow) => tracing::debug!("a TLS handshake took too long"),
            }
        }
    }
}

/// Answers requests until the peer closes, the server stops, or the connection is evicted.
async fn converse<S>(stream: S, connection: Arc<Connection>, certified: Certified, terms: Terms)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Terms { router, limits, tls: _, mut stopped } = terms;
    let known = Arc::clone(&connection);
    let (heads, arriving) = (Heads::default(), Arc::clone(&connection.arriving));
    let upgraded = heads.upgraded();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&known));
        request.extensions_mut().insert(certified.clone());
        let held_back = request.headers().contains_key(header::EXPECT);
        let request = request.map(Lent::new);
        let body = request.body().clone();
        let answered = TowerToHyperService::new(router.clone()).call(request);
        let upgraded = Arc::clone(&upgraded);
        async move {
            let mut answer = answered.await?;
            if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                upgraded.store(true, Ordering::Release);
            }
            body.end(held_back, answer.headers_mut()).await;
            Ok::<_, Infallible>(answer)
        }
    });
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(Taken::new(stream, limits.request, heads, arriving)), service)
        .with_upgrades();
    tokio::pin!(conversation);
    let ended = tokio::select! {
        ended = &mut conversation => ended,
        () = connection.gives_way() => return,
        () = async { drop(stopped.wait_for(|stopped| *stopped).await) } => {
            conversation.as_mut().graceful_shutdown();
            conversation.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

/// A stream with a timeout for writes: a peer that reads nothing for that long is disconnected. Bytes that are read
/// pass through [`Heads`], and count while they belong to an incomplete WebSocket message.
struct Taken<S> {
    stream: S,
    heads: Heads,
    arriving: Arc<Arriving>,
    patience: Duration,
    /// Runs while a write is pending.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S> Taken<S> {
    fn new(stream: S, patience: Duration, heads: Heads, arriving: Arc<Arriving>) -> Self {
        Self { stream, heads, arriving, patience, until: None }
    }

    /// Returns the result of a write, or `TimedOut`.
    fn timed<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.until = None;
            return written;
        }
        let patience = self.patience;
        let until = self.until.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        if until.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        tracing::info!(seconds = patience.as_secs(), "a connection is closed: its answers are not read");
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Taken<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        self.heads.check(into.filled_mut().get_mut(before..).unwrap_or_default());
        if let Err(error) = self.arriving.read(into.filled().len() - before) {
            tracing::info!("a WebSocket is closed: its caller's share of memory has no room for its message");
            return Poll::Ready(Err(error));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Taken<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.timed(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.timed(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.timed(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.timed(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_takes_nothing_is_gone_and_who_takes_slowly_is_not() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let patience = Duration::from_millis(400);
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut ours = Taken::new(ours, patience, Heads::default(), Arc::default());
        let slow = async {
            for _ in 0..4 {
                tokio::time::sleep(patience / 4).await;
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
    async fn who_was_never_known_gives_way_before_who_was() {
        let all = Arc::new(Connections::default());
        let [first, second] = std::array::from_fn(|_| all.admit(2).unwrap());
        first.known();
        let third = all.admit(2).unwrap();
        second.gives_way().await;
        third.known();
        drop(second);
        let fourth = all.admit(2).unwrap();
        first.gives_way().await;
        drop((first, third, fourth));
    }

    #[tokio::test]
    async fn who_has_been_idle_for_longest_gives_way_and_who_works_does_not() {
        let all = Arc::new(Connections::default());
        let [first, second, third] = std::array::from_fn(|_| all.admit(3).unwrap());
        let working = first.works();
        let worked = second.works();
        drop(worked);
        let fourth = all.admit(3).unwrap();
        third.gives_way().await;
        let fifth = all.admit(3).unwrap();
        second.gives_way().await;
        let both_work = (fourth.works(), fifth.works());
        assert!(all.admit(3).is_none());
        drop((second, third));
        assert_eq!(all.lock().open.len(), 3);
        drop((both_work, fourth, fifth, working, first));
        assert_eq!(all.lock().open.len(), 0);
    }
}
