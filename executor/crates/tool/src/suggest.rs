//! The capabilities that the examples of a tool need, and how they are written to `tool.toml`.

use crate::edit::{EditedFile, toml};
use a2g_types::limit::ClaimedLimits;
use a2g_types::outcome::Outcome;
use a2g_types::quantity::{MemoryLimit, Timeout};
use a2g_types::tool::DeclaredCapabilities;
use std::path::Path;
use std::time::Duration;

/// The factor between the longest measured run and the suggested timeout: other machines are slower or busy.
const TIMEOUT_FACTOR: u32 = 10;

/// The maximum use of limits over the runs of all examples.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    peak_memory_mb: u64,
    longest: Duration,
}

impl Measured {
    pub(crate) fn of<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Self {
        outcomes.fold(Self::default(), |measured, outcome| Self {
            peak_memory_mb: measured.peak_memory_mb.max(outcome.metrics.memory_used_mb()),
            longest: measured.longest.max(outcome.metrics.wall),
        })
    }

    /// The declared capabilities, with memory and time as measured. Without a run, nothing was measured.
    pub(crate) fn narrow(&self, declared: &DeclaredCapabilities) -> DeclaredCapabilities {
        let memory = MemoryLimit::from_mb(self.peak_memory_mb).ok();
        let seconds = (self.longest * TIMEOUT_FACTOR).as_secs() + 1;
        let timeout = Timeout::from_seconds(seconds).ok().filter(|_| !self.longest.is_zero());
        let measured = ClaimedLimits::default().with(memory).with(timeout);
        DeclaredCapabilities { limits: declared.limits.narrower(&measured), ..declared.clone() }
    }
}

/// The keys of `[capabilities]` that differ, with the new values in TOML.
pub(crate) fn changes(
    declared: &DeclaredCapabilities,
    smallest: &DeclaredCapabilities,
) -> Vec<(&'static str, String)> {
    let mut changes = Vec::new();
    if declared.filesystem != smallest.filesystem {
        changes.push(("filesystem", format!("\"{}\"", smallest.filesystem.as_str())));
    }
    let changed =
        smallest.limits.claimed().filter(|(row, amount)| declared.limits[row.limit] != Some(*amount));
    changes.extend(changed.map(|(row, amount)| (row.key(), row.to_number(amount).to_string())));
    changes
}

/// Writes changes to the `[capabilities]` of a `tool.toml`, and keeps everything else as it is, comments included.
pub(crate) fn write(path: &Path, changes: &[(&'static str, String)]) -> anyhow::Result<()> {
    let mut file = EditedFile::read(path)?;
    for (key, value) in changes {
        let what = format!("set `{key} = {value}` in `[capabilities]`");
        file.change(&what, |text| toml::set(text, &["capabilities", *key], value))?;
    }
    file.write()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suggestion_is_never_wider_than_what_is_declared() {
        let declared = DeclaredCapabilities {
            limits: ClaimedLimits::default()
                .with(MemoryLimit::from_mb(4).ok())
                .with(Timeout::from_seconds(2).ok()),
            ..DeclaredCapabilities::default()
        };
        let measured = Measured { peak_memory_mb: 9, longest: Duration::from_secs(1) };
        assert_eq!(measured.narrow(&declared), declared);
        let measured = Measured { peak_memory_mb: 1, longest: Duration::from_millis(3) };
        let changed = changes(&declared, &measured.narrow(&declared));
        assert_eq!(changed, [("max_memory_mb", "1".to_owned()), ("timeout_seconds", "1".to_owned())]);
        assert_eq!(Measured::default().narrow(&declared), declared);
    }
}
