//! The file changes of a run, as a person reads them before a decision.
//!
//! ```text
//! deleted, emptied, renamed ─▶ what has left the machine ─▶ changed ─▶ permissions and times ─▶ created
//! ```
//! A commit loses what comes first, so no entry there is folded or left out; its content is folded below it. Of the other
//! differences, the first short ones are open.
//! A path is whole and has a frame, so that no name can imitate what the page says of it.

use super::page::{byte_size, counted, whole};
use a2g_types::outcome::{
    ChangeGroup, ChangedRange, Contact, EntryWord, FileChanges, ReadablePart, Receipt, ShownChange,
};
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
/// Maximum number of changed ranges that are shown of a file that is no text.
const MAX_RANGES: usize = 8;

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

/// `true` if a commit may lose content: of changes that nothing tells, each may empty a file.
pub(super) fn may_lose_content(changes: &FileChanges) -> bool {
    let is_lost = |group: &ChangeGroup| is_loss(*group) && changes.count_all(*group) > 0;
    changes.count_unknown() > 0 || ChangeGroup::VARIANTS.iter().any(is_lost)
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
            @if unknown == changes.count {
                (counted(changes.count, "change")) ", not listed: only a run under `staged` has a list."
            } @else {
                @if deletions == 0 { "Deletes nothing" }
                @else { strong.bad { "Deletes " (deletions) } }
                @for (group, count) in counts.filter(|(_, count)| *count > 0) {
                    ", "
                    @if is_loss(group) { strong.bad { (group.verb()) " " (count) } }
                    @else { (group.verb()) " " (count) }
                }
                @if unknown > 0 { ", and makes " (unknown) " more changes that are not listed" }
            }
        }
    }
}

/// The part of the changes that the page does not show, as a sentence; `None` if it shows all.
pub(super) fn describe_unseen(changes: &FileChanges) -> Option<String> {
    let left_out = changes.left_out();
    let unread = changes.shown.iter().filter(|change| change.readable_part() != ReadablePart::Whole).count();
    let entries = (left_out > 0).then(|| {
        let more = counted(left_out, "more change");
        format!("{more}, none of them a deletion or a rename{}", describe_left_out(changes))
    });
    let contents = (unread > 0).then(|| match unread {
        1 => "all or a part of the content of 1 file".to_owned(),
        _ => format!("all or a part of the contents of {unread} files"),
    });
    let unseen = entries.into_iter().chain(contents).collect::<Vec<_>>();
    (!unseen.is_empty()).then(|| format!("Not shown here: {}.", unseen.join("; ")))
}

