//! The HTTP client of one repository.
//!
//! - Every read has a limit on its size and its time, and nothing is buffered beyond that limit.
//! - A login is sent to the registry, and to the token server that the registry names over TLS. It is never sent to the
//!   host of a redirect or of an upload location.
//! - Plain HTTP is only for registries on this machine, and a redirect never leads from TLS to plain HTTP.

use super::error::RegistryError;
use super::login::{self, Login, LoginError};
use super::progress::Progress;
use a2g_core::catalog::{Repository, is_local_host};
use a2g_sandbox::egress::client_config;
use a2g_types::error_chain::ErrorChain;
use a2g_types::ident::excerpt;
use a2g_types::visible_text::escape_invisible;
use anyhow::Context as _;
use bytes::Bytes;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, LOCATION, RANGE, USER_AGENT,
    WWW_AUTHENTICATE,
};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use url::Url;

/// The time limit for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time without progress after which a connection fails, as [`RegistryClient::idle_timeout`].
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The base time limit of a transfer of any size.
const BASE_TIMEOUT: Duration = Duration::from_secs(60);
/// The minimum rate of a transfer, in bytes per second.
const MIN_RATE: u64 = 32 << 10;
/// The maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 5;
/// The maximum size of the head of a response, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// The maximum size of a response with a token or an error, in bytes.
const MAX_MESSAGE_BYTES: u64 = 64 << 10;
/// The verb of a refusal for a response that redirects.
const REDIRECTS: &str = "redirects to";
/// The interval at which the progress of a request is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The size of the chunks in which a body is sent, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// The access to the repository that a client needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Read only.
    Pull,
    /// Read and write.
    Push,
}

/// The client of one repository.
pub(super) struct RegistryClient {
    http: Client<HttpsConnector<HttpConnector>, CountedBody>,
    repository: Repository,
    purpose: Purpose,
    /// The registry's address, with a slash at the end.
    base: Url,
    /// Docker's configuration.
    logins: Option<PathBuf>,
    /// The login, once the registry has asked for one.
    login: Option<Login>,
    authorization: Option<HeaderValue>,
    /// The time without progress after which a request fails.
    idle_timeout: Duration,
}

/// A request, and its description for errors.
#[derive(Clone)]
pub(super) struct Outgoing {
    /// The method.
    pub(super) method: Method,
    /// The address.
    pub(super) url: Url,
    /// The description of the requested or sent part.
    pub(super) what: String,
    /// The header `Accept`.
    pub(super) accept: Option<&'static str>,
    /// The header `Content-Type`.
    pub(super) content_type: Option<&'static str>,
    /// The first requested byte, if not all are requested.
    pub(super) from_byte: Option<u64>,
    /// The body.
    pub(super) body: Bytes,
    /// The number of sent bytes of the body.
    pub(super) sent: Arc<AtomicU64>,
}

impl Outgoing {
    /// A request without a body.
    pub(super) fn new(method: Method, url: Url, what: impl Into<String>) -> Self {
        Self {
            method,
            url,
            what: what.into(),
            accept: None,
            content_type: None,
            from_byte: None,
            body: Bytes::new(),
            sent: Arc::default(),
        }
    }
}

/// The response to a request. Its body is not read yet.
pub(super) struct Answer {
    /// The status.
    pub(super) status: StatusCode,
    /// The headers.
    pub(super) headers: HeaderMap,
    /// The address that responded, after redirects.
    pub(super) url: Url,
    /// The description of the request.
    pub(super) what: String,
    body: Incoming,
}

/// A body that counts the bytes that the connection has taken.
struct CountedBody {
    rest: Bytes,
    sent: Arc<AtomicU64>,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.rest.len().min(CHUNK_BYTES);
        let part = self.rest.split_to(length);
        self.sent.fetch_add(part.len() as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// The error body of a registry, from the OCI distribution specification.
#[derive(Deserialize)]
struct ErrorEnvelope {
    errors: Vec<ErrorEntry>,
}

#[derive(Deserialize)]
struct ErrorEntry {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

/// One way to authorise a request, from the header `WWW-Authenticate`.
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String> },
}

/// The maximum length of an address in a message, in characters.
const MAX_SHOWN_CHARS: usize = 200;

/// An address for a message, without its query, which may be a credential, and without a login.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    // These fail only for an address that cannot have a login.
    let _no_login = (url.set_username(""), url.set_password(None));
    escape_invisible(url.as_str(), MAX_SHOWN_CHARS)
}

