//! Secrets in the requests of a run: values that the executor sets on the way out, and that no guest sees.
//!
//! ```text
//! request ─ plan ─▶ the bindings that it fits ─ load ─▶ their values ─ TLS handshake ─ set ─▶ the request as it is sent
//! answer  ◀─ values replaced (redaction.rs) ◀─ cookies kept ◀──────────────────────────────────── the answer of the server
//! ```
//! A request gets a secret exactly if it is one of the binding's requests, whatever the guest has put at the place of
//! the value. A value is set only when the server at the other end has proved its name, and only in the request that is
//! sent then: a request that waits for a commit has none.

use super::document::{has_place, set_member};
use super::held::HeldSecret;
use super::redaction::{SentSecrets, remove_digests};
use super::refusal::{EgressError, NetworkError};
use super::{Body, Egress};
use a2g_capability::{GrantedSecret, Rendering, RequestTarget, SecretPlace};
use a2g_redact::{FormsError, Matcher};
use a2g_types::ident::{AgentDid, SecretName};
use a2g_types::limit::Layer;
use a2g_types::memory::{self, CountedBytes, SMALL_MESSAGE_BYTES};
use a2g_types::outcome::{DenialReason, SecretUse, Usage};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use zeroize::Zeroizing;

/// Minimum length of a value, in bytes: a shorter one could be guessed, and occurs by chance.
const MIN_VALUE_BYTES: usize = 8;
/// The length below which a value is easier to guess than a usual key, in bytes.
const SHORT_VALUE_BYTES: usize = 16;
/// Maximum length of a value, in bytes.
const MAX_VALUE_BYTES: usize = 8 << 10;
/// Maximum size of a body in which a value is set, in bytes.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Maximum number of cookies that are kept for one secret.
const MAX_COOKIES: usize = 50;
/// Maximum length of a kept cookie, name and value, in bytes.
const MAX_COOKIE_BYTES: usize = 4 << 10;

/// The value of a secret. It is never printed, cloned or serialized.
pub struct SecretValue {
    text: Zeroizing<String>,
    version: String,
    /// The forms of this value alone, with the name and the rendering that they were made for.
    matcher: OnceLock<(SecretName, Rendering, Result<Arc<Matcher>, FormsError>)>,
}

/// The reason why a text cannot be the value of a secret. It repeats nothing of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretValueError {
    /// It is too short or too long.
    #[error("its value has {0} bytes, and has to have 8 to 8192")]
    Length(usize),
    /// It has control characters, such as line ends.
    #[error("its value has control characters, such as a line end in the middle")]
    Control,
}

impl SecretValue {
    /// A value, with a version that differs for each value and says nothing of it.
    ///
    /// # Errors
    /// [`SecretValueError`] if no request could carry the value.
    pub fn new(text: Zeroizing<String>, version: String) -> Result<Self, SecretValueError> {
        if !(MIN_VALUE_BYTES..=MAX_VALUE_BYTES).contains(&text.len()) {
            return Err(SecretValueError::Length(text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err(SecretValueError::Control);
        }
        Ok(Self { text, version, matcher: OnceLock::new() })
    }

    /// The version of the value, which reports name.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// `true` for a value that is easier to guess than a usual key.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.text.len() < SHORT_VALUE_BYTES
    }

    /// `true` for a value with the same text.
    pub(super) fn has_same_text(&self, other: &Self) -> bool {
        self.text == other.text
    }

    /// What an answer could give back: the value, and of `user:password` also what is sent for it, and the password.
    fn texts(&self, rendering: &Rendering) -> Vec<Zeroizing<String>> {
        let mut texts = vec![self.text.clone()];
        match rendering {
            Rendering::Plain | Rendering::Scheme(_) => {}
            Rendering::Basic => {
                texts.push(Zeroizing::new(STANDARD.encode(self.text.as_bytes())));
                let password = self.text.split_once(':').map(|(_user, password)| password.to_owned());
                texts.extend(password.map(Zeroizing::new));
            }
        }
        texts
    }

    /// The forms of values, each of the secret with this name that is rendered so.
    ///
    /// # Errors
    /// [`FormsError`] if they are too long.
    pub(super) fn match_all<'a>(
        values: impl IntoIterator<Item = (&'a SecretName, &'a Rendering, &'a Self)>,
    ) -> Result<Arc<Matcher>, FormsError> {
        let values = values.into_iter().collect::<Vec<_>>();
        // Most runs have one, of which the forms were made for an earlier run.
        if let [(name, rendering, value)] = values.as_slice() {
            let made = value.matcher.get_or_init(|| {
                let matcher = Matcher::new([(name.as_str(), value.texts(rendering))]).map(Arc::new);
                ((*name).clone(), (*rendering).clone(), matcher)
            });
            if (&made.0, &made.1) == (*name, *rendering) {
                return made.2.clone();
            }
        }
        let texts = values.iter().map(|(name, rendering, value)| (name.as_str(), value.texts(rendering)));
        Matcher::new(texts).map(Arc::new)
    }

    /// The text that is set at the place.
    fn render(&self, rendering: &Rendering) -> Zeroizing<String> {
        match rendering {
            Rendering::Plain => self.text.clone(),
            Rendering::Scheme(scheme) => Zeroizing::new(format!("{scheme} {}", *self.text)),
            Rendering::Basic => {
                let encoded = Zeroizing::new(STANDARD.encode(self.text.as_bytes()));
                Zeroizing::new(format!("Basic {}", *encoded))
            }
        }
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretValue").field("version", &self.version).finish_non_exhaustive()
    }
}

/// The value of a secret cannot be read. The message names the source and repeats nothing of its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SecretUnavailable(pub String);

/// The future value of a secret.
pub type SecretFuture = Pin<Box<dyn Future<Output = Result<Arc<SecretValue>, SecretUnavailable>> + Send>>;

/// The future value of a secret that may not be known.
pub type KnownSecretFuture = Pin<Box<dyn Future<Output = Option<Arc<SecretValue>>> + Send>>;

/// The values of the executor's secrets.
pub trait SecretStore: Send + Sync {
    /// The present value of a secret. Ends after a limited time.
    fn value(self: Arc<Self>, name: SecretName) -> SecretFuture;

