//! The filesystem of WASI 0.2: the calls of `files.rs`, each checked, and every refusal recorded.
//!
//! Every call goes through [`AuditedFs`]. Besides the granted folders, a guest has one empty placeholder folder
//! ([`PreopenKind::Outside`]), to which its libc resolves every other path; only a module that the operator runs
//! directly has none. Calls below the placeholder are refused with `access`; every refusal is recorded.
//!
//! No decision relies on a path as the guest wrote it: wasmtime-wasi resolves it beneath the opened roots, and below a
//! root that is only partly granted, the path that was actually walked is checked (`walk.rs`).

use super::budget::{Budget, FileInputStream, FileOutputStream};
use super::denials::Refusal;
use super::files::RunFiles;
use super::listing::ListingEntry;
use super::state::{Preopen, PreopenKind, StoreState};
use super::termination::TerminationReason;
use super::walk::{PathRequirement, ResolvedPath, WalkedPath};
use a2g_overlay::WriteMark;
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
pub(super) fn add_to_linker(linker: &mut Linker<StoreState>) -> wasmtime::Result<()> {
    link_types::<StoreState, HasAuditedFs>(linker, |state| AuditedFs(state))
}

struct HasAuditedFs;

impl HasData for HasAuditedFs {
    type Data<'a> = AuditedFs<'a>;
}

pub(super) struct AuditedFs<'a>(pub(super) &'a mut StoreState);

