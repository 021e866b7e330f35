//! The file calls of a run, each on an open folder and one name in it, or on an open file or folder.
//!
//! The callers resolve paths and check them against the grant (`filesystem.rs`, `walk.rs`). Here one of two
//! implementations answers: wasmtime's, which changes the granted folders at once, or a view that keeps the run's changes
//! apart (`staged.rs`). What is read from and written to an open file goes to its handle in both.

use super::listing::{Listing, ListingEntry};
use super::staged::{Loan, Staged, StagedCalls, TakeBackError};
use super::state::{PreopenKind, StoreState};
use a2g_overlay::WriteMark;
use a2g_types::error_chain::BoxedError;
use a2g_types::outcome::End;
use std::sync::Arc;
use wasmtime::component::Resource;
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemCtxView, WasiFilesystemView as _};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorStat, DirectoryEntryStream, ErrorCode, HostDescriptor, MetadataHashValue,
    NewTimestamp, OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::{FsError, FsResult};

/// The files of a run.
pub(super) enum Files {
    /// Those of the granted folders, which each call changes at once.
    Direct,
    /// Those of the granted folders with the run's changes, which are kept apart.
    Staged(Box<Staged>),
    /// None: the guest has ended.
    Ended,
}

impl Files {
    /// Ends the guest's use of the files, and returns the run's end. The changes of a run that returned a result are
    /// stored for its commit; if that fails, they cannot take effect and the run has not succeeded. Other changes are lost.
    pub(super) fn settle(&mut self, end: End) -> End {
        match std::mem::replace(self, Self::Ended) {
            Self::Staged(staged) if end.result().is_some() => match staged.store() {
                Ok(()) => end,
                Err(error) => End::NotCommitted(format!("they cannot be stored: {error}")),
            },
            Self::Direct | Self::Staged(_) | Self::Ended => end,
        }
    }

    /// Notes which of the granted folders are missing in the files of the run's program.
    pub(super) fn mark_missing(&self, kinds: &mut [PreopenKind]) {
        match self {
            Self::Staged(staged) => staged.mark_missing(kinds),
            Self::Direct | Self::Ended => {}
        }
    }

    /// Lends the files to a call that begins, until the loan is dropped. `None` in a run that shares them with no other
    /// one.
    ///
    /// # Errors
    /// If the call could not see the changes of the run, because they cannot be stored.
    pub(super) fn lend(&mut self) -> Result<Option<Loan>, BoxedError> {
        match self {
            Self::Staged(staged) => staged.lend(),
            Self::Direct | Self::Ended => Ok(None),
        }
    }

    /// Waits until no call has the files, and takes them back.
    ///
    /// # Errors
    /// If what the calls have changed cannot be read. The run cannot go on.
    async fn take_back(&mut self) -> Result<(), TakeBackError> {
        match self {
            Self::Staged(staged) => staged.take_back().await,
            Self::Direct | Self::Ended => Ok(()),
        }
    }

    /// As [`Self::take_back`], unless a call has the files.
    pub(super) fn take_back_if_ended(&mut self) -> Result<(), TakeBackError> {
        match self {
            Self::Staged(staged) => staged.take_back_if_ended(),
            Self::Direct | Self::Ended => Ok(()),
        }
    }
}

/// An open listing of a folder, which the table of handles has as a [`DirectoryEntryStream`].
// The binding's stream type is wasmtime's and cannot be constructed here.
enum OpenListing {
    Direct(Listing),
    Staged(a2g_overlay::Listing),
}

/// The file calls of a run. Each waits until no other run has the files, and then sees what these have changed.
pub(super) struct RunFiles<'a>(pub(super) &'a mut StoreState);

/// Defines calls on one open folder or file.
macro_rules! calls {
    ($($name:ident($fd:ident $(, $arg:ident: $ty:ty)*) -> $out:ty;)*) => {
        $(pub(super) async fn $name(
            &mut self, $fd: Resource<Descriptor> $(, $arg: $ty)*
        ) -> FsResult<$out> {
            self.take_back().await?;
            if let Some(staged) = self.staged(&$fd)? {
                return staged.$name($($arg),*);
            }
            self.direct().$name($fd $(, $arg)*).await
        })*
    };
}

