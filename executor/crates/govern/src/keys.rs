//! Keys: the trusted public keys of governors, and key pairs for signing.
//!
//! Every key is Ed25519 and may speak for one issuer. A key's id is its thumbprint (RFC 7638), unless the owner chose
//! another id. Private keys and shared secrets are separate files that only their owner can read; they never appear in
//! a configuration, a log, or a message.

use super::files::{self, FileError, MAX_KEY_FILE_BYTES, check_unchanged_by_others, create};
use super::secrets::SecretsError;
use a2g_types::ident::Issuer;
use a2g_wire::jwk::{self, PublicJwk};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The file extension of trusted keys.
const EXTENSION: &str = "jwk";

/// The reason why a key cannot be used. No message repeats any part of a private key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file or folder cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The text is not a usable key.
    #[error("`{path}`: {reason}")]
    NotAKey {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The file is not a valid list of agents' secrets.
    #[error("`{path}`: {reason}")]
    NotSecrets {
        /// The file.
        path: PathBuf,
        /// The problem. It is part of the message; as a `source` it would be printed twice in an error
        /// chain.
        reason: SecretsError,
    },
    /// Two trusted keys have the same id, or a key is trusted under two ids.
    #[error(
        "`{path}`: another trusted key has the id `{id}`, and a proof could mean either: remove one of the two"
    )]
    Duplicate {
        /// The second file.
        path: PathBuf,
        /// The common id.
        id: String,
    },
}

impl KeyError {
    pub(super) fn not_a_key(path: &Path, reason: impl fmt::Display) -> Self {
        Self::NotAKey { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// A trusted public key. It verifies only proofs of its issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedKey {
    id: String,
    issuer: Issuer,
    key: VerifyingKey,
}

impl TrustedKey {
    /// Reads a key as JSON (RFC 7517); `path` is used in errors. `issuer` replaces the issuer in the file.
    ///
    /// # Errors
    /// [`KeyError::NotAKey`], also for a weak key, under which any signature verifies, and for a key without an
    /// issuer.
    pub fn parse(text: &[u8], issuer: Option<Issuer>, path: &Path) -> Result<Self, KeyError> {
        let jwk = jwk::decode_public(text).map_err(|fault| KeyError::not_a_key(path, fault.sentence()))?;
        let key = VerifyingKey::from_bytes(&jwk.x).ok().filter(|key| !key.is_weak());
        let key = key.ok_or_else(|| KeyError::not_a_key(path, "`x` is not a usable Ed25519 point"))?;
        let id = jwk.kid.unwrap_or_else(|| thumbprint(&key));
        let issuer = issuer
            .or(jwk.issuer)
            .ok_or_else(|| KeyError::not_a_key(path, "the key names no issuer: name it with `--issuer`"))?;
        Ok(Self { id, issuer, key })
    }

    /// The id by which a proof selects the key (`kid`).
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The issuer for which the key may speak (`iss`).
    #[must_use]
    pub fn issuer(&self) -> &Issuer {
        &self.issuer
    }

    /// The key as JSON (RFC 7517).
    #[must_use]
    pub fn to_jwk(&self) -> String {
        let kid = Some(self.id.clone());
        let issuer = Some(self.issuer.clone());
        jwk::encode_public(&PublicJwk { x: self.key.to_bytes(), kid, issuer }).get().to_owned()
    }

    /// The key in the form of `a2g/register`: `ed25519:` and 64 hexadecimal digits.
    #[must_use]
    pub fn public_key(&self) -> String {
        let digits = self.key.to_bytes().map(|byte| format!("{byte:02x}"));
        format!("ed25519:{}", digits.concat())
    }

    /// The thumbprint of RFC 7638, which is independent of the id.
    #[must_use]
    pub fn thumbprint(&self) -> String {
        thumbprint(&self.key)
    }

    pub(super) fn point(&self) -> VerifyingKey {
        self.key
    }

    /// Verifies a signature by the strict rules (RFC 8032, no points of small order), under which all verifiers
    /// agree.
    pub(super) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        Signature::from_slice(signature)
            .is_ok_and(|signature| self.key.verify_strict(message, &signature).is_ok())
    }
}

/// The trusted keys, by id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedKeys(BTreeMap<String, TrustedKey>);

impl TrustedKeys {
    /// Reads a folder with one `.jwk` file for each key; other files are ignored.
    ///
    /// # Ambient Authority
    /// Reads the folder and all such files in it.
    ///
    /// # Errors
    /// [`KeyError`] for the first file that is not a key or that other users may change. No file is skipped, because
    /// the operator relies on each.
    pub fn read(folder: &Path) -> Result<Self, KeyError> {
        let io = |error: std::io::Error| FileError::io(folder, error);
        check_unchanged_by_others(folder, &std::fs::metadata(folder).map_err(io)?)?;
        let entries = std::fs::read_dir(folder).map_err(io)?;
        let mut paths = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(io)?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
        paths.sort();
        let mut keys = BTreeMap::new();
        for path in paths {
            let (text, metadata) = files::read(&path, MAX_KEY_FILE_BYTES)?;
            check_unchanged_by_others(&path, &metadata)?;
            let key = TrustedKey::parse(&text, None, &path)?;
            let id = key.id.clone();
            if keys.insert(id.clone(), key).is_some() {
                return Err(KeyError::Duplicate { path, id });
            }
        }
        Ok(Self(keys))
    }