/// The numbers of the changes that are not listed, such as ` (changes 17, creates 8983)`; empty if nothing tells them.
fn describe_left_out(changes: &FileChanges) -> String {
    let left_out = |group| changes.count_all(group).saturating_sub(changes.count_shown(group));
    let counts = ChangeGroup::VARIANTS.iter().map(|group| (group.verb(), left_out(*group)));
    let known = counts.filter(|(_, count)| *count > 0).map(|(verb, count)| format!("{verb} {count}"));
    let parts = known.collect::<Vec<_>>();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

/// All lists, and between them what has left the machine. `loss_note` is beside the headings of what a commit loses.
pub(super) fn lists(receipt: &Receipt, changes: &FileChanges, loss_note: Option<&str>) -> Markup {
    let mut renderer = Renderer { may_open: MAX_OPEN, elements: MAX_ELEMENTS };
    html! {
        @for group in REMOVALS { (renderer.section(group, changes, loss_note)) }
        (departures(receipt))
        @for group in OTHERS { (renderer.section(group, changes, loss_note)) }
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
                    (unread_part(change))
                }
            } @else {
                (head(change))
                (unread_part(change))
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

/// The paths of a change, its size and its permissions.
fn head(change: &ShownChange) -> Markup {
    let ShownChange { entry, path, from, mode_before, mode_after, target, .. } = change;
    let facts = describe_size(change);
    html! {
        @if *entry != EntryWord::File { (entry.as_str()) " " }
        @if let Some(from) = from { code { (whole(from)) } " becomes " }
        code { (whole(path)) }
        @if let Some(target) = target { " points to " code { (whole(target)) } }
        @if !facts.is_empty() { " " span.kind { (facts) } }
        (mode_part(*entry, *mode_before, *mode_after))
    }
}

/// The remark on a content that is not shown, or not to its end.
fn unread_part(change: &ShownChange) -> Markup {
    match change.readable_part() {
        ReadablePart::Whole => html! {},
        ReadablePart::Beginning => html! { p.hint { "A part of this difference is not shown." } },
        ReadablePart::Places => html! {
            span.kind { ", content not shown: not text (" (describe_ranges(&change.ranges)) ")" }
        },
        ReadablePart::Nothing => html! { span.kind { ", content not shown" } },
    }
}

/// The number of removed and added lines, and the size, before and after: `−1 +1, 23 → 23 bytes` or `was 9 bytes`.
fn describe_size(change: &ShownChange) -> String {
    let ShownChange { bytes_before, bytes_after, is_diff_cut, .. } = change;
    let lines = find_lines(change).map(|diff| {
        let count = |sign: char| diff.split('\n').filter(|line| line.starts_with(sign)).count();
        // No removed line is ever left out of a difference.
        let more = if *is_diff_cut { " or more" } else { "" };
        format!("−{} +{}{more}", count('-'), count('+'))
    });
    let size = match (bytes_before.map(byte_size), bytes_after.map(byte_size)) {
        (Some(before), Some(after)) => {
            let unit = after.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
            // A unit that both have is named once.
            Some(format!("{} → {after}", before.strip_suffix(unit).unwrap_or(&before)))
        }
        (Some(before), None) => Some(format!("was {before}")),
        (None, after) => after,
    };
    lines.into_iter().chain(size).collect::<Vec<_>>().join(", ")
}

/// The permissions, if they change, and what they newly allow.
fn mode_part(entry: EntryWord, before: Option<u32>, after: Option<u32>) -> Markup {
    let is_new = |bits: u32| {
        after.is_some_and(|after| after & bits != 0) && before.is_none_or(|before| before & bits == 0)
    };
    html! {
        @if let (Some(before), Some(after)) = (before, after) {
            span.kind { ", permissions " (format!("{before:03o} → {after:03o}")) }
        }
        @if entry == EntryWord::File && is_new(0o111) { " " strong.warn { "can be run as a program" } }
        @if is_new(0o002) { " " strong.warn { "everybody on the machine may write it" } }
    }
}

fn describe_ranges(ranges: &[ChangedRange]) -> String {
    let describe = |ChangedRange { start, old_bytes, new_bytes }: &ChangedRange| {
        format!("at byte {start} {old_bytes} → {new_bytes}")
    };
    let shown = ranges.iter().take(MAX_RANGES).map(describe).collect::<Vec<_>>().join("; ");
    match ranges.len().checked_sub(MAX_RANGES) {
        None | Some(0) => shown,
        Some(more) => format!("{shown}; and {}", counted(more, "more range")),
    }
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
    use a2g_types::outcome::{ChangeCounts, ChangeWord};
    use a2g_types::tool::Digest;

    fn change(kind: ChangeWord, path: &str) -> ShownChange {
        ShownChange {
            kind,
            entry: EntryWord::File,
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

    fn of(count: u64, shown: Vec<ShownChange>) -> FileChanges {
        FileChanges { count, digest: Digest::compute(b""), counts: None, shown, decisions: None }
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
        assert_eq!(describe_unseen(&created), None);
        assert!(text(&summary(&of(7, Vec::new()))).starts_with("7 changes, not listed"));
    }

    #[test]
    fn what_a_list_lacks_is_said() {
        let mut shown = vec![change(ChangeWord::Deleted, "/workspace/a"); 5];
        shown.extend(vec![change(ChangeWord::Changed, "/workspace/b"); 995]);
        let mut changes = of(10_000, shown);
        assert_eq!(
            text(&summary(&changes)),
            "Deletes 5, changes 995, and makes 9000 more changes that are not listed"
        );
        for change in changes.shown.iter_mut().skip(998) {
            change.is_diff_cut = true;
        }
        let unseen = describe_unseen(&changes).unwrap();
        assert_eq!(
            unseen,
            "Not shown here: 9000 more changes, none of them a deletion or a rename; all or a part of the contents of 2 files."
        );
    }

    #[test]
    fn new_files_hide_no_change_of_another_kind() {
        let shown = vec![change(ChangeWord::Changed, "/workspace/a"); 3];
        let counts = ChangeCounts { changed: 20, created: 9_980, ..ChangeCounts::default() };
        let changes = FileChanges { counts: Some(counts), ..of(10_000, shown) };
        assert_eq!(text(&summary(&changes)), "Deletes nothing, changes 20, creates 9980");
        assert_eq!(
            describe_unseen(&changes).unwrap(),
            "Not shown here: 9997 more changes, none of them a deletion or a rename (changes 17, creates 9980)."
        );
        let mut renderer = Renderer { may_open: MAX_OPEN, elements: MAX_ELEMENTS };
        let heading = |renderer: &mut Renderer, group| text(&renderer.section(group, &changes, None));
        assert!(heading(&mut renderer, ChangeGroup::Changed).starts_with("Changed (20, 3 listed)"));
        assert_eq!(heading(&mut renderer, ChangeGroup::Created), "Created (9980, none listed)");
        assert_eq!(heading(&mut renderer, ChangeGroup::Deleted), "");
    }

    #[test]
    fn a_content_that_is_not_text_is_named_and_counted() {
        let range = ChangedRange { start: 0, old_bytes: 9, new_bytes: 12 };
        let bytes = ShownChange { ranges: vec![range], ..change(ChangeWord::Changed, "/workspace/a") };
        let cut = ShownChange { is_diff_cut: true, ..change(ChangeWord::Created, "/workspace/b") };
        let mut renderer = Renderer { may_open: MAX_OPEN, elements: MAX_ELEMENTS };
        for (change, remark) in
            [(&bytes, ", content not shown: not text (at byte 0 9 → 12)"), (&cut, ", content not shown")]
        {
            let shown = text(&renderer.entry(change.group(), change));
            assert!(shown.ends_with(remark), "{shown}");
        }
        let unseen = describe_unseen(&of(2, vec![bytes, cut])).unwrap();
        assert_eq!(unseen, "Not shown here: all or a part of the contents of 2 files.");
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
            "Deleted (2) cannot be undone/workspace/a −1 +0, was 2 bytes@@ -1,1 +0,0 @@\n-a\n/workspace/b was 0 bytes"
        );
        assert_eq!(lost.0.matches("<details>").count(), 1, "{}", lost.0);
        let other = renderer.section(ChangeGroup::Created, &changes, Some("cannot be undone"));
        assert_eq!(text(&other), "Created (1)/workspace/c 1.5 KB");
        assert!(may_lose_content(&changes));
        assert!(!may_lose_content(&of(1, vec![change(ChangeWord::Created, "/workspace/c")])));
        assert!(may_lose_content(&of(2, vec![change(ChangeWord::Created, "/workspace/c")])));
    }

    #[test]
    fn both_sizes_of_a_change_are_shown() {
        for (before, after, shown) in [
            (23, 23, "23 → 23 bytes"),
            (1, 23, "1 byte → 23 bytes"),
            (23, 1, "23 bytes → 1 byte"),
            (1_536, 2_048, "1.5 → 2 KB"),
            (9, 2_048, "9 bytes → 2 KB"),
        ] {
            let changed = ShownChange {
                bytes_before: Some(before),
                bytes_after: Some(after),
                ..change(ChangeWord::Changed, "/workspace/a")
            };
            assert_eq!(describe_size(&changed), shown);
        }
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
