//! The filesystem of WASI 0.2, around wasmtime's own.
//!
//! Every call goes through [`Watched`]: what reaches under the folder that stands for all that is
//! not granted is refused with `access`, and every refusal is recorded. Nothing here looks at a
//! guest path to decide: wasmtime-wasi resolves it beneath the opened roots, and where a root is not
//! granted whole it is walked (`walk.rs`).

use super::budget::{Budget, Reading, Spending};
use super::denials::Refusal;
use super::listing::{Entry, Listing};
use super::state::{Preopen, PreopenKind, State};
use super::stop::Stop;
use super::walk::{Need, Place, Reached};
use rustix::fs::FileType;
use std::sync::Arc;
use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemCtxView, WasiFilesystemView as _};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    Advice, DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntry, DirectoryEntryStream, ErrorCode,
    Filesize, Host, HostDescriptor, HostDirectoryEntryStream, MetadataHashValue, NewTimestamp, OpenFlags,
    PathFlags, add_to_linker as link_types,
};
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, FsError, FsResult};

/// Links `wasi:filesystem/types`.
pub(super) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    link_types::<State, HasWatched>(linker, |state| Watched(state))
}

struct HasWatched;

impl HasData for HasWatched {
    type Data<'a> = Watched<'a>;
}

pub(super) struct Watched<'a>(pub(super) &'a mut State);

