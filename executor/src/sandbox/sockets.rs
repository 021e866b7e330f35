//! `wasi:sockets` in a run with a network: names, and TCP connections that the guest begins.
//!
//! No socket is opened here. A look-up and a connection go to the run's carrier, as requests do, and their
//! bytes come and go as bodies: one piece of each direction waits at the most. What would listen, and UDP,
//! is refused and counted.

use super::state::State;
use crate::egress::{Body, Carrier, EgressError, NetworkError};
use crate::outcome::DenialReason;
use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
pub(super) const OFFERED: [&str; 5] = [
    "wasi:sockets/network",
    "wasi:sockets/instance-network",
    "wasi:sockets/ip-name-lookup",
    "wasi:sockets/tcp",
    "wasi:sockets/tcp-create-socket",
];
/// The most bytes of one piece that a guest sends.
const PIECE_BYTES: usize = 64 << 10;

/// Links what is offered of `wasi:sockets`.
pub(super) fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let options = network::LinkOptions::default();
    network::add_to_linker::<State, HasSockets>(linker, &options, |state| Sockets(state))?;
    instance_network::add_to_linker::<State, HasSockets>(linker, |state| Sockets(state))?;
    ip_name_lookup::add_to_linker::<State, HasSockets>(linker, |state| Sockets(state))?;
    tcp::add_to_linker::<State, HasSockets>(linker, |state| Sockets(state))?;
    tcp_create_socket::add_to_linker::<State, HasSockets>(linker, |state| Sockets(state))
}

struct HasSockets;

impl HasData for HasSockets {
    type Data<'a> = Sockets<'a>;
}

struct Sockets<'a>(&'a mut State);

/// Our own handle for a value whose type in the bindings is wasmtime's, and can be made there only. The table
/// looks at what is really there.
fn ours<T: 'static, U: 'static>(handle: &Resource<T>) -> Resource<U> {
    Resource::new_borrow(handle.rep())
}

/// The same the other way, and for what is deleted.
fn owned<T: 'static, U: 'static>(handle: &Resource<T>) -> Resource<U> {
    Resource::new_own(handle.rep())
}

impl Sockets<'_> {
    fn table(&mut self) -> &mut ResourceTable {
        self.0.ctx().table
    }

    fn socket(&mut self, socket: &Resource<TcpSocket>) -> SocketResult<&mut Socket> {
        Ok(self.table().get_mut(&ours(socket))?)
    }

    fn carrier(&self) -> SocketResult<Arc<dyn Carrier>> {
        // Without a carrier nothing that leads here is linked.
        Ok(self.0.http.carrier().ok_or(ErrorCode::AccessDenied)?)
    }

    /// Refuses what no run is offered.
    fn not_offered<T>(&self, what: &str) -> SocketResult<T> {
        self.0.gauges.denials.record(what, DenialReason::NotOffered);
        Err(ErrorCode::NotSupported.into())
    }
}

/// A refusal in the words of `wasi:sockets`.
fn told(refusal: EgressError) -> ErrorCode {
    match refusal {
        EgressError::Denied(reason) => match reason {
            DenialReason::Connections => ErrorCode::NewSocketLimit,
            DenialReason::Authority
            | DenialReason::DomainNotAllowed
            | DenialReason::DomainBlocked
            | DenialReason::IpLiteral
            | DenialReason::Address
            | DenialReason::NotLookedUp
            | DenialReason::Requests
            | DenialReason::RequestRate
            | DenialReason::SentBytes
            | DenialReason::ReceivedBytes
            | DenialReason::NetworkOff
            | DenialReason::NotOffered
            | DenialReason::OutsideScope
            | DenialReason::EscapesRoot
            | DenialReason::ReadOnly
            | DenialReason::HostPermissions
            | DenialReason::Link
            | DenialReason::HardLink => ErrorCode::AccessDenied,
        },
        EgressError::Failed(failure) => match failure {
            NetworkError::Name => ErrorCode::NameUnresolvable,
            NetworkError::Refused => ErrorCode::ConnectionRefused,
            NetworkError::ConnectTimeout => ErrorCode::Timeout,
            NetworkError::Broken => ErrorCode::ConnectionReset,
            NetworkError::Over => ErrorCode::ConnectionAborted,
            NetworkError::Request | NetworkError::RequestHead => ErrorCode::InvalidArgument,
            NetworkError::Scheme
            | NetworkError::Method
            | NetworkError::RequestBody
            | NetworkError::Certificate
            | NetworkError::Tls
            | NetworkError::AnswerTimeout
            | NetworkError::AnswerHead
            | NetworkError::Upgrade
            | NetworkError::Answer
            | NetworkError::Incomplete => ErrorCode::Unknown,
        },
    }
}