    /// The present value of a secret, if finding it runs no command and asks no other server; `None` also if it cannot be
    /// read. Ends after a limited time.
    fn known_value(self: Arc<Self>, name: SecretName) -> KnownSecretFuture;

    /// Reads a secret again before it is used next, because a server refused its value.
    fn forget(&self, name: &SecretName);

    /// Reads every secret again before it is used next.
    fn forget_all(&self);
}

impl Egress {
    /// The same network access, with the values that requests get.
    #[must_use]
    pub fn with_secrets(self, secrets: Arc<dyn SecretStore>) -> Self {
        Self { secrets: Some(secrets), ..self }
    }

    /// Reads every secret again before it is used next.
    pub fn forget_secrets(&self) {
        if let Some(store) = &self.secrets {
            store.forget_all();
        }
    }

    /// The present value of a secret.
    ///
    /// # Errors
    /// [`SecretUnavailable`] if it cannot be read.
    pub async fn read_secret(&self, name: &SecretName) -> Result<Arc<SecretValue>, SecretUnavailable> {
        match &self.secrets {
            Some(store) => Arc::clone(store).value(name.clone()).await,
            None => Err(SecretUnavailable(format!("this executor has no `[[secret]]` `{name}`"))),
        }
    }
}

/// The reason why a request that needs a secret is not sent, or its answer not passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SecretRefusal {
    pub(super) name: SecretName,
    pub(super) reason: DenialReason,
    /// The layer that withholds the secret.
    pub(super) set_by: Option<Layer>,
}

/// The secrets of one run.
#[derive(Debug, Default)]
pub(super) struct RunSecrets {
    all: Vec<RunSecret>,
    /// The values that are replaced in what comes back: those that were sent, and those that the servers of the run may
    /// have from other runs.
    sent: SentSecrets,
}

#[derive(Debug)]
struct RunSecret {
    granted: GrantedSecret,
    state: Mutex<SecretState>,
}

#[derive(Debug)]
struct SecretState {
    used: SecretUse,
    cookies: Vec<Cookie>,
}

/// A cookie that the guest did not get, with the authority that set it. `Debug` prints none of it.
struct Cookie {
    authority: String,
    name: String,
    value: Zeroizing<String>,
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cookie").finish_non_exhaustive()
    }
}

impl RunSecrets {
    /// The secrets that a run is granted. `sent` has the values that earlier turns of its session have sent.
    pub(super) fn new(granted: &[GrantedSecret], sent: SentSecrets) -> Self {
        let secret = |granted: &GrantedSecret| {
            let name = granted.binding.name().clone();
            let used = SecretUse {
                name,
                versions: Vec::new(),
                uses: 0,
                without: 0,
                kept_cookies: 0,
                redacted: 0,
                placeholders: 0,
            };
            let state = Mutex::new(SecretState { used, cookies: Vec::new() });
            RunSecret { granted: granted.clone(), state }
        };
        Self { all: granted.iter().map(secret).collect(), sent }
    }

