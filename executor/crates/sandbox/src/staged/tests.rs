//! Generated calls on a plain folder and on a copy whose changes are kept apart: both guests see the same, and the copy
//! itself does not change.

use super::*;
use crate::calls::PendingCalls;
use crate::egress::{Network, test_authority};
use crate::filesystem::AuditedFs;
use crate::limiter::MemoryGauge;
use crate::state::StoreState;
use crate::termination::end_from_error;
use crate::typed::a2g::tool::calls::Host as _;
use crate::{Abort, CallAnswer, CallBackend, CallFuture, CallRequest, Calls, End, Input, JsonText, Sandbox};
use a2g_capability::{
    Area, Ceilings, Claims, EarlierFolder, Grant, MemberFolders, Mount, Mounts, Place, Tree,
};
use a2g_overlay::Table;
use a2g_types::limit::{FileEffects, Layer, LimitMap};
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::sync::oneshot;
use wasmtime::Store;
use wasmtime_wasi::filesystem::WasiFilesystemView as _;
use wasmtime_wasi::p2::bindings::filesystem::preopens::Host as _;
use wasmtime_wasi::p2::bindings::filesystem::types::{HostDescriptor, HostDirectoryEntryStream};

const SEQUENCES: u32 = 2_000;
const MAX_STEPS: usize = 40;
const MAX_OPEN: usize = 8;

const PATHS: [&str; 17] = [
    "a", "b", "d", "d/e", "d/f", "d/sub", "d/sub/g", "empty", "l", "l/e", "la", "dangling", "absolute",
    "new", "d/new", ".", "d/..",
];

/// The pattern of a granted folder, and the folder's names in the files of its program; `None` for one that is gone.
type Granted<'a> = (&'a str, Option<&'a [&'a str]>);

const WHOLE: Granted<'_> = ("/w/**", Some(&[]));

/// A generator with a fixed seed: the same numbers in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 24) % u64::try_from(sides).unwrap()).unwrap()
    }

    fn path(&mut self) -> String {
        PATHS[self.roll(PATHS.len())].to_owned()
    }
}

/// A call of a guest. A number selects one of its open files and folders, of which the first is the granted folder.
#[derive(Debug, Clone)]
enum Operation {
    Open(usize, PathFlags, String, OpenFlags, DescriptorFlags),
    StatAt(usize, PathFlags, String),
    Stat(usize),
    Read(usize),
    Write(usize, u64, Vec<u8>),
    SetSize(usize, u64),
    List(usize),
    ReadLink(usize, String),
    MakeFolder(usize, String),
    MakeLink(usize, String, String),
    Unlink(usize, String),
    RemoveFolder(usize, String),
    Rename(usize, String, usize, String),
    SetTimesAt(usize, String, u64),
    SetTimes(usize, u64),
    IsSame(usize, usize),
    Close(usize),
}

impl Operation {
    fn any(dice: &mut Dice) -> Self {
        let at = dice.roll(MAX_OPEN);
        let flags = if dice.roll(2) == 0 { PathFlags::empty() } else { PathFlags::SYMLINK_FOLLOW };
        match dice.roll(22) {
            0..=4 => {
                let open = [
                    OpenFlags::empty(),
                    OpenFlags::CREATE,
                    OpenFlags::CREATE | OpenFlags::EXCLUSIVE,
                    OpenFlags::TRUNCATE,
                    OpenFlags::DIRECTORY,
                ];
                let descriptor = [
                    DescriptorFlags::READ,
                    DescriptorFlags::WRITE,
                    DescriptorFlags::READ | DescriptorFlags::WRITE,
                ];
                let open = open[dice.roll(open.len())];
                Self::Open(at, flags, dice.path(), open, descriptor[dice.roll(descriptor.len())])
            }
            5 => Self::StatAt(at, flags, dice.path()),
            6 => Self::Stat(at),
            7 | 8 => Self::Read(at),
            9 | 10 => Self::Write(at, u64::try_from(dice.roll(6)).unwrap(), vec![b'w'; dice.roll(5)]),
            11 => Self::SetSize(at, u64::try_from(dice.roll(9)).unwrap()),
            12 => Self::List(at),
            13 => Self::ReadLink(at, dice.path()),
            14 => Self::MakeFolder(at, dice.path()),
            15 => Self::MakeLink(at, dice.path(), dice.path()),
            16 => Self::Unlink(at, dice.path()),
            17 => Self::RemoveFolder(at, dice.path()),
            18 => Self::Rename(at, dice.path(), dice.roll(MAX_OPEN), dice.path()),
            19 => Self::SetTimesAt(at, dice.path(), 1_000_000),
            20 => match dice.roll(2) {
                0 => Self::SetTimes(at, 2_000_000),
                _same => Self::IsSame(at, dice.roll(MAX_OPEN)),
            },
            _close => Self::Close(at),
        }
    }
}

