//! Cases that the comparison with a plain folder omits: budgets, several file systems, and documented differences.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use a2g_overlay::{Access, Create, How, LowerRoot, Name, NodeId, Table, Upper, UpperBudget, View};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const READ: How = How { read: true, write: false, append: false, truncate: false, create: Create::No };
const WRITE: How = How { write: true, ..READ };
const MAKE: How = How { create: Create::Exclusive, ..WRITE };

struct Test {
    lower: TempDir,
    upper: TempDir,
}

impl Test {
    fn new() -> Self {
        Self { lower: tempfile::tempdir().unwrap(), upper: tempfile::tempdir().unwrap() }
    }

    fn view(&self, budget: UpperBudget) -> (View, NodeId) {
        let view = View::new(open(self.upper.path()), vec![root(self.lower.path())], budget).unwrap();
        let folder = view.root(0).unwrap();
        (view, folder)
    }

    fn write(&self, name: &str, content: &[u8]) {
        std::fs::write(self.lower.path().join(name), content).unwrap();
    }

    fn staged(&self) -> usize {
        std::fs::read_dir(self.upper.path()).unwrap().count()
    }
}

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn root(path: &Path) -> LowerRoot {
    LowerRoot { dir: open(path), access: Access::Write }
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

const BUDGET: UpperBudget = UpperBudget { max_bytes: 1 << 20, max_nodes: 1000 };

#[test]
fn copies_are_bounded() {
    let test = Test::new();
    test.write("small", &[1; 4096]);
    test.write("large", &vec![1; 2 << 20]);
    let (mut view, folder) = test.view(BUDGET);
    view.open_file(folder, &name("small"), WRITE).unwrap();
    assert_eq!(view.open_file(folder, &name("large"), WRITE).unwrap_err(), Errno::NOSPC);
    assert_eq!(test.staged(), 1, "what was begun is removed");
    assert_eq!(view.lookup(folder, &name("large")).unwrap().size, 2 << 20);
    // Nothing is copied of what is truncated.
    view.open_file(folder, &name("large"), How { truncate: true, ..WRITE }).unwrap();
    assert_eq!(view.lookup(folder, &name("large")).unwrap().size, 0);
}

#[test]
fn the_table_is_bounded_and_holds_only_what_is_needed() {
    let test = Test::new();
    for index in 0..60 {
        std::fs::create_dir(test.lower.path().join(index.to_string())).unwrap();
        test.write(&format!("{index}/a"), b"");
    }
    let (mut view, folder) = test.view(UpperBudget { max_nodes: 100, ..BUDGET });
    // Folders that are closed again need no place, however many there are.
    for _ in 0..20 {
        for index in 0..60 {
            let inner = view.open_folder(folder, &name(&index.to_string())).unwrap();
            view.lookup(inner, &name("a")).unwrap();
            view.close_folder(inner);
            assert_eq!(view.lookup(inner, &name("a")), Err(Errno::BADF));
        }
    }
    let made = (0..).map(|index| name(&format!("made {index}")));
    let made = made.take_while(|name| match view.open_file(folder, name, MAKE) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, Errno::NOSPC);
            false
        }
    });
    let made = made.collect::<Vec<_>>();
    assert!((90..100).contains(&made.len()), "{}", made.len());
    assert_eq!(view.create_folder(folder, &name("more")), Err(Errno::NOSPC));
    assert_eq!(view.open_folder(folder, &name("1")), Err(Errno::NOSPC));
    // An entry that the program made can always be removed.
    for name in &made {
        view.unlink(folder, name).unwrap();
    }
    assert_eq!(test.staged(), 0);
    view.create_folder(folder, &name("more")).unwrap();
}