    /// `true` if a server could give a value back to the run: it has a secret, also one that is withheld and that the
    /// server has from another run, or an earlier turn of the session has sent one.
    pub(super) fn may_come_back(&self) -> bool {
        !self.all.is_empty() || self.matcher().is_some()
    }

    /// The secrets that the host of a request may have, also from other runs.
    pub(super) fn bound_to(&self, target: &RequestTarget<'_>) -> BoundSecrets<'_> {
        BoundSecrets(self.all.iter().filter(|secret| secret.granted.binding.is_at(target)).collect())
    }

    /// The values that the run has sent.
    pub(super) fn sent(&self) -> &SentSecrets {
        &self.sent
    }

    /// The forms of these values; `None` if none was sent.
    pub(super) fn matcher(&self) -> Option<Arc<Matcher>> {
        self.sent.matcher()
    }

    /// The use of each secret so far.
    pub(super) fn usage(&self) -> Vec<SecretUse> {
        self.all.iter().map(|secret| secret.state.lock().used.clone()).collect()
    }

    /// Counts one more replacement of the value of a secret.
    pub(super) fn count_redacted(&self, name: &str) {
        // One that only an earlier turn of the session could use is not among them.
        for secret in self.all.iter().filter(|secret| secret.granted.binding.name().as_str() == name) {
            let redacted = &mut secret.state.lock().used.redacted;
            *redacted = redacted.saturating_add(1);
        }
    }

    /// Counts the placeholders in the URL and the fields of a request, as it is sent. They mean nothing.
    pub(super) fn count_placeholders(&self, request: &Request<Body>) {
        for secret in &self.all {
            let Some(placeholder) = secret.granted.binding.placeholder() else { continue };
            let mut fields = request.headers().values();
            let path = request.uri().path_and_query().map_or("", PathAndQuery::as_str);
            if placeholder.is_in(path.as_bytes()) || fields.any(|field| placeholder.is_in(field.as_bytes())) {
                let count = &mut secret.state.lock().used.placeholders;
                *count = count.saturating_add(1);
            }
        }
    }

    /// The secrets that a request gets, each of which is counted as used.
    pub(super) fn plan(&self, target: &RequestTarget<'_>) -> Result<SecretPlan<'_>, SecretRefusal> {
        let mut planned = Vec::new();
        for secret in self.all.iter().filter(|secret| secret.granted.binding.is_at(target)) {
            let GrantedSecret { binding, withheld_by } = &secret.granted;
            if !target.is_https {
                return Err(secret.refuse(DenialReason::SecretPlace));
            }
            if !binding.fits(target) {
                let without = &mut secret.state.lock().used.without;
                *without = without.saturating_add(1);
                continue;
            }
            if withheld_by.is_some() {
                return Err(secret.refuse(DenialReason::SecretWithheld));
            }
            planned.push(secret);
        }
        for secret in &planned {
            let uses = &mut secret.state.lock().used.uses;
            if *uses >= secret.granted.binding.max_uses() {
                return Err(secret.refuse(DenialReason::SecretUses));
            }
            *uses += 1;
        }
        Ok(SecretPlan(planned))
    }
}

impl RunSecret {
    fn refuse(&self, reason: DenialReason) -> SecretRefusal {
        let GrantedSecret { binding, withheld_by } = &self.granted;
        SecretRefusal { name: binding.name().clone(), reason, set_by: *withheld_by }
    }

    fn place(&self) -> &SecretPlace {
        self.granted.binding.place()
    }

    fn is_in_body(&self) -> bool {
        match self.place() {
            SecretPlace::Body(_) => true,
            SecretPlace::Header(_) | SecretPlace::Query(_) => false,
        }
    }
}

/// The secrets that one host may have. Only [`RunSecrets::bound_to`] makes one.
pub(super) struct BoundSecrets<'a>(Vec<&'a RunSecret>);

impl BoundSecrets<'_> {
    /// Adds the values that the server knows to those that are replaced in what comes back. Call this before an answer of
    /// the host is passed on.
    ///
    /// # Errors
    /// [`SecretRefusal`] if a value could not be found together with the others.
    pub(super) async fn search_too(self, egress: &Egress, sent: &SentSecrets) -> Result<(), SecretRefusal> {
        let Some(store) = &egress.secrets else { return Ok(()) };
        for secret in self.0 {
            let binding = &secret.granted.binding;
            let Some(value) = Arc::clone(store).known_value(binding.name().clone()).await else { continue };
            sent.add(binding, &value).map_err(|error| {
                tracing::warn!(secret = %binding.name(), %error, "an answer cannot be searched for a secret");
                secret.refuse(DenialReason::SecretUnavailable)
            })?;
        }
        Ok(())
    }
}

