//! The cache of compiled modules, in a folder that only this user can write to.
//!
//! A compiled module is machine code that runs without verification, so a file is read only if the folder and
//! the open file belong to this user and no other user may write to them. The name of a file consists of the
//! digest of the module, the contract, and the engine that compiled it. The time of its last use is its modification
//! time: files that were not used for long are removed whenever one is written.

use super::CatalogError;
use super::compiler::Compiled;
use a2g_types::tool::{Contract, Digest};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};
use std::fs::{DirBuilder, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, SystemTime};

/// The time since its last use after which a file is removed.
const MAX_UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);
/// The size of all files, in bytes, above which the least recently used ones are removed.
const MAX_BYTES: u64 = 8 << 30;
/// The part of a compiled module's file name before the version of the file format.
const COMPILED_SUFFIX: &str = ".compiled-";
/// The beginning of the name of a file that is being written.
const TEMPORARY_PREFIX: &str = ".tmp";

/// The private folder of compiled modules.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
    compatibility: String,
}

/// The file name of one compiled module.
#[derive(Debug, Clone)]
pub(super) struct CacheKey(String);

impl Cache {
    /// Opens or creates the folder. `compatibility` identifies the engine that compiled the modules.
    ///
    /// # Ambient Authority
    /// Creates `folder` and its parents.
    ///
    /// # Errors
    /// [`CatalogError::CacheNotPrivate`] if the folder belongs to another user, or other users may write to it.
    pub fn open(folder: &Path, compatibility: String) -> Result<Self, CatalogError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| CatalogError::io(folder, error))?;
        let metadata = std::fs::metadata(folder).map_err(|error| CatalogError::io(folder, error))?;
        check_private(folder, &metadata)?;
        Ok(Self { folder: folder.to_owned(), compatibility })
    }

    /// The path of the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn key(&self, digest: Digest, contract: Contract) -> CacheKey {
        // The number is the version of the file format.
        CacheKey(format!("{digest}-{}-{}{COMPILED_SUFFIX}5", contract.as_str(), self.compatibility))
    }

    pub(super) fn read(&self, key: &CacheKey) -> Result<Option<Compiled>, CatalogError> {
        let path = self.folder.join(&key.0);
        let io = |error| CatalogError::io(&path, error);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        check_private(&path, &file.metadata().map_err(io)?)?;
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        // A file system that is read-only keeps the cache as it is.
        let _touched = futimens(&file, &Timestamps { last_access: now, last_modification: now });
        // `None` for a truncated file, as after a crash; the module is then compiled again.
        Compiled::read(&file).map_err(io)
    }

    /// Stores a compiled module. If the folder is full or read-only, the module is compiled again at the next start.
    pub(super) fn write(&self, key: &CacheKey, compiled: &Compiled) -> Result<(), CatalogError> {
        static WARNING: Once = Once::new();
        let path = self.folder.join(&key.0);
        match self.store(&path, compiled) {
            Err(error) if cannot_store(error.kind()) => {
                WARNING.call_once(|| {
                    tracing::warn!(
                        folder = %self.folder.display(),
                        %error,
                        "compiled tools cannot be stored, and are compiled again at each start: free some space, or name a \
                         folder that this user may write to (`XDG_CACHE_HOME`, or `catalog.cache`)"
                    );
                });
                Ok(())
            }
            stored => stored.map_err(|error| CatalogError::io(&path, error)),
        }
    }

    fn store(&self, path: &Path, compiled: &Compiled) -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(TEMPORARY_PREFIX).tempfile_in(&self.folder)?;
        compiled.write(&mut file).and_then(|()| file.as_file().sync_all())?;
        let file = file.persist(path).map_err(|error| error.error)?;
        if let Ok(now) = file.metadata().and_then(|metadata| metadata.modified()) {
            self.remove_unused(path, now, MAX_BYTES);
        }
        Ok(())
    }

    /// Removes files of any engine that were not used for long, and more of them while all have more than `max_bytes`, but
    /// not `written`. A tool whose file is removed is compiled again at the next start.
    fn remove_unused(&self, written: &Path, now: SystemTime, max_bytes: u64) {
        let is_own = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.contains(COMPILED_SUFFIX) || name.starts_with(TEMPORARY_PREFIX)
        };
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let files = entries.filter_map(|entry| {
            let path = entry.path();
            let metadata = entry.metadata().ok()?;
            is_own(&path).then_some((metadata.modified().ok()?, metadata.len(), path))
        });
        let mut files = files.collect::<Vec<_>>();
        files.sort();
        let mut bytes = files.iter().map(|(_, bytes, _)| bytes).sum::<u64>();
        for (used, file_bytes, path) in files {
            let is_unused = now.duration_since(used).is_ok_and(|unused| unused > MAX_UNUSED);
            if path != written && (is_unused || bytes > max_bytes) && std::fs::remove_file(&path).is_ok() {
                bytes -= file_bytes;
            }
        }
    }
}

