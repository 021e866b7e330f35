//! Runs of a program whose processes their guests have taken over: what they leave in place of a true table and of the
//! contents that belong to it, and the part of the host's files that a program has.

use super::*;
use crate::run::effects::changes::list_changes;
use crate::run::effects::roots::RunRoots;
use a2g_capability::{Area, Authority, Claims, Grant, Mount};
use a2g_overlay::{
    ChangeKind, Create, EarlierFolder, Effects, FileTime, How, NewTime, NodeId, UpperBudget, View,
};
use a2g_types::limit::Layer;
use rustix::fs::{CWD, FileType, mknodat};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::LazyLock;
use tempfile::TempDir;

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::for_engine().unwrap());

const BUDGET: UpperBudget = UpperBudget { max_bytes: 1 << 20, max_nodes: 10_000 };
const READ: How = How { read: true, write: false, append: false, truncate: false, create: Create::No };
const WRITE: How = How { write: true, truncate: true, create: Create::IfMissing, ..READ };

/// The owner of the messages of all programs, but for one test.
const OWNER: &str = "owner";

/// The guest's folder, of which a run is granted a part, and the part that calls are granted.
const ALL: &str = "/workspace/**";
const PART: &str = "/workspace/in/**";

/// The files below the guest's folder, each with its path as content.
const FILES: [&str; 6] =
    ["in/deep/file.txt", "in/file.txt", "in/old.txt", "out/file.txt", "out/old.txt", "top.txt"];

/// A host with the guest's folder, and with the folder of one program.
struct Host {
    folder: TempDir,
    mounts: Mounts,
    ceilings: Ceilings,
}

/// A call that has the files of its program.
struct Call {
    turn: CallTurn,
    member: Member,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for file in FILES {
            let path = folder.path().join("work").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        fs::create_dir(folder.path().join("work/empty")).unwrap();
        let (mounts, ceilings) = limits(&[("/workspace", &folder.path().join("work"))], &[ALL]);
        Self { folder, mounts, ceilings }
    }

    fn granted(&self, scope: &str, access: FileAccess) -> GrantedRoots {
        let areas = Some(Area::parse(scope).unwrap());
        let claims = Claims { areas, access: Some(access), ..Claims::default() };
        let grant = Grant::meet(&AUTHORITY, [(Layer::Verdict, claims)], &self.ceilings).unwrap();
        let permit = Permit::open(grant, &self.mounts, &self.ceilings.areas, |_| false).unwrap();
        GrantedRoots::of(&permit)
    }

    /// Begins a program that is granted this.
    fn begin(&self, scope: &str) -> Arc<Member> {
        self.begin_for(scope, OWNER)
    }

    fn begin_for(&self, scope: &str, owner: &str) -> Arc<Member> {
        let path = self.folder.path().join("run");
        fs::create_dir(&path).unwrap();
        let dir = OwnedFd::from(File::open(path).unwrap());
        let upper = make_folder(&dir, UPPER).unwrap();
        let granted = self.granted(scope, FileAccess::ReadWrite);
        Arc::new(Member::begin(dir, upper, granted, &self.mounts, &self.ceilings, owner).unwrap())
    }

    /// Gives a call the files of its caller.
    fn call(&self, caller: &Arc<Member>, scope: &str) -> Call {
        self.call_with(caller, scope, FileAccess::ReadWrite)
    }

    fn call_with(&self, caller: &Arc<Member>, scope: &str, access: FileAccess) -> Call {
        let turn = take_turn(caller);
        let member = turn.begin(self.granted(scope, access)).unwrap();
        Call { turn, member }
    }

    /// Begins a call, and drops it at once. If it cannot begin, returns the reason.
    fn try_call(&self, caller: &Arc<Member>, scope: &str) -> Result<(), String> {
        let turn = take_turn(caller);
        turn.begin(self.granted(scope, FileAccess::ReadWrite)).map(drop).map_err(|error| error.to_string())
    }

    /// The changes of a program as a commit would see them.
    fn changes(&self, program: &Member) -> Result<Vec<String>, String> {
        let table = program.finish()?;
        let roots = RunRoots::of_areas(program.areas()).unwrap();
        let list: Effects = list_changes(&table, &program.contents().unwrap(), &roots)?;
        let describe = |change: &a2g_overlay::Change| {
            let word = match &change.kind {
                ChangeKind::Deleted { .. } => "deleted",
                ChangeKind::Renamed { .. } => "renamed",
                ChangeKind::Created { .. } => "created",
                ChangeKind::Changed { .. } => "changed",
                ChangeKind::Attributes { .. } => "attributes",
            };
            format!("{word} {}", roots.show_path(&change.path))
        };
        Ok(list.changes.iter().map(describe).collect())
    }
}

