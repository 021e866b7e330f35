//! A list of file changes as text: deletions, emptied files and renames first, then changed entries with their differences,
//! then created ones.
//!
//! A path is the last thing on its line, so that no name can imitate what a line says of it.

use super::output::one_line;
use a2g_types::outcome::{ChangeGroup, ChangedRange, FileChanges, ReadablePart, ShownChange};
use strum::VariantArray as _;

/// Indent of a change below its heading, in columns.
const INDENT: usize = 2;
/// Width of the longest kind of entry.
const ENTRY_WIDTH: usize = 6;
/// The gap between two columns.
const GAP: usize = 2;
/// Indent of a difference below its change, in columns.
const DIFF_INDENT: usize = 6;

/// The lines of a list, with a heading for each group of changes. A line of a difference can have tabs and control
/// characters.
pub(super) fn lines(changes: &FileChanges) -> Vec<String> {
    let mut lines = Vec::new();
    for group in ChangeGroup::VARIANTS {
        if changes.count_all(*group) > 0 {
            lines.push(format!("{} ({})", group.title(), changes.describe_count(*group)));
        }
        let section = changes.shown.iter().filter(|change| change.group() == *group);
        push_section(&section.collect::<Vec<_>>(), &mut lines);
    }
    let left_out = changes.left_out();
    if left_out > 0 {
        lines.push(format!("and {left_out} more, which the list leaves out"));
    }
    lines
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
    let ShownChange { diff, ranges, .. } = change;
    let blank = "";
    // Not `lines()`, which would hide that a change adds or removes carriage returns.
    let hunks = diff.iter().flat_map(|diff| diff.strip_suffix('\n').unwrap_or(diff).split('\n'));
    lines.extend(hunks.map(|line| format!("{blank:DIFF_INDENT$}{line}")));
    for ChangedRange { start, old_bytes, new_bytes } in ranges {
        lines.push(format!("{blank:DIFF_INDENT$}at byte {start}: {old_bytes} -> {new_bytes} bytes"));
    }
    let remark = match change.readable_part() {
        ReadablePart::Whole => None,
        ReadablePart::Beginning => Some("the rest of the difference is left out"),
        ReadablePart::Places => Some("content not shown: not text"),
        ReadablePart::Nothing => Some("content not shown"),
    };
    lines.extend(remark.map(|remark| format!("{blank:DIFF_INDENT$}({remark})")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::outcome::{ChangeCounts, ChangeWord, EntryWord};
    use a2g_types::tool::Digest;

    fn changes(count: u64, shown: Vec<ShownChange>) -> FileChanges {
        FileChanges { count, digest: Digest([0; 32]), counts: None, shown, decisions: None }
    }

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
                bytes_before: Some(70),
                bytes_after: Some(0),
                ..file(ChangeWord::Changed, "/workspace/log")
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
Emptied (1)
  file    70 -> 0 bytes  /workspace/log
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
      (content not shown: not text)
Other permissions or times (1)
  file    mode 0700 -> 4755  /workspace/e
Created (2)
  file    12 bytes  /workspace/new.txt
  link              /workspace/link
                 -> ../a
and 7 more, which the list leaves out";
        assert_eq!(lines(&changes(16, list())).join("\n"), expected);
    }

    #[test]
    fn a_heading_has_the_number_of_all_changes_of_its_group() {
        let counts = ChangeCounts { changed: 20, created: 9_980, ..ChangeCounts::default() };
        let shown = vec![change(ChangeWord::Changed, EntryWord::File, "/workspace/a")];
        let counted = FileChanges { counts: Some(counts), ..changes(10_000, shown) };
        let expected = "\
Changed (20, 1 listed)
  file      /workspace/a
Created (9980, none listed)
and 9999 more, which the list leaves out";
        assert_eq!(lines(&counted).join("\n"), expected);
    }

    #[test]
    fn no_name_can_begin_a_line_of_its_own() {
        let hostile = "/workspace/a\nDeleted (0)\u{1b}[2J\u{202e}";
        let hostile_names = vec![
            change(ChangeWord::Deleted, EntryWord::File, hostile),
            ShownChange {
                from: Some(hostile.to_owned()),
                target: Some(hostile.to_owned()),
                ..change(ChangeWord::Renamed, EntryWord::Link, hostile)
            },
        ];
        let shown = lines(&changes(2, hostile_names));
        assert_eq!(shown.len(), 6, "{shown:?}");
        assert!(!shown.join("").chars().any(char::is_control), "{shown:?}");
        assert!(shown.iter().all(|line| !line.starts_with("Deleted (0)")), "{shown:?}");
    }

    #[test]
    fn a_content_that_is_not_shown_is_named() {
        let cut = ShownChange { is_diff_cut: true, ..change(ChangeWord::Changed, EntryWord::File, "/a") };
        let text = ShownChange { diff: Some("@@ -1 +1 @@\n-a\n+b\n".to_owned()), ..cut.clone() };
        let range = ChangedRange { start: 0, old_bytes: 1, new_bytes: 1 };
        let bytes = ShownChange { ranges: vec![range], is_diff_cut: false, ..cut.clone() };
        for (unread, expected) in [
            (cut, "      (content not shown)"),
            (text, "      (the rest of the difference is left out)"),
            (bytes, "      (content not shown: not text)"),
        ] {
            assert_eq!(lines(&changes(1, vec![unread])).last().unwrap(), expected);
        }
    }
}
