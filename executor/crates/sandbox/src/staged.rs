//! The files of a run whose changes are kept apart from the granted folders, until its end decides whether they take
//! effect.
//!
//! A view of [`a2g_overlay`] answers each call. The guest's open files are plain handles, of an original or of a file in
//! the run's own folder, and can be read and written without this module, but for a mark that tells the view of each write.
//! An open folder has no handle that leads to its host folder: a call that this module does not answer would find an empty
//! folder without a name, and change nothing.
//!
//! A run of a program shares its files with the calls that it makes (`staged/program.rs`). What it reads from and writes to
//! an open file does not wait for these calls; everything else does.

mod program;
#[cfg(test)]
mod tests;

pub(super) use program::{Loan, TakeBackError};

use super::budget::Budget;
use super::listing::ListingEntry;
use super::state::{Preopen, PreopenKind};
use a2g_capability::{OpenRoot, Permit, Upper};
use a2g_overlay::{
    Create, EntryKind, FileTime, How, Identity, ListedEntry, Listing, LowerRoot, Name, NameError, NewTime,
    NodeId, OpenFile, Stat, UpperBudget, View, WriteMark,
};
use a2g_types::error_chain::BoxedError;
use a2g_types::limit::{Access, Limit};
use program::{Program, StartFiles};
use rustix::fs::{FileType, Mode, OFlags, openat, renameat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;
use wasmtime::component::{Resource, ResourceTable};
use wasmtime_wasi::filesystem::{Descriptor, Dir, File as OpenedFile};
use wasmtime_wasi::p2::bindings::clocks::wall_clock::Datetime;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorStat, DescriptorType, ErrorCode, MetadataHashValue, NewTimestamp, OpenFlags,
    PathFlags,
};
use wasmtime_wasi::p2::{FsError, FsResult};
use wasmtime_wasi::{FsPerms, OpenMode};

/// Maximum number of entries that the table of changes has, those that were only read included. A guest that needs more
/// finds the disk full.
// The table is memory of this process: about 3 KB for an entry with a short path, including its stored form.
const MAX_ENTRIES: usize = 100_000;
/// The same for a run of a program, whose table is in memory twice while it is stored or read.
const MAX_ENTRIES_OF_PROGRAM: usize = MAX_ENTRIES / 2;
/// The name of the stored table until it is complete.
const DRAFT: &str = "table.new";

/// The files of a run whose changes are kept apart.
pub(super) struct Staged {
    view: View,
    /// The folder of the changes.
    upper: OwnedFd,
    access: Access,
    /// The granted folders, in the order of the grant; `None` for one that is not among the program's files.
    roots: Vec<Option<NodeId>>,
    /// The granted folders that do not exist on the host: nothing can be made in them.
    missing: Vec<NodeId>,
    /// `None` for a run that shares its files with no other one.
    program: Option<Program>,
    /// The guest's open files and folders by handle, without the granted folders that it finds open at its start.
    open: HashMap<u32, Opened>,
    /// A folder and a file as the guest gets them, but for what is replaced in each.
    folder: Dir,
    file: OpenedFile,
    /// Charged with the bytes that are copied before they can be changed.
    budget: Arc<Budget>,
    /// The copied bytes that it was charged with.
    charged: u64,
    /// The bytes that the view copies at most.
    max_copied: u64,
}

/// An open file or folder of the guest.
#[derive(Clone)]
enum Opened {
    /// A folder, which the view closes with its last descriptor.
    Folder(Arc<NodeId>),
    /// A granted folder, which stays open.
    Root(NodeId),
    /// A granted folder that is not among the program's files.
    Gone,
    /// A file, with the mark to set when it is written; `None` if it is open for reading only.
    File(NodeId, Option<WriteMark>),
}

/// The calls on one open file or folder. Their names are those of WASI.
pub(super) struct StagedCalls<'a> {
    staged: &'a mut Staged,
    table: &'a mut ResourceTable,
    opened: Opened,
}