impl AuditedFs<'_> {
    /// The files of the run, which may be kept apart from the granted folders.
    pub(super) fn files(&mut self) -> RunFiles<'_> {
        RunFiles(self.0)
    }

    /// wasmtime's own calls, for what does not depend on the folder of a file.
    fn inner(&mut self) -> WasiFilesystemCtxView<'_> {
        self.0.filesystem()
    }

    /// The preopen that a descriptor refers to; `None` for any other descriptor.
    pub(super) fn preopen(&mut self, fd: &Resource<Descriptor>) -> Option<Preopen> {
        let handle = match self.0.wasi.ctx().table.get(fd) {
            Ok(Descriptor::Dir(dir)) => Arc::clone(&dir.dir),
            Ok(Descriptor::File(_)) | Err(_) => return None,
        };
        self.0.preopens.iter().find(|preopen| Arc::ptr_eq(&preopen.handle, &handle)).cloned()
    }

    /// Refuses paths that start from [`PreopenKind::Outside`].
    fn reject_outside(&mut self, paths: &[(Option<Preopen>, &str)]) -> FsResult<()> {
        let outside = |p: &Option<Preopen>| p.as_ref().is_some_and(|p| p.kind == PreopenKind::Outside);
        if paths.iter().any(|(preopen, _)| outside(preopen)) {
            self.record(Refusal::Access, paths);
            return Err(ErrorCode::Access.into());
        }
        Ok(())
    }

    /// Charges the budget, or ends the run.
    fn spend(&self, spend: impl FnOnce(&Budget) -> Result<(), TerminationReason>) -> FsResult<()> {
        spend(&self.0.stats.budget).map_err(|stop| FsError::trap(wasmtime::Error::from(stop)))
    }

    /// The size of an open file in bytes; 0 for a folder.
    fn size(&mut self, fd: &Resource<Descriptor>) -> u64 {
        match self.0.wasi.ctx().table.get(fd) {
            Ok(Descriptor::File(file)) => file.file.metadata().map_or(0, |metadata| metadata.len()),
            Ok(Descriptor::Dir(_)) | Err(_) => 0,
        }
    }

    /// Wraps a file's output stream, so that its writes are charged to the budget and noted.
    fn wrap_output(
        &mut self,
        stream: Resource<DynOutputStream>,
        mark: Option<WriteMark>,
    ) -> FsResult<Resource<DynOutputStream>> {
        let current = Arc::clone(&self.0.current);
        let table = &mut self.0.wasi.ctx().table;
        let inner = table.delete(stream)?;
        let stream: DynOutputStream = Box::new(FileOutputStream { inner, current, mark });
        Ok(table.push(stream)?)
    }

    /// Refuses to create a link if the operator does not allow links; charges the budget otherwise.
    fn check_link(&mut self, paths: &[(Option<Preopen>, &str)]) -> FsResult<()> {
        if !self.0.links {
            self.record(Refusal::Link, paths);
            return Err(ErrorCode::NotPermitted.into());
        }
        self.spend(Budget::charge_create)
    }

    /// The walked path of an open folder; `None` for a file, and in a run whose paths are not walked.
    fn folder_path(&mut self, fd: &Resource<Descriptor>) -> FsResult<Option<WalkedPath>> {
        let is_walked = self.0.walks && matches!(self.0.wasi.ctx().table.get(fd)?, Descriptor::Dir(_));
        if is_walked { self.walked_path(fd).map(Some) } else { Ok(None) }
    }

    /// Resolves the path of a folder to be created, which may end in a slash.
    async fn resolve_new_folder(&mut self, fd: &Resource<Descriptor>, path: &str) -> FsResult<ResolvedPath> {
        let name = if self.0.walks { path.trim_end_matches('/') } else { path };
        self.resolve(fd, name, PathFlags::empty(), PathRequirement::Granted).await
    }

    /// Resolves the old and the new path of a link or a rename. The new one may end in a slash.
    async fn resolve_both(
        &mut self,
        (fd, old): (&Resource<Descriptor>, &str),
        (new_fd, new): (&Resource<Descriptor>, &str),
    ) -> FsResult<(ResolvedPath, ResolvedPath)> {
        let from = self.resolve(fd, old, PathFlags::empty(), PathRequirement::Granted).await?;
        match self.resolve_new_folder(new_fd, new).await {
            Ok(to) => Ok((from, to)),
            Err(error) => {
                self.release(from);
                Err(error)
            }
        }
    }

    /// Refuses to move a folder unless everything below it is granted at its old and at its new path. If the move has
    /// already happened (`is_moved`), it is undone, if that is still possible.
    async fn check_move(&mut self, from: &ResolvedPath, to: &ResolvedPath, is_moved: bool) -> FsResult<()> {
        let (Some(old), Some(new)) = (&from.walked, &to.walked) else { return Ok(()) };
        let at = if is_moved { to } else { from };
        let kind = match self.files().stat_at(at.folder(), PathFlags::empty(), at.name.clone()).await {
            Ok(stat) => stat.type_,
            // The moved entry no longer exists.
            Err(_) if is_moved => return Ok(()),
            Err(error) => return Err(error),
        };
        let partly_granted =
            [old, new].into_iter().find(|walked| !walked.root.grants_all_below(&walked.path));
        let Some(walked) = partly_granted.filter(|_| kind == DescriptorType::Directory) else {
            return Ok(());
        };
        if is_moved {
            // Moving back may fail, if another run has taken the name. The guest gets the refusal in either case.
            let new_name = to.name.clone();
            let old_name = from.name.clone();
            let _ = self.files().rename_at(to.folder(), new_name, from.folder(), old_name).await;
        }
        Err(self.deny_path(walked).into())
    }

    /// Opens a resolved path, if it is a file or a folder that may be opened.
    async fn open_resolved(
        &mut self,
        at: &ResolvedPath,
        paths: &[(Option<Preopen>, &str)],
        open: OpenFlags,
        flags: DescriptorFlags,
    ) -> FsResult<Resource<Descriptor>> {
        let mut open = open;
        if let Some(walked) = at.walked.as_ref().filter(|walked| !walked.root.grants(&walked.path)) {
            // The path is not granted but leads to something granted, so it may be opened only as a folder.
            if open.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE) {
                return Err(self.deny_path(walked).into());
            }
            open |= OpenFlags::DIRECTORY;
        }
        let exists = self.check_target(at, paths).await?;
        if !exists && open.contains(OpenFlags::CREATE) {
            self.spend(Budget::charge_create)?;
        }
        let result = self.files().open_at(at.folder(), at.flags, at.name.clone(), open, flags).await;
        self.audit(is_mutating(open, flags), paths, result)
    }

    /// Refuses a file with several hard links, unless the operator allows those. Refuses everything that is not a file,
    /// a folder or a symbolic link. Returns `false` if the target does not exist or cannot be examined; in the latter
    /// case the call itself fails.
    async fn check_target(&mut self, at: &ResolvedPath, paths: &[(Option<Preopen>, &str)]) -> FsResult<bool> {
        use DescriptorType::{Directory, RegularFile, SymbolicLink};
        // Opening a FIFO could block this thread, and setting a file's times also opens the file. Another name of
        // a file may lie outside the grant.
        let stat = self.files().stat_at(at.folder(), at.flags, at.name.clone()).await;
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

    /// Records the result of a call if it is a refusal; `changes` is `true` for mutating calls.
    fn audit<T>(
        &mut self,
        changes: bool,
        paths: &[(Option<Preopen>, &str)],
        result: FsResult<T>,
    ) -> FsResult<T> {
        if let Err(error) = &result {
            match error.downcast_ref() {
                Some(ErrorCode::Access) => self.record(Refusal::Access, paths),
                Some(ErrorCode::NotPermitted) if changes => self.record(Refusal::Write, paths),
                Some(ErrorCode::NotPermitted) => self.record(Refusal::Read, paths),
                Some(_) | None => {}
            }
        }
        result
    }

    pub(super) fn record(&mut self, refusal: Refusal, paths: &[(Option<Preopen>, &str)]) {
        let paths = paths.iter().map(|(preopen, path)| (preopen.as_ref(), (*path).to_owned())).collect();
        self.0.stats.denials.record_refusal(refusal, paths);
    }
}

