//! The capabilities that the examples of a tool need, and how they are written to `tool.toml`.

use a2g_core::catalog::ToolManifest;
use a2g_types::limit::ClaimedLimits;
use a2g_types::outcome::Outcome;
use a2g_types::quantity::{MemoryLimit, Timeout};
use a2g_types::tool::DeclaredCapabilities;
use anyhow::{Context as _, bail};
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
pub(crate) fn write(
    path: &Path,
    changes: &[(&'static str, String)],
    expected: &DeclaredCapabilities,
) -> anyhow::Result<()> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("`{}` cannot be read", path.display()))?;
    let by_hand = || {
        format!("`{}` has no table `[capabilities]` that can be changed: change it by hand", path.display())
    };
    let changed = change(&text, changes).with_context(by_hand)?;
    let draft = path.with_extension("toml-draft");
    std::fs::write(&draft, changed).with_context(|| format!("`{}` cannot be written", draft.display()))?;
    // Read as a tool.toml, because a change by lines cannot know every form that TOML has.
    if ToolManifest::read(&draft).ok().is_none_or(|manifest| manifest.capabilities != *expected) {
        let _removed = std::fs::remove_file(&draft);
        bail!(by_hand());
    }
    std::fs::rename(&draft, path).with_context(|| format!("`{}` cannot be written", path.display()))
}

/// The text with these keys of `[capabilities]` set; `None` if it has no such table.
fn change(text: &str, changes: &[(&'static str, String)]) -> Option<String> {
    let mut lines = text.lines().map(str::to_owned).collect::<Vec<_>>();
    let head = lines.iter().position(|line| line.trim_end().starts_with("[capabilities]"))?;
    for (key, value) in changes {
        let start = head + 1;
        let length = lines.iter().skip(start).take_while(|line| !line.starts_with('[')).count();
        let mut table = lines.iter_mut().skip(start).take(length);
        let is_key = |line: &str| line.split_once('=').is_some_and(|(found, _)| found.trim() == *key);
        match table.find(|line| is_key(line)) {
            Some(line) => {
                let comment = line.split_once('#').map(|(_, comment)| format!("  #{comment}"));
                *line = format!("{key} = {value}{}", comment.unwrap_or_default());
            }
            None => lines.insert(start, format!("{key} = {value}")),
        }
    }
    Some(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_keys_of_the_table_change() {
        let text = "name = \"x\"\nmax_memory_mb = 1\n\n[capabilities]  # few\nfilesystem = \"read\" # why\n\
                    max_memory_mb=64\n\n[result]\nfilesystem = 1\n";
        let changes = [
            ("filesystem", "\"none\"".to_owned()),
            ("max_memory_mb", "2".to_owned()),
            ("timeout_seconds", "1".to_owned()),
        ];
        assert_eq!(
            change(text, &changes).unwrap(),
            "name = \"x\"\nmax_memory_mb = 1\n\n[capabilities]  # few\ntimeout_seconds = 1\n\
             filesystem = \"none\"  # why\nmax_memory_mb = 2\n\n[result]\nfilesystem = 1\n"
        );
        assert!(change("capabilities.network = false\n", &changes).is_none());
    }

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