/// The secrets that one request gets. Only [`RunSecrets::plan`] makes one.
pub(super) struct SecretPlan<'a>(Vec<&'a RunSecret>);

impl<'a> SecretPlan<'a> {
    /// The secrets of a request that waits: it is sent with the values that they have then.
    pub(super) fn to_held(&self) -> Vec<HeldSecret> {
        let held = |secret: &&RunSecret| HeldSecret {
            name: secret.granted.binding.name().clone(),
            place: secret.place().to_string(),
        };
        self.0.iter().map(held).collect()
    }

    /// `true` if the request gets no secret.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the values, and the body of the request if one of them is set there, on account of `agent`. Adds the values
    /// to those that are replaced in what comes back, before any of them is sent.
    pub(super) async fn load(
        self,
        egress: &Egress,
        agent: &AgentDid,
        sent: &SentSecrets,
        request: Request<Body>,
    ) -> Result<(LoadedSecrets<'a>, Request<Body>), LoadError> {
        let mut loaded = Vec::new();
        for secret in &self.0 {
            let name = secret.granted.binding.name();
            let read = egress.read_secret(name).await.map_err(|error| error.to_string());
            let noted = read.and_then(|value| match sent.add(&secret.granted.binding, &value) {
                Ok(()) => Ok(value),
                Err(error) => Err(error.to_string()),
            });
            match noted {
                Ok(value) => loaded.push((*secret, value)),
                Err(error) => {
                    tracing::warn!(secret = %name, error, "a request needs a secret that cannot be used");
                    return Err(LoadError::Refused(secret.refuse(DenialReason::SecretUnavailable)));
                }
            }
        }
        let (document, request) = read_document(&self.0, agent, request).await?;
        Ok((LoadedSecrets { secrets: loaded, document }, request))
    }

    /// `true` if a value is set in the body of the request.
    pub(super) fn is_in_body(&self) -> bool {
        self.0.iter().any(|secret| secret.is_in_body())
    }

    /// Checks that a request that waits has each place in which a value is set when it is sent. Reads its whole body
    /// if one of them is there, on account of `agent`.
    pub(super) async fn check_places(
        &self,
        agent: &AgentDid,
        request: Request<Body>,
    ) -> Result<Request<Body>, LoadError> {
        let (document, request) = read_document(&self.0, agent, request).await?;
        Ok(match document {
            Some(document) => request.map(|_read| document.into_body()),
            None => request,
        })
    }
}

/// Takes the body out of a request, if one of its secrets is set there. Each place has to exist before anything is
/// connected to or kept.
async fn read_document(
    secrets: &[&RunSecret],
    agent: &AgentDid,
    request: Request<Body>,
) -> Result<(Option<Document>, Request<Body>), LoadError> {
    let Some(first) = secrets.iter().find(|secret| secret.is_in_body()) else { return Ok((None, request)) };
    let refusal = first.refuse(DenialReason::SecretPlace);
    let (parts, body) = request.into_parts();
    let read = if is_plain_json(&parts.headers) { Document::read(body, agent).await? } else { None };
    let Some(document) = read else { return Err(LoadError::Refused(refusal)) };
    let has_places = secrets.iter().all(|secret| match secret.place() {
        SecretPlace::Body(path) => has_place(&document.text, path),
        SecretPlace::Header(_) | SecretPlace::Query(_) => true,
    });
    if !has_places {
        return Err(LoadError::Refused(refusal));
    }
    Ok((Some(document), Request::from_parts(parts, full_body(""))))
}

fn full_body(content: impl Into<Bytes>) -> Body {
    Full::new(content.into()).map_err(|never| match never {}).boxed_unsync()
}

/// The reason why the secrets of a request were not loaded.
pub(super) enum LoadError {
    Refused(SecretRefusal),
    Failed(EgressError),
}

impl From<EgressError> for LoadError {
    fn from(error: EgressError) -> Self {
        Self::Failed(error)
    }
}

/// The secrets that one request gets, with their values.
pub(super) struct LoadedSecrets<'a> {
    secrets: Vec<(&'a RunSecret, Arc<SecretValue>)>,
    /// The body of the request, if a value is set in it.
    document: Option<Document>,
}

