//! `wasi:sockets` in a run with a network: name look-ups and outgoing TCP connections.
//!
//! No socket is opened here. Look-ups and connections go to the run's backend, as HTTP requests do, and a
//! connection's bytes travel as two bodies, with at most one chunk waiting in each direction. Listening and UDP are
//! refused and recorded.

use super::state::StoreState;
use crate::egress::{Body, EgressError, NetworkBackend, NetworkError};
use a2g_types::outcome::DenialReason;
use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use parking_lot::{Mutex, MutexGuard};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokio::sync::{mpsc, oneshot};
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::{self, ResolveAddressStream};
use wasmtime_wasi::p2::bindings::sockets::network::{
    self, ErrorCode, IpAddress, IpAddressFamily, IpSocketAddress, Network,
};
use wasmtime_wasi::p2::bindings::sockets::tcp::{self, ShutdownType, TcpSocket};
use wasmtime_wasi::p2::bindings::sockets::{instance_network, tcp_create_socket};
use wasmtime_wasi::p2::{
    DynInputStream, DynOutputStream, DynPollable, InputStream, OutputStream, Pollable, SocketError,
    SocketResult, StreamError, StreamResult, subscribe,
};

/// The interfaces that are linked here.
pub(super) const INTERFACES: [&str; 5] = [
    "wasi:sockets/network",
    "wasi:sockets/instance-network",
    "wasi:sockets/ip-name-lookup",
    "wasi:sockets/tcp",
    "wasi:sockets/tcp-create-socket",
];
/// Maximum size of a chunk that a guest sends, in bytes.
const MAX_CHUNK_BYTES: usize = 64 << 10;

/// Links the [`INTERFACES`].
pub(super) fn link(linker: &mut Linker<StoreState>) -> wasmtime::Result<()> {
    let options = network::LinkOptions::default();
    network::add_to_linker::<StoreState, HasSockets>(linker, &options, |state| Sockets(state))?;
    instance_network::add_to_linker::<StoreState, HasSockets>(linker, |state| Sockets(state))?;
    ip_name_lookup::add_to_linker::<StoreState, HasSockets>(linker, |state| Sockets(state))?;
    tcp::add_to_linker::<StoreState, HasSockets>(linker, |state| Sockets(state))?;
    tcp_create_socket::add_to_linker::<StoreState, HasSockets>(linker, |state| Sockets(state))
}

struct HasSockets;

impl HasData for HasSockets {
    type Data<'a> = Sockets<'a>;
}

// Only the bindings are wasmtime-wasi's. Its implementation opens sockets in the process that runs the guest, and
// allows no more control than a check of addresses.
struct Sockets<'a>(&'a mut StoreState);

/// A borrowed handle of another resource type.
// The bindings' resource types cannot be constructed outside wasmtime-wasi, so the table stores values of this crate
// under handles of those types. The table checks the type of the stored value at each access.
fn borrow_as<T: 'static, U: 'static>(handle: &Resource<T>) -> Resource<U> {
    Resource::new_borrow(handle.rep())
}

/// An owned handle of another resource type.
fn own_as<T: 'static, U: 'static>(handle: &Resource<T>) -> Resource<U> {
    Resource::new_own(handle.rep())
}

impl Sockets<'_> {
    fn table(&mut self) -> &mut ResourceTable {
        self.0.ctx().table
    }

    fn socket(&mut self, socket: &Resource<TcpSocket>) -> SocketResult<&mut Socket> {
        Ok(self.table().get_mut(&borrow_as(socket))?)
    }

    fn backend(&self) -> SocketResult<Arc<dyn NetworkBackend>> {
        // Unreachable, because without a backend the functions that lead here are not linked. The call is denied
        // nevertheless.
        Ok(self.0.http.backend().ok_or(ErrorCode::AccessDenied)?)
    }

    /// Records and refuses a call that no run supports.
    fn deny_unsupported<T>(&self, subject: &str) -> SocketResult<T> {
        self.0.stats.denials.record(subject, DenialReason::NotOffered);
        Err(ErrorCode::NotSupported.into())
    }
}

