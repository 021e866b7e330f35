//! The file changes of a staged run, as the answers of every door but A2G's show them.
//!
//! A receipt never changes, so an answer has two parts: the changes of the receipt, and what has become of them since
//! ([`StagedState`]), which the door asks the core for.

use crate::measurements;
use a2g_types::outcome::{ChangeGroup, ChangeState, FileChanges, Receipt, ShownChange, ShownRequest, Status};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Maximum size in bytes of a list of changes in a text, apart from what a person who decides has to see.
const MAX_LIST_BYTES: usize = 4_000;
/// Maximum size in bytes of the differences in a text.
const MAX_DIFF_BYTES: usize = 4_000;

/// The state of the file changes of a staged run at the time of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedState {
    /// The state.
    pub state: ChangeState,
    /// The time at which changes that wait are discarded, and those in force can no longer be undone. Of all others it
    /// says nothing.
    pub until: OffsetDateTime,
    /// The name of the last person, or governor, whose decision had an effect; `None` if nobody has decided.
    pub by: Option<String>,
}

impl StagedState {
    /// Returns `true` for changes that somebody may still commit.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.state == ChangeState::Waiting
    }

    /// Returns `true` for changes that are in force.
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        match self.state {
            ChangeState::InForce | ChangeState::Kept => true,
            ChangeState::Waiting | ChangeState::Discarded | ChangeState::Undone => false,
        }
    }
}

/// The file changes of a staged run; `None` for any other run.
#[must_use]
pub fn changes_of(receipt: &Receipt) -> Option<&FileChanges> {
    let is_staged = receipt.outcome.end.status() == Status::Staged;
    receipt.outcome.usage.changes.as_ref().filter(|_| is_staged)
}

/// The text for models and people: whether the changes are in force, and the list of those that are not decided. Absent
/// for a run that is not staged. `state` is `None` if it is not known at this node.
#[must_use]
pub fn text(receipt: &Receipt, state: Option<&StagedState>) -> Option<String> {
    let changes = changes_of(receipt)?;
    let sentence = sentence(changes, state);
    Some(match state.is_none_or(StagedState::is_waiting) {
        true => format!("{sentence}\n{}", list(changes)),
        false => sentence,
    })
}

/// The members of the report's `usage.effects`, with the present state and the sentence about it. Absent for a run that is
/// not staged.
pub(crate) fn member(receipt: &Receipt, state: Option<&StagedState>) -> Option<Map<String, Value>> {
    let changes = changes_of(receipt)?;
    let mut members = measurements::effects(receipt);
    members.extend(state_members(state));
    members.insert("message".to_owned(), sentence(changes, state).into());
    Some(members)
}

/// As [`member`], without the list of changes.
pub(crate) fn short_member(receipt: &Receipt, state: Option<&StagedState>) -> Option<Map<String, Value>> {
    let changes = changes_of(receipt)?;
    let mut members = state_members(state);
    members.insert("changes".to_owned(), changes.count.into());
    if !changes.requests.is_empty() {
        members.insert("held".to_owned(), changes.requests.len().into());
    }
    members.insert("digest".to_owned(), changes.digest.to_string().into());
    members.insert("message".to_owned(), sentence(changes, state).into());
    Some(members)
}

fn state_members(state: Option<&StagedState>) -> Map<String, Value> {
    let Some(StagedState { state, until, by }) = state else { return Map::new() };
    let end = match state {
        ChangeState::Waiting | ChangeState::InForce => format_time(*until),
        ChangeState::Kept | ChangeState::Discarded | ChangeState::Undone => None,
    };
    let mut members = Map::from_iter([("state".to_owned(), state.as_str().into())]);
    members.extend(by.as_ref().map(|by| ("decided_by".to_owned(), by.as_str().into())));
    members.extend(end.map(|end| ("until".to_owned(), end.into())));
    members
}

/// A sentence that says whether the changes are in force, and who decided. While they wait, a second one names the parts
/// that a person cannot read. If requests wait with them, another one says what becomes of these.
#[must_use]
pub fn sentence(changes: &FileChanges, state: Option<&StagedState>) -> String {
    let about_files = sentence_about_files(changes, state);
    match sentence_about_requests(changes, state) {
        Some(about_requests) => format!("{about_files} {about_requests}"),
        None => about_files,
    }
}

