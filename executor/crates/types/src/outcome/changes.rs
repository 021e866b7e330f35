//! The file changes of a run that kept them apart, as a report lists them and as a person sees them, and the decisions on
//! them.

use crate::ident::IntentId;
use crate::tool::Digest;
use strum::{IntoStaticStr, VariantArray};

/// Maximum number of changes of one run that its report lists.
pub const MAX_SHOWN_CHANGES: usize = 1_000;
/// Maximum size in bytes of all texts of one list of changes: paths, targets of links and differences.
pub const MAX_SHOWN_BYTES: usize = 64 * 1024;

/// The file changes of a run that took effect together, or that wait for a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChanges {
    /// The number of changed files, folders and links.
    pub count: u64,
    /// The hash of all changes, and of the state of the originals that they rely on.
    pub digest: Digest,
    /// The numbers of all changes of a staged run; `None` for any other run, and in records without them.
    pub counts: Option<ChangeCounts>,
    /// The first changes of a staged run, as a person sees them before a decision: deletions, renames and emptied files come
    /// first. Empty for any other run.
    pub shown: Vec<ShownChange>,
    /// The namespace of the intents of decisions on the changes, at random; `None` if none is possible. It is stored and
    /// never told: who knew it could use up the intents of later decisions.
    pub decisions: Option<IntentId>,
}

impl FileChanges {
    /// The number of changes that are not among the shown ones.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.count.saturating_sub(u64::try_from(self.shown.len()).unwrap_or(u64::MAX))
    }

    /// The number of shown changes of a group.
    #[must_use]
    pub fn count_shown(&self, group: ChangeGroup) -> u64 {
        let shown = self.shown.iter().filter(|change| change.group() == group).count();
        u64::try_from(shown).unwrap_or(u64::MAX)
    }

    /// The number of all changes of a group; that of the shown ones in a record without [`counts`](Self::counts).
    #[must_use]
    pub fn count_all(&self, group: ChangeGroup) -> u64 {
        let shown = self.count_shown(group);
        self.counts.map_or(shown, |counts| counts.get(group).max(shown))
    }

    /// As [`count_all`](Self::count_all), with the number of the shown ones if those are fewer: `20, 3 listed`.
    #[must_use]
    pub fn describe_count(&self, group: ChangeGroup) -> String {
        let all = self.count_all(group);
        match self.count_shown(group) {
            shown if shown == all => all.to_string(),
            0 => format!("{all}, none listed"),
            shown => format!("{all}, {shown} listed"),
        }
    }

    /// The numbers of all changes in one line: `deletes 5, renames 1, changes 200, creates 3`.
    #[must_use]
    pub fn summarize(&self) -> String {
        let counts = ChangeGroup::VARIANTS.iter().map(|group| (group.verb(), self.count_all(*group)));
        let known = counts.filter(|(_, count)| *count > 0).map(|(verb, count)| format!("{verb} {count}"));
        let unknown = Some(self.count_unknown()).filter(|count| *count > 0);
        let more = unknown.map(|count| format!("makes {count} more changes that are not listed"));
        let parts = known.chain(more).collect::<Vec<_>>();
        if parts.is_empty() { "changes nothing".to_owned() } else { parts.join(", ") }
    }

    /// The number of changes whose group nothing tells: those of a record without [`counts`](Self::counts) that are not
    /// among the shown ones.
    #[must_use]
    pub fn count_unknown(&self) -> u64 {
        let known = ChangeGroup::VARIANTS.iter().map(|group| self.count_all(*group));
        self.count.saturating_sub(known.fold(0, u64::saturating_add))
    }
}

/// The numbers of all changes of a run, listed or not, by group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChangeCounts {
    /// The number of deleted entries.
    pub deleted: u64,
    /// The number of entries that get another path.
    pub renamed: u64,
    /// The number of files that keep their path, and nothing of their content.
    pub emptied: u64,
    /// The number of other entries whose content is changed.
    pub changed: u64,
    /// The number of entries of which only the permissions or times are changed.
    pub attributes: u64,
    /// The number of created entries.
    pub created: u64,
}

impl ChangeCounts {
    /// The number of changes of a group.
    #[must_use]
    pub fn get(&self, group: ChangeGroup) -> u64 {
        let Self { deleted, renamed, emptied, changed, attributes, created } = *self;
        match group {
            ChangeGroup::Deleted => deleted,
            ChangeGroup::Emptied => emptied,
            ChangeGroup::Renamed => renamed,
            ChangeGroup::Changed => changed,
            ChangeGroup::Attributes => attributes,
            ChangeGroup::Created => created,
        }
    }
}

/// The meaning of a change to a person, in the order of a text: what a commit loses is first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, VariantArray)]
pub enum ChangeGroup {
    /// The entry is deleted.
    Deleted,
    /// The file keeps its path, and nothing of its content.
    Emptied,
    /// The entry gets another path.
    Renamed,
    /// The content of the entry is changed.
    Changed,
    /// Only the permissions or times of the entry are changed.
    Attributes,
    /// The entry is created.
    Created,
}

