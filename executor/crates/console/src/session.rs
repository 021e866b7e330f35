//! The sessions of browsers, and the callers of their requests.
//!
//! ```text
//! token, JWT or certificate ─▶ Credential ─ Callers::identify ─▶ session ─ cookie ─▶ every request identifies again
//! key of the link ────────────▶ the person who started the server ────────┘
//! ```
//! A session stores the credential, not the rights: each request identifies the caller again, so a session ends at once
//! when its caller is removed, its token expires, or its roles change. The server stores only the hash of a cookie.

use super::ConsoleState;
use super::form::{FormFields, is_cross_site};
use super::local_key::LocalKey;
use super::page::{Viewer, problem};
use super::sign_in::sign_in_first;
use a2g_govern::{Caller, Credential};
use a2g_http::auth::CallerDirectory;
use a2g_http::connections::PeerCertNames;
use a2g_types::clock::Clock;
use a2g_types::tool::Digest;
use axum::extract::{FromRequestParts, OptionalFromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

/// Maximum age of a session.
const MAX_SESSION_AGE: Duration = Duration::from_secs(12 * 60 * 60);
/// Maximum number of sessions. Beyond it, nobody can sign in until one ends.
const MAX_SESSIONS: usize = 4096;
/// Maximum number of sessions of one caller. Beyond it, the caller's oldest one ends for each new one.
const MAX_SESSIONS_PER_CALLER: usize = 32;
/// Number of random bytes of a key, a cookie and a form's token.
const SECRET_BYTES: usize = 32;
/// The cookie of a session over TLS. Browsers accept the prefix only from this host and only over TLS.
const SECURE_COOKIE: &str = "__Host-a2g_console";
/// The cookie of a session without TLS.
const COOKIE: &str = "a2g_console";

/// The name of the field with the token of a session's forms.
pub(super) const FORM_TOKEN: &str = "form_token";

/// A random text that cannot be guessed.
pub(super) fn new_secret() -> std::io::Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The proof of identity that a session stores.
pub(super) enum Identity {
    Credential(Credential),
    /// The person who started the server.
    Local,
}

struct BrowserSession {
    identity: Identity,
    /// The caller when the session began. The session ends if its credential later gives another one, or other rights.
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

    /// The key of the person who started the server; `None` if callers are listed.
    pub(super) fn local_key(&self) -> Option<&Arc<LocalKey>> {
        self.local_key.as_ref()
    }

    fn identify(&self, identity: &Identity) -> Option<Arc<Caller>> {
        match (identity, &self.local_key) {
            // Without a list, every client of the port is anonymous: only the key identifies the person.
            (Identity::Credential(_), Some(_)) => None,
            (Identity::Credential(credential), None) => {
                self.callers.identify(credential, self.clock.now()).ok()
            }
            (Identity::Local, _) => Some(Arc::new(Caller::console_person())),
        }
    }

    /// Begins a session; `None` if the identity is not that of a caller.
    pub(super) fn begin(
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
        let cookie = new_secret()?;
        let form_token = new_secret()?;
        tracing::info!(caller = caller.name(), "signed in to the console");
        let began = self.clock.now();
        let name: Box<str> = caller.name().into();
        let session = BrowserSession { identity, caller, certificate, form_token, began };
        let mut sessions = self.by_cookie.lock();
        sessions.retain(|_, session| !is_over(session, began));
        // The oldest of the caller's own sessions ends, so that no caller can end the sessions of others.
        let is_own = |session: &BrowserSession| session.caller.name() == &*name;
        if sessions.values().filter(|session| is_own(session)).count() >= MAX_SESSIONS_PER_CALLER {
            let own = sessions.iter().filter(|(_, session)| is_own(session));
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

    pub(super) fn cookie_header(&self, value: &str, age: Duration) -> std::io::Result<HeaderValue> {
        let (name, path, secure) =
            if self.tls { (SECURE_COOKIE, "/", "; Secure") } else { (COOKIE, "/console", "") };
        let age = age.as_secs();
        let text = format!("{name}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
        HeaderValue::from_str(&text).map_err(std::io::Error::other)
    }

    /// The hashes of the session cookies of a request. There may be several, because another program on this host may
    /// have set some with the same name. All are read, so that none can hide the real one; the length of a head bounds
    /// their number.
    fn cookies(&self, headers: &HeaderMap) -> Vec<Digest> {
        let name = if self.tls { SECURE_COOKIE } else { COOKIE };
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = cookies.flat_map(|cookies| cookies.split("; ")).filter_map(|pair| pair.split_once('='));
        let values = pairs.filter(|(cookie, value)| *cookie == name && value.len() == 2 * SECRET_BYTES);
        values.map(|(_, value)| Digest::compute(value.as_bytes())).collect()
    }

    /// The caller of a request; `None` without a valid session. A session that is no longer valid is removed.
    pub(super) fn find(&self, headers: &HeaderMap, certificate: &[Box<str>]) -> Option<SignedIn> {
        let cookies = self.cookies(headers);
        let mut sessions = self.by_cookie.lock();
        let cookie = cookies.into_iter().find(|cookie| sessions.contains_key(cookie))?;
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

    pub(super) fn end(&self, headers: &HeaderMap) {
        let cookies = self.cookies(headers);
        let mut sessions = self.by_cookie.lock();
        cookies.iter().for_each(|cookie| drop(sessions.remove(cookie)));
    }
}

fn is_over(session: &BrowserSession, now: OffsetDateTime) -> bool {
    now - session.began >= MAX_SESSION_AGE || now < session.began
}

impl FromRequestParts<Arc<ConsoleState>> for SignedIn {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, console: &Arc<ConsoleState>) -> Result<Self, Response> {
        let PeerCertNames(certificate) = parts.extensions.get().cloned().unwrap_or_default();
        console.sessions.find(&parts.headers, &certificate).ok_or_else(|| {
            let is_page = parts.method == axum::http::Method::GET && !parts.headers.contains_key("hx-request");
            if is_page {
                sign_in_first(&parts.headers, parts.uri.path())
            } else {
                problem(
                    StatusCode::UNAUTHORIZED,
                    "You are signed out",
                    "Your session has ended, or your rights are different now. Nothing was changed: sign in again.",
                )
            }
        })
    }
}

impl OptionalFromRequestParts<Arc<ConsoleState>> for SignedIn {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        console: &Arc<ConsoleState>,
    ) -> Result<Option<Self>, Infallible> {
        let PeerCertNames(certificate) = parts.extensions.get().cloned().unwrap_or_default();
        Ok(console.sessions.find(&parts.headers, &certificate))
    }
}

/// A posted form of a signed-in caller, with a valid token.
pub(super) struct PostedForm {
    pub(super) signed_in: SignedIn,
    pub(super) form: FormFields,
}

impl axum::extract::FromRequest<Arc<ConsoleState>> for PostedForm {
    type Rejection = Response;

    async fn from_request(request: Request, console: &Arc<ConsoleState>) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let signed_in = <SignedIn as FromRequestParts<_>>::from_request_parts(&mut parts, console).await?;
        let form = FormFields::read(console, body, &signed_in.caller).await.map_err(|page| *page)?;
        let token = Digest::compute(form.get(FORM_TOKEN).unwrap_or_default().as_bytes());
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

impl SignedIn {
    /// The viewer of a page, with the numbers of what waits for a decision.
    pub(super) fn viewer(&self, console: &ConsoleState) -> Viewer<'_> {
        let waiting = console.executor.previews.count_waiting(&|agent| self.caller.may_read(agent));
        let waiting_changes = console.executor.changes.waiting_count(&|agent| self.caller.may_read(agent));
        Viewer { caller: &self.caller, form_token: &self.form_token, waiting, waiting_changes }
    }
}
