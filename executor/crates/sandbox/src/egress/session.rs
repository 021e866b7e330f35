//! The network of one run: its rules, budgets, accounting and connections.

use super::address::is_allowed;
use super::connection::{Connection, MeteredStream, ResponseBody, tls_and_http_handshake};
use super::held::{
    HELD_FILE_BYTES, HeldRequest, HeldRequests, HeldSecret, MAX_HELD_BODY_BYTES, MAX_HELD_FIELD_BYTES,
    MAX_HELD_METHOD_BYTES, MAX_HELD_URL_BYTES, Spool, make_answer,
};
use super::redaction::{RedactedBody, SentSecrets, ask_for_whole};
use super::refusal::{EgressError, NetworkError};
use super::secrets::{LoadError, RunSecrets, SecretPlan, SecretRefusal};
use super::target::Target;
use super::tunnel::ResolvedNames;
use super::{
    Body, ConnectFuture, Egress, LookUpFuture, MAX_HEAD_BYTES, NetworkBackend, SendFuture, Timeouts,
};
use a2g_capability::{Domain, Grant, Host, HostPattern, Reach, ReachError, RequestTarget};
use a2g_runtime::spawn;
use a2g_runtime::timer_now;
use a2g_types::ident::AgentDid;
use a2g_types::limit::{Bound, FileEffects, Layer, NetworkBudgets};
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

/// Fields that name another request, with those of [`is_override`]. `destination` and `x-copy-from` are second paths, of
/// WebDAV and of Swift; with `x-accel-mapping` and `x-sendfile-type`, an application names another file to the
/// proxy before it.
const OVERRIDE_FIELDS: [&str; 8] = [
    "destination",
    "disguised-host",
    "forwarded",
    "request-uri",
    "x-accel-mapping",
    "x-copy-from",
    "x-script-name",
    "x-sendfile-type",
];
/// The ends of fields beginning with `x-` or `http-` that name another request, such as `x-http-method-override`,
/// `x-httpmethodoverride`, `x-original-url`, `x-vhost` and `x-amz-copy-source`.
const OVERRIDE_ENDS: [&str; 9] =
    ["copy-source", "host", "hostname", "method", "override", "path", "rename-source", "uri", "url"];

/// Maximum number of characters of a target that a report quotes: the longest name with scheme, port and address.
const MAX_TARGET_CHARS: usize = 320;

/// The network access of one run, or of one request of the executor itself.
pub struct NetworkSession {
    egress: Arc<Egress>,
    agent: AgentDid,
    reach: Reach,
    budgets: NetworkBudgets,
    /// The time at which the file changes of the run take effect.
    effects: FileEffects,
    /// The place of the requests that wait; `None` if none may.
    held: Option<Arc<dyn HeldRequests>>,
    secrets: RunSecrets,
    accounting: Mutex<NetworkAccounting>,
    /// The results of the run's look-ups.
    pub(super) resolved_names: Mutex<ResolvedNames>,
    slots: Arc<Semaphore>,
    ended: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct NetworkAccounting {
    requests: u32,
    /// The number of requests that were to wait, including refused ones.
    held: u32,
    /// The size of their header fields, in bytes.
    held_fields: usize,
    /// The number of connections that are open now.
    open: u32,
    /// The maximum number of connections that were open at the same time.
    peak_connections: u32,
    sent: u64,
    received: u64,
    contacted: Vec<Contact>,
    contacted_truncated: bool,
    denied: Vec<Denial>,
    denied_truncated: bool,
}

impl NetworkSession {
    pub(super) fn new(
        egress: Arc<Egress>,
        agent: AgentDid,
        grant: &Grant,
        held: Option<Arc<dyn HeldRequests>>,
        sent: SentSecrets,
    ) -> Arc<Self> {
        let secrets = RunSecrets::new(grant.secrets(), sent);
        let reach = grant.reach().clone();
        let effects = grant.effects().value;
        Self::with_reach(egress, agent, reach, grant.network_budgets(), effects, held, secrets)
    }