impl ChangeGroup {
    /// The heading of a list of the group.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Deleted => "Deleted",
            Self::Emptied => "Emptied",
            Self::Renamed => "Renamed",
            Self::Changed => "Changed",
            Self::Attributes => "Other permissions or times",
            Self::Created => "Created",
        }
    }

    /// The verb of the group in a summary.
    #[must_use]
    pub fn verb(self) -> &'static str {
        match self {
            Self::Deleted => "deletes",
            Self::Emptied => "empties",
            Self::Renamed => "renames",
            Self::Changed => "changes",
            Self::Attributes => "sets permissions or times of",
            Self::Created => "creates",
        }
    }
}

/// One change of a file, folder or link, as a person sees it before a decision.
///
/// The paths are guest paths. What a person could not see in a text is escaped in it, and bytes that are not UTF-8 are
/// `\xNN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownChange {
    /// The kind of the change.
    pub kind: ChangeWord,
    /// The kind of the changed entry.
    pub entry: EntryWord,
    /// The path of the entry after the change.
    pub path: String,
    /// The path before the change, of a renamed entry.
    pub from: Option<String>,
    /// The size before the change, of a file that existed.
    pub bytes_before: Option<u64>,
    /// The size after the change, of a file that exists then.
    pub bytes_after: Option<u64>,
    /// The permissions before the change, if it changes them.
    pub mode_before: Option<u32>,
    /// The permissions after the change, if it changes them.
    pub mode_after: Option<u32>,
    /// The target of a created link.
    pub target: Option<String>,
    /// The difference of a text, as unified hunks.
    pub diff: Option<String>,
    /// The changed ranges of a file that is no text.
    pub ranges: Vec<ChangedRange>,
    /// `true` if `diff` or `ranges` lacks a part of the difference.
    pub is_diff_cut: bool,
}

impl ShownChange {
    /// The meaning of the change to a person.
    #[must_use]
    pub fn group(&self) -> ChangeGroup {
        match self.kind {
            ChangeWord::Deleted => ChangeGroup::Deleted,
            ChangeWord::Renamed => ChangeGroup::Renamed,
            ChangeWord::Created => ChangeGroup::Created,
            ChangeWord::Changed if self.bytes_after == Some(0) && self.bytes_before != Some(0) => {
                ChangeGroup::Emptied
            }
            ChangeWord::Changed => ChangeGroup::Changed,
            ChangeWord::Attributes => ChangeGroup::Attributes,
        }
    }

    /// The part of the difference that a person can read.
    #[must_use]
    pub fn readable_part(&self) -> ReadablePart {
        match &self.diff {
            Some(_) if self.is_diff_cut => ReadablePart::Beginning,
            Some(_) => ReadablePart::Whole,
            None if !self.ranges.is_empty() => ReadablePart::Places,
            None if self.is_diff_cut => ReadablePart::Nothing,
            None => ReadablePart::Whole,
        }
    }
}

/// The part of a difference that a list shows so that a person can read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadablePart {
    /// The whole difference, or there is none.
    Whole,
    /// A part of the changed lines.
    Beginning,
    /// Only the places of the changed bytes: the content is not text.
    Places,
    /// Nothing of it.
    Nothing,
}

/// A range of bytes that a change replaces by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedRange {
    /// The offset of the range in both contents.
    pub start: u64,
    /// The number of replaced bytes.
    pub old_bytes: u64,
    /// The number of bytes in their place.
    pub new_bytes: u64,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum ChangeWord {
    /// The entry is deleted.
    Deleted,
    /// The entry gets another path.
    Renamed,
    /// The entry is created.
    Created,
    /// The content of the entry is changed.
    Changed,
    /// Only the permissions or times of the entry are changed.
    Attributes,
}

impl ChangeWord {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The kind of a changed entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum EntryWord {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// Any other entry, such as a socket.
    Other,
}

impl EntryWord {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The state of the file changes of a run that held them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ChangeState {
    /// They wait for a decision, and are not in force.
    Waiting,
    /// They are in force, and can be undone.
    InForce,
    /// They are in force, and can no longer be undone.
    Kept,
    /// They were discarded, and are not in force.
    Discarded,
    /// They were undone, and are no longer in force.
    Undone,
}

impl ChangeState {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A decision on file changes that were kept apart. It has a record like that of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum DecisionAct {
    /// They take effect.
    Commit,
    /// They are removed without having taken effect.
    Discard,
    /// They are taken back.
    Undo,
}

impl DecisionAct {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The tool name in the record of the decision. No tool of a catalogue has it.
    #[must_use]
    pub const fn tool(self) -> &'static str {
        match self {
            Self::Commit => "effects.commit",
            Self::Discard => "effects.discard",
            Self::Undo => "effects.undo",
        }
    }

    /// The state of the changes that it is about.
    #[must_use]
    pub const fn applies_to(self) -> ChangeState {
        match self {
            Self::Commit | Self::Discard => ChangeState::Waiting,
            Self::Undo => ChangeState::InForce,
        }
    }

