//! The list of a run's changes, as people read it before they decide.
//!
//! The deletions, moves and emptied files come first and are always complete: a run that makes more of them than a list has
//! room for cannot be staged. Of the other changes, the first ones are listed, and the texts of their differences as far as there is
//! room. What is escaped here is safe to show anywhere.

use super::roots::RunRoots;
use a2g_overlay::{
    Change, ChangeKind, DiffBudget, Difference, Effects, EntryKind, EntryPath, LowerRoot, NewContent,
    NewEntry, Upper,
};
use a2g_types::clock::Clock;
use a2g_types::outcome::{
    ChangeCounts, ChangeWord, ChangedRange, EntryWord, MAX_SHOWN_BYTES, MAX_SHOWN_CHANGES, ShownChange,
    loses_most,
};
use a2g_types::visible_text::escape_invisible_lines;
use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use std::cmp::Reverse;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The maximum number of deletions, moves and emptied files of a staged run.
const MAX_REMOVALS: usize = 10_000;
/// The maximum length of their paths, in bytes.
const MAX_REMOVAL_BYTES: usize = 1 << 20;
/// The maximum length of the difference of one file, in bytes.
const MAX_DIFF_BYTES: usize = 16 << 10;
/// The maximum time for all differences of one list.
const MAX_DIFF_TIME: Duration = Duration::from_secs(2);
/// The length of an entry beside its texts, in bytes, as a report has it.
const ENTRY_BYTES: usize = 96;

/// The numbers of all changes by group.
pub(super) fn count(effects: &Effects) -> ChangeCounts {
    let mut counts = ChangeCounts::default();
    for change in &effects.changes {
        let counted = match &change.kind {
            ChangeKind::Deleted { .. } => &mut counts.deleted,
            ChangeKind::Renamed { .. } => &mut counts.renamed,
            ChangeKind::Changed { .. } if is_removal(change) => &mut counts.emptied,
            ChangeKind::Changed { .. } => &mut counts.changed,
            ChangeKind::Attributes { .. } => &mut counts.attributes,
            ChangeKind::Created { .. } => &mut counts.created,
        };
        *counted = counted.saturating_add(1);
    }
    counts
}

/// Lists the changes.
///
/// # Errors
/// The reason why there is no complete list of these, as a clause.
pub(super) fn list(
    effects: &Effects,
    roots: &RunRoots,
    upper: &Upper,
    clock: &dyn Clock,
) -> Result<Vec<ShownChange>, String> {
    let mut list = List {
        roots,
        upper,
        shown: Vec::new(),
        removal_bytes: 0,
        other_bytes: 0,
        deadline: clock.monotonic() + MAX_DIFF_TIME,
        clock,
    };
    let (mut removals, mut others) =
        effects.changes.iter().partition::<Vec<_>, _>(|change| is_removal(change));
    // The list of changes has the deletions first, then the moves; of emptied files, the one that loses most is first.
    removals.sort_by_key(|change| emptied_bytes(change).map(Reverse));
    // Changes of what was there before are more than what is new.
    others.sort_by_key(|change| match &change.kind {
        ChangeKind::Changed { .. } | ChangeKind::Deleted { .. } | ChangeKind::Renamed { .. } => 0,
        ChangeKind::Attributes { .. } => 1,
        ChangeKind::Created { .. } => 2,
    });
    removals.iter().try_for_each(|change| list.add_removal(change))?;
    // Once there is no room for one, the rest would be a random choice.
    let listed = others.iter().take_while(|change| list.add_other(change)).count();
    // All entries come before any difference: no content hides another entry. What is removed has its say in the entry.
    let shown_others = others.iter().take(listed);
    let others_first = (removals.len()..).zip(shown_others).chain((0..).zip(&removals));
    for (index, change) in others_first {
        list.add_difference(index, change);
    }
    Ok(list.shown)
}

/// `true` for a change after which an original, or most of its content, is not where it was.
fn is_removal(change: &Change) -> bool {
    match &change.kind {
        ChangeKind::Deleted { .. } | ChangeKind::Renamed { .. } => true,
        ChangeKind::Changed { before, content_before: _, new } => loses_most(before.size, new.size),
        ChangeKind::Created { .. } | ChangeKind::Attributes { .. } => false,
    }
}