    /// A session with this reach and these secrets; the executor uses it for its own requests, which have direct effects.
    pub(super) fn with_reach(
        egress: Arc<Egress>,
        agent: AgentDid,
        reach: Reach,
        budgets: NetworkBudgets,
        effects: FileEffects,
        held: Option<Arc<dyn HeldRequests>>,
        secrets: RunSecrets,
    ) -> Arc<Self> {
        let slots = usize::try_from(budgets.connections).unwrap_or(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            egress,
            agent,
            reach,
            budgets,
            effects,
            held,
            secrets,
            accounting: Mutex::default(),
            resolved_names: Mutex::default(),
            slots: Arc::new(Semaphore::new(slots)),
            ended: watch::channel(false).0,
        })
    }

    /// Closes every connection, and refuses new requests.
    pub fn close(&self) {
        self.ended.send_replace(true);
    }

    /// Waits for the end of the run.
    pub(super) fn wait_for_end(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut end = self.ended.subscribe();
        async move {
            // An error means that the session was dropped, which ends the run's network as well.
            let _session_may_be_dropped = end.wait_for(|ended| *ended).await;
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
        let rule = |(pattern, set_by): (&HostPattern, _)| HostRule { pattern: pattern.to_string(), set_by };
        let requests = self.reach.allowed_requests();
        let accounting = self.accounting();
        NetworkUsage {
            budgets: self.budgets,
            allowed: self.reach.allowed_patterns().map(rule).collect(),
            blocked: self.reach.blocked_patterns().map(rule).collect(),
            allowed_requests: requests
                .map(|(request, layer)| Bound { value: request.to_string(), layer })
                .collect(),
            requests_per_minute: self.reach.requests_per_minute(),
            requests: accounting.requests,
            connections: accounting.peak_connections,
            sent_bytes: accounting.sent,
            received_bytes: accounting.received,
            contacted: accounting.contacted.clone(),
            contacted_truncated: accounting.contacted_truncated,
            secrets: self.secrets.usage(),
            // Only the catalogue knows what the tool is.
            remote_server: None,
        }
    }

    /// The denials so far, and `true` if the list is incomplete.
    #[must_use]
    pub fn denials(&self) -> (Vec<Denial>, bool) {
        let accounting = self.accounting();
        (accounting.denied.clone(), accounting.denied_truncated)
    }

    /// The values of secrets that the run has sent.
    #[must_use]
    pub fn sent_secrets(&self) -> SentSecrets {
        self.secrets.sent().clone()
    }

    pub(super) fn secrets(&self) -> &RunSecrets {
        &self.secrets
    }

    /// Records a denial and returns it as an error.
    pub fn deny(&self, reason: DenialReason, subject: &str) -> EgressError {
        self.accounting().deny(reason, None, subject);
        EgressError::Denied(reason)
    }

    /// As [`Self::deny`], by a list of hosts or requests of this layer.
    fn deny_by(&self, layer: Layer, reason: DenialReason, subject: &str) -> EgressError {
        self.accounting().deny(reason, Some(layer), subject);
        EgressError::Denied(reason)
    }

    fn accounting(&self) -> MutexGuard<'_, NetworkAccounting> {
        self.accounting.lock()
    }

    /// Calls `read` with the remaining receive budget and counts the bytes that `read` returns. With a budget of 0,
    /// `read` must consume nothing and return the number of available bytes.
    pub(super) fn receive(
        &self,
        contact: Option<usize>,
        target: &str,
        read: impl FnOnce(usize) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut accounting = self.accounting();
        let remaining = self.budgets.received_bytes.saturating_sub(accounting.received);
        let read = read(usize::try_from(remaining).unwrap_or(usize::MAX));
        if let Poll::Ready(Ok(bytes)) = read {
            // Only a further byte exceeds the budget: a response that fits it exactly is not denied.
            if remaining == 0 && bytes > 0 {
                return Poll::Ready(Err(accounting.deny(DenialReason::ReceivedBytes, None, target)));
            }
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            accounting.received = accounting.received.saturating_add(bytes);
            accounting.update_contact(contact, |contact| {
                contact.received_bytes = contact.received_bytes.saturating_add(bytes);
            });
        }
        read
    }