impl Staged {
    /// The granted folders of `permit`, without changes of this run, which will be kept in `upper`. `placeholder` is the
    /// empty folder that stands for everything else.
    ///
    /// # Errors
    /// If a folder cannot be examined, nothing can be made in `upper`, or the program's table cannot be read.
    pub(super) fn new(
        permit: &Permit,
        upper: Upper,
        placeholder: BorrowedFd<'_>,
        budget: Arc<Budget>,
    ) -> std::io::Result<Self> {
        let access = permit.grant().access().value;
        let granted = permit.roots().as_slice();
        let max_copied = permit.grant().limit(Limit::Written).value;
        let limits = |max_nodes| UpperBudget { max_bytes: max_copied, max_nodes };
        let (dir, member) = upper.into_parts();
        let own = dir.try_clone()?;
        let StartFiles { view, roots, program } = match member {
            None => open_granted(granted, own, overlay_access(access), limits(MAX_ENTRIES))?,
            Some(member) => {
                Program::open(member, own, overlay_access(access), limits(MAX_ENTRIES_OF_PROGRAM))?
            }
        };
        if roots.len() != granted.len() {
            return Err(std::io::Error::other("a granted folder has no place in the files of its program"));
        }
        // A program may have made a folder that the host does not have.
        let missing_roots =
            granted.iter().zip(&roots).filter(|(root, _)| root.is_missing && program.is_none());
        let missing = missing_roots.filter_map(|(_, root)| *root).collect();
        let perms = match access {
            Access::ReadOnly => FsPerms::ReadOnly,
            Access::ReadWrite => FsPerms::ReadWrite,
        };
        let nothing = || placeholder.try_clone_to_owned().map(File::from);
        Ok(Self {
            charged: view.copied_bytes(),
            view,
            upper: dir,
            access,
            roots,
            missing,
            program,
            open: HashMap::new(),
            folder: Dir::new(nothing()?, perms, OpenMode::empty(), true),
            file: OpenedFile::new(nothing()?, perms, OpenMode::empty(), true),
            budget,
            max_copied,
        })
    }

    /// Notes which of the granted folders are missing.
    pub(super) fn mark_missing(&self, kinds: &mut [PreopenKind]) {
        for (root, kind) in self.roots.iter().zip(kinds) {
            if let PreopenKind::Granted { is_missing, .. } = kind {
                *is_missing = root.is_none_or(|node| self.missing.contains(&node));
            }
        }
    }

    /// Lends the files to a call that begins; `None` in a run that shares them with no other one.
    ///
    /// # Errors
    /// If the table of changes is too long, or cannot be stored.
    pub(super) fn lend(&mut self) -> Result<Option<Loan>, BoxedError> {
        let Some(program) = &mut self.program else { return Ok(None) };
        if self.view.has_new_writes() {
            program.note_use();
        }
        program.lend(|| store_table(&self.upper, &self.view.snapshot().to_bytes()?)).map(Some)
    }

    /// Waits until no call has the files, and takes them back.
    ///
    /// # Errors
    /// As [`Self::take_back_if_ended`].
    pub(super) async fn take_back(&mut self) -> Result<(), TakeBackError> {
        if let Some(program) = &self.program {
            program.wait().await;
        }
        self.take_back_if_ended()
    }

    /// Takes the files back if no call has them any more, with what the calls have changed.
    ///
    /// # Errors
    /// If these changes cannot be read. The run cannot go on.
    pub(super) fn take_back_if_ended(&mut self) -> Result<(), TakeBackError> {
        let Some(program) = &mut self.program else { return Ok(()) };
        match program.take_back().map_err(TakeBackError)? {
            Some(table) => self.view.reload(table).map_err(|error| TakeBackError(error.into())),
            None => Ok(()),
        }
    }