fn text<T: Debug>(result: FsResult<T>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => error.downcast().map_or("a trap".to_owned(), |code| format!("{code:?}")),
    }
}

/// The attributes that are the same on both sides: a plain folder's size and links depend on its file system, and a time
/// that was not set, on when the test runs.
fn attributes(stat: &DescriptorStat) -> String {
    if stat.type_ == DescriptorType::Directory {
        "a folder".to_owned()
    } else {
        let seconds = stat.data_modification_timestamp.as_ref().map(|time| time.seconds);
        let set = seconds.filter(|seconds| *seconds <= 2_000_000);
        format!("{:?} of {} bytes with {} links, set to {set:?}", stat.type_, stat.size, stat.link_count)
    }
}

fn modified(stat: FsResult<DescriptorStat>) -> String {
    text(stat.map(|stat| stat.data_modification_timestamp.map(|time| time.seconds)))
}

fn at(seconds: u64) -> NewTimestamp {
    NewTimestamp::Timestamp(Datetime { seconds, nanoseconds: 0 })
}

/// A guest with its open files and folders.
struct Guest {
    folder: Arc<TempDir>,
    changes: TempDir,
    store: Store<StoreState>,
    open: Vec<Resource<Descriptor>>,
}

impl Guest {
    fn new(sandbox: &Sandbox, effects: FileEffects) -> Self {
        let folder = Arc::new(build_tree());
        let changes = tempfile::tempdir().unwrap();
        let granted = permit(folder.path(), effects);
        let permit = if effects.is_direct() { granted } else { granted.with_upper(upper(&changes)) };
        Self::with_store(store(sandbox, permit).unwrap(), folder, changes)
    }

    /// A run of a program whose files are those of `folder`.
    fn of_program(
        sandbox: &Sandbox,
        folder: &Arc<TempDir>,
        (scope, names): Granted<'_>,
        base: &Path,
        earlier: &[(&Path, u64)],
    ) -> Self {
        let changes = tempfile::tempdir().unwrap();
        let bytes = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
        let member = MemberFolders {
            base: open(base),
            earlier: earlier
                .iter()
                .map(|(folder, from)| EarlierFolder { folder: open(folder), from: *from })
                .collect(),
            roots: vec![open(folder.path())],
            places: vec![names.map(|names| Place { root: 0, names: bytes(names) })],
            readable: Vec::new(),
        };
        let upper = upper(&changes).with_member(member);
        let permit = permit_in(folder.path(), scope, FileEffects::Atomic).with_upper(upper);
        Self::with_store(store(sandbox, permit).unwrap(), Arc::clone(folder), changes)
    }

    fn with_store(mut store: Store<StoreState>, folder: Arc<TempDir>, changes: TempDir) -> Self {
        store.data_mut().links = true;
        // The calls are compared, not the two ways of resolving a path.
        store.data_mut().walks = true;
        let preopened = store.data_mut().filesystem().get_directories().unwrap();
        let open = preopened.into_iter().take(1).map(|(fd, _path)| fd).collect();
        Self { folder, changes, store, open }
    }

    fn fd(&self, index: usize) -> Resource<Descriptor> {
        Resource::new_borrow(self.open[index % self.open.len()].rep())
    }

