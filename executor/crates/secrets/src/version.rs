//! The versions of values: what reports may name of a value.

use a2g_govern::{FileError, read_secret, replace_private};
use a2g_types::ident::SecretName;
use a2g_types::tool::Digest;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use zeroize::Zeroizing;

/// The length of a key, in bytes.
const KEY_BYTES: usize = 32;
/// The part of the code that is the version, in bytes.
const VERSION_BYTES: usize = 8;

/// The key with which the versions of values are computed: without it, a version does not help to guess a value. `Debug`
/// does not print it.
pub struct VersionKey(Hmac<Sha256>);

impl fmt::Debug for VersionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VersionKey").finish_non_exhaustive()
    }
}

impl VersionKey {
    /// Reads the key of this executor, or makes it at the first start.
    ///
    /// # Ambient Authority
    /// Reads or creates the file, and asks the system for random bytes.
    ///
    /// # Errors
    /// [`FileError`] if the file cannot be read or created, also if other users can read it.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let failed = |error| FileError::Io { path: path.to_owned(), error };
        let is_missing = !path.try_exists().map_err(failed)?;
        if is_missing {
            if let Some(folder) = path.parent() {
                DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
            }
            let mut key = Zeroizing::new([0; KEY_BYTES]);
            getrandom::fill(&mut *key).map_err(|error| failed(std::io::Error::other(error)))?;
            let digits = Zeroizing::new(Digest(*key).to_string());
            replace_private(path, &digits)?;
        }
        let text = read_secret(path)?;
        let malformed = || {
            failed(std::io::Error::other(
                "it has to have 64 hexadecimal digits: remove it, and a new one is made",
            ))
        };
        let digits = std::str::from_utf8(&text).map_err(|_| malformed())?;
        let key = Zeroizing::new(Digest::parse(digits.trim_end()).map_err(|_| malformed())?.0);
        Hmac::new_from_slice(key.as_slice()).map(Self).map_err(|_| malformed())
    }

    /// The version of a value: 16 hexadecimal digits.
    pub(crate) fn version(&self, name: &SecretName, value: &str) -> String {
        // A name has no zero byte, so the text is unambiguous.
        let parts = [name.as_str().as_bytes(), b"\0", value.as_bytes()];
        let code = parts.into_iter().fold(self.0.clone(), hmac::Mac::chain_update).finalize().into_bytes();
        code.iter().take(VERSION_BYTES).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_that_of_key_name_and_value() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["key", "other"].map(|name| folder.path().join(name));
        let version = |path: &Path, name: &str, value: &str| {
            VersionKey::open(path).unwrap().version(&SecretName::parse(name).unwrap(), value)
        };
        let first = version(&path, "a", "value");
        assert_eq!(first.len(), 16);
        assert_eq!(first, version(&path, "a", "value"), "the key is kept");
        assert_ne!(first, version(&path, "a", "values"));
        assert_ne!(first, version(&path, "b", "value"));
        assert_ne!(first, version(&other, "a", "value"));
        std::fs::write(&path, "x").unwrap();
        assert!(VersionKey::open(&path).is_err());
    }
}
