//! The network of one run: its rules, its budgets, its books, and its connections.

use super::address::may_connect;
use super::connection::{Answer, Connection, Counted, greet};
use super::refusal::{EgressError, NetworkError};
use super::target::Target;
use super::tunnel::Found;
use super::{Body, Carrier, Connecting, Egress, LookingUp, MAX_HEAD_BYTES, Patience, Sending};
use crate::capability::{Domain, Grant, Host, Reach, Unreachable};
use crate::clock::timer_now;
use crate::ident::AgentDid;
use crate::limit::NetworkBudgets;
use crate::outcome::{Contact, Denial, DenialReason, HostRule, NetworkUsage, Usage};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// Header fields that belong to a connection, or that say again what was checked. Whatever a guest says in
/// them is left out.
const NOT_THE_GUESTS: [HeaderName; 12] = [
    header::CONNECTION,
    header::EXPECT,
    header::HOST,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// How much of an authority a report quotes, in characters: the longest name, and what stands around it.
const MAX_TARGET_BYTES: usize = 320;

/// The network of one run.
pub struct Line {
    egress: Arc<Egress>,
    agent: AgentDid,
    reach: Reach,
    budgets: NetworkBudgets,
    books: Mutex<Books>,
    /// What the run's look-ups gave.
    pub(super) found: Mutex<Found>,
    places: Arc<Semaphore>,
    over: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Books {
    requests: u32,
    /// The connections that stand now, and the most that ever did.
    open: u32,
    connections: u32,
    sent: u64,
    received: u64,
    contacted: Vec<Contact>,
    contacted_truncated: bool,
    denied: Vec<Denial>,
    denied_truncated: bool,
}

impl Line {
    pub(super) fn new(egress: Arc<Egress>, agent: AgentDid, grant: &Grant) -> Arc<Self> {
        Self::of_the_executor(egress, agent, grant.reach().clone(), grant.network_budgets())
    }

    /// One for what the executor itself sends, in a matter of `agent`.
    pub(super) fn of_the_executor(
        egress: Arc<Egress>,
        agent: AgentDid,
        reach: Reach,
        budgets: NetworkBudgets,
    ) -> Arc<Self> {
        let places = usize::try_from(budgets.connections).unwrap_or(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            egress,
            agent,
            reach,
            budgets,
            books: Mutex::default(),
            found: Mutex::default(),
            places: Arc::new(Semaphore::new(places)),
            over: watch::channel(false).0,
        })
    }

    /// Closes every connection, and lets no request begin any more: the run is over.
    pub fn close(&self) {
        self.over.send_replace(true);
    }

    /// Comes when the run is over.
    pub(super) fn over(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut over = self.over.subscribe();
        async move {
            // A line that is gone is over as well.
            let _over_or_gone = over.wait_for(|over| *over).await;
        }
    }

    /// What the run may do with the network.
    #[must_use]
    pub fn budgets(&self) -> NetworkBudgets {
        self.budgets
    }

    /// What the run did with the network so far.
    #[must_use]
    pub fn usage(&self) -> NetworkUsage {
        let rule = |(pattern, set_by): (&crate::capability::HostPattern, _)| HostRule {
            pattern: pattern.to_string(),
            set_by,
        };
        let books = self.books();
        NetworkUsage {
            budgets: self.budgets,
            allowed: self.reach.allowed().map(rule).collect(),
            blocked: self.reach.blocked().map(rule).collect(),
            requests_per_minute: self.reach.requests_per_minute(),
            requests: books.requests,
            connections: books.connections,
            sent_bytes: books.sent,
            received_bytes: books.received,
            contacted: books.contacted.clone(),
            contacted_truncated: books.contacted_truncated,
        }
    }

    /// What was denied so far, and whether there was more than is listed.
    #[must_use]
    pub fn denied(&self) -> (Vec<Denial>, bool) {
        let books = self.books();
        (books.denied.clone(), books.denied_truncated)
    }

    /// Denies something, and writes it down.
    pub fn deny(&self, reason: DenialReason, what: &str) -> EgressError {
        self.books().deny(reason, what);
        EgressError::Denied(reason)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `read` have as many bytes as may still be received, and counts what it took. With none left it is
    /// asked whether there is a further one: an answer that just fits is not denied.
    pub(super) fn receive(
        &self,
        contact: Option<usize>,
        target: &str,
        read: impl FnOnce(usize) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut books = self.books();
        let left = self.budgets.received_bytes.saturating_sub(books.received);
        let read = read(usize::try_from(left).unwrap_or(usize::MAX));
        if let Poll::Ready(Ok(bytes)) = read {
            if left == 0 && bytes > 0 {
                return Poll::Ready(Err(books.deny(DenialReason::ReceivedBytes, target)));
            }
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            books.received = books.received.saturating_add(bytes);
            books.with(contact, |contact| {
                contact.received_bytes = contact.received_bytes.saturating_add(bytes);
            });
        }
        read
    }

    /// Lets `write` have as many bytes as may still be sent, and counts what it took.
    pub(super) fn transmit(
        &self,
        contact: Option<usize>,
        target: &str,
        write: impl FnOnce(usize) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut books = self.books();
        let left = self.budgets.sent_bytes.saturating_sub(books.sent);
        if left == 0 {
            return Poll::Ready(Err(books.deny(DenialReason::SentBytes, target)));
        }
        let written = write(usize::try_from(left).unwrap_or(usize::MAX));
        if let Poll::Ready(Ok(bytes)) = written {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            books.sent = books.sent.saturating_add(bytes);
            books.with(contact, |contact| contact.sent_bytes = contact.sent_bytes.saturating_add(bytes));
        }
        written
    }

    async fn judged_and_sent(
        self: &Arc<Self>,
        request: Request<Body>,
        patience: Patience,
    ) -> Result<Response<Body>, EgressError> {
        let authority = request.uri().authority().map_or("", |authority| authority.as_str());
        self.count(authority)?;
        let target = Target::of(request.uri()).map_err(|refusal| match refusal {
            EgressError::Denied(reason) => self.deny(reason, authority),
            EgressError::Failed(_) => refusal,
        })?;
        let what = target.to_string();
        self.check_host(&target.host, &what)?;
        let request = sanitised(request, &target)?;
        self.take_of_the_rate(&what)?;
        let place = self.place(&what)?;
        let by = self.connected_by(patience.connect);
        let connected = timeout_at(by, self.connected(&target, by, place)).await;
        let (mut sender, connection) = connected.unwrap_or(Err(NetworkError::ConnectTimeout.into()))?;
        let answer = sender.send_request(request);
        let answer = match patience.first_byte {
            Some(wanted) => timeout(wanted, answer).await.map_err(|_| NetworkError::AnswerTimeout)?,
            None => answer.await,
        };
        let answer = answer.map_err(|error| EgressError::of(&error))?;
        connection.answered();
        if head_bytes(answer.headers()) > MAX_HEAD_BYTES {
            return Err(NetworkError::AnswerHead.into());
        }
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(NetworkError::Upgrade.into());
        }
        Ok(answer.map(|body| Answer::new(body, patience.between_bytes, connection).boxed_unsync()))
    }

    /// Counts one request, whatever becomes of it.
    pub(super) fn count(&self, what: &str) -> Result<(), EgressError> {
        let mut books = self.books();
        if books.requests >= self.budgets.requests {
            drop(books);
            return Err(self.deny(DenialReason::Requests, what));
        }
        books.requests += 1;
        Ok(())
    }

    /// Whether the run may reach a host, as far as its name goes.
    pub(super) fn check_host(&self, host: &Host, what: &str) -> Result<(), EgressError> {
        self.reach.check(host).map_err(|unreachable| {
            let reason = match unreachable {
                Unreachable::NotAllowed => DenialReason::DomainNotAllowed,
                Unreachable::Literal => DenialReason::IpLiteral,
                Unreachable::Blocked => DenialReason::DomainBlocked,
            };
            self.deny(reason, what)
        })
    }

    /// Whether an address may be asked for by its number.
    pub(super) fn is_listed(&self, address: IpAddr) -> bool {
        self.reach.check(&Host::Address(address)).is_ok()
    }

    /// Takes one request of what the agent may make within a minute.
    pub(super) fn take_of_the_rate(&self, what: &str) -> Result<(), EgressError> {
        let Some(rate) = self.reach.requests_per_minute() else { return Ok(()) };
        if self.egress.rates.take(&self.agent, rate.value, self.egress.clock.monotonic()) {
            return Ok(());
        }
        Err(self.deny(DenialReason::RequestRate, what))
    }

    /// A place for one more connection, or for a look-up, which may take as long.
    pub(super) fn place(self: &Arc<Self>, what: &str) -> Result<Place, EgressError> {
        let permit = Arc::clone(&self.places).try_acquire_owned();
        let permit = permit.map_err(|_| self.deny(DenialReason::Connections, what))?;
        Ok(Place { line: Arc::clone(self), stands: false, _permit: permit })
    }

    /// When a connection has to stand that is begun now, with this patience.
    pub(super) fn connected_by(&self, wanted: Option<Duration>) -> Instant {
        let longest = self.egress.settings.connect;
        timer_now() + wanted.map_or(longest, |wanted| wanted.min(longest))
    }

    /// Connects to a checked address of the target.
    async fn connected(
        self: &Arc<Self>,
        target: &Target,
        by: Instant,
        place: Place,
    ) -> Result<(hyper::client::conn::http1::SendRequest<Body>, Connection), EgressError> {
        let what = target.to_string();
        let addresses = self.checked_addresses(&target.host, Some(target.port), &what).await?;
        let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, target.port));
        let (stream, place) = self.dial(&addresses.collect::<Vec<_>>(), &what, by, place).await?;
        greet(stream, target, &self.egress.tls, place).await
    }

    /// Connects to the first of these checked addresses that answers.
    pub(super) async fn dial(
        self: &Arc<Self>,
        addresses: &[SocketAddr],
        what: &str,
        by: Instant,
        mut place: Place,
    ) -> Result<(Counted, Place), EgressError> {
        let mut last = NetworkError::Name;
        for (index, address) in addresses.iter().enumerate() {
            // An address that does not answer leaves the others their share of the time.
            let others = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
            let share = by.saturating_duration_since(timer_now()) / others;
            last = match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Heads and small bodies are not held back for more.
                    let _only_slower = stream.set_nodelay(true);
                    place.stands();
                    let contact = self.books().reached(what, *address);
                    let counted = Counted::new(stream, Arc::clone(self), contact, what.to_owned());
                    return Ok((counted, place));
                }
                Ok(Err(_)) => NetworkError::Refused,
                Err(_late) => NetworkError::ConnectTimeout,
            };
        }
        Err(last.into())
    }

    /// The addresses of a host: looked up once, and all of them allowed, at this port or without one at
    /// some. One that is not says that the name cannot be trusted, so that the others are not used either.
    pub(super) async fn checked_addresses(
        &self,
        host: &Host,
        port: Option<u16>,
        what: &str,
    ) -> Result<Vec<IpAddr>, EgressError> {
        let found = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => match self.egress.settings.hosts.get(name) {
                Some(addresses) => addresses.clone(),
                None => self.looked_up(name.clone()).await?,
            },
        };
        for address in &found {
            self.check_address(*address, port, host, what)?;
        }
        Ok(found)
    }

    /// Asks the resolver. Whoever gives up waiting leaves the thread that it takes, and keeps its turn.
    async fn looked_up(&self, name: Domain) -> Result<Vec<IpAddr>, EgressError> {
        let turn = Arc::clone(&self.egress.lookups).acquire_owned().await.map_err(|_| NetworkError::Over)?;
        let resolver = Arc::clone(&self.egress.resolver);
        let found = tokio::spawn(async move {
            let _turn = turn;
            resolver.addresses(&name).await
        });
        let found = found.await.map_err(|_| NetworkError::Over)?;
        found.map_err(|_| NetworkError::Name.into())
    }

    /// Whether the run may connect to an address of `host`.
    pub(super) fn check_address(
        &self,
        address: IpAddr,
        port: Option<u16>,
        host: &Host,
        what: &str,
    ) -> Result<(), EgressError> {
        let what = || match host {
            Host::Name(_) => format!("{what} ({address})"),
            Host::Address(_) => what.to_owned(),
        };
        // An address that is blocked is blocked under any name.
        if self.reach.check(&Host::Address(address)) == Err(Unreachable::Blocked) {
            return Err(self.deny(DenialReason::DomainBlocked, &what()));
        }
        if !may_connect(address, port, &self.egress.settings.lifted) {
            return Err(self.deny(DenialReason::Address, &what()));
        }
        Ok(())
    }
}