#[test]
fn a_reader_sees_what_is_written_later() {
    let test = Test::new();
    test.write("file", b"before");
    let (mut view, folder) = test.view(BUDGET);
    let reader = view.open_file(folder, &name("file"), READ).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&*reader.file);
    let mut content = [0; 6];
    reader.file.read_exact_at(&mut content, 0).unwrap();
    let identity = view.stat(reader.node).unwrap().identity;
    view.open_file(folder, &name("file"), WRITE).unwrap().file.write_all_at(b"after ", 0).unwrap();
    reader.file.read_exact_at(&mut content, 0).unwrap();
    assert_eq!((&content, number), (b"after ", std::os::fd::AsRawFd::as_raw_fd(&*reader.file)));
    assert!(reader.file.write_at(b"x", 0).is_err(), "a reader stays one");
    assert_eq!(view.stat(reader.node).unwrap().identity, identity);
    let is_inherited = rustix::io::fcntl_getfd(&*reader.file).unwrap();
    assert_eq!(is_inherited, rustix::io::FdFlags::CLOEXEC);
    assert_eq!(std::fs::read(test.lower.path().join("file")).unwrap(), b"before");
    // Once it is removed, its content goes with the last handle.
    view.unlink(folder, &name("file")).unwrap();
    assert_eq!((view.stat(reader.node).unwrap().nlink, test.staged()), (0, 1));
    drop(reader);
    assert_eq!(view.unlink(folder, &name("file")), Err(Errno::NOENT));
    assert_eq!(test.staged(), 0);
}

#[test]
fn a_file_with_several_names_is_not_written() {
    let test = Test::new();
    test.write("a", b"content");
    std::fs::hard_link(test.lower.path().join("a"), test.lower.path().join("b")).unwrap();
    let (mut view, folder) = test.view(BUDGET);
    assert_eq!(view.open_file(folder, &name("a"), WRITE).unwrap_err(), Errno::PERM);
    // Renaming one name to the other does nothing, as in the kernel.
    view.rename((folder, &name("a")), (folder, &name("b"))).unwrap();
    assert_eq!(view.lookup(folder, &name("a")).unwrap().nlink, 2);
    view.unlink(folder, &name("b")).unwrap();
    view.open_file(folder, &name("a"), READ).unwrap();
}

/// As root, because only root can become an ordinary user.
#[test]
fn a_writer_removes_the_set_user_id_bit() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let test = Test::new();
    test.write("tool", b"content");
    let user = 65_534;
    for path in [test.lower.path(), test.upper.path(), &test.lower.path().join("tool")] {
        std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
    }
    let mode = std::fs::Permissions::from_mode(0o6755);
    std::fs::set_permissions(test.lower.path().join("tool"), mode).unwrap();
    let run = |expected: u32| {
        let (mut view, folder) = test.view(BUDGET);
        view.open_file(folder, &name("tool"), READ).unwrap();
        assert_eq!(view.lookup(folder, &name("tool")).unwrap().mode, 0o6755);
        view.open_file(folder, &name("tool"), WRITE).unwrap();
        assert_eq!(view.lookup(folder, &name("tool")).unwrap().mode, expected);
        let staged = test.upper.path().join("1").metadata().unwrap().mode();
        assert_eq!(staged & 0o7777, 0o600, "what is staged can never be run as another user");
        std::fs::remove_file(test.upper.path().join("1")).unwrap();
    };
    run(0o6755);
    std::thread::scope(|scope| {
        let as_user = || {
            let uid = rustix::fs::Uid::from_raw(user);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            run(0o755);
        };
        scope.spawn(as_user).join().unwrap();
    });
}

/// It needs a second file system.
#[test]
fn what_is_on_another_device_is_not_moved() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return };
    let disk = Test::new();
    let device = |path: &Path| path.metadata().unwrap().dev();
    if device(memory.path()) == device(disk.lower.path()) {
        return;
    }
    disk.write("file", b"content");
    let roots = vec![root(disk.lower.path()), root(memory.path())];
    let mut view = View::new(open(disk.upper.path()), roots, BUDGET).unwrap();
    let from = view.root(0).unwrap();
    let to = view.root(1).unwrap();
    view.create_folder(to, &name("new")).unwrap();
    let new = view.open_folder(to, &name("new")).unwrap();
    for folder in [to, new] {
        assert_eq!(view.rename((from, &name("file")), (folder, &name("file"))), Err(Errno::XDEV));
        assert_eq!(view.rename((from, &name("missing")), (folder, &name("file"))), Err(Errno::XDEV));
    }
    view.rename((to, &name("new")), (to, &name("newer"))).unwrap();
    // A file of the one is copied to the other's upper folder, whatever its file system.
    std::fs::write(memory.path().join("other"), b"content").unwrap();
    view.open_file(to, &name("other"), WRITE).unwrap().file.write_all_at(b"C", 0).unwrap();
    assert_eq!(std::fs::read(disk.upper.path().join("1")).unwrap(), b"Content");
}

