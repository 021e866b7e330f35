//! The file changes of a staged run, as the answers of every door but A2G's show them.
//!
//! A receipt never changes, so an answer has two parts: the changes of the receipt, and what has become of them since
//! ([`StagedState`]), which the door asks the core for.

use crate::measurements;
use a2g_types::outcome::{ChangeGroup, ChangeState, FileChanges, Receipt, ShownChange, ShownRequest, Status};
use a2g_types::visible_text::escape_invisible;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Maximum size in bytes of a list of changes in a text, apart from requests and what else a person who decides has to see.
const MAX_LIST_BYTES: usize = 4_000;
/// Maximum length in characters of the URL of a request in such a list; the host is always within. Reports, the console
/// and the command line have it whole.
const MAX_URL_CHARS: usize = 300;
/// Maximum length in characters of the body of a request in such a list. The console and the command line
/// have a short body whole.
const MAX_BODY_CHARS: usize = 1_000;
/// Maximum size in bytes of the differences in a text.
const MAX_DIFF_BYTES: usize = 4_000;

/// The end of a sentence about changes whose state this node does not know.
const WHO_KNOWS: &str = "waited for a decision. The node that ran it knows what has become of them, unless they are left to \
                         its operator (see its log).";

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
    /// The clause about the requests of the run in the record of the last decision
    /// ([`DecisionAct::find_note`](a2g_types::outcome::DecisionAct::find_note)); `None` if there is none, or the journal has
    /// pruned the record.
    pub note: Option<String>,
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
            ChangeState::Sending | ChangeState::InForce | ChangeState::Kept => true,
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
    let Some(StagedState { state, until, by, note: _ }) = state else { return Map::new() };
    let end = match state {
        ChangeState::Waiting | ChangeState::InForce => format_time(*until),
        ChangeState::Sending | ChangeState::Kept | ChangeState::Discarded | ChangeState::Undone => None,
    };
    let mut members = Map::from_iter([("state".to_owned(), state.as_str().into())]);
    members.extend(by.as_ref().map(|by| ("decided_by".to_owned(), by.as_str().into())));
    members.extend(end.map(|end| ("until".to_owned(), end.into())));
    members
}

/// A sentence that says whether the changes are in force, and who decided. While they wait, a second one names the parts
/// that a person cannot read. If the run has left requests, another one says what becomes of these; it is the only one if no
/// file is changed.
#[must_use]
pub fn sentence(changes: &FileChanges, state: Option<&StagedState>) -> String {
    let about_requests = sentence_about_requests(changes, state);
    let is_about_files = changes.count > 0 || about_requests.is_none();
    let about_files = is_about_files.then(|| sentence_about_files(changes, state));
    about_files.into_iter().chain(about_requests).collect::<Vec<_>>().join(" ")
}

/// The sentence about requests. Without file changes, it also says who decides or has decided, and until when.
fn sentence_about_requests(changes: &FileChanges, state: Option<&StagedState>) -> Option<String> {
    let subject = match changes.requests.len() {
        0 => return None,
        count => format!("The requests that this call has left ({count})"),
    };
    let has_files = changes.count > 0;
    let Some(StagedState { state, until, by, note }) = state else {
        let more = if has_files { ".".to_owned() } else { format!(", and {WHO_KNOWS}") };
        return Some(format!("{subject} were not sent when it ended{more}"));
    };
    let author = by.as_ref().filter(|_| !has_files).map_or_else(String::new, |by| format!(" by {by}"));
    Some(match state {
        ChangeState::Waiting => {
            let end = if has_files {
                String::new()
            } else {
                format!(" They wait until a person commits or discards them. {}", describe_expiry(*until))
            };
            format!(
                "{subject} are not sent: a commit sends them once, and nothing takes them back then.{end}"
            )
        }
        ChangeState::Sending => format!("{subject} are being sent, for good."),
        ChangeState::Discarded if has_files => format!("{subject} were not sent."),
        ChangeState::Discarded => format!("{subject} were not sent: they were discarded{author}."),
        ChangeState::InForce | ChangeState::Kept | ChangeState::Undone => match note {
            Some(note) => {
                format!("{subject} were tried at the commit{author}: {}.", escape_invisible(note, usize::MAX))
            }
            None => {
                format!("{subject} may have been sent, for good: the record of the commit is not known here.")
            }
        },
    })
}

/// The sentence about the end of the time for a decision.
fn describe_expiry(until: OffsetDateTime) -> String {
    let end = format_time(until).map_or_else(String::new, |until| format!(" at {until}"));
    format!("Without a decision, they are discarded{end}.")
}

