//! A list of file changes as text: the requests that a commit sends, then deletions, emptied files and renames, then
//! changed entries with their differences, then created ones.
//!
//! A path is the last thing on its line, so that no name can imitate what a line says of it.

use super::output::{note, one_line};
use a2g_types::outcome::{ChangeGroup, FileChanges, ShownChange};
use anyhow::bail;
use serde_json::Value;
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
    let mut lines = request_lines(changes);
    for group in ChangeGroup::VARIANTS {
        if changes.count_all(*group) > 0 {
            lines.push(format!("{} ({})", group.title(), changes.describe_count(*group)));
        }
        let section = changes.shown.iter().filter(|change| change.group() == *group);
        push_section(&section.collect::<Vec<_>>(), &mut lines);
    }
    lines.extend(changes.describe_unseen());
    lines
}

/// The question before a commit. `summary` has the numbers of the changes.
pub(super) fn commit_question(summary: &str, changes: &FileChanges) -> String {
    let warning = if changes.requests.is_empty() { "" } else { " What is sent cannot be taken back." };
    format!("Commit ({summary}): let all of this take effect?{warning}")
}

/// Tells what became of the requests that a run has left, after a decision with this result.
///
/// # Errors
/// If no file was changed, and one of the requests was not answered.
pub(super) fn report_requests(changes: &FileChanges, result: &Value) -> anyhow::Result<()> {
    let Some(message) = result.get("message").and_then(Value::as_str) else { return Ok(()) };
    let is_sent = |end: &Value| end.get("outcome").and_then(Value::as_str) == Some("sent");
    let ends = result.get("requests").and_then(Value::as_array);
    if ends.is_some_and(|ends| ends.iter().all(is_sent)) {
        note(one_line(message));
        return Ok(());
    }
    let text = format!("not all requests were answered, and none is ever sent again: {}", one_line(message));
    // With file changes in force, the decision was carried out.
    if changes.count == 0 {
        bail!("{text}");
    }
    note(text);
    Ok(())
}

/// The requests that a commit sends.
fn request_lines(changes: &FileChanges) -> Vec<String> {
    let count = changes.requests.len();
    let title = (count > 0).then(|| format!("Sends ({count}), once, at the commit; it cannot be undone"));
    let requests = changes.requests.iter().flat_map(|request| {
        let blank = "";
        let target = one_line(format_args!("{} {}", request.method, request.url));
        let content = one_line(request.describe_content());
        let body = request.body.as_ref().map(|body| format!("{blank:DIFF_INDENT$}body: {}", one_line(body)));
        let lines = [format!("{blank:INDENT$}{target}"), format!("{blank:DIFF_INDENT$}{content}")];
        lines.into_iter().chain(body)
    });
    title.into_iter().chain(requests).collect()
}