    /// Makes a call, and describes all that the guest learns from it.
    async fn call(&mut self, operation: Operation) -> String {
        use Operation as O;
        let borrow =
            |index: usize| Resource::<Descriptor>::new_borrow(self.open[index % self.open.len()].rep());
        match operation {
            O::Open(at, flags, path, open, descriptor) => {
                let folder = borrow(at);
                let mut files = AuditedFs(self.store.data_mut());
                match files.open_at(folder, flags, path, open, descriptor).await {
                    Ok(opened) if self.open.len() < MAX_OPEN => {
                        self.open.push(opened);
                        "opened".to_owned()
                    }
                    Ok(opened) => {
                        HostDescriptor::drop(&mut files, opened).unwrap();
                        "opened".to_owned()
                    }
                    Err(error) => text::<()>(Err(error)),
                }
            }
            O::StatAt(at, flags, path) => {
                let folder = borrow(at);
                let stat = AuditedFs(self.store.data_mut()).stat_at(folder, flags, path).await;
                text(stat.map(|stat| attributes(&stat)))
            }
            O::Stat(at) => {
                let file = borrow(at);
                text(AuditedFs(self.store.data_mut()).stat(file).await.map(|stat| attributes(&stat)))
            }
            O::Read(at) => {
                let file = borrow(at);
                text(AuditedFs(self.store.data_mut()).read(file, 100, 0).await)
            }
            O::Write(at, offset, bytes) => {
                let file = borrow(at);
                text(AuditedFs(self.store.data_mut()).write(file, bytes, offset).await)
            }
            O::SetSize(at, size) => {
                let file = borrow(at);
                text(AuditedFs(self.store.data_mut()).set_size(file, size).await)
            }
            O::List(at) => {
                let folder = borrow(at);
                self.list(folder).await
            }
            O::ReadLink(at, path) => {
                let folder = borrow(at);
                text(AuditedFs(self.store.data_mut()).readlink_at(folder, path).await)
            }
            O::MakeFolder(at, path) => {
                let folder = borrow(at);
                text(AuditedFs(self.store.data_mut()).create_directory_at(folder, path).await)
            }
            O::MakeLink(at, target, path) => {
                let folder = borrow(at);
                text(AuditedFs(self.store.data_mut()).symlink_at(folder, target, path).await)
            }
            O::Unlink(at, path) => {
                let folder = borrow(at);
                text(AuditedFs(self.store.data_mut()).unlink_file_at(folder, path).await)
            }
            O::RemoveFolder(at, path) => {
                let folder = borrow(at);
                text(AuditedFs(self.store.data_mut()).remove_directory_at(folder, path).await)
            }
            O::Rename(from, old, to, new) => {
                let old_folder = borrow(from);
                let new_folder = borrow(to);
                text(AuditedFs(self.store.data_mut()).rename_at(old_folder, old, new_folder, new).await)
            }
            O::SetTimesAt(index, path, seconds) => {
                let folder = borrow(index);
                let again = borrow(index);
                let mut files = AuditedFs(self.store.data_mut());
                let set = files
                    .set_times_at(folder, PathFlags::empty(), path.clone(), at(seconds), at(seconds))
                    .await;
                let found = match &set {
                    Ok(()) => modified(files.stat_at(again, PathFlags::empty(), path).await),
                    Err(_) => String::new(),
                };
                text(set) + &found
            }
            O::SetTimes(index, seconds) => {
                let file = borrow(index);
                let again = borrow(index);
                let mut files = AuditedFs(self.store.data_mut());
                let set = files.set_times(file, at(seconds), at(seconds)).await;
                let found = modified(files.stat(again).await);
                if set.is_ok() { found } else { text(set) }
            }
            O::IsSame(one, other) => {
                let a = borrow(one);
                let b = borrow(other);
                AuditedFs(self.store.data_mut()).is_same_object(a, b).await.unwrap().to_string()
            }
            O::Close(index) => {
                let index = index % self.open.len();
                if index > 0 {
                    let closed = self.open.remove(index);
                    HostDescriptor::drop(&mut AuditedFs(self.store.data_mut()), closed).unwrap();
                }
                "closed".to_owned()
            }
        }
    }

