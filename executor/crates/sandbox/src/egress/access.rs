//! The network access of one executor.

use super::address::{AllowedAddress, is_allowed};
use super::connection::{TlsError, connector};
use super::held::HeldRequests;
use super::rate::Rates;
use super::redaction::SentSecrets;
use super::resolve::{Resolve, SystemResolver};
use super::secrets::{RunSecrets, SecretStore};
use super::session::NetworkSession;
use super::{Answers, Network};
use a2g_capability::{Domain, Grant, GrantedSecret, Host, HostPattern, Reach};
use a2g_types::clock::Clock;
use a2g_types::ident::AgentDid;
use a2g_types::limit::{FileEffects, NetworkBudgets};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

/// Maximum number of concurrent name look-ups of the process.
// Each look-up occupies a thread, which may have to wait for a name server.
pub const MAX_LOOKUPS: usize = 16;

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

impl EgressSettings {
    /// An address of a host that these settings refuse, if it is known without a look-up: the host itself, or
    /// a fixed address of its name.
    #[must_use]
    pub fn refused_address(&self, host: &Host, port: u16) -> Option<SocketAddr> {
        let addresses = match host {
            Host::Address(address) => std::slice::from_ref(address),
            Host::Name(name) => self.hosts.get(name).map_or(&[][..], Vec::as_slice),
        };
        let is_refused = |address: &&IpAddr| !is_allowed(**address, Some(port), &self.allowed_addresses);
        addresses.iter().find(is_refused).map(|address| SocketAddr::new(*address, port))
    }
}

/// The network access of one executor.
pub struct Egress {
    pub(super) settings: EgressSettings,
    pub(super) resolver: Arc<dyn Resolve>,
    pub(super) lookups: Arc<Semaphore>,
    pub(super) tls: TlsConnector,
    pub(super) rates: Rates,
    pub(super) clock: Arc<dyn Clock>,
    /// The values of the secrets that requests get; `None` if there are none.
    pub(super) secrets: Option<Arc<dyn SecretStore>>,
    /// The recorded answers that are in place of the network.
    pub(super) answers: Option<Arc<dyn Answers>>,
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
            tls: connector(ca_file)?,
            rates: Rates::new(clock.monotonic()),
            clock,
            secrets: None,
            answers: None,
        })
    }

    /// The same network access, with these answers in place of every connection. A request is authorized as before, and
    /// gets no secret.
    #[must_use]
    pub fn with_answers(self, answers: Arc<dyn Answers>) -> Self {
        Self { answers: Some(answers), ..self }
    }

    /// The network of one run of `agent` under `grant`.
    #[must_use]
    pub fn open(self: &Arc<Self>, agent: &AgentDid, grant: &Grant) -> Network {
        self.open_holding(agent, grant, None, SentSecrets::default())
    }

    /// As [`Self::open`]. The requests that a staged run may not send wait in `held`, as many as the grant allows. `sent`
    /// has the values of secrets that earlier turns of the run's session have sent.
    #[must_use]
    pub fn open_holding(
        self: &Arc<Self>,
        agent: &AgentDid,
        grant: &Grant,
        held: Option<Arc<dyn HeldRequests>>,
        sent: SentSecrets,
    ) -> Network {
        if grant.network().value {
            Network::Local(NetworkSession::new(Arc::clone(self), agent.clone(), grant, held, sent))
        } else {
            Network::Off
        }
    }

    /// A session for requests of an operator's own command, to this host and no other. Its addresses are checked like
    /// those of a guest's requests, and a request gets those of `secrets` that it fits.
    #[must_use]
    pub fn open_for_operator(
        self: &Arc<Self>,
        operator: &AgentDid,
        host: HostPattern,
        secrets: &[GrantedSecret],
        budgets: NetworkBudgets,
    ) -> Arc<NetworkSession> {
        NetworkSession::with_reach(
            Arc::clone(self),
            operator.clone(),
            Reach::for_executor(vec![host]),
            budgets,
            FileEffects::Direct,
            None,
            RunSecrets::new(secrets, SentSecrets::default()),
        )
    }
}