impl LoadedSecrets<'_> {
    /// Sets the values in a request to `authority`. Only for a connection to a server that has proved its name.
    pub(super) fn set(&mut self, authority: &str, request: &mut Request<Body>) -> Result<(), EgressError> {
        // With a session of the guest's choice, which the secret would then be in, the guest could go on without the secret.
        if self.secrets.iter().any(|(secret, _)| secret.granted.binding.keeps_cookies()) {
            remove_field(request.headers_mut(), header::COOKIE.as_str());
        }
        for (secret, value) in &self.secrets {
            let text = value.render(secret.granted.binding.rendering());
            match secret.place() {
                SecretPlace::Header(name) => set_field(request.headers_mut(), name, &text)?,
                SecretPlace::Query(name) => set_parameter(request, name, &text)?,
                SecretPlace::Body(path) => {
                    let document = self.document.as_mut().ok_or(NetworkError::Request)?;
                    set_member(&mut document.text, path, &text).ok_or(NetworkError::Request)?;
                }
            }
            let mut state = secret.state.lock();
            state.send_cookies(authority, request.headers_mut());
            let versions = &mut state.used.versions;
            if versions.len() < Usage::MAX_SECRET_VERSIONS
                && !versions.iter().any(|one| one == value.version())
            {
                versions.push(value.version().to_owned());
            }
        }
        if let Some(document) = self.document.take() {
            request.headers_mut().insert(header::CONTENT_LENGTH, document.text.len().into());
            *request.body_mut() = document.into_body();
        }
        Ok(())
    }

    /// Keeps what the answer has for later requests with the secrets, instead of giving it to the guest.
    pub(super) fn receive<B>(
        &self,
        authority: &str,
        store: Option<&dyn SecretStore>,
        response: &mut Response<B>,
    ) {
        let is_refused = response.status() == StatusCode::UNAUTHORIZED;
        let mut keeps_cookies = false;
        if !self.secrets.is_empty() {
            remove_digests(response.headers_mut());
        }
        for (secret, _) in &self.secrets {
            let binding = &secret.granted.binding;
            if let Some(store) = store.filter(|_| is_refused) {
                store.forget(binding.name());
            }
            if binding.keeps_cookies() {
                keeps_cookies = true;
                secret.state.lock().keep_cookies(authority, response.headers());
            }
        }
        if keeps_cookies {
            response.headers_mut().remove(header::SET_COOKIE);
            // That of RFC 2965, which a server may still send beside the other one.
            response.headers_mut().remove("set-cookie2");
        }
    }
}

impl SecretState {
    fn keep_cookies(&mut self, authority: &str, fields: &HeaderMap) {
        for field in fields.get_all(header::SET_COOKIE) {
            self.used.kept_cookies = self.used.kept_cookies.saturating_add(1);
            let Ok(text) = field.to_str() else { continue };
            let pair = text.split(';').next().unwrap_or_default();
            let Some((name, value)) = pair.split_once('=').filter(|_| pair.len() <= MAX_COOKIE_BYTES) else {
                continue;
            };
            let name = name.trim();
            self.cookies.retain(|cookie| cookie.authority != authority || cookie.name != name);
            if self.cookies.len() < MAX_COOKIES && !value.trim().is_empty() {
                let value = Zeroizing::new(value.trim().to_owned());
                self.cookies.push(Cookie { authority: authority.to_owned(), name: name.to_owned(), value });
            }
        }
    }

    /// Sends the kept cookies of this authority.
    fn send_cookies(&self, authority: &str, fields: &mut HeaderMap) {
        let kept = self.cookies.iter().filter(|cookie| cookie.authority == authority);
        let pairs = kept.map(|Cookie { name, value, .. }| format!("{name}={}", **value)).collect::<Vec<_>>();
        if let Some(mut field) = HeaderValue::try_from(pairs.join("; ")).ok().filter(|_| !pairs.is_empty()) {
            field.set_sensitive(true);
            fields.insert(header::COOKIE, field);
        }
    }
}

/// Removes a header field, and all that some server could read as it: to servers that pass fields on as variables, `_` and
/// `-` are the same.
fn remove_field(fields: &mut HeaderMap, name: &str) {
    let plain = name.replace('_', "-");
    let is_same = |one: &&HeaderName| one.as_str().replace('_', "-") == plain;
    let same = fields.keys().filter(is_same).cloned().collect::<Vec<_>>();
    for one in same {
        fields.remove(one);
    }
}

/// Sets a header field in place of all that some server could read as it.
fn set_field(fields: &mut HeaderMap, name: &str, text: &str) -> Result<(), EgressError> {
    remove_field(fields, name);
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| NetworkError::Request)?;
    let mut field = HeaderValue::from_bytes(text.as_bytes()).map_err(|_| NetworkError::Request)?;
    field.set_sensitive(true);
    fields.insert(name, field);
    Ok(())
}

