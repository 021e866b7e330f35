//! The file changes of a run that kept them apart, as a report lists them and as a person sees them, and the decisions on
//! them.

use super::Receipt;
use crate::ident::IntentId;
use crate::tool::Digest;
use std::collections::BTreeMap;
use strum::{IntoStaticStr, VariantArray};

/// Maximum number of changes of one run that its report lists.
pub const MAX_SHOWN_CHANGES: usize = 1_000;
/// Maximum size in bytes of all texts of one list of changes: paths, targets of links and differences.
pub const MAX_SHOWN_BYTES: usize = 64 * 1024;
/// Maximum number of changed ranges that a text names of a file that is no text.
const MAX_DESCRIBED_RANGES: usize = 8;

/// The file changes of a run that took effect together, or that wait for a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChanges {
    /// The number of changed files, folders and links.
    pub count: u64,
    /// The hash of all changes, of the state of the originals that they rely on, and of the requests that wait with them.
    pub digest: Digest,
    /// The numbers of all changes of a staged run; `None` for any other run, and in records without them.
    pub counts: Option<ChangeCounts>,
    /// The first changes of a staged run, as a person sees them before a decision: deletions, renames and emptied files come
    /// first. Empty for any other run.
    pub shown: Vec<ShownChange>,
    /// The requests that a commit sends, in their order.
    pub requests: Vec<ShownRequest>,
    /// The namespace of the intents of decisions on the changes, at random; `None` if none is possible. It is stored and
    /// never told: who knew it could use up the intents of later decisions.
    pub decisions: Option<IntentId>,
}

impl FileChanges {
    /// Changes of which nothing else is known, and which nobody can decide on.
    #[must_use]
    pub const fn new(count: u64, digest: Digest) -> Self {
        Self { count, digest, counts: None, shown: Vec::new(), requests: Vec::new(), decisions: None }
    }

    /// `true` if a decision has nothing to decide on.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.requests.is_empty()
    }

    /// The number of requests that a commit sends, as a verb with its object: `sends 2 requests`. `None` if it sends none.
    #[must_use]
    pub fn describe_sending(&self) -> Option<String> {
        match self.requests.len() {
            0 => None,
            1 => Some("sends 1 request".to_owned()),
            count => Some(format!("sends {count} requests")),
        }
    }

    /// The number of changes that are not among the shown ones.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.count.saturating_sub(u64::try_from(self.shown.len()).unwrap_or(u64::MAX))
    }

    /// The number of shown changes of a group.
    fn count_shown(&self, group: ChangeGroup) -> u64 {
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

    /// The numbers of all changes and requests in one line, such as `deletes 5, renames 1, creates 3, sends 2 requests`.
    #[must_use]
    pub fn summarize(&self) -> String {
        let unknown = Some(self.count_unknown()).filter(|count| *count > 0);
        let more = unknown.map(|count| format!("makes {count} more changes that are not listed"));
        let counts = name_counts(|group| self.count_all(group));
        let parts = counts.chain(more).chain(self.describe_sending()).collect::<Vec<_>>();
        if parts.is_empty() { "changes nothing".to_owned() } else { parts.join(", ") }
    }

    /// The changes that are not listed, and the contents that are not shown, as a sentence; `None` if there are none.
    #[must_use]
    pub fn describe_unseen(&self) -> Option<String> {
        let left_out = self.left_out();
        let entries = (left_out > 0).then(|| {
            let count = |group| self.count_all(group).saturating_sub(self.count_shown(group));
            let numbers = name_counts(count).collect::<Vec<_>>().join(", ");
            let note = if numbers.is_empty() { numbers } else { format!(" ({numbers})") };
            format!(
                "{}, none of them a deletion, a rename or the loss of most of a file{note}",
                counted(left_out, "more change")
            )
        });
        let mut unread = BTreeMap::<&str, u64>::new();
        for part in self.shown.iter().filter_map(ShownChange::unread_part) {
            *unread.entry(part).or_default() += 1;
        }
        let contents =
            unread.into_iter().map(|(part, count)| format!("{part} of {}", counted(count, "file")));
        let unseen = entries.into_iter().chain(contents).collect::<Vec<_>>();
        (!unseen.is_empty()).then(|| format!("Not shown: {}.", unseen.join("; ")))
    }

    /// The number of changes whose group nothing tells: those of a record without [`counts`](Self::counts) that are not
    /// among the shown ones.
    #[must_use]
    pub fn count_unknown(&self) -> u64 {
        let known = ChangeGroup::VARIANTS.iter().map(|group| self.count_all(*group));
        self.count.saturating_sub(known.fold(0, u64::saturating_add))
    }
}

