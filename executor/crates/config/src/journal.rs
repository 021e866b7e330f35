//! The section `[journal]`: what is stored, and for how long.

use super::error::{InvalidValueError, invalid};
use super::file;
use super::values::{check_max, check_range};
use a2g_journal::{ArgumentStorage, JournalLimits, Retention};
use a2g_types::quantity::BYTES_PER_MB;
use std::time::Duration;

pub(super) fn parse_journal_limits(journal: &file::Journal) -> Result<JournalLimits, InvalidValueError> {
    // A longer text would be read on a thread that serves others.
    let max_bytes = check_max("journal.max_arguments_bytes", journal.max_arguments_bytes, 256 << 10)?;
    let never = journal.never_store.clone();
    let share = check_range("journal.max_mb_per_agent_hour", journal.max_mb_per_agent_hour, 1, 1 << 20)?;
    Ok(JournalLimits {
        arguments: match journal.arguments {
            file::Arguments::Full => ArgumentStorage::Full { max_bytes, never },
            file::Arguments::Hash => ArgumentStorage::Hash,
        },
        max_bytes_per_agent_hour: share * BYTES_PER_MB,
    })
}

pub(super) fn parse_retention(journal: &file::Journal) -> Result<Retention, InvalidValueError> {
    const MAX_GB: f64 = 1_000_000.0;
    let keep_days =
        journal.keep_days.map(|days| check_range("journal.keep_days", days, 1, 36_500)).transpose()?;
    if journal.max_gb.is_some_and(|gb| !(gb > 0.0 && gb <= MAX_GB)) {
        return Err(invalid("journal.max_gb")(&"has to be more than 0 and at most 1000000"));
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range was checked, and a part of a byte does not matter"
    )]
    let max_bytes = journal.max_gb.map(|gb| (gb * 1e9) as u64);
    Ok(Retention { max_age: keep_days.map(|days| Duration::from_secs(days * 86_400)), max_bytes })
}