impl Line {
    /// What `work` comes to, or the end of the run.
    async fn unless_over<T>(
        &self,
        work: impl Future<Output = Result<T, EgressError>>,
    ) -> Result<T, EgressError> {
        tokio::select! {
            biased;
            () = self.over() => Err(NetworkError::Over.into()),
            done = work => done,
        }
    }
}

impl Carrier for Line {
    fn send(self: Arc<Self>, request: Request<Body>, patience: Patience) -> Sending {
        Box::pin(async move { self.unless_over(self.judged_and_sent(request, patience)).await })
    }

    fn look_up(self: Arc<Self>, name: String) -> LookingUp {
        Box::pin(async move { self.unless_over(self.judged_and_found(&name)).await })
    }

    fn connect(self: Arc<Self>, address: SocketAddr, upload: Body) -> Connecting {
        Box::pin(async move { self.unless_over(self.judged_and_connected(address, upload)).await })
    }
}

/// A place among the connections of a run, as long as it lives.
pub(super) struct Place {
    line: Arc<Line>,
    /// Whether there is a connection.
    stands: bool,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// Counts the connection, which there is now.
    fn stands(&mut self) {
        let mut books = self.line.books();
        books.open = books.open.saturating_add(1);
        books.connections = books.connections.max(books.open);
        self.stands = true;
    }