impl Host for AuditedFs<'_> {
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

/// Defines calls that take one path below a descriptor. Those that can follow links have `flags`.
macro_rules! audited {
    ($($name:ident($fd:ident, $(($flags:ident))? $path:ident: String; $($after:ident: $at:ty),*) -> $out:ty, $required:expr, changes $changes:expr;)*) => {
        $(async fn $name(
            &mut self, $fd: Resource<Descriptor>, $($flags: PathFlags,)? $path: String $(, $after: $at)*
        ) -> FsResult<$out> {
            let paths = [(self.preopen(&$fd), $path.as_str())];
            self.reject_outside(&paths)?;
            #[allow(unused_mut, unused_assignments, reason = "some calls never follow a link")]
            let mut follow = PathFlags::empty();
            $(follow = $flags;)?
            let at = self.resolve(&$fd, &$path, follow, $required).await?;
            $(let $flags = at.flags;)?
            // With the last folder's handle and one name, no component of the path is resolved a second time.
            let result = self.files().$name(at.folder(), $($flags,)? at.name.clone() $(, $after)*).await;
            self.release(at);
            self.audit($changes, &paths, result)
        })*
    };
}

fn is_mutating(open: OpenFlags, flags: DescriptorFlags) -> bool {
    open.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE)
        || flags.intersects(DescriptorFlags::WRITE | DescriptorFlags::MUTATE_DIRECTORY)
}

