//! What a guest reached for without having it: counted, capped, and never trusted for more.

use super::state::{Preopen, PreopenKind};
use super::witness::{Event, Witness};
use crate::limit::{Access, Bound};
use crate::outcome::{Denial, DenialReason, Usage};
use std::sync::{Mutex, PoisonError};

/// How a filesystem call was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// `EACCES`: ours for what lies outside, otherwise the host's own file permissions.
    Access,
    /// `EPERM` or `ENOTCAPABLE` for a call that only looks: it led out of its root.
    Looking,
    /// `EPERM` or `ENOTCAPABLE` for a call that would change something: it led out of its root, or
    /// the root is read-only.
    Changing,
    /// Ours, for making a link where none may be made.
    Linking,
    /// Ours, for a file with another name.
    HardLink,
}

/// The denials of one execution.
#[derive(Debug, Default)]
pub(super) struct Denials {
    listed: Mutex<Listed>,
    witness: Witness,
}

#[derive(Debug, Default)]
struct Listed {
    denied: Vec<Denial>,
    more: bool,
}

/// How much of a path a report quotes, in bytes.
const MAX_PATH_BYTES: usize = 256;

impl Denials {
    pub(super) fn new(witness: Witness) -> Self {
        Self { listed: Mutex::default(), witness }
    }

    /// Counts one denial.
    pub(super) fn record(&self, what: &str, reason: DenialReason) {
        self.count(what, reason, |count| count.saturating_add(1));
    }

    /// Takes over a count that was made elsewhere.
    pub(super) fn counted(&self, what: &str, reason: DenialReason, count: u64) {
        self.count(what, reason, |known| known.max(count));
    }

    fn count(&self, what: &str, reason: DenialReason, next: impl FnOnce(u64) -> u64) {
        let mut what: String = what.chars().flat_map(escape_control).collect();
        if what.len() > MAX_PATH_BYTES {
            let end = (0..=MAX_PATH_BYTES).rev().find(|&end| what.is_char_boundary(end)).unwrap_or(0);
            what.truncate(end);
            what.push('…');
        }
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let known = listed.denied.iter().position(|d| d.what == what && d.reason == reason);
        if known.is_none() && listed.denied.len() >= Usage::MAX_DENIALS {
            listed.more = true;
            return;
        }
        let index = known.unwrap_or_else(|| {
            listed.denied.push(Denial { what: what.clone(), reason, count: 0 });
            listed.denied.len() - 1
        });
        let Some(denial) = listed.denied.get_mut(index) else { return };
        denial.count = next(denial.count);
        let count = denial.count;
        if count.is_power_of_two() {
            self.witness.see(|| Event::Denied(what, reason, count));
        }
    }

    /// Records a refused filesystem call: each path with the preopened folder that it starts from,
    /// when it starts from one.
    pub(super) fn refused(&self, refusal: Refusal, paths: Vec<(Option<&Preopen>, String)>) {
        let outside = |preopen: &Option<&Preopen>| preopen.is_some_and(|p| p.kind == PreopenKind::Outside);
        let any_outside = paths.iter().any(|(preopen, _)| outside(preopen));
        for (preopen, path) in &paths {
            // When one path of two lies outside, that one was refused and not the other.
            if any_outside && !outside(preopen) {
                continue;
            }
            let root = preopen.map_or("…", |preopen| preopen.path.trim_end_matches('/'));
            let reason = match (preopen.map(|preopen| &preopen.kind), refusal) {
                (Some(PreopenKind::Outside), _) => DenialReason::OutsideScope,
                (_, Refusal::Access) => DenialReason::HostPermissions,
                (_, Refusal::Linking) => DenialReason::Link,
                (_, Refusal::HardLink) => DenialReason::HardLink,
                (
                    Some(PreopenKind::Granted { access: Bound { value: Access::ReadOnly, .. }, .. }),
                    Refusal::Changing,
                ) if !escapes(path) => DenialReason::ReadOnly,
                (Some(PreopenKind::Granted { .. }) | None, Refusal::Looking | Refusal::Changing) => {
                    DenialReason::EscapesRoot
                }
            };
            self.record(&format!("{root}/{path}"), reason);
        }
    }

    /// Records that a path which was walked below a root is not granted.
    pub(super) fn not_granted(&self, path: &str) {
        self.record(path, DenialReason::OutsideScope);
    }

    /// The list, and whether there was more.
    pub(super) fn list(&self) -> (Vec<Denial>, bool) {
        let listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        (listed.denied.clone(), listed.more)
    }
}

/// Whether a path leaves the folder that it starts from by its letters alone.
fn escapes(path: &str) -> bool {
    let mut depth = 0i32;
    path.starts_with('/')
        || path.split('/').any(|component| {
            depth += match component {
                "" | "." => 0,
                ".." => -1,
                _name => 1,
            };
            depth < 0
        })
}

fn escape_control(c: char) -> Vec<char> {
    if c.is_control() { c.escape_default().collect() } else { vec![c] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_denials_are_counted_and_different_ones_capped() {
        let denials = Denials::default();
        denials.record("/etc/passwd", DenialReason::OutsideScope);
        denials.record("/etc/passwd", DenialReason::OutsideScope);
        assert_eq!(denials.list().0.first().map(|d| d.count), Some(2));
        for i in 0..Usage::MAX_DENIALS {
            denials.record(&format!("/{i}"), DenialReason::OutsideScope);
        }
        let (listed, more) = denials.list();
        assert_eq!((listed.len(), more), (Usage::MAX_DENIALS, true));
    }

    #[test]
    fn a_long_path_is_cut_at_a_character() {
        let denials = Denials::default();
        denials.record(&"ü\n".repeat(400), DenialReason::EscapesRoot);
        let what = denials.list().0.remove(0).what;
        assert!(what.len() <= MAX_PATH_BYTES + 4 && !what.contains('\n'), "{what}");
    }
}