/// Mounts of these guest paths, and ceilings of these patterns.
fn limits(mounted: &[(&str, &Path)], patterns: &[&str]) -> (Mounts, Ceilings) {
    let mount =
        |(guest, host): &(&str, &Path)| Mount { guest: Tree::parse_path(guest).unwrap(), host: host.into() };
    let mounts = Mounts::new(mounted.iter().map(mount).collect()).unwrap();
    let areas = patterns.iter().flat_map(|pattern| Area::parse(pattern).unwrap()).collect();
    (mounts, Ceilings { areas, access: FileAccess::ReadWrite, ..Ceilings::closed() })
}

/// As [`Member::wait_for_turn`] does, without a runtime.
fn take_turn(caller: &Arc<Member>) -> CallTurn {
    let turn = Arc::clone(&caller.turn).try_acquire_owned().unwrap();
    let number = caller.calls.fetch_add(1, Ordering::Relaxed);
    CallTurn { caller: Arc::clone(caller), name: format!("call-{number}"), _turn: turn }
}

/// The files of a run as its process has them. It is not bound by its grant.
fn view(member: &Member) -> View {
    let earlier = member.earlier.iter();
    let earlier =
        earlier.map(|(folder, from)| EarlierFolder { folder: folder.try_clone().unwrap(), from: *from });
    let base = member.base.try_clone().unwrap();
    let contents = Upper::of_member(member.upper().unwrap(), base, member.from, earlier.collect());
    let table = member.latest.lock().clone();
    View::load(Table::clone(&table), contents, member.areas.lower().unwrap(), BUDGET).unwrap()
}

/// Lets the process of a run do something, and leave the table of it.
fn act(member: &Member, deed: impl FnOnce(&mut View, NodeId)) {
    let mut files = view(member);
    let root = files.root(0).unwrap();
    deed(&mut files, root);
    leave(member, &files.into_table().to_bytes().unwrap());
}

/// Leaves a table for the server.
fn leave(member: &Member, bytes: &[u8]) {
    fs::write(own(member).join(Upper::TABLE), bytes).unwrap();
}

/// The path of the folder that the process of a run writes.
fn own(member: &Member) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", member.upper.as_raw_fd())).unwrap()
}

/// The names in the folder that the server writes for a run, but for its table.
fn contents_of_calls(member: &Member) -> Vec<String> {
    let folder = fs::read_dir(format!("/proc/self/fd/{}", member.base.as_raw_fd())).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != Upper::TABLE).collect()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Opens the folder with this path below the root.
fn open(files: &mut View, root: NodeId, path: &str) -> NodeId {
    path.split('/').fold(root, |folder, part| files.open_folder(folder, &name(part)).unwrap())
}

fn write(files: &mut View, folder: NodeId, file: &str, content: &str) {
    let opened = files.open_file(folder, &name(file), WRITE).unwrap();
    opened.file.write_all_at(content.as_bytes(), 0).unwrap();
}

fn read(files: &mut View, folder: NodeId, file: &str) -> String {
    let opened = files.open_file(folder, &name(file), READ).unwrap();
    let mut content = vec![0; 100];
    let length = opened.file.read_at(&mut content, 0).unwrap();
    String::from_utf8(content[..length].to_vec()).unwrap()
}

/// Asserts that the table of a run is not taken, and that the one before it still counts. Returns the reason.
fn assert_not_taken(member: &Member, what: &str) -> String {
    let before = member.latest.lock().to_bytes().unwrap();
    let reason = member.finish().map(drop).expect_err(what);
    assert_eq!(member.latest.lock().to_bytes().unwrap(), before, "{what}");
    // A later one is not taken either.
    leave(member, &before);
    assert_eq!(member.finish().map(drop), Err(reason.clone()), "{what}");
    reason
}

#[test]
fn what_keeps_to_the_grants_is_taken() {
    let host = Host::new();
    let program = host.begin(ALL);
    act(&program, |files, root| {
        write(files, root, "top.txt", "of the program");
        files.rename((root, &name("empty")), (root, &name("moved"))).unwrap();
    });
    let call = host.call(&program, PART);
    act(&call.member, |files, root| {
        let folder = open(files, root, "in");
        assert_eq!(read(files, folder, "file.txt"), "in/file.txt");
        write(files, folder, "new.txt", "of the call");
        files.rename((folder, &name("file.txt")), (folder, &name("renamed.txt"))).unwrap();
        files.unlink(folder, &name("old.txt")).unwrap();
    });
    call.turn.hand_over(&call.member).unwrap();
    drop(call);
    assert_eq!(contents_of_calls(&program).len(), 1, "the call's content is the program's");
    assert!(!own(&program).join("../call-0").exists(), "the folder of the call is gone");
    act(&program, |files, root| {
        let folder = open(files, root, "in");
        assert_eq!(read(files, folder, "new.txt"), "of the call");
        write(files, folder, "renamed.txt", "of the program");
    });
    let expected = [
        "deleted /workspace/in/old.txt",
        "renamed /workspace/in/renamed.txt",
        "renamed /workspace/moved",
        "created /workspace/in/new.txt",
        "changed /workspace/top.txt",
    ];
    assert_eq!(host.changes(&program).unwrap(), expected);
}