/// Something on its way, and then what came.
enum Eventual<T> {
    Waits(Pin<Box<dyn Future<Output = T> + Send>>),
    Came(T),
}

impl<T> Eventual<T> {
    /// Begins at once.
    fn begin(work: Pin<Box<dyn Future<Output = T> + Send>>) -> Self {
        let mut begun = Self::Waits(work);
        let _seen_later = begun.poll(&mut now());
        begun
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<&mut T> {
        if let Self::Waits(work) = self {
            *self = Self::Came(ready!(work.as_mut().poll(context)));
        }
        match self {
            Self::Came(came) => Poll::Ready(came),
            Self::Waits(_) => Poll::Pending,
        }
    }
}

/// For a look at what is there, without waiting for it.
fn now() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// The network, which a guest hands back with each call.
struct Handle;

/// The addresses of a name.
struct LookUp(Eventual<Result<std::vec::IntoIter<IpAddr>, EgressError>>);

#[wasmtime_wasi::async_trait]
impl Pollable for LookUp {
    async fn ready(&mut self) {
        std::future::poll_fn(|context| self.0.poll(context).map(drop)).await;
    }
}

/// A socket of a guest.
struct Socket {
    family: IpAddressFamily,
    phase: Phase,
}

enum Phase {
    Fresh,
    Connecting { to: SocketAddr, connected: Eventual<Result<Body, EgressError>>, outgoing: Outgoing },
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
            Phase::Fresh | Phase::Connected { .. } | Phase::Failed => {}
        }
    }
}

/// What comes of a connection.
struct Incoming {
    body: Body,
    /// What the guest has not read yet.
    piece: Bytes,
    over: bool,
    /// Why it is over, until the guest was told.
    refusal: Option<EgressError>,
}

impl Incoming {
    fn new(body: Body) -> Self {
        Self { body, piece: Bytes::new(), over: false, refusal: None }
    }

    /// Comes when there is something to read, or never will be.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while !self.over && self.piece.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(part)) => self.piece = part.into_data().unwrap_or_default(),
                Some(Err(refusal)) => (self.over, self.refusal) = (true, Some(refusal)),
                None => self.over = true,
            }
        }
        Poll::Ready(())
    }

    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        if self.poll(&mut now()).is_pending() || size == 0 {
            return Ok(Bytes::new());
        }
        if !self.piece.is_empty() {
            return Ok(self.piece.split_to(size.min(self.piece.len())));
        }
        Err(self.refusal.take().map_or(StreamError::Closed, |refusal| {
            StreamError::LastOperationFailed(wasmtime::Error::new(refusal))
        }))
    }

    /// The guest wants no more of it.
    fn shut(&mut self) {
        (self.over, self.refusal) = (true, None);
        self.piece.clear();
    }
}

/// What goes over a connection: one piece at a time, each when the one before is with the kernel.
struct Outgoing {
    /// Until the guest says that there is no more.
    pieces: Option<mpsc::Sender<Piece>>,
    /// Ends when the last piece went out, or nothing goes out any more.
    last: Option<oneshot::Receiver<Infallible>>,
}

/// Bytes, and what is dropped when they are out.
type Piece = (Bytes, oneshot::Sender<Infallible>);

/// The other end of [`Outgoing`].
struct Upload {
    pieces: mpsc::Receiver<Piece>,
    going_out: Option<oneshot::Sender<Infallible>>,
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = EgressError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EgressError>>> {
        // Whoever asks for the next piece is done with the one before.
        self.going_out = None;
        let piece = ready!(self.pieces.poll_recv(context));
        Poll::Ready(piece.map(|(bytes, going_out)| {
            self.going_out = Some(going_out);
            Ok(Frame::data(bytes))
        }))
    }
}

impl Outgoing {
    fn new() -> (Self, Body) {
        let (sender, pieces) = mpsc::channel(1);
        let upload = Upload { pieces, going_out: None };
        (Self { pieces: Some(sender), last: None }, upload.boxed_unsync())
    }

