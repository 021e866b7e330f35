//! Programs whose calls change files: what the comparison with a plain folder omits.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use a2g_overlay::{
    Access, ChangeKind, Create, EarlierFolder, Effects, EffectsLimits, FileTime, How, LowerRoot, Name,
    NewEntry, NewTime, NodeId, OpenFile, Table, Upper, UpperBudget, View,
};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use tempfile::TempDir;

const READ: How = How { read: true, write: false, append: false, truncate: false, create: Create::No };
const WRITE: How = How { write: true, ..READ };
const MAKE: How = How { create: Create::Exclusive, ..WRITE };
const APPEND: How = How { append: true, ..READ };
const BUDGET: UpperBudget = UpperBudget { max_bytes: 1 << 20, max_nodes: 1000 };

/// The folders of a program.
struct Program {
    folder: TempDir,
}

/// One run of it, with its folders and the table with which it began.
struct Member {
    view: View,
    root: NodeId,
    start: Table,
    own: PathBuf,
    base: PathBuf,
    earlier: Vec<(PathBuf, u64)>,
}

impl Program {
    /// A program whose files have their names as content.
    fn new(files: &[&str]) -> Self {
        let program = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(program.path("lower")).unwrap();
        for file in files {
            let path = program.path("lower").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        program
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn roots(&self) -> Vec<LowerRoot> {
        vec![LowerRoot { dir: open(&self.path("lower")), access: Access::Write }]
    }

    fn start(&self) -> Member {
        self.load("program", Table::new(&self.roots()).unwrap(), Vec::new())
    }

    fn call(&self, caller: &mut Member, name: &str) -> Member {
        let from = caller.start.next_content();
        let folders = [caller.base.clone(), caller.own.clone()].map(|folder| (folder, from));
        let earlier = caller.earlier.iter().cloned().chain(folders).collect();
        self.load(name, stored(&caller.view.snapshot()), earlier)
    }

    fn load(&self, name: &str, start: Table, earlier: Vec<(PathBuf, u64)>) -> Member {
        let [own, base] = ["own", "base"].map(|part| self.path(&format!("{name} {part}")));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&base).unwrap();
        let upper = upper(&own, &base, start.next_content(), &earlier);
        let view = View::load(start.clone(), upper, self.roots(), BUDGET).unwrap();
        let root = view.root(0).unwrap();
        Member { view, root, start, own, base, earlier }
    }

    /// The changes as the commit would see them.
    fn changes(&self, member: Member) -> Vec<ChangeKind> {
        let upper = upper(&member.own, &member.base, 0, &[]);
        let table = stored(&member.view.into_table());
        let limits = EffectsLimits { max_changes: 1000, max_hashed_bytes: 1 << 20 };
        let effects = Effects::of(&table, &self.roots(), &upper, limits).unwrap();
        effects.changes.into_iter().map(|change| change.kind).collect()
    }
}

impl Member {
    /// Ends the run, and lets its caller go on with its changes.
    fn end(self, caller: &mut Member) {
        let contents = upper(&self.own, &self.base, 0, &[]);
        let table = stored(&self.view.into_table());
        table.move_contents(self.start.next_content(), &contents, &open(&caller.base)).unwrap();
        self.start.discard_contents(&table, &open(&caller.base)).unwrap();
        caller.view.reload(table).unwrap();
    }

    fn open(&mut self, name: &str, how: How) -> OpenFile {
        self.view.open_file(self.root, &self::name(name), how).unwrap()
    }

    fn write(&mut self, name: &str, content: &str) {
        let how = How { write: true, truncate: true, create: Create::IfMissing, ..How::default() };
        self.open(name, how).file.write_all_at(content.as_bytes(), 0).unwrap();
    }

    fn read(&mut self, name: &str) -> String {
        read(&self.open(name, READ))
    }

    fn list(&mut self) -> Vec<OsString> {
        let mut listing = self.view.list(self.root, 0).unwrap();
        let entries = std::iter::from_fn(|| listing.next(&self.view).unwrap());
        entries.map(|entry| entry.name).filter(|name| name != "." && name != "..").collect()
    }