    /// The calls on the descriptor `fd`, which is `preopened` if the guest finds it open at its start. `None` for the
    /// placeholder folder.
    ///
    /// # Errors
    /// `BadDescriptor` for a descriptor that the view does not know.
    pub(super) fn calls<'a>(
        &'a mut self,
        fd: u32,
        preopened: Option<(usize, &Preopen)>,
        table: &'a mut ResourceTable,
    ) -> FsResult<Option<StagedCalls<'a>>> {
        let found = match preopened.map(|(index, preopen)| (index, &preopen.kind)) {
            Some((_, PreopenKind::Outside)) => return Ok(None),
            // The granted folders have the order of the grant, and come before the placeholder.
            Some((index, PreopenKind::Granted { .. })) => {
                self.roots.get(index).map(|root| root.map_or(Opened::Gone, Opened::Root))
            }
            None => self.open.get(&fd).cloned(),
        };
        if let Some(program) = &mut self.program {
            program.note_use();
        }
        let opened = found.ok_or(ErrorCode::BadDescriptor)?;
        Ok(Some(StagedCalls { staged: self, table, opened }))
    }

    /// The mark to set when the descriptor `fd` was written; `None` unless it is a file that is open for writing.
    pub(super) fn write_mark(&self, fd: u32) -> Option<WriteMark> {
        match self.open.get(&fd)? {
            Opened::File(_, mark) => mark.clone(),
            Opened::Folder(_) | Opened::Root(_) | Opened::Gone => None,
        }
    }

    /// Forgets a descriptor whose handle is closed.
    pub(super) fn close(&mut self, fd: u32) {
        match self.open.remove(&fd) {
            Some(Opened::Folder(folder)) => {
                if let Some(node) = Arc::into_inner(folder) {
                    self.view.close_folder(node);
                }
            }
            Some(Opened::Root(_) | Opened::Gone | Opened::File(..)) | None => {}
        }
    }

    /// The next entry of a listing; `None` at the end.
    pub(super) fn next_entry(&self, listing: &mut Listing) -> FsResult<Option<ListingEntry>> {
        let Some(ListedEntry { name, kind, inode: _, next }) = listing.next(&self.view).map_err(fs_error)?
        else {
            return Ok(None);
        };
        let name = CString::new(name.into_vec()).map_err(|_| ErrorCode::IllegalByteSequence)?;
        Ok(Some(ListingEntry { name, kind: file_type(kind), next }))
    }

    /// Writes the table of changes into the folder of the changes, where the server finds it after the run. If calls still
    /// have the files, the server has the last table: the run has changed nothing else since it lent them.
    ///
    /// # Errors
    /// If the changes of calls cannot be read, the table is too long, or it cannot be written.
    pub(super) fn store(mut self) -> Result<(), BoxedError> {
        self.take_back_if_ended()?;
        if self.program.as_ref().is_some_and(Program::is_lent) {
            return Ok(());
        }
        let Self { view, upper, .. } = self;
        store_table(&upper, &view.into_table().to_bytes()?)
    }
}

