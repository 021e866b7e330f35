//! A request and the redirects after it, under one deadline.

use std::time::{Duration, Instant};

use a2g_guest_sdk::http::Response;
use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{schemars, serde};

use crate::hop::Hop;

/// A redirect that was followed.
#[derive(Debug, Serialize, schemars::JsonSchema)]
#[serde(crate = "serde")]
pub(crate) struct Redirect {
    /// The status that asked for it.
    status: u16,
    /// Where it leads.
    url: String,
}

/// Limits that all requests of a chain share.
pub(crate) struct Chain {
    max_bytes: usize,
    max_redirects: usize,
    timeout: Duration,
    started: Instant,
}

impl Chain {
    /// A chain that begins now.
    pub(crate) fn new(max_bytes: usize, max_redirects: usize, timeout: Duration) -> Self {
        Self { max_bytes, max_redirects, timeout, started: Instant::now() }
    }

    /// Sends the first request and whatever it is redirected to. Gives the last answer, and the
    /// redirects that led there.
    pub(crate) fn follow(&self, ctx: &Context, mut hop: Hop) -> Result<(Response, Vec<Redirect>), ToolError> {
        let mut redirects = Vec::new();
        loop {
            let response = self.send(&hop)?;
            let Some(location) = location(&response).filter(|_| self.max_redirects > 0) else {
                return Ok((response, redirects));
            };
            if redirects.len() == self.max_redirects {
                return Err(too_many(&redirects, self.max_redirects));
            }
            let status = response.status();
            hop = hop.redirect(status, &location)?;
            ctx.log(Level::Debug, format!("{status}, redirected to {}", hop.url()));
            redirects.push(Redirect { status, url: hop.url().to_string() });
        }
    }

    fn send(&self, hop: &Hop) -> Result<Response, ToolError> {
        let left = self.timeout.saturating_sub(self.started.elapsed());
        if left.is_zero() {
            let url = hop.url().as_str();
            let message =
                format!("the redirects to `{url}` took all of {:?}; raise `timeout_seconds`", self.timeout);
            return Err(ToolError::new("network_timeout", message).with_detail(json!({ "url": url })));
        }
        Ok(hop.request()?.max_bytes(self.max_bytes).timeout(left).send()?)
    }
}

/// Target of an answer, if it is a redirect that can be followed without a choice.
fn location(response: &Response) -> Option<String> {
    let leads = matches!(response.status(), 301 | 302 | 303 | 307 | 308);
    let location = response.headers().get("location").filter(|_| leads)?;
    Some(String::from_utf8_lossy(location.as_bytes()).into_owned())
}

fn too_many(redirects: &[Redirect], max_redirects: usize) -> ToolError {
    let last = redirects.last().map_or("", |redirect| redirect.url.as_str());
    let message = format!(
        "`{last}` redirects once more after {max_redirects} redirects; raise `max_redirects` or fetch it"
    );
    ToolError::new("too_many_redirects", message).with_detail(json!({ "redirects": redirects }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_guest_sdk::serde_json::from_value;
    use a2g_guest_sdk::testing::{Answer, Network, TestContext};

    #[test]
    fn redirects_share_one_deadline() {
        let network = Network::answering(|_| Ok(Answer::new(200)));
        let follow = |passed: u64| {
            let arguments = from_value(json!({ "url": "http://a.example" })).unwrap();
            let hop = Hop::first(&arguments).unwrap();
            let mut chain = Chain::new(1, 1, Duration::from_secs(3));
            chain.started = chain.started.checked_sub(Duration::from_secs(passed)).unwrap();
            chain.follow(&TestContext::new(), hop)
        };
        assert_eq!(follow(1).unwrap().0.status(), 200);
        let error = follow(3).unwrap_err();
        assert_eq!((error.code(), network.requests().len()), ("network_timeout", 1));
        assert!(error.message().contains("raise `timeout_seconds`"), "{error}");
    }
}