/// The `wasi:sockets` error code of a refusal.
fn error_code(refusal: EgressError) -> ErrorCode {
    match refusal {
        EgressError::Denied(DenialReason::Connections) => ErrorCode::NewSocketLimit,
        EgressError::Denied(_) => ErrorCode::AccessDenied,
        EgressError::Failed(failure) => match failure {
            NetworkError::Name => ErrorCode::NameUnresolvable,
            NetworkError::Refused => ErrorCode::ConnectionRefused,
            NetworkError::ConnectTimeout => ErrorCode::Timeout,
            NetworkError::Broken => ErrorCode::ConnectionReset,
            NetworkError::RunEnded => ErrorCode::ConnectionAborted,
            NetworkError::Request | NetworkError::RequestHead => ErrorCode::InvalidArgument,
            NetworkError::Scheme
            | NetworkError::Method
            | NetworkError::RequestBody
            | NetworkError::Memory
            | NetworkError::Certificate
            | NetworkError::Tls
            | NetworkError::ResponseTimeout
            | NetworkError::ResponseHead
            | NetworkError::Upgrade
            | NetworkError::Response
            | NetworkError::Incomplete => ErrorCode::Unknown,
        },
    }
}

/// A future, or its output once it has completed.
enum Deferred<T> {
    Pending(Pin<Box<dyn Future<Output = T> + Send>>),
    Ready(T),
}

impl<T> Deferred<T> {
    fn begin(work: Pin<Box<dyn Future<Output = T> + Send>>) -> Self {
        // `start-connect` and `resolve-addresses` begin the work; the guest may wait for it later, or never.
        let mut deferred = Self::Pending(work);
        let _read_later = deferred.poll(&mut noop_context());
        deferred
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<&mut T> {
        if let Self::Pending(work) = self {
            *self = Self::Ready(ready!(work.as_mut().poll(context)));
        }
        match self {
            Self::Ready(output) => Poll::Ready(output),
            Self::Pending(_) => Poll::Pending,
        }
    }
}

/// A context for polling without waiting.
fn noop_context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// The network resource, which a guest passes with each call.
struct NetworkHandle;

/// A name look-up and its addresses.
struct AddressLookup(Deferred<Result<std::vec::IntoIter<IpAddr>, EgressError>>);

#[wasmtime_wasi::async_trait]
impl Pollable for AddressLookup {
    async fn ready(&mut self) {
        std::future::poll_fn(|context| self.0.poll(context).map(drop)).await;
    }
}

/// A guest's TCP socket.
struct Socket {
    family: IpAddressFamily,
    phase: Phase,
}

enum Phase {
    Unconnected,
    Connecting { to: SocketAddr, connected: Deferred<Result<Body, EgressError>>, outgoing: Outgoing },
    Connected { to: SocketAddr, incoming: Arc<Mutex<Incoming>>, outgoing: Arc<Mutex<Outgoing>> },
    Failed,
}

#[wasmtime_wasi::async_trait]
impl Pollable for Socket {
    async fn ready(&mut self) {
        match &mut self.phase {
            Phase::Connecting { connected, .. } => {
                std::future::poll_fn(|context| connected.poll(context).map(drop)).await;
            }
            Phase::Unconnected | Phase::Connected { .. } | Phase::Failed => {}
        }
    }
}

/// The receiving direction of a connection.
struct Incoming {
    body: Body,
    /// Received bytes that the guest has not read yet.
    chunk: Bytes,
    ended: bool,
    /// The reason of the end, until the guest has received it.
    refusal: Option<EgressError>,
}

impl Incoming {
    fn new(body: Body) -> Self {
        Self { body, chunk: Bytes::new(), ended: false, refusal: None }
    }

