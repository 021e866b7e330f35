//! Parsing the target of a request, once.

use super::refusal::{EgressError, NetworkError};
use a2g_capability::{Host, HostPattern};
use a2g_types::outcome::DenialReason;
use http::Uri;
use http::uri::Scheme;
use std::fmt;

/// The target of a request. The same value is checked, resolved, connected to, named in TLS and written as `Host`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) tls: bool,
    pub(super) host: Host,
    pub(super) port: u16,
}

impl Target {
    /// Parses the URI of a request.
    pub(super) fn parse(uri: &Uri) -> Result<Self, EgressError> {
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(_) | None => return Err(NetworkError::Scheme.into()),
        };
        let authority = uri.authority().ok_or(DenialReason::RequestAuthority)?;
        // `Uri` does not split the authority, because it ignores the part before an `@`: `user@host` is refused
        // instead.
        let (host, port) = match authority.as_str().rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let number = port.parse::<u16>().ok().filter(|n| *n != 0 && n.to_string() == port);
                (host, number.ok_or(DenialReason::RequestAuthority)?)
            }
            Some(_) | None => (authority.as_str(), if tls { 443 } else { 80 }),
        };
        let host = Host::parse(host).map_err(|_| DenialReason::RequestAuthority)?;
        Ok(Self { tls, host, port })
    }

    /// The pattern that matches the target, and as little else as a pattern can.
    pub(super) fn pattern(&self) -> HostPattern {
        let host = self.host.clone();
        if self.tls { HostPattern::Https(host, self.port) } else { HostPattern::Exactly(host) }
    }

    /// The value of `Host`, with the port unless it is the scheme's default.
    pub(super) fn host_header(&self) -> String {
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => self.host.to_string(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", if self.tls { "https" } else { "http" }, self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, EgressError> {
        Target::parse(&text.parse().unwrap()).map(|target| format!("{target} {}", target.host_header()))
    }

    #[test]
    fn a_target_is_parsed_and_formatted() {
        for (text, target) in [
            ("https://Example.com/x", "https://example.com:443 example.com"),
            ("http://example.com./", "http://example.com:80 example.com"),
            ("https://example.com:443/", "https://example.com:443 example.com"),
            ("http://example.com:443/", "http://example.com:443 example.com:443"),
            ("http://[2606:2800::1]/", "http://[2606:2800::1]:80 [2606:2800::1]"),
            ("http://[2606:2800::1]:8080/", "http://[2606:2800::1]:8080 [2606:2800::1]:8080"),
            ("http://127.0.0.1:8080/", "http://127.0.0.1:8080 127.0.0.1:8080"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(target), "{text}");
        }
    }

    #[test]
    fn ambiguous_targets_are_denied() {
        for text in [
            "http://allowed.example@evil.example/",
            "http://allowed.example:80@evil.example/",
            "http://@evil.example/",
            "http://user:@evil.example/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://127.1:8080/",
            "http://[::ffff:7f00:1]/",
            "http://evil.example:0/",
            "http://evil.example:080/",
            "http://evil.example:+80/",
            "http://evil.example:/",
            "http://evil.example../",
        ] {
            assert_eq!(parse(text), Err(DenialReason::RequestAuthority.into()), "{text}");
        }
        for (scheme, text) in [("ftp", "ftp://example.com/"), ("none", "/path")] {
            assert_eq!(parse(text), Err(NetworkError::Scheme.into()), "{scheme}");
        }
    }
}
