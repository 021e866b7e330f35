//! The one way out: every byte that a guest exchanges with a network goes through here.
//!
//! ```text
//! guest ─ wasi:http, wasi:sockets ─▶ sandbox ─▶ Carrier ─┬─ inline: the run's Line
//!                                                        └─ process ring: a socket pair ─▶ the run's
//!                                                           Line, in the server
//!
//! Line::send: count ─▶ Target (one reading) ─▶ Reach (domains) ─▶ rate ─▶ connection
//!    ─▶ resolve once ─▶ EVERY address checked ─▶ connect to a checked one ─▶ TLS ─▶ HTTP/1.1
//! Line::look_up: count ─▶ Reach ─▶ rate ─▶ resolve once ─▶ EVERY address checked ─▶ kept for this run
//! Line::connect: was it found, or is it listed? ─▶ count, rate ─▶ address checked again ─▶ connect ─▶ bytes
//! ```
//! It guarantees that a run reaches only whom its grant and the address rules allow, within its
//! budgets, and that its connections are closed when it ends. What is reported was counted here. It
//! follows no redirect, keeps no connection for another request, asks no proxy, and believes no `Host`
//! header: whoever is checked is who is connected to, named in TLS and written in the request.

mod address;
mod connection;
mod courier;
mod line;
mod rate;
mod refusal;
mod resolve;
mod target;
#[cfg(test)]
pub(crate) mod tests;
mod tunnel;

pub use address::{Lifted, LiftedError};
pub use connection::{TlsError, client_config};
pub use courier::Courier;
pub use line::Line;
pub use refusal::{EgressError, NetworkError};

use crate::capability::{Domain, Grant};
use crate::clock::Clock;
use crate::ident::AgentDid;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use rate::Rates;
use resolve::{Resolve, System};
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

/// The most bytes of the head of a request, and of the head of an answer.
pub const MAX_HEAD_BYTES: usize = 64 << 10;
/// The most header fields of an answer.
const MAX_FIELDS: usize = 128;
/// How many names are looked up at once: each takes a thread, which may have to wait for a name server.
pub const MAX_LOOKUPS: usize = 16;

/// The body of a request or of an answer.
pub type Body = UnsyncBoxBody<Bytes, EgressError>;
/// An answer on its way.
pub type Sending = Pin<Box<dyn Future<Output = Result<http::Response<Body>, EgressError>> + Send>>;

/// The addresses of a name on their way.
pub type LookingUp = Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, EgressError>> + Send>>;
/// A connection on its way: what the other side sends, piece by piece. It ends when this is dropped.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Body, EgressError>> + Send>>;

/// How long a guest wants to wait. The executor's own limits hold as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Patience {
    /// For a connection.
    pub connect: Option<Duration>,
    /// For the head of the answer, once the connection stands.
    pub first_byte: Option<Duration>,
    /// For each further part of the answer.
    pub between_bytes: Option<Duration>,
}

/// Takes what a guest asks of the network to where it is judged and done.
pub trait Carrier: Send + Sync {
    /// Sends one request.
    fn send(self: Arc<Self>, request: http::Request<Body>, patience: Patience) -> Sending;

    /// Looks a name up. What it gives may be connected to.
    fn look_up(self: Arc<Self>, name: String) -> LookingUp;

    /// Connects over TCP, and sends `upload`, whose end ends that direction only. Its next piece is asked for
    /// when the piece before is with the kernel that sends it; it is dropped when no more is taken.
    fn connect(self: Arc<Self>, address: SocketAddr, upload: Body) -> Connecting;
}

/// The network of one run.
#[derive(Clone, Default)]
pub enum Network {
    /// It has none.
    #[default]
    Off,
    /// Requests are judged and sent in this process.
    Here(Arc<Line>),
    /// Requests are carried to the process that judges them, which also keeps the books.
    Carried(Arc<dyn Carrier>),
}

impl Network {
    /// The run's line, when this process has it.
    #[must_use]
    pub fn line(&self) -> Option<&Arc<Line>> {
        match self {
            Self::Here(line) => Some(line),
            Self::Off | Self::Carried(_) => None,
        }
    }

    /// Who takes the run's requests, when it has a network.
    #[must_use]
    pub fn carrier(&self) -> Option<Arc<dyn Carrier>> {
        match self {
            Self::Off => None,
            Self::Here(line) => Some(Arc::<Line>::clone(line)),
            Self::Carried(carrier) => Some(Arc::clone(carrier)),
        }
    }

    /// Closes all connections of the run, which is over.
    pub fn close(&self) {
        if let Some(line) = self.line() {
            line.close();
        }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "Off",
            Self::Here(_) => "Here",
            Self::Carried(_) => "Carried",
        })
    }
}

/// What the operator says about the way out, beside whom runs may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressSettings {
    /// Addresses that runs may connect to although they are not public.
    pub lifted: Vec<Lifted>,
    /// Names that are not looked up, with their addresses.
    pub hosts: BTreeMap<Domain, Vec<IpAddr>>,
    /// The longest that a name may take to be resolved, connected to and greeted by TLS.
    pub connect: Duration,
}

/// The way out of one executor.
pub struct Egress {
    settings: EgressSettings,
    resolver: Arc<dyn Resolve>,
    lookups: Arc<Semaphore>,
    tls: TlsConnector,
    rates: Rates,
    clock: Arc<dyn Clock>,
}

impl Egress {
    /// The way out, with the certificates that the machine trusts, and those of `ca_file` beside them.
    ///
    /// # Ambient Authority
    /// Reads the machine's certificates and `ca_file`, asks the machine's resolver, and connects.
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
            resolver: Arc::new(System),
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
            Network::Here(Line::new(Arc::clone(self), agent.clone(), grant))
        } else {
            Network::Off
        }
    }
}