    /// Comes when the run is over.
    pub(super) fn over(&self) -> impl Future<Output = ()> + Send + 'static {
        self.line.over()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.stands {
            let mut books = self.line.books();
            books.open = books.open.saturating_sub(1);
        }
    }
}

impl Books {
    fn deny(&mut self, reason: DenialReason, what: &str) -> io::Error {
        let what: String = what.chars().take(MAX_TARGET_BYTES).flat_map(char::escape_default).collect();
        let room = self.denied.len() < Usage::MAX_DENIALS;
        match self.denied.iter_mut().find(|denial| denial.reason == reason && denial.what == what) {
            Some(denial) => denial.count = denial.count.saturating_add(1),
            None if room => self.denied.push(Denial { what, reason, count: 1 }),
            None => self.denied_truncated = true,
        }
        io::Error::other(EgressError::Denied(reason))
    }

    /// Writes down that one more request goes to `address`; `None` when there is no room for one more.
    fn reached(&mut self, authority: &str, address: SocketAddr) -> Option<usize> {
        let known =
            self.contacted.iter().position(|known| known.authority == authority && known.address == address);
        if known.is_none() && self.contacted.len() >= Usage::MAX_CONTACTS {
            self.contacted_truncated = true;
            return None;
        }
        let index = known.unwrap_or_else(|| {
            let authority = authority.to_owned();
            self.contacted.push(Contact {
                authority,
                address,
                requests: 0,
                sent_bytes: 0,
                received_bytes: 0,
            });
            self.contacted.len() - 1
        });
        self.with(Some(index), |contact| {
            contact.requests = contact.requests.saturating_add(1);
        });
        Some(index)
    }

