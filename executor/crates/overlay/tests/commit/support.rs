//! Folders for one commit, and a program that changes them.

use a2g_overlay::{
    Access, CommitError, Create, Disk, Effects, EffectsError, EffectsLimits, FileTime, Folders, How,
    LowerRoot, Name, NewTime, NodeId, Recovered, Table, Upper, UpperBudget, View, commit, recover, undo,
};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(super) const LIMITS: EffectsLimits = EffectsLimits { max_changes: 1000, max_hashed_bytes: 64 << 20 };

/// The folder of files in memory, so that a test need not wait for the disk; a mount of its own.
const MEMORY: &str = "/dev/shm";

/// A time of the past in seconds, which the tests give to what they make.
pub(super) const OLD: i64 = 1_000_000_000;

pub(super) struct Fixture {
    folder: PathBuf,
    store: PathBuf,
    _temporary: Vec<TempDir>,
}

/// The facts that a test sees of an entry: its mode, and of a file its time and its content.
pub(super) type Snapshot = BTreeMap<PathBuf, (u32, Option<i64>, Vec<u8>)>;

fn temporary(in_memory: bool) -> TempDir {
    if in_memory && Path::new(MEMORY).is_dir() {
        tempfile::tempdir_in(MEMORY).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

pub(super) fn open(path: &Path) -> OwnedFd {
    fs::File::open(path).unwrap().into()
}

pub(super) fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

impl Fixture {
    pub(super) fn new() -> Self {
        let folder = temporary(true);
        let fixture = Self {
            folder: folder.path().into(),
            store: folder.path().join("store"),
            _temporary: vec![folder],
        };
        fixture.fill();
        fixture
    }

    /// The store is on another mount than the root.
    pub(super) fn with_distant_store() -> Self {
        let folder = temporary(true);
        let store = temporary(false);
        let fixture = Self {
            folder: folder.path().into(),
            store: store.path().join("store"),
            _temporary: vec![folder, store],
        };
        fixture.fill();
        fixture
    }

    /// The folders of a fixture of another process.
    pub(super) fn again(folder: &Path, store: &Path) -> Self {
        Self { folder: folder.into(), store: store.into(), _temporary: Vec::new() }
    }

    pub(super) fn paths(&self) -> (&Path, &Path) {
        (&self.folder, &self.store)
    }

    fn fill(&self) {
        for folder in [self.root(), self.folder.join("upper"), self.store.clone()] {
            fs::create_dir(folder).unwrap();
        }
        for folder in ["d", "d/sub", "gone", "gone/inner", "moved", "moved/deep"] {
            fs::create_dir(self.path(folder)).unwrap();
        }
        for (file, mode) in [
            ("a", 0o644),
            ("b", 0o640),
            ("kept", 0o600),
            ("run", 0o755),
            ("swap1", 0o644),
            ("swap2", 0o600),
            ("touched", 0o644),
            ("read", 0o644),
            ("d/x", 0o644),
            ("d/sub/z", 0o644),
            ("gone/1", 0o644),
            ("gone/inner/2", 0o644),
            ("moved/1", 0o644),
            ("moved/deep/2", 0o644),
            ("moved/deep/3", 0o644),
        ] {
            self.write(file, &format!("the content of {file}\n"));
            fs::set_permissions(self.path(file), fs::Permissions::from_mode(mode)).unwrap();
        }
        symlink("a", self.path("link")).unwrap();
    }

    pub(super) fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    pub(super) fn upper_path(&self, name: &str) -> PathBuf {
        self.folder.join("upper").join(name)
    }

    pub(super) fn store_path(&self, name: &str) -> PathBuf {
        self.store.join(name)
    }

    /// Writes an original, as another process does.
    pub(super) fn write(&self, path: &str, content: &str) {
        fs::write(self.path(path), content).unwrap();
        set_old(&self.path(path));
    }

    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    pub(super) fn roots(&self) -> Vec<LowerRoot> {
        vec![LowerRoot { dir: open(&self.root()), access: Access::Write }]
    }

    pub(super) fn upper(&self) -> Upper {
        Upper::new(open(&self.folder.join("upper")))
    }

    pub(super) fn run(&self, act: impl FnOnce(&mut Guest)) -> Table {
        let budget = UpperBudget { max_bytes: 64 << 20, max_nodes: 100_000 };
        let view = View::new(open(&self.folder.join("upper")), self.roots(), budget).unwrap();
        let mut guest = Guest { view };
        act(&mut guest);
        let bytes = guest.view.into_table().to_bytes().unwrap();
        Table::from_bytes(&bytes, 1).unwrap()
    }

    pub(super) fn effects(&self, table: &Table) -> Result<Effects, EffectsError> {
        let effects = Effects::of(table, &self.roots(), &self.upper(), LIMITS)?;
        let stored = serde_json::to_string(&effects).unwrap();
        let loaded: Effects = serde_json::from_str(&stored).unwrap();
        assert_eq!((&loaded, loaded.digest()), (&effects, effects.digest()));
        Ok(effects)
    }

    /// The effects of a program that changes the originals in every way.
    pub(super) fn run_all(&self) -> Effects {
        self.effects(&self.run(change_everything)).unwrap()
    }

    fn with<T>(&self, act: impl FnOnce(Folders<'_>) -> T) -> T {
        let roots = self.roots();
        let upper = self.upper();
        let store = open(&self.store);
        act(Folders { roots: &roots, upper: &upper, store: &store })
    }

    pub(super) fn commit(&self, effects: &Effects, disk: &Disk) -> Result<(), CommitError> {
        self.with(|folders| commit(effects, folders, disk))
    }

    pub(super) fn recover(&self, disk: &Disk) -> Result<Recovered, CommitError> {
        self.with(|folders| recover(folders, disk))
    }

    pub(super) fn undo(&self, disk: &Disk) -> Result<(), CommitError> {
        self.with(|folders| undo(folders, disk))
    }

    pub(super) fn forget(&self) -> Result<(), CommitError> {
        self.with(|folders| a2g_overlay::forget(folders, &Disk::new()))
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new();
        let root = self.root();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let metadata = path.symlink_metadata().unwrap();
                let mode = metadata.mode();
                let seen = if metadata.is_dir() {
                    folders.push(path.clone());
                    (mode, None, Vec::new())
                } else if metadata.is_symlink() {
                    (mode, None, fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes())
                } else {
                    (mode, Some(metadata.mtime()), fs::read(&path).unwrap())
                };
                snapshot.insert(path.strip_prefix(&root).unwrap().to_owned(), seen);
            }
        }
        snapshot
    }

    pub(super) fn is_store_empty(&self) -> bool {
        fs::read_dir(&self.store).unwrap().next().is_none()
    }
}

/// Gives an original a time of the past, so that each later change of it is visible.
pub(super) fn set_old(path: &Path) {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(OLD.unsigned_abs());
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

pub(super) struct Guest {
    pub(super) view: View,
}

impl Guest {
    fn folder(&mut self, path: &str) -> (NodeId, Name) {
        let mut names = path.split('/').collect::<Vec<_>>();
        let last = names.pop().unwrap();
        let mut folder = self.view.root(0).unwrap();
        for part in names {
            folder = self.view.open_folder(folder, &name(part)).unwrap();
        }
        (folder, name(last))
    }

    /// Replaces the content of a file, or makes it; its time is [`OLD`] plus the length.
    pub(super) fn write(&mut self, path: &str, content: &str) {
        self.write_now(path, content);
        self.set_time(path, OLD + i64::try_from(content.len()).unwrap());
    }

    /// As [`Self::write`], and the time is that of the write.
    pub(super) fn write_now(&mut self, path: &str, content: &str) {
        let (folder, leaf) = self.folder(path);
        let how = How { write: true, truncate: true, create: Create::IfMissing, ..How::default() };
        let opened = self.view.open_file(folder, &leaf, how).unwrap();
        opened.file.write_all_at(content.as_bytes(), 0).unwrap();
    }

    pub(super) fn set_time(&mut self, path: &str, seconds: i64) {
        let (folder, leaf) = self.folder(path);
        let time = NewTime::At(FileTime { seconds, nanoseconds: 0 });
        self.view.set_times_at(folder, &leaf, NewTime::Keep, time).unwrap();
    }

    pub(super) fn read(&mut self, path: &str) {
        let (folder, leaf) = self.folder(path);
        let how = How { read: true, ..How::default() };
        self.view.open_file(folder, &leaf, how).unwrap();
    }

    pub(super) fn remove(&mut self, path: &str) {
        let (folder, leaf) = self.folder(path);
        self.view.unlink(folder, &leaf).unwrap();
    }

    pub(super) fn remove_folder(&mut self, path: &str) {
        let (folder, leaf) = self.folder(path);
        self.view.remove_folder(folder, &leaf).unwrap();
    }

    pub(super) fn make_folder(&mut self, path: &str) {
        let (folder, leaf) = self.folder(path);
        self.view.create_folder(folder, &leaf).unwrap();
    }

    pub(super) fn link(&mut self, target: &str, path: &str) {
        let (folder, leaf) = self.folder(path);
        self.view.symlink(target.as_ref(), folder, &leaf).unwrap();
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) {
        let (from_folder, from_leaf) = self.folder(from);
        let (to_folder, to_leaf) = self.folder(to);
        self.view.rename((from_folder, &from_leaf), (to_folder, &to_leaf)).unwrap();
    }
}

/// Every kind of change, alone and together.
pub(super) fn change_everything(guest: &mut Guest) {
    guest.read("read");
    guest.write("a", "another content\n");
    guest.remove("b");
    guest.rename("kept", "d/kept");
    guest.rename("swap1", "swap");
    guest.rename("swap2", "swap1");
    guest.rename("swap", "swap2");
    guest.remove("gone/1");
    guest.remove("gone/inner/2");
    guest.remove_folder("gone/inner");
    guest.remove_folder("gone");
    guest.rename("moved", "d/new_place");
    guest.write("d/new_place/1", "changed after the move\n");
    guest.remove("d/new_place/deep/2");
    guest.write("d/new_place/more", "new in a moved folder\n");
    guest.make_folder("new");
    guest.make_folder("new/sub");
    guest.write("new/sub/file", "new\n");
    guest.link("../a", "new/link");
    guest.rename("run", "new/run");
    guest.write("new/run", "moved and changed\n");
    guest.set_time("touched", OLD + 7);
    guest.remove("link");
    guest.make_folder("link");
    guest.remove("d/x");
    guest.write("d/x", "replaced\n");
    guest.write("new/gone", "made and removed");
    guest.remove("new/gone");
}

/// Runs something that ends before a call; `true` if it got that far.
pub(super) fn interrupt(call: u64, act: impl FnOnce(&Disk)) -> bool {
    let disk = Disk::with_hook(move |number| {
        if number == call {
            std::panic::resume_unwind(Box::new(()));
        }
        None
    });
    catch_unwind(AssertUnwindSafe(|| act(&disk))).is_err()
}
