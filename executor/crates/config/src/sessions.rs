//! The section `[sessions]`: how many sessions of tools there may be, and for how long each waits for its
//! next turn.

use super::error::InvalidValueError;
use super::file;
use super::values::{check_max, check_range, check_seconds, to_usize};
use a2g_core::run::SessionSettings;
use a2g_types::quantity::BYTES_PER_MB;

/// Maximum of `sessions.max`: each session is a process.
const MAX_SESSIONS: u64 = 10_000;
/// Maximum of `sessions.idle_seconds`: a day.
const MAX_IDLE_SECONDS: u64 = 86_400;

pub(super) fn parse_sessions(sessions: &file::Sessions) -> Result<SessionSettings, InvalidValueError> {
    let max = check_range("sessions.max", sessions.max, 0, MAX_SESSIONS)?;
    let max_per_agent = check_max("sessions.max_per_agent", sessions.max_per_agent, MAX_SESSIONS)?;
    let max_memory_mb = check_max("sessions.max_memory_mb", sessions.max_memory_mb, 1 << 30)?;
    Ok(SessionSettings {
        max: to_usize(max),
        max_per_agent: to_usize(max_per_agent),
        idle: check_seconds("sessions.idle_seconds", sessions.idle_seconds, MAX_IDLE_SECONDS)?,
        max_memory_bytes: max_memory_mb * BYTES_PER_MB,
    })
}

#[cfg(test)]
mod tests {
    use crate::tests::parse;
    use std::time::Duration;

    #[test]
    fn the_section_sets_each_limit() {
        let limits = parse("").unwrap().sessions;
        assert_eq!((limits.max, limits.max_per_agent, limits.max_memory_bytes), (16, 4, 2 << 30));
        assert_eq!(limits.idle, Duration::from_secs(600));
        let section = "[sessions]\nmax = 0\nmax_per_agent = 1\nidle_seconds = 86400\nmax_memory_mb = 1\n";
        let limits = parse(section).unwrap().sessions;
        assert_eq!((limits.max, limits.max_per_agent, limits.max_memory_bytes), (0, 1, 1 << 20));
        assert_eq!(limits.idle, Duration::from_secs(86_400));
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_its_key() {
        for (key, value) in [
            ("max", 10_001),
            ("max_per_agent", 0),
            ("max_per_agent", 10_001),
            ("idle_seconds", 0),
            ("idle_seconds", 86_401),
            ("max_memory_mb", 0),
        ] {
            let refused = parse(&format!("[sessions]\n{key} = {value}\n")).unwrap_err().to_string();
            assert!(refused.contains(&format!("sessions.{key}")), "{refused}");
        }
    }
}