    /// Comes when the last piece is out, with whether there may be another.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<StreamResult<()>> {
        if let Some(last) = &mut self.last {
            let _went = ready!(Pin::new(last).poll(context));
            self.last = None;
        }
        let open = self.pieces.as_ref().is_some_and(|pieces| !pieces.is_closed());
        Poll::Ready(if open { Ok(()) } else { Err(StreamError::Closed) })
    }

    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.poll(&mut now())?.is_pending() || bytes.len() > PIECE_BYTES {
            return Err(StreamError::trap("more was written than `check-write` permitted"));
        }
        let (going_out, last) = oneshot::channel();
        let sent = self.pieces.as_ref().map(|pieces| pieces.try_send((bytes, going_out)));
        match sent {
            Some(Ok(())) => self.last = Some(last),
            Some(Err(_)) | None => return Err(StreamError::Closed),
        }
        Ok(())
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Reading(Arc<Mutex<Incoming>>);

#[wasmtime_wasi::async_trait]
impl Pollable for Reading {
    async fn ready(&mut self) {
        std::future::poll_fn(|context| lock(&self.0).poll(context)).await;
    }
}

#[wasmtime_wasi::async_trait]
impl InputStream for Reading {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        lock(&self.0).read(size)
    }
}

struct Writing(Arc<Mutex<Outgoing>>);

#[wasmtime_wasi::async_trait]
impl Pollable for Writing {
    async fn ready(&mut self) {
        std::future::poll_fn(|context| lock(&self.0).poll(context).map(drop)).await;
    }
}

#[wasmtime_wasi::async_trait]
impl OutputStream for Writing {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        lock(&self.0).write(bytes)
    }

    /// Each piece goes out by itself, and `check-write` waits for it.
    fn flush(&mut self) -> StreamResult<()> {
        match lock(&self.0).poll(&mut now()) {
            Poll::Ready(ended) => ended,
            Poll::Pending => Ok(()),
        }
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        match lock(&self.0).poll(&mut now()) {
            Poll::Ready(open) => open.map(|()| PIECE_BYTES),
            Poll::Pending => Ok(0),
        }
    }

    /// What was written goes out although the stream is dropped.
    async fn cancel(&mut self) {
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
        Ok(error.downcast_ref::<EgressError>().map(|refusal| told(*refusal)))
    }
}

impl network::HostNetwork for Sockets<'_> {
    fn drop(&mut self, network: Resource<Network>) -> wasmtime::Result<()> {
        self.table().delete::<Handle>(owned(&network))?;
        Ok(())
    }
}

impl instance_network::Host for Sockets<'_> {
    fn instance_network(&mut self) -> wasmtime::Result<Resource<Network>> {
        Ok(owned(&self.table().push(Handle)?))
    }
}

impl ip_name_lookup::Host for Sockets<'_> {
    fn resolve_addresses(
        &mut self,
        network: Resource<Network>,
        name: String,
    ) -> SocketResult<Resource<ResolveAddressStream>> {
        self.table().get::<Handle>(&ours(&network))?;
        let found = self.carrier()?.look_up(name);
        let found = async { found.await.map(Vec::into_iter) };
        Ok(owned(&self.table().push(LookUp(Eventual::begin(Box::pin(found))))?))
    }
}

impl ip_name_lookup::HostResolveAddressStream for Sockets<'_> {
    fn resolve_next_address(
        &mut self,
        stream: Resource<ResolveAddressStream>,
    ) -> SocketResult<Option<IpAddress>> {
        let look_up = self.table().get_mut::<LookUp>(&ours(&stream))?;
        match look_up.0.poll(&mut now()) {
            Poll::Pending => Err(ErrorCode::WouldBlock.into()),
            Poll::Ready(Ok(addresses)) => Ok(addresses.next().map(IpAddress::from)),
            Poll::Ready(Err(refusal)) => Err(told(*refusal).into()),
        }
    }

    fn subscribe(
        &mut self,
        stream: Resource<ResolveAddressStream>,
    ) -> wasmtime::Result<Resource<DynPollable>> {
        subscribe::<LookUp>(self.table(), ours(&stream))
    }

    fn drop(&mut self, stream: Resource<ResolveAddressStream>) -> wasmtime::Result<()> {
        self.table().delete::<LookUp>(owned(&stream))?;
        Ok(())
    }
}

