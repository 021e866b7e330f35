//! The domains that an intent names, against the network part of a policy.
//!
//! A manifest can only say that the network is on; which hosts, an executor holds by the standing policy.
//! Here the URLs in the arguments are looked at, so that a call in vain is refused before it runs.

use super::risk::urls_in;
use crate::capability::{Host, HostClaims, HostPattern};
use crate::govern::arguments::Arguments;
use crate::ident::excerpt;

/// Why a policy refuses a URL in the arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum DomainError {
    #[error("`blocked_domains`: the domain `{0}` is blocked; leave it alone")]
    Blocked(String),
    #[error("`allowed_domains`: the domain `{0}` is not in the list; use one that is, or add it")]
    NotAllowed(String),
}

/// Checks every URL outside file content.
///
/// # Errors
/// [`DomainError`] names the host and what to change. A blocked domain wins over an allowed one.
pub(super) fn check(hosts: &HostClaims, arguments: &Arguments<'_>) -> Result<(), DomainError> {
    for url in urls_in(arguments) {
        let Some(host) = url.host_str() else { continue };
        let shown = excerpt(host);
        // A host that cannot be read exactly is among the blocked ones, and not among the allowed ones.
        let read = Host::parse(host).ok();
        let is_in = |patterns: &[HostPattern]| {
            read.as_ref().map(|host| patterns.iter().any(|pattern| pattern.matches(host)))
        };
        if is_in(&hosts.blocked).unwrap_or(!hosts.blocked.is_empty()) {
            return Err(DomainError::Blocked(shown));
        }
        let Some(allowed) = &hosts.allowed else { continue };
        if is_in(allowed) != Some(true) {
            return Err(DomainError::NotAllowed(shown));
        }
    }
    Ok(())
}