    /// Calls `write` with the remaining send budget and counts the bytes that `write` accepted.
    pub(super) fn transmit(
        &self,
        contact: Option<usize>,
        target: &str,
        write: impl FnOnce(usize) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut accounting = self.accounting();
        let remaining = self.budgets.sent_bytes.saturating_sub(accounting.sent);
        if remaining == 0 {
            return Poll::Ready(Err(accounting.deny(DenialReason::SentBytes, None, target)));
        }
        let written = write(usize::try_from(remaining).unwrap_or(usize::MAX));
        if let Poll::Ready(Ok(bytes)) = written {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            accounting.sent = accounting.sent.saturating_add(bytes);
            accounting.update_contact(contact, |contact| {
                contact.sent_bytes = contact.sent_bytes.saturating_add(bytes);
            });
        }
        written
    }

    // Budget errors are errors for the tool and do not end the run: a tool can handle a response that is too long, and
    // the run's report lists the denial either way.
    async fn authorize_and_send(
        self: &Arc<Self>,
        request: Request<Body>,
        timeouts: Timeouts,
    ) -> Result<Response<Body>, EgressError> {
        let authority = request.uri().authority().map_or("", |authority| authority.as_str());
        self.count_request(authority)?;
        let target = Target::parse(request.uri()).map_err(|refusal| match refusal {
            EgressError::Denied(reason) => self.deny(reason, authority),
            EgressError::Failed(_) => refusal,
        })?;
        let subject = target.to_string();
        self.check_pattern(&target.pattern(), &subject)?;
        let mut request = sanitise(request, &target)?;
        self.check_request(&mut request, &target)?;
        let plan = self.plan_secrets(&mut request, &target)?;
        let bound = self.secrets.bound_to(&sent_target(&request, &target));
        let held = if only_reads(request.method()) { None } else { self.reserve_held(&subject)? };
        self.check_rate_limit(&subject)?;
        if let Some(held) = held {
            let request = self.check_places(&plan, request, &subject).await?;
            // A value that is set now would be on the disk until the commit.
            return self.hold(held, request, &target, plan.to_held()).await;
        }
        if let Some(answers) = &self.egress.answers {
            let scheme = if target.tls { "https" } else { "http" };
            let url = format!("{scheme}://{}{}", target.host_header(), request.uri());
            return Arc::clone(answers).answer(url, request).await;
        }
        // The slot bounds the number of bodies in memory, too.
        let slot = self.acquire_slot(&subject)?;
        let loaded = plan.load(&self.egress, &self.agent, self.secrets.sent(), request).await;
        let (mut secrets, mut request) = loaded.map_err(|error| self.refuse_load(error, &subject))?;
        // One deadline for look-up, connection and TLS handshake together.
        let deadline = self.connect_deadline(timeouts.connect);
        let result = timeout_at(deadline, self.connect_target(&target, deadline, slot)).await;
        let (mut sender, connection) = result.unwrap_or(Err(NetworkError::ConnectTimeout.into()))?;
        secrets.set(&subject, &mut request)?;
        self.secrets.count_placeholders(&request);
        let response = sender.send_request(request);
        let response = match timeouts.first_byte {
            Some(first_byte) => {
                timeout(first_byte, response).await.map_err(|_| NetworkError::ResponseTimeout)?
            }
            None => response.await,
        };
        let mut response = response.map_err(|error| EgressError::from_hyper(&error))?;
        connection.lift_head_limit();
        secrets.receive(&subject, self.egress.secrets.as_deref(), &mut response);
        let may_have_values = self.secrets.may_come_back();
        if may_have_values {
            // Another run may have sent a value to this server, which logs it.
            let searched = bound.search_too(&self.egress, self.secrets.sent()).await;
            searched.map_err(|refusal| self.deny_secret(&refusal, &subject))?;
            self.redact_head(&mut response, &subject)?;
        }
        // The head is measured as the guest receives it; hyper limits only its own buffer.
        if head_bytes(response.headers()) > MAX_HEAD_BYTES {
            return Err(NetworkError::ResponseHead.into());
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(NetworkError::Upgrade.into());
        }
        Ok(response.map(|body| {
            let whole = ResponseBody::new(body, timeouts.between_bytes, connection);
            if may_have_values {
                RedactedBody::new(whole, Arc::clone(self)).boxed_unsync()
            } else {
                whole.boxed_unsync()
            }
        }))
    }