type Deed = fn(&mut View, NodeId);

/// What a run that is granted [`PART`] must not do.
const NOT_GRANTED: &[(&str, Deed)] = &[
    ("reads a file", |files, root| drop(read(files, root, "top.txt"))),
    ("changes a file", |files, root| write(files, root, "top.txt", "x")),
    ("makes a file", |files, root| write(files, root, "new.txt", "x")),
    ("makes a folder", |files, root| files.create_folder(root, &name("new")).unwrap()),
    ("makes a link", |files, root| files.symlink(OsStr::new("/etc"), root, &name("new")).unwrap()),
    ("removes a file", |files, root| files.unlink(root, &name("top.txt")).unwrap()),
    ("removes a folder", |files, root| files.remove_folder(root, &name("empty")).unwrap()),
    ("renames a file", |files, root| {
        files.rename((root, &name("top.txt")), (root, &name("other.txt"))).unwrap();
    }),
    ("renames a folder", |files, root| files.rename((root, &name("out")), (root, &name("other"))).unwrap()),
    ("takes a file", |files, root| {
        let folder = open(files, root, "in");
        files.rename((root, &name("top.txt")), (folder, &name("top.txt"))).unwrap();
    }),
    ("takes a folder", |files, root| {
        let folder = open(files, root, "in");
        files.rename((root, &name("out")), (folder, &name("out"))).unwrap();
    }),
    ("gives a file away", |files, root| {
        let folder = open(files, root, "in");
        files.rename((folder, &name("file.txt")), (root, &name("file.txt"))).unwrap();
    }),
    ("replaces a file", |files, root| {
        let folder = open(files, root, "in");
        files.rename((folder, &name("file.txt")), (root, &name("top.txt"))).unwrap();
    }),
    ("exchanges two files", |files, root| {
        let folder = open(files, root, "in");
        files.rename((root, &name("top.txt")), (folder, &name("swap"))).unwrap();
        files.rename((folder, &name("file.txt")), (root, &name("top.txt"))).unwrap();
        files.rename((folder, &name("swap")), (folder, &name("file.txt"))).unwrap();
    }),
    ("renames its folder", |files, root| files.rename((root, &name("in")), (root, &name("other"))).unwrap()),
    ("hides its folder in another", |files, root| {
        let folder = open(files, root, "empty");
        files.rename((root, &name("in")), (folder, &name("in"))).unwrap();
    }),
    ("sets a time", |files, root| {
        let time = NewTime::At(FileTime { seconds: 7, nanoseconds: 0 });
        files.set_times_at(root, &name("top.txt"), NewTime::Keep, time).unwrap();
    }),
    ("sets a time of the folder that contains its own", |files, root| {
        files.set_times(root, NewTime::Keep, NewTime::At(FileTime { seconds: 7, nanoseconds: 0 })).unwrap();
    }),
    ("changes what is below a folder", |files, root| {
        let folder = open(files, root, "out");
        write(files, folder, "file.txt", "x");
    }),
    ("changes what is granted, too", |files, root| {
        let folder = open(files, root, "in");
        write(files, folder, "file.txt", "x");
        files.unlink(root, &name("top.txt")).unwrap();
    }),
];

#[test]
fn a_call_that_does_what_it_was_not_granted_leaves_nothing() {
    for (what, deed) in NOT_GRANTED {
        let host = Host::new();
        let program = host.begin(ALL);
        act(&program, |files, root| write(files, root, "own.txt", "own"));
        let call = host.call(&program, PART);
        act(&call.member, deed);
        let refused = call.turn.hand_over(&call.member).expect_err(what);
        assert!(refused.contains("not true") && refused.contains("`/workspace"), "{what}: {refused}");
        assert_not_taken(&call.member, what);
        drop(call);
        // The program goes on, and its next call.
        assert_eq!(contents_of_calls(&program), Vec::<String>::new(), "{what}");
        let next = host.call(&program, PART);
        act(&next.member, |files, root| {
            let folder = open(files, root, "in");
            assert_eq!(read(files, folder, "file.txt"), "in/file.txt", "{what}");
        });
        next.turn.hand_over(&next.member).unwrap();
        drop(next);
        assert_eq!(host.changes(&program).unwrap(), ["created /workspace/own.txt"], "{what}");
    }
}

#[test]
fn a_program_that_does_what_it_was_not_granted_ends_without_changes() {
    for (what, deed) in NOT_GRANTED {
        let host = Host::new();
        let program = host.begin(PART);
        act(&program, deed);
        // Its calls do not begin, and it ends as not committed.
        let refused = host.try_call(&program, ALL).expect_err(what);
        assert_eq!(assert_not_taken(&program, what), refused, "{what}");
        assert_eq!(host.changes(&program), Err(refused), "{what}");
    }
}