    /// Opens a file of the granted folder, and returns its number.
    async fn open_file(&mut self, path: &str, open: OpenFlags, mode: DescriptorFlags) -> usize {
        let opened = self.call(Operation::Open(0, PathFlags::empty(), path.to_owned(), open, mode)).await;
        assert_eq!(opened, "opened", "{path}");
        self.open.len() - 1
    }

    async fn write(&mut self, path: &str, content: &str) {
        let open = OpenFlags::CREATE | OpenFlags::TRUNCATE;
        let file = self.open_file(path, open, DescriptorFlags::WRITE).await;
        self.call(Operation::Write(file, 0, content.as_bytes().to_vec())).await;
        self.call(Operation::Close(file)).await;
    }

    async fn assert_content(&mut self, path: &str, content: &str) {
        let file = self.open_file(path, OpenFlags::empty(), DescriptorFlags::READ).await;
        self.assert_read(file, content).await;
        self.call(Operation::Close(file)).await;
    }

    async fn assert_read(&mut self, file: usize, content: &str) {
        let read = self.call(Operation::Read(file)).await;
        assert!(read.contains(&format!("{:?}", content.as_bytes())), "{content}: {read}");
    }

    /// Looks at an entry of the granted folder.
    async fn stat(&mut self, path: &str) -> FsResult<DescriptorStat> {
        let root = self.fd(0);
        AuditedFs(self.store.data_mut()).stat_at(root, PathFlags::empty(), path.to_owned()).await
    }

    fn lend(&mut self) -> Loan {
        self.store.data_mut().files.lend().unwrap().unwrap()
    }

    fn end(&mut self) -> End {
        self.store.data_mut().files.settle(End::Returned(JsonText::null()))
    }

    fn table(&self) -> PathBuf {
        self.changes.path().join(a2g_overlay::Upper::TABLE)
    }

    async fn list(&mut self, folder: Resource<Descriptor>) -> String {
        let mut files = AuditedFs(self.store.data_mut());
        let listing = match files.read_directory(folder).await {
            Ok(listing) => listing,
            Err(error) => return text::<()>(Err(error)),
        };
        let mut entries = BTreeMap::new();
        let end = loop {
            match files.read_directory_entry(Resource::new_borrow(listing.rep())).await {
                Ok(Some(entry)) => {
                    let twice = entries.insert(entry.name, format!("{:?}", entry.type_));
                    assert_eq!(twice, None);
                }
                Ok(None) => break String::new(),
                Err(error) => break text::<()>(Err(error)),
            }
        };
        HostDirectoryEntryStream::drop(&mut files, listing).unwrap();
        format!("{entries:?}{end}")
    }
}

/// Makes a folder with the same content each time.
fn build_tree() -> TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["d", "d/sub", "empty"] {
        fs::create_dir(path(name)).unwrap();
    }
    for (name, content) in [("a", "aaaa"), ("b", ""), ("d/e", "eee"), ("d/f", "ffffffff"), ("d/sub/g", "g")] {
        fs::write(path(name), content).unwrap();
    }
    for (name, target) in [("l", "d"), ("la", "a"), ("dangling", "nothing"), ("absolute", "/etc/passwd")] {
        symlink(target, path(name)).unwrap();
    }
    folder
}

/// All that the kernel says about the entries of a folder.
fn snapshot(folder: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let times = (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec());
        let content = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        lines.push(format!("{path:?} {} {:o} {times:?} {content:?}", metadata.ino(), metadata.mode()));
        if metadata.is_dir() {
            lines.extend(snapshot(&path));
        }
    }
    lines.sort();
    lines
}

fn permit(host: &Path, effects: FileEffects) -> Permit {
    permit_in(host, "/w/**", effects)
}

