//! The only network access of guests: every byte that a guest exchanges with a network passes through here.
//!
//! ```text
//! guest ─ wasi:http, wasi:sockets ─▶ sandbox ─▶ NetworkBackend ─┬─ inline: the run's NetworkSession
//!                                                               └─ process isolation: a socket pair ─▶ the run's
//!                                                                  NetworkSession, in the server
//!
//! NetworkSession::send: count ─▶ Target (one reading) ─▶ Reach (domains, requests) ─▶ secrets of the run ─▶ rate
//!    ─▶ connection ─▶ resolve once ─▶ EVERY address checked ─▶ connect to a checked one ─▶ TLS ─▶ secrets set ─▶ HTTP/1.1
//!    ─▶ answer, in which the values of secrets are replaced
//! NetworkSession::look_up: count ─▶ Reach ─▶ rate ─▶ resolve once ─▶ EVERY address checked ─▶ stored for this run
//! NetworkSession::connect: looked up or listed? ─▶ count, rate ─▶ address checked again ─▶ connect ─▶ bytes
//! ```
//! A run reaches only hosts that its grant and the address rules allow, within its budgets, and its connections are
//! closed when it ends. The reported figures are counted here. Redirects are not followed, connections are not reused,
//! proxies are not used, and a `Host` header of the guest is ignored: the checked host is the one that is connected to,
//! named in TLS and written in the request. A run under `staged` sends only requests with GET and HEAD, and gets no
//! connection of its own, because nobody could take back what it has sent. Its other requests are refused, or wait for the
//! commit of its file changes ([`HeldRequests`]).
//!
//! The feature `egress` has all of this but the interface to it, [`NetworkBackend`]: without the feature, a run has no
//! network, or a backend of its caller's own.

#[cfg(feature = "egress")]
mod access;
#[cfg(feature = "egress")]
mod address;
#[cfg(feature = "egress")]
mod connection;
#[cfg(feature = "egress")]
mod document;
#[cfg(feature = "egress")]
mod held;
#[cfg(feature = "egress")]
mod rate;
#[cfg(feature = "egress")]
mod redaction;
mod refusal;
#[cfg(feature = "egress")]
mod resolve;
#[cfg(feature = "egress")]
mod secrets;
#[cfg(feature = "egress")]
mod session;
#[cfg(feature = "egress")]
mod target;
#[cfg(test)]
#[cfg(feature = "egress")]
mod tests;
#[cfg(feature = "egress")]
mod token;
#[cfg(feature = "egress")]
mod tunnel;
#[cfg(feature = "egress")]
mod webhook;

#[cfg(feature = "egress")]
pub use access::{Egress, EgressSettings, MAX_LOOKUPS};
#[cfg(feature = "egress")]
pub use address::{AllowedAddress, AllowedAddressError};
#[cfg(feature = "egress")]
pub use connection::{TlsError, client_config};
#[cfg(feature = "egress")]
pub use held::{BodyFile, HeldRequest, HeldRequests, HeldSecret, MAX_HELD_BODY_BYTES};
#[cfg(feature = "egress")]
pub use redaction::SentSecrets;
pub use refusal::{EgressError, NetworkError};
#[cfg(feature = "egress")]
pub use secrets::{
    KnownSecretFuture, SecretFuture, SecretStore, SecretUnavailable, SecretValue, SecretValueError,
};
#[cfg(feature = "egress")]
pub use session::NetworkSession;
#[cfg(feature = "egress")]
pub use token::{TokenAnswer, TokenClient, TokenUrl};
#[cfg(feature = "egress")]
pub use webhook::{WebhookClient, WebhookUrl};

use a2g_types::outcome::{Denial, NetworkUsage};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Maximum size of the head of a request, and of the head of a response, in bytes.
pub const MAX_HEAD_BYTES: usize = 64 << 10;

/// The body of a request or of a response.
pub type Body = UnsyncBoxBody<Bytes, EgressError>;
/// The future response to a request.
pub type SendFuture = Pin<Box<dyn Future<Output = Result<http::Response<Body>, EgressError>> + Send>>;

/// The future addresses of a name.
pub type LookUpFuture = Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, EgressError>> + Send>>;
/// The future connection, as the body that the other side sends. Dropping the body closes the connection.
pub type ConnectFuture = Pin<Box<dyn Future<Output = Result<Body, EgressError>> + Send>>;

/// The timeouts that a guest requests. The executor's own limits apply as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Timeouts {
    /// For establishing the connection.
    pub connect: Option<Duration>,
    /// For the head of the response, once the connection is established.
    pub first_byte: Option<Duration>,
    /// For each further part of the response.
    pub between_bytes: Option<Duration>,
}

