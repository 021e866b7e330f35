//! The cache of compiled modules, in a folder that only this user can write to.
//!
//! A compiled module is machine code that runs without verification, so a file is read only if the folder and
//! the open file belong to this user and no other user may write to them. The name of a file consists of the
//! digest of the module, the contract, and the engine that compiled it.

use super::CatalogError;
use super::compiler::Compiled;
use a2g_types::tool::{Contract, Digest};
use std::fs::{DirBuilder, File, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

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
        CacheKey(format!("{digest}-{}-{}.compiled-5", contract.as_str(), self.compatibility))
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
        // `None` for a truncated file, as after a crash; the module is then compiled again.
        Compiled::read(&file).map_err(io)
    }

    pub(super) fn write(&self, key: &CacheKey, compiled: &Compiled) -> Result<(), CatalogError> {
        let path = self.folder.join(&key.0);
        let io = |error| CatalogError::io(&path, error);
        let mut file = tempfile::NamedTempFile::new_in(&self.folder).map_err(io)?;
        compiled.write(&mut file).and_then(|()| file.as_file().sync_all()).map_err(io)?;
        file.persist(&path).map_err(|error| io(error.error))?;
        Ok(())
    }
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

    #[test]
    fn a_file_that_other_users_may_write_is_not_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&folder.path().join("cache"), "engine".into()).unwrap();
        let key = cache.key(Digest::compute(b"module"), Contract::Command);
        let module = crate::catalog::create_sealed(b"code").unwrap();
        let compiled = Compiled {
            module,
            component: false,
            componentised: None,
            described: None,
            facts: ModuleFacts::default(),
        };
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
