//! Webhooks: requests of the executor itself to addresses of callers and operators, under the same checks as a guest's
//! requests.

use super::refusal::{EgressError, NetworkError};
use super::secrets::RunSecrets;
use super::session::NetworkSession;
use super::target::Target;
use super::{Egress, EgressSettings, NetworkBackend as _, Timeouts};
use a2g_capability::{HostPattern, Reach};
use a2g_types::ident::AgentDid;
use a2g_types::limit::{FileEffects, NetworkBudgets};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request};
use http_body_util::{BodyExt as _, Full};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The timeout for the head of a response.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
/// The network budget of one message beyond its own length, in bytes. The body of the response is not read.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// The URL of a webhook: absolute, with the scheme `http` or `https`, and without a user. `Display` and `Debug` show only
/// scheme, host and port, because the path of a webhook is often a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookUrl {
    text: String,
    target: Target,
}

impl WebhookUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`EgressError`] with the reason why nothing could be posted to the URL.
    pub fn parse(text: &str) -> Result<Self, EgressError> {
        let uri = text.parse::<http::Uri>().map_err(|_| NetworkError::Request)?;
        Ok(Self { text: text.to_owned(), target: Target::parse(&uri)? })
    }

    /// The whole URL.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The pattern that matches the host of the URL, and no other host.
    #[must_use]
    pub fn host(&self) -> HostPattern {
        HostPattern::Exactly(self.target.host.clone())
    }

    /// The pattern of host and port if the URL is over `https`.
    pub(super) fn https_host(&self) -> Option<HostPattern> {
        self.target.tls.then(|| self.target.pattern())
    }

    /// An address of the URL that the settings refuse, if it is known without a look-up: the host itself, or a fixed
    /// address of its name.
    #[must_use]
    pub fn refused_address(&self, settings: &EgressSettings) -> Option<SocketAddr> {
        settings.refused_address(&self.target.host, self.target.port)
    }
}

impl fmt::Display for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}

impl fmt::Debug for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebhookUrl({})", self.target)
    }
}

/// Posts to hosts that the operator lists, and to no others.
pub struct WebhookClient {
    egress: Arc<Egress>,
    reach: Reach,
}

impl WebhookClient {
    /// A client that may post to `hosts`. Their addresses are checked like those of a guest's requests.
    #[must_use]
    pub fn new(egress: Arc<Egress>, hosts: Vec<HostPattern>) -> Self {
        Self { egress, reach: Reach::for_executor(hosts) }
    }

    /// Checks that a URL names a listed host. The host's addresses are looked up and checked with every message.
    ///
    /// # Errors
    /// [`EgressError`] with the reason why nothing would be posted to the URL.
    pub fn check(&self, url: &str) -> Result<(), EgressError> {
        let WebhookUrl { target, .. } = WebhookUrl::parse(url)?;
        let checked = self.reach.check_pattern(&target.pattern());
        checked.map_err(|_| a2g_types::outcome::DenialReason::DomainNotAllowed.into())
    }

    /// Posts JSON and returns the status of the response. Redirects are not followed.
    ///
    /// # Errors
    /// [`EgressError`] when the message was not sent or no response arrived.
    pub async fn post(
        &self,
        owner: &AgentDid,
        url: &str,
        headers: &[(&'static str, String)],
        body: String,
    ) -> Result<u16, EgressError> {
        let sent_bytes = MAX_ANSWER_BYTES.saturating_add(u64::try_from(body.len()).unwrap_or(u64::MAX));
        let budgets = NetworkBudgets {
            requests: 1,
            connections: 1,
            sent_bytes,
            received_bytes: MAX_ANSWER_BYTES,
            ..NetworkBudgets::ZERO
        };
        let mut request = Request::post(url).header(http::header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            let mut value = HeaderValue::try_from(value).map_err(|_| NetworkError::Request)?;
            // Headers carry the caller's token for its webhook, or a signature.
            value.set_sensitive(true);
            request = request.header(HeaderName::from_static(name), value);
        }
        let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
        let request = request.body(body).map_err(|_| NetworkError::Request)?;
        let session = NetworkSession::with_reach(
            Arc::clone(&self.egress),
            owner.clone(),
            self.reach.clone(),
            budgets,
            FileEffects::Direct,
            None,
            RunSecrets::default(),
        );
        let timeouts = Timeouts { connect: None, first_byte: Some(FIRST_BYTE_TIMEOUT), between_bytes: None };
        let answer = Arc::clone(&session).send(request, timeouts).await;
        let status = answer.map(|answer| answer.status().as_u16());
        session.close();
        status
    }
}
