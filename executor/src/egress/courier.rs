//! What the executor itself posts to other people's addresses, under the same checks as a guest's requests.

use super::line::Line;
use super::refusal::{EgressError, NetworkError};
use super::target::Target;
use super::{Carrier as _, Egress, Patience};
use crate::capability::{HostPattern, Reach};
use crate::ident::AgentDid;
use crate::limit::NetworkBudgets;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request};
use http_body_util::{BodyExt as _, Full};
use std::sync::Arc;
use std::time::Duration;

/// The longest that an answer may take to begin.
const FIRST_BYTE: Duration = Duration::from_secs(10);
/// What one message may take of the network, beside its own length. Answers are not read.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// Posts to hosts that the operator lists, and to nobody else.
pub struct Courier {
    egress: Arc<Egress>,
    reach: Reach,
}

impl Courier {
    /// One that may post to `hosts`, whose addresses are checked as a guest's are.
    #[must_use]
    pub fn new(egress: Arc<Egress>, hosts: Vec<HostPattern>) -> Self {
        Self { egress, reach: Reach::of_the_operator(hosts) }
    }

    /// Whether a URL names a listed host. What the host's addresses are is asked with every message.
    ///
    /// # Errors
    /// [`EgressError`] says why nothing would be posted there.
    pub fn check(&self, url: &str) -> Result<(), EgressError> {
        let uri = url.parse::<http::Uri>().map_err(|_| NetworkError::Request)?;
        let target = Target::of(&uri)?;
        self.reach.check(&target.host).map_err(|_| crate::outcome::DenialReason::DomainNotAllowed.into())
    }

    /// Posts JSON, and gives the status of the answer. No redirect is followed.
    ///
    /// # Errors
    /// [`EgressError`] when it was not sent or not answered.
    pub async fn post(
        &self,
        owner: &AgentDid,
        url: &str,
        headers: &[(&'static str, String)],
        body: String,
    ) -> Result<u16, EgressError> {
        let most = MAX_ANSWER_BYTES.saturating_add(u64::try_from(body.len()).unwrap_or(u64::MAX));
        let budgets = NetworkBudgets {
            requests: 1,
            connections: 1,
            sent_bytes: most,
            received_bytes: MAX_ANSWER_BYTES,
        };
        let mut request = Request::post(url).header(http::header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            let mut value = HeaderValue::try_from(value).map_err(|_| NetworkError::Request)?;
            value.set_sensitive(true);
            request = request.header(HeaderName::from_static(name), value);
        }
        let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
        let request = request.body(body).map_err(|_| NetworkError::Request)?;
        let line =
            Line::of_the_executor(Arc::clone(&self.egress), owner.clone(), self.reach.clone(), budgets);
        let patience = Patience { connect: None, first_byte: Some(FIRST_BYTE), between_bytes: None };
        let answer = Arc::clone(&line).send(request, patience).await;
        let status = answer.map(|answer| answer.status().as_u16());
        line.close();
        status
    }
}
