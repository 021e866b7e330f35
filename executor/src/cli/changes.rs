//! A list of file changes as text: deletions and renames first, then changed entries with their differences, then created
//! ones.
//!
//! A path is the last thing on its line, so that no name can imitate what a line says of it.

use super::output::one_line;
use a2g_types::outcome::{ChangeWord, ChangedRange, ShownChange};

/// The sections of a list, in order: the kind, and its words in a heading and in a summary.
const SECTIONS: [(ChangeWord, &str, &str); 5] = [
    (ChangeWord::Deleted, "Deleted", "deletes"),
    (ChangeWord::Renamed, "Renamed", "renames"),
    (ChangeWord::Changed, "Changed", "changes"),
    (ChangeWord::Attributes, "Changed attributes", "changes attributes of"),
    (ChangeWord::Created, "Created", "creates"),
];
/// Indent of a change below its heading, in columns.
const INDENT: usize = 2;
/// Width of the longest kind of entry.
const ENTRY_WIDTH: usize = 6;
/// The gap between two columns.
const GAP: usize = 2;
/// Indent of a difference below its change, in columns.
const DIFF_INDENT: usize = 6;

/// The number of changes of each kind, such as `deletes 5, renames 1`. `left_out` is the number of changes that the list
/// lacks.
pub(super) fn summarize(shown: &[ShownChange], left_out: u64) -> String {
    let known = SECTIONS.iter().filter_map(|(kind, _, verb)| match count(shown, *kind) {
        0 => None,
        count => Some(format!("{verb} {count}")),
    });
    let more = (left_out > 0).then(|| format!("{left_out} more that the list leaves out"));
    let all = known.chain(more).collect::<Vec<_>>();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// The lines of a list, with a heading for each kind of change. A line of a difference can have tabs and control
/// characters.
pub(super) fn lines(shown: &[ShownChange], left_out: u64) -> Vec<String> {
    let mut lines = Vec::new();
    for (kind, heading, _) in SECTIONS {
        let section = shown.iter().filter(|change| change.kind == kind).collect::<Vec<_>>();
        if !section.is_empty() {
            lines.push(format!("{heading} ({})", section.len()));
            push_section(&section, &mut lines);
        }
    }
    if left_out > 0 {
        lines.push(format!("and {left_out} more, which the list leaves out"));
    }
    lines
}

fn count(shown: &[ShownChange], kind: ChangeWord) -> usize {
    shown.iter().filter(|change| change.kind == kind).count()
}

fn push_section(section: &[&ShownChange], lines: &mut Vec<String>) {
    let width = section.iter().map(|change| describe_size(change).len()).max().unwrap_or(0);
    let arrow = INDENT + ENTRY_WIDTH + GAP + width + GAP - "-> ".len();
    for change in section {
        let entry = change.entry.as_str();
        let size = describe_size(change);
        let first = change.from.as_ref().unwrap_or(&change.path);
        let blank = "";
        lines.push(format!("{blank:INDENT$}{entry:ENTRY_WIDTH$}  {size:width$}  {}", one_line(first)));
        let second = change.from.as_ref().map(|_| &change.path);
        for path in second.into_iter().chain(&change.target) {
            lines.push(format!("{blank:arrow$}-> {}", one_line(path)));
        }
        push_difference(change, lines);
    }
}

/// The size and the permissions of a changed entry, before and after.
fn describe_size(change: &ShownChange) -> String {
    let ShownChange { bytes_before, bytes_after, mode_before, mode_after, .. } = change;
    let bytes = match (bytes_before, bytes_after) {
        (Some(before), Some(after)) if before != after => Some(format!("{before} -> {after} bytes")),
        (Some(bytes), Some(_) | None) | (None, Some(bytes)) => Some(format!("{bytes} bytes")),
        (None, None) => None,
    };
    let mode = match (mode_before, mode_after) {
        (Some(before), Some(after)) => Some(format!("mode {before:04o} -> {after:04o}")),
        (Some(mode), None) | (None, Some(mode)) => Some(format!("mode {mode:04o}")),
        (None, None) => None,
    };
    bytes.into_iter().chain(mode).collect::<Vec<_>>().join(", ")
}

fn push_difference(change: &ShownChange, lines: &mut Vec<String>) {
    let ShownChange { diff, ranges, is_diff_cut, .. } = change;
    let blank = "";
    // Not `lines()`, which would hide that a change adds or removes carriage returns.
    let hunks = diff.iter().flat_map(|diff| diff.strip_suffix('\n').unwrap_or(diff).split('\n'));
    lines.extend(hunks.map(|line| format!("{blank:DIFF_INDENT$}{line}")));
    for ChangedRange { start, old_bytes, new_bytes } in ranges {
        lines.push(format!("{blank:DIFF_INDENT$}at byte {start}: {old_bytes} -> {new_bytes} bytes"));
    }
    if *is_diff_cut {
        let is_empty = diff.is_none() && ranges.is_empty();
        let what = if is_empty { "the difference is" } else { "the rest of the difference is" };
        lines.push(format!("{blank:DIFF_INDENT$}({what} left out)"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::outcome::EntryWord;

    fn change(kind: ChangeWord, entry: EntryWord, path: &str) -> ShownChange {
        ShownChange {
            kind,
            entry,
            path: path.to_owned(),
            from: None,
            bytes_before: None,
            bytes_after: None,
            mode_before: None,
            mode_after: None,
            target: None,
            diff: None,
            ranges: Vec::new(),
            is_diff_cut: false,
        }
    }

    fn list() -> Vec<ShownChange> {
        let file = |kind, path| change(kind, EntryWord::File, path);
        vec![
            ShownChange { bytes_after: Some(12), ..file(ChangeWord::Created, "/workspace/new.txt") },
            ShownChange {
                target: Some("../a".to_owned()),
                ..change(ChangeWord::Created, EntryWord::Link, "/workspace/link")
            },
            ShownChange { bytes_before: Some(1204), ..file(ChangeWord::Deleted, "/workspace/old/a.txt") },
            change(ChangeWord::Deleted, EntryWord::Folder, "/workspace/old"),
            ShownChange {
                from: Some("/workspace/a -> b".to_owned()),
                bytes_before: Some(3),
                bytes_after: Some(3),
                ..file(ChangeWord::Renamed, "/workspace/c")
            },
            ShownChange {
                bytes_before: Some(4),
                bytes_after: Some(6),
                mode_before: Some(0o644),
                mode_after: Some(0o755),
                diff: Some("@@ -1 +1 @@\n-old\r\n+\tnew\n".to_owned()),
                ..file(ChangeWord::Changed, "/workspace/d")
            },
            ShownChange {
                bytes_before: Some(9000),
                bytes_after: Some(9000),
                ranges: vec![ChangedRange { start: 1024, old_bytes: 16, new_bytes: 16 }],
                is_diff_cut: true,
                ..file(ChangeWord::Changed, "/workspace/image")
            },
            ShownChange {
                mode_before: Some(0o700),
                mode_after: Some(0o4755),
                ..file(ChangeWord::Attributes, "/workspace/e")
            },
        ]
    }

    #[test]
    fn deletions_and_renames_come_first_and_created_entries_last() {
        let expected = "\
Deleted (2)
  file    1204 bytes  /workspace/old/a.txt
  folder              /workspace/old
Renamed (1)
  file    3 bytes  /workspace/a -> b
                -> /workspace/c
Changed (2)
  file    4 -> 6 bytes, mode 0644 -> 0755  /workspace/d
      @@ -1 +1 @@
      -old\r
      +\tnew
  file    9000 bytes                       /workspace/image
      at byte 1024: 16 -> 16 bytes
      (the rest of the difference is left out)
Changed attributes (1)
  file    mode 0700 -> 4755  /workspace/e
Created (2)
  file    12 bytes  /workspace/new.txt
  link              /workspace/link
                 -> ../a
and 7 more, which the list leaves out";
        assert_eq!(lines(&list(), 7).join("\n"), expected);
        let summary = "deletes 2, renames 1, changes 2, changes attributes of 1, creates 2";
        assert_eq!(summarize(&list(), 0), summary);
        assert_eq!(summarize(&list(), 7), format!("{summary}, 7 more that the list leaves out"));
        assert_eq!(summarize(&[], 0), "none");
    }

    #[test]
    fn no_name_can_begin_a_line_of_its_own() {
        let hostile = "/workspace/a\nDeleted (0)\u{1b}[2J\u{202e}";
        let changes = [
            change(ChangeWord::Deleted, EntryWord::File, hostile),
            ShownChange {
                from: Some(hostile.to_owned()),
                target: Some(hostile.to_owned()),
                ..change(ChangeWord::Renamed, EntryWord::Link, hostile)
            },
        ];
        let shown = lines(&changes, 0);
        assert_eq!(shown.len(), 6, "{shown:?}");
        assert!(!shown.join("").chars().any(char::is_control), "{shown:?}");
        assert!(shown.iter().all(|line| !line.starts_with("Deleted (0)")), "{shown:?}");
    }

    #[test]
    fn a_difference_that_is_left_out_whole_is_not_called_a_rest() {
        let cut = ShownChange { is_diff_cut: true, ..change(ChangeWord::Changed, EntryWord::File, "/a") };
        assert_eq!(lines(&[cut], 0).last().unwrap(), "      (the difference is left out)");
    }
}