    fn staged(&self) -> Vec<OsString> {
        let mut names =
            fs::read_dir(&self.own).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        names.sort();
        names
    }
}

fn stored(table: &Table) -> Table {
    Table::from_bytes(&table.to_bytes().unwrap(), 1).unwrap()
}

fn upper(own: &Path, base: &Path, from: u64, earlier: &[(PathBuf, u64)]) -> Upper {
    let earlier = earlier.iter().map(|(folder, from)| EarlierFolder { folder: open(folder), from: *from });
    Upper::of_member(open(own), open(base), from, earlier.collect())
}

fn open(path: &Path) -> OwnedFd {
    fs::File::open(path).unwrap().into()
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn read(open: &OpenFile) -> String {
    let mut content = vec![0; 100];
    let length = open.file.read_at(&mut content, 0).unwrap();
    content.truncate(length);
    String::from_utf8(content).unwrap()
}

#[test]
fn what_a_program_has_open_follows_its_calls() {
    let program = Program::new(&["read", "removed", "same"]);
    let mut caller = program.start();
    caller.write("written", "before");
    caller.write("appended", "before");
    caller.write("replaced", "before");
    caller.write("unread", "before");
    let same = caller.open("same", READ);
    let reader = caller.open("read", READ);
    let removed = caller.open("removed", READ);
    let written = caller.open("written", WRITE);
    let appended = caller.open("appended", APPEND);
    let replaced = caller.open("replaced", READ);
    let all = [&same, &reader, &removed, &written, &appended, &replaced].map(|open| open.node);
    let identities = |view: &View| all.map(|node| view.stat(node).unwrap().identity);
    let identities_before = identities(&caller.view);
    let mut call = program.call(&mut caller, "call");
    for file in ["read", "written", "appended", "unread"] {
        call.write(file, "by the call");
    }
    call.view.unlink(call.root, &name("removed")).unwrap();
    call.write("other", "other");
    call.view.rename((call.root, &name("other")), (call.root, &name("replaced"))).unwrap();
    call.end(&mut caller);
    assert_eq!(identities(&caller.view), identities_before);
    let links = all.map(|node| caller.view.stat(node).unwrap().nlink);
    assert_eq!(links, [1, 1, 0, 1, 1, 0]);
    let contents = [&same, &reader, &removed, &written, &replaced].map(read);
    assert_eq!(contents, ["same", "by the call", "removed", "by the call", "before"]);
    assert_eq!(caller.read("replaced"), "other");
    // A writer has a copy of the new content, which nobody else has.
    written.file.write_all_at(b"BY", 0).unwrap();
    appended.file.write_all_at(b", and more", 0).unwrap();
    assert_eq!(
        (caller.read("written"), caller.read("appended")),
        ("BY the call".into(), "by the call, and more".into())
    );
    assert!(reader.file.write_at(b"x", 0).is_err(), "a reader stays one");
    for entry in fs::read_dir(&caller.base).unwrap() {
        let content = fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(["by the call", "other"].contains(&content.as_str()), "{content}");
    }
    // What a call has replaced is gone, but for what is open.
    assert_eq!(caller.staged().len(), 3);
    drop(replaced);
    caller.view.create_folder(caller.root, &name("next")).unwrap();
    assert_eq!(caller.staged().len(), 2);
    drop((written, appended));
    // A content of a call is copied before it is written.
    caller.open("unread", WRITE).file.write_all_at(b"BY", 0).unwrap();
    assert_eq!(caller.read("unread"), "BY the call");
    assert_eq!(caller.staged().len(), 3);
}

#[test]
fn what_is_written_during_a_call_stays() {
    let program = Program::new(&["original"]);
    let mut caller = program.start();
    let open = caller.open("made", MAKE);
    let mut call = program.call(&mut caller, "call");
    call.write("original", "changed");
    open.file.write_all_at(b"meanwhile", 0).unwrap();
    assert_eq!(call.read("made"), "meanwhile");
    let table = stored(&call.view.snapshot());
    let is_original = |path: &a2g_overlay::EntryPath| path.names == [name("original")];
    Table::check_member(&call.start, &table, |path, _| is_original(path)).unwrap();
    call.end(&mut caller);
    assert_eq!((read(&open), caller.read("original")), ("meanwhile".into(), "changed".into()));
    drop(open);
    let changes = program.changes(caller);
    let [ChangeKind::Created { new: NewEntry::File(made) }, ChangeKind::Changed { new, .. }] = &changes[..]
    else {
        panic!("{changes:?}")
    };
    assert_eq!((made.size, new.size), (9, 7));
}

#[test]
fn a_time_that_is_set_ends_with_a_write() {
    let program = Program::new(&["file"]);
    let original = fs::File::open(program.path("lower").join("file")).unwrap();
    original.set_modified(UNIX_EPOCH + Duration::from_secs(5)).unwrap();
    let mut caller = program.start();
    let open = caller.open("file", WRITE);
    let seconds = |member: &Member| member.view.lookup(member.root, &name("file")).unwrap().modified.seconds;
    let set = |member: &mut Member, new: i64| {
        let time = NewTime::At(FileTime { seconds: new, nanoseconds: 0 });
        member.view.set_times_at(member.root, &name("file"), NewTime::Keep, time).unwrap();
    };
    let write = |content: &[u8]| {
        open.file.write_all_at(content, 0).unwrap();
        open.written.set();
    };
    assert_eq!(seconds(&caller), 5, "a file that is opened is not changed");
    write(b"1");
    assert!(seconds(&caller) > 8);
    set(&mut caller, 7);
    for (folder, is_written) in [("first", false), ("second", true)] {
        let mut call = program.call(&mut caller, folder);
        assert_eq!(seconds(&call), 7);
        set(&mut call, 8);
        if is_written {
            write(b"2");
        }
        call.end(&mut caller);
        assert_eq!(seconds(&caller) == 8, !is_written);
        assert_eq!(caller.staged(), ["1"], "nothing is copied for a time");
        set(&mut caller, 7);
    }
    let staged = fs::metadata(caller.own.join("1")).unwrap().modified().unwrap();
    assert!(staged > UNIX_EPOCH + Duration::from_secs(8), "the staged file has times of its own");
    assert_eq!(read(&open), "2ile");
    let changes = program.changes(caller);
    let [ChangeKind::Changed { new, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((new.mtime.seconds, new.size), (7, 4));
}

#[test]
fn the_calls_of_a_call_are_its_own() {
    let program = Program::new(&["a"]);
    let mut caller = program.start();
    caller.write("a", "caller");
    let mut call = program.call(&mut caller, "call");
    call.write("b", "call");
    let mut inner = program.call(&mut call, "inner");
    assert_eq!((inner.read("a"), inner.read("b")), ("caller".into(), "call".into()));
    inner.write("a", "inner");
    inner.write("c", "inner");
    inner.end(&mut call);
    assert_eq!((call.read("a"), call.read("b")), ("inner".into(), "call".into()));
    // The call fails, so its numbers are given again.
    drop(call);
    let mut next = program.call(&mut caller, "next");
    assert_eq!(next.list(), ["a"]);
    next.write("b", "next");
    next.end(&mut caller);
    assert_eq!((caller.read("a"), caller.read("b")), ("caller".into(), "next".into()));
}

#[test]
fn a_content_of_a_call_is_kept_until_another_call_replaces_it() {
    let program = Program::new(&[]);
    let mut caller = program.start();
    let kept = |caller: &Member| fs::read_dir(&caller.base).unwrap().count();
    for content in ["one", "two", "three"] {
        let mut call = program.call(&mut caller, content);
        call.write("a", content);
        call.end(&mut caller);
        assert_eq!((kept(&caller), &*caller.read("a")), (1, content));
    }
    let open = caller.open("a", READ);
    let mut removing = program.call(&mut caller, "removing");
    removing.view.unlink(removing.root, &name("a")).unwrap();
    removing.end(&mut caller);
    // An open file stays what it is, also during later calls.
    for number in 0..2 {
        assert_eq!(kept(&caller), number);
        let time = FileTime { seconds: 7, nanoseconds: 0 };
        caller.view.set_times(open.node, NewTime::Keep, NewTime::At(time)).unwrap();
        let stat = caller.view.stat(open.node).unwrap();
        assert_eq!((&*read(&open), stat.size, stat.nlink, stat.modified), ("three", 5, 0, time));
        let file = number.to_string();
        let mut call = program.call(&mut caller, &file);
        call.write(&file, "more");
        call.end(&mut caller);
    }
}

/// A run that was taken over writes files of any number.
#[test]
fn no_run_makes_the_contents_of_another() {
    let program = Program::new(&[]);
    let mut caller = program.start();
    caller.write("a", "caller");
    for number in 2..20 {
        fs::write(caller.own.join(number.to_string()), "false").unwrap();
    }
    let mut call = program.call(&mut caller, "call");
    call.write("b", "call");
    fs::write(call.own.join("1"), "false").unwrap();
    for number in 3..20 {
        fs::write(call.own.join(number.to_string()), "false").unwrap();
    }
    let mut inner = program.call(&mut call, "inner");
    assert_eq!((inner.read("a"), inner.read("b")), ("caller".into(), "call".into()));
    inner.write("c", "inner");
    inner.end(&mut call);
    assert_eq!((call.read("a"), call.read("c")), ("caller".into(), "inner".into()));
    call.end(&mut caller);
    for (file, content) in [("a", "caller"), ("b", "call"), ("c", "inner")] {
        assert_eq!(caller.read(file), content);
    }
}

#[test]
fn only_a_plain_file_is_moved() {
    let program = Program::new(&["original"]);
    let changes: [fn(&Path, &Path); 4] = [
        |content, original| symlink(original, content).unwrap(),
        |content, original| fs::hard_link(original, content).unwrap(),
        |content, _| fs::create_dir(content).unwrap(),
        |_, _| {},
    ];
    let mut caller = program.start();
    for (number, change) in changes.into_iter().enumerate() {
        let mut call = program.call(&mut caller, &number.to_string());
        call.write("made", "content");
        call.write("more", "content");
        let table = call.view.snapshot();
        let contents = upper(&call.own, &call.base, 0, &[]);
        let content = call.own.join("2");
        fs::remove_file(&content).unwrap();
        change(&content, &program.path("lower").join("original"));
        assert!(
            table.move_contents(call.start.next_content(), &contents, &open(&caller.base)).is_err(),
            "change {number}"
        );
        assert_eq!(fs::read_dir(&caller.base).unwrap().count(), 0);
    }
}

#[test]
fn a_folder_is_found_at_its_place() {
    let program = Program::new(&["d/sub/x", "file"]);
    let mut caller = program.start();
    caller.view.create_folder(caller.root, &name("made")).unwrap();
    caller.view.rename((caller.root, &name("d")), (caller.root, &name("moved"))).unwrap();
    let mut call = program.call(&mut caller, "call");
    let mut place = |names: &[&str]| {
        let names = names.iter().map(|part| name(part)).collect::<Vec<_>>();
        call.view.open_place(0, &names).unwrap()
    };
    for there in [&[][..], &["made"], &["moved"]] {
        assert!(place(there).is_some(), "{there:?}");
    }
    for absent in [&["d"][..], &["d", "sub"], &["file"], &["file", "x"], &["none"], &["moved", "none", "x"]] {
        assert_eq!(place(absent), None, "{absent:?}");
    }
    let sub = place(&["moved", "sub"]).unwrap();
    call.view.unlink(sub, &name("x")).unwrap();
    // It stays open wherever it is moved.
    call.view.rename((call.root, &name("moved")), (call.root, &name("again"))).unwrap();
    call.view.create_folder(sub, &name("inner")).unwrap();
    assert_eq!(call.view.open_place(1, &[]), Err(Errno::BADF));
    call.end(&mut caller);
    let again = caller.view.open_folder(caller.root, &name("again")).unwrap();
    let sub = caller.view.open_folder(again, &name("sub")).unwrap();
    caller.view.open_folder(sub, &name("inner")).unwrap();
}

#[test]
fn a_listing_goes_on_after_a_call() {
    let program = Program::new(&["l1", "l2"]);
    let mut caller = program.start();
    for file in ["m5", "m4", "m3", "m2", "m1"] {
        caller.write(file, "");
    }
    assert_eq!(caller.list().split_off(2), ["m5", "m4", "m3", "m2", "m1"]);
    let mut listing = caller.view.list(caller.root, 0).unwrap();
    let first = (0..6).map(|_| listing.next(&caller.view).unwrap().unwrap()).collect::<Vec<_>>();
    let mut call = program.call(&mut caller, "call");
    call.view.unlink(call.root, &name("m2")).unwrap();
    call.write("a new one", "");
    call.write("m3", "rewritten");
    call.end(&mut caller);
    let rest = std::iter::from_fn(|| listing.next(&caller.view).unwrap());
    assert_eq!(rest.map(|entry| entry.name).collect::<Vec<_>>(), ["m3", "m1"]);
    // From the cookie of an earlier entry.
    let mut listing = caller.view.list(caller.root, first.last().unwrap().next).unwrap();
    let rest = std::iter::from_fn(|| listing.next(&caller.view).unwrap());
    assert_eq!(rest.map(|entry| entry.name).collect::<Vec<_>>(), ["m3", "m1", "a new one"]);
}

#[test]
fn a_view_goes_on_only_with_its_own_program() {
    let program = Program::new(&["a"]);
    let mut member = program.start();
    let _open = member.open("a", WRITE);
    let fresh = Table::new(&program.roots()).unwrap();
    let two = program.roots().into_iter().chain(program.roots()).collect::<Vec<_>>();
    assert_eq!(member.view.reload(Table::new(&two).unwrap()), Err(Errno::INVAL));
    // A content is never one of the original again.
    let mut other = program.load("other", fresh, Vec::new());
    let _reader = other.open("a", READ);
    assert_eq!(member.view.reload(other.view.snapshot()), Err(Errno::STALE));
}