impl StagedCalls<'_> {
    /// The node of the open file or folder.
    fn node(&self) -> FsResult<NodeId> {
        match &self.opened {
            Opened::Folder(node) => Ok(**node),
            Opened::Root(node) | Opened::File(node, _) => Ok(*node),
            Opened::Gone => Err(ErrorCode::NoEntry.into()),
        }
    }

    /// The node of the open folder from which a path starts.
    pub(super) fn folder(&self) -> FsResult<NodeId> {
        match &self.opened {
            Opened::Folder(_) | Opened::Root(_) | Opened::Gone => self.node(),
            Opened::File(..) => Err(ErrorCode::NotDirectory.into()),
        }
    }

    /// The numbers by which files are compared; `None` for a granted folder that is gone.
    pub(super) fn identity(&self) -> FsResult<Option<Identity>> {
        match &self.opened {
            Opened::Gone => Ok(None),
            Opened::Folder(_) | Opened::Root(_) | Opened::File(..) => {
                self.look_here().map(|stat| Some(stat.identity))
            }
        }
    }

    pub(super) fn stat(self) -> FsResult<DescriptorStat> {
        self.look_here().map(descriptor_stat)
    }

    pub(super) fn metadata_hash(self) -> FsResult<MetadataHashValue> {
        self.look_here().map(|stat| metadata_hash(stat.identity))
    }

    pub(super) fn stat_at(self, _never_follows: PathFlags, name: String) -> FsResult<DescriptorStat> {
        self.look(name).map(descriptor_stat)
    }

    pub(super) fn metadata_hash_at(
        self,
        _never_follows: PathFlags,
        name: String,
    ) -> FsResult<MetadataHashValue> {
        self.look(name).map(|stat| metadata_hash(stat.identity))
    }

    pub(super) fn readlink_at(self, name: String) -> FsResult<String> {
        let folder = self.folder()?;
        let name = self.entry(name, Errno::INVAL)?;
        let bytes = self.staged.view.read_link(folder, &name).map_err(fs_error)?;
        let target = bytes.into_string().map_err(|_| ErrorCode::IllegalByteSequence)?;
        // As in wasmtime: a path of the host is not shown.
        if target.starts_with('/') { Err(ErrorCode::NotPermitted.into()) } else { Ok(target) }
    }

    pub(super) fn create_directory_at(self, name: String) -> FsResult<()> {
        let folder = self.folder()?;
        let name = self.entry(name, Errno::EXIST)?;
        self.check_exists()?;
        self.staged.view.create_folder(folder, &name).map_err(fs_error)
    }

    pub(super) fn symlink_at(self, target: String, name: String) -> FsResult<()> {
        let folder = self.folder()?;
        let name = self.entry(name, Errno::EXIST)?;
        self.check_exists()?;
        // As in wasmtime: no other program may be led out of the granted folders.
        if target.starts_with('/') {
            return Err(ErrorCode::NotPermitted.into());
        }
        self.staged.view.symlink(OsStr::new(&target), folder, &name).map_err(fs_error)
    }

    pub(super) fn remove_directory_at(self, name: String) -> FsResult<()> {
        let folder = self.folder()?;
        let name = self.entry(name, Errno::INVAL)?;
        self.staged.view.remove_folder(folder, &name).map_err(fs_error)
    }

    pub(super) fn unlink_file_at(self, name: String) -> FsResult<()> {
        let folder = self.folder()?;
        let name = self.entry(name, Errno::ISDIR)?;
        self.staged.view.unlink(folder, &name).map_err(fs_error)
    }

    /// Renames `old` to the entry `new` of the folder `to`.
    pub(super) fn rename(self, old: String, to: NodeId, new: String) -> FsResult<()> {
        let from = self.folder()?;
        let old = self.entry(old, Errno::BUSY)?;
        let new = self.entry(new, Errno::BUSY)?;
        if self.staged.missing.contains(&to) {
            return Err(ErrorCode::NoEntry.into());
        }
        self.staged.view.rename((from, &old), (to, &new)).map_err(fs_error)
    }

    pub(super) fn set_times(self, atim: NewTimestamp, mtim: NewTimestamp) -> FsResult<()> {
        let node = self.node()?;
        self.staged.view.set_times(node, new_time(atim)?, new_time(mtim)?).map_err(fs_error)
    }

    pub(super) fn set_times_at(
        self,
        _never_follows: PathFlags,
        name: String,
        atim: NewTimestamp,
        mtim: NewTimestamp,
    ) -> FsResult<()> {
        let folder = self.folder()?;
        match entry_name(name)? {
            Some(name) => {
                let set = self.staged.view.set_times_at(folder, &name, new_time(atim)?, new_time(mtim)?);
                set.map_err(fs_error)
            }
            None => self.set_times(atim, mtim),
        }
    }

    /// Lists the folder from its beginning.
    pub(super) fn list(self) -> FsResult<Listing> {
        let folder = self.folder()?;
        self.staged.view.list(folder, 0).map_err(fs_error)
    }

    /// Opens an entry as wasmtime does: a file that is made or emptied is also opened for writing, and everything that is
    /// not opened for writing is opened for reading.
    pub(super) fn open_at(
        self,
        _never_follows: PathFlags,
        name: String,
        open: OpenFlags,
        descriptor: DescriptorFlags,
    ) -> FsResult<Resource<Descriptor>> {
        let synchronized = DescriptorFlags::FILE_INTEGRITY_SYNC
            | DescriptorFlags::DATA_INTEGRITY_SYNC
            | DescriptorFlags::REQUESTED_WRITE_SYNC;
        if descriptor.intersects(synchronized) {
            return Err(ErrorCode::Unsupported.into());
        }
        let is_folder_only = open.contains(OpenFlags::DIRECTORY);
        if is_folder_only && open.intersects(OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE) {
            return Err(ErrorCode::Invalid.into());
        }
        let is_writing = open.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE)
            || descriptor.contains(DescriptorFlags::WRITE);
        if is_writing && self.staged.access == Access::ReadOnly {
            return Err(ErrorCode::NotPermitted.into());
        }
        let is_reading =
            descriptor.contains(DescriptorFlags::READ) || !descriptor.contains(DescriptorFlags::WRITE);
        let mut mode = OpenMode::empty();
        mode.set(OpenMode::READ, is_reading);
        mode.set(OpenMode::WRITE, is_writing);
        let folder = self.folder()?;
        let Some(name) = entry_name(name)? else {
            if open.contains(OpenFlags::CREATE | OpenFlags::EXCLUSIVE) {
                return Err(ErrorCode::Exist.into());
            }
            return if is_writing { Err(ErrorCode::IsDirectory.into()) } else { self.open_again(mode) };
        };
        match self.staged.view.lookup(folder, &name) {
            Ok(Stat { kind: EntryKind::Folder, .. }) if !is_writing => self.open_folder(folder, &name, mode),
            Ok(Stat { kind: EntryKind::File, .. }) if is_folder_only => Err(ErrorCode::NotDirectory.into()),
            Err(Errno::NOENT) if self.staged.missing.contains(&folder) => Err(ErrorCode::NoEntry.into()),
            Ok(_) | Err(_) => {
                let create = match (open.contains(OpenFlags::CREATE), open.contains(OpenFlags::EXCLUSIVE)) {
                    (true, true) => Create::Exclusive,
                    (true, false) => Create::IfMissing,
                    (false, _) => Create::No,
                };
                let truncate = open.contains(OpenFlags::TRUNCATE);
                let how = How { read: is_reading, write: is_writing, append: false, truncate, create };
                self.open_file(folder, &name, how, mode)
            }
        }
    }

    /// Opens the folder itself once more.
    fn open_again(self, mode: OpenMode) -> FsResult<Resource<Descriptor>> {
        let descriptor = self.staged.folder(mode);
        let opened = self.opened.clone();
        self.give_out(descriptor, opened)
    }

    fn open_folder(self, folder: NodeId, name: &Name, mode: OpenMode) -> FsResult<Resource<Descriptor>> {
        let node = self.staged.view.open_folder(folder, name).map_err(fs_error)?;
        let descriptor = self.staged.folder(mode);
        self.give_out(descriptor, Opened::Folder(Arc::new(node)))
    }

    fn open_file(
        self,
        folder: NodeId,
        name: &Name,
        how: How,
        mode: OpenMode,
    ) -> FsResult<Resource<Descriptor>> {
        let Staged { view, budget, max_copied, .. } = &mut *self.staged;
        let copied_before = view.copied_bytes();
        let opened = view.open_file(folder, name, how);
        // A copy takes as much of the disk as if the guest had written it. One that the view refuses for its size alone
        // ends the run as a write of that size would.
        let refused = match &opened {
            Err(Errno::NOSPC) => view.lookup(folder, name).map_or(0, |stat| stat.size),
            Ok(_) | Err(_) => 0,
        };
        if copied_before.saturating_add(refused) > *max_copied {
            budget.charge_write(refused).map_err(|stop| FsError::trap(wasmtime::Error::from(stop)))?;
        }
        self.staged.charge_copies()?;
        let OpenFile { node, file, written } = opened.map_err(fs_error)?;
        let descriptor = self.staged.file(file, mode);
        self.give_out(descriptor, Opened::File(node, how.write.then_some(written)))
    }

    fn give_out(self, descriptor: Descriptor, opened: Opened) -> FsResult<Resource<Descriptor>> {
        let fd = self.table.push(descriptor)?;
        self.staged.open.insert(fd.rep(), opened);
        Ok(fd)
    }

    /// The attributes of the open file or folder itself.
    fn look_here(&self) -> FsResult<Stat> {
        self.staged.view.stat(self.node()?).map_err(fs_error)
    }

    /// The attributes of an entry, or of the folder itself.
    fn look(&self, name: String) -> FsResult<Stat> {
        let folder = self.folder()?;
        let stat = match entry_name(name)? {
            Some(name) => self.staged.view.lookup(folder, &name),
            None => self.staged.view.stat(folder),
        };
        stat.map_err(fs_error)
    }

    /// The name of an entry. The folder itself is refused with the error that the kernel has for it.
    fn entry(&self, name: String, for_folder_itself: Errno) -> FsResult<Name> {
        entry_name(name)?.ok_or_else(|| fs_error(for_folder_itself))
    }

    /// Refuses to make an entry in a granted folder that does not exist on the host.
    fn check_exists(&self) -> FsResult<()> {
        if self.staged.missing.contains(&self.node()?) { Err(ErrorCode::NoEntry.into()) } else { Ok(()) }
    }
}