/// A call cannot put anything in the place of the folder that it was granted: that is an entry of the folder above.
#[test]
fn a_call_does_not_replace_the_folder_that_it_was_granted() {
    let empty_it = |files: &mut View, root: NodeId| {
        let folder = open(files, root, "in");
        for file in ["file.txt", "old.txt"] {
            files.unlink(folder, &name(file)).unwrap();
        }
        let deep = open(files, folder, "deep");
        files.unlink(deep, &name("file.txt")).unwrap();
        files.remove_folder(folder, &name("deep")).unwrap();
        for opened in [deep, folder] {
            files.close_folder(opened);
        }
        files.remove_folder(root, &name("in")).unwrap();
    };
    let replacements: [(&str, Deed); 4] = [
        ("nothing", |_, _| {}),
        ("a link", |files, root| files.symlink(OsStr::new("/etc"), root, &name("in")).unwrap()),
        ("a file", |files, root| write(files, root, "in", "x")),
        ("another folder", |files, root| files.create_folder(root, &name("in")).unwrap()),
    ];
    for (what, replace) in replacements {
        let host = Host::new();
        let program = host.begin(ALL);
        let call = host.call(&program, PART);
        act(&call.member, |files, root| {
            empty_it(files, root);
            replace(files, root);
        });
        assert!(call.turn.hand_over(&call.member).is_err(), "{what} takes the place of the granted folder");
    }
    // All that is in it is its own, and so are the times of the folder itself.
    let host = Host::new();
    let program = host.begin(ALL);
    let call = host.call(&program, PART);
    act(&call.member, |files, root| {
        let folder = open(files, root, "in");
        files.unlink(folder, &name("file.txt")).unwrap();
        files.set_times(folder, NewTime::Keep, NewTime::At(FileTime { seconds: 7, nanoseconds: 0 })).unwrap();
    });
    call.turn.hand_over(&call.member).unwrap();
    drop(call);
    assert_eq!(
        host.changes(&program).unwrap(),
        ["deleted /workspace/in/file.txt", "attributes /workspace/in"]
    );
}

#[test]
fn a_call_that_may_only_read_leaves_no_change() {
    let deeds: [(&str, Deed); 3] = [
        ("changes", |files, root| write(files, root, "top.txt", "x")),
        ("removes", |files, root| files.unlink(root, &name("top.txt")).unwrap()),
        ("moves", |files, root| files.rename((root, &name("out")), (root, &name("other"))).unwrap()),
    ];
    for (what, deed) in deeds {
        let host = Host::new();
        let program = host.begin(ALL);
        let call = host.call_with(&program, ALL, FileAccess::ReadOnly);
        act(&call.member, deed);
        assert_not_taken(&call.member, what);
    }
    let host = Host::new();
    let program = host.begin(ALL);
    let call = host.call_with(&program, ALL, FileAccess::ReadOnly);
    act(&call.member, |files, root| drop(read(files, root, "top.txt")));
    call.turn.hand_over(&call.member).unwrap();
}

#[test]
fn a_pattern_is_compared_with_where_a_file_is() {
    const TEXTS: &str = "/workspace/*.txt";
    let deeds: [(&str, bool, Deed); 6] = [
        ("makes a file", true, |files, root| write(files, root, "new.txt", "x")),
        ("renames one", true, |files, root| {
            files.rename((root, &name("top.txt")), (root, &name("other.txt"))).unwrap();
        }),
        ("makes another file", false, |files, root| write(files, root, "new.md", "x")),
        ("renames one to another", false, |files, root| {
            files.rename((root, &name("top.txt")), (root, &name("top.md"))).unwrap();
        }),
        ("changes a file deeper", false, |files, root| {
            let folder = open(files, root, "out");
            write(files, folder, "file.txt", "x");
        }),
        // Its name matches, and not all that can be below it.
        ("gives a folder such a name", false, |files, root| {
            files.rename((root, &name("out")), (root, &name("out.txt"))).unwrap();
        }),
    ];
    for (what, is_granted, deed) in deeds {
        let host = Host::new();
        let program = host.begin(ALL);
        let call = host.call(&program, TEXTS);
        act(&call.member, deed);
        assert_eq!(call.turn.hand_over(&call.member).is_ok(), is_granted, "{what}");
    }
}

/// A program whose file `in/own.txt` has a content of its own, and which has read `in/old.txt`; and a call of it.
fn with_call() -> (Host, Arc<Member>, Call) {
    let host = Host::new();
    let program = host.begin(ALL);
    act(&program, |files, root| {
        let folder = open(files, root, "in");
        write(files, folder, "own.txt", "own");
        assert_eq!(read(files, folder, "old.txt"), "in/old.txt");
    });
    let call = host.call(&program, PART);
    (host, program, call)
}

fn list<'v>(table: &'v mut Value, member: &str) -> &'v mut Vec<Value> {
    table[member].as_array_mut().unwrap()
}

fn read_of_old(entry: &Value) -> bool {
    entry["path"]["names"] == json!(["in", "old.txt"])
}

type Change = fn(&mut Value);

