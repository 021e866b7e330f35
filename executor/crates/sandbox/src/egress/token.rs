//! Token endpoints: requests of the executor itself for the values of its secrets, under the same checks as a guest's
//! requests.

use super::refusal::{EgressError, NetworkError};
use super::secrets::RunSecrets;
use super::session::NetworkSession;
use super::webhook::WebhookUrl;
use super::{Egress, EgressSettings, NetworkBackend as _, Timeouts};
use a2g_capability::Reach;
use a2g_types::ident::AgentDid;
use a2g_types::limit::{FileEffects, NetworkBudgets};
use a2g_types::outcome::DenialReason;
use bytes::Bytes;
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt as _, Full};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Maximum size of the body of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// The network budget of one request in each direction, in bytes: its body, the heads and the TLS handshake.
const MAX_EXCHANGED_BYTES: u64 = 1 << 20;

/// The URL of a token endpoint, over `https`. `Display` and `Debug` show only host and port.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenUrl(WebhookUrl);

impl TokenUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`EgressError`] with the reason why nothing could be posted to the URL, also if it is not over `https`.
    pub fn parse(text: &str) -> Result<Self, EgressError> {
        let url = WebhookUrl::parse(text)?;
        match url.https_host() {
            Some(_) => Ok(Self(url)),
            None => Err(NetworkError::Scheme.into()),
        }
    }

    /// An address of the URL that the settings refuse, if it is known without a look-up.
    #[must_use]
    pub fn refused_address(&self, settings: &EgressSettings) -> Option<SocketAddr> {
        self.0.refused_address(settings)
    }
}

impl fmt::Display for TokenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for TokenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenUrl({self})")
    }
}

/// The answer of a token endpoint.
pub struct TokenAnswer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Zeroizing<Vec<u8>>,
}

/// Asks token endpoints for the executor.
pub struct TokenClient {
    egress: Arc<Egress>,
    owner: AgentDid,
}

impl fmt::Debug for TokenClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenClient").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl TokenClient {
    /// A client with the network access of the executor whose DID is `owner`. Addresses are checked like those of a
    /// guest's requests.
    #[must_use]
    pub fn new(egress: Egress, owner: AgentDid) -> Self {
        Self { egress: Arc::new(egress), owner }
    }

    /// Posts a form, with the value of the field `authorization` if there is one, and returns the answer, whose body has
    /// at most 64 KiB. Redirects are not followed. The caller limits the time.
    ///
    /// # Errors
    /// [`EgressError`] if there is no whole answer.
    pub async fn post_form(
        &self,
        url: &TokenUrl,
        authorization: Option<&str>,
        form: &str,
    ) -> Result<TokenAnswer, EgressError> {
        let host = url.0.https_host().ok_or(NetworkError::Scheme)?;
        let mut head = Request::post(url.0.as_str())
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some(text) = authorization {
            let mut field = HeaderValue::try_from(text).map_err(|_| NetworkError::Request)?;
            field.set_sensitive(true);
            head = head.header(header::AUTHORIZATION, field);
        }
        let sent = Full::new(Bytes::copy_from_slice(form.as_bytes())).map_err(|never| match never {});
        let request = head.body(sent.boxed_unsync()).map_err(|_| NetworkError::Request)?;
        let budgets = NetworkBudgets {
            requests: 1,
            connections: 1,
            sent_bytes: MAX_EXCHANGED_BYTES,
            received_bytes: MAX_EXCHANGED_BYTES,
            ..NetworkBudgets::ZERO
        };
        let session = NetworkSession::with_reach(
            Arc::clone(&self.egress),
            self.owner.clone(),
            Reach::for_executor(vec![host]),
            budgets,
            FileEffects::Direct,
            None,
            RunSecrets::default(),
        );
        let answer = Arc::clone(&session).send(request, Timeouts::default()).await?;
        let status = answer.status().as_u16();
        let mut parts = answer.into_body();
        let mut body = Zeroizing::new(Vec::with_capacity(MAX_ANSWER_BYTES));
        while let Some(frame) = parts.frame().await {
            let part = frame?.into_data().map_err(|_trailers| NetworkError::Response)?;
            if body.len().saturating_add(part.len()) > MAX_ANSWER_BYTES {
                return Err(DenialReason::ReceivedBytes.into());
            }
            body.extend_from_slice(&part);
        }
        session.close();
        Ok(TokenAnswer { status, body })
    }
}