    /// Reads the whole request, which waits from then on.
    async fn hold(
        &self,
        held: Arc<dyn HeldRequests>,
        request: Request<Body>,
        target: &Target,
        secrets: Vec<HeldSecret>,
    ) -> Result<Response<Body>, EgressError> {
        let subject = target.to_string();
        let (parts, mut body) = request.into_parts();
        let url = format!("{target}{}", parts.uri);
        let method = parts.method.as_str().to_owned();
        if url.len() > MAX_HELD_URL_BYTES || method.len() > MAX_HELD_METHOD_BYTES {
            return Err(self.deny(DenialReason::HeldRequests, &subject));
        }
        let field_bytes = self.count_held_fields(&parts.headers, &subject)?;
        let all = parts.headers.iter();
        let own = all.filter(|(name, _)| ![header::HOST, header::CONTENT_LENGTH].contains(name));
        let texts = own.map(|(name, value)| {
            let text = std::str::from_utf8(value.as_bytes()).map_err(|_| NetworkError::Request)?;
            Ok((name.as_str().to_owned(), text.to_owned()))
        });
        let fields = texts.collect::<Result<Vec<_>, EgressError>>()?;
        let length = content_length(&parts.headers)?;
        let reserve = |bytes: usize| {
            let has_room = held.reserve(u64::try_from(bytes).unwrap_or(u64::MAX));
            if has_room { Ok(()) } else { Err(self.deny(DenialReason::HeldRequests, &subject)) }
        };
        reserve(HELD_FILE_BYTES.saturating_add(url.len()).saturating_add(field_bytes))?;
        let mut spool = Spool::begin(&held).await?;
        let mut bytes = 0_u64;
        while let Some(frame) = body.frame().await {
            let part = frame?.into_data().map_err(|_trailers| NetworkError::Request)?;
            let part_bytes = u64::try_from(part.len()).unwrap_or(u64::MAX);
            bytes = bytes.saturating_add(part_bytes);
            if bytes > MAX_HELD_BODY_BYTES {
                return Err(self.deny(DenialReason::HeldRequests, &subject));
            }
            self.count_held_bytes(part_bytes, &subject)?;
            reserve(part.len())?;
            spool = spool.write(&part).await?;
        }
        if length.is_some_and(|length| length != bytes) {
            return Err(NetworkError::RequestBody.into());
        }
        let number = spool.keep(held, HeldRequest { method, url, fields, secrets }).await?;
        Ok(make_answer(number))
    }

    /// Counts the header fields of one more request that waits. Returns their size in bytes.
    fn count_held_fields(&self, fields: &HeaderMap, subject: &str) -> Result<usize, EgressError> {
        let bytes = head_bytes(fields);
        let mut accounting = self.accounting();
        let all = accounting.held_fields.saturating_add(bytes);
        if all > MAX_HELD_FIELD_BYTES {
            drop(accounting);
            return Err(self.deny(DenialReason::HeldRequests, subject));
        }
        accounting.held_fields = all;
        Ok(bytes)
    }

    /// Counts a part of a body that waits as sent.
    fn count_held_bytes(&self, bytes: u64, subject: &str) -> Result<(), EgressError> {
        let mut accounting = self.accounting();
        let sent = accounting.sent.saturating_add(bytes);
        if sent > self.budgets.sent_bytes {
            drop(accounting);
            return Err(self.deny(DenialReason::SentBytes, subject));
        }
        accounting.sent = sent;
        Ok(())
    }