/// Changes of a true table that make it a false one, although all of it is in the granted part.
const FORGED: &[(&str, Change)] = &[
    ("another version", |table| table["version"] = 2.into()),
    ("no root", |table| table["nodes"] = json!([])),
    ("an unknown member", |table| table["more"] = 1.into()),
    ("a forgotten read", |table| list(table, "originals").retain(|entry| !read_of_old(entry))),
    ("a read twice", |table| {
        let again = list(table, "originals").iter().find(|entry| read_of_old(entry)).unwrap().clone();
        list(table, "originals").push(again);
    }),
    ("another state of what was read", |table| {
        let read = list(table, "originals").iter_mut().find(|entry| read_of_old(entry)).unwrap();
        read["seen"]["inode"] = (read["seen"]["inode"].as_u64().unwrap() + 1).into();
    }),
    ("a read of a file that was not there", |table| {
        let mut read = list(table, "originals").iter().find(|entry| read_of_old(entry)).unwrap().clone();
        read["path"]["names"] = json!(["in", "own.txt", "x"]);
        list(table, "originals").push(read);
    }),
    ("a read of another area", |table| {
        let mut read = list(table, "originals").iter().find(|entry| read_of_old(entry)).unwrap().clone();
        read["path"]["root"] = 1.into();
        list(table, "originals").push(read);
    }),
    ("a lower number of the next node", |table| table["next_node"] = 1.into()),
    ("a lower number of the next content", |table| table["next_content"] = 1.into()),
    ("a number of contents that nobody can count", |table| table["next_content"] = u64::MAX.into()),
    ("an earlier number for its content", |table| own_content(table, 0)),
    ("a content that was not given", |table| own_content(table, 1_000_000)),
    ("its node twice", |table| {
        let node = list(table, "nodes").last().unwrap().clone();
        list(table, "nodes").push(node);
    }),
    ("a node without a place", |table| {
        let mut node = list(table, "nodes").last().unwrap().clone();
        let number = table["next_node"].as_u64().unwrap();
        node["id"] = number.into();
        table["next_node"] = (number + 1).into();
        list(table, "nodes").push(node);
    }),
    ("a mode with more than permissions", |table| {
        for node in list(table, "nodes") {
            node["mode"] = 0o100_644.into();
        }
    }),
];

/// Gives all contents of a table this number.
fn own_content(table: &mut Value, number: u64) {
    for node in list(table, "nodes") {
        if let Some(kind) = node["kind"].get_mut("upper_file") {
            kind["number"] = number.into();
        }
    }
}

#[test]
fn a_forged_table_is_not_taken() {
    for (what, change) in FORGED {
        for is_call in [true, false] {
            let (host, program, call) = with_call();
            let table = call.member.latest.lock().to_bytes().unwrap();
            let mut forged = serde_json::from_slice(&table).unwrap();
            change(&mut forged);
            let bytes = serde_json::to_vec(&forged).unwrap();
            if is_call {
                leave(&call.member, &bytes);
                assert!(call.turn.hand_over(&call.member).is_err(), "{what}");
                assert_not_taken(&call.member, what);
                drop(call);
                assert_eq!(host.changes(&program).unwrap(), ["created /workspace/in/own.txt"], "{what}");
            } else {
                drop(call);
                leave(&program, &bytes);
                assert_not_taken(&program, what);
            }
        }
    }
}

/// What can be in the place of a table, with the folder of the host.
type InPlace = fn(&Path, &Path);

