//! The folders that a guest finds open at its start.
//!
//! The opened sets are cached by device, inode, guest path and access. A cached handle keeps its inode alive, so
//! its key never refers to another folder.

use super::state::PreopenKind;
use a2g_capability::{Grant, Roots};
use a2g_types::limit::Access;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use wasmtime_wasi::filesystem::WasiFilesystemCtx;
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};

/// Maximum number of sets of folders in the cache.
const MAX_CACHED_SETS: usize = 64;

/// One folder of a set: device, inode, guest path, access.
type FolderKey = (u64, u64, String, Access);

/// Opens the folders of a store, with a cache.
pub(super) struct Preopens {
    /// An empty folder without a name: no path leads to it, and nothing can be created in it.
    outside: OwnedFd,
    cache: Mutex<HashMap<(Vec<FolderKey>, bool), WasiFilesystemCtx>>,
}

impl Preopens {
    /// # Ambient Authority
    /// Creates an empty folder in the system's temporary folder and unlinks its name again.
    pub(super) fn new() -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let outside = rustix::fs::open(folder.path(), flags, Mode::empty())?;
        folder.close()?;
        Ok(Self { outside, cache: Mutex::default() })
    }

    pub(super) fn outside(&self) -> BorrowedFd<'_> {
        self.outside.as_fd()
    }

    /// Opens the granted folders, followed by the placeholder folder, and returns the kind of each.
    pub(super) fn for_run(
        &self,
        roots: &Roots,
        grant: &Grant,
    ) -> wasmtime::Result<(WasiFilesystemCtx, Vec<PreopenKind>)> {
        let access = grant.access();
        let mut kinds = Vec::with_capacity(roots.as_slice().len() + 1);
        let mut folders = Vec::with_capacity(roots.as_slice().len());
        for root in roots.as_slice() {
            let stat = rustix::fs::fstat(&root.dir).map_err(std::io::Error::from)?;
            folders.push((stat.st_dev, stat.st_ino, root.guest.clone(), access.value));
            let is_missing = root.is_missing;
            kinds.push(PreopenKind::Granted { access, root: root.granted.clone(), is_missing });
        }
        if roots.should_watch_outside() {
            kinds.push(PreopenKind::Outside);
        }
        // A folder in the place of a missing one is a new one for each run, so it is never found again.
        if roots.as_slice().iter().any(|root| root.is_missing) {
            return Ok((self.open(roots, access.value)?, kinds));
        }
        let key = (folders, roots.should_watch_outside());
        let mut cache = self.cache.lock();
        if let Some(known) = cache.get(&key) {
            return Ok((known.clone(), kinds));
        }
        let context = self.open(roots, access.value)?;
        if cache.len() >= MAX_CACHED_SETS {
            cache.clear();
        }
        cache.insert(key, context.clone());
        Ok((context, kinds))
    }

    fn open(&self, roots: &Roots, access: Access) -> wasmtime::Result<WasiFilesystemCtx> {
        // wasmtime-wasi opens a preopened folder by a path. The path below `/proc/self/fd` of the checked handle
        // resolves no name a second time, so nothing can be replaced between the check and this open.
        let by_handle = |handle: BorrowedFd<'_>| format!("/proc/self/fd/{}", handle.as_raw_fd());
        let perms = match access {
            Access::ReadOnly => FsPerms::ReadOnly,
            Access::ReadWrite => FsPerms::ReadWrite,
        };
        let mut wasi = WasiCtxBuilder::new();
        wasi.allow_blocking_current_thread(true);
        for root in roots.as_slice() {
            wasi.preopened_dir(by_handle(root.dir.as_fd()), &root.guest, perms)?;
        }
        if roots.should_watch_outside() {
            wasi.preopened_dir(by_handle(self.outside.as_fd()), "/", FsPerms::ReadOnly)?;
        }
        Ok(wasi.build().filesystem().clone())
    }
}
