//! A configuration is understood as a whole or refused with its line and key.

use super::*;

/// A scope that an operator wrote, which is not narrowed as a default is.
pub(super) const REACHES_TMP: &str = "[ceilings]\nfilesystem_scope = [\"/tmp/**\"]\n";

/// Parses a configuration in `/srv/a2g`.
pub(super) fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("executor.toml"), Path::new("/srv/a2g")).map_err(|error| error.to_string())
}

#[test]
fn the_defaults_are_whole() {
    let config = parse("").unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:7420");
    assert_eq!(config.ceilings.limits[Limit::Memory], 256 << 20);
    assert!(!config.ceilings.network);
    let limits = config.ceilings.limits;
    let counts = [Limit::Created, Limit::Handles, Limit::Subscriptions, Limit::RandomBytes];
    assert_eq!(counts.map(|limit| limits[limit]), [10_000, 1024, 128, 16 << 20]);
    assert_eq!(limits[Limit::Written], 1 << 30);
    assert_eq!((limits[Limit::DirectoryEntries], limits.limited(Limit::Fuel)), (1_000_000, None));
    assert_eq!(config.ceilings.hosts.allowed, Some(Vec::new()));
    assert_eq!((config.egress.allowed_addresses, config.egress.hosts.len()), (Vec::new(), 0));
    let network = config.ceilings.network_budgets;
    assert_eq!((network.requests, network.connections), (100, 8));
    assert_eq!((network.sent_bytes, network.received_bytes), (16 << 20, 64 << 20));
    assert_eq!(config.catalog, Path::new("/srv/a2g/tools"));
    assert_eq!((config.risk, config.drain), (RiskThresholds::default(), None));
    let strict =
        parse("[governor]\nconditions_from = 0\ndeny_from = 1\n[executor]\ndrain_seconds = 3\n").unwrap();
    assert_eq!(
        (strict.risk.conditions_from, strict.risk.escalate_from, strict.risk.deny_from),
        (0.0, 0.7, 1.0)
    );
    assert_eq!(strict.drain, Some(Duration::from_secs(3)));
}
