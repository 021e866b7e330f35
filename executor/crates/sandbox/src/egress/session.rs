//! The network of one run: its rules, budgets, accounting and connections.

use super::address::is_allowed;
use super::connection::{Connection, MeteredStream, ResponseBody, tls_and_http_handshake};
use super::refusal::{EgressError, NetworkError};
use super::target::Target;
use super::tunnel::ResolvedNames;
use super::{
    Body, ConnectFuture, Egress, LookUpFuture, MAX_HEAD_BYTES, NetworkBackend, SendFuture, Timeouts,
};
use a2g_capability::{Domain, Grant, Host, Reach, ReachError};
use a2g_runtime::spawn;
use a2g_runtime::timer_now;
use a2g_types::ident::AgentDid;
use a2g_types::limit::NetworkBudgets;
use a2g_types::outcome::{Contact, Denial, DenialReason, HostRule, NetworkUsage, Usage};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// Header fields that are removed from a guest's request: they belong to the connection, or repeat a checked value.
const STRIPPED_FIELDS: [HeaderName; 12] = [
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

/// The most characters of a target that a report quotes: the longest name with scheme, port and address.
const MAX_TARGET_BYTES: usize = 320;

/// The network of one run.
pub struct NetworkSession {
    egress: Arc<Egress>,
    agent: AgentDid,
    reach: Reach,
    budgets: NetworkBudgets,
    accounting: Mutex<NetworkAccounting>,
    /// The results of the run's look-ups.
    pub(super) resolved_names: Mutex<ResolvedNames>,
    slots: Arc<Semaphore>,
    ended: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct NetworkAccounting {
    requests: u32,
    /// The connections that are open now, and the most that were open at once.
    open: u32,
    connections: u32,
    sent: u64,
    received: u64,
    contacted: Vec<Contact>,
    contacted_truncated: bool,
    denied: Vec<Denial>,
    denied_truncated: bool,
}

impl NetworkSession {
    pub(super) fn new(egress: Arc<Egress>, agent: AgentDid, grant: &Grant) -> Arc<Self> {
        Self::for_executor(egress, agent, grant.reach().clone(), grant.network_budgets())
    }

    /// A session for a request of the executor itself on behalf of `agent`.
    pub(super) fn for_executor(
        egress: Arc<Egress>,
        agent: AgentDid,
        reach: Reach,
        budgets: NetworkBudgets,
    ) -> Arc<Self> {
        let slots = usize::try_from(budgets.connections).unwrap_or(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            egress,
            agent,
            reach,
            budgets,
            accounting: Mutex::default(),
            resolved_names: Mutex::default(),
            slots: Arc::new(Semaphore::new(slots)),
            ended: watch::channel(false).0,
        })
    }

    /// Closes every connection, and lets no request begin.
    pub fn close(&self) {
        self.ended.send_replace(true);
    }

    /// Waits for the end of the run.
    pub(super) fn wait_ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.ended.subscribe();
        async move {
            // An error means that the session was dropped, which ends the run's network as well.
            let _ended_or_dropped = ended.wait_for(|ended| *ended).await;
        }
    }

    /// The run's network budgets.
    #[must_use]
    pub fn budgets(&self) -> NetworkBudgets {
        self.budgets
    }

    /// The run's use of the network so far.
    #[must_use]
    pub fn usage(&self) -> NetworkUsage {
        let rule = |(pattern, set_by): (&a2g_capability::HostPattern, _)| HostRule {
            pattern: pattern.to_string(),
            set_by,
        };
        let accounting = self.accounting();
        NetworkUsage {
            budgets: self.budgets,
            allowed: self.reach.allowed_patterns().map(rule).collect(),
            blocked: self.reach.blocked_patterns().map(rule).collect(),
            requests_per_minute: self.reach.requests_per_minute(),
            requests: accounting.requests,
            connections: accounting.connections,
            sent_bytes: accounting.sent,
            received_bytes: accounting.received,
            contacted: accounting.contacted.clone(),
            contacted_truncated: accounting.contacted_truncated,
        }
    }

    /// The denials so far, and `true` if some did not fit the list.
    #[must_use]
    pub fn denials(&self) -> (Vec<Denial>, bool) {
        let accounting = self.accounting();
        (accounting.denied.clone(), accounting.denied_truncated)
    }

    /// Records a denial and returns it as an error.
    pub fn deny(&self, reason: DenialReason, what: &str) -> EgressError {
        self.accounting().deny(reason, what);
        EgressError::Denied(reason)
    }

    fn accounting(&self) -> MutexGuard<'_, NetworkAccounting> {
        self.accounting.lock()
    }

    /// Calls `read` with the remaining receive budget and counts the bytes that it returns. With a budget of 0, `read`
    /// must return the number of bytes that are available without consuming them.
    pub(super) fn receive(
        &self,
        contact: Option<usize>,
        target: &str,
        read: impl FnOnce(usize) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut accounting = self.accounting();
        let left = self.budgets.received_bytes.saturating_sub(accounting.received);
        let read = read(usize::try_from(left).unwrap_or(usize::MAX));
        if let Poll::Ready(Ok(bytes)) = read {
            // Only a further byte exceeds the budget: a response that just fits it is not denied.
            if left == 0 && bytes > 0 {
                return Poll::Ready(Err(accounting.deny(DenialReason::ReceivedBytes, target)));
            }
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            accounting.received = accounting.received.saturating_add(bytes);
            accounting.update_contact(contact, |contact| {
                contact.received_bytes = contact.received_bytes.saturating_add(bytes);
            });
        }
        read
    }

    /// Calls `write` with the remaining send budget and counts the bytes that it accepted.
    pub(super) fn transmit(
        &self,
        contact: Option<usize>,
        target: &str,
        write: impl FnOnce(usize) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut accounting = self.accounting();
        let left = self.budgets.sent_bytes.saturating_sub(accounting.sent);
        if left == 0 {
            return Poll::Ready(Err(accounting.deny(DenialReason::SentBytes, target)));
        }
        let written = write(usize::try_from(left).unwrap_or(usize::MAX));
        if let Poll::Ready(Ok(bytes)) = written {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            accounting.sent = accounting.sent.saturating_add(bytes);
            accounting.update_contact(contact, |contact| {
                contact.sent_bytes = contact.sent_bytes.saturating_add(bytes);
            });
        }
        written
    }

    // Budget errors are errors for the tool and do not end the run: a tool can report that a response was too long, and
    // the report lists the denial either way.
    async fn authorize_and_send(
        self: &Arc<Self>,
        request: Request<Body>,
        timeouts: Timeouts,
    ) -> Result<Response<Body>, EgressError> {
        let authority = request.uri().authority().map_or("", |authority| authority.as_str());
        self.count(authority)?;
        let target = Target::parse(request.uri()).map_err(|refusal| match refusal {
            EgressError::Denied(reason) => self.deny(reason, authority),
            EgressError::Failed(_) => refusal,
        })?;
        let what = target.to_string();
        self.check_host(&target.host, &what)?;
        let request = sanitise(request, &target)?;
        self.check_rate_limit(&what)?;
        let slot = self.acquire_slot(&what)?;
        // One deadline for look-up, connection and TLS handshake together.
        let by = self.connect_deadline(timeouts.connect);
        let connected = timeout_at(by, self.connect_target(&target, by, slot)).await;
        let (mut sender, connection) = connected.unwrap_or(Err(NetworkError::ConnectTimeout.into()))?;
        let answer = sender.send_request(request);
        let answer = match timeouts.first_byte {
            Some(wanted) => timeout(wanted, answer).await.map_err(|_| NetworkError::AnswerTimeout)?,
            None => answer.await,
        };
        let answer = answer.map_err(|error| EgressError::from_hyper(&error))?;
        connection.lift_head_limit();
        // Measured as it is passed on to the guest; hyper bounds only its buffer.
        if head_bytes(answer.headers()) > MAX_HEAD_BYTES {
            return Err(NetworkError::AnswerHead.into());
        }
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(NetworkError::Upgrade.into());
        }
        Ok(answer.map(|body| ResponseBody::new(body, timeouts.between_bytes, connection).boxed_unsync()))
    }

    /// Counts one request, regardless of its result.
    pub(super) fn count(&self, what: &str) -> Result<(), EgressError> {
        let mut accounting = self.accounting();
        if accounting.requests >= self.budgets.requests {
            drop(accounting);
            return Err(self.deny(DenialReason::Requests, what));
        }
        accounting.requests += 1;
        Ok(())
    }

    /// Checks a host against the run's rules for names.
    pub(super) fn check_host(&self, host: &Host, what: &str) -> Result<(), EgressError> {
        self.reach.check(host).map_err(|unreachable| {
            let reason = match unreachable {
                ReachError::NotAllowed => DenialReason::DomainNotAllowed,
                ReachError::Literal => DenialReason::IpLiteral,
                ReachError::Blocked => DenialReason::DomainBlocked,
            };
            self.deny(reason, what)
        })
    }

    /// The run's rules list this address itself.
    pub(super) fn is_listed(&self, address: IpAddr) -> bool {
        self.reach.check(&Host::Address(address)).is_ok()
    }

    /// Takes one request from the agent's rate limit.
    pub(super) fn check_rate_limit(&self, what: &str) -> Result<(), EgressError> {
        let Some(rate) = self.reach.requests_per_minute() else { return Ok(()) };
        if self.egress.rates.take(&self.agent, rate.value, self.egress.clock.monotonic()) {
            return Ok(());
        }
        Err(self.deny(DenialReason::RequestRate, what))
    }

    /// Acquires a slot for one connection or one look-up.
    pub(super) fn acquire_slot(self: &Arc<Self>, what: &str) -> Result<ConnectionSlot, EgressError> {
        // Refused and not queued: the guest would wait for connections of its own.
        let permit = Arc::clone(&self.slots).try_acquire_owned();
        let permit = permit.map_err(|_| self.deny(DenialReason::Connections, what))?;
        Ok(ConnectionSlot { session: Arc::clone(self), established: false, _permit: permit })
    }

    /// The deadline for a connection that is started now.
    pub(super) fn connect_deadline(&self, wanted: Option<Duration>) -> Instant {
        let longest = self.egress.settings.connect;
        timer_now() + wanted.map_or(longest, |wanted| wanted.min(longest))
    }

    /// Connects to a checked address of the target.
    async fn connect_target(
        self: &Arc<Self>,
        target: &Target,
        by: Instant,
        slot: ConnectionSlot,
    ) -> Result<(hyper::client::conn::http1::SendRequest<Body>, Connection), EgressError> {
        let what = target.to_string();
        let addresses = self.checked_addresses(&target.host, Some(target.port), &what).await?;
        let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, target.port));
        let (stream, slot) = self.dial(&addresses.collect::<Vec<_>>(), &what, by, slot).await?;
        tls_and_http_handshake(stream, target, &self.egress.tls, slot).await
    }

    /// Connects to the first of these checked addresses that accepts.
    pub(super) async fn dial(
        self: &Arc<Self>,
        addresses: &[SocketAddr],
        what: &str,
        by: Instant,
        mut slot: ConnectionSlot,
    ) -> Result<(MeteredStream, ConnectionSlot), EgressError> {
        let mut last = NetworkError::Name;
        for (index, address) in addresses.iter().enumerate() {
            // An address that does not answer must leave the others their share of the time.
            let others = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
            let share = by.saturating_duration_since(timer_now()) / others;
            last = match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Nagle's algorithm would delay heads and small bodies. A failure only makes them slower.
                    let _only_slower = stream.set_nodelay(true);
                    slot.mark_established();
                    let contact = self.accounting().record_contact(what, *address);
                    let stream = MeteredStream::new(stream, Arc::clone(self), contact, what.to_owned());
                    return Ok((stream, slot));
                }
                Ok(Err(_)) => NetworkError::Refused,
                Err(_late) => NetworkError::ConnectTimeout,
            };
        }
        Err(last.into())
    }

    /// The addresses of a host, looked up once and all of them allowed: at `port`, or without one at some port.
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
                None => self.resolve_name(name.clone()).await?,
            },
        };
        // One refused address refuses the name. Using the others would be safe as well, but an answer that mixes
        // the two is typical of an attack, and silence would hide it.
        for address in &found {
            self.check_address(*address, port, host, what)?;
        }
        Ok(found)
    }

    /// Looks a name up with the resolver, when fewer than [`super::MAX_LOOKUPS`] are in progress.
    async fn resolve_name(&self, name: Domain) -> Result<Vec<IpAddr>, EgressError> {
        let turn = Arc::clone(&self.egress.lookups).acquire_owned().await.map_err(|_| NetworkError::Over)?;
        let resolver = Arc::clone(&self.egress.resolver);
        // A task of its own: the resolver's thread cannot be cancelled, so it keeps its permit when the caller's
        // wait is.
        let found = spawn::spawn_run_task(async move {
            let _turn = turn;
            resolver.addresses(&name).await
        });
        let found = found.await.map_err(|_| NetworkError::Over)?;
        found.map_err(|_| NetworkError::Name.into())
    }

    /// Checks an address of `host` against the run's rules for addresses.
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
        // An address on the block list is blocked under any name.
        if self.reach.check(&Host::Address(address)) == Err(ReachError::Blocked) {
            return Err(self.deny(DenialReason::DomainBlocked, &what()));
        }
        if !is_allowed(address, port, &self.egress.settings.allowed_addresses) {
            return Err(self.deny(DenialReason::Address, &what()));
        }
        Ok(())
    }
}