/// The bytes that an emptied file loses; `None` for any other change, which the list of changes has in its order.
fn emptied_bytes(change: &Change) -> Option<u64> {
    match &change.kind {
        ChangeKind::Changed { before, content_before: _, new } => before.size.checked_sub(new.size),
        ChangeKind::Deleted { .. }
        | ChangeKind::Renamed { .. }
        | ChangeKind::Created { .. }
        | ChangeKind::Attributes { .. } => None,
    }
}

/// A list that is being made.
struct List<'a> {
    roots: &'a RunRoots,
    upper: &'a Upper,
    shown: Vec<ShownChange>,
    removal_bytes: usize,
    other_bytes: usize,
    deadline: Instant,
    clock: &'a dyn Clock,
}

impl List<'_> {
    fn add_removal(&mut self, change: &Change) -> Result<(), String> {
        let shown = self.describe(change);
        self.removal_bytes = self.removal_bytes.saturating_add(text_bytes(&shown));
        if self.shown.len() >= MAX_REMOVALS || self.removal_bytes > MAX_REMOVAL_BYTES {
            return Err(format!(
                "it deletes, moves and empties more entries than the list has room for that a person decides on ({MAX_REMOVALS} \
                 entries, {MAX_REMOVAL_BYTES} bytes): do less in one run"
            ));
        }
        self.shown.push(shown);
        Ok(())
    }

    /// Returns `false` if there is no room for this change, and for none after it.
    fn add_other(&mut self, change: &Change) -> bool {
        let shown = self.describe(change);
        let bytes = text_bytes(&shown);
        if self.shown.len() >= MAX_SHOWN_CHANGES || self.other_bytes.saturating_add(bytes) > MAX_SHOWN_BYTES {
            return false;
        }
        self.other_bytes = self.other_bytes.saturating_add(bytes);
        self.shown.push(shown);
        true
    }

    fn describe(&self, Change { path, kind }: &Change) -> ShownChange {
        let empty = |kind, entry| ShownChange::new(kind, entry, self.roots.show_path(path));
        match kind {
            ChangeKind::Deleted { before, content: _ } => ShownChange {
                bytes_before: file_bytes(before.kind, before.size),
                ..empty(ChangeWord::Deleted, entry_word(before.kind))
            },
            ChangeKind::Renamed { from, before, after } => ShownChange {
                from: Some(self.roots.show_path(from)),
                bytes_before: file_bytes(before.kind, before.size),
                bytes_after: after
                    .as_ref()
                    .map(|new| new.size)
                    .or_else(|| file_bytes(before.kind, before.size)),
                ..empty(ChangeWord::Renamed, entry_word(before.kind))
            },
            ChangeKind::Created { new } => match new {
                NewEntry::File(content) => ShownChange {
                    bytes_after: Some(content.size),
                    mode_after: Some(content.mode),
                    ..empty(ChangeWord::Created, EntryWord::File)
                },
                NewEntry::Folder { mode, mtime: _ } => {
                    ShownChange { mode_after: Some(*mode), ..empty(ChangeWord::Created, EntryWord::Folder) }
                }
                NewEntry::Link { target, mtime: _ } => ShownChange {
                    target: Some(super::roots::show_bytes(target.as_encoded_bytes())),
                    ..empty(ChangeWord::Created, EntryWord::Link)
                },
            },
            ChangeKind::Changed { before, content_before: _, new } => {
                let has_mode = new.mode != before.mode;
                ShownChange {
                    bytes_before: Some(before.size),
                    bytes_after: Some(new.size),
                    mode_before: has_mode.then_some(before.mode),
                    mode_after: has_mode.then_some(new.mode),
                    ..empty(ChangeWord::Changed, EntryWord::File)
                }
            }
            ChangeKind::Attributes { before, mode, mtime: _ } => ShownChange {
                mode_before: mode.map(|_new| before.mode),
                mode_after: *mode,
                ..empty(ChangeWord::Attributes, entry_word(before.kind))
            },
        }
    }

    /// Adds the difference of the contents to a listed change, as far as there is room for it.
    fn add_difference(&mut self, index: usize, change: &Change) {
        let (old, new) = match &change.kind {
            ChangeKind::Changed { new, .. } => (Some(&change.path), Some(new)),
            ChangeKind::Renamed { from, after: Some(new), .. } => (Some(from), Some(new)),
            ChangeKind::Created { new: NewEntry::File(new) } => (None, Some(new)),
            ChangeKind::Deleted { before, .. } if before.kind == EntryKind::File => {
                (Some(&change.path), None)
            }
            ChangeKind::Deleted { .. }
            | ChangeKind::Renamed { after: None, .. }
            | ChangeKind::Created { new: NewEntry::Folder { .. } | NewEntry::Link { .. } }
            | ChangeKind::Attributes { .. } => return,
        };
        let room = MAX_SHOWN_BYTES.saturating_sub(self.other_bytes).min(MAX_DIFF_BYTES);
        let has_time = self.clock.monotonic() < self.deadline;
        let Some(shown) = self.shown.get_mut(index) else { return };
        shown.is_diff_cut = true;
        if room == 0 || !has_time {
            return;
        }
        let budget = DiffBudget { max_bytes: room, deadline: self.deadline };
        let Some(difference) = compare(self.roots.lower(), old, self.upper, new, budget) else { return };
        match &difference {
            Difference::Text(hunks) => {
                let text = escape_invisible_lines(&difference.to_unified());
                // Removed lines are kept whatever the budget is, so the text may still be too long.
                if text.len() <= room {
                    self.other_bytes = self.other_bytes.saturating_add(text.len());
                    shown.is_diff_cut = hunks.iter().any(has_cut_lines);
                    shown.diff = Some(text);
                }
            }
            // The places of the changes are shown, and the contents are not.
            Difference::Bytes(ranges) => {
                let range = |range: &a2g_overlay::ByteRange| ChangedRange {
                    start: range.start,
                    old_bytes: range.old_bytes,
                    new_bytes: range.new_bytes,
                };
                shown.ranges = ranges.iter().map(range).collect();
                let bytes = shown.ranges.len().saturating_mul(ENTRY_BYTES);
                self.other_bytes = self.other_bytes.saturating_add(bytes);
            }
        }
    }
}