fn permit_in(host: &Path, scope: &str, effects: FileEffects) -> Permit {
    let guest = Tree::parse_path("/w").unwrap();
    let counts = [Limit::Written, Limit::Created, Limit::DirectoryEntries];
    let unbounded = |limits: LimitMap<u64>, limit| limits.with_amount(limit, u64::MAX);
    let ceilings = Ceilings {
        limits: counts.into_iter().fold(LimitMap::defaults(), unbounded),
        areas: vec![guest.clone().into()],
        access: Access::ReadWrite,
        effects,
        ..Ceilings::closed()
    };
    let claims = Claims { areas: Some(Area::parse(scope).unwrap()), ..Claims::default() };
    let grant = Grant::meet(test_authority(), [(Layer::Verdict, claims)], &ceilings).unwrap();
    let mounts = Mounts::new(vec![Mount { guest, host: host.into() }]).unwrap();
    Permit::open(grant, &mounts, &ceilings.areas, |_| true).unwrap()
}

fn open(folder: &Path) -> OwnedFd {
    File::open(folder).unwrap().into()
}

fn upper(folder: &TempDir) -> Upper {
    Upper::new(open(folder.path()))
}

fn store(sandbox: &Sandbox, permit: Permit) -> wasmtime::Result<Store<StoreState>> {
    let execution = sandbox.begin(&permit, Network::Off, Arc::<Abort>::default());
    sandbox.make_store(permit, &Input::Arguments(String::new()), &execution)
}

fn sandbox() -> Sandbox {
    Sandbox::builder().authority(test_authority()).build().unwrap()
}

#[test]
fn a_store_keeps_changes_apart_exactly_if_the_grant_says_so() {
    let sandbox = sandbox();
    let folder = build_tree();
    let changes = tempfile::tempdir().unwrap();
    let error = |permit| store(&sandbox, permit).err().map(|error| error.to_string());
    let direct = || permit(folder.path(), FileEffects::Direct);
    let atomic = || permit(folder.path(), FileEffects::Atomic);
    assert_eq!(error(direct()), None);
    assert_eq!(error(atomic().with_upper(upper(&changes))), None);
    assert!(error(atomic()).unwrap().contains("no folder"));
    assert!(error(direct().with_upper(upper(&changes))).unwrap().contains("at once"));
}

#[test]
fn only_the_changes_of_a_run_with_a_result_are_stored() {
    let sandbox = sandbox();
    for (end, is_stored) in [(End::Returned(JsonText::null()), true), (End::ResultNotJson, false)] {
        let mut guest = Guest::new(&sandbox, FileEffects::Atomic);
        assert_eq!(guest.store.data_mut().files.settle(end.clone()), end);
        assert_eq!(guest.table().exists(), is_stored);
        if is_stored {
            Table::from_bytes(&fs::read(guest.table()).unwrap(), 1).unwrap();
        }
    }
    let mut guest = Guest::new(&sandbox, FileEffects::Atomic);
    fs::create_dir(guest.table()).unwrap();
    assert!(matches!(guest.end(), End::NotCommitted(_)));
}

/// Stores a table as a server does.
fn store_as_server(base: &Path, table: &[u8]) {
    let draft = base.join("table.new");
    fs::write(&draft, table).unwrap();
    fs::rename(draft, base.join(a2g_overlay::Upper::TABLE)).unwrap();
}

/// The folder that a server keeps for a program whose files are those of `folder`.
fn base_of(folder: &Path) -> TempDir {
    let base = tempfile::tempdir().unwrap();
    let root = LowerRoot { dir: open(folder), access: a2g_overlay::Access::Write };
    store_as_server(base.path(), &Table::new(&[root]).unwrap().to_bytes().unwrap());
    base
}

