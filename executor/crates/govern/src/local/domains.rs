//! Checks the domains in an intent against the network part of a policy.
//!
//! A manifest only switches the network on; the executor enforces the list of hosts by the standing policy.
//! A call is refused here early if its arguments have a URL to which requests would be rejected anyway.

use super::risk::urls_in;
use crate::arguments::Arguments;
use a2g_capability::{Host, HostClaims, HostPattern};
use a2g_types::ident::excerpt;

/// The reason why a policy refuses a URL in the arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum DomainError {
    #[error("`blocked_domains`: the domain `{0}` is blocked; use another one")]
    Blocked(String),
    #[error("`allowed_domains`: the domain `{0}` is not in the list; use one that is, or add it")]
    NotAllowed(String),
}

/// Checks every URL in the arguments, except in file content.
///
/// # Errors
/// [`DomainError`] with the host and the necessary change. A blocked domain takes precedence over an allowed one.
pub(super) fn check(hosts: &HostClaims, arguments: &Arguments<'_>) -> Result<(), DomainError> {
    for url in urls_in(arguments) {
        let Some(host) = url.host_str() else { continue };
        let name = excerpt(host);
        // A host that cannot be parsed counts as blocked if any host is blocked, and never as allowed.
        let host = Host::parse(host).ok();
        let is_in = |patterns: &[HostPattern]| {
            host.as_ref().map(|host| patterns.iter().any(|pattern| pattern.matches(host)))
        };
        if is_in(&hosts.blocked).unwrap_or(!hosts.blocked.is_empty()) {
            return Err(DomainError::Blocked(name));
        }
        let Some(allowed) = &hosts.allowed else { continue };
        if is_in(allowed) != Some(true) {
            return Err(DomainError::NotAllowed(name));
        }
    }
    Ok(())
}
