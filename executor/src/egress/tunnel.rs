//! Connections of a guest's own: names that it looks up, and bytes both ways to what was found.
//!
//! A guest connects to an address, and no rule allows addresses by what they belong to. So the run keeps
//! what its look-ups gave, and connects to nothing else but an address that is listed itself.

use super::Body;
use super::connection::Counted;
use super::line::{Line, Place};
use super::refusal::{EgressError, NetworkError};
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

/// How many look-ups a run remembers. The oldest is forgotten, and its addresses have to be looked up again.
const MAX_REMEMBERED_ADDRESSES: usize = 256;
/// The most addresses of one name that a guest is told.
const MAX_ADDRESSES: usize = 32;
/// The most bytes that are read at once.
const PIECE_BYTES: usize = 64 << 10;

/// What the look-ups of a run gave, the latest at the end.
#[derive(Debug, Default)]
pub(super) struct Found(VecDeque<Answer>);

/// What one look-up gave.
#[derive(Debug)]
struct Answer {
    name: Domain,
    addresses: Vec<IpAddr>,
    /// Whether a connection to one of them is counted already, by the look-up.
    paid: bool,
}

impl Found {
    fn keep(&mut self, name: Domain, addresses: Vec<IpAddr>) {
        if self.0.len() >= MAX_REMEMBERED_ADDRESSES {
            self.0.pop_front();
        }
        self.0.push_back(Answer { name, addresses, paid: true });
    }

    /// The name that gave this address, the latest first, and whether the connection is paid for.
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

    /// Looks up a name, or reads an address that stands for itself.
    pub(super) async fn judged_and_found(self: &Arc<Self>, text: &str) -> Result<Vec<IpAddr>, EgressError> {
        self.count(text)?;
        // In a URL an address of IPv6 has brackets, and here it has none.
        let host = match text.parse::<Ipv6Addr>() {
            Ok(_) => Host::parse(&format!("[{text}]")),
            Err(_) => Host::parse(text),
        };
        let host = host.map_err(|_| self.deny(DenialReason::Authority, text))?;
        let what = host.to_string();
        self.check_host(&host, &what)?;
        self.take_of_the_rate(&what)?;
        let place = self.place(&what)?;
        let found = timeout_at(self.connected_by(None), self.checked_addresses(&host, None, &what)).await;
        drop(place);
        let mut addresses = found.unwrap_or(Err(NetworkError::ConnectTimeout.into()))?;
        addresses.truncate(MAX_ADDRESSES);
        match host {
            Host::Name(_) if addresses.is_empty() => return Err(NetworkError::Name.into()),
            Host::Name(name) => self.found().keep(name, addresses.clone()),
            // It is listed, and is so again when it is connected to.
            Host::Address(_) => {}
        }
        Ok(addresses)
    }

    /// Connects to what was found, or is listed itself.
    pub(super) async fn judged_and_connected(
        self: &Arc<Self>,
        address: SocketAddr,
        upload: Body,
    ) -> Result<Body, EgressError> {
        // Without the scope of a link, which is not for a guest to choose.
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
        self.check_address(ip, Some(port), &host, &what)?;
        if port == 0 {
            return Err(NetworkError::Request.into());
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

/// What comes over a connection, which ends when this is dropped, and no later than its run. It has its place
/// until then, also when both sides have said all.
struct Received {
    pieces: mpsc::Receiver<Result<Bytes, EgressError>>,
    driver: AbortHandle,
    _place: Place,
}

impl Received {
    fn of(counted: Counted, place: Place, upload: Body) -> Self {
        // One piece waits for whoever reads; the next is not read of the socket before that is taken.
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
    type Error = EgressError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EgressError>>> {
        self.pieces.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Sends until there is no more, and says so to the other side; or until no more is taken.
async fn send(mut upload: Body, mut to: WriteHalf<Counted>) {
    while let Some(Ok(part)) = upload.frame().await {
        let Ok(piece) = part.into_data() else { break };
        // A limit that is reached was written down where it was. The guest sees that no more is taken.
        if to.write_all(&piece).await.is_err() {
            return;
        }
    }
    let _other_side_is_gone = to.shutdown().await;
}

/// Receives until there is no more.
async fn receive(mut from: ReadHalf<Counted>, to: mpsc::Sender<Result<Bytes, EgressError>>) {
    while let Ok(place) = to.reserve().await {
        let mut piece = BytesMut::with_capacity(PIECE_BYTES);
        match from.read_buf(&mut piece).await {
            Ok(0) => return,
            Ok(_) => place.send(Ok(piece.freeze())),
            Err(error) => return place.send(Err(EgressError::of_socket(&error))),
        }
    }
}