impl RegistryClient {
    /// Makes a client, and finds out whether a registry on this machine uses TLS.
    ///
    /// # Ambient Authority
    /// Reads the machine's certificates and `ca_file`, and opens connections.
    pub(super) async fn new(
        repository: Repository,
        purpose: Purpose,
        ca_file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        Self::with_idle_timeout(repository, purpose, ca_file, IDLE_TIMEOUT).await
    }

    /// As [`Self::new`], with another time without progress.
    async fn with_idle_timeout(
        repository: Repository,
        purpose: Purpose,
        ca_file: Option<&Path>,
        idle_timeout: Duration,
    ) -> anyhow::Result<Self> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(client_config(ca_file)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let http = Client::builder(TokioExecutor::new()).http1_max_buf_size(MAX_HEAD_BYTES).build(connector);
        let base = |scheme: &str| {
            let url = Url::parse(&format!("{scheme}://{}/", repository.authority()));
            url.context("the address of the registry is not a valid URL")
        };
        let tls = base("https")?;
        let plain = base("http")?;
        let is_local = repository.is_local();
        let logins = login::docker_config();
        let mut client = Self {
            http,
            repository,
            purpose,
            base: tls,
            logins,
            login: None,
            authorization: None,
            idle_timeout,
        };
        if is_local {
            let tls = std::mem::replace(&mut client.base, plain);
            if !client.speaks_plain_http().await? {
                client.base = tls;
            }
        }
        Ok(client)
    }

