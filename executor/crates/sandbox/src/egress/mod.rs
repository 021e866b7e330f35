//! The only network access of guests: every byte that a guest exchanges with a network passes through here.
//!
//! ```text
//! guest ─ wasi:http, wasi:sockets ─▶ sandbox ─▶ NetworkBackend ─┬─ inline: the run's NetworkSession
//!                                                               └─ process isolation: a socket pair ─▶ the run's
//!                                                                  NetworkSession, in the server
//!
//! NetworkSession::send: count ─▶ Target (one reading) ─▶ Reach (domains) ─▶ rate ─▶ connection
//!    ─▶ resolve once ─▶ EVERY address checked ─▶ connect to a checked one ─▶ TLS ─▶ HTTP/1.1
//! NetworkSession::look_up: count ─▶ Reach ─▶ rate ─▶ resolve once ─▶ EVERY address checked ─▶ stored for this run
//! NetworkSession::connect: looked up or listed? ─▶ count, rate ─▶ address checked again ─▶ connect ─▶ bytes
//! ```
//! A run reaches only hosts that its grant and the address rules allow, within its budgets, and its connections are
//! closed when it ends. The reported figures are counted here. Redirects are not followed, connections are not reused,
//! proxies are not used, and a `Host` header of the guest is ignored: the checked host is the one that is connected to,
//! named in TLS and written in the request.

mod address;
mod connection;
mod rate;
mod refusal;
mod resolve;
mod session;
mod target;
#[cfg(test)]
mod tests;
mod tunnel;
mod webhook;

pub use address::{AllowedAddress, AllowedAddressError};
pub use connection::{TlsError, client_config};
pub use refusal::{EgressError, NetworkError};
pub use session::NetworkSession;
pub use webhook::{WebhookClient, WebhookUrl};

use a2g_capability::{Domain, Grant};
use a2g_types::clock::Clock;
use a2g_types::ident::AgentDid;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use rate::Rates;
use resolve::{Resolve, SystemResolver};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

/// Maximum size of the head of a request, and of the head of a response, in bytes.
pub const MAX_HEAD_BYTES: usize = 64 << 10;
/// Maximum number of header fields of a response.
const MAX_FIELDS: usize = 128;
/// Maximum number of concurrent name look-ups of the process.
// Each look-up occupies a thread, which may have to wait for a name server.
pub const MAX_LOOKUPS: usize = 16;

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

/// The network of one run.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Network {
    /// The run has no network.
    #[default]
    Off,
    /// Requests are authorized and sent in this process.
    Local(Arc<NetworkSession>),
    /// Requests are forwarded to the process that authorizes them and does the accounting.
    Remote(Arc<dyn NetworkBackend>),
}

impl Network {
    /// The run's session, if the session is in this process.
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
            Self::Local(session) => Some(Arc::<NetworkSession>::clone(session)),
            Self::Remote(backend) => Some(Arc::clone(backend)),
        }
    }

    /// Closes all connections of the run, and refuses new requests.
    pub fn close(&self) {
        if let Some(session) = self.session() {
            session.close();
        }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "Off",
            Self::Local(_) => "Local",
            Self::Remote(_) => "Remote",
        })
    }
}

/// The operator's settings for network access, in addition to the hosts that runs may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressSettings {
    /// Addresses that runs may connect to although they are not public.
    pub allowed_addresses: Vec<AllowedAddress>,
    /// Fixed addresses of names, which are not looked up.
    pub hosts: BTreeMap<Domain, Vec<IpAddr>>,
    /// The timeout for name look-up, connection and TLS handshake together.
    pub connect: Duration,
}

/// The network access of one executor.
pub struct Egress {
    settings: EgressSettings,
    resolver: Arc<dyn Resolve>,
    lookups: Arc<Semaphore>,
    tls: TlsConnector,
    rates: Rates,
    clock: Arc<dyn Clock>,
}

impl Egress {
    /// Sets up network access with the machine's trusted certificates and those of `ca_file`.
    ///
    /// # Ambient Authority
    /// Reads the machine's certificates and `ca_file`, uses the machine's resolver, and opens connections.
    ///
    /// # Errors
    /// [`TlsError`] when `ca_file` cannot be read or holds no certificate.
    pub fn new(
        settings: EgressSettings,
        ca_file: Option<&Path>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TlsError> {
        Ok(Self {
            settings,
            resolver: Arc::new(SystemResolver),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
            tls: connection::connector(ca_file)?,
            rates: Rates::new(clock.monotonic()),
            clock,
        })
    }

    /// The network of one run of `agent` under `grant`.
    #[must_use]
    pub fn open(self: &Arc<Self>, agent: &AgentDid, grant: &Grant) -> Network {
        if grant.network().value {
            Network::Local(NetworkSession::new(Arc::clone(self), agent.clone(), grant))
        } else {
            Network::Off
        }
    }
}

/// The authority of one engine, which the tests of this process share.
#[cfg(test)]
pub(crate) fn test_authority() -> &'static a2g_capability::Authority {
    static AUTHORITY: std::sync::LazyLock<a2g_capability::Authority> =
        std::sync::LazyLock::new(|| a2g_capability::Authority::for_engine().expect("none of the process"));
    &AUTHORITY
}