    /// Ready when there are bytes to read or the direction has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while !self.ended && self.chunk.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(part)) => self.chunk = part.into_data().unwrap_or_default(),
                Some(Err(refusal)) => (self.ended, self.refusal) = (true, Some(refusal)),
                None => self.ended = true,
            }
        }
        Poll::Ready(())
    }

    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        if self.poll(&mut noop_context()).is_pending() || size == 0 {
            return Ok(Bytes::new());
        }
        if !self.chunk.is_empty() {
            return Ok(self.chunk.split_to(size.min(self.chunk.len())));
        }
        Err(self.refusal.take().map_or(StreamError::Closed, |refusal| {
            StreamError::LastOperationFailed(wasmtime::Error::new(refusal))
        }))
    }

    /// Discards received bytes and ends the direction.
    fn discard(&mut self) {
        (self.ended, self.refusal) = (true, None);
        self.chunk.clear();
    }
}

/// The sending direction of a connection: one chunk at a time.
// A chunk is sent only after the kernel has accepted the previous one: a guest may end as soon as it has flushed its
// bytes, and they must not be lost.
struct Outgoing {
    /// `None` after the guest has shut this direction down.
    chunks: Option<mpsc::Sender<OutgoingChunk>>,
    /// Completes when the kernel has accepted the last chunk, or the connection has ended.
    last: Option<oneshot::Receiver<Infallible>>,
}

/// Bytes, and a sender that is dropped when the kernel has accepted them.
type OutgoingChunk = (Bytes, oneshot::Sender<Infallible>);

/// The uploaded body, which [`Outgoing`] feeds.
struct Upload {
    chunks: mpsc::Receiver<OutgoingChunk>,
    acknowledgement: Option<oneshot::Sender<Infallible>>,
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = EgressError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EgressError>>> {
        // A request for the next chunk acknowledges the previous one.
        self.acknowledgement = None;
        let chunk = ready!(self.chunks.poll_recv(context));
        Poll::Ready(chunk.map(|(bytes, acknowledgement)| {
            self.acknowledgement = Some(acknowledgement);
            Ok(Frame::data(bytes))
        }))
    }
}

impl Outgoing {
    fn new() -> (Self, Body) {
        let (sender, chunks) = mpsc::channel(1);
        let upload = Upload { chunks, acknowledgement: None };
        (Self { chunks: Some(sender), last: None }, upload.boxed_unsync())
    }

    /// Ready when the kernel has accepted the last chunk: `Ok` if another may be sent.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<StreamResult<()>> {
        if let Some(last) = &mut self.last {
            let _sender_is_dropped = ready!(Pin::new(last).poll(context));
            self.last = None;
        }
        let open = self.chunks.as_ref().is_some_and(|chunks| !chunks.is_closed());
        Poll::Ready(if open { Ok(()) } else { Err(StreamError::Closed) })
    }

    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.poll(&mut noop_context())?.is_pending() || bytes.len() > MAX_CHUNK_BYTES {
            return Err(StreamError::trap("more was written than `check-write` permitted"));
        }
        let (acknowledgement, last) = oneshot::channel();
        let result = self.chunks.as_ref().map(|chunks| chunks.try_send((bytes, acknowledgement)));
        match result {
            Some(Ok(())) => self.last = Some(last),
            Some(Err(_)) | None => return Err(StreamError::Closed),
        }
        Ok(())
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock()
}

struct TcpInputStream(Arc<Mutex<Incoming>>);

#[wasmtime_wasi::async_trait]
impl Pollable for TcpInputStream {
    async fn ready(&mut self) {
        std::future::poll_fn(|context| lock(&self.0).poll(context)).await;
    }
}

#[wasmtime_wasi::async_trait]
impl InputStream for TcpInputStream {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        lock(&self.0).read(size)
    }
}

struct TcpOutputStream(Arc<Mutex<Outgoing>>);

#[wasmtime_wasi::async_trait]
impl Pollable for TcpOutputStream {
    async fn ready(&mut self) {
        std::future::poll_fn(|context| lock(&self.0).poll(context).map(drop)).await;
    }
}