/// A file system in memory over a folder, until it is dropped. Only root can mount it.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn new(place: &'a Path) -> Option<Self> {
        run_quietly(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(place)).then(|| Self(place))
    }

    fn make_read_only(&self) -> bool {
        run_quietly(Command::new("mount").args(["-o", "remount,ro"]).arg(self.0))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        run_quietly(Command::new("umount").arg("--lazy").arg(self.0));
    }
}

fn run_quietly(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_read_only_file_system_is_read_and_not_changed() {
    let test = Test::new();
    let Some(mounted) = Mounted::new(test.lower.path()) else { return };
    test.write("file", b"content");
    std::fs::create_dir(test.lower.path().join("empty")).unwrap();
    assert!(mounted.make_read_only());
    let (mut view, folder) = test.view(BUDGET);
    view.open_file(folder, &name("file"), READ).unwrap();
    assert_eq!(view.open_file(folder, &name("file"), WRITE).unwrap_err(), Errno::ROFS);
    assert_eq!(view.open_file(folder, &name("new"), MAKE).unwrap_err(), Errno::ROFS);
    assert_eq!(view.create_folder(folder, &name("new")), Err(Errno::ROFS));
    assert_eq!(view.symlink("file".as_ref(), folder, &name("new")), Err(Errno::ROFS));
    assert_eq!(view.unlink(folder, &name("file")), Err(Errno::ROFS));
    assert_eq!(view.remove_folder(folder, &name("empty")), Err(Errno::ROFS));
    assert_eq!(view.rename((folder, &name("file")), (folder, &name("new"))), Err(Errno::ROFS));
    assert_eq!(test.staged(), 0);
}

#[test]
fn changes_go_on_only_over_the_same_roots() {
    let test = Test::new();
    let (mut view, folder) = test.view(BUDGET);
    drop(view.open_file(folder, &name("made"), MAKE).unwrap());
    let bytes = view.into_table().to_bytes().unwrap();
    let load = |path: &Path, roots: usize| {
        let table = Table::from_bytes(&bytes, 1).unwrap();
        let roots = (0..roots).map(|_| root(path)).collect();
        View::load(table, Upper::new(open(test.upper.path())), roots, BUDGET)
    };
    assert!(load(test.lower.path(), 1).is_ok());
    assert_eq!(load(test.lower.path(), 2).unwrap_err(), Errno::INVAL);
    assert_eq!(load(test.upper.path(), 1).unwrap_err(), Errno::STALE);
    std::fs::remove_file(test.upper.path().join("1")).unwrap();
    assert_eq!(load(test.lower.path(), 1).unwrap_err(), Errno::NOENT);
}

/// A link in the upper folder could only have been made by a program that broke out.
#[test]
fn a_staged_content_is_never_a_link() {
    let test = Test::new();
    let (mut view, folder) = test.view(BUDGET);
    drop(view.open_file(folder, &name("made"), MAKE).unwrap());
    let staged = test.upper.path().join("1");
    std::fs::remove_file(&staged).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &staged).unwrap();
    assert_eq!(view.open_file(folder, &name("made"), READ).unwrap_err(), Errno::LOOP);
    std::fs::remove_file(&staged).unwrap();
    std::fs::create_dir(&staged).unwrap();
    assert_eq!(view.open_file(folder, &name("made"), READ).unwrap_err(), Errno::INVAL);
}