impl NetworkSession {
    /// The result of `work`, or [`NetworkError::Over`] if the run ends first.
    async fn race_with_end<T>(
        &self,
        work: impl Future<Output = Result<T, EgressError>>,
    ) -> Result<T, EgressError> {
        tokio::select! {
            // The end first: a request after the end of the run must not begin at all.
            biased;
            () = self.wait_ended() => Err(NetworkError::Over.into()),
            done = work => done,
        }
    }
}

impl NetworkBackend for NetworkSession {
    fn send(self: Arc<Self>, request: Request<Body>, timeouts: Timeouts) -> SendFuture {
        Box::pin(async move { self.race_with_end(self.authorize_and_send(request, timeouts)).await })
    }

    fn look_up(self: Arc<Self>, name: String) -> LookUpFuture {
        Box::pin(async move { self.race_with_end(self.authorize_and_look_up(&name)).await })
    }

    fn connect(self: Arc<Self>, address: SocketAddr, upload: Body) -> ConnectFuture {
        Box::pin(async move { self.race_with_end(self.authorize_and_connect(address, upload)).await })
    }
}

/// A slot among the connections of a run. Dropping it releases the slot.
pub(super) struct ConnectionSlot {
    session: Arc<NetworkSession>,
    /// The slot has an established connection, and not only a look-up or an attempt.
    established: bool,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionSlot {
    /// Counts the connection, which is now established.
    fn mark_established(&mut self) {
        let mut accounting = self.session.accounting();
        accounting.open = accounting.open.saturating_add(1);
        accounting.connections = accounting.connections.max(accounting.open);
        self.established = true;
    }

    /// Waits for the end of the run.
    pub(super) fn wait_ended(&self) -> impl Future<Output = ()> + Send + 'static {
        self.session.wait_ended()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        if self.established {
            let mut accounting = self.session.accounting();
            accounting.open = accounting.open.saturating_sub(1);
        }
    }
}