    /// Probes a registry on this machine with plain HTTP and without a login. A server with TLS does not respond to
    /// such a request, or responds with status 400.
    async fn speaks_plain_http(&self) -> Result<bool, RegistryError> {
        let outgoing = Outgoing::new(Method::GET, self.registry_url("v2/"), "its version");
        match self.exchange(&outgoing, &outgoing.url, None).await {
            Ok(response) => Ok(response.status() != StatusCode::BAD_REQUEST),
            Err(RegistryError::Interrupted { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    fn registry_url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(path);
        url
    }

    /// The address of a resource in the repository, such as `manifests/1.0.0`.
    pub(super) fn url(&self, path: &str) -> Url {
        self.registry_url(&format!("v2/{}/{path}", self.repository.name()))
    }

    /// The repository.
    pub(super) fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The host and the port of the registry.
    pub(super) fn host(&self) -> String {
        self.repository.authority()
    }

    /// Sends a request, follows the redirects of a read, and authorises it if the registry asks for that. The response
    /// may have any status.
    pub(super) async fn send(&mut self, outgoing: &Outgoing) -> Result<Answer, RegistryError> {
        let answer = self.follow(outgoing).await?;
        if answer.status != StatusCode::UNAUTHORIZED || answer.url.origin() != self.base.origin() {
            return Ok(answer);
        }
        if !self.authorise(&answer).await? {
            return Ok(answer);
        }
        self.follow(outgoing).await
    }

    /// Like [`Self::send`], but fails unless the response has one of these statuses.
    pub(super) async fn expect(
        &mut self,
        outgoing: &Outgoing,
        statuses: &[StatusCode],
    ) -> Result<Answer, RegistryError> {
        let answer = self.send(outgoing).await?;
        if statuses.contains(&answer.status) { Ok(answer) } else { Err(self.refusal(answer).await) }
    }

    /// Sends a request with a body, shows the progress, and fails unless the response has this status.
    pub(super) async fn expect_with_progress(
        &mut self,
        outgoing: &Outgoing,
        status: StatusCode,
    ) -> Result<Answer, RegistryError> {
        let bytes = outgoing.body.len() as u64;
        let mut progress = Progress::start("upload", bytes);
        let statuses = [status];
        let mut answered = pin!(self.expect(outgoing, &statuses));
        loop {
            match tokio::time::timeout(POLL_INTERVAL, &mut answered).await {
                Ok(answer) => {
                    progress.end(bytes);
                    return answer;
                }
                Err(_elapsed) => progress.show(outgoing.sent.load(Ordering::Relaxed)),
            }
        }
    }

    async fn follow(&self, outgoing: &Outgoing) -> Result<Answer, RegistryError> {
        let mut url = outgoing.url.clone();
        for _hop in 0..=MAX_REDIRECTS {
            let is_own = url.origin() == self.base.origin();
            let authorization = self.authorization.as_ref().filter(|_| is_own);
            let (head, body) = self.exchange(outgoing, &url, authorization).await?.into_parts();
            let answer =
                Answer { status: head.status, headers: head.headers, url, what: outgoing.what.clone(), body };
            let is_redirect = matches!(answer.status.as_u16(), 301 | 302 | 303 | 307 | 308);
            if !is_redirect {
                return Ok(answer);
            }
            let next = answer.location()?;
            if ![Method::GET, Method::HEAD].contains(&outgoing.method) {
                let reason = "only reads are redirected: push to that address, if you trust it";
                let from = shown(&answer.url);
                let to = shown(&next);
                return Err(RegistryError::Redirect { from, names: REDIRECTS, to, reason });
            }
            self.check_target(&answer.url, REDIRECTS, &next)?;
            url = next;
        }
        let from = shown(&outgoing.url);
        let to = shown(&url);
        let reason = "there are too many redirects";
        Err(RegistryError::Redirect { from, names: REDIRECTS, to, reason })
    }

    /// Refuses an address from a response, unless a registry may lead there. `names` is the verb of the refusal.
    pub(super) fn check_target(
        &self,
        from: &Url,
        names: &'static str,
        to: &Url,
    ) -> Result<(), RegistryError> {
        let is_local = to.host_str().is_some_and(is_local_host);
        let reason = match to.scheme() {
            "https" => None,
            "http" if from.scheme() == "http" && is_local => None,
            "http" => Some("plain HTTP is only for registries on this machine"),
            _ => Some("its scheme is neither HTTP nor HTTPS"),
        };
        let has_login = !to.username().is_empty() || to.password().is_some();
        match reason.or(has_login.then_some("it contains a login")) {
            None => Ok(()),
            Some(reason) => Err(RegistryError::Redirect { from: shown(from), names, to: shown(to), reason }),
        }
    }

    /// Sends one request to one address.
    async fn exchange(
        &self,
        outgoing: &Outgoing,
        url: &Url,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, RegistryError> {
        let Outgoing { method, url: _, what, accept, content_type, from_byte, body, sent } = outgoing;
        let mut request = Request::builder()
            .method(method)
            .uri(url.as_str())
            .header(USER_AGENT, concat!("a2g-executor/", env!("CARGO_PKG_VERSION")));
        let texts = [(ACCEPT, *accept), (CONTENT_TYPE, *content_type)];
        for (name, text) in texts.into_iter().filter_map(|(name, text)| Some((name, text?))) {
            request = request.header(name, text);
        }
        if let Some(first) = from_byte {
            request = request.header(RANGE, format!("bytes={first}-"));
        }
        // Registries require it even for an empty body.
        if ![Method::GET, Method::HEAD].contains(method) {
            request = request.header(CONTENT_LENGTH, body.len());
        }
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        sent.store(0, Ordering::Relaxed);
        let counted = CountedBody { rest: body.clone(), sent: Arc::clone(sent) };
        let invalid = |reason: String| RegistryError::Invalid { url: shown(url), reason };
        let request = request.body(counted).map_err(|error| invalid(error.to_string()))?;
        let host = host_of(url);
        let answering = while_it_moves(sent, &host, what, self.idle_timeout, self.http.request(request));
        let answered = within(&host, what, body.len() as u64, answering).await?;
        answered.map_err(|error| {
            let reason = ErrorChain(&error).to_string();
            if error.is_connect() {
                RegistryError::Unreachable { host, reason }
            } else {
                RegistryError::Interrupted { host, what: what.clone(), reason }
            }
        })
    }

    /// Obtains the authorisation to repeat a refused request; `false` if there is no way to.
    async fn authorise(&mut self, refused: &Answer) -> Result<bool, RegistryError> {
        let challenges = challenges(&refused.headers);
        let bearer = challenges.iter().find_map(|challenge| match challenge {
            Challenge::Bearer { realm, service } => Some((realm, service)),
            Challenge::Basic => None,
        });
        if self.login.is_none() {
            self.login = match &self.logins {
                Some(path) => login::find(path, &self.repository.authority()).await?,
                None => None,
            };
        }
        let basic = match &self.login {
            Some(login) => Some(login.to_basic().ok_or_else(|| LoginError::File {
                path: self.logins.clone().unwrap_or_default(),
                reason: "the user or the password has characters that HTTP does not accept".to_owned(),
            })?),
            None => None,
        };
        self.authorization = match (bearer, basic) {
            (Some((realm, service)), basic) => {
                Some(self.fetch_token(&refused.url, realm, service.as_deref(), basic).await?)
            }
            (None, Some(basic)) if challenges.iter().any(|one| matches!(one, Challenge::Basic)) => {
                Some(basic)
            }
            (None, _) => return Ok(false),
        };
        Ok(true)
    }

    /// Requests a token from the token server that the registry names.
    async fn fetch_token(
        &self,
        registry: &Url,
        realm: &str,
        service: Option<&str>,
        basic: Option<HeaderValue>,
    ) -> Result<HeaderValue, RegistryError> {
        let invalid =
            |reason: &str| RegistryError::Invalid { url: shown(registry), reason: reason.to_owned() };
        let mut url =
            Url::parse(realm).map_err(|_| invalid("its token server (`realm`) is not a valid URL"))?;
        self.check_target(registry, "names the token server", &url)?;
        let actions = match self.purpose {
            Purpose::Pull => "pull",
            Purpose::Push => "pull,push",
        };
        let scope = format!("repository:{}:{actions}", self.repository.name());
        url.query_pairs_mut()
            .extend_pairs(service.map(|service| ("service", service)))
            .append_pair("scope", &scope);
        let outgoing = Outgoing::new(Method::GET, url.clone(), "an access token");
        // Redirects are not followed, because the request has the login.
        let (head, body) = self.exchange(&outgoing, &url, basic.as_ref()).await?.into_parts();
        let answer = Answer { status: head.status, headers: head.headers, url, what: outgoing.what, body };
        if answer.status != StatusCode::OK {
            return Err(self.refusal(answer).await);
        }
        let answered = shown(&answer.url);
        let body = answer.read(MAX_MESSAGE_BYTES).await?;
        let invalid =
            |reason: &str| RegistryError::Invalid { url: answered.clone(), reason: reason.to_owned() };
        let TokenAnswer { token, access_token } =
            serde_json::from_slice(&body).map_err(|_| invalid("it is not a token in JSON"))?;
        let token = token.or(access_token).ok_or_else(|| invalid("it has no token"))?;
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| invalid("its token has characters that HTTP does not accept"))?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// The error for a response with an unexpected status.
    pub(super) async fn refusal(&self, answer: Answer) -> RegistryError {
        let Answer { status, url, what, .. } = &answer;
        let status = *status;
        let host = host_of(url);
        let what = what.clone();
        let message = match answer.message().await {
            Ok(message) => message,
            // The status counts even if the text cannot be read.
            Err(error @ RegistryError::WebPage { .. }) if status != StatusCode::NOT_FOUND => return error,
            Err(error) => error.to_string(),
        };
        let file = match &self.logins {
            Some(path) => format!("`{}`", path.display()),
            None => "Docker's configuration".to_owned(),
        };
        match (status, &self.login) {
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, login) => {
                let host = host.into();
                let name = self.repository.name().into();
                let file = file.into();
                let message = message.into();
                let may = match self.purpose {
                    Purpose::Pull => "read",
                    Purpose::Push => "write",
                };
                match login {
                    None => RegistryError::LoginMissing { host, name, file, message },
                    Some(Login { user, .. }) => RegistryError::LoginRefused {
                        host,
                        name,
                        user: excerpt(user).into(),
                        file,
                        may,
                        message,
                    },
                }
            }
            (StatusCode::NOT_FOUND, _) => RegistryError::NotFound { host, what, message },
            (status, _) => RegistryError::Refused { host, what, status, message },
        }
    }
}

impl Answer {
    /// The address in the header `Location`.
    pub(super) fn location(&self) -> Result<Url, RegistryError> {
        let invalid =
            |reason: &str| RegistryError::Invalid { url: shown(&self.url), reason: reason.to_owned() };
        let given = self.headers.get(LOCATION).ok_or_else(|| invalid("it names no location"))?;
        let location = given.to_str().ok().and_then(|text| self.url.join(text).ok());
        location.ok_or_else(|| invalid("its location is not an address"))
    }

    /// The size in the header `Content-Length`.
    pub(super) fn announced_bytes(&self) -> Option<u64> {
        self.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }

    /// Returns `true` if the response says that it is HTML.
    pub(super) fn is_web_page(&self) -> bool {
        let media_type =
            self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        media_type.trim_start().to_ascii_lowercase().starts_with("text/html")
    }

    /// Reads the whole body, up to `max_bytes`.
    pub(super) async fn read(self, max_bytes: u64) -> Result<Vec<u8>, RegistryError> {
        if self.is_web_page() {
            return Err(RegistryError::WebPage { url: shown(&self.url) });
        }
        let host = host_of(&self.url);
        let what = self.what.clone();
        let too_large = || RegistryError::TooLarge { host: host.clone(), what: what.clone(), max_bytes };
        if self.announced_bytes().is_some_and(|bytes| bytes > max_bytes) {
            return Err(too_large());
        }
        let mut body = Vec::new();
        let read = self.for_each_part(max_bytes, |part| {
            if body.len() as u64 + part.len() as u64 > max_bytes {
                return Err(too_large());
            }
            body.extend_from_slice(part);
            Ok(())
        });
        read.await?;
        Ok(body)
    }

    /// Calls `consume` with each chunk of the body as it arrives. The time limit is that of `max_bytes`, the size that
    /// `consume` accepts.
    pub(super) async fn for_each_part(
        mut self,
        max_bytes: u64,
        mut consume: impl FnMut(&[u8]) -> Result<(), RegistryError>,
    ) -> Result<(), RegistryError> {
        let host = host_of(&self.url);
        let what = self.what.clone();
        let silent = || RegistryError::Silent {
            host: host.clone(),
            what: what.clone(),
            seconds: IDLE_TIMEOUT.as_secs(),
        };
        let read = async {
            loop {
                let frame = tokio::time::timeout(IDLE_TIMEOUT, self.body.frame()).await;
                let Some(frame) = frame.map_err(|_| silent())? else { return Ok(()) };
                let frame = frame.map_err(|error| RegistryError::Interrupted {
                    host: host.clone(),
                    what: what.clone(),
                    reason: ErrorChain(&error).to_string(),
                })?;
                // Trailers are not needed.
                if let Ok(part) = frame.into_data() {
                    consume(&part)?;
                }
            }
        };
        within(&host, &what, max_bytes, read).await
    }

    /// The text of an error response.
    async fn message(self) -> Result<String, RegistryError> {
        let body = self.read(MAX_MESSAGE_BYTES).await?;
        if let Ok(ErrorEnvelope { errors }) = serde_json::from_slice(&body) {
            let texts = errors.into_iter().take(3).map(|ErrorEntry { code, message }| {
                if message.is_empty() { excerpt(&code) } else { excerpt(&message) }
            });
            return Ok(texts.collect::<Vec<_>>().join("; "));
        }
        let lossy = String::from_utf8_lossy(&body);
        let text = lossy.trim();
        Ok(if text.is_empty() { "without a reason".to_owned() } else { excerpt(text) })
    }
}

/// The host of an address, with its port.
fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// The ways to authorise a request that a response offers. A header that cannot be parsed offers none.
fn challenges(headers: &HeaderMap) -> Vec<Challenge> {
    let mut found = Vec::new();
    for value in headers.get_all(WWW_AUTHENTICATE) {
        let parsed = value.to_str().ok().and_then(|text| http_auth::parse_challenges(text).ok());
        for challenge in parsed.into_iter().flatten() {
            let parameter = |name: &str| {
                let (_, value) = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?;
                Some(value.to_unescaped())
            };
            if challenge.scheme.eq_ignore_ascii_case("basic") {
                found.push(Challenge::Basic);
            } else if challenge.scheme.eq_ignore_ascii_case("bearer")
                && let Some(realm) = parameter("realm")
            {
                found.push(Challenge::Bearer { realm, service: parameter("service") });
            }
        }
    }
    found
}

/// The time limit of a transfer of this size.
fn time_limit(bytes: u64) -> Duration {
    BASE_TIMEOUT.saturating_add(Duration::from_secs(bytes / MIN_RATE))
}

/// Fails if a transfer exceeds the time limit for `bytes`.
async fn within<T>(
    host: &str,
    what: &str,
    bytes: u64,
    transfer: impl Future<Output = Result<T, RegistryError>>,
) -> Result<T, RegistryError> {
    until(time_limit(bytes), host, what, transfer).await
}

async fn until<T>(
    limit: Duration,
    host: &str,
    what: &str,
    transfer: impl Future<Output = Result<T, RegistryError>>,
) -> Result<T, RegistryError> {
    let too_slow =
        || RegistryError::TooSlow { host: host.to_owned(), what: what.to_owned(), seconds: limit.as_secs() };
    tokio::time::timeout(limit, transfer).await.map_err(|_| too_slow())?
}

/// Waits for a response while the body of the request makes progress, and then for `idle_timeout`.
async fn while_it_moves<T>(
    sent: &AtomicU64,
    host: &str,
    what: &str,
    idle_timeout: Duration,
    answered: impl Future<Output = T>,
) -> Result<T, RegistryError> {
    let mut answered = pin!(answered);
    let mut before = sent.load(Ordering::Relaxed);
    loop {
        if let Ok(answer) = tokio::time::timeout(idle_timeout, &mut answered).await {
            return Ok(answer);
        }
        let now = sent.load(Ordering::Relaxed);
        if now == before {
            let seconds = idle_timeout.as_secs();
            return Err(RegistryError::Silent { host: host.to_owned(), what: what.to_owned(), seconds });
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_core::catalog::Reference;

    const SHORT: Duration = Duration::from_millis(200);

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn a_transfer_ends_at_the_limit_of_its_size() {
        assert_eq!([0, 32 << 10, 17 << 20].map(time_limit).map(|limit| limit.as_secs()), [60, 61, 604]);
        assert!(block_on(until(SHORT, "h", "a part", async { Ok(()) })).is_ok());
        let error =
            block_on(until(SHORT, "h", "a part", std::future::pending::<Result<(), _>>())).unwrap_err();
        assert!(matches!(error, RegistryError::TooSlow { .. }), "{error}");
    }

    #[test]
    fn an_upload_is_given_up_when_it_no_longer_moves() {
        let sent = AtomicU64::new(0);
        let moving = async {
            for _ in 0..10 {
                tokio::time::sleep(SHORT / 4).await;
                sent.fetch_add(1, Ordering::Relaxed);
            }
        };
        assert!(block_on(while_it_moves(&sent, "h", "x", SHORT, moving)).is_ok());
        let error =
            block_on(while_it_moves(&sent, "h", "x", SHORT, std::future::pending::<()>())).unwrap_err();
        assert!(matches!(error, RegistryError::Silent { .. }), "{error}");
    }

    #[test]
    fn a_registry_that_says_nothing_is_given_up() {
        // The kernel accepts the connection, and nobody reads it.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("oci://{}/greet:1", silent.local_addr().unwrap());
        let repository = Reference::parse(&address).unwrap().repository;
        let client =
            RegistryClient::with_idle_timeout(repository, Purpose::Pull, None, Duration::from_secs(1));
        let error = block_on(client).err().unwrap().to_string();
        assert!(error.contains("has sent nothing for 1 s (its version)"), "{error}");
    }

    #[test]
    fn challenges_are_read_and_nonsense_is_none() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(WWW_AUTHENTICATE, value.parse().unwrap());
            }
            challenges(&headers).iter().map(|one| matches!(one, Challenge::Bearer { .. })).collect::<Vec<_>>()
        };
        assert_eq!(of(&["Basic realm=\"x\"", "Bearer realm=\"https://t\",service=\"s\""]), [false, true]);
        assert!(of(&["Bearer", "Digest realm=\"x\"", "\"", "Bearer service=\"s\""]).is_empty());
    }
}
