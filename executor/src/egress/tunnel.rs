//! A guest's own TCP connections: name look-ups, and bytes in both directions.
//!
//! A run connects only to addresses that its own look-ups returned, or that its rules list as addresses.
// Rules are about names, and `connect` about addresses. A reverse look-up would trust the owner of the address, and the
// addresses of `*.example.com` cannot be enumerated. So the run remembers the name that gave it an address.

use super::Body;
use super::connection::Counted;
use super::line::{Line, Place};
use super::refusal::{Failure, Refusal};
use crate::capability::{Domain, Host};
use crate::outcome::DenialReason;
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use http_body_util::BodyExt as _;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

/// The most look-ups that a run remembers. Addresses of a forgotten one have to be looked up again.
const MAX_REMEMBERED_ADDRESSES: usize = 256;
/// The most addresses of one name that a guest receives.
const MAX_ADDRESSES: usize = 32;
/// The most bytes that are read from a socket at once.
const PIECE_BYTES: usize = 64 << 10;

/// The results of a run's look-ups, the latest last.
#[derive(Debug, Default)]
pub(super) struct Found(VecDeque<Answer>);

/// The result of one look-up.
#[derive(Debug)]
struct Answer {
    name: Domain,
    addresses: Vec<IpAddr>,
    /// The look-up has already been counted for the first connection to one of the addresses.
    // A look-up goes to name servers, so it counts as a request; but `TcpStream::connect("name:port")` is one request to
    // the person who set the limit.
    paid: bool,
}

impl Found {
    fn keep(&mut self, name: Domain, addresses: Vec<IpAddr>) {
        if self.0.len() >= MAX_REMEMBERED_ADDRESSES {
            self.0.pop_front();
        }
        self.0.push_back(Answer { name, addresses, paid: true });
    }

    /// The latest name that gave this address, and `true` if the connection has been counted already.
    fn name_of(&mut self, address: IpAddr) -> Option<(Domain, bool)> {
        let mut gave = self.0.iter_mut().rev().filter(|answer| answer.addresses.contains(&address));
        let latest = gave.next()?;
        Some((latest.name.clone(), std::mem::take(&mut latest.paid)))
    }
}

impl Line {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up a name; an address is its own result.
    pub(super) async fn judged_and_found(self: &Arc<Self>, text: &str) -> Result<Vec<IpAddr>, Refusal> {
        self.count(text)?;
        // `Host::parse` reads the form of a URL, in which an IPv6 address has brackets.
        let host = match text.parse::<Ipv6Addr>() {
            Ok(_) => Host::parse(&format!("[{text}]")),
            Err(_) => Host::parse(text),
        };
        let host = host.map_err(|_| self.deny(DenialReason::Authority, text))?;
        let what = host.to_string();
        self.check_host(&host, &what)?;
        self.take_of_the_rate(&what)?;
        // A look-up takes a connection's slot, because it may take as long.
        let place = self.place(&what)?;
        let found = timeout_at(self.connected_by(None), self.checked_addresses(&host, None, &what)).await;
        drop(place);
        let mut addresses = found.unwrap_or(Err(Failure::ConnectTimeout.into()))?;
        addresses.truncate(MAX_ADDRESSES);
        match host {
            Host::Name(_) if addresses.is_empty() => return Err(Failure::Name.into()),
            Host::Name(name) => self.found().keep(name, addresses.clone()),
            // The rules list it, and are asked again when the guest connects.
            Host::Address(_) => {}
        }
        Ok(addresses)
    }

    /// Connects to an address that was looked up, or that the rules list.
    pub(super) async fn judged_and_connected(
        self: &Arc<Self>,
        address: SocketAddr,
        upload: Body,
    ) -> Result<Body, Refusal> {
        // Without the scope id of IPv6, which would select a network interface of the server.
        let address = SocketAddr::new(address.ip(), address.port());
        let (ip, port) = (address.ip(), address.port());
        let found = self.found().name_of(ip);
        let (host, paid) = match found {
            Some((name, paid)) => (Host::Name(name), paid),
            None => (Host::Address(ip), false),
        };
        let what = format!("tcp://{host}:{port}");
        if !paid {
            self.count(&what)?;
        }
        match &host {
            Host::Name(_) => self.check_host(&host, &what)?,
            Host::Address(ip) if self.is_listed(*ip) => {}
            Host::Address(_) => return Err(self.deny(DenialReason::NotLookedUp, &what)),
        }
        // Again, because the look-up was checked without a port.
        self.check_address(ip, Some(port), &host, &what)?;
        if port == 0 {
            return Err(Failure::Request.into());
        }
        if !paid {
            self.take_of_the_rate(&what)?;
        }
        let place = self.place(&what)?;
        let by = self.connected_by(None);
        let (counted, place) = self.dial(&[address], &what, by, place).await?;
        Ok(Received::of(counted, place, upload).boxed_unsync())
    }
}

/// The received bytes of a connection. The connection and its slot last until this is dropped, or the run ends.
struct Received {
    pieces: mpsc::Receiver<Result<Bytes, Refusal>>,
    driver: AbortHandle,
    _place: Place,
}

impl Received {
    fn of(counted: Counted, place: Place, upload: Body) -> Self {
        // One chunk waits for the reader, and the next is read from the socket after that: TCP's own flow control then
        // slows the sender down.
        let (sender, pieces) = mpsc::channel(1);
        let over = place.over();
        let driver = tokio::spawn(async move {
            let (reading, writing) = tokio::io::split(counted);
            tokio::select! {
                ((), ()) = async { tokio::join!(send(upload, writing), receive(reading, sender)) } => {}
                () = over => {}
            }
        });
        Self { pieces, driver: driver.abort_handle(), _place: place }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = Refusal;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        self.pieces.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Sends `upload` and then shuts the direction down; stops early if the other side accepts no more.
async fn send(mut upload: Body, mut to: WriteHalf<Counted>) {
    while let Some(Ok(part)) = upload.frame().await {
        let Ok(piece) = part.into_data() else { break };
        // A budget that was exceeded has been recorded by the socket. The guest's next write fails, because
        // `upload` is dropped.
        if to.write_all(&piece).await.is_err() {
            return;
        }
    }
    let _other_side_is_gone = to.shutdown().await;
}

/// Receives until the other side or the reader ends.
async fn receive(mut from: ReadHalf<Counted>, to: mpsc::Sender<Result<Bytes, Refusal>>) {
    // The channel's slot first: bytes are read only when the reader has room for them.
    while let Ok(place) = to.reserve().await {
        let mut piece = BytesMut::with_capacity(PIECE_BYTES);
        match from.read_buf(&mut piece).await {
            Ok(0) => return,
            Ok(_) => place.send(Ok(piece.freeze())),
            Err(error) => return place.send(Err(Refusal::of_socket(&error))),
        }
    }
}
