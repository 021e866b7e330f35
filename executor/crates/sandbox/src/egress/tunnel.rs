//! A guest's own TCP connections: name look-ups, and bytes in both directions.
//!
//! A run connects only to addresses that its own look-ups returned, or that its rules list as addresses.
// Rules apply to names, but `connect` has an address. A reverse look-up would trust the owner of the address, and the
// addresses of `*.example.com` cannot be enumerated. The run therefore remembers the name of each address.

use super::Body;
use super::connection::MeteredStream;
use super::refusal::{EgressError, NetworkError};
use super::session::{ConnectionSlot, NetworkSession};
use a2g_capability::{Domain, Host};
use a2g_runtime::spawn;
use a2g_types::outcome::DenialReason;
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use http_body_util::BodyExt as _;
use parking_lot::MutexGuard;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

/// Maximum number of look-ups that a run remembers. Addresses of older ones have to be looked up again.
const MAX_REMEMBERED_LOOKUPS: usize = 256;
/// Maximum number of addresses of one name that a guest receives.
const MAX_ADDRESSES: usize = 32;
/// Maximum number of bytes of one read from a socket.
const READ_BYTES: usize = 64 << 10;

/// The results of a run's look-ups, the latest last.
#[derive(Debug, Default)]
pub(super) struct ResolvedNames(VecDeque<ResolvedName>);

/// The result of one look-up.
#[derive(Debug)]
struct ResolvedName {
    name: Domain,
    addresses: Vec<IpAddr>,
    /// `true` until the first connection to one of the addresses, which was counted with the look-up.
    // A look-up contacts name servers, so it counts as a request. `TcpStream::connect("name:port")` is nevertheless one
    // request for the person who set the limit.
    is_prepaid: bool,
}

impl ResolvedNames {
    fn insert(&mut self, name: Domain, addresses: Vec<IpAddr>) {
        if self.0.len() >= MAX_REMEMBERED_LOOKUPS {
            self.0.pop_front();
        }
        self.0.push_back(ResolvedName { name, addresses, is_prepaid: true });
    }

    /// Returns the latest name with this address, and `true` if the connection was already counted with the look-up.
    fn take_name(&mut self, address: IpAddr) -> Option<(Domain, bool)> {
        let mut lookups = self.0.iter_mut().rev().filter(|lookup| lookup.addresses.contains(&address));
        let latest = lookups.next()?;
        Some((latest.name.clone(), std::mem::take(&mut latest.is_prepaid)))
    }
}