/// Defines calls that take no path and are forwarded unchanged, to wasmtime (`inner`) or the run's files (`files`).
macro_rules! forwarded {
    ($to:ident: $($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        $(async fn $name(&mut self, $($arg: $ty),*) -> $out {
            self.$to().$name($($arg),*).await
        })*
    };
}

impl HostDescriptor for AuditedFs<'_> {
    audited! {
        stat_at(fd, (flags) path: String;) -> DescriptorStat, PathRequirement::Visible, changes false;
        readlink_at(fd, path: String;) -> String, PathRequirement::Granted, changes false;
        remove_directory_at(fd, path: String;) -> (), PathRequirement::Granted, changes true;
        unlink_file_at(fd, path: String;) -> (), PathRequirement::Granted, changes true;
        metadata_hash_at(fd, (flags) path: String;) -> MetadataHashValue, PathRequirement::Visible, changes false;
    }

    forwarded! {
        inner:
        advise(fd: Resource<Descriptor>, offset: Filesize, len: Filesize, advice: Advice) -> FsResult<()>;
        sync_data(fd: Resource<Descriptor>) -> FsResult<()>;
        get_flags(fd: Resource<Descriptor>) -> FsResult<DescriptorFlags>;
        get_type(fd: Resource<Descriptor>) -> FsResult<DescriptorType>;
        read(fd: Resource<Descriptor>, len: Filesize, offset: Filesize) -> FsResult<(Vec<u8>, bool)>;
        sync(fd: Resource<Descriptor>) -> FsResult<()>;
    }

    forwarded! {
        files:
        stat(fd: Resource<Descriptor>) -> FsResult<DescriptorStat>;
        metadata_hash(fd: Resource<Descriptor>) -> FsResult<MetadataHashValue>;
        is_same_object(a: Resource<Descriptor>, b: Resource<Descriptor>) -> wasmtime::Result<bool>;
    }

    async fn read_directory(&mut self, fd: Resource<Descriptor>) -> FsResult<Resource<DirectoryEntryStream>> {
        let walked = self.folder_path(&fd)?;
        let listing = self.files().read_directory(&fd).await?;
        if let Some(walked) = walked {
            self.0.walked_paths.insert(listing.rep(), walked);
        }
        Ok(listing)
    }

    async fn set_size(&mut self, fd: Resource<Descriptor>, size: Filesize) -> FsResult<()> {
        self.spend(|budget| budget.charge_write(size))?;
        let mark = self.files().write_mark(&fd);
        self.inner().set_size(fd, size).await?;
        if let Some(mark) = mark {
            mark.set();
        }
        Ok(())
    }

    async fn write(
        &mut self,
        fd: Resource<Descriptor>,
        bytes: Vec<u8>,
        offset: Filesize,
    ) -> FsResult<Filesize> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let grown = offset.saturating_add(length).saturating_sub(self.size(&fd));
        self.spend(|budget| budget.charge_write(length.max(grown)))?;
        let mark = self.files().write_mark(&fd);
        let written = self.inner().write(fd, bytes, offset).await?;
        if let Some(mark) = mark.filter(|_| written > 0) {
            mark.set();
        }
        Ok(written)
    }

    async fn set_times(
        &mut self,
        fd: Resource<Descriptor>,
        atim: NewTimestamp,
        mtim: NewTimestamp,
    ) -> FsResult<()> {
        // A folder that leads to something granted can be open although it is not granted itself. It must not be
        // changed.
        if let Some(walked) = self.folder_path(&fd)? {
            if !walked.root.grants(&walked.path) {
                return Err(self.deny_path(&walked).into());
            }
            // wasmtime sets the times of a folder only by its path. A staged folder behaves in the same way.
            return Err(ErrorCode::BadDescriptor.into());
        }
        self.files().set_times(fd, atim, mtim).await
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
        self.reject_outside(&paths)?;
        let at = self.resolve(&fd, &path, follow, PathRequirement::Granted).await?;
        let result = match self.check_target(&at, &paths).await {
            Ok(_exists) => {
                let set = self.files().set_times_at(at.folder(), at.flags, at.name.clone(), atim, mtim).await;
                self.audit(true, &paths, set)
            }
            Err(refused) => Err(refused),
        };
        self.release(at);
        result
    }

    async fn create_directory_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<()> {
        let paths = [(self.preopen(&fd), path.as_str())];
        self.reject_outside(&paths)?;
        let at = self.resolve_new_folder(&fd, &path).await?;
        let result = match self.spend(Budget::charge_create) {
            Ok(()) => self.files().create_directory_at(at.folder(), at.name.clone()).await,
            Err(stop) => Err(stop),
        };
        self.release(at);
        self.audit(true, &paths, result)
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
        self.reject_outside(&paths)?;
        let at = self.resolve(&fd, &path, follow, PathRequirement::Visible).await?;
        let result = self.open_resolved(&at, &paths, open, flags).await;
        if let (Ok(opened), Some(walked)) = (&result, &at.walked) {
            self.0.walked_paths.insert(opened.rep(), walked.clone());
        }
        self.release(at);
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
        self.reject_outside(&paths)?;
        self.check_link(&paths)?;
        let (from, to) = self.resolve_both((&fd, &old), (&new_fd, &new)).await?;
        let old = from.name.clone();
        let new = to.name.clone();
        let result = self.files().link_at(from.folder(), flags, old, to.folder(), new).await;
        self.release(from);
        self.release(to);
        self.audit(true, &paths, result)
    }

    async fn rename_at(
        &mut self,
        fd: Resource<Descriptor>,
        old: String,
        new_fd: Resource<Descriptor>,
        new: String,
    ) -> FsResult<()> {
        let paths = [(self.preopen(&fd), old.as_str()), (self.preopen(&new_fd), new.as_str())];
        self.reject_outside(&paths)?;
        let (from, to) = self.resolve_both((&fd, &old), (&new_fd, &new)).await?;
        let result = match self.check_move(&from, &to, false).await {
            Ok(()) => {
                let old = from.name.clone();
                let new = to.name.clone();
                let result = self.files().rename_at(from.folder(), old, to.folder(), new).await;
                // Checked again after the move: another run may have put a folder there in between.
                match result {
                    Ok(()) => self.check_move(&from, &to, true).await,
                    Err(refused) => self.audit(true, &paths, Err(refused)),
                }
            }
            Err(refused) => Err(refused),
        };
        self.release(from);
        self.release(to);
        result
    }

    async fn symlink_at(&mut self, fd: Resource<Descriptor>, target: String, path: String) -> FsResult<()> {
        let paths = [(self.preopen(&fd), path.as_str())];
        self.reject_outside(&paths)?;
        self.check_link(&paths)?;
        let at = self.resolve(&fd, &path, PathFlags::empty(), PathRequirement::Granted).await?;
        let result = self.files().symlink_at(at.folder(), target, at.name.clone()).await;
        self.release(at);
        self.audit(true, &paths, result)
    }

    fn read_via_stream(
        &mut self,
        fd: Resource<Descriptor>,
        offset: Filesize,
    ) -> FsResult<Resource<DynInputStream>> {
        // wasmtime's stream would read on a thread of its pool, which a confined process cannot start.
        let inner = self.inner().read_via_stream(fd, offset)?;
        let table = &mut self.0.wasi.ctx().table;
        let inner = table.delete(inner)?;
        let stream: DynInputStream = Box::new(FileInputStream { inner });
        Ok(table.push(stream)?)
    }

    fn write_via_stream(
        &mut self,
        fd: Resource<Descriptor>,
        offset: Filesize,
    ) -> FsResult<Resource<DynOutputStream>> {
        // The gap between the end of the file and the stream's start becomes part of the file with the first byte.
        let gap = offset.saturating_sub(self.size(&fd));
        self.spend(|budget| budget.charge_write(gap))?;
        let mark = self.files().write_mark(&fd);
        let stream = self.inner().write_via_stream(fd, offset)?;
        self.wrap_output(stream, mark)
    }

    fn append_via_stream(&mut self, fd: Resource<Descriptor>) -> FsResult<Resource<DynOutputStream>> {
        let mark = self.files().write_mark(&fd);
        let stream = self.inner().append_via_stream(fd)?;
        self.wrap_output(stream, mark)
    }

    fn drop(&mut self, fd: Resource<Descriptor>) -> wasmtime::Result<()> {
        self.0.walked_paths.remove(&fd.rep());
        self.files().close(fd)
    }
}

