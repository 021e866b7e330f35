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
    Read,
    /// `EPERM` or `ENOTCAPABLE` for a call that would change something: its path left its root, or the root is
    /// read-only.
    Write,
    /// From this executor, for creating a link.
    Link,
    /// From this executor, for a file with more than one name.
    HardLink,
}

/// The denials of one execution.
#[derive(Debug, Default)]
pub(super) struct Denials {
    list: Mutex<DenialList>,
    events: EventSink,
}

#[derive(Debug, Default)]
struct DenialList {
    denied: Vec<Denial>,
    is_truncated: bool,
}

/// Maximum number of bytes of a path that a report quotes.
const MAX_PATH_BYTES: usize = 256;

impl Denials {
    pub(super) fn new(events: EventSink) -> Self {
        Self { list: Mutex::default(), events }
    }

    /// Counts one denial.
    pub(super) fn record(&self, subject: &str, reason: DenialReason) {
        self.count(subject, reason, |count| count.saturating_add(1));
    }

    /// Merges a count that another process has sent.
    pub(super) fn merge_count(&self, subject: &str, reason: DenialReason, count: u64) {
        self.count(subject, reason, |known| known.max(count));
    }

    fn count(&self, subject: &str, reason: DenialReason, update: impl FnOnce(u64) -> u64) {
        let mut subject: String = subject.chars().flat_map(escape_control).collect();
        if subject.len() > MAX_PATH_BYTES {
            let end = (0..=MAX_PATH_BYTES).rev().find(|&end| subject.is_char_boundary(end)).unwrap_or(0);
            subject.truncate(end);
            subject.push('…');
        }
        let mut list = self.list.lock();
        let known = list.denied.iter().position(|d| d.what == subject && d.reason == reason);
        if known.is_none() && list.denied.len() >= Usage::MAX_DENIALS {
            list.is_truncated = true;
            return;
        }
        let index = known.unwrap_or_else(|| {
            list.denied.push(Denial { what: subject.clone(), reason, set_by: None, count: 0 });
            list.denied.len() - 1
        });
        let Some(denial) = list.denied.get_mut(index) else { return };
        denial.count = update(denial.count);
        let count = denial.count;
        // The server thus knows the counts of a killed child within a factor of two, at a logarithmic number of events.
        if count.is_power_of_two() {
            self.events.emit(|| Event::Denied(subject, reason, count));
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
                (_, Refusal::Link) => DenialReason::Link,
                (_, Refusal::HardLink) => DenialReason::HardLink,
                (
                    Some(PreopenKind::Granted { access: Bound { value: Access::ReadOnly, .. }, .. }),
                    Refusal::Write,
                ) if !escapes(path) => DenialReason::ReadOnly,
                (Some(PreopenKind::Granted { .. }) | None, Refusal::Read | Refusal::Write) => {
                    DenialReason::EscapesRoot
                }
            };
            self.record(&format!("{root}/{path}"), reason);
        }
    }

    /// Records a walked path that the grant of its root does not contain.
    pub(super) fn record_outside_grant(&self, path: &str) {
        self.record(path, DenialReason::OutsideScope);
    }

    /// The denials, and `true` if the list is incomplete.
    pub(super) fn list(&self) -> (Vec<Denial>, bool) {
        let list = self.list.lock();
        (list.denied.clone(), list.is_truncated)
    }
}

/// Returns `true` if the path leaves its starting folder, without regard to links.
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
    fn equal_denials_are_counted_and_their_list_is_capped() {
        let denials = Denials::default();
        denials.record("/etc/passwd", DenialReason::OutsideScope);
        denials.record("/etc/passwd", DenialReason::OutsideScope);
        assert_eq!(denials.list().0.first().map(|d| d.count), Some(2));
        for i in 0..Usage::MAX_DENIALS {
            denials.record(&format!("/{i}"), DenialReason::OutsideScope);
        }
        let (list, is_truncated) = denials.list();
        assert_eq!((list.len(), is_truncated), (Usage::MAX_DENIALS, true));
    }

    #[test]
    fn a_long_path_is_truncated_at_a_character_boundary() {
        let denials = Denials::default();
        denials.record(&"ü\n".repeat(400), DenialReason::EscapesRoot);
        let subject = denials.list().0.remove(0).what;
        assert!(subject.len() <= MAX_PATH_BYTES + 4 && !subject.contains('\n'), "{subject}");
    }
}