impl Staged {
    /// Charges the budget with the bytes that the view has copied since the last time, or ends the run.
    fn charge_copies(&mut self) -> FsResult<()> {
        let copied = self.view.copied_bytes();
        let due = copied.saturating_sub(self.charged);
        self.charged = copied;
        self.budget.charge_write(due).map_err(|stop| FsError::trap(wasmtime::Error::from(stop)))
    }

    /// An open folder as the guest gets it.
    fn folder(&self, mode: OpenMode) -> Descriptor {
        let mut folder = self.folder.clone();
        folder.open_mode = mode;
        Descriptor::Dir(folder)
    }

    /// An open file as the guest gets it.
    fn file(&self, handle: Arc<File>, mode: OpenMode) -> Descriptor {
        let mut file = self.file.clone();
        file.file = handle;
        file.open_mode = mode;
        Descriptor::File(file)
    }
}

/// Opens the granted folders for a run whose changes no other run sees.
fn open_granted(
    granted: &[OpenRoot],
    upper: OwnedFd,
    access: a2g_overlay::Access,
    budget: UpperBudget,
) -> std::io::Result<StartFiles> {
    let open = |root: &OpenRoot| Ok(LowerRoot { dir: root.dir.as_fd().try_clone_to_owned()?, access });
    let lower = granted.iter().map(open).collect::<std::io::Result<Vec<_>>>()?;
    let view = View::new(upper, lower, budget)?;
    let roots = (0..granted.len()).map(|index| view.root(index)).collect();
    Ok(StartFiles { view, roots, program: None })
}