    /// Counts one request against the budget, whether or not it succeeds later.
    pub(super) fn count_request(&self, subject: &str) -> Result<(), EgressError> {
        let mut accounting = self.accounting();
        if accounting.requests >= self.budgets.requests {
            drop(accounting);
            return Err(self.deny(DenialReason::Requests, subject));
        }
        accounting.requests += 1;
        Ok(())
    }

    /// Checks a host, at every port and over every protocol, against the run's rules for names.
    pub(super) fn check_host(&self, host: &Host, subject: &str) -> Result<(), EgressError> {
        self.check_pattern(&HostPattern::Exactly(host.clone()), subject)
    }

    fn check_pattern(&self, wanted: &HostPattern, subject: &str) -> Result<(), EgressError> {
        self.reach.check_pattern(wanted).map_err(|error| {
            let reason = match error {
                ReachError::NotAllowed(_) => DenialReason::DomainNotAllowed,
                ReachError::AddressNotAllowed(_) => DenialReason::IpLiteral,
                ReachError::Blocked(_) => DenialReason::DomainBlocked,
            };
            self.deny_by(error.layer(), reason, subject)
        })
    }

    /// Checks a request, as it is sent, against the requests that the tool declares. Removes the fields in
    /// which a server could find another one, also from the requests of a staged run: such a field would make a
    /// change of a GET, which is sent at once, and another request of one that is shown and approved.
    fn check_request(&self, request: &mut Request<Body>, target: &Target) -> Result<(), EgressError> {
        let has_declared = self.reach.requests_set_by().is_some();
        let is_exact = match self.effects {
            FileEffects::Staged => true,
            FileEffects::Direct | FileEffects::Atomic => has_declared,
        };
        if is_exact {
            remove_overrides(request.headers_mut());
        }
        if !has_declared {
            return Ok(());
        }
        let sent = sent_target(request, target);
        self.reach.check_request(&sent).map_err(|layer| {
            let subject = format!("{} {target}{}", sent.method, sent.path);
            self.deny_by(layer, DenialReason::RequestNotDeclared, &subject)
        })
    }