#[wasmtime_wasi::async_trait]
impl OutputStream for TcpOutputStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        lock(&self.0).write(bytes)
    }

    fn flush(&mut self) -> StreamResult<()> {
        // Chunks are sent without being flushed; `check-write` waits for the last one.
        match lock(&self.0).poll(&mut noop_context()) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        match lock(&self.0).poll(&mut noop_context()) {
            Poll::Ready(result) => result.map(|()| MAX_CHUNK_BYTES),
            Poll::Pending => Ok(0),
        }
    }

    async fn cancel(&mut self) {
        // Written bytes are delivered even if the guest drops the stream at once.
        self.ready().await;
    }
}

impl network::Host for Sockets<'_> {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn network_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        let error = self.table().get(&error)?;
        Ok(error.downcast_ref::<EgressError>().map(|refusal| error_code(*refusal)))
    }
}

impl network::HostNetwork for Sockets<'_> {
    fn drop(&mut self, network: Resource<Network>) -> wasmtime::Result<()> {
        self.table().delete::<NetworkHandle>(own_as(&network))?;
        Ok(())
    }
}

impl instance_network::Host for Sockets<'_> {
    fn instance_network(&mut self) -> wasmtime::Result<Resource<Network>> {
        Ok(own_as(&self.table().push(NetworkHandle)?))
    }
}

impl ip_name_lookup::Host for Sockets<'_> {
    fn resolve_addresses(
        &mut self,
        network: Resource<Network>,
        name: String,
    ) -> SocketResult<Resource<ResolveAddressStream>> {
        self.table().get::<NetworkHandle>(&borrow_as(&network))?;
        let look_up = self.backend()?.look_up(name);
        let addresses = async { look_up.await.map(Vec::into_iter) };
        Ok(own_as(&self.table().push(AddressLookup(Deferred::begin(Box::pin(addresses))))?))
    }
}

impl ip_name_lookup::HostResolveAddressStream for Sockets<'_> {
    fn resolve_next_address(
        &mut self,
        stream: Resource<ResolveAddressStream>,
    ) -> SocketResult<Option<IpAddress>> {
        let look_up = self.table().get_mut::<AddressLookup>(&borrow_as(&stream))?;
        match look_up.0.poll(&mut noop_context()) {
            Poll::Pending => Err(ErrorCode::WouldBlock.into()),
            Poll::Ready(Ok(addresses)) => Ok(addresses.next().map(IpAddress::from)),
            Poll::Ready(Err(refusal)) => Err(error_code(*refusal).into()),
        }
    }

    fn subscribe(
        &mut self,
        stream: Resource<ResolveAddressStream>,
    ) -> wasmtime::Result<Resource<DynPollable>> {
        subscribe::<AddressLookup>(self.table(), borrow_as(&stream))
    }

    fn drop(&mut self, stream: Resource<ResolveAddressStream>) -> wasmtime::Result<()> {
        self.table().delete::<AddressLookup>(own_as(&stream))?;
        Ok(())
    }
}

impl tcp_create_socket::Host for Sockets<'_> {
    fn create_tcp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<TcpSocket>> {
        Ok(own_as(&self.table().push(Socket { family, phase: Phase::Unconnected })?))
    }
}

impl tcp::Host for Sockets<'_> {}