impl RunFiles<'_> {
    calls! {
        stat(fd) -> DescriptorStat;
        metadata_hash(fd) -> MetadataHashValue;
        set_times(fd, atim: NewTimestamp, mtim: NewTimestamp) -> ();
        stat_at(fd, flags: PathFlags, name: String) -> DescriptorStat;
        metadata_hash_at(fd, flags: PathFlags, name: String) -> MetadataHashValue;
        readlink_at(fd, name: String) -> String;
        open_at(
            fd, flags: PathFlags, name: String, open: OpenFlags, descriptor: DescriptorFlags
        ) -> Resource<Descriptor>;
        create_directory_at(fd, name: String) -> ();
        symlink_at(fd, target: String, name: String) -> ();
        remove_directory_at(fd, name: String) -> ();
        unlink_file_at(fd, name: String) -> ();
        set_times_at(fd, flags: PathFlags, name: String, atim: NewTimestamp, mtim: NewTimestamp) -> ();
    }

    pub(super) async fn rename_at(
        &mut self,
        fd: Resource<Descriptor>,
        old: String,
        new_fd: Resource<Descriptor>,
        new: String,
    ) -> FsResult<()> {
        self.take_back().await?;
        let to = self.staged(&new_fd)?.map(|staged| staged.folder()).transpose()?;
        match (self.staged(&fd)?, to) {
            (Some(staged), Some(to)) => return staged.rename(old, to, new),
            // One of the two is the placeholder folder, which has no entries.
            (Some(_), None) | (None, Some(_)) => return Err(ErrorCode::Access.into()),
            (None, None) => {}
        }
        self.direct().rename_at(fd, old, new_fd, new).await
    }

    pub(super) async fn link_at(
        &mut self,
        fd: Resource<Descriptor>,
        flags: PathFlags,
        old: String,
        new_fd: Resource<Descriptor>,
        new: String,
    ) -> FsResult<()> {
        // A file with two names cannot be kept apart. No run under a verdict may make one, and no other has staged changes.
        if self.staged(&fd)?.is_some() || self.staged(&new_fd)?.is_some() {
            return Err(ErrorCode::NotPermitted.into());
        }
        self.direct().link_at(fd, flags, old, new_fd, new).await
    }

    pub(super) async fn is_same_object(
        &mut self,
        a: Resource<Descriptor>,
        b: Resource<Descriptor>,
    ) -> wasmtime::Result<bool> {
        self.0.files.take_back().await?;
        let identity = |staged: Option<StagedCalls<'_>>| match staged {
            Some(staged) => staged.identity(),
            None => Ok(None),
        };
        let trap = |error| wasmtime::Error::msg(format!("a file cannot be compared: {error:?}"));
        let other = self.staged(&b).and_then(identity).map_err(trap)?;
        match (self.staged(&a).and_then(identity).map_err(trap)?, other) {
            (Some(one), Some(other)) => Ok(one == other),
            (Some(_), None) | (None, Some(_)) => Ok(false),
            (None, None) => self.direct().is_same_object(a, b).await,
        }
    }

    /// Opens a listing of a folder.
    pub(super) async fn read_directory(
        &mut self,
        fd: &Resource<Descriptor>,
    ) -> FsResult<Resource<DirectoryEntryStream>> {
        self.take_back().await?;
        let listing = match self.staged(fd)? {
            Some(staged) => OpenListing::Staged(staged.list()?),
            None => match self.0.wasi.ctx().table.get(fd)? {
                Descriptor::Dir(dir) => OpenListing::Direct(Listing::open(&dir.dir, 0)?),
                Descriptor::File(_) => return Err(ErrorCode::NotDirectory.into()),
            },
        };
        let stream = self.0.wasi.ctx().table.push(listing)?;
        Ok(Resource::new_own(stream.rep()))
    }

    /// The mark to set when a file was written; `None` in a run whose changes are not kept apart, and unless the file is
    /// open for writing.
    pub(super) fn write_mark(&self, fd: &Resource<Descriptor>) -> Option<WriteMark> {
        match &self.0.files {
            Files::Staged(staged) => staged.write_mark(fd.rep()),
            Files::Direct | Files::Ended => None,
        }
    }

    /// Waits until no other run has the files, and takes them back.
    pub(super) async fn take_back(&mut self) -> FsResult<()> {
        self.0.files.take_back().await.map_err(FsError::trap)
    }

    /// The next entry of a listing, including `.` and `..`; `None` at the end. The files have been taken back.
    pub(super) fn next_entry(
        &mut self,
        stream: &Resource<DirectoryEntryStream>,
    ) -> FsResult<Option<ListingEntry>> {
        let StoreState { wasi, files, .. } = &mut *self.0;
        let stream = Resource::<OpenListing>::new_borrow(stream.rep());
        match (wasi.ctx().table.get_mut(&stream)?, files) {
            (OpenListing::Direct(listing), Files::Direct | Files::Staged(_)) => Ok(listing.next()?),
            (OpenListing::Staged(listing), Files::Staged(staged)) => staged.next_entry(listing),
            (OpenListing::Staged(_), Files::Direct) | (_, Files::Ended) => {
                Err(ErrorCode::BadDescriptor.into())
            }
        }
    }

    pub(super) fn drop_listing(&mut self, stream: &Resource<DirectoryEntryStream>) -> wasmtime::Result<()> {
        self.0.wasi.ctx().table.delete(Resource::<OpenListing>::new_own(stream.rep()))?;
        Ok(())
    }

    /// Closes a file or folder.
    pub(super) fn close(&mut self, fd: Resource<Descriptor>) -> wasmtime::Result<()> {
        let rep = fd.rep();
        // The handle goes first: the view drops what no handle uses.
        let result = HostDescriptor::drop(&mut self.direct(), fd);
        if let Files::Staged(staged) = &mut self.0.files {
            staged.close(rep);
        }
        result
    }

    /// wasmtime's own calls.
    fn direct(&mut self) -> WasiFilesystemCtxView<'_> {
        self.0.filesystem()
    }

    /// The calls on a descriptor of a run whose changes are kept apart; `None` where wasmtime's own calls apply: in any
    /// other run, and for the placeholder folder, in which there is nothing to read and to change.
    fn staged(&mut self, fd: &Resource<Descriptor>) -> FsResult<Option<StagedCalls<'_>>> {
        let StoreState { wasi, files, preopens, .. } = &mut *self.0;
        let staged = match files {
            Files::Direct => return Ok(None),
            Files::Staged(staged) => staged,
            Files::Ended => return Err(ErrorCode::BadDescriptor.into()),
        };
        let table = wasi.ctx().table;
        let preopened = match table.get(fd)? {
            Descriptor::Dir(dir) => {
                preopens.iter().enumerate().find(|(_, preopen)| Arc::ptr_eq(&preopen.handle, &dir.dir))
            }
            Descriptor::File(_) => None,
        };
        staged.calls(fd.rep(), preopened, table)
    }
}