    /// Adds a key to a folder, which is created if it does not exist, and returns the new file. Running
    /// executors trust the key after they read the folder again.
    ///
    /// # Ambient Authority
    /// Reads the folder and writes a file in it.
    ///
    /// # Errors
    /// [`KeyError`] when the folder is unusable, or contains another key with this id or this key under another
    /// id.
    pub fn add(folder: &Path, key: &TrustedKey) -> Result<PathBuf, KeyError> {
        if !folder.exists() {
            let mut builder = std::fs::DirBuilder::new();
            builder
                .mode(0o755)
                .recursive(true)
                .create(folder)
                .map_err(|error| FileError::io(folder, error))?;
        }
        let trusted = Self::read(folder)?;
        let path = folder.join(key.thumbprint()).with_extension(EXTENSION);
        if path.exists() && trusted.iter().any(|other| other == key) {
            return Ok(path);
        }
        if let Some(other) = trusted.iter().find(|other| other.id == key.id || other.key == key.key) {
            return Err(KeyError::Duplicate { path, id: other.id.clone() });
        }
        create(&path, &format!("{}\n", key.to_jwk()), 0o644)?;
        Ok(path)
    }

    pub(super) fn get(&self, id: &str) -> Option<&TrustedKey> {
        self.0.get(id)
    }

    /// All keys, sorted by id.
    pub fn iter(&self) -> impl Iterator<Item = &TrustedKey> {
        self.0.values()
    }
}

/// A key pair for signing. `Debug` prints only its id.
pub struct KeyPair {
    private: SigningKey,
    public: TrustedKey,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("id", &self.public.id).finish_non_exhaustive()
    }
}

impl KeyPair {
    /// Creates a key that speaks for `issuer`, and writes it to a new file that only its owner can read.
    ///
    /// # Ambient Authority
    /// Asks the system for random bytes and creates the file.
    ///
    /// # Errors
    /// [`KeyError::File`], also when the file exists already.
    pub fn create(path: &Path, issuer: Issuer) -> Result<Self, KeyError> {
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *seed).map_err(|error| FileError::io(path, std::io::Error::other(error)))?;
        let private = SigningKey::from_bytes(&seed);
        let key = private.verifying_key();
        let public = TrustedKey { id: thumbprint(&key), issuer, key };
        let kid = Some(public.id.clone());
        let issuer = Some(public.issuer.clone());
        let text = jwk::encode_private(&PublicJwk { x: key.to_bytes(), kid, issuer }, &seed);
        create(path, &text, 0o600)?;
        Ok(Self { private, public })
    }

    /// Reads a file that [`KeyPair::create`] wrote.
    ///
    /// # Ambient Authority
    /// Reads the file.
    ///
    /// # Errors
    /// [`KeyError`], also when other users can read the file, or the public part does not belong to the private one.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = files::read_secret(path)?;
        let (jwk, seed) =
            jwk::decode_private(&text).map_err(|fault| KeyError::not_a_key(path, fault.sentence()))?;
        let private = SigningKey::from_bytes(&seed);
        let key = private.verifying_key();
        if key.to_bytes() != jwk.x {
            return Err(KeyError::not_a_key(path, "the public part does not belong to the private part"));
        }
        let issuer = jwk
            .issuer
            .ok_or_else(|| KeyError::not_a_key(path, "`iss` is missing: the key must name its issuer"))?;
        let id = jwk.kid.unwrap_or_else(|| thumbprint(&key));
        Ok(Self { private, public: TrustedKey { id, issuer, key } })
    }

    /// Reads a file that [`KeyPair::create`] wrote, or creates it for `issuer` if it does not exist.
    ///
    /// # Ambient Authority
    /// As [`KeyPair::create`] and [`KeyPair::read`].
    ///
    /// # Errors
    /// As [`KeyPair::create`] and [`KeyPair::read`].
    pub fn read_or_create(path: &Path, issuer: Issuer) -> Result<Self, KeyError> {
        match path.try_exists() {
            Ok(false) => Self::create(path, issuer),
            Ok(true) | Err(_) => Self::read(path),
        }
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> &TrustedKey {
        &self.public
    }

    pub(super) fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.private.sign(message).to_bytes()
    }
}

fn thumbprint(key: &VerifyingKey) -> String {
    let input = jwk::thumbprint_input(&key.to_bytes());
    URL_SAFE_NO_PAD.encode(a2g_types::tool::Digest::compute(input.as_bytes()).0)
}

#[cfg(test)]
mod tests;
