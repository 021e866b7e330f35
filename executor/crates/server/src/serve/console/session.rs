//! Signing in, and the sessions of browsers.
//!
//! ```text
//! token, JWT or certificate ─▶ Credential ─ Callers::identify ─▶ session ─ cookie ─▶ every request identifies again
//! key of this start ──────────▶ the person who started the server ────────┘
//! ```
//! A session stores the credential, not the rights: each request identifies the caller again, so a session ends at once
//! when its caller is removed, its token expires, or its roles change. The server stores only the hash of a cookie.

use super::Console;
use super::form::{Form, is_cross_site};
use super::page::{View, document, problem};
use crate::serve::auth::CallerDirectory;
use crate::serve::connections::PeerCertNames;
use a2g_govern::{Caller, Credential};
use a2g_types::clock::Clock;
use a2g_types::tool::Digest;
use axum::body::Body;
use axum::extract::{FromRequestParts, OptionalFromRequestParts, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::html;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

/// Maximum age of a session.
const MAX_SESSION_AGE: Duration = Duration::from_secs(12 * 60 * 60);
/// Maximum number of sessions. Beyond it, nobody can sign in until one ends.
const MAX_SESSIONS: usize = 4096;
/// Maximum number of sessions of one caller. Beyond it, the caller's oldest one ends for each new one.
const MAX_SESSIONS_PER_CALLER: usize = 32;
/// Maximum number of cookies of one request that are looked up.
const MAX_COOKIES: usize = 8;
/// Number of random bytes of a key, a cookie and a form's token.
const SECRET_BYTES: usize = 32;
/// The cookie of a session over TLS. Browsers accept the prefix only from this host and only over TLS.
const SECURE_COOKIE: &str = "__Host-a2g_console";
/// The cookie of a session without TLS.
const COOKIE: &str = "a2g_console";

/// A random text that cannot be guessed.
fn new_secret() -> std::io::Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The key with which the person who started the server signs in, once. Each use replaces it.
pub struct LocalKey {
    /// A file that only the user of the server can read. It has the link with the current key.
    file: PathBuf,
    state: Mutex<KeyState>,
}

#[derive(Default)]
struct KeyState {
    /// The URL of the console, without a key. Empty until the port is bound.
    url: String,
    /// The hash of the current key.
    digest: Option<Digest>,
}

impl LocalKey {
    /// No key yet. The links will be written to `file`.
    #[must_use]
    pub fn new(file: PathBuf) -> Self {
        Self { file, state: Mutex::default() }
    }

    /// Makes the first key for the console at `url`, and writes the link with it to the file. Returns the link.
    ///
    /// # Ambient Authority
    /// Writes the file.
    ///
    /// # Errors
    /// If the system provides no random bytes, or the file cannot be written.
    pub fn publish(&self, url: String) -> std::io::Result<String> {
        self.state.lock().url = url;
        self.replace()
    }

    /// Writes a new link if there is none, because the disk was full when the last one was used.
    ///
    /// # Ambient Authority
    /// Writes the file.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub fn restore(&self) -> std::io::Result<()> {
        let is_missing = self.state.lock().digest.is_none();
        if is_missing { self.replace().map(drop) } else { Ok(()) }
    }

    fn replace(&self) -> std::io::Result<String> {
        let key = new_secret()?;
        let link = format!("{}?key={key}", self.state.lock().url);
        let folder = self.file.parent().filter(|folder| !folder.as_os_str().is_empty());
        // Only the user of this process can read a new temporary file.
        let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or_else(|| ".".as_ref()))?;
        writeln!(file, "{link}")?;
        file.persist(&self.file)?;
        self.state.lock().digest = Some(Digest::compute(key.as_bytes()));
        Ok(link)
    }

    /// Uses up the key. Returns `false` if `key` is not the current one.
    fn redeem(&self, key: &str) -> bool {
        // The hashes are compared, so the time of the comparison tells nothing about the key.
        self.state.lock().digest.take_if(|digest| *digest == Digest::compute(key.as_bytes())).is_some()
    }
}

/// The proof of identity that a session stores.
enum Identity {
    Credential(Credential),
    /// The person who started the server.
    Local,
}

struct BrowserSession {
    identity: Identity,
    /// The caller when the session began: another one under the same credential ends the session.
    caller: Arc<Caller>,
    /// The names in the certificate of the connection, which every request has to present again.
    certificate: Arc<[Box<str>]>,
    form_token: String,
    began: OffsetDateTime,
}