impl tcp::HostTcpSocket for Sockets<'_> {
    fn start_connect(
        &mut self,
        socket: Resource<TcpSocket>,
        network: Resource<Network>,
        to: IpSocketAddress,
    ) -> SocketResult<()> {
        self.table().get::<NetworkHandle>(&borrow_as(&network))?;
        let backend = self.backend()?;
        let socket = self.socket(&socket)?;
        let to = SocketAddr::from(to);
        let is_same_family = match (socket.family, to) {
            (IpAddressFamily::Ipv4, SocketAddr::V4(_)) | (IpAddressFamily::Ipv6, SocketAddr::V6(_)) => true,
            (IpAddressFamily::Ipv4, SocketAddr::V6(_)) | (IpAddressFamily::Ipv6, SocketAddr::V4(_)) => false,
        };
        if !is_same_family {
            return Err(ErrorCode::InvalidArgument.into());
        }
        match socket.phase {
            Phase::Unconnected => {}
            Phase::Connecting { .. } => return Err(ErrorCode::ConcurrencyConflict.into()),
            Phase::Connected { .. } | Phase::Failed => return Err(ErrorCode::InvalidState.into()),
        }
        let (outgoing, upload) = Outgoing::new();
        let connected = Deferred::begin(backend.connect(to, upload));
        socket.phase = Phase::Connecting { to, connected, outgoing };
        Ok(())
    }

    fn finish_connect(
        &mut self,
        this: Resource<TcpSocket>,
    ) -> SocketResult<(Resource<DynInputStream>, Resource<DynOutputStream>)> {
        let socket = self.socket(&this)?;
        let Phase::Connecting { connected, .. } = &mut socket.phase else {
            return Err(ErrorCode::NotInProgress.into());
        };
        if connected.poll(&mut noop_context()).is_pending() {
            return Err(ErrorCode::WouldBlock.into());
        }
        let Phase::Connecting { to, connected: Deferred::Ready(result), outgoing } =
            std::mem::replace(&mut socket.phase, Phase::Failed)
        else {
            return Err(ErrorCode::NotInProgress.into());
        };
        let incoming = Arc::new(Mutex::new(Incoming::new(result.map_err(error_code)?)));
        let outgoing = Arc::new(Mutex::new(outgoing));
        let input: DynInputStream = Box::new(TcpInputStream(Arc::clone(&incoming)));
        let output: DynOutputStream = Box::new(TcpOutputStream(Arc::clone(&outgoing)));
        socket.phase = Phase::Connected { to, incoming, outgoing };
        let (table, this) = (self.table(), borrow_as::<_, Socket>(&this));
        Ok((table.push_child(input, &this)?, table.push_child(output, &this)?))
    }

    fn remote_address(&mut self, socket: Resource<TcpSocket>) -> SocketResult<IpSocketAddress> {
        match self.socket(&socket)?.phase {
            Phase::Connected { to, .. } => Ok(to.into()),
            Phase::Unconnected | Phase::Connecting { .. } | Phase::Failed => {
                Err(ErrorCode::InvalidState.into())
            }
        }
    }

    fn local_address(&mut self, socket: Resource<TcpSocket>) -> SocketResult<IpSocketAddress> {
        // The unspecified address: a guest must not learn the server's own.
        let socket = self.socket(&socket)?;
        let unspecified = match socket.family {
            IpAddressFamily::Ipv4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddressFamily::Ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        match socket.phase {
            Phase::Connected { .. } => Ok(SocketAddr::new(unspecified, 0).into()),
            Phase::Unconnected | Phase::Connecting { .. } | Phase::Failed => {
                Err(ErrorCode::InvalidState.into())
            }
        }
    }

    fn address_family(&mut self, socket: Resource<TcpSocket>) -> wasmtime::Result<IpAddressFamily> {
        Ok(self.table().get::<Socket>(&borrow_as(&socket))?.family)
    }

    fn subscribe(&mut self, socket: Resource<TcpSocket>) -> wasmtime::Result<Resource<DynPollable>> {
        subscribe::<Socket>(self.table(), borrow_as(&socket))
    }

    fn shutdown(&mut self, socket: Resource<TcpSocket>, how: ShutdownType) -> SocketResult<()> {
        let Phase::Connected { incoming, outgoing, .. } = &self.socket(&socket)?.phase else {
            return Err(ErrorCode::InvalidState.into());
        };
        let (receive, send) = match how {
            ShutdownType::Receive => (true, false),
            ShutdownType::Send => (false, true),
            ShutdownType::Both => (true, true),
        };
        if receive {
            lock(incoming).discard();
        }
        if send {
            lock(outgoing).chunks = None;
        }
        Ok(())
    }

    fn drop(&mut self, socket: Resource<TcpSocket>) -> wasmtime::Result<()> {
        self.table().delete::<Socket>(own_as(&socket))?;
        Ok(())
    }

    async fn start_bind(
        &mut self,
        _: Resource<TcpSocket>,
        _: Resource<Network>,
        _: IpSocketAddress,
    ) -> SocketResult<()> {
        self.deny_unsupported("wasi:sockets/tcp: bind")
    }

    fn finish_bind(&mut self, _: Resource<TcpSocket>) -> SocketResult<()> {
        Err(ErrorCode::NotInProgress.into())
    }

    async fn start_listen(&mut self, _: Resource<TcpSocket>) -> SocketResult<()> {
        self.deny_unsupported("wasi:sockets/tcp: listen")
    }

    fn finish_listen(&mut self, _: Resource<TcpSocket>) -> SocketResult<()> {
        Err(ErrorCode::NotInProgress.into())
    }

    fn accept(
        &mut self,
        _: Resource<TcpSocket>,
    ) -> SocketResult<(Resource<TcpSocket>, Resource<DynInputStream>, Resource<DynOutputStream>)> {
        self.deny_unsupported("wasi:sockets/tcp: accept")
    }

    fn is_listening(&mut self, _: Resource<TcpSocket>) -> wasmtime::Result<bool> {
        Ok(false)
    }

    // The underlying socket belongs to the server, so all of its options are refused.

    fn set_listen_backlog_size(&mut self, _: Resource<TcpSocket>, _: u64) -> SocketResult<()> {
        Err(ErrorCode::NotSupported.into())
    }

    fn keep_alive_enabled(&mut self, _: Resource<TcpSocket>) -> SocketResult<bool> {
        Err(ErrorCode::NotSupported.into())
    }

    fn set_keep_alive_enabled(&mut self, _: Resource<TcpSocket>, _: bool) -> SocketResult<()> {
        Err(ErrorCode::NotSupported.into())
    }

    fn keep_alive_idle_time(&mut self, _: Resource<TcpSocket>) -> SocketResult<u64> {
        Err(ErrorCode::NotSupported.into())
    }

    fn set_keep_alive_idle_time(&mut self, _: Resource<TcpSocket>, _: u64) -> SocketResult<()> {
        Err(ErrorCode::NotSupported.into())
    }

    fn keep_alive_interval(&mut self, _: Resource<TcpSocket>) -> SocketResult<u64> {
        Err(ErrorCode::NotSupported.into())
    }

    fn set_keep_alive_interval(&mut self, _: Resource<TcpSocket>, _: u64) -> SocketResult<()> {
        Err(ErrorCode::NotSupported.into())
    }

    fn keep_alive_count(&mut self, _: Resource<TcpSocket>) -> SocketResult<u32> {
        Err(ErrorCode::NotSupported.into())
    }

    fn set_keep_alive_count(&mut self, _: Resource<TcpSocket>, _: u32) -> SocketResult<()> {
        Err(ErrorCode::NotSupported.into())
    }

    fn hop_limit(&mut self, _: Resource<TcpSocket>) -> SocketResult<u8> {
        Err(ErrorCode::NotSupported.into())
    }

    fn set_hop_limit(&mut self, _: Resource<TcpSocket>, _: u8) -> SocketResult<()> {
        Err(ErrorCode::NotSupported.into())
    }

    fn receive_buffer_size(&mut self, _: Resource<TcpSocket>) -> SocketResult<u64> {
        Err(ErrorCode::NotSupported.into())
    }

    fn set_receive_buffer_size(&mut self, _: Resource<TcpSocket>, _: u64) -> SocketResult<()> {
        Err(ErrorCode::NotSupported.into())
    }

    fn send_buffer_size(&mut self, _: Resource<TcpSocket>) -> SocketResult<u64> {
        Err(ErrorCode::NotSupported.into())
    }

    fn set_send_buffer_size(&mut self, _: Resource<TcpSocket>, _: u64) -> SocketResult<()> {
        Err(ErrorCode::NotSupported.into())
    }
}
