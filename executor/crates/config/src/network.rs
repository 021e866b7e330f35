//! The section `[network]`: the hosts that runs may reach, and how.

use super::error::{InvalidValueError, invalid};
use super::file;
use super::values::{check_count, check_max, check_seconds};
use a2g_capability::{Host, HostClaims, HostPattern};
use a2g_sandbox::egress::{AllowedAddress, EgressSettings};
use a2g_types::limit::NetworkBudgets;

/// The hosts that runs may reach, and their network budgets. `held_requests` is that of `[ceilings]`.
pub(super) fn parse_network_limits(
    network: &file::Network,
    held_requests: u64,
) -> Result<(HostClaims, NetworkBudgets), InvalidValueError> {
    let parse_patterns = |key: &'static str, texts: &[String]| {
        let parsed = texts.iter().map(|text| HostPattern::parse(text)).collect::<Result<Vec<_>, _>>();
        parsed.map_err(|error| invalid(key)(&error))
    };
    let claims = HostClaims {
        allowed: Some(parse_patterns("network.allowed_domains", &network.allowed_domains)?),
        blocked: parse_patterns("network.blocked_domains", &network.blocked_domains)?,
        requests_per_minute: None,
    };
    let budgets = NetworkBudgets {
        requests: check_count("network.max_requests", network.max_requests, 1, NetworkBudgets::MAX_REQUESTS)?,
        connections: check_count(
            "network.max_connections",
            network.max_connections,
            1,
            NetworkBudgets::MAX_CONNECTIONS,
        )?,
        sent_bytes: check_max("network.max_sent_bytes", network.max_sent_bytes, NetworkBudgets::MAX_BYTES)?,
        received_bytes: check_max(
            "network.max_received_bytes",
            network.max_received_bytes,
            NetworkBudgets::MAX_BYTES,
        )?,
        held_requests: check_count(
            "ceilings.held_requests",
            held_requests,
            0,
            NetworkBudgets::MAX_HELD_REQUESTS,
        )?,
    };
    Ok((claims, budgets))
}

pub(super) fn parse_egress(network: &file::Network) -> Result<EgressSettings, InvalidValueError> {
    let allowed_addresses = network.allowed_addresses.iter().map(|text| text.parse::<AllowedAddress>());
    let hosts = network.hosts.iter().map(|(name, addresses)| match Host::parse(name) {
        Ok(Host::Name(name)) if !addresses.is_empty() => Ok((name, addresses.clone())),
        Ok(_) => Err(invalid("network.hosts")(&"has to map each name to at least one address")),
        Err(error) => Err(invalid("network.hosts")(&error)),
    });
    Ok(EgressSettings {
        allowed_addresses: allowed_addresses
            .collect::<Result<_, _>>()
            .map_err(|e| invalid("network.allowed_addresses")(&e))?,
        hosts: hosts.collect::<Result<_, _>>()?,
        connect: check_seconds("network.connect_seconds", network.connect_seconds, 3600)?,
    })
}
