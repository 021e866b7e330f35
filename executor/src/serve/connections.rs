//! The connections of the HTTP door: how many there may be, and which one goes when there are too many.
//!
//! A connection counts as idle until the whole of a request has been read. When there is no room for
//! another, the one that has been idle for longest is closed, those first on which no caller was known yet:
//! whoever sends heads and bodies slowly, or nothing at all, gives way to whoever asks for something.

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

/// The longest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// How long to wait when the system gives no connection, such as for want of descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The interval between checks whether the server holds as much as it may, and the number of idle connections that are
/// closed when it does.
const PRESSURE_INTERVAL: Duration = Duration::from_secs(1);
const SHED_AT_ONCE: usize = 32;

/// What connections may be.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// How many there may be at once.
    pub most: usize,
    /// How long a TLS handshake, the head of a request and its body may each take to arrive.
    pub request: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { most: 512, request: Duration::from_secs(30) }
    }
}

/// All that are open.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Rises with everything that happens, to know what happened first.
    now: u64,
    open: BTreeMap<u64, State>,
}

#[derive(Debug)]
struct State {
    /// How many requests are worked on.
    works: usize,
    idle_since: u64,
    /// Whether a caller was known on it.
    known: bool,
    close: Arc<Notify>,
}

/// One connection. It is open as long as anybody has this.
#[derive(Debug)]
pub(super) struct Connection {
    all: Arc<Connections>,
    id: u64,
    close: Arc<Notify>,
    /// The part of a WebSocket's message that has arrived.
    pub(super) arriving: Arc<Arriving>,
}

/// A request that was read and is worked on.
pub(super) struct Work(Arc<Connection>);

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(super) fn open(&self) -> usize {
        self.lock().open.len()
    }

    /// Closes those that have been idle for longest, because the server holds as much as it may: each may hold a
    /// part of a message, or an answer that is not taken.
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

    /// Room for one more, if need be for the one that has been idle for longest. `None` when all work.
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
    /// A whole request was read: the connection stays until it is answered.
    pub(super) fn works(self: &Arc<Self>) -> Work {
        if let Some(state) = self.all.lock().open.get_mut(&self.id) {
            state.works += 1;
        }
        Work(Arc::clone(self))
    }

    /// A caller is known on it: it gives way only when all that are idle have one.
    pub(super) fn known(&self) {
        if let Some(state) = self.all.lock().open.get_mut(&self.id) {
            state.known = true;
        }
    }

    /// Comes when the connection has to give way to another.
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

/// The names of a certificate that was checked, of the connection that a request came over.
#[derive(Debug, Clone, Default)]
pub(super) struct Certified(pub(super) Arc<[Box<str>]>);

/// What every conversation needs.
#[derive(Clone)]
struct Terms {
    router: Router,
    limits: ConnectionLimits,
    tls: Option<Arc<Tls>>,
    stopped: watch::Receiver<bool>,
}

/// Serves until `stop` resolves, and then until open requests are answered.
/// What the system refuses is tried again.
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
                    tracing::warn!(closed, "connections are closed: the executor holds as much as it may");
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
                None => tracing::warn!(most = limits.most, "a connection is refused: all others work"),
            },
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be taken");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
    drop(listener);
    stopping.send_replace(true);
    while tasks.join_next().await.is_some() {}
}

/// One connection, to its end. A port speaks TLS where there is any; a socket in a folder never does.
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

/// Answers requests until the other side, the server, or a lack of room ends it.
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

/// A stream whose other side has to take what is written: one that takes nothing for long is gone. Every byte that is
/// read passes [`Heads`], and is counted as long as it is part of a WebSocket's message.
struct Taken<S> {
    stream: S,
    heads: Heads,
    arriving: Arc<Arriving>,
    patience: Duration,
    /// Until when something has to be taken, while nothing is.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S> Taken<S> {
    fn new(stream: S, patience: Duration, heads: Heads, arriving: Arc<Arriving>) -> Self {
        Self { stream, heads, arriving, patience, until: None }
    }

    /// What became of writing, or that it took too long.
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
        tracing::info!(seconds = patience.as_secs(), "a connection is closed: its answers are not taken");
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
            tracing::info!(
                "a WebSocket is closed: what arrives over it has no room in its caller's share of memory"
            );
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