    /// The decision whose records have this tool name; `None` for a tool of a catalogue.
    #[must_use]
    pub fn of_tool(name: &str) -> Option<Self> {
        Self::VARIANTS.iter().copied().find(|act| act.tool() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::ToolName;

    #[test]
    fn a_decision_has_the_name_of_a_tool() {
        for act in DecisionAct::VARIANTS {
            assert_eq!(act.tool(), format!("effects.{}", act.as_str()));
            let name = ToolName::parse(act.tool()).unwrap();
            assert_eq!(DecisionAct::of_tool(name.as_str()), Some(*act));
        }
        for name in ["effects", "effects.commit2", "Effects.commit", "commit"] {
            assert_eq!(DecisionAct::of_tool(name), None, "{name}");
        }
    }

    fn shown(kind: ChangeWord) -> ShownChange {
        ShownChange {
            kind,
            entry: EntryWord::File,
            path: "/workspace/a".to_owned(),
            from: None,
            bytes_before: Some(1),
            bytes_after: None,
            mode_before: None,
            mode_after: None,
            target: None,
            diff: None,
            ranges: vec![],
            is_diff_cut: false,
        }
    }

    fn changes(count: u64, counts: Option<ChangeCounts>, shown: Vec<ShownChange>) -> FileChanges {
        FileChanges { count, digest: Digest([0; 32]), counts, shown, decisions: None }
    }

    #[test]
    fn changes_beyond_the_shown_ones_are_counted() {
        let few = changes(3, None, vec![shown(ChangeWord::Deleted)]);
        assert_eq!((few.left_out(), few.count_unknown()), (2, 2));
        assert_eq!((few.count_all(ChangeGroup::Deleted), few.count_all(ChangeGroup::Changed)), (1, 0));
        assert_eq!(few.summarize(), "deletes 1, makes 2 more changes that are not listed");
        assert_eq!(changes(0, None, vec![]).summarize(), "changes nothing");
        let none = FileChanges { count: 0, ..few };
        assert_eq!((none.left_out(), none.count_unknown()), (0, 0));
    }

    #[test]
    fn counts_tell_the_number_of_all_changes_and_never_fewer_than_are_shown() {
        let counts =
            ChangeCounts { deleted: 1, renamed: 2, emptied: 3, changed: 4, attributes: 5, created: 6 };
        let all = changes(21, Some(counts), vec![shown(ChangeWord::Changed)]);
        let numbers = ChangeGroup::VARIANTS.iter().map(|group| all.count_all(*group)).collect::<Vec<_>>();
        assert_eq!(numbers, [1, 3, 2, 4, 5, 6]);
        assert_eq!((all.left_out(), all.count_unknown()), (20, 0));
        let described = [ChangeGroup::Changed, ChangeGroup::Created].map(|group| all.describe_count(group));
        assert_eq!(described, ["4, 1 listed", "6, none listed"]);
        assert_eq!(
            all.summarize(),
            "deletes 1, empties 3, renames 2, changes 4, sets permissions or times of 5, creates 6"
        );
        let wrong = changes(1, Some(ChangeCounts::default()), vec![shown(ChangeWord::Renamed)]);
        assert_eq!(wrong.describe_count(ChangeGroup::Renamed), "1");
    }

    #[test]
    fn a_file_without_its_content_is_emptied_and_not_changed() {
        let emptied = ShownChange { bytes_after: Some(0), ..shown(ChangeWord::Changed) };
        assert_eq!(emptied.group(), ChangeGroup::Emptied);
        assert_eq!(ShownChange { bytes_before: Some(0), ..emptied }.group(), ChangeGroup::Changed);
        for (kind, group) in [
            (ChangeWord::Deleted, ChangeGroup::Deleted),
            (ChangeWord::Renamed, ChangeGroup::Renamed),
            (ChangeWord::Created, ChangeGroup::Created),
            (ChangeWord::Changed, ChangeGroup::Changed),
            (ChangeWord::Attributes, ChangeGroup::Attributes),
        ] {
            assert_eq!(shown(kind).group(), group);
        }
    }

    #[test]
    fn only_a_whole_text_is_readable_as_a_whole() {
        let cut = ShownChange { is_diff_cut: true, ..shown(ChangeWord::Changed) };
        let text = ShownChange { diff: Some(String::new()), ..shown(ChangeWord::Changed) };
        let range = ChangedRange { start: 0, old_bytes: 1, new_bytes: 1 };
        let bytes = ShownChange { ranges: vec![range], ..shown(ChangeWord::Changed) };
        for (change, part) in [
            (shown(ChangeWord::Deleted), ReadablePart::Whole),
            (text.clone(), ReadablePart::Whole),
            (ShownChange { is_diff_cut: true, ..text }, ReadablePart::Beginning),
            (bytes.clone(), ReadablePart::Places),
            (ShownChange { is_diff_cut: true, ..bytes }, ReadablePart::Places),
            (cut, ReadablePart::Nothing),
        ] {
            assert_eq!(change.readable_part(), part);
        }
    }
}