    /// The secrets that a request gets, as it is sent. Removes the fields in which a server could find another
    /// request from one that gets any. In a run with secrets, each request asks for a whole answer.
    fn plan_secrets(
        &self,
        request: &mut Request<Body>,
        target: &Target,
    ) -> Result<SecretPlan<'_>, EgressError> {
        let planned = self.secrets.plan(&sent_target(request, target));
        let subject = || format!("{target}{}", request.uri().path());
        let plan = planned.map_err(|refusal| self.deny_secret(&refusal, &subject()))?;
        if !plan.is_empty() {
            remove_overrides(request.headers_mut());
        }
        if self.secrets.may_come_back() {
            ask_for_whole(request.headers_mut());
        }
        Ok(plan)
    }

    /// Checks that a request that waits has the places of its secrets: one without them would fail in the middle of the
    /// commit.
    async fn check_places(
        self: &Arc<Self>,
        plan: &SecretPlan<'_>,
        request: Request<Body>,
        subject: &str,
    ) -> Result<Request<Body>, EgressError> {
        if !plan.is_in_body() {
            return Ok(request);
        }
        // As for a request that is sent, the slot bounds the number of bodies in memory.
        let _slot = self.acquire_slot(subject)?;
        plan.check_places(&self.agent, request).await.map_err(|error| self.refuse_load(error, subject))
    }

    fn refuse_load(&self, error: LoadError, subject: &str) -> EgressError {
        match error {
            LoadError::Refused(refusal) => self.deny_secret(&refusal, subject),
            LoadError::Failed(error) => error,
        }
    }

    fn deny_secret(&self, refusal: &SecretRefusal, subject: &str) -> EgressError {
        let SecretRefusal { name, reason, set_by } = refusal;
        self.accounting().deny(*reason, *set_by, &format!("secret {name} for {subject}"));
        EgressError::Denied(*reason)
    }

    /// Refuses a direct connection if the tool declares its requests, which says nothing of bytes, if the run has
    /// secrets, which are set and replaced only in requests and their answers, or if the run's file changes wait for a
    /// decision: the bytes that it sends could not be taken back with them.
    pub(super) fn check_may_connect(&self, subject: &str) -> Result<(), EgressError> {
        if let Some(layer) = self.reach.requests_set_by() {
            return Err(self.deny_by(layer, DenialReason::RequestNotDeclared, subject));
        }
        if self.secrets.may_come_back() {
            return Err(self.deny(DenialReason::SecretPlace, subject));
        }
        match self.effects {
            FileEffects::Direct | FileEffects::Atomic => Ok(()),
            FileEffects::Staged => Err(self.deny(DenialReason::Staged, subject)),
        }
    }

    /// Counts one more request that waits, and returns its place; `None` if the run's requests are sent at once.
    fn reserve_held(&self, subject: &str) -> Result<Option<Arc<dyn HeldRequests>>, EgressError> {
        let held = match (self.effects, &self.held) {
            (FileEffects::Direct | FileEffects::Atomic, _) => return Ok(None),
            (FileEffects::Staged, Some(held)) if self.budgets.held_requests > 0 => Arc::clone(held),
            (FileEffects::Staged, Some(_) | None) => return Err(self.deny(DenialReason::Staged, subject)),
        };
        let mut accounting = self.accounting();
        if accounting.held >= self.budgets.held_requests {
            drop(accounting);
            return Err(self.deny(DenialReason::HeldRequests, subject));
        }
        accounting.held += 1;
        Ok(Some(held))
    }

    /// Checks that the run's rules list an address to which the guest connects without a look-up.
    pub(super) fn check_listed(&self, address: IpAddr, subject: &str) -> Result<(), EgressError> {
        let checked = self.reach.check(&Host::Address(address));
        checked.map_err(|error| self.deny_by(error.layer(), DenialReason::NotLookedUp, subject))
    }

    /// Counts one request against the agent's rate limit.
    pub(super) fn check_rate_limit(&self, subject: &str) -> Result<(), EgressError> {
        let Some(rate) = self.reach.requests_per_minute() else { return Ok(()) };
        if self.egress.rates.try_take(&self.agent, rate.value, self.egress.clock.monotonic()) {
            return Ok(());
        }
        Err(self.deny(DenialReason::RequestRate, subject))
    }

    /// Acquires a slot for one connection or one look-up.
    pub(super) fn acquire_slot(self: &Arc<Self>, subject: &str) -> Result<ConnectionSlot, EgressError> {
        // The connection is refused and not queued, because the guest would wait for its own connections.
        let permit = Arc::clone(&self.slots).try_acquire_owned();
        let permit = permit.map_err(|_| self.deny(DenialReason::Connections, subject))?;
        Ok(ConnectionSlot { session: Arc::clone(self), established: false, _permit: permit })
    }

    /// The deadline for a connection that is started now.
    pub(super) fn connect_deadline(&self, requested: Option<Duration>) -> Instant {
        let max = self.egress.settings.connect;
        timer_now() + requested.map_or(max, |requested| requested.min(max))
    }

    /// Connects to a checked address of the target.
    async fn connect_target(
        self: &Arc<Self>,
        target: &Target,
        deadline: Instant,
        slot: ConnectionSlot,
    ) -> Result<(hyper::client::conn::http1::SendRequest<Body>, Connection), EgressError> {
        let subject = target.to_string();
        let addresses = self.resolve_and_check(&target.host, Some(target.port), &subject).await?;
        let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, target.port));
        let (stream, slot) = self.dial(&addresses.collect::<Vec<_>>(), &subject, deadline, slot).await?;
        tls_and_http_handshake(stream, target, &self.egress.tls, slot).await
    }

    /// Connects to the first of these checked addresses that accepts.
    pub(super) async fn dial(
        self: &Arc<Self>,
        addresses: &[SocketAddr],
        subject: &str,
        deadline: Instant,
        mut slot: ConnectionSlot,
    ) -> Result<(MeteredStream, ConnectionSlot), EgressError> {
        if self.egress.answers.is_some() {
            return Err(NetworkError::Refused.into());
        }
        let mut last_error = NetworkError::Name;
        for (index, address) in addresses.iter().enumerate() {
            // An address that does not answer must not use up the time of the others.
            let remaining = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
            let share = deadline.saturating_duration_since(timer_now()) / remaining;
            last_error = match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Nagle's algorithm would delay heads and small bodies. A failure only makes them slower.
                    let _only_slower = stream.set_nodelay(true);
                    slot.mark_established();
                    let contact = self.accounting().record_contact(subject, *address);
                    let stream = MeteredStream::new(stream, Arc::clone(self), contact, subject.to_owned());
                    return Ok((stream, slot));
                }
                Ok(Err(_)) => NetworkError::Refused,
                Err(_late) => NetworkError::ConnectTimeout,
            };
        }
        Err(last_error.into())
    }

    /// Looks up the addresses of a host once, and checks that all of them are allowed at `port`, or at one port or more
    /// if `port` is `None`.
    pub(super) async fn resolve_and_check(
        &self,
        host: &Host,
        port: Option<u16>,
        subject: &str,
    ) -> Result<Vec<IpAddr>, EgressError> {
        let addresses = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => match self.egress.settings.hosts.get(name) {
                Some(addresses) => addresses.clone(),
                None => self.resolve_name(name.clone()).await?,
            },
        };
        // If one address is refused, so is the name. Using the others would be safe as well, but an answer that mixes
        // both kinds is typical of an attack, which would then go unrecorded.
        for address in &addresses {
            self.check_address(*address, port, host, subject)?;
        }
        Ok(addresses)
    }

    /// Waits until fewer than [`super::MAX_LOOKUPS`] look-ups run, then looks the name up.
    async fn resolve_name(&self, name: Domain) -> Result<Vec<IpAddr>, EgressError> {
        if self.egress.answers.is_some() {
            return Err(NetworkError::Name.into());
        }
        let permit =
            Arc::clone(&self.egress.lookups).acquire_owned().await.map_err(|_| NetworkError::RunEnded)?;
        let resolver = Arc::clone(&self.egress.resolver);
        // This is a separate task, because the resolver's thread cannot be cancelled: the task keeps its permit even if
        // the caller stops waiting.
        let addresses = spawn::spawn_run_task(async move {
            let _permit = permit;
            resolver.addresses(&name).await
        });
        let addresses = addresses.await.map_err(|_| NetworkError::RunEnded)?;
        addresses.map_err(|_| NetworkError::Name.into())
    }

    /// Checks an address of `host` against the run's rules for addresses.
    pub(super) fn check_address(
        &self,
        address: IpAddr,
        port: Option<u16>,
        host: &Host,
        subject: &str,
    ) -> Result<(), EgressError> {
        let subject = || match host {
            Host::Name(_) => format!("{subject} ({address})"),
            Host::Address(_) => subject.to_owned(),
        };
        // An address on the block list is blocked under any name.
        if let Err(ReachError::Blocked(layer)) = self.reach.check(&Host::Address(address)) {
            return Err(self.deny_by(layer, DenialReason::DomainBlocked, &subject()));
        }
        if !is_allowed(address, port, &self.egress.settings.allowed_addresses) {
            return Err(self.deny(DenialReason::Address, &subject()));
        }
        Ok(())
    }
}

