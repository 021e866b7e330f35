//! The sections `[ceilings]` and `[[mount]]`: the most that a run can get.

use super::error::{InvalidValueError, invalid};
use super::file;
use super::network::{parse_network_limits, parse_tool_hosts};
use a2g_capability::{Area, Ceilings, Mount, Mounts, Tree};
use a2g_types::limit::{Access, LIMITS, Layer, LimitMap};
use std::path::PathBuf;

/// The default of `ceilings.filesystem_scope`.
const DEFAULT_SCOPE: [&str; 2] = ["/tmp/**", NARROW_DEFAULT_SCOPE];
/// The default where [`DEFAULT_SCOPE`] would let guests reach the executor's own files.
pub(super) const NARROW_DEFAULT_SCOPE: &str = "/workspace/**";

pub(super) fn parse_ceilings(
    ceilings: &file::Ceilings,
    network: &file::Network,
) -> Result<Ceilings, InvalidValueError> {
    let (hosts, network_budgets) = parse_network_limits(network, ceilings.held_requests)?;
    Ok(Ceilings {
        limits: check_ceilings(ceilings)?,
        hard_links: ceilings.hard_links,
        network: ceilings.network_allowed,
        hosts,
        tool_hosts: parse_tool_hosts(network)?,
        network_budgets,
        secrets: Vec::new(),
        access: if ceilings.read_only { Access::ReadOnly } else { Access::ReadWrite },
        effects: ceilings.effects,
        areas: match &ceilings.filesystem_scope {
            Some(patterns) => parse_areas(patterns)?,
            None => parse_areas(&DEFAULT_SCOPE)?,
        },
    })
}

/// The amounts of `[ceilings]`; a missing number has its default.
fn check_ceilings(ceilings: &file::Ceilings) -> Result<LimitMap<u64>, InvalidValueError> {
    let mut limits = LimitMap::defaults();
    for row in &LIMITS {
        if let Some(number) = ceilings.numbers.get(row.limit) {
            let amount = row.parse_amount(Layer::Executor, number);
            limits[row.limit] = amount.map_err(|error| invalid(row.path)(&error))?;
        }
    }
    Ok(limits)
}

pub(super) fn parse_areas(patterns: &[impl AsRef<str>]) -> Result<Vec<Area>, InvalidValueError> {
    let areas = patterns.iter().map(|pattern| Area::parse(pattern.as_ref())).collect::<Result<Vec<_>, _>>();
    areas.map(|areas| areas.concat()).map_err(|error| invalid("ceilings.filesystem_scope")(&error))
}

pub(super) fn parse_mounts(
    tables: Vec<file::Mount>,
    resolve: impl Fn(PathBuf) -> PathBuf,
) -> Result<Mounts, InvalidValueError> {
    let mounts = tables
        .into_iter()
        .map(|mount| Ok(Mount { guest: Tree::parse_path(&mount.guest)?, host: resolve(mount.host) }));
    mounts.collect::<Result<_, _>>().and_then(Mounts::new).map_err(|error| invalid("mount.guest")(&error))
}

#[cfg(test)]
mod tests {
    use crate::tests::parse;
    use a2g_types::limit::FileEffects;

    #[test]
    fn the_time_of_file_effects_is_one_of_three() {
        for (text, effects) in [
            ("", FileEffects::Direct),
            ("[ceilings]\neffects = \"direct\"\n", FileEffects::Direct),
            ("[ceilings]\neffects = \"atomic\"\n", FileEffects::Atomic),
            ("[ceilings]\neffects = \"staged\"\n", FileEffects::Staged),
        ] {
            assert_eq!(parse(text).unwrap().ceilings.effects, effects, "{text}");
        }
        for other in ["\"Atomic\"", "\"later\"", "true"] {
            assert!(parse(&format!("[ceilings]\neffects = {other}\n")).is_err(), "{other}");
        }
    }

    #[test]
    fn requests_are_held_only_if_the_operator_says_how_many() {
        let held = |text: &str| parse(text).map(|config| config.ceilings.network_budgets.held_requests);
        assert_eq!(held(""), Ok(0));
        assert_eq!(held("[ceilings]\nheld_requests = 64\n"), Ok(64));
        assert!(held("[ceilings]\nheld_requests = 65\n").unwrap_err().contains("ceilings.held_requests"));
    }

    #[test]
    fn two_mounts_that_share_a_guest_path_are_refused() {
        let mount = "[[mount]]\nguest = \"/workspace\"\nhost = \"a\"\n";
        assert!(parse(mount).is_ok());
        assert!(parse(&mount.repeat(2)).unwrap_err().contains("/workspace"));
        // Under one scope a path would be in the inner one, and under a wider scope in the outer.
        let nested = format!("{mount}[[mount]]\nguest = \"/workspace/deep\"\nhost = \"b\"\n");
        assert!(parse(&nested).unwrap_err().contains("keep mounts apart"));
    }
}