impl tcp_create_socket::Host for Sockets<'_> {
    fn create_tcp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<TcpSocket>> {
        Ok(owned(&self.table().push(Socket { family, phase: Phase::Fresh })?))
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
        self.table().get::<Handle>(&ours(&network))?;
        let carrier = self.carrier()?;
        let socket = self.socket(&socket)?;
        let to = SocketAddr::from(to);
        let fits = match (socket.family, to) {
            (IpAddressFamily::Ipv4, SocketAddr::V4(_)) | (IpAddressFamily::Ipv6, SocketAddr::V6(_)) => true,
            (IpAddressFamily::Ipv4, SocketAddr::V6(_)) | (IpAddressFamily::Ipv6, SocketAddr::V4(_)) => false,
        };
        if !fits {
            return Err(ErrorCode::InvalidArgument.into());
        }
        match socket.phase {
            Phase::Fresh => {}
            Phase::Connecting { .. } => return Err(ErrorCode::ConcurrencyConflict.into()),
            Phase::Connected { .. } | Phase::Failed => return Err(ErrorCode::InvalidState.into()),
        }
        let (outgoing, upload) = Outgoing::new();
        let connected = Eventual::begin(carrier.connect(to, upload));
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
        if connected.poll(&mut now()).is_pending() {
            return Err(ErrorCode::WouldBlock.into());
        }
        let Phase::Connecting { to, connected: Eventual::Came(came), outgoing } =
            std::mem::replace(&mut socket.phase, Phase::Failed)
        else {
            return Err(ErrorCode::NotInProgress.into());
        };
        let incoming = Arc::new(Mutex::new(Incoming::new(came.map_err(told)?)));
        let outgoing = Arc::new(Mutex::new(outgoing));
        let reading: DynInputStream = Box::new(Reading(Arc::clone(&incoming)));
        let writing: DynOutputStream = Box::new(Writing(Arc::clone(&outgoing)));
        socket.phase = Phase::Connected { to, incoming, outgoing };
        let (table, this) = (self.table(), ours::<_, Socket>(&this));
        Ok((table.push_child(reading, &this)?, table.push_child(writing, &this)?))
    }

    fn remote_address(&mut self, socket: Resource<TcpSocket>) -> SocketResult<IpSocketAddress> {
        match self.socket(&socket)?.phase {
            Phase::Connected { to, .. } => Ok(to.into()),
            Phase::Fresh | Phase::Connecting { .. } | Phase::Failed => Err(ErrorCode::InvalidState.into()),
        }
    }

    /// Which address the server has is not for a guest to know.
    fn local_address(&mut self, socket: Resource<TcpSocket>) -> SocketResult<IpSocketAddress> {
        let socket = self.socket(&socket)?;
        let unspecified = match socket.family {
            IpAddressFamily::Ipv4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddressFamily::Ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        match socket.phase {
            Phase::Connected { .. } => Ok(SocketAddr::new(unspecified, 0).into()),
            Phase::Fresh | Phase::Connecting { .. } | Phase::Failed => Err(ErrorCode::InvalidState.into()),
        }
    }

    fn address_family(&mut self, socket: Resource<TcpSocket>) -> wasmtime::Result<IpAddressFamily> {
        Ok(self.table().get::<Socket>(&ours(&socket))?.family)
    }

    fn subscribe(&mut self, socket: Resource<TcpSocket>) -> wasmtime::Result<Resource<DynPollable>> {
        subscribe::<Socket>(self.table(), ours(&socket))
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
            lock(incoming).shut();
        }
        if send {
            lock(outgoing).pieces = None;
        }
        Ok(())
    }

    fn drop(&mut self, socket: Resource<TcpSocket>) -> wasmtime::Result<()> {
        self.table().delete::<Socket>(owned(&socket))?;
        Ok(())
    }

    async fn start_bind(
        &mut self,
        _: Resource<TcpSocket>,
        _: Resource<Network>,
        _: IpSocketAddress,
    ) -> SocketResult<()> {
        self.not_offered("wasi:sockets/tcp: bind")
    }

    fn finish_bind(&mut self, _: Resource<TcpSocket>) -> SocketResult<()> {
        Err(ErrorCode::NotInProgress.into())
    }

    async fn start_listen(&mut self, _: Resource<TcpSocket>) -> SocketResult<()> {
        self.not_offered("wasi:sockets/tcp: listen")
    }

    fn finish_listen(&mut self, _: Resource<TcpSocket>) -> SocketResult<()> {
        Err(ErrorCode::NotInProgress.into())
    }

    fn accept(
        &mut self,
        _: Resource<TcpSocket>,
    ) -> SocketResult<(Resource<TcpSocket>, Resource<DynInputStream>, Resource<DynOutputStream>)> {
        self.not_offered("wasi:sockets/tcp: accept")
    }

    fn is_listening(&mut self, _: Resource<TcpSocket>) -> wasmtime::Result<bool> {
        Ok(false)
    }

    // What can be said about a socket of the server is the server's.

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
