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
    #[error(
        "`allowed_domains`: plain http is refused for `{0}`, which the list has with `https://`; use `https`"
    )]
    OnlyHttps(String),
    #[error(
        "`allowed_domains`: the list has `{host}` with `https://`, and not its port {port}; use one that it has"
    )]
    OtherPort { host: String, port: u16 },
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
        let Ok(host) = Host::parse(host) else {
            return match (hosts.blocked.is_empty(), &hosts.allowed) {
                (false, _) => Err(DomainError::Blocked(name)),
                (true, Some(_)) => Err(DomainError::NotAllowed(name)),
                (true, None) => continue,
            };
        };
        let https_port = url.port_or_known_default().filter(|_| url.scheme() == "https");
        let wanted = match https_port {
            Some(port) => HostPattern::Https(host.clone(), port),
            None => HostPattern::Exactly(host.clone()),
        };
        if hosts.blocks(&wanted) {
            return Err(DomainError::Blocked(name));
        }
        if hosts.allows(&wanted) {
            continue;
        }
        let mut allowed = hosts.allowed.iter().flatten();
        let has_https =
            allowed.any(|pattern| matches!(pattern, HostPattern::Https(listed, _) if *listed == host));
        return Err(match https_port {
            Some(port) if has_https => DomainError::OtherPort { host: name, port },
            None if has_https => DomainError::OnlyHttps(name),
            Some(_) | None => DomainError::NotAllowed(name),
        });
    }
    Ok(())
}