impl NetworkAccounting {
    fn deny(&mut self, reason: DenialReason, what: &str) -> io::Error {
        // The target is the guest's text and ends up in reports and terminals.
        let what: String = what.chars().take(MAX_TARGET_BYTES).flat_map(char::escape_default).collect();
        let room = self.denied.len() < Usage::MAX_DENIALS;
        match self.denied.iter_mut().find(|denial| denial.reason == reason && denial.what == what) {
            Some(denial) => denial.count = denial.count.saturating_add(1),
            None if room => self.denied.push(Denial { what, reason, count: 1 }),
            None => self.denied_truncated = true,
        }
        io::Error::other(EgressError::Denied(reason))
    }

    /// Counts a request to `address` and returns its index; `None` if the list is full.
    fn record_contact(&mut self, authority: &str, address: SocketAddr) -> Option<usize> {
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
        self.update_contact(Some(index), |contact| {
            contact.requests = contact.requests.saturating_add(1);
        });
        Some(index)
    }

    fn update_contact(&mut self, contact: Option<usize>, change: impl FnOnce(&mut Contact)) {
        if let Some(contact) = contact.and_then(|index| self.contacted.get_mut(index)) {
            change(contact);
        }
    }
}

/// The request as it is sent: to the checked target, without any field that could name another one.
fn sanitise(request: Request<Body>, target: &Target) -> Result<Request<Body>, EgressError> {
    let (mut parts, body) = request.into_parts();
    // `CONNECT` would open a tunnel to a host that is not checked.
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
    // Read before the removal below: hyper would otherwise send a body of unknown length in chunks.
    let length = content_length(&parts.headers)?;
    for name in STRIPPED_FIELDS.iter().chain([&header::CONTENT_LENGTH]) {
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

/// The size of header fields as they are sent, in bytes.
fn head_bytes(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// The `Content-Length` of a request: one number, or none.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, EgressError> {
    let mut named = headers.get_all(header::CONTENT_LENGTH).iter();
    let (first, second) = (named.next(), named.next());
    match (first, second) {
        (None, _) => Ok(None),
        (Some(length), None) => {
            let digits = length.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let length = digits.and_then(|digits| digits.parse().ok());
            length.map(Some).ok_or(NetworkError::Request.into())
        }
        // Two lengths are ambiguous, which is a means of request smuggling.
        (Some(_), Some(_)) => Err(NetworkError::Request.into()),
    }
}