/// All sessions, by the hash of their cookie.
pub(super) struct BrowserSessions {
    callers: CallerDirectory,
    clock: Arc<dyn Clock>,
    tls: bool,
    local_key: Option<Arc<LocalKey>>,
    by_cookie: Mutex<HashMap<Digest, BrowserSession>>,
}

/// The caller of a request with a valid session.
pub(super) struct SignedIn {
    pub(super) caller: Arc<Caller>,
    pub(super) form_token: String,
}

impl BrowserSessions {
    pub(super) fn new(
        callers: CallerDirectory,
        clock: Arc<dyn Clock>,
        tls: bool,
        local_key: Option<Arc<LocalKey>>,
    ) -> Self {
        Self { callers, clock, tls, local_key, by_cookie: Mutex::default() }
    }

    fn identify(&self, identity: &Identity) -> Option<Arc<Caller>> {
        match (identity, &self.local_key) {
            // Without a list, every client of the port is anonymous: only the key tells the person.
            (Identity::Credential(_), Some(_)) => None,
            (Identity::Credential(credential), None) => self.callers.identify(credential, self.clock.now()),
            (Identity::Local, _) => Some(Arc::new(Caller::console_person())),
        }
    }

    /// Begins a session; `None` if the identity is not that of a caller.
    fn begin(
        &self,
        identity: Identity,
        certificate: Arc<[Box<str>]>,
    ) -> Option<std::io::Result<HeaderValue>> {
        let caller = self.identify(&identity)?;
        Some(self.store(identity, caller, certificate))
    }

    fn store(
        &self,
        identity: Identity,
        caller: Arc<Caller>,
        certificate: Arc<[Box<str>]>,
    ) -> std::io::Result<HeaderValue> {
        let (cookie, form_token) = (new_secret()?, new_secret()?);
        tracing::info!(caller = caller.name(), "signed in to the console");
        let began = self.clock.now();
        let name: Box<str> = caller.name().into();
        let session = BrowserSession { identity, caller, certificate, form_token, began };
        let mut sessions = self.by_cookie.lock();
        sessions.retain(|_, session| !is_over(session, began));
        // The oldest of the caller's own sessions ends, so that no caller ends those of others.
        let own = |session: &BrowserSession| session.caller.name() == &*name;
        if sessions.values().filter(|session| own(session)).count() >= MAX_SESSIONS_PER_CALLER {
            let own = sessions.iter().filter(|(_, session)| own(session));
            let oldest = own.min_by_key(|(_, session)| session.began).map(|(cookie, _)| *cookie);
            oldest.and_then(|oldest| sessions.remove(&oldest));
        }
        if sessions.len() >= MAX_SESSIONS {
            return Err(std::io::Error::other("too many sessions are open"));
        }
        sessions.insert(Digest::compute(cookie.as_bytes()), session);
        drop(sessions);
        self.cookie_header(&cookie, MAX_SESSION_AGE)
    }

    fn cookie_header(&self, value: &str, age: Duration) -> std::io::Result<HeaderValue> {
        let (name, path, secure) =
            if self.tls { (SECURE_COOKIE, "/", "; Secure") } else { (COOKIE, "/console", "") };
        let age = age.as_secs();
        let text = format!("{name}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
        HeaderValue::from_str(&text).map_err(std::io::Error::other)
    }

    /// The hashes of the cookies of a request: another program of this host may have added one of the same name.
    fn cookies(&self, headers: &HeaderMap) -> Vec<Digest> {
        let name = if self.tls { SECURE_COOKIE } else { COOKIE };
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = cookies.flat_map(|cookies| cookies.split("; ")).filter_map(|pair| pair.split_once('='));
        let values = pairs.filter(|(cookie, _)| *cookie == name).take(MAX_COOKIES);
        values.map(|(_, value)| Digest::compute(value.as_bytes())).collect()
    }

    /// The caller of a request; `None` without a valid session. A session that is no longer valid is removed.
    pub(super) fn find(&self, headers: &HeaderMap, certificate: &[Box<str>]) -> Option<SignedIn> {
        let mut sessions = self.by_cookie.lock();
        let cookie = self.cookies(headers).into_iter().find(|cookie| sessions.contains_key(cookie))?;
        let session = sessions.get(&cookie)?;
        let caller = self.identify(&session.identity).filter(|caller| {
            **caller == *session.caller
                && *session.certificate == *certificate
                && !is_over(session, self.clock.now())
        });
        let Some(caller) = caller else {
            sessions.remove(&cookie);
            return None;
        };
        Some(SignedIn { caller, form_token: session.form_token.clone() })
    }

    fn end(&self, headers: &HeaderMap) {
        let mut sessions = self.by_cookie.lock();
        self.cookies(headers).iter().for_each(|cookie| drop(sessions.remove(cookie)));
    }
}

fn is_over(session: &BrowserSession, now: OffsetDateTime) -> bool {
    now - session.began >= MAX_SESSION_AGE || now < session.began
}

impl FromRequestParts<Arc<Console>> for SignedIn {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, console: &Arc<Console>) -> Result<Self, Response> {
        let PeerCertNames(certificate) = parts.extensions.get().cloned().unwrap_or_default();
        console.sessions.find(&parts.headers, &certificate).ok_or_else(|| {
            let is_page = parts.method == axum::http::Method::GET && !parts.headers.contains_key("hx-request");
            if is_page {
                sign_in_first(&parts.headers, parts.uri.path())
            } else {
                problem(
                    StatusCode::UNAUTHORIZED,
                    "You are signed out",
                    "Your session has ended, or your rights have changed. Nothing was changed: sign in again.",
                )
            }
        })
    }
}

