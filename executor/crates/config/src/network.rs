//! The section `[network]`: the hosts that runs may reach, and how.

use super::error::{InvalidValueError, invalid};
use super::file;
use super::values::{check_count, check_max, check_seconds};
use a2g_capability::{Host, HostClaims, HostPattern};
use a2g_sandbox::egress::{AllowedAddress, EgressSettings};
use a2g_types::ident::ToolName;
use a2g_types::limit::NetworkBudgets;
use std::collections::BTreeMap;

/// The hosts that runs may reach, and their network budgets. `held_requests` is that of `[ceilings]`.
pub(super) fn parse_network_limits(
    network: &file::Network,
    held_requests: u64,
) -> Result<(HostClaims, NetworkBudgets), InvalidValueError> {
    let claims = HostClaims {
        allowed: Some(parse_patterns("network.allowed_domains", &network.allowed_domains)?),
        blocked: parse_patterns("network.blocked_domains", &network.blocked_domains)?,
        ..HostClaims::default()
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

fn parse_patterns(key: &'static str, texts: &[String]) -> Result<Vec<HostPattern>, InvalidValueError> {
    let parsed = texts.iter().map(|text| HostPattern::parse(text)).collect::<Result<Vec<_>, _>>();
    parsed.map_err(|error| invalid(key)(&error))
}

/// The hosts of the tools that have their own.
pub(super) fn parse_tool_hosts(
    network: &file::Network,
) -> Result<BTreeMap<ToolName, Vec<HostPattern>>, InvalidValueError> {
    const KEY: &str = "network.tools";
    let parse = |(tool, hosts): (&String, &Vec<String>)| -> Result<_, InvalidValueError> {
        let name = ToolName::parse(tool).map_err(|error| invalid(KEY)(&error))?;
        Ok((name, parse_patterns(KEY, hosts)?))
    };
    network.tools.iter().map(parse).collect()
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

#[cfg(test)]
mod tests {
    use crate::tests::parse;

    #[test]
    fn a_tool_may_have_hosts_of_its_own() {
        let config = parse(
            "[network]\nallowed_domains = [\"a.com\"]\n[network.tools]\nweather = [\"https://b.com:8443\"]\nnone = []\n",
        )
        .unwrap();
        let hosts = config.ceilings.tool_hosts.iter().map(|(tool, hosts)| {
            let patterns = hosts.iter().map(ToString::to_string).collect::<Vec<_>>();
            (tool.to_string(), patterns.join(" "))
        });
        let expected = [("none", ""), ("weather", "https://b.com:8443")];
        assert_eq!(
            hosts.collect::<Vec<_>>(),
            expected.map(|(tool, hosts)| (tool.to_owned(), hosts.to_owned()))
        );
        for text in ["\"../a\" = []", "weather = [\"http://b.com\"]", "weather = [\"https://*.b.com\"]"] {
            let error = parse(&format!("[network.tools]\n{text}\n")).unwrap_err();
            assert!(error.contains("`network.tools`"), "{text}: {error}");
        }
    }
}