/// The network of a guest: authorizes and performs its requests, in this process or in another one.
pub trait NetworkBackend: Send + Sync {
    /// Sends one request.
    fn send(self: Arc<Self>, request: http::Request<Body>, timeouts: Timeouts) -> SendFuture;

    /// Looks a name up. The run may then connect to the name's addresses.
    fn look_up(self: Arc<Self>, name: String) -> LookUpFuture;

    /// Connects over TCP and sends `upload`, whose end closes only that direction. The next chunk of `upload` is polled
    /// when the kernel has accepted the previous one; `upload` is dropped when no more of it is read.
    fn connect(self: Arc<Self>, address: SocketAddr, upload: Body) -> ConnectFuture;
}

/// The recorded answers that a test of a tool has in place of the network.
#[cfg(feature = "egress")]
pub trait Answers: Send + Sync {
    /// Answers a request that the run may send to this URL, which has the port unless it is the scheme's default.
    fn answer(self: Arc<Self>, url: String, request: http::Request<Body>) -> SendFuture;
}

/// The network of one run.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Network {
    /// The run has no network.
    #[default]
    Off,
    /// Requests are authorized and sent in this process.
    #[cfg(feature = "egress")]
    Local(Arc<NetworkSession>),
    /// Requests are forwarded to the process that authorizes them and does the accounting.
    Remote(Arc<dyn NetworkBackend>),
}

impl Network {
    /// The run's session, if the session is in this process.
    #[cfg(feature = "egress")]
    #[must_use]
    pub fn session(&self) -> Option<&Arc<NetworkSession>> {
        match self {
            Self::Local(session) => Some(session),
            Self::Off | Self::Remote(_) => None,
        }
    }

    /// The receiver of the run's requests; `None` for a run without a network.
    #[must_use]
    pub fn backend(&self) -> Option<Arc<dyn NetworkBackend>> {
        match self {
            Self::Off => None,
            #[cfg(feature = "egress")]
            Self::Local(session) => Some(Arc::<NetworkSession>::clone(session)),
            Self::Remote(backend) => Some(Arc::clone(backend)),
        }
    }

    /// Closes all connections of the run, and refuses new requests.
    pub fn close(&self) {
        #[cfg(feature = "egress")]
        if let Some(session) = self.session() {
            session.close();
        }
    }

    /// The first different denials of the run, as counted in this process; `true` if there were more.
    pub(crate) fn denials(&self) -> (Vec<Denial>, bool) {
        #[cfg(feature = "egress")]
        if let Some(session) = self.session() {
            return session.denials();
        }
        (Vec::new(), false)
    }

    /// `true` if values are to be replaced in what the guest returns.
    pub(crate) fn has_sent_secrets(&self) -> bool {
        #[cfg(feature = "egress")]
        if let Some(session) = self.session() {
            return session.secrets().matcher().is_some();
        }
        false
    }

    /// A text of the guest in which the values of the run's secrets are replaced.
    pub(crate) fn redact_text(&self, text: String) -> String {
        #[cfg(feature = "egress")]
        if let Some(redacted) = self.session().and_then(|session| session.redact_text(&text)) {
            return redacted;
        }
        text
    }

    /// As [`Self::redact_text`], for bytes.
    pub(crate) fn redact_bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        #[cfg(feature = "egress")]
        if let Some(redacted) = self.session().and_then(|session| session.redact_bytes(&bytes)) {
            return redacted;
        }
        bytes
    }

    /// The text of a JSON value with the values of the run's secrets replaced in its strings and numbers; `None` if it has
    /// none of them.
    #[cfg(feature = "egress")]
    pub(crate) fn redact_json(&self, json: &str) -> Option<String> {
        self.session()?.redact_json(json)
    }

    /// As with the feature `egress`: without it, a run has no secrets.
    #[cfg(not(feature = "egress"))]
    pub(crate) fn redact_json(&self, _json: &str) -> Option<String> {
        None
    }

    /// The run's use of the network, as counted in this process.
    pub(crate) fn usage(&self) -> Option<NetworkUsage> {
        #[cfg(feature = "egress")]
        if let Some(session) = self.session() {
            return Some(session.usage());
        }
        None
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "Off",
            #[cfg(feature = "egress")]
            Self::Local(_) => "Local",
            Self::Remote(_) => "Remote",
        })
    }
}

/// The authority of one engine, which the tests of this process share.
#[cfg(test)]
pub(crate) fn test_authority() -> &'static a2g_capability::Authority {
    static AUTHORITY: std::sync::LazyLock<a2g_capability::Authority> =
        std::sync::LazyLock::new(|| a2g_capability::Authority::for_engine().expect("none of the process"));
    &AUTHORITY
}
