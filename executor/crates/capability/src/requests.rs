//! The requests that a run may send, if a layer lists them.

use super::reach::{Host, HostClaims, HostError, HostPattern};
use a2g_types::request::{DeclaredRequest, PlainPath};
use std::collections::BTreeSet;
use std::fmt;

/// A declared request, with its host in the spelling that is compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestRule {
    declared: DeclaredRequest,
    host: Host,
}

/// A request as it is sent.
#[derive(Debug, Clone, Copy)]
pub struct RequestTarget<'a> {
    /// The method.
    pub method: &'a str,
    /// `true` for a request over TLS.
    pub is_https: bool,
    /// The host to which it is sent.
    pub host: &'a Host,
    /// The port of the host.
    pub port: u16,
    /// The path, without the query.
    pub path: &'a str,
}

impl RequestRule {
    /// The rule that allows a declared request.
    ///
    /// # Errors
    /// [`HostError`] if the host of the request is not a valid one.
    pub fn from_declared(declared: &DeclaredRequest) -> Result<Self, HostError> {
        Ok(Self { declared: declared.clone(), host: Host::parse(declared.host())? })
    }

    /// `true` if the rule allows this request, whose path is `path`.
    pub(super) fn matches(&self, target: &RequestTarget<'_>, path: &PlainPath<'_>) -> bool {
        let Self { declared, host } = self;
        target.is_https == declared.is_https()
            && target.host == host
            && target.port == declared.port()
            && declared.matches(target.method, path)
    }

    /// `true` for a request to the host of the rule, at any port and over any protocol.
    pub(super) fn is_at(&self, target: &RequestTarget<'_>) -> bool {
        target.host == &self.host
    }

    /// `true` if there is a request that both rules allow. May be `true` for two that share none.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.host == other.host && self.declared.overlaps(&other.declared)
    }

    /// `true` if the rule allows only requests over TLS.
    pub(super) fn is_https(&self) -> bool {
        self.declared.is_https()
    }

    /// The narrowest pattern that matches the host at the port of the request.
    #[must_use]
    pub fn host_pattern(&self) -> HostPattern {
        let host = self.host.clone();
        if self.declared.is_https() {
            HostPattern::Https(host, self.declared.port())
        } else {
            HostPattern::Exactly(host)
        }
    }
}

impl fmt::Display for RequestRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.declared.fmt(f)
    }
}

impl HostClaims {
    /// The limits of a tool that declares these requests: they may be sent, and only their hosts may be
    /// reached. Without any, both are left to the other layers.
    #[must_use]
    pub fn of_requests(declared: &BTreeSet<DeclaredRequest>) -> Self {
        if declared.is_empty() {
            return Self::default();
        }
        // A request to an invalid host is left out, since none can be sent there. The list is one
        // nevertheless.
        let parse = |declared| RequestRule::from_declared(declared).ok();
        let rules = declared.iter().filter_map(parse).collect::<Vec<_>>();
        let hosts = rules.iter().map(RequestRule::host_pattern).collect();
        Self { allowed: Some(hosts), requests: Some(rules), ..Self::default() }
    }
}
