//! The folders that a guest finds open.
//!
//! wasmtime-wasi opens a preopened folder by a path. A checked handle is therefore opened again by
//! its `/proc/self/fd` name, which resolves no path a second time, and what comes out is kept: the
//! next run with the very same folders (by device and inode, which a kept handle holds on to) under
//! the same guest paths gets a copy of it.

use super::state::PreopenKind;
use crate::capability::{Grant, Roots};
use crate::limit::Access;
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use wasmtime_wasi::filesystem::WasiFilesystemCtx;
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};

/// How many different sets of folders are kept.
const MAX_KEPT: usize = 64;

/// One folder of a set: device, inode, guest path, access.
type Folder = (u64, u64, String, Access);

/// Makes the preopened folders of a store.
pub(super) struct Preopens {
    /// An empty folder without a name, which no path leads to and in which nothing can be made.
    outside: OwnedFd,
    kept: Mutex<HashMap<(Vec<Folder>, bool), WasiFilesystemCtx>>,
}

impl Preopens {
    /// # Ambient Authority
    /// Makes an empty folder in the system's temporary folder and takes its name away again.
    pub(super) fn new() -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let outside = rustix::fs::open(folder.path(), flags, Mode::empty())?;
        folder.close()?;
        Ok(Self { outside, kept: Mutex::default() })
    }

    pub(super) fn outside(&self) -> BorrowedFd<'_> {
        self.outside.as_fd()
    }

    /// The granted folders, and after them the one that stands for everything else.
    pub(super) fn of(
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
            kinds.push(PreopenKind::Granted { access, root: root.granted.clone() });
        }
        if roots.watch_outside() {
            kinds.push(PreopenKind::Outside);
        }
        let key = (folders, roots.watch_outside());
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.get(&key) {
            return Ok((known.clone(), kinds));
        }
        let opened = self.open(roots, access.value)?;
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(key, opened.clone());
        Ok((opened, kinds))
    }

    fn open(&self, roots: &Roots, access: Access) -> wasmtime::Result<WasiFilesystemCtx> {
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
        if roots.watch_outside() {
            wasi.preopened_dir(by_handle(self.outside.as_fd()), "/", FsPerms::ReadOnly)?;
        }
        Ok(wasi.build().filesystem().clone())
    }
}