    fn with(&mut self, contact: Option<usize>, change: impl FnOnce(&mut Contact)) {
        if let Some(contact) = contact.and_then(|index| self.contacted.get_mut(index)) {
            change(contact);
        }
    }
}

/// The request as it goes over the wire: to the checked target, with nothing in it that says otherwise.
fn sanitised(request: Request<Body>, target: &Target) -> Result<Request<Body>, EgressError> {
    let (mut parts, body) = request.into_parts();
    if parts.method == Method::CONNECT {
        return Err(NetworkError::Method.into());
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let path = if path.is_empty() || path.starts_with('?') { format!("/{path}") } else { path.to_owned() };
    if !path.starts_with('/') {
        return Err(NetworkError::Request.into());
    }
    if head_bytes(&parts.headers) + path.len() > MAX_HEAD_BYTES {
        return Err(NetworkError::RequestHead.into());
    }
    let length = length(&parts.headers)?;
    for name in NOT_THE_GUESTS.iter().chain([&header::CONTENT_LENGTH]) {
        parts.headers.remove(name);
    }
    if let Some(length) = length.filter(|_| !body.is_end_stream()) {
        parts.headers.insert(header::CONTENT_LENGTH, length.into());
    }
    let host = HeaderValue::try_from(target.host_header()).map_err(|_| NetworkError::Request)?;
    parts.headers.insert(header::HOST, host);
    parts.uri = path.parse::<Uri>().map_err(|_| NetworkError::Request)?;
    parts.version = http::Version::HTTP_11;
    Ok(Request::from_parts(parts, body))
}

/// How long header fields are as they go over the wire.
fn head_bytes(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// The length that a request names for its body: one number, or none.
fn length(headers: &HeaderMap) -> Result<Option<u64>, EgressError> {
    let mut named = headers.get_all(header::CONTENT_LENGTH).iter();
    let (first, second) = (named.next(), named.next());
    match (first, second) {
        (None, _) => Ok(None),
        (Some(length), None) => {
            let digits = length.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let length = digits.and_then(|digits| digits.parse().ok());
            length.map(Some).ok_or(NetworkError::Request.into())
        }
        (Some(_), Some(_)) => Err(NetworkError::Request.into()),
    }
}