#[tokio::test]
async fn the_runs_of_a_program_see_one_anothers_changes() {
    let sandbox = sandbox();
    let folder = Arc::new(build_tree());
    let before = snapshot(folder.path());
    let base = base_of(folder.path());
    let mut program = Guest::of_program(&sandbox, &folder, WHOLE, base.path(), &[]);
    program.write("d/f", "of the program").await;
    let reader = program.open_file("d/e", OpenFlags::empty(), DescriptorFlags::READ).await;

    for is_successful in [false, true] {
        let loan = program.lend();
        let of_call = tempfile::tempdir().unwrap();
        store_as_server(of_call.path(), &fs::read(program.table()).unwrap());
        fs::remove_file(program.table()).unwrap();
        let earlier = [(base.path(), 1), (program.changes.path(), 1)];
        let part: Granted<'_> = ("/w/d/**", Some(&["d"]));
        let mut call = Guest::of_program(&sandbox, &folder, part, of_call.path(), &earlier);
        call.assert_content("f", "of the program").await;
        call.write("e", "of the call").await;
        assert_eq!(call.call(Operation::MakeFolder(0, "made".to_owned())).await, "()");
        assert_eq!(call.end(), End::Returned(JsonText::null()));

        assert!(program.stat("a").now_or_never().is_none(), "paths wait for the call");
        program.assert_read(reader, "eee").await;
        if is_successful {
            for entry in fs::read_dir(call.changes.path()).unwrap() {
                let entry = entry.unwrap();
                if entry.path() != call.table() {
                    fs::rename(entry.path(), base.path().join(entry.file_name())).unwrap();
                }
            }
            store_as_server(base.path(), &fs::read(call.table()).unwrap());
        }
        drop(loan);
        assert_eq!(program.stat("d/made").await.is_ok(), is_successful);
        program.assert_read(reader, if is_successful { "of the call" } else { "eee" }).await;
    }
    // It changes what the call has made.
    program.write("d/e", "of the program again").await;
    program.assert_read(reader, "of the program again").await;
    program.write("d/made/new", "new").await;
    assert_eq!(program.end(), End::Returned(JsonText::null()));
    Table::from_bytes(&fs::read(program.table()).unwrap(), 1).unwrap();
    assert_eq!(snapshot(folder.path()), before);
}

#[tokio::test]
async fn a_table_is_stored_for_the_first_call_and_then_if_files_were_used() {
    let sandbox = sandbox();
    let folder = Arc::new(build_tree());
    let base = base_of(folder.path());
    let mut program = Guest::of_program(&sandbox, &folder, WHOLE, base.path(), &[]);
    for (is_used, is_stored) in [(false, true), (true, true), (false, false), (true, true)] {
        if is_used {
            program.stat("a").await.unwrap();
        }
        let loans = [program.lend(), program.lend()];
        assert_eq!(program.table().exists(), is_stored);
        let _is_taken = fs::remove_file(program.table());
        drop(loans);
    }
}

#[tokio::test]
async fn a_table_that_cannot_be_read_ends_the_run() {
    let sandbox = sandbox();
    let folder = Arc::new(build_tree());
    for is_used in [true, false] {
        let base = base_of(folder.path());
        let mut program = Guest::of_program(&sandbox, &folder, WHOLE, base.path(), &[]);
        drop(program.lend());
        store_as_server(base.path(), b"false");
        if is_used {
            let error = program.stat("a").await.unwrap_err().downcast().unwrap_err();
            let end = end_from_error(&error, &MemoryGauge::default(), || false);
            assert!(matches!(end, Some(End::NotCommitted(_))), "{end:?}");
        }
        assert!(matches!(program.end(), End::NotCommitted(_)));
    }
}

#[tokio::test]
async fn a_granted_folder_that_a_program_has_removed_is_missing() {
    let sandbox = sandbox();
    let folder = Arc::new(build_tree());
    let base = base_of(folder.path());
    let mut guest = Guest::of_program(&sandbox, &folder, ("/w/empty/**", None), base.path(), &[]);
    let limits = guest.store.data().stats.effective_limits.get().unwrap();
    assert_eq!(limits.missing_roots, ["/w/empty"]);
    for path in [".", "new"] {
        let error = guest.stat(path).await.unwrap_err().downcast();
        assert!(matches!(error, Ok(ErrorCode::NoEntry)), "{path}");
    }
    assert_ne!(guest.call(Operation::MakeFolder(0, "new".to_owned())).await, "()");
    assert_eq!(guest.call(Operation::IsSame(0, 0)).await, "true");
    assert_eq!(guest.end(), End::Returned(JsonText::null()));
}