/// The numbers by group, such as `deletes 5`, without those that are 0.
fn name_counts(count: impl Fn(ChangeGroup) -> u64) -> impl Iterator<Item = String> {
    let counts = ChangeGroup::VARIANTS.iter().map(move |group| (group.verb(), count(*group)));
    counts.filter(|(_, count)| *count > 0).map(|(verb, count)| format!("{verb} {count}"))
}

/// A number of things, such as `1 file` or `5 files`.
fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
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

/// `true` if a file that had `before` bytes has less than half of them, which people have to see like a deletion.
#[must_use]
pub fn loses_most(before: u64, after: u64) -> bool {
    after < before.div_ceil(2)
}

impl ShownChange {
    /// A change of which nothing else is known.
    #[must_use]
    pub fn new(kind: ChangeWord, entry: EntryWord, path: impl Into<String>) -> Self {
        Self {
            kind,
            entry,
            path: path.into(),
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

    /// The meaning of the change to a person.
    #[must_use]
    pub fn group(&self) -> ChangeGroup {
        match self.kind {
            ChangeWord::Deleted => ChangeGroup::Deleted,
            ChangeWord::Renamed => ChangeGroup::Renamed,
            ChangeWord::Created => ChangeGroup::Created,
            ChangeWord::Changed if self.loses_most_bytes() => ChangeGroup::Emptied,
            ChangeWord::Changed => ChangeGroup::Changed,
            ChangeWord::Attributes => ChangeGroup::Attributes,
        }
    }

    fn loses_most_bytes(&self) -> bool {
        match (self.bytes_before, self.bytes_after) {
            (Some(before), Some(after)) => loses_most(before, after),
            // The original is no file.
            (None, after) => after == Some(0),
            (Some(_), None) => false,
        }
    }

    /// The sizes and the permissions that it changes, such as `4 to 6 bytes` and `mode 0644 to 0755`.
    #[must_use]
    pub fn facts(&self) -> Vec<String> {
        let size = match (self.bytes_before, self.bytes_after) {
            (Some(before), Some(after)) if before != after => Some(describe_sizes(before, after)),
            (Some(bytes), _) | (None, Some(bytes)) => Some(counted(bytes, "byte")),
            (None, None) => None,
        };
        let modes = self.mode_before.zip(self.mode_after);
        let mode = modes.map(|(before, after)| format!("mode {before:04o} to {after:04o}"));
        size.into_iter().chain(mode).collect()
    }

    /// Warnings of rights that its permissions newly give.
    #[must_use]
    pub fn new_rights(&self) -> Vec<&'static str> {
        let [before, after] = [self.mode_before, self.mode_after].map(Option::unwrap_or_default);
        let is_new = |bits: u32| after & bits != 0 && before & bits == 0;
        let is_program = self.entry == EntryWord::File && is_new(0o111);
        let run = is_program.then_some("can be run as a program");
        let write = is_new(0o002).then_some("everybody on the machine may write it");
        run.into_iter().chain(write).collect()
    }

    /// The part of its content that a person cannot read, such as `binary content not shown`; `None` if there is none.
    #[must_use]
    pub fn describe_unread(&self) -> Option<String> {
        self.unread_part().map(|part| format!("{part} not shown"))
    }

    fn unread_part(&self) -> Option<&'static str> {
        match &self.diff {
            Some(_) => self.is_diff_cut.then_some("a part of the difference"),
            None if !self.ranges.is_empty() => Some("binary content"),
            None => self.is_diff_cut.then_some("content"),
        }
    }