/// Stores the table of changes in the folder `upper`, in place of an earlier one.
fn store_table(upper: &OwnedFd, bytes: &[u8]) -> Result<(), BoxedError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let draft = openat(upper, DRAFT, flags, Mode::RUSR | Mode::WUSR)?;
    File::from(draft).write_all(bytes)?;
    renameat(upper, DRAFT, upper, a2g_overlay::Upper::TABLE)?;
    Ok(())
}

fn overlay_access(access: Access) -> a2g_overlay::Access {
    match access {
        Access::ReadOnly => a2g_overlay::Access::Read,
        Access::ReadWrite => a2g_overlay::Access::Write,
    }
}

/// The error code that wasmtime has for an error of the kernel.
fn fs_error(error: Errno) -> FsError {
    std::io::Error::from(error).into()
}

/// The entry that a resolved name stands for; `None` for the folder itself.
fn entry_name(name: String) -> FsResult<Option<Name>> {
    if name == "." {
        return Ok(None);
    }
    Name::new(name).map(Some).map_err(|error| {
        if error == NameError::TooLong { ErrorCode::NameTooLong.into() } else { ErrorCode::Invalid.into() }
    })
}

fn new_time(time: NewTimestamp) -> FsResult<NewTime> {
    Ok(match time {
        NewTimestamp::NoChange => NewTime::Keep,
        NewTimestamp::Now => NewTime::Now,
        NewTimestamp::Timestamp(Datetime { seconds, nanoseconds }) => {
            let whole = seconds.checked_add(u64::from(nanoseconds / 1_000_000_000));
            let seconds = whole.and_then(|whole| i64::try_from(whole).ok()).ok_or(ErrorCode::Overflow)?;
            NewTime::At(FileTime { seconds, nanoseconds: nanoseconds % 1_000_000_000 })
        }
    })
}

fn descriptor_stat(stat: Stat) -> DescriptorStat {
    DescriptorStat {
        type_: match stat.kind {
            EntryKind::File => DescriptorType::RegularFile,
            EntryKind::Folder => DescriptorType::Directory,
            EntryKind::Link => DescriptorType::SymbolicLink,
            EntryKind::Other => DescriptorType::Unknown,
        },
        link_count: stat.nlink,
        size: stat.size,
        data_access_timestamp: datetime(stat.accessed),
        data_modification_timestamp: datetime(stat.modified),
        status_change_timestamp: datetime(stat.changed),
    }
}

/// A time as WASI has it; `None` before 1970.
fn datetime(time: FileTime) -> Option<Datetime> {
    Some(Datetime { seconds: u64::try_from(time.seconds).ok()?, nanoseconds: time.nanoseconds })
}

/// The hash that wasmtime makes of an entry's numbers, so that a guest recognises a file of an earlier run.
fn metadata_hash(Identity { device, inode }: Identity) -> MetadataHashValue {
    const UPPER: u64 = 4_614_256_656_552_045_848;
    let mut hasher = DefaultHasher::new();
    (device, inode).hash(&mut hasher);
    let lower = hasher.finish();
    MetadataHashValue { lower, upper: lower ^ UPPER }
}

fn file_type(kind: EntryKind) -> FileType {
    match kind {
        EntryKind::File => FileType::RegularFile,
        EntryKind::Folder => FileType::Directory,
        EntryKind::Link => FileType::Symlink,
        EntryKind::Other => FileType::Unknown,
    }
}