impl NetworkSession {
    /// The result of `work`, or [`NetworkError::RunEnded`] if the run ends first.
    async fn race_with_end<T>(
        &self,
        work: impl Future<Output = Result<T, EgressError>>,
    ) -> Result<T, EgressError> {
        tokio::select! {
            // The end is polled first, so that no request begins after the end of the run.
            biased;
            () = self.wait_for_end() => Err(NetworkError::RunEnded.into()),
            result = work => result,
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

/// One of a run's connection slots. Dropping it releases the slot.
pub(super) struct ConnectionSlot {
    session: Arc<NetworkSession>,
    /// `true` if the slot has an established connection, and not only a look-up or an attempt.
    established: bool,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionSlot {
    /// Counts the slot's connection as established.
    fn mark_established(&mut self) {
        let mut accounting = self.session.accounting();
        accounting.open = accounting.open.saturating_add(1);
        accounting.peak_connections = accounting.peak_connections.max(accounting.open);
        self.established = true;
    }

    /// Waits for the end of the run.
    pub(super) fn wait_for_end(&self) -> impl Future<Output = ()> + Send + 'static {
        self.session.wait_for_end()
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
    /// Records a denial, with the layer whose list denies a host or a request.
    fn deny(&mut self, reason: DenialReason, set_by: Option<Layer>, subject: &str) -> io::Error {
        // The target is the guest's text and ends up in reports and terminals.
        let subject: String = subject.chars().take(MAX_TARGET_CHARS).flat_map(char::escape_default).collect();
        let has_capacity = self.denied.len() < Usage::MAX_DENIALS;
        match self.denied.iter_mut().find(|denial| denial.reason == reason && denial.what == subject) {
            Some(denial) => denial.count = denial.count.saturating_add(1),
            None if has_capacity => self.denied.push(Denial { what: subject, reason, set_by, count: 1 }),
            None => self.denied_truncated = true,
        }
        io::Error::other(EgressError::Denied(reason))
    }

    /// Counts a request to `address` and returns the index of its entry in `contacted`; `None` if the list is full.
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

/// `true` for the methods by which a client asks for something and for no change (RFC 9110, section 9.2.1).
fn only_reads(method: &Method) -> bool {
    [Method::GET, Method::HEAD].contains(method)
}

/// The request as it is sent: to the checked target, without any field that could name another target.
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
    if head_bytes(&parts.headers) + parts.method.as_str().len() + path.len() > MAX_HEAD_BYTES {
        return Err(NetworkError::RequestHead.into());
    }
    // The length is read before its field is removed: hyper would otherwise send the body in chunks.
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

/// A request as it is compared with declared requests and with those of secrets.
fn sent_target<'a>(request: &'a Request<Body>, target: &'a Target) -> RequestTarget<'a> {
    RequestTarget {
        method: request.method().as_str(),
        is_https: target.tls,
        host: &target.host,
        port: target.port,
        path: request.uri().path(),
    }
}

/// Removes the fields in which some servers and proxies find another method, host or path than those of the
/// request: from the requests of a tool that declares them, from those of a staged run, and from those that get a
/// secret.
fn remove_overrides(fields: &mut HeaderMap) {
    let names = fields.keys().filter(|name| is_override(name)).cloned().collect::<Vec<_>>();
    for name in names {
        fields.remove(name);
    }
}

/// `true` for a field that names another request. There is no full list of them, so unknown ones are found by
/// their ends. Servers that pass fields on as variables read every other character as `_`, so all are `-` here.
fn is_override(name: &HeaderName) -> bool {
    let words = name.as_str().replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    let is_extension = words.starts_with("x-") || words.starts_with("http-");
    OVERRIDE_FIELDS.contains(&words.as_str())
        || words.starts_with("x-forwarded")
        || (is_extension && OVERRIDE_ENDS.iter().any(|&end| words.ends_with(end)))
}

/// The size of header fields as they are sent, in bytes.
fn head_bytes(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// The `Content-Length` of a request: one number, or none.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, EgressError> {
    let mut values = headers.get_all(header::CONTENT_LENGTH).iter();
    let first = values.next();
    let second = values.next();
    match (first, second) {
        (None, _) => Ok(None),
        (Some(length), None) => {
            let digits = length.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let length = digits.and_then(|digits| digits.parse().ok());
            length.map(Some).ok_or(NetworkError::Request.into())
        }
        // Two lengths are ambiguous and would allow request smuggling.
        (Some(_), Some(_)) => Err(NetworkError::Request.into()),
    }
}