impl Watched<'_> {
    pub(super) fn inner(&mut self) -> WasiFilesystemCtxView<'_> {
        self.0.filesystem()
    }

    /// The preopened folder that a descriptor is, when it is one.
    pub(super) fn preopen(&mut self, fd: &Resource<Descriptor>) -> Option<Preopen> {
        let handle = match self.0.wasi.ctx().table.get(fd) {
            Ok(Descriptor::Dir(dir)) => Arc::clone(&dir.dir),
            Ok(Descriptor::File(_)) | Err(_) => return None,
        };
        self.0.preopens.iter().find(|preopen| Arc::ptr_eq(&preopen.handle, &handle)).cloned()
    }

    /// Refuses what starts from the folder that stands for all that is not granted.
    fn enter(&mut self, paths: &[(Option<Preopen>, &str)]) -> FsResult<()> {
        let outside = |p: &Option<Preopen>| p.as_ref().is_some_and(|p| p.kind == PreopenKind::Outside);
        if paths.iter().any(|(preopen, _)| outside(preopen)) {
            self.record(Refusal::Access, paths);
            return Err(ErrorCode::Access.into());
        }
        Ok(())
    }

    /// Spends of the budget, or ends the run.
    fn spend(&self, spend: impl FnOnce(&Budget) -> Result<(), Stop>) -> FsResult<()> {
        spend(&self.0.gauges.budget).map_err(|stop| FsError::trap(wasmtime::Error::from(stop)))
    }

    /// The size of an open file; 0 when it is none.
    fn size(&mut self, fd: &Resource<Descriptor>) -> u64 {
        match self.0.wasi.ctx().table.get(fd) {
            Ok(Descriptor::File(file)) => file.file.metadata().map_or(0, |metadata| metadata.len()),
            Ok(Descriptor::Dir(_)) | Err(_) => 0,
        }
    }

    /// Puts a stream into a file behind the budget.
    fn spending(&mut self, stream: Resource<DynOutputStream>) -> FsResult<Resource<DynOutputStream>> {
        let budget = Arc::clone(&self.0.gauges.budget);
        let table = &mut self.0.wasi.ctx().table;
        let inner = table.delete(stream)?;
        let spending: DynOutputStream = Box::new(Spending { inner, budget });
        Ok(table.push(spending)?)
    }

    /// Refuses to make a link where links may not be made.
    fn link(&mut self, paths: &[(Option<Preopen>, &str)]) -> FsResult<()> {
        if !self.0.links {
            self.record(Refusal::Linking, paths);
            return Err(ErrorCode::NotPermitted.into());
        }
        self.spend(Budget::create)
    }

    /// Where an open folder lies; `None` for a file, and where paths are not walked.
    fn place_of_folder(&mut self, fd: &Resource<Descriptor>) -> FsResult<Option<Place>> {
        let walked = self.0.walks && matches!(self.0.wasi.ctx().table.get(fd)?, Descriptor::Dir(_));
        if walked { self.place(fd).map(Some) } else { Ok(None) }
    }

    /// Reaches a folder that is to be made, whose name may end in a slash.
    async fn reach_a_new_folder(&mut self, fd: &Resource<Descriptor>, path: &str) -> FsResult<Reached> {
        let name = if self.0.walks { path.trim_end_matches('/') } else { path };
        self.reach(fd, name, PathFlags::empty(), Need::Have).await
    }

    /// Reaches both ends of a call that has two.
    async fn reach_both(
        &mut self,
        (fd, old): (&Resource<Descriptor>, &str),
        (new_fd, new): (&Resource<Descriptor>, &str),
    ) -> FsResult<(Reached, Reached)> {
        let from = self.reach(fd, old, PathFlags::empty(), Need::Have).await?;
        match self.reach_a_new_folder(new_fd, new).await {
            Ok(to) => Ok((from, to)),
            Err(error) => {
                self.leave(from);
                Err(error)
            }
        }
    }

    /// Whether what lies at one place may be moved to another. A folder takes along what lies below it,
    /// so all of that has to be granted, before and after. A folder that was `moved` all the same is moved
    /// back.
    async fn may_move(&mut self, from: &Reached, to: &Reached, moved: bool) -> FsResult<()> {
        let (Some(old), Some(new)) = (&from.place, &to.place) else { return Ok(()) };
        let at = if moved { to } else { from };
        let kind = match self.inner().stat_at(at.folder(), PathFlags::empty(), at.name.clone()).await {
            Ok(stat) => stat.type_,
            // What was moved here is gone again.
            Err(_) if moved => return Ok(()),
            Err(error) => return Err(error),
        };
        let narrow = [old, new].into_iter().find(|place| !place.root.grants_all_below(&place.path));
        let Some(place) = narrow.filter(|_| kind == DescriptorType::Directory) else { return Ok(()) };
        if moved {
            let (there, back) = (to.name.clone(), from.name.clone());
            let _as_far_as_it_goes = self.inner().rename_at(to.folder(), there, from.folder(), back).await;
        }
        Err(self.not_granted(place).into())
    }

    /// Opens what was reached, when it is a file or a folder that may be opened.
    async fn open_reached(
        &mut self,
        at: &Reached,
        paths: &[(Option<Preopen>, &str)],
        open: OpenFlags,
        flags: DescriptorFlags,
    ) -> FsResult<Resource<Descriptor>> {
        let mut open = open;
        if let Some(place) = at.place.as_ref().filter(|place| !place.root.grants(&place.path)) {
            // A folder on the way is opened as one and for nothing else.
            if open.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE) {
                return Err(self.not_granted(place).into());
            }
            open |= OpenFlags::DIRECTORY;
        }
        let exists = self.check_target(at, paths).await?;
        if !exists && open.contains(OpenFlags::CREATE) {
            self.spend(Budget::create)?;
        }
        let result = self.inner().open_at(at.folder(), at.flags, at.name.clone(), open, flags).await;
        self.watch(changes_something(open, flags), paths, result)
    }

    /// Refuses a file with several names, unless the operator allows those, and anything but a file, a folder or
    /// a link, such as a FIFO: that could hold the thread that opens it, and setting the times of a file opens it
    /// as well. `false` when nothing is there; where that cannot be told, the call itself fails.
    async fn check_target(&mut self, at: &Reached, paths: &[(Option<Preopen>, &str)]) -> FsResult<bool> {
        use DescriptorType::{Directory, RegularFile, SymbolicLink};
        let stat = self.inner().stat_at(at.folder(), at.flags, at.name.clone()).await;
        match stat.map(|stat| (stat.type_, stat.link_count)) {
            Ok((RegularFile | SymbolicLink, 2..)) if !self.0.hard_links => {
                self.record(Refusal::HardLink, paths);
                Err(ErrorCode::NotPermitted.into())
            }
            Ok((Directory | RegularFile | SymbolicLink, _)) => Ok(true),
            Ok(_) => Err(ErrorCode::Unsupported.into()),
            Err(_) => Ok(false),
        }
    }

    /// Looks at the result of a call that would change something or only looks, and records it when
    /// it is a refusal.
    fn watch<T>(
        &mut self,
        changes: bool,
        paths: &[(Option<Preopen>, &str)],
        result: FsResult<T>,
    ) -> FsResult<T> {
        if let Err(error) = &result {
            match error.downcast_ref() {
                Some(ErrorCode::Access) => self.record(Refusal::Access, paths),
                Some(ErrorCode::NotPermitted) if changes => self.record(Refusal::Changing, paths),
                Some(ErrorCode::NotPermitted) => self.record(Refusal::Looking, paths),
                Some(_) | None => {}
            }
        }
        result
    }

    pub(super) fn record(&mut self, refusal: Refusal, paths: &[(Option<Preopen>, &str)]) {
        let paths = paths.iter().map(|(preopen, path)| (preopen.as_ref(), (*path).to_owned())).collect();
        self.0.gauges.denials.refused(refusal, paths);
    }
}