    /// The places of the first changed bytes of a file that is no text, such as `at byte 0: 9 to 12 bytes`.
    #[must_use]
    pub fn describe_ranges(&self) -> Option<String> {
        let describe = |ChangedRange { start, old_bytes, new_bytes }: &ChangedRange| {
            format!("at byte {start}: {}", describe_sizes(*old_bytes, *new_bytes))
        };
        let shown = self.ranges.iter().take(MAX_DESCRIBED_RANGES).map(describe);
        let more = self.ranges.len().saturating_sub(MAX_DESCRIBED_RANGES);
        let rest = (more > 0).then(|| format!("and {more} more"));
        (!self.ranges.is_empty()).then(|| shown.chain(rest).collect::<Vec<_>>().join("; "))
    }
}

fn describe_sizes(before: u64, after: u64) -> String {
    format!("{before} to {}", counted(after, "byte"))
}

/// A request that waits with the file changes of its run, as a person sees it before a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownRequest {
    /// The method.
    pub method: String,
    /// The whole URL. What a person could not see is escaped.
    pub url: String,
    /// The names of the header fields, whose values may be secrets; and the executor's secrets that are set in the
    /// request when it is sent: `secret NAME in PLACE`.
    pub fields: Vec<String>,
    /// The size of the body in bytes.
    pub body_bytes: u64,
    /// The hash of the body.
    pub body_digest: Digest,
    /// The text of a short body, for a person who may decide. What a person could not see is escaped. `None`
    /// in every record and report: the text may be a secret.
    pub body: Option<String>,
}

impl ShownRequest {
    /// The body and the names of the header fields: `12 bytes with the SHA-256 …; fields accept, content-type`.
    #[must_use]
    pub fn describe_content(&self) -> String {
        let body = match self.body_bytes {
            0 => "no body".to_owned(),
            bytes => format!("{bytes} bytes with the SHA-256 {}", self.body_digest),
        };
        if self.fields.is_empty() { body } else { format!("{body}; fields {}", self.fields.join(", ")) }
    }
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
    /// They are in force, and the requests that waited with them are being sent.
    Sending,
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

    /// The sentence about requests in the record of a decision that took effect; `None` for any other record.
    #[must_use]
    pub fn find_note(receipt: &Receipt) -> Option<String> {
        Self::of_tool(receipt.tool.as_str())?;
        let result = receipt.outcome.end.result()?.to_map();
        result.get("message")?.as_str().map(str::to_owned)
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
    fn requests_are_counted_and_described() {
        let request = ShownRequest {
            method: "POST".to_owned(),
            url: "https://a.example:443/".to_owned(),
            fields: Vec::new(),
            body_bytes: 0,
            body_digest: Digest([0xab; 32]),
            body: None,
        };
        assert_eq!(request.describe_content(), "no body");
        let fields = vec!["accept".to_owned(), "cookie".to_owned()];
        let long = ShownRequest { fields, body_bytes: 12, ..request.clone() };
        let hash = "ab".repeat(32);
        assert_eq!(
            long.describe_content(),
            format!("12 bytes with the SHA-256 {hash}; fields accept, cookie")
        );
        let mut none = changes(0, None, vec![]);
        assert!(none.is_empty() && !changes(1, None, vec![]).is_empty());
        none.requests = vec![request];
        assert_eq!((none.is_empty(), &*none.summarize()), (false, "sends 1 request"));
        let both = FileChanges {
            requests: vec![long.clone(), long],
            ..changes(1, None, vec![shown(ChangeWord::Deleted)])
        };
        assert_eq!(both.summarize(), "deletes 1, sends 2 requests");
    }

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
        ShownChange { bytes_before: Some(1), ..ShownChange::new(kind, EntryWord::File, "/workspace/a") }
    }

