//! The section `[effects]`: how long file changes are kept that wait for a decision or can be undone, and how many.

use super::error::InvalidValueError;
use super::file;
use super::values::{check_max, check_range};
use a2g_core::run::EffectsSettings;
use a2g_types::quantity::BYTES_PER_MB;
use std::time::Duration;

/// Maximum of `effects.decide_within_hours`: a year.
const MAX_HOURS: u64 = 24 * 366;

pub(super) fn parse_effects(effects: &file::Effects) -> Result<EffectsSettings, InvalidValueError> {
    let hours = check_max("effects.decide_within_hours", effects.decide_within_hours.into(), MAX_HOURS)?;
    let days = check_range("effects.keep_days", effects.keep_days.into(), 0, 366)?;
    let max_mb = check_max("effects.max_mb", effects.max_mb, 1 << 30)?;
    Ok(EffectsSettings {
        decide_within: Duration::from_secs(hours * 3_600),
        keep: Duration::from_secs(days * 86_400),
        max_bytes: max_mb * BYTES_PER_MB,
    })
}

#[cfg(test)]
mod tests {
    use crate::tests::parse;
    use std::time::Duration;

    #[test]
    fn changes_are_kept_for_a_day_unless_the_section_says_otherwise() {
        let limits = parse("").unwrap().effects_settings;
        let day = Duration::from_secs(86_400);
        assert_eq!((limits.decide_within, limits.keep, limits.max_bytes), (day, day, 4 << 30));
        let section = "[effects]\ndecide_within_hours = 8784\nkeep_days = 0\nmax_mb = 1\n";
        let limits = parse(section).unwrap().effects_settings;
        assert_eq!(
            (limits.decide_within, limits.keep, limits.max_bytes),
            (366 * day, Duration::ZERO, 1 << 20)
        );
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_its_key() {
        for (key, value) in [
            ("decide_within_hours", 0),
            ("decide_within_hours", 8_785),
            ("keep_days", 367),
            ("max_mb", 0),
            ("max_mb", (1_u64 << 30) + 1),
        ] {
            let refused = parse(&format!("[effects]\n{key} = {value}\n")).unwrap_err().to_string();
            assert!(refused.contains(&format!("effects.{key}")), "{refused}");
        }
    }
}