impl OptionalFromRequestParts<Arc<Console>> for SignedIn {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        console: &Arc<Console>,
    ) -> Result<Option<Self>, Infallible> {
        let PeerCertNames(certificate) = parts.extensions.get().cloned().unwrap_or_default();
        Ok(console.sessions.find(&parts.headers, &certificate))
    }
}

/// A posted form of a signed-in caller, with a valid token.
pub(super) struct Post {
    pub(super) signed_in: SignedIn,
    pub(super) form: Form,
}

impl axum::extract::FromRequest<Arc<Console>> for Post {
    type Rejection = Response;

    async fn from_request(request: Request, console: &Arc<Console>) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let signed_in = <SignedIn as FromRequestParts<_>>::from_request_parts(&mut parts, console).await?;
        let form = Form::read(console, body, &signed_in.caller).await.map_err(|page| *page)?;
        let token = Digest::compute(form.get("form_token").unwrap_or_default().as_bytes());
        if is_cross_site(&parts.headers) || token != Digest::compute(signed_in.form_token.as_bytes()) {
            return Err(problem(
                StatusCode::FORBIDDEN,
                "This form is not from your session",
                "Nothing was changed. Open the page again, and repeat what you did there.",
            ));
        }
        // Identified again: the caller may have been removed while the body arrived.
        let signed_in = <SignedIn as FromRequestParts<_>>::from_request_parts(&mut parts, console).await?;
        Ok(Self { signed_in, form })
    }
}

/// The answer to somebody who asks for a page without being signed in.
pub(super) fn sign_in_first(headers: &HeaderMap, path: &str) -> Response {
    let path = return_path(path);
    if is_cross_site(headers) {
        return reopen(path);
    }
    Redirect::to(&format!("/console/sign-in?to={path}")).into_response()
}

/// A page that opens a path of the console. A browser does not send the cookie of a session with a request that another
/// site or program caused, nor after a redirect of one; it does with the request that this page causes.
fn reopen(path: &str) -> Response {
    let body = html! {
        meta http-equiv="refresh" content={ "0; url=" (path) };
        p { a href=(path) { "Continue" } }
    };
    document("Console", None, &body).into_response()
}

/// The page to return to after signing in; any text that is no path of the console becomes the start page.
fn return_path(path: &str) -> &str {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_".contains(&byte);
    let is_own = path.starts_with("/console") && path.bytes().all(is_plain) && !path.contains("//");
    if is_own && path != "/console/sign-in" { path } else { "/console" }
}

#[derive(serde::Deserialize)]
pub(super) struct SignInQuery {
    #[serde(default)]
    to: String,
}

/// `GET /console/sign-in`.
pub(super) async fn show_sign_in(
    State(console): State<Arc<Console>>,
    Query(query): Query<SignInQuery>,
    certificate: Option<axum::Extension<PeerCertNames>>,
) -> Response {
    let has_certificate = certificate.is_some_and(|axum::Extension(PeerCertNames(names))| !names.is_empty());
    sign_in_page(&console, StatusCode::OK, None, return_path(&query.to), has_certificate)
}