fn sentence_about_files(changes: &FileChanges, state: Option<&StagedState>) -> String {
    let subject = format!("The file changes of this call ({})", changes.count);
    let Some(StagedState { state, until, by, note: _ }) = state else {
        return format!("{subject} were not in force when it ended, and {WHO_KNOWS}");
    };
    let by = by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
    match state {
        ChangeState::Waiting => {
            let expiry = describe_expiry(*until);
            let unseen = changes.describe_unseen().map_or_else(String::new, |unseen| format!(" {unseen}"));
            format!(
                "{subject} are not in force: they wait until a person commits or discards them, and no file has changed yet. \
                 {expiry}{unseen}"
            )
        }
        ChangeState::Sending | ChangeState::InForce | ChangeState::Kept => {
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
    // Each request is listed, and before the changes: it leaves the machine. They are few, and take no room from the changes.
    for request in &changes.requests {
        text.push_str(&format!("\n* {}", request_line(request)));
    }
    let max_bytes = text.len() + MAX_LIST_BYTES;
    let mut listed = 0_u64;
    for change in &changes.shown {
        let line = line(change);
        // No line of a difference begins with `*`, so the content of a file cannot imitate this list.
        if !is_required(change.group()) && text.len() + line.len() > max_bytes {
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
        let shown = format!("\n{}:\n{}{cut}", code(&change.path), diff.trim_end_matches('\n'));
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
    let before = from.as_ref().map_or_else(String::new, |from| format!("{} to ", code(from)));
    let after =
        target.as_ref().map_or_else(String::new, |target| format!(", which points to {}", code(target)));
    let rights = change.new_rights().into_iter().map(str::to_owned);
    let facts = change.facts().into_iter().chain(rights).chain(change.describe_unread());
    let details = facts.collect::<Vec<_>>().join(", ");
    let note = if details.is_empty() { String::new() } else { format!(" ({details})") };
    format!("{word} {} {before}{}{after}{note}", entry.as_str(), code(path))
}

/// One request, such as ``sends `POST https://a.example:443/x` (no body; fields cookie)``. The texts of a request are escaped.
fn request_line(request: &ShownRequest) -> String {
    let ShownRequest { method, url, body, .. } = request;
    let (shown, cut) = cut_text(url, MAX_URL_CHARS, "the URL");
    let content = escape_backticks(&request.describe_content());
    let body = body.as_ref().map_or_else(String::new, |body| {
        let (shown_body, cut_body) = cut_text(body, MAX_BODY_CHARS, "the body");
        format!(" with the body {}{cut_body}", code(shown_body))
    });
    format!("sends {} ({content}{cut}){body}", code(&format!("{method} {shown}")))
}

/// The first characters of a text, and a clause about the others. `name` is that of the text.
fn cut_text<'a>(text: &'a str, max_chars: usize, name: &str) -> (&'a str, String) {
    let Some((end, _)) = text.char_indices().nth(max_chars) else { return (text, String::new()) };
    let (shown, rest) = text.split_at(end);
    (shown, format!("; {} more characters of {name} not shown", rest.chars().count()))
}

/// A text of others as code in Markdown, which it cannot end.
fn code(text: &str) -> String {
    format!("`{}`", escape_backticks(text))
}

fn escape_backticks(text: &str) -> String {
    text.replace('`', "\\u{60}")
}

/// The labels of a commit and of a discard in a prompt about changes that wait.
pub(crate) fn decision_labels(changes: &FileChanges) -> [String; 2] {
    match changes.describe_sending() {
        None => ["Commit: all of the file changes take effect", "Discard: none of them takes effect"]
            .map(str::to_owned),
        Some(sends) if changes.count == 0 => {
            [format!("Commit: {sends}, for good"), "Discard: nothing is sent".to_owned()]
        }
        Some(sends) => [
            format!("Commit: all of the file changes take effect; it then {sends}, for good"),
            "Discard: none of them takes effect, and nothing is sent".to_owned(),
        ],
    }
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

    fn request(url: &str) -> ShownRequest {
        ShownRequest {
            method: "POST".to_owned(),
            url: url.to_owned(),
            fields: vec!["cookie".to_owned()],
            body_bytes: 0,
            body_digest: Digest([1; 32]),
            body: None,
        }
    }

    fn by_anna(state: ChangeState) -> StagedState {
        StagedState { state, until: UNTIL, by: Some("anna".to_owned()), note: None }
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
        let files = changes(vec![shown(ChangeWord::Deleted, "/w/a")], 1);
        let all = FileChanges { requests: vec![request("https://a.example:443/x")], ..files };
        assert_eq!(
            list(&all),
            "It deletes 1, sends 1 request:\n* sends `POST https://a.example:443/x` (no body; fields cookie)\n\
             * deleted file `/w/a`"
        );
        let note = "0 of 1 requests were sent; request 1 was not sent: no";
        let of = |state, note: Option<&str>| StagedState { note: note.map(str::to_owned), ..by_anna(state) };
        let tried = format!("(1) were tried at the commit: {note}.");
        for (state, said) in [
            (of(ChangeState::Waiting, None), "(1) are not sent: a commit sends them once"),
            (of(ChangeState::Discarded, None), "(1) were not sent."),
            (of(ChangeState::Kept, Some(note)), &*tried),
            (of(ChangeState::Undone, Some(note)), &*tried),
            (of(ChangeState::Kept, None), "(1) may have been sent, for good"),
        ] {
            let whole = sentence(&all, Some(&state));
            assert!(
                whole.starts_with("The file changes of this call (1) ") && whole.contains(said),
                "{whole}"
            );
        }
        // Nothing is said of files that are not changed.
        let only = FileChanges { count: 0, shown: Vec::new(), ..all };
        let subject = "The requests that this call has left (1)";
        for (state, said) in [
            (
                of(ChangeState::Waiting, None),
                "Without a decision, they are discarded at 2026-12-01T12:00:00Z.",
            ),
            (of(ChangeState::Discarded, None), "were not sent: they were discarded by anna."),
            (of(ChangeState::Kept, Some(note)), "were tried at the commit by anna: 0 of 1"),
        ] {
            let whole = sentence(&only, Some(&state));
            assert!(whole.starts_with(subject) && whole.contains(said), "{whole}");
        }
        let unknown = sentence(&only, None);
        assert!(unknown.contains("were not sent when it ended, and waited"), "{unknown}");
    }

    #[test]
    fn a_prompt_says_what_a_commit_sends() {
        let files = changes(vec![], 1);
        let both = FileChanges { requests: vec![request("https://a.example:443/")], ..files.clone() };
        let only = FileChanges { count: 0, ..both.clone() };
        for (changes, commit, discard) in [
            (files, "all of the file changes take effect", "none of them takes effect"),
            (
                both,
                "all of the file changes take effect; it then sends 1 request, for good",
                "none of them takes effect, and nothing is sent",
            ),
            (only, "sends 1 request, for good", "nothing is sent"),
        ] {
            assert_eq!(
                decision_labels(&changes),
                [format!("Commit: {commit}"), format!("Discard: {discard}")]
            );
        }
    }

    #[test]
    fn no_request_takes_room_from_changes_or_ends_its_frame() {
        let long = request(&format!("https://a.example:443/?`![x](y)`{}", "a".repeat(400)));
        let line = request_line(&long);
        assert!(line.starts_with("sends `POST https://a.example:443/?\\u{60}![x](y)\\u{60}aaa"), "{line}");
        assert!(
            line.ends_with("a` (no body; fields cookie; 132 more characters of the URL not shown)"),
            "{line}"
        );
        let with_body = ShownRequest {
            body: Some(format!("`{}", "b".repeat(1_009))),
            ..request("https://a.example:443/")
        };
        let line = request_line(&with_body);
        assert!(line.contains(") with the body `\\u{60}bbb"), "{line}");
        assert!(line.ends_with("b`; 10 more characters of the body not shown"), "{line}");
        let changed = changes(vec![shown(ChangeWord::Changed, "/w/`a`")], 1);
        let listed = list_for_decision(&FileChanges { requests: vec![long; 64], ..changed });
        assert!(listed.ends_with("\n* changed file `/w/\\u{60}a\\u{60}`"), "{listed}");
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
            let said = sentence(&all, Some(&by_anna(state)));
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
        let said = |state: &StagedState| sentence(&changes(vec![], 3), Some(state));
        let waiting = said(&StagedState { by: None, ..by_anna(ChangeState::Waiting) });
        assert!(
            waiting.contains("(3) are not in force") && waiting.contains("at 2026-12-01T12:00:00Z"),
            "{waiting}"
        );
        for state in [ChangeState::InForce, ChangeState::Kept] {
            let decided = by_anna(state);
            assert!(decided.is_in_force() && !decided.is_waiting());
            assert_eq!(
                said(&decided),
                "The file changes of this call (3) are in force: they were committed by anna."
            );
        }
        for state in [ChangeState::Waiting, ChangeState::Discarded, ChangeState::Undone] {
            let other = by_anna(state);
            assert!(!other.is_in_force());
            assert!(!said(&other).contains("are in force"), "{}", said(&other));
        }
        let unknown = sentence(&changes(vec![], 1), None);
        assert!(unknown.contains("were not in force"), "{unknown}");
    }
}
