//! The endpoint of an MCP server: its URL, and the requests to it that tools declare.

use crate::allow::check_reachable;
use a2g_capability::{DeclaredRequest, Host, HostPattern, RequestRule, RequestTarget};
use a2g_command::UsageError;
use a2g_command::output::one_line;
use a2g_config::Config;
use a2g_sandbox::egress::EgressSettings;
use std::fmt;
use url::Url;

/// The endpoint of a server that runs can reach.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    url: Url,
    post: DeclaredRequest,
    delete: DeclaredRequest,
    host: Host,
    pattern: HostPattern,
}

impl Endpoint {
    /// Parses an absolute URL over HTTPS. Plain http is accepted for an address that is not public, if the
    /// configuration lets runs connect to it.
    ///
    /// # Errors
    /// [`UsageError`] with the reason.
    pub(super) fn parse(text: &str, config: &Config) -> Result<Self, UsageError> {
        let refused = |reason: &str| UsageError(format!("`{}` {reason}", one_line(text)));
        let url = Url::parse(text).map_err(|_| refused("is no URL such as `https://mcp.example.com/mcp`"))?;
        if !["http", "https"].contains(&url.scheme()) {
            return Err(refused("is no URL such as `https://mcp.example.com/mcp`"));
        }
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(refused("has a user, a password or a fragment: name the endpoint alone"));
        }
        // In a declared request it would stand for more than one path.
        if url.path().contains('*') {
            return Err(refused("has a `*` in its path"));
        }
        let mut base = url.clone();
        base.set_query(None);
        let declare = |method: &str| {
            DeclaredRequest::parse(&format!("{method} {base}")).map_err(|error| refused(&error.to_string()))
        };
        let post = declare("POST")?;
        let rule = RequestRule::from_declared(&post).map_err(|error| refused(&error.to_string()))?;
        let host = Host::parse(post.host()).map_err(|error| refused(&error.to_string()))?;
        let endpoint = Self { delete: declare("DELETE")?, pattern: rule.host_pattern(), url, host, post };
        endpoint.check_http(config)?;
        check_reachable(&endpoint.pattern, &endpoint.host, endpoint.post.port(), config)?;
        Ok(endpoint)
    }

    fn check_http(&self, config: &Config) -> Result<(), UsageError> {
        let without_own = EgressSettings { allowed_addresses: Vec::new(), ..config.egress.clone() };
        if self.is_https() || without_own.refused_address(&self.host, self.post.port()).is_some() {
            return Ok(());
        }
        Err(UsageError(format!(
            "`{self}` is plain http, which everybody on the way can read and change: name the server with `https://`, or \
             by an address of your own that `network.allowed_addresses` of the configuration has"
        )))
    }

    /// The URL.
    pub(super) fn as_str(&self) -> &str {
        self.url.as_str()
    }

    pub(super) fn is_https(&self) -> bool {
        self.post.is_https()
    }

    /// Scheme, host and port.
    pub(super) fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// The pattern that matches the host, and no other.
    pub(super) fn pattern(&self) -> &HostPattern {
        &self.pattern
    }

    /// The request that sends a message.
    pub(super) fn post(&self) -> &DeclaredRequest {
        &self.post
    }

    /// The request that ends a session.
    pub(super) fn delete(&self) -> &DeclaredRequest {
        &self.delete
    }

    /// The request that sends a message, as it is compared with those of a secret.
    pub(super) fn target(&self) -> RequestTarget<'_> {
        self.target_of("POST")
    }

    /// The request that ends a session, as it is compared with those of a secret.
    pub(super) fn delete_target(&self) -> RequestTarget<'_> {
        self.target_of("DELETE")
    }

    fn target_of<'a>(&'a self, method: &'a str) -> RequestTarget<'a> {
        RequestTarget {
            method,
            is_https: self.is_https(),
            host: &self.host,
            port: self.post.port(),
            path: self.url.path(),
        }
    }
}

/// The URL without its query, which may be a credential.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str().split('?').next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn parse(url: &str, text: &str) -> Result<String, String> {
        let config = Config::parse(text, Path::new("executor.toml"), Path::new("/srv/a2g")).unwrap();
        let endpoint = Endpoint::parse(url, &config).map_err(|error| error.to_string())?;
        Ok(format!("{} {} {}", endpoint.post(), endpoint.origin(), endpoint.pattern()))
    }

    #[test]
    fn a_server_is_reached_by_tls_or_at_an_address_of_the_operator() {
        let own = "[network]\nallowed_addresses = [\"127.0.0.1:3001\"]\n";
        for (url, text, expected) in [
            (
                "https://MCP.example.com/mcp?key=1",
                "",
                "POST https://mcp.example.com/mcp https://mcp.example.com",
            ),
            (
                "https://mcp.example.com:8443",
                "",
                "POST https://mcp.example.com:8443/ https://mcp.example.com:8443",
            ),
            ("http://127.0.0.1:3001/mcp", own, "POST http://127.0.0.1:3001/mcp http://127.0.0.1:3001"),
        ] {
            assert!(parse(url, text).unwrap().starts_with(expected), "{url}: {:?}", parse(url, text));
        }
        for (url, text, words) in [
            ("mcp.example.com", "", "is no URL"),
            ("ftp://mcp.example.com", "", "is no URL"),
            ("http://mcp.example.com/mcp", "", "is plain http"),
            ("http://localhost:3001/mcp", own, "is plain http"),
            ("http://127.0.0.1:3001/mcp", "", "`network.allowed_addresses`"),
            ("https://10.1.2.3/mcp", "", "`network.allowed_addresses`"),
            ("https://u:p@mcp.example.com", "", "has a user"),
            ("https://mcp.example.com/*", "", "has a `*`"),
            ("https://mcp.example.com/a//b", "", "empty segment"),
            ("https://mcp.example.com", "[network]\nblocked_domains = [\"mcp.example.com\"]\n", "blocks"),
        ] {
            let error = parse(url, text).unwrap_err();
            assert!(error.contains(words), "{url}: {error}");
        }
    }
}