impl Host for Watched<'_> {
    fn convert_error_code(&mut self, error: FsError) -> wasmtime::Result<ErrorCode> {
        self.inner().convert_error_code(error)
    }

    fn filesystem_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        self.inner().filesystem_error_code(error)
    }
}

/// A call that takes one path below a descriptor. Where it follows links, its `flags` say so.
macro_rules! watched {
    ($($name:ident($fd:ident, $(($flags:ident))? $path:ident: String; $($after:ident: $at:ty),*) -> $out:ty, $need:expr, changes $changes:expr;)*) => {
        $(async fn $name(
            &mut self, $fd: Resource<Descriptor>, $($flags: PathFlags,)? $path: String $(, $after: $at)*
        ) -> FsResult<$out> {
            let paths = [(self.preopen(&$fd), $path.as_str())];
            self.enter(&paths)?;
            #[allow(unused_mut, unused_assignments, reason = "some calls never follow a link")]
            let mut follow = PathFlags::empty();
            $(follow = $flags;)?
            let at = self.reach(&$fd, &$path, follow, $need).await?;
            $(let $flags = at.flags;)?
            let result = self.inner().$name(at.folder(), $($flags,)? at.name.clone() $(, $after)*).await;
            self.leave(at);
            self.watch($changes, &paths, result)
        })*
    };
}

/// Whether opening with these flags makes or changes something.
fn changes_something(open: OpenFlags, flags: DescriptorFlags) -> bool {
    open.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE)
        || flags.intersects(DescriptorFlags::WRITE | DescriptorFlags::MUTATE_DIRECTORY)
}

/// A call that takes no path.
macro_rules! passed_on {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        $(async fn $name(&mut self, $($arg: $ty),*) -> $out {
            self.inner().$name($($arg),*).await
        })*
    };
}