impl HostDirectoryEntryStream for AuditedFs<'_> {
    async fn read_directory_entry(
        &mut self,
        stream: Resource<DirectoryEntryStream>,
    ) -> FsResult<Option<DirectoryEntry>> {
        self.files().take_back().await?;
        let walked = self.0.walked_paths.get(&stream.rep()).cloned();
        let is_hidden = |entry: &ListingEntry| {
            let is_shown = |walked: &WalkedPath| {
                walked.shows(&entry.name.to_string_lossy(), descriptor_type(entry.kind))
            };
            entry.is_dots() || !walked.as_ref().is_none_or(is_shown)
        };
        let mut files = self.files();
        let next = std::iter::from_fn(|| files.next_entry(&stream).transpose());
        let mut next = next.skip_while(|entry| entry.as_ref().is_ok_and(is_hidden));
        let Some(entry) = next.next().transpose()? else { return Ok(None) };
        self.spend(Budget::charge_entry)?;
        // WASI 0.2 names are UTF-8. A lossy conversion would return a name that cannot be opened.
        let name = entry.name.into_string().map_err(|_| ErrorCode::IllegalByteSequence)?;
        Ok(Some(DirectoryEntry { type_: descriptor_type(entry.kind), name }))
    }

    fn drop(&mut self, stream: Resource<DirectoryEntryStream>) -> wasmtime::Result<()> {
        self.0.walked_paths.remove(&stream.rep());
        self.files().drop_listing(&stream)
    }
}

fn descriptor_type(kind: FileType) -> DescriptorType {
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