fn sentence_about_requests(changes: &FileChanges, state: Option<&StagedState>) -> Option<String> {
    let subject = match changes.requests.len() {
        0 => return None,
        count => format!("The requests that it has left ({count})"),
    };
    Some(match state.map(|state| state.state) {
        None => format!("{subject} were not sent when it ended."),
        Some(ChangeState::Waiting) => {
            format!("{subject} are not sent: a commit sends them once, and nothing takes them back then.")
        }
        Some(ChangeState::Discarded) => format!("{subject} were not sent."),
        Some(ChangeState::InForce | ChangeState::Kept | ChangeState::Undone) => {
            format!("{subject} cannot be undone: the record of the commit says which were sent.")
        }
    })
}

fn sentence_about_files(changes: &FileChanges, state: Option<&StagedState>) -> String {
    let subject = format!("The file changes of this call ({})", changes.count);
    let Some(StagedState { state, until, by }) = state else {
        return format!(
            "{subject} were not in force when it ended, and waited for a decision. The node that ran it knows what has \
             become of them, unless they are left to its operator (see its log)."
        );
    };
    let by = by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
    match state {
        ChangeState::Waiting => {
            let end = format_time(*until).map_or_else(String::new, |until| format!(" at {until}"));
            let unseen = changes.describe_unseen().map_or_else(String::new, |unseen| format!(" {unseen}"));
            format!(
                "{subject} are not in force: they wait until a person commits or discards them, and no file has changed yet. \
                 Without a decision, they are discarded{end}.{unseen}"
            )
        }
        ChangeState::InForce | ChangeState::Kept => {
            format!("{subject} are in force: they were committed{by}.")
        }
        ChangeState::Discarded => {
            format!("{subject} are not in force: they were discarded{by}, and no file has changed.")
        }
        ChangeState::Undone => {
            format!("{subject} are no longer in force: they were undone{by}.")
        }
    }
}

/// The numbers of the changes by kind, and then a line for each, as many as fit: what a commit loses is first.
fn list(changes: &FileChanges) -> String {
    list_with(changes, |_| false)
}

/// As [`list`], for a person who decides: with every deletion, emptied file and rename, however many there are.
pub(crate) fn list_for_decision(changes: &FileChanges) -> String {
    list_with(changes, |group| match group {
        ChangeGroup::Deleted | ChangeGroup::Emptied | ChangeGroup::Renamed => true,
        ChangeGroup::Changed | ChangeGroup::Attributes | ChangeGroup::Created => false,
    })
}

fn list_with(changes: &FileChanges, is_required: impl Fn(ChangeGroup) -> bool) -> String {
    let mut text = format!("It {}:", changes.summarize());
    // Each request is listed, and before the changes: it leaves the machine.
    for request in &changes.requests {
        let ShownRequest { method, url, .. } = request;
        text.push_str(&format!("\n* sends {method} `{url}` ({})", request.describe_content()));
    }
    let mut listed = 0_u64;
    for change in &changes.shown {
        let line = line(change);
        // No line of a difference begins with `*`, so the content of a file cannot imitate this list.
        if !is_required(change.group()) && text.len() + line.len() > MAX_LIST_BYTES {
            break;
        }
        text.push_str(&format!("\n* {line}"));
        listed += 1;
    }
    let left_out = changes.count.saturating_sub(listed);
    if left_out > 0 {
        text.push_str(&format!("\n* and {left_out} more, which are not listed here"));
    }
    text
}