fn has_cut_lines(hunk: &a2g_overlay::Hunk) -> bool {
    hunk.lines.iter().any(|line| matches!(line, a2g_overlay::Line::LeftOut { .. }))
}

/// Compares an original with a new content; `None` if one of the two cannot be read.
fn compare(
    roots: &[LowerRoot],
    old: Option<&EntryPath>,
    upper: &Upper,
    new: Option<&NewContent>,
    budget: DiffBudget,
) -> Option<Difference> {
    let original = match old {
        Some(path) => Some(open_original(roots, path)?),
        None => None,
    };
    let content = match new {
        Some(new) => Some(File::from(upper.open(new.number, OFlags::RDONLY).ok()?)),
        None => None,
    };
    Difference::of(original.as_ref(), content.as_ref(), budget).ok()
}

fn open_original(roots: &[LowerRoot], path: &EntryPath) -> Option<File> {
    let (name, folders) = path.names.split_last()?;
    let folder = roots.get(path.root)?.open_folder(folders).ok()?;
    // The kind is looked at after the open, which neither waits nor follows anything.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file: OwnedFd = openat(&folder, name.as_os_str(), flags, Mode::empty()).ok()?;
    let kind = FileType::from_raw_mode(fstat(&file).ok()?.st_mode);
    (kind == FileType::RegularFile).then(|| File::from(file))
}

fn text_bytes(shown: &ShownChange) -> usize {
    let texts = [Some(&shown.path), shown.from.as_ref(), shown.target.as_ref()];
    texts.into_iter().flatten().map(String::len).sum::<usize>().saturating_add(ENTRY_BYTES)
}

fn file_bytes(kind: EntryKind, size: u64) -> Option<u64> {
    match kind {
        EntryKind::File => Some(size),
        EntryKind::Folder | EntryKind::Link | EntryKind::Other => None,
    }
}

fn entry_word(kind: EntryKind) -> EntryWord {
    match kind {
        EntryKind::File => EntryWord::File,
        EntryKind::Folder => EntryWord::Folder,
        EntryKind::Link => EntryWord::Link,
        EntryKind::Other => EntryWord::Other,
    }
}

#[cfg(test)]
mod tests;
