//! The file changes of a run, as a person reads them before a decision.
//!
//! ```text
//! deleted, emptied, renamed ─▶ what a commit sends ─▶ what has left the machine
//!                           ─▶ changed ─▶ permissions and times ─▶ created
//! ```
//! A commit loses what comes first, so no entry there is folded or left out; its content is folded below it. Of the other
//! differences, the first short ones are open.
//! A path is whole and has a frame, so that no name can imitate what the page says of it.

use super::page::{byte_size, counted, whole};
use a2g_types::outcome::{ChangeGroup, Contact, EntryWord, FileChanges, Receipt, ShownChange};
use a2g_types::visible_text::escape_invisible_lines;
use maud::{Markup, html};
use std::ops::Range;
use strum::VariantArray as _;

/// Maximum number of differences that are open.
const MAX_OPEN: usize = 3;
/// Maximum number of lines of a difference that is open.
const MAX_OPEN_LINES: usize = 40;
/// Maximum number of elements in the differences of one page. Those beyond it have no colours: a page that another node
/// of the fleet sends has to stay short.
const MAX_ELEMENTS: usize = 2_048;

/// The groups before the data that has left the machine.
const REMOVALS: [ChangeGroup; 3] = [ChangeGroup::Deleted, ChangeGroup::Emptied, ChangeGroup::Renamed];
/// The groups after it.
const OTHERS: [ChangeGroup; 3] = [ChangeGroup::Changed, ChangeGroup::Attributes, ChangeGroup::Created];

/// `true` if a commit loses content.
fn is_loss(group: ChangeGroup) -> bool {
    match group {
        ChangeGroup::Deleted | ChangeGroup::Emptied => true,
        ChangeGroup::Renamed | ChangeGroup::Changed | ChangeGroup::Attributes | ChangeGroup::Created => false,
    }
}

/// `true` if a commit sends something, or may lose content: of changes that nothing tells, each may empty a file.
pub(super) fn may_do_harm(changes: &FileChanges) -> bool {
    let is_lost = |group: &ChangeGroup| is_loss(*group) && changes.count_all(*group) > 0;
    !changes.requests.is_empty() || changes.count_unknown() > 0 || ChangeGroup::VARIANTS.iter().any(is_lost)
}

/// `true` if a difference of the group may be open.
fn may_be_open(group: ChangeGroup) -> bool {
    match group {
        ChangeGroup::Changed | ChangeGroup::Created => true,
        ChangeGroup::Deleted | ChangeGroup::Emptied | ChangeGroup::Renamed | ChangeGroup::Attributes => false,
    }
}

/// The numbers of all changes in one line, the deletions first, even if there are none.
pub(super) fn summary(changes: &FileChanges) -> Markup {
    let unknown = changes.count_unknown();
    let deletions = changes.count_all(ChangeGroup::Deleted);
    let others = ChangeGroup::VARIANTS.iter().filter(|group| **group != ChangeGroup::Deleted);
    let counts = others.map(|group| (*group, changes.count_all(*group)));
    html! {
        p.summary {
            @if unknown == changes.count && changes.requests.is_empty() {
                (counted(changes.count, "change")) ", not listed: only a run under `staged` has a list."
            } @else {
                @if deletions == 0 { "Deletes nothing" }
                @else { strong.bad { "Deletes " (deletions) } }
                @for (group, count) in counts.filter(|(_, count)| *count > 0) {
                    ", "
                    @if is_loss(group) { strong.bad { (group.verb()) " " (count) } }
                    @else { (group.verb()) " " (count) }
                }
                @if let Some(sends) = changes.describe_sending() { ", " strong.bad { (sends) } }
                @if unknown > 0 { ", and makes " (unknown) " more changes that are not listed" }
            }
        }
    }
}

/// All lists, and between them what has left the machine. `loss_note` is beside the headings of what a commit loses.
pub(super) fn lists(receipt: &Receipt, changes: &FileChanges, loss_note: Option<&str>) -> Markup {
    let mut renderer = Renderer { may_open: MAX_OPEN, elements: MAX_ELEMENTS };
    html! {
        @for group in REMOVALS { (renderer.section(group, changes, loss_note)) }
        (requests_part(changes))
        (departures(receipt))
        @for group in OTHERS { (renderer.section(group, changes, loss_note)) }
    }
}

/// The requests that a commit sends.
fn requests_part(changes: &FileChanges) -> Markup {
    html! {
        @if !changes.requests.is_empty() {
            h2 {
                "Sent by a commit (" (changes.requests.len()) ") "
                span.kind { "once, after the files; it cannot be undone" }
            }
            ul.changes {
                @for request in &changes.requests {
                    li {
                        strong.bad { (request.method) } " " code { (whole(&request.url)) }
                        span.kind { " " (request.describe_content()) }
                        @if let Some(body) = &request.body { br; span.kind { "Body: " } code { (whole(body)) } }
                    }
                }
            }
        }
    }
}