    fn changes(count: u64, counts: Option<ChangeCounts>, shown: Vec<ShownChange>) -> FileChanges {
        FileChanges { counts, shown, ..FileChanges::new(count, Digest([0; 32])) }
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

    /// A text in part, one as a whole, a file that is no text, and one whose content is left out.
    fn half_readable() -> [ShownChange; 4] {
        let change = |is_diff_cut| ShownChange { is_diff_cut, ..shown(ChangeWord::Changed) };
        let diff = Some(String::new());
        let ranges = vec![ChangedRange { start: 0, old_bytes: 9, new_bytes: 12 }; 10];
        [
            ShownChange { diff: diff.clone(), ..change(true) },
            ShownChange { diff, ..change(false) },
            // The members of an older record.
            ShownChange { ranges, ..change(false) },
            change(true),
        ]
    }

    #[test]
    fn a_content_that_is_not_shown_is_named() {
        let unread = half_readable().map(|change| change.describe_unread());
        let parts = [
            Some("a part of the difference not shown"),
            None,
            Some("binary content not shown"),
            Some("content not shown"),
        ];
        assert_eq!(unread.each_ref().map(Option::as_deref), parts);
        let [text, whole, bytes, none] = half_readable();
        let cut = ShownChange { is_diff_cut: true, ..bytes.clone() };
        assert_eq!(cut.describe_unread().as_deref(), parts[2]);
        let places = bytes.describe_ranges().unwrap();
        assert!(places.starts_with("at byte 0: 9 to 12 bytes; at byte 0"), "{places}");
        assert!(places.ends_with("; and 2 more"), "{places}");
        assert_eq!(text.describe_ranges(), None);
        let all = changes(5, None, vec![text, whole.clone(), bytes.clone(), bytes]);
        assert_eq!(
            all.describe_unseen().unwrap(),
            "Not shown: 1 more change, none of them a deletion, a rename or the loss of most of a file; a part of the difference of 1 file; \
             binary content of 2 files."
        );
        let one = changes(1, None, vec![none]).describe_unseen();
        assert_eq!(one.as_deref(), Some("Not shown: content of 1 file."));
        assert_eq!(changes(2, None, vec![whole, shown(ChangeWord::Deleted)]).describe_unseen(), None);
        let counts = ChangeCounts { changed: 20, created: 9_980, ..ChangeCounts::default() };
        let many = changes(10_000, Some(counts), vec![shown(ChangeWord::Changed); 3]);
        assert_eq!(
            many.describe_unseen().unwrap(),
            "Not shown: 9997 more changes, none of them a deletion, a rename or the loss of most of a file (changes 17, creates 9980)."
        );
    }

    #[test]
    fn sizes_permissions_and_new_rights_are_facts() {
        let of = |bytes_before, bytes_after| ShownChange {
            bytes_before,
            bytes_after,
            ..shown(ChangeWord::Changed)
        };
        for (before, after, expected) in [
            (Some(23), Some(23), "23 bytes"),
            (Some(23), Some(1), "23 to 1 byte"),
            (Some(1), None, "1 byte"),
            (None, Some(0), "0 bytes"),
        ] {
            assert_eq!(of(before, after).facts(), [expected]);
        }
        let modes = |mode_before, mode_after| ShownChange { mode_before, mode_after, ..of(None, None) };
        let open = modes(Some(0o644), Some(0o4757));
        assert_eq!(open.facts(), ["mode 0644 to 4757"]);
        let rights = ["can be run as a program", "everybody on the machine may write it"];
        assert_eq!(open.new_rights(), rights);
        let folder = ShownChange { entry: EntryWord::Folder, ..modes(None, Some(0o777)) };
        assert_eq!((folder.facts(), folder.new_rights()), (vec![], vec![rights[1]]));
        assert!(modes(Some(0o744), Some(0o755)).new_rights().is_empty());
    }
}