impl HostDescriptor for Watched<'_> {
    watched! {
        stat_at(fd, (flags) path: String;) -> DescriptorStat, Need::Look, changes false;
        readlink_at(fd, path: String;) -> String, Need::Have, changes false;
        remove_directory_at(fd, path: String;) -> (), Need::Have, changes true;
        unlink_file_at(fd, path: String;) -> (), Need::Have, changes true;
        metadata_hash_at(fd, (flags) path: String;) -> MetadataHashValue, Need::Look, changes false;
    }

    passed_on! {
        advise(fd: Resource<Descriptor>, offset: Filesize, len: Filesize, advice: Advice) -> FsResult<()>;
        sync_data(fd: Resource<Descriptor>) -> FsResult<()>;
        get_flags(fd: Resource<Descriptor>) -> FsResult<DescriptorFlags>;
        get_type(fd: Resource<Descriptor>) -> FsResult<DescriptorType>;
        read(fd: Resource<Descriptor>, len: Filesize, offset: Filesize) -> FsResult<(Vec<u8>, bool)>;
        sync(fd: Resource<Descriptor>) -> FsResult<()>;
        stat(fd: Resource<Descriptor>) -> FsResult<DescriptorStat>;
        metadata_hash(fd: Resource<Descriptor>) -> FsResult<MetadataHashValue>;
        is_same_object(a: Resource<Descriptor>, b: Resource<Descriptor>) -> wasmtime::Result<bool>;
    }

    async fn read_directory(&mut self, fd: Resource<Descriptor>) -> FsResult<Resource<DirectoryEntryStream>> {
        let place = self.place_of_folder(&fd)?;
        let table = &mut self.0.wasi.ctx().table;
        let folder = match table.get(&fd)? {
            Descriptor::Dir(dir) => Arc::clone(&dir.dir),
            Descriptor::File(_) => return Err(ErrorCode::NotDirectory.into()),
        };
        let listing = table.push(Listing::open(&folder, 0)?)?;
        if let Some(place) = place {
            self.0.places.insert(listing.rep(), place);
        }
        Ok(Resource::new_own(listing.rep()))
    }

    async fn set_size(&mut self, fd: Resource<Descriptor>, size: Filesize) -> FsResult<()> {
        self.spend(|budget| budget.write(size))?;
        self.inner().set_size(fd, size).await
    }

    async fn write(
        &mut self,
        fd: Resource<Descriptor>,
        bytes: Vec<u8>,
        offset: Filesize,
    ) -> FsResult<Filesize> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let grown = offset.saturating_add(length).saturating_sub(self.size(&fd));
        self.spend(|budget| budget.write(length.max(grown)))?;
        self.inner().write(fd, bytes, offset).await
    }

    async fn set_times(
        &mut self,
        fd: Resource<Descriptor>,
        atim: NewTimestamp,
        mtim: NewTimestamp,
    ) -> FsResult<()> {
        // A folder may be open only because it lies on the way.
        if let Some(place) = self.place_of_folder(&fd)?
            && !place.root.grants(&place.path)
        {
            return Err(self.not_granted(&place).into());
        }
        self.inner().set_times(fd, atim, mtim).await
    }

    async fn set_times_at(
        &mut self,
        fd: Resource<Descriptor>,
        follow: PathFlags,
        path: String,
        atim: NewTimestamp,
        mtim: NewTimestamp,
    ) -> FsResult<()> {
        let paths = [(self.preopen(&fd), path.as_str())];
        self.enter(&paths)?;
        let at = self.reach(&fd, &path, follow, Need::Have).await?;
        let result = match self.check_target(&at, &paths).await {
            Ok(_exists) => {
                let set = self.inner().set_times_at(at.folder(), at.flags, at.name.clone(), atim, mtim).await;
                self.watch(true, &paths, set)
            }
            Err(refused) => Err(refused),
        };
        self.leave(at);
        result
    }

    async fn create_directory_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<()> {
        let paths = [(self.preopen(&fd), path.as_str())];
        self.enter(&paths)?;
        let at = self.reach_a_new_folder(&fd, &path).await?;
        let result = match self.spend(Budget::create) {
            Ok(()) => self.inner().create_directory_at(at.folder(), at.name.clone()).await,
            Err(stop) => Err(stop),
        };
        self.leave(at);
        self.watch(true, &paths, result)
    }

    async fn open_at(
        &mut self,
        fd: Resource<Descriptor>,
        follow: PathFlags,
        path: String,
        open: OpenFlags,
        flags: DescriptorFlags,
    ) -> FsResult<Resource<Descriptor>> {
        let paths = [(self.preopen(&fd), path.as_str())];
        self.enter(&paths)?;
        let at = self.reach(&fd, &path, follow, Need::Look).await?;
        let result = self.open_reached(&at, &paths, open, flags).await;
        if let (Ok(opened), Some(place)) = (&result, &at.place) {
            self.0.places.insert(opened.rep(), place.clone());
        }
        self.leave(at);
        result
    }

    async fn link_at(
        &mut self,
        fd: Resource<Descriptor>,
        flags: PathFlags,
        old: String,
        new_fd: Resource<Descriptor>,
        new: String,
    ) -> FsResult<()> {
        let paths = [(self.preopen(&fd), old.as_str()), (self.preopen(&new_fd), new.as_str())];
        self.enter(&paths)?;
        self.link(&paths)?;
        let (from, to) = self.reach_both((&fd, &old), (&new_fd, &new)).await?;
        let (old, new) = (from.name.clone(), to.name.clone());
        let result = self.inner().link_at(from.folder(), flags, old, to.folder(), new).await;
        self.leave(from);
        self.leave(to);
        self.watch(true, &paths, result)
    }

    async fn rename_at(
        &mut self,
        fd: Resource<Descriptor>,
        old: String,
        new_fd: Resource<Descriptor>,
        new: String,
    ) -> FsResult<()> {
        let paths = [(self.preopen(&fd), old.as_str()), (self.preopen(&new_fd), new.as_str())];
        self.enter(&paths)?;
        let (from, to) = self.reach_both((&fd, &old), (&new_fd, &new)).await?;
        let result = match self.may_move(&from, &to, false).await {
            Ok(()) => {
                let (old, new) = (from.name.clone(), to.name.clone());
                let moved = self.inner().rename_at(from.folder(), old, to.folder(), new).await;
                // Another run may have put a folder there meanwhile.
                match moved {
                    Ok(()) => self.may_move(&from, &to, true).await,
                    Err(refused) => self.watch(true, &paths, Err(refused)),
                }
            }
            Err(refused) => Err(refused),
        };
        self.leave(from);
        self.leave(to);
        result
    }

    async fn symlink_at(&mut self, fd: Resource<Descriptor>, target: String, path: String) -> FsResult<()> {
        let paths = [(self.preopen(&fd), path.as_str())];
        self.enter(&paths)?;
        self.link(&paths)?;
        let at = self.reach(&fd, &path, PathFlags::empty(), Need::Have).await?;
        let result = self.inner().symlink_at(at.folder(), target, at.name.clone()).await;
        self.leave(at);
        self.watch(true, &paths, result)
    }

    fn read_via_stream(
        &mut self,
        fd: Resource<Descriptor>,
        offset: Filesize,
    ) -> FsResult<Resource<DynInputStream>> {
        let inner = self.inner().read_via_stream(fd, offset)?;
        let table = &mut self.0.wasi.ctx().table;
        let inner = table.delete(inner)?;
        let reading: DynInputStream = Box::new(Reading { inner });
        Ok(table.push(reading)?)
    }

    fn write_via_stream(
        &mut self,
        fd: Resource<Descriptor>,
        offset: Filesize,
    ) -> FsResult<Resource<DynOutputStream>> {
        // What lies between the end of the file and where the stream starts grows with its first byte.
        let gap = offset.saturating_sub(self.size(&fd));
        self.spend(|budget| budget.write(gap))?;
        let stream = self.inner().write_via_stream(fd, offset)?;
        self.spending(stream)
    }

    fn append_via_stream(&mut self, fd: Resource<Descriptor>) -> FsResult<Resource<DynOutputStream>> {
        let stream = self.inner().append_via_stream(fd)?;
        self.spending(stream)
    }

    fn drop(&mut self, fd: Resource<Descriptor>) -> wasmtime::Result<()> {
        self.0.places.remove(&fd.rep());
        HostDescriptor::drop(&mut self.inner(), fd)
    }
}