/// Sets a parameter of the query in place of all with its name. The others stay byte for byte.
fn set_parameter(request: &mut Request<Body>, name: &str, text: &str) -> Result<(), EgressError> {
    let uri = request.uri();
    let is_other = |pair: &&str| decode(pair.split('=').next().unwrap_or_default()) != name.as_bytes();
    let others = uri.query().into_iter().flat_map(|query| query.split('&')).filter(is_other);
    let mut target = Zeroizing::new(format!("{}?", uri.path()));
    for pair in others.filter(|pair| !pair.is_empty()) {
        target.push_str(pair);
        target.push('&');
    }
    encode(name, &mut target);
    target.push('=');
    encode(text, &mut target);
    *request.uri_mut() = target.parse::<Uri>().map_err(|_| NetworkError::RequestHead)?;
    Ok(())
}

/// A part of a query as servers read it: `%` with two digits is a byte, and `+` is a space.
fn decode(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let mut ahead = bytes.clone();
        let mut digit = || char::from(ahead.next()?).to_digit(16);
        let encoded = digit().zip(digit()).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        match (byte, encoded) {
            (b'%', Some(encoded)) => {
                decoded.push(encoded);
                bytes = ahead;
            }
            (b'+', _) => decoded.push(b' '),
            (other, _) => decoded.push(other),
        }
    }
    decoded
}

/// Percent-encodes all but the characters that are the same with and without it (RFC 3986, section 2.3).
fn encode(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            into.push(char::from(byte));
        } else {
            into.push_str(&format!("%{byte:02X}"));
        }
    }
}

/// `true` for a request whose body is a JSON document, and not an encoding of one: in another character set than UTF-8, its
/// server could find the place of the value elsewhere.
fn is_plain_json(fields: &HeaderMap) -> bool {
    let kinds = fields.get_all(header::CONTENT_TYPE).iter().collect::<Vec<_>>();
    let [kind] = kinds.as_slice() else { return false };
    let text = kind.to_str().unwrap_or_default();
    let mut parts = text.split(';').map(|part| part.trim().to_ascii_lowercase());
    let essence = parts.next().unwrap_or_default();
    let is_json = essence == "application/json" || essence.ends_with("+json");
    let is_utf8 = |part: &str| {
        let value = part.split_once('=').map(|(_, value)| value.trim().trim_matches('"'));
        !part.starts_with("charset") || value == Some("utf-8")
    };
    is_json && parts.all(|part| is_utf8(&part)) && !fields.contains_key(header::CONTENT_ENCODING)
}

/// A body in which values are set. It counts in its agent's share of the executor's memory until it is sent.
struct Document {
    text: String,
    _counted: CountedBytes,
}

impl Document {
    /// Reads the whole body; `None` if it is too long or no text.
    ///
    /// # Errors
    /// [`NetworkError::Memory`] if the bodies of all runs, with all else that is counted, would use too much memory.
    async fn read(mut body: Body, agent: &AgentDid) -> Result<Option<Self>, EgressError> {
        let mut counted = memory::hold_always(agent.as_str(), 0);
        let mut whole = Vec::new();
        while let Some(frame) = body.frame().await {
            let part = frame?.into_data().map_err(|_trailers| NetworkError::Request)?;
            let length = whole.len().saturating_add(part.len());
            if length > MAX_BODY_BYTES {
                return Ok(None);
            }
            // A short one is not counted, as a short message is not.
            let bytes = u64::try_from(length).unwrap_or(u64::MAX);
            if bytes > SMALL_MESSAGE_BYTES {
                counted.try_set(bytes).map_err(|_no_room| NetworkError::Memory)?;
            }
            whole.extend_from_slice(&part);
        }
        // It is kept until the request is sent.
        whole.shrink_to_fit();
        Ok(String::from_utf8(whole).ok().map(|text| Self { text, _counted: counted }))
    }

    fn into_body(self) -> Body {
        full_body(Bytes::from_owner(self))
    }
}

impl AsRef<[u8]> for Document {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_capability::{
        DeclaredRequest, Host, PLACEHOLDER_BYTES, Placeholder, RequestRule, SecretBinding, SecretParts,
        ToolRange,
    };

    fn run_with(place: &str, max_uses: u32, withheld_by: Option<Layer>) -> RunSecrets {
        let declared = DeclaredRequest::parse("GET https://api.example/v1/{id}").unwrap();
        let binding = SecretBinding::new(SecretParts {
            name: SecretName::parse("key").unwrap(),
            tools: vec![ToolRange::parse("*").unwrap()],
            agents: None,
            requests: vec![RequestRule::from_declared(&declared).unwrap()],
            place: SecretPlace::parse(place).unwrap(),
            rendering: Rendering::Plain,
            max_uses,
            keeps_cookies: true,
            placeholder: Placeholder::new("KEY", SecretName::parse("key").unwrap()).ok(),
        });
        let granted = [GrantedSecret { binding: Arc::new(binding.unwrap()), withheld_by }];
        RunSecrets::new(&granted, SentSecrets::default())
    }