impl NetworkSession {
    fn resolved_names(&self) -> MutexGuard<'_, ResolvedNames> {
        self.resolved_names.lock()
    }

    /// Looks up a name; an address is its own result.
    pub(super) async fn authorize_and_look_up(
        self: &Arc<Self>,
        text: &str,
    ) -> Result<Vec<IpAddr>, EgressError> {
        self.count_request(text)?;
        // `Host::parse` reads the form of a URL, in which an IPv6 address has brackets.
        let host = match text.parse::<Ipv6Addr>() {
            Ok(_) => Host::parse(&format!("[{text}]")),
            Err(_) => Host::parse(text),
        };
        let host = host.map_err(|_| self.deny(DenialReason::RequestAuthority, text))?;
        let subject = host.to_string();
        self.check_host(&host, &subject)?;
        self.check_rate_limit(&subject)?;
        // A look-up takes a connection's slot, because it may last as long as a connection attempt.
        let slot = self.acquire_slot(&subject)?;
        let result =
            timeout_at(self.connect_deadline(None), self.resolve_and_check(&host, None, &subject)).await;
        drop(slot);
        let mut addresses = result.unwrap_or(Err(NetworkError::ConnectTimeout.into()))?;
        addresses.truncate(MAX_ADDRESSES);
        match host {
            Host::Name(_) if addresses.is_empty() => return Err(NetworkError::Name.into()),
            Host::Name(name) => self.resolved_names().insert(name, addresses.clone()),
            // The rules list this address, and are checked again when the guest connects.
            Host::Address(_) => {}
        }
        Ok(addresses)
    }

    /// Connects to an address that was looked up, or that the rules list.
    pub(super) async fn authorize_and_connect(
        self: &Arc<Self>,
        address: SocketAddr,
        upload: Body,
    ) -> Result<Body, EgressError> {
        // This drops the scope id of IPv6, which would select a network interface of the server.
        let address = SocketAddr::new(address.ip(), address.port());
        let ip = address.ip();
        let port = address.port();
        let lookup = self.resolved_names().take_name(ip);
        let (host, is_prepaid) = match lookup {
            Some((name, is_prepaid)) => (Host::Name(name), is_prepaid),
            None => (Host::Address(ip), false),
        };
        let subject = format!("tcp://{host}:{port}");
        if !is_prepaid {
            self.count_request(&subject)?;
        }
        match &host {
            Host::Name(_) => self.check_host(&host, &subject)?,
            Host::Address(ip) => self.check_listed(*ip, &subject)?,
        }
        // The protocol is the guest's own, so every byte may be an order.
        self.check_may_connect(&subject)?;
        // The address is checked again, because the look-up was checked without a port.
        self.check_address(ip, Some(port), &host, &subject)?;
        if port == 0 {
            return Err(NetworkError::Request.into());
        }
        if !is_prepaid {
            self.check_rate_limit(&subject)?;
        }
        let slot = self.acquire_slot(&subject)?;
        let deadline = self.connect_deadline(None);
        let (stream, slot) = self.dial(&[address], &subject, deadline, slot).await?;
        Ok(ReceivedBody::new(stream, slot, upload).boxed_unsync())
    }
}

/// The received bytes of a connection. The connection and its slot last until this is dropped, or the run ends.
struct ReceivedBody {
    chunks: mpsc::Receiver<Result<Bytes, EgressError>>,
    driver: AbortHandle,
    _slot: ConnectionSlot,
}

impl ReceivedBody {
    fn new(stream: MeteredStream, slot: ConnectionSlot, upload: Body) -> Self {
        // The next chunk is read from the socket only after the reader has taken the previous one, so that TCP's flow
        // control slows the sender down.
        let (sender, chunks) = mpsc::channel(1);
        let end = slot.wait_for_end();
        let driver = spawn::spawn_run_task(async move {
            let (reading, writing) = tokio::io::split(stream);
            tokio::select! {
                ((), ()) = async { tokio::join!(send(upload, writing), receive(reading, sender)) } => {}
                () = end => {}
            }
        });
        Self { chunks, driver: driver.abort_handle(), _slot: slot }
    }
}

impl Drop for ReceivedBody {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl http_body::Body for ReceivedBody {
    type Data = Bytes;
    type Error = EgressError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EgressError>>> {
        self.chunks.poll_recv(context).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }
}

/// Sends `upload` and then shuts the direction down; stops early if the other side accepts no more bytes.
async fn send(mut upload: Body, mut to: WriteHalf<MeteredStream>) {
    while let Some(Ok(part)) = upload.frame().await {
        let Ok(chunk) = part.into_data() else { break };
        // The socket has already recorded an exceeded budget. The guest's next write fails, because
        // `upload` is dropped.
        if to.write_all(&chunk).await.is_err() {
            return;
        }
    }
    let _peer_may_have_closed = to.shutdown().await;
}

/// Receives until the other side or the reader ends.
async fn receive(mut from: ReadHalf<MeteredStream>, to: mpsc::Sender<Result<Bytes, EgressError>>) {
    // The channel's slot is reserved first, so that bytes are read only when the reader can accept them.
    while let Ok(slot) = to.reserve().await {
        let mut chunk = BytesMut::with_capacity(READ_BYTES);
        match from.read_buf(&mut chunk).await {
            Ok(0) => return,
            Ok(_) => slot.send(Ok(chunk.freeze())),
            Err(error) => return slot.send(Err(EgressError::from_io(&error))),
        }
    }
}