impl HostDirectoryEntryStream for Watched<'_> {
    async fn read_directory_entry(
        &mut self,
        stream: Resource<DirectoryEntryStream>,
    ) -> FsResult<Option<DirectoryEntry>> {
        let place = self.0.places.get(&stream.rep()).cloned();
        let hidden = |entry: &Entry| {
            let shown = |place: &Place| place.shows(&entry.name.to_string_lossy(), kind_of(entry.kind));
            entry.is_dots() || !place.as_ref().is_none_or(shown)
        };
        let listing = Resource::<Listing>::new_borrow(stream.rep());
        let listing = self.0.wasi.ctx().table.get_mut(&listing)?;
        let next = std::iter::from_fn(|| listing.next().transpose());
        let mut next = next.skip_while(|entry| entry.as_ref().is_ok_and(hidden));
        let Some(entry) = next.next().transpose()? else { return Ok(None) };
        self.spend(Budget::list)?;
        let name = entry.name.into_string().map_err(|_| ErrorCode::IllegalByteSequence)?;
        Ok(Some(DirectoryEntry { type_: kind_of(entry.kind), name }))
    }

    fn drop(&mut self, stream: Resource<DirectoryEntryStream>) -> wasmtime::Result<()> {
        self.0.places.remove(&stream.rep());
        let listing = Resource::<Listing>::new_own(stream.rep());
        self.0.wasi.ctx().table.delete(listing)?;
        Ok(())
    }
}

fn kind_of(kind: FileType) -> DescriptorType {
    match kind {
        FileType::RegularFile => DescriptorType::RegularFile,
        FileType::Directory => DescriptorType::Directory,
        FileType::Symlink => DescriptorType::SymbolicLink,
        FileType::Fifo => DescriptorType::Fifo,
        FileType::Socket => DescriptorType::Socket,
        FileType::CharacterDevice => DescriptorType::CharacterDevice,
        FileType::BlockDevice => DescriptorType::BlockDevice,
        FileType::Unknown => DescriptorType::Unknown,
    }
}