fn sign_in_page(
    console: &Console,
    status: StatusCode,
    error: Option<&str>,
    to: &str,
    has_certificate: bool,
) -> Response {
    let body = html! {
        h1 { "Sign in" }
        @if let Some(error) = error { p.error role="alert" { (error) } }
        @if console.sessions.local_key.is_some() {
            p { "This executor has no list of callers, so the person who started it signs in with a link that works once." }
            p { "Run this on the executor's machine, as the user that runs the executor:" }
            pre { code { "a2g-executor console" } }
            p { "It reads the link from a file that only that user can read." }
        } @else {
            form method="post" action="/console/sign-in" {
                input type="hidden" name="to" value=(to);
                label for="token" { "Token" }
                p #token-help { "The token that `a2g-executor caller new` printed, or a JSON Web Token." }
                input #token type="password" name="token" autocomplete="current-password"
                    aria-describedby="token-help" required;
                p { button type="submit" { "Sign in" } }
            }
            @if has_certificate {
                form method="post" action="/console/sign-in" {
                    input type="hidden" name="to" value=(to);
                    p { button type="submit" name="certificate" value="yes" { "Sign in with the certificate of this browser" } }
                }
            }
        }
    };
    (status, document("Sign in", None, &body)).into_response()
}

/// `POST /console/sign-in`.
pub(super) async fn sign_in(
    State(console): State<Arc<Console>>,
    certificate: Option<axum::Extension<PeerCertNames>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let names = certificate.map(|axum::Extension(PeerCertNames(names))| names).unwrap_or_default();
    // A foreign page could otherwise sign a person in as somebody else.
    if is_cross_site(&headers) {
        return problem(
            StatusCode::FORBIDDEN,
            "This form is from another site",
            "Nothing was changed. Open the console's own sign-in page, and sign in there.",
        );
    }
    // Nobody is known yet, so all such bodies share the memory of one caller.
    let form = match Form::read(&console, body, &Caller::any_agent()).await {
        Ok(form) => form,
        Err(page) => return *page,
    };
    let to = return_path(form.get("to").unwrap_or_default()).to_owned();
    let token = form.get("token").map(str::trim).filter(|token| !token.is_empty());
    let certificate = if token.is_some() { Arc::default() } else { Arc::clone(&names) };
    let credential = Credential::new(token.map(str::as_bytes), certificate);
    match console.sessions.begin(Identity::Credential(credential), Arc::clone(&names)) {
        Some(Ok(cookie)) => ([(header::SET_COOKIE, cookie)], Redirect::to(&to)).into_response(),
        Some(Err(error)) => {
            tracing::error!(%error, "a session of the console cannot be made");
            problem(
                StatusCode::SERVICE_UNAVAILABLE,
                "You cannot sign in now",
                "Try again. If it fails again, see the log of the executor.",
            )
        }
        None => {
            let error = if token.is_some() {
                "This executor does not know that token, or it has expired: ask its operator for a new one (`a2g-executor caller new`)."
            } else {
                "No caller of this executor has the names in your certificate: ask its operator to add one (`a2g-executor caller new`)."
            };
            sign_in_page(&console, StatusCode::UNAUTHORIZED, Some(error), &to, !names.is_empty())
        }
    }
}

/// Redeems the key of a link. Returns the answer that begins the session.
pub(super) async fn redeem_key(console: &Arc<Console>, key: &str) -> Response {
    let is_current = console.sessions.local_key.as_ref().is_some_and(|local| local.redeem(key));
    if !is_current {
        let error = "This link was used before, or is from an earlier start. Each link works once.";
        return sign_in_page(console, StatusCode::UNAUTHORIZED, Some(error), "/console", false);
    }
    let replaced = {
        let console = Arc::clone(console);
        tokio::task::spawn_blocking(move || {
            console.sessions.local_key.as_ref().map(|local| local.replace()).transpose().map(drop)
        })
        .await
    };
    if let Ok(Err(error)) = replaced {
        tracing::error!(%error, "the next link to the console cannot be written");
    }
    match console.sessions.begin(Identity::Local, Arc::default()) {
        // The key leaves the address bar.
        Some(Ok(cookie)) => ([(header::SET_COOKIE, cookie)], reopen("/console")).into_response(),
        Some(Err(_)) | None => problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "You cannot sign in now",
            "The link is used up. Run `a2g-executor console` for a new one.",
        ),
    }
}

/// `POST /console/sign-out`.
pub(super) async fn sign_out(State(console): State<Arc<Console>>, headers: HeaderMap, _: Post) -> Response {
    console.sessions.end(&headers);
    match console.sessions.cookie_header("", Duration::ZERO) {
        Ok(cookie) => ([(header::SET_COOKIE, cookie)], Redirect::to("/console/sign-in")).into_response(),
        Err(_) => Redirect::to("/console/sign-in").into_response(),
    }
}

impl SignedIn {
    pub(super) fn view(&self) -> View<'_> {
        View { caller: &self.caller, form_token: &self.form_token }
    }
}
