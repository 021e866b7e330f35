//! The difference between the accepted definition of a tool and another one, for the person who decides on it.
//!
//! The texts are the tool's, and may be hostile. Every line is escaped and begins with a prefix of this program, so no
//! text can imitate a line of another part.

use a2g_core::catalog::{Change, ChangeKind};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::visible_text::escape_invisible;
use similar::algorithms::{Capture, Compact, Replace, myers};
use similar::{ChangeTag, DiffOp, group_diff_ops};
use std::time::Duration;

/// The width of a line's text, in characters. With its prefix, a line has at most 80 columns.
const MAX_TEXT_CHARS: usize = 76;
/// The maximum number of lines of a part in a summary.
const MAX_SUMMARY_LINES: usize = 24;
/// The number of unchanged lines shown around changed ones.
const CONTEXT_LINES: usize = 2;
/// The maximum time for finding the shortest difference of two texts. After it, the difference may have more lines than
/// necessary.
const MAX_DIFF_TIME: Duration = Duration::from_secs(1);

/// The extent of a shown difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Everything.
    Full,
    /// At most [`MAX_SUMMARY_LINES`] of each part.
    Summary,
}

/// The changes as lines: the key of each part, followed by its removed and added lines.
pub(crate) fn lines(changes: &[Change], extent: Extent) -> Vec<String> {
    let mut shown = Vec::new();
    for change in changes {
        let Change { part, kind, accepted, offered } = change;
        let remark = match kind {
            ChangeKind::Told => "",
            ChangeKind::Wider => " (wider)",
            ChangeKind::Narrower => " (narrower)",
            ChangeKind::Version => " (needs no approval)",
        };
        shown.push(format!("{part}{remark}"));
        let lines = text_lines(accepted, offered);
        let count = match extent {
            Extent::Full => lines.len(),
            Extent::Summary => MAX_SUMMARY_LINES,
        };
        let hidden = lines.len().saturating_sub(count);
        shown.extend(lines.into_iter().take(count));
        if hidden > 0 {
            shown.push(format!("  … {hidden} more lines"));
        }
    }
    shown
}

/// The changed lines of a text, with a few unchanged lines around them.
pub(crate) fn text_lines(accepted: &str, offered: &str) -> Vec<String> {
    let old = accepted.split_inclusive('\n').collect::<Vec<_>>();
    let new = offered.split_inclusive('\n').collect::<Vec<_>>();
    let mut shown = Vec::new();
    for (nth, group) in group_diff_ops(find_changes(&old, &new), CONTEXT_LINES).iter().enumerate() {
        if nth > 0 {
            shown.push("    ⋮".to_owned());
        }
        for change in group.iter().flat_map(|operation| operation.iter_changes(&*old, &*new)) {
            let sign = match change.tag() {
                ChangeTag::Equal => ' ',
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
            };
            let line = change.value();
            push_line(&mut shown, sign, line.strip_suffix('\n').unwrap_or(line));
        }
    }
    shown
}

/// The operations that make the lines of `new` of those of `old`.
// `TextDiff` would do the same, but brings six algorithms in four forms into the program, which are 0.6 MB.
fn find_changes(old: &[&str], new: &[&str]) -> Vec<DiffOp> {
    let deadline = SystemClock.monotonic() + MAX_DIFF_TIME;
    let mut found = Compact::new(Replace::new(Capture::new()), old, new);
    let Ok(()) = myers::diff_deadline(&mut found, old, 0..old.len(), new, 0..new.len(), Some(deadline));
    found.into_inner().into_inner().into_ops()
}

/// Appends a line of a text, wrapped, with the prefix on each output line.
fn push_line(shown: &mut Vec<String>, sign: char, line: &str) {
    let escaped = escape_invisible(line, usize::MAX);
    let characters = escaped.chars().collect::<Vec<_>>();
    if characters.is_empty() {
        shown.push(format!("  {sign}"));
    }
    for piece in characters.chunks(MAX_TEXT_CHARS) {
        shown.push(format!("  {sign} {}", piece.iter().collect::<String>()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_core::catalog::Part;

    fn told(accepted: &str, offered: &str) -> Change {
        Change {
            part: Part::Description,
            kind: ChangeKind::Told,
            accepted: accepted.to_owned(),
            offered: offered.to_owned(),
        }
    }

    #[test]
    fn only_changed_lines_and_their_neighbours_are_shown() {
        let text = |changed: &str| format!("1\n2\n3\n{changed}\n5\n6\n7");
        let shown = lines(&[told(&text("4"), &text("four"))], Extent::Full);
        let expected = ["description", "    2", "    3", "  - 4", "  + four", "    5", "    6"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn hostile_text_is_escaped_and_stays_in_its_lines() {
        let hostile = "a\u{1b}[2J\u{202e}b\r\narguments\n  - fake\u{200b}\u{7}\u{9b}31m";
        let shown = lines(&[told("a", hostile)], Extent::Full);
        let expected = [
            "description",
            "  - a",
            "  + a\\u{1b}[2J\\u{202e}b\\r",
            "  + arguments",
            "  +   - fake\\u{200b}\\u{7}\\u{9b}31m",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_summary_is_bounded_and_says_so() {
        let long = "x".repeat(8 << 10);
        let full = lines(&[told("", &long)], Extent::Full);
        assert_eq!(full.concat().matches('x').count(), long.len());
        assert!(full.iter().all(|line| line.chars().count() <= 80));
        let summary = lines(&[told("", &long)], Extent::Summary);
        assert_eq!(summary.len(), MAX_SUMMARY_LINES + 2);
        assert!(summary.last().is_some_and(|line| line.ends_with("84 more lines")), "{summary:?}");
    }
}
