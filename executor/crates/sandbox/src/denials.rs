//! The denials of one execution: counted per path and reason, and capped.

use super::events::{Event, EventSink};
use super::state::{Preopen, PreopenKind};
use a2g_types::limit::{Access, Bound};
use a2g_types::outcome::{Denial, DenialReason, Usage};
use parking_lot::Mutex;

/// The way in which a filesystem call was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// `EACCES`: from this executor for a path outside the grant, otherwise from the host's file permissions.
    Access,
    /// `EPERM` or `ENOTCAPABLE` for a call that changes nothing: its path left its root.
    Looking,
    /// `EPERM` or `ENOTCAPABLE` for a call that would change something: its path left its root, or the root is
    /// read-only.
    Changing,
    /// From this executor, for creating a link.
    Linking,
    /// From this executor, for a file with more than one name.
    HardLink,
}

/// The denials of one execution.
#[derive(Debug, Default)]
pub(super) struct Denials {
    listed: Mutex<DenialList>,
    events: EventSink,
}

#[derive(Debug, Default)]
struct DenialList {
    denied: Vec<Denial>,
    more: bool,
}

/// The number of bytes of a path that a report quotes.
const MAX_PATH_BYTES: usize = 256;

impl Denials {
    pub(super) fn new(events: EventSink) -> Self {
        Self { listed: Mutex::default(), events }
    }

    /// Counts one denial.
    pub(super) fn record(&self, what: &str, reason: DenialReason) {
        self.count(what, reason, |count| count.saturating_add(1));
    }

    /// Takes over a count from another process.
    pub(super) fn merge_count(&self, what: &str, reason: DenialReason, count: u64) {
        self.count(what, reason, |known| known.max(count));
    }

    fn count(&self, what: &str, reason: DenialReason, next: impl FnOnce(u64) -> u64) {
        let mut what: String = what.chars().flat_map(escape_control).collect();
        if what.len() > MAX_PATH_BYTES {
            let end = (0..=MAX_PATH_BYTES).rev().find(|&end| what.is_char_boundary(end)).unwrap_or(0);
            what.truncate(end);
            what.push('…');
        }
        let mut listed = self.listed.lock();
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
        // The server learns counts of a killed child to within a factor of two, at a logarithmic cost.
        if count.is_power_of_two() {
            self.events.emit(|| Event::Denied(what, reason, count));
        }
    }

    /// Records a refused filesystem call: each path with the preopened folder that it starts from, if any.
    pub(super) fn record_refusal(&self, refusal: Refusal, paths: Vec<(Option<&Preopen>, String)>) {
        let outside = |preopen: &Option<&Preopen>| preopen.is_some_and(|p| p.kind == PreopenKind::Outside);
        let any_outside = paths.iter().any(|(preopen, _)| outside(preopen));
        for (preopen, path) in &paths {
            // If one of two paths lies outside, that one was refused and not the other.
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

    /// Records a walked path below a root that is not granted.
    pub(super) fn record_outside_grant(&self, path: &str) {
        self.record(path, DenialReason::OutsideScope);
    }

    /// The denials, and `true` if some did not fit the list.
    pub(super) fn list(&self) -> (Vec<Denial>, bool) {
        let listed = self.listed.lock();
        (listed.denied.clone(), listed.more)
    }
}

/// Leaves its starting folder lexically, links not considered.
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