const NO_TABLES: &[(&str, InPlace)] = &[
    ("nothing in it", |path, _| drop(File::create(path).unwrap())),
    ("no JSON", |path, _| fs::write(path, "table").unwrap()),
    ("a part of one", |path, _| fs::write(path, r#"{"version":1,"nodes":["#).unwrap()),
    ("deep JSON", |path, _| fs::write(path, "[".repeat(1 << 20)).unwrap()),
    ("65 MB", |path, _| File::create(path).unwrap().set_len(65 << 20).unwrap()),
    ("an endless file", |path, _| symlink("/dev/zero", path).unwrap()),
    ("a link to a true table", |path, _| symlink("../base/table", path).unwrap()),
    ("a link to nothing", |path, _| symlink("nothing", path).unwrap()),
    ("a folder", |path, _| fs::create_dir(path).unwrap()),
    // Whoever opened it as a file would wait for a writer.
    ("a FIFO", |path, _| mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap()),
    ("a socket", |path, _| drop(UnixListener::bind(path).unwrap())),
];

#[test]
fn what_is_no_table_is_not_taken() {
    for (what, put) in NO_TABLES {
        for is_call in [true, false] {
            let (host, program, call) = with_call();
            if is_call {
                put(&own(&call.member).join(Upper::TABLE), host.folder.path());
                assert!(call.turn.hand_over(&call.member).is_err(), "{what}");
                drop(call);
                assert_eq!(host.changes(&program).unwrap(), ["created /workspace/in/own.txt"], "{what}");
                continue;
            }
            drop(call);
            put(&own(&program).join(Upper::TABLE), host.folder.path());
            let refused = host.try_call(&program, PART).expect_err(what);
            // Also if it is a true one by then.
            let table = own(&program).join(Upper::TABLE);
            let is_folder = table.symlink_metadata().is_ok_and(|found| found.is_dir());
            let _may_be_gone = if is_folder { fs::remove_dir(table) } else { fs::remove_file(table) };
            leave(&program, &program.latest.lock().to_bytes().unwrap());
            assert_eq!(host.changes(&program), Err(refused), "{what}");
        }
    }
}

/// What can be in the place of a content, of which the table is true.
const NO_CONTENTS: &[(&str, InPlace)] = &[
    ("nothing", |_, _| {}),
    ("a link", |path, host| symlink(host.join("work/top.txt"), path).unwrap()),
    ("another name of an original", |path, host| fs::hard_link(host.join("work/top.txt"), path).unwrap()),
    ("a folder", |path, _| fs::create_dir(path).unwrap()),
    ("a FIFO", |path, _| mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap()),
    ("a socket", |path, _| drop(UnixListener::bind(path).unwrap())),
];

#[test]
fn what_is_no_content_is_not_taken() {
    for (what, put) in NO_CONTENTS {
        let (host, program, call) = with_call();
        let number = call.member.from;
        let content = own(&call.member).join(number.to_string());
        act(&call.member, |files, root| {
            let folder = open(files, root, "in");
            write(files, folder, "new.txt", "of the call");
            write(files, folder, "more.txt", "of the call, too");
        });
        fs::remove_file(&content).unwrap();
        put(&content, host.folder.path());
        assert!(call.turn.hand_over(&call.member).is_err(), "{what}");
        drop(call);
        assert_eq!(contents_of_calls(&program), Vec::<String>::new(), "{what}");
        // The next call gives the same number again, and that content is its own.
        let next = host.call(&program, PART);
        assert_eq!(next.member.from, number, "{what}");
        act(&next.member, |files, root| {
            let folder = open(files, root, "in");
            write(files, folder, "next.txt", "of the next call");
        });
        next.turn.hand_over(&next.member).unwrap();
        drop(next);
        act(&program, |files, root| {
            let folder = open(files, root, "in");
            assert_eq!(read(files, folder, "next.txt"), "of the next call", "{what}");
        });
        let expected = ["created /workspace/in/next.txt", "created /workspace/in/own.txt"];
        assert_eq!(host.changes(&program).unwrap(), expected, "{what}");

        // The same with a content of the program, which ends without changes then.
        let own_content = own(&program).join("1");
        assert_eq!(fs::read_to_string(&own_content).unwrap(), "own");
        fs::remove_file(&own_content).unwrap();
        put(&own_content, host.folder.path());
        assert!(host.changes(&program).is_err(), "{what}");
    }
}

/// A run can make files of any number in its own folder: none of them is a content of another run.
#[test]
fn a_content_is_that_of_the_run_that_made_it() {
    let (host, program, call) = with_call();
    for number in 0..20 {
        let forged = own(&call.member).join(number.to_string());
        fs::write(forged, "forged").unwrap();
    }
    // The table with which it began, as it is.
    leave(&call.member, &call.member.latest.lock().to_bytes().unwrap());
    call.turn.hand_over(&call.member).unwrap();
    drop(call);
    assert_eq!(contents_of_calls(&program), Vec::<String>::new());
    act(&program, |files, root| {
        let folder = open(files, root, "in");
        assert_eq!(read(files, folder, "own.txt"), "own");
    });
    let second = host.call(&program, PART);
    act(&second.member, |files, root| {
        let folder = open(files, root, "in");
        write(files, folder, "new.txt", "of the call");
    });
    second.turn.hand_over(&second.member).unwrap();
    drop(second);
    // The program makes a file of the number that its call had.
    let numbers = contents_of_calls(&program);
    let [number] = &numbers[..] else { panic!("not one content: {numbers:?}") };
    fs::write(own(&program).join(number), "forged").unwrap();
    act(&program, |files, root| {
        let folder = open(files, root, "in");
        assert_eq!(read(files, folder, "new.txt"), "of the call");
    });
    let handle = program.contents().unwrap().open(number.parse().unwrap(), OFlags::RDONLY).unwrap();
    let mut content = String::new();
    File::from(handle).read_to_string(&mut content).unwrap();
    assert_eq!(content, "of the call");
    let expected = ["created /workspace/in/new.txt", "created /workspace/in/own.txt"];
    assert_eq!(host.changes(&program).unwrap(), expected);
}

#[test]
fn a_table_counts_in_its_owners_share_and_is_taken_once_there_is_room() {
    const OTHER: &str = "another owner";
    const SHARE: u64 = 1 << 40;
    memory::set_budget(u64::MAX, SHARE);
    let others_messages = memory::hold_always(OTHER, SHARE);
    let host = Host::new();
    let program = host.begin_for(ALL, OTHER);
    act(&program, |files, root| {
        for number in 0..100 {
            write(files, root, &format!("new-{number}"), "x");
        }
    });
    let refused = host.try_call(&program, PART).unwrap_err();
    assert!(refused.contains("share of `server.max_memory_mb`"), "{refused}");
    assert_eq!(program.finish().map(drop), Err(refused));
    drop(others_messages);
    let call = host.call(&program, PART);
    assert!(memory::hold(OTHER, SHARE).is_err(), "the table is counted while a call has the files");
    assert!(memory::hold("a third owner", SHARE).is_ok());
    drop(call);
    assert_eq!(host.changes(&program).unwrap().len(), 100);
    drop(program);
    assert!(memory::hold(OTHER, SHARE).is_ok(), "nothing is counted any more");
}

#[test]
fn a_content_of_a_call_is_kept_until_no_table_names_it() {
    let host = Host::new();
    let program = host.begin(ALL);
    for content in ["one", "two", "three"] {
        let call = host.call(&program, PART);
        act(&call.member, |files, root| {
            let folder = open(files, root, "in");
            write(files, folder, "file.txt", content);
        });
        call.turn.hand_over(&call.member).unwrap();
        drop(call);
        assert_eq!(contents_of_calls(&program).len(), 1, "{content}");
    }
    act(&program, |files, root| {
        let folder = open(files, root, "in");
        assert_eq!(read(files, folder, "file.txt"), "three");
        files.unlink(folder, &name("file.txt")).unwrap();
    });
    // A call that fails brings nothing back.
    drop(host.call(&program, PART));
    assert_eq!(contents_of_calls(&program), Vec::<String>::new());
    assert_eq!(host.changes(&program).unwrap(), ["deleted /workspace/in/file.txt"]);
}

#[test]
fn a_table_is_not_the_last_one_while_a_call_has_the_files() {
    let (host, program, call) = with_call();
    assert!(program.finish().map(drop).unwrap_err().contains("still has its files"));
    let inner = host.call(&Arc::new(call.member), PART);
    assert!(inner.turn.caller.finish().map(drop).unwrap_err().contains("still has its files"));
    drop((inner, call.turn));
    assert_eq!(host.changes(&program).unwrap(), ["created /workspace/in/own.txt"]);
    assert!(!own(&program).join("../call-0").exists(), "the folders of the calls are gone");
}

/// The contents of a call's calls go with it to its caller, or are gone with it.
#[test]
fn calls_of_calls_hand_over_to_their_callers() {
    for is_success in [true, false] {
        let (host, program, Call { turn, member }) = with_call();
        let outer = Arc::new(member);
        let inner = host.call(&outer, "/workspace/in/deep/**");
        act(&inner.member, |files, root| {
            let folder = open(files, root, "in/deep");
            write(files, folder, "new.txt", "of the inner call");
        });
        inner.turn.hand_over(&inner.member).unwrap();
        drop(inner);
        assert_eq!((contents_of_calls(&outer).len(), contents_of_calls(&program).len()), (1, 0));
        act(&outer, |files, root| {
            let folder = open(files, root, "in/deep");
            assert_eq!(read(files, folder, "new.txt"), "of the inner call");
            write(files, folder, "file.txt", "of the outer call");
        });
        if is_success {
            turn.hand_over(&outer).unwrap();
        }
        drop((outer, turn));
        let all = [
            "created /workspace/in/deep/new.txt",
            "created /workspace/in/own.txt",
            "changed /workspace/in/deep/file.txt",
        ];
        let mut changes = host.changes(&program).unwrap();
        changes.sort_unstable_by_key(|change| all.iter().position(|known| known == change));
        assert_eq!(changes, if is_success { &all[..] } else { &all[1..2] });
        assert_eq!(contents_of_calls(&program).len(), if is_success { 2 } else { 0 });
    }
}

/// The reason names what to do: it comes back each time.
#[test]
fn a_call_cannot_be_given_too_many_files_from_outside_its_grant() {
    for (count, is_given) in [(MAX_READABLE, true), (MAX_READABLE + 1, false)] {
        let host = Host::new();
        for number in 0..count {
            fs::write(host.folder.path().join("work/out").join(number.to_string()), "x").unwrap();
        }
        let program = host.begin(ALL);
        act(&program, |files, root| {
            let from = open(files, root, "out");
            let to = open(files, root, "in");
            for number in 0..count {
                let name = name(&number.to_string());
                files.rename((from, &name), (to, &name)).unwrap();
            }
        });
        let call = host.call(&program, PART);
        let permit = call.member.to_permit();
        if is_given {
            assert_eq!(permit.unwrap().readable.len(), count);
        } else {
            let reason = permit.map(drop).unwrap_err().to_string();
            let words = ["129 files", "128 are allowed", "from which they come"];
            assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
        }
    }
}

/// What others have removed or replaced is no right to read what is there now.
#[test]
fn a_link_in_place_of_a_moved_file_is_not_followed() {
    let host = Host::new();
    let program = host.begin(ALL);
    act(&program, |files, root| {
        let folder = open(files, root, "in");
        for file in ["top.txt", "out"] {
            files.rename((root, &name(file)), (folder, &name(file))).unwrap();
        }
    });
    let work = host.folder.path().join("work");
    fs::remove_file(work.join("top.txt")).unwrap();
    symlink("/etc/passwd", work.join("top.txt")).unwrap();
    fs::remove_dir_all(work.join("out")).unwrap();
    symlink("/etc", work.join("out")).unwrap();
    let call = host.call(&program, PART);
    for handle in call.member.to_permit().unwrap().readable {
        let found = fs::read_link(format!("/proc/self/fd/{}", handle.as_raw_fd())).unwrap();
        assert!(found.starts_with(&work), "{found:?}");
    }
}

fn area_root(areas: &Areas, path: &str) -> Option<(usize, usize)> {
    areas.place(path).map(|place| (place.root, place.names.len()))
}

#[test]
fn areas_are_the_folders_that_may_be_granted() {
    let host = tempfile::tempdir().unwrap();
    let at = |name: &str| host.path().join(name);
    for folder in ["area/inner", "mounted", "work/sub", "other"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    let area_path = at("area");
    let area = area_path.to_str().unwrap();
    let inner = format!("{area}/inner");
    let [mounted, work, other] = ["mounted", "work", "other"].map(at);
    let mounts = [("/other", &*other), ("/workspace", &*work), (inner.as_str(), &*mounted)];
    // `/other` may not be granted.
    let (mounted_all, ceilings) =
        limits(&mounts, &[&format!("{area}/**"), "/workspace/**", "/workspace/sub/**", "/none/**"]);
    let areas = Areas::open(&mounted_all, &ceilings).unwrap();
    let guests = areas.roots().iter().map(|root| root.guest.path().to_owned()).collect::<Vec<_>>();
    let mut expected = [area, &inner, "/workspace"];
    expected.sort_unstable();
    assert_eq!(guests, expected);
    let index = |guest: &str| guests.iter().position(|known| known == guest).unwrap();
    assert_eq!(area_root(&areas, &format!("{area}/x")), Some((index(area), 1)));
    assert_eq!(area_root(&areas, &format!("{area}/inner-x")), Some((index(area), 1)));
    assert_eq!(area_root(&areas, &inner), Some((index(&inner), 0)));
    assert_eq!(area_root(&areas, &format!("{inner}/x/y")), Some((index(&inner), 2)));
    assert_eq!(area_root(&areas, "/workspace/sub/x"), Some((index("/workspace"), 2)));
    for nowhere in ["/other/x", "/none/x", "/workx", "/"] {
        assert_eq!(area_root(&areas, nowhere), None, "{nowhere}");
    }
    let place = areas.place("/workspace/sub/x").unwrap();
    assert_eq!(areas.guest_path(&place).as_deref(), Some("/workspace/sub/x"));
}

/// A mount whose folder is gone is nowhere, and not at its guest path in the area around it.
#[test]
fn a_missing_area_is_at_no_place() {
    let host = tempfile::tempdir().unwrap();
    let area = host.path().join("area");
    fs::create_dir_all(area.join("inner")).unwrap();
    let guest = area.to_str().unwrap();
    let inner = format!("{guest}/inner");
    let (mounts, ceilings) = limits(&[(&inner, &host.path().join("gone"))], &[&format!("{guest}/**")]);
    let areas = Areas::open(&mounts, &ceilings).unwrap();
    assert_eq!(areas.roots().len(), 1);
    assert_eq!(area_root(&areas, &format!("{guest}/x")), Some((0, 1)));
    for gone in [inner.clone(), format!("{inner}/x")] {
        assert_eq!(area_root(&areas, &gone), None, "{gone} is not in the folder of the mount");
    }
}

#[test]
fn areas_that_overlap_on_the_host_are_refused() {
    let host = tempfile::tempdir().unwrap();
    let at = |name: &str| host.path().join(name);
    fs::create_dir_all(at("work/sub")).unwrap();
    symlink("work/sub", at("link")).unwrap();
    for overlapping in ["work", "work/sub", "link", "."] {
        let work = at("work");
        let view = at(overlapping);
        let mounted: [(&str, &Path); 2] = [("/workspace", &work), ("/view", &view)];
        let (mounts, both) = limits(&mounted, &["/workspace/**", "/view/**"]);
        let reason = Areas::open(&mounts, &both).map(drop).unwrap_err().to_string();
        assert!(reason.contains("`/workspace`") && reason.contains("`/view`"), "{overlapping}: {reason}");
        // Only one of them may be granted.
        let (_, one) = limits(&mounted, &["/workspace/**"]);
        assert_eq!(Areas::open(&mounts, &one).unwrap().roots().len(), 1, "{overlapping}");
    }
}