/// Answers a call, with whether it has found the table, when it is told to.
struct HeldCall {
    table: PathBuf,
    end: Mutex<Option<oneshot::Receiver<()>>>,
}

impl CallBackend for HeldCall {
    fn perform(self: Arc<Self>, _: CallRequest) -> CallFuture {
        let has_table = self.table.exists();
        let end = self.end.lock().take().unwrap();
        Box::pin(async move {
            end.await.unwrap();
            Ok(CallAnswer::Result(has_table.to_string()))
        })
    }
}

#[tokio::test]
async fn a_call_has_the_files_of_its_program_until_its_end() {
    let sandbox = sandbox();
    let folder = Arc::new(build_tree());
    let base = base_of(folder.path());
    let (send_end, end) = oneshot::channel();
    let mut program = Guest::of_program(&sandbox, &folder, WHOLE, base.path(), &[]);
    let backend = HeldCall { table: program.table(), end: Mutex::new(Some(end)) };
    program.store.data_mut().calls = PendingCalls::new(Calls::new(Arc::new(backend)));
    program.write("a", "of the program").await;
    let call = program.store.data_mut().start("x".to_owned(), "{}".to_owned()).await.unwrap();
    assert!(program.stat("a").now_or_never().is_none());
    send_end.send(()).unwrap();
    program.stat("a").await.unwrap();
    let finished = program.store.data_mut().wait(vec![call]).await.unwrap();
    assert_eq!(finished.ok().and_then(|finished| finished.outcome.ok()).as_deref(), Some("true"));

    // The server has the table that a run with open calls leaves.
    fs::remove_file(program.table()).unwrap();
    program.write("a", "again").await;
    let _still_open = program.lend();
    fs::remove_file(program.table()).unwrap();
    assert_eq!(program.end(), End::Returned(JsonText::null()));
    assert!(!program.table().exists());
}

#[tokio::test]
async fn a_guest_sees_the_same_whether_its_changes_are_kept_apart_or_not() {
    let sandbox = sandbox();
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut worked = 0;
    for _ in 0..SEQUENCES {
        let mut direct = Guest::new(&sandbox, FileEffects::Direct);
        let mut staged = Guest::new(&sandbox, FileEffects::Atomic);
        let before = snapshot(staged.folder.path());
        let mut log = Vec::new();
        for _ in 0..=dice.roll(MAX_STEPS) {
            let operation = Operation::any(&mut dice);
            let expected = direct.call(operation.clone()).await;
            let found = staged.call(operation.clone()).await;
            assert_eq!(found, expected, "{operation:?} after {log:#?}");
            worked += u32::from(expected == "()" || expected == "opened");
            log.push((operation, expected));
        }
        for path in ["", "/d", "/d/sub", "/empty", "/new", "/d/new"] {
            let flags = PathFlags::SYMLINK_FOLLOW;
            let path = format!(".{path}");
            let open = OpenFlags::DIRECTORY;
            let read = DescriptorFlags::READ;
            let mut lists = Vec::new();
            for guest in [&mut direct, &mut staged] {
                let root = guest.fd(0);
                let opened =
                    AuditedFs(guest.store.data_mut()).open_at(root, flags, path.clone(), open, read).await;
                lists.push(match opened {
                    Ok(folder) => guest.list(folder).await,
                    Err(error) => text::<()>(Err(error)),
                });
            }
            assert_eq!(lists[0], lists[1], "{path} after {log:#?}");
        }
        assert_eq!(snapshot(staged.folder.path()), before, "after {log:#?}");
        assert_eq!(staged.end(), End::Returned(JsonText::null()), "after {log:#?}");
        Table::from_bytes(&fs::read(staged.table()).unwrap(), 1).unwrap();
    }
    assert!(worked > SEQUENCES, "only {worked} calls worked");
}