/// The data that the run has sent: no decision on its file changes takes it back. Its calls have no network.
fn departures(receipt: &Receipt) -> Markup {
    let usage = &receipt.outcome.usage;
    let network = usage.network_used.as_ref();
    let contacts = network.map_or(&[][..], |network| network.contacted.as_slice());
    html! {
        h2 { "What has left the machine" }
        @if !usage.network.value { p { "Nothing: the run had no network." } }
        @else if contacts.is_empty() { p { "Nothing: the run reached no host." } }
        @else {
            ul.changes {
                @for Contact { authority, address: _, requests, sent_bytes, received_bytes } in contacts {
                    li {
                        strong { (byte_size(*sent_bytes)) } " to " code { (whole(authority)) }
                        span.kind { " in " (counted(*requests, "request")) ", " (byte_size(*received_bytes)) " received" }
                    }
                }
            }
            @if network.is_some_and(|network| network.contacted_truncated) { p { "It reached other hosts as well, which are not listed." } }
            p { "It has left already: discarding the changes does not take it back." }
        }
    }
}

/// The room that one page still has.
struct Renderer {
    /// The number of differences that may still be open.
    may_open: usize,
    /// The number of elements that differences may still have.
    elements: usize,
}

impl Renderer {
    fn section(&mut self, group: ChangeGroup, changes: &FileChanges, loss_note: Option<&str>) -> Markup {
        let listed = changes.shown.iter().filter(|change| change.group() == group).collect::<Vec<_>>();
        html! {
            @if changes.count_all(group) > 0 {
                h2 {
                    (group.title()) " (" (changes.describe_count(group)) ")"
                    @if let Some(note) = loss_note.filter(|_| is_loss(group)) { " " span.kind { (note) } }
                }
                @if !listed.is_empty() {
                    ul.changes { @for change in listed { li { (self.entry(group, change)) } } }
                }
            }
        }
    }

    fn entry(&mut self, group: ChangeGroup, change: &ShownChange) -> Markup {
        html! {
            @if let Some(diff) = find_lines(change) {
                details open[self.is_open(group, diff)] {
                    summary { (head(change)) }
                    (self.difference(diff))
                }
            } @else {
                (head(change))
            }
        }
    }

    /// Takes the place of an open difference; `false` if it is folded.
    fn is_open(&mut self, group: ChangeGroup, diff: &str) -> bool {
        let is_open =
            self.may_open > 0 && may_be_open(group) && diff.split('\n').nth(MAX_OPEN_LINES + 1).is_none();
        self.may_open = self.may_open.saturating_sub(usize::from(is_open));
        is_open
    }

    /// The lines of a difference. Its escapes are those of the list: they have no frame, as they are part of the text.
    fn difference(&mut self, diff: &str) -> Markup {
        let parts = split_parts(diff);
        let left = self.elements.checked_sub(parts.len());
        self.elements = left.unwrap_or(self.elements);
        html! {
            @if left.is_some() {
                pre.diff tabindex="0" {
                    @for (kind, range) in parts {
                        span class=(kind.class()) { (escape_invisible_lines(diff.get(range).unwrap_or_default())) }
                    }
                }
            } @else {
                pre tabindex="0" { (escape_invisible_lines(diff)) }
            }
        }
    }
}

/// The difference of a change, if it has a line: that of an empty file has none.
fn find_lines(change: &ShownChange) -> Option<&str> {
    change.diff.as_deref().filter(|diff| !diff.is_empty())
}

/// The paths of a change, its facts, and what its permissions newly allow.
fn head(change: &ShownChange) -> Markup {
    let ShownChange { entry, path, from, target, .. } = change;
    let lines = find_lines(change).map(|diff| count_lines(diff, change.is_diff_cut));
    let remarks = change.describe_unread().into_iter().chain(change.describe_ranges());
    let facts = lines.into_iter().chain(change.facts()).chain(remarks).collect::<Vec<_>>();
    html! {
        @if *entry != EntryWord::File { (entry.as_str()) " " }
        @if let Some(from) = from { code { (whole(from)) } " becomes " }
        code { (whole(path)) }
        @if let Some(target) = target { " points to " code { (whole(target)) } }
        @if !facts.is_empty() { " " span.kind { (facts.join(", ")) } }
        @for right in change.new_rights() { " " strong.warn { (right) } }
    }
}