fn push_section(section: &[&ShownChange], lines: &mut Vec<String>) {
    let describe = |change: &ShownChange| change.facts().join(", ");
    let width = section.iter().map(|change| describe(change).len()).max().unwrap_or(0);
    let arrow = INDENT + ENTRY_WIDTH + GAP + width + GAP - "-> ".len();
    for change in section {
        let entry = change.entry.as_str();
        let facts = describe(change);
        let first = change.from.as_ref().unwrap_or(&change.path);
        let blank = "";
        lines.push(format!("{blank:INDENT$}{entry:ENTRY_WIDTH$}  {facts:width$}  {}", one_line(first)));
        let second = change.from.as_ref().map(|_| &change.path);
        for path in second.into_iter().chain(&change.target) {
            lines.push(format!("{blank:arrow$}-> {}", one_line(path)));
        }
        // Not `lines()`, which would hide that a change adds or removes carriage returns.
        let hunks = change.diff.iter().flat_map(|diff| diff.strip_suffix('\n').unwrap_or(diff).split('\n'));
        lines.extend(hunks.map(|line| format!("{blank:DIFF_INDENT$}{line}")));
        let rights = change.new_rights().into_iter().map(str::to_owned);
        let remarks = rights.chain(change.describe_unread()).chain(change.describe_ranges());
        lines.extend(remarks.map(|remark| format!("{blank:DIFF_INDENT$}({remark})")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::outcome::{ChangeCounts, ChangeWord, ChangedRange, EntryWord, ShownRequest};
    use a2g_types::tool::Digest;

    fn changes(count: u64, shown: Vec<ShownChange>) -> FileChanges {
        FileChanges { shown, ..FileChanges::new(count, Digest([0; 32])) }
    }

    fn list() -> Vec<ShownChange> {
        let file = |kind, path| ShownChange::new(kind, EntryWord::File, path);
        vec![
            ShownChange { bytes_after: Some(12), ..file(ChangeWord::Created, "/workspace/new.txt") },
            ShownChange {
                target: Some("../a".to_owned()),
                ..ShownChange::new(ChangeWord::Created, EntryWord::Link, "/workspace/link")
            },
            ShownChange { bytes_before: Some(1204), ..file(ChangeWord::Deleted, "/workspace/old/a.txt") },
            ShownChange::new(ChangeWord::Deleted, EntryWord::Folder, "/workspace/old"),
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
  file    70 to 0 bytes  /workspace/log
Renamed (1)
  file    3 bytes  /workspace/a -> b
                -> /workspace/c
Changed (2)
  file    4 to 6 bytes, mode 0644 to 0755  /workspace/d
      @@ -1 +1 @@
      -old\r
      +\tnew
      (can be run as a program)
  file    9000 bytes                       /workspace/image
      (binary content not shown)
      (at byte 1024: 16 to 16 bytes)
Other permissions or times (1)
  file    mode 0700 to 4755  /workspace/e
Created (2)
  file    12 bytes  /workspace/new.txt
  link              /workspace/link
                 -> ../a
Not shown: 7 more changes, none of them a deletion, a rename or the loss of most of a file; binary content of 1 file.";
        assert_eq!(lines(&changes(16, list())).join("\n"), expected);
    }

    #[test]
    fn a_heading_has_the_number_of_all_changes_of_its_group() {
        let counts = ChangeCounts { changed: 20, created: 9_980, ..ChangeCounts::default() };
        let shown = vec![ShownChange::new(ChangeWord::Changed, EntryWord::File, "/workspace/a")];
        let counted = FileChanges { counts: Some(counts), ..changes(10_000, shown) };
        let expected = "\
Changed (20, 1 listed)
  file      /workspace/a
Created (9980, none listed)
Not shown: 9999 more changes, none of them a deletion, a rename or the loss of most of a file (changes 19, creates 9980).";
        assert_eq!(lines(&counted).join("\n"), expected);
    }

    #[test]
    fn requests_come_before_the_files() {
        let request = ShownRequest {
            method: "POST".to_owned(),
            url: "https://a.example:443/x".to_owned(),
            fields: vec!["cookie".to_owned()],
            body_bytes: 0,
            body_digest: Digest([1; 32]),
            body: Some("a\u{1b}".to_owned()),
        };
        let deleted = vec![ShownChange::new(ChangeWord::Deleted, EntryWord::Folder, "/workspace/old")];
        let all = FileChanges { requests: vec![request], ..changes(1, deleted) };
        let expected = "\
Sends (1), once, at the commit; it cannot be undone
  POST https://a.example:443/x
      no body; fields cookie
      body: a\\u001b
Deleted (1)
  folder    /workspace/old";
        assert_eq!(lines(&all).join("\n"), expected);
    }

    #[test]
    fn no_name_can_begin_a_line_of_its_own() {
        let hostile = "/workspace/a\nDeleted (0)\u{1b}[2J\u{202e}";
        let hostile_names = vec![
            ShownChange::new(ChangeWord::Deleted, EntryWord::File, hostile),
            ShownChange {
                from: Some(hostile.to_owned()),
                target: Some(hostile.to_owned()),
                ..ShownChange::new(ChangeWord::Renamed, EntryWord::Link, hostile)
            },
        ];
        let shown = lines(&changes(2, hostile_names));
        assert_eq!(shown.len(), 6, "{shown:?}");
        assert!(!shown.join("").chars().any(char::is_control), "{shown:?}");
        assert!(shown.iter().all(|line| !line.starts_with("Deleted (0)")), "{shown:?}");
    }
}