/// `true` for an error of the folder, which leaves the compiled module as good as it was.
fn cannot_store(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::PermissionDenied
            | ErrorKind::QuotaExceeded
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::StorageFull
    )
}

fn check_private(path: &Path, metadata: &Metadata) -> Result<(), CatalogError> {
    let reason = if metadata.uid() != rustix::process::geteuid().as_raw() {
        "it belongs to another user"
    } else if metadata.mode() & 0o022 != 0 {
        "other users may write to it: run `chmod go-w` on it"
    } else {
        return Ok(());
    };
    Err(CatalogError::CacheNotPrivate { path: path.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::ModuleFacts;
    use std::os::unix::fs::PermissionsExt;

    fn compiled() -> Compiled {
        Compiled {
            module: crate::catalog::create_sealed(b"code").unwrap(),
            component: false,
            componentised: None,
            described: None,
            facts: ModuleFacts::default(),
        }
    }

    #[test]
    fn files_are_removed_that_were_not_used_for_long_or_are_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), "engine".into()).unwrap();
        let keys = [b"a", b"b", b"c"].map(|module| cache.key(Digest::compute(module), Contract::Command));
        let path = |index: usize| folder.path().join(&keys[index].0);
        let left = || [0, 1, 2].map(|index| path(index).exists());
        std::fs::write(folder.path().join("a.partial"), "of another module").unwrap();
        keys.iter().for_each(|key| cache.write(key, &compiled()).unwrap());
        let now = std::fs::metadata(path(2)).unwrap().modified().unwrap();
        let use_before = |index: usize, before: Duration| {
            File::open(path(index)).unwrap().set_modified(now - before).unwrap();
        };
        use_before(0, MAX_UNUSED * 2);
        use_before(1, MAX_UNUSED / 2);
        assert!(cache.read(&keys[0]).unwrap().is_some());
        cache.write(&keys[2], &compiled()).unwrap();
        assert_eq!(left(), [true; 3], "the first was used now");
        use_before(0, MAX_UNUSED * 2);
        cache.write(&keys[2], &compiled()).unwrap();
        assert_eq!(left(), [false, true, true]);
        let bytes = std::fs::metadata(path(2)).unwrap().len();
        cache.remove_unused(&path(2), now, bytes * 2);
        assert_eq!(left(), [false, true, true]);
        cache.remove_unused(&path(2), now, bytes - 1);
        assert_eq!(left(), [false, false, true], "the one that was written stays");
        assert!(folder.path().join("a.partial").exists());
    }

    #[test]
    fn a_file_that_other_users_may_write_is_not_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&folder.path().join("cache"), "engine".into()).unwrap();
        let key = cache.key(Digest::compute(b"module"), Contract::Command);
        let compiled = compiled();
        assert!(cache.read(&key).unwrap().is_none());
        cache.write(&key, &compiled).unwrap();
        assert!(cache.read(&key).unwrap().is_some());
        let path = cache.folder.join(&key.0);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(cache.read(&key), Err(CatalogError::CacheNotPrivate { .. })));
        std::fs::set_permissions(&cache.folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Cache::open(&cache.folder, "engine".into()).is_err());
    }
}