/// The number of removed and added lines: `−1 +1`, or `−1 +1 or more`. No removed line is ever left out of a difference.
fn count_lines(diff: &str, is_cut: bool) -> String {
    let count = |sign: char| diff.split('\n').filter(|line| line.starts_with(sign)).count();
    let more = if is_cut { " or more" } else { "" };
    format!("−{} +{}{more}", count('-'), count('+'))
}

/// The kind of a line in a difference, which its first character tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineKind {
    Same,
    Removed,
    Added,
    /// The place of the lines that follow, or a remark.
    Note,
}

impl LineKind {
    fn of(line: &str) -> Self {
        match line.chars().next() {
            Some('-') => Self::Removed,
            Some('+') => Self::Added,
            Some('@' | '\\') => Self::Note,
            Some(_) | None => Self::Same,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Removed => "minus",
            Self::Added => "plus",
            Self::Note => "note",
        }
    }
}

/// The parts of a difference: neighbouring lines of one kind, as places in it.
fn split_parts(diff: &str) -> Vec<(LineKind, Range<usize>)> {
    let mut parts = Vec::<(LineKind, Range<usize>)>::new();
    let mut end = 0;
    for line in diff.split_inclusive('\n') {
        let start = end;
        end += line.len();
        let kind = LineKind::of(line);
        match parts.last_mut() {
            Some((last, range)) if *last == kind => range.end = end,
            Some(_) | None => parts.push((kind, start..end)),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::outcome::{ChangeCounts, ChangeWord, ChangedRange, ShownRequest};
    use a2g_types::tool::Digest;

    fn change(kind: ChangeWord, path: &str) -> ShownChange {
        ShownChange::new(kind, EntryWord::File, path)
    }

    fn of(count: u64, shown: Vec<ShownChange>) -> FileChanges {
        FileChanges { shown, ..FileChanges::new(count, Digest::compute(b"")) }
    }

    fn text(markup: &Markup) -> String {
        let mut text = String::new();
        for token in html5gum::Tokenizer::new(&markup.0) {
            if let html5gum::Token::String(part) = token.unwrap() {
                text.push_str(&String::from_utf8_lossy(&part));
            }
        }
        text
    }

    #[test]
    fn a_commit_that_sends_something_is_no_harmless_one() {
        let request = ShownRequest {
            method: "POST".to_owned(),
            url: "https://a.example:443/x".to_owned(),
            fields: vec!["cookie".to_owned()],
            body_bytes: 3,
            body_digest: Digest::compute(b"one"),
            body: None,
        };
        assert!(!may_do_harm(&of(0, Vec::new())));
        let sends = FileChanges { requests: vec![request], ..of(0, Vec::new()) };
        assert!(may_do_harm(&sends));
        let page = text(&html! { (summary(&sends)) (requests_part(&sends)) });
        let hash = Digest::compute(b"one").to_string();
        for part in ["sends 1 request", "cannot be undone", "https://a.example:443/x", "cookie", &hash] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    #[test]
    fn the_summary_begins_with_what_is_lost() {
        let emptied = ShownChange {
            bytes_before: Some(9),
            bytes_after: Some(0),
            ..change(ChangeWord::Changed, "/workspace/log")
        };
        let shown = vec![
            change(ChangeWord::Deleted, "/workspace/a"),
            change(ChangeWord::Renamed, "/workspace/b"),
            change(ChangeWord::Created, "/workspace/c"),
            emptied,
            change(ChangeWord::Changed, "/workspace/d"),
            change(ChangeWord::Attributes, "/workspace/e"),
        ];
        assert_eq!(
            text(&summary(&of(6, shown))),
            "Deletes 1, empties 1, renames 1, changes 1, sets permissions or times of 1, creates 1"
        );
        let created = of(1, vec![change(ChangeWord::Created, "/workspace/c")]);
        assert_eq!(text(&summary(&created)), "Deletes nothing, creates 1");
        assert!(text(&summary(&of(7, Vec::new()))).starts_with("7 changes, not listed"));
    }

    #[test]
    fn new_files_hide_no_change_of_another_kind() {
        let shown = vec![change(ChangeWord::Changed, "/workspace/a"); 3];
        let counts = ChangeCounts { changed: 20, created: 9_980, ..ChangeCounts::default() };
        let changes = FileChanges { counts: Some(counts), ..of(10_000, shown) };
        assert_eq!(text(&summary(&changes)), "Deletes nothing, changes 20, creates 9980");
        let mut renderer = Renderer { may_open: MAX_OPEN, elements: MAX_ELEMENTS };
        let heading = |renderer: &mut Renderer, group| text(&renderer.section(group, &changes, None));
        assert!(heading(&mut renderer, ChangeGroup::Changed).starts_with("Changed (20, 3 listed)"));
        assert_eq!(heading(&mut renderer, ChangeGroup::Created), "Created (9980, none listed)");
        assert_eq!(heading(&mut renderer, ChangeGroup::Deleted), "");
    }

    #[test]
    fn an_entry_has_its_facts_and_a_warning_of_new_rights() {
        let ranges = vec![ChangedRange { start: 0, old_bytes: 9, new_bytes: 12 }];
        let bytes = ShownChange {
            bytes_after: Some(12),
            mode_after: Some(0o755),
            ranges,
            ..change(ChangeWord::Created, "/workspace/a")
        };
        let shown = head(&bytes);
        let facts = "12 bytes, binary content not shown, at byte 0: 9 to 12 bytes";
        assert_eq!(text(&shown), format!("/workspace/a {facts} can be run as a program"));
        assert!(shown.0.ends_with("<strong class=\"warn\">can be run as a program</strong>"), "{}", shown.0);
    }

    #[test]
    fn only_the_first_short_differences_are_open() {
        let with_diff =
            |diff: String| ShownChange { diff: Some(diff), ..change(ChangeWord::Changed, "/workspace/a") };
        let short = "@@ -1,1 +1,1 @@\n-a\n+b\n".to_owned();
        let long = format!("@@ -1,50 +0,0 @@\n{}", "-a\n".repeat(50));
        let mut renderer = Renderer { may_open: MAX_OPEN, elements: MAX_ELEMENTS };
        let mut is_open = |group, diff: &str| {
            renderer.entry(group, &with_diff(diff.to_owned())).0.contains("<details open")
        };
        for (group, diff) in
            [(ChangeGroup::Deleted, &short), (ChangeGroup::Emptied, &short), (ChangeGroup::Changed, &long)]
        {
            assert!(!is_open(group, diff), "{group:?}");
        }
        assert_eq!([(); 4].map(|()| is_open(ChangeGroup::Changed, &short)), [true, true, true, false]);
    }

    #[test]
    fn what_a_commit_loses_has_a_note_its_old_size_and_its_content() {
        let diff = Some("@@ -1,1 +0,0 @@\n-a\n".to_owned());
        let deleted =
            ShownChange { bytes_before: Some(2), diff, ..change(ChangeWord::Deleted, "/workspace/a") };
        // An empty file has a difference without lines.
        let empty = ShownChange {
            bytes_before: Some(0),
            diff: Some(String::new()),
            ..change(ChangeWord::Deleted, "/workspace/b")
        };
        let created = ShownChange { bytes_after: Some(1_536), ..change(ChangeWord::Created, "/workspace/c") };
        let changes = of(3, vec![deleted, empty, created]);
        let mut renderer = Renderer { may_open: MAX_OPEN, elements: MAX_ELEMENTS };
        let lost = renderer.section(ChangeGroup::Deleted, &changes, Some("cannot be undone"));
        assert_eq!(
            text(&lost),
            "Deleted (2) cannot be undone/workspace/a −1 +0, 2 bytes@@ -1,1 +0,0 @@\n-a\n/workspace/b 0 bytes"
        );
        assert_eq!(lost.0.matches("<details>").count(), 1, "{}", lost.0);
        let other = renderer.section(ChangeGroup::Created, &changes, Some("cannot be undone"));
        assert_eq!(text(&other), "Created (1)/workspace/c 1536 bytes");
        assert!(may_do_harm(&changes));
        assert!(!may_do_harm(&of(1, vec![change(ChangeWord::Created, "/workspace/c")])));
        assert!(may_do_harm(&of(2, vec![change(ChangeWord::Created, "/workspace/c")])));
    }

    #[test]
    fn lines_of_one_kind_are_one_part() {
        let diff = "@@ -1,3 +1,2 @@\n same\n-old\n-older\n+new\n\\ No newline at end of file\n";
        let parts = split_parts(diff);
        let texts = parts.iter().map(|(kind, range)| (*kind, &diff[range.clone()])).collect::<Vec<_>>();
        assert_eq!(
            texts,
            [
                (LineKind::Note, "@@ -1,3 +1,2 @@\n"),
                (LineKind::Same, " same\n"),
                (LineKind::Removed, "-old\n-older\n"),
                (LineKind::Added, "+new\n"),
                (LineKind::Note, "\\ No newline at end of file\n"),
            ]
        );
    }

    /// A page with the longest list that a run may have stays short.
    #[test]
    fn differences_of_very_many_parts_have_no_colours() {
        let diff = "-a\n+b\n".repeat(10_000);
        let mut renderer = Renderer { may_open: MAX_OPEN, elements: MAX_ELEMENTS };
        let shown = renderer.difference(&diff).0;
        assert!(!shown.contains("<span") && shown.len() < diff.len() + 100, "{}", shown.len());
    }
}