/// The differences of the listed texts, as many as fit, and the number of those that do not.
pub(crate) fn differences(changes: &FileChanges) -> String {
    let mut text = String::new();
    let mut left_out = 0_u64;
    for change in &changes.shown {
        let Some(diff) = &change.diff else { continue };
        let cut = change.describe_unread().map_or_else(String::new, |unread| format!("\n({unread})"));
        let shown = format!("\n`{}`:\n{}{cut}", change.path, diff.trim_end_matches('\n'));
        if text.len() + shown.len() <= MAX_DIFF_BYTES {
            text.push_str(&shown);
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        text.push_str(&format!("\nThe differences of {left_out} more files are not shown here."));
    }
    text
}

/// One change, such as ``deleted file `/workspace/a` (12 bytes)``. The texts of a change are escaped.
fn line(change: &ShownChange) -> String {
    let ShownChange { kind, entry, path, from, target, .. } = change;
    let word = match change.group() {
        ChangeGroup::Attributes => "changed attributes of",
        ChangeGroup::Emptied => "emptied",
        ChangeGroup::Deleted | ChangeGroup::Renamed | ChangeGroup::Changed | ChangeGroup::Created => {
            kind.as_str()
        }
    };
    let before = from.as_ref().map_or_else(String::new, |from| format!("`{from}` to "));
    let after = target.as_ref().map_or_else(String::new, |target| format!(", which points to `{target}`"));
    let rights = change.new_rights().into_iter().map(str::to_owned);
    let facts = change.facts().into_iter().chain(rights).chain(change.describe_unread());
    let details = facts.collect::<Vec<_>>().join(", ");
    let note = if details.is_empty() { String::new() } else { format!(" ({details})") };
    format!("{word} {} {before}`{path}`{after}{note}", entry.as_str())
}

/// A time in whole seconds.
pub(crate) fn format_time(at: OffsetDateTime) -> Option<String> {
    at.truncate_to_second().format(&Rfc3339).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::outcome::{ChangeCounts, ChangeWord, EntryWord};
    use a2g_types::tool::Digest;

    const UNTIL: OffsetDateTime = time::macros::datetime!(2026-12-01 12:00:00.5 UTC);

    fn shown(kind: ChangeWord, path: &str) -> ShownChange {
        ShownChange::new(kind, EntryWord::File, path)
    }

    fn changes(shown: Vec<ShownChange>, count: u64) -> FileChanges {
        FileChanges { shown, ..FileChanges::new(count, Digest([7; 32])) }
    }

    #[test]
    fn a_line_names_everything_that_a_change_does() {
        let renamed = ShownChange { from: Some("/w/a".to_owned()), ..shown(ChangeWord::Renamed, "/w/b") };
        let link = ShownChange {
            entry: EntryWord::Link,
            target: Some("b".to_owned()),
            ..shown(ChangeWord::Created, "/w/l")
        };
        let grown = ShownChange {
            bytes_before: Some(3),
            bytes_after: Some(5),
            mode_before: Some(0o644),
            mode_after: Some(0o755),
            ..shown(ChangeWord::Changed, "/w/c")
        };
        let emptied =
            ShownChange { bytes_before: Some(9), bytes_after: Some(0), ..shown(ChangeWord::Changed, "/w/f") };
        let cut =
            ShownChange { bytes_after: Some(4), is_diff_cut: true, ..shown(ChangeWord::Changed, "/w/none") };
        for (change, expected) in [
            (emptied, "emptied file `/w/f` (9 to 0 bytes)"),
            (cut, "changed file `/w/none` (4 bytes, content not shown)"),
            (
                ShownChange { bytes_before: Some(9), ..shown(ChangeWord::Deleted, "/w/d") },
                "deleted file `/w/d` (9 bytes)",
            ),
            (renamed, "renamed file `/w/a` to `/w/b`"),
            (link, "created link `/w/l`, which points to `b`"),
            (grown, "changed file `/w/c` (3 to 5 bytes, mode 0644 to 0755, can be run as a program)"),
            (shown(ChangeWord::Attributes, "/w/e"), "changed attributes of file `/w/e`"),
        ] {
            assert_eq!(line(&change), expected);
        }
    }

    #[test]
    fn a_list_begins_with_the_numbers_and_counts_what_it_leaves_out() {
        let two = vec![shown(ChangeWord::Deleted, "/w/a"), shown(ChangeWord::Created, "/w/b")];
        assert_eq!(
            list(&changes(two.clone(), 2)),
            "It deletes 1, creates 1:\n* deleted file `/w/a`\n* created file `/w/b`"
        );
        let cut = list(&changes(two, 5));
        assert!(cut.starts_with("It deletes 1, creates 1, makes 3 more changes that are not"), "{cut}");
        assert!(cut.ends_with("\n* and 3 more, which are not listed here"), "{cut}");
        let counts = ChangeCounts { changed: 20, created: 9_980, ..ChangeCounts::default() };
        let counted =
            FileChanges { counts: Some(counts), ..changes(vec![shown(ChangeWord::Changed, "/w/a")], 10_000) };
        let expected =
            "It changes 20, creates 9980:\n* changed file `/w/a`\n* and 9999 more, which are not listed here";
        assert_eq!(list(&counted), expected);
        let deleted = (0..999).map(|number| shown(ChangeWord::Deleted, &format!("/w/{number}")));
        let many = changes(deleted.chain([shown(ChangeWord::Created, "/w/new")]).collect(), 1_000);
        let long = list(&many);
        let lines = long.lines().count() - 2;
        assert!(long.len() < MAX_LIST_BYTES + 100, "{}", long.len());
        assert!(long.ends_with(&format!("and {} more, which are not listed here", 1_000 - lines)), "{long}");
        let whole = list_for_decision(&many);
        assert!(
            whole.contains("`/w/998`") && whole.ends_with("and 1 more, which are not listed here"),
            "{whole}"
        );
    }

    #[test]
    fn requests_are_listed_first_and_never_said_to_be_taken_back() {
        let request = ShownRequest {
            method: "POST".to_owned(),
            url: "https://a.example:443/x".to_owned(),
            fields: vec!["cookie".to_owned()],
            body_bytes: 0,
            body_digest: Digest([1; 32]),
        };
        let files = changes(vec![shown(ChangeWord::Deleted, "/w/a")], 1);
        let all = FileChanges { requests: vec![request], ..files };
        assert_eq!(
            list(&all),
            "It deletes 1, sends 1 request:\n* sends POST `https://a.example:443/x` (no body; fields cookie)\n\
             * deleted file `/w/a`"
        );
        for (state, said) in [
            (ChangeState::Waiting, "(1) are not sent: a commit sends them once"),
            (ChangeState::Discarded, "(1) were not sent."),
            (ChangeState::Kept, "cannot be undone"),
            (ChangeState::Undone, "cannot be undone"),
        ] {
            let whole = sentence(&all, Some(&StagedState { state, until: UNTIL, by: None }));
            assert!(whole.contains(said), "{whole}");
        }
    }

    #[test]
    fn a_person_who_decides_is_told_of_every_emptied_file() {
        let emptied = |number: u32| ShownChange {
            bytes_before: Some(9),
            bytes_after: Some(0),
            ..shown(ChangeWord::Changed, &format!("/w/{}-{number}", "x".repeat(100)))
        };
        let all = changes((0..80).map(emptied).collect(), 80);
        let whole = list_for_decision(&all);
        assert_eq!(whole.matches("\n* emptied file `").count(), 80, "{whole}");
        assert!(list(&all).ends_with("which are not listed here"), "a model needs no more than it can read");
    }

    #[test]
    fn contents_that_are_not_shown_are_named_while_somebody_may_decide() {
        let cut = ShownChange { is_diff_cut: true, ..shown(ChangeWord::Changed, "/w/none") };
        let all = changes(vec![cut], 1);
        for (state, is_named) in [(ChangeState::Waiting, true), (ChangeState::Kept, false)] {
            let said = sentence(&all, Some(&StagedState { state, until: UNTIL, by: None }));
            assert_eq!(said.contains("Not shown: content of 1 file."), is_named, "{said}");
        }
    }

    #[test]
    fn differences_are_shown_as_far_as_they_fit() {
        let with_diff = |diff: String| ShownChange { diff: Some(diff), ..shown(ChangeWord::Changed, "/w/a") };
        let small = with_diff("@@ -1 +1 @@\n-a\n+b\n".to_owned());
        let cut = ShownChange { is_diff_cut: true, ..small.clone() };
        let large = with_diff("x".repeat(MAX_DIFF_BYTES));
        let text = differences(&changes(vec![large, small, cut, shown(ChangeWord::Deleted, "/w/b")], 4));
        let one = "\n`/w/a`:\n@@ -1 +1 @@\n-a\n+b";
        assert_eq!(
            text,
            format!(
                "{one}{one}\n(a part of the difference not shown)\nThe differences of 1 more files are not shown here."
            )
        );
    }

    #[test]
    fn a_sentence_tells_whether_the_changes_are_in_force() {
        let of = |state, by: Option<&str>| StagedState { state, until: UNTIL, by: by.map(str::to_owned) };
        let said = |state: &StagedState| sentence(&changes(vec![], 3), Some(state));
        let waiting = said(&of(ChangeState::Waiting, None));
        assert!(
            waiting.contains("(3) are not in force") && waiting.contains("at 2026-12-01T12:00:00Z"),
            "{waiting}"
        );
        for state in [ChangeState::InForce, ChangeState::Kept] {
            let state = of(state, Some("anna"));
            assert!(state.is_in_force() && !state.is_waiting());
            assert_eq!(
                said(&state),
                "The file changes of this call (3) are in force: they were committed by anna."
            );
        }
        for state in [ChangeState::Waiting, ChangeState::Discarded, ChangeState::Undone] {
            let state = of(state, Some("anna"));
            assert!(!state.is_in_force());
            assert!(!said(&state).contains("are in force"), "{}", said(&state));
        }
        let unknown = sentence(&changes(vec![], 1), None);
        assert!(unknown.contains("were not in force"), "{unknown}");
    }
}