    fn loaded(run: &RunSecrets) -> LoadedSecrets<'_> {
        let value = SecretValue::new(Zeroizing::new("p&s w/d=1".to_owned()), "v1".to_owned()).unwrap();
        LoadedSecrets { secrets: vec![(&run.all[0], Arc::new(value))], document: None }
    }

    fn request(uri: &str) -> Request<Body> {
        Request::get(uri).body(full_body("")).unwrap()
    }

    fn reason(planned: Result<SecretPlan<'_>, SecretRefusal>) -> Result<bool, DenialReason> {
        planned.map(|plan| !plan.is_empty()).map_err(|refusal| refusal.reason)
    }

    #[test]
    fn a_request_is_planned_counted_and_refused_by_its_binding() {
        let host = Host::parse("api.example").unwrap();
        let fitting = RequestTarget { method: "GET", is_https: true, host: &host, port: 443, path: "/v1/2" };
        let run = run_with("query:key", 2, None);
        assert_eq!(reason(run.plan(&fitting)), Ok(true));
        assert_eq!(reason(run.plan(&RequestTarget { path: "/v1/2/3", ..fitting })), Ok(false));
        assert_eq!(reason(run.plan(&RequestTarget { method: "POST", ..fitting })), Ok(false));
        let plain = RequestTarget { is_https: false, port: 80, ..fitting };
        assert_eq!(reason(run.plan(&plain)), Err(DenialReason::SecretPlace));
        let other = Host::parse("other.example").unwrap();
        assert_eq!(reason(run.plan(&RequestTarget { host: &other, ..plain })), Ok(false));
        assert_eq!(reason(run.plan(&fitting)), Ok(true));
        assert_eq!(reason(run.plan(&fitting)), Err(DenialReason::SecretUses));
        let used = &run.usage()[0];
        assert_eq!((used.uses, used.without), (2, 2));
        let withheld = run_with("query:key", 2, Some(Layer::Condition));
        let refusal = withheld.plan(&fitting).err().unwrap();
        assert_eq!((refusal.reason, refusal.set_by), (DenialReason::SecretWithheld, Some(Layer::Condition)));
        assert!(run.may_come_back() && withheld.may_come_back() && !RunSecrets::default().may_come_back());
    }

    #[tokio::test]
    async fn bodies_of_all_runs_use_one_budget_of_memory() {
        // No other test counts as much.
        const SHARE: u64 = 1 << 40;
        memory::set_budget(u64::MAX, SHARE);
        let agent = AgentDid::parse("did:a2g:bodies:1").unwrap();
        let others = memory::hold_always(agent.as_str(), SHARE - (100 << 10));
        let runs = [run_with("body:/key", 9, None), run_with("body:/key", 9, None)];
        let host = Host::parse("api.example").unwrap();
        let fitting = RequestTarget { method: "GET", is_https: true, host: &host, port: 443, path: "/v1/2" };
        let check = async |run: usize, bytes: usize| {
            let document = format!(r#"{{"x":"{}"}}"#, "x".repeat(bytes));
            let request = Request::get("/v1/2").header(header::CONTENT_TYPE, "application/json");
            let request = request.body(full_body(document)).unwrap();
            let checked = runs[run].plan(&fitting).ok().unwrap().check_places(&agent, request).await;
            checked.map_err(|error| match error {
                LoadError::Failed(error) => Some(error),
                LoadError::Refused(_) => None,
            })
        };
        let no_memory = Some(Some(EgressError::from(NetworkError::Memory)));
        let first = check(0, 60 << 10).await.unwrap();
        assert_eq!(check(1, 60 << 10).await.err(), no_memory);
        assert!(check(1, 8 << 10).await.is_ok(), "a short one is not counted");
        drop(first);
        let second = check(1, 60 << 10).await.unwrap();
        assert_eq!(check(0, 60 << 10).await.err(), no_memory);
        drop((second, others));
        assert!(check(0, 60 << 10).await.is_ok());
    }

    #[test]
    fn a_parameter_replaces_each_one_of_its_name_and_no_other_byte() {
        let run = run_with("query:key", 9, None);
        for (uri, sent) in [
            ("/v1/2", "/v1/2?key=p%26s%20w%2Fd%3D1"),
            ("/v1/2?", "/v1/2?key=p%26s%20w%2Fd%3D1"),
            ("/v1/2?a=%41&key=x&b", "/v1/2?a=%41&b&key=p%26s%20w%2Fd%3D1"),
            ("/v1/2?k%65y=x&key&key=&KEY=y", "/v1/2?KEY=y&key=p%26s%20w%2Fd%3D1"),
        ] {
            let mut request = request(uri);
            loaded(&run).set("https://api.example:443", &mut request).unwrap();
            assert_eq!(request.uri().to_string(), sent, "{uri}");
        }
        assert_eq!(run.usage()[0].versions, ["v1"]);
    }

    #[test]
    fn a_placeholder_is_counted_where_no_value_has_replaced_it() {
        let run = run_with("query:key", 9, None);
        let text = run.all[0].granted.binding.placeholder().unwrap().text([7; PLACEHOLDER_BYTES]);
        let with_field = |value: &str| {
            let mut request = request("/v1/2");
            request.headers_mut().insert("x-key", HeaderValue::try_from(value).unwrap());
            request
        };
        for (mut request, counted) in [
            (request(&format!("/v1/2?key={text}")), 0),
            (request(&format!("/v1/2?other={text}")), 1),
            (request(&format!("/v1/{text}")), 2),
            (with_field(&format!("Bearer {text}")), 3),
            (with_field(&text[1..]), 3),
        ] {
            loaded(&run).set("https://api.example:443", &mut request).unwrap();
            run.count_placeholders(&request);
            assert_eq!(run.usage()[0].placeholders, counted, "{request:?}");
        }
    }

    #[test]
    fn a_field_replaces_each_one_that_a_server_could_read_as_it() {
        let run = run_with("header:x-api-key", 9, None);
        let mut request = request("/v1/2");
        for name in ["x-api-key", "x_api_key", "X-Api_Key", "x-api-key2"] {
            request
                .headers_mut()
                .append(HeaderName::try_from(name).unwrap(), HeaderValue::from_static("guest"));
        }
        loaded(&run).set("https://api.example:443", &mut request).unwrap();
        assert_eq!(request.headers().len(), 2);
        assert_eq!(request.headers()["x-api-key"], "p&s w/d=1");
        assert!(request.headers()["x-api-key"].is_sensitive());
    }

    #[test]
    fn cookies_stay_in_the_server_and_go_back_only_to_where_they_are_from() {
        let run = run_with("header:x-api-key", 9, None);
        let mut response = Response::new(());
        for cookie in ["a=1; Path=/; HttpOnly", "b=2", "a=3", "c", "d=; Max-Age=0"] {
            response.headers_mut().append(header::SET_COOKIE, HeaderValue::from_static(cookie));
        }
        response.headers_mut().insert("set-cookie2", HeaderValue::from_static("e=1; Version=1"));
        for digest in ["etag", "content-md5", "digest", "content-digest", "repr-digest"] {
            response.headers_mut().insert(digest, HeaderValue::from_static("\"0f9d3a7b\""));
        }
        loaded(&run).receive("https://api.example:443", None, &mut response);
        assert!(response.headers().is_empty());
        assert_eq!(run.usage()[0].kept_cookies, 5);
        let sent_to = |authority: &str| {
            let mut request = request("/v1/2");
            request.headers_mut().insert(header::COOKIE, HeaderValue::from_static("guest=1"));
            loaded(&run).set(authority, &mut request).unwrap();
            let sent = request.headers().get(header::COOKIE);
            sent.map_or_else(String::new, |field| field.to_str().unwrap().to_owned())
        };
        assert_eq!(sent_to("https://api.example:443"), "b=2; a=3");
        assert_eq!(sent_to("https://other.example:443"), "", "no session of the guest gets the secret");
    }

    #[test]
    fn a_value_has_a_version_and_shows_nothing_else() {
        let value = |text: &str| SecretValue::new(Zeroizing::new(text.to_owned()), "v1".to_owned());
        assert_eq!(format!("{:?}", value("12345678").unwrap()), "SecretValue { version: \"v1\", .. }");
        assert_eq!(value("1234567").err(), Some(SecretValueError::Length(7)));
        assert_eq!(value(&"1".repeat(8193)).err(), Some(SecretValueError::Length(8193)));
        assert_eq!(value("12345\n678").err(), Some(SecretValueError::Control));
        let basic = value("user:password").unwrap().render(&Rendering::Basic);
        assert_eq!(*basic, "Basic dXNlcjpwYXNzd29yZA==");
        let bearer = value("12345678").unwrap().render(&Rendering::Scheme("Bearer".to_owned()));
        assert_eq!(*bearer, "Bearer 12345678");
    }
}
