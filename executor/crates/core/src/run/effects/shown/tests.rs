//! The order of a list, and what it has room for.

use super::*;
use a2g_overlay::{FileTime, Name, Seen, Sha256};
use a2g_types::clock::SystemClock;
use serde_json::json;
use std::path::Path;
use tempfile::TempDir;

const TIME: FileTime = FileTime { seconds: 1, nanoseconds: 0 };

/// A run that has changed files of a folder.
struct Run {
    host: TempDir,
    upper: TempDir,
    effects: Effects,
}

impl Run {
    fn new() -> Self {
        let effects = Effects { changes: Vec::new(), reads: Vec::new() };
        Self { host: tempfile::tempdir().unwrap(), upper: tempfile::tempdir().unwrap(), effects }
    }

    fn add(&mut self, name: &str, kind: ChangeKind) {
        self.effects.changes.push(Change { path: path(name), kind });
    }

    /// A new content, which is stored.
    fn stage(&self, text: &str) -> NewContent {
        let number = self.upper.path().read_dir().unwrap().count();
        std::fs::write(self.upper.path().join(number.to_string()), text).unwrap();
        NewContent {
            number: to_u64(number),
            size: to_u64(text.len()),
            sha256: hash(),
            mode: 0o644,
            mtime: TIME,
        }
    }

    fn create(&mut self, name: &str, text: &str) {
        let new = self.stage(text);
        self.add(name, ChangeKind::Created { new: NewEntry::File(new) });
    }

    fn change(&mut self, name: &str, old: &str, text: &str) {
        std::fs::write(self.host.path().join(name), old).unwrap();
        let before = seen(EntryKind::File, to_u64(old.len()));
        let new = self.stage(text);
        self.add(name, ChangeKind::Changed { before, content_before: hash(), new });
    }

    fn list(&self) -> Vec<ShownChange> {
        let open = |folder: &Path| OwnedFd::from(File::open(folder).unwrap());
        let roots = RunRoots::of_folder("/workspace", open(self.host.path()));
        list(&self.effects, &roots, &Upper::new(open(self.upper.path())), &SystemClock).unwrap()
    }
}

fn to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap()
}

fn path(name: &str) -> EntryPath {
    EntryPath::of_root(0).child(&Name::new(name).unwrap())
}

fn hash() -> Sha256 {
    serde_json::from_value(json!("0".repeat(64))).unwrap()
}

fn seen(kind: EntryKind, size: u64) -> Seen {
    Seen { kind, device: 1, inode: 1, size, mode: 0o644, mtime: TIME, ctime: TIME, nlink: 1 }
}

fn words(shown: &[ShownChange]) -> Vec<(ChangeWord, &str)> {
    shown.iter().map(|change| (change.kind, change.path.as_str())).collect()
}

#[test]
fn what_was_there_before_comes_before_what_is_new() {
    let file = seen(EntryKind::File, 4);
    let mut run = Run::new();
    run.add("gone", ChangeKind::Deleted { before: file, content: None });
    run.add("moved", ChangeKind::Renamed { from: path("old"), before: file, after: None });
    run.create("a", "new");
    run.add("b", ChangeKind::Attributes { before: file, mode: Some(0o600), mtime: None });
    run.change("c", "old\n", "new\n");
    run.change("d", "old\n", "");
    run.change("e", "a long old text\n", "short\n");
    run.change("f", "an old text\n", "a text\n");
    let expected = [
        (ChangeWord::Deleted, "/workspace/gone"),
        (ChangeWord::Renamed, "/workspace/moved"),
        // It loses most of its content, and more bytes than the next one, which is emptied.
        (ChangeWord::Changed, "/workspace/e"),
        (ChangeWord::Changed, "/workspace/d"),
        (ChangeWord::Changed, "/workspace/c"),
        (ChangeWord::Changed, "/workspace/f"),
        (ChangeWord::Attributes, "/workspace/b"),
        (ChangeWord::Created, "/workspace/a"),
    ];
    assert_eq!(words(&run.list()), expected);
    let counts = ChangeCounts { deleted: 1, renamed: 1, emptied: 2, changed: 2, attributes: 1, created: 1 };
    assert_eq!(count(&run.effects), counts);
}

#[test]
fn no_content_hides_another_entry() {
    let long = "a line of a text that is as long as most lines\n".repeat(300);
    let mut run = Run::new();
    (0..6).for_each(|number| run.create(&format!("a{number}"), &long));
    (0..20).for_each(|number| run.change(&format!("z{number:02}"), "old\n", "new\n"));
    let shown = run.list();
    assert_eq!(shown.len(), 26);
    for change in &shown[..20] {
        assert_eq!((change.kind, change.is_diff_cut), (ChangeWord::Changed, false), "{change:?}");
        assert_eq!(change.diff.as_deref(), Some("@@ -1,1 +1,1 @@\n-old\n+new\n"));
    }
    assert!(shown.iter().any(|change| change.is_diff_cut), "the texts of all are too long");
    let bytes = shown.iter().filter_map(|change| change.diff.as_deref()).map(str::len).sum::<usize>();
    assert!(bytes <= MAX_SHOWN_BYTES, "{bytes}");
}

#[test]
fn no_number_of_new_entries_hides_a_changed_one() {
    let mut run = Run::new();
    let created = MAX_SHOWN_CHANGES + 1;
    let new = run.stage("");
    for number in 0..created {
        run.add(&format!("a{number}"), ChangeKind::Created { new: NewEntry::File(new.clone()) });
    }
    run.change("z", "old\n", "new\n");
    let shown = run.list();
    assert!((2..=MAX_SHOWN_CHANGES).contains(&shown.len()), "{}", shown.len());
    assert_eq!(words(&shown)[0], (ChangeWord::Changed, "/workspace/z"));
    let counts = count(&run.effects);
    assert_eq!((counts.changed, counts.created), (1, to_u64(created)));
}

#[test]
fn a_content_that_is_no_text_is_not_shown_as_a_whole() {
    let mut run = Run::new();
    run.change("changed", "old\n", "new\0\n");
    run.create("created", "new\0\n");
    run.create("text", "new\n");
    let shown = run.list();
    for change in &shown[..2] {
        assert_eq!((change.diff.as_deref(), change.is_diff_cut), (None, true), "{change:?}");
        assert!(!change.ranges.is_empty(), "{change:?}");
    }
    assert_eq!((shown[2].diff.as_deref(), shown[2].is_diff_cut), (Some("@@ -0,0 +1,1 @@\n+new\n"), false));
}
